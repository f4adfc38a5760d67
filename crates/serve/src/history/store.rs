//! The file of the history: three tables of an embedded database.
//!
//! | table | key | value |
//! |---|---|---|
//! | `fine` | begin of 10 s, in ms since 1970 | the worst moments in them, as [`record`] has them |
//! | `coarse` | begin of 2 minutes | the same |
//! | `incidents` | number of the incident | JSON, and its CRC-32C |
//!
//! A commit is durable when it returns, and one that is cut off has never been: the database
//! keeps its old pages until then. The pages' own checksums are verified when the file is opened,
//! those of the values on every read. What does not match makes the file damaged: it is set aside
//! by whoever holds this, never changed or removed.
//!
//! Nothing here relies on a clock that only goes forward. A step is written as often as the clock
//! passes it, and keeps its worst moment. What is in the future is not shown, and goes first when
//! room is needed. A commit removes a few steps at most, so that a clock that was wrong for a
//! minute costs little.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use redb::{Database, ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction};
use thiserror::Error;

use super::incidents::{Incident, MOST_INCIDENTS};
use super::record::{Moments, decode, encode, keep_worst};

type Steps = TableDefinition<'static, i64, &'static [u8]>;

/// Milliseconds of a step of each table, and for how long the table is kept at most.
struct Tier {
    table: Steps,
    step_ms: i64,
    most_ms: i64,
}

/// Milliseconds of the shortest step.
pub const FINE_MS: i64 = 10_000;
const COARSE_MS: i64 = 120_000;
const DAY_MS: i64 = 86_400_000;

const FINE: Tier = Tier {
    table: TableDefinition::new("fine"),
    step_ms: FINE_MS,
    most_ms: DAY_MS,
};
const COARSE: Tier = Tier {
    table: TableDefinition::new("coarse"),
    step_ms: COARSE_MS,
    most_ms: i64::MAX,
};
const INCIDENTS: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("incidents");

/// Most incidents in the file.
const MOST_KEPT: u64 = 10_000;

/// Most steps that a commit removes from each table.
const MOST_REMOVED: usize = 64;

/// Memory for pages, in bytes.
const CACHE_BYTES: usize = 4 << 20;

/// The file grows to twice its size when it has no free page. So no more than this share of the
/// limit is filled.
const FILLED: f64 = 0.4;

/// After how many commits the pages in use are counted.
const COUNTED_EVERY: u32 = 30;

#[derive(Debug, Error)]
pub enum StoreError {
    /// What is in the file is not what was written.
    #[error("{0}")]
    Damaged(String),
    /// The disk or the folder refuses something, which may pass.
    #[error("{0}")]
    Failed(String),
}

type Result<T> = std::result::Result<T, StoreError>;

impl StoreError {
    fn of(error: impl Into<redb::Error>) -> Self {
        match error.into() {
            redb::Error::Io(error) => match error.kind() {
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                    Self::Damaged(error.to_string())
                }
                _ => Self::Failed(error.to_string()),
            },
            error @ (redb::Error::Corrupted(_)
            | redb::Error::UpgradeRequired(_)
            | redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. }) => Self::Damaged(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }

    fn value(table: &str, key: impl std::fmt::Display) -> Self {
        Self::Damaged(format!(
            "its table {table} does not match its checksum at {key}"
        ))
    }
}

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Time for which it is kept, in milliseconds.
    pub kept_ms: i64,
    /// Most bytes of the file.
    pub bytes: u64,
}

/// What a commit writes.
#[derive(Debug, Default)]
pub struct Batch {
    /// Moments by the begin of their step of [`FINE_MS`].
    pub steps: std::collections::BTreeMap<i64, Moments>,
    pub incidents: std::collections::BTreeMap<u64, Incident>,
}

#[derive(Debug)]
pub struct Store {
    database: Database,
    path: PathBuf,
    limits: Limits,
    commits: u32,
    /// More is filled than should be.
    is_over: bool,
}

