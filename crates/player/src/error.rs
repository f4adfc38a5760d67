//! What can go wrong with a recording, its source or its player.

use std::io;
use std::path::{Path, PathBuf};

use lockstep_lab::error::one_line;
use lockstep_lab::{LabError, Role};

pub type Result<T, E = PlayerError> = std::result::Result<T, E>;

/// Everything that can go wrong with recordings, each as one line.
#[derive(Debug, thiserror::Error)]
pub enum PlayerError {
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A folder that is no recording.
    #[error("{folder} is no recording: {reason}; make one with `lockstep-lab wal record`")]
    NotARecording {
        folder: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// A recording with parts that are missing or belong to another.
    #[error("recording {folder} cannot be used: {reason}; copy it again or record it again")]
    Damaged {
        folder: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A folder that would be overwritten.
    #[error("folder {0} exists and is not empty; remove it or choose another")]
    FolderInUse(PathBuf),
    /// The server to record could not be reached, or refused a request.
    #[error("the source {what}: {reason}")]
    Source {
        what: &'static str,
        /// The source's message, or libpq's.
        reason: String,
    },
    /// The server to record is of a kind that cannot be recorded.
    #[error("the source cannot be recorded: {0}")]
    Unsuitable(String),
    /// The recording was ended before its base backup was complete.
    #[error("interrupted before the base backup was complete; nothing is recorded")]
    Interrupted,
    /// A pace that is not possible, or not with this recording.
    #[error("cannot play at this pace: {0}")]
    Pace(String),
    /// The player's address cannot be used.
    #[error("cannot listen on {address}: {reason}; choose another address")]
    Listen { address: String, reason: String },
    /// A standby of another major than the recording.
    #[error(
        "the recording is of PostgreSQL {recorded}, these programs are of {programs}; use --pg {recorded}"
    )]
    OtherMajor {
        /// The recording's major.
        recorded: u32,
        /// The major of the installed programs.
        programs: u32,
    },
    /// A receiver's connection to the player failed.
    #[error("the player's connection failed: {0}")]
    Connection(String),
}

impl PlayerError {
    /// The error of a program that failed; `output` is what it said.
    pub(crate) fn program(program: &str, output: &str) -> Self {
        LabError::Program {
            program: program.to_owned(),
            reason: one_line(output),
        }
        .into()
    }

    /// The error of a receiver's connection to the player.
    pub(crate) fn connection(error: &io::Error) -> Self {
        Self::Connection(error.to_string())
    }

    /// Makes the error of a refused system call.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let failed = LabError::io(what, path);
        move |source| failed(source).into()
    }

    /// The end of replication that the error is about, if it is about one.
    pub fn role(&self) -> Option<Role> {
        match self {
            Self::Lab(error) => error.role(),
            Self::Source { .. } | Self::Unsuitable(_) => Some(Role::Primary),
            _ => None,
        }
    }
}
