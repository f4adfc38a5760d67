//! A link: a server, a replica of it, and the positions between them.

use std::collections::BTreeSet;
use std::ptr;
use std::time::Duration;

use lockstep_wire::Lsn;
use serde::Serialize;

use crate::figures::{median, median_over_time, ratio};
use crate::node::Role;
use crate::point::{Bound, LinkKind, Point, Stage};
use crate::relay::{self, Group, RelaySlot};
use crate::replica::{Doing, Replica, ReplicaReport};
use crate::sample::Sample;
use crate::states::{SenderState, SyncState};
use crate::views::{Process, Sender, Subscription};
use crate::window::NodeWindow;

/// A replica lags if the median of its samples is this many milliseconds behind, or more.
pub const LAG_MS: f64 = 200.0;

/// A single sample this many milliseconds behind counts as lag.
pub const SPIKE_MS: f64 = 1_000.0;

/// Share of samples of which only a bound of the lag is known, above which that holds for all.
const BOUND_SHARE: f64 = 0.1;

/// Share of samples from which a walsender that waits for WAL counts as at the end.
const AT_END_SHARE: f64 = 0.5;

/// Share of samples in which a consumer that takes all it is sent may not take something.
const PUSHED_SHARE: f64 = 0.1;

/// Time without confirmation from which a consumer confirms nothing, in milliseconds: some do so each
/// minute.
const NEVER_MS: f64 = 70_000.0;

/// The name with which pg_recvlogical connects.
const RECVLOGICAL: &str = "pg_recvlogical";

/// How the names of a relay's slots begin on its primary, unless it has taken one over.
const RELAY_SLOTS: &str = "lockstep_";

/// Shortest time in which a replica that reads has confirmed something.
const LEAST_SILENCE: Duration = Duration::from_secs(1);

/// A consumer that was not asked, reads all that it is sent, and has confirmed nothing in the window.
pub struct SilentReader {
    pub replies: usize,
    /// Time for which it is known to have confirmed nothing, in milliseconds.
    pub since_ms: f64,
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
    /// The walsender, if another link has its name.
    pub(crate) walsender: Option<u32>,
    pub slot: Option<String>,
    pub subscription: Option<String>,
    /// The name of the `lockstep replica` that it goes to.
    pub replica_name: Option<String>,
    /// The relay's group, on a link to a relay or from one.
    pub group: Option<String>,
    /// What a standby streams from, if that is a server of which nothing is known: then `upstream` is only
    /// the one that it is compared with.
    pub unasked: Option<Unasked>,
    /// Oldest first.
    pub points: Vec<Point>,
}

/// A server that was not asked, and that a standby gets its WAL from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unasked {
    /// `host:port`
    pub address: String,
    /// The node that was named with this address and cannot be asked.
    pub node: Option<String>,
}

impl Unasked {
    /// The server, and why it was not asked.
    pub fn words(&self) -> String {
        match &self.node {
            Some(name) => format!("{name}, which cannot be asked"),
            None => format!("{}, which is not named here", self.address),
        }
    }

    /// The server's name, or its address.
    pub fn name(&self) -> &str {
        self.node.as_deref().unwrap_or(&self.address)
    }
}

/// How old a replica's data is, from end to end: its lag to the primary, whatever stands between.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BehindPrimary {
    /// The data is as old as a replica that lags.
    pub behind: bool,
    /// Milliseconds behind: the median over time.
    pub lag_ms: f64,
    /// The lag began before anybody watched.
    pub lag_is_least: bool,
    /// The most that it can be then, where commits tell that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_most_ms: Option<f64>,
    /// The median over time.
    pub lag_bytes: f64,
}

impl BehindPrimary {
    /// The lag's sign, as in [`Bound::sign`].
    pub fn sign(self) -> &'static str {
        match self.lag_is_least {
            true => Bound::LEAST.sign(),
            false => "",
        }
    }
}

impl<'a> Link<'a> {
    /// A link of which no more is known.
    pub(crate) fn new(
        kind: LinkKind,
        upstream: &'a NodeWindow,
        replica: Option<&'a NodeWindow>,
        name: String,
    ) -> Self {
        Self {
            kind,
            upstream,
            replica,
            name,
            application_name: None,
            walsender: None,
            slot: None,
            subscription: None,
            replica_name: None,
            group: None,
            unasked: None,
            points: Vec::new(),
        }
    }

    /// The name of what the replica gets its WAL from, as far as it is known.
    pub fn feeder(&self) -> &str {
        let unasked = self.unasked.as_ref().map(Unasked::name);
        unasked.unwrap_or(&self.upstream.name)
    }

