//! Arguments of every command. `--help` is the reference; a test compares it with
//! `tests/help.txt`.

use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};
use lockstep_bench::benchmarks::BenchCommand;
use lockstep_bench::demo::DemoArgs;
use lockstep_bench::demo_pool::PoolDemoArgs;
use lockstep_service::program::{Program, Shell};

use crate::name::NAME;
use crate::tpcc::TpccCommand;
use crate::wal::WalCommand;

pub const PROGRAM: Program = Program {
    name: NAME,
    definition: Cli::command,
    other: "lockstep",
    elsewhere: &[
        ("doctor", "doctor"),
        ("plan", "plan"),
        ("pool", "pool"),
        ("relay", "relay"),
        ("replica", "replica"),
        ("serve", "serve"),
        ("top", "top"),
        ("wal analyze", "wal analyze"),
    ],
};

/// Lockstep's test bed: shows, measures and checks what Lockstep does
#[derive(Debug, Parser)]
#[command(
    name = NAME,
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a stock standby and a Lockstep standby under the same readers, one after the other
    ///
    /// Starts a private primary and standbys in a temporary folder, puts load on both ends, shows
    /// the replay lag of both while it runs, and writes a report. Touches nothing else on this
    /// machine, and leaves nothing behind unless --keep is given. Takes about three minutes.
    Demo(DemoArgs),
    /// Show a pool of read nodes behind HAProxy while a node falls behind, one is killed and one is added
    ///
    /// Starts a private primary, three standbys with an agent each, and Debian's HAProxy in a temporary
    /// folder, lets clients write and read, and shows what they see; the fourth node is made by
    /// `lockstep pool add`. Writes a report. Touches nothing else on this machine, and leaves nothing
    /// behind. Takes about two minutes. Runs the program lockstep: the one beside this program, unless
    /// LOCKSTEP_PROGRAM names another.
    DemoPool(PoolDemoArgs),
    /// Measure Lockstep against stock PostgreSQL
    ///
    /// Benchmarks of the relay and of replicas run the program lockstep: the one beside this program,
    /// unless LOCKSTEP_PROGRAM names another.
    #[command(disable_help_subcommand = true)]
    Bench {
        /// Which measurement.
        #[command(subcommand)]
        benchmark: Bench,
    },
    /// Load, run and check TPC-C on a running server
    #[command(disable_help_subcommand = true)]
    Tpcc {
        /// What to do.
        #[command(subcommand)]
        command: TpccCommand,
    },
    /// Record WAL and play it to standbys, compare standbys page by page, write WAL of every kind
    #[command(disable_help_subcommand = true)]
    Wal {
        /// What to do.
        #[command(subcommand)]
        command: WalCommand,
    },
    /// Print a shell's completion script
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write a man page for each command into a folder
    Man {
        /// The folder; created if it is missing
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
    /// Cleans up after a lockstep-lab that was killed; started by lockstep-lab itself.
    #[command(hide = true)]
    Reap,
}

/// Benchmarks.
#[derive(Debug, Subcommand)]
pub enum Bench {
    #[command(flatten)]
    Measure(Box<BenchCommand>),
    /// Write docs/measurements.md and the README's table of claims from bench/results
    Measurements {
        /// The source tree to read and write
        #[arg(value_name = "FOLDER", default_value = ".")]
        tree: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usage_errors_are_one_line() {
        for (line, help) in [
            (vec!["lockstep-lab"], "lockstep-lab --help"),
            (vec!["lockstep-lab", "nothing"], "lockstep-lab --help"),
            (
                vec!["lockstep-lab", "demo", "--duration", "0"],
                "lockstep-lab demo --help",
            ),
            (
                vec!["lockstep-lab", "bench", "priority", "--cases", "none"],
                "lockstep-lab bench priority --help",
            ),
            (vec!["lockstep-lab", "bench"], "lockstep-lab bench --help"),
        ] {
            let error = Cli::try_parse_from(&line).unwrap_err();
            let args = line.iter().skip(1).map(|&arg| arg.to_owned());
            let text = PROGRAM.usage_line(&error, args);
            assert!(text.ends_with(&format!("; see {help}")), "{text}");
            assert!(
                text.len() > 20 && text.lines().count() <= 2,
                "{line:?}: {text}"
            );
        }
    }

    #[test]
    fn a_misspelt_command_is_guessed() {
        let error = Cli::try_parse_from(["lockstep-lab", "wal", "recrod"]).unwrap_err();
        let text = PROGRAM.usage_line(&error, std::iter::empty());
        let guessed = "; did you mean record?; see lockstep-lab --help";
        assert!(text.ends_with(guessed), "{text}");
    }

    #[test]
    fn commands_below_others_have_man_pages() {
        let folder = tempfile::tempdir().unwrap();
        PROGRAM.write_man_pages(folder.path()).unwrap();
        let page = std::fs::read_to_string(folder.path().join("lockstep-lab-wal-record.1"));
        assert!(page.unwrap().contains("FOLDER"));
        assert!(!folder.path().join("lockstep-lab-reap.1").exists());
    }
}
