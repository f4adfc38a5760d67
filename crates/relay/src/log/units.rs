//! How frames that are appended become records: where units begin and end in them.

use std::ops::Range;

use lockstep_wire::Lsn;
use lockstep_wire::logical::{Boundary, SchemaKey, boundary, frames};

use super::error::{LogError, Result};
use super::segment::{CHUNK_BYTES, Kind, Marks};

/// A unit's key, also for those that only know their end: they come for a subscriber that
/// has confirmed less than their end.
pub(super) fn key_of(key: Option<Lsn>, end: Lsn) -> Lsn {
    key.unwrap_or_else(|| Lsn::from(u64::from(end).saturating_sub(1)))
}

/// Where frames stand that are to be appended.
#[derive(Debug, Clone, Copy)]
pub(super) struct State {
    /// Key of the unit that is open.
    pub open: Option<Lsn>,
    /// End of the last whole unit, or cover.
    pub received: Lsn,
    /// No whole unit has a higher key.
    pub whole_key: Lsn,
}

/// A record to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Draft {
    pub kind: Kind,
    pub marks: Marks,
    /// Its bytes of what is appended.
    pub range: Range<usize>,
}

/// What to write for some frames, and what changes by it.
#[derive(Debug)]
pub(super) struct Plan {
    pub drafts: Vec<Draft>,
    /// Where the log stands after it.
    pub after: State,
    /// Descriptions of tables and types among the frames.
    pub schema: Vec<(SchemaKey, Range<usize>)>,
    /// So many of them belong to whole units, the others to the unit that is open.
    pub settled: usize,
}

/// What to write for `bytes`, whole frames that follow what `before` tells.
pub(super) fn plan(bytes: &[u8], before: State, session: bool) -> Result<Plan> {
    let mut planner = Planner {
        plan: Plan {
            drafts: Vec::new(),
            after: before,
            schema: Vec::new(),
            settled: 0,
        },
        start: 0,
        marks: Marks::default(),
        unit: None,
        session,
    };
    let mut end = 0;
    for frame in frames::scan(bytes) {
        let frame = frame.map_err(|_| LogError::Frames("bytes that are no frames"))?;
        let range = frame.offset..frame.offset + frame.length;
        let what = boundary(frame.message)
            .map_err(|_| LogError::Frames("a message of a type that is not expected"))?;
        end = range.end;
        match frame.length > CHUNK_BYTES {
            true => planner.long(range, what)?,
            false => planner.short(range, what)?,
        }
    }
    planner.close(end);
    Ok(planner.plan)
}

struct Planner {
    plan: Plan,
    /// Where the record in the making begins.
    start: usize,
    marks: Marks,
    /// Where in it the open unit begins, if it does, and what the marks were before.
    unit: Option<(usize, Marks)>,
    /// The next record begins a session.
    session: bool,
}

impl Planner {
    fn short(&mut self, range: Range<usize>, what: Boundary) -> Result<()> {
        if range.end - self.start > CHUNK_BYTES {
            self.close(range.start);
        }
        match what {
            Boundary::Begin { key } => {
                self.begin(range.start, key)?;
            }
            Boundary::End { key, end } => self.end(Some(key), end)?,
            Boundary::Whole { key, end } => {
                self.begin(range.start, key_of(key, end))?;
                self.end(None, end)?;
            }
            Boundary::Schema(key) => {
                self.inside()?;
                self.marks.schema = true;
                self.plan.schema.push((key, range));
            }
            Boundary::Change => self.inside()?,
        }
        Ok(())
    }

    /// A frame that has records of its own.
    fn long(&mut self, range: Range<usize>, what: Boundary) -> Result<()> {
        self.close(range.start);
        let whole = match what {
            Boundary::Change => {
                self.inside()?;
                None
            }
            Boundary::Whole { key, end } => {
                self.begin(range.start, key_of(key, end))?;
                Some(end)
            }
            _ => return Err(LogError::Frames("a message that is too long for its type")),
        };
        let mut at = range.start;
        while at < range.end {
            let next = range.end.min(at + CHUNK_BYTES);
            let last = next == range.end;
            if let (true, Some(end)) = (last, whole) {
                self.end(None, end)?;
            }
            self.marks.more = !last;
            self.unit = None;
            self.push(Kind::Piece, next, self.plan.after.open.is_some());
            at = next;
        }
        Ok(())
    }

    fn begin(&mut self, at: usize, key: Lsn) -> Result<()> {
        let after = &mut self.plan.after;
        if after.open.is_some() {
            return Err(LogError::Frames("a transaction begins within another"));
        }
        if key < after.received {
            return Err(LogError::Order {
                key,
                received: after.received,
            });
        }
        after.open = Some(key);
        self.unit = Some((at, self.marks));
        if !self.marks.first_key.is_valid() {
            self.marks.first_key = key;
        }
        self.marks.last_key = key;
        Ok(())
    }

    fn end(&mut self, key: Option<Lsn>, end: Lsn) -> Result<()> {
        let after = &mut self.plan.after;
        let Some(open) = after.open.take() else {
            return Err(LogError::Frames("a transaction ends that did not begin"));
        };
        if end <= open || key.is_some_and(|key| key != open) {
            return Err(LogError::Frames(
                "a transaction ends elsewhere than it said when it began",
            ));
        }
        after.received = end;
        after.whole_key = open;
        self.marks.last_end = end;
        self.unit = None;
        self.plan.settled = self.plan.schema.len();
        Ok(())
    }

    fn inside(&self) -> Result<()> {
        match self.plan.after.open {
            Some(_) => Ok(()),
            None => Err(LogError::Frames("a change outside of any transaction")),
        }
    }

    /// Ends the record in the making at `end`: two of them if a unit began within it that
    /// is still open.
    fn close(&mut self, end: usize) {
        let split = self.unit.take().filter(|(at, _)| *at > self.start);
        if let Some((at, before)) = split {
            let rest = Marks {
                first_key: self.marks.last_key,
                last_end: Lsn::INVALID,
                ..self.marks
            };
            self.marks = before;
            self.push(Kind::Frames, at, false);
            self.marks = rest;
        }
        if end > self.start {
            self.push(Kind::Frames, end, self.plan.after.open.is_some());
        }
    }

    fn push(&mut self, kind: Kind, end: usize, open: bool) {
        let marks = Marks {
            open,
            session: std::mem::take(&mut self.session),
            ..std::mem::take(&mut self.marks)
        };
        self.plan.drafts.push(Draft {
            kind,
            marks,
            range: self.start..end,
        });
        self.start = end;
    }
}
