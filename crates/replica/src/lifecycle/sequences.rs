//! Sequences, which are in no stream: while a replica applies, the target's are set to the source's values
//! after each cycle, or without cycles within [`LOOK_AT_SOURCE_EVERY`] of a change.
//!
//! The source's values are read after the cycle is committed, so that none is behind a value that the cycle's
//! rows have. While some cannot be set, all are looked at every [`LOOK_AT_SOURCE_EVERY`].

use std::time::Duration;

use lockstep_apply::Stats;
use lockstep_client::Connection;
use lockstep_wire::Lsn;
use tracing::warn;

use super::follow::{LOOK_AT_SOURCE_EVERY, Look, rest};
use super::setval::{self, Values};
use crate::error::{ReplicaError, Result};
use crate::lifecycle::session;
use crate::state::{Phase, ReplicaState, Unmade, unmade_words};

/// Interval of looks whether a cycle has ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What the target was when sequences were set last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    cycles: u64,
    applied: Lsn,
}

impl Seen {
    /// The target's state if it has moved: of a replica with cycles, if one has ended. A process that begins
    /// does not know whether the one before has set them after its last cycle.
    fn moved(before: Option<Self>, stats: &Stats, has_cycles: bool) -> Option<Self> {
        let now = Self {
            cycles: stats.cycles_done,
            applied: stats.applied,
        };
        let moved = match has_cycles {
            true => before.is_none_or(|before| before.cycles != now.cycles),
            false => before != Some(now),
        };
        moved.then_some(now)
    }
}

/// The sessions of a thread that sets sequences, and what it has set.
struct Sessions {
    source: Connection,
    target: Connection,
    set: Values,
}

/// Sets sequences until the replica has ended.
pub(super) fn follow(look: &Look) {
    let (mut seen, mut sessions) = (None, None);
    let (mut said, mut listed) = (None, None);
    let mut pause = LOOK_EVERY;
    while !rest(&look.control, pause) && look.alive.strong_count() > 0 {
        let has_cycles = !look.control.wanted().frequency.is_zero();
        // A right may be granted at any time.
        let has_unset = (listed.as_ref()).is_some_and(|listed: &Vec<_>| !listed.is_empty());
        pause = match has_cycles && !has_unset {
            true => LOOK_EVERY,
            false => LOOK_AT_SOURCE_EVERY,
        };
        let stats = look.control.stats();
        let before = seen.filter(|_| !has_unset);
        let Some(now) = Seen::moved(before, &stats, has_cycles) else {
            continue;
        };
        match set(look, &mut sessions).and_then(|unset| list(look, unset, &mut listed)) {
            Ok(()) => (seen, said) = (Some(now), None),
            // Apply says what is wrong with a server that is away.
            Err(error) => {
                (sessions, pause) = (None, LOOK_AT_SOURCE_EVERY);
                let words = Some(error.to_string());
                if words != said {
                    warn!(replica = look.replica.name, %error, "sequences are not set");
                }
                said = words;
            }
        }
    }
}

/// Keeps in the state which sequences cannot be set, unless it has them `listed` already.
fn list(look: &Look, unset: Vec<Unmade>, listed: &mut Option<Vec<Unmade>>) -> Result<()> {
    if listed.as_ref() == Some(&unset) {
        return Ok(());
    }
    let name = &look.replica.name;
    if let Some(words) = unmade_words(&unset, name) {
        warn!(replica = name, "{words}");
    }
    if let Some(mut state) = ReplicaState::find(&look.target)? {
        state.set_unmade(name, Phase::Ready, &unset)?;
        let unmade = state.unmade(name)?.len();
        look.control.count(|stats| stats.unmade = Some(unmade));
    }
    *listed = Some(unset);
    Ok(())
}

fn set(look: &Look, sessions: &mut Option<Sessions>) -> Result<Vec<Unmade>> {
    let open = || -> Result<Sessions> {
        Ok(Sessions {
            source: session(&look.source).map_err(ReplicaError::Source)?,
            target: session(&look.target).map_err(ReplicaError::Target)?,
            set: Values::new(),
        })
    };
    let now = match sessions.take() {
        Some(now) => now,
        None => open()?,
    };
    let now = sessions.insert(now);
    let (excluded, publication) = (look.replica.excluded(), &look.replica.publication);
    setval::set(
        &mut now.source,
        &mut now.target,
        (&excluded, publication),
        Some(&look.replica.name),
        &mut now.set,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_set_after_each_cycle_or_after_changes() {
        let stats = |cycles_done: u64, applied: u64| Stats {
            cycles_done,
            applied: Lsn::from(applied),
            ..Stats::default()
        };
        let moved =
            |before, now: &Stats, has_cycles| Seen::moved(before, now, has_cycles).is_some();
        assert!(
            moved(None, &stats(0, 7), true),
            "the process before was killed"
        );
        let one = Seen::moved(None, &stats(1, 7), true);
        assert!(one.is_some());
        assert!(!moved(one, &stats(1, 8), true));
        assert!(moved(one, &stats(2, 7), true), "one with nothing new, too");
        assert!(moved(None, &stats(0, 7), false));
        assert!(!moved(one, &stats(1, 7), false));
        assert!(moved(one, &stats(1, 8), false));
    }
}
