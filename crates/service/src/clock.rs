//! The wall clock, for what is sent and shown. What decides is given the time instead.

use std::time::{SystemTime, UNIX_EPOCH};

use lockstep_wire::stream::Timestamp;

/// Now, as messages of replication have it.
pub fn timestamp() -> Timestamp {
    Timestamp::from_unix_micros(unix_us())
}

/// Microseconds since 1970; 0 if the clock is set before.
pub fn unix_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros().try_into().unwrap_or(i64::MAX))
}

/// Milliseconds since 1970.
pub fn unix_ms() -> i64 {
    unix_us() / 1000
}
