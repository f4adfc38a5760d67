//! Which tables are copied, with their columns and row filters, as the snapshot and the publication
//! have them.

use std::collections::{HashMap, HashSet};

use lockstep_apply::types::ColumnType;
use lockstep_client::{ClientError, Connection, field};

use super::binary::{self, Type, goes_binary};
use crate::names::{TableName, quoted};
use crate::publication::subset::parenthesised;

/// A column that is copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    /// [`binary::written`].
    pub written: Option<String>,
    /// [`binary::bottom`].
    pub bottom: ColumnType,
}

/// A table to copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    pub name: TableName,
    pub oid: u32,
    /// The published columns without the generated ones, quoted.
    pub columns: Vec<String>,
    /// What is known of each of them.
    pub types: Vec<Column>,
    /// The publication's row filter, as a condition.
    pub filter: Option<String>,
    /// The publication has the table.
    pub published: bool,
    /// All its values mean the same in the binary format on both servers.
    pub binary: bool,
    /// Tables of the target refer to it, so it cannot be emptied by TRUNCATE there.
    pub referred: bool,
    /// Size on disk, TOAST included.
    pub bytes: u64,
    /// Blocks of its main fork.
    pub blocks: u64,
}

const TYPES: &str = "
SELECT t.oid, t.typtype, t.typsend <> 0 AND t.typreceive <> 0,
    CASE WHEN t.typlen = -1 AND t.typcategory = 'A' THEN t.typelem ELSE 0 END,
    CASE t.typtype WHEN 'd' THEN t.typbasetype
        WHEN 'r' THEN (SELECT rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid) ELSE 0 END,
    format('%I.%I', n.nspname, t.typname), t.typtypmod
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.typtype IN ('b', 'd', 'e', 'r')";

const TABLES: &str = "
SELECT n.nspname, c.relname, pg_table_size(c.oid),
    pg_relation_size(c.oid) / current_setting('block_size')::bigint,
    coalesce((SELECT json_agg(json_build_array(a.attname, a.atttypid::bigint, a.atttypmod) ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            AND a.attgenerated = '' AND (r.prattrs IS NULL OR a.attnum = ANY (r.prattrs))), '[]'),
    pg_get_expr(r.prqual, r.prrelid),
    EXISTS (SELECT FROM pg_publication_rel x JOIN pg_publication q ON q.oid = x.prpubid
        WHERE q.pubname = $1 AND (x.prrelid = c.oid
            OR x.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid)))),
    c.oid
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN (pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid AND p.pubname = $1)
        ON r.prrelid = c.oid
WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND n.nspname NOT LIKE 'pg\\_%'";

/// The types that a server has, without composite ones and their like.
pub(super) fn types(session: &mut Connection) -> Result<HashMap<u32, Type>, ClientError> {
    let mut types = HashMap::new();
    for row in session.query(TYPES)? {
        let kind: String = field(&row, 1)?;
        let of = Type {
            kind: kind.chars().next().unwrap_or_default(),
            has_binary: field(&row, 2)?,
            element: field(&row, 3)?,
            base: field(&row, 4)?,
            name: field(&row, 5)?,
            modifier: field(&row, 6)?,
        };
        types.insert(field(&row, 0)?, of);
    }
    Ok(types)
}

