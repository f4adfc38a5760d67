//! `lockstep pool drain`, `resume` and `remove`: a running HAProxy, through its runtime socket.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use lockstep_lag::Role;
use lockstep_pool::haproxy::name_of;
use lockstep_pool::newcomer::settings::slot_of;
use lockstep_pool::runtime::{Present, Runtime, RuntimeError, Statistics};
use lockstep_pool::session;
use lockstep_service::exit::Failure;
use lockstep_service::toml_file;
use lockstep_service::words::{figures, output, quoted, span};

use super::members::MembersArgs;
use crate::name::complain;

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

pub fn failed(error: RuntimeError) -> Failure {
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
pub fn await_end(
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
                "{} on {node} after {}, and may go on; no new one comes: run this again, or with --close",
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
    let listed = members.members()?;
    let mut is_it = vec![("name", args.node.as_str())];
    is_it.extend(members.cluster.as_deref().map(|name| ("cluster", name)));
    match toml_file::without_entry(&text, "node", &is_it) {
        Some(rest) => members.replace(&text, &rest)?,
        None if listed.iter().any(|member| member.name == args.node) => {
            let words = "Patroni names it: take it out of Patroni's cluster";
            return Err(members.wrong(&format!("{}: {words}", args.node)).into());
        }
        // An earlier call may have taken it out, and sessions were left.
        None => {
            servers_of(&runtime, &args.node)?;
        }
    }
    await_end(&args.wait, &args.node, &runtime, |server| {
        runtime.retire(server)
    })?;
    output::print(&format!("{}: removed", args.node));
    tell_of_slot(members, &args.node)
}

/// Tells of the slot of a removed node. Its server may still use it, so it stays.
fn tell_of_slot(members: &MembersArgs, node: &str) -> Result<()> {
    let listed = members.listed()?;
    let mut servers = listed.iter().map(|(server, _)| server);
    let Some(primary) = servers.find(|server| server.role == Role::Primary) else {
        return Ok(());
    };
    let slot = slot_of(node);
    // The name has letters, digits and underscores.
    let sql = format!(
        "SELECT 1 FROM pg_catalog.pg_replication_slots WHERE slot_type = 'physical' AND slot_name = '{slot}'"
    );
    let session = session::open(&primary.conninfo, "lockstep pool");
    match session.and_then(|mut session| session.query(&sql)) {
        Ok(rows) if rows.is_empty() => {}
        Ok(_) => output::print(&format!(
            "{node}: slot {slot} stays on {0}, and keeps WAL there: once the server of {node} is stopped, run \
             SELECT pg_drop_replication_slot('{slot}') on {0}",
            primary.name
        )),
        Err(error) => complain(&format!(
            "cannot ask {} whether slot {slot} is left, which would keep WAL there: {error}",
            primary.name
        )),
    }
    Ok(())
}
