//! The pipeline of `extension/src/replay` with a clock of its own: how long N helpers and the startup
//! process take for records whose costs are known.
//!
//! Each process is an actor with a time; the one with the earliest time takes its next step, which
//! sees what the others have done until then. The steps and limits are those of `pipeline.c` and
//! `helper.c`: the startup process fills the queue and publishes what it has entered, retires one
//! record after the other and executes what nobody has begun; helpers claim records in fours, leave
//! some to the startup process when that comes near, wait for a record that another process executes,
//! and give back one whose predecessor nobody has begun. In hot standby they wait for no longer than a
//! record usually takes, and rest where they find too little to do (`helper_rule.c`).
//!
//! What is not simulated: caches and memory that processes share, pages that are read from disk,
//! locks of buffers, and anything else that the machine does. Each process has a core of its own.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::class::{Class, QueueSize, Stage};
use crate::costs::{Costs, PipelineCosts};
use crate::job::{Job, Ticks, XID_SLOTS, ticks};

/// Limits of pipeline.c, helper.c and helper_rule.c.
const AHEAD_MAX: usize = 512;
const REFILL: usize = 32;
const CLAIM: usize = 4;
const TOO_NEAR: usize = 8;
const LEAP: usize = 24;
const WINDOW: u64 = 8192;
const MIN_SHARE: u64 = 4;
const REST: u64 = 256 * 1024;
const HOLD: u32 = 64;

/// A record's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not dispatched.
    Future,
    AtRetirement,
    Queued,
    /// A helper has it and has not begun.
    Claimed,
    /// Begun, and done at this time.
    Done(Ticks),
}

/// What the startup process does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The next record's turn: fill the queue.
    Turn,
    /// What was entered is published.
    Publish,
    /// Retire the current record.
    Retire,
}

#[derive(Debug, Clone, Default)]
struct Helper {
    claimed: VecDeque<usize>,
    /// Waits for this record, since then.
    blocked_on: Option<(usize, Ticks)>,
    /// It has waited for too long, and gives the record back.
    gives_up: bool,
    /// Has had nothing to do since then.
    idle_since: Option<Ticks>,
}

/// Costs in ticks.
#[derive(Debug, Clone, Copy)]
struct Prices {
    look_ahead: Ticks,
    dispatch: Ticks,
    dispatch_block: Ticks,
    retire: Ticks,
    helper: Ticks,
    helper_block: Ticks,
    wait: Ticks,
    wake: Ticks,
    spin: Ticks,
    signal: Ticks,
    point: Ticks,
}

impl Prices {
    fn new(costs: &PipelineCosts) -> Self {
        Self {
            look_ahead: ticks(costs.look_ahead_ns),
            dispatch: ticks(costs.dispatch_ns),
            dispatch_block: ticks(costs.dispatch_block_ns),
            retire: ticks(costs.retire_ns),
            helper: ticks(costs.helper_ns),
            helper_block: ticks(costs.helper_block_ns),
            wait: ticks(costs.wait_ns),
            wake: ticks(costs.wake_ns),
            spin: ticks(costs.spin_ns),
            signal: ticks(costs.signal_ns),
            point: ticks(costs.point_ns),
        }
    }

    /// When a process goes on that waits since `from` for what happens at `at`.
    fn goes_on(&self, from: Ticks, at: Ticks) -> Ticks {
        match at.saturating_sub(from) > self.spin {
            true => at + self.wake,
            false => at + self.wait,
        }
    }
}

/// One number of helpers.
#[derive(Debug)]
pub struct Simulation {
    costs: Costs,
    prices: Prices,
    queue: u64,
    is_hot: bool,
    /// The startup process's time.
    now: Ticks,
    helpers: Vec<Helper>,
    watch: Watch,
    /// Records that helpers executed.
    by_helpers: u64,
    /// How long the startup process waited for helpers.
    waited: Ticks,
}

/// What helpers do in a window of records: `helper_count.c`, `helper_rule.c`.
#[derive(Debug, Default)]
struct Watch {
    /// Helpers that take records, the first ones.
    used: usize,
    hold: u32,
    records: u64,
    /// Done by a helper when their turn came.
    done: u64,
    given_back: u64,
    /// Records until helpers are tried again.
    rest: u64,
}

impl Watch {
    /// A record was retired.
    fn count(&mut self, by_helper: bool, helpers: usize, is_hot: bool) {
        self.done += u64::from(by_helper);
        self.records += 1;
        if self.records < WINDOW {
            return;
        }
        self.hold = self.hold.saturating_sub(1);
        if self.given_back > self.done && self.used > 1 {
            self.used -= 1;
            self.hold = HOLD;
        } else if self.used < helpers && self.hold == 0 {
            self.used += 1;
        }
        if is_hot && self.done < WINDOW / MIN_SHARE {
            self.rest = REST;
        }
        (self.records, self.done, self.given_back) = (0, 0, 0);
    }
}

