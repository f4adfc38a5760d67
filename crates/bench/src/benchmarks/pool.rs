//! `lockstep-lab bench pool`: what clients of a pool of read nodes see behind HAProxy.

use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use lockstep_service::words::figures::{count, hundredths, ms, percent};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::args::{RunArgs, SecondsArgs, joined, rounds, seconds, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Order, Site, TurnOf};
use crate::pool::bounded::{self, Clients, Deciding};
use crate::pool::{fleet, newcomer, scale, token_cost, tokens};
use crate::results::{Headline, Results, rounded};
use crate::table::{Column, Group, by_case_and_variant, median};

/// Variants: HAProxy's own check, Patroni's formula, and the agents; without tokens, and with them.
const PGSQL_CHECK: &str = "pgsql-check";
const FORMULA: &str = "patroni-formula";
const STOCK: &str = "stock";
const LOCKSTEP: &str = "lockstep";

/// Megabytes that a run may need.
const SPACE_MB: u64 = 8_000;

/// Standbys of case fleet.
const FLEET: usize = 20;

/// Cases as the option names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CaseArg {
    /// Reads on new sessions of a pool with a bound of 100 ms, while standbys are in trouble
    #[value(name = "bounded-100ms")]
    Bounded,
    /// Writes that are read at once on another node, while primaries change
    Tokens,
    /// Transactions a second of one load, with tokens and without in turn
    TokenCost,
    /// First look-ups on a node that `pool add` has made, warmed and not
    Join,
    /// CPU of the agents of a primary and 20 standbys
    Fleet,
    /// Reads a second on 1, 2 and 4 standbys with a CPU quota each
    Scale,
}

impl CaseArg {
    fn name(self) -> &'static str {
        match self {
            Self::Bounded => "bounded-100ms",
            Self::Tokens => "tokens",
            Self::TokenCost => "token-cost",
            Self::Join => "join",
            Self::Fleet => "fleet",
            Self::Scale => "scale",
        }
    }
}

/// What clients of a pool see: stale reads, tokens, and what agents cost
///
/// Writes pool.json into the results folder. A primary and standbys behind Debian's HAProxy. Cases:
/// bounded-100ms counts reads on new sessions that are older than the bound and two intervals, with agents,
/// with HAProxy's pgsql-check, and with Patroni's formula in bytes, while standbys are delayed,
/// stopped, paused, cut off and restarted; tokens reads what was just written, with tokens and without,
/// while standbys are paused and restarted and the primary changes.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Rounds of each case and variant", "1")),
    mut_arg("seconds", seconds("Seconds measured in each", "120", 2)),
    mut_arg("results", writes("pool.json"))
)]
pub struct PoolArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub time: SecondsArgs,
    /// Cases to run, separated by commas
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = [CaseArg::Bounded, CaseArg::Tokens, CaseArg::TokenCost, CaseArg::Join, CaseArg::Fleet, CaseArg::Scale])]
    pub cases: Vec<CaseArg>,
    /// Commits a second of the 16 writers of bounded-100ms
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = value_parser!(u32).range(1..=10_000))]
    pub commits: u32,
    /// New sessions a second of the 64 readers of bounded-100ms, each with one read
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = value_parser!(u32).range(1..=10_000))]
    pub reads: u32,
    /// Writes a second that case tokens reads
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = value_parser!(u32).range(1..=10_000))]
    pub pairs: u32,
    /// Bytes that Patroni's formula allows
    #[arg(long, value_name = "BYTES", default_value_t = 1_000_000)]
    pub formula_bytes: u64,
}

/// One case, or one size of case scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    case: CaseArg,
    standbys: usize,
}

