//! `lockstep wal`: one module for each subcommand.

pub mod compare;
pub mod random;

use clap::Subcommand;

/// What to do.
#[derive(Debug, Subcommand)]
pub enum WalCommand {
    /// Compare two standbys, or a standby and its primary, page by page
    ///
    /// Both must stand at the same position: stopped with a fast shutdown, or standbys on this
    /// machine with replay paused. Every page of every fork must be equal but for what may differ
    /// without WAL (hint bits, unused space, checksums), and as new as the WAL still present says.
    /// To have everything on disk before standbys are stopped: CHECKPOINT on the primary, wait
    /// until they have replayed it, CHECKPOINT on them. Nothing is written. Exit code 0: equal,
    /// 5: different, 2: cannot be compared as they are.
    Compare(compare::CompareArgs),
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
        WalCommand::Compare(args) => compare::run(args),
        WalCommand::Random(args) => random::run(args),
    }
}
