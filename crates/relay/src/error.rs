//! What can go wrong in a relay as a whole.

use std::path::PathBuf;

use lockstep_client::ClientError;
use lockstep_spool::LogError;

/// Why the relay, or one of its groups, cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// A file or folder of the spool.
    #[error("{what} {}: {source}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// A file of the spool that does not say what it should.
    #[error("{} is damaged: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    /// Another relay works in the same spool.
    #[error("spool {} is in use by another relay: give each relay a folder of its own", .0.display())]
    SpoolInUse(PathBuf),
    /// The primary cannot be reached or refuses.
    #[error(transparent)]
    Upstream(#[from] ClientError),
    #[error("log of group {group}: {source}")]
    Log { group: String, source: LogError },
    /// What the disk holds of a group's log is not known any more.
    #[error(
        "the relay has ended because the spool of group {group} cannot be written: {why}; check the \
         disk, then start the relay again: it receives again what was not durable"
    )]
    Poisoned { group: String, why: String },
    /// The stream of the primary makes no sense.
    #[error("stream of group {group}: {why}")]
    Stream { group: String, why: String },
    /// Going on would lose transactions, deliver some that the primary never kept, or write them
    /// otherwise than subscribers asked for.
    #[error("{0}")]
    Gap(String),
    #[error("cannot listen on {address}: {source}")]
    Listen {
        address: String,
        source: std::io::Error,
    },
    #[error("{0}")]
    Tls(String),
}

/// What the relay's own functions return.
pub type Result<T, E = RelayError> = std::result::Result<T, E>;
