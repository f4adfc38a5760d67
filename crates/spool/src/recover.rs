//! Opening a log that exists: what is there, what is whole, what is damaged.

use std::ops::Range;

use lockstep_wire::Lsn;

use super::create::{NewSegment, Parts, before, create_durable_segment};
use super::error::{LogError, Result};
use super::failpoint;
use super::index::{Entry, Index};
use super::log::{Limits, Log};
use super::mark::Mark;
use super::position::LogPosition;
use super::scan::Segment;
use super::schema::Schema;
use super::segment::{
    CHUNK_BYTES, Named, RecordKind, SEGMENT_HEADER, SegmentHeader, file_name, read_name,
};
use super::storage::{SpoolFile, Storage};

/// Suffix of a file that holds what cannot be read and was cut off or set aside.
const DAMAGED: &str = ".damaged";

/// Most segments that may be missing between two.
const MOST_MISSING: u64 = 65_536;

/// What opening a log found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// End of the last whole unit, or what was covered after it: where the upstream is to
    /// go on. It was not told more before the process ended; after a crash of the machine it
    /// may have been, and the difference is lost.
    pub durable: Lsn,
    /// Bytes of files that were cut off: an unfinished unit, a torn record.
    pub dropped_bytes: u64,
    /// What cannot be read any more, as far as it was noticed: payloads of older segments
    /// are verified only when they are read.
    pub holes: Vec<Hole>,
}

/// A part of the log that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hole {
    pub segment: u64,
    /// Units with this key or later may be missing.
    pub from: Lsn,
    /// Units with this key or later are there again; None if nothing follows.
    pub to: Option<Lsn>,
    pub what: &'static str,
}

/// A segment's file.
struct Found {
    sequence: u64,
    position: LogPosition,
    bytes: u64,
    header: std::result::Result<SegmentHeader, &'static str>,
}

impl Found {
    fn name(&self) -> String {
        file_name(self.sequence, self.position)
    }
}

impl<S: Storage> Log<S> {
    /// Opens a log that exists, and cuts off what is not whole. What is left is durable.
    ///
    /// Nothing is cut where units are missing that were durable once ([`Mark`]): they are a
    /// hole, and the log goes on behind it.
    pub fn open(storage: S, limits: Limits) -> Result<(Self, Recovered)> {
        let (mark, noted) = Mark::open(&storage);
        let mut recovery = Recovery {
            storage: &storage,
            found: find(&storage)?,
            behind: Vec::new(),
            holes: Vec::new(),
            dropped_bytes: 0,
        };
        let parts = recovery.run(mark, noted)?;
        let recovered = Recovered {
            durable: parts.received,
            dropped_bytes: recovery.dropped_bytes,
            holes: recovery.holes,
        };
        Ok((Self::assemble(storage, limits, parts), recovered))
    }
}

/// All segments, oldest first. Those that were being prepared are removed.
fn find<S: Storage>(storage: &S) -> Result<Vec<Found>> {
    let names = storage
        .list()
        .map_err(|source| LogError::io("list", "", source))?;
    let mut found = Vec::new();
    for name in &names {
        match read_name(name) {
            Named::Unfinished => storage
                .remove(name)
                .map_err(|source| LogError::io("remove", name, source))?,
            Named::Segment { sequence, position } => {
                found.push(examine(storage, sequence, position)?);
            }
            Named::Other => {}
        }
    }
    found.sort_by_key(|segment| (segment.sequence, segment.position));
    match found.is_empty() {
        true => Err(LogError::NoLog),
        false => Ok(found),
    }
}

fn examine<S: Storage>(storage: &S, sequence: u64, position: LogPosition) -> Result<Found> {
    let segment = Segment::open(storage, sequence, position)?;
    let name = file_name(sequence, position);
    let header = match segment.header() {
        Ok(header) => Ok(header),
        Err(unreadable) => Err(unreadable.damage(&name)?),
    };
    let length = segment.file().length();
    Ok(Found {
        sequence,
        position,
        bytes: length.map_err(|source| LogError::io("read", &name, source))?,
        header,
    })
}

