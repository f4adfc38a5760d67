//! Which cycle fits into which time: `start + tables × overhead + data / rate ≤ budget`. No I/O.
//!
//! Times are seconds, data is bytes, rates are bytes a second.

use std::time::Duration;

/// What a cycle costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Seconds for each cycle that changes something.
    pub per_cycle: f64,
    /// Seconds for each changed table.
    pub per_table: f64,
    /// Bytes a second; infinite if data costs nothing that could be measured.
    pub rate: f64,
}

/// Yellowbrick's published replication: 1,000 one-row tables in 266.39 s, and 881,083,886,988 bytes in
/// 875.959 s, published as 1,005 MB/s (1 MB is 1,000,000 bytes).
pub const REFERENCE: Costs = Costs {
    per_cycle: 0.0,
    per_table: 0.266_39,
    rate: 1_005e6,
};

/// Bytes of a GB of the reference's formula, in which 1,005 MB/s is 0.981 GB/s: 1,024 MB.
pub const REFERENCE_GB: f64 = 1_024e6;

/// Budgets of the reference in seconds, and the tables without data that it allows them.
pub const REFERENCE_TABLES: [(u64, u64); 4] = [(5, 18), (60, 225), (300, 1_126), (1_800, 6_757)];

/// The reference's row of a budget in seconds, tables, and GB that does not follow from its formula.
pub const REFERENCE_ODD: (u64, u64, f64) = (1_800, 6_000, 885.5);

/// A cycle, one of whose figures may be wanted.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Wanted {
    pub budget: Option<Duration>,
    pub tables: Option<u64>,
    pub data: Option<u64>,
}

/// A cycle that is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    pub budget: f64,
    pub tables: u64,
    pub data: u64,
    /// Seconds for the cycle itself, for the tables, and for the data.
    pub for_cycle: f64,
    pub for_tables: f64,
    pub for_data: f64,
}

impl Plan {
    fn new(costs: Costs, budget: f64, tables: u64, data: u64) -> Self {
        Self {
            budget,
            tables,
            data,
            for_cycle: costs.per_cycle,
            for_tables: costs.tables(tables),
            for_data: costs.data(data),
        }
    }

    /// Seconds that the cycle takes.
    pub fn takes(&self) -> f64 {
        self.for_cycle + self.for_tables + self.for_data
    }

