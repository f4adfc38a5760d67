//! `lockstep-lab bench delete`: how fast a replica deletes many rows, and what their keys weigh.

use std::time::Instant;

use clap::{Args, ValueEnum, value_parser};
use lockstep_lab::server::Server;
use lockstep_service::words::figures::{count, hundredths};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::args::{RunArgs, joined, rounds, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Order, Site, TurnOf};
use crate::copying::cycling::{Replica, Subscription};
use crate::copying::servers::{Servers, execute};
use crate::results::{Headline, Results, met, ratio, rounded};
use crate::table::{Column, Group, Named, by_case_and_variant, median};

/// Megabytes that a run may need beside those for the rows.
const SPACE_MB: u64 = 2_000;

/// Megabytes for a thousand rows: tables, WAL of both servers, spool.
const MB_PER_THOUSAND: u64 = 1;

/// How many times as many rows a second as stock are expected.
const WANTED: f64 = 5.0;

/// What counts the statements that delete.
const BUCKETS: &str = "SELECT coalesce(sum(calls), 0)::text FROM pg_stat_statements \
    WHERE query LIKE 'DELETE FROM ONLY%removed%'";

/// Which rows are deleted, in one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeleteCase {
    /// All rows of a table, whose keys are integers without gaps
    Dense,
    /// Every third row of such a table
    Third,
    /// All rows of a table, whose keys are random 64-bit integers
    Random,
}

impl DeleteCase {
    const ALL: [Self; 3] = [Self::Dense, Self::Third, Self::Random];

    fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Third => "third",
            Self::Random => "random",
        }
    }

    /// Bytes between spool and target that are expected for a row at most.
    fn most_bytes(self) -> f64 {
        match self {
            Self::Dense | Self::Third => 5.0,
            Self::Random => 9.0,
        }
    }

    /// What makes the table, of which the case deletes this number of rows.
    fn schema(self, rows: u32) -> String {
        let (rows, key) = match self {
            Self::Dense => (u64::from(rows), "n"),
            Self::Third => (3 * u64::from(rows), "n"),
            Self::Random => (
                u64::from(rows),
                "('x' || substr(md5(n::text), 1, 16))::bit(64)::bigint",
            ),
        };
        format!(
            "CREATE TABLE removed (id bigint PRIMARY KEY, v text); CREATE TABLE mark (id int PRIMARY KEY); \
             INSERT INTO removed SELECT {key}, 'a row' FROM generate_series(1, {rows}) n"
        )
    }

    fn statement(self) -> &'static str {
        match self {
            Self::Dense | Self::Random => "DELETE FROM removed",
            Self::Third => "DELETE FROM removed WHERE id % 3 = 0",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteVariant {
    /// A subscription, from the time when it is enabled.
    Stock,
    /// A cycle of a replica, from its spool.
    Lockstep,
    /// A replica without a spool, from the start of its process.
    Streamed,
}

impl Named for DeleteVariant {
    fn name(&self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Lockstep => "lockstep",
            Self::Streamed => "lockstep-streamed",
        }
    }
}

/// Rows a second and bytes a row when many rows are deleted
///
/// Writes delete.json into the results folder. lockstep is a cycle whose changes are all in the spool,
/// lockstep-streamed a replica without a spool and stock a subscription, both of which begin once the rows
/// are deleted on the source. The source has one core and the target the other; a replica's process may use
/// both.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Rounds of each variant", "3")),
    mut_arg("results", writes("delete.json"))
)]
pub struct DeleteArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Rows to delete
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u32).range(1_000..=100_000_000))]
    pub rows: u32,
    /// Cases to run, separated by commas
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = DeleteCase::ALL)]
    pub cases: Vec<DeleteCase>,
}

/// One round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DeleteFigures {
    pub rows: u32,
    pub seconds: f64,
    pub rows_per_s: f64,
    /// Bytes of values that were sent to the target for each row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_row: Option<f64>,
    /// Statements that deleted rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<u64>,
    pub target_cpu_s: f64,
    /// CPU of the replica's process, and the most memory that it has had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applier_cpu_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applier_peak_mb: Option<f64>,
}

/// Deletes the rows on the source.
fn remove_rows(scene: &Servers, case: DeleteCase) -> Result<()> {
    let sql = format!(
        "BEGIN; {}; INSERT INTO mark VALUES (1); COMMIT",
        case.statement()
    );
    execute(&scene.source, &sql)
}

