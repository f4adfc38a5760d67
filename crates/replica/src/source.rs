//! What a replica's source says of it, for `status`.

use std::time::Duration;

use lockstep_client::{ClientError, Connection, Conninfo, Purpose, SlotState, field};
use lockstep_wire::Lsn;

use crate::error::{ReplicaError, Result};
use crate::state::{APPLICATION, Replica};

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long connecting may take unless the conninfo says otherwise, in seconds.
const CONNECT_S: &str = "3";

const END: &str = "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() \
                   ELSE pg_current_wal_flush_lsn() END";

/// The source as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The end of its WAL.
    pub end: Lsn,
    /// The replica's slot. None if it is gone, or if a relay has it.
    pub slot: Option<SlotState>,
}

/// The cluster's identifier. A server that does not tell it to this role has one of its own.
pub fn system_id(session: &mut Connection) -> Result<String, ClientError> {
    let sql = "SELECT CASE WHEN has_function_privilege('pg_control_system()', 'EXECUTE') \
               THEN (SELECT system_identifier::text FROM pg_control_system()) \
               ELSE 'unknown ' || pg_backend_pid() END";
    field(&session.query_one(sql)?, 0)
}

impl Source {
    /// Asks the source that a replica's state names, or `source` in its place.
    pub fn ask(replica: &Replica, source: Option<&Conninfo>) -> Result<Self> {
        let mut conninfo = match source {
            Some(source) => source.clone(),
            None => Conninfo::parse(&replica.source).map_err(ReplicaError::Source)?,
        };
        if conninfo.effective("connect_timeout").is_none() {
            let timed = conninfo.with("connect_timeout", CONNECT_S);
            conninfo = timed.map_err(ReplicaError::Source)?;
        }
        let ask = || -> Result<(String, Self), ClientError> {
            let mut session = Connection::connect(&conninfo, Purpose::Sql, APPLICATION)?;
            session.set_patience(PATIENCE);
            session.execute("SET search_path = ''")?;
            let system = system_id(&mut session)?;
            let end = field(&session.query_one(END)?, 0)?;
            let slot = session.slot(&replica.slot)?;
            Ok((system, Self { end, slot }))
        };
        let (system, source) = ask().map_err(ReplicaError::Source)?;
        if system != replica.system_id && !system.starts_with("unknown") {
            return Err(ReplicaError::State(format!(
                "source: it is cluster {system}, the replica was made from {}",
                replica.system_id
            )));
        }
        Ok(source)
    }
}
