//! Checks that replay is correct: equal pages, random workloads, invariants of snapshots, crashes.
//!
//! | module | what |
//! |---|---|
//! | [`oracle`] | equality of two clusters' pages, except where they may differ |
//! | [`random`] | random SQL workloads, each determined by a seed |
//! | [`invariants`] | readers that check a standby's snapshots while it replays |
//! | [`crash`] | crashes of a server, of one process, and loss of power |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod crash;
mod error;
pub mod invariants;
pub mod oracle;
pub mod random;

pub use error::{Result, VerifyError};
