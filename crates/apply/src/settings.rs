//! What a replica is told when it starts: servers, names, memory, writers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockstep_client::{Connection, Conninfo};

use crate::crew::Writers;

/// Memory for changes unless the settings say otherwise, in bytes.
pub const MEMORY: usize = 256 * 1024 * 1024;

/// Least memory for changes.
pub const LEAST_MEMORY: usize = 1024 * 1024;

/// Pauses between attempts to connect.
pub const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
pub const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A replica's publication as it should be on the source.
pub trait Published: fmt::Debug + Send + Sync {
    /// What is not as it should be, in words with what to do; None if nothing is.
    fn altered(&self, source: &mut Connection) -> lockstep_client::Result<Option<String>>;
}

/// The lock that a process has on its replica, in a session of its own on the target.
pub trait Taken: fmt::Debug + Send + Sync {
    /// Why this process does not have the lock, in words; None if it has. `target` is another session there.
    fn lost(&self, target: &mut Connection) -> lockstep_client::Result<Option<String>>;
}

/// What to apply, and where.
#[derive(Debug, Clone)]
pub struct Settings {
    pub source: Conninfo,
    pub target: Conninfo,
    /// The slot on the source, with plugin pgoutput.
    pub slot: String,
    pub publications: Vec<String>,
    /// Changes of the source's schema are followed: its event triggers write them into the stream.
    pub ddl: bool,
    /// What the replica's publication should be; None if nobody minds.
    pub published: Option<Arc<dyn Published>>,
    /// The lock under which changes are applied; None if nobody minds.
    pub taken: Option<Arc<dyn Taken>>,
    /// The name of each replication origin on the target begins so; the replica owns them.
    pub origin: String,
    /// How many connections change the target at the same time.
    pub writers: Writers,
    /// The replica in the target's state, which keeps positions and counts the rows that are missing.
    pub replica: String,
    /// The name by which the source knows the replica, in `synchronous_standby_names` too.
    pub application_name: String,
    /// Memory for changes that are received and not applied, in bytes. A single row can need
    /// more.
    pub memory: usize,
}

impl Settings {
    /// Where the source is, without secrets.
    pub fn source_shown(&self) -> String {
        self.source.clone().without_secrets().to_string()
    }
}
