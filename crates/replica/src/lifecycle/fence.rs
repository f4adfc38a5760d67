//! The fence of a database that a switchover leaves: no ordinary session commits a write there any more.
//!
//! Three things hold it, all of which outlive a crash. `default_transaction_read_only` is on for the
//! database, so new sessions begin read-only; sessions from before are ended; and each table has a trigger
//! that refuses writes, for those that set it off, superusers too. To create a trigger waits for all
//! transactions that have written into its table, so whatever was committed in these tables lies before the
//! position that [`raise`] returns. The triggers do not fire for sessions with `session_replication_role =
//! replica`, which a replica in the other direction needs.
//!
//! Function `lockstep.fence()` is there before anything else of the fence, and the last to go, so it says
//! whether a switchover has left something. [`lower`] lets it pass everything first, which waits for no lock.

use std::time::Duration;

use lockstep_client::quote::identifier;
use lockstep_client::{ClientError, Connection, field};
use lockstep_wire::Lsn;

use crate::lifecycle::exporter::{LOCKED, has_code};
use crate::names::with_namespaces;
use crate::status::source::END;

/// Tables that a switchover fences: all that keep rows.
const TABLES: &str = "
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND {namespaces}
ORDER BY 1";

/// Tables whose fence may be removed.
const FENCED: &str = "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_trigger t \
    JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
    WHERE t.tgname = 'lockstep_fence' AND NOT t.tgisinternal ORDER BY 1";

/// Whether there is the function.
const IS_THERE: &str = "SELECT EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
    WHERE n.nspname = 'lockstep' AND p.proname = 'fence')";

/// Client sessions of the database that are not ours and that this role may end; `{idle}` narrows them.
const END_SESSIONS: &str = "
SELECT count(pg_terminate_backend(a.pid)) FROM pg_stat_activity a
    JOIN pg_roles me ON me.rolname = current_user LEFT JOIN pg_roles r ON r.oid = a.usesysid
