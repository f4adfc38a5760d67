//! States as the monitor publishes them.

use std::collections::BTreeMap;

use lockstep_lag::diagnosis::{Diagnosis, Finding};
use lockstep_lag::monitor::{LinkHistory, LinkState, Moment, MonitorState, NodeState, StageState};
use lockstep_lag::node::Role;
use lockstep_lag::parallel_report::ParallelReport;
use lockstep_lag::point::Bound;
use lockstep_lag::point::{LinkKind, Stage};
use lockstep_lag::relay::{Group, Relay, RelaySlot};
use lockstep_lag::rules::{Cause, Fact, Severity};
use lockstep_lag::states::WalStatus;
use lockstep_lag::views::{Conflicts, Extension, Slot};
use lockstep_wire::Lsn;

/// 2026-11-21 20:05:12 UTC.
pub const NOW_MS: i64 = 1_795_291_512_345;

const MB: u64 = 1024 * 1024;

pub fn node(name: &str, role: Role) -> NodeState {
    NodeState {
        name: name.to_owned(),
        role,
        address: format!("{name}.example:5432/app"),
        version: 150_018,
        usable: true,
        troubles: Vec::new(),
        round_trip_ms: Some(0.8),
        end_lsn: Some(lsn(500)),
        visible_lsn: None,
        wal_bytes_per_s: (role != Role::Subscriber).then_some(3.4 * MB as f64),
        active_clients: 12,
        awaiting_sync: 0,
        awaiting_sync_ms: None,
        oldest_transaction_ms: None,
        oldest_prepared_ms: None,
        archive_failures: 0,
        archived_age_ms: None,
        wal_folder: None,
        max_wal_size_bytes: None,
        cluster_name: None,
        slots: Vec::new(),
        conflicts: Conflicts::default(),
        extension: None,
        parallel_replay: None,
        relay: None,
        relay_version: None,
        sample_age_ms: Some(200.0),
        suspect: None,
    }
}

pub fn lost(name: &str, role: Role, trouble: &str) -> NodeState {
    NodeState {
        usable: false,
        version: 0,
        troubles: vec![trouble.to_owned()],
        round_trip_ms: None,
        end_lsn: None,
        wal_bytes_per_s: None,
        active_clients: 0,
        ..node(name, role)
    }
}

fn lsn(mb: u64) -> Lsn {
    Lsn::from(0x3_0000_0000 + mb * MB)
}

/// A link with `held` megabytes in each stage.
pub fn link(replica: &str, kind: LinkKind, lag_ms: f64, held: [u64; 4]) -> LinkState {
    let mut stages = Stage::ALL.map(|stage| StageState {
        name: stage.name(kind),
        bytes: 0,
    });
    for (stage, held) in stages.iter_mut().zip(held) {
        stage.bytes = held * MB;
    }
    let at = |stages: usize| lsn(500 - held[..stages].iter().sum::<u64>());
    let (flush, replay) = match kind {
        LinkKind::Physical => (3, 4),
        LinkKind::Logical => (4, 3),
    };
    LinkState {
        id: format!("primary/{replica}"),
        upstream: "primary".to_owned(),
        replica: replica.to_owned(),
        kind,
        slot: Some(format!("{replica}_slot")),
        application_name: Some(replica.to_owned()),
        lockstep_replica: None,
        behind: lag_ms >= 200.0,
        lag_ms,
        bound: Bound::default(),
        lag_max_ms: lag_ms * 1.25,
        lag_bytes: held.iter().sum::<u64>() * MB,
        behind_primary: None,
        stages,
        end_lsn: Some(lsn(500)),
        sent_lsn: Some(at(1)),
        write_lsn: Some(at(2)),
        flush_lsn: Some(at(flush)),
        replay_lsn: Some(at(replay)),
        visible_ms: None,
        suspect: None,
    }
}

pub fn finding(at: &str, cause: Cause, severity: Severity, title: &str) -> Finding {
    Finding {
        cause,
        title: title.to_owned(),
        severity,
        at: at.to_owned(),
        explains: 0.93,
        lag_ms: 0.0,
        evidence: Vec::new(),
        names: BTreeMap::new(),
        remedies: Vec::new(),
    }
}

fn fact(name: &'static str, value: f64, words: &str) -> Fact {
    Fact {
        name,
        value,
        words: words.to_owned(),
    }
}

