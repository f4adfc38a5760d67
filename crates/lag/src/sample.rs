//! One node at one moment. A value that the version or the role's rights do not show is empty.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockstep_wire::Lsn;
use serde::{Deserialize, Serialize};

use crate::parallel_replay::ParallelReplay;
use crate::position;
use crate::process_cpu::Cpu;
use crate::relay::Relay;
use crate::replica::{Kept, Replica};
use crate::states::{
    BackendType, ReceiverStatus, ReplayPause, SenderState, SlotType, SyncState, SynchronousCommit,
    WaitType, WalStatus,
};
use crate::tables::Tables;

/// What does not change while a connection lasts.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// `server_version_num`, such as 150020.
    pub version: u32,
    /// The cluster's system identifier; empty if it may not be read.
    pub system: String,
    /// The connection's database.
    pub database: String,
    /// The version of a relay; None if the node is a server.
    pub relay: Option<String>,
    /// The connection's role, quoted where SQL needs it.
    pub role: String,
    /// The role is a member of `pg_read_all_stats`, as members of `pg_monitor` are.
    pub monitor: bool,
    /// Settings by name, with the values of `pg_settings.setting`, which have that view's
    /// units.
    pub settings: BTreeMap<String, String>,
    /// Host and address of the connection; those of a Unix socket begin with `/`.
    #[serde(skip)]
    pub hosts: Vec<String>,
    /// The schema of extension lockstep, quoted, if it is created.
    pub extension: Option<String>,
    /// That extension has views of parallel replay.
    pub parallel_replay: bool,
    pub replicas: Kept,
}

impl Facts {
    pub fn major(&self) -> u32 {
        self.version / 10_000
    }

    /// A setting's number, in its unit; None if the value is no number that a setting can have.
    pub fn number(&self, setting: &str) -> Option<f64> {
        let number: f64 = self.settings.get(setting)?.parse().ok()?;
        (number.abs() < 1e18).then_some(number)
    }

    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }
}

/// A node's answers to one round of questions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// The middle of the round trip, as time since the window began, by our clock.
    pub at: Duration,
    pub round_trip: Duration,
    /// The server's clock less ours in the middle of the round trip, in microseconds.
    pub clock_offset_us: i64,
    pub in_recovery: bool,
    pub wal: Wal,
    /// Its walsenders.
    pub senders: Vec<Sender>,
    pub slots: Vec<Slot>,
    /// One for each logical slot.
    pub decoding: Vec<Decoding>,
    pub receiver: Option<Receiver>,
    /// Subscriptions of the connection's database.
    pub subscriptions: Vec<Subscription>,
    /// Replicas whose target the connection's database is.
    pub replicas: Vec<Replica>,
    /// The processes that replication depends on.
    pub processes: Vec<Process>,
    pub clients: Clients,
    /// Prepared transactions, oldest first.
    pub prepared: Vec<Prepared>,
    pub archiver: Archiver,
    pub conflicts: Conflicts,
    pub totals: Totals,
    pub extension: Option<Extension>,
    /// What those views say on a standby.
    pub parallel_replay: Option<ParallelReplay>,
    /// Asked for less often than the rest.
    pub tables: Arc<Tables>,
    /// The same; None if the role may not see it.
    pub wal_folder: Option<WalFolder>,
    /// What a relay says about itself. Its slots are in [`Sample::slots`] as well.
    pub relay: Option<Relay>,
    /// Bytes of the answers.
    pub size: usize,
}

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
    /// Age of the newest replayed commit, by the standby's own clock.
    pub replayed_commit_age_ms: Option<f64>,
    pub pause: Option<ReplayPause>,
    /// Whom commits wait for, on a primary.
    pub synchronous_standby_names: Option<String>,
}

/// A row of `pg_stat_replication`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Sender {
    /// The walsender.
    pub pid: u32,
    pub application_name: String,
    /// The client's address.
    pub client: Option<String>,
    pub state: Option<SenderState>,
    pub sync_state: Option<SyncState>,
    /// Handed to the network.
    #[serde(with = "position")]
    pub sent_lsn: Option<Lsn>,
    /// Written to the operating system of the standby; by a subscriber: received.
    #[serde(with = "position")]
    pub write_lsn: Option<Lsn>,
    /// Durable on the standby.
    #[serde(with = "position")]
    pub flush_lsn: Option<Lsn>,
    /// Replayed by the standby, applied by the subscriber.
    #[serde(with = "position")]
    pub replay_lsn: Option<Lsn>,
    /// Recent time from flush on this server to write on the other.
    pub write_lag_ms: Option<f64>,
    /// Recent time from flush on this server to flush on the other.
    pub flush_lag_ms: Option<f64>,
    /// Recent time from flush on this server to replay on the other.
    pub replay_lag_ms: Option<f64>,
    /// Age, in transactions, of the oldest snapshot that the standby reports through
    /// hot_standby_feedback.
    pub xmin_age: Option<i64>,
}

