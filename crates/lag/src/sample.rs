//! One node at one moment. What a version or the role's rights do not show is empty.

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_wire::Lsn;
use serde::{Deserialize, Serialize};

use crate::position;
use crate::process_cpu::Cpu;
use crate::relay::Relay;
use crate::states::{
    BackendType, ReceiverStatus, ReplayPause, SenderState, SlotType, SyncState, SynchronousCommit,
    WaitType, WalStatus,
};

/// What does not change while a connection lasts.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// `server_version_num`: 150020.
    pub version: u32,
    /// The cluster's identifier; empty if it may not be read.
    pub system: String,
    /// The connection's database.
    pub database: String,
    /// The version of a relay; None of a server.
    pub relay: Option<String>,
    /// The role is a member of `pg_read_all_stats`, as members of `pg_monitor` are.
    pub monitor: bool,
    /// Settings by name, in their own units as in `pg_settings.setting`.
    pub settings: BTreeMap<String, String>,
    /// Host and address that we are connected to; those of a Unix socket begin with `/`.
    #[serde(skip)]
    pub hosts: Vec<String>,
    /// The schema of extension lockstep, quoted, where it is created.
    pub extension: Option<String>,
}

impl Facts {
    /// The major version.
    pub fn major(&self) -> u32 {
        self.version / 10_000
    }

    /// A setting's number, in its unit; None of what no setting can be.
    pub fn number(&self, setting: &str) -> Option<f64> {
        let number: f64 = self.settings.get(setting)?.parse().ok()?;
        (number.abs() < 1e18).then_some(number)
    }

    /// A setting's value.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }
}

/// A node's answers to one round of questions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// The middle of the round trip, since the window began, by our clock.
    pub at: Duration,
    /// From the question to the answer.
    pub round_trip: Duration,
    /// The server's clock less ours in the middle of the round trip, microseconds.
    pub clock_offset_us: i64,
    /// It replays WAL.
    pub in_recovery: bool,
    /// Ends of its WAL.
    pub wal: Wal,
    /// Who takes WAL from it.
    pub senders: Vec<Sender>,
    /// Its replication slots.
    pub slots: Vec<Slot>,
    /// What decoding has done for each logical slot.
    pub decoding: Vec<Decoding>,
    /// Its walreceiver.
    pub receiver: Option<Receiver>,
    /// Subscriptions of the connection's database.
    pub subscriptions: Vec<Subscription>,
    /// The processes that replication depends on.
    pub processes: Vec<Process>,
    /// Sessions of clients.
    pub clients: Clients,
    /// Queries cancelled by replay since the statistics began.
    pub conflicts: Conflicts,
    /// Totals since the statistics began.
    pub totals: Totals,
    /// What extension lockstep says.
    pub extension: Option<Extension>,
    /// What a relay says of itself. Its slots are among [`Sample::slots`] as well.
    pub relay: Option<Relay>,
    /// Bytes of the answers.
    pub size: usize,
}

/// Ends of a server's WAL.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Wal {
    /// Durable on a primary.
    #[serde(with = "position")]
    pub flush: Option<Lsn>,
    /// Durable on a standby, of what was streamed since it started.
    #[serde(with = "position")]
    pub receive: Option<Lsn>,
    /// Replayed on a standby.
    #[serde(with = "position")]
    pub replay: Option<Lsn>,
    /// Since the commit that was replayed last was made, by the standby's own clock.
    pub replayed_commit_age_ms: Option<f64>,
    pub pause: Option<ReplayPause>,
}

/// A row of `pg_stat_replication`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Sender {
    /// The walsender.
    pub pid: u32,
    /// What the other end calls itself.
    pub application_name: String,
    /// The other end's address.
    pub client: Option<String>,
    pub state: Option<SenderState>,
    pub sync_state: Option<SyncState>,
    /// Handed to the network.
    #[serde(with = "position")]
    pub sent_lsn: Option<Lsn>,
    /// Taken by the other end's operating system; by a subscriber: received.
    #[serde(with = "position")]
    pub write_lsn: Option<Lsn>,
    /// Durable there.
    #[serde(with = "position")]
    pub flush_lsn: Option<Lsn>,
    /// Replayed or applied there.
    #[serde(with = "position")]
    pub replay_lsn: Option<Lsn>,
    /// From flush here to write there, recently.
    pub write_lag_ms: Option<f64>,
    /// The same to flush there.
    pub flush_lag_ms: Option<f64>,
    /// The same to replay there.
    pub replay_lag_ms: Option<f64>,
    /// Transactions since the oldest snapshot that the standby asks to be respected.
    pub xmin_age: Option<i64>,
}