    pub fn fits(&self) -> bool {
        self.takes() <= self.budget
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPlan {
    /// Two figures must be given.
    TooFew,
    /// What is given takes longer than the budget by itself.
    OverBudget,
    /// What is asked for costs nothing: any number fits.
    Unlimited,
}

impl Costs {
    fn tables(self, tables: u64) -> f64 {
        tables as f64 * self.per_table
    }

    fn data(self, bytes: u64) -> f64 {
        bytes as f64 / self.rate
    }

    /// Solves for the figure that is not given; if all are, the plan says whether they fit.
    pub fn solve(self, wanted: Wanted) -> Result<Plan, NoPlan> {
        let budget = wanted.budget.map(|budget| budget.as_secs_f64());
        match (budget, wanted.tables, wanted.data) {
            (Some(budget), Some(tables), Some(data)) => Ok(Plan::new(self, budget, tables, data)),
            (None, Some(tables), Some(data)) => {
                let budget = self.per_cycle + self.tables(tables) + self.data(data);
                Ok(Plan::new(self, budget, tables, data))
            }
            (Some(budget), None, Some(data)) => {
                let tables = whole((budget - self.per_cycle - self.data(data)) / self.per_table)?;
                Ok(fitting(Plan::new(self, budget, tables, data), |plan| {
                    Plan::new(self, budget, plan.tables.saturating_sub(1), data)
                }))
            }
            (Some(budget), Some(tables), None) => {
                let data = whole((budget - self.per_cycle - self.tables(tables)) * self.rate)?;
                // Bytes of a few microseconds at most are left out.
                let step = 1 + data / 1_000_000_000;
                Ok(fitting(Plan::new(self, budget, tables, data), |plan| {
                    Plan::new(self, budget, tables, plan.data.saturating_sub(step))
                }))
            }
            _ => Err(NoPlan::TooFew),
        }
    }

    /// Shortest frequency in seconds that cycles can hold if each changes so many tables and the source makes
    /// so many bytes a second; None if the data comes as fast as it is applied, or faster.
    pub fn shortest(self, tables: u64, made_per_s: f64) -> Option<f64> {
        let left = 1.0 - made_per_s / self.rate;
        (left > 0.0).then(|| (self.per_cycle + self.tables(tables)) / left)
    }
}

/// A number of things that fit.
fn whole(number: f64) -> Result<u64, NoPlan> {
    match number {
        _ if number < 0.0 => Err(NoPlan::OverBudget),
        _ if !number.is_finite() => Err(NoPlan::Unlimited),
        // What is a hair under a whole number by rounding is that number.
        _ => Ok((number * (1.0 + 1e-12)).floor() as u64),
    }
}

/// A solution that rounding has put over its budget by a hair, and one less that fits.
fn fitting(plan: Plan, less: impl Fn(&Plan) -> Plan) -> Plan {
    match plan.fits() {
        true => plan,
        false => less(&plan),
    }
}

/// A cycle that was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    pub seconds: f64,
    pub tables: u64,
    pub bytes: u64,
    /// Seconds from the beginning of the cycle before, whose end its data follows; None if that is not known.
    pub after: Option<f64>,
}

/// Fewest cycles with changes from which costs follow.
pub const FEWEST: usize = 3;

/// What a cycle may cost: in this order the simplest that explains as much as others.
const KINDS: [&[usize]; 7] = [
    &[DATA],
    &[TABLES],
    &[CYCLE],
    &[TABLES, DATA],
    &[CYCLE, DATA],
    &[CYCLE, TABLES],
    &[CYCLE, TABLES, DATA],
];
const CYCLE: usize = 0;
const TABLES: usize = 1;
const DATA: usize = 2;

/// Least time of a cycle that is told from none: they are measured in milliseconds.
const LEAST_SECONDS: f64 = 1e-3;

/// Costs with which the forecasts of what was measured are off least, as a part of each: the least squares of
/// these parts. None is negative, and there are fewer of them than cycles. None if there are too few cycles
/// with changes.
pub fn fit(cycles: &[Measured]) -> Option<Costs> {
    let changed = cycles.iter().filter(|it| it.tables > 0 && it.bytes > 0);
    let changed: Vec<_> = changed.map(parts).collect();
    if changed.len() < FEWEST {
        return None;
    }
    let mut best: Option<([f64; 3], f64)> = None;
    for kind in KINDS.into_iter().filter(|kind| kind.len() < changed.len()) {
        let Some(costs) = least_squares(&changed, kind) else {
            continue;
        };
        let off = off(&changed, costs);
        // A cost more has to explain something.
        if best.is_none_or(|(_, least)| off < least * 0.999 - 1e-12) {
            best = Some((costs, off));
        }
    }
    let ([per_cycle, per_table, per_byte], _) = best?;
    Some(Costs {
        per_cycle,
        per_table,
        rate: 1.0 / per_byte,
    })
}

/// One, tables and bytes of a cycle, as parts of its seconds.
fn parts(cycle: &Measured) -> [f64; 3] {
    let seconds = cycle.seconds.max(LEAST_SECONDS);
    [1.0, cycle.tables as f64, cycle.bytes as f64].map(|number| number / seconds)
}

/// Sum of the squares by which forecasts are off, as parts of what was measured.
fn off(cycles: &[[f64; 3]], costs: [f64; 3]) -> f64 {
    let forecast = |parts: &[f64; 3]| -> f64 {
        let each = parts.iter().zip(costs);
        each.map(|(part, cost)| part * cost).sum()
    };
    let squares = cycles.iter().map(|parts| (forecast(parts) - 1.0).powi(2));
    squares.sum()
}

/// The costs of a kind that are off least; None if they are not determined, or one is negative.
fn least_squares(cycles: &[[f64; 3]], kind: &[usize]) -> Option<[f64; 3]> {
    let of = |parts: &[f64; 3], which: usize| parts.get(which).copied().unwrap_or_default();
    // Bytes and tables differ by many orders of magnitude.
    let scale = |which: usize| cycles.iter().map(|it| of(it, which)).fold(0.0, f64::max);
    let scales: Vec<_> = kind.iter().map(|which| scale(*which)).collect();
    let rows: Vec<Vec<f64>> = cycles
        .iter()
        .map(|it| {
            let scaled = kind.iter().zip(&scales);
            scaled
                .map(|(which, scale)| of(it, *which) / scale)
                .collect()
        })
        .collect();
    let dot = |one: usize, other: Option<usize>| -> f64 {
        let value = |row: &Vec<f64>, at: usize| row.get(at).copied().unwrap_or_default();
        let right = |row: &Vec<f64>| other.map_or(1.0, |at| value(row, at));
        rows.iter().map(|row| value(row, one) * right(row)).sum()
    };
    let size = kind.len();
    let system: Vec<Vec<f64>> = (0..size)
        .map(|one| {
            let left = (0..size).map(|other| dot(one, Some(other)));
            left.chain([dot(one, None)]).collect()
        })
        .collect();
    let solved = solved(system)?;
    let mut costs = [0.0; 3];
    for ((which, scale), value) in kind.iter().zip(&scales).zip(solved) {
        *costs.get_mut(*which)? = value / scale;
    }
    let is_possible = |cost: &f64| cost.is_finite() && *cost >= 0.0;
    costs.iter().all(is_possible).then_some(costs)
}

/// Solves equations, each with its right side at its end, by elimination; None if they do not determine it.
fn solved(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    for column in 0..rows.len() {
        let size = |row: &Vec<f64>| row.get(column).map_or(0.0, |value| value.abs());
        let below = rows.iter().enumerate().skip(column);
        let (largest, _) = below.max_by(|one, other| size(one.1).total_cmp(&size(other.1)))?;
        rows.swap(column, largest);
        let pivot = rows.get(column)?.clone();
        let divisor = *pivot.get(column)?;
        if divisor.abs() < 1e-9 {
            return None;
        }
        for (place, row) in rows.iter_mut().enumerate() {
            let factor = match place == column {
                true => 1.0 - 1.0 / divisor,
                false => row.get(column)? / divisor,
            };
            for (value, by) in row.iter_mut().zip(&pivot) {
                *value -= factor * by;
            }
        }
    }
    rows.iter().map(|row| row.last().copied()).collect()
}

/// How a replica's measured cycles get on with its frequency.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Most tables that a cycle changed.
    pub tables: u64,
    /// Most bytes a second that the source made, over a period or longer.
    pub made_per_s: f64,
    /// Seconds that the longest cycle took.
    pub longest: f64,
    /// Cycles that took longer than the frequency.
    pub overruns: usize,
    /// Shortest frequency in seconds that holds by the costs, and that no cycle overran. None if the data
    /// comes as fast as it is applied, or faster.
    pub shortest: Option<f64>,
    /// The frequency holds: by the costs, and each cycle has.
    pub holds: bool,
}

