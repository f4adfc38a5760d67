//! What the target's catalogs say about tables, over a connection of its own.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockstep_client::{ClientError, Connection, field};
use lockstep_wire::logical::Xid;
use lockstep_wire::{Lsn, Timeline};
use tracing::warn;

use crate::copies::{Candidate, Copies, Home};
use crate::cycle::Running;
use crate::ddl::{self, Command};
use crate::described;
use crate::error::{ApplyError, Result, Stop};
use crate::merge::{Start, Tables};
use crate::names::Excluded;
use crate::names::TableName;
use crate::reach::TargetReach;
use crate::settings::Settings;
use crate::source_table::SourceTable;
use crate::table::{Table, TargetTable};
use crate::target_state;

/// Where each table starts.
#[derive(Debug, Clone)]
pub struct Starts {
    /// Starts of copied tables, by their names at the copy.
    pub tables: BTreeMap<TableName, Start>,
    pub copies: Copies,
    pub others: Others,
}

/// Tables that are not listed.
#[derive(Debug, Clone)]
pub enum Others {
    /// All others are replicated.
    All,
    /// Only partitions that were made after the copy are, but for those that are excluded: they
    /// were empty, so the stream has all of their rows.
    LaterPartitions(Excluded),
}

impl Default for Starts {
    /// Every change of every table.
    fn default() -> Self {
        Self {
            tables: BTreeMap::new(),
            copies: Copies::default(),
            others: Others::All,
        }
    }
}

/// Facts of partitioned tables lock their partitions: who has locked one for long must not keep the source
/// from hearing of us, which ends the connection then (`wal_sender_timeout`).
///
/// A source may change thousands of tables in its first transaction, so each question is planned once, and
/// reads nothing but the rows of its tables. Joins are made in the order in which they are written, which
/// begins with these tables: a planner that knows nothing of how many there are may begin with all operator
/// classes, and read the tables again for each.
const SESSION: &str = "SET lock_timeout = 20000; SET plan_cache_mode = force_generic_plan; \
    SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
    SET join_collapse_limit = 1; SET from_collapse_limit = 1";

/// Tables that may be those that are asked for ([`Copies::home`]): with this OID, or one of two names. `$1`
/// is a JSON array of arrays with these five; the answer's first column says for which of them it is.
/// A rule that acts here would rewrite our statements; stock's apply worker knows no rules.
const TABLES: &str = "SELECT asked.place, c.oid, n.nspname, c.relname, c.relkind = 'p', \
      c.relispartition AND c.relkind = 'r' AND c.relpersistence = 'p', \
      (SELECT min(r.rulename) FROM pg_catalog.pg_rewrite AS r \
        WHERE r.ev_class = c.oid AND r.ev_enabled IN ('A', 'R') AND r.rulename <> '_RETURN'), \
      c.relnatts \
    FROM pg_catalog.json_array_elements($1::pg_catalog.json) WITH ORDINALITY AS asked(of, place) \
      JOIN pg_catalog.pg_class AS c ON c.relkind IN ('r', 'p') AND c.oid = ANY (ARRAY[ \
        (asked.of ->> 0)::pg_catalog.oid, \
        (SELECT x.oid FROM pg_catalog.pg_class AS x \
          JOIN pg_catalog.pg_namespace AS s ON s.oid = x.relnamespace \
          WHERE s.nspname = (asked.of ->> 1)::pg_catalog.name \
            AND x.relname = (asked.of ->> 2)::pg_catalog.name), \
        (SELECT x.oid FROM pg_catalog.pg_class AS x \
          JOIN pg_catalog.pg_namespace AS s ON s.oid = x.relnamespace \
          WHERE s.nspname = (asked.of ->> 3)::pg_catalog.name \
            AND x.relname = (asked.of ->> 4)::pg_catalog.name)]) \
      JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
    ORDER BY asked.place";

