//! What is known about each replica, in the target's schema `lockstep`, committed with the data.
//!
//! | table | a row for each | columns that others read |
//! |---|---|---|
//! | `lockstep.replica` | replica of this database | those of [`Replica`]; `apply_…` and `applied_…` |
//! | `lockstep.table_copy` | table that is copied | `replica` and those of [`TableCopy`] |
//! | `lockstep.subset` | table of which only a part is replicated | `replica` and those of [`Subset`] |
//! | `lockstep.hold` | replica that `verify` holds still | all but `wanted`; see `state/hold.rs` |
//! | `lockstep.state_version` | the schema's version, one row | `version` |
//!
//! Others (`crates/lag/src/replica.rs`) also read from `pg_locks` who has a replica's advisory locks.
//!
//! What apply must know:
//! - It may begin in phase [`Phase::Ready`], and streams from `replica.start_lsn` at first: the
//!   consistent point of the slot `replica.slot`. Afterwards its replication origin knows where to
//!   go on. `replica.origin` begins the name of each origin (`ORIGIN_0` and so on).
//! - A table's copy holds what committed before its own `table_copy.start_lsn`, which is later than
//!   the replica's after a copy that was resumed. A transaction's changes of a table are applied if
//!   the LSN of its commit record, the *final LSN* of Begin, is at or after the table's
//!   `start_lsn`, and skipped otherwise. (That is the rule of stock's table synchronisation.)
//! - Only tables with a row in `table_copy` are in the publication.
//!
//! Rows of `table_copy` are changed in the transaction that loads the table's data, so a crash of
//! anything leaves both or neither. One table that several sessions load is [`TableState::Copying`]
//! meanwhile and [`TableState::Copied`] after the last of them has committed.

mod hold;
mod subsets;
mod tables;

use std::time::Duration;

use lockstep_client::quote::sql_literal;
use lockstep_client::{ClientError, Connection, Conninfo, Purpose, field};
use lockstep_wire::{Lsn, Timeline};

pub use hold::{Held, Hold};
pub use tables::{TableCopy, TableState, add_missing, copied_sql, copying_sql};

use crate::error::{ReplicaError, Result};
use crate::preflight::facts::Excluded;
use crate::subset::Subset;

/// The name of our sessions.
pub const APPLICATION: &str = "lockstep replica";

/// The schema of the state. It is never copied.
pub const SCHEMA: &str = "lockstep";

/// How long another lockstep's lock is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// SQLSTATE of a lock that was not free in time.
const LOCKED: &str = "55P03";

/// What makes each version of the schema out of the one before.
const VERSIONS: [&str; 4] = [
    "
CREATE SCHEMA IF NOT EXISTS lockstep;
CREATE TABLE lockstep.state_version (version int NOT NULL);
INSERT INTO lockstep.state_version VALUES (0);
CREATE TABLE lockstep.replica (
    name text PRIMARY KEY,
    source text NOT NULL,
    system_id text NOT NULL,
    source_database text NOT NULL,
    slot text NOT NULL,
    publication text NOT NULL,
    origin text NOT NULL,
    exclude_schemas text[] NOT NULL,
    exclude_tables text[] NOT NULL,
    phase text NOT NULL,
    start_lsn pg_lsn,
    paused boolean NOT NULL DEFAULT false,
    resumes bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    ready_at timestamptz,
    bytes_total bigint NOT NULL DEFAULT 0,
    bytes_done bigint NOT NULL DEFAULT 0,
    bytes_per_s bigint NOT NULL DEFAULT 0,
    progress_at timestamptz,
    apply_state text,
    applied_lsn pg_lsn,
    lag_bytes bigint NOT NULL DEFAULT 0,
    apply_error text,
    applied_at timestamptz
);
CREATE TABLE lockstep.table_copy (
    replica text NOT NULL REFERENCES lockstep.replica ON DELETE CASCADE,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    state text NOT NULL,
    start_lsn pg_lsn,
    row_count bigint NOT NULL DEFAULT 0,
    byte_count bigint NOT NULL DEFAULT 0,
    copied_at timestamptz,
    PRIMARY KEY (replica, schema_name, table_name)
);
GRANT USAGE ON SCHEMA lockstep TO pg_monitor;
GRANT SELECT ON ALL TABLES IN SCHEMA lockstep TO pg_monitor;
",
    "
ALTER TABLE lockstep.replica ADD apply_pid int, ADD heard_at timestamptz, ADD timeline bigint;
ALTER TABLE lockstep.table_copy ADD missing_rows bigint NOT NULL DEFAULT 0;
",
    "
CREATE TABLE lockstep.hold (
    replica text PRIMARY KEY REFERENCES lockstep.replica ON DELETE CASCADE,
    wanted pg_lsn NOT NULL,
    held pg_lsn,
    pid int NOT NULL,
    until timestamptz NOT NULL
);
GRANT SELECT ON lockstep.hold TO pg_monitor;
",
    "
CREATE TABLE lockstep.subset (
    replica text NOT NULL REFERENCES lockstep.replica ON DELETE CASCADE,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    row_filter text,
    columns text[],
    PRIMARY KEY (replica, schema_name, table_name)
);
GRANT SELECT ON lockstep.subset TO pg_monitor;
",
];

