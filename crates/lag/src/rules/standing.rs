//! What stands still: slots that keep WAL, snapshots that keep rows, and what only looks like
//! lag.

use lockstep_service::words::figures::{bytes, percent, seconds};

use super::anew::{self, recreated};
use super::horizon::keeps_as_much;
use super::logical::nothing_for;
use super::refused::guessed;
use super::{Evidence, Severity, View};
use crate::link::{LAG_MS, Link};
use crate::links::is_of_table;
use crate::links::whose::may_need;
use crate::node::Role;
use crate::point::LinkKind;
use crate::point::Point;
use crate::replica;
use crate::sample::Sample;
use crate::states::{CopyPhase, WalStatus};
use crate::views::{Slot, Subscription};
use crate::window::NodeWindow;

/// A slot is near its limit when less than this part of it is left.
const NEAR: f64 = 0.2;

/// WAL from which an unused slot is reported, in bytes.
pub(super) const MUCH_WAL: f64 = 64.0 * 1024.0 * 1024.0;

/// Age of a snapshot from which the rows that it keeps matter, in transactions,
pub(super) const OLD_XMIN: i64 = 100_000;

/// dead rows that autovacuum would have removed from which that matters as well,
pub(super) const MANY_DEAD: u64 = 100_000;

/// if its transaction is at least this old, in milliseconds.
pub(super) const OLD_XACT_MS: f64 = 30_000.0;

/// Age of the last commit from which it looks like lag to those who measure that, in
/// milliseconds.
const LOOKS_LATE_MS: f64 = 5_000.0;

const MB: f64 = 1024.0 * 1024.0;

/// Nodes that may have slots, with their newest samples.
fn upstreams<'v>(view: &'v View<'_>) -> impl Iterator<Item = (&'v NodeWindow, &'v Sample)> {
    let nodes = view
        .window
        .usable()
        .filter(|node| node.role != Role::Subscriber);
    nodes.filter_map(|node| Some((node, node.last()?)))
}

pub(super) fn kept(sample: &Sample, slot: &Slot) -> f64 {
    let relay = sample.relay.as_ref();
    let group = relay.and_then(|relay| Some(relay.slot(&slot.slot_name)?.group.as_str()));
    match (slot.restart_lsn, sample.end_of(group)) {
        (Some(from), Some(to)) => to.bytes_since(from) as f64,
        _ => 0.0,
    }
}

/// The part of what a slot may keep that is left; None if there is no limit.
fn left(node: &NodeWindow, slot: &Slot) -> Option<f64> {
    let limit = node
        .facts
        .number("max_slot_wal_keep_size")
        .filter(|limit| *limit > 0.0)?
        * MB;
    Some(slot.safe_wal_size? as f64 / limit)
}

fn is_lost(slot: &Slot) -> bool {
    slot.wal_status == Some(WalStatus::Lost)
}

fn is_near(node: &NodeWindow, slot: &Slot) -> bool {
    let is_near = || left(node, slot).is_some_and(|left| left < NEAR);
    !is_lost(slot) && (slot.wal_status == Some(WalStatus::Unreserved) || is_near())
}

/// Time until the slot loses WAL if what is left of its limit goes on to shrink as in this window, in
/// milliseconds. None if it does not shrink.
fn lost_in_ms(node: &NodeWindow, slot: &Slot) -> Option<f64> {
    let safe = |sample: &Sample| sample.slot(&slot.slot_name)?.safe_wal_size;
    let first = safe(node.samples.first()?)?;
    let last = slot.safe_wal_size.filter(|last| *last >= 0)?;
    let shrunk = first.saturating_sub(last) as f64;
    let length_ms = node.length().as_secs_f64() * 1000.0;
    (shrunk > 0.0).then(|| last as f64 * length_ms / shrunk)
}

/// A replica that was named needs the slot, or it, or one that cannot be asked, may need it.
fn has_owner(view: &View<'_>, node: &NodeWindow, slot: &Slot) -> bool {
    let mut links = view.links.iter();
    let owned = links.any(|link| {
        let is_its = link.upstream.name == node.name && link.replica.is_some();
        is_its && link.slot.as_deref() == Some(&slot.slot_name)
    });
    let mut nodes = view.window.nodes.iter();
    owned
        || may_need(view.window, slot, node)
        || nodes.any(|node| node.role != Role::Primary && !node.is_usable())
}

/// Adds whose slot it is: its replica is dropped, not the slot alone.
fn of_replica(evidence: Evidence, name: &str) -> Evidence {
    let words = format!("it is the slot of lockstep replica {name}");
    let evidence = evidence.fact("lockstep_replica", 1.0, words);
    evidence.name("lockstep_replica", name)
}

