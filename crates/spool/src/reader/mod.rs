//! Reading the log: from memory where it is there, else from the spool.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use lockstep_wire::Lsn;
use lockstep_wire::logical::SchemaKey;

use super::cache::Chunk;
use super::error::{LogError, Result};
use super::index::Entry;
use super::log::{Log, lock};
use super::position::{LogPosition, Place};
use super::scan::Segment;
use super::schema::Schema;
use super::segment::{CHUNK_BYTES, Record, RecordKind, SEGMENT_HEADER, file_name};
use super::state::LogState;
use super::storage::Storage;

mod take;

/// Most pieces that one read hands out: what a system takes in one `writev`.
pub const MOST_PIECES: usize = 1024;

/// What a read found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// What comes next.
    Frames {
        /// Bytes of the frames, in order. Frames are whole unless [`Reader::within_frame`].
        pieces: Vec<Bytes>,
        /// Bytes of it that came from memory.
        hit_bytes: u64,
        /// Bytes of it that came from the spool. Descriptions of tables that were put in
        /// count neither as hit nor as miss.
        miss_bytes: u64,
    },
    /// Nothing yet: wait for the end to change.
    Nothing {
        /// The subscriber has everything before, once it has what it was sent.
        covered: Lsn,
    },
    /// What comes next begins at the limit or later.
    Limit,
    /// A part of a unit was handed out that was dropped since: the connection to the
    /// subscriber must end. The reader is of no more use.
    Cut,
}

/// Where a piece came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Memory,
    Spool,
    Schema,
}

/// A piece that waits to be handed out.
#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    origin: Origin,
    /// End of the last unit that ends in it; `0/0` if none does.
    end: Lsn,
    /// A unit is open after it, a frame goes on after it.
    open: bool,
    more: bool,
    /// Tables and types that it describes, while the reader has some that it did not tell.
    told: Vec<SchemaKey>,
}

/// Reads the log for one subscriber, front to back.
///
/// It holds no lock but for moments, and no memory but what it handed out last, one chunk
/// and what it has to tell of the descriptions that were in force where its first unit began. A
/// table is told before its first change. The rest is forgotten where the upstream describes it
/// again, and where a session of the upstream begins.
#[derive(Debug)]
pub struct Reader<S: Storage> {
    log: Arc<Log<S>>,
    /// The next byte.
    at: LogPosition,
    /// A record in the spool at or before it, and the position of its first byte.
    place: Place,
    base: LogPosition,
    /// The cuts it knows of.
    generation: u64,
    segment: Option<Segment<S::File>>,
    /// Key of the first unit that is wanted, while the reader has not come to it or to a later one.
    seeking: Option<Lsn>,
    /// Key of that unit until something was handed out: what the reader has come to may still be cut, and
    /// replaced by a unit that it does not want.
    from: Option<Lsn>,
    /// In force where the first unit begins, and not told yet; None once there is none left, and
    /// all that was told is handed out.
    schema: Option<Schema>,
    /// What was described in what was handed out, until then.
    told: BTreeSet<SchemaKey>,
    limit: Option<Lsn>,
    waiting: VecDeque<Piece>,
    /// What was handed out ends at the end of this unit, or within a later one.
    sent: Lsn,
    open: bool,
    more: bool,
    cut: bool,
}

/// Chunks from the reader's position on.
enum Gathered {
    Chunks(Vec<Chunk>, Origin),
    End {
        received: Lsn,
    },
    /// A part of what was read or passed by is no longer in the log.
    Cut,
}

impl<S: Storage> Log<S> {
    /// A reader of all units with key `from` or later, that is for a subscriber which has
    /// confirmed `from`. Those that only know their end come if that is later than `from`.
    ///
    /// Reads up to a segment of the spool, so it may block.
    pub fn reader(self: &Arc<Self>, from: Lsn) -> Result<Reader<S>> {
        Reader::new(self, from)
    }
}

impl<S: Storage> Reader<S> {
    pub(super) fn new(log: &Arc<Log<S>>, from: Lsn) -> Result<Self> {
        loop {
            let mut reader = Self::at_start(log, from)?;
            if reader.seek()? {
                return Ok(reader);
            }
        }
    }

