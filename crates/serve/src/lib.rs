//! What `lockstep serve` answers over HTTP: metrics, a health check, a JSON API and one page about lag.
//!
//! The server only reads from the nodes, unless a heartbeat is asked for. Without a folder for the
//! history nothing is kept on disk: the history begins when the server starts.
//!
//! The modules are layers: each uses only those above it in this table, which a test holds.
//!
//! | module | what |
//! |---|---|
//! | [`error`] | what can go wrong |
//! | [`history`] | what was the matter, and what is kept of it on disk |
//! | [`forecast`] | when `pg_wal` is full, and when a slot is in danger |
//! | `verdict` | a state in one sentence |
//! | [`pool`] | the pool of a cluster, as its agents tell it |
//! | `feed` | turns each new state into JSON once, for all who ask |
//! | `site` | what answers are made from, and how many at once |
//! | `api` | states, history and events as JSON |
//! | `health` | whether this server still watches the nodes |
//! | `metrics` | Prometheus' text format |
//! | `page` | the page's files, which are compiled in |
//! | `routes` | which address gives which answer |
//! | [`run`](mod@run) | a server from its start to the signal that ends it |
//! | `example` | a state for tests |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod api;
pub mod error;
#[cfg(test)]
mod example;
mod feed;
pub mod forecast;
mod health;
pub mod history;
mod metrics;
mod page;
pub mod pool;
mod routes;
pub mod run;
mod site;
mod verdict;
