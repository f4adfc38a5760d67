//! What can go wrong while a stream is received.

use lockstep_client::ClientError;
use lockstep_spool::{LogError, StreamError};
use lockstep_wire::Lsn;

/// Why a stream is lost, or must not go on. The host has its own words for most of it.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// The source cannot be reached or refuses.
    #[error(transparent)]
    Source(#[from] ClientError),
    /// The source has ended the stream, because it shuts down.
    #[error("the source has ended the stream")]
    Ended,
    /// The stream makes no sense.
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Log(#[from] LogError),
    /// What the source sends again is not what the log has, from this transaction on.
    #[error("the source does not have the transaction that was received from it at {0}")]
    Differs(Lsn),
}
