//! `lockstep bench load-curve`: replay lag against the rate at which WAL is offered.

use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use lockstep_lab::workload::Workload;
use lockstep_player::Pace;
use serde::{Deserialize, Serialize};

use crate::args::{PlaceArgs, joined, set_options, setting, settings_text, writes};
use crate::audience::{Ahead, Audience};
use crate::benchmark::{Benchmark, Plot, Site, TurnOf};
use crate::plot::lines::{self, Axis, Line, Panel};
use crate::plot::trials::color;
use crate::replay::round::{self, Readers, RoundSpec, StandbySpec, Until};
use crate::replay::temperature::Temperature;
use crate::replay::work::{self, Amount, Recorded, Work, WorkSize};
use crate::results::{Headline, Results, megabytes, ratio, rounded};
use crate::table::{Column, Group, column, median, of_case_and_variant};
use crate::text::{count, ms, percent, slope, tenths};
use crate::trial::Variant;
use crate::{BenchError, Result};

/// The case that the headline is about.
const HEADLINE_CASE: CurveCase = CurveCase::Readers;

/// Rates offered by default, as parts of what a stock standby without readers replays at most.
const RATES: [f64; 9] = [0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.25, 1.6];

/// Lag that grows by less than this counts as bounded, ms a second. At the offered rates
/// just above the limit it grows by tens to hundreds.
const BOUNDED_SLOPE_MS_PER_S: f64 = 10.0;

/// Megabytes that a run may need beside the recording.
const SPACE_MB_BASE: u64 = 2_000;
/// The same for each second of writes that are recorded.
const SPACE_MB_PER_SECOND: u64 = 50;

/// Sessions that write while it is recorded: each branch is a row that they wait for.
const WRITERS: u32 = 8;

/// The shortest time for which the highest rate may be offered, in seconds.
const LEAST_SECONDS: f64 = 4.0;

/// Replay lag against the rate at which WAL is offered, idle and under readers
///
/// Finds what a stock standby replays at most, then offers a tenth of that up to 1.6 times as
/// much to fresh standbys. Writes load-curve.json and a plot for each case into the results folder.
#[derive(Debug, Args)]
#[command(mut_arg("results", writes("load-curve.json and the plots")))]
pub struct LoadCurveArgs {
    /// Rounds of each rate
    #[arg(long, value_name = "N", env = "BENCH_ROUNDS", hide_env_values = true, default_value_t = 1, value_parser = value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Seconds measured at each rate
    #[arg(long, value_name = "SECONDS", env = "BENCH_SECONDS", hide_env_values = true, default_value_t = 10, value_parser = value_parser!(u32).range(2..=3600))]
    pub seconds: u32,
    /// Rates offered, as parts of what a stock standby with one core and without readers
    /// replays at most
    #[arg(long, value_name = "PARTS", value_delimiter = ',', default_values_t = RATES, value_parser = rate)]
    pub rates: Vec<f64>,
    /// Cases to run, separated by commas
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = CurveCase::ALL)]
    pub cases: Vec<CurveCase>,
    /// Variants to run, separated by commas
    #[arg(long, value_enum, value_name = "VARIANTS", value_delimiter = ',', default_values_t = [Variant::Stock, Variant::Lockstep])]
    pub variants: Vec<Variant>,
    /// Readers in the cases that have some; each sums 3,000 rows at a time
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = value_parser!(u32).range(1..=900))]
    pub readers: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
    /// Seconds of writes that are replayed before anything is measured: they hold the full-page
    /// images that follow a checkpoint
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = value_parser!(u32).range(1..=3600))]
    pub lead_in: u32,
    /// Seconds of writes recorded after those; at high rates they may not last for --seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 100, value_parser = value_parser!(u32).range(1..=36000))]
    pub record_seconds: u32,
    /// A setting for the Lockstep standby, for experiments; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(part) if (0.01..=100.0).contains(&part) => Ok(part),
        _ => Err("a rate is a number from 0.01 to 100".to_owned()),
    }
}

/// Who reads while WAL is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CurveCase {
    /// Nobody.
    Idle,
    /// As many as --readers says.
    Readers,
    /// Nobody; the standby has both cores, and shares them with the player.
    IdleTwoCores,
    /// As many as --readers says; the standby has both cores.
    ReadersTwoCores,
}

