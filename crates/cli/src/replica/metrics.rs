//! What `lockstep replica run --config` says of its replicas over HTTP.
//!
//! `GET /metrics` answers in Prometheus' text format 0.0.4, `GET /healthz` with 200 while every
//! replica applies or is paused, waits for no lock of others and lacks nothing, else with 503 and the
//! reasons. All is what this process knows: how far a source is that it cannot ask, `replica status`
//! says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lockstep_apply::batch::Closing;
use lockstep_apply::session::CyclesShown;
use lockstep_apply::{Phase, SpoolStats, Stats};
use lockstep_replica::lifecycle::daemon::Seen;
use lockstep_replica::lifecycle::follow::Following;
use lockstep_replica::status::standing::missing_words;
use lockstep_service::address::HostPort;
use lockstep_service::exposition::{Exposition, Family, Value};
use lockstep_service::http::pages::{self, Pages};
use lockstep_wire::Lsn;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tracing::{error, info};

/// How long requests under way may take at the end.
const LAST_REQUESTS: Duration = Duration::from_millis(200);

/// Serves the pages until it is dropped.
pub struct Served(Option<Runtime>);

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_timeout(LAST_REQUESTS);
        }
    }
}

/// Listens, and answers from then on.
pub fn serve(at: &HostPort, seen: Seen) -> Result<Served> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let address = (at.host.as_str(), at.port);
    let listener = runtime
        .block_on(TcpListener::bind(address))
        .with_context(|| format!("cannot listen on {at}"))?;
    let address = listener.local_addr().context("cannot listen")?;
    info!(%address, "metrics");
    runtime.spawn(async move {
        let never = std::future::pending();
        if let Err(error) = pages::serve(listener, Arc::new(OfReplicas(seen)), never).await {
            error!(%error, "metrics are not served any more");
        }
    });
    Ok(Served(Some(runtime)))
}

struct OfReplicas(Seen);

impl Pages for OfReplicas {
    fn metrics(&self) -> String {
        render(&self.0.all())
    }

    fn health(&self) -> (bool, String) {
        health(&self.0.all())
    }
}

/// The target as labels name it.
fn target(what: &Following) -> String {
    what.target.clone().without_secrets().to_string()
}

fn position(lsn: Lsn) -> Value {
    lsn.is_valid().then_some(lsn).into()
}

