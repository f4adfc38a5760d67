//! Writing the log: append, cover, cut.
//!
//! A full spool gets room again once all in it is confirmed: a write is refused unless what begins
//! the next segment still fits behind it, and another segment follows a full one, which can then be
//! removed. On a disk that is full before the limit is reached, a segment is followed by another however
//! small it is. If a unit has begun in the full segment, this one is needed until the unit has ended, for
//! which there is no room: [`Standing::cut_makes_room`]. The unit is cut then, and the next segment begins
//! where it began.

use std::sync::{Arc, MutexGuard};

use bytes::Bytes;
use lockstep_wire::Lsn;
use lockstep_wire::logical::frames;

use super::cache::{CHUNK_OVERHEAD, Chunk};
use super::create::{NewSegment, create_segment};
use super::error::{LogError, Result};
use super::failpoint;
use super::index::Entry;
#[cfg(doc)]
use super::log::Standing;
use super::log::{Log, lock};
use super::newest::Writer;
use super::position::{LogPosition, Place};
use super::scan::Segment;
use super::schema::SCHEMA_LIMIT;
use super::segment::{
    CHUNK_BYTES, MOST_RECORD, Marks, RECORD_HEADER, RecordKind, SEGMENT_HEADER, SegmentHeader,
    file_name, unfinished_name,
};
use super::state::{Boundary, TailSegment};
use super::storage::{SpoolFile, Storage};
use super::units::{Draft, Plan, UnitState, plan};

/// Whole frames in parts of at most `most` bytes that are appended one after the other:
/// together they may need room that is made only once the first of them are confirmed. A
/// frame is never split.
pub fn parts(frames: Bytes, most: usize) -> Vec<Bytes> {
    if frames.len() <= most {
        return vec![frames];
    }
    let mut parts = Vec::new();
    let (mut begin, mut end) = (0, 0);
    // What makes no sense is refused by append, which tells why.
    for frame in frames::scan(&frames).map_while(|frame| frame.ok()) {
        let next = frame.offset + frame.length;
        if next - begin > most && end > begin {
            parts.push(frames.slice(begin..end));
            begin = end;
        }
        end = next;
    }
    parts.push(frames.slice(begin..));
    parts
}

impl<S: Storage> Log<S> {
    /// An upstream session begins: it will describe each table again before it is used, so
    /// that what was in force before need not be carried along. To be called when a
    /// connection is made and no unit is open; without it descriptions of dropped tables
    /// are kept for ever.
    pub fn begin_session(&self) -> Result<()> {
        let mut writer = lock(&self.writer);
        if lock(&self.shared).open.is_some() {
            return Err(LogError::UnitOpen);
        }
        writer.session = true;
        Ok(())
    }

    /// Takes in whole frames that follow those before. They are in the file afterwards, but
    /// durable only after the next [`Self::sync`]; readers get them at once.
    ///
    /// All or nothing: after an error the log is as before, and where the error
    /// [`LogError::is_retryable`] the same frames can be given again later.
    pub fn append(&self, frames: impl AsRef<[u8]>) -> Result<()> {
        self.append_bytes(frames.as_ref())
    }

    fn append_bytes(&self, frames: &[u8]) -> Result<()> {
        if frames.is_empty() {
            return Ok(());
        }
        let mut writer = lock(&self.writer);
        let before = {
            let shared = lock(&self.shared);
            shared.check()?;
            UnitState {
                open: shared.open,
                received: shared.received,
                whole_key: shared.whole_key,
            }
        };
        let plan = plan(frames, before, writer.session)?;
        self.check_schema(&plan, writer.session)?;
        let bytes = (frames.len() + plan.drafts.len() * RECORD_HEADER) as u64;
        self.make_space(&mut writer, bytes, plan.schema_bytes())?;
        let position = lock(&self.shared).end;
        let (start, end) = self.write_or_rotate(&mut writer, frames, &plan.drafts, position)?;
        writer.offset = end;
        self.publish(&mut writer, frames, plan, start, position);
        drop(writer);
        failpoint::APPENDED.reach();
        self.announce();
        Ok(())
    }

    /// Nothing will come any more that ends before `lsn`, says the upstream. Goes to the
    /// file like a unit, and is durable after the next [`Self::sync`]. Only between units.
    pub fn cover(&self, lsn: Lsn) -> Result<()> {
        let mut writer = lock(&self.writer);
        {
            let shared = lock(&self.shared);
            shared.check()?;
            if shared.open.is_some() {
                return Err(LogError::UnitOpen);
            }
            if lsn <= shared.received {
                return Ok(());
            }
        }
        self.make_space(&mut writer, RECORD_HEADER as u64, 0)?;
        let position = lock(&self.shared).end;
        let marks = Marks {
            last_end: lsn,
            ..Marks::default()
        };
        writer.buffer.clear();
        writer.put(RecordKind::Cover, marks, position, &[]);
        let offset = writer.offset;
        match writer.flush(offset) {
            Ok(end) => writer.offset = end,
            Err(source) => return Err(self.take_back(&mut writer, source)),
        }
        {
            let mut shared = lock(&self.shared);
            shared.index.set_newest_bytes(writer.offset);
            shared.dirty = true;
            shared.received = lsn;
            shared.boundary.place = writer.place(writer.offset);
        }
        drop(writer);
        self.announce();
        Ok(())
    }

