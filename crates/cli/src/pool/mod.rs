//! `lockstep pool`.

mod add;
mod agency;
mod agent;
mod conninfo;
mod door;
mod haproxy;
mod members;
mod runtime;
mod status;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

use add::AddArgs;
pub use agency::AgencyArgs;
use agent::AgentArgs;
use conninfo::ConninfoArgs;
use door::DoorCommandArgs;
use haproxy::HaproxyArgs;
pub use members::{MembersArgs, door_of};
use runtime::{DrainArgs, RemoveArgs, ResumeArgs};
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
    /// Let HAProxy send a node no new session of readers, and wait until those that it has have ended
    ///
    /// Through HAProxy's runtime socket; lasts until resume, or a reload of HAProxy. Writers are not
    /// drained. Exit code 6: sessions are left after --wait.
    Drain(DrainArgs),
    /// Let HAProxy send a drained node sessions again
    Resume(ResumeArgs),
    /// Let a node take other readers from now on: those of fresh data, or reports
    ///
    /// Writes the door into the nodes file, and moves the node in the running HAProxy. Sessions that the node
    /// has stay until they end. Exit code 6: sessions of the other door are left after --wait.
    Door(Box<DoorCommandArgs>),
    /// Write a standby into the nodes file, and add it to the running HAProxy
    ///
    /// With --data, on the new node's machine and as the account that is to own the server, it makes that
    /// server first: clones the least loaded standby of the file with pg_basebackup, makes a slot on the
    /// primary, starts the server, waits until it has caught up, and reads what the cloned standby has in
    /// memory. A call that was cut short goes on when it is repeated. Without --data the server runs
    /// already.
    Add(Box<AddArgs>),
    /// Take a node out of the nodes file, and out of the running HAProxy once its sessions have ended
    ///
    /// The server and its agent go on. Exit code 6: sessions are left after --wait.
    Remove(RemoveArgs),
}

pub fn run(command: &PoolCommand) -> Result<ExitCode> {
    let done = match command {
        PoolCommand::Agent(args) => agent::run(args),
        PoolCommand::Haproxy(args) => haproxy::run(args),
        PoolCommand::Conninfo(args) => conninfo::run(args),
        PoolCommand::Status(args) => return status::run(args),
        PoolCommand::Drain(args) => runtime::drain(args),
        PoolCommand::Resume(args) => runtime::resume(args),
        PoolCommand::Door(args) => door::run(args),
        PoolCommand::Add(args) => add::run(args),
        PoolCommand::Remove(args) => runtime::remove(args),
    };
    done.map(|()| ExitCode::SUCCESS)
}
