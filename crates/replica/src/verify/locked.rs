//! Whether a name still means the table that it meant at the moment.
//!
//! A snapshot does not cover names, nor what TRUNCATE and an ALTER TABLE that rewrites do: a session
//! with an older snapshot finds the table empty then. So each table is locked before it is read, and
//! what the snapshot sees of it is compared with what is now: its OID, and the files of it and of all
//! its partitions. Under the lock, which stays until the session's transaction ends, neither can
//! change any more. VACUUM FULL and CLUSTER count as changes, too, though they need not.

use lockstep_client::{ClientError, Connection, field};

use super::statements::Published;

/// SQLSTATEs of a name that is none of a table, and of a column that does not exist.
const NOT_THERE: [&str; 4] = ["42P01", "42703", "3F000", "42809"];

/// SQLSTATEs of a lock that was waited for too long, and of a deadlock.
const BUSY: [&str; 2] = ["55P03", "40P01"];

/// What `$1` and `$2`, a schema and a table's name, meant at the snapshot: if that is a table, and if
/// `$3`, the same as one name, means it still, with the same files. pg_class and pg_inherits are read
/// by the snapshot, the functions tell what is now.
const STATE: &str = "
WITH RECURSIVE was AS (
    SELECT c.oid, c.relfilenode, c.relkind, 0 AS level
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = $2
    UNION ALL SELECT c.oid, c.relfilenode, c.relkind, was.level + 1
    FROM was JOIN pg_inherits i ON i.inhparent = was.oid AND NOT i.inhdetachpending
        JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
), files_then AS (
    SELECT string_agg(w.oid || ' ' || w.relfilenode, ',' ORDER BY w.oid) AS files FROM was w
), root AS (
    SELECT w.oid, w.relkind FROM was w WHERE w.level = 0
), files_now AS (
    SELECT string_agg(f.oid || ' ' || coalesce(pg_relation_filenode(f.oid), 0), ',' ORDER BY f.oid)
        AS files
    FROM (SELECT r.oid FROM root r
        UNION SELECT p.relid FROM root r CROSS JOIN LATERAL pg_partition_tree(r.oid) p) f
)
SELECT r.relkind IN ('r', 'p'),
    coalesce(r.oid = to_regclass($3)::oid, false) AND t.files = n.files
FROM root r CROSS JOIN files_then t CROSS JOIN files_now n";

/// What a name means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// The table of the moment, which is locked now.
    Same,
    /// It meant no table at the moment: nothing, or a view.
    None,
    /// The table was rewritten, truncated, replaced or dropped since, or another session has it
    /// locked.
    Changed,
}

/// Locks a table, of a session that has the moment's snapshot.
pub(super) fn lock(session: &mut Connection, table: &Published) -> Result<Table, ClientError> {
    let name = table.table.sql();
    let only = table.only();
    // An error must not end the transaction that holds the snapshot.
    let locked = session.execute(&format!(
        "SAVEPOINT verify; LOCK TABLE {only}{name} IN ACCESS SHARE MODE; RELEASE verify"
    ));
    let is_locked = match locked {
        Ok(()) => true,
        Err(error) if has_state(&error, &NOT_THERE) || has_state(&error, &BUSY) => {
            session.execute("ROLLBACK TO verify; RELEASE verify")?;
            false
        }
        Err(error) => return Err(error),
    };
    let (schema, relation) = (&table.table.schema, &table.table.table);
    let rows = session.query_with(STATE, &[schema, relation, &name])?;
    let Some(row) = rows.first() else {
        return Ok(Table::None);
    };
    Ok(match (field(row, 0)?, field(row, 1)?) {
        (true, true) if is_locked => Table::Same,
        (true, _) => Table::Changed,
        (false, _) => Table::None,
    })
}

/// The error is that of a name that does not exist, or of none that can be read as a table.
pub(super) fn is_not_there(error: &ClientError) -> bool {
    has_state(error, &NOT_THERE)
}

fn has_state(error: &ClientError, states: &[&str]) -> bool {
    (error.refusal()).is_some_and(|refusal| states.contains(&refusal.sqlstate.as_str()))
}
