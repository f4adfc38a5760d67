//! The newest part of the log, in memory.

use std::collections::VecDeque;

use bytes::Bytes;

use super::position::{LogPosition, Place};
use super::segment::{Kind, Marks};

/// What a chunk takes besides its bytes: itself, at most twice since the queue that holds
/// it grows by doubling, and what the allocator and `Bytes` keep for it.
pub const CHUNK_OVERHEAD: u64 = 2 * size_of::<Chunk>() as u64 + 64;

/// Frames that are handed out together.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    pub kind: Kind,
    pub bytes: Bytes,
    /// Of its first byte.
    pub position: LogPosition,
    /// The record in the spool that holds its first byte.
    pub place: Place,
    /// What follows it in the spool.
    pub next: Place,
    pub marks: Marks,
}

impl Chunk {
    pub fn end(&self) -> LogPosition {
        self.position.plus(self.bytes.len())
    }

    fn cost(&self) -> u64 {
        self.bytes.len() as u64 + CHUNK_OVERHEAD
    }
}

/// First in, first out. Chunks follow each other without a gap.
#[derive(Debug)]
pub(super) struct Cache {
    chunks: VecDeque<Chunk>,
    /// Cost of all.
    bytes: u64,
    limit: u64,
}

impl Cache {
    pub fn new(limit: u64) -> Self {
        Self {
            chunks: VecDeque::new(),
            bytes: 0,
            limit,
        }
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The chunks, oldest first.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter()
    }

    /// Drops the oldest until `bytes` more fit; all of them if that is not enough.
    pub fn make_room(&mut self, bytes: u64) {
        while self.bytes.saturating_add(bytes) > self.limit {
            match self.chunks.pop_front() {
                Some(chunk) => self.bytes -= chunk.cost(),
                None => break,
            }
        }
        if self.chunks.is_empty() {
            // An idle log keeps no room for the many chunks that it once had.
            self.chunks = VecDeque::new();
        }
    }

    /// Appends a chunk, in place of the oldest ones. One that does not fit at all is not
    /// kept, nor is what came before it.
    pub fn push(&mut self, chunk: Chunk) {
        self.make_room(chunk.cost());
        if self.bytes.saturating_add(chunk.cost()) <= self.limit {
            self.bytes += chunk.cost();
            self.chunks.push_back(chunk);
        }
    }

    /// Drops what is at `position` or later. A chunk never spans a position at which the
    /// log is cut.
    pub fn cut(&mut self, position: LogPosition) {
        while self
            .chunks
            .back()
            .is_some_and(|chunk| chunk.end() > position)
        {
            if let Some(chunk) = self.chunks.pop_back() {
                self.bytes -= chunk.cost();
            }
        }
    }

    /// Chunks from the one that holds the byte at `position` on, as many as fit into
    /// `most_bytes` and `most` of them, at least one; none if that byte is not here.
    pub fn from(&self, position: LogPosition, most_bytes: usize, most: usize) -> Vec<Chunk> {
        let first = self.chunks.partition_point(|chunk| chunk.end() <= position);
        let mut chunks = Vec::new();
        let mut left = most_bytes;
        for chunk in self.chunks.range(first..).take(most) {
            let fits = chunk.bytes.len() <= left;
            let reached = chunk.position <= position || !chunks.is_empty();
            if !reached || !(fits || chunks.is_empty()) {
                break;
            }
            left = left.saturating_sub(chunk.bytes.len());
            chunks.push(chunk.clone());
        }
        chunks
    }
}
