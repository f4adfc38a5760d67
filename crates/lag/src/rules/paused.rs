//! Signals of paused replay. PostgreSQL says only that it is paused, and what
//! `pg_wal_replay_resume()` does depends on why: it lets replay go on where somebody has paused it, promotes
//! a standby that has reached its recovery target, and stops one whose settings are lower than its
//! primary's.

use super::replay::{standbys, unreplayed};
use super::{Evidence, Severity, View};
use crate::link::Link;
use crate::states::ReplayPause;
use crate::window::NodeWindow;

/// Settings of a recovery target. Of these a server has one at most.
const TARGETS: [&str; 5] = [
    "recovery_target",
    "recovery_target_lsn",
    "recovery_target_name",
    "recovery_target_time",
    "recovery_target_xid",
];

/// Settings that a hot standby must not have lower than the primary had when it wrote its WAL.
const AT_LEAST_THE_PRIMARY_S: [&str; 5] = [
    "max_connections",
    "max_worker_processes",
    "max_wal_senders",
    "max_prepared_transactions",
    "max_locks_per_transaction",
];

/// The recovery target that a standby has: its setting, and that one's value.
pub(crate) fn target(node: &NodeWindow) -> Option<(&'static str, &str)> {
    let value = |name| Some((name, node.facts.setting(name)?));
    let mut set = TARGETS.into_iter().filter_map(value);
    set.find(|(_, value)| !value.is_empty())
}

/// Settings that are lower on a standby than on the primary, with both values.
fn too_low(view: &View<'_>, node: &NodeWindow) -> Vec<(&'static str, f64, f64)> {
    let Some(primary) = view.window.primary() else {
        return Vec::new();
    };
    let compare = |name| {
        let (ours, theirs) = (node.facts.number(name)?, primary.facts.number(name)?);
        (ours < theirs).then_some((name, ours, theirs))
    };
    let settings = AT_LEAST_THE_PRIMARY_S.into_iter();
    settings.filter_map(compare).collect()
}

/// How replay is paused now, if it is.
pub(crate) fn pause(node: &NodeWindow) -> Option<&ReplayPause> {
    let state = node.last()?.wal.pause.as_ref();
    state.filter(|state| matches!(state, ReplayPause::Paused | ReplayPause::Requested))
}

/// Standbys whose replay is paused, each with the evidence for that.
fn all<'v, 'a>(
    view: &'v View<'a>,
) -> impl Iterator<Item = (&'v Link<'a>, &'a NodeWindow, Evidence)> {
    standbys(view).filter_map(|(link, node)| {
        let state = pause(node)?;
        let share = node.share(|sample| sample.wal.pause != Some(ReplayPause::NotPaused));
        let severity = match link.last_bytes() {
            0 => Severity::Risk,
            _ => Severity::Lag,
        };
        let evidence = Evidence::of(link, share).severity(severity).fact(
            "paused_share",
            share,
            format!("pg_get_wal_replay_pause_state() is \"{state}\""),
        );
        Some((link, node, evidence))
    })
}

/// Somebody has paused it, as far as settings show.
pub(super) fn by_somebody(view: &View<'_>) -> Vec<Evidence> {
    let found =
        all(view).filter(|(_, node, _)| target(node).is_none() && too_low(view, node).is_empty());
    found
        .map(|(link, _, evidence)| unreplayed(evidence, link))
        .collect()
}

/// Replay is paused, and has a recovery target: it may be there.
pub(super) fn at_target(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (link, node, evidence) in all(view).filter(|(_, node, _)| too_low(view, node).is_empty()) {
        let Some((name, value)) = target(node) else {
            continue;
        };
        let action = node.facts.setting("recovery_target_action");
        let action = action.unwrap_or("pause");
        let resumed = match action {
            "shutdown" => "shuts it down there",
            _ => "promotes it there",
        };
        let evidence = unreplayed(evidence, link)
            .fact(
                "has_target",
                1.0,
                format!("{name} is '{value}', recovery_target_action is {action}"),
            )
            .name("target_setting", name)
            .name("resumed", resumed);
        // Only a standby streams; what restores from an archive alone may be a recovery to a point in time.
        let streams = node.samples.iter().any(|sample| sample.receiver.is_some());
        let what = if streams { "following" } else { "restoring" };
        let evidence = evidence.name(what, &node.name);
        found.push(evidence);
    }
    found
}

/// Settings of the standby are lower than its primary's: hot standby cannot go on.
pub(super) fn settings_too_low(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (link, node) in standbys(view) {
        let low = too_low(view, node);
        if low.is_empty() {
            continue;
        }
        let paused = all(view).find(|(other, ..)| other.name == link.name);
        let mut evidence = match paused {
            Some((link, _, evidence)) => unreplayed(evidence, link),
            None => Evidence::of(link, 0.0).severity(Severity::Risk),
        };
        for (name, ours, theirs) in &low {
            let words = format!(
                "{name} is {ours:.0} on {}, {theirs:.0} on the primary",
                node.name
            );
            evidence = evidence.fact("setting_too_low", *ours, words);
        }
        let raise = low
            .iter()
            .map(|(name, _, theirs)| format!("ALTER SYSTEM SET {name} = {theirs:.0};"));
        let raise: Vec<String> = raise.collect();
        found.push(evidence.name("raise", raise.join(" ")));
    }
    found
}
