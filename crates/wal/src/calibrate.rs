//! Finds a table of costs from recoveries that were measured, and says how well it predicts others.
//!
//! Each recovery's WAL is read once; `fit.rs` finds the table. What it is worth is told by recoveries that it
//! was made without: those that are held out, and each of the others with a table made of the rest.

use std::path::{Path, PathBuf};

use lockstep_wire::Lsn;
use serde::Deserialize;

use crate::class::{Rules, Stage};
use crate::costs::{self, Costs, MOST_FILE};
use crate::fit::{MeasuredSample, fit};
use crate::folder::{Range, Run};
use crate::sample::{Sample, Sampler};
use crate::walk::{self, Ended, Until};
use crate::{Result, WalError};

/// Fewest recoveries of which each is also predicted without it.
const FEWEST: usize = 3;

/// A recovery that was measured.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    pub name: String,
    /// The folder with its WAL.
    pub wal: PathBuf,
    /// Where replay begins, and ends: a position in the last record, or its end. The log's
    /// `redo starts at` and `redo done at`, or what was recorded.
    pub start: Lsn,
    pub end: Lsn,
    /// Helpers replayed on a hot standby, by its rules.
    #[serde(default)]
    pub hot_standby: bool,
    /// What one process of stock PostgreSQL took.
    pub seconds: f64,
    /// What reading alone took: CPU of pg_waldump, which prints nothing.
    #[serde(default)]
    pub read_seconds: Option<f64>,
    /// What one process took that looks ahead: Lockstep without helpers.
    #[serde(default)]
    pub look_ahead_seconds: Option<f64>,
    /// What it took with helpers.
    #[serde(default)]
    pub parallel: Option<Parallel>,
    /// Only predicted: the table is made without it.
    #[serde(default)]
    pub held_out: bool,
}

/// A recovery measured with helpers.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parallel {
    pub helpers: usize,
    pub seconds: f64,
}

/// How fast one recovery is, measured or simulated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// One process of stock PostgreSQL.
    pub seconds: f64,
    /// The case's time divided by that of one process that looks ahead, and by that with helpers; as far as
    /// these were measured.
    pub look_ahead: Option<f64>,
    pub speedup: Option<f64>,
}

/// One recovery, measured and simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub name: String,
    pub held_out: bool,
    pub hot_standby: bool,
    pub helpers: Option<usize>,
    pub measured: Speed,
    /// Speed in a simulation with the table that was found.
    pub simulated: Speed,
    /// Speed in a simulation with a table made without this recovery. None: too few others.
    pub without: Option<Speed>,
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
        let others = [one.look_ahead_seconds, one.read_seconds];
        let others = others.into_iter().flatten().all(is_time);
        if !is_time(one.seconds) || !others || !parallel || one.start >= one.end {
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
    let samples: Vec<Sample> = all.iter().map(sample).collect::<Result<_>>()?;
    let all: Vec<_> = all.iter().zip(&samples).collect();
    let made_without = |left_out: Option<&str>| {
        let known = all
            .iter()
            .filter(|(one, _)| !one.held_out && left_out != Some(&one.name));
        let known: Vec<_> = known.map(|(one, sample)| one.known(sample)).collect();
        (fit(before, &known).rounded(), known.len())
    };
    let (costs, known) = made_without(None);
    let comparisons = all.iter().map(|(one, sample)| {
        let without = match (one.held_out, known >= FEWEST) {
            (true, _) => Some(one.simulated(sample, &costs)),
            (false, true) => Some(one.simulated(sample, &made_without(Some(&one.name)).0)),
            (false, false) => None,
        };
        Comparison {
            name: one.name.clone(),
            held_out: one.held_out,
            hot_standby: one.hot_standby,
            helpers: one.parallel.map(|parallel| parallel.helpers),
            measured: one.speed(),
            simulated: one.simulated(sample, &costs),
            without,
        }
    });
    let comparisons = comparisons.collect();
    Ok((costs, comparisons))
}

impl Measured {
    fn speed(&self) -> Speed {
        Speed {
            seconds: self.seconds,
            look_ahead: self.look_ahead_seconds.map(|took| self.seconds / took),
            speedup: self
                .parallel
                .map(|parallel| self.seconds / parallel.seconds),
        }
    }

    fn known<'a>(&self, sample: &'a Sample) -> MeasuredSample<'a> {
        let Speed {
            seconds,
            look_ahead,
            speedup,
        } = self.speed();
        MeasuredSample {
            sample,
            seconds,
            read_seconds: self.read_seconds,
            look_ahead,
            speedup: self.parallel.map(|parallel| parallel.helpers).zip(speedup),
        }
    }

    fn simulated(&self, sample: &Sample, costs: &Costs) -> Speed {
        Speed {
            seconds: sample.seconds(costs),
            look_ahead: self.look_ahead_seconds.map(|_| sample.look_ahead(costs)),
            speedup: self
                .parallel
                .map(|parallel| sample.speedup(costs, parallel.helpers)),
        }
    }
}

/// Reads a recovery's WAL.
fn sample(one: &Measured) -> Result<Sample> {
    let range = Range {
        timeline: None,
        start: Some(one.start),
    };
    let run = Run::find(&one.wal, range)?;
    let rules = Rules {
        stage: match one.hot_standby {
            true => Stage::HotStandby,
            false => Stage::BeforeConsistency,
        },
        major: run.major,
    };
    let bytes = u64::from(one.end) - u64::from(one.start);
    let mut sampler = Sampler::new(rules, run.identity.size, bytes);
    // `redo done at` is the last record's start.
    let until = Until {
        lsn: Some(Lsn::from(u64::from(one.end).saturating_add(1))),
        bytes: None,
    };
    let ended = walk::read_into(&mut run.reader(), until, &mut |record| sampler.add(record))?;
    let no_record = |start: Lsn, reason: String| WalError::NoRecord {
        file: one.wal.display().to_string(),
        start,
        reason,
    };
    match ended {
        Ended::Stop(stop) if stop.at < one.end => {
            let reason = format!("{}, and {} goes on to {}", stop.reason, one.name, one.end);
            Err(no_record(stop.at, reason))
        }
        _ => {
            let found = sampler.finish();
            found.ok_or_else(|| no_record(one.start, "it ends before".to_owned()))
        }
    }
}
