//! Compares tables at one moment, in parallel by ranges.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::thread;

use lockstep_client::{ClientError, Connection, Purpose, field};

use super::besides;
use super::locked::{self, Table, is_not_there};
use super::moment::{APPLICATION, Snapshots};
use super::statements::{
    ByValue, ColumnType, Hash, PROBE, PUBLISHED, Published, Range, Side, TYPES, UNLISTED, ranges,
};
use super::{
    Difference, DifferenceKind, MOST_NAMED, Options, Report, Result, TableReport, VerifyError,
};
use crate::names::{Excluded, TableName, quoted};
use crate::state::json_array;
use crate::status::lost::{names_of, sequences};
use lockstep_apply::{Catalog, Others, catalog, sessions};

/// What is compared at once.
#[derive(Debug)]
enum Piece {
    /// A range of a table, by the table's place.
    Range(usize, Range),
    /// Small tables, by their places.
    Tables(Vec<usize>),
}

/// Most tables that are compared at once: a session has a lock of each, and of its indexes.
const TOGETHER: usize = 50;

/// Compares all published tables.
pub fn tables(options: &Options, moment: &Snapshots) -> Result<Report> {
    let mut source = moment.source(options)?;
    let tables = list(&mut source, &options.publications).map_err(locked_by_others)?;
    let changed = unlisted(&mut source, &options.publications).map_err(VerifyError::Source)?;
    let mut catalog = catalog(options)?;
    let mut tables = replicated(&mut catalog, tables, |table| (table.oid, &table.table))?;
    let changed = replicated(&mut catalog, changed, |table| (0, table))?;
    drop(catalog);
    // One that is published under another name now is found changed when it is read.
    let is_listed = |name: &TableName| tables.iter().any(|table| table.table == *name);
    let changed = changed.into_iter().filter(|name| !is_listed(name));
    let changed = changed.collect();
    let mut target = moment.target(options)?;
    find_by_value((&mut source, &mut target), &mut tables)?;
    let besides = besides::find(options, (&mut source, &mut target), (&tables, changed))?;
    let hash = common_hash(&mut source, &mut target)?;
    drop(target);
    let mut pieces = pieces(&mut source, &tables, options)?;
    let excluded = match &options.starts.others {
        Others::All => Excluded::default(),
        Others::LaterPartitions(excluded) => excluded.clone(),
    };
    let sequences = sequences(&mut source, &excluded).map_err(VerifyError::Source)?;
    drop(source);
    pieces.reverse();
    let found = compare_pieces(options, moment, (&tables, hash), pieces)?;
    let report = |(table, found): (Published, Found)| {
        let mut differences = found.differences;
        differences.extend(found.whole.map(Difference::of_table));
        TableReport::new(table.table, table.key, found.rows, differences)
    };
    let compared = tables.into_iter().zip(found).map(report);
    let mut tables: Vec<_> = compared.chain(besides).collect();
    tables.sort_by(|one, other| one.table.cmp(&other.table));
    Ok(Report {
        lsn: moment.lsn,
        publication: None,
        tables,
        sequences,
        unmade: Vec::new(),
    })
}

/// From 16 on the server opens each published table to list it.
fn locked_by_others(error: ClientError) -> VerifyError {
    match locked::is_busy(&error) {
        false => VerifyError::Source(error),
        true => VerifyError::NoMoment(
            "source: a published table is locked by others (ACCESS EXCLUSIVE), so that the publication's \
             tables cannot be listed; repeat the command once they are done, or wait longer (--wait)"
                .to_owned(),
        ),
    }
}

