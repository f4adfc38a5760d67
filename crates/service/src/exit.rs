//! Exit codes, and the failures that have one of their own.

/// Failures that have no code of their own.
pub const FAILED: u8 = 1;
/// Arguments that cannot be used.
pub const USAGE: u8 = 2;
/// The source (primary) could not be reached, or it refused a request.
pub const SOURCE: u8 = 3;
/// The target (standby) could not be reached, or it refused a request.
pub const TARGET: u8 = 4;
/// A check found wrong data.
pub const DATA: u8 = 5;
/// A replica lags, or replication stands still.
pub const LAG: u8 = 6;
/// Something cannot be seen, so nobody knows whether a replica lags.
pub const NOT_KNOWN: u8 = 7;

/// A failure in words, by what it means for whoever called the program.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Arguments, or files that they name, that cannot be used.
    #[error("{0}")]
    Usage(String),
    /// The source could not be reached, or it refused something.
    #[error("{0}")]
    Unreachable(String),
    /// The target could not be reached, or it is no target.
    #[error("{0}")]
    NoTarget(String),
    /// Data that a check found wrong. The details have been printed before.
    #[error("{0}")]
    DataMismatch(String),
    /// A replica that lags, or replication that stands still.
    #[error("{0}")]
    Behind(String),
    /// Something that cannot be seen.
    #[error("{0}")]
    NotKnown(String),
}

impl Failure {
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::Unreachable(_) => SOURCE,
            Self::NoTarget(_) => TARGET,
            Self::DataMismatch(_) => DATA,
            Self::Behind(_) => LAG,
            Self::NotKnown(_) => NOT_KNOWN,
        }
    }

    /// This failure with other words.
    pub fn map(mut self, change: impl FnOnce(&mut String)) -> Self {
        match &mut self {
            Self::Usage(words)
            | Self::Unreachable(words)
            | Self::NoTarget(words)
            | Self::DataMismatch(words)
            | Self::Behind(words)
            | Self::NotKnown(words) => change(words),
        }
        self
    }
}
