//! What happens, and what is checked of it.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use lockstep_client::Switch;
use lockstep_lab::seeds;
use lockstep_pool::contest::Instance;
use lockstep_pool::fault::Fault;
use lockstep_pool::judge::{
    FOLLOWS_WITHIN, Judge, NodeAnswer, PrimaryAnswer, Rules, SILENCE, Supply,
};
use lockstep_pool::staleness::{Moment, Position};
use lockstep_pool::state::{Door, NodeState, Reason};
use lockstep_wire::Timeline;

use super::primary::Cluster;

/// Time of a step.
const STEP_MS: u64 = 10;

/// What the agent's clock shows at first.
const CLOCK_MS: u64 = 10_000_000;

/// What a run came by: how often.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    pub entered: u64,
    pub late: u64,
    pub silent: u64,
    pub crashes: u64,
    pub failovers: u64,
    pub diverged: u64,
    pub left_behind: u64,
    pub agent_starts: u64,
    pub clock_back: u64,
    pub clock_ahead: u64,
    pub cuts: u64,
    pub pauses: u64,
    pub leaps: u64,
    pub calms: u64,
    pub thinned: u64,
}

impl Seen {
    fn numbers(&mut self) -> [&mut u64; 15] {
        [
            &mut self.entered,
            &mut self.late,
            &mut self.silent,
            &mut self.crashes,
            &mut self.failovers,
            &mut self.diverged,
            &mut self.left_behind,
            &mut self.agent_starts,
            &mut self.clock_back,
            &mut self.clock_ahead,
            &mut self.cuts,
            &mut self.pauses,
            &mut self.leaps,
            &mut self.calms,
            &mut self.thinned,
        ]
    }

    pub fn least(&mut self) -> u64 {
        self.numbers().into_iter().map(|n| *n).min().unwrap_or(0)
    }

    pub fn add(&mut self, more: &Self) {
        let mut more = *more;
        for (sum, number) in self.numbers().into_iter().zip(more.numbers()) {
            *sum += *number;
        }
    }
}

/// How the node replays.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Replay {
    /// All at once, a step after it is flushed.
    Current,
    /// Replay of this many bytes in a step.
    Slow(u64),
    /// All, this many milliseconds after it was flushed.
    Delayed(u64),
    Stopped,
    /// An operator has paused it, which the node says.
    Paused,
}

/// A question on its way.
#[derive(Debug, Clone)]
struct Asked<T> {
    /// When it was asked, by the agent's clock.
    at: Moment,
    /// When the server looks at it, by the world's clock.
    reaches_ms: u64,
    /// When the answer is back.
    returns_ms: u64,
    answer: Option<T>,
    /// When the agent gives up.
    gives_up_ms: u64,
}

/// A session of the agent's.
#[derive(Debug)]
struct Link<T> {
    asked: Option<Asked<T>>,
    /// When the newest question was asked.
    asked_ms: u64,
    next_ms: u64,
    is_cut: bool,
    /// Since when it has been fine without an interruption.
    fine_since_ms: u64,
    /// Since when no question has reached the server.
    cut_since_ms: u64,
}

impl<T> Link<T> {
    fn new() -> Self {
        Self {
            asked: None,
            asked_ms: 0,
            next_ms: 0,
            is_cut: false,
            fine_since_ms: 0,
            cut_since_ms: 0,
        }
    }

    fn cut(&mut self, is_cut: bool, now_ms: u64) {
        if is_cut && !self.is_cut {
            self.cut_since_ms = now_ms;
        }
        if self.is_cut && !is_cut {
            self.fine_since_ms = self.fine_since_ms.max(now_ms);
        }
        self.is_cut = is_cut;
    }
}

