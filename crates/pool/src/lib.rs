//! One endpoint over read nodes: how stale each node is, whether it takes sessions, and how many.
//!
//! What decides does no I/O and reads no clock, so that the simulation in `tests/pool/simulation` drives it
//! as the agent does.
//!
//! The modules are layers: each uses only those above it in this table, which a test holds.
//!
//! | module | what |
//! |---|---|
//! | [`fault`] | faults that tests plant |
//! | [`staleness`] | how old the data is that a node shows |
//! | [`state`] | whether a node takes sessions, and why not |
//! | [`weight`] | how large its share is |
//! | [`judge`] | all that is known of one node, and what follows |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod fault;
pub mod judge;
pub mod staleness;
pub mod state;
pub mod weight;
