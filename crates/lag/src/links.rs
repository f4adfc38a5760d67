//! Each link from a server to a replica of it: positions along the way, over time.
//!
//! A replica is found by its slot, else by its `application_name`. Where the replica itself was
//! asked, its own positions count: those that it last reported to its upstream may be seconds
//! old.

use crate::link::{Link, Unasked};
use crate::node::{Role, Trouble};
use crate::point::LinkKind;
use crate::points::points;
use crate::relay::{self, Group};
use crate::replica::{self, Replica};
use crate::sample::{Sample, is_loopback};
use crate::states::{ReceiverStatus, SenderState, SlotType};
use crate::views::{Receiver, Sender, Slot, Subscription};
use crate::window::{NodeWindow, Window};

pub(crate) mod whose;

pub fn links(window: &Window) -> Vec<Link<'_>> {
    let mut links = Vec::new();
    for node in window.usable() {
        match node.role {
            Role::Primary => {}
            Role::Standby => links.extend(physical(window, node)),
            Role::Relay => links.extend(relayed(window, node)),
            Role::Subscriber => links.extend(logical(window, node)),
        }
    }
    for upstream in window.usable().filter(|node| node.role != Role::Subscriber) {
        unnamed(window, upstream, &mut links);
    }
    for link in &mut links {
        link.points = points(link, window.primary());
    }
    links
}

fn physical<'a>(window: &'a Window, node: &'a NodeWindow) -> Option<Link<'a>> {
    let receiver = node
        .samples
        .iter()
        .rev()
        .find_map(|sample| sample.receiver.as_ref());
    let slot = receiver.and_then(|receiver| receiver.slot_name.clone());
    let names: Vec<&str> = [
        receiver.and_then(|receiver| receiver.application_name.as_deref()),
        node.facts
            .setting("cluster_name")
            .filter(|name| !name.is_empty()),
        Some(WALRECEIVER),
    ]
    .into_iter()
    .flatten()
    .map(shortened)
    .collect();
    let (upstream, unasked) = upstream_of(window, node, receiver, &names)?;
    // What another server has by these names is not its own.
    let is_its = unasked.is_none();
    let application_name = names.into_iter().filter(|_| is_its).find(|name| {
        upstream
            .samples
            .iter()
            .flat_map(|sample| &sample.senders)
            .any(|sender| sender.application_name == *name)
    });
    Some(Link {
        application_name: application_name.map(str::to_owned),
        slot: slot.filter(|_| is_its),
        unasked,
        ..Link::new(LinkKind::Physical, upstream, Some(node), node.name.clone())
    })
}

/// The name with which a walreceiver connects if nobody gives it another one.
const WALRECEIVER: &str = "walreceiver";

/// The server that feeds a standby, and, if that one was not asked, which it is: then the primary stands for
/// it.
fn upstream_of<'a>(
    window: &'a Window,
    node: &'a NodeWindow,
    receiver: Option<&Receiver>,
    names: &[&str],
) -> Option<(&'a NodeWindow, Option<Unasked>)> {
    // What fills its archive is the primary's.
    if node.restores_only() {
        return Some((window.primary()?, None));
    }
    let others = window.usable().filter(|other| other.name != node.name);
    let servers = others.filter(|other| matches!(other.role, Role::Primary | Role::Standby));
    let likeliest = servers
        .map(|other| (likeness(other, receiver, names), other))
        .filter(|(likeness, _)| *likeness > 0)
        // Of equally likely servers, the first that was named.
        .rev()
        .max_by_key(|(likeness, _)| *likeness);
    let likely = likeliest.map(|(_, other)| other);
    let is_its = likely.is_some_and(|other| feeds(other, node, receiver, names));
    let Some(address) = address_of(node, receiver).filter(|_| !is_its) else {
        // Without any sign of another, it can only be the primary.
        return Some((likely.or_else(|| window.primary())?, None));
    };
    let unasked = |node: Option<&NodeWindow>| Unasked {
        address: format!("{}:{}", address.0, address.1),
        node: node.map(|node| node.name.clone()),
    };
    match window.server_at(node, &address) {
        Some(server) if server.name == node.name => {}
        Some(server) if server.troubles.iter().any(is_other_system) => {}
        Some(server) if !server.is_usable() => {
            return Some((window.primary()?, Some(unasked(Some(server)))));
        }
        Some(server) if matches!(server.role, Role::Primary | Role::Standby) => {
            return Some((server, None));
        }
        Some(_) => {}
        None => {
            let guess = likely.or_else(|| window.primary())?;
            let is_connected =
                receiver.is_some() && node.last().is_some_and(|it| it.receiver.is_some());
            // It shows all its walsenders to who may see them, and none is of this standby.
            let shows_none = is_connected && guess.facts.monitor && !has_sender(guess, names);
            if shows_none || !guess.may_be_at(&address) {
                return Some((window.primary()?, Some(unasked(None))));
            }
        }
    }
    Some((likely.or_else(|| window.primary())?, None))
}

