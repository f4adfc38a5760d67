//! Whose turn it is to commit, among writers that work side by side. No I/O, no clock.
//!
//! Parts are numbered. A writer commits part `n` only after [`Turn::pass`] was called for `n - 1`,
//! which its writer does once the server has confirmed that commit. A part whose outcome is not known
//! is never passed, so nothing commits after it: the session ends, and the next one asks all origins
//! where the target stands.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The state that the writers of a session share; whoever has it keeps it behind a lock.
#[derive(Debug)]
pub struct Turn {
    /// Parts up to here are committed, and the server has said so.
    done: u64,
    /// The newest part that was handed to the writers.
    newest: u64,
    failed: bool,
    flushed_at: Instant,
    /// Backends of the writers that have a part, by the part's number.
    backends: BTreeMap<u64, u32>,
    /// Writers that take jobs.
    used: usize,
}

/// What a wait has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    Reached,
    NotYet,
    /// A part has failed: nothing commits any more.
    Failed,
}

impl Turn {
    pub fn new(now: Instant) -> Self {
        Self {
            done: 0,
            newest: 0,
            failed: false,
            flushed_at: now,
            backends: BTreeMap::new(),
            used: 0,
        }
    }

    /// Number of writers that take jobs from now on.
    pub fn set_used(&mut self, writers: usize) {
        self.used = writers;
    }

    /// The writer with this number takes jobs. Once something has failed all do, and find that out.
    pub fn is_used(&self, writer: usize) -> bool {
        writer < self.used || self.failed
    }

    /// The part is about to be handed to the writers.
    pub fn hand(&mut self, number: u64) {
        self.newest = number;
    }

    /// A writer with this backend has taken the part.
    pub fn begin(&mut self, number: u64, backend: u32) {
        self.backends.insert(number, backend);
    }

    /// The part is the next to be committed.
    pub fn is_first(&self, number: u64) -> bool {
        self.done + 1 == number
    }

    /// The backend of the writer whose part is the next to be committed.
    pub fn first_backend(&self) -> Option<u32> {
        self.backends.get(&(self.done + 1)).copied()
    }

    /// Whether part `number` is committed.
    pub fn reached(&self, number: u64) -> Waited {
        match self.failed {
            true => Waited::Failed,
            false if self.done >= number => Waited::Reached,
            false => Waited::NotYet,
        }
    }

    /// The part, whose turn it is, is committed: the next one may.
    pub fn pass(&mut self, number: u64) {
        self.backends.remove(&number);
        self.done = self.done.max(number);
    }

    /// Nothing may commit any more. False if something has failed before.
    pub fn fail(&mut self) -> bool {
        !std::mem::replace(&mut self.failed, true)
    }

    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// The commits up to one that was made then are flushed.
    pub fn flushed(&mut self, made: Instant) {
        self.flushed_at = self.flushed_at.max(made);
    }

    /// Whether the commit of this part is to be flushed: if no other follows, and otherwise if none is that
    /// was made so long ago.
    pub fn is_to_flush(&mut self, number: u64, every: Duration, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.flushed_at);
        let due = self.newest == number || since >= every;
        if due {
            self.flushed_at = now;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_passed_one_after_the_other() {
        let mut turn = Turn::new(Instant::now());
        turn.hand(2);
        turn.begin(1, 11);
        turn.begin(2, 12);
        assert!(turn.is_first(1) && !turn.is_first(2));
        assert_eq!(turn.first_backend(), Some(11));
        assert_eq!(turn.reached(1), Waited::NotYet);
        turn.pass(1);
        assert_eq!((turn.done, turn.first_backend()), (1, Some(12)));
        assert_eq!(turn.reached(1), Waited::Reached);
        assert!(turn.is_first(2));
    }

    #[test]
    fn nothing_has_its_turn_after_a_failure() {
        let mut turn = Turn::new(Instant::now());
        turn.pass(1);
        assert!(turn.fail(), "it is the first");
        assert!(!turn.fail());
        assert_eq!(turn.reached(1), Waited::Failed);
    }

    #[test]
    fn the_newest_commit_is_flushed_and_others_from_time_to_time() {
        let now = Instant::now();
        let mut turn = Turn::new(now);
        let long = Duration::from_secs(3600);
        turn.hand(2);
        assert!(!turn.is_to_flush(1, long, now));
        assert!(turn.is_to_flush(1, long, now + long));
        assert!(turn.is_to_flush(2, long, now + long));
        turn.hand(4);
        turn.flushed(now + long + long);
        turn.flushed(now);
        assert!(!turn.is_to_flush(3, long, now + long + long));
        assert!(turn.is_to_flush(3, long, now + long + long + long));
    }
}
