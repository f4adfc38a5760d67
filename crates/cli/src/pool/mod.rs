//! `lockstep pool`.

mod agent;
mod conninfo;
mod haproxy;
mod members;
mod status;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

use agent::AgentArgs;
use conninfo::ConninfoArgs;
use haproxy::HaproxyArgs;
use status::StatusArgs;

/// `lockstep pool`
#[derive(Debug, Subcommand)]
pub enum PoolCommand {
    /// Say how stale a node is: one process beside each node of a pool
    ///
    /// Asks the primary for its position several times a second, and the node for what it shows. Answers
    /// from memory: Patroni's checks over HTTP (/primary, /replica?lag=100ms, /read-only, /health,
    /// /readiness), /metrics, and HAProxy's agent-check. Only reads; a role in pg_monitor on both is
    /// needed. Listens on this machine only, unless told otherwise. SIGUSR1 drains the node, SIGUSR2 lets
    /// it join again, SIGHUP reads logins, certificate and key again, SIGTERM or Ctrl-C ends it.
    Agent(Box<AgentArgs>),
    /// Write HAProxy's configuration for the nodes of a file
    ///
    /// Front ends for writes (the primary), reads (nodes of door fresh) and reports (nodes of door
    /// reports), each node checked by its agent; a page of statistics, and a runtime socket.
    Haproxy(HaproxyArgs),
    /// Print a connection string that names all nodes, for clients without HAProxy
    ///
    /// libpq then chooses a node by itself. It knows nothing of lag: readers may get a late node.
    Conninfo(ConninfoArgs),
    /// Ask all agents, and print each node's state
    ///
    /// Exit code 0: all nodes are in; 6: a node is late; 4: a node is out, or its agent does not answer.
    Status(StatusArgs),
}

pub fn run(command: &PoolCommand) -> Result<ExitCode> {
    let done = match command {
        PoolCommand::Agent(args) => agent::run(args),
        PoolCommand::Haproxy(args) => haproxy::run(args),
        PoolCommand::Conninfo(args) => conninfo::run(args),
        PoolCommand::Status(args) => return status::run(args),
    };
    done.map(|()| ExitCode::SUCCESS)
}
