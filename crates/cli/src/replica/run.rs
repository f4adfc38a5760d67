//! `lockstep replica run`, `pause` and `resume`

use std::path::{Path, PathBuf};
use std::sync::mpsc;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_apply::{
    Control, LEAST_LIMIT, LEAST_MEMORY, MEMORY, MOST_WRITERS, SpoolConfig, Writers,
};
use lockstep_client::Conninfo;
use lockstep_replica::error::ReplicaError;
use lockstep_replica::lifecycle::daemon::Daemon;
use lockstep_replica::lifecycle::follow::{Following, follow};
use lockstep_replica::state::{LeftOut, MadeByHand, ReplicaState};
use lockstep_service::exit::Failure;
use lockstep_service::logging::{self, LogFormat, LogLevel};
use lockstep_service::words::{amount, output};
use lockstep_wire::Lsn;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{error, info};

use super::config::Config;
use super::{conninfo, failed, metrics};

/// `lockstep replica run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The replica's name
    #[arg(
        value_name = "NAME",
        value_parser = super::replica_name,
        required_unless_present = "config",
        conflicts_with = "config"
    )]
    name: Option<String>,
    /// How to connect to the target database, as a conninfo string or URI
    #[arg(long, value_name = "CONNINFO")]
    #[arg(required_unless_present = "config", conflicts_with = "config")]
    target: Option<String>,
    /// How to connect to the source, if it has moved since the creation
    #[arg(long, value_name = "CONNINFO", conflicts_with = "config")]
    source: Option<String>,
    /// Most memory for changes that are received and not yet applied [default: 256MB]
    #[arg(long, value_name = "SIZE", value_parser = memory, conflicts_with = "config")]
    memory: Option<usize>,
    /// Sessions that change the target at the same time, at most 16, or auto: as many as help, at most 8.
    /// Each needs a replication origin there [default: auto]
    #[arg(long, value_name = "N", value_parser = writers, conflicts_with = "config")]
    writers: Option<Writers>,
    /// Folder for a spool, for this replica alone: it keeps changes on disk until the target has them,
    /// so that the source need not keep WAL for them
    #[arg(
        long,
        value_name = "FOLDER",
        requires = "spool_limit",
        conflicts_with = "config"
    )]
    spool_dir: Option<PathBuf>,
    /// Largest size of the spool, such as 20GB; when it is full, the source keeps WAL. 0: no spool
    #[arg(long, value_name = "SIZE", value_parser = spool_limit, conflicts_with = "config")]
    #[arg(requires = "spool_dir")]
    spool_limit: Option<u64>,
    /// A TOML file with a [[replica]] for each replica: name and target; optionally source, memory,
    /// writers, spool_dir and spool_limit
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// `lockstep replica pause` and `resume`
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The replica's name
    #[arg(value_name = "NAME", value_parser = super::replica_name)]
    name: String,
    #[command(flatten)]
    target: super::TargetArgs,
}

/// `lockstep replica resume`
#[derive(Debug, Args)]
pub struct ResumeArgs {
    #[command(flatten)]
    of: PauseArgs,
    /// Position of a command of the source, as the replica's error names it, which somebody has made on the
    /// target by hand: it is not run there
    #[arg(long, value_name = "LSN")]
    made_by_hand: Option<Lsn>,
    /// Table whose changes the target refuses, as the replica's error names it: it gets no more changes
    #[arg(long, value_name = "SCHEMA.TABLE", conflicts_with = "made_by_hand")]
    leave_out: Option<String>,
}

/// Memory for changes, as text.
pub fn memory(text: &str) -> Result<usize, String> {
    let bytes = usize::try_from(amount::parse(text)?).unwrap_or(usize::MAX);
    match bytes >= LEAST_MEMORY {
        true => Ok(bytes),
        false => Err("give at least 1MB".to_owned()),
    }
}

/// A spool's limit, as text.
pub fn spool_limit(text: &str) -> Result<u64, String> {
    match amount::parse(text)? {
        bytes if bytes == 0 || bytes >= LEAST_LIMIT => Ok(bytes),
        _ => Err("give at least 1MB, or 0 for no spool".to_owned()),
    }
}

/// The spool of a folder and its limit, which come together.
pub fn spool(folder: Option<&Path>, limit: Option<u64>) -> Option<SpoolConfig> {
    let limit = limit.filter(|limit| *limit > 0)?;
    let folder = folder?.to_owned();
    Some(SpoolConfig { folder, limit })
}

/// A number of writers, as text.
pub fn writers(text: &str) -> Result<Writers, String> {
    if text == "auto" {
        return Ok(Writers::Auto);
    }
    let given = text.parse().ok();
    let given = given.filter(|given| (1..=MOST_WRITERS).contains(given));
    let given = given.ok_or_else(|| format!("give auto, or 1 to {MOST_WRITERS}"));
    given.map(Writers::Number)
}

pub fn run(args: &RunArgs) -> Result<()> {
    match (&args.config, &args.name, &args.target) {
        (Some(file), ..) => run_file(file),
        (None, Some(name), Some(target)) => run_one(args, name, target),
        (None, ..) => {
            Err(Failure::Usage("name a replica and its --target, or a --config".to_owned()).into())
        }
    }
}

