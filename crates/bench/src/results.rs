//! The results file of a benchmark: `{name, command, commit, machine, date, rows, series,
//! headline}`, with flat rows whose keys carry their units.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{BenchError, Result, replay_lag};

/// What is measured in one turn: keys of a flat object, which carry their units. A key that
/// does not apply is left out.
pub trait Figures: Clone + Serialize + DeserializeOwned {}

impl<T: Clone + Serialize + DeserializeOwned> Figures for T {}

/// One case, variant and round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ResultRow<F> {
    pub case: String,
    /// `stock`, `lockstep` or a peer's name.
    pub variant: String,
    pub round: u32,
    #[serde(flatten)]
    pub figures: F,
    pub date: String,
    pub commit: String,
}

/// One point of a long round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SeriesRow {
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

/// Everything that one benchmark has measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results<F> {
    /// The benchmark's name.
    pub name: String,
    /// The command that measured last.
    pub command: String,
    /// The commit that was measured last, with `-dirty` if files were changed.
    pub commit: String,
    pub machine: String,
    /// When the last row was measured.
    pub date: String,
    pub rows: Vec<ResultRow<F>>,
    /// Long rounds over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<SeriesRow>,
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

/// `better` divided by `worse`, rounded to `digits` digits after the point; None where `worse` is
/// zero.
pub fn ratio(better: f64, worse: f64, digits: i32) -> Option<f64> {
    let scale = 10_f64.powi(digits);
    (worse > 0.0).then(|| (better / worse * scale).round() / scale)
}

/// Whether an aim is met, in words.
pub fn met(is_met: bool) -> &'static str {
    if is_met { "met" } else { "not met" }
}

/// Megabytes (10^6 bytes).
pub fn megabytes(bytes: f64) -> f64 {
    rounded(bytes / 1e6)
}

/// Three digits after the point are precise enough for anything here.
pub fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
impl<F> ResultRow<F> {
    /// A row of a first round.
    pub fn for_tests(case: &str, variant: &str, figures: F) -> Self {
        Self {
            case: case.to_owned(),
            variant: variant.to_owned(),
            round: 1,
            figures,
            date: "d".to_owned(),
            commit: "c".to_owned(),
        }
    }
}

#[cfg(test)]
impl<F> Results<F> {
    pub fn for_tests(name: &str, rows: Vec<ResultRow<F>>) -> Self {
        Self {
            name: name.to_owned(),
            command: "c".to_owned(),
            commit: "c".to_owned(),
            machine: "m".to_owned(),
            date: "d".to_owned(),
            rows,
            series: vec![],
            headline: None,
        }
    }
}

impl<F: Figures> Results<F> {
    /// Where the file of benchmark `name` goes. Makes the folder, and refuses a file that holds
    /// something else, before anything is started.
    pub fn place(folder: &Path, name: &str) -> Result<PathBuf> {
        fs::create_dir_all(folder).map_err(BenchError::io("create", folder))?;
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

    /// Results so far, from `path`. Refuses a file that holds something else, rather than
    /// overwrite it at the end of a long run.
    pub fn load(path: &Path, name: &str) -> Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(BenchError::io("read", path)(error)),
        };
        let results: Option<Self> = serde_json::from_str(&text).ok();
        match results {
            Some(results) if results.name == name => Ok(Some(results)),
            _ => Err(BenchError::OtherResults {
                path: path.to_path_buf(),
                name: name.to_owned(),
            }),
        }
    }

    /// Replaces rows and points of `case` by those of the variants that ran.
    pub fn replace(&mut self, case: &str, rows: Vec<ResultRow<F>>, series: Vec<SeriesRow>) {
        let ran: Vec<String> = rows.iter().map(|row| row.variant.clone()).collect();
        let stays = |its_case: &str, variant: &String| its_case != case || !ran.contains(variant);
        self.rows.retain(|row| stays(&row.case, &row.variant));
        self.series
            .retain(|point| stays(&point.case, &point.variant));
        self.rows.extend(rows);
        self.series.extend(series);
    }

    pub fn rows_of(&self, case: &str, variant: &str) -> impl Iterator<Item = &ResultRow<F>> {
        let rows = self.rows.iter();
        rows.filter(move |row| row.case == case && row.variant == variant)
    }

    /// Median over the rounds of a case and variant that have the figure.
    pub fn median<V: Into<Option<f64>>>(
        &self,
        case: &str,
        variant: &str,
        value: impl Fn(&F) -> V,
    ) -> Option<f64> {
        let rows = self.rows_of(case, variant);
        replay_lag::median(rows.filter_map(|row| value(&row.figures).into()))
    }

    /// Sum over the rounds of a case and variant, if there are any.
    pub fn sum(&self, case: &str, variant: &str, value: impl Fn(&F) -> f64) -> Option<f64> {
        let rows: Vec<_> = self.rows_of(case, variant).collect();
        let sum = rows.iter().map(|row| value(&row.figures)).sum();
        (!rows.is_empty()).then_some(sum)
    }

    /// Lockstep's median and stock PostgreSQL's, if both have been measured.
    pub fn ours_and_stock<V: Into<Option<f64>>>(
        &self,
        case: &str,
        value: impl Fn(&F) -> V,
    ) -> Option<(f64, f64)> {
        let ours = self.median(case, "lockstep", &value)?;
        Some((ours, self.median(case, "stock", &value)?))
    }

    /// Writes the file. If that fails, the old file stays as it was.
    pub fn save(&self, path: &Path) -> Result<()> {
        let unfinished = path.with_extension("json.new");
        fs::write(&unfinished, self.text()?)
            .and_then(|()| fs::rename(&unfinished, path))
            .map_err(BenchError::io("write", path))
    }

    /// What the file contains.
    pub fn text(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|error| BenchError::Unusable(format!("results cannot be written: {error}")))?;
        text.push('\n');
        Ok(text)
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
    use crate::benchmarks::priority::PriorityFigures;
    use crate::trial::TrialFigures;
    type Results = super::Results<PriorityFigures>;

    fn row(case: &str, variant: &str, round: u32, lag: f64) -> ResultRow<PriorityFigures> {
        let figures = PriorityFigures {
            trial: TrialFigures {
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
                account: None,
            },
            primary_cpu_s: 1.0,
            rss_mb: 1.0,
            primary_sample_gap_p99_ms: 2.0,
            standby_sample_gap_p99_ms: 2.0,
            dead_rows_start: 0,
            dead_rows_end: 0,
            relation_mb_start: 0.0,
            relation_mb_end: 0.0,
            lookup_p50_ms: None,
            lookup_p99_ms: None,
            settings: None,
        };
        ResultRow {
            case: case.to_owned(),
            variant: variant.to_owned(),
            round,
            figures,
            date: "d".to_owned(),
            commit: "c".to_owned(),
        }
    }

    fn results(rows: Vec<ResultRow<PriorityFigures>>) -> Results {
        Results::for_tests("priority", rows)
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
        let median = |case, variant| all.median(case, variant, |figures| figures.trial.lag_p50_ms);
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
        assert_eq!(back.rows[0].figures.trial.lag_p50_ms, 1.5);
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
