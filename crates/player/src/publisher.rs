//! The published position: sessions send WAL up to it, as a primary's walsenders send up to
//! the flush position.
//!
//! One thread moves it every millisecond, to the end of a record or of a commit, and keeps a
//! history of its moves. Sessions read it without a lock, and wait until it moves.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::progress::{Micros, Sample};
use lockstep_wire::Lsn;

use super::commits::Commits;
use super::pace::{Due, Schedule};
use super::{Pace, Recording};
use lockstep_wal::segment::{PAGE, SegmentReader};

/// Interval at which the position moves.
const TICK: Duration = Duration::from_millis(1);

/// A sample is kept every 2 ticks, and at each move.
const TICKS_A_SAMPLE: u64 = 2;

/// Most samples kept. They cover more than half an hour even with one sample each tick.
const MOST_SAMPLES: usize = 2_000_000;

/// Longest sleep of a session before it checks for other work, such as a keepalive.
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
    /// Sessions wait with this lock. It counts the moves, so that a session misses none.
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
    /// Before the play begins, the WAL that the base backup holds is published, and the WAL up
    /// to `lead_in`. With a lead-in the play also waits for [`Publisher::release`].
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

    /// Begins the play at `origin`, unless it has begun or is held back.
    pub fn begin(&self, recording: &Recording, origin: Lsn) {
        if self.held.load(Ordering::SeqCst) {
            return;
        }
        let mut begun = locked(&self.begun);
        if begun.is_none() {
            let origin = origin.max(self.published()).min(self.end);
            // The first sample: lag is measured from what was published before the play.
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

    pub fn release(&self) {
        self.held.store(false, Ordering::SeqCst);
    }

    /// Ends the publisher's thread and every wait.
    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Wakes every waiting session, so that it checks for work.
    pub fn wake(&self) {
        *locked(&self.moves) += 1;
        self.moved.notify_all();
    }

    /// Waits until WAL beyond `sent` is published or [`Publisher::wake`] is called, at most
    /// [`LONGEST_WAIT`]. Returns at once if `idle` is false.
    pub fn wait(&self, sent: Lsn, idle: impl FnOnce() -> bool) {
        let moves = locked(&self.moves);
        // No wake-up is lost: a thread that changes one of these conditions calls `wake`
        // afterwards, which needs the lock that is held here.
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

    /// Moves the position until [`Publisher::close`].
    pub fn run(&self, recording: &Recording) {
        let mut reader = recording.reader();
        let mut commits = None;
        let mut next = Instant::now();
        let mut ticks = 0_u64;
        while !self.is_closing() {
            if self.begun().is_some() {
                // Read the clock before the position, and publish the position only after its
                // sample is noted: a lag can then look longer than it is, never shorter. The
                // benchmarks rely on that (`lockstep_bench::replay_lag`).
                let at = Micros::now();
                let target = self.target(recording, &mut reader, &mut commits);
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
                // The thread is late. Positions follow the clock, so missed ticks are skipped.
                None => next = Instant::now(),
            }
        }
    }

    /// Where the published position should be now: at the end of a record, not before the
    /// present position and not beyond what the pace allows.
    fn target(
        &self,
        recording: &Recording,
        reader: &mut SegmentReader,
        commits: &mut Option<Commits>,
    ) -> Lsn {
        let published = self.published();
        let Some((due, origin)) = locked(&self.begun).as_ref().map(|begun| {
            let schedule = &begun.schedule;
            (schedule.due(begun.at.elapsed()), schedule.origin())
        }) else {
            return published;
        };
        let allowed = match due {
            Due::Position(lsn) => lsn.max(published),
            Due::Commits(number) => {
                let commits = commits.get_or_insert_with(|| Commits::after(recording, origin));
                return commits.end_of(number).max(published);
            }
        };
        if allowed >= self.end {
            return self.end;
        }
        let page = u64::from(allowed) - u64::from(allowed) % PAGE;
        reader
            .record_end_before(allowed)
            // In the middle of a record of many pages use a page boundary, where walsenders
            // also split records.
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
