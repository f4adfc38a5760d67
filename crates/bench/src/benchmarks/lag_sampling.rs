//! `lockstep bench lag-sampling`: CPU that watching 20 nodes once a second costs their primary.

use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use lockstep_lab::progress::Micros;
use lockstep_lab::workload::Load;
use lockstep_lag::monitor::{Monitor, Settings};
use lockstep_lag::{Node, Role};
use serde::{Deserialize, Serialize};

use crate::args::{PlaceArgs, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Order, Site, TurnOf};
use crate::lag_sampling::{Fleet, node, own_cpu_s};
use crate::results::{Headline, Results, rounded};
use crate::table::{Column, column, median};
use crate::text::thousandths;
use crate::{BenchError, Result};

/// Variants: not watched, and watched by a monitor as in top and serve.
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

/// CPU that watching 20 nodes costs their primary, at one sample a second
///
/// Writes lag-sampling.json into the results folder. A light load on a primary with standbys and
/// subscriptions, each in turn not watched and watched as top and serve do; CPU is that of the
/// primary's processes. The monitor's own sessions there are the claim.
#[derive(Debug, Args)]
#[command(mut_arg("results", writes("lag-sampling.json")))]
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
    #[command(flatten)]
    pub place: PlaceArgs,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.1..=10_000.0).contains(&rate) => Ok(rate),
        _ => Err("write a number from 0.1 to 10000".to_owned()),
    }
}

/// One piece.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SamplingFigures {
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
}

/// Many replicas under a light load, which ends before the servers.
pub struct SamplingScene {
    load: Load,
    nodes: Vec<Node>,
    fleet: Fleet,
}

impl Benchmark for LagSamplingArgs {
    const NAME: &'static str = "lag-sampling";
    const ORDER: Order = Order::TurnAbout;

    type Case = ();
    type Variant = &'static str;
    type Figures = SamplingFigures;
    type Scene = SamplingScene;

    fn place(&self) -> &PlaceArgs {
        &self.place
    }

    fn options(&self) -> String {
        format!(
            "--pg {} --rounds {} --seconds {} --standbys {} --subscriptions {} --tps {}",
            self.place.server.pg,
            self.rounds,
            self.seconds,
            self.standbys,
            self.subscriptions,
            self.tps
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB
    }

    fn needs_extension(&self) -> bool {
        false
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn cases(&self) -> Vec<()> {
        vec![()]
    }

    fn case_name(&self, _case: &()) -> String {
        let nodes = 1 + self.standbys + self.subscriptions;
        format!("pg{} {nodes} nodes", self.place.server.pg)
    }

    fn variants(&self, _case: &()) -> Vec<&'static str> {
        vec![WITHOUT, WITH]
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<SamplingScene> {
        let fleet = Fleet::start(site.lab, self.standbys, self.subscriptions)?;
        Ok(SamplingScene {
            nodes: nodes(&fleet)?,
            load: fleet.load(site.lab, self.tps)?,
            fleet,
        })
    }

    fn label(&self, _scene: &SamplingScene, turn: &TurnOf<Self>) -> String {
        format!("{} {}", turn.round, turn.variant)
    }

    fn measure(
        &self,
        _site: Site<'_>,
        scene: &mut SamplingScene,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<SamplingFigures> {
        let monitor = match turn.variant {
            WITH => Some(start_monitor(&scene.nodes)?),
            _ => None,
        };
        let fleet = &scene.fleet;
        let sessions = fleet.sessions(APPLICATION_NAME)?;
        let number = monitor.as_ref().map(|monitor| monitor.state().number);
        let (before, own, from) = (fleet.cpu()?, own_cpu_s(), Micros::now());
        thread::sleep(Duration::from_secs(self.seconds.into()));
        let (after, own_after, to) = (fleet.cpu()?, own_cpu_s(), Micros::now());
        let seconds = to.seconds_since(from);
        let percent = |cpu_s: f64| rounded(100.0 * cpu_s / seconds);
        let diagnoses = monitor
            .as_ref()
            .zip(number)
            .map(|(monitor, number)| monitor.state().number - number);
        if fleet.sessions(APPLICATION_NAME)? != sessions {
            let words = "the monitor's sessions changed meanwhile";
            return Err(BenchError::Unusable(words.to_owned()));
        }
        drop(monitor);
        while !fleet.sessions(APPLICATION_NAME)?.is_empty() {
            thread::sleep(Duration::from_millis(20));
        }
        // pgbench reports the piece's end with its next line.
        thread::sleep(Duration::from_secs(2));
        scene.load.check()?;
        let watched = diagnoses.is_some();
        let sampling = after.since(&before, |pid| sessions.contains(&pid));
        Ok(SamplingFigures {
            seconds: rounded(seconds),
            primary_cpu_percent: percent(after.since(&before, |_| true)),
            sampling_cpu_percent: watched.then(|| percent(sampling)),
            sessions_on_primary: watched.then_some(sessions.len()),
            diagnoses,
            monitor_cpu_percent: watched.then(|| percent(own_after - own)),
            primary_tps: rounded(scene.load.tps_between(from, to)?),
        })
    }

    fn line(&self, figures: &SamplingFigures) -> String {
        let sampling = figures.sampling_cpu_percent;
        let sampling = sampling.map(|share| format!(", of which sampling {share:.3} %"));
        format!(
            "primary {:.2} % of a core{}",
            figures.primary_cpu_percent,
            sampling.unwrap_or_default()
        )
    }

    fn headline(&self, results: &Results<SamplingFigures>) -> Option<Headline> {
        let case = self.case_name(&());
        let idle = results.median(&case, WITHOUT, |row| row.primary_cpu_percent)?;
        Some(Headline {
            metric: format!(
                "{case}: CPU of the primary's sessions that are sampled once a second, percent of a core; beside it all that the primary does under its light load without them"
            ),
            ours: rounded(self.sampling(results)?),
            stock: rounded(idle),
            ratio: None,
        })
    }

    fn columns(&self) -> Vec<Column<SamplingFigures>> {
        vec![
            column("percent of a core, median over rounds", |group| {
                let watched = match group.first().variant.as_str() {
                    WITH => "watched",
                    _ => "not watched",
                };
                Some(format!("{}, {watched}", group.first().case))
            }),
            median("primary", |row| Some(row.primary_cpu_percent), thousandths),
            median("sampling", |row| row.sampling_cpu_percent, thousandths),
            median("monitor", |row| row.monitor_cpu_percent, thousandths),
            median("tps", |row| Some(row.primary_tps), thousandths),
        ]
    }

    fn remarks(&self, results: &Results<SamplingFigures>) -> Vec<String> {
        let line = |share: f64| {
            let met = if share < MOST_PERCENT {
                "met"
            } else {
                "not met"
            };
            format!(
                "sampling costs the primary {share:.3} % of a core (less than {MOST_PERCENT} %: {met})"
            )
        };
        self.sampling(results).map(line).into_iter().collect()
    }
}

impl LagSamplingArgs {
    fn sampling(&self, results: &Results<SamplingFigures>) -> Option<f64> {
        results.median(&self.case_name(&()), WITH, |row| row.sampling_cpu_percent)
    }
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
            let name = format!("{role}{}", index + 1);
            nodes.push(node(name, role, conninfo)?);
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
            return Err(BenchError::Unusable(format!(
                "{answering} of {} nodes answer, {} links: {troubles:?}",
                nodes.len(),
                state.links.len()
            )));
        }
    }
}
