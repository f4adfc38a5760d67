//! Reading a segment's records one after the other, a window of the file at a time.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::error::{LogError, Result};
use super::position::LogPosition;
use super::segment::{
    MOST_RECORD, NoHeader, RECORD_HEADER, Record, RecordHeader, SEGMENT_HEADER, SegmentHeader,
    file_name, unfinished_name,
};
use super::storage::{SpoolFile, Storage};

/// Most bytes that are read at once: a record of any length is whole in it.
const WINDOW: u64 = MOST_RECORD as u64;

/// Why a record could not be read.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// The bytes are not what was written.
    Damage(&'static str),
    /// The segment was written by another version.
    Version(u32),
    /// The file could not be read.
    Io(io::Error),
}

impl Unreadable {
    /// What is damaged; an error if that is not what is wrong.
    pub fn damage(self, name: &str) -> Result<&'static str> {
        match self {
            Self::Damage(what) => Ok(what),
            Self::Version(version) => Err(LogError::Version {
                name: name.to_owned(),
                version,
            }),
            Self::Io(source) => Err(LogError::io("read", name, source)),
        }
    }
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Damage("the file ends too early"),
            _ => Self::Io(error),
        }
    }
}

/// A segment that is open to be read.
#[derive(Debug)]
pub(super) struct Segment<F> {
    pub sequence: u64,
    /// Position of its first frame.
    pub position: LogPosition,
    file: Arc<F>,
    /// What was read last, and where it begins in the file.
    window: Bytes,
    window_at: u64,
}

impl<F: SpoolFile> Segment<F> {
    pub fn new(sequence: u64, position: LogPosition, file: Arc<F>) -> Self {
        Self {
            sequence,
            position,
            file,
            window: Bytes::new(),
            window_at: 0,
        }
    }

    pub fn open<S: Storage<File = F>>(
        storage: &S,
        sequence: u64,
        position: LogPosition,
    ) -> Result<Self> {
        let name = file_name(sequence, position);
        let unfinished = unfinished_name(sequence, position);
        // It may get its final name in between.
        let mut file = storage.open(&name);
        for name in [&unfinished, &name] {
            match file {
                Err(error) if error.kind() == io::ErrorKind::NotFound => file = storage.open(name),
                _ => break,
            }
        }
        let file = file.map_err(|source| LogError::io("open", &name, source))?;
        Ok(Self::new(sequence, position, Arc::new(file)))
    }

    pub fn file(&self) -> &Arc<F> {
        &self.file
    }

    /// The file's first bytes.
    pub fn header(&self) -> std::result::Result<SegmentHeader, Unreadable> {
        let mut bytes = [0; SEGMENT_HEADER];
        self.file.read_at(0, &mut bytes)?;
        let header = SegmentHeader::decode(&bytes).map_err(|error| match error {
            NoHeader::Damaged(what) => Unreadable::Damage(what),
            NoHeader::Version(version) => Unreadable::Version(version),
        })?;
        match (header.sequence, header.position) == (self.sequence, self.position) {
            true => Ok(header),
            false => Err(Unreadable::Damage(
                "it is another segment than its name says",
            )),
        }
    }

    /// The record at `offset` of a file of `end` bytes; its checksums are verified.
    pub fn record(
        &mut self,
        offset: u64,
        end: u64,
        position: LogPosition,
    ) -> std::result::Result<Record, Unreadable> {
        if self.window_has(offset) < RECORD_HEADER {
            self.load(offset, end)?;
        }
        let mut header = self.header_at(offset, position)?;
        if self.window_has(offset) < RECORD_HEADER + header.length {
            self.load(offset, end)?;
            header = self.header_at(offset, position)?;
        }
        let at = self.in_window(offset) + RECORD_HEADER;
        let range = at..at + header.length;
        if self.window.len() < range.end {
            return Err(Unreadable::Damage("the file ends within a record"));
        }
        let payload = self.window.slice(range);
        match header.holds(&payload, self.sequence) {
            true => Ok(Record {
                header,
                payload,
                next: offset + header.record_bytes(),
            }),
            false => Err(Unreadable::Damage("a record has a wrong checksum")),
        }
    }

    /// Whether the record at `offset` can be had without reading the file again.
    pub fn is_loaded(&self, offset: u64) -> bool {
        self.window_has(offset) >= RECORD_HEADER
            && self
                .raw_header(offset)
                .is_some_and(|header| self.window_has(offset) >= RECORD_HEADER + header.length)
    }

    fn raw_header(&self, offset: u64) -> Option<RecordHeader> {
        let bytes = self.window.get(self.in_window(offset)..)?;
        RecordHeader::decode(bytes.first_chunk()?, self.sequence)
    }

    fn header_at(
        &self,
        offset: u64,
        position: LogPosition,
    ) -> std::result::Result<RecordHeader, Unreadable> {
        match self.raw_header(offset) {
            Some(header) if header.position == position => Ok(header),
            Some(_) => Err(Unreadable::Damage("a record of another position")),
            None => Err(Unreadable::Damage("a record's header has a wrong checksum")),
        }
    }

    /// Bytes of the window from `offset` on.
    fn window_has(&self, offset: u64) -> usize {
        match offset >= self.window_at {
            true => self.window.len().saturating_sub(self.in_window(offset)),
            false => 0,
        }
    }

    fn in_window(&self, offset: u64) -> usize {
        usize::try_from(offset.saturating_sub(self.window_at)).unwrap_or(usize::MAX)
    }

    fn load(&mut self, offset: u64, end: u64) -> std::result::Result<(), Unreadable> {
        let bytes = end.saturating_sub(offset).min(WINDOW);
        let mut window = vec![0; usize::try_from(bytes).unwrap_or(0)];
        self.window = Bytes::new();
        self.file.read_at(offset, &mut window)?;
        self.window = Bytes::from(window);
        self.window_at = offset;
        Ok(())
    }
}
