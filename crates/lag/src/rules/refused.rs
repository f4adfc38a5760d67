//! Signals of replicas that come to no walsender: their role, their slot, or a place for them is missing, by
//! what both servers say.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lockstep_service::words::figures::{bytes, percent};

use super::anew::{Slot, end_workers, recreated};
use super::ended::ended;
use super::published::{connects_to, meant, some};
use super::receive::not_streaming_links;
use super::synchronised::{is_fresh, retry};
use super::unfed::source;
use super::{Cause, Evidence, Rule, Severity, View, identifier, in_database};
use crate::link::Link;
use crate::node::Role;
use crate::sample::Sample;
use crate::source::Publisher;
use crate::tables::Followed;
use crate::views::{Sender, Subscription};
use crate::window::NodeWindow;

/// The rule of a subscription whose owner may not log in.
pub(super) const OWNER: Rule = Rule {
    cause: Cause::OwnerRefused,
    title: "the subscription's owner {role} may not log in: its worker ends before it connects",
    signal: owner,
    remedies: &[
        "on {place}: ALTER ROLE {role} LOGIN; the worker then runs by itself",
        "on {server}: ALTER SUBSCRIPTION {subscription} OWNER TO a role that has LOGIN",
    ],
};

/// The rule of a subscription for which its server has no worker.
pub(super) const NO_WORKER: Rule = Rule {
    cause: Cause::NoFreeWorker,
    title: "no worker is left for the subscription",
    signal: no_worker,
    remedies: &[
        "on {place}: {raise} and restart it: that ends its sessions",
        "disable subscriptions on {place} that nobody needs",
        "if it has no worker after that either, look at the log of {short_place} for what {upstream} answers: host and \
         port, password, pg_hba.conf, TLS, the role's LOGIN and REPLICATION",
    ],
};

/// The rule of a subscription that does not get to its publisher.
pub(super) const SUBSCRIPTION: Rule = Rule {
    cause: Cause::SubscriptionRefused,
    title: "the subscription's worker gets no connection to {upstream}",
    signal: subscription,
    remedies: &[
        "look at the log of {place} for what {upstream} answers: host and port, password, pg_hba.conf, TLS; the role in \
         the subscription's connection string needs LOGIN and REPLICATION on {upstream}",
    ],
};

/// Share of samples from which a worker counts as away, or all places as taken.
const MOSTLY: f64 = 0.5;

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
        (is_server && last.slot(slot).is_none()).then(|| of_slot(view, link, evidence))
    };
    workless(view).filter_map(missing).collect()
}

/// What the subscription of a link follows, as its subscriber says.
pub(super) fn follows<'v>(link: &Link<'v>) -> Option<&'v Followed> {
    let last = link.replica?.last()?;
    last.tables.subscriptions.get(link.subscription.as_deref()?)
}

pub(super) fn quoted(followed: &Followed) -> Vec<String> {
    let publications = followed.publications.iter();
    publications.map(|name| identifier(name)).collect()
}

/// Adds what is missing besides the slot, and how certain its publisher is: a slot on another server would
/// keep WAL there for nobody.
fn of_slot(view: &View<'_>, link: &Link<'_>, evidence: Evidence) -> Evidence {
    let upstream = &link.upstream.name;
    let followed = follows(link).cloned().unwrap_or_default();
    let theirs = link.upstream.last().map(|last| Arc::clone(&last.tables));
    let theirs = theirs.unwrap_or_default();
    let has_all = theirs.published(&followed.publications).is_some();
    let publications = quoted(&followed);
    let words = match has_all {
        true => format!("{upstream} has its publications"),
        false => format!(
            "{upstream} lacks publications of it ({})",
            some(&publications)
        ),
    };
    let slot = link.slot.as_deref().unwrap_or_default();
    let words = format!("its slot {slot} is on no server that is named here; {words}");
    let evidence = match publications.is_empty() {
        true => evidence,
        false => evidence.name("publications", publications.join(", ")),
    };
    let evidence = recreated(evidence.fact("missing_slots", 1.0, words), link, Slot::Gone);
    match meant(view, link) {
        Some((publisher, database)) => match has_all {
            true => evidence.name("publisher", in_database(publisher, &database)),
            false => evidence.name("lacking_publisher", in_database(publisher, &database)),
        },
        None => guessed(view, link, evidence),
    }
}

/// A remedy that comes first where nobody knows whether a subscription's publisher is the server with a
/// slot of that name.
pub(super) const GUESSED: &str = "if the subscription gets its changes from another server than {guessed}, name that \
     one, too: {connects}";

/// Adds how certain the publisher of a subscription is that has no worker: the name of its slot is all that
/// speaks for it.
pub(super) fn guessed(view: &View<'_>, link: &Link<'_>, evidence: Evidence) -> Evidence {
    let Some(node) = link.replica.filter(|_| meant(view, link).is_none()) else {
        return evidence;
    };
    let words = match connects_to(link) {
        Some(Publisher {
            address: (host, port),
            ..
        }) => format!("it connects to {host}:{port}"),
        None => format!(
            "as a superuser, SELECT subname, subconninfo FROM pg_subscription on {} says where it connects to",
            node.name
        ),
    };
    evidence
        .name("guessed", &link.upstream.name)
        .name("connects", words)
}