/// Follows one source until SIGTERM or Ctrl-C.
fn run_one(args: &RunArgs, name: &str, target: &str) -> Result<()> {
    let what = Following {
        name: name.to_owned(),
        target: conninfo("--target", target)?,
        source: super::source(args.source.as_deref())?,
        memory: args.memory.unwrap_or(MEMORY),
        writers: args.writers.unwrap_or_default(),
        spool: spool(args.spool_dir.as_deref(), args.spool_limit),
    };
    logging::start(LogFormat::Text, LogLevel::Info).context("cannot start the log")?;
    let control = Control::default();
    let told = control.clone();
    on_signals(&[SIGINT, SIGTERM], move |_| told.stop())?;
    follow(&what, &control).map_err(failed)
}

/// Follows all replicas of a file until SIGTERM or Ctrl-C.
fn run_file(file: &Path) -> Result<()> {
    let config = Config::read(file)?;
    logging::start(config.log_format, config.log_level).context("cannot start the log")?;
    let (asked, signals) = mpsc::channel();
    on_signals(&[SIGINT, SIGTERM, SIGHUP], move |signal| {
        // Nobody hears it any more once the end has begun.
        let _ = asked.send(signal);
    })?;
    let mut daemon = Daemon::default();
    let _served = match &config.metrics {
        Some(at) => Some(metrics::serve(at, daemon.seen())?),
        None => None,
    };
    daemon.follow(&config.replicas);
    // The sender is not dropped before the process ends.
    for signal in signals {
        if signal != SIGHUP {
            break;
        }
        match Config::read(file) {
            Ok(config) => {
                info!(
                    replicas = config.replicas.len(),
                    "the configuration is read again"
                );
                daemon.follow(&config.replicas);
            }
            Err(error) => error!(%error, "the configuration cannot be used; the old one stays"),
        }
    }
    info!("ending; a second signal ends at once");
    daemon.end();
    Ok(())
}

/// Calls `told` for each signal, until the process ends. A second one that asks for the end ends the
/// process at once: what is not committed is received again.
pub(super) fn on_signals(wanted: &[i32], told: impl Fn(i32) + Send + 'static) -> Result<()> {
    let mut signals = Signals::new(wanted).context("cannot handle signals")?;
    std::thread::spawn(move || {
        let mut asked = false;
        for signal in signals.forever() {
            if signal != SIGHUP {
                if asked {
                    std::process::exit(128 + signal);
                }
                asked = true;
            }
            told(signal);
        }
    });
    Ok(())
}

pub fn resume(args: &ResumeArgs) -> Result<()> {
    let name = &args.of.name;
    let words = match (args.made_by_hand, &args.leave_out) {
        (None, None) => None,
        (command, table) => {
            let target = conninfo("--target", &args.of.target.target)?;
            let state = ReplicaState::find(&target).map_err(failed)?;
            let words = state.map(|mut state| match (command, table) {
                (Some(command), _) => made_by_hand(&mut state, name, command),
                (None, Some(table)) => leave_out(&mut state, name, table),
                (None, None) => Ok(None),
            });
            let words = words.transpose().map_err(failed)?;
            words.unwrap_or_else(|| Some(not_followed(name)))
        }
    };
    match words {
        Some(words) => Err(Failure::Usage(words).into()),
        None => pause(&args.of, false),
    }
}

fn not_followed(name: &str) -> String {
    format!("the target has no replica \"{name}\" that follows changes of the schema (--ddl)")
}

/// Keeps that a command was made by hand. Returns why that cannot be.
fn made_by_hand(
    state: &mut ReplicaState,
    name: &str,
    command: Lsn,
) -> Result<Option<String>, ReplicaError> {
    Ok(match state.set_made_by_hand(name, command)? {
        MadeByHand::Kept => None,
        MadeByHand::Elsewhere(Some(stands)) => Some(format!(
            "replica \"{name}\" stands at no command at {command}: give the position of its error, {stands}"
        )),
        MadeByHand::Elsewhere(None) => Some(format!(
            "replica \"{name}\" stands at no command, so none at {command} can be left out; lockstep replica \
             status says how it stands"
        )),
        MadeByHand::NotFollowed => Some(not_followed(name)),
    })
}

/// Leaves a table out. Returns why that cannot be.
fn leave_out(
    state: &mut ReplicaState,
    name: &str,
    table: &str,
) -> Result<Option<String>, ReplicaError> {
    Ok(match state.leave_out(name, table)? {
        LeftOut::Kept => None,
        LeftOut::Elsewhere(Some(stands)) => Some(format!(
            "replica \"{name}\" does not stand at table {table}, but at {stands}"
        )),
        LeftOut::Elsewhere(None) => Some(format!(
            "replica \"{name}\" stands at a change of no table, so {table} cannot be left out; lockstep replica \
             status says how it stands"
        )),
        LeftOut::NotFollowed => Some(not_followed(name)),
    })
}

pub fn pause(args: &PauseArgs, paused: bool) -> Result<()> {
    let target = conninfo("--target", &args.target.target)?;
    let known = set_paused(&target, &args.name, paused).map_err(failed)?;
    if !known {
        return Err(Failure::Usage(format!("the target has no replica \"{}\"", args.name)).into());
    }
    output::print(&match paused {
        true => format!(
            "replica {} pauses; its source keeps WAL for it, unless it has a spool",
            args.name
        ),
        false => format!("replica {} goes on", args.name),
    });
    Ok(())
}

fn set_paused(target: &Conninfo, name: &str, paused: bool) -> Result<bool, ReplicaError> {
    match ReplicaState::find(target)? {
        Some(mut state) => state.set_paused(name, paused),
        None => Ok(false),
    }
}
