//! The relay: decodes a primary's WAL once, keeps the stream in memory and on disk, and
//! serves every logical subscriber from there.
//!
//! ```text
//!            upstream slot                        ordinary subscribers
//! primary ──────────────> ingest ──> log ──────> serve ──────────────>
//!    ▲                               (cache, spool)│ pass-through
//!    └─────────────────────────────────────────────┘
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`config`] | the configuration file and what it may say |
//! | [`ingest`] | from the upstream's messages to wire-ready frames in the log |
//! | [`log`] | the stream: cache in memory, spool on disk, readers |
//! | [`slots`] | who reads, and how far each has confirmed |
//! | [`primary`] | where the primary is |
//! | [`group`] | one upstream slot and the log it fills |
//! | [`session`] | what a session and the relay ask of each other |
//! | [`serve`] | listener, TLS, pass-through to the primary, streaming |
//! | [`console`], [`metrics`], [`stats`] | what the relay says about itself |
//! | [`owner`], [`wanted`] | what becomes of replication commands; what a subscriber asks for |
//! | [`streaming`] | a walsender's part for one subscriber |
//! | [`service`] | listener, console and metrics around a relay |
//! | [`relay`] | all of it together |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod config;
pub mod console;
pub mod error;
pub mod group;
pub mod ingest;
mod lock;
pub mod log;
pub mod metrics;
pub mod owner;
pub mod primary;
pub mod relay;
pub mod serve;
pub mod service;
pub mod session;
pub mod slots;
pub mod stats;
pub mod streaming;
pub mod wanted;
