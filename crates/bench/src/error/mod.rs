//! What can go wrong in a benchmark.

use std::io;
use std::path::{Path, PathBuf};

use lockstep_lab::{LabError, Role};
use lockstep_lag::LagError;
use lockstep_player::PlayerError;
use lockstep_verify::VerifyError;
use lockstep_wal::WalError;

mod consumer;
mod tpcc;

pub use consumer::ConsumerError;
pub use tpcc::TpccError;

pub type Result<T, E = BenchError> = std::result::Result<T, E>;

/// What stopped a benchmark.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error(transparent)]
    Player(#[from] PlayerError),
    #[error(transparent)]
    Verify(#[from] VerifyError),
    #[error(transparent)]
    Tpcc(#[from] TpccError),
    /// A consumer of logical replication.
    #[error(transparent)]
    Consumer(#[from] ConsumerError),
    #[error(transparent)]
    Lag(#[from] LagError),
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The results file is not one of this benchmark.
    #[error(
        "{path} holds something else than results of bench {name}; move it away or choose another folder"
    )]
    OtherResults { path: PathBuf, name: String },
    /// A measurement that cannot be used, or arguments that cannot work together, in words.
    #[error("{0}")]
    Unusable(String),
}

impl BenchError {
    /// The operating system refused something.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let failed = LabError::io(what, path);
        move |source| failed(source).into()
    }

    /// A turn began before its case was readied.
    pub(crate) fn not_readied() -> Self {
        Self::Unusable("the case has not been readied".to_owned())
    }

    /// The end of replication that the error is about, if it is about one.
    pub fn role(&self) -> Option<Role> {
        match self {
            Self::Lab(error) => error.role(),
            Self::Player(error) => error.role(),
            // TPC-C works on one server, which may be a standby: it is the source.
            Self::Tpcc(error) if error.is_refusal() => Some(Role::Primary),
            _ => None,
        }
    }
}
