//! How the state is found, made and upgraded.
//!
//! Two that come at once go one after the other: the first to make the schema is waited for by the
//! second, and an upgrade locks a table that only roles with rights on the state can lock.

use lockstep_client::{ClientError, Conninfo, field};

use super::locks::LOCK_PATIENCE;
use super::trust::Use;
use super::{APPLICATION, ReplicaState};
use crate::error::{ReplicaError, Result};
use lockstep_apply::sessions;

/// SQLSTATEs of something that another session has made meanwhile.
const MADE_MEANWHILE: [&str; 3] = ["23505", "42P06", "42P07"];

/// Most times that the schema is begun again because another session was quicker.
const MOST_ATTEMPTS: usize = 3;

/// What makes each version of the schema out of the one before.
const VERSIONS: [&str; 25] = [
    "
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
    "
ALTER TABLE lockstep.replica ADD spool_bytes bigint, ADD spool_limit bigint, ADD spool_from pg_lsn,
    ADD spool_to pg_lsn, ADD spool_full text;
",
    "
ALTER TABLE lockstep.table_copy ADD source_oid oid;
ALTER TABLE lockstep.state_version ADD system_id text, ADD database_oid oid;
",
    "
CREATE TABLE lockstep.apply_position (
    replica text NOT NULL REFERENCES lockstep.replica ON DELETE CASCADE,
    lsn pg_lsn NOT NULL,
    PRIMARY KEY (replica, lsn)
);
GRANT SELECT ON lockstep.apply_position TO pg_monitor;
",
    "
CREATE TABLE lockstep.publication (
    replica text PRIMARY KEY REFERENCES lockstep.replica ON DELETE CASCADE,
    made json NOT NULL,
    right_lsn pg_lsn
);
GRANT SELECT ON lockstep.publication TO pg_monitor;
",
    "
ALTER TABLE lockstep.replica ADD unreplicated_tables bigint, ADD unreplicated text;
ALTER TABLE lockstep.table_copy ADD target_oid oid;
UPDATE lockstep.table_copy SET target_oid = (SELECT c.oid FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = schema_name AND c.relname = table_name AND c.relkind IN ('r', 'p'));
",
    "
CREATE TABLE lockstep.unmade (
    replica text NOT NULL REFERENCES lockstep.replica ON DELETE CASCADE,
    phase text NOT NULL,
    place bigint NOT NULL,
    kind text NOT NULL,
    schema_name text NOT NULL,
    object_name text NOT NULL,
    command text NOT NULL,
    error text NOT NULL,
    PRIMARY KEY (replica, place)
);
GRANT SELECT ON lockstep.unmade TO pg_monitor;
ALTER TABLE lockstep.replica ADD unmade_objects bigint, ADD unmade text;
",
    "
ALTER TABLE lockstep.replica ADD writers bigint, ADD writers_why text;
",
    "
ALTER TABLE lockstep.replica ADD frequency_ms bigint NOT NULL DEFAULT 0,
    ADD forces bigint NOT NULL DEFAULT 0, ADD cycle_number bigint, ADD cycle_elapsed_ms bigint,
    ADD cycle_remaining_ms bigint, ADD cycle_bytes bigint, ADD cycle_lsn pg_lsn, ADD cycle_next_ms bigint,
    ADD cycle_late_ms bigint;
CREATE TABLE lockstep.cycle (
    replica text NOT NULL REFERENCES lockstep.replica ON DELETE CASCADE,
    cycle bigint NOT NULL,
    state text NOT NULL,
    start_time timestamptz NOT NULL,
    end_time timestamptz NOT NULL,
    elapsed_ms bigint NOT NULL,
    sent_bytes bigint NOT NULL,
    write_bytes bigint NOT NULL DEFAULT 0,
    bandwidth bigint NOT NULL DEFAULT 0,
    transactions bigint NOT NULL DEFAULT 0,
    rows bigint NOT NULL DEFAULT 0,
    tables bigint NOT NULL DEFAULT 0,
    lsn pg_lsn,
    forces bigint NOT NULL,
    failures bigint NOT NULL DEFAULT 0,
    error text,
    PRIMARY KEY (replica, cycle)
);
GRANT SELECT ON lockstep.cycle TO pg_monitor;
",
    "
ALTER TABLE lockstep.replica ADD spool_full_by text;
",
    "
CREATE TABLE lockstep.attached (
    replica text NOT NULL REFERENCES lockstep.replica ON DELETE CASCADE,
    source_oid oid NOT NULL,
    since text NOT NULL,
    is_whole boolean NOT NULL,
    PRIMARY KEY (replica, source_oid)
);
GRANT SELECT ON lockstep.attached TO pg_monitor;
",
    "
ALTER TABLE lockstep.table_copy ADD doubt text;
",
    "
ALTER TABLE lockstep.replica ADD applied_commit timestamptz, ADD promote_lsn pg_lsn,
    ADD promote_loses boolean, ADD promote_sequences boolean, ADD promote_left boolean,
    ADD promoted_lsn pg_lsn, ADD promoted_at timestamptz;
",
    "
ALTER TABLE lockstep.replica ADD switchover text;
",
    "
ALTER TABLE lockstep.replica ADD ddl boolean NOT NULL DEFAULT false;
CREATE TABLE lockstep.ddl (
    replica text PRIMARY KEY REFERENCES lockstep.replica ON DELETE CASCADE,
    key bytea NOT NULL,
    made_by_hand pg_lsn
);
",
    "
ALTER TABLE lockstep.ddl ALTER made_by_hand TYPE pg_lsn[] USING ARRAY[made_by_hand];
",
    "
ALTER TABLE lockstep.replica ADD altering boolean NOT NULL DEFAULT false;
",
    "
ALTER TABLE lockstep.ddl ADD stopped pg_lsn[];
",
    "
ALTER TABLE lockstep.subset ADD source_oid oid;
",
    "
ALTER TABLE lockstep.ddl ADD refused oid, ADD refused_table text, ADD refused_at pg_lsn,
    ADD left_out oid[];
",
    "
ALTER TABLE lockstep.replica ADD read_only boolean NOT NULL DEFAULT false;
",
    "
ALTER TABLE lockstep.replica ADD bandwidth bigint NOT NULL DEFAULT 0;
",
];