    /// The upstream's connection is lost: drops the unit that is open, if one is, from memory
    /// and disk. It will come again.
    pub fn cut(&self) -> Result<()> {
        let mut writer = lock(&self.writer);
        // Whatever comes next comes from another session.
        writer.session = true;
        let _syncing = lock(&self.syncing);
        let mut dropped = Vec::new();
        let boundary = {
            let mut shared = lock(&self.shared);
            shared.check()?;
            if shared.open.is_none() {
                return Ok(());
            }
            shared.cut();
            let boundary = shared.boundary;
            while shared
                .index
                .newest()
                .is_some_and(|entry| entry.sequence > boundary.place.segment)
            {
                dropped.extend(shared.index.pop_newest());
            }
            shared.index.set_newest_bytes(boundary.place.offset);
            boundary
        };
        // Readers are told before the files change.
        self.announce();
        if !dropped.is_empty() {
            self.remove_newest(&dropped)?;
            self.reopen(&mut writer)?;
        }
        writer.offset = boundary.place.offset;
        let name = writer.name();
        failpoint::CUT.reach();
        // Durable at once: what is written next must not meet what was cut after a crash.
        let file = Arc::clone(&writer.file);
        file.truncate(writer.offset)
            .map_err(|source| self.poison("truncate", &name, source))?;
        self.make_durable(&*file, &name)?;
        let no_space = lock(&self.shared).no_space;
        match no_space {
            true => self.rotate_if_possible(&mut writer),
            false => Ok(()),
        }
    }

    /// Removes the newest segments, the newest first. One at a time: a crash must not leave
    /// a gap between those that are left. The caller holds `syncing`.
    fn remove_newest(&self, dropped: &[Entry]) -> Result<()> {
        for gone in dropped {
            let unnamed = {
                let mut shared = lock(&self.shared);
                match shared.tail.last() {
                    Some(last) if last.sequence == gone.sequence => {
                        shared.tail.pop().is_some_and(|last| !last.named)
                    }
                    _ => false,
                }
            };
            let name = match unnamed {
                true => unfinished_name(gone.sequence, gone.position),
                false => file_name(gone.sequence, gone.position),
            };
            let removed = self.storage.remove(&name);
            removed
                .and_then(|()| self.storage.sync())
                .map_err(|source| self.poison("remove", &name, source))?;
        }
        Ok(())
    }

    /// Goes on writing what is now the newest segment.
    fn reopen(&self, writer: &mut Writer<S::File>) -> Result<()> {
        let Some(entry) = lock(&self.shared).index.newest().copied() else {
            return Ok(());
        };
        let known = lock(&self.shared).tail.last().cloned();
        let last = match known {
            Some(last) => last,
            None => {
                let opened = Segment::open(&self.storage, entry.sequence, entry.position)
                    .inspect_err(|error| lock(&self.shared).poison(error))?;
                let last = TailSegment {
                    sequence: entry.sequence,
                    position: entry.position,
                    file: Arc::clone(opened.file()),
                    named: true,
                };
                lock(&self.shared).tail.push(last.clone());
                last
            }
        };
        writer.sequence = last.sequence;
        writer.first = last.position;
        writer.file = last.file;
        writer.head = SEGMENT_HEADER as u64;
        Ok(())
    }

    /// An error if the plan would bring more descriptions into force than are carried along.
    fn check_schema(&self, plan: &Plan, session: bool) -> Result<()> {
        let shared = lock(&self.shared);
        let kept = match session {
            true => 0,
            false => shared.schema.bytes() + shared.open_schema.bytes(),
        };
        let new = plan.schema_bytes();
        match kept + new > SCHEMA_LIMIT {
            true => Err(LogError::SchemaTooLarge {
                bytes: kept + new,
                limit: SCHEMA_LIMIT,
            }),
            false => Ok(()),
        }
    }

