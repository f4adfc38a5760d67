//! Faults that tests plant.
//!
//! Each removes one line that a guarantee hangs on, so that a test can show that the simulation
//! would find it. A replica that runs has none: only tests make a value of this type.

/// A fault.
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
    /// The position that the source tells within a transaction counts as received.
    CoveredInside,
    /// The session reads on although the writers and what is gathered take all memory.
    NeverCrowded,
}
