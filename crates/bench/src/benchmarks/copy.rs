//! `lockstep-lab bench copy`: how fast rows go from one server to another, against each server alone.

use std::path::PathBuf;

use clap::{Args, ValueEnum, value_parser};
use lockstep_service::words::figures::{hundredths, tenths};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::args::{RunArgs, joined, rounds, writes};
use crate::audience::{Ahead, Audience};
use crate::benchmark::{Benchmark, Order, Site, TurnOf};
use crate::copying::Took;
use crate::copying::programs::{self, PGCOPYDB, Peer, left_out};
use crate::copying::servers::Servers;
use crate::copying::streams::{self, Format, ROW_BYTES};
use crate::results::{Headline, Results, met, ratio, rounded};
use crate::table::{Column, Group, Named, by_case_and_variant, column, median};

/// Tables of case `mixed`.
const MIXED_TABLES: u32 = 200;

/// Bytes of one row of case `mixed` in the binary format: the number of values, four lengths, and
/// the values, of which one is 32 letters.
const MIXED_ROW_BYTES: u64 = 2 + 4 * 4 + 8 + 32 + 4 + 8;

/// Sessions in case `mixed`.
const MIXED_JOBS: u32 = 2;

/// Megabytes that a run may need for each megabyte of rows.
const SPACE_FACTOR: u64 = 8;

/// What is expected: of the slower server alone, and of case `mixed` against others.
const OF_THE_SLOWER: f64 = 0.95;
const TIMES_PGCOPYDB: f64 = 1.3;
const TIMES_DUMP: f64 = 1.5;

/// Rows from one server to another, against each server alone and other programs
///
/// Writes copy.json into the results folder. Source and target have a core each. source-alone sends
/// rows that are thrown away, target-alone takes rows from memory; the slower of both bounds any
/// copy. pgcopydb is left out where it is not installed.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Copies by each variant", "3")),
    mut_arg("results", writes("copy.json"))
)]
pub struct CopyArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Megabytes of rows, in the binary format
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = value_parser!(u32).range(1..=100_000))]
    pub megabytes: u32,
    /// Cases to run, separated by commas
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = CopyCase::ALL)]
    pub cases: Vec<CopyCase>,
    /// The program pgcopydb
    #[arg(long, value_name = "PROGRAM", default_value = PGCOPYDB)]
    pub pgcopydb: PathBuf,
}

/// What is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CopyCase {
    /// The reference's table of ten columns, by one session
    #[value(name = "streams-1")]
    One,
    /// The reference's table of ten columns, by two sessions
    #[value(name = "streams-2")]
    Two,
    /// 200 tables with a key and two indexes each
    Mixed,
}

impl CopyCase {
    pub const ALL: [Self; 3] = [Self::One, Self::Two, Self::Mixed];

