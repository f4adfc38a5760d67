//! Messages of logical replication, the batches and frames they travel in, and the
//! commands that ask for them.
//!
//! Random ones come from a seed: `SEED=n` repeats a run. `LOCKSTEP_FUZZ_SECONDS=n` makes
//! the fuzz tests go on for so long instead of a fixed number of rounds.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod carried;
mod commands;
mod fuzz;
mod messages;
mod random;
