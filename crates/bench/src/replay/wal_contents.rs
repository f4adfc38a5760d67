//! What the WAL of a recording is made of, and how fast `lockstep wal analyze` would say that helpers make
//! its replay on a hot standby.

use std::collections::BTreeMap;

use lockstep_player::Recording;
use lockstep_wal::analysis::{Analysis, Report};
use lockstep_wal::class::{Rules, Stage};
use lockstep_wal::costs::Costs;
use lockstep_wal::folder::{Range, Run};
use lockstep_wal::walk::{self, Until};
use serde::{Deserialize, Serialize};

use crate::results::rounded;
use crate::{BenchError, Result};

/// Shares below this one are left out.
const LEAST_SHARE: f64 = 0.001;

/// Kinds and causes that a sentence names.
const MOST_NAMED: usize = 4;

/// Shares of the WAL that a standby is measured with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contents {
    /// Bytes of images of pages, as a share of all bytes.
    pub image_share: f64,
    /// Kinds of records, as shares of all records.
    pub kinds: BTreeMap<String, f64>,
    /// Kinds of records that images came with, as shares of the bytes of all images.
    pub images: BTreeMap<String, f64>,
    /// Causes for which records are not for helpers, as shares of all records.
    pub causes: BTreeMap<String, f64>,
}

impl Contents {
    /// A sentence about it.
    pub fn line(&self) -> String {
        let most = |shares: &BTreeMap<String, f64>| {
            let mut shares: Vec<_> = shares.iter().collect();
            shares.sort_by(|a, b| b.1.total_cmp(a.1));
            let shares = shares.into_iter().take(MOST_NAMED);
            let shares = shares.map(|(name, share)| format!("{name} {:.0} %", share * 100.0));
            shares.collect::<Vec<_>>().join(", ")
        };
        format!(
            "{:.0} % of the bytes are images of pages (with {}); records: {}; not for helpers: {}",
            self.image_share * 100.0,
            most(&self.images),
            most(&self.kinds),
            most(&self.causes)
        )
    }
}

/// How many times as fast as stock replay would be, simulated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Simulated {
    /// One process that looks ahead.
    pub look_ahead: f64,
    /// Such a process with helpers beside it.
    pub with_helpers: f64,
}

/// Reads the WAL of a recording that a standby is measured with, and simulates `helpers`.
pub fn read(recording: &Recording, helpers: usize) -> Result<(Contents, Simulated)> {
    let range = Range {
        timeline: Some(recording.timeline()),
        start: Some(recording.played_from()),
    };
    let run = Run::find(&recording.wal(), range)?;
    let rules = Rules {
        stage: Stage::HotStandby,
        major: run.major,
    };
    let size = run.identity.size;
    let mut analysis = Analysis::new(Costs::built_in()?, size, rules, &[helpers]);
    let until = Until {
        lsn: Some(recording.end()),
        bytes: None,
    };
    walk::read(&mut run.reader(), until, &mut analysis)?;
    let nothing = || BenchError::Unusable("the recording has no record to replay".to_owned());
    let report = analysis.finish().ok_or_else(nothing)?;
    Ok((contents(&report), simulated(&report)))
}

fn contents(report: &Report) -> Contents {
    let records = report.all.records as f64;
    let images = (report.image_bytes as f64).max(1.0);
    let kinds = report.largest_kinds();
    let of_records = kinds
        .iter()
        .map(|(name, kind)| (name, kind.records as f64 / records));
    let of_images = kinds
        .iter()
        .map(|(name, kind)| (name, kind.image_bytes as f64 / images));
    let causes = report.held.iter();
    let causes = causes.map(|(cause, held)| (cause.name(), held.share.records as f64 / records));
    Contents {
        image_share: rounded(report.image_share()),
        kinds: shares(of_records),
        images: shares(of_images),
        causes: shares(causes),
    }
}

fn shares<N: ToString>(all: impl Iterator<Item = (N, f64)>) -> BTreeMap<String, f64> {
    all.filter(|(_, share)| *share >= LEAST_SHARE)
        .map(|(name, share)| (name.to_string(), rounded(share)))
        .collect()
}

fn simulated(report: &Report) -> Simulated {
    let look_ahead = report.look_ahead_speedup();
    let with_helpers = report.outcomes.first();
    Simulated {
        look_ahead,
        with_helpers: with_helpers.map_or(look_ahead, |outcome| outcome.speedup),
    }
}
