//! The target: committed rows, those that are on disk, and the open transactions of the writers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockstep_apply::batch::{Closing, CommitPoint, Part, Set, Step};
use lockstep_apply::ddl::{Captured, Command, Todo};
use lockstep_apply::error::{ApplyError, Conflict, Result};
use lockstep_apply::merge::{Start, Tables};
use lockstep_apply::order::{Changes, Plan};
use lockstep_apply::positions::settled;
use lockstep_apply::reach::{TargetReach, TargetUnique, UniqueColumn};
use lockstep_apply::row::{Cell, OwnedRow, Rows as Inserted};
use lockstep_apply::source_table::SourceTable;
use lockstep_apply::table::{Table, TargetColumn, TargetKey, TargetTable};
use lockstep_apply::work::Which;
use lockstep_client::ClientError;
use lockstep_client::error::{Refusal, Step as Asked};
use lockstep_wire::Lsn;
use lockstep_wire::logical::Xid;

use super::source::{KEYED, LOG, Rows, UNIQUE};

/// What a commit has made.
#[derive(Debug, Clone, Default)]
pub struct Committed {
    pub rows: Rows,
    /// The newest position that the state keeps.
    pub kept: Lsn,
    /// The newest cycle.
    pub cycle: Option<Closing>,
}

/// What a transaction has locked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Row(u32, String),
    Value(u32, String),
}

/// An open transaction.
#[derive(Debug, Clone, Default)]
pub struct Open {
    keyed: BTreeMap<(u32, String), Option<String>>,
    log: BTreeMap<String, i64>,
    locks: BTreeSet<Thing>,
    /// Commands that it has made.
    commands: u32,
    /// Steps of the part that are made.
    steps: usize,
    pub missing: u64,
}

/// What came of changes.
pub enum Made {
    All,
    /// This writer's transaction is in the way.
    Blocked(usize),
    Refused(ApplyError),
}

#[derive(Debug, Default)]
pub struct Target {
    pub committed: Committed,
    durable: Committed,
    /// Commits that are not on disk.
    since: Vec<Committed>,
    /// Where the highest origin stands: a transaction that failed may have moved it.
    pub origin: Lsn,
    pub open: Vec<Option<Open>>,
    /// Somebody's row, which takes a value.
    pub stray: Option<String>,
}

fn text(row: &OwnedRow, place: usize) -> String {
    match row.cells().nth(place) {
        Some(Cell::Text(text)) => String::from_utf8_lossy(text).into_owned(),
        other => panic!("no text in column {place}: {other:?}"),
    }
}

fn conflict(table: &Table, message: &str) -> ApplyError {
    ApplyError::Conflict(Box::new(Conflict {
        table: table.name.clone(),
        sqlstate: Some("23505".to_owned()),
        message: message.to_owned(),
        ..Conflict::default()
    }))
}

pub fn deadlock() -> ApplyError {
    ApplyError::Target(ClientError::Refused(Box::new(Refusal {
        step: Asked::Query,
        what: "change rows".to_owned(),
        sqlstate: "40P01".to_owned(),
        message: "deadlock detected".to_owned(),
        detail: None,
        context: None,
        hint: None,
        table: None,
    })))
}

/// Rows that a set takes away and rows that it brings.
struct Effect {
    gone: Vec<String>,
    new: Vec<(String, String)>,
}

impl Target {
    /// Where the target stands, which puts that on disk, as `pg_replication_origin_progress(origin, true)`
    /// does, which `writer::open` asks of each origin. `forgets`: the state's position is not looked at, as
    /// a fault.
    pub fn stands(&mut self, forgets: bool) -> Lsn {
        self.flush();
        settled(self.origin, Some(self.committed.kept).filter(|_| !forgets))
    }

    pub fn durable(&self) -> Lsn {
        self.durable.kept
    }

