//! Against real servers: each test has its own.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod apply_cases;
mod apply_lab;
mod apply_random;
mod apply_standby;
mod verify_cases;

lockstep_lab::reaper_entry!();
