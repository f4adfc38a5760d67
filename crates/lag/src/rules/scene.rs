//! Hand-made samples of a primary, a standby and two subscribers, for the tests of rules.

use std::sync::Arc;
use std::time::Duration;

use lockstep_wire::Lsn;

use crate::diagnosis::{Diagnosis, diagnose};
use crate::node::Role;
use crate::point::Bound;
use crate::process_cpu::Cpu;
use crate::sample::{Facts, Sample};
use crate::states::WaitType;
use crate::tables::{Followed, Tables};
use crate::views::{
    ArchiveQueue, Clients, Decoding, Process, Receiver, Sender, Session, Slot, Subscription,
};
use crate::window::{NodeWindow, Window};

pub(super) const SAMPLES: u64 = 50;
pub(crate) const START: u64 = 1_000_000_000;
/// A lag that is the true one.
pub(super) const EXACT: Bound = Bound {
    lag_is_least: false,
    lag_is_most: false,
};

/// WAL written between two samples.
pub(super) const STEP: u64 = 100_000;

pub(crate) fn lsn(position: u64) -> Option<Lsn> {
    Some(Lsn::from(position))
}

pub(crate) fn process(pid: u32, backend_type: &str, wait_type: &str, wait: &str) -> Process {
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
pub(crate) struct Scene {
    pub primary: NodeWindow,
    pub standby: NodeWindow,
    pub one: NodeWindow,
    pub two: NodeWindow,
}

pub(super) fn node(name: &str, role: Role, samples: impl Fn(u64, u64) -> Sample) -> NodeWindow {
    let settings = [
        ("max_slot_wal_keep_size", "1000"),
        ("logical_decoding_work_mem", "65536"),
        ("wal_writer_delay", "200"),
        ("max_standby_streaming_delay", "30000"),
        ("hot_standby_feedback", "off"),
        ("wal_compression", "off"),
        ("archive_mode", "on"),
        ("wal_sender_timeout", "60000"),
        ("wal_receiver_timeout", "60000"),
        ("recovery_min_apply_delay", "0"),
        ("recovery_prefetch", "try"),
        ("maintenance_io_concurrency", "10"),
        ("max_logical_replication_workers", "4"),
        ("max_worker_processes", "8"),
    ];
    let at = |index: u64| Duration::from_millis(index * 100);
    NodeWindow {
        facts: Facts {
            version: 150_020,
            system: "1".to_owned(),
            monitor: true,
            database: match role {
                Role::Primary => "app".to_owned(),
                _ => String::new(),
            },
            settings: settings
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..Facts::default()
        },
        samples: (0..SAMPLES)
            .map(|index| {
                let sample = samples(index, START + index * STEP);
                Sample {
                    at: at(index),
                    archive: sample.archive.or_else(|| Some(ArchiveQueue::default())),
                    tables: Arc::new(tables(role, &sample)),
                    ..sample
                }
            })
            .collect(),
        ..NodeWindow::empty(name, role)
    }
}

/// A primary publishes one table, which all subscriptions follow.
fn tables(role: Role, sample: &Sample) -> Tables {
    let table = || ["public.t".to_owned()].into();
    let followed = sample.subscriptions.iter().map(|one| {
        let follows = Followed {
            publications: vec!["p".to_owned()],
            tables: table(),
            ..Followed::default()
        };
        (one.name.clone(), follows)
    });
    let published = (role == Role::Primary).then(|| ("p".to_owned(), table()));
    Tables {
        publications: published.into_iter().collect(),
        subscriptions: followed.collect(),
        ..Tables::default()
    }
}

pub(crate) fn sender(pid: u32, name: &str, end: u64) -> Sender {
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
        database: (kind == "logical").then(|| "app".to_owned()),
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

/// A node with one subscription whose worker waits for changes.
pub fn subscriber(name: &'static str, worker: u32) -> NodeWindow {
    node(name, Role::Subscriber, move |_, end| Sample {
        subscriptions: vec![Subscription {
            name: format!("sub_{name}"),
            enabled: true,
            slot_name: Some(format!("slot_{name}")),
            synchronous_commit: "off".into(),
            pid: Some(worker),
            received_lsn: lsn(end),
            ..Subscription::default()
        }],
        processes: vec![process(
            worker,
            "logical replication worker",
            "Activity",
            "LogicalApplyMain",
        )],
        ..Sample::default()
    })
}

/// Changes what a subscriber has received. The change gets the end of the sample's WAL.
pub(super) fn received(subscriber: &mut NodeWindow, position: impl Fn(u64) -> Option<Lsn>) {
    for (index, sample) in (0..).zip(&mut subscriber.samples) {
        sample.subscriptions[0].received_lsn = position(START + index * STEP);
    }
}

impl Scene {
    pub fn healthy() -> Self {
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

    pub fn diagnose(self) -> Diagnosis {
        diagnose(&Window::new(vec![
            self.primary,
            self.standby,
            self.one,
            self.two,
        ]))
    }

    /// Replay makes no progress.
    pub fn stuck_replay(&mut self, wait_type: &str, wait: &str) {
        for sample in &mut self.standby.samples {
            sample.wal.replay = lsn(START);
            sample.processes[0] = process(21, "startup", wait_type, wait);
        }
    }

    /// The standby receives nothing.
    pub fn stuck_receive(&mut self, wait_type: &str, wait: &str) {
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
    pub fn stuck_subscriber(
        &mut self,
        index: usize,
        walsender: (&str, &str),
        worker: (&str, &str),
    ) {
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
        received(node, |_| lsn(START));
        for sample in &mut node.samples {
            let pid = sample.processes[0].pid;
            sample.processes[0] = process(pid, "logical replication worker", worker.0, worker.1);
        }
    }

    pub fn cpu(&mut self, ran: f64, queued: f64) {
        for (index, sample) in self.standby.samples.iter_mut().enumerate() {
            let part = |share: f64| Duration::from_secs_f64(index as f64 * 0.1 * share);
            sample.processes[0].cpu = Some(Cpu {
                ran: part(ran),
                queued: part(queued),
                stopped: false,
            });
        }
    }

    pub fn clients(&mut self, running: u64, oldest: Vec<Session>) {
        for sample in &mut self.standby.samples {
            sample.clients = Clients {
                running,
                oldest: oldest.clone(),
                ..Clients::default()
            };
        }
    }

    pub fn late_flush(&mut self, sync_state: &str) {
        for sample in &mut self.primary.samples {
            let sender = &mut sample.senders[1];
            sender.flush_lag_ms = Some(400.0);
            sender.replay_lag_ms = Some(2.0);
            sender.sync_state = Some(sync_state.into());
            sample.clients.awaiting_sync = 3;
        }
    }

    /// Like [`Self::late_flush`], but shown by positions alone: each flush takes three samples.
    pub fn late_flush_unsaid(&mut self) {
        for (index, sample) in self.primary.samples.iter_mut().enumerate() {
            let sender = &mut sample.senders[1];
            sender.flush_lsn = lsn(START + (index as u64 / 4) * 4 * STEP);
            sender.sync_state = Some("sync".into());
        }
    }

    pub fn spilled(&mut self, bytes: u64, transactions: u64) {
        for (index, sample) in self.primary.samples.iter_mut().enumerate() {
            let row = &mut sample.decoding[0];
            row.total_bytes = index as u64 * bytes / SAMPLES;
            row.spill_bytes = row.total_bytes;
            row.spill_txns = index as u64 * transactions / SAMPLES;
        }
    }
}
