//! A helper's steps: `helper.c`.
//!
//! A helper takes records, and claims and executes one after the other; what another process had first
//! counts as given back. One whose predecessor nobody has begun it remembers and leaves to whoever comes
//! first; it tries what it remembers again, in the order of the WAL, after some other records and, while it
//! waits for work, when it is told how far replay is or the first one's predecessor is done. To look at one
//! whose predecessor is still not done is taken to cost nothing.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::Simulation;
use super::round::{EntryState, Round};
use crate::job::Ticks;
use crate::limits::{AGAIN, TAKE, TOO_NEAR, TRY_EVERY};

/// A helper that remembers so many records takes no more of them.
const MANY: usize = AGAIN - TAKE * 2;

#[derive(Debug, Clone, Default)]
pub(super) struct Helper {
    taken: VecDeque<usize>,
    /// Records given back, in the order of the WAL, and earlier than what is taken.
    again: Vec<GivenBack>,
    /// What it knew to be retired when they were last tried.
    tried_at: usize,
    /// Turns of its loop while it remembered some.
    turns: u64,
    doing: Doing,
    /// Waits for this record, since then.
    blocked_on: Option<(usize, Ticks)>,
    /// Record that the helper has waited for too long.
    gives_up: Option<usize>,
    /// Has had nothing to do since then (`wait_for_work()`).
    pub idle_since: Option<Ticks>,
    /// When its next step is. Others of its steps that are in the queue count no more.
    next_step: Option<Ticks>,
}

/// A record that was given back, and what it comes after.
#[derive(Debug, Clone, Copy)]
struct GivenBack {
    number: usize,
    after: usize,
}

/// Where a helper is in `work()`.
#[derive(Debug, Clone, Copy, Default)]
enum Doing {
    /// A turn of the loop begins.
    #[default]
    Begin,
    /// `execute_next()`: the first of what it has taken.
    Record {
        /// The helper has claimed it, and waits for another process.
        holds: bool,
    },
    /// The turn ends.
    End,
    /// `helper_try_again()`.
    Tries(Tries),
}

#[derive(Debug, Clone, Copy)]
struct Tries {
    /// Which of those that are remembered comes next.
    at: usize,
    /// The helper has claimed that one, and waits for another process.
    holds: bool,
    /// What it knew to be retired when the tries began.
    retired: usize,
    /// The helper has nothing else to do since then.
    idle_since: Option<Ticks>,
    executed: bool,
}

/// Whether a record may be executed.
enum Ready {
    Yes,
    /// Whether it may is known later, and the helper waits.
    Later,
    /// The record comes after this one, which nobody has begun.
    After(usize),
}

impl Helper {
    pub fn new() -> Self {
        Self {
            idle_since: Some(0),
            ..Self::default()
        }
    }

    fn has_work(&self, round: &Round) -> bool {
        self.again.len() < MANY && round.has_work()
    }

    /// Whether the helper is in `wait_for_work()` and sleeps.
    pub fn is_asleep(&self, now: Ticks, spin: Ticks) -> bool {
        self.idle_since
            .is_some_and(|since| now.saturating_sub(since) > spin)
    }

    /// All records are retired. Returns how many of those that it took others have executed.
    pub fn end_batch(&mut self, now: Ticks) -> u64 {
        let given_back = (self.taken.len() + self.again.len()) as u64;
        *self = Self {
            idle_since: self.idle_since.or(Some(now)),
            turns: self.turns,
            ..Self::default()
        };
        given_back
    }

    /// The predecessor of the first record that it remembers.
    fn first_after(&self) -> Option<usize> {
        self.again.first().map(|first| first.after)
    }

    /// Whether the helper was told something since it tried, or the first record may begin.
    fn others_went_on(&self, round: &Round, now: Ticks) -> bool {
        self.first_after()
            .is_some_and(|after| self.tried_at != round.told || round.is_done(after, now))
    }

