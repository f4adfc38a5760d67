//! Servers that answer anything. Whatever they say: nothing panics, the size of what is kept is
//! bounded, shown values are finite numbers or sanitized text, and `explains` is between 0 and
//! 1.
//!
//! Random, from a seed: `SEED=n` repeats a failure, `LOCKSTEP_ROUNDS` sets the number of
//! rounds.

use std::time::Duration;

use fastrand::Rng;
use lockstep_client::Table;
use serde_json::{Value, json};

use crate::diagnosis::{Diagnosis, diagnose};
use crate::monitor;
use crate::node::{Role, Trouble};
use crate::node_sampler::{MOST_ROWS, read_parts, read_relay};
use crate::questions::Part;
use crate::relay;
use crate::sample::{Facts, Sample};
use crate::watch::compare;
use crate::window::{Glance, MOST_BYTES, NodeWindow, Window};
use crate::{LagError, Result};
use lockstep_service::sanitize::sanitize;

/// Runs a test with one seed after the other, and says which one failed.
fn rounds(most: u64, test: impl Fn(&mut Rng)) {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = fastrand::u64(..u64::MAX / 2);
            first..first + number("LOCKSTEP_ROUNDS").unwrap_or(most)
        }
    };
    for seed in seeds {
        let told = Told(seed);
        test(&mut Rng::with_seed(seed));
        drop(told);
    }
}

struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with SEED={}", self.0);
        }
    }
}

const NAMES: [&str; 13] = [
    "",
    "a",
    "orders",
    "s",
    "walreceiver",
    "lockstep_app_01234abc",
    "\u{1b}]0;owned\u{7}",
    "x\ny\r\tz",
    "\u{0}\u{9b}31m",
    "{pid}",
    "'; DROP TABLE t; --",
    "\u{202e}abc",
    "näme",
];

const WORDS: [&str; 27] = [
    "startup",
    "walreceiver",
    "walsender",
    "logical replication worker",
    "streaming",
    "failed",
    "waiting",
    "sync",
    "quorum",
    "Lock",
    "IO",
    "BufferPin",
    "Activity",
    "WALSync",
    "DataFileRead",
    "LogicalApplyMain",
    "WalSenderWriteData",
    "RecoveryConflictSnapshot",
    "RecoveryApplyDelay",
    "paused",
    "lost",
    "logical",
    "physical",
    "off",
    "ready",
    "applying",
    "blocked",
];

fn name(rng: &mut Rng) -> Value {
    json!(rng.choice(NAMES).unwrap())
}

fn word(rng: &mut Rng) -> Value {
    match rng.u8(..8) {
        0 => Value::Null,
        1 => name(rng),
        _ => json!(rng.choice(WORDS).unwrap()),
    }
}

fn position(rng: &mut Rng) -> Value {
    match rng.u8(..8) {
        0 => Value::Null,
        1 => json!("0/0"),
        2 => json!("FFFFFFFF/FFFFFFFF"),
        // Positions that go backwards and forwards.
        _ => json!(format!("{:X}/{:X}", rng.u8(..3), rng.u32(..))),
    }
}

fn count(rng: &mut Rng) -> Value {
    match rng.u8(..6) {
        0 => json!(0),
        1 => json!(u64::MAX),
        2 => json!(u64::MAX / 2),
        _ => json!(rng.u64(..1_000_000)),
    }
}

fn age(rng: &mut Rng) -> Value {
    match rng.u8(..8) {
        0 => Value::Null,
        1 => json!(-1e300),
        2 => json!(f64::MAX),
        3 => json!(-f64::MAX),
        4 => json!(-5.0),
        _ => json!(rng.f64() * 1e6),
    }
}

fn signed(rng: &mut Rng) -> Value {
    let choices = [json!(null), json!(i64::MIN), json!(i64::MAX), json!(-1)];
    match rng.bool() {
        true => rng.choice(choices).unwrap(),
        false => json!(rng.i64(0..10_000_000)),
    }
}

fn process(rng: &mut Rng) -> Value {
    json!(rng.choice([0, 1, 2, 3, 4, u32::MAX]).unwrap())
}

fn list(rng: &mut Rng, row: impl Fn(&mut Rng) -> Value) -> Value {
    (0..rng.usize(..5)).map(|_| row(rng)).collect()
}

