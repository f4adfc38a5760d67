//! `lockstep-lab demo`: a stock standby and a Lockstep standby under the same readers, one
//! after the other, on the same cores, each from fresh data. With `--stock-twice` both are stock, so
//! that the two differ by chance alone.

pub(crate) mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use lockstep_lab::cluster::Lab;
use lockstep_lab::machine;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_lab::workload::{APP_ROLE, Workload};
use lockstep_service::words::output::Output;
use lockstep_service::words::{figures, lines};
use serde::Serialize;
use serde_json::Value;

use crate::args::ServerArgs;
use crate::audience::{Ahead, Audience, Phase, Trials};
use crate::host::{Host, absolute};
use crate::plot::trials::{color, panels};
use crate::results;
use crate::trial::{self, Outcome, Size, TrialFigures, TrialSpec, Variant};
use crate::{BenchError, Result};

/// Smallest and largest pgbench scale: the largest still loads in half a minute.
const SCALES: (u32, u32) = (5, 80);

/// Full load before the measurement begins, at most, in seconds.
const WARMUP: u32 = 5;

/// Megabytes that a run may need.
const SPACE_MB: u64 = 6_000;

/// The extension's statistics, one view each.
const VIEWS: [&str; 3] = [
    "lockstep_stat_replay",
    "lockstep_stat_priority",
    "lockstep_stat_throttle",
];

/// `lockstep-lab demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Seconds that each of the two standbys is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 45, value_parser = value_parser!(u32).range(1..=3600))]
    pub duration: u32,
    /// Clients that write to the primary
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = value_parser!(u32).range(1..=900))]
    pub writers: u32,
    /// Clients that read from the standby
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = value_parser!(u32).range(1..=900))]
    pub readers: u32,
    /// What readers do: one row by key, or a sum over 3,000 rows
    #[arg(long, value_enum, value_name = "QUERY", default_value_t = ReadQuery::Aggregate)]
    pub read_query: ReadQuery,
    /// Run a second stock standby in place of the Lockstep one: how much two equal runs differ
    #[arg(long, conflicts_with = "keep")]
    pub stock_twice: bool,
    /// Keep the primary and the Lockstep standby running, and say how to connect and remove them
    #[arg(long)]
    pub keep: bool,
    /// Format of the result on standard output; with json, progress goes to standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
    /// Where to write the report
    #[arg(long, value_name = "FILE", default_value = "build/demo/report.html")]
    pub report: PathBuf,
    /// Which servers to use.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What readers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReadQuery {
    /// One row by primary key.
    Select,
    /// A sum over 3,000 consecutive rows.
    Aggregate,
}

impl ReadQuery {
    pub fn workload(self) -> Workload {
        match self {
            Self::Select => Workload::Select,
            Self::Aggregate => Workload::Aggregate,
        }
    }

    /// Name in arguments.
    fn name(self) -> &'static str {
        match self {
            Self::Select => "select",
            Self::Aggregate => "aggregate",
        }
    }

    pub fn describe(self) -> &'static str {
        match self {
            Self::Select => "one row by primary key",
            Self::Aggregate => "a sum over 3,000 consecutive rows",
        }
    }
}

/// One of the two standbys.
#[derive(Debug, Clone, Copy)]
struct Contender {
    variant: Variant,
    /// Name in the result.
    name: &'static str,
    /// Name for people.
    title: &'static str,
    /// Colour in the report.
    color: &'static str,
}

impl Contender {
    fn of(variant: Variant) -> Self {
        Self {
            variant,
            name: variant.name(),
            title: variant.title(),
            color: color(variant),
        }
    }

    /// Both standbys, in the order in which they run.
    fn both(args: &DemoArgs) -> [Self; 2] {
        let second = match args.stock_twice {
            false => Self::of(Variant::Lockstep),
            true => Self {
                variant: Variant::Stock,
                name: "stock-again",
                title: "stock standby again",
                color: color(Variant::Lockstep),
            },
        };
        [Self::of(Variant::Stock), second]
    }
}

/// What the demo found, as JSON prints it and the report shows it.
#[derive(Debug, Serialize)]
pub struct Findings {
    /// `demo`, or `demo-aa` if both standbys are stock.
    pub name: &'static str,
    /// Which standbys ran, for the report.
    #[serde(skip)]
    pub order: &'static str,
    /// The command, with defaults spelled out.
    pub command: String,
    pub commit: String,
    pub postgresql: String,
    pub machine: String,
    pub date: String,
    pub writers: u32,
    pub readers: u32,
    pub read_query: &'static str,
    pub scale: u32,
    pub warmup_s: u32,
    pub rows: Vec<PhaseFigures>,
    /// Each view's rows at the end of the Lockstep phase, if there is one.
    pub statistics: serde_json::Map<String, Value>,
    pub report: String,
    /// How to go on with the servers; only with --keep.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct PhaseFigures {
    pub variant: &'static str,
    #[serde(flatten)]
    pub trial: TrialFigures,
}

