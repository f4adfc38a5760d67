//! A database copied to another server, and kept in step there.
//!
//! | module | what |
//! |---|---|
//! | [`error`] | what can go wrong, and what a preflight finds |
//! | [`names`] | names of replicas |
//! | [`publication`] | what of each table is replicated, and whether the publication still is what the replica made |
//! | [`state`] | what is known about each replica, in the target; where tests let a process die |
//! | [`status`] | how a replica stands, what its source says, and which tables it does not send any more |
//! | [`schema`] | the schema, through pg_dump and pg_restore |
//! | [`preflight`] | what is looked at before anything is changed |
//! | [`copy`] | rows from source to target |
//! | [`lifecycle`] | a replica from its first check to its end: created, followed, removed |
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
pub mod error;
pub mod lifecycle;
pub mod names;
pub mod preflight;
pub mod publication;
pub mod schema;
pub mod state;
pub mod status;
pub mod verify;