/// Such a server feeds nobody here.
fn is_other_system(trouble: &Trouble) -> bool {
    matches!(trouble, Trouble::OtherSystem { .. })
}

/// Host and port from which a standby streams, or else is to stream by its settings.
fn address_of(node: &NodeWindow, receiver: Option<&Receiver>) -> Option<(String, String)> {
    let told = receiver.and_then(|it| Some((it.sender_host.clone()?, it.sender_port?.to_string())));
    let source = || node.last()?.source.as_deref()?.address.clone();
    told.or_else(source)
}

fn has_sender(server: &NodeWindow, names: &[&str]) -> bool {
    let mut senders = server.samples.iter().flat_map(|sample| &sample.senders);
    senders.any(|sender| names.contains(&sender.application_name.as_str()))
}

/// The server's walsender for this standby is known by its slot, by a name that not every standby has, or by
/// the standby's address.
fn feeds(
    server: &NodeWindow,
    standby: &NodeWindow,
    receiver: Option<&Receiver>,
    names: &[&str],
) -> bool {
    let slot = receiver.and_then(|receiver| receiver.slot_name.as_deref());
    // A slot of this name may be another standby's, where the standby is connected elsewhere.
    let newest = standby.last().and_then(|last| last.receiver.as_ref());
    let is_known = newest.is_some_and(|newest| {
        newest.status == Some(ReceiverStatus::Streaming) && newest.application_name.is_some()
    });
    let is_others = |sender: &Sender| {
        let name = sender.application_name.as_str();
        is_known && !name.is_empty() && !names.contains(&name)
    };
    let uses = |slot: &str| {
        let found = server
            .last()
            .and_then(|last| Some((last, last.slot(slot)?)));
        let user = found.and_then(|(last, slot)| last.sender(slot.active_pid?));
        found.is_some_and(|(_, slot)| slot.active) && !user.is_some_and(is_others)
    };
    let own: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| *name != WALRECEIVER)
        .collect();
    let comes_from_it = |sender: &Sender| {
        let is_named = names.contains(&sender.application_name.as_str());
        let from = sender.client.as_ref().filter(|from| !is_loopback(from));
        is_named && from.is_some_and(|from| standby.facts.hosts.contains(from))
    };
    let mut senders = server.samples.iter().flat_map(|sample| &sample.senders);
    let is_named = slot.is_none() && has_sender(server, &own);
    receiver.is_some() && (slot.is_some_and(uses) || is_named || senders.any(comes_from_it))
}

/// Bytes of an `application_name` that a server keeps.
const MOST_NAME: usize = 63;

/// A name as an upstream shows it, which keeps no more of it.
fn shortened(name: &str) -> &str {
    let end = (0..=MOST_NAME)
        .rev()
        .find(|end| name.is_char_boundary(*end));
    end.and_then(|end| name.get(..end)).unwrap_or(name)
}

