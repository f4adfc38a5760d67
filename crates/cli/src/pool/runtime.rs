//! `lockstep pool drain`, `resume`, `add` and `remove`: a running HAProxy, through its runtime socket.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use lockstep_client::Conninfo;
use lockstep_pool::haproxy::{lines, name_of};
use lockstep_pool::member::{AgentPlace, Member};
use lockstep_pool::runtime::{Present, Runtime, RuntimeError, Statistics, plan};
use lockstep_service::address::HostPort;
use lockstep_service::exit::Failure;
use lockstep_service::toml_file;
use lockstep_service::words::{figures, output, quoted, span};

use super::agent::DoorArg;
use super::haproxy::ServerArgs;
use super::members::MembersArgs;

/// Time between two looks at HAProxy.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The back end of writes, which is not drained.
const WRITES: &str = "writes";

#[derive(Debug, Args)]
pub struct SocketArgs {
    /// HAProxy's runtime socket
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/run/haproxy/lockstep.sock"
    )]
    pub socket: PathBuf,
}

impl SocketArgs {
    pub fn runtime(&self) -> Runtime {
        Runtime {
            socket: self.socket.clone(),
        }
    }
}

#[derive(Debug, Args)]
pub struct WaitArgs {
    /// How long to wait until the node's sessions have ended
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = span::parse)]
    wait: Duration,
    /// Cut off the sessions that are left then
    #[arg(long)]
    close: bool,
}

/// `lockstep pool drain`
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Name of the node
    node: String,
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    wait: WaitArgs,
}

/// `lockstep pool resume`
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// Name of the node
    node: String,
    #[command(flatten)]
    socket: SocketArgs,
}

/// `lockstep pool add`
#[derive(Debug, Args)]
pub struct AddArgs {
    /// Name of the node
    node: String,
    #[command(flatten)]
    members: MembersArgs,
    /// Where its server is, as a conninfo string or URI, for the file
    #[arg(long, value_name = "CONNINFO")]
    conninfo: String,
    /// Agent of the node; the server's host and port 9872 by default
    #[arg(long, value_name = "HOST:PORT", value_parser = HostPort::parse)]
    agent: Option<HostPort>,
    /// Agent-check of its agent; the agent's host and its next port by default
    #[arg(long, value_name = "HOST:PORT", value_parser = HostPort::parse)]
    agent_check: Option<HostPort>,
    /// Which readers the node is for
    #[arg(long, value_enum, default_value = "fresh")]
    door: DoorArg,
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    servers: ServerArgs,
}

/// `lockstep pool remove`
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Name of the node
    node: String,
    #[command(flatten)]
    members: MembersArgs,
    #[command(flatten)]
    socket: SocketArgs,
    #[command(flatten)]
    wait: WaitArgs,
}

fn failed(error: RuntimeError) -> Failure {
    Failure::NoTarget(error.to_string())
}

