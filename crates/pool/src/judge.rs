//! All that an agent knows of its node, and what follows: the node's state, its share, its staleness.
//!
//! The driver asks the primary and the node, and hands in each answer with the moment of the question. Time
//! is an argument and comes from one clock, which counts from the agent's start. If it goes back, all that
//! was known is forgotten, since nothing says how much time has passed.

use std::time::Duration;

use lockstep_wire::{Lsn, SystemId, Timeline};

use crate::fault::Fault;
use crate::staleness::{Moment, Position, Staleness};
use crate::state::{Door, NodeState, Reason};
use crate::weight::{self, Load};

/// Age from which the node's newest answer no longer counts, if two intervals are shorter.
pub const SILENCE: Duration = Duration::from_secs(1);

/// How long a node may be on a timeline that the primary has left. By then a standby that can follow has
/// done so; another one has data that never was the new primary's.
pub const FOLLOWS_WITHIN: Duration = Duration::from_secs(5);

/// What an operator sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    pub door: Door,
    /// The oldest data that a node of door `fresh` may have.
    pub bound: Duration,
    /// Time between two questions.
    pub interval: Duration,
    /// How long all must be well before a node is in; no shorter than the bound, so that a node that stops
    /// again and again shows it meanwhile.
    pub settle: Duration,
    /// Time in which a newcomer's share becomes whole.
    pub rise: Duration,
}

/// What a primary has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrimaryAnswer {
    pub system: SystemId,
    pub flushed: Position,
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

/// What a node has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeAnswer {
    pub system: SystemId,
    pub is_standby: bool,
    /// What queries see: replayed on a standby, flushed on a primary.
    pub shown: Lsn,
    /// What the walreceiver has on disk; None without one since the server started.
    pub received: Option<Lsn>,
    /// The timeline of the WAL that is replayed, or that a primary writes; None if it is not known.
    pub timeline: Option<Timeline>,
    pub supply: Supply,
    pub is_paused: bool,
    /// How long the server has been running.
    pub up_for: Duration,
    pub load: Option<Load>,
}

/// What follows for the node at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Verdict {
    pub state: NodeState,
    /// Share of new sessions, in percent, if the node is in.
    pub share: u8,
    /// Share among late nodes, if no node is in.
    pub late_share: u8,
    /// The age of the data is no larger; None if that was never known.
    pub staleness: Option<Duration>,
    /// The age of what the node has received is no larger.
    pub received: Option<Duration>,
    /// False if the primary has been silent for longer than the bound: the figures only say how long
    /// nobody has known more.
    pub is_known: bool,
    /// Bytes from what the node shows to what the primary had when it last answered.
    pub lag_bytes: Option<u64>,
    /// Bytes from what the node has received to that.
    pub unreceived_bytes: Option<u64>,
    /// None while the node does not answer.
    pub is_standby: Option<bool>,
    /// The node is a primary that takes writes, and none on a later timeline is known.
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
    /// The latest moment that was handed in.
    now: Moment,
    shown: Staleness,
    received: Staleness,
    primary: Option<Asked<PrimaryAnswer>>,
    node: Option<Asked<NodeAnswer>>,
    /// The node's timeline when it was last known.
    node_timeline: Option<Timeline>,
    /// Since when the node has been on a timeline that the primary has left.
    left_since: Option<Moment>,
    /// Whether a new session to the node was accepted.
    accepts: bool,
    is_drained: bool,
    state: NodeState,
    /// Since when nothing has been wrong.
    well_since: Option<Moment>,
    /// When the node came in, and whether its share is whole from then on.
    entered: (Moment, bool),
    /// Whether the node was ever in.
    was_in: bool,
}

