//! `lockstep-lab bench watching`: CPU that watching 20 nodes once a second costs their primary and a
//! standby, also with heartbeats, and while replay is paused.

use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use lockstep_lab::progress::Micros;
use lockstep_lab::workload::Load;
use lockstep_lag::monitor::{Monitor, Settings};
use lockstep_lag::{Node, Role};
use lockstep_service::words::figures::thousandths;
use serde::{Deserialize, Serialize};

use crate::args::{RunArgs, SecondsArgs, rounds, seconds, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Order, Site, TurnOf};
use crate::fleet::{Cpu, Fleet, node, own_cpu_s, sessions};
use crate::results::{Headline, Results, rounded};
use crate::table::{Column, Group, column, median};
use crate::{BenchError, Result};

/// Variants: not watched, watched by a monitor as in top and serve, the same with heartbeats, and
/// with heartbeats while replay is paused on every standby.
const WITHOUT: &str = "stock";
const WITH: &str = "lockstep";
const HEARTBEAT: &str = "heartbeat";
const PAUSED: &str = "heartbeat, paused";
const WATCHED: [&str; 3] = [WITH, HEARTBEAT, PAUSED];

/// The monitor's sessions.
const APPLICATION_NAME: &str = "lockstep sampling";

/// The window of top and serve.
const WINDOW: Duration = Duration::from_secs(10);

/// How long all nodes may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Megabytes that a run may need.
const SPACE_MB: u64 = 4_000;

/// Percent of a core that watching may cost the primary, and each standby.
const MOST_PERCENT: f64 = 0.5;

/// CPU that watching 20 nodes costs their primary and a standby, at one sample a second
///
/// Writes watching.json into the results folder. A light load on a primary with standbys and
/// subscriptions, in turn not watched, watched as top and serve do, with --heartbeat, and with
/// --heartbeat while replay is paused. CPU is that of the monitor's sessions: on the primary, and on
/// the standby where they take most.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Rounds, each of all four", "5")),
    mut_arg("seconds", seconds("Seconds measured in each", "30", 2)),
    mut_arg("results", writes("watching.json"))
)]
pub struct WatchingArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub time: SecondsArgs,
    /// Physical standbys, each a server
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=40))]
    pub standbys: u32,
    /// Subscriptions, each in a database of one server
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = value_parser!(u32).range(1..=40))]
    pub subscriptions: u32,
    /// Transactions a second on the primary
    #[arg(long, value_name = "N", default_value_t = 20.0, value_parser = rate)]
    pub tps: f64,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.1..=10_000.0).contains(&rate) => Ok(rate),
        _ => Err("write a number from 0.1 to 10000".to_owned()),
    }
}

/// One piece.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WatchingFigures {
    pub seconds: f64,
    /// CPU of all processes of the primary, percent of a core.
    pub primary_cpu_percent: f64,
    /// CPU of the primary's sessions that serve the monitor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling_cpu_percent: Option<f64>,
    /// CPU of the sessions that serve the monitor, on the standby where they take most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby_cpu_percent: Option<f64>,
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
pub struct WatchingScene {
    load: Load,
    nodes: Vec<Node>,
    fleet: Fleet,
}

impl Benchmark for WatchingArgs {
    const NAME: &'static str = "watching";
    const ORDER: Order = Order::TurnAbout;

    type Case = ();
    type Variant = &'static str;
    type Figures = WatchingFigures;
    type Scene = WatchingScene;

