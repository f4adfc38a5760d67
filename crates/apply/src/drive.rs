//! One session's driver: a stream from the source or a spool, the session that decides
//! (`crate::session`), and writers on threads of their own.
//!
//! ```text
//! source ──stream──> this thread: merges, tells the source ──parts──> writers' threads ──> target
//!                          ^──────────────── events ───────────────────────┘
//! ```
//!
//! With a spool, messages come from the spool, and feedback goes to it.

use std::panic::resume_unwind;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_intake::continuity::FollowedSource;
use lockstep_service::clock;
use lockstep_service::waker::{self, Sleeper};
use lockstep_wire::stream::{FromStandby, Status};
use lockstep_wire::{Lsn, Timeline};
use tracing::{debug, info, warn};

use crate::batch::Missing;
use crate::catalog::{Altering, Catalog, Open};
use crate::control::{Control, Event, Phase};
use crate::crew::{Pace, Why};
use crate::cycle::Past;
use crate::ending::Ending;
use crate::error::{ApplyError, Result, Stop};
use crate::failpoint;
use crate::merge::Limits;
use crate::order::MOST_WRITERS;
use crate::pool::Pool;
use crate::session::{Action, Begin, MOST_WAITING, Next, STATUS_EVERY, Session};
use crate::settings::Settings;
use crate::source::{Beginning, FAREWELL};
use crate::spool::{Arrived, Content, Feed, Owner, Spool};
use crate::work::Job;
use crate::writer::{self, Writer};

/// Messages that are taken before events and the time are looked at again.
const MESSAGES: usize = 64;

/// Interval of looks whether the writers have ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Why a session has ended.
pub(crate) struct Ended {
    pub error: Option<ApplyError>,
    /// If a change did not fit: the end of the last transaction of its batch.
    pub failed_batch: Option<Lsn>,
}

/// A session and all that it reads from and writes to.
pub(crate) struct Drive<'a> {
    control: &'a Control,
    settings: &'a Settings,
    session: Session<Content>,
    feed: Feed,
    catalog: Catalog,
    sleeper: Sleeper,
    events: Receiver<Event>,
    pool: Pool<Event>,
    /// The source's timeline as the target knows it.
    timeline: Option<Timeline>,
}

impl<'a> Drive<'a> {
    /// Connects to both ends. Transactions up to `careful` are applied one by one.
    pub fn open(
        settings: &'a Settings,
        spool: Option<&Spool>,
        control: &'a Control,
        open: &mut Open<'_>,
        careful: Lsn,
    ) -> Result<Self> {
        let from = match spool {
            Some(spool) => From::Spool(spool),
            None => From::Source(Beginning::new(settings)?),
        };
        let pair = waker::pair().map_err(|error| ApplyError::System(error.to_string()));
        let (sleeper, waker) = pair?;
        let (event_sender, events) = mpsc::channel();
        // Each session needs several round trips before it can be used.
        let (started, catalog) = thread::scope(|scope| {
            let catalog = scope.spawn(|| open().map(Catalog::of));
            let started = Started::new(settings, (from, spool), control, &event_sender);
            let catalog = catalog.join();
            (
                started,
                catalog.unwrap_or_else(|panic| resume_unwind(panic)),
            )
        });
        let (started, catalog) = (started?, catalog?);
        let altering = Altering::default();
        let catalog = catalog.following(settings, &altering);
        control.set_session(Some((event_sender.clone(), waker.clone())));
        let session = Session::new(started.begin(settings, careful), Instant::now());
        let stands = started.stands;
        let backends = started.writers.iter().map(Writer::backend);
        let backends = backends.chain([catalog.backend()]).collect();
        let pool = Pool::start(
            started.writers,
            MOST_WRITERS + MOST_WAITING,
            &event_sender,
            &waker,
            &altering,
        )?;
        control.count(|stats| {
            stats.phase = Phase::Applying;
            stats.error = None;
            stats.backends = backends;
            stats.writers = Some(session.shown_crew());
            stats.sessions += 1;
            stats.applied = stands;
            stats.flushed = stands;
            stats.caught_up = false;
        });
        Ok(Self {
            control,
            settings,
            session,
            feed: started.feed,
            catalog,
            sleeper,
            events,
            pool,
            timeline: started.timeline,
        })
    }

