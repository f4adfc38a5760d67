//! `lockstep-lab bench relay-catchup`: how fast a consumer catches up that was stopped during a
//! long backlog, directly and through a relay.

use clap::{Args, ValueEnum, value_parser};
use lockstep_lab::server::Server;
use lockstep_lab::workload::MB_PER_SCALE;
use lockstep_service::words::figures::{count, hundredths, thousandths};
use serde::{Deserialize, Serialize};

use super::relay_cost::{self, Cost};
use crate::Result;
use crate::args::{RunArgs, joined, rounds, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Order, Site, TurnOf};
use crate::relay::catch_up::{self, CatchUpSpec};
use crate::relay::fanout::SubscriberKind;
use crate::results::{Headline, Results, megabytes, ratio, rounded};
use crate::table::{Column, Group, by_case_and_variant, median};
use crate::trial::Variant;

/// Megabytes that a run may need beside data and backlog.
const SPACE_MB_BASE: u64 = 6_000;

/// Megabytes of WAL, and of the relay's spool, for a thousand transactions, with room.
const MB_PER_THOUSAND: u64 = 3;

/// How fast a subscriber catches up that was stopped during a long backlog
///
/// Writes relay-catchup.json into the results folder. The relay, where there is one, has received
/// the backlog when the subscriber starts. A subscription's server may use both cores: the
/// primary has nothing to do meanwhile but to send.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Rounds of each case", "3")),
    mut_arg("results", writes("relay-catchup.json"))
)]
pub struct RelayCatchupArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Transactions of the backlog
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = value_parser!(u32).range(100..=100_000_000))]
    pub transactions: u32,
    /// Cases to run, separated by commas: the consumer, and the size of the relay's cache
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = CatchupCase::ALL)]
    pub cases: Vec<CatchupCase>,
    /// Clients that write the backlog
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=90))]
    pub clients: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
}

/// Who catches up, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CatchupCase {
    /// A sink from a slot of its own.
    Null,
    /// A sink from the relay's spool.
    #[value(name = "null-0")]
    Null0,
    /// A sink from the relay.
    #[value(name = "null-16MB")]
    Null16,
    /// A sink from the relay's memory.
    #[value(name = "null-2GB")]
    Null2048,
    /// A subscription from a slot of its own.
    Subscription,
    /// A subscription from the relay.
    #[value(name = "subscription-16MB")]
    Subscription16,
}

impl CatchupCase {
    const ALL: [Self; 6] = [
        Self::Null,
        Self::Null0,
        Self::Null16,
        Self::Null2048,
        Self::Subscription,
        Self::Subscription16,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Null0 => "null-0",
            Self::Null16 => "null-16MB",
            Self::Null2048 => "null-2GB",
            Self::Subscription => "subscription",
            Self::Subscription16 => "subscription-16MB",
        }
    }

    /// The relay's cache, if there is a relay.
    fn cache(self) -> Option<&'static str> {
        match self {
            Self::Null | Self::Subscription => None,
            Self::Null0 => Some("0"),
            Self::Null16 | Self::Subscription16 => Some("16MB"),
            Self::Null2048 => Some("2GB"),
        }
    }

    fn variant(self) -> Variant {
        match self.cache() {
            None => Variant::Stock,
            Some(_) => Variant::Lockstep,
        }
    }

    fn kind(self) -> SubscriberKind {
        match self {
            Self::Subscription | Self::Subscription16 => SubscriberKind::Real,
            Self::Null | Self::Null0 | Self::Null16 | Self::Null2048 => SubscriberKind::Null,
        }
    }
}

/// One round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CatchupFigures {
    pub transactions: u32,
    pub rows_per_s: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mb_per_s: Option<f64>,
    /// CPU of the subscription's apply worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply_cpu_s: Option<f64>,
    /// While it caught up.
    #[serde(flatten)]
    pub cost: Cost,
    /// Time from the backlog's first transaction until the consumer began to catch up.
    pub backlog_seconds: f64,
    pub backlog_primary_cpu_s: f64,
    pub backlog_walsender_cpu_s: f64,
    /// Read by walsenders meanwhile, on top of `primary_read_mb`.
    pub backlog_primary_read_mb: f64,
    /// How long after the last transaction the relay had all of them on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_behind_s: Option<f64>,
}

impl Benchmark for RelayCatchupArgs {
    const NAME: &'static str = "relay-catchup";
    const ORDER: Order = Order::SideBySide;

