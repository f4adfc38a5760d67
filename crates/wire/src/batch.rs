//! Several messages in one, as output plugin `lockstep` sends them with its option
//! `batch=commit` or `batch=hold`.
//!
//! ```text
//! 'O'                         a commit is held from here on, until the next batch
//! 'B' int32 n, then n times   a batch
//!     int64 lsn  int64 time  int32 length  the message
//! ```
//!
//! Numbers are big-endian. `extension/src/logical/output_plugin.c` says more.

use crate::cursor::{Cursor, put_counted_bytes};
use crate::stream::Timestamp;
use crate::{Lsn, Result, WireError};

/// Bytes of an entry before its message.
pub const ENTRY_HEADER: usize = 20;

const MARKER: u8 = b'O';
const BATCH: u8 = b'B';

/// What one XLogData message of a logical stream carries.
#[derive(Debug, Clone)]
pub enum Payload<'a> {
    /// A commit is held. Until the next batch, positions in keepalives may be beyond what was
    /// sent, and must not be confirmed.
    Marker,
    /// Several messages. A batch ends the state that a marker began.
    Batch(Entries<'a>),
    /// One message of `pgoutput`, whose position and time are those of the XLogData.
    Plain(&'a [u8]),
}

impl<'a> Payload<'a> {
    /// Parses the content of an XLogData message. `batched` says whether the client asked for
    /// batches: plain messages may begin with the same bytes.
    pub fn parse(data: &'a [u8], batched: bool) -> Result<Self> {
        if !batched {
            return Ok(Self::Plain(data));
        }
        let mut cursor = Cursor::new(data, "batch");
        match cursor.u8()? {
            MARKER => cursor.end().map(|()| Self::Marker),
            BATCH => {
                let left = cursor.u32()?;
                match left == 0 || left as usize > data.len() / ENTRY_HEADER {
                    true => Err(WireError::Malformed("a batch of an impossible size")),
                    false => Ok(Self::Batch(Entries { left, cursor })),
                }
            }
            tag => Err(WireError::UnknownMessage(tag)),
        }
    }
}

/// A message in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Position of the message; `0/0` unless it is the last message of a change.
    pub lsn: Lsn,
    /// When the message was made.
    pub time: Timestamp,
    /// The message: see [`crate::logical`].
    pub message: &'a [u8],
}

/// The messages of a batch. Each is checked when the iterator reaches it, and an error ends the
/// iterator.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    left: u32,
    cursor: Cursor<'a>,
}

impl<'a> Entries<'a> {
    fn entry(&mut self) -> Result<Entry<'a>> {
        let entry = Entry {
            lsn: self.cursor.lsn()?,
            time: Timestamp(self.cursor.i64()?),
            message: self.cursor.counted()?,
        };
        match entry.message.is_empty() {
            true => Err(WireError::Malformed("an empty message in a batch")),
            false => Ok(entry),
        }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                self.entry()
            }
            None if self.cursor.is_empty() => return None,
            None => Err(WireError::Malformed(
                "bytes after the last entry of a batch",
            )),
        };
        if next.is_err() {
            self.left = 0;
            self.cursor = Cursor::new(&[], "batch");
        }
        Some(next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // An error may come after the last message.
        (0, (self.left as usize).checked_add(1))
    }
}

impl std::iter::FusedIterator for Entries<'_> {}

pub fn put_marker(out: &mut Vec<u8>) {
    out.push(MARKER);
}

/// Appends a batch. Fails if an entry or their number is too large; `out` then holds a part of
/// the batch.
pub fn put_batch(out: &mut Vec<u8>, entries: &[Entry<'_>]) -> Result<()> {
    let number = i32::try_from(entries.len())
        .map_err(|_| WireError::Malformed("a batch of an impossible size"))?;
    out.push(BATCH);
    out.extend_from_slice(&number.to_be_bytes());
    for entry in entries {
        out.extend_from_slice(&u64::from(entry.lsn).to_be_bytes());
        out.extend_from_slice(&entry.time.0.to_be_bytes());
        put_counted_bytes(out, entry.message)?;
    }
    Ok(())
}
