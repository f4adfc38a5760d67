//! `lockstep-lab bench overhead`: what the read throttle costs while it has nothing to do.
//!
//! One standby, clients that look up single rows in several ways, and nothing to replay. The
//! throttle is turned on and off again and again while they read: neighbouring pieces of a
//! few seconds see the same machine, so a difference of one per cent can be told.

use std::ffi::OsString;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::progress::Micros;
use lockstep_lab::server::Server;
use lockstep_lab::workload::Load;
use serde::{Deserialize, Serialize};

use crate::args::{RunArgs, SecondsArgs, joined, rounds, seconds, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Order, Site, TurnOf};
use crate::replay_lag;
use crate::results::{Headline, Results, rounded};
use crate::trial::{self, Size, Variant};
use crate::{BenchError, Result};

/// The case that the headline is about.
const HEADLINE_CASE: OverheadCase = OverheadCase::Select;

/// Clients of case pipelined: more than its core can run, though each is idle in its turn while
/// pgbench's one thread serves the others.
const PIPELINED_READERS: u32 = 6;

/// Look-ups in each of their pipelines.
const PIPELINE: u32 = 5;

/// Rows of pgbench_accounts for each unit of scale.
const ACCOUNTS_PER_SCALE: u32 = 100_000;

/// Variants: the throttle off and on.
const OFF: &str = "throttle-off";
const ON: &str = "throttle-on";

/// After each change, before reads count: a session takes new settings between queries.
const SETTLING: Duration = Duration::from_secs(1);

/// Megabytes that a run may need.
const SPACE_MB: u64 = 3_000;

/// Throughput of select-only readers with the throttle off and on, while it has nothing to do
///
/// Writes overhead.json into the results folder. Cases not run keep their rows. No replay, and
/// but for case pipelined no more readers than fit their core; the throttle is turned on and off
/// every few seconds while they go on.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", |arg| {
        rounds("Pairs of pieces, one with the throttle off and one with it on", "40")(arg)
            .value_parser(value_parser!(u32).range(1..=1000))
    }),
    mut_arg("seconds", seconds("Seconds of each piece", "3", 2)),
    mut_arg("results", writes("overhead.json"))
)]
pub struct OverheadArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub time: SecondsArgs,
    /// Cases to run, separated by commas
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = OverheadCase::ALL)]
    pub cases: Vec<OverheadCase>,
    /// Clients that read, but in case pipelined, which has 6; no more than what fits one core, or
    /// the throttle has something to do
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=900))]
    pub readers: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
}

/// How the clients look rows up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OverheadCase {
    /// pgbench's default, the simple query protocol.
    #[value(name = "select-idle-throttle")]
    Select,
    /// Statements prepared once in each session.
    Prepared,
    /// Several look-ups sent at once, by more clients than fit their core.
    Pipelined,
    /// A new connection for each look-up.
    Connect,
}

impl OverheadCase {
    /// All, in the order in which they run.
    pub const ALL: [Self; 4] = [Self::Select, Self::Prepared, Self::Pipelined, Self::Connect];

    /// The case's name in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Select => "select-idle-throttle",
            Self::Prepared => "prepared",
            Self::Pipelined => "pipelined",
            Self::Connect => "connect",
        }
    }

    /// Look-ups in a transaction of pgbench.
    fn lookups(self) -> u32 {
        match self {
            Self::Pipelined => PIPELINE,
            Self::Select | Self::Prepared | Self::Connect => 1,
        }
    }

    /// pgbench's options.
    fn options(self, lab: &Lab, scale: u32) -> Result<Vec<OsString>> {
        let select = OsString::from("--select-only");
        Ok(match self {
            Self::Select => vec![select],
            Self::Prepared => vec![select, "--protocol=prepared".into()],
            Self::Connect => vec![select, "--connect".into()],
            Self::Pipelined => {
                let script = lab.write_file("pipelined.sql", &pipeline(scale))?;
                vec!["--protocol=extended".into(), "--file".into(), script.into()]
            }
        })
    }
}

/// A script of pgbench.
fn pipeline(scale: u32) -> String {
    let lookup = format!(
        "\\set aid random(1, {})\n\
         SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n",
        scale * ACCOUNTS_PER_SCALE
    );
    let lookups = lookup.repeat(PIPELINE as usize);
    format!("\\startpipeline\n{lookups}\\endpipeline\n")
}

/// One piece.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OverheadFigures {
    pub read_tps: f64,
    /// Queries that the throttle made wait meanwhile.
    pub waits: i64,
    pub seconds: f64,
}

/// A standby under readers, if a case has begun. The load ends before the servers.
pub struct OverheadScene {
    load: Option<Load>,
    standby: Server,
    _primary: Server,
}

impl Benchmark for OverheadArgs {
    const NAME: &'static str = "overhead";
    const ORDER: Order = Order::TurnAbout;

    type Case = OverheadCase;
    type Variant = &'static str;
    type Figures = OverheadFigures;
    type Scene = OverheadScene;