#[derive(Debug)]
struct Node {
    shown: u64,
    received: u64,
    timeline: Timeline,
    /// The history of its timeline.
    history: Arc<[Switch]>,
    replay: Replay,
    streams: bool,
    /// The server is down until then.
    down_until_ms: u64,
    up_since_ms: u64,
    /// Since when it has had WAL that is no part of the cluster's history.
    diverged_since_ms: Option<u64>,
    /// When it follows the primary to its timeline.
    follows_ms: Option<u64>,
}

pub struct World {
    random: Rng,
    fault: Option<Fault>,
    pub seen: Seen,
    now_ms: u64,
    /// The agent's clock, beside the world's.
    offset_ms: u64,
    rules: Rules,
    cluster: Cluster,
    node: Node,
    judge: Judge,
    to_primary: Link<PrimaryAnswer>,
    to_node: Link<NodeAnswer>,
    /// Longest way of a question or an answer.
    latency_ms: u64,
    /// A question in so many is lost.
    loses_one_in: u64,
    /// Since when both have been as they are.
    weather_since_ms: u64,
    writes_one_in: u64,
    state: NodeState,
    changes: u64,
    was_in: bool,
    entered_ms: u64,
    /// When the agent began to know.
    agent_since_ms: u64,
}

impl World {
    pub fn new(seed: u64, fault: Option<Fault>) -> Self {
        let mut random = Rng::with_seed(seed);
        let bound = Duration::from_millis(random.u64(60..200) * 10);
        let door = match seed % 4 {
            3 => Door::Reports,
            _ => Door::Fresh,
        };
        let interval = bound / 3;
        let rules = Rules {
            door,
            bound,
            interval,
            rest: match random.bool() {
                true => Rules::usual_rest(bound, interval),
                false => interval,
            },
            settle: bound + Duration::from_millis(random.u64(100..1000)),
            rise: Duration::from_millis(random.u64(2000..5000)),
        };
        let judge = Judge::new(rules, 1).with_fault(fault);
        let warm = random.bool();
        Self {
            random,
            fault,
            seen: Seen::default(),
            now_ms: 20_000,
            offset_ms: CLOCK_MS,
            rules,
            cluster: Cluster::new(),
            node: Node {
                shown: 1000,
                received: 1000,
                timeline: Timeline::FIRST,
                history: Arc::from([]),
                replay: Replay::Current,
                streams: true,
                down_until_ms: 0,
                up_since_ms: if warm { 0 } else { 20_000 },
                diverged_since_ms: None,
                follows_ms: None,
            },
            state: NodeState::Draining,
            judge,
            to_primary: Link::new(),
            to_node: Link::new(),
            latency_ms: 20,
            loses_one_in: u64::MAX,
            weather_since_ms: 0,
            writes_one_in: 3,
            changes: 0,
            was_in: false,
            entered_ms: 0,
            agent_since_ms: 20_000,
        }
    }

    pub fn run(&mut self) -> Result<(), String> {
        self.calm()?;
        self.delayed()?;
        match self.rules.door {
            Door::Reports => self.reports(),
            Door::Fresh => match self.random.u8(0..7) {
                0 | 1 => self.catch_up(),
                2 => self.left_behind(),
                3 => self.falls_behind_a_little(),
                _ => self.disturbances(),
            },
        }
    }

    fn agent_now(&self) -> Moment {
        Duration::from_millis(self.now_ms + self.offset_ms)
    }

    fn interval_ms(&self) -> u64 {
        self.rules.interval.as_millis() as u64
    }

    // ---- What happens ----

    fn disturbances(&mut self) -> Result<(), String> {
        for _ in 0..8 {
            self.latency_ms = self.random.u64(5..400);
            self.loses_one_in = *self.random.choice(&[u64::MAX, 30, 5]).unwrap();
            self.weather_since_ms = self.now_ms;
            self.writes_one_in = *self.random.choice(&[1, 3, 50, 100_000]).unwrap();
            for _ in 0..self.random.u8(1..4) {
                self.disturb();
                seeds::show(|| format!("{} ms: {:?}", self.now_ms, self.node));
                let lasts_ms = self.random.u64(50..4000);
                self.steps(lasts_ms)?;
            }
            if self.random.bool() {
                self.calm()?;
            }
        }
        Ok(())
    }

