//! Runs a benchmark: turn by turn, with its results file, its plots and its table.

use std::fs;

use lockstep_lab::machine;

use crate::audience::Audience;
use crate::benchmark::{Benchmark, Order, Site, TurnOf};
use crate::host::{Host, absolute};
use crate::results::{ResultRow, Results};
use crate::table::Named;
use crate::{BenchError, Result};

/// Runs a benchmark from the first server to the last line of its result.
pub fn run<B: Benchmark>(benchmark: &B, host: &Host, audience: &mut dyn Audience) -> Result<()> {
    let place = benchmark.place();
    // A file that cannot be used is found out now rather than after a long run.
    let path = Results::<B::Figures>::place(&place.results, B::NAME)?;
    let lab = host.open_lab(
        &place.server,
        benchmark.needs_extension(),
        benchmark.space_mb(),
    )?;
    let mut results = Results::begin(
        &path,
        B::NAME,
        format!("lockstep bench {} {}", B::NAME, benchmark.options()),
        machine::describe(lab.folder(), lab.pinning()),
    )?;
    let plan = benchmark.plan();
    audience.expect(benchmark.ahead(&plan));
    audience.say(&format!("{} ({})", results.command, results.machine));
    if let Some(conditions) = benchmark.conditions() {
        audience.say(&conditions);
    }
    let site = Site {
        lab: &lab,
        program: &host.program,
    };
    let mut scene = benchmark.open(site, audience)?;
    let mut rows = Vec::new();
    let mut entered = None;
    for (index, turn) in plan.iter().enumerate() {
        let case = benchmark.case_name(&turn.case);
        if entered.as_ref() != Some(&case) {
            benchmark.enter(site, &mut scene, &turn.case, audience)?;
            entered = Some(case);
        }
        audience.begin(&benchmark.label(&scene, turn));
        let figures = benchmark.measure(site, &mut scene, turn, audience)?;
        audience.end(&benchmark.line(&figures));
        let later = plan.get(index + 1..).unwrap_or_default();
        for case in benchmark.counts_for(turn) {
            rows.push(row(
                &case,
                turn.variant,
                turn.round,
                &figures,
                &results.commit,
            ));
            if B::ORDER == Order::SideBySide || is_complete(benchmark, &case, later) {
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

fn is_complete<B: Benchmark>(benchmark: &B, case: &str, later: &[TurnOf<B>]) -> bool {
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
