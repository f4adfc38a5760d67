//! Private PostgreSQL servers in a temporary folder, and plain pgbench on them.
//!
//! The demo, the benchmarks and the tests use this crate. It never touches the terminal,
//! never uses a server that it did not start, and leaves nothing behind: [`guard`] says
//! how every way to end is covered. Servers run as an unprivileged account and listen on Unix
//! sockets in the run folder; some benchmarks also use the loopback.
//!
//! The modules are layers: each uses those above it in this table.
//!
//! | module | what |
//! |---|---|
//! | [`error`] | what can go wrong |
//! | [`account`] | the unprivileged account that owns the servers |
//! | [`package`] | PostgreSQL's programs as they are packaged |
//! | [`pinning`] | which cores a primary, a standby and the load may use |
//! | [`port`] | ports that nobody uses |
//! | [`run_folder`] | the temporary folder of a run |
//! | [`extension`] | the built extension, copied where servers find it |
//! | [`launch`] | programs started as that account |
//! | [`sweep`] | what a run has left, found and ended |
//! | [`guard`] | how all of it goes away, however a run ends |
//! | [`address`] | where a server is; roles and database |
//! | [`usage`] | CPU time and memory of a server's processes |
//! | [`server_log`] | a server's log file |
//! | [`progress`] | what pgbench reports every second |
//! | `data_folder` | new data folders |
//! | [`server`] | one server: created, started, stopped, crashed |
//! | [`standby`] | what only a standby does |
//! | [`cluster`] | a run folder and its servers |
//! | [`workload`] | pgbench as load |
//! | [`busy`] | processes that use all the CPU that they get |
//! | [`machine`] | what a result says of the machine |
//! | [`for_tests`], [`test_program`] | clusters and programs in tests |
//! | [`seeds`] | seeds of a simulation |
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
pub mod seeds;
pub mod server;
pub mod server_log;
pub mod standby;
pub mod sweep;
pub mod test_program;
pub mod usage;
pub mod workload;

pub use error::{LabError, Result, Role, ServerId};
