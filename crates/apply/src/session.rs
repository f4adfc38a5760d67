//! One session: a stream from the source, and writers on threads of their own.
//!
//! ```text
//! source ──stream──> this thread: merges, tells the source ──parts──> writers' threads ──> target
//!                          ^──────────────── events ───────────────────────┘
//! ```
//!
//! With a spool the stream comes from there, and it is told what the source is told else.
//!
//! While the writers work this thread reads on, so keepalives are answered at once and the next
//! batch grows as long as the writers need: under load batches are large, without load each
//! transaction goes to the target by itself. A batch is handed over when the socket is empty and no
//! writer has anything to do, or one has none and the batch is worth a second one, or when it is full.
//! Each writer can have one part, and one more can wait; then this thread reads no more, and tells the
//! source from time to time that it is there.
//!
//! The same holds once all of them, with the copies of rows that their statements need, take the memory
//! that they may take: so it is exceeded by what comes of one message, the last that was read.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use lockstep_client::Connection;
use lockstep_service::clock;
use lockstep_service::waker::{self, Sleeper};
use lockstep_wire::stream::{FromServer, FromStandby};
use lockstep_wire::{Lsn, Timeline};
use tracing::warn;

use crate::batch::Counts;
use crate::catalog::{Catalog, Starts};
use crate::continuity::Known;
use crate::control::{Control, Phase, Wanted};
use crate::error::{ApplyError, Result};
use crate::failpoint;
use crate::merge::{Handed, Limits, Merger, Taken};
use crate::pool::{Done, News, Pool};
use crate::positions::Positions;
use crate::run::Settings;
use crate::source::Source;
use crate::spool::{Arrived, Content, Feed};
use crate::writer::{self, Missing, Writer};

/// Parts that may wait for a writer.
const MOST_WAITING: usize = 1;

/// So many changes are worth a writer of their own while another works.
const WORTH: u64 = 500;

/// The source hears of us at least so often; it ends a connection that is silent for
/// `wal_sender_timeout`.
pub(super) const STATUS_EVERY: Duration = Duration::from_secs(5);

/// Messages that are taken before events and the time are looked at again.
const MESSAGES: usize = 64;

/// Time between moves of the origin to positions that are reached without changes: each is a
/// transaction on the target.
const MOVE_EVERY: Duration = Duration::from_millis(20);

/// How long a batch that is being applied may take to end when the session ends.
const LAST_BATCH: Duration = Duration::from_secs(2);

/// How often it is cancelled that takes longer.
const CANCEL_EVERY: Duration = Duration::from_millis(200);

/// How long the source may take to end its stream.
pub(super) const FAREWELL: Duration = Duration::from_millis(500);

/// What the session's thread hears of.
#[derive(Debug)]
pub(crate) enum Event {
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

/// Why a session has ended.
pub(crate) struct Ended {
    pub error: Option<ApplyError>,
    /// If a change did not fit: the end of the last transaction of its batch.
    pub failed_batch: Option<Lsn>,
}

pub(crate) struct Session<'a> {
    control: &'a Control,
    settings: &'a Settings,
    feed: Feed,
    catalog: Catalog,
    merger: Merger,
    positions: Positions,
    sleeper: Sleeper,
    events: Receiver<Event>,
    pool: Pool,
    /// Transactions up to here are applied one by one.
    careful: Lsn,
    /// Jobs that the writers have not done yet, and the memory that they take.
    handed: usize,
    in_flight: usize,
    /// Changes of parts that are done, of a transaction that the target has not committed: if it fails,
    /// they are made again.
    in_parts: Counts,
    moved_at: Instant,
    /// Ends of the transactions in these parts; the last is that of the newest part.
    newest_handed: Lsn,
    /// The first message of a transaction that is held back.
    held: Option<Content>,
    wanted: Wanted,
    last_status: Instant,
    /// Positions have moved since the source was told.
    news: bool,
    source_end: Lsn,
    heard: Option<Instant>,
    bytes: u64,
    /// The source's timeline as the target knows it.
    timeline: Option<Timeline>,
}