/// Tables that are likely to be asked for next, as [`TABLES`] has them: those below the same table first,
/// then those that were made after it. `$1` is a table's OID, `$2` how many, `$3` those that are known.
/// They are no partitioned tables, whose partitions would be locked.
const NEXT: &str = "SELECT 1, c.oid, n.nspname, c.relname, false, \
      c.relispartition AND c.relpersistence = 'p', \
      (SELECT min(r.rulename) FROM pg_catalog.pg_rewrite AS r \
        WHERE r.ev_class = c.oid AND r.ev_enabled IN ('A', 'R') AND r.rulename <> '_RETURN'), \
      c.relnatts \
    FROM (SELECT t.oid, t.relname, t.relnamespace, t.relispartition, t.relpersistence, t.relnatts \
        FROM pg_catalog.pg_class AS t LEFT JOIN pg_catalog.pg_inherits AS i \
          ON i.inhrelid = t.oid AND i.inhseqno = 1 \
        WHERE t.relkind = 'r' AND t.oid >= 16384 AND t.oid <> ALL ($3::pg_catalog.oid[]) \
        ORDER BY i.inhparent IS DISTINCT FROM (SELECT o.inhparent FROM pg_catalog.pg_inherits AS o \
              WHERE o.inhrelid = $1::pg_catalog.oid AND o.inhseqno = 1), \
          t.oid < $1::pg_catalog.oid, t.oid \
        LIMIT $2::pg_catalog.int8) AS c \
      JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace";

/// Names of prepared statements, and what they ask.
const QUESTIONS: [(&str, &str); 2] = [("tables", TABLES), ("next", NEXT)];

/// Most tables that are described ahead for each that is asked for, and most at once.
const AHEAD: usize = 16;
const AHEAD_AT_ONCE: usize = 500;

type Row = Vec<Option<String>>;

/// A table that the target has, and what [`TABLES`] says of it.
#[derive(Debug, Clone)]
struct Named {
    name: TableName,
    /// What is known without looking at its columns and indexes.
    table: TargetTable,
}

impl Named {
    fn read(row: &Row) -> lockstep_client::Result<Self> {
        let oid = field(row, 1)?;
        Ok(Self {
            name: TableName {
                schema: field(row, 2)?,
                table: field(row, 3)?,
            },
            table: TargetTable {
                partitioned: field(row, 4)?,
                is_partition: field(row, 5)?,
                acting_rule: field(row, 6)?,
                attributes: field(row, 7)?,
                reach: TargetReach {
                    oid,
                    root: oid,
                    ..TargetReach::default()
                },
                ..TargetTable::default()
            },
        })
    }

    fn candidate(&self) -> Candidate {
        Candidate {
            oid: self.table.reach.oid,
            name: self.name.clone(),
        }
    }
}

/// What the target has for a table of the source.
enum Found {
    Table(Named),
    Missing,
    OfAnother,
}

impl Found {
    fn named(&self) -> Option<&Named> {
        match self {
            Self::Table(named) => Some(named),
            Self::Missing | Self::OfAnother => None,
        }
    }
}

/// Tables that were described before they were asked for, while a transaction of the source arrived.
///
/// They count for that transaction only. The source sends a transaction after its commit, so whatever was
/// altered on the target before the source was altered for these changes was so when the tables were
/// described.
#[derive(Debug, Default)]
struct Ahead {
    transaction: Lsn,
    described: HashMap<TableName, Named>,
    /// Tables that were asked for, and tables that were described.
    asked: usize,
    read: usize,
}

impl Ahead {
    /// Forgets what is of another transaction.
    fn at(&mut self, transaction: Lsn) {
        if self.transaction != transaction {
            *self = Self {
                transaction,
                ..Self::default()
            };
        }
    }

    /// Number of tables that are described besides one that is asked for: none for the first, and the more
    /// the more are asked for, whatever their order is.
    fn more(&self) -> usize {
        let most = self.asked.saturating_mul(self.asked.min(AHEAD));
        most.saturating_sub(self.read + 1).min(AHEAD_AT_ONCE)
    }
}

/// A session of the target whose open transaction has changed the schema, which no other session sees yet.
pub trait Altered: fmt::Debug + Send {
    /// Asks within that transaction.
    fn ask(
        &self,
        question: &mut dyn FnMut(&mut Connection) -> lockstep_client::Result<()>,
    ) -> lockstep_client::Result<()>;
}

