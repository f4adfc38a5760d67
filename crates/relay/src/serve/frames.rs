//! Messages read whole, where they are few and short: while a session begins, and where
//! the relay answers itself. Passing through is [`super::pump`]'s.

use std::io;

use bytes::{Buf, BytesMut};
use lockstep_wire::WireError;
use lockstep_wire::frame::{self, HEADER};
use tokio::io::{AsyncRead, AsyncReadExt};

/// How much is read at a time, in bytes.
const READ: usize = 4 * 1024;

/// Most bytes of one message's body, the same as a server's own limit.
pub(super) const MOST: usize = (1 << 30) - 1;

/// Why no message can be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What it sent.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Reads messages. Every future of it may be dropped: what was read stays.
pub(super) struct FrameReader<R> {
    reader: R,
    read: BytesMut,
    /// Bytes of a body that nobody wants, still to come.
    unwanted: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub fn new(reader: R) -> Self {
        Self {
            reader,
            read: BytesMut::new(),
            unwanted: 0,
        }
    }

    /// Reads something; false at the end.
    async fn fill(&mut self) -> io::Result<bool> {
        self.read.reserve(READ);
        Ok(self.reader.read_buf(&mut self.read).await? > 0)
    }

    /// Tag and length of the body of the message that is next, which stays where it is;
    /// None at the end.
    pub async fn header(&mut self) -> Result<Option<(u8, usize)>, ReadError> {
        loop {
            let skipped = self.unwanted.min(self.read.len());
            self.read.advance(skipped);
            self.unwanted -= skipped;
            if self.unwanted == 0 {
                if let Some(&head) = self.read.first_chunk::<HEADER>() {
                    return Ok(Some(frame::header(head, MOST)?));
                }
            }
            if !self.fill().await? {
                return match self.unwanted == 0 && self.read.is_empty() {
                    true => Ok(None),
                    false => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                };
            }
        }
    }

    /// The next message with its header; None at the end.
    pub async fn message(&mut self, limit: usize) -> Result<Option<BytesMut>, ReadError> {
        let Some((_, length)) = self.header().await? else {
            return Ok(None);
        };
        if length > limit {
            return Err(WireError::TooLong { length, limit }.into());
        }
        while self.read.len() < HEADER + length {
            if !self.fill().await? {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok(Some(self.read.split_to(HEADER + length)))
    }

    /// The next message if it has been read already.
    pub fn buffered(&mut self, limit: usize) -> Result<Option<BytesMut>, ReadError> {
        match self.unwanted {
            0 => match frame::first(&self.read, limit)? {
                Some((_, length)) => Ok(Some(self.read.split_to(length))),
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// Forgets the message whose header says that its body has `length` bytes.
    pub fn skip(&mut self, length: usize) {
        self.unwanted = HEADER + length;
    }

    /// Resolves when the other side has left; what it sends before is kept, up to `limit`.
    pub async fn end(&mut self, limit: usize) {
        while self.read.len() < limit {
            if !self.fill().await.unwrap_or(false) {
                return;
            }
        }
        std::future::pending().await
    }

    /// The reader, and what it was read too much.
    pub fn into_parts(self) -> (R, BytesMut) {
        (self.reader, self.read)
    }
}

/// A message's tag and body.
pub(super) fn split(message: &[u8]) -> (u8, &[u8]) {
    (
        message.first().copied().unwrap_or_default(),
        message.get(HEADER..).unwrap_or_default(),
    )
}
