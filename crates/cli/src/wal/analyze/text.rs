//! An analysis as text for people.

use lockstep_service::words::figures::count;
use lockstep_service::words::lines::{table, wrapped};
use lockstep_wal::analysis::{Limit, Outcome, Report};
use lockstep_wal::class::Cause;
use lockstep_wal::limits::WORTH_HELPERS;
use lockstep_wal::reader::Reason;
use lockstep_wal::walk::Ended;

use super::{KINDS, Outcomes, ratio};

/// Columns of prose.
const COLUMNS: usize = 96;

/// Kinds of records that are listed.
const LARGEST: usize = 8;

/// From this speedup on helpers are worth their cores.
const WORTH: f64 = 1.2;

/// Helpers above this number cannot be configured (`lockstep.replay_workers`).
const MOST_HELPERS: usize = 16;

pub fn text(outcomes: &Outcomes) -> String {
    let report = &outcomes.report;
    let mut lines = vec![
        format!(
            "{}: timeline {}, PostgreSQL {}, from {} to {}",
            outcomes.source, outcomes.timeline, outcomes.major, report.first, report.end
        ),
        format!(
            "{} records, {} MB, of which {} MB are images of pages",
            number(report.all.records),
            megabytes(report.all.bytes),
            megabytes(report.image_bytes)
        ),
    ];
    lines.extend(wrapped("", &why_ended(outcomes), COLUMNS));
    lines.extend(wrapped("", stage(report), COLUMNS));
    lines.push(String::new());
    lines.extend(shares(report));
    lines.push(String::new());
    lines.extend(kinds(report));
    lines.push(String::new());
    lines.extend(causes(outcomes));
    lines.push(String::new());
    lines.extend(path(report));
    lines.push(String::new());
    lines.extend(simulated(outcomes));
    lines.push(String::new());
    lines.extend(wrapped("", &verdict(report), COLUMNS));
    lines.join("\n") + "\n"
}

fn number(value: u64) -> String {
    count(value as f64)
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

fn percent(part: f64, whole: f64) -> String {
    format!("{:.1} %", ratio(part, whole) * 100.0)
}

/// A sentence about where reading ended.
pub fn why_ended(outcomes: &Outcomes) -> String {
    let ended = match &outcomes.ended {
        Ended::Limit => "Reading ended where the options say.".to_owned(),
        Ended::Stop(stop) if stop.reason == Reason::Removed => format!(
            "Reading ended at {}: {}. The WAL behind it was not read: run it again, or with a later --start.",
            stop.at, stop.reason
        ),
        Ended::Stop(stop) => format!("The WAL ends at {}: {}.", stop.at, stop.reason),
    };
    match &outcomes.behind {
        Some((missing, next)) => format!(
            "{ended} Segment {missing} is missing; the WAL behind it was not read: --start {next} reads it."
        ),
        None if outcomes.from_oldest => format!("{ended} The server has no older WAL."),
        None => ended,
    }
}

/// The rules by which records were classed, in words.
fn stage(report: &Report) -> &'static str {
    match report.rules.is_hot() {
        true => {
            "Classed as on a hot standby on which no session, slot or older transaction sees what is \
             pruned."
        }
        false => {
            "Classed as before consistency, while nobody reads; --hot-standby is for a standby that \
             streams."
        }
    }
}

