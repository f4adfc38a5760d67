//! What of a chunk a reader wants: from its first unit on, up to its limit. Before the first change
//! of a table comes its description, unless the upstream describes it again.

use bytes::Bytes;
use lockstep_wire::Lsn;
use lockstep_wire::logical::frames::FRAME_HEADER;
use lockstep_wire::logical::{Boundary, SchemaKey, boundary, frames, tables_of};

use super::{Origin, Piece, Reader};
use crate::cache::Chunk;
use crate::error::{LogError, Result};
use crate::segment::RecordKind;
use crate::storage::Storage;
use crate::units::key_of;

impl<S: Storage> Reader<S> {
    /// Passes by what comes before the first unit it wants.
    pub(super) fn pass_by(&mut self, chunks: &[Chunk]) -> Result<()> {
        for chunk in chunks {
            if let Some(from) = self.seeking {
                self.find(chunk, from)?;
            }
        }
        Ok(())
    }

    /// Passes by a chunk, or comes to the first unit with key `from` or later in it.
    fn find(&mut self, chunk: &Chunk, from: Lsn) -> Result<()> {
        let skip = self.skip(chunk);
        let marks = &chunk.marks;
        self.begin_session(chunk, skip);
        let found = match chunk.kind {
            _ if marks.last_key < from && !marks.schema => None,
            RecordKind::Frames => self.find_in_frames(chunk, skip, from)?,
            _ => (marks.first_key >= from).then_some(skip),
        };
        match found {
            Some(offset) => {
                self.seeking = None;
                self.stand_in(chunk, offset);
            }
            None => self.stand_behind(chunk),
        }
        Ok(())
    }