impl CurveCase {
    /// All.
    pub const ALL: [Self; 4] = [
        Self::Idle,
        Self::Readers,
        Self::IdleTwoCores,
        Self::ReadersTwoCores,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Readers => "readers",
            Self::IdleTwoCores => "idle-two-cores",
            Self::ReadersTwoCores => "readers-two-cores",
        }
    }

    fn reads(self) -> bool {
        matches!(self, Self::Readers | Self::ReadersTwoCores)
    }

    /// The standby has one core, and the player the other.
    fn is_apart(self) -> bool {
        matches!(self, Self::Idle | Self::Readers)
    }
}

/// One rate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CurveFigures {
    pub offered_mb_per_s: f64,
    /// While it was measured.
    pub replayed_mb_per_s: f64,
    pub lag_p50_ms: f64,
    pub lag_p99_ms: f64,
    pub lag_max_ms: f64,
    pub lag_end_ms: f64,
    pub lag_slope_ms_per_s: f64,
    /// The slope is that of a standby that keeps up.
    pub lag_bounded: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_tps: Option<f64>,
    pub seconds: f64,
    /// Of the standby.
    pub cpu_s: f64,
    /// Of its startup process, which replays.
    pub startup_cpu_s: f64,
    pub standby_sample_gap_p99_ms: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
}

/// The WAL that is offered.
pub struct CurveScene {
    recorded: Recorded,
    /// What a stock standby without readers replays of it at most, MB/s.
    limit: f64,
}

impl Benchmark for LoadCurveArgs {
    const NAME: &'static str = "load-curve";

    /// Who reads, and the rate as a part of the limit.
    type Case = (CurveCase, f64);
    type Variant = Variant;
    type Figures = CurveFigures;
    type Scene = CurveScene;

    fn place(&self) -> &PlaceArgs {
        &self.place
    }

