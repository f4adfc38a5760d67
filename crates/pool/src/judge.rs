//! All that an agent knows of its node, and what follows: the node's state, its share, its staleness.
//!
//! The driver asks the primary and the node, and hands in each answer with the moment of the question. Time
//! is an argument and comes from one clock, which counts from the agent's start. If it goes back, all that
//! was known is forgotten, since nothing says how much time has passed.

use std::sync::Arc;
use std::time::Duration;

use lockstep_client::{Greeting, Switch};
use lockstep_wire::{Lsn, SystemId, Timeline};

use crate::contest::{Contender, Contest, Instance, Ruling};
use crate::fault::Fault;
use crate::lineage::{Lineage, Relation};
use crate::pace;
use crate::staleness::{Moment, Position, Staleness};
use crate::standing::{Standing, Times};
use crate::state::{Door, NodeState, Reason};
use crate::weight::{self, Load};

/// Age from which the node's newest answer no longer counts, if two intervals are shorter.
pub const SILENCE: Duration = Duration::from_secs(1);

/// How long a node may be on a timeline that the primary has left, if no history says where. By then a
/// standby that can follow has mostly done so; another one has data that never was the new primary's.
pub const FOLLOWS_WITHIN: Duration = Duration::from_secs(5);

/// What an operator sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// The agent's own door, for questions that name none.
    pub door: Door,
    /// The oldest data that a node of door `fresh` may have.
    pub bound: Duration,
    /// Time between two questions to the primary.
    pub interval: Duration,
    /// Time between two questions to the primary while the node keeps up; no shorter than the interval.
    pub rest: Duration,
    /// How long all must be well before a node is in; no shorter than the bound, so that a node that stops
    /// again and again shows it meanwhile.
    pub settle: Duration,
    /// Time in which a newcomer's share becomes whole.
    pub rise: Duration,
}

impl Rules {
    /// The usual rest, if the interval is the usual one.
    pub fn usual_rest(bound: Duration, interval: Duration) -> Duration {
        pace::rest(bound, interval)
    }
}

/// What a server has answered that takes writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrimaryAnswer {
    pub system: SystemId,
    pub instance: Instance,
    pub flushed: Position,
    /// The history of its timeline; None if the server does not tell.
    pub history: Option<Arc<[Switch]>>,
}

impl PrimaryAnswer {
    fn contender(&self) -> Contender {
        Contender {
            instance: self.instance,
            lineage: Lineage {
                system: self.system,
                timeline: self.flushed.timeline,
                history: self.history.clone(),
            },
        }
    }
}

/// How a standby gets WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supply {
    /// The walreceiver streams.
    Streaming,
    Archive,
    /// `primary_conninfo` is empty.
    NoUpstream,
    /// WAL that is needed next is not on the primary any more.
    WalRemoved,
    NotStreaming,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAnswer {
    pub system: SystemId,
    pub instance: Instance,
    pub is_standby: bool,
    /// What queries see: replayed on a standby, flushed on a primary.
    pub shown: Lsn,
    /// What the walreceiver has on disk; None without one since the server started.
    pub received: Option<Lsn>,
    /// The timeline of the WAL that is replayed, or that a primary writes; None if it is not known.
    pub timeline: Option<Timeline>,
    /// The history of this timeline; None if the server does not tell.
    pub history: Option<Arc<[Switch]>>,
    pub supply: Supply,
    pub is_paused: bool,
    /// How long the server has been running.
    pub up_for: Duration,
    pub load: Option<Load>,
}

