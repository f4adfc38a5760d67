//! Signals of replay on a standby.

use lockstep_service::words::figures::{bytes, counted, percent, seconds, verb};

use super::halted::replay_halts;
use super::{Evidence, Severity, View};
use crate::link::Link;
use crate::parallel_report::ParallelReport;
use crate::point::{LinkKind, Stage};
use crate::sample::Sample;
use crate::states::{BackendType, WaitType};
use crate::views::{Extension, Process, Session};
use crate::window::NodeWindow;

/// Share of samples from which a wait counts as slowing replay.
const WAIT_SHARE: f64 = 0.2;

/// Share of samples that counts for storage, which every busy standby waits for now and then.
const STORAGE_SHARE: f64 = 0.4;

/// Share of the time from which a startup process that runs is at its core's limit.
const CORE_SHARE: f64 = 0.75;

/// Share of the time from which a startup process that waits for a core is starved.
const QUEUED_SHARE: f64 = 0.25;

/// Number of queries running at once that starve replay, where CPU cannot be measured.
const MANY_READERS: f64 = 6.0;

/// Look-ups of subtransactions a second from which they slow replay.
const MANY_LOOKUPS: f64 = 1_000.0;

/// Samples with something to replay from which the startup process can be said to wait for storage:
/// a backlog that is over in a moment may show one read of WAL, and nothing else.
const LEAST_SEEN: usize = 3;

/// The part of the lag that the replay stage must hold.
const REPLAY_STAGE: f64 = 0.3;

/// Physical links to standbys that were asked.
pub(super) fn standbys<'v, 'a>(
    view: &'v View<'a>,
) -> impl Iterator<Item = (&'v Link<'a>, &'a NodeWindow)> {
    view.links
        .iter()
        .filter(|link| link.kind == LinkKind::Physical)
        .filter_map(|link| Some((link, link.replica?)))
}

/// Standbys that are behind, with the samples in which there was something to replay. What the
/// startup process does without anything to replay says nothing.
pub(super) fn late<'v, 'a>(view: &'v View<'a>) -> impl Iterator<Item = (&'v Link<'a>, NodeWindow)> {
    standbys(view)
        .filter(|(link, _)| link.is_behind())
        .map(|(link, node)| {
            (
                link,
                node.span(|sample| {
                    let has_more = link.is_archived() && !sample.asks_for_wal();
                    has_more || sample.wal.receive > sample.wal.replay
                }),
            )
        })
}

pub(super) fn startup_share(node: &NodeWindow, does: impl Fn(&Process) -> bool) -> f64 {
    node.share(|sample| sample.process(&BackendType::Startup).is_some_and(&does))
}

pub(super) fn unreplayed(evidence: Evidence, link: &Link<'_>) -> Evidence {
    let last = link.points.last();
    let waiting = last.map_or(0, |point| point.stage(LinkKind::Physical, Stage::Replay)) as f64;
    let evidence = evidence.fact(
        "unreplayed_bytes",
        waiting,
        format!("{} received and not replayed", bytes(waiting)),
    );
    let says = extension(link).and_then(|extension| extension.lag_ms);
    match says {
        Some(ms) => evidence.fact(
            "extension_lag_ms",
            ms,
            format!("extension lockstep there says {}", seconds(ms)),
        ),
        None => evidence,
    }
}

/// Adds for how long replay waits for queries: of WAL from an archive another setting says it.
pub(super) fn with_delay(evidence: Evidence, node: &NodeWindow) -> Evidence {
    let name = match node.restores_only() {
        true => "max_standby_archive_delay",
        false => "max_standby_streaming_delay",
    };
    match node.facts.setting(name) {
        Some(value) => evidence
            .name("delay_setting", name)
            .name("delay", super::setting::shown(name, value)),
        None => evidence,
    }
}

/// What extension lockstep says on the link's standby, if it is loaded there.
fn extension<'a>(link: &Link<'a>) -> Option<&'a Extension> {
    link.replica?.last()?.extension.as_ref()
}

