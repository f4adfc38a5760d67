//! Limits of time and size, for all connections.

use std::time::Duration;

/// How long libpq may try one address unless the user says otherwise, in seconds.
pub const CONNECT_TIMEOUT_S: u32 = 10;

/// How long a query may take unless [`crate::Connection::set_patience`] says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long a cancelled query may take to end.
pub const CANCEL_PATIENCE: Duration = Duration::from_secs(5);

/// Most bytes of one query's answer.
pub const MOST_ANSWER: usize = 64 * 1024 * 1024;

/// Most bytes of a COPY that are sent at a time, and so held in libpq's memory.
pub const MOST_SENT: usize = 64 * 1024;

/// Most parameters of one statement: the protocol counts them in two bytes.
pub const MOST_PARAMETERS: usize = 65_535;

/// Longest name of a slot, plugin or publication, in bytes. The server would shorten a longer
/// one.
pub const MOST_NAME: usize = 63;

/// Longest message of the server or libpq in an error, in characters. A longer one is cut.
pub const MOST_WORDS: usize = 1_000;

/// Most switches in a timeline's history.
pub const MOST_SWITCHES: usize = 10_000;
