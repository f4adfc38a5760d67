//! The cluster's history: what was flushed when, on which timeline.

use std::sync::Arc;

use lockstep_client::Switch;
use lockstep_wire::Timeline;

#[derive(Debug, Clone, Copy)]
struct Flush {
    at_ms: u64,
    lsn: u64,
}

/// The history that the cluster has now. A failover takes back what was not replicated.
#[derive(Debug)]
pub struct Cluster {
    flushes: Vec<Flush>,
    pub timeline: Timeline,
    /// Where the present timeline began.
    pub fork: u64,
    history: Vec<Switch>,
}

impl Cluster {
    pub fn new() -> Self {
        let first = Flush {
            at_ms: 0,
            lsn: 1000,
        };
        Self {
            flushes: vec![first],
            timeline: Timeline::FIRST,
            fork: 0,
            history: Vec::new(),
        }
    }

    /// The timelines before the present one.
    pub fn history(&self) -> Arc<[Switch]> {
        self.history.as_slice().into()
    }

    pub fn flushed(&self) -> u64 {
        self.flushes.last().unwrap().lsn
    }

    /// The position that was flushed at a moment.
    pub fn flushed_at(&self, at_ms: u64) -> u64 {
        let flushed = self.flushes.iter().take_while(|flush| flush.at_ms <= at_ms);
        flushed.last().map_or(0, |flush| flush.lsn)
    }

    pub fn write(&mut self, at_ms: u64, bytes: u64) {
        let lsn = self.flushed() + bytes;
        self.flushes.push(Flush { at_ms, lsn });
    }

    /// Another server is the primary now; the newest `lost` bytes are no part of its history.
    pub fn fail_over(&mut self, lost: u64) {
        let fork = self.flushed().saturating_sub(lost).max(self.fork);
        let crossing = self.flushes.partition_point(|flush| flush.lsn < fork);
        self.flushes.truncate(crossing + 1);
        self.flushes.last_mut().unwrap().lsn = fork;
        self.history.push(Switch {
            timeline: self.timeline,
            at: fork.into(),
        });
        self.timeline = Timeline::new(self.timeline.get() + 1).unwrap();
        self.fork = fork;
    }

    /// How old the data is of a node that has replayed up to `shown` of this history: the time since the
    /// oldest flush that it lacks.
    pub fn staleness(&self, now_ms: u64, shown: u64) -> u64 {
        let lacking = self.flushes.partition_point(|flush| flush.lsn <= shown);
        let oldest = self.flushes.get(lacking);
        oldest.map_or(0, |flush| now_ms - flush.at_ms)
    }
}
