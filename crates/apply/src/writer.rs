//! Changes the target: the only place where a batch meets SQL.
//!
//! A part goes there statement by statement, or, if it is small, whole as one message ([`at_once`]). Small
//! changes of many tables go together ([`together`]).
//!
//! The connection owns a replication origin of the replica ([`super::origins`]), so no two processes
//! can be at work on one replica. Each transaction carries the source's position in its commit record
//! (`pg_replication_origin_xact_setup`), so data and position are durable together or not at
//! all. Commits are asynchronous, and `pg_replication_origin_session_progress(true)` flushes them; a
//! small part's commit does that itself.
//! A writer that ran ahead of its turn can roll back and begin again. After any other error it cannot
//! be used again: the next one begins where the origins stand.

mod at_once;
mod command;
mod commit;
mod deletes;
mod given;
mod inserts;
mod together;
mod truncates;
mod unflushed;

use std::collections::HashMap;
use std::ffi::CString;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};

use lockstep_client::{Canceller, Connection, Purpose, field};
use lockstep_intake::continuity::FollowedSource;
use lockstep_wire::{Lsn, Timeline};

use given::{Given, MOST_ROWS, before, both, chunks, keeps, updated, values};
use unflushed::Unflushed;

use crate::batch::{MOST_BYTES, Missing, Part, Set, Step};
use crate::cycle::Past;
use crate::error::{ApplyError, Result, is_in_the_way};
use crate::failpoint;
use crate::net::Update;
use crate::order::{Changes, Plan};
use crate::origins;
use crate::positions::settled;
use crate::reach::FACTS;
use crate::sessions;
use crate::settings::Settings;
use crate::statements::{Statement, Verb};
use crate::table::Table;
use crate::target_state;
use crate::work::Which;

/// Fewest rows that are inserted with COPY, or bytes: of a copy only a piece is in memory a
/// second time. Less is quicker in one statement.
const COPY_FROM: usize = 50;
const COPY_FROM_BYTES: usize = 1024 * 1024;

/// A copy is sent in pieces of about so many bytes: the server works on the first one while the next is
/// written.
const COPY_BYTES: usize = 32 * 1024;

/// Rows of a statement that is sent while the next one's parameters are written.
const ROWS_IN_A_ROW: usize = 2_500;

/// Commits that leave their positions in the state before those that are passed are deleted.
const TIDY_AFTER: u32 = 1_000;

/// Most prepared statements; then all are forgotten.
const MOST_PREPARED: usize = 500;

/// Puts all commits so far on disk.
const FLUSH: &str = "SELECT pg_catalog.pg_replication_origin_session_progress(true)";

/// Longest time that a statement may take: locks of others are waited for, and the one who stops the
/// replica cancels it.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3600);

/// Plans look rows up by index, whatever the statistics say: those of a fresh copy say
/// nothing, and the arrays' lengths are not known when the plan is made.
const SESSION: &str = "SET session_replication_role = replica; \
    SET synchronous_commit = off; SET datestyle = 'ISO'; \
    SET intervalstyle = 'postgres'; SET extra_float_digits = 3; SET bytea_output = 'hex'; \
    SET row_security = off; SET plan_cache_mode = force_generic_plan; \
    SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
    SET enable_material = off; SET enable_memoize = off; \
    SET max_parallel_workers_per_gather = 0";

/// Settings for statements that find rows without an index.
const SCANS_ON: &str =
    "SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on; SET LOCAL enable_material = on";
const SCANS_OFF: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; \
    SET LOCAL enable_material = off";

struct Prepared {
    /// Keeps the table's address, which is part of the key, from being used again.
    _table: Arc<Table>,
    name: String,
    statement: Arc<Statement>,
}

/// Which prepared statement: of which table, what it does, and which columns keep values.
type StatementKey = (usize, Verb, Vec<usize>);