impl<'a> Session<'a> {
    /// Connects to both ends. Transactions up to `careful` are applied one by one.
    pub fn open(
        settings: &'a Settings,
        control: &'a Control,
        starts: &mut dyn FnMut(&mut Connection) -> Result<Starts>,
        careful: Lsn,
    ) -> Result<Self> {
        let name = &settings.application_name;
        let (mut writers, stands) = writer::open(settings)?;
        let catalog = Catalog::connect(&settings.target, name, starts)?;
        let first = writers.first_mut();
        let first = first.ok_or_else(|| ApplyError::System("there is no writer".to_owned()))?;
        let known = first.known(stands)?;
        failpoint::APPLY_OPENED.reach();
        let pair = waker::pair().map_err(|error| ApplyError::System(error.to_string()));
        let (sleeper, waker) = pair?;
        let (event_sender, events) = mpsc::channel();
        let (feed, timeline) = feed(settings, &known, stands, first, &event_sender)?;
        control.set_session(Some((event_sender.clone(), waker.clone())));
        let limits = Limits::of_memory(settings.memory, writers.len());
        let backends = writers.iter().map(Writer::backend);
        let backends = backends.chain([catalog.backend()]).collect();
        let pool = Pool::start(
            writers,
            settings.writers + MOST_WAITING,
            &event_sender,
            &waker,
        )?;
        control.count(|stats| {
            stats.phase = Phase::Applying;
            stats.error = None;
            stats.backends = backends;
            stats.sessions += 1;
            stats.applied = stands;
            stats.flushed = stands;
            stats.caught_up = false;
        });
        Ok(Self {
            control,
            settings,
            feed,
            catalog,
            merger: Merger::new(limits, careful),
            positions: Positions::new(stands),
            sleeper,
            events,
            pool,
            careful,
            handed: 0,
            in_flight: 0,
            in_parts: Counts::default(),
            moved_at: Instant::now(),
            newest_handed: stands,
            held: None,
            wanted: Wanted::default(),
            last_status: Instant::now(),
            news: true,
            source_end: Lsn::INVALID,
            heard: None,
            bytes: 0,
            timeline,
        })
    }

    /// Applies until something else is wanted or something fails.
    pub fn run(mut self) -> Ended {
        let result = self.flow();
        let failed_batch = match &result {
            Err(ApplyError::Conflict(conflict)) if conflict.lsn.is_valid() => Some(conflict.lsn),
            Err(ApplyError::Conflict(_)) => Some(self.newest_handed),
            _ => None,
        };
        let control = self.control;
        control.set_session(None);
        control.count(|stats| {
            stats.backends = Vec::new();
            stats.waits = None;
        });
        self.close();
        if result.is_err() {
            // The target may have lost what it had not on disk.
            control.count(|stats| stats.applied = stats.applied.min(stats.flushed));
        }
        Ended {
            error: result.err(),
            failed_batch,
        }
    }

    fn flow(&mut self) -> Result<()> {
        self.see_wanted()?;
        loop {
            if self.wanted.ends() {
                return Ok(());
            }
            self.hear()?;
            self.tell_if_due()?;
            if self.merger.is_full() {
                self.hand_over()?;
                continue;
            }
            if self.is_crowded() {
                self.make_room()?;
                continue;
            }
            if self.held.is_some() {
                self.wait_held()?;
                continue;
            }
            self.read()?;
        }
    }

    /// Takes what has arrived, up to a number of messages: events and the time are looked at between.
    fn read(&mut self) -> Result<()> {
        let mut heard = false;
        for _ in 0..MESSAGES {
            if self.merger.is_full() || self.is_crowded() || self.held.is_some() {
                break;
            }
            match self.feed.next()? {
                Arrived::Message(data) => {
                    if !std::mem::replace(&mut heard, true) {
                        self.heard = Some(Instant::now());
                    }
                    self.keep_timeline()?;
                    if let Err(error) = self.take(data) {
                        return self.after_handed(error);
                    }
                }
                Arrived::Covered(end) => {
                    self.keep_timeline()?;
                    self.covered(end);
                }
                Arrived::NotYet => {
                    self.idle()?;
                    break;
                }
                Arrived::Ended => return Err(ApplyError::Ended),
            }
        }
        Ok(())
    }

