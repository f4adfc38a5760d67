//! Seeds of a simulation: those that hold, and those that find a planted fault.

use std::fmt::Debug;
use std::ops::RangeInclusive;

use crate::for_tests;

/// Runs `usual` seeds, or those that the environment names; `run` returns what is wrong, and `test` is what
/// names the test to `cargo test`. Returns the seeds.
#[track_caller]
#[allow(clippy::panic)]
pub fn all_hold(
    usual: u64,
    test: &str,
    mut run: impl FnMut(u64) -> Option<String>,
) -> RangeInclusive<u64> {
    let seeds = for_tests::seeds(usual);
    for seed in seeds.clone() {
        if let Some(words) = run(seed) {
            panic!("{words}; again with: SEED={seed} SHOW=1 scripts/cargo test -p {test}");
        }
    }
    seeds
}

/// Says what happens in a run, if `SHOW` is set.
pub fn show(what: impl FnOnce() -> String) {
    if std::env::var_os("SHOW").is_some() {
        eprintln!("{}", what());
    }
}

/// Asserts that a planted fault is found within this many seeds, in `expected` words.
#[track_caller]
#[allow(clippy::panic)]
pub fn find(fault: &dyn Debug, seeds: u64, expected: &str, run: impl Fn(u64) -> Option<String>) {
    let found = (1..=seeds).find_map(|seed| Some((seed, run(seed)?)));
    let Some((seed, words)) = found else {
        panic!("{fault:?} is not found in {seeds} seeds by: {expected}");
    };
    println!("simulation: {fault:?} is found with seed {seed}: {words}");
    assert!(words.contains(expected), "{fault:?}: {words}");
}
