//! `lockstep bench decode`: the CPU that one decode costs the primary, by output plugin.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum, value_parser};
use lockstep_bench::decode::{self, Changes, Pass, Plugin, RELAY_WORK_MEM, Stretch};
use lockstep_lab::machine;
use lockstep_lab::server::Server;
use serde::{Deserialize, Serialize};

use super::results::{Headline, Measured, Results, rounded};
use super::steps::Steps;
use crate::args::ServerArgs;
use crate::{scene, text};

/// Name of the benchmark and of its file.
const NAME: &str = "decode";

/// The case that the headline is about.
const HEADLINE_CASE: DecodeCase = DecodeCase::Tpcb;

/// Megabytes that a run may need.
const SPACE_MB: u64 = 6_000;

/// `lockstep bench decode`
#[derive(Debug, Args)]
pub struct DecodeArgs {
    /// Passes of each variant over each case
    #[arg(long, value_name = "N", env = "BENCH_ROUNDS", hide_env_values = true, default_value_t = 5, value_parser = value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Transactions of tpcb; insert has twice, giant ten times as many rows
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = value_parser!(u32).range(100..=10_000_000))]
    pub transactions: u32,
    /// Cases to run, separated by commas
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = DecodeCase::ALL)]
    pub cases: Vec<DecodeCase>,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
    /// Folder for decode.json
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    pub results: PathBuf,
    /// Which servers to use.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DecodeCase {
    /// pgbench's TPC-B-like transactions.
    Tpcb,
    /// One row in each transaction.
    Insert,
    /// One transaction with all rows.
    Giant,
}

impl DecodeCase {
    const ALL: [Self; 3] = [Self::Tpcb, Self::Insert, Self::Giant];

    fn changes(self) -> Changes {
        match self {
            Self::Tpcb => Changes::TpcB,
            Self::Insert => Changes::Insert,
            Self::Giant => Changes::Giant,
        }
    }

    fn variants(self) -> impl Iterator<Item = &'static Variant> {
        let of_giants: &[Variant] = match self {
            Self::Giant => &OF_GIANTS,
            Self::Tpcb | Self::Insert => &[],
        };
        VARIANTS.iter().chain(of_giants)
    }

    /// How many transactions, or rows of the one.
    fn amount(self, transactions: u32) -> u32 {
        match self {
            Self::Tpcb => transactions,
            Self::Insert => transactions.saturating_mul(2),
            Self::Giant => transactions.saturating_mul(10),
        }
    }
}

/// How it is decoded.
struct Variant {
    name: &'static str,
    plugin: Plugin,
    work_mem: Option<&'static str>,
}

const fn variant(name: &'static str, plugin: Plugin, work_mem: Option<&'static str>) -> Variant {
    Variant {
        name,
        plugin,
        work_mem,
    }
}

/// `lockstep-commit` is what a receiver gets that does not know about held commits;
/// `lockstep` is what the relay does.
const VARIANTS: [Variant; 3] = [
    variant("stock", Plugin::Pgoutput, None),
    variant("lockstep-commit", Plugin::Commit, None),
    variant("lockstep", Plugin::Hold, Some(RELAY_WORK_MEM)),
];

/// Only a giant transaction takes more memory than the default: what that and the plugin
/// do, each alone.
const OF_GIANTS: [Variant; 2] = [
    variant("stock-256MB", Plugin::Pgoutput, Some(RELAY_WORK_MEM)),
    variant("lockstep-64MB", Plugin::Hold, None),
];

