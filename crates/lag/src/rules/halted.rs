//! Signals of processes that are there and do nothing.

use std::time::Duration;

use lockstep_service::words::figures::{bytes, seconds};

use super::receive::{receiver as process_of, writes_wal};
use super::replay::{late, startup_share, unreplayed};
use super::{Cause, Evidence, Rule, Severity, View};
use crate::link::Link;
use crate::node::{Role, Trouble};
use crate::point::{LinkKind, Point};
use crate::sample::Sample;
use crate::states::BackendType;
use crate::views::Process;
use crate::window::NodeWindow;

/// Share of samples from which a process counts as stopped, or as waiting for nothing else.
const MOSTLY: f64 = 0.5;

/// Share of the time on a core, or waiting for one, below which a process does not run.
const NO_CPU: f64 = 0.01;

/// Shortest time in which replay that runs has replayed something.
const LEAST: Duration = Duration::from_secs(1);

/// Time without a message from which a walreceiver takes nothing, in milliseconds. A slow
/// network lets something through; the upstream sends whatever it has at once.
const SILENT_MS: f64 = 3_000.0;

/// Share of samples from which a process does nothing but wait for the other end.
const ALWAYS: f64 = 0.9;

/// The rule of processes that have none of their own.
pub(super) const PROCESS: Rule = Rule {
    cause: Cause::ProcessHalted,
    title: "the {process} on {runs_on} does nothing",
    signal: process,
    remedies: &[
        "on the machine of {runs_on}: kill -CONT {stopped_pid}; a signal or a debugger has stopped that \
         process",
        "look at process {silent_pid} on {runs_on} (ps, a debugger), and at the network between it and \
         {other_end}: nothing gets through, and the connection stays open",
    ],
};

fn is_stopped(process: &Process) -> bool {
    process.cpu.is_some_and(|cpu| cpu.stopped)
}

/// Adds which process it is, and that it is stopped, if that is known.
fn of_process(evidence: Evidence, process: Option<&Process>, stopped: f64) -> Evidence {
    let Some(process) = process else {
        return evidence;
    };
    let evidence = evidence.name("pid", process.pid.to_string());
    match stopped >= MOSTLY {
        true => evidence
            .fact(
                "stopped_share",
                stopped,
                format!("process {} is stopped (state T)", process.pid),
            )
            .name("stopped_pid", process.pid.to_string()),
        false => evidence,
    }
}

/// The replica has received nothing of what there is.
fn takes_none(link: &Link<'_>) -> bool {
    let ends = link.points.first().zip(link.points.last());
    ends.is_some_and(|(first, last)| {
        first.write == last.write && last.write < last.end && last.at > first.at
    })
}

/// The walreceiver is there, waits for no disk, and takes nothing of what there is.
pub(super) fn receiver_halts(link: &Link<'_>) -> bool {
    let Some(node) = link.replica.filter(|_| link.kind == LinkKind::Physical) else {
        return false;
    };
    let stopped = node.share(|sample| process_of(sample).is_some_and(is_stopped));
    let flushes = node.share(|sample| process_of(sample).is_some_and(writes_wal));
    let silent_ms = node
        .last()
        .and_then(|sample| sample.receiver.as_ref()?.message_age_ms);
    // An upstream that was not asked may have nothing to send.
    let is_fed = link.unasked.is_none();
    let silent = silent_ms >= Some(SILENT_MS) && flushes < MOSTLY && is_fed;
    link.is_behind() && takes_none(link) && (stopped >= MOSTLY || silent)
}

pub(super) fn receiver(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in &view.links {
        let Some(node) = link.replica.filter(|_| link.kind == LinkKind::Physical) else {
            continue;
        };
        let halts = receiver_halts(link);
        let last = node.last();
        let row = last.and_then(|sample| sample.receiver.as_ref());
        let silent_ms = row.and_then(|row| row.message_age_ms).unwrap_or(0.0);
        let behind = link.last_bytes() as f64;
        let stopped = node.share(|sample| process_of(sample).is_some_and(is_stopped));
        // While nothing is written, one that is stopped takes nothing, too.
        let severity = match halts {
            true => Severity::Lag,
            false if stopped >= MOSTLY => Severity::Risk,
            false => continue,
        };
        let evidence = Evidence::of(link, 1.0)
            .severity(severity)
            .fact(
                "message_age_ms",
                silent_ms,
                format!("it took its last message {} ago", seconds(silent_ms)),
            )
            .fact(
                "behind_bytes",
                behind,
                format!("{} behind {}", bytes(behind), link.upstream.name),
            )
            .setting(node, "wal_receiver_timeout");
        let evidence = match link.unasked {
            None => evidence.setting(link.upstream, "wal_sender_timeout"),
            Some(_) => evidence,
        };
        let process = last.and_then(process_of);
        found.push(of_process(evidence, process, stopped));
    }
    found
}

