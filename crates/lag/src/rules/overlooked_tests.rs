//! What once was called healthy, or was found at the wrong place or for the wrong reason.

use std::sync::Arc;
use std::time::Duration;

use super::logical::of_prepared;
use super::scene::{START, STEP, Scene, lsn, process, received, session, slot};
use super::{Cause, Evidence, RULES, Severity};
use crate::diagnosis::{Diagnosis, Finding, LinkReport};
use crate::node::Trouble;
use crate::process_cpu::Cpu;
use crate::tables::{Followed, Tables};
use crate::views::{ArchiveQueue, Archiver, Extension, Prepared, Sender, Session, Slot};

/// What is known of a process that a signal has stopped.
const STOPPED: Cpu = Cpu {
    ran: Duration::ZERO,
    queued: Duration::ZERO,
    stopped: true,
};

/// Causes that have a case here.
pub(super) const CAUSES: [Cause; 9] = [
    Cause::ReceiverHalted,
    Cause::ReplayHalted,
    Cause::WalsendersEnded,
    Cause::TablesNotPublished,
    Cause::TablesNotFollowed,
    Cause::PreparedTransaction,
    Cause::OldTransaction,
    Cause::ArchiverFailing,
    Cause::QueriesCancelled,
];

type Change = fn(&mut Scene);

fn link<'d>(diagnosis: &'d Diagnosis, replica: &str) -> &'d LinkReport {
    let mut links = diagnosis.links.iter();
    links.find(|link| link.replica == replica).unwrap()
}

impl Scene {
    /// The first subscriber has got all that was published, and does not apply it; the WAL that
    /// is written since is not for it.
    fn held_back(&mut self, wait_type: &str, wait: &str) {
        for sample in &mut self.primary.samples {
            sample.decoding[0].total_bytes = 7;
            let sender = &mut sample.senders[1];
            for position in [
                &mut sender.write_lsn,
                &mut sender.flush_lsn,
                &mut sender.replay_lsn,
            ] {
                *position = lsn(START);
            }
        }
        received(&mut self.one, |_| lsn(START));
        for sample in &mut self.one.samples {
            sample.processes[0] = process(31, "logical replication worker", wait_type, wait);
            sample.processes[0].blocked_by = vec![55];
            sample.clients.oldest = vec![session(55, 9.0)];
        }
    }
}

#[test]
fn a_worker_that_waits_for_a_lock_is_seen_while_other_wal_flows() {
    for (wait_type, wait, asked, cause) in [
        ("Lock", "relation", true, Cause::ApplyBlocked),
        ("Timeout", "PgSleep", true, Cause::SlowConsumer),
        ("", "", true, Cause::SlowConsumer),
        ("Lock", "relation", false, Cause::SlowConsumer),
    ] {
        let mut scene = Scene::healthy();
        scene.held_back(wait_type, wait);
        if !asked {
            scene.one.samples.clear();
        }
        let diagnosis = scene.diagnose();
        let name = if asked { "one" } else { "slot_one" };
        assert!(link(&diagnosis, name).behind, "{wait} {asked}");
        assert!(!diagnosis.healthy, "{wait} {asked}");
        let first = diagnosis.findings.first();
        let first = first.map(|found| (found.cause, found.at.as_str()));
        assert_eq!(first, Some((cause, name)), "{wait} {asked}");
    }
}

#[test]
fn what_a_busy_worker_has_not_received_is_not_in_decoding() {
    let pushed = ("Client", "WalSenderWriteData");
    for (walsender, worker, stage) in [
        (pushed, ("Lock", "relation"), "apply"),
        (pushed, ("", ""), "apply"),
        (pushed, ("Activity", "LogicalApplyMain"), "receive"),
        (("", ""), ("Activity", "LogicalApplyMain"), "decode"),
    ] {
        let mut scene = Scene::healthy();
        scene.stuck_subscriber(1, walsender, worker);
        let diagnosis = scene.diagnose();
        let stages = link(&diagnosis, "one").stage_bytes.iter();
        let most = stages.max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        assert_eq!(*most.0, stage, "{walsender:?} {worker:?}");
    }
}

