//! One moment of both sides: a snapshot of each, at one LSN of the source.

use lockstep_client::quote::sql_literal;
use lockstep_client::{Connection, Conninfo, Purpose, field};
use lockstep_wire::Lsn;

use super::{Options, Result, VerifyError};
use crate::apply::Control;

/// The name of the sessions.
const APPLICATION: &str = "lockstep verify";

/// What makes values the same text on both sides.
const SESSION: &str = "SELECT pg_catalog.set_config('search_path', '', false); \
    SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET extra_float_digits = 3; \
    SET bytea_output = 'hex'; SET timezone = 'UTC'; SET lc_monetary = 'C'; \
    SET row_security = off; SET statement_timeout = 0; SET lock_timeout = 0; \
    SET idle_in_transaction_session_timeout = 0";

/// How long a statement may take.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

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
struct Held<'a>(&'a Control);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

fn connect(conninfo: &Conninfo, purpose: Purpose) -> lockstep_client::Result<Connection> {
    let mut connection = Connection::connect(conninfo, purpose, APPLICATION)?;
    connection.set_patience(PATIENCE);
    Ok(connection)
}

impl Moment {
    /// Takes both snapshots, as the header of this folder says.
    pub fn take(options: &Options, control: &Control) -> Result<Self> {
        let mut source =
            connect(&options.source, Purpose::Replication).map_err(VerifyError::Source)?;
        source.set_patience(options.patience);
        let mut target = connect(&options.target, Purpose::Sql).map_err(VerifyError::Target)?;
        let held = Held(control);
        control.hold(options.patience)?;
        let slot = format!("lockstep_verify_{}", source.backend_pid());
        let (lsn, source_snapshot) = source
            .create_slot_with_snapshot(&slot, "pgoutput", true, false)
            .map_err(VerifyError::Source)?;
        control.advance(lsn, options.patience)?;
        let snapshot = target
            .execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            .and_then(|()| target.query_one("SELECT pg_catalog.pg_export_snapshot()"))
            .and_then(|row| field(&row, 0));
        let target_snapshot = snapshot.map_err(VerifyError::Target)?;
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

impl Snapshots {
    /// A session of the source at this moment.
    pub fn source(&self, options: &Options) -> Result<Connection> {
        session(&options.source, &self.source).map_err(VerifyError::Source)
    }

    /// A session of the target at this moment.
    pub fn target(&self, options: &Options) -> Result<Connection> {
        session(&options.target, &self.target).map_err(VerifyError::Target)
    }
}

fn session(conninfo: &Conninfo, snapshot: &str) -> lockstep_client::Result<Connection> {
    let mut connection = connect(conninfo, Purpose::Sql)?;
    connection.execute(SESSION)?;
    let snapshot = sql_literal("snapshot", snapshot)?;
    connection.execute(&format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {snapshot}"
    ))?;
    Ok(connection)
}
