//! The lab with real servers.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod servers;

lockstep_lab::reaper_entry!();