/// An age in transactions from which dead rows matter.
const OLD: i64 = 1_000_000;

/// A session of the primary whose transaction is old.
fn old_writer() -> Session {
    Session {
        xid_age: Some(OLD),
        xmin_age: None,
        ..session(77, 60_000.0)
    }
}

fn prepared(age_ms: f64, xid_age: i64) -> Prepared {
    Prepared {
        gid: "it's".to_owned(),
        owner: Some("u".to_owned()),
        database: Some("app".to_owned()),
        xid_age: Some(xid_age),
        age_ms: Some(age_ms),
    }
}

impl Scene {
    /// Standby and primary seem to keep rows of this age.
    fn feedback(&mut self, age: i64) {
        for sample in &mut self.primary.samples {
            sample.senders[0].xmin_age = Some(age);
        }
        let mut reader = session(88, 60_000.0);
        reader.xmin_age = Some(age);
        self.clients(1, vec![reader]);
    }

    /// A logical slot keeps 200 MB that its consumer has confirmed.
    fn held_wal(&mut self) {
        for sample in &mut self.primary.samples {
            sample.slots[1].restart_lsn = lsn(START - 200_000_000);
        }
    }
}

/// Nobody ends it at the subscriber.
#[test]
fn what_a_worker_has_prepared_is_ended_on_its_publisher() {
    let told = |gid: &str| {
        let mut scene = Scene::healthy();
        let last = scene.primary.samples.last_mut().unwrap();
        last.prepared = vec![Prepared {
            gid: gid.to_owned(),
            ..prepared(400_000.0, 5)
        }];
        let findings = scene.diagnose().findings.into_iter();
        let mut findings = findings.filter(|it| it.cause == Cause::PreparedTransaction);
        let old = findings.next().unwrap().remedies;
        let evidence = of_prepared(Evidence::about("one", Severity::Lag), &[gid.to_owned()]);
        let evidence = evidence.name("holder_server", "one");
        let mut rules = RULES.iter().filter(|it| it.cause == Cause::ApplyBlocked);
        [old, rules.next().unwrap().remedies(&evidence)].map(|it| it.join("\n"))
    };
    for said in told("pg_gid_16597_828") {
        let there = "on the publisher of the subscription with oid 16597 (pg_subscription): SELECT gid FROM \
                     pg_prepared_xacts WHERE transaction = '828';";
        assert!(said.contains(there), "{said}");
        assert!(!said.contains("PREPARED '"), "{said}");
    }
    for gid in ["pg_gid_16597", "pg_gid_a_1", "x"] {
        for said in told(gid) {
            assert!(
                said.contains(&format!(": ROLLBACK PREPARED '{gid}';")),
                "{said}"
            );
            assert!(!said.contains("on the publisher"), "{said}");
        }
    }
}

/// Cases: a name, the change to a healthy scene, and the cause to be found, if there is one.
const HELD: [(&str, Change, Option<Cause>); 9] = [
    (
        "prepared, and its rows",
        |s| {
            s.feedback(OLD);
            let last = s.primary.samples.last_mut().unwrap();
            last.prepared = vec![prepared(60_000.0, OLD)];
        },
        Some(Cause::PreparedTransaction),
    ),
    (
        "prepared, and a slot's WAL",
        |s| {
            s.held_wal();
            let last = s.primary.samples.last_mut().unwrap();
            last.prepared = vec![prepared(6_000.0, 5)];
        },
        Some(Cause::PreparedTransaction),
    ),
    (
        "prepared long ago",
        |s| {
            let last = s.primary.samples.last_mut().unwrap();
            last.prepared = vec![prepared(400_000.0, 5)];
        },
        Some(Cause::PreparedTransaction),
    ),
    (
        "prepared just now",
        |s| {
            let last = s.primary.samples.last_mut().unwrap();
            last.prepared = vec![prepared(900.0, 5)];
        },
        None,
    ),
    (
        "open, and its rows",
        |s| {
            s.feedback(OLD);
            let last = s.primary.samples.last_mut().unwrap();
            last.clients.oldest = vec![old_writer()];
        },
        Some(Cause::OldTransaction),
    ),
    (
        "open, and a slot's WAL",
        |s| {
            s.held_wal();
            let last = s.primary.samples.last_mut().unwrap();
            last.clients.oldest = vec![Session {
                xid_age: Some(3),
                ..old_writer()
            }];
        },
        Some(Cause::OldTransaction),
    ),
    (
        "open for a moment",
        |s| {
            s.held_wal();
            let last = s.primary.samples.last_mut().unwrap();
            last.clients.oldest = vec![Session {
                xact_age_ms: Some(900.0),
                ..old_writer()
            }];
        },
        None,
    ),
    (
        "the standby's own",
        |s| {
            s.feedback(OLD);
            let last = s.primary.samples.last_mut().unwrap();
            last.clients.oldest = vec![Session {
                xid_age: Some(OLD / 2),
                xact_age_ms: Some(900.0),
                ..old_writer()
            }];
        },
        Some(Cause::FeedbackBloat),
    ),
    ("WAL of a burst", |s| s.held_wal(), None),
];

