//! `lockstep bench commit-levels`: how long a commit waits for a replica at each level of
//! `synchronous_commit`, physical and logical.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, value_parser};
use lockstep_bench::commit_levels::{Awaited, Bed, Flushing};
use lockstep_client::Conninfo;
use lockstep_lab::machine;
use lockstep_lag::commit_probe::{Pace, Plan, probe_commits};
use lockstep_lag::{Node, Role};
use serde::{Deserialize, Serialize};

use super::results::{Headline, Measured, Results, rounded};
use super::steps::Steps;
use crate::args::ServerArgs;
use crate::{scene, text};

/// Name of the benchmark and of its file.
const NAME: &str = "commit-levels";

/// Megabytes that a run may need.
const SPACE_MB: u64 = 1_500;

/// By default, what a subscriber's flush takes is so many times its apply, and with the remedy
/// they differ by no more than this factor.
const HIDDEN: f64 = 20.0;
const REMEDIED: f64 = 1.2;

/// `lockstep bench commit-levels`
#[derive(Debug, Args)]
pub struct CommitLevelsArgs {
    /// Rounds of each variant
    #[arg(long, value_name = "N", env = "BENCH_ROUNDS", hide_env_values = true, default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Commits at each level in a round, a third as many apart; the one in the middle counts
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = value_parser!(u32).range(1..=1000))]
    pub commits: u32,
    /// Folder for commit-levels.json
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    pub results: PathBuf,
    /// Which servers to use.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Who is waited for and how it flushes; `stock` is PostgreSQL's own default.
const VARIANTS: [(Awaited, &str, Flushing); 4] = [
    (Awaited::Standby, "stock", Flushing::Default),
    (Awaited::Subscriber, "stock", Flushing::Default),
    (Awaited::Subscriber, "lockstep", Flushing::WithEachCommit),
    (
        Awaited::Subscriber,
        "wal_writer_delay=10ms",
        Flushing::ShortDelay,
    ),
];

const PACES: [Pace; 2] = [Pace::InARow, Pace::Apart];

/// One round of a case and variant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub variant: String,
    pub round: u32,
    /// PostgreSQL's major.
    pub pg: u32,
    pub commits: u32,
    pub remote_write_ms: f64,
    pub on_ms: f64,
    pub remote_apply_ms: f64,
    pub date: String,
    pub commit: String,
}

impl Measured for Row {
    fn case(&self) -> &str {
        &self.case
    }

    fn variant(&self) -> &str {
        &self.variant
    }
}

/// `pg15 logical, in a row`.
fn case(args: &CommitLevelsArgs, awaited: Awaited, pace: Pace) -> String {
    let kind = match awaited {
        Awaited::Standby => "physical",
        Awaited::Subscriber => "logical",
    };
    let pace = match pace {
        Pace::InARow => "in a row",
        Pace::Apart => "apart",
    };
    format!("pg{} {kind}, {pace}", args.server.pg)
}

/// Runs the benchmark.
pub fn run(args: &CommitLevelsArgs) -> Result<()> {
    let path = Results::<Row>::place(&args.results, NAME)?;
    let lab = scene::open_lab(&args.server, false, SPACE_MB)?;
    let command = format!(
        "lockstep bench commit-levels --pg {} --rounds {} --commits {}",
        args.server.pg, args.rounds, args.commits
    );
    let machine = machine::describe(lab.folder(), lab.pinning());
    let mut results = Results::begin(&path, NAME, command, machine)?;
    let mut steps = Steps::new(VARIANTS.len() * PACES.len() * args.rounds as usize);
    steps.say(&format!("{} ({})", results.command, results.machine));
    let mut bed = Bed::start(&lab)?;
    let mut rows = Vec::new();
    for round in 1..=args.rounds {
        for (awaited, variant, flushing) in VARIANTS {
            bed.await_replica(awaited)?;
            bed.flush_as(flushing)?;
            for pace in PACES {
                let case = case(args, awaited, pace);
                let commits = match pace {
                    Pace::InARow => args.commits,
                    Pace::Apart => args.commits.div_ceil(3),
                };
                steps.begin(&format!("{case}, {variant}, round {round}"));
                let [remote_write_ms, on_ms, remote_apply_ms] =
                    measure(&bed, awaited, pace, commits)?;
                steps.end(&format!(
                    "remote_write {remote_write_ms:.1} ms, on {on_ms:.1} ms, remote_apply {remote_apply_ms:.1} ms"
                ));
                rows.push(Row {
                    case,
                    variant: variant.to_owned(),
                    round,
                    pg: args.server.pg.get(),
                    commits,
                    remote_write_ms,
                    on_ms,
                    remote_apply_ms,
                    date: machine::date(),
                    commit: results.commit.clone(),
                });
            }
        }
    }
    drop(bed);
    keep(&mut results, rows);
    results.date = machine::date();
    results.headline = headline(args, &results);
    results.save(&path)?;
    for line in text::table(&table(args, &results)) {
        steps.say(&line);
    }
    for line in verdict(args, &results) {
        steps.say(&line);
    }
    steps.say(&format!("written to {}", scene::absolute(&path).display()));
    Ok(())
}

/// Replaces what earlier runs had of the same cases.
fn keep(results: &mut Results<Row>, rows: Vec<Row>) {
    let mut cases: Vec<String> = rows.iter().map(|row| row.case.clone()).collect();
    cases.sort();
    cases.dedup();
    for case in cases {
        let of_case = rows.iter().filter(|row| row.case == case).cloned();
        results.replace(&case, of_case.collect(), vec![]);
    }
}