/// How likely it is that a walreceiver is connected to this server. A slot in use says most.
/// Hosts and ports may look different from here, and names may be the same everywhere, such as
/// the default `walreceiver`.
fn likeness(other: &NodeWindow, receiver: Option<&Receiver>, names: &[&str]) -> u32 {
    let slot = receiver
        .and_then(|receiver| receiver.slot_name.as_deref())
        .and_then(|slot| other.last()?.slot(slot));
    let slot = match slot {
        Some(slot) if slot.active => 16,
        Some(_) => 4,
        None => 0,
    };
    let mut senders = other.samples.iter().flat_map(|sample| &sample.senders);
    let name = senders.any(|sender| names.contains(&sender.application_name.as_str()));
    let host = receiver
        .and_then(|receiver| receiver.sender_host.as_ref())
        .is_some_and(|host| other.facts.hosts.contains(host));
    let port = receiver
        .and_then(|receiver| receiver.sender_port)
        .map(|port| port.to_string());
    let port = port.is_some() && other.facts.setting("port") == port.as_deref();
    let place = match (host, port) {
        (true, true) => 8,
        // Most servers have the default port, so the port alone says nothing.
        (false, true) if slot > 0 || name => 2,
        (true, false) if slot > 0 || name => 1,
        _ => 0,
    };
    slot + place + 4 * u32::from(name)
}

/// Links from the primary to each group of a relay.
fn relayed<'a>(window: &'a Window, node: &'a NodeWindow) -> Vec<Link<'a>> {
    let Some(relay) = node.last().and_then(|last| last.relay.as_ref()) else {
        return Vec::new();
    };
    let link = |group: &Group| {
        let slot = &group.upstream_slot;
        let has_slot = |other: &&NodeWindow| {
            let slot = other.last().and_then(|last| last.slot(slot));
            slot.is_some_and(|slot| !slot.synced)
        };
        let servers = window
            .usable()
            .filter(|other| matches!(other.role, Role::Primary | Role::Standby));
        let mut its = servers.filter(|other| whose::may_be_groups(window, node, group, other));
        let upstream = its.find(has_slot)?;
        let name = group_name(node, &group.name);
        Some(Link {
            application_name: upstream
                .last()
                .and_then(|last| last.sender(last.slot(slot)?.active_pid?))
                .map(|sender| sender.application_name.clone()),
            slot: Some(slot.clone()),
            group: Some(group.name.clone()),
            ..Link::new(LinkKind::Logical, upstream, Some(node), name)
        })
    };
    relay.groups.iter().filter_map(link).collect()
}

/// The name of a link to a relay's group.
pub fn group_name(relay: &NodeWindow, group: &str) -> String {
    format!("{} ({group})", relay.name)
}

/// What a subscriber's database has of its publishers: subscriptions, and replicas.
struct Consumer<'a> {
    name: &'a str,
    slot: Option<&'a str>,
    is_replica: bool,
}

fn consumers(sample: &Sample) -> Vec<Consumer<'_>> {
    let subscriptions = sample.subscriptions.iter().map(|one| Consumer {
        name: &one.name,
        slot: one.slot_name.as_deref(),
        is_replica: false,
    });
    let replicas = sample.replicas.iter().map(|one| Consumer {
        name: &one.name,
        slot: Some(&one.slot),
        is_replica: true,
    });
    subscriptions.chain(replicas).collect()
}

/// The name of one of a subscriber's subscriptions or replicas among all.
fn consumer_name(node: &NodeWindow, sample: &Sample, name: &str) -> String {
    match sample.subscriptions.len() + sample.replicas.len() {
        1 => node.name.clone(),
        _ => format!("{} ({name})", node.name),
    }
}

/// The name of a replica whose target was asked.
pub fn replica_name(node: &NodeWindow, replica: &Replica) -> String {
    node.last()
        .map(|last| consumer_name(node, last, &replica.name))
        .unwrap_or_default()
}

