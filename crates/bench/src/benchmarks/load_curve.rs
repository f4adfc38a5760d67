//! `lockstep-lab bench load-curve`: replay lag against the rate at which WAL is offered.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};
use lockstep_lab::workload::Workload;
use lockstep_player::Pace;
use lockstep_service::words::figures::{count, hundredths, ms, of_hundred, percent, slope, tenths};
use serde::{Deserialize, Serialize};

use crate::args::{
    RunArgs, SecondsArgs, VariantsArgs, joined, rounds, seconds, set_options, setting, writes,
};
use crate::audience::{Ahead, Audience};
use crate::benchmark::{Benchmark, Plot, Site, TurnOf};
use crate::plot::lines::{self, Axis, Line, Panel};
use crate::plot::trials::color;
use crate::replay::curve::{CurveCase, LIGHT_COMMITS, Unit};
use crate::replay::knee::Knee;
use crate::replay::round::{self, Outcome, Readers, RoundSpec, StandbySpec, Until};
use crate::replay::work::{Amount, Recorded, Work, WorkSize};
use crate::replay::{parallel, shelf};
use crate::results::{Headline, Results, megabytes, ratio, rounded};
use crate::table::{Column, Group, by_case_and_variant, column, median};
use crate::trial::Variant;
use crate::{BenchError, Result};

/// The case that the headline is about.
const HEADLINE_CASE: CurveCase = CurveCase::Readers;

/// Lag that grows by less than this counts as bounded, ms a second. At the offered rates
/// just above the limit it grows by tens to hundreds.
const BOUNDED_SLOPE_MS_PER_S: f64 = 10.0;

/// Most seconds of a trial in the search for a case's unit.
const LONGEST_TRIAL: u32 = 6;

/// Part of the time in which the startup process runs or waits for a core, at least, where it is what
/// limits replay.
const BUSY: f64 = 0.95;

/// Megabytes that a run may need beside the recording.
const SPACE_MB_BASE: u64 = 2_000;
/// Megabytes that a run may need for each second of writes that are recorded.
const SPACE_MB_PER_SECOND: u64 = 50;

/// Sessions that write while it is recorded: each branch is a row that they wait for.
const WRITERS: u32 = 8;

/// The shortest time for which the highest rate may be offered, in seconds.
const LEAST_SECONDS: f64 = 4.0;

/// Replay lag against the rate at which WAL is offered, idle and under readers
///
/// Offers WAL of TPC-B and TPC-C at set rates to fresh standbys. Rates are parts of what a stock
/// standby replays at most, or of the highest rate at which its lag stays bounded, which the run
/// finds first. Without options it takes some 25 minutes. Writes load-curve.json and a plot for
/// each case into the results folder.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Rounds of each rate", "1")),
    mut_arg("seconds", seconds("Seconds measured at each rate", "10", 2)),
    mut_arg("results", writes("load-curve.json and the plots"))
)]
pub struct LoadCurveArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub time: SecondsArgs,
    /// Rates offered in all cases but light, as parts of what stock replays at most (idle, readers)
    /// or of its highest bounded rate without readers (the other cases) [default: 4 or 5 rates
    /// from 0.4 to 1.45, by the case]
    #[arg(long, value_name = "PARTS", value_delimiter = ',', value_parser = rate)]
    pub rates: Vec<f64>,
    /// Megabytes a second that rates are parts of, in place of what stock turns out to replay
    #[arg(long, value_name = "MB_PER_S", value_parser = rate)]
    pub unit: Option<f64>,
    /// Cases to run, separated by commas
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = CurveCase::ALL)]
    pub cases: Vec<CurveCase>,
    #[command(flatten)]
    pub compared: VariantsArgs,
    /// Readers in the cases that have some; each sums 3,000 rows at a time
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = value_parser!(u32).range(1..=900))]
    pub readers: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
    /// TPC-C warehouses
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=1000))]
    pub warehouses: u32,
    /// Seconds of writes that are replayed before anything is measured: they hold the full-page
    /// images that follow a checkpoint
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = value_parser!(u32).range(1..=3600))]
    pub lead_in: u32,
    /// Seconds of writes recorded after those; at high rates they may not last for --seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 160, value_parser = value_parser!(u32).range(1..=36000))]
    pub record_seconds: u32,
    /// Folder in which recordings are kept for later runs; without it they are removed
    #[arg(
        long,
        value_name = "FOLDER",
        env = "BENCH_RECORDINGS",
        hide_env_values = true
    )]
    pub recordings: Option<PathBuf>,
    /// A setting for the Lockstep standby, beside lockstep.replay_workers=1 and
    /// lockstep.replay_hot_standby=on, or in place of one of them; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(part) if (0.01..=10_000.0).contains(&part) => Ok(part),
        _ => Err("a rate is a number from 0.01 to 10000".to_owned()),
    }
}

