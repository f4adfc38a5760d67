//! `lockstep replica`: a database copied to another server.

mod alter;
mod config;
mod create;
mod cycles;
mod drop;
mod metrics;
mod promote;
mod run;
mod start;
mod status;
mod switchover;
mod verify;

use clap::{Args, Subcommand};
use lockstep_client::Conninfo;
use lockstep_replica::error::{End, ReplicaError};
use lockstep_replica::names::check_replica_name;
use lockstep_service::exit::Failure;

/// `lockstep replica`
#[derive(Debug, Subcommand)]
pub enum ReplicaCommand {
    /// Copy a database to another server, with a slot that keeps later changes
    ///
    /// Checks both servers first and prints its findings; if one is an error, it changes nothing. Then
    /// it creates a publication and a replication slot on the source, copies schema and rows as of one
    /// moment, creates indexes and constraints, and gathers statistics. The slot keeps all changes from
    /// that moment on. After a crash, run the same command again: tables that are copied stay.
    Create(Box<create::CreateArgs>),
    /// Show a target's replicas, and how far they are behind
    Status(status::StatusArgs),
    /// Apply the source's changes until SIGTERM or Ctrl-C
    ///
    /// Follows the replica NAME, or all replicas that a file lists (--config). Their copies must be
    /// finished. Every commit on the target is a state that the source had. Lost connections are made
    /// again. A change that does not fit the target holds back everything after it until it fits. With a
    /// file, a replica that fails is tried again every 10 s and the others go on; SIGHUP reads the file
    /// again. Logs go to standard error; lockstep replica status shows the progress.
    Run(Box<run::RunArgs>),
    /// End a pause, and wait until a process applies changes
    ///
    /// Does what resume does, then waits for lockstep replica run, which somebody else must have
    /// started. Exit code 0: changes are applied; 1: not yet, with the reason.
    Start(start::StartArgs),
    /// Make a replica disconnect until it is resumed; the source keeps WAL for it
    Pause(run::PauseArgs),
    /// End a pause, and make a replica that a change has stopped try again now
    ///
    /// With --made-by-hand a command of the source that cannot be repeated (--ddl) counts as made. With
    /// --leave-out a replica with --ddl goes on without the table whose change the target refuses.
    Resume(run::ResumeArgs),
    /// Show a replica's cycles, the newest first, and the one that runs
    ///
    /// A replica with a frequency moves its target from one state of the source to the next in one commit
    /// a cycle, which leaves its figures in the target (lockstep.cycle). Times are the target's.
    History(cycles::HistoryArgs),
    /// Begin a cycle now, wait for its end, and print it
    ///
    /// The target then has everything that the source had when the command began. Needs a process that
    /// applies changes (lockstep replica run).
    Force(cycles::ForceArgs),
    /// Change a replica's frequency or bandwidth, who may write to its target, or which tables it has
    ///
    /// A process that applies changes takes up frequency and bandwidth within a second or two; a cycle that
    /// runs is begun again. To change what is left out, row filters and column lists, end that process
    /// first. Only tables that join, or of which another part is wanted, are copied; all others go on from
    /// where they are. Tables that join must be on the target already, without rows. A command that was
    /// killed can be repeated.
    Alter(Box<alter::AlterArgs>),
    /// Compare all rows of a replica with those of its source, at one position, while changes go on
    ///
    /// Holds the replica at a position of the source until both sides have a snapshot, then compares
    /// these while changes flow again. Prints each table with its number of rows, and the keys of rows
    /// that differ. If no process applies changes to the replica, this one does so up to that position.
    /// Exit code 0: equal; 5: something differs, or could not be compared.
    Verify(verify::VerifyArgs),
    /// Make the target a database of its own, which follows the source no longer
    ///
    /// Waits until the target has everything that the source had committed when the command began, sets the
    /// target's sequences to the source's values, removes slot and publication from the source, and keeps in
    /// the target that the replica is promoted. The process that applies changes (lockstep replica run) must
    /// be there, and ends by itself. End all writing on the source first: what is committed there later is
    /// not on the target; if there is something then, the slot stays, and the exit code is 5. A command that
    /// was killed can be repeated: it ends what was begun, and brings nothing more to the target. If the
    /// source is gone for good, --with-data-loss promotes with what the target and the replica's spool have.
    ///
    /// With --reverse nobody can write on the source any more, and what is written on the target is kept for
    /// it: lockstep replica rollback goes back without loss.
    Promote(promote::PromoteArgs),
    /// Move all writing to the target, in a pause of about a second, with a way back
    ///
    /// Looks first for what would make it fail. Then it makes the slot for the way back, lets PgBouncer's
    /// clients or HAProxy's new sessions wait (--pgbouncer, --haproxy), keeps everybody from writing on the
    /// source, waits until the target has all of it, sets sequences, opens the target, and leads clients
    /// there (--on-switch). The process that applies changes (lockstep replica run) must be there, and ends
    /// by itself. What takes longer than --max-pause is taken back and tried again until --timeout. A command
    /// that was killed can be repeated: it goes on, or begins again. The source takes no writes afterwards,
    /// and is not removed. To go back, let lockstep replica run NAME_back follow the target, and use lockstep
    /// replica rollback.
    Switchover(Box<switchover::SwitchoverArgs>),
    /// Go back to the server that a switchover has left, without loss
    ///
    /// Takes the NAME and the --target of the switchover that is to be gone back from, and switches the way
    /// back over, in the same pause: what has been written since is on the old server before it takes writes.
    /// If no process applies changes to NAME_back there (lockstep replica run), this one does meanwhile. The
    /// way forward is there afterwards: replica NAME follows the old server again. A command that was killed
    /// can be repeated.
    Rollback(Box<switchover::RollbackArgs>),
    /// Drop a replica's slot and publication on the source, and its state in the target
    ///
    /// The target's tables stay. Until a replica is dropped, the source keeps WAL for it. If the source
    /// is gone for good, --without-source drops the replica on the target alone.
    Drop(drop::DropArgs),
}

/// Where the target is.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// How to connect to the target database, as a conninfo string or URI
    #[arg(long, value_name = "CONNINFO")]
    target: String,
}

/// Which replica.
#[derive(Debug, Args)]
struct ReplicaArgs {
    /// The replica's name
    #[arg(value_name = "NAME", value_parser = replica_name)]
    name: String,
    #[command(flatten)]
    target: TargetArgs,
    /// How to connect to the source, if it has moved since the creation
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
        ReplicaCommand::Resume(args) => run::resume(args),
        ReplicaCommand::History(args) => cycles::history(args),
        ReplicaCommand::Force(args) => cycles::force(args),
        ReplicaCommand::Alter(args) => alter::run(args),
        ReplicaCommand::Verify(args) => verify::run(args),
        ReplicaCommand::Promote(args) => promote::run(args),
        ReplicaCommand::Switchover(args) => switchover::run(args),
        ReplicaCommand::Rollback(args) => switchover::rollback(args),
        ReplicaCommand::Drop(args) => drop::run(args),
    }
}

/// Parses a replica's name.
fn replica_name(text: &str) -> Result<String, String> {
    check_replica_name(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
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
