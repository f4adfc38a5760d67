//! The limit on bytes a second, shared by all sessions.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use lockstep_apply::bandwidth::Schedule;

/// A limit that several threads keep together.
#[derive(Debug)]
pub struct Limit {
    schedule: Option<Mutex<Schedule>>,
    started: Instant,
}

impl Limit {
    /// None: no limit.
    pub fn new(bytes_per_s: Option<u64>) -> Self {
        Self {
            schedule: bytes_per_s.map(|rate| Mutex::new(Schedule::new(rate))),
            started: Instant::now(),
        }
    }

    /// Waits until so many bytes may go.
    pub fn take(&self, bytes: usize) {
        let Some(schedule) = &self.schedule else {
            return;
        };
        let wait = {
            let mut schedule = schedule.lock().unwrap_or_else(PoisonError::into_inner);
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            schedule.wait(self.started.elapsed(), bytes)
        };
        thread::sleep(wait);
    }
}