/// Who has changed the target's schema, for all who ask about tables.
#[derive(Debug, Clone, Default)]
pub struct Altering(Arc<Mutex<Changes>>);

#[derive(Debug, Default)]
struct Changes {
    /// Number of changes so far.
    changes: u64,
    session: Option<Box<dyn Altered>>,
}

impl Altering {
    fn get(&self) -> MutexGuard<'_, Changes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This session has changed the schema, and has not committed.
    pub fn altered(&self, session: Box<dyn Altered>) {
        let mut altering = self.get();
        altering.changes += 1;
        altering.session = Some(session);
    }

    /// The change is committed, or its session is closed.
    pub fn ended(&self) {
        self.get().session = None;
    }
}

/// Asks the target about tables.
#[derive(Debug)]
pub struct Catalog {
    connection: Connection,
    starts: Starts,
    ahead: Ahead,
    /// The replica and its publication, if it follows changes of the schema.
    follows: Option<(String, String)>,
    altering: Altering,
    /// Changes of the schema up to which [`Starts`] are known.
    changes: u64,
}

/// Prepares all questions.
pub(crate) fn prepare(connection: &mut Connection) -> lockstep_client::Result<()> {
    let mut pipeline = connection.pipeline()?;
    for (name, question) in QUESTIONS.into_iter().chain(described::QUESTIONS) {
        pipeline.prepare(name, question)?;
    }
    pipeline.finish().map(drop)
}

/// Makes a session on the target ready for questions: the server has plans for them, and has read what they
/// need, before the first change waits for them.
pub fn ready(connection: &mut Connection) -> lockstep_client::Result<()> {
    connection.execute(SESSION)?;
    prepare(connection)?;
    match rehearse(connection) {
        Err(error) if error.refusal().is_none() => Err(error),
        _ => Ok(()),
    }
}

/// Asks about a table that every server has, and forgets the answers.
fn rehearse(connection: &mut Connection) -> lockstep_client::Result<()> {
    let (schema, table) = ("pg_catalog", "pg_class");
    let asked = serde_json::json!([[0, schema, table, schema, table]]).to_string();
    let rows = connection.query_prepared("tables", &[&asked])?;
    let found = rows.iter().map(Named::read);
    let mut found = found.collect::<lockstep_client::Result<Vec<_>>>()?;
    let tables = found.iter_mut().map(|named| &mut named.table);
    described::describe(connection, tables.collect())
}

/// What the target has of tables by their names, asked with a session of its own.
pub fn described(
    mut connection: Connection,
    names: &[&TableName],
) -> lockstep_client::Result<Vec<Option<TargetTable>>> {
    prepare(&mut connection)?;
    let asked = names
        .iter()
        .map(|name| serde_json::json!([0, name.schema, name.table, name.schema, name.table]));
    let asked = serde_json::Value::from_iter(asked).to_string();
    let mut found: Vec<Option<TargetTable>> = names.iter().map(|_| None).collect();
    for row in connection.query_prepared("tables", &[&asked])? {
        let place: usize = field(&row, 0)?;
        if let Some(of) = found.get_mut(place.saturating_sub(1)) {
            *of = Some(Named::read(&row)?.table);
        }
    }
    described::describe(&mut connection, found.iter_mut().flatten().collect())?;
    Ok(found)
}

/// A session on the target, opened by [`crate::sessions::open`] and made [`ready`], and where the tables
/// start, as it has found.
pub type Opened = (Connection, Starts);

/// What opens such a session.
pub type Open<'a> = dyn FnMut() -> Result<Opened> + Send + 'a;

impl Catalog {
    pub fn of((connection, starts): Opened) -> Self {
        Self {
            connection,
            starts,
            ahead: Ahead::default(),
            follows: None,
            altering: Altering::default(),
            changes: 0,
        }
    }

