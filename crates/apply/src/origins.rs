//! The replication origins of a replica: one for each writer, since a session can own but one and no
//! other session can own it meanwhile.
//!
//! Writers commit one after the other, each with its own origin, so the target stands at the highest
//! of them. An origin that a session owns may still be moved by a commit that is under way: whoever
//! asks where the target stands owns each of them first, if only for a moment. So a commit whose
//! answer was lost has ended, one way or the other, before anything is sent again.

use lockstep_client::quote::sql_literal;
use lockstep_client::{ClientError, Connection, Result, field};
use lockstep_wire::Lsn;

/// Origins that the writers of a session leave to others when it adds one.
pub const SPARED: i64 = 2;

/// SQLSTATE of a server that has no room for another origin.
const NO_ROOM: &str = "53400";

/// SQLSTATE of an origin that another session owns.
const IN_USE: &str = "55006";

/// Names of the origins that exist. A number follows the replica's name for them; a replica whose
/// name is longer has other origins.
pub fn listed(connection: &mut Connection, prefix: &str) -> Result<Vec<String>> {
    let prefix = sql_literal("origin", &format!("{prefix}_"))?;
    let rows = connection.query(&format!(
        "SELECT roname FROM pg_catalog.pg_replication_origin \
         WHERE pg_catalog.starts_with(roname, {prefix}) \
           AND pg_catalog.substr(roname, pg_catalog.length({prefix}) OPERATOR(pg_catalog.+) 1) \
             OPERATOR(pg_catalog.~) '^[0-9]+$'"
    ))?;
    rows.iter().map(|row| field(row, 0)).collect()
}

/// The origin of a writer; the first is 0.
pub fn name(prefix: &str, writer: usize) -> String {
    format!("{prefix}_{writer}")
}

/// Owns an origin, which is made if it does not exist.
pub fn own(connection: &mut Connection, origin: &str) -> Result<()> {
    let origin = sql_literal("origin", origin)?;
    connection.execute(&format!(
        "SELECT pg_catalog.pg_replication_origin_create({origin}) WHERE NOT EXISTS \
         (SELECT FROM pg_catalog.pg_replication_origin WHERE roname OPERATOR(pg_catalog.=) {origin}); \
         SELECT pg_catalog.pg_replication_origin_session_setup({origin})"
    ))
}

/// Origins that a session could still own, besides those that exist.
pub fn free(connection: &mut Connection) -> Result<i64> {
    let row = connection.query_one(
        "SELECT coalesce(pg_catalog.current_setting('max_active_replication_origins', true), \
           pg_catalog.current_setting('max_replication_slots'))::bigint \
         OPERATOR(pg_catalog.-) (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_origin)",
    )?;
    field(&row, 0)
}

/// Whether a session applies to a replica: each that does owns its first origin. False if this role may not
/// ask. `prefix` is what its origins' names begin with, in SQL.
pub fn is_in_use(connection: &mut Connection, prefix: &str) -> Result<bool> {
    let there = format!(
        "FROM pg_catalog.pg_replication_origin \
         WHERE roname OPERATOR(pg_catalog.=) ({prefix} OPERATOR(pg_catalog.||) '_0'::pg_catalog.text)"
    );
    let asked = connection.execute(&format!(
        "SELECT pg_catalog.pg_replication_origin_session_setup(roname) {there}; \
         SELECT pg_catalog.pg_replication_origin_session_reset() {there}"
    ));
    match asked {
        Ok(()) => Ok(false),
        Err(error) => match error.refusal() {
            Some(refusal) => Ok(refusal.sqlstate == IN_USE),
            None => Err(error),
        },
    }
}

pub fn disown(connection: &mut Connection) -> Result<()> {
    connection.execute("SELECT pg_catalog.pg_replication_origin_session_reset()")
}

/// Where an origin stands, durably; `0/0` if nothing was ever committed with it.
pub fn stands(connection: &mut Connection, origin: &str) -> Result<Lsn> {
    let origin = sql_literal("origin", origin)?;
    let row = connection.query_one(&format!(
        "SELECT coalesce(pg_catalog.pg_replication_origin_progress({origin}, true), '0/0')"
    ))?;
    field(&row, 0)
}

pub fn drop(connection: &mut Connection, origin: &str) -> Result<()> {
    let origin = sql_literal("origin", origin)?;
    connection.execute(&format!(
        "SELECT pg_catalog.pg_replication_origin_drop({origin})"
    ))
}

/// The server has no room for another origin.
pub fn is_full(error: &ClientError) -> bool {
    let refusal = error.refusal();
    refusal.is_some_and(|refusal| refusal.sqlstate == NO_ROOM)
}
