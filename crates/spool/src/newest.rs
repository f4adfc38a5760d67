//! The newest segment, to which records are written.

use std::sync::Arc;

use super::position::{LogPosition, Place};
use super::segment::{Marks, RecordHeader, RecordKind, file_name};
use super::storage::SpoolFile;

/// The newest segment, as who writes it sees it.
#[derive(Debug)]
pub(super) struct Writer<F> {
    pub sequence: u64,
    /// Position of its first frame.
    pub first: LogPosition,
    pub file: Arc<F>,
    /// Bytes written.
    pub offset: u64,
    /// Bytes of its header and schema.
    pub head: u64,
    /// The next record begins an upstream session.
    pub session: bool,
    /// Records on their way to the file.
    pub buffer: Vec<u8>,
}

impl<F: SpoolFile> Writer<F> {
    pub fn name(&self) -> String {
        file_name(self.sequence, self.first)
    }

    pub fn place(&self, offset: u64) -> Place {
        Place {
            segment: self.sequence,
            offset,
        }
    }

    /// Adds a record to the buffer.
    pub fn put(&mut self, kind: RecordKind, marks: Marks, position: LogPosition, payload: &[u8]) {
        let header = RecordHeader::new(kind, marks, position, payload, self.sequence);
        self.buffer.extend_from_slice(&header.encode(self.sequence));
        self.buffer.extend_from_slice(payload);
    }

    /// Writes the buffer at `offset`, and returns where it ends.
    pub fn flush(&mut self, offset: u64) -> std::io::Result<u64> {
        let written = self.file.write_at(offset, &self.buffer);
        let end = offset + self.buffer.len() as u64;
        self.buffer.clear();
        written.map(|()| end)
    }
}
