//! `lockstep-lab bench switchover`: the pause that clients of a PgBouncer see while all writing moves to
//! another server, and back after a time of new writes.

use std::path::Path;
use std::thread;
use std::time::Duration;

use clap::{Args, value_parser};
use lockstep_lab::package::{Major, Package};
use lockstep_lab::workload::MB_PER_SCALE;
use lockstep_service::words::figures::{count, tenths};
use serde::{Deserialize, Serialize};

use crate::args::{RunArgs, SecondsArgs, joined, rounds, seconds, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Site, TurnOf};
use crate::results::{Headline, Results, rounded};
use crate::switching::{PGBOUNCER, Pair};
use crate::table::{Column, Group, by_case_and_variant, median};
use crate::{BenchError, Result};

/// The only variant: nothing of stock's does this.
const VARIANT: &str = "lockstep";

/// Megabytes that a turn may need beside data, for each transaction a second too.
const SPACE_MB: u64 = 3_000;

/// Load before a switchover and after it.
const BEFORE: Duration = Duration::from_secs(10);
const AFTER: Duration = Duration::from_secs(10);

/// Longest pause that a client may see.
const MOST_MS: f64 = 1_000.0;

/// The pause that clients of a PgBouncer see in a switchover, and in the way back
///
/// Writes switchover.json into the results folder. A case is named by the majors of source and target; one
/// whose major is not installed is left out.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Switchovers of each case and rate", "3")),
    mut_arg(
        "seconds",
        seconds("Seconds of new writes before the way back", "60", 5)
    ),
    mut_arg("results", writes("switchover.json"))
)]
pub struct SwitchoverArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub time: SecondsArgs,
    /// Majors of the target, separated by commas: a case each
    #[arg(
        long,
        value_name = "MAJORS",
        value_delimiter = ',',
        default_value = "15,17"
    )]
    pub targets: Vec<Major>,
    /// Transactions a second, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "500,1000", value_parser = value_parser!(u32).range(1..=100_000))]
    pub rates: Vec<u32>,
    /// Clients of PgBouncer
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=90))]
    pub clients: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
}

/// Majors of source and target, and the rate.
#[derive(Debug, Clone, Copy)]
pub struct Move {
    target: Major,
    rate: u32,
}

/// One switchover, and the way back.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SwitchoverFigures {
    /// Transactions a second that clients were to make.
    pub rate: u32,
    /// Longest time from when a transaction was due until its client had the answer.
    pub pause_ms: f64,
    pub failed: u64,
    /// Rows that differ between both servers afterwards, and transactions that are not in the history.
    pub differing_rows: u64,
    pub tps: f64,
    pub back_pause_ms: f64,
    pub back_failed: u64,
    pub back_differing_rows: u64,
    pub back_tps: f64,
}

impl Benchmark for SwitchoverArgs {
    const NAME: &'static str = "switchover";

    type Case = Move;
    type Variant = &'static str;
    type Figures = SwitchoverFigures;
    /// Pairs of servers so far.
    type Scene = usize;

    fn options(&self) -> String {
        format!(
            "{} --seconds {} --targets {} --rates {} --clients {} --scale {}",
            self.run,
            self.time.seconds,
            joined(&self.targets),
            joined(&self.rates),
            self.clients,
            self.scale
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB + 2 * MB_PER_SCALE * u64::from(self.scale)
    }

    fn needs_extension(&self) -> bool {
        false
    }

    fn needs_product(&self) -> bool {
        true
    }

    fn cases(&self) -> Vec<Move> {
        let there = self.targets.iter().filter(|major| is_there(**major));
        let rates = |&target: &Major| self.rates.iter().map(move |&rate| Move { target, rate });
        there.flat_map(rates).collect()
    }

    fn case_name(&self, case: &Move) -> String {
        format!("{}-{}", self.run.server.pg, case.target)
    }

    fn variants(&self, _case: &Move) -> Vec<&'static str> {
        vec![VARIANT]
    }

