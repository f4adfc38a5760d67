//! What the relay counts: filled in by [`crate::relay`], shown by the console, the metrics
//! and `lockstep relay status`.

use lockstep_wire::Lsn;
use serde::Serialize;

/// Bytes of the stream that count as one block.
pub const BLOCK: u64 = 8192;

/// What a group does, as console and metrics name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GroupState {
    /// The group receives: the state of one that does what it should.
    Streaming,
    /// The group looks for the primary, or asks it for the stream.
    #[default]
    Connecting,
    /// The spool is full, and the primary waits.
    Waiting,
    /// The primary refused, or going on would lose something; it is tried again.
    Failed,
}

impl GroupState {
    /// All states. Each is a series of the metrics, so that none vanishes between scrapes.
    pub const ALL: [Self; 4] = [
        Self::Streaming,
        Self::Connecting,
        Self::Waiting,
        Self::Failed,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Streaming => "streaming",
            Self::Connecting => "connecting",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
        }
    }
}

/// What a session does, as console and metrics name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClientState {
    /// The primary answers it; every session begins so.
    #[default]
    PassedThrough,
    /// The client is sent a slot's stream.
    Streaming,
    /// The client talks to the console.
    Console,
}

impl ClientState {
    /// All states. Each is a series of the metrics, so that none vanishes between scrapes.
    pub const ALL: [Self; 3] = [Self::PassedThrough, Self::Streaming, Self::Console];

    pub const fn name(self) -> &'static str {
        match self {
            Self::PassedThrough => "passed through",
            Self::Streaming => "streaming",
            Self::Console => "console",
        }
    }
}

impl Serialize for GroupState {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Serialize for ClientState {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Everything at one moment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Snapshot {
    /// Upstream groups, by name.
    pub groups: Vec<GroupStat>,
    /// Slots of subscribers, by name.
    pub slots: Vec<SlotStat>,
    /// Sessions, by number.
    pub clients: Vec<ClientStat>,
}

/// One upstream slot and its log.
#[derive(Debug, Clone, Default, Serialize)]
pub struct GroupStat {
    pub name: String,
    /// The slot on the primary.
    pub upstream_slot: String,
    pub database: String,
    /// Publications, sorted.
    pub publications: Vec<String>,
    /// Output plugin, `lockstep` or `pgoutput`.
    pub plugin: String,
    pub state: GroupState,
    /// The health check fails while it does not stream: it is configured, or damaged.
    #[serde(skip)]
    pub watched: bool,
    /// Why it failed or waits; empty if it does not.
    pub reason: String,
    /// Host and port of the primary it is connected to; empty if to none.
    pub primary: String,
    /// Where the primary's WAL ended when it was last heard.
    pub sent: Lsn,
    /// How far the stream was received: the end of the last transaction, or a later position
    /// up to which there is none.
    pub received: Lsn,
    /// End of the last transaction received.
    pub committed: Lsn,
    /// Durable in the spool, and confirmed to the primary.
    pub durable: Lsn,
    /// Oldest position that is in memory; `0/0` if none is.
    pub oldest_cached: Lsn,
    /// Oldest position that is in the spool.
    pub oldest_spooled: Lsn,
    pub cache_bytes: u64,
    pub cache_limit_bytes: u64,
    pub spool_bytes: u64,
    /// Most bytes on disk; 0 is no limit.
    pub spool_limit_bytes: u64,
    /// Transactions received since the relay started.
    pub transactions: u64,
    /// Bytes of the stream received since the relay started.
    pub received_bytes: u64,
}

/// One subscriber's slot.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SlotStat {
    pub name: String,
    pub database: String,
    pub group: String,
    /// Process number of the session that uses it, as clients see it.
    pub active_pid: Option<u32>,
    /// Why it can never go on; empty if it can.
    pub reason: String,
    /// Sent to the subscriber.
    pub sent: Lsn,
    /// Received by the subscriber, as it said.
    pub written: Lsn,
    /// Applied by the subscriber, as it said; not durable there, perhaps.
    pub applied: Lsn,
    /// Confirmed by the subscriber: durable there.
    pub confirmed: Lsn,
    /// Bytes of the log between what the subscriber was sent, or, while it is not connected, has confirmed,
    /// and its end; off by less than a segment of the spool.
    pub behind_bytes: u64,
    /// Blocks served from memory since the last reset.
    pub cache_hit: u64,
    /// Blocks served from the spool since the last reset.
    pub cache_miss: u64,
    /// Last reset of the two, microseconds since 1970.
    pub last_reset_unix_us: i64,
}

impl SlotStat {
    /// Blocks handed to the subscriber since the last reset.
    pub fn blks_read(&self) -> u64 {
        self.cache_hit + self.cache_miss
    }
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct ClientStat {
    /// The relay's number of it.
    pub id: u64,
    /// Process number as the client sees it.
    pub pid: u32,
    pub user: String,
    pub database: String,
    pub application_name: String,
    /// Address; empty for a Unix socket.
    pub address: String,
    pub state: ClientState,
    /// The slot it streams from; empty if none.
    pub slot: String,
    /// The OID of its role, once it has asked for a stream; not shown.
    #[serde(skip)]
    pub role_oid: Option<u32>,
    /// Since when, microseconds since 1970.
    pub since_unix_us: i64,
}

/// What a reset did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// The statistics of one slot, or of all, start again from zero.
    Done,
    /// There is no such slot.
    NoSuchSlot,
}

/// What the console asks of the relay.
pub trait Source: Send + Sync + 'static {
    /// Everything now.
    fn snapshot(&self) -> Snapshot;
    /// Configuration in force: name, value, where it comes from.
    fn config(&self) -> Vec<(String, String, String)>;
    /// Begins the statistics of a slot, or of all, anew.
    fn reset(&self, slot: Option<&str>) -> Reset;
    /// Drops a slot. An error is for the user: SQLSTATE and what happened.
    fn drop_slot(&self, slot: &str) -> Result<(), (&'static str, String)>;
    /// Ends a session, by its number. An error is for the user.
    fn terminate(&self, id: u64) -> Result<(), String>;
    /// Reads the configuration file again: what was changed, or why it cannot be used.
    fn reload(&self) -> Result<Vec<String>, String>;
    /// The role, besides superusers, that may drop slots and reload; None if there is none.
    fn admin_role(&self) -> Option<String>;
}