/// How far a replica is, in the order of execution. Each is committed before its work begins, and
/// all persist; `replica create` goes on from any of them but the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Entered by `create`. Nothing is done yet, or a slot and a publication were made on the
    /// source of which nothing is known here: they are made again. No LSN is known.
    Preparing,
    /// The slot holds all WAL from `start_lsn` on. Tables are being created on the target, all in
    /// one transaction.
    Schema,
    /// Rows are being copied. Each copied table has its start LSN.
    Copying,
    /// All rows are there. Indexes, constraints and triggers are being made.
    Indexing,
    /// Sequences, materialised views and statistics are being brought up.
    Finishing,
    /// The target is a copy; apply may go on from `start_lsn`.
    Ready,
}

macro_rules! as_text {
    ($type:ty, $what:literal, $(($value:path, $text:literal)),* $(,)?) => {
        impl $type {
            pub fn text(self) -> &'static str {
                match self { $($value => $text),* }
            }

            fn parse(text: &str) -> Result<Self> {
                match text {
                    $($text => Ok($value),)*
                    _ => Err(ReplicaError::State(format!(
                        "the target's schema lockstep has a {} \"{text}\", which this lockstep does not \
                         know; use the version that wrote it", $what
                    ))),
                }
            }
        }
    };
}
use as_text;

as_text!(
    Phase,
    "phase",
    (Phase::Preparing, "preparing"),
    (Phase::Schema, "schema"),
    (Phase::Copying, "copying"),
    (Phase::Indexing, "indexing"),
    (Phase::Finishing, "finishing"),
    (Phase::Ready, "ready"),
);
/// A replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    pub name: String,
    /// Where the source is, without secrets.
    pub source: String,
    /// The source cluster's system identifier.
    pub system_id: String,
    pub source_database: String,
    pub slot: String,
    pub publication: String,
    pub origin: String,
    pub exclude_schemas: Vec<String>,
    pub exclude_tables: Vec<String>,
    /// In the order of the tables' names.
    pub subsets: Vec<Subset>,
    pub phase: Phase,
    /// Where apply begins; known from [`Phase::Schema`] on.
    pub start: Option<Lsn>,
    pub paused: bool,
    /// How often it was resumed.
    pub resumes: u64,
}

impl Replica {
    pub fn excluded(&self) -> Excluded {
        Excluded {
            schemas: self.exclude_schemas.clone(),
            tables: self.exclude_tables.clone(),
        }
    }
}

/// How far the copy is, as `status` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    pub bytes_total: u64,
    pub bytes_done: u64,
    pub bytes_per_s: u64,
}

/// How far apply was when it last wrote that. [`crate::standing`] says what that means now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// `connecting`, `applying`, `paused`, `blocked` or `stopped`; empty before apply has ever run.
    pub state: String,
    pub lsn: Option<Lsn>,
    /// WAL of the source that is not applied, as far as the stream has told.
    pub lag_bytes: u64,
    /// Time since the source last sent something. None if it has sent nothing yet.
    pub heard: Option<Duration>,
    /// Why it is not applying.
    pub error: Option<String>,
    /// Time since all this was written; apply writes it every second.
    pub age: Option<Duration>,
}

/// Who holds a replica's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    Nobody,
    /// The session that has written [`Applied`].
    Apply,
    /// Another: `replica create` or `drop`.
    Other,
}

