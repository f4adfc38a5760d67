//! Private PostgreSQL servers in a temporary folder, and plain pgbench on them.
//!
//! The demo, the benchmarks and the tests use this crate. It never touches the terminal,
//! never uses a server that it did not start, and leaves nothing behind: [`guard`] says
//! how every way to end is covered. Servers run as an unprivileged account and listen on Unix
//! sockets in the run folder; some benchmarks also use the loopback.
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod account;
pub mod address;
pub mod busy;
pub mod cluster;
mod data_folder;
pub mod error;
pub mod extension;
pub mod for_tests;
pub mod guard;
pub mod launch;
pub mod machine;
pub mod package;
pub mod pinning;
pub mod port;
pub mod progress;
pub mod run_folder;
pub mod server;
pub mod server_log;
pub mod standby;
pub mod sweep;
pub mod test_program;
pub mod usage;
pub mod workload;

pub use error::{LabError, Result, Role, ServerId};
