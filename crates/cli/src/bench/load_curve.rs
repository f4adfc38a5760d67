//! `lockstep bench load-curve`: replay lag against the rate at which WAL is offered.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum, value_parser};
use lockstep_bench::replay::round::{self, Outcome, Readers, RoundSpec, Until};
use lockstep_bench::replay::temperature::Temperature;
use lockstep_bench::replay::work::{self, Amount, Recorded, Work, WorkSize};
use lockstep_bench::trial::Variant;
use lockstep_lab::cluster::Lab;
use lockstep_lab::machine;
use lockstep_lab::workload::Workload;
use lockstep_player::Pace;
use serde::{Deserialize, Serialize};

use super::results::{Headline, Measured, Results, rounded};

use super::steps::Steps;
use crate::args::{ServerArgs, VariantName, setting};
use crate::plot::{self, Axis, Line, Panel};
use crate::{scene, text};

/// Name of the benchmark and of its files.
const NAME: &str = "load-curve";

/// The case that the headline is about.
const HEADLINE_CASE: CurveCase = CurveCase::Readers;

/// Rates offered by default, as parts of what a stock standby without readers replays at most.
const RATES: [f64; 9] = [0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.25, 1.6];

/// Lag that grows by less than this counts as bounded, ms a second. At the offered rates
/// just above the limit it grows by tens to hundreds.
const BOUNDED_SLOPE_MS_PER_S: f64 = 10.0;

/// Megabytes that a run may need beside WAL.
const SPACE_MB_BASE: u64 = 8_000;

/// Sessions that write while it is recorded: each branch is a row that they wait for.
const WRITERS: u32 = 8;

/// The shortest time for which the highest rate may be offered, in seconds.
const LEAST_SECONDS: f64 = 4.0;

/// `lockstep bench load-curve`
#[derive(Debug, Args)]
pub struct LoadCurveArgs {
    /// Rounds of each rate
    #[arg(long, value_name = "N", env = "BENCH_ROUNDS", hide_env_values = true, default_value_t = 1, value_parser = value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Seconds measured at each rate
    #[arg(long, value_name = "SECONDS", env = "BENCH_SECONDS", hide_env_values = true, default_value_t = 10, value_parser = value_parser!(u32).range(2..=3600))]
    pub seconds: u32,
    /// Rates offered, as parts of what a stock standby without readers replays at most
    #[arg(long, value_name = "PARTS", value_delimiter = ',', default_values_t = RATES, value_parser = rate)]
    pub rates: Vec<f64>,
    /// Cases to run, separated by commas
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = CurveCase::ALL)]
    pub cases: Vec<CurveCase>,
    /// Variants to run, separated by commas
    #[arg(long, value_enum, value_name = "VARIANTS", value_delimiter = ',', default_values_t = [VariantName::Stock, VariantName::Lockstep])]
    pub variants: Vec<VariantName>,
    /// Readers in the case readers; each sums 3,000 rows at a time
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
    /// Folder for load-curve.json and the plots
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    pub results: PathBuf,
    /// Which servers to use.
    #[command(flatten)]
    pub server: ServerArgs,
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
}

impl CurveCase {
    /// All.
    pub const ALL: [Self; 2] = [Self::Idle, Self::Readers];

    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Readers => "readers",
        }
    }
}

/// One rate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub variant: String,
    pub round: u32,
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

/// Runs the benchmark.
pub fn run(args: &LoadCurveArgs) -> anyhow::Result<()> {
    let path = Results::<Row>::place(&args.results, NAME)?;
    let with_extension = args
        .variants
        .iter()
        .any(|variant| variant.variant() == Variant::Lockstep);
    let lab = scene::open_lab(&args.server, with_extension, SPACE_MB_BASE)?;
    let mut results = Results::begin(
        &path,
        NAME,
        command(args),
        machine::describe(lab.folder(), lab.pinning()),
    )?;
    let rounds = args.rates.len() * args.cases.len() * args.variants.len() * args.rounds as usize;
    let mut steps = Steps::new(rounds + 2);
    steps.say(&format!("{} ({})", results.command, results.machine));
    let (recorded, limit) = prepare(args, &lab, &mut steps)?;
    for &case in &args.cases {
        let mut rows = Vec::new();
        for rate in args.rates.iter().map(|part| part * limit) {
            for round in 1..=args.rounds {
                for name in &args.variants {
                    let key = Key {
                        case,
                        variant: name.variant(),
                        round,
                        rate,
                    };
                    rows.push(offer(
                        args,
                        &lab,
                        &key,
                        &recorded,
                        &results.commit,
                        &mut steps,
                    )?);
                }
            }
        }
        results.replace(case.name(), rows, vec![]);
        results.date = machine::date();
        results.headline = headline(&results);
        results.save(&path)?;
        draw(args, case, &results)?;
    }
    recorded.remove()?;
    drop(lab);
    for line in text::table(&table(&results)) {
        steps.say(&line);
    }
    if let Some(headline) = &results.headline {
        steps.say(&format!(
            "{}: stock {:.1}, lockstep {:.1}",
            headline.metric, headline.stock, headline.ours
        ));
    }
    steps.say(&format!("written to {}", scene::absolute(&path).display()));
    Ok(())
}