/// Adds how the extension keeps readers from replay's CPU, or that it is not loaded.
fn kept_back(evidence: Evidence, link: &Link<'_>, node: &NodeWindow) -> Evidence {
    let preloaded = node
        .facts
        .setting("shared_preload_libraries")
        .is_some_and(|libraries| libraries.split(',').any(|name| name.trim() == "lockstep"));
    let Some(extension) = extension(link) else {
        return match preloaded {
            true => evidence,
            false => {
                (evidence.name("stock_node", &node.name)).setting(node, "shared_preload_libraries")
            }
        };
    };
    evidence
        .fact(
            "gate_running",
            extension.running as f64,
            format!(
                "extension lockstep lets {} queries run at once: {} do, {} wait",
                extension.concurrency_limit, extension.running, extension.waiting
            ),
        )
        .fact(
            "demoted_sessions",
            extension.demoted as f64,
            format!(
                "{} {} low priority ({})",
                counted(extension.demoted, "session"),
                verb(extension.demoted, "has", "have"),
                extension.method.as_deref().unwrap_or("none")
            ),
        )
        .name("lockstep_node", &node.name)
        .setting(node, "lockstep.enabled")
        .setting(node, "lockstep.replay_priority")
        .setting(node, "lockstep.read_throttle")
}

pub(super) fn delayed(view: &View<'_>) -> Vec<Evidence> {
    let waits = |process: &Process| process.waits_for("RecoveryApplyDelay");
    let mut found = Vec::new();
    for (link, node) in late(view) {
        let share = startup_share(&node, waits);
        if share < WAIT_SHARE {
            continue;
        }
        let evidence = Evidence::of(link, share)
            .fact(
                "delay_share",
                share,
                format!(
                    "the startup process waited for the delay in {} of the samples",
                    percent(share)
                ),
            )
            .setting(&node, "recovery_min_apply_delay");
        found.push(unreplayed(evidence, link));
    }
    found
}

/// The wait event of a startup process that waits for the end of a snapshot.
const SNAPSHOT: &str = "RecoveryConflictSnapshot";

/// The startup process waits for a query: for the end of its snapshot, or for its lock.
fn in_conflict(process: &Process) -> bool {
    process.waits(&WaitType::Lock)
        || [SNAPSHOT, "RecoveryConflictTablespace"]
            .iter()
            .any(|event| process.waits_for(event))
}

pub(super) fn conflict(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (link, node) in late(view) {
        let share = startup_share(&node, in_conflict);
        if share < WAIT_SHARE {
            continue;
        }
        // The newest sample that shows the wait also shows who is to blame.
        let moment = node.samples.iter().rev().find(|sample| {
            sample
                .process(&BackendType::Startup)
                .is_some_and(in_conflict)
        });
        let Some(sample) = moment else { continue };
        let event = sample
            .process(&BackendType::Startup)
            .and_then(|process| process.wait.clone());
        let mut evidence = Evidence::of(link, share).fact(
            "conflict_share",
            share,
            format!(
                "the startup process waited ({}) in {} of the samples",
                event.as_deref().unwrap_or("Lock"),
                percent(share)
            ),
        );
        let seen = node.growth(|sample| Some(sample.extension.as_ref()?.conflicts as f64));
        if extension(link).is_some() {
            evidence = evidence.fact(
                "extension_conflicts",
                seen,
                format!("extension lockstep counted {seen:.0} conflicts meanwhile"),
            );
        }
        if let Some(session) = culprit(sample) {
            evidence = evidence.session(session);
        }
        found.push(unreplayed(with_delay(evidence, &node), link));
    }
    found
}

/// The session that holds the lock that replay waits for, or the one with the oldest snapshot if
/// replay waits for the end of a snapshot. None if it is somebody else, who must not be ended for it.
fn culprit(sample: &Sample) -> Option<&Session> {
    let startup = sample.process(&BackendType::Startup)?;
    let mut sessions = sample.clients.oldest.iter();
    if !startup.blocked_by.is_empty() {
        return sessions.find(|session| startup.blocked_by.contains(&session.pid));
    }
    startup.waits_for(SNAPSHOT).then_some(())?;
    let with_snapshot = sessions.filter(|session| session.xmin_age.is_some());
    with_snapshot.max_by_key(|session| session.xmin_age)
}

pub(super) fn cleanup_lock(view: &View<'_>) -> Vec<Evidence> {
    // The type is called Buffer from 19 on.
    let waits = |process: &Process| {
        process.waits(&WaitType::BufferPin) || process.waits_for("BufferCleanup")
    };
    let mut found = Vec::new();
    for (link, node) in late(view) {
        let share = startup_share(&node, waits);
        if share < WAIT_SHARE {
            continue;
        }
        let mut evidence = Evidence::of(link, share).fact(
            "cleanup_lock_share",
            share,
            format!(
                "the startup process waited for a buffer pin in {} of the samples",
                percent(share)
            ),
        );
        let moment = node
            .samples
            .iter()
            .rev()
            .find(|sample| sample.process(&BackendType::Startup).is_some_and(waits));
        if let Some(session) = moment.and_then(|sample| sample.clients.oldest.first()) {
            evidence = evidence.session(session);
        }
        found.push(unreplayed(with_delay(evidence, &node), link));
    }
    found
}