/// A relay does not answer, and its walsender on the primary is connected all the same. Of a
/// relay that has ended the walsender would be gone.
pub(super) fn relay(view: &View<'_>) -> Vec<Evidence> {
    let away = |node: &&NodeWindow| {
        let mut troubles = node.troubles.iter();
        node.role == Role::Relay && troubles.any(|one| matches!(one, Trouble::Unreachable { .. }))
    };
    let away: Vec<&str> = view
        .window
        .nodes
        .iter()
        .filter(away)
        .map(|n| n.name.as_str())
        .collect();
    let mut found = Vec::new();
    for link in view.links.iter().filter(|link| link.is_of_unasked_relay()) {
        let connected = link.connected_share();
        let halts = link.is_behind() && takes_none(link) && connected >= MOSTLY;
        if away.is_empty() || !halts {
            continue;
        }
        let behind = link.last_bytes() as f64;
        found.push(
            Evidence::of(link, 1.0)
                .fact(
                    "behind_bytes",
                    behind,
                    format!("{} behind {}", bytes(behind), link.upstream.name),
                )
                .fact(
                    "connected_share",
                    connected,
                    format!(
                        "its walsender on {} is connected, and it takes nothing; its console does \
                         not answer",
                        link.upstream.name
                    ),
                )
                .setting(link.upstream, "wal_sender_timeout")
                .name("relay", away.join(", ")),
        );
    }
    found
}

/// The startup process has something to replay and does not run.
pub(super) fn replay_halts(node: &NodeWindow) -> bool {
    let startup = |process: &Process| process.backend_type == BackendType::Startup;
    let ends = node.samples.first().zip(node.samples.last());
    let stands = ends.is_some_and(|(first, last)| {
        first.wal.replay == last.wal.replay && last.wal.replay < last.wal.receive
    });
    // It waits for WAL that is there. While nothing more comes, that may be the rest of a record.
    let comes = ends.is_some_and(|(first, last)| first.wal.receive < last.wal.receive);
    let waits = startup_share(node, |process| {
        comes && process.waits_for("RecoveryWalStream")
    });
    let cpu = node.cpu(startup);
    let still = cpu.is_some_and(|cpu| cpu.ran + cpu.queued < NO_CPU);
    let runs = startup_share(node, |process| process.wait.is_none());
    let stopped = startup_share(node, is_stopped);
    stands && node.length() >= LEAST && (stopped >= MOSTLY || waits > 0.9 || (still && runs > 0.9))
}

pub(super) fn replay(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (link, node) in late(view).filter(|(_, node)| replay_halts(node)) {
        let stopped = startup_share(&node, is_stopped);
        let time = node.length().as_secs_f64() * 1000.0;
        let evidence = Evidence::of(link, 1.0).fact(
            "standing_ms",
            time,
            format!("it has replayed nothing for {} at least", seconds(time)),
        );
        let last = node.last();
        let process = last.and_then(|sample| sample.process(&BackendType::Startup));
        found.push(unreplayed(of_process(evidence, process, stopped), link));
    }
    // While there is nothing to replay.
    for link in &view.links {
        let node = link.replica.filter(|_| link.kind == LinkKind::Physical);
        let Some(node) = node.filter(|_| found.iter().all(|it: &Evidence| it.at != link.name))
        else {
            continue;
        };
        let stopped = startup_share(node, is_stopped);
        if stopped >= MOSTLY {
            let evidence = Evidence::of(link, 1.0).severity(Severity::Risk);
            let last = node.last();
            let process = last.and_then(|sample| sample.process(&BackendType::Startup));
            found.push(of_process(evidence, process, stopped));
        }
    }
    found
}

/// What a process does, in words.
fn kind(process: &Process) -> &str {
    match &process.backend_type {
        BackendType::LogicalWorker | BackendType::LogicalApply => "apply worker",
        BackendType::LogicalTablesync => "worker that copies a table",
        other => other.name(),
    }
}

/// The link for which a process of a node works.
fn served<'v, 'a>(
    view: &'v View<'a>,
    node: &NodeWindow,
    sample: &Sample,
    pid: u32,
) -> Option<&'v Link<'a>> {
    view.links.iter().find(|link| {
        let is_upstream = link.upstream.name == node.name && link.unasked.is_none();
        let sends = || link.sender(sample).is_some_and(|it| it.pid == pid);
        let row = || link.subscribed(sample);
        let copies = || row().is_some_and(|it| it.unsynced.iter().any(|it| it.pid == Some(pid)));
        let applies = || row().is_some_and(|it| it.pid == Some(pid));
        let is_replica = link.replica.is_some_and(|it| it.name == node.name);
        is_upstream && sends() || is_replica && (applies() || copies())
    })
}

