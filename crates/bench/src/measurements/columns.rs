//! What each benchmark's table shows.

use serde_json::Value;

use super::figures::{ratio, shown};
use super::results::{JsonRow, median, text};
use super::{LOCKSTEP, MeasurementsError, Result, STOCK};

/// Which way a figure is better; decides how its ratio is built.
#[derive(Clone, Copy, PartialEq)]
pub enum Better {
    Lower,
    Higher,
    /// The figure describes the round; it has no ratio.
    Neither,
}

/// How the rows of several rounds become one cell.
enum Kind {
    Median(Better),
    /// The text that all of them have.
    Text,
    /// How many of them are true (or 1).
    Count,
    /// How many of those of this major version are.
    CountOn(u64),
}

pub struct Column {
    pub title: &'static str,
    key: &'static str,
    kind: Kind,
}

pub struct Layout {
    pub columns: Vec<Column>,
    /// Each round has several rows of a case and variant, one for each rate.
    pub in_steps: bool,
    pub ours: &'static str,
    pub theirs: &'static str,
}

impl Column {
    /// Figures stand to the right.
    pub fn rule(&self) -> &'static str {
        match self.kind {
            Kind::Median(_) => "---:",
            Kind::Text | Kind::Count | Kind::CountOn(_) => "---",
        }
    }

    /// The cell for the rows of one variant.
    pub fn cell(&self, rows: &[&JsonRow]) -> String {
        match self.kind {
            Kind::Median(_) => {
                median(rows, self.key).map_or_else(String::new, |value| shown(self.key, value))
            }
            Kind::Text => rows
                .first()
                .map_or("", |row| text(row, self.key))
                .to_owned(),
            Kind::Count => self.count(rows.iter().copied()),
            Kind::CountOn(major) => {
                let is_of = |row: &&JsonRow| row.get("pg").and_then(Value::as_u64) == Some(major);
                self.count(rows.iter().copied().filter(is_of))
            }
        }
    }

    /// How many of these rows are true.
    fn count<'r>(&self, rows: impl Iterator<Item = &'r JsonRow>) -> String {
        let yes = rows.map(|row| match row.get(self.key) {
            Some(Value::Bool(yes)) => *yes,
            other => other.and_then(Value::as_f64) == Some(1.0),
        });
        let yes: Vec<bool> = yes.collect();
        match (yes.iter().filter(|yes| **yes).count(), yes.len()) {
            (_, 0) => String::new(),
            (1, 1) => "yes".to_owned(),
            (0, 1) => "no".to_owned(),
            (count, all) => format!("{count} of {all}"),
        }
    }

    /// How many times better ours is, where both have the figure.
    pub fn ratio(&self, ours: &[&JsonRow], theirs: &[&JsonRow]) -> Option<String> {
        let Kind::Median(better) = self.kind else {
            return None;
        };
        times_better(better, median(ours, self.key)?, median(theirs, self.key)?).map(ratio)
    }
}

/// How many times better ours is; None where that cannot be said.
pub fn times_better(better: Better, ours: f64, theirs: f64) -> Option<f64> {
    let (above, below) = match better {
        Better::Lower => (theirs, ours),
        Better::Higher => (ours, theirs),
        Better::Neither => return None,
    };
    (below > 0.0).then(|| above / below)
}

fn lower(title: &'static str, key: &'static str) -> Column {
    let kind = Kind::Median(Better::Lower);
    Column { title, key, kind }
}

fn higher(title: &'static str, key: &'static str) -> Column {
    let kind = Kind::Median(Better::Higher);
    Column { title, key, kind }
}

fn about(title: &'static str, key: &'static str) -> Column {
    let kind = Kind::Median(Better::Neither);
    Column { title, key, kind }
}

fn words(title: &'static str, key: &'static str) -> Column {
    let kind = Kind::Text;
    Column { title, key, kind }
}

fn count(title: &'static str, key: &'static str) -> Column {
    let kind = Kind::Count;
    Column { title, key, kind }
}