#[test]
fn what_the_primary_s_own_transactions_hold_is_not_blamed_on_standbys() {
    for (name, change, cause) in HELD {
        let mut scene = Scene::healthy();
        change(&mut scene);
        let diagnosis = scene.diagnose();
        let found: Vec<Cause> = diagnosis.findings.iter().map(|found| found.cause).collect();
        assert_eq!(found, Vec::from_iter(cause), "{name}");
        let mut risks = diagnosis.findings.iter();
        assert!(risks.all(|found| found.severity == Severity::Risk));
        assert_eq!(diagnosis.healthy, cause.is_none(), "{name}");
        if cause == Some(Cause::PreparedTransaction) {
            let remedies = &diagnosis.findings[0].remedies;
            assert!(remedies[1].contains("in database app: COMMIT PREPARED 'it''s'"));
            assert!(remedies.last().unwrap().contains("lost"));
        }
    }
}

#[test]
fn a_network_that_holds_all_that_was_sent_to_a_subscriber_is_slow() {
    let mut scene = Scene::healthy();
    let arrives = |end: u64| lsn(START + (end - START) / 4);
    received(&mut scene.one, arrives);
    for (index, sample) in (0..).zip(&mut scene.primary.samples) {
        let arrived = arrives(START + index * STEP);
        let sender = &mut sample.senders[1];
        (sender.write_lsn, sender.flush_lsn, sender.replay_lsn) = (arrived, arrived, arrived);
    }
    let diagnosis = scene.diagnose();
    assert_eq!(diagnosis.first(), Some(Cause::SlowNetwork));
    assert_eq!(diagnosis.findings[0].at, "one");
}

#[test]
fn tables_that_only_one_side_knows_are_a_risk() {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    for (published, followed, database, cause) in [
        (&["public.t"][..], &["public.t"][..], "app", None),
        (
            &["public.t"],
            &["public.t", "public.u"],
            "app",
            Some(Cause::TablesNotPublished),
        ),
        (
            &["public.t", "public.u"],
            &["public.t"],
            "app",
            Some(Cause::TablesNotFollowed),
        ),
        // The publisher was asked in another database, which has other tables.
        (&["public.t"], &["public.u"], "other", None),
    ] {
        let mut scene = Scene::healthy();
        scene.primary.facts.database = database.to_owned();
        let last = scene.primary.samples.last_mut().unwrap();
        last.slots[1].database = Some("app".to_owned());
        last.tables = Arc::new(Tables {
            publications: [("p".to_owned(), names(published))].into(),
            ..Tables::default()
        });
        let follows = Followed {
            publications: vec!["p".to_owned()],
            tables: names(followed),
            ..Followed::default()
        };
        scene.one.samples.last_mut().unwrap().tables = Arc::new(Tables {
            subscriptions: [("sub_one".to_owned(), follows)].into(),
            ..Tables::default()
        });
        let diagnosis = scene.diagnose();
        assert_eq!(diagnosis.first(), cause, "{published:?} {followed:?}");
        if cause.is_some() {
            assert_eq!(diagnosis.findings[0].severity, Severity::Risk);
            assert_eq!(diagnosis.findings[0].names["tables"], "public.u");
        }
    }
}

