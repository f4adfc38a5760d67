//! What programs and long-running processes share.
//!
//! Feature `http` has what needs a server: modules [`http`] and [`tls`].
//!
//! Modules use only those above them:
//!
//! | module | what |
//! |---|---|
//! | [`words`] | figures, dates, tables: what all commands print |
//! | [`clock`] | the wall clock |
//! | [`address`] | where to listen |
//! | [`exit`] | exit codes |
//! | [`logging`] | the log's format and level |
//! | [`sanitize`] | text of servers, made safe for terminals and logs |
//! | [`postgres`] | majors of PostgreSQL, and where their programs are |
//! | [`program`] | the command line of a program, and the line about a failure |
//! | [`secret`] | files that others must not be able to read |
//! | [`toml_file`] | files in TOML that users write |
//! | [`waker`] | wakes a thread that waits for a socket |
//! | [`exposition`] | Prometheus' text format |
//! | [`tls`] | certificate and key from files |
//! | [`http`] | pages over HTTP: limits on connections, logins, metrics and a health check |
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
pub mod clock;
pub mod exit;
pub mod exposition;
#[cfg(feature = "http")]
pub mod http;
pub mod logging;
pub mod postgres;
pub mod program;
pub mod sanitize;
pub mod secret;
#[cfg(feature = "http")]
pub mod tls;
pub mod toml_file;
pub mod waker;
pub mod words;