pub struct Writer {
    connection: Connection,
    prepared: HashMap<StatementKey, Prepared>,
    /// Numbers of prepared statements are never used twice.
    named: u64,
    /// The statement that ends a small part is prepared.
    ends: bool,
    /// Questions about tables are prepared.
    asks: bool,
    in_transaction: bool,
    /// The last step has deleted rows and inserted them again.
    made_anew: bool,
    /// The replica in whose state positions are kept and missing rows are counted.
    replica: String,
    /// Commits since positions that are passed were deleted.
    kept: u32,
    /// None if this role may not ask what is on disk.
    unflushed: Option<Unflushed>,
    missing: Missing,
    /// Bytes of values that this transaction has sent to the target.
    sent_bytes: u64,
}

/// Which changes of a part to make.
#[derive(Clone, Copy)]
pub enum Pick<'a> {
    All,
    /// Changes of a plan that are bound, or those that are not.
    Some {
        plan: &'a Plan,
        bound: bool,
    },
}

impl<'a> Pick<'a> {
    /// The changes of a part with this plan.
    pub fn new(which: Which, plan: &'a Plan) -> Self {
        match which {
            Which::All => Self::All,
            Which::Some { bound } => Self::Some { plan, bound },
        }
    }
}

impl Pick<'_> {
    /// Which of these changes to make. `before` changes of the part come before them.
    fn of<T>(&self, before: usize, rows: impl IntoIterator<Item = T>) -> Vec<T> {
        let rows = rows.into_iter();
        match self {
            Self::All => rows.collect(),
            Self::Some { plan, bound } => match &plan.changes {
                Changes::Alone => rows.filter(|_| *bound).collect(),
                Changes::Bound(flags) => (flags.iter().skip(before).zip(rows))
                    .filter(|(flag, _)| *flag == bound)
                    .map(|(_, row)| row)
                    .collect(),
            },
        }
    }
}

/// Asks whether our session is one of those that another waits for, directly or not. That includes
/// sessions of others between the two: one that waits for a lock of ours, and that lets nobody pass.
const HOLDS_UP: &str = "WITH RECURSIVE before(pid) AS ( \
      SELECT pg_catalog.unnest(pg_catalog.pg_blocking_pids($1::pg_catalog.int4)) \
      UNION SELECT of.pid FROM before, \
        LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(before.pid)) AS of(pid)) \
    SELECT EXISTS (SELECT FROM before WHERE pid = pg_catalog.pg_backend_pid())";

/// Connects a replica's writers. Each takes an origin, which is made if it does not exist. Returns
/// where the target stands, durably: where the highest of the origins stands, those of writers that
/// are no longer wanted included, but not beyond what the state has; `0/0` if nothing was ever applied.
pub fn open(settings: &Settings) -> Result<(Vec<Writer>, Lsn)> {
    let numbers = 0..settings.writers.first();
    let connections = thread::scope(|scope| {
        let connect = |_| scope.spawn(|| connect(settings));
        let connecting: Vec<_> = numbers.clone().map(connect).collect();
        let connected = connecting.into_iter().map(ScopedJoinHandle::join);
        let connected = connected.map(|one| one.unwrap_or_else(|panic| resume_unwind(panic)));
        connected.collect::<lockstep_client::Result<Vec<_>>>()
    });
    // An origin keeps its room once it was owned: where there is too little, the first ones have it.
    let writers = connections.map_err(ApplyError::Target)?.into_iter();
    let writers = writers.zip(numbers.clone());
    let writers = writers.map(|(connection, number)| Writer::own(connection, settings, number));
    let mut writers = writers.collect::<Result<Vec<_>>>()?;
    check_taken(settings, &mut writers)?;
    let mut stands = Lsn::INVALID;
    for (writer, number) in writers.iter_mut().zip(numbers.clone()) {
        let origin = origins::name(&settings.origin, number);
        let at = origins::stands(&mut writer.connection, &origin);
        stands = stands.max(at.map_err(ApplyError::Target)?);
    }
    let Some(first) = writers.first_mut() else {
        return Err(ApplyError::System("no writer is wanted".to_owned()));
    };
    let ours: Vec<_> = (numbers.map(|number| origins::name(&settings.origin, number))).collect();
    let mut others =
        origins::listed(&mut first.connection, &settings.origin).map_err(ApplyError::Target)?;
    others.retain(|origin| !ours.contains(origin));
    let stands = match others.is_empty() {
        true => first.settled(stands)?,
        false => take_over(settings, first, stands, &others)?,
    };
    Ok((writers, stands))
}

