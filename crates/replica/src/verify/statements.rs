//! What each side is asked. No I/O.
//!
//! Rows are compared as text, column by column in the source's order, and by the hash of that
//! text first. Ranges are cut by the key's first column, if its type has the same order on every
//! server; text does not, since its order is the collation's. Within a range rows are put into
//! buckets by the hash of their key, so that only the buckets that differ are read row by row.
//!
//! A target's type may be wider than the source's, so that the text of equal values differs: those
//! columns are compared by value ([`ByValue`]).
//!
//! A row filter is asked of the source only: a row that the target has besides is one too many.

use std::collections::BTreeMap;

use crate::names::{TableName, quoted};

/// Buckets of a range.
pub const BUCKETS: u32 = 256;

/// A table that is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The table's OID on the source.
    pub oid: u32,
    pub table: TableName,
    /// The published columns that are not generated.
    pub columns: Vec<String>,
    /// The columns that identify a row; empty if there are none.
    pub key: Vec<String>,
    /// Columns whose text depends on a type that the sides have differently.
    pub by_value: BTreeMap<String, ByValue>,
    /// The key's first column has the same order on every server.
    pub is_ordered: bool,
    /// The publication's row filter, as a condition on the source.
    pub filter: Option<String>,
    /// What it says, the target's rows are those of its partitions.
    pub partitioned: bool,
    /// Rows, roughly.
    pub estimate: u64,
}

/// How values are compared that have other texts in a wider type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByValue {
    /// Without zeros at the end: 1.50 is 1.5000.
    Number,
    /// Without blanks at the end.
    Padded,
}

/// A column's type and its modifier, as in pg_attribute.
pub type ColumnType = (u32, i32);

/// OIDs of smallint, integer, bigint and numeric, which are the same on every server.
const NUMBERS: [u32; 4] = [21, 23, 20, 1700];
const NUMERIC: u32 = 1700;
const CHARACTER: u32 = 1042;

impl ByValue {
    /// None if the texts of equal values are equal, or no value of one type is known to be one of the other.
    pub fn of(source: ColumnType, target: ColumnType) -> Option<Self> {
        let (of_source, of_target) = (source.0, target.0);
        let are_numbers = NUMBERS.contains(&of_source) && NUMBERS.contains(&of_target);
        match source == target {
            true => None,
            false if are_numbers && [of_source, of_target].contains(&NUMERIC) => Some(Self::Number),
            false if of_source == CHARACTER && of_target == CHARACTER => Some(Self::Padded),
            false => None,
        }
    }
}

/// Types of the columns of the tables in `$1`, those of domains as the domains have them.
pub const TYPES: &str = "SELECT n.nspname, c.relname, pg_catalog.json_agg(pg_catalog.json_build_array( \
       a.attname, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END::pg_catalog.int8, \
       CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END))::pg_catalog.text \
     FROM pg_catalog.json_array_elements($1::pg_catalog.json) AS s \
       JOIN pg_catalog.pg_namespace AS n ON n.nspname = s ->> 0 \
       JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = s ->> 1 \
         AND c.relkind IN ('r', 'p') \
       JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
       JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid GROUP BY 1, 2";

/// Which side is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Source,
    Target,
}

/// Some rows of a table: from one value of the key's first column to before another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Range {
    pub from: Option<String>,
    pub to: Option<String>,
}

/// The published tables: one row for each, in the order of their names. Foreign tables, which are listed
/// as partitions of others, send nothing. `$1` is the list of publications.
pub const PUBLISHED: &str = "SELECT p.schemaname, p.tablename, p.rowfilter, c.relkind = 'p', \
       greatest(c.reltuples, 0)::pg_catalog.int8, \
       (SELECT pg_catalog.json_agg(a.attname ORDER BY a.attnum) \
        FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 \
          AND NOT a.attisdropped AND a.attgenerated = '' AND a.attname = ANY (p.attnames)), \
       (SELECT pg_catalog.json_agg(a.attname ORDER BY k.place) \
        FROM pg_catalog.generate_series(0, i.indnkeyatts - 1) AS k(place) \
          JOIN pg_catalog.pg_attribute AS a \
            ON a.attrelid = c.oid AND a.attnum = i.indkey[k.place]), \
       (SELECT a.atttypid = ANY ('{int2,int4,int8,numeric,uuid,date,timestamp,timestamptz}' \
               ::pg_catalog.regtype[]) \
        FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum = i.indkey[0]), \
       c.oid \
     FROM pg_catalog.pg_publication_tables AS p \
       JOIN pg_catalog.pg_namespace AS n ON n.nspname = p.schemaname \
       JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = p.tablename \
         AND c.relkind IN ('r', 'p') \
       LEFT JOIN pg_catalog.pg_index AS i ON i.indrelid = c.oid AND i.indisprimary \
     WHERE p.pubname = ANY ($1::pg_catalog.name[]) ORDER BY 1, 2";

