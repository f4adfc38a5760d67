//! Where replication lag is, and why.
//!
//! [`watch`] asks every node the same questions several times a second, over a few seconds;
//! [`window`] holds the answers; [`links`] finds who replicates from whom; [`rules`] say
//! what the answers mean; [`diagnosis`] ranks them. Only [`node_sampler`], [`watch`],
//! [`monitor`], [`heartbeat`] and [`commit_probe`] do I/O. Only the last two write, and what
//! they create they drop.
//!
//! The modules are layers: each uses only those above it in this table, which a test holds.
//!
//! | module | what |
//! |---|---|
//! | [`figures`] | shares and medians |
//! | [`states`] | what servers and relays call their states, as enums |
//! | [`node`] | which servers, in which role, and what is wrong with them |
//! | [`patroni`] | the nodes of a cluster whose members Patroni names |
//! | [`nodes`] | the clusters and nodes that a user names, by conninfos and in a file |
//! | [`error`] | what can go wrong |
//! | [`process_cpu`] | CPU of server processes on this machine |
//! | [`tables`] | which tables are published, and which are followed |
//! | [`source`] | where a standby is meant to get WAL |
//! | [`views`] | rows of a server's views |
//! | [`relay`] | what a relay's console says |
//! | [`parallel_replay`] | what a standby says of replay by several processes |
//! | [`replica`] | what a target says of a `lockstep replica` |
//! | [`sample`] | one node at one moment |
//! | [`window`] | the samples of some seconds, and how to read them |
//! | [`parallel_report`] | replay by several processes over a window |
//! | [`questions`] | the SQL, and where PostgreSQL 15 to 19 differ |
//! | [`node_sampler`] | one connection that takes samples |
//! | [`watch`](mod@watch) | all nodes for some seconds |
//! | [`point`] | the positions of a link at one moment, and the stages between them |
//! | [`link`] | an arrow from a server to its replica |
//! | [`points`](mod@points) | the points of a link over a window, with ages |
//! | [`links`](mod@links) | which links there are |
//! | [`rules`] | cause by cause: signal, evidence, remedies |
//! | [`failover`] | which standby would be promoted, and what would be lost |
//! | [`diagnosis`] | causes ranked; what must be true, and whether it is; healthy or not |
//! | [`heartbeat`] | commit-to-visible latency, on request |
//! | [`commit_probe`] | commits at each level of `synchronous_commit`, on request |
//! | [`monitor`] | all nodes until it is dropped, with a history |
//! | `hostile_tests` | servers that answer anything |
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
pub mod failover;
pub mod figures;
pub mod heartbeat;
#[cfg(test)]
mod hostile_tests;
pub mod link;
pub mod links;
pub mod monitor;
pub mod node;
pub mod node_sampler;
pub mod nodes;
pub mod parallel_replay;
pub mod parallel_report;
pub mod patroni;
pub mod point;
pub mod points;
pub mod process_cpu;
pub mod questions;
pub mod relay;
pub mod replica;
pub mod rules;
pub mod sample;
pub mod source;
pub mod states;
pub mod tables;
pub mod views;
pub mod watch;
pub mod window;

pub use diagnosis::{Diagnosis, Finding, diagnose};
pub use error::{LagError, Result};
pub use node::{Node, Role, Trouble};
pub use rules::Cause;
pub use sample::Sample;
pub use window::Window;