/// A random answer that has the right form.
fn answer(rng: &mut Rng, part: Part) -> Value {
    match part {
        Part::Moment => json!({
            "in_recovery": rng.bool(),
            "clock_us": signed(rng).as_i64().unwrap_or(7),
        }),
        Part::Wal => json!({
            "synchronous_standby_names": word(rng),
            "flush": position(rng), "receive": position(rng), "replay": position(rng),
            "replayed_commit_age_ms": age(rng), "pause": word(rng),
        }),
        Part::Senders => list(rng, |rng| {
            json!({
                "pid": process(rng), "application_name": name(rng), "client": word(rng),
                "state": word(rng), "sync_state": word(rng), "sent_lsn": position(rng),
                "write_lsn": position(rng), "flush_lsn": position(rng),
                "replay_lsn": position(rng), "write_lag_ms": age(rng),
                "flush_lag_ms": age(rng), "replay_lag_ms": age(rng), "xmin_age": signed(rng),
            })
        }),
        Part::Slots => list(rng, |rng| {
            json!({
                "slot_name": name(rng), "slot_type": word(rng).as_str().unwrap_or("logical"),
                "database": word(rng), "temporary": rng.bool(), "active": rng.bool(),
                "active_pid": process(rng), "xmin_age": signed(rng),
                "restart_lsn": position(rng), "confirmed_flush_lsn": position(rng),
                "wal_status": word(rng), "safe_wal_size": signed(rng), "synced": rng.bool(),
            })
        }),
        Part::Decoding => list(rng, |rng| {
            json!({
                "slot_name": name(rng), "spill_txns": count(rng), "spill_count": count(rng),
                "spill_bytes": count(rng), "stream_txns": count(rng),
                "stream_bytes": count(rng), "total_txns": count(rng), "total_bytes": count(rng),
            })
        }),
        Part::Receiver => json!({
            "pid": process(rng), "status": word(rng), "written_lsn": position(rng),
            "flushed_lsn": position(rng), "latest_end_lsn": position(rng),
            "message_age_ms": age(rng), "slot_name": name(rng), "sender_host": word(rng),
            "sender_port": process(rng), "application_name": name(rng),
        }),
        Part::Subscriptions => list(rng, |rng| {
            json!({
                "name": name(rng), "enabled": rng.bool(), "slot_name": name(rng),
                "synchronous_commit": word(rng).as_str().unwrap_or("off"), "pid": process(rng),
                "received_lsn": position(rng), "latest_end_lsn": position(rng),
                "message_age_ms": age(rng), "unsynced_tables": count(rng),
                "apply_errors": count(rng),
                "searched": {"table": name(rng), "searches": count(rng), "rows": count(rng)},
            })
        }),
        Part::Replicas => list(rng, |rng| {
            json!({
                "name": name(rng), "slot": name(rng),
                "phase": word(rng).as_str().unwrap_or("ready"), "paused": rng.bool(),
                "bytes_total": count(rng), "bytes_done": count(rng),
                "holder": rng.choice(["nobody", "apply", "other"]), "missing_rows": count(rng),
                "apply_state": word(rng).as_str().unwrap_or("applying"),
                "applied_lsn": position(rng), "error": word(rng), "written_age_ms": age(rng),
                "hold": rng.bool().then(|| json!({
                    "pid": process(rng), "user": word(rng), "client": word(rng),
                    "age_ms": age(rng), "held": rng.bool(),
                })),
            })
        }),
        Part::Processes => list(rng, |rng| {
            json!({
                "pid": process(rng), "backend_type": word(rng).as_str().unwrap_or("startup"),
                "wait_type": word(rng), "wait": word(rng),
                "blocked_by": [process(rng), process(rng)],
            })
        }),
        Part::Clients => json!({
            "active": count(rng), "running": count(rng), "awaiting_sync": count(rng),
            "awaiting_sync_ms": age(rng),
            "oldest": list(rng, |rng| json!({
                "pid": process(rng), "user": word(rng), "database": name(rng),
                "state": word(rng), "xact_age_ms": age(rng), "xmin_age": signed(rng),
                "xid_age": signed(rng), "wait": word(rng), "query": name(rng),
            })),
        }),
        Part::Prepared => list(rng, |rng| {
            json!({
                "gid": name(rng), "owner": word(rng), "database": name(rng),
                "xid_age": signed(rng), "age_ms": age(rng),
            })
        }),
        Part::Archiver => json!({
            "archived_count": count(rng), "failed_count": count(rng), "last_failed_wal": name(rng),
            "archived_age_ms": age(rng), "failed_age_ms": age(rng),
        }),
        Part::Conflicts => json!({
            "snapshot": count(rng), "lock": count(rng), "bufferpin": count(rng),
            "deadlock": count(rng),
        }),
        Part::Totals => json!({
            "wal_bytes": age(rng), "page_images": count(rng), "checkpoints": count(rng),
            "index_builds": count(rng),
            "subtransaction_lookups": count(rng),
            "io": list(rng, |rng| json!({
                "backend_type": word(rng).as_str().unwrap_or("startup"),
                "reads": age(rng).as_f64().unwrap_or(0.0),
                "read_time_ms": age(rng).as_f64().unwrap_or(0.0),
                "fsyncs": 3.0, "fsync_time_ms": 1e308,
            })),
        }),
        Part::Extension => json!({
            "lag_ms": age(rng), "conflicts": count(rng), "running": count(rng),
            "waiting": count(rng), "concurrency_limit": count(rng), "demoted": count(rng),
            "method": word(rng),
        }),
        Part::ParallelReplay => json!({
            "parallel": name(rng), "helpers": count(rng), "records": count(rng),
            "dispatched": count(rng), "done_by_helpers": count(rng), "inline_kind": count(rng),
            "given_back": count(rng), "startup_wait_ms": age(rng).as_f64().unwrap_or(0.0),
            "helper_wait_ms": age(rng).as_f64().unwrap_or(0.0),
            "record_distance": count(rng), "wal_distance": count(rng), "helper_waits": name(rng),
        }),
    }
}

