//! Every cause from hand-made samples, and what must not be found.

use std::collections::BTreeSet;
use std::time::Duration;

use lockstep_wire::Lsn;

use super::{Cause, RULES, Severity, fill};
use crate::diagnosis::{Diagnosis, diagnose};
use crate::node::{Role, Trouble};
use crate::process_cpu::Cpu;
use crate::sample::{
    Clients, Decoding, Facts, Process, Receiver, Sample, Sender, Session, Slot, Subscription,
};
use crate::states::WaitType;
use crate::window::{NodeWindow, Window};

pub(super) const SAMPLES: u64 = 50;
pub(super) const START: u64 = 1_000_000_000;
/// WAL written between two samples.
pub(super) const STEP: u64 = 100_000;

pub(super) fn lsn(position: u64) -> Option<Lsn> {
    Some(Lsn::from(position))
}

pub(super) fn process(pid: u32, backend_type: &str, wait_type: &str, wait: &str) -> Process {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Process {
        pid,
        backend_type: backend_type.into(),
        wait_type: some(wait_type).map(WaitType::from),
        wait: some(wait),
        ..Process::default()
    }
}

pub(super) fn session(pid: u32, age_ms: f64) -> Session {
    Session {
        pid,
        user: Some("u".to_owned()),
        state: Some("active".to_owned()),
        xact_age_ms: Some(age_ms),
        xmin_age: Some(100),
        query: "SELECT  *\n FROM t".to_owned(),
        ..Session::default()
    }
}

/// A primary that writes, a standby and two subscribers that keep up.
struct Scene {
    primary: NodeWindow,
    standby: NodeWindow,
    one: NodeWindow,
    two: NodeWindow,
}

pub(super) fn node(name: &str, role: Role, samples: impl Fn(u64, u64) -> Sample) -> NodeWindow {
    let settings = [
        ("max_slot_wal_keep_size", "1000"),
        ("logical_decoding_work_mem", "65536"),
        ("wal_writer_delay", "200"),
        ("max_standby_streaming_delay", "30000"),
        ("recovery_min_apply_delay", "0"),
        ("recovery_prefetch", "try"),
        ("maintenance_io_concurrency", "10"),
    ];
    let at = |index: u64| Duration::from_millis(index * 100);
    NodeWindow {
        facts: Facts {
            version: 150_020,
            system: "1".to_owned(),
            monitor: true,
            settings: settings
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..Facts::default()
        },
        samples: (0..SAMPLES)
            .map(|index| Sample {
                at: at(index),
                ..samples(index, START + index * STEP)
            })
            .collect(),
        ..NodeWindow::empty(name, role)
    }
}

pub(super) fn sender(pid: u32, name: &str, end: u64) -> Sender {
    Sender {
        pid,
        application_name: name.to_owned(),
        state: Some("streaming".into()),
        sync_state: Some("async".into()),
        sent_lsn: lsn(end),
        write_lsn: lsn(end),
        flush_lsn: lsn(end),
        replay_lsn: lsn(end),
        ..Sender::default()
    }
}

pub(super) fn slot(name: &str, kind: &str, pid: u32, end: u64) -> Slot {
    Slot {
        slot_name: name.to_owned(),
        slot_type: kind.into(),
        active: true,
        active_pid: Some(pid),
        restart_lsn: lsn(end),
        confirmed_flush_lsn: lsn(end),
        wal_status: Some("reserved".into()),
        safe_wal_size: Some(1_000_000_000),
        ..Slot::default()
    }
}

/// A standby that keeps up.
fn standby() -> NodeWindow {
    node("standby", Role::Standby, |_, end| {
        let mut sample = Sample {
            in_recovery: true,
            receiver: Some(Receiver {
                pid: 20,
                status: Some("streaming".into()),
                written_lsn: lsn(end),
                slot_name: Some("standby".to_owned()),
                ..Receiver::default()
            }),
            processes: vec![
                process(21, "startup", "Activity", "RecoveryWalStream"),
                process(20, "walreceiver", "Activity", "WalReceiverMain"),
            ],
            ..Sample::default()
        };
        sample.wal.receive = lsn(end);
        sample.wal.replay = lsn(end);
        sample.wal.pause = Some("not paused".into());
        sample.wal.replayed_commit_age_ms = Some(3.0);
        sample
    })
}

