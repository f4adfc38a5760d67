//! A state for tests: a primary, a standby, a relay and a subscriber, all well.

use std::collections::BTreeMap;

use lockstep_lag::Role;
use lockstep_lag::diagnosis::{Diagnosis, Finding};
use lockstep_lag::monitor::{LinkState, MonitorState, NodeState, StageState};
use lockstep_lag::parallel_replay::ParallelReplay;
use lockstep_lag::parallel_report::ParallelReport;
use lockstep_lag::point::Bound;
use lockstep_lag::point::LinkKind;
use lockstep_lag::relay::{Group, Relay, RelaySlot};
use lockstep_lag::rules::{Cause, Fact, Severity};
use lockstep_lag::states::GroupState;
use lockstep_lag::views::{Conflicts, Extension, Slot, WalFolder};

/// Time of the state, in milliseconds since 1970.
pub const AT_MS: i64 = 1_800_000_000_000;

pub fn state() -> MonitorState {
    MonitorState {
        cluster: None,
        number: 7,
        at_ms: AT_MS,
        window_s: 10.0,
        every_s: 1.0,
        heartbeat: true,
        diagnosis: Diagnosis {
            healthy: true,
            unknown: Vec::new(),
            nodes: Vec::new(),
            links: Vec::new(),
            findings: Vec::new(),
            checks: Vec::new(),
            unlinked: Vec::new(),
            failover: Vec::new(),
        },
        nodes: vec![
            NodeState {
                slots: vec![slot()],
                ..node("primary", Role::Primary)
            },
            NodeState {
                conflicts: Conflicts {
                    snapshot: 3,
                    ..Conflicts::default()
                },
                extension: Some(Extension {
                    lag_ms: Some(12.5),
                    running: 2,
                    waiting: 5,
                    concurrency_limit: 4,
                    ..Extension::default()
                }),
                parallel_replay: Some(parallel_replay()),
                ..node("standby", Role::Standby)
            },
            NodeState {
                relay: Some(relay()),
                relay_version: Some("0.1.0".to_owned()),
                version: 0,
                ..node("relay", Role::Relay)
            },
            node("app", Role::Subscriber),
        ],
        links: vec![
            link("standby", LinkKind::Physical),
            link("app", LinkKind::Logical),
        ],
    }
}

fn node(name: &str, role: Role) -> NodeState {
    NodeState {
        name: name.to_owned(),
        role,
        address: format!("{name}:5432"),
        version: 150_020,
        relay_version: None,
        usable: true,
        troubles: Vec::new(),
        sample_age_ms: Some(250.0),
        round_trip_ms: Some(2.0),
        end_lsn: Some("0/1388".parse().unwrap()),
        visible_lsn: Some("0/1388".parse().unwrap()),
        wal_bytes_per_s: None,
        active_clients: 1,
        awaiting_sync: 0,
        awaiting_sync_ms: None,
        oldest_transaction_ms: Some(2_500.0),
        oldest_prepared_ms: Some(60_000.0),
        archive_failures: 3,
        archived_age_ms: Some(4_000.0),
        wal_folder: (role != Role::Relay).then_some(WalFolder {
            files: 5,
            bytes: 5 << 24,
            oldest: None,
        }),
        max_wal_size_bytes: None,
        cluster_name: None,
        slots: Vec::new(),
        conflicts: Conflicts::default(),
        extension: None,
        parallel_replay: None,
        relay: None,
        suspect: None,
    }
}

fn parallel_replay() -> ParallelReport {
    ParallelReport {
        now: ParallelReplay {
            parallel: "yes".to_owned(),
            helpers: 2,
            records: 2_000,
            dispatched: 1_500,
            done_by_helpers: 1_250,
            inline_kind: 400,
            barriers_checkpoint: 2,
            retired: 1_900,
            record_distance: 480,
            wal_distance: 96 * 1024,
            given_back: 30,
            helper_bytes: 1 << 20,
            queue_depth: 8,
            helper_waits: "DataFileRead".to_owned(),
            startup_wait_ms: 1_500.0,
            startup_wait_cpu_ms: 250.0,
            startup_wait_io_ms: 1_000.0,
            startup_wait_lock_ms: 250.0,
            helper_wait_ms: 250.0,
            ..ParallelReplay::default()
        },
        ahead_share: Some(0.625),
        ..ParallelReport::default()
    }
}

fn relay() -> Relay {
    Relay {
        groups: vec![Group {
            name: "orders".to_owned(),
            state: GroupState::Streaming,
            cache_bytes: 1 << 20,
            cache_limit_bytes: 16 << 20,
            spool_bytes: 1 << 30,
            ..Group::default()
        }],
        slots: vec![RelaySlot {
            name: "app".to_owned(),
            group: "orders".to_owned(),
            behind_bytes: 100,
            cache_hit: 1_000,
            cache_miss: 7,
            ..RelaySlot::default()
        }],
    }
}

fn slot() -> Slot {
    Slot {
        slot_name: "app".to_owned(),
        active: true,
        restart_lsn: Some("0/FA0".parse().unwrap()),
        safe_wal_size: Some(-10),
        ..Slot::default()
    }
}

fn link(replica: &str, kind: LinkKind) -> LinkState {
    let names = match kind {
        LinkKind::Physical => ["send", "receive", "flush", "replay"],
        LinkKind::Logical => ["decode", "receive", "apply", "flush"],
    };
    LinkState {
        id: format!("primary/{replica}"),
        upstream: "primary".to_owned(),
        replica: replica.to_owned(),
        kind,
        slot: None,
        application_name: None,
        lockstep_replica: None,
        behind: false,
        lag_ms: 20.0,
        bound: Bound::default(),
        lag_max_ms: 30.0,
        lag_bytes: 60,
        behind_primary: None,
        stages: [0, 1, 2, 3].map(|index| StageState {
            name: names[index],
            bytes: 10 * index as u64,
        }),
        end_lsn: None,
        sent_lsn: None,
        write_lsn: None,
        flush_lsn: None,
        replay_lsn: None,
        visible_ms: (kind == LinkKind::Physical).then_some(3.0),
        suspect: None,
    }
}

/// Marks a node as lost.
pub fn lose(state: &mut MonitorState, name: &str) {
    for node in state.nodes.iter_mut().filter(|node| node.name == name) {
        node.usable = false;
        node.troubles = vec!["unreachable: no".to_owned()];
    }
}

/// Makes a replica lag.
pub fn lag(state: &mut MonitorState, index: usize, ms: f64) {
    let link = &mut state.links[index];
    link.behind = true;
    link.lag_ms = ms;
    link.lag_max_ms = ms;
}

/// A finding with one fact and one remedy.
pub fn finding(cause: Cause, severity: Severity, at: &str) -> Finding {
    Finding {
        cause,
        title: "in words".to_owned(),
        severity,
        at: at.to_owned(),
        explains: 1.0,
        lag_ms: 0.0,
        evidence: vec![Fact {
            name: "x_bytes",
            value: 1.0,
            words: "1 byte".to_owned(),
        }],
        names: BTreeMap::new(),
        remedies: vec!["do something".to_owned()],
    }
}