/// An error unless this process has the replica's lock. It is asked for once the origins are owned: whoever
/// takes the lock looks at them afterwards, so that one of both sees the other.
fn check_taken(settings: &Settings, writers: &mut [Writer]) -> Result<()> {
    let (Some(taken), Some(first)) = (&settings.taken, writers.first_mut()) else {
        return Ok(());
    };
    let lost = taken.lost(&mut first.connection);
    match lost.map_err(ApplyError::Target)? {
        Some(words) => Err(ApplyError::NotTaken(words)),
        None => Ok(()),
    }
}

/// Connects another writer of a session, if the target then still has origins for others.
pub fn another(settings: &Settings, number: usize) -> Result<Writer> {
    let mut connection = connect(settings).map_err(ApplyError::Target)?;
    let free = origins::free(&mut connection).map_err(ApplyError::Target)?;
    if free <= origins::SPARED {
        return Err(ApplyError::System(format!(
            "target: {free} replication origins are free, and {} are left to others: raise \
             max_replication_slots there (max_active_replication_origins on 18 and later)",
            origins::SPARED
        )));
    }
    Writer::own(connection, settings, number)
}

/// Drops origins of writers that are no longer wanted, once one of ours stands where the highest of
/// them does. Returns where that is.
fn take_over(
    settings: &Settings,
    first: &mut Writer,
    mut stands: Lsn,
    others: &[String],
) -> Result<Lsn> {
    let name = &settings.application_name;
    let connected = sessions::open(&settings.target, Purpose::Sql, name);
    let mut connection = connected.map_err(ApplyError::Target)?;
    let mut owned = |origin: &String| {
        match origins::own(&mut connection, origin) {
            // One that a session owns has its room.
            Err(error) if origins::is_full(&error) => return Ok(Lsn::INVALID),
            owned => owned?,
        }
        let stands = origins::stands(&mut connection, origin)?;
        origins::disown(&mut connection)?;
        Ok(stands)
    };
    for origin in others {
        stands = stands.max(owned(origin).map_err(ApplyError::Target)?);
    }
    stands = first.settled(stands)?;
    if stands.is_valid() {
        first.move_to(stands)?;
    }
    failpoint::APPLY_TAKES_OVER.reach();
    for origin in others {
        origins::drop(&mut connection, origin).map_err(ApplyError::Target)?;
    }
    Ok(stands)
}

/// A session for a writer.
fn connect(settings: &Settings) -> lockstep_client::Result<Connection> {
    let name = &settings.application_name;
    let mut connection = sessions::open(&settings.target, Purpose::Sql, name)?;
    connection.set_patience(PATIENCE);
    connection.execute(SESSION)?;
    Ok(connection)
}

impl Writer {
    fn own(mut connection: Connection, settings: &Settings, number: usize) -> Result<Self> {
        let origin = origins::name(&settings.origin, number);
        let owned = origins::own(&mut connection, &origin);
        owned.map_err(|error| match origins::is_full(&error) {
            true => ApplyError::System(format!(
                "target: {}; each of the {} writers needs a replication origin of its own: raise \
                 max_replication_slots there (max_active_replication_origins on 18 and later) or \
                 use fewer writers",
                error.words(),
                settings.writers.first()
            )),
            false => ApplyError::Target(error),
        })?;
        let asks = match connection.query(unflushed::ASK) {
            Err(error) if error.refusal().is_none() => return Err(ApplyError::Target(error)),
            asked => asked.is_ok(),
        };
        Ok(Self {
            connection,
            prepared: HashMap::new(),
            named: 0,
            ends: false,
            asks: false,
            in_transaction: false,
            made_anew: false,
            replica: settings.replica.clone(),
            kept: 0,
            unflushed: asks.then(Unflushed::default),
            missing: Missing::new(),
            sent_bytes: 0,
        })
    }

