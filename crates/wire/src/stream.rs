//! What goes through the copy of streaming, each in one CopyData message.
//!
//! Physical and logical streaming share it. What XLogData carries is WAL in the one, in the
//! other a message of an output plugin ([`crate::logical`], [`crate::batch`]).

use crate::cursor::Cursor;
use crate::{Lsn, Result, WireError};

/// Bytes of an XLogData message before the WAL.
pub const XLOG_DATA_HEADER: usize = 25;

/// Most WAL in one message of a walsender.
pub const MOST_WAL: usize = 128 * 1024;

/// Microseconds since 2000-01-01, as clocks are written in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// From 1970 to 2000, in microseconds.
    const SHIFT: i64 = 946_684_800_000_000;

    /// From microseconds since 1970.
    pub fn from_unix_micros(micros: i64) -> Self {
        Self(micros.saturating_sub(Self::SHIFT))
    }
}

/// From the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromServer<'a> {
    /// A piece of WAL, or a message of an output plugin.
    XLogData {
        /// Position of its first byte. Of a message: what it is about, or `0/0`.
        start: Lsn,
        /// Where the server's WAL ends. Of a message: the same as `start`.
        end: Lsn,
        /// The server's clock.
        sent_at: Timestamp,
        /// The piece, or the message.
        wal: &'a [u8],
    },
    /// A sign of life.
    Keepalive {
        /// Where the server's WAL ends. In logical streaming: how far it is read, which may
        /// be beyond what was sent ([`crate::batch::Payload::Marker`]).
        end: Lsn,
        /// The server's clock.
        sent_at: Timestamp,
        /// The other side shall answer at once.
        reply: bool,
    },
}

impl<'a> FromServer<'a> {
    /// The content of a CopyData message.
    pub fn parse(data: &'a [u8]) -> Result<Self> {
        let mut cursor = Cursor::new(data, "streaming message of the server");
        match cursor.u8()? {
            b'w' => Ok(Self::XLogData {
                start: cursor.lsn()?,
                end: cursor.lsn()?,
                sent_at: Timestamp(cursor.i64()?),
                wal: cursor.rest(),
            }),
            b'k' => {
                let message = Self::Keepalive {
                    end: cursor.lsn()?,
                    sent_at: Timestamp(cursor.i64()?),
                    reply: cursor.u8()? != 0,
                };
                cursor.end().map(|()| message)
            }
            tag => Err(WireError::UnknownMessage(tag)),
        }
    }

    /// Appends the content of a CopyData message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::XLogData {
                start,
                end,
                sent_at,
                wal,
            } => {
                out.extend(xlog_data_header(*start, *end, *sent_at));
                out.extend_from_slice(wal);
            }
            Self::Keepalive {
                end,
                sent_at,
                reply,
            } => {
                out.push(b'k');
                out.extend(u64::from(*end).to_be_bytes());
                out.extend(sent_at.0.to_be_bytes());
                out.push(u8::from(*reply));
            }
        }
    }
}

/// An XLogData message up to its WAL, for senders that keep the WAL in a buffer of their own.
pub fn xlog_data_header(start: Lsn, end: Lsn, sent_at: Timestamp) -> [u8; XLOG_DATA_HEADER] {
    let mut header = [0; XLOG_DATA_HEADER];
    let fields = [
        &[b'w'][..],
        &u64::from(start).to_be_bytes(),
        &u64::from(end).to_be_bytes(),
        &sent_at.0.to_be_bytes(),
    ];
    for (place, byte) in header.iter_mut().zip(fields.into_iter().flatten()) {
        *place = *byte;
    }
    header
}

/// From the standby, or whoever receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromStandby {
    /// How far it is.
    Status(Status),
    /// What its queries need.
    Feedback(HotStandbyFeedback),
}

/// How far a receiver is. Positions are of the last byte + 1; `0/0` says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// Given to its operating system.
    pub written: Lsn,
    /// Durable on its disk. A slot for logical replication is confirmed up to here.
    pub flushed: Lsn,
    /// Replayed.
    pub applied: Lsn,
    /// Its clock.
    pub sent_at: Timestamp,
    /// The server shall answer at once.
    pub reply: bool,
}

/// The oldest transactions that a standby's queries and slots need; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HotStandbyFeedback {
    /// The standby's clock.
    pub sent_at: Timestamp,
    /// Oldest transaction of its queries.
    pub xmin: u32,
    /// Epoch of `xmin`.
    pub xmin_epoch: u32,
    /// Oldest transaction of its slots' catalogs.
    pub catalog_xmin: u32,
    /// Epoch of `catalog_xmin`.
    pub catalog_xmin_epoch: u32,
}

impl FromStandby {
    /// The content of a CopyData message.
    pub fn parse(data: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(data, "streaming message of the standby");
        let message = match cursor.u8()? {
            b'r' => Self::Status(Status {
                written: cursor.lsn()?,
                flushed: cursor.lsn()?,
                applied: cursor.lsn()?,
                sent_at: Timestamp(cursor.i64()?),
                reply: cursor.u8()? != 0,
            }),
            b'h' => Self::Feedback(HotStandbyFeedback {
                sent_at: Timestamp(cursor.i64()?),
                xmin: cursor.u32()?,
                xmin_epoch: cursor.u32()?,
                catalog_xmin: cursor.u32()?,
                catalog_xmin_epoch: cursor.u32()?,
            }),
            tag => return Err(WireError::UnknownMessage(tag)),
        };
        cursor.end().map(|()| message)
    }

    /// Appends the content of a CopyData message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Status(status) => {
                out.push(b'r');
                for lsn in [status.written, status.flushed, status.applied] {
                    out.extend(u64::from(lsn).to_be_bytes());
                }
                out.extend(status.sent_at.0.to_be_bytes());
                out.push(u8::from(status.reply));
            }
            Self::Feedback(feedback) => {
                out.push(b'h');
                out.extend(feedback.sent_at.0.to_be_bytes());
                for number in [
                    feedback.xmin,
                    feedback.xmin_epoch,
                    feedback.catalog_xmin,
                    feedback.catalog_xmin_epoch,
                ] {
                    out.extend(number.to_be_bytes());
                }
            }
        }
    }
}
