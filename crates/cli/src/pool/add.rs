//! `lockstep pool add`: a new server if there is none, then the nodes file and HAProxy.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, value_parser};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lockstep_client::Conninfo;
use lockstep_lag::Role;
use lockstep_pool::ask::Asking;
use lockstep_pool::haproxy::{lines, name_of};
use lockstep_pool::member::{self, AgentPlace, Member, ServerPlace};
use lockstep_pool::newcomer::add::{Order, Stage, Told, add, is_done};
use lockstep_pool::newcomer::error::NewcomerError;
use lockstep_pool::newcomer::kept::{Kept, Step};
use lockstep_pool::newcomer::peer::Place;
use lockstep_pool::newcomer::settings;
use lockstep_pool::newcomer::warm::{Warmed, Warming};
use lockstep_pool::runtime::plan;
use lockstep_service::address::HostPort;
use lockstep_service::exit::Failure;
use lockstep_service::words::{amount, brief, figures, output};

use super::agent::DoorArg;
use super::haproxy::ServerArgs;
use super::members::{MembersArgs, door_of};
use super::runtime::{SocketArgs, failed};
use crate::name::complain;

/// Time between plain lines while something is copied or read.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Rates that pg_basebackup accepts.
const LEAST_RATE: u64 = 32 << 10;
const MOST_RATE: u64 = 1 << 30;

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
    /// HAProxy runs elsewhere: write the node into the file, and leave HAProxy alone
    #[arg(long)]
    no_proxy: bool,
    #[command(flatten)]
    new: NewArgs,
}

/// A server that is to be made.
#[derive(Debug, Args)]
#[command(next_help_heading = "A new server")]
struct NewArgs {
    /// Data folder of a new server: clone a peer into it, start it and warm it first
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Server of the nodes file to clone; by default the least loaded standby that streams, or the primary
    /// if there is none
    #[arg(long, value_name = "NODE", requires = "data")]
    from: Option<String>,
    /// Most bytes that are copied each second, from 32kB to 1GB; 0: no limit
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = rate, requires = "data")]
    max_rate: u64,
    /// Where a tablespace goes, as pg_basebackup takes it; may be repeated
    #[arg(long, value_name = "OLD=NEW", requires = "data")]
    tablespace_mapping: Vec<String>,
    /// A setting of the new server that is to differ from its peer's; may be repeated. Its port, and the
    /// folder of its socket, are those of --conninfo
    #[arg(long, value_name = "NAME=VALUE", value_parser = settings::parse, requires = "data")]
    set: Vec<(String, String)>,
    /// How the new server reaches the primary; by default as the nodes file does, without a password,
    /// which belongs into the .pgpass of the new server's account
    #[arg(long, value_name = "CONNINFO", requires = "data")]
    primary_conninfo: Option<String>,
    /// Name of the slot on the primary; by default the node's name
    #[arg(long, value_name = "NAME", requires = "data")]
    slot: Option<String>,
    /// Command that starts the server in --data and returns, such as 'sudo systemctl start
    /// postgresql@17-main'; pg_ctl by default
    #[arg(long, value_name = "COMMAND", requires = "data")]
    start: Option<String>,
    /// Folder of pg_basebackup and pg_ctl
    #[arg(long, value_name = "FOLDER", requires = "data")]
    bin_dir: Option<PathBuf>,
    /// Leave warming out
    #[arg(long, requires = "data")]
    no_warm: bool,
    /// Most bytes that warming reads each second
    #[arg(long, value_name = "SIZE", default_value = "100MB", value_parser = warm_rate, requires = "data")]
    warm_rate: u64,
    /// Sessions that warm at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u16).range(1..=64))]
    #[arg(requires = "data")]
    warm_sessions: u16,
}

fn rate(text: &str) -> Result<u64, String> {
    amount::between(text, LEAST_RATE, MOST_RATE)
}

