//! Signals of a server by itself that replication suffers from: WAL that is not archived, whole
//! pages in WAL, queries that replay cancels.

use lockstep_service::words::figures::{bytes, counted, percent, seconds, verb};

use super::replay::with_delay;
use super::{Evidence, Severity, View};
use crate::figures::ratio;
use crate::link::Link;
use crate::node::Role;
use crate::point::{LinkKind, Stage};
use crate::sample::Sample;
use crate::views::{ArchiveQueue, Conflicts};
use crate::window::NodeWindow;

/// The part of the lag that the stages before replay must hold.
const WAY_STAGES: f64 = 0.5;

/// The part of WAL from which whole pages count.
const MUCH_IMAGES: f64 = 0.5;

/// WAL from which that part is looked at, in bytes.
const SOME_WAL: f64 = 1024.0 * 1024.0;

/// What `wal_compression` leaves of pages, at the least: fewer bytes are never assumed.
const COMPRESSED: f64 = 0.25;

/// Time for which a segment waits to be archived from which that does not get on, in milliseconds,
const LONG_QUEUE_MS: f64 = 30_000.0;

/// or the number of segments that wait while none is archived.
const LONG_QUEUE: u64 = 8;

/// A delay with which replay waits for usual queries, in milliseconds: PostgreSQL's own.
const SOME_DELAY_MS: f64 = 30_000.0;

pub(super) fn archiver_failing(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for node in view.window.usable().filter(|node| node.archives()) {
        found.extend(archiver_hangs(node));
        let Some(archiver) = node.last().map(|sample| &sample.archiver) else {
            continue;
        };
        let Some(failed) = archiver.failed_age_ms else {
            continue;
        };
        // A segment that failed is tried again until it is archived, and waits until then.
        let archived = archiver.archived_age_ms;
        let queue = node.last().and_then(|sample| sample.archive);
        if archived.is_some_and(|archived| archived <= failed)
            || queue.is_some_and(|queue| queue.ready == 0)
        {
            continue;
        }
        let since = match archived {
            Some(archived) => format!("the last segment was archived {} ago", seconds(archived)),
            None => "no segment was archived since its statistics began".to_owned(),
        };
        let segment = archiver.last_failed_wal.as_deref().unwrap_or("?");
        found.push(
            Evidence::on(node, Severity::Risk)
                .fact(
                    "archive_failures",
                    archiver.failed_count as f64,
                    format!(
                        "archiving failed {}, {} ago for segment {segment}",
                        counted(archiver.failed_count, "time"),
                        seconds(failed)
                    ),
                )
                .fact("archived_age_ms", archived.unwrap_or(failed), since)
                .name("segment", segment),
        );
    }
    found
}

/// Segments wait to be archived, and the archiver has not failed: it does not come to them.
fn archiver_hangs(node: &NodeWindow) -> Option<Evidence> {
    let last = node.last()?;
    let queue = last.archive.filter(|queue| is_stuck(node, queue))?;
    let archiver = &last.archiver;
    let failed = archiver.failed_age_ms;
    let failed = failed.is_some_and(|failed| archiver.archived_age_ms.is_none_or(|it| it > failed));
    if failed {
        return None;
    }
    let oldest = queue.oldest_ms.unwrap_or(0.0);
    let words = format!(
        "{} {} to be archived, the oldest for {}",
        counted(queue.ready, "segment"),
        verb(queue.ready, "waits", "wait"),
        seconds(oldest)
    );
    let evidence = Evidence::on(node, Severity::Risk)
        .fact("waiting_segments", queue.ready as f64, words)
        .fact(
            "oldest_waiting_ms",
            oldest,
            format!(
                "{} {} archived since the statistics began",
                counted(archiver.archived_count, "segment"),
                verb(archiver.archived_count, "was", "were")
            ),
        );
    Some(evidence.name("hanging", &node.name))
}

/// The oldest segment waits for long, or many wait and none gets on.
fn is_stuck(node: &NodeWindow, queue: &ArchiveQueue) -> bool {
    let archived = node.growth(|sample| Some(sample.archiver.archived_count as f64));
    queue.oldest_ms >= Some(LONG_QUEUE_MS) || (queue.ready >= LONG_QUEUE && archived == 0.0)
}

fn cancelled(sample: &Sample) -> f64 {
    let Conflicts {
        snapshot,
        lock,
        bufferpin,
        deadlock,
    } = sample.conflicts;
    [snapshot, lock, bufferpin, deadlock]
        .map(|number| number as f64)
        .iter()
        .sum()
}