/// Standbys that are late because of replay.
fn slow_replay<'v, 'a>(
    view: &'v View<'a>,
) -> impl Iterator<Item = (&'v Link<'a>, NodeWindow, f64)> {
    late(view).filter_map(|(link, node)| {
        let stage = link.stage_share(Stage::Replay);
        (stage >= REPLAY_STAGE).then_some((link, node, stage))
    })
}

fn runs(process: &Process) -> bool {
    process.wait.is_none()
}

fn running_queries(node: &NodeWindow) -> f64 {
    node.mean(|sample| sample.clients.running as f64)
}

/// The share of the time in which replay was kept from a core, and the evidence for it.
fn starvation(node: &NodeWindow) -> Option<(f64, Evidence)> {
    let readers = running_queries(node);
    let evidence = Evidence::on(node, Severity::Lag).fact(
        "running_queries",
        readers,
        format!("{readers:.1} queries ran at once"),
    );
    if let Some(cpu) = node.cpu(|process| process.backend_type == BackendType::Startup) {
        let words = format!(
            "the startup process was ready and had no core for {} of the time, and ran for {}",
            percent(cpu.queued),
            percent(cpu.ran)
        );
        let starved = cpu.queued >= QUEUED_SHARE;
        return starved.then(|| (cpu.queued, evidence.fact("queued_share", cpu.queued, words)));
    }
    let share = startup_share(node, runs);
    let words = format!(
        "the startup process wanted to run in {} of the samples",
        percent(share)
    );
    let starved = readers >= MANY_READERS && share >= 0.5;
    starved.then(|| (share, evidence.fact("wants_to_run_share", share, words)))
}

pub(super) fn starved(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (link, node, stage) in slow_replay(view) {
        let Some((share, seen)) = starvation(&node) else {
            continue;
        };
        let mut evidence = Evidence::of(link, stage * share);
        evidence.facts = seen.facts;
        let evidence = unreplayed(evidence, link);
        found.push(if running_queries(&node) < 1.0 {
            evidence
                .name("who", "other processes")
                .name("busy_node", &node.name)
        } else {
            let evidence = kept_back(evidence, link, &node);
            evidence
                .name("who", "readers")
                .name("read_node", &node.name)
        });
    }
    found
}

pub(super) fn core_limit(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (link, node, stage) in slow_replay(view) {
        if replay_halts(&node) {
            continue;
        }
        let evidence = match node.cpu(|process| process.backend_type == BackendType::Startup) {
            Some(cpu) if cpu.ran >= CORE_SHARE => Evidence::of(link, stage * cpu.ran).fact(
                "startup_cpu_share",
                cpu.ran,
                format!("the startup process used {} of a core", percent(cpu.ran)),
            ),
            Some(_) => continue,
            None => {
                let share = startup_share(&node, runs);
                if share < CORE_SHARE || starvation(&node).is_some() {
                    continue;
                }
                Evidence::of(link, stage * share).fact(
                    "running_share",
                    share,
                    format!(
                        "the startup process waited for nothing in {} of the samples",
                        percent(share)
                    ),
                )
            }
        };
        let replayed = node.growth(|sample| sample.wal.replay.map(|lsn| u64::from(lsn) as f64));
        let rate = crate::figures::ratio(replayed, node.length().as_secs_f64());
        let evidence = evidence.fact(
            "replay_bytes_per_s",
            rate,
            format!("it replayed {} a second", bytes(rate)),
        );
        let evidence = several_processes(evidence, &node);
        let evidence = match ParallelReport::of(&node) {
            None => evidence,
            Some(report) => evidence.fact(
                "ahead_share",
                report.ahead_share.unwrap_or(0.0),
                format!("replay by several processes: {}", report.words),
            ),
        };
        found.push(unreplayed(evidence, link));
    }
    found
}

/// Adds whether the extension could replay with several processes, and what it is told to.
fn several_processes(evidence: Evidence, node: &NodeWindow) -> Evidence {
    match node.facts.setting("lockstep.replay_workers") {
        None => evidence.name("stock_node", &node.name),
        Some(_) => (evidence.name("lockstep_node", &node.name))
            .setting(node, "lockstep.replay_workers")
            .setting(node, "lockstep.replay_hot_standby"),
    }
}

