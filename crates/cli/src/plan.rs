//! `lockstep plan`: which cycle of a replica fits into which time.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lockstep_client::Conninfo;
use lockstep_replica::budget::{
    Costs, FEWEST, Measured, NoPlan, Plan, REFERENCE, REFERENCE_GB, REFERENCE_ODD,
    REFERENCE_TABLES, Schedule, Wanted, fit,
};
use lockstep_replica::error::ReplicaError;
use lockstep_replica::names::check_replica_name;
use lockstep_replica::state::{Cycle, ReplicaState};
use lockstep_service::exit::Failure;
use lockstep_service::words::output::{self, Output};
use lockstep_service::words::{amount, brief, figures, lines, span};
use serde_json::{Value, json};

/// Newest cycles from which costs follow.
const CYCLES: u32 = 1_000;

/// `lockstep plan`
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Time that a cycle may take, such as 1h
    #[arg(long, value_name = "TIME", value_parser = span::parse)]
    budget: Option<Duration>,
    /// Tables that a cycle changes
    #[arg(long, value_name = "N")]
    tables: Option<u64>,
    /// Data that a cycle moves, such as 500GB (1GB is 1024MB)
    #[arg(long, value_name = "SIZE", value_parser = amount::parse)]
    data: Option<u64>,
    /// Data that is moved each second [default: measured with --from, otherwise the reference's]
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    rate: Option<u64>,
    /// Time for each changed table, such as 500us [default: like that of --rate]
    #[arg(long, value_name = "TIME", value_parser = span::parse)]
    overhead: Option<Duration>,
    /// Replica whose measured cycles give rate and overhead
    #[arg(long, value_name = "NAME", value_parser = name, requires = "target")]
    from: Option<String>,
    /// How to connect to the target of that replica, as a conninfo string or URI
    #[arg(long, value_name = "CONNINFO", requires = "from")]
    target: Option<String>,
    /// Format of the result on standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,
}

