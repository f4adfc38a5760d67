//! `lockstep serve`: its arguments.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, value_parser};
use lockstep_lag::Node;
use lockstep_lag::monitor::Settings;
use lockstep_lag::nodes::Watched;
use lockstep_pool::agent::Servers;
use lockstep_pool::ask::Asking;
use lockstep_pool::member;
use lockstep_pool::run::Agency;
use lockstep_serve::forecast::Forecaster;
use lockstep_serve::history::{HistorySettings, Keeper};
use lockstep_serve::pool::PoolSource;
use lockstep_serve::run::{ServedCluster, Serving};
use lockstep_service::address::HostPort;
use lockstep_service::exit::Failure;
use lockstep_service::words::amount;

use crate::doors::DoorArgs;
use crate::nodes::NodesArgs;
use crate::pool::{AgencyArgs, MembersArgs, door_of};

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
    /// Largest size of pg_wal of a node, such as primary=100GB, or shop/db1=100GB if the nodes file names
    /// clusters: serve then says when it is reached; may be repeated
    #[arg(long, value_name = "NODE=SIZE", value_parser = wal_disk)]
    wal_disk: Vec<(String, u64)>,
    /// The pool.
    #[command(flatten)]
    pool: PoolArgs,
    /// What is kept.
    #[command(flatten)]
    history: HistoryArgs,
    /// Who may ask, TLS, and the log.
    #[command(flatten)]
    doors: DoorArgs,
    /// The agent of a node. The heading is for all that follows.
    #[command(flatten, next_help_heading = "An agent of lockstep pool")]
    agent: InnerAgentArgs,
}

/// The pool.
#[derive(Debug, Args)]
pub struct PoolArgs {
    /// Ask the agents of lockstep pool beside the primary and the standbys of the nodes file, and show the
    /// pool
    #[arg(long, requires = "nodes")]
    pool: bool,
    /// A file with user:password of the agents, which others must not be able to read; without a login
    /// agents tell no sessions
    #[arg(long, value_name = "FILE", requires = "pool")]
    agent_login: Option<PathBuf>,
    /// The agents speak TLS: their certificate authority, PEM
    #[arg(long, value_name = "FILE", requires = "pool")]
    agent_ca: Option<PathBuf>,
}

impl PoolArgs {
    /// The pool of a cluster, if it is wanted.
    fn source(&self, file: Option<&PathBuf>, cluster: Option<&str>) -> Result<Option<PoolSource>> {
        let Some(file) = file.filter(|_| self.pool) else {
            return Ok(None);
        };
        let members = MembersArgs {
            nodes: file.clone(),
            cluster: cluster.map(str::to_owned),
        };
        let asking = Asking::open(self.agent_login.as_deref(), self.agent_ca.as_deref())
            .map_err(|error| Failure::Usage(error.to_string()))?;
        // Patroni may not answer yet; a file that cannot be used is refused.
        if let Err(error) = members.members() {
            match error.downcast_ref::<Failure>() {
                Some(Failure::Unreachable(_)) => {}
                _ => return Err(error),
            }
        }
        let members = move || members.members().map_err(|error| error.to_string());
        Ok(Some(PoolSource {
            members: Box::new(members),
            asking,
        }))
    }
}

/// The argument, of use only with `--agent`.
fn with_agent(arg: clap::Arg) -> clap::Arg {
    arg.requires("agent")
}

/// The agent of a node, in this process.
#[derive(Debug, Args)]
#[command(
    mut_arg("bound", |arg| with_agent(arg)),
    mut_arg("settle", |arg| with_agent(arg)),
    mut_arg("rise", |arg| with_agent(arg)),
    mut_arg("max_session_age", |arg| with_agent(arg)),
    mut_arg("agent_check", |arg| with_agent(arg))
)]
pub struct InnerAgentArgs {
    /// Answer as lockstep pool agent does, too, beside this node of the nodes file: NODE or CLUSTER/NODE. All
    /// servers of its cluster in the file are asked for the primary, and the file says its door. Logins and
    /// TLS are those of serve, but state and lag are told without a login. SIGUSR1 drains the node, SIGUSR2
    /// lets it join again
    #[arg(long, value_name = "NODE", requires = "nodes")]
    agent: Option<String>,
    /// Address for the agent's HTTP; port 0 takes a free port, which the log names
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9872",
        value_parser = HostPort::parse,
        requires = "agent"
    )]
    agent_listen: HostPort,
    /// How it decides.
    #[command(flatten)]
    agency: AgencyArgs,
}