impl ReplicaState {
    /// Connects to the target, and makes or upgrades schema `lockstep`.
    pub fn open(target: &Conninfo) -> Result<Self> {
        let mut state = Self::connect(target, APPLICATION)?;
        state.check_trust(Use::Write)?;
        state.upgrade()?;
        let version = state.version().map_err(ReplicaError::Target)?;
        check_known(version)?;
        state.check_home()?;
        Ok(state)
    }

    /// Connects to the target, and upgrades schema `lockstep`. None if no replica was ever made
    /// there.
    pub fn find(target: &Conninfo) -> Result<Option<Self>> {
        Self::found(target, APPLICATION, Use::Write)
    }

    /// Like [`ReplicaState::find`], with a name for the session.
    pub fn find_as(target: &Conninfo, application_name: &str) -> Result<Option<Self>> {
        Self::found(target, application_name, Use::Write)
    }

    /// Opens the state for a role that only reads, whoever owns the state.
    pub fn see(target: &Conninfo) -> Result<Option<Self>> {
        Self::found(target, APPLICATION, Use::Read)
    }

    fn found(target: &Conninfo, application_name: &str, what: Use) -> Result<Option<Self>> {
        let mut state = Self::connect(target, application_name)?;
        state.check_trust(what)?;
        match state.version().map_err(ReplicaError::Target)? {
            0 => return Ok(None),
            version if version < VERSIONS.len() => {
                let upgraded = state.check_trust(Use::Write).and_then(|()| state.upgrade());
                upgraded.map_err(|error| {
                    ReplicaError::State(format!(
                        "the target's schema lockstep is of an older version and cannot be upgraded \
                         ({error}): run lockstep replica status once as its owner"
                    ))
                })?;
            }
            version => check_known(version)?,
        }
        state.check_home()?;
        Ok(Some(state))
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

    fn upgrade(&mut self) -> Result<()> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let Err(error) = self.upgrade_once() else {
                return Ok(());
            };
            // The error that counts is the first.
            let _ = self.connection.execute("ROLLBACK");
            let is_made = match &error {
                ReplicaError::Target(error) => (error.refusal())
                    .is_some_and(|refusal| MADE_MEANWHILE.contains(&refusal.sqlstate.as_str())),
                _ => false,
            };
            if !is_made || attempts == MOST_ATTEMPTS {
                return Err(error);
            }
        }
    }

    fn upgrade_once(&mut self) -> Result<()> {
        let target = ReplicaError::Target;
        let before = self.version().map_err(target)?;
        if before >= VERSIONS.len() {
            return Ok(());
        }
        let lock = match before {
            // Whoever comes second waits for the first one's end, and finds that it is there.
            0 => "CREATE SCHEMA IF NOT EXISTS lockstep",
            _ => "LOCK TABLE lockstep.state_version IN SHARE ROW EXCLUSIVE MODE",
        };
        let begin = format!(
            "BEGIN; SET LOCAL lock_timeout = {}",
            LOCK_PATIENCE.as_millis()
        );
        self.connection.execute(&begin).map_err(target)?;
        let silent = sessions::SILENT.replace(", false)", ", true)");
        self.connection.execute(&silent).map_err(target)?;
        self.connection.execute(lock).map_err(target)?;
        // It may be another schema than the one that was looked at before.
        self.check_trust(Use::Write)?;
        let version = self.version().map_err(target)?;
        for sql in VERSIONS.iter().skip(version) {
            self.connection.execute(sql).map_err(target)?;
        }
        if version < VERSIONS.len() {
            self.settle(VERSIONS.len()).map_err(target)?;
        }
        self.connection.execute("COMMIT").map_err(target)
    }
}

/// An error if the schema was made by a newer version of this program.
fn check_known(version: usize) -> Result<()> {
    match version <= VERSIONS.len() {
        true => Ok(()),
        false => Err(ReplicaError::State(format!(
            "the target's schema lockstep has version {version}, this lockstep knows up to {}; \
             use the newer one",
            VERSIONS.len()
        ))),
    }
}
