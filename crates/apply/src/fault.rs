//! Faults that tests plant.
//!
//! Each removes one line that a guarantee hangs on, so that a test can show that the simulation
//! would find it. A replica that runs has none: only tests make a value of this type.

use lockstep_intake::fault::IntakeFault;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A writer that has run ahead commits without waiting for its turn.
    CommitsOutOfTurn,
    /// The source is told that a commit is flushed which is only committed.
    FlushedIsApplied,
    /// A part that is to be done again is not rolled back before.
    AgainWithoutRollback,
    /// Bound changes are made without waiting for the part that they depend on, and the part is
    /// not done again when the target refuses one.
    BoundDoesNotWait,
    /// A hold is acknowledged, and transactions go on.
    HoldIgnored,
    /// A hold is acknowledged while writers still have what comes before it.
    CaughtUpTooSoon,
    /// A change that does not fit ends the session before the writers are done with what comes before it.
    BlocksTooSoon,
    /// What is handed to the writers counts as applied.
    HandedIsApplied,
    /// The position that the source tells within a transaction counts as received.
    CoveredInside,
    /// The session reads on although the writers and what is gathered take all memory.
    NeverCrowded,
    /// What follows a command that changes the schema is read before the command is made.
    ReadsOnAtCommand,
    /// A cycle goes on with what arrives while it runs.
    CycleHasNoEnd,
    /// A cycle commits what it has handed over before its end.
    CycleCommitsParts,
    /// Something is wrong in the receiver of a spool.
    Intake(IntakeFault),
    /// A spool takes in what any source sends, whether that continues the log or not.
    SpoolTakesAny,
    /// A spool keeps nothing that the target has committed, on disk there or not.
    SpoolForgetsCommitted,
    /// A spool's file does not say that its source is on another timeline.
    SpoolTimelineNotKept,
    /// A spool knows of another timeline before its file says so, also if it cannot be written.
    SpoolTimelineKnownFirst,
    /// A spool hands out what has come of a transaction that is still arriving.
    SpoolHandsOutParts,
}

impl Fault {
    /// What of it is wrong in a spool's receiver.
    pub fn of_intake(self) -> Option<IntakeFault> {
        match self {
            Self::Intake(fault) => Some(fault),
            _ => None,
        }
    }
}
