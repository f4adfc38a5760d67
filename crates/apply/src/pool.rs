//! The writers of a session, each on a thread of its own.
//!
//! ```text
//! session ──jobs, in the source's order──> writer 0 ─> target
//!    ^                                     writer 1 ─> target   commits go in the same order
//!    └─────────── events ─────────────────────┘
//! ```
//!
//! A writer that has nothing to do takes the next job, so jobs begin in their order, and the one whose
//! turn it is to commit always has a writer. What it does with a job [`crate::work`] decides. Writers can be
//! added, and sent to rest: those with the highest numbers take no job then.

use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_client::{Canceller, Connection};
use lockstep_service::waker::Waker;

use crate::batch::{CommitPoint, Part};
use crate::catalog::{Altered, Altering};
use crate::error::{ApplyError, Result};
use crate::failpoint;
use crate::turn::{Turn, Waited};
use crate::work::{Answer, Job, News, Stop, Todo, Work};
use crate::writer::{Pick, Writer};

/// A commit is flushed if no other has been on disk for so long, while batches follow each other.
pub const FLUSH_EVERY: Duration = Duration::from_millis(200);

/// Interval at which a writer that waits asks whether it is in an earlier one's way.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// The turn that the writers share, and what wakes those who wait for it.
#[derive(Debug)]
struct SharedTurn(Mutex<Turn>, Condvar);