/// Writes what is in a file once more. Where an earlier process could not make it durable
/// the system may hold it in memory, counted as written though the disk never took it: only
/// what is written anew is made durable by the next [`SpoolFile::sync`], or refused again.
fn write_again<F: SpoolFile>(file: &F, bytes: u64) -> std::io::Result<()> {
    each_part(0..bytes, |offset, buffer| {
        file.read_at(offset, buffer)?;
        file.write_at(offset, buffer)
    })
}

/// Calls `with` for each part of a file, with a buffer of the part's length.
fn each_part(
    range: Range<u64>,
    mut with: impl FnMut(u64, &mut [u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut offset = range.start;
    while offset < range.end {
        let left = usize::try_from(range.end - offset).unwrap_or(CHUNK_BYTES);
        buffer.truncate(left);
        with(offset, &mut buffer)?;
        offset += buffer.len() as u64;
    }
    Ok(())
}

/// A segment up to where it is whole.
struct Whole {
    /// Where the last whole unit ends in it, in the file and in the log; None if the unit
    /// that is open at its start is so at its end.
    boundary: Option<(u64, LogPosition)>,
    received: Lsn,
    /// None if no unit begins and ends up to here.
    whole_key: Option<Lsn>,
    /// Descriptions in force at the boundary.
    schema: Schema,
    /// Bytes of its header and schema.
    head: u64,
    /// What is wrong with what follows, if it is not the end of the file.
    damage: Option<&'static str>,
}

struct Recovery<'a, S> {
    storage: &'a S,
    found: Vec<Found>,
    /// Segments behind the last whole unit, the newest first, and what is wrong with those
    /// that are no part of an open unit.
    behind: Vec<(Found, Option<&'static str>)>,
    holes: Vec<Hole>,
    dropped_bytes: u64,
}

impl<S: Storage> Recovery<'_, S> {
    /// Nothing is changed before the end of the last whole unit is found.
    fn run(&mut self, mark: Mark<S::File>, noted: Lsn) -> Result<Parts<S::File>> {
        while let Some(last) = self.found.pop() {
            let header = match last.header {
                Ok(header) => header,
                Err(what) => {
                    self.behind.push((last, Some(what)));
                    continue;
                }
            };
            let mut segment = Segment::open(self.storage, last.sequence, last.position)?;
            let whole = whole(&mut segment, &header, last.bytes)?;
            let Some((offset, position)) = whole.boundary else {
                self.behind.push((last, None));
                continue;
            };
            if whole.received < noted {
                return self.go_on_behind(last, &whole, mark, noted);
            }
            // In the newest segment it is what was not durable when the machine stopped.
            if let (false, Some(what)) = (self.behind.is_empty(), whole.damage) {
                self.hole(last.sequence, whole.received, None, what);
            }
            self.clear_behind(whole.received, None)?;
            if whole.damage.is_some() {
                self.keep_end(&last, offset);
            }
            let file = self.cut(&last, offset)?;
            let entry = Entry::new(&header, offset);
            let index = self.index(entry, header.previous_bytes)?;
            self.holes.sort_by_key(|hole| hole.segment);
            return Ok(Parts {
                index,
                file,
                bytes: offset,
                head: whole.head.min(offset),
                end: position,
                received: whole.received,
                whole_key: whole.whole_key.unwrap_or(before(header.first_lsn())),
                schema: whole.schema,
                header,
                mark,
            });
        }
        Err(LogError::Corrupt {
            segment: self.behind.last().map_or(0, |(found, _)| found.sequence),
            position: LogPosition::START,
            from: Lsn::INVALID,
            to: None,
            what: "no whole transaction can be found",
        })
    }

    fn hole(&mut self, segment: u64, from: Lsn, to: Option<Lsn>, what: &'static str) {
        self.holes.push(Hole {
            segment,
            from,
            to,
            what,
        });
    }

    /// Begins a segment behind a hole: what was durable up to `noted` is whole up to
    /// `whole.received` only. `last` stays as it is, so that readers get what is before the damage
    /// and an error there; the upstream goes on at `noted`.
    fn go_on_behind(
        &mut self,
        last: Found,
        whole: &Whole,
        mark: Mark<S::File>,
        noted: Lsn,
    ) -> Result<Parts<S::File>> {
        let what = whole.damage.unwrap_or("it ends too early");
        self.hole(last.sequence, whole.received, Some(noted), what);
        self.clear_behind(whole.received, Some(noted))?;
        self.cut(&last, last.bytes)?;
        let header = SegmentHeader {
            sequence: last.sequence + 1,
            group_start: last.header.map_or(noted, |header| header.group_start),
            // A file is longer than its frames: a reader sees that some are missing.
            position: LogPosition::from(u64::from(last.position).saturating_add(last.bytes)),
            received: noted,
            open: None,
            previous_bytes: last.bytes,
        };
        self.found.push(last);
        // The next session of the upstream describes each table before it is used.
        let schema = Schema::default();
        let NewSegment { file, bytes } = create_durable_segment(self.storage, &header, &schema)?;
        let index = self.index(Entry::new(&header, bytes), header.previous_bytes)?;
        self.holes.sort_by_key(|hole| hole.segment);
        Ok(Parts {
            index,
            file,
            bytes,
            head: bytes,
            end: header.position,
            received: noted,
            whole_key: before(noted),
            schema,
            header,
            mark,
        })
    }

    /// Copies what is to be cut off a segment, for whoever wants to look at it. It is not known
    /// to have been durable, so a disk that has no room for it does not keep the log from going on.
    fn keep_end(&self, segment: &Found, from: u64) {
        let copy = format!("{}{DAMAGED}", segment.name());
        let copied = || -> std::io::Result<()> {
            let (source, target) = (
                self.storage.open(&segment.name())?,
                self.storage.create(&copy)?,
            );
            each_part(from..segment.bytes, |offset, buffer| {
                source.read_at(offset, buffer)?;
                target.write_at(offset - from, buffer)
            })?;
            target.sync()
        };
        if copied().is_err() {
            let _ = self.storage.remove(&copy);
        }
    }

    /// Removes segments that only hold a part of an open unit, and keeps those that cannot
    /// be read out of the way, for whoever wants to look at them; all of them if units that were
    /// durable, up to `lost`, are missing. One at a time, the newest first: a crash must not leave
    /// a gap between those that are left.
    fn clear_behind(&mut self, received: Lsn, lost: Option<Lsn>) -> Result<()> {
        for (segment, damage) in std::mem::take(&mut self.behind) {
            let name = segment.name();
            let cleared = match damage {
                Some(what) => {
                    self.hole(segment.sequence, received, lost, what);
                    self.storage.rename(&name, &(name.clone() + DAMAGED))
                }
                None if lost.is_some() => self.storage.rename(&name, &(name.clone() + DAMAGED)),
                None => self.storage.remove(&name),
            };
            cleared
                .and_then(|()| self.storage.sync())
                .map_err(|source| LogError::io("remove", &name, source))?;
            self.dropped_bytes += segment.bytes;
        }
        Ok(())
    }

    /// Cuts the newest segment, and makes it and the folder durable: after a crash of the
    /// relay alone what is there need not be. It is the only one of which that is so: others
    /// that are not durable have no name yet.
    fn cut(&mut self, segment: &Found, bytes: u64) -> Result<S::File> {
        let name = segment.name();
        let file = self
            .storage
            .open(&name)
            .map_err(|source| LogError::io("open", &name, source))?;
        if bytes < segment.bytes {
            file.truncate(bytes)
                .map_err(|source| LogError::io("truncate", &name, source))?;
            self.dropped_bytes += segment.bytes - bytes;
            failpoint::RECOVERED.reach();
        }
        write_again(&file, bytes).map_err(|source| LogError::io("write", &name, source))?;
        file.sync()
            .and_then(|()| self.storage.sync())
            .map_err(|source| LogError::io("sync", &name, source))?;
        Ok(file)
    }

    /// The index of what is left, of which `newest` is the last. Damage of older segments is
    /// noted as far as their headers and lengths show it.
    fn index(&mut self, newest: Entry, newest_says: u64) -> Result<Index> {
        let mut entries = vec![newest];
        let mut next = newest;
        let mut expected_bytes = newest_says;
        let mut holes = Vec::new();
        for found in self.found.iter().rev() {
            let missing = next.sequence - found.sequence;
            if missing == 0 || missing > MOST_MISSING {
                return Err(LogError::Corrupt {
                    segment: found.sequence,
                    position: found.position,
                    from: Lsn::INVALID,
                    to: Some(next.first_lsn),
                    what: "segments are missing, or have the same number",
                });
            }
            for sequence in (found.sequence + 1..next.sequence).rev() {
                entries.push(Entry::missing(sequence, &next));
                expected_bytes = found.bytes;
            }
            let (entry, what) = match found.header {
                Ok(header) => {
                    let entry = Entry::new(&header, found.bytes);
                    let short = (found.bytes != expected_bytes).then_some("it has another length");
                    expected_bytes = header.previous_bytes;
                    (entry, short)
                }
                Err(what) => {
                    let entry = Entry::damaged(found.sequence, found.position, found.bytes, &next);
                    (entry, Some(what))
                }
            };
            let what = match missing {
                1 => what,
                _ => Some("the segments after it are missing"),
            };
            if let Some(what) = what {
                holes.push(Hole {
                    segment: found.sequence,
                    from: entry.first_lsn,
                    to: Some(next.first_lsn),
                    what,
                });
            }
            entries.push(entry);
            next = entry;
        }
        self.holes.extend(holes);
        let mut index = Index::default();
        entries
            .into_iter()
            .rev()
            .for_each(|entry| index.push(entry));
        Ok(index)
    }
}

/// Reads a segment as far as it is whole.
fn whole<F: SpoolFile>(
    segment: &mut Segment<F>,
    header: &SegmentHeader,
    bytes: u64,
) -> Result<Whole> {
    let mut offset = SEGMENT_HEADER as u64;
    let mut position = header.position;
    let mut open = header.open;
    let mut open_schema = Schema::default();
    let mut whole = Whole {
        boundary: open.is_none().then_some((offset, position)),
        received: header.received,
        whole_key: None,
        schema: Schema::default(),
        head: offset,
        damage: None,
    };
    while offset < bytes {
        let record = match segment.record(offset, bytes, position) {
            Ok(record) => record,
            Err(unreadable) => {
                let name = file_name(segment.sequence, segment.position);
                whole.damage = Some(unreadable.damage(&name)?);
                break;
            }
        };
        let marks = &record.header.marks;
        offset = record.next;
        position = position.plus(record.header.stream_bytes());
        if marks.session {
            whole.schema.clear();
        }
        match record.header.kind {
            RecordKind::Schema => {
                whole.schema.scan(&record.payload)?;
                whole.head = offset;
            }
            RecordKind::Frames if marks.schema => open_schema.scan(&record.payload)?,
            RecordKind::Frames | RecordKind::Piece | RecordKind::Cover => {}
        }
        if marks.last_key.is_valid() {
            open = Some(marks.last_key);
        }
        if !marks.open {
            if record.header.kind != RecordKind::Schema || header.open.is_none() {
                whole.boundary = Some((offset, position));
            }
            if record.header.kind.is_stream() {
                whole.whole_key = open.take().or(whole.whole_key);
                whole.schema.merge(std::mem::take(&mut open_schema));
            }
            whole.received = whole.received.max(marks.last_end);
        }
    }
    Ok(whole)
}
