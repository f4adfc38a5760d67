//! Faults that tests plant.
//!
//! Each puts back something that was once wrong, or removes one line that a guarantee hangs
//! on, so that a test can show that it would be found. A relay that runs has none: only
//! tests make a value of this type.

use lockstep_intake::fault::IntakeFault;

/// What is wrong in a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The log does not count the headers of records into the room that the beginning of a
    /// segment needs, nor keeps that room free: a spool may grow over its limit.
    HeadersNotCounted,
    /// Something is wrong in the receiver.
    Intake(IntakeFault),
    /// The sender says why it ends although its last message was sent in part.
    ErrorWithinMessage,
    /// The sender ends the copy although its last message was sent in part.
    FinishesWithinMessage,
    /// The sender goes on in another group one unit later than where that takes over.
    SwitchesLate,
    /// A slot is given back to the primary although not everything before the primary's copy
    /// of it is confirmed.
    GivesBackUnconfirmed,
    /// A slot is dropped on the primary before the relay's book has it.
    DropsBeforeAdding,
}

impl Fault {
    /// What of it is wrong in the receiver.
    pub fn of_intake(self) -> Option<IntakeFault> {
        match self {
            Self::Intake(fault) => Some(fault),
            _ => None,
        }
    }
}