impl InnerAgentArgs {
    /// What the agent needs, if there is to be one.
    fn agency(&self, args: &ServeArgs, clusters: &[Watched]) -> Result<Option<Agency>> {
        let (Some(name), Some(file)) = (&self.agent, &args.nodes.nodes) else {
            return Ok(None);
        };
        let wrong = |words: String| Failure::Usage(format!("--agent: {words}"));
        let watched = cluster_of(name, clusters).map_err(wrong)?;
        if watched.members.is_some() {
            let words = "Patroni names the members of its cluster, which may change: run lockstep pool agent";
            return Err(wrong(words.to_owned()).into());
        }
        let cluster = watched.cluster.clone();
        let listed = MembersArgs {
            nodes: file.clone(),
            cluster: cluster.clone(),
        }
        .listed()?;
        let is_it = |node: &Node| is_called(node, cluster.as_deref(), name);
        let Some((node, entry)) = listed.iter().find(|(node, _)| is_it(node)) else {
            return Err(wrong(format!("{name} is no primary and no standby")).into());
        };
        let each = listed
            .iter()
            .map(|(node, _)| member::each_host(&node.conninfo));
        let candidates: Vec<Vec<_>> = each.collect::<Result<_, _>>().map_err(wrong)?;
        Ok(Some(Agency {
            listen: self.agent_listen.clone(),
            listen_option: "--agent-listen",
            agent_check: self.agency.agent_check.clone(),
            allowed_hosts: args.allow_host.clone(),
            rules: self.agency.rules(door_of(entry), None)?,
            servers: Servers {
                candidates: candidates.into_iter().flatten().collect(),
                node: node.conninfo.clone(),
            },
            max_session_age: self.agency.max_session_age,
        }))
    }
}

/// Whether a node of a cluster is meant by its name, or by CLUSTER/NODE.
fn is_called(node: &Node, cluster: Option<&str>, name: &str) -> bool {
    let in_cluster = |cluster| name == format!("{cluster}/{}", node.name);
    node.name == name || cluster.is_some_and(in_cluster)
}

/// The cluster with the only node of this name.
fn cluster_of<'c>(name: &str, clusters: &'c [Watched]) -> Result<&'c Watched, String> {
    let has = |it: &&Watched| {
        let cluster = it.cluster.as_deref();
        it.nodes.iter().any(|node| is_called(node, cluster, name))
    };
    let mut found = clusters.iter().filter(has);
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(format!("no node of the nodes file is called {name}")),
        (Some(_), Some(_)) => Err(format!(
            "several nodes are called {name}: write CLUSTER/NODE"
        )),
    }
}

