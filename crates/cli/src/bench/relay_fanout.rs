//! `lockstep bench relay-fanout`: what subscribers cost a primary under load, directly and
//! through a relay.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum, value_parser};
use lockstep_bench::relay::fanout::{self, FanoutOutcome, FanoutSpec, Kind};
use lockstep_bench::relay::publisher;
use lockstep_bench::trial::Variant;
use lockstep_lab::cluster::Lab;
use lockstep_lab::machine;
use lockstep_lab::server::Server;
use lockstep_lab::workload::MB_PER_SCALE;
use serde::{Deserialize, Serialize};

use super::relay_cost::{self, Cost};
use super::results::{Headline, Measured, Results, rounded};
use super::steps::Steps;
use crate::args::{ServerArgs, VariantName};
use crate::{scene, text};

/// Name of the benchmark and of its file.
const NAME: &str = "relay-fanout";

/// The case that the headline is about.
const HEADLINE_CASE: &str = "subscribers-8";

/// Megabytes that a run may need beside data.
const SPACE_MB_BASE: u64 = 8_000;

/// `lockstep bench relay-fanout`
#[derive(Debug, Args)]
pub struct RelayFanoutArgs {
    /// Rounds of each case
    #[arg(long, value_name = "N", env = "BENCH_ROUNDS", hide_env_values = true, default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Seconds measured in each round
    #[arg(long, value_name = "SECONDS", env = "BENCH_SECONDS", hide_env_values = true, default_value_t = 20, value_parser = value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Seconds under load before the measurement begins
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = value_parser!(u32).range(0..=600))]
    pub warmup: u32,
    /// Numbers of subscribers, separated by commas; 0 is the primary alone
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [0, 1, 2, 4, 8, 16], value_parser = value_parser!(u32).range(0..=64))]
    pub subscribers: Vec<u32>,
    /// Kinds of subscribers, separated by commas
    #[arg(long, value_enum, value_name = "KINDS", value_delimiter = ',', default_values_t = [KindName::Null, KindName::Real])]
    pub kinds: Vec<KindName>,
    /// Variants to run, separated by commas: stock has a slot for each subscriber
    #[arg(long, value_enum, value_name = "VARIANTS", value_delimiter = ',', default_values_t = [VariantName::Stock, VariantName::Lockstep])]
    pub variants: Vec<VariantName>,
    /// The relay's cache
    #[arg(long, value_name = "SIZE", default_value = "16MB")]
    pub logical_wal_cache: String,
    /// Clients that write
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=90))]
    pub clients: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
    /// Folder for relay-fanout.json
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    pub results: PathBuf,
    /// Which servers to use.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What subscribers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KindName {
    /// They count what they receive and throw it away.
    Null,
    /// Subscriptions, each in a database of its own.
    Real,
}

impl KindName {
    fn kind(self) -> Kind {
        match self {
            Self::Null => Kind::Null,
            Self::Real => Kind::Real,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Real => "real",
        }
    }
}

/// One round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub variant: String,
    pub round: u32,
    pub subscribers: u32,
    /// From commit to arrival at sinks, or to being applied; of all subscribers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_p50_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_p99_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_max_ms: Option<f64>,
    pub primary_tps: f64,
    /// Rows that arrived at all sinks together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_per_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mb_per_s: Option<f64>,
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

struct Case {
    subscribers: u32,
    kind: KindName,
}

impl Case {
    fn name(&self) -> String {
        match self.kind {
            KindName::Null => format!("subscribers-{}", self.subscribers),
            KindName::Real => format!("subscribers-{}-real", self.subscribers),
        }
    }

    /// Nobody needs neither a relay nor a kind.
    fn variants(&self, wanted: &[VariantName]) -> Vec<Variant> {
        match self.subscribers {
            0 => vec![Variant::Stock],
            _ => wanted.iter().map(|name| name.variant()).collect(),
        }
    }
}

/// All cases, in the order in which they run.
fn cases(args: &RelayFanoutArgs) -> Vec<Case> {
    let alone = args.subscribers.contains(&0).then_some(Case {
        subscribers: 0,
        kind: KindName::Null,
    });
    let some = args.subscribers.iter().filter(|&&number| number > 0);
    let others = args.kinds.iter().flat_map(|&kind| {
        some.clone()
            .map(move |&subscribers| Case { subscribers, kind })
    });
    alone.into_iter().chain(others).collect()
}

/// Runs the benchmark.
pub fn run(args: &RelayFanoutArgs) -> Result<()> {
    let path = Results::<Row>::place(&args.results, NAME)?;
    let most = args.subscribers.iter().copied().max().unwrap_or(0);
    let space = SPACE_MB_BASE + MB_PER_SCALE * u64::from(args.scale) * (u64::from(most) + 2);
    let lab = scene::open_lab(&args.server, true, space)?;
    let machine = machine::describe(lab.folder(), lab.pinning());
    let mut results = Results::begin(&path, NAME, command(args), machine)?;
    let cases = cases(args);
    let rounds: usize = cases
        .iter()
        .map(|case| case.variants(&args.variants).len())
        .sum();
    let mut steps = Steps::new(rounds * args.rounds as usize);
    steps.say(&format!("{} ({})", results.command, results.machine));
    let mut primary = lab.primary("primary", None, &publisher::settings(most))?;
    publisher::prepare(&lab, &mut primary)?;
    for case in &cases {
        let name = case.name();
        let mut rows = Vec::new();
        for round in 1..=args.rounds {
            for variant in case.variants(&args.variants) {
                steps.begin(&format!("{name} {round} {}", variant.name()));
                let outcome = measure(args, &lab, &mut primary, case, variant)?;
                let row = row(case, variant, round, &outcome, &results.commit);
                steps.end(&format!(
                    "lag p50 {}, {} transactions/s, primary CPU {:.2} s",
                    row.lag_p50_ms.map_or_else(|| "-".to_owned(), text::ms),
                    text::count(row.primary_tps),
                    row.cost.primary_cpu_s
                ));
                rows.push(row);
            }
        }
        results.replace(&name, rows, vec![]);
        results.date = machine::date();
        results.headline = headline(&results);
        results.save(&path)?;
    }
    drop(primary);
    for line in text::table(&table(&results, &cases)) {
        steps.say(&line);
    }
    steps.say(&format!("written to {}", scene::absolute(&path).display()));
    Ok(())
}

