//! Where replication lag is, and why.
//!
//! [`watch`] asks every node the same questions several times a second, over a few seconds;
//! [`window`] holds the answers; [`links`] finds who replicates from whom; [`rules`] say
//! what the answers mean; [`diagnosis`] ranks them. Only [`probe`], [`watch`], [`monitor`],
//! [`heartbeat`] and [`trial`] do I/O, and only the last two write: what they make they drop.
//!
//! | module | what |
//! |---|---|
//! | [`node`] | which servers, in which role, and what is wrong with them |
//! | [`sample`] | one node at one moment |
//! | [`relay`] | what a relay's console says |
//! | [`plain`] | text that does nothing but to be read |
//! | [`questions`] | the SQL, and where PostgreSQL 15 to 18 differ |
//! | [`probe`] | one connection that takes samples |
//! | [`local`] | CPU of processes on this machine |
//! | [`watch`] | all nodes for some seconds |
//! | [`window`] | the samples of some seconds, and how to read them |
//! | [`links`] | each arrow from a server to its replica |
//! | [`rules`] | cause by cause: signal, evidence, remedies |
//! | [`diagnosis`] | causes ranked; healthy or not |
//! | [`monitor`] | all nodes for as long as it takes, with a history |
//! | [`heartbeat`] | commit-to-visible latency, on request |
//! | [`trial`] | commits at each level of `synchronous_commit`, on request |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod diagnosis;
pub mod error;
pub mod heartbeat;
#[cfg(test)]
mod hostile_tests;
pub mod links;
pub mod local;
pub mod monitor;
pub mod node;
pub mod plain;
pub mod position;
pub mod probe;
pub mod questions;
pub mod relay;
pub mod rules;
pub mod sample;
pub mod trial;
pub mod watch;
pub mod window;

pub use diagnosis::{Diagnosis, Finding, diagnose};
pub use error::{LagError, Result};
pub use node::{Node, Role, Trouble};
pub use sample::Sample;
pub use window::Window;
