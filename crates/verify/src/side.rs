//! The two clusters of a comparison.

use std::fmt;

/// One of the two sides, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    A,
    B,
    Both,
}

impl Side {
    /// The sides for which the flag is true; None if neither is.
    pub(crate) fn of(a: bool, b: bool) -> Option<Self> {
        match (a, b) {
            (true, true) => Some(Self::Both),
            (true, false) => Some(Self::A),
            (false, true) => Some(Self::B),
            (false, false) => None,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "A",
            Self::B => "B",
            Self::Both => "A and B",
        })
    }
}