/// One rate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CurveFigures {
    /// Which part of the case's unit was to be offered; rows of before 2026-11-24 lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_part: Option<f64>,
    pub offered_mb_per_s: f64,
    /// Rate of replay during the measurement.
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
    /// CPU seconds of the standby.
    pub cpu_s: f64,
    /// CPU seconds of the standby's startup process, which replays.
    pub startup_cpu_s: f64,
    /// Seconds for which the startup process could have run but had no core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_waited_s: Option<f64>,
    /// CPU seconds of the player and of what measures. Both share the standby's cores in most cases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub player_cpu_s: Option<f64>,
    pub standby_sample_gap_p99_ms: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
}

/// The WAL that is offered, and what the rates are parts of.
#[derive(Default)]
pub struct CurveScene {
    recorded: Option<(Work, Recorded)>,
    /// MB/s.
    units: Vec<(Unit, f64)>,
}

impl CurveScene {
    fn recorded(&self) -> Result<&Recorded> {
        let recorded = self.recorded.as_ref().map(|(_, recorded)| recorded);
        recorded.ok_or_else(BenchError::not_readied)
    }

    /// Bytes a second; None if it is not known yet.
    fn unit(&self, unit: Unit) -> Option<f64> {
        let mut units = self.units.iter();
        units.find(|(its, _)| *its == unit).map(|(_, mb)| mb * 1e6)
    }

    fn pace(&self, (case, part): (CurveCase, f64)) -> Result<Pace> {
        match case.unit() {
            Unit::Commits => Ok(Pace::Commits(part * LIGHT_COMMITS)),
            unit => {
                let unit = self.unit(unit).ok_or_else(BenchError::not_readied)?;
                Ok(Pace::Rate(part * unit))
            }
        }
    }
}

impl Benchmark for LoadCurveArgs {
    const NAME: &'static str = "load-curve";

    /// Who reads, and the rate as a part of the case's unit.
    type Case = (CurveCase, f64);
    type Variant = Variant;
    type Figures = CurveFigures;
    type Scene = CurveScene;