pub(super) fn queries_cancelled(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    let standbys = view.window.usable();
    for node in standbys.filter(|node| node.role == Role::Standby) {
        let number = node.growth(|sample| Some(cancelled(sample)));
        if number == 0.0 {
            continue;
        }
        let of = |kind: fn(&Conflicts) -> u64| {
            let grown = node.growth(|sample| Some(kind(&sample.conflicts) as f64));
            (grown > 0.0).then_some(grown)
        };
        let kinds = [
            (of(|c| c.snapshot), "needed rows that replay removes"),
            (of(|c| c.lock), "held a lock that replay needs"),
            (of(|c| c.bufferpin), "pinned a page that replay cleans up"),
            (of(|c| c.deadlock), "were in a deadlock with replay"),
        ];
        let kinds: Vec<String> = kinds
            .iter()
            .filter_map(|(number, why)| number.map(|number| format!("{number:.0} {why}")))
            .collect();
        let mut evidence = Evidence::on(node, Severity::Risk).fact(
            "cancelled_queries",
            number,
            format!("replay cancelled {number:.0} queries: {}", kinds.join(", ")),
        );
        evidence = with_delay(evidence, node);
        let lacks_feedback = node.facts.setting("hot_standby_feedback") == Some("off");
        if of(|c| c.snapshot).is_some() && lacks_feedback {
            evidence = evidence.name("without_feedback", &node.name);
        }
        let delay = evidence.names.get("delay_setting");
        let delay = delay.and_then(|name| node.facts.number(name));
        if let Some(delay) = delay.filter(|delay| *delay >= 0.0) {
            let longer = (2.0 * delay).max(SOME_DELAY_MS);
            evidence = evidence.name("longer", format!("{longer:.0}"));
        }
        found.push(evidence);
    }
    found
}

/// The part of the primary's WAL in the window that is whole pages, at least.
fn images_share(primary: &NodeWindow) -> f64 {
    let written = primary.growth(|sample| sample.totals.wal_bytes);
    let images = primary.growth(|sample| Some(sample.totals.page_images as f64));
    let page = primary.facts.number("block_size").unwrap_or(8192.0);
    let size = match primary.facts.setting("wal_compression") {
        Some("off") | None => page,
        Some(_) => page * COMPRESSED,
    };
    match written >= SOME_WAL {
        true => ratio(images * size, written).min(1.0),
        false => 0.0,
    }
}

/// The replica would keep up if the WAL had no whole pages.
fn would_keep_up(link: &Link<'_>, share: f64) -> bool {
    let (Some(first), Some(last)) = (link.points.first(), link.points.last()) else {
        return false;
    };
    let written = last.end.bytes_since(first.end) as f64;
    let taken = last.write.bytes_since(first.write) as f64;
    taken > 0.0 && taken >= written * (1.0 - share)
}

pub(super) fn page_images(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    let Some(primary) = view.window.primary() else {
        return found;
    };
    let share = images_share(primary);
    // Pages are also written whole when they are new, as those of an index that is built.
    let checkpoints = primary.growth(|sample| Some(sample.totals.checkpoints as f64));
    let builds = primary.share(|sample| sample.totals.index_builds > 0);
    if share < MUCH_IMAGES || checkpoints == 0.0 || builds > 0.0 {
        return found;
    }
    let physical = view.links.iter();
    let physical = physical.filter(|link| link.kind == LinkKind::Physical);
    let physical = physical.filter(|link| link.unasked.is_none());
    for link in physical.filter(|link| link.is_behind() && would_keep_up(link, share)) {
        let stages = [Stage::Send, Stage::Receive, Stage::Flush];
        let stages: f64 = stages.map(|stage| link.stage_share(stage)).iter().sum();
        if stages < WAY_STAGES {
            continue;
        }
        let images = primary.growth(|sample| Some(sample.totals.page_images as f64));
        let written = primary.growth(|sample| sample.totals.wal_bytes);
        let mut evidence = Evidence::of(link, stages)
            .fact(
                "page_images",
                images,
                format!("{images:.0} whole pages were written into the WAL"),
            )
            .fact(
                "page_images_share",
                share,
                format!(
                    "they are {} of the {} of WAL, and without them the replica would keep up",
                    percent(share),
                    bytes(written)
                ),
            )
            .fact(
                "checkpoints",
                checkpoints,
                format!("{checkpoints:.0} checkpoints began meanwhile"),
            );
        for name in ["checkpoint_timeout", "max_wal_size", "wal_compression"] {
            evidence = evidence.setting(primary, name);
        }
        found.push(evidence);
    }
    found
}