fn count_on(title: &'static str, key: &'static str, major: u64) -> Column {
    let kind = Kind::CountOn(major);
    Column { title, key, kind }
}

/// What the table of a benchmark shows.
pub fn of(benchmark: &str) -> Result<Layout> {
    let columns = of_standbys(benchmark)
        .or_else(|| of_streams(benchmark))
        .or_else(|| of_replicas(benchmark))
        .or_else(|| of_clusters(benchmark))
        .ok_or_else(|| MeasurementsError::Unknown(benchmark.to_owned()))?;
    let (ours, theirs) = match benchmark {
        "overhead" => ("throttle-on", "throttle-off"),
        _ => (LOCKSTEP, STOCK),
    };
    Ok(Layout {
        columns,
        in_steps: benchmark == "load-curve",
        ours,
        theirs,
    })
}

/// Benchmarks of standbys, their replay and their commits.
fn of_standbys(benchmark: &str) -> Option<Vec<Column>> {
    Some(match benchmark {
        "priority" => priority(),
        "overhead" => vec![
            higher("reads/s", "read_tps"),
            about("queries that waited", "waits"),
        ],
        "load-curve" => load_curve(),
        "replay" => vec![
            higher("WAL replayed", "mb_per_s"),
            higher("records/s", "records_per_s"),
            lower("time", "seconds"),
            lower("until it accepts connections", "ready_seconds"),
            lower("startup's CPU", "startup_cpu_s"),
            about("WAL", "wal_mb"),
            about("data", "data_mb"),
        ],
        "commit" => vec![
            lower("median", "commit_p50_ms"),
            lower("p99", "commit_p99_ms"),
            about("commits", "commits"),
        ],
        "commit-levels" => vec![
            lower("remote_write", "remote_write_ms"),
            lower("on", "on_ms"),
            lower("remote_apply", "remote_apply_ms"),
        ],
        "wal-player" => vec![
            about("rate", "mb_per_s"),
            about("off the set rate", "error_pct"),
            about("WAL", "wal_mb"),
        ],
        _ => return None,
    })
}

/// Benchmarks of logical decoding and of relays.
fn of_streams(benchmark: &str) -> Option<Vec<Column>> {
    Some(match benchmark {
        "decode" => vec![
            lower("CPU", "cpu_s"),
            lower("time", "seconds"),
            higher("rows/s", "rows_per_s"),
            about("WAL", "wal_mb"),
        ],
        "relay-fanout" => fanout(),
        "relay-mixed" => mixed(),
        "relay-catchup" => catchup(),
        _ => return None,
    })
}

/// Benchmarks of a replica.
fn of_replicas(benchmark: &str) -> Option<Vec<Column>> {
    Some(match benchmark {
        "copy" => vec![
            higher("rows", "mb_per_s"),
            lower("everything", "seconds"),
            about("source's CPU", "source_cpu_s"),
            about("target's CPU", "target_cpu_s"),
            about("data", "data_mb"),
        ],
        "apply" => vec![
            higher("rows/s", "rows_per_s"),
            lower("CPU of target and applier", "cpu_s"),
            lower("time to catch up", "seconds"),
            about("relay's CPU", "relay_cpu_s"),
            about("changes", "rows"),
        ],
        "delete" => vec![
            higher("rows/s", "rows_per_s"),
            lower("bytes a row", "bytes_per_row"),
            about("buckets", "buckets"),
            lower("target's CPU", "target_cpu_s"),
            about("applier's CPU", "applier_cpu_s"),
            about("its peak memory", "applier_peak_mb"),
            about("rows", "rows"),
        ],
        "replicas" => vec![
            higher("together", "mb_per_s"),
            higher("each", "mb_per_s_each"),
            lower("time", "seconds"),
            about("source's CPU", "source_cpu_s"),
            about("target's CPU", "target_cpu_s"),
            about("data of each", "data_mb"),
        ],
        "tables" => vec![
            lower("ms for each table", "ms_per_table"),
            lower("everything", "seconds"),
            about("tables", "tables"),
        ],
        _ => return None,
    })
}

