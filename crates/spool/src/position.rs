//! Where something is in the log.

use std::fmt;

/// A byte of the frames, counted since the log began. Bytes that were cut count again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogPosition(u64);

impl LogPosition {
    /// The first byte.
    pub const START: Self = Self(0);

    /// The position this many bytes further.
    #[must_use]
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0.saturating_add(bytes as u64))
    }

    /// Bytes from `earlier` to here; 0 if it is not earlier.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl From<u64> for LogPosition {
    fn from(position: u64) -> Self {
        Self(position)
    }
}

impl From<LogPosition> for u64 {
    fn from(position: LogPosition) -> Self {
        position.0
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A record in the spool: its segment's number, and its first byte in that file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub segment: u64,
    pub offset: u64,
}