    /// Sees to it that `bytes` may be written, of which `schema` are new descriptions: in a new
    /// segment if it is time for one. What begins the next segment must fit behind them, or a
    /// full segment could never be followed by another, and so never be removed.
    fn make_space(&self, writer: &mut Writer<S::File>, bytes: u64, schema: usize) -> Result<()> {
        let limits = self.limits();
        let head = self.next_head(0);
        // What begins the next segment always has room.
        let kept_free = match self.storage.forgets_headers() {
            true => 0,
            false => self.next_head(schema),
        };
        let bytes = bytes + kept_free;
        let full = writer.offset >= limits.segment();
        // Then it must go before this fits, and only what is not the newest can.
        let in_the_way = limits
            .spool_bytes
            .is_some_and(|limit| writer.offset.saturating_add(bytes) > limit);
        if (full || in_the_way) && writer.offset > writer.head {
            // Where it alone is left, for example after the limit was lowered, a little more
            // than the limit is the way to much less.
            if self.spool_bytes() > writer.offset {
                self.check_spool(head)?;
            }
            // Also where there is no room for what comes: the full one can then be removed
            // once it is confirmed.
            self.rotate(writer)?;
        }
        self.check_spool(bytes)?;
        self.check_disk(writer, bytes)
    }

    /// An error if the disk has no room for `bytes`, of which the last are kept free for the next segment's
    /// beginning: a write that leaves no room for that could never be followed by a segment.
    fn check_disk(&self, writer: &mut Writer<S::File>, bytes: u64) -> Result<()> {
        if self.storage.free() >= bytes {
            return Ok(());
        }
        lock(&self.shared).no_space = true;
        self.rotate_if_possible(writer)?;
        Err(LogError::NoSpace(std::io::ErrorKind::StorageFull.into()))
    }

    /// Most bytes that a new segment begins with, once `more_schema` bytes of descriptions
    /// have come.
    fn next_head(&self, more_schema: usize) -> u64 {
        let shared = lock(&self.shared);
        let schema = shared.schema.bytes() + shared.open_schema.bytes() + more_schema;
        // Of two records that follow each other more than one chunk is full.
        let records = match schema {
            0 => 0,
            _ if self.storage.forgets_headers() => 0,
            _ => 1 + 2 * schema / CHUNK_BYTES,
        };
        (SEGMENT_HEADER + schema + records * RECORD_HEADER) as u64
    }

    /// An error if `bytes` more are not allowed.
    fn check_spool(&self, bytes: u64) -> Result<()> {
        let used = self.spool_bytes();
        match self.limits().spool_bytes {
            Some(limit) if used.saturating_add(bytes) > limit => {
                Err(LogError::SpoolFull { used, limit })
            }
            _ => Ok(()),
        }
    }

    /// Begins a new segment. It gets its name once it is durable, like those before.
    fn rotate(&self, writer: &mut Writer<S::File>) -> Result<()> {
        let (header, schema) = {
            let shared = lock(&self.shared);
            let header = SegmentHeader {
                sequence: writer.sequence + 1,
                group_start: self.start,
                position: shared.end,
                received: shared.received,
                open: shared.open,
                previous_bytes: writer.offset,
            };
            let mut schema = shared.schema.clone();
            schema.merge(shared.open_schema.clone());
            (header, schema)
        };
        let NewSegment { file, bytes } = create_segment(&self.storage, &header, &schema)?;
        failpoint::SEGMENT_MADE.reach();
        let file = Arc::new(file);
        writer.sequence = header.sequence;
        writer.first = header.position;
        writer.file = Arc::clone(&file);
        writer.offset = bytes;
        writer.head = bytes;
        let mut shared = lock(&self.shared);
        shared.index.push(Entry::new(&header, bytes));
        shared.tail.push(TailSegment {
            sequence: header.sequence,
            position: header.position,
            file,
            named: false,
        });
        shared.dirty = true;
        if shared.open.is_none() {
            shared.boundary.place = writer.place(bytes);
        }
        Ok(())
    }

    /// Writes records behind what there is; returns where they begin and end.
    fn write_or_rotate(
        &self,
        writer: &mut Writer<S::File>,
        frames: &[u8],
        drafts: &[Draft],
        position: LogPosition,
    ) -> Result<(u64, u64)> {
        let start = writer.offset;
        match self.write_drafts(writer, frames, drafts, position) {
            Ok(end) => Ok((start, end)),
            Err(source) => Err(self.take_back_or_rotate(writer, source)?),
        }
    }

    /// After a failed write: takes away what was written of it. On a full disk another segment follows the
    /// newest one, which can then be removed once it is confirmed, however small it is. The next attempt
    /// goes to the new segment. What remains to be said is returned.
    fn take_back_or_rotate(
        &self,
        writer: &mut Writer<S::File>,
        source: std::io::Error,
    ) -> Result<LogError> {
        let error = self.take_back(writer, source);
        if matches!(error, LogError::NoSpace(_)) {
            lock(&self.shared).no_space = true;
            self.rotate_if_possible(writer)?;
        }
        Ok(error)
    }

