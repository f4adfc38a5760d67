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
//! | [`error`] | what can go wrong, and what a preflight finds |
//! | [`names`] | names of replicas |
//! | [`budget`] | which cycle fits into which time; no I/O |
//! | [`publication`] | what of each table is replicated, and whether the publication still is what the replica made |
//! | [`state`] | what is known about each replica, in the target; where tests let a process die |
//! | `capture` | event triggers on the source that write changes of its schema into the stream |
//! | [`status`] | how a replica stands, what its source says, and which tables it does not send any more |
//! | [`schema`] | the schema, through pg_dump and pg_restore |
//! | [`preflight`] | what is looked at before anything is changed |
//! | [`copy`] | rows from source to target |
//! | [`lifecycle`] | a replica from its first check to its end: created, followed, removed |
//! | [`verify`] | both sides compared at one moment |
//! | [`switchover`] | all writing moves to the target, with a way back |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod budget;
mod capture;
pub mod copy;
pub mod error;
pub mod lifecycle;
pub mod names;
pub mod preflight;
pub mod publication;
pub mod schema;
pub mod state;
pub mod status;
pub mod switchover;
pub mod verify;
