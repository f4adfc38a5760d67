//! Replay by several processes on a standby over a window, and one line about it.

use lockstep_service::words::figures::{bytes, percent};
use serde::Serialize;

use crate::figures::ratio;
use crate::parallel_replay::{ParallelReplay, cut};
use crate::window::NodeWindow;

/// What a standby says of replay by several processes, over a window.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ParallelReport {
    /// The report in the newest sample.
    #[serde(flatten)]
    pub now: ParallelReplay,
    /// The share of the records replayed that a helper had done; None if none were replayed.
    pub ahead_share: Option<f64>,
    /// The share of the time in which the startup process slept for a helper.
    pub startup_wait_share: f64,
    /// The share of a helper's time in which it waited for an earlier record.
    pub helper_wait_share: f64,
    /// All that in one line.
    pub words: String,
}

impl ParallelReport {
    /// None if the newest sample says nothing of it.
    pub fn of(node: &NodeWindow) -> Option<Self> {
        let to = node.last()?;
        let now = to.parallel_replay.clone()?;
        let from = node.samples.iter().find(|s| s.parallel_replay.is_some())?;
        let before = from.parallel_replay.as_ref()?;
        let ms = to.at.saturating_sub(from.at).as_secs_f64() * 1000.0;
        let records = now.records.saturating_sub(before.records);
        let ahead = now.done_by_helpers.saturating_sub(before.done_by_helpers);
        let share = |part: f64, all: f64| ratio(part, all).clamp(0.0, 1.0);
        let mut report = Self {
            ahead_share: (records > 0).then(|| share(ahead as f64, records as f64)),
            startup_wait_share: share(now.startup_wait_ms - before.startup_wait_ms, ms),
            helper_wait_share: share(
                now.helper_wait_ms - before.helper_wait_ms,
                ms * now.helpers.max(1) as f64,
            ),
            words: String::new(),
            now,
        };
        report.words = report.in_words();
        Some(report)
    }

    fn in_words(&self) -> String {
        let mut words = self.now.reason();
        let ahead = self.ahead_share.unwrap_or(0.0);
        if !self.now.is_parallel() && ahead == 0.0 {
            return words;
        }
        if self.now.is_parallel() {
            words.push_str(&match self.now.helpers {
                1 => "; 1 helper".to_owned(),
                helpers => format!("; {helpers} helpers"),
            });
        }
        words.push_str(&format!(
            "; {} of records done ahead; waits: startup process {}, helpers {}",
            percent(ahead),
            percent(self.startup_wait_share),
            percent(self.helper_wait_share)
        ));
        words.push_str(&self.at_the_moment());
        words
    }

    fn at_the_moment(&self) -> String {
        let mut words = String::new();
        if self.now.record_distance > 0 {
            words.push_str(&format!(
                "; ahead now: {} records, {}",
                self.now.record_distance,
                bytes(self.now.wal_distance as f64)
            ));
        }
        if !self.now.helper_waits.is_empty() {
            words.push_str("; helpers wait now for ");
            words.push_str(&cut(&self.now.helper_waits));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Role, Sample};

    /// A window of 10 s, at whose ends the views say this.
    fn window(says: [Option<ParallelReplay>; 2]) -> NodeWindow {
        let mut node = NodeWindow::empty("standby", Role::Standby);
        for (seconds, parallel_replay) in [0, 10].into_iter().zip(says) {
            node.keep(Sample {
                at: Duration::from_secs(seconds),
                parallel_replay,
                ..Sample::default()
            });
        }
        node
    }

    fn says(parallel: &str, helpers: u64, records: u64, done_by_helpers: u64) -> ParallelReplay {
        ParallelReplay {
            parallel: parallel.to_owned(),
            helpers,
            records,
            done_by_helpers,
            ..ParallelReplay::default()
        }
    }

    #[test]
    fn one_line_says_why_and_how_much() {
        let waits = |said: ParallelReplay, startup_wait_ms, helper_wait_ms| ParallelReplay {
            startup_wait_ms,
            helper_wait_ms,
            ..said
        };
        for (before, now, words) in [
            (
                says("yes", 1, 1_000, 500),
                waits(says("yes", 1, 2_000, 1_130), 200.0, 500.0),
                "yes; 1 helper; 63 % of records done ahead; waits: startup process 2 %, helpers 5 %",
            ),
            (
                says("no: it has rested", 0, 0, 0),
                waits(says("yes: with fewer", 2, 1_000, 250), 0.0, 2_000.0),
                "yes: with fewer; 2 helpers; 25 % of records done ahead; waits: startup process 0 %, \
                 helpers 10 %",
            ),
            (
                says("yes", 1, 0, 0),
                says("no: too little waits", 1, 1_000, 500),
                "no: too little waits; 50 % of records done ahead; waits: startup process 0 %, \
                 helpers 0 %",
            ),
            (
                says("no: a pause is requested", 0, 100, 90),
                says("no: a pause is requested", 0, 200, 90),
                "no: a pause is requested",
            ),
            (
                says("yes", 1, 1_000, 500),
                ParallelReplay {
                    record_distance: 480,
                    wal_distance: 96 * 1024,
                    helper_waits: "DataFileRead, LockstepReplayQueue".to_owned(),
                    ..says("yes", 2, 2_000, 1_500)
                },
                "yes; 2 helpers; 100 % of records done ahead; waits: startup process 0 %, helpers 0 %; \
                 ahead now: 480 records, 96 kB; helpers wait now for DataFileRead, LockstepReplayQueue",
            ),
            // A server of a later version, or one that says nothing that makes sense.
            (says("", 0, 0, 0), says("", 0, 0, 0), "not known"),
        ] {
            let report = ParallelReport::of(&window([Some(before), Some(now)])).unwrap();
            assert_eq!(report.words, words);
        }
    }

    #[test]
    fn what_was_reset_meanwhile_is_no_share() {
        let (mut before, mut now) = (says("yes", 1, 9_000, 8_000), says("yes", 1, 10, 9));
        before.startup_wait_ms = 500.0;
        let report = ParallelReport::of(&window([Some(before.clone()), Some(now.clone())]));
        let report = report.unwrap();
        assert_eq!((report.ahead_share, report.startup_wait_share), (None, 0.0));
        // Of counters that are published one after the other the second may be ahead.
        (now.records, now.done_by_helpers) = (9_100, 8_200);
        let report = ParallelReport::of(&window([Some(before), Some(now)])).unwrap();
        assert_eq!(report.ahead_share, Some(1.0));
    }

    #[test]
    fn a_server_that_says_nothing_has_no_report() {
        let said = Some(says("yes", 1, 1, 1));
        assert_eq!(ParallelReport::of(&window([None, None])), None);
        assert_eq!(ParallelReport::of(&window([said.clone(), None])), None);
        let report = ParallelReport::of(&window([None, said])).unwrap();
        assert_eq!((report.ahead_share, report.startup_wait_share), (None, 0.0));
    }
}
