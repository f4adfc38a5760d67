//! The tables of a replica, and how far the copy of each is.

use lockstep_client::quote::sql_literal;
use lockstep_client::{ClientError, field};
use lockstep_wire::Lsn;

use super::{ReplicaState, as_text};
use crate::error::{ReplicaError, Result};
use crate::names::TableName;

/// A table's copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableState {
    /// Entered when the tables are listed. No row of it is there.
    Waiting,
    /// Several sessions load it. Some of its rows may be there: a copy that begins again truncates
    /// it.
    Copying,
    /// All rows are there, as of its start LSN.
    Copied,
    /// Somebody has left it out of a replica that follows changes of the schema, which stood at it: it
    /// gets no more changes.
    LeftOut,
}

as_text!(
    TableState,
    "table's state",
    (TableState::Waiting, "waiting"),
    (TableState::Copying, "copying"),
    (TableState::Copied, "copied"),
    (TableState::LeftOut, "left_out"),
);

/// Why a table's rows may not be the source's any more, once that was seen: what is in order again does not
/// bring them back. It stays until `verify` finds the table equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The target's table was unlogged: a crash empties it.
    Unlogged,
    /// Another table was in its place on the target.
    Replaced,
    /// The target's table had not all columns.
    NoColumns,
}

as_text!(
    Doubt,
    "doubt of a table",
    (Doubt::Unlogged, "unlogged"),
    (Doubt::Replaced, "replaced"),
    (Doubt::NoColumns, "columns"),
);

/// A table of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableCopy {
    pub name: TableName,
    pub state: TableState,
    /// Known once it is copied.
    pub start: Option<Lsn>,
    pub rows: u64,
    pub bytes: u64,
    /// Rows to update or delete that apply did not find.
    pub missing: u64,
    /// The table's OID on the source. None of a partition that was made later, and of a state that an older
    /// version made.
    pub source_oid: Option<u32>,
    /// The OID of the table on the target that it was copied into. None of a partition that was made later.
    pub target_oid: Option<u32>,
    /// What that table is called on the target now, or another that has its name; None if there is none.
    pub there: Option<TableName>,
    /// The target has another table of the name at the copy now, in place of the one that was copied into.
    pub replaced: bool,
    /// The target's table, or a partition of it, is unlogged.
    pub unlogged: bool,
    pub doubt: Option<Doubt>,
}

impl ReplicaState {
    /// Lists tables that are to be copied, with their OIDs on the source; those that are listed already
    /// stay as they are.
    pub fn add_tables(&mut self, name: &str, tables: &[(TableName, u32)]) -> Result<()> {
        for part in tables.chunks(1_000) {
            let rows: Result<Vec<_>, ClientError> = part
                .iter()
                .map(|(table, oid)| {
                    Ok(format!(
                        "({}, {}, {}, 'waiting', {oid})",
                        sql_literal("replica", name)?,
                        sql_literal("schema", &table.schema)?,
                        sql_literal("table", &table.table)?
                    ))
                })
                .collect();
            let rows = rows.map_err(ReplicaError::Target)?.join(", ");
            let sql = format!(
                "INSERT INTO lockstep.table_copy (replica, schema_name, table_name, state, \
                     source_oid) \
                 VALUES {rows} ON CONFLICT DO NOTHING"
            );
            self.connection
                .execute(&sql)
                .map_err(ReplicaError::Target)?;
        }
        Ok(())
    }

    /// The replica's tables.
    pub fn tables(&mut self, name: &str) -> Result<Vec<TableCopy>> {
        let sql = "SELECT schema_name, table_name, state, start_lsn, row_count, byte_count, \
                       missing_rows, source_oid, \
                       target_oid, there.nspname, there.relname, named.oid <> target_oid, \
                       there.relpersistence = 'u' OR there.relkind = 'p' AND EXISTS ( \
                           SELECT FROM pg_partition_tree(there.oid) t JOIN pg_class l ON l.oid = t.relid \
                           WHERE l.relpersistence = 'u'), doubt \
                   FROM lockstep.table_copy LEFT JOIN LATERAL ( \
                       SELECT x.oid FROM pg_class x JOIN pg_namespace s ON s.oid = x.relnamespace \
                       WHERE s.nspname = schema_name AND x.relname = table_name \
                           AND x.relkind IN ('r', 'p', 'f')) named ON true \
                   LEFT JOIN LATERAL ( \
                       SELECT n.nspname, c.relname, c.oid, c.relkind, c.relpersistence \
                       FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                       WHERE c.relkind IN ('r', 'p', 'f') AND c.oid IN (target_oid, named.oid) \
                       ORDER BY c.oid = target_oid DESC LIMIT 1) there ON true \
                   WHERE replica = $1 ORDER BY 1, 2";
        let rows = self.connection.query_with(sql, &[&name]);
        let rows = rows.map_err(ReplicaError::Target)?;
        rows.iter().map(|row| table_copy(row)).collect()
    }