    fn conditions(&self) -> Option<String> {
        let missing: Vec<_> = self
            .targets
            .iter()
            .filter(|major| !is_there(**major))
            .collect();
        (!missing.is_empty()).then(|| format!("SKIP PostgreSQL {}: not installed", joined(missing)))
    }

    fn open(&self, _site: Site<'_>, _audience: &mut dyn Audience) -> Result<usize> {
        match Path::new(PGBOUNCER).is_file() {
            true => Ok(0),
            false => Err(BenchError::Unusable(format!(
                "{PGBOUNCER} is not there: install package pgbouncer"
            ))),
        }
    }

    fn measure(
        &self,
        site: Site<'_>,
        scene: &mut usize,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<SwitchoverFigures> {
        *scene += 1;
        let Move { target, rate } = turn.case;
        let mut pair = Pair::start(site, (self.run.server.pg, target), self.scale, *scene)?;
        pair.follow("r", false)?;
        let load = pair.load(rate, self.clients, BEFORE + AFTER, "there")?;
        thread::sleep(BEFORE);
        pair.switch("r", false)?;
        let there = load.passed()?;
        pair.follow("r_back", true)?;
        let lost = there.transactions.abs_diff(pair.history(false)?);
        let differing_rows = pair.differing_rows("r_back", true)? + lost;

        let length = self.time.length();
        let load = pair.load(rate, self.clients, length + AFTER, "back")?;
        thread::sleep(length);
        pair.switch("r_back", true)?;
        let back = load.passed()?;
        pair.follow("r", false)?;
        let all = there.transactions + back.transactions;
        let lost = all.abs_diff(pair.history(true)?);
        let back_differing_rows = pair.differing_rows("r", false)? + lost;
        Ok(SwitchoverFigures {
            rate,
            pause_ms: rounded(there.longest_ms),
            failed: there.failed,
            differing_rows,
            tps: rounded(there.tps),
            back_pause_ms: rounded(back.longest_ms),
            back_failed: back.failed,
            back_differing_rows,
            back_tps: rounded(back.tps),
        })
    }

    fn line(&self, figures: &SwitchoverFigures) -> String {
        format!(
            "at {} a second: {:.0} ms there, {:.0} ms back, {} failed, {} rows differ",
            figures.rate,
            figures.pause_ms,
            figures.back_pause_ms,
            figures.failed + figures.back_failed,
            figures.differing_rows + figures.back_differing_rows
        )
    }

    fn headline(&self, _results: &Results<SwitchoverFigures>) -> Option<Headline> {
        None
    }

    fn columns(&self) -> Vec<Column<SwitchoverFigures>> {
        by_case_and_variant(
            "each round",
            [
                median("a second", |row| Some(f64::from(row.rate)), count),
                median("pause ms", |row| Some(row.pause_ms), tenths),
                median("failed", |row| Some(row.failed as f64), count),
                median(
                    "rows that differ",
                    |row| Some(row.differing_rows as f64),
                    count,
                ),
                median("pause ms back", |row| Some(row.back_pause_ms), tenths),
                median("failed back", |row| Some(row.back_failed as f64), count),
                median(
                    "that differ back",
                    |row| Some(row.back_differing_rows as f64),
                    count,
                ),
            ],
        )
    }

    fn groups<'r>(
        &self,
        results: &'r Results<SwitchoverFigures>,
    ) -> Vec<Group<'r, SwitchoverFigures>> {
        results.each_row()
    }

    fn remarks(&self, results: &Results<SwitchoverFigures>) -> Vec<String> {
        let pauses = results.rows.iter().map(|row| &row.figures);
        let longest = pauses
            .map(|it| it.pause_ms.max(it.back_pause_ms))
            .fold(0.0, f64::max);
        let met = if longest <= MOST_MS { "met" } else { "not met" };
        vec![format!(
            "longest pause {longest:.0} ms (at most {MOST_MS} ms: {met})"
        )]
    }
}

fn is_there(major: Major) -> bool {
    Package::find(major).is_ok()
}
