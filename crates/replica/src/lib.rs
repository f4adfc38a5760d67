//! A database copied to another server, and kept in step there.
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