#[test]
fn what_is_hidden_is_not_healthy() {
    let gap = |decides| Trouble::Gap {
        what: "x".to_owned(),
        reason: "no".to_owned(),
        decides,
    };
    let cases: [(&str, Change, &[&str]); 4] = [
        (
            "positions of a standby that was not asked",
            |s| {
                s.standby.samples.clear();
                for sample in &mut s.primary.samples {
                    sample.senders[0] = Sender {
                        pid: 10,
                        ..Sender::default()
                    };
                    sample.slots[0].restart_lsn = None;
                }
            },
            &["primary does not show how far standby is"],
        ),
        (
            "the slot of a subscription is nowhere",
            |s| {
                for sample in &mut s.primary.samples {
                    sample.slots.remove(2);
                    sample.senders.remove(2);
                }
            },
            &["nothing that answers here is the upstream of two (sub_two)"],
        ),
        (
            "no primary",
            |s| s.primary.samples.clear(),
            &[
                "nothing that answers here is the upstream of standby",
                "nothing that answers here is the upstream of one (sub_one)",
                "nothing that answers here is the upstream of two (sub_two)",
                "all nodes: no primary answers",
            ],
        ),
        (
            "a subscription without a slot, and no other",
            |s| {
                for sample in &mut s.primary.samples {
                    sample.slots.remove(2);
                    sample.senders.remove(2);
                }
                for sample in &mut s.two.samples {
                    sample.subscriptions[0].slot_name = None;
                }
            },
            &["nothing comes to two: 1 subscription without a slot (sub_two)"],
        ),
    ];
    for (name, change, unknown) in cases {
        let mut scene = Scene::healthy();
        change(&mut scene);
        let diagnosis = scene.diagnose();
        assert_eq!(diagnosis.unknown, unknown, "{name}");
        assert!(unknown.is_empty() || !diagnosis.healthy, "{name}");
    }
    for (decides, unknown) in [(true, vec!["standby does not show x"]), (false, vec![])] {
        let mut scene = Scene::healthy();
        scene.standby.troubles = vec![gap(decides)];
        let diagnosis = scene.diagnose();
        assert_eq!(diagnosis.healthy, !decides);
        assert_eq!(diagnosis.unknown, unknown);
    }
}

/// Adds a slot that nobody uses, which may keep so many bytes more.
fn forgotten(scene: &mut Scene, safe_wal_size: Option<i64>) {
    for sample in &mut scene.primary.samples {
        sample.slots.push(Slot {
            active: false,
            active_pid: None,
            safe_wal_size,
            ..slot("forgotten", "logical", 0, START - 500_000_000)
        });
    }
}

#[test]
fn a_risk_alone_is_no_lag() {
    let mut scene = Scene::healthy();
    forgotten(&mut scene, None);
    let diagnosis = scene.diagnose();
    assert_eq!(diagnosis.first(), Some(Cause::UnusedSlot));
    assert!(!diagnosis.healthy && diagnosis.has_risk() && !diagnosis.has_lag());
}

#[test]
fn an_archiver_that_fails_is_a_risk() {
    for (archived_age_ms, failed_age_ms, mode, ready, expected) in [
        (Some(900_000.0), Some(30_000.0), "on", Some(1), true),
        (Some(900_000.0), Some(30_000.0), "on", None, true),
        (Some(900_000.0), Some(30_000.0), "on", Some(0), false),
        (None, Some(30_000.0), "on", Some(1), true),
        (Some(5.0), Some(30_000.0), "on", Some(1), false),
        (Some(5.0), None, "on", Some(1), false),
        (None, Some(30_000.0), "off", Some(1), false),
    ] {
        let mut scene = Scene::healthy();
        let settings = &mut scene.primary.facts.settings;
        settings.insert("archive_mode".to_owned(), mode.to_owned());
        let archiver = Archiver {
            failed_count: 7,
            last_failed_wal: Some("000000010000000000000003".to_owned()),
            archived_age_ms,
            failed_age_ms,
            ..Archiver::default()
        };
        // A standby that was copied has its own statistics; with "on" it archives nothing.
        for node in [&mut scene.primary, &mut scene.standby] {
            let last = node.samples.last_mut().unwrap();
            last.archiver = archiver.clone();
            last.archive = ready.map(|ready| ArchiveQueue {
                ready,
                oldest_ms: Some(5.0),
            });
        }
        let diagnosis = scene.diagnose();
        let found: Vec<_> = diagnosis.findings.iter().map(|found| found.cause).collect();
        let cause = expected.then_some(Cause::ArchiverFailing);
        assert_eq!(found, Vec::from_iter(cause), "{archived_age_ms:?} {mode}");
        assert!(!expected || diagnosis.findings[0].at == "primary");
    }
}

