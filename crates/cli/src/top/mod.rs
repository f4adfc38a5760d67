//! `lockstep top` shows all nodes live: how far behind each is, how that has changed, and why.
//!
//! | file | what |
//! |---|---|
//! | `rows.rs` | the monitor's state as sorted rows, one or more for each node |
//! | `figures.rs` | times, bytes and sparklines, in few columns |
//! | `keys.rs`, `model.rs` | the meaning of keys; the state of the screen, without a terminal |
//! | `keyboard.rs` | reading keys from the terminal |
//! | `view/` | drawing |
//! | `screen.rs` | the terminal: set up, drawn on, and always restored |
//! | `plain.rs` | plain lines, for pipes and files |
//!
//! It only reads from the servers, except with `--heartbeat`. Nothing that is shown is older than
//! the monitor's window, except for sparklines, which go back up to an hour.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use lockstep_lag::monitor::{LEAST_WINDOW, Monitor, MonitorState, Settings};
use lockstep_service::words::output::Output;

use crate::doctor::verdicts;
use crate::nodes::NodesArgs;

pub mod figures;
mod keyboard;
mod keys;
mod model;
mod plain;
mod rows;
mod screen;
#[cfg(test)]
mod tests;
mod view;

/// `application_name` of the connections.
const APPLICATION_NAME: &str = "lockstep top";

/// Least number of samples in a window.
const LEAST_SAMPLES: u32 = 5;

/// How long the first counted sample may wait for nodes that have neither answered nor failed.
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
    /// Seconds that causes look back; at least five intervals
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        value_parser = value_parser!(u32).range(LEAST_WINDOW.as_secs() as i64..=600)
    )]
    window: u32,
    /// Show how long commits take to become visible on each standby
    ///
    /// Writes a small logical message on the primary with each sample, and leaves nothing behind.
    #[arg(long)]
    heartbeat: bool,
    /// End after N samples, with the exit codes of doctor: 0: nothing lags, 6: something lags, 3: the
    /// primary does not answer, 4: another node does not answer, 7: something cannot be seen
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// text: a screen on a terminal, lines elsewhere; json: one line with an object for each sample
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

/// Runs `lockstep top`. After `--count` samples the exit code tells whether something lags; a
/// user who quits gets exit code 0.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    let monitors = Monitor::start_all(args.nodes.clusters()?, &args.settings());
    let last = match args.output {
        Output::Text if screen::is_there() => screen::run(&monitors, args.count)?,
        output => plain::run(&monitors, output, args.count, &mut io::stdout().lock())?,
    };
    let last = last.unwrap_or_default();
    let last: Vec<_> = last
        .iter()
        .map(|state| (state.cluster.as_deref(), &state.diagnosis))
        .collect();
    verdicts(&last)
}

/// Counts samples of a cluster, from the first in which every node has answered or failed.
struct Samples {
    began: Instant,
    counted: u64,
    most: Option<u64>,
    /// The newest that was counted.
    last: Option<Arc<MonitorState>>,
}

impl Samples {
    fn new(most: Option<u64>) -> Self {
        Self {
            began: Instant::now(),
            counted: 0,
            most,
            last: None,
        }
    }

    /// Counts the state if it is a new sample and another one is wanted; false if not.
    fn take(&mut self, state: &Arc<MonitorState>) -> bool {
        let early = self.counted == 0 && self.began.elapsed() < FIRST_PATIENCE;
        let last = self.last.as_ref().map_or(0, |last| last.number);
        if state.number <= last || (early && !all_known(state)) || self.is_over() {
            return false;
        }
        self.last = Some(Arc::clone(state));
        self.counted += 1;
        true
    }

    fn is_over(&self) -> bool {
        self.most.is_some_and(|most| self.counted >= most)
    }
}

/// The last sample of each cluster, once each has as many as are to be shown.
fn ended<'a>(samples: impl Iterator<Item = &'a Samples> + Clone) -> Option<Vec<Arc<MonitorState>>> {
    let all = samples.clone().all(Samples::is_over);
    all.then(|| samples.filter_map(|one| one.last.clone()).collect())
}

/// True if every node has answered, or the reason why it has not is known.
fn all_known(state: &MonitorState) -> bool {
    let known = |node: &lockstep_lag::monitor::NodeState| node.usable || !node.troubles.is_empty();
    state.number > 0 && state.nodes.iter().all(known)
}

/// Parses `--interval`.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "write it as a number of seconds, such as 0.5 or 2".to_owned())?;
    match (0.5..=60.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("it must be from 0.5 to 60".to_owned()),
    }
}