    fn options(&self) -> String {
        let rates = match self.rates.as_slice() {
            [] => String::new(),
            rates => format!(" --rates {}", joined(rates)),
        };
        let unit = self.unit.map(|unit| format!(" --unit {unit}"));
        let unit = unit.unwrap_or_default();
        format!(
            "{} --seconds {}{rates}{unit} --cases {} --variants {} --readers {} \
             --scale {} --warehouses {} --lead-in {} --record-seconds {}{}",
            self.run,
            self.time.seconds,
            joined(self.cases.iter().map(|case| case.name())),
            self.compared,
            self.readers,
            self.scale,
            self.warehouses,
            self.lead_in,
            self.record_seconds,
            set_options(&self.set),
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB_BASE + SPACE_MB_PER_SECOND * u64::from(self.lead_in + self.record_seconds)
    }

    fn needs_extension(&self) -> bool {
        self.compared.has(Variant::Lockstep)
    }

    fn cases(&self) -> Vec<Self::Case> {
        let chosen = CurveCase::ALL.into_iter();
        let chosen = chosen.filter(|case| self.cases.contains(case));
        let with_rates = |case: CurveCase| {
            case.rates(&self.rates)
                .into_iter()
                .map(move |part| (case, part))
        };
        chosen.flat_map(with_rates).collect()
    }

    fn case_name(&self, (case, _): &Self::Case) -> String {
        case.name().to_owned()
    }

    fn variants(&self, _case: &Self::Case) -> Vec<Variant> {
        self.compared.variants.clone()
    }

    fn ahead(&self, plan: &[TurnOf<Self>]) -> Ahead {
        Ahead::Steps(plan.len())
    }

    fn open(&self, _site: Site<'_>, _audience: &mut dyn Audience) -> Result<CurveScene> {
        Ok(CurveScene::default())
    }

    /// Records, and finds what the case's rates are parts of.
    fn enter(
        &self,
        site: Site<'_>,
        scene: &mut CurveScene,
        &(case, _): &Self::Case,
        audience: &mut dyn Audience,
    ) -> Result<()> {
        let work = case.work();
        if scene.recorded.as_ref().is_none_or(|(its, _)| *its != work) {
            self.leave(scene)?;
            scene.recorded = Some((work, self.record(site, work, audience)?));
        }
        let unit = case.unit();
        if unit == Unit::Commits {
            return Ok(());
        }
        if scene.unit(unit).is_none() {
            let found = self.find(site, scene.recorded()?, unit, audience)?;
            scene.units.push((unit, found));
        }
        let parts = case.rates(&self.rates).into_iter().fold(0.0, f64::max);
        let megabytes = scene.unit(unit).unwrap_or_default() / 1e6;
        suffices(scene.recorded()?, parts * megabytes)
    }

    fn label(&self, scene: &CurveScene, turn: &TurnOf<Self>) -> String {
        let (case, variant) = (turn.case.0.name(), turn.variant.name());
        let pace = match scene.pace(turn.case) {
            Ok(Pace::Rate(rate)) => format!("{:.1} MB/s", rate / 1e6),
            Ok(pace) => pace.to_string(),
            Err(_) => String::new(),
        };
        format!("{case} {pace} {} {variant}", turn.round)
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
            pace: scene.pace(turn.case)?,
            until: Until::Over(self.time.length()),
            ..self.spec(scene.recorded()?, case, turn.variant)
        };
        let outcome = round::run(site.lab, turn.variant.name(), &spec)?;
        let figures = figures(&outcome)?;
        Ok(CurveFigures {
            rate_part: Some(part),
            settings: parallel::settings_text(turn.variant, case.temperature(), &self.set),
            ..figures
        })
    }

    fn line(&self, figures: &CurveFigures) -> String {
        let reads = figures
            .read_tps
            .map(|tps| format!(", reads {}/s", count(tps)));
        format!(
            "lag p50 {}, p99 {}, {}, startup {} busy{}",
            ms(figures.lag_p50_ms),
            ms(figures.lag_p99_ms),
            slope(figures.lag_slope_ms_per_s),
            percent(figures.startup_share()),
            reads.unwrap_or_default()
        )
    }