    /// Somewhere at or before the first unit to be read.
    fn at_start(log: &Arc<Log<S>>, from: Lsn) -> Result<Self> {
        let shared = lock(&log.shared);
        let mut reader = Self {
            log: Arc::clone(log),
            at: shared.boundary.position,
            place: shared.boundary.place,
            base: shared.boundary.position,
            generation: shared.generation,
            segment: None,
            seeking: Some(from),
            from: Some(from),
            schema: None,
            told: BTreeSet::new(),
            limit: None,
            waiting: VecDeque::new(),
            sent: from,
            open: false,
            more: false,
            cut: false,
        };
        let Some(entry) = shared.index.find(from).copied() else {
            return Err(gone(&shared, from));
        };
        if from > shared.whole_key {
            // All that it wants is still to come, or arriving.
            reader.schema = Some(shared.schema.clone());
            return Ok(reader);
        }
        let next = shared.index.get(entry.sequence + 1).copied();
        drop(shared);
        let entered = reader
            .enter(&entry, next.as_ref())
            .and_then(|()| reader.load_schema(&entry, next.as_ref()));
        let removed = || lock(&log.shared).index.get(entry.sequence).is_none();
        match entered {
            Ok(()) => Ok(reader),
            // It was removed meanwhile.
            Err(_) if removed() => Self::at_start(log, from),
            Err(error) => Err(error),
        }
    }

    /// Goes to the start of a segment.
    fn enter(&mut self, entry: &Entry, next: Option<&Entry>) -> Result<()> {
        if entry.is_damaged() {
            return Err(self.corrupt(entry, next, "its header cannot be read"));
        }
        self.segment = None;
        self.at = entry.position;
        self.base = entry.position;
        self.place = Place {
            segment: entry.sequence,
            offset: SEGMENT_HEADER as u64,
        };
        Ok(())
    }

    /// Takes over what is in force where a segment begins.
    fn load_schema(&mut self, entry: &Entry, next: Option<&Entry>) -> Result<()> {
        let mut schema = Schema::default();
        while self.place.offset < entry.bytes {
            let record = self.record(entry, next)?;
            if record.header.kind != RecordKind::Schema {
                break;
            }
            schema.scan(&record.payload)?;
            self.place.offset = record.next;
        }
        // Many readers may wait long until they have told all of it.
        schema.share(&lock(&self.log.shared).schema);
        self.schema = Some(schema);
        Ok(())
    }

    /// Goes to the first unit that the reader wants, or to the end. False if the log was cut meanwhile.
    fn seek(&mut self) -> Result<bool> {
        while self.seeking.is_some() {
            match self.gather(CHUNK_BYTES)? {
                Gathered::Chunks(chunks, _) => self.pass_by(&chunks)?,
                Gathered::End { .. } => return Ok(true),
                Gathered::Cut => return Ok(false),
            }
        }
        Ok(true)
    }

    /// What comes next, some `max_bytes` of it: no more, unless it is less than a single
    /// chunk ([`CHUNK_BYTES`]) is long. May read from the spool, so it may block.
    pub fn read(&mut self, max_bytes: usize) -> Result<Read> {
        loop {
            if !self.is_kept() {
                match self.open {
                    true => self.cut = true,
                    // Nothing of what was cut has been handed out.
                    false => self.go_back()?,
                }
            }
            if self.cut {
                return Ok(Read::Cut);
            }
            if let Some(read) = self.hand_out(max_bytes) {
                return Ok(read);
            }
            match self.gather(max_bytes)? {
                Gathered::Chunks(chunks, _) if self.seeking.is_some() => self.pass_by(&chunks)?,
                Gathered::Chunks(chunks, origin) => {
                    for chunk in &chunks {
                        if !self.take(chunk, origin)? {
                            return Ok(self.hand_out(max_bytes).unwrap_or(Read::Limit));
                        }
                    }
                }
                Gathered::End { received } => {
                    let covered = match self.open {
                        true => self.sent,
                        false => self.sent.max(received),
                    };
                    return Ok(Read::Nothing { covered });
                }
                Gathered::Cut if self.seeking.is_some() => self.restart()?,
                Gathered::Cut => self.cut = true,
            }
        }
    }

    /// End of the last whole unit that was handed out; before any, what was asked for.
    pub fn sent(&self) -> Lsn {
        self.sent
    }

    /// Whether what was handed out ends within a unit.
    pub fn within_unit(&self) -> bool {
        self.open
    }

    /// Whether what was handed out ends within a frame, so that no other message may be
    /// sent before the next read. Only frames longer than [`CHUNK_BYTES`] are divided.
    pub fn within_frame(&self) -> bool {
        self.more
    }