    fn visible(&self, open: &Open, table: u32) -> BTreeMap<String, String> {
        let of_table = |(of, _): &(&(u32, String), _)| of.0 == table;
        let committed = self.committed.rows.keyed.iter();
        let mut rows: BTreeMap<_, _> = committed
            .map(|(key, value)| (key, value.clone()))
            .filter(of_table)
            .map(|(key, value)| (key.1.clone(), value))
            .collect();
        if let (UNIQUE, Some(value)) = (table, &self.stray) {
            rows.insert("stray".to_owned(), value.clone());
        }
        for ((of, id), value) in &open.keyed {
            match value {
                _ if *of != table => {}
                Some(value) => drop(rows.insert(id.clone(), value.clone())),
                None => drop(rows.remove(id)),
            }
        }
        rows
    }

    /// Makes changes of a part, as far as nobody is in the way.
    pub fn apply(&mut self, writer: usize, part: &Part, which: Which, plan: &Plan) -> Made {
        let mut before = 0;
        for (number, step) in part.steps.iter().enumerate() {
            let changes = match step {
                Step::Change { set, .. } => set.len(),
                Step::Truncate { .. } | Step::Command(_) => 0,
            };
            let open = self.open[writer].get_or_insert_default();
            if number >= open.steps {
                match self.step(writer, step, &|place| picked(which, plan, before + place)) {
                    Made::All => {}
                    other => return other,
                }
                self.open[writer].get_or_insert_default().steps = number + 1;
            }
            before += changes;
        }
        // The next changes of this transaction are of another pick or part.
        self.open[writer].get_or_insert_default().steps = 0;
        Made::All
    }

    fn step(&mut self, writer: usize, step: &Step, picked: &dyn Fn(usize) -> bool) -> Made {
        let (table, set) = match step {
            Step::Change { table, set } => (table, set),
            Step::Truncate { tables, .. } => {
                for table in tables {
                    let open = self.open[writer].clone().unwrap_or_default();
                    let gone = self.visible(&open, table.reach.oid);
                    let open = self.open[writer].get_or_insert_default();
                    for id in gone.into_keys() {
                        open.keyed.insert((table.reach.oid, id), None);
                    }
                }
                return Made::All;
            }
            Step::Command(_) => return self.command(writer),
        };
        if table.attributes != self.version(writer) {
            return Made::Refused(conflict(table, "a row of another shape"));
        }
        let inserted = |rows: &Inserted| -> Vec<OwnedRow> {
            let rows = rows.iter().enumerate();
            rows.filter(|(place, _)| picked(*place))
                .map(|(_, row)| row.owned())
                .collect()
        };
        let rows = |rows: &[OwnedRow]| inserted(&rows.iter().cloned().collect());
        let new = |row: &OwnedRow| (text(row, 0), text(row, 1));
        let effect = match set {
            Set::Insert(all) if table.reach.oid == LOG => {
                return self.log(writer, &inserted(all), 1);
            }
            Set::DeleteWhole(all) => return self.log(writer, &rows(all), -1),
            Set::UpdateWhole(_) => panic!("the source updates no log"),
            Set::Delete(all) => Effect {
                gone: rows(all).iter().map(|row| text(row, 0)).collect(),
                new: Vec::new(),
            },
            Set::Insert(all) => Effect {
                gone: Vec::new(),
                new: inserted(all).iter().map(new).collect(),
            },
            Set::Update(all) => {
                let all = all.iter().enumerate();
                let all: Vec<_> = all.filter(|(place, _)| picked(*place)).collect();
                Effect {
                    gone: all.iter().map(|(_, one)| text(&one.from, 0)).collect(),
                    new: all.iter().map(|(_, one)| new(&one.row)).collect(),
                }
            }
        };
        self.change(writer, table, &effect, matches!(set, Set::Update(_)))
    }

    /// Makes a command, which nobody else may be beside.
    fn command(&mut self, writer: usize) -> Made {
        let others = self.open.iter().enumerate();
        let mut others = others.filter(|(other, open)| *other != writer && open.is_some());
        if let Some((other, _)) = others.next() {
            panic!("writer {writer} makes a command beside writer {other}");
        }
        self.open[writer].get_or_insert_default().commands += 1;
        Made::All
    }

