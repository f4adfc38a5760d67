//! One job of a writer, decided without I/O and without a clock.
//!
//! [`Work::next`] says what to do; whoever drives it does that one thing, and says with
//! [`Work::answer`] what came of it. The driver of a replica is a writer's thread
//! (`crate::pool`), that of the simulation a step of its world.
//!
//! A job that begins before its turn *runs ahead*: it makes its free changes, waits for the part that
//! its bound ones depend on ([`crate::order`]), makes those, and waits for its turn.
//! [`crate::touches`] says which changes depend on each other. Running ahead is right even where that
//! is not enough, because a part that ran ahead is rolled back, and done as a whole in its turn, if
//! - the target refused a change: what is in the way may be gone then;
//! - a row to change was not there: an earlier part may bring it;
//! - the target's catalog is not what the part was planned with;
//! - the part whose turn it is waits for a lock that only goes away with ours. The server does not
//!   see that as a deadlock, since a writer that waits for its turn waits for no lock: so each asks
//!   from time to time, as long as it has locks. Sessions of others count as well: one that waits to
//!   lock a table lets nobody pass.
//!
//! In its turn a part is what it would be with one writer: an error then is an error.
//!
//! | stage | entered | left |
//! |---|---|---|
//! | `Free` | at the start, ahead of the turn | made: `ToBound` or `ToTurn`; refused, a row missing: `Undo` |
//! | `ToBound` | the free changes are made | the part before is committed: `Bound`; in its way: `Undo` |
//! | `Bound` | what these changes wait for is committed | like `Free` |
//! | `ToTurn` | all changes are made | its turn: `Check`; in the way of the first: `Undo` |
//! | `Check` | its turn | the catalog is as it was: `Commit`; otherwise `Undo` |
//! | `Undo` | it cannot stay as it is | rolled back: `Turn` |
//! | `Turn` | at the start, if it does not run ahead; rolled back | its turn: `AtOnce`, `All` or `Move` |
//! | `AtOnce` | its turn, the first time | committed: `Done`; not small: `All` |
//! | `All` | its turn | made: `Recheck`, `Commit` or `Done`; a deadlock: `AfterDeadlock` |
//! | `AfterDeadlock` | the server has ended a deadlock at its cost | rolled back: `All` |
//! | `Recheck` | made again in its turn | `Commit` or `Done` |
//! | `Commit`, `Move` | its turn, all is made | committed: `Done` |

use lockstep_wire::Lsn;

use crate::batch::{Closing, CommitPoint, Counts, Missing, Part};
use crate::error::ApplyError;
use crate::fault::Fault;
use crate::order::{MOST_WRITERS, Plan};

/// Most deadlocks after which a part whose turn it is begins again: each writer behind it can cause
/// one, since each begins once ahead of its turn.
pub const MOST_DEADLOCKS: usize = MOST_WRITERS;

/// What the writers have to say.
#[derive(Debug)]
pub enum News {
    /// A part is done.
    Done(Done),
    /// An origin has moved to a position that is reached without changes.
    Moved(Lsn),
    Failed(ApplyError),
}

/// A part that is done.
#[derive(Debug, Default)]
pub struct Done {
    /// None if the target's transaction is still open.
    pub commit: Option<CommitPoint>,
    /// Commits up to here are flushed, if that is known.
    pub flushed: Option<Lsn>,
    pub missing: Missing,
    pub counts: Counts,
    /// What the part has taken.
    pub memory: usize,
    /// The part had run ahead, and was done again in its turn.
    pub again: bool,
    /// The target's catalog is not what the part was planned with.
    pub stale: bool,
    /// Everything before is made.
    pub lsn: Lsn,
    /// The cycle that has ended.
    pub cycle: Option<Box<Closing>>,
}

/// What a writer is given to do.
#[derive(Debug)]
pub enum Task {
    Part(Part),
    /// Moves the origin to a position that is reached without changes.
    Move(Lsn),
}

/// A task and its place in the order of commits.
#[derive(Debug)]
pub struct Job {
    pub plan: Plan,
    pub task: Task,
}