#[test]
fn cancelled_queries_are_a_risk() {
    let mut scene = Scene::healthy();
    for (index, sample) in scene.standby.samples.iter_mut().enumerate() {
        sample.conflicts.snapshot = 100 + index as u64 / 10;
    }
    let diagnosis = scene.diagnose();
    assert_eq!(diagnosis.first(), Some(Cause::QueriesCancelled));
    let found = &diagnosis.findings[0];
    assert_eq!(
        (found.severity, found.evidence[0].value),
        (Severity::Risk, 4.0)
    );
    assert!(
        found.remedies[0].starts_with("on standby: ALTER SYSTEM SET hot_standby_feedback = on;")
    );
    let longer = "max_standby_streaming_delay = '60000ms'; SELECT pg_reload_conf(); (now 30s)";
    assert!(found.remedies[1].contains(longer), "{:?}", found.remedies);
    // Those of yesterday are not.
    let mut scene = Scene::healthy();
    for sample in &mut scene.standby.samples {
        sample.conflicts.lock = 100;
    }
    assert!(scene.diagnose().healthy);
}

#[test]
fn the_watch_does_not_limit_the_lag() {
    // A standby that was behind before the watch: does replay go on, the age of the last
    // replayed commit in the first sample, how far its clock is ahead, what the extension says;
    // and the lag, whether that is the least, and the most that it can be.
    let cases = [
        (true, 30_000.0, 0, None, 29_900.0, false, None),
        (true, 30_000.0, 5_000, None, 29_900.0, false, None),
        (false, 30_000.0, 0, None, 2_500.0, true, Some(34_900.0)),
        (false, 30_000.0, -5_000, None, 2_500.0, true, Some(34_900.0)),
        (false, 100.0, 0, None, 2_500.0, false, None),
        (false, 30_000.0, 0, Some(29_000.0), 29_000.0, false, None),
    ];
    for (moves, age_ms, ahead_ms, told_ms, lag_ms, is_least, most_ms) in cases {
        let mut scene = Scene::healthy();
        for (index, sample) in scene.standby.samples.iter_mut().enumerate() {
            let moved = if moves { index as u64 } else { 0 };
            sample.wal.replay = lsn(START - 10_000_000 + moved * STEP);
            let stood_ms = if moves { 0.0 } else { index as f64 * 100.0 };
            sample.wal.replayed_commit_age_ms = Some(age_ms + stood_ms + f64::from(ahead_ms));
            sample.clock_offset_us = i64::from(ahead_ms) * 1000;
            sample.extension = told_ms.map(|ms| Extension {
                lag_ms: Some(ms),
                ..Extension::default()
            });
        }
        let diagnosis = scene.diagnose();
        let link = link(&diagnosis, "standby");
        let case = format!("{moves} {age_ms} {ahead_ms} {told_ms:?}: {link:?}");
        assert!((link.lag_ms - lag_ms).abs() < 100.0, "{case}");
        assert_eq!(link.bound.lag_is_least, is_least, "{case}");
        let close = |(found, most): (f64, f64)| (found - most).abs() < 1.0;
        assert!(link.lag_most_ms.zip(most_ms).is_none_or(close), "{case}");
        assert_eq!(link.lag_most_ms.is_some(), most_ms.is_some(), "{case}");
    }
}