    fn options(&self) -> String {
        format!(
            "--pg {} --rounds {} --seconds {} --rates {} --cases {} \
             --variants {} --readers {} --scale {} --lead-in {} --record-seconds {}{}",
            self.place.server.pg,
            self.rounds,
            self.seconds,
            joined(&self.rates),
            joined(self.cases.iter().map(|case| case.name())),
            joined(self.variants.iter().map(|variant| variant.name())),
            self.readers,
            self.scale,
            self.lead_in,
            self.record_seconds,
            set_options(&self.set),
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB_BASE + SPACE_MB_PER_SECOND * u64::from(self.lead_in + self.record_seconds)
    }

    fn needs_extension(&self) -> bool {
        self.variants.contains(&Variant::Lockstep)
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn cases(&self) -> Vec<Self::Case> {
        let with_rates = |&case: &CurveCase| self.rates.iter().map(move |&part| (case, part));
        self.cases.iter().flat_map(with_rates).collect()
    }

    fn case_name(&self, (case, _): &Self::Case) -> String {
        case.name().to_owned()
    }

    fn variants(&self, _case: &Self::Case) -> Vec<Variant> {
        self.variants.clone()
    }

    fn ahead(&self, plan: &[TurnOf<Self>]) -> Ahead {
        Ahead::Steps(plan.len() + 2)
    }

    /// Records, and finds how much of it a stock standby replays at most.
    fn open(&self, site: Site<'_>, audience: &mut dyn Audience) -> Result<CurveScene> {
        audience.begin("recording");
        let recorded = self.record(site)?;
        let steady = u64::from(recorded.recording.end())
            .saturating_sub(recorded.lead_in.map_or(0, u64::from)) as f64
            / 1e6;
        audience.end(&format!("{} MB after the lead-in", count(steady)));
        audience.begin("finding the limit of a stock standby without readers");
        let spec = self.spec(&recorded, CurveCase::Idle, Variant::Stock);
        let outcome = round::run(site.lab, "trial", &spec)?;
        let limit = outcome.replayed_bytes as f64 / 1e6 / outcome.seconds.max(0.001);
        audience.end(&format!("{limit:.1} MB/s"));
        let most = self.rates.iter().copied().fold(0.0, f64::max) * limit;
        if steady < most * LEAST_SECONDS {
            return Err(BenchError::Unusable(format!(
                "{steady:.0} MB of WAL were recorded, too little to offer {most:.0} MB/s for {LEAST_SECONDS} s; \
                 record for more --record-seconds"
            )));
        }
        Ok(CurveScene { recorded, limit })
    }

    fn label(&self, scene: &CurveScene, turn: &TurnOf<Self>) -> String {
        let (case, part) = turn.case;
        format!(
            "{} {:.1} MB/s {} {}",
            case.name(),
            part * scene.limit,
            turn.round,
            turn.variant.name()
        )
    }

    fn measure(
        &self,
        site: Site<'_>,
        scene: &mut CurveScene,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<CurveFigures> {
        let (case, part) = turn.case;
        let spec = RoundSpec {
            pace: Pace::Rate(part * scene.limit * 1e6),
            until: Until::Over(Duration::from_secs(u64::from(self.seconds))),
            ..self.spec(&scene.recorded, case, turn.variant)
        };
        let outcome = round::run(site.lab, turn.variant.name(), &spec)?;
        let lag = outcome.lag.ok_or_else(|| {
            let words = "there are too few samples of lag; use more --seconds";
            BenchError::Unusable(words.to_owned())
        })?;
        let seconds = outcome.seconds.max(0.001);
        Ok(CurveFigures {
            offered_mb_per_s: megabytes(outcome.offered_bytes as f64 / seconds),
            replayed_mb_per_s: megabytes(outcome.replayed_bytes as f64 / seconds),
            lag_p50_ms: rounded(lag.p50_ms),
            lag_p99_ms: rounded(lag.p99_ms),
            lag_max_ms: rounded(lag.max_ms),
            lag_end_ms: rounded(lag.end_ms),
            lag_slope_ms_per_s: rounded(lag.slope_ms_per_s),
            lag_bounded: lag.slope_ms_per_s < BOUNDED_SLOPE_MS_PER_S,
            read_tps: outcome.read_tps.map(rounded),
            seconds: rounded(outcome.seconds),
            cpu_s: rounded(outcome.usage.cpu_s),
            startup_cpu_s: rounded(outcome.usage.startup_cpu_s),
            standby_sample_gap_p99_ms: rounded(outcome.gap_p99_ms),
            settings: settings_text(turn.variant, &self.set),
        })
    }

    fn line(&self, figures: &CurveFigures) -> String {
        let reads = figures
            .read_tps
            .map(|tps| format!(", reads {}/s", count(tps)));
        format!(
            "lag p50 {}, p99 {}, {}{}",
            ms(figures.lag_p50_ms),
            ms(figures.lag_p99_ms),
            slope(figures.lag_slope_ms_per_s),
            reads.unwrap_or_default()
        )
    }

    fn plot(
        &self,
        _scene: &CurveScene,
        case: &str,
        results: &Results<CurveFigures>,
    ) -> Option<Plot> {
        let panel = |title, axis, value| panel(results, case, title, axis, value);
        let mut panels = vec![
            panel("Replay lag, median", Axis::LogMs, |row| {
                Some(row.lag_p50_ms)
            }),
            panel("Replay lag, 99th percentile", Axis::LogMs, |row| {
                Some(row.lag_p99_ms)
            }),
            panel("WAL replayed, MB/s", Axis::Count, |row| {
                Some(row.replayed_mb_per_s)
            }),
        ];
        let mut who = "no readers".to_owned();
        let reads = |of: &CurveCase| of.name() == case && of.reads();
        if CurveCase::ALL.iter().any(reads) {
            panels.push(panel("Reads a second", Axis::Count, |row| row.read_tps));
            who = format!("{} readers", self.readers);
        }
        let title = format!(
            "Lag against offered WAL, {who}, {} s a rate, PostgreSQL {}",
            self.seconds, self.place.server.pg
        );
        Some(Plot {
            file: format!("{}-{case}.svg", Self::NAME),
            svg: lines::svg_over(&title, "MB/s", &panels),
        })
    }

    fn headline(&self, results: &Results<CurveFigures>) -> Option<Headline> {
        let case = HEADLINE_CASE.name();
        let highest = |variant: Variant| highest_bounded(results, case, variant.name());
        let (ours, stock) = (highest(Variant::Lockstep)?, highest(Variant::Stock)?);
        Some(Headline {
            metric: format!("{case}: highest offered rate with bounded lag, MB/s"),
            ours,
            stock,
            ratio: ratio(ours, stock, 2),
        })
    }

    fn columns(&self) -> Vec<Column<CurveFigures>> {
        let [case, variant] = of_case_and_variant("case", "variant");
        vec![
            case,
            variant,
            median("offered MB/s", |row| Some(row.offered_mb_per_s), tenths),
            median("replayed MB/s", |row| Some(row.replayed_mb_per_s), tenths),
            median("lag p50", |row| Some(row.lag_p50_ms), ms),
            median("p99", |row| Some(row.lag_p99_ms), ms),
            median("slope", |row| Some(row.lag_slope_ms_per_s), slope),
            column("bounded", |row| {
                let bounded = row.first().figures.lag_bounded;
                Some(if bounded { "yes" } else { "no" }.to_owned())
            }),
            median("reads/s", |row| row.read_tps, count),
            median(
                "startup CPU",
                |row| Some(100.0 * row.startup_cpu_s / row.seconds.max(0.001)),
                percent,
            ),
        ]
    }

    fn groups<'r>(&self, results: &'r Results<CurveFigures>) -> Vec<Group<'r, CurveFigures>> {
        results.each_row()
    }

    fn remarks(&self, results: &Results<CurveFigures>) -> Vec<String> {
        let line = |headline: &Headline| {
            format!(
                "{}: stock {:.1}, lockstep {:.1}",
                headline.metric, headline.stock, headline.ours
            )
        };
        results.headline.iter().map(line).collect()
    }
}

impl LoadCurveArgs {
    fn record(&self, site: Site<'_>) -> Result<Recorded> {
        let size = WorkSize {
            scale: self.scale,
            warehouses: 1,
            rows: 1,
            clients: WRITERS,
        };
        let amount = Amount {
            lead_in: Some(Duration::from_secs(u64::from(self.lead_in))),
            bytes: u64::MAX,
            longest: Duration::from_secs(u64::from(self.record_seconds)),
        };
        work::record(site.lab, Work::TpcB, size, amount)
    }

