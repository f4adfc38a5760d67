//! Arguments of every command. `--help` is the reference; a test compares it with
//! `tests/help.txt`.

use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};
use lockstep_service::program::{Program, Shell};

use crate::doctor::DoctorArgs;
use crate::name::NAME;
use crate::plan::PlanArgs;
use crate::pool::PoolCommand;
use crate::relay::RelayArgs;
use crate::replica::ReplicaCommand;
use crate::serve::ServeArgs;
use crate::top::TopArgs;
use crate::wal::WalCommand;

pub const PROGRAM: Program = Program {
    name: NAME,
    definition: Cli::command,
    other: "lockstep-lab",
    elsewhere: &[
        ("demo", "demo"),
        ("bench tpcc", "tpcc"),
        ("bench", "bench"),
        ("tpcc", "tpcc"),
        ("wal calibrate", "wal calibrate"),
        ("wal compare", "wal compare"),
        ("wal play", "wal play"),
        ("wal random", "wal random"),
        ("wal record", "wal record"),
    ],
};

/// PostgreSQL replicas that keep up
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
    /// Say where replicas lag, why, and what to change
    ///
    /// Samples the primary and the replicas that you name for some seconds. Prints each replica's lag,
    /// its causes with their evidence, and remedies, the best first. Only reads; a role in pg_monitor
    /// is enough. Exit code 0: nothing lags, though there may be risks; 6: something lags; 3: the
    /// primary does not answer; 4: another node does not answer; 7: nothing is seen to lag, but
    /// something cannot be seen.
    Doctor(DoctorArgs),
    /// Show all nodes live: lag over time, where it is, and why
    ///
    /// Draws a screen on a terminal (? explains its keys and columns, q quits), and prints lines
    /// elsewhere. Asks each node once every interval; a node that does not answer is marked, and the
    /// others go on. Only reads, unless --heartbeat is given; a role in pg_monitor is enough. NO_COLOR
    /// turns colours off.
    Top(TopArgs),
    /// Serve the lag of every node and its causes over HTTP: a page, metrics and JSON
    ///
    /// Watches the servers that you name until SIGTERM or Ctrl-C. Answers / (a page for people),
    /// /metrics (for Prometheus), /healthz, /api/state, /api/history, /api/incidents and /api/events.
    /// Listens on this machine only, unless --listen is given; then also give a login and TLS. Only
    /// reads, unless --heartbeat is given; a role in pg_monitor is enough. SIGHUP reads passwords,
    /// certificate and key again. Logs go to standard error.
    Serve(Box<ServeArgs>),
    /// One endpoint over read nodes, with the truth about their lag
    #[command(disable_help_subcommand = true)]
    Pool {
        /// What to do.
        #[command(subcommand)]
        command: PoolCommand,
    },
    /// Decode a primary's WAL once and serve it to every logical subscriber
    ///
    /// Subscribers connect to the relay as they would to the primary. The relay serves the streams of
    /// their slots, and passes everything else through to the primary, which checks their passwords.
    /// SIGTERM or Ctrl-C ends it; SIGHUP reads the configuration again. Logs go to standard error. The
    /// console is psql to database lockstep on the same port; SHOW HELP lists its commands.
    #[command(disable_help_subcommand = true)]
    Relay(Box<RelayArgs>),
    /// Copy a database to another server, and keep the copy in step
    #[command(disable_help_subcommand = true)]
    Replica {
        /// What to do.
        #[command(subcommand)]
        command: ReplicaCommand,
    },
    /// Say which cycle of a replica fits into which time
    ///
    /// A cycle takes tables × overhead + data / rate. Give two of --budget, --tables and --data; the third is
    /// solved for, and with all three it is said whether they fit. Rate and overhead come from a replica's
    /// measured cycles (--from), from you, or from a published reference, whose budgets are printed, too.
    Plan(PlanArgs),
    /// Read WAL without replaying it
    #[command(disable_help_subcommand = true)]
    Wal {
        /// What to do.
        #[command(subcommand)]
        command: WalCommand,
    },
    /// Print a shell's completion script
    ///
    /// For bash: lockstep completion bash > ~/.local/share/bash-completion/completions/lockstep. For
    /// zsh, write it to a file _lockstep in a folder of fpath; for fish, to
    /// ~/.config/fish/completions/lockstep.fish.
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write a man page for each command into a folder
    ///
    /// The pages say what --help says. To read one: man -l FOLDER/lockstep-doctor.1.
    Man {
        /// The folder; created if it is missing
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use lockstep_lab::assert_has;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_misspelt_is_guessed() {
        for (line, meant) in [
            (vec!["doctr"], Some("doctor")),
            (vec!["wal", "anlyze"], Some("analyze")),
            (vec!["doctor", "--secnods", "3"], Some("--seconds")),
            (
                vec!["doctor", "--primary", "", "--output", "jsno"],
                Some("json"),
            ),
            (vec!["completion", "fsh"], Some("fish")),
            (vec!["xylophone"], None),
            (vec!["doctor", "--xylophone"], None),
        ] {
            let words = std::iter::once("lockstep").chain(line.iter().copied());
            let error = Cli::try_parse_from(words).unwrap_err();
            let text = PROGRAM.usage_line(&error, std::iter::empty());
            let guessed =
                meant.map(|meant| format!("; did you mean {meant}?; see lockstep --help"));
            match guessed {
                Some(guessed) => assert!(text.ends_with(&guessed), "{text}"),
                None => assert!(!text.contains("did you mean"), "{text}"),
            }
            assert_eq!(text.matches("tip").count(), 0, "{text}");
        }
    }

    #[test]
    fn completion_knows_every_command_and_no_hidden_one() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(PROGRAM.completion(*shell)).unwrap();
            let commands = Cli::command();
            for command in commands.get_subcommands().filter(|one| !one.is_hide_set()) {
                assert_has!(script, command.get_name());
            }
            assert!(script.contains("logical-wal-cache"), "{shell:?}");
        }
    }

    #[test]
    fn each_command_has_a_man_page_that_says_what_its_help_says() {
        let folder = tempfile::tempdir().unwrap();
        PROGRAM
            .write_man_pages(&folder.path().join("man1"))
            .unwrap();
        let page = |name: &str| {
            let path = folder.path().join("man1").join(format!("{name}.1"));
            std::fs::read_to_string(path).unwrap()
        };
        for command in Cli::command().get_subcommands() {
            let name = format!("lockstep-{}", command.get_name());
            match command.is_hide_set() {
                true => assert!(!folder.path().join(format!("man1/{name}.1")).exists()),
                false => {
                    let title = format!("{} \\- ", name.replace('-', "\\-"));
                    assert!(page(&name).contains(&title), "{name}");
                }
            }
        }
        assert!(page("lockstep").contains("lockstep\\-doctor(1)"));
        assert!(page("lockstep-doctor").contains("take more for a lag that comes and goes"));
        assert!(page("lockstep-wal-analyze").contains("FOLDER"));
    }

    #[test]
    fn usage_errors_are_one_line() {
        for (line, help) in [
            (vec!["lockstep"], "lockstep --help"),
            (vec!["lockstep", "nothing"], "lockstep --help"),
            (
                vec!["lockstep", "doctor", "--seconds", "0"],
                "lockstep doctor --help",
            ),
            (
                vec!["lockstep", "replica", "create", "--jobs", "0"],
                "lockstep replica create --help",
            ),
            (vec!["lockstep", "replica"], "lockstep replica --help"),
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
    fn commands_of_the_other_program_are_told_of_and_no_others() {
        let told = |line: &str| {
            let args: Vec<_> = line.split(' ').map(str::to_owned).collect();
            PROGRAM.told_elsewhere(&args)
        };
        for (line, expected) in [
            ("demo --duration 0", "lockstep demo is lockstep-lab demo,"),
            ("bench", "lockstep bench is lockstep-lab bench,"),
            (
                "bench copy --rounds 1",
                "lockstep bench is lockstep-lab bench,",
            ),
            (
                "bench tpcc load",
                "lockstep bench tpcc is lockstep-lab tpcc,",
            ),
            ("tpcc run", "lockstep tpcc is lockstep-lab tpcc,"),
            (
                "wal play x",
                "lockstep wal play is lockstep-lab wal play, of the package lockstep-lab",
            ),
        ] {
            let told = told(line).unwrap();
            assert!(told.starts_with(expected), "{told}");
        }
        for line in [
            "",
            "doctor demo",
            "wal",
            "wal analyze x",
            "wal --help",
            "--help",
        ] {
            assert_eq!(told(line), None, "{line}");
        }
    }
}
