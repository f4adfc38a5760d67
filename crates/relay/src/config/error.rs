//! What can be wrong with a configuration.

use std::fmt;
use std::path::PathBuf;

/// A configuration that cannot be used: where, what, and what is allowed. Never contains the
/// value of `primary`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{}: {reason}", path.display())]
    File {
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A value, a key, or a group.
    #[error("{place}: {reason}")]
    Value {
        place: Place,
        /// What is wrong with it, and what is allowed.
        reason: String,
    },
    /// A key without a default is not given.
    #[error("{key} is not set: give it in the configuration file or with --{key}")]
    Missing { key: &'static str },
}

impl ConfigError {
    pub(super) fn value(place: &Place, reason: impl Into<String>) -> Self {
        Self::Value {
            place: place.clone(),
            reason: reason.into(),
        }
    }
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A line of the file, from 1.
    File { path: PathBuf, line: usize },
    /// A flag of the command line, without its dashes.
    Flag(String),
    /// Nothing sets it.
    Default,
}

impl Place {
    /// `file`, `flag` or `default`.
    pub fn source(&self) -> &'static str {
        match self {
            Self::File { .. } => "file",
            Self::Flag(_) => "flag",
            Self::Default => "default",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}, line {line}", path.display()),
            Self::Flag(name) => write!(f, "--{name}"),
            Self::Default => f.write_str("default"),
        }
    }
}