    /// Bytes of the log that were not yet handed out.
    pub fn behind(&self) -> u64 {
        let waiting: usize = self
            .waiting
            .iter()
            .filter(|piece| piece.origin != Origin::Schema)
            .map(|piece| piece.bytes.len())
            .sum();
        self.log.end().since(self.at) + waiting as u64
    }

    /// Units with this key or later are not handed out. To be set before the first read; a later limit
    /// may follow.
    pub fn stop_before(&mut self, key: Lsn) {
        self.limit = Some(key);
    }

    /// Begins anew, with nothing handed out yet.
    fn restart(&mut self) -> Result<()> {
        let Some(from) = self.seeking else {
            return Ok(());
        };
        let limit = self.limit;
        *self = Self::new(&Arc::clone(&self.log), from)?;
        self.limit = limit;
        Ok(())
    }

    /// Goes on right after the last unit that was handed out.
    fn go_back(&mut self) -> Result<()> {
        let all_told = self.schema.is_none();
        let (told, limit) = (std::mem::take(&mut self.told), self.limit);
        *self = Self::new(&Arc::clone(&self.log), self.sent)?;
        self.limit = limit;
        match &mut self.schema {
            Some(schema) if !all_told => {
                for key in &told {
                    schema.remove(*key);
                }
                self.told = told;
            }
            schema => *schema = None,
        }
        Ok(())
    }

    /// False if pieces wait that are no longer in the log.
    fn is_kept(&self) -> bool {
        self.waiting.is_empty() || lock(&self.log.shared).is_kept(self.generation, self.at)
    }

    /// Hands out what waits.
    fn hand_out(&mut self, max_bytes: usize) -> Option<Read> {
        let mut pieces = Vec::new();
        let mut left = max_bytes;
        let (mut hit_bytes, mut miss_bytes) = (0, 0);
        while let Some(piece) = self.waiting.front() {
            let length = piece.bytes.len();
            if !pieces.is_empty() && (length > left || pieces.len() == MOST_PIECES) {
                break;
            }
            let Some(piece) = self.waiting.pop_front() else {
                break;
            };
            left = left.saturating_sub(length);
            match piece.origin {
                Origin::Memory => hit_bytes += length as u64,
                Origin::Spool => miss_bytes += length as u64,
                Origin::Schema => {}
            }
            self.sent = self.sent.max(piece.end);
            self.open = piece.open;
            self.more = piece.more;
            self.told.extend(piece.told);
            pieces.push(piece.bytes);
            self.from = None;
        }
        if !pieces.is_empty() && self.waiting.is_empty() {
            let done = self.schema.take_if(|schema| schema.is_empty()).is_some();
            if done || self.schema.is_none() {
                self.told.clear();
            }
        }
        (!pieces.is_empty()).then_some(Read::Frames {
            pieces,
            hit_bytes,
            miss_bytes,
        })
    }

    /// Chunks from here on: from memory, if the next byte is there.
    fn gather(&mut self, max_bytes: usize) -> Result<Gathered> {
        loop {
            let (entry, next) = {
                let shared = lock(&self.log.shared);
                // What ends with a whole unit is not cut.
                let whole = !self.open && self.waiting.is_empty() && self.seeking.is_none();
                if !whole && !shared.is_kept(self.generation, self.at) {
                    return Ok(Gathered::Cut);
                }
                if shared.generation != self.generation {
                    self.generation = shared.generation;
                    self.segment = None;
                    self.seeking = self.from;
                }
                if self.at >= shared.end {
                    // A file that is held open keeps its space when it is removed.
                    let newest = shared.index.newest().map(|entry| entry.sequence);
                    self.segment
                        .take_if(|segment| Some(segment.sequence) != newest);
                    return Ok(Gathered::End {
                        received: shared.received,
                    });
                }
                let chunks = shared.cache.from(self.at, max_bytes, MOST_PIECES);
                if !chunks.is_empty() {
                    self.segment = None;
                    return Ok(Gathered::Chunks(chunks, Origin::Memory));
                }
                let Some(entry) = shared.index.get(self.place.segment).copied() else {
                    match shared.index.oldest().copied() {
                        // It had read the removed one to its end.
                        Some(oldest) if oldest.position == self.at => {
                            drop(shared);
                            self.enter(&oldest, None)?;
                            continue;
                        }
                        // What was removed it did not want anyway.
                        _ if self.seeking.is_some() => return Ok(Gathered::Cut),
                        _ => return Err(gone(&shared, self.sent)),
                    }
                };
                (entry, shared.index.get(entry.sequence + 1).copied())
            };
            let read = self.gather_from_file(&entry, next.as_ref(), max_bytes);
            let shared = lock(&self.log.shared);
            if shared.generation != self.generation {
                // What was read may have changed while it was.
                continue;
            }
            match read {
                // It was removed meanwhile.
                Err(_) if shared.index.get(entry.sequence).is_none() => {}
                Err(error) => return Err(error),
                Ok(chunks) if chunks.is_empty() => {}
                Ok(chunks) => return Ok(Gathered::Chunks(chunks, Origin::Spool)),
            }
        }
    }

