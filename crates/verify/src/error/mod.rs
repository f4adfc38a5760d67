//! What can go wrong in a check of replay.

use std::io;
use std::path::PathBuf;

use lockstep_lab::LabError;

use crate::names::PREFIX;
use crate::process::Process;

pub(crate) mod oracle;

pub use oracle::OracleError;

pub type Result<T, E = VerifyError> = std::result::Result<T, E>;

/// An error that stopped a check before it had a result.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A random workload did not run.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// A crash could not be brought about.
    #[error(transparent)]
    Crash(#[from] CrashError),
    /// Two sides could not be compared.
    #[error(transparent)]
    Oracle(#[from] OracleError),
}

/// Why a crash could not be caused.
#[derive(Debug, thiserror::Error)]
pub enum CrashError {
    /// Power loss cannot be emulated on this machine.
    #[error("power loss cannot be emulated: {0}")]
    Unavailable(String),
    /// The server has no such process now.
    #[error("server \"{server}\" has no {process}")]
    NoProcess {
        server: String,
        /// The process that was to be killed.
        process: Process,
    },
    /// A power cut was asked for, but the server's data is not on a [`PowerDisk`](crate::crash::PowerDisk).
    #[error("server \"{0}\" is not on a disk that can lose power")]
    NoDisk(String),
    /// A disk could not be created, cut off or mounted again.
    #[error("cannot {what} {path}: {source}")]
    Disk {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// Why a workload did not run.
#[derive(Debug, thiserror::Error)]
pub enum RandomError {
    /// The server could not be reached or refused the connection.
    #[error("the target refused a connection: {0}")]
    Unreachable(String),
    /// The database's name does not begin with [`PREFIX`], and `any_database` is false.
    #[error(
        "database \"{0}\" is not meant for random workloads: choose one whose name begins with {PREFIX}, or allow any"
    )]
    Database(String),
    /// The set-up or the closing statements failed.
    #[error("the {part} of the random workload failed: {reason}")]
    Part { part: &'static str, reason: String },
    /// A session ended before its last statement was answered.
    #[error(
        "session {session} of the random workload ended after {answered} of {statements} statements: {reason}"
    )]
    Lost {
        session: usize,
        /// Number of statements that were answered.
        answered: usize,
        /// Number of all statements of the session.
        statements: usize,
        reason: String,
    },
    /// psql could not be started, or its input or output failed.
    #[error("cannot run psql: {0}")]
    Psql(String),
}
