//! Private PostgreSQL clusters in a temporary folder, load on them, and the lag
//! between them measured from both ends.
//!
//! Used by the demo, the benchmarks and the tests alike. It never touches the
//! terminal, never uses a server that it did not start, and leaves nothing behind:
//! see [`guard`] for how every exit path is covered.
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
pub mod cluster;
pub mod commit_levels;
pub mod crash;
pub mod decode;
pub mod error;
pub mod extension;
pub mod fault;
pub mod guard;
pub mod invariants;
pub mod lag;
pub mod lag_sampling;
pub mod launch;
pub mod machine;
pub mod oracle;
pub mod package;
pub mod pinning;
pub mod port;
pub mod progress;
pub mod random;
pub mod relay;
pub mod replay;
pub mod run_folder;
pub mod sampler;
pub mod server;
pub mod server_log;
pub mod standby;
pub mod sweep;
pub mod tpcc;
pub mod trial;
pub mod usage;
pub mod wal;
pub mod workload;

pub use error::{LabError, Result, Role, ServerId};