    /// Applies until something else is wanted or something fails.
    pub fn run(mut self) -> Ended {
        let mut error = self.flow().unwrap_or_else(Some);
        let failed_batch = error
            .as_ref()
            .and_then(|error| self.session.failed_batch(error));
        let stop = error.as_mut().zip(failed_batch);
        let stop = stop.and_then(|(error, at)| self.catalog.stop(error, at));
        let control = self.control;
        if let (Some(error), Some(failed)) = (&error, self.session.running().copied()) {
            control.count(|stats| stats.cycles_failed += 1);
            let words = error.to_string();
            // A target that is away has no row of it. Whatever has failed is told anyway.
            let kept = (self.catalog).keep_failed(&self.settings.replica, &failed, &words);
            if let Err(error) = kept {
                warn!(
                    "that cycle {} has failed cannot be kept: {error}",
                    failed.number
                );
            }
        }
        control.set_session(None);
        control.count(|stats| {
            stats.backends = Vec::new();
            stats.writers = None;
            stats.waits = None;
        });
        self.close(stop);
        control.count(|stats| stats.cycles = None);
        if error.is_some() {
            // The target may have lost what it had not on disk.
            control.count(|stats| stats.applied = stats.applied.min(stats.flushed));
        }
        Ended {
            error,
            failed_batch,
        }
    }

    /// Does what the session decides, until it ends.
    fn flow(&mut self) -> Result<Option<ApplyError>> {
        self.see_wanted()?;
        loop {
            self.hear()?;
            self.act()?;
            let next = self.session.next(Instant::now());
            self.act()?;
            match next {
                Next::Again => {}
                Next::Read => self.read()?,
                Next::Begin => self.begin_cycle()?,
                Next::Wait(patience) => self.wait_event(patience)?,
                // Between cycles, when nothing is read.
                Next::WaitToRead(patience) => {
                    self.see_failure()?;
                    self.wait_event(patience)?;
                    self.see_intake(Instant::now());
                }
                Next::End(error) => return Ok(error),
            }
        }
    }

    /// Hands over what has arrived, up to a number of messages: events and the time are looked at between.
    fn read(&mut self) -> Result<()> {
        let now = Instant::now();
        for _ in 0..MESSAGES {
            if !self.session.reads() {
                break;
            }
            match self.feed.next()? {
                Arrived::Message(data) => {
                    self.keep_timeline()?;
                    self.session.take(data, &mut self.catalog, now)?;
                    self.act()?;
                }
                Arrived::Covered(end) => {
                    self.keep_timeline()?;
                    self.session.covered(end);
                }
                Arrived::NotYet => return self.idle(),
                Arrived::Ended => return Err(ApplyError::Ended),
            }
        }
        Ok(())
    }

    /// Begins a cycle, unless there is nothing for it: then what may be is waited for.
    fn begin_cycle(&mut self) -> Result<()> {
        let now = Instant::now();
        // First: what the spool has afterwards is at least what the source had then.
        self.see_intake(now);
        let Some(received) = self.feed.received() else {
            return Err(ApplyError::System(NEEDS_SPOOL.to_owned()));
        };
        let next = self.session.begin_cycle(received, &mut self.catalog, now)?;
        self.act()?;
        match next {
            Next::WaitToRead(patience) => {
                self.see_failure()?;
                self.wait_event(patience)
            }
            _ => {
                failpoint::CYCLE_BEGUN.reach();
                Ok(())
            }
        }
    }

    /// How the spool gets on, as a cycle must know.
    fn see_intake(&mut self, now: Instant) {
        let is_unsure = self.control.may_spool_lack(now);
        self.session
            .see_intake(self.control.is_spool_full(), is_unsure);
    }

    /// An error if all that has come is done, and nothing more will come.
    fn see_failure(&mut self) -> Result<()> {
        match (self.session.is_done(), &mut self.feed) {
            (true, Feed::Spool(spool)) => spool.failure().map_or(Ok(()), Err),
            _ => Ok(()),
        }
    }

    /// Nothing more has arrived.
    fn idle(&mut self) -> Result<()> {
        self.see_failure()?;
        let next = self.session.idle(Instant::now());
        self.act()?;
        match (next, &mut self.feed) {
            (Next::WaitToRead(rest), Feed::Source(stream)) => {
                let ready = stream.wait(Some(self.sleeper.fd()), rest);
                if ready.map_err(ApplyError::Source)?.woken {
                    self.sleeper.drain();
                }
                Ok(())
            }
            (Next::WaitToRead(rest) | Next::Wait(rest), _) => self.wait_event(rest),
            (Next::Again | Next::Read | Next::Begin | Next::End(_), _) => Ok(()),
        }
    }