    fn plot(
        &self,
        _scene: &CurveScene,
        case: &str,
        results: &Results<CurveFigures>,
    ) -> Option<Plot> {
        if case == CurveCase::Light.name() {
            return None;
        }
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
        let case = CurveCase::ALL.into_iter().find(|of| of.name() == case)?;
        let mut who = "no readers".to_owned();
        if case.reads() {
            panels.push(panel("Reads a second", Axis::Count, |row| row.read_tps));
            who = format!("{} readers", self.readers);
        }
        let title = format!(
            "Lag against offered WAL, {}, {who}, {} s a rate, PostgreSQL {}",
            case.work().name(),
            self.time.seconds,
            self.run.server.pg
        );
        Some(Plot {
            file: format!("{}-{}.svg", Self::NAME, case.name()),
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
        by_case_and_variant(
            "case",
            [
                median("of unit", |row| row.rate_part, hundredths),
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
                    |row| Some(100.0 * row.startup_share()),
                    of_hundred,
                ),
                median(
                    "waits",
                    |row| row.waited_share().map(|part| 100.0 * part),
                    of_hundred,
                ),
                median("player CPU", CurveFigures::player_share, of_hundred),
            ],
        )
    }

    fn groups<'r>(&self, results: &'r Results<CurveFigures>) -> Vec<Group<'r, CurveFigures>> {
        results.each_row()
    }

    fn remarks(&self, results: &Results<CurveFigures>) -> Vec<String> {
        let lines = |case: CurveCase| [highest(results, case), knee(results, case)];
        CurveCase::ALL
            .into_iter()
            .flat_map(lines)
            .flatten()
            .collect()
    }
}

impl LoadCurveArgs {
    /// The recording of a kind of writes that was kept, or a new one.
    fn record(&self, site: Site<'_>, work: Work, audience: &mut dyn Audience) -> Result<Recorded> {
        let size = WorkSize {
            scale: self.scale,
            warehouses: self.warehouses,
            rows: 1,
            clients: Some(WRITERS),
        };
        let amount = Amount {
            lead_in: Some(Duration::from_secs(u64::from(self.lead_in))),
            bytes: u64::MAX,
            longest: Duration::from_secs(u64::from(self.record_seconds)),
        };
        let name = format!("pg{}-curve-{}", self.run.server.pg, work.name());
        let folder = self.recordings.as_deref();
        let recorded = shelf::recording(site.lab, folder, &name, work, size, amount, audience)?;
        let (work, steady) = (work.name(), count(recorded.steady_megabytes()));
        audience.say(&format!("{work}: {steady} MB of WAL behind the lead-in"));
        Ok(recorded)
    }

    /// Drops the recording of earlier cases, and removes it unless it is kept.
    fn leave(&self, scene: &mut CurveScene) -> Result<()> {
        match scene.recorded.take() {
            Some((_, recorded)) if self.recordings.is_none() => recorded.remove(),
            _ => Ok(()),
        }
    }

    /// What rates are parts of, MB/s.
    fn find(
        &self,
        site: Site<'_>,
        recorded: &Recorded,
        unit: Unit,
        audience: &mut dyn Audience,
    ) -> Result<f64> {
        if let Some(unit) = self.unit {
            return Ok(unit);
        }
        let case = match unit {
            Unit::Knee(case) => case,
            Unit::Replayed | Unit::Commits => CurveCase::Idle,
        };
        let spec = self.spec(recorded, case, Variant::Stock);
        let outcome = round::run(site.lab, "trial", &spec)?;
        let replayed = outcome.replayed_bytes as f64 / 1e6 / outcome.seconds.max(0.001);
        audience.say(&format!(
            "{}: stock replays {replayed:.1} MB/s at most",
            case.name()
        ));
        match unit {
            Unit::Knee(_) => self.find_knee(site, recorded, case, replayed, audience),
            Unit::Replayed | Unit::Commits => Ok(replayed),
        }
    }