/// The walsender that uses the slot of a link all the time, and gets replies: one whose consumer has gone may
/// stay for a while.
fn consumer<'v>(link: &Link<'v>) -> Option<&'v Sender> {
    let slot = link.slot.as_deref()?;
    let pid = |sample: &Sample| sample.slot(slot)?.active_pid;
    let sender = link.upstream.last().and_then(|last| link.sender(last))?;
    let stays = link
        .upstream
        .share(|sample| pid(sample) == Some(sender.pid))
        >= MOSTLY;
    let samples = link.upstream.samples.iter();
    // Those of a worker that fails come and go, and each replies once.
    let its = samples.filter_map(|sample| link.sender(sample).filter(|it| it.pid == sender.pid));
    let replies = its.filter_map(|it| it.replied_us);
    let replies: BTreeSet<i64> = replies.collect();
    (stays && replies.len() > 1).then_some(sender)
}

/// The subscription has no worker, and somebody uses its slot.
pub(super) fn slot_taken(view: &View<'_>) -> Vec<Evidence> {
    let taken = |(link, node, _, evidence): (&Link<'_>, &NodeWindow, _, Evidence)| {
        let slot = link.slot.as_deref()?;
        let errors = |sample: &Sample| Some(link.subscribed(sample)?.apply_errors as f64);
        let sender = consumer(link).filter(|_| node.growth(errors) == 0.0)?;
        let from = sender.client.as_deref().unwrap_or("the server itself");
        let other = format!(
            "{} from {from} (process {} on {})",
            sender.application_name, sender.pid, link.upstream.name
        );
        let words = format!("its slot {slot} is in use by {other}");
        let evidence = evidence.severity(Severity::Lag);
        let evidence = evidence.fact("taken_slots", 1.0, words);
        let evidence = evidence.name("whose", "subscription").name("other", other);
        let evidence = evidence.name("taken_slot", slot.replace('\'', "''"));
        let evidence = evidence.name("end_workers", end_workers(link.subscription.as_deref()?));
        let evidence = guessed(view, link, evidence);
        // DROP SUBSCRIPTION would wait for ever, with its tables empty, while the other uses the slot.
        Some(recreated(evidence, link, Slot::Gone))
    };
    workless(view).filter_map(taken).collect()
}

const WORKERS: &str = "max_logical_replication_workers";

const PROCESSES: &str = "max_worker_processes";

/// Number of workers for logical replication that a server can have: their launcher is a background worker,
/// too.
fn room(node: &NodeWindow) -> Option<f64> {
    let most = node.facts.number(WORKERS)?;
    let all = node.facts.number(PROCESSES).filter(|all| *all > 0.0);
    Some(all.map_or(most, |all| most.min(all - 1.0)))
}

fn taken_workers(sample: &Sample) -> f64 {
    let processes = sample.processes.iter();
    let workers = processes.filter(|process| process.backend_type.is_logical_worker());
    workers.count() as f64
}

/// All workers of the server are taken most of the time.
fn is_full(node: &NodeWindow) -> bool {
    let room = room(node).unwrap_or(f64::MAX);
    node.share(|sample| taken_workers(sample) >= room) >= MOSTLY
}

