//! `lockstep bench priority`: replay lag under readers, stock and Lockstep alternating.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use lockstep_bench::trial::{self, Outcome, Size, TrialSpec, Variant};
use lockstep_lab::cluster::Lab;
use lockstep_lab::machine;
use lockstep_lab::server::Server;
use lockstep_lab::workload::Workload;

use super::priority_rows::{Key, Point, Row};
use super::results::{self, Headline};
use crate::args::{Case, Output, PriorityArgs};
use crate::live::{Live, Phase};
use crate::scene;
use crate::{plot, text};

/// What the benchmark has measured.
type Results = results::Results<Row, Point>;

/// Name of the benchmark and of its files.
const NAME: &str = "priority";

/// The case that the headline is about.
const HEADLINE_CASE: Case = Case::Aggregate;

/// Distance of the points of a long round, in seconds.
const SERIES_SECONDS: u64 = 5;

/// The long case is this many times as long as the others.
const LONG_FACTOR: u32 = 10;

/// Megabytes that a run may need: primary, standby, and the WAL of both.
const SPACE_MB_BASE: u64 = 2_000;
/// The same for each second measured, as a lagging standby keeps all WAL.
const SPACE_MB_PER_SECOND: u64 = 10;

/// Cases that read alike and so share their stock rounds, in one round after the other.
const SHARING: [Case; 2] = [Case::Aggregate, Case::ThrottleOnly];

/// One trial of the plan.
struct Planned {
    /// What it counts for: several cases only for a stock trial.
    cases: Vec<Case>,
    round: u32,
    variant: Variant,
    name: String,
}

/// Runs the benchmark.
pub fn run(args: &PriorityArgs) -> Result<()> {
    let path = Results::place(&args.results, NAME)?;

    let with_extension = args
        .variants
        .iter()
        .any(|variant| variant.variant() == Variant::Lockstep);
    let size = Size {
        scale: args.scale,
        writers: args.writers,
        readers: args.readers,
    };
    let plan = plan(args);
    let longest = plan.iter().map(|trial| measured(args, trial.first())).max();
    let space = SPACE_MB_BASE
        + u64::from(args.scale) * 80
        + u64::from(longest.unwrap_or(0)) * SPACE_MB_PER_SECOND;
    let lab = scene::open_lab(&args.server, with_extension, space)?;
    let mut results = Results::begin(
        &path,
        NAME,
        command(args),
        machine::describe(lab.folder(), lab.pinning()),
    )?;
    let mut live = live(args, &plan);
    live.say(&format!("{} ({})", results.command, results.machine));
    live.say(&conditions(args));
    let mut primary = scene::open_primary(&lab, &size, with_extension)?;

    let mut outcomes = Vec::new();
    for (index, trial) in plan.iter().enumerate() {
        live.begin(index);
        let outcome = run_trial(args, size, &lab, &mut primary, trial, &mut live)?;
        live.end(&scene::one_line(&outcome));
        outcomes.push((trial, outcome));
        for &case in &args.cases {
            let last = plan.iter().rposition(|trial| trial.cases.contains(&case));
            if last == Some(index) {
                let of_case = |(trial, _): &&(&Planned, Outcome)| trial.cases.contains(&case);
                let outcomes: Vec<_> = outcomes.iter().filter(of_case).collect();
                record(args, &mut results, case, &outcomes);
                results.save(&path)?;
                draw(args, case, &outcomes)?;
            }
        }
    }
    live.finish();
    drop(primary);
    drop(lab);
    report(&results, &path);
    Ok(())
}

impl Planned {
    /// The case it is run for.
    fn first(&self) -> Case {
        self.cases.first().copied().unwrap_or(HEADLINE_CASE)
    }
}

/// The cases asked for, with those that share stock rounds together.
fn groups(args: &PriorityArgs) -> Vec<Vec<Case>> {
    let mut groups: Vec<Vec<Case>> = Vec::new();
    for &case in &args.cases {
        let shared = groups.iter_mut().find(|group| {
            SHARING.contains(&case) && group.iter().any(|other| SHARING.contains(other))
        });
        match shared {
            Some(group) => group.push(case),
            None => groups.push(vec![case]),
        }
    }
    groups
}

