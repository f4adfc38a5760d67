//! A session of a server as a database that can be fenced.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_apply::sessions;
use lockstep_client::quote::{identifier, sql_literal};
use lockstep_client::{ClientError, Connection, field};
use lockstep_wire::Lsn;

use super::{Fence, Fenced, LOCAL, Writers, is_there};
use crate::lifecycle::exporter::{LOCKED, has_code};
use crate::names::with_namespaces;
use crate::status::source::END;

/// Tables that a switchover fences, all that keep rows, as far as they have no trigger of the fence that
/// fires for ordinary sessions.
const UNFENCED: &str = "
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND {namespaces}
    AND c.oid NOT IN (SELECT t.tgrelid FROM pg_trigger t
        WHERE t.tgname = 'lockstep_{fence}' AND t.tgenabled IN ('O', 'A')
            AND t.tgfoid = to_regprocedure('lockstep.{fence}()'))
ORDER BY 1";

/// Number of the tables that a switchover fences.
const TABLES: &str = "
SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND {namespaces}";

/// Transactions of others that have locked a table for writing, with their process: 0 for a prepared one.
const WRITERS: &str = "
SELECT DISTINCT l.virtualtransaction, coalesce(l.pid, 0)
FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND {namespaces}";

/// Transactions of the database that are prepared and not ended.
const PREPARED: &str =
    "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared";

/// The database's own setting, as it was before a fence.
const SETTING: &str = "SELECT (SELECT split_part(c, '=', 2) FROM pg_db_role_setting s, unnest(s.setconfig) c \
    WHERE s.setrole = 0 AND s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()) \
      AND c LIKE 'default_transaction_read_only=%')";

/// Ends the sessions of the database that may write and are not spared (`{spared}`), as far as this role may.
/// A walsender of a database executes SQL as well, unless it streams from a slot.
const END_SESSIONS: &str = "
SELECT count(pg_terminate_backend(a.pid)) FROM pg_stat_activity a
    JOIN pg_roles me ON me.rolname = current_user LEFT JOIN pg_roles r ON r.oid = a.usesysid