impl Job {
    /// More parts of the same target transaction follow.
    pub fn has_more(&self) -> bool {
        matches!(&self.task, Task::Part(part) if part.commit.is_none())
    }

    /// The changes that it makes.
    pub fn part(&self) -> Option<&Part> {
        match &self.task {
            Task::Part(part) => Some(part),
            Task::Move(_) => None,
        }
    }
}

/// Which changes of a part to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    All,
    /// Changes that wait for an earlier part, or those that do not.
    Some {
        bound: bool,
    },
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Todo {
    /// Wait until this part is committed, and ask from time to time whether our transaction, if one is
    /// open, is in the way of the part whose turn it is.
    WaitFor(u64),
    /// All changes are made: wait for the turn, and ask likewise.
    WaitAhead,
    WaitTurn,
    /// Make changes, in the open transaction or a new one.
    Apply(Which),
    RollBack,
    /// Ask whether the part's tables still reach as far as when it was planned.
    CheckReach,
    /// Make and commit all changes in one message, if the part is small.
    AtOnce(CommitPoint),
    Commit(CommitPoint),
    Move(Lsn),
    /// Nothing: the job is done.
    Tell,
}

/// What came of it.
#[derive(Debug)]
pub enum Answer {
    /// The part that was waited for is committed.
    Reached,
    /// Our transaction is in the way of the part whose turn it is.
    InTheWay,
    /// The part is done. `missing`: rows to change were not there, in this transaction.
    Made {
        missing: bool,
    },
    /// Whether the tables reach as far as they did.
    Known(bool),
    Committed {
        /// [`Done::flushed`]
        flushed: Option<Lsn>,
        missing: Missing,
    },
    /// The part is not small, and nothing was done.
    NotSmall,
    /// An earlier job has failed.
    Over,
    Failed(ApplyError),
}

/// Why a job ends without being done.
#[derive(Debug)]
pub enum Stop {
    Failed(ApplyError),
    /// An earlier one has failed.
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Free,
    ToBound,
    Bound,
    ToTurn,
    Check,
    Undo,
    Turn,
    AtOnce,
    All,
    AfterDeadlock,
    Recheck,
    Commit,
    Move,
    Done,
}

/// How far a job is.
#[derive(Debug)]
pub struct Work {
    job: Job,
    stage: Stage,
    deadlocks: usize,
    done: Done,
    fault: Option<Fault>,
}

impl Work {
    /// `is_first`: its turn has come.
    pub fn new(job: Job, is_first: bool) -> Self {
        let mut done = Done::default();
        if let Task::Part(part) = &job.task {
            done.commit = part.commit;
            done.counts = part.counts;
            done.memory = part.memory;
            done.lsn = part.lsn;
            done.cycle.clone_from(&part.cycle);
        }
        let ahead = job.part().is_some() && !job.plan.is_alone() && !is_first;
        let mut work = Self {
            job,
            stage: Stage::Turn,
            deadlocks: 0,
            done,
            fault: None,
        };
        if ahead {
            work.stage = match work.job.plan.has(false) {
                true => Stage::Free,
                false => work.after_free(),
            };
        }
        work
    }

    /// The work with a fault planted, for tests.
    pub fn with_fault(mut self, fault: Option<Fault>) -> Self {
        self.fault = fault;
        self
    }

    pub fn job(&self) -> &Job {
        &self.job
    }

    /// What to tell the session, once nothing is left to do.
    pub fn news(self) -> News {
        match self.job.task {
            Task::Part(_) => News::Done(self.done),
            Task::Move(end) => News::Moved(end),
        }
    }

