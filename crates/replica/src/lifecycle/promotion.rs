//! When a replica may be promoted, and what comes next. No I/O, no clock.
//!
//! [`next`] is asked again and again, with what is seen then; whoever asks does what it says. All that must
//! outlive a crash is in the target's state, so another call goes on where one was killed:
//!
//! | state | what comes next | what is true afterwards |
//! |---|---|---|
//! | ready | [`Next::Drain`] | apply stands at or beyond a position that the source had when it was asked |
//! | ready | [`Next::Begin`] | the state says *promoting*: whoever applies ends, and nobody begins |
//! | promoting | [`Next::Fence`] | nothing applies any more, and the state says where the target stands |
//! | promoting | [`Next::SetSequences`], [`Next::RaiseSequences`] | no sequence gives a value again that a row has |
//! | promoting | [`Next::Open`] | the database is open for writing |
//! | promoting | [`Next::Clean`] | the source has neither slot nor publication, or they are told of |
//! | promoting | [`Next::End`] | the state says *promoted* |
//! | promoted | [`Next::Clean`] | as above, if the source has kept them |
//!
//! Up to [`Next::Begin`] a refusal leaves the replica as it was. A replica moves from one state of its source
//! to another, with cycles or without, so wherever it stands after the fence is such a state, as long as it
//! is beyond the copy of each of its tables.

use std::time::Duration;

use lockstep_service::words::span;
use lockstep_wire::Lsn;

use crate::lifecycle::fence::Fence;
use crate::state::{Phase, Replica};

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wish {
    /// The source is gone: promote with what is left of it.
    pub with_data_loss: bool,
    /// The spool is gone, too.
    pub without_spool: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceSays {
    /// Everything that it has committed so far lies before this position.
    Ends(Lsn),
    /// The source answers, and why nothing can be had of it any more.
    Unusable(String),
    /// The source does not answer, and why.
    Nothing(String),
}

/// Who works on the replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Process {
    Nobody,
    /// One that applies, or connects in order to.
    Applies,
    /// One that a change has stopped, which does not fit.
    Blocked(String),
    /// One that cannot be asked to end, and what to do.
    Stuck(String),
}

/// What came of a drain.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Drained {
    #[default]
    NotYet,
    To(Lsn),
    /// Apply did not come there in time, and why.
    Not(String),
}

/// What is seen of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub source: SourceSays,
    pub process: Process,
    /// Changes from the first position to the second are in the spool and not on the target, if the process
    /// that wrote last had a spool.
    pub spool: Option<(Lsn, Lsn)>,
    /// Where the target stands.
    pub stands: Lsn,
    /// From here on all tables are of one moment.
    pub whole_from: Lsn,
    /// A cycle has ended.
    pub has_cycled: bool,
    /// What this call has done so far.
    pub drained: Drained,
    pub is_fenced: bool,
    pub is_open: bool,
    pub is_cleaned: bool,
    /// The source lists the slot.
    pub has_slot: bool,
    /// The state says that the sequences are set.
    pub has_sequences: bool,
    /// The state says that the source may still have slot and publication.
    pub is_left: bool,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it cannot be done, in words.
    Refuse(String),
    /// Ask apply to come to this position, and to stand there.
    Drain(Lsn),
    /// Keep in the state that the replica is being promoted. `loses`: something may be missing.
    Begin { to: Option<Lsn>, loses: bool },
    /// Wait until nobody has the replica's lock, keep where the target stands, and drop the origins.
    Fence,
    /// Set the sequences to the source's values.
    SetSequences,
    /// Set the sequences beyond the values of their columns.
    RaiseSequences,
    /// Open the database for writing.
    Open,
    /// Drop slot and publication on the source, unless the slot has what the target lacks.
    Clean,
    /// Keep in the state that the replica is promoted.
    End,
    /// Nothing: it is promoted.
    Done,
}

