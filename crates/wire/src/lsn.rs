//! Positions in the WAL, timelines, system identifiers.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Result, WireError};

/// A position in the WAL, counted in bytes; printed as two hexadecimal numbers, `0/16B3748`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

impl Lsn {
    /// No position: PostgreSQL's `InvalidXLogRecPtr`.
    pub const INVALID: Self = Self(0);

    /// False for `0/0`, which stands for no position.
    pub fn is_valid(self) -> bool {
        self != Self::INVALID
    }

    /// Bytes from an earlier position to this one; 0 if that one is not earlier, as it may seem where the
    /// two are read at different instants.
    pub fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl From<u64> for Lsn {
    fn from(position: u64) -> Self {
        Self(position)
    }
}

impl From<Lsn> for u64 {
    fn from(lsn: Lsn) -> Self {
        lsn.0
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl FromStr for Lsn {
    type Err = WireError;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || WireError::text("a WAL position such as 0/16B3748", text);
        let half = |digits: &str| -> Result<u64> {
            let plain = (1..=8).contains(&digits.len())
                && digits.chars().all(|digit| digit.is_ascii_hexdigit());
            match plain {
                true => u64::from_str_radix(digits, 16).map_err(|_| bad()),
                false => Err(bad()),
            }
        };
        let (high, low) = text.split_once('/').ok_or_else(bad)?;
        Ok(Self(half(high)? << 32 | half(low)?))
    }
}

/// Text, such as `0/16B3748`.
impl Serialize for Lsn {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// A timeline of a cluster. It is 1 at first and grows with each promotion; it is never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timeline(NonZeroU32);

impl Timeline {
    /// The first timeline of every cluster, which has no history file.
    pub const FIRST: Self = Self(NonZeroU32::MIN);

    /// None for 0, which is no timeline.
    pub fn new(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }

    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Timeline {
    type Err = WireError;

    fn from_str(text: &str) -> Result<Self> {
        text.parse()
            .map(Self)
            .map_err(|_| WireError::text("a timeline", text))
    }
}

/// A number that a cluster and its copies have in common, and no other cluster has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SystemId(u64);

impl From<u64> for SystemId {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<SystemId> for u64 {
    fn from(id: SystemId) -> Self {
        id.0
    }
}

impl fmt::Display for SystemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for SystemId {
    type Err = WireError;

    fn from_str(text: &str) -> Result<Self> {
        text.parse()
            .map(Self)
            .map_err(|_| WireError::text("a system identifier", text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_as_they_are_written() {
        for (number, text) in [
            (0, "0/0"),
            (0x16B_3748, "0/16B3748"),
            (0x1_0000_0000, "1/0"),
            (u64::MAX, "FFFFFFFF/FFFFFFFF"),
        ] {
            assert_eq!(Lsn::from(number).to_string(), text);
            assert_eq!(text.parse(), Ok(Lsn::from(number)));
        }
        assert_eq!("a/0b".parse(), Ok(Lsn::from(0xA_0000_000B)));
        for text in [
            "",
            "/",
            "0",
            "0/",
            "/0",
            "0/0/0",
            "+1/0",
            "-1/0",
            "0/100000000",
            "g/0",
            " 0/0",
        ] {
            assert!(text.parse::<Lsn>().is_err(), "{text}");
        }
    }

    #[test]
    fn timelines_begin_with_one() {
        assert_eq!(Timeline::new(0), None);
        assert!("0".parse::<Timeline>().is_err());
        assert_eq!("4294967295".parse::<Timeline>().unwrap().get(), u32::MAX);
        assert!("4294967296".parse::<Timeline>().is_err());
        assert_eq!(Timeline::FIRST.to_string(), "1");
    }

    #[test]
    fn errors_shorten_foreign_text() {
        let error = "x".repeat(10_000).parse::<SystemId>().unwrap_err();
        assert!(error.to_string().len() < 200);
    }
}
