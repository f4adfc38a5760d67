//! Counts of what runs came to: a simulation that never gets there shows nothing.

use std::collections::BTreeMap;
use std::fmt;

/// What must happen.
const NAMES: [&str; 19] = [
    "commits",
    "connections",
    "covers",
    "crashes",
    "disk errors",
    "farewells",
    "forks refused",
    "forks taken over",
    "kills",
    "lost of the log",
    "moved slots refused",
    "other sources refused",
    "restored sources refused at once",
    "restored sources refused by what they send",
    "restored sources that go on",
    "sessions",
    "spools begun anew",
    "steps while full",
    "targets crashed",
];

/// Sums by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    pub fn add(&mut self, name: &'static str, number: u64) {
        assert!(NAMES.contains(&name), "{name}");
        *self.0.entry(name).or_default() += number;
    }

    pub fn add_all(&mut self, other: &Self) {
        other
            .0
            .iter()
            .for_each(|(name, number)| self.add(name, *number));
    }

    /// What never happened.
    pub fn missing(&self) -> Vec<&'static str> {
        let is_missing = |name: &&str| self.0.get(name).is_none_or(|number| *number == 0);
        NAMES.into_iter().filter(is_missing).collect()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<_> = self
            .0
            .iter()
            .map(|(name, sum)| format!("{name} {sum}"))
            .collect();
        f.write_str(&rows.join(", "))
    }
}
