//! From messages of pgoutput to batches. No I/O; what the target's tables look like is asked
//! through [`Tables`].
//!
//! A batch is a number of whole transactions of the source, or a part of a large one: the target then
//! commits with the last part only. So each commit of the target makes it what the source was after
//! one of its commits.
//!
//! The changes of a transaction whose end has not arrived wait beside a batch that has whole ones. They
//! join it at that end. If the transaction is too large for that, the batch is handed over first, so that
//! what committed before a large transaction never waits for its end.
//!
//! In a cycle ([`Merger::begin_cycle`]) all transactions up to its end are one target transaction: what is
//! handed over before is a part of it, and ends where a transaction does if memory allows that.
//!
//! A table may have a position where it starts: its copy already has what committed before.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use lockstep_wire::logical::{Context, Message, Old, Relation, TruncateOptions, Tuple, Xid};
use lockstep_wire::stream::Timestamp;
use lockstep_wire::{Lsn, WireError};

use crate::batch::{Batch, Change, CommitPoint, Emptied, Later, Part, Waiting};
use crate::ddl::{self, Command};
use crate::error::{ApplyError, Result};
use crate::names::quoted;
use crate::row::{Cell, OwnedRow};
use crate::source_table::{Identity, SourceTable};
use crate::table::Table;
use crate::types;

#[cfg(test)]
mod tests;

/// Where the changes of a table begin that are to be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Transactions whose commit record starts here or later.
    At(Lsn),
    /// No change is applied: the table is not replicated, or not copied yet.
    Never,
}

/// What the merger asks about tables, for a transaction that is known by where its commit record starts.
pub trait Tables {
    /// Where a table starts.
    fn start(&mut self, source: &SourceTable, transaction: Lsn) -> Result<Start>;

    /// The table on the target.
    fn table(&mut self, source: &SourceTable, transaction: Lsn) -> Result<Arc<Table>>;

    /// The command that a message with [`ddl::PREFIX`] has, if it is one of this replica's source. The
    /// message ends at `lsn`, in the transaction with this number.
    fn command(&mut self, _content: &[u8], _xid: Xid, _lsn: Lsn) -> Option<Command> {
        None
    }
}

/// When a batch ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory of a part, in bytes: a transaction that needs more is handed over in parts.
    pub part: usize,
    /// A batch of whole transactions ends after so many changes,
    pub changes: u64,
    /// so many bytes,
    pub bytes: usize,
    /// or so many transactions.
    pub transactions: u64,
    /// A transaction that makes so many changes is handed over in parts: the target begins with it
    /// while the rest arrives.
    pub of_one: u64,
}

/// Changes of a batch of whole transactions, if one writer applies all of them.
const CHANGES: u64 = 20_000;

/// How many times as many changes a part of a large transaction gets while no writer can take it. Between two
/// parts the target has nothing to do for a moment.
const GROWN: u64 = 4;

impl Limits {
    /// Limits of batches if all of them together, with those that are being applied, may take
    /// so much memory. One is gathered, each writer has one, another waits, and a statement is a copy
    /// of a part of one. Several writers share what one would get at once: smaller batches meet less
    /// often, and all writers have something to do. A transaction that comes in parts has no other
    /// beside it, so with several writers it must be larger than what all of them have at once.
    pub fn of_memory(memory: usize, writers: usize) -> Self {
        let part = memory / (writers + 3);
        Self {
            part,
            changes: CHANGES / writers.max(1) as u64,
            bytes: part / 4,
            transactions: u64::MAX,
            of_one: CHANGES.saturating_mul(writers as u64),
        }
    }

    /// What these limits of so many writers are for another number of them.
    pub fn shared(self, from: usize, to: usize) -> Self {
        let of_all = |of_part: usize| of_part.saturating_mul(from + 3) / (to + 3);
        let (from, to) = (from.max(1) as u64, to.max(1) as u64);
        Self {
            part: of_all(self.part),
            changes: (self.changes.saturating_mul(from) / to).max(1),
            bytes: of_all(self.bytes),
            transactions: self.transactions,
            of_one: (self.of_one / from).saturating_mul(to),
        }
    }
}

