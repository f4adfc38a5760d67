//! The wall clock, for what is sent and shown. Decisions are given the time instead.

use std::time::{SystemTime, UNIX_EPOCH};

use lockstep_wire::stream::Timestamp;

/// Now, as messages of replication have it.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_unix_micros(unix_micros())
}

/// Microseconds since 1970.
pub(crate) fn unix_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros().try_into().unwrap_or(i64::MAX))
}
