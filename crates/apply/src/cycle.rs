//! When a cycle begins, and where it ends. No I/O, no clock: the time is an argument.
//!
//! A replica with a frequency stands still on the target but for its cycles. A cycle takes everything that
//! the spool has when it begins and moves the target there in one transaction, which also has the cycle's
//! figures.
//!
//! | state | entered | left |
//! |---|---|---|
//! | resting | at the start, and once a cycle is committed | a cycle is due ([`Cycles::rest`]): running |
//! | running, its end known | the driver has said what the spool has ([`Cycles::begin`]) | all of that is taken: closing |
//! | closing | the last part is handed to a writer ([`Cycles::close`]) | that is committed: resting |
//!
//! A hold cuts a cycle short: the first transaction that it holds back is the next cycle's, with all after
//! it, even if the hold is let go or goes elsewhere before the cycle is committed.
//!
//! Nothing of this persists but what the commit has ([`Past`]): a process that dies in a cycle begins that
//! cycle again, under its number.
//!
//! A cycle is due one frequency after the beginning of the one before. If that one took longer, the next
//! begins at once; cycles that were missed are not made up for.

use std::time::{Duration, Instant};

use lockstep_wire::Lsn;

use crate::batch::{Closing, Counts};

/// Shortest frequency: the process writes how it stands once a second, and a cycle has a commit on disk.
pub const LEAST_FREQUENCY: Duration = Duration::from_secs(1);

/// Longest frequency: the spool has all changes of such a time.
pub const MOST_FREQUENCY: Duration = Duration::from_secs(30 * 24 * 3600);

/// Time after which a source that says nothing is one from which nothing comes: it is asked every second.
pub const SILENT_AFTER: Duration = Duration::from_secs(10);

/// What the target's state says of the cycles before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Past {
    /// The newest cycle that is committed; 0 if none is.
    pub number: u64,
    /// Time since its beginning, and how long it took.
    pub since: Option<Duration>,
    pub took: Duration,
    /// Requests for a cycle that had been made when it began.
    pub forces: u64,
}

/// A cycle that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Running {
    pub number: u64,
    pub began: Instant,
    pub forces: u64,
    /// Where the target stood, and where it is going.
    pub from: Lsn,
    pub end: Lsn,
    pub sent_bytes: u64,
    /// Everything before is made in the open transaction.
    pub made: Lsn,
    /// Changes and bytes that no commit has left in the target.
    counts: Counts,
    unshared: u64,
    is_closing: bool,
}

impl Running {
    /// What the next commit leaves in the target.
    fn share(&mut self, tables: u64) -> Closing {
        Closing {
            number: self.number,
            began: self.began,
            forces: self.forces,
            counts: std::mem::take(&mut self.counts),
            sent_bytes: std::mem::take(&mut self.unshared),
            tables,
        }
    }

    /// Time until its end, as far as it went so far. None before a part of it is made.
    pub fn remaining(&self, now: Instant) -> Option<Duration> {
        let all = self.end.bytes_since(self.from) as f64;
        let made = self
            .made
            .bytes_since(self.from)
            .min(self.end.bytes_since(self.from)) as f64;
        let elapsed = now.saturating_duration_since(self.began);
        (made > 0.0).then(|| elapsed.mul_f64(((all - made) / made).max(0.0)))
    }
}

/// A replica's cycles.
#[derive(Debug, Clone)]
pub struct Cycles {
    every: Duration,
    number: u64,
    /// Beginning of the newest one, and how long it took.
    began: Option<Instant>,
    took: Duration,
    /// Requests that it has answered.
    forces: u64,
    running: Option<Running>,
}

/// What can make a cycle due before its time, or keep it from beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asked {
    /// Requests for a cycle, all that were ever made.
    pub forces: u64,
    /// The spool takes nothing more in.
    pub is_full: bool,
    /// Whether the source has something new is not known: the spool has heard nothing from it for
    /// [`SILENT_AFTER`], or the source has said that it has more than the spool.
    pub is_unsure: bool,
    /// Somebody holds the replica at a position, and waits until it is there (true) or has what it wants.
    pub hold: Option<bool>,
}

