//! The relay: decodes a primary's WAL once, keeps the stream in memory and on disk, and
//! serves every logical subscriber from there.
//!
//! ```text
//!            upstream slot                        ordinary subscribers
//! primary ──────────────> receive ─> log ─> send ────────────────────>
//!    ▲                                              │ pass-through
//!    └──────────────────────── serve <──────────────┘
//! ```
//!
//! The modules are layers: each uses only those above it in this table, which a test holds.
//!
//! | module | what |
//! |---|---|
//! | `lock` | locks that outlive a panic |
//! | `said` | what was said last, so that the log has it once |
//! | [`stats`] | what the relay counts |
//! | [`fault`] | what only tests make: faults to be found |
//! | [`config`] | the configuration file and what it may say |
//! | [`error`] | what can go wrong in a relay as a whole |
//! | [`slots`] | who reads, and how far each has confirmed |
//! | [`identity`] | which spool a slot on the primary belongs to |
//! | [`retention`] | what of a log may be removed, and how room is made |
//! | [`adoption`] | how a slot of the primary becomes the relay's; no I/O |
//! | [`routes`] | which groups a slot reads, and when it goes back to the primary; no I/O |
//! | [`spare`] | what is given up while the primary has too few walsenders or slots; no I/O |
//! | [`synchronous`] | what a primary that waits for its standbys sees of a group |
//! | [`output_settings`] | settings on which the text of values depends |
//! | [`primary`] | where the primary is |
//! | [`continuity`] | why a group does not go on with a primary, in words |
//! | [`upstream_slot`] | a group's slot on the primary: how it is made, and whose the slots there are |
//! | [`group`] | one upstream slot and the log it fills |
//! | [`receive`] | a group as the host of its stream: what receives it is crate `intake` |
//! | `token` | SQL as words |
//! | [`slot_sql`] | what a client's SQL asks of slots, and what the primary gets instead; no I/O |
//! | [`session`] | what a session and the relay ask of each other |
//! | [`send`] | a walsender's part for one subscriber |
//! | [`serve`] | listener, TLS, logins, pass-through to the primary |
//! | [`terms`] | what the configuration asks of sessions |
//! | [`clients`] | the sessions that are there, and how one is ended or its command canceled |
//! | [`look`] | what the relay asks the primary once a minute |
//! | [`unguarded`] | rules of the primary that let the relay's clients in without a password |
//! | [`relay`] | all groups, slots and sessions, and what is done every second |
//! | [`stream_options`] | what a subscriber asks for in `START_REPLICATION` |
//! | [`slot_commands`] | what becomes of replication commands |
//! | [`console`] | the relay's own console |
//! | [`metrics`] | metrics and health over HTTP |
//! | [`endpoints`] | where a relay is reached: listener, console, metrics |
//! | [`run`] | a relay from its start to its end |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod adoption;
pub mod clients;
pub mod config;
pub mod console;
pub mod continuity;
pub mod endpoints;
pub mod error;
pub mod fault;
pub mod group;
pub mod identity;
mod lock;
pub mod look;
pub mod metrics;
pub mod output_settings;
pub mod primary;
pub mod receive;
pub mod relay;
pub mod retention;
pub mod routes;
pub mod run;
mod said;
pub mod send;
pub mod serve;
pub mod session;
pub mod slot_commands;
pub mod slot_sql;
pub mod slots;
pub mod spare;
pub mod stats;
pub mod stream_options;
pub mod synchronous;
pub mod terms;
mod token;
pub mod unguarded;
pub mod upstream_slot;
