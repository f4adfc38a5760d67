//! The thread beside the one that applies: takes what the state wants to apply, and apply's progress to the
//! state. Its session has the replica's lock, and is made again where it is lost.

use std::time::{Duration, Instant};

use lockstep_apply::cycle::Running;
use lockstep_apply::session::CyclesShown;
use lockstep_apply::{Control, Phase as Applying, Stats};
use lockstep_client::Conninfo;
use lockstep_wire::Lsn;
use tracing::{info, warn};

use super::{gone, rest, taken};
use crate::error::{ReplicaError, Result};
use crate::state::failpoint;
use crate::state::{Applied, CyclesNow, LockSession, Phase, Replica, ReplicaState, RunningCycle};

/// Interval of looks at the state, usually and while a hold of the replica is wanted: changes wait meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_HELD_EVERY: Duration = Duration::from_millis(20);

/// What the state wants of apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wants {
    paused: bool,
    resumes: u64,
    frequency: Duration,
    bandwidth: Option<u64>,
    forces: u64,
    /// Nothing more is to be applied.
    is_promoted: bool,
}

impl Wants {
    fn of(replica: &Replica) -> Self {
        Self {
            paused: replica.paused,
            resumes: replica.resumes,
            frequency: replica.frequency,
            bandwidth: replica.bandwidth,
            forces: replica.forces,
            is_promoted: replica.phase > Phase::Ready,
        }
    }

    /// Tells apply what is not as before.
    fn tell(self, before: Self, control: &Control) {
        if self.frequency != before.frequency {
            control.set_frequency(self.frequency);
        }
        if self.bandwidth != before.bandwidth {
            control.set_bandwidth(self.bandwidth);
        }
        if self.forces != before.forces {
            control.force(self.forces);
        }
        if (self.paused, self.resumes) != (before.paused, before.resumes) {
            match self.paused {
                true => control.pause(),
                false => control.resume(),
            }
        }
    }
}

/// Takes the state's wishes to the applying thread, and its progress to the state, until that
/// thread has ended. Says in `lock` which session has the replica's lock.
pub(super) fn watch(
    state: ReplicaState,
    replica: &Replica,
    (target, lock): (&Conninfo, &LockSession),
    control: &Control,
) {
    let mut state = Some(state);
    let mut wanted = Wants::of(replica);
    let mut before = Before::default();
    let mut ended = false;
    loop {
        let looked = match &mut state {
            Some(state) => look(state, &replica.name, control, &mut before).and_then(|wants| {
                // A hold that ends with the promotion lets nothing flow again.
                if !wants.is_promoted {
                    hold(state, &replica.name, control)?;
                }
                Ok(wants)
            }),
            none => take_again(none, &replica.name, (target, lock)),
        };
        match looked {
            Ok(Wants {
                is_promoted: true, ..
            })
            | Err(ReplicaError::Promoted { .. }) => end_promoted(&replica.name, control),
            Ok(now) => {
                now.tell(wanted, control);
                wanted = now;
            }
            Err(error) => {
                if lock.refused(error.to_string()) {
                    warn!(replica = replica.name, %error, "the state cannot be read");
                }
                if state.take().is_some() && !ended {
                    continue;
                }
            }
        }
        if ended {
            return;
        }
        ended = match control.wants_hold() {
            // It is written at once that the replica is held, and read soon that it is to be held elsewhere.
            Some(lsn) if !control.is_held(lsn) => {
                control.wait_held(lsn, LOOK_HELD_EVERY);
                is_over(&control.stats())
            }
            Some(_) => rest(control, LOOK_HELD_EVERY),
            None => {
                // Apply finds out soonest that a target which was restarted is there again.
                control.wait_for(LOOK_EVERY, |stats| is_over(stats) || lock.is_missed());
                is_over(&control.stats())
            }
        };
    }
}

fn is_over(stats: &Stats) -> bool {
    stats.phase == Applying::Stopped
}

/// Takes the replica's lock again, whose session is lost.
fn take_again(
    state: &mut Option<ReplicaState>,
    name: &str,
    (target, lock): (&Conninfo, &LockSession),
) -> Result<Wants> {
    let (mut again, replica) = taken(name, target, ReplicaState::lock_again_or_say)?;
    lock.taken(again.backend()?);
    *state = Some(again);
    Ok(Wants::of(&replica))
}