    fn tries(&mut self, retired: usize, idle_since: Option<Ticks>) {
        self.tried_at = retired;
        self.doing = Doing::Tries(Tries {
            at: 0,
            holds: false,
            retired,
            idle_since,
            executed: false,
        });
    }
}

impl Simulation {
    fn schedule(&mut self, round: &mut Round, number: usize, at: Ticks) {
        if let Some(helper) = self.helpers.get_mut(number) {
            helper.next_step = Some(at);
            round.steps.push(Reverse((at, number + 1)));
        }
    }

    /// A helper that has nothing to do looks at what it remembers at that time, if it does not sleep then.
    fn look_again(&mut self, round: &mut Round, number: usize, at: Ticks) {
        let spin = self.prices.spin;
        let Some(helper) = self.helpers.get(number) else {
            return;
        };
        let earliest = helper.next_step.is_none_or(|next| at < next);
        if earliest && helper.idle_since.is_some() && !helper.is_asleep(at, spin) {
            self.schedule(round, number, at);
        }
    }

    /// One turn of the loop in `wait_for_work()`; true: it tries what it remembers.
    fn try_while_idle(
        &mut self,
        round: &mut Round,
        number: usize,
        since: Ticks,
        now: Ticks,
    ) -> bool {
        let Some(helper) = self.helpers.get_mut(number) else {
            return false;
        };
        if helper.others_went_on(round, now) {
            helper.idle_since = None;
            helper.tries(round.told, Some(since));
            return true;
        }
        helper.idle_since = Some(since);
        helper.doing = Doing::Begin;
        let after = helper.first_after();
        if let Some(EntryState::Done(at)) = after.map(|after| round.state(after)) {
            self.look_again(round, number, at + self.prices.wait);
        }
        false
    }

    /// What was entered is published: those that sleep are woken, others see it if it is for them.
    pub(super) fn wake_helpers(&mut self, round: &mut Round, now: Ticks) {
        for number in 0..self.watch.used {
            let Some(helper) = self.helpers.get_mut(number) else {
                return;
            };
            let Some(since) = helper.idle_since else {
                continue;
            };
            if helper.is_asleep(now, self.prices.spin) || helper.has_work(round) {
                helper.idle_since = None;
                helper.doing = Doing::End;
                let at = self.prices.goes_on(since, now);
                self.schedule(round, number, at);
            }
        }
    }

    /// Helpers learn how far replay is (`tell_retired()`).
    pub(super) fn tell(&mut self, round: &mut Round, now: Ticks) {
        let retired = round.current.saturating_sub(1);
        if round.told == retired {
            return;
        }
        round.told = retired;
        for number in 0..self.helpers.len() {
            let helper = self.helpers.get(number);
            if helper.is_some_and(|helper| !helper.again.is_empty()) {
                self.look_again(round, number, now + self.prices.wait);
            }
        }
    }

    /// The record is being executed, and done at `done`: helpers that wait for it know when to go on, and
    /// idle ones whose first record comes after it.
    pub(super) fn helpers_go_on(
        &mut self,
        round: &mut Round,
        record: usize,
        now: Ticks,
        done: Ticks,
    ) {
        for number in 0..self.helpers.len() {
            let Some(since) = self.take_blocked(number, record) else {
                let helper = self.helpers.get(number);
                if helper.and_then(Helper::first_after) == Some(record) {
                    self.look_again(round, number, done + self.prices.wait);
                }
                continue;
            };
            let (at, gives_up) = self.helper_goes_on(since, done);
            if let Some(helper) = self.helpers.get_mut(number) {
                helper.gives_up = gives_up.then_some(record);
            }
            self.schedule(round, number, at.max(now));
        }
    }

    /// When a helper goes on that waits since `from` for a record that is done at `done`, and whether it
    /// gives up waiting then. It never sleeps meanwhile.
    fn helper_goes_on(&self, from: Ticks, done: Ticks) -> (Ticks, bool) {
        match self.is_hot && done.saturating_sub(from) > self.prices.spin {
            true => (from + self.prices.spin, true),
            false => (done + self.prices.wait, false),
        }
    }