const FAMILIES: [Family<Stats>; 27] = [
    Family::new(
        "applied_position_bytes",
        "WAL position of the source in bytes up to which changes are committed on the target.",
        |stats| position(stats.applied),
    ),
    Family::new(
        "flushed_position_bytes",
        "Like applied_position_bytes, as far as it is on the target's disk; without a spool this is \
         confirmed to the source.",
        |stats| position(stats.flushed),
    ),
    Family::new(
        "source_position_bytes",
        "End of the source's WAL that it last reported, as a number of bytes.",
        |stats| position(stats.source_end),
    ),
    Family::new(
        "heard_age_seconds",
        "Time since the source last sent something.",
        |stats| {
            let seconds = |at: Instant| format!("{:.3}", at.elapsed().as_secs_f64());
            stats.heard.map(seconds).into()
        },
    ),
    Family::new(
        "sessions_total",
        "Times that both servers have been connected.",
        |stats| stats.sessions.into(),
    ),
    Family::new(
        "received_bytes_total",
        "Bytes of the source's messages.",
        |stats| stats.bytes.into(),
    ),
    Family::new(
        "transactions_total",
        "Transactions of the source that are committed on the target.",
        |stats| stats.counts.transactions.into(),
    ),
    Family::new("batches_total", "Commits on the target.", |stats| {
        stats.batches.into()
    }),
    Family::new(
        "inserted_rows_total",
        "Rows that the source inserted, of transactions that are committed.",
        |stats| stats.counts.inserts.into(),
    ),
    Family::new(
        "updated_rows_total",
        "Rows that the source updated, of transactions that are committed.",
        |stats| stats.counts.updates.into(),
    ),
    Family::new(
        "deleted_rows_total",
        "Rows that the source deleted, of transactions that are committed.",
        |stats| stats.counts.deletes.into(),
    ),
    Family::new(
        "missing_rows_total",
        "Rows to update or delete that the target did not have.",
        |stats| stats.missing.into(),
    ),
    Family::new(
        "unreplicated_tables",
        "Tables of the source that are not replicated as they should be, as last seen.",
        |stats| stats.unreplicated.as_ref().map(|it| it.tables).into(),
    ),
    Family::new(
        "unmade_objects",
        "Objects of the source that the copy could not make on the target, and sequences that are not set, \
            as last seen.",
        |stats| stats.unmade.into(),
    ),
    Family::new(
        "waits_for_lock",
        "1 while changes wait for a lock that another session on the target holds.",
        |stats| stats.waits.is_some().into(),
    ),
    Family::new(
        "spool_bytes",
        "Disk space that the replica's spool takes.",
        |stats| spool(stats, |spool| spool.bytes),
    ),
    Family::new(
        "spool_limit_bytes",
        "Limit of the replica's spool on disk.",
        |stats| spool(stats, |spool| spool.limit),
    ),
    Family::new(
        "spool_from_position_bytes",
        "WAL position of the source in bytes from which on the spool holds changes that the target lacks.",
        |stats| spool(stats, |spool| spool.from),
    ),
    Family::new(
        "spool_to_position_bytes",
        "WAL position of the source in bytes up to which the spool holds changes on disk; this is \
         confirmed to the source.",
        |stats| spool(stats, |spool| spool.to),
    ),
    Family::new(
        "spool_full",
        "1 while the spool has no room, so that the source keeps WAL.",
        |stats| spool(stats, |spool| spool.full.is_some()),
    ),
    Family::new(
        "frequency_seconds",
        "Time from the beginning of one cycle to that of the next, of a replica that has cycles.",
        |stats| seconds(stats.cycles.map(|cycles| cycles.every)),
    ),
    Family::new(
        "last_cycle_seconds",
        "Time that the newest committed cycle took.",
        |stats| seconds(stats.last_cycle.map(|(_, took)| took)),
    ),
    Family::new(
        "last_cycle_rows",
        "Changed rows of the newest committed cycle, as the source sent them.",
        |stats| last(stats, |cycle| cycle.counts.rows()),
    ),
    Family::new(
        "last_cycle_bytes",
        "Bytes of the source's messages of the newest committed cycle.",
        |stats| last(stats, |cycle| cycle.sent_bytes),
    ),
    Family::new(
        "cycle_late_seconds",
        "Time by which the target is later than its frequency and a cycle as long as the last let expect.",
        |stats| {
            let late = |it: CyclesShown| it.late.map_or(Duration::ZERO, |late| late.elapsed());
            seconds(stats.cycles.map(late))
        },
    ),
    Family::new("cycles_total", "Cycles that are committed.", |stats| {
        of_cycles(stats, stats.cycles_done)
    }),
    Family::new(
        "failed_cycles_total",
        "Times that a cycle failed.",
        |stats| of_cycles(stats, stats.cycles_failed),
    ),
];

fn seconds(time: Option<Duration>) -> Value {
    time.map(|time| format!("{:.3}", time.as_secs_f64())).into()
}

/// A figure of the newest cycle.
fn last(stats: &Stats, value: fn(&Closing) -> u64) -> Value {
    stats.last_cycle.map(|(cycle, _)| value(&cycle)).into()
}

/// A count of cycles, of a replica that has had some.
fn of_cycles(stats: &Stats, count: u64) -> Value {
    let has_some = stats.cycles.is_some() || stats.cycles_done + stats.cycles_failed > 0;
    has_some.then_some(count).into()
}

fn spool<V: Into<Value>>(stats: &Stats, value: fn(&SpoolStats) -> V) -> Value {
    stats.spool.as_ref().map(value).into()
}

const PHASES: [Phase; 5] = [
    Phase::Connecting,
    Phase::Applying,
    Phase::Paused,
    Phase::Blocked,
    Phase::Stopped,
];