/// Damages a text somewhere, or replaces it.
fn damage(rng: &mut Rng, text: &str) -> Option<String> {
    let at = |rng: &mut Rng| {
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        rng.choice(places).unwrap_or(0)
    };
    Some(match rng.u8(..7) {
        0 => return None,
        1 => text[..at(rng)].to_owned(),
        2 => text[at(rng)..].to_owned(),
        3 => "[".repeat(10_000),
        4 => format!("\"{}\"", "\u{1b}".repeat(5_000)),
        5 => {
            let (from, to) = (at(rng), at(rng));
            format!("{}{}", &text[..from.max(to)], &text[from.min(to)..])
        }
        _ => {
            let other = rng.choice(["1e999", "-1", "null", "{}", "\\u001b", "\"", "\u{0}"]);
            let place = at(rng);
            format!("{}{}{}", &text[..place], other.unwrap(), &text[place..])
        }
    })
}

fn columns(rng: &mut Rng) -> Vec<Option<String>> {
    Part::ALL
        .map(|part| Some(answer(rng, part).to_string()))
        .into()
}

/// The next sample of a server that mostly stays as it was.
fn server_sample(rng: &mut Rng, before: &mut [Option<String>]) -> Sample {
    for (column, part) in before.iter_mut().zip(Part::ALL) {
        if rng.u8(..4) == 0 {
            *column = Some(answer(rng, part).to_string());
        }
    }
    read_parts(Part::ALL.into_iter(), before.to_vec(), rng.i64(..))
        .unwrap_or_else(|error| panic!("{error}: {before:?}"))
}

/// The next sample of a relay that mostly stays as it was.
fn relay_sample(rng: &mut Rng, before: &mut [Table]) -> Sample {
    for (before, table) in before.iter_mut().zip(tables(rng)) {
        if rng.u8(..4) == 0 {
            *before = table;
        }
    }
    read_relay(before).unwrap_or_else(|error| panic!("{error}: {before:?}"))
}

