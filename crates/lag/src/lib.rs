//! Where replication lag is, and why.
//!
//! [`watch`] asks every node the same questions several times a second, over a few seconds;
//! [`window`] holds the answers; [`links`] finds who replicates from whom; [`rules`] say
//! what the answers mean; [`diagnosis`] ranks them. Only [`node_sampler`], [`watch`],
//! [`monitor`], [`heartbeat`] and [`commit_probe`] do I/O. Only the last two write, and what
//! they create they drop.
//!
//! | module | what |
//! |---|---|
//! | [`node`] | which servers, in which role, and what is wrong with them |
//! | [`sample`] | one node at one moment |
//! | [`relay`] | what a relay's console says |
//! | [`parallel_replay`] | what a standby says of replay by several processes |
//! | [`replica`] | what a target says of a `lockstep replica` |
//! | [`states`] | what servers and relays call their states, as enums |
//! | [`questions`] | the SQL, and where PostgreSQL 15 to 19 differ |
//! | [`tables`] | which tables are published, and which are followed |
//! | [`node_sampler`] | one connection that takes samples |
//! | [`process_cpu`] | CPU of server processes on this machine |
//! | [`watch`] | all nodes for some seconds |
//! | [`window`] | the samples of some seconds, and how to read them |
//! | [`links`] | each arrow from a server to its replica |
//! | [`rules`] | cause by cause: signal, evidence, remedies |
//! | [`diagnosis`] | causes ranked; healthy or not |
//! | [`monitor`] | all nodes until it is dropped, with a history |
//! | [`heartbeat`] | commit-to-visible latency, on request |
//! | [`commit_probe`] | commits at each level of `synchronous_commit`, on request |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod commit_probe;
pub mod diagnosis;
pub mod error;
pub mod heartbeat;
#[cfg(test)]
mod hostile_tests;
pub mod links;
pub mod monitor;
pub mod node;
pub mod node_sampler;
pub mod parallel_replay;
pub mod points;
pub mod position;
pub mod process_cpu;
pub mod questions;
pub mod relay;
pub mod replica;
pub mod rules;
pub mod sample;
pub mod states;
pub mod tables;
pub mod watch;
pub mod window;

pub use diagnosis::{Diagnosis, Finding, diagnose};
pub use error::{LagError, Result};
pub use node::{Node, Role, Trouble};
pub use rules::Cause;
pub use sample::Sample;
pub use window::Window;
