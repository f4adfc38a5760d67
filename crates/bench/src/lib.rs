//! Benchmarks: workloads, trials, samplers, faults.
//!
//! | module | what |
//! |---|---|
//! | [`trial`] | fresh data, a fresh standby, load on both ends and what was measured |
//! | [`sampler`], [`replay_lag`] | positions of both ends over time, and lag from them |
//! | [`tpcc`] | TPC-C's data, transactions and consistency conditions |
//! | [`fault`] | causes of lag, injected one at a time |
//! | [`replay`] | how fast a standby replays, and its lag against the WAL it is offered |
//! | [`decode`] | passes of several output plugins over the same WAL |
//! | [`relay`] | consumers of logical replication, direct or behind a relay |
//! | [`commit_levels`] | servers on which commits are timed |
//! | [`lag_sampling`] | many replicas, and what watching them costs |
//! | [`measurements`] | `docs/measurements.md` and README's claims from `bench/results` |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod commit_levels;
pub mod decode;
mod error;
pub mod fault;
pub mod lag_sampling;
pub mod measurements;
pub mod relay;
pub mod replay;
pub mod replay_lag;
pub mod sampler;
pub mod tpcc;
pub mod trial;

pub use error::{BenchError, Result};