    fn disturb(&mut self) {
        let now_ms = self.now_ms;
        match self.random.u8(0..12) {
            0 => {
                self.seen.pauses += 1;
                self.node.replay = Replay::Paused;
            }
            1 => self.node.replay = Replay::Stopped,
            2 => self.node.replay = Replay::Slow(self.random.u64(1..60)),
            3 => self.node.replay = Replay::Current,
            4 => {
                self.seen.cuts += 1;
                let is_cut = self.random.bool();
                self.to_primary.cut(is_cut, now_ms);
            }
            5 => {
                self.seen.cuts += 1;
                let is_cut = self.random.bool();
                self.to_node.cut(is_cut, now_ms);
            }
            6 => self.crash(),
            7 => {
                let lost = self.random.u64(0..600);
                self.fail_over(lost);
            }
            8 => self.restart_agent(),
            9 => {
                self.seen.clock_ahead += 1;
                self.offset_ms += self.random.u64(100..10_000);
                self.agent_since_ms = now_ms;
            }
            10 => {
                self.seen.clock_back += 1;
                self.offset_ms -= self.random.u64(5_000..20_000);
                self.forgets();
            }
            _ => {
                self.weather_since_ms = now_ms;
                self.node.streams = self.random.bool();
            }
        }
    }

    /// The server dies, and later begins to replay before what it had reached.
    fn crash(&mut self) {
        self.seen.crashes += 1;
        let silence_ms = SILENCE.max(self.rules.interval * 2).as_millis() as u64;
        self.node.down_until_ms = self.now_ms + silence_ms + self.random.u64(500..3000);
        self.node.up_since_ms = self.node.down_until_ms;
        let least = match self.node.diverged_since_ms {
            Some(_) => self.node.shown,
            None => 0,
        };
        self.node.shown =
            (self.node.shown - self.random.u64(0..800).min(self.node.shown)).max(least);
        self.to_node.cut_since_ms = self.now_ms;
        self.to_node.fine_since_ms = self.node.down_until_ms;
        self.lose_node();
    }

    fn lose_node(&mut self) {
        if !self.to_node.is_cut {
            self.to_node.asked = None;
            self.judge.node_lost(self.agent_now());
        }
    }

    fn fail_over(&mut self, lost: u64) {
        self.seen.failovers += 1;
        self.cluster.fail_over(lost);
        self.to_primary.asked = None;
        self.to_primary.fine_since_ms = self.now_ms;
        self.node.received = self.node.received.max(self.node.shown);
        let is_diverged = self.node.diverged_since_ms.is_some();
        match is_diverged || self.node.shown > self.cluster.fork {
            true => {
                self.seen.diverged += 1;
                self.node.diverged_since_ms.get_or_insert(self.now_ms);
                self.node.follows_ms = None;
            }
            false => self.node.follows_ms = Some(self.now_ms + self.random.u64(10..3000)),
        }
    }

    fn restart_agent(&mut self) {
        self.seen.agent_starts += 1;
        self.judge = Judge::new(self.rules, 1).with_fault(self.fault);
        self.to_primary.asked = None;
        self.to_node.asked = None;
        self.forgets();
    }

    /// The agent knows nothing any more.
    fn forgets(&mut self) {
        self.was_in = false;
        self.agent_since_ms = self.now_ms;
        self.state = self.judge.verdict(self.agent_now()).state;
    }