fn name(text: &str) -> Result<String, String> {
    check_replica_name(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

fn rate(text: &str) -> Result<u64, String> {
    match amount::parse(text)? {
        0 => Err("give more than 0".to_owned()),
        rate => Ok(rate),
    }
}

/// What a replica's cycles tell.
struct History {
    frequency: Duration,
    cycles: Vec<Measured>,
    costs: Option<Costs>,
}

pub fn run(args: &PlanArgs) -> Result<()> {
    let history = match (&args.from, &args.target) {
        (Some(name), Some(target)) => Some(ask(name, target)?),
        _ => None,
    };
    let measured = history.as_ref().and_then(|history| history.costs);
    if let (Some(name), Some(history), None) = (&args.from, &history, measured) {
        if args.rate.is_none() || args.overhead.is_none() {
            return Err(Failure::Usage(format!(
                "replica {name} has had {}, and fewer than {FEWEST} with changes tell nothing: give --rate \
                 and --overhead, or come back later",
                figures::counted(history.cycles.len() as u64, "cycle")
            ))
            .into());
        }
    }
    let base = measured.unwrap_or(REFERENCE);
    let costs = Costs {
        per_cycle: base.per_cycle,
        per_table: args.overhead.map_or(base.per_table, |it| it.as_secs_f64()),
        rate: args.rate.map_or(base.rate, |rate| rate as f64),
        // A table takes what is said, whatever is in it.
        per_full: args.overhead.map_or(base.per_full, |_| 0.0),
        ..base
    };
    let wanted = Wanted {
        budget: args.budget,
        tables: args.tables,
        data: args.data,
    };
    let plan = match costs.solve(wanted) {
        Ok(plan) => Some(plan),
        Err(NoPlan::TooFew) if wanted == Wanted::default() => None,
        Err(why) => return Err(Failure::Usage(words(why).to_owned()).into()),
    };
    let own = costs != REFERENCE;
    match args.output {
        Output::Json => output::print(&as_json(costs, plan.as_ref(), history.as_ref()).to_string()),
        Output::Text => {
            output::print(&costs_words(costs, args, measured.is_some()));
            plan.iter()
                .for_each(|plan| output::print(&plan_words(plan)));
            let schedule = history.as_ref().and_then(|it| schedule_words(costs, it));
            schedule.iter().for_each(|words| output::print(words));
            tables(Some(costs).filter(|_| own));
        }
    }
    Ok(())
}

fn words(why: NoPlan) -> &'static str {
    match why {
        NoPlan::TooFew => "give two of --budget, --tables and --data; the third is solved for",
        NoPlan::OverBudget => {
            "what is given takes longer than the budget by itself: give a longer one"
        }
        NoPlan::Unlimited => {
            "what is asked for costs nothing at this rate or overhead, so any number fits: give --rate and \
             --overhead"
        }
    }
}

fn ask(name: &str, target: &str) -> Result<History> {
    let target =
        Conninfo::parse(target).map_err(|error| Failure::Usage(format!("--target: {error}")))?;
    let asked = || -> Result<_, ReplicaError> {
        let Some(mut state) = ReplicaState::see(&target)? else {
            return Ok(None);
        };
        let Some(replica) = state.replica(name)? else {
            return Ok(None);
        };
        Ok(Some((replica.frequency, state.cycles(name, CYCLES)?)))
    };
    let found = asked().map_err(|error| Failure::NoTarget(error.to_string()))?;
    let (frequency, cycles) =
        found.ok_or_else(|| Failure::Usage(format!("the target has no replica \"{name}\"")))?;
    let done: Vec<_> = cycles.iter().filter(|it| it.state == "done").collect();
    let measured = |(place, it): (usize, &&Cycle)| {
        // The newest comes first.
        let before = done.get(place + 1).map(|before| before.start_ms);
        Measured {
            seconds: it.elapsed_ms as f64 / 1000.0,
            tables: it.tables,
            bytes: it.sent_bytes,
            rows: it.rows,
            after: before.map(|before| (it.start_ms - before) / 1000.0),
        }
    };
    let cycles: Vec<_> = done.iter().enumerate().map(measured).collect();
    Ok(History {
        frequency,
        costs: fit(&cycles),
        cycles,
    })
}

fn bytes(count: f64) -> String {
    match count.is_finite() {
        true => brief::bytes(count),
        false => "any".to_owned(),
    }
}

fn time(seconds: f64) -> String {
    figures::short(seconds)
}

fn costs_words(costs: Costs, args: &PlanArgs, is_measured: bool) -> String {
    let from = |given: bool| match (given, is_measured) {
        (true, _) => "as given",
        (false, true) => "measured",
        (false, false) => "the reference's",
    };
    let cycle = match costs.per_cycle > 0.0 {
        true => format!("a cycle takes {} (measured), ", time(costs.per_cycle)),
        false => String::new(),
    };
    let full = match costs.per_full > 0.0 {
        true => format!(
            ", and {} more with {} of rows or more",
            time(costs.per_full),
            bytes(costs.full_bytes)
        ),
        false => String::new(),
    };
    format!(
        "{cycle}a table takes {}{full} ({}), data moves at {}/s ({}); 1 GB is 1024 MB",
        time(costs.per_table),
        from(args.overhead.is_some()),
        bytes(costs.rate),
        from(args.rate.is_some())
    )
}

fn plan_words(plan: &Plan) -> String {
    let fits = match plan.fits() {
        true => "fits into",
        false => "does not fit into",
    };
    let cycle = match plan.for_cycle > 0.0 {
        true => format!("{} + ", time(plan.for_cycle)),
        false => String::new(),
    };
    format!(
        "{} and {} take {cycle}{} + {} = {}, which {fits} {}",
        figures::counted(plan.tables, "table"),
        bytes(plan.data as f64),
        time(plan.for_tables),
        time(plan.for_data),
        time(plan.takes()),
        time(plan.budget)
    )
}

/// How the replica's cycles get on with its frequency; None if it has none.
fn schedule(costs: Costs, history: &History) -> Option<Schedule> {
    let every = history.frequency.as_secs_f64();
    (every > 0.0).then(|| Schedule::of(costs, every, &history.cycles))?
}

/// Which schedule the replica can hold.
fn schedule_words(costs: Costs, history: &History) -> Option<String> {
    let found = schedule(costs, history)?;
    let every = span::show(history.frequency);
    let what = format!(
        "its cycles (every {every}) change at most {} and {}/s; the longest of {} took {}",
        figures::counted(found.tables, "table"),
        bytes(found.made_per_s),
        history.cycles.len(),
        time(found.longest)
    );
    let overran = match found.overruns {
        0 => String::new(),
        overruns => format!(
            ", since {} took longer than that",
            figures::counted(overruns as u64, "cycle")
        ),
    };
    Some(match found.shortest {
        Some(shortest) => {
            let holds = match found.holds {
                true => "it holds",
                false => "it does not hold",
            };
            let least = shortest.max(1.0);
            format!(
                "{what}: {holds} its frequency{overran}; the shortest that it can hold is {}",
                time(least)
            )
        }
        None => format!("{what}: no frequency holds, the data comes faster than it is applied"),
    })
}

/// Tables without data, and data without tables, that a budget allows.
fn allowed(costs: Costs, budget: u64) -> (Option<u64>, Option<u64>) {
    let budget = Some(Duration::from_secs(budget));
    let tables = costs.solve(Wanted {
        budget,
        tables: None,
        data: Some(0),
    });
    let data = costs.solve(Wanted {
        budget,
        tables: Some(0),
        data: None,
    });
    (tables.ok().map(|it| it.tables), data.ok().map(|it| it.data))
}

/// The reference's budgets with its costs, and with others beside.
fn tables(own: Option<Costs>) {
    let heads = [
        "budget",
        "tables, reference",
        "tables, here",
        "data, reference",
        "data, here",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let none = || "-".to_owned();
    let count = |tables: Option<u64>| tables.map_or_else(none, |it| figures::count(it as f64));
    let size = |data: Option<u64>| data.map_or_else(none, |it| bytes(it as f64));
    for (budget, _) in REFERENCE_TABLES {
        let (tables, data) = allowed(REFERENCE, budget);
        let (own_tables, own_data) = own.map_or((None, None), |own| allowed(own, budget));
        rows.push(vec![
            format!("{budget} s"),
            count(tables),
            count(own_tables),
            size(data),
            size(own_data),
        ]);
    }
    output::print("");
    output::print("most tables without data, and most data without tables:");
    lines::table(&rows)
        .iter()
        .for_each(|line| output::print(line));
    output::print(&odd_words());
}

/// The published row that does not follow from its formula.
fn odd_words() -> String {
    let (budget, tables, published) = REFERENCE_ODD;
    format!(
        "the reference's published row of {budget} s and {tables} tables says {published} GB; by its formula \
         (0.26639 s a table, 1,005 MB/s, 1 GB = 1,024 MB of 1,000,000 bytes) it is {:.1} GB",
        odd_gb()
    )
}

fn odd_gb() -> f64 {
    let (budget, tables, _) = REFERENCE_ODD;
    let wanted = Wanted {
        budget: Some(Duration::from_secs(budget)),
        tables: Some(tables),
        data: None,
    };
    REFERENCE
        .solve(wanted)
        .map_or(0.0, |it| it.data as f64 / REFERENCE_GB)
}

fn as_json(costs: Costs, plan: Option<&Plan>, history: Option<&History>) -> Value {
    let finite = |number: f64| number.is_finite().then_some(number);
    let budgets: Vec<_> = REFERENCE_TABLES
        .iter()
        .map(|(budget, published)| {
            let (tables, data) = allowed(REFERENCE, *budget);
            let (own_tables, own_data) = allowed(costs, *budget);
            json!({
                "budget_s": budget,
                "reference_tables_published": published,
                "reference_tables": tables,
                "reference_data_bytes": data,
                "tables": own_tables,
                "data_bytes": own_data,
            })
        })
        .collect();
    let (budget, tables, published) = REFERENCE_ODD;
    let schedule = history.and_then(|history| {
        let found = schedule(costs, history)?;
        Some(json!({
            "frequency_s": history.frequency.as_secs_f64(),
            "cycles": history.cycles.len(),
            "tables": found.tables,
            "made_bytes_per_s": found.made_per_s,
            "longest_s": found.longest,
            "overruns": found.overruns,
            "holds": found.holds,
            "shortest_s": found.shortest.map(|it| it.max(1.0)),
        }))
    });
    json!({
        "start_s_per_cycle": costs.per_cycle,
        "overhead_s_per_table": costs.per_table,
        "overhead_s_per_full_table": costs.per_full,
        "full_table_bytes": finite(costs.full_bytes),
        "rate_bytes_per_s": finite(costs.rate),
        "plan": plan.map(|plan| json!({
            "budget_s": plan.budget,
            "tables": plan.tables,
            "data_bytes": plan.data,
            "cycle_s": plan.for_cycle,
            "tables_s": plan.for_tables,
            "data_s": plan.for_data,
            "fits": plan.fits(),
        })),
        "schedule": schedule,
        "budgets": budgets,
        "reference_odd_row": {
            "budget_s": budget,
            "tables": tables,
            "published_gb": published,
            "by_formula_gb": odd_gb(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_lab::assert_has;

    #[test]
    fn the_odd_row_is_named_with_what_the_formula_gives() {
        assert_has!(odd_words(), "885.5 GB", "it is 197.9 GB");
    }

    #[test]
    fn a_replica_is_told_which_schedule_it_can_hold() {
        let cycle = |tables: u64, bytes: u64| Measured {
            seconds: tables as f64 * 0.5 + bytes as f64 / 100.0,
            tables,
            bytes,
            rows: 1,
            after: None,
        };
        let cycles = vec![cycle(1, 300), cycle(10, 20), cycle(3, 280)];
        let history = |frequency| History {
            frequency: Duration::from_secs(frequency),
            costs: fit(&cycles),
            cycles: cycles.clone(),
        };
        let words = |frequency| {
            let history = history(frequency);
            schedule_words(history.costs.unwrap(), &history)
        };
        // 10 tables take 5.2 s, at most 300 bytes a cycle.
        let is = |frequency, wanted: &str| {
            let words = words(frequency).unwrap();
            assert!(words.contains(wanted), "{words}");
        };
        is(60, "it holds its frequency; the shortest");
        is(60, "the longest of 3 took 5.2 s");
        is(
            5,
            "it does not hold its frequency, since 1 cycle took longer than that; the shortest",
        );
        is(3, "no frequency holds");
        assert_eq!(words(0), None);
    }
}