/// A part of a step: one change that outlives a crash, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Drain(Lsn),
    /// Keep in the state that the replica is being promoted.
    KeepBegun {
        to: Option<Lsn>,
        loses: bool,
    },
    /// Let go of apply, if it was held: it sees that it is to end.
    EndHold,
    /// Wait until nobody has the replica's lock, and take it.
    Lock,
    /// Keep where the target stands.
    KeepStands,
    /// Drop the origins, which waits for nobody: one that a session has is an error.
    DropOrigins,
    SetSequences,
    RaiseSequences,
    /// Let a fence of the target pass everything.
    Pass(Fence),
    /// Take back what else lets sessions of the target begin read-only.
    OpenDatabase,
    Clean,
    /// Remove what is left of a fence of the target.
    Remove(Fence),
    KeepEnded,
}

/// The parts of a step, in their order. Each step is done once all of them are.
pub fn parts(step: &Next) -> Vec<Part> {
    match *step {
        Next::Drain(to) => vec![Part::Drain(to)],
        Next::Begin { to, loses } => vec![Part::KeepBegun { to, loses }, Part::EndHold],
        Next::Fence => vec![
            Part::Lock,
            Part::KeepStands,
            Part::DropOrigins,
            // What a session has committed until then.
            Part::KeepStands,
        ],
        Next::SetSequences => vec![Part::SetSequences],
        Next::RaiseSequences => vec![Part::RaiseSequences],
        Next::Open => vec![
            Part::Pass(Fence::Comes),
            Part::Pass(Fence::Left),
            Part::OpenDatabase,
        ],
        Next::Clean => vec![Part::Clean],
        Next::End => vec![
            Part::Remove(Fence::Comes),
            Part::Remove(Fence::Left),
            Part::KeepEnded,
        ],
        Next::Refuse(_) | Next::Done => Vec::new(),
    }
}

/// What to do next.
pub fn next(wish: Wish, replica: &Replica, seen: &Seen) -> Next {
    let name = &replica.name;
    match replica.phase {
        // Its source was away, or had more; what it says now may let the slot go.
        Phase::Promoted => match seen.source {
            SourceSays::Nothing(_) => Next::Done,
            _ if seen.is_left && !seen.is_cleaned => Next::Clean,
            _ => Next::Done,
        },
        Phase::Promoting => go_on(wish, name, seen),
        Phase::Ready => begin(wish, replica, seen).unwrap_or_else(Next::Refuse),
        _ => Next::Refuse(format!(
            "replica \"{name}\" has no finished copy, so there is nothing to promote: run lockstep replica \
             create again, which goes on"
        )),
    }
}

/// What comes before the state says anything. An error refuses it.
fn begin(wish: Wish, replica: &Replica, seen: &Seen) -> Result<Next, String> {
    let name = &replica.name;
    if replica.paused {
        return Err(format!(
            "replica \"{name}\" is paused, so it does not get on: end the pause with lockstep replica resume"
        ));
    }
    if !replica.frequency.is_zero() && !seen.has_cycled {
        return Err(no_cycle(name, replica.frequency));
    }
    if let Process::Stuck(words) = &seen.process {
        return Err(words.clone());
    }
    match wish.with_data_loss {
        false => without_loss(name, seen),
        true => with_loss(wish, name, seen),
    }
}

fn no_cycle(name: &str, every: Duration) -> String {
    format!(
        "replica \"{name}\" has a cycle every {}, and none has ended yet: start lockstep replica run with its \
         spool, and run lockstep replica force {name} first",
        span::show(every)
    )
}

/// What the words of a refusal end with if the source may be gone for good.
const GONE: &str = "nothing is changed. If that source is gone for good, --with-data-loss promotes with what \
    the target and the spool have";