#[derive(Debug)]
struct Known {
    source: SourceTable,
    start: Start,
    /// The table on the target, from its first change that is applied.
    table: Option<Arc<Table>>,
    /// The target's table may have changed since.
    stale: bool,
}

/// A transaction whose end has not arrived.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// Where its commit record starts.
    commit: Lsn,
    xid: Xid,
}

/// What has happened with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// A part of a transaction, or nothing of interest.
    Inside,
    /// A transaction has ended there.
    Ended(CommitPoint),
    /// Nothing was taken: the transaction, whose commit record starts there, is held back.
    Held(Lsn),
}

#[derive(Debug)]
pub struct Merger {
    limits: Limits,
    known: HashMap<u32, Known>,
    /// Types that domains of the source are over, by the domains' OIDs.
    bases: HashMap<u32, u32>,
    open: Option<Open>,
    batch: Batch,
    /// Changes of the open transaction, while the batch has whole ones before it.
    waiting: Waiting,
    /// A part of a transaction has been handed over, and its last part has not.
    in_parts: bool,
    /// The newest transaction in the batch.
    last: Option<CommitPoint>,
    /// Transactions whose commit record starts here or later are held back.
    hold: Option<Lsn>,
    /// Transactions that end here or before are handed over one by one, since one of them is
    /// known not to fit.
    careful: Lsn,
    /// The cycle that is being gathered.
    cycle: Option<Gathering>,
    /// The newest change changes the schema: it ends its part, and what follows is read once it is made.
    ends_with_command: bool,
}

/// What is known of a cycle that is being gathered.
#[derive(Debug, Default)]
struct Gathering {
    /// The newest transaction of it that is whole, and that the target has not committed.
    newest: Option<CommitPoint>,
    /// Tables of the source that it changes.
    tables: HashSet<u32>,
}

impl Merger {
    pub fn new(limits: Limits, careful: Lsn) -> Self {
        Self {
            limits,
            known: HashMap::new(),
            bases: HashMap::new(),
            open: None,
            batch: Batch::default(),
            waiting: Waiting::default(),
            in_parts: false,
            last: None,
            hold: None,
            careful,
            cycle: None,
            ends_with_command: false,
        }
    }

    /// What is taken from now on is one target transaction, which ends with [`Merger::end_cycle`].
    pub fn begin_cycle(&mut self) {
        self.cycle = Some(Gathering::default());
    }

    /// Tables of the source that the cycle has changed so far.
    pub fn cycle_tables(&self) -> u64 {
        (self.cycle.as_ref()).map_or(0, |cycle| cycle.tables.len() as u64)
    }

    /// Ends the cycle at `end`, which is no earlier than any transaction of it, and hands over its last
    /// part. Returns that with the number of tables of the source that the cycle changes.
    pub fn end_cycle(&mut self, end: Lsn) -> (Part, u64) {
        let cycle = self.cycle.take().unwrap_or_default();
        let newest = cycle.newest.or(self.last.take());
        let point = CommitPoint {
            end: newest.map_or(end, |newest| newest.end.max(end)),
            time: newest.map_or_else(Timestamp::default, |newest| newest.time),
        };
        let mut part = self.batch.take(Some(point));
        part.lsn = point.end;
        self.in_parts = false;
        (part, cycle.tables.len() as u64)
    }

    /// Holds back transactions whose commit record starts at `hold` or later; None for none.
    pub fn set_hold(&mut self, hold: Option<Lsn>) {
        self.hold = hold;
    }

    /// Other limits from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Memory in use, roughly.
    fn size(&self) -> usize {
        self.batch.size() + self.waiting.size()
    }

    /// Memory in use, and what the statements will need.
    pub fn memory(&self) -> usize {
        self.batch.memory(&self.waiting)
    }

