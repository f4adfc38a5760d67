//! A replica's spool as the host of its stream, which crate `intake` receives: one thread, for as long
//! as the replica is followed.
//!
//! What the receiver's states (`lockstep_intake::receiver`) are here:
//!
//! | state | here |
//! |---|---|
//! | `Halted` | no session has begun the log yet, or the source was refused: whoever reads the log ends with the error once it has all; a session looks again, or begins the log anew where the target stands |
//! | `Blocked` | the log is full, until the target has some of it on disk |
//! | `Leaving` | the replica ends: what has come is made durable, and the source told |
//!
//! *Flushed* in a confirmation is what the log has on disk, *applied* what of that the target has
//! committed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_client::ClientError;
use lockstep_intake::continuity::{FollowedSource, SourceFound};
use lockstep_intake::driver::{Driver, Host, News, Rest, SourceStream};
use lockstep_intake::error::IntakeError;
use lockstep_intake::receiver::{AppliedByReaders, Event, Refusal, Terms, Trusted};
use lockstep_service::clock;
use lockstep_service::waker::{self, Sleeper};
use lockstep_spool::{Log, LogError, Storage};
use lockstep_wire::Lsn;
use lockstep_wire::stream::Timestamp;
use tracing::{error, info, warn};

use super::{Identity, Spool, SpoolState};
use crate::continuity::{Holder, differs, gap};
use crate::control::{Control, FullBy, SpoolFull, SpoolStats};
use crate::error::{ApplyError, Result};
use crate::failpoint;
use crate::fault::Fault;
use crate::limited::LimitedStream;
use crate::session::STATUS_EVERY;
use crate::settings::{LONGEST_PAUSE, SHORTEST_PAUSE, Settings};
use crate::source::{FAREWELL, Source};

/// How a spool's stream is received.
pub const TERMS: Terms = Terms {
    batched: false,
    status_every: STATUS_EVERY,
    asks: true,
    retry: [SHORTEST_PAUSE, LONGEST_PAUSE],
    trusted: Trusted::OnceMoved,
    refusal: Refusal::Halts,
    unsynced: 1 << 20,
    farewell: Some(FAREWELL),
};

/// Takes the source's stream into the spool until [`Spool::stop`].
pub fn take_in(spool: &Spool, settings: &Settings, control: &Control) {
    let _guard = Guard(spool);
    let (sleeper, waker) = match waker::pair() {
        Ok(pair) => pair,
        Err(error) => return spool.refuse(None, ApplyError::System(error.to_string())),
    };
    spool.state().intake = Some(waker);
    let world = Real {
        settings,
        control,
        sleeper,
    };
    let host = SpoolHost::new(spool.clone(), control.clone(), world);
    Driver::new(host, TERMS).run();
    spool.state().intake = None;
}

/// Ends the reader's waiting if the intake's thread panics.
struct Guard<'a>(&'a Spool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let words = "the thread that fills the spool has panicked".to_owned();
        self.0.refuse(None, ApplyError::System(words));
    }
}

impl<S: Storage> Spool<S> {
    /// The stream cannot go on into this log, or into any.
    fn refuse(&self, log: Option<&Arc<Log<S>>>, why: ApplyError) {
        let mut state = self.state();
        // A session has begun another log meanwhile.
        if log.is_some_and(|log| !state.has(log)) {
            return;
        }
        match state.anchored {
            true => error!("the spool takes nothing in any more: {why}"),
            false => warn!("the spool takes nothing in until the target is there: {why}"),
        }
        state.refused = Some(why);
        state.halted = true;
        state.joined = false;
        drop(state);
        self.arrived();
    }

    /// A stream into this log begins, from a source that continues it. An error if another log was begun
    /// meanwhile.
    fn join(&self, log: &Arc<Log<S>>, found: &SourceFound, fault: Option<Fault>) -> Result<()> {
        let mut state = self.state();
        if !state.has(log) {
            return Err(ApplyError::Ended);
        }
        let (timeline, history) = (Some(found.identity.timeline), Some(&found.history));
        if let Some(identity) = &mut state.identity {
            if identity.timeline != timeline || identity.history.as_ref() != history {
                let moved = Identity {
                    timeline,
                    history: history.cloned(),
                    ..identity.clone()
                };
                if fault == Some(Fault::SpoolTimelineKnownFirst) {
                    identity.clone_from(&moved);
                }
                // Before anything of the new timeline is in the log. Known here once it is kept: a join that
                // failed keeps it at the next try.
                if fault != Some(Fault::SpoolTimelineNotKept) {
                    self.keep(&moved)?;
                }
                *identity = moved;
            }
        }
        self.set_timeline(timeline);
        state.joined = true;
        Ok(())
    }