fn without_loss(name: &str, seen: &Seen) -> Result<Next, String> {
    let end = match &seen.source {
        SourceSays::Ends(end) => *end,
        SourceSays::Unusable(words) => return Err(format!("{words}; {GONE}")),
        SourceSays::Nothing(words) => {
            return Err(format!("the source does not answer ({words}); {GONE}"));
        }
    };
    match (&seen.process, &seen.drained) {
        // It was told where to stand, and may have ended since.
        (_, Drained::To(to)) => Ok(Next::Begin {
            to: Some(*to),
            loses: false,
        }),
        (_, Drained::Not(words)) => Err(format!(
            "replica \"{name}\" does not have all that its source had at {end}: {words}; nothing is changed"
        )),
        (Process::Blocked(words), _) => Err(format!(
            "replica \"{name}\" cannot take all that its source has: {words}; make it fit, and repeat. Nothing \
             is changed"
        )),
        (Process::Nobody, _) => Err(format!(
            "no process applies to replica \"{name}\", so it does not get what its source still has: start \
             lockstep replica run, with its spool if it has one, and repeat; it ends by itself then"
        )),
        _ => Ok(Next::Drain(end)),
    }
}

fn with_loss(wish: Wish, name: &str, seen: &Seen) -> Result<Next, String> {
    let spooled = seen.spool.filter(|(from, to)| from < to);
    let spooled = spooled.map(|(_, to)| to);
    let ends = match seen.source {
        SourceSays::Ends(end) => Some(end),
        _ => None,
    };
    // What the source still says comes through the spool, if there is one.
    let goal = ends.or(spooled);
    let loses = Next::Begin {
        to: ends,
        loses: true,
    };
    let can_drain = seen.process == Process::Applies;
    match (&seen.drained, goal) {
        (Drained::NotYet, Some(goal)) if can_drain => return Ok(Next::Drain(goal)),
        (Drained::To(to), _) if ends.is_some() => {
            return Ok(Next::Begin {
                to: Some(*to),
                loses: false,
            });
        }
        (Drained::Not(words), _) if spooled.is_some() && can_drain => {
            return Err(format!(
                "the spool of replica \"{name}\" has changes that its target does not have yet: {words}; \
                 wait for longer (--wait). Nothing is changed"
            ));
        }
        _ => {}
    }
    // What one that was killed had in its spool may be more than it has written.
    if let (Process::Nobody, Some(_), false) = (&seen.process, seen.spool, wish.without_spool) {
        return Err(format!(
            "replica \"{name}\" has a spool, which may have changes that the target does not have, and no process \
             applies them: start lockstep replica run with that spool and repeat; if the spool is gone, too, \
             add --without-spool"
        ));
    }
    // All that a source has which answers can still come.
    let is_alone = seen.process == Process::Nobody && seen.spool.is_none();
    if let (Some(end), true, true) = (ends, is_alone, seen.has_slot) {
        return Err(format!(
            "no process applies to replica \"{name}\", and its source answers, with WAL up to {end}: start lockstep \
             replica run and repeat; what does not arrive is left out then"
        ));
    }
    match seen.stands >= seen.whole_from {
        true => Ok(loses),
        false => Err(format!(
            "the tables of replica \"{name}\" are of different moments up to {}, and the target stands at {}: \
             it never was what its source was. Create it anew from a source that is there",
            seen.whole_from, seen.stands
        )),
    }
}

/// What is left once the state says that the replica is being promoted.
fn go_on(wish: Wish, name: &str, seen: &Seen) -> Next {
    if !seen.is_fenced {
        return Next::Fence;
    }
    if !seen.has_sequences {
        return match (&seen.source, wish.with_data_loss) {
            (SourceSays::Ends(_), _) => Next::SetSequences,
            (_, true) => Next::RaiseSequences,
            (SourceSays::Unusable(words) | SourceSays::Nothing(words), false) => {
                Next::Refuse(format!(
                    "replica \"{name}\" has all that it needs, but for the values of its sequences, which the \
                     source does not tell ({words}); repeat the command once it does, or add --with-data-loss, \
                     which sets them beyond the values of their columns"
                ))
            }
        };
    }
    if !seen.is_open {
        return Next::Open;
    }
    if seen.is_left && !seen.is_cleaned {
        return Next::Clean;
    }
    Next::End
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::{ready as tests_replica, seen as tests_seen};
