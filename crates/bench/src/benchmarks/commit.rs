//! `lockstep-lab bench commit`: how long a small transaction's COMMIT takes on a primary whose synchronous
//! standby is a standby, a subscription or a replica of Lockstep.

use clap::{Args, value_parser};
use lockstep_lag::commit_probe::Level;
use lockstep_service::words::figures::{count, hundredths, ms};
use serde::{Deserialize, Serialize};

use crate::args::{RunArgs, SecondsArgs, joined, rounds, seconds, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Site, Turn, TurnOf};
use crate::commit_levels::Awaited;
use crate::committing::{Pair, ReplicaKind};
use crate::relay::delays::Delays;
use crate::results::{Headline, Results, met, ratio, rounded};
use crate::table::{Column, Group, Named, by_case_and_variant, median};
use crate::{BenchError, Result};

/// Megabytes that a run may need.
const SPACE_MB: u64 = 4_000;

/// How many times as long as its own apply Lockstep's flush may take, at most.
const ON_OF_APPLY: f64 = 1.2;

/// How many times as long as with Lockstep a commit takes with stock's defaults, at least.
const STOCK_OF_OURS: f64 = 20.0;

/// How many times as long as with a tuned subscription it may take with Lockstep, by committers.
const OURS_OF_TUNED: [(u32, f64); 2] = [(1, 1.5), (16, 1.0)];

const TUNED: [ReplicaKind; 2] = [ReplicaKind::StockTuned, ReplicaKind::StockDelay];

/// How long a COMMIT takes with a synchronous replica: physical, a subscription, or Lockstep's
///
/// Writes commit.json into the results folder. One session or several commit transactions of one row,
/// one after the other. All settings but those named are PostgreSQL's own. stock is a standby in cases
/// physical-… and a subscription by default in cases logical-…; stock-tuned is one with
/// synchronous_commit = on and wal_writer_delay = 10ms, stock-delay one with wal_writer_delay = 1ms only;
/// lockstep is `lockstep replica run`.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Rounds of each case and variant", "3")),
    mut_arg("seconds", seconds("Seconds measured in each", "10", 1)),
    mut_arg("results", writes("commit.json"))
)]
pub struct CommitArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub time: SecondsArgs,
    /// Sessions that commit at the same time, separated by commas: one case each
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 16], value_parser = value_parser!(u32).range(1..=90))]
    pub committers: Vec<u32>,
    /// Replicas to run, separated by commas
    #[arg(long, value_enum, value_name = "REPLICAS", value_delimiter = ',', default_values_t = ReplicaKind::ALL)]
    pub replicas: Vec<ReplicaKind>,
}

impl Named for ReplicaKind {
    fn name(&self) -> &'static str {
        match self {
            Self::Physical | Self::Stock => "stock",
            Self::StockTuned => "stock-tuned",
            Self::StockDelay => "stock-delay",
            Self::Lockstep => "lockstep",
        }
    }
}

/// Writes the kind as the option names it.
impl std::fmt::Display for ReplicaKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Physical => f.write_str("physical"),
            _ => f.write_str(self.name()),
        }
    }
}

/// What commits wait for, and how many sessions commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    awaited: Awaited,
    level: Level,
    committers: u32,
}

/// `logical-on`, `logical-on-16`.
fn name(awaited: Awaited, level: Level, committers: u32) -> String {
    let (kind, level) = (awaited.kind(), level.name());
    match committers {
        1 => format!("{kind}-{level}"),
        _ => format!("{kind}-{level}-{committers}"),
    }
}

/// One round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CommitFigures {
    pub seconds: f64,
    /// Commits that were timed.
    pub commits: u64,
    pub commit_p50_ms: f64,
    pub commit_p99_ms: f64,
}

impl Benchmark for CommitArgs {
    const NAME: &'static str = "commit";

    type Case = Case;
    type Variant = ReplicaKind;
    type Figures = CommitFigures;
    /// The servers of the turn before.
    type Scene = Option<Pair>;

    fn options(&self) -> String {
        format!(
            "{} --seconds {} --committers {} --replicas {}",
            self.run,
            self.time.seconds,
            joined(&self.committers),
            joined(&self.replicas)
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB
    }

    fn needs_extension(&self) -> bool {
        false
    }

    fn needs_product(&self) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for awaited in [Awaited::Standby, Awaited::Subscriber] {
            if !self.replicas.iter().any(|kind| kind.awaited() == awaited) {
                continue;
            }
            for &committers in &self.committers {
                cases.extend(Level::ALL.map(|level| Case {
                    awaited,
                    level,
                    committers,
                }));
            }
        }
        cases
    }