    /// True if the link comes from a relay.
    pub fn is_relayed(&self) -> bool {
        self.upstream.role == Role::Relay
    }

    /// True if the link goes to a relay.
    pub fn is_to_relay(&self) -> bool {
        self.replica.is_some_and(|node| node.role == Role::Relay)
    }

    /// True if the link stands for an archive, from which a standby restores all its WAL.
    pub fn is_archived(&self) -> bool {
        self.kind == LinkKind::Physical && self.replica.is_some_and(NodeWindow::restores_only)
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

    /// True if the link goes to a replica that is not a copy yet, or follows its source no longer: that it is
    /// behind is no lag.
    pub fn is_not_followed(&self) -> bool {
        let doing = self.replica_state().map(|replica| replica.doing(true));
        matches!(doing, Some(Doing::Copying | Doing::Promoted))
    }

    /// True if positions say nothing about how old the replica's data is: it is not a copy yet, or follows
    /// its source no longer.
    pub fn has_no_lag(&self) -> bool {
        self.is_not_followed() || self.is_first_copy()
    }

    /// True of a consumer of a server's slot that is neither a relay, nor a replica of Lockstep, nor a
    /// subscription that was asked.
    fn is_other_consumer(&self) -> bool {
        let is_other = self.subscription.is_none() && self.replica_name.is_none();
        let of_relay = self.is_to_relay() || self.is_relayed() || self.is_of_unasked_relay();
        self.kind == LinkKind::Logical && is_other && !of_relay
    }

    /// True if the link's slot is a relay's that was not asked, or does not answer.
    pub(crate) fn is_of_unasked_relay(&self) -> bool {
        let slot = self.slot.as_deref().unwrap_or_default();
        let named = self.application_name.as_deref() == Some(relay::APPLICATION);
        let of_relay = named || slot.starts_with(RELAY_SLOTS);
        self.replica.is_none() && self.replica_name.is_none() && of_relay
    }

    /// True of such a consumer that takes all it is sent, and may reply on a timer of its own: pg_recvlogical
    /// does so every ten seconds. The worker of a subscription replies when it has applied all that has come;
    /// it connects with the subscription's name, which is that of its slot by default.
    pub(crate) fn replies_freely(&self) -> bool {
        let is_worker = self.application_name == self.slot;
        let last = self.upstream.last().and_then(|last| self.sender(last));
        if last.is_some_and(|sender| self.receives_only(sender)) {
            return true;
        }
        self.is_other_consumer()
            && !is_worker
            && last.is_some_and(|sender| sender.replied_us.is_some())
            && self.at_end_share() >= AT_END_SHARE
            && self.pushed_share() < PUSHED_SHARE
    }

    /// True of what was not asked, streams WAL and replays none, such as pg_receivewal: unless it is told
    /// otherwise it flushes a segment when that is full, and replies every ten seconds.
    fn receives_only(&self, sender: &Sender) -> bool {
        let is_unasked = self.kind == LinkKind::Physical && self.replica.is_none();
        let streams = sender.state == Some(SenderState::Streaming);
        is_unasked && streams && sender.replay_lsn.is_none()
    }

    /// True of pg_recvlogical and pg_receivewal: they write what they receive, and flush that every
    /// `--fsync-interval`, or when a segment is full. Another consumer that has not flushed all may wait for
    /// something else: its flush counts.
    pub(crate) fn flushes_on_timer(&self, sender: &Sender) -> bool {
        let is_recvlogical = self.is_other_consumer() && sender.application_name == RECVLOGICAL;
        is_recvlogical || self.receives_only(sender)
    }

    fn reader(&self) -> Option<SilentReader> {
        if !self.is_other_consumer() {
            return None;
        }
        let (first, last) = (self.upstream.samples.first()?, self.upstream.last()?);
        let slot = self.slot.as_deref()?;
        let confirmed = |sample| Sample::slot(sample, slot)?.confirmed_flush_lsn;
        let (began, ends) = (self.sender(first)?, self.sender(last)?);
        let stands = confirmed(first)? == confirmed(last)? && began.sent_lsn? > confirmed(first)?;
        let samples = self.upstream.samples.iter();
        let replies = samples.filter_map(|sample| self.sender(sample)?.replied_us);
        let replies = replies.collect::<BTreeSet<i64>>().len().saturating_sub(1);
        let reads = replies > 0 && self.at_end_share() >= AT_END_SHARE;
        // A walsender has no such position before its consumer has confirmed one.
        let connected = ends.connected_ms.filter(|_| ends.flush_lsn.is_none());
        let window = self.upstream.length().as_secs_f64() * 1000.0;
        (stands && began.pid == ends.pid && reads).then(|| SilentReader {
            replies,
            since_ms: connected.unwrap_or(0.0).max(window),
        })
    }

    /// A consumer that confirms nothing, however long one waits.
    pub fn silent_reader(&self) -> Option<SilentReader> {
        self.reader().filter(|it| it.since_ms >= NEVER_MS)
    }

    /// True of a consumer that may only confirm less often than this window is long: nobody knows how far
    /// it is.
    pub fn confirms_seldom(&self) -> bool {
        self.reader().is_some_and(|it| it.since_ms < NEVER_MS)
    }

    /// No table of the link's subscription is copied yet, and no copy has failed: that it is behind is no
    /// lag.
    pub fn is_first_copy(&self) -> bool {
        let newest = self.replica.and_then(NodeWindow::last);
        let Some((last, row)) = newest.and_then(|last| Some((last, self.subscribed(last)?))) else {
            return false;
        };
        // The tables may have been asked for before it was made.
        let followed = last.tables.subscriptions.get(&row.name);
        let all = followed.map_or(0, |followed| followed.tables.len() as u64);
        let failed = row.sync_errors + row.apply_errors > 0;
        row.unsynced_tables > 0 && row.unsynced_tables >= all && !failed
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
        if let Some(pid) = self.walsender {
            return above.sender(pid);
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

    /// The link by which its upstream gets its WAL, if that is a replica itself.
    pub(crate) fn fed_by<'l, 'b>(&self, links: &'l [Link<'b>]) -> Option<&'l Link<'b>> {
        let is_upstream = |node: &NodeWindow| node.name == self.upstream.name;
        links.iter().find(|other| {
            let is_of_group = self.group.is_none() || other.group == self.group;
            other.replica.is_some_and(is_upstream) && is_of_group
        })
    }

    /// The links by which its upstream is fed, the nearest first: each once if they lead in a ring.
    pub(crate) fn way<'l, 'b>(&self, links: &'l [Link<'b>]) -> Vec<&'l Link<'b>> {
        let mut way: Vec<&Link<'_>> = Vec::new();
        let mut above = self.fed_by(links);
        while let Some(link) = above.filter(|link| !way.iter().any(|it| ptr::eq(*it, *link))) {
            way.push(link);
            above = link.fed_by(links);
        }
        way
    }

    /// How far the replica's data is behind the primary at these points, if its upstream is none. Of a
    /// logical link only while what feeds the upstream is behind: WAL that is not for it would count.
    pub fn behind_primary<'p>(
        &self,
        primary: &NodeWindow,
        links: &[Link<'_>],
        points: impl IntoIterator<Item = &'p Point>,
    ) -> Option<BehindPrimary> {
        let is_fed_late = || self.fed_by(links).is_some_and(Link::is_behind);
        if self.upstream.role == Role::Primary || self.kind == LinkKind::Logical && !is_fed_late() {
            return None;
        }
        let (mut ages, mut bytes) = (Vec::new(), Vec::new());
        let (mut lag_is_least, mut most) = (false, None);
        for point in points {
            let behind = primary.end_at(None, point.at)?.bytes_since(point.replay);
            let since = primary.beyond_since(None, point.replay);
            let age = primary.age_beyond(None, point.replay, point.at);
            let age = if behind == 0 {
                Duration::ZERO
            } else {
                age.max(point.age)
            };
            // The primary had it before anybody watched.
            lag_is_least = behind > 0 && since.is_some() && since == primary.first_answer(None);
            most = point.age_most;
            ages.push((point.at, age.as_secs_f64() * 1000.0));
            bytes.push((point.at, behind as f64));
        }
        let lag_ms = median_over_time(&ages);
        let most = most.filter(|_| lag_is_least);
        (!ages.is_empty()).then(|| BehindPrimary {
            behind: lag_ms >= LAG_MS,
            lag_ms,
            lag_is_least,
            lag_most_ms: most.map(|most| most.as_secs_f64() * 1000.0),
            lag_bytes: median_over_time(&bytes),
        })
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
        let is_known = || !self.confirms_seldom() && !self.is_first_copy();
        let by_positions = || (self.age_ms() >= LAG_MS || self.is_spiky()) && is_known();
        self.is_late_by_cycles().unwrap_or_else(by_positions)
    }

    /// Whether it goes to a replica that is later than its cycles let expect; None if that has none.
    fn is_late_by_cycles(&self) -> Option<bool> {
        self.replica_state()?.is_late_by_cycles()
    }

    /// The replica was far behind for a moment, but not most of the time.
    pub fn is_spiky(&self) -> bool {
        let has_cycles = self.is_late_by_cycles().is_some();
        !has_cycles && self.age_ms() < LAG_MS && self.most_age_ms() >= SPIKE_MS
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