/// Everything as Prometheus reads it. Counters start at 0 with the process, and when a replica that
/// failed is tried again.
fn render(replicas: &[(Following, Stats)]) -> String {
    let mut text = Exposition::new("lockstep_replica_");
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    let about = "The program's version, as a label; always 1.";
    text.metric("build_info", about, [(version, true)]);
    let replicas: Vec<_> = replicas
        .iter()
        .map(|(what, stats)| (what.name.as_str(), target(what), stats))
        .collect();
    text.metric(
        "state",
        "1 for the state that the replica is in.",
        replicas.iter().flat_map(|(name, target, stats)| {
            PHASES.map(|phase| {
                let labels = [
                    ("replica", *name),
                    ("target", target),
                    ("state", phase.name()),
                ];
                (labels, phase == stats.phase)
            })
        }),
    );
    text.families(
        &FAMILIES,
        replicas
            .iter()
            .map(|(name, target, stats)| ([("replica", *name), ("target", target)], *stats)),
    );
    text.into_text()
}

/// Time by which a target may be later than its cycles let expect, before it counts as not well.
const LATE_GRACE: Duration = Duration::from_secs(10);

/// Why a replica's target is later than its cycles let expect; None if it is not.
fn late(stats: &Stats) -> Option<String> {
    let late = stats.cycles?.late?.elapsed();
    let full = stats.spool.as_ref().and_then(|spool| spool.full.clone());
    (late >= LATE_GRACE).then(|| {
        let why = full.map_or_else(String::new, |full| {
            format!(": its spool is full: {}", full.words)
        });
        format!(
            "the target is {} s later than its frequency lets expect{why}",
            late.as_secs()
        )
    })
}

/// What is not well with a replica, in words.
struct Ills {
    not_applying: bool,
    incomplete: Vec<String>,
    late: Option<String>,
    words: Vec<String>,
}

impl Ills {
    fn of(stats: &Stats) -> Self {
        let is_well = matches!(stats.phase, Phase::Applying | Phase::Paused);
        let tables = stats.unreplicated.clone().and_then(|it| it.words);
        let missing = missing_words(stats.missing.max(stats.missing_rows));
        let incomplete: Vec<_> = tables.into_iter().chain(missing).collect();
        let late = late(stats);
        let stands = stats.error.clone().or(stats.waits.clone());
        let stands = stands.filter(|_| !is_well || stats.waits.is_some());
        let words = stands.into_iter().chain(incomplete.clone());
        Self {
            not_applying: !is_well || stats.waits.is_some(),
            words: words.chain(late.clone()).collect(),
            incomplete,
            late,
        }
    }

    fn is_well(&self) -> bool {
        !self.not_applying && self.incomplete.is_empty() && self.late.is_none()
    }
}