    /// The catalog of a replica that follows changes of the schema, if the settings say so.
    pub fn following(mut self, settings: &Settings, altering: &Altering) -> Self {
        let publication = settings.publications.first().filter(|_| settings.ddl);
        self.follows = publication.map(|it| (settings.replica.clone(), it.clone()));
        self.altering = altering.clone();
        self
    }

    /// The process ID of the server's backend.
    pub fn backend(&self) -> u32 {
        self.connection.backend_pid()
    }

    /// Keeps the source's timeline, durably.
    pub fn keep_timeline(&mut self, replica: &str, timeline: Timeline) -> Result<()> {
        let kept = target_state::set_timeline(&mut self.connection, replica, timeline);
        kept.map_err(ApplyError::Target)
    }

    /// Keeps that a cycle has failed, and why.
    pub fn keep_failed(&mut self, replica: &str, failed: &Running, words: &str) -> Result<()> {
        let kept = target_state::fail_cycle(&mut self.connection, replica, failed, words);
        kept.map_err(ApplyError::Target)
    }

    /// Where the replica stands with an error of the changes up to `at`, if it follows changes of the schema.
    pub fn stop(&self, error: &mut ApplyError, at: Lsn) -> Option<Stop> {
        self.follows.as_ref()?;
        error.stop(at, |table| self.starts.copies.source(table))
    }

    /// Keeps where the replica stands. The writers have ended.
    pub fn keep_stopped(&mut self, replica: &str, stop: &Stop) -> Result<()> {
        // The session of the last writer: its open transaction may have the row.
        self.altering.ended();
        let kept = target_state::stop_at(&mut self.connection, replica, stop);
        kept.map_err(ApplyError::Target)
    }

    /// Asks the target, as it is or as a change of its schema that is not committed makes it.
    fn ask<T>(
        &mut self,
        mut question: impl FnMut(&mut Connection) -> lockstep_client::Result<T>,
    ) -> lockstep_client::Result<T> {
        let altering = self.altering.clone();
        let altering = altering.get();
        let Some(session) = &altering.session else {
            drop(altering);
            return question(&mut self.connection);
        };
        let mut answer = None;
        session.ask(&mut |connection| {
            answer = Some(question(connection)?);
            Ok(())
        })?;
        let nothing = || ClientError::Protocol("a question without an answer".to_owned());
        answer.ok_or_else(nothing)
    }

    /// Reads the list of tables again if a change of the schema has changed it.
    fn look_at_changes(&mut self) -> Result<()> {
        let changes = self.altering.get().changes;
        let Some((replica, _)) = self.follows.clone().filter(|_| changes != self.changes) else {
            return Ok(());
        };
        self.ahead = Ahead::default();
        let listed = self.ask(|connection| target_state::listed(connection, &replica));
        let (tables, copies) = listed.map_err(ApplyError::Target)?;
        (self.starts.tables, self.starts.copies) = (tables, copies);
        self.changes = changes;
        Ok(())
    }

    /// The target's tables for tables of the source that have these OIDs and, now, these names.
    fn found(&mut self, asked: &[(u32, &TableName)]) -> lockstep_client::Result<Vec<Found>> {
        let of = asked.iter().map(|(oid, name)| {
            let copied = self.starts.copies.of(*oid);
            let bound = copied.and_then(|copied| copied.target).unwrap_or(0);
            let before = copied.map_or(*name, |copied| &copied.name);
            serde_json::json!([bound, name.schema, name.table, before.schema, before.table])
        });
        let of = serde_json::Value::from_iter(of).to_string();
        let rows = self.ask(|connection| connection.query_prepared("tables", &[&of]))?;
        let mut candidates: Vec<Vec<Named>> = asked.iter().map(|_| Vec::new()).collect();
        for row in &rows {
            let place: usize = field(row, 0)?;
            if let Some(of) = candidates.get_mut(place.saturating_sub(1)) {
                of.push(Named::read(row)?);
            }
        }
        let (found, copies) = (asked.iter().zip(candidates), &self.starts.copies);
        Ok(found
            .map(|((oid, name), candidates)| choose(copies, *oid, name, candidates))
            .collect())
    }

