//! The test bed's program as people run it.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod bench_runs;
mod command_line;
mod tpcc;
mod wal_compare;
mod wal_random;
mod wal_runs;
mod whole_runs;

lockstep_lab::reaper_entry!();
