//! Messages inside the copy of logical streaming: those of output plugin `pgoutput`, protocol
//! versions 1 to 4.
//!
//! | what | for a reader that |
//! |---|---|
//! | [`boundary`] | only needs to know where transactions begin and end |
//! | [`Message`] | needs all fields |
//! | [`frames`] | keeps messages as they go through a socket |
//!
//! Text in messages has the encoding that the client asked for when its session began, so here
//! it is bytes.

mod boundary;
mod decode;
mod encode;
pub mod frames;
mod message;
mod relation;
mod tuple;

pub use boundary::{Boundary, SchemaKey, boundary, tables_of};
pub use message::{Aborted, Commit, Context, Message, Prepared, TruncateOptions};
pub use relation::{Column, MOST_COLUMNS, Relation, ReplicaIdentity};
pub use tuple::{Old, Tuple, Value, Values};

/// The number of a transaction or subtransaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xid(pub u32);

/// True if this kind of message begins with its transaction's number inside a stream.
fn has_xid(tag: u8) -> bool {
    matches!(
        tag,
        tag::RELATION
            | tag::TYPE
            | tag::INSERT
            | tag::UPDATE
            | tag::DELETE
            | tag::TRUNCATE
            | tag::MESSAGE
    )
}

/// The first byte of each kind of message.
mod tag {
    pub const BEGIN: u8 = b'B';
    pub const COMMIT: u8 = b'C';
    pub const ORIGIN: u8 = b'O';
    pub const RELATION: u8 = b'R';
    pub const TYPE: u8 = b'Y';
    pub const INSERT: u8 = b'I';
    pub const UPDATE: u8 = b'U';
    pub const DELETE: u8 = b'D';
    pub const TRUNCATE: u8 = b'T';
    pub const MESSAGE: u8 = b'M';
    pub const BEGIN_PREPARE: u8 = b'b';
    pub const PREPARE: u8 = b'P';
    pub const COMMIT_PREPARED: u8 = b'K';
    pub const ROLLBACK_PREPARED: u8 = b'r';
    pub const STREAM_START: u8 = b'S';
    pub const STREAM_STOP: u8 = b'E';
    pub const STREAM_COMMIT: u8 = b'c';
    pub const STREAM_ABORT: u8 = b'A';
    pub const STREAM_PREPARE: u8 = b'p';
}

/// The flag of a message written with `pg_logical_emit_message` inside a transaction.
const TRANSACTIONAL: u8 = 1;
