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
}