    /// Changes that can be handed over.
    pub fn rows(&self) -> u64 {
        self.batch.counts().rows()
    }

    /// The target's tables are looked at again before their next changes.
    pub fn look_again(&mut self) {
        for known in self.known.values_mut() {
            known.stale = true;
        }
    }

    /// A transaction has begun and not ended.
    pub fn is_inside(&self) -> bool {
        self.open.is_some()
    }

    /// Nothing was taken that has not been handed over.
    pub fn is_idle(&self) -> bool {
        let has_newest = (self.cycle.as_ref()).is_some_and(|cycle| cycle.newest.is_some());
        self.open.is_none() && self.last.is_none() && !has_newest && self.batch.is_empty()
    }

    /// Takes one message of pgoutput.
    pub fn take(&mut self, message: &[u8], tables: &mut dyn Tables) -> Result<Taken> {
        let (_, message) = Message::parse(message, Context::default())?;
        match message {
            Message::Begin { final_lsn, xid, .. } => {
                if self.hold.is_some_and(|hold| final_lsn >= hold) {
                    return Ok(Taken::Held(final_lsn));
                }
                let commit = final_lsn;
                self.open = Some(Open { commit, xid });
            }
            Message::Commit(commit) => return self.commit(commit.end_lsn, commit.commit_time),
            Message::Relation(relation) => self.relation(&relation, tables)?,
            Message::Insert { relation, new } => {
                if let Some((_, table)) = self.changed(relation, tables)? {
                    let row = row(&table, new)?;
                    if new.has_unchanged() {
                        return Err(self.came_in(&table, &row));
                    }
                    self.change(relation, table, Change::Insert(row));
                }
            }
            Message::Update { relation, old, new } => self.update(relation, old, new, tables)?,
            Message::Delete { relation, old } => {
                if let Some((source, table)) = self.changed(relation, tables)? {
                    let row = before(source, &table, &old)?;
                    self.change(relation, table, Change::Delete(row));
                }
            }
            Message::Truncate { options, relations } => {
                self.truncate(options, &relations, tables)?
            }
            Message::Type {
                id,
                namespace,
                name,
            } => self.named(id, namespace, name),
            Message::Message {
                lsn,
                prefix: ddl::PREFIX,
                content,
                ..
            } => {
                let open = self.open;
                let command = open.and_then(|open| tables.command(content, open.xid, lsn));
                if let Some(command) = command {
                    self.add(Later::Command(Box::new(command)));
                    self.ends_with_command = true;
                }
            }
            Message::Origin { .. } | Message::Message { .. } => {}
            _ => return Err(WireError::Malformed("a message that nobody asked for").into()),
        }
        Ok(Taken::Inside)
    }

    fn commit(&mut self, end: Lsn, time: Timestamp) -> Result<Taken> {
        let open = self.open.take();
        open.ok_or(WireError::Malformed("the end of no transaction"))?;
        let point = CommitPoint { end, time };
        self.batch.join(&mut self.waiting);
        self.batch.transaction_ended();
        match &mut self.cycle {
            Some(cycle) if end > self.careful => cycle.newest = Some(point),
            _ => self.last = Some(point),
        }
        Ok(Taken::Ended(point))
    }

    /// Where the commit record of the open transaction starts.
    fn commit_lsn(&self) -> Lsn {
        self.open.map_or(Lsn::INVALID, |open| open.commit)
    }

    /// The end of the newest transaction that a cycle has gathered.
    fn gathered(&self) -> Lsn {
        let newest = (self.cycle.as_ref()).and_then(|cycle| cycle.newest);
        newest.map_or(Lsn::INVALID, |newest| newest.end)
    }

    fn change(&mut self, oid: u32, table: Arc<Table>, change: Change) {
        if let Some(cycle) = &mut self.cycle {
            cycle.tables.insert(oid);
        }
        self.add(Later::Change { oid, table, change });
    }

    fn add(&mut self, change: Later) {
        match self.last {
            Some(_) => self.waiting.push(change),
            None => self.batch.add(change),
        }
    }

