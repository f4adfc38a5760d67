//! A database copied to another server, and kept in step there.
//!
//! ```text
//!             preflight: facts ──> rules ──> findings (an error ends it)
//!                                    │
//!  source ── publication, slot ──> snapshot
//!     │                              │ one, imported by every session
//!     ├── pg_dump ── pre-data ───────┼──────────────────> target: tables
//!     │                              ▼                        │
//!     ├── COPY out ──> workers: small tables together, ──> COPY in, and in the same
//!     │                a table whole, a range of blocks      transaction lockstep.table_copy
//!     ├── pg_dump ── post-data, by jobs ────────────────> indexes, constraints
//!     └── sequences, which views are filled ────────────> setval, REFRESH, ANALYZE
//!                                                             │
//!                                     lockstep.replica: phase ready, start LSN
//!                                                             │
//!  source ── slot ──> spool, if there is one, on disk         │
//!                       └──> apply: merge, sets of rows ──────┴──────> target, origin
//! ```
//!
//! The phases and what each guarantees stand in [`state`]; a call after a crash goes on from the phase
//! that the target has.
//!
//! | module | what |
//! |---|---|
//! | [`preflight`] | what is looked at before anything is changed |
//! | [`state`] | what is known about each replica, in the target |
//! | [`schema`] | the schema, through pg_dump and pg_restore |
//! | [`copy`] | rows from source to target |
//! | [`finish`] | what follows the rows: sequences, materialised views, statistics |
//! | [`create`], [`remove`] | a replica from its first check to its end |
//! | `exporter` | the snapshot that is copied, and the slot that goes on from it |
//! | [`lost`] | tables that were copied and are not replicated any more |
//! | [`publication`] | whether the publication still is what the replica made |
//! | [`names`] | names of tables and replicas |
//! | [`subset`] | what of a table is replicated: row filter and column list |
//! | [`error`] | what can go wrong |
//! | [`failpoint`] | where tests let a process die |
//! | [`follow`], [`daemon`] | a replica that applies, as its state wants it; several in one process |
//! | [`standing`], [`source`] | how a replica stands, and what its source says |
//! | [`verify`] | both sides compared at one moment |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod copy;
pub mod create;
pub mod daemon;
pub mod error;
mod exporter;
pub mod failpoint;
pub mod finish;
pub mod follow;
pub mod lost;
pub mod names;
pub mod preflight;
pub mod publication;
pub mod remove;
pub mod schema;
pub mod source;
pub mod standing;
pub mod state;
pub mod subset;
pub mod verify;