/// One round.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PoolFigures {
    pub seconds: f64,
    /// Reads on new sessions (bounded-100ms), pairs of a write and a read (tokens).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<u64>,
    /// Reads that were older than allowed when the session was asked for; that missed the write before them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_reads: Option<u64>,
    /// Reads that were older than allowed when the query was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_when_asked: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ms: Option<f64>,
    /// Sessions and reads that failed; waits for a token after which the primary was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_reads: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_writes: Option<u64>,
    /// Share of the reads that standbys answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby_share: Option<f64>,
    /// Troubles of standbys, failovers included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub troubles: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failovers: Option<u64>,
    /// Transactions a second on the primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary_tps: Option<f64>,
    /// Transactions that tokens cost, in percent, and the difference between two halves without tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_tps_percent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chance_tps_percent: Option<f64>,
    /// CPU of the server that each transaction takes more with tokens, in percent, and the difference between
    /// two halves without tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_cpu_percent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chance_cpu_percent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads_per_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u64>,
    /// Seconds that `lockstep pool add` took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join_s: Option<f64>,
    /// 99th percentile of the first look-ups on the new node, and the same divided by that of a node that has
    /// served for long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ratio: Option<f64>,
    /// Look-ups a second on the copied node during the copy, as a part of those before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_share: Option<f64>,
    /// Reads of blocks that the new node did not have in memory during its first look-ups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_reads: Option<u64>,
    /// CPU of all agents together, percent of a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents_cpu_percent: Option<f64>,
    /// CPU of the agents' sessions on the primary, and on the standby where they take most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary_cpu_percent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby_cpu_percent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_cpu_percent: Option<f64>,
    /// Time until an agent has answered a check: the median, and the 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_p50_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_p99_ms: Option<f64>,
}

impl Benchmark for PoolArgs {
    const NAME: &'static str = "pool";
    const ORDER: Order = Order::TurnAbout;

    type Case = Case;
    type Variant = &'static str;
    type Figures = PoolFigures;
    type Scene = ();

    fn options(&self) -> String {
        format!(
            "{} --seconds {} --cases {} --commits {} --reads {} --pairs {} --formula-bytes {}",
            self.run,
            self.time.seconds,
            joined(self.cases.iter().map(|case| case.name())),
            self.commits,
            self.reads,
            self.pairs,
            self.formula_bytes
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB
    }

    fn needs_product(&self) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let sizes = |case: &CaseArg| match case {
            CaseArg::Scale => vec![1, 2, 4],
            CaseArg::Fleet => vec![FLEET],
            _ => vec![3],
        };
        let each = |&case: &CaseArg| {
            let sizes = sizes(&case).into_iter();
            sizes.map(move |standbys| Case { case, standbys })
        };
        self.cases.iter().flat_map(each).collect()
    }

    fn case_name(&self, case: &Case) -> String {
        match case.case {
            CaseArg::Scale => format!("scale-{}", case.standbys),
            case => case.name().to_owned(),
        }
    }

