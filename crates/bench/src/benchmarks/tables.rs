//! `lockstep-lab bench tables`: what each table costs a copy and a cycle, whatever is in it.

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum, value_parser};
use lockstep_service::words::figures::{hundredths, thousandths};
use serde::{Deserialize, Serialize};

use crate::args::{RunArgs, joined, rounds, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Order, Site, TurnOf};
use crate::copying::cycling::{Cycle, Replica, Subscription};
use crate::copying::programs::{self, PGCOPYDB, Peer, left_out};
use crate::copying::servers::{Servers, execute};
use crate::results::{Headline, Results, ratio, rounded};
use crate::table::{Column, Group, Named, by_case_and_variant, median};
use crate::{BenchError, Result, replay_lag};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TablesCase {
    /// The initial copy
    Copy,
    /// A cycle after a row of each table was updated, each in a transaction of its own
    Cycle,
    /// A cycle after nothing was changed
    Idle,
    /// Cycles of several sizes, each after its forecast
    Plan,
}

impl TablesCase {
    const ALL: [Self; 4] = [Self::Copy, Self::Cycle, Self::Idle, Self::Plan];

    fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Cycle => "cycle",
            Self::Idle => "idle",
            Self::Plan => "plan",
        }
    }
}

impl std::fmt::Display for TablesCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Who copies, or follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TablesVariant {
    Copy(Peer),
    /// A replica, whose cycle is asked for.
    Lockstep,
    /// A subscription, which is disabled between the cycles.
    Stock,
}

impl TablesVariant {
    const CYCLES: [Self; 2] = [Self::Stock, Self::Lockstep];
}

impl Named for TablesVariant {
    fn name(&self) -> &'static str {
        match self {
            Self::Copy(peer) => peer.name(),
            Self::Lockstep => "lockstep",
            Self::Stock => "stock",
        }
    }
}

/// Megabytes that a run may need beside those for the tables.
const SPACE_MB: u64 = 2_000;

/// Tables whose files take a megabyte on both servers, with room.
const TABLES_PER_MB: u32 = 10;

/// Sessions of every way that lets one choose.
const JOBS: u32 = 2;

/// Milliseconds for each table that are expected at most, of a copy and of a cycle.
const MOST_MS: f64 = 0.3;
const MOST_CYCLE_MS: f64 = 1.0;

/// Milliseconds of a cycle without changes that are expected at most.
const MOST_IDLE_MS: f64 = 50.0;

/// Percent by which a forecast may be off.
const MOST_OFF_PERCENT: f64 = 15.0;

/// Cycles of case plan: one of so many tables changes, by so many new rows. History has each kind three times
/// before it is forecast. They take a tenth of a second and more: one of 10 ms differs from the next by more
/// than a forecast may be off.
const KINDS: [(u32, u32); 5] = [(1, 50), (10, 5_000), (2, 200), (1_000, 500_000), (4, 1_000)];
const PAST: usize = 3;

/// Time that a copy, and a cycle, takes for each of many tables with one row
///
/// Writes tables.json into the results folder. pgcopydb is left out where it is not installed. In cases
/// cycle and idle a replica's cycle is asked for once all changes are in its spool; stock is a subscription
/// that was disabled before the changes and is enabled. In case plan a replica has cycles of five sizes,
/// and then once more each after it was forecast: how far the worst forecast is off is in off_percent.
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
    /// Cases to run, separated by commas
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = TablesCase::ALL)]
    pub cases: Vec<TablesCase>,
    /// The program pgcopydb
    #[arg(long, value_name = "PROGRAM", default_value = PGCOPYDB)]
    pub pgcopydb: PathBuf,
}

/// One copy of all tables, or one cycle.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TablesFigures {
    pub tables: u32,
    /// Time for the rows alone if the way of copying says how long they took, else for everything; of a
    /// replica's cycle by its own figures.
    pub ms_per_table: f64,
    /// Time for everything: schema, rows, keys, statistics; of a cycle until whoever asked for it knows its
    /// end.
    pub seconds: f64,
    pub source_cpu_s: f64,
    pub target_cpu_s: f64,
    /// Percent by which the worst forecast of a cycle was off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_percent: Option<f64>,
    /// Percent by which the worst would be off if a cycle took as long as the median of its kind before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chance_percent: Option<f64>,
    /// Milliseconds of each cycle by its forecast, as measured, and of those of its kind before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forecasts: Vec<(f64, u64, Vec<u64>)>,
    /// CPU of the replica's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applier_cpu_s: Option<f64>,
}