    /// Rows to update or delete that were not found in all tables, and a text that is another one once
    /// something has happened to the target's tables, or a doubt is gone.
    pub fn tables_seen(&mut self, name: &str) -> Result<(u64, String)> {
        let sql = "SELECT coalesce(sum(missing_rows), 0)::int8, md5(string_agg(concat_ws(' ', schema_name, \
                           table_name, doubt, n.nspname, c.relname, c.relpersistence), E'\\n' \
                           ORDER BY schema_name, table_name) \
                       FILTER (WHERE doubt IS NOT NULL OR target_oid IS NOT NULL AND (c.oid IS NULL \
                           OR c.relpersistence <> 'p' OR (n.nspname, c.relname) <> (schema_name, \
                           table_name)))) \
                   FROM lockstep.table_copy LEFT JOIN (pg_class c JOIN pg_namespace n \
                           ON n.oid = c.relnamespace) ON c.oid = target_oid \
                   WHERE replica = $1";
        let read = |rows: Vec<Vec<Option<String>>>| {
            let row = rows.first().map_or(&[][..], Vec::as_slice);
            Ok((
                field(row, 0)?,
                field::<Option<String>>(row, 1)?.unwrap_or_default(),
            ))
        };
        let rows = self.connection.query_with(sql, &[&name]);
        rows.and_then(read).map_err(ReplicaError::Target)
    }

    /// Takes the target's tables of these names for those that were copied into: they have the source's rows.
    pub fn adopt(&mut self, name: &str, tables: &[&TableName]) -> Result<()> {
        let names: Vec<_> = (tables.iter())
            .map(|table| (&table.schema, &table.table))
            .collect();
        let sql = "UPDATE lockstep.table_copy SET target_oid = c.oid \
                   FROM json_array_elements($2::json) l JOIN pg_namespace n ON n.nspname = l ->> 0 \
                       JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = l ->> 1 \
                   WHERE replica = $1 AND schema_name = n.nspname AND table_name = c.relname";
        let names = serde_json::json!(names).to_string();
        let adopted = self.connection.query_with(sql, &[&name, &names]);
        adopted.map(drop).map_err(ReplicaError::Target)
    }

    /// Keeps why rows of these tables may not be the source's; None: they are.
    pub fn doubt(&mut self, name: &str, tables: &[(&TableName, Option<Doubt>)]) -> Result<()> {
        let doubts: Vec<_> = (tables.iter())
            .map(|(table, doubt)| (&table.schema, &table.table, doubt.map(Doubt::text)))
            .collect();
        let sql = "UPDATE lockstep.table_copy SET doubt = l ->> 2 FROM json_array_elements($2::json) l \
                   WHERE replica = $1 AND schema_name = l ->> 0 AND table_name = l ->> 1 \
                       AND doubt IS DISTINCT FROM l ->> 2";
        let doubts = serde_json::json!(doubts).to_string();
        let kept = self.connection.query_with(sql, &[&name, &doubts]);
        kept.map(drop).map_err(ReplicaError::Target)
    }
}

/// The statement that says that several sessions load a table; run it before they begin.
pub fn copying_sql(replica: &str, table: &TableName) -> Result<String, ClientError> {
    Ok(format!(
        "UPDATE lockstep.table_copy SET state = 'copying' \
         WHERE replica = {} AND schema_name = {} AND table_name = {}",
        sql_literal("replica", replica)?,
        sql_literal("schema", &table.schema)?,
        sql_literal("table", &table.table)?
    ))
}

/// The statement that says that tables are copied, with their rows and bytes; run it in the
/// transaction that loads them.
pub fn copied_sql(
    replica: &str,
    start: Lsn,
    tables: &[(&TableName, u64, u64)],
) -> Result<String, ClientError> {
    let rows: Result<Vec<_>, ClientError> = tables
        .iter()
        .map(|(table, rows, bytes)| {
            Ok(format!(
                "({}, {}, {rows}::bigint, {bytes}::bigint)",
                sql_literal("schema", &table.schema)?,
                sql_literal("table", &table.table)?
            ))
        })
        .collect();
    Ok(format!(
        "UPDATE lockstep.table_copy AS c SET state = 'copied', start_lsn = '{start}', \
             row_count = v.row_count, byte_count = v.byte_count, copied_at = now(), \
             target_oid = (SELECT r.oid FROM pg_class r \
                 JOIN pg_namespace n ON n.oid = r.relnamespace \
                 WHERE n.nspname = v.s AND r.relname = v.t) \
         FROM (VALUES {}) AS v (s, t, row_count, byte_count) \
         WHERE c.replica = {} AND c.schema_name = v.s AND c.table_name = v.t",
        rows?.join(", "),
        sql_literal("replica", replica)?
    ))
}

fn table_copy(row: &[Option<String>]) -> Result<TableCopy> {
    let read = || -> Result<_, ClientError> {
        let name = TableName {
            schema: field(row, 0)?,
            table: field(row, 1)?,
        };
        let counts = (field(row, 4)?, field(row, 5)?, field(row, 6)?);
        let there: Option<String> = field(row, 9)?;
        let there = match there {
            Some(schema) => Some(TableName {
                schema,
                table: field(row, 10)?,
            }),
            None => None,
        };
        let replaced = field::<Option<bool>>(row, 11)?.unwrap_or(false);
        let sides = (field(row, 7)?, field(row, 8)?, there, replaced);
        let unlogged = field::<Option<bool>>(row, 12)?.unwrap_or(false);
        let doubt: Option<String> = field(row, 13)?;
        Ok((
            name,
            field::<String>(row, 2)?,
            field(row, 3)?,
            counts,
            sides,
            (unlogged, doubt),
        ))
    };
    let (name, state, start, counts, sides, (unlogged, doubt)) =
        read().map_err(ReplicaError::Target)?;
    let (source_oid, target_oid, there, replaced) = sides;
    let (rows, bytes, missing) = counts;
    Ok(TableCopy {
        name,
        state: TableState::parse(&state)?,
        start,
        rows,
        bytes,
        missing,
        source_oid,
        target_oid,
        there,
        replaced,
        unlogged,
        doubt: doubt.as_deref().map(Doubt::parse).transpose()?,
    })
}
