//! `lockstep pool haproxy`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum, value_parser};
use lockstep_pool::haproxy::{ProxyRules, SessionsWhenOut, WhenAllLate, configuration};
use lockstep_service::address::HostPort;
use lockstep_service::exit::Failure;
use lockstep_service::words::{output, span};

use super::members::MembersArgs;

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
    /// The runtime socket
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/run/haproxy/lockstep.sock"
    )]
    socket: PathBuf,
    /// Most connections at once
    #[arg(long, value_name = "NUMBER", default_value_t = 2000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Time between two checks of a node
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = check_interval)]
    check_every: Duration,
    /// Who serves readers if no node of their door is in
    #[arg(long, value_enum, default_value = "freshest")]
    when_all_late: WhenAllLateArg,
    /// What becomes of readers' sessions on a node that is out; one that is only late, full or drained keeps
    /// them. Writers' sessions are always cut off
    #[arg(long, value_enum, default_value = "keep")]
    sessions_when_out: SessionsArg,
    /// Account, and group, that HAProxy changes to if root starts it, as Debian's service does
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The agents speak TLS: their certificate authority, PEM
    #[arg(long, value_name = "FILE")]
    agent_ca: Option<PathBuf>,
}

/// From 50 ms, which HAProxy and the agents can hold, to a minute.
fn check_interval(text: &str) -> Result<Duration, String> {
    let time = span::parse(text)?;
    match (50..=60_000).contains(&time.as_millis()) {
        true => Ok(time),
        false => Err("it is from 50ms to 1min".to_owned()),
    }
}

/// Prints the configuration.
pub fn run(args: &HaproxyArgs) -> Result<()> {
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
        socket: args.socket.clone(),
        connections: args.connections,
        check_every: args.check_every,
        when_all_late: match args.when_all_late {
            WhenAllLateArg::Freshest => WhenAllLate::Freshest,
            WhenAllLateArg::Primary => WhenAllLate::Primary,
            WhenAllLateArg::Refuse => WhenAllLate::Refuse,
        },
        sessions_when_out: match args.sessions_when_out {
            SessionsArg::Keep => SessionsWhenOut::Keep,
            SessionsArg::Close => SessionsWhenOut::Close,
        },
        user: args.user.clone(),
        agent_ca: args.agent_ca.clone(),
    };
    let text = configuration(&members, &rules).map_err(|words| args.members.wrong(&words))?;
    output::write(text.as_bytes());
    Ok(())
}
