//! Random crashes, determined by a seed.

use std::iter::repeat_n;
use std::time::Duration;

use fastrand::Rng;

use crate::crash::{Crash, Moment, Process, Victim};

/// Longest random wait before a crash, in milliseconds.
const LONGEST_WAIT_MS: u64 = 700;

/// Most bytes of WAL between one crash and the next.
const FURTHEST: u64 = 8_000_000;

/// What any standby can lose.
const VICTIMS: [Victim; 7] = [
    Victim::Server,
    Victim::Recovery,
    Victim::Postmaster,
    Victim::Process(Process::Startup),
    Victim::Process(Process::WalReceiver),
    Victim::Process(Process::Checkpointer),
    Victim::Process(Process::BackgroundWriter),
];

/// An endless sequence of crashes of a standby.
#[derive(Debug, Clone)]
pub struct Plan {
    rng: Rng,
    victims: Vec<Victim>,
}

impl Plan {
    /// The crashes of a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            victims: VICTIMS.to_vec(),
        }
    }

    /// Adds a victim with this weight. Each of those that any standby can lose weighs one.
    pub fn and(mut self, victim: Victim, weight: usize) -> Self {
        self.victims.extend(repeat_n(victim, weight));
        self
    }

    fn victim(&mut self) -> Victim {
        self.rng
            .choice(&self.victims)
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
        let crashes = |plan: Plan| plan.take(200).collect::<Vec<_>>();
        let with_power = |seed| crashes(Plan::new(seed).and(Victim::Power, 3));
        assert_eq!(with_power(1), with_power(1));
        assert_ne!(with_power(1), with_power(2));
        let has_power = |crashes: &[Crash]| crashes.iter().any(|c| c.victim == Victim::Power);
        assert!(has_power(&with_power(1)) && !has_power(&crashes(Plan::new(1))));
    }
}
