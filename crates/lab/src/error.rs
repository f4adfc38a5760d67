//! What can go wrong in the lab, each as one line: what happened, to what, what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, LabError>;

/// Which end of replication a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Takes the writes.
    Primary,
    /// Replays the primary's WAL.
    Standby,
}

/// A server as messages name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerId {
    /// Which end of replication it is.
    pub role: Role,
    /// Its name in messages and its folder in the run folder.
    pub name: String,
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            Role::Primary => write!(f, "server \"{}\" (primary)", self.name),
            Role::Standby => write!(f, "server \"{}\" (standby)", self.name),
        }
    }
}

/// Everything that can go wrong in the lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A server major outside 15 to 19.
    #[error("PostgreSQL {0} is not supported; choose 15, 16, 17, 18 or 19")]
    UnsupportedMajor(String),
    /// The server's programs are not installed.
    #[error(
        "PostgreSQL {major} is not installed: {missing} does not exist; install the package postgresql-{major}"
    )]
    MissingPackage {
        /// The major asked for.
        major: u32,
        /// The program that was looked for.
        missing: PathBuf,
    },
    /// The staged extension is not there.
    #[error("the extension is not built: {0} does not exist; run `make build`")]
    MissingStage(PathBuf),
    /// A test needs the staged extension, and nobody says where it is.
    #[error(
        "LOCKSTEP_EXTENSION_STAGE is not set; run the tests with `make test`, which builds the extension and sets it"
    )]
    NoStage,
    /// Root, and no account to run servers as.
    #[error(
        "PostgreSQL refuses to run as root, and there is neither an account postgres nor nobody; create one or run as another user"
    )]
    NoAccount,
    /// No temporary folder can be used.
    #[error("no temporary folder can be used: {0}; set TMPDIR to a folder that can")]
    NoRunFolder(String),
    /// A data folder that would be overwritten.
    #[error("data folder {0} exists and is not empty; remove it or choose another")]
    DataFolderInUse(PathBuf),
    /// A port or its socket file is taken.
    #[error("port {0} is in use; stop the program that uses it or choose another port")]
    PortInUse(u16),
    /// A server did not start.
    #[error("{server} did not start: {reason}")]
    Start {
        /// The server.
        server: ServerId,
        /// The line of its log that says why, with advice.
        reason: String,
    },
    /// A running server refused or lost a connection, or failed a statement.
    #[error("{server} {what}: {reason}")]
    Refused {
        /// The server.
        server: ServerId,
        /// What was tried, e.g. "refused a connection".
        what: String,
        /// The server's own words.
        reason: String,
    },
    /// An event that was waited for did not come.
    #[error("{server} did not {what} within {seconds} s; look at {log}")]
    Timeout {
        /// The server.
        server: ServerId,
        /// What was waited for.
        what: String,
        /// How long, in seconds.
        seconds: u64,
        /// Where to look.
        log: PathBuf,
    },
    /// A program that the lab ran failed.
    #[error("{program} failed: {reason}")]
    Program {
        /// The program's name.
        program: String,
        /// The line of its output that says why.
        reason: String,
    },
    /// A pgbench process ended or reported a failure while it should run.
    #[error("the {load} against {server} stopped: {reason}")]
    Load {
        /// Which load.
        load: String,
        /// The server that it ran against.
        server: ServerId,
        /// The line of its output that says why.
        reason: String,
    },
    /// The measurement is not usable.
    #[error("the measurement is not usable: {0}; repeat it on a quieter machine or for longer")]
    Measurement(String),
    /// The lab is being torn down, nothing more may start.
    #[error("interrupted")]
    Closing,
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

impl LabError {
    /// The end of replication that the error is about, if it is about one.
    pub fn role(&self) -> Option<Role> {
        match self {
            Self::Start { server, .. }
            | Self::Refused { server, .. }
            | Self::Timeout { server, .. }
            | Self::Load { server, .. } => Some(server.role),
            _ => None,
        }
    }

    pub fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { what, path, source }
    }
}

/// One line out of possibly several: messages are one line each.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