/// Random answers of a relay.
fn tables(rng: &mut Rng) -> Vec<Table> {
    let table = |rng: &mut Rng, columns: &[&str]| {
        let rows = (0..rng.usize(..4))
            .map(|_| {
                columns
                    .iter()
                    .map(|&column| {
                        let value = match column {
                            "active_pid" => json!(rng.i32(-2..3)),
                            "state" => word(rng),
                            _ if column.ends_with("_lsn") => position(rng),
                            "name" | "group" | "slot" | "database" | "reason" | "primary" => {
                                name(rng)
                            }
                            _ => count(rng),
                        };
                        match value {
                            Value::Null => None,
                            Value::String(text) => Some(text),
                            other => Some(other.to_string()),
                        }
                    })
                    .collect()
            })
            .collect();
        Table {
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            rows,
        }
    };
    let mut upstream = vec![
        "group",
        "slot",
        "database",
        "state",
        "reason",
        "primary",
        "sent_lsn",
        "received_lsn",
        "durable_lsn",
        "transactions",
        "received_bytes",
    ];
    if rng.bool() {
        upstream.push("committed_lsn");
    }
    let slots = [
        "name",
        "database",
        "group",
        "active_pid",
        "sent_lsn",
        "confirmed_lsn",
        "behind_bytes",
        "cache_hit",
        "cache_miss",
        "hit_rate",
        "written_lsn",
        "applied_lsn",
    ];
    let spool = [
        "group",
        "spool_bytes",
        "spool_limit_bytes",
        "cache_bytes",
        "cache_limit_bytes",
    ];
    vec![
        table(rng, &slots),
        table(rng, &upstream),
        table(rng, &spool),
    ]
}

fn node(rng: &mut Rng, name: &str, role: Role) -> NodeWindow {
    let mut node = NodeWindow::empty(name, role);
    let (mut columns, mut tables) = (columns(rng), tables(rng));
    let mut at = Duration::ZERO;
    for _ in 0..rng.usize(..12) {
        at += Duration::from_millis(rng.u64(..300));
        let mut sample = match role {
            Role::Relay => relay_sample(rng, &mut tables),
            _ => server_sample(rng, &mut columns),
        };
        sample.at = at;
        node.keep(sample);
        let end = rng.u64(..).into();
        let group = rng
            .bool()
            .then(|| (*rng.choice(&NAMES).unwrap()).to_owned());
        node.glanced(group, Glance { at, end });
    }
    let values = ["nan", "inf", "-1", "0", "1e400", "", "\u{1b}", "64", "off"];
    let names = [
        "max_slot_wal_keep_size",
        "logical_decoding_work_mem",
        "port",
        "cluster_name",
        "wal_writer_delay",
        "lockstep.read_throttle",
    ];
    node.facts = Facts {
        version: rng.u32(..),
        system: rng.u8(..2).to_string(),
        settings: names
            .map(|name| {
                let value = rng.choice(values).unwrap();
                (name.to_owned(), sanitize(value))
            })
            .into(),
        ..Facts::default()
    };
    node
}

fn window(rng: &mut Rng) -> Window {
    let mut nodes = vec![node(rng, "primary", Role::Primary)];
    for (index, role) in (1..).zip([
        Role::Standby,
        Role::Standby,
        Role::Relay,
        Role::Subscriber,
        Role::Subscriber,
    ]) {
        if rng.u8(..4) > 0 {
            nodes.push(node(rng, &format!("{role}{index}"), role));
        }
    }
    // Comparison may make nodes unusable.
    if rng.bool() {
        compare(&mut nodes);
    }
    Window::new(nodes)
}

/// The text holds nothing that a terminal would obey.
fn harmless(text: &str) {
    assert_eq!(sanitize(text), text);
}

fn finite(number: f64) {
    assert!(number.is_finite(), "{number}");
}

fn sound(diagnosis: &Diagnosis) {
    for finding in &diagnosis.findings {
        assert!((0.0..=1.0).contains(&finding.explains), "{finding:?}");
        finite(finding.lag_ms);
        for fact in &finding.evidence {
            finite(fact.value);
            harmless(&fact.words);
        }
        let texts = finding.names.values().chain(&finding.remedies);
        for text in texts.chain([&finding.title, &finding.at]) {
            harmless(text);
        }
    }
    for link in &diagnosis.links {
        for number in [link.lag_ms, link.lag_max_ms, link.lag_bytes] {
            finite(number);
        }
        link.stage_bytes.values().for_each(|bytes| finite(*bytes));
        harmless(&link.replica);
    }
    for trouble in diagnosis.nodes.iter().flat_map(|node| &node.troubles) {
        harmless(&trouble.to_string());
    }
    serde_json::to_string(diagnosis).unwrap();
}

