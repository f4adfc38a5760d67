//! The pipeline of `extension/src/replay` with a clock of its own: how long N helpers and the startup
//! process take for records whose costs are known.
//!
//! Each process is an actor with a time; the one with the earliest time takes its next step, which
//! sees what the others have done until then. The steps and limits are those of `pipeline.c` and
//! `helper.c`: the startup process fills the queue and publishes what it has entered, retires one
//! record after the other and executes what nobody has begun; helpers claim records in fours, leave
//! some to the startup process when that comes near, wait for a record that another process executes,
//! and give back one whose predecessor nobody has begun.
//!
//! What is not simulated: caches and memory that processes share, pages that are read from disk,
//! locks of buffers, and anything else that the machine does. Each process has a core of its own.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::class::{Class, QueueSize};
use crate::costs::PipelineCosts;
use crate::job::{Job, Ticks, ticks};

/// Limits of pipeline.c and helper.c.
const AHEAD_MAX: usize = 512;
const REFILL: usize = 32;
const CLAIM: usize = 4;
const TOO_NEAR: usize = 8;
const LEAP: usize = 24;

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
    /// Waits for this record.
    blocked_on: Option<usize>,
    /// Has had nothing to do since then.
    idle_since: Option<Ticks>,
}

/// Costs in ticks.
#[derive(Debug, Clone, Copy)]
struct Prices {
    dispatch: Ticks,
    dispatch_block: Ticks,
    retire: Ticks,
    helper: Ticks,
    helper_block: Ticks,
    wait: Ticks,
    wake: Ticks,
    spin: Ticks,
    signal: Ticks,
}

impl Prices {
    fn new(costs: &PipelineCosts) -> Self {
        Self {
            dispatch: ticks(costs.dispatch_ns),
            dispatch_block: ticks(costs.dispatch_block_ns),
            retire: ticks(costs.retire_ns),
            helper: ticks(costs.helper_ns),
            helper_block: ticks(costs.helper_block_ns),
            wait: ticks(costs.wait_ns),
            wake: ticks(costs.wake_ns),
            spin: ticks(costs.spin_ns),
            signal: ticks(costs.signal_ns),
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
    prices: Prices,
    queue: u64,
    /// The startup process's time.
    now: Ticks,
    helpers: Vec<Helper>,
    /// Records that helpers executed.
    by_helpers: u64,
    /// How long the startup process waited for helpers.
    waited: Ticks,
}

/// A batch in progress.
struct Round<'a> {
    jobs: &'a [Job],
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
    pub fn new(helpers: usize, costs: &PipelineCosts, queue: QueueSize) -> Self {
        let idle = Helper {
            idle_since: Some(0),
            ..Helper::default()
        };
        Self {
            prices: Prices::new(costs),
            queue: queue.0,
            now: 0,
            helpers: vec![idle; helpers],
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
        self.now += job.read + job.redo;
    }

    /// Replays a batch. Nothing of a later batch begins before all of it has retired.
    pub fn run(&mut self, jobs: &[Job]) {
        let mut round = Round {
            jobs,
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
        let mut took = self.prices.retire;
        // Nothing was ahead: it is read now, and not for helpers.
        if round.current > round.tail {
            took += self.dispatch(round, false);
        }
        let before = round.tail;
        if round.tail - round.current < AHEAD_MAX - REFILL {
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
            let asleep = self.helpers.iter().filter(asleep).count();
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
        job.read + self.prices.dispatch + self.prices.dispatch_block * u64::from(job.blocks)
    }

    fn wake_helpers(&mut self, round: &mut Round, now: Ticks) {
        if !round.has_work() {
            return;
        }
        for (number, helper) in self.helpers.iter_mut().enumerate() {
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
                round.phase = Phase::Turn;
                round.steps.push(Reverse((on, 0)));
            }
            State::AtRetirement | State::Queued | State::Future => {
                let done = now + round.job(current).map_or(0, |job| job.redo);
                round.phase = Phase::Turn;
                round.steps.push(Reverse((done, 0)));
                self.begun(round, current, now, done);
            }
        }
    }

    /// The record is executed, and done at `done`: who waits for it knows when to go on.
    fn begun(&mut self, round: &mut Round, number: usize, now: Ticks, done: Ticks) {
        round.set(number, State::Done(done));
        let at = self.prices.goes_on(now, done);
        for (helper, one) in self.helpers.iter_mut().enumerate() {
            if one.blocked_on == Some(number) {
                one.blocked_on = None;
                round.steps.push(Reverse((at, helper + 1)));
            }
        }
        if number == round.current {
            if let Some(since) = round.blocked_since.take() {
                let at = self.prices.goes_on(since, done);
                self.waited += at - since;
                round.phase = Phase::Turn;
                round.steps.push(Reverse((at, 0)));
            }
        }
    }

    /// A helper leaves a record that it has claimed to the startup process.
    fn give_back(&mut self, round: &mut Round, number: usize, now: Ticks) {
        round.set(number, State::Queued);
        for (helper, one) in self.helpers.iter_mut().enumerate() {
            if one.blocked_on == Some(number) {
                one.blocked_on = None;
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
        let Some(helper) = self.helpers.get_mut(number) else {
            return;
        };
        if helper.claimed.len() <= CLAIM {
            round.claim(&mut helper.claimed);
        }
        let Some(&first) = helper.claimed.front() else {
            helper.idle_since = Some(now);
            return;
        };
        let Some(job) = round.job(first).copied() else {
            return;
        };
        for before in job.after {
            match round.state(before as usize) {
                _ if before as usize >= round.current => {}
                _ => continue,
            }
            match round.state(before as usize) {
                State::Done(at) if at <= now => {}
                State::Done(at) => {
                    let at = self.prices.goes_on(now, at);
                    round.steps.push(Reverse((at, number + 1)));
                    return;
                }
                State::Claimed => {
                    helper.blocked_on = Some(before as usize);
                    return;
                }
                State::Queued | State::AtRetirement | State::Future => {
                    helper.claimed.pop_front();
                    self.give_back(round, first, now);
                    round
                        .steps
                        .push(Reverse((now + self.prices.helper, number + 1)));
                    return;
                }
            }
        }
        helper.claimed.pop_front();
        self.by_helpers += 1;
        let blocks = self.prices.helper_block * u64::from(job.blocks);
        let done = now + self.prices.helper + blocks + job.redo;
        round.steps.push(Reverse((done, number + 1)));
        self.begun(round, first, now, done);
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
