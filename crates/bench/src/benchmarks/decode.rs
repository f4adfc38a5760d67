//! `lockstep-lab bench decode`: the CPU that one decode costs the primary, by output plugin.

use clap::{Args, value_parser};
use lockstep_lab::server::Server;
use lockstep_service::words::figures::{count, hundredths};
use serde::{Deserialize, Serialize};

use crate::args::{RunArgs, joined, rounds, writes};
use crate::audience::{Ahead, Audience};
use crate::benchmark::{Benchmark, Site, TurnOf};
use crate::decode::{self, Changes, Plugin, RELAY_WORK_MEM, Stretch};
use crate::results::{Headline, Results, megabytes, ratio, rounded};
use crate::table::{Column, Group, Named, by_case_and_variant, column, median};
use crate::{BenchError, Result};

/// The case that the headline is about.
const HEADLINE_CASE: Changes = Changes::TpcB;

/// Megabytes that a run may need.
const SPACE_MB: u64 = 6_000;

/// CPU that decoding the same WAL once costs a primary, by output plugin
///
/// Writes decode.json into the results folder. Slots of pgoutput and of plugin lockstep decode
/// the same WAL; pg_recvlogical throws away what it receives.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Passes of each variant over each case", "5")),
    mut_arg("results", writes("decode.json"))
)]
pub struct DecodeArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Transactions of tpcb; insert has twice, giant ten times as many rows
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = value_parser!(u32).range(100..=10_000_000))]
    pub transactions: u32,
    /// Cases to run, separated by commas
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = Changes::ALL)]
    pub cases: Vec<Changes>,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
}

/// How WAL is decoded.
#[derive(Debug, Clone, Copy)]
pub struct Decoding {
    name: &'static str,
    plugin: Plugin,
    work_mem: Option<&'static str>,
}

const fn decoding(name: &'static str, plugin: Plugin, work_mem: Option<&'static str>) -> Decoding {
    Decoding {
        name,
        plugin,
        work_mem,
    }
}

impl Named for Decoding {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// `lockstep-commit` is what a receiver gets that does not know about held commits;
/// `lockstep` is what the relay does.
const DECODINGS: [Decoding; 3] = [
    decoding("stock", Plugin::Pgoutput, None),
    decoding("lockstep-commit", Plugin::Commit, None),
    decoding("lockstep", Plugin::Hold, Some(RELAY_WORK_MEM)),
];

/// Only a giant transaction takes more memory than the default: what that and the plugin
/// do, each alone.
const OF_GIANTS: [Decoding; 2] = [
    decoding("stock-256MB", Plugin::Pgoutput, Some(RELAY_WORK_MEM)),
    decoding("lockstep-64MB", Plugin::Hold, None),
];

/// One pass over a stretch of WAL.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DecodeFigures {
    pub seconds: f64,
    /// CPU seconds of the whole server, which does nothing else.
    pub cpu_s: f64,
    pub transactions: u64,
    pub rows: u64,
    pub rows_per_s: f64,
    pub wal_mb: f64,
}

/// The primary, and the WAL that is decoded.
pub struct DecodeScene {
    primary: Server,
    stretch: Option<Stretch>,
}

impl Benchmark for DecodeArgs {
    const NAME: &'static str = "decode";

    type Case = Changes;
    type Variant = Decoding;
    type Figures = DecodeFigures;
    type Scene = DecodeScene;

    fn options(&self) -> String {
        format!(
            "{} --transactions {} --cases {} --scale {}",
            self.run,
            self.transactions,
            joined(self.cases.iter().map(|case| case.name())),
            self.scale
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB
    }

    fn cases(&self) -> Vec<Changes> {
        self.cases.clone()
    }

    fn case_name(&self, case: &Changes) -> String {
        case.name().to_owned()
    }

    fn variants(&self, case: &Changes) -> Vec<Decoding> {
        let of_giants: &[Decoding] = match case {
            Changes::Giant => &OF_GIANTS,
            Changes::TpcB | Changes::Insert => &[],
        };
        [&DECODINGS, of_giants].concat()
    }

    fn ahead(&self, plan: &[TurnOf<Self>]) -> Ahead {
        Ahead::Steps(plan.len() + self.cases.len())
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<DecodeScene> {
        let mut primary = site.lab.primary("primary", None, &decode::settings())?;
        decode::prepare(site.lab, &mut primary, self.scale)?;
        Ok(DecodeScene {
            primary,
            stretch: None,
        })
    }

    /// Writes what is decoded.
    fn enter(
        &self,
        site: Site<'_>,
        scene: &mut DecodeScene,
        case: &Changes,
        audience: &mut dyn Audience,
    ) -> Result<()> {
        if scene.stretch.take().is_some() {
            decode::forget(&scene.primary)?;
        }
        audience.begin(&format!("{}: writing", case.name()));
        // How many transactions, or rows of the one.
        let amount = match case {
            Changes::TpcB => self.transactions,
            Changes::Insert => self.transactions.saturating_mul(2),
            Changes::Giant => self.transactions.saturating_mul(10),
        };
        let stretch = decode::write(site.lab, &scene.primary, *case, amount)?;
        audience.end(&format!("{:.0} MB of WAL", stretch.bytes as f64 / 1e6));
        scene.stretch = Some(stretch);
        Ok(())
    }

    fn measure(
        &self,
        site: Site<'_>,
        scene: &mut DecodeScene,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<DecodeFigures> {
        let stretch = scene.stretch.as_ref().ok_or_else(BenchError::not_readied)?;
        let Decoding {
            plugin, work_mem, ..
        } = turn.variant;
        let pass = decode::pass(site.lab, &scene.primary, stretch, plugin, work_mem)?;
        Ok(DecodeFigures {
            seconds: rounded(pass.seconds),
            cpu_s: rounded(pass.cpu_s),
            transactions: stretch.transactions,
            rows: stretch.changes,
            rows_per_s: rounded(stretch.changes as f64 / pass.seconds.max(0.001)),
            wal_mb: megabytes(stretch.bytes as f64),
        })
    }

    fn line(&self, figures: &DecodeFigures) -> String {
        format!("CPU {:.2} s, {:.2} s", figures.cpu_s, figures.seconds)
    }

    fn headline(&self, results: &Results<DecodeFigures>) -> Option<Headline> {
        let case = HEADLINE_CASE.name();
        let (ours, stock) = results.ours_and_stock(case, |row| row.cpu_s)?;
        Some(Headline {
            metric: format!("{case}: CPU of one decode, median over rounds, s"),
            ours,
            stock,
            ratio: ratio(stock, ours, 2),
        })
    }

    fn columns(&self) -> Vec<Column<DecodeFigures>> {
        by_case_and_variant(
            "median over rounds",
            [
                median("CPU s", |row| Some(row.cpu_s), hundredths),
                column("of stock's", |group| {
                    let stock = group.median_of("stock", |row| row.cpu_s)?;
                    Some(format!("{:.3}", group.median(|row| row.cpu_s)? / stock))
                }),
                median("seconds", |row| Some(row.seconds), hundredths),
                median("rows/s", |row| Some(row.rows_per_s), count),
            ],
        )
    }

    /// All cases that have rows, whether they ran now or earlier.
    fn groups<'r>(&self, results: &'r Results<DecodeFigures>) -> Vec<Group<'r, DecodeFigures>> {
        results.each(Changes::ALL.map(|case| {
            let variants = self.variants(&case).into_iter();
            (case.name().to_owned(), variants.map(|variant| variant.name))
        }))
    }
}
