//! The published position: what a primary's flush position is to its walsenders.
//!
//! One thread moves it, every millisecond, always to the end of a record, and writes down
//! when. Sessions read it without a lock and wait for its moves.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::progress::{Micros, Sample};
use lockstep_wire::Lsn;

use super::pace::Schedule;
use super::segment::{PAGE, SegmentReader};
use super::{Pace, Recording};

/// How often the position moves.
const TICK: Duration = Duration::from_millis(1);

/// Every how many ticks a sample is kept.
const TICKS_A_SAMPLE: u64 = 2;

/// Most samples kept, the newest: over an hour.
const MOST_SAMPLES: usize = 2_000_000;

/// How long a session sleeps at most without looking at what else there is to do.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(100);

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The published position and its history.
#[derive(Debug)]
pub(crate) struct Publisher {
    published: AtomicU64,
    end: Lsn,
    pace: Pace,
    /// Sessions wait here; counts the moves, so that none is missed.
    moves: Mutex<u64>,
    moved: Condvar,
    begun: Mutex<Option<Begun>>,
    line: Mutex<VecDeque<Sample>>,
    /// The play does not begin before [`Publisher::release`].
    held: AtomicBool,
    closing: AtomicBool,
}

#[derive(Debug, Clone)]
struct Begun {
    at: Instant,
    clock: Micros,
    origin: Lsn,
    schedule: Schedule,
}

impl Publisher {
    /// Before the play begins, what the base backup holds is published, and the WAL up to
    /// `lead_in`; with a lead-in the play begins only once it is released.
    pub fn new(recording: &Recording, pace: Pace, lead_in: Option<Lsn>) -> Self {
        let first = recording.played_from();
        let published = lead_in
            .filter(|&lsn| lsn > first)
            .and_then(|lsn| {
                recording
                    .reader()
                    .record_end_before(lsn.min(recording.end()))
            })
            .map_or(first, |lsn| lsn.max(first));
        Self {
            published: AtomicU64::new(published.into()),
            end: recording.end(),
            pace,
            moves: Mutex::new(0),
            moved: Condvar::new(),
            begun: Mutex::new(None),
            line: Mutex::new(VecDeque::new()),
            held: AtomicBool::new(lead_in.is_some()),
            closing: AtomicBool::new(false),
        }
    }

    pub fn published(&self) -> Lsn {
        Lsn::from(self.published.load(Ordering::Acquire))
    }

    /// Where and when the play began.
    pub fn begun(&self) -> Option<(Lsn, Micros)> {
        let begun = locked(&self.begun);
        begun.as_ref().map(|begun| (begun.origin, begun.clock))
    }

    /// The play begins at `origin`, unless it has.
    pub fn begin(&self, recording: &Recording, origin: Lsn) {
        if self.held.load(Ordering::SeqCst) {
            return;
        }
        let mut begun = locked(&self.begun);
        if begun.is_none() {
            let origin = origin.max(self.published()).min(self.end);
            // What was published before is where every lag is counted from.
            self.note(Sample {
                at: Micros::now(),
                lsn: self.published(),
            });
            *begun = Some(Begun {
                at: Instant::now(),
                clock: Micros::now(),
                origin,
                schedule: Schedule::new(recording, self.pace, origin),
            });
        }
    }

    /// Lets the play begin.
    pub fn release(&self) {
        self.held.store(false, Ordering::SeqCst);
    }

    /// Nobody waits any more.
    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Makes every waiting session look at what there is to do.
    pub fn wake(&self) {
        *locked(&self.moves) += 1;
        self.moved.notify_all();
    }

    /// Waits until more than `sent` is published, or [`Publisher::wake`] was called after
    /// `idle` was found true, or for a moment.
    pub fn wait(&self, sent: Lsn, idle: impl FnOnce() -> bool) {
        let moves = locked(&self.moves);
        // Who changes what is looked at here wakes us afterwards, under the lock.
        if self.published() > sent || self.is_closing() || !idle() {
            return;
        }
        let before = *moves;
        drop(
            self.moved
                .wait_timeout_while(moves, LONGEST_WAIT, |moves| *moves == before),
        );
    }

    /// Samples of the published position since the play began, oldest first.
    pub fn line(&self) -> Vec<Sample> {
        locked(&self.line).iter().copied().collect()
    }

    /// Moves the position until closed.
    pub fn run(&self, mut reader: SegmentReader) {
        let mut next = Instant::now();
        let mut ticks = 0_u64;
        while !self.is_closing() {
            if self.begun().is_some() {
                // The clock before the position: see `lockstep_bench::replay_lag`. Published only after it
                // was written down.
                let at = Micros::now();
                let target = self.target(&mut reader);
                let moves = target > self.published();
                if moves || ticks % TICKS_A_SAMPLE == 0 {
                    self.note(Sample { at, lsn: target });
                }
                if moves {
                    self.published.store(target.into(), Ordering::Release);
                    self.wake();
                }
                ticks += 1;
            }
            next += TICK;
            match next.checked_duration_since(Instant::now()) {
                Some(left) => thread::sleep(left),
                // Late: positions follow the clock, so nothing is made up for.
                None => next = Instant::now(),
            }
        }
    }

    /// Where the published position should be now: at the end of a record, never before
    /// what is published, never beyond what the pace allows.
    fn target(&self, reader: &mut SegmentReader) -> Lsn {
        let published = self.published();
        let allowed = match locked(&self.begun).as_ref() {
            Some(begun) => begun.schedule.position(begun.at.elapsed()).max(published),
            None => return published,
        };
        if allowed >= self.end {
            return self.end;
        }
        let page = u64::from(allowed) - u64::from(allowed) % PAGE;
        reader
            .record_end_before(allowed)
            // A page boundary will do where a record is longer than many pages: walsenders
            // split records there.
            .unwrap_or(Lsn::from(page))
            .max(published)
    }

    fn note(&self, sample: Sample) {
        let mut line = locked(&self.line);
        if line.len() >= MOST_SAMPLES {
            line.pop_front();
        }
        line.push_back(sample);
    }
}
