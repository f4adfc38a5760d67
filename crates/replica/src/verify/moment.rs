//! One moment of both sides: a snapshot of each, at one LSN of the source.

use std::time::{Duration, Instant};

use lockstep_client::quote::sql_literal;
use lockstep_client::{ClientError, Connection, Conninfo, Purpose, field};
use lockstep_wire::Lsn;

use super::{Hold, Options, Result, VerifyError};
use crate::state::failpoint;
use lockstep_apply::sessions;

/// The name of the sessions.
pub const APPLICATION: &str = "lockstep verify";

/// What makes values the same text on both sides; an error rather than rows that row security hides.
const SAME_TEXT: &str = "SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; \
    SET extra_float_digits = 3; SET bytea_output = 'hex'; SET timezone = 'UTC'; \
    SET lc_monetary = 'C'; SET row_security = off";

/// Where the server can (15.8, 16.4, 17 and later), it reads no view, whatever a name means by then: a
/// view runs its owner's code as the role of this session.
const NO_VIEWS: &str = "SELECT pg_catalog.set_config(name, 'view', false) \
    FROM pg_catalog.pg_settings WHERE name = 'restrict_nonsystem_relation_kind'";

/// Longest time of a statement.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Most milliseconds for which a lock is waited for.
const LONGEST_LOCK_MS: u128 = 3_600_000;

/// Which snapshots: what other sessions need to see the same.
pub struct Snapshots {
    pub lsn: Lsn,
    source: String,
    target: String,
}

/// Both snapshots. Other sessions can use them as long as this lives.
pub struct Moment {
    pub snapshots: Snapshots,
    _source: Connection,
    _target: Connection,
}

/// A replica goes on when this is dropped.
struct Held<'a>(&'a mut dyn Hold);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

fn connect(conninfo: &Conninfo, purpose: Purpose) -> lockstep_client::Result<Connection> {
    let mut connection = sessions::open(conninfo, purpose, APPLICATION)?;
    connection.set_patience(PATIENCE);
    Ok(connection)
}

impl Moment {
    /// Takes both snapshots, as the header of this folder says.
    pub fn take(options: &Options, hold: &mut dyn Hold) -> Result<Self> {
        let mut source =
            connect(&options.source, Purpose::Replication).map_err(VerifyError::Source)?;
        let mut target = connect(&options.target, Purpose::Sql).map_err(VerifyError::Target)?;
        let deadline = Instant::now() + options.patience;
        let left = || deadline.saturating_duration_since(Instant::now());
        let held = Held(hold);
        held.0.hold(left())?;
        let slot = format!("lockstep_verify_{}", source.backend_pid());
        source.set_patience(left());
        let (lsn, source_snapshot) = source
            .create_slot_with_snapshot(&slot, "pgoutput", true, false)
            .map_err(|error| no_slot(error, options))?;
        held.0.advance(lsn, left())?;
        let snapshot = target
            .execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            .and_then(|()| target.query_one("SELECT pg_catalog.pg_export_snapshot()"))
            .and_then(|row| field(&row, 0));
        let target_snapshot = snapshot.map_err(VerifyError::Target)?;
        held.0.check(lsn)?;
        failpoint::VERIFY_HOLDS.reach();
        drop(held);
        Ok(Self {
            snapshots: Snapshots {
                lsn,
                source: source_snapshot,
                target: target_snapshot,
            },
            _source: source,
            _target: target,
        })
    }
}

fn no_slot(error: ClientError, options: &Options) -> VerifyError {
    match error {
        ClientError::TimedOut { .. } => VerifyError::NoMoment(format!(
            "source: transactions that are open there did not end within {} s, which a comparison \
             waits for while changes are held back; repeat once they have ended, or let them be \
             waited for longer",
            options.patience.as_secs()
        )),
        error => VerifyError::Source(error),
    }
}

impl Snapshots {
    /// A session of the source at this moment.
    pub fn source(&self, options: &Options) -> Result<Connection> {
        session(&options.source, &self.source, options.patience).map_err(VerifyError::Source)
    }

    /// A session of the target at this moment.
    pub fn target(&self, options: &Options) -> Result<Connection> {
        session(&options.target, &self.target, options.patience).map_err(VerifyError::Target)
    }
}

fn session(
    conninfo: &Conninfo,
    snapshot: &str,
    patience: Duration,
) -> lockstep_client::Result<Connection> {
    let mut connection = connect(conninfo, Purpose::Sql)?;
    connection.execute(SAME_TEXT)?;
    connection.execute(NO_VIEWS)?;
    // 0 would be for ever.
    let lock_ms = patience.as_millis().clamp(1, LONGEST_LOCK_MS);
    connection.execute(&format!("SET lock_timeout = {lock_ms}"))?;
    let snapshot = sql_literal("snapshot", snapshot)?;
    connection.execute(&format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {snapshot}"
    ))?;
    Ok(connection)
}
