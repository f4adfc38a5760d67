//! Why the oracle refuses to compare, each as one line with what to do.

use std::io;
use std::path::{Path, PathBuf};

use lockstep_wire::{Lsn, Timeline};

use crate::side::Side;

pub(crate) type Result<T> = std::result::Result<T, OracleError>;

/// Why two sides cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum OracleError {
    /// The path is no data folder.
    #[error(
        "{path} is not a data directory: {reason}; name the folder that holds PG_VERSION and \
         global/pg_control, or a conninfo"
    )]
    NotADataFolder { path: PathBuf, reason: String },
    /// A side's major differs from that of the programs. One run has one package, so this also
    /// refuses two sides of different majors.
    #[error(
        "{path} is of PostgreSQL {found}, not {expected}: only clusters of one major can be compared"
    )]
    Major {
        path: PathBuf,
        /// The folder's major.
        found: String,
        /// The programs' major.
        expected: String,
    },
    /// The control file cannot be used.
    #[error(
        "the control file of {path} cannot be used: {reason}; restore it, or set up this standby again"
    )]
    Control { path: PathBuf, reason: String },
    /// The sides differ in a property that they must share.
    #[error("A has {what} {a}, B has {b}: {advice}")]
    Unlike {
        what: &'static str,
        a: String,
        b: String,
        advice: &'static str,
    },
    /// The sides are at different positions.
    #[error(
        "A is at {a}, B is at {b}: let the one behind replay up to the other's position, and compare again"
    )]
    Positions { a: Lsn, b: Lsn },
    /// The server runs and may change its pages.
    #[error(
        "{path} belongs to a running server ({state}): stop it, or pause its replay with SELECT pg_wal_replay_pause() if it is a standby"
    )]
    Running {
        path: PathBuf,
        /// What the server is doing.
        state: String,
    },
    /// The server was not shut down cleanly.
    #[error(
        "{path} was not shut down cleanly (\"{state}\"): start it, let it recover, and stop it with a fast shutdown"
    )]
    NeedsRecovery {
        path: PathBuf,
        /// The state in the control file.
        state: String,
    },
    /// The standby's WAL since its last restartpoint belongs to two timelines.
    #[error(
        "{path} went from timeline {from} to {to} since its last restartpoint: run CHECKPOINT on the primary, wait until this standby has replayed it, run CHECKPOINT on this standby, and compare again"
    )]
    TimelineSwitch {
        path: PathBuf,
        /// The last restartpoint's timeline.
        from: Timeline,
        /// The present timeline.
        to: Timeline,
    },
    /// The extension's function `lockstep_flush_buffers` is missing.
    #[error(
        "{path} runs and cannot write out its pages: function lockstep_flush_buffers() is not in this database; run CREATE EXTENSION lockstep on the primary, or stop the standby"
    )]
    NoFlush { path: PathBuf },
    /// The newest changes of some pages of a stopped standby were only in its memory.
    #[error(
        "{side}: {pages} pages changed since its last restartpoint at {checkpoint} are not on disk yet (first: {first}): start it, run CHECKPOINT on the primary, wait until every standby has replayed it, run CHECKPOINT on the standbys, stop them, and compare again"
    )]
    NotOnDisk {
        side: Side,
        pages: u64,
        /// Position of the last restartpoint.
        checkpoint: Lsn,
        /// The first of these pages.
        first: String,
    },
    /// The folder changed while it was read.
    #[error(
        "{path} changed while it was read ({what}): keep it stopped or paused until the comparison ends"
    )]
    Changed { path: PathBuf, what: String },
    /// An option needs a running server.
    #[error(
        "{option} needs a running server on both sides, and {path} is a stopped one: start it, pause its replay, and name it by a conninfo"
    )]
    NeedsServer {
        option: &'static str,
        /// The stopped folder.
        path: PathBuf,
    },
    /// No database of the side has the extension amcheck.
    #[error(
        "{side} has the extension amcheck in no database: run CREATE EXTENSION amcheck on the primary, in every database to check, and let it replay"
    )]
    NoAmcheck { side: Side },
    /// A server could not be reached, or refused a query.
    #[error("{side}: {reason}")]
    Server {
        side: Side,
        /// The server's message.
        reason: String,
    },
    #[error("{program} failed on {path}: {reason}")]
    Program {
        program: &'static str,
        path: PathBuf,
        /// The program's message.
        reason: String,
    },
    /// A program's output could not be parsed.
    #[error("{program} answered unexpectedly on {path}: {line}")]
    Answer {
        program: &'static str,
        path: PathBuf,
        /// The line that could not be parsed.
        line: String,
    },
    /// The operating system refused something.
    #[error("cannot {what} {path}: {source}")]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl OracleError {
    /// True if nothing failed, but the two sides cannot be compared as they are: the user must
    /// name other sides or do something first.
    pub fn is_refusal(&self) -> bool {
        !matches!(
            self,
            Self::Server { .. } | Self::Program { .. } | Self::Answer { .. } | Self::Io { .. }
        )
    }

    /// The side whose server could not be reached or refused a query.
    pub fn server(&self) -> Option<Side> {
        match self {
            Self::Server { side, .. } => Some(*side),
            _ => None,
        }
    }

    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { what, path, source }
    }
}
