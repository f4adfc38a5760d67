//! One endpoint over read nodes: how stale each node is, whether it takes sessions, and how many.
//!
//! What decides does no I/O and reads no clock, so that the simulation in `tests/pool/simulation` drives it
//! as the agent does. Only `session`, `agent`, `run`, `agent_check`, `routes`, `runtime`, `ask` and
//! `newcomer` do I/O.
//!
//! The modules are layers: each uses only those above it in this table, which a test holds.
//!
//! | module | what |
//! |---|---|
//! | [`error`] | what can go wrong |
//! | [`fault`] | faults that tests plant |
//! | [`lineage`] | timelines with their histories |
//! | [`contest`] | which of several servers that take writes is the primary |
//! | [`staleness`] | how old the data is that a node shows |
//! | [`clock`] | the agent's clock |
//! | [`state`] | whether a node takes sessions, and why not |
//! | [`weight`] | how large its share is |
//! | `pace` | when the node is asked again |
//! | [`standing`] | a node at one of the pool's doors |
//! | [`judge`] | all that is known of one node, and what follows |
//! | [`check`] | what a check asks, and its answer |
//! | [`session`] | sessions with settings of our own |
//! | [`questions`] | what primary and node are asked |
//! | [`agent`] | asks both, and keeps what follows |
//! | `metrics` | Prometheus' text format |
//! | `routes` | which address gives which answer |
//! | `agent_check` | HAProxy's agent-check |
//! | [`run`](mod@run) | an agent that answers, by itself or inside another program |
//! | [`member`] | a node as it is written down |
//! | [`haproxy`] | HAProxy's configuration |
//! | [`runtime`] | HAProxy's runtime socket |
//! | [`multi_host`] | a connection string that names all nodes |
//! | [`ask`] | asks an agent |
//! | [`newcomer`] | a new node: cloned, started, warmed |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod agent;
mod agent_check;
pub mod ask;
pub mod check;
pub mod clock;
pub mod contest;
pub mod error;
pub mod fault;
pub mod haproxy;
pub mod judge;
pub mod lineage;
pub mod member;
mod metrics;
pub mod multi_host;
pub mod newcomer;
mod pace;
pub mod questions;
mod routes;
pub mod run;
pub mod runtime;
pub mod session;
pub mod staleness;
pub mod standing;
pub mod state;
pub mod weight;