fn buckets(target: &Server) -> Result<Option<u64>> {
    Ok(target
        .query_text(BUCKETS)?
        .and_then(|text| text.parse().ok()))
}

/// What says that the target has everything.
const MARKED: &str = "SELECT count(*) FROM mark";

impl DeleteArgs {
    fn figures(&self, seconds: f64, target_cpu_s: f64) -> DeleteFigures {
        DeleteFigures {
            rows: self.rows,
            seconds: rounded(seconds),
            rows_per_s: rounded(f64::from(self.rows) / seconds.max(1e-6)),
            bytes_per_row: None,
            buckets: None,
            target_cpu_s: rounded(target_cpu_s),
            applier_cpu_s: None,
            applier_peak_mb: None,
        }
    }

    fn stock(&self, scene: &Servers, case: DeleteCase) -> Result<DeleteFigures> {
        scene.fill_target(&case.schema(self.rows))?;
        let mut subscription = Subscription::create(scene)?;
        subscription.enable()?;
        subscription.await_received()?;
        subscription.disable()?;
        remove_rows(scene, case)?;
        let before = scene.meter();
        let began = Instant::now();
        subscription.enable()?;
        subscription.until(MARKED)?;
        let seconds = began.elapsed().as_secs_f64();
        let spent = scene.spent_since(&before);
        subscription.remove()?;
        Ok(self.figures(seconds, spent.target_cpu_s))
    }

    fn replica(
        &self,
        site: Site<'_>,
        scene: &Servers,
        case: DeleteCase,
        from_spool: bool,
    ) -> Result<DeleteFigures> {
        scene.empty_target()?;
        let mut replica = Replica::create(site, scene, from_spool)?;
        replica.start()?;
        match from_spool {
            true => {
                replica.force()?;
                remove_rows(scene, case)?;
                replica.await_spooled(&scene.source)?;
            }
            false => {
                replica.await_spooled(&scene.source)?;
                replica.stop()?;
                remove_rows(scene, case)?;
            }
        }
        scene.target.execute("SELECT pg_stat_statements_reset()")?;
        let (before, applier) = (scene.meter(), replica.cpu_s());
        let began = Instant::now();
        let (seconds, bytes) = match from_spool {
            true => {
                let cycle = replica.force()?;
                (cycle.elapsed_ms as f64 / 1e3, Some(cycle.write_bytes))
            }
            false => {
                replica.start()?;
                replica.until(&scene.target, MARKED)?;
                (began.elapsed().as_secs_f64(), None)
            }
        };
        let applier_cpu_s = replica.cpu_s() - applier;
        let applier_peak_mb = replica.peak_mb();
        let spent = scene.spent_since(&before);
        let buckets = buckets(&scene.target)?;
        replica.remove()?;
        Ok(DeleteFigures {
            bytes_per_row: bytes.map(|bytes| rounded(bytes as f64 / f64::from(self.rows))),
            buckets,
            applier_cpu_s: Some(rounded(applier_cpu_s)),
            applier_peak_mb: applier_peak_mb.map(rounded),
            ..self.figures(seconds, spent.target_cpu_s)
        })
    }
}

impl Benchmark for DeleteArgs {
    const NAME: &'static str = "delete";
    const ORDER: Order = Order::TurnAbout;

    type Case = DeleteCase;
    type Variant = DeleteVariant;
    type Figures = DeleteFigures;
    type Scene = Servers;

    fn options(&self) -> String {
        let cases = joined(self.cases.iter().map(|case| case.name()));
        format!("{} --rows {} --cases {cases}", self.run, self.rows)
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB + MB_PER_THOUSAND * u64::from(self.rows) / 1_000
    }

    fn needs_extension(&self) -> bool {
        false
    }

    fn needs_product(&self) -> bool {
        true
    }

    fn cases(&self) -> Vec<DeleteCase> {
        self.cases.clone()
    }

    fn case_name(&self, case: &DeleteCase) -> String {
        case.name().to_owned()
    }

