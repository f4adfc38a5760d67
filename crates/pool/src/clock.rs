//! The agent's clock: the time since it began, which no setting of the time changes.
//!
//! The system's monotonic clock stands still while a machine is suspended, and data grows old meanwhile.
//! So what `/proc/uptime` says counts where it is ahead; it has two digits after the point.

use std::fs;
use std::time::{Duration, Instant};

use crate::staleness::Moment;

/// Least lead of the uptime that counts: its own error, with some room.
const ROOM: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct Clock {
    began: Instant,
    uptime: Option<Duration>,
    /// How long the machine was suspended since.
    suspended: Duration,
}

fn uptime() -> Option<Duration> {
    let text = fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = text.split(' ').next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

impl Clock {
    pub fn start() -> Self {
        Self {
            began: Instant::now(),
            uptime: uptime(),
            suspended: Duration::ZERO,
        }
    }

    pub fn now(&mut self) -> Moment {
        let elapsed = self.began.elapsed();
        let up = uptime().zip(self.uptime);
        let up = up.map(|(now, then)| now.saturating_sub(then));
        self.tells(elapsed, up.unwrap_or_default())
    }

    fn tells(&mut self, elapsed: Duration, up: Duration) -> Moment {
        let ahead = up.saturating_sub(elapsed + self.suspended);
        if ahead > ROOM {
            self.suspended += ahead;
        }
        elapsed + self.suspended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_suspension_counts_once() {
        let ms = Duration::from_millis;
        let mut clock = Clock::start();
        for (elapsed, up, expected) in [
            (100, 100, 100),
            (200, 190, 200),
            (300, 5_300, 5_300),
            (400, 5_400, 5_400),
            (500, 5_530, 5_500),
            (600, 0, 5_600),
        ] {
            assert_eq!(clock.tells(ms(elapsed), ms(up)), ms(expected));
        }
        let now = clock.now();
        assert!(clock.now() >= now && uptime().is_some());
    }
}
