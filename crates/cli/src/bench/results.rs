//! The results file of a benchmark: `{name, command, commit, machine, date, rows, series,
//! headline}`, with flat rows whose keys carry their units.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use lockstep_lab::lag;
use lockstep_lab::trial::{Outcome, SeriesPoint};
use serde::{Deserialize, Serialize};

/// Everything one benchmark has measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// The benchmark.
    pub name: String,
    /// The command that measured last.
    pub command: String,
    /// What was measured last: a commit, with `-dirty` if it was changed.
    pub commit: String,
    /// On what.
    pub machine: String,
    /// When the last row was measured.
    pub date: String,
    /// One for each case, variant and round.
    pub rows: Vec<Row>,
    /// Long rounds over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Point>,
    /// The one figure to look at first.
    pub headline: Option<Headline>,
}

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

/// One figure, ours beside stock's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Headline {
    pub metric: String,
    pub ours: f64,
    pub stock: f64,
    /// How many times better ours is; left out when ours is zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
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

/// Megabytes (10^6 bytes).
pub fn megabytes(bytes: i64) -> f64 {
    rounded(bytes as f64 / 1e6)
}

/// Microseconds are precise enough for anything here.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

impl Results {
    /// Results so far, from `path`. A file that is something else is refused, rather than
    /// overwritten at the end of a long run.
    pub fn load(path: &Path, name: &str) -> Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let results: Option<Self> = serde_json::from_str(&text).ok();
        match results {
            Some(results) if results.name == name => Ok(Some(results)),
            _ => bail!(
                "{} holds something else than results of bench {name}; move it away or choose another folder",
                path.display()
            ),
        }
    }

    /// Replaces rows and points of `case` by those of the variants that ran.
    pub fn replace(&mut self, case: &str, rows: Vec<Row>, series: Vec<Point>) {
        let ran: Vec<String> = rows.iter().map(|row| row.variant.clone()).collect();
        self.rows
            .retain(|row| row.case != case || !ran.contains(&row.variant));
        self.series
            .retain(|point| point.case != case || !ran.contains(&point.variant));
        self.rows.extend(rows);
        self.series.extend(series);
    }

    /// Median over the rounds of a case and variant.
    pub fn median(&self, case: &str, variant: &str, value: impl Fn(&Row) -> f64) -> Option<f64> {
        lag::median(
            self.rows
                .iter()
                .filter(|row| row.case == case && row.variant == variant)
                .map(value),
        )
    }

    /// Writes the whole file, or leaves the old one as it was.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        let unfinished = path.with_extension("json.new");
        fs::write(&unfinished, text)
            .and_then(|()| fs::rename(&unfinished, path))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The commit of the working folder, with `-dirty` if it was changed.
pub fn commit() -> String {
    Command::new("git")
        .args([
            "describe",
            "--always",
            "--dirty",
            "--abbrev=40",
            "--exclude=*",
        ])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, variant: &str, round: u32, lag: f64) -> Row {
        Row {
            case: case.to_owned(),
            variant: variant.to_owned(),
            round,
            lag_p50_ms: lag,
            lag_p99_ms: lag,
            lag_max_ms: lag,
            lag_end_ms: lag,
            lag_slope_ms_per_s: 0.0,
            primary_tps: 1.0,
            read_tps: 1.0,
            seconds: 1.0,
            cpu_s: 1.0,
            startup_cpu_s: 1.0,
            primary_cpu_s: 1.0,
            rss_mb: 1.0,
            primary_sample_gap_p99_ms: 2.0,
            standby_sample_gap_p99_ms: 2.0,
            dead_rows_start: 0,
            dead_rows_end: 0,
            relation_mb_start: 0.0,
            relation_mb_end: 0.0,
            settings: None,
            date: "d".to_owned(),
            commit: "c".to_owned(),
        }
    }

    fn results(rows: Vec<Row>) -> Results {
        Results {
            name: "priority".to_owned(),
            command: "c".to_owned(),
            commit: "c".to_owned(),
            machine: "m".to_owned(),
            date: "d".to_owned(),
            rows,
            series: vec![],
            headline: None,
        }
    }

    #[test]
    fn only_what_ran_is_replaced() {
        let mut all = results(vec![
            row("aggregate", "stock", 1, 1.0),
            row("aggregate", "lockstep", 1, 2.0),
            row("select", "stock", 1, 3.0),
        ]);
        all.replace(
            "aggregate",
            vec![row("aggregate", "lockstep", 1, 9.0)],
            vec![],
        );
        let median = |case, variant| all.median(case, variant, |row| row.lag_p50_ms);
        assert_eq!(median("aggregate", "stock"), Some(1.0));
        assert_eq!(median("aggregate", "lockstep"), Some(9.0));
        assert_eq!(median("select", "stock"), Some(3.0));
        assert_eq!(median("select", "lockstep"), None);
    }

    #[test]
    fn the_file_has_the_agreed_shape_and_comes_back_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("priority.json");
        let mut all = results(vec![row("aggregate", "stock", 1, 1.5)]);
        all.headline = Some(Headline {
            metric: "lag".to_owned(),
            ours: 1.0,
            stock: 2.0,
            ratio: Some(2.0),
        });
        all.save(&path).unwrap();
        let json: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for key in [
            "name", "command", "commit", "machine", "date", "rows", "headline",
        ] {
            assert!(json.get(key).is_some(), "{key}");
        }
        let row = json["rows"][0].as_object().unwrap();
        for key in [
            "case",
            "variant",
            "round",
            "lag_p50_ms",
            "lag_p99_ms",
            "lag_slope_ms_per_s",
            "primary_tps",
            "read_tps",
            "seconds",
            "cpu_s",
            "rss_mb",
        ] {
            assert!(row.contains_key(key), "{key}");
        }
        assert!(
            row.values()
                .all(|value| !value.is_object() && !value.is_array())
        );
        assert!(!row.contains_key("settings"));
        let back = Results::load(&path, "priority").unwrap().unwrap();
        assert_eq!(back.rows[0].lag_p50_ms, 1.5);
        assert_eq!(back.headline, all.headline);
    }

    #[test]
    fn other_files_are_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("priority.json");
        assert!(Results::load(&path, "priority").unwrap().is_none());
        for text in ["", "{}", "[1]", "not json"] {
            fs::write(&path, text).unwrap();
            let error = Results::load(&path, "priority").unwrap_err().to_string();
            assert!(error.contains("move it away"), "{error}");
        }
    }
}
