//! Which cycle fits into which time: `start + tables × overhead + full buffers × their cost + data / rate ≤
//! budget`. No I/O.
//!
//! Times are seconds, data is bytes, rates are bytes a second.
//!
//! `full` is what the target's COPY takes for its buffer: it gathers up to 1,000 rows of a table, and notes
//! the table's row type once for each, among those that it has noted before
//! (`ResourceOwnerRememberTupleDesc`). So the buffer costs with the square of the rows in it, about 0.8 ms
//! if it is full, however many rows follow.

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
    /// Seconds for each changed table that has a full buffer of rows.
    pub per_full: f64,
    /// Bytes of a table's rows that fill a buffer; infinite if that is not known.
    pub full_bytes: f64,
}

/// Rows that fill a buffer of COPY.
const FULL_ROWS: f64 = 1_000.0;

/// Yellowbrick's published replication: 1,000 one-row tables in 266.39 s, and 881,083,886,988 bytes in
/// 875.959 s, published as 1,005 MB/s (1 MB is 1,000,000 bytes).
pub const REFERENCE: Costs = Costs {
    per_cycle: 0.0,
    per_table: 0.266_39,
    rate: 1_005e6,
    per_full: 0.0,
    full_bytes: f64::INFINITY,
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
            for_tables: costs.tables(tables, data as f64),
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
    /// Seconds for so many tables, over which data is spread evenly.
    fn tables(self, tables: u64, data: f64) -> f64 {
        tables as f64 * self.per_table + full(tables, data, self.full_bytes) * self.per_full
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
                let plan = Plan::new(self, 0.0, tables, data);
                let budget = plan.takes();
                Ok(Plan { budget, ..plan })
            }
            (Some(budget), None, Some(data)) => {
                let most = whole((budget - self.per_cycle - self.data(data)) / self.per_table)?;
                let plan = |tables| Plan::new(self, budget, tables, data);
                // Beyond so many tables, one more takes more than it takes from the others' buffers.
                let filled = data as f64 / self.full_bytes;
                let turn = filled * (self.per_full / self.per_table).sqrt().max(1.0);
                let turn = (turn.ceil() as u64).min(most);
                Ok(plan(match plan(turn).fits() {
                    true => largest(turn, most, |tables| plan(tables).fits()),
                    false => largest(0, (filled as u64).min(most), |tables| plan(tables).fits()),
                }))
            }
            (Some(budget), Some(tables), None) => {
                let left = budget - self.per_cycle - self.tables(tables, 0.0);
                let most = whole(left * self.rate)?;
                let plan = |data| Plan::new(self, budget, tables, data);
                Ok(plan(largest(0, most, |data| plan(data).fits())))
            }
            _ => Err(NoPlan::TooFew),
        }
    }

    /// Shortest frequency in seconds that cycles can hold if each changes so many tables and the source makes
    /// so many bytes a second; None if the data comes as fast as it is applied, or faster.
    pub fn shortest(self, tables: u64, made_per_s: f64) -> Option<f64> {
        let left = 1.0 - made_per_s / self.rate;
        let takes = |data: f64| (self.per_cycle + self.tables(tables, data)) / left;
        // With full buffers any longer frequency holds, too; each step comes nearer to the shortest.
        let steps = 0..STEPS;
        (left > 0.0).then(|| steps.fold(takes(f64::MAX), |every, _| takes(made_per_s * every)))
    }
}

/// Steps to the shortest frequency.
const STEPS: u32 = 50;

/// Full buffers that would take as long as those of so many tables, over which data is spread evenly.
fn full(tables: u64, data: f64, full_bytes: f64) -> f64 {
    let tables = tables as f64;
    match tables > 0.0 {
        true => tables * (data / tables / full_bytes).min(1.0).powi(2),
        false => 0.0,
    }
}

