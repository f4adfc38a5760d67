//! `lockstep replica history` and `force`

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use lockstep_apply::cycle::{LEAST_FREQUENCY, MOST_FREQUENCY};
use lockstep_client::Conninfo;
use lockstep_replica::error::ReplicaError;
use lockstep_replica::state::{Applied, Cycle, Forced, Replica, ReplicaState, RunningCycle};
use lockstep_replica::status::source::Source;
use lockstep_replica::status::standing::{Standing, hindrance, standing};
use lockstep_service::exit::Failure;
use lockstep_service::sanitize::sanitize;
use lockstep_service::words::output::{self, Output};
use lockstep_service::words::{brief, figures, lines, span};
use serde_json::{Value, json};

use super::{ReplicaArgs, conninfo, failed};

/// Interval at which the state is asked.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// `lockstep replica history`
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// The replica's name
    #[arg(value_name = "NAME", value_parser = super::replica_name)]
    name: String,
    #[command(flatten)]
    target: super::TargetArgs,
    /// Most cycles to show, the newest; the target keeps 10,000
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Format of the result on standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,
}

/// `lockstep replica force`
#[derive(Debug, Args)]
pub struct ForceArgs {
    #[command(flatten)]
    replica: ReplicaArgs,
    /// Most seconds to wait for the cycle's end
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=604_800))]
    wait: u32,
    /// Format of the result on standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,
}

/// A frequency, as text.
pub fn frequency(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let given = span::parse(text)?;
    match given {
        Duration::ZERO => Ok(given),
        _ if given < LEAST_FREQUENCY => Err(format!(
            "{text} is less than a replica can do: give at least {}, or 0, which applies changes as they \
             come and is the quickest",
            span::show(LEAST_FREQUENCY)
        )),
        _ if given > MOST_FREQUENCY => Err(format!("give at most {}", span::show(MOST_FREQUENCY))),
        _ => Ok(given),
    }
}

/// What a frequency means, in words.
pub fn frequency_words(frequency: Duration) -> String {
    match frequency.is_zero() {
        true => "applies changes as they come".to_owned(),
        false => format!(
            "has a cycle every {}; lockstep replica run needs a spool for it (--spool-dir, --spool-limit)",
            span::show(frequency)
        ),
    }
}

/// What is said of a replica that is not there.
pub fn no_replica(name: &str) -> anyhow::Error {
    Failure::Usage(format!("the target has no replica \"{name}\"")).into()
}

pub fn history(args: &HistoryArgs) -> Result<()> {
    let target = conninfo("--target", &args.target.target)?;
    let asked = || -> Result<_, ReplicaError> {
        let Some(mut state) = ReplicaState::see(&target)? else {
            return Ok(None);
        };
        let Some(replica) = state.replica(&args.name)? else {
            return Ok(None);
        };
        state.at_one_moment(|state| {
            let (holder, applied) = (state.holder(&args.name)?, state.applied(&args.name)?);
            let cycles = state.cycles(&args.name, args.limit)?;
            let running = running(standing(holder, &applied), &applied, cycles.first());
            Ok(Some((replica, running, cycles)))
        })
    };
    let Some((replica, running, cycles)) = asked().map_err(failed)? else {
        return Err(no_replica(&args.name));
    };
    match args.output {
        Output::Json => {
            let all = running.iter().map(running_json);
            let all: Vec<_> = all.chain(cycles.iter().map(cycle_json)).collect();
            output::print(
                &json!({
                    "name": replica.name,
                    "frequency_s": replica.frequency.as_secs_f64(),
                    "cycles": all,
                })
                .to_string(),
            );
        }
        Output::Text if running.is_none() && cycles.is_empty() => {
            let does = match replica.check_not_promoted() {
                Ok(()) => format!(": it {}", frequency_words(replica.frequency)),
                Err(_) => " and will have none: it is promoted".to_owned(),
            };
            output::print(&format!("replica {} has had no cycle{does}", replica.name));
        }
        Output::Text => {
            print_cycles(running.iter().map(running_line), &cycles);
        }
    }
    Ok(())
}

/// The cycle that runs; None if its process does not apply.
fn running(
    standing: Standing<'_>,
    applied: &Applied,
    newest: Option<&Cycle>,
) -> Option<RunningCycle> {
    match standing {
        Standing::Apply("applying") => applied.running_cycle(newest),
        _ => None,
    }
}