    /// The shape of all tables, as a writer sees it.
    fn version(&self, writer: usize) -> u32 {
        let open = self.open[writer].as_ref();
        self.committed.rows.version + open.map_or(0, |open| open.commands)
    }

    /// The shape of all tables, as whoever asks about tables sees it: also if a command is not committed.
    pub fn newest_version(&self) -> u32 {
        (0..self.open.len())
            .map(|writer| self.version(writer))
            .max()
            .unwrap_or(self.committed.rows.version)
    }

    fn log(&mut self, writer: usize, rows: &[OwnedRow], by: i64) -> Made {
        let committed = self.committed.rows.log.clone();
        let open = self.open[writer].get_or_insert_default();
        for row in rows {
            let row = text(row, 0);
            let there = i64::from(committed.get(&row).copied().unwrap_or(0));
            let change = open.log.entry(row).or_default();
            match there + *change + by < 0 {
                true => open.missing += 1,
                false => *change += by,
            }
        }
        Made::All
    }

    fn change(&mut self, writer: usize, table: &Table, effect: &Effect, pairs: bool) -> Made {
        let oid = table.reach.oid;
        let mut open = self.open[writer].clone().unwrap_or_default();
        let mut rows = self.visible(&open, oid);
        let mut things = BTreeSet::new();
        for id in &effect.gone {
            things.insert(Thing::Row(oid, id.clone()));
            things.extend(rows.get(id).map(|value| Thing::Value(oid, value.clone())));
        }
        for (id, value) in &effect.new {
            things.insert(Thing::Row(oid, id.clone()));
            things.insert(Thing::Value(oid, value.clone()));
        }
        if oid != UNIQUE {
            things.retain(|thing| matches!(thing, Thing::Row(..)));
        }
        let other = self.open.iter().enumerate().find(|(other, open)| {
            let locks = open.as_ref().map(|open| &open.locks);
            *other != writer && locks.is_some_and(|locks| !locks.is_disjoint(&things))
        });
        if let Some((other, _)) = other {
            return Made::Blocked(other);
        }
        let mut lost = BTreeSet::new();
        for (place, id) in effect.gone.iter().enumerate() {
            match rows.remove(id) {
                Some(_) => drop(open.keyed.insert((oid, id.clone()), None)),
                None => {
                    open.missing += 1;
                    lost.insert(place);
                }
            }
        }
        for (place, (id, value)) in effect.new.iter().enumerate() {
            if pairs && lost.contains(&place) {
                continue;
            }
            let is_taken = oid == UNIQUE && rows.values().any(|has| has == value);
            if is_taken || rows.contains_key(id) {
                return Made::Refused(conflict(table, &format!("row {id} with {value}")));
            }
            rows.insert(id.clone(), value.clone());
            open.keyed.insert((oid, id.clone()), Some(value.clone()));
        }
        open.locks.extend(things);
        self.open[writer] = Some(open);
        Made::All
    }

    /// Commits a writer's transaction. Returns the rows that were missing.
    pub fn commit(
        &mut self,
        writer: usize,
        commit: CommitPoint,
        cycle: Option<&Closing>,
        flush: bool,
    ) -> u64 {
        let open = self.open[writer].take().unwrap_or_default();
        self.committed.rows.version += open.commands;
        for (key, value) in open.keyed {
            match value {
                Some(value) => drop(self.committed.rows.keyed.insert(key, value)),
                None => drop(self.committed.rows.keyed.remove(&key)),
            }
        }
        for (row, change) in open.log {
            let times = self.committed.rows.log.entry(row).or_default();
            *times = times.saturating_add_signed(i32::try_from(change).unwrap());
        }
        self.committed.rows.log.retain(|_, times| *times > 0);
        self.committed.cycle = cycle.copied().or(self.committed.cycle);
        self.moved(commit.end, flush);
        open.missing
    }

