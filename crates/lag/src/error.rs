//! What can go wrong when lag is looked for.

use lockstep_client::ClientError;

use crate::node::Trouble;
use crate::plain::plain;

/// Result of everything in this crate.
pub type Result<T, E = LagError> = std::result::Result<T, E>;

/// Everything that stops a probe. What one node cannot tell is a gap in its sample instead.
#[derive(Debug, thiserror::Error)]
pub enum LagError {
    /// The connection, or a command on it.
    #[error("{}", .0.words())]
    Server(#[from] ClientError),
    /// A major that the questions are not written for.
    #[error("PostgreSQL {0} is not supported; 15, 16, 17 and 18 are")]
    Version(u32),
    /// Something else than what it was said to be.
    #[error("{0}")]
    WrongRole(String),
    /// An answer that is not what was asked for.
    #[error("the server's answer about {what} is not understood: {reason}")]
    Answer {
        /// Which part.
        what: String,
        /// Why not.
        reason: String,
    },
    /// Something that must be changed before what was asked for can be done.
    #[error("{0}")]
    Unfit(String),
}

impl LagError {
    /// What this says about a node that cannot be asked any more.
    pub fn trouble(&self) -> Trouble {
        match self {
            Self::Version(major) => Trouble::Version { major: *major },
            Self::WrongRole(reason) => Trouble::WrongRole {
                reason: plain(reason),
            },
            other => Trouble::Unreachable {
                reason: plain(&other.to_string()),
            },
        }
    }
}
