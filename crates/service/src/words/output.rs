//! Whom a result is printed for.

use clap::ValueEnum;

/// Format of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For machines.
    Json,
}
