//! A session's connection to the primary while the relay streams to its client.
//!
//! Nothing is asked there meanwhile. What the primary says unasked, such as a setting that a reload
//! has changed, is kept for the client, up to [`MOST`]; what comes after that waits in the socket.

use std::future::pending;

use bytes::BytesMut;
use tokio::io::AsyncReadExt;

use super::transport::{Reader, Writer, after};

/// Most bytes that are kept.
const MOST: usize = 16 * 1024;

/// See the module.
pub(super) struct Aside {
    said: BytesMut,
    reader: Reader,
    writer: Writer,
}

impl Aside {
    pub fn new(reader: Reader, writer: Writer) -> Self {
        Self {
            said: BytesMut::new(),
            reader,
            writer,
        }
    }

    /// Resolves when the primary has closed the connection. May be dropped and asked again.
    pub async fn gone(&mut self) {
        while self.said.len() < MOST {
            match self.reader.read_buf(&mut self.said).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        pending().await
    }

    /// Both halves of the connection, with what the primary has said before what it says next.
    pub fn back(self) -> (Reader, Writer) {
        (after(self.said, self.reader), self.writer)
    }
}
