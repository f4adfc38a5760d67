//! `lockstep replica`: a database copied to another server.

mod config;
mod create;
mod drop;
mod metrics;
mod run;
mod start;
mod status;
mod verify;

use clap::{Args, Subcommand};
use lockstep_client::Conninfo;
use lockstep_replica::error::{End, ReplicaError};
use lockstep_service::exit::Failure;

/// `lockstep replica`
#[derive(Debug, Subcommand)]
pub enum ReplicaCommand {
    /// Copy a database to another server, and keep what has changed since for it
    ///
    /// Looks at both servers first and prints what it finds; nothing is changed if there is an
    /// error. Then makes a publication and a replication slot on the source, copies schema and rows
    /// as of one moment, makes indexes and constraints, and gathers statistics. The slot keeps all
    /// changes from that moment on. After a crash the same command goes on: tables that are copied
    /// stay.
    Create(Box<create::CreateArgs>),
    /// Show the replicas that a target has, and how far they are
    Status(status::StatusArgs),
    /// Apply what changes on the source, until SIGTERM or Ctrl-C
    ///
    /// One replica by its name, or all that a file lists (--config). A replica's copy must be finished.
    /// Every commit on the target is a state that the source had. Connections that are lost are made
    /// again; a change that does not fit the target holds everything after it back until it fits. With a
    /// file, a replica that fails is tried again every 10 s and the others go on; SIGHUP reads the file
    /// again. Logs go to standard error; status shows how far it is.
    Run(Box<run::RunArgs>),
    /// Let a replica follow its source, and wait until it does
    ///
    /// Ends a pause, as resume does. The process that applies is lockstep replica run, which must be
    /// there or come. Exit code 0: changes are applied, 1: not yet, and why.
    Start(start::StartArgs),
    /// Let a replica disconnect until it is resumed; the source keeps WAL for it
    Pause(run::PauseArgs),
    /// End a pause, and let a replica that a change has stopped try again
    Resume(run::PauseArgs),
    /// Compare all rows of a replica with its source's, as both are at one position, while changes flow
    ///
    /// Lets the replica stand still at a position of the source for as long as snapshots of both sides
    /// take, then compares under these while changes flow again. Prints each table with its rows, and
    /// the keys of the rows that differ. If no process applies to the replica, this one does until the
    /// position. Exit code 0: equal, 5: something differs, or could not be compared.
    Verify(verify::VerifyArgs),
    /// Drop a replica's slot and publication on the source, and what the target knows of it
    ///
    /// The target's tables stay. Without it the source keeps WAL for the replica.
    Drop(drop::DropArgs),
}

/// Where the target is.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// How to connect to the target, a conninfo or URI; its database is the target's
    #[arg(long, value_name = "CONNINFO")]
    target: String,
}

/// Which replica.
#[derive(Debug, Args)]
struct ReplicaArgs {
    /// The replica's name
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    target: TargetArgs,
    /// How to connect to the source, if it is not where it was at the creation
    #[arg(long, value_name = "CONNINFO")]
    source: Option<String>,
}

impl ReplicaArgs {
    /// Where the target is, and the source if that is given.
    fn ends(&self) -> anyhow::Result<(Conninfo, Option<Conninfo>)> {
        let target = conninfo("--target", &self.target.target)?;
        Ok((target, source(self.source.as_deref())?))
    }
}

pub fn run(command: &ReplicaCommand) -> anyhow::Result<()> {
    lockstep_client::return_freed_memory();
    match command {
        ReplicaCommand::Create(args) => create::run(args),
        ReplicaCommand::Status(args) => status::run(args),
        ReplicaCommand::Run(args) => run::run(args),
        ReplicaCommand::Start(args) => start::run(args),
        ReplicaCommand::Pause(args) => run::pause(args, true),
        ReplicaCommand::Resume(args) => run::pause(args, false),
        ReplicaCommand::Verify(args) => verify::run(args),
        ReplicaCommand::Drop(args) => drop::run(args),
    }
}

/// The source, if it is given.
fn source(text: Option<&str>) -> anyhow::Result<Option<Conninfo>> {
    text.map(|text| conninfo("--source", text)).transpose()
}

/// A conninfo of an option. Every user of the machine can read arguments, so they hold no password.
fn conninfo(option: &str, text: &str) -> anyhow::Result<Conninfo> {
    let conninfo =
        Conninfo::parse(text).map_err(|error| Failure::Usage(format!("{option}: {error}")))?;
    match conninfo.has_secret() {
        false => Ok(conninfo),
        true => Err(Failure::Usage(format!(
            "{option} holds a password, which other users of this machine could read; put it into \
             ~/.pgpass or a service file"
        ))
        .into()),
    }
}

/// The error with the exit code that its end has.
fn failed(error: ReplicaError) -> anyhow::Error {
    let words = error.to_string();
    match (&error, error.end()) {
        (ReplicaError::Usage(_), _) => Failure::Usage(words).into(),
        (_, Some(End::Source)) => Failure::Unreachable(words).into(),
        (_, Some(End::Target)) => Failure::NoTarget(words).into(),
        _ => anyhow::Error::new(error),
    }
}
