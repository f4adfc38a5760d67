//! What the long-running processes, the relay, `lockstep serve` and `lockstep replica run`, share.
//!
//! | module | what |
//! |---|---|
//! | [`address`] | where to listen |
//! | [`bounded`] | limits on HTTP connections |
//! | [`exposition`] | Prometheus' text format |
//! | [`logging`] | the log's format and level |
//! | [`pages`] | metrics and a health check over HTTP |
//! | [`secret`] | files that others must not be able to read |
//! | [`tls`] | certificate and key from files |
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
pub mod bounded;
pub mod exposition;
pub mod logging;
pub mod pages;
pub mod secret;
pub mod tls;
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