impl TablesFigures {
    /// Milliseconds for all tables.
    fn ms(&self) -> f64 {
        self.ms_per_table * f64::from(self.tables)
    }
}

impl TablesArgs {
    /// What makes the tables.
    fn schema(&self) -> String {
        format!(
            "DO $$ BEGIN FOR n IN 1..{} LOOP \
             EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, v text)', n); \
             EXECUTE format('INSERT INTO t%s VALUES (1, ''one'')', n); END LOOP; END $$",
            self.tables
        )
    }

    fn copy(&self, site: Site<'_>, scene: &Servers, peer: Peer) -> Result<TablesFigures> {
        scene.empty_target()?;
        let before = scene.meter();
        let took = programs::copy(site, scene, peer, JOBS, &self.pgcopydb)?;
        let spent = scene.spent_since(&before);
        scene.check_same()?;
        let rows = took.copy_seconds.unwrap_or(took.seconds);
        Ok(TablesFigures {
            tables: self.tables,
            ms_per_table: rounded(rows * 1e3 / f64::from(self.tables)),
            seconds: rounded(took.seconds),
            source_cpu_s: rounded(spent.source_cpu_s),
            target_cpu_s: rounded(spent.target_cpu_s),
            off_percent: None,
            chance_percent: None,
            forecasts: Vec::new(),
            applier_cpu_s: None,
        })
    }

    /// Changes a row of each table, if the case is about that.
    fn change(&self, scene: &Servers, case: TablesCase) -> Result<()> {
        if case != TablesCase::Cycle {
            return Ok(());
        }
        let sql = format!(
            "DO $$ BEGIN FOR n IN 1..{} LOOP \
             EXECUTE format('UPDATE t%s SET v = now()::text', n); COMMIT; END LOOP; END $$",
            self.tables
        );
        execute(&scene.source, &sql)
    }

    fn cycle(&self, site: Site<'_>, scene: &Servers, case: TablesCase) -> Result<TablesFigures> {
        scene.empty_target()?;
        let mut replica = Replica::create(site, scene, true)?;
        replica.start()?;
        // What the first cycle costs more is no cost of each cycle.
        self.change(scene, case)?;
        replica.force()?;
        self.change(scene, case)?;
        replica.await_spooled(&scene.source)?;
        let (before, applier) = (scene.meter(), replica.cpu_s());
        let began = Instant::now();
        let cycle = replica.force()?;
        let seconds = began.elapsed().as_secs_f64();
        let applier_cpu_s = replica.cpu_s() - applier;
        let spent = scene.spent_since(&before);
        let changed = match case {
            TablesCase::Cycle => u64::from(self.tables),
            _ => 0,
        };
        if (cycle.rows, cycle.tables) != (changed, changed) {
            let words = format!("{changed} rows were changed, and this is the cycle: {cycle:?}");
            return Err(BenchError::Unusable(words));
        }
        replica.remove()?;
        scene.check_same()?;
        Ok(TablesFigures {
            tables: self.tables,
            ms_per_table: rounded(cycle.elapsed_ms as f64 / f64::from(self.tables)),
            seconds: rounded(seconds),
            source_cpu_s: rounded(spent.source_cpu_s),
            target_cpu_s: rounded(spent.target_cpu_s),
            off_percent: None,
            chance_percent: None,
            forecasts: Vec::new(),
            applier_cpu_s: Some(rounded(applier_cpu_s)),
        })
    }

    /// New rows of one of so many tables, in a cycle.
    fn grown(
        &self,
        scene: &Servers,
        replica: &mut Replica<'_>,
        (every, rows): (u32, u32),
    ) -> Result<Cycle> {
        let sql = format!(
            "DO $$ BEGIN FOR n IN 1..{} BY {} LOOP \
             EXECUTE format('INSERT INTO grown%s SELECT nextval(''ids''), repeat(''x'', 100) \
                 FROM generate_series(1, {rows})', n); COMMIT; END LOOP; END $$",
            self.tables,
            every.min(self.tables)
        );
        execute(&scene.source, &sql)?;
        replica.await_spooled(&scene.source)?;
        replica.force()
    }

