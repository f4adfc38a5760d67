//! Every cause from hand-made samples, and what must not be found.

use std::collections::BTreeSet;

use super::scene::{START, STEP, Scene, lsn, process, sender, session, slot};
use super::{Cause, RULES, Severity, fill};
use crate::diagnosis::diagnose;
use crate::node::Trouble;
use crate::parallel_replay::ParallelReplay;
use crate::views::{Searched, Slot};
use crate::window::Window;

type Change = fn(&mut Scene);

/// A case: its name, the change to a healthy scene, the cause to be found first, and a name
/// that its evidence must have.
type Case = (
    &'static str,
    Change,
    Cause,
    Option<(&'static str, &'static str)>,
);

/// The standby has the extension, and replays in one process.
fn workers_are_off(s: &mut Scene) {
    let workers = ("lockstep.replay_workers".to_owned(), "0".to_owned());
    s.standby.facts.settings.extend([workers]);
}

const CASES: &[Case] = &[
    (
        "paused",
        |s| {
            s.stuck_replay("IPC", "RecoveryPause");
            for sample in &mut s.standby.samples {
                sample.wal.pause = Some("paused".into());
            }
        },
        Cause::ReplayPaused,
        Some(("node", "standby")),
    ),
    (
        "delayed",
        |s| s.stuck_replay("Timeout", "RecoveryApplyDelay"),
        Cause::ReplayDelayed,
        None,
    ),
    (
        "old snapshot",
        |s| {
            s.stuck_replay("IPC", "RecoveryConflictSnapshot");
            let mut older = session(78, 10.0);
            older.xmin_age = Some(5000);
            s.clients(1, vec![session(77, 9000.0), older]);
        },
        Cause::RecoveryConflict,
        Some(("pid", "78")),
    ),
    (
        "lock",
        |s| {
            s.stuck_replay("Lock", "relation");
            s.clients(1, vec![session(77, 9000.0), session(78, 10.0)]);
            for sample in &mut s.standby.samples {
                sample.processes[0].blocked_by = vec![78];
            }
        },
        Cause::RecoveryConflict,
        Some(("query", "SELECT * FROM t")),
    ),
    (
        "cleanup lock",
        |s| {
            s.stuck_replay("BufferPin", "BufferPin");
            s.clients(1, vec![session(77, 9000.0)]);
        },
        Cause::CleanupLock,
        Some(("pid", "77")),
    ),
    (
        "starved, seen",
        |s| {
            s.stuck_replay("", "");
            s.cpu(0.3, 0.7);
            s.clients(20, vec![]);
        },
        Cause::ReplayStarved,
        Some(("who", "readers")),
    ),
    (
        "starved, and nobody reads",
        |s| {
            s.stuck_replay("", "");
            s.cpu(0.3, 0.7);
            s.clients(0, vec![]);
        },
        Cause::ReplayStarved,
        Some(("who", "other processes")),
    ),
    (
        "starved, from afar",
        |s| {
            s.stuck_replay("", "");
            s.clients(20, vec![]);
        },
        Cause::ReplayStarved,
        None,
    ),
    (
        "a whole core, seen",
        |s| {
            s.stuck_replay("", "");
            s.cpu(0.97, 0.02);
            s.clients(20, vec![]);
        },
        Cause::ReplayAtCoreLimit,
        Some(("stock_node", "standby")),
    ),
    (
        "a whole core, with the extension",
        |s| {
            s.stuck_replay("", "");
            workers_are_off(s);
        },
        Cause::ReplayAtCoreLimit,
        Some(("lockstep.replay_workers", "0")),
    ),
    (
        "a whole core, from afar",
        |s| s.stuck_replay("", ""),
        Cause::ReplayAtCoreLimit,
        None,
    ),
    (
        "storage",
        |s| s.stuck_replay("IO", "DataFileRead"),
        Cause::ReplayWaitsForStorage,
        Some(("recovery_prefetch", "try")),
    ),
    (
        "storage, with the extension",
        |s| {
            s.stuck_replay("IO", "DataFileRead");
            workers_are_off(s);
        },
        Cause::ReplayWaitsForStorage,
        Some(("lockstep.replay_workers", "0")),
    ),
    (
        "savepoints",
        |s| {
            s.stuck_replay("LWLock", "SubtransSLRU");
            for (index, sample) in s.standby.samples.iter_mut().enumerate() {
                sample.totals.subtransaction_lookups = index as u64 * 10_000;
            }
        },
        Cause::ManySavepoints,
        None,
    ),
    (
        "no walreceiver",
        |s| {
            s.stuck_receive("Activity", "WalReceiverMain");
            for sample in &mut s.standby.samples {
                sample.receiver = None;
                sample.processes.truncate(1);
            }
        },
        Cause::NotStreaming,
        None,
    ),
    (
        "slow flush",
        |s| s.stuck_receive("IO", "WALSync"),
        Cause::SlowWalFlush,
        None,
    ),
    (
        "slow flush, later names",
        |s| s.stuck_receive("IO", "WalSync"),
        Cause::SlowWalFlush,
        None,
    ),
    (
        "network",
        |s| s.stuck_receive("Activity", "WalReceiverMain"),
        Cause::SlowNetwork,
        None,
    ),
    (
        "network to a subscriber",
        |s| {
            s.stuck_subscriber(
                1,
                ("Client", "WalSenderWriteData"),
                ("Activity", "LogicalApplyMain"),
            )
        },
        Cause::SlowNetwork,
        None,
    ),
    (
        "asynchronous commit",
        |s| s.late_flush("sync"),
        Cause::AsynchronousApplyCommit,
        Some(("subscription", "sub_one")),
    ),
    (
        "asynchronous commit, by positions",
        |s| s.late_flush_unsaid(),
        Cause::AsynchronousApplyCommit,
        None,
    ),
    (
        "asynchronous commit, quorum",
        |s| s.late_flush("quorum"),
        Cause::AsynchronousApplyCommit,
        None,
    ),
    (
        "disabled",
        |s| {
            s.stuck_subscriber(1, ("", ""), ("", ""));
            for sample in &mut s.one.samples {
                sample.subscriptions[0].pid = None;
                sample.subscriptions[0].enabled = false;
            }
            for sample in &mut s.primary.samples {
                sample.senders.remove(1);
                sample.slots[1].active_pid = None;
                sample.slots[1].active = false;
            }
        },
        Cause::ApplyStopped,
        Some(("subscription", "sub_one")),
    ),
    (
        "apply blocked",
        |s| {
            s.stuck_subscriber(1, ("Client", "WalSenderWriteData"), ("Lock", "relation"));
            for sample in &mut s.one.samples {
                sample.processes[0].blocked_by = vec![55];
                sample.clients.oldest = vec![session(54, 99.0), session(55, 9.0)];
            }
        },
        Cause::ApplyBlocked,
        Some(("pid", "55")),
    ),
    (
        "slow consumer",
        |s| s.stuck_subscriber(1, ("Client", "WalSenderWriteData"), ("", "")),
        Cause::SlowConsumer,
        Some(("slot", "slot_one")),
    ),
    (
        "slow decoding",
        |s| {
            for index in [1, 2] {
                s.stuck_subscriber(index, ("", ""), ("Activity", "LogicalApplyMain"));
            }
        },
        Cause::SlowDecoding,
        Some(("upstream", "primary")),
    ),
    (
        "giant",
        |s| {
            s.stuck_subscriber(
                1,
                ("IO", "ReorderBufferWrite"),
                ("Activity", "LogicalApplyMain"),
            );
            s.spilled(5_000_000_000, 1);
        },
        Cause::GiantTransaction,
        Some(("slot", "slot_one")),
    ),
    (
        "spill",
        |s| {
            s.stuck_subscriber(
                1,
                ("IO", "ReorderBufferWrite"),
                ("Activity", "LogicalApplyMain"),
            );
            s.spilled(5_000_000_000, 50);
        },
        Cause::SpillToDisk,
        None,
    ),
    (
        "retained",
        |s| {
            let last = s.primary.samples.last_mut().unwrap();
            last.slots.push(Slot {
                safe_wal_size: Some(20_000_000),
                ..slot("forgotten", "physical", 99, START - 900_000_000)
            });
        },
        Cause::RetainedWalNearLimit,
        Some(("slot", "forgotten")),
    ),
    (
        "lost",
        |s| {
            let last = s.primary.samples.last_mut().unwrap();
            last.slots[1].wal_status = Some("lost".into());
        },
        Cause::SlotLost,
        Some(("slot", "slot_one")),
    ),
    (
        "unused",
        |s| {
            for sample in &mut s.primary.samples {
                sample.slots.push(Slot {
                    active: false,
                    active_pid: None,
                    ..slot("forgotten", "logical", 0, START - 500_000_000)
                });
            }
        },
        Cause::UnusedSlot,
        Some(("slot", "forgotten")),
    ),
    (
        "bloat",
        |s| {
            let mut old = session(77, 3_600_000.0);
            old.xmin_age = Some(1_000_000);
            s.clients(1, vec![old]);
            for sample in &mut s.primary.samples {
                sample.senders[0].xmin_age = Some(1_000_000);
            }
        },
        Cause::FeedbackBloat,
        Some(("pid", "77")),
    ),
    (
        "other databases",
        |s| {
            for sample in &mut s.primary.samples {
                for row in &mut sample.decoding {
                    row.total_bytes = 7;
                }
                let sender = &mut sample.senders[1];
                for position in [
                    &mut sender.write_lsn,
                    &mut sender.flush_lsn,
                    &mut sender.replay_lsn,
                ] {
                    *position = lsn(START);
                }
                // It decodes all the time, so it has no time to ask for a confirmation.
                sample.processes[1] = process(11, "walsender", "", "");
            }
        },
        Cause::OtherDatabases,
        None,
    ),
    (
        "idle",
        |s| {
            for sample in &mut s.primary.samples {
                sample.wal.flush = lsn(START);
                sample
                    .senders
                    .iter_mut()
                    .for_each(|row| *row = sender(row.pid, &row.application_name, START));
            }
            for sample in &mut s.standby.samples {
                sample.wal.receive = lsn(START);
                sample.wal.replay = lsn(START);
                sample.receiver.as_mut().unwrap().written_lsn = lsn(START);
                sample.wal.replayed_commit_age_ms = Some(7_200_000.0);
            }
        },
        Cause::IdlePrimary,
        None,
    ),
];