    /// A long calm: everything is well, and after a while the agent must say so.
    fn calm(&mut self) -> Result<(), String> {
        self.seen.calms += 1;
        let now_ms = self.now_ms;
        self.latency_ms = self.interval_ms() / 10;
        self.loses_one_in = u64::MAX;
        self.weather_since_ms = now_ms;
        self.writes_one_in = *self.random.choice(&[1, 3, 50]).unwrap();
        self.to_primary.cut(false, now_ms);
        self.to_node.cut(false, now_ms);
        self.node.streams = true;
        self.node.replay = Replay::Current;
        if self.node.diverged_since_ms.is_some() || self.node.timeline < self.cluster.timeline {
            self.rebuild();
        }
        let until_up = self.node.down_until_ms.saturating_sub(self.now_ms);
        self.steps(until_up + 2500)?;
        let until_in = self.now_ms + self.rules.settle.as_millis() as u64 + 200;
        let rise_ms = self.rules.rise.as_millis() as u64;
        while self.now_ms < until_in + rise_ms {
            self.step()?;
            let verdict = self.judge.verdict(self.agent_now());
            let latest = self.latest_ms(verdict.state);
            let said = verdict.staleness.map(|said| said.as_millis() as u64);
            if said.is_none_or(|said| said > latest) {
                return Err(format!(
                    "the node is current, and {said:?} ms is said, not {latest}"
                ));
            }
            if self.now_ms > until_in && verdict.state != NodeState::In {
                return Err(format!("the node is current, and {:?}", verdict.state));
            }
        }
        let share = self.judge.verdict(self.agent_now()).share;
        match share {
            100 => Ok(()),
            _ => Err(format!("the share stays at {share}")),
        }
    }

    /// What is said at most of a current node: an interval, or a rest of one that is in, the ways of two
    /// questions and half of a third, and the time until the node is asked.
    fn latest_ms(&self, state: NodeState) -> u64 {
        let round_ms = match state {
            NodeState::In => self.rules.rest.as_millis() as u64,
            _ => self.interval_ms(),
        };
        round_ms + self.interval_ms() / 8 + 3 * self.latency_ms + 4 * STEP_MS
    }

    /// Replay that is late by a time: what is said is later by no more than that and a round.
    fn delayed(&mut self) -> Result<(), String> {
        let delay_ms = self.random.u64(1..3 * self.interval_ms());
        self.node.replay = Replay::Delayed(delay_ms);
        self.writes_one_in = 3;
        let late = Reason::Stale.state();
        let latest = self.latest_ms(late) + delay_ms + self.interval_ms() * 9 / 8 + self.latency_ms;
        self.steps(delay_ms + 3 * self.interval_ms())?;
        for _ in 0..200 {
            self.step()?;
            let said = self.judge.verdict(self.agent_now()).staleness;
            let said = said.map(|said| said.as_millis() as u64);
            if said.is_none_or(|said| said > latest) {
                return Err(format!(
                    "the node is {delay_ms} ms late, and {said:?} ms is said, not {latest}"
                ));
            }
        }
        self.node.replay = Replay::Current;
        self.steps(self.interval_ms() * 4 + self.rules.settle.as_millis() as u64)
    }

    /// Replay falls behind by more than a quarter and at most a third of the bound. The node stays in, since
    /// the primary is asked more often as soon as the node does not keep up.
    fn falls_behind_a_little(&mut self) -> Result<(), String> {
        self.calm()?;
        let bound_ms = self.rules.bound.as_millis() as u64;
        self.writes_one_in = 1;
        self.node.replay = Replay::Delayed(self.random.u64(bound_ms / 4..bound_ms / 3));
        for _ in 0..500 {
            self.step()?;
            if self.state != NodeState::In {
                return Err(format!("a node that is a little late is {:?}", self.state));
            }
        }
        self.calm()
    }

    /// The node is made anew from the primary.
    fn rebuild(&mut self) {
        self.crash();
        self.node.timeline = self.cluster.timeline;
        self.node.history = self.cluster.history();
        self.node.shown = self.cluster.fork.min(self.cluster.flushed());
        self.node.received = self.node.shown;
        self.node.diverged_since_ms = None;
        self.node.follows_ms = None;
    }

