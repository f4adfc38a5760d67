//! Signals between an upstream's WAL and the replica's disk.

use std::time::Duration;

use lockstep_service::words::figures::{bytes, percent};

use super::ended::ended;
use super::halted::receiver_halts;
use super::logical::nothing_for;
use super::relay::missed_share;
use super::unfed::of_address;
use super::{Evidence, View};
use crate::figures::ratio;
use crate::link::{LAG_MS, Link};
use crate::point::{LinkKind, Stage};
use crate::sample::Sample;
use crate::states::{BackendType, ReceiverStatus, WaitType};
use crate::views::Process;
use crate::window::NodeWindow;

/// Share of samples from which a walreceiver at its disk counts as held up by it.
const FLUSH_SHARE: f64 = 0.4;

/// Share of samples from which a receiver that waits for data counts as held up by nothing of
/// its own.
const IDLE_SHARE: f64 = 0.5;

/// Share of samples with one walreceiver from which it counts as one that stays.
const STAYS: f64 = 0.5;

/// The part of the lag that the stages before the receiver must hold.
const SEND_STAGES: f64 = 0.5;

/// The process waits for storage to write WAL.
pub(super) fn writes_wal(process: &Process) -> bool {
    process.waits(&WaitType::Io)
        && process
            .wait
            .as_deref()
            .is_some_and(|event| event.starts_with("WAL") || event.starts_with("Wal"))
}

pub(super) fn receiver(sample: &Sample) -> Option<&Process> {
    sample.process(&BackendType::Walreceiver)
}

pub(super) fn not_streaming(view: &View<'_>) -> Vec<Evidence> {
    let links = not_streaming_links(view).into_iter();
    let told = links.map(|(link, evidence)| of_address(view, link, evidence));
    told.collect()
}

/// True if a walreceiver gets WAL at this moment. One calls itself streaming before it has sent a single
/// request, and ends at once if that is refused. What it asks for begins with a segment, so it gets something
/// at once if there is any WAL in that one. Otherwise, or if the role may not see that, it is believed if it
/// stays.
pub(super) fn streams(node: &NodeWindow, sample: &Sample) -> bool {
    let Some(receiver) = sample.receiver.as_ref() else {
        return false;
    };
    let is_told = receiver.status.as_ref();
    let has_some = receiver.written_lsn.is_some();
    let stays = || {
        let same = |other: &Sample| other.receiver.as_ref().map(|it| it.pid) == Some(receiver.pid);
        node.share(same) >= STAYS
    };
    is_told.is_none_or(|status| *status == ReceiverStatus::Streaming) && (has_some || stays())
}

/// Links to standbys that should stream and do not, each with the evidence for that.
pub(super) fn not_streaming_links<'v, 'a>(view: &'v View<'a>) -> Vec<(&'v Link<'a>, Evidence)> {
    let mut found = Vec::new();
    for link in view
        .links
        .iter()
        .filter(|link| link.kind == LinkKind::Physical && !link.is_archived())
    {
        let Some(node) = link.replica else { continue };
        let streams = |sample: &Sample| streams(node, sample);
        let share = 1.0 - node.share(streams);
        let is_back = node.last().is_some_and(streams);
        if share < 0.5 || is_back || ended(view, link.upstream) {
            continue;
        }
        let behind = link.last_bytes() as f64;
        found.push((
            link,
            Evidence::of(link, share)
                .fact(
                    "not_streaming_share",
                    share,
                    format!(
                        "no walreceiver streamed in {} of the samples",
                        percent(share)
                    ),
                )
                .fact(
                    "behind_bytes",
                    behind,
                    format!("{} behind {}", bytes(behind), link.upstream.name),
                ),
        ));
    }
    found
}

fn flush_share(node: &NodeWindow) -> f64 {
    node.share(|sample| receiver(sample).is_some_and(writes_wal))
}