    /// Where the target stands if the highest of its origins stands here; all are owned by now, so no
    /// commit is under way. The state has a position before the first transaction.
    fn settled(&mut self, highest: Lsn) -> Result<Lsn> {
        let kept = target_state::kept_position(&mut self.connection, &self.replica);
        if let Some(kept) = kept.map_err(ApplyError::Target)? {
            return Ok(settled(highest, Some(kept)));
        }
        let keep = target_state::keep_position_sql(&self.replica, highest, false);
        let kept = keep.and_then(|sql| self.connection.execute(&sql));
        kept.map(|()| highest).map_err(ApplyError::Target)
    }

    /// Cancels what the writer does, from another thread.
    pub fn canceller(&self) -> Result<Canceller> {
        self.connection.canceller().map_err(ApplyError::Target)
    }

    /// The process ID of the server's backend.
    pub fn backend(&self) -> u32 {
        self.connection.backend_pid()
    }

    /// Makes changes of a part, in the open transaction or a new one.
    pub fn apply(&mut self, part: &Part, pick: Pick<'_>) -> Result<()> {
        if !self.in_transaction {
            (self.connection.execute("BEGIN")).map_err(ApplyError::Target)?;
            self.in_transaction = true;
        }
        // Changes of the part before a step, which only a plan needs to know.
        let mut before = 0;
        let mut steps = &part.steps[..];
        while let Some((step, rest)) = steps.split_first() {
            let together = match pick {
                Pick::All => together::first(steps),
                Pick::Some { .. } => Vec::new(),
            };
            if together.len() > 1 {
                self.together(&together)?;
                steps = steps.get(together.len()..).unwrap_or_default();
                continue;
            }
            self.step(step, pick, before)?;
            before += match step {
                Step::Change { set, .. } => set.len(),
                Step::Truncate { .. } | Step::Command(_) => 0,
            };
            steps = rest;
        }
        Ok(())
    }

    pub fn is_in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// Forgets all that was applied since the last commit.
    pub fn roll_back(&mut self) -> Result<()> {
        self.missing.clear();
        self.sent_bytes = 0;
        if !std::mem::take(&mut self.in_transaction) {
            return Ok(());
        }
        (self.connection.execute("ROLLBACK")).map_err(ApplyError::Target)
    }

    /// Rows that were to be changed in this transaction were not there.
    pub fn has_missing(&self) -> bool {
        !self.missing.is_empty()
    }

    /// The other backend waits for a lock, and would have it but for our transaction.
    pub fn holds_up(&mut self, other: u32) -> Result<bool> {
        let rows = self.connection.query_with(HOLDS_UP, &[&other]);
        let rows = rows.map_err(ApplyError::Target)?;
        let holds = rows.first().map_or(Ok(false), |row| field(row, 0));
        holds.map_err(ApplyError::Target)
    }

    /// The part's tables reach as far as they did when it was planned. Our locks on them keep that
    /// so until the commit, as far as triggers go.
    pub fn reach_is_known(&mut self, part: &Part) -> Result<bool> {
        let mut tables: Vec<&Arc<Table>> = Vec::new();
        for step in &part.steps {
            match step {
                Step::Change { table, .. }
                    if !tables.iter().any(|known| Arc::ptr_eq(known, table)) =>
                {
                    tables.push(table);
                }
                _ => {}
            }
        }
        let oids: Vec<_> = (tables.iter())
            .map(|table| table.reach.oid.to_string())
            .collect();
        let oids = format!("{{{}}}", oids.join(","));
        let rows = (self.connection.query_with(FACTS, &[&oids])).map_err(ApplyError::Target)?;
        let facts = rows.iter().map(|row| row.first().cloned().flatten());
        Ok(facts.eq(tables.iter().map(|table| Some(table.reach.facts.clone()))))
    }

