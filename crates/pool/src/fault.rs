//! Faults that tests plant.
//!
//! Each removes one line that a guarantee hangs on, so that a test can show that the simulation would find
//! it. An agent that runs has none: only tests make a value of this type.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A question counts from when it was answered, and not from when it was asked.
    CountsFromAnswer,
    /// Positions of different timelines are compared as if they were of one.
    TimelinesIgnored,
    /// What the node has received counts as replayed.
    ReceivedIsShown,
    /// A clock that goes back is believed.
    ClockBelieved,
    /// What a node showed before it was lost still counts.
    LossIgnored,
    /// While the primary does not answer, the last figure stands.
    SilenceKeepsFigure,
    /// Only the newest question is kept, so that a node that is always a little behind never shows it.
    OnlyNewestQuestion,
    /// Where there are too many questions, the time of a later one is given to an earlier one's position.
    ThinsWrongly,
    /// A node is in again as soon as it is within the bound.
    ReturnsAtOnce,
    /// A late node is out, even if all are late.
    LateIsOut,
    /// A node that returns gets its whole share at once.
    RisesAtOnce,
    /// A node that answers nothing stays in while nothing shows that it is stale.
    SilenceIsFine,
    /// A node of `reports` is held to the bound.
    BoundForReports,
    /// The first server that takes writes is the primary.
    FirstIsPrimary,
    /// Timelines are compared by their number alone.
    HistoriesIgnored,
    /// The primary is asked seldom although the node does not keep up.
    RestsWhileBehind,
    /// A node that may still follow the primary is out after a while.
    SwitchPointIgnored,
}