/// What helpers may execute, and what not.
fn shares(report: &Report) -> Vec<String> {
    let all = &report.all;
    let held = |barrier: bool| {
        let causes = report.held.iter();
        let mut sum = lockstep_wal::analysis::Share::default();
        for (_, held) in causes.filter(|(cause, _)| cause.is_barrier() == barrier) {
            sum.records += held.share.records;
            sum.bytes += held.share.bytes;
            sum.cost_ns += held.share.cost_ns;
        }
        sum
    };
    let header = ["replay", "records", "of records", "of bytes", "of cost*"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (name, share) in [
        ("by helpers, ahead of their turn", report.ahead),
        ("by the startup process, at their turn", held(false)),
        ("barriers: nothing behind begins before", held(true)),
    ] {
        rows.push(vec![
            name.to_owned(),
            number(share.records),
            percent(share.records as f64, all.records as f64),
            percent(share.bytes as f64, all.bytes as f64),
            percent(share.cost_ns, all.cost_ns),
        ]);
    }
    table(&rows)
}

/// What the WAL is made of, and what the images of pages came with.
fn kinds(report: &Report) -> Vec<String> {
    let header = [
        "kinds with the most bytes",
        "records",
        "of records",
        "of bytes",
        "of images",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (name, kind) in report.largest_kinds().into_iter().take(LARGEST) {
        rows.push(vec![
            name,
            number(kind.records),
            percent(kind.records as f64, report.all.records as f64),
            percent(kind.bytes as f64, report.all.bytes as f64),
            percent(kind.image_bytes as f64, report.image_bytes as f64),
        ]);
    }
    table(&rows)
}

fn causes(outcomes: &Outcomes) -> Vec<String> {
    let report = &outcomes.report;
    if report.held.is_empty() {
        return vec!["Every record is for helpers.".to_owned()];
    }
    let mut lines = vec!["Why records are not for helpers:".to_owned()];
    let mut rows = Vec::new();
    for (cause, held) in &report.held {
        rows.push(vec![
            format!("  {} ({})", cause.name(), words(*cause)),
            number(held.share.records),
        ]);
    }
    let kinds = report.held.values().map(|held| {
        let kinds = held.commonest(outcomes.major, KINDS);
        let kinds: Vec<_> = kinds
            .into_iter()
            .map(|(name, records)| format!("{name} {}", number(records)))
            .collect();
        let untold = held.kinds.len().saturating_sub(KINDS);
        match untold {
            0 => kinds.join(", "),
            more => format!("{}, {more} other kinds", kinds.join(", ")),
        }
    });
    let rows = table(&rows);
    lines.extend(
        rows.iter()
            .zip(kinds)
            .map(|(row, kinds)| format!("{row}   {kinds}")),
    );
    lines
}

/// What a cause means, in a few words.
fn words(cause: Cause) -> &'static str {
    match cause {
        Cause::Kind => "a kind that is replayed in order",
        Cause::Missing => "a block is new",
        Cause::Map => "visibility map",
        Cause::Large => "many blocks, or large",
        Cause::Ddl => "barrier: DDL",
        Cause::Checkpoint => "barrier: checkpoints, state",
        Cause::Unknown => "barrier: all other kinds",
    }
}

fn path(report: &Report) -> Vec<String> {
    let critical = &report.critical;
    let words = format!(
        "Critical path: {} of {} records have to be replayed one after the other, with {} of all redo*. \
         The startup process alone has {} of the work of stock replay*: it reads and dispatches \
         every record, and replays those that are not for helpers.",
        number(critical.records),
        number(report.all.records),
        percent(critical.ns, report.redo_ns),
        percent(report.own_seconds, report.alone_seconds),
    );
    wrapped("", &words, COLUMNS)
}

fn simulated(outcomes: &Outcomes) -> Vec<String> {
    let report = &outcomes.report;
    let header = ["simulated*", "seconds", "speedup", "by helpers", "waiting"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (name, seconds) in [
        ("one process of stock", report.alone_seconds),
        ("one process that looks ahead", report.look_ahead_seconds),
    ] {
        let speedup = report.alone_seconds / seconds.max(1e-12);
        rows.push(vec![
            name.to_owned(),
            format!("{seconds:.3}"),
            format!("{speedup:.2}"),
        ]);
    }
    for outcome in &report.outcomes {
        rows.push(row(outcome));
    }
    let mut lines = table(&rows);
    let costs = &outcomes.costs;
    let measured = match costs.measured.is_empty() {
        true => String::new(),
        false => format!(", {}", costs.measured),
    };
    let note = format!(
        "* Simulated with costs of records that were not measured on this WAL ({}{measured}): all data in \
         memory, and a core for each process.",
        costs.machine
    );
    lines.extend(wrapped("", &note, COLUMNS));
    lines
}

fn row(outcome: &Outcome) -> Vec<String> {
    let name = match (outcome.helpers, outcome.helpers > MOST_HELPERS) {
        (1, _) => "1 helper (2 cores)".to_owned(),
        (helpers, false) => format!("{helpers} helpers"),
        (helpers, true) => format!("{helpers} helpers (more than can be set)"),
    };
    vec![
        name,
        format!("{:.3}", outcome.seconds),
        format!("{:.2}", outcome.speedup),
        percent(outcome.by_helpers, 1.0),
        percent(outcome.waited, 1.0),
    ]
}

/// Whether helpers help, and what limits them, in one sentence.
pub fn verdict(report: &Report) -> String {
    let can_be_set = report
        .outcomes
        .iter()
        .filter(|one| one.helpers <= MOST_HELPERS);
    let best = can_be_set.max_by(|a, b| a.speedup.total_cmp(&b.speedup));
    let Some(best) = best else {
        return "Nothing was simulated.".to_owned();
    };
    if report.all.records < WORTH_HELPERS {
        return format!(
            "There is too little WAL to say whether it helps: {} records.",
            number(report.all.records)
        );
    }
    // The fewest that have nearly all of it.
    let enough = report
        .outcomes
        .iter()
        .find(|one| one.speedup >= best.speedup * 0.95)
        .unwrap_or(best);
    let (bound, limit) = report.bound();
    let because = match limit {
        Limit::Startup => {
            "the startup process's own part: it reads every record, and replays those that are not \
             for helpers"
        }
        Limit::Order => {
            "the order in which records of the same pages, and barriers, must be replayed"
        }
    };
    let limit = format!("what limits it most is {because} (at most {bound:.1} times, simulated)");
    let (who, settings) = match report.rules.is_hot() {
        true => (
            "a standby that is behind",
            "lockstep.replay_hot_standby = on and lockstep.replay_workers",
        ),
        false => (
            "crash recovery and the start of a standby",
            "lockstep.replay_workers",
        ),
    };
    match best.speedup >= WORTH {
        true => format!(
            "It helps: {who} would replay such WAL {:.1} times as fast as stock with {settings} = {} \
             (simulated); {limit}.",
            enough.speedup, enough.helpers
        ),
        false if best.speedup < 1.0 => format!(
            "It does not help: {who} would replay such WAL {:.2} times as fast as stock at best (simulated).",
            best.speedup
        ),
        false => format!(
            "It hardly helps: {who} would replay such WAL {:.2} times as fast as stock at best \
             (simulated); {limit}.",
            best.speedup
        ),
    }
}
