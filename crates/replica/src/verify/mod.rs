//! Compares source and target, table by table, as both were at one LSN, while changes flow.
//!
//! The moment is made so:
//! 1. No further transaction is applied ([`Hold::hold`]).
//! 2. The source makes a temporary slot and exports its snapshot, which sees what committed
//!    before the slot's consistent point. That is later than all that was applied.
//! 3. Exactly the transactions before that point are applied ([`Hold::advance`]).
//! 4. The target exports a snapshot, it is seen that nothing more was applied until then
//!    ([`Hold::check`]), and changes flow again.
//!
//! So changes are held back only for as long as making a slot takes (which waits for
//! transactions that are open on the source) and catching up with it. Both snapshots stay for
//! the comparison.
//!
//! | module | what |
//! |---|---|
//! | [`hold`] | who lets apply stand still |
//! | [`moment`] | the two snapshots |
//! | [`statements`] | what each side is asked; no I/O |
//! | [`locked`] | each table, before it is read: it must be what it was at the moment |
//! | [`compare`] | tables by ranges of their keys, and the rows that differ |
//! | [`besides`] | what is not compared and yet differs |
//! | [`named`] | a replica by its name, whoever applies to it |

pub mod besides;
pub mod compare;
pub mod hold;
mod locked;
pub mod moment;
pub mod named;
pub mod statements;

use std::time::Duration;

use lockstep_client::{ClientError, Conninfo};
use lockstep_wire::Lsn;

use crate::error::ReplicaError;
use crate::names::TableName;
use crate::state::{TableCopy, Unmade};
use lockstep_apply::{ApplyError, Starts};

pub use hold::{Hold, InProcess};
pub use named::{Replicated, replica};

pub type Result<T, E = VerifyError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("source: {}", .0.words())]
    Source(ClientError),
    #[error("target: {}", .0.words())]
    Target(ClientError),
    /// Why the two cannot be compared at one moment.
    #[error("{0}")]
    NoMoment(String),
}

impl From<VerifyError> for ReplicaError {
    fn from(error: VerifyError) -> Self {
        match error {
            VerifyError::Source(error) => Self::Source(error),
            VerifyError::Target(error) => Self::Target(error),
            VerifyError::NoMoment(words) => Self::State(words),
        }
    }
}

impl From<ReplicaError> for VerifyError {
    fn from(error: ReplicaError) -> Self {
        match error {
            ReplicaError::Source(error) => Self::Source(error),
            ReplicaError::Target(error) => Self::Target(error),
            other => Self::NoMoment(other.to_string()),
        }
    }
}

impl From<ApplyError> for VerifyError {
    fn from(error: ApplyError) -> Self {
        Self::from(ReplicaError::Apply(error))
    }
}

/// What to compare.
#[derive(Debug, Clone)]
pub struct Options {
    pub source: Conninfo,
    pub target: Conninfo,
    /// Tables in the replica's publications are compared, as far as they are replicated.
    pub publications: Vec<String>,
    pub starts: Starts,
    /// The tables that were copied: each that is not compared is a difference.
    pub listed: Vec<TableCopy>,
    /// Sessions on each side.
    pub jobs: usize,
    /// Rows of one range, about.
    pub range_rows: u64,
    /// Longest time that changes are held back: for transactions that are open on the source, and for the
    /// target to catch up with it. Also how long the lock of a table is waited for.
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
    /// How the publication differs from what the replica made, if it does. The tables are compared as far as
    /// it has them, so that they tell less than they should.
    pub publication: Option<String>,
    /// Tables in the order of their names.
    pub tables: Vec<TableReport>,
    /// Sequences of the source, which are not compared.
    pub sequences: u64,
    /// What the copy could not make on the target.
    pub unmade: Vec<Unmade>,
}

impl Report {
    /// Each table was compared, no difference found, and the target lacks no part of the schema as far as the
    /// copy knows. Where there is no table, nothing is equal.
    pub fn is_equal(&self) -> bool {
        self.publication.is_none()
            && !self.unmade.iter().any(Unmade::is_of_the_copy)
            && !self.tables.is_empty()
            && self.tables.iter().all(|table| table.differences.is_empty())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableReport {
    pub table: TableName,
    /// The columns that name a row; empty if all of them do.
    pub key: Vec<String>,
    /// Rows on the source.
    pub rows: u64,
    /// Rows that differ, at most [`MOST_NAMED`].
    pub differences: Vec<Difference>,
    /// There are more than `differences` names.
    pub more: bool,
}

impl TableReport {
    /// Names as many differences as there is room for.
    fn new(
        table: TableName,
        key: Vec<String>,
        rows: u64,
        mut differences: Vec<Difference>,
    ) -> Self {
        differences.sort();
        let more = differences.len() > MOST_NAMED;
        differences.truncate(MOST_NAMED);
        Self {
            table,
            key,
            rows,
            differences,
            more,
        }
    }
}

/// A row that is not the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The key, or the whole row of a table without one, as a row in text form.
    pub key: String,
    pub kind: DifferenceKind,
}

impl Difference {
    /// What is said of a whole table.
    fn of_table(kind: DifferenceKind) -> Self {
        let key = String::new();
        Self { key, kind }
    }
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
    /// The table was rewritten, truncated, replaced or dropped on a side after the moment, or locked,
    /// and so not compared, or only in part.
    NotCompared,
    /// The table was copied, and the source has none of its name any more.
    Gone,
    /// The table was copied, and has the name that is given as key on the source now.
    Renamed,
    /// The table was copied, and another has its name on the source now, which is not published.
    Replaced,
    /// The table was copied, and the publication does not have it any more.
    Unpublished,
    /// The source has the table, and it was not copied.
    Uncopied,
    /// The source has made the partition after the copy, and the target's table of its name is none.
    NoPartition,
}

/// Compares all tables that are replicated. `hold` is that of the replica, which must be applying.
pub fn run(options: &Options, hold: &mut dyn Hold) -> Result<Report> {
    let moment = moment::Moment::take(options, hold)?;
    compare::tables(options, &moment.snapshots)
}