    /// Begins a new segment if there is something in the newest, and the disk has room for that much.
    fn rotate_if_possible(&self, writer: &mut Writer<S::File>) -> Result<()> {
        if writer.offset <= writer.head {
            return Ok(());
        }
        match self.rotate(writer) {
            // Whoever has filled the disk must make some room.
            Ok(()) | Err(LogError::NoSpace(_)) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Writes records behind what there is; returns where they end.
    fn write_drafts(
        &self,
        writer: &mut Writer<S::File>,
        frames: &[u8],
        drafts: &[Draft],
        mut position: LogPosition,
    ) -> std::io::Result<u64> {
        let mut offset = writer.offset;
        writer.buffer.clear();
        for draft in drafts {
            let payload = frames.get(draft.range.clone()).unwrap_or_default();
            if !writer.buffer.is_empty() && writer.buffer.len() + payload.len() > CHUNK_BYTES {
                offset = writer.flush(offset)?;
            }
            writer.put(draft.kind, draft.marks, position, payload);
            position = position.plus(payload.len());
        }
        offset = writer.flush(offset)?;
        writer.buffer.shrink_to(MOST_RECORD);
        Ok(offset)
    }

    /// After a failed write: takes away what was written of it. What remains to be said is
    /// returned.
    fn take_back(&self, writer: &mut Writer<S::File>, source: std::io::Error) -> LogError {
        let name = writer.name();
        let file = Arc::clone(&writer.file);
        let _syncing = lock(&self.syncing);
        // Durable at once: what is written next must not meet the rest of this after a crash.
        let taken_back = file.truncate(writer.offset).and_then(|()| file.sync());
        match (taken_back, LogError::io("write", &name, source)) {
            (Ok(()), full @ LogError::NoSpace(_)) => full,
            // After any other error the file may not hold what was written before either.
            (Ok(()), error) => {
                lock(&self.shared).poison(&error);
                error
            }
            (Err(source), _) => self.poison("truncate", &name, source),
        }
    }

    /// Shows readers what was written.
    fn publish(
        &self,
        writer: &mut MutexGuard<'_, Writer<S::File>>,
        frames: &[u8],
        plan: Plan,
        start: u64,
        position: LogPosition,
    ) {
        let session = std::mem::take(&mut writer.session);
        let chunks = self.chunks(writer.sequence, frames, &plan.drafts, start, position);
        let mut shared = lock(&self.shared);
        // Where the last whole unit ends: behind the last record with none open after it.
        let mut place = writer.place(start);
        let mut at = position;
        for draft in &plan.drafts {
            place.offset += (RECORD_HEADER + draft.range.len()) as u64;
            at = at.plus(draft.range.len());
            if !draft.marks.open {
                shared.boundary = Boundary {
                    position: at,
                    place,
                };
            }
        }
        for chunk in chunks {
            shared.cache.push(chunk);
        }
        if session {
            shared.schema.clear();
            shared.open_schema.clear();
        }
        if plan.after.received > shared.received {
            let open = std::mem::take(&mut shared.open_schema);
            shared.schema.merge(open);
        }
        for (number, (key, range)) in plan.schema.into_iter().enumerate() {
            let frame = frames.get(range).unwrap_or_default();
            match number < plan.settled {
                true => shared.schema.set(key, frame),
                false => shared.open_schema.set(key, frame),
            }
        }
        shared.end = at;
        shared.received = plan.after.received;
        shared.open = plan.after.open;
        shared.whole_key = plan.after.whole_key;
        shared.no_space = false;
        shared.index.set_newest_bytes(writer.offset);
        shared.dirty = true;
    }

    /// What of the drafts goes to the cache. Room for it is made first.
    fn chunks(
        &self,
        segment: u64,
        frames: &[u8],
        drafts: &[Draft],
        mut offset: u64,
        mut position: LogPosition,
    ) -> Vec<Chunk> {
        let cost = |draft: &Draft| draft.range.len() as u64 + CHUNK_OVERHEAD;
        let mut left: u64 = drafts.iter().map(cost).sum();
        let limit = {
            // Both at once: what is left out below must not leave a gap behind what is kept.
            let mut shared = lock(&self.shared);
            shared.cache.make_room(left);
            shared.cache.limit()
        };
        let mut chunks = Vec::new();
        for draft in drafts {
            let place = Place { segment, offset };
            offset += (RECORD_HEADER + draft.range.len()) as u64;
            if left <= limit {
                let bytes = frames.get(draft.range.clone()).unwrap_or_default();
                chunks.push(Chunk {
                    kind: draft.kind,
                    // Copied: how much memory `frames` keeps alive is not known here.
                    bytes: Bytes::copy_from_slice(bytes),
                    position,
                    place,
                    next: Place { segment, offset },
                    marks: draft.marks,
                });
            }
            left -= cost(draft);
            position = position.plus(draft.range.len());
        }
        chunks
    }
}