#[test]
fn any_window_is_diagnosed() {
    rounds(100, |rng| {
        let window = window(rng);
        let diagnosis = diagnose(&window);
        sound(&diagnosis);
        let (nodes, links) = monitor::shown(&window, &diagnosis);
        for link in &links {
            finite(link.lag_ms);
            finite(link.lag_max_ms);
        }
        for node in &nodes {
            node.wal_bytes_per_s.into_iter().for_each(finite);
        }
        serde_json::to_string(&(nodes, links)).unwrap();
    });
}

/// An error's text is short and harmless.
fn told<T>(result: &Result<T>) {
    let Err(error) = result else { return };
    let words = error.to_string();
    assert!(words.chars().count() < 400, "{words}");
    harmless(&words);
    assert!(matches!(
        error.trouble(),
        Trouble::Unreachable { .. } | Trouble::WrongRole { .. }
    ));
}

#[test]
fn damaged_answers_are_errors_or_harmless() {
    rounds(600, |rng| {
        let mut columns = columns(rng);
        for _ in 0..rng.usize(1..4) {
            let which = rng.usize(..columns.len());
            let text = columns[which].clone().unwrap_or_default();
            columns[which] = damage(rng, &text);
        }
        columns.truncate(rng.usize(..=columns.len()));
        let read = read_parts(Part::ALL.into_iter(), columns, 0);
        told(&read);
        if let Ok(sample) = read {
            let mut seen = NodeWindow::empty("n", Role::Primary);
            seen.keep(sample);
            sound(&diagnose(&Window::new(vec![seen])));
        }

        let mut tables = tables(rng);
        let which = rng.usize(..tables.len());
        match rng.u8(..5) {
            0 => tables.truncate(which),
            1 => tables[which].columns.truncate(2),
            2 => tables[which].rows.push(vec![None]),
            3 => tables[which]
                .rows
                .push(vec![Some("\u{1b}".repeat(900)); 12]),
            _ => tables.swap(0, which),
        }
        told(&read_relay(&tables));
        told(&relay::ends(&tables));
        told(&relay::ends(&tables[..tables.len().min(1)]));
    });
}

#[test]
fn floods_are_cut_off() {
    // More rows than any server has.
    let senders: Value = (0..MOST_ROWS + 7).map(|pid| json!({"pid": pid})).collect();
    let columns = vec![Some("{}".to_owned()), Some(senders.to_string())];
    let parts = [Part::Moment, Part::Senders];
    let sample = read_parts(parts.into_iter(), columns, 0).unwrap();
    assert_eq!(sample.senders.len(), MOST_ROWS);

    // A long answer.
    let long = Some("x".repeat(9 * 1024 * 1024));
    let read = read_parts([Part::Moment].into_iter(), vec![long.clone()], 0);
    assert!(matches!(&read, Err(LagError::Answer { .. })));
    told(&read);
    let table = Table {
        columns: vec!["x".to_owned()],
        rows: vec![vec![long]],
    };
    told(&read_relay(&vec![table; 3]));

    // A relay with too many slots, and with a long reason.
    let mut answers = tables(&mut Rng::with_seed(1));
    let row = vec![None; answers[0].columns.len()];
    answers[0].rows = vec![row; relay::MOST_ROWS + 1];
    told(&read_relay(&answers));
    answers[0].rows.clear();
    answers[1].rows = vec![vec![Some("9".repeat(100_000)); 6]];
    let groups = read_relay(&answers).unwrap().relay.unwrap().groups;
    assert_eq!(groups[0].name.len(), 1_000);

    // Many large samples.
    let mut seen = NodeWindow::empty("n", Role::Primary);
    for _ in 0..100 {
        seen.keep(Sample {
            size: MOST_BYTES / 10,
            ..Sample::default()
        });
    }
    assert_eq!(seen.samples.len(), 10);
    seen.keep(Sample {
        size: usize::MAX,
        ..Sample::default()
    });
    assert_eq!(seen.samples.len(), 1);
}