/// Records, and finds how much of it a stock standby replays at most.
fn prepare(args: &LoadCurveArgs, lab: &Lab, steps: &mut Steps) -> anyhow::Result<(Recorded, f64)> {
    steps.begin("recording");
    let recorded = record(args, lab)?;
    let steady = u64::from(recorded.recording.end())
        .saturating_sub(recorded.lead_in.map_or(0, u64::from)) as f64
        / 1e6;
    steps.end(&format!("{} MB after the lead-in", text::count(steady)));
    steps.begin("finding the limit of a stock standby without readers");
    let spec = RoundSpec {
        recording: &recorded.recording,
        data_bytes: recorded.data_bytes,
        temperature: Temperature::Cached,
        settings: scene::standby_settings(Variant::Stock, &[]),
        pace: Pace::Unlimited,
        lead_in: recorded.lead_in,
        readers: None,
        until: Until::Replayed,
    };
    let outcome = round::run(lab, "trial", &spec)?;
    let limit = outcome.replayed_bytes as f64 / 1e6 / outcome.seconds.max(0.001);
    steps.end(&format!("{limit:.1} MB/s"));
    let most = args.rates.iter().copied().fold(0.0, f64::max) * limit;
    if steady < most * LEAST_SECONDS {
        bail!(
            "{steady:.0} MB of WAL were recorded, too little to offer {most:.0} MB/s for {LEAST_SECONDS} s; \
             record for more --record-seconds"
        );
    }
    Ok((recorded, limit))
}

fn record(args: &LoadCurveArgs, lab: &Lab) -> anyhow::Result<Recorded> {
    let size = WorkSize {
        scale: args.scale,
        warehouses: 1,
        rows: 1,
        clients: WRITERS,
    };
    let amount = Amount {
        lead_in: Some(Duration::from_secs(u64::from(args.lead_in))),
        bytes: u64::MAX,
        longest: Duration::from_secs(u64::from(args.record_seconds)),
    };
    Ok(work::record(lab, Work::TpcB, size, amount)?)
}

struct Key {
    case: CurveCase,
    variant: Variant,
    round: u32,
    /// MB/s.
    rate: f64,
}

fn offer(
    args: &LoadCurveArgs,
    lab: &Lab,
    key: &Key,
    recorded: &Recorded,
    commit: &str,
    steps: &mut Steps,
) -> anyhow::Result<Row> {
    steps.begin(&format!(
        "{} {:.1} MB/s {} {}",
        key.case.name(),
        key.rate,
        key.round,
        key.variant.name()
    ));
    let spec = RoundSpec {
        recording: &recorded.recording,
        data_bytes: recorded.data_bytes,
        temperature: Temperature::Cached,
        settings: scene::standby_settings(key.variant, &args.set),
        pace: Pace::Rate(key.rate * 1e6),
        lead_in: recorded.lead_in,
        readers: (key.case == CurveCase::Readers).then_some(Readers {
            workload: Workload::Aggregate,
            clients: args.readers,
            scale: args.scale,
        }),
        until: Until::Over(Duration::from_secs(u64::from(args.seconds))),
    };
    let outcome = round::run(lab, key.variant.name(), &spec)?;
    let row = row(key, &outcome, &args.set, commit)?;
    steps.end(&format!(
        "lag p50 {}, p99 {}, {}{}",
        text::ms(row.lag_p50_ms),
        text::ms(row.lag_p99_ms),
        text::slope(row.lag_slope_ms_per_s),
        row.read_tps
            .map_or_else(String::new, |tps| format!(", reads {}/s", text::count(tps)))
    ));
    Ok(row)
}

fn row(
    key: &Key,
    outcome: &Outcome,
    set: &[(String, String)],
    commit: &str,
) -> anyhow::Result<Row> {
    let lag = outcome
        .lag
        .context("there are too few samples of lag; use more --seconds")?;
    let seconds = outcome.seconds.max(0.001);
    Ok(Row {
        case: key.case.name().to_owned(),
        variant: key.variant.name().to_owned(),
        round: key.round,
        offered_mb_per_s: rounded(outcome.offered_bytes as f64 / 1e6 / seconds),
        replayed_mb_per_s: rounded(outcome.replayed_bytes as f64 / 1e6 / seconds),
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
        settings: super::settings_text(key.variant, set),
        date: machine::date(),
        commit: commit.to_owned(),
    })
}

