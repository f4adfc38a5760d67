//! `lockstep bench lag-sampling`: CPU that watching 20 nodes once a second costs their primary.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use lockstep_bench::lag_sampling::{Fleet, own_cpu_s};
use lockstep_client::Conninfo;
use lockstep_lab::machine;
use lockstep_lab::progress::Micros;
use lockstep_lab::workload::Load;
use lockstep_lag::monitor::{Monitor, Settings};
use lockstep_lag::{Node, Role};
use serde::{Deserialize, Serialize};

use super::results::{Headline, Measured, Results, rounded};
use super::steps::Steps;
use crate::args::ServerArgs;
use crate::{scene, text};

/// Name of the benchmark and of its file.
const NAME: &str = "lag-sampling";

/// Variants: nobody watches, and a monitor as top and serve have it.
const WITHOUT: &str = "stock";
const WITH: &str = "lockstep";

/// The monitor's sessions.
const APPLICATION_NAME: &str = "lockstep sampling";

/// The window of top and serve.
const WINDOW: Duration = Duration::from_secs(10);

/// How long all nodes may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Megabytes that a run may need.
const SPACE_MB: u64 = 4_000;

/// Percent of a core that sampling may cost.
const MOST_PERCENT: f64 = 0.5;

/// `lockstep bench lag-sampling`
#[derive(Debug, Args)]
pub struct LagSamplingArgs {
    /// Rounds, each without and with the monitor
    #[arg(long, value_name = "N", env = "BENCH_ROUNDS", hide_env_values = true, default_value_t = 5, value_parser = value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Seconds measured in each
    #[arg(long, value_name = "SECONDS", env = "BENCH_SECONDS", hide_env_values = true, default_value_t = 30, value_parser = value_parser!(u32).range(2..=3600))]
    pub seconds: u32,
    /// Physical standbys, each a server
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=40))]
    pub standbys: u32,
    /// Subscriptions, each in a database of one server
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = value_parser!(u32).range(1..=40))]
    pub subscriptions: u32,
    /// Transactions a second on the primary
    #[arg(long, value_name = "N", default_value_t = 20.0, value_parser = rate)]
    pub tps: f64,
    /// Folder for lag-sampling.json
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    pub results: PathBuf,
    /// Which servers to use.
    #[command(flatten)]
    pub server: ServerArgs,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.1..=10_000.0).contains(&rate) => Ok(rate),
        _ => Err("write a number from 0.1 to 10000".to_owned()),
    }
}

/// One piece.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub variant: String,
    pub round: u32,
    pub seconds: f64,
    /// Of all processes of the primary, percent of a core.
    pub primary_cpu_percent: f64,
    /// Of those that serve the monitor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling_cpu_percent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions_on_primary: Option<usize>,
    /// Diagnoses made meanwhile, one after each sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnoses: Option<u64>,
    /// CPU of the process that watches all nodes, percent of a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor_cpu_percent: Option<f64>,
    pub primary_tps: f64,
    pub date: String,
    pub commit: String,
}

impl Measured for Row {
    fn case(&self) -> &str {
        &self.case
    }

    fn variant(&self) -> &str {
        &self.variant
    }
}

/// What all pieces have in common.
struct Scene<'a> {
    args: &'a LagSamplingArgs,
    fleet: Fleet,
    load: Load,
    nodes: Vec<Node>,
    case: String,
    commit: String,
}

/// Runs the benchmark.
pub fn run(args: &LagSamplingArgs) -> Result<()> {
    let path = Results::<Row>::place(&args.results, NAME)?;
    let lab = scene::open_lab(&args.server, false, SPACE_MB)?;
    let command = format!(
        "lockstep bench lag-sampling --pg {} --rounds {} --seconds {} --standbys {} --subscriptions {} --tps {}",
        args.server.pg, args.rounds, args.seconds, args.standbys, args.subscriptions, args.tps
    );
    let machine = machine::describe(lab.folder(), lab.pinning());
    let mut results = Results::begin(&path, NAME, command, machine)?;
    let mut steps = Steps::new(2 * args.rounds as usize);
    steps.say(&format!("{} ({})", results.command, results.machine));
    let fleet = Fleet::start(&lab, args.standbys, args.subscriptions)?;
    let nodes = nodes(&fleet)?;
    let mut scene = Scene {
        load: fleet.load(&lab, args.tps)?,
        case: format!("pg{} {} nodes", args.server.pg, nodes.len()),
        commit: results.commit.clone(),
        args,
        fleet,
        nodes,
    };
    let mut rows = Vec::new();
    for round in 1..=args.rounds {
        // Whichever comes first in a pair must not win by it.
        let order = match round % 2 {
            1 => [WITHOUT, WITH],
            _ => [WITH, WITHOUT],
        };
        for variant in order {
            steps.begin(&format!("{round} {variant}"));
            let row = piece(&mut scene, round, variant)?;
            let sampling = row.sampling_cpu_percent.map_or_else(String::new, |share| {
                format!(", of which sampling {share:.3} %")
            });
            steps.end(&format!(
                "primary {:.2} % of a core{sampling}",
                row.primary_cpu_percent
            ));
            rows.push(row);
        }
    }
    let case = scene.case.clone();
    drop(scene);
    results.replace(&case, rows, vec![]);
    results.date = machine::date();
    results.headline = headline(&case, &results);
    results.save(&path)?;
    for line in report(&case, &results) {
        steps.say(&line);
    }
    steps.say(&format!("written to {}", scene::absolute(&path).display()));
    Ok(())
}