fn warm_rate(text: &str) -> Result<u64, String> {
    match amount::parse(text)? {
        0 => Err("it is 1B at least; --no-warm leaves warming out".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Makes the server if it is a new one, writes the node into the file, and adds it to HAProxy.
pub fn run(args: &AddArgs) -> Result<()> {
    let conninfo = Conninfo::parse(&args.conninfo).context("--conninfo")?;
    let place = AgentPlace {
        agent: args.agent.clone(),
        agent_check: args.agent_check.clone(),
    };
    let new =
        Member::new(&args.node, &conninfo, &place, args.door.door()).map_err(Failure::Usage)?;
    let listed = check(args, &new)?;
    if let Some(data) = &args.new.data {
        let data = std::path::absolute(data).context("--data")?;
        if listed && is_done(&data, &conninfo) {
            output::print(&format!(
                "{} is in the pool already, and its server runs in {}: nothing was done",
                args.node,
                data.display()
            ));
            return Ok(());
        }
    }
    let kept = match &args.new.data {
        Some(data) => Some(make(args, &new, &conninfo, data)?),
        None => None,
    };
    let began = Instant::now();
    if !check(args, &new)? {
        let members = &args.members;
        let text = fs::read_to_string(&members.nodes)
            .map_err(|error| members.wrong(&error.to_string()))?;
        members.replace(&text, &format!("{text}{}", entry(args, &text)))?;
    }
    let (node, file) = (&args.node, args.members.nodes.display());
    let words = match args.no_proxy {
        true => format!(
            "{node}: written into {file}; lockstep pool haproxy --watch, beside HAProxy, adds it from there"
        ),
        false => {
            tell_proxy(args)?;
            format!(
                "{node}: HAProxy asks its agent now; for the next reload, write the configuration anew with \
                     lockstep pool haproxy"
            )
        }
    };
    output::print(&words);
    if let Some(kept) = kept {
        output::print(&took(began.elapsed()));
        kept.remove().map_err(exit)?;
        tell_of_agent(args, &new);
    }
    Ok(())
}

/// Whether the file has the node. One of its name with other values, or at its place, is refused.
fn check(args: &AddArgs, new: &Member) -> Result<bool> {
    let mut listed = args.members.members()?;
    match listed.iter().find(|member| member.name == args.node) {
        None => {
            listed.push(new.clone());
            member::check(&listed).map_err(|words| args.members.wrong(&words))?;
            Ok(false)
        }
        Some(member) if member == new => Ok(true),
        Some(_) => {
            let words = format!(
                "node {} is there with other values: remove it first",
                args.node
            );
            Err(args.members.wrong(&words).into())
        }
    }
}

fn tell_proxy(args: &AddArgs) -> Result<()> {
    let members = &args.members;
    let runtime = args.socket.runtime();
    let wanted =
        lines(&members.members()?, &args.servers.rules()).map_err(|words| members.wrong(&words))?;
    let name = name_of(&args.node);
    let statistics = runtime.statistics().map_err(failed)?;
    let missing = plan(&wanted, &statistics).map_err(failed)?.missing;
    for line in missing.into_iter().filter(|line| line.name == name) {
        runtime.add(line).map_err(failed)?;
    }
    Ok(())
}

/// A server without its agent gets no session, and nobody would know why.
fn tell_of_agent(args: &AddArgs, new: &Member) {
    let asking = Asking::open(None, args.servers.agent_ca.as_deref());
    let answer = asking.map_err(|error| error.to_string());
    if let Err(words) = answer.and_then(|asking| asking.ask(&new.agent, new.door)) {
        complain(&format!(
            "the agent of {}, {}, does not answer ({words}): start it, since the node gets no session without it",
            new.name, new.agent
        ));
    }
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
    if let Some(cluster) = &args.members.cluster {
        lines.push(format!("cluster = {}", text_of(cluster)));
    }
    for (key, place) in [("agent", &args.agent), ("agent_check", &args.agent_check)] {
        if let Some(place) = place {
            lines.push(format!("{key} = {}", text_of(&place.to_string())));
        }
    }
    lines.join("\n") + "\n"
}

/// Makes the server.
fn make(args: &AddArgs, new: &Member, conninfo: &Conninfo, data: &Path) -> Result<Kept> {
    let order = order(args, new, conninfo, data)?;
    let screen = Mutex::new(Screen::default());
    let made = add(&order, &|told| {
        screen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .hear(&told);
    });
    screen.lock().unwrap_or_else(PoisonError::into_inner).end();
    made.map_err(|error| {
        let file = Kept::beside(&order.data);
        if file.exists() && !matches!(error, NewcomerError::Busy { .. } | NewcomerError::OtherNode { .. }) {
            complain(&format!(
                "{} keeps how far this came: run the command again to go on. Until then slot {} keeps WAL on the \
                 primary; to give up, remove that file and --data, and drop the slot",
                file.display(),
                order.slot
            ));
        }
        exit(error).into()
    })
}

fn order(args: &AddArgs, new: &Member, conninfo: &Conninfo, data: &Path) -> Result<Order> {
    let mut places = Vec::new();
    for (node, entry) in args.members.listed()? {
        // A call that was cut short may have written it.
        if node.name != args.node {
            let place = Place {
                name: node.name,
                conninfo: node.conninfo,
                same_door: door_of(&entry) == args.door.door(),
            };
            places.push((node.role, place));
        }
    }
    let (primaries, standbys): (Vec<_>, Vec<_>) =
        (places.into_iter()).partition(|(role, _)| *role == Role::Primary);
    let primary = primaries.into_iter().map(|(_, place)| place).next();
    let primary = primary.ok_or_else(|| args.members.wrong("no primary is named"))?;
    let (port, sockets) = match &new.server {
        ServerPlace::Tcp(at) => (at.port, None),
        ServerPlace::Socket { folder, port } => (*port, Some(folder.clone())),
    };
    let given = &args.new;
    Ok(Order {
        node: args.node.clone(),
        data: std::path::absolute(data).context("--data")?,
        conninfo: conninfo.clone(),
        port,
        sockets,
        primary_conninfo: primary_conninfo(args, &primary)?,
        primary,
        standbys: standbys.into_iter().map(|(_, place)| place).collect(),
        from: given.from.clone(),
        slot: given
            .slot
            .clone()
            .unwrap_or_else(|| settings::slot_of(&args.node)),
        max_rate_kb: Some(given.max_rate >> 10).filter(|rate| *rate > 0),
        settings: given.set.clone(),
        tablespaces: given.tablespace_mapping.clone(),
        start: given.start.clone(),
        programs: given.bin_dir.clone(),
        warming: (!given.no_warm).then_some(Warming {
            bytes_per_s: given.warm_rate,
            sessions: usize::from(given.warm_sessions),
        }),
    })
}

/// How the new server reaches the primary. Its settings are a file that backups of it copy, so a password
/// comes in only if it is given for that.
fn primary_conninfo(args: &AddArgs, primary: &Place) -> Result<String> {
    if let Some(text) = &args.new.primary_conninfo {
        Conninfo::parse(text).context("--primary-conninfo")?;
        return Ok(text.clone());
    }
    if primary.conninfo.has_secret() {
        let words = "the nodes file has a password for the primary, which is not copied into the new server's \
                     settings: write it into the .pgpass of the server's account, and give --primary-conninfo";
        return Err(Failure::Usage(words.to_owned()).into());
    }
    let mut conninfo = primary.conninfo.clone().without("dbname");
    for option in ["host", "port", "user"] {
        if let (None, Some(value)) = (conninfo.get(option), conninfo.effective(option)) {
            conninfo = conninfo.with(option, &value)?;
        }
    }
    Ok(conninfo.with("application_name", &args.node)?.to_string())
}

/// The failure with its exit code.
fn exit(error: NewcomerError) -> Failure {
    use NewcomerError as E;
    let words = match std::error::Error::source(&error) {
        Some(source) if matches!(error, E::Io { .. }) => format!("{error}: {source}"),
        _ => error.to_string(),
    };
    match error {
        E::Peer { .. } | E::NoPrimary(_) | E::Rights { .. } | E::TooOld { .. } | E::NoPeer(_) => {
            Failure::Unreachable(words)
        }
        E::NoHotBlocks(_) | E::SlotThere(_) | E::PeerLate { .. } | E::Clone { .. } => {
            Failure::Unreachable(words)
        }
        E::Root(_)
        | E::Usage(_)
        | E::OtherCluster { .. }
        | E::TooLow { .. }
        | E::NoSetting { .. }
        | E::NoFolder(_) => Failure::Usage(words),
        E::NotEmpty(_) | E::OtherNode { .. } | E::SettingsElsewhere(_) => Failure::Usage(words),
        E::DiskFull { .. } | E::PortTaken { .. } | E::InUse(_) | E::Busy { .. } => {
            Failure::NoTarget(words)
        }
        E::Start(_) | E::Follow(_) | E::Io { .. } | E::Client { .. } => Failure::NoTarget(words),
    }
}

fn took(time: Duration) -> String {
    format!("  took {}", figures::seconds(time.as_secs_f64() * 1000.0))
}

/// The terminal while a server is made.
#[derive(Default)]
struct Screen {
    bar: Option<ProgressBar>,
    stage: Option<Stage>,
    last_line: Option<Instant>,
}

impl Screen {
    fn hear(&mut self, told: &Told<'_>) {
        match told {
            Told::Silent(error) => complain(&error.to_string()),
            Told::GoesOn(Step::Begun) => {
                output::print(
                    "an earlier call has begun this; its clone is not whole, and is made anew",
                );
            }
            Told::GoesOn(Step::Cloned | Step::Warm) => {
                output::print("an earlier call has begun this; its clone is whole");
            }
            Told::Begins(stage, of) => self.begins(*stage, of),
            Told::Progress(done, total) => self.progress(*done, *total),
            Told::Ended(_, time) => {
                self.end();
                output::print(&took(*time));
            }
            Told::Warmed(warmed, alone) => {
                self.end();
                for line in warmed_words(warmed, *alone) {
                    output::print(&line);
                }
            }
        }
    }

    fn begins(&mut self, stage: Stage, of: &str) {
        self.stage = Some(stage);
        self.last_line = None;
        output::print(&match stage {
            Stage::Clone => format!("cloning {of}"),
            Stage::Start => "starting the server".to_owned(),
            Stage::CatchUp => format!("catching up with {of}"),
            Stage::Warm => format!("reading what {of} has in memory"),
        });
        if matches!(stage, Stage::Clone | Stage::Warm) && std::io::stdout().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stdout());
            if let Ok(style) = ProgressStyle::with_template("  {bar:30} {msg}") {
                bar.set_style(style);
            }
            self.bar = Some(bar);
        }
    }

    fn progress(&mut self, done: u64, total: u64) {
        let line = match self.stage {
            Some(Stage::Warm) => format!(
                "{} of {}",
                figures::count(done as f64),
                figures::counted(total, "block")
            ),
            _ => {
                let bytes = |kb: u64| brief::bytes(kb as f64 * 1024.0);
                format!("{} of {}", bytes(done), bytes(total))
            }
        };
        if let Some(bar) = &self.bar {
            bar.set_length(total.max(1));
            bar.set_position(done);
            bar.set_message(line);
            return;
        }
        if self.last_line.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
            self.last_line = Some(Instant::now());
            output::print(&format!("  {line}"));
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// What was read, how long that would have taken without, and what was not read.
fn warmed_words(warmed: &Warmed, alone: Option<Duration>) -> Vec<String> {
    let read = figures::count(warmed.blocks_read as f64);
    let listed = figures::counted(warmed.blocks_listed, "block");
    let bytes = figures::bytes((warmed.blocks_read * warmed.block_size) as f64);
    let mut lines = vec![format!("  {read} of {listed} are in memory ({bytes})")];
    lines.extend(alone.map(|alone| {
        let time = figures::seconds(alone.as_secs_f64() * 1000.0);
        format!(
            "  readers alone would need {time} at least for nine tenths of that, at the rate at which they read \
             on its peer"
        )
    }));
    if !warmed.left_out.is_empty() {
        let names: Vec<_> = warmed.left_out.iter().map(String::as_str).collect();
        lines.push(format!(
            "  not warmed: {}, where the extension is missing: CREATE EXTENSION lockstep there, on the primary",
            names.join(", ")
        ));
    }
    lines
}
