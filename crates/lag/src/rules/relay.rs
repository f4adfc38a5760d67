//! Signals of relays: groups that do not stream, backlogs that no longer fit into memory, spools
//! that fill.

use lockstep_service::words::figures::{bytes, percent};

use super::{Evidence, Severity, View};
use crate::figures::ratio;
use crate::link::Link;
use crate::links::group_name;
use crate::relay::{Group, Relay, RelaySlot};
use crate::states::GroupState;
use crate::views::Process;
use crate::window::NodeWindow;

/// Share of samples from which a group that does not stream has stopped, if it does not stream
/// now either.
const AWAY_SHARE: f64 = 0.5;

/// A spool is near its limit when less than this part of it is left.
const NEAR: f64 = 0.2;

/// The cache counts as full from this part of its limit on: memory is freed in pieces.
const FULL: f64 = 0.8;

/// Share of samples from which a consumer that waits for data could take more.
const IDLE_SHARE: f64 = 0.3;

/// Assumed for an apply worker that cannot be asked.
const UNKNOWN_IDLE: f64 = 0.5;

/// The groups of each relay that answers, as they are now.
fn groups<'v>(view: &'v View<'_>) -> impl Iterator<Item = (&'v NodeWindow, &'v Relay, &'v Group)> {
    view.window.usable().flat_map(|node| {
        let relay = node.last().and_then(|last| last.relay.as_ref());
        let groups = relay.map(|relay| relay.groups.iter().map(move |group| (node, relay, group)));
        groups.into_iter().flatten()
    })
}

/// Evidence about a group, and about the link to it if there is one.
fn of_group(view: &View<'_>, node: &NodeWindow, group: &Group, explains: f64) -> Evidence {
    let at = group_name(node, &group.name);
    let evidence = match link_to(view, &at) {
        Some(link) => Evidence::of(link, explains),
        None => {
            let mut evidence = Evidence::on(node, Severity::Lag);
            evidence.at = at;
            evidence.explains = explains.clamp(0.0, 1.0);
            evidence
        }
    };
    evidence
        .name("relay", &node.name)
        .name("group", &group.name)
}

fn link_to<'v, 'a>(view: &'v View<'a>, at: &str) -> Option<&'v Link<'a>> {
    let mut links = view.links.iter().filter(|link| !link.is_relayed());
    links.find(|link| link.group.is_some() && link.name == at)
}

/// The used part of a spool's limit; None if there is no limit.
fn used(group: &Group) -> Option<f64> {
    let limit = group.spool_limit_bytes;
    (limit > 0).then(|| group.spool_bytes as f64 / limit as f64)
}

fn is_near(group: &Group) -> bool {
    used(group).is_some_and(|used| used > 1.0 - NEAR)
}

pub(super) fn not_streaming(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (node, _, group) in groups(view) {
        let share = node.share(|sample| {
            let group = sample.relay.as_ref().and_then(|r| r.group(&group.name));
            group.is_some_and(|group| !group.is_streaming())
        });
        // The next rule knows more about a full spool.
        let is_full = group.state == GroupState::Waiting && is_near(group);
        if group.is_streaming() || share < AWAY_SHARE || is_full {
            continue;
        }
        let reason = group.reason.as_deref().unwrap_or("it does not say why");
        let mut evidence = of_group(view, node, group, share).fact(
            "not_streaming_share",
            share,
            format!(
                "it is {} in {} of the samples: {reason}",
                group.state,
                percent(share)
            ),
        );
        let link = link_to(view, &evidence.at);
        if let Some(link) = link {
            evidence = evidence.fact(
                "behind_bytes",
                link.last_bytes() as f64,
                format!(
                    "{} behind {}",
                    bytes(link.last_bytes() as f64),
                    link.upstream.name
                ),
            );
        }
        if link.is_some_and(|link| link.last_bytes() == 0) {
            evidence = evidence.severity(Severity::Risk);
        }
        // Each of these gaps belongs to the remedy for one state.
        let state = match group.state {
            GroupState::Connecting => Some("connecting"),
            GroupState::Failed => Some("failed"),
            GroupState::Waiting => Some("waiting"),
            GroupState::Streaming | GroupState::Other(_) => None,
        };
        if let Some(state) = state {
            evidence = evidence.name(state, &group.name);
        }
        found.push(evidence.name("reason", reason));
    }
    found
}