WHERE a.datid = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (a.backend_type = 'client backend' OR a.backend_type = 'walsender' AND NOT EXISTS
        (SELECT FROM pg_replication_slots s WHERE s.active_pid = a.pid))
    AND a.pid <> pg_backend_pid() AND a.pid <> ALL ('{spared}'::int[])
    AND (me.rolsuper OR NOT r.rolsuper
        AND (pg_has_role(a.usesysid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE')))";

const PASSES: &str = "RETURN NULL;";

impl Fence {
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
pub(crate) fn tables(session: &mut Connection) -> Result<u64, ClientError> {
    field(&session.query_one(&with_namespaces(TABLES))?, 0)
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

impl Fenced for Connection {
    fn set(&mut self, settings: &str) -> Result<(), ClientError> {
        self.execute(settings)
    }

    fn comment(&mut self, fence: Fence) -> Result<Option<String>, ClientError> {
        let row = self.query_opt(&format!(
            "SELECT coalesce(obj_description(p.oid, 'pg_proc'), '') FROM pg_proc p \
             JOIN pg_namespace n ON n.oid = p.pronamespace \
             WHERE n.nspname = 'lockstep' AND p.proname = '{}'",
            fence.name()
        ))?;
        row.map(|row| field(&row, 0)).transpose()
    }

    fn setting(&mut self) -> Result<Option<String>, ClientError> {
        field(&self.query_one(SETTING)?, 0)
    }

    fn make_function(&mut self, fence: Fence) -> Result<(), ClientError> {
        let function = fence.function(PASSES);
        self.execute(&format!("CREATE SCHEMA IF NOT EXISTS lockstep; {function}"))
    }

    fn let_pass(&mut self, fence: Fence) -> Result<(), ClientError> {
        self.execute(&fence.function(PASSES))
    }

    fn refuse(&mut self, fence: Fence, comment: Option<&str>) -> Result<(), ClientError> {
        let mut sql = fence.function(&fence.refuses());
        if let Some(comment) = comment {
            let comment = sql_literal("setting", comment)?;
            let name = fence.name();
            sql.push_str(&format!(
                "; COMMENT ON FUNCTION lockstep.{name}() IS {comment}"
            ));
        }
        let database = database(self)?;
        self.execute(&format!(
            "{sql}; ALTER DATABASE {database} SET default_transaction_read_only = on"
        ))
    }

    fn restore(&mut self, fence: Fence, setting: Option<&str>) -> Result<(), ClientError> {
        let database = database(self)?;
        let setting = match setting {
            None => "RESET default_transaction_read_only".to_owned(),
            Some(setting) => format!(
                "SET default_transaction_read_only = {}",
                sql_literal("setting", setting)?
            ),
        };
        self.execute(&format!(
            "ALTER DATABASE {database} {setting}; COMMENT ON FUNCTION lockstep.{}() IS NULL",
            fence.name()
        ))
    }

    fn drop_function(&mut self, fence: Fence) -> Result<(), ClientError> {
        self.execute(&format!(
            "DROP FUNCTION IF EXISTS lockstep.{}()",
            fence.name()
        ))
    }

    fn unfenced(&mut self, fence: Fence) -> Result<Vec<String>, ClientError> {
        names(
            self,
            &with_namespaces(UNFENCED).replace("{fence}", fence.name()),
        )
    }

    fn fenced(&mut self, fence: Fence) -> Result<Vec<String>, ClientError> {
        let sql = format!(
            "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_trigger t \
             JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE t.tgname = 'lockstep_{}' AND NOT t.tgisinternal ORDER BY 1",
            fence.name()
        );
        names(self, &sql)
    }

    fn make_trigger(
        &mut self,
        fence: Fence,
        table: &str,
        patience: Duration,
    ) -> Result<bool, ClientError> {
        let trigger = fence.trigger(table);
        let sql = format!("BEGIN; {}; {trigger}; COMMIT", wait_at_most(patience));
        match self.execute(&sql) {
            Ok(()) => Ok(true),
            Err(error) if has_code(&error, LOCKED) => {
                self.execute("ROLLBACK")?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn drop_trigger(&mut self, fence: Fence, table: &str) -> Result<bool, ClientError> {
        let name = fence.name();
        match self.execute(&format!(
            "DROP TRIGGER IF EXISTS lockstep_{name} ON {table}"
        )) {
            Ok(()) => Ok(true),
            Err(error) if has_code(&error, LOCKED) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn clock(&mut self) -> Result<String, ClientError> {
        field(&self.query_one("SELECT clock_timestamp()::text")?, 0)
    }

    fn end_sessions(
        &mut self,
        begun: &str,
        spared: &[u32],
        is_idle: bool,
    ) -> Result<u64, ClientError> {
        let begun = sql_literal("time", begun)?;
        let spared: Vec<_> = spared.iter().map(u32::to_string).collect();
        let sql = END_SESSIONS.replace("{spared}", &format!("{{{}}}", spared.join(",")));
        let idle = match is_idle {
            true => " AND a.state = 'idle'",
            false => "",
        };
        let sql = format!("{sql} AND a.backend_start <= {begun}::timestamptz{idle}");
        field(&self.query_one(&sql)?, 0)
    }

    fn writers(&mut self) -> Result<Writers, ClientError> {
        let rows = self.query(&with_namespaces(WRITERS))?;
        let rows = rows.iter().map(|row| Ok((field(row, 0)?, field(row, 1)?)));
        rows.collect()
    }

    fn prepared(&mut self) -> Result<Vec<String>, ClientError> {
        names(self, PREPARED)
    }

    fn words(&mut self, processes: &[u32]) -> Result<String, ClientError> {
        sessions::words(self, processes)
    }

    fn mark(&mut self) -> Result<Lsn, ClientError> {
        self.execute(LOCAL)?;
        self.execute("SELECT pg_catalog.pg_logical_emit_message(true, 'lockstep', 'switchover')")?;
        field(&self.query_one(END)?, 0)
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn rest(&mut self, time: Duration) {
        thread::sleep(time);
    }
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
    /// Event triggers of users that would fire for the fence's own statements.
    pub event_triggers: Vec<String>,
    /// Kinds of background workers that are connected to the database.
    pub workers: Vec<String>,
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

/// Whose sessions stay, or cannot be seen.
const UNENDED: &str = "
SELECT DISTINCT a.usename FROM pg_stat_activity a
    JOIN pg_roles me ON me.rolname = current_user LEFT JOIN pg_roles r ON r.oid = a.usesysid
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND (a.backend_type IS NULL
    OR a.backend_type IN ('client backend', 'walsender') AND NOT (me.rolsuper OR NOT r.rolsuper
        AND (pg_has_role(a.usesysid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE'))))
ORDER BY 1";

/// Event triggers that fire although [`SILENT`] keeps most of them from that; ours write nothing for us.
const EVENT_TRIGGERS: &str = "
SELECT e.evtname FROM pg_event_trigger e
WHERE e.evtenabled <> 'D' AND e.evtevent IN ('ddl_command_start', 'ddl_command_end', 'sql_drop')
    AND (e.evttags IS NULL OR e.evttags && ARRAY['CREATE SCHEMA', 'CREATE FUNCTION', 'CREATE TRIGGER',
        'COMMENT', 'DROP TRIGGER', 'DROP FUNCTION', 'CREATE TABLE', 'ALTER TABLE', 'CREATE PUBLICATION',
        'DROP PUBLICATION'])
    AND NOT EXISTS (SELECT FROM pg_settings s
        WHERE s.name = 'event_triggers' AND has_parameter_privilege(s.name, 'SET'))
    AND NOT EXISTS (SELECT FROM pg_proc p
        WHERE p.oid = e.evtfoid AND p.pronamespace = to_regnamespace('lockstep'))
    AND (e.evtenabled <> 'O' OR NOT has_parameter_privilege('session_replication_role', 'SET'))
ORDER BY 1";

/// Background workers of extensions that are connected to the database.
const WORKERS: &str = "
SELECT DISTINCT a.backend_type FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.backend_type NOT IN ('client backend', 'walsender',
    'autovacuum worker', 'parallel worker', 'logical replication worker',
    'logical replication apply worker', 'logical replication tablesync worker',
    'logical replication parallel worker', 'slotsync worker')
ORDER BY 1";

/// Looks whether the database of a session can be fenced. Changes nothing.
pub(crate) fn look(session: &mut Connection) -> Result<FenceFacts, ClientError> {
    let is_there = is_there(session, Fence::Left)?;
    let row = session.query_one(FACTS)?;
    Ok(FenceFacts {
        owns_database: field(&row, 0)?,
        makes_schemas: field(&row, 4)?,
        foreign_schema: field(&row, 1)?,
        has_plpgsql: field(&row, 2)?,
        is_read_only: field::<bool>(&row, 3)? && !is_there,
        untriggered: names(session, &with_namespaces(UNTRIGGERED))?,
        unended: names(session, UNENDED)?,
        event_triggers: names(session, EVENT_TRIGGERS)?,
        workers: names(session, WORKERS)?,
    })
}
