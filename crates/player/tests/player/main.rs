//! The player with real servers.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod wal_player;

lockstep_lab::reaper_entry!();