impl SharedTurn {
    fn get(&self) -> MutexGuard<'_, Turn> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until part `number` is committed, at most `patience`.
    fn wait(&self, number: u64, patience: Duration) -> Waited {
        let deadline = Instant::now() + patience;
        let mut turn = self.get();
        loop {
            let waited = turn.reached(number);
            let left = deadline.saturating_duration_since(Instant::now());
            if waited != Waited::NotYet || left.is_zero() {
                return waited;
            }
            let woken = self.1.wait_timeout(turn, left);
            turn = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the writer with this number may take jobs.
    fn rest(&self, writer: usize) {
        let mut turn = self.get();
        while !turn.is_used(writer) {
            turn = self.1.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn set_used(&self, writers: usize) {
        self.get().set_used(writers);
        self.1.notify_all();
    }

    fn pass(&self, number: u64) {
        self.get().pass(number);
        self.1.notify_all();
    }

    fn fail(&self) -> bool {
        let is_first = self.get().fail();
        self.1.notify_all();
        is_first
    }

    fn is_to_flush(&self, number: u64) -> bool {
        self.get().is_to_flush(number, FLUSH_EVERY, Instant::now())
    }
}

/// What the session has of its writers.
pub(crate) struct Pool<E> {
    turn: Arc<SharedTurn>,
    jobs: Option<SyncSender<Job>>,
    /// The other end, as long as a writer has it.
    taken: Weak<Mutex<Receiver<Job>>>,
    events: Sender<E>,
    waker: Waker,
    threads: Vec<JoinHandle<()>>,
    cancellers: Vec<Canceller>,
    altering: Altering,
}

impl<E: From<News> + Send + 'static> Pool<E> {
    /// Starts the threads. `most` jobs can be handed over that are not done.
    pub fn start(
        writers: Vec<Writer>,
        most: usize,
        events: &Sender<E>,
        waker: &Waker,
        altering: &Altering,
    ) -> Result<Self> {
        let (sender, jobs) = mpsc::sync_channel(most);
        let jobs = Arc::new(Mutex::new(jobs));
        let turn = Arc::new(SharedTurn(
            Mutex::new(Turn::new(Instant::now())),
            Condvar::new(),
        ));
        let mut pool = Self {
            turn: Arc::clone(&turn),
            jobs: Some(sender),
            taken: Arc::downgrade(&jobs),
            events: events.clone(),
            waker: waker.clone(),
            threads: Vec::new(),
            cancellers: Vec::new(),
            altering: altering.clone(),
        };
        turn.set_used(writers.len());
        for writer in writers {
            pool.add(writer)?;
        }
        Ok(pool)
    }

    /// Starts another writer, which takes jobs once it is used. Nothing comes of it if the others have ended.
    pub fn add(&mut self, writer: Writer) -> Result<()> {
        let Some(jobs) = self.taken.upgrade() else {
            return Ok(());
        };
        self.cancellers.push(writer.canceller()?);
        let mut worker = Worker {
            number: self.threads.len(),
            writer: Arc::new(Mutex::new(writer)),
            altering: self.altering.clone(),
            turn: Arc::clone(&self.turn),
            events: self.events.clone(),
            waker: self.waker.clone(),
        };
        let thread = thread::Builder::new().name("apply writer".to_owned());
        let thread = thread
            .spawn(move || worker.work(&jobs))
            .map_err(|error| ApplyError::System(format!("no thread can be started: {error}")))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Writers that there are.
    pub fn writers(&self) -> usize {
        self.threads.len()
    }

    /// Number of writers that take jobs from now on.
    pub fn set_used(&self, writers: usize) {
        self.turn.set_used(writers);
    }

    /// Hands over a job. False if the writers have ended.
    pub fn hand(&self, job: Job) -> bool {
        self.turn.get().hand(job.plan.number);
        (self.jobs.as_ref()).is_some_and(|jobs| jobs.send(job).is_ok())
    }

    /// No more jobs come: the threads end when those that they have are done.
    pub fn close(&mut self) {
        self.jobs = None;
        self.turn.set_used(usize::MAX);
    }

    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// A job has failed: what the others do cannot be committed.
    pub fn has_failed(&self) -> bool {
        self.turn.get().has_failed()
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

/// A writer, as its thread shares it.
type SharedWriter = Arc<Mutex<Writer>>;

fn locked(writer: &SharedWriter) -> MutexGuard<'_, Writer> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A writer whose open transaction has changed the schema.
struct AlteredBy(SharedWriter);

impl fmt::Debug for AlteredBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AlteredBy")
    }
}

impl Altered for AlteredBy {
    fn ask(
        &self,
        question: &mut dyn FnMut(&mut Connection) -> lockstep_client::Result<()>,
    ) -> lockstep_client::Result<()> {
        question(locked(&self.0).asked()?)
    }
}

struct Worker<E: From<News>> {
    number: usize,
    writer: SharedWriter,
    altering: Altering,
    turn: Arc<SharedTurn>,
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
            self.turn.rest(self.number);
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
                if !self.does(job) {
                    return;
                }
            }
        }
    }

    /// Does a job. False if it failed.
    fn does(&mut self, job: Job) -> bool {
        let number = job.plan.number;
        let is_first = {
            let mut turn = self.turn.get();
            turn.begin(number, locked(&self.writer).backend());
            turn.is_first(number)
        };
        let mut work = Work::new(job, is_first);
        loop {
            let todo = work.next();
            if todo == Todo::Tell {
                break;
            }
            let answer = self.todo(&work, todo).unwrap_or_else(Answer::Failed);
            match work.answer(answer) {
                Ok(()) => {}
                Err(Stop::Over) => return false,
                Err(Stop::Failed(error)) => {
                    if self.turn.fail() {
                        self.tell(News::Failed(error));
                    }
                    return false;
                }
            }
        }
        if work.job().has_more() {
            failpoint::APPLY_PART.reach();
        }
        self.tell(work.news());
        // Only now: the session hears of commits in their order.
        self.turn.pass(number);
        true
    }

    fn tell(&self, news: News) {
        // A session that has ended needs no news.
        let _ = self.events.send(news.into());
        self.waker.wake();
    }

    /// Does one thing of a job.
    fn todo(&mut self, work: &Work, todo: Todo) -> Result<Answer> {
        let number = work.job().plan.number;
        let before = number.saturating_sub(1);
        let nothing = Part::default();
        let part = work.job().part().unwrap_or(&nothing);
        match todo {
            Todo::WaitFor(other) => self.wait(other),
            Todo::WaitAhead => {
                failpoint::APPLY_AHEAD.reach();
                self.wait(before)
            }
            Todo::WaitTurn => Ok(self.wait_turn(before)),
            Todo::Apply(which) => {
                let pick = Pick::new(which, &work.job().plan);
                let mut writer = locked(&self.writer);
                writer.apply(part, pick)?;
                let missing = writer.has_missing();
                drop(writer);
                if part.has_command() {
                    let session = AlteredBy(Arc::clone(&self.writer));
                    self.altering.altered(Box::new(session));
                }
                Ok(Answer::Made { missing })
            }
            Todo::RollBack => {
                locked(&self.writer).roll_back()?;
                Ok(Answer::Made { missing: false })
            }
            Todo::CheckReach => (locked(&self.writer).reach_is_known(part)).map(Answer::Known),
            Todo::AtOnce(commit) => self.at_once(number, part, commit),
            Todo::Commit(commit) => {
                let flush = self.turn.is_to_flush(number);
                let (flushed, missing) = locked(&self.writer).commit(commit, part, flush)?;
                if let Some(flushed) = flushed {
                    self.turn.get().flushed(flushed.made);
                }
                let flushed = flushed.map(|flushed| flushed.end);
                self.altering.ended();
                failpoint::APPLY_COMMITTED.reach();
                Ok(Answer::Committed { flushed, missing })
            }
            Todo::Move(end) => {
                locked(&self.writer).move_to(end)?;
                Ok(Answer::Made { missing: false })
            }
            Todo::Tell => Ok(Answer::Made { missing: false }),
        }
    }

    /// Makes and commits all changes of a part whose turn it is, if it is small.
    fn at_once(&mut self, number: u64, part: &Part, commit: CommitPoint) -> Result<Answer> {
        let is_to_flush = || self.turn.is_to_flush(number);
        let made = locked(&self.writer).at_once(part, commit, is_to_flush)?;
        let Some((flush, missing)) = made else {
            return Ok(Answer::NotSmall);
        };
        let flushed = flush.then_some(commit.end);
        failpoint::APPLY_COMMITTED.reach();
        Ok(Answer::Committed { flushed, missing })
    }

    /// Waits until a part is committed, or ours is in the way of the one whose turn it is.
    fn wait(&mut self, number: u64) -> Result<Answer> {
        loop {
            match self.turn.wait(number, ASK_EVERY) {
                Waited::Reached => return Ok(Answer::Reached),
                Waited::Failed => return Ok(Answer::Over),
                Waited::NotYet if !locked(&self.writer).is_in_transaction() => {}
                Waited::NotYet => {
                    let first = self.turn.get().first_backend();
                    let mut writer = locked(&self.writer);
                    let other = first.filter(|first| *first != writer.backend());
                    if other.map_or(Ok(false), |first| writer.holds_up(first))? {
                        return Ok(Answer::InTheWay);
                    }
                }
            }
        }
    }

    /// Waits for the turn, with no transaction open or with all done.
    fn wait_turn(&mut self, before: u64) -> Answer {
        loop {
            match self.turn.wait(before, ASK_EVERY) {
                Waited::Reached => return Answer::Reached,
                Waited::Failed => return Answer::Over,
                Waited::NotYet => {}
            }
        }
    }
}
