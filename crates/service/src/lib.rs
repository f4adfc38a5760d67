//! What the long-running processes, the relay, `lockstep serve` and `lockstep replica run`, share.
//!
//! | module | what |
//! |---|---|
//! | [`address`] | where to listen |
//! | [`exposition`] | Prometheus' text format |
//! | [`http`] | pages over HTTP: limits on connections, logins, metrics and a health check |
//! | [`logging`] | the log's format and level |
//! | [`secret`] | files that others must not be able to read |
//! | [`tls`] | certificate and key from files |
//! | [`toml_file`] | files in TOML that users write |
//! | [`waker`] | wakes a thread that waits for a socket |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod address;
pub mod exposition;
pub mod http;
pub mod logging;
pub mod secret;
pub mod tls;
pub mod toml_file;
pub mod waker;

/// How much of a wrong value an error shows, in characters.
const MOST_TEXT: usize = 60;

/// A wrong value as an error shows it: quoted, shortened, on one line.
pub fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(MOST_TEXT).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}
