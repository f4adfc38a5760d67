//! What answers are made from, and how many may be made at once.

use std::sync::Arc;

use lockstep_lag::monitor::Monitor;
use tokio::sync::{Semaphore, watch};

use crate::feed::News;
use crate::history::Keeper;

/// Most streams of events at once. Connections beyond this are left for metrics and health.
pub const MOST_STREAMS: usize = 32;

/// Most threads that read the history at once.
const MOST_READERS: usize = 2;

/// Everything that answers are made from.
pub struct Site {
    pub news: watch::Receiver<Arc<News>>,
    pub monitor: Arc<Monitor>,
    /// What keeps the history on disk.
    pub keeper: Option<Arc<Keeper>>,
    /// Permits for threads that read from that disk.
    pub readers: Arc<Semaphore>,
    /// True once the server ends.
    pub stopping: watch::Receiver<bool>,
    /// Permits for streams of events.
    pub streams: Arc<Semaphore>,
}

/// Permits for [`MOST_STREAMS`] streams of events.
pub fn streams() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MOST_STREAMS))
}

/// Permits for [`MOST_READERS`] threads that may hang on a disk.
pub fn readers() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MOST_READERS))
}
