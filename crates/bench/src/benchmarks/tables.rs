//! `lockstep-lab bench tables`: what each table costs a copy, whatever is in it.

use std::path::PathBuf;

use clap::{Args, value_parser};
use lockstep_service::words::figures::{hundredths, thousandths};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::args::{RunArgs, rounds, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Order, Site, TurnOf};
use crate::copying::programs::{self, PGCOPYDB, Peer, left_out};
use crate::copying::servers::Servers;
use crate::results::{Headline, Results, ratio, rounded};
use crate::table::{Column, Group, Named, by_case_and_variant, median};

/// The only case.
const CASE: &str = "copy";

/// Megabytes that a run may need beside those for the tables.
const SPACE_MB: u64 = 2_000;

/// Tables whose files take a megabyte on both servers, with room.
const TABLES_PER_MB: u32 = 10;

/// Sessions of every way that lets one choose.
const JOBS: u32 = 2;

/// Milliseconds for each table that are expected at most.
const MOST_MS: f64 = 0.3;

/// Time that a copy takes for each of many tables with one row
///
/// Writes tables.json into the results folder. pgcopydb is left out where it is not installed.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Copies by each variant", "3")),
    mut_arg("results", writes("tables.json"))
)]
pub struct TablesArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Tables, each with a primary key
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = value_parser!(u32).range(1..=10_000))]
    pub tables: u32,
    /// The program pgcopydb
    #[arg(long, value_name = "PROGRAM", default_value = PGCOPYDB)]
    pub pgcopydb: PathBuf,
}

/// One copy of all tables.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TablesFigures {
    pub tables: u32,
    /// Time for the rows alone if the way of copying says how long they took, else for everything.
    pub ms_per_table: f64,
    /// Time for everything: schema, rows, keys, statistics.
    pub seconds: f64,
    pub source_cpu_s: f64,
    pub target_cpu_s: f64,
}

impl Benchmark for TablesArgs {
    const NAME: &'static str = "tables";
    const ORDER: Order = Order::TurnAbout;

    type Case = &'static str;
    type Variant = Peer;
    type Figures = TablesFigures;
    type Scene = Servers;

    fn options(&self) -> String {
        format!("{} --tables {}", self.run, self.tables)
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB + u64::from(self.tables / TABLES_PER_MB)
    }

    fn needs_extension(&self) -> bool {
        false
    }

    fn cases(&self) -> Vec<&'static str> {
        vec![CASE]
    }

    fn case_name(&self, case: &&'static str) -> String {
        (*case).to_owned()
    }

    fn variants(&self, _case: &&'static str) -> Vec<Peer> {
        let there = |peer: &Peer| peer.is_there(&self.pgcopydb);
        Peer::ALL.into_iter().filter(there).collect()
    }

    fn conditions(&self) -> Option<String> {
        left_out(&self.pgcopydb)
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<Servers> {
        let mut servers = Servers::start(site.lab)?;
        servers.fill(&format!(
            "DO $$ BEGIN FOR n IN 1..{} LOOP \
             EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, v text)', n); \
             EXECUTE format('INSERT INTO t%s VALUES (1, ''one'')', n); END LOOP; END $$",
            self.tables
        ))?;
        Ok(servers)
    }

    fn measure(
        &self,
        site: Site<'_>,
        scene: &mut Servers,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<TablesFigures> {
        scene.empty_target()?;
        let before = scene.meter();
        let took = programs::copy(site, scene, turn.variant, JOBS, &self.pgcopydb)?;
        let spent = scene.spent_since(&before);
        scene.check_copy()?;
        let rows = took.copy_seconds.unwrap_or(took.seconds);
        Ok(TablesFigures {
            tables: self.tables,
            ms_per_table: rounded(rows * 1e3 / f64::from(self.tables)),
            seconds: rounded(took.seconds),
            source_cpu_s: rounded(spent.source_cpu_s),
            target_cpu_s: rounded(spent.target_cpu_s),
        })
    }

    fn line(&self, figures: &TablesFigures) -> String {
        format!(
            "{:.3} ms for each table, {:.1} s in all",
            figures.ms_per_table, figures.seconds
        )
    }

    fn headline(&self, results: &Results<TablesFigures>) -> Option<Headline> {
        let of = |variant| results.median(CASE, variant, |row| row.ms_per_table);
        let (ours, stock) = (of("lockstep")?, of("stock-sync")?);
        Some(Headline {
            metric:
                "rows of a one-row table beside stock's synchronisation, median over rounds, ms"
                    .to_owned(),
            ours: rounded(ours),
            stock: rounded(stock),
            ratio: ratio(stock, ours, 1),
        })
    }

    fn columns(&self) -> Vec<Column<TablesFigures>> {
        by_case_and_variant(
            "median over rounds",
            [
                median("ms/table", |row| Some(row.ms_per_table), thousandths),
                median("seconds", |row| Some(row.seconds), hundredths),
                median("source CPU s", |row| Some(row.source_cpu_s), hundredths),
                median("target CPU s", |row| Some(row.target_cpu_s), hundredths),
            ],
        )
    }

    fn groups<'r>(&self, results: &'r Results<TablesFigures>) -> Vec<Group<'r, TablesFigures>> {
        results.each([(CASE.to_owned(), Peer::ALL.map(|peer| peer.name()))])
    }

    fn remarks(&self, results: &Results<TablesFigures>) -> Vec<String> {
        let ms = results.median(CASE, "lockstep", |row| row.ms_per_table);
        let line = |ms: f64| {
            let met = if ms < MOST_MS { "met" } else { "not met" };
            format!("{ms:.3} ms for each one-row table (under {MOST_MS} ms: {met})")
        };
        ms.map(line).into_iter().collect()
    }
}
