//! What answers are made from, and how many may be made at once.

use std::sync::Arc;

use axum::body::Bytes;
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
    /// At least one, in the order of the nodes file.
    pub clusters: Vec<ClusterSite>,
    /// Permits for threads that read from disks.
    pub readers: Arc<Semaphore>,
    /// True once the server ends.
    pub stopping: watch::Receiver<bool>,
    /// Permits for streams of events.
    pub streams: Arc<Semaphore>,
}

/// A cluster that is watched.
pub struct ClusterSite {
    /// None if the nodes file names none.
    pub name: Option<String>,
    pub news: watch::Receiver<Arc<News>>,
    pub monitor: Arc<Monitor>,
    /// What keeps the history on disk.
    pub keeper: Option<Arc<Keeper>>,
    /// What the agents of its pool tell, if they are asked.
    pub pool: Option<watch::Receiver<Bytes>>,
}

impl Site {
    /// The cluster that a request wants by `cluster=NAME`: the first if it names none.
    pub fn cluster(&self, wanted: Option<&str>) -> Result<&ClusterSite, String> {
        let mut clusters = self.clusters.iter();
        let found = match wanted {
            Some(wanted) => clusters.find(|it| it.name.as_deref() == Some(wanted)),
            None => clusters.next(),
        };
        found.ok_or_else(|| {
            let names = self.clusters.iter().filter_map(|it| it.name.as_deref());
            let names: Vec<&str> = names.collect();
            match names.is_empty() {
                true => "the nodes file names no cluster".to_owned(),
                false => format!("there is no such cluster; there are {}", names.join(", ")),
            }
        })
    }
}

/// The value of a parameter of a query. Names of clusters need no percent signs.
pub fn parameter<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    let pairs = query.unwrap_or_default().split('&');
    let mut pairs = pairs.filter_map(|pair| pair.split_once('='));
    pairs
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value)
}

/// Permits for [`MOST_STREAMS`] streams of events.
pub fn streams() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MOST_STREAMS))
}

/// Permits for [`MOST_READERS`] threads that may hang on a disk.
pub fn readers() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(MOST_READERS))
}