    /// What to do next.
    pub fn next(&self) -> Todo {
        match (self.stage, self.done.commit, &self.job.task) {
            (Stage::Free, ..) => Todo::Apply(Which::Some { bound: false }),
            (Stage::Bound, ..) => Todo::Apply(Which::Some { bound: true }),
            (Stage::ToBound, ..) => Todo::WaitFor(self.job.plan.after),
            (Stage::ToTurn, ..) => Todo::WaitAhead,
            (Stage::Check | Stage::Recheck, ..) => Todo::CheckReach,
            (Stage::Undo | Stage::AfterDeadlock, ..) => Todo::RollBack,
            (Stage::Turn, ..) => Todo::WaitTurn,
            (Stage::All, ..) => Todo::Apply(Which::All),
            (Stage::AtOnce, Some(commit), _) => Todo::AtOnce(commit),
            (Stage::Commit, Some(commit), _) => Todo::Commit(commit),
            (Stage::Move, _, Task::Move(end)) => Todo::Move(*end),
            // A part without a commit has neither `AtOnce` nor `Commit`, and only a move has `Move`.
            (Stage::AtOnce | Stage::Commit | Stage::Move | Stage::Done, ..) => Todo::Tell,
        }
    }

    /// What came of it.
    pub fn answer(&mut self, answer: Answer) -> Result<(), Stop> {
        self.stage = match answer {
            Answer::Over => return Err(Stop::Over),
            Answer::Failed(error) => self.failed(error)?,
            Answer::InTheWay => Stage::Undo,
            Answer::Reached => self.reached(),
            Answer::Made { missing } => self.made(missing),
            Answer::Known(known) => match self.stage {
                Stage::Check if !known => Stage::Undo,
                Stage::Recheck => {
                    self.done.stale = !known;
                    self.to_commit()
                }
                _ => self.to_commit(),
            },
            Answer::NotSmall => Stage::All,
            Answer::Committed { flushed, missing } => {
                self.done.flushed = flushed;
                self.done.missing = missing;
                Stage::Done
            }
        };
        if self.stage == Stage::Undo {
            self.done.again = true;
            if self.fault == Some(Fault::AgainWithoutRollback) {
                self.stage = Stage::Turn;
            }
        }
        if self.stage == Stage::ToTurn && self.fault == Some(Fault::CommitsOutOfTurn) {
            self.stage = Stage::Check;
        }
        Ok(())
    }

    fn after_free(&self) -> Stage {
        let waits = self.fault != Some(Fault::BoundDoesNotWait);
        match self.job.plan.has(true) {
            true if waits => Stage::ToBound,
            true => Stage::Bound,
            false => Stage::ToTurn,
        }
    }

    fn failed(&mut self, error: ApplyError) -> Result<Stage, Stop> {
        let lsn = self.job.part().map_or(Lsn::INVALID, |part| part.lsn);
        match self.stage {
            Stage::Bound if self.fault == Some(Fault::BoundDoesNotWait) => Ok(Stage::ToTurn),
            Stage::Free | Stage::Bound if error.is_refusal() => Ok(Stage::Undo),
            // Writers behind it may have caused a deadlock that the server has ended at its cost.
            Stage::All
                if error.is_deadlock()
                    && !self.job.plan.is_alone()
                    && self.deadlocks < MOST_DEADLOCKS =>
            {
                self.deadlocks += 1;
                Ok(Stage::AfterDeadlock)
            }
            Stage::All | Stage::AtOnce | Stage::Commit => Err(Stop::Failed(error.at(lsn))),
            _ => Err(Stop::Failed(error)),
        }
    }

    fn reached(&self) -> Stage {
        match (self.stage, &self.job.task) {
            (Stage::ToBound, _) => Stage::Bound,
            (Stage::ToTurn, _) => Stage::Check,
            (_, Task::Move(_)) => Stage::Move,
            (_, Task::Part(part)) if part.commit.is_some() && !self.done.again => Stage::AtOnce,
            (_, Task::Part(_)) => Stage::All,
        }
    }

    fn made(&self, missing: bool) -> Stage {
        match self.stage {
            Stage::Free | Stage::Bound if missing => Stage::Undo,
            Stage::Free => self.after_free(),
            Stage::Bound => Stage::ToTurn,
            Stage::Undo => Stage::Turn,
            Stage::AfterDeadlock => Stage::All,
            Stage::All if self.done.again => Stage::Recheck,
            Stage::All => self.to_commit(),
            _ => Stage::Done,
        }
    }

    fn to_commit(&self) -> Stage {
        match self.done.commit {
            Some(_) => Stage::Commit,
            None => Stage::Done,
        }
    }
}