/// What follows for the node at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    /// The door for which this holds.
    pub door: Door,
    pub state: NodeState,
    /// Share of new sessions, in percent, if the node is in.
    pub share: u8,
    /// The node is in, and has been for as long as a newcomer's share rises.
    pub is_risen: bool,
    /// Share among late nodes, if no node is in.
    pub late_share: u8,
    /// The age of the data is no larger; None if that was never known.
    pub staleness: Option<Duration>,
    /// The age of what the node has received is no larger.
    pub received: Option<Duration>,
    /// False if the primary has been silent for longer than the bound: the figures only say how long
    /// nobody has known more.
    pub is_known: bool,
    /// Bytes from what the node shows to what the primary had when it last answered; None unless the node is
    /// on the primary's timeline, or on one before and not beyond its end.
    pub lag_bytes: Option<u64>,
    /// Bytes from what the node has received to that.
    pub unreceived_bytes: Option<u64>,
    /// None while the node does not answer.
    pub is_standby: Option<bool>,
    /// The node takes writes and is the primary among all servers that do.
    pub takes_writes: bool,
    /// The walreceiver streams.
    pub is_streaming: bool,
    pub load: Option<Load>,
}

/// A newest answer, and when it was asked for.
#[derive(Debug, Clone, Copy)]
struct Asked<T> {
    at: Moment,
    answer: T,
}

/// All that is known.
#[derive(Debug)]
pub struct Judge {
    rules: Rules,
    fault: Option<Fault>,
    contest: Contest,
    /// The latest moment that was handed in.
    now: Moment,
    shown: Staleness,
    received: Staleness,
    primary: Option<Asked<PrimaryAnswer>>,
    /// When the primary's newest answer came.
    answered: Option<Moment>,
    /// Whether the node has shown the primary's answers soon.
    keeps_up: bool,
    node: Option<Asked<NodeAnswer>>,
    /// Whether an attempt to ask the node has failed.
    has_failed: bool,
    /// The node's lineage when it was last known.
    node_lineage: Option<Lineage>,
    /// Since when the node has been on a timeline that the primary has left, if nobody says where.
    left_since: Option<Moment>,
    /// How the node has answered who wanted a new session.
    greeting: Greeting,
    is_drained: bool,
    /// The node at each door.
    standings: [Standing; 2],
}

fn standings(fault: Option<Fault>) -> [Standing; 2] {
    Door::ALL.map(|door| Standing::new(door, fault))
}

impl Judge {
    /// A judge that knows nothing, with so many servers that are asked for the primary.
    pub fn new(rules: Rules, servers: usize) -> Self {
        Self {
            rules,
            fault: None,
            contest: Contest::new(servers),
            now: Moment::ZERO,
            shown: Staleness::default(),
            received: Staleness::default(),
            primary: None,
            answered: None,
            keeps_up: false,
            node: None,
            has_failed: false,
            node_lineage: None,
            left_since: None,
            greeting: Greeting::Open,
            is_drained: false,
            standings: standings(None),
        }
    }