    /// A type's name, of a domain that of the type which it is over.
    fn named(&mut self, id: u32, namespace: &[u8], name: &[u8]) {
        let name = std::str::from_utf8(name).ok();
        let name = name.filter(|_| matches!(namespace, b"" | b"pg_catalog"));
        match name.and_then(types::named) {
            Some(base) => self.bases.insert(id, base),
            None => self.bases.remove(&id),
        };
    }

    fn relation(&mut self, relation: &Relation<'_>, tables: &mut dyn Tables) -> Result<()> {
        let source = SourceTable::new(relation, &self.bases);
        if (self.known.get(&relation.id)).is_some_and(|known| known.source == source) {
            return Ok(());
        }
        let known = Known {
            start: tables.start(&source, self.commit_lsn())?,
            source,
            table: None,
            stale: false,
        };
        self.known.insert(relation.id, known);
        Ok(())
    }

    /// The table of a change, if the change is to be applied.
    fn changed(
        &mut self,
        relation: u32,
        tables: &mut dyn Tables,
    ) -> Result<Option<(&SourceTable, Arc<Table>)>> {
        let open = self.open;
        let open = open.ok_or(WireError::Malformed("a change outside of a transaction"))?;
        let known = self.known.get_mut(&relation);
        let known = known.ok_or(WireError::Malformed("a change of an unknown table"))?;
        match known.start {
            Start::At(lsn) if open.commit >= lsn => {}
            Start::At(_) | Start::Never => return Ok(None),
        }
        let table = match &known.table {
            Some(table) if !known.stale => Arc::clone(table),
            before => {
                let found = tables.table(&known.source, open.commit);
                let mut found = found.map_err(|error| error.at(open.commit))?;
                // Its prepared statements are known by its address.
                if let Some(before) = before.as_ref().filter(|before| **before == found) {
                    found = Arc::clone(before);
                }
                known.table = Some(Arc::clone(&found));
                known.stale = false;
                found
            }
        };
        Ok(Some((&known.source, table)))
    }

    /// A row filter has made an INSERT of an update, which does not have all values. Null in their
    /// place would be wrong without a word.
    fn came_in(&self, table: &Table, row: &OwnedRow) -> ApplyError {
        let columns = table.columns.iter().zip(row.cells());
        let columns: Vec<_> = columns
            .filter(|(_, cell)| *cell == Cell::Unchanged)
            .map(|(column, _)| quoted(&column.name))
            .collect();
        ApplyError::came_in(&table.name, &columns.join(", ")).at(self.commit_lsn())
    }

    fn update(
        &mut self,
        relation: u32,
        old: Option<Old<'_>>,
        new: Tuple<'_>,
        tables: &mut dyn Tables,
    ) -> Result<()> {
        let Some((source, table)) = self.changed(relation, tables)? else {
            return Ok(());
        };
        let change = Change::Update {
            before: match &old {
                Some(old) => Some(before(source, &table, old)?),
                None if matches!(table.identity, Identity::Key(_)) => None,
                None => return Err(WireError::Malformed("an update of no known row").into()),
            },
            after: row(&table, new)?,
        };
        self.change(relation, table, change);
        Ok(())
    }

    fn truncate(
        &mut self,
        options: TruncateOptions,
        relations: &[u32],
        tables: &mut dyn Tables,
    ) -> Result<()> {
        let mut truncated = Vec::new();
        for relation in relations {
            let table = self.changed(*relation, tables)?.map(|(_, table)| table);
            if let (Some(cycle), Some(_)) = (&mut self.cycle, &table) {
                cycle.tables.insert(*relation);
            }
            truncated.extend(table);
        }
        let commit = self.commit_lsn();
        let is_copied_later = |relation| {
            let known = self.known.get(relation);
            known.is_some_and(|known| matches!(known.start, Start::At(lsn) if lsn > commit))
        };
        let how = match relations.iter().any(is_copied_later) {
            true => Emptied::Deleted,
            false if options.restart_identity() => Emptied::Restarted,
            false => Emptied::Truncated,
        };
        if !truncated.is_empty() {
            self.add(Later::Truncate {
                tables: truncated,
                how,
            });
        }
        Ok(())
    }

