//! Whether a name still means the table that it meant at the moment.
//!
//! A snapshot does not cover names, nor what TRUNCATE and an ALTER TABLE that rewrites do: a session
//! with an older snapshot finds the table empty then. So each table is locked before it is read, and
//! what the snapshot sees of it is compared with what is now: its OID, its columns, and the files of
//! it and of all its partitions. VACUUM FULL and CLUSTER count as changes, too, though they need not.
//!
//! The lock keeps most of that as it is. Two things need no lock that it stands against: another
//! schema can take the schema's name, and partitions can be attached. So all is compared once more
//! when the table has been read, and what was read counts only if nothing has changed.
//!
//! The lock is given back then, not at the end of the session's transaction: who waits to change a
//! table keeps everybody else from it, and a server has room for so many locks only.

use lockstep_client::quote::sql_literal;
use lockstep_client::{ClientError, Connection, field};

use super::statements::Published;

type Result<T> = std::result::Result<T, ClientError>;

/// SQLSTATEs of a name that is none of a table, and of a column that does not exist.
const NOT_THERE: [&str; 4] = ["42P01", "42703", "3F000", "42809"];

/// SQLSTATEs of a lock that was waited for too long, and of a deadlock.
const BUSY: [&str; 2] = ["55P03", "40P01"];

/// Gives the lock back; what failed meanwhile must not end the transaction that holds the snapshot.
const BACK: &str = "ROLLBACK TO verify; RELEASE verify";

/// What a name means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// The table of the moment.
    Same,
    /// The name meant no table at the moment: nothing, or a view.
    None,
    /// The table was rewritten, truncated, replaced or dropped since, or another session has it
    /// locked.
    Changed,
}

/// The query for what a table's name meant at the snapshot: if that is a table, and if the name means
/// it still, with the same columns and files. Catalogs are read by the snapshot, the functions
/// tell what is now; of a column that is not there any more, a privilege is null.
fn state(table: &Published) -> Result<String> {
    let schema = sql_literal("schema", &table.table.schema)?;
    let relation = sql_literal("table", &table.table.table)?;
    let name = sql_literal("table", &table.table.sql())?;
    Ok(format!(
        "WITH RECURSIVE was AS (
            SELECT c.oid, c.relfilenode, c.relkind, true AS is_root
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = {schema} AND c.relname = {relation}
            UNION ALL SELECT c.oid, c.relfilenode, c.relkind, false
            FROM was JOIN pg_catalog.pg_inherits i
                    ON i.inhparent = was.oid AND NOT i.inhdetachpending
                JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
        ), files_then AS (
            SELECT pg_catalog.string_agg(w.oid || ' ' || w.relfilenode, ',' ORDER BY w.oid) AS files
            FROM was w
        ), root AS (
            SELECT w.oid, w.relkind, (SELECT pg_catalog.bool_and(
                    pg_catalog.has_column_privilege(w.oid, a.attnum, 'SELECT') IS NOT NULL)
                FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = w.oid AND a.attnum > 0 AND NOT a.attisdropped) AS has_columns
            FROM was w WHERE w.is_root
        ), files_now AS (
            SELECT pg_catalog.string_agg(f.oid || ' '
                || coalesce(pg_catalog.pg_relation_filenode(f.oid), 0), ',' ORDER BY f.oid) AS files
            FROM (SELECT r.oid FROM root r UNION SELECT p.relid
                FROM root r CROSS JOIN LATERAL pg_catalog.pg_partition_tree(r.oid) p) f
        )
        SELECT r.relkind IN ('r', 'p'), coalesce(r.has_columns, true)
            AND coalesce(pg_catalog.to_regclass({name})::pg_catalog.oid = r.oid, false)
            AND t.files = n.files
        FROM root r CROSS JOIN files_then t CROSS JOIN files_now n"
    ))
}

fn meaning(rows: &[Vec<Option<String>>]) -> Result<Table> {
    let Some(row) = rows.first() else {
        return Ok(Table::None);
    };
    Ok(match (field(row, 0)?, field(row, 1)?) {
        (false, _) => Table::None,
        (true, true) => Table::Same,
        (true, false) => Table::Changed,
    })
}

/// Locks a table, of a session that has the moment's snapshot. If it is the same, [`end`] must follow.
pub(super) fn begin(session: &mut Connection, table: &Published) -> Result<Table> {
    let (only, name, state) = (table.only(), table.table.sql(), state(table)?);
    let lock = format!("SAVEPOINT verify; LOCK TABLE {only}{name} IN ACCESS SHARE MODE");
    match session.query(&format!("{lock}; {state}")) {
        Ok(rows) => {
            let found = meaning(&rows)?;
            if found != Table::Same {
                session.execute(BACK)?;
            }
            Ok(found)
        }
        Err(error) if error.refusal().is_some() && session.execute(BACK).is_ok() => {
            if is_busy(&error) {
                return Ok(Table::Changed);
            }
            match last(session, table, "SAVEPOINT verify; ")? {
                Table::Same if is_not_there(&error) => Ok(Table::Changed),
                Table::Same => Err(error),
                other => Ok(other),
            }
        }
        Err(error) => Err(error),
    }
}

/// Says whether a table was the same until now, and gives its lock back. `failed`: a statement has,
/// since [`begin`].
pub(super) fn end(session: &mut Connection, table: &Published, failed: bool) -> Result<bool> {
    let first = if failed { "ROLLBACK TO verify; " } else { "" };
    Ok(last(session, table, first)? == Table::Same)
}

/// What the name means now. Ends the savepoint that is there after `first`.
fn last(session: &mut Connection, table: &Published, first: &str) -> Result<Table> {
    let state = state(table)?;
    match session.query(&format!("{first}{state}; {BACK}")) {
        Ok(rows) => meaning(&rows),
        // It waits for the lock of a partition that has come.
        Err(error) if is_busy(&error) => {
            session.execute(BACK)?;
            Ok(Table::Changed)
        }
        Err(error) => Err(error),
    }
}

/// What `read` reads of a table; none if that is not what it was at the moment.
pub(super) fn read<T>(
    session: &mut Connection,
    table: &Published,
    read: impl FnOnce(&mut Connection) -> Result<T>,
) -> Result<Option<T>> {
    if begin(session, table)? != Table::Same {
        return Ok(None);
    }
    let found = read(session);
    match (end(session, table, found.is_err()), found) {
        (Ok(true), Ok(found)) => Ok(Some(found)),
        (Ok(true), Err(error)) if !is_not_there(&error) => Err(error),
        (Ok(_), _) => Ok(None),
        (Err(_), Err(error)) | (Err(error), Ok(_)) => Err(error),
    }
}

/// The error is that of a name that does not exist, or of none that can be read as a table.
pub(super) fn is_not_there(error: &ClientError) -> bool {
    has_state(error, &NOT_THERE)
}

/// The error is that of a lock that was waited for too long.
pub(super) fn is_busy(error: &ClientError) -> bool {
    has_state(error, &BUSY)
}

fn has_state(error: &ClientError, states: &[&str]) -> bool {
    (error.refusal()).is_some_and(|refusal| states.contains(&refusal.sqlstate.as_str()))
}
