//! `lockstep relay`: runs a relay, or asks one that runs.

mod run;
mod status;

use clap::{Args, Subcommand};

/// `lockstep relay`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RelayArgs {
    /// What to ask of a relay that runs.
    #[command(subcommand)]
    command: Option<RelayCommand>,
    /// How to run one.
    #[command(flatten)]
    run: run::RunArgs,
}

/// What to ask.
#[derive(Debug, Subcommand)]
enum RelayCommand {
    /// Show a relay's groups and slots: their positions, and how much memory serves them
    ///
    /// Asks the console of a running relay, as a role in pg_monitor. Exit code 0: every group streams;
    /// 6: a group does not; 3: the relay does not answer or refuses.
    Status(status::StatusArgs),
}

pub fn run(args: &RelayArgs) -> anyhow::Result<()> {
    match &args.command {
        Some(RelayCommand::Status(args)) => status::run(args),
        None => run::run(&args.run),
    }
}