#[test]
fn each_cause_is_found_first() {
    for (name, change, cause, named) in CASES {
        let mut scene = Scene::healthy();
        change(&mut scene);
        let diagnosis = scene.diagnose();
        let first = diagnosis
            .findings
            .first()
            .unwrap_or_else(|| panic!("{name}: nothing found"));
        assert_eq!(first.cause, *cause, "{name}: {:?}", diagnosis.findings);
        assert!(!first.evidence.is_empty(), "{name}");
        let note = matches!(cause, Cause::OtherDatabases | Cause::IdlePrimary);
        assert_eq!(first.severity == Severity::Note, note, "{name}");
        assert_eq!(diagnosis.healthy, note, "{name}");
        assert_eq!(diagnosis.has_lag() || diagnosis.has_risk(), !note, "{name}");
        assert!(note || !first.remedies.is_empty(), "{name}");
        if let Some((key, value)) = named {
            assert_eq!(
                first.names.get(key).map(String::as_str),
                Some(*value),
                "{name}"
            );
        }
        assert!(!first.title.contains('{'), "{name}: {}", first.title);
    }
}

#[test]
fn every_cause_has_one_rule_and_a_case() {
    let rules: BTreeSet<Cause> = RULES.iter().map(|rule| rule.cause).collect();
    assert_eq!(rules.len(), RULES.len());
    let cases = CASES.iter().map(|case| case.2);
    let elsewhere = super::relay_tests::CAUSES.into_iter();
    let elsewhere = elsewhere.chain([Cause::SynchronousStandbyMissing, Cause::MissingIndex]);
    let elsewhere = elsewhere.chain(super::overlooked_tests::CAUSES);
    let elsewhere = elsewhere.chain(super::way_tests::CAUSES);
    let elsewhere = elsewhere.chain(super::ring_tests::CAUSES);
    let elsewhere = elsewhere.chain(super::unfed_tests::CAUSES);
    let elsewhere = elsewhere.chain([Cause::ReplicaGone, Cause::MemberLeft]);
    let elsewhere = elsewhere.chain([Cause::InitialSyncBlocked, Cause::TableRenamed]);
    let elsewhere = elsewhere.chain([Cause::ConnectionLost, Cause::SlotUnsuitable]);
    let elsewhere = elsewhere.chain([Cause::PartitionRootDiffers, Cause::TableFollowedTwice]);
    let elsewhere = elsewhere.chain([Cause::TablesUnlogged, Cause::ProbeLeft]);
    let elsewhere = elsewhere.chain([Cause::TableMissing, Cause::ColumnListsDiffer]);
    let elsewhere = elsewhere.chain([Cause::KeyMissing, Cause::ValueMissing]);
    let elsewhere = elsewhere.chain([Cause::PartlyPublished, Cause::OwnerLacksRights]);
    let elsewhere = elsewhere.chain([Cause::ProcessHalted, Cause::NodeRestarted]);
    let elsewhere = elsewhere.chain([Cause::CommitsHeld]);
    let elsewhere = elsewhere.chain(super::unasked_tests::CAUSES);
    let elsewhere = elsewhere.chain(super::refused_tests::CAUSES);
    let elsewhere = elsewhere.chain(super::remedy_tests::CAUSES);
    let elsewhere = elsewhere.chain(super::all_clear_tests::CAUSES);
    let elsewhere = elsewhere.chain(super::replica_tests::CAUSES);
    let cases: BTreeSet<Cause> = cases.chain(elsewhere).collect();
    assert_eq!(rules, cases);
    assert!(rules.iter().eq(Cause::ALL));
}

