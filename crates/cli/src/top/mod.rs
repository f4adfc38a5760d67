//! `lockstep top`: all nodes, live: how far behind each is, how that went, and why.
//!
//! | file | one job |
//! |---|---|
//! | `rows.rs` | what the monitor knows, as one row for each node, sorted |
//! | `figures.rs` | times, bytes and sparklines in few columns |
//! | `keys.rs`, `model.rs` | what keys mean; the state of the screen, without a terminal |
//! | `keyboard.rs` | keys, read from the terminal |
//! | `view/` | drawing |
//! | `screen.rs` | the terminal: taken, drawn on, and always given back |
//! | `plain.rs` | lines, for pipes and files |
//!
//! Reads only, but for `--heartbeat`. Nothing that is shown is older than the monitor's window,
//! but for sparklines, which go back an hour.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use lockstep_lag::monitor::{LEAST_WINDOW, Monitor, Settings, State};

use crate::args::Output;
use crate::doctor::verdict;
use crate::nodes::NodesArgs;

mod figures;
mod keyboard;
mod keys;
mod model;
mod plain;
mod rows;
mod screen;
#[cfg(test)]
mod tests;
mod view;

/// Shown by the servers.
const APPLICATION_NAME: &str = "lockstep top";

/// A window holds at least so many samples.
const LEAST_SAMPLES: u32 = 5;

/// How long the first sample may wait for nodes that have neither answered nor refused.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);

/// `lockstep top`
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Which servers.
    #[command(flatten)]
    nodes: NodesArgs,
    /// Seconds between samples, 0.5 to 60
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Seconds that causes look back, and at least five intervals
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = value_parser!(u32).range(LEAST_WINDOW.as_secs() as i64..=600))]
    window: u32,
    /// Show how long commits take to become visible on each standby
    ///
    /// Writes: a small logical message on the primary with each sample. Nothing is made that stays.
    #[arg(long)]
    heartbeat: bool,
    /// End after so many samples, with the exit codes of doctor: 0 if nothing lags, 6 if something
    /// does
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// text is a screen on a terminal, and lines elsewhere; json is one object a line and sample
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,
}

impl TopArgs {
    fn settings(&self) -> Settings {
        let window = Duration::from_secs(self.window.into());
        Settings {
            application_name: APPLICATION_NAME.to_owned(),
            every: self.interval,
            window: window.max(self.interval * LEAST_SAMPLES),
            heartbeat: self.heartbeat,
        }
    }
}

/// Runs it. Whoever quits has seen what there is; `--count` ends with a verdict.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    let monitor = Monitor::start(args.nodes.nodes()?, args.settings());
    let last = match args.output {
        Output::Text if screen::is_there() => screen::run(&monitor, args.count)?,
        output => plain::run(&monitor, output, args.count, &mut io::stdout().lock())?,
    };
    last.map_or(Ok(()), |state| verdict(&state.diagnosis))
}

/// Counts samples, from the first that says something about every node.
struct Samples {
    began: Instant,
    /// Number of the last state that counted.
    last: u64,
    counted: u64,
    most: Option<u64>,
}

impl Samples {
    fn new(most: Option<u64>) -> Self {
        Self {
            began: Instant::now(),
            last: 0,
            counted: 0,
            most,
        }
    }

    /// Whether this is a new sample.
    fn take(&mut self, state: &State) -> bool {
        let early = self.counted == 0 && self.began.elapsed() < FIRST_PATIENCE;
        if state.number <= self.last || (early && !all_known(state)) {
            return false;
        }
        self.last = state.number;
        self.counted += 1;
        true
    }

    /// The state with which to end, if it is the last.
    fn end(&self, state: &Arc<State>) -> Option<Arc<State>> {
        (self.most.is_some_and(|most| self.counted >= most)).then(|| Arc::clone(state))
    }
}

/// Every node has answered, or it is known why not.
fn all_known(state: &State) -> bool {
    let known = |node: &lockstep_lag::monitor::NodeState| node.usable || !node.troubles.is_empty();
    state.number > 0 && state.nodes.iter().all(known)
}

/// Reads `--interval`.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "write it as a number of seconds, such as 0.5 or 2".to_owned())?;
    match (0.5..=60.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("it must be from 0.5 to 60".to_owned()),
    }
}