/// The state in a target.
#[derive(Debug)]
pub struct State {
    connection: Connection,
}

impl State {
    /// Connects to the target, and makes or upgrades schema `lockstep`.
    pub fn open(target: &Conninfo) -> Result<Self> {
        let mut state = Self::connect(target)?;
        state.upgrade().map_err(ReplicaError::Target)?;
        state.check_version()?;
        Ok(state)
    }

    /// Connects to the target, and upgrades schema `lockstep`. None if no replica was ever made
    /// there.
    pub fn find(target: &Conninfo) -> Result<Option<Self>> {
        let mut state = Self::connect(target)?;
        match state.version().map_err(ReplicaError::Target)? {
            0 => return Ok(None),
            version if version < VERSIONS.len() => {
                state.upgrade().map_err(|error| {
                    ReplicaError::State(format!(
                        "the target's schema lockstep is of an older version and cannot be upgraded \
                         ({}): run lockstep replica status once as its owner",
                        error.words()
                    ))
                })?;
            }
            _ => state.check_version()?,
        }
        Ok(Some(state))
    }

    fn connect(target: &Conninfo) -> Result<Self> {
        let connection = Connection::connect(target, Purpose::Sql, APPLICATION);
        let mut connection = connection.map_err(ReplicaError::Target)?;
        connection
            .execute("SET search_path = ''; SET client_min_messages = error")
            .map_err(ReplicaError::Target)?;
        Ok(Self { connection })
    }

    fn version(&mut self) -> Result<usize, ClientError> {
        // Unlike to_regclass() this sees what was committed while a lock was waited for.
        let found = "SELECT EXISTS (SELECT FROM pg_class c \
                         JOIN pg_namespace n ON n.oid = c.relnamespace \
                     WHERE n.nspname = 'lockstep' AND c.relname = 'state_version')";
        let row = self.connection.query_one(found)?;
        match field(&row, 0)? {
            false => Ok(0),
            true => {
                let row = self
                    .connection
                    .query_one("SELECT version FROM lockstep.state_version")?;
                field(&row, 0)
            }
        }
    }

    fn upgrade(&mut self) -> Result<(), ClientError> {
        if self.version()? >= VERSIONS.len() {
            return Ok(());
        }
        // Two that come at once go one after the other.
        let locked = "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('lockstep state', 0))";
        self.connection.execute(locked)?;
        let version = self.version()?;
        for sql in VERSIONS.iter().skip(version) {
            self.connection.execute(sql)?;
        }
        let set = format!(
            "UPDATE lockstep.state_version SET version = {}",
            VERSIONS.len()
        );
        self.connection.execute(&set)?;
        self.connection.execute("COMMIT")
    }

    fn check_version(&mut self) -> Result<()> {
        let version = self.version().map_err(ReplicaError::Target)?;
        match version <= VERSIONS.len() {
            true => Ok(()),
            false => Err(ReplicaError::State(format!(
                "the target's schema lockstep has version {version}, this lockstep knows up to {}; \
                 use the newer one",
                VERSIONS.len()
            ))),
        }
    }

    /// The session, for SQL of the same transaction.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Takes the replica's lock, which the session holds until it ends. False if another session
    /// keeps it: another lockstep works on this replica. The server needs a moment to notice that a
    /// killed one is gone.
    pub fn lock(&mut self, name: &str) -> Result<bool> {
        self.lock_for(Lock::Replica, name)
    }

    fn lock_for(&mut self, what: Lock, name: &str) -> Result<bool> {
        let mut lock = || -> Result<bool, ClientError> {
            let key = lock_key(what, name)?;
            let patience = LOCK_PATIENCE.as_millis();
            self.connection
                .execute(&format!("SET lock_timeout = {patience}"))?;
            let locked = (self.connection).execute(&format!("SELECT pg_advisory_lock({key})"));
            self.connection.execute("SET lock_timeout = 0")?;
            match locked {
                Ok(()) => Ok(true),
                Err(error) if error.refusal().is_some_and(|it| it.sqlstate == LOCKED) => Ok(false),
                Err(error) => Err(error),
            }
        };
        lock().map_err(ReplicaError::Target)
    }