/// The largest number up to `most` that fits, if `least` does and each fits that is below one that does.
fn largest(mut least: u64, mut most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    while least < most {
        let middle = least + (most - least).div_ceil(2);
        match fits(middle) {
            true => least = middle,
            false => most = middle - 1,
        }
    }
    least
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

/// A cycle that was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    pub seconds: f64,
    pub tables: u64,
    pub bytes: u64,
    pub rows: u64,
    /// Seconds from the beginning of the cycle before, whose end its data follows; None if that is not known.
    pub after: Option<f64>,
}

/// Fewest cycles with changes from which costs follow.
pub const FEWEST: usize = 3;

/// What a cycle may cost: in this order the simplest that explains as much as others.
const KINDS: [&[usize]; 9] = [
    &[DATA],
    &[TABLES],
    &[CYCLE],
    &[TABLES, DATA],
    &[CYCLE, DATA],
    &[CYCLE, TABLES],
    &[CYCLE, TABLES, DATA],
    &[TABLES, FULL, DATA],
    &[CYCLE, TABLES, FULL, DATA],
];
const CYCLE: usize = 0;
const TABLES: usize = 1;
const DATA: usize = 2;
const FULL: usize = 3;

/// Least time of a cycle that is told from none: they are measured in milliseconds.
const LEAST_SECONDS: f64 = 1e-3;

/// Costs with which the forecasts of what was measured are off least, as a part of each: the least squares of
/// these parts. None is negative, and there are fewer of them than cycles. None if there are too few cycles
/// with changes.
pub fn fit(cycles: &[Measured]) -> Option<Costs> {
    let changed = cycles.iter().filter(|it| it.tables > 0 && it.bytes > 0);
    let sums = changed.clone().map(|it| (it.bytes as f64, it.rows as f64));
    let (bytes, rows) = sums.fold((0.0, 0.0), |all, it| (all.0 + it.0, all.1 + it.1));
    let full_bytes = FULL_ROWS * bytes / rows;
    let changed: Vec<_> = changed.map(|it| parts(it, full_bytes)).collect();
    if changed.len() < FEWEST {
        return None;
    }
    let costs = best(&changed)?;
    // What has waited for something, as the first cycle after a start does, tells nothing of the next.
    let (usual, waited): (Vec<_>, Vec<_>) =
        (changed.iter()).partition(|parts| forecast(parts, costs) > WAITED);
    let is_rare = waited.len() * 4 <= changed.len() && usual.len() >= FEWEST;
    let again = best(&usual).filter(|_| is_rare);
    let [per_cycle, per_table, per_byte, per_full] = again.unwrap_or(costs);
    Some(Costs {
        per_cycle,
        per_table,
        rate: 1.0 / per_byte,
        per_full,
        full_bytes,
    })
}

/// Part of the time that a cycle took below which its forecast says that it has waited.
const WAITED: f64 = 2.0 / 3.0;

/// The costs of the kind that is off least.
fn best(cycles: &[[f64; 4]]) -> Option<[f64; 4]> {
    let mut best: Option<([f64; 4], f64)> = None;
    for kind in KINDS.into_iter().filter(|kind| kind.len() < cycles.len()) {
        let Some(costs) = least_squares(cycles, kind) else {
            continue;
        };
        let off = off(cycles, costs);
        // A cost more has to explain something.
        if best.is_none_or(|(_, least)| off < least * 0.999 - 1e-12) {
            best = Some((costs, off));
        }
    }
    best.map(|(costs, _)| costs)
}

/// What a cycle is forecast to take, as a part of what it took.
fn forecast(parts: &[f64; 4], costs: [f64; 4]) -> f64 {
    let each = parts.iter().zip(costs);
    each.map(|(part, cost)| part * cost).sum()
}

/// One, tables, bytes and full buffers of a cycle, as parts of its seconds.
fn parts(cycle: &Measured, full_bytes: f64) -> [f64; 4] {
    let (seconds, bytes) = (cycle.seconds.max(LEAST_SECONDS), cycle.bytes as f64);
    let full = full(cycle.tables, bytes, full_bytes);
    [1.0, cycle.tables as f64, bytes, full].map(|number| number / seconds)
}

