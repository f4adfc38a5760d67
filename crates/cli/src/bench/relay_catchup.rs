//! `lockstep bench relay-catchup`: how fast a consumer catches up that was stopped during a
//! long backlog, directly and through a relay.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum, value_parser};
use lockstep_bench::relay::catch_up::{self, CatchUpOutcome, CatchUpSpec, Kind};
use lockstep_bench::relay::publisher;
use lockstep_bench::trial::Variant;
use lockstep_lab::machine;
use lockstep_lab::workload::MB_PER_SCALE;
use serde::{Deserialize, Serialize};

use super::relay_cost::{self, Cost};
use super::results::{Headline, Measured, Results, rounded};
use super::steps::Steps;
use crate::args::ServerArgs;
use crate::{scene, text};

/// Name of the benchmark and of its file.
const NAME: &str = "relay-catchup";

/// Megabytes that a run may need beside data and backlog.
const SPACE_MB_BASE: u64 = 6_000;

/// Megabytes of WAL, and of the relay's spool, for a thousand transactions, with room.
const MB_PER_THOUSAND: u64 = 3;

/// `lockstep bench relay-catchup`
#[derive(Debug, Args)]
pub struct RelayCatchupArgs {
    /// Rounds of each case
    #[arg(long, value_name = "N", env = "BENCH_ROUNDS", hide_env_values = true, default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Transactions of the backlog
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = value_parser!(u32).range(100..=100_000_000))]
    pub transactions: u32,
    /// Cases to run, separated by commas: the consumer, and the size of the relay's cache
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = CatchupCase::ALL)]
    pub cases: Vec<CatchupCase>,
    /// Clients that write the backlog
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=90))]
    pub clients: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
    /// Folder for relay-catchup.json
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    pub results: PathBuf,
    /// Which servers to use.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Who catches up, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CatchupCase {
    /// A sink from a slot of its own.
    Null,
    /// A sink from the relay's spool.
    #[value(name = "null-0")]
    Null0,
    /// A sink from the relay.
    #[value(name = "null-16MB")]
    Null16,
    /// A sink from the relay's memory.
    #[value(name = "null-2GB")]
    Null2048,
    /// A subscription from a slot of its own.
    Subscription,
    /// A subscription from the relay.
    #[value(name = "subscription-16MB")]
    Subscription16,
}

impl CatchupCase {
    const ALL: [Self; 6] = [
        Self::Null,
        Self::Null0,
        Self::Null16,
        Self::Null2048,
        Self::Subscription,
        Self::Subscription16,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Null0 => "null-0",
            Self::Null16 => "null-16MB",
            Self::Null2048 => "null-2GB",
            Self::Subscription => "subscription",
            Self::Subscription16 => "subscription-16MB",
        }
    }

    /// The relay's cache, if there is a relay.
    fn cache(self) -> Option<&'static str> {
        match self {
            Self::Null | Self::Subscription => None,
            Self::Null0 => Some("0"),
            Self::Null16 | Self::Subscription16 => Some("16MB"),
            Self::Null2048 => Some("2GB"),
        }
    }

    fn variant(self) -> Variant {
        match self.cache() {
            None => Variant::Stock,
            Some(_) => Variant::Lockstep,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::Subscription | Self::Subscription16 => Kind::Real,
            Self::Null | Self::Null0 | Self::Null16 | Self::Null2048 => Kind::Null,
        }
    }
}

/// One round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub variant: String,
    pub round: u32,
    pub transactions: u32,
    pub rows_per_s: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mb_per_s: Option<f64>,
    /// CPU of the subscription's apply worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply_cpu_s: Option<f64>,
    /// While it caught up.
    #[serde(flatten)]
    pub cost: Cost,
    /// From the backlog's first transaction until the consumer began to catch up.
    pub backlog_seconds: f64,
    pub backlog_primary_cpu_s: f64,
    pub backlog_walsender_cpu_s: f64,
    /// Read by walsenders meanwhile, on top of `primary_read_mb`.
    pub backlog_primary_read_mb: f64,
    /// How long after the last transaction the relay had all of them on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_behind_s: Option<f64>,
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
pub fn run(args: &RelayCatchupArgs) -> Result<()> {
    let path = Results::<Row>::place(&args.results, NAME)?;
    let space = SPACE_MB_BASE
        + MB_PER_SCALE * u64::from(args.scale) * 3
        + MB_PER_THOUSAND * u64::from(args.transactions) / 1_000;
    let lab = scene::open_lab(&args.server, true, space)?;
    let machine = machine::describe(lab.folder(), lab.pinning());
    let mut results = Results::begin(&path, NAME, command(args), machine)?;
    let mut steps = Steps::new(args.cases.len() * args.rounds as usize);
    steps.say(&format!("{} ({})", results.command, results.machine));
    let mut primary = lab.primary("primary", None, &publisher::settings(1))?;
    publisher::prepare(&lab, &mut primary)?;
    let mut rows: Vec<Vec<Row>> = args.cases.iter().map(|_| Vec::new()).collect();
    // Side by side: all cases in each round.
    for round in 1..=args.rounds {
        for (case, rows) in args.cases.iter().zip(&mut rows) {
            steps.begin(&format!("{} {round}", case.name()));
            let spec = CatchUpSpec {
                kind: case.kind(),
                way: relay_cost::way(case.variant(), case.cache().unwrap_or_default())?,
                scale: args.scale,
                clients: args.clients,
                transactions: args.transactions,
            };
            let outcome = catch_up::run(&lab, &mut primary, &spec)?;
            let row = row(args, *case, round, &outcome, &results.commit);
            steps.end(&format!(
                "{:.3} s, {} rows/s, walsender CPU {:.2} s",
                row.cost.seconds,
                text::count(row.rows_per_s),
                row.cost.walsender_cpu_s
            ));
            rows.push(row);
            results.replace(case.name(), rows.clone(), vec![]);
            results.date = machine::date();
            results.headline = headline(&results);
            results.save(&path)?;
        }
    }
    drop(primary);
    for line in text::table(&table(&results)) {
        steps.say(&line);
    }
    steps.say(&format!("written to {}", scene::absolute(&path).display()));
    Ok(())
}

