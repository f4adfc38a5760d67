//! Whose turn it is to commit, among writers that work side by side.
//!
//! Parts are numbered. A writer commits part `n` only after [`Turn::pass`] was called for `n - 1`,
//! which its writer does once the server has confirmed that commit. A part whose outcome is not known
//! is never passed, so nothing commits after it: the session ends, and the next one asks all origins
//! where the target stands.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug)]
struct State {
    /// Parts up to here are committed, and the server has said so.
    done: u64,
    /// The newest part that was handed to the writers.
    newest: u64,
    failed: bool,
    flushed_at: Instant,
    /// Backends of the writers that have a part, by the part's number.
    backends: BTreeMap<u64, u32>,
}

#[derive(Debug)]
pub struct Turn(Mutex<State>, Condvar);

/// What a wait has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    Reached,
    NotYet,
    /// A part has failed: nothing commits any more.
    Failed,
}

impl Default for Turn {
    fn default() -> Self {
        let state = State {
            done: 0,
            newest: 0,
            failed: false,
            flushed_at: Instant::now(),
            backends: BTreeMap::new(),
        };
        Self(Mutex::new(state), Condvar::new())
    }
}

impl Turn {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parts up to here are committed.
    pub fn done(&self) -> u64 {
        self.state().done
    }

    /// The part is about to be handed to the writers.
    pub fn hand(&self, number: u64) {
        self.state().newest = number;
    }

    /// A writer with this backend has taken the part.
    pub fn begin(&self, number: u64, backend: u32) {
        self.state().backends.insert(number, backend);
    }

    /// The part is the next to be committed.
    pub fn is_first(&self, number: u64) -> bool {
        self.state().done + 1 == number
    }

    /// The backend of the writer whose part is the next to be committed.
    pub fn first_backend(&self) -> Option<u32> {
        let state = self.state();
        state.backends.get(&(state.done + 1)).copied()
    }

    /// Waits until part `number` is committed, at most `patience`.
    pub fn wait(&self, number: u64, patience: Duration) -> Waited {
        let deadline = Instant::now() + patience;
        let mut state = self.state();
        loop {
            if state.failed {
                return Waited::Failed;
            }
            if state.done >= number {
                return Waited::Reached;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Waited::NotYet;
            }
            let waited = self.1.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The part, whose turn it is, is committed: the next one may.
    pub fn pass(&self, number: u64) {
        let mut state = self.state();
        state.backends.remove(&number);
        state.done = state.done.max(number);
        self.1.notify_all();
    }

    /// Nothing may commit any more. False if something has failed before.
    pub fn fail(&self) -> bool {
        let before = std::mem::replace(&mut self.state().failed, true);
        self.1.notify_all();
        !before
    }

    pub fn has_failed(&self) -> bool {
        self.state().failed
    }

    /// Whether the commit of this part is to be flushed: if no other follows, and otherwise from
    /// time to time.
    pub fn is_to_flush(&self, number: u64, every: Duration) -> bool {
        let mut state = self.state();
        let due = state.newest == number || state.flushed_at.elapsed() >= every;
        if due {
            state.flushed_at = Instant::now();
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_passed_one_after_the_other() {
        let turn = Turn::default();
        turn.hand(2);
        turn.begin(1, 11);
        turn.begin(2, 12);
        assert!(turn.is_first(1) && !turn.is_first(2));
        assert_eq!(turn.first_backend(), Some(11));
        assert_eq!(turn.wait(1, Duration::ZERO), Waited::NotYet);
        turn.pass(1);
        assert_eq!((turn.done(), turn.first_backend()), (1, Some(12)));
        assert_eq!(turn.wait(1, Duration::ZERO), Waited::Reached);
        assert!(turn.is_first(2));
    }

    #[test]
    fn nothing_has_its_turn_after_a_failure() {
        let turn = Turn::default();
        turn.pass(1);
        assert!(turn.fail(), "it is the first");
        assert!(!turn.fail());
        assert_eq!(turn.wait(1, Duration::ZERO), Waited::Failed);
    }

    #[test]
    fn the_newest_commit_is_flushed_and_others_from_time_to_time() {
        let turn = Turn::default();
        let long = Duration::from_secs(3600);
        turn.hand(2);
        assert!(!turn.is_to_flush(1, long));
        assert!(turn.is_to_flush(1, Duration::ZERO));
        assert!(turn.is_to_flush(2, long));
    }
}
