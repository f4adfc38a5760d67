//! How fast a standby replays: fixed WAL of known workloads, played to it from data that
//! is cached, partly cached or cold.
//!
//! [`work`] makes the WAL, [`temperature`] decides what is in memory, and [`round`] plays
//! it and measures.

mod horizon;
pub mod round;
pub mod temperature;
pub mod work;