/// Benchmarks of whole clusters and of those who watch them.
fn of_clusters(benchmark: &str) -> Option<Vec<Column>> {
    Some(match benchmark {
        "switchover" => vec![
            lower("longest pause, ms", "pause_ms"),
            lower("on the way back", "back_pause_ms"),
            lower("failed", "failed"),
            lower("rows that differ", "differing_rows"),
            about("transactions a second", "rate"),
        ],
        "pool" => vec![
            about("reads", "reads"),
            lower("stale", "stale_reads"),
            about("by standbys", "standby_share"),
            about("failovers", "failovers"),
            lower("p99 ratio", "p99_ratio"),
            about("CPU of the agents", "agents_cpu_percent"),
            about("on the primary", "primary_cpu_percent"),
            about("cost of tokens", "token_tps_percent"),
            about("reads/s", "reads_per_s"),
        ],
        "watching" => vec![
            about("CPU of the sampled sessions", "sampling_cpu_percent"),
            about("on a standby", "standby_cpu_percent"),
            about("CPU of the primary", "primary_cpu_percent"),
            about("CPU of the program that samples", "monitor_cpu_percent"),
            about("primary TPS", "primary_tps"),
        ],
        "doctor-matrix" => vec![
            words("cause injected", "expected"),
            words("cause found", "found"),
            count_on("right on 15", "right", 15),
            count_on("on 17", "right", 17),
            words("figure", "figure"),
            about("quoted", "quoted"),
            about("measured", "measured"),
        ],
        _ => return None,
    })
}

fn priority() -> Vec<Column> {
    vec![
        lower("lag median", "lag_p50_ms"),
        lower("p99", "lag_p99_ms"),
        lower("longest", "lag_max_ms"),
        lower("at the end", "lag_end_ms"),
        about("slope", "lag_slope_ms_per_s"),
        higher("primary TPS", "primary_tps"),
        higher("reads/s", "read_tps"),
    ]
}

fn load_curve() -> Vec<Column> {
    vec![
        about("offered", "offered_mb_per_s"),
        higher("replayed", "replayed_mb_per_s"),
        lower("lag median", "lag_p50_ms"),
        lower("p99", "lag_p99_ms"),
        about("slope", "lag_slope_ms_per_s"),
        count("bounded", "lag_bounded"),
        higher("reads/s", "read_tps"),
    ]
}

fn fanout() -> Vec<Column> {
    vec![
        higher("primary TPS", "primary_tps"),
        lower("lag median", "lag_p50_ms"),
        lower("p99", "lag_p99_ms"),
        lower("walsenders' CPU", "walsender_cpu_s"),
        about("relay's CPU", "relay_cpu_s"),
        lower("read by walsenders", "primary_read_mb"),
        about("relay's memory", "relay_rss_mb"),
        about("measured for", "seconds"),
    ]
}

fn mixed() -> Vec<Column> {
    vec![
        higher("rows/s at each", "rows_per_s"),
        lower("lag median", "lag_p50_ms"),
        lower("p99", "lag_p99_ms"),
        higher("primary TPS", "primary_tps"),
        lower("walsenders' CPU", "walsender_cpu_s"),
        lower("read by walsenders", "primary_read_mb"),
        about("relay's CPU", "relay_cpu_s"),
        about("relay's memory", "relay_rss_mb"),
        about("until all had all", "seconds"),
    ]
}

fn catchup() -> Vec<Column> {
    vec![
        lower("time to catch up", "seconds"),
        higher("rows/s", "rows_per_s"),
        lower("walsender's CPU", "walsender_cpu_s"),
        about("apply worker's CPU", "apply_cpu_s"),
        about("relay's memory", "relay_rss_mb"),
        about("writing the backlog took", "backlog_seconds"),
    ]
}
