//! A batch: what is to be done on the target for some transactions of the source, or for a part
//! of one. No I/O.
//!
//! Changes are gathered table by table, since triggers and foreign keys are off on the target,
//! so that the order between tables does not matter within one transaction. TRUNCATE ends what
//! was gathered of all tables, a new shape of a table what was gathered of that one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use lockstep_wire::Lsn;
use lockstep_wire::stream::Timestamp;

use crate::ddl::Command;
use crate::names::TableName;
use crate::net::{KeyedChange, Net, NetEffect, Update};
use crate::row::{OwnedRow, Rows};
use crate::runs::{Run, Runs};
use crate::source_table::Identity;
use crate::table::Table;

/// Most bytes of one statement's parameters; a row that is longer stands alone.
pub const MOST_BYTES: usize = 8 * 1024 * 1024;

/// Room for so many changes is kept from one transaction to the next.
const KEPT: usize = 1_000;

/// Rows to update or delete that a transaction did not find, by table.
pub type Missing = BTreeMap<TableName, u64>;

/// The commit of a transaction on the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitPoint {
    /// Where its record ends: the next transaction begins here or later.
    pub end: Lsn,
    pub time: Timestamp,
}

/// Something to do on the target.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Change {
        table: Arc<Table>,
        set: Set,
    },
    Truncate {
        tables: Vec<Arc<Table>>,
        how: Emptied,
    },
    /// A change of the schema. It is the last step of its part.
    Command(Box<Command>),
}

/// How tables are emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emptied {
    Truncated,
    /// Truncated, and the tables' sequences begin again.
    Restarted,
    /// Others that the source has truncated with them were copied later, and foreign keys of those would
    /// not let these be truncated alone.
    Deleted,
}

/// Changes of one kind to one table, which one statement or a few can make.
#[derive(Debug, PartialEq, Eq)]
pub enum Set {
    /// Rows to delete, by their keys.
    Delete(Vec<OwnedRow>),
    Update(Vec<Update>),
    Insert(Rows),
    /// Rows to delete, by all their values.
    DeleteWhole(Vec<OwnedRow>),
    /// Rows before and after.
    UpdateWhole(Vec<(OwnedRow, OwnedRow)>),
}

impl Set {
    /// Number of changes.
    pub fn len(&self) -> usize {
        match self {
            Self::Delete(rows) | Self::DeleteWhole(rows) => rows.len(),
            Self::Insert(rows) => rows.len(),
            Self::Update(updates) => updates.len(),
            Self::UpdateWhole(rows) => rows.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Numbers of changes, as the source sent them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub transactions: u64,
    pub inserts: u64,
    pub updates: u64,
    pub deletes: u64,
    pub truncates: u64,
}

impl Counts {
    pub fn rows(&self) -> u64 {
        self.inserts + self.updates + self.deletes
    }

    pub fn add(&mut self, more: &Self) {
        self.transactions += more.transactions;
        self.inserts += more.inserts;
        self.updates += more.updates;
        self.deletes += more.deletes;
        self.truncates += more.truncates;
    }
}

/// What a cycle leaves in the target, in its own commit, or in each of several that it is applied in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closing {
    pub number: u64,
    pub began: Instant,
    /// Requests for a cycle that had been made when it began.
    pub forces: u64,
    /// Changes as the source sent them.
    pub counts: Counts,
    /// Bytes of the messages that had them.
    pub sent_bytes: u64,
    /// Tables of the source that they change.
    pub tables: u64,
}

/// What the writer gets: steps of one target transaction.
#[derive(Debug, Default)]
pub struct Part {
    pub steps: Vec<Step>,
    /// The last transaction of the source that is whole with this part: the target commits. None
    /// if more parts of the same transaction follow.
    pub commit: Option<CommitPoint>,
    /// Where its last transaction ends, or, if that is not whole, where its commit record
    /// starts.
    pub lsn: Lsn,
    pub counts: Counts,
    /// What it takes until it is done, with the largest statement.
    pub memory: usize,
    /// The cycle that ends with it, if one does.
    pub cycle: Option<Box<Closing>>,
    /// What it adds to the figures of a cycle that has failed, and is applied in several commits.
    pub share: Option<Box<Closing>>,
}

#[derive(Debug)]
enum Gathered {
    /// Net changes, and whether updates may need one statement for all rows.
    Keyed(Net, bool),
    Whole(Runs),
}

impl Part {
    /// Whether the last step changes the schema.
    pub fn has_command(&self) -> bool {
        matches!(self.steps.last(), Some(Step::Command(_)))
    }
}

impl Gathered {
    fn new(table: &Table) -> Self {
        match table.identity {
            Identity::Key(_) => {
                let at_once = table.crowded || !table.can_update();
                Self::Keyed(Net::new(table.key()), at_once)
            }
            Identity::Whole | Identity::Nothing => Self::Whole(Runs::default()),
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Keyed(net, _) => net.size(),
            Self::Whole(runs) => runs.size(),
        }
    }
}

/// A change of one row, in the source's columns.
#[derive(Debug)]
pub enum Change {
    Insert(OwnedRow),
    Update {
        /// The row before as far as it was sent: the key's columns, or all.
        before: Option<OwnedRow>,
        after: OwnedRow,
    },
    Delete(OwnedRow),
}

impl Change {
    fn size(&self) -> usize {
        match self {
            Self::Insert(row) | Self::Delete(row) => row.size(),
            Self::Update { before, after } => {
                before.as_ref().map_or(0, OwnedRow::size) + after.size()
            }
        }
    }
}

/// A change of one or several tables.
#[derive(Debug)]
pub enum Later {
    Change {
        oid: u32,
        table: Arc<Table>,
        change: Change,
    },
    Truncate {
        tables: Vec<Arc<Table>>,
        how: Emptied,
    },
    Command(Box<Command>),
}

/// Changes that no batch has yet, in their order.
#[derive(Debug, Default)]
pub struct Waiting {
    changes: Vec<Later>,
    size: usize,
    /// Bytes of the largest of them.
    largest: usize,
}

impl Waiting {
    pub fn push(&mut self, change: Later) {
        let size = match &change {
            Later::Change { change, .. } => change.size(),
            Later::Truncate { .. } | Later::Command(_) => 0,
        };
        self.size += size_of::<Later>() + size;
        self.largest = self.largest.max(size);
        self.changes.push(change);
    }

