//! What can go wrong in a benchmark.

use std::io;
use std::path::Path;

use lockstep_lab::{LabError, Role};
use lockstep_player::PlayerError;
use lockstep_verify::VerifyError;

use crate::relay::ConsumerError;
use crate::tpcc::TpccError;

pub type Result<T, E = BenchError> = std::result::Result<T, E>;

/// Whatever stopped a benchmark.
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
}

impl BenchError {
    /// The operating system refused something.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let failed = LabError::io(what, path);
        move |source| failed(source).into()
    }

    /// The end of replication that the error is about, if it is about one.
    pub fn role(&self) -> Option<Role> {
        match self {
            Self::Lab(error) => error.role(),
            Self::Player(error) => error.role(),
            // Whichever server was named is what the command works on: its source.
            Self::Tpcc(error) if error.is_refusal() => Some(Role::Primary),
            _ => None,
        }
    }
}
