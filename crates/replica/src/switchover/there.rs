//! The server to which a pooler leads.

use lockstep_client::{ClientError, Connection, Conninfo, Purpose, field};

use crate::state::{APPLICATION, system_id};

/// Longest time to connect to it.
const ASKED_WITHIN_S: &str = "3";

/// Whether the server at a place is the one that has this system identifier, and takes writes. `like` says
/// how to connect to it.
pub(super) fn is_at(
    (host, port): (&str, &str),
    database: Option<&str>,
    like: &Conninfo,
    id: &str,
) -> Result<bool, ClientError> {
    let there = (like.clone().without("hostaddr"))
        .with("host", host)?
        .with("port", port)?
        .with("connect_timeout", ASKED_WITHIN_S)?;
    let there = match database {
        Some(database) => there.with_database(database)?,
        None => there,
    };
    let mut there = Connection::connect(&there, Purpose::Sql, APPLICATION)?;
    // A standby has the number of its primary.
    let is_standby: bool = field(&there.query_one("SELECT pg_is_in_recovery()")?, 0)?;
    Ok(system_id(&mut there)? == id && !is_standby)
}
