//! `lockstep-lab bench apply`: how fast a replica applies a backlog, against a subscription.

use clap::{Args, ValueEnum, value_parser};
use lockstep_lab::server::Server;
use lockstep_lab::workload::MB_PER_SCALE;
use lockstep_service::words::figures::{count, hundredths};
use serde::{Deserialize, Serialize};

use super::relay_cost;
use crate::Result;
use crate::args::{RunArgs, joined, rounds, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Order, Site, TurnOf};
use crate::relay::applying::{self, Applier, ApplySpec, Writes};
use crate::relay::process::RelayOptions;
use crate::relay::scene::Way;
use crate::results::{Headline, Results, met, ratio, rounded};
use crate::slow_calls::SlowCalls;
use crate::table::{Column, Group, Named, by_case_and_variant, median};

/// Megabytes that a run may need beside data and backlog.
const SPACE_MB_BASE: u64 = 6_000;

/// Megabytes for a thousand changes: WAL of both servers, the relay's spool.
const MB_PER_THOUSAND: u64 = 2;

/// The relay's cache. A backlog is larger, so most of it comes from the spool.
const CACHE: &str = "16MB";

/// How many times as fast as stock is expected, by case.
fn wanted(writes: Writes) -> Option<f64> {
    match writes {
        Writes::Tpcb => Some(4.0),
        Writes::Insert => Some(8.0),
        Writes::Giant | Writes::Delete => Some(3.0),
        Writes::Update | Writes::SlowTarget => None,
    }
}

/// Part of the speed of one session that has all rows in memory that a replica is expected to reach.
const WANTED_OF_LIMIT: f64 = 0.8;

/// How many times as fast as one writer four are expected to be, where each read of the target is slow.
const WANTED_OF_FOUR: f64 = 2.5;

/// How fast a stopped replica applies a backlog, against a subscription
///
/// Writes apply.json into the results folder. Both are fed from a relay that has the whole backlog.
/// The target's server and the process that applies may use both cores: the primary has nothing to
/// do meanwhile. Case slow-target, in which each read of the target takes 1 ms longer, is left out where
/// strace is not installed.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Rounds of each variant", "3")),
    mut_arg("results", writes("apply.json"))
)]
pub struct ApplyArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Changes of the backlog
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u32).range(1_000..=100_000_000))]
    pub rows: u32,
    /// Cases to run, separated by commas
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = Writes::ALL)]
    pub cases: Vec<Writes>,
    /// Variants to run, separated by commas; stock,lockstep,lockstep-1,limit by default, and
    /// lockstep,lockstep-1,lockstep-4 in slow-target
    #[arg(long, value_enum, value_name = "VARIANTS", value_delimiter = ',')]
    pub variants: Vec<ApplyVariant>,
    /// Clients that write small transactions
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=90))]
    pub clients: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
}

/// Who applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ApplyVariant {
    /// A subscription with the settings that make it fastest
    Stock,
    /// A second subscription: how much two equal measurements differ
    StockAgain,
    /// `lockstep replica run`, which chooses the number of writers (--writers auto)
    Lockstep,
    /// `lockstep replica run` with one writer
    #[value(name = "lockstep-1")]
    Lockstep1,
    /// `lockstep replica run` with four writers
    #[value(name = "lockstep-4")]
    Lockstep4,
    /// One session that writes the same rows into the same tables with COPY, or one statement for each table
    /// whose keys are sorted: what the target's server can do
    Limit,
}

impl ApplyVariant {
    const ALL: [Self; 6] = [
        Self::Stock,
        Self::StockAgain,
        Self::Lockstep,
        Self::Lockstep1,
        Self::Lockstep4,
        Self::Limit,
    ];

    fn applier(self) -> Applier {
        let writers = match self {
            Self::Stock | Self::StockAgain => return Applier::Stock,
            Self::Limit => return Applier::Limit,
            Self::Lockstep => None,
            Self::Lockstep1 => Some(1),
            Self::Lockstep4 => Some(4),
        };
        Applier::Lockstep { writers }
    }

    /// The variants that run unless others are named.
    fn of(case: Writes) -> &'static [Self] {
        match case {
            Writes::SlowTarget => &[Self::Lockstep, Self::Lockstep1, Self::Lockstep4],
            _ => &[Self::Stock, Self::Lockstep, Self::Lockstep1, Self::Limit],
        }
    }
}

impl Named for ApplyVariant {
    fn name(&self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::StockAgain => "stock-again",
            Self::Lockstep => "lockstep",
            Self::Lockstep1 => "lockstep-1",
            Self::Lockstep4 => "lockstep-4",
            Self::Limit => "limit",
        }
    }
}

/// One round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ApplyFigures {
    /// Changes in the backlog.
    pub rows: u64,
    pub seconds: f64,
    pub rows_per_s: f64,
    /// CPU seconds of the target's server and of the process that applies.
    pub cpu_s: f64,
    /// CPU seconds of the process that applies, if it is not part of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applier_cpu_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_cpu_s: Option<f64>,
    /// Seconds in which a core did nothing, both cores together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<f64>,
}