    fn found_one(&mut self, oid: u32, name: &TableName) -> Result<Found> {
        let found = self.found(&[(oid, name)]).map_err(ApplyError::Target)?;
        Ok(found.into_iter().next().unwrap_or(Found::Missing))
    }

    /// The target's table for a table of the source, if it is known ahead. A table that was renamed is looked
    /// for by more than its name.
    fn known_ahead(&self, oid: u32, name: &TableName) -> Option<&Named> {
        let copies = &self.starts.copies;
        let is_renamed = (copies.of(oid)).is_some_and(|copied| copied.name != *name);
        let named = self.ahead.described.get(name).filter(|_| !is_renamed)?;
        match copies.home(oid, name, &[named.candidate()]) {
            Home::Table(_) => Some(named),
            Home::Missing | Home::OfAnother => None,
        }
    }

    /// Describes a table, and with it others that are likely to be asked for next.
    fn describe(&mut self, named: Named) -> lockstep_client::Result<TargetTable> {
        let oid = named.table.reach.oid;
        let mut all = vec![named];
        let more = self.ahead.more();
        if more > 0 {
            let known = self.ahead.described.values();
            let known = known.map(|known| known.table.reach.oid).chain([oid]);
            let known = described::oids(known);
            let rows =
                self.ask(|connection| connection.query_prepared("next", &[&oid, &more, &known]))?;
            for row in &rows {
                all.push(Named::read(row)?);
            }
        }
        self.ahead.read += all.len();
        self.ask(|connection| {
            let tables = all.iter_mut().map(|one| &mut one.table);
            described::describe(connection, tables.collect())
        })?;
        let mut all = all.into_iter();
        let asked = all.next().map(|asked| asked.table).unwrap_or_default();
        let described = all.map(|named| (named.name.clone(), named));
        self.ahead.described.extend(described);
        Ok(asked)
    }
}

/// Chooses the target's table for a table of the source.
fn choose(copies: &Copies, oid: u32, name: &TableName, named: Vec<Named>) -> Found {
    let candidates: Vec<_> = named.iter().map(Named::candidate).collect();
    let home = match copies.home(oid, name, &candidates) {
        Home::Table(home) => home,
        Home::Missing => return Found::Missing,
        Home::OfAnother => return Found::OfAnother,
    };
    let is_home = |named: &Named| named.table.reach.oid == home.oid;
    named
        .into_iter()
        .find(is_home)
        .map_or(Found::Missing, Found::Table)
}

impl Catalog {
    /// Where the table of the source with this OID starts, which has this name now, if that does not depend
    /// on the target. Its rows may be in a table of another name ([`Copies::home`]).
    fn listed_start(&self, oid: u32, name: &TableName) -> Option<Start> {
        let listed = self.starts.copies.of(oid);
        let listed = listed.map_or(name, |copied| &copied.name);
        match (self.starts.tables.get(listed), &self.starts.others) {
            (Some(start), _) => Some(*start),
            (None, Others::All) => Some(Start::At(Lsn::INVALID)),
            (None, Others::LaterPartitions(excluded)) => {
                excluded.names(name).then_some(Start::Never)
            }
        }
    }

    /// For each table of the source, by its OID and its name now: changes of it are applied, to a table of
    /// its name if to any.
    pub fn are_replicated(&mut self, asked: &[(u32, &TableName)]) -> Result<Vec<bool>> {
        let found = self.found(asked).map_err(ApplyError::Target)?;
        let found = asked.iter().zip(&found);
        Ok(found
            .map(|((oid, name), found)| {
                let start = self.listed_start(*oid, name);
                let start = start.unwrap_or_else(|| later_start(name, found.named()));
                let is_elsewhere = found.named().is_some_and(|named| named.name != **name);
                start != Start::Never && !is_elsewhere
            })
            .collect())
    }

    /// Why there is no table for the source's changes.
    fn missing(&self, source: &SourceTable) -> String {
        let copied = self.starts.copies.of(source.oid);
        match (copied, &self.starts.others) {
            (Some(copied), _) if copied.name != source.name => format!(
                "it does not exist, nor does {}, as the source's was called when it was copied",
                copied.name
            ),
            (None, Others::LaterPartitions(_)) if !self.starts.tables.contains_key(&source.name) => {
                "it does not exist: the source has made this partition after the copy; make it here as \
                 it is there"
                    .to_owned()
            }
            _ => "it does not exist".to_owned(),
        }
    }
}

