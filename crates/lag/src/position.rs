//! Positions in the JSON that servers send and that we write: text such as `0/16B3748`.

use lockstep_wire::Lsn;
use serde::{Deserialize, Deserializer, Serializer};

/// Reads a position or null.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Lsn>, D::Error> {
    let text: Option<String> = Option::deserialize(from)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom))
        .transpose()
}

/// Writes a position or null.
pub fn serialize<S: Serializer>(lsn: &Option<Lsn>, to: S) -> Result<S::Ok, S::Error> {
    match lsn {
        Some(lsn) => to.collect_str(lsn),
        None => to.serialize_none(),
    }
}

/// Bytes from one position to a later one; 0 if it is not later, as two ends of an arrow are
/// never read at the same instant.
pub fn bytes_between(from: Lsn, to: Lsn) -> u64 {
    u64::from(to).saturating_sub(from.into())
}
