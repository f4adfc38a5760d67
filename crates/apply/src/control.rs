//! What others ask of a replica that applies, and what they can see of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockstep_service::waker::Waker;
use lockstep_wire::Lsn;
use lockstep_wire::stream::Timestamp;

use crate::batch::{Closing, Counts};
use crate::crew::Why;
use crate::cycle::SILENT_AFTER;
pub use crate::session::before_all;
use crate::session::{Action, CyclesShown, Wanted};
use crate::work::News;

/// Where a replica is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Nothing is connected, and is about to be. Every other phase but `Stopped` can follow.
    #[default]
    Connecting,
    /// Changes flow.
    Applying,
    /// Connected to nothing until someone resumes; nothing is lost, the source keeps its WAL.
    Paused,
    /// A change does not fit the target. Everything before it is applied, and it is tried again
    /// from time to time, or when someone resumes.
    Blocked,
    /// The end.
    Stopped,
}

impl Phase {
    /// The phase's name for others.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Applying => "applying",
            Self::Paused => "paused",
            Self::Blocked => "blocked",
            Self::Stopped => "stopped",
        }
    }
}

/// What keeps a spool from taking more in. The names are those in the target's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FullBy {
    /// The spool's limit, until the target has some of what it holds.
    Limit,
    /// The spool's limit, and one transaction that takes most of it, whose end has not been received.
    Transaction,
    /// The spool's disk.
    Disk,
}

impl FullBy {
    pub fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Transaction => "transaction",
            Self::Disk => "disk",
        }
    }

    /// What has this name; a newer lockstep may know others.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = [Self::Limit, Self::Transaction, Self::Disk].into_iter();
        all.find(|it| it.name() == name)
    }
}

/// Why a spool takes nothing more in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolFull {
    /// None if a newer lockstep says what this one does not know.
    pub by: Option<FullBy>,
    pub words: String,
}

/// What a spool holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpoolStats {
    /// Size of the segments; some of it may be applied already.
    pub bytes: u64,
    pub limit: u64,
    /// Changes after `from` and up to `to` are durable here and not on the target's disk.
    pub from: Lsn,
    pub to: Lsn,
    /// Why nothing more is taken in.
    pub full: Option<SpoolFull>,
}

/// Tables of the source that are not replicated as they should be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unreplicated {
    pub tables: usize,
    /// Which they are, why, and what to do; None if there are none.
    pub words: Option<String>,
}

/// What a replica has done since its process began, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stats {
    pub phase: Phase,
    /// Why it is not applying, in words.
    pub error: Option<String>,
    /// Changes that are committed on the target, as the source sent them.
    pub counts: Counts,
    /// Rows to update or delete that the target did not have.
    pub missing: u64,
    /// `missing` of all processes of the replica so far, as the target's state last had it.
    pub missing_rows: u64,
    /// What is not as at the copy with the tables there; another text says that something has changed.
    pub tables_seen: String,
    /// Commits on the target.
    pub batches: u64,
    /// Batches that a writer had begun ahead of their turn, and that were done again in it.
    pub again: u64,
    /// Bytes of the source's messages.
    pub bytes: u64,
    /// End of the source's WAL as it last said: it may be further than it has said.
    pub source_end: Lsn,
    /// When the source last sent something.
    pub heard: Option<Instant>,
    /// The source has said that it has more than the spool.
    pub spool_lacks: bool,
    pub applied: Lsn,
    pub flushed: Lsn,
    /// When the newest applied transaction was committed on the source.
    pub commit_time: Option<Timestamp>,
    /// All that was received is applied.
    pub caught_up: bool,
    /// Times that a connection was made.
    pub sessions: u64,
    /// The target's processes that change it, while there is a session.
    pub backends: Vec<u32>,
    /// How many writers are used, and why; None while there is no session.
    pub writers: Option<(usize, Why)>,
    /// Which sessions of others these wait for, in words.
    pub waits: Option<String>,
    /// What the replica's spool holds, if it has one.
    pub spool: Option<SpoolStats>,
    /// The publication was last seen as it should be when the source's WAL ended here.
    pub published: Option<Lsn>,
    /// Tables that are not replicated, as last seen; None before they were looked for.
    pub unreplicated: Option<Unreplicated>,
    /// Objects of the source that the copy could not make on the target, as last seen.
    pub unmade: Option<usize>,
    /// Where the replica is between its cycles; None if it has none, or is not applying.
    pub cycles: Option<CyclesShown>,
    /// The replica was promoted: nothing more is applied, for ever.
    pub promoted: bool,
    /// The newest cycle that was committed since the process began, and how long it took.
    pub last_cycle: Option<(Closing, Duration)>,
    /// Cycles that were committed since the process began, and times that one failed.
    pub cycles_done: u64,
    pub cycles_failed: u64,
}

