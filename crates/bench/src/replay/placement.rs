//! Where a standby gets its WAL from while it is measured, and which cores it has.

use clap::ValueEnum;

/// How a recording reaches its standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// The whole WAL is in pg_wal; the standby has both cores, and nothing else runs.
    Local,
    /// A player streams the WAL; the standby may use both cores.
    Streamed,
    /// A player on the other core streams it; the standby has one core.
    OneCore,
}

impl Placement {
    pub const ALL: [Self; 3] = [Self::Local, Self::Streamed, Self::OneCore];

    /// The placement's name in cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Streamed => "streamed",
            Self::OneCore => "one-core",
        }
    }
}