    /// Adds a replica, unless another one has begun in this database: an error then. False if this one
    /// is there already. `is_empty` looks at the target once no other can begin.
    pub fn begin(
        &mut self,
        replica: &Replica,
        is_empty: impl FnOnce(&mut Connection) -> Result<bool, ClientError>,
    ) -> Result<bool> {
        let lock = "BEGIN; LOCK TABLE lockstep.replica IN SHARE ROW EXCLUSIVE MODE";
        self.connection
            .execute(lock)
            .map_err(ReplicaError::Target)?;
        let replicas = self.replicas()?;
        let is_there = replicas.iter().any(|one| one.name == replica.name);
        if !is_there {
            // One that has no tables yet leaves the database empty.
            let early = |one: &&Replica| matches!(one.phase, Phase::Preparing | Phase::Schema);
            let other = replicas.iter().find(early).map(|one| one.name.as_str());
            let is_empty = is_empty(&mut self.connection).map_err(ReplicaError::Target)?;
            let taken = match other {
                Some(name) => format!("replica \"{name}\" has begun in the target's database"),
                None => "the target's database is not empty any more".to_owned(),
            };
            if other.is_some() || !is_empty {
                return Err(ReplicaError::State(format!(
                    "{taken}; give each replica an empty database of its own"
                )));
            }
            self.add(replica)?;
        }
        self.connection
            .execute("COMMIT")
            .map_err(ReplicaError::Target)?;
        Ok(!is_there)
    }

    /// Adds a replica.
    pub fn add(&mut self, replica: &Replica) -> Result<()> {
        let sql = format!(
            "WITH added AS (INSERT INTO lockstep.replica (name, source, system_id, \
                 source_database, slot, publication, origin, exclude_schemas, exclude_tables, phase) \
             SELECT $1, $2, $3, $4, $5, $6, $7, ARRAY(SELECT json_array_elements_text($8)), \
                 ARRAY(SELECT json_array_elements_text($9)), $10 RETURNING name) {}",
            subsets::add("added", "$11")
        );
        let (schemas, tables) = (
            json_array(&replica.exclude_schemas),
            json_array(&replica.exclude_tables),
        );
        let subsets = subsets::to_json(&replica.subsets);
        self.connection
            .query_with(
                &sql,
                &[
                    &replica.name,
                    &replica.source,
                    &replica.system_id,
                    &replica.source_database,
                    &replica.slot,
                    &replica.publication,
                    &replica.origin,
                    &schemas,
                    &tables,
                    &replica.phase.text(),
                    &subsets,
                ],
            )
            .map_err(ReplicaError::Target)?;
        Ok(())
    }

    /// All replicas of this target.
    pub fn replicas(&mut self) -> Result<Vec<Replica>> {
        let sql = format!(
            "SELECT name, source, system_id, source_database, slot, publication, origin, \
                 array_to_json(exclude_schemas), array_to_json(exclude_tables), phase, \
                 start_lsn, paused, resumes, {} \
             FROM lockstep.replica AS r ORDER BY name",
            subsets::OF_REPLICA
        );
        let rows = self.connection.query(&sql).map_err(ReplicaError::Target)?;
        rows.iter().map(|row| replica(row)).collect()
    }

    pub fn replica(&mut self, name: &str) -> Result<Option<Replica>> {
        Ok(self.replicas()?.into_iter().find(|one| one.name == name))
    }

    /// Begins a phase.
    pub fn set_phase(&mut self, name: &str, phase: Phase) -> Result<()> {
        // What was committed without waiting for the disk before is on disk once this is.
        let sql = "UPDATE lockstep.replica SET phase = $2, \
                       ready_at = CASE WHEN $2 = 'ready' THEN now() END WHERE name = $1";
        self.change(sql, name, phase.text())
    }

    /// Begins [`Phase::Schema`]: the slot is made.
    pub fn set_start(&mut self, name: &str, start: Lsn, timeline: Timeline) -> Result<()> {
        let sql = "UPDATE lockstep.replica SET phase = 'schema', start_lsn = $2::pg_lsn, \
                       timeline = $3 \
                   WHERE name = $1";
        let changed = (self.connection).query_with(sql, &[&name, &start, &timeline.get()]);
        changed.map(drop).map_err(ReplicaError::Target)
    }