    /// What the target knows of the replica's cycles.
    pub fn past(&mut self) -> Result<Past> {
        let past = target_state::past_cycles(&mut self.connection, &self.replica);
        past.map_err(ApplyError::Target)
    }

    /// What the target knows of the source. `stands` is where its origin stands.
    pub fn known(&mut self, stands: Lsn) -> Result<FollowedSource> {
        let replica = &self.replica;
        let stand =
            target_state::stand(&mut self.connection, replica).map_err(ApplyError::Target)?;
        let stand = stand.ok_or_else(|| {
            ApplyError::System(format!("replica \"{replica}\" is gone from the target"))
        })?;
        Ok(FollowedSource {
            // Not what apply says that it had committed: that may have been lost in a crash.
            received: stands.max(stand.start),
            timeline: stand.timeline,
            history: None,
            system: Some(stand.system_id),
            slot: None,
        })
    }

    /// Keeps the source's timeline.
    pub fn keep_timeline(&mut self, timeline: Timeline) -> Result<()> {
        let kept = target_state::set_timeline(&mut self.connection, &self.replica, timeline);
        kept.map_err(ApplyError::Target)
    }

    fn step(&mut self, step: &Step, pick: Pick<'_>, before: usize) -> Result<()> {
        match step {
            Step::Change { table, set } => {
                self.made_anew = false;
                let on_table = |error| ApplyError::on_table(&table.name, error);
                self.change(table, set, pick, before).map_err(on_table)?;
                match self.made_anew {
                    true => self.check_columns(table),
                    false => Ok(()),
                }
            }
            Step::Truncate { tables, how } => {
                self.truncate(tables, *how)?;
                failpoint::APPLY_TRUNCATED.reach();
                Ok(())
            }
            Step::Command(command) => self.command(command),
        }
    }

    /// An error if the target's table has got a column: rows that were made anew would have lost its
    /// values. Our lock on the table lets nobody add one now.
    fn check_columns(&mut self, table: &Table) -> Result<()> {
        let sql = "SELECT relnatts FROM pg_catalog.pg_class \
                   WHERE oid OPERATOR(pg_catalog.=) $1::pg_catalog.oid";
        let rows = self.connection.query_with(sql, &[&table.reach.oid]);
        let rows = rows.map_err(ApplyError::Target)?;
        let now: Option<u32> =
            (rows.first().map(|row| field(row, 0)).transpose()).map_err(ApplyError::Target)?;
        match now == Some(table.attributes) {
            true => Ok(()),
            false => Err(ApplyError::shape(
                &table.name,
                "it was altered since its columns were read, which happens again now".to_owned(),
            )),
        }
    }

    fn change(
        &mut self,
        table: &Arc<Table>,
        set: &Set,
        pick: Pick<'_>,
        at: usize,
    ) -> lockstep_client::Result<()> {
        match set {
            Set::Insert(rows) => self.insert(table, &pick.of(at, rows.iter())),
            Set::Delete(keys) => {
                let keys = pick.of(at, keys);
                let changed = self.delete(table, &keys)?;
                self.count_missing(table, keys.len(), changed);
                Ok(())
            }
            Set::Update(updates) => self.updates(table, &pick.of(at, updates)),
            Set::DeleteWhole(rows) if table.written().next().is_none() => {
                let rows = pick.of(at, rows).len();
                let wanted = CString::new(rows.to_string()).ok();
                let changed = self.scan(&table.delete_any(), vec![wanted])?;
                self.count_missing(table, rows, changed);
                Ok(())
            }
            // Of such rows nothing is sent that could have changed.
            Set::UpdateWhole(_) if table.written().next().is_none() => Ok(()),
            Set::DeleteWhole(rows) => {
                let rows: Vec<_> = pick.of(at, rows).into_iter().map(before).collect();
                self.run_whole(table, &table.delete_whole(), &rows)
            }
            Set::UpdateWhole(rows) => {
                let rows: Vec<_> = pick.of(at, rows).into_iter().map(both).collect();
                self.made_anew = true;
                self.run_whole(table, &table.update_whole(), &rows)
            }
        }
    }