    /// A batch or a part of one that must be handed over before more is taken.
    ///
    /// Only a transaction that is large itself is handed over in parts, and its end ends the batch.
    /// Otherwise each batch of a backlog could begin a transaction that it does not end, and the target
    /// would not commit before the backlog's end. One that did not fit stays whole the next time, as far
    /// as the memory goes: a row may take a value that another gives up in a later part only, which
    /// the source allows where a constraint is deferrable.
    pub fn is_full(&self) -> bool {
        if self.ends_with_command {
            return true;
        }
        let counts = self.batch.counts();
        let is_careful = (self.open).is_some_and(|open| open.commit <= self.careful);
        if self.cycle.is_some() && self.last.is_none() && !is_careful {
            return match self.open {
                Some(_) => self.size() >= self.limits.part,
                None => self.size() >= self.limits.bytes,
            };
        }
        if let Some(open) = self.open {
            let rows = match self.last {
                Some(_) => self.waiting.rows(),
                None => counts.rows(),
            };
            return self.size() >= self.limits.part
                || (open.commit > self.careful && rows >= self.limits.of_one);
        }
        self.last
            .is_some_and(|last| self.in_parts || last.end <= self.careful)
            || counts.rows() >= self.limits.changes
            || self.batch.size() >= self.limits.bytes
            || counts.transactions >= self.limits.transactions
    }

    /// More of a transaction that comes in parts may be added to a part that is full.
    pub fn may_grow(&self) -> bool {
        let most = self.limits.of_one.saturating_mul(GROWN);
        let rows = self.batch.counts().rows();
        let is_inside = self.in_parts && self.open.is_some() && !self.ends_with_command;
        is_inside && rows < most && self.size() < self.limits.part
    }

    /// Whole transactions are there, or the end of one.
    pub fn can_commit(&self) -> bool {
        self.last.is_some()
    }

    /// Takes the batch, to be handed over: something to do on the target, or a position that
    /// is reached without that. What waits beside it is the next one's beginning.
    pub fn hand_over(&mut self) -> Handed {
        let commit = self.last.take();
        let mut part = self.batch.take(commit);
        let begun = self.commit_lsn().max(self.gathered());
        part.lsn = commit.map_or(begun, |commit| commit.end);
        let nothing_to_do = part.steps.is_empty() && !self.in_parts;
        self.in_parts = commit.is_none();
        // Behind whole transactions the command is among what waits.
        self.ends_with_command &= commit.is_some();
        self.batch.join(&mut self.waiting);
        match commit {
            Some(commit) if nothing_to_do => Handed::Position(commit),
            _ => Handed::Part(part),
        }
    }
}

/// What [`Merger::hand_over`] returns.
#[derive(Debug)]
pub enum Handed {
    Part(Part),
    /// Transactions up to here change nothing on the target.
    Position(CommitPoint),
}

fn row(table: &Table, tuple: Tuple<'_>) -> Result<OwnedRow> {
    if tuple.len() != table.columns.len() {
        let words = "a row with more or fewer columns than its table";
        return Err(WireError::Malformed(words).into());
    }
    Ok(OwnedRow::sent(tuple)?)
}

/// A row before a change. Of a row that was not sent as a whole only the key's columns are known.
fn before(source: &SourceTable, table: &Table, old: &Old<'_>) -> Result<OwnedRow> {
    let row = row(table, old.tuple())?;
    Ok(match old {
        Old::Row(_) => row,
        Old::Key(_) => {
            let columns = source.columns.iter().zip(row.cells());
            OwnedRow::new(columns.map(|(column, cell)| match column.key {
                true => cell,
                false => Cell::Unchanged,
            }))
        }
    })
}
