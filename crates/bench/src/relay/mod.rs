//! What logical subscribers cost a primary, directly and behind a relay: consumers that
//! keep nothing, real subscriptions, a relay as a child process, and rounds of both.
//!
//! | module | what |
//! |---|---|
//! | [`endpoint`] | where consumers connect: the primary or a relay |
//! | [`sink`] | a consumer that counts, measures and throws away |
//! | [`delays`] | times from commit to arrival, in bounded memory |
//! | [`subscriber`] | a server with real subscriptions |
//! | [`beat`] | rows that carry the time, for the lag of real subscriptions |
//! | [`process`] | a relay |
//! | [`walsenders`] | what decoding costs the primary |
//! | [`publisher`] | the primary: settings, tables, slots |
//! | [`scene`] | how consumers reach the primary in a round |
//! | [`follower`] | a server with a database that `lockstep replica` keeps in step |
//! | [`fanout`], [`catch_up`], [`mixed`], [`applying`] | rounds |

pub mod applying;
pub mod beat;
pub mod catch_up;
pub mod delays;
pub mod endpoint;
pub mod fanout;
pub mod follower;
pub mod mixed;
pub mod process;
pub mod publisher;
pub mod scene;
mod session;
pub mod sink;
pub mod subscriber;
pub mod walsenders;

use lockstep_client::ClientError;
use lockstep_wire::WireError;

pub use endpoint::Endpoint;
pub use sink::{Counts, Sink};

/// What can go wrong with consumers and relays.
#[derive(Debug, thiserror::Error)]
pub enum ConsumerError {
    /// A command over libpq.
    #[error("{whom}: {source}")]
    Upstream {
        /// Who was asked.
        whom: Endpoint,
        /// What came of it.
        source: ClientError,
    },
    /// The stream of a sink.
    #[error("the stream of slot \"{slot}\" from {whom} failed: {reason}")]
    Stream {
        /// The slot.
        slot: String,
        /// From whom it came.
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
