//! Messages as they go through a socket, one after the other, each as a whole CopyData message
//! of a walsender.
//!
//! ```text
//! 'd' int32 length  'w' int64 lsn  int64 lsn  int64 sent_at  the message
//! ```
//!
//! Numbers are big-endian. The length counts itself and all that follows it. Both positions are
//! the message's own, which is `0/0` for all but the last message of a change.
//!
//! Frames that are kept in a file or in memory can be sent unchanged, from the start of any
//! frame to the end of any frame.

use crate::cursor::Cursor;
use crate::frame::{self, LOGICAL_LIMIT};
use crate::stream::{Timestamp, XLOG_DATA_HEADER, xlog_data_header};
use crate::{Lsn, Result, WireError};

/// Bytes of a frame before its message.
pub const FRAME_HEADER: usize = frame::HEADER + XLOG_DATA_HEADER;

/// Most bytes of a message.
pub const MOST_MESSAGE: usize = LOGICAL_LIMIT - XLOG_DATA_HEADER;

const TAG: u8 = b'd';

/// The fields of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the whole frame.
    pub length: usize,
    /// Position of the message; `0/0` unless it is the last message of a change.
    pub lsn: Lsn,
    /// The server's clock when the message was made.
    pub sent_at: Timestamp,
}

/// A frame and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameAt<'a> {
    /// Offset of its first byte in the bytes that are scanned.
    pub offset: usize,
    /// Bytes of the whole frame.
    pub length: usize,
    /// Position of the message; `0/0` unless it is the last message of a change.
    pub lsn: Lsn,
    /// The server's clock when the message was made.
    pub sent_at: Timestamp,
    /// The message: see [`super::Message`].
    pub message: &'a [u8],
}

/// Appends a frame. Fails, and appends nothing, if the message is longer than [`MOST_MESSAGE`].
pub fn put_frame(out: &mut Vec<u8>, lsn: Lsn, sent_at: Timestamp, message: &[u8]) -> Result<()> {
    let counted = u32::try_from(message.len() + 4 + XLOG_DATA_HEADER)
        .ok()
        .filter(|_| message.len() <= MOST_MESSAGE)
        .ok_or(WireError::TooLong {
            length: message.len(),
            limit: MOST_MESSAGE,
        })?;
    out.reserve(FRAME_HEADER + message.len());
    out.push(TAG);
    out.extend_from_slice(&counted.to_be_bytes());
    out.extend_from_slice(&xlog_data_header(lsn, lsn, sent_at));
    out.extend_from_slice(message);
    Ok(())
}

/// Reads a frame's header.
pub fn header(bytes: [u8; FRAME_HEADER]) -> Result<Header> {
    let mut cursor = Cursor::new(&bytes, "frame");
    if cursor.u8()? != TAG {
        return Err(WireError::Malformed("no CopyData where a frame begins"));
    }
    let body = frame::body_length(cursor.i32()?, LOGICAL_LIMIT)?;
    if body < XLOG_DATA_HEADER {
        return Err(WireError::Malformed("a frame shorter than its own header"));
    }
    if cursor.u8()? != b'w' {
        return Err(WireError::Malformed("a frame that is not XLogData"));
    }
    let lsn = cursor.lsn()?;
    if cursor.lsn()? != lsn {
        return Err(WireError::Malformed("a frame with two positions"));
    }
    Ok(Header {
        length: frame::HEADER + body,
        lsn,
        sent_at: Timestamp(cursor.i64()?),
    })
}

/// The frame at the start of `bytes`; None if a part of it is missing.
pub fn first(bytes: &[u8]) -> Result<Option<FrameAt<'_>>> {
    let Some((&head, rest)) = bytes.split_first_chunk::<FRAME_HEADER>() else {
        return Ok(None);
    };
    let Header {
        length,
        lsn,
        sent_at,
    } = header(head)?;
    Ok(rest.get(..length - FRAME_HEADER).map(|message| FrameAt {
        offset: 0,
        length,
        lsn,
        sent_at,
        message,
    }))
}

/// Iterates over `bytes`, which must be whole frames.
pub fn scan(bytes: &[u8]) -> Scan<'_> {
    Scan {
        left: bytes,
        offset: 0,
    }
}

/// An error ends the iterator.
#[derive(Debug, Clone)]
pub struct Scan<'a> {
    left: &'a [u8],
    offset: usize,
}

impl Scan<'_> {
    /// Where the next frame begins, or after an error the frame in error.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl<'a> Iterator for Scan<'a> {
    type Item = Result<FrameAt<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left.is_empty() {
            return None;
        }
        let found = first(self.left).and_then(|frame| frame.ok_or(WireError::Truncated("frame")));
        match found {
            Ok(frame) => {
                let offset = self.offset;
                self.offset += frame.length;
                self.left = self.left.get(frame.length..).unwrap_or_default();
                Some(Ok(FrameAt { offset, ..frame }))
            }
            Err(error) => {
                self.left = &[];
                Some(Err(error))
            }
        }
    }
}

impl std::iter::FusedIterator for Scan<'_> {}