    fn options(&self) -> String {
        format!(
            "{} --seconds {} --cases {} --readers {} --scale {}",
            self.run,
            self.time.seconds,
            joined(self.cases.iter().map(|case| case.name())),
            self.readers,
            self.scale
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB
    }

    fn cases(&self) -> Vec<OverheadCase> {
        self.cases.clone()
    }

    fn case_name(&self, case: &OverheadCase) -> String {
        case.name().to_owned()
    }

    fn variants(&self, _case: &OverheadCase) -> Vec<&'static str> {
        vec![OFF, ON]
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<OverheadScene> {
        let lab = site.lab;
        let size = Size {
            scale: self.scale,
            writers: 1,
            readers: self.readers.max(PIPELINED_READERS),
        };
        let primary = trial::open_primary(lab, &size, true)?;
        lab.load_data(&primary, self.scale)?;
        let settings = Variant::Lockstep.standby_settings(&[]);
        let mut standby = lab.standby(&primary, "standby", &settings)?;
        standby.catch_up(&primary)?;
        Ok(OverheadScene {
            load: None,
            standby,
            _primary: primary,
        })
    }

    fn enter(
        &self,
        site: Site<'_>,
        scene: &mut OverheadScene,
        case: &OverheadCase,
        _audience: &mut dyn Audience,
    ) -> Result<()> {
        scene.load = None;
        let readers = match case {
            OverheadCase::Pipelined => PIPELINED_READERS,
            OverheadCase::Select | OverheadCase::Prepared | OverheadCase::Connect => self.readers,
        };
        let options = case.options(site.lab, self.scale)?;
        let load = site.lab.start_pgbench(
            &scene.standby,
            Side::Standby,
            "read load",
            readers,
            &options,
        )?;
        scene.load = Some(load);
        Ok(())
    }

    fn label(&self, _scene: &OverheadScene, turn: &TurnOf<Self>) -> String {
        format!("{} {} {}", turn.case.name(), turn.round, turn.variant)
    }

    fn measure(
        &self,
        _site: Site<'_>,
        scene: &mut OverheadScene,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<OverheadFigures> {
        let OverheadScene { load, standby, .. } = scene;
        let load = load
            .as_mut()
            .ok_or_else(|| BenchError::Unusable("no case has begun".to_owned()))?;
        let value = if turn.variant == ON { "on" } else { "off" };
        standby.set([("lockstep.read_throttle", value)])?;
        standby.reload()?;
        thread::sleep(SETTLING);
        let before = waits(standby)?;
        let from = Micros::now();
        thread::sleep(self.time.length());
        let to = Micros::now();
        // pgbench reports the piece's end with its next line.
        thread::sleep(SETTLING);
        load.check()?;
        Ok(OverheadFigures {
            read_tps: rounded(load.tps_between(from, to)? * f64::from(turn.case.lookups())),
            waits: waits(standby)? - before,
            seconds: rounded(to.seconds_since(from)),
        })
    }

    fn line(&self, figures: &OverheadFigures) -> String {
        format!("{:.0} reads/s", figures.read_tps)
    }

    fn headline(&self, results: &Results<OverheadFigures>) -> Option<Headline> {
        let case = HEADLINE_CASE.name();
        let median = |variant| results.median(case, variant, |row| row.read_tps);
        Some(Headline {
            metric: "reads/s of select-only clients, throttle on against off, median; ratio is the median over pairs"
                .to_owned(),
            ours: rounded(median(ON)?),
            stock: rounded(median(OFF)?),
            ratio: replay_lag::median(ratios(results, case))
                .map(|ratio| (ratio * 10_000.0).round() / 10_000.0),
        })
    }

    fn remarks(&self, results: &Results<OverheadFigures>) -> Vec<String> {
        let cases = OverheadCase::ALL.into_iter();
        cases.filter_map(|case| remark(results, case)).collect()
    }
}

/// None for a case without rows.
fn remark(results: &Results<OverheadFigures>, case: OverheadCase) -> Option<String> {
    let case = case.name();
    let ratios = ratios(results, case);
    let at = |part: usize| ratios.get(ratios.len() * part / 4).copied().unwrap_or(0.0);
    let median = |variant| results.median(case, variant, |row| row.read_tps);
    let waited: i64 = [OFF, ON]
        .into_iter()
        .flat_map(|variant| results.rows_of(case, variant))
        .map(|row| row.figures.waits)
        .sum();
    Some(format!(
        "{case}: throttle off {:.0} reads/s, on {:.0}: on/off median {:.4}, quartiles {:.4} to {:.4} \
         of {} pairs; {waited} queries waited",
        median(OFF)?,
        median(ON)?,
        replay_lag::median(ratios.iter().copied())?,
        at(1),
        at(3),
        ratios.len(),
    ))
}

fn waits(standby: &Server) -> Result<i64> {
    let text = standby.query_text("SELECT waits::text FROM lockstep_stat_throttle")?;
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| BenchError::Unusable("lockstep_stat_throttle has no waits".to_owned()))
}

/// Throughput with the throttle on divided by that with it off, pair by pair, sorted.
fn ratios(results: &Results<OverheadFigures>, case: &str) -> Vec<f64> {
    let rounds = results.rows.iter().map(|row| row.round).max().unwrap_or(0);
    let mut ratios: Vec<f64> = (1..=rounds)
        .filter_map(|round| {
            let of = |variant: &str| {
                let mut rows = results.rows_of(case, variant);
                rows.find(|row| row.round == round)
                    .map(|row| row.figures.read_tps)
            };
            Some(of(ON)? / of(OFF).filter(|&tps| tps > 0.0)?)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}