    /// The node falls behind once, and catches up in leaps, as from an archive.
    fn catch_up(&mut self) -> Result<(), String> {
        self.writes_one_in = 1;
        self.changes = 0;
        self.node.replay = Replay::Stopped;
        let stop_ms = self.random.u64(2_000..20_000) + self.rules.bound.as_millis() as u64;
        self.steps(stop_ms)?;
        let bound_ms = self.rules.bound.as_millis() as u64;
        let settle_ms = self.rules.settle.as_millis() as u64;
        for _ in 0..self.random.u8(3..12) {
            self.seen.leaps += 1;
            self.node.replay = Replay::Current;
            self.node.streams = self.random.bool();
            let current_ms = self.random.u64(20..(settle_ms - bound_ms / 2) * 8 / 10);
            self.steps(current_ms)?;
            self.node.replay = Replay::Stopped;
            let stopped_ms = self.random.u64(bound_ms * 3 / 2..bound_ms * 3);
            self.steps(stopped_ms)?;
        }
        self.node.streams = true;
        self.calm()?;
        match self.changes {
            0..=2 => Ok(()),
            changes => Err(format!("{changes} changes of state in one catch-up")),
        }
    }

    /// Nobody points the node to the new primary, although it could follow.
    fn left_behind(&mut self) -> Result<(), String> {
        self.seen.left_behind += 1;
        self.fail_over(0);
        self.node.follows_ms = None;
        let lasts_ms = self.random.u64(8_000..15_000);
        self.steps(lasts_ms)?;
        self.calm()
    }

    /// A node of `reports`, whose replay waits for long queries.
    fn reports(&mut self) -> Result<(), String> {
        self.writes_one_in = 1;
        for _ in 0..4 {
            self.node.replay = match self.random.bool() {
                true => Replay::Stopped,
                false => Replay::Slow(self.random.u64(1..30)),
            };
            let lasts_ms = self.random.u64(1000..20_000);
            let until_ms = self.now_ms + lasts_ms;
            while self.now_ms < until_ms {
                self.step()?;
                if self.state != NodeState::In {
                    return Err(format!("the node is of reports and {:?}", self.state));
                }
            }
        }
        self.calm()
    }

    // ---- A step ----

