//! Applies to a replica that `create` has made: what its state says, as apply wants it.

use lockstep_client::{Connection, Conninfo};

use crate::apply::error::{ApplyError, Result as ApplyResult};
use crate::apply::{MEMORY, Settings, Start, Starts};
use crate::error::{ReplicaError, Result};
use crate::state::{Phase, Replica, State, TableState};

/// The end of an origin's name, after `replica.origin`: the first writer's, and so far the only
/// one's.
const ORIGIN: &str = "_0";

/// Settings of a replica. An error if its copy is not ready.
pub fn settings(replica: &Replica, source: &Conninfo, target: &Conninfo) -> Result<Settings> {
    if replica.phase != Phase::Ready {
        return Err(ReplicaError::State(format!(
            "replica {} is not copied yet: run lockstep replica create again, which goes on",
            replica.name
        )));
    }
    Ok(Settings {
        source: source.clone(),
        target: target.clone(),
        slot: replica.slot.clone(),
        publications: vec![replica.publication.clone()],
        origin: format!("{}{ORIGIN}", replica.origin),
        application_name: replica.name.clone(),
        memory: MEMORY,
    })
}

/// Where each table of a replica starts: where its own copy ends. Others are not replicated.
pub fn starts(target: &Conninfo, replica: &str) -> ApplyResult<Starts> {
    let tables = State::open(target).and_then(|mut state| state.tables(replica));
    let tables = tables.map_err(|error| match error {
        ReplicaError::Target(error) => ApplyError::Target(error),
        other => ApplyError::System(other.to_string()),
    })?;
    let copied = tables.into_iter().map(|table| {
        let start = match (table.state, table.start) {
            (TableState::Copied, Some(lsn)) => Start::At(lsn),
            _ => Start::Never,
        };
        (table.name, start)
    });
    Ok(Starts {
        tables: copied.collect(),
        others: Start::Never,
    })
}

/// Applies to a replica until `control` stops it; see [`crate::apply::run`].
pub fn run(settings: &Settings, replica: &str, control: &crate::apply::Control) -> ApplyResult<()> {
    let mut asked = |_: &mut Connection| starts(&settings.target, replica);
    crate::apply::run(settings, control, &mut asked)
}