    /// The judge with a fault planted, for tests.
    pub fn with_fault(mut self, fault: Option<Fault>) -> Self {
        self.fault = fault;
        self.contest = self.contest.with_fault(fault);
        self.shown = Staleness::with_fault(fault);
        self.received = Staleness::with_fault(fault);
        self.standings = standings(fault);
        self
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Takes the moment. If the clock has gone back, no moment that was known counts any more.
    fn clock(&mut self, now: Moment) {
        if now < self.now && self.fault != Some(Fault::ClockBelieved) {
            self.shown = Staleness::with_fault(self.fault);
            self.received = Staleness::with_fault(self.fault);
            (self.primary, self.answered) = (None, None);
            self.keeps_up = false;
            (self.node, self.left_since) = (None, None);
            self.has_failed = false;
            self.standings = standings(self.fault);
        }
        self.now = now;
    }

    /// Takes the answer of a server to a question that was asked at `asked`; None if it is a standby.
    pub fn server_answered(
        &mut self,
        server: usize,
        asked: Moment,
        now: Moment,
        answer: Option<PrimaryAnswer>,
    ) {
        self.clock(now);
        if asked > now {
            return;
        }
        let contender = answer.as_ref().map(PrimaryAnswer::contender);
        self.contest.server_says(server, contender);
        let Some(answer) = answer else {
            return;
        };
        if self.contest.ruling() != Ruling::Primary(answer.instance) {
            return;
        }
        if self.relation() == Some(Relation::Apart) {
            self.shown.node_lost();
            self.received.node_lost();
        }
        let asked = match self.fault {
            Some(Fault::CountsFromAnswer) => now,
            _ => asked,
        };
        if self.shown.primary_answered(asked, answer.flushed) {
            self.received.primary_answered(asked, answer.flushed);
            self.primary = Some(Asked { at: asked, answer });
            self.answered = Some(now);
        }
    }

    /// When the node is to be asked again.
    pub fn node_turn(&self, now: Moment) -> Moment {
        let is_near = self
            .staleness(now)
            .is_some_and(|staleness| staleness <= self.rules.bound);
        let is_awaited = is_near && self.shown.awaits();
        let interval = self.rules.interval;
        pace::next(interval, self.interval(), now, self.answered, is_awaited)
    }

    /// Time from one question to the primary to the next.
    pub fn interval(&self) -> Duration {
        let is_in = |it: &Standing| it.door == Door::Fresh && it.state == NodeState::In;
        let keeps_up = self.keeps_up || self.fault == Some(Fault::RestsWhileBehind);
        match keeps_up && self.standings.iter().any(is_in) {
            true => self.rules.rest,
            false => self.rules.interval,
        }
    }

    /// Notes whether the node keeps up, as far as its newest answer says so.
    fn note_pace(&mut self, now: Moment) {
        let age = self.primary.as_ref().map(|it| now.saturating_sub(it.at));
        let said =
            age.and_then(|age| pace::keeps_up(self.rules.interval, age, self.shown.awaits()));
        self.keeps_up = said.unwrap_or(self.keeps_up);
    }

    /// A server that is asked for the primary does not answer.
    pub fn server_lost(&mut self, server: usize) {
        self.contest.server_says(server, None);
    }

    /// Takes the node's answer to a question that was asked at `asked`.
    pub fn node_answered(&mut self, asked: Moment, now: Moment, answer: NodeAnswer) {
        self.clock(now);
        if asked > now {
            return;
        }
        self.learn_lineage(&answer);
        let received = answer.received.unwrap_or(answer.shown).max(answer.shown);
        let shown = match self.fault {
            Some(Fault::ReceivedIsShown) => received,
            _ => answer.shown,
        };
        let is_apart = self.relation() == Some(Relation::Apart);
        let timeline = answer.timeline.filter(|_| !is_apart);
        self.shown.node_answered(shown, timeline);
        self.received.node_answered(received, timeline);
        self.node = Some(Asked { at: asked, answer });
        self.note_pace(now);
        self.follow(now);
    }

    fn learn_lineage(&mut self, answer: &NodeAnswer) {
        let Some(timeline) = answer.timeline else {
            return;
        };
        let lineage = Lineage {
            system: answer.system,
            timeline,
            history: answer.history.clone(),
        };
        let contender = (!answer.is_standby).then(|| Contender {
            instance: answer.instance,
            lineage: lineage.clone(),
        });
        let is_none = contender.is_none();
        self.contest.node_says(contender);
        if is_none {
            self.contest.standby_shows(&lineage);
        }
        self.node_lineage = Some(lineage);
    }

    /// What the node's timeline is to that of the newest primary; None if one of them is not known.
    fn relation(&self) -> Option<Relation> {
        let (node, primary) = (self.node_lineage.as_ref()?, self.contest.newest()?);
        Some(
            node.seen_with(self.fault)
                .to(&primary.seen_with(self.fault)),
        )
    }

    /// The session to the node is lost, or there was none.
    pub fn node_lost(&mut self, now: Moment) {
        self.clock(now);
        self.has_failed = true;
        self.keeps_up = false;
        self.contest.node_says(None);
        if self.fault != Some(Fault::LossIgnored) {
            self.shown.node_lost();
            self.received.node_lost();
        }
    }

    pub fn is_primary(&self, instance: Instance) -> bool {
        self.contest.ruling() == Ruling::Primary(instance)
    }

    /// Which server is the primary.
    pub fn ruling(&self) -> Ruling {
        self.contest.ruling()
    }

    /// Whether a server is the primary, or might be it since none is known.
    pub fn is_awaited(&self, instance: Instance) -> bool {
        self.is_primary(instance) || !matches!(self.ruling(), Ruling::Primary(_))
    }

    /// Whether the node was a standby when it last answered.
    pub fn is_standby(&self) -> bool {
        let node = self.node.as_ref();
        node.is_some_and(|node| node.answer.is_standby)
    }

    /// Takes how the node has answered who wanted a new session.
    pub fn greeted(&mut self, greeting: Greeting) {
        self.greeting = greeting;
    }

    /// An operator wants that the node takes no new session, or wants it no longer.
    pub fn drain(&mut self, is_drained: bool) {
        self.is_drained = is_drained;
    }

    /// Notes since when the node has been on a timeline that the primary has left nobody says where.
    fn follow(&mut self, now: Moment) {
        let is_left = match self.relation() {
            Some(Relation::Ancestor(at)) => {
                at.is_none() || self.fault == Some(Fault::SwitchPointIgnored)
            }
            _ => false,
        };
        self.left_since = is_left.then(|| self.left_since.unwrap_or(now));
    }

    fn is_silent(&self, now: Moment) -> bool {
        let limit = SILENCE.max(self.rules.interval * 2);
        let age = self.node.as_ref().map(|node| now.saturating_sub(node.at));
        age.is_none_or(|age| age > limit) && self.fault != Some(Fault::SilenceIsFine)
    }

    /// The primary has been silent for longer than the bound.
    fn is_primary_silent(&self, now: Moment) -> bool {
        let age = self.primary.as_ref().map(|it| now.saturating_sub(it.at));
        age.is_none_or(|age| age > self.rules.bound)
    }

    /// What is wrong with a node that answers, whatever the age of its data.
    fn fault_of(&self, now: Moment, node: &NodeAnswer) -> Option<Reason> {
        if self.contest.has_other(node.system) {
            return Some(Reason::OtherCluster);
        }
        if !node.is_standby {
            return Some(self.fault_of_writer(node));
        }
        if self.contest.ruling() == Ruling::Undecided {
            return Some(Reason::TwoPrimaries);
        }
        let late_or_out = |is_out: bool| match is_out {
            true => Reason::OldTimeline,
            false => Reason::TimelineLeft,
        };
        match (self.relation(), self.left_since) {
            (Some(Relation::Apart), _) => return Some(Reason::OtherHistory),
            (Some(Relation::Ancestor(_)), Some(since)) => {
                return Some(late_or_out(now.saturating_sub(since) > FOLLOWS_WITHIN));
            }
            (Some(Relation::Ancestor(at)), None) => {
                return Some(late_or_out(at.is_some_and(|at| node.shown > at)));
            }
            (Some(Relation::Same | Relation::Descendant) | None, _) => {}
        }
        if node.is_paused {
            return Some(Reason::Paused);
        }
        match node.supply {
            Supply::Streaming => None,
            Supply::Archive => Some(Reason::Archive),
            Supply::NoUpstream => Some(Reason::NoUpstream),
            Supply::WalRemoved => Some(Reason::WalRemoved),
            Supply::NotStreaming => Some(Reason::NotStreaming),
        }
    }

    /// Why a node that takes writes gets no readers.
    fn fault_of_writer(&self, node: &NodeAnswer) -> Reason {
        match (self.contest.ruling(), self.relation()) {
            (Ruling::Primary(primary), _) if primary == node.instance => Reason::IsPrimary,
            (Ruling::Undecided, _) => Reason::RivalPrimary,
            (Ruling::Nobody, None) => Reason::ServersNotAsked,
            (_, Some(Relation::Apart)) => Reason::OtherHistory,
            _ => Reason::OldPrimary,
        }
    }

    /// What is wrong; None if the node may be in at a door.
    fn wrong(&self, now: Moment, standing: &Standing) -> Option<Reason> {
        if self.is_drained {
            return Some(Reason::Drained);
        }
        let Some(node) = &self.node else {
            return Some(match self.has_failed {
                true => Reason::NodeSilent,
                false => Reason::NotAsked,
            });
        };
        if self.is_silent(now) {
            return Some(Reason::NodeSilent);
        }
        match self.greeting {
            Greeting::Open => {}
            Greeting::Closed => return Some(Reason::Closing),
            Greeting::Silent => return Some(Reason::NoSession),
        }
        if let Some(reason) = self.fault_of(now, &node.answer) {
            return Some(reason);
        }
        if node.answer.load.is_some_and(Load::is_full) {
            return Some(Reason::Full);
        }
        let is_held = standing.door == Door::Fresh || self.fault == Some(Fault::BoundForReports);
        let limit = match standing.state {
            NodeState::In => self.rules.bound,
            _ => self.rules.bound / 2,
        };
        let is_stale = self
            .staleness(now)
            .is_none_or(|staleness| staleness > limit);
        (is_held && is_stale).then(|| match self.is_primary_silent(now) {
            true => Reason::PrimarySilent,
            false => Reason::Stale,
        })
    }

    fn staleness(&self, now: Moment) -> Option<Duration> {
        let asked = self.primary.as_ref().map(|primary| primary.at);
        match (self.fault, asked) {
            (Some(Fault::SilenceKeepsFigure), Some(asked)) => self.shown.at(asked),
            _ => self.shown.at(now),
        }
    }

    /// Moves the states on.
    fn judge(&mut self, now: Moment) {
        let up_for = self.node.as_ref().map(|node| node.answer.up_for);
        let times = Times {
            settle: self.rules.settle,
            rise: self.rules.rise,
            up_for: up_for.unwrap_or_default(),
        };
        let wrong = self.standings.each_ref().map(|it| self.wrong(now, it));
        for (standing, wrong) in self.standings.iter_mut().zip(wrong) {
            standing.judge(now, wrong, &times);
        }
    }

    /// What follows at this moment at the agent's own door.
    pub fn verdict(&mut self, now: Moment) -> Verdict {
        self.verdict_at(self.rules.door, now)
    }

    /// What follows at this moment at a door.
    pub fn verdict_at(&mut self, door: Door, now: Moment) -> Verdict {
        self.clock(now);
        self.follow(now);
        self.judge(now);
        let node = self.node.as_ref().filter(|_| !self.is_silent(now));
        let node = node.map(|node| &node.answer);
        let staleness = self.staleness(now);
        let held_to = (door == Door::Fresh).then_some(self.rules.bound);
        let rise = self.rules.rise;
        let standing = self.standings.iter().find(|it| it.door == door);
        let state = standing.map_or(Reason::NotAsked.state(), |it| it.state);
        let risen = standing.map_or(Duration::ZERO, |it| it.risen_for(now, rise));
        let load = node.and_then(|node| node.load);
        let newest = self.primary.as_ref();
        let newest = newest.filter(|_| !self.is_primary_silent(now));
        let behind = |lsn: Lsn| {
            let is_comparable = match self.relation()? {
                Relation::Same => true,
                Relation::Ancestor(at) => at.is_some_and(|at| lsn <= at),
                Relation::Descendant | Relation::Apart => false,
            };
            let flushed = newest.filter(|_| is_comparable)?.answer.flushed.lsn;
            Some(flushed.bytes_since(lsn))
        };
        Verdict {
            door,
            state,
            share: weight::of_node_in(staleness.unwrap_or_default(), held_to, load, risen, rise),
            is_risen: state == NodeState::In && risen >= rise,
            late_share: weight::of_late_node(staleness, self.rules.bound),
            staleness,
            received: self.received.at(now),
            is_known: staleness.is_some() && !self.is_primary_silent(now),
            lag_bytes: node.and_then(|node| behind(node.shown)),
            unreceived_bytes: node
                .and_then(|node| behind(node.received.unwrap_or(node.shown).max(node.shown))),
            is_standby: node.map(|node| node.is_standby),
            takes_writes: self.greeting == Greeting::Open
                && node.is_some_and(|node| {
                    !node.is_standby && self.contest.ruling() == Ruling::Primary(node.instance)
                }),
            is_streaming: node.is_some_and(|node| node.supply == Supply::Streaming),
            load,
        }
    }
}

#[cfg(test)]
mod tests;
