//! The pipeline of `extension/src/replay` with a clock of its own: how long N helpers and the startup
//! process take for records whose costs are known.
//!
//! Each process is an actor with a time; the one with the earliest time takes its next step, which
//! sees what the others have done until then. The steps and limits are those of `pipeline.c` and
//! `helper.c`, the limits by a test: the startup process fills the queue and publishes what it has entered,
//! retires one record after the other and executes what nobody has begun; helpers take some records at
//! once and claim each when they begin it, leave some to the startup process when that comes near, wait for
//! a record that another process executes, and give back one whose predecessor nobody has begun, to try it
//! again later. They learn only now and then how far the startup process is. In hot standby
//! they wait for no longer than a record usually takes, and rest where they find too little to do
//! (`helper_rule.c`).
//!
//! What is not simulated: caches and memory that processes share, pages that are read from disk,
//! locks of buffers, and anything else that the machine does. Each process has a core of its own.

mod helper;
mod round;
mod watch;

use std::cmp::Reverse;

use crate::class::{Class, QueueSize, Stage};
use crate::costs::{Costs, PipelineCosts};
use crate::job::{Job, Ticks, ticks};
use crate::limits::{AHEAD_MAX, REFILL};
use helper::Helper;
use round::{EntryState, Phase, Round};
use watch::Watch;

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

impl Simulation {
    pub fn new(helpers: usize, costs: &Costs, queue: QueueSize, stage: Stage) -> Self {
        Self {
            prices: Prices::new(&costs.pipeline),
            costs: costs.clone(),
            queue: queue.0,
            is_hot: stage == Stage::HotStandby,
            now: 0,
            helpers: vec![Helper::new(); helpers],
            watch: Watch::new(helpers),
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
        let prices = jobs.iter().map(|job| self.price(job)).collect();
        let mut round = Round::new(jobs, prices);
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
        for helper in &mut self.helpers {
            self.watch.given_back += helper.end_batch(self.now);
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
        if round.is_told_now() {
            self.tell(round, now);
        }
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
            let used = self.helpers.iter().take(self.watch.used);
            let asleep = used.filter(|helper| helper.is_asleep(now, self.prices.spin));
            let asleep = asleep.count();
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
            true => EntryState::Queued,
            false => EntryState::AtRetirement,
        };
        round.set(round.tail, state);
        let read = round.price(round.tail).0;
        read + self.prices.dispatch + self.prices.dispatch_block * u64::from(job.blocks)
    }

    fn retire(&mut self, round: &mut Round, now: Ticks) {
        let current = round.current;
        match round.state(current) {
            EntryState::Claimed => {
                round.phase = Phase::Retire;
                round.blocked_since = Some(now);
                self.tell(round, now);
            }
            EntryState::Done(at) => {
                let on = match at > now {
                    true => {
                        self.tell(round, now);
                        self.prices.goes_on(now, at)
                    }
                    false => now,
                };
                self.waited += on - now;
                self.retired(true);
                round.phase = Phase::Turn;
                round.steps.push(Reverse((on, 0)));
            }
            EntryState::AtRetirement | EntryState::Queued | EntryState::Future => {
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

    /// The record is executed, and done at `done`: who waits for it knows when to go on.
    fn begun(&mut self, round: &mut Round, number: usize, now: Ticks, done: Ticks) {
        round.set(number, EntryState::Done(done));
        self.helpers_go_on(round, number, now, done);
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
}