    /// Number of changes.
    pub fn rows(&self) -> u64 {
        self.changes.len() as u64
    }

    /// Memory in use, roughly.
    pub fn size(&self) -> usize {
        self.size
    }
}

/// A batch that is being gathered.
#[derive(Debug, Default)]
pub struct Batch {
    /// Gathered changes, by the tables' OIDs on the source.
    gathered: HashMap<u32, (Arc<Table>, Gathered)>,
    /// The tables above, in the order of their first changes.
    order: Vec<u32>,
    steps: Vec<Step>,
    /// Memory of what is in `gathered`, and of what is in `steps`.
    gathered_size: usize,
    steps_size: usize,
    /// Bytes of the largest row that a statement has as a parameter: all of a row to update, and the
    /// key of one to delete.
    largest: usize,
    /// Some rows are replaced, which is one statement for all of them.
    at_once: bool,
    counts: Counts,
}

impl Batch {
    /// Memory in use, roughly.
    pub fn size(&self) -> usize {
        self.gathered_size + self.steps_size
    }

    /// Memory of the batch with what waits beside it, and with what the writer needs for a statement: its
    /// parameters, and what libpq has of them.
    pub fn memory(&self, waiting: &Waiting) -> usize {
        let size = self.size() + waiting.size;
        let largest = self.largest.max(waiting.largest);
        let statement = match self.at_once {
            true => size,
            false => size.min(MOST_BYTES).max(largest),
        };
        size + 2 * statement
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Nothing is to be done on the target.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.order.is_empty()
    }

    pub fn transaction_ended(&mut self) {
        self.counts.transactions += 1;
    }

    pub fn add(&mut self, change: Later) {
        match change {
            Later::Change { oid, table, change } => self.change(oid, &table, change),
            Later::Truncate { tables, how } => self.truncate(tables, how),
            Later::Command(command) => {
                self.seal_all();
                self.steps.push(Step::Command(command));
            }
        }
    }

    /// Adds all that has waited.
    pub fn join(&mut self, waiting: &mut Waiting) {
        (waiting.size, waiting.largest) = (0, 0);
        waiting
            .changes
            .drain(..)
            .for_each(|change| self.add(change));
        // Room for a large transaction's changes is not kept.
        waiting.changes.shrink_to(KEPT);
    }

    /// Adds a change of table `oid`, whose rows now have the shape of `table`.
    pub fn change(&mut self, oid: u32, table: &Arc<Table>, change: Change) {
        match change {
            Change::Insert(_) => self.counts.inserts += 1,
            Change::Update { .. } => self.counts.updates += 1,
            Change::Delete(_) => self.counts.deletes += 1,
        }
        let has_other_shape = (self.gathered.get(&oid))
            .is_some_and(|(shape, _)| !Arc::ptr_eq(shape, table) && shape != table);
        if has_other_shape {
            self.seal(oid);
        }
        match &table.identity {
            Identity::Key(_) => {
                if let Some(refused) = self.add_keyed(oid, table, |key| keyed(key, change)) {
                    self.seal(oid);
                    // Nothing of the table is gathered any more that could contradict.
                    self.add_keyed(oid, table, |_| refused);
                }
            }
            Identity::Whole | Identity::Nothing => self.add_whole(oid, table, change),
        }
    }

