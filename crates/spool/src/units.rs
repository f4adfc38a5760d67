//! How frames that are appended become records: where units begin and end in them.

use std::ops::Range;

use lockstep_wire::Lsn;
use lockstep_wire::logical::{Boundary, SchemaKey, boundary, frames};

use super::error::{LogError, Result};
use super::segment::{CHUNK_BYTES, Marks, RecordKind};

/// A unit's key, also for those that only know their end: they come for a subscriber that
/// has confirmed less than their end.
pub(super) fn key_of(key: Option<Lsn>, end: Lsn) -> Lsn {
    key.unwrap_or_else(|| Lsn::from(u64::from(end).saturating_sub(1)))
}

/// Where frames stand that are to be appended.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnitState {
    /// Key of the unit that is open.
    pub open: Option<Lsn>,
    /// End of the last whole unit, or cover.
    pub received: Lsn,
    /// Highest key of a whole unit.
    pub whole_key: Lsn,
}

/// A record to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Draft {
    pub kind: RecordKind,
    pub marks: Marks,
    /// The record's bytes of what is appended.
    pub range: Range<usize>,
}

/// What to write for some frames, and what changes by it.
#[derive(Debug)]
pub(super) struct Plan {
    pub drafts: Vec<Draft>,
    /// Where the log stands after it.
    pub after: UnitState,
    /// Descriptions of tables and types among the frames.
    pub schema: Vec<(SchemaKey, Range<usize>)>,
    /// The first `settled` of them belong to whole units, the others to the unit that is open.
    pub settled: usize,
}

impl Plan {
    /// Bytes of the descriptions.
    pub fn schema_bytes(&self) -> usize {
        self.schema.iter().map(|(_, range)| range.len()).sum()
    }
}

