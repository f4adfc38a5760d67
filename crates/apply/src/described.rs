//! What the target's catalogs say of tables: one question for any number of them.

use std::collections::HashMap;

use lockstep_client::{Connection, field};

use crate::reach::{FACTS, TargetUnique, UNIQUES, UniqueColumn};
use crate::table::{TargetColumn, TargetKey, TargetTable};
use crate::types::ColumnType;

/// Domains are given as text: their arrays could be arrays of arrays. So are arrays, since
/// unnest() would take them apart, and composite types, which it would spread over columns. A cast
/// from text to one of these can only be made by who owns the type: a superuser, if it is one of the
/// server's own.
const COLUMNS: &str = "SELECT a.attrelid, a.attname, \
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
    WHERE a.attrelid = ANY ($1::pg_catalog.oid[]) AND a.attnum > 0 AND NOT a.attisdropped \
    ORDER BY a.attrelid, a.attnum";

/// Each column of each index that can identify a row, the primary key's first.
const KEYS: &str = "SELECT i.indrelid, i.indexrelid, a.attname, \
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
    WHERE i.indrelid = ANY ($1::pg_catalog.oid[]) AND m.amname = 'btree' AND i.indisunique \
      AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL \
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute AS x \
        WHERE x.attrelid = i.indrelid AND x.attnum = ANY (i.indkey) AND NOT x.attnotnull) \
    ORDER BY i.indrelid, i.indisprimary DESC, i.indexrelid, k.place";

const CONSTRAINTS: &str = "SELECT indrelid, count(*) FROM pg_catalog.pg_index \
    WHERE indrelid = ANY ($1::pg_catalog.oid[]) AND indislive AND (indisunique OR indisexclusion) \
    GROUP BY indrelid";

/// Names of prepared statements, and what they ask: `$1` is an array of the tables' OIDs.
pub(crate) const QUESTIONS: [(&str, &str); 5] = [
    ("facts", FACTS),
    ("columns", COLUMNS),
    ("keys", KEYS),
    ("constraints", CONSTRAINTS),
    ("uniques", UNIQUES),
];

type Row = Vec<Option<String>>;
type Result<T> = lockstep_client::Result<T>;

/// An array of OIDs.
pub(crate) fn oids(oids: impl Iterator<Item = u32>) -> String {
    let oids: Vec<_> = oids.map(|oid| oid.to_string()).collect();
    format!("{{{}}}", oids.join(","))
}

/// Tables that are being described, and their places by their OIDs.
struct Described<'a> {
    tables: Vec<&'a mut TargetTable>,
    places: HashMap<u32, usize>,
}

/// Adds columns, keys and what decides how far changes reach, in one round trip.
pub(crate) fn describe(connection: &mut Connection, tables: Vec<&mut TargetTable>) -> Result<()> {
    let asked = oids(tables.iter().map(|table| table.reach.oid));
    let mut pipeline = connection.pipeline()?;
    for (question, _) in QUESTIONS {
        pipeline.query_prepared(question, &[&asked])?;
    }
    let mut answers = pipeline.finish()?.into_iter().map(|answer| answer.rows);
    let mut answer = || answers.next().unwrap_or_default();
    let places = tables.iter().enumerate();
    let places = places.map(|(place, table)| (table.reach.oid, place));
    let mut described = Described {
        places: places.collect(),
        tables,
    };
    described.add_facts(&answer())?;
    described.add_columns(&answer())?;
    described.add_keys(&answer())?;
    described.add_constraints(&answer())?;
    described.add_uniques(&answer())
}

impl Described<'_> {
    /// The table that an answer's first column names.
    fn of(&mut self, row: &Row) -> Result<Option<&mut TargetTable>> {
        let place = self.places.get(&field(row, 0)?);
        let table = place.and_then(|place| self.tables.get_mut(*place));
        Ok(table.map(|table| &mut **table))
    }

    /// Adds the answer to [`FACTS`], which has a row for each table, in their order.
    fn add_facts(&mut self, rows: &[Row]) -> Result<()> {
        for (table, row) in self.tables.iter_mut().zip(rows) {
            let facts: String = field(row, 0)?;
            let root = facts.split('/').next().and_then(|root| root.parse().ok());
            let reach = &mut table.reach;
            reach.root = root.unwrap_or(reach.oid);
            reach.triggers = !facts.ends_with("/triggers");
            reach.facts = facts;
        }
        Ok(())
    }

    fn add_columns(&mut self, rows: &[Row]) -> Result<()> {
        for row in rows {
            let delimiter: String = field(row, 3)?;
            let column = TargetColumn {
                name: field(row, 1)?,
                kind: field(row, 2)?,
                in_array: field(row, 4)?,
                delimiter: delimiter.bytes().next().unwrap_or(b','),
                of_user: field(row, 5)?,
                generated: field(row, 6)?,
                always_identity: field(row, 7)?,
                of: ColumnType {
                    oid: field(row, 8)?,
                    modifier: field(row, 9)?,
                },
            };
            if let Some(table) = self.of(row)? {
                table.columns.push(column);
            }
        }
        Ok(())
    }

    fn add_keys(&mut self, rows: &[Row]) -> Result<()> {
        let mut last = 0;
        for row in rows {
            let index: u32 = field(row, 1)?;
            let column = (field(row, 2)?, field(row, 3)?);
            if let Some(table) = self.of(row)? {
                match table.keys.last_mut().filter(|_| last == index) {
                    Some(key) => key.columns.push(column),
                    None => table.keys.push(TargetKey {
                        columns: vec![column],
                    }),
                }
            }
            last = index;
        }
        Ok(())
    }

    fn add_constraints(&mut self, rows: &[Row]) -> Result<()> {
        for row in rows {
            let constraints: u32 = field(row, 1)?;
            if let Some(table) = self.of(row)? {
                table.constraints = constraints as usize;
            }
        }
        Ok(())
    }

    fn add_uniques(&mut self, rows: &[Row]) -> Result<()> {
        let mut last = 0;
        for row in rows {
            let index: u32 = field(row, 1)?;
            let column = UniqueColumn {
                name: field(row, 4)?,
                kind: field(row, 5)?,
                modifier: field(row, 6)?,
                exact: field(row, 7)?,
            };
            let (excludes, nulls_equal) = (field(row, 2)?, field(row, 3)?);
            if let Some(table) = self.of(row)? {
                let uniques = &mut table.reach.uniques;
                match uniques.last_mut().filter(|_| last == index) {
                    Some(unique) => unique.columns.push(column),
                    None => uniques.push(TargetUnique {
                        excludes,
                        nulls_equal,
                        columns: vec![column],
                    }),
                }
            }
            last = index;
        }
        Ok(())
    }
}