/// Adds whose slot it is, so that a remedy does not drop what somebody needs.
fn of_owner(evidence: Evidence, view: &View<'_>, node: &NodeWindow, slot: &Slot) -> Evidence {
    match replica::of_slot(slot) {
        Some(name) => of_replica(evidence, name),
        None if !slot.active && !has_owner(view, node, slot) => {
            evidence.name("unowned_slot", &slot.slot_name)
        }
        None => evidence,
    }
}

/// Slots whose WAL is gone. What they keep is nothing, so no figure says how bad that is.
pub(super) fn lost(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (node, sample) in upstreams(view) {
        for slot in sample.slots.iter().filter(|slot| is_lost(slot)) {
            let mut evidence = Evidence::on(node, Severity::Lag)
                .fact("lost", 1.0, "wal_status is \"lost\": the server has removed WAL from before its restart_lsn")
                .name("slot", &slot.slot_name)
                .name("upstream", &node.name);
            if let Some(limit) = node
                .facts
                .number("max_slot_wal_keep_size")
                .filter(|limit| *limit > 0.0)
            {
                let words = format!("max_slot_wal_keep_size is {limit:.0} MB");
                evidence = evidence.fact("limit_bytes", limit * MB, words);
            }
            evidence.at = format!("slot {} on {}", slot.slot_name, node.name);
            evidence.explains = 1.0;
            let mut links = view.links.iter();
            let is_its = |link: &&Link<'_>| {
                link.upstream.name == node.name && link.slot.as_ref() == Some(&slot.slot_name)
            };
            if let Some(link) = links
                .find(is_its)
                .filter(|link| link.subscription.is_some())
            {
                evidence.at.clone_from(&link.name);
                evidence = guessed(view, link, evidence);
                evidence = recreated(evidence, link, anew::Slot::There);
            }
            found.push(of_owner(evidence, view, node, slot));
        }
    }
    found
}

pub(super) fn retained(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (node, sample) in upstreams(view) {
        for slot in sample.slots.iter().filter(|slot| is_near(node, slot)) {
            let kept = kept(sample, slot);
            let status = slot.wal_status.as_ref().map_or("?", WalStatus::name);
            let mut evidence = Evidence::on(node, Severity::Risk)
                .fact(
                    "retained_bytes",
                    kept,
                    format!(
                        "it keeps {} of WAL; wal_status is \"{status}\"",
                        bytes(kept)
                    ),
                )
                .name("slot", &slot.slot_name)
                .name("upstream", &node.name)
                .setting(node, "max_slot_wal_keep_size");
            evidence.at = format!("slot {} on {}", slot.slot_name, node.name);
            let limit = node.facts.number("max_slot_wal_keep_size");
            if let Some(limit) = limit.filter(|limit| *limit > 0.0) {
                evidence = evidence.name("twice", format!("{:.0}", 2.0 * limit));
            }
            evidence = of_owner(evidence, view, node, slot);
            // The less is left, the worse; a slot that nobody uses does not move by itself.
            let used = if slot.active { 0.9 } else { 1.0 };
            evidence.explains = used * (1.0 - left(node, slot).unwrap_or(0.0).clamp(0.0, 1.0));
            if let Some(safe) = slot.safe_wal_size {
                evidence = evidence.fact(
                    "safe_bytes",
                    safe as f64,
                    format!("{} until it loses WAL", bytes((safe as f64).max(0.0))),
                );
            }
            if let Some(left_ms) = lost_in_ms(node, slot) {
                let words = format!("at the pace of this window that is in {}", seconds(left_ms));
                evidence = evidence.fact("lost_in_ms", left_ms, words);
            }
            evidence = evidence.fact(
                "active",
                f64::from(u8::from(slot.active)),
                if slot.active {
                    "its consumer is connected"
                } else {
                    "nobody uses it"
                },
            );
            found.push(evidence);
        }
    }
    found
}

/// The slot of a worker that copies a table, and is connected: until the rows are there it does not use it.
pub(crate) fn is_copied_by(sample: &Sample, slot: &Slot) -> bool {
    let mut senders = sample.senders.iter();
    is_of_table(&slot.slot_name) && senders.any(|sender| sender.application_name == slot.slot_name)
}

/// The subscription for the copy of whose table a slot was made, and its node, if that copy is not done.
pub(crate) fn copied_for<'v>(
    view: &'v View<'_>,
    slot: &str,
) -> Option<(&'v NodeWindow, &'v Subscription)> {
    let (id, rest) = slot.strip_prefix("pg_")?.split_once("_sync_")?;
    let (_, system) = rest.split_once('_')?;
    let nodes = view.window.usable().filter(|it| it.facts.system == system);
    let mut all = nodes.filter_map(|node| {
        let row = node.last()?.subscriptions.iter();
        let mut row = row.filter(|row| row.id.to_string() == id && row.unsynced_tables > 0);
        Some((node, row.next()?))
    });
    all.next()
}