#[test]
fn a_core_s_limit_comes_with_what_helpers_do() {
    let says = ParallelReplay {
        parallel: "no: a pause is requested".to_owned(),
        ..ParallelReplay::default()
    };
    for (said, expected) in [
        (None, None),
        (
            Some(says),
            Some("replay by several processes: no: a pause is requested"),
        ),
    ] {
        let mut scene = Scene::healthy();
        scene.stuck_replay("", "");
        for sample in &mut scene.standby.samples {
            sample.parallel_replay.clone_from(&said);
        }
        let diagnosis = scene.diagnose();
        let found = diagnosis.findings.first().unwrap();
        assert_eq!(found.cause, Cause::ReplayAtCoreLimit);
        let mut evidence = found.evidence.iter();
        let fact = evidence.find(|fact| fact.name == "ahead_share");
        assert_eq!(fact.map(|fact| fact.words.as_str()), expected);
    }
}

#[test]
fn a_worker_that_searches_whole_tables_misses_an_index() {
    for (wait, rows, searches, expected) in [
        ("", 50_000, 10, Cause::MissingIndex),
        // It waits for something else.
        ("PgSleep", 50_000, 10, Cause::SlowConsumer),
        // Small tables are searched soon.
        ("", 50, 10, Cause::SlowConsumer),
        // All of it was long ago.
        ("", 50_000, 0, Cause::SlowConsumer),
    ] {
        let mut scene = Scene::healthy();
        let wait_type = if wait.is_empty() { "" } else { "Timeout" };
        scene.stuck_subscriber(1, ("Client", "WalSenderWriteData"), (wait_type, wait));
        for (index, sample) in scene.one.samples.iter_mut().enumerate() {
            let number = 7 + index as u64 * searches;
            sample.subscriptions[0].searched = Some(Searched {
                table: "public.t".to_owned(),
                searches: number,
                rows: number * rows,
            });
        }
        let diagnosis = scene.diagnose();
        let found: Vec<_> = diagnosis.findings.iter().map(|found| found.cause).collect();
        assert_eq!(found, [expected], "{wait} {rows} {searches}");
        let table = diagnosis.findings[0].names.get("table");
        assert_eq!(table.is_some(), expected == Cause::MissingIndex);
    }
}