    fn count_missing(&mut self, table: &Table, wanted: usize, changed: u64) {
        let missing = (wanted as u64).saturating_sub(changed);
        if missing > 0 {
            *self.missing.entry(table.name.clone()).or_default() += missing;
        }
    }

    /// Updates that are in each other's way only because of their order, such as two rows that
    /// swap a unique value, are done again as one statement that deletes all of the rows before
    /// it inserts them.
    fn updates(&mut self, table: &Arc<Table>, updates: &[&Update]) -> lockstep_client::Result<()> {
        if updates.is_empty() {
            return Ok(());
        }
        let can_update = table.can_update();
        let updates = || updates.iter().copied();
        let replaced: Vec<_> = updates()
            .filter(|update| update.moved || !can_update)
            .collect();
        let stay = updates().filter(|update| !update.moved && can_update);
        let stay: Vec<_> = stay.map(updated).collect();
        let guarded = table.crowded;
        if guarded {
            self.connection.execute("SAVEPOINT updates")?;
        }
        let missing = self.missing.clone();
        let replaced: Vec<_> = replaced.into_iter().map(updated).collect();
        let done = self.replace_and_update(table, &replaced, &stay);
        match done {
            Err(error) if guarded && is_in_the_way(&error) => {
                self.connection.execute("ROLLBACK TO updates")?;
                self.missing = missing;
                let all: Vec<_> = updates().map(updated).collect();
                let changed = self.run_at_once(table, Verb::Replace, &all)?;
                self.count_missing(table, all.len(), changed);
            }
            done => done?,
        }
        match guarded {
            true => self.connection.execute("RELEASE updates"),
            false => Ok(()),
        }
    }

