//! What a switchover does next. No I/O, no clock.
//!
//! [`next`] is asked again and again, with what is seen then; whoever asks does what it says. What must
//! outlive a crash is in the target's state and on the source, so another call goes on where one was killed:
//!
//! | stage, phase | what comes next | what is true afterwards |
//! |---|---|---|
//! | none, ready | [`Step::Analyze`], [`Step::Prepare`] | statistics; the slot of the way back |
//! | none, ready | [`Step::Begin`] | the state says that a switchover has begun |
//! | begun, ready | [`Step::Wait`] | nothing that would make the pause long is seen any more |
//! | begun, ready | [`Step::Plant`], [`Step::Arm`] | both fences are there, and let everything pass; apply listens |
//! | begun, ready | [`Step::Close`] | nobody writes on the target but its replica |
//! | begun, ready | [`Step::Pause`] | the pooler's clients wait, and none has a transaction open |
//! | begun, ready | [`Step::Fence`] | nothing is written on the source any more |
//! | begun, ready | [`Step::Drain`], [`Step::Compare`] | the target has all of it, and is equal |
//! | begun, ready | [`Step::Look`] | nobody has taken the fence away meanwhile |
//! | begun, ready | [`Step::Promotion`] | the state says *promoting*: from here on there is only forward |
//! | begun, promoting | [`Step::Promotion`] | nothing is applied any more; sequences are set |
//! | begun, promoting | [`Step::Reverse`] | the way back keeps everything from here on |
//! | begun, promoting | [`Step::Promotion`] | the target is open |
//! | begun, promoting | [`Step::Redirect`], [`Step::Resume`] | clients write on the target |
//! | begun, promoting | [`Step::Promotion`] | the source has neither slot nor publication; *promoted* |
//! | begun, promoted | [`Step::Finish`] | the state says that the switchover is done |
//!
//! Up to *promoting* a failure, a pause that takes too long, or a crash leads back: [`Step::Unfence`],
//! [`Step::Resume`], [`Step::Unclose`]. Then it is tried again until the time is up; what ends it then is
//! [`Step::Uproot`], [`Step::Forget`]. So **once the target is closed no two servers take writes**: the
//! source is fenced after that and before the target opens, and its fence is taken away only in phase ready,
//! in which the target never opens.

use crate::lifecycle::promotion::{self, Drained, Next};
use crate::state::{Phase, Replica, SwitchStage};

/// Whose clients can be made to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clients {
    /// There is no pooler.
    Direct,
    Flow,
    Wait,
}

/// The replica for the way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WayBack {
    NotWanted,
    /// Nothing of it is made.
    Missing,
    /// Something of it is made, and not all.
    Part,
    /// Made, with a slot that begins too early.
    Prepared,
    /// Begins where the target opened.
    Ready,
}

impl WayBack {
    fn is_to_be_made(self) -> bool {
        matches!(self, Self::Missing | Self::Part)
    }
}

/// What came of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compared {
    NotWanted,
    NotYet,
    Equal,
}

/// What is seen of a switchover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchSeen {
    pub stage: SwitchStage,
    /// What keeps it from being tried at all.
    pub refusal: Option<String>,
    /// What would make the pause long now, and passes by itself.
    pub waits: Option<String>,
    /// Why this attempt has failed.
    pub failure: Option<String>,
    /// No attempt is to begin any more.
    pub is_overdue: bool,
    /// This attempt's pause has taken as long as it may.
    pub is_late: bool,
    pub is_analyzed: bool,
    pub is_armed: bool,
    pub clients: Clients,
    pub way_back: WayBack,
    /// Triggers of the fences are on source or target.
    pub is_planted: bool,
    /// This command has made all of them.
    pub is_surely_planted: bool,
    /// The target is kept from being written, wholly or not.
    pub is_closed: bool,
    /// This attempt has closed it.
    pub is_surely_closed: bool,
    /// The source has a fence, whole or not.
    pub is_fenced: bool,
    /// This attempt has fenced it.
    pub fence: Option<lockstep_wire::Lsn>,
    pub compared: Compared,
    /// The fence was still whole when this attempt had drained.
    pub is_whole: bool,
    /// Clients are led to the target, or nothing is to be run for that.
    pub is_redirected: bool,
    pub promotion: promotion::Seen,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it cannot be done, in words, and nothing is left of it.
    Refuse(String),
    /// Gather the target's statistics.
    Analyze,
    /// Make the replica of the way back, with a slot on the target.
    Prepare,
    /// Remove it.
    Unprepare,
    /// Let apply look for wishes often.
    Arm,
    /// Look again later.
    Wait(String),
    /// Keep in the state that a switchover has begun.
    Begin,
    /// Make the triggers of both fences, which let everything pass.
    Plant,
    /// Let nobody but the replica write on the target.
    Close,
    /// Let the pooler's clients wait.
    Pause,
    /// Let nobody write on the source any more.
    Fence,
    /// Let apply come to this position, and stand there.
    Drain(lockstep_wire::Lsn),
    /// Compare both sides.
    Compare,
    /// Look whether the source's fence is still whole.
    Look,
    /// Let the way back begin here.
    Reverse,
    /// Lead clients to the target.
    Redirect,
    /// Let the pooler's clients go on.
    Resume,
    /// Let the source take writes again.
    Unfence,
    /// Let the target be written as before the switchover.
    Unclose,
    /// Remove the triggers, which let everything pass again.
    Uproot,
    /// Keep in the state that no switchover has begun.
    Forget,
    Promotion(Next),
    /// Keep in the state that the switchover is done.
    Finish,
    /// Nothing: it is done.
    Done,
}