    /// The highest rate at which lag of a stock standby stays bounded, MB/s.
    fn find_knee(
        &self,
        site: Site<'_>,
        recorded: &Recorded,
        case: CurveCase,
        guess: f64,
        audience: &mut dyn Audience,
    ) -> Result<f64> {
        let name = case.name();
        let seconds = self.time.seconds.min(LONGEST_TRIAL);
        let mut trial = |rate: f64| {
            suffices(recorded, rate)?;
            let spec = RoundSpec {
                pace: Pace::Rate(rate * 1e6),
                until: Until::Over(Duration::from_secs(u64::from(seconds))),
                ..self.spec(recorded, case, Variant::Stock)
            };
            let figures = figures(&round::run(site.lab, "trial", &spec)?)?;
            audience.say(&format!("{name} {rate:.1} MB/s: {}", self.line(&figures)));
            Ok::<_, BenchError>(figures.lag_bounded)
        };
        let mut knee = Knee::near(guess);
        while let Some(rate) = knee.next() {
            // What disturbs one trial must not make stock look worse than it is.
            let is_bounded = trial(rate)? || trial(rate)?;
            knee.tried(rate, is_bounded);
        }
        let found = knee.found().ok_or_else(|| {
            let words = "no highest rate with bounded lag was found; close other programs and";
            BenchError::Unusable(format!("{name}: {words} run it again"))
        })?;
        audience.say(&format!(
            "{name}: stock's highest bounded rate is {found:.1} MB/s"
        ));
        Ok(found)
    }

