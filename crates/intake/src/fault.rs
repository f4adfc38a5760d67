//! Faults that tests plant in a receiver, to show that a simulation finds them.

/// One line that a guarantee hangs on, removed. A receiver that runs has none: only tests make a value
/// of this type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntakeFault {
    /// The receiver confirms what is in the log, durable or not.
    ConfirmsReceived,
    /// The receiver says that all that is durable is applied.
    AppliedIsFlushed,
    /// What the source sends again is not held against the log.
    ComparesNothing,
    /// The log is told what is covered, also within a unit.
    CoversInside,
    /// A write that found no room is not tried again.
    FullIsDropped,
    /// What has come of a unit stays in the log when the connection is lost.
    UnitIsNotCut,
}