/// A row of `pg_replication_slots`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Slot {
    /// Its name.
    pub slot_name: String,
    pub slot_type: SlotType,
    /// The database of a logical slot.
    pub database: Option<String>,
    /// Goes away with its session.
    pub temporary: bool,
    /// Somebody uses it.
    pub active: bool,
    /// The walsender that does.
    pub active_pid: Option<u32>,
    /// Transactions since the oldest one that it keeps rows of.
    pub xmin_age: Option<i64>,
    /// The oldest WAL that it keeps.
    #[serde(with = "position")]
    pub restart_lsn: Option<Lsn>,
    /// Confirmed by the consumer of a logical slot.
    #[serde(with = "position")]
    pub confirmed_flush_lsn: Option<Lsn>,
    pub wal_status: Option<WalStatus>,
    /// Bytes that may still be written before it is in danger.
    pub safe_wal_size: Option<i64>,
    /// A standby's copy of the primary's slot, which nobody can use yet.
    pub synced: bool,
}

/// A row of `pg_stat_replication_slots`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Decoding {
    /// The slot.
    pub slot_name: String,
    /// Transactions that did not fit into `logical_decoding_work_mem`.
    pub spill_txns: u64,
    /// How often some were written to disk.
    pub spill_count: u64,
    /// Bytes written so.
    pub spill_bytes: u64,
    /// Transactions sent before their end.
    pub stream_txns: u64,
    /// Bytes sent so.
    pub stream_bytes: u64,
    /// Transactions decoded and handed to the plugin.
    pub total_txns: u64,
    /// Bytes of changes in those.
    pub total_bytes: u64,
}

/// The row of `pg_stat_wal_receiver`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Receiver {
    /// The walreceiver.
    pub pid: u32,
    pub status: Option<ReceiverStatus>,
    /// Given to the operating system.
    #[serde(with = "position")]
    pub written_lsn: Option<Lsn>,
    /// Durable.
    #[serde(with = "position")]
    pub flushed_lsn: Option<Lsn>,
    /// The upstream's end when it last said so.
    #[serde(with = "position")]
    pub latest_end_lsn: Option<Lsn>,
    /// Since the last message came, by this server's clock.
    pub message_age_ms: Option<f64>,
    /// Its slot on the upstream.
    pub slot_name: Option<String>,
    /// The upstream.
    pub sender_host: Option<String>,
    /// The upstream's port.
    pub sender_port: Option<u32>,
    /// What it calls itself there.
    pub application_name: Option<String>,
}

/// A subscription and its worker.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Subscription {
    /// Its name.
    pub name: String,
    /// It shall run.
    pub enabled: bool,
    /// Its slot on the publisher.
    pub slot_name: Option<String>,
    /// `synchronous_commit` of its worker.
    pub synchronous_commit: SynchronousCommit,
    /// The apply worker, while it runs.
    pub pid: Option<u32>,
    /// Last position received.
    #[serde(with = "position")]
    pub received_lsn: Option<Lsn>,
    /// The publisher's end when it last said so.
    #[serde(with = "position")]
    pub latest_end_lsn: Option<Lsn>,
    /// Since the last message came, by this server's clock.
    pub message_age_ms: Option<f64>,
    /// Tables that are not synchronised yet.
    pub unsynced_tables: u64,
    /// Errors of its worker since the statistics began.
    pub apply_errors: u64,
}

/// A process of the server.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    pub backend_type: BackendType,
    /// What kind of event it waits for; None while it runs.
    pub wait_type: Option<WaitType>,
    /// What it waits for.
    pub wait: Option<String>,
    /// Who holds the lock that it waits for.
    pub blocked_by: Vec<u32>,
    /// Its CPU, if it runs on this machine.
    #[serde(skip)]
    pub cpu: Option<Cpu>,
}

impl Process {
    /// It waits for this kind of event.
    pub fn waits(&self, kind: &WaitType) -> bool {
        self.wait_type.as_ref() == Some(kind)
    }

