//! `lockstep-lab bench relay-fanout`: what subscribers cost a primary under load, directly and
//! through a relay.

use std::time::Duration;

use clap::{Args, value_parser};
use lockstep_lab::server::Server;
use lockstep_lab::workload::MB_PER_SCALE;
use lockstep_service::words::figures::{count, hundredths, ms};
use serde::{Deserialize, Serialize};

use super::relay_cost::{self, Cost};
use crate::Result;
use crate::args::{RunArgs, SecondsArgs, VariantsArgs, joined, rounds, seconds, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Site, TurnOf};
use crate::relay::fanout::{self, FanoutSpec, SubscriberKind};
use crate::results::{Headline, Results, megabytes, ratio, rounded};
use crate::table::{Column, by_case_and_variant, median};
use crate::trial::Variant;

/// The case that the headline is about.
const HEADLINE_CASE: &str = "subscribers-8";

/// Megabytes that a run may need beside data.
const SPACE_MB_BASE: u64 = 8_000;

/// What subscribers cost a primary under load, each with a slot of its own or all through a relay
///
/// Writes relay-fanout.json into the results folder. pgbench writes as fast as it can on the
/// primary's core, synchronous_commit off; subscribers and relay have the other core. Null
/// subscribers throw away what they receive; real ones are subscriptions in databases of one
/// server. Lag is from commit to arrival, or to being applied.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Rounds of each case", "3")),
    mut_arg("seconds", seconds("Seconds measured in each round", "20", 1)),
    mut_arg("variants", |arg| {
        arg.help("Variants to run, separated by commas: stock has a slot for each subscriber")
    }),
    mut_arg("results", writes("relay-fanout.json"))
)]
pub struct RelayFanoutArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub time: SecondsArgs,
    /// Seconds under load before the measurement begins
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = value_parser!(u32).range(0..=600))]
    pub warmup: u32,
    /// Numbers of subscribers, separated by commas; 0 is the primary alone
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [0, 1, 2, 4, 8, 16], value_parser = value_parser!(u32).range(0..=64))]
    pub subscribers: Vec<u32>,
    /// Kinds of subscribers, separated by commas
    #[arg(long, value_enum, value_name = "KINDS", value_delimiter = ',', default_values_t = [SubscriberKind::Null, SubscriberKind::Real])]
    pub kinds: Vec<SubscriberKind>,
    #[command(flatten)]
    pub compared: VariantsArgs,
    /// The relay's cache
    #[arg(long, value_name = "SIZE", default_value = "16MB")]
    pub logical_wal_cache: String,
    /// Clients that write
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=90))]
    pub clients: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
}

/// One round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FanoutFigures {
    pub subscribers: u32,
    /// Delays from commit to arrival at sinks, or to being applied; of all subscribers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_p50_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_p99_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_max_ms: Option<f64>,
    pub primary_tps: f64,
    /// Rows that arrived at all sinks together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_per_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mb_per_s: Option<f64>,
    #[serde(flatten)]
    pub cost: Cost,
}

/// How many subscribers there are, and what they are.
#[derive(Debug, Clone, Copy)]
pub struct FanoutCase {
    subscribers: u32,
    kind: SubscriberKind,
}

impl Benchmark for RelayFanoutArgs {
    const NAME: &'static str = "relay-fanout";

    type Case = FanoutCase;
    type Variant = Variant;
    type Figures = FanoutFigures;
    /// The primary.
    type Scene = Server;

    fn options(&self) -> String {
        format!(
            "{} --seconds {} --warmup {} --subscribers {} \
             --kinds {} --variants {} --logical-wal-cache {} --clients {} --scale {}",
            self.run,
            self.time.seconds,
            self.warmup,
            joined(&self.subscribers),
            joined(self.kinds.iter().map(|kind| kind.name())),
            self.compared,
            self.logical_wal_cache,
            self.clients,
            self.scale
        )
    }

    fn space_mb(&self) -> u64 {
        let databases = u64::from(self.most_subscribers()) + 2;
        SPACE_MB_BASE + MB_PER_SCALE * u64::from(self.scale) * databases
    }

