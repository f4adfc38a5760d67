//! Compares source and target, table by table, as both were at one LSN, while changes flow.
//!
//! The moment is made so:
//! 1. No further transaction is applied ([`Control::hold`]).
//! 2. The source makes a temporary slot and exports its snapshot, which sees what committed
//!    before the slot's consistent point. That is later than all that was applied.
//! 3. Exactly the transactions before that point are applied ([`Control::advance`]).
//! 4. The target exports a snapshot, and changes flow again.
//!
//! So changes are held back only for as long as making a slot takes (which waits for
//! transactions that are open on the source) and catching up with it. Both snapshots stay for
//! the comparison.
//!
//! | module | what |
//! |---|---|
//! | [`moment`] | the two snapshots |
//! | [`statements`] | what each side is asked; no I/O |
//! | [`compare`] | tables by ranges of their keys, and the rows that differ |
//!
//! [`Control::hold`]: crate::apply::Control::hold
//! [`Control::advance`]: crate::apply::Control::advance

pub mod compare;
pub mod moment;
pub mod statements;

use std::time::Duration;

use lockstep_client::{ClientError, Conninfo};
use lockstep_wire::Lsn;

use crate::apply::Control;
use crate::apply::control::NotReached;
use crate::names::TableName;

pub type Result<T, E = VerifyError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("source: {}", .0.words())]
    Source(ClientError),
    #[error("target: {}", .0.words())]
    Target(ClientError),
    #[error(transparent)]
    NotReached(#[from] NotReached),
}

/// What to compare.
#[derive(Debug, Clone)]
pub struct Options {
    pub source: Conninfo,
    pub target: Conninfo,
    /// Tables in the replica's publications are compared.
    pub publications: Vec<String>,
    /// Sessions on each side.
    pub jobs: usize,
    /// Rows of one range, about.
    pub range_rows: u64,
    /// How long to wait for transactions that are open on the source, and for the target.
    pub patience: Duration,
}

/// Rows of a range unless the options say otherwise.
pub const RANGE_ROWS: u64 = 100_000;

/// Most rows that a difference names for one table.
pub const MOST_NAMED: usize = 100;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Both sides were compared as they were here.
    pub lsn: Lsn,
    /// In the order of their names.
    pub tables: Vec<TableReport>,
}

impl Report {
    pub fn is_equal(&self) -> bool {
        self.tables.iter().all(|table| table.differences.is_empty())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableReport {
    pub table: TableName,
    /// Rows on the source.
    pub rows: u64,
    /// Rows that differ, at most [`MOST_NAMED`].
    pub differences: Vec<Difference>,
    /// There are more than `differences` names.
    pub more: bool,
}

/// A row that is not the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The key, or the whole row of a table without one, as a row in text form.
    pub key: String,
    pub kind: DifferenceKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DifferenceKind {
    /// Only the source has it.
    Missing,
    /// Only the target has it.
    Extra,
    /// Both have it, with other values.
    Changed,
    /// The target has no such table, or not its columns.
    NoTable,
}

/// Compares all published tables. `control` is that of the replica, which must be applying.
pub fn run(options: &Options, control: &Control) -> Result<Report> {
    let moment = moment::Moment::take(options, control)?;
    compare::tables(options, &moment.snapshots)
}
