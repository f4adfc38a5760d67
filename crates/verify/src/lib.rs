//! What judges replay: equality of pages, random workloads, invariants of snapshots, crashes.
//!
//! | module | what |
//! |---|---|
//! | [`oracle`] | equality of two clusters' pages, masked where they may differ |
//! | [`random`] | SQL workloads that a seed determines |
//! | [`invariants`] | readers that check a standby's snapshots while it replays |
//! | [`crash`] | kills of a server, of one process, of the power |
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
