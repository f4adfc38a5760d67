//! What the writer, the syncer and the readers share.

use std::collections::VecDeque;
use std::sync::Arc;

use lockstep_wire::Lsn;

use super::cache::Cache;
use super::error::{LogError, Result};
use super::index::{Entry, Index};
use super::position::{LogPosition, Place};
use super::schema::Schema;

/// Number of cuts that are remembered. A reader that slept through more and stands within a unit is
/// told that it was cut, which at worst costs it a new connection.
const CUTS_KNOWN: usize = 64;

/// A point between two units.
#[derive(Debug, Clone, Copy)]
pub(super) struct Boundary {
    pub position: LogPosition,
    /// Where the spool goes on there.
    pub place: Place,
}

/// A segment that may not be durable.
#[derive(Debug)]
pub(super) struct TailSegment<F> {
    pub sequence: u64,
    /// Position of its first frame.
    pub position: LogPosition,
    pub file: Arc<F>,
    /// Whether the file has its final name. Only the first of the tail may.
    pub named: bool,
}

impl<F> Clone for TailSegment<F> {
    fn clone(&self) -> Self {
        Self {
            file: Arc::clone(&self.file),
            ..*self
        }
    }
}

/// Where a log stands. Its lock is held for moments, never over I/O.
#[derive(Debug)]
pub(super) struct LogState<F> {
    pub cache: Cache,
    pub index: Index,
    /// The segments that may not be durable, oldest first; the last is the newest of all.
    pub tail: Vec<TailSegment<F>>,
    /// Something was written to them that was not made durable.
    pub dirty: bool,
    /// The disk had no room for the last write.
    pub no_space: bool,
    /// End of the frames.
    pub end: LogPosition,
    /// End of the last whole unit, or cover, and the same on disk.
    pub received: Lsn,
    pub durable: Lsn,
    /// Where the log is cut if the connection is lost: the end of the last whole unit.
    pub boundary: Boundary,
    /// The segment in which it is on disk: a crash goes back to there.
    pub durable_segment: u64,
    /// Highest key of a whole unit.
    pub whole_key: Lsn,
    /// Key of the unit that is arriving.
    pub open: Option<Lsn>,
    /// Descriptions in force at the boundary.
    pub schema: Schema,
    /// What the open unit has changed.
    pub open_schema: Schema,
    /// Counts the cuts, and where the last of them were.
    pub generation: u64,
    cuts: VecDeque<(u64, LogPosition)>,
    /// Why nothing may be written any more: the first error after which it is not known what
    /// the disk holds.
    pub poisoned: Option<Arc<str>>,
}

/// What a [`LogState`] begins with.
#[derive(Debug)]
pub(super) struct Start<F> {
    pub cache_limit: u64,
    pub index: Index,
    pub newest: TailSegment<F>,
    pub received: Lsn,
    pub boundary: Boundary,
    pub whole_key: Lsn,
    pub schema: Schema,
}

impl<F> LogState<F> {
    /// The state of a log of which everything is durable.
    pub fn new(start: Start<F>) -> Self {
        Self {
            cache: Cache::new(start.cache_limit),
            index: start.index,
            tail: vec![start.newest],
            dirty: false,
            no_space: false,
            end: start.boundary.position,
            received: start.received,
            durable: start.received,
            durable_segment: start.boundary.place.segment,
            boundary: start.boundary,
            whole_key: start.whole_key,
            open: None,
            schema: start.schema,
            open_schema: Schema::default(),
            generation: 0,
            cuts: VecDeque::new(),
            poisoned: None,
        }
    }

    /// An error if nothing may be written any more.
    pub fn check(&self) -> Result<()> {
        match &self.poisoned {
            Some(why) => Err(LogError::Poisoned(Arc::clone(why))),
            None => Ok(()),
        }
    }

    /// Nothing may be written from here on. The first error is the one that is told.
    pub fn poison(&mut self, why: &LogError) {
        self.poisoned.get_or_insert_with(|| why.to_string().into());
    }

    /// Whether a unit is arriving that begins in the oldest segment, behind others.
    pub fn is_begun_in_oldest(&self) -> bool {
        let place = self.boundary.place.segment;
        let is_behind =
            |oldest: &Entry| oldest.sequence == place && self.boundary.position > oldest.position;
        self.open.is_some() && self.index.oldest().is_some_and(is_behind)
    }

    /// Drops the open unit from memory.
    pub fn cut(&mut self) {
        self.end = self.boundary.position;
        self.cache.cut(self.end);
        self.open = None;
        self.open_schema.clear();
        self.generation += 1;
        if self.cuts.len() == CUTS_KNOWN {
            self.cuts.pop_front();
        }
        self.cuts.push_back((self.generation, self.end));
    }

    /// Whether the bytes before `position`, read in `generation`, are still in the log. A
    /// position between two units is, always.
    pub fn is_kept(&self, generation: u64, position: LogPosition) -> bool {
        // Cuts never go back behind one another, so the first one since decides.
        let first = self.cuts.iter().find(|(later, _)| *later > generation);
        match first {
            Some((number, cut)) => *number == generation + 1 && position <= *cut,
            None => true,
        }
    }
}
