//! `lockstep wal`: one module for each subcommand.

pub mod random;

use clap::Subcommand;

/// What to do.
#[derive(Debug, Subcommand)]
pub enum WalCommand {
    /// Run a random SQL workload that a seed determines, or print it
    ///
    /// DDL and DML over heap, TOAST, every built-in index type, partitions, sequences,
    /// savepoints, two-phase commit, row locks, vacuum, databases and more, to give a standby
    /// WAL of every kind. It replaces the schema lockstep_random, makes databases, tablespaces,
    /// prepared transactions and replication origins whose names begin with lockstep_random_,
    /// and runs checkpoints, WAL switches and VACUUM FULL of catalogs: give it a server, or at
    /// least a database, of its own. Statements may fail where sessions meet; errors that no
    /// correct server answers end the run with exit code 1.
    Random(random::RandomArgs),
}

/// Runs a subcommand.
pub fn run(command: &WalCommand) -> anyhow::Result<()> {
    match command {
        WalCommand::Random(args) => random::run(args),
    }
}
