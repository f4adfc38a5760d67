//! Messages inside the copy of streaming, each in one CopyData message.
//!
//! Physical and logical streaming share them. XLogData carries WAL in physical streaming, and a
//! message of an output plugin in logical streaming ([`crate::logical`], [`crate::batch`]).

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
    /// Microseconds from 1970 to 2000.
    const SHIFT: i64 = 946_684_800_000_000;

    pub fn from_unix_micros(micros: i64) -> Self {
        Self(micros.saturating_sub(Self::SHIFT))
    }
}

/// What the server sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromServer<'a> {
    /// A piece of WAL, or a message of an output plugin.
    XLogData {
        /// Position of the WAL's first byte. In logical streaming: position of the message, or
        /// `0/0`.
        start: Lsn,
        /// End of the server's WAL. In logical streaming: the same as `start`.
        end: Lsn,
        sent_at: Timestamp,
        /// The WAL, or the message.
        wal: &'a [u8],
    },
    /// Sent when there is nothing else to send.
    Keepalive {
        /// End of the server's WAL. In logical streaming: the position up to which WAL was
        /// decoded, which may be beyond what was sent ([`crate::batch::Payload::Marker`]).
        end: Lsn,
        sent_at: Timestamp,
        /// The receiver must answer at once.
        reply: bool,
    },
}

impl<'a> FromServer<'a> {
    /// Parses the content of a CopyData message.
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

/// An XLogData message without its WAL, for a sender that keeps the WAL in a buffer of its own.
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

/// What a standby or another receiver sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromStandby {
    Status(Status),
    Feedback(HotStandbyFeedback),
}

/// How far a receiver is. Positions are those of the last byte + 1; `0/0` says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// Written to the receiver's operating system.
    pub written: Lsn,
    /// Durable on its disk. The server confirms a logical slot up to here.
    pub flushed: Lsn,
    /// Replayed, or applied.
    pub applied: Lsn,
    pub sent_at: Timestamp,
    /// The server must answer at once.
    pub reply: bool,
}

/// The oldest transactions that a standby's queries and slots need; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HotStandbyFeedback {
    pub sent_at: Timestamp,
    /// Oldest transaction that its queries need.
    pub xmin: u32,
    pub xmin_epoch: u32,
    /// Oldest transaction that its slots need the catalogs of.
    pub catalog_xmin: u32,
    pub catalog_xmin_epoch: u32,
}

impl FromStandby {
    /// Parses the content of a CopyData message.
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
