//! What can go wrong with consumers of logical replication and with relays.

use lockstep_client::ClientError;
use lockstep_wire::WireError;

use crate::endpoint::Endpoint;

/// Errors of consumers and relays.
#[derive(Debug, thiserror::Error)]
pub enum ConsumerError {
    /// A command over libpq.
    #[error("{whom}: {source}")]
    Upstream {
        /// The server that was asked.
        whom: Endpoint,
        /// The error that libpq returned.
        source: ClientError,
    },
    /// The stream of a sink.
    #[error("the stream of slot \"{slot}\" from {whom} failed: {reason}")]
    Stream {
        slot: String,
        /// The server that sent the stream.
        whom: Endpoint,
        /// What happened.
        reason: String,
    },
    /// `lockstep replica run`.
    #[error("the replica {what}: {reason}")]
    Replica {
        /// What it did.
        what: &'static str,
        /// What its log says.
        reason: String,
    },
    /// Bytes of a stream that make no sense.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Something that was waited for did not come.
    #[error("{what} did not happen within {seconds} s")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long, in seconds.
        seconds: u64,
    },
    /// The relay.
    #[error("the relay {what}: {reason}")]
    Relay {
        /// What it did.
        what: &'static str,
        /// What it said.
        reason: String,
    },
}
