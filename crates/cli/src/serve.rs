//! `lockstep serve`: its arguments.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, value_parser};
use lockstep_lag::monitor::Settings;
use lockstep_serve::history::{HistorySettings, Keeper};
use lockstep_serve::run::Serving;
use lockstep_service::address::HostPort;
use lockstep_service::exit::Failure;

use crate::doors::DoorArgs;
use crate::nodes::NodesArgs;

const APPLICATION_NAME: &str = "lockstep serve";

/// Fewest samples of a node in a diagnosis.
const LEAST_SAMPLES: u32 = 3;

/// `lockstep serve`
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Which servers.
    #[command(flatten)]
    nodes: NodesArgs,
    /// Address to listen on; port 0 takes a free port, which the log names
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9871", value_parser = HostPort::parse)]
    listen: HostPort,
    /// Another host name that requests may use while this listens on the loopback interface, such as
    /// that of a proxy in front; may be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Seconds between samples of a node
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = value_parser!(u32).range(1..=60))]
    interval: u32,
    /// Seconds that a diagnosis looks back; at least three intervals
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = value_parser!(u32).range(5..=600))]
    window: u32,
    /// Measure the time from a commit until it is visible on each standby
    ///
    /// Writes: commits a small logical message on the primary each interval.
    #[arg(long)]
    heartbeat: bool,
    /// What is kept.
    #[command(flatten)]
    history: HistoryArgs,
    /// Who may ask, TLS, and the log.
    #[command(flatten)]
    doors: DoorArgs,
}

/// What is kept.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Keep curves and incidents in this folder, which is created if it is missing; without it they
    /// end with this process
    #[arg(long, value_name = "FOLDER")]
    history: Option<PathBuf>,
    /// Days for which curves and incidents are kept
    #[arg(
        long,
        value_name = "DAYS",
        default_value_t = 7,
        value_parser = value_parser!(u32).range(1..=366),
        requires = "history"
    )]
    history_days: u32,
    /// Largest size of their file, in megabytes; the oldest data goes first
    #[arg(
        long,
        value_name = "MB",
        default_value_t = 256,
        value_parser = value_parser!(u32).range(16..=65_536),
        requires = "history"
    )]
    history_size: u32,
}

impl HistoryArgs {
    /// Takes the folder, if one is wanted.
    fn keeper(&self) -> Result<Option<Keeper>, Failure> {
        let settings = self.history.clone().map(|folder| HistorySettings {
            folder,
            days: self.history_days,
            megabytes: self.history_size,
        });
        let keeper = settings.map(|settings| Keeper::open(&settings));
        keeper
            .transpose()
            .map_err(|error| Failure::Usage(error.to_string()))
    }
}

/// Serves until a signal ends it.
pub fn run(args: &ServeArgs) -> Result<()> {
    if args.window < LEAST_SAMPLES * args.interval {
        let least = LEAST_SAMPLES * args.interval;
        let words = format!("--window must be at least three intervals: {least}");
        return Err(Failure::Usage(words).into());
    }
    let nodes = args.nodes.nodes()?;
    let doors = args.doors.open()?;
    let keeper = args.history.keeper()?;
    args.doors.start_log()?;
    let settings = Settings {
        application_name: APPLICATION_NAME.to_owned(),
        every: Duration::from_secs(args.interval.into()),
        window: Duration::from_secs(args.window.into()),
        heartbeat: args.heartbeat,
    };
    lockstep_serve::run::run(Serving {
        listen: args.listen.clone(),
        allowed_hosts: args.allow_host.clone(),
        doors,
        keeper,
        nodes,
        settings,
    })?;
    Ok(())
}
