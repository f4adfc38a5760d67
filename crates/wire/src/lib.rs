//! The vocabulary of PostgreSQL's streaming replication: bytes to values and back.
//!
//! No I/O, no clock, no state. Whoever reads from a socket asks [`frame`] or [`startup`]
//! how long the next message is, refuses what is over a limit of its own choice, and
//! hands the bytes over. Nothing here panics or allocates more than the bytes given,
//! whatever they are: every length inside a message is checked against the message.
//!
//! Modules use only those above them:
//!
//! | module | what |
//! |---|---|
//! | [`error`] | what can go wrong |
//! | [`lsn`] | positions, timelines, system identifiers |
//! | `cursor` | values from the bytes of a message, each checked against its end |
//! | [`frame`] | a message's tag and length |
//! | [`standby_names`] | whom a primary waits for |
//! | [`command`] | replication commands, as text |
//! | [`identifiers`] | names as the server reads them in settings and options |
//! | [`publication_names`] | the list of names in a command's option of that name |
//! | [`startup`] | what a client sends first |
//! | [`frontend`], [`backend`] | messages of either side afterwards |
//! | [`stream`] | what goes through the copy of streaming |
//! | [`logical`] | the messages that logical streaming carries |
//! | [`batch`] | several of them in one, as output plugin `lockstep` sends them |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod backend;
pub mod batch;
pub mod command;
mod cursor;
pub mod error;
pub mod frame;
pub mod frontend;
pub mod identifiers;
pub mod logical;
pub mod lsn;
pub mod publication_names;
pub mod standby_names;
pub mod startup;
pub mod stream;

pub use error::{Result, WireError};
pub use lsn::{Lsn, SystemId, Timeline};
