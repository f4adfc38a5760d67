//! Whether a slot that has the name of a subscription's slot, or of a relay's, is that slot. Names of slots
//! differ on one server only: the slots of two publishers may have the same.

use std::time::Duration;

use crate::node::Role;
use crate::relay::Group;
use crate::sample::Sample;
use crate::source::Publisher;
use crate::views::{Sender, Slot, Subscription};
use crate::window::{NodeWindow, Window};

/// Time between two samples of which one shows positions that came after those of the other.
pub(super) const APART: Duration = Duration::from_secs(1);

/// Time without a message after which a worker's publisher is not there, in milliseconds: the default
/// `wal_sender_timeout`.
const LONGEST_SILENCE_MS: f64 = 60_000.0;

/// A subscription of a subscriber that was asked.
#[derive(Clone, Copy)]
struct Follower<'a> {
    node: &'a NodeWindow,
    last: &'a Sample,
    row: &'a Subscription,
}

/// True unless something speaks for another publisher: then nobody here knows which it is.
pub(super) fn may_be_its(
    window: &Window,
    node: &NodeWindow,
    name: &str,
    upstream: &NodeWindow,
) -> bool {
    let found = node.last().and_then(|last| {
        let row = last.subscription(name)?;
        Some((Follower { node, last, row }, row.slot_name.as_deref()?))
    });
    let Some((own, slot)) = found else {
        return true;
    };
    // A relay tells no names of those that connect, and no address of its own.
    if upstream.role == Role::Relay {
        let address = meant(own).map(|meant| &meant.address);
        let is_servers = address.is_some_and(|address| window.server_at(node, address).is_some());
        return !is_servers && !worker_without(own, slot, upstream).is_some_and(|it| it.hears);
    }
    let agrees = agrees(own, slot, upstream);
    if agrees == Some(false) {
        return false;
    }
    if leads_to(window, own, upstream) == Some(true) {
        return true;
    }
    let others: Vec<Follower<'_>> = others(window, own, slot)
        .filter(|other| leads_to(window, *other, upstream) != Some(false))
        .filter(|other| self::agrees(*other, slot, upstream) != Some(false))
        .collect();
    let user = upstream
        .last()
        .and_then(|last| user(last, slot))
        .filter(|sender| !sender.application_name.is_empty());
    let Some(user) = user else {
        let leads_elsewhere = leads_to(window, own, upstream) == Some(false);
        let is_left = worker_without(own, slot, upstream).is_some_and(|worker| worker.may_live);
        return others.is_empty() && !leads_elsewhere && !is_left;
    };
    match is_called(own, user) {
        true => !others.iter().any(|other| is_called(*other, user)),
        // Its connection string may give it another name, or somebody else has taken the slot.
        false => !has_namesake(window, own, slot) && (agrees == Some(true) || !own.row.receives()),
    }
}

/// True if a subscription that was asked has a slot of this name, and it is not known that this is the slot
/// of another server.
pub(crate) fn may_need(window: &Window, slot: &Slot, upstream: &NodeWindow) -> bool {
    let nodes = window.usable().filter(|node| node.role == Role::Subscriber);
    let rows = nodes.filter_map(|node| Some((node, node.last()?)));
    let mut rows = rows.flat_map(|(node, last)| {
        let rows = last.subscriptions.iter();
        rows.map(move |row| Follower { node, last, row })
    });
    let name = slot.slot_name.as_str();
    rows.any(|it| {
        it.row.slot_name.as_deref() == Some(name)
            && leads_to(window, it, upstream) != Some(false)
            && agrees(it, name, upstream) != Some(false)
    })
}

/// True unless something speaks for another primary of a relay's group: the address that the group is
/// connected to, WAL that this server does not have, or that nobody uses the slot while the group streams.
pub(super) fn may_be_groups(
    window: &Window,
    node: &NodeWindow,
    group: &Group,
    upstream: &NodeWindow,
) -> bool {
    let address = group.primary.as_deref().and_then(|it| it.rsplit_once(':'));
    let address = address.map(|(host, port)| (host.to_owned(), port.to_owned()));
    if let Some(server) = address.and_then(|address| window.server_at(node, &address)) {
        return server.name == upstream.name;
    }
    let of = |sample: &Sample| sample.relay.as_ref()?.group(&group.name).cloned();
    let Some((first, last)) = node.samples.first().zip(upstream.last()) else {
        return true;
    };
    let streams = |sample: &Sample| of(sample).is_some_and(|it| it.is_streaming());
    let is_late = last.at >= first.at + APART;
    if !is_late || !node.samples.iter().all(streams) {
        return true;
    }
    let is_free = |above: &Sample| {
        above
            .slot(&group.upstream_slot)
            .is_some_and(|it| !it.active)
    };
    let is_beyond = of(first).and_then(|it| it.sent) > last.end();
    !is_beyond && !upstream.samples.iter().all(is_free)
}

