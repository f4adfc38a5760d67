//! A database copied to another server, and kept in step there.
//!
//! | module | what |
//! |---|---|
//! | [`preflight`] | what is looked at before anything is changed |
//! | [`state`] | what is known about each replica, in the target |
//! | [`schema`] | the schema, through pg_dump and pg_restore |
//! | [`names`] | names of tables and replicas |
//! | [`error`] | what can go wrong |
//! | [`apply`] | the source's changes, applied in sets |
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

pub mod apply;
pub mod error;
pub mod names;
pub mod preflight;
pub mod schema;
pub mod state;
pub mod verify;