    fn replace_and_update(
        &mut self,
        table: &Arc<Table>,
        replaced: &[Given<'_>],
        stay: &[Given<'_>],
    ) -> lockstep_client::Result<()> {
        // At once: in pieces a row could take a key that a later piece only then gives up.
        let changed = self.run_at_once(table, Verb::Replace, replaced)?;
        self.count_missing(table, replaced.len(), changed);
        let key = table.key();
        let has_more = table.written().any(|(place, _)| !key.contains(&place));
        // A row that is all key stays as it is.
        if has_more {
            let changed = self.run(table, Verb::Update, stay)?;
            self.count_missing(table, stay.len(), changed);
        }
        Ok(())
    }

    /// Runs a statement for rows, as often as their number and size need it.
    fn run(
        &mut self,
        table: &Arc<Table>,
        verb: Verb,
        rows: &[Given<'_>],
    ) -> lockstep_client::Result<u64> {
        if rows.len() > ROWS_IN_A_ROW && is_prepared(table, verb) {
            return self.run_in_a_row(table, verb, rows);
        }
        let mut changed = 0;
        for rows in chunks(rows, MOST_ROWS) {
            changed += self.run_at_once(table, verb, rows)?;
        }
        Ok(changed)
    }

    /// Runs a prepared statement for some rows after the others: the server works on them while the next ones
    /// are written.
    fn run_in_a_row(
        &mut self,
        table: &Arc<Table>,
        verb: Verb,
        rows: &[Given<'_>],
    ) -> lockstep_client::Result<u64> {
        let (name, statement) = self.prepare(table, verb, kept(verb, rows))?;
        let key = table.key();
        let mut sent = 0;
        let mut pipeline = self.connection.pipeline()?;
        for rows in chunks(rows, ROWS_IN_A_ROW) {
            let values = values(table, &statement, &key, rows)?;
            sent += bytes(&values);
            pipeline.change_prepared(&name, values)?;
        }
        let answers = pipeline.finish()?;
        self.sent_bytes += sent;
        Ok(answers.iter().map(|answer| answer.affected).sum())
    }

    fn run_at_once(
        &mut self,
        table: &Arc<Table>,
        verb: Verb,
        rows: &[Given<'_>],
    ) -> lockstep_client::Result<u64> {
        if rows.is_empty() {
            return Ok(0);
        }
        self.made_anew |= verb == Verb::Replace;
        let keeps = kept(verb, rows);
        let key = table.key();
        if is_prepared(table, verb) {
            let (name, statement) = self.prepare(table, verb, keeps)?;
            let values = values(table, &statement, &key, rows)?;
            self.sent_bytes += bytes(&values);
            return self.connection.change_prepared(&name, values);
        }
        let statement = table.statement(verb, &keeps);
        let values = values(table, &statement, &key, rows)?;
        self.scan(&statement.sql, values)
    }

    fn run_whole(
        &mut self,
        table: &Arc<Table>,
        statement: &Statement,
        rows: &[Given<'_>],
    ) -> lockstep_client::Result<()> {
        let all: Vec<usize> = (0..table.columns.len()).collect();
        for rows in chunks(rows, MOST_ROWS) {
            let values = values(table, statement, &all, rows)?;
            let changed = self.scan(&statement.sql, values)?;
            self.count_missing(table, rows.len(), changed);
        }
        Ok(())
    }

    fn scan(&mut self, sql: &str, values: Vec<Option<CString>>) -> lockstep_client::Result<u64> {
        self.sent_bytes += bytes(&values);
        self.connection.execute(SCANS_ON)?;
        let changed = self.connection.change_with(sql, values)?;
        self.connection.execute(SCANS_OFF)?;
        Ok(changed)
    }

    fn prepare(
        &mut self,
        table: &Arc<Table>,
        verb: Verb,
        keeps: Vec<usize>,
    ) -> lockstep_client::Result<(String, Arc<Statement>)> {
        let which = (Arc::as_ptr(table) as usize, verb, keeps);
        if let Some(prepared) = self.prepared.get(&which) {
            return Ok((prepared.name.clone(), Arc::clone(&prepared.statement)));
        }
        self.make_room(1)?;
        self.named += 1;
        let name = format!("apply_{}", self.named);
        let statement = Arc::new(table.statement(verb, &which.2));
        self.connection.prepare(&name, &statement.sql)?;
        let prepared = Prepared {
            _table: Arc::clone(table),
            name: name.clone(),
            statement: Arc::clone(&statement),
        };
        self.prepared.insert(which, prepared);
        Ok((name, statement))
    }

    /// This number of statements can be prepared without any being forgotten.
    fn make_room(&mut self, more: usize) -> lockstep_client::Result<()> {
        if self.prepared.len() + more > MOST_PREPARED {
            self.connection.execute("DEALLOCATE ALL")?;
            self.prepared.clear();
            (self.ends, self.asks) = (false, false);
        }
        Ok(())
    }
}

/// A statement is prepared unless it has to look at all rows of the table.
fn is_prepared(table: &Table, verb: Verb) -> bool {
    verb == Verb::Insert || table.is_indexed()
}

/// Columns that a statement for these rows keeps of some of them.
fn kept(verb: Verb, rows: &[Given<'_>]) -> Vec<usize> {
    match verb {
        Verb::Update | Verb::Replace => keeps(rows),
        _ => Vec::new(),
    }
}

/// Bytes of a statement's values.
fn bytes(values: &[Option<CString>]) -> u64 {
    let values = values.iter().flatten();
    values.map(|value| value.as_bytes().len() as u64).sum()
}
