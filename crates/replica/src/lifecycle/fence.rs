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
//! whether a switchover has left something; its comment keeps what the setting was. [`lower`] lets it pass
//! everything first, which waits for no lock.
//!
//! [`close`] keeps the target from being written until it opens, in the same way with names of its own: the
//! target may have the fence of the switchover that has left it, which stays if this one is taken back.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::quote::{identifier, sql_literal};
use lockstep_client::{ClientError, Connection, field};
use lockstep_service::words::figures::counted;
use lockstep_wire::Lsn;

use crate::error::{ReplicaError, Result};
use crate::lifecycle::exporter::{LOCKED, has_code};
use crate::names::with_namespaces;
use crate::status::source::END;

/// Tables that a switchover fences: all that keep rows.
const TABLES: &str = "
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND {namespaces}
ORDER BY 1";

/// Why a database takes no writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fence {
    /// A switchover has left it.
    Left,
    /// A switchover comes to it.
    Comes,
}

impl Fence {
    /// The name of the function; those of the triggers end with it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Left => "fence",
            Self::Comes => "closed",
        }
    }

    fn refuses(self) -> String {
        let (says, hint) = match self {
            Self::Left => (
                "takes no writes: lockstep replica switchover has moved it to another server",
                "Connect to the server that has it now.",
            ),
            Self::Comes => (
                "takes no writes yet: lockstep replica switchover is moving it here",
                "Try again in a moment; after a command that was killed, run it again.",
            ),
        };
        format!(
            "RAISE EXCEPTION 'database % {says}', quote_ident(current_database()) \
             USING ERRCODE = 'read_only_sql_transaction', HINT = '{hint}';"
        )
    }

    fn function(self, body: &str) -> String {
        format!(
            "CREATE OR REPLACE FUNCTION lockstep.{}() RETURNS trigger LANGUAGE plpgsql AS \
                 $fence$ BEGIN {body} END $fence$",
            self.name()
        )
    }

    fn trigger(self, table: &str) -> String {
        let name = self.name();
        format!(
            "CREATE OR REPLACE TRIGGER lockstep_{name} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE \
             ON {table} FOR EACH STATEMENT EXECUTE FUNCTION lockstep.{name}()"
        )
    }

    /// Whether something of it is there.
    pub(crate) fn is_there(self, session: &mut Connection) -> Result<bool, ClientError> {
        Ok(self.comment(session)?.is_some())
    }

    /// The words of the function's comment; None if there is no function.
    fn comment(self, session: &mut Connection) -> Result<Option<String>, ClientError> {
        let row = session.query_opt(&format!(
            "SELECT coalesce(obj_description(p.oid, 'pg_proc'), '') FROM pg_proc p \
             JOIN pg_namespace n ON n.oid = p.pronamespace \
             WHERE n.nspname = 'lockstep' AND p.proname = '{}'",
            self.name()
        ))?;
        row.map(|row| field(&row, 0)).transpose()
    }

    /// Tables that have its trigger.
    fn fenced(self, session: &mut Connection) -> Result<Vec<String>, ClientError> {
        let sql = format!(
            "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_trigger t \
             JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE t.tgname = 'lockstep_{}' AND NOT t.tgisinternal ORDER BY 1",
            self.name()
        );
        names(session, &sql)
    }
}

/// The database's own setting, as it was before a fence.
const SETTING: &str = "SELECT (SELECT split_part(c, '=', 2) FROM pg_db_role_setting s, unnest(s.setconfig) c \
    WHERE s.setrole = 0 AND s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()) \
      AND c LIKE 'default_transaction_read_only=%')";

/// What the comment of a fence's function says of the setting begins with this.
const BEFORE: &str = "default_transaction_read_only before: ";

/// What it says if there was none.
const UNSET: &str = "unset";