#[test]
fn a_healthy_scene_has_no_findings() {
    let diagnosis = Scene::healthy().diagnose();
    assert!(
        diagnosis.healthy && diagnosis.findings.is_empty(),
        "{:?}",
        diagnosis.findings
    );
    assert_eq!(diagnosis.links.len(), 3);
    assert!(diagnosis.links.iter().all(|link| !link.behind));
}

#[test]
fn what_is_seldom_or_short_is_no_cause() {
    let waits: [(&str, &str); 4] = [
        ("IPC", "RecoveryConflictSnapshot"),
        ("BufferPin", "BufferPin"),
        ("IO", "DataFileRead"),
        ("Lock", "relation"),
    ];
    for (wait_type, wait) in waits {
        let mut scene = Scene::healthy();
        // The standby is 100 ms behind and always waits: that is too little to report.
        scene.stuck_replay(wait_type, wait);
        for (index, sample) in scene.standby.samples.iter_mut().enumerate() {
            sample.wal.replay = lsn(START + (index as u64).saturating_sub(1) * STEP);
        }
        let diagnosis = scene.diagnose();
        assert!(diagnosis.healthy, "{wait}: {:?}", diagnosis.findings);
    }
}

#[test]
fn a_subscriber_that_nobody_waits_for_may_flush_late() {
    let mut scene = Scene::healthy();
    scene.late_flush("async");
    let diagnosis = scene.diagnose();
    assert!(diagnosis.healthy);
    assert_eq!(diagnosis.first(), Some(Cause::AsynchronousApplyCommit));
    assert_eq!(diagnosis.findings[0].severity, Severity::Note);

    // With the remedy in force there is not even a note.
    let mut scene = Scene::healthy();
    scene.late_flush("sync");
    for sample in &mut scene.one.samples {
        sample.subscriptions[0].synchronous_commit = "on".into();
    }
    assert!(scene.diagnose().findings.is_empty());
}

