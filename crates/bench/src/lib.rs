//! Benchmarks, and what they are made of: workloads, trials, samplers, faults. The demo is one
//! trial of each variant.
//!
//! | module | what |
//! |---|---|
//! | [`benchmarks`] | the list of all benchmarks, and a file for each |
//! | [`benchmark`], `runner` | what a benchmark is made of, and what runs it |
//! | [`results`], [`table`], [`plot`] | its file, its table and its plots |
//! | [`audience`], [`host`] | who is shown how a run goes, and the program that it is a part of |
//! | [`args`] | arguments that several modules share |
//! | [`demo`] | a stock standby and a Lockstep standby, one after the other |
//! | [`trial`] | fresh data, a fresh standby, load on both ends and what was measured |
//! | [`sampler`], [`replay_lag`] | positions of both ends over time, and lag from them |
//! | [`tpcc`] | TPC-C's data, transactions and consistency conditions |
//! | [`fault`] | causes of lag, injected one at a time |
//! | [`replay`] | how fast a standby replays, and its lag against the WAL it is offered |
//! | [`decode`] | passes of several output plugins over the same WAL |
//! | [`relay`] | consumers of logical replication, direct or behind a relay |
//! | [`contents`] | what the tables of a database hold, to compare source and target |
//! | [`copying`] | ways to copy a database from one server to another, timed |
//! | [`commit_levels`], [`committing`] | servers on which commits are timed |
//! | [`fleet`] | many replicas, and what watching them costs |
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

pub mod args;
pub mod audience;
pub mod benchmark;
pub mod benchmarks;
pub mod commit_levels;
pub mod committing;
pub mod contents;
pub mod copying;
pub mod decode;
pub mod demo;
mod error;
pub mod fault;
pub mod fleet;
pub mod host;
pub mod measurements;
pub mod plot;
pub mod relay;
pub mod replay;
pub mod replay_lag;
pub mod results;
mod runner;
pub mod sampler;
pub mod table;
pub mod tpcc;
pub mod trial;

pub use error::{BenchError, Result};