pub fn state(nodes: Vec<NodeState>, links: Vec<LinkState>, findings: Vec<Finding>) -> MonitorState {
    let mut diagnosis = Diagnosis {
        healthy: false,
        unknown: Vec::new(),
        nodes: Vec::new(),
        links: Vec::new(),
        findings,
        checks: Vec::new(),
        failover: Vec::new(),
        unlinked: Vec::new(),
    };
    let behind = links.iter().any(|link| link.behind);
    let suffers = behind || diagnosis.has_lag() || diagnosis.has_risk();
    diagnosis.healthy = !suffers && nodes.iter().all(|node| node.usable);
    MonitorState {
        cluster: None,
        number: 7,
        at_ms: NOW_MS,
        window_s: 30.0,
        every_s: 1.0,
        heartbeat: false,
        diagnosis,
        nodes,
        links,
    }
}

fn slot(name: &str, kind: &str, active: bool) -> Slot {
    Slot {
        slot_name: name.to_owned(),
        slot_type: kind.into(),
        active,
        restart_lsn: Some(lsn(498)),
        wal_status: Some(WalStatus::Reserved),
        ..Slot::default()
    }
}

/// A state without problems. One replica is not named on the command line.
pub fn calm() -> MonitorState {
    state(
        vec![
            node("primary", Role::Primary),
            node("standby1", Role::Standby),
            node("standby2", Role::Standby),
            node("subscriber", Role::Subscriber),
        ],
        vec![
            link("standby1", LinkKind::Physical, 3.0, [0; 4]),
            LinkState {
                visible_ms: Some(12.0),
                ..link("standby2", LinkKind::Physical, 41.0, [0, 0, 0, 1])
            },
            link("subscriber", LinkKind::Logical, 8.0, [0; 4]),
            link("warehouse_export", LinkKind::Logical, 0.0, [0; 4]),
        ],
        Vec::new(),
    )
}

/// The state before the first answer.
pub fn asked() -> MonitorState {
    let mut state = calm();
    state.number = 0;
    state.links.clear();
    for node in &mut state.nodes {
        node.usable = false;
        node.version = 0;
        node.wal_bytes_per_s = None;
    }
    state
}

/// A state with every kind of problem.
pub fn trouble() -> MonitorState {
    let mut primary = node("primary", Role::Primary);
    primary.slots = vec![
        slot("standby1_slot", "physical", true),
        slot(
            "a_slot_with_a_very_long_name_of_some_team",
            "logical",
            false,
        ),
    ];
    let mut standby = node("standby1", Role::Standby);
    standby.extension = Some(Extension {
        lag_ms: Some(12_300.0),
        running: 4,
        waiting: 96,
        concurrency_limit: 4,
        demoted: 100,
        method: Some("autogroup".to_owned()),
        ..Extension::default()
    });
    standby.parallel_replay = Some(ParallelReport {
        words:
            "no: less than lockstep.replay_min_backlog of WAL is known to wait; 63 % of records \
                done ahead; waits: startup process 2 %, helpers 5 %"
                .to_owned(),
        ..ParallelReport::default()
    });
    standby.conflicts = Conflicts {
        snapshot: 1200,
        ..Conflicts::default()
    };
    let mut skewed = node("second", Role::Subscriber);
    skewed.troubles = vec![
        "its clock is 5000 ms ahead of the primary's (± 2 ms); times below do not depend on it"
            .to_owned(),
    ];
    state(
        vec![
            primary,
            standby,
            lost(
                "standby2",
                Role::Standby,
                "unreachable: connection to server at \"db2.example\" (10.0.0.2), port 5432 failed: Connection refused  Is the server running on that host and accepting TCP/IP connections?",
            ),
            lost(
                "standby3",
                Role::Standby,
                "it is no standby: name it with --primary",
            ),
            node("first", Role::Subscriber),
            skewed,
        ],
        vec![
            link("standby1", LinkKind::Physical, 12_300.0, [0, 1, 0, 45]),
            link("first", LinkKind::Logical, 350.0, [0, 0, 0, 2]),
            link("second", LinkKind::Logical, 6.0, [0; 4]),
            link(
                "a_slot_with_a_very_long_name_of_some_team",
                LinkKind::Logical,
                71_000.0,
                [310, 0, 0, 0],
            ),
        ],
        findings(),
    )
}

