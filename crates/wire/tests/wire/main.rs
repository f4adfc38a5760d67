//! Everything that is read from the wire or written to it.
//!
//! Random values come from a seed: `SEED=n` repeats a run.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod logical;
mod streaming;

use fastrand::Rng;

/// The generator of this run. Its seed is printed when a test fails.
fn rng() -> Rng {
    let seed = match std::env::var("SEED") {
        Ok(text) => text.parse().unwrap(),
        Err(_) => fastrand::u64(..),
    };
    println!("SEED={seed}");
    Rng::with_seed(seed)
}
