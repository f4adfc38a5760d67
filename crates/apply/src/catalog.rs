//! What the target's catalogs say about tables, over a connection of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockstep_client::{Connection, Conninfo, Purpose, field};
use lockstep_wire::{Lsn, Timeline};
use tracing::warn;

use crate::copies::{Candidate, Copies, Home};
use crate::error::{ApplyError, Result};
use crate::merge::{Start, Tables};
use crate::names::Excluded;
use crate::names::TableName;
use crate::reach::{FACTS, TargetReach, TargetUnique, UNIQUES, UniqueColumn};
use crate::sessions;
use crate::source_table::SourceTable;
use crate::table::{Table, TargetColumn, TargetKey, TargetTable};
use crate::target_state;
use crate::types::ColumnType;

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
/// A table is looked at once, and the server takes that for so much work that it would compile the query
/// first, which takes longer than a batch.
///
/// A source may change thousands of tables in its first transaction, so each question is planned once, and
/// reads nothing but the rows of its table.
const SESSION: &str = "SET lock_timeout = 20000; SET plan_cache_mode = force_generic_plan; \
    SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";

/// Tables that may be the one that is asked for ([`Copies::home`]): with this OID, or one of two names.
/// A rule that acts here would rewrite our statements; stock's apply worker knows no rules.
const TABLE: &str = "SELECT c.oid, c.relkind = 'p', \
      c.relispartition AND c.relkind = 'r' AND c.relpersistence = 'p', \
      (SELECT min(r.rulename) FROM pg_catalog.pg_rewrite AS r \
        WHERE r.ev_class = c.oid AND r.ev_enabled IN ('A', 'R') AND r.rulename <> '_RETURN'), \
      c.relnatts, n.nspname, c.relname \
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
    WHERE c.relkind IN ('r', 'p') AND c.oid = ANY (ARRAY[$1::pg_catalog.oid, \
      (SELECT x.oid FROM pg_catalog.pg_class AS x \
        JOIN pg_catalog.pg_namespace AS s ON s.oid = x.relnamespace \
        WHERE s.nspname = $2 AND x.relname = $3), \
      (SELECT x.oid FROM pg_catalog.pg_class AS x \
        JOIN pg_catalog.pg_namespace AS s ON s.oid = x.relnamespace \
        WHERE s.nspname = $4 AND x.relname = $5)])";

/// Domains are given as text: their arrays could be arrays of arrays. So are arrays, since
/// unnest() would take them apart, and composite types, which it would spread over columns. A cast
/// from text to one of these can only be made by who owns the type: a superuser, if it is one of the
/// server's own.
const COLUMNS: &str = "SELECT a.attname, \
      pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(t.typname), \
      t.typdelim, \
      t.typtype NOT IN ('c', 'd') AND t.typarray <> 0 \
        AND NOT (t.typelem <> 0 AND t.typlen = -1), \
      base.oid >= 16384, a.attgenerated <> '', a.attidentity = 'a', base.oid, base.modifier \
    FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid \
      JOIN pg_catalog.pg_namespace AS n ON n.oid = t.typnamespace \
      CROSS JOIN LATERAL (WITH RECURSIVE base(oid, typtype, below, modifier, inner_modifier) AS ( \
          SELECT t.oid, t.typtype, t.typbasetype, a.atttypmod, t.typtypmod \
          UNION ALL SELECT d.oid, d.typtype, d.typbasetype, b.inner_modifier, d.typtypmod \
            FROM base AS b JOIN pg_catalog.pg_type AS d ON d.oid = b.below WHERE b.typtype = 'd') \
        SELECT b.oid, b.modifier FROM base AS b WHERE b.typtype <> 'd') AS base \
    WHERE a.attrelid = $1::pg_catalog.oid AND a.attnum > 0 AND NOT a.attisdropped \
    ORDER BY a.attnum";

/// Each column of each index that can identify a row, the primary key's first.
const KEYS: &str = "SELECT i.indexrelid, a.attname, \
      pg_catalog.quote_ident(n.nspname) || '.' || o.oprname \
    FROM pg_catalog.pg_index AS i \
      JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid \
      JOIN pg_catalog.pg_am AS m ON m.oid = c.relam \
      CROSS JOIN LATERAL pg_catalog.generate_series(0, i.indnkeyatts - 1) AS k(place) \
      JOIN pg_catalog.pg_attribute AS a \
        ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.place] \
      JOIN pg_catalog.pg_opclass AS p ON p.oid = i.indclass[k.place] \
      JOIN pg_catalog.pg_amop AS ao ON ao.amopfamily = p.opcfamily \
        AND ao.amoplefttype = p.opcintype AND ao.amoprighttype = p.opcintype \
        AND ao.amopstrategy = 3 \
      JOIN pg_catalog.pg_operator AS o ON o.oid = ao.amopopr \
      JOIN pg_catalog.pg_namespace AS n ON n.oid = o.oprnamespace \
    WHERE i.indrelid = $1::pg_catalog.oid AND m.amname = 'btree' AND i.indisunique \
      AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL \
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute AS x \
        WHERE x.attrelid = i.indrelid AND x.attnum = ANY (i.indkey) AND NOT x.attnotnull) \
    ORDER BY i.indisprimary DESC, i.indexrelid, k.place";

