//! Runs a benchmark: turn by turn, with its results file, its plots and its table.

use std::collections::VecDeque;
use std::fs;

use lockstep_lab::machine;

use crate::args::RunArgs;
use crate::audience::Audience;
use crate::benchmark::{Benchmark, Order, Site, TurnOf};
use crate::host::{Host, absolute};
use crate::results::{ResultRow, Results};
use crate::table::Named;
use crate::{BenchError, Result};

/// Runs a benchmark from the first server to the last line of its result.
pub fn run<B: Benchmark>(benchmark: &B, host: &Host, audience: &mut dyn Audience) -> Result<()> {
    let place: &RunArgs = benchmark.as_ref();
    // A file that cannot be used is found out now rather than after a long run.
    let path = Results::<B::Figures>::place(&place.results, B::NAME)?;
    if benchmark.needs_product() {
        host.check_product()?;
    }
    let lab = host.open_lab(
        &place.server,
        benchmark.needs_extension(),
        benchmark.space_mb(),
    )?;
    let mut results = Results::begin(
        &path,
        B::NAME,
        format!("lockstep-lab bench {} {}", B::NAME, benchmark.options()),
        machine::describe(lab.folder(), lab.pinning()),
    )?;
    let mut plan = VecDeque::from(benchmark.plan());
    audience.expect(benchmark.ahead(plan.make_contiguous()));
    audience.say(&format!("{} ({})", results.command, results.machine));
    if let Some(conditions) = benchmark.conditions() {
        audience.say(&conditions);
    }
    let site = Site {
        lab: &lab,
        product: &host.product,
    };
    let mut scene = benchmark.open(site, audience)?;
    let mut rows = Vec::new();
    let mut entered = None;
    while let Some(turn) = plan.pop_front() {
        let case = benchmark.case_name(&turn.case);
        if entered.as_ref() != Some(&case) {
            benchmark.enter(site, &mut scene, &turn.case, audience)?;
            entered = Some(case.clone());
        }
        audience.begin(&benchmark.label(&scene, &turn));
        let figures = benchmark.measure(site, &mut scene, &turn, audience)?;
        audience.end(&benchmark.line(&figures));
        for case in benchmark.counts_for(&turn) {
            rows.push(row(
                &case,
                turn.variant,
                turn.round,
                &figures,
                &results.commit,
            ));
        }
        leave_out(benchmark, &case, turn.round, &rows, &mut plan);
        for case in benchmark.counts_for(&turn) {
            if B::ORDER == Order::SideBySide || is_complete(benchmark, &case, &plan) {
                keep(benchmark, &scene, &case, &rows, &mut results);
                results.save(&path)?;
                if let Some(plot) = benchmark.plot(&scene, &case, &results) {
                    let path = place.results.join(plot.file);
                    fs::write(&path, plot.svg).map_err(BenchError::io("write", &path))?;
                }
            }
        }
    }
    audience.finish();
    drop(scene);
    drop(lab);
    for line in benchmark.report(&results) {
        audience.result(&line);
    }
    audience.result(&format!("written to {}", absolute(&path).display()));
    Ok(())
}

fn row<F: Clone>(
    case: &str,
    variant: impl Named,
    round: u32,
    figures: &F,
    commit: &str,
) -> ResultRow<F> {
    ResultRow {
        case: case.to_owned(),
        variant: variant.name().to_owned(),
        round,
        figures: figures.clone(),
        date: machine::date(),
        commit: commit.to_owned(),
    }
}

/// At the end of a round, leaves out later rounds of its case if there are enough.
fn leave_out<B: Benchmark>(
    benchmark: &B,
    case: &str,
    round: u32,
    rows: &[ResultRow<B::Figures>],
    later: &mut VecDeque<TurnOf<B>>,
) {
    let is_of_case = |turn: &TurnOf<B>| benchmark.case_name(&turn.case) == case;
    let goes_on = later
        .iter()
        .any(|turn| is_of_case(turn) && turn.round == round);
    let rows: Vec<_> = rows.iter().filter(|row| row.case == case).collect();
    if !goes_on && benchmark.is_enough(&rows) {
        later.retain(|turn| !is_of_case(turn));
    }
}

fn is_complete<B: Benchmark>(benchmark: &B, case: &str, later: &VecDeque<TurnOf<B>>) -> bool {
    let counts = |turn: &TurnOf<B>| benchmark.counts_for(turn).iter().any(|name| name == case);
    !later.iter().any(counts)
}

/// Replaces what earlier runs had of a case by what this one has.
fn keep<B: Benchmark>(
    benchmark: &B,
    scene: &B::Scene,
    case: &str,
    rows: &[ResultRow<B::Figures>],
    results: &mut Results<B::Figures>,
) {
    let of_case = rows.iter().filter(|row| row.case == case);
    let series = benchmark.series(scene, case);
    results.replace(case, of_case.cloned().collect(), series);
    results.date = machine::date();
    results.headline = benchmark.headline(results);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::parsed;
    use crate::benchmarks::replay::{ReplayArgs, ReplayFigures};

    fn stock_row(case: &str, seconds: f64) -> ResultRow<ReplayFigures> {
        let text = format!(
            "{{\"case\": \"{case}\", \"variant\": \"stock\", \"round\": 1, \"seconds\": {seconds}, \
             \"cpu_s\": 1, \"startup_cpu_s\": 1, \"records\": 1, \"records_per_s\": 1, \"wal_mb\": 1, \
             \"mb_per_s\": 1, \"data_mb\": 1, \"rss_mb\": 1, \"date\": \"d\", \"commit\": \"c\"}}"
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn rounds_that_are_not_needed_are_left_out() {
        let options = "--rounds 3 --stock-seconds 10 --writes tpcb --placement local,streamed";
        let replay: ReplayArgs = parsed(options);
        let case = "tpcb-cached-local";
        let left = |seconds: f64, taken: usize| {
            let mut plan = VecDeque::from(replay.plan());
            plan.drain(..taken);
            leave_out(&replay, case, 1, &[stock_row(case, seconds)], &mut plan);
            plan.len()
        };
        assert_eq!(left(10.0, 2), 18 - 2, "the round has a variant left");
        assert_eq!(left(10.0, 3), 9, "only the other case is left");
        assert_eq!(left(9.9, 3), 18 - 3);
        assert!(!is_complete(&replay, case, &VecDeque::from(replay.plan())));
    }
}