    /// Chunks from the spool, at least one unless there are none in this segment.
    fn gather_from_file(
        &mut self,
        entry: &Entry,
        next: Option<&Entry>,
        max_bytes: usize,
    ) -> Result<Vec<Chunk>> {
        let mut chunks = Vec::new();
        if self.place.offset >= entry.bytes {
            let Some(next) = next else {
                return Err(self.corrupt(entry, next, "it ends too early"));
            };
            if self.base != next.position && !next.is_damaged() {
                return Err(self.corrupt(entry, Some(next), "it ends too early"));
            }
            let at = self.at;
            self.enter(next, None)?;
            self.at = at;
            return Ok(chunks);
        }
        let (mut place, mut base, mut left) = (self.place, self.base, max_bytes);
        while place.offset < entry.bytes && chunks.len() < MOST_PIECES {
            let loaded = |segment: &Segment<_>| segment.is_loaded(place.offset);
            if !chunks.is_empty() && !self.segment.as_ref().is_some_and(loaded) {
                break;
            }
            let record = match self.record_at(place.offset, base, entry, next) {
                // What is before the damage is read first.
                Err(_) if !chunks.is_empty() => break,
                record => record?,
            };
            let length = record.header.stream_bytes();
            if !chunks.is_empty() && length > left {
                break;
            }
            let here = place;
            place.offset = record.next;
            let end = base.plus(length);
            if end > self.at {
                left = left.saturating_sub(length);
                chunks.push(Chunk {
                    kind: record.header.kind,
                    bytes: record.payload,
                    position: base,
                    place: here,
                    next: place,
                    marks: record.header.marks,
                });
            }
            base = end;
        }
        if chunks.is_empty() {
            // Nothing of the log was in these records.
            self.place = place;
            self.base = base;
        }
        Ok(chunks)
    }

    fn record(&mut self, entry: &Entry, next: Option<&Entry>) -> Result<Record> {
        self.record_at(self.place.offset, self.base, entry, next)
    }

    fn record_at(
        &mut self,
        offset: u64,
        position: LogPosition,
        entry: &Entry,
        next: Option<&Entry>,
    ) -> Result<Record> {
        let known = self.segment.take();
        let mut segment = match known.filter(|known| known.sequence == entry.sequence) {
            Some(segment) => segment,
            None => Segment::open(&self.log.storage, entry.sequence, entry.position)?,
        };
        let record = segment.record(offset, entry.bytes, position);
        self.segment = Some(segment);
        record.map_err(|unreadable| {
            let name = file_name(entry.sequence, entry.position);
            match unreadable.damage(&name) {
                Ok(what) => self.corrupt(entry, next, what),
                Err(error) => error,
            }
        })
    }

    fn corrupt(&self, entry: &Entry, next: Option<&Entry>, what: &'static str) -> LogError {
        LogError::Corrupt {
            segment: entry.sequence,
            position: self.at,
            from: self.sent,
            to: match entry.is_damaged() {
                // The entry stands in for the segment up to there.
                true => Some(entry.first_lsn),
                false => next.map(|next| next.first_lsn),
            },
            what,
        }
    }
}

/// What was asked for is no longer there.
fn gone<F>(shared: &LogState<F>, from: Lsn) -> LogError {
    match shared.index.oldest() {
        Some(oldest) if oldest.is_damaged() => LogError::Corrupt {
            segment: oldest.sequence,
            position: oldest.position,
            from,
            to: Some(oldest.first_lsn),
            what: "its header cannot be read",
        },
        oldest => LogError::Gone {
            from,
            oldest: oldest.map_or(shared.received, |oldest| oldest.first_lsn),
        },
    }
}
