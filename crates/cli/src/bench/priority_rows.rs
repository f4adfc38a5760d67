//! Rows and points of the benchmark `priority`.

use lockstep_bench::trial::{Outcome, SeriesPoint};
use serde::{Deserialize, Serialize};

use super::results::{Measured, megabytes, rounded};

/// One round of one variant in one case. What does not apply is left out.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub variant: String,
    pub round: u32,
    pub lag_p50_ms: f64,
    pub lag_p99_ms: f64,
    pub lag_max_ms: f64,
    pub lag_end_ms: f64,
    pub lag_slope_ms_per_s: f64,
    pub primary_tps: f64,
    pub read_tps: f64,
    pub seconds: f64,
    /// Of the standby.
    pub cpu_s: f64,
    /// Of the standby's startup process, which replays.
    pub startup_cpu_s: f64,
    pub primary_cpu_s: f64,
    /// Of the standby.
    pub rss_mb: f64,
    /// How sharp the measurement was: distance of neighbouring samples.
    pub primary_sample_gap_p99_ms: f64,
    pub standby_sample_gap_p99_ms: f64,
    pub dead_rows_start: i64,
    pub dead_rows_end: i64,
    pub relation_mb_start: f64,
    pub relation_mb_end: f64,
    /// Settings of the standby beside the usual ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
    pub date: String,
    pub commit: String,
}

/// One point of a long round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Point {
    pub case: String,
    pub variant: String,
    pub round: u32,
    pub second: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_ms: Option<f64>,
    pub dead_rows: i64,
    pub relation_mb: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary_tps: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_tps: Option<f64>,
}

/// What identifies a row.
#[derive(Debug, Clone, Copy)]
pub struct Key<'a> {
    /// Case.
    pub case: &'a str,
    /// Variant.
    pub variant: &'a str,
    /// Round.
    pub round: u32,
}

impl Row {
    /// A row from a trial's outcome.
    pub fn new(key: Key<'_>, outcome: &Outcome, settings: Option<String>, commit: &str) -> Self {
        Self {
            case: key.case.to_owned(),
            variant: key.variant.to_owned(),
            round: key.round,
            lag_p50_ms: rounded(outcome.lag.p50_ms),
            lag_p99_ms: rounded(outcome.lag.p99_ms),
            lag_max_ms: rounded(outcome.lag.max_ms),
            lag_end_ms: rounded(outcome.lag.end_ms),
            lag_slope_ms_per_s: rounded(outcome.lag.slope_ms_per_s),
            primary_tps: rounded(outcome.primary_tps),
            read_tps: rounded(outcome.read_tps),
            seconds: rounded(outcome.seconds),
            cpu_s: rounded(outcome.standby_usage.cpu_s),
            startup_cpu_s: rounded(outcome.standby_usage.startup_cpu_s),
            primary_cpu_s: rounded(outcome.primary_usage.cpu_s),
            rss_mb: rounded(outcome.standby_usage.rss_mb),
            primary_sample_gap_p99_ms: rounded(outcome.primary_gap_p99_ms),
            standby_sample_gap_p99_ms: rounded(outcome.standby_gap_p99_ms),
            dead_rows_start: outcome.bloat_start.dead_rows,
            dead_rows_end: outcome.bloat_end.dead_rows,
            relation_mb_start: megabytes(outcome.bloat_start.relation_bytes),
            relation_mb_end: megabytes(outcome.bloat_end.relation_bytes),
            settings,
            date: lockstep_lab::machine::date(),
            commit: commit.to_owned(),
        }
    }
}

impl Point {
    /// A point from a trial's series.
    pub fn new(key: Key<'_>, point: &SeriesPoint) -> Self {
        Self {
            case: key.case.to_owned(),
            variant: key.variant.to_owned(),
            round: key.round,
            second: rounded(point.second),
            lag_ms: point.lag_ms.map(rounded),
            dead_rows: point.bloat.dead_rows,
            relation_mb: megabytes(point.bloat.relation_bytes),
            primary_tps: point.primary_tps.map(rounded),
            read_tps: point.read_tps.map(rounded),
        }
    }
}

impl Measured for Row {
    fn case(&self) -> &str {
        &self.case
    }

    fn variant(&self) -> &str {
        &self.variant
    }
}

impl Measured for Point {
    fn case(&self) -> &str {
        &self.case
    }

    fn variant(&self) -> &str {
        &self.variant
    }
}
