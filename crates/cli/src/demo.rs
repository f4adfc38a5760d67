//! `lockstep demo`: a stock standby and a Lockstep standby under the same readers, one
//! after the other, on the same cores, each from fresh data.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lockstep_bench::trial::{self, Outcome, Size, TrialSpec, Variant};
use lockstep_lab::cluster::Lab;
use lockstep_lab::machine;
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_lab::workload::APP_ROLE;
use serde::Serialize;
use serde_json::Value;

use crate::args::{DemoArgs, Output};
use crate::live::{self, Live, Phase};
use crate::{report, scene, text};

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

/// What the demo found, as JSON prints it and the report shows it.
#[derive(Debug, Serialize)]
pub struct Findings {
    pub name: &'static str,
    pub postgresql: String,
    pub machine: String,
    pub date: String,
    pub writers: u32,
    pub readers: u32,
    pub read_query: &'static str,
    pub scale: u32,
    pub warmup_s: u32,
    pub rows: Vec<Row>,
    /// View by view, row by row, at the end of the Lockstep phase.
    pub statistics: serde_json::Map<String, Value>,
    pub report: String,
    /// How to go on with the servers; only with --keep.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
}

/// One phase. Keys carry their units.
#[derive(Debug, Serialize)]
pub struct Row {
    pub variant: &'static str,
    pub lag_p50_ms: f64,
    pub lag_p99_ms: f64,
    pub lag_max_ms: f64,
    pub lag_end_ms: f64,
    pub lag_slope_ms_per_s: f64,
    pub primary_tps: f64,
    pub read_tps: f64,
    pub seconds: f64,
    pub cpu_s: f64,
    pub startup_cpu_s: f64,
}

impl Row {
    fn new(variant: Variant, outcome: &Outcome) -> Self {
        Self {
            variant: variant.name(),
            lag_p50_ms: outcome.lag.p50_ms,
            lag_p99_ms: outcome.lag.p99_ms,
            lag_max_ms: outcome.lag.max_ms,
            lag_end_ms: outcome.lag.end_ms,
            lag_slope_ms_per_s: outcome.lag.slope_ms_per_s,
            primary_tps: outcome.primary_tps,
            read_tps: outcome.read_tps,
            seconds: outcome.seconds,
            cpu_s: outcome.standby_usage.cpu_s,
            startup_cpu_s: outcome.standby_usage.startup_cpu_s,
        }
    }
}

/// Runs the demo.
pub fn run(args: &DemoArgs) -> Result<()> {
    // Found out now rather than after minutes of work.
    check_report_path(&args.report)?;
    let lab = scene::open_lab(&args.server, true, SPACE_MB)?;
    let size = Size {
        scale: scale(args),
        writers: args.writers,
        readers: args.readers,
    };
    let mut live = open_live(args, &lab);
    let mut primary = scene::open_primary(&lab, &size, true)?;

    live.begin(0);
    let (stock, standby) = phase(args, size, &lab, &mut primary, Variant::Stock, &mut live)?;
    standby.discard(&primary)?;
    live.begin(1);
    let (ours, standby) = phase(args, size, &lab, &mut primary, Variant::Lockstep, &mut live)?;
    let statistics = statistics(&standby)?;
    live.finish();

    let mut findings = Findings {
        name: "demo",
        postgresql: args.server.pg.to_string(),
        machine: machine::describe(lab.folder(), lab.pinning()),
        date: machine::date(),
        writers: args.writers,
        readers: args.readers,
        read_query: args.read_query.describe(),
        scale: scale(args),
        warmup_s: warmup(args),
        rows: vec![
            Row::new(Variant::Stock, &stock),
            Row::new(Variant::Lockstep, &ours),
        ],
        statistics,
        report: scene::absolute(&args.report).display().to_string(),
        kept: Vec::new(),
    };
    let panels = scene::panels([(Variant::Stock, &stock), (Variant::Lockstep, &ours)]);
    fs::write(&args.report, report::html(&findings, &panels))
        .with_context(|| format!("cannot write {}", args.report.display()))?;
    if args.keep {
        findings.kept = how_to_go_on(&lab, &primary, &standby);
        lab.keep(vec![primary, standby]);
    } else {
        drop(standby);
        drop(primary);
        drop(lab);
    }
    print(args, &findings)
}