/// A batch in progress.
struct Round<'a> {
    jobs: &'a [Job],
    /// What each takes to be read, and for redo.
    prices: Vec<(Ticks, Ticks)>,
    /// All jobs of a transaction's slot that add tuples are done up to this one (`heap_done`).
    heap_done: Vec<u32>,
    states: Vec<State>,
    /// The record whose turn it is, the last dispatched one, the last published one, the first that no
    /// helper has claimed, the last barrier.
    current: usize,
    tail: usize,
    published: usize,
    next: usize,
    barrier: usize,
    memory: u64,
    phase: Phase,
    /// The startup process waits for a helper since then.
    blocked_since: Option<Ticks>,
    /// Steps to come, by their time; 0 is the startup process, others are helpers.
    steps: BinaryHeap<Reverse<(Ticks, usize)>>,
}

impl Simulation {
    pub fn new(helpers: usize, costs: &Costs, queue: QueueSize, stage: Stage) -> Self {
        let idle = Helper {
            idle_since: Some(0),
            ..Helper::default()
        };
        Self {
            prices: Prices::new(&costs.pipeline),
            costs: costs.clone(),
            queue: queue.0,
            is_hot: stage == Stage::HotStandby,
            now: 0,
            helpers: vec![idle; helpers],
            watch: Watch {
                used: helpers,
                ..Watch::default()
            },
            by_helpers: 0,
            waited: 0,
        }
    }

    pub fn helpers(&self) -> usize {
        self.helpers.len()
    }

    /// Time so far, in seconds.
    pub fn seconds(&self) -> f64 {
        self.now as f64 / 1e10
    }

    pub fn waited_seconds(&self) -> f64 {
        self.waited as f64 / 1e10
    }

    pub fn by_helpers(&self) -> u64 {
        self.by_helpers
    }

    /// The startup process executes the record alone: there are no helpers yet.
    pub fn alone(&mut self, job: &Job) {
        let (read, redo) = self.price(job);
        self.now += read + redo + self.prices.look_ahead;
    }

    fn price(&self, job: &Job) -> (Ticks, Ticks) {
        let priced = self.costs.of(&job.work);
        (ticks(priced.read_ns), ticks(priced.redo_ns))
    }

    /// Replays a batch. Nothing of a later batch begins before all of it has retired.
    pub fn run(&mut self, jobs: &[Job]) {
        if self.helpers.is_empty() {
            jobs.iter().for_each(|job| self.alone(job));
            return;
        }
        if self.is_hot && self.watch.rest == 0 {
            self.now += self.prices.point;
        }
        let mut round = Round {
            jobs,
            prices: jobs.iter().map(|job| self.price(job)).collect(),
            heap_done: vec![0; XID_SLOTS],
            states: vec![State::Future; jobs.len() + 1],
            current: 0,
            tail: 0,
            published: 0,
            next: 1,
            barrier: 0,
            memory: 0,
            phase: Phase::Turn,
            blocked_since: None,
            steps: BinaryHeap::new(),
        };
        round.steps.push(Reverse((self.now, 0)));
        while let Some(Reverse((now, actor))) = round.steps.pop() {
            match actor.checked_sub(1) {
                Some(helper) => self.helper_step(&mut round, helper, now),
                None if self.startup_step(&mut round, now) => {}
                None => {
                    self.now = now;
                    break;
                }
            }
        }
        // Those that have just executed their last record have nothing to do either.
        for helper in &mut self.helpers {
            helper.idle_since = helper.idle_since.or(Some(self.now));
        }
    }

    /// False: all are retired.
    fn startup_step(&mut self, round: &mut Round, now: Ticks) -> bool {
        match round.phase {
            Phase::Turn => match round.current == round.jobs.len() {
                true => return false,
                false => self.turn(round, now),
            },
            Phase::Publish => {
                round.published = round.tail;
                self.wake_helpers(round, now);
                self.retire(round, now);
            }
            Phase::Retire => self.retire(round, now),
        }
        true
    }

