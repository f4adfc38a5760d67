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
    /// Make a table of costs for lockstep wal analyze from recoveries that were measured
    ///
    /// Fits the costs of records to the times that one process took, and those of the pipeline to the
    /// speedups, of recoveries that are not held out; then predicts all of them, so that those held
    /// out say what the table is worth. Each of the others is also predicted by a table made without
    /// it. Their WAL is read again.
    Calibrate(calibrate::CalibrateArgs),
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
    /// Record the WAL of a running primary, with a base backup to start from
    ///
    /// Runs pg_receivewal, pg_basebackup and pg_waldump of the source's version, from
    /// /usr/lib/postgresql. The source keeps the WAL that is needed through a temporary slot, which
    /// goes away with the recording, however it ends; three of its walsenders and two slots must be
    /// free. Clusters with tablespaces are refused. Exit code 3: the source does not answer.
    Record(record::RecordArgs),
    /// Play a recording to standbys as their primary would
    ///
    /// Make each standby from the recording's base/, with primary_conninfo as the first line says
    /// it. The play begins when they stream, and ends when all that streamed have replayed
    /// everything; one that was lost is waited for. Nobody is asked for a password.
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
