//! The sessions that copy: each worker has one on the source, all with one snapshot, and one on the
//! target, and takes one [`Unit`] after the other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::quote::sql_literal;
use lockstep_client::{ClientError, Connection, Conninfo, CopyIn, CopyOut, MOST_SENT, Purpose};
use lockstep_wire::Lsn;

use super::bandwidth::Limit;
use super::fit::fit;
use super::plan::{Unit, plan};
use super::progress::{Counters, Moment};
use super::tables::Table;
use crate::error::{ReplicaError, Result};
use crate::state::failpoint;
use crate::state::{APPLICATION, copied_sql, copying_sql};
use lockstep_apply::sessions::{self, SILENT};

/// Interval of reports of progress.
const TOLD_EVERY: Duration = Duration::from_millis(500);

/// Longest silence of a server while rows are copied.
const SILENCE: Duration = Duration::from_secs(3600);

/// Text that means the same on both servers; an error rather than rows that row security hides. Whoever
/// waits to change a table waits for the locks of the creation, and a copy that begins then waits for them,
/// where the server sees no deadlock: so a copy waits only for a time.
const SOURCE_SESSION: &str = "SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; \
    SET extra_float_digits = 3; SET row_security = off; SET lock_timeout = '10s';";

/// The commit that ends the copy waits for the disk; those before need not.
const TARGET_SESSION: &str = "SET synchronous_commit = off";

/// What is copied, from where to where.
pub struct CopyWork<'a> {
    pub replica: &'a str,
    pub source: &'a Conninfo,
    pub target: &'a Conninfo,
    pub snapshot: &'a str,
    /// What the snapshot sees has committed before.
    pub start: Lsn,
    pub tables: &'a [Table],
    pub jobs: usize,
    pub bytes_per_s: Option<u64>,
}

/// Opens a session on the source with a snapshot, in a transaction.
pub fn source_session(source: &Conninfo, snapshot: &str) -> Result<Connection> {
    let connected = || -> Result<Connection, ClientError> {
        let mut session = sessions::open(source, Purpose::Sql, APPLICATION)?;
        session.set_patience(SILENCE);
        session.execute(SOURCE_SESSION)?;
        session.execute(&format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}",
            sql_literal("snapshot", snapshot)?
        ))?;
        Ok(session)
    };
    connected().map_err(ReplicaError::Source)
}

/// Opens a session on the target.
pub fn target_session(target: &Conninfo) -> Result<Connection> {
    let connected = || -> Result<Connection, ClientError> {
        let mut session = sessions::open(target, Purpose::Sql, APPLICATION)?;
        session.set_patience(SILENCE);
        session.execute(TARGET_SESSION)?;
        Ok(session)
    };
    connected().map_err(ReplicaError::Target)
}

/// A table that several sessions load.
#[derive(Debug, Default)]
struct Ranges {
    left: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
}

/// What all workers share.
struct Shared<'a> {
    work: &'a CopyWork<'a>,
    units: Mutex<VecDeque<Unit>>,
    /// One for each table.
    ranges: Vec<Ranges>,
    counters: Counters,
    limit: Limit,
    stop: AtomicBool,
}

/// Copies all rows into tables that fit. `tell` is called while it goes on, and once at its end.
pub fn copy(work: &CopyWork, tell: &mut dyn FnMut(&Moment)) -> Result<Moment> {
    let mut tables = work.tables.to_vec();
    fit(work.target, &mut tables)?;
    let work = CopyWork {
        tables: &tables,
        ..*work
    };
    copy_fitted(&work, tell)
}

