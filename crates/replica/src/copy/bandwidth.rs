//! The limit on bytes a second, shared by all sessions.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How much may go at once after a pause.
const BURST: Duration = Duration::from_millis(100);

/// Says when bytes may go. No clock: time is an argument.
#[derive(Debug)]
pub struct Schedule {
    bytes_per_s: u64,
    /// When all that was asked for so far may have gone.
    until: Duration,
}

impl Schedule {
    pub fn new(bytes_per_s: u64) -> Self {
        Self {
            bytes_per_s: bytes_per_s.max(1),
            until: Duration::ZERO,
        }
    }

    /// Time to wait at `now` before this many bytes may go.
    pub fn wait(&mut self, now: Duration, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.until = self
            .until
            .max(now.saturating_sub(BURST))
            .saturating_add(takes);
        self.until.saturating_sub(now)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_goes_than_the_limit_allows() {
        let mut schedule = Schedule::new(1_000);
        let mut now = Duration::from_secs(10);
        let started = now;
        let mut bytes = 0;
        while bytes < 10_000 {
            now += schedule.wait(now, 500);
            bytes += 500;
        }
        let seconds = (now - started).as_secs_f64();
        assert!((9.8..=10.0).contains(&seconds), "{seconds}");
        // A pause saves up no more than the burst.
        now += Duration::from_secs(3600);
        assert_eq!(schedule.wait(now, 1_000), Duration::from_millis(900));
    }
}