/// What is kept.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Keep curves and incidents in this folder, which is created if it is missing; without it they
    /// end with this process. Each cluster that the nodes file names has a folder in it
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
    /// Largest size of their file, of each cluster, in megabytes; the oldest data goes first
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
    /// Takes the folder of a cluster, if one is wanted.
    fn keeper(&self, cluster: Option<&str>) -> Result<Option<Keeper>, Failure> {
        let settings = self.history.as_ref().map(|folder| HistorySettings {
            folder: cluster.map_or(folder.clone(), |name| folder.join(name)),
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

/// Sizes by node of a cluster. `NODE` is a node of the only cluster; of several it is `CLUSTER/NODE`.
fn limits(sizes: &[(String, u64)], cluster: Option<&str>) -> BTreeMap<String, u64> {
    let own = sizes.iter().map(|(name, size)| match cluster {
        Some(cluster) => {
            let rest = name
                .strip_prefix(cluster)
                .and_then(|rest| rest.strip_prefix('/'));
            (rest.unwrap_or(name).to_owned(), *size)
        }
        None => (name.clone(), *size),
    });
    own.collect()
}

/// An error if a size is that of no node, or of several. Who Patroni names may come later.
fn check_sizes(sizes: &[(String, u64)], clusters: &[Watched]) -> Result<(), Failure> {
    let full = |watched: &Watched, node: &Node| match &watched.cluster {
        Some(cluster) => format!("{cluster}/{}", node.name),
        None => node.name.clone(),
    };
    let nodes = clusters.iter().flat_map(|watched| {
        watched
            .nodes
            .iter()
            .map(move |node| (full(watched, node), node))
    });
    let nodes: Vec<_> = nodes.collect();
    let later = clusters.iter().any(|watched| watched.members.is_some());
    for (name, _) in sizes {
        let is_it = |(full, node): &&(String, &Node)| full == name || node.name == *name;
        let found = nodes.iter().filter(is_it).count();
        if found == 1 || (found == 0 && later) {
            continue;
        }
        let names: Vec<&str> = nodes.iter().map(|(full, _)| full.as_str()).collect();
        let names = names.join(", ");
        let words = match found {
            0 => format!("--wal-disk: no node is called {name}; there are {names}"),
            _ => format!(
                "--wal-disk: several nodes are called {name}: write CLUSTER/NODE of {names}"
            ),
        };
        return Err(Failure::Usage(words));
    }
    Ok(())
}

/// Serves until a signal ends it.
pub fn run(args: &ServeArgs) -> Result<()> {
    if args.window < LEAST_SAMPLES * args.interval {
        let least = LEAST_SAMPLES * args.interval;
        let words = format!("--window must be at least three intervals: {least}");
        return Err(Failure::Usage(words).into());
    }
    let clusters = args.nodes.clusters()?;
    check_sizes(&args.wal_disk, &clusters)?;
    let agency = args.agent.agency(args, &clusters)?;
    let doors = args.doors.open()?;
    let served = |watched: Watched| {
        let cluster = watched.cluster.as_deref();
        anyhow::Ok(ServedCluster {
            pool: args.pool.source(args.nodes.nodes.as_ref(), cluster)?,
            keeper: args.history.keeper(cluster)?,
            forecaster: Forecaster::new(limits(&args.wal_disk, cluster)),
            watched,
        })
    };
    let clusters = clusters.into_iter().map(served);
    let clusters: Vec<ServedCluster> = clusters.collect::<Result<_>>()?;
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
        clusters,
        agency,
        settings,
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_client::Conninfo;
    use lockstep_lab::assert_has;
    use lockstep_lag::Role;

    #[test]
    fn sizes_of_disks_are_read_or_refused() {
        let read = wal_disk("db=1=100GB").unwrap();
        assert_eq!(read, ("db=1".to_owned(), 100 << 30));
        for wrong in ["db1", "=1GB", "db1=", "db1=0", "db1=1G"] {
            assert!(wal_disk(wrong).is_err(), "{wrong}");
        }
        assert_eq!(limits(&[read], None)["db=1"], 100 << 30);
    }

    #[test]
    fn sizes_are_those_of_one_node() {
        let watched = |cluster: Option<&str>, name: &str| Watched {
            cluster: cluster.map(str::to_owned),
            nodes: vec![Node {
                name: name.to_owned(),
                role: Role::Primary,
                conninfo: Conninfo::parse("").unwrap(),
            }],
            membership: None,
            members: None,
        };
        let check = |name: &str, clusters: &[Watched]| {
            let checked = check_sizes(&[(name.to_owned(), 1)], clusters);
            checked.map_err(|error| error.to_string())
        };
        let one = [watched(None, "db1")];
        assert_eq!(check("db1", &one), Ok(()));
        let error = check("other", &one).unwrap_err();
        assert_has!(error, "no node is called other; there are db1");
        let two = [
            watched(Some("a"), "db1"),
            watched(Some("b"), "db1"),
            watched(Some("c"), "db3"),
        ];
        for name in ["a/db1", "b/db1", "c/db3", "db3"] {
            assert_eq!(check(name, &two), Ok(()), "{name}");
        }
        let error = check("db1", &two).unwrap_err();
        assert!(error.contains("several nodes are called db1"), "{error}");
        let sizes = [("a/db1".to_owned(), 5), ("db3".to_owned(), 6)];
        assert_eq!(limits(&sizes, Some("a"))["db1"], 5);
        assert_eq!(limits(&sizes, Some("c"))["db3"], 6);
        assert!(!limits(&sizes, Some("b")).contains_key("db1"));
    }
}
