//! Signals of replicas that come to no walsender: their role, their slot, or a place for them is missing, by
//! what both servers say.

use std::time::Duration;

use lockstep_service::words::figures::{bytes, percent};

use super::halted::ended;
use super::receive::not_streaming_links;
use super::unfed::source;
use super::{Evidence, Severity, View, identifier};
use crate::link::Link;
use crate::node::Role;
use crate::sample::Sample;
use crate::views::Subscription;
use crate::window::NodeWindow;

/// Share of samples from which a worker counts as away, or all places as taken.
const MOSTLY: f64 = 0.5;

/// How long a launcher waits between two tries of a worker, unless the server says it.
const RETRY: Duration = Duration::from_secs(5);

/// Subscriptions that are enabled and have no apply worker most of the time, each with its subscriber and the
/// evidence for that.
pub(super) fn workless<'v>(
    view: &'v View<'_>,
) -> impl Iterator<Item = (&'v Link<'v>, &'v NodeWindow, &'v Subscription, Evidence)> {
    view.links.iter().filter_map(|link| {
        let node = link.replica?;
        let row = link.subscribed(node.last()?).filter(|row| row.enabled)?;
        let away =
            node.share(|sample| !link.subscribed(sample).is_some_and(Subscription::receives));
        let behind = link.last_bytes() as f64;
        let severity = match (link.points.is_empty(), link.last_bytes()) {
            (false, 0) => Severity::Risk,
            _ => Severity::Lag,
        };
        let words = format!(
            "it had no worker that received anything in {} of the samples",
            percent(away)
        );
        let mut evidence = Evidence::of(link, away)
            .severity(severity)
            .fact("without_worker_share", away, words)
            .name("place", &node.name);
        if !link.points.is_empty() {
            let words = format!("{} behind", bytes(behind));
            evidence = evidence.fact("behind_bytes", behind, words);
        }
        (away >= MOSTLY).then_some((link, node, row, evidence))
    })
}

/// The subscription's slot is on none of the servers. One that does not answer may have it, or a relay.
pub(super) fn slot_missing(view: &View<'_>) -> Vec<Evidence> {
    if !view.window.nodes.iter().all(NodeWindow::is_usable) {
        return Vec::new();
    }
    let missing = |(link, _, _, evidence): (&Link<'_>, _, _, Evidence)| {
        let slot = link.slot.as_deref()?;
        let last = link.upstream.last()?;
        let is_server = link.upstream.role != Role::Relay;
        (is_server && last.slot(slot).is_none()).then(|| {
            let words = format!(
                "its slot {slot} is on no server that is named here; {} has its publications",
                link.upstream.name
            );
            let evidence = evidence.fact("missing_slots", 1.0, words);
            let place = super::in_database(link.upstream, &link.upstream.facts.database);
            evidence.name("publisher", place)
        })
    };
    workless(view).filter_map(missing).collect()
}

/// All workers for logical replication of the subscriber's server are taken.
pub(super) fn no_worker(view: &View<'_>) -> Vec<Evidence> {
    const SETTING: &str = "max_logical_replication_workers";
    let without = |(_, node, _, evidence): (&Link<'_>, &NodeWindow, _, Evidence)| {
        let most = node.facts.number(SETTING)?;
        let number = |sample: &Sample| {
            let processes = sample.processes.iter();
            let workers = processes.filter(|process| process.backend_type.is_logical_worker());
            workers.count() as f64
        };
        let full = node.share(|sample| number(sample) >= most);
        let words = format!("all {most:.0} workers for logical replication are taken");
        let more = (2.0 * most).max(4.0);
        let mut raise = format!("ALTER SYSTEM SET {SETTING} = {more:.0};");
        // Parallel queries and other programs take their workers from there, too.
        let all = node.facts.number("max_worker_processes").unwrap_or(0.0);
        if all < more + 4.0 {
            let both = all + more;
            raise.push_str(&format!(
                " ALTER SYSTEM SET max_worker_processes = {both:.0};"
            ));
        }
        let taken = node.last().map_or(0.0, number);
        (full >= MOSTLY).then(|| {
            let evidence = evidence.fact("taken_workers", taken, words);
            evidence.name("raise", raise)
        })
    };
    workless(view).filter_map(without).collect()
}

/// The replica has no walsender, and its upstream has no place for another one.
pub(super) fn no_walsender(view: &View<'_>) -> Vec<Evidence> {
    let physical = not_streaming_links(view).into_iter();
    let logical = workless(view).map(|(link, _, _, evidence)| (link, evidence));
    let full = |(link, evidence): (&Link<'_>, Evidence)| {
        let upstream = link.upstream;
        let most = upstream.facts.number("max_wal_senders")?;
        let share = upstream.share(|sample| sample.senders.len() as f64 >= most);
        let taken = upstream.last()?.senders.len() as f64;
        let words = format!("all {most:.0} walsenders of {} are taken", upstream.name);
        (share >= MOSTLY && upstream.role != Role::Relay).then(|| {
            let evidence = evidence.fact("taken_walsenders", taken, words);
            evidence.name("more", format!("{:.0}", (2.0 * most).max(10.0)))
        })
    };
    physical.chain(logical).filter_map(full).collect()
}

/// The role of a standby's `primary_conninfo` may not ask for WAL.
pub(super) fn role(view: &View<'_>) -> Vec<Evidence> {
    let roles = view.window.primary().and_then(NodeWindow::last);
    let Some((primary, roles)) = view
        .window
        .primary()
        .zip(roles.and_then(|last| last.background.roles.as_ref()))
    else {
        return Vec::new();
    };
    let refused = |(link, evidence): (&Link<'_>, Evidence)| {
        let user = source(link.replica?)?.user.as_deref()?;
        let evidence = evidence
            .name("role", identifier(user))
            .name("primary", &primary.name);
        let (name, value, words) = match roles.get(user) {
            None => ("no_role", user, "there is no such role".to_owned()),
            Some(None) => return None,
            Some(Some(lacking)) => ("lacking", lacking.as_str(), format!("it lacks {lacking}")),
        };
        let words = format!("primary_conninfo names role {user}: {words}");
        Some(evidence.fact("refused_roles", 1.0, words).name(name, value))
    };
    let links = not_streaming_links(view).into_iter();
    links.filter_map(refused).collect()
}

/// The subscription's worker ends before it applies anything, since it counts no error, and nobody uses the
/// slot: its connection to the publisher is refused.
pub(super) fn subscription(view: &View<'_>) -> Vec<Evidence> {
    let refused =
        |(link, node, row, evidence): (&Link<'_>, &NodeWindow, &Subscription, Evidence)| {
            let errors = |sample: &Sample| Some(link.subscribed(sample)?.apply_errors as f64);
            let retry = node.facts.number("wal_retrieve_retry_interval");
            let retry = retry.map_or(RETRY, |ms| {
                Duration::from_secs_f64(ms.clamp(0.0, 1e9) / 1000.0)
            });
            // An error is counted at each try, and the next try may come after this window.
            let is_seen = row.apply_errors == 0 || node.length() > retry;
            let last = link.upstream.last()?;
            let is_there = link
                .slot
                .as_deref()
                .is_some_and(|slot| last.slot(slot).is_some());
            let is_refused = is_there
                && is_seen
                && node.growth(errors) == 0.0
                && link.connected_share() == 0.0
                && !ended(view, link.upstream);
            is_refused.then(|| {
                let words = format!(
                    "its worker has counted no error of applying, and nobody uses its slot on {}",
                    link.upstream.name
                );
                evidence.fact("counted_errors", 0.0, words)
            })
        };
    workless(view).filter_map(refused).collect()
}