    fn change(&mut self, sql: &str, name: &str, value: &str) -> Result<()> {
        let changed = self.connection.query_with(sql, &[&name, &value]);
        changed.map(drop).map_err(ReplicaError::Target)
    }

    /// Keeps how far the copy is, for `status`.
    pub fn set_progress(&mut self, name: &str, progress: &Progress) -> Result<()> {
        let sql = "UPDATE lockstep.replica SET bytes_total = $2, bytes_done = $3, \
                       bytes_per_s = $4, progress_at = now() WHERE name = $1";
        let Progress {
            bytes_total,
            bytes_done,
            bytes_per_s,
        } = progress;
        let changed = self
            .connection
            .query_with(sql, &[&name, bytes_total, bytes_done, bytes_per_s]);
        changed.map(drop).map_err(ReplicaError::Target)
    }

    pub fn progress(&mut self, name: &str) -> Result<Progress> {
        let sql = "SELECT bytes_total, bytes_done, bytes_per_s FROM lockstep.replica \
                   WHERE name = $1";
        let rows = self.connection.query_with(sql, &[&name]);
        let rows = rows.map_err(ReplicaError::Target)?;
        let row = rows.first().map_or(&[][..], Vec::as_slice);
        let read = || -> Result<Progress, ClientError> {
            Ok(Progress {
                bytes_total: field(row, 0)?,
                bytes_done: field(row, 1)?,
                bytes_per_s: field(row, 2)?,
            })
        };
        read().map_err(ReplicaError::Target)
    }

    /// Keeps how far apply is, and that this session is apply's.
    pub fn set_applied(&mut self, name: &str, applied: &Applied) -> Result<()> {
        let sql = "UPDATE lockstep.replica SET apply_state = $2, applied_lsn = $3::pg_lsn, \
                       lag_bytes = $4, apply_error = $5, applied_at = clock_timestamp(), \
                       heard_at = clock_timestamp() - $6::float8 * interval '1 second', \
                       apply_pid = pg_backend_pid() \
                   WHERE name = $1";
        let heard = applied.heard.map(|heard| heard.as_secs_f64());
        let changed = self.connection.query_with(
            sql,
            &[
                &name,
                &applied.state,
                &applied.lsn,
                &applied.lag_bytes,
                &applied.error,
                &heard,
            ],
        );
        changed.map(drop).map_err(ReplicaError::Target)
    }

    pub fn applied(&mut self, name: &str) -> Result<Applied> {
        let sql = "SELECT coalesce(apply_state, ''), applied_lsn, lag_bytes, apply_error, \
                       extract(epoch FROM clock_timestamp() - heard_at), \
                       extract(epoch FROM clock_timestamp() - applied_at) \
                   FROM lockstep.replica WHERE name = $1";
        let rows = self.connection.query_with(sql, &[&name]);
        let rows = rows.map_err(ReplicaError::Target)?;
        let row = rows.first().map_or(&[][..], Vec::as_slice);
        let read = || -> Result<Applied, ClientError> {
            Ok(Applied {
                state: field(row, 0)?,
                lsn: field(row, 1)?,
                lag_bytes: field(row, 2)?,
                error: field(row, 3)?,
                heard: since(field(row, 4)?),
                age: since(field(row, 5)?),
            })
        };
        read().map_err(ReplicaError::Target)
    }

    /// Who holds the replica's lock now.
    pub fn holder(&mut self, name: &str) -> Result<Holder> {
        let mut held = || -> Result<Holder, ClientError> {
            let row = self.connection.query_one(&format!(
                "SELECT count(l.pid), coalesce(bool_or(l.pid = r.apply_pid), false) \
                 FROM {} LEFT JOIN lockstep.replica r ON r.name = {}",
                lock_holders(Lock::Replica, name)?,
                sql_literal("replica", name)?
            ))?;
            Ok(match (field::<u64>(&row, 0)?, field(&row, 1)?) {
                (0, _) => Holder::Nobody,
                (_, true) => Holder::Apply,
                (_, false) => Holder::Other,
            })
        };
        held().map_err(ReplicaError::Target)
    }