    /// Forecasts of cycles, and the cycles.
    fn plan(&self, site: Site<'_>, scene: &Servers) -> Result<TablesFigures> {
        let each = |what: &str| {
            format!(
                "DO $$ BEGIN FOR n IN 1..{} LOOP EXECUTE format('{what}', n); COMMIT; END LOOP; END $$",
                self.tables
            )
        };
        scene.empty_target()?;
        execute(&scene.source, "CREATE SEQUENCE ids")?;
        let make = each("CREATE TABLE grown%s (id bigint PRIMARY KEY, v text)");
        execute(&scene.source, &make)?;
        let mut replica = Replica::create(site, scene, true)?;
        replica.start()?;
        // What the first cycle costs more is no cost of each cycle.
        self.change(scene, TablesCase::Cycle)?;
        replica.force()?;
        let mut past: [Vec<Cycle>; KINDS.len()] = Default::default();
        for _ in 0..PAST {
            for (kind, past) in KINDS.into_iter().zip(&mut past) {
                past.push(self.grown(scene, &mut replica, kind)?);
            }
        }
        let before = scene.meter();
        let (mut worst, mut chance, mut ms, mut tables) = (0.0_f64, 0.0_f64, 0, 0);
        let mut forecasts = Vec::new();
        for (kind, past) in KINDS.into_iter().zip(past) {
            let Some(last) = past.last() else { continue };
            let forecast = replica.forecast(last.tables, last.sent_bytes)? * 1e3;
            let cycle = self.grown(scene, &mut replica, kind)?;
            let took = cycle.elapsed_ms.max(1) as f64;
            let off = |expected: f64| 100.0 * (expected - took).abs() / took;
            let past: Vec<u64> = past.iter().map(|cycle| cycle.elapsed_ms).collect();
            let usual = replay_lag::median(past.iter().map(|ms| *ms as f64));
            worst = worst.max(off(forecast));
            chance = chance.max(usual.map_or(0.0, off));
            forecasts.push((rounded(forecast), cycle.elapsed_ms, past));
            ms += cycle.elapsed_ms;
            tables += cycle.tables;
        }
        let spent = scene.spent_since(&before);
        replica.remove()?;
        scene.check_same()?;
        execute(&scene.source, &each("DROP TABLE grown%s"))?;
        execute(&scene.source, "DROP SEQUENCE ids")?;
        Ok(TablesFigures {
            tables: self.tables,
            ms_per_table: rounded(ms as f64 / tables as f64),
            seconds: rounded(ms as f64 / 1e3),
            source_cpu_s: rounded(spent.source_cpu_s),
            target_cpu_s: rounded(spent.target_cpu_s),
            off_percent: Some(rounded(worst)),
            chance_percent: Some(rounded(chance)),
            forecasts,
            applier_cpu_s: None,
        })
    }

    fn subscription(&self, scene: &Servers, case: TablesCase) -> Result<TablesFigures> {
        scene.fill_target(&self.schema())?;
        let mut subscription = Subscription::create(scene)?;
        for _ in 0..2 {
            self.change(scene, TablesCase::Cycle)?;
            subscription.enable()?;
            subscription.await_received()?;
            subscription.disable()?;
        }
        self.change(scene, case)?;
        let before = scene.meter();
        let began = Instant::now();
        subscription.enable()?;
        subscription.await_received()?;
        let seconds = began.elapsed().as_secs_f64();
        let spent = scene.spent_since(&before);
        subscription.remove()?;
        scene.check_same()?;
        Ok(TablesFigures {
            tables: self.tables,
            ms_per_table: rounded(seconds * 1e3 / f64::from(self.tables)),
            seconds: rounded(seconds),
            source_cpu_s: rounded(spent.source_cpu_s),
            target_cpu_s: rounded(spent.target_cpu_s),
            off_percent: None,
            chance_percent: None,
            forecasts: Vec::new(),
            applier_cpu_s: None,
        })
    }
}

impl Benchmark for TablesArgs {
    const NAME: &'static str = "tables";
    const ORDER: Order = Order::TurnAbout;

    type Case = TablesCase;
    type Variant = TablesVariant;
    type Figures = TablesFigures;
    type Scene = Servers;

    fn options(&self) -> String {
        let cases = joined(&self.cases);
        format!("{} --tables {} --cases {cases}", self.run, self.tables)
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB + u64::from(self.tables / TABLES_PER_MB)
    }

    fn needs_extension(&self) -> bool {
        false
    }

    fn needs_product(&self) -> bool {
        true
    }

    fn cases(&self) -> Vec<TablesCase> {
        self.cases.clone()
    }

    fn case_name(&self, case: &TablesCase) -> String {
        case.name().to_owned()
    }

    fn variants(&self, case: &TablesCase) -> Vec<TablesVariant> {
        match case {
            TablesCase::Copy => {}
            TablesCase::Plan => return vec![TablesVariant::Lockstep],
            TablesCase::Cycle | TablesCase::Idle => return TablesVariant::CYCLES.to_vec(),
        }
        let there = |peer: &Peer| peer.is_there(&self.pgcopydb);
        let peers = Peer::ALL.into_iter().filter(there);
        peers.map(TablesVariant::Copy).collect()
    }