/// Makes each walsender of a link live for ten samples; is there progress?
fn end_walsenders(scene: &mut Scene, index: usize, moves: bool) {
    for (at, sample) in scene.primary.samples.iter_mut().enumerate() {
        let pid = 100 * (index as u32 + 1) + at as u32 / 10;
        sample.slots[index].active_pid = Some(pid);
        sample.processes[index].pid = pid;
        let sender = &mut sample.senders[index];
        sender.pid = pid;
        if !moves {
            // As far as the transaction that fails.
            let end = lsn(START + (at as u64).min(10) * STEP);
            (sender.replay_lsn, sender.flush_lsn) = (end, end);
        }
    }
}

/// The subscription's worker fails now and then, and is away most of the time.
fn fail_worker(scene: &mut Scene) {
    for (at, sample) in scene.one.samples.iter_mut().enumerate() {
        sample.subscriptions[0].apply_errors = at as u64 / 10;
        sample.subscriptions[0].pid = None;
        sample.processes.clear();
    }
}

/// Cases: a name, the change to a healthy scene, the cause to be found first, and its remedy.
const HALTED: [(&str, Change, Cause, &str); 9] = [
    (
        "a walreceiver that is silent",
        |s| {
            s.stuck_receive("Activity", "WalReceiverMain");
            for sample in &mut s.standby.samples {
                sample.receiver.as_mut().unwrap().message_age_ms = Some(4_000.0);
            }
        },
        Cause::ReceiverHalted,
        "look at the walreceiver 20 on standby",
    ),
    (
        "a walreceiver that is stopped",
        |s| {
            s.stuck_receive("Activity", "WalReceiverMain");
            for sample in &mut s.standby.samples {
                sample.processes[1].cpu = Some(STOPPED);
            }
        },
        Cause::ReceiverHalted,
        "on the machine of standby: kill -CONT 20",
    ),
    (
        "a network that lets nothing through for a moment",
        |s| {
            s.stuck_receive("Activity", "WalReceiverMain");
            for sample in &mut s.standby.samples {
                sample.receiver.as_mut().unwrap().message_age_ms = Some(1_000.0);
            }
        },
        Cause::SlowNetwork,
        "more bandwidth",
    ),
    (
        "a network that has brought the beginning of a record",
        |s| {
            s.stuck_receive("Activity", "WalReceiverMain");
            for sample in &mut s.standby.samples {
                sample.wal.receive = lsn(START + 224);
            }
        },
        Cause::SlowNetwork,
        "more bandwidth",
    ),
    (
        "a startup process that waits for WAL that is there",
        |s| s.stuck_replay("Activity", "RecoveryWalStream"),
        Cause::ReplayHalted,
        "look at the startup process 21 on standby",
    ),
    (
        "a startup process without CPU",
        |s| {
            s.stuck_replay("", "");
            s.cpu(0.0, 0.0);
        },
        Cause::ReplayHalted,
        "look at the startup process",
    ),
    (
        "a startup process that is stopped",
        |s| {
            s.stuck_replay("IO", "DataFileRead");
            for sample in &mut s.standby.samples {
                sample.processes[0].cpu = Some(STOPPED);
            }
        },
        Cause::ReplayHalted,
        "on the machine of standby: kill -CONT 21",
    ),
    (
        "walsenders of all",
        |s| {
            (0..3).for_each(|index| end_walsenders(s, index, false));
            fail_worker(s);
        },
        Cause::WalsendersEnded,
        "look at the log of primary",
    ),
    (
        "walsenders of one subscriber, which makes progress",
        |s| {
            end_walsenders(s, 1, true);
            fail_worker(s);
        },
        Cause::WalsendersEnded,
        "look at the log of primary",
    ),
];

#[test]
fn processes_that_do_nothing_are_to_blame() {
    for (name, change, cause, remedy) in HALTED {
        let mut scene = Scene::healthy();
        change(&mut scene);
        let diagnosis = scene.diagnose();
        assert_eq!(diagnosis.first(), Some(cause), "{name}");
        let first = &diagnosis.findings[0].remedies[0];
        assert!(first.starts_with(remedy), "{name}: {first}");
        let stopped = |found: &Finding| found.cause == Cause::ApplyStopped;
        assert!(!diagnosis.findings.iter().any(stopped), "{name}");
    }
}