    fn variants(&self, _case: &DeleteCase) -> Vec<DeleteVariant> {
        use DeleteVariant::{Lockstep, Stock, Streamed};
        vec![Stock, Lockstep, Streamed]
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<Servers> {
        let counting = [("shared_preload_libraries", "pg_stat_statements")];
        let servers = Servers::start_with(site.lab, &counting)?;
        servers
            .target
            .execute("CREATE EXTENSION pg_stat_statements")?;
        Ok(servers)
    }

    fn measure(
        &self,
        site: Site<'_>,
        scene: &mut Servers,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<DeleteFigures> {
        scene.fill(&turn.case.schema(self.rows))?;
        let figures = match turn.variant {
            DeleteVariant::Stock => self.stock(scene, turn.case)?,
            DeleteVariant::Lockstep => self.replica(site, scene, turn.case, true)?,
            DeleteVariant::Streamed => self.replica(site, scene, turn.case, false)?,
        };
        scene.check_same()?;
        Ok(figures)
    }

    fn line(&self, figures: &DeleteFigures) -> String {
        let bytes = figures
            .bytes_per_row
            .map(|bytes| format!(", {bytes:.2} bytes a row"));
        format!(
            "{:.2} s, {} rows/s{}",
            figures.seconds,
            count(figures.rows_per_s),
            bytes.unwrap_or_default()
        )
    }

    fn headline(&self, results: &Results<DeleteFigures>) -> Option<Headline> {
        let case = DeleteCase::Random.name();
        let (ours, stock) = results.ours_and_stock(case, |row| row.rows_per_s)?;
        Some(Headline {
            metric: format!("{case}: rows deleted a second, median over rounds"),
            ours: rounded(ours),
            stock: rounded(stock),
            ratio: ratio(ours, stock, 2),
        })
    }

    fn columns(&self) -> Vec<Column<DeleteFigures>> {
        by_case_and_variant(
            "median over rounds",
            [
                median("rows/s", |row| Some(row.rows_per_s), count),
                median("seconds", |row| Some(row.seconds), hundredths),
                median("bytes a row", |row| row.bytes_per_row, hundredths),
                median("buckets", |row| row.buckets.map(|it| it as f64), count),
                median("target CPU s", |row| Some(row.target_cpu_s), hundredths),
                median("applier CPU s", |row| row.applier_cpu_s, hundredths),
                median("its peak MB", |row| row.applier_peak_mb, count),
            ],
        )
    }

    fn groups<'r>(&self, results: &'r Results<DeleteFigures>) -> Vec<Group<'r, DeleteFigures>> {
        let names = |case| self.variants(&case).into_iter().map(|it| it.name());
        results.each(DeleteCase::ALL.map(|case| (case.name().to_owned(), names(case))))
    }

    fn remarks(&self, results: &Results<DeleteFigures>) -> Vec<String> {
        let mut lines = Vec::new();
        for case in DeleteCase::ALL {
            let name = case.name();
            let bytes = (results.rows.iter())
                .filter(|row| row.case == name)
                .filter_map(|row| row.figures.bytes_per_row)
                .reduce(f64::max);
            if let Some(bytes) = bytes {
                let most = case.most_bytes();
                lines.push(format!(
                    "{name}: at most {bytes:.2} bytes a row ({most} or less: {})",
                    met(bytes <= most)
                ));
            }
            let by =
                |variant: DeleteVariant| results.median(name, variant.name(), |row| row.rows_per_s);
            let stock = by(DeleteVariant::Stock);
            for variant in [DeleteVariant::Lockstep, DeleteVariant::Streamed] {
                if let Some((ours, stock)) = by(variant).zip(stock) {
                    let times = ours / stock;
                    lines.push(format!(
                        "{name}: {} deletes {times:.1} times as many rows a second as stock \
                         ({WANTED} or more: {})",
                        variant.name(),
                        met(times >= WANTED)
                    ));
                }
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

    #[test]
    fn speed_and_bytes_are_held_against_what_is_expected() {
        let args: DeleteArgs = parsed("");
        let row = |variant: DeleteVariant, seconds, bytes_per_row| {
            ResultRow::for_tests(
                "random",
                variant.name(),
                DeleteFigures {
                    bytes_per_row,
                    ..args.figures(seconds, 1.0)
                },
            )
        };
        let results = Results::for_tests(
            DeleteArgs::NAME,
            vec![
                row(DeleteVariant::Stock, 5.0, None),
                row(DeleteVariant::Lockstep, 1.0, Some(9.25)),
                row(DeleteVariant::Streamed, 2.0, None),
            ],
        );
        assert_eq!(
            args.remarks(&results),
            [
                "random: at most 9.25 bytes a row (9 or less: not met)",
                "random: lockstep deletes 5.0 times as many rows a second as stock (5 or more: met)",
                "random: lockstep-streamed deletes 2.5 times as many rows a second as stock \
                 (5 or more: not met)",
            ]
        );
        assert_eq!(args.headline(&results).unwrap().ratio, Some(5.0));
    }
}
