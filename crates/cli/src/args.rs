//! Arguments of every command. `--help` is the reference; a test compares it with
//! `tests/help.txt`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use lockstep_bench::trial::Variant;
use lockstep_lab::package::Major;
use lockstep_lab::workload::Workload;

use crate::bench::commit_levels::CommitLevelsArgs;
use crate::bench::decode::DecodeArgs;
use crate::bench::lag_sampling::LagSamplingArgs;
use crate::bench::load_curve::LoadCurveArgs;
use crate::bench::overhead::OverheadArgs;
use crate::bench::relay_catchup::RelayCatchupArgs;
use crate::bench::relay_fanout::RelayFanoutArgs;
use crate::bench::relay_mixed::RelayMixedArgs;
use crate::bench::replay::ReplayArgs;
use crate::bench::tpcc::TpccCommand;
use crate::bench::wal_player::WalPlayerArgs;
use crate::doctor::DoctorArgs;
use crate::exit;
use crate::relay::RelayArgs;
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
    /// in pg_monitor is enough. Exits with 0 if nothing lags, with 6 if something does.
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
    /// Cleans up after a lockstep that was killed; started by lockstep itself.
    #[command(hide = true)]
    Reap,
}

/// Benchmarks.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Replay lag under readers, stock and Lockstep alternating, from fresh data each time
    ///
    /// Writes priority.json and one plot for each case into the results folder, after every case.
    /// Cases not run keep their rows. fsync, full_page_writes, synchronous_commit and
    /// hot_standby_feedback are on; clients use the simple query protocol.
    Priority(PriorityArgs),
    /// Throughput of select-only readers with the throttle off and on, while it has nothing to do
    ///
    /// Writes overhead.json into the results folder. No replay, no more readers than fit their core;
    /// the throttle is turned on and off every few seconds while they go on.
    Overhead(OverheadArgs),
    /// How fast a standby replays fixed WAL of five kinds of writes, from cached to cold data
    ///
    /// Records the WAL of each kind on a private primary, then plays it to fresh standbys as fast as
    /// they take it. Writes replay.json and a plot into the results folder. Standbys have fsync,
    /// full_page_writes and synchronous_commit on; the recorded primary has fsync off, which does not
    /// change its WAL.
    Replay(ReplayArgs),
    /// Replay lag against the rate at which WAL is offered, idle and under readers
    ///
    /// Finds what a stock standby replays at most, then offers a tenth of that up to 1.6 times as
    /// much to fresh standbys. Writes load-curve.json and a plot for each case into the results folder.
    LoadCurve(LoadCurveArgs),
    /// CPU that decoding the same WAL once costs a primary, by output plugin
    ///
    /// Writes decode.json into the results folder. Slots of pgoutput and of plugin lockstep decode
    /// the same WAL; pg_recvlogical throws away what it receives.
    Decode(DecodeArgs),
    /// How long a commit waits for a replica at each level of synchronous_commit
    ///
    /// Writes commit-levels.json into the results folder. A physical and a logical replica in turn are
    /// synchronous; each commit has 1,000 rows. Measured by default, with the subscription's own
    /// synchronous_commit = on, which doctor proposes, and with wal_writer_delay = 10ms. All other
    /// settings are PostgreSQL's own. Rows of other majors stay in the file.
    CommitLevels(CommitLevelsArgs),
    /// CPU that watching 20 nodes costs their primary, at one sample a second
    ///
    /// Writes lag-sampling.json into the results folder. A light load on a primary with standbys and
    /// subscriptions, each in turn not watched and watched as top and serve do; CPU is that of the
    /// primary's processes. The monitor's own sessions there are the claim.
    LagSampling(LagSamplingArgs),
    /// What subscribers cost a primary under load, each with a slot of its own or all through a relay
    ///
    /// Writes relay-fanout.json into the results folder. pgbench writes as fast as it can on the
    /// primary's core, synchronous_commit off; subscribers and relay have the other core. Null
    /// subscribers throw away what they receive; real ones are subscriptions in databases of one
    /// server. Lag is from commit to arrival, or to being applied.
    RelayFanout(RelayFanoutArgs),
    /// How fast a subscriber catches up that was stopped during a long backlog
    ///
    /// Writes relay-catchup.json into the results folder. The relay, where there is one, has received
    /// the backlog when the subscriber starts. A subscription's server may use both cores: the
    /// primary has nothing to do meanwhile but to send.
    RelayCatchup(RelayCatchupArgs),
    /// Small and very large transactions: rows a second at each subscriber until all have caught up
    ///
    /// Writes relay-mixed.json into the results folder, a case for each size of the relay's cache.
    RelayMixed(RelayMixedArgs),
    /// What the WAL player sends to a receiver that throws everything away, and how it keeps a rate
    ///
    /// Records WAL of a private primary, then plays it unlimited and at set rates, over a Unix
    /// socket, player and receiver on a core each. A play that is shorter than a round is repeated
    /// over new connections. Writes wal-player.json into the results folder.
    WalPlayer(WalPlayerArgs),
    /// TPC-C on a server that runs already: load it, run it, check it
    #[command(disable_help_subcommand = true)]
    Tpcc {
        /// What to do.
        #[command(subcommand)]
        command: TpccCommand,
    },
}

