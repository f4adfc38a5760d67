//! `lockstep bench overhead`: what the read throttle costs while it has nothing to do.
//!
//! One standby, as many select-only clients as fit its core, and nothing to replay. The
//! throttle is turned on and off again and again while they read: neighbouring pieces of a
//! few seconds see the same machine, so a difference of one per cent can be told.

use std::thread;
use std::time::Duration;

use clap::{Args, value_parser};
use lockstep_lab::pinning::Side;
use lockstep_lab::progress::Micros;
use lockstep_lab::server::Server;
use lockstep_lab::workload::{Load, Workload};
use serde::{Deserialize, Serialize};

use crate::args::{PlaceArgs, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Order, Site, TurnOf};
use crate::replay_lag;
use crate::results::{Headline, Results, rounded};
use crate::trial::{self, Size, Variant};
use crate::{BenchError, Result};

/// Its only case.
const CASE: &str = "select-idle-throttle";

/// Variants: the throttle off and on.
const OFF: &str = "throttle-off";
const ON: &str = "throttle-on";

/// After each change, before reads count: a session takes new settings between queries.
const SETTLING: Duration = Duration::from_secs(1);

/// Megabytes that a run may need.
const SPACE_MB: u64 = 3_000;

/// Throughput of select-only readers with the throttle off and on, while it has nothing to do
///
/// Writes overhead.json into the results folder. No replay, no more readers than fit their core;
/// the throttle is turned on and off every few seconds while they go on.
#[derive(Debug, Args)]
#[command(mut_arg("results", writes("overhead.json")))]
pub struct OverheadArgs {
    /// Pairs of pieces, one with the throttle off and one with it on
    #[arg(long, value_name = "N", env = "BENCH_ROUNDS", hide_env_values = true, default_value_t = 40, value_parser = value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Seconds of each piece
    #[arg(long, value_name = "SECONDS", env = "BENCH_SECONDS", hide_env_values = true, default_value_t = 3, value_parser = value_parser!(u32).range(2..=3600))]
    pub seconds: u32,
    /// Clients that read; no more than what fits one core, or the throttle has something to do
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=900))]
    pub readers: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// One piece.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OverheadFigures {
    pub read_tps: f64,
    /// Queries that the throttle made wait meanwhile.
    pub waits: i64,
    pub seconds: f64,
}

/// A standby under readers. The load ends before the servers.
pub struct OverheadScene {
    load: Load,
    standby: Server,
    _primary: Server,
}

impl Benchmark for OverheadArgs {
    const NAME: &'static str = "overhead";
    const ORDER: Order = Order::TurnAbout;

    type Case = ();
    type Variant = &'static str;
    type Figures = OverheadFigures;
    type Scene = OverheadScene;

    fn place(&self) -> &PlaceArgs {
        &self.place
    }

    fn options(&self) -> String {
        format!(
            "--pg {} --rounds {} --seconds {} --readers {} --scale {}",
            self.place.server.pg, self.rounds, self.seconds, self.readers, self.scale
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn cases(&self) -> Vec<()> {
        vec![()]
    }

    fn case_name(&self, _case: &()) -> String {
        CASE.to_owned()
    }

    fn variants(&self, _case: &()) -> Vec<&'static str> {
        vec![OFF, ON]
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<OverheadScene> {
        let lab = site.lab;
        let size = Size {
            scale: self.scale,
            writers: 1,
            readers: self.readers,
        };
        let primary = trial::open_primary(lab, &size, true)?;
        lab.load_data(&primary, self.scale)?;
        let settings = Variant::Lockstep.standby_settings(&[]);
        let mut standby = lab.standby(&primary, "standby", &settings)?;
        standby.catch_up(&primary)?;
        let load = lab.start_load(
            &standby,
            Side::Standby,
            Workload::Select,
            self.readers,
            self.scale,
        )?;
        Ok(OverheadScene {
            load,
            standby,
            _primary: primary,
        })
    }

    fn label(&self, _scene: &OverheadScene, turn: &TurnOf<Self>) -> String {
        format!("{} {}", turn.round, turn.variant)
    }

    fn measure(
        &self,
        _site: Site<'_>,
        scene: &mut OverheadScene,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<OverheadFigures> {
        let OverheadScene { load, standby, .. } = scene;
        let value = if turn.variant == ON { "on" } else { "off" };
        standby.set([("lockstep.read_throttle", value)])?;
        standby.reload()?;
        thread::sleep(SETTLING);
        let before = waits(standby)?;
        let from = Micros::now();
        thread::sleep(Duration::from_secs(u64::from(self.seconds)));
        let to = Micros::now();
        // pgbench reports the piece's end with its next line.
        thread::sleep(SETTLING);
        load.check()?;
        Ok(OverheadFigures {
            read_tps: rounded(load.tps_between(from, to)?),
            waits: waits(standby)? - before,
            seconds: rounded(to.seconds_since(from)),
        })
    }

    fn line(&self, figures: &OverheadFigures) -> String {
        format!("{:.0} reads/s", figures.read_tps)
    }

    fn headline(&self, results: &Results<OverheadFigures>) -> Option<Headline> {
        let median = |variant| results.median(CASE, variant, |row| row.read_tps);
        Some(Headline {
            metric: "reads/s of select-only clients, throttle on against off, median; ratio is the median over pairs"
                .to_owned(),
            ours: median(ON)?,
            stock: median(OFF)?,
            ratio: replay_lag::median(ratios(results))
                .map(|ratio| (ratio * 10_000.0).round() / 10_000.0),
        })
    }

    fn remarks(&self, results: &Results<OverheadFigures>) -> Vec<String> {
        let ratios = ratios(results);
        let at = |part: usize| ratios.get(ratios.len() * part / 4).copied().unwrap_or(0.0);
        let waited: i64 = results.rows.iter().map(|row| row.figures.waits).sum();
        let line = |headline: &Headline| {
            format!(
                "throttle off {:.0} reads/s, on {:.0}: on/off median {:.4}, quartiles {:.4} to {:.4} of {} pairs; {waited} queries waited",
                headline.stock,
                headline.ours,
                headline.ratio.unwrap_or(0.0),
                at(1),
                at(3),
                ratios.len(),
            )
        };
        results.headline.iter().map(line).collect()
    }
}

fn waits(standby: &Server) -> Result<i64> {
    let text = standby.query_text("SELECT waits::text FROM lockstep_stat_throttle")?;
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| BenchError::Unusable("lockstep_stat_throttle has no waits".to_owned()))
}

/// Throughput with the throttle on divided by that with it off, pair by pair, sorted.
fn ratios(results: &Results<OverheadFigures>) -> Vec<f64> {
    let rounds = results.rows.iter().map(|row| row.round).max().unwrap_or(0);
    let mut ratios: Vec<f64> = (1..=rounds)
        .filter_map(|round| {
            let of = |variant: &str| {
                let mut rows = results.rows_of(CASE, variant);
                rows.find(|row| row.round == round)
                    .map(|row| row.figures.read_tps)
            };
            Some(of(ON)? / of(OFF).filter(|&tps| tps > 0.0)?)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}
