//! What can go wrong.

use std::io;

use lockstep_service::address::HostPort;
use tokio::task::JoinError;

#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("cannot start threads")]
    Threads(#[source] io::Error),
    #[error("cannot handle signals")]
    Signals(#[source] io::Error),
    #[error(
        "cannot listen on {address}; if another agent runs there, give this one another address with {option}"
    )]
    Listen {
        address: HostPort,
        /// The option that names the address.
        option: &'static str,
        source: io::Error,
    },
    #[error("the address is not known")]
    Address(#[source] io::Error),
    #[error("serving has failed")]
    Serving(#[source] JoinError),
}