/// Where a table starts that was not copied, and that the target has so.
fn later_start(name: &TableName, there: Option<&Named>) -> Start {
    match there.map(|there| (there.table.partitioned, there.table.is_partition)) {
        // One that is missing is told of at its first change.
        None | Some((false, true)) => Start::At(Lsn::INVALID),
        // Of a partitioned table only TRUNCATE arrives, which names its partitions as well.
        Some((true, _)) => Start::Never,
        Some((false, false)) => {
            warn!("table {name} was not copied, so its changes are skipped");
            Start::Never
        }
    }
}

impl Tables for Catalog {
    fn command(&mut self, content: &[u8], xid: Xid, lsn: Lsn) -> Option<Command> {
        let (_, publication) = self.follows.as_ref()?;
        ddl::command(content, publication, xid.0, lsn)
    }

    fn start(&mut self, source: &SourceTable, transaction: Lsn) -> Result<Start> {
        self.look_at_changes()?;
        if let Some(start) = self.listed_start(source.oid, &source.name) {
            return Ok(start);
        }
        self.ahead.at(transaction);
        if let Some(known) = self.known_ahead(source.oid, &source.name) {
            return Ok(later_start(&source.name, Some(known)));
        }
        let found = self.found_one(source.oid, &source.name)?;
        Ok(later_start(&source.name, found.named()))
    }

    fn table(&mut self, source: &SourceTable, transaction: Lsn) -> Result<Arc<Table>> {
        self.look_at_changes()?;
        self.ahead.at(transaction);
        self.ahead.asked += 1;
        let known = self.known_ahead(source.oid, &source.name).cloned();
        let (name, target) = match known {
            Some(known) => {
                // Whoever asks once more wants to know what it is by then.
                self.ahead.described.remove(&known.name);
                (known.name, known.table)
            }
            None => match self.found_one(source.oid, &source.name)? {
                Found::Table(named) => {
                    let name = named.name.clone();
                    let target = self.describe(named).map_err(ApplyError::Target)?;
                    (name, target)
                }
                Found::Missing => {
                    return Err(ApplyError::shape(&source.name, self.missing(source)));
                }
                Found::OfAnother => {
                    let message = "it is the copy of another table, which the source has dropped or renamed \
                                   since; rename or drop it here as well, and make the new one as it is there";
                    return Err(ApplyError::shape(&source.name, message.to_owned()));
                }
            },
        };
        let table = Table::fit(source, &target)?;
        Ok(Arc::new(Table { name, ..table }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Questions about 500 tables, if `of_10` of 10 that are described ahead are asked for later.
    fn questions(of_10: usize) -> usize {
        let mut ahead = Ahead::default();
        let (mut questions, mut useful) = (0, 0);
        for asked in 1..=500 {
            ahead.asked = asked;
            if asked > questions + useful {
                questions += 1;
                let more = ahead.more();
                ahead.read += 1 + more;
                useful += more * of_10 / 10;
            }
            assert!(ahead.read <= asked * AHEAD, "{ahead:?}");
        }
        questions
    }

    #[test]
    fn the_more_tables_are_asked_for_the_more_are_described_ahead() {
        assert!(questions(10) < 10, "{}", questions(10));
        assert!(questions(5) < 20, "{}", questions(5));
        assert_eq!(questions(0), 500, "a bounded number for nothing");
    }

    #[test]
    fn what_was_described_ahead_counts_for_its_transaction() {
        let mut ahead = Ahead::default();
        ahead.at(Lsn::from(1));
        ahead.asked = 3;
        ahead.at(Lsn::from(1));
        assert_eq!(ahead.asked, 3);
        ahead.at(Lsn::from(2));
        assert_eq!((ahead.asked, ahead.transaction), (0, Lsn::from(2)));
    }
}