fn row(
    args: &RelayCatchupArgs,
    case: CatchupCase,
    round: u32,
    outcome: &CatchUpOutcome,
    commit: &str,
) -> Row {
    let seconds = outcome.spent.seconds.max(0.000_001);
    let backlog = Cost::new(&outcome.backlog, None);
    Row {
        case: case.name().to_owned(),
        variant: case.variant().name().to_owned(),
        round,
        transactions: args.transactions,
        rows_per_s: rounded(outcome.rows as f64 / seconds),
        mb_per_s: (case.kind() == Kind::Null)
            .then(|| rounded(outcome.bytes as f64 / 1e6 / seconds)),
        apply_cpu_s: outcome.apply_cpu_s.map(rounded),
        cost: Cost::new(&outcome.spent, outcome.relay_rss_mb),
        backlog_seconds: backlog.seconds,
        backlog_primary_cpu_s: backlog.primary_cpu_s,
        backlog_walsender_cpu_s: backlog.walsender_cpu_s,
        backlog_primary_read_mb: backlog.primary_read_mb,
        relay_behind_s: outcome.relay_behind_s.map(rounded),
        date: machine::date(),
        commit: commit.to_owned(),
    }
}

/// The command with every choice spelled out, wherever it came from.
fn command(args: &RelayCatchupArgs) -> String {
    let cases: Vec<_> = args.cases.iter().map(|case| case.name()).collect();
    format!(
        "lockstep bench relay-catchup --pg {} --rounds {} --transactions {} --cases {} \
         --clients {} --scale {}",
        args.server.pg,
        args.rounds,
        args.transactions,
        cases.join(","),
        args.clients,
        args.scale
    )
}

fn headline(results: &Results<Row>) -> Option<Headline> {
    let seconds = |case: CatchupCase| {
        results.median(case.name(), case.variant().name(), |row| row.cost.seconds)
    };
    let (ours, stock) = (seconds(CatchupCase::Null16)?, seconds(CatchupCase::Null)?);
    Some(Headline {
        metric: "null-16MB beside null: seconds to catch up, median over rounds".to_owned(),
        ours,
        stock,
        ratio: relay_cost::ratio(stock, ours),
    })
}

fn table(results: &Results<Row>) -> Vec<Vec<String>> {
    let mut table = vec![
        [
            "median over rounds",
            "variant",
            "seconds",
            "rows/s",
            "walsender CPU s",
            "relay CPU s",
            "apply CPU s",
            "primary read MB",
            "with backlog",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for case in CatchupCase::ALL {
        let variant = case.variant().name();
        let median = |value: fn(&Row) -> Option<f64>| {
            results
                .median(case.name(), variant, |row| value(row).unwrap_or(f64::NAN))
                .filter(|value| !value.is_nan())
        };
        let Some(seconds) = median(|row| Some(row.cost.seconds)) else {
            continue;
        };
        let shown = |value: fn(&Row) -> Option<f64>| {
            median(value).map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
        };
        table.push(vec![
            case.name().to_owned(),
            variant.to_owned(),
            format!("{seconds:.3}"),
            median(|row| Some(row.rows_per_s)).map_or_else(String::new, text::count),
            shown(|row| Some(row.cost.walsender_cpu_s)),
            shown(|row| row.cost.relay_cpu_s),
            shown(|row| row.apply_cpu_s),
            shown(|row| Some(row.cost.primary_read_mb)),
            shown(|row| Some(row.cost.primary_read_mb + row.backlog_primary_read_mb)),
        ]);
    }
    table
}