    fn options(&self) -> String {
        format!(
            "{} --seconds {} --standbys {} --subscriptions {} --tps {}",
            self.run, self.time.seconds, self.standbys, self.subscriptions, self.tps
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB
    }

    fn needs_extension(&self) -> bool {
        false
    }

    fn cases(&self) -> Vec<()> {
        vec![()]
    }

    fn case_name(&self, _case: &()) -> String {
        let nodes = 1 + self.standbys + self.subscriptions;
        format!("pg{} {nodes} nodes", self.run.server.pg)
    }

    fn variants(&self, _case: &()) -> Vec<&'static str> {
        vec![WITHOUT, WITH, HEARTBEAT, PAUSED]
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<WatchingScene> {
        let fleet = Fleet::start(site.lab, self.standbys, self.subscriptions)?;
        Ok(WatchingScene {
            nodes: nodes(&fleet)?,
            load: fleet.load(site.lab, self.tps)?,
            fleet,
        })
    }

    fn label(&self, _scene: &WatchingScene, turn: &TurnOf<Self>) -> String {
        format!("{} {}", turn.round, turn.variant)
    }

    fn measure(
        &self,
        _site: Site<'_>,
        scene: &mut WatchingScene,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<WatchingFigures> {
        let fleet = &scene.fleet;
        if turn.variant == PAUSED {
            fleet.on_standbys("SELECT pg_wal_replay_pause()")?;
        }
        let monitor = match turn.variant {
            WITHOUT => None,
            variant => Some(start_monitor(&scene.nodes, variant != WITH)?),
        };
        let beats = [HEARTBEAT, PAUSED].contains(&turn.variant);
        let own_sessions = sessions_of(monitor.as_ref().filter(|_| beats), fleet)?;
        let number = monitor.as_ref().map(|monitor| monitor.state().number);
        let (before, own, from) = (cpu(fleet)?, own_cpu_s(), Micros::now());
        thread::sleep(self.time.length());
        let (after, own_after, to) = (cpu(fleet)?, own_cpu_s(), Micros::now());
        let seconds = to.seconds_since(from);
        let percent = |cpu_s: f64| rounded(100.0 * cpu_s / seconds);
        let diagnoses = monitor
            .as_ref()
            .zip(number)
            .map(|(monitor, number)| monitor.state().number - number);
        if self::own_sessions(fleet)? != own_sessions {
            let words = "the monitor's sessions changed meanwhile";
            return Err(BenchError::Unusable(words.to_owned()));
        }
        drop(monitor);
        sessions_gone(fleet)?;
        if turn.variant == PAUSED {
            fleet.on_standbys("SELECT pg_wal_replay_resume()")?;
        }
        // pgbench reports the piece's end with its next line.
        thread::sleep(Duration::from_secs(2));
        scene.load.check()?;
        let watched = diagnoses.is_some();
        let used = after.iter().zip(&before).zip(&own_sessions);
        let used: Vec<f64> = used
            .map(|((after, before), own)| percent(after.since(before, |pid| own.contains(&pid))))
            .collect();
        let whole = after.first().zip(before.first());
        Ok(WatchingFigures {
            seconds: rounded(seconds),
            primary_cpu_percent: percent(
                whole.map_or(0.0, |(after, before)| after.since(before, |_| true)),
            ),
            sampling_cpu_percent: used.first().copied().filter(|_| watched),
            standby_cpu_percent: used
                .into_iter()
                .skip(1)
                .reduce(f64::max)
                .filter(|_| watched),
            sessions_on_primary: own_sessions.first().map(Vec::len).filter(|_| watched),
            diagnoses,
            monitor_cpu_percent: watched.then(|| percent(own_after - own)),
            primary_tps: rounded(scene.load.tps_between(from, to)?),
        })
    }

    fn line(&self, figures: &WatchingFigures) -> String {
        let [sampling, standby] = [figures.sampling_cpu_percent, figures.standby_cpu_percent]
            .map(Option::unwrap_or_default);
        format!(
            "primary {:.2} % of a core, of which watching {sampling:.3} %; on a standby {standby:.3} %",
            figures.primary_cpu_percent
        )
    }

    fn headline(&self, results: &Results<WatchingFigures>) -> Option<Headline> {
        let case = self.case_name(&());
        let idle = results.median(&case, WITHOUT, |row| row.primary_cpu_percent)?;
        Some(Headline {
            metric: format!(
                "{case}: CPU of the primary's sessions that are sampled once a second, percent of a core; beside it all that the primary does under its light load without them"
            ),
            ours: rounded(self.share(results, WITH, |row| row.sampling_cpu_percent)?),
            stock: rounded(idle),
            ratio: None,
        })
    }

    fn columns(&self) -> Vec<Column<WatchingFigures>> {
        vec![
            column("percent of a core, median over rounds", |group| {
                let watched = match group.first().variant.as_str() {
                    WITHOUT => "not watched".to_owned(),
                    WITH => "watched".to_owned(),
                    variant => format!("watched, {variant}"),
                };
                Some(format!("{}, {watched}", group.first().case))
            }),
            median("primary", |row| Some(row.primary_cpu_percent), thousandths),
            median("watching", |row| row.sampling_cpu_percent, thousandths),
            median("on a standby", |row| row.standby_cpu_percent, thousandths),
            median("monitor", |row| row.monitor_cpu_percent, thousandths),
            median("tps", |row| Some(row.primary_tps), thousandths),
        ]
    }

    fn groups<'r>(&self, results: &'r Results<WatchingFigures>) -> Vec<Group<'r, WatchingFigures>> {
        results.each([(self.case_name(&()), self.variants(&()))])
    }