impl Stats {
    /// WAL of the source that is not applied, in bytes, as far as the source has said: while it
    /// decodes a large transaction, it says nothing of what follows.
    pub fn lag_bytes(&self) -> u64 {
        self.source_end.bytes_since(self.applied)
    }
}

/// What a session's driver hears of.
#[derive(Debug)]
pub enum Event {
    /// Something else is wanted.
    Wanted,
    News(News),
    /// Something new is in the spool.
    Arrived,
}

impl From<News> for Event {
    fn from(news: News) -> Self {
        Self::News(news)
    }
}

#[derive(Debug, Default)]
struct State {
    wanted: Wanted,
    stats: Stats,
    /// The hold that the session has seen.
    holds: Option<Lsn>,
    /// Why what the source sends is refused.
    refused: Option<String>,
    /// How to tell the session, while there is one.
    session: Option<(Sender<Event>, Waker)>,
}

/// A handle on a replica that applies; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Control(Arc<(Mutex<State>, Condvar, AtomicU64)>);

impl State {
    fn is_held(&self, lsn: Lsn) -> bool {
        self.holds == Some(lsn)
            && (lsn == before_all() || self.stats.caught_up && self.stats.applied >= lsn)
    }
}

impl Control {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn want(&self, change: impl FnOnce(&mut Wanted)) {
        let mut state = self.state();
        change(&mut state.wanted);
        if let Some((sender, waker)) = &state.session {
            // A session that has ended looks at what is wanted before the next one begins.
            let _ = sender.send(Event::Wanted);
            waker.wake();
        }
        self.0.1.notify_all();
    }

    /// Begins anew, after an end that was not asked for.
    pub fn begin(&self) {
        let mut state = self.state();
        let Wanted { stop, resumed, .. } = state.wanted;
        state.wanted = Wanted {
            stop,
            resumed,
            ..Wanted::default()
        };
        state.refused = None;
        state.stats = Stats::default();
        self.0.1.notify_all();
    }

    /// The replica has ended, or could not begin.
    pub fn failed(&self, words: &str) {
        self.count(|stats| {
            stats.phase = Phase::Stopped;
            stats.error = Some(words.to_owned());
        });
    }

    pub fn is_stopped(&self) -> bool {
        self.wanted().stop
    }

    /// Waits until the end is asked for, or `patience` has passed.
    pub fn wait_stopped(&self, patience: Duration) {
        self.wait(patience, |state| state.wanted.stop);
    }

    /// Ends the replica. A batch that is being applied is finished if that is quick.
    pub fn stop(&self) {
        self.want(|wanted| wanted.stop = true);
    }

    /// Ends the replica with an error: the source does not send what it should.
    pub fn refuse(&self, words: String) {
        self.state().refused = Some(words);
        self.want(|wanted| wanted.refuse = true);
    }

    pub(crate) fn refused(&self) -> Option<String> {
        self.state().refused.clone()
    }

    /// Lets the replica disconnect until it is resumed.
    pub fn pause(&self) {
        self.want(|wanted| wanted.pause = true);
    }

    /// From now on a cycle begins so long after the one before; zero: changes are applied as they come.
    pub fn set_frequency(&self, frequency: Duration) {
        if self.wanted().frequency != frequency {
            self.want(|wanted| wanted.frequency = frequency);
        }
    }

    /// From now on no more bytes a second are received from the source; None: no limit.
    pub fn set_bandwidth(&self, bytes_per_s: Option<u64>) {
        self.0.2.store(bytes_per_s.unwrap_or(0), Ordering::Relaxed);
    }