/// Which servers to use.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// PostgreSQL major, 15 to 18, from /usr/lib/postgresql
    #[arg(
        long,
        value_name = "MAJOR",
        env = "PG",
        hide_env_values = true,
        default_value = "15"
    )]
    pub pg: Major,
    /// Staged extension: where `make install DESTDIR=…` put it [default: build/pgMAJOR/stage]
    #[arg(
        long,
        value_name = "FOLDER",
        env = "LOCKSTEP_EXTENSION_STAGE",
        hide_env_values = true
    )]
    pub extension_stage: Option<PathBuf>,
}

impl ServerArgs {
    pub fn stage(&self) -> PathBuf {
        self.extension_stage
            .clone()
            .unwrap_or_else(|| PathBuf::from(format!("build/pg{}/stage", self.pg)))
    }
}

/// `lockstep demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Seconds that each of the two standbys is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 45, value_parser = value_parser!(u32).range(1..=3600))]
    pub duration: u32,
    /// Clients that write to the primary
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = value_parser!(u32).range(1..=900))]
    pub writers: u32,
    /// Clients that read from the standby
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = value_parser!(u32).range(1..=900))]
    pub readers: u32,
    /// What readers do: one row by key, or a sum over 3,000 rows
    #[arg(long, value_enum, value_name = "QUERY", default_value_t = ReadQuery::Aggregate)]
    pub read_query: ReadQuery,
    /// Keep the primary and the Lockstep standby running, and say how to connect and remove them
    #[arg(long)]
    pub keep: bool,
    /// Format of the result on standard output; with json, progress goes to standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
    /// Where to write the report
    #[arg(long, value_name = "FILE", default_value = "build/demo/report.html")]
    pub report: PathBuf,
    /// Which servers to use.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `lockstep bench priority`