    /// What is known of the source that was followed up to the log's end.
    fn followed(&self, log: &Log<S>) -> FollowedSource {
        let state = self.state();
        let identity = state.identity.as_ref();
        FollowedSource {
            system: identity.and_then(|identity| identity.owner.system.clone()),
            timeline: self.timeline(),
            history: identity.and_then(|identity| identity.history.clone()),
            received: log.received(),
            // A relay has slots that it does not list.
            slot: None,
        }
    }

    /// Why the stream must not go on, and where the spool ends.
    fn ending(&self, words: &str, log: &Log<S>) -> ApplyError {
        let end = log.received();
        ApplyError::Gap(match &self.state().cut {
            Some(file) => format!(
                "{words} (spool file {} was damaged, and cut at {end})",
                file.display()
            ),
            None => format!(
                "{words} (the spool {} ends at {end})",
                self.folder().display()
            ),
        })
    }
}

/// What a spool's host reaches: servers, a clock, and threads that wait. The simulation of the spool has
/// its own.
pub trait SpoolWorld {
    /// A source that was asked, and does not stream yet.
    type Asked;
    type Stream: SourceStream;

    /// Connects, and asks the source what it says of itself and the slot.
    fn ask(&mut self) -> Result<(Self::Asked, SourceFound)>;
    /// Starts the stream, if the source publishes what it should.
    fn start(&mut self, asked: Self::Asked, from: Lsn) -> Result<Self::Stream>;
    /// The slot's name, for errors.
    fn slot(&self) -> &str;
    /// Waits until the stream has something, the spool has news, or for `most`.
    fn wait(&mut self, stream: &mut Self::Stream, most: Duration) -> Result<(), ClientError>;
    /// Calls `sleep`, which returns after `most`, or once what is waited for is there.
    fn rest(&mut self, most: Duration, sleep: &dyn Fn(Duration));
    fn now(&self) -> Instant;
}

/// Servers and threads as they are.
struct Real<'a> {
    settings: &'a Settings,
    control: &'a Control,
    sleeper: Sleeper,
}

