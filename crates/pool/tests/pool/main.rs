//! Tests of the pool without servers. Those with servers are in `crates/cli/tests`.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod contest;
mod simulation;
