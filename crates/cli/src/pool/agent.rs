//! `lockstep pool agent`: its arguments.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use lockstep_client::Conninfo;
use lockstep_pool::agent::Servers;
use lockstep_pool::judge::Rules;
use lockstep_pool::member;
use lockstep_pool::run::Agency;
use lockstep_pool::state::Door;
use lockstep_service::address::HostPort;
use lockstep_service::exit::Failure;
use lockstep_service::words::span;

use crate::doors::DoorArgs;

/// Fewest intervals in a bound, and how many there are unless the interval is given: a current node is then
/// within half of the bound, and one question may be late.
const INTERVALS: u32 = 3;

/// Shortest and longest interval.
const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(1);

/// Least age from which sessions are ended.
const LEAST_AGE: Duration = Duration::from_secs(1);

/// Which readers a node is for.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum DoorArg {
    /// Readers of fresh data: the node is held to the bound
    Fresh,
    /// Long queries, for which replay waits: the node may be late
    Reports,
}

impl DoorArg {
    pub fn door(self) -> Door {
        match self {
            Self::Fresh => Door::Fresh,
            Self::Reports => Door::Reports,
        }
    }
}

/// Help of `--auth-file`: state and lag are told without a login.
const LOGINS: &str = "Logins for what is more than state and lag: a file with lines user:password, which \
    others \
                      must not be able to read";

/// `lockstep pool agent`
#[derive(Debug, Args)]
#[command(
    mut_arg("auth_file", |arg| arg.help(LOGINS)),
    mut_arg("tls_cert", |arg| arg.help("Certificate chain, PEM; turns TLS on for HTTP"))
)]
pub struct AgentArgs {
    /// The node beside which this runs, as a conninfo string or URI; .pgpass, service files and PG*
    /// variables work
    #[arg(long, value_name = "CONNINFO", default_value = "")]
    node: String,
    /// All servers of the cluster, host=a,b,c: each is asked whether it takes writes, and their histories say
    /// which of those that do is the primary
    #[arg(long, value_name = "CONNINFO")]
    primary: String,
    /// Which readers the node is for
    #[arg(long, value_enum, default_value = "fresh")]
    door: DoorArg,
    /// The oldest data that a node of door fresh may show; a time such as 100ms or 2s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = span::parse)]
    bound: Duration,
    /// Time between two questions to the primary; a third of the bound by default, at most 1s
    #[arg(long, value_name = "TIME", value_parser = span::parse)]
    interval: Option<Duration>,
    /// How long all must be well before the node is in; at least the bound
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = span::parse)]
    settle: Duration,
    /// Time in which the share of a newcomer, or of a node that returns, becomes whole
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = span::parse)]
    rise: Duration,
    /// Age from which sessions of clients on the node are ended while they are idle and the node is a
    /// standby, so that nodes that come get some; one in a hundred each second at most. The role needs
    /// pg_signal_backend. Never by default
    #[arg(long, value_name = "TIME", value_parser = session_age)]
    max_session_age: Option<Duration>,
    /// Address for HTTP; port 0 takes a free port, which the log names
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9872", value_parser = HostPort::parse)]
    listen: HostPort,
    /// Address for HAProxy's agent-check
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9873", value_parser = HostPort::parse)]
    agent_check: HostPort,
    /// Another host name that requests may use while this listens on the loopback interface; may be
    /// repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Who may ask, TLS, and the log.
    #[command(flatten)]
    doors: DoorArgs,
}

/// An age that sessions may reach before they are ended.
fn session_age(text: &str) -> Result<Duration, String> {
    match span::parse(text)? {
        age if age < LEAST_AGE => {
            Err("it is 1s at least; without it no session is ended".to_owned())
        }
        age => Ok(age),
    }
}

impl AgentArgs {
    fn rules(&self) -> Result<Rules, Failure> {
        let usage = |words: String| Failure::Usage(words);
        let most = self.bound / INTERVALS;
        let interval = self
            .interval
            .unwrap_or_else(|| most.clamp(SHORTEST, LONGEST));
        if most < SHORTEST {
            return Err(usage(format!(
                "a bound of {:?} is too short: give --bound of {:?} at least",
                self.bound,
                SHORTEST * INTERVALS
            )));
        }
        if interval > most || interval < SHORTEST {
            return Err(usage(format!(
                "an interval of {interval:?} does not suit a bound of {:?}: give --interval from {SHORTEST:?} to a \
                 third of --bound",
                self.bound
            )));
        }
        Ok(Rules {
            door: self.door.door(),
            bound: self.bound,
            interval,
            settle: self.settle.max(self.bound),
            rise: self.rise,
        })
    }

    /// Conninfos are parsed here and not by the parser of arguments, because that would print an invalid
    /// one with its password.
    fn servers(&self) -> Result<Servers> {
        let node = Conninfo::parse(&self.node).context("--node")?;
        let primary = Conninfo::parse(&self.primary).context("--primary")?;
        let candidates = member::each_host(&primary)
            .map_err(|words| Failure::Usage(format!("--primary: {words}")))?;
        Ok(Servers { candidates, node })
    }
}

/// Answers until a signal ends it.
pub fn run(args: &AgentArgs) -> Result<()> {
    let rules = args.rules()?;
    let servers = args.servers()?;
    let doors = args.doors.open()?;
    args.doors.start_log()?;
    lockstep_pool::run::run(Agency {
        listen: args.listen.clone(),
        agent_check: args.agent_check.clone(),
        allowed_hosts: args.allow_host.clone(),
        doors,
        rules,
        servers,
        max_session_age: args.max_session_age,
    })?;
    Ok(())
}