/// The servers of a node, of which there must be some.
fn servers_of(runtime: &Runtime, node: &str) -> Result<Vec<Present>, Failure> {
    let all = runtime.statistics().map_err(failed)?.servers;
    let name = name_of(node);
    let ours: Vec<_> = (all.iter().filter(|server| server.name == name).cloned()).collect();
    if ours.is_empty() {
        let mut names: Vec<_> = all.iter().map(|server| server.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let words = format!(
            "HAProxy has no node {}, but {}",
            quoted(node),
            names.join(", ")
        );
        return Err(Failure::Usage(words));
    }
    Ok(ours)
}

/// Whether HAProxy sends writers to a node.
pub fn takes_writes(statistics: &Statistics, name: &str) -> bool {
    let mut servers = statistics.servers.iter();
    servers.any(|server| server.name == name && server.backend == WRITES && server.takes_sessions)
}

fn is_read(server: &Present) -> bool {
    server.backend != WRITES
}

/// Lets a node take no new session of readers, and waits until those that it has have ended.
pub fn drain(args: &DrainArgs) -> Result<()> {
    let runtime = args.socket.runtime();
    let servers = servers_of(&runtime, &args.node)?;
    for server in servers.iter().filter(|server| is_read(server)) {
        runtime.drain(server, true).map_err(failed)?;
    }
    let all = runtime.statistics().map_err(failed)?.servers;
    let is_reads = |server: &&Present| is_read(server) && server.takes_sessions;
    if all.iter().find(is_reads).is_none() {
        output::print("no node takes readers now");
    }
    await_end(&args.wait, &args.node, &runtime, |server| {
        Ok(!is_read(server) || server.sessions == 0)
    })?;
    output::print(&format!("{}: drained", args.node));
    Ok(())
}

pub fn resume(args: &ResumeArgs) -> Result<()> {
    let runtime = args.socket.runtime();
    for server in servers_of(&runtime, &args.node)?
        .iter()
        .filter(|server| is_read(server))
    {
        runtime.drain(server, false).map_err(failed)?;
    }
    output::print(&format!("{}: takes sessions again", args.node));
    Ok(())
}

/// How many sessions are left, in words.
fn left_words(sessions: u64) -> String {
    let (counted, are) = (
        figures::counted(sessions, "session"),
        figures::verb(sessions, "is", "are"),
    );
    format!("{counted} {are} left")
}

/// Waits until `is_done` is true of all servers of a node, and says how many sessions are left.
fn await_end(
    wait: &WaitArgs,
    node: &str,
    runtime: &Runtime,
    is_done: impl Fn(&Present) -> Result<bool, RuntimeError>,
) -> Result<(), Failure> {
    let began = Instant::now();
    let name = name_of(node);
    let (mut said, mut is_cut) = (None, false);
    loop {
        let all = runtime.statistics().map_err(failed)?.servers;
        let mut left = Vec::new();
        for server in all.into_iter().filter(|server| server.name == name) {
            if !is_done(&server).map_err(failed)? {
                left.push(server);
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        let sessions: u64 = left.iter().map(|server| server.sessions).sum();
        if said != Some(sessions) {
            output::print(&format!("{node}: {}", left_words(sessions)));
            said = Some(sessions);
        }
        let is_over = began.elapsed() >= wait.wait;
        if is_over && wait.close && !is_cut {
            is_cut = true;
            for server in &left {
                runtime.cut_off(server).map_err(failed)?;
            }
        } else if is_over && (!wait.close || began.elapsed() >= wait.wait + LOOK_EVERY * 10) {
            return Err(Failure::Behind(format!(
                "{} on {node} after {}; it takes no new one, and what is there goes on: run this again, or \
                    with \
                 --close",
                left_words(sessions),
                figures::seconds(wait.wait.as_secs_f64() * 1000.0)
            )));
        }
        thread::sleep(
            LOOK_EVERY
                .min(wait.wait.saturating_sub(began.elapsed()))
                .max(Duration::from_millis(20)),
        );
    }
}

/// Writes a node into the file, and adds it to HAProxy.
pub fn add(args: &AddArgs) -> Result<()> {
    let members = &args.members;
    let text =
        fs::read_to_string(&members.nodes).map_err(|error| members.wrong(&error.to_string()))?;
    let conninfo = Conninfo::parse(&args.conninfo).context("--conninfo")?;
    let place = AgentPlace {
        agent: args.agent.clone(),
        agent_check: args.agent_check.clone(),
    };
    let new =
        Member::new(&args.node, &conninfo, &place, args.door.door()).map_err(Failure::Usage)?;
    let listed = members.members()?;
    match listed.iter().find(|member| member.name == args.node) {
        None => members.replace(&text, &format!("{text}{}", entry(args, &text)))?,
        Some(member) if *member == new => {}
        Some(_) => {
            let words = format!(
                "node {} is there with other values: remove it first",
                args.node
            );
            return Err(members.wrong(&words).into());
        }
    }
    let runtime = args.socket.runtime();
    let wanted =
        lines(&members.members()?, &args.servers.rules()).map_err(|words| members.wrong(&words))?;
    let name = name_of(&args.node);
    let statistics = runtime.statistics().map_err(failed)?;
    let missing = plan(&wanted, &statistics).map_err(failed)?.missing;
    for line in missing.into_iter().filter(|line| line.name == name) {
        runtime.add(line).map_err(failed)?;
    }
    output::print(&format!(
        "{}: HAProxy asks its agent now; for the next reload, write the configuration anew with lockstep pool haproxy",
        args.node
    ));
    Ok(())
}

/// The lines of a node's table.
fn entry(args: &AddArgs, text: &str) -> String {
    // What JSON escapes, TOML reads.
    let text_of = |text: &str| serde_json::Value::from(text).to_string();
    let gap = if text.is_empty() || text.ends_with('\n') {
        "\n"
    } else {
        "\n\n"
    };
    let mut lines = vec![
        format!("{gap}[[node]]"),
        format!("name = {}", text_of(&args.node)),
        "role = \"standby\"".to_owned(),
        format!("conninfo = {}", text_of(&args.conninfo)),
        format!("door = {}", text_of(args.door.door().name())),
    ];
    for (key, place) in [("agent", &args.agent), ("agent_check", &args.agent_check)] {
        if let Some(place) = place {
            lines.push(format!("{key} = {}", text_of(&place.to_string())));
        }
    }
    lines.join("\n") + "\n"
}

/// Takes a node out of the file and of HAProxy, once its sessions have ended.
pub fn remove(args: &RemoveArgs) -> Result<()> {
    let members = &args.members;
    let runtime = args.socket.runtime();
    let statistics = runtime.statistics().map_err(failed)?;
    if takes_writes(&statistics, &name_of(&args.node)) {
        let words = format!(
            "{} takes the writes: promote another server first",
            args.node
        );
        return Err(Failure::Usage(words).into());
    }
    let text =
        fs::read_to_string(&members.nodes).map_err(|error| members.wrong(&error.to_string()))?;
    match toml_file::without_entry(&text, "node", "name", &args.node) {
        Some(rest) => members.replace(&text, &rest)?,
        // An earlier call may have taken it out, and sessions were left.
        None => {
            servers_of(&runtime, &args.node)?;
        }
    }
    await_end(&args.wait, &args.node, &runtime, |server| {
        runtime.retire(server)
    })?;
    output::print(&format!("{}: removed", args.node));
    Ok(())
}