    fn case_name(&self, case: &Case) -> String {
        name(case.awaited, case.level, case.committers)
    }

    fn variants(&self, case: &Case) -> Vec<ReplicaKind> {
        let kinds = self.replicas.iter().copied();
        kinds
            .filter(|kind| kind.awaited() == case.awaited)
            .collect()
    }

    /// All cases of a replica one after the other, as they share its servers. Every other round
    /// begins with the last replica.
    fn plan(&self) -> Vec<TurnOf<Self>> {
        let mut plan = Vec::new();
        for round in 1..=self.run.rounds {
            let mut replicas = self.replicas.clone();
            if round % 2 == 0 {
                replicas.reverse();
            }
            for variant in replicas {
                let mut cases = self.cases();
                cases.retain(|case| case.awaited == variant.awaited());
                plan.extend(cases.into_iter().map(|case| Turn {
                    case,
                    variant,
                    round,
                }));
            }
        }
        plan
    }

    fn open(&self, _site: Site<'_>, _audience: &mut dyn Audience) -> Result<Option<Pair>> {
        Ok(None)
    }

    fn measure(
        &self,
        site: Site<'_>,
        scene: &mut Option<Pair>,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<CommitFigures> {
        let pair = match scene.take() {
            Some(pair) if pair.kind == turn.variant => pair,
            other => {
                other.map_or(Ok(()), Pair::remove)?;
                Pair::start(site.lab, site.product, turn.variant)?
            }
        };
        let pair = scene.insert(pair);
        let Case {
            level, committers, ..
        } = turn.case;
        let length = self.time.length();
        let took = pair.commits(site.lab, level, committers, length)?;
        pair.check()?;
        figures(&took, self.time.seconds)
    }

    fn line(&self, figures: &CommitFigures) -> String {
        let (p50, p99) = (ms(figures.commit_p50_ms), ms(figures.commit_p99_ms));
        format!("{} commits, p50 {p50}, p99 {p99}", figures.commits)
    }

    fn headline(&self, results: &Results<CommitFigures>) -> Option<Headline> {
        let case = name(Awaited::Subscriber, Level::On, 1);
        let (ours, stock) = results.ours_and_stock(&case, |row| row.commit_p50_ms)?;
        Some(Headline {
            metric: format!("{case}: ms that a COMMIT takes, median, over rounds too"),
            ours: rounded(ours),
            stock: rounded(stock),
            ratio: ratio(stock, ours, 2),
        })
    }

    fn columns(&self) -> Vec<Column<CommitFigures>> {
        by_case_and_variant(
            "ms, median over rounds",
            [
                median("p50", |row| Some(row.commit_p50_ms), hundredths),
                median("p99", |row| Some(row.commit_p99_ms), hundredths),
                median("commits", |row| Some(row.commits as f64), count),
            ],
        )
    }

    fn groups<'r>(&self, results: &'r Results<CommitFigures>) -> Vec<Group<'r, CommitFigures>> {
        results.each(self.cases().iter().map(|case| {
            let variants = self.variants(case).into_iter();
            (self.case_name(case), variants.map(|variant| variant.name()))
        }))
    }

    /// How this compares with what is expected.
    fn remarks(&self, results: &Results<CommitFigures>) -> Vec<String> {
        let case = |level, committers| name(Awaited::Subscriber, level, committers);
        let by = |case: &str, kind: ReplicaKind, key: fn(&CommitFigures) -> f64| {
            results.median(case, kind.name(), key)
        };
        let (p50, p99) = (
            (|row| row.commit_p50_ms) as fn(&CommitFigures) -> f64,
            (|row| row.commit_p99_ms) as fn(&CommitFigures) -> f64,
        );
        let times = |part: Option<f64>, whole: Option<f64>| Some(part? / whole?);
        let ours = |level, key| by(&case(level, 1), ReplicaKind::Lockstep, key);
        let on = case(Level::On, 1);
        let mut lines = Vec::new();
        if let Some(times) = times(ours(Level::On, p50), ours(Level::RemoteApply, p50)) {
            lines.push(format!(
                "{on}: lockstep {times:.2} times its own remote_apply ({ON_OF_APPLY} or less: {})",
                met(times <= ON_OF_APPLY)
            ));
        }
        if let Some(times) = times(by(&on, ReplicaKind::Stock, p50), ours(Level::On, p50)) {
            lines.push(format!(
                "{on}: stock {times:.1} times lockstep ({STOCK_OF_OURS} or more: {})",
                met(times >= STOCK_OF_OURS)
            ));
        }
        for (committers, most) in OURS_OF_TUNED {
            let on = case(Level::On, committers);
            for tuned in TUNED {
                let of = |key| times(by(&on, ReplicaKind::Lockstep, key), by(&on, tuned, key));
                if let Some((p50, p99)) = of(p50).zip(of(p99)) {
                    lines.push(format!(
                        "{on}: lockstep {p50:.2} times {tuned}, at p99 {p99:.2} times \
                         (both {most} or less: {})",
                        met(p50.max(p99) <= most)
                    ));
                }
            }
        }
        lines
    }
}