/// Client sessions of the database that are not ours and that this role may end; `{idle}` narrows them.
const END_SESSIONS: &str = "
SELECT count(pg_terminate_backend(a.pid)) FROM pg_stat_activity a
    JOIN pg_roles me ON me.rolname = current_user LEFT JOIN pg_roles r ON r.oid = a.usesysid
WHERE a.datid = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()
    AND a.application_name NOT IN ('lockstep replica', 'lockstep verify')
    AND (me.rolsuper OR NOT r.rolsuper
        AND (pg_has_role(a.usesysid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE')))";

const PASSES: &str = "RETURN NULL;";

/// How long the removal of one table's trigger waits for its readers.
const REMOVED_WITHIN: &str = "SET lock_timeout = '300ms'";

/// A commit waits for no standby: the replica, which may be one, is held.
const LOCAL: &str = "SET synchronous_commit = local";

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

/// Whether something of the fence of a switchover that has left this database is there.
pub(crate) fn is_there(session: &mut Connection) -> Result<bool, ClientError> {
    Fence::Left.is_there(session)
}

/// Lets sessions begin read-only, and keeps what the setting was. The function passes everything until there
/// are triggers.
fn begin(session: &mut Connection, fence: Fence) -> Result<(), ClientError> {
    session.execute(LOCAL)?;
    let mut sql = String::new();
    if fence.comment(session)?.is_none_or(|it| it.is_empty()) {
        let before: Option<String> = field(&session.query_one(SETTING)?, 0)?;
        let before = sql_literal(
            "setting",
            &format!("{BEFORE}{}", before.as_deref().unwrap_or(UNSET)),
        )?;
        sql = format!(
            "CREATE SCHEMA IF NOT EXISTS lockstep; {}; COMMENT ON FUNCTION lockstep.{}() IS {before}; ",
            fence.function(PASSES),
            fence.name()
        );
    }
    let database = database(session)?;
    session.execute(&format!(
        "{sql}ALTER DATABASE {database} SET default_transaction_read_only = on"
    ))
}

/// Fences the database of a session, and returns the end of its WAL: everything that ordinary sessions have
/// committed there lies before. An error after `patience` if a transaction that has written does not end.
/// Another call does the same again.
pub(crate) fn raise(session: &mut Connection, patience: Duration) -> Result<Lsn> {
    let until = Instant::now() + patience;
    let mut end_writes = || {
        begin(session, Fence::Left)?;
        session.query(&format!("{END_SESSIONS} AND a.state = 'idle'"))?;
        make_triggers(session, patience)?;
        end_sessions(session, until)
    };
    let source = ReplicaError::Source;
    match end_writes().map_err(source)? {
        0 => mark(session).map_err(source),
        left => Err(ReplicaError::State(format!(
            "{} that were connected to the source have not ended in time",
            counted(left, "session")
        ))),
    }
}

/// Lets no table be written any more, once all transactions that have written into one have ended.
fn make_triggers(session: &mut Connection, patience: Duration) -> Result<(), ClientError> {
    let fence = Fence::Left;
    let mut sql = format!(
        "BEGIN; {}; {}",
        wait_at_most(patience),
        fence.function(&fence.refuses())
    );
    for table in names(session, &with_namespaces(TABLES))? {
        sql.push_str("; ");
        sql.push_str(&fence.trigger(&table));
    }
    sql.push_str("; COMMIT");
    if let Err(error) = session.execute(&sql) {
        session.execute("ROLLBACK")?;
        return Err(error);
    }
    Ok(())
}

/// Ends all sessions that are connected now: no trigger would hold what they write elsewhere, and they would
/// not notice the setting. Returns how many are left.
fn end_sessions(session: &mut Connection, until: Instant) -> Result<u64, ClientError> {
    let now: String = field(&session.query_one("SELECT clock_timestamp()::text")?, 0)?;
    let now = sql_literal("time", &now)?;
    let sql = format!("{END_SESSIONS} AND a.backend_start <= {now}::timestamptz");
    loop {
        let left: u64 = field(&session.query_one(&sql)?, 0)?;
        if left == 0 || Instant::now() >= until {
            return Ok(left);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Keeps the database of a session from being written, but for sessions with `session_replication_role =
/// replica`. No session is ended. An error after `patience` if a transaction that has written into a table
/// does not end. Another call does the same again.
pub(crate) fn close(session: &mut Connection, patience: Duration) -> Result<(), ClientError> {
    begin(session, Fence::Comes)?;
    // What commits later, and is flushed, flushes all of this.
    session.execute("SET synchronous_commit = off")?;
    session.execute(&Fence::Comes.function(&Fence::Comes.refuses()))?;
    // Each by itself: apply, which locks several tables, never waits for one while this waits for another.
    for table in names(session, &with_namespaces(TABLES))? {
        let trigger = Fence::Comes.trigger(&table);
        let sql = format!("BEGIN; {}; {trigger}; COMMIT", wait_at_most(patience));
        if let Err(error) = session.execute(&sql) {
            session.execute("ROLLBACK")?;
            return Err(error);
        }
    }
    Ok(())
}

/// Bounds the waits of a transaction for locks. An autovacuum that has a lock ends for whoever has waited so
/// long, where this role may say how long.
fn wait_at_most(patience: Duration) -> String {
    format!(
        "SET LOCAL lock_timeout = {}; \
         SELECT set_config('deadlock_timeout', '20ms', true) \
         WHERE has_parameter_privilege('deadlock_timeout', 'SET')",
        patience.as_millis().max(1)
    )
}

/// The end of the WAL once a commit, with all before it, is on disk.
pub(crate) fn mark(session: &mut Connection) -> Result<Lsn, ClientError> {
    session.execute(LOCAL)?;
    session.execute("SELECT pg_catalog.pg_logical_emit_message(true, 'lockstep', 'switchover')")?;
    field(&session.query_one(END)?, 0)
}

/// Takes a fence of a session's database away, if there is one. Triggers of tables that are in use stay, and
/// let everything pass. Returns their tables.
pub(crate) fn lower(session: &mut Connection, fence: Fence) -> Result<Vec<String>, ClientError> {
    pass(session, fence)?;
    remove(session, fence)
}

/// Lets a fence, if there is one, pass everything, and restores the setting. Waits for no lock of a table.
pub(crate) fn pass(session: &mut Connection, fence: Fence) -> Result<(), ClientError> {
    let Some(comment) = fence.comment(session)? else {
        return Ok(());
    };
    session.execute(LOCAL)?;
    session.execute(&fence.function(PASSES))?;
    let Some(before) = comment.strip_prefix(BEFORE) else {
        return Ok(());
    };
    let database = database(session)?;
    let setting = match before {
        UNSET => "RESET default_transaction_read_only".to_owned(),
        before => format!(
            "SET default_transaction_read_only = {}",
            sql_literal("setting", before)?
        ),
    };
    session.execute(&format!(
        "ALTER DATABASE {database} {setting}; COMMENT ON FUNCTION lockstep.{}() IS NULL",
        fence.name()
    ))
}

/// Removes triggers that let everything pass, and the function with the last of them. Returns tables that are
/// in use, whose triggers stay.
pub(crate) fn remove(session: &mut Connection, fence: Fence) -> Result<Vec<String>, ClientError> {
    let (mut left, name) = (Vec::new(), fence.name());
    if !fence.is_there(session)? {
        return Ok(left);
    }
    session.execute(REMOVED_WITHIN)?;
    for table in fence.fenced(session)? {
        match session.execute(&format!(
            "DROP TRIGGER IF EXISTS lockstep_{name} ON {table}"
        )) {
            Ok(()) => {}
            Err(error) if has_code(&error, LOCKED) => left.push(table),
            Err(error) => return Err(error),
        }
    }
    session.execute("SET lock_timeout = 0")?;
    if left.is_empty() {
        session.execute(&format!("DROP FUNCTION IF EXISTS lockstep.{name}()"))?;
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