    /// Most bytes a second that are received. Asked for each message, so it takes no lock.
    pub(crate) fn bandwidth(&self) -> Option<u64> {
        Some(self.0.2.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// This many times a cycle was asked for: one begins now unless one has begun since the last time.
    pub fn force(&self, forces: u64) {
        if self.wanted().forces != forces {
            self.want(|wanted| wanted.forces = forces);
        }
    }

    /// The spool takes nothing more in.
    pub(crate) fn is_spool_full(&self) -> bool {
        let state = self.state();
        (state.stats.spool.as_ref()).is_some_and(|spool| spool.full.is_some())
    }

    /// The source may have more than the spool: it has said so, or nothing for a while.
    pub(crate) fn may_spool_lack(&self, now: Instant) -> bool {
        let state = self.state();
        let heard = state.stats.heard;
        state.stats.spool_lacks
            || heard.is_none_or(|heard| now.saturating_duration_since(heard) >= SILENT_AFTER)
    }

    /// Ends a pause, and lets a blocked replica try again at once.
    pub fn resume(&self) {
        self.want(|wanted| {
            wanted.pause = false;
            wanted.resumed += 1;
        });
    }

    pub fn stats(&self) -> Stats {
        self.state().stats.clone()
    }

    /// Asks for exactly the transactions whose commit record starts before `lsn`; what is applied
    /// beyond it stays. With [`before_all`] no further transaction begins.
    pub fn hold_at(&self, lsn: Lsn) {
        if self.wanted().hold != Some(lsn) {
            self.want(|wanted| wanted.hold = Some(lsn));
        }
    }

    /// What is asked for.
    pub fn wants_hold(&self) -> Option<Lsn> {
        self.wanted().hold
    }

    /// True once exactly what [`Control::hold_at`] asks for is committed on the target. With
    /// [`before_all`]: once no transaction will begin any more, so that every transaction that is
    /// applied was committed on the source before this call returned.
    pub fn is_held(&self, lsn: Lsn) -> bool {
        self.state().is_held(lsn)
    }

    /// Waits until the replica is held at `lsn`, or has ended. False if `patience` has passed before.
    pub fn wait_held(&self, lsn: Lsn, patience: Duration) -> bool {
        self.wait(patience, |state| {
            state.is_held(lsn) || state.stats.phase == Phase::Stopped
        })
    }

    /// Lets changes flow again.
    pub fn release(&self) {
        self.want(|wanted| wanted.hold = None);
    }

    /// Waits until `reached` is true of the statistics. False if `patience` has passed before.
    pub fn wait_for(&self, patience: Duration, reached: impl Fn(&Stats) -> bool) -> bool {
        self.wait(patience, |state| reached(&state.stats))
    }

    fn wait(&self, patience: Duration, reached: impl Fn(&State) -> bool) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.state();
        while !reached(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.0.1.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    pub fn wanted(&self) -> Wanted {
        self.state().wanted
    }

    /// Waits at most `patience`, or until something else than `seen` is wanted.
    pub(crate) fn rest(&self, seen: Wanted, patience: Duration) {
        self.wait(patience, |state| state.wanted != seen);
    }

    /// Shows what a session has to show.
    pub fn show(&self, action: Action) {
        match action {
            Action::Holds(hold) => self.holds(hold),
            Action::Behind => self.count(|stats| stats.caught_up = false),
            Action::Count(committed) => self.count(|stats| {
                stats.counts.add(&committed.counts);
                stats.missing += committed.missing;
                stats.again += u64::from(committed.again);
                stats.batches += 1;
                stats.commit_time = committed.time.or(stats.commit_time);
                if committed.cycle.is_some() {
                    stats.last_cycle = committed.cycle;
                    stats.cycles_done += 1;
                }
            }),
            Action::Show(figures) => self.count(|stats| {
                stats.applied = figures.applied;
                stats.flushed = figures.flushed;
                stats.caught_up = figures.caught_up;
                stats.cycles = figures.cycles;
                if let Some(heard) = figures.heard {
                    stats.source_end = stats.source_end.max(heard.source_end);
                    stats.heard = heard.last;
                    stats.bytes += heard.bytes;
                }
            }),
            Action::Use(used, why) => self.count(|stats| stats.writers = Some((used, why))),
            Action::Hand(_) | Action::Tell(_) | Action::Warn(..) => {}
        }
    }

    pub(crate) fn set_session(&self, session: Option<(Sender<Event>, Waker)>) {
        let mut state = self.state();
        state.session = session;
        state.holds = None;
    }

    /// The session acts on this hold from now on.
    fn holds(&self, hold: Option<Lsn>) {
        self.state().holds = hold;
        self.0.1.notify_all();
    }

    /// Changes the statistics, and wakes those who wait for them.
    pub fn count(&self, count: impl FnOnce(&mut Stats)) {
        count(&mut self.state().stats);
        self.0.1.notify_all();
    }
}