/// The command with every choice spelled out, wherever it came from.
fn command(args: &LoadCurveArgs) -> String {
    let cases: Vec<_> = args.cases.iter().map(|case| case.name()).collect();
    let variants: Vec<_> = args.variants.iter().map(|v| v.variant().name()).collect();
    let rates: Vec<_> = args.rates.iter().map(f64::to_string).collect();
    format!(
        "lockstep bench load-curve --pg {} --rounds {} --seconds {} --rates {} --cases {} \
         --variants {} --readers {} --scale {} --lead-in {} --record-seconds {}{}",
        args.server.pg,
        args.rounds,
        args.seconds,
        rates.join(","),
        cases.join(","),
        variants.join(","),
        args.readers,
        args.scale,
        args.lead_in,
        args.record_seconds,
        super::set_options(&args.set),
    )
}

/// The highest rate below which every round of a variant had bounded lag, MB/s; 0 if none.
fn highest_bounded(results: &Results<Row>, case: CurveCase, variant: Variant) -> Option<f64> {
    let mut rows: Vec<&Row> = results
        .rows
        .iter()
        .filter(|row| row.case == case.name() && row.variant == variant.name())
        .collect();
    if rows.is_empty() {
        return None;
    }
    rows.sort_by(|a, b| a.offered_mb_per_s.total_cmp(&b.offered_mb_per_s));
    let bounded = rows.iter().take_while(|row| row.lag_bounded);
    Some(bounded.last().map_or(0.0, |row| row.offered_mb_per_s))
}

fn headline(results: &Results<Row>) -> Option<Headline> {
    let highest = |variant| highest_bounded(results, HEADLINE_CASE, variant);
    let (ours, stock) = (highest(Variant::Lockstep)?, highest(Variant::Stock)?);
    Some(Headline {
        metric: format!(
            "{}: highest offered rate with bounded lag, MB/s",
            HEADLINE_CASE.name()
        ),
        ours,
        stock,
        ratio: (stock > 0.0).then(|| (ours / stock * 100.0).round() / 100.0),
    })
}

fn draw(args: &LoadCurveArgs, case: CurveCase, results: &Results<Row>) -> anyhow::Result<()> {
    let line = |variant: Variant, value: fn(&Row) -> Option<f64>| {
        let mut points: Vec<(f64, f64)> = results
            .rows
            .iter()
            .filter(|row| row.case == case.name() && row.variant == variant.name())
            .filter_map(|row| Some((row.offered_mb_per_s, value(row)?)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line {
            name: scene::title(variant).to_owned(),
            color: scene::color(variant),
            points,
            band: vec![],
        }
    };
    let panel = |title: &str, axis, value: fn(&Row) -> Option<f64>| Panel {
        title: title.to_owned(),
        axis,
        lines: [Variant::Stock, Variant::Lockstep]
            .map(|variant| line(variant, value))
            .into_iter()
            .filter(|line| !line.points.is_empty())
            .collect(),
    };
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
    if case == CurveCase::Readers {
        panels.push(panel("Reads a second", Axis::Count, |row| row.read_tps));
    }
    let who = match case {
        CurveCase::Idle => "no readers".to_owned(),
        CurveCase::Readers => format!("{} readers", args.readers),
    };
    let title = format!(
        "Lag against offered WAL, {who}, {} s a rate, PostgreSQL {}",
        args.seconds, args.server.pg
    );
    let path = args.results.join(format!("{NAME}-{}.svg", case.name()));
    fs::write(&path, plot::svg_over(&title, "MB/s", &panels))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn table(results: &Results<Row>) -> Vec<Vec<String>> {
    let mut table = vec![
        [
            "case",
            "variant",
            "offered MB/s",
            "replayed MB/s",
            "lag p50",
            "p99",
            "slope",
            "bounded",
            "reads/s",
            "startup CPU",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    table.extend(results.rows.iter().map(|row| {
        vec![
            row.case.clone(),
            row.variant.clone(),
            format!("{:.1}", row.offered_mb_per_s),
            format!("{:.1}", row.replayed_mb_per_s),
            text::ms(row.lag_p50_ms),
            text::ms(row.lag_p99_ms),
            text::slope(row.lag_slope_ms_per_s),
            if row.lag_bounded { "yes" } else { "no" }.to_owned(),
            row.read_tps.map_or_else(|| "-".to_owned(), text::count),
            format!(
                "{:.0} %",
                100.0 * row.startup_cpu_s / row.seconds.max(0.001)
            ),
        ]
    }));
    table
}
