//! `lockstep-lab bench commit-levels`: how long a commit waits for a replica at each level of
//! `synchronous_commit`, physical and logical.

use clap::{Args, value_parser};
use lockstep_lag::Role;
use lockstep_lag::commit_probe::{Pace, Plan, probe_commits};
use lockstep_service::words::figures::tenths;
use serde::{Deserialize, Serialize};

use crate::args::{RunArgs, rounds, writes};
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Site, Turn, TurnOf};
use crate::commit_levels::{Awaited, Bed, Flushing};
use crate::fleet::node;
use crate::results::{Headline, Results, met, ratio, rounded};
use crate::table::{Column, Group, Named, by_case_and_variant, median};
use crate::{BenchError, Result};

/// Megabytes that a run may need.
const SPACE_MB: u64 = 1_500;

/// How many times as long a subscriber's flush is expected to take as its apply: by default at
/// least HIDDEN, with the remedy at most REMEDIED.
const HIDDEN: f64 = 20.0;
const REMEDIED: f64 = 1.2;

/// How long a commit waits for a replica at each level of synchronous_commit
///
/// Writes commit-levels.json into the results folder. A physical and a logical replica in turn are
/// synchronous; each commit has 1,000 rows. Measured by default, with the subscription's own
/// synchronous_commit = on, which doctor proposes, and with wal_writer_delay = 10ms. All other
/// settings are PostgreSQL's own. Rows of other majors stay in the file.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Rounds of each variant", "3")),
    mut_arg("results", writes("commit-levels.json"))
)]
pub struct CommitLevelsArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Commits at each level in a round, a third as many apart; the one in the middle counts
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = value_parser!(u32).range(1..=1000))]
    pub commits: u32,
}

/// How the replica flushes; `stock` is PostgreSQL's own default.
impl Named for Flushing {
    fn name(&self) -> &'static str {
        match self {
            Self::Default => "stock",
            Self::WithEachCommit => "lockstep",
            Self::ShortDelay => "wal_writer_delay=10ms",
        }
    }
}

const REPLICAS: [Awaited; 2] = [Awaited::Standby, Awaited::Subscriber];

const PACES: [Pace; 2] = [Pace::InARow, Pace::Apart];

/// Commits of one round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CommitFigures {
    /// PostgreSQL's major.
    pub pg: u32,
    pub commits: u32,
    pub remote_write_ms: f64,
    pub on_ms: f64,
    pub remote_apply_ms: f64,
}

/// The servers, and what they are set up for.
pub struct CommitScene {
    bed: Bed,
    set_up: Option<(Awaited, Flushing)>,
}

impl Benchmark for CommitLevelsArgs {
    const NAME: &'static str = "commit-levels";

    type Case = (Awaited, Pace);
    type Variant = Flushing;
    type Figures = CommitFigures;
    type Scene = CommitScene;

    fn options(&self) -> String {
        format!("{} --commits {}", self.run, self.commits)
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB
    }

    fn needs_extension(&self) -> bool {
        false
    }

    fn cases(&self) -> Vec<Self::Case> {
        let of_all = |pace| REPLICAS.map(|awaited| (awaited, pace));
        PACES.into_iter().flat_map(of_all).collect()
    }

    /// `pg15 logical, in a row`.
    fn case_name(&self, &(awaited, pace): &Self::Case) -> String {
        let kind = awaited.kind();
        let pace = match pace {
            Pace::InARow => "in a row",
            Pace::Apart => "apart",
        };
        format!("pg{} {kind}, {pace}", self.run.server.pg)
    }

    fn variants(&self, &(awaited, _): &Self::Case) -> Vec<Flushing> {
        match awaited {
            Awaited::Standby => vec![Flushing::Default],
            Awaited::Subscriber => vec![
                Flushing::Default,
                Flushing::WithEachCommit,
                Flushing::ShortDelay,
            ],
        }
    }

    /// Both paces one after the other, as the servers are set up for the rest.
    fn plan(&self) -> Vec<TurnOf<Self>> {
        let mut plan = Vec::new();
        for round in 1..=self.run.rounds {
            for awaited in REPLICAS {
                for variant in self.variants(&(awaited, Pace::InARow)) {
                    plan.extend(PACES.map(|pace| Turn {
                        case: (awaited, pace),
                        variant,
                        round,
                    }));
                }
            }
        }
        plan
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<CommitScene> {
        Ok(CommitScene {
            bed: Bed::start(site.lab)?,
            set_up: None,
        })
    }

    fn label(&self, _scene: &CommitScene, turn: &TurnOf<Self>) -> String {
        let case = self.case_name(&turn.case);
        format!("{case}, {}, round {}", turn.variant.name(), turn.round)
    }

    fn measure(
        &self,
        _site: Site<'_>,
        scene: &mut CommitScene,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<CommitFigures> {
        let (awaited, pace) = turn.case;
        if scene.set_up != Some((awaited, turn.variant)) {
            scene.bed.await_replica(awaited)?;
            scene.bed.flush_as(turn.variant)?;
            scene.set_up = Some((awaited, turn.variant));
        }
        let commits = match pace {
            Pace::InARow => self.commits,
            Pace::Apart => self.commits.div_ceil(3),
        };
        let [remote_write_ms, on_ms, remote_apply_ms] = times(&scene.bed, awaited, pace, commits)?;
        Ok(CommitFigures {
            pg: self.run.server.pg.get(),
            commits,
            remote_write_ms,
            on_ms,
            remote_apply_ms,
        })
    }

    fn line(&self, figures: &CommitFigures) -> String {
        format!(
            "remote_write {:.1} ms, on {:.1} ms, remote_apply {:.1} ms",
            figures.remote_write_ms, figures.on_ms, figures.remote_apply_ms
        )
    }

    fn headline(&self, results: &Results<CommitFigures>) -> Option<Headline> {
        let case = self.case_name(&(Awaited::Subscriber, Pace::InARow));
        let (ours, stock) = results.ours_and_stock(&case, |row| row.on_ms)?;
        Some(Headline {
            metric: format!(
                "{case}: a commit at synchronous_commit = on, ms, by default and with the remedy that doctor proposes"
            ),
            ours: rounded(ours),
            stock: rounded(stock),
            ratio: ratio(stock, ours, 2),
        })
    }

    fn columns(&self) -> Vec<Column<CommitFigures>> {
        by_case_and_variant(
            "ms, median over rounds",
            [
                median("remote_write", |row| Some(row.remote_write_ms), tenths),
                median("on", |row| Some(row.on_ms), tenths),
                median("remote_apply", |row| Some(row.remote_apply_ms), tenths),
            ],
        )
    }

    fn groups<'r>(&self, results: &'r Results<CommitFigures>) -> Vec<Group<'r, CommitFigures>> {
        results.each(self.cases().iter().map(|case| {
            let variants = self.variants(case).into_iter();
            (self.case_name(case), variants.map(|variant| variant.name()))
        }))
    }

