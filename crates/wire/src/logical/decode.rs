//! Decodes messages.

use super::{
    Aborted, Commit, Context, Message, Old, Prepared, Relation, TRANSACTIONAL, TruncateOptions,
    Tuple, Xid, has_xid, tag,
};
use crate::cursor::Cursor;
use crate::stream::Timestamp;
use crate::{Result, WireError};

impl<'a> Message<'a> {
    /// Parses a message. Inside a stream, changes and what they refer to begin with the number
    /// of their transaction or subtransaction, which is returned as well.
    pub fn parse(bytes: &'a [u8], context: Context) -> Result<(Option<Xid>, Self)> {
        let mut cursor = Cursor::new(bytes, "message of pgoutput");
        let tag = cursor.u8()?;
        let streamed = match context.in_stream && has_xid(tag) {
            true => Some(xid(&mut cursor)?),
            false => None,
        };
        if streamed == Some(Xid(0)) {
            return Err(WireError::Malformed("a change of no transaction"));
        }
        let message = match tag {
            tag::BEGIN => Self::Begin {
                final_lsn: cursor.valid_lsn()?,
                commit_time: time(&mut cursor)?,
                xid: xid(&mut cursor)?,
            },
            tag::COMMIT => Self::Commit(commit(&mut cursor)?),
            tag::ORIGIN => Self::Origin {
                lsn: cursor.lsn()?,
                name: cursor.c_bytes()?,
            },
            tag::RELATION => Self::Relation(Relation::parse(&mut cursor)?),
            tag::TYPE => Self::Type {
                id: cursor.u32()?,
                namespace: cursor.c_bytes()?,
                name: cursor.c_bytes()?,
            },
            tag::INSERT => insert(&mut cursor)?,
            tag::UPDATE => update(&mut cursor)?,
            tag::DELETE => delete(&mut cursor)?,
            tag::TRUNCATE => truncate(&mut cursor)?,
            tag::MESSAGE => Self::Message {
                transactional: cursor.u8()? & TRANSACTIONAL != 0,
                lsn: cursor.valid_lsn()?,
                prefix: cursor.c_bytes()?,
                content: cursor.counted()?,
            },
            _ => prepared_or_streamed(tag, &mut cursor, context)?,
        };
        cursor.end().map(|()| (streamed, message))
    }
}

fn prepared_or_streamed<'a>(
    tag: u8,
    cursor: &mut Cursor<'a>,
    context: Context,
) -> Result<Message<'a>> {
    Ok(match tag {
        tag::BEGIN_PREPARE => Message::BeginPrepare(prepared(cursor)?),
        tag::PREPARE => {
            flags(cursor)?;
            Message::Prepare(prepared(cursor)?)
        }
        tag::COMMIT_PREPARED => {
            flags(cursor)?;
            Message::CommitPrepared(prepared(cursor)?)
        }
        tag::STREAM_PREPARE => {
            flags(cursor)?;
            Message::StreamPrepare(prepared(cursor)?)
        }
        tag::ROLLBACK_PREPARED => {
            flags(cursor)?;
            Message::RollbackPrepared {
                prepare_end_lsn: cursor.valid_lsn()?,
                rollback_end_lsn: cursor.valid_lsn()?,
                prepare_time: time(cursor)?,
                rollback_time: time(cursor)?,
                xid: xid(cursor)?,
                gid: cursor.c_bytes()?,
            }
        }
        tag::STREAM_START => Message::StreamStart {
            xid: xid(cursor)?,
            first: cursor.u8()? == 1,
        },
        tag::STREAM_STOP => Message::StreamStop,
        tag::STREAM_COMMIT => Message::StreamCommit {
            xid: xid(cursor)?,
            commit: commit(cursor)?,
        },
        tag::STREAM_ABORT => Message::StreamAbort {
            xid: xid(cursor)?,
            subxid: xid(cursor)?,
            aborted: match context.abort_details {
                true => Some(Aborted {
                    lsn: cursor.lsn()?,
                    time: time(cursor)?,
                }),
                false => None,
            },
        },
        tag => return Err(WireError::UnknownMessage(tag)),
    })
}

fn xid(cursor: &mut Cursor<'_>) -> Result<Xid> {
    cursor.u32().map(Xid)
}

fn time(cursor: &mut Cursor<'_>) -> Result<Timestamp> {
    cursor.i64().map(Timestamp)
}

fn flags(cursor: &mut Cursor<'_>) -> Result<()> {
    match cursor.u8()? {
        0 => Ok(()),
        _ => Err(WireError::Malformed("flags of a later protocol version")),
    }
}

fn commit(cursor: &mut Cursor<'_>) -> Result<Commit> {
    flags(cursor)?;
    Ok(Commit {
        commit_lsn: cursor.valid_lsn()?,
        end_lsn: cursor.valid_lsn()?,
        commit_time: time(cursor)?,
    })
}

fn prepared<'a>(cursor: &mut Cursor<'a>) -> Result<Prepared<'a>> {
    Ok(Prepared {
        lsn: cursor.valid_lsn()?,
        end_lsn: cursor.valid_lsn()?,
        time: time(cursor)?,
        xid: xid(cursor)?,
        gid: cursor.c_bytes()?,
    })
}

/// Reads the new row; its tag was read already.
fn new<'a>(tag: u8, cursor: &mut Cursor<'a>) -> Result<Tuple<'a>> {
    match tag {
        b'N' => Tuple::parse(cursor),
        _ => Err(WireError::Malformed("no new row where there must be one")),
    }
}

fn insert<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>> {
    let relation = cursor.u32()?;
    let new = new(cursor.u8()?, cursor)?;
    Ok(Message::Insert { relation, new })
}

fn update<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>> {
    let relation = cursor.u32()?;
    let tag = cursor.u8()?;
    let old = Old::parse(tag, cursor)?;
    let tag = match old {
        Some(_) => cursor.u8()?,
        None => tag,
    };
    let new = new(tag, cursor)?;
    Ok(Message::Update { relation, old, new })
}

fn delete<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>> {
    let relation = cursor.u32()?;
    let old = Old::parse(cursor.u8()?, cursor)?
        .ok_or(WireError::Malformed("no old row where there must be one"))?;
    Ok(Message::Delete { relation, old })
}

fn truncate<'a>(cursor: &mut Cursor<'a>) -> Result<Message<'a>> {
    let number = cursor.u32()?;
    let options = TruncateOptions(cursor.u8()?);
    // No memory is reserved: the message may be shorter than the number says.
    let mut relations = Vec::new();
    for _ in 0..number {
        relations.push(cursor.u32()?);
    }
    Ok(Message::Truncate { options, relations })
}
