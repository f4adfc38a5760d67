//! `lockstep bench replay`: how fast fixed WAL is replayed, stock and Lockstep alternating.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum, value_parser};
use lockstep_bench::replay::round::{self, Outcome, RoundSpec, Until};
use lockstep_bench::replay::temperature::Temperature;
use lockstep_bench::replay::work::{self, Amount, Recorded, Work, WorkSize};
use lockstep_bench::trial::Variant;
use lockstep_lab::cluster::Lab;
use lockstep_lab::machine;
use lockstep_player::Pace;
use serde::{Deserialize, Serialize};

use super::results::{Headline, Measured, Results, megabytes, rounded};
use super::steps::Steps;
use crate::args::{ServerArgs, VariantName, setting};
use crate::bars::{self, Series};
use crate::{scene, text};

/// Name of the benchmark and of its files.
const NAME: &str = "replay";

/// The case that the headline is about.
const HEADLINE_CASE: &str = "tpcb-cached";

/// Megabytes that a run may need: the source, its backup, and a standby.
const SPACE_MB_BASE: u64 = 8_000;

/// `lockstep bench replay`
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Rounds of each case
    #[arg(long, value_name = "N", env = "BENCH_ROUNDS", hide_env_values = true, default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Seconds for which each kind of writes is recorded, at most
    #[arg(long, value_name = "SECONDS", env = "BENCH_SECONDS", hide_env_values = true, default_value_t = 24, value_parser = value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Megabytes of WAL after which recording stops sooner
    #[arg(long, value_name = "MB", default_value_t = 512, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub megabytes: u64,
    /// Kinds of writes, separated by commas
    #[arg(long, value_enum, value_name = "KINDS", value_delimiter = ',', default_values_t = WorkName::ALL)]
    pub writes: Vec<WorkName>,
    /// What of the standby's data is in memory, separated by commas
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',', default_values_t = TemperatureName::ALL)]
    pub memory: Vec<TemperatureName>,
    /// Variants to run, separated by commas
    #[arg(long, value_enum, value_name = "VARIANTS", value_delimiter = ',', default_values_t = [VariantName::Stock, VariantName::Lockstep])]
    pub variants: Vec<VariantName>,
    /// How much data
    #[command(flatten)]
    pub size: SizeArgs,
    /// A setting for the Lockstep standby, for experiments; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
    /// Folder for replay.json and the plot
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    pub results: PathBuf,
    /// Which servers to use.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// How much data the recorded writes work on.
#[derive(Debug, Clone, Copy, Args)]
pub struct SizeArgs {
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
    /// TPC-C warehouses
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=1000))]
    pub warehouses: u32,
    /// Rows of the tables of update, insert and bulk before the writes
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u32).range(1..=1_000_000_000))]
    pub rows: u32,
    /// Clients that write
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = value_parser!(u32).range(1..=900))]
    pub writers: u32,
}

impl SizeArgs {
    /// As the lab takes it.
    pub fn size(self) -> WorkSize {
        WorkSize {
            scale: self.scale,
            warehouses: self.warehouses,
            rows: self.rows,
            clients: self.writers,
        }
    }
}

/// Kinds of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WorkName {
    /// pgbench's TPC-B-like transaction, by a procedure on the server.
    Tpcb,
    /// The TPC-C mix.
    Tpcc,
    /// Updates of three indexed columns.
    Update,
    /// Single-row inserts, two indexes.
    Insert,
    /// COPY of 100,000 rows a transaction.
    Bulk,
}

impl WorkName {
    /// All.
    pub const ALL: [Self; 5] = [
        Self::Tpcb,
        Self::Tpcc,
        Self::Update,
        Self::Insert,
        Self::Bulk,
    ];

    fn work(self) -> Work {
        match self {
            Self::Tpcb => Work::TpcB,
            Self::Tpcc => Work::TpcC,
            Self::Update => Work::Update,
            Self::Insert => Work::Insert,
            Self::Bulk => Work::Bulk,
        }
    }
}

/// What of the data is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TemperatureName {
    /// All of it in shared buffers.
    Cached,
    /// Shared buffers of 30 per cent of it; the kernel's cache of the rest is dropped all the time.
    #[value(name = "30pct")]
    Part,
    /// Nothing of it, with room for all.
    Cold,
}

impl TemperatureName {
    /// All.
    pub const ALL: [Self; 3] = [Self::Cached, Self::Part, Self::Cold];

