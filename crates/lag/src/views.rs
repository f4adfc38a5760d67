//! What a server's views say: rows, with the columns that [`crate::questions`] asks for.

use std::collections::BTreeMap;

use lockstep_wire::{Lsn, Timeline};
use serde::{Deserialize, Serialize};

use crate::process_cpu::Cpu;
use crate::source::Publisher;
use crate::states::{
    BackendType, ReceiverStatus, SenderState, SlotType, SyncPhase, SyncState, SynchronousCommit,
    WaitType, WalStatus,
};

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
    pub sent_lsn: Option<Lsn>,
    /// Written to the operating system of the standby; by a subscriber: received.
    pub write_lsn: Option<Lsn>,
    /// Durable on the standby.
    pub flush_lsn: Option<Lsn>,
    /// Replayed by the standby, applied by the subscriber.
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
    /// When the replica sent its newest reply, by its own clock, in microseconds since 1970.
    pub replied_us: Option<i64>,
    /// Time since the replica connected.
    pub connected_ms: Option<f64>,
    /// True of one that is connected to a database, as who asks for WAL as it is never is.
    pub in_database: bool,
}

/// A row of `pg_replication_slots`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Slot {
    pub slot_name: String,
    pub slot_type: SlotType,
    /// The output plugin of a logical slot; a relay's slots tell none.
    pub plugin: Option<String>,
    /// The database of a logical slot.
    pub database: Option<String>,
    pub temporary: bool,
    pub active: bool,
    /// The walsender that uses the slot.
    pub active_pid: Option<u32>,
    /// Age, in transactions, of the oldest transaction that the slot keeps rows of.
    pub xmin_age: Option<i64>,
    /// The oldest WAL that the slot keeps.
    pub restart_lsn: Option<Lsn>,
    /// Confirmed by the consumer of a logical slot.
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
    pub written_lsn: Option<Lsn>,
    pub flushed_lsn: Option<Lsn>,
    /// The upstream's end in the last message that told it.
    pub latest_end_lsn: Option<Lsn>,
    /// Age of the last message, by this server's clock.
    pub message_age_ms: Option<f64>,
    /// The walreceiver's slot on the upstream.
    pub slot_name: Option<String>,
    /// Host of the upstream.
    pub sender_host: Option<String>,
    pub sender_port: Option<u32>,
    /// The walreceiver's `application_name` on the upstream.
    pub application_name: Option<String>,
}

/// A subscription and its apply worker.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Subscription {
    pub name: String,
    /// The subscription's number (OID), with which the names of workers that copy its tables begin.
    pub id: u32,
    pub enabled: bool,
    /// An error of its worker disables it.
    pub disable_on_error: bool,
    /// The role that it belongs to, if that may not log in.
    pub owner_without_login: Option<String>,
    /// The subscription's slot on the publisher.
    pub slot_name: Option<String>,
    pub synchronous_commit: SynchronousCommit,
    /// The apply worker, while it runs.
    pub pid: Option<u32>,
    pub received_lsn: Option<Lsn>,
    /// The publisher's end in the last message that told it.
    pub latest_end_lsn: Option<Lsn>,
    /// Age of the last message, by this server's clock.
    pub message_age_ms: Option<f64>,
    /// Number of tables that are not synchronised yet.
    pub unsynced_tables: u64,
    /// The first of those tables.
    pub unsynced: Vec<Unsynced>,
    /// Errors of its workers that copy tables, since the statistics began.
    pub sync_errors: u64,
    /// Errors of its worker since the statistics began.
    pub apply_errors: u64,
    /// The table that most rows were read of, among the subscription's tables without an index that
    /// leads to a row.
    pub searched: Option<Searched>,
}

impl Subscription {
    /// True if the apply worker is there, and has had a message from the publisher.
    pub fn receives(&self) -> bool {
        self.pid.is_some() && self.received_lsn.is_some()
    }
}

/// A table that a subscription has not synchronised yet: a row of `pg_subscription_rel`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Unsynced {
    /// `schema.table`, quoted where SQL needs it.
    pub table: String,
    /// `srsubstate`
    pub state: SyncPhase,
    /// The worker that copies it, while one does.
    pub pid: Option<u32>,
    /// Rows that its worker has copied.
    pub rows: Option<u64>,
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
    /// The lock that it waits for, in words: its mode, and what it is of.
    pub lock: Option<String>,
    /// Prepared transactions that hold it, by gid, if some do.
    pub prepared: Option<Vec<String>>,
    /// CPU of the process, if it runs on this machine.
    #[serde(skip)]
    pub cpu: Option<Cpu>,
}

impl Process {
    /// True if the process waits for an event of this type.
    pub fn waits(&self, kind: &WaitType) -> bool {
        self.wait_type.as_ref() == Some(kind)
    }

    pub fn waits_for(&self, event: &str) -> bool {
        self.wait.as_deref() == Some(event)
    }

    /// True for an apply worker that has applied all that it received.
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
    /// Time since the oldest of their statements began.
    pub awaiting_sync_ms: Option<f64>,
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
    /// True if the session's transaction has written.
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
    /// Where the oldest segment begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest: Option<Lsn>,
}

/// What a server's catalogs and control file say that changes seldom.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Background {
    /// Roles that may ask for WAL, or why they may not, on a primary; None if they were not read, or are
    /// more than are read.
    pub roles: Option<BTreeMap<String, Option<String>>>,
    /// The timeline that a standby has come to.
    pub timeline: Option<Timeline>,
    /// Databases whose collations are of another version than the one that made their indexes.
    pub collations: Vec<Collation>,
    /// Where each subscription of a subscriber's database connects to; empty if the role may not see it.
    pub publishers: BTreeMap<String, Publisher>,
    /// Number of enabled subscriptions of all databases of a subscriber's server.
    pub enabled_subscriptions: Option<u64>,
}

/// Versions of a database's default collation.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Collation {
    /// Quoted where SQL needs it.
    pub database: String,
    /// The version with which its indexes were made, as the database says.
    pub recorded: String,
    /// The version of this machine's library.
    pub actual: String,
}

/// Segments that wait to be archived: `pg_ls_archive_statusdir()`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct ArchiveQueue {
    pub ready: u64,
    /// Time for which the oldest of them has waited.
    pub oldest_ms: Option<f64>,
}

/// The row of `pg_stat_archiver`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Archiver {
    pub archived_count: u64,
    pub failed_count: u64,
    /// Where the segment ends that was archived most recently.
    pub archived_end: Option<Lsn>,
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
    /// Indexes that are being built.
    pub index_builds: u64,
    /// Pages that were read with a wrong checksum; None without checksums.
    pub checksum_failures: Option<u64>,
    /// Databases that have these pages, quoted where SQL needs it; an empty name is that of the catalogs
    /// which all databases share.
    pub damaged: Vec<String>,
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