    fn variants(&self, case: &Case) -> Vec<&'static str> {
        match case.case {
            CaseArg::Bounded => vec![PGSQL_CHECK, FORMULA, LOCKSTEP],
            CaseArg::Tokens | CaseArg::Join => vec![STOCK, LOCKSTEP],
            CaseArg::TokenCost | CaseArg::Fleet | CaseArg::Scale => vec![LOCKSTEP],
        }
    }

    fn open(&self, _site: Site<'_>, _audience: &mut dyn Audience) -> Result<()> {
        Ok(())
    }

    fn measure(
        &self,
        site: Site<'_>,
        _scene: &mut (),
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<PoolFigures> {
        let length = self.time.length();
        let with_tokens = turn.variant == LOCKSTEP;
        match turn.case.case {
            CaseArg::Bounded => self.bounded(site, turn, length),
            CaseArg::Tokens => {
                let pairs = f64::from(self.pairs);
                let seed = u64::from(turn.round);
                let done = tokens::run(site.lab, site.product, with_tokens, pairs, seed, length)?;
                Ok(of_pairs(&done))
            }
            CaseArg::TokenCost => {
                let cost = token_cost::run(site.lab, length)?;
                Ok(PoolFigures {
                    seconds: rounded(cost.seconds),
                    primary_tps: Some(rounded(cost.tps)),
                    token_tps_percent: Some(rounded(cost.tps_percent)),
                    chance_tps_percent: Some(rounded(cost.tps_by_chance)),
                    token_cpu_percent: Some(rounded(cost.cpu_percent)),
                    chance_cpu_percent: Some(rounded(cost.cpu_by_chance)),
                    ..PoolFigures::default()
                })
            }
            CaseArg::Join => {
                let is_warmed = turn.variant == LOCKSTEP;
                let join = newcomer::run(site.lab, site.product, is_warmed)?;
                let ratio = join.newcomer_p99_ms / join.veteran_p99_ms;
                Ok(PoolFigures {
                    seconds: newcomer::FIRST.as_secs_f64(),
                    join_s: Some(rounded(join.join_s)),
                    p99_ms: Some(rounded(join.newcomer_p99_ms)),
                    p99_ratio: Some(rounded(ratio)),
                    peer_share: Some(rounded(join.peer_share)),
                    delayed_reads: Some(join.delayed),
                    ..PoolFigures::default()
                })
            }
            CaseArg::Fleet => {
                let costs = fleet::run(site.lab, site.product, turn.case.standbys, length)?;
                let [p50, p99] = costs.answer_ms.map(rounded);
                Ok(PoolFigures {
                    seconds: rounded(costs.seconds),
                    nodes: Some(turn.case.standbys as u64),
                    agents_cpu_percent: Some(rounded(costs.agents)),
                    primary_cpu_percent: Some(rounded(costs.on_primary)),
                    standby_cpu_percent: Some(rounded(costs.on_standby)),
                    proxy_cpu_percent: Some(rounded(costs.proxy)),
                    answer_p50_ms: Some(p50),
                    answer_p99_ms: Some(p99),
                    ..PoolFigures::default()
                })
            }
            CaseArg::Scale => {
                let reads = scale::run(site.lab, site.product, turn.case.standbys, length)?;
                Ok(PoolFigures {
                    seconds: length.as_secs_f64(),
                    nodes: Some(turn.case.standbys as u64),
                    reads_per_s: Some(rounded(reads)),
                    ..PoolFigures::default()
                })
            }
        }
    }

    fn line(&self, figures: &PoolFigures) -> String {
        let mut words = Vec::new();
        if let (Some(reads), Some(stale)) = (figures.reads, figures.stale_reads) {
            let share = figures.standby_share.map_or_else(String::new, percent);
            words.push(format!(
                "{stale} of {reads} reads stale, {share} by standbys"
            ));
        }
        words.extend(figures.oldest_ms.map(|it| format!("oldest {}", ms(it))));
        words.extend(figures.p99_ratio.map(|it| {
            let (join, peer) = (figures.join_s, figures.peer_share);
            format!(
                "p99 {it:.2} times that of the others after {:.1} s, the peer's reads {}",
                join.unwrap_or_default(),
                percent(peer.unwrap_or_default())
            )
        }));
        words.extend(figures.primary_tps.map(|it| format!("{} tps", count(it))));
        words.extend(cost_words(|part| part(figures)));
        words.extend(
            figures
                .reads_per_s
                .map(|it| format!("{} reads/s", count(it))),
        );
        if let (Some(agents), Some(primary)) =
            (figures.agents_cpu_percent, figures.primary_cpu_percent)
        {
            words.push(format!(
                "agents {agents:.2} % of a core, the primary {primary:.2} %"
            ));
        }
        words.extend(
            (figures.answer_p99_ms)
                .map(|it| format!("99 of 100 checks answered within {}", ms(it))),
        );
        words.join(", ")
    }

    fn headline(&self, results: &Results<PoolFigures>) -> Option<Headline> {
        let share = |variant: &str| {
            let reads = results.sum("bounded-100ms", variant, |row| as_f64(row.reads))?;
            let stale = results.sum("bounded-100ms", variant, |row| as_f64(row.stale_reads))?;
            (reads > 0.0).then(|| rounded(1e6 * stale / reads))
        };
        Some(Headline {
            metric: "reads of a million on new sessions that are older than the bound of 100 ms and two \
                     intervals; beside it with Patroni's formula"
                .to_owned(),
            ours: share(LOCKSTEP)?,
            stock: share(FORMULA)?,
            ratio: None,
        })
    }

    fn columns(&self) -> Vec<Column<PoolFigures>> {
        by_case_and_variant(
            "case",
            [
                median("reads", |row| row.reads.map(|it| it as f64), count),
                median("stale", |row| row.stale_reads.map(|it| it as f64), count),
                median("oldest", |row| row.oldest_ms, ms),
                median("by standbys", |row| row.standby_share, percent),
                median("failed", |row| row.failed_reads.map(|it| it as f64), count),
                median("tps", |row| row.primary_tps, count),
                median("reads/s", |row| row.reads_per_s, count),
                median("p99 ratio", |row| row.p99_ratio, hundredths),
                median("agents %", |row| row.agents_cpu_percent, hundredths),
                median("primary %", |row| row.primary_cpu_percent, hundredths),
            ],
        )
    }

    fn groups<'r>(&self, results: &'r Results<PoolFigures>) -> Vec<Group<'r, PoolFigures>> {
        let cases = self.cases();
        let named = cases
            .iter()
            .map(|case| (self.case_name(case), self.variants(case)));
        results.each(named)
    }

    fn remarks(&self, results: &Results<PoolFigures>) -> Vec<String> {
        let cost = cost_words(|part| results.median("token-cost", LOCKSTEP, part));
        let reads =
            |nodes: u32| results.median(&format!("scale-{nodes}"), LOCKSTEP, |row| row.reads_per_s);
        let scaled = reads(1).zip(reads(4)).map(|(one, four)| {
            format!("four nodes serve {:.2} times the reads of one", four / one)
        });
        cost.into_iter().chain(scaled).collect()
    }
}

