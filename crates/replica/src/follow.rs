//! `replica run`: applies what the slot of a finished copy has kept, and what comes after it.
//!
//! Two threads: one applies, the other looks every second at what the target's state wants (a
//! pause), and writes there how far the replica is. Its session holds the replica's lock, so that
//! nothing else works on the replica meanwhile. While the target is away neither does anything.

use std::thread;
use std::time::Duration;

use lockstep_client::{Connection, Conninfo, field};
use lockstep_wire::Lsn;
use tracing::warn;

use crate::apply::{self, ApplyError, Control, MEMORY, Settings, Start, Starts, Stats};
use crate::error::{ReplicaError, Result};
use crate::names::TableName;
use crate::state::{Applied, Phase, Replica, State};

/// How often the state is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Where each table's changes begin: those before are in its copy. What is not listed is not in the
/// publication.
const STARTS: &str = "SELECT schema_name, table_name, start_lsn FROM lockstep.table_copy \
    WHERE replica = $1 AND state = 'copied'";

/// Follows the source until `control` is told to stop. `source` is used in place of the conninfo
/// that the state has.
pub fn follow(
    name: &str,
    target: &Conninfo,
    source: Option<&Conninfo>,
    control: &Control,
) -> Result<()> {
    let (state, replica) = take(name, target)?;
    let source = match source {
        Some(source) => source.clone(),
        None => Conninfo::parse(&replica.source).map_err(ReplicaError::Source)?,
    };
    let settings = Settings {
        source,
        target: target.clone(),
        slot: replica.slot.clone(),
        publications: vec![replica.publication.clone()],
        origin: format!("{}_0", replica.origin),
        application_name: replica.origin.clone(),
        memory: MEMORY,
    };
    if replica.paused {
        control.pause();
    }
    let mut starts = |session: &mut Connection| starts(session, name);
    thread::scope(|scope| {
        scope.spawn(|| watch(state, &replica, target, control));
        apply::run(&settings, control, &mut starts).map_err(ReplicaError::Apply)
    })
}

/// The state with the replica's lock.
fn take(name: &str, target: &Conninfo) -> Result<(State, Replica)> {
    let unknown = || {
        ReplicaError::State(format!(
            "the target has no replica \"{name}\"; lockstep replica create makes one"
        ))
    };
    let mut state = State::find(target)?.ok_or_else(unknown)?;
    let replica = state.replica(name)?.ok_or_else(unknown)?;
    if replica.phase != Phase::Ready {
        return Err(ReplicaError::State(format!(
            "the copy of replica \"{name}\" is not finished; run lockstep replica create again"
        )));
    }
    match state.lock(name)? {
        true => Ok((state, replica)),
        false => Err(ReplicaError::State(format!(
            "another lockstep works on replica \"{name}\"; end it first"
        ))),
    }
}

fn starts(session: &mut Connection, name: &str) -> apply::error::Result<Starts> {
    let read = session.query_with(STARTS, &[&name]).and_then(|rows| {
        rows.iter()
            .map(|row| {
                let name = TableName {
                    schema: field(row, 0)?,
                    table: field(row, 1)?,
                };
                Ok((name, Start::At(field::<Lsn>(row, 2)?)))
            })
            .collect()
    });
    Ok(Starts {
        tables: read.map_err(ApplyError::Target)?,
        others: Start::Never,
    })
}

/// Takes the state's wishes to the applying thread, and its progress to the state, until that
/// thread has ended.
fn watch(state: State, replica: &Replica, target: &Conninfo, control: &Control) {
    let mut state = Some(state);
    let mut wanted = (replica.paused, replica.resumes);
    loop {
        let ended = control.wait_for(LOOK_EVERY, |stats| stats.phase == apply::Phase::Stopped);
        let looked = match &mut state {
            Some(state) => look(state, &replica.name, &control.stats()),
            // The first session is lost: another takes its lock again.
            none => take(&replica.name, target).map(|(state, replica)| {
                *none = Some(state);
                (replica.paused, replica.resumes)
            }),
        };
        match looked {
            Ok(now) if now != wanted => {
                wanted = now;
                match wanted.0 {
                    true => control.pause(),
                    false => control.resume(),
                }
            }
            Ok(_) => {}
            Err(error) => {
                if state.take().is_some() {
                    warn!(replica = replica.name, %error, "the state cannot be read");
                }
            }
        }
        if ended {
            return;
        }
    }
}

/// Writes how far the replica is. Returns whether it is to pause, and how often it was resumed: that
/// lets one that a change has stopped try again.
fn look(state: &mut State, name: &str, stats: &Stats) -> Result<(bool, u64)> {
    let phase = match stats.phase {
        apply::Phase::Connecting => "connecting",
        apply::Phase::Applying => "applying",
        apply::Phase::Paused => "paused",
        apply::Phase::Blocked => "blocked",
        apply::Phase::Stopped => "stopped",
    };
    state.set_applied(
        name,
        &Applied {
            state: phase.to_owned(),
            lsn: Some(stats.applied).filter(|lsn| *lsn != Lsn::INVALID),
            lag_bytes: stats.lag_bytes(),
            error: stats.error.clone(),
        },
    )?;
    let replica = state.replica(name)?;
    let gone = || ReplicaError::State(format!("replica \"{name}\" is gone from the target"));
    let wants = |replica: Replica| (replica.paused, replica.resumes);
    replica.map(wants).ok_or_else(gone)
}
