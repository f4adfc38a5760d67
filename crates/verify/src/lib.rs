//! Checks that replay is correct: equal pages, random workloads, invariants of snapshots, crashes.
//!
//! The modules are layers: each uses those above it in this table.
//!
//! | module | what |
//! |---|---|
//! | `names` | what random workloads may change |
//! | `side` | the two clusters of a comparison |
//! | `process` | a server's processes by their kind |
//! | `error` | what can go wrong |
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
mod names;
pub mod oracle;
mod process;
pub mod random;
mod side;

pub use error::{Result, VerifyError};