impl Store {
    /// Opens the file, or makes it, and verifies all of it.
    pub fn open(path: &Path, limits: Limits) -> Result<Self> {
        let mut database = create(path)?;
        database.check_integrity().map_err(StoreError::of)?;
        let mut store = Self {
            database,
            path: path.to_owned(),
            limits,
            commits: 0,
            is_over: false,
        };
        // The tables are there from now on.
        let txn = store.database.begin_write().map_err(StoreError::of)?;
        for tier in [FINE, COARSE] {
            txn.open_table(tier.table).map_err(StoreError::of)?;
        }
        txn.open_table(INCIDENTS).map_err(StoreError::of)?;
        txn.commit().map_err(StoreError::of)?;
        store.fit()?;
        match store.bytes()? > limits.bytes {
            true => store.rewritten(),
            false => Ok(store),
        }
    }

    /// The store in a new file, since one that has grown keeps its size. The new file takes the
    /// place of the old one when all is in it.
    fn rewritten(self) -> Result<Self> {
        let failed = |error: io::Error| StoreError::Failed(error.to_string());
        let path = self.path.with_extension("redb.new");
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let database = create(&path)?;
        let from = self.database.begin_read().map_err(StoreError::of)?;
        let to = database.begin_write().map_err(StoreError::of)?;
        for tier in [FINE, COARSE] {
            let rows = from.open_table(tier.table).map_err(StoreError::of)?;
            let mut table = to.open_table(tier.table).map_err(StoreError::of)?;
            for row in rows.iter().map_err(StoreError::of)? {
                let (key, value) = row.map_err(StoreError::of)?;
                let added = table.insert(key.value(), value.value());
                added.map_err(StoreError::of)?;
            }
        }
        let rows = from.open_table(INCIDENTS).map_err(StoreError::of)?;
        let mut table = to.open_table(INCIDENTS).map_err(StoreError::of)?;
        for row in rows.iter().map_err(StoreError::of)? {
            let (key, value) = row.map_err(StoreError::of)?;
            let added = table.insert(key.value(), value.value());
            added.map_err(StoreError::of)?;
        }
        drop((rows, table));
        to.commit().map_err(StoreError::of)?;
        drop(from);
        fs::rename(&path, &self.path).map_err(failed)?;
        Ok(Self { database, ..self })
    }

    /// Removes steps of a file that was written with a larger limit.
    fn fit(&mut self) -> Result<()> {
        self.is_over = self.count()?;
        while self.is_over {
            let txn = self.database.begin_write().map_err(StoreError::of)?;
            make_room(&txn, None)?;
            txn.commit().map_err(StoreError::of)?;
            self.is_over = self.count()?;
        }
        Ok(())
    }

    /// Size of the file.
    pub fn bytes(&self) -> Result<u64> {
        let about = fs::metadata(&self.path);
        let about = about.map_err(|error| StoreError::Failed(error.to_string()))?;
        Ok(about.len())
    }

    /// Writes what is new, and removes what is too old or too much.
    pub fn write(&mut self, batch: &Batch, now_ms: i64) -> Result<()> {
        let txn = self.database.begin_write().map_err(StoreError::of)?;
        for tier in [FINE, COARSE] {
            add_steps(&txn, &tier, batch)?;
            remove_old(&txn, &tier, now_ms, self.limits)?;
        }
        if self.is_over {
            make_room(&txn, Some(now_ms))?;
        }
        write_incidents(&txn, batch, now_ms.saturating_sub(self.limits.kept_ms))?;
        txn.commit().map_err(StoreError::of)?;
        self.commits += 1;
        if self.is_over || self.commits % COUNTED_EVERY == 0 {
            self.is_over = self.count()?;
        }
        Ok(())
    }

    /// Whether more is filled than should be, and something is left to remove.
    fn count(&self) -> Result<bool> {
        let txn = self.database.begin_write().map_err(StoreError::of)?;
        let stats = txn.stats().map_err(StoreError::of)?;
        let filled = stats.allocated_pages() * stats.page_size() as u64;
        txn.abort().map_err(StoreError::of)?;
        let is_empty = self.oldest_ms()?.is_none();
        Ok(filled as f64 > self.limits.bytes as f64 * FILLED && !is_empty)
    }

