//! WAL read without a server: its segments and records, which of them Lockstep replays in
//! parallel, and how long that takes in a simulation.
//!
//! | module | what |
//! |---|---|
//! | [`segment`] | names of segments' files, headers of pages |
//! | [`record`] | a record's bytes to values |
//! | [`reader`] | records from pages, one after the other |
//! | [`folder`] | which segments of a folder belong together, and their pages |
//! | [`error`] | what can go wrong |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod class;
pub mod error;
pub mod folder;
pub mod names;
pub mod reader;
pub mod record;
pub mod segment;

pub use error::{Result, WalError};
pub use segment::SegmentSize;