impl Scene {
    fn healthy() -> Self {
        let subscriber = |name: &'static str, pid: u32| {
            node(name, Role::Subscriber, move |_, end| Sample {
                subscriptions: vec![Subscription {
                    name: format!("sub_{name}"),
                    enabled: true,
                    slot_name: Some(format!("slot_{name}")),
                    synchronous_commit: "off".into(),
                    pid: Some(pid),
                    received_lsn: lsn(end),
                    ..Subscription::default()
                }],
                processes: vec![process(
                    pid,
                    "logical replication worker",
                    "Activity",
                    "LogicalApplyMain",
                )],
                ..Sample::default()
            })
        };
        let primary = node("primary", Role::Primary, |index, end| {
            let mut sample = Sample {
                senders: vec![
                    sender(10, "standby", end),
                    sender(11, "sub_one", end),
                    sender(12, "sub_two", end),
                ],
                slots: vec![
                    slot("standby", "physical", 10, end),
                    slot("slot_one", "logical", 11, end),
                    slot("slot_two", "logical", 12, end),
                ],
                processes: vec![
                    process(10, "walsender", "Activity", "WalSenderMain"),
                    process(11, "walsender", "Client", "WalSenderWaitForWAL"),
                    process(12, "walsender", "Client", "WalSenderWaitForWAL"),
                ],
                ..Sample::default()
            };
            sample.wal.flush = lsn(end);
            sample.decoding = ["slot_one", "slot_two"]
                .map(|name| Decoding {
                    slot_name: name.to_owned(),
                    total_txns: index,
                    total_bytes: index * 1000,
                    ..Decoding::default()
                })
                .into();
            sample
        });
        Self {
            primary,
            standby: standby(),
            one: subscriber("one", 31),
            two: subscriber("two", 32),
        }
    }

    fn diagnose(self) -> Diagnosis {
        diagnose(&Window::new(vec![
            self.primary,
            self.standby,
            self.one,
            self.two,
        ]))
    }

    /// Replay makes no progress.
    fn stuck_replay(&mut self, wait_type: &str, wait: &str) {
        for sample in &mut self.standby.samples {
            sample.wal.replay = lsn(START);
            sample.processes[0] = process(21, "startup", wait_type, wait);
        }
    }

    /// The standby receives nothing.
    fn stuck_receive(&mut self, wait_type: &str, wait: &str) {
        for sample in &mut self.standby.samples {
            sample.wal.replay = lsn(START);
            sample.wal.receive = lsn(START);
            sample.receiver.as_mut().unwrap().written_lsn = lsn(START);
            sample.processes[1] = process(20, "walreceiver", wait_type, wait);
        }
        for sample in &mut self.primary.samples {
            sample.senders[0] = sender(10, "standby", START);
        }
    }

    /// A subscriber makes no progress; its walsender and worker wait for these.
    fn stuck_subscriber(&mut self, index: usize, walsender: (&str, &str), worker: (&str, &str)) {
        for sample in &mut self.primary.samples {
            let sender = &mut sample.senders[index];
            for position in [
                &mut sender.sent_lsn,
                &mut sender.write_lsn,
                &mut sender.flush_lsn,
                &mut sender.replay_lsn,
            ] {
                *position = lsn(START);
            }
            let pid = sender.pid;
            sample.processes[index] = process(pid, "walsender", walsender.0, walsender.1);
        }
        let node = if index == 1 {
            &mut self.one
        } else {
            &mut self.two
        };
        for sample in &mut node.samples {
            let pid = sample.processes[0].pid;
            sample.processes[0] = process(pid, "logical replication worker", worker.0, worker.1);
        }
    }

    fn cpu(&mut self, ran: f64, queued: f64) {
        for (index, sample) in self.standby.samples.iter_mut().enumerate() {
            let part = |share: f64| Duration::from_secs_f64(index as f64 * 0.1 * share);
            sample.processes[0].cpu = Some(Cpu {
                ran: part(ran),
                queued: part(queued),
            });
        }
    }

    fn clients(&mut self, running: u64, oldest: Vec<Session>) {
        for sample in &mut self.standby.samples {
            sample.clients = Clients {
                running,
                oldest: oldest.clone(),
                ..Clients::default()
            };
        }
    }

    fn late_flush(&mut self, sync_state: &str) {
        for sample in &mut self.primary.samples {
            let sender = &mut sample.senders[1];
            sender.flush_lag_ms = Some(400.0);
            sender.replay_lag_ms = Some(2.0);
            sender.sync_state = Some(sync_state.into());
            sample.clients.awaiting_sync = 3;
        }
    }

    /// As [`Self::late_flush`], but shown by positions alone: each flush takes three samples.
    fn late_flush_unsaid(&mut self) {
        for (index, sample) in self.primary.samples.iter_mut().enumerate() {
            let sender = &mut sample.senders[1];
            sender.flush_lsn = lsn(START + (index as u64 / 4) * 4 * STEP);
            sender.sync_state = Some("sync".into());
        }
    }

    fn spilled(&mut self, bytes: u64, transactions: u64) {
        for (index, sample) in self.primary.samples.iter_mut().enumerate() {
            let row = &mut sample.decoding[0];
            row.total_bytes = index as u64 * bytes / SAMPLES;
            row.spill_bytes = row.total_bytes;
            row.spill_txns = index as u64 * transactions / SAMPLES;
        }
    }
}

type Change = fn(&mut Scene);

/// A case: its name, the change to a healthy scene, the cause to be found first, and a name
/// that its evidence must have.
type Case = (
    &'static str,
    Change,
    Cause,
    Option<(&'static str, &'static str)>,
);

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
        None,
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
        None,
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
        Cause::RetainedWalNearLimit,
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
        assert_eq!(diagnosis.has_lag(), !note, "{name}");
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
    let elsewhere = elsewhere.chain([Cause::SynchronousStandbyMissing]);
    let cases: BTreeSet<Cause> = cases.chain(elsewhere).collect();
    assert_eq!(rules, cases);
    assert!(rules.iter().eq(Cause::ALL));
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
    assert!(place("wal_writer_delay = 10ms (now 200 ms)") > 0);
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
fn figures_are_readable() {
    use super::{bytes, percent, seconds, shortened};
    assert_eq!(bytes(12.0), "12 bytes");
    assert_eq!(bytes(2048.0), "2.0 kB");
    assert_eq!(bytes(50.0 * 1024.0 * 1024.0), "50 MB");
    assert_eq!(seconds(12.4), "12 ms");
    assert_eq!(seconds(3_500.0), "3.5 s");
    assert_eq!(seconds(600_000.0), "10 min");
    assert_eq!(percent(0.504), "50 %");
    assert_eq!(shortened(&"é ".repeat(500)).chars().count(), 122);
}
