//! Where transactions begin and end, told from a message's fixed fields.

use super::{TRANSACTIONAL, tag};
use crate::cursor::Cursor;
use crate::{Lsn, Result, WireError};

/// A table or a type that later messages refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SchemaKey {
    /// A table's object identifier.
    Relation(u32),
    /// A type's object identifier.
    Type(u32),
}

/// What a message is to who only keeps transactions whole.
///
/// A *key* is where the record that ends the transaction starts, an *end* the position
/// right after it. One transaction's end may be the next one's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// A transaction begins: Begin, BeginPrepare.
    Begin {
        /// Its key.
        key: Lsn,
    },
    /// It ends: Commit, Prepare.
    End {
        /// The key that it began with.
        key: Lsn,
        /// Its end.
        end: Lsn,
    },
    /// A message outside of any transaction: CommitPrepared, RollbackPrepared, a Message
    /// that is not transactional.
    Whole {
        /// Its key; only CommitPrepared says one.
        key: Option<Lsn>,
        /// Its end.
        end: Lsn,
    },
    /// What a table or a type looks like from here on. It may stand wherever a change may.
    Schema(SchemaKey),
    /// Anything else inside a transaction.
    Change,
}

/// What `message` is, without a look at its rows or names.
///
/// Parts of transactions in progress are errors: nobody here asks for them
/// (`streaming 'on'`), and their fields stand elsewhere.
#[inline]
pub fn boundary(message: &[u8]) -> Result<Boundary> {
    match message.first().copied() {
        Some(tag::INSERT | tag::UPDATE | tag::DELETE | tag::TRUNCATE | tag::ORIGIN) => {
            Ok(Boundary::Change)
        }
        _ => other(message),
    }
}

fn other(message: &[u8]) -> Result<Boundary> {
    let mut cursor = Cursor::new(message, "message of pgoutput");
    match cursor.u8()? {
        tag::BEGIN => {
            let key = cursor.valid_lsn()?;
            // Time and transaction.
            cursor.take(12)?;
            cursor.end().map(|()| Boundary::Begin { key })
        }
        tag::COMMIT => {
            // Flags.
            cursor.u8()?;
            let key = cursor.valid_lsn()?;
            let end = cursor.valid_lsn()?;
            // Time.
            cursor.take(8)?;
            cursor.end().map(|()| Boundary::End { key, end })
        }
        tag::BEGIN_PREPARE => {
            let (key, _) = prepared(cursor, 8)?;
            Ok(Boundary::Begin { key })
        }
        tag::PREPARE => {
            cursor.u8()?;
            let (key, end) = prepared(cursor, 8)?;
            Ok(Boundary::End { key, end })
        }
        tag::COMMIT_PREPARED => {
            cursor.u8()?;
            let (key, end) = prepared(cursor, 8)?;
            let key = Some(key);
            Ok(Boundary::Whole { key, end })
        }
        tag::ROLLBACK_PREPARED => {
            cursor.u8()?;
            // The first position is where what is rolled back was prepared.
            let (_, end) = prepared(cursor, 16)?;
            Ok(Boundary::Whole { key: None, end })
        }
        tag::MESSAGE => match cursor.u8()? & TRANSACTIONAL {
            0 => Ok(Boundary::Whole {
                key: None,
                end: cursor.valid_lsn()?,
            }),
            _ => Ok(Boundary::Change),
        },
        tag::RELATION => Ok(Boundary::Schema(SchemaKey::Relation(cursor.u32()?))),
        tag::TYPE => Ok(Boundary::Schema(SchemaKey::Type(cursor.u32()?))),
        tag::STREAM_START
        | tag::STREAM_STOP
        | tag::STREAM_COMMIT
        | tag::STREAM_ABORT
        | tag::STREAM_PREPARE => Err(WireError::Malformed(
            "a part of a transaction in progress, which nobody asked for",
        )),
        tag => Err(WireError::UnknownMessage(tag)),
    }
}

/// The two positions that messages of two-phase commit begin with, once all of the rest is
/// known to be there: `times` bytes of clocks, a transaction, the name it was prepared by.
fn prepared(mut cursor: Cursor<'_>, times: usize) -> Result<(Lsn, Lsn)> {
    let positions = (cursor.valid_lsn()?, cursor.valid_lsn()?);
    cursor.take(times + 4)?;
    cursor.c_bytes()?;
    cursor.end().map(|()| positions)
}