fn plan(args: &PriorityArgs) -> Vec<Planned> {
    let mut plan = Vec::new();
    for group in groups(args) {
        let rounds = match group.as_slice() {
            [Case::Aggregate10min] => 1,
            _ => args.rounds,
        };
        for round in 1..=rounds {
            for variant in args.variants.iter().map(|name| name.variant()) {
                let together = match variant {
                    Variant::Stock => vec![group.clone()],
                    Variant::Lockstep => group.iter().map(|&case| vec![case]).collect(),
                };
                plan.extend(together.into_iter().map(|cases| {
                    let names: Vec<_> = cases.iter().map(|case| case.name()).collect();
                    Planned {
                        name: format!("{} {round} {}", names.join("+"), variant.name()),
                        cases,
                        round,
                        variant,
                    }
                }));
            }
        }
    }
    plan
}

fn measured(args: &PriorityArgs, case: Case) -> u32 {
    match case {
        Case::Aggregate10min => args.long_seconds.unwrap_or(args.seconds * LONG_FACTOR),
        _ => args.seconds,
    }
}

fn live(args: &PriorityArgs, plan: &[Planned]) -> Live {
    let phases = plan
        .iter()
        .map(|trial| Phase {
            name: trial.name.clone(),
            load: Duration::from_secs(u64::from(args.warmup + measured(args, trial.first()))),
        })
        .collect();
    let preparation = Duration::from_secs(5 + u64::from(args.scale) / 3);
    let warmup = Duration::from_secs(u64::from(args.warmup));
    Live::new(Output::Text, phases, preparation, warmup)
}

/// The command with every choice spelled out, wherever it came from.
fn command(args: &PriorityArgs) -> String {
    let cases: Vec<_> = args.cases.iter().map(|case| case.name()).collect();
    let variants: Vec<_> = args.variants.iter().map(|v| v.variant().name()).collect();
    let mut command = format!(
        "lockstep bench priority --pg {} --rounds {} --seconds {} --warmup {} --long-seconds {} \
         --cases {} --variants {} --writers {} --readers {} --scale {}",
        args.server.pg,
        args.rounds,
        args.seconds,
        args.warmup,
        measured(args, Case::Aggregate10min),
        cases.join(","),
        variants.join(","),
        args.writers,
        args.readers,
        args.scale
    );
    for (name, value) in &args.set {
        command.push_str(&format!(" --set {name}={value}"));
    }
    command
}

fn conditions(args: &PriorityArgs) -> String {
    format!(
        "Each trial: fresh pgbench data (scale {}), a fresh standby caught up, checkpoint on both; then {} s \
         of full load that are not measured. fsync, full_page_writes, synchronous_commit and \
         hot_standby_feedback are on; simple query protocol.",
        args.scale, args.warmup
    )
}

fn run_trial(
    args: &PriorityArgs,
    size: Size,
    lab: &Lab,
    primary: &mut Server,
    trial: &Planned,
    live: &mut Live,
) -> Result<Outcome> {
    let spec = TrialSpec {
        variant: trial.variant,
        size,
        read: match trial.first() {
            Case::Select => Workload::Select,
            _ => Workload::Aggregate,
        },
        standby_settings: scene::standby_settings(trial.variant, &settings(args, trial)),
        warmup: Duration::from_secs(u64::from(args.warmup)),
        measured: Duration::from_secs(u64::from(measured(args, trial.first()))),
        series_every: Duration::from_secs(SERIES_SECONDS),
    };
    let (outcome, standby) = trial::run(lab, primary, trial.variant.name(), &spec, live)?;
    standby.discard(primary)?;
    Ok(outcome)
}

/// Settings of the trial's standby beside loading the extension.
fn settings(args: &PriorityArgs, trial: &Planned) -> Vec<(String, String)> {
    let mut settings = Vec::new();
    if trial.variant == Variant::Lockstep {
        if trial.first() == Case::ThrottleOnly {
            settings.push(("lockstep.replay_priority".to_owned(), "off".to_owned()));
        }
        settings.extend(args.set.iter().cloned());
    }
    settings
}

fn record(
    args: &PriorityArgs,
    results: &mut Results,
    case: Case,
    outcomes: &[&(&Planned, Outcome)],
) {
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    for (trial, outcome) in outcomes {
        let key = Key {
            case: case.name(),
            variant: trial.variant.name(),
            round: trial.round,
        };
        let settings: Vec<_> = settings(args, trial)
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let settings = (!settings.is_empty()).then(|| settings.join(" "));
        rows.push(Row::new(key, outcome, settings, &results.commit));
        if case == Case::Aggregate10min {
            series.extend(outcome.series.iter().map(|point| Point::new(key, point)));
        }
    }
    results.replace(case.name(), rows, series);
    results.date = machine::date();
    results.headline = headline(results);
}