    /// A round in which everything is replayed as fast as it goes.
    fn spec<'r>(&self, recorded: &'r Recorded, case: CurveCase, variant: Variant) -> RoundSpec<'r> {
        RoundSpec {
            standby: StandbySpec {
                recording: &recorded.recording,
                data_bytes: recorded.data_bytes,
                temperature: Temperature::Cached,
                settings: variant.standby_settings(&self.set),
            },
            apart: case.is_apart(),
            pace: Pace::Unlimited,
            lead_in: recorded.lead_in,
            readers: case.reads().then_some(Readers {
                workload: Workload::Aggregate,
                clients: self.readers,
                scale: self.scale,
            }),
            until: Until::Replayed,
        }
    }
}

/// The highest rate below which every round of a variant had bounded lag, MB/s; 0 if none.
fn highest_bounded(results: &Results<CurveFigures>, case: &str, variant: &str) -> Option<f64> {
    let mut rows: Vec<&CurveFigures> = results
        .rows_of(case, variant)
        .map(|row| &row.figures)
        .collect();
    if rows.is_empty() {
        return None;
    }
    rows.sort_by(|a, b| a.offered_mb_per_s.total_cmp(&b.offered_mb_per_s));
    let bounded = rows.iter().take_while(|row| row.lag_bounded);
    Some(bounded.last().map_or(0.0, |row| row.offered_mb_per_s))
}

/// A figure of a case over the offered rate, with a line for each variant that has it.
fn panel(
    results: &Results<CurveFigures>,
    case: &str,
    title: &str,
    axis: Axis,
    value: fn(&CurveFigures) -> Option<f64>,
) -> Panel {
    let line = |variant: Variant| {
        let mut points: Vec<(f64, f64)> = results
            .rows_of(case, variant.name())
            .filter_map(|row| Some((row.figures.offered_mb_per_s, value(&row.figures)?)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line {
            name: variant.title().to_owned(),
            color: color(variant),
            points,
            band: vec![],
        }
    };
    let lines = [Variant::Stock, Variant::Lockstep].map(line).into_iter();
    Panel {
        title: title.to_owned(),
        axis,
        lines: lines.filter(|line| !line.points.is_empty()).collect(),
    }
}
