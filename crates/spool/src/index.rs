//! Which segments there are: all that is kept in memory about the spool.
//!
//! One entry of some 60 bytes for each segment, that is about 10 kB for 10 GB in segments of
//! 64 MB. Whoever looks for an LSN scans one segment from its start, which it has to in any
//! case: what is in force where it begins to read depends on all before.

use std::collections::VecDeque;

use lockstep_wire::Lsn;

use super::position::LogPosition;
use super::segment::SegmentHeader;

/// What is known about a segment without reading all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Whole,
    /// The segment's header cannot be read.
    Damaged,
    /// There is no such file.
    Missing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub sequence: u64,
    /// Position of its first frame.
    pub position: LogPosition,
    /// Units that begin in it have at least this key, those before a lower one.
    pub first_lsn: Lsn,
    /// Bytes of the file.
    pub bytes: u64,
    health: Health,
}

impl Entry {
    pub fn new(header: &SegmentHeader, bytes: u64) -> Self {
        Self {
            sequence: header.sequence,
            position: header.position,
            first_lsn: header.first_lsn(),
            bytes,
            health: Health::Whole,
        }
    }

    /// An entry for a segment whose header cannot be read; `next` is the one after it. Readers come
    /// to it only from the one before.
    pub fn damaged(sequence: u64, position: LogPosition, bytes: u64, next: &Self) -> Self {
        Self {
            sequence,
            position,
            first_lsn: next.first_lsn,
            bytes,
            health: Health::Damaged,
        }
    }

    /// An entry in place of a segment that should be there before `next`.
    pub fn missing(sequence: u64, next: &Self) -> Self {
        Self {
            health: Health::Missing,
            ..Self::damaged(sequence, next.position, 0, next)
        }
    }

    /// Nothing of it can be read.
    pub fn is_damaged(&self) -> bool {
        self.health != Health::Whole
    }

    /// There is no such file.
    pub fn is_missing(&self) -> bool {
        self.health == Health::Missing
    }
}

/// All segments, oldest first; numbers follow each other without a gap.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: VecDeque<Entry>,
    bytes: u64,
}

impl Index {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn push(&mut self, entry: Entry) {
        self.bytes += entry.bytes;
        self.entries.push_back(entry);
    }

    pub fn pop_oldest(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// Puts back what [`Self::pop_oldest`] returned.
    pub fn push_oldest(&mut self, entry: Entry) {
        self.bytes += entry.bytes;
        self.entries.push_front(entry);
    }

    pub fn pop_newest(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_back()?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// The newest segment has this length now, in bytes.
    pub fn set_newest_bytes(&mut self, bytes: u64) {
        if let Some(entry) = self.entries.back_mut() {
            self.bytes = self.bytes - entry.bytes + bytes;
            entry.bytes = bytes;
        }
    }

    pub fn oldest(&self) -> Option<&Entry> {
        self.entries.front()
    }

    pub fn second(&self) -> Option<&Entry> {
        self.entries.get(1)
    }

    pub fn newest(&self) -> Option<&Entry> {
        self.entries.back()
    }

    pub fn get(&self, sequence: u64) -> Option<&Entry> {
        let at = sequence.checked_sub(self.oldest()?.sequence)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    /// The segment in or after which the first unit with key `from` or later begins; None
    /// if that may have been removed.
    pub fn find(&self, from: Lsn) -> Option<&Entry> {
        let after = self
            .entries
            .partition_point(|entry| entry.first_lsn <= from);
        self.entries.get(after.checked_sub(1)?)
    }
}
