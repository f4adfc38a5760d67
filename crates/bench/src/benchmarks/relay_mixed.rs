//! `lockstep-lab bench relay-mixed`: small and very large transactions, and the rows a second
//! that arrive at each consumer, directly and through a relay.

use std::time::Duration;

use clap::{Args, value_parser};
use lockstep_lab::server::Server;
use lockstep_lab::workload::MB_PER_SCALE;
use lockstep_service::words::figures::{count, hundredths, ms, tenths};
use serde::{Deserialize, Serialize};

use super::relay_cost::{self, Cost};
use crate::Result;
use crate::args::{RunArgs, SecondsArgs, VariantsArgs, rounds, seconds, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Site, TurnOf};
use crate::relay::mixed::{self, MixedSpec};
use crate::results::{Headline, Results, ratio, rounded};
use crate::table::{Column, by_case_and_variant, median};
use crate::trial::Variant;

/// The case that the headline is about.
const HEADLINE_CASE: &str = "mixed-16MB";

/// Megabytes that a run may need beside data.
const SPACE_MB_BASE: u64 = 2_000;
/// Megabytes that a run may need for each second of writes: WAL, and spilled transactions of each slot.
const SPACE_MB_PER_SECOND: u64 = 600;

/// Small and very large transactions: rows a second at each subscriber until all have caught up
///
/// Writes relay-mixed.json into the results folder, a case for each size of the relay's cache.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Rounds of each case", "3")),
    mut_arg("seconds", seconds("Seconds of writes in each round; consumers then catch up", "30", 1)),
    mut_arg("variants", |arg| {
        arg.help("Variants to run, separated by commas: stock has a slot for each subscriber")
    }),
    mut_arg("results", writes("relay-mixed.json"))
)]
pub struct RelayMixedArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub time: SecondsArgs,
    /// Sizes of the relay's cache, separated by commas: a case each
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_values_t = ["0", "16MB", "2GB"].map(str::to_owned))]
    pub caches: Vec<String>,
    #[command(flatten)]
    pub compared: VariantsArgs,
    /// Subscribers; they count what they receive and throw it away
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=64))]
    pub subscribers: u32,
    /// Rows of a large transaction
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = value_parser!(u32).range(1..=100_000_000))]
    pub large_rows: u32,
    /// Milliseconds from the end of one large transaction to the next
    #[arg(long, value_name = "MS", default_value_t = 3_000, value_parser = value_parser!(u32).range(0..=3_600_000))]
    pub large_every: u32,
    /// Clients that write small transactions
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=90))]
    pub clients: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
}

/// One round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MixedFigures {
    pub subscribers: u32,
    /// Rows that each subscriber got a second, from the first write until all had the last.
    pub rows_per_s: f64,
    pub rows: u64,
    /// Large transactions.
    pub large: u32,
    /// Time from the last write until all subscribers had it.
    pub behind_s: f64,
    pub lag_p50_ms: f64,
    pub lag_p99_ms: f64,
    /// Transactions a second on the primary during the writes.
    pub primary_tps: f64,
    #[serde(flatten)]
    pub cost: Cost,
}

impl Benchmark for RelayMixedArgs {
    const NAME: &'static str = "relay-mixed";

    /// The size of the relay's cache.
    type Case = String;
    type Variant = Variant;
    type Figures = MixedFigures;
    /// The primary.
    type Scene = Server;

    fn options(&self) -> String {
        format!(
            "{} --seconds {} --caches {} --variants {} \
             --subscribers {} --large-rows {} --large-every {} --clients {} --scale {}",
            self.run,
            self.time.seconds,
            self.caches.join(","),
            self.compared,
            self.subscribers,
            self.large_rows,
            self.large_every,
            self.clients,
            self.scale
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB_BASE
            + MB_PER_SCALE * u64::from(self.scale) * 2
            + SPACE_MB_PER_SECOND * u64::from(self.time.seconds)
    }

    fn needs_product(&self) -> bool {
        true
    }

    fn cases(&self) -> Vec<String> {
        self.caches.clone()
    }

    fn case_name(&self, cache: &String) -> String {
        format!("mixed-{cache}")
    }

    fn variants(&self, _cache: &String) -> Vec<Variant> {
        self.compared.variants.clone()
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<Server> {
        relay_cost::open_primary(site, self.subscribers)
    }

    fn measure(
        &self,
        site: Site<'_>,
        primary: &mut Server,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<MixedFigures> {
        let spec = MixedSpec {
            subscribers: self.subscribers,
            way: relay_cost::way(site, turn.variant, &turn.case),
            scale: self.scale,
            clients: self.clients,
            large_rows: self.large_rows,
            large_every: Duration::from_millis(u64::from(self.large_every)),
            written: self.time.length(),
        };
        let outcome = mixed::run(site.lab, primary, &spec)?;
        let lag = |percent| rounded(outcome.delays.percentile_ms(percent).unwrap_or(0.0));
        Ok(MixedFigures {
            subscribers: self.subscribers,
            rows_per_s: rounded(outcome.rows_per_s),
            rows: outcome.rows,
            large: outcome.large,
            behind_s: rounded(outcome.behind_s),
            lag_p50_ms: lag(50.0),
            lag_p99_ms: lag(99.0),
            primary_tps: rounded(outcome.primary_tps),
            cost: Cost::new(&outcome.spent, outcome.relay_rss_mb),
        })
    }

    fn line(&self, figures: &MixedFigures) -> String {
        format!(
            "{} rows/s, {:.1} s behind at the end, {} MB read",
            count(figures.rows_per_s),
            figures.behind_s,
            count(figures.cost.primary_read_mb)
        )
    }

    fn headline(&self, results: &Results<MixedFigures>) -> Option<Headline> {
        let (ours, stock) = results.ours_and_stock(HEADLINE_CASE, |row| row.rows_per_s)?;
        Some(Headline {
            metric: format!("{HEADLINE_CASE}: rows a second at each consumer, median over rounds"),
            ours,
            stock,
            ratio: ratio(ours, stock, 2),
        })
    }

    fn columns(&self) -> Vec<Column<MixedFigures>> {
        by_case_and_variant(
            "median over rounds",
            [
                median("rows/s", |row| Some(row.rows_per_s), count),
                median("behind s", |row| Some(row.behind_s), tenths),
                median("lag p50", |row| Some(row.lag_p50_ms), ms),
                median("primary tx/s", |row| Some(row.primary_tps), count),
                median(
                    "walsender CPU s",
                    |row| Some(row.cost.walsender_cpu_s),
                    hundredths,
                ),
                median(
                    "primary read MB",
                    |row| Some(row.cost.primary_read_mb),
                    count,
                ),
                median(
                    "relay MB",
                    |row| Some(row.cost.relay_rss_mb.unwrap_or(0.0)),
                    count,
                ),
            ],
        )
    }
}