fn print_cycles(running: impl Iterator<Item = Vec<String>>, cycles: &[Cycle]) {
    let heads = [
        "cycle",
        "state",
        "start",
        "elapsed",
        "remaining",
        "sent",
        "written",
        "rate",
        "rows",
        "tables",
        "lsn",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(running);
    rows.extend(cycles.iter().map(cycle_line));
    for line in lines::table(&rows) {
        output::print(&sanitize(&line));
    }
    for one in cycles {
        if let Some(error) = &one.error {
            output::print(&sanitize(&format!(
                "cycle {} has failed {}: {error}",
                one.number,
                figures::counted(one.failures, "time")
            )));
        }
    }
}

fn bytes(count: u64) -> String {
    brief::bytes(count as f64)
}

fn cycle_line(cycle: &Cycle) -> Vec<String> {
    vec![
        cycle.number.to_string(),
        cycle.state.clone(),
        cycle.start_time.clone(),
        figures::seconds(cycle.elapsed_ms as f64),
        "-".to_owned(),
        bytes(cycle.sent_bytes),
        bytes(cycle.write_bytes),
        format!("{}/s", bytes(cycle.bandwidth)),
        figures::count(cycle.rows as f64),
        figures::count(cycle.tables as f64),
        cycle
            .lsn
            .map_or_else(|| "-".to_owned(), |lsn| lsn.to_string()),
    ]
}

fn running_line(cycle: &RunningCycle) -> Vec<String> {
    let time = |time: Duration| figures::seconds(time.as_secs_f64() * 1000.0);
    let none = || "-".to_owned();
    vec![
        cycle.number.to_string(),
        "running".to_owned(),
        none(),
        time(cycle.elapsed),
        cycle.remaining.map_or_else(none, time),
        bytes(cycle.sent_bytes),
        none(),
        none(),
        none(),
        none(),
        cycle.lsn.to_string(),
    ]
}

/// A cycle that has ended, as JSON.
pub fn cycle_json(cycle: &Cycle) -> Value {
    json!({
        "cycle": cycle.number,
        "state": cycle.state,
        "start_time": cycle.start_time,
        "end_time": cycle.end_time,
        "elapsed_ms": cycle.elapsed_ms,
        "remaining_ms": Value::Null,
        "sent_bytes": cycle.sent_bytes,
        "write_bytes": cycle.write_bytes,
        "bandwidth": cycle.bandwidth,
        "transactions": cycle.transactions,
        "rows": cycle.rows,
        "tables": cycle.tables,
        "lsn": cycle.lsn.map(|lsn| lsn.to_string()),
        "failures": cycle.failures,
        "error": cycle.error,
    })
}

/// The cycle that runs, as JSON.
pub fn running_json(cycle: &RunningCycle) -> Value {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    json!({
        "cycle": cycle.number,
        "state": "running",
        "elapsed_ms": ms(cycle.elapsed),
        "remaining_ms": cycle.remaining.map(ms),
        "sent_bytes": cycle.sent_bytes,
        "lsn": cycle.lsn.to_string(),
    })
}

pub fn force(args: &ForceArgs) -> Result<()> {
    let (target, source) = args.replica.ends()?;
    let wait = Duration::from_secs(args.wait.into());
    let name = &args.replica.name;
    let Some(cycle) = forced(name, &target, source.as_ref(), wait).map_err(failed)? else {
        return Err(no_replica(name));
    };
    match args.output {
        Output::Json => output::print(&cycle_json(&cycle).to_string()),
        Output::Text => print_cycles(std::iter::empty(), std::slice::from_ref(&cycle)),
    }
    match cycle.state.as_str() {
        "done" => Ok(()),
        _ => Err(failed(ReplicaError::State(format!(
            "cycle {} of replica \"{name}\" has failed; it is tried again",
            cycle.number
        )))),
    }
}

/// Asks for cycles until one has what the source has now. Returns the last; None if there is no such replica.
fn forced(
    name: &str,
    target: &Conninfo,
    source: Option<&Conninfo>,
    wait: Duration,
) -> Result<Option<Cycle>, ReplicaError> {
    let Some(mut state) = ReplicaState::find(target)? else {
        return Ok(None);
    };
    let Some(replica) = state.replica(name)? else {
        return Ok(None);
    };
    may_be_forced(&replica)?;
    let end = Source::ask(&replica, source, None, None)?.end;
    let deadline = Instant::now() + wait;
    loop {
        let Some(request) = state.force(name)? else {
            return Ok(None);
        };
        let cycle = ended(&mut state, name, request, deadline, wait)?;
        // What had committed just before may not have been in the spool yet.
        if cycle.state != "done" || cycle.lsn >= Some(end) {
            return Ok(Some(cycle));
        }
        thread::sleep(ASK_EVERY);
    }
}

fn may_be_forced(replica: &Replica) -> Result<(), ReplicaError> {
    replica.check_ready()?;
    let name = &replica.name;
    let words = match (replica.paused, replica.frequency.is_zero()) {
        (true, _) => format!(
            "replica \"{name}\" is paused, so it has no cycle: end the pause with lockstep replica resume"
        ),
        (false, false) => return Ok(()),
        (false, true) => format!(
            "replica \"{name}\" has no cycles: it applies changes as they come. Give it a frequency with \
             lockstep replica alter {name} --frequency"
        ),
    };
    Err(ReplicaError::State(words))
}

/// Waits for the end of the cycle that answers a request.
fn ended(
    state: &mut ReplicaState,
    name: &str,
    request: u64,
    deadline: Instant,
    wait: Duration,
) -> Result<Cycle, ReplicaError> {
    loop {
        if let Forced::Ended(cycle) = state.forced(name, request)? {
            return Ok(cycle);
        }
        // It may be paused, or have no cycles any more, by now.
        if let Some(replica) = state.replica(name)? {
            may_be_forced(&replica)?;
        }
        let (holder, applied) = (state.holder(name)?, state.applied(name)?);
        let because = |why: Option<String>| why.map_or_else(String::new, |it| format!(": {it}"));
        let refused = match standing(holder, &applied) {
            Standing::NotRunning => Some(format!(
                "no process applies to replica \"{name}\", so nothing begins the cycle: start lockstep \
                 replica run{}",
                because(applied.error)
            )),
            _ if Instant::now() >= deadline => Some(format!(
                "the cycle of replica \"{name}\" has not ended within {} s, and goes on{}",
                wait.as_secs(),
                because(hindrance(&applied))
            )),
            _ => None,
        };
        if let Some(words) = refused {
            return Err(ReplicaError::State(words));
        }
        thread::sleep(ASK_EVERY);
    }
}

/// Least time by which a target is said to be late.
const SHOWN_LATE: Duration = Duration::from_secs(1);

/// What a replica's cycles are, for its status.
pub fn notes(
    replica: &Replica,
    standing: Standing<'_>,
    applied: &Applied,
    last: Option<&Cycle>,
) -> Vec<String> {
    if replica.frequency.is_zero() {
        return Vec::new();
    }
    let time = |time: Duration| figures::seconds(time.as_secs_f64() * 1000.0);
    let every = span::show(replica.frequency);
    let ended = match last {
        None => "none has ended yet".to_owned(),
        Some(last) => format!(
            "cycle {} ({}) began {} and took {}",
            last.number,
            last.state,
            last.start_time,
            figures::seconds(last.elapsed_ms as f64)
        ),
    };
    let now = match (running(standing, applied, last), standing, applied.cycles) {
        (Some(running), ..) => {
            let left = running.remaining;
            let left = left.map_or_else(String::new, |left| format!(", about {} left", time(left)));
            let (number, since) = (running.number, time(running.elapsed));
            format!("; cycle {number} runs for {since}{left}")
        }
        (None, Standing::Apply("applying"), Some(cycles)) if cycles.running.is_none() => {
            match cycles.next.is_zero() {
                true => "; the next is due".to_owned(),
                false => format!("; the next begins in {}", time(cycles.next)),
            }
        }
        _ => String::new(),
    };
    let late = match (standing, applied.cycles) {
        (Standing::Apply("applying"), Some(cycles)) if cycles.late >= SHOWN_LATE => {
            let late = time(cycles.late);
            format!("; the target is {late} later than its frequency lets expect")
        }
        _ => String::new(),
    };
    vec![format!("it has a cycle every {every}: {ended}{now}{late}")]
}

/// A replica's cycles in the JSON of its status; null if it has none.
pub fn json(
    replica: &Replica,
    standing: Standing<'_>,
    applied: &Applied,
    last: Option<&Cycle>,
) -> Value {
    if replica.frequency.is_zero() {
        return Value::Null;
    }
    let next = applied.cycles.map(|cycles| cycles.next.as_secs_f64());
    let late = applied.cycles.map(|cycles| cycles.late.as_secs_f64());
    json!({
        "frequency_s": replica.frequency.as_secs_f64(),
        "last": last.map(cycle_json),
        "running": running(standing, applied, last).as_ref().map(running_json),
        "next_s": next,
        "late_s": late,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frequency_below_the_possible_is_refused_with_words() {
        assert_eq!(frequency("0"), Ok(Duration::ZERO));
        assert_eq!(frequency("0s"), Ok(Duration::ZERO));
        assert_eq!(frequency("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(frequency("1h"), Ok(Duration::from_secs(3600)));
        let words = frequency("500ms").unwrap_err();
        assert!(words.contains("at least 1 s, or 0"), "{words}");
        assert!(frequency("31d").unwrap_err().contains("at most 30 d"));
        assert!(frequency("60").unwrap_err().contains("no time"));
    }
}
