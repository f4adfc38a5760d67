//! The agent's clock: the time since it began, which no setting of the time changes.
//!
//! The clock goes on while a machine is suspended, since data grows old meanwhile.

use std::time::{Duration, Instant};

use nix::time::ClockId;

use crate::staleness::Moment;

#[derive(Debug)]
pub struct Clock {
    began: Instant,
    booted: Option<Duration>,
}

/// Time since the machine was booted, suspensions included.
fn since_boot() -> Option<Duration> {
    ClockId::CLOCK_BOOTTIME.now().ok().map(Duration::from)
}

impl Clock {
    pub fn start() -> Self {
        Self {
            began: Instant::now(),
            booted: since_boot(),
        }
    }

    pub fn now(&self) -> Moment {
        let since = self
            .booted
            .and_then(|then| Some(since_boot()?.saturating_sub(then)));
        since.unwrap_or_else(|| self.began.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use super::*;

    #[test]
    fn suspensions_count() {
        let clock = Clock::start();
        thread::sleep(Duration::from_millis(20));
        assert!(clock.now() >= Duration::from_millis(20));
        // The uptime includes suspensions, and has two digits after the point.
        let text = fs::read_to_string("/proc/uptime").unwrap();
        let up: f64 = text.split(' ').next().unwrap().parse().unwrap();
        let ahead = since_boot().unwrap().as_secs_f64() - up;
        assert!((0.0..0.5).contains(&ahead), "{ahead}");
    }
}