/// What tokens cost, beside what is chance, from a part of the figures.
fn cost_words(figure: impl Fn(fn(&PoolFigures) -> Option<f64>) -> Option<f64>) -> Option<String> {
    Some(format!(
        "tokens cost the primary {:.2} % of its transactions ({:.2} % between equals; less than 1 % is the aim), and \
         {:.2} % of CPU for each ({:.2} %)",
        figure(|row| row.token_tps_percent)?,
        figure(|row| row.chance_tps_percent)?,
        figure(|row| row.token_cpu_percent)?,
        figure(|row| row.chance_cpu_percent)?
    ))
}

fn as_f64(count: Option<u64>) -> f64 {
    count.unwrap_or_default() as f64
}

/// A part of a whole, if there is a whole.
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| (part as f64 / whole as f64 * 1e4).round() / 1e4)
}

fn of_pairs(done: &tokens::Paired) -> PoolFigures {
    PoolFigures {
        seconds: rounded(done.seconds),
        reads: Some(done.pairs),
        stale_reads: Some(done.stale),
        failed_reads: Some(done.refused),
        failed_writes: Some(done.failed_writes),
        standby_share: share(done.on_standbys, done.pairs),
        troubles: Some(done.failovers + done.pauses + done.restarts),
        failovers: Some(done.failovers),
        ..PoolFigures::default()
    }
}

impl PoolArgs {
    fn bounded(
        &self,
        site: Site<'_>,
        turn: &TurnOf<Self>,
        length: Duration,
    ) -> Result<PoolFigures> {
        let deciding = match turn.variant {
            PGSQL_CHECK => Deciding::PgsqlCheck,
            FORMULA => Deciding::Formula(self.formula_bytes),
            _ => Deciding::Agents,
        };
        let clients = Clients {
            writers: 16,
            readers: 64,
            commits_per_s: f64::from(self.commits),
            reads_per_s: f64::from(self.reads),
        };
        let seed = u64::from(turn.round);
        let seen = bounded::run(site.lab, site.product, deciding, &clients, seed, length)?;
        Ok(PoolFigures {
            seconds: rounded(seen.seconds),
            reads: Some(seen.reads),
            stale_reads: Some(seen.stale),
            stale_when_asked: Some(seen.stale_when_asked),
            oldest_ms: Some(rounded(seen.oldest.as_secs_f64() * 1000.0)),
            failed_reads: Some(seen.failed),
            standby_share: share(seen.on_standbys, seen.reads),
            troubles: Some(seen.troubles as u64),
            primary_tps: Some(rounded(seen.commits as f64 / seen.seconds)),
            ..PoolFigures::default()
        })
    }
}