/// A row of `pg_replication_slots`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Slot {
    pub slot_name: String,
    pub slot_type: SlotType,
    /// The database of a logical slot.
    pub database: Option<String>,
    pub temporary: bool,
    pub active: bool,
    /// The walsender that uses the slot.
    pub active_pid: Option<u32>,
    /// Age, in transactions, of the oldest transaction that the slot keeps rows of.
    pub xmin_age: Option<i64>,
    /// The oldest WAL that the slot keeps.
    #[serde(with = "position")]
    pub restart_lsn: Option<Lsn>,
    /// Confirmed by the consumer of a logical slot.
    #[serde(with = "position")]
    pub confirmed_flush_lsn: Option<Lsn>,
    pub wal_status: Option<WalStatus>,
    /// Bytes that may still be written before the slot is in danger.
    pub safe_wal_size: Option<i64>,
    /// A standby's copy of the primary's slot, which nobody can use before a promotion.
    pub synced: bool,
}

/// A row of `pg_stat_replication_slots`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Decoding {
    pub slot_name: String,
    /// Transactions that did not fit into `logical_decoding_work_mem`.
    pub spill_txns: u64,
    /// Number of times that a part of a transaction was written to disk.
    pub spill_count: u64,
    /// Bytes written to disk.
    pub spill_bytes: u64,
    /// Transactions sent before their end.
    pub stream_txns: u64,
    /// Bytes of transactions sent before their end.
    pub stream_bytes: u64,
    /// Transactions decoded and handed to the output plugin.
    pub total_txns: u64,
    /// Bytes of changes in those transactions.
    pub total_bytes: u64,
}

/// The row of `pg_stat_wal_receiver`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Receiver {
    /// The walreceiver.
    pub pid: u32,
    pub status: Option<ReceiverStatus>,
    /// Written to the operating system.
    #[serde(with = "position")]
    pub written_lsn: Option<Lsn>,
    #[serde(with = "position")]
    pub flushed_lsn: Option<Lsn>,
    /// The upstream's end in the last message that told it.
    #[serde(with = "position")]
    pub latest_end_lsn: Option<Lsn>,
    /// Age of the last message, by this server's clock.
    pub message_age_ms: Option<f64>,
    /// Its slot on the upstream.
    pub slot_name: Option<String>,
    /// Host of the upstream.
    pub sender_host: Option<String>,
    pub sender_port: Option<u32>,
    /// Its `application_name` on the upstream.
    pub application_name: Option<String>,
}

/// A subscription and its apply worker.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Subscription {
    pub name: String,
    pub enabled: bool,
    /// Its slot on the publisher.
    pub slot_name: Option<String>,
    pub synchronous_commit: SynchronousCommit,
    /// The apply worker, while it runs.
    pub pid: Option<u32>,
    #[serde(with = "position")]
    pub received_lsn: Option<Lsn>,
    /// The publisher's end in the last message that told it.
    #[serde(with = "position")]
    pub latest_end_lsn: Option<Lsn>,
    /// Age of the last message, by this server's clock.
    pub message_age_ms: Option<f64>,
    /// Tables that are not synchronised yet.
    pub unsynced_tables: u64,
    /// Errors of its worker since the statistics began.
    pub apply_errors: u64,
    /// Of its tables without an index that leads to a row, the one that most rows were read of.
    pub searched: Option<Searched>,
}

/// Searches of a whole table since the statistics began, whoever made them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Searched {
    /// `schema.table`, quoted where SQL needs it.
    pub table: String,
    pub searches: u64,
    /// Rows that they read.
    pub rows: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Process {
    pub pid: u32,
    pub backend_type: BackendType,
    /// None while it waits for nothing.
    pub wait_type: Option<WaitType>,
    /// The wait event.
    pub wait: Option<String>,
    /// Processes that hold the lock that it waits for.
    pub blocked_by: Vec<u32>,
    /// Its CPU, if it runs on this machine.
    #[serde(skip)]
    pub cpu: Option<Cpu>,
}

impl Process {
    /// It waits for an event of this type.
    pub fn waits(&self, kind: &WaitType) -> bool {
        self.wait_type.as_ref() == Some(kind)
    }

    pub fn waits_for(&self, event: &str) -> bool {
        self.wait.as_deref() == Some(event)
    }

