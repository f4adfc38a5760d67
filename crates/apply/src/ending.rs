//! The end of a session: how long its writers may take. No I/O, no clock: the time is an argument.

use std::time::{Duration, Instant};

/// Longest time that a batch that is being applied may take to end when the session ends.
const LAST_BATCH: Duration = Duration::from_secs(2);

/// Interval at which a batch over [`LAST_BATCH`] is cancelled again.
const CANCEL_EVERY: Duration = Duration::from_millis(200);

/// The end of a session: how long its writers may take.
#[derive(Debug)]
pub struct Ending {
    until: Instant,
    is_cancelled: bool,
}

impl Ending {
    pub fn new(now: Instant) -> Self {
        Self {
            until: now + LAST_BATCH,
            is_cancelled: false,
        }
    }

    /// Time to wait before what the writers do is cancelled, or cancelled again.
    pub fn patience(&self, has_failed: bool, now: Instant) -> Duration {
        match has_failed && !self.is_cancelled {
            true => Duration::ZERO,
            false => self.until.saturating_duration_since(now),
        }
    }

    /// The writers are cancelled. Between two statements there is nothing to cancel: so again.
    pub fn cancelled(&mut self, now: Instant) {
        self.is_cancelled = true;
        self.until = now + CANCEL_EVERY;
    }
}
