//! `lockstep bench relay-mixed`: small and very large transactions, and the rows a second
//! that arrive at each consumer, directly and through a relay.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, value_parser};
use lockstep_bench::relay::mixed::{self, MixedOutcome, MixedSpec};
use lockstep_bench::relay::publisher;
use lockstep_bench::trial::Variant;
use lockstep_lab::machine;
use lockstep_lab::workload::MB_PER_SCALE;
use serde::{Deserialize, Serialize};

use super::relay_cost::{self, Cost};
use super::results::{Headline, Measured, Results, rounded};
use super::steps::Steps;
use crate::args::{ServerArgs, VariantName};
use crate::{scene, text};

/// Name of the benchmark and of its file.
const NAME: &str = "relay-mixed";

/// The case that the headline is about.
const HEADLINE_CASE: &str = "mixed-16MB";

/// Megabytes that a run may need beside data.
const SPACE_MB_BASE: u64 = 20_000;

/// `lockstep bench relay-mixed`
#[derive(Debug, Args)]
pub struct RelayMixedArgs {
    /// Rounds of each case
    #[arg(long, value_name = "N", env = "BENCH_ROUNDS", hide_env_values = true, default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Seconds of writes in each round; consumers then catch up
    #[arg(long, value_name = "SECONDS", env = "BENCH_SECONDS", hide_env_values = true, default_value_t = 30, value_parser = value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Sizes of the relay's cache, separated by commas: a case each
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_values_t = ["0", "16MB", "2GB"].map(str::to_owned))]
    pub caches: Vec<String>,
    /// Variants to run, separated by commas: stock has a slot for each subscriber
    #[arg(long, value_enum, value_name = "VARIANTS", value_delimiter = ',', default_values_t = [VariantName::Stock, VariantName::Lockstep])]
    pub variants: Vec<VariantName>,
    /// Subscribers; they count what they receive and throw it away
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=64))]
    pub subscribers: u32,
    /// Rows of a large transaction
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = value_parser!(u32).range(1..=100_000_000))]
    pub large_rows: u32,
    /// Milliseconds from the end of one large transaction to the next
    #[arg(long, value_name = "MS", default_value_t = 3_000, value_parser = value_parser!(u32).range(0..=3_600_000))]
    pub large_every: u32,
    /// Clients that write small transactions
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=90))]
    pub clients: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
    /// Folder for relay-mixed.json
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    pub results: PathBuf,
    /// Which servers to use.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// One round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub variant: String,
    pub round: u32,
    pub subscribers: u32,
    /// That each subscriber got, from the first write until all had the last.
    pub rows_per_s: f64,
    pub rows: u64,
    /// Large transactions.
    pub large: u32,
    /// How long after the last write the last subscriber had it.
    pub behind_s: f64,
    pub lag_p50_ms: f64,
    pub lag_p99_ms: f64,
    /// While it was written.
    pub primary_tps: f64,
    #[serde(flatten)]
    pub cost: Cost,
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
pub fn run(args: &RelayMixedArgs) -> Result<()> {
    let path = Results::<Row>::place(&args.results, NAME)?;
    let space = SPACE_MB_BASE + MB_PER_SCALE * u64::from(args.scale) * 2;
    let lab = scene::open_lab(&args.server, true, space)?;
    let machine = machine::describe(lab.folder(), lab.pinning());
    let mut results = Results::begin(&path, NAME, command(args), machine)?;
    let rounds = args.caches.len() * args.variants.len() * args.rounds as usize;
    let mut steps = Steps::new(rounds);
    steps.say(&format!("{} ({})", results.command, results.machine));
    let mut primary = lab.primary("primary", None, &publisher::settings(args.subscribers))?;
    publisher::prepare(&lab, &mut primary)?;
    for cache in &args.caches {
        let case = case(cache);
        let mut rows = Vec::new();
        for round in 1..=args.rounds {
            for variant in args.variants.iter().map(|name| name.variant()) {
                steps.begin(&format!("{case} {round} {}", variant.name()));
                let spec = spec(args, variant, cache)?;
                let outcome = mixed::run(&lab, &mut primary, &spec)?;
                let row = row(args, &case, variant, round, &outcome, &results.commit);
                steps.end(&format!(
                    "{} rows/s, {:.1} s behind at the end, {} MB read",
                    text::count(row.rows_per_s),
                    row.behind_s,
                    text::count(row.cost.primary_read_mb)
                ));
                rows.push(row);
            }
        }
        results.replace(&case, rows, vec![]);
        results.date = machine::date();
        results.headline = headline(&results);
        results.save(&path)?;
    }
    drop(primary);
    for line in text::table(&table(&results, args)) {
        steps.say(&line);
    }
    steps.say(&format!("written to {}", scene::absolute(&path).display()));
    Ok(())
}