WHERE a.datid = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
    AND a.application_name NOT IN ('lockstep replica', 'lockstep verify')
    AND (me.rolsuper OR NOT r.rolsuper
        AND (pg_has_role(a.usesysid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE')))";

const REFUSES: &str = "RAISE EXCEPTION 'database % takes no writes: lockstep replica switchover has moved it to \
    another server', quote_ident(current_database()) USING ERRCODE = 'read_only_sql_transaction', \
    HINT = 'Connect to the server that has it now.';";

const PASSES: &str = "RETURN NULL;";

/// How long the removal of one table's trigger waits for its readers.
const REMOVED_WITHIN: &str = "SET lock_timeout = '300ms'";

/// A commit waits for no standby: the replica, which may be one, is held.
const LOCAL: &str = "SET synchronous_commit = local";

fn function(body: &str) -> String {
    format!(
        "CREATE OR REPLACE FUNCTION lockstep.fence() RETURNS trigger LANGUAGE plpgsql AS \
             $fence$ BEGIN {body} END $fence$"
    )
}

fn names(session: &mut Connection, sql: &str) -> Result<Vec<String>, ClientError> {
    let rows = session.query(sql)?;
    rows.iter().map(|row| field(row, 0)).collect()
}

fn database(session: &mut Connection) -> Result<String, ClientError> {
    let row = session.query_one("SELECT current_database()")?;
    identifier("database", &field::<String>(&row, 0)?)
}

/// Number of the tables that a fence would be on.
pub(crate) fn tables(session: &mut Connection) -> Result<usize, ClientError> {
    names(session, &with_namespaces(TABLES)).map(|names| names.len())
}

/// Whether something of a fence is left on this database.
pub(crate) fn is_there(session: &mut Connection) -> Result<bool, ClientError> {
    field(&session.query_one(IS_THERE)?, 0)
}

/// Fences the database of a session, and returns the end of its WAL: everything that ordinary sessions have
/// committed in its tables lies before. An error after `patience` if a transaction that has written does not
/// end. Another call does the same again.
pub(crate) fn raise(session: &mut Connection, patience: Duration) -> Result<Lsn, ClientError> {
    let database = database(session)?;
    session.execute(LOCAL)?;
    if !is_there(session)? {
        session.execute("CREATE SCHEMA IF NOT EXISTS lockstep")?;
        session.execute(&function(PASSES))?;
    }
    session.execute(&format!(
        "ALTER DATABASE {database} SET default_transaction_read_only = on"
    ))?;
    session.query(&format!("{END_SESSIONS} AND a.state = 'idle'"))?;
    let tables = names(session, &with_namespaces(TABLES))?;
    // An autovacuum that has a lock ends for whoever has waited so long, where this role may say how long.
    let mut sql = format!(
        "BEGIN; SET LOCAL lock_timeout = {}; \
         SELECT set_config('deadlock_timeout', '20ms', true) \
         WHERE has_parameter_privilege('deadlock_timeout', 'SET'); \
         {}",
        patience.as_millis().max(1),
        function(REFUSES)
    );
    for table in tables {
        sql.push_str(&format!(
            "; CREATE OR REPLACE TRIGGER lockstep_fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE \
             ON {table} FOR EACH STATEMENT EXECUTE FUNCTION lockstep.fence()"
        ));
    }
    sql.push_str("; COMMIT");
    if let Err(error) = session.execute(&sql) {
        session.execute("ROLLBACK")?;
        return Err(error);
    }
    // What these have written elsewhere is not replicated; they would not notice the setting.
    session.query(END_SESSIONS)?;
    mark(session)
}

/// The end of the WAL once a commit, with all before it, is on disk.
pub(crate) fn mark(session: &mut Connection) -> Result<Lsn, ClientError> {
    session.execute(LOCAL)?;
    session.execute("SELECT pg_catalog.pg_logical_emit_message(true, 'lockstep', 'switchover')")?;
    field(&session.query_one(END)?, 0)
}

/// Takes the fence of a session's database away, if there is one. Triggers of tables that are in use stay,
/// and let everything pass. Returns their tables.
pub(crate) fn lower(session: &mut Connection) -> Result<Vec<String>, ClientError> {
    if !is_there(session)? {
        return Ok(Vec::new());
    }
    session.execute(LOCAL)?;
    session.execute(&function(PASSES))?;
    let database = database(session)?;
    session.execute(&format!(
        "ALTER DATABASE {database} RESET default_transaction_read_only"
    ))?;
    remove_triggers(session)
}

/// Removes triggers that let everything pass, and the function with the last of them.
fn remove_triggers(session: &mut Connection) -> Result<Vec<String>, ClientError> {
    let mut left = Vec::new();
    session.execute(REMOVED_WITHIN)?;
    for table in names(session, FENCED)? {
        match session.execute(&format!("DROP TRIGGER IF EXISTS lockstep_fence ON {table}")) {
            Ok(()) => {}
            Err(error) if has_code(&error, LOCKED) => left.push(table),
            Err(error) => return Err(error),
        }
    }
    session.execute("SET lock_timeout = 0")?;
    if left.is_empty() {
        session.execute("DROP FUNCTION IF EXISTS lockstep.fence()")?;
    }
    Ok(left)
}

/// What a session sees of a database that is to be fenced.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FenceFacts {
    /// This role may set the database's settings.
    pub owns_database: bool,
    /// This role may create a schema in it.
    pub makes_schemas: bool,
    /// Tables on which this role may not create a trigger.
    pub untriggered: Vec<String>,
    /// Roles with sessions that this role may not end.
    pub unended: Vec<String>,
    /// Somebody else than this role or a superuser owns schema `lockstep`.
    pub foreign_schema: Option<String>,
    pub has_plpgsql: bool,
    /// The database is read-only by default, and no switchover has done that.
    pub is_read_only: bool,
}

const FACTS: &str = "
SELECT pg_has_role(d.datdba, 'USAGE'),
    (SELECT o.rolname FROM pg_namespace n JOIN pg_roles o ON o.oid = n.nspowner
        WHERE n.nspname = 'lockstep' AND NOT o.rolsuper AND o.rolname <> current_user),
    EXISTS (SELECT FROM pg_language WHERE lanname = 'plpgsql'),
    EXISTS (SELECT FROM pg_db_role_setting s, unnest(s.setconfig) c
        WHERE s.setdatabase = d.oid AND s.setrole = 0
            AND c ~* '^default_transaction_read_only=(on|true|yes|1)$'),
    has_database_privilege(d.oid, 'CREATE')
FROM pg_database d WHERE d.datname = current_database()";

const UNTRIGGERED: &str = "
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND {namespaces}
    AND NOT has_table_privilege(c.oid, 'TRIGGER')
ORDER BY 1";

/// Whose sessions stay.
const UNENDED: &str = "
SELECT DISTINCT a.usename FROM pg_stat_activity a
    JOIN pg_roles me ON me.rolname = current_user LEFT JOIN pg_roles r ON r.oid = a.usesysid
WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
    AND NOT (me.rolsuper OR NOT r.rolsuper
        AND (pg_has_role(a.usesysid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE')))
ORDER BY 1";

/// Looks whether the database of a session can be fenced. Changes nothing.
pub(crate) fn look(session: &mut Connection) -> Result<FenceFacts, ClientError> {
    let is_there = is_there(session)?;
    let row = session.query_one(FACTS)?;
    Ok(FenceFacts {
        owns_database: field(&row, 0)?,
        makes_schemas: field(&row, 4)?,
        foreign_schema: field(&row, 1)?,
        has_plpgsql: field(&row, 2)?,
        is_read_only: field::<bool>(&row, 3)? && !is_there,
        untriggered: names(session, &with_namespaces(UNTRIGGERED))?,
        unended: names(session, UNENDED)?,
    })
}