/// Milliseconds at each level, in the middle of the commits.
fn measure(bed: &Bed, awaited: Awaited, pace: Pace, commits: u32) -> Result<[f64; 3]> {
    let node = |name: &str, role, conninfo: &str| -> Result<Node> {
        Ok(Node {
            name: name.to_owned(),
            role,
            conninfo: Conninfo::parse(conninfo).context("a conninfo of the lab's own")?,
        })
    };
    let [primary, subscriber] = bed.conninfos();
    let primary = node("primary", Role::Primary, &primary)?;
    // Named for the physical rows too: all commits insert rows, and none is a message.
    let subscribers = [node("subscriber", Role::Subscriber, &subscriber)?];
    let plan = Plan {
        commits,
        pace,
        watch: false,
        application_name: "lockstep bench",
    };
    let measured = probe_commits(&primary, &subscribers, plan)?;
    let row = measured
        .rows
        .iter()
        .find(|row| row.replica == awaited.name());
    let Some(row) = row else {
        bail!(
            "commits could not be timed: {}",
            measured.missing.join("; ")
        );
    };
    let mut times = [0.0; 3];
    for (time, cell) in times.iter_mut().zip(&row.cells) {
        *time = match cell.median_ms {
            Some(ms) if cell.waited => rounded(ms),
            _ => bail!("commits did not wait for {}", awaited.name()),
        };
    }
    Ok(times)
}

fn headline(args: &CommitLevelsArgs, results: &Results<Row>) -> Option<Headline> {
    let case = case(args, Awaited::Subscriber, Pace::InARow);
    let on = |variant| results.median(&case, variant, |row| row.on_ms);
    let (ours, stock) = (on("lockstep")?, on("stock")?);
    Some(Headline {
        metric: format!(
            "{case}: a commit at synchronous_commit = on, ms, by default and with the remedy that doctor proposes"
        ),
        ours: rounded(ours),
        stock: rounded(stock),
        ratio: (ours > 0.0).then(|| (stock / ours * 100.0).round() / 100.0),
    })
}

fn table(args: &CommitLevelsArgs, results: &Results<Row>) -> Vec<Vec<String>> {
    let head = [
        "ms, median over rounds",
        "variant",
        "remote_write",
        "on",
        "remote_apply",
    ];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for pace in PACES {
        for (awaited, variant, _) in VARIANTS {
            let case = case(args, awaited, pace);
            let cell = |value: fn(&Row) -> f64| {
                let median = results.median(&case, variant, value);
                median.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"))
            };
            table.push(vec![
                case.clone(),
                variant.to_owned(),
                cell(|row| row.remote_write_ms),
                cell(|row| row.on_ms),
                cell(|row| row.remote_apply_ms),
            ]);
        }
    }
    table
}

/// How this compares with what was expected, in the middle of the rounds.
fn verdict(args: &CommitLevelsArgs, results: &Results<Row>) -> Vec<String> {
    let mut lines = Vec::new();
    for pace in PACES {
        let case = case(args, Awaited::Subscriber, pace);
        // Within a round, since what else the machine does differs between rounds.
        let times = |variant| results.median(&case, variant, |row| row.on_ms / row.remote_apply_ms);
        let met = |met: bool| if met { "met" } else { "not met" };
        if let (Some(hidden), Some(remedied)) = (times("stock"), times("lockstep")) {
            lines.push(format!(
                "{case}: on is {hidden:.1} times remote_apply by default (20 or more: {}), {remedied:.2} times with the remedy (within 20 %: {})",
                met(hidden >= HIDDEN),
                met((1.0 / REMEDIED..=REMEDIED).contains(&remedied)),
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pg: u32, variant: &str, on_ms: f64, remote_apply_ms: f64) -> Row {
        Row {
            case: format!("pg{pg} logical, in a row"),
            variant: variant.to_owned(),
            round: 1,
            pg,
            commits: 1,
            remote_write_ms: 1.0,
            on_ms,
            remote_apply_ms,
            date: "d".to_owned(),
            commit: "c".to_owned(),
        }
    }

    #[test]
    fn majors_are_kept_apart_and_held_against_what_is_expected() {
        let mut results: Results<Row> = Results {
            name: NAME.to_owned(),
            command: String::new(),
            commit: String::new(),
            machine: String::new(),
            date: String::new(),
            rows: vec![row(17, "stock", 400.0, 5.0)],
            series: vec![],
            headline: None,
        };
        keep(
            &mut results,
            vec![row(15, "stock", 90.0, 5.0), row(15, "lockstep", 6.0, 5.5)],
        );
        assert_eq!(results.rows.len(), 3);
        let args = CommitLevelsArgs {
            rounds: 1,
            commits: 1,
            results: PathBuf::new(),
            server: ServerArgs {
                pg: "15".parse().unwrap(),
                extension_stage: None,
            },
        };
        let headline = headline(&args, &results).unwrap();
        assert_eq!((headline.ours, headline.stock), (6.0, 90.0));
        let verdict = verdict(&args, &results);
        assert_eq!(verdict.len(), 1);
        assert!(verdict[0].contains("18.0 times") && verdict[0].contains("more: not met"));
        assert!(verdict[0].contains("within 20 %: met"));
    }
}