fn findings() -> Vec<Finding> {
    let long = "a_slot_with_a_very_long_name_of_some_team";
    vec![
        Finding {
            evidence: vec![
                fact("unreplayed_bytes", 47e6, "45 MB are received and not replayed"),
                fact("queued_share", 0.93, "the startup process was ready to run and had no core in 93 % of the samples"),
                fact("active", 100.0, "100 queries run at once"),
            ],
            remedies: vec![
                "on standby1: preload Lockstep's extension (shared_preload_libraries = 'lockstep'): replay goes first, and readers queue".to_owned(),
                "fewer queries at once on standby1: a pooler with a few connections for each core".to_owned(),
            ],
            ..finding("standby1", Cause::ReplayStarved, Severity::Lag, "replay does not get the CPU: readers take it")
        },
        Finding {
            evidence: vec![fact("flush_lag_ms", 350.0, "flushed 350 ms after it is applied")],
            remedies: vec!["on the subscriber: ALTER SUBSCRIPTION first SET (synchronous_commit = on); each transaction is then flushed as it is applied".to_owned()],
            ..finding("first", Cause::AsynchronousApplyCommit, Severity::Lag, "the apply worker commits asynchronously: its flush waits for the WAL writer")
        },
        Finding {
            evidence: vec![fact("spill_bytes", 9e8, "858 MB were written to disk")],
            names: BTreeMap::from([("query", "UPDATE t SET v = v || 'x'".to_owned())]),
            ..finding(long, Cause::GiantTransaction, Severity::Lag, "a giant transaction is decoded")
        },
        Finding {
            names: BTreeMap::from([("upstream", "primary".to_owned()), ("slot", "forgotten".to_owned())]),
            remedies: vec!["start the consumer of slot forgotten".to_owned()],
            ..finding("slot forgotten on primary", Cause::UnusedSlot, Severity::Risk, "a slot keeps WAL and nobody uses it")
        },
        finding("standby1", Cause::FeedbackBloat, Severity::Risk, "a replica's old snapshot keeps dead rows on its upstream"),
    ]
}

/// A relay with two groups, one of which waits, and a subscriber behind it.
pub fn relayed() -> MonitorState {
    let group = |name: &str, state: &str, reason: Option<&str>| Group {
        name: name.to_owned(),
        state: state.into(),
        reason: reason.map(str::to_owned),
        received: Some(lsn(499)),
        durable: Some(lsn(498)),
        cache_bytes: 9 * MB,
        cache_limit_bytes: 16 * MB,
        spool_bytes: 700 * MB,
        ..Group::default()
    };
    let mut relay = node("relay", Role::Relay);
    relay.version = 0;
    relay.relay_version = Some("0.1.0".to_owned());
    relay.relay = Some(Relay {
        groups: vec![
            group("app", "streaming", None),
            group("shop", "waiting", Some("the primary has no slot shop")),
        ],
        slots: vec![RelaySlot {
            name: "subscriber_slot".to_owned(),
            group: "app".to_owned(),
            behind_bytes: 3 * MB,
            cache_hit: 999,
            cache_miss: 1,
            ..RelaySlot::default()
        }],
    });
    let mut behind = link("subscriber", LinkKind::Logical, 900.0, [0, 0, 3, 0]);
    behind.upstream = "relay".to_owned();
    behind.id = "relay/subscriber".to_owned();
    state(
        vec![
            node("primary", Role::Primary),
            relay,
            node("subscriber", Role::Subscriber),
        ],
        vec![
            link("relay (app)", LinkKind::Logical, 4.0, [0; 4]),
            link("relay (shop)", LinkKind::Logical, 20_000.0, [9, 0, 0, 0]),
            behind,
        ],
        vec![finding(
            "relay (shop)",
            Cause::RelayNotStreaming,
            Severity::Lag,
            "a group of the relay does not stream",
        )],
    )
}

/// More nodes than fit on a screen.
pub fn crowd() -> MonitorState {
    let mut nodes = vec![node("primary", Role::Primary)];
    let mut links = Vec::new();
    for number in 1..=40 {
        let name = format!("standby{number}");
        nodes.push(node(&name, Role::Standby));
        let held = u64::from(number % 7 == 0);
        links.push(link(
            &name,
            LinkKind::Physical,
            held as f64 * 1000.0 * f64::from(number),
            [0, 0, 0, held],
        ));
    }
    state(nodes, links, Vec::new())
}

/// Two minutes of history of each link, up to its lag now.
pub fn history(state: &MonitorState) -> Vec<LinkHistory> {
    let moments = |link: &LinkState| {
        let past = (0..120).map(|second| Moment {
            at_ms: NOW_MS - (119 - second) * 1000,
            lag_ms: link.lag_ms * (second + 1) as f64 / 120.0,
            lag_bytes: link.lag_bytes,
            stage_bytes: [0; 4],
            visible_ms: None,
        });
        LinkHistory {
            id: link.id.clone(),
            moments: past.collect(),
        }
    };
    state.links.iter().map(moments).collect()
}