    /// Since when the helper waits for this record; it does no more.
    fn take_blocked(&mut self, helper: usize, record: usize) -> Option<Ticks> {
        let one = self.helpers.get_mut(helper)?;
        let (_, since) = one.blocked_on.take_if(|(on, _)| *on == record)?;
        Some(since)
    }

    /// A helper claims the record no more, without having begun it.
    fn release(&mut self, round: &mut Round, record: usize, now: Ticks) {
        round.set(record, EntryState::Queued);
        for number in 0..self.helpers.len() {
            if self.take_blocked(number, record).is_some() {
                self.schedule(round, number, now);
            }
        }
        if record == round.current {
            if let Some(since) = round.blocked_since.take() {
                self.waited += now - since;
                round.steps.push(Reverse((now, 0)));
            }
        }
    }

    pub(super) fn helper_step(&mut self, round: &mut Round, number: usize, now: Ticks) {
        let is_used = number < self.watch.used;
        let Some(helper) = self.helpers.get_mut(number) else {
            return;
        };
        if helper.next_step.take_if(|at| *at == now).is_none() {
            return;
        }
        if let Some(since) = helper.idle_since {
            if is_used && helper.has_work(round) {
                helper.idle_since = None;
                helper.doing = Doing::End;
            } else if !self.try_while_idle(round, number, since, now) {
                return;
            }
        }
        while self.goes_on_at_once(round, number, now) {}
    }

    /// One step; true: the next one takes no time.
    fn goes_on_at_once(&mut self, round: &mut Round, number: usize, now: Ticks) -> bool {
        let Some(helper) = self.helpers.get_mut(number) else {
            return false;
        };
        match helper.doing {
            Doing::Begin => self.begin_turn(round, number, now),
            Doing::Record { holds } => self.execute_next(round, number, holds, now),
            Doing::End => {
                helper.doing = Doing::Begin;
                if !helper.again.is_empty() {
                    helper.turns += 1;
                    if helper.turns % TRY_EVERY == 0 {
                        helper.tries(round.told, None);
                    }
                }
                true
            }
            Doing::Tries(tries) => self.try_once_more(round, number, tries, now),
        }
    }

    fn begin_turn(&mut self, round: &mut Round, number: usize, now: Ticks) -> bool {
        let is_used = number < self.watch.used;
        let Some(helper) = self.helpers.get_mut(number) else {
            return false;
        };
        if helper.taken.len() <= TAKE && is_used && helper.has_work(round) {
            round.take(&mut helper.taken);
            if helper.taken.is_empty() {
                // None of these was for helpers.
                helper.doing = Doing::End;
                self.schedule(round, number, now + self.prices.helper);
                return false;
            }
        }
        if helper.taken.is_empty() {
            return self.try_while_idle(round, number, now, now);
        }
        helper.doing = Doing::Record { holds: false };
        true
    }

    fn execute_next(&mut self, round: &mut Round, number: usize, holds: bool, now: Ticks) -> bool {
        let Some(helper) = self.helpers.get_mut(number) else {
            return false;
        };
        let Some(&record) = helper.taken.front() else {
            return false;
        };
        if !holds && !round.claim(record) {
            helper.taken.pop_front();
            helper.doing = Doing::End;
            self.watch.given_back += 1;
            self.schedule(round, number, now + self.prices.helper);
            return false;
        }
        let ready = self.is_ready(round, number, record, now);
        let Some(helper) = self.helpers.get_mut(number) else {
            return false;
        };
        if matches!(ready, Ready::Later) {
            helper.doing = Doing::Record { holds: true };
            return false;
        }
        helper.taken.pop_front();
        helper.doing = Doing::End;
        if let Ready::After(after) = ready {
            helper.again.push(GivenBack {
                number: record,
                after,
            });
            self.release(round, record, now);
            self.schedule(round, number, now + self.prices.helper);
        } else {
            self.execute(round, number, record, now);
        }
        false
    }