pub fn run(args: &DemoArgs, host: &Host, audience: &mut dyn Audience) -> Result<()> {
    // An unusable path is refused now rather than after minutes of work.
    check_report_path(&args.report)?;
    let lab = host.open_lab(&args.server, true, SPACE_MB)?;
    let size = Size {
        scale: scale(args),
        writers: args.writers,
        readers: args.readers,
    };
    let [first, second] = Contender::both(args);
    introduce(args, &lab, audience);
    let mut primary = trial::open_primary(&lab, &size, true)?;

    let (earlier, standby) = phase(args, size, &lab, &mut primary, first, audience)?;
    standby.discard(&primary)?;
    let (later, standby) = phase(args, size, &lab, &mut primary, second, audience)?;
    let statistics = match second.variant {
        Variant::Stock => serde_json::Map::new(),
        Variant::Lockstep => statistics(&standby)?,
    };
    audience.finish();

    let measured = [(first, &earlier), (second, &later)];
    let mut findings = Findings {
        name: match args.stock_twice {
            false => "demo",
            true => "demo-aa",
        },
        order: order(args),
        command: command(args),
        commit: results::commit(),
        postgresql: args.server.pg.to_string(),
        machine: machine::describe(lab.folder(), lab.pinning()),
        date: machine::date(),
        writers: args.writers,
        readers: args.readers,
        read_query: args.read_query.describe(),
        scale: scale(args),
        warmup_s: warmup(args),
        rows: measured
            .map(|(contender, outcome)| PhaseFigures {
                variant: contender.name,
                trial: outcome.figures(),
            })
            .into(),
        statistics,
        report: absolute(&args.report).display().to_string(),
        kept: Vec::new(),
    };
    let panels = panels(measured.map(|(of, outcome)| (of.title, of.color, outcome)));
    fs::write(&args.report, report::html(&findings, &panels))
        .map_err(BenchError::io("write", &args.report))?;
    if args.keep {
        findings.kept = how_to_go_on(&lab, &primary, &standby);
        lab.keep(vec![primary, standby]);
    } else {
        drop(standby);
        drop(primary);
        drop(lab);
    }
    for line in lines(args, &findings)? {
        audience.result(&line);
    }
    Ok(())
}

/// Makes the report's folder; an earlier report stays until there is a new one.
pub(crate) fn check_report_path(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Err(BenchError::Unusable(format!(
            "cannot write the report to {}: it is a folder; name a file",
            path.display()
        )));
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(BenchError::io("create", folder))?;
    }
    Ok(())
}

/// pgbench scale, which grows with the duration. After a checkpoint most WAL is images of pages
/// that change for the first time. With little data these end halfway through a phase, and replay
/// would then keep up with a load that was too much for it at first.
fn scale(args: &DemoArgs) -> u32 {
    (args.duration * 4 / 3).clamp(SCALES.0, SCALES.1)
}

fn warmup(args: &DemoArgs) -> u32 {
    WARMUP.min(args.duration)
}

/// Which standbys run, for people.
fn order(args: &DemoArgs) -> &'static str {
    match args.stock_twice {
        false => "stock first, then Lockstep",
        true => "stock, and stock again",
    }
}

fn command(args: &DemoArgs) -> String {
    let twice = if args.stock_twice {
        " --stock-twice"
    } else {
        ""
    };
    format!(
        "lockstep-lab demo --duration {} --writers {} --readers {} --read-query {}{twice} --pg {}",
        args.duration,
        args.writers,
        args.readers,
        args.read_query.name(),
        args.server.pg
    )
}

fn introduce(args: &DemoArgs, lab: &Lab, audience: &mut dyn Audience) {
    let seconds = |n: u32| Duration::from_secs(u64::from(n));
    let phase = |contender: Contender| Phase {
        name: contender.title.to_owned(),
        load: seconds(warmup(args) + args.duration),
    };
    audience.expect(Ahead::Trials(Trials {
        phases: Contender::both(args).map(phase).into(),
        preparation: seconds(4 + scale(args) / 3),
        warmup: seconds(warmup(args)),
    }));
    audience.say(&format!(
        "PostgreSQL {}: one primary with {} writers, and {} readers ({}) on a standby: {}.",
        args.server.pg,
        args.writers,
        args.readers,
        args.read_query.describe(),
        order(args)
    ));
    audience.say(&format!(
        "Pinning: {}. The first {} s of load are not measured.",
        lab.pinning().describe(),
        warmup(args)
    ));
}

