//! A table of costs from times that were measured.
//!
//! First the parts of a record's cost, from the times that one process of stock PostgreSQL took, and from
//! those that reading alone took: the sums come as near to them as they can. A few recoveries cannot tell
//! all parts apart, so the parts also stay near the table that is there before. Then what Lockstep adds
//! and spares: one factor for all work of the pipeline, and the share of remote memory's costs that
//! looking ahead hides, with which the simulated speedups are nearest to the measured ones.

use crate::costs::{Costs, PARTS, Part, Parts};
use crate::sample::Sample;

/// How much the table before weighs against one measurement.
const PRIOR: f64 = 0.01;

/// Rounds of the descent, each over all parts.
const ROUNDS: usize = 20_000;

/// The first step of the search for the pipeline's factor, a power of two, and for the hidden share; how
/// often both are halved; and how far the factor may go.
const FIRST_STEP: [f64; 2] = [1.0, 0.25];
const HALVINGS: u32 = 4;
const MOST_DOUBLINGS: f64 = 4.0;

/// What was measured of some WAL.
#[derive(Debug, Clone, Copy)]
pub struct MeasuredSample<'a> {
    pub sample: &'a Sample,
    /// One process of stock PostgreSQL.
    pub seconds: f64,
    /// Reading alone.
    pub read_seconds: Option<f64>,
    /// How many times as fast one process was that looks ahead.
    pub look_ahead: Option<f64>,
    /// Helpers, and how many times as fast it was with them.
    pub speedup: Option<(usize, f64)>,
}

/// A table near `before` with which what is known is predicted best.
pub fn fit(before: &Costs, known: &[MeasuredSample]) -> Costs {
    let mut times: Vec<_> = known
        .iter()
        .map(|one| (one.sample.parts, one.seconds * 1e9))
        .collect();
    let reading = known.iter().filter_map(|one| {
        let seconds = one.read_seconds?;
        Some((of_reading(&one.sample.parts), seconds * 1e9))
    });
    times.extend(reading);
    let costs = before
        .clone()
        .with_parts(fit_parts(&before.parts(), &times));
    fit_pipeline(&costs, known)
}

/// What is done to read records, whoever executes them. WAL that is replayed does not tell it from redo: a
/// record with more bytes takes longer in both.
fn of_reading(parts: &Parts) -> Parts {
    let mut reading = [0.0; PARTS];
    for part in [Part::Record, Part::Byte].map(|part| part as usize) {
        if let (Some(place), Some(count)) = (reading.get_mut(part), parts.get(part)) {
            *place = *count;
        }
    }
    reading
}

/// The pipeline's part of a table: the factor of its work as a power of two, and the hidden share.
type Point = [f64; 2];

fn at(costs: &Costs, [doublings, hidden]: Point) -> Costs {
    let mut costs = costs.clone();
    costs.pipeline = costs.pipeline.scaled(doublings.exp2());
    costs.pipeline.hidden = hidden;
    costs
}

/// Steps along each axis, smaller and smaller ones, for as long as they lead down.
fn fit_pipeline(costs: &Costs, known: &[MeasuredSample]) -> Costs {
    let begin = [0.0, costs.pipeline.hidden];
    let distance = |point: Point| {
        let prior = ((point[0] * 2_f64.ln()).powi(2) + (point[1] - begin[1]).powi(2)) * PRIOR;
        prior + off_speedups(&at(costs, point), known)
    };
    let mut best = (distance(begin), begin);
    for halving in 0..HALVINGS {
        let scale = f64::from(halving).exp2().recip();
        let [factor, hidden] = FIRST_STEP.map(|step| step * scale);
        let steps = [[factor, 0.0], [-factor, 0.0], [0.0, hidden], [0.0, -hidden]];
        loop {
            let reached = best.0;
            for step in steps {
                let point = [
                    (best.1[0] + step[0]).clamp(-MOST_DOUBLINGS, MOST_DOUBLINGS),
                    (best.1[1] + step[1]).clamp(0.0, 1.0),
                ];
                let found = match point == best.1 {
                    true => continue,
                    false => distance(point),
                };
                if found < best.0 {
                    best = (found, point);
                }
            }
            if best.0 >= reached {
                break;
            }
        }
    }
    at(costs, best.1)
}

/// Squares of the logarithms by which simulated speedups are off, summed.
fn off_speedups(costs: &Costs, known: &[MeasuredSample]) -> f64 {
    let mut sum = 0.0;
    for one in known {
        let look_ahead = one.look_ahead.map(|speedup| {
            let simulated = one.sample.look_ahead(costs);
            (simulated / speedup).ln().powi(2)
        });
        let speedup = one.speedup.map(|(helpers, speedup)| {
            let simulated = one.sample.speedup(costs, helpers);
            (simulated / speedup).ln().powi(2)
        });
        sum += look_ahead.unwrap_or_default() + speedup.unwrap_or_default();
    }
    sum
}