impl Judge {
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            fault: None,
            now: Moment::ZERO,
            shown: Staleness::default(),
            received: Staleness::default(),
            primary: None,
            node: None,
            node_timeline: None,
            left_since: None,
            accepts: true,
            is_drained: false,
            state: Reason::NotAsked.state(),
            well_since: None,
            entered: (Moment::ZERO, false),
            was_in: false,
        }
    }

    /// The judge with a fault planted, for tests.
    pub fn with_fault(mut self, fault: Option<Fault>) -> Self {
        self.fault = fault;
        self.shown = Staleness::with_fault(fault);
        self.received = Staleness::with_fault(fault);
        self
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Takes the moment. If the clock has gone back, nothing that was known counts any more.
    fn clock(&mut self, now: Moment) {
        if now < self.now && self.fault != Some(Fault::ClockBelieved) {
            let (accepts, is_drained) = (self.accepts, self.is_drained);
            *self = Self::new(self.rules).with_fault(self.fault);
            (self.accepts, self.is_drained) = (accepts, is_drained);
        }
        self.now = now;
    }

    /// Takes the primary's answer to a question that was asked at `asked`.
    pub fn primary_answered(&mut self, asked: Moment, now: Moment, answer: PrimaryAnswer) {
        self.clock(now);
        if asked > now {
            return;
        }
        let asked = match self.fault {
            Some(Fault::CountsFromAnswer) => now,
            _ => asked,
        };
        if self.shown.primary_answered(asked, answer.flushed) {
            self.received.primary_answered(asked, answer.flushed);
            self.primary = Some(Asked { at: asked, answer });
        }
    }

    /// Takes the node's answer to a question that was asked at `asked`.
    pub fn node_answered(&mut self, asked: Moment, now: Moment, answer: NodeAnswer) {
        self.clock(now);
        if asked > now {
            return;
        }
        self.node = Some(Asked { at: asked, answer });
        self.node_timeline = answer.timeline.or(self.node_timeline);
        let received = answer.received.unwrap_or(answer.shown).max(answer.shown);
        let shown = match self.fault {
            Some(Fault::ReceivedIsShown) => received,
            _ => answer.shown,
        };
        self.shown.node_answered(shown, answer.timeline);
        self.received.node_answered(received, answer.timeline);
        self.follow(now);
    }

    /// The session to the node is lost.
    pub fn node_lost(&mut self, now: Moment) {
        self.clock(now);
        if self.fault != Some(Fault::LossIgnored) {
            self.shown.node_lost();
            self.received.node_lost();
        }
    }

    /// A new session to the node was accepted, or was not.
    pub fn accepts(&mut self, accepts: bool) {
        self.accepts = accepts;
    }

    /// An operator wants that the node takes no new session, or wants it no longer.
    pub fn drain(&mut self, is_drained: bool) {
        self.is_drained = is_drained;
    }

    /// Notes since when the node has been on a timeline that the primary has left.
    fn follow(&mut self, now: Moment) {
        let is_left = match (self.node_timeline, self.shown.timeline()) {
            (Some(node), Some(primary)) => node < primary,
            _ => false,
        };
        self.left_since = is_left.then(|| self.left_since.unwrap_or(now));
    }

    fn is_silent(&self, now: Moment) -> bool {
        let limit = SILENCE.max(self.rules.interval * 2);
        let age = self.node.map(|node| now.saturating_sub(node.at));
        age.is_none_or(|age| age > limit) && self.fault != Some(Fault::SilenceIsFine)
    }

    /// The primary has been silent for longer than the bound.
    fn is_primary_silent(&self, now: Moment) -> bool {
        let age = self.primary.map(|primary| now.saturating_sub(primary.at));
        age.is_none_or(|age| age > self.rules.bound)
    }

    /// What is wrong with a node that answers, whatever the age of its data.
    fn fault_of(&self, now: Moment, node: &NodeAnswer) -> Option<Reason> {
        let systems = self.primary.map(|primary| primary.answer.system);
        if systems.is_some_and(|system| system != node.system) {
            return Some(Reason::OtherCluster);
        }
        if !node.is_standby {
            return Some(Reason::IsPrimary);
        }
        if let Some(since) = self.left_since {
            let is_over = now.saturating_sub(since) > FOLLOWS_WITHIN;
            return Some(match is_over {
                true => Reason::OldTimeline,
                false => Reason::TimelineLeft,
            });
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

    /// What is wrong; None if the node may be in.
    fn wrong(&self, now: Moment) -> Option<Reason> {
        if self.is_drained {
            return Some(Reason::Drained);
        }
        let Some(node) = &self.node else {
            return Some(Reason::NotAsked);
        };
        if self.is_silent(now) {
            return Some(Reason::NodeSilent);
        }
        if !self.accepts {
            return Some(Reason::NoSession);
        }
        if let Some(reason) = self.fault_of(now, &node.answer) {
            return Some(reason);
        }
        let is_held = self.rules.door == Door::Fresh || self.fault == Some(Fault::BoundForReports);
        let limit = match self.state {
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
        let asked = self.primary.map(|primary| primary.at);
        match (self.fault, asked) {
            (Some(Fault::SilenceKeepsFigure), Some(asked)) => self.shown.at(asked),
            _ => self.shown.at(now),
        }
    }

    /// Moves the state on.
    fn judge(&mut self, now: Moment) {
        let Some(reason) = self.wrong(now) else {
            let since = *self.well_since.get_or_insert(now);
            let settle = match self.fault {
                Some(Fault::ReturnsAtOnce) => Duration::ZERO,
                _ => self.rules.settle,
            };
            if self.state == NodeState::In {
                return;
            }
            if now.saturating_sub(since) < settle {
                self.state = Reason::Settling.state();
                return;
            }
            let up_for = self.node.map_or(Duration::ZERO, |node| node.answer.up_for);
            // An agent that starts beside a warm node finds no newcomer.
            let is_warm = !self.was_in && up_for >= self.rules.rise;
            self.entered = (now, is_warm || self.fault == Some(Fault::RisesAtOnce));
            self.was_in = true;
            self.state = NodeState::In;
            return;
        };
        self.well_since = None;
        self.state = match (self.fault, reason.state()) {
            (Some(Fault::LateIsOut), NodeState::Late(reason)) => NodeState::Out(reason),
            (_, state) => state,
        };
    }

    /// What follows at this moment.
    pub fn verdict(&mut self, now: Moment) -> Verdict {
        self.clock(now);
        self.follow(now);
        self.judge(now);
        let node = self.node.filter(|_| !self.is_silent(now));
        let node = node.map(|node| node.answer);
        let staleness = self.staleness(now);
        let held_to = (self.rules.door == Door::Fresh).then_some(self.rules.bound);
        let load = node.and_then(|node| node.load);
        let (entered, is_whole) = self.entered;
        let since = match is_whole {
            true => self.rules.rise,
            false => now.saturating_sub(entered),
        };
        let newest = self.primary.filter(|_| !self.is_primary_silent(now));
        let behind = |lsn: Lsn| newest.map(|it| it.answer.flushed.lsn.bytes_since(lsn));
        let is_other = self.state == Reason::OtherCluster.state();
        Verdict {
            state: self.state,
            share: weight::of_node_in(
                staleness.unwrap_or_default(),
                held_to,
                load,
                since,
                self.rules.rise,
            ),
            late_share: weight::of_late_node(staleness, self.rules.bound),
            staleness,
            received: self.received.at(now),
            is_known: staleness.is_some() && !self.is_primary_silent(now),
            lag_bytes: node.and_then(|node| behind(node.shown)),
            unreceived_bytes: node
                .and_then(|node| behind(node.received.unwrap_or(node.shown).max(node.shown))),
            is_standby: node.map(|node| node.is_standby),
            takes_writes: node.is_some_and(|node| !node.is_standby)
                && self.accepts
                && !is_other
                && self.left_since.is_none(),
            is_streaming: node.is_some_and(|node| node.supply == Supply::Streaming),
            load,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYSTEM: u64 = 7;

    fn ms(ms: u64) -> Moment {
        Duration::from_millis(ms)
    }

    fn rules(door: Door) -> Rules {
        Rules {
            door,
            bound: ms(600),
            interval: ms(100),
            settle: ms(500),
            rise: ms(1000),
        }
    }

    fn primary(timeline: u32, lsn: u64) -> PrimaryAnswer {
        PrimaryAnswer {
            system: SYSTEM.into(),
            flushed: Position {
                timeline: Timeline::new(timeline).unwrap(),
                lsn: lsn.into(),
            },
        }
    }

    fn standby() -> NodeAnswer {
        NodeAnswer {
            system: SYSTEM.into(),
            is_standby: true,
            shown: 100.into(),
            received: Some(100.into()),
            timeline: Some(Timeline::FIRST),
            supply: Supply::Streaming,
            is_paused: false,
            up_for: Duration::ZERO,
            load: None,
        }
    }

    /// Asks both every 100 ms from one moment to another, and returns the last verdict.
    fn ask(judge: &mut Judge, from: u64, to: u64, p: PrimaryAnswer, node: NodeAnswer) -> Verdict {
        let mut at = from;
        while at <= to {
            judge.primary_answered(ms(at), ms(at), p);
            judge.node_answered(ms(at), ms(at), node);
            judge.verdict(ms(at));
            at += 100;
        }
        judge.verdict(ms(to))
    }

    /// A judge whose node is in, at 1 s.
    fn settled(door: Door) -> Judge {
        let mut judge = Judge::new(rules(door));
        let verdict = ask(&mut judge, 0, 1000, primary(1, 100), standby());
        assert_eq!(verdict.state, NodeState::In);
        judge
    }

    #[test]
    fn a_newcomer_settles_and_rises() {
        let mut judge = Judge::new(rules(Door::Fresh));
        assert_eq!(judge.verdict(ms(0)).state, NodeState::Out(Reason::NotAsked));
        let verdict = ask(&mut judge, 0, 400, primary(1, 100), standby());
        assert_eq!(verdict.state, NodeState::Late(Reason::Settling));
        let verdict = ask(&mut judge, 500, 500, primary(1, 100), standby());
        assert_eq!((verdict.state, verdict.share), (NodeState::In, 10));
        let verdict = ask(&mut judge, 600, 1000, primary(1, 100), standby());
        assert_eq!(verdict.share, 55);
        assert_eq!((verdict.lag_bytes, verdict.is_known), (Some(0), true));

        // The agent starts anew, the node has served for long.
        let mut judge = Judge::new(rules(Door::Fresh));
        let warm = NodeAnswer {
            up_for: ms(60_000),
            ..standby()
        };
        assert_eq!(ask(&mut judge, 0, 500, primary(1, 100), warm).share, 100);
    }

    #[test]
    fn each_thing_that_is_wrong_is_said_at_once() {
        let other = NodeAnswer {
            system: 8.into(),
            ..standby()
        };
        let promoted = NodeAnswer {
            is_standby: false,
            ..standby()
        };
        let paused = NodeAnswer {
            is_paused: true,
            ..standby()
        };
        let without = |supply| NodeAnswer {
            supply,
            ..standby()
        };
        for (node, primary_said, state) in [
            (other, primary(1, 100), NodeState::Out(Reason::OtherCluster)),
            (promoted, primary(1, 100), NodeState::Out(Reason::IsPrimary)),
            (paused, primary(1, 100), NodeState::Late(Reason::Paused)),
            (
                without(Supply::Archive),
                primary(1, 100),
                NodeState::Late(Reason::Archive),
            ),
            (
                without(Supply::NoUpstream),
                primary(1, 100),
                NodeState::Late(Reason::NoUpstream),
            ),
            (
                without(Supply::WalRemoved),
                primary(1, 100),
                NodeState::Late(Reason::WalRemoved),
            ),
            (
                without(Supply::NotStreaming),
                primary(1, 100),
                NodeState::Late(Reason::NotStreaming),
            ),
            (
                standby(),
                primary(2, 100),
                NodeState::Late(Reason::TimelineLeft),
            ),
        ] {
            for door in Door::ALL {
                let mut judge = settled(door);
                let verdict = ask(&mut judge, 1100, 1100, primary_said, node);
                assert_eq!(verdict.state, state, "{door:?}");
            }
        }
    }

    #[test]
    fn a_node_that_never_follows_is_out() {
        let mut judge = settled(Door::Reports);
        let verdict = ask(&mut judge, 1100, 6_500, primary(2, 100), standby());
        assert_eq!(verdict.state, NodeState::Out(Reason::OldTimeline));
        let old = NodeAnswer {
            is_standby: false,
            ..standby()
        };
        let verdict = ask(&mut judge, 6_600, 6_600, primary(2, 100), old);
        assert!(!verdict.takes_writes);
        let followed = NodeAnswer {
            timeline: Timeline::new(2),
            ..old
        };
        let verdict = ask(&mut judge, 6_700, 6_700, primary(2, 100), followed);
        assert!(verdict.takes_writes);
    }

    #[test]
    fn only_door_fresh_is_held_to_the_bound() {
        for (door, state) in [
            (Door::Fresh, NodeState::Late(Reason::Stale)),
            (Door::Reports, NodeState::In),
        ] {
            let mut judge = settled(door);
            let verdict = ask(&mut judge, 1100, 1700, primary(1, 500), standby());
            assert_eq!(verdict.state, state);
            assert_eq!(verdict.lag_bytes, Some(400));
        }
    }

    #[test]
    fn silence_of_either_is_noticed() {
        let mut judge = settled(Door::Fresh);
        judge.node_answered(ms(1600), ms(1600), standby());
        let verdict = judge.verdict(ms(1600));
        assert_eq!(verdict.state, NodeState::In);
        judge.node_answered(ms(1700), ms(1700), standby());
        let verdict = judge.verdict(ms(1700));
        assert_eq!(verdict.state, NodeState::Late(Reason::PrimarySilent));
        assert_eq!(
            (verdict.is_known, verdict.staleness),
            (false, Some(ms(700)))
        );
        let verdict = judge.verdict(ms(2800));
        assert_eq!(verdict.state, NodeState::Out(Reason::NodeSilent));
        assert_eq!((verdict.is_standby, verdict.lag_bytes), (None, None));
    }

    #[test]
    fn operators_and_new_sessions_count() {
        let mut judge = settled(Door::Fresh);
        judge.accepts(false);
        assert_eq!(
            judge.verdict(ms(1000)).state,
            NodeState::Out(Reason::NoSession)
        );
        judge.accepts(true);
        judge.drain(true);
        assert_eq!(judge.verdict(ms(1000)).state, NodeState::Draining);
        judge.drain(false);
        assert_eq!(
            judge.verdict(ms(1000)).state,
            NodeState::Late(Reason::Settling)
        );
    }

    #[test]
    fn a_clock_that_goes_back_leaves_nothing_known() {
        let mut judge = settled(Door::Fresh);
        let verdict = judge.verdict(ms(10));
        assert_eq!(verdict.state, NodeState::Out(Reason::NotAsked));
        assert_eq!(verdict.staleness, None);
        // Answers to questions of the time before say nothing.
        judge.primary_answered(ms(900), ms(20), primary(1, 100));
        judge.node_answered(ms(900), ms(20), standby());
        assert_eq!(judge.verdict(ms(30)).staleness, None);
    }
}