    fn steps(&mut self, ms: u64) -> Result<(), String> {
        let until_ms = self.now_ms + ms;
        while self.now_ms < until_ms {
            self.step()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.now_ms += STEP_MS;
        self.replay();
        if self.random.u64(0..self.writes_one_in) == 0 {
            let bytes = self.random.u64(1..100);
            self.cluster.write(self.now_ms, bytes);
        }
        self.ask_primary();
        self.ask_node();
        self.check()
    }

    fn is_up(&self) -> bool {
        self.now_ms >= self.node.down_until_ms
    }

    fn replay(&mut self) {
        if !self.is_up() {
            return;
        }
        if self.node.follows_ms.is_some_and(|at| self.now_ms >= at) && self.node.streams {
            self.node.follows_ms = None;
            self.weather_since_ms = self.now_ms;
            self.node.timeline = self.cluster.timeline;
            self.node.history = self.cluster.history();
            self.node.received = self.node.shown;
        }
        let is_fed = self.node.streams && self.node.timeline == self.cluster.timeline;
        if is_fed {
            self.node.received = self.cluster.flushed();
        }
        // WAL beyond the fork that came before the failover is not replayed any more.
        let limit = match self.node.timeline == self.cluster.timeline {
            true => self.node.received,
            false => self.node.received.min(self.cluster.fork),
        };
        let shown = self.node.shown;
        self.node.shown = match self.node.replay {
            Replay::Current => limit,
            Replay::Slow(bytes) => limit.min(shown + bytes),
            Replay::Delayed(ms) => limit.min(self.cluster.flushed_at(self.now_ms - ms)),
            Replay::Stopped | Replay::Paused => shown,
        }
        .max(shown);
    }

    fn question<T>(&mut self) -> Asked<T> {
        let way = |random: &mut Rng, most: u64| random.u64(0..=most / 2);
        let reaches_ms = self.now_ms + way(&mut self.random, self.latency_ms);
        let is_lost = self.random.u64(0..self.loses_one_in) == 0;
        let gives_up_ms = self.now_ms + SILENCE.max(self.rules.interval * 2).as_millis() as u64;
        Asked {
            at: self.agent_now(),
            reaches_ms: if is_lost { u64::MAX } else { reaches_ms },
            returns_ms: reaches_ms + way(&mut self.random, self.latency_ms),
            answer: None,
            gives_up_ms,
        }
    }

    fn ask_primary(&mut self) {
        let interval_ms = self.judge.interval().as_millis() as u64;
        let is_due = self.now_ms >= self.to_primary.asked_ms + interval_ms;
        if self.to_primary.asked.is_none() && is_due {
            self.to_primary.asked_ms = self.now_ms;
            self.to_primary.asked = Some(self.question());
        }
        let Some(mut asked) = self.to_primary.asked.take() else {
            return;
        };
        if asked.answer.is_none() && self.now_ms >= asked.reaches_ms && !self.to_primary.is_cut {
            asked.answer = Some(PrimaryAnswer {
                system: 1.into(),
                instance: Instance(1),
                history: Some(self.cluster.history()),
                flushed: Position {
                    timeline: self.cluster.timeline,
                    lsn: self.cluster.flushed().into(),
                },
            });
        }
        match asked.answer {
            Some(answer) if self.now_ms >= asked.returns_ms && !self.to_primary.is_cut => {
                self.judge
                    .server_answered(0, asked.at, self.agent_now(), Some(answer));
            }
            _ if self.now_ms >= asked.gives_up_ms => {}
            _ => self.to_primary.asked = Some(asked),
        }
    }

    fn ask_node(&mut self) {
        if self.to_node.asked.is_none() && self.now_ms >= self.to_node.next_ms && self.is_up() {
            self.to_node.asked = Some(self.question());
        }
        let Some(mut asked) = self.to_node.asked.take() else {
            return;
        };
        let is_open = !self.to_node.is_cut && self.is_up();
        if asked.answer.is_none() && self.now_ms >= asked.reaches_ms && is_open {
            asked.answer = Some(self.node_says());
        }
        match asked.answer {
            Some(answer) if self.now_ms >= asked.returns_ms && is_open => {
                let now = self.agent_now();
                self.judge.node_answered(asked.at, now, answer);
                let pause = self.judge.node_turn(now) - now;
                self.to_node.next_ms = self.now_ms + pause.as_millis() as u64;
            }
            _ if self.now_ms >= asked.gives_up_ms => {
                self.to_node.fine_since_ms = self.to_node.fine_since_ms.max(self.now_ms);
                self.judge.node_lost(self.agent_now());
            }
            _ => self.to_node.asked = Some(asked),
        }
    }

    fn node_says(&self) -> NodeAnswer {
        NodeAnswer {
            system: 1.into(),
            instance: Instance(2),
            history: self.node.streams.then(|| self.node.history.clone()),
            is_standby: true,
            shown: self.node.shown.into(),
            received: Some(self.node.received.into()),
            timeline: self.node.streams.then_some(self.node.timeline),
            supply: match self.node.streams {
                true => Supply::Streaming,
                false => Supply::NotStreaming,
            },
            is_paused: self.node.replay == Replay::Paused,
            up_for: Duration::from_millis(self.now_ms - self.node.up_since_ms.min(self.now_ms)),
            load: None,
        }
    }

    // ---- What is checked ----

    fn truth_ms(&self) -> u64 {
        let shown = match self.node.timeline == self.cluster.timeline {
            true => self.node.shown,
            false => self.node.shown.min(self.cluster.fork),
        };
        self.cluster.staleness(self.now_ms, shown)
    }

    fn check(&mut self) -> Result<(), String> {
        let verdict = self.judge.verdict(self.agent_now());
        let (now_ms, state) = (self.now_ms, verdict.state);
        let truth = self.truth_ms();
        let said = verdict.staleness.map(|said| said.as_millis() as u64);
        // Nobody reads from a server that is down.
        if self.is_up() && said.is_some_and(|said| said < truth) {
            return Err(format!(
                "at {now_ms} ms {said:?} ms is said, the truth is {truth}"
            ));
        }
        let bound_ms = self.rules.bound.as_millis() as u64;
        let is_held = self.rules.door == Door::Fresh;
        if self.is_up() && state == NodeState::In && is_held && truth > bound_ms {
            return Err(format!("in at {now_ms} ms, the truth is {truth}"));
        }
        self.check_silence(state)?;
        self.check_share(state, verdict.share)?;
        if state.name() != self.state.name() {
            self.changes += 1;
        }
        self.seen.late += u64::from(matches!(state, NodeState::Late(_)));
        self.seen.silent += u64::from(!verdict.is_known);
        self.seen.thinned += u64::from(verdict.lag_bytes.is_some_and(|bytes| bytes > 20_000));
        self.state = state;
        Ok(())
    }

    /// Who answers may serve if all are late; who does not may not, nor who has other data.
    fn check_silence(&self, state: NodeState) -> Result<(), String> {
        let now_ms = self.now_ms;
        let silence_ms = SILENCE.max(self.rules.interval * 2).as_millis() as u64;
        let slack_ms = 2 * self.latency_ms + 2 * STEP_MS;
        let is_out = matches!(state, NodeState::Out(_));
        let is_silent = self.to_node.is_cut || !self.is_up();
        let silent_ms = now_ms - self.to_node.cut_since_ms.min(now_ms);
        if is_silent && !is_out && silent_ms > silence_ms + slack_ms {
            return Err(format!(
                "the node has been silent for {silent_ms} ms, and {state:?}"
            ));
        }
        let since = self.to_node.fine_since_ms.max(self.agent_since_ms);
        let since = since.max(self.weather_since_ms);
        let is_fine = !is_silent && now_ms > since + 2 * silence_ms + slack_ms;
        let is_regular = self.loses_one_in == u64::MAX && 2 * self.latency_ms < silence_ms / 2;
        // Which timeline a node is on that does not stream is not known.
        let is_seen = self.node.streams || self.cluster.timeline == Timeline::FIRST;
        // One on a timeline before may follow later.
        let is_ours = is_seen && self.node.diverged_since_ms.is_none();
        if is_fine && is_regular && is_ours && is_out {
            return Err(format!(
                "the node answers, and {state:?}: the pool may be empty"
            ));
        }
        let follows_ms = FOLLOWS_WITHIN.as_millis() as u64;
        let both = since.max(self.to_primary.fine_since_ms);
        let diverged = self.node.diverged_since_ms.map(|at| at.max(both));
        let is_over =
            diverged.is_some_and(|at| now_ms > at + follows_ms + 2 * silence_ms + slack_ms);
        let is_known = is_fine && is_regular && !self.to_primary.is_cut && self.node.streams;
        if is_over && is_known && !is_out {
            return Err(format!("the node never follows, and {state:?}"));
        }
        Ok(())
    }

    fn check_share(&mut self, state: NodeState, share: u8) -> Result<(), String> {
        if state != NodeState::In || self.state == NodeState::In {
            return Ok(());
        }
        self.seen.entered += 1;
        self.entered_ms = self.now_ms;
        let up_ms = self.now_ms - self.node.up_since_ms.min(self.now_ms);
        let is_warm =
            !self.was_in && up_ms + self.interval_ms() * 4 >= self.rules.rise.as_millis() as u64;
        self.was_in = true;
        match is_warm || share <= 15 {
            true => Ok(()),
            false => Err(format!("a node that comes begins with {share} %")),
        }
    }
}
