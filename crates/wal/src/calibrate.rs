//! Finds a table of costs from recoveries that were measured, and says how well it predicts others.
//!
//! The parts of a record's cost are those with which the sums come nearest to the times that one
//! process took. A few recoveries cannot tell nine parts apart, so the parts also stay near the table
//! that is there before. What the pipeline adds is one factor for all of it, with which the speedups
//! come nearest to the measured ones.

use std::path::{Path, PathBuf};

use lockstep_wire::Lsn;
use serde::Deserialize;

use crate::analysis::{Analysis, Report};
use crate::costs::{self, Costs, MOST_FILE, PARTS, Parts};
use crate::folder::{Range, Run};
use crate::walk::{self, Ended, Until};
use crate::{Result, WalError};

/// How much the table before weighs against one measurement.
const PRIOR: f64 = 0.01;

/// Rounds of the descent, each over all parts.
const ROUNDS: usize = 20_000;

/// Factors of the pipeline's costs that are tried, as halves of powers of two: a sixteenth to sixteen
/// times. Each takes some 30 MB, since all see the WAL at the same time.
const FACTORS: std::ops::RangeInclusive<i32> = -8..=8;

/// A recovery that was measured.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    pub name: String,
    /// The folder with its WAL.
    pub wal: PathBuf,
    /// The log's `redo starts at` and `redo done at`.
    #[serde(deserialize_with = "lsn")]
    pub start: Lsn,
    #[serde(deserialize_with = "lsn")]
    pub end: Lsn,
    /// What one process took.
    pub seconds: f64,
    /// What it took with helpers.
    #[serde(default)]
    pub parallel: Option<Parallel>,
    /// Only predicted: the table is made without it.
    #[serde(default)]
    pub held_out: bool,
}

/// The same recovery with helpers.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parallel {
    pub helpers: usize,
    pub seconds: f64,
}

fn lsn<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Lsn, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(serde::de::Error::custom)
}

/// One recovery, measured and simulated with the table that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub name: String,
    pub held_out: bool,
    pub seconds: f64,
    pub simulated_seconds: f64,
    /// Of those that were measured with helpers.
    pub speedup: Option<Speedup>,
}

/// One process's time divided by that with helpers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speedup {
    pub helpers: usize,
    pub measured: f64,
    pub simulated: f64,
}

/// How far `simulated` is from `measured`, as a share of that.
pub fn off(measured: f64, simulated: f64) -> f64 {
    simulated / measured - 1.0
}

/// Reads a list of measurements.
pub fn read(path: &Path) -> Result<Vec<Measured>> {
    let file = path.display().to_string();
    let bad = |reason: String| WalError::Measurements {
        file: file.clone(),
        reason,
    };
    let failed = |source| WalError::Read {
        file: file.clone(),
        source,
    };
    let text = costs::text_of(path)
        .map_err(failed)?
        .ok_or_else(|| bad(format!("it has more than {MOST_FILE} bytes")))?;
    let all: Vec<Measured> = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    let is_time = |seconds: f64| seconds.is_finite() && seconds > 0.0;
    for one in &all {
        let parallel = one.parallel.is_none_or(|parallel| {
            is_time(parallel.seconds) && (1..=64).contains(&parallel.helpers)
        });
        if !is_time(one.seconds) || !parallel || one.start >= one.end {
            return Err(bad(format!(
                "{} has times or positions that cannot be",
                one.name
            )));
        }
    }
    match all.iter().all(|one| one.held_out) {
        true => Err(bad("it has none that is not held out".to_owned())),
        false => Ok(all),
    }
}

/// Makes a table from `before` and those that are not held out, and predicts all.
pub fn calibrate(before: &Costs, all: &[Measured]) -> Result<(Costs, Vec<Comparison>)> {
    let mut parts = Vec::new();
    for one in all {
        let reports = reports(one, std::slice::from_ref(before))?;
        parts.extend(reports.into_iter().map(|report| report.parts));
    }
    let known = all.iter().zip(&parts).filter(|(one, _)| !one.held_out);
    let known: Vec<_> = known
        .map(|(one, parts)| (*parts, one.seconds * 1e9))
        .collect();
    let fitted = before.clone().with_parts(fit(&before.parts(), &known));
    let candidates: Vec<Costs> = FACTORS
        .map(|step| Costs {
            pipeline: fitted.pipeline.scaled(2_f64.powf(f64::from(step) / 2.0)),
            ..fitted.clone()
        })
        .collect();
    let mut simulated = Vec::new();
    for one in all {
        simulated.push(reports(one, &candidates)?);
    }
    let best = best(all, &simulated, candidates.len());
    let costs = candidates.get(best).cloned().unwrap_or(fitted);
    let comparisons = all.iter().zip(&simulated).filter_map(|(one, reports)| {
        let report = reports.get(best)?;
        Some(Comparison {
            name: one.name.clone(),
            held_out: one.held_out,
            seconds: one.seconds,
            simulated_seconds: report.alone_seconds,
            speedup: one
                .parallel
                .and_then(|parallel| speedup(one, parallel, report)),
        })
    });
    Ok((costs, comparisons.collect()))
}

fn speedup(one: &Measured, parallel: Parallel, report: &Report) -> Option<Speedup> {
    Some(Speedup {
        helpers: parallel.helpers,
        measured: one.seconds / parallel.seconds,
        simulated: report.outcomes.first()?.speedup,
    })
}

