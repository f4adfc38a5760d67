//! Benchmarks, and what they are made of: workloads, trials, samplers, faults. The demo is one
//! trial of each variant.
//!
//! The modules are layers: each uses those above it in this table.
//!
//! | module | what |
//! |---|---|
//! | `endpoint` | where consumers of logical replication connect |
//! | `error` | what can go wrong |
//! | [`replay_lag`], [`sampler`] | positions of both ends over time, and lag from them |
//! | [`results`] | a benchmark's file |
//! | [`audience`] | who is shown how a run goes |
//! | [`lookups`] | look-ups of one user beside the load of another, timed |
//! | [`trial`] | fresh data, a fresh standby, load on both ends and what was measured |
//! | [`args`], [`host`] | arguments that several modules share, and the program that a run is a part of |
//! | [`table`], [`plot`] | a benchmark's table and its plots |
//! | [`benchmark`], `runner` | what a benchmark is made of, and what runs it |
//! | [`tpcc`] | TPC-C's data, transactions and consistency conditions |
//! | [`contents`] | what the tables of a database hold, to compare source and target |
//! | [`slow_calls`] | system calls of one process that take longer |
//! | [`relay`] | consumers of logical replication, direct or behind a relay |
//! | [`fault`] | causes of lag, injected one at a time |
//! | [`replay`] | how fast a standby replays, and its lag against the WAL it is offered |
//! | [`decode`] | passes of several output plugins over the same WAL |
//! | [`copying`] | ways to copy a database from one server to another, timed |
//! | [`commit_levels`], [`committing`] | servers on which commits are timed |
//! | [`switching`] | all writing moves to another server, under load |
//! | [`fleet`] | many replicas, and what watching them costs |
//! | [`pool`] | a pool of read nodes behind HAProxy, and its clients |
//! | [`benchmarks`] | the list of all benchmarks, and a file for each |
//! | [`demo`] | a stock standby and a Lockstep standby, one after the other |
//! | [`demo_pool`] | a pool of read nodes while nodes fall behind, are killed and added |
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
pub mod demo_pool;
mod endpoint;
mod error;
pub mod fault;
pub mod fleet;
pub mod host;
pub mod lookups;
pub mod measurements;
pub mod plot;
pub mod pool;
pub mod relay;
pub mod replay;
pub mod replay_lag;
pub mod results;
mod runner;
pub mod sampler;
pub mod slow_calls;
pub mod switching;
pub mod table;
pub mod tpcc;
pub mod trial;

pub use error::{BenchError, Result};
