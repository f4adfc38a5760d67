//! Each link from a server to a replica of it: positions along the way, over time.
//!
//! A replica is found by its slot, else by its `application_name`. Where the replica itself was
//! asked, its own positions count: those that it last reported to its upstream may be seconds
//! old.

use std::time::Duration;

use lockstep_wire::Lsn;
use serde::Serialize;

use crate::node::Role;
use crate::points::{Bound, Point, points};
use crate::position::bytes_between;
use crate::relay::{self, Group, RelaySlot};
use crate::replica::{self, Doing, Replica, ReplicaReport};
use crate::sample::{Process, Receiver, Sample, Sender, Slot, Subscription};
use crate::states::{SenderState, SlotType, SyncState};
use crate::window::{NodeWindow, Window, median, median_over_time, ratio};

/// A replica lags if the median of its samples is this many milliseconds behind, or more.
pub const LAG_MS: f64 = 200.0;

/// A single sample this many milliseconds behind counts as lag.
pub const SPIKE_MS: f64 = 1_000.0;

/// Share of samples of which only a bound of the lag is known, above which that holds for all.
const BOUND_SHARE: f64 = 0.1;

/// Share of samples from which a walsender that waits for WAL counts as at the end.
const AT_END_SHARE: f64 = 0.5;

/// Shortest time in which a replica that reads has confirmed something.
const LEAST_SILENCE: Duration = Duration::from_secs(1);

/// How WAL gets to a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// As it is.
    Physical,
    /// Decoded.
    Logical,
}

impl LinkKind {
    /// Its name in JSON, metrics and text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Physical => "physical",
            Self::Logical => "logical",
        }
    }
}

/// The parts of the way from the upstream's end to the replica, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// From flushed on the upstream to sent. Of a logical link: decoding.
    Send,
    Receive,
    /// From received to flushed. Of a logical link: from received to applied.
    Flush,
    /// From flushed to replayed. Of a logical link: from applied to flushed.
    Replay,
}

impl Stage {
    pub const ALL: [Self; 4] = [Self::Send, Self::Receive, Self::Flush, Self::Replay];

    /// The stage's name on a link of this kind.
    pub fn name(self, kind: LinkKind) -> &'static str {
        match (kind, self) {
            (LinkKind::Physical, Self::Send) => "send",
            (LinkKind::Logical, Self::Send) => "decode",
            (_, Self::Receive) => "receive",
            (LinkKind::Physical, Self::Flush) => "flush",
            (LinkKind::Logical, Self::Flush) => "apply",
            (LinkKind::Physical, Self::Replay) => "replay",
            (LinkKind::Logical, Self::Replay) => "flush",
        }
    }
}