/// Other subscriptions with a slot of that name. A subscriber that is named twice is the same.
fn others<'a>(
    window: &'a Window,
    own: Follower<'a>,
    slot: &'a str,
) -> impl Iterator<Item = Follower<'a>> {
    let place = |node: &NodeWindow| (node.facts.identity(), node.facts.database.clone());
    let is_same = move |node: &NodeWindow| {
        let is_again = node.facts.identity().is_some() && place(node) == place(own.node);
        node.name == own.node.name || is_again
    };
    let nodes = window.usable().filter(|node| node.role == Role::Subscriber);
    nodes.flat_map(move |node| {
        let rows = node.last().into_iter().flat_map(move |last| {
            let rows = last.subscriptions.iter();
            rows.map(move |row| Follower { node, last, row })
        });
        rows.filter(move |it| it.row.slot_name.as_deref() == Some(slot))
            .filter(move |it| !(is_same(it.node) && it.row.name == own.row.name))
    })
}

fn has_namesake(window: &Window, own: Follower<'_>, slot: &str) -> bool {
    others(window, own, slot).next().is_some()
}

fn meant<'a>(of: Follower<'a>) -> Option<&'a Publisher> {
    of.last.background.publishers.get(&of.row.name)
}

/// Whether the subscription connects to this server; None if its subscriber does not show that, or if the
/// server may be at that address.
fn leads_to(window: &Window, of: Follower<'_>, upstream: &NodeWindow) -> Option<bool> {
    let address = &meant(of)?.address;
    match window.server_at(of.node, address) {
        Some(server) => Some(server.name == upstream.name),
        None => (!upstream.may_be_at(address)).then_some(false),
    }
}

/// The walsender that uses a slot.
fn user<'s>(above: &'s Sample, slot: &str) -> Option<&'s Sender> {
    above.sender(above.slot(slot)?.active_pid?)
}

/// The walsender has the name with which the subscription's worker connects. Servers keep other letters
/// than those of ASCII in their own ways.
fn is_called(of: Follower<'_>, sender: &Sender) -> bool {
    let given = meant(of).and_then(|meant| meant.application_name.as_deref());
    let name = given.unwrap_or(&of.row.name);
    super::shortened(name) == sender.application_name || !name.is_ascii()
}

/// Whether what the worker has received can have come through the slot's walsender: all that the walsender
/// knows to be received is, and the worker knows no WAL that the server does not have. None if they were
/// not seen for long enough.
fn agrees(of: Follower<'_>, slot: &str, upstream: &NodeWindow) -> Option<bool> {
    let (first, above_first) = (of.node.samples.first()?, upstream.samples.first()?);
    let above_last = upstream.last()?;
    let began = first.subscription(&of.row.name)?;
    if began.pid? != of.row.pid? {
        return None;
    }
    let told = began.latest_end_lsn.max(began.received_lsn);
    let is_later = above_last.at >= first.at + APART;
    let is_beyond = is_later && told > Some(above_last.end()?);
    if is_beyond || worker_without(of, slot, upstream).is_some_and(|worker| worker.hears) {
        return Some(false);
    }
    let (sender, stays) = (user(above_first, slot)?, user(above_last, slot)?.pid);
    let is_after = of.last.at >= above_first.at + APART;
    if !is_after || sender.pid != stays {
        return None;
    }
    Some(sender.write_lsn? <= of.row.received_lsn?)
}

/// A worker that ran through the whole window, in which nobody used the slot on a server.
struct Worker {
    /// True if it got a message meanwhile: from another server.
    hears: bool,
    /// True if a publisher may have been silent for as long: each tells that it is there twice in a
    /// `wal_sender_timeout`. Otherwise the worker has lost its connection, and has not noticed it.
    may_live: bool,
}

fn worker_without(of: Follower<'_>, slot: &str, upstream: &NodeWindow) -> Option<Worker> {
    let (first, above_first) = (of.node.samples.first()?, upstream.samples.first()?);
    let began = first.subscription(&of.row.name)?;
    let is_free = |above: &Sample| above.slot(slot).is_some_and(|slot| !slot.active);
    let stays = began.pid? == of.row.pid? && of.row.receives();
    if !stays || !upstream.samples.iter().all(is_free) {
        return None;
    }
    let from = first.at.max(above_first.at) + APART;
    let silent = of.row.message_age_ms.filter(|age| *age >= 0.0);
    let heard_at = silent
        .and_then(|ms| Duration::try_from_secs_f64(ms / 1000.0).ok())
        .and_then(|silent| of.last.at.checked_sub(silent));
    let moves = of.last.at >= from && of.row.received_lsn > began.received_lsn;
    Some(Worker {
        hears: moves || heard_at.is_some_and(|at| at >= from),
        may_live: silent.is_some_and(|ms| ms < LONGEST_SILENCE_MS),
    })
}