    fn temperature(self) -> Temperature {
        match self {
            Self::Cached => Temperature::Cached,
            Self::Part => Temperature::Part,
            Self::Cold => Temperature::Cold,
        }
    }
}

/// One replay of one recording.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub variant: String,
    pub round: u32,
    /// From the first byte sent until the last record was replayed.
    pub seconds: f64,
    /// Of the standby.
    pub cpu_s: f64,
    /// Of its startup process, which replays.
    pub startup_cpu_s: f64,
    pub records: u64,
    pub records_per_s: f64,
    pub wal_mb: f64,
    pub mb_per_s: f64,
    pub data_mb: f64,
    /// Of the standby.
    pub rss_mb: f64,
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
pub fn run(args: &ReplayArgs) -> Result<()> {
    let path = Results::<Row>::place(&args.results, NAME)?;
    let with_extension = args
        .variants
        .iter()
        .any(|variant| variant.variant() == Variant::Lockstep);
    let space = SPACE_MB_BASE + 3 * args.megabytes;
    let lab = scene::open_lab(&args.server, with_extension, space)?;
    let mut results = Results::begin(
        &path,
        NAME,
        command(args),
        machine::describe(lab.folder(), lab.pinning()),
    )?;
    let rounds = args.memory.len() * args.variants.len() * args.rounds as usize;
    let mut steps = Steps::new(args.writes.len() * (rounds + 1));
    steps.say(&format!("{} ({})", results.command, results.machine));
    for &kind in &args.writes {
        let work = kind.work();
        steps.begin(&format!("{}: recording", work.name()));
        let recorded = record(args, &lab, work)?;
        steps.end(&format!(
            "{} MB of WAL, {} records",
            text::count(recorded.recording.bytes() as f64 / 1e6),
            text::count(recorded.records as f64)
        ));
        for memory in &args.memory {
            let temperature = memory.temperature();
            let case = format!("{}-{}", work.name(), temperature.name());
            let rows = play(
                args,
                &lab,
                &case,
                temperature,
                &recorded,
                &results.commit,
                &mut steps,
            )?;
            results.replace(&case, rows, vec![]);
            results.date = machine::date();
            results.headline = headline(&results);
            results.save(&path)?;
        }
        recorded.remove()?;
    }
    drop(lab);
    draw(args, &results)?;
    for line in text::table(&table(&results)) {
        steps.say(&line);
    }
    steps.say(&format!("written to {}", scene::absolute(&path).display()));
    Ok(())
}

fn record(args: &ReplayArgs, lab: &Lab, work: Work) -> Result<Recorded> {
    let amount = Amount {
        lead_in: None,
        bytes: args.megabytes * 1_000_000,
        longest: Duration::from_secs(u64::from(args.seconds)),
    };
    Ok(work::record(lab, work, args.size.size(), amount)?)
}

fn play(
    args: &ReplayArgs,
    lab: &Lab,
    case: &str,
    temperature: Temperature,
    recorded: &Recorded,
    commit: &str,
    steps: &mut Steps,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for round in 1..=args.rounds {
        for name in &args.variants {
            let variant = name.variant();
            steps.begin(&format!("{case} {round} {}", variant.name()));
            let spec = RoundSpec {
                recording: &recorded.recording,
                data_bytes: recorded.data_bytes,
                temperature,
                settings: scene::standby_settings(variant, &args.set),
                pace: Pace::Unlimited,
                lead_in: None,
                readers: None,
                until: Until::Replayed,
            };
            let outcome = round::run(lab, variant.name(), &spec)?;
            let row = row(case, variant, round, recorded, &outcome, &args.set, commit);
            steps.end(&format!(
                "{:.1} s, {:.1} MB/s, {} records/s",
                row.seconds,
                row.mb_per_s,
                text::count(row.records_per_s)
            ));
            rows.push(row);
        }
    }
    Ok(rows)
}

fn row(
    case: &str,
    variant: Variant,
    round: u32,
    recorded: &Recorded,
    outcome: &Outcome,
    set: &[(String, String)],
    commit: &str,
) -> Row {
    let seconds = outcome.seconds.max(0.001);
    Row {
        case: case.to_owned(),
        variant: variant.name().to_owned(),
        round,
        seconds: rounded(outcome.seconds),
        cpu_s: rounded(outcome.usage.cpu_s),
        startup_cpu_s: rounded(outcome.usage.startup_cpu_s),
        records: recorded.records,
        records_per_s: rounded(recorded.records as f64 / seconds),
        wal_mb: rounded(outcome.replayed_bytes as f64 / 1e6),
        mb_per_s: rounded(outcome.replayed_bytes as f64 / 1e6 / seconds),
        data_mb: megabytes(i64::try_from(recorded.data_bytes).unwrap_or(i64::MAX)),
        rss_mb: rounded(outcome.usage.rss_mb),
        settings: super::settings_text(variant, set),
        date: machine::date(),
        commit: commit.to_owned(),
    }
}