fn list(
    source: &mut Connection,
    publications: &[String],
) -> lockstep_client::Result<Vec<Published>> {
    let names: Vec<_> = publications.iter().map(|name| quoted(name)).collect();
    let names = format!("{{{}}}", names.join(","));
    let rows = source.query_with(PUBLISHED, &[&names])?;
    let mut tables: Vec<Published> = Vec::new();
    for row in rows {
        let columns = names_of(&row, 5)?;
        // What a column that is not published holds on the target names no row.
        let key = names_of(&row, 6)?;
        let key = match key.iter().all(|name| columns.contains(name)) {
            true => key,
            false => Vec::new(),
        };
        let table = Published {
            oid: field(&row, 8)?,
            table: TableName {
                schema: field(&row, 0)?,
                table: field(&row, 1)?,
            },
            filter: field(&row, 2)?,
            partitioned: field(&row, 3)?,
            estimate: field(&row, 4)?,
            columns,
            key,
            is_ordered: field::<Option<bool>>(&row, 7)?.unwrap_or(false),
            by_value: BTreeMap::new(),
        };
        // A table in two publications is published as the wider of both; they rarely differ.
        if tables.last().is_none_or(|last| last.table != table.table) {
            tables.push(table);
        }
    }
    Ok(tables)
}

/// Finds the columns that are to be compared by value.
fn find_by_value(
    (source, target): (&mut Connection, &mut Connection),
    tables: &mut [Published],
) -> Result<()> {
    let names: Vec<_> = (tables.iter())
        .map(|one| (&one.table.schema, &one.table.table))
        .collect();
    let names = serde_json::json!(names).to_string();
    let here = types(source, &names).map_err(VerifyError::Source)?;
    let there = types(target, &names).map_err(VerifyError::Target)?;
    for table in tables {
        let sides = here.get(&table.table).zip(there.get(&table.table));
        let Some((here, there)) = sides else {
            continue;
        };
        let by_value = |name: &String| ByValue::of(*here.get(name)?, *there.get(name)?);
        let columns = table.columns.iter();
        let found = columns.filter_map(|name| Some((name.clone(), by_value(name)?)));
        table.by_value = found.collect();
    }
    Ok(())
}

/// Types of tables' columns, by names.
type Types = HashMap<TableName, HashMap<String, ColumnType>>;

fn types(side: &mut Connection, names: &str) -> lockstep_client::Result<Types> {
    let mut types = Types::new();
    for row in side.query_with(TYPES, &[&names])? {
        let text: String = field(&row, 2)?;
        let columns: Vec<(String, u32, i32)> = serde_json::from_str(&text)
            .map_err(|error| ClientError::Protocol(format!("\"{text}\": {error}")))?;
        let columns = columns.into_iter();
        let table = TableName {
            schema: field(&row, 0)?,
            table: field(&row, 1)?,
        };
        types.insert(
            table,
            columns
                .map(|(name, oid, more)| (name, (oid, more)))
                .collect(),
        );
    }
    Ok(types)
}

/// Tables that were published at the moment, and that are no longer found by their names.
fn unlisted(
    source: &mut Connection,
    publications: &[String],
) -> lockstep_client::Result<Vec<TableName>> {
    let rows = source.query_with(UNLISTED, &[&json_array(publications)])?;
    let name = |row: &Vec<Option<String>>| {
        Ok(TableName {
            schema: field(row, 0)?,
            table: field(row, 1)?,
        })
    };
    rows.iter().map(name).collect()
}

/// What says which tables apply replicates.
fn catalog(options: &Options) -> Result<Catalog> {
    let opened = || -> lockstep_client::Result<_> {
        let mut session = sessions::open(&options.target, Purpose::Sql, APPLICATION)?;
        catalog::ready(&mut session)?;
        Ok(session)
    };
    let session = opened().map_err(VerifyError::Target)?;
    Ok(Catalog::of((session, options.starts.clone())))
}

/// The tables that apply replicates into tables of their names. `which`: a table's OID on the source, 0 if
/// that is not known, and its name.
fn replicated<T>(
    catalog: &mut Catalog,
    tables: Vec<T>,
    which: impl Fn(&T) -> (u32, &TableName),
) -> Result<Vec<T>> {
    if tables.is_empty() {
        return Ok(tables);
    }
    let asked: Vec<_> = tables.iter().map(&which).collect();
    let replicated = catalog.are_replicated(&asked)?;
    let kept = tables.into_iter().zip(replicated);
    Ok(kept
        .filter_map(|(table, kept)| kept.then_some(table))
        .collect())
}

