//! What programs and long-running processes share.
//!
//! | module | what |
//! |---|---|
//! | [`address`] | where to listen |
//! | [`exit`] | exit codes |
//! | [`exposition`] | Prometheus' text format |
//! | [`http`] | pages over HTTP: limits on connections, logins, metrics and a health check |
//! | [`logging`] | the log's format and level |
//! | [`output`] | results on standard output |
//! | [`program`] | the command line of a program, and the line about a failure |
//! | [`sanitize`] | text of servers, made safe for terminals and logs |
//! | [`secret`] | files that others must not be able to read |
//! | [`text`] | figures, tables and lines for people |
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
pub mod exit;
pub mod exposition;
pub mod http;
pub mod logging;
pub mod output;
pub mod program;
pub mod sanitize;
pub mod secret;
pub mod text;
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
