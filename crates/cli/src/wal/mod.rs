//! `lockstep wal`: one module for each subcommand.

pub mod analyze;

use clap::Subcommand;

/// What to do.
#[derive(Debug, Subcommand)]
pub enum WalCommand {
    /// Say how much of some WAL helpers can replay in parallel, and what that gives
    ///
    /// Reads segments of a folder, or the newest WAL of a server (which keeps no slot for it), and
    /// changes nothing. Each record has the class that lockstep.replay_workers gives it: for helpers,
    /// at its turn, or a barrier. Speedups are simulated from a table of what records cost; they are
    /// about crash recovery, a base backup that is restored, and the start of a standby, or with
    /// --hot-standby about a standby that is behind while sessions read. Exit code 2:
    /// the folder has no WAL, or not the WAL that was asked for; 3: the server does not answer; 1: the
    /// WAL is damaged, or a file of it cannot be read.
    Analyze(analyze::AnalyzeArgs),
}

pub fn run(command: &WalCommand) -> anyhow::Result<()> {
    match command {
        WalCommand::Analyze(args) => analyze::run(args),
    }
}