fn logical<'a>(window: &'a Window, node: &'a NodeWindow) -> Vec<Link<'a>> {
    let Some(last) = node.last() else {
        return Vec::new();
    };
    let link = |consumer: Consumer<'a>| {
        let Consumer {
            name,
            slot,
            is_replica,
        } = consumer;
        let others = || {
            let others = window.usable();
            others.filter(|other| other.role != Role::Subscriber)
        };
        let has_slot = |other: &NodeWindow| {
            let slot = other.last()?.slot(slot?)?;
            (!slot.synced).then_some(slot.active)
        };
        let is_its =
            |other: &&NodeWindow| is_replica || whose::may_be_its(window, node, name, other);
        let mut all = others();
        let is_unclear = all.any(|other| has_slot(other).is_some() && !is_its(&other));
        // A relay takes slots over from the primary, which keeps them for a moment longer.
        let upstream = others()
            .filter(is_its)
            .find(|other| has_slot(other) == Some(true))
            .or_else(|| {
                let mut its = others().filter(is_its);
                its.find(|other| has_slot(other).is_some())
            })
            .or_else(|| {
                let meant = publisher(window, node, name);
                meant.filter(|_| !is_replica && !is_unclear)
            })?;
        let of_kind = |is: bool| is.then(|| name.to_owned());
        let full_name = consumer_name(node, last, name);
        Some(Link {
            application_name: Some(name.to_owned()),
            slot: slot.map(str::to_owned),
            subscription: of_kind(!is_replica),
            replica_name: of_kind(is_replica),
            group: slot.and_then(|slot| group_of(upstream, slot)),
            ..Link::new(LinkKind::Logical, upstream, Some(node), full_name)
        })
    };
    consumers(last).into_iter().filter_map(link).collect()
}

/// The server from which a subscription that has no worker most of the time is meant to get changes although
/// its slot is nowhere: the one that it connects to, or the primary if that is none that is known here.
fn publisher<'a>(window: &'a Window, node: &NodeWindow, name: &str) -> Option<&'a NodeWindow> {
    let has_worker = |sample: &Sample| {
        sample
            .subscription(name)
            .is_some_and(Subscription::receives)
    };
    let last = node.last().filter(|_| node.share(has_worker) < 0.5)?;
    last.subscription(name)
        .filter(|row| row.enabled && row.slot_name.is_some())?;
    let publisher = last.background.publishers.get(name);
    match publisher.and_then(|publisher| window.server_at(node, &publisher.address)) {
        Some(server) => {
            Some(server).filter(|server| server.is_usable() && server.role != Role::Subscriber)
        }
        None => window.primary(),
    }
}

fn group_of(upstream: &NodeWindow, slot: &str) -> Option<String> {
    let relay = upstream.last()?.relay.as_ref()?;
    relay.slot(slot).map(|slot| slot.group.clone())
}

/// The name of the replica of Lockstep that a slot was made for.
fn replica_of<'s>(slot: &'s Slot, sender: Option<&Sender>) -> Option<&'s str> {
    let of_relay = sender.is_some_and(|it| it.application_name == relay::APPLICATION);
    replica::of_slot(slot).filter(|_| !of_relay)
}

/// A walsender that makes slots for replicas of Lockstep, and keeps their snapshots.
fn is_of_copy(sender: &Sender) -> bool {
    [replica::APPLICATION, replica::VERIFY].contains(&sender.application_name.as_str())
}