#[derive(Debug, Args)]
pub struct PriorityArgs {
    /// Rounds of each case but aggregate-10min, which has one
    #[arg(long, value_name = "N", env = "BENCH_ROUNDS", hide_env_values = true, default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Seconds measured in each round
    #[arg(long, value_name = "SECONDS", env = "BENCH_SECONDS", hide_env_values = true, default_value_t = 60, value_parser = value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Seconds under full load before the measurement begins
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = value_parser!(u32).range(0..=600))]
    pub warmup: u32,
    /// Seconds measured in aggregate-10min [default: ten times --seconds]
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u32).range(1..=36000))]
    pub long_seconds: Option<u32>,
    /// Cases to run, separated by commas
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = Case::ALL)]
    pub cases: Vec<Case>,
    /// Variants to run, separated by commas
    #[arg(long, value_enum, value_name = "VARIANTS", value_delimiter = ',', default_values_t = [VariantName::Stock, VariantName::Lockstep])]
    pub variants: Vec<VariantName>,
    /// Clients that write to the primary
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = value_parser!(u32).range(1..=900))]
    pub writers: u32,
    /// Clients that read from the standby
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = value_parser!(u32).range(1..=900))]
    pub readers: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
    /// A setting for the Lockstep standby, for experiments; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
    /// Folder for priority.json and the plots
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    pub results: PathBuf,
    /// Which servers to use.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What readers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReadQuery {
    /// One row by primary key.
    Select,
    /// A sum over 3,000 consecutive rows.
    Aggregate,
}

impl ReadQuery {
    pub fn workload(self) -> Workload {
        match self {
            Self::Select => Workload::Select,
            Self::Aggregate => Workload::Aggregate,
        }
    }

    pub fn describe(self) -> &'static str {
        match self {
            Self::Select => "one row by primary key",
            Self::Aggregate => "a sum over 3,000 consecutive rows",
        }
    }
}

/// Format of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Cases of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// Sums over 3,000 rows.
    Aggregate,
    /// One row by key.
    Select,
    /// As aggregate, without replay priority.
    ThrottleOnly,
    /// As aggregate, one long round, with bloat over time.
    #[value(name = "aggregate-10min")]
    Aggregate10min,
}

impl Case {
    /// In the order in which they run.
    pub const ALL: [Self; 4] = [
        Self::Aggregate,
        Self::Select,
        Self::ThrottleOnly,
        Self::Aggregate10min,
    ];

    /// Its name in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aggregate => "aggregate",
            Self::Select => "select",
            Self::ThrottleOnly => "throttle-only",
            Self::Aggregate10min => "aggregate-10min",
        }
    }
}

/// Variants of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VariantName {
    /// PostgreSQL as it is.
    Stock,
    /// With the extension.
    Lockstep,
}

impl VariantName {
    pub fn variant(self) -> Variant {
        match self {
            Self::Stock => Variant::Stock,
            Self::Lockstep => Variant::Lockstep,
        }
    }
}

pub fn setting(text: &str) -> Result<(String, String), String> {
    let valid = |name: &str| {
        !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
    };
    match text.split_once('=') {
        Some((name, value)) if valid(name) => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
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
        exit::complain(&usage_line(&error));
        ExitCode::from(exit::USAGE)
    })
}

/// The first paragraph of the parser's message: what is wrong, and with which argument.
fn usage_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let wrong = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "a command is missing",
        _ => text.split("\n\n").next().unwrap_or_default().trim(),
    };
    let wrong = wrong.strip_prefix("error: ").unwrap_or(wrong);
    format!("{wrong}; see lockstep --help")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn settings_are_name_and_value() {
        assert_eq!(
            setting("lockstep.read_throttle=off").unwrap(),
            ("lockstep.read_throttle".to_owned(), "off".to_owned())
        );
        assert_eq!(setting("a=b=c").unwrap().1, "b=c");
        for text in ["", "=x", "name", "bad name=x", "a'b=x"] {
            assert!(setting(text).is_err(), "{text}");
        }
    }

    #[test]
    fn usage_errors_are_one_line() {
        for line in [
            vec!["lockstep"],
            vec!["lockstep", "nothing"],
            vec!["lockstep", "demo", "--duration", "0"],
            vec!["lockstep", "demo", "--pg", "14"],
            vec!["lockstep", "bench", "priority", "--cases", "none"],
            vec!["lockstep", "bench"],
        ] {
            let error = Cli::try_parse_from(&line).unwrap_err();
            let text = usage_line(&error);
            assert!(
                text.len() > 20 && text.lines().count() <= 2,
                "{line:?}: {text}"
            );
        }
    }
}