    /// A change does not fit: what was handed over comes before it, and is done first.
    fn after_handed(&mut self, error: ApplyError) -> Result<()> {
        let fits = !matches!(error, ApplyError::Conflict(_));
        while self.handed > 0 && !(fits || self.wanted.ends()) {
            self.wait_event(STATUS_EVERY)?;
            self.tell_if_due()?;
        }
        Err(error)
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
            Event::News(News::Failed(error)) => Err(error),
            Event::News(News::Moved(end)) => {
                self.handed = self.handed.saturating_sub(1);
                self.positions.moved(end);
                self.moved_at = Instant::now();
                self.news = true;
                Ok(())
            }
            Event::News(News::Done(done)) => {
                self.done(&done);
                Ok(())
            }
        }
    }

    /// A writer has done a part. That is told in the order of the parts.
    fn done(&mut self, done: &Done) {
        self.handed = self.handed.saturating_sub(1);
        self.in_flight = self.in_flight.saturating_sub(done.memory);
        if done.stale {
            self.merger.look_again();
        }
        if let Some(commit) = done.commit {
            self.positions.applied(commit.end);
            if done.flushed {
                self.positions.flushed();
            }
            self.news = true;
            warn_of_missing(&done.missing, commit.end);
        }
        self.in_parts.add(&done.counts);
        let Some(commit) = done.commit else {
            return;
        };
        let counts = std::mem::take(&mut self.in_parts);
        self.control.count(|stats| {
            stats.counts.add(&counts);
            stats.missing += done.missing.values().sum::<u64>();
            stats.again += u64::from(done.again);
            stats.batches += 1;
            stats.commit_time = Some(commit.time);
        });
    }

    fn see_wanted(&mut self) -> Result<()> {
        let before = self.wanted.hold;
        self.wanted = self.control.wanted();
        self.merger.set_hold(self.wanted.hold);
        if self.wanted.hold != before {
            if let Some(data) = self.held.take() {
                self.take(data)?;
            }
            // The source's answer says how far its WAL goes, if nothing else does.
            self.tell(true)?;
        }
        self.control.holds(self.wanted.hold);
        Ok(())
    }

    fn take(&mut self, data: Content) -> Result<()> {
        match FromServer::parse(data.as_ref())? {
            FromServer::XLogData { wal, end, .. } => {
                self.source_end = self.source_end.max(end);
                match self.merger.take(wal, &mut self.catalog)? {
                    Taken::Inside => {}
                    Taken::Ended(commit) => {
                        self.positions.received(commit.end);
                    }
                    Taken::Held(commit) => {
                        self.positions.received(commit);
                        self.news = true;
                        self.held = Some(data);
                        return Ok(());
                    }
                }
                self.bytes += data.as_ref().len() as u64;
            }
            FromServer::Keepalive { end, reply, .. } => {
                self.source_end = self.source_end.max(end);
                self.covered(end);
                if reply {
                    self.tell(false)?;
                }
            }
        }
        Ok(())
    }

    /// Nothing comes any more that ends before `end`.
    fn covered(&mut self, end: Lsn) {
        // Within a transaction the source may be further than what it has sent. While it waits for the
        // target to flush, it answers whatever it is told at once with the position that it has told
        // before: if that were news, the two would go on like that until the target is done.
        if !self.merger.is_inside() {
            self.news |= self.positions.received(end);
        }
    }

    /// The target has nothing of a timeline that it does not know of.
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

    /// Nothing more has arrived.
    fn idle(&mut self) -> Result<()> {
        if self.is_worth_it() {
            return self.hand_over();
        }
        if let (0, Feed::Spool(spool)) = (self.handed, &mut self.feed) {
            if let Some(error) = spool.failure() {
                return Err(error);
            }
        }
        self.tell_news()?;
        let rest = self.move_origin()?;
        let Feed::Source(stream) = &mut self.feed else {
            return self.wait_event(rest);
        };
        let wake = Some(self.sleeper.fd());
        let ready = stream.wait(wake, rest).map_err(ApplyError::Source)?;
        if ready.woken {
            self.sleeper.drain();
        }
        Ok(())
    }

    /// What is gathered may go to a writer before the batch is full.
    fn is_worth_it(&self) -> bool {
        let has_more = self.handed < self.pool.writers() && self.merger.rows() >= WORTH;
        self.merger.can_commit() && (self.handed == 0 || has_more)
    }

    /// What is gathered and what the writers have takes all memory: nothing more is read until one of
    /// them is done with a part. What is gathered alone never does, but for a row that is larger.
    fn is_crowded(&self) -> bool {
        self.in_flight > 0 && self.in_flight + self.merger.memory() >= self.settings.memory
    }

    fn make_room(&mut self) -> Result<()> {
        match self.merger.can_commit() {
            true => self.hand_over(),
            false => self.wait_event(STATUS_EVERY),
        }
    }

    /// Waits without reading, as the next message is not to be taken.
    fn wait_held(&mut self) -> Result<()> {
        if self.is_worth_it() {
            return self.hand_over();
        }
        self.tell_news()?;
        let rest = self.move_origin()?;
        self.wait_event(rest)
    }

    /// Moves the origin if that is the only way forward. Returns how long to wait for events.
    fn move_origin(&mut self) -> Result<Duration> {
        let to_move = self.positions.to_move(self.merger.is_idle());
        let Some(end) = to_move.filter(|_| self.handed == 0) else {
            return Ok(STATUS_EVERY);
        };
        let rest = MOVE_EVERY.saturating_sub(self.moved_at.elapsed());
        if !rest.is_zero() {
            return Ok(rest);
        }
        let sent = self.pool.move_to(end);
        self.sent(sent)?;
        Ok(STATUS_EVERY)
    }

    /// A job was handed over, or the writers have ended.
    fn sent(&mut self, sent: bool) -> Result<()> {
        self.handed += 1;
        match sent {
            true => Ok(()),
            // Its last event says why.
            false => self.wait_event(STATUS_EVERY),
        }
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

    /// Hands over what is gathered, once the writers have room for it.
    fn hand_over(&mut self) -> Result<()> {
        if self.handed >= self.pool.writers() + MOST_WAITING {
            return self.wait_event(STATUS_EVERY);
        }
        match self.merger.hand_over() {
            Handed::Position(commit) => {
                self.positions.received(commit.end);
                self.news = true;
            }
            Handed::Part(part) => {
                if let Some(commit) = part.commit {
                    self.positions.handed(commit.end);
                    self.newest_handed = commit.end;
                }
                self.control.count(|stats| stats.caught_up = false);
                // One of these is known not to fit.
                let alone = part.lsn <= self.careful;
                self.in_flight += part.memory;
                let sent = self.pool.part(part, alone);
                self.sent(sent)?;
            }
        }
        Ok(())
    }

    fn tell_if_due(&mut self) -> Result<()> {
        if self.last_status.elapsed() >= STATUS_EVERY {
            // Its answer shows that it is there.
            return self.tell(true);
        }
        match self.handed {
            0 => self.tell_news(),
            _ => Ok(()),
        }
    }

    /// Tells whoever has not heard of it how far we are. What is only received is for the statistics:
    /// the source would work on each message, and answer it.
    fn tell_news(&mut self) -> Result<()> {
        if !self.news {
            return Ok(());
        }
        if self.positions.is_ahead_of_told(self.merger.is_idle()) {
            return self.tell(false);
        }
        self.count();
        Ok(())
    }

    /// Tells the source the positions, and the statistics as well.
    fn tell(&mut self, reply: bool) -> Result<()> {
        let mut status = self
            .positions
            .status(self.merger.is_idle(), clock::timestamp());
        status.reply = reply;
        self.last_status = Instant::now();
        self.count();
        match &mut self.feed {
            Feed::Source(stream) => {
                failpoint::APPLY_UNTOLD.reach();
                let status = FromStandby::Status(status);
                stream.send(&status).map_err(ApplyError::Source)?;
                failpoint::APPLY_TOLD.reach();
                Ok(())
            }
            Feed::Spool(from) => {
                from.spool.tell(status.applied, status.flushed, reply);
                Ok(())
            }
        }
    }

    /// Tells the statistics.
    fn count(&mut self) {
        self.news = false;
        let is_idle = self.merger.is_idle();
        let (flushed, applied) = self.positions.told();
        let (source_end, bytes) = (self.source_end, std::mem::take(&mut self.bytes));
        let heard = self.heard;
        // What the intake hears counts there.
        let is_spooled = matches!(self.feed, Feed::Spool(_));
        let caught_up = is_idle && self.positions.is_settled();
        self.control.count(|stats| {
            stats.applied = applied;
            stats.flushed = flushed;
            stats.caught_up = caught_up;
            if !is_spooled {
                stats.source_end = stats.source_end.max(source_end);
                stats.heard = heard;
                stats.bytes += bytes;
            }
        });
    }

    /// Ends both connections. What the writer has is finished if that is quick, and otherwise
    /// rolled back: it will be sent again.
    fn close(mut self) {
        self.pool.close();
        let mut deadline = Instant::now() + LAST_BATCH;
        let mut is_cancelled = false;
        while !self.pool.is_finished() {
            let left = match self.pool.has_failed() && !is_cancelled {
                true => Duration::ZERO,
                false => deadline.saturating_duration_since(Instant::now()),
            };
            match self.events.recv_timeout(left) {
                Ok(event) => {
                    let _ = self.event(event);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    // Between two statements there is nothing to cancel: so again.
                    self.pool.cancel();
                    is_cancelled = true;
                    deadline = Instant::now() + CANCEL_EVERY;
                }
            }
        }
        self.pool.join();
        failpoint::APPLY_ENDING.reach();
        let _ = self.hear();
        let _ = self.tell(false);
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

/// What a session reads, and the source's timeline as far as it is known.
fn feed(
    settings: &Settings,
    known: &Known,
    stands: Lsn,
    first: &mut Writer,
    events: &Sender<Event>,
) -> Result<(Feed, Option<Timeline>)> {
    if let Some(spool) = &settings.spool {
        let read = spool.read(known, settings, events.clone())?;
        return Ok((Feed::Spool(Box::new(read)), known.timeline));
    }
    let source = Source::ask(settings, known)?;
    let timeline = source.timeline;
    if known.timeline != Some(timeline) {
        first.keep_timeline(timeline)?;
    }
    let stream = source.stream(settings, stands)?;
    Ok((Feed::Source(stream), Some(timeline)))
}