    /// The next record's turn: what fits is dispatched behind it.
    fn turn(&mut self, round: &mut Round, now: Ticks) {
        if let Some(retired) = round
            .current
            .checked_sub(1)
            .and_then(|at| round.jobs.get(at))
        {
            round.memory = round.memory.saturating_sub(retired.memory);
        }
        round.current += 1;
        let rests = self.watch.rest > 0;
        let dry = round.current > round.tail;
        let mut took = self.prices.retire;
        // Nothing was ahead: it is read now, and not for helpers.
        if dry {
            took += self.dispatch(round, false);
        }
        if rests {
            self.watch.rest -= 1;
            if dry {
                took = round.price(round.current).0 + self.prices.look_ahead;
            }
        }
        let before = round.tail;
        if !rests && round.tail - round.current < AHEAD_MAX - REFILL {
            while round.tail - round.current < AHEAD_MAX && round.barrier < round.current {
                let next = round.jobs.get(round.tail);
                if next.is_none_or(|next| round.memory + next.needs > self.queue) {
                    break;
                }
                took += self.dispatch(round, true);
            }
        }
        if round.tail > before {
            let asleep = |helper: &&Helper| {
                let since = helper.idle_since;
                since.is_some_and(|since| now.saturating_sub(since) > self.prices.spin)
            };
            let used = self.helpers.iter().take(self.watch.used);
            let asleep = used.filter(asleep).count();
            took += self.prices.signal * asleep as u64;
        }
        round.phase = Phase::Publish;
        round.steps.push(Reverse((now + took, 0)));
    }

    /// Enters the record behind the tail, and returns what that takes.
    fn dispatch(&self, round: &mut Round, may_run_ahead: bool) -> Ticks {
        let Some(job) = round.jobs.get(round.tail) else {
            return 0;
        };
        round.tail += 1;
        round.memory += job.memory;
        if matches!(job.class, Class::Barrier(_)) {
            round.barrier = round.tail;
        }
        let state = match job.class == Class::Ahead && may_run_ahead {
            true => State::Queued,
            false => State::AtRetirement,
        };
        round.set(round.tail, state);
        let read = round.price(round.tail).0;
        read + self.prices.dispatch + self.prices.dispatch_block * u64::from(job.blocks)
    }

    fn wake_helpers(&mut self, round: &mut Round, now: Ticks) {
        if !round.has_work() {
            return;
        }
        let used = self.helpers.iter_mut().take(self.watch.used);
        for (number, helper) in used.enumerate() {
            if let Some(since) = helper.idle_since.take() {
                let at = self.prices.goes_on(since, now);
                round.steps.push(Reverse((at, number + 1)));
            }
        }
    }

    fn retire(&mut self, round: &mut Round, now: Ticks) {
        let current = round.current;
        match round.state(current) {
            State::Claimed => {
                round.phase = Phase::Retire;
                round.blocked_since = Some(now);
            }
            State::Done(at) => {
                let on = match at > now {
                    true => self.prices.goes_on(now, at),
                    false => now,
                };
                self.waited += on - now;
                self.retired(true);
                round.phase = Phase::Turn;
                round.steps.push(Reverse((on, 0)));
            }
            State::AtRetirement | State::Queued | State::Future => {
                let done = now + round.price(current).1;
                self.retired(false);
                round.phase = Phase::Turn;
                round.steps.push(Reverse((done, 0)));
                self.begun(round, current, now, done);
            }
        }
    }

    fn retired(&mut self, by_helper: bool) {
        self.watch.count(by_helper, self.helpers.len(), self.is_hot);
    }

    /// When a helper goes on that waits since `from` for a record that is done at `done`, and whether it
    /// gives up waiting then. It never sleeps meanwhile.
    fn helper_goes_on(&self, from: Ticks, done: Ticks) -> (Ticks, bool) {
        match self.is_hot && done.saturating_sub(from) > self.prices.spin {
            true => (from + self.prices.spin, true),
            false => (done + self.prices.wait, false),
        }
    }

    /// The record is executed, and done at `done`: who waits for it knows when to go on.
    fn begun(&mut self, round: &mut Round, number: usize, now: Ticks, done: Ticks) {
        round.set(number, State::Done(done));
        for helper in 0..self.helpers.len() {
            let Some(since) = self.take_blocked(helper, number) else {
                continue;
            };
            let (at, gives_up) = self.helper_goes_on(since, done);
            if let Some(one) = self.helpers.get_mut(helper) {
                one.gives_up = gives_up;
            }
            round.steps.push(Reverse((at.max(now), helper + 1)));
        }
        if number == round.current {
            if let Some(since) = round.blocked_since.take() {
                let at = self.prices.goes_on(since, done);
                self.waited += at - since;
                self.retired(true);
                round.phase = Phase::Turn;
                round.steps.push(Reverse((at, 0)));
            }
        }
    }

    /// Since when the helper waits for this record; it does no more.
    fn take_blocked(&mut self, helper: usize, number: usize) -> Option<Ticks> {
        let one = self.helpers.get_mut(helper)?;
        let (_, since) = one.blocked_on.take_if(|(on, _)| *on == number)?;
        Some(since)
    }

