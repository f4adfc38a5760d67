//! Whether sessions of others begin read-only on the target while a replica follows.
//!
//! That is a setting of the target's database: a session may turn it off for itself, as those of a replica
//! do, and one that is open stays as it is. The state says in the same commit whether the replica has set it.
//! A promotion takes it back whoever has set it, and a removal if the replica has. The fences of a switchover
//! set it, too, and know what it was: meanwhile nobody else touches it.

use lockstep_client::quote::identifier;
use lockstep_client::{ClientError, Connection, field};

use crate::error::{ReplicaError, Result};
use crate::lifecycle::fence::{self, Fence, Fenced};
use crate::state::{Phase, Replica, ReplicaState};

/// What the database's own setting is set to, and back.
const ON: &str = "SET default_transaction_read_only = on";
const RESET: &str = "RESET default_transaction_read_only";

/// Whether this role may set it.
const OWNS: &str =
    "SELECT pg_has_role(datdba, 'USAGE') FROM pg_database WHERE datname = current_database()";

/// Lets sessions in the target's database begin read-only from now on, or no more. False if there is no such
/// replica.
pub fn set(state: &mut ReplicaState, name: &str, is_read_only: bool) -> Result<bool> {
    let Some(replica) = state.replica(name)? else {
        return Ok(false);
    };
    replica.check_not_promoted()?;
    if is_fenced(state.connection()).map_err(ReplicaError::Target)? {
        return Err(ReplicaError::State(format!(
            "the database of replica \"{name}\" takes no writes, since a switchover has left it or comes to it, and \
             what it was before is kept until that ends: nothing is changed"
        )));
    }
    let how = if is_read_only { ON } else { RESET };
    in_one_commit(state, how, |state| state.keep_read_only(name, is_read_only))?;
    Ok(true)
}

/// Lets a target begin read-only whose copy begins; leaves it if this role may not set that, or somebody has
/// set it before.
pub(super) fn begin(state: &mut ReplicaState, name: &str) -> Result<()> {
    let session = state.connection();
    let may = session.query_one(OWNS).and_then(|row| field(&row, 0));
    let is_set = session.setting().map(|it| it.as_deref() == Some("on"));
    match (may, is_set) {
        (Ok(true), Ok(false)) => set(state, name, true).map(drop),
        (Ok(_), Ok(_)) => Ok(()),
        (Err(error), _) | (_, Err(error)) => Err(ReplicaError::Target(error)),
    }
}

/// Forgets a replica, and takes back what it has set.
pub(super) fn forget(state: &mut ReplicaState, replica: &Replica) -> Result<()> {
    let name = &replica.name;
    let session = state.connection();
    let is_set = replica.read_only
        && replica.phase != Phase::Promoted
        && !is_fenced(session).map_err(ReplicaError::Target)?
        && session.setting().map_err(ReplicaError::Target)?.as_deref() == Some("on");
    match is_set {
        false => state.remove(name),
        true => in_one_commit(state, RESET, |state| state.remove(name)),
    }
}

/// A fence keeps the database from being written, and knows what the setting was.
fn is_fenced(session: &mut Connection) -> Result<bool, ClientError> {
    Ok(fence::is_up(session, Fence::Left)? || fence::is_up(session, Fence::Comes)?)
}

fn in_one_commit(
    state: &mut ReplicaState,
    how: &str,
    change: impl FnOnce(&mut ReplicaState) -> Result<()>,
) -> Result<()> {
    let run = |state: &mut ReplicaState, sql: &str| {
        state
            .connection()
            .execute(sql)
            .map_err(ReplicaError::Target)
    };
    let database = state.connection().query_one("SELECT current_database()");
    let database = database.and_then(|row| identifier("database", &field::<String>(&row, 0)?));
    let database = database.map_err(ReplicaError::Target)?;
    run(state, "BEGIN")?;
    run(state, &format!("ALTER DATABASE {database} {how}"))?;
    change(state)?;
    run(state, "COMMIT")
}