    /// A round in which everything is replayed as fast as it goes.
    fn spec<'r>(&self, recorded: &'r Recorded, case: CurveCase, variant: Variant) -> RoundSpec<'r> {
        RoundSpec {
            standby: StandbySpec {
                recording: &recorded.recording,
                data_bytes: recorded.data_bytes,
                temperature: case.temperature(),
                settings: parallel::settings(variant, case.temperature(), &self.set),
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

impl CurveFigures {
    /// Part of a core that the startup process took.
    fn startup_share(&self) -> f64 {
        self.startup_cpu_s / self.seconds.max(0.001)
    }

    /// Part of the time in which the startup process waited for a core.
    fn waited_share(&self) -> Option<f64> {
        Some(self.startup_waited_s? / self.seconds.max(0.001))
    }

    /// Percent of a core that the player took, and what measures.
    fn player_share(&self) -> Option<f64> {
        Some(100.0 * self.player_cpu_s? / self.seconds.max(0.001))
    }
}

/// The figures of a round at a set rate.
fn figures(outcome: &Outcome) -> Result<CurveFigures> {
    let lag = outcome.lag.ok_or_else(|| {
        let words = "there are too few samples of lag; use more --seconds and --record-seconds";
        BenchError::Unusable(words.to_owned())
    })?;
    let seconds = outcome.seconds.max(0.001);
    Ok(CurveFigures {
        rate_part: None,
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
        startup_waited_s: Some(rounded(outcome.usage.startup_waited_s)),
        player_cpu_s: Some(rounded(outcome.player_cpu_s)),
        standby_sample_gap_p99_ms: rounded(outcome.gap_p99_ms),
        settings: None,
    })
}

/// An error if there is too little WAL to offer this many MB/s.
fn suffices(recorded: &Recorded, rate: f64) -> Result<()> {
    let steady = recorded.steady_megabytes();
    match steady < rate * LEAST_SECONDS {
        false => Ok(()),
        true => Err(BenchError::Unusable(format!(
            "{steady:.0} MB of WAL were recorded, too little to offer {rate:.0} MB/s for {LEAST_SECONDS} s; \
             record for more --record-seconds"
        ))),
    }
}

/// The highest bounded rates of a case, in words.
fn highest(results: &Results<CurveFigures>, case: CurveCase) -> Option<String> {
    let of = |variant: Variant| highest_bounded(results, case.name(), variant.name());
    let (stock, ours) = (of(Variant::Stock)?, of(Variant::Lockstep)?);
    let line = format!("highest rate with bounded lag: stock {stock:.1}, lockstep {ours:.1} MB/s");
    (case != CurveCase::Light).then(|| format!("{}: {line}", case.name()))
}

/// How busy stock was at the rate that a case's rates are parts of, in words.
fn knee(results: &Results<CurveFigures>, case: CurveCase) -> Option<String> {
    if case.unit() != Unit::Knee(case) {
        return None;
    }
    let mut rows = results.rows_of(case.name(), Variant::Stock.name());
    let row = &rows.find(|row| row.figures.rate_part == Some(1.0))?.figures;
    let (busy, waits) = (row.startup_share(), row.waited_share().unwrap_or_default());
    let doubt = match busy + waits < BUSY {
        true => ": something else limits its replay too",
        false => "",
    };
    Some(format!(
        "{}: at {:.1} MB/s, of which its rates are parts, stock's startup process is {} busy \
         and waits {} for a core{doubt}",
        case.name(),
        row.offered_mb_per_s,
        percent(busy),
        percent(waits)
    ))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::parsed;
    use serde_json::json;

    #[test]
    fn cases_run_in_the_order_of_recordings_at_their_own_rates() {
        let plan = |options: &str| -> String {
            let args: LoadCurveArgs = parsed(options);
            let cases = args.cases().into_iter();
            let words = cases.map(|(case, part)| format!("{}@{part}", case.name()));
            words.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            plan("--cases tpcc-two-cores,light,idle-two-cores"),
            "idle-two-cores@0.7 idle-two-cores@1 idle-two-cores@1.15 idle-two-cores@1.3 \
             idle-two-cores@1.45 light@1 tpcc-two-cores@0.9 tpcc-two-cores@1 \
             tpcc-two-cores@1.05 tpcc-two-cores@1.2"
        );
        assert_eq!(
            plan("--cases light,tpcc-30pct-two-cores --rates 2"),
            "light@1 tpcc-30pct-two-cores@2"
        );
        let turns = parsed::<LoadCurveArgs>("").plan().len();
        assert_eq!(turns, 2 * (4 * 5 + 1 + 2 * 4));
    }

    /// A file with a row for each variant, part, rate, verdict and CPU of the startup process.
    fn results(rows: &[(&str, f64, f64, bool, f64)]) -> Results<CurveFigures> {
        let row = |&(variant, part, offered, bounded, startup): &(&str, f64, f64, bool, f64)| {
            json!({
                "case": "tpcc-two-cores", "variant": variant, "round": 1, "rate_part": part,
                "offered_mb_per_s": offered, "replayed_mb_per_s": 1, "lag_p50_ms": 1,
                "lag_p99_ms": 1, "lag_max_ms": 1, "lag_end_ms": 1, "lag_slope_ms_per_s": 1,
                "lag_bounded": bounded, "seconds": 10, "cpu_s": 1, "startup_cpu_s": startup,
                "startup_waited_s": 0.1, "player_cpu_s": 1.2, "standby_sample_gap_p99_ms": 1, "date": "d", "commit": "c",
            })
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        let file = json!({
            "name": "load-curve", "command": "c", "commit": "c", "machine": "m", "date": "d",
            "headline": null, "rows": rows,
        });
        serde_json::from_value(file).unwrap()
    }

    #[test]
    fn the_highest_rates_and_how_busy_stock_is_stand_below_the_table() {
        let args: LoadCurveArgs = parsed("");
        let remarks = |startup: f64| {
            args.remarks(&results(&[
                ("stock", 1.0, 100.0, true, startup),
                ("stock", 1.05, 105.0, false, 9.9),
                ("lockstep", 1.0, 100.0, true, 8.0),
                ("lockstep", 1.05, 105.0, true, 8.0),
            ]))
        };
        assert_eq!(
            remarks(9.6),
            [
                "tpcc-two-cores: highest rate with bounded lag: stock 100.0, lockstep 105.0 MB/s",
                "tpcc-two-cores: at 100.0 MB/s, of which its rates are parts, stock's startup \
                 process is 96 % busy and waits 1 % for a core",
            ]
        );
        let doubt = "93 % busy and waits 1 % for a core: something else limits its replay too";
        assert!(remarks(9.3)[1].ends_with(doubt));
        let results = results(&[("stock", 1.0, 100.0, true, 9.6)]);
        assert_eq!(results.rows[0].figures.player_share(), Some(12.0));
    }
}