/// The command with every choice spelled out, wherever it came from.
fn command(args: &ReplayArgs) -> String {
    let names = |list: Vec<&str>| list.join(",");
    format!(
        "lockstep bench replay --pg {} --rounds {} --seconds {} --megabytes {} --writes {} --memory {} \
         --variants {} --scale {} --warehouses {} --rows {} --writers {}{}",
        args.server.pg,
        args.rounds,
        args.seconds,
        args.megabytes,
        names(args.writes.iter().map(|kind| kind.work().name()).collect()),
        names(
            args.memory
                .iter()
                .map(|memory| memory.temperature().name())
                .collect()
        ),
        names(args.variants.iter().map(|v| v.variant().name()).collect()),
        args.size.scale,
        args.size.warehouses,
        args.size.rows,
        args.size.writers,
        super::set_options(&args.set),
    )
}

fn headline(results: &Results<Row>) -> Option<Headline> {
    let rate = |variant: Variant| results.median(HEADLINE_CASE, variant.name(), |row| row.mb_per_s);
    let (ours, stock) = (rate(Variant::Lockstep)?, rate(Variant::Stock)?);
    Some(Headline {
        metric: format!("{HEADLINE_CASE}: WAL replayed, median over rounds, MB/s"),
        ours,
        stock,
        ratio: (stock > 0.0).then(|| (ours / stock * 1000.0).round() / 1000.0),
    })
}

/// Cases that have rows, in order.
fn cases(results: &Results<Row>) -> Vec<String> {
    Work::ALL
        .into_iter()
        .flat_map(|work| {
            Temperature::ALL.map(|temperature| format!("{}-{}", work.name(), temperature.name()))
        })
        .filter(|case| results.rows.iter().any(|row| &row.case == case))
        .collect()
}

fn draw(args: &ReplayArgs, results: &Results<Row>) -> Result<()> {
    let cases = cases(results);
    let series: Vec<Series> = [Variant::Stock, Variant::Lockstep]
        .into_iter()
        .map(|variant| Series {
            name: scene::title(variant).to_owned(),
            color: scene::color(variant),
            values: cases
                .iter()
                .map(|case| results.median(case, variant.name(), |row| row.mb_per_s))
                .collect(),
        })
        .collect();
    let title = format!(
        "WAL replayed by one standby, MB/s, PostgreSQL {}",
        args.server.pg
    );
    let path = args.results.join(format!("{NAME}.svg"));
    fs::write(&path, bars::svg(&title, &cases, &series))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn table(results: &Results<Row>) -> Vec<Vec<String>> {
    let mut table = vec![
        [
            "median over rounds",
            "WAL MB",
            "stock s",
            "lockstep s",
            "stock MB/s",
            "lockstep MB/s",
            "lockstep/stock",
            "stock startup CPU s",
            "lockstep",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for case in cases(results) {
        let of =
            |variant: Variant, value: fn(&Row) -> f64| results.median(&case, variant.name(), value);
        let both = |value: fn(&Row) -> f64, digits: usize| {
            [Variant::Stock, Variant::Lockstep].map(|variant| {
                of(variant, value).map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"))
            })
        };
        let rate = |variant| of(variant, |row| row.mb_per_s);
        let ratio = match (rate(Variant::Stock), rate(Variant::Lockstep)) {
            (Some(stock), Some(ours)) if stock > 0.0 => format!("{:.3}", ours / stock),
            _ => "-".to_owned(),
        };
        let [stock_s, our_s] = both(|row| row.seconds, 2);
        let [stock_rate, our_rate] = both(|row| row.mb_per_s, 1);
        let [stock_cpu, our_cpu] = both(|row| row.startup_cpu_s, 2);
        let wal = results.rows.iter().find(|row| row.case == case);
        table.push(vec![
            case.clone(),
            wal.map_or_else(String::new, |row| text::count(row.wal_mb)),
            stock_s,
            our_s,
            stock_rate,
            our_rate,
            ratio,
            stock_cpu,
            our_cpu,
        ]);
    }
    table
}
