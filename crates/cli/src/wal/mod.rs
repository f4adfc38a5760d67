//! `lockstep wal`: one module for each subcommand.

pub mod analyze;

use clap::Subcommand;

/// What to do.
#[derive(Debug, Subcommand)]
pub enum WalCommand {
    /// Say how much of some WAL helpers can replay in parallel, and how much faster that is
    ///
    /// Reads the segments in a folder, or the newest WAL of a server (without a slot), and changes
    /// nothing. Classes records as lockstep.replay_workers does: for helpers, for the startup process
    /// at their turn, or barriers. Simulates speedups from a table of the costs of records: for crash
    /// recovery, for restoring a base backup and for the start of a standby; with --hot-standby, for a
    /// standby that is behind while sessions read. Exit code 2: the folder has no WAL, or not the
    /// requested WAL; 3: the server does not answer; 1: the WAL is damaged, or a file of it cannot be
    /// read.
    Analyze(analyze::AnalyzeArgs),
}

pub fn run(command: &WalCommand) -> anyhow::Result<()> {
    match command {
        WalCommand::Analyze(args) => analyze::run(args),
    }
}