    /// The begin of the oldest step.
    pub fn oldest_ms(&self) -> Result<Option<i64>> {
        let txn = self.database.begin_read().map_err(StoreError::of)?;
        let fine = txn.open_table(FINE.table).map_err(StoreError::of)?;
        let coarse = txn.open_table(COARSE.table).map_err(StoreError::of)?;
        let both = [ends(&fine)?, ends(&coarse)?].into_iter().flatten();
        Ok(both.map(|(first_ms, _)| first_ms).min())
    }

    /// Calls `each` with the moments after `since_ms` and before `until_ms`, the oldest first, in
    /// steps that are no longer than `step_ms` where there are such.
    pub fn read(
        &self,
        since_ms: i64,
        until_ms: i64,
        step_ms: i64,
        mut each: impl FnMut(String, lockstep_lag::monitor::Moment),
    ) -> Result<()> {
        let txn = self.database.begin_read().map_err(StoreError::of)?;
        let fine = txn.open_table(FINE.table).map_err(StoreError::of)?;
        let coarse = txn.open_table(COARSE.table).map_err(StoreError::of)?;
        let first = fine.first().map_err(StoreError::of)?;
        let first_ms = first.map_or(until_ms, |(key, _)| key.value());
        let split_ms = if step_ms < COARSE_MS {
            first_ms
        } else {
            until_ms
        };
        for (table, tier, from_ms, to_ms) in [
            (&coarse, COARSE, since_ms, until_ms.min(split_ms)),
            (&fine, FINE, since_ms.max(split_ms), until_ms),
        ] {
            let begin_ms = from_ms.saturating_sub(tier.step_ms);
            if begin_ms >= to_ms {
                continue;
            }
            for step in table.range(begin_ms..to_ms).map_err(StoreError::of)? {
                let (key, value) = step.map_err(StoreError::of)?;
                let moments = decode(key.value(), value.value());
                let moments =
                    moments.ok_or_else(|| StoreError::value(tier.table_name(), key.value()))?;
                for (id, moment) in moments {
                    if moment.at_ms > since_ms && moment.at_ms < to_ms {
                        each(id, moment);
                    }
                }
            }
        }
        Ok(())
    }

    /// The newest incidents, the oldest first.
    pub fn incidents(&self) -> Result<Vec<Incident>> {
        let txn = self.database.begin_read().map_err(StoreError::of)?;
        let table = txn.open_table(INCIDENTS).map_err(StoreError::of)?;
        let mut found = Vec::new();
        for row in table.iter().map_err(StoreError::of)?.rev() {
            let (key, value) = row.map_err(StoreError::of)?;
            let incident = incident(value.value());
            found.push(incident.ok_or_else(|| StoreError::value("incidents", key.value()))?);
            if found.len() == MOST_INCIDENTS {
                break;
            }
        }
        found.reverse();
        Ok(found)
    }
}

fn create(path: &Path) -> Result<Database> {
    let mut builder = Database::builder();
    let database = builder.set_cache_size(CACHE_BYTES).create(path);
    database.map_err(StoreError::of)
}

impl Tier {
    fn table_name(&self) -> &'static str {
        match self.step_ms {
            FINE_MS => "fine",
            _ => "coarse",
        }
    }
}

fn add_steps(txn: &WriteTransaction, tier: &Tier, batch: &Batch) -> Result<()> {
    let mut table = txn.open_table(tier.table).map_err(StoreError::of)?;
    for (begin_ms, moments) in &batch.steps {
        let step_ms = begin_ms.div_euclid(tier.step_ms) * tier.step_ms;
        let mut kept = match table.get(step_ms).map_err(StoreError::of)? {
            Some(value) => decode(step_ms, value.value())
                .ok_or_else(|| StoreError::value(tier.table_name(), step_ms))?,
            None => Moments::new(),
        };
        for (id, moment) in moments {
            keep_worst(&mut kept, id, moment);
        }
        let bytes = encode(step_ms, &kept);
        table
            .insert(step_ms, bytes.as_slice())
            .map_err(StoreError::of)?;
    }
    Ok(())
}