/// The candidate whose speedups are nearest to those that are not held out; the one that changes
/// nothing if there are none.
fn best(all: &[Measured], simulated: &[Vec<Report>], candidates: usize) -> usize {
    let distance = |candidate: usize| -> f64 {
        let known = all.iter().zip(simulated).filter(|(one, _)| !one.held_out);
        let squares = known.filter_map(|(one, reports)| {
            let found = speedup(one, one.parallel?, reports.get(candidate)?)?;
            Some((found.simulated / found.measured).ln().powi(2))
        });
        squares.sum()
    };
    let middle = candidates / 2;
    // Of equals the one nearest to the middle.
    let key = |candidate: &usize| (distance(*candidate), candidate.abs_diff(middle));
    (0..candidates)
        .min_by(|a, b| {
            let (a, b) = (key(a), key(b));
            a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
        })
        .unwrap_or(middle)
}

/// One reading of a recovery's WAL with each table.
fn reports(one: &Measured, tables: &[Costs]) -> Result<Vec<Report>> {
    let range = Range {
        timeline: None,
        start: Some(one.start),
    };
    let run = Run::find(&one.wal, range)?;
    let helpers = one.parallel.map_or(1, |parallel| parallel.helpers);
    let analysis = |costs: &Costs| Analysis::new(costs.clone(), run.identity.size, &[helpers]);
    let mut analyses: Vec<_> = tables.iter().map(analysis).collect();
    // `redo done at` is the last record's start.
    let until = Until {
        lsn: Some(Lsn::from(u64::from(one.end).saturating_add(1))),
        bytes: None,
    };
    let ended = walk::read_into(&mut run.reader(), until, &mut |record| {
        analyses
            .iter_mut()
            .for_each(|analysis| analysis.add(record));
    })?;
    if let Ended::Stop(stop) = ended {
        return Err(WalError::NoRecord {
            file: one.wal.display().to_string(),
            start: stop.at,
            reason: format!("{}, and {} goes on to {}", stop.reason, one.name, one.end),
        });
    }
    let found: Vec<_> = analyses.into_iter().filter_map(Analysis::finish).collect();
    match found.len() == tables.len() {
        true => Ok(found),
        false => Err(WalError::NoRecord {
            file: one.wal.display().to_string(),
            start: one.start,
            reason: "it ends before".to_owned(),
        }),
    }
}

/// Parts with which the sums are nearest to the times, near `before`, and none below 0.
fn fit(before: &Parts, known: &[(Parts, f64)]) -> Parts {
    let sum = |parts: &Parts| -> f64 { parts.iter().zip(before).map(|(n, ns)| n * ns).sum() };
    // First the machine's speed, with which the table before is right on average.
    let logs = known.iter().map(|(parts, ns)| (ns / sum(parts)).ln());
    let speed = (logs.sum::<f64>() / known.len().max(1) as f64).exp();
    // Then factors of the parts: shares of each measurement's time that they explain.
    let shares: Vec<Parts> = known
        .iter()
        .map(|(parts, ns)| {
            let mut shares = [0.0; PARTS];
            for ((share, count), cost) in shares.iter_mut().zip(parts).zip(before) {
                *share = count * cost * speed / ns;
            }
            shares
        })
        .collect();
    let mut factors = [1.0; PARTS];
    for _ in 0..ROUNDS {
        for part in 0..PARTS {
            descend(part, &mut factors, &shares);
        }
    }
    let mut parts = [0.0; PARTS];
    for ((part, factor), cost) in parts.iter_mut().zip(factors).zip(before) {
        *part = cost * factor * speed;
    }
    parts
}

/// Sets one factor to its best, the others as they are.
fn descend(part: usize, factors: &mut Parts, shares: &[Parts]) {
    let (mut above, mut below) = (PRIOR, PRIOR);
    let old = factors.get(part).copied().unwrap_or_default();
    for shares in shares {
        let share = shares.get(part).copied().unwrap_or_default();
        let all: f64 = shares.iter().zip(factors.iter()).map(|(n, f)| n * f).sum();
        above += share * (1.0 - (all - share * old));
        below += share * share;
    }
    if let Some(factor) = factors.get_mut(part) {
        *factor = (above / below).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_costs_are_found_again() {
        let before = Costs::built_in().unwrap().parts();
        let mut random = fastrand::Rng::with_seed(1);
        // A machine twice as slow, on which two parts are off.
        let mut truth = before.map(|cost| cost * 2.0);
        truth[2] *= 1.5;
        truth[8] *= 0.5;
        let time = |parts: &Parts| -> f64 { parts.iter().zip(truth).map(|(n, ns)| n * ns).sum() };
        let mut measured = || {
            let parts = before.map(|cost| random.f64() * 1e6 * 400.0 / cost.max(1.0));
            (parts, time(&parts))
        };
        let known: Vec<_> = (0..12).map(|_| measured()).collect();
        let found = fit(&before, &known);
        for _ in 0..20 {
            let (parts, ns) = measured();
            let predicted: f64 = parts.iter().zip(found).map(|(n, ns)| n * ns).sum();
            assert!(off(ns, predicted).abs() < 0.05, "{predicted} {ns}");
        }
        // One measurement only tells the machine's speed.
        let (parts, ns) = known[0];
        let one = fit(&before, &[(parts, ns)]);
        let predicted: f64 = parts.iter().zip(one).map(|(n, ns)| n * ns).sum();
        assert!(off(ns, predicted).abs() < 0.02);
        assert!(found.iter().chain(&one).all(|ns| *ns >= 0.0));
    }
}
