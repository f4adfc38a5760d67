//! Arguments of every command. `--help` is the reference; a test compares it with
//! `tests/help.txt`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use lockstep_bench::benchmarks::BenchCommand;
use lockstep_bench::demo::DemoArgs;

use crate::bench::tpcc::TpccCommand;
use crate::doctor::DoctorArgs;
use crate::exit;
use crate::relay::RelayArgs;
use crate::replica::ReplicaCommand;
use crate::serve::ServeArgs;
use crate::top::TopArgs;
use crate::wal::WalCommand;

/// PostgreSQL replicas that keep up
#[derive(Debug, Parser)]
#[command(
    name = "lockstep",
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a stock standby and a Lockstep standby under the same readers, one after the other
    ///
    /// Makes a private primary and standbys in a temporary folder, puts load on both ends, shows
    /// the replay lag of both while it runs, and writes a report. Nothing else on this machine is
    /// touched, and nothing is left behind unless --keep is given. Takes about three minutes.
    Demo(DemoArgs),
    /// Say where replicas lag, why, and what to change
    ///
    /// Asks the primary and the replicas that are named for some seconds, and prints each replica's
    /// lag, the causes with their evidence, and what to do, the better remedy first. Reads only; a role
    /// in pg_monitor is enough. Exits with 0 if nothing lags, also if there are risks; with 6 if something
    /// lags, 3 if the primary cannot be asked, 4 if another node cannot, and 7 if something cannot be
    /// seen, so that nobody knows.
    Doctor(DoctorArgs),
    /// Show all nodes live: lag over time, where it is, and why
    ///
    /// A screen on a terminal (? explains its keys and columns), lines elsewhere. Asks the nodes that
    /// are named once each interval; one that does not answer is shown as such while the others go on.
    /// Reads only, unless --heartbeat is given; a role in pg_monitor is enough. q quits. NO_COLOR turns
    /// colours off.
    Top(TopArgs),
    /// Serve lag, its causes and what is known of every node: a page, metrics and JSON, over HTTP
    ///
    /// Watches the servers that are named until SIGTERM or Ctrl-C, and answers / (a page for people),
    /// /metrics (for Prometheus), /healthz, /api/state, /api/history and /api/events. Listens on this
    /// machine only, unless told otherwise; then give a login and TLS. Reads only but for --heartbeat;
    /// a role in pg_monitor is enough. SIGHUP reads passwords, certificate and key again. Logs go to
    /// standard error.
    Serve(Box<ServeArgs>),
    /// Decode a primary's WAL once and serve it to every logical subscriber
    ///
    /// Subscribers connect to the relay as they would to the primary, which checks their
    /// passwords; what is no streaming of a slot is passed through. Ends with SIGTERM or Ctrl-C;
    /// SIGHUP reads the configuration again. Logs go to standard error. psql to database lockstep
    /// on the same port is the console; SHOW HELP lists what it knows.
    #[command(disable_help_subcommand = true)]
    Relay(Box<RelayArgs>),
    /// Copy a database to another server, and keep for it what changes
    #[command(disable_help_subcommand = true)]
    Replica {
        /// What to do.
        #[command(subcommand)]
        command: ReplicaCommand,
    },
    /// Measure Lockstep against stock PostgreSQL
    #[command(disable_help_subcommand = true)]
    Bench {
        /// Which measurement.
        #[command(subcommand)]
        benchmark: Bench,
    },
    /// Record WAL and play it to standbys, compare clusters page by page, make WAL of every kind
    #[command(disable_help_subcommand = true)]
    Wal {
        /// What to do.
        #[command(subcommand)]
        command: WalCommand,
    },
    /// Print what a shell needs to complete commands and options
    ///
    /// For bash: lockstep completion bash > ~/.local/share/bash-completion/completions/lockstep; for
    /// zsh into a file _lockstep in a folder of fpath; for fish into
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
        /// The folder, which is made if it is missing
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
    /// Cleans up after a lockstep that was killed; started by lockstep itself.
    #[command(hide = true)]
    Reap,
}

/// Shells that commands can be completed in.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Benchmarks.
#[derive(Debug, Subcommand)]
pub enum Bench {
    #[command(flatten)]
    Measure(BenchCommand),
    /// TPC-C on a server that runs already: load it, run it, check it
    #[command(disable_help_subcommand = true)]
    Tpcc {
        /// What to do.
        #[command(subcommand)]
        command: TpccCommand,
    },
    /// Write docs/measurements.md and the README's table of claims from bench/results
    Measurements {
        /// The source tree to read and write
        #[arg(value_name = "FOLDER", default_value = ".")]
        tree: PathBuf,
    },
}

