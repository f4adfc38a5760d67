//! What can go wrong with WAL that is read.

use std::io;
use std::path::PathBuf;

use lockstep_client::ClientError;
use lockstep_wire::{Lsn, Timeline};

pub type Result<T, E = WalError> = std::result::Result<T, E>;

/// Everything that can go wrong, each as one line.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    #[error("cannot read {file}: {source}")]
    Read { file: String, source: io::Error },
    /// The server that WAL was to come from.
    #[error(transparent)]
    Server(#[from] ClientError),
    /// What it sent is no WAL that can be read.
    #[error("the server sent no WAL that can be read: {0}")]
    Sent(String),
    /// It removes WAL faster than that is read.
    #[error(
        "the server removes its newest WAL before it can be read ({0}): raise wal_keep_size there, or \
         read its pg_wal folder"
    )]
    Removing(String),
    /// A folder without segments that can be read.
    #[error("{folder} {reason}")]
    NoWal { folder: PathBuf, reason: String },
    /// A part of the WAL that was asked for.
    #[error(
        "{folder} has no segment {name} of timeline {timeline}; choose another range with --start and --end"
    )]
    Missing {
        folder: PathBuf,
        name: String,
        timeline: Timeline,
    },
    /// A part of the WAL that was asked for, behind a part that is there.
    #[error(
        "{folder} has no segment {name} between --start and --end {end}; --end {at} reads what is before"
    )]
    Gap {
        folder: PathBuf,
        name: String,
        at: Lsn,
        end: Lsn,
    },
    /// WAL that is not right, with more WAL behind it.
    #[error(
        "the WAL at {at} in {file} is damaged: {reason}, and WAL goes on behind it; \
         --end {at} reads what is before"
    )]
    Damaged {
        at: Lsn,
        file: String,
        reason: String,
    },
    /// The oldest file has no WAL of its place, a later one has.
    #[error(
        "{file} is damaged: it does not begin as its segment does; --start {next} reads from \
         the next segment on that does"
    )]
    FirstDamaged { file: String, next: Lsn },
    /// No record in what was asked for.
    #[error("{file} has no record from {start} on: {reason}")]
    NoRecord {
        file: String,
        start: Lsn,
        reason: String,
    },
    /// Measurements that cannot be used.
    #[error("{file} is no list of measured recoveries: {reason}")]
    Measurements { file: String, reason: String },
    /// A table of costs that cannot be used.
    #[error("{file} is no table of costs: {reason}")]
    Costs { file: String, reason: String },
}
