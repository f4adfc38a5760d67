//! `lockstep-lab wal`: one module for each subcommand.

pub mod calibrate;
pub mod compare;
pub mod play;
pub mod random;
pub mod record;

use clap::Subcommand;

/// What to do.
#[derive(Debug, Subcommand)]
pub enum WalCommand {
    /// Make a table of costs for lockstep wal analyze from measured replays
    ///
    /// Uses the replays that are not held out: fits the costs of records to the times of one process,
    /// and the costs of the pipeline to the speedups. Then predicts all replays; those held out show how
    /// good the table is. Each other replay is also predicted by a table made without it. The command
    /// reads the WAL of all replays again.
    Calibrate(calibrate::CalibrateArgs),
    /// Compare two standbys, or a standby and its primary, page by page
    ///
    /// Both must stand at the same position: stopped with a fast shutdown, or standbys on this
    /// machine with replay paused. Every page of every fork must be equal, except for what may differ
    /// without WAL (hint bits, unused space, checksums), and no older than the WAL that is still
    /// present says. Before you stop standbys, bring everything to disk: CHECKPOINT on the primary,
    /// wait until they have replayed it, CHECKPOINT on each of them. The command itself writes nothing.
    /// Exit code 0: equal; 5: different; 2: they cannot be compared in this state.
    Compare(compare::CompareArgs),
    /// Run a random SQL workload that a seed determines, or print it
    ///
    /// The workload is DDL and DML over heap, TOAST, every built-in index type, partitions, sequences,
    /// savepoints, two-phase commit, row locks, vacuum, databases and more, so that a standby gets
    /// WAL of every kind. It replaces the schema lockstep_random, creates databases, tablespaces,
    /// prepared transactions and replication origins whose names begin with lockstep_random_,
    /// and runs checkpoints, WAL switches and VACUUM FULL of catalogs: give it a server, or at
    /// least a database, of its own. Statements may fail where sessions conflict; an error that a
    /// correct server never returns ends the run with exit code 1.
    Random(random::RandomArgs),
    /// Record the WAL of a running primary, with a base backup to start from
    ///
    /// Runs pg_receivewal, pg_basebackup and pg_waldump of the source's version, from
    /// /usr/lib/postgresql. A temporary slot keeps the needed WAL on the source; it goes away when the
    /// recording ends, however it ends. Three walsenders and two slots of the source must be free.
    /// Servers with tablespaces are refused. Exit code 3: the source does not answer.
    Record(record::RecordArgs),
    /// Play a recording to standbys as their primary would
    ///
    /// Set up each standby from the recording's base/, with the primary_conninfo that the first line
    /// prints. Playing begins when they stream, and ends when all that have streamed have replayed
    /// everything; if one loses its connection, the player waits for it. The player asks for no
    /// password.
    Play(play::PlayArgs),
}

pub fn run(command: &WalCommand) -> anyhow::Result<()> {
    match command {
        WalCommand::Calibrate(args) => calibrate::run(args),
        WalCommand::Compare(args) => compare::run(args),
        WalCommand::Random(args) => random::run(args),
        WalCommand::Record(args) => record::run(args),
        WalCommand::Play(args) => play::run(args),
    }
}
