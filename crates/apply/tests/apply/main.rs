//! Tests of apply without servers. Those with servers are in `crates/replica/tests`.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod simulation;
mod spool_simulation;
