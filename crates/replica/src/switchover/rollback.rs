//! `replica rollback`: back to the server that a switchover has left, by a switchover of its way back.

use std::panic::resume_unwind;
use std::sync::atomic::Ordering;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use lockstep_apply::{Control, MEMORY, Writers};
use lockstep_client::{Conninfo, field};
use lockstep_wire::Lsn;

use crate::error::{ReplicaError, Result};
use crate::lifecycle::follow::{Following, follow};
use crate::state::{Holder, Phase, Replica, ReplicaState};
use crate::status::source::{END, connect, source_of};
use crate::status::standing::hindrance;
use crate::switchover::reverse;
use crate::switchover::run::{SwitchWatcher, Switchover};
use crate::verify::named::Ends;

/// Interval of looks at how far the old server is.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Where the server is that replica `name`'s switchover has left, and that `way_back` follows from there.
/// `source` is used in place of the conninfo that the state has.
pub fn old_server(
    name: &str,
    way_back: &str,
    target: &Conninfo,
    source: Option<&Conninfo>,
) -> Result<Conninfo> {
    let replica = match ReplicaState::find(target)? {
        Some(mut state) => state.replica(name)?,
        None => None,
    };
    let kept = replica.as_ref().map(|it| it.source.as_str());
    let old = match (source, kept) {
        (None, None) => {
            return Err(ReplicaError::Usage(format!(
                "the target has no replica \"{name}\"; lockstep replica status lists those it has"
            )));
        }
        (source, kept) => source_of(source, kept.unwrap_or_default())?,
    };
    let back = reverse::find(&old, way_back)?;
    match refusal((name, way_back), replica.as_ref(), back.as_ref()) {
        None => Ok(old),
        Some(words) => Err(ReplicaError::State(words)),
    }
}

/// Why there is nothing to go back by; None if there is. `back` is the way back on the old server.
fn refusal(
    (name, way_back): (&str, &str),
    replica: Option<&Replica>,
    back: Option<&Replica>,
) -> Option<String> {
    let is_open = |it: &Replica| matches!(it.phase, Phase::Promoting | Phase::Promoted);
    match (replica, back.map(|it| it.phase)) {
        (_, Some(Phase::Ready | Phase::Promoting | Phase::Promoted)) => None,
        (_, Some(_)) => Some(format!(
            "a switchover of replica \"{name}\" has begun and is not over: repeat lockstep replica switchover {name}, \
             which goes on or takes it back"
        )),
        (Some(replica), None) if !is_open(replica) => Some(format!(
            "replica \"{name}\" follows its source, which takes all writes: there is nothing to go back from"
        )),
        (_, None) => Some(format!(
            "the old server has no replica \"{way_back}\", so nothing has kept what was written since: the replica was \
             promoted, or switched over with --no-reverse or another --reverse, or its way back was dropped"
        )),
    }
}

/// Does `work` once the way back that `what` switches over has what its source has now. If no process applies
/// to it, this one does until `work` has ended.
pub fn while_applied<T>(
    what: &Switchover,
    watcher: &mut dyn SwitchWatcher,
    work: impl FnOnce(&mut dyn SwitchWatcher) -> Result<T>,
) -> Result<T> {
    let name = &what.name;
    let gone = || ReplicaError::State(format!("replica \"{name}\" was dropped meanwhile"));
    let mut state = ReplicaState::find(&what.target)?.ok_or_else(gone)?;
    let replica = state.replica(name)?.ok_or_else(gone)?;
    let may_apply = replica.phase == Phase::Ready && !replica.paused;
    if !may_apply || state.holder(name)? != Holder::Nobody {
        return work(watcher);
    }
    let source = source_of(what.source.as_ref(), &replica.source)?;
    let end = connect(&source).and_then(|mut it| field::<Lsn>(&it.query_one(END)?, 0));
    let end = end.map_err(ReplicaError::Source)?;
    watcher.says(&format!(
        "no process applies to replica {name}: this one does, and waits until the old server has everything before {end}"
    ));
    let following = Following {
        name: name.clone(),
        target: what.target.clone(),
        source: Some(source),
        memory: MEMORY,
        writers: Writers::default(),
        spool: None,
    };
    let control = Control::default();
    thread::scope(|scope| {
        let _ends = Ends(&control);
        let own = scope.spawn(|| follow(&following, &control));
        catch_up(&mut state, what, end, own, watcher)?;
        drop(state);
        work(watcher)
    })
}

/// Waits until the replica has everything before `end`, or has stopped at a change, which a switchover says.
fn catch_up(
    state: &mut ReplicaState,
    what: &Switchover,
    end: Lsn,
    own: ScopedJoinHandle<'_, Result<()>>,
    watcher: &mut dyn SwitchWatcher,
) -> Result<()> {
    let (name, began) = (&what.name, Instant::now());
    let (mut own, mut said) = (Some(own), None);
    loop {
        if what.stop.load(Ordering::Relaxed) {
            let words = "it was asked to end: nothing is changed";
            return Err(ReplicaError::State(words.to_owned()));
        }
        let (holder, applied) =
            state.at_one_moment(|state| Ok((state.holder(name)?, state.applied(name)?)))?;
        if let Some(ended) = own.take_if(|it| it.is_finished()) {
            let ended = ended.join().unwrap_or_else(|panic| resume_unwind(panic));
            // Another process may have come first.
            if holder != Holder::Apply {
                return ended;
            }
        }
        // What an earlier process has written says nothing.
        let is_new = applied.age.is_some_and(|age| age < began.elapsed());
        let is_there = applied.lsn >= Some(end) || applied.state == "blocked";
        if holder == Holder::Apply && is_new && is_there {
            return Ok(());
        }
        let words = hindrance(&applied).filter(|_| is_new);
        if words != said {
            if let Some(words) = &words {
                watcher.says(&format!("waiting: {words}"));
            }
            said = words;
        }
        thread::sleep(ASK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(phase: Phase) -> Replica {
        Replica {
            phase,
            ..crate::lifecycle::promotion::tests_replica()
        }
    }

    #[test]
    fn only_a_way_back_that_is_whole_leads_back() {
        let refused = |replica: Option<&Replica>, back: Option<&Replica>| {
            refusal(("r", "r_back"), replica, back).unwrap_or_default()
        };
        let [preparing, ready, promoting, promoted] = [
            Phase::Preparing,
            Phase::Ready,
            Phase::Promoting,
            Phase::Promoted,
        ]
        .map(replica);
        // Gone back already, or in the middle of it: the switchover says so, or goes on.
        for back in [&ready, &promoting, &promoted] {
            for forward in [None, Some(&preparing), Some(&ready), Some(&promoted)] {
                assert_eq!(refused(forward, Some(back)), "");
            }
        }
        for (forward, back, words) in [
            (Some(&promoting), Some(&preparing), "is not over: repeat"),
            (Some(&ready), Some(&preparing), "is not over: repeat"),
            (Some(&ready), None, "nothing to go back from"),
            (Some(&promoted), None, "no replica \"r_back\""),
            (None, None, "no replica \"r_back\""),
        ] {
            let says = refused(forward, back);
            assert!(says.contains(words), "{says}");
        }
    }
}