pub(super) fn unused(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (node, sample) in upstreams(view) {
        for slot in &sample.slots {
            let kept = kept(sample, slot);
            let used =
                node.share(|sample| sample.slot(&slot.slot_name).is_some_and(|slot| slot.active));
            // Rules about replicas know more of one whose target was asked.
            let is_its = |it: &replica::Replica| it.slot == slot.slot_name && !it.is_promoted();
            let is_known = view.replicas().any(|it| is_its(it.replica));
            let is_known = is_known || is_copied_by(sample, slot);
            let is_seen = used > 0.0 || is_near(node, slot) || is_lost(slot) || is_known;
            // However little it keeps: nobody will ever read it.
            let promoted = view.replicas().find(|it| {
                it.replica.slot == slot.slot_name && it.replica.phase == CopyPhase::Promoted
            });
            // A slot keeps rows as well, however little WAL it keeps: of a logical one those of catalogs.
            let rows = slot.xmin_age.filter(|age| *age >= OLD_XMIN);
            let is_little = kept < MUCH_WAL && rows.is_none() && promoted.is_none();
            if is_seen || is_little || slot.synced {
                continue;
            }
            let mut evidence = Evidence::on(node, Severity::Risk)
                .fact(
                    "retained_bytes",
                    kept,
                    format!("it keeps {} of WAL and was not used", bytes(kept)),
                )
                .name("slot", &slot.slot_name)
                .name(
                    match node.role {
                        Role::Relay => "relay",
                        _ => "upstream",
                    },
                    &node.name,
                )
                .setting(node, "max_slot_wal_keep_size");
            if kept >= MUCH_WAL {
                evidence = evidence.name("kept", bytes(kept));
            }
            if let Some(age) = rows {
                let words = format!(
                    "rows deleted in the last {age} transactions stay on {}",
                    node.name
                );
                evidence = evidence.fact("xmin_age_transactions", age as f64, words);
            }
            match replica::of_slot(slot) {
                Some(name) if promoted.is_some() => {
                    let words =
                        format!("it is the slot of lockstep replica {name}, which is promoted");
                    evidence = evidence.fact("promoted", 1.0, words).name("promoted", name);
                }
                Some(name) => {
                    evidence = of_replica(evidence, name);
                }
                None => {
                    evidence = evidence.name("idle_slot", &slot.slot_name);
                    if !has_owner(view, node, slot) {
                        evidence = evidence.name("unowned_slot", &slot.slot_name);
                    }
                }
            }
            evidence.at = format!("slot {} on {}", slot.slot_name, node.name);
            found.push(evidence);
        }
    }
    found
}

pub(super) fn bloat(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in view
        .links
        .iter()
        .filter(|link| link.kind == LinkKind::Physical)
    {
        let age = |sample: &Sample| {
            let slot = link
                .slot
                .as_deref()
                .and_then(|slot| sample.slot(slot)?.xmin_age);
            slot.max(link.sender(sample).and_then(|sender| sender.xmin_age))
        };
        let Some(age) = link.upstream.last().and_then(age) else {
            continue;
        };
        let dead = link.upstream.last().and_then(|last| last.dead_rows);
        let oldest = link.replica.and_then(NodeWindow::last).and_then(|sample| {
            let sessions = sample.clients.oldest.iter();
            sessions
                .filter(|session| session.xmin_age.is_some())
                .max_by_key(|session| session.xmin_age)
        });
        let old_enough = oldest.is_none_or(|session| session.xact_age_ms >= Some(OLD_XACT_MS));
        // One transaction may leave many rows behind.
        let many = dead.filter(|rows| *rows >= MANY_DEAD && oldest.is_some());
        if age < OLD_XMIN && many.is_none() {
            continue;
        }
        let last = link.upstream.last();
        if !old_enough || last.is_some_and(|sample| keeps_as_much(sample, age)) {
            continue;
        }
        let mut evidence = Evidence::of(link, 0.0).severity(Severity::Risk).fact(
            "xmin_age_transactions",
            age as f64,
            format!(
                "rows deleted in the last {age} transactions stay on {}",
                link.upstream.name
            ),
        );
        if let Some(rows) = many {
            let words = format!("{rows} dead rows on {} await vacuum", link.upstream.name);
            evidence = evidence.fact("dead_rows", rows as f64, words);
        }
        if let Some(session) = oldest {
            evidence = evidence.session(session);
        }
        found.push(evidence);
    }
    found
}