/// Adds how far a link's replica is behind.
fn of_behind(evidence: Evidence, link: &Link<'_>) -> Evidence {
    let behind = link.last_bytes() as f64;
    let words = format!("{} behind {}", bytes(behind), link.upstream.name);
    evidence.fact("behind_bytes", behind, words)
}

/// Processes of nodes that a signal has stopped, as far as that is seen from here. Those of a standby have
/// rules of their own.
fn stopped(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for node in view.window.usable() {
        let Some(last) = node.last() else { continue };
        let others = last.processes.iter().filter(|it| {
            let of_standby = [BackendType::Startup, BackendType::Walreceiver];
            is_stopped(it) && !of_standby.contains(&it.backend_type)
        });
        for process in others {
            let share = node.share(|sample| sample.process_of(process.pid).is_some_and(is_stopped));
            if share < MOSTLY {
                continue;
            }
            let evidence = match served(view, node, last, process.pid) {
                Some(link) if link.is_behind() => of_behind(Evidence::of(link, 1.0), link),
                Some(link) => Evidence::of(link, 1.0).severity(Severity::Risk),
                None => Evidence {
                    explains: 1.0,
                    ..Evidence::on(node, Severity::Risk)
                },
            };
            let evidence = evidence
                .name("process", kind(process))
                .name("runs_on", &node.name);
            found.push(of_process(evidence, Some(process), share));
        }
    }
    found
}

/// The apply worker waits for changes, and has not even received what its walsender, which has sent all, has
/// sent to tell it so.
fn silent_worker(link: &Link<'_>) -> Option<(u32, f64)> {
    let row = link.subscribed(link.replica?.last()?)?;
    let silent_ms = row.message_age_ms.filter(|age| *age >= SILENT_MS)?;
    let idle = link.worker_share(Process::waits_for_changes)?;
    (idle >= ALWAYS && link.takes_nothing()).then_some((row.pid?, silent_ms))
}

/// The walsender of a slot waits for WAL, and sends nothing of what there is. On a standby it waits for
/// replay.
fn silent_walsender(link: &Link<'_>) -> Option<(u32, f64)> {
    let is_primary = link.upstream.role == Role::Primary && link.kind == LinkKind::Logical;
    let last = link.points.last()?;
    let stands = |point: &&Point| point.sent == last.sent && point.sent < point.end;
    let since = link.points.iter().find(stands)?;
    let stands_ms = last.at.saturating_sub(since.at).as_secs_f64() * 1000.0;
    let sender = link.sender(link.upstream.last()?)?;
    let idle = link.worker_share(Process::waits_for_changes).unwrap_or(1.0);
    let is_silent = stands_ms >= SILENT_MS && link.at_end_share() >= ALWAYS && idle >= ALWAYS;
    (is_primary && is_silent).then_some((sender.pid, stands_ms))
}

/// The evidence for an end of a link that does nothing, although it is not seen why.
fn silent(link: &Link<'_>) -> Option<Evidence> {
    let replica = link
        .replica
        .map_or(link.name.as_str(), |node| node.name.as_str());
    let ends = (link.upstream.name.as_str(), replica);
    let (kind, runs_on, other_end, (pid, ms), words) =
        match (silent_walsender(link), silent_worker(link)) {
            (Some(it), _) => (
                "walsender",
                ends.0,
                ends.1,
                it,
                "it waits for WAL, and has sent nothing of it for",
            ),
            (None, Some(it)) => {
                let words = "it waits for changes, and took its last message before";
                ("apply worker", ends.1, ends.0, it, words)
            }
            (None, None) => return None,
        };
    let evidence = of_behind(Evidence::of(link, 1.0), link)
        .fact("silent_ms", ms, format!("{words} {}", seconds(ms)))
        .name("process", kind)
        .name("runs_on", runs_on)
        .name("other_end", other_end);
    let pid = pid.to_string();
    Some(evidence.name("silent_pid", &pid).name("pid", pid))
}

fn process(view: &View<'_>) -> Vec<Evidence> {
    let mut found = stopped(view);
    // The rules of relays know more of theirs.
    let late = view.links.iter().filter(|link| {
        let of_relay = link.is_to_relay() || link.is_of_unasked_relay();
        link.is_behind() && !of_relay
    });
    let late: Vec<_> = late
        .filter(|link| found.iter().all(|it| it.at != link.name))
        .filter_map(silent)
        .collect();
    found.extend(late);
    found
}

#[cfg(test)]
mod tests {
    use super::super::scene::{START, Scene, lsn, received};
    use super::*;
    use crate::process_cpu::Cpu;

