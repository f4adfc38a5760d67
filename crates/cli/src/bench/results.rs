//! The results file of a benchmark: `{name, command, commit, machine, date, rows, series,
//! headline}`, with flat rows whose keys carry their units.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use lockstep_bench::replay_lag;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Something measured in one case by one variant. Rows are flat objects whose keys carry
/// their units; a key that does not apply is left out.
pub trait Measured: Clone + Serialize + DeserializeOwned {
    /// The case.
    fn case(&self) -> &str;
    /// The variant: `stock`, `lockstep` or a peer's name.
    fn variant(&self) -> &str;
}

/// For benchmarks that have rows only.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum NoPoint {}

impl Measured for NoPoint {
    fn case(&self) -> &str {
        match *self {}
    }

    fn variant(&self) -> &str {
        match *self {}
    }
}

/// Everything one benchmark has measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Results<R: Measured, P: Measured = NoPoint> {
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
    pub rows: Vec<R>,
    /// Long rounds over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<P>,
    /// The one figure to look at first.
    pub headline: Option<Headline>,
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

/// Megabytes (10^6 bytes).
pub fn megabytes(bytes: i64) -> f64 {
    rounded(bytes as f64 / 1e6)
}

/// Microseconds are precise enough for anything here.
pub fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

impl<R: Measured, P: Measured> Results<R, P> {
    /// Where the file of benchmark `name` goes. The folder is made, and a file that is something
    /// else refused, before anything is started.
    pub fn place(folder: &Path, name: &str) -> Result<PathBuf> {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(format!("{name}.json"));
        Self::load(&path, name)?;
        Ok(path)
    }

    /// What `command` is about to measure, with what `path` has from earlier runs.
    pub fn begin(path: &Path, name: &str, command: String, machine: String) -> Result<Self> {
        let earlier = Self::load(path, name)?;
        let (rows, series) = earlier.map_or_else(Default::default, |e| (e.rows, e.series));
        Ok(Self {
            name: name.to_owned(),
            command,
            commit: commit(),
            machine,
            date: lockstep_lab::machine::date(),
            rows,
            series,
            headline: None,
        })
    }

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
    pub fn replace(&mut self, case: &str, rows: Vec<R>, series: Vec<P>) {
        let ran: Vec<String> = rows.iter().map(|row| row.variant().to_owned()).collect();
        self.rows
            .retain(|row| row.case() != case || !ran.iter().any(|name| name == row.variant()));
        self.series.retain(|point| {
            point.case() != case || !ran.iter().any(|name| name == point.variant())
        });
        self.rows.extend(rows);
        self.series.extend(series);
    }

    /// Median over the rounds of a case and variant.
    pub fn median(&self, case: &str, variant: &str, value: impl Fn(&R) -> f64) -> Option<f64> {
        replay_lag::median(
            self.rows
                .iter()
                .filter(|row| row.case() == case && row.variant() == variant)
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
    use crate::bench::priority_rows::{Point, Row};

    type Results = super::Results<Row, Point>;

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