pub(super) fn other_databases(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in view
        .links
        .iter()
        .filter(|link| link.kind == LinkKind::Logical)
    {
        let written = link
            .upstream
            .growth(|sample| sample.end().map(|end| u64::from(end) as f64));
        if !nothing_for(link) || written < MB {
            continue;
        }
        let behind = link.bytes();
        found.push(
            Evidence::of(link, 0.0)
                .severity(Severity::Note)
                .fact(
                    "written_bytes",
                    written,
                    format!(
                        "{} of WAL were written on {}",
                        bytes(written),
                        link.upstream.name
                    ),
                )
                .fact(
                    "decoded_bytes",
                    0.0,
                    "none of it was for this slot".to_owned(),
                )
                .fact(
                    "behind_bytes",
                    behind,
                    format!(
                        "its position is {} behind, and nothing is missing",
                        bytes(behind)
                    ),
                ),
        );
    }
    found
}

pub(super) fn idle(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in view
        .links
        .iter()
        .filter(|link| link.kind == LinkKind::Physical)
    {
        let Some(node) = link.replica else { continue };
        let age = node
            .last()
            .and_then(|sample| sample.wal.replayed_commit_age_ms);
        // The upstream of a cascaded standby may be behind itself.
        let has_all = |point: &&Point| {
            let primary = view.window.primary();
            let end = primary.and_then(|primary| primary.end_at(None, point.at));
            // So may an archive.
            let is_direct = link.upstream.role == Role::Primary && !link.is_archived();
            point.bytes() == 0 && (is_direct || end.is_some_and(|end| end <= point.replay))
        };
        let same = link.points.iter().filter(has_all).count();
        let share = same as f64 / node.samples.len().max(1) as f64;
        let Some(age) = age.filter(|age| *age >= LOOKS_LATE_MS) else {
            continue;
        };
        if share < 0.8 || link.age_ms() >= LAG_MS {
            continue;
        }
        found.push(
            Evidence::of(link, 0.0)
                .severity(Severity::Note)
                .fact(
                    "replayed_commit_age_ms",
                    age,
                    format!(
                        "the last commit was {} ago: now() - pg_last_xact_replay_timestamp() is \
                         no lag here",
                        seconds(age)
                    ),
                )
                .fact(
                    "caught_up_share",
                    share,
                    format!("all WAL was replayed in {} of the samples", percent(share)),
                ),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::scene::{SAMPLES, START, Scene, slot};
    use crate::diagnosis::checks::Answer;
    use crate::rules::Cause;

    /// What is left when the window begins and when it ends, in bytes.
    fn forecast(from: i64, to: i64) -> Option<f64> {
        let mut scene = Scene::healthy();
        let last = i64::try_from(SAMPLES).unwrap() - 1;
        for (index, sample) in (0..).zip(&mut scene.primary.samples) {
            sample.slots[1].safe_wal_size = Some(from + (to - from) * index / last);
        }
        let diagnosis = scene.diagnose();
        let found = diagnosis.findings.first().unwrap();
        assert_eq!(found.cause, Cause::RetainedWalNearLimit);
        let mut facts = found.evidence.iter();
        facts
            .find(|fact| fact.name == "lost_in_ms")
            .map(|fact| fact.value)
    }

    #[test]
    fn a_slot_near_its_limit_says_when_it_loses_wal() {
        // 49 steps of 0.1 s for 49 MB.
        let left_ms = forecast(100_000_000, 51_000_000).unwrap();
        assert!((left_ms - 5_100.0).abs() < 1.0, "{left_ms}");
        assert_eq!(forecast(50_000_000, 50_000_000), None);
        assert_eq!(forecast(50_000_000, 60_000_000), None);
    }

    /// Nobody uses the slot of a copy that fails between two tries.
    #[test]
    fn the_slot_of_a_copy_is_its_subscription_s() {
        for (system, expected) in [("7", Answer::Well), ("8", Answer::NotKnown)] {
            let name = format!("pg_16400_sync_16385_{system}");
            let mut scene = Scene::healthy();
            scene.one.facts.system = "7".to_owned();
            for sample in &mut scene.one.samples {
                let row = &mut sample.subscriptions[0];
                (row.id, row.unsynced_tables) = (16_400, 1);
            }
            for sample in &mut scene.primary.samples {
                let mut slot = slot(&name, "logical", 0, START);
                (slot.active, slot.active_pid) = (false, None);
                sample.slots.push(slot);
            }
            let checks = scene.diagnose().checks;
            let check = checks
                .iter()
                .find(|it| it.check == "slot" && it.at.contains(&name));
            let check = check.unwrap();
            assert_eq!(check.answer, expected, "{}", check.words);
        }
    }
}
