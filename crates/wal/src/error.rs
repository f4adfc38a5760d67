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
    /// The file of costs that a user has named.
    #[error("cannot read {file}: {source}; --costs names a file of costs as JSON")]
    ReadCosts { file: String, source: io::Error },
    /// A file of WAL. That it cannot be read says nothing of what is in it.
    #[error(
        "cannot read {file}: {source}; make it readable for the user who runs this, or choose a range \
         without it with --start and --end"
    )]
    ReadWal { file: String, source: io::Error },
    /// The folder that was to hold WAL.
    #[error(
        "cannot read {}: {source}; name a folder such as pg_wal that the user who runs this may read",
        .folder.display()
    )]
    ReadFolder { folder: PathBuf, source: io::Error },
    /// The server that WAL was to come from.
    #[error(transparent)]
    Server(#[from] ClientError),
    /// What it sent is no WAL that can be read.
    #[error("the server sent no WAL that can be read: {0}")]
    Sent(String),
    /// The server removes WAL faster than that is read.
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
    /// WAL that is not right and is no end of WAL. The advice is empty if there is none.
    #[error("the WAL at {at} in {file} is damaged: {reason}{advice}")]
    Damaged {
        at: Lsn,
        file: String,
        reason: String,
        advice: String,
    },
    /// The only files that begin as a segment does are too short.
    #[error(
        "{file} is damaged: it begins as a segment of {segment} bytes does, but is cut off: \
         it has {length} bytes"
    )]
    CutOff {
        file: String,
        segment: u64,
        length: u64,
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