/// One pass over a stretch of WAL.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub variant: String,
    pub round: u32,
    pub seconds: f64,
    /// Of the whole server, which does nothing else.
    pub cpu_s: f64,
    pub transactions: u64,
    pub rows: u64,
    pub rows_per_s: f64,
    pub wal_mb: f64,
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
pub fn run(args: &DecodeArgs) -> Result<()> {
    let path = Results::<Row>::place(&args.results, NAME)?;
    let lab = scene::open_lab(&args.server, true, SPACE_MB)?;
    let names: Vec<_> = args
        .cases
        .iter()
        .map(|case| case.changes().name())
        .collect();
    let command = format!(
        "lockstep bench decode --pg {} --rounds {} --transactions {} --cases {} --scale {}",
        args.server.pg,
        args.rounds,
        args.transactions,
        names.join(","),
        args.scale
    );
    let machine = machine::describe(lab.folder(), lab.pinning());
    let mut results = Results::begin(&path, NAME, command, machine)?;
    let passes = |case: &DecodeCase| case.variants().count() * args.rounds as usize + 1;
    let mut steps = Steps::new(args.cases.iter().map(passes).sum());
    steps.say(&format!("{} ({})", results.command, results.machine));
    let mut primary = lab.primary("primary", None, &decode::settings())?;
    decode::prepare(&lab, &mut primary, args.scale)?;
    for case in &args.cases {
        let name = case.changes().name();
        steps.begin(&format!("{name}: writing"));
        let stretch = decode::write(
            &lab,
            &primary,
            case.changes(),
            case.amount(args.transactions),
        )?;
        steps.end(&format!("{:.0} MB of WAL", stretch.bytes as f64 / 1e6));
        let mut rows = Vec::new();
        for round in 1..=args.rounds {
            for Variant {
                name: variant,
                plugin,
                work_mem,
            } in case.variants()
            {
                steps.begin(&format!("{name} {round} {variant}"));
                let pass = decode::pass(&lab, &primary, &stretch, *plugin, *work_mem)?;
                steps.end(&format!("CPU {:.2} s, {:.2} s", pass.cpu_s, pass.seconds));
                rows.push(row(name, variant, round, &stretch, &pass, &results.commit));
            }
        }
        decode::forget(&primary)?;
        results.replace(name, rows, vec![]);
        results.date = machine::date();
        results.headline = headline(&results);
        results.save(&path)?;
    }
    end(primary, &results, &steps);
    steps.say(&format!("written to {}", scene::absolute(&path).display()));
    Ok(())
}

fn end(primary: Server, results: &Results<Row>, steps: &Steps) {
    drop(primary);
    for line in text::table(&table(results)) {
        steps.say(&line);
    }
}

fn row(case: &str, variant: &str, round: u32, stretch: &Stretch, pass: &Pass, commit: &str) -> Row {
    Row {
        case: case.to_owned(),
        variant: variant.to_owned(),
        round,
        seconds: rounded(pass.seconds),
        cpu_s: rounded(pass.cpu_s),
        transactions: stretch.transactions,
        rows: stretch.changes,
        rows_per_s: rounded(stretch.changes as f64 / pass.seconds.max(0.001)),
        wal_mb: rounded(stretch.bytes as f64 / 1e6),
        date: machine::date(),
        commit: commit.to_owned(),
    }
}

fn headline(results: &Results<Row>) -> Option<Headline> {
    let case = HEADLINE_CASE.changes().name();
    let cpu = |variant| results.median(case, variant, |row| row.cpu_s);
    let (ours, stock) = (cpu("lockstep")?, cpu("stock")?);
    Some(Headline {
        metric: format!("{case}: CPU of one decode, median over rounds, s"),
        ours,
        stock,
        ratio: (ours > 0.0).then(|| (stock / ours * 100.0).round() / 100.0),
    })
}

fn table(results: &Results<Row>) -> Vec<Vec<String>> {
    let mut table = vec![
        [
            "median over rounds",
            "variant",
            "CPU s",
            "of stock's",
            "seconds",
            "rows/s",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for of_case in DecodeCase::ALL {
        let case = of_case.changes().name();
        let stock = results.median(case, "stock", |row| row.cpu_s);
        for &Variant { name: variant, .. } in of_case.variants() {
            let median = |value: fn(&Row) -> f64| results.median(case, variant, value);
            let Some(cpu) = median(|row| row.cpu_s) else {
                continue;
            };
            table.push(vec![
                case.to_owned(),
                variant.to_owned(),
                format!("{cpu:.2}"),
                stock.map_or_else(|| "-".to_owned(), |stock| format!("{:.3}", cpu / stock)),
                median(|row| row.seconds).map_or_else(String::new, |s| format!("{s:.2}")),
                median(|row| row.rows_per_s).map_or_else(String::new, text::count),
            ]);
        }
    }
    table
}