/// Sum of the squares by which forecasts are off, as parts of what was measured.
fn off(cycles: &[[f64; 4]], costs: [f64; 4]) -> f64 {
    let parts = cycles.iter().map(|parts| forecast(parts, costs));
    parts.map(|part| (part - 1.0).powi(2)).sum()
}

/// The costs of a kind that are off least; None if they are not determined, or one is negative.
fn least_squares(cycles: &[[f64; 4]], kind: &[usize]) -> Option<[f64; 4]> {
    let of = |parts: &[f64; 4], which: usize| parts.get(which).copied().unwrap_or_default();
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
    let mut costs = [0.0; 4];
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
        ..REFERENCE
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
            rows: bytes / 100,
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
            rows: bytes / 100,
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
            ..REFERENCE
        };
        let random = &mut fastrand::Rng::with_seed(7);
        // Each takes up to 5 % more or less, and is measured in milliseconds.
        let mut cycle = |tables: u64, bytes: u64| {
            let seconds = truth.per_cycle + truth.tables(tables, 0.0) + truth.data(bytes);
            let noise = 0.95 + 0.1 * random.f64();
            Measured {
                seconds: (seconds * noise * 1e3).floor() / 1e3,
                tables,
                bytes,
                rows: bytes / 100,
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

    /// Forecasts of hundreds of tables with a thousand rows each were a third too short: what is measured
    /// here are the times in milliseconds of five kinds of cycle.
    #[test]
    fn full_buffers_are_part_of_each_forecast() {
        let kinds = [
            (1_000, 50, [594, 193, 195, 191]),
            (100, 5_000, [677, 619, 644, 611]),
            (500, 200, [211, 201, 202, 190]),
            (1, 500_000, [559, 582, 528, 538]),
            (250, 1_000, [526, 530, 499, 500]),
        ];
        let cycle = |(tables, rows, took): (u64, u64, [u32; 4]), round: usize| Measured {
            seconds: f64::from(took[round]) / 1e3,
            tables,
            bytes: 125 * rows * tables,
            rows: rows * tables,
            after: None,
        };
        let past = (0..3).flat_map(|round| kinds.map(|kind| cycle(kind, round)));
        let costs = fit(&past.collect::<Vec<_>>()).unwrap();
        assert!((costs.per_full - 0.8e-3).abs() < 0.1e-3, "{costs:?}");
        for kind in kinds {
            let next = cycle(kind, 3);
            let forecast = costs.solve(Wanted {
                budget: None,
                tables: Some(next.tables),
                data: Some(next.bytes),
            });
            let off = (forecast.unwrap().budget - next.seconds).abs() / next.seconds;
            assert!(off < 0.1, "{next:?} {off} {costs:?}");
        }
    }

    #[test]
    fn as_many_tables_fit_as_their_buffers_let() {
        let costs = Costs {
            per_full: 2.0,
            full_bytes: 100.0,
            ..ROUND
        };
        for (budget, data) in [(1, 0), (5, 300), (8, 300), (9, 300), (12, 500), (30, 1_000)] {
            let fits = |tables| {
                let plan = costs.solve(Wanted {
                    budget: seconds(budget),
                    tables: Some(tables),
                    data: Some(data),
                });
                plan.unwrap().fits()
            };
            let wanted = Wanted {
                budget: seconds(budget),
                tables: None,
                data: Some(data),
            };
            let most = (0..1_000).filter(|tables| fits(*tables)).max();
            assert_eq!(
                costs.solve(wanted).map(|it| it.tables).ok(),
                most,
                "{budget} s"
            );
        }
        // A frequency that holds does, and a hair less does not.
        let every = costs.shortest(4, 20.0).unwrap();
        let holds = |every: f64| costs.tables(4, 20.0 * every) + 20.0 * every / 100.0 <= every;
        assert!(holds(every * 1.000_001) && !holds(every * 0.999), "{every}");
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
            rows: bytes / 100,
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