/// Lag at the end of a round, where stock's grows without bound.
fn headline(results: &Results) -> Option<Headline> {
    let end = |variant: Variant| {
        results.median(HEADLINE_CASE.name(), variant.name(), |row| row.lag_end_ms)
    };
    let (ours, stock) = (end(Variant::Lockstep)?, end(Variant::Stock)?);
    Some(Headline {
        metric: format!(
            "{}: replay lag at the end of a round, median over rounds, ms",
            HEADLINE_CASE.name()
        ),
        ours,
        stock,
        ratio: (ours > 0.0).then(|| (stock / ours * 10.0).round() / 10.0),
    })
}

fn draw(args: &PriorityArgs, case: Case, outcomes: &[&(&Planned, Outcome)]) -> Result<()> {
    let pairs = || {
        outcomes
            .iter()
            .map(|(trial, outcome)| (trial.variant, outcome))
    };
    let mut panels = scene::panels(pairs());
    if case == Case::Aggregate10min {
        panels.push(scene::series_panel(
            "Dead rows on the primary",
            pairs(),
            |point| point.bloat.dead_rows as f64,
        ));
        panels.push(scene::series_panel(
            "Size of the tables and their indexes, MB",
            pairs(),
            |point| results::megabytes(point.bloat.relation_bytes),
        ));
    }
    let title = format!(
        "{}: {} writers, {} readers, PostgreSQL {}",
        case.name(),
        args.writers,
        args.readers,
        args.server.pg
    );
    let path = args.results.join(format!("{NAME}-{}.svg", case.name()));
    fs::write(&path, plot::svg(&title, &panels))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Prints every row, then medians over rounds with their ratios.
fn report(results: &Results, path: &Path) {
    let mut lines = vec![String::new()];
    lines.extend(text::table(&row_table(results)));
    lines.push(String::new());
    lines.extend(text::table(&median_table(results)));
    lines.push(String::new());
    if let Some(headline) = &results.headline {
        lines.push(format!(
            "{}: stock {}, lockstep {}{}",
            headline.metric,
            headline.stock,
            headline.ours,
            headline
                .ratio
                .map_or_else(String::new, |ratio| format!(", {ratio} times"))
        ));
    }
    lines.push(format!("written to {}", scene::absolute(path).display()));
    for line in lines {
        crate::live::print(&line);
    }
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|&word| word.to_owned()).collect()
}

fn row_table(results: &Results) -> Vec<Vec<String>> {
    let mut table = vec![words(&[
        "case",
        "round",
        "variant",
        "lag p50",
        "p99",
        "max",
        "at end",
        "slope",
        "primary tps",
        "reads/s",
        "startup CPU",
    ])];
    table.extend(results.rows.iter().map(|row| {
        vec![
            row.case.clone(),
            row.round.to_string(),
            row.variant.clone(),
            text::ms(row.lag_p50_ms),
            text::ms(row.lag_p99_ms),
            text::ms(row.lag_max_ms),
            text::ms(row.lag_end_ms),
            text::slope(row.lag_slope_ms_per_s),
            text::count(row.primary_tps),
            text::count(row.read_tps),
            format!(
                "{:.0} %",
                100.0 * row.startup_cpu_s / row.seconds.max(0.001)
            ),
        ]
    }));
    table
}

/// How a figure of a row is read and written.
type Figure = (&'static str, fn(&Row) -> f64, fn(f64) -> String);

fn median_table(results: &Results) -> Vec<Vec<String>> {
    let figures: [Figure; 6] = [
        ("lag p50", |row| row.lag_p50_ms, text::ms),
        ("lag p99", |row| row.lag_p99_ms, text::ms),
        ("lag at end", |row| row.lag_end_ms, text::ms),
        ("lag slope", |row| row.lag_slope_ms_per_s, text::slope),
        ("primary tps", |row| row.primary_tps, text::count),
        ("reads/s", |row| row.read_tps, text::count),
    ];
    let mut table = vec![words(&[
        "median over rounds",
        "",
        "stock",
        "lockstep",
        "lockstep/stock",
    ])];
    for case in Case::ALL.map(Case::name) {
        for (name, read, write) in figures {
            let median = |variant: Variant| results.median(case, variant.name(), read);
            let (stock, ours) = (median(Variant::Stock), median(Variant::Lockstep));
            if stock.is_none() && ours.is_none() {
                continue;
            }
            let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), write);
            let ratio = match (stock, ours) {
                (Some(stock), Some(ours)) if stock > 0.0 && name != "lag slope" => {
                    format!("{:.4}", ours / stock)
                }
                _ => "-".to_owned(),
            };
            table.push(vec![
                case.to_owned(),
                name.to_owned(),
                cell(stock),
                cell(ours),
                ratio,
            ]);
        }
    }
    table
}