/// What to write for `bytes`, whole frames that follow what `before` tells.
pub(super) fn plan(bytes: &[u8], before: UnitState, session: bool) -> Result<Plan> {
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
            self.push(RecordKind::Piece, next, self.plan.after.open.is_some());
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
            self.push(RecordKind::Frames, at, false);
            self.marks = rest;
        }
        if end > self.start {
            self.push(RecordKind::Frames, end, self.plan.after.open.is_some());
        }
    }

    fn push(&mut self, kind: RecordKind, end: usize, open: bool) {
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

#[cfg(test)]
mod tests {
    use lockstep_wire::logical::frames::put_frame;
    use lockstep_wire::stream::Timestamp;

    use super::*;

    const IDLE: UnitState = UnitState {
        open: None,
        received: Lsn::INVALID,
        whole_key: Lsn::INVALID,
    };

    fn frame(message: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_frame(&mut out, Lsn::INVALID, Timestamp(0), message).unwrap();
        out
    }

    fn begin(key: u64) -> Vec<u8> {
        frame(&[b"B".as_slice(), &key.to_be_bytes(), &[0; 12]].concat())
    }

    fn commit(key: u64) -> Vec<u8> {
        let end = (key + 1).to_be_bytes();
        frame(&[b"C\0".as_slice(), &key.to_be_bytes(), &end, &[0; 8]].concat())
    }

    fn change(bytes: usize) -> Vec<u8> {
        frame(&[b"I".as_slice(), &vec![0; bytes]].concat())
    }

    fn message(end: u64, bytes: usize) -> Vec<u8> {
        frame(&[b"M\0".as_slice(), &end.to_be_bytes(), &vec![0; bytes]].concat())
    }

    /// What each record is: kind, length, first and last key, last end, `o`pen and `m`ore.
    fn shape(plan: &Plan) -> Vec<(RecordKind, usize, [u64; 3], String)> {
        let drafts = plan.drafts.iter().map(|draft| {
            let marks = draft.marks;
            let lsns = [marks.first_key, marks.last_key, marks.last_end].map(u64::from);
            let flags = [(marks.open, 'o'), (marks.more, 'm'), (marks.session, 's')];
            let flags = flags
                .iter()
                .filter(|flag| flag.0)
                .map(|flag| flag.1)
                .collect();
            (draft.kind, draft.range.len(), lsns, flags)
        });
        drafts.collect()
    }

    #[test]
    fn records_end_where_the_log_may_be_cut() {
        let (b, c, i) = (begin(1).len(), commit(1).len(), change(10).len());
        let whole = [begin(5), change(10), commit(5)].concat();
        let frames = RecordKind::Frames;
        let table: [(&str, UnitState, Vec<u8>, Vec<_>); 4] = [
            (
                "two whole ones share a record",
                IDLE,
                [whole.clone(), begin(6), commit(6)].concat(),
                vec![(frames, 2 * (b + c) + i, [5, 6, 7], String::new())],
            ),
            (
                "what is open has one of its own",
                IDLE,
                [whole.clone(), begin(6), change(10)].concat(),
                vec![
                    (frames, b + c + i, [5, 5, 6], String::new()),
                    (frames, b + i, [6, 6, 0], "o".to_owned()),
                ],
            ),
            (
                "the end of one and the start of another",
                UnitState {
                    open: Some(Lsn::from(4)),
                    ..IDLE
                },
                [change(10), commit(4), begin(5)].concat(),
                vec![
                    (frames, i + c, [0, 0, 5], String::new()),
                    (frames, b, [5, 5, 0], "o".to_owned()),
                ],
            ),
            (
                "the middle of one",
                UnitState {
                    open: Some(Lsn::from(4)),
                    ..IDLE
                },
                change(10),
                vec![(frames, i, [0; 3], "o".to_owned())],
            ),
        ];
        for (what, before, bytes, expected) in table {
            assert_eq!(
                shape(&plan(&bytes, before, false).unwrap()),
                expected,
                "{what}"
            );
        }
    }

    #[test]
    fn long_frames_have_records_of_their_own() {
        let long = change(2 * CHUNK_BYTES);
        let bytes = [begin(5), long.clone(), change(10), commit(5)].concat();
        let planned = plan(&bytes, IDLE, true).unwrap();
        let left = long.len() - 2 * CHUNK_BYTES;
        let expected = [
            (RecordKind::Frames, begin(5).len(), [5, 5, 0], "os"),
            (RecordKind::Piece, CHUNK_BYTES, [0; 3], "om"),
            (RecordKind::Piece, CHUNK_BYTES, [0; 3], "om"),
            (RecordKind::Piece, left, [0; 3], "o"),
            (
                RecordKind::Frames,
                change(10).len() + commit(5).len(),
                [0, 0, 6],
                "",
            ),
        ];
        let expected =
            expected.map(|(kind, length, lsns, flags)| (kind, length, lsns, flags.to_owned()));
        assert_eq!(shape(&planned), expected);
        let planned = plan(&message(9, CHUNK_BYTES), IDLE, false).unwrap();
        let shape = shape(&planned);
        assert_eq!(shape[0].2, [8, 8, 0]);
        assert_eq!(shape[1].2, [0, 0, 9]);
        assert_eq!(
            (planned.after.open, planned.after.received),
            (None, Lsn::from(9))
        );
    }

    #[test]
    fn records_are_no_longer_than_a_chunk() {
        let some = change(CHUNK_BYTES / 3);
        let bytes = [begin(5), some.clone(), some.clone(), some, commit(5)].concat();
        let planned = plan(&bytes, IDLE, false).unwrap();
        assert_eq!(planned.drafts.len(), 2);
        assert!(
            planned
                .drafts
                .iter()
                .all(|draft| draft.range.len() <= CHUNK_BYTES)
        );
        assert!(planned.drafts[0].marks.open && !planned.drafts[1].marks.open);
        let too_long = [begin(5), frame(&vec![b'R'; CHUNK_BYTES])].concat();
        assert!(plan(&too_long, IDLE, false).is_err());
    }

    #[test]
    fn a_message_outside_of_transactions_has_a_key_below_its_end() {
        let planned = plan(&message(9, 3), IDLE, false).unwrap();
        assert_eq!(planned.after.whole_key, Lsn::from(8));
        let behind = UnitState {
            received: Lsn::from(9),
            ..IDLE
        };
        assert!(plan(&message(9, 3), behind, false).is_err());
        assert!(plan(&message(10, 3), behind, false).is_ok());
    }
}
