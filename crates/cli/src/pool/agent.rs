//! `lockstep pool agent`: its arguments.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use lockstep_client::Conninfo;
use lockstep_pool::agent::Servers;
use lockstep_pool::member;
use lockstep_pool::run::Agency;
use lockstep_pool::state::Door;
use lockstep_service::address::HostPort;
use lockstep_service::exit::Failure;
use lockstep_service::words::span;

use super::agency::AgencyArgs;
use crate::doors::DoorArgs;

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
    /// Time between two questions to the primary; by default a third of the bound, at most 1s, and up to half
    /// as long again while the node keeps up
    #[arg(long, value_name = "TIME", value_parser = span::parse)]
    interval: Option<Duration>,
    /// How it decides.
    #[command(flatten)]
    agency: AgencyArgs,
    /// Address for HTTP; port 0 takes a free port, which the log names
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9872", value_parser = HostPort::parse)]
    listen: HostPort,
    /// Another host name that requests may use while this listens on the loopback interface; may be
    /// repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Who may ask, TLS, and the log.
    #[command(flatten)]
    doors: DoorArgs,
}

impl AgentArgs {
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
    let rules = args.agency.rules(args.door.door(), args.interval)?;
    let servers = args.servers()?;
    let doors = args.doors.open()?;
    args.doors.start_log()?;
    let agency = Agency {
        listen: args.listen.clone(),
        listen_option: "--listen",
        agent_check: args.agency.agent_check.clone(),
        allowed_hosts: args.allow_host.clone(),
        rules,
        servers,
        max_session_age: args.agency.max_session_age,
    };
    lockstep_pool::run::run(agency, doors)?;
    Ok(())
}