    type Case = CatchupCase;
    type Variant = Variant;
    type Figures = CatchupFigures;
    /// The primary.
    type Scene = Server;

    fn options(&self) -> String {
        format!(
            "{} --transactions {} --cases {} --clients {} --scale {}",
            self.run,
            self.transactions,
            joined(self.cases.iter().map(|case| case.name())),
            self.clients,
            self.scale
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB_BASE
            + MB_PER_SCALE * u64::from(self.scale) * 3
            + MB_PER_THOUSAND * u64::from(self.transactions) / 1_000
    }

    fn needs_product(&self) -> bool {
        true
    }

    fn cases(&self) -> Vec<CatchupCase> {
        self.cases.clone()
    }

    fn case_name(&self, case: &CatchupCase) -> String {
        case.name().to_owned()
    }

    fn variants(&self, case: &CatchupCase) -> Vec<Variant> {
        vec![case.variant()]
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<Server> {
        relay_cost::open_primary(site, 1)
    }

    fn label(&self, _primary: &Server, turn: &TurnOf<Self>) -> String {
        format!("{} {}", turn.case.name(), turn.round)
    }

    fn measure(
        &self,
        site: Site<'_>,
        primary: &mut Server,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<CatchupFigures> {
        let case = turn.case;
        let spec = CatchUpSpec {
            kind: case.kind(),
            way: relay_cost::way(site, turn.variant, case.cache().unwrap_or_default()),
            scale: self.scale,
            clients: self.clients,
            transactions: self.transactions,
        };
        let outcome = catch_up::run(site.lab, primary, &spec)?;
        let seconds = outcome.spent.seconds.max(0.000_001);
        let backlog = Cost::new(&outcome.backlog, None);
        Ok(CatchupFigures {
            transactions: self.transactions,
            rows_per_s: rounded(outcome.rows as f64 / seconds),
            mb_per_s: (case.kind() == SubscriberKind::Null)
                .then(|| megabytes(outcome.bytes as f64 / seconds)),
            apply_cpu_s: outcome.apply_cpu_s.map(rounded),
            cost: Cost::new(&outcome.spent, outcome.relay_rss_mb),
            backlog_seconds: backlog.seconds,
            backlog_primary_cpu_s: backlog.primary_cpu_s,
            backlog_walsender_cpu_s: backlog.walsender_cpu_s,
            backlog_primary_read_mb: backlog.primary_read_mb,
            relay_behind_s: outcome.relay_behind_s.map(rounded),
        })
    }

    fn line(&self, figures: &CatchupFigures) -> String {
        format!(
            "{:.3} s, {} rows/s, walsender CPU {:.2} s",
            figures.cost.seconds,
            count(figures.rows_per_s),
            figures.cost.walsender_cpu_s
        )
    }

    fn headline(&self, results: &Results<CatchupFigures>) -> Option<Headline> {
        let seconds = |case: CatchupCase| {
            results.median(case.name(), case.variant().name(), |row| row.cost.seconds)
        };
        let (ours, stock) = (seconds(CatchupCase::Null16)?, seconds(CatchupCase::Null)?);
        Some(Headline {
            metric: "null-16MB beside null: seconds to catch up, median over rounds".to_owned(),
            ours,
            stock,
            ratio: ratio(stock, ours, 2),
        })
    }

    fn columns(&self) -> Vec<Column<CatchupFigures>> {
        by_case_and_variant(
            "median over rounds",
            [
                median("seconds", |row| Some(row.cost.seconds), thousandths),
                median("rows/s", |row| Some(row.rows_per_s), count),
                median(
                    "walsender CPU s",
                    |row| Some(row.cost.walsender_cpu_s),
                    hundredths,
                ),
                median("relay CPU s", |row| row.cost.relay_cpu_s, hundredths),
                median("apply CPU s", |row| row.apply_cpu_s, hundredths),
                median(
                    "primary read MB",
                    |row| Some(row.cost.primary_read_mb),
                    hundredths,
                ),
                median(
                    "with backlog",
                    |row| Some(row.cost.primary_read_mb + row.backlog_primary_read_mb),
                    hundredths,
                ),
            ],
        )
    }

    /// All cases that have rows, whether they ran now or earlier.
    fn groups<'r>(&self, results: &'r Results<CatchupFigures>) -> Vec<Group<'r, CatchupFigures>> {
        let variants = |case: CatchupCase| (case.name().to_owned(), [case.variant().name()]);
        results.each(CatchupCase::ALL.map(variants))
    }
}
