//! What a switchover would do, and how long clients would wait.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use super::{Command, Compare, SwitchWatcher, Switchover, to_promote};
use crate::error::{ReplicaError, Result};
use crate::lifecycle::fence::{self, Fenced};
use crate::lifecycle::promotion::Drained;
use crate::switchover::drive::{Opens, Servers};

/// What a pause would be made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rehearsed {
    /// Each part of the pause, and whether it was measured.
    pub parts: Vec<(&'static str, Duration, bool)>,
    /// What would be waited for first.
    pub waits: Option<String>,
    /// Tables that would be fenced.
    pub tables: u64,
}

/// Parts that cannot be measured without doing them: the fence's triggers are made before the pause.
const FENCE: Duration = Duration::from_millis(50);
const UNMEASURED: Duration = Duration::from_millis(300);

/// Looks for what would make it fail, and measures what a pause would be made of. Apply stands still for a
/// moment; otherwise nothing is changed.
pub fn rehearse(what: &Switchover, watcher: &mut dyn SwitchWatcher) -> Result<Rehearsed> {
    let mut command = Command {
        what,
        promote: &to_promote(what),
        watcher: &RefCell::new(watcher),
    };
    let mut drive = command.open(what.timeout)?;
    if drive.stage.is_begun() {
        let name = &what.name;
        return Err(ReplicaError::State(format!(
            "a switchover of replica \"{name}\" has begun and is not over: the source may take no writes, and \
             clients may wait. Repeat the command without --dry-run, which takes it back or goes on"
        )));
    }
    drive.servers.run.replica.check_ready()?;
    drive.look_first()?;
    if let Some(words) = drive.see()?.refusal {
        return Err(ReplicaError::State(words));
    }
    let switch = &mut drive.servers;
    let mut parts = Vec::new();
    let mut timed = |part: &'static str, began: Instant| parts.push((part, began.elapsed(), true));
    if let Some(pooler) = &switch.pooler {
        let began = Instant::now();
        pooler.is_paused()?;
        timed("pooler", began);
    }
    switch.arm()?;
    let waits = switch.waits()?;
    let end = switch.source()?.mark().map_err(ReplicaError::Source)?;
    let began = Instant::now();
    let drained = switch.run.drain(end, what.timeout)?;
    timed("drain", began);
    if what.compare == Compare::Counts {
        let began = Instant::now();
        switch.compare_counts(what.max_pause)?;
        timed("comparison", began);
    }
    switch.run.state.end_hold(&what.name)?;
    if let Drained::Not(words) = drained {
        return Err(ReplicaError::State(words));
    }
    let tables = fence::tables(switch.source()?).map_err(ReplicaError::Source)?;
    parts.push(("fence", FENCE, false));
    parts.push(("end of apply, sequences, opening", UNMEASURED, false));
    Ok(Rehearsed {
        parts,
        waits,
        tables,
    })
}