/// Removes steps that are older than they may be, and those that are as far in the future.
fn remove_old(txn: &WriteTransaction, tier: &Tier, now_ms: i64, limits: Limits) -> Result<()> {
    let mut table = txn.open_table(tier.table).map_err(StoreError::of)?;
    let kept_ms = limits.kept_ms.min(tier.most_ms);
    for _ in 0..MOST_REMOVED {
        let Some((first_ms, last_ms)) = ends(&table)? else {
            break;
        };
        let removed_ms = match () {
            () if first_ms < now_ms.saturating_sub(kept_ms) => first_ms,
            () if last_ms > now_ms.saturating_add(kept_ms) => last_ms,
            () => break,
        };
        table.remove(removed_ms).map_err(StoreError::of)?;
    }
    Ok(())
}

/// Removes the oldest steps, of whichever table, but those in the future before them.
fn make_room(txn: &WriteTransaction, now_ms: Option<i64>) -> Result<()> {
    let mut fine = txn.open_table(FINE.table).map_err(StoreError::of)?;
    let mut coarse = txn.open_table(COARSE.table).map_err(StoreError::of)?;
    for _ in 0..MOST_REMOVED {
        let (in_fine, in_coarse) = (ends(&fine)?, ends(&coarse)?);
        let first = |ends: Option<(i64, i64)>| ends.map_or(i64::MAX, |(first, _)| first);
        let future = |ends: Option<(i64, i64)>| {
            let (_, last) = ends?;
            now_ms.filter(|now_ms| last > *now_ms).map(|_| last)
        };
        let is_coarse = first(in_coarse) <= first(in_fine);
        let (table, removed_ms) = match (future(in_fine), future(in_coarse)) {
            (Some(last), _) => (&mut fine, last),
            (None, Some(last)) => (&mut coarse, last),
            _ if in_fine.is_none() && in_coarse.is_none() => break,
            _ if is_coarse => (&mut coarse, first(in_coarse)),
            _ => (&mut fine, first(in_fine)),
        };
        table.remove(removed_ms).map_err(StoreError::of)?;
    }
    Ok(())
}

/// The first and the last key.
fn ends(table: &impl ReadableTable<i64, &'static [u8]>) -> Result<Option<(i64, i64)>> {
    let first = table.first().map_err(StoreError::of)?;
    let Some(first_ms) = first.map(|(key, _)| key.value()) else {
        return Ok(None);
    };
    let last = table.last().map_err(StoreError::of)?;
    Ok(last.map(|(key, _)| (first_ms, key.value())))
}

fn write_incidents(txn: &WriteTransaction, batch: &Batch, begin_ms: i64) -> Result<()> {
    let mut table = txn.open_table(INCIDENTS).map_err(StoreError::of)?;
    for (id, incident) in &batch.incidents {
        let json = serde_json::to_vec(incident);
        let mut bytes = json.map_err(|error| StoreError::Failed(error.to_string()))?;
        let sum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        table.insert(id, bytes.as_slice()).map_err(StoreError::of)?;
    }
    for _ in 0..MOST_REMOVED {
        let first = table.first().map_err(StoreError::of)?;
        let Some((id, value)) = first.map(|(key, value)| (key.value(), incident(value.value())))
        else {
            break;
        };
        let is_old = value.is_none_or(|one| one.seen_ms < begin_ms);
        if !is_old && table.len().map_err(StoreError::of)? <= MOST_KEPT {
            break;
        }
        table.remove(id).map_err(StoreError::of)?;
    }
    Ok(())
}

fn incident(bytes: &[u8]) -> Option<Incident> {
    let (json, sum) = bytes.split_last_chunk::<4>()?;
    let is_whole = crc32c::crc32c(json) == u32::from_le_bytes(*sum);
    is_whole.then(|| serde_json::from_slice(json).ok())?
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