    fn add_keyed(
        &mut self,
        oid: u32,
        table: &Arc<Table>,
        change: impl FnOnce(&[usize]) -> KeyedChange,
    ) -> Option<KeyedChange> {
        let Gathered::Keyed(net, at_once) = self.gathered(oid, table) else {
            return None;
        };
        let before = net.size();
        let change = change(net.key());
        let sent = change.sent();
        let may_replace = *at_once && matches!(change, KeyedChange::Update { .. });
        let refused = net.add(change).err();
        let at_once = may_replace || net.moves();
        let after = net.size();
        self.gathered_size = (self.gathered_size + after).saturating_sub(before);
        self.largest = self.largest.max(sent);
        self.at_once |= at_once;
        refused
    }

    fn add_whole(&mut self, oid: u32, table: &Arc<Table>, change: Change) {
        let Gathered::Whole(runs) = self.gathered(oid, table) else {
            return;
        };
        let before = runs.size();
        let sent = match change {
            Change::Insert(_) => 0,
            _ => change.size(),
        };
        match change {
            Change::Insert(row) => runs.insert(row),
            Change::Update { before, after } => match before {
                Some(before) => runs.update(before, after),
                None => runs.update(after.clone(), after),
            },
            Change::Delete(row) => runs.delete(row),
        }
        let after = runs.size();
        self.gathered_size = (self.gathered_size + after).saturating_sub(before);
        self.largest = self.largest.max(sent);
    }

    fn gathered(&mut self, oid: u32, table: &Arc<Table>) -> &mut Gathered {
        let order = &mut self.order;
        let (_, gathered) = self.gathered.entry(oid).or_insert_with(|| {
            order.push(oid);
            (Arc::clone(table), Gathered::new(table))
        });
        gathered
    }

    /// Adds TRUNCATE of some tables.
    pub fn truncate(&mut self, tables: Vec<Arc<Table>>, how: Emptied) {
        self.seal_all();
        self.counts.truncates += 1;
        self.steps.push(Step::Truncate { tables, how });
    }

    /// What was gathered of a table comes before all later changes of it.
    fn seal(&mut self, oid: u32) {
        self.order.retain(|other| *other != oid);
        let Some((table, gathered)) = self.gathered.remove(&oid) else {
            return;
        };
        let size = gathered.size();
        self.gathered_size = self.gathered_size.saturating_sub(size);
        self.steps_size += size;
        let step = |set| Step::Change {
            table: Arc::clone(&table),
            set,
        };
        self.steps
            .extend(gathered.into_sets().into_iter().map(step));
    }

    fn seal_all(&mut self) {
        for oid in std::mem::take(&mut self.order) {
            self.seal(oid);
        }
    }