impl Cycles {
    pub fn new(every: Duration, past: Past, now: Instant) -> Self {
        Self {
            every,
            number: past.number,
            // A time before the clock began is long ago.
            began: past.since.and_then(|since| now.checked_sub(since)),
            took: past.took,
            forces: past.forces,
            running: None,
        }
    }

    pub fn every(&self) -> Duration {
        self.every
    }

    pub fn running(&self) -> Option<&Running> {
        self.running.as_ref()
    }

    /// The last part of the cycle is with a writer.
    pub fn is_closing(&self) -> bool {
        self.running.is_some_and(|running| running.is_closing)
    }

    /// Time until the next cycle by the frequency alone.
    pub fn until_next(&self, now: Instant) -> Duration {
        let next = self.began.map(|began| began + self.every);
        next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now))
    }

    /// From when on the target is later than its cycles let expect: right before a cycle ends it is as old
    /// as the frequency and as a cycle takes. None before the first has ended.
    pub fn late_from(&self) -> Option<Instant> {
        Some(self.began? + self.every + self.took)
    }

    /// Time until the next cycle is to begin; None as long as it may not.
    pub fn rest(&self, asked: Asked, now: Instant) -> Option<Duration> {
        match asked.hold {
            Some(false) => None,
            Some(true) => Some(Duration::ZERO),
            None if asked.is_full || asked.forces > self.forces => Some(Duration::ZERO),
            None => Some(self.until_next(now)),
        }
    }

    /// Begins a cycle that ends at what the spool has. False if it is not due any more, or if that is
    /// nothing new: the cycle would only repeat the one before, unless it is due by its frequency or a
    /// request. A cycle with nothing new says that the source has nothing new, which is not known of a
    /// source that says nothing, that has more than the spool, or of which nothing more is taken.
    pub fn begin(&mut self, stands: Lsn, received: Lsn, asked: Asked, now: Instant) -> bool {
        let is_forced = asked.forces > self.forces;
        let is_due = is_forced || self.until_next(now).is_zero();
        let is_due = is_due && !asked.is_unsure && !asked.is_full;
        let is_repeated = received <= stands && (!is_due || asked.hold.is_some());
        if is_repeated || self.rest(asked, now) != Some(Duration::ZERO) {
            return false;
        }
        self.running = Some(Running {
            number: self.number + 1,
            began: now,
            forces: asked.forces,
            from: stands,
            end: received.max(stands),
            sent_bytes: 0,
            made: stands,
            counts: Counts::default(),
            unshared: 0,
            is_closing: false,
        });
        true
    }

    /// Where transactions begin that are the next cycle's.
    pub fn end(&self) -> Option<Lsn> {
        self.running.map(|running| running.end)
    }

    /// A message of the cycle was taken.
    pub fn took(&mut self, bytes: u64) {
        if let Some(running) = &mut self.running {
            running.sent_bytes += bytes;
            running.unshared += bytes;
        }
    }

    /// A part of the cycle was handed to a writer.
    pub fn handed(&mut self, counts: &Counts) {
        if let Some(running) = &mut self.running {
            running.counts.add(counts);
        }
    }

    /// A part of the cycle, which ends here, is made.
    pub fn made(&mut self, lsn: Lsn) {
        if let Some(running) = &mut self.running {
            running.made = running.made.max(lsn);
        }
    }

    /// A transaction of a cycle that has failed is about to be handed to a writer, for a commit of its own:
    /// what it leaves in the target.
    pub fn share(&mut self, tables: u64) -> Option<Closing> {
        Some(self.running.as_mut()?.share(tables))
    }

    /// The last part is about to be handed to a writer: what it leaves in the target.
    pub fn close(&mut self, tables: u64) -> Option<Closing> {
        let running = self.running.as_mut()?;
        running.is_closing = true;
        Some(running.share(tables))
    }

    pub fn committed(&mut self, now: Instant) {
        if let Some(running) = self.running.take() {
            self.number = running.number;
            self.began = Some(running.began);
            self.took = now.saturating_duration_since(running.began);
            self.forces = running.forces;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const SECOND: Duration = Duration::from_secs(1);

    fn after(past: Past, now: Instant) -> Cycles {
        Cycles::new(MINUTE, past, now)
    }

    fn past(since: u64) -> Past {
        Past {
            number: 4,
            since: Some(Duration::from_secs(since)),
            took: 2 * SECOND,
            forces: 2,
        }
    }

    fn calm() -> Asked {
        Asked {
            forces: 2,
            ..Asked::default()
        }
    }

    #[test]
    fn the_first_cycle_is_due_at_once_and_others_one_frequency_after_the_one_before() {
        let now = Instant::now();
        assert_eq!(
            after(Past::default(), now).rest(Asked::default(), now),
            Some(Duration::ZERO)
        );
        let cycles = after(past(20), now);
        assert_eq!(cycles.rest(calm(), now), Some(40 * SECOND));
        assert_eq!(cycles.rest(calm(), now + 40 * SECOND), Some(Duration::ZERO));
        assert_eq!(after(past(60), now).rest(calm(), now), Some(Duration::ZERO));
        // The target's clock was set forward.
        assert_eq!(
            after(past(u64::MAX), now).rest(calm(), now),
            Some(Duration::ZERO)
        );
    }

    #[test]
    fn after_a_cycle_that_took_longer_the_next_begins_at_once_and_none_is_made_up_for() {
        let now = Instant::now();
        let mut cycles = after(Past::default(), now);
        assert!(cycles.begin(10.into(), 20.into(), Asked::default(), now));
        let late = now + 5 * MINUTE;
        cycles.committed(late);
        assert_eq!(cycles.rest(Asked::default(), late), Some(Duration::ZERO));
        assert!(cycles.begin(20.into(), 30.into(), Asked::default(), late));
        cycles.committed(late);
        let rest = cycles.rest(Asked::default(), late + SECOND);
        assert_eq!(rest, Some(59 * SECOND), "four were missed, and one came");
    }

    #[test]
    fn a_request_is_answered_by_a_cycle_that_begins_after_it() {
        let now = Instant::now();
        let mut cycles = after(past(1), now);
        let asked = |forces| Asked { forces, ..calm() };
        assert_eq!(cycles.rest(asked(3), now), Some(Duration::ZERO));
        assert!(
            cycles.begin(10.into(), 10.into(), asked(3), now),
            "although nothing is new"
        );
        // Another comes while it runs.
        cycles.committed(now);
        assert_eq!(cycles.rest(asked(3), now), Some(MINUTE));
        assert_eq!(cycles.rest(asked(4), now), Some(Duration::ZERO));
    }

    #[test]
    fn a_full_spool_begins_a_cycle_if_that_makes_room() {
        let now = Instant::now();
        let mut cycles = after(past(1), now);
        let full = Asked {
            is_full: true,
            ..calm()
        };
        assert_eq!(cycles.rest(full, now), Some(Duration::ZERO));
        assert!(
            !cycles.begin(10.into(), 10.into(), full, now),
            "one transaction is too large"
        );
        assert!(cycles.begin(10.into(), 11.into(), full, now));
    }

    #[test]
    fn while_somebody_holds_it_a_cycle_begins_only_to_come_to_the_hold() {
        let now = Instant::now();
        let mut cycles = after(past(100), now);
        let hold = |wants| Asked {
            hold: Some(wants),
            ..calm()
        };
        assert_eq!(cycles.rest(hold(false), now), None, "although it is due");
        assert_eq!(cycles.rest(hold(true), now), Some(Duration::ZERO));
        assert!(
            !cycles.begin(10.into(), 10.into(), hold(true), now),
            "it waits for the spool"
        );
        assert!(cycles.begin(10.into(), 11.into(), hold(true), now));
    }

    #[test]
    fn nothing_new_from_a_source_that_may_have_more_is_no_cycle() {
        let now = Instant::now();
        let silent = Asked {
            is_unsure: true,
            ..calm()
        };
        assert!(!after(past(100), now).begin(10.into(), 10.into(), silent, now));
        assert!(after(past(100), now).begin(10.into(), 11.into(), silent, now));
        assert!(after(past(100), now).begin(10.into(), 10.into(), calm(), now));
        // Somebody who asks has no answer either, and would ask again and again.
        let full = Asked {
            is_full: true,
            ..calm()
        };
        assert!(!after(past(100), now).begin(10.into(), 10.into(), full, now));
        for unknown in [silent, full] {
            let asked = Asked {
                forces: 3,
                ..unknown
            };
            assert!(!after(past(0), now).begin(10.into(), 10.into(), asked, now));
            assert!(after(past(0), now).begin(10.into(), 11.into(), asked, now));
        }
    }

    #[test]
    fn a_cycle_that_is_not_due_any_more_does_not_begin() {
        let now = Instant::now();
        // The spool was full when it was decided, and has room now.
        assert!(!after(past(0), now).begin(10.into(), 11.into(), calm(), now));
        assert!(after(past(60), now).begin(10.into(), 11.into(), calm(), now));
    }

    #[test]
    fn it_is_late_once_a_frequency_and_a_cycle_have_passed_since_the_last_began() {
        let now = Instant::now();
        assert_eq!(after(Past::default(), now).late_from(), None);
        let mut cycles = after(past(0), now);
        assert_eq!(cycles.late_from(), Some(now + 62 * SECOND));
        // Also while the next one runs, until that is committed.
        assert!(cycles.begin(10.into(), 20.into(), calm(), now + MINUTE));
        assert_eq!(cycles.late_from(), Some(now + 62 * SECOND));
        cycles.committed(now + 72 * SECOND);
        assert_eq!(cycles.late_from(), Some(now + 132 * SECOND), "it took 12 s");
    }

    #[test]
    fn what_remains_is_known_once_a_part_is_made() {
        let now = Instant::now();
        let mut cycles = after(Past::default(), now);
        cycles.begin(100.into(), 500.into(), Asked::default(), now);
        let remaining = |cycles: &Cycles| cycles.running().unwrap().remaining(now + 10 * SECOND);
        assert_eq!(remaining(&cycles), None);
        cycles.made(200.into());
        assert_eq!(remaining(&cycles), Some(30 * SECOND));
        cycles.made(600.into());
        assert_eq!(remaining(&cycles), Some(Duration::ZERO));
    }

    #[test]
    fn a_cycle_leaves_what_it_has_done_under_the_next_number() {
        let now = Instant::now();
        let mut cycles = after(past(100), now);
        assert!(cycles.begin(10.into(), 20.into(), calm(), now));
        assert_eq!(cycles.end(), Some(20.into()));
        cycles.took(7);
        cycles.took(5);
        let counts = Counts {
            inserts: 3,
            ..Counts::default()
        };
        cycles.handed(&counts);
        // One that is applied in several commits leaves each figure once.
        let share = cycles.share(1).unwrap();
        assert_eq!((share.sent_bytes, share.counts.inserts), (12, 3));
        cycles.took(12);
        cycles.handed(&counts);
        cycles.handed(&counts);
        assert_eq!(cycles.running().unwrap().sent_bytes, 24);
        let closing = cycles.close(2).unwrap();
        assert!(cycles.is_closing());
        assert_eq!(
            (
                closing.number,
                closing.sent_bytes,
                closing.counts.inserts,
                closing.tables
            ),
            (5, 12, 6, 2)
        );
        cycles.committed(now);
        assert!(!cycles.is_closing() && cycles.running().is_none());
        assert_eq!(cycles.until_next(now), MINUTE);
    }
}
