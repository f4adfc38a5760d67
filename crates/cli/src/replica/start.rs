//! `lockstep replica start`

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use lockstep_apply::Unreplicated;
use lockstep_client::Conninfo;
use lockstep_replica::error::ReplicaError;
use lockstep_replica::state::{Applied, Replica, ReplicaState};
use lockstep_replica::status::source::Source;
use lockstep_replica::status::standing::{Standing, standing};
use lockstep_service::exit::Failure;
use lockstep_service::words::output;
use lockstep_wire::Lsn;

use super::{ReplicaArgs, failed};

/// Interval at which the state is asked.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// `lockstep replica start`
#[derive(Debug, Args)]
pub struct StartArgs {
    #[command(flatten)]
    replica: ReplicaArgs,
    /// Most seconds to wait until changes are applied
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=3600))]
    wait: u16,
}

pub fn run(args: &StartArgs) -> Result<()> {
    let (target, source) = args.replica.ends()?;
    let wait = Duration::from_secs(args.wait.into());
    let started = start(&args.replica.name, &target, source.as_ref(), wait).map_err(failed)?;
    match started {
        Some((lsn, unreplicated)) => {
            let name = &args.replica.name;
            output::print(&format!("replica {name} applies, up to {lsn} now"));
            match unreplicated.words {
                None => Ok(()),
                Some(words) => Err(Failure::DataMismatch(format!(
                    "replica {name} is not complete: {words}"
                ))
                .into()),
            }
        }
        None => Err(Failure::Usage(format!(
            "the target has no replica \"{}\"",
            args.replica.name
        ))
        .into()),
    }
}

/// Ends a pause and waits until the replica gets on. Returns how far it is, and what is not replicated; None
/// if there is no such replica.
fn start(
    name: &str,
    target: &Conninfo,
    source: Option<&Conninfo>,
    wait: Duration,
) -> Result<Option<(Lsn, Unreplicated)>, ReplicaError> {
    let Some(mut state) = ReplicaState::find(target)? else {
        return Ok(None);
    };
    let Some(replica) = state.replica(name)? else {
        return Ok(None);
    };
    replica.check_ready()?;
    let before = state.applied(name)?.lsn;
    let tables = state.tables(name)?;
    let mut asked = Source::ask(&replica, source, Some(&tables), None)?;
    asked.look_at_target(&mut state, &tables)?;
    state.set_paused(name, false)?;
    let deadline = Instant::now() + wait;
    loop {
        let (holder, applied) = (state.holder(name)?, state.applied(name)?);
        let standing = standing(holder, &applied);
        // One with a frequency stands still until its next cycle.
        let has_cycles = !replica.frequency.is_zero();
        let is_on = |lsn: &Lsn| has_cycles || *lsn >= asked.end || Some(*lsn) > before;
        let reached = applied.lsn.filter(is_on);
        if let (Standing::Apply("applying"), Some(lsn)) = (standing, reached) {
            return Ok(Some((lsn, asked.unreplicated(&replica))));
        }
        if Instant::now() >= deadline {
            let words = match standing {
                Standing::Other => state.lock_words(name)?,
                standing => why_not(&replica, standing, &applied, wait),
            };
            return Err(ReplicaError::State(words));
        }
        thread::sleep(ASK_EVERY);
    }
}

/// Why a replica does not apply.
fn why_not(replica: &Replica, standing: Standing<'_>, applied: &Applied, wait: Duration) -> String {
    let (name, seconds) = (&replica.name, wait.as_secs());
    let because = applied.error.as_ref();
    let because = because.map_or_else(String::new, |error| format!(": {error}"));
    match standing {
        Standing::NotRunning => format!(
            "replica \"{name}\" is to apply, but no process has taken it up within {seconds} s: start \
             lockstep replica run with its name, or with a --config that lists it{because}"
        ),
        Standing::Other => format!("another works on replica \"{name}\""),
        Standing::Silent => format!(
            "the process of replica \"{name}\" is connected and writes nothing: is its machine alive?"
        ),
        Standing::Apply(state) => format!(
            "replica \"{name}\" has not applied anything within {seconds} s, it is {state}{because}"
        ),
    }
}
