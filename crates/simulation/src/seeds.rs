//! Seeds of a simulation, and words of a run that fails.

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The seeds to run: `SEED=N` runs one, `LOCKSTEP_SEEDS=FROM-TO` those, `LOCKSTEP_SEEDS=N` the first N;
/// otherwise the first `usual`.
pub fn seeds(usual: u64) -> RangeInclusive<u64> {
    let text = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    if let Some(seed) = text("SEED") {
        let seed = seed.parse().expect("SEED is a number");
        return seed..=seed;
    }
    let Some(range) = text("LOCKSTEP_SEEDS") else {
        return 1..=usual;
    };
    let (from, to) = range.split_once('-').unwrap_or(("1", &range));
    let number = |text: &str| text.parse().expect("LOCKSTEP_SEEDS is N or FROM-TO");
    number(from)..=number(to)
}

/// What a run says when it panics: None if it does not.
pub fn panic_words<T>(run: impl FnOnce() -> T) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(run)).err()?;
    let said = panic.downcast_ref::<String>().cloned();
    let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    Some(said.unwrap_or_default())
}
