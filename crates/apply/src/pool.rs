//! The writers of a session, each on a thread of its own.
//!
//! ```text
//! session ──jobs, in the source's order──> writer 0 ─> target
//!    ^                                     writer 1 ─> target   commits go in the same order
//!    └─────────── events ─────────────────────┘
//! ```
//!
//! A writer that has nothing to do takes the next job, so jobs begin in their order, and the one whose
//! turn it is to commit always has a writer. A job that begins before its turn *runs ahead*: it makes
//! its free changes, waits for the part that its bound ones depend on ([`super::order`]), makes those,
//! and waits for its turn.
//!
//! [`super::reach`] says which changes depend on each other. Running ahead is right even where that
//! is not enough, because a part that ran ahead is rolled back, and done as a whole in its turn, if
//! - the target refused a change: what is in the way may be gone then;
//! - a row to change was not there: an earlier part may bring it;
//! - the target's catalog is not what the part was planned with;
//! - the part whose turn it is waits for a lock that only goes away with ours. The server does not
//!   see that as a deadlock, since a writer that waits for its turn waits for no lock: so each asks
//!   from time to time, as long as it has locks. Sessions of others count as well: one that waits to
//!   lock a table lets nobody pass.
//!
//! In its turn a part is what it would be with one writer: an error then is an error.

use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_client::Canceller;
use lockstep_service::waker::Waker;
use lockstep_wire::Lsn;

use crate::batch::{CommitPoint, Counts, Part};
use crate::error::{ApplyError, Result};
use crate::failpoint;
use crate::order::{Order, Plan};
use crate::run::MOST_WRITERS;
use crate::turn::{Turn, Waited};
use crate::writer::{Missing, Pick, Writer};

/// While batches follow each other, commits are flushed this often.
const FLUSH_EVERY: Duration = Duration::from_millis(200);

/// How often a writer that waits asks whether it is in an earlier one's way.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// So often a part whose turn it is begins again after a deadlock: each writer behind it can cause one.
const MOST_DEADLOCKS: usize = MOST_WRITERS;

/// What the writers have to say.
#[derive(Debug)]
pub(crate) enum News {
    /// A part is done.
    Done(Done),
    /// An origin has moved to a position that is reached without changes.
    Moved(Lsn),
    Failed(ApplyError),
}

#[derive(Debug)]
pub(crate) struct Done {
    /// None if the target's transaction is still open.
    pub commit: Option<CommitPoint>,
    /// All commits so far are flushed.
    pub flushed: bool,
    pub missing: Missing,
    pub counts: Counts,
    /// What the part has taken.
    pub memory: usize,
    /// It had run ahead, and was done again in its turn.
    pub again: bool,
    /// The target's catalog is not what the part was planned with.
    pub stale: bool,
}

#[derive(Debug)]
enum Task {
    Part(Part),
    /// Moves the origin to a position that is reached without changes.
    Move(Lsn),
}

#[derive(Debug)]
struct Job {
    plan: Plan,
    task: Task,
}

impl Job {
    /// More parts of the same target transaction follow.
    fn has_more(&self) -> bool {
        matches!(&self.task, Task::Part(part) if part.commit.is_none())
    }
}

/// What the session has of its writers.
pub(crate) struct Pool {
    order: Order,
    /// A part of a transaction was handed over, and its last part was not.
    in_parts: bool,
    turn: Arc<Turn>,
    jobs: Option<SyncSender<Job>>,
    threads: Vec<JoinHandle<()>>,
    cancellers: Vec<Canceller>,
}