    const STOPPED: Cpu = Cpu {
        ran: Duration::ZERO,
        queued: Duration::ZERO,
        stopped: true,
    };

    /// A standby's process that is stopped is told before there is something for it to do.
    #[test]
    fn what_is_stopped_while_nothing_is_written_is_a_risk() {
        for (index, cause, pid) in [(0, Cause::ReplayHalted, 21), (1, Cause::ReceiverHalted, 20)] {
            let mut scene = Scene::healthy();
            for sample in &mut scene.standby.samples {
                sample.processes[index].cpu = Some(STOPPED);
            }
            let diagnosis = scene.diagnose();
            let found = diagnosis.findings.iter();
            let found: Vec<_> = found.map(|it| (it.cause, it.severity)).collect();
            assert_eq!(found, [(cause, Severity::Risk)]);
            let first = &diagnosis.findings[0].remedies[0];
            let resume = format!("on the machine of standby: kill -CONT {pid};");
            assert!(first.starts_with(&resume), "{first}");
        }
    }

    /// A worker and a walsender that are stopped are named, whether something lags or not; so is what of them
    /// nobody sees from here.
    #[test]
    fn a_worker_or_a_walsender_that_does_nothing_is_to_blame() {
        let first = |scene: Scene| {
            let diagnosis = scene.diagnose();
            let found = diagnosis.findings.first().unwrap();
            let causes: Vec<Cause> = diagnosis.findings.iter().map(|it| it.cause).collect();
            assert_eq!(causes, [Cause::ProcessHalted], "{:#?}", diagnosis.findings);
            (found.at.clone(), found.severity, found.remedies[0].clone())
        };
        let told = |severity, remedy: &str| ("one".to_owned(), severity, remedy.to_owned());
        let resume = |on: &str, pid: u32| {
            format!(
                "on the machine of {on}: kill -CONT {pid}; a signal or a debugger has stopped that process"
            )
        };
        for behind in [false, true] {
            let severity = if behind {
                Severity::Lag
            } else {
                Severity::Risk
            };
            let held = |scene: &mut Scene| {
                if behind {
                    scene.stuck_subscriber(
                        1,
                        ("Client", "WalSenderWaitForWAL"),
                        ("Activity", "LogicalApplyMain"),
                    );
                }
            };
            let mut scene = Scene::healthy();
            held(&mut scene);
            for sample in &mut scene.one.samples {
                sample.processes[0].cpu = Some(STOPPED);
            }
            assert_eq!(first(scene), told(severity, &resume("one", 31)));
            let mut scene = Scene::healthy();
            held(&mut scene);
            for sample in &mut scene.primary.samples {
                sample.processes[1].cpu = Some(STOPPED);
            }
            assert_eq!(first(scene), told(severity, &resume("primary", 11)));
        }
        // On other machines.
        let mut scene = Scene::healthy();
        scene.stuck_subscriber(
            1,
            ("Client", "WalSenderWaitForWAL"),
            ("Activity", "LogicalApplyMain"),
        );
        let (at, severity, remedy) = first(scene);
        assert_eq!((at.as_str(), severity), ("one", Severity::Lag));
        assert!(
            remedy.starts_with("look at process 11 on primary"),
            "{remedy}"
        );
        let mut scene = Scene::healthy();
        for sample in &mut scene.primary.samples {
            let sender = &mut sample.senders[1];
            for position in [
                &mut sender.write_lsn,
                &mut sender.flush_lsn,
                &mut sender.replay_lsn,
            ] {
                *position = lsn(START);
            }
        }
        received(&mut scene.one, |_| lsn(START));
        for sample in &mut scene.one.samples {
            sample.subscriptions[0].message_age_ms = Some(SILENT_MS);
        }
        let (_, _, remedy) = first(scene);
        assert!(remedy.starts_with("look at process 31 on one"), "{remedy}");
    }

    /// A stopped process of a node that no replica needs now.
    #[test]
    fn a_stopped_process_without_a_replica_is_told_at_its_node() {
        let mut scene = Scene::healthy();
        for sample in &mut scene.one.samples {
            sample.processes.push(Process {
                cpu: Some(STOPPED),
                ..super::super::scene::process(90, "walwriter", "Activity", "WalWriterMain")
            });
        }
        let diagnosis = scene.diagnose();
        let found = &diagnosis.findings[0];
        assert_eq!(
            (found.cause, found.severity),
            (Cause::ProcessHalted, Severity::Risk)
        );
        assert_eq!(found.at, "one");
        assert!(found.title.contains("walwriter on one"), "{}", found.title);
        assert!(!diagnosis.healthy);
    }
}