    /// It is an apply worker that has applied all that it received.
    pub fn waits_for_changes(&self) -> bool {
        self.waits_for("LogicalApplyMain")
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Clients {
    /// Sessions with a query that runs.
    pub active: u64,
    /// Sessions with a query that runs and waits for nothing.
    pub running: u64,
    /// Sessions that wait for a synchronous replica.
    pub awaiting_sync: u64,
    /// Sessions with the oldest transactions, oldest first.
    pub oldest: Vec<Session>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Session {
    pub pid: u32,
    pub user: Option<String>,
    pub database: Option<String>,
    /// `active`, `idle in transaction`, ...
    pub state: Option<String>,
    /// Time since its transaction began.
    pub xact_age_ms: Option<f64>,
    /// Age of its snapshot, in transactions.
    pub xmin_age: Option<i64>,
    /// Age of its transaction's number, in transactions; None if it has not written.
    pub xid_age: Option<i64>,
    /// The wait event.
    pub wait: Option<String>,
    /// The query that runs or ran last, shortened.
    pub query: String,
}

impl Session {
    /// Its transaction has written.
    pub fn has_xid(&self) -> bool {
        self.xid_age.is_some()
    }

    /// Age, in transactions, of the oldest rows that it keeps.
    pub fn holds(&self) -> Option<i64> {
        self.xmin_age.max(self.xid_age)
    }
}

/// A row of `pg_prepared_xacts`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Prepared {
    /// The name that it was prepared under.
    pub gid: String,
    pub owner: Option<String>,
    pub database: Option<String>,
    /// Age of its number, in transactions.
    pub xid_age: Option<i64>,
    /// Time since it was prepared.
    pub age_ms: Option<f64>,
}

/// All that is in `pg_wal`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct WalFolder {
    pub files: u64,
    pub bytes: u64,
}

/// The row of `pg_stat_archiver`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Archiver {
    pub archived_count: u64,
    pub failed_count: u64,
    /// The segment that could not be archived most recently.
    pub last_failed_wal: Option<String>,
    /// Time since the last segment was archived.
    pub archived_age_ms: Option<f64>,
    /// Time since the last failure.
    pub failed_age_ms: Option<f64>,
}

/// Sums over `pg_stat_database_conflicts`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Conflicts {
    pub snapshot: u64,
    pub lock: u64,
    pub bufferpin: u64,
    pub deadlock: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Bytes of WAL generated.
    pub wal_bytes: Option<f64>,
    /// Whole pages in that WAL.
    pub page_images: u64,
    pub checkpoints: u64,
    /// Look-ups of a subtransaction's parent.
    pub subtransaction_lookups: u64,
    /// From 16 on.
    pub io: Vec<Io>,
}

/// Sums over `pg_stat_io` for one kind of process.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Io {
    pub backend_type: BackendType,
    pub reads: f64,
    /// Milliseconds in reads; 0 unless `track_io_timing` is on.
    pub read_time_ms: f64,
    pub fsyncs: f64,
    /// Milliseconds in flushes.
    pub fsync_time_ms: f64,
}

/// What the views of extension lockstep say on a standby.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Extension {
    /// Age of the oldest WAL that is received and not replayed.
    pub lag_ms: Option<f64>,
    /// Number of times that replay was seen waiting for a query.
    pub conflicts: u64,
    /// Queries that the throttle has let in.
    pub running: u64,
    /// Queries that wait at the throttle.
    pub waiting: u64,
    /// Most queries that the throttle lets in at once.
    pub concurrency_limit: u64,
    /// Sessions with low priority.
    pub demoted: u64,
    /// How priorities are lowered; `none` if they are not.
    pub method: Option<String>,
}

impl Sample {
    /// The end of WAL that others can get from this node. On a primary: what is flushed. On a
    /// standby: what is received, or what is replayed if nothing was streamed. Of a relay: the
    /// latest end of its groups.
    pub fn end(&self) -> Option<Lsn> {
        self.wal
            .flush
            .or_else(|| self.wal.receive.max(self.wal.replay))
            .or_else(|| self.relay.as_ref()?.end())
    }

    /// The end of one of a relay's groups, or of a server if no group is given.
    pub fn end_of(&self, group: Option<&str>) -> Option<Lsn> {
        match group {
            Some(group) => self.relay.as_ref()?.group(group)?.end(),
            None => self.end(),
        }
    }

    /// The position up to which a new query sees changes.
    pub fn visible(&self) -> Option<Lsn> {
        self.wal.flush.or(self.wal.replay)
    }

    /// The first process of a type; the types that are asked for have one process each.
    pub fn process(&self, backend_type: &BackendType) -> Option<&Process> {
        self.processes
            .iter()
            .find(|process| process.backend_type == *backend_type)
    }

    pub fn process_of(&self, pid: u32) -> Option<&Process> {
        self.processes.iter().find(|process| process.pid == pid)
    }

    /// The walsender with this process id.
    pub fn sender(&self, pid: u32) -> Option<&Sender> {
        self.senders.iter().find(|sender| sender.pid == pid)
    }

    pub fn slot(&self, name: &str) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.slot_name == name)
    }

    pub fn decoding(&self, slot: &str) -> Option<&Decoding> {
        self.decoding.iter().find(|row| row.slot_name == slot)
    }

    /// The replica that a slot of its source was made for.
    pub fn replica_of(&self, slot: &str) -> Option<&Replica> {
        self.replicas.iter().find(|replica| replica.slot == slot)
    }

    pub fn subscription(&self, name: &str) -> Option<&Subscription> {
        self.subscriptions.iter().find(|row| row.name == name)
    }
}
