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
//! table keeps everybody else from it, and a server has room for so many locks only. Small tables are locked
//! together, for a short time: if that does not go through, each is locked by itself.

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

/// Longest time of a statement while several tables are locked, in milliseconds.
const TOGETHER_MS: u32 = 1_000;

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

/// The query for what tables' names meant at the snapshot: if that is a table, and if the name means it
/// still, with the same columns and files, each with its place. Catalogs are read by the snapshot, the
/// functions tell what is now; of a column that is not there any more, a privilege is null.
fn state(tables: &[&Published]) -> Result<String> {
    let asked = tables.iter().enumerate().map(|(place, table)| {
        let schema = sql_literal("schema", &table.table.schema)?;
        let relation = sql_literal("table", &table.table.table)?;
        let name = sql_literal("table", &table.table.sql())?;
        Ok(format!("({place}, {schema}, {relation}, {name})"))
    });
    let asked = asked.collect::<Result<Vec<_>>>()?.join(", ");
    Ok(format!(
        "WITH RECURSIVE asked(place, schema, relation, name) AS (VALUES {asked}), was AS (
            SELECT a.place, a.name, c.oid, c.relfilenode, c.relkind, true AS is_root
            FROM asked a JOIN pg_catalog.pg_namespace n ON n.nspname = a.schema::pg_catalog.name
                JOIN pg_catalog.pg_class c
                    ON c.relnamespace = n.oid AND c.relname = a.relation::pg_catalog.name
            UNION ALL SELECT was.place, was.name, c.oid, c.relfilenode, c.relkind, false
            FROM was JOIN pg_catalog.pg_inherits i
                    ON i.inhparent = was.oid AND NOT i.inhdetachpending
                JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
        ), files_then AS (
            SELECT w.place, pg_catalog.string_agg(w.oid || ' ' || w.relfilenode, ',' ORDER BY w.oid)
                AS files
            FROM was w GROUP BY w.place
        ), root AS (
            SELECT w.place, w.name, w.oid, w.relkind, (SELECT pg_catalog.bool_and(
                    pg_catalog.has_column_privilege(w.oid, a.attnum, 'SELECT') IS NOT NULL)
                FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = w.oid AND a.attnum > 0 AND NOT a.attisdropped) AS has_columns
            FROM was w WHERE w.is_root
        ), files_now AS (
            SELECT f.place, pg_catalog.string_agg(f.oid || ' '
                || coalesce(pg_catalog.pg_relation_filenode(f.oid), 0), ',' ORDER BY f.oid) AS files
            FROM (SELECT r.place, r.oid FROM root r UNION SELECT r.place, p.relid
                FROM root r CROSS JOIN LATERAL pg_catalog.pg_partition_tree(r.oid) p) f
            GROUP BY f.place
        )
        SELECT r.place, r.relkind IN ('r', 'p'), coalesce(r.has_columns, true)
            AND coalesce(pg_catalog.to_regclass(r.name)::pg_catalog.oid = r.oid, false)
            AND t.files = n.files
        FROM root r JOIN files_then t ON t.place = r.place JOIN files_now n ON n.place = r.place"
    ))
}

fn meaning(rows: &[Vec<Option<String>>]) -> Result<Table> {
    let Some(row) = rows.first() else {
        return Ok(Table::None);
    };
    Ok(match (field(row, 1)?, field(row, 2)?) {
        (false, _) => Table::None,
        (true, true) => Table::Same,
        (true, false) => Table::Changed,
    })
}

fn named(table: &Published) -> String {
    format!("{}{}", table.only(), table.table.sql())
}

/// All of these tables are what they were.
fn all_same(rows: &[Vec<Option<String>>], tables: &[&Published]) -> Result<bool> {
    let same = rows.iter().map(|row| Ok(field(row, 1)? && field(row, 2)?));
    let same = same.collect::<Result<Vec<bool>>>()?;
    Ok(same.len() == tables.len() && same.into_iter().all(|same| same))
}

/// Locks tables together, and lets no statement take long until [`end_all`]. False if that cannot be, or one
/// of them is not what it was at the moment: then none is locked.
pub(super) fn begin_all(session: &mut Connection, tables: &[&Published]) -> Result<bool> {
    let names: Vec<_> = tables.iter().map(|table| named(table)).collect();
    let (names, state) = (names.join(", "), state(tables)?);
    let begun = session.query(&format!(
        "SAVEPOINT verify; SET LOCAL statement_timeout = {TOGETHER_MS}; \
         LOCK TABLE {names} IN ACCESS SHARE MODE; {state}"
    ));
    let begun = match begun {
        Ok(rows) => all_same(&rows, tables)?,
        Err(error) if error.refusal().is_some() => false,
        Err(error) => return Err(error),
    };
    if !begun {
        session.execute(BACK)?;
    }
    Ok(begun)
}

/// Says whether all tables were the same until now, and gives their locks back. `failed`: a statement has,
/// since [`begin_all`].
pub(super) fn end_all(
    session: &mut Connection,
    tables: &[&Published],
    failed: bool,
) -> Result<bool> {
    if failed {
        session.execute(BACK)?;
        return Ok(false);
    }
    let state = state(tables)?;
    match session.query(&format!("{state}; {BACK}")) {
        Ok(rows) => all_same(&rows, tables),
        Err(error) if error.refusal().is_some() => {
            session.execute(BACK)?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Locks a table, of a session that has the moment's snapshot. If it is the same, [`end`] must follow.
pub(super) fn begin(session: &mut Connection, table: &Published) -> Result<Table> {
    let state = state(&[table])?;
    let lock = format!(
        "SAVEPOINT verify; LOCK TABLE {} IN ACCESS SHARE MODE",
        named(table)
    );
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
    let state = state(&[table])?;
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
