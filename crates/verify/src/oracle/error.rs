//! What the oracle refuses, each as one line with what to do.

use std::io;
use std::path::{Path, PathBuf};

use lockstep_wire::Lsn;

use crate::oracle::{Side, Timeline};

/// Result of everything in the oracle.
pub(crate) type Result<T> = std::result::Result<T, OracleError>;

/// Why two sides cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum OracleError {
    /// Something else than a data folder.
    #[error(
        "{path} is not a data folder: {reason}; name the folder that holds PG_VERSION and global/pg_control, or a conninfo"
    )]
    NotADataFolder {
        /// What was named.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// The two sides are of different majors, or of another than the programs.
    #[error(
        "{path} is of PostgreSQL {found}, not {expected}: only clusters of one major can be compared"
    )]
    Major {
        /// The folder.
        path: PathBuf,
        /// Its major.
        found: String,
        /// The one wanted.
        expected: String,
    },
    /// The control file cannot be relied on.
    #[error(
        "the control file of {path} cannot be used: {reason}; restore it, or make this standby anew"
    )]
    Control {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A property that both sides must share.
    #[error("A has {what} {a}, B has {b}: {advice}")]
    Unlike {
        /// The property.
        what: &'static str,
        /// A's.
        a: String,
        /// B's.
        b: String,
        /// What to do.
        advice: &'static str,
    },
    /// The sides are at different positions.
    #[error(
        "A is at {a}, B is at {b}: let the one behind replay up to the other's position, and compare again"
    )]
    Positions {
        /// A's position.
        a: Lsn,
        /// B's position.
        b: Lsn,
    },
    /// The server runs and may change its pages.
    #[error(
        "{path} belongs to a running server ({state}): stop it, or pause its replay with SELECT pg_wal_replay_pause() if it is a standby"
    )]
    Running {
        /// The folder.
        path: PathBuf,
        /// What it is doing.
        state: String,
    },
    /// It was not shut down.
    #[error(
        "{path} was not shut down cleanly (\"{state}\"): start it, let it recover, and stop it with a fast shutdown"
    )]
    NeedsRecovery {
        /// The folder.
        path: PathBuf,
        /// The state in its control file.
        state: String,
    },
    /// Its WAL since the last restartpoint is of two timelines.
    #[error(
        "{path} went from timeline {from} to {to} since its last restartpoint: run CHECKPOINT on the primary, wait until this standby has replayed it, run CHECKPOINT on this standby, and compare again"
    )]
    TimelineSwitch {
        /// The folder.
        path: PathBuf,
        /// The last restartpoint's timeline.
        from: Timeline,
        /// Today's.
        to: Timeline,
    },
    /// The extension's function is missing.
    #[error(
        "{path} runs and cannot write out its pages: function lockstep_flush_buffers() is not in this database; run CREATE EXTENSION lockstep on the primary, or stop the standby"
    )]
    NoFlush {
        /// The folder.
        path: PathBuf,
    },
    /// Pages of a stopped standby that only its memory had.
    #[error(
        "{side}: {pages} pages changed since its last restartpoint at {checkpoint} are not on disk yet (first: {first}): start it, run CHECKPOINT on the primary, wait until every standby has replayed it, run CHECKPOINT on the standbys, stop them, and compare again"
    )]
    NotOnDisk {
        /// Which side.
        side: Side,
        /// How many.
        pages: u64,
        /// The last restartpoint.
        checkpoint: Lsn,
        /// The first of them.
        first: String,
    },
    /// It changed while it was read.
    #[error(
        "{path} changed while it was read ({what}): keep it stopped or paused until the comparison ends"
    )]
    Changed {
        /// The folder.
        path: PathBuf,
        /// How it changed.
        what: String,
    },
    /// An option that needs a running server.
    #[error(
        "{option} needs a running server on both sides, and {path} is a stopped one: start it, pause its replay, and name it by a conninfo"
    )]
    NeedsServer {
        /// The option.
        option: &'static str,
        /// The stopped folder.
        path: PathBuf,
    },
    /// Nothing to check with.
    #[error(
        "{side} has the extension amcheck in no database: run CREATE EXTENSION amcheck on the primary, in every database to check, and let it replay"
    )]
    NoAmcheck {
        /// Which side.
        side: Side,
    },
    /// A server refused.
    #[error("{side}: {reason}")]
    Server {
        /// Which side.
        side: Side,
        /// The server's own words.
        reason: String,
    },
    /// A program failed.
    #[error("{program} failed on {path}: {reason}")]
    Program {
        /// The program.
        program: &'static str,
        /// On what.
        path: PathBuf,
        /// Its own words.
        reason: String,
    },
    /// A program answered in a form that is not known.
    #[error("{program} answered unexpectedly on {path}: {line}")]
    Answer {
        /// The program.
        program: &'static str,
        /// On what.
        path: PathBuf,
        /// The line that is not understood.
        line: String,
    },
    /// The operating system refused something.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's own words.
        source: io::Error,
    },
}

impl OracleError {
    /// The two sides cannot be compared as they are: nothing failed, something else is to be
    /// named or done first.
    pub fn is_refusal(&self) -> bool {
        !matches!(
            self,
            Self::Server { .. } | Self::Program { .. } | Self::Answer { .. } | Self::Io { .. }
        )
    }

    /// The side whose server could not be reached or refused.
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