fn nodes(fleet: &Fleet) -> Result<Vec<Node>> {
    let mut nodes = Vec::new();
    let primary = vec![fleet.primary.conninfo(lockstep_lab::server::SUPERUSER)];
    for (role, conninfos) in [
        (Role::Primary, primary),
        (Role::Standby, fleet.standbys()),
        (Role::Subscriber, fleet.subscribers()),
    ] {
        for (index, conninfo) in conninfos.iter().enumerate() {
            nodes.push(Node {
                name: format!("{role}{}", index + 1),
                role,
                conninfo: Conninfo::parse(conninfo).context("a conninfo of the lab's own")?,
            });
        }
    }
    Ok(nodes)
}

/// A monitor that has heard of every node and link.
fn start_monitor(nodes: &[Node]) -> Result<Monitor> {
    let monitor = Monitor::start(
        nodes.to_vec(),
        Settings {
            application_name: APPLICATION_NAME.to_owned(),
            every: Duration::from_secs(1),
            window: WINDOW,
            heartbeat: false,
        },
    );
    let began = Instant::now();
    loop {
        let number = monitor.state().number;
        let state = monitor.state_after(number, PATIENCE);
        let answering = state.nodes.iter().filter(|node| node.usable).count();
        if answering == nodes.len() && state.links.len() + 1 == nodes.len() {
            return Ok(monitor);
        }
        if began.elapsed() > PATIENCE {
            let troubles: Vec<_> = state.nodes.iter().flat_map(|node| &node.troubles).collect();
            bail!(
                "{answering} of {} nodes answer, {} links: {troubles:?}",
                nodes.len(),
                state.links.len()
            );
        }
    }
}

fn piece(scene: &mut Scene<'_>, round: u32, variant: &str) -> Result<Row> {
    let monitor = match variant {
        WITH => Some(start_monitor(&scene.nodes)?),
        _ => None,
    };
    let sessions = scene.fleet.sessions(APPLICATION_NAME)?;
    let number = monitor.as_ref().map(|monitor| monitor.state().number);
    let (before, own, from) = (scene.fleet.cpu()?, own_cpu_s(), Micros::now());
    thread::sleep(Duration::from_secs(scene.args.seconds.into()));
    let (after, own_after, to) = (scene.fleet.cpu()?, own_cpu_s(), Micros::now());
    let seconds = to.seconds_since(from);
    let percent = |cpu_s: f64| rounded(100.0 * cpu_s / seconds);
    let diagnoses = monitor
        .as_ref()
        .zip(number)
        .map(|(monitor, number)| monitor.state().number - number);
    if scene.fleet.sessions(APPLICATION_NAME)? != sessions {
        bail!("the monitor's sessions changed meanwhile");
    }
    drop(monitor);
    while !scene.fleet.sessions(APPLICATION_NAME)?.is_empty() {
        thread::sleep(Duration::from_millis(20));
    }
    // pgbench reports the piece's end with its next line.
    thread::sleep(Duration::from_secs(2));
    scene.load.check()?;
    let watched = diagnoses.is_some();
    let sampling = after.since(&before, |pid| sessions.contains(&pid));
    Ok(Row {
        case: scene.case.clone(),
        variant: variant.to_owned(),
        round,
        seconds: rounded(seconds),
        primary_cpu_percent: percent(after.since(&before, |_| true)),
        sampling_cpu_percent: watched.then(|| percent(sampling)),
        sessions_on_primary: watched.then_some(sessions.len()),
        diagnoses,
        monitor_cpu_percent: watched.then(|| percent(own_after - own)),
        primary_tps: rounded(scene.load.tps_between(from, to)?),
        date: machine::date(),
        commit: scene.commit.clone(),
    })
}

fn sampling(case: &str, results: &Results<Row>) -> Option<f64> {
    results.median(case, WITH, |row| {
        row.sampling_cpu_percent.unwrap_or(f64::NAN)
    })
}

fn headline(case: &str, results: &Results<Row>) -> Option<Headline> {
    Some(Headline {
        metric: format!(
            "{case}: CPU of the primary's sessions that are sampled once a second, percent of a core; beside it all that the primary does under its light load without them"
        ),
        ours: rounded(sampling(case, results)?),
        stock: rounded(results.median(case, WITHOUT, |row| row.primary_cpu_percent)?),
        ratio: None,
    })
}

fn report(case: &str, results: &Results<Row>) -> Vec<String> {
    let mut table = vec![
        [
            "percent of a core, median over rounds",
            "primary",
            "sampling",
            "monitor",
            "tps",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for (variant, words) in [(WITHOUT, "not watched"), (WITH, "watched")] {
        let median = |value: fn(&Row) -> f64| results.median(case, variant, value);
        let optional = |value: Option<f64>| match value {
            Some(value) if value.is_finite() => format!("{value:.3}"),
            _ => "-".to_owned(),
        };
        table.push(vec![
            format!("{case}, {words}"),
            optional(median(|row| row.primary_cpu_percent)),
            optional(median(|row| row.sampling_cpu_percent.unwrap_or(f64::NAN))),
            optional(median(|row| row.monitor_cpu_percent.unwrap_or(f64::NAN))),
            optional(median(|row| row.primary_tps)),
        ]);
    }
    let mut lines = text::table(&table);
    if let Some(share) = sampling(case, results) {
        let met = if share < MOST_PERCENT {
            "met"
        } else {
            "not met"
        };
        lines.push(format!(
            "sampling costs the primary {share:.3} % of a core (less than {MOST_PERCENT} %: {met})"
        ));
    }
    lines
}