/// A server, a replica of it, and the positions between them.
#[derive(Debug)]
pub struct Link<'a> {
    pub kind: LinkKind,
    pub upstream: &'a NodeWindow,
    /// The replica, if it was asked.
    pub replica: Option<&'a NodeWindow>,
    /// The replica in words: its node's name, else its `application_name` or its slot.
    pub name: String,
    pub application_name: Option<String>,
    pub slot: Option<String>,
    pub subscription: Option<String>,
    /// The name of the `lockstep replica` that it goes to.
    pub replica_name: Option<String>,
    /// The relay's group, on a link to a relay or from one.
    pub group: Option<String>,
    /// Oldest first.
    pub points: Vec<Point>,
}

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
        Some("walreceiver"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let upstream = window
        .usable()
        .filter(|other| other.name != node.name)
        .filter(|other| matches!(other.role, Role::Primary | Role::Standby))
        .map(|other| (likeness(other, receiver, &names), other))
        .filter(|(likeness, _)| *likeness > 0)
        // Of equally likely servers, the first that was named.
        .rev()
        .max_by_key(|(likeness, _)| *likeness)
        .map(|(_, other)| other)
        // Without any sign of another, it can only be the primary.
        .or_else(|| window.primary())?;
    let application_name = names.into_iter().find(|name| {
        upstream
            .samples
            .iter()
            .flat_map(|sample| &sample.senders)
            .any(|sender| sender.application_name == *name)
    });
    Some(Link {
        kind: LinkKind::Physical,
        upstream,
        replica: Some(node),
        name: node.name.clone(),
        application_name: application_name.map(str::to_owned),
        slot,
        subscription: None,
        replica_name: None,
        group: None,
        points: Vec::new(),
    })
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
        let mut servers = window
            .usable()
            .filter(|other| matches!(other.role, Role::Primary | Role::Standby));
        let upstream = servers.find(has_slot)?;
        Some(Link {
            kind: LinkKind::Logical,
            upstream,
            replica: Some(node),
            name: group_name(node, &group.name),
            application_name: upstream
                .last()
                .and_then(|last| last.sender(last.slot(slot)?.active_pid?))
                .map(|sender| sender.application_name.clone()),
            slot: Some(slot.clone()),
            subscription: None,
            replica_name: None,
            group: Some(group.name.clone()),
            points: Vec::new(),
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
        // A relay takes slots over from the primary, which keeps them for a moment longer.
        let upstream = others()
            .find(|other| has_slot(other) == Some(true))
            .or_else(|| others().find(|other| has_slot(other).is_some()))?;
        let of_kind = |is: bool| is.then(|| name.to_owned());
        Some(Link {
            kind: LinkKind::Logical,
            upstream,
            replica: Some(node),
            name: consumer_name(node, last, name),
            application_name: Some(name.to_owned()),
            slot: slot.map(str::to_owned),
            subscription: of_kind(!is_replica),
            replica_name: of_kind(is_replica),
            group: slot.and_then(|slot| group_of(upstream, slot)),
            points: Vec::new(),
        })
    };
    consumers(last).into_iter().filter_map(link).collect()
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

/// Adds links to replicas that were not named but that an upstream knows.
fn unnamed<'a>(window: &Window, upstream: &'a NodeWindow, links: &mut Vec<Link<'a>>) {
    let Some(last) = upstream.last() else {
        return;
    };
    // A slot that nobody uses has no replica; a rule looks at such slots.
    let used = |name: &str| {
        upstream.share(|sample| sample.slot(name).is_some_and(|slot| slot.active)) > 0.0
    };
    let slots = last.slots.iter().filter(|slot| !slot.temporary);
    for slot in slots.filter(|slot| used(&slot.slot_name)) {
        let known = links.iter().any(|link| {
            link.upstream.name == upstream.name && link.slot.as_deref() == Some(&slot.slot_name)
        });
        if known {
            continue;
        }
        let sender = slot.active_pid.and_then(|pid| last.sender(pid));
        let replica = replica_of(slot, sender);
        let is_free = |name: &&str| {
            let taken = links.iter().any(|link| link.name == *name);
            !taken && window.nodes.iter().all(|node| node.name != *name)
        };
        let name = replica.filter(is_free).unwrap_or(&slot.slot_name);
        links.push(Link {
            kind: match slot.slot_type {
                SlotType::Logical => LinkKind::Logical,
                _ => LinkKind::Physical,
            },
            upstream,
            replica: None,
            name: name.to_owned(),
            application_name: sender
                .map(|sender| sender.application_name.clone())
                .filter(|name| !name.is_empty()),
            slot: Some(slot.slot_name.clone()),
            subscription: None,
            replica_name: replica.map(str::to_owned),
            group: group_of(upstream, &slot.slot_name),
            points: Vec::new(),
        });
    }
    for sender in &last.senders {
        let of_slot = last
            .slots
            .iter()
            .any(|slot| slot.active_pid == Some(sender.pid));
        // A subscription's walsender has its slot only a moment after it has connected.
        let known = links.iter().any(|link| {
            link.upstream.name == upstream.name
                && (link.slot.is_none()
                    || link.subscription.is_some()
                    || link.replica_name.is_some())
                && link.application_name.as_deref() == Some(&sender.application_name)
        });
        if of_slot || known || is_of_copy(sender) || sender.state == Some(SenderState::Backup) {
            continue;
        }
        links.push(Link {
            kind: LinkKind::Physical,
            upstream,
            replica: None,
            name: sender.application_name.clone(),
            application_name: Some(sender.application_name.clone()),
            slot: None,
            subscription: None,
            replica_name: None,
            group: None,
            points: Vec::new(),
        });
    }
}

impl<'a> Link<'a> {
    /// It comes from a relay.
    pub fn is_relayed(&self) -> bool {
        self.upstream.role == Role::Relay
    }

    /// It goes to a relay.
    pub fn is_to_relay(&self) -> bool {
        self.replica.is_some_and(|node| node.role == Role::Relay)
    }

    /// The replica that it goes to, in the target's newest answer.
    pub fn replica_state(&self) -> Option<&'a Replica> {
        self.replica_name.as_ref()?;
        self.replica?.last()?.replica_of(self.slot.as_deref()?)
    }

    /// The replica that it goes to, as far as it is known.
    pub fn replica_report(&self) -> Option<ReplicaReport> {
        let name = self.replica_name.as_deref()?;
        Some(match self.replica_state() {
            Some(replica) => ReplicaReport::asked(replica, self.is_behind()),
            None => ReplicaReport::unasked(name),
        })
    }

    /// It goes to a replica that is not a copy yet: that it is behind is no lag.
    pub fn is_being_copied(&self) -> bool {
        let doing = self.replica_state().map(|replica| replica.doing(true));
        doing == Some(Doing::Copying)
    }

    /// The group that the link comes from, if it comes from a relay.
    pub fn upstream_group(&self) -> Option<&str> {
        self.group.as_deref().filter(|_| self.is_relayed())
    }

    /// The group that the link goes to, at a moment, if it goes to a relay.
    pub(crate) fn received_by(&self, at: Duration) -> Option<&'a Group> {
        let relay = self.replica.filter(|_| self.is_to_relay())?;
        let sample = relay.sample_at(at)?;
        sample.relay.as_ref()?.group(self.group.as_deref()?)
    }

    /// The link's row among the slots of the relay that it comes from.
    pub fn relay_slot<'s>(&self, above: &'s Sample) -> Option<&'s RelaySlot> {
        above.relay.as_ref()?.slot(self.slot.as_deref()?)
    }

    /// The part of the upstream's samples in which the replica is connected.
    pub fn connected_share(&self) -> f64 {
        match self.is_relayed() {
            true => self.upstream.share(|sample| {
                self.relay_slot(sample)
                    .is_some_and(|s| s.active_pid.is_some())
            }),
            false => self.walsender_share(|_| true),
        }
    }

    /// The part of the upstream's samples in which there was something to send that the replica
    /// did not take.
    pub fn pushed_share(&self) -> f64 {
        self.upstream.share(|sample| self.is_pushed(sample))
    }

    /// There is something to send that the replica does not take. A walsender shows it by its
    /// wait event, a relay by the bytes that are left to send.
    pub(crate) fn is_pushed(&self, above: &Sample) -> bool {
        match self.is_relayed() {
            true => self
                .relay_slot(above)
                .is_some_and(|slot| slot.active_pid.is_some() && slot.behind_bytes > 0),
            false => self
                .sender(above)
                .and_then(|sender| above.process_of(sender.pid))
                .is_some_and(|process| process.waits_for("WalSenderWriteData")),
        }
    }

    /// The part of the upstream's samples in which the link's walsender has sent all that there is.
    pub fn at_end_share(&self) -> f64 {
        // From 17 on the event ends with Wal.
        self.walsender_share(|process| {
            let event = process.wait.as_deref();
            event.is_some_and(|event| event.eq_ignore_ascii_case("WalSenderWaitForWAL"))
        })
    }

    /// The replica takes nothing: its walsender has sent all that there is and waits for more, and
    /// the replica has not even received what it is sent to tell it so. A walsender at the end
    /// sends its position whenever WAL is written, and a replica that reads confirms that.
    pub fn takes_nothing(&self) -> bool {
        if self.is_to_relay() || self.at_end_share() < AT_END_SHARE {
            return false;
        }
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else {
            return false;
        };
        let time = last.at.saturating_sub(first.at);
        time >= LEAST_SILENCE
            && self.kind == LinkKind::Logical
            && first.write == last.write
            && first.sent < last.sent
    }

    /// The link's row among the upstream's walsenders.
    pub fn sender<'s>(&self, above: &'s Sample) -> Option<&'s Sender> {
        if let Some(slot) = self.slot.as_deref().and_then(|slot| above.slot(slot)) {
            return above.sender(slot.active_pid?);
        }
        let name = self.application_name.as_deref()?;
        above
            .senders
            .iter()
            .find(|sender| sender.application_name == name)
    }

    /// The link's subscription, if the subscriber was asked.
    pub fn subscribed<'s>(&self, below: &'s Sample) -> Option<&'s Subscription> {
        below.subscription(self.subscription.as_deref()?)
    }

    /// The part of the upstream's samples in which `does` holds for the link's walsender.
    pub fn walsender_share(&self, does: impl Fn(&Process) -> bool) -> f64 {
        self.upstream.share(|sample| {
            self.sender(sample)
                .and_then(|sender| sample.process_of(sender.pid))
                .is_some_and(&does)
        })
    }

    /// The part of the subscriber's samples in which `does` holds for the apply worker. None if
    /// the subscriber was not asked.
    pub fn worker_share(&self, does: impl Fn(&Process) -> bool) -> Option<f64> {
        // A relay has no apply worker.
        let replica = self.replica.filter(|_| self.subscription.is_some())?;
        Some(replica.share(|sample| self.worker(Some(sample)).is_some_and(&does)))
    }

    /// The apply worker in a subscriber's sample.
    pub(crate) fn worker<'s>(&self, below: Option<&'s Sample>) -> Option<&'s Process> {
        below?.process_of(self.subscribed(below?)?.pid?)
    }

    /// Milliseconds that the replica is behind by what is known of it: the median over time.
    pub fn age_ms(&self) -> f64 {
        median_over_time(&self.lags(false).collect::<Vec<_>>())
    }

    /// The longest time behind by what is known of the replica, in milliseconds.
    fn most_age_ms(&self) -> f64 {
        self.lags(false).map(|(_, lag)| lag).fold(0.0, f64::max)
    }

    /// The lag in milliseconds, which may be a [bound](Self::bound): the median over time, and the
    /// longest.
    pub fn lag_ms(&self) -> (f64, f64) {
        let lags: Vec<_> = self.lags(self.bound().lag_is_least).collect();
        let most = lags.iter().map(|(_, lag)| *lag).fold(0.0, f64::max);
        (median_over_time(&lags), most)
    }

    fn lags(&self, is_least: bool) -> impl Iterator<Item = (Duration, f64)> {
        let points = self.points.iter();
        points.map(move |point| (point.at, point.lag(is_least).as_secs_f64() * 1000.0))
    }

    /// What the lag is to the true one.
    pub fn bound(&self) -> Bound {
        let often = |bound| {
            let points = self.points.iter().filter(|point| point.bound() == bound);
            ratio(points.count() as f64, self.points.len() as f64) > BOUND_SHARE
        };
        let mut bounds = [Bound::LEAST, Bound::MOST].into_iter();
        let bound = bounds.find(|bound| self.is_behind() && often(*bound));
        bound.unwrap_or_default()
    }

    /// The most that the lag can be in the last sample, in milliseconds, as far as that is known.
    pub fn most_possible_ms(&self) -> Option<f64> {
        let most = self.points.last()?.age_most?;
        Some(most.as_secs_f64() * 1000.0)
    }

    /// How far the replica is behind the primary, if its upstream is another standby:
    /// milliseconds, at least, and bytes, as medians.
    pub fn behind_primary(&self, primary: &NodeWindow) -> Option<(f64, f64)> {
        let is_cascaded = self.kind == LinkKind::Physical && self.upstream.role == Role::Standby;
        let ends = self.points.iter().filter(|_| is_cascaded);
        let all = ends.filter_map(|point| {
            let end = primary.end_at(None, point.at)?;
            let bytes = bytes_between(point.replay, end);
            let age = primary.age_beyond(None, point.replay, point.at);
            let ms = age.max(point.age).as_secs_f64() * 1000.0;
            let ms = if bytes == 0 { 0.0 } else { ms };
            Some(((point.at, ms), (point.at, bytes as f64)))
        });
        let (ages, bytes): (Vec<_>, Vec<_>) = all.unzip();
        (!ages.is_empty()).then(|| (median_over_time(&ages), median_over_time(&bytes)))
    }

    /// Bytes behind: the median over time.
    pub fn bytes(&self) -> f64 {
        let bytes = self.points.iter();
        let bytes = bytes.map(|point| (point.at, point.bytes() as f64));
        median_over_time(&bytes.collect::<Vec<_>>())
    }

    /// Bytes behind in the last sample.
    pub fn last_bytes(&self) -> u64 {
        self.points.last().map_or(0, Point::bytes)
    }

    /// The replica lags, or did so in this window: most of the time, or much for a moment. This
    /// looks at positions only; [`crate::rules`] knows when such a difference is no lag.
    pub fn is_behind(&self) -> bool {
        self.age_ms() >= LAG_MS || self.is_spiky()
    }

    /// The replica was far behind for a moment, but not most of the time.
    pub fn is_spiky(&self) -> bool {
        self.age_ms() < LAG_MS && self.most_age_ms() >= SPIKE_MS
    }

    /// The part of the lag, in bytes, that a stage holds over all samples. The last stage of a
    /// logical link comes after visibility, so its bytes are not part of the lag: they are
    /// counted besides.
    pub fn stage_share(&self, stage: Stage) -> f64 {
        let all: f64 = self.points.iter().map(|point| point.bytes() as f64).sum();
        ratio(self.stage_sum(stage), all).min(1.0)
    }

    /// The mean of a stage's bytes.
    pub fn stage_bytes(&self, stage: Stage) -> f64 {
        ratio(self.stage_sum(stage), self.points.len() as f64)
    }

    fn stage_sum(&self, stage: Stage) -> f64 {
        self.points
            .iter()
            .map(|point| point.stage(self.kind, stage) as f64)
            .sum()
    }

    /// Milliseconds that a subscriber leaves applied changes unflushed, at least: the median
    /// over the positions at which its flush stood still. The last position is left out: the
    /// flush may stand there for another reason, such as a worker that makes no progress.
    pub fn unflushed_ms(&self) -> f64 {
        let mut waits: Vec<(Lsn, f64)> = Vec::new();
        for point in self.points.iter().filter(|point| point.flush < point.told) {
            let since = self.points.iter().find(|other| other.told > point.flush);
            let wait = since.map_or(0.0, |since| {
                point.at.saturating_sub(since.at).as_secs_f64() * 1000.0
            });
            match waits.last_mut() {
                Some((flush, longest)) if *flush == point.flush => *longest = wait,
                _ => waits.push((point.flush, wait)),
            }
        }
        let last = self.points.last().map(|point| point.flush);
        let over = waits.into_iter().filter(|(flush, _)| Some(*flush) != last);
        median(over.map(|(_, wait)| wait).collect())
    }

    /// Commits wait for this replica, alone or with others.
    pub fn is_synchronous(&self) -> bool {
        let last = self
            .upstream
            .samples
            .iter()
            .rev()
            .find_map(|sample| self.sender(sample));
        last.and_then(|sender| sender.sync_state.as_ref())
            .is_some_and(SyncState::is_waited_for)
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