fn phase(
    args: &DemoArgs,
    size: Size,
    lab: &Lab,
    primary: &mut Server,
    contender: Contender,
    audience: &mut dyn Audience,
) -> Result<(Outcome, Server)> {
    let variant = contender.variant;
    audience.begin(contender.title);
    let seconds = |n: u32| Duration::from_secs(u64::from(n));
    let spec = TrialSpec {
        variant,
        size,
        read: args.read_query.workload(),
        lookups: false,
        side: Side::Standby,
        busy_others: 0,
        standby_settings: variant.standby_settings(&[]),
        warmup: seconds(warmup(args)),
        measured: seconds(args.duration),
        series_every: seconds(5),
    };
    let (outcome, standby) = trial::run(lab, primary, contender.name, &spec, audience)?;
    audience.end(&outcome.figures().line());
    Ok((outcome, standby))
}

/// The extension's statistics, with the columns that its views happen to have.
fn statistics(standby: &Server) -> Result<serde_json::Map<String, Value>> {
    let mut all = serde_json::Map::new();
    for view in VIEWS {
        let sql = format!("SELECT coalesce(json_agg(v), '[]')::text FROM {view} v");
        let json = standby.query_text(&sql)?.unwrap_or_default();
        let rows = serde_json::from_str(&json).map_err(|error| {
            BenchError::Unusable(format!("{view} gave something that is not JSON: {error}"))
        })?;
        all.insert(view.to_owned(), rows);
    }
    Ok(all)
}

/// Rows of a view as `column value` pairs; what is null is left out.
fn statistics_lines(findings: &Findings) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for (view, rows) in &findings.statistics {
        for row in rows.as_array().into_iter().flatten() {
            let columns: Vec<String> = row
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| match value {
                    Value::String(text) => format!("{name} {text}"),
                    other => format!("{name} {other}"),
                })
                .collect();
            lines.push((view.clone(), columns.join(", ")));
        }
    }
    lines
}

/// Lag and throughput of both phases, as table cells.
fn table(findings: &Findings) -> Vec<Vec<String>> {
    let head = [
        "",
        "lag p50",
        "lag p99",
        "lag at end",
        "lag slope",
        "primary TPS",
        "reads/s",
    ];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    table.extend(findings.rows.iter().map(|row| {
        vec![
            row.variant.to_owned(),
            figures::ms(row.trial.lag_p50_ms),
            figures::ms(row.trial.lag_p99_ms),
            figures::ms(row.trial.lag_end_ms),
            figures::slope(row.trial.lag_slope_ms_per_s),
            figures::count(row.trial.primary_tps),
            figures::count(row.trial.read_tps),
        ]
    }));
    table
}

fn how_to_go_on(lab: &Lab, primary: &Server, standby: &Server) -> Vec<String> {
    let psql = |server: &Server, user: &str| {
        format!(
            "{} \"{}\"",
            lab.package().program("psql").display(),
            server.conninfo(user)
        )
    };
    // PostgreSQL's own tools refuse root, as the servers do.
    let as_account = match lab.account().is_other() {
        true => format!("runuser -u {} -- ", lab.account().name()),
        false => String::new(),
    };
    let stop = |server: &Server| {
        format!(
            "{as_account}{} -D {} -m fast stop",
            lab.package().program("pg_ctl").display(),
            server.data().display()
        )
    };
    vec![
        format!("primary:  {}", psql(primary, SUPERUSER)),
        format!("standby:  {}", psql(standby, SUPERUSER)),
        format!(
            "as a reader, whom Lockstep governs:  {}",
            psql(standby, APP_ROLE)
        ),
        format!(
            "stop and remove:  cd / && {} && {} && rm -r {}",
            stop(standby),
            stop(primary),
            lab.folder().display()
        ),
    ]
}

fn lines(args: &DemoArgs, findings: &Findings) -> Result<Vec<String>> {
    if args.output == Output::Json {
        let json = serde_json::to_string_pretty(findings)
            .map_err(|error| BenchError::Unusable(format!("no JSON of the findings: {error}")))?;
        return Ok(vec![json]);
    }
    let mut lines = vec![String::new()];
    lines.extend(lines::table(&table(findings)));
    lines.push(String::new());
    for (view, columns) in statistics_lines(findings) {
        lines.push(format!("{view}: {columns}"));
    }
    lines.push(String::new());
    if !findings.kept.is_empty() {
        lines.push("Primary and Lockstep standby keep running:".to_owned());
        lines.extend(findings.kept.iter().map(|line| format!("  {line}")));
    }
    lines.push(format!("report: {}", findings.report));
    Ok(lines)
}