impl Pool {
    /// Starts the threads. `most` jobs can be handed over that are not done.
    pub fn start<E: From<News> + Send + 'static>(
        writers: Vec<Writer>,
        most: usize,
        events: &Sender<E>,
        waker: &Waker,
    ) -> Result<Self> {
        let (sender, jobs) = mpsc::sync_channel(most);
        let jobs = Arc::new(Mutex::new(jobs));
        let turn = Arc::new(Turn::default());
        let mut pool = Self {
            order: Order::default(),
            in_parts: false,
            turn: Arc::clone(&turn),
            jobs: Some(sender),
            threads: Vec::new(),
            cancellers: Vec::new(),
        };
        for writer in writers {
            pool.cancellers.push(writer.canceller()?);
            let mut worker = Worker {
                writer,
                turn: Arc::clone(&turn),
                events: events.clone(),
                waker: waker.clone(),
            };
            let jobs = Arc::clone(&jobs);
            let thread = thread::Builder::new().name("apply writer".to_owned());
            let thread = thread.spawn(move || worker.work(&jobs)).map_err(|error| {
                ApplyError::System(format!("no thread can be started: {error}"))
            })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    pub fn writers(&self) -> usize {
        self.threads.len()
    }

    /// Hands over a part; `alone` if it must not run beside others. False if the writers have ended.
    pub fn part(&mut self, part: Part, alone: bool) -> bool {
        // The parts of one transaction go to one writer, which has no other: what the rest of them
        // touches is not known when the first begins.
        let in_parts = self.in_parts || part.commit.is_none();
        self.in_parts = part.commit.is_none();
        let alone = alone || in_parts || self.writers() < 2;
        self.hand(alone, Task::Part(part))
    }

    /// Lets an origin move to a position that is reached without changes.
    pub fn move_to(&mut self, end: Lsn) -> bool {
        self.hand(true, Task::Move(end))
    }

    fn hand(&mut self, alone: bool, task: Task) -> bool {
        self.order.done(self.turn.done());
        let plan = match &task {
            Task::Part(part) => self.order.plan(part, alone),
            Task::Move(_) => self.order.plan(&Part::default(), alone),
        };
        self.turn.hand(plan.number);
        let job = Job { plan, task };
        (self.jobs.as_ref()).is_some_and(|jobs| jobs.send(job).is_ok())
    }

    /// No more jobs come: the threads end when those that they have are done.
    pub fn close(&mut self) {
        self.jobs = None;
    }

    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// A job has failed: what the others do cannot be committed.
    pub fn has_failed(&self) -> bool {
        self.turn.has_failed()
    }

    /// Ends what the writers do. What is not committed is rolled back, and will be sent again.
    pub fn cancel(&self) {
        self.turn.fail();
        for canceller in &self.cancellers {
            // Nothing to cancel is fine: then it is about to end.
            let _ = canceller.cancel();
        }
    }

    /// Waits for the threads' end.
    pub fn join(&mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Why a job ends without being done.
enum Stop {
    Failed(ApplyError),
    /// An earlier one has failed.
    Over,
}

impl From<ApplyError> for Stop {
    fn from(error: ApplyError) -> Self {
        Self::Failed(error)
    }
}

/// How running ahead has ended.
enum Ahead {
    /// All changes are made, and it is its turn.
    Ready,
    /// It is to be done again as a whole.
    Again,
}

struct Worker<E: From<News>> {
    writer: Writer,
    turn: Arc<Turn>,
    events: Sender<E>,
    waker: Waker,
}

impl<E: From<News>> Drop for Worker<E> {
    fn drop(&mut self) {
        // The others would wait for its part for ever.
        if thread::panicking() && self.turn.fail() {
            let words = "the thread of a writer has ended".to_owned();
            self.tell(News::Failed(ApplyError::System(words)));
        }
    }
}

impl<E: From<News>> Worker<E> {
    /// Does jobs until there are no more, or one fails.
    fn work(&mut self, jobs: &Mutex<Receiver<Job>>) {
        loop {
            let next = jobs.lock().unwrap_or_else(PoisonError::into_inner);
            // While a transaction comes in parts, the others get no jobs.
            let mut next = Some(next);
            while let Some(jobs) = &next {
                let Ok(job) = jobs.recv() else {
                    return;
                };
                if !job.has_more() {
                    next = None;
                }
                if !self.does(&job) {
                    return;
                }
            }
        }
    }

    /// Does a job. False if it failed.
    fn does(&mut self, job: &Job) -> bool {
        let number = job.plan.number;
        self.turn.begin(number, self.writer.backend());
        let done = match &job.task {
            Task::Move(end) => self.move_to(number, *end).map(|()| News::Moved(*end)),
            Task::Part(part) => self.part(part, &job.plan).map(News::Done),
        };
        match done {
            Ok(news) => {
                self.tell(news);
                // Only now: the session hears of commits in their order.
                self.turn.pass(number);
                true
            }
            Err(Stop::Failed(error)) => {
                if self.turn.fail() {
                    self.tell(News::Failed(error));
                }
                false
            }
            Err(Stop::Over) => false,
        }
    }

    fn tell(&self, news: News) {
        // A session that has ended needs no news.
        let _ = self.events.send(news.into());
        self.waker.wake();
    }

    fn move_to(&mut self, number: u64, end: Lsn) -> Result<(), Stop> {
        self.wait_turn(number)?;
        Ok(self.writer.move_to(end)?)
    }

    fn part(&mut self, part: &Part, plan: &Plan) -> Result<Done, Stop> {
        let ahead = match plan.is_alone() || self.turn.is_first(plan.number) {
            true => None,
            false => Some(self.ahead(part, plan)?),
        };
        let again = matches!(ahead, Some(Ahead::Again));
        if again {
            self.writer.roll_back()?;
        }
        self.wait_turn(plan.number)?;
        let mut done = Done {
            commit: part.commit,
            flushed: false,
            missing: Missing::new(),
            counts: part.counts,
            memory: part.memory,
            again,
            stale: false,
        };
        if ahead.is_none() && self.at_once(part, plan, &mut done)? {
            return Ok(done);
        }
        if !matches!(ahead, Some(Ahead::Ready)) {
            self.in_turn(part, plan)
                .map_err(|error| error.at(part.lsn))?;
        }
        done.stale = again && !self.writer.reach_is_known(part)?;
        if let Some(commit) = part.commit {
            done.flushed = self.turn.is_to_flush(plan.number, FLUSH_EVERY);
            let committed = self.writer.commit(commit, done.flushed);
            done.missing = committed.map_err(|error| error.at(part.lsn))?;
            failpoint::APPLY_COMMITTED.reach();
        } else {
            failpoint::APPLY_PART.reach();
        }
        Ok(done)
    }

    /// Makes and commits all changes of a part whose turn it is, if it is small. False if nothing was
    /// done.
    fn at_once(&mut self, part: &Part, plan: &Plan, done: &mut Done) -> Result<bool> {
        let Some(commit) = part.commit else {
            return Ok(false);
        };
        let is_to_flush = || self.turn.is_to_flush(plan.number, FLUSH_EVERY);
        let committed = self.writer.at_once(part, commit, is_to_flush);
        let Some(committed) = committed.map_err(|error| error.at(part.lsn))? else {
            return Ok(false);
        };
        (done.flushed, done.missing) = committed;
        failpoint::APPLY_COMMITTED.reach();
        Ok(true)
    }

    /// Makes all changes of a part whose turn it is. Writers behind it may have caused a deadlock
    /// that the server has ended at the cost of this one. Each of them begins once ahead of its turn.
    fn in_turn(&mut self, part: &Part, plan: &Plan) -> Result<()> {
        let mut deadlocks = 0;
        loop {
            match self.writer.apply(part, Pick::All) {
                Err(error)
                    if error.is_deadlock() && !plan.is_alone() && deadlocks < MOST_DEADLOCKS =>
                {
                    deadlocks += 1;
                    self.writer.roll_back()?;
                }
                applied => return applied,
            }
        }
    }

    /// Makes the changes of a part whose turn has not come.
    fn ahead(&mut self, part: &Part, plan: &Plan) -> Result<Ahead, Stop> {
        for bound in [false, true] {
            if !plan.has(bound) {
                continue;
            }
            if bound && !self.wait(plan.after)? {
                return Ok(Ahead::Again);
            }
            match self.writer.apply(part, Pick::Some { plan, bound }) {
                Err(error) if error.is_refusal() => return Ok(Ahead::Again),
                applied => applied?,
            }
            if self.writer.has_missing() {
                return Ok(Ahead::Again);
            }
        }
        failpoint::APPLY_AHEAD.reach();
        if !self.wait(plan.number - 1)? || !self.writer.reach_is_known(part)? {
            return Ok(Ahead::Again);
        }
        Ok(Ahead::Ready)
    }

    /// Waits until a part is committed. False if ours is in the way of the one whose turn it is.
    fn wait(&mut self, number: u64) -> Result<bool, Stop> {
        loop {
            match self.turn.wait(number, ASK_EVERY) {
                Waited::Reached => return Ok(true),
                Waited::Failed => return Err(Stop::Over),
                Waited::NotYet if !self.writer.is_in_transaction() => {}
                Waited::NotYet => {
                    let first = self.turn.first_backend();
                    let other = first.filter(|first| *first != self.writer.backend());
                    if other.map_or(Ok(false), |first| self.writer.holds_up(first))? {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Waits for the turn, with no transaction open or with all done.
    fn wait_turn(&mut self, number: u64) -> Result<(), Stop> {
        loop {
            match self.turn.wait(number - 1, ASK_EVERY) {
                Waited::Reached => return Ok(()),
                Waited::Failed => return Err(Stop::Over),
                Waited::NotYet => {}
            }
        }
    }
}
