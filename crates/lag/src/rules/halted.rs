//! Signals of processes that are there and do nothing, or that are ended again and again.

use std::collections::BTreeSet;
use std::time::Duration;

use lockstep_service::words::figures::{bytes, percent, seconds};

use super::receive::{receiver as process_of, writes_wal};
use super::replay::{late, startup_share, unreplayed};
use super::{Evidence, Severity, View};
use crate::link::Link;
use crate::node::{Role, Trouble};
use crate::point::{LinkKind, Point};
use crate::states::{BackendType, SenderState};
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

/// Number of walsenders, one after the other, from which those of a replica are ended again and
/// again, if it is the only replica that loses them.
const MANY_SENDERS: usize = 3;

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

/// The number of walsenders that a link has had in the window. One that has not begun to send does not
/// count: a replica whose request is refused, for want of a slot, say, comes back for another.
fn walsenders_of(link: &Link<'_>) -> usize {
    let samples = link.upstream.samples.iter();
    let senders = samples.filter_map(|sample| link.sender(sample));
    let senders = senders.filter(|sender| sender.state != Some(SenderState::Startup));
    senders
        .map(|sender| sender.pid)
        .collect::<BTreeSet<u32>>()
        .len()
}

/// The apply worker of a subscriber that was asked fails at one place, and ends its walsender each time.
fn fails(link: &Link<'_>) -> bool {
    let errors = link.replica.map_or(0.0, |node| {
        node.growth(|sample| Some(link.subscribed(sample)?.apply_errors as f64))
    });
    errors > 0.0 && !moves(link)
}

/// Links of a server whose walsenders have been replaced. An apply worker that fails at a
/// transaction also comes back with a new walsender, but it makes no progress, and if nobody asked its
/// subscriber it is alone.
fn replaced<'v, 'a>(view: &'v View<'a>, upstream: &NodeWindow) -> Vec<(&'v Link<'a>, usize)> {
    // A replica that has stopped comes back from time to time to try again.
    let stopped = |link: &Link<'_>| link.replica_state().is_some_and(|it| it.error.is_some());
    let links = view
        .links
        .iter()
        .filter(|link| !stopped(link) && !fails(link));
    let links = links.filter(|link| link.upstream.name == upstream.name && !link.is_relayed());
    let counted = links.map(|link| (link, walsenders_of(link)));
    counted.filter(|(_, number)| *number > 1).collect()
}

/// Parts of a window that are compared, to see whether a replica gets on.
const PARTS: usize = 4;

/// The replica gets on from one part of the window to the next, more than once. One that fails at a
/// transaction comes as far as that, and no farther; while its walsender is away less is known of it.
pub(super) fn moves(link: &Link<'_>) -> bool {
    let points = &link.points;
    let size = points.len().div_ceil(PARTS).max(1);
    let told = |points: &[Point]| points.iter().map(|point| point.told).max();
    let mut farthest = None;
    let mut steps = 0;
    for part in points.chunks(size) {
        let reached = told(part).max(farthest);
        steps += usize::from(farthest.is_some() && farthest < reached);
        farthest = reached;
    }
    steps > 1
}

/// Something ends the server's walsenders again and again.
pub(super) fn ended(view: &View<'_>, upstream: &NodeWindow) -> bool {
    let replaced = replaced(view, upstream);
    replaced.len() > 1
        || replaced.iter().any(|(link, number)| {
            *number >= MANY_SENDERS && (link.kind == LinkKind::Physical || moves(link))
        })
}

pub(super) fn walsenders(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for node in view.window.usable().filter(|node| ended(view, node)) {
        let replaced = replaced(view, node);
        let number: usize = replaced.iter().map(|(_, number)| number - 1).sum();
        for (link, _) in replaced {
            let away = 1.0 - link.connected_share();
            let severity = match link.is_behind() {
                true => Severity::Lag,
                false => Severity::Risk,
            };
            let evidence = Evidence::of(link, 1.0)
                .severity(severity)
                .fact(
                    "ended_walsenders",
                    number as f64,
                    format!("{number} walsenders of {} were replaced", node.name),
                )
                .fact(
                    "away_share",
                    away,
                    format!("this replica had none in {} of the samples", percent(away)),
                )
                .setting(node, "wal_sender_timeout");
            found.push(evidence);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Cause;
    use super::super::scene::{START, Scene, lsn};
    use super::*;

    /// Both workers fail at one transaction, with a new walsender in every fifth sample. In the last ones the
    /// walsender knows more than the slot.
    #[test]
    fn workers_that_fail_get_on_no_farther_while_more_is_known_of_them() {
        let mut scene = Scene::healthy();
        for (index, sample) in scene.primary.samples.iter_mut().enumerate() {
            for place in [1, 2] {
                let known = START + 5_000;
                let (slot, sender) = (&mut sample.slots[place], &mut sample.senders[place]);
                slot.confirmed_flush_lsn = lsn(START);
                sender.pid = 100 * place as u32 + (index / 5) as u32;
                slot.active_pid = Some(sender.pid);
                let is_told = index % 5 == 4;
                let told = if is_told { lsn(known) } else { None };
                (sender.write_lsn, sender.flush_lsn, sender.replay_lsn) = (told, told, told);
            }
        }
        for node in [&mut scene.one, &mut scene.two] {
            for (index, sample) in (0..).zip(&mut node.samples) {
                let row = &mut sample.subscriptions[0];
                (row.pid, row.received_lsn, row.apply_errors) = (None, None, 1 + index / 5);
            }
        }
        let found = scene.diagnose().findings;
        let causes: Vec<Cause> = found.iter().map(|it| it.cause).collect();
        assert!(!causes.contains(&Cause::WalsendersEnded), "{causes:?}");
        assert!(causes.contains(&Cause::ApplyStopped), "{causes:?}");
    }

    /// A standby's process that is stopped is told before there is something for it to do.
    #[test]
    fn what_is_stopped_while_nothing_is_written_is_a_risk() {
        for (index, cause, pid) in [(0, Cause::ReplayHalted, 21), (1, Cause::ReceiverHalted, 20)] {
            let mut scene = Scene::healthy();
            for sample in &mut scene.standby.samples {
                sample.processes[index].cpu = Some(crate::process_cpu::Cpu {
                    ran: Duration::ZERO,
                    queued: Duration::ZERO,
                    stopped: true,
                });
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
}