    fn remarks(&self, results: &Results<WatchingFigures>) -> Vec<String> {
        let mut lines = Vec::new();
        for variant in WATCHED {
            let shares = [
                (
                    "the primary",
                    self.share(results, variant, |row| row.sampling_cpu_percent),
                ),
                (
                    "a standby",
                    self.share(results, variant, |row| row.standby_cpu_percent),
                ),
            ];
            for (server, share) in shares {
                let Some(share) = share else { continue };
                let met = if share < MOST_PERCENT {
                    "met"
                } else {
                    "not met"
                };
                lines.push(format!(
                    "{variant}: {server} {share:.3} % of a core (less than {MOST_PERCENT} %: {met})"
                ));
            }
        }
        lines
    }
}

impl WatchingArgs {
    fn share(
        &self,
        results: &Results<WatchingFigures>,
        variant: &str,
        of: impl Fn(&WatchingFigures) -> Option<f64>,
    ) -> Option<f64> {
        results.median(&self.case_name(&()), variant, of)
    }
}

/// The monitor's sessions on the primary and on each standby.
fn own_sessions(fleet: &Fleet) -> Result<Vec<Vec<i32>>> {
    let servers = fleet.physical();
    servers
        .map(|server| sessions(server, APPLICATION_NAME))
        .collect()
}

/// The monitor's sessions, once `heartbeats`, if there are any, have connections of their own, which come
/// a moment after the others.
fn sessions_of(heartbeats: Option<&Monitor>, fleet: &Fleet) -> Result<Vec<Vec<i32>>> {
    let mut found = own_sessions(fleet)?;
    while let Some(monitor) = heartbeats.filter(|_| found.iter().any(|pids| pids.len() < 2)) {
        monitor.state_after(monitor.state().number, PATIENCE);
        found = own_sessions(fleet)?;
    }
    Ok(found)
}

/// Waits until the monitor has no session any more.
fn sessions_gone(fleet: &Fleet) -> Result<()> {
    while own_sessions(fleet)?.iter().any(|pids| !pids.is_empty()) {
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// CPU of the primary and of each standby.
fn cpu(fleet: &Fleet) -> Result<Vec<Cpu>> {
    fleet.physical().map(Cpu::of).collect()
}

fn nodes(fleet: &Fleet) -> Result<Vec<Node>> {
    let mut nodes = Vec::new();
    let primary = vec![fleet.primary.conninfo(lockstep_lab::server::SUPERUSER)];
    for (role, conninfos) in [
        (Role::Primary, primary),
        (Role::Standby, fleet.standby_conninfos()),
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
fn start_monitor(nodes: &[Node], heartbeat: bool) -> Result<Monitor> {
    let monitor = Monitor::start(
        nodes.to_vec().into(),
        Settings {
            application_name: APPLICATION_NAME.to_owned(),
            every: Duration::from_secs(1),
            window: WINDOW,
            heartbeat,
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
