//! What can go wrong while lag is measured.

use lockstep_client::ClientError;

use crate::node::Trouble;
use lockstep_service::sanitize::sanitize;

pub type Result<T, E = LagError> = std::result::Result<T, E>;

/// Errors that stop a sampler or a probe. What one node cannot tell is a gap in its sample, and
/// no error.
#[derive(Debug, thiserror::Error)]
pub enum LagError {
    #[error("{}", .0.words())]
    Server(#[from] ClientError),
    /// A major that the questions are not written for.
    #[error("PostgreSQL {0} is not supported; 15, 16, 17, 18 and 19 are")]
    Version(u32),
    /// A node that is something else than it was said to be, in words.
    #[error("{0}")]
    WrongRole(String),
    #[error("the server's answer about {what} is not understood: {reason}")]
    Answer {
        /// The part of the answer.
        what: String,
        reason: String,
    },
    /// Something that must be changed first, in words.
    #[error("{0}")]
    Unfit(String),
}

impl LagError {
    /// What the error says about a node that can no longer be asked.
    pub fn trouble(&self) -> Trouble {
        match self {
            Self::Version(major) => Trouble::Version { major: *major },
            Self::WrongRole(reason) => Trouble::WrongRole {
                reason: sanitize(reason),
            },
            other => Trouble::Unreachable {
                reason: sanitize(&other.to_string()),
            },
        }
    }
}