fn measure(
    args: &RelayFanoutArgs,
    lab: &Lab,
    primary: &mut Server,
    case: &Case,
    variant: Variant,
) -> Result<FanoutOutcome> {
    let spec = FanoutSpec {
        subscribers: case.subscribers,
        kind: case.kind.kind(),
        way: relay_cost::way(variant, &args.logical_wal_cache)?,
        scale: args.scale,
        clients: args.clients,
        warmup: Duration::from_secs(u64::from(args.warmup)),
        measured: Duration::from_secs(u64::from(args.seconds)),
    };
    Ok(fanout::run(lab, primary, &spec)?)
}

fn row(case: &Case, variant: Variant, round: u32, outcome: &FanoutOutcome, commit: &str) -> Row {
    let seconds = outcome.spent.seconds.max(0.001);
    let lag = |percent| outcome.delays.percentile_ms(percent).map(rounded);
    let sinks = case.kind == KindName::Null && case.subscribers > 0;
    Row {
        case: case.name(),
        variant: variant.name().to_owned(),
        round,
        subscribers: case.subscribers,
        lag_p50_ms: lag(50.0),
        lag_p99_ms: lag(99.0),
        lag_max_ms: lag(100.0),
        primary_tps: rounded(outcome.primary_tps),
        rows_per_s: sinks.then(|| rounded(outcome.rows as f64 / seconds)),
        mb_per_s: sinks.then(|| rounded(outcome.bytes as f64 / 1e6 / seconds)),
        cost: Cost::new(&outcome.spent, outcome.relay_rss_mb),
        date: machine::date(),
        commit: commit.to_owned(),
    }
}

/// The command with every choice spelled out, wherever it came from.
fn command(args: &RelayFanoutArgs) -> String {
    let numbers: Vec<_> = args.subscribers.iter().map(u32::to_string).collect();
    let kinds: Vec<_> = args.kinds.iter().map(|kind| kind.name()).collect();
    let variants: Vec<_> = args.variants.iter().map(|v| v.variant().name()).collect();
    format!(
        "lockstep bench relay-fanout --pg {} --rounds {} --seconds {} --warmup {} --subscribers {} \
         --kinds {} --variants {} --logical-wal-cache {} --clients {} --scale {}",
        args.server.pg,
        args.rounds,
        args.seconds,
        args.warmup,
        numbers.join(","),
        kinds.join(","),
        variants.join(","),
        args.logical_wal_cache,
        args.clients,
        args.scale
    )
}

fn headline(results: &Results<Row>) -> Option<Headline> {
    let lag = |variant: Variant| {
        results.median(HEADLINE_CASE, variant.name(), |row| {
            row.lag_p50_ms.unwrap_or(0.0)
        })
    };
    let (ours, stock) = (lag(Variant::Lockstep)?, lag(Variant::Stock)?);
    Some(Headline {
        metric: format!("{HEADLINE_CASE}: median lag, median over rounds, ms"),
        ours,
        stock,
        ratio: relay_cost::ratio(stock, ours),
    })
}

fn table(results: &Results<Row>, cases: &[Case]) -> Vec<Vec<String>> {
    let mut table = vec![
        [
            "median over rounds",
            "variant",
            "lag p50",
            "p99",
            "primary tx/s",
            "primary CPU s",
            "walsenders",
            "relay CPU s",
            "relay MB",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for case in cases {
        for variant in [Variant::Stock, Variant::Lockstep] {
            let median = |value: fn(&Row) -> Option<f64>| {
                results.median(&case.name(), variant.name(), |row| {
                    value(row).unwrap_or(f64::NAN)
                })
            };
            let Some(tps) = median(|row| Some(row.primary_tps)) else {
                continue;
            };
            let shown = |value: fn(&Row) -> Option<f64>, show: fn(f64) -> String| {
                median(value)
                    .filter(|value| !value.is_nan())
                    .map_or_else(|| "-".to_owned(), show)
            };
            let seconds = |value: f64| format!("{value:.2}");
            table.push(vec![
                case.name(),
                variant.name().to_owned(),
                shown(|row| row.lag_p50_ms, text::ms),
                shown(|row| row.lag_p99_ms, text::ms),
                text::count(tps),
                shown(|row| Some(row.cost.primary_cpu_s), seconds),
                shown(|row| Some(row.cost.walsender_cpu_s), seconds),
                shown(|row| row.cost.relay_cpu_s, seconds),
                shown(|row| row.cost.relay_rss_mb, text::count),
            ]);
        }
    }
    table
}
