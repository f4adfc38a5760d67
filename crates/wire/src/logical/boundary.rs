//! Where transactions begin and end, read from the fixed fields of messages.

use super::{TRANSACTIONAL, tag};
use crate::cursor::Cursor;
use crate::{Lsn, Result, WireError};

/// A table or a type that later messages refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SchemaKey {
    /// Object identifier of a table.
    Relation(u32),
    /// Object identifier of a type.
    Type(u32),
}

/// What a message means to a reader that only keeps transactions whole.
///
/// A *key* is the position at which the record that ends the transaction starts. An *end* is
/// the position right after that record. The end of one transaction may be the key of the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// A transaction begins: Begin, BeginPrepare.
    Begin { key: Lsn },
    /// The transaction ends: Commit, Prepare.
    End {
        /// The key in the transaction's Begin.
        key: Lsn,
        end: Lsn,
    },
    /// A message outside of any transaction: CommitPrepared, RollbackPrepared, or a Message
    /// that is not transactional.
    Whole {
        /// Only CommitPrepared has one.
        key: Option<Lsn>,
        end: Lsn,
    },
    /// Describes a table or a type from here on. May come wherever a change may.
    Schema(SchemaKey),
    /// Anything else inside a transaction.
    Change,
}

/// Classifies `message` without reading rows or names.
///
/// Messages of streamed transactions in progress are errors: no caller asks for them
/// (`streaming 'on'`), and their fields have other places.
#[inline]
pub fn boundary(message: &[u8]) -> Result<Boundary> {
    match message.first().copied() {
        Some(tag::INSERT | tag::UPDATE | tag::DELETE | tag::TRUNCATE | tag::ORIGIN) => {
            Ok(Boundary::Change)
        }
        _ => other(message),
    }
}

/// Object identifiers of the tables that a change refers to; none if the message is no change of
/// rows.
pub fn tables_of(message: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let (tag, body) = message.split_first().unwrap_or((&0, &[]));
    let tables = match *tag {
        tag::INSERT | tag::UPDATE | tag::DELETE => body.get(..4),
        // Their number and the options come first.
        tag::TRUNCATE => body.get(5..),
        _ => None,
    };
    let tables = tables.unwrap_or_default().chunks_exact(4);
    tables.filter_map(|table| Some(u32::from_be_bytes(table.try_into().ok()?)))
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
            // The first position is that of the prepare which is rolled back.
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

/// Reads the two positions that messages of two-phase commit begin with. Checks that the rest
/// is there: `times` bytes of clocks, a transaction number, and the transaction's name.
fn prepared(mut cursor: Cursor<'_>, times: usize) -> Result<(Lsn, Lsn)> {
    let positions = (cursor.valid_lsn()?, cursor.valid_lsn()?);
    cursor.take(times + 4)?;
    cursor.c_bytes()?;
    cursor.end().map(|()| positions)
}