    fn needs_product(&self) -> bool {
        true
    }

    /// The primary alone comes first.
    fn cases(&self) -> Vec<FanoutCase> {
        let alone = self.subscribers.contains(&0).then_some(FanoutCase {
            subscribers: 0,
            kind: SubscriberKind::Null,
        });
        let some = self.subscribers.iter().filter(|&&number| number > 0);
        let others = self.kinds.iter().flat_map(|&kind| {
            some.clone()
                .map(move |&subscribers| FanoutCase { subscribers, kind })
        });
        alone.into_iter().chain(others).collect()
    }

    fn case_name(&self, case: &FanoutCase) -> String {
        match case.kind {
            SubscriberKind::Null => format!("subscribers-{}", case.subscribers),
            SubscriberKind::Real => format!("subscribers-{}-real", case.subscribers),
        }
    }

    /// Without subscribers there is nothing for a relay to do.
    fn variants(&self, case: &FanoutCase) -> Vec<Variant> {
        match case.subscribers {
            0 => vec![Variant::Stock],
            _ => self.compared.variants.clone(),
        }
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<Server> {
        relay_cost::open_primary(site, self.most_subscribers())
    }

    fn measure(
        &self,
        site: Site<'_>,
        primary: &mut Server,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<FanoutFigures> {
        let FanoutCase { subscribers, kind } = turn.case;
        let spec = FanoutSpec {
            subscribers,
            kind,
            way: relay_cost::way(site, turn.variant, &self.logical_wal_cache),
            scale: self.scale,
            clients: self.clients,
            warmup: Duration::from_secs(u64::from(self.warmup)),
            measured: self.time.length(),
        };
        let outcome = fanout::run(site.lab, primary, &spec)?;
        let seconds = outcome.spent.seconds.max(0.001);
        let lag = |percent| outcome.delays.percentile_ms(percent).map(rounded);
        let sinks = kind == SubscriberKind::Null && subscribers > 0;
        Ok(FanoutFigures {
            subscribers,
            lag_p50_ms: lag(50.0),
            lag_p99_ms: lag(99.0),
            lag_max_ms: lag(100.0),
            primary_tps: rounded(outcome.primary_tps),
            rows_per_s: sinks.then(|| rounded(outcome.rows as f64 / seconds)),
            mb_per_s: sinks.then(|| megabytes(outcome.bytes as f64 / seconds)),
            cost: Cost::new(&outcome.spent, outcome.relay_rss_mb),
        })
    }

    fn line(&self, figures: &FanoutFigures) -> String {
        format!(
            "lag p50 {}, {} transactions/s, primary CPU {:.2} s",
            figures.lag_p50_ms.map_or_else(|| "-".to_owned(), ms),
            count(figures.primary_tps),
            figures.cost.primary_cpu_s
        )
    }

    fn headline(&self, results: &Results<FanoutFigures>) -> Option<Headline> {
        let (ours, stock) = results.ours_and_stock(HEADLINE_CASE, |row| row.lag_p50_ms)?;
        Some(Headline {
            metric: format!("{HEADLINE_CASE}: median lag, median over rounds, ms"),
            ours,
            stock,
            ratio: ratio(stock, ours, 2),
        })
    }

    fn columns(&self) -> Vec<Column<FanoutFigures>> {
        by_case_and_variant(
            "median over rounds",
            [
                median("lag p50", |row| row.lag_p50_ms, ms),
                median("p99", |row| row.lag_p99_ms, ms),
                median("primary tx/s", |row| Some(row.primary_tps), count),
                median(
                    "primary CPU s",
                    |row| Some(row.cost.primary_cpu_s),
                    hundredths,
                ),
                median(
                    "walsenders",
                    |row| Some(row.cost.walsender_cpu_s),
                    hundredths,
                ),
                median("relay CPU s", |row| row.cost.relay_cpu_s, hundredths),
                median("relay MB", |row| row.cost.relay_rss_mb, count),
            ],
        )
    }
}

impl RelayFanoutArgs {
    fn most_subscribers(&self) -> u32 {
        self.subscribers.iter().copied().max().unwrap_or(0)
    }
}
