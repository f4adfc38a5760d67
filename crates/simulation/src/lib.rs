//! What simulations without servers share: those of the relay, of a replica's spool and of apply.
//!
//! Only tests use this crate: what panics here is a test that fails.
//!
//! | module | what |
//! |---|---|
//! | [`seeds`] | which seeds a test runs, and what a run that fails has said |
//! | [`disk`] | a folder in memory that may lose, refuse and damage what is written to it |
//! | [`primary`] | a primary in memory: what was committed, and a walsender that streams it |
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used
)]

pub mod disk;
pub mod primary;
pub mod seeds;