/// What gives the same for the same text on both sides.
fn common_hash(source: &mut Connection, target: &mut Connection) -> Result<Hash> {
    let ours = source.query_one(PROBE).map_err(VerifyError::Source)?;
    let theirs = target.query_one(PROBE).map_err(VerifyError::Target)?;
    Ok(match ours == theirs {
        true => Hash::OfServer,
        false => Hash::OfUtf8,
    })
}

/// Cuts large tables into ranges, and puts small ones together, so that there are several pieces for each
/// session: those of which the statistics know nothing may be large.
fn pieces(source: &mut Connection, tables: &[Published], options: &Options) -> Result<Vec<Piece>> {
    let rows = options.range_rows;
    let together = (tables.len() / (4 * options.jobs.max(1))).clamp(1, TOGETHER);
    let mut pieces = Vec::new();
    let (mut small, mut small_rows) = (Vec::new(), 0);
    for (place, table) in tables.iter().enumerate() {
        if table.partitioned || table.estimate > rows {
            let cuts = cuts(source, table, rows).map_err(VerifyError::Source)?;
            let ranges = ranges(cuts).into_iter();
            pieces.extend(ranges.map(|range| Piece::Range(place, range)));
            continue;
        }
        if small.len() == together || small_rows + table.estimate > rows {
            pieces.push(Piece::Tables(std::mem::take(&mut small)));
            small_rows = 0;
        }
        small.push(place);
        small_rows += table.estimate;
    }
    if !small.is_empty() {
        pieces.push(Piece::Tables(small));
    }
    Ok(pieces)
}

fn cuts(
    source: &mut Connection,
    table: &Published,
    rows: u64,
) -> lockstep_client::Result<Vec<String>> {
    let Some(sql) = table.cuts(rows) else {
        return Ok(Vec::new());
    };
    // What has come into its place is not read, and found when the table is compared.
    let rows = locked::read(source, table, |source| source.query(&sql))?.unwrap_or_default();
    rows.iter().map(|row| field(row, 0)).collect()
}

/// What was found in a table so far.
#[derive(Debug, Clone, Default)]
struct Found {
    rows: u64,
    /// One more than are named is enough to know that there are more.
    differences: Vec<Difference>,
    /// What is said of the whole table; then the rest of it is not compared.
    whole: Option<DifferenceKind>,
}

impl Found {
    fn of_table(kind: DifferenceKind) -> Self {
        Self {
            whole: Some(kind),
            ..Self::default()
        }
    }

    fn add(&mut self, piece: Self) {
        self.rows += piece.rows;
        let room = (MOST_NAMED + 1).saturating_sub(self.differences.len());
        (self.differences).extend(piece.differences.into_iter().take(room));
        self.whole = self.whole.or(piece.whole);
    }
}

