//! What can go wrong when lag is looked for.

use lockstep_client::ClientError;

use crate::node::Trouble;
use crate::sanitize::sanitize;

/// Result of everything in this crate.
pub type Result<T, E = LagError> = std::result::Result<T, E>;

/// Everything that stops a probe. What one node cannot tell is a gap in its sample instead.
#[derive(Debug, thiserror::Error)]
pub enum LagError {
    /// The connection, or a command on it.
    #[error("{}", words(.0))]
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
                reason: sanitize(reason),
            },
            other => Trouble::Unreachable {
                reason: sanitize(&other.to_string()),
            },
        }
    }
}

/// A connection's error without the word primary: it may be any node.
pub fn words(error: &ClientError) -> String {
    match error {
        ClientError::Refused(refusal) => match &refusal.hint {
            Some(hint) => format!("{} ({})", refusal.message, hint.trim_end_matches('.')),
            None => refusal.message.clone(),
        },
        ClientError::Lost(reason) => format!("the connection is lost: {reason}"),
        ClientError::TimedOut { seconds, .. } => format!("no answer within {seconds} s"),
        ClientError::Protocol(reason) => format!("it answered unexpectedly: {reason}"),
        other => other.to_string(),
    }
}