fn figures(took: &Delays, seconds: u32) -> Result<CommitFigures> {
    let missing = || BenchError::Unusable(format!("no commit returned within {seconds} s"));
    let percentile = |percent| took.percentile_ms(percent).map(rounded).ok_or_else(missing);
    Ok(CommitFigures {
        seconds: seconds.into(),
        commits: took.len(),
        commit_p50_ms: percentile(50.0)?,
        commit_p99_ms: percentile(99.0)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::parsed;
    use crate::results::ResultRow;

    fn row(case: &str, variant: &str, p50: f64, p99: f64) -> ResultRow<CommitFigures> {
        ResultRow::for_tests(
            case,
            variant,
            CommitFigures {
                seconds: 1.0,
                commits: 1,
                commit_p50_ms: p50,
                commit_p99_ms: p99,
            },
        )
    }

    #[test]
    fn times_are_held_against_what_is_expected() {
        let results = Results::for_tests(
            CommitArgs::NAME,
            vec![
                row("logical-on", "stock", 400.0, 600.0),
                row("logical-on", "stock-tuned", 2.0, 4.0),
                row("logical-on", "lockstep", 2.5, 6.5),
                row("logical-remote_apply", "lockstep", 2.0, 3.0),
                row("logical-on-16", "stock-tuned", 20.0, 40.0),
                row("logical-on-16", "lockstep", 10.0, 39.0),
            ],
        );
        let args: CommitArgs = parsed("");
        assert_eq!(
            args.remarks(&results),
            [
                "logical-on: lockstep 1.25 times its own remote_apply (1.2 or less: not met)",
                "logical-on: stock 160.0 times lockstep (20 or more: met)",
                "logical-on: lockstep 1.25 times stock-tuned, at p99 1.62 times (both 1.5 or less: not met)",
                "logical-on-16: lockstep 0.50 times stock-tuned, at p99 0.97 times (both 1 or less: met)",
            ]
        );
        assert_eq!(args.headline(&results).unwrap().ratio, Some(160.0));
    }

    #[test]
    fn cases_have_the_replicas_of_their_kind() {
        let args: CommitArgs = parsed("");
        let cases = args.cases();
        let shown = |case: &Case| {
            let variants = args.variants(case);
            let names = joined(variants.iter().map(ReplicaKind::name));
            format!("{} {names}", args.case_name(case))
        };
        let shown: Vec<_> = cases.iter().map(shown).collect();
        assert_eq!(shown.len(), 12);
        assert_eq!(shown[0], "physical-remote_write stock");
        assert_eq!(shown[4], "physical-on-16 stock");
        assert_eq!(
            shown[7],
            "logical-on stock,stock-tuned,stock-delay,lockstep"
        );
        assert_eq!(
            shown[11],
            "logical-remote_apply-16 stock,stock-tuned,stock-delay,lockstep"
        );
        let args: CommitArgs = parsed("--replicas lockstep --committers 4");
        let names = args.cases().into_iter().map(|case| args.case_name(&case));
        assert_eq!(
            joined(names),
            "logical-remote_write-4,logical-on-4,logical-remote_apply-4"
        );
    }

    #[test]
    fn a_replica_has_its_cases_in_a_row_and_the_last_begins_every_other_round() {
        let args: CommitArgs = parsed("--rounds 2 --committers 1");
        let plan = args.plan();
        let first = plan.chunks(3).map(|turns| {
            assert!(turns.iter().all(|turn| turn.variant == turns[0].variant));
            turns[0].variant
        });
        let backwards = ReplicaKind::ALL.into_iter().rev();
        assert!(first.eq(ReplicaKind::ALL.into_iter().chain(backwards)));
        assert_eq!((plan[0].round, plan[29].round), (1, 2));
    }

    #[test]
    fn nothing_timed_is_an_error() {
        let mut took = Delays::default();
        assert!(figures(&took, 3).is_err());
        took.add(2_000);
        let figures = figures(&took, 3).unwrap();
        assert_eq!((figures.commits, figures.commit_p99_ms), (1, 2.0));
    }
}