    /// How this compares with what was expected, in the middle of the rounds.
    fn remarks(&self, results: &Results<CommitFigures>) -> Vec<String> {
        let mut lines = Vec::new();
        for pace in PACES {
            let case = self.case_name(&(Awaited::Subscriber, pace));
            // Within a round, since what else the machine does differs between rounds.
            let times = |row: &CommitFigures| row.on_ms / row.remote_apply_ms;
            if let Some((remedied, hidden)) = results.ours_and_stock(&case, times) {
                lines.push(format!(
                    "{case}: on is {hidden:.1} times remote_apply by default (20 or more: {}), {remedied:.2} times with the remedy (within 20 %: {})",
                    met(hidden >= HIDDEN),
                    met((1.0 / REMEDIED..=REMEDIED).contains(&remedied)),
                ));
            }
        }
        lines
    }
}

/// Milliseconds at each level, in the middle of the commits.
fn times(bed: &Bed, awaited: Awaited, pace: Pace, commits: u32) -> Result<[f64; 3]> {
    let [primary, subscriber] = bed.conninfos();
    let primary = node("primary".to_owned(), Role::Primary, &primary)?;
    // Named for the physical rows too: all commits insert rows, and none is a message.
    let subscribers = [node(
        "subscriber".to_owned(),
        Role::Subscriber,
        &subscriber,
    )?];
    let plan = Plan {
        commits,
        pace,
        watch: false,
        application_name: "lockstep-lab bench",
    };
    let measured = probe_commits(&primary, &subscribers, plan)?;
    let row = measured
        .rows
        .iter()
        .find(|row| row.replica == awaited.name());
    let Some(row) = row else {
        return Err(BenchError::Unusable(format!(
            "commits could not be timed: {}",
            measured.missing.join("; ")
        )));
    };
    let mut times = [0.0; 3];
    for (time, cell) in times.iter_mut().zip(&row.cells) {
        *time = match cell.median_ms {
            Some(ms) if cell.waited => rounded(ms),
            _ => {
                let words = format!("commits did not wait for {}", awaited.name());
                return Err(BenchError::Unusable(words));
            }
        };
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::parsed;
    use crate::results::ResultRow;

    fn row(pg: u32, variant: &str, on_ms: f64, remote_apply_ms: f64) -> ResultRow<CommitFigures> {
        ResultRow::for_tests(
            &format!("pg{pg} logical, in a row"),
            variant,
            CommitFigures {
                pg,
                commits: 1,
                remote_write_ms: 1.0,
                on_ms,
                remote_apply_ms,
            },
        )
    }

    fn args() -> CommitLevelsArgs {
        parsed("--pg 15 --rounds 1 --commits 1")
    }

    #[test]
    fn majors_are_kept_apart_and_held_against_what_is_expected() {
        let mut results =
            Results::for_tests(CommitLevelsArgs::NAME, vec![row(17, "stock", 400.0, 5.0)]);
        let rows = vec![row(15, "stock", 90.0, 5.0), row(15, "lockstep", 6.0, 5.5)];
        results.replace("pg15 logical, in a row", rows, vec![]);
        assert_eq!(results.rows.len(), 3);
        let headline = args().headline(&results).unwrap();
        assert_eq!((headline.ours, headline.stock), (6.0, 90.0));
        let verdict = args().remarks(&results);
        assert_eq!(verdict.len(), 1);
        assert!(verdict[0].contains("18.0 times") && verdict[0].contains("more: not met"));
        assert!(verdict[0].contains("within 20 %: met"));
    }

    #[test]
    fn servers_are_set_up_once_for_both_paces() {
        let plan = args().plan();
        assert_eq!(plan.len(), 8);
        for pair in plan.chunks(2) {
            let set_up = |turn: &TurnOf<CommitLevelsArgs>| (turn.case.0, turn.variant);
            assert_eq!(set_up(&pair[0]), set_up(&pair[1]));
            assert_ne!(pair[0].case.1, pair[1].case.1);
        }
        let lines = args().cases();
        assert_eq!(args().case_name(&lines[1]), "pg15 logical, in a row");
    }
}