    /// Moves the origin, and flushes that with all before.
    pub fn moved(&mut self, end: Lsn, flush: bool) {
        self.committed.kept = self.committed.kept.max(end);
        self.origin = self.origin.max(end);
        self.since.push(self.committed.clone());
        if flush {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.durable = self.committed.clone();
        self.since.clear();
    }

    /// Flushes so many of the commits that are not on disk, if there are as many. Returns the position of the
    /// newest of them.
    pub fn flush_some(&mut self, number: usize) -> Option<Lsn> {
        let newest = number.checked_sub(1)?;
        self.durable = self.since.get(newest)?.clone();
        self.since.drain(..=newest);
        Some(self.durable.kept)
    }

    /// All sessions end. `crash`: what is not on disk may be lost, but for so many of the commits since.
    pub fn lost(&mut self, crash: bool, survive: usize) {
        for open in &mut self.open {
            *open = None;
        }
        if crash {
            let survivor = survive.checked_sub(1).and_then(|last| self.since.get(last));
            self.committed = survivor.unwrap_or(&self.durable).clone();
            self.flush();
            self.origin = self.origin.max(self.committed.kept);
        }
    }

    pub fn not_durable(&self) -> usize {
        self.since.len()
    }
}

fn picked(which: Which, plan: &Plan, place: usize) -> bool {
    match (which, &plan.changes) {
        (Which::All, _) => true,
        (Which::Some { bound }, Changes::Alone) => bound,
        (Which::Some { bound }, Changes::Bound(flags)) => flags.get(place) == Some(&bound),
    }
}

/// The target's catalog.
#[derive(Default)]
pub struct Catalog {
    /// The table that has lost a column.
    pub misshapen: Option<&'static str>,
    /// The shape of all tables.
    pub version: u32,
}

impl Tables for Catalog {
    fn start(&mut self, _source: &SourceTable, _transaction: Lsn) -> Result<Start> {
        Ok(Start::At(Lsn::INVALID))
    }

    fn command(&mut self, _content: &[u8], _xid: Xid, lsn: Lsn) -> Option<Command> {
        Some(Command {
            lsn,
            digits: String::new(),
            proven: String::new(),
            captured: Captured::default(),
            todo: Todo::Run(String::new()),
        })
    }

    fn table(&mut self, source: &SourceTable, _transaction: Lsn) -> Result<Arc<Table>> {
        if self.misshapen == Some(source.name.table.as_str()) {
            let words = "it has lost a column".to_owned();
            return Err(ApplyError::shape(&source.name, words));
        }
        let column = |name: &String| TargetColumn {
            name: name.clone(),
            of: lockstep_apply::types::ColumnType::default(),
            kind: "pg_catalog.text".to_owned(),
            in_array: true,
            of_user: false,
            delimiter: b',',
            generated: false,
            always_identity: false,
        };
        let unique = |name: &str| TargetUnique {
            columns: vec![UniqueColumn {
                name: Some(name.to_owned()),
                kind: 25,
                modifier: -1,
                exact: true,
            }],
            nulls_equal: false,
            excludes: false,
        };
        let (oid, uniques) = match source.name.table.as_str() {
            "u" => (UNIQUE, vec![unique("id"), unique("v")]),
            "k" => (KEYED, vec![unique("id")]),
            _ => (LOG, Vec::new()),
        };
        let key = TargetKey {
            columns: vec![("id".to_owned(), "pg_catalog.=".to_owned())],
        };
        let target = TargetTable {
            attributes: self.version,
            columns: source.columns.iter().map(|it| column(&it.name)).collect(),
            keys: Some(key).filter(|_| oid != LOG).into_iter().collect(),
            constraints: uniques.len(),
            reach: TargetReach {
                oid,
                root: oid,
                facts: oid.to_string(),
                triggers: false,
                uniques,
            },
            ..TargetTable::default()
        };
        Table::fit(source, &target).map(Arc::new)
    }
}