    /// Whether a record that the helper has claimed may be executed.
    fn is_ready(&mut self, round: &mut Round, number: usize, record: usize, now: Ticks) -> Ready {
        let Some(helper) = self.helpers.get_mut(number) else {
            return Ready::Later;
        };
        if let Some(after) = helper.gives_up.take() {
            return Ready::After(after);
        }
        match round.unfinished(record, now) {
            None => Ready::Yes,
            Some((before, EntryState::Done(done))) => {
                let (at, gives_up) = self.helper_goes_on(now, done);
                if let Some(helper) = self.helpers.get_mut(number) {
                    helper.gives_up = gives_up.then_some(before);
                }
                self.schedule(round, number, at);
                Ready::Later
            }
            // It goes on when that record has begun or is given back.
            Some((before, EntryState::Claimed)) => {
                helper.blocked_on = Some((before, now));
                Ready::Later
            }
            Some((before, _)) => Ready::After(before),
        }
    }

    fn execute(&mut self, round: &mut Round, number: usize, record: usize, now: Ticks) {
        self.by_helpers += 1;
        let blocks = round.job(record).map_or(0, |job| u64::from(job.blocks));
        let found = self.prices.helper + self.prices.helper_block * blocks;
        let done = now + found + round.price(record).1;
        self.schedule(round, number, done);
        self.begun(round, record, now, done);
    }

    /// The next of the records that are tried again. What the startup process has begun, or is about to,
    /// is left to it.
    fn try_once_more(
        &mut self,
        round: &mut Round,
        number: usize,
        mut tries: Tries,
        now: Ticks,
    ) -> bool {
        let Some(helper) = self.helpers.get_mut(number) else {
            return false;
        };
        let Some(&one) = helper.again.get(tries.at) else {
            return self.end_tries(round, number, tries, now);
        };
        let is_near = one.number < tries.retired + TOO_NEAR;
        if !tries.holds && !is_near && !round.is_done(one.after, now) {
            tries.at += 1;
            helper.doing = Doing::Tries(tries);
            return true;
        }
        if !tries.holds && (is_near || !round.claim(one.number)) {
            helper.again.remove(tries.at);
            self.watch.given_back += 1;
            return true;
        }
        let ready = self.is_ready(round, number, one.number, now);
        let Some(helper) = self.helpers.get_mut(number) else {
            return false;
        };
        tries.holds = matches!(ready, Ready::Later);
        match ready {
            Ready::Later => helper.doing = Doing::Tries(tries),
            Ready::Yes => {
                helper.again.remove(tries.at);
                tries.executed = true;
                helper.doing = Doing::Tries(tries);
                self.execute(round, number, one.number, now);
            }
            Ready::After(after) => {
                if let Some(place) = helper.again.get_mut(tries.at) {
                    place.after = after;
                }
                tries.at += 1;
                helper.doing = Doing::Tries(tries);
                self.release(round, one.number, now);
                self.schedule(round, number, now + self.prices.helper);
            }
        }
        false
    }

    fn end_tries(&mut self, round: &mut Round, number: usize, tries: Tries, now: Ticks) -> bool {
        let is_used = number < self.watch.used;
        let Some(helper) = self.helpers.get_mut(number) else {
            return false;
        };
        helper.doing = Doing::Begin;
        let Some(since) = tries.idle_since else {
            return true;
        };
        if tries.executed || is_used && helper.has_work(round) {
            helper.doing = Doing::End;
            return true;
        }
        if helper.others_went_on(round, now) {
            // While it looked.
            helper.idle_since = Some(since);
            self.look_again(round, number, now + self.prices.wait);
            return false;
        }
        self.try_while_idle(round, number, since, now)
    }
}
