//! What once was called healthy, or was found at the wrong place or for the wrong reason.

use std::sync::Arc;

use super::scene::{START, STEP, Scene, lsn, process, sender, session, slot};
use super::{Cause, Severity};
use crate::diagnosis::{Diagnosis, LinkReport};
use crate::node::Trouble;
use crate::sample::{Archiver, Prepared, Sender, Session, Slot};
use crate::tables::{Followed, Tables};

/// Causes that have a case here.
pub(super) const CAUSES: [Cause; 7] = [
    Cause::TablesNotPublished,
    Cause::TablesNotFollowed,
    Cause::PreparedTransaction,
    Cause::OldTransaction,
    Cause::ArchiverFailing,
    Cause::FullPageImages,
    Cause::QueriesCancelled,
];

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

#[test]
fn what_the_primary_s_own_transactions_hold_is_not_blamed_on_standbys() {
    type Change = fn(&mut Scene);
    let cases: [(&str, Change, Option<Cause>); 9] = [
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
    for (name, change, cause) in cases {
        let mut scene = Scene::healthy();
        change(&mut scene);
        let diagnosis = scene.diagnose();
        let found: Vec<Cause> = diagnosis.findings.iter().map(|found| found.cause).collect();
        assert_eq!(found, Vec::from_iter(cause), "{name}");
        let risks = diagnosis.findings.iter();
        assert!(
            risks
                .map(|found| found.severity)
                .all(|s| s == Severity::Risk)
        );
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
    for (index, sample) in scene.primary.samples.iter_mut().enumerate() {
        let arrived = lsn(START + index as u64 * STEP / 4);
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
    type Change = fn(&mut Scene);
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
            ],
        ),
        (
            "a subscription without a slot is detached on purpose",
            |s| {
                for sample in &mut s.primary.samples {
                    sample.slots.remove(2);
                    sample.senders.remove(2);
                }
                for sample in &mut s.two.samples {
                    sample.subscriptions[0].slot_name = None;
                }
            },
            &[],
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

#[test]
fn a_risk_alone_is_no_lag() {
    let mut scene = Scene::healthy();
    for sample in &mut scene.primary.samples {
        sample.slots.push(Slot {
            active: false,
            active_pid: None,
            ..slot("forgotten", "logical", 0, START - 500_000_000)
        });
    }
    let diagnosis = scene.diagnose();
    assert_eq!(diagnosis.first(), Some(Cause::UnusedSlot));
    assert!(!diagnosis.healthy && diagnosis.has_risk() && !diagnosis.has_lag());
}

#[test]
fn an_archiver_that_fails_is_a_risk() {
    for (archived_age_ms, failed_age_ms, mode, expected) in [
        (Some(900_000.0), Some(30_000.0), "on", true),
        (None, Some(30_000.0), "on", true),
        (Some(5.0), Some(30_000.0), "on", false),
        (Some(5.0), None, "on", false),
        (None, Some(30_000.0), "off", false),
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
            node.samples.last_mut().unwrap().archiver = archiver.clone();
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
    assert!(found.remedies[0].contains("hot_standby_feedback = on (now off)"));
    // Those of yesterday are not.
    let mut scene = Scene::healthy();
    for sample in &mut scene.standby.samples {
        sample.conflicts.lock = 100;
    }
    assert!(scene.diagnose().healthy);
}

#[test]
fn whole_pages_are_to_blame_if_the_replica_would_keep_up_without_them() {
    for (images_each, taken_each, cause) in [
        (11, STEP / 3, Cause::FullPageImages),
        // Even without them there is more than gets through.
        (7, STEP / 20, Cause::SlowNetwork),
        (2, STEP / 3, Cause::SlowNetwork),
    ] {
        let mut scene = Scene::healthy();
        scene.stuck_receive("Activity", "WalReceiverMain");
        for (index, sample) in scene.primary.samples.iter_mut().enumerate() {
            let index = index as u64;
            sample.totals.wal_bytes = Some((index * STEP) as f64);
            sample.totals.page_images = index * images_each;
            sample.senders[0] = sender(10, "standby", START + index * taken_each);
        }
        for (index, sample) in scene.standby.samples.iter_mut().enumerate() {
            let end = lsn(START + index as u64 * taken_each);
            (sample.wal.receive, sample.wal.replay) = (end, end);
            sample.receiver.as_mut().unwrap().written_lsn = end;
        }
        assert_eq!(scene.diagnose().first(), Some(cause), "{images_each}");
    }
}