impl Schedule {
    /// What cycles of a replica with so many seconds between their beginnings tell; None if there are none.
    pub fn of(costs: Costs, every: f64, cycles: &[Measured]) -> Option<Self> {
        let longest = cycles.iter().map(|it| it.seconds).reduce(f64::max)?;
        // A cycle that somebody asked for early has less than a period's data.
        let made =
            |it: &Measured| it.bytes as f64 / it.after.map_or(every, |after| after.max(every));
        let made_per_s = cycles.iter().map(made).fold(0.0, f64::max);
        let tables = cycles.iter().map(|it| it.tables).max()?;
        let overruns = cycles.iter().filter(|it| it.seconds > every).count();
        let shortest = costs.shortest(tables, made_per_s);
        let shortest = shortest.map(|shortest| shortest.max(longest));
        Some(Self {
            tables,
            made_per_s,
            longest,
            overruns,
            shortest,
            holds: shortest.is_some_and(|shortest| shortest <= every),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    const ROUND: Costs = Costs {
        per_cycle: 0.0,
        per_table: 0.5,
        rate: 100.0,
    };

    #[test]
    fn the_figure_that_is_not_given_is_solved_for() {
        let wanted = |budget, tables, data| Wanted {
            budget,
            tables,
            data,
        };
        let solve = |budget, tables, data| {
            let plan = ROUND.solve(wanted(budget, tables, data));
            plan.map(|it| (it.budget, it.tables, it.data, it.fits()))
        };
        assert_eq!(solve(None, Some(4), Some(300)), Ok((5.0, 4, 300, true)));
        assert_eq!(solve(seconds(5), None, Some(300)), Ok((5.0, 4, 300, true)));
        assert_eq!(solve(seconds(5), Some(4), None), Ok((5.0, 4, 300, true)));
        assert_eq!(
            solve(seconds(4), Some(4), Some(300)),
            Ok((4.0, 4, 300, false))
        );
        assert_eq!(solve(seconds(1), None, Some(300)), Err(NoPlan::OverBudget));
        assert_eq!(solve(seconds(1), Some(4), None), Err(NoPlan::OverBudget));
        assert_eq!(solve(seconds(1), None, None), Err(NoPlan::TooFew));
        let free = Costs {
            rate: f64::INFINITY,
            ..ROUND
        };
        assert_eq!(
            free.solve(wanted(seconds(5), Some(4), None)),
            Err(NoPlan::Unlimited)
        );
    }

    #[test]
    fn the_references_table_follows_from_its_formula_and_one_row_does_not() {
        for (budget, tables) in REFERENCE_TABLES {
            let wanted = Wanted {
                budget: seconds(budget),
                data: Some(0),
                ..Wanted::default()
            };
            assert_eq!(
                REFERENCE.solve(wanted).unwrap().tables,
                tables,
                "{budget} s"
            );
        }
        let (budget, tables, published) = REFERENCE_ODD;
        let wanted = Wanted {
            budget: seconds(budget),
            tables: Some(tables),
            data: None,
        };
        let gb = REFERENCE.solve(wanted).unwrap().data as f64 / REFERENCE_GB;
        assert!((gb - 197.9).abs() < 0.1 && published > 4.0 * gb, "{gb}");
    }

    #[test]
    fn costs_follow_from_what_was_measured() {
        let cycle = |tables: u64, bytes: u64| Measured {
            seconds: tables as f64 * 0.5 + bytes as f64 / 100.0,
            tables,
            bytes,
            after: None,
        };
        let cycles = [cycle(1, 900), cycle(10, 20), cycle(3, 300), cycle(0, 0)];
        let costs = fit(&cycles).unwrap();
        assert!((costs.per_table - 0.5).abs() < 1e-6, "{costs:?}");
        assert!((costs.rate - 100.0).abs() < 1e-3, "{costs:?}");
        assert_eq!(fit(&cycles[1..]), None, "two have changes");
        // Always the same cycle: all of its time is the data's.
        let costs = fit(&[cycle(2, 100), cycle(2, 100), cycle(2, 100)]).unwrap();
        assert!(
            costs.per_table == 0.0 && (costs.rate - 50.0).abs() < 1e-6,
            "{costs:?}"
        );
        // More data took less time: it costs nothing.
        let odd = |tables, bytes, seconds| Measured {
            seconds,
            tables,
            bytes,
            after: None,
        };
        let costs = fit(&[odd(4, 1, 4.0), odd(4, 100, 3.9), odd(1, 50, 1.0)]).unwrap();
        assert!(
            costs.rate.is_infinite() && costs.per_table > 0.9,
            "{costs:?}"
        );
    }

    /// Forecasts of small cycles were wrong by what each cycle costs, which the formula did not know.
    #[test]
    fn forecasts_are_near_what_comes_next_whatever_the_size() {
        let truth = Costs {
            per_cycle: 0.02,
            per_table: 0.000_4,
            rate: 3e7,
        };
        let random = &mut fastrand::Rng::with_seed(7);
        // Each takes up to 5 % more or less, and is measured in milliseconds.
        let mut cycle = |tables: u64, bytes: u64| {
            let seconds = truth.per_cycle + truth.tables(tables) + truth.data(bytes);
            let noise = 0.95 + 0.1 * random.f64();
            Measured {
                seconds: (seconds * noise * 1e3).floor() / 1e3,
                tables,
                bytes,
                after: None,
            }
        };
        let kinds = [(1, 300), (1_000, 90_000), (3, 40_000_000), (200, 5_000_000)];
        let mut past = Vec::new();
        for round in 0..20 {
            for (tables, bytes) in kinds {
                let next = cycle(tables, bytes + round);
                if let Some(costs) = fit(&past).filter(|_| round > 1) {
                    let wanted = Wanted {
                        budget: None,
                        tables: Some(tables),
                        data: Some(bytes),
                    };
                    let forecast = costs.solve(wanted).unwrap().budget;
                    let off = (forecast - next.seconds).abs() / next.seconds;
                    assert!(off < 0.15, "{round} {next:?} {forecast} {costs:?}");
                }
                past.push(next);
            }
        }
        let costs = fit(&past).unwrap();
        assert!(
            (costs.per_cycle / truth.per_cycle - 1.0).abs() < 0.05,
            "{costs:?}"
        );
    }

    #[test]
    fn a_cycles_own_cost_is_part_of_each_plan() {
        let costs = Costs {
            per_cycle: 2.0,
            ..ROUND
        };
        let solve = |budget, tables, data| {
            let plan = costs.solve(Wanted {
                budget,
                tables,
                data,
            });
            plan.map(|it| (it.budget, it.tables, it.data, it.takes()))
        };
        assert_eq!(solve(None, Some(4), Some(300)), Ok((7.0, 4, 300, 7.0)));
        assert_eq!(solve(seconds(7), None, Some(300)), Ok((7.0, 4, 300, 7.0)));
        assert_eq!(solve(seconds(7), Some(4), None), Ok((7.0, 4, 300, 7.0)));
        assert_eq!(solve(seconds(1), Some(0), None), Err(NoPlan::OverBudget));
        assert_eq!(costs.shortest(4, 50.0), Some(8.0));
    }

    /// Rounding gave a byte too much, for 100 tables in an hour for example.
    #[test]
    fn what_is_solved_for_fits() {
        for tables in [0, 1, 3, 7, 100, 999, 6757] {
            for budget in [1800, 3600, 7 * 3600] {
                let wanted = |tables, data| Wanted {
                    budget: seconds(budget),
                    tables,
                    data,
                };
                let plan = REFERENCE.solve(wanted(Some(tables), None)).unwrap();
                assert!(plan.fits(), "{plan:?}");
                assert!(plan.takes() > plan.budget - 1e-3, "{plan:?}");
                let data = tables * 1_000_000_007;
                let plan = REFERENCE.solve(wanted(None, Some(data)));
                assert!(plan.is_err() || plan.unwrap().fits(), "{plan:?}");
            }
        }
    }

    #[test]
    fn a_schedule_holds_if_a_cycle_is_done_before_the_next() {
        assert_eq!(ROUND.shortest(4, 50.0), Some(4.0));
        let at_four = ROUND.solve(Wanted {
            budget: seconds(4),
            tables: Some(4),
            data: Some(200),
        });
        assert!(at_four.unwrap().fits());
        assert_eq!(ROUND.shortest(4, 100.0), None);
    }

    /// The mean of the cycles said that a schedule holds which one in three had overrun.
    #[test]
    fn a_schedule_is_judged_by_its_worst_cycles() {
        let cycle = |seconds: f64, bytes: u64, after: f64| Measured {
            seconds,
            tables: 2,
            bytes,
            after: Some(after),
        };
        let calm = [cycle(3.0, 200, 10.0), cycle(3.0, 200, 10.0)];
        let found = Schedule::of(ROUND, 10.0, &calm).unwrap();
        assert!(found.holds && found.overruns == 0, "{found:?}");
        assert_eq!(
            (found.tables, found.made_per_s, found.longest),
            (2, 20.0, 3.0)
        );
        assert_eq!(found.shortest, Some(3.0));
        // One waited for a lock.
        let overrun = [calm[0], calm[1], cycle(12.0, 200, 10.0)];
        let found = Schedule::of(ROUND, 10.0, &overrun).unwrap();
        assert!(!found.holds, "{found:?}");
        assert_eq!((found.overruns, found.shortest), (1, Some(12.0)));
        // One had much more data than the others, as fast as it can be applied.
        let burst = [calm[0], calm[1], cycle(9.0, 990, 10.0)];
        let found = Schedule::of(ROUND, 10.0, &burst).unwrap();
        assert!(!found.holds && found.overruns == 0, "{found:?}");
        // What came while no process ran came in a longer time.
        let outage = [calm[0], calm[1], cycle(9.0, 990, 100.0)];
        let found = Schedule::of(ROUND, 10.0, &outage).unwrap();
        assert!(found.holds && found.made_per_s == 20.0, "{found:?}");
        // A cycle right after another has not a period's data.
        let forced = [calm[0], calm[1], cycle(1.0, 50, 0.1)];
        assert_eq!(Schedule::of(ROUND, 10.0, &forced).unwrap().made_per_s, 20.0);
        assert_eq!(Schedule::of(ROUND, 10.0, &[]), None);
    }
}