/// Makes the report's folder; an earlier report stays until there is a new one.
fn check_report_path(path: &Path) -> Result<()> {
    if path.is_dir() {
        bail!(
            "cannot write the report to {}: it is a folder; name a file",
            path.display()
        );
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    Ok(())
}

/// pgbench scale. After a checkpoint most WAL is full images of pages changed for the first
/// time; with little data that ends halfway through a phase, and load that replay cannot
/// keep up with at first becomes one that it can. So data grows with the duration.
fn scale(args: &DemoArgs) -> u32 {
    (args.duration * 4 / 3).clamp(SCALES.0, SCALES.1)
}

fn warmup(args: &DemoArgs) -> u32 {
    WARMUP.min(args.duration)
}

fn open_live(args: &DemoArgs, lab: &Lab) -> Live {
    let seconds = |n: u32| Duration::from_secs(u64::from(n));
    let load = seconds(warmup(args) + args.duration);
    let phases = [Variant::Stock, Variant::Lockstep]
        .map(|variant| Phase {
            name: scene::title(variant).to_owned(),
            load,
        })
        .to_vec();
    let preparation = seconds(4 + scale(args) / 3);
    let live = Live::new(args.output, phases, preparation, seconds(warmup(args)));
    live.say(&format!(
        "PostgreSQL {}: one primary with {} writers, and {} readers ({}) on a standby: stock first, then Lockstep.",
        args.server.pg,
        args.writers,
        args.readers,
        args.read_query.describe()
    ));
    live.say(&format!(
        "Pinning: {}. The first {} s of load are not measured.",
        lab.pinning().describe(),
        warmup(args)
    ));
    live
}

fn phase(
    args: &DemoArgs,
    size: Size,
    lab: &Lab,
    primary: &mut Server,
    variant: Variant,
    live: &mut Live,
) -> Result<(Outcome, Server)> {
    let seconds = |n: u32| Duration::from_secs(u64::from(n));
    let spec = TrialSpec {
        variant,
        size,
        read: args.read_query.workload(),
        standby_settings: scene::standby_settings(variant, &[]),
        warmup: seconds(warmup(args)),
        measured: seconds(args.duration),
        series_every: seconds(5),
    };
    let (outcome, standby) = trial::run(lab, primary, variant.name(), &spec, live)?;
    live.end(&scene::one_line(&outcome));
    Ok((outcome, standby))
}

/// What the extension says about itself, whatever columns its views have.
fn statistics(standby: &Server) -> Result<serde_json::Map<String, Value>> {
    let mut all = serde_json::Map::new();
    for view in VIEWS {
        let sql = format!("SELECT coalesce(json_agg(v), '[]')::text FROM {view} v");
        let json = standby.query_text(&sql)?.unwrap_or_default();
        let rows = serde_json::from_str(&json)
            .with_context(|| format!("{view} gave something that is not JSON"))?;
        all.insert(view.to_owned(), rows);
    }
    Ok(all)
}

/// Rows of a view as `column value` pairs; what is null is left out.
pub fn statistics_lines(findings: &Findings) -> Vec<(String, String)> {
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
pub fn table(findings: &Findings) -> Vec<Vec<String>> {
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
            text::ms(row.lag_p50_ms),
            text::ms(row.lag_p99_ms),
            text::ms(row.lag_end_ms),
            text::slope(row.lag_slope_ms_per_s),
            text::count(row.primary_tps),
            text::count(row.read_tps),
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

fn print(args: &DemoArgs, findings: &Findings) -> Result<()> {
    if args.output == Output::Json {
        live::print(&serde_json::to_string_pretty(findings)?);
        return Ok(());
    }
    let mut lines = vec![String::new()];
    lines.extend(text::table(&table(findings)));
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
    for line in lines {
        live::print(&line);
    }
    Ok(())
}
