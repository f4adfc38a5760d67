//! The fence of a database that a switchover leaves: no ordinary session commits a write there any more.
//!
//! Three things hold it, all of which outlive a crash. `default_transaction_read_only` is on for the
//! database, so new sessions begin read-only; sessions from before are ended; and each table has a trigger
//! that refuses writes, for those that set it off, superusers too. The triggers do not fire for sessions with
//! `session_replication_role = replica`, which a replica in the other direction needs.
//!
//! [`plant`] makes the triggers, whose function lets everything pass, one table after the other: nobody waits
//! for thousands of them. [`raise`] lets the function refuse, which is one commit. A transaction that has
//! locked a table for writing before that may not see it. So [`raise`] waits until each of these has ended,
//! prepared ones, too: whatever was committed in these tables lies before the position that it returns.
//! [`gaps`] says afterwards whether somebody has taken triggers away.
//!
//! Function `lockstep.fence()` is there before anything else of the fence, and the last to go, so it says
//! whether a switchover has left something; its comment keeps what the setting was. [`pass`] lets it pass
//! everything again, which waits for no lock; [`remove`] takes the rest away.
//!
//! [`close`] keeps the target from being written until it opens, in the same way with names of its own: the
//! target may have the fence of the switchover that has left it, which stays if this one is taken back.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::quote::{identifier, sql_literal};
use lockstep_client::{ClientError, Connection, field};
use lockstep_service::words::figures::counted;
use lockstep_wire::Lsn;