/// True if every replica applies or is paused, waits for no lock of others, lacks no table and no row, and is
/// not later than its cycles let expect; and JSON for people who ask why not.
fn health(replicas: &[(Following, Stats)]) -> (bool, String) {
    let all = replicas
        .iter()
        .map(|(what, stats)| (what, stats, Ills::of(stats)));
    let ill: Vec<_> = all.filter(|(.., ills)| !ills.is_well()).collect();
    let reasons: Vec<_> = (ill.iter())
        .map(|(what, stats, ills)| {
            json!({
                "replica": what.name,
                "target": target(what),
                "state": stats.phase.name(),
                "reason": (!ills.words.is_empty()).then(|| ills.words.join("; ")),
            })
        })
        .collect();
    let status = match () {
        () if ill.is_empty() => "ok",
        () if ill.iter().any(|(.., ills)| ills.not_applying) => "not applying",
        () if ill.iter().any(|(.., ills)| !ills.incomplete.is_empty()) => "not complete",
        () => "late",
    };
    let body = json!({ "status": status, "reasons": reasons });
    (ill.is_empty(), format!("{body}\n"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use lockstep_apply::Unreplicated;
    use lockstep_apply::batch::Counts;
    use lockstep_client::Conninfo;

    use super::*;

    fn example() -> Vec<(Following, Stats)> {
        let following = |name: &str| Following {
            name: name.to_owned(),
            target: Conninfo::parse("host=db2 dbname=app password=secret").unwrap(),
            source: None,
            memory: 1,
            writers: 1.into(),
            spool: None,
        };
        let applying = Stats {
            phase: Phase::Applying,
            applied: Lsn::from(90),
            flushed: Lsn::from(80),
            source_end: Lsn::from(100),
            // A moment that is still to come has an age of 0, however slow the test is.
            heard: Some(Instant::now() + Duration::from_secs(3600)),
            missing: 3,
            unreplicated: Some(Unreplicated::default()),
            unmade: Some(0),
            batches: 7,
            bytes: 4000,
            sessions: 2,
            counts: Counts {
                transactions: 12,
                inserts: 30,
                updates: 20,
                deletes: 10,
                truncates: 1,
            },
            spool: Some(SpoolStats {
                bytes: 300,
                limit: 1000,
                from: Lsn::from(80),
                to: Lsn::from(95),
                full: None,
            }),
            cycles: Some(CyclesShown {
                every: Duration::from_secs(60),
                running: None,
                next: Instant::now(),
                late: None,
            }),
            last_cycle: Some((
                Closing {
                    number: 5,
                    began: Instant::now(),
                    forces: 0,
                    counts: Counts {
                        inserts: 6,
                        ..Counts::default()
                    },
                    sent_bytes: 700,
                    tables: 1,
                },
                Duration::from_millis(1500),
            )),
            cycles_done: 4,
            cycles_failed: 2,
            ..Stats::default()
        };
        let stopped = Stats {
            phase: Phase::Stopped,
            error: Some("no replica".to_owned()),
            ..Stats::default()
        };
        vec![(following("app"), applying), (following("other"), stopped)]
    }

    #[test]
    fn metrics_are_as_recorded_without_a_secret_and_documented() {
        let text = render(&example());
        assert!(!text.contains("secret"), "{text}");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/replica/metrics_example.txt");
        let recorded = text.replace(env!("CARGO_PKG_VERSION"), "VERSION");
        lockstep_lab::for_tests::assert_recorded(&path, &recorded);
        assert_eq!(exported(&text), documented());
    }

    /// Names of metrics with their labels.
    type Series = BTreeSet<(String, BTreeSet<String>)>;

    fn exported(text: &str) -> Series {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let series = samples.map(|line| {
            let (name, rest) = line.split_once('{').unwrap();
            let (labels, _) = rest.split_once("\"} ").unwrap();
            let labels = labels.split("\",").map(|label| {
                let (label, _) = label.split_once('=').unwrap();
                label.to_owned()
            });
            let name = name.strip_prefix("lockstep_replica_").unwrap();
            (name.to_owned(), labels.collect())
        });
        series.collect()
    }

    /// The table in docs/replica.md, which the test of the alert rules relies on.
    fn documented() -> Series {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/replica.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (_, table) = page.split_once("| metric | labels |").unwrap();
        let quoted = |cell: &str| -> BTreeSet<String> {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect()
        };
        let rows = table
            .lines()
            .skip(2)
            .take_while(|line| line.starts_with("| `"));
        let series = rows.flat_map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
            let labels = quoted(cells[1]);
            quoted(cells[0])
                .into_iter()
                .map(move |name| (name, labels.clone()))
        });
        series.collect()
    }

    #[test]
    fn a_replica_that_does_not_apply_is_not_well() {
        let (healthy, words) = health(&example());
        assert!(!healthy);
        assert!(
            words.contains("no replica") && !words.contains("secret"),
            "{words}"
        );
        let mut well = example();
        well.truncate(1);
        // The example lacks some rows.
        let (healthy, words) = health(&well);
        assert!(!healthy && words.contains("3 rows to update"), "{words}");
        well[0].1.missing = 0;
        assert!(health(&well).0);
        well[0].1.missing_rows = 4;
        let (healthy, words) = health(&well);
        assert!(!healthy && words.contains("4 rows to update"), "{words}");
        well[0].1.missing_rows = 0;
        well[0].1.waits = Some("it waits for a lock of process 7".to_owned());
        let (healthy, words) = health(&well);
        assert!(
            !healthy && words.contains("process 7") && words.contains("not applying"),
            "{words}"
        );
        well[0].1.waits = None;
        assert!(health(&well).0);
        well[0].1.phase = Phase::Paused;
        assert!(health(&well).0);
        well[0].1.phase = Phase::Blocked;
        assert!(!health(&well).0);
        well[0].1.phase = Phase::Applying;
        well[0].1.unreplicated = Some(Unreplicated {
            tables: 1,
            words: Some("public.t is not replicated".to_owned()),
        });
        let (healthy, words) = health(&well);
        assert!(!healthy && words.contains("public.t is not"), "{words}");
    }
}