pub(super) fn storage(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (link, node, stage) in slow_replay(view) {
        let share = startup_share(&node, |process| process.waits(&WaitType::Io));
        if share < STORAGE_SHARE || node.samples.len() < LEAST_SEEN {
            continue;
        }
        let mut evidence = Evidence::of(link, stage * share).fact(
            "storage_share",
            share,
            format!(
                "the startup process waited for storage ({}) in {} of the samples",
                most_seen(&node).unwrap_or("IO"),
                percent(share)
            ),
        );
        let read = node.io_time(&BackendType::Startup, |io| (io.read_time_ms, io.reads));
        if let Some((ms, reads)) = read {
            let words = format!("{ms:.1} ms for each of {reads:.0} reads");
            evidence = evidence.fact("read_ms", ms, words);
        }
        evidence = several_processes(unreplayed(evidence, link), &node)
            .setting(&node, "recovery_prefetch")
            .setting(&node, "maintenance_io_concurrency");
        found.push(evidence);
    }
    found
}

/// The storage event that the startup process waited for most often.
fn most_seen(node: &NodeWindow) -> Option<&str> {
    let mut counts = std::collections::BTreeMap::new();
    for sample in &node.samples {
        let process = sample
            .process(&BackendType::Startup)
            .filter(|process| process.waits(&WaitType::Io));
        if let Some(event) = process.and_then(|process| process.wait.as_deref()) {
            *counts.entry(event).or_insert(0_u32) += 1;
        }
    }
    counts
        .into_iter()
        .max_by_key(|(_, count)| *count)
        .map(|(event, _)| event)
}

pub(super) fn savepoints(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in view.links.iter().filter(|link| link.is_behind()) {
        for node in link.replica.into_iter().chain([link.upstream]) {
            let looked = node.growth(|sample| Some(sample.totals.subtransaction_lookups as f64));
            let rate = crate::figures::ratio(looked, node.length().as_secs_f64());
            if rate < MANY_LOOKUPS {
                continue;
            }
            let waits = node.share(|sample| {
                sample.processes.iter().any(|process| {
                    process
                        .wait
                        .as_deref()
                        .is_some_and(|wait| wait.to_ascii_lowercase().starts_with("subtrans"))
                })
            });
            let mut evidence = Evidence::of(link, waits.max(0.1)).fact(
                "subtransaction_lookups_per_s",
                rate,
                format!(
                    "{rate:.0} look-ups of subtransactions a second on {}",
                    node.name
                ),
            );
            let writer = link.upstream.last().and_then(|sample| {
                sample
                    .clients
                    .oldest
                    .iter()
                    .find(|session| session.has_xid())
            });
            if let Some(session) = writer {
                evidence = evidence.session(session);
            }
            let (_, lag_max_ms) = link.lag_ms();
            evidence = evidence.fact(
                "lag_max_ms",
                lag_max_ms,
                format!("at most {} behind", seconds(lag_max_ms)),
            );
            found.push(evidence);
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Role;
    use crate::window::Window;

    #[test]
    fn what_the_extension_says_decides_what_is_proposed() {
        let says = Extension {
            running: 4,
            waiting: 60,
            concurrency_limit: 4,
            demoted: 64,
            method: Some("autogroup".to_owned()),
            ..Extension::default()
        };
        // Whether the extension is preloaded, what its views say, and the name that its remedy
        // needs.
        for (preloaded, extension, expected) in [
            (false, None, Some("stock_node")),
            (true, None, None),
            (true, Some(says), Some("lockstep_node")),
        ] {
            let sample = |role: Role| Sample {
                extension: extension.clone().filter(|_| role == Role::Standby),
                in_recovery: role == Role::Standby,
                ..Sample::default()
            };
            let node = |role: Role| NodeWindow {
                samples: vec![sample(role)],
                ..NodeWindow::empty(&role.to_string(), role)
            };
            let mut standby = node(Role::Standby);
            if preloaded {
                let libraries = "pg_stat_statements, lockstep".to_owned();
                let name = "shared_preload_libraries".to_owned();
                standby.facts.settings.insert(name, libraries);
            }
            let window = Window::new(vec![node(Role::Primary), standby]);
            let view = View::new(&window);
            let link = view.links.first().unwrap();
            let evidence = kept_back(Evidence::of(link, 1.0), link, &window.nodes[1]);
            let names = ["stock_node", "lockstep_node"];
            let found = names
                .into_iter()
                .find(|name| evidence.names.contains_key(name));
            assert_eq!(found, expected);
            assert_eq!(evidence.facts.is_empty(), extension.is_none());
        }
    }
}