/// Tables that were in a publication at the snapshot, and that have not kept their name since: what
/// [`PUBLISHED`] asks tells what is published now. `$1` is the list of publications, as JSON.
pub const UNLISTED: &str = "WITH RECURSIVE changed AS (
        SELECT c.oid, n.nspname, c.relname FROM pg_catalog.pg_class c
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
            AND CASE pg_catalog.has_schema_privilege(n.oid, 'USAGE') WHEN false THEN false
                ELSE pg_catalog.to_regclass(pg_catalog.format('%I.%I', n.nspname, c.relname))
                    ::pg_catalog.oid IS DISTINCT FROM c.oid END
    ), up AS (
        SELECT c.oid AS child, c.oid AS above FROM changed c
        UNION SELECT up.child, i.inhparent FROM up JOIN pg_catalog.pg_class c ON c.oid = up.above
            JOIN pg_catalog.pg_inherits i ON i.inhrelid = up.above WHERE c.relispartition
    )
    SELECT DISTINCT c.nspname, c.relname
    FROM changed c JOIN up ON up.child = c.oid JOIN pg_catalog.pg_class a ON a.oid = up.above
        JOIN pg_catalog.pg_publication p ON p.pubname IN (
            SELECT pg_catalog.json_array_elements_text($1::pg_catalog.json))
    WHERE p.puballtables
        OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel r
            WHERE r.prpubid = p.oid AND r.prrelid = a.oid)
        OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s
            WHERE s.pnpubid = p.oid AND s.pnnspid = a.relnamespace)
    ORDER BY 1, 2";

/// How text becomes a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    /// Hash by the server's own function, which depends on the database's encoding and the machine's
    /// byte order.
    OfServer,
    /// Hash of the text as UTF-8; slower.
    OfUtf8,
}

/// Equal where [`Hash::OfServer`] gives the same for the same text.
pub const PROBE: &str = "SELECT pg_catalog.getdatabaseencoding(), \
     pg_catalog.hashtextextended('lockstep' COLLATE \"C\", 0)";

impl Hash {
    /// Equal for equal text, whatever the collation.
    fn of(self, text: &str) -> String {
        match self {
            Self::OfServer => format!("pg_catalog.hashtextextended({text} COLLATE \"C\", 0)"),
            Self::OfUtf8 => format!(
                "('x' || pg_catalog.encode(pg_catalog.substr(pg_catalog.sha256(\
                   pg_catalog.convert_to({text}, 'UTF8')), 1, 8), 'hex'))::pg_catalog.bit(64)\
                 ::pg_catalog.int8"
            ),
        }
    }

    /// The bucket of a row with this name.
    fn bucket(self, name: &str) -> String {
        format!("({} & {})::pg_catalog.int4", self.of(name), BUCKETS - 1)
    }
}

