//! Messages of logical replication, the batches and frames that carry them, and the commands
//! that ask for them.
//!
//! Random ones come from a seed: `SEED=n` repeats a run. With `LOCKSTEP_FUZZ_SECONDS=n` each
//! fuzz test goes on for n seconds instead of a fixed number of rounds.
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