use crate::error::{ReplicaError, Result};
use crate::lifecycle::exporter::{LOCKED, has_code};
use crate::names::{named, with_namespaces};
use crate::status::source::END;
use lockstep_apply::sessions::{self, SILENT};

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

    /// Tables that lack its trigger, or whose trigger does not fire.
    fn unfenced(self, session: &mut Connection) -> Result<Vec<String>, ClientError> {
        let sql = with_namespaces(UNFENCED).replace("{fence}", self.name());
        names(session, &sql)
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
pub(crate) fn tables(session: &mut Connection) -> Result<u64, ClientError> {
    field(&session.query_one(&with_namespaces(TABLES))?, 0)
}

/// Whether something of the fence of a switchover that has left this database is there.
pub(crate) fn is_there(session: &mut Connection) -> Result<bool, ClientError> {
    Fence::Left.is_there(session)
}

/// Whether a fence refuses writes.
pub(crate) fn is_up(session: &mut Connection, fence: Fence) -> Result<bool, ClientError> {
    let comment = fence.comment(session)?;
    Ok(comment.is_some_and(|it| it.starts_with(BEFORE)))
}

/// What `default_transaction_read_only` is set to for the database; None if it is not.
pub(crate) fn setting(session: &mut Connection) -> Result<Option<String>, ClientError> {
    field(&session.query_one(SETTING)?, 0)
}

/// Longest waits for a table, at first and at last: all who want to write into it wait meanwhile.
const LOCKED_WITHIN: Duration = Duration::from_millis(20);
const LOCKED_AT_MOST: Duration = Duration::from_secs(1);

/// Names of the transactions that are prepared in a session's database.
pub(crate) fn prepared(session: &mut Connection) -> Result<Vec<String>, ClientError> {
    names(session, PREPARED)
}

/// Makes the triggers of a fence that are missing. Its function is made if there is none, and lets everything
/// pass. Tables that are locked come last, with more time; returns one that is locked for `patience`, or
/// [`LOCKED_AT_MOST`].
pub(crate) fn plant(
    session: &mut Connection,
    fence: Fence,
    patience: Duration,
) -> Result<Option<String>, ClientError> {
    session.execute(SILENT)?;
    // What commits later, and is flushed, flushes all of this.
    session.execute("SET synchronous_commit = off")?;
    if !fence.is_there(session)? {
        let function = fence.function(PASSES);
        session.execute(&format!("CREATE SCHEMA IF NOT EXISTS lockstep; {function}"))?;
    }
    let patience = patience.min(LOCKED_AT_MOST);
    let mut most = LOCKED_WITHIN.min(patience);
    loop {
        let mut locked = None;
        // Each by itself: no session that locks several tables waits for one while this waits for another.
        for table in fence.unfenced(session)? {
            let trigger = fence.trigger(&table);
            let sql = format!("BEGIN; {}; {trigger}; COMMIT", wait_at_most(most));
            match session.execute(&sql) {
                Ok(()) => continue,
                Err(error) if has_code(&error, LOCKED) => locked = Some(table),
                Err(error) => return Err(error),
            }
            session.execute("ROLLBACK")?;
            if most >= patience {
                break;
            }
        }
        if locked.is_none() || most >= patience {
            return Ok(locked);
        }
        most = (most * 2).min(patience);
    }
}

/// Lets the function of a fence refuse writes, and sessions begin read-only. The comment keeps what the
/// setting was.
fn begin(session: &mut Connection, fence: Fence) -> Result<(), ClientError> {
    session.execute(SILENT)?;
    session.execute(LOCAL)?;
    let mut sql = fence.function(&fence.refuses());
    if fence.comment(session)?.is_none_or(|it| it.is_empty()) {
        let before = setting(session)?;
        let before = sql_literal(
            "setting",
            &format!("{BEFORE}{}", before.as_deref().unwrap_or(UNSET)),
        )?;
        sql.push_str(&format!(
            "; COMMENT ON FUNCTION lockstep.{}() IS {before}",
            fence.name()
        ));
    }
    let database = database(session)?;
    session.execute(&format!(
        "{sql}; ALTER DATABASE {database} SET default_transaction_read_only = on"
    ))
}

/// Fences the database of a session, whose triggers are there, and returns the end of its WAL: everything
/// that ordinary sessions have committed there lies before. Ends all sessions but its own and those that are
/// `spared`, idle ones at once and others when no transaction is open any more that has written. An error
/// after `patience` if a session or a transaction that has written does not end, a prepared one within
/// [`PREPARED_WITHIN`]. Another call does the same again.
pub(crate) fn raise(session: &mut Connection, spared: &[u32], patience: Duration) -> Result<Lsn> {
    let began = Instant::now();
    let source = ReplicaError::Source;
    begin(session, Fence::Left).map_err(source)?;
    let all = end_sessions(session, spared).map_err(source)?;
    let idle = format!("{all} AND a.state = 'idle'");
    let mut writers = writers(session).map_err(source)?;
    loop {
        let mut open = Open {
            sessions: 0,
            writers: still(session, &mut writers).map_err(source)?,
            prepared: names(session, PREPARED).map_err(source)?,
        };
        let ended = session.query_one(if open.is_none() { &all } else { &idle });
        open.sessions = ended.and_then(|row| field(&row, 0)).map_err(source)?;
        if open.is_none() {
            return mark(session).map_err(source);
        }
        if began.elapsed() >= open.patience(patience) {
            let who = sessions::words(session, &open.writers).map_err(source)?;
            return Err(ReplicaError::State(open.words(&who)));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Longest wait for prepared transactions behind the fence: who would end them may be a client that waits.
pub(crate) const PREPARED_WITHIN: Duration = Duration::from_millis(500);

/// Interval of looks whether sessions and transactions have ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What has not ended yet behind a fence.
#[derive(Debug, Default)]
struct Open {
    sessions: u64,
    /// Processes of transactions that have locked a table for writing: 0 for prepared ones.
    writers: Vec<u32>,
    prepared: Vec<String>,
}

impl Open {
    fn is_none(&self) -> bool {
        self.sessions == 0 && self.writers.is_empty() && self.prepared.is_empty()
    }

    /// How long it may take.
    fn patience(&self, most: Duration) -> Duration {
        let is_prepared = !self.prepared.is_empty();
        match is_prepared && self.writers.iter().all(|pid| *pid == 0) {
            true => most.min(PREPARED_WITHIN),
            false => most,
        }
    }

    fn words(&self, who: &str) -> String {
        if !self.prepared.is_empty() {
            return format!(
                "the source has prepared transactions that did not end in time: {} (end each with COMMIT \
                 PREPARED or ROLLBACK PREPARED)",
                self.prepared.join(", ")
            );
        }
        match self.writers.is_empty() {
            true => format!(
                "{} that were connected to the source have not ended in time",
                counted(self.sessions, "session")
            ),
            false => format!(
                "transactions that have locked a table for writing have not ended in time: {who}"
            ),
        }
    }
}

/// The command that ends all sessions that are connected now: they would not notice the setting, and no
/// trigger holds what they write elsewhere.
fn end_sessions(session: &mut Connection, spared: &[u32]) -> Result<String, ClientError> {
    let now: String = field(&session.query_one("SELECT clock_timestamp()::text")?, 0)?;
    let now = sql_literal("time", &now)?;
    let spared: Vec<_> = spared.iter().map(u32::to_string).collect();
    let sql = END_SESSIONS.replace("{spared}", &format!("{{{}}}", spared.join(",")));
    Ok(format!("{sql} AND a.backend_start <= {now}::timestamptz"))
}

/// Transactions of others that have locked a table for writing, by their names, and their processes.
type Writers = BTreeMap<String, u32>;

fn writers(session: &mut Connection) -> Result<Writers, ClientError> {
    let rows = session.query(&with_namespaces(WRITERS))?;
    let rows = rows.iter().map(|row| Ok((field(row, 0)?, field(row, 1)?)));
    rows.collect()
}

/// Leaves only those writers that have not ended. Returns their processes.
fn still(session: &mut Connection, before: &mut Writers) -> Result<Vec<u32>, ClientError> {
    if !before.is_empty() {
        let now = writers(session)?;
        before.retain(|transaction, _| now.contains_key(transaction));
    }
    Ok(before.values().copied().collect())
}

/// Keeps the database of a session, whose triggers are there, from being written, but for sessions with
/// `session_replication_role = replica`. No session is ended. An error after `patience` if a transaction that
/// has written into a table does not end. Another call does the same again.
pub(crate) fn close(session: &mut Connection, patience: Duration) -> Result<()> {
    let began = Instant::now();
    let target = ReplicaError::Target;
    begin(session, Fence::Comes).map_err(target)?;
    let mut writers = writers(session).map_err(target)?;
    loop {
        let pids = still(session, &mut writers).map_err(target)?;
        if pids.is_empty() {
            return Ok(());
        }
        if began.elapsed() >= patience {
            let who = sessions::words(session, &pids).map_err(target)?;
            return Err(ReplicaError::State(format!(
                "transactions on the target that have locked a table for writing have not ended in time: {who}"
            )));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Tables that a fence no longer holds, and whether sessions begin read-only, in words; None if it is whole.
pub(crate) fn gaps(session: &mut Connection, fence: Fence) -> Result<Option<String>, ClientError> {
    let mut words = Vec::new();
    let unfenced = fence.unfenced(session)?;
    if !unfenced.is_empty() {
        words.push(format!(
            "trigger lockstep_{} is disabled or missing on {}",
            fence.name(),
            named(&unfenced)
        ));
    }
    if setting(session)?.as_deref() != Some("on") {
        words.push("default_transaction_read_only is not on for the database".to_owned());
    }
    Ok((!words.is_empty()).then(|| words.join(", and ")))
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

/// Lets a fence, if there is one, pass everything, and restores the setting. Waits for no lock of a table.
pub(crate) fn pass(session: &mut Connection, fence: Fence) -> Result<(), ClientError> {
    let Some(comment) = fence.comment(session)? else {
        return Ok(());
    };
    session.execute(SILENT)?;
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
    session.execute(SILENT)?;
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

/// Words for triggers of a fence that stay.
pub(crate) fn left(fence: Fence, tables: &[String]) -> Option<String> {
    (!tables.is_empty()).then(|| {
        format!(
            "triggers lockstep_{}, which let everything pass now, stay on tables that are in use: {}",
            fence.name(),
            tables.join(", ")
        )
    })
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
        event_triggers: names(session, EVENT_TRIGGERS)?,
        workers: names(session, WORKERS)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_behind_a_fence_is_named_and_prepared_transactions_are_given_less_time() {
        let second = Duration::from_secs(1);
        let gid = || vec!["order 7".to_owned()];
        let open = |sessions, writers: &[u32], prepared| Open {
            sessions,
            writers: writers.to_vec(),
            prepared,
        };
        for (open, patience, words) in [
            (open(1, &[0], gid()), PREPARED_WITHIN, "order 7"),
            (open(0, &[0], gid()), PREPARED_WITHIN, "COMMIT PREPARED"),
            (open(0, &[], gid()), PREPARED_WITHIN, "order 7"),
            (open(0, &[7, 0], gid()), second, "order 7"),
            (
                open(0, &[7], Vec::new()),
                second,
                "writing have not ended in time: who",
            ),
            (open(2, &[], Vec::new()), second, "2 sessions"),
        ] {
            assert!(!open.is_none());
            assert_eq!(open.patience(second), patience, "{open:?}");
            assert!(open.words("who").contains(words), "{open:?}");
        }
        assert!(Open::default().is_none());
        let short = Duration::from_millis(9);
        assert_eq!(open(0, &[0], gid()).patience(short), short);
    }
}