fn compare_pieces(
    options: &Options,
    moment: &Snapshots,
    (tables, hash): (&[Published], Hash),
    pieces: Vec<Piece>,
) -> Result<Vec<Found>> {
    let jobs = options.jobs.clamp(1, pieces.len().max(1));
    let left = Mutex::new(pieces);
    let found = Mutex::new(vec![Found::default(); tables.len()]);
    let work = || -> Result<()> {
        let mut sides = Sides {
            source: moment.source(options)?,
            target: moment.target(options)?,
            hash,
        };
        loop {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let (places, range) = match next {
                None => return Ok(()),
                Some(Piece::Range(place, range)) => (vec![place], Some(range)),
                Some(Piece::Tables(places)) => (places, None),
            };
            let found = || found.lock().unwrap_or_else(PoisonError::into_inner);
            let is_left =
                |place: &usize| (found().get(*place)).is_some_and(|it| it.whole.is_none());
            let left: Vec<_> = places.into_iter().filter(is_left).collect();
            let which: Vec<_> = left.iter().filter_map(|place| tables.get(*place)).collect();
            let pieces = sides.compare_all(&which, &range.unwrap_or_default())?;
            for (place, piece) in left.iter().zip(pieces) {
                if let Some(of_table) = found().get_mut(*place) {
                    of_table.add(piece);
                }
            }
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Number of rows and sum of their hashes, by bucket.
type Buckets = BTreeMap<i32, (u64, String)>;

/// Hashes of rows by the rows' names; several if rows have no key.
type Rows = BTreeMap<String, Vec<String>>;

struct Sides {
    source: Connection,
    target: Connection,
    hash: Hash,
}

impl Sides {
    /// Compares a range of tables, together if that is quick.
    fn compare_all(&mut self, tables: &[&Published], range: &Range) -> Result<Vec<Found>> {
        if tables.len() > 1 {
            if let Some(found) = self.compare_together(tables, range)? {
                return Ok(found);
            }
        }
        tables
            .iter()
            .map(|table| self.compare(table, range))
            .collect()
    }

    /// None if not all of it is as it was, or it takes too long: then nothing was compared.
    fn compare_together(
        &mut self,
        tables: &[&Published],
        range: &Range,
    ) -> Result<Option<Vec<Found>>> {
        if !locked::begin_all(&mut self.source, tables).map_err(VerifyError::Source)? {
            return Ok(None);
        }
        if !locked::begin_all(&mut self.target, tables).map_err(VerifyError::Target)? {
            locked::end_all(&mut self.source, tables, true).map_err(VerifyError::Source)?;
            return Ok(None);
        }
        let found = tables.iter().map(|table| self.read(table, range));
        let found = found.collect::<Result<Vec<_>>>();
        let is_refused = match &found {
            Ok(_) => false,
            Err(VerifyError::Source(error) | VerifyError::Target(error)) => {
                error.refusal().is_some()
            }
            Err(VerifyError::NoMoment(_)) => false,
        };
        if found.is_err() && !is_refused {
            return found.map(Some);
        }
        let ours = locked::end_all(&mut self.source, tables, is_refused);
        let theirs = locked::end_all(&mut self.target, tables, is_refused);
        let same = ours.map_err(VerifyError::Source)? && theirs.map_err(VerifyError::Target)?;
        Ok(found.ok().filter(|_| same))
    }

    /// Compares a range of a table if that is, on both sides, what it was at the moment, before and
    /// after.
    fn compare(&mut self, table: &Published, range: &Range) -> Result<Found> {
        if let Some(kind) = self.begin(table)? {
            return Ok(Found::of_table(kind));
        }
        let found = self.read(table, range);
        let is_same = self.end(table, found.is_err());
        match (found, is_same) {
            (Ok(found), Ok(true)) => Ok(found),
            (_, Ok(false)) => Ok(Found::of_table(DifferenceKind::NotCompared)),
            // A column that was renamed meanwhile.
            (Err(VerifyError::Source(error)), Ok(true)) if is_not_there(&error) => {
                Ok(Found::of_table(DifferenceKind::NotCompared))
            }
            (Err(VerifyError::Target(error)), Ok(true)) if is_not_there(&error) => {
                Ok(Found::of_table(DifferenceKind::NoTable))
            }
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
        }
    }

    /// Locks a table on both sides, or on none, and says why it cannot be compared.
    fn begin(&mut self, table: &Published) -> Result<Option<DifferenceKind>> {
        let ours = locked::begin(&mut self.source, table).map_err(VerifyError::Source)?;
        if ours != Table::Same {
            return Ok(Some(DifferenceKind::NotCompared));
        }
        let theirs = locked::begin(&mut self.target, table).map_err(VerifyError::Target)?;
        let kind = match theirs {
            Table::Same => return Ok(None),
            Table::None => DifferenceKind::NoTable,
            Table::Changed => DifferenceKind::NotCompared,
        };
        locked::end(&mut self.source, table, false).map_err(VerifyError::Source)?;
        Ok(Some(kind))
    }

    /// Says whether a table was the same on both sides until now.
    fn end(&mut self, table: &Published, failed: bool) -> Result<bool> {
        let ours = locked::end(&mut self.source, table, failed).map_err(VerifyError::Source)?;
        let theirs = locked::end(&mut self.target, table, failed).map_err(VerifyError::Target)?;
        Ok(ours && theirs)
    }

    fn read(&mut self, table: &Published, range: &Range) -> Result<Found> {
        let sql = |side| table.buckets(side, range, self.hash);
        let ours = buckets(&mut self.source, &sql(Side::Source)).map_err(VerifyError::Source)?;
        let rows = ours.values().map(|(rows, _)| rows).sum();
        let theirs = buckets(&mut self.target, &sql(Side::Target)).map_err(VerifyError::Target)?;
        let all = ours.keys().chain(theirs.keys());
        let mut differ: Vec<i32> = all
            .filter(|bucket| ours.get(bucket) != theirs.get(bucket))
            .copied()
            .collect();
        differ.sort_unstable();
        differ.dedup();
        let mut differences = Vec::new();
        for bucket in differ {
            if differences.len() > MOST_NAMED {
                break;
            }
            let sql = |side| table.rows(side, range, bucket, self.hash);
            let ours = hashes(&mut self.source, &sql(Side::Source)).map_err(VerifyError::Source)?;
            let theirs =
                hashes(&mut self.target, &sql(Side::Target)).map_err(VerifyError::Target)?;
            differences.extend(difference(&ours, &theirs));
        }
        differences.truncate(MOST_NAMED + 1);
        Ok(Found {
            rows,
            differences,
            whole: None,
        })
    }
}

fn buckets(side: &mut Connection, sql: &str) -> lockstep_client::Result<Buckets> {
    let rows = side.query(sql)?;
    rows.iter()
        .map(|row| Ok((field(row, 0)?, (field(row, 1)?, field(row, 2)?))))
        .collect()
}

fn hashes(side: &mut Connection, sql: &str) -> lockstep_client::Result<Rows> {
    let mut rows = Rows::new();
    for row in side.query(sql)? {
        let hashes = rows.entry(field(&row, 0)?).or_default();
        hashes.push(field(&row, 1)?);
        hashes.sort();
    }
    Ok(rows)
}

/// How the rows of two sides differ. Of equal rows without a key, one side may have more.
fn difference(ours: &Rows, theirs: &Rows) -> Vec<Difference> {
    let none = Vec::new();
    let names = ours
        .keys()
        .chain(theirs.keys().filter(|name| !ours.contains_key(*name)));
    let one = |name: &String| {
        let (ours, theirs) = (
            ours.get(name).unwrap_or(&none),
            theirs.get(name).unwrap_or(&none),
        );
        let kind = match ours.len().cmp(&theirs.len()) {
            std::cmp::Ordering::Greater => DifferenceKind::Missing,
            std::cmp::Ordering::Less => DifferenceKind::Extra,
            std::cmp::Ordering::Equal if ours == theirs => return None,
            std::cmp::Ordering::Equal => DifferenceKind::Changed,
        };
        Some(Difference {
            key: name.clone(),
            kind,
        })
    };
    names.filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_differ_are_named() {
        let rows = |rows: &[(&str, &str)]| {
            let mut found = Rows::new();
            for (name, hash) in rows {
                let hashes = found.entry((*name).to_owned()).or_default();
                hashes.push((*hash).to_owned());
            }
            found
        };
        let ours = rows(&[
            ("(1)", "a"),
            ("(2)", "b"),
            ("(3)", "c"),
            ("(5)", "e"),
            ("(5)", "e"),
        ]);
        let theirs = rows(&[("(1)", "a"), ("(2)", "x"), ("(4)", "d"), ("(5)", "e")]);
        let mut found = difference(&ours, &theirs);
        found.sort();
        let found: Vec<_> = (found.iter())
            .map(|one| (one.key.as_str(), one.kind))
            .collect();
        assert_eq!(
            found,
            [
                ("(2)", DifferenceKind::Changed),
                ("(3)", DifferenceKind::Missing),
                ("(4)", DifferenceKind::Extra),
                ("(5)", DifferenceKind::Missing),
            ]
        );
    }
}
