//! A file of `bench/results`, whatever benchmark wrote it: rows are read by their keys.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{MeasurementsError, Result, read};
use crate::replay_lag;

/// One row: flat, with units in the keys.
pub type JsonRow = Map<String, Value>;

#[derive(Deserialize)]
pub struct Results {
    pub name: String,
    pub command: String,
    pub commit: String,
    pub machine: String,
    pub date: String,
    rows: Vec<JsonRow>,
    pub headline: Option<Headline>,
}

#[derive(Deserialize)]
pub struct Headline {
    pub ours: f64,
    pub stock: Option<f64>,
    pub ratio: Option<f64>,
}

impl Results {
    pub fn load(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(format!("{name}.json"));
        serde_json::from_str(&read(&path)?)
            .map_err(|source| MeasurementsError::NotResults { path, source })
    }

    /// The verb of the Makefile that writes the file.
    pub fn short_command(&self) -> String {
        // Until 0.2 the benchmarks were commands of `lockstep`.
        let of_bench = ["lockstep-lab bench ", "lockstep bench "];
        match of_bench.iter().any(|words| self.command.starts_with(words)) {
            true => format!("make bench-{}", self.name),
            false => self.command.clone(),
        }
    }

    pub fn missing(&self, figure: &str) -> MeasurementsError {
        MeasurementsError::Missing {
            benchmark: self.name.clone(),
            figure: figure.to_owned(),
        }
    }

    /// Cases, in the order in which they were first measured.
    pub fn cases(&self) -> Vec<&str> {
        self.texts("case")
    }

    /// Variants of a case, in that order.
    pub fn variants(&self, case: &str) -> Vec<&str> {
        let of_case = self.rows.iter().filter(|row| text(row, "case") == case);
        distinct(of_case.map(|row| text(row, "variant")))
    }

    /// The texts that rows have under a key.
    pub fn texts(&self, key: &str) -> Vec<&str> {
        let mut texts = distinct(self.rows.iter().map(|row| text(row, key)));
        texts.retain(|text| !text.is_empty());
        texts
    }

    /// Steps of a case: where a round measures several rates, their numbers; else the one
    /// `None`, which stands for all rows.
    pub fn steps(&self, case: &str, in_steps: bool) -> Vec<Option<usize>> {
        if !in_steps {
            return vec![None];
        }
        let variants = self.variants(case);
        let counts = variants.iter().map(|variant| {
            let rows = self.rows(case, variant, None);
            rows.iter()
                .filter(|row| row.get("round") == rows.first().and_then(|r| r.get("round")))
                .count()
        });
        (0..counts.max().unwrap_or(0)).map(Some).collect()
    }

    /// Rows of a case and variant over all rounds; with a step, each round's row of that step.
    pub fn rows(&self, case: &str, variant: &str, step: Option<usize>) -> Vec<&JsonRow> {
        let named = |row: &&JsonRow| text(row, "case") == case && text(row, "variant") == variant;
        let rows: Vec<&JsonRow> = self.rows.iter().filter(named).collect();
        let Some(step) = step else {
            return rows;
        };
        let mut rounds: Vec<Option<&Value>> = Vec::new();
        for row in &rows {
            if !rounds.contains(&row.get("round")) {
                rounds.push(row.get("round"));
            }
        }
        let of_round = |round: Option<&Value>| {
            let mut rows = rows.iter().filter(move |row| row.get("round") == round);
            rows.nth(step).copied()
        };
        rounds.into_iter().filter_map(of_round).collect()
    }

    /// The median that `CASE/VARIANT/KEY` names, with its key.
    pub fn median_at<'a>(&self, path: &'a str) -> Result<(&'a str, f64)> {
        let missing = || self.missing(path);
        let mut parts = path.trim().rsplitn(3, '/');
        let (key, variant, case) = (parts.next(), parts.next(), parts.next());
        let (Some(key), Some(variant), Some(case)) = (key, variant, case) else {
            return Err(missing());
        };
        let median = median(&self.rows(case, variant, None), key).ok_or_else(missing)?;
        Ok((key, median))
    }
}

/// Median over rows of what they have under a key; None if none has a number there.
pub fn median(rows: &[&JsonRow], key: &str) -> Option<f64> {
    replay_lag::median(rows.iter().filter_map(|row| row.get(key)?.as_f64()))
}

/// A row's text under a key; empty if there is none.
pub fn text<'a>(row: &'a JsonRow, key: &str) -> &'a str {
    row.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for text in texts {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}