/// Ends a replica whose target is to be a database of its own.
pub(super) fn end_promoted(name: &str, control: &Control) {
    if !control.is_stopped() {
        info!(
            replica = name,
            "a promotion of the replica has begun: nothing more of the source is applied, and this process \
             ends with it"
        );
    }
    control.count(|stats| stats.promoted = true);
    control.stop();
}

/// Holds apply, or lets it go on, as the state wants it, and says there where it is held.
fn hold(state: &mut ReplicaState, name: &str, control: &Control) -> Result<()> {
    match (state.wanted_hold(name)?, control.wants_hold()) {
        (None, None) => {}
        (None, Some(_)) => {
            // First the state: who finds itself held there may rely on it.
            state.end_unwanted_hold(name)?;
            control.release();
        }
        (Some(lsn), _) => {
            control.hold_at(lsn);
            if control.is_held(lsn) {
                state.set_held(name, lsn)?;
                failpoint::HOLD_ANSWERED.reach();
            }
        }
    }
    Ok(())
}

/// What was found at the look before.
#[derive(Default)]
struct Before {
    batches: u64,
    /// Where the publication was right.
    published: Option<Lsn>,
    /// The replica's sessions waited for others.
    waited: bool,
}

/// Looks whom apply waits for: it has committed nothing since the look before, and waited then too.
fn look_at_waits(state: &mut ReplicaState, control: &Control, stats: &Stats, before: &mut Before) {
    let stands = !stats.caught_up && stats.batches == before.batches;
    let waits = match stands && !stats.backends.is_empty() {
        true => state.waits(&stats.backends).ok().flatten(),
        false => None,
    };
    let again = waits.clone().filter(|_| before.waited);
    (before.batches, before.waited) = (stats.batches, waits.is_some());
    if again != stats.waits {
        control.count(|now| {
            // A session that has ended meanwhile waits for nobody.
            if now.backends == stats.backends {
                now.waits = again;
            }
        });
    }
}

/// Writes how far the replica is. Returns what the state wants.
fn look(
    state: &mut ReplicaState,
    name: &str,
    control: &Control,
    before: &mut Before,
) -> Result<Wants> {
    let (missing_rows, tables_seen) = state.tables_seen(name)?;
    control.count(|stats| (stats.missing_rows, stats.tables_seen) = (missing_rows, tables_seen));
    look_at_waits(state, control, &control.stats(), before);
    let stats = control.stats();
    state.set_applied(
        name,
        &Applied {
            state: stats.phase.name().to_owned(),
            lsn: Some(stats.applied).filter(|lsn| *lsn != Lsn::INVALID),
            lag_bytes: stats.lag_bytes(),
            heard: stats.heard.map(|at| at.elapsed()),
            error: stats.error.clone().or(stats.waits.clone()),
            age: None,
            spool: stats.spool.clone(),
            unreplicated: stats.unreplicated.clone(),
            cycles: stats.cycles.map(|cycles| now(&cycles)),
            writers: (stats.writers.as_ref()).map(|(used, why)| (*used, why.to_string())),
            commit_time: stats.commit_time,
        },
    )?;
    if let Some(lsn) = stats
        .published
        .filter(|_| stats.published != before.published)
    {
        state.set_right(name, lsn)?;
        before.published = stats.published;
    }
    let replica = state.replica(name)?;
    replica.as_ref().map(Wants::of).ok_or_else(|| gone(name))
}

/// Where it is between its cycles, as the state has it.
fn now(cycles: &CyclesShown) -> CyclesNow {
    let now = Instant::now();
    let running = |it: Running| RunningCycle {
        number: it.number,
        elapsed: now.saturating_duration_since(it.began),
        remaining: it.remaining(now),
        sent_bytes: it.sent_bytes,
        lsn: it.end,
    };
    CyclesNow {
        running: cycles.running.map(running),
        next: cycles.next.saturating_duration_since(now),
        late: (cycles.late).map_or(Duration::ZERO, |late| now.saturating_duration_since(late)),
    }
}