    fn conditions(&self) -> Option<String> {
        let is_copied = self.cases.contains(&TablesCase::Copy);
        left_out(&self.pgcopydb).filter(|_| is_copied)
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<Servers> {
        let mut servers = Servers::start(site.lab)?;
        servers.fill(&self.schema())?;
        Ok(servers)
    }

    fn measure(
        &self,
        site: Site<'_>,
        scene: &mut Servers,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<TablesFigures> {
        match turn.variant {
            TablesVariant::Copy(peer) => self.copy(site, scene, peer),
            TablesVariant::Lockstep if turn.case == TablesCase::Plan => self.plan(site, scene),
            TablesVariant::Lockstep => self.cycle(site, scene, turn.case),
            TablesVariant::Stock => self.subscription(scene, turn.case),
        }
    }

    fn line(&self, figures: &TablesFigures) -> String {
        format!(
            "{:.3} ms for each table, {:.1} s in all",
            figures.ms_per_table, figures.seconds
        )
    }

    fn headline(&self, results: &Results<TablesFigures>) -> Option<Headline> {
        let copy = TablesCase::Copy.name();
        let of = |variant| results.median(copy, variant, |row| row.ms_per_table);
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
                median("applier CPU s", |row| row.applier_cpu_s, hundredths),
                median("forecast off %", |row| row.off_percent, hundredths),
            ],
        )
    }

    fn groups<'r>(&self, results: &'r Results<TablesFigures>) -> Vec<Group<'r, TablesFigures>> {
        let copy = Peer::ALL.map(|peer| peer.name()).to_vec();
        let cycles = || TablesVariant::CYCLES.map(|variant| variant.name()).to_vec();
        results.each([
            (TablesCase::Copy.name().to_owned(), copy),
            (TablesCase::Cycle.name().to_owned(), cycles()),
            (TablesCase::Idle.name().to_owned(), cycles()),
            (TablesCase::Plan.name().to_owned(), cycles()),
        ])
    }

    fn remarks(&self, results: &Results<TablesFigures>) -> Vec<String> {
        let met = |met: bool| if met { "met" } else { "not met" };
        let by = |case: TablesCase, variant: TablesVariant| {
            results.median(case.name(), variant.name(), |row| row.ms_per_table)
        };
        let mut lines = Vec::new();
        if let Some(ms) = by(TablesCase::Copy, TablesVariant::Copy(Peer::Lockstep)) {
            let met = met(ms < MOST_MS);
            lines.push(format!(
                "copy: {ms:.3} ms for each one-row table (under {MOST_MS} ms: {met})"
            ));
        }
        if let Some(ms) = by(TablesCase::Cycle, TablesVariant::Lockstep) {
            let met = met(ms < MOST_CYCLE_MS);
            lines.push(format!(
                "cycle: {ms:.3} ms for each changed table (under {MOST_CYCLE_MS} ms: {met})"
            ));
        }
        if let Some(ms) = results.median(TablesCase::Idle.name(), "lockstep", TablesFigures::ms) {
            let met = met(ms < MOST_IDLE_MS);
            lines.push(format!(
                "idle: {ms:.0} ms for a cycle with nothing changed (under {MOST_IDLE_MS} ms: {met})"
            ));
        }
        let off = |row: &TablesFigures| row.off_percent;
        if let Some(off) = results.median(TablesCase::Plan.name(), "lockstep", off) {
            let met = met(off <= MOST_OFF_PERCENT);
            let chance = |row: &TablesFigures| row.chance_percent;
            let chance = results.median(TablesCase::Plan.name(), "lockstep", chance);
            lines.push(format!(
                "plan: the worst of {} forecasts is off by {off:.1} % (at most {MOST_OFF_PERCENT} %: {met}); a cycle \
                 differs from the median of its kind before by {:.1} %",
                KINDS.len(),
                chance.unwrap_or_default()
            ));
        }
        for case in [TablesCase::Cycle, TablesCase::Idle] {
            let all = |row: &TablesFigures| row.seconds;
            if let Some((ours, stock)) = results.ours_and_stock(case.name(), all) {
                let (case, times) = (case.name(), stock / ours);
                lines.push(format!(
                    "{case}: {times:.1} times as fast as a subscription that is enabled, by the clock"
                ));
            }
        }
        lines
    }
}
