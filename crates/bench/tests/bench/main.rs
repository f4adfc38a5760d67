//! Workloads, samplers and consumers with real servers.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod consumers;
mod replay;
mod sampler;
mod slow_reads;
mod tpcc;

lockstep_lab::reaper_entry!();
