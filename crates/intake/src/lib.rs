//! Receives a slot's stream, keeps it in a log (crate `lockstep-spool`), and confirms what is durable.
//!
//! ```text
//! source ──stream──> driver: receiver ──> log
//!    ^                 │        │ checks: continuity, overlap
//!    └─ confirmations ─┘      host: a relay's group, a replica's spool
//! ```
//!
//! The modules are layers: each uses only those above it in this table.
//!
//! | module | what |
//! |---|---|
//! | [`fault`] | faults that only tests plant |
//! | [`error`] | what can go wrong while a stream is received |
//! | [`continuity`] | whether a source's slot continues what the log has; no I/O |
//! | [`overlap`] | what the source sends again, held against the log |
//! | [`receiver`] | what to do with a source's messages, with the log and with the source; no I/O, no clock |
//! | [`driver`] | what does it, and what that needs of its host |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod continuity;
pub mod driver;
pub mod error;
pub mod fault;
pub mod overlap;
pub mod receiver;