/// Parses the command line. Prints help and version, or one line about an error.
pub fn parse() -> Result<Command, ExitCode> {
    Cli::try_parse().map(|cli| cli.command).map_err(|error| {
        if matches!(
            error.kind(),
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
        ) {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        let args = std::env::args_os().skip(1);
        let args = args.map_while(|arg| arg.into_string().ok());
        exit::complain(&usage_line(&error, &subcommand(args)));
        ExitCode::from(exit::USAGE)
    })
}

/// Prints the script that makes a shell complete our commands.
pub fn complete(shell: Shell) -> anyhow::Result<()> {
    Ok(std::io::stdout().write_all(&completion(shell))?)
}

fn completion(shell: Shell) -> Vec<u8> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lockstep", &mut script);
    script
}

/// Writes man pages, a file for each command and for each of its subcommands.
pub fn write_man_pages(folder: &Path) -> anyhow::Result<()> {
    let write = || {
        std::fs::create_dir_all(folder)?;
        clap_mangen::generate_to(Cli::command(), folder)
    };
    write().with_context(|| format!("cannot write man pages into {}", folder.display()))
}

/// The first paragraph of the parser's message, which says what is wrong and with which argument,
/// and what may have been meant.
fn usage_line(error: &clap::Error, subcommand: &str) -> String {
    let text = error.render().to_string();
    let wrong = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "a command is missing",
        _ => text.split("\n\n").next().unwrap_or_default().trim(),
    };
    let wrong = wrong.strip_prefix("error: ").unwrap_or(wrong);
    let meant = match meant(error) {
        Some(meant) => format!("; did you mean {meant}?"),
        None => String::new(),
    };
    format!("{wrong}{meant}; see lockstep{subcommand} --help")
}

/// What is spelt most like the misspelt command, option or value.
fn meant(error: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind, ContextValue};
    let kinds = [
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedArg,
        ContextKind::SuggestedValue,
    ];
    match kinds.iter().find_map(|kind| error.get(*kind))? {
        ContextValue::String(one) => Some(one.clone()),
        ContextValue::Strings(all) => all.first().cloned(),
        _ => None,
    }
}

/// The subcommands at the beginning of the arguments, each with a space before it: theirs is the
/// help that says more.
fn subcommand(args: impl Iterator<Item = String>) -> String {
    let mut command = Cli::command();
    let mut words = String::new();
    for arg in args {
        let Some(next) = command.find_subcommand(&arg).cloned() else {
            break;
        };
        let _ = write!(words, " {arg}");
        command = next;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_misspelt_is_guessed() {
        for (line, meant) in [
            (vec!["doctr"], Some("doctor")),
            (vec!["wal", "recrod"], Some("record")),
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
            let text = usage_line(&error, "");
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
            let script = String::from_utf8(completion(*shell)).unwrap();
            let commands = Cli::command();
            for command in commands.get_subcommands().filter(|one| !one.is_hide_set()) {
                assert!(
                    script.contains(command.get_name()),
                    "{shell:?}: {}",
                    command.get_name()
                );
            }
            assert!(script.contains("logical-wal-cache"), "{shell:?}");
        }
    }

    #[test]
    fn each_command_has_a_man_page_that_says_what_its_help_says() {
        let folder = tempfile::tempdir().unwrap();
        write_man_pages(&folder.path().join("man1")).unwrap();
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
        assert!(page("lockstep-doctor").contains("a lag that comes and goes needs more"));
        assert!(page("lockstep-wal-record").contains("FOLDER"));
    }

    #[test]
    fn usage_errors_are_one_line() {
        for (line, help) in [
            (vec!["lockstep"], "lockstep --help"),
            (vec!["lockstep", "nothing"], "lockstep --help"),
            (
                vec!["lockstep", "demo", "--duration", "0"],
                "lockstep demo --help",
            ),
            (
                vec!["lockstep", "bench", "priority", "--cases", "none"],
                "lockstep bench priority --help",
            ),
            (vec!["lockstep", "bench"], "lockstep bench --help"),
        ] {
            let error = Cli::try_parse_from(&line).unwrap_err();
            let args = line.iter().skip(1).map(|&arg| arg.to_owned());
            let text = usage_line(&error, &subcommand(args));
            assert!(text.ends_with(&format!("; see {help}")), "{text}");
            assert!(
                text.len() > 20 && text.lines().count() <= 2,
                "{line:?}: {text}"
            );
        }
    }
}