pub(super) fn spool(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (node, relay, group) in groups(view) {
        let Some(used) = used(group).filter(|_| is_near(group)) else {
            continue;
        };
        let limit = group.spool_limit_bytes as f64;
        // A rule that can tell who holds the spool back explains more.
        let mut evidence = of_group(view, node, group, 0.9 * used)
            .severity(match group.state {
                // It receives nothing more.
                GroupState::Waiting => Severity::Lag,
                _ => Severity::Risk,
            })
            .fact(
                "spool_bytes",
                group.spool_bytes as f64,
                format!(
                    "its spool holds {} of at most {}",
                    bytes(group.spool_bytes as f64),
                    bytes(limit)
                ),
            )
            .name("spool_limit", bytes(limit));
        evidence.names.remove("slot");
        if let Some(reason) = group.reason.as_deref() {
            evidence = evidence.fact("waits", 1.0, format!("it is {}: {reason}", group.state));
        }
        let readers = relay.readers(&group.name);
        if let Some(slot) = readers.first() {
            let away = match (slot.confirmed, group.end()) {
                (Some(from), Some(to)) => to.bytes_since(from) as f64,
                _ => 0.0,
            };
            let who = match slot.active_pid {
                Some(_) => "its subscriber is connected",
                None => "nobody uses it",
            };
            evidence = evidence
                .fact(
                    "slowest_slot_behind_bytes",
                    away,
                    format!(
                        "slot {} has confirmed least, {} of WAL behind; {who}",
                        slot.name,
                        bytes(away)
                    ),
                )
                .name("slot", &slot.name);
        }
        found.push(evidence);
    }
    found
}

/// Blocks that a relay sent over the link during the window, from memory and from the spool.
fn blocks(link: &Link<'_>) -> (f64, f64) {
    let grown = |number: fn(&RelaySlot) -> u64| {
        let upstream = link.upstream;
        upstream.growth(|sample| link.relay_slot(sample).map(|slot| number(slot) as f64))
    };
    (grown(|slot| slot.cache_hit), grown(|slot| slot.cache_miss))
}

/// The part of the blocks sent over the link that came from the spool.
pub(super) fn missed_share(link: &Link<'_>) -> f64 {
    let (hits, misses) = blocks(link);
    ratio(misses, hits + misses)
}

pub(super) fn from_disk(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in view.links.iter().filter(|link| link.is_behind()) {
        let group = link.upstream.last().and_then(|last| {
            let relay = last.relay.as_ref()?;
            relay.group(link.upstream_group()?)
        });
        let Some(group) = group else { continue };
        let (hits, misses) = blocks(link);
        let (cache, limit) = (group.cache_bytes as f64, group.cache_limit_bytes as f64);
        if misses == 0.0 || cache < FULL * limit {
            continue;
        }
        let missed = ratio(misses, hits + misses);
        let idle = link.worker_share(Process::waits_for_changes);
        let could = idle.unwrap_or(UNKNOWN_IDLE);
        let left = link.upstream.last().and_then(|last| link.relay_slot(last));
        let left = left.map_or(0, |slot| slot.behind_bytes) as f64;
        let mut evidence = Evidence::of(link, 0.9 * missed * could)
            .fact(
                "missed_share",
                missed,
                format!(
                    "{} of what it was sent came from the spool, {misses:.0} blocks of 8 kB",
                    percent(missed)
                ),
            )
            .fact(
                "cache_bytes",
                cache,
                match group.cache_limit_bytes {
                    0 => "the cache is off".to_owned(),
                    _ => format!("the cache holds {} of {}", bytes(cache), bytes(limit)),
                },
            )
            .fact("left_bytes", left, format!("{} left to send", bytes(left)))
            .name("relay", &link.upstream.name)
            .name("cache_limit", bytes(limit));
        if let Some(idle) = idle {
            let words = match idle < IDLE_SHARE {
                true => "the backlog comes from there",
                false => "it could take more",
            };
            evidence = evidence.fact(
                "worker_idle_share",
                idle,
                format!(
                    "its apply worker waited for data in {} of the samples: {words}",
                    percent(idle)
                ),
            );
        }
        if could < IDLE_SHARE {
            evidence = evidence.severity(Severity::Note);
        }
        found.push(evidence);
    }
    found
}