/// Parts with which the sums are nearest to the times, near `before`, and none below 0.
fn fit_parts(before: &Parts, known: &[(Parts, f64)]) -> Parts {
    let sum = |parts: &Parts| -> f64 { parts.iter().zip(before).map(|(n, ns)| n * ns).sum() };
    // First the machine's speed, with which the table before is right on average.
    let logs = known.iter().map(|(parts, ns)| (ns / sum(parts)).ln());
    let speed = (logs.sum::<f64>() / known.len().max(1) as f64).exp();
    // Then factors of the parts: shares of each measurement's time that they explain.
    let shares: Vec<Parts> = known
        .iter()
        .map(|(parts, ns)| {
            let mut shares = [0.0; PARTS];
            for ((share, count), cost) in shares.iter_mut().zip(parts).zip(before) {
                *share = count * cost * speed / ns;
            }
            shares
        })
        .collect();
    let mut factors = [1.0; PARTS];
    for _ in 0..ROUNDS {
        for part in 0..PARTS {
            descend(part, &mut factors, &shares);
        }
    }
    let mut parts = [0.0; PARTS];
    for ((part, factor), cost) in parts.iter_mut().zip(factors).zip(before) {
        *part = cost * factor * speed;
    }
    parts
}

/// Sets one factor to its best, the others as they are.
fn descend(part: usize, factors: &mut Parts, shares: &[Parts]) {
    let (mut above, mut below) = (PRIOR, PRIOR);
    let old = factors.get(part).copied().unwrap_or_default();
    for shares in shares {
        let share = shares.get(part).copied().unwrap_or_default();
        let all: f64 = shares.iter().zip(factors.iter()).map(|(n, f)| n * f).sum();
        above += share * (1.0 - (all - share * old));
        below += share * share;
    }
    if let Some(factor) = factors.get_mut(part) {
        *factor = (above / below).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_costs_are_found_again() {
        let before = Costs::estimates().unwrap().parts();
        let mut random = fastrand::Rng::with_seed(1);
        // A machine twice as slow, on which two parts are off.
        let mut truth = before.map(|cost| cost * 2.0);
        truth[2] *= 1.5;
        truth[10] *= 0.5;
        let time = |parts: &Parts| -> f64 { parts.iter().zip(truth).map(|(n, ns)| n * ns).sum() };
        let mut measured = || {
            let parts = before.map(|cost| random.f64() * 1e6 * 400.0 / cost.max(1.0));
            (parts, time(&parts))
        };
        let known: Vec<_> = (0..12).map(|_| measured()).collect();
        let found = fit_parts(&before, &known);
        for _ in 0..20 {
            let (parts, ns) = measured();
            let predicted: f64 = parts.iter().zip(found).map(|(n, ns)| n * ns).sum();
            assert!((predicted / ns - 1.0).abs() < 0.05, "{predicted} {ns}");
        }
        // Bytes that are read and bytes that redo writes come together: only reading alone parts them.
        let together: Vec<_> = known
            .iter()
            .map(|(parts, _)| {
                let mut parts = *parts;
                parts[Part::Data as usize] = parts[Part::Byte as usize];
                parts
            })
            .collect();
        let mut truth = before;
        truth[Part::Byte as usize] *= 0.5;
        truth[Part::Data as usize] *= 2.0;
        let time = |parts: &Parts| -> f64 { parts.iter().zip(truth).map(|(n, ns)| n * ns).sum() };
        let all = together.iter().map(|parts| (*parts, time(parts)));
        let reading = together.iter().map(of_reading);
        let reading = reading.map(|parts| (parts, time(&parts)));
        let off =
            |found: Parts| (found[Part::Byte as usize] / truth[Part::Byte as usize] - 1.0).abs();
        let without = fit_parts(&before, &all.clone().collect::<Vec<_>>());
        let with = fit_parts(&before, &all.chain(reading).collect::<Vec<_>>());
        assert!(off(with) < 0.1, "{with:?}");
        assert!(off(without) > 0.3, "{without:?}");
        // One measurement only tells the machine's speed.
        let (parts, ns) = known[0];
        let one = fit_parts(&before, &[(parts, ns)]);
        let predicted: f64 = parts.iter().zip(one).map(|(n, ns)| n * ns).sum();
        assert!((predicted / ns - 1.0).abs() < 0.02);
        assert!(found.iter().chain(&one).all(|ns| *ns >= 0.0));
    }
}