    /// A helper leaves a record that it has claimed to the startup process.
    fn give_back(&mut self, round: &mut Round, number: usize, now: Ticks) {
        round.set(number, State::Queued);
        self.watch.given_back += 1;
        for helper in 0..self.helpers.len() {
            if self.take_blocked(helper, number).is_some() {
                round.steps.push(Reverse((now, helper + 1)));
            }
        }
        if number == round.current {
            if let Some(since) = round.blocked_since.take() {
                self.waited += now - since;
                round.steps.push(Reverse((now, 0)));
            }
        }
    }

    fn helper_step(&mut self, round: &mut Round, number: usize, now: Ticks) {
        let is_used = number < self.watch.used;
        let Some(helper) = self.helpers.get_mut(number) else {
            return;
        };
        if helper.claimed.len() <= CLAIM && is_used {
            round.claim(&mut helper.claimed);
        }
        let Some(&first) = helper.claimed.front() else {
            helper.idle_since = Some(now);
            return;
        };
        let Some(job) = round.job(first).copied() else {
            return;
        };
        let gives_up = std::mem::take(&mut helper.gives_up);
        let before = match gives_up {
            true => Some(State::Queued),
            false => round.unfinished(&job, now, &mut helper.blocked_on),
        };
        match before {
            None => {
                helper.claimed.pop_front();
                self.by_helpers += 1;
                let blocks = self.prices.helper_block * u64::from(job.blocks);
                let done = now + self.prices.helper + blocks + round.price(first).1;
                round.steps.push(Reverse((done, number + 1)));
                self.begun(round, first, now, done);
            }
            Some(State::Done(done)) => {
                let (at, gives_up) = self.helper_goes_on(now, done);
                if let Some(helper) = self.helpers.get_mut(number) {
                    helper.gives_up = gives_up;
                }
                round.steps.push(Reverse((at, number + 1)));
            }
            // It goes on when that record has begun or is given back.
            Some(State::Claimed) => {}
            Some(State::Queued | State::AtRetirement | State::Future) => {
                helper.claimed.pop_front();
                self.give_back(round, first, now);
                let at = now + self.prices.helper;
                round.steps.push(Reverse((at, number + 1)));
            }
        }
    }
}

impl Round<'_> {
    fn state(&self, number: usize) -> State {
        self.states.get(number).copied().unwrap_or(State::Future)
    }

    fn set(&mut self, number: usize, state: State) {
        if let Some(place) = self.states.get_mut(number) {
            *place = state;
        }
    }

    fn job(&self, number: usize) -> Option<&Job> {
        self.jobs.get(number.checked_sub(1)?)
    }

    fn price(&self, number: usize) -> (Ticks, Ticks) {
        let price = number.checked_sub(1).and_then(|at| self.prices.get(at));
        price.copied().unwrap_or_default()
    }

    /// The state of a record that must be done before a job and is not; None: all are. One that is
    /// claimed by another helper is noted as what blocks this one.
    fn unfinished(
        &mut self,
        job: &Job,
        now: Ticks,
        blocked_on: &mut Option<(usize, Ticks)>,
    ) -> Option<State> {
        let before = self.unfinished_heap(job, now).or_else(|| {
            let mut before = job.after.iter().map(|before| *before as usize);
            before.find(|before| !self.is_done(*before, now))
        })?;
        let state = self.state(before);
        if state == State::Claimed {
            *blocked_on = Some((before, now));
        }
        Some(state)
    }

    fn is_done(&self, number: usize, now: Ticks) -> bool {
        number < self.current || matches!(self.state(number), State::Done(at) if at <= now)
    }

    /// As `heap_is_done()` in helper.c: the chain of the transaction's records that add tuples.
    fn unfinished_heap(&mut self, job: &Job, now: Ticks) -> Option<usize> {
        if !job.after_heap {
            return None;
        }
        let slot = usize::from(job.xid_slot);
        let known = self.heap_done.get(slot).copied().unwrap_or_default();
        let mut before = job.heap_before;
        while before > known && before as usize >= self.current {
            if !self.is_done(before as usize, now) {
                return Some(before as usize);
            }
            before = self.job(before as usize).map_or(0, |job| job.heap_before);
        }
        if let Some(done) = self.heap_done.get_mut(slot) {
            *done = job.heap_before.max(known);
        }
        None
    }

    fn retired(&self) -> usize {
        self.current.saturating_sub(1)
    }

    fn has_work(&self) -> bool {
        self.next.max(self.retired() + LEAP) <= self.published
    }

    /// The next records for a helper.
    fn claim(&mut self, claimed: &mut VecDeque<usize>) {
        let mut first = self.next;
        if first < self.retired() + TOO_NEAR {
            first = self.retired() + LEAP;
        }
        if first > self.published {
            return;
        }
        let end = (first + CLAIM).min(self.published + 1);
        self.next = end;
        for number in first..end {
            if self.state(number) == State::Queued {
                self.set(number, State::Claimed);
                claimed.push_back(number);
            }
        }
    }
}