    fn name(self) -> &'static str {
        match self {
            Self::One => "streams-1",
            Self::Two => "streams-2",
            Self::Mixed => "mixed",
        }
    }

    fn jobs(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Mixed => MIXED_JOBS,
        }
    }

    fn row_bytes(self) -> u64 {
        match self {
            Self::One | Self::Two => ROW_BYTES,
            Self::Mixed => MIXED_ROW_BYTES,
        }
    }

    /// What makes the source's tables and fills them.
    fn tables(self, megabytes: u32) -> String {
        let rows = u64::from(megabytes) * 1_000_000 / self.row_bytes();
        match self {
            Self::One | Self::Two => streams::filled(rows),
            Self::Mixed => format!(
                "DO $$ BEGIN FOR t IN 1..{MIXED_TABLES} LOOP \
                     EXECUTE format('CREATE TABLE m%s (id bigint PRIMARY KEY, v text, n int, \
                         at timestamptz)', t); \
                     EXECUTE format('INSERT INTO m%s SELECT n, md5(n::text), n %% 1000, \
                         timestamptz ''2026-01-01'' + n * interval ''1 s'' \
                         FROM generate_series(1, {}) n', t); \
                     EXECUTE format('CREATE INDEX ON m%s (v)', t); \
                     EXECUTE format('CREATE INDEX ON m%s (n, at)', t); \
                 END LOOP; END $$",
                rows.div_ceil(u64::from(MIXED_TABLES))
            ),
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Source,
    Target,
    Psql(Format),
    /// The rows' number of bytes, through a socket.
    Loopback,
    Whole(Peer),
}

impl Way {
    const ALL: [Self; 9] = [
        Self::Source,
        Self::Target,
        Self::Whole(Peer::Lockstep),
        Self::Whole(Peer::StockSync),
        Self::Whole(Peer::DumpRestore),
        Self::Whole(Peer::Pgcopydb),
        Self::Psql(Format::Binary),
        Self::Psql(Format::Text),
        Self::Loopback,
    ];
}

impl Named for Way {
    fn name(&self) -> &'static str {
        match self {
            Self::Source => "source-alone",
            Self::Target => "target-alone",
            Self::Psql(Format::Binary) => "psql-binary",
            Self::Psql(Format::Text) => "psql-text",
            Self::Loopback => "loopback",
            Self::Whole(peer) => peer.name(),
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CopyFigures {
    pub rows: u64,
    pub data_mb: f64,
    /// Rate of the rows alone if the way of copying says how long they took, else of everything.
    pub mb_per_s: f64,
    /// Time for everything: schema, rows, indexes, statistics.
    pub seconds: f64,
    pub source_cpu_s: f64,
    pub target_cpu_s: f64,
    /// Seconds in which a core did nothing, both cores together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<f64>,
}

impl Benchmark for CopyArgs {
    const NAME: &'static str = "copy";
    const ORDER: Order = Order::TurnAbout;

    type Case = CopyCase;
    type Variant = Way;
    type Figures = CopyFigures;
    type Scene = Servers;

    fn options(&self) -> String {
        format!(
            "{} --megabytes {} --cases {}",
            self.run,
            self.megabytes,
            joined(self.cases.iter().map(|case| case.name()))
        )
    }

    fn space_mb(&self) -> u64 {
        1_000 + SPACE_FACTOR * u64::from(self.megabytes)
    }

    fn needs_extension(&self) -> bool {
        false
    }

    fn needs_product(&self) -> bool {
        true
    }

    fn cases(&self) -> Vec<CopyCase> {
        self.cases.clone()
    }

    fn case_name(&self, case: &CopyCase) -> String {
        case.name().to_owned()
    }

    fn variants(&self, case: &CopyCase) -> Vec<Way> {
        let fits = |way: &Way| match way {
            Way::Whole(peer) => peer.is_there(&self.pgcopydb),
            // They know one table.
            _ => *case != CopyCase::Mixed,
        };
        Way::ALL.into_iter().filter(fits).collect()
    }

    fn ahead(&self, plan: &[TurnOf<Self>]) -> Ahead {
        Ahead::Steps(plan.len() + self.cases.len())
    }

    fn conditions(&self) -> Option<String> {
        left_out(&self.pgcopydb)
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<Servers> {
        Servers::start(site.lab)
    }

    fn enter(
        &self,
        _site: Site<'_>,
        scene: &mut Servers,
        case: &CopyCase,
        audience: &mut dyn Audience,
    ) -> Result<()> {
        audience.begin(&format!("{}: filling the source", case.name()));
        scene.fill(&case.tables(self.megabytes))?;
        audience.end(&format!("{} rows", scene.rows()));
        Ok(())
    }

    fn measure(
        &self,
        site: Site<'_>,
        scene: &mut Servers,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<CopyFigures> {
        let rows = scene.rows();
        let bytes = rows * turn.case.row_bytes();
        scene.empty_target()?;
        let before = scene.meter();
        let took = self.take(site, scene, turn, bytes)?;
        let spent = scene.spent_since(&before);
        match turn.variant {
            Way::Source | Way::Loopback => {}
            // It gets some rows again and again.
            Way::Target => scene.check_rows()?,
            Way::Psql(_) | Way::Whole(_) => scene.check_copy()?,
        }
        let data_mb = bytes as f64 / 1e6;
        Ok(CopyFigures {
            rows,
            data_mb: rounded(data_mb),
            mb_per_s: rounded(data_mb / took.copy_seconds.unwrap_or(took.seconds).max(1e-6)),
            seconds: rounded(took.seconds),
            source_cpu_s: rounded(spent.source_cpu_s),
            target_cpu_s: rounded(spent.target_cpu_s),
            idle_s: spent.idle_s.map(rounded),
        })
    }

    fn line(&self, figures: &CopyFigures) -> String {
        format!("{:.1} MB/s, {:.2} s", figures.mb_per_s, figures.seconds)
    }

    fn headline(&self, results: &Results<CopyFigures>) -> Option<Headline> {
        let case = CopyCase::Mixed.name();
        let ours = results.median(case, "lockstep", |row| row.seconds)?;
        let stock = results.median(case, "dump-restore", |row| row.seconds)?;
        Some(Headline {
            metric: format!("{case}: whole copy beside dump and restore, median over rounds, s"),
            ours: rounded(ours),
            stock: rounded(stock),
            ratio: ratio(stock, ours, 2),
        })
    }

    fn columns(&self) -> Vec<Column<CopyFigures>> {
        by_case_and_variant(
            "median over rounds",
            [
                median("MB/s", |row| Some(row.mb_per_s), tenths),
                column("of the slower alone", |group| {
                    let own = group.median(|row| row.mb_per_s)?;
                    let part = own / slower_alone(group.results(), &group.first().case)?;
                    Some(format!("{:.0} %", part * 100.0))
                }),
                median("seconds", |row| Some(row.seconds), hundredths),
                median("source CPU s", |row| Some(row.source_cpu_s), hundredths),
                median("target CPU s", |row| Some(row.target_cpu_s), hundredths),
                median("idle s", |row| row.idle_s, hundredths),
            ],
        )
    }

    /// All cases that have rows, whether they ran now or earlier.
    fn groups<'r>(&self, results: &'r Results<CopyFigures>) -> Vec<Group<'r, CopyFigures>> {
        let names = Way::ALL.map(|way| way.name());
        results.each(CopyCase::ALL.map(|case| (case.name().to_owned(), names)))
    }

    /// How this compares with what is expected.
    fn remarks(&self, results: &Results<CopyFigures>) -> Vec<String> {
        let mut lines = Vec::new();
        for case in [CopyCase::One, CopyCase::Two].map(CopyCase::name) {
            let ours = results.median(case, "lockstep", |row| row.mb_per_s);
            if let Some((ours, slower)) = ours.zip(slower_alone(results, case)) {
                let part = ours / slower;
                lines.push(format!(
                    "{case}: {:.0} % of the slower server alone (95 % or more: {})",
                    part * 100.0,
                    met(part >= OF_THE_SLOWER)
                ));
            }
        }
        let case = CopyCase::Mixed.name();
        let seconds = |variant| results.median(case, variant, |row| row.seconds);
        for (peer, wanted) in [("pgcopydb", TIMES_PGCOPYDB), ("dump-restore", TIMES_DUMP)] {
            if let Some((ours, theirs)) = seconds("lockstep").zip(seconds(peer)) {
                let times = theirs / ours;
                lines.push(format!(
                    "{case}: {times:.2} times as fast as {peer} ({wanted} or more: {})",
                    met(times >= wanted)
                ));
            }
        }
        lines
    }
}

impl CopyArgs {
    fn take(
        &self,
        site: Site<'_>,
        servers: &Servers,
        turn: &TurnOf<Self>,
        bytes: u64,
    ) -> Result<Took> {
        let jobs = turn.case.jobs();
        match turn.variant {
            Way::Source => streams::source_alone(servers, jobs),
            Way::Target => streams::target_alone(servers, jobs),
            Way::Psql(format) => streams::psql(site.lab, servers, jobs, format),
            Way::Loopback => streams::loopback(site.lab.pinning(), jobs, bytes),
            Way::Whole(peer) => programs::copy(site, servers, peer, jobs, &self.pgcopydb),
        }
    }
}

/// MB/s of the slower of source alone and target alone.
fn slower_alone(results: &Results<CopyFigures>, case: &str) -> Option<f64> {
    let alone = |variant| results.median(case, variant, |row| row.mb_per_s);
    Some(alone("source-alone")?.min(alone("target-alone")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::parsed;
    use crate::results::ResultRow;

    fn row(case: &str, variant: &str, mb_per_s: f64, seconds: f64) -> ResultRow<CopyFigures> {
        ResultRow::for_tests(
            case,
            variant,
            CopyFigures {
                rows: 1,
                data_mb: 1.0,
                mb_per_s,
                seconds,
                source_cpu_s: 1.0,
                target_cpu_s: 1.0,
                idle_s: None,
            },
        )
    }

    #[test]
    fn a_copy_is_held_against_the_slower_server_and_other_programs() {
        let args: CopyArgs = parsed("");
        let results = Results::for_tests(
            CopyArgs::NAME,
            vec![
                row("streams-1", "source-alone", 200.0, 1.0),
                row("streams-1", "target-alone", 100.0, 1.0),
                row("streams-1", "lockstep", 94.0, 1.0),
                row("mixed", "lockstep", 1.0, 2.0),
                row("mixed", "dump-restore", 1.0, 3.0),
            ],
        );
        let remarks = args.remarks(&results);
        assert_eq!(
            remarks,
            [
                "streams-1: 94 % of the slower server alone (95 % or more: not met)",
                "mixed: 1.50 times as fast as dump-restore (1.5 or more: met)",
            ]
        );
        assert_eq!(args.headline(&results).unwrap().ratio, Some(1.5));
    }

    #[test]
    fn what_is_not_installed_is_left_out_and_named() {
        let args: CopyArgs = parsed("--pgcopydb /nowhere/pgcopydb");
        let names = |case| {
            let variants = args.variants(&case).into_iter();
            variants.map(|way| way.name()).collect::<Vec<_>>()
        };
        assert_eq!(
            names(CopyCase::Mixed),
            ["lockstep", "stock-sync", "dump-restore"]
        );
        assert_eq!(names(CopyCase::One).len(), Way::ALL.len() - 1);
        let line = args.conditions().unwrap();
        assert_eq!(line, "SKIP pgcopydb: /nowhere/pgcopydb is not there");
    }
}
