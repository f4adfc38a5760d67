//! Which WAL is published when: pure computation, no clock.

use std::fmt;
use std::time::Duration;

use lockstep_wire::Lsn;

use super::recording::PacePoint;
use super::{PlayerError, Recording};
use crate::Result;

/// How fast a recording is played.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// Bytes a second.
    Rate(f64),
    /// Commits a second, at even distances. WAL is published from commit to commit.
    Commits(f64),
    /// A multiple of the speed at which the source wrote the WAL.
    Factor(f64),
    /// All WAL is published at once: each standby receives it as fast as it can.
    Unlimited,
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(rate) => write!(f, "{} MB/s", rate / 1e6),
            Self::Commits(rate) => write!(f, "{rate} commits a second"),
            Self::Factor(factor) => write!(f, "{factor} times the original pace"),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

/// What is to be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// WAL up to here.
    Position(Lsn),
    /// This many commits since the play began.
    Commits(u64),
}

/// The position to publish at each time of one play.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    pace: Pace,
    origin: u64,
    end: u64,
    points: Vec<PacePoint>,
    /// Time of the recording at the origin, in microseconds.
    shift: f64,
}

impl Schedule {
    /// An error if the pace is not possible with this recording.
    pub fn check(recording: &Recording, pace: Pace) -> Result<()> {
        let bad = |reason: &str| Err(PlayerError::Pace(reason.to_owned()));
        match pace {
            Pace::Rate(rate) if !rate.is_finite() || rate < 1.0 => {
                bad("a rate is at least one byte a second")
            }
            Pace::Commits(rate) if !rate.is_finite() || rate <= 0.0 => {
                bad("a rate of commits is above 0")
            }
            Pace::Factor(factor) if !factor.is_finite() || factor <= 0.0 => {
                bad("a factor is above 0")
            }
            Pace::Factor(_) if recording.seconds() == 0.0 => bad(
                "the recording holds fewer than two commits, so it has no pace of its own; set a rate instead",
            ),
            _ => Ok(()),
        }
    }

    /// The schedule of a play that begins at `origin`.
    pub fn new(recording: &Recording, pace: Pace, origin: Lsn) -> Self {
        let end = u64::from(recording.end());
        let mut schedule = Self {
            pace,
            origin: u64::from(origin).min(end),
            end,
            points: recording.pace().to_vec(),
            shift: 0.0,
        };
        schedule.shift = schedule.time_of(schedule.origin);
        schedule
    }

    /// Where the play began.
    pub fn origin(&self) -> Lsn {
        Lsn::from(self.origin)
    }

    /// What may be published `elapsed` after the start. It never decreases.
    pub fn due(&self, elapsed: Duration) -> Due {
        let position = match self.pace {
            Pace::Commits(rate) => return Due::Commits((rate * elapsed.as_secs_f64()) as u64),
            Pace::Unlimited => self.end,
            // Rounded towards zero, and saturating.
            Pace::Rate(rate) => self
                .origin
                .saturating_add((rate * elapsed.as_secs_f64()) as u64),
            Pace::Factor(factor) => {
                self.position_at(self.shift + factor * elapsed.as_secs_f64() * 1e6)
            }
        };
        Due::Position(Lsn::from(position.clamp(self.origin, self.end)))
    }

    /// The position that the source had at a time of the recording.
    fn position_at(&self, micros: f64) -> u64 {
        let after = self
            .points
            .partition_point(|point| point.micros as f64 <= micros);
        let before = after.checked_sub(1).and_then(|at| self.points.get(at));
        match (before, self.points.get(after)) {
            (Some(before), Some(next)) => {
                let (from, to) = (u64::from(before.lsn), u64::from(next.lsn));
                let part = (micros - before.micros as f64) / (next.micros - before.micros) as f64;
                from + (part * (to - from) as f64) as u64
            }
            // Before the first commit, and after the last one.
            (None, _) => self.origin,
            (Some(_), None) => self.end,
        }
    }

    /// The time of the recording at which the source had a position.
    fn time_of(&self, position: u64) -> f64 {
        let after = self
            .points
            .partition_point(|point| u64::from(point.lsn) <= position);
        let before = after.checked_sub(1).and_then(|at| self.points.get(at));
        match (before, self.points.get(after)) {
            (Some(before), Some(next)) => {
                let (from, to) = (u64::from(before.lsn), u64::from(next.lsn));
                let part = (position - from) as f64 / (to - from) as f64;
                before.micros as f64 + part * (next.micros - before.micros) as f64
            }
            (None, _) => 0.0,
            (Some(last), None) => last.micros as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(pace: Pace, origin: u64) -> Schedule {
        let points = [
            (1000, 0),
            (2000, 1_000_000),
            (2000, 3_000_000),
            (8000, 4_000_000),
        ];
        let mut schedule = Schedule {
            pace,
            origin,
            end: 9000,
            points: points
                .map(|(lsn, micros)| PacePoint {
                    lsn: Lsn::from(lsn),
                    micros,
                })
                .to_vec(),
            shift: 0.0,
        };
        schedule.shift = schedule.time_of(origin);
        schedule
    }

    fn at(schedule: &Schedule, seconds: f64) -> u64 {
        match schedule.due(Duration::from_secs_f64(seconds)) {
            Due::Position(lsn) => lsn.into(),
            Due::Commits(count) => panic!("{count} commits"),
        }
    }

    #[test]
    fn a_rate_is_a_straight_line_up_to_the_end() {
        let rate = schedule(Pace::Rate(1000.0), 500);
        for (seconds, position) in [
            (0.0, 500),
            (0.5, 1000),
            (8.0, 8500),
            (8.6, 9000),
            (1e9, 9000),
        ] {
            assert_eq!(at(&rate, seconds), position);
        }
        assert_eq!(at(&schedule(Pace::Rate(f64::MAX), 500), 1e9), 9000);
    }

    #[test]
    fn a_factor_follows_the_original_pace() {
        let same = schedule(Pace::Factor(1.0), 500);
        for (seconds, position) in [
            (0.0, 1000),
            (0.5, 1500),
            (1.0, 2000),
            (2.9, 2000),
            (3.5, 5000),
            (4.0, 9000),
        ] {
            assert_eq!(at(&same, seconds), position, "{seconds}");
        }
        let double = schedule(Pace::Factor(2.0), 500);
        assert_eq!(at(&double, 1.75), 5000);
    }

    #[test]
    fn a_play_that_begins_in_the_middle_has_the_pace_of_there() {
        let late = schedule(Pace::Factor(1.0), 5000);
        assert_eq!(at(&late, 0.0), 5000);
        assert_eq!(at(&late, 0.25), 6500);
        let over = schedule(Pace::Factor(1.0), 9000);
        assert_eq!(at(&over, 0.0), 9000);
    }

    #[test]
    fn commits_are_counted() {
        let commits = schedule(Pace::Commits(100.0), 500);
        for (seconds, count) in [(0.0, 0), (0.009, 0), (0.015, 1), (2.0, 200)] {
            let due = commits.due(Duration::from_secs_f64(seconds));
            assert_eq!(due, Due::Commits(count), "{seconds}");
        }
    }

    #[test]
    fn all_at_once() {
        assert_eq!(at(&schedule(Pace::Unlimited, 500), 0.0), 9000);
    }
}
