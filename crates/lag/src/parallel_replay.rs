//! Replay by several processes on a standby (`lockstep.replay_workers`): what extension lockstep
//! says of it at one moment.

use serde::{Deserialize, Serialize};

/// Longest text of a server that is shown, in characters.
const MOST_TEXT: usize = 200;

/// What the extension's views say at one moment. Counters begin with the server's start, or with
/// a reset.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct ParallelReplay {
    /// The extension's own words: `yes`, with or without details, or why not.
    pub parallel: String,
    /// Replay helpers that are there.
    pub helpers: u64,
    pub records: u64,
    /// Records that helpers might execute before their turn.
    pub dispatched: u64,
    /// Records that a helper had done when their turn came.
    pub done_by_helpers: u64,
    /// Records that the startup process replayed at their turn for their kind.
    pub inline_kind: u64,
    /// Records that the startup process replayed at their turn for a block that did not exist yet.
    pub inline_missing: u64,
    /// Records that the startup process replayed at their turn for the visibility map.
    pub inline_map: u64,
    /// Records that the startup process replayed at their turn for having many blocks.
    pub inline_large: u64,
    /// Records that were read only when their turn came, and could have run ahead otherwise.
    pub inline_late: u64,
    /// Records that no later one overtook: files and relations.
    pub barriers_ddl: u64,
    /// Records that no later one overtook: checkpoints and other changes of state.
    pub barriers_checkpoint: u64,
    /// Records that no later one overtook: all other kinds.
    pub barriers_other: u64,
    /// Records retired, in the order of the WAL, while records could run ahead.
    pub retired: u64,
    /// Records in the queue after the one that is being replayed.
    pub record_distance: u64,
    /// Bytes of WAL from the replay position to the end of these.
    pub wal_distance: u64,
    /// Records that helpers took and left to the startup process.
    pub given_back: u64,
    /// Bytes of WAL that helpers executed.
    pub helper_bytes: u64,
    /// Records that helpers have taken and not executed, or will try again.
    pub queue_depth: u64,
    /// Names of the wait events of helpers at the moment, with commas; empty if all run.
    pub helper_waits: String,
    /// Milliseconds that the startup process slept until a helper had finished a record.
    pub startup_wait_ms: f64,
    /// Milliseconds of `startup_wait_ms` while the helper ran or waited for a core.
    pub startup_wait_cpu_ms: f64,
    /// Milliseconds of `startup_wait_ms` while the helper waited for storage.
    pub startup_wait_io_ms: f64,
    /// Milliseconds of `startup_wait_ms` while the helper waited for a lock, a pin or anything
    /// else.
    pub startup_wait_lock_ms: f64,
    /// Milliseconds that helpers waited for an earlier record, summed over helpers.
    pub helper_wait_ms: f64,
}

impl ParallelReplay {
    pub fn is_parallel(&self) -> bool {
        self.parallel == "yes" || self.parallel.starts_with("yes:")
    }

    /// Whether replay is parallel, and why not, cut to a length that can be shown.
    pub fn reason(&self) -> String {
        match self.parallel.as_str() {
            "" => "not known".to_owned(),
            words => cut(words),
        }
    }
}

pub(crate) fn cut(text: &str) -> String {
    text.chars().take(MOST_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut() {
        let said = ParallelReplay {
            parallel: "é".repeat(1_000),
            ..ParallelReplay::default()
        };
        assert_eq!(said.reason().chars().count(), MOST_TEXT);
    }
}