/// The named tables that the session's snapshot has, with what the publication has of them; all columns of
/// one that it does not have.
pub fn tables(
    source: &mut Connection,
    wanted: &HashSet<TableName>,
    publication: &str,
) -> Result<Vec<Table>, ClientError> {
    let types = types(source)?;
    let mut tables = Vec::new();
    for row in source.query_with(TABLES, &[&publication])? {
        let name = TableName {
            schema: field(&row, 0)?,
            table: field(&row, 1)?,
        };
        if !wanted.contains(&name) {
            continue;
        }
        let columns: String = field(&row, 4)?;
        let columns: Vec<(String, u32, i32)> = serde_json::from_str(&columns)
            .map_err(|error| ClientError::Protocol(format!("columns of {name}: {error}")))?;
        let of_column = |(name, oid, modifier): &(String, u32, i32)| {
            let of = ColumnType {
                oid: *oid,
                modifier: *modifier,
            };
            Column {
                name: name.clone(),
                written: binary::written(&types, of),
                bottom: binary::bottom(&types, of),
            }
        };
        tables.push(Table {
            name,
            binary: columns.iter().all(|(_, oid, _)| goes_binary(&types, *oid)),
            columns: columns.iter().map(|(name, ..)| quoted(name)).collect(),
            types: columns.iter().map(of_column).collect(),
            referred: false,
            filter: field(&row, 5)?,
            published: field(&row, 6)?,
            oid: field(&row, 7)?,
            bytes: field(&row, 2)?,
            blocks: field(&row, 3)?,
        });
    }
    Ok(tables)
}

impl Table {
    fn format(&self) -> &'static str {
        match self.binary {
            true => "binary",
            false => "text",
        }
    }

    /// The source's COPY, of a range of blocks if there is one.
    pub fn copy_out(&self, range: Option<(u64, Option<u64>)>) -> String {
        let (name, format) = (self.name.sql(), self.format());
        let columns = self.columns.join(", ");
        let mut conditions = Vec::new();
        if let Some((from, to)) = range {
            conditions.push(format!("ctid >= '({from},0)'"));
            conditions.extend(to.map(|to| format!("ctid < '({to},0)'")));
        }
        conditions.extend(self.filter.as_ref().map(|filter| parenthesised(filter)));
        // ONLY in a query, which COPY of a table always is.
        let rows = match conditions.is_empty() {
            true if columns.is_empty() => name,
            true => format!("{name} ({columns})"),
            false => {
                let conditions = conditions.join(" AND ");
                format!("(SELECT {columns} FROM ONLY {name} WHERE {conditions})")
            }
        };
        format!("COPY {rows} TO STDOUT (FORMAT {format})")
    }

    /// The target's COPY.
    pub fn copy_in(&self, freeze: bool) -> String {
        let columns = match self.columns.is_empty() {
            true => String::new(),
            false => format!(" ({})", self.columns.join(", ")),
        };
        format!(
            "COPY {}{columns} FROM STDIN (FORMAT {}{})",
            self.name.sql(),
            self.format(),
            if freeze { ", FREEZE" } else { "" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_lab::assert_has;

    #[test]
    fn commands_name_what_is_copied() {
        let mut table = Table {
            name: TableName {
                schema: "s".to_owned(),
                table: "T".to_owned(),
            },
            columns: vec!["\"a\"".to_owned(), "\"B\"".to_owned()],
            ..Table::default()
        };
        assert_eq!(
            table.copy_out(None),
            "COPY \"s\".\"T\" (\"a\", \"B\") TO STDOUT (FORMAT text)"
        );
        table.binary = true;
        assert_eq!(
            table.copy_out(Some((5, Some(9)))),
            "COPY (SELECT \"a\", \"B\" FROM ONLY \"s\".\"T\" WHERE ctid >= '(5,0)' AND \
             ctid < '(9,0)') TO STDOUT (FORMAT binary)"
        );
        assert!(table.copy_out(Some((5, None))).contains(">= '(5,0)')"));
        table.filter = Some("a > 0 OR b".to_owned());
        assert_eq!(
            table.copy_out(None),
            "COPY (SELECT \"a\", \"B\" FROM ONLY \"s\".\"T\" WHERE (a > 0 OR b\n)) TO STDOUT \
             (FORMAT binary)"
        );
        let range = table.copy_out(Some((5, None)));
        assert_has!(range, "WHERE ctid >= '(5,0)' AND (a > 0 OR b\n))");
        table.filter = None;
        assert_eq!(
            table.copy_in(true),
            "COPY \"s\".\"T\" (\"a\", \"B\") FROM STDIN (FORMAT binary, FREEZE)"
        );
        table.columns.clear();
        assert_eq!(
            table.copy_in(false),
            "COPY \"s\".\"T\" FROM STDIN (FORMAT binary)"
        );
    }
}
