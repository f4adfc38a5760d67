//! The newest part of the log, in memory.

use std::collections::VecDeque;

use bytes::Bytes;

use super::position::{LogPosition, Place};
use super::segment::{Marks, RecordKind};

/// What a chunk takes besides its bytes: itself, at most twice since the queue that holds
/// it grows by doubling, and what the allocator and `Bytes` keep for it.
pub const CHUNK_OVERHEAD: u64 = 2 * size_of::<Chunk>() as u64 + 64;

/// Chunks of up to this many bytes are joined: with one for each small transaction the cache
/// would hold more overhead than frames, and its readers would send many small pieces.
const SMALL: usize = 16 * 1024;

/// A chunk of small ones that were joined has at least this many bytes.
const JOINED: usize = 64 * 1024;

/// Frames that are handed out together.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    pub kind: RecordKind,
    pub bytes: Bytes,
    /// Position of its first byte.
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

/// Some of the newest chunks.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    chunks: usize,
    bytes: usize,
}

/// First in, first out. Chunks follow each other without a gap.
#[derive(Debug)]
pub(super) struct Cache {
    chunks: VecDeque<Chunk>,
    /// Small chunks of the open unit, the newest ones, and those of whole units before, that
    /// may be joined.
    open: Run,
    whole: Run,
    /// Cost of all chunks.
    bytes: u64,
    limit: u64,
}

impl Cache {
    pub fn new(limit: u64) -> Self {
        Self {
            chunks: VecDeque::new(),
            open: Run::default(),
            whole: Run::default(),
            bytes: 0,
            limit,
        }
    }

    /// Most memory that it may take.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Another limit from now on; the oldest chunks go if they are beyond it.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        self.make_room(0);
    }

    /// Memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

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
        if self.chunks.len() < self.open.chunks + self.whole.chunks {
            self.open = Run::default();
            self.whole = Run::default();
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
            self.count(&chunk);
            self.chunks.push_back(chunk);
            self.join();
        }
    }

    /// Adds a chunk that is about to be the newest to the runs.
    fn count(&mut self, chunk: &Chunk) {
        let follows = self
            .chunks
            .back()
            .is_some_and(|last| last.next.segment == chunk.place.segment && !chunk.marks.session);
        if !follows {
            self.open = Run::default();
            self.whole = Run::default();
        }
        if chunk.kind != RecordKind::Frames || chunk.bytes.len() > SMALL {
            self.open = Run::default();
            self.whole = Run::default();
            return;
        }
        // A chunk that begins an open unit follows one with none open, so the two kinds of
        // run never mix: the log may be cut between them.
        self.open.chunks += 1;
        self.open.bytes += chunk.bytes.len();
        if !chunk.marks.open {
            self.whole.chunks += self.open.chunks;
            self.whole.bytes += self.open.bytes;
            self.open = Run::default();
        }
    }

    /// Joins the newest chunks once there is enough of them.
    fn join(&mut self) {
        let run = match () {
            () if self.open.bytes >= JOINED => self.open,
            () if self.whole.bytes >= JOINED && self.open.chunks == 0 => self.whole,
            () => return,
        };
        self.open = Run::default();
        self.whole = Run::default();
        let first = self.chunks.len().saturating_sub(run.chunks);
        let mut parts = self.chunks.drain(first..);
        let Some(mut joined) = parts.next() else {
            return;
        };
        let mut bytes = Vec::with_capacity(run.bytes);
        bytes.extend_from_slice(&joined.bytes);
        let mut cost = joined.cost();
        for part in parts {
            cost += part.cost();
            bytes.extend_from_slice(&part.bytes);
            joined.marks = joined.marks.then(part.marks);
            joined.next = part.next;
        }
        joined.bytes = Bytes::from(bytes);
        self.bytes = self.bytes - cost + joined.cost();
        self.chunks.push_back(joined);
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
        self.open = Run::default();
        self.whole = Run::default();
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