/// What to do next.
pub fn next(replica: &Replica, seen: &SwitchSeen) -> Step {
    let name = &replica.name;
    match (seen.stage, replica.phase) {
        (SwitchStage::Done, _) if seen.clients == Clients::Wait && !seen.is_redirected => {
            Step::Redirect
        }
        (SwitchStage::Done, _) if seen.clients == Clients::Wait => Step::Resume,
        (SwitchStage::Done, _) => Step::Done,
        (SwitchStage::None, Phase::Ready) => begin(seen),
        (stage, Phase::Ready) if stage.is_begun() => attempt(seen),
        (stage, Phase::Promoting | Phase::Promoted) if stage.is_begun() => forward(replica, seen),
        (SwitchStage::None, Phase::Promoting) => Step::Refuse(format!(
            "a promotion of replica \"{name}\" without a way back has begun: run lockstep replica promote \
             again, which goes on"
        )),
        (SwitchStage::None, Phase::Promoted) => Step::Refuse(format!(
            "replica \"{name}\" is promoted without a way back: both sides may have been written since, and \
             nobody has kept the target's changes; make a replica of the target in an empty database with \
             lockstep replica create"
        )),
        _ => Step::Refuse(format!(
            "replica \"{name}\" has no finished copy: run lockstep replica create again, which goes on"
        )),
    }
}

/// Why no attempt is to begin; None if one is, now or later.
fn end(seen: &SwitchSeen) -> Option<&String> {
    let why = seen.failure.as_ref().or(seen.waits.as_ref());
    (seen.refusal.as_ref()).or(why.filter(|_| seen.is_overdue))
}

/// What comes before the state says anything.
fn begin(seen: &SwitchSeen) -> Step {
    match end(seen) {
        Some(_) if matches!(seen.way_back, WayBack::Part | WayBack::Prepared) => Step::Unprepare,
        Some(words) => Step::Refuse(words.clone()),
        None if !seen.is_analyzed => Step::Analyze,
        None if seen.way_back.is_to_be_made() => Step::Prepare,
        None => Step::Begin,
    }
}

/// What can be taken back: clients wait during the later part of it.
fn attempt(seen: &SwitchSeen) -> Step {
    let has_failed = seen.failure.is_some() || seen.is_late;
    if let Some(undo) = undo(seen).filter(|_| has_failed) {
        return undo;
    }
    if !seen.is_surely_closed {
        return wait(seen);
    }
    if seen.clients == Clients::Flow {
        return Step::Pause;
    }
    let Some(end) = seen.fence else {
        return Step::Fence;
    };
    match (&seen.promotion.drained, &seen.compared) {
        (Drained::To(to), Compared::NotYet) if *to == end => Step::Compare,
        (Drained::To(to), _) if *to == end && !seen.is_whole => Step::Look,
        (Drained::To(to), _) if *to == end => Step::Promotion(Next::Begin {
            to: Some(end),
            loses: false,
        }),
        (Drained::Not(words), _) => undo(seen).unwrap_or_else(|| Step::Wait(words.clone())),
        _ => Step::Drain(end),
    }
}

/// What takes an attempt back; None if nothing of it is left.
fn undo(seen: &SwitchSeen) -> Option<Step> {
    match (seen.is_fenced, seen.clients) {
        (true, _) => Some(Step::Unfence),
        (false, Clients::Wait) => Some(Step::Resume),
        (false, _) if seen.is_closed => Some(Step::Unclose),
        (false, _) => None,
    }
}

/// What comes while both servers are as they were, apart from triggers that let everything pass.
fn wait(seen: &SwitchSeen) -> Step {
    if end(seen).is_some() {
        return match seen.is_planted {
            true => Step::Uproot,
            false => Step::Forget,
        };
    }
    if let Some(words) = &seen.failure {
        return Step::Wait(words.clone());
    }
    if seen.way_back.is_to_be_made() {
        return Step::Prepare;
    }
    // Nobody is to wait for a lock behind a long transaction.
    if let Some(words) = &seen.waits {
        return Step::Wait(words.clone());
    }
    if !seen.is_surely_planted {
        return Step::Plant;
    }
    match seen.is_armed {
        false => Step::Arm,
        true => Step::Close,
    }
}

/// What is left once there is no way back.
fn forward(replica: &Replica, seen: &SwitchSeen) -> Step {
    let next = promotion::next(promotion::Wish::default(), replica, &seen.promotion);
    let is_wanted = !matches!(seen.way_back, WayBack::NotWanted | WayBack::Ready);
    match next {
        Next::Refuse(words) => Step::Refuse(words),
        Next::Open if is_wanted => Step::Reverse,
        Next::Clean | Next::End | Next::Done if !seen.is_redirected => Step::Redirect,
        Next::Clean | Next::End | Next::Done if seen.clients == Clients::Wait => Step::Resume,
        Next::Done => Step::Finish,
        next => Step::Promotion(next),
    }
}

#[cfg(test)]
mod tests;
