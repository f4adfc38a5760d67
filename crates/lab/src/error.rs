//! What can go wrong in the lab, each as one line: what happened, to what, what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

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
    pub role: Role,
    /// The server's name in messages, and its folder in the run folder.
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
        major: u32,
        /// The program that was not found.
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
    /// The process is root and finds no account to run servers as.
    #[error(
        "PostgreSQL refuses to run as root, and there is neither an account postgres nor nobody; create one or run as another user"
    )]
    NoAccount,
    /// No temporary folder can be used.
    #[error("no temporary folder can be used: {0}; set TMPDIR to a folder that can")]
    NoRunFolder(String),
    /// A data folder that would be overwritten.
    #[error("data directory {0} exists and is not empty; remove it or choose another")]
    DataFolderInUse(PathBuf),
    /// A port or its socket file is taken.
    #[error("port {0} is in use; stop the program that uses it or choose another port")]
    PortInUse(u16),
    #[error("{server} did not start: {reason}")]
    Start {
        server: ServerId,
        /// The line of the server's log that says why, with advice.
        reason: String,
    },
    /// A running server refused or lost a connection, or failed a statement.
    #[error("{server} {what}: {reason}")]
    Refused {
        server: ServerId,
        /// What was tried, e.g. "refused a connection".
        what: String,
        /// The server's message.
        reason: String,
    },
    /// An event that was waited for did not come.
    #[error("{server} did not {what} within {seconds} s; look at {log}")]
    Timeout {
        server: ServerId,
        what: String,
        seconds: u64,
        log: PathBuf,
    },
    /// A program that the lab ran failed.
    #[error("{program} failed: {reason}")]
    Program {
        program: String,
        /// The line of the program's output that says why.
        reason: String,
    },
    /// A pgbench process ended or reported a failure while it should run.
    #[error("the {load} against {server} stopped: {reason}")]
    Load {
        load: String,
        server: ServerId,
        /// The line of pgbench's output that says why.
        reason: String,
    },
    #[error("the measurement is not usable: {0}; repeat it on a quieter machine or for longer")]
    Measurement(String),
    /// The lab is being torn down: no program may start any more.
    #[error("interrupted")]
    Closing,
    /// The operating system refused something.
    #[error("cannot {what} {path}: {source}")]
    Io {
        what: &'static str,
        path: PathBuf,
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

/// Joins the lines of `text` into one, as every message is one line.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