fn case(cache: &str) -> String {
    format!("mixed-{cache}")
}

fn spec(args: &RelayMixedArgs, variant: Variant, cache: &str) -> Result<MixedSpec> {
    Ok(MixedSpec {
        subscribers: args.subscribers,
        way: relay_cost::way(variant, cache)?,
        scale: args.scale,
        clients: args.clients,
        large_rows: args.large_rows,
        large_every: Duration::from_millis(u64::from(args.large_every)),
        written: Duration::from_secs(u64::from(args.seconds)),
    })
}

fn row(
    args: &RelayMixedArgs,
    case: &str,
    variant: Variant,
    round: u32,
    outcome: &MixedOutcome,
    commit: &str,
) -> Row {
    let lag = |percent| rounded(outcome.delays.percentile_ms(percent).unwrap_or(0.0));
    Row {
        case: case.to_owned(),
        variant: variant.name().to_owned(),
        round,
        subscribers: args.subscribers,
        rows_per_s: rounded(outcome.rows_per_s),
        rows: outcome.rows,
        large: outcome.large,
        behind_s: rounded(outcome.behind_s),
        lag_p50_ms: lag(50.0),
        lag_p99_ms: lag(99.0),
        primary_tps: rounded(outcome.primary_tps),
        cost: Cost::new(&outcome.spent, outcome.relay_rss_mb),
        date: machine::date(),
        commit: commit.to_owned(),
    }
}

/// The command with every choice spelled out, wherever it came from.
fn command(args: &RelayMixedArgs) -> String {
    let variants: Vec<_> = args.variants.iter().map(|v| v.variant().name()).collect();
    format!(
        "lockstep bench relay-mixed --pg {} --rounds {} --seconds {} --caches {} --variants {} \
         --subscribers {} --large-rows {} --large-every {} --clients {} --scale {}",
        args.server.pg,
        args.rounds,
        args.seconds,
        args.caches.join(","),
        variants.join(","),
        args.subscribers,
        args.large_rows,
        args.large_every,
        args.clients,
        args.scale
    )
}

fn headline(results: &Results<Row>) -> Option<Headline> {
    let rows =
        |variant: Variant| results.median(HEADLINE_CASE, variant.name(), |row| row.rows_per_s);
    let (ours, stock) = (rows(Variant::Lockstep)?, rows(Variant::Stock)?);
    Some(Headline {
        metric: format!("{HEADLINE_CASE}: rows a second at each consumer, median over rounds"),
        ours,
        stock,
        ratio: relay_cost::ratio(ours, stock),
    })
}

fn table(results: &Results<Row>, args: &RelayMixedArgs) -> Vec<Vec<String>> {
    let mut table = vec![
        [
            "median over rounds",
            "variant",
            "rows/s",
            "behind s",
            "lag p50",
            "primary tx/s",
            "walsender CPU s",
            "primary read MB",
            "relay MB",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for case in args.caches.iter().map(|cache| case(cache)) {
        for variant in [Variant::Stock, Variant::Lockstep] {
            let median = |value: fn(&Row) -> f64| results.median(&case, variant.name(), value);
            let Some(rows) = median(|row| row.rows_per_s) else {
                continue;
            };
            let shown = |value: fn(&Row) -> f64, show: fn(f64) -> String| {
                median(value).map_or_else(String::new, show)
            };
            table.push(vec![
                case.clone(),
                variant.name().to_owned(),
                text::count(rows),
                shown(|row| row.behind_s, |value| format!("{value:.1}")),
                shown(|row| row.lag_p50_ms, text::ms),
                shown(|row| row.primary_tps, text::count),
                shown(
                    |row| row.cost.walsender_cpu_s,
                    |value| format!("{value:.2}"),
                ),
                shown(|row| row.cost.primary_read_mb, text::count),
                shown(|row| row.cost.relay_rss_mb.unwrap_or(0.0), text::count),
            ]);
        }
    }
    table
}