#[test]
fn the_better_remedy_comes_first() {
    let mut scene = Scene::healthy();
    scene.late_flush("sync");
    let remedies = scene.diagnose().findings[0].remedies.clone();
    let place = |words: &str| {
        remedies
            .iter()
            .position(|remedy| remedy.contains(words))
            .unwrap()
    };
    assert_eq!(
        place("ALTER SUBSCRIPTION sub_one SET (synchronous_commit = on)"),
        0
    );
    assert!(place("wal_writer_delay = 10ms (now 200ms)") > 0);
}

#[test]
fn two_causes_on_two_replicas_are_both_found() {
    let mut scene = Scene::healthy();
    scene.stuck_replay("IO", "DataFileRead");
    scene.stuck_subscriber(2, ("Client", "WalSenderWriteData"), ("", ""));
    let causes: Vec<Cause> = scene
        .diagnose()
        .findings
        .iter()
        .map(|finding| finding.cause)
        .collect();
    assert_eq!(causes, [Cause::ReplayWaitsForStorage, Cause::SlowConsumer]);
}

#[test]
fn a_single_read_at_a_backlog_s_end_blames_no_storage() {
    for (late, found) in [(2, None), (3, Some(Cause::ReplayWaitsForStorage))] {
        let mut scene = Scene::healthy();
        let before = scene.standby.samples.len() - late;
        for sample in &mut scene.standby.samples[before..] {
            sample.wal.replay = lsn(START);
            sample.processes[0] = process(21, "startup", "IO", "WALRead");
        }
        assert_eq!(scene.diagnose().first(), found, "{late}");
    }
}

#[test]
fn a_giant_transaction_goes_before_the_network_that_it_looks_like() {
    let mut scene = Scene::healthy();
    scene.stuck_subscriber(
        1,
        ("Client", "WalSenderWriteData"),
        ("Activity", "LogicalApplyMain"),
    );
    scene.spilled(5_000_000_000, 1);
    let found = scene.diagnose().findings;
    let causes: Vec<Cause> = found.iter().map(|finding| finding.cause).collect();
    assert_eq!(causes, [Cause::GiantTransaction, Cause::SlowNetwork]);
    assert!(found[1].explains < found[0].explains);
}

#[test]
fn a_node_that_is_away_hides_no_other() {
    let mut scene = Scene::healthy();
    scene.stuck_subscriber(2, ("Client", "WalSenderWriteData"), ("", ""));
    scene.standby.samples.clear();
    scene.standby.troubles = vec![Trouble::Unreachable {
        reason: "no".to_owned(),
    }];
    let diagnosis = scene.diagnose();
    assert_eq!(diagnosis.first(), Some(Cause::SlowConsumer));
    assert!(!diagnosis.nodes[1].usable && !diagnosis.healthy);
    // The primary still knows the standby.
    assert!(diagnosis.links.iter().any(|link| link.replica == "standby"));
}

#[test]
fn remedies_with_gaps_are_left_out() {
    let names = [("pid", "7".to_owned())].into();
    assert_eq!(fill("end {pid} now", &names).unwrap(), "end 7 now");
    assert_eq!(fill("plain", &names).unwrap(), "plain");
    assert_eq!(fill("{pid}{slot}", &names), None);
    assert_eq!(fill("broken {pid", &names), None);
}

#[test]
fn long_queries_are_shortened() {
    assert_eq!(super::shortened(&"é ".repeat(500)).chars().count(), 122);
}

/// One slot with a giant transaction says nothing of how fast decoding is for others.
#[test]
fn a_giant_transaction_of_the_only_slot_is_the_only_cause() {
    let mut scene = Scene::healthy();
    let (waits, idle) = (
        ("IO", "ReorderBufferWrite"),
        ("Activity", "LogicalApplyMain"),
    );
    scene.stuck_subscriber(1, waits, idle);
    for sample in &mut scene.primary.samples {
        sample.slots.truncate(2);
        sample.senders.truncate(2);
    }
    let of = |scene: &Scene| -> Vec<Cause> {
        let nodes = [&scene.primary, &scene.standby, &scene.one];
        let diagnosis = diagnose(&Window::new(nodes.map(Clone::clone).into()));
        diagnosis.findings.iter().map(|found| found.cause).collect()
    };
    assert!(
        of(&scene).contains(&Cause::SlowDecoding),
        "{:?}",
        of(&scene)
    );
    scene.spilled(5_000_000_000, 1);
    let found = of(&scene);
    assert!(found.contains(&Cause::GiantTransaction), "{found:?}");
    assert!(!found.contains(&Cause::SlowDecoding), "{found:?}");
}
