//! The queue while one batch is replayed: `queue.h`, and what `dispatch.c` has entered.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::job::{Job, Ticks};
use crate::limits::{LEAP, TAKE, TELL_EVERY, TOO_NEAR, XID_SLOTS};

/// A record's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryState {
    /// Before its dispatch.
    Future,
    AtRetirement,
    Queued,
    /// A helper is about to begin it, and waits for one that it comes after.
    Claimed,
    /// Begun, and done at this time.
    Done(Ticks),
}

/// What the startup process does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The next record's turn: fill the queue.
    Turn,
    /// What was entered is published.
    Publish,
    /// Retire the current record.
    Retire,
}

/// A batch in progress.
pub(super) struct Round<'a> {
    pub jobs: &'a [Job],
    /// What each takes to be read, and for redo.
    prices: Vec<(Ticks, Ticks)>,
    /// All jobs of a transaction's slot that add tuples are done up to this one (`heap_done`).
    heap_done: Vec<u32>,
    states: Vec<EntryState>,
    /// The record whose turn it is, the last retired one that helpers know of, the last dispatched one, the
    /// last published one, the first that no helper has taken, the last barrier.
    pub current: usize,
    pub told: usize,
    pub tail: usize,
    pub published: usize,
    next: usize,
    pub barrier: usize,
    pub memory: u64,
    pub phase: Phase,
    /// The startup process waits for a helper since then.
    pub blocked_since: Option<Ticks>,
    /// Steps to come, by their time; 0 is the startup process, others are helpers.
    pub steps: BinaryHeap<Reverse<(Ticks, usize)>>,
}

impl<'a> Round<'a> {
    pub fn new(jobs: &'a [Job], prices: Vec<(Ticks, Ticks)>) -> Self {
        Self {
            jobs,
            prices,
            heap_done: vec![0; XID_SLOTS],
            states: vec![EntryState::Future; jobs.len() + 1],
            current: 0,
            told: 0,
            tail: 0,
            published: 0,
            next: 1,
            barrier: 0,
            memory: 0,
            phase: Phase::Turn,
            blocked_since: None,
            steps: BinaryHeap::new(),
        }
    }

    pub fn state(&self, number: usize) -> EntryState {
        self.states
            .get(number)
            .copied()
            .unwrap_or(EntryState::Future)
    }

    pub fn set(&mut self, number: usize, state: EntryState) {
        if let Some(place) = self.states.get_mut(number) {
            *place = state;
        }
    }

    pub fn job(&self, number: usize) -> Option<&Job> {
        self.jobs.get(number.checked_sub(1)?)
    }

    pub fn price(&self, number: usize) -> (Ticks, Ticks) {
        let price = number.checked_sub(1).and_then(|at| self.prices.get(at));
        price.copied().unwrap_or_default()
    }

    pub fn is_done(&self, number: usize, now: Ticks) -> bool {
        number < self.current || matches!(self.state(number), EntryState::Done(at) if at <= now)
    }

    /// A record that must be done before this one and is not, and its state; None: all are done
    /// (`helper_is_ready()`).
    pub fn unfinished(&mut self, number: usize, now: Ticks) -> Option<(usize, EntryState)> {
        let job = self.job(number).copied()?;
        let before = self.unfinished_heap(&job, now).or_else(|| {
            let mut before = job.after.iter().map(|before| *before as usize);
            before.find(|before| !self.is_done(*before, now))
        })?;
        Some((before, self.state(before)))
    }

    /// Does what `helper_heap_is_done()` does: the chain of the transaction's records that add tuples.
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

    /// Whether helpers learn at this record's turn how far replay is.
    pub fn is_told_now(&self) -> bool {
        self.current % TELL_EVERY == 0 || self.current >= self.tail
    }

    /// Whether there are records to be taken.
    pub fn has_work(&self) -> bool {
        self.next.max(self.told + LEAP) <= self.published
    }

    /// The next records for a helper (`take_more()`).
    pub fn take(&mut self, taken: &mut VecDeque<usize>) {
        let mut first = self.next;
        if first < self.told + TOO_NEAR {
            first = self.told + LEAP;
        }
        if first > self.published {
            return;
        }
        let end = (first + TAKE).min(self.published + 1);
        self.next = end;
        taken.extend((first..end).filter(|number| self.state(*number) == EntryState::Queued));
    }

    /// False: another process has had it first.
    pub fn claim(&mut self, number: usize) -> bool {
        let is_free = self.state(number) == EntryState::Queued;
        if is_free {
            self.set(number, EntryState::Claimed);
        }
        is_free
    }
}
