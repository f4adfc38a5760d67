//! WAL of real servers, read by us and by the server's own pg_waldump.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod as_waldump;
mod bed;
mod calibration;
mod changing;
mod classes;
mod damage;
mod dump;
mod faults;
mod limits;
mod simulation;

lockstep_lab::reaper_entry!();
