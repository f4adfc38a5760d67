//! `lockstep replica run`, `pause` and `resume`

use anyhow::{Context, Result};
use clap::Args;
use lockstep_client::Conninfo;
use lockstep_replica::apply::{Control, MOST_WRITERS};
use lockstep_replica::error::ReplicaError;
use lockstep_replica::follow::follow;
use lockstep_replica::state::State;
use lockstep_service::logging::{self, LogFormat, LogLevel};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{conninfo, failed};
use crate::exit::Usage;
use crate::live;

/// `lockstep replica run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The replica's name
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    target: super::TargetArgs,
    /// How to connect to the source, if it is not where it was at the creation
    #[arg(long, value_name = "CONNINFO")]
    source: Option<String>,
    /// Sessions that change the target at the same time; each needs a replication origin there
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(1..=MOST_WRITERS as i64))]
    writers: u8,
}

/// `lockstep replica pause` and `resume`
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The replica's name
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    target: super::TargetArgs,
}

/// Follows the source until SIGTERM or Ctrl-C.
pub fn run(args: &RunArgs) -> Result<()> {
    let target = conninfo("--target", &args.target.target)?;
    let source = args.source.as_deref();
    let source = source.map(|text| conninfo("--source", text)).transpose()?;
    logging::start(LogFormat::Text, LogLevel::Info).context("cannot start the log")?;
    let control = Control::default();
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot handle signals")?;
    let told = control.clone();
    // It waits for signals until the process ends.
    std::thread::spawn(move || {
        let mut asked = false;
        for signal in signals.forever() {
            if asked {
                // What is not committed is received again.
                std::process::exit(128 + signal);
            }
            asked = true;
            told.stop();
        }
    });
    let writers = usize::from(args.writers);
    follow(&args.name, &target, source.as_ref(), writers, &control).map_err(failed)
}

pub fn pause(args: &PauseArgs, paused: bool) -> Result<()> {
    let target = conninfo("--target", &args.target.target)?;
    let known = set_paused(&target, &args.name, paused).map_err(failed)?;
    if !known {
        return Err(Usage(format!("the target has no replica \"{}\"", args.name)).into());
    }
    live::print(&match paused {
        true => format!("replica {} pauses; its source keeps WAL for it", args.name),
        false => format!("replica {} goes on", args.name),
    });
    Ok(())
}

fn set_paused(target: &Conninfo, name: &str, paused: bool) -> Result<bool, ReplicaError> {
    match State::find(target)? {
        Some(mut state) => state.set_paused(name, paused),
        None => Ok(false),
    }
}
