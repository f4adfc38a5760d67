//! Positions in JSON, which are text such as `0/16B3748`.

use lockstep_wire::Lsn;
use serde::{Deserialize, Deserializer, Serializer};

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Lsn>, D::Error> {
    let text: Option<String> = Option::deserialize(from)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom))
        .transpose()
}

pub fn serialize<S: Serializer>(lsn: &Option<Lsn>, to: S) -> Result<S::Ok, S::Error> {
    match lsn {
        Some(lsn) => to.collect_str(lsn),
        None => to.serialize_none(),
    }
}

/// Bytes from one position to a later one. The result is 0 if the second is not later: the two
/// ends of a link are never read at the same instant.
pub fn bytes_between(from: Lsn, to: Lsn) -> u64 {
    u64::from(to).saturating_sub(from.into())
}
