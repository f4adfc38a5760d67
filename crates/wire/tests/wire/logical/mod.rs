//! Messages of logical replication, the batches and frames that carry them, and the commands
//! that ask for them.
//!
//! With `LOCKSTEP_FUZZ_SECONDS=n` each fuzz test goes on for n seconds instead of a fixed number
//! of rounds.

mod carried;
mod commands;
mod fuzz;
mod messages;
mod random;