fn copy_fitted(work: &CopyWork, tell: &mut dyn FnMut(&Moment)) -> Result<Moment> {
    let started = Instant::now();
    let units = plan(work.tables, work.jobs);
    let workers = work.jobs.min(units.len());
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let shared = Shared {
        work,
        ranges: work.tables.iter().map(|_| Ranges::default()).collect(),
        counters: Counters::new(
            count(work.tables.len()),
            work.tables.iter().map(|table| table.bytes).sum(),
        ),
        limit: Limit::new(work.bytes_per_s),
        stop: AtomicBool::new(false),
        units: Mutex::new(VecDeque::new()),
    };
    announce_ranges(&shared, &units)?;
    *shared.units.lock().unwrap_or_else(PoisonError::into_inner) = units.into();
    let mut result = Ok(());
    thread::scope(|scope| {
        let (ended, ends) = mpsc::channel();
        for _ in 0..workers {
            let (ended, shared) = (ended.clone(), &shared);
            scope.spawn(move || {
                let done = worker(shared);
                if done.is_err() {
                    shared.stop.store(true, Ordering::Relaxed);
                }
                // The receiver outlives the workers.
                let _ = ended.send(done);
            });
        }
        drop(ended);
        loop {
            match ends.recv_timeout(TOLD_EVERY) {
                Ok(Ok(())) => {}
                // The first error is the cause; others follow from the stop.
                Ok(Err(error)) if result.is_ok() => result = Err(error),
                Ok(Err(_)) => {}
                Err(RecvTimeoutError::Timeout) => tell(&shared.counters.at(started.elapsed())),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    let moment = shared.counters.at(started.elapsed());
    tell(&moment);
    result.map(|()| moment)
}

/// Says of each table that is split that it is being copied, before any row of it is there.
fn announce_ranges(shared: &Shared, units: &[Unit]) -> Result<()> {
    let mut statements = Vec::new();
    for unit in units {
        let Unit::Range { table: place, .. } = unit else {
            continue;
        };
        let (Some(ranges), Some(table)) =
            (shared.ranges.get(*place), shared.work.tables.get(*place))
        else {
            continue;
        };
        if ranges.left.fetch_add(1, Ordering::Relaxed) == 0 {
            let sql = copying_sql(shared.work.replica, &table.name);
            statements.push(sql.map_err(ReplicaError::Target)?);
        }
    }
    if statements.is_empty() {
        return Ok(());
    }
    let mut target = target_session(shared.work.target)?;
    // Rows of the tables must not be on disk before this is.
    let sql = format!("SET synchronous_commit = on; {}", statements.join("; "));
    target.execute(&sql).map_err(ReplicaError::Target)
}

fn worker(shared: &Shared) -> Result<()> {
    let mut source = source_session(shared.work.source, shared.work.snapshot)?;
    let mut target = target_session(shared.work.target)?;
    // A copy that comes later than the first meets triggers and foreign keys.
    target.execute(SILENT).map_err(ReplicaError::Target)?;
    while !shared.stop.load(Ordering::Relaxed) {
        let next = {
            let mut units = shared.units.lock().unwrap_or_else(PoisonError::into_inner);
            units.pop_front()
        };
        match next {
            None => break,
            Some(Unit::Together(places)) => {
                together(shared, (&places, false), &mut source, &mut target)?;
            }
            Some(Unit::Frozen(places)) => {
                together(shared, (&places, true), &mut source, &mut target)?;
            }
            Some(Unit::Range { table, from, to }) => {
                range(shared, table, (from, to), &mut source, &mut target)?;
            }
        }
    }
    Ok(())
}

/// Copies tables: one string of statements on each side, one transaction on the target. To be `frozen`, a
/// table must have been emptied in the same transaction.
fn together(
    shared: &Shared,
    (places, frozen): (&[usize], bool),
    source: &mut Connection,
    target: &mut Connection,
) -> Result<()> {
    let tables: Vec<&Table> = places
        .iter()
        .filter_map(|place| shared.work.tables.get(*place))
        .collect();
    let Some(first) = tables.first() else {
        return Ok(());
    };
    let joined = |command: &dyn Fn(&Table) -> String| -> String {
        let commands: Vec<_> = tables.iter().map(|table| command(table)).collect();
        commands.join("; ")
    };
    let copy_in = |table: &Table| match frozen {
        true => format!(
            "TRUNCATE ONLY {}; {}",
            table.name.sql(),
            table.copy_in(true)
        ),
        false => table.copy_in(false),
    };
    let mut from = source
        .copy_out(&joined(&|table| table.copy_out(None)))
        .map_err(|error| of_table(first, ReplicaError::Source(error)))?;
    let mut to = target
        .copy_in(&format!("BEGIN; {}", joined(&copy_in)))
        .map_err(|error| of_table(first, ReplicaError::Target(error)))?;
    let mut copied = Vec::new();
    for table in &tables {
        let bytes = pump(shared, &mut from, &mut to, table.bytes);
        let bytes = bytes.map_err(|error| of_table(table, error))?;
        let next = from.next_copy();
        next.map_err(|error| of_table(table, ReplicaError::Source(error)))?;
        let next = to.next_copy();
        next.map_err(|error| of_table(table, ReplicaError::Target(error)))?;
        shared.counters.rows(to.rows());
        copied.push((&table.name, to.rows(), bytes));
        shared.counters.sent(0, table.bytes.saturating_sub(bytes));
    }
    drop((from, to));
    commit(shared, target, &copied)?;
    shared
        .counters
        .tables(u64::try_from(tables.len()).unwrap_or(u64::MAX));
    Ok(())
}

/// Copies a range of a table's blocks.
fn range(
    shared: &Shared,
    place: usize,
    blocks: (u64, Option<u64>),
    source: &mut Connection,
    target: &mut Connection,
) -> Result<()> {
    let (Some(table), Some(ranges)) = (shared.work.tables.get(place), shared.ranges.get(place))
    else {
        return Ok(());
    };
    let (rows, bytes) = blocks_of(shared, table, blocks, source, target)?;
    failpoint::COPY_RANGE.reach();
    let rows = ranges.rows.fetch_add(rows, Ordering::Relaxed) + rows;
    let bytes = ranges.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
    // The last one sees what the others have added: each adds before it counts down.
    if ranges.left.fetch_sub(1, Ordering::AcqRel) == 1 {
        let rows = rows.max(ranges.rows.load(Ordering::Relaxed));
        let bytes = bytes.max(ranges.bytes.load(Ordering::Relaxed));
        let sql = copied_sql(
            shared.work.replica,
            shared.work.start,
            &[(&table.name, rows, bytes)],
        );
        let done = sql.and_then(|sql| target.execute(&sql));
        done.map_err(ReplicaError::Target)?;
        shared.counters.tables(1);
    }
    Ok(())
}

/// The copy of a range. Returns its rows and bytes.
fn blocks_of(
    shared: &Shared,
    table: &Table,
    blocks: (u64, Option<u64>),
    source: &mut Connection,
    target: &mut Connection,
) -> Result<(u64, u64)> {
    let before = |block: u64| {
        let share = u128::from(table.bytes) * u128::from(block);
        u64::try_from(share / u128::from(table.blocks.max(1))).unwrap_or(u64::MAX)
    };
    let (from, to) = blocks;
    let weight = before(to.unwrap_or(table.blocks)).saturating_sub(before(from));
    let mut copied = || -> Result<(u64, u64)> {
        let mut from = source
            .copy_out(&table.copy_out(Some(blocks)))
            .map_err(ReplicaError::Source)?;
        let mut to = target
            .copy_in(&table.copy_in(false))
            .map_err(ReplicaError::Target)?;
        let bytes = pump(shared, &mut from, &mut to, weight)?;
        from.finish().map_err(ReplicaError::Source)?;
        let rows = to.finish().map_err(ReplicaError::Target)?;
        shared.counters.rows(rows);
        shared.counters.sent(0, weight.saturating_sub(bytes));
        Ok((rows, bytes))
    };
    copied().map_err(|error| of_table(table, error))
}

/// Moves one copy's data. Rows are gathered, so that the target gets few large messages: each costs
/// it as much as some rows. Of the table's size on disk at most `weight` counts as done.
fn pump(shared: &Shared, from: &mut CopyOut, to: &mut CopyIn, weight: u64) -> Result<u64> {
    let mut gathered = Vec::with_capacity(MOST_SENT);
    let mut total = 0;
    loop {
        let data = from.next().map_err(ReplicaError::Source)?;
        let ended = data.is_none();
        if let Some(data) = data {
            if gathered.len() + data.len() <= MOST_SENT {
                gathered.extend_from_slice(&data);
                continue;
            }
            send(shared, to, &gathered, &mut total, weight)?;
            gathered.clear();
            match data.len() < MOST_SENT {
                true => gathered.extend_from_slice(&data),
                // A large row is not copied once more.
                false => send(shared, to, &data, &mut total, weight)?,
            }
        }
        if ended {
            send(shared, to, &gathered, &mut total, weight)?;
            return Ok(total);
        }
    }
}

fn send(
    shared: &Shared,
    to: &mut CopyIn,
    bytes: &[u8],
    total: &mut u64,
    weight: u64,
) -> Result<()> {
    if shared.stop.load(Ordering::Relaxed) {
        return Err(ReplicaError::State(
            "another table's copy has failed".to_owned(),
        ));
    }
    shared.limit.take(bytes.len());
    to.send(bytes).map_err(ReplicaError::Target)?;
    let bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let counted = weight.saturating_sub(*total).min(bytes);
    *total += bytes;
    shared.counters.sent(bytes, counted);
    Ok(())
}

/// Commits tables with the row of the state that says so.
fn commit(
    shared: &Shared,
    target: &mut Connection,
    copied: &[(&crate::names::TableName, u64, u64)],
) -> Result<()> {
    let sql = copied_sql(shared.work.replica, shared.work.start, copied);
    let done = sql.and_then(|sql| target.execute(&format!("{sql}; COMMIT")));
    done.map_err(ReplicaError::Target)?;
    failpoint::COPY_TABLE.reach();
    Ok(())
}

fn of_table(table: &Table, error: ReplicaError) -> ReplicaError {
    ReplicaError::Table {
        table: table.name.to_string(),
        error: Box::new(error),
    }
}