    /// Hears all events that are there.
    fn hear(&mut self) -> Result<()> {
        loop {
            match self.events.try_recv() {
                Ok(event) => self.event(event)?,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Ok(()),
            }
        }
    }

    fn event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Wanted => self.see_wanted(),
            Event::Arrived => {
                if let Feed::Spool(spool) = &self.feed {
                    spool.heard();
                }
                Ok(())
            }
            Event::News(news) => {
                self.session.news(news, Instant::now())?;
                self.act()
            }
        }
    }

    fn see_wanted(&mut self) -> Result<()> {
        let wanted = self.control.wanted();
        let now = Instant::now();
        self.session.see_wanted(wanted, &mut self.catalog, now)?;
        self.act()
    }

    fn wait_event(&mut self, patience: Duration) -> Result<()> {
        match self.events.recv_timeout(patience) {
            Ok(event) => self.event(event),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                Err(ApplyError::System("the writer has ended".to_owned()))
            }
        }
    }

    /// Does all that the session wants done at once.
    fn act(&mut self) -> Result<()> {
        while let Some(action) = self.session.action() {
            match action {
                Action::Hand(job) => self.hand(job)?,
                Action::Tell(status) => self.tell(status)?,
                Action::Warn(missing, end) => warn_of_missing(&missing, end),
                Action::Use(used, why) => self.use_writers(used, why),
                shown => self.control.show(shown),
            }
        }
        Ok(())
    }

    /// Uses so many writers, once there are as many. A target that lets no more in is not asked again.
    fn use_writers(&mut self, used: usize, why: Why) {
        while self.pool.writers() < used {
            let number = self.pool.writers();
            let added = writer::another(self.settings, number).and_then(|writer| {
                let backend = writer.backend();
                self.pool.add(writer).map(|()| backend)
            });
            match added {
                Ok(_) if self.pool.writers() == number => return,
                Ok(backend) => self.control.count(|stats| stats.backends.push(backend)),
                Err(error) => {
                    info!("writers: no more than {number}: {error}");
                    self.session.has_no_room(number, error.to_string());
                    return;
                }
            }
        }
        self.pool.set_used(used);
        debug!("writers: {used}, {why}");
        self.control.show(Action::Use(used, why));
    }

    fn hand(&mut self, job: Job) -> Result<()> {
        match self.pool.hand(job) {
            true => Ok(()),
            // The last event of the writers says why.
            false => self.wait_event(STATUS_EVERY),
        }
    }

    fn tell(&mut self, status: Status) -> Result<()> {
        match &mut self.feed {
            Feed::Source(stream) => {
                failpoint::APPLY_UNTOLD.reach();
                let status = Status {
                    sent_at: clock::timestamp(),
                    ..status
                };
                let told = stream.send(&FromStandby::Status(status));
                told.map_err(ApplyError::Source)?;
                failpoint::APPLY_TOLD.reach();
                Ok(())
            }
            Feed::Spool(from) => {
                from.spool
                    .tell(status.applied, status.flushed, status.reply);
                Ok(())
            }
        }
    }

    /// Before the target has anything of a timeline, it knows of the timeline.
    fn keep_timeline(&mut self) -> Result<()> {
        let Feed::Spool(spool) = &self.feed else {
            return Ok(());
        };
        if let Some(timeline) = spool.timeline.filter(|now| self.timeline != Some(*now)) {
            self.catalog
                .keep_timeline(&self.settings.replica, timeline)?;
            self.timeline = Some(timeline);
        }
        Ok(())
    }

    /// Ends both connections. What the writers have is finished if that is quick, and otherwise
    /// rolled back: it will be sent again.
    /// `stop`: what cannot be followed.
    fn close(mut self, stop: Option<Stop>) {
        self.pool.close();
        let mut ending = Ending::new(Instant::now());
        while !self.pool.is_finished() {
            let left = ending.patience(self.pool.has_failed(), Instant::now());
            if left.is_zero() {
                self.pool.cancel();
                ending.cancelled(Instant::now());
                continue;
            }
            // A writer that has nothing to do ends without news.
            match self.events.recv_timeout(left.min(LOOK_EVERY)) {
                Ok(event) => {
                    let _ = self.event(event);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.pool.join();
        // Not before the writers have taken back what they have done.
        if let Some(stop) = stop {
            let kept = self.catalog.keep_stopped(&self.settings.replica, &stop);
            if let Err(error) = kept {
                warn!("where the replica stands cannot be kept: {error}");
            }
        }
        failpoint::APPLY_ENDING.reach();
        let _ = self.hear();
        self.session.tell(false, Instant::now());
        let _ = self.act();
        // A source that is gone or busy need not be waited for: the connection is closed.
        if let Feed::Source(stream) = self.feed {
            let _ = stream.finish(FAREWELL);
        }
    }
}

/// A batch that skipped rows is a sign that the target is not what the source was.
fn warn_of_missing(missing: &Missing, end: Lsn) {
    if missing.is_empty() {
        return;
    }
    let rows = missing.iter();
    let rows: Vec<_> = rows
        .map(|(table, rows)| format!("{rows} of {table}"))
        .collect();
    let rows = rows.join(", ");
    warn!("rows to update or delete, up to {end}, were not on the target and are skipped: {rows}");
}

/// Why a replica with a frequency has no session.
const NEEDS_SPOOL: &str = "a replica with a frequency needs a spool, which has the changes between its \
    cycles: give lockstep replica run --spool-dir and --spool-limit (spool_dir and spool_limit in its \
    file), or set the frequency to 0 (lockstep replica alter NAME --frequency 0)";

/// The frequency with what the target knows of earlier cycles; None if changes are applied as they come.
fn cycles(
    every: Duration,
    spool: Option<&Spool>,
    first: &mut Writer,
) -> Result<Option<(Duration, Past)>> {
    match (every.is_zero(), spool) {
        (true, _) => Ok(None),
        (false, None) => Err(ApplyError::System(NEEDS_SPOOL.to_owned())),
        (false, Some(_)) => first.past().map(|past| Some((every, past))),
    }
}

/// Where changes come from.
enum From<'a> {
    Spool(&'a Spool),
    Source(Beginning),
}

/// What a session has once its stream has begun.
struct Started {
    writers: Vec<Writer>,
    /// Where the target stands, durably.
    stands: Lsn,
    cycles: Option<(Duration, Past)>,
    feed: Feed,
    timeline: Option<Timeline>,
}

impl Started {
    fn new(
        settings: &Settings,
        (from, spool): (From<'_>, Option<&Spool>),
        control: &Control,
        events: &Sender<Event>,
    ) -> Result<Self> {
        let (mut writers, stands) = writer::open(settings)?;
        let first = writers.first_mut();
        let first = first.ok_or_else(|| ApplyError::System("there is no writer".to_owned()))?;
        let known = first.known(stands)?;
        let cycles = cycles(control.wanted().frequency, spool, first)?;
        failpoint::APPLY_OPENED.reach();
        let (feed, timeline) = feed(settings, (from, stands), &known, first, (control, events))?;
        Ok(Self {
            writers,
            stands,
            cycles,
            feed,
            timeline,
        })
    }

    /// What the session is told of it. Transactions up to `careful` are applied one by one.
    fn begin(&self, settings: &Settings, careful: Lsn) -> Begin {
        Begin {
            limits: Limits::of_memory(settings.memory, self.writers.len()),
            memory: settings.memory,
            writers: settings.writers,
            pace: Pace::default(),
            stands: self.stands,
            careful,
            is_spooled: matches!(self.feed, Feed::Spool(_)),
            cycles: self.cycles,
        }
    }
}

/// What a session reads, and the source's timeline as far as it is known.
fn feed(
    settings: &Settings,
    (from, stands): (From<'_>, Lsn),
    known: &FollowedSource,
    first: &mut Writer,
    (control, events): (&Control, &Sender<Event>),
) -> Result<(Feed, Option<Timeline>)> {
    let source = match from {
        From::Source(source) => source.continues(settings, known)?,
        From::Spool(spool) => {
            let owner = Owner::new(settings, known.system.clone());
            let read = spool.read(known, owner, &settings.source_shown(), events.clone())?;
            return Ok((Feed::Spool(Box::new(read)), known.timeline));
        }
    };
    let timeline = source.found.identity.timeline;
    if known.timeline != Some(timeline) {
        first.keep_timeline(timeline)?;
    }
    let stream = source.stream(settings, stands, control)?;
    Ok((Feed::Source(Box::new(stream)), Some(timeline)))
}
