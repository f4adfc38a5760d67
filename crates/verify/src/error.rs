//! What can go wrong in a check of replay.

use lockstep_lab::LabError;

use crate::crash::CrashError;
use crate::oracle::OracleError;
use crate::random::RandomError;

pub type Result<T, E = VerifyError> = std::result::Result<T, E>;

/// An error that stopped a check before it had a result.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A random workload did not run.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// A crash could not be brought about.
    #[error(transparent)]
    Crash(#[from] CrashError),
    /// Two sides could not be compared.
    #[error(transparent)]
    Oracle(#[from] OracleError),
}