impl Published {
    /// What says before the name that partitions and inheriting tables are not meant.
    pub fn only(&self) -> &'static str {
        if self.partitioned { "" } else { "ONLY " }
    }

    fn from(&self, side: Side, range: &Range) -> String {
        let only = self.only();
        let mut conditions = Vec::new();
        if let Some(first) = self.key.first().filter(|_| self.is_ordered) {
            let first = quoted(first);
            let bound =
                |value: &String, than| format!("t.{first} {than} '{}'", value.replace('\'', "''"));
            conditions.extend(range.from.as_ref().map(|value| bound(value, ">=")));
            conditions.extend(range.to.as_ref().map(|value| bound(value, "<")));
        }
        let table = match &self.filter {
            // The filter names columns without a table.
            Some(filter) if side == Side::Source => {
                format!("(SELECT * FROM {only}{} WHERE {filter})", self.table.sql())
            }
            _ => format!("{only}{}", self.table.sql()),
        };
        match conditions.is_empty() {
            true => format!("FROM {table} AS t"),
            false => format!("FROM {table} AS t WHERE {}", conditions.join(" AND ")),
        }
    }

    /// What names a row: the key, or all of it.
    fn name(&self) -> String {
        match self.key.is_empty() {
            true => self.row(&self.columns),
            false => self.row(&self.key),
        }
    }

    fn row(&self, columns: &[String]) -> String {
        let value = |name: &String| {
            let column = format!("t.{}", quoted(name));
            match self.by_value.get(name) {
                None => column,
                Some(ByValue::Number) => format!("pg_catalog.trim_scale({column})"),
                Some(ByValue::Padded) => format!("{column}::pg_catalog.text"),
            }
        };
        let values: Vec<_> = columns.iter().map(value).collect();
        format!("ROW({})::pg_catalog.text", values.join(", "))
    }

    /// The names of some rows.
    pub fn names(&self, most: usize) -> String {
        format!(
            "SELECT {} {} LIMIT {most}",
            self.name(),
            self.from(Side::Target, &Range::default())
        )
    }

    /// Values at which ranges of about so many rows begin.
    pub fn cuts(&self, rows: u64) -> Option<String> {
        let first = self.key.first().filter(|_| self.is_ordered)?;
        if self.estimate <= rows {
            return None;
        }
        let first = quoted(first);
        Some(format!(
            "SELECT DISTINCT k::pg_catalog.text AS cut, k AS place FROM (SELECT t.{first} AS k, \
               pg_catalog.row_number() OVER (ORDER BY t.{first}) AS n {}) AS s \
             WHERE n % {rows} = 0 ORDER BY place",
            self.from(Side::Source, &Range::default())
        ))
    }

    /// Number and sum of hashes of the rows of each bucket of a range.
    pub fn buckets(&self, side: Side, range: &Range, hash: Hash) -> String {
        format!(
            "SELECT bucket, count(*), sum(h) FROM (SELECT {} AS bucket, \
               {}::pg_catalog.numeric AS h {}) AS s GROUP BY bucket ORDER BY bucket",
            hash.bucket(&self.name()),
            hash.of(&self.row(&self.columns)),
            self.from(side, range)
        )
    }

    /// Name and hash of each row in a bucket of a range.
    pub fn rows(&self, side: Side, range: &Range, bucket: i32, hash: Hash) -> String {
        format!(
            "SELECT name, h FROM (SELECT {} AS name, {} AS h, {} AS bucket {}) AS s \
             WHERE bucket = {bucket}",
            self.name(),
            hash.of(&self.row(&self.columns)),
            hash.bucket(&self.name()),
            self.from(side, range),
        )
    }
}

/// The ranges between cuts: everything is in exactly one of them.
pub fn ranges(cuts: Vec<String>) -> Vec<Range> {
    let mut ranges = Vec::new();
    let mut from = None;
    for cut in cuts {
        ranges.push(Range {
            from: from.replace(cut.clone()),
            to: Some(cut),
        });
    }
    ranges.push(Range { from, to: None });
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_wider_types_are_compared_by_value() {
        let (narrow, wide) = ((NUMERIC, 655_366), (NUMERIC, 786_440));
        for (source, target, expected) in [
            (narrow, narrow, None),
            (narrow, wide, Some(ByValue::Number)),
            ((23, -1), narrow, Some(ByValue::Number)),
            // An integer has one text.
            ((23, -1), (20, -1), None),
            // 1.5 as double precision may be no value of numeric.
            ((701, -1), narrow, None),
            ((CHARACTER, 9), (CHARACTER, 14), Some(ByValue::Padded)),
            ((1043, 9), (25, -1), None),
        ] {
            assert_eq!(
                ByValue::of(source, target),
                expected,
                "{source:?} {target:?}"
            );
        }
    }

    #[test]
    fn ranges_leave_no_gap() {
        assert_eq!(ranges(Vec::new()), [Range::default()]);
        let found = ranges(vec!["1".to_owned(), "5".to_owned()]);
        let bounds: Vec<_> = (found.iter())
            .map(|range| (range.from.as_deref(), range.to.as_deref()))
            .collect();
        assert_eq!(
            bounds,
            [(None, Some("1")), (Some("1"), Some("5")), (Some("5"), None)]
        );
    }
}