/// Scenes of causes with risky remedies: the change, the cause, and what the last remedy says, if
/// that can lose data.
const DANGEROUS: [(&str, Change, Cause, Option<&str>); 8] = [
    (
        "a worker that fails at one transaction",
        |s| {
            end_walsenders(s, 1, false);
            fail_worker(s);
        },
        Cause::ApplyStopped,
        Some("SKIP"),
    ),
    (
        "a worker that fails, and whose walsender has no slot yet",
        |s| {
            end_walsenders(s, 1, false);
            fail_worker(s);
            for sample in &mut s.primary.samples {
                sample.slots[1].active_pid = None;
                sample.slots[1].active = false;
                sample.slots[1].confirmed_flush_lsn = lsn(START);
            }
        },
        Cause::ApplyStopped,
        Some("SKIP"),
    ),
    (
        "a worker that fails and goes on",
        fail_worker,
        Cause::ApplyStopped,
        None,
    ),
    (
        "a subscription that is disabled",
        |s| {
            end_walsenders(s, 1, false);
            fail_worker(s);
            for sample in &mut s.one.samples {
                sample.subscriptions[0].enabled = false;
            }
        },
        Cause::ApplyStopped,
        None,
    ),
    (
        "the slot of a subscriber that is blocked",
        |s| {
            for sample in &mut s.primary.samples {
                sample.slots[1].safe_wal_size = Some(1_000);
            }
        },
        Cause::RetainedWalNearLimit,
        None,
    ),
    (
        "the slot of a subscriber that has lost its connection",
        |s| {
            for sample in &mut s.primary.samples {
                sample.slots[1].safe_wal_size = Some(1_000);
                sample.slots[1].active = false;
            }
            received(&mut s.one, |_| lsn(START));
        },
        Cause::RetainedWalNearLimit,
        None,
    ),
    (
        "a slot of nobody",
        |s| forgotten(s, Some(1_000)),
        Cause::RetainedWalNearLimit,
        Some("pg_drop_replication_slot('forgotten')"),
    ),
    (
        "an unused slot of nobody",
        |s| forgotten(s, None),
        Cause::UnusedSlot,
        Some("pg_drop_replication_slot('forgotten')"),
    ),
];

#[test]
fn advice_that_can_lose_data_says_so_and_comes_last() {
    for (name, change, cause, advice) in DANGEROUS {
        let mut scene = Scene::healthy();
        change(&mut scene);
        let diagnosis = scene.diagnose();
        assert_eq!(diagnosis.first(), Some(cause), "{name}");
        let remedies = &diagnosis.findings[0].remedies;
        for dangerous in ["SKIP", "pg_drop_replication_slot", "DROP"] {
            let places = remedies.iter().enumerate();
            let places = places.filter(|(_, remedy)| remedy.contains(dangerous));
            for (place, remedy) in places {
                assert_eq!(place + 1, remedies.len(), "{name}: {remedies:?}");
                assert!(remedy.contains("los"), "{name}: {remedy}");
                assert!(advice.is_some_and(|advice| remedy.contains(advice)));
            }
        }
        let last = remedies.last().unwrap();
        assert!(advice.is_none_or(|advice| last.contains(advice)), "{name}");
    }
    // A standby that cannot be asked may need the slot.
    let mut scene = Scene::healthy();
    forgotten(&mut scene, None);
    scene.standby.samples.clear();
    let diagnosis = scene.diagnose();
    let unused = |found: &&Finding| found.cause == Cause::UnusedSlot;
    let found = diagnosis.findings.iter().find(unused).unwrap();
    assert!(!found.remedies.iter().any(|remedy| remedy.contains("drop")));
}

#[test]
fn of_two_slots_near_the_limit_the_unused_one_comes_first() {
    let mut scene = Scene::healthy();
    forgotten(&mut scene, Some(1_000));
    for sample in &mut scene.primary.samples {
        sample.slots[1].safe_wal_size = Some(1_000);
    }
    let diagnosis = scene.diagnose();
    assert_eq!(diagnosis.findings[0].names["slot"], "forgotten");
    assert_eq!(diagnosis.findings[1].names["slot"], "slot_one");
}
