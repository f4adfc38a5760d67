//! Tests of the relay without a whole relay: its log, its listener and sessions, and a
//! simulation of primary, relay and subscribers. Tests of the whole are `crates/cli`'s.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod log;
mod pass_through;
mod serve;
mod serve_lab;
mod serve_random;
mod simulation;

lockstep_lab::reaper_entry!();