    /// It waits for this event.
    pub fn waits_for(&self, event: &str) -> bool {
        self.wait.as_deref() == Some(event)
    }
}

/// Sessions of clients.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Clients {
    /// In a query.
    pub active: u64,
    /// In a query and waiting for nothing.
    pub running: u64,
    /// Waiting for a synchronous replica.
    pub awaiting_sync: u64,
    /// Those with the oldest transactions, oldest first.
    pub oldest: Vec<Session>,
}

/// A session of a client.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Session {
    /// Its process.
    pub pid: u32,
    /// Its role.
    pub user: Option<String>,
    /// Its database.
    pub database: Option<String>,
    /// `active`, `idle in transaction`, ...
    pub state: Option<String>,
    /// Since its transaction began.
    pub xact_age_ms: Option<f64>,
    /// Transactions since its snapshot.
    pub xmin_age: Option<i64>,
    /// It has written.
    pub has_xid: bool,
    /// What it waits for.
    pub wait: Option<String>,
    /// Its query or its last one, shortened.
    pub query: String,
}

/// Sums over `pg_stat_database_conflicts`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Conflicts {
    /// Old snapshots.
    pub snapshot: u64,
    /// Locks.
    pub lock: u64,
    /// Pinned buffers.
    pub bufferpin: u64,
    /// Deadlocks.
    pub deadlock: u64,
}

/// Totals of the server.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// WAL generated, in bytes.
    pub wal_bytes: Option<f64>,
    /// Look-ups of a subtransaction's parent.
    pub subtransaction_lookups: u64,
    /// Reads, waits and flushes by kind of process, from 16 on.
    pub io: Vec<Io>,
}

/// Sums over `pg_stat_io` for one kind of process.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Io {
    pub backend_type: BackendType,
    /// Reads.
    pub reads: f64,
    /// Time in them, ms; 0 unless `track_io_timing` is on.
    pub read_time_ms: f64,
    /// Flushes.
    pub fsyncs: f64,
    /// Time in them, ms.
    pub fsync_time_ms: f64,
}

/// What views of extension lockstep say on a standby.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Extension {
    /// Age of the oldest WAL received and not replayed.
    pub lag_ms: Option<f64>,
    /// How often replay was seen waiting for a query.
    pub conflicts: u64,
    /// Queries inside the gate.
    pub running: u64,
    /// Queries that wait at the gate.
    pub waiting: u64,
    /// How many may be inside.
    pub concurrency_limit: u64,
    /// Sessions at low priority.
    pub demoted: u64,
    /// How priorities are changed, `none` if not at all.
    pub method: Option<String>,
}

impl Sample {
    /// The end of WAL that others can get from here: flushed on a primary; on a standby what
    /// is received, or what is replayed while nothing was streamed; of a relay the furthest
    /// group's.
    pub fn end(&self) -> Option<Lsn> {
        self.wal
            .flush
            .or_else(|| self.wal.receive.max(self.wal.replay))
            .or_else(|| self.relay.as_ref()?.end())
    }

    /// The end of one of a relay's groups, or of a server.
    pub fn end_of(&self, group: Option<&str>) -> Option<Lsn> {
        match group {
            Some(group) => self.relay.as_ref()?.group(group)?.end(),
            None => self.end(),
        }
    }

    /// What a new query sees.
    pub fn visible(&self) -> Option<Lsn> {
        self.wal.flush.or(self.wal.replay)
    }

    /// The only process of a kind.
    pub fn process(&self, backend_type: &BackendType) -> Option<&Process> {
        self.processes
            .iter()
            .find(|process| process.backend_type == *backend_type)
    }

    /// A process by its id.
    pub fn process_of(&self, pid: u32) -> Option<&Process> {
        self.processes.iter().find(|process| process.pid == pid)
    }

    /// A sender by its process.
    pub fn sender(&self, pid: u32) -> Option<&Sender> {
        self.senders.iter().find(|sender| sender.pid == pid)
    }

    /// A slot by name.
    pub fn slot(&self, name: &str) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.slot_name == name)
    }

    /// Decoding of a slot.
    pub fn decoding(&self, slot: &str) -> Option<&Decoding> {
        self.decoding.iter().find(|row| row.slot_name == slot)
    }

    /// A subscription by name.
    pub fn subscription(&self, name: &str) -> Option<&Subscription> {
        self.subscriptions.iter().find(|row| row.name == name)
    }
}