    /// Takes all that was gathered.
    pub fn take(&mut self, commit: Option<CommitPoint>) -> Part {
        let memory = self.memory(&Waiting::default());
        self.seal_all();
        self.steps_size = 0;
        self.largest = 0;
        self.at_once = false;
        Part {
            memory,
            steps: std::mem::take(&mut self.steps),
            commit,
            lsn: commit.map_or(Lsn::INVALID, |commit| commit.end),
            counts: std::mem::take(&mut self.counts),
            cycle: None,
            share: None,
        }
    }
}

/// The change with the keys of its rows.
fn keyed(key: &[usize], change: Change) -> KeyedChange {
    match change {
        Change::Insert(row) => KeyedChange::Insert { row },
        Change::Update { before, after } => {
            let (from, row) = match before {
                Some(before) => (before.columns(key), after.over(&before)),
                None => (after.columns(key), after),
            };
            KeyedChange::Update { from, row }
        }
        Change::Delete(row) => KeyedChange::Delete {
            key: row.columns(key),
        },
    }
}

impl Gathered {
    fn into_sets(self) -> Vec<Set> {
        match self {
            Self::Keyed(net, _) => {
                let NetEffect {
                    deletes,
                    updates,
                    inserts,
                } = net.into_effect();
                let sets = [
                    (!deletes.is_empty()).then_some(Set::Delete(deletes)),
                    (!updates.is_empty()).then_some(Set::Update(updates)),
                    (!inserts.is_empty()).then_some(Set::Insert(inserts)),
                ];
                sets.into_iter().flatten().collect()
            }
            Self::Whole(runs) => {
                let set = |run| match run {
                    Run::Insert(rows) => Set::Insert(rows),
                    Run::Delete(rows) => Set::DeleteWhole(rows),
                    Run::Update(rows) => Set::UpdateWhole(rows),
                };
                runs.into_runs().into_iter().map(set).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reach::Reach;
    use crate::row::Cell;
    use crate::source_table::KeyColumn;

    fn table(identity: Identity) -> Arc<Table> {
        Arc::new(Table {
            name: TableName {
                schema: "s".to_owned(),
                table: "t".to_owned(),
            },
            columns: Vec::new(),
            identity,
            partitioned: false,
            crowded: false,
            kept: Vec::new(),
            attributes: 0,
            reach: Reach::default(),
        })
    }

    fn with_key() -> Arc<Table> {
        table(Identity::Key(vec![KeyColumn {
            place: 0,
            operator: None,
        }]))
    }

    fn row(cells: &[&str]) -> OwnedRow {
        OwnedRow::new(cells.iter().map(|text| match *text {
            "?" => Cell::Unchanged,
            text => Cell::Text(text.as_bytes()),
        }))
    }

    fn inserted(cells: &[&str]) -> Set {
        Set::Insert(Rows::from_iter([row(cells)]))
    }

    fn update(before: Option<&[&str]>, after: &[&str]) -> Change {
        Change::Update {
            before: before.map(row),
            after: row(after),
        }
    }

    #[test]
    fn truncate_stands_between_what_was_before_and_after() {
        let (one, two) = (with_key(), with_key());
        let mut batch = Batch::default();
        batch.change(1, &one, Change::Insert(row(&["1", "a"])));
        batch.change(2, &two, Change::Delete(row(&["1", "a"])));
        batch.truncate(vec![one.clone()], Emptied::Restarted);
        batch.change(1, &one, Change::Insert(row(&["1", "b"])));
        batch.transaction_ended();
        let part = batch.take(None);
        let change = |table: &Arc<Table>, set| Step::Change {
            table: table.clone(),
            set,
        };
        assert_eq!(
            part.steps,
            [
                change(&one, inserted(&["1", "a"])),
                change(&two, Set::Delete(vec![row(&["1"])])),
                Step::Truncate {
                    tables: vec![one.clone()],
                    how: Emptied::Restarted
                },
                change(&one, inserted(&["1", "b"])),
            ]
        );
        assert!(batch.is_empty() && batch.size() == 0);
        let expected = Counts {
            transactions: 1,
            inserts: 2,
            deletes: 1,
            truncates: 1,
            ..Counts::default()
        };
        assert_eq!(part.counts, expected);
    }

    #[test]
    fn a_new_shape_and_a_contradiction_end_what_was_gathered_of_the_table() {
        let old = with_key();
        let mut wider = (*old).clone();
        wider.kept.push("c".to_owned());
        let new = Arc::new(wider);
        let mut batch = Batch::default();
        batch.change(1, &old, Change::Insert(row(&["1", "a"])));
        batch.change(1, &new, update(None, &["1", "b"]));
        batch.change(1, &new, update(None, &["2", "?"]));
        // No source says this, unless its rows have no key.
        batch.change(1, &new, Change::Insert(row(&["1", "c"])));
        let steps = batch.take(None).steps;
        let sets: Vec<_> = (steps.iter())
            .map(|step| match step {
                Step::Change { table, set } => (Arc::ptr_eq(table, &old), set),
                Step::Truncate { .. } | Step::Command(_) => panic!("nothing else was added"),
            })
            .collect();
        assert_eq!(sets.len(), 3);
        assert_eq!(sets[0], (true, &inserted(&["1", "a"])));
        assert!(matches!(sets[1], (false, Set::Update(rows)) if rows.len() == 2));
        assert_eq!(sets[2], (false, &inserted(&["1", "c"])));
    }

    #[test]
    fn a_key_that_was_not_sent_again_is_that_of_the_row_before() {
        let table = with_key();
        let mut batch = Batch::default();
        batch.change(1, &table, update(Some(&["1", "?"]), &["?", "x"]));
        batch.change(1, &table, update(Some(&["1", "?"]), &["2", "?"]));
        let steps = batch.take(None).steps;
        let Some(Step::Change {
            set: Set::Update(updates),
            ..
        }) = steps.first()
        else {
            panic!("not one update: {steps:?}");
        };
        let [update] = &updates[..] else {
            panic!("not one update: {updates:?}");
        };
        assert_eq!(update.from, row(&["1"]));
        assert_eq!((update.moved, &update.row), (true, &row(&["2", "x"])));
    }
}