/// All workers for logical replication of the subscriber's server are taken, or there are more enabled
/// subscriptions than workers. Where a worker fails and comes again its place is free most of the time, and
/// a subscription may still get none.
fn no_worker(view: &View<'_>) -> Vec<Evidence> {
    let without = |(link, node, row, evidence): (
        &Link<'_>,
        &NodeWindow,
        &Subscription,
        Evidence,
    )| {
        let room = room(node)?;
        let is_full = is_full(node);
        let enabled = node.last()?.background.enabled_subscriptions;
        let enabled = enabled.map_or(0.0, |number| number as f64);
        // One whose worker was there and failed has a cause of its own.
        let errors = |sample: &Sample| Some(link.subscribed(sample)?.apply_errors as f64);
        let fails = row.apply_errors > 0 || node.growth(errors) > 0.0;
        let is_short = enabled > room && !fails;
        let words = match is_full {
            true => format!("all {room:.0} workers for logical replication are taken"),
            false => format!(
                "{enabled:.0} enabled subscriptions share {room:.0} workers for logical replication"
            ),
        };
        let more = (2.0 * node.facts.number(WORKERS)?)
            .max(4.0)
            .max(enabled + 2.0);
        let mut raise = format!("ALTER SYSTEM SET {WORKERS} = {more:.0};");
        // Parallel queries and other programs take their workers from there, too.
        let all = node.facts.number(PROCESSES).unwrap_or(0.0);
        if all < more + 4.0 {
            let both = all + more;
            raise.push_str(&format!(" ALTER SYSTEM SET {PROCESSES} = {both:.0};"));
        }
        let taken = node.last().map_or(0.0, taken_workers);
        (is_full || is_short).then(|| {
            let evidence = evidence.fact("taken_workers", taken, words);
            let evidence = evidence.name("raise", raise);
            // Which of the subscriptions gets none is not seen then.
            match is_full {
                true => evidence,
                false => evidence.name("short_place", &node.name),
            }
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
        let is_its = upstream.role != Role::Relay && link.unasked.is_none();
        (share >= MOSTLY && is_its).then(|| {
            let evidence = evidence.fact("taken_walsenders", taken, words);
            evidence.name("more", format!("{:.0}", (2.0 * most).max(10.0)))
        })
    };
    physical.chain(logical).filter_map(full).collect()
}

/// The role of a standby's `primary_conninfo`, or of a subscription's connection string, may not ask for WAL.
pub(super) fn role(view: &View<'_>) -> Vec<Evidence> {
    let roles = view.window.primary().and_then(NodeWindow::last);
    let Some((primary, roles)) = view
        .window
        .primary()
        .zip(roles.and_then(|last| last.background.roles.as_ref()))
    else {
        return Vec::new();
    };
    // Whose role it is, and how a role that is not there is called in the remedies.
    let refused = |evidence: Evidence, user: &str, whose: &str, absent: &'static str| {
        let evidence = evidence
            .name("role", identifier(user))
            .name("primary", &primary.name);
        let (name, value, words) = match roles.get(user) {
            None => (absent, user, "there is no such role".to_owned()),
            Some(None) => return None,
            Some(Some(lacking)) => ("lacking", lacking.as_str(), format!("it lacks {lacking}")),
        };
        let words = format!("{whose} names role {user}: {words}");
        Some(evidence.fact("refused_roles", 1.0, words).name(name, value))
    };
    let standbys = not_streaming_links(view).into_iter();
    let standbys = standbys.filter_map(|(link, evidence)| {
        let user = source(link.replica?)?.user.as_deref()?;
        refused(evidence, user, "primary_conninfo", "no_role")
    });
    let subscriptions = workless(view).filter_map(|(link, _, _, evidence)| {
        let user = connects_to(link)?.user.as_deref()?;
        let (publisher, _) = meant(view, link)?;
        let is_primary = publisher.name == primary.name;
        let of = "the subscription's connection string";
        refused(evidence, user, of, "no_such_role").filter(|_| is_primary)
    });
    standbys.chain(subscriptions).collect()
}

/// The role that a subscription belongs to may not log in: its worker, which works as that role, ends before
/// it connects.
fn owner(view: &View<'_>) -> Vec<Evidence> {
    let refused = |(_, _, row, evidence): (_, _, &Subscription, Evidence)| {
        let owner = identifier(row.owner_without_login.as_deref()?);
        let words = format!("it belongs to role {owner}, which lacks LOGIN");
        let evidence = evidence.fact("refused_owners", 1.0, words);
        Some(evidence.name("role", owner))
    };
    workless(view).filter_map(refused).collect()
}

/// The longest time until each subscription has had a worker: before 16 a server starts one in each
/// `wal_retrieve_retry_interval`, whichever subscription it is of.
fn turn(node: &NodeWindow) -> Duration {
    let enabled = node
        .last()
        .and_then(|last| last.background.enabled_subscriptions);
    let before = match node.facts.major() < 16 {
        true => enabled.unwrap_or(1).clamp(1, 1_000),
        false => 1,
    };
    retry(node).saturating_mul(before as u32)
}

/// The subscription's worker ends before it applies anything, since it counts no error, and nobody uses the
/// slot: its connection to the publisher is refused.
fn subscription(view: &View<'_>) -> Vec<Evidence> {
    let refused =
        |(link, node, row, evidence): (&Link<'_>, &NodeWindow, &Subscription, Evidence)| {
            let errors = |sample: &Sample| Some(link.subscribed(sample)?.apply_errors as f64);
            // An error is counted at each try, and the next try may come after this window.
            let is_seen = row.apply_errors == 0 || node.length() > turn(node);
            let last = link.upstream.last()?;
            let is_there = link
                .slot
                .as_deref()
                .is_some_and(|slot| last.slot(slot).is_some());
            let is_refused = is_there
                && is_seen
                && node.growth(errors) == 0.0
                && link.connected_share() == 0.0
                && !is_full(node)
                && !is_fresh(link)
                && !ended(view, link.upstream);
            is_refused.then(|| {
            let when = match row.apply_errors {
                0 => "",
                _ => " in this window",
            };
            let words = format!(
                "its worker has counted no error of applying{when}, and nobody uses its slot on {}",
                link.upstream.name
            );
            evidence.fact("counted_errors", 0.0, words)
        })
        };
    workless(view).filter_map(refused).collect()
}