    fn find_in_frames(&mut self, chunk: &Chunk, skip: usize, from: Lsn) -> Result<Option<usize>> {
        let bytes = chunk.bytes.get(skip..).unwrap_or_default();
        for frame in frames::scan(bytes) {
            let frame = frame.map_err(|_| LogError::Frames("bytes that are no frames"))?;
            match what(frame.message)? {
                Boundary::Begin { key } if key >= from => return Ok(Some(skip + frame.offset)),
                Boundary::Whole { key, end } if key_of(key, end) >= from => {
                    return Ok(Some(skip + frame.offset));
                }
                Boundary::Schema(key) => {
                    let whole = frame.offset..frame.offset + frame.length;
                    if let Some(schema) = &mut self.schema {
                        schema.set(key, bytes.get(whole).unwrap_or_default());
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Where in a chunk the next byte is.
    fn skip(&self, chunk: &Chunk) -> usize {
        let skip = usize::try_from(self.at.since(chunk.position)).unwrap_or(usize::MAX);
        skip.min(chunk.bytes.len())
    }

    /// The next byte is at `offset` of a chunk.
    fn stand_in(&mut self, chunk: &Chunk, offset: usize) {
        self.at = chunk.position.plus(offset);
        self.base = chunk.position;
        self.place = chunk.place;
    }

    fn stand_behind(&mut self, chunk: &Chunk) {
        self.at = chunk.end();
        self.base = self.at;
        self.place = chunk.next;
    }

    /// What was in force before a session of the upstream need not be known in it.
    fn begin_session(&mut self, chunk: &Chunk, skip: usize) {
        if let (0, true, Some(schema)) = (skip, chunk.marks.session, &mut self.schema) {
            schema.clear();
        }
    }

    /// Takes over a chunk as far as it is wanted. False if it comes to the limit in it.
    pub(super) fn take(&mut self, chunk: &Chunk, origin: Origin) -> Result<bool> {
        let skip = self.skip(chunk);
        let marks = &chunk.marks;
        self.begin_session(chunk, skip);
        let limit = self.limit.filter(|limit| marks.last_key >= *limit);
        match chunk.kind {
            RecordKind::Frames if self.schema.is_some() || limit.is_some() => {
                self.take_frames(chunk, skip, origin)
            }
            // It is a unit of its own if it has a key.
            _ if limit.is_some_and(|limit| marks.first_key >= limit) => Ok(false),
            _ => {
                if chunk.kind == RecordKind::Piece && skip == 0 && !self.is_within_frame() {
                    let message = chunk.bytes.get(FRAME_HEADER..).unwrap_or_default();
                    let here = (Bytes::new(), origin, Lsn::INVALID);
                    self.tell_tables(message, here, &mut Vec::new());
                }
                self.take_rest(chunk, skip, origin, Vec::new());
                Ok(true)
            }
        }
    }

    /// Takes all from `start` on.
    fn take_rest(&mut self, chunk: &Chunk, start: usize, origin: Origin, told: Vec<SchemaKey>) {
        if start < chunk.bytes.len() {
            self.waiting.push_back(Piece {
                bytes: chunk.bytes.slice(start..),
                origin,
                end: chunk.marks.last_end,
                open: chunk.marks.open,
                more: chunk.marks.more,
                told,
            });
        }
        self.stand_behind(chunk);
    }

    /// Whether what was taken last ends within a frame.
    fn is_within_frame(&self) -> bool {
        self.waiting.back().map_or(self.more, |piece| piece.more)
    }

    /// Takes what comes before a change of tables that were not told yet, in which `told` is
    /// described, and then what describes them. False if there is nothing to tell: nothing is taken.
    fn tell_tables(
        &mut self,
        message: &[u8],
        (before, origin, ended): (Bytes, Origin, Lsn),
        told: &mut Vec<SchemaKey>,
    ) -> bool {
        let Some(schema) = self.schema.as_mut().filter(|schema| !schema.is_empty()) else {
            return false;
        };
        let tables: Vec<_> = tables_of(message)
            .flat_map(|table| schema.remove_table(table))
            .collect();
        if tables.is_empty() {
            return false;
        }
        self.push(before, origin, ended, true, std::mem::take(told));
        for (key, frame) in tables {
            self.push(frame, Origin::Schema, Lsn::INVALID, true, vec![key]);
        }
        true
    }

    /// Goes through a chunk frame by frame: puts in what describes tables where that is needed,
    /// stops at the limit.
    fn take_frames(&mut self, chunk: &Chunk, skip: usize, origin: Origin) -> Result<bool> {
        let bytes = chunk.bytes.slice(skip..);
        // Taken so far, and the end of the last unit before the current frame.
        let mut taken = 0;
        let mut ended = Lsn::INVALID;
        // What is described in what is not taken yet.
        let mut told = Vec::new();
        for frame in frames::scan(&bytes) {
            let frame = frame.map_err(|_| LogError::Frames("bytes that are no frames"))?;
            let what = what(frame.message)?;
            let key = match what {
                Boundary::Begin { key } => Some(key),
                Boundary::Whole { key, end } => Some(key_of(key, end)),
                _ => None,
            };
            let before = || bytes.slice(taken..frame.offset);
            if self.limit.is_some_and(|limit| key >= Some(limit)) {
                self.push(before(), origin, ended, false, told);
                self.stand_in(chunk, skip + frame.offset);
                return Ok(false);
            }
            match (what, &mut self.schema) {
                (Boundary::End { end, .. } | Boundary::Whole { end, .. }, _) => ended = end,
                (Boundary::Schema(key), Some(schema)) => {
                    schema.remove(key);
                    told.push(key);
                }
                (Boundary::Change, Some(_)) => {
                    let here = (before(), origin, ended);
                    if self.tell_tables(frame.message, here, &mut told) {
                        taken = frame.offset;
                    }
                }
                _ => {}
            }
            if self.schema.is_none() && self.limit.is_none() {
                break;
            }
        }
        self.take_rest(chunk, skip + taken, origin, told);
        Ok(true)
    }

    fn push(&mut self, bytes: Bytes, origin: Origin, end: Lsn, open: bool, told: Vec<SchemaKey>) {
        if !bytes.is_empty() {
            self.waiting.push_back(Piece {
                bytes,
                origin,
                end,
                open,
                more: false,
                told,
            });
        }
    }
}

fn what(message: &[u8]) -> Result<Boundary> {
    boundary(message).map_err(|_| LogError::Frames("a message of a type that is not expected"))
}
