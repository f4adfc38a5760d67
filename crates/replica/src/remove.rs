//! `replica drop`: what a replica has on source and target, but for the data.

use lockstep_client::quote::{identifier, sql_literal};
use lockstep_client::{ClientError, Connection, Conninfo, Purpose};

use crate::error::{ReplicaError, Result};
use crate::state::{APPLICATION, Replica, State};

/// Drops the replica's slot and publication on the source, as far as they are there.
pub fn remove_from_source(source: &Conninfo, replica: &Replica) -> Result<()> {
    let removed = || -> Result<(), ClientError> {
        let mut session = Connection::connect(source, Purpose::Sql, APPLICATION)?;
        if session.slot(&replica.slot)?.is_some() {
            session.drop_slot(&replica.slot)?;
        }
        let publication = identifier("publication", &replica.publication)?;
        session.execute(&format!(
            "SET client_min_messages = error; DROP PUBLICATION IF EXISTS {publication}"
        ))
    };
    removed().map_err(ReplicaError::Source)
}

/// Drops a replica: its slot and publication on the source, its origins and its state on the
/// target. The target's tables stay. `source` is used in place of the conninfo that the state has.
pub fn remove(name: &str, target: &Conninfo, source: Option<&Conninfo>) -> Result<Replica> {
    let unknown = || {
        ReplicaError::State(format!(
            "the target has no replica \"{name}\"; lockstep replica status lists those it has"
        ))
    };
    let mut state = State::find(target)?.ok_or_else(unknown)?;
    let replica = state.replica(name)?.ok_or_else(unknown)?;
    if !state.lock(name)? {
        return Err(ReplicaError::State(format!(
            "another lockstep works on replica \"{name}\"; end it first"
        )));
    }
    let kept;
    let source = match source {
        Some(source) => source,
        None => {
            kept = Conninfo::parse(&replica.source).map_err(ReplicaError::Source)?;
            &kept
        }
    };
    remove_from_source(source, &replica)?;
    remove_origins(&mut state, &replica).map_err(ReplicaError::Target)?;
    state.remove(name)?;
    Ok(replica)
}

fn remove_origins(state: &mut State, replica: &Replica) -> Result<(), ClientError> {
    let prefix = sql_literal("origin", &format!("{}_", replica.origin))?;
    // A number follows the prefix; a replica whose name is longer has other origins.
    state.connection().execute(&format!(
        "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin \
         WHERE starts_with(roname, {prefix}) AND substr(roname, length({prefix}) + 1) ~ '^[0-9]+$'"
    ))
}