impl Benchmark for ApplyArgs {
    const NAME: &'static str = "apply";
    const ORDER: Order = Order::TurnAbout;

    type Case = Writes;
    type Variant = ApplyVariant;
    type Figures = ApplyFigures;
    /// The primary.
    type Scene = Server;

    fn options(&self) -> String {
        let variants = match &self.variants[..] {
            [] => String::new(),
            named => format!(" --variants {}", joined(named.iter().map(Named::name))),
        };
        format!(
            "{} --rows {} --cases {}{variants} --clients {} --scale {}",
            self.run,
            self.rows,
            joined(self.cases().iter().map(|case| case.name())),
            self.clients,
            self.scale
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB_BASE
            + MB_PER_SCALE * u64::from(self.scale) * 3
            + MB_PER_THOUSAND * u64::from(self.rows) / 1_000
    }

    fn needs_product(&self) -> bool {
        true
    }

    fn cases(&self) -> Vec<Writes> {
        let can_run = |case: &Writes| *case != Writes::SlowTarget || SlowCalls::missing().is_none();
        self.cases.iter().copied().filter(can_run).collect()
    }

    fn case_name(&self, case: &Writes) -> String {
        case.name().to_owned()
    }

    fn variants(&self, case: &Writes) -> Vec<ApplyVariant> {
        match &self.variants[..] {
            [] => ApplyVariant::of(*case).to_vec(),
            named => named.to_vec(),
        }
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<Server> {
        relay_cost::open_primary(site, 1)
    }

    fn measure(
        &self,
        site: Site<'_>,
        primary: &mut Server,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<ApplyFigures> {
        let spec = ApplySpec {
            applier: turn.variant.applier(),
            writes: turn.case,
            rows: self.rows,
            clients: self.clients,
            scale: self.scale,
            program: site.product.to_path_buf(),
            relay: Way::Relay(RelayOptions {
                program: site.product.to_path_buf(),
                cache: CACHE.to_owned(),
                failover: site.lab.package().major().get() >= 17,
            }),
        };
        let outcome = applying::run(site.lab, primary, &spec)?;
        Ok(ApplyFigures {
            rows: outcome.rows,
            seconds: rounded(outcome.seconds),
            rows_per_s: rounded(outcome.rows as f64 / outcome.seconds.max(1e-6)),
            cpu_s: rounded(outcome.cpu_s),
            applier_cpu_s: outcome.applier_cpu_s.map(rounded),
            relay_cpu_s: outcome.relay_cpu_s.map(rounded),
            idle_s: outcome.idle_s.map(rounded),
        })
    }

    fn line(&self, figures: &ApplyFigures) -> String {
        format!(
            "{:.2} s, {} rows/s, CPU {:.2} s",
            figures.seconds,
            count(figures.rows_per_s),
            figures.cpu_s
        )
    }

    fn headline(&self, results: &Results<ApplyFigures>) -> Option<Headline> {
        let case = Writes::Tpcb.name();
        let (ours, stock) = results.ours_and_stock(case, |row| row.rows_per_s)?;
        Some(Headline {
            metric: format!("{case}: rows applied a second, median over rounds"),
            ours: rounded(ours),
            stock: rounded(stock),
            ratio: ratio(ours, stock, 2),
        })
    }

    fn columns(&self) -> Vec<Column<ApplyFigures>> {
        by_case_and_variant(
            "median over rounds",
            [
                median("rows/s", |row| Some(row.rows_per_s), count),
                median("seconds", |row| Some(row.seconds), hundredths),
                median("CPU s", |row| Some(row.cpu_s), hundredths),
                median("of it the applier", |row| row.applier_cpu_s, hundredths),
                median("relay CPU s", |row| row.relay_cpu_s, hundredths),
                median("idle s", |row| row.idle_s, hundredths),
            ],
        )
    }

    /// All cases that have rows, whether they ran now or earlier.
    fn groups<'r>(&self, results: &'r Results<ApplyFigures>) -> Vec<Group<'r, ApplyFigures>> {
        let names = ApplyVariant::ALL.map(|variant| variant.name());
        results.each(Writes::ALL.map(|case| (case.name().to_owned(), names)))
    }

    /// How this compares with what is expected.
    fn remarks(&self, results: &Results<ApplyFigures>) -> Vec<String> {
        let mut lines = Vec::new();
        for writes in Writes::ALL {
            let case = writes.name();
            let by =
                |variant: ApplyVariant| results.median(case, variant.name(), |row| row.rows_per_s);
            let one = by(ApplyVariant::Lockstep1);
            if let Some((auto, one)) = by(ApplyVariant::Lockstep).zip(one) {
                let times = auto / one;
                lines.push(format!(
                    "{case}: writers auto {times:.1} times as fast as one"
                ));
            }
            let writers = by(ApplyVariant::Lockstep4).zip(one);
            if let Some(times) = writers.map(|(four, one)| four / one) {
                let aim = match writes {
                    Writes::SlowTarget => format!(
                        " ({WANTED_OF_FOUR} or more: {})",
                        met(times >= WANTED_OF_FOUR)
                    ),
                    _ => String::new(),
                };
                lines.push(format!(
                    "{case}: four writers {times:.1} times as fast as one{aim}"
                ));
            }
            let limit = by(ApplyVariant::Limit).filter(|_| writes != Writes::SlowTarget);
            if let Some(part) = by(ApplyVariant::Lockstep).zip(limit) {
                let part = part.0 / part.1;
                lines.push(format!(
                    "{case}: {part:.2} of the limit ({WANTED_OF_LIMIT} or more: {})",
                    met(part >= WANTED_OF_LIMIT)
                ));
            }
            let speeds = results.ours_and_stock(case, |row| row.rows_per_s);
            // Of each row: the variants may have been measured with backlogs of different sizes.
            let cpu = results.ours_and_stock(case, |row| row.cpu_s / row.rows.max(1) as f64);
            let Some(((ours, stock), (our_cpu, stock_cpu))) = speeds.zip(cpu) else {
                continue;
            };
            let times = ours / stock;
            let aim = wanted(writes).map_or_else(String::new, |wanted| {
                format!(" ({wanted} or more: {})", met(times >= wanted))
            });
            lines.push(format!(
                "{case}: {times:.1} times as fast as stock{aim}, with {:.0} % of its CPU (less: {})",
                our_cpu / stock_cpu * 100.0,
                met(our_cpu < stock_cpu)
            ));
            if let Some(four) = by(ApplyVariant::Lockstep4) {
                let times = four / stock;
                lines.push(format!(
                    "{case}: four writers {times:.1} times as fast as stock"
                ));
            }
            let again = results.median(case, ApplyVariant::StockAgain.name(), |row| row.rows_per_s);
            if let Some(again) = again {
                lines.push(format!("{case}: stock again {:.2} of stock", again / stock));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::parsed;
    use crate::results::ResultRow;

    fn row(variant: &str, rows_per_s: f64, cpu_s: f64) -> ResultRow<ApplyFigures> {
        ResultRow::for_tests(
            "tpcb",
            variant,
            ApplyFigures {
                rows: 1,
                seconds: 1.0,
                rows_per_s,
                cpu_s,
                applier_cpu_s: None,
                relay_cpu_s: None,
                idle_s: None,
            },
        )
    }

    #[test]
    fn speed_and_cpu_are_held_against_stock() {
        let args: ApplyArgs = parsed("");
        // Twice the rows, for as much CPU as stock needs for half of them.
        let mut ours = row("lockstep", 390.0, 2.0);
        ours.figures.rows = 2;
        let results = Results::for_tests(
            ApplyArgs::NAME,
            vec![
                row("stock", 100.0, 2.0),
                row("stock-again", 98.0, 2.0),
                ours,
                row("lockstep-1", 375.0, 1.0),
                row("lockstep-4", 450.0, 1.0),
                row("limit", 500.0, 1.0),
            ],
        );
        assert_eq!(
            args.remarks(&results),
            [
                "tpcb: writers auto 1.0 times as fast as one",
                "tpcb: four writers 1.2 times as fast as one",
                "tpcb: 0.78 of the limit (0.8 or more: not met)",
                "tpcb: 3.9 times as fast as stock (4 or more: not met), with 50 % of its CPU (less: met)",
                "tpcb: four writers 4.5 times as fast as stock",
                "tpcb: stock again 0.98 of stock",
            ]
        );
        assert_eq!(args.headline(&results).unwrap().ratio, Some(3.9));
        let of = |variant, speed| ResultRow {
            case: "slow-target".to_owned(),
            ..row(variant, speed, 1.0)
        };
        let results = Results {
            rows: vec![of("lockstep-1", 10.0), of("lockstep-4", 24.0)],
            ..results
        };
        assert_eq!(
            args.remarks(&results),
            ["slow-target: four writers 2.4 times as fast as one (2.5 or more: not met)"]
        );
    }

    #[test]
    fn a_slow_target_is_for_one_writer_and_four() {
        let args: ApplyArgs = parsed("");
        let by_default = |case| args.variants(&case);
        assert_eq!(
            by_default(Writes::Giant),
            [
                ApplyVariant::Stock,
                ApplyVariant::Lockstep,
                ApplyVariant::Lockstep1,
                ApplyVariant::Limit
            ]
        );
        assert_eq!(
            by_default(Writes::SlowTarget),
            [
                ApplyVariant::Lockstep,
                ApplyVariant::Lockstep1,
                ApplyVariant::Lockstep4
            ]
        );
        let named: ApplyArgs = parsed("--variants stock,lockstep-4");
        assert_eq!(
            named.variants(&Writes::SlowTarget),
            [ApplyVariant::Stock, ApplyVariant::Lockstep4]
        );
    }
}
