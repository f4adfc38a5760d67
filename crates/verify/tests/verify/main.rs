//! What judges replay, on real servers.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod crashes;
mod equality;
mod invariants;
mod oracle;
mod random_workload;
mod replay;

lockstep_lab::reaper_entry!();
