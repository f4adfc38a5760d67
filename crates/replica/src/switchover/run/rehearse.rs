//! What a switchover would do, and how long clients would wait.

use std::time::{Duration, Instant};

use super::{Compare, Switch, SwitchWatcher, Switchover, to_promote};
use crate::error::{ReplicaError, Result};
use crate::lifecycle::fence;
use crate::lifecycle::promotion::Drained;

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
    let promote = to_promote(what);
    let mut switch = Switch::open(what, &promote)?;
    if switch.stage.is_begun() {
        let name = &what.name;
        return Err(ReplicaError::State(format!(
            "a switchover of replica \"{name}\" has begun and is not over: the source may take no writes, and \
             clients may wait. Repeat the command without --dry-run, which takes it back or goes on"
        )));
    }
    switch.run.replica.check_ready()?;
    switch.look(watcher)?;
    if let Some(words) = switch.see()?.refusal {
        return Err(ReplicaError::State(words));
    }
    let mut parts = Vec::new();
    let mut timed = |part: &'static str, began: Instant| parts.push((part, began.elapsed(), true));
    if let Some(pooler) = &switch.pooler {
        let began = Instant::now();
        pooler.is_paused()?;
        timed("pooler", began);
    }
    switch.arm()?;
    let waits = switch.waits()?;
    let end = fence::mark(switch.source()?).map_err(ReplicaError::Source)?;
    let began = Instant::now();
    let drained = switch.run.drain(end, what.timeout)?;
    timed("drain", began);
    if what.compare == Compare::Counts {
        let began = Instant::now();
        switch.compare_counts()?;
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
