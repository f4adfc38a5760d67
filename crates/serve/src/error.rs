//! What can go wrong before and while `lockstep serve` serves.

use std::io;
use std::path::PathBuf;

use lockstep_pool::error::PoolError;
use lockstep_service::address::HostPort;
use tokio::task::JoinError;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot make the folder {}: {error}", folder.display())]
    MakeFolder { folder: PathBuf, error: io::Error },
    #[error("cannot write into the folder {}: {error}", folder.display())]
    WriteFolder { folder: PathBuf, error: io::Error },
    #[error(
        "another lockstep serve keeps its history in {}: give this one another folder",
        .0.display()
    )]
    FolderInUse(PathBuf),
    #[error("cannot start threads")]
    Threads(#[source] io::Error),
    #[error("cannot handle signals")]
    Signals(#[source] io::Error),
    #[error("cannot listen on {0}")]
    Listen(HostPort, #[source] io::Error),
    #[error("the address is not known")]
    Address(#[source] io::Error),
    #[error("serving has failed")]
    Serving(#[source] JoinError),
    #[error(transparent)]
    Agent(#[from] PoolError),
}
