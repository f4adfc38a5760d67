//! Random crashes, determined by a seed.

use std::time::Duration;

use fastrand::Rng;

use crate::crash::{Crash, Moment, Process, Victim};

/// Longest random wait before a crash, in milliseconds.
const LONGEST_WAIT_MS: u64 = 700;

/// Most bytes of WAL between one crash and the next.
const FURTHEST: u64 = 8_000_000;

/// An endless sequence of crashes of a standby.
#[derive(Debug, Clone)]
pub struct Plan {
    rng: Rng,
    power: bool,
}

impl Plan {
    /// The crashes of a seed; with `power` some of them are power cuts.
    pub fn new(seed: u64, power: bool) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            power,
        }
    }

    fn victim(&mut self) -> Victim {
        let victims = [
            Victim::Server,
            Victim::Postmaster,
            Victim::Process(Process::Startup),
            Victim::Process(Process::WalReceiver),
            Victim::Process(Process::Checkpointer),
            Victim::Process(Process::BackgroundWriter),
            // A power cut loses data that no other crash loses, so it comes in a third of the
            // crashes.
            Victim::Power,
            Victim::Power,
            Victim::Power,
        ];
        let count = if self.power { victims.len() } else { 6 };
        self.rng
            .choice(victims.iter().take(count))
            .copied()
            .unwrap_or(Victim::Server)
    }

    fn moment(&mut self) -> Moment {
        match self.rng.u32(..6) {
            0 => Moment::Now,
            1 => Moment::Restartpoint,
            2..=4 => Moment::Further(self.rng.u64(1..=FURTHEST)),
            _ => Moment::After(Duration::from_millis(self.rng.u64(1..=LONGEST_WAIT_MS))),
        }
    }
}

impl Iterator for Plan {
    type Item = Crash;

    fn next(&mut self) -> Option<Crash> {
        Some(Crash {
            victim: self.victim(),
            moment: self.moment(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_crashes() {
        let crashes = |seed, power| Plan::new(seed, power).take(200).collect::<Vec<_>>();
        assert_eq!(crashes(1, true), crashes(1, true));
        assert_ne!(crashes(1, true), crashes(2, true));
        let has_power = |crashes: &[Crash]| crashes.iter().any(|c| c.victim == Victim::Power);
        assert!(has_power(&crashes(1, true)) && !has_power(&crashes(1, false)));
    }
}