impl SpoolWorld for Real<'_> {
    type Asked = Source;
    type Stream = LimitedStream;

    fn ask(&mut self) -> Result<(Source, SourceFound)> {
        let source = Source::ask(self.settings)?;
        let found = source.found.clone();
        Ok((source, found))
    }

    fn start(&mut self, mut source: Source, from: Lsn) -> Result<LimitedStream> {
        source.check_published(self.settings)?;
        source.stream(self.settings, from, self.control)
    }

    fn slot(&self) -> &str {
        &self.settings.slot
    }

    fn wait(&mut self, stream: &mut LimitedStream, most: Duration) -> Result<(), ClientError> {
        if stream.wait(Some(self.sleeper.fd()), most)?.woken {
            self.sleeper.drain();
        }
        Ok(())
    }

    fn rest(&mut self, most: Duration, sleep: &dyn Fn(Duration)) {
        sleep(most);
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// A spool as the host of its stream.
pub struct SpoolHost<S: Storage, W> {
    spool: Spool<S>,
    control: Control,
    world: W,
    /// The log that the stream goes to.
    log: Option<Arc<Log<S>>>,
    /// The source has said on this connection that its WAL goes so far.
    source_end: Lsn,
    /// What the target had committed at most while there was this connection.
    applied: Lsn,
    /// The log keeps nothing that the target has on disk up to here.
    retained: Lsn,
    /// What the target had on disk when room was made last.
    seen: Lsn,
    /// Why the last write found no room.
    no_room: Option<LogError>,
    /// Why nothing more is taken in, once that was said.
    full: Option<SpoolFull>,
    fault: Option<Fault>,
}

impl<S: Storage, W: SpoolWorld> SpoolHost<S, W> {
    pub fn new(spool: Spool<S>, control: Control, world: W) -> Self {
        Self {
            spool,
            control,
            world,
            log: None,
            source_end: Lsn::INVALID,
            applied: Lsn::INVALID,
            retained: Lsn::INVALID,
            seen: Lsn::INVALID,
            no_room: None,
            full: None,
            fault: None,
        }
    }

    /// The host with a fault planted, for tests.
    #[must_use]
    pub fn with_fault(self, fault: Option<Fault>) -> Self {
        Self { fault, ..self }
    }

    fn ours<T>(&self, done: Result<T, LogError>) -> Result<T> {
        done.map_err(|error| self.spool.error(error))
    }

    fn with_log<T>(&self, does: impl FnOnce(&Log<S>) -> Result<T, LogError>) -> Result<T> {
        self.ours(match &self.log {
            Some(log) => does(log),
            None => Err(LogError::NoLog),
        })
    }

    /// Whether a session has begun another log than the one that the stream goes to.
    fn is_replaced(&self) -> bool {
        let state = self.spool.state();
        self.log.as_ref().is_some_and(|log| !state.has(log))
    }

    /// Says that the log has no room, once it is so and each time that the reason is another.
    fn say_full(&mut self) {
        let Some(error) = &self.no_room else {
            return;
        };
        let most = self.spool.0.config.limit / 2;
        let is_huge = self.log.as_ref().is_some_and(|log| log.open_bytes() > most);
        let by = match error {
            LogError::SpoolFull { .. } if is_huge => FullBy::Transaction,
            LogError::SpoolFull { .. } => FullBy::Limit,
            _ => FullBy::Disk,
        };
        let words = match by {
            FullBy::Transaction => format!(
                "{error}: most of it is a transaction whose end has not been received, which must fit as a \
                 whole; raise spool_limit"
            ),
            FullBy::Limit => format!(
                "{error}: nothing more is taken from the source, which keeps WAL until the target has \
                 applied some of it"
            ),
            FullBy::Disk => {
                let stats = self.spool.stats();
                let until = match stats.is_some_and(|spool| spool.from < spool.to) {
                    true => {
                        "the target has applied what is in the spool, or somebody makes room on the disk"
                    }
                    false => "somebody makes room on the disk",
                };
                format!(
                    "{error} before its limit is reached: nothing more is taken from the source, which keeps \
                     WAL until {until}"
                )
            }
        };
        let by = Some(by);
        let full = SpoolFull { by, words };
        if self.full.as_ref() != Some(&full) {
            warn!("the spool is full: {}", full.words);
            self.full = Some(full);
            self.show();
        }
    }

    /// Shows whether the source has said that it has more than the log.
    fn show_lacks(&self) {
        let log = self.log.as_ref();
        let lacks = log.is_none_or(|log| log.received() < self.source_end);
        self.control.count(|stats| stats.spool_lacks = lacks);
    }

    fn show(&self) {
        let spool = self.spool.stats().map(|stats| SpoolStats {
            full: self.full.clone(),
            ..stats
        });
        self.control.count(|stats| stats.spool = spool);
    }
}

impl<S: Storage, W: SpoolWorld> Host for SpoolHost<S, W> {
    type Storage = S;
    type Stream = W::Stream;
    type Error = ApplyError;

    fn log(&self) -> Option<Arc<Log<S>>> {
        self.log.clone()
    }

    fn wants(&mut self) -> Option<Event> {
        self.spool.state().stop.then_some(Event::Stop)
    }

    fn may_begin(&self) -> bool {
        let state = self.spool.state();
        state.log.is_some() && !state.halted
    }

    fn connect(&mut self) -> Result<(W::Stream, Lsn)> {
        self.log = self.spool.log();
        let log = self.log.clone();
        let log = log.ok_or_else(|| self.spool.error(LogError::NoLog))?;
        self.applied = Lsn::INVALID;
        self.retained = Lsn::INVALID;
        // Also while the source is away.
        self.show();
        let (asked, found) = self.world.ask()?;
        // The slot, where the stream begins, may be far behind.
        self.source_end = found.identity.end;
        self.show_lacks();
        let followed = self.spool.followed(&log);
        let gap = gap(&followed, &found, self.world.slot(), Holder::Spool);
        if let Some(words) = gap.filter(|_| self.fault != Some(Fault::SpoolTakesAny)) {
            return Err(self.spool.ending(&words, &log));
        }
        self.spool.join(&log, &found, self.fault)?;
        let end = log.received();
        let from = found.slot.map_or(end, |slot| slot.confirmed);
        let stream = self.world.start(asked, from)?;
        Ok((stream, from))
    }

    fn applied(&mut self) -> AppliedByReaders {
        let mut state = self.spool.state();
        self.applied = self.applied.max(state.applied);
        AppliedByReaders {
            lsn: self.applied,
            awaited: true,
            ask: std::mem::take(&mut state.ask),
        }
    }

    /// Makes durable what was appended. What the target has on disk need not be kept.
    fn sync(&mut self) -> Result<()> {
        self.with_log(Log::sync)?;
        let flushed = match self.fault {
            Some(Fault::SpoolForgetsCommitted) => self.spool.state().applied,
            _ => self.spool.state().flushed,
        };
        if flushed > self.retained {
            self.with_log(|log| log.retain(flushed))?;
            self.retained = flushed;
        }
        Ok(())
    }

    fn make_room(&mut self) -> Result<bool> {
        self.with_log(Log::sync)?;
        self.spool.arrived();
        self.seen = self.spool.state().flushed;
        let made = self.with_log(|log| log.retain(self.seen))? > 0;
        if !made {
            self.say_full();
        }
        Ok(made)
    }

    fn wait(&mut self, stream: &mut W::Stream, most: Duration) -> Result<(), ClientError> {
        self.world.wait(stream, most)
    }

    fn rest(&mut self, most: Duration, why: Rest) {
        let seen = self.seen;
        let ready = |state: &SpoolState<S>| {
            state.stop
                || match why {
                    Rest::Halted => state.log.is_some() && !state.halted,
                    Rest::Full => state.flushed > seen,
                    Rest::Pause | Rest::Spared => false,
                }
        };
        let spool = &self.spool;
        self.world.rest(most, &|most| spool.wait(most, ready));
    }

    fn hear(&mut self, news: News<ApplyError>) {
        match news {
            News::Connected(from) => {
                // What a connection before this one waited for may be there.
                self.no_room = None;
                self.full = None;
                let end = self.log.as_ref().map(|log| log.received());
                let end = end.unwrap_or_default();
                info!(slot_at = %from, from = %end, "the spool takes in what the source sends");
                self.show();
            }
            News::Heard { bytes, sent } => {
                let heard = Some(self.world.now());
                self.control.count(|stats| {
                    stats.bytes += bytes;
                    stats.heard = heard;
                    stats.source_end = stats.source_end.max(sent);
                });
                self.source_end = self.source_end.max(sent);
                self.show_lacks();
            }
            News::Stored { .. } | News::Covered => {
                self.show_lacks();
                self.spool.arrived();
            }
            News::Confirmed => {
                self.show();
                failpoint::SPOOL_TOLD.reach();
            }
            News::Blocked(error) => self.no_room = Some(error),
            News::Unblocked => {
                self.no_room = None;
                if self.full.take().is_some() {
                    info!("the spool has room again");
                    self.show();
                }
            }
            News::NotCut(error) => warn!(%error, "cannot drop an unfinished transaction"),
            // A session has begun another log.
            News::Failed(_) if self.is_replaced() => {}
            News::Failed(error) if error.may_pass() => {
                warn!("the spool takes nothing in: {error}; tried again");
            }
            News::Failed(error) => self.spool.refuse(self.log.as_ref(), error),
            News::Compared | News::Disconnected | News::Spared => {}
        }
    }

    fn error(&self, error: IntakeError) -> ApplyError {
        match error {
            IntakeError::Source(error) => ApplyError::Source(error),
            IntakeError::Ended => ApplyError::Ended,
            IntakeError::Stream(error) => {
                ApplyError::System(format!("the source sent a malformed stream: {error}"))
            }
            IntakeError::Log(error) => self.spool.error(error),
            IntakeError::Differs(at) => match &self.log {
                Some(log) => self.spool.ending(&differs(at), log),
                None => ApplyError::Gap(differs(at)),
            },
        }
    }

    fn is_refusal(&self, error: &ApplyError) -> bool {
        !error.may_pass() && !self.is_replaced()
    }

    fn now(&self) -> Instant {
        self.world.now()
    }

    fn wall_clock(&self) -> Timestamp {
        clock::timestamp()
    }
}
