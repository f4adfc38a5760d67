//! The log: the upstream's stream as wire-ready frames, the newest of them in memory, all of
//! them in a spool on disk.
//!
//! One thread appends, one makes durable, any number read. Locks, in the order in which they
//! are taken:
//!
//! | lock | held by | over I/O |
//! |---|---|---|
//! | `writer` | append, cover, cut: what is being written | yes |
//! | `removing` | retain | yes |
//! | `syncing` | whoever makes something durable, one at a time: an error is told to one caller only, and must be known before another claims that its data is durable | yes |
//! | `shared` | everybody, for moments | no |
//!
//! Memory: the cache with its overhead stays within [`Limits::cache_bytes`]; besides there
//! are the descriptions in force ([`SCHEMA_LIMIT`] at most), one buffer of [`CHUNK_BYTES`]
//! for writing, 60 bytes for each segment, and for each reader what it was handed plus one
//! chunk, and of the descriptions where it began those that it has not told yet and that are not in
//! force any more.
//!
//! The modules are layers: each uses those above it in this table.
//!
//! | module | what |
//! |---|---|
//! | [`failpoint`] | where tests let a process die |
//! | `position` | places in the log and in a segment's file |
//! | `segment` | the disk format, with its corruption rules |
//! | `error` | what can go wrong |
//! | `storage` | a folder of files, which tests replace |
//! | `mark` | how far the log was durable, in a file beside the segments |
//! | [`kept`] | a small file that is replaced as a whole, with a checksum |
//! | `cache` | the newest frames, in memory |
//! | `index` | the segments, oldest first |
//! | `schema` | descriptions of tables that are in force |
//! | `state` | what the writer, the syncer and the readers share |
//! | `scan` | a segment read record by record |
//! | `units` | frames checked, and divided into units |
//! | `newest` | the segment to which records are written |
//! | `log` | the log: its locks, its limits, and where it stands |
//! | `create` | segments made, and the first one of a log |
//! | `sync` | what was written made durable |
//! | `write` | append, cover, cut |
//! | `retain` | segments removed that no reader needs any more |
//! | `reader` | units read from memory and from disk |
//! | `recover` | a log opened, its end cut where it is not whole |
//! | `assembler`, `assembler_tests` | a source's messages put together into frames |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod assembler;
#[cfg(test)]
mod assembler_tests;
mod cache;
mod create;
mod error;
pub mod failpoint;
mod index;
pub mod kept;
mod log;
mod mark;
mod newest;
mod position;
mod reader;
mod recover;
mod retain;
mod scan;
mod schema;
mod segment;
mod state;
mod storage;
mod sync;
mod units;
mod write;

pub use assembler::{Assembler, GATHER, StreamError};
pub use cache::CHUNK_OVERHEAD;
pub use error::{LogError, Result};
pub use log::{End, Limits, Log, Standing};
pub use position::LogPosition;
pub use reader::{MOST_PIECES, Read, Reader};
pub use recover::{Hole, Recovered};
pub use schema::SCHEMA_LIMIT;
pub use segment::CHUNK_BYTES;
pub use storage::{FileStorage, Folder, SpoolFile, Storage};
pub use write::parts;
