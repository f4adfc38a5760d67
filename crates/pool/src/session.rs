//! Sessions with settings of our own. What a role, a database or a server sets must not decide whether a node
//! answers, or which function does.

use std::time::Duration;

use lockstep_client::{Connection, Conninfo, Purpose, Result};

/// What each session begins with. A standby refuses all that is serializable; a function that somebody has
/// put before PostgreSQL's own would be believed; a timeout would end sessions that are asked seldom.
pub const SETTINGS: &str = "SET LOCAL transaction_isolation = 'read committed'; \
     SET default_transaction_isolation = 'read committed'; SET search_path = pg_catalog; \
     SET statement_timeout = 0; SET idle_session_timeout = 0; SET jit = off; SET datestyle = 'ISO'";

/// The isolation alone, where settings come with the connection.
const ISOLATION: &str = "-c default_transaction_isolation=read\\ committed";

/// Opens a session to work in.
pub fn open(conninfo: &Conninfo, application: &str) -> Result<Connection> {
    let mut session = Connection::connect(conninfo, Purpose::Sql, application)?;
    session.execute(SETTINGS)?;
    Ok(session)
}

/// Opens a session that only asks, each time for so long at most.
pub fn open_to_ask(
    conninfo: &Conninfo,
    application: &str,
    patience: Duration,
) -> Result<Connection> {
    let mut session = Connection::connect_to_ask(conninfo, Purpose::Sql, application, patience)?;
    session.execute(SETTINGS)?;
    Ok(session)
}

/// Opens a session that reads histories of timelines.
pub fn open_for_histories(
    conninfo: &Conninfo,
    application: &str,
    patience: Duration,
) -> Result<Connection> {
    let given = conninfo.effective("options").unwrap_or_default();
    let options = format!("{given} {ISOLATION}");
    let conninfo = conninfo.clone().with("options", options.trim_start())?;
    Connection::connect_to_ask(&conninfo, Purpose::Replication, application, patience)
}