const CONSTRAINTS: &str = "SELECT count(*) FROM pg_catalog.pg_index \
    WHERE indrelid = $1::pg_catalog.oid AND indislive AND (indisunique OR indisexclusion)";

/// Names of prepared statements, and what they ask.
const QUESTIONS: [(&str, &str); 6] = [
    ("table", TABLE),
    ("columns", COLUMNS),
    ("keys", KEYS),
    ("constraints", CONSTRAINTS),
    ("facts", FACTS),
    ("uniques", UNIQUES),
];

type Row = Vec<Option<String>>;

/// What the target has for a table of the source.
enum Found {
    /// A table with this name, and what [`TABLE`] says of it.
    Table(TableName, Row),
    Missing,
    OfAnother,
}

/// Asks the target about tables.
#[derive(Debug)]
pub struct Catalog {
    connection: Connection,
    starts: Starts,
}

impl Catalog {
    pub fn connect(
        target: &Conninfo,
        application_name: &str,
        starts: &mut dyn FnMut(&mut Connection) -> Result<Starts>,
    ) -> Result<Self> {
        let mut connection =
            sessions::open(target, Purpose::Sql, application_name).map_err(ApplyError::Target)?;
        connection.execute(SESSION).map_err(ApplyError::Target)?;
        for question in QUESTIONS {
            let prepared = connection.prepare(question.0, question.1);
            prepared.map_err(ApplyError::Target)?;
        }
        Ok(Self {
            starts: starts(&mut connection)?,
            connection,
        })
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

    /// The target's table for a table of the source that has this OID and, now, this name.
    fn found(&mut self, oid: u32, name: &TableName) -> lockstep_client::Result<Found> {
        let copies = &self.starts.copies;
        let copied = copies.of(oid);
        let bound = copied.and_then(|copied| copied.target).unwrap_or(0);
        let before = copied.map_or(name, |copied| &copied.name);
        let (now, before) = ((&name.schema, &name.table), (&before.schema, &before.table));
        let rows = (self.connection)
            .query_prepared("table", &[&bound, now.0, now.1, before.0, before.1])?;
        let candidate = |row: &Row| {
            Ok(Candidate {
                oid: field(row, 0)?,
                name: TableName {
                    schema: field(row, 5)?,
                    table: field(row, 6)?,
                },
            })
        };
        let candidates = rows.iter().map(candidate);
        let candidates = candidates.collect::<lockstep_client::Result<Vec<_>>>()?;
        let home = match copies.home(oid, name, &candidates) {
            Home::Table(home) => home,
            Home::Missing => return Ok(Found::Missing),
            Home::OfAnother => return Ok(Found::OfAnother),
        };
        let row = candidates.iter().zip(rows).find(|(one, _)| *one == home);
        Ok(match row {
            Some((home, row)) => Found::Table(home.name.clone(), row),
            None => Found::Missing,
        })
    }

    fn read(&mut self, row: &Row) -> lockstep_client::Result<TargetTable> {
        let connection = &mut self.connection;
        let (oid, partitioned): (u32, bool) = (field(row, 0)?, field(row, 1)?);
        let (is_partition, acting_rule) = (field(row, 2)?, field(row, 3)?);
        let attributes = field(row, 4)?;
        let columns = connection.query_prepared("columns", &[&oid])?;
        let columns = columns.iter().map(|row| {
            let delimiter: String = field(row, 2)?;
            Ok(TargetColumn {
                name: field(row, 0)?,
                kind: field(row, 1)?,
                in_array: field(row, 3)?,
                delimiter: delimiter.bytes().next().unwrap_or(b','),
                of_user: field(row, 4)?,
                generated: field(row, 5)?,
                always_identity: field(row, 6)?,
                of: ColumnType {
                    oid: field(row, 7)?,
                    modifier: field(row, 8)?,
                },
            })
        });
        let columns = columns.collect::<lockstep_client::Result<_>>()?;
        let mut keys: Vec<(u32, TargetKey)> = Vec::new();
        for row in connection.query_prepared("keys", &[&oid])? {
            let index: u32 = field(&row, 0)?;
            let column = (field(&row, 1)?, field(&row, 2)?);
            match keys.last_mut().filter(|(last, _)| *last == index) {
                Some((_, key)) => key.columns.push(column),
                None => keys.push((
                    index,
                    TargetKey {
                        columns: vec![column],
                    },
                )),
            }
        }
        let constraints = connection.query_prepared("constraints", &[&oid])?;
        let constraints: u32 = constraints.first().map_or(Ok(0), |row| field(row, 0))?;
        Ok(TargetTable {
            partitioned,
            is_partition,
            acting_rule,
            attributes,
            columns,
            keys: keys.into_iter().map(|(_, key)| key).collect(),
            constraints: constraints as usize,
            reach: reach(connection, oid)?,
        })
    }
}

/// What decides how far changes of the table reach.
fn reach(connection: &mut Connection, oid: u32) -> lockstep_client::Result<TargetReach> {
    let facts = connection.query_prepared("facts", &[&format!("{{{oid}}}")])?;
    let facts: String = facts
        .first()
        .map_or(Ok(String::new()), |row| field(row, 0))?;
    let root = facts.split('/').next().and_then(|root| root.parse().ok());
    let mut uniques: Vec<(u32, TargetUnique)> = Vec::new();
    for row in connection.query_prepared("uniques", &[&oid])? {
        let index: u32 = field(&row, 0)?;
        let column = UniqueColumn {
            name: field(&row, 3)?,
            kind: field(&row, 4)?,
            modifier: field(&row, 5)?,
            exact: field(&row, 6)?,
        };
        match uniques.last_mut().filter(|(last, _)| *last == index) {
            Some((_, unique)) => unique.columns.push(column),
            None => {
                let unique = TargetUnique {
                    excludes: field(&row, 1)?,
                    nulls_equal: field(&row, 2)?,
                    columns: vec![column],
                };
                uniques.push((index, unique));
            }
        }
    }
    Ok(TargetReach {
        oid,
        root: root.unwrap_or(oid),
        triggers: !facts.ends_with("/triggers"),
        facts,
        uniques: uniques.into_iter().map(|(_, unique)| unique).collect(),
    })
}

impl Catalog {
    /// Where the table of the source with this OID starts, which has this name now. Its rows may be in a
    /// table of another name ([`Copies::home`]).
    fn start_of(&mut self, oid: u32, name: &TableName) -> Result<Start> {
        let everything = Start::At(Lsn::INVALID);
        let listed = self.starts.copies.of(oid);
        let listed = listed.map_or(name, |copied| &copied.name);
        match (self.starts.tables.get(listed), &self.starts.others) {
            (Some(start), _) => return Ok(*start),
            (None, Others::All) => return Ok(everything),
            (None, Others::LaterPartitions(excluded)) if excluded.names(name) => {
                return Ok(Start::Never);
            }
            (None, Others::LaterPartitions(_)) => {}
        }
        let Found::Table(_, row) = self.found(oid, name).map_err(ApplyError::Target)? else {
            // One that is missing is told of at its first change.
            return Ok(everything);
        };
        let found = self.read(&row).map_err(ApplyError::Target)?;
        // Of a partitioned table only TRUNCATE arrives, which names its partitions as well.
        match found.partitioned || !found.is_partition {
            true => {
                if !found.partitioned {
                    warn!("table {name} was not copied, so its changes are skipped");
                }
                Ok(Start::Never)
            }
            false => Ok(everything),
        }
    }

