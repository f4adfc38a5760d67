//! `lockstep serve`: its arguments.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, value_parser};
use lockstep_lag::Node;
use lockstep_lag::monitor::Settings;
use lockstep_serve::forecast::Forecaster;
use lockstep_serve::history::{HistorySettings, Keeper};
use lockstep_serve::run::Serving;
use lockstep_service::address::HostPort;
use lockstep_service::exit::Failure;
use lockstep_service::words::amount;

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
    /// Largest size of pg_wal of a node, such as primary=100GB: serve then says when it is reached; may be
    /// repeated
    #[arg(long, value_name = "NODE=SIZE", value_parser = wal_disk)]
    wal_disk: Vec<(String, u64)>,
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

/// Reads `NODE=SIZE`.
fn wal_disk(text: &str) -> Result<(String, u64), String> {
    let pair = text.rsplit_once('=').filter(|(node, _)| !node.is_empty());
    let (node, size) = pair.ok_or("it must be NODE=SIZE, such as primary=100GB")?;
    match amount::parse(size)? {
        0 => Err("the size must be more than 0".to_owned()),
        bytes => Ok((node.to_owned(), bytes)),
    }
}

/// Sizes by node. An error if no node has such a name.
fn limits(sizes: &[(String, u64)], nodes: &[Node]) -> Result<BTreeMap<String, u64>, Failure> {
    let unknown = sizes
        .iter()
        .find(|(name, _)| nodes.iter().all(|node| node.name != *name));
    if let Some((name, _)) = unknown {
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let names = names.join(", ");
        let words = format!("--wal-disk: no node is called {name}; there are {names}");
        return Err(Failure::Usage(words));
    }
    Ok(sizes.iter().cloned().collect())
}

/// Serves until a signal ends it.
pub fn run(args: &ServeArgs) -> Result<()> {
    if args.window < LEAST_SAMPLES * args.interval {
        let least = LEAST_SAMPLES * args.interval;
        let words = format!("--window must be at least three intervals: {least}");
        return Err(Failure::Usage(words).into());
    }
    let nodes = args.nodes.nodes()?;
    let limits = limits(&args.wal_disk, &nodes)?;
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
        forecaster: Forecaster::new(limits),
        nodes,
        settings,
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_client::Conninfo;
    use lockstep_lag::Role;

    #[test]
    fn sizes_of_disks_are_read_or_refused() {
        let read = wal_disk("db=1=100GB").unwrap();
        assert_eq!(read, ("db=1".to_owned(), 100 << 30));
        for wrong in ["db1", "=1GB", "db1=", "db1=0", "db1=1G"] {
            assert!(wal_disk(wrong).is_err(), "{wrong}");
        }
        let node = Node {
            name: "db=1".to_owned(),
            role: Role::Primary,
            conninfo: Conninfo::parse("").unwrap(),
        };
        let nodes = [node];
        assert_eq!(limits(&[read], &nodes).unwrap()["db=1"], 100 << 30);
        let error = limits(&[("other".to_owned(), 1)], &nodes).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("no node is called other; there are db=1")
        );
    }
}
