//! `lockstep pool haproxy`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum, value_parser};
use lockstep_pool::haproxy::{
    ProxyRules, ServerRules, SessionsWhenOut, WhenAllLate, configuration,
};
use lockstep_service::address::HostPort;
use lockstep_service::exit::Failure;
use lockstep_service::words::{output, span};

use super::members::MembersArgs;
use super::runtime::SocketArgs;
use super::watch;

/// Who serves readers if no node of their door is in.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum WhenAllLateArg {
    /// Late nodes, by how late they are
    Freshest,
    /// The primary
    Primary,
    /// Nobody
    Refuse,
}

/// What becomes of sessions of a node that is out.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum SessionsArg {
    /// Sessions stay
    Keep,
    /// Sessions are cut off
    Close,
}

/// `lockstep pool haproxy`
#[derive(Debug, Args)]
pub struct HaproxyArgs {
    #[command(flatten)]
    members: MembersArgs,
    /// Host or address on which HAProxy listens
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    listen: String,
    /// Port for writes
    #[arg(long, value_name = "PORT", default_value_t = 6432, value_parser = value_parser!(u16).range(1..))]
    writes_port: u16,
    /// Port for reads of fresh data
    #[arg(long, value_name = "PORT", default_value_t = 6433, value_parser = value_parser!(u16).range(1..))]
    reads_port: u16,
    /// Port for reports
    #[arg(long, value_name = "PORT", default_value_t = 6434, value_parser = value_parser!(u16).range(1..))]
    reports_port: u16,
    /// Address of the page of statistics, which has no login
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6435", value_parser = HostPort::parse)]
    statistics: HostPort,
    #[command(flatten)]
    socket: SocketArgs,
    /// Most connections at once
    #[arg(long, value_name = "NUMBER", default_value_t = 2000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Who serves readers if no node of their door is in
    #[arg(long, value_enum, default_value = "freshest")]
    when_all_late: WhenAllLateArg,
    /// Account, and group, that HAProxy changes to if root starts it, as Debian's service does
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    servers: ServerArgs,
    /// Do not write the configuration: let the running HAProxy follow the file, through its runtime socket,
    /// until this is ended
    #[arg(long)]
    watch: bool,
}

/// How HAProxy treats each node.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Time between two checks of a node
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = check_interval)]
    check_every: Duration,
    /// What becomes of readers' sessions on a node that is out; one that is only late, full or drained keeps
    /// them. Writers' sessions are always cut off
    #[arg(long, value_enum, default_value = "keep")]
    sessions_when_out: SessionsArg,
    /// The agents speak TLS: their certificate authority, PEM
    #[arg(long, value_name = "FILE")]
    pub agent_ca: Option<PathBuf>,
}

impl ServerArgs {
    pub fn rules(&self) -> ServerRules {
        ServerRules {
            check_every: self.check_every,
            sessions_when_out: match self.sessions_when_out {
                SessionsArg::Keep => SessionsWhenOut::Keep,
                SessionsArg::Close => SessionsWhenOut::Close,
            },
            agent_ca: self.agent_ca.clone(),
        }
    }
}

/// From 50 ms, which HAProxy and the agents can hold, to a minute.
fn check_interval(text: &str) -> Result<Duration, String> {
    let time = span::parse(text)?;
    match (50..=60_000).contains(&time.as_millis()) {
        true => Ok(time),
        false => Err("it is from 50ms to 1min".to_owned()),
    }
}

/// Prints the configuration, or follows the file.
pub fn run(args: &HaproxyArgs) -> Result<()> {
    if args.watch {
        return watch::follow(&args.members, args.servers.rules(), args.socket.runtime());
    }
    let ports = [
        args.writes_port,
        args.reads_port,
        args.reports_port,
        args.statistics.port,
    ];
    let distinct: BTreeSet<u16> = ports.into_iter().collect();
    if distinct.len() < ports.len() {
        let words = "two doors, or a door and the page of statistics, have one port: give each of \
                     --writes-port, --reads-port, --reports-port and --statistics its own";
        return Err(Failure::Usage(words.to_owned()).into());
    }
    let members = args.members.members()?;
    let rules = ProxyRules {
        host: args.listen.clone(),
        writes_port: args.writes_port,
        reads_port: args.reads_port,
        reports_port: args.reports_port,
        statistics: args.statistics.clone(),
        socket: args.socket.socket.clone(),
        connections: args.connections,
        when_all_late: match args.when_all_late {
            WhenAllLateArg::Freshest => WhenAllLate::Freshest,
            WhenAllLateArg::Primary => WhenAllLate::Primary,
            WhenAllLateArg::Refuse => WhenAllLate::Refuse,
        },
        user: args.user.clone(),
        servers: args.servers.rules(),
    };
    let text = configuration(&members, &rules).map_err(|words| args.members.wrong(&words))?;
    output::write(text.as_bytes());
    Ok(())
}