/// True of the name of a worker that copies a table of a subscription, and of its slot: the worker is no
/// replica of its own. The subscription says how its copies get on.
pub(crate) fn is_of_table(name: &str) -> bool {
    let rest = name.strip_prefix("pg_");
    let parts = rest.and_then(|rest| rest.split_once("_sync_"));
    parts.is_some_and(|(subscription, _)| {
        !subscription.is_empty() && subscription.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Adds links to replicas that were not named but that an upstream knows.
fn unnamed<'a>(window: &Window, upstream: &'a NodeWindow, links: &mut Vec<Link<'a>>) {
    let Some(last) = upstream.last() else {
        return;
    };
    // A slot that nobody uses has no replica; a rule looks at such slots.
    let used = |name: &str| {
        upstream.share(|sample| sample.slot(name).is_some_and(|slot| slot.active)) > 0.0
    };
    let is_shown = |slot: &&Slot| !slot.temporary && !is_of_table(&slot.slot_name);
    let slots = last.slots.iter().filter(is_shown);
    for slot in slots.filter(|slot| used(&slot.slot_name)) {
        let known = links.iter().any(|link| {
            link.upstream.name == upstream.name && link.slot.as_deref() == Some(&slot.slot_name)
        });
        if !known {
            links.push(of_slot(window, upstream, last, slot, links));
        }
    }
    of_senders(upstream, last, links);
}

/// Adds links to replicas without a slot that were not named.
fn of_senders<'a>(upstream: &'a NodeWindow, last: &Sample, links: &mut Vec<Link<'a>>) {
    let has_slot = |sender: &Sender| {
        let mut slots = last.slots.iter();
        slots.any(|slot| slot.active_pid == Some(sender.pid))
    };
    // The consumer of a logical slot, which is connected to a database, has just come, or comes in vain.
    for (index, sender) in last.senders.iter().enumerate() {
        // A subscription's walsender has its slot only a moment after it has connected.
        let known = links.iter().any(|link| {
            link.upstream.name == upstream.name
                && (link.slot.is_none()
                    || link.subscription.is_some()
                    || link.replica_name.is_some())
                && link.application_name.as_deref() == Some(&sender.application_name)
        });
        let is_none = sender.state == Some(SenderState::Backup)
            || is_of_table(&sender.application_name)
            || is_of_copy(sender);
        if is_none || has_slot(sender) || sender.in_database {
            continue;
        }
        let name = sender.application_name.clone();
        if !known {
            links.push(Link {
                application_name: Some(name.clone()),
                ..Link::new(LinkKind::Physical, upstream, None, name)
            });
            continue;
        }
        let before = last.senders.iter().take(index);
        let namesakes = before.filter(|it| it.application_name == name && !has_slot(it));
        let claimed = links.iter().filter(|link| {
            let is_its = link.slot.is_none() && link.walsender.is_none();
            let is_named = link.application_name.as_deref() == Some(&name);
            link.upstream.name == upstream.name && is_its && is_named
        });
        // Each of the others has one of them. A connection that was just made anew may be there twice.
        if namesakes.count() >= claimed.count() && stays(upstream, sender) {
            links.push(Link {
                application_name: Some(name.clone()),
                walsender: Some(sender.pid),
                ..Link::new(
                    LinkKind::Physical,
                    upstream,
                    None,
                    format!("{name} (process {})", sender.pid),
                )
            });
        }
    }
}

/// The walsender was there in the whole window, which was no moment, and streams.
fn stays(upstream: &NodeWindow, sender: &Sender) -> bool {
    let streams = |sample: &Sample| {
        let own = sample.sender(sender.pid);
        own.is_some_and(|own| own.state == Some(SenderState::Streaming))
    };
    upstream.length() >= whose::APART && upstream.samples.iter().all(streams)
}

/// The link to what uses a slot, by the name of the replica that it was made for, if no other has that name.
fn of_slot<'a>(
    window: &Window,
    upstream: &'a NodeWindow,
    last: &Sample,
    slot: &Slot,
    links: &[Link<'_>],
) -> Link<'a> {
    let sender = slot.active_pid.and_then(|pid| last.sender(pid));
    let replica = replica_of(slot, sender);
    let is_free = |name: &&str| {
        let taken = links.iter().any(|link| link.name == *name);
        !taken && window.nodes.iter().all(|node| node.name != *name)
    };
    let name = replica.filter(is_free).unwrap_or(&slot.slot_name);
    let kind = match slot.slot_type {
        SlotType::Logical => LinkKind::Logical,
        _ => LinkKind::Physical,
    };
    let application_name = sender.map(|sender| sender.application_name.clone());
    Link {
        application_name: application_name.filter(|name| !name.is_empty()),
        slot: Some(slot.slot_name.clone()),
        replica_name: replica.map(str::to_owned),
        group: group_of(upstream, &slot.slot_name),
        ..Link::new(kind, upstream, None, name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: &str, host: &str, name: &str, slot: Option<bool>) -> NodeWindow {
        let mut node = NodeWindow::empty(name, Role::Standby);
        node.facts
            .settings
            .insert("port".to_owned(), port.to_owned());
        node.facts.hosts = vec![host.to_owned()];
        node.samples.push(Sample {
            senders: vec![Sender {
                application_name: name.to_owned(),
                ..Sender::default()
            }],
            slots: slot
                .map(|active| Slot {
                    slot_name: "s".to_owned(),
                    active,
                    ..Slot::default()
                })
                .into_iter()
                .collect(),
            ..Sample::default()
        });
        node
    }

    #[test]
    fn the_copy_of_a_table_is_no_replica() {
        let name = "pg_16394_sync_16385_7301234567890123456";
        let links_of = |name: &str, with_slot: bool| {
            let mut primary = node("5432", "db1", name, with_slot.then_some(true));
            primary.role = Role::Primary;
            for sample in &mut primary.samples {
                sample.senders[0].pid = 7;
                for slot in &mut sample.slots {
                    name.clone_into(&mut slot.slot_name);
                    slot.slot_type = SlotType::Logical;
                }
            }
            links(&Window::new(vec![primary])).len()
        };
        for with_slot in [false, true] {
            assert_eq!(links_of(name, with_slot), 0, "{with_slot}");
            assert!(links_of("pg_other_sync_1", with_slot) > 0, "{with_slot}");
        }
    }

    /// The walsender of a worker that fails at once has no slot when it is seen.
    #[test]
    fn who_is_connected_to_a_database_is_no_standby() {
        for (in_database, number) in [(false, 1), (true, 0)] {
            let mut primary = node("5432", "db1", "sub", None);
            primary.role = Role::Primary;
            primary.samples[0].senders[0].in_database = in_database;
            assert_eq!(links(&Window::new(vec![primary])).len(), number);
        }
    }

    /// A server keeps 63 bytes of an `application_name`.
    #[test]
    fn a_standby_with_a_long_name_is_found() {
        let long = "n".repeat(80);
        let of = |name: &str| {
            let mut standby = node("5433", "db2", "standby", None);
            let cluster = ("cluster_name".to_owned(), name.to_owned());
            standby.facts.settings.extend([cluster]);
            let mut primary = node("5432", "db1", &long[..63], None);
            primary.role = Role::Primary;
            let window = Window::new(vec![primary, standby]);
            let links = links(&window);
            links[0].application_name.clone()
        };
        assert_eq!(of(&long), Some("n".repeat(63)));
        assert_eq!(of("other"), None);
        assert_eq!(shortened(&"ü".repeat(40)), "ü".repeat(31));
    }

    #[test]
    fn the_upstream_is_the_likeliest_server() {
        let receiver = Receiver {
            slot_name: Some("s".to_owned()),
            sender_host: Some("db2".to_owned()),
            sender_port: Some(5432),
            ..Receiver::default()
        };
        let of = |node: &NodeWindow| likeness(node, Some(&receiver), &["second", "walreceiver"]);
        // Each server is likelier than the next.
        let order = [
            node("5432", "db2", "second", Some(true)),
            node("5433", "elsewhere", "other", Some(true)),
            node("5432", "db2", "second", None),
            node("5432", "db2", "other", None),
            node("5432", "db1", "walreceiver", None),
            node("5433", "db1", "walreceiver", None),
            // The default port alone says nothing.
            node("5432", "db1", "other", None),
        ];
        let found: Vec<u32> = order.iter().map(of).collect();
        assert!(found.is_sorted_by(|a, b| a > b), "{found:?}");
        assert_eq!(found.last(), Some(&0));
        // Without a walreceiver only the name is left.
        assert_eq!(likeness(&order[0], None, &["second"]), 4);
        assert_eq!(likeness(&order[1], None, &["second"]), 0);
    }
}
