//! When bytes may go that have a limit a second. No I/O.

use std::time::Duration;

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

    pub fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
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