    /// Asks apply to pause or to go on. False if there is no such replica.
    pub fn set_paused(&mut self, name: &str, paused: bool) -> Result<bool> {
        let sql = "UPDATE lockstep.replica SET paused = $2, \
                       resumes = resumes + CASE WHEN $2 THEN 0 ELSE 1 END \
                   WHERE name = $1 RETURNING name";
        let rows = self.connection.query_with(sql, &[&name, &paused]);
        Ok(!rows.map_err(ReplicaError::Target)?.is_empty())
    }

    /// Forgets a replica.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let sql = "DELETE FROM lockstep.replica WHERE name = $1";
        let removed = self.connection.query_with(sql, &[&name]);
        removed.map(drop).map_err(ReplicaError::Target)
    }
}

/// An age that the target tells in seconds. Its clock may have been set back.
fn since(seconds: Option<f64>) -> Option<Duration> {
    seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// Advisory locks of a replica.
#[derive(Debug, Clone, Copy)]
enum Lock {
    /// Whoever changes it: `create`, `run`, `drop`.
    Replica,
    /// Whoever holds it still: `verify`.
    Hold,
}

/// The key of a lock, in SQL.
fn lock_key(what: Lock, name: &str) -> Result<String, ClientError> {
    let name = sql_literal("replica", name)?;
    let prefix = match what {
        Lock::Replica => "lockstep replica ",
        Lock::Hold => "lockstep hold ",
    };
    Ok(format!("hashtextextended('{prefix}' || {name}, 0)"))
}

/// The sessions that hold a lock, in SQL: rows `l` with their `pid`.
fn lock_holders(what: Lock, name: &str) -> Result<String, ClientError> {
    Ok(format!(
        "(SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 \
              AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
              AND (classid::bigint << 32 | objid::bigint) = {}) AS l",
        lock_key(what, name)?
    ))
}

/// What a replica's state says of its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stand {
    pub system_id: String,
    pub start: Lsn,
    /// How far apply was; `0/0` if it has not run.
    pub applied: Lsn,
    /// The source's timeline when apply last connected.
    pub timeline: Option<Timeline>,
}

pub fn stand(connection: &mut Connection, replica: &str) -> Result<Option<Stand>, ClientError> {
    let sql = "SELECT system_id, coalesce(start_lsn, '0/0'), coalesce(applied_lsn, '0/0'), \
                   coalesce(timeline, 0) \
               FROM lockstep.replica WHERE name = $1";
    let rows = connection.query_with(sql, &[&replica])?;
    let read = |row: &Vec<Option<String>>| {
        Ok(Stand {
            system_id: field(row, 0)?,
            start: field(row, 1)?,
            applied: field(row, 2)?,
            timeline: Timeline::new(field(row, 3)?),
        })
    };
    rows.first().map(read).transpose()
}

pub fn set_timeline(
    connection: &mut Connection,
    replica: &str,
    timeline: Timeline,
) -> Result<(), ClientError> {
    let sql = "UPDATE lockstep.replica SET timeline = $2 WHERE name = $1";
    let kept = connection.query_with(sql, &[&replica, &timeline.get()]);
    kept.map(drop)
}

fn replica(row: &[Option<String>]) -> Result<Replica> {
    let text = |place| field::<String>(row, place).map_err(ReplicaError::Target);
    Ok(Replica {
        name: text(0)?,
        source: text(1)?,
        system_id: text(2)?,
        source_database: text(3)?,
        slot: text(4)?,
        publication: text(5)?,
        origin: text(6)?,
        exclude_schemas: from_json_array(&text(7)?)?,
        exclude_tables: from_json_array(&text(8)?)?,
        phase: Phase::parse(&text(9)?)?,
        start: field(row, 10).map_err(ReplicaError::Target)?,
        paused: field(row, 11).map_err(ReplicaError::Target)?,
        resumes: field(row, 12).map_err(ReplicaError::Target)?,
        subsets: subsets::from_json(&text(13)?)?,
    })
}

/// Texts as a parameter that `json_array_elements_text` takes apart.
pub fn json_array(texts: &[String]) -> String {
    serde_json::to_string(texts).unwrap_or_else(|_| "[]".to_owned())
}

fn from_json_array(text: &str) -> Result<Vec<String>> {
    serde_json::from_str(text).map_err(unreadable)
}

fn unreadable(error: serde_json::Error) -> ReplicaError {
    ReplicaError::State(format!(
        "the target's schema lockstep cannot be read: {error}"
    ))
}