    /// Changes of the source's table are applied, to a table of its name if to any.
    pub fn is_replicated(&mut self, oid: u32, name: &TableName) -> Result<bool> {
        if self.start_of(oid, name)? == Start::Never {
            return Ok(false);
        }
        let found = self.found(oid, name).map_err(ApplyError::Target)?;
        Ok(!matches!(found, Found::Table(there, _) if there != *name))
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

impl Tables for Catalog {
    fn start(&mut self, source: &SourceTable) -> Result<Start> {
        self.start_of(source.oid, &source.name)
    }

    fn table(&mut self, source: &SourceTable) -> Result<Arc<Table>> {
        let found = self.found(source.oid, &source.name);
        match found.map_err(ApplyError::Target)? {
            Found::Table(name, row) => {
                let target = self.read(&row).map_err(ApplyError::Target)?;
                let table = Table::fit(source, &target)?;
                Ok(Arc::new(Table { name, ..table }))
            }
            Found::Missing => Err(ApplyError::shape(&source.name, self.missing(source))),
            Found::OfAnother => {
                let message = "it is the copy of another table, which the source has dropped or renamed \
                               since; rename or drop it here as well, and make the new one as it is there";
                Err(ApplyError::shape(&source.name, message.to_owned()))
            }
        }
    }
}