pub(super) fn slow_flush(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in view
        .links
        .iter()
        .filter(|link| link.kind == LinkKind::Physical && link.is_behind())
    {
        let Some(node) = link.replica else { continue };
        let share = flush_share(node);
        if share < FLUSH_SHARE {
            continue;
        }
        // While the walreceiver flushes it receives nothing, so all stages before count.
        let stages = link.stage_share(Stage::Send)
            + link.stage_share(Stage::Receive)
            + link.stage_share(Stage::Flush);
        if stages < SEND_STAGES {
            continue;
        }
        let unflushed = link.stage_bytes(Stage::Flush);
        let mut evidence = Evidence::of(link, stages * share)
            .fact(
                "walreceiver_storage_share",
                share,
                format!(
                    "the walreceiver wrote or flushed in {} of the samples",
                    percent(share)
                ),
            )
            .fact(
                "unflushed_bytes",
                unflushed,
                format!("{} written and not flushed, on average", bytes(unflushed)),
            );
        let flushes = node.io_time(&BackendType::Walreceiver, |io| {
            (io.fsync_time_ms, io.fsyncs)
        });
        if let Some((ms, _)) = flushes {
            evidence = evidence.fact("flush_ms", ms, format!("{ms:.1} ms for each flush"));
        }
        found.push(evidence);
    }
    found
}

pub(super) fn slow_network(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    let late = view.links.iter().filter(|link| link.is_behind());
    let late = late.filter(|link| link.unasked.is_none());
    for link in late.filter(|link| !nothing_for(link) && !receiver_halts(link)) {
        let stages = link.stage_share(Stage::Send) + link.stage_share(Stage::Receive);
        let Some(idle) = idle_share(link) else {
            continue;
        };
        if stages < SEND_STAGES || idle < IDLE_SHARE || !is_pushed(link) {
            continue;
        }
        let unsent = link.stage_bytes(Stage::Send);
        let under_way = link.stage_bytes(Stage::Receive);
        let receiver = match link.kind {
            LinkKind::Physical => "walreceiver",
            LinkKind::Logical => "apply worker",
        };
        let received = received_rate(link);
        // A spool that is slow to read looks the same.
        let other = 0.5 * missed_share(link);
        found.push(
            Evidence::of(link, stages * idle * (1.0 - other))
                .fact(
                    "receiver_idle_share",
                    idle,
                    format!(
                        "the {receiver} waited for data in {} of the samples in which it was behind",
                        percent(idle)
                    ),
                )
                .fact(
                    "under_way_bytes",
                    under_way,
                    format!("{} sent and not received, on average", bytes(under_way)),
                )
                .fact(
                    "unsent_bytes",
                    unsent,
                    format!("{} not sent yet, on average", bytes(unsent)),
                )
                .fact(
                    "received_bytes_per_s",
                    received,
                    format!("{} of WAL a second got through", bytes(received)),
                ),
        );
    }
    found
}

/// Share of the moments in which a link was behind that something holds in. A replica may be late for a part
/// of the window only, and what its processes do in the rest says nothing about that.
pub(super) fn late_share(link: &Link<'_>, holds: impl Fn(Duration) -> bool) -> f64 {
    const LATE: Duration = Duration::from_millis(LAG_MS as u64);
    let late = link.points.iter().filter(|point| point.age >= LATE);
    let late: Vec<Duration> = late.map(|point| point.at).collect();
    let some = late.iter().filter(|at| holds(**at)).count();
    ratio(some as f64, late.len() as f64)
}

/// Share of the moments in which the link was behind and the receiving end waited for data; None if it was
/// not asked.
fn idle_share(link: &Link<'_>) -> Option<f64> {
    let node = link.replica?;
    let is_idle = |sample: &Sample| match link.kind {
        LinkKind::Physical => {
            receiver(sample).is_some_and(|process| process.waits_for("WalReceiverMain"))
        }
        LinkKind::Logical => link
            .worker(Some(sample))
            .is_some_and(Process::waits_for_changes),
    };
    let asked = link.kind == LinkKind::Physical || link.subscription.is_some();
    asked.then(|| late_share(link, |at| node.sample_at(at).is_some_and(is_idle)))
}

/// The sender has something to send and cannot, or has sent what does not arrive. A physical
/// walsender does not show this, but its position stays behind. A logical one may just decode,
/// so its wait event decides. A little is under way while it waits for more to send.
fn is_pushed(link: &Link<'_>) -> bool {
    match link.kind {
        LinkKind::Physical => true,
        LinkKind::Logical => {
            let waits = link.is_relayed() || link.at_end_share() >= IDLE_SHARE;
            let under_way = waits && link.stage_share(Stage::Receive) >= SEND_STAGES;
            link.pushed_share() >= IDLE_SHARE || under_way
        }
    }
}

fn received_rate(link: &Link<'_>) -> f64 {
    let (Some(first), Some(last)) = (link.points.first(), link.points.last()) else {
        return 0.0;
    };
    let time = last.at.saturating_sub(first.at).as_secs_f64();
    ratio(last.write.bytes_since(first.write) as f64, time)
}
