//! Takes the stream into the spool: one thread, for as long as the replica is followed.
//!
//! The states, in the order in which they are entered:
//!
//! | state | entered | left | meanwhile |
//! |---|---|---|---|
//! | waiting for a log | at the start | a session has begun one, or found one | nothing |
//! | connecting | there is a log; the stream was lost, after a pause | the source can go on where the log ends: streaming; else refused | an unfinished transaction is cut off the log |
//! | streaming | connected | the stream is lost: connecting; the end: stopped | what comes is appended, made durable, then confirmed |
//! | full | the log has no room | the target has made some durable | nothing is read from the stream; the source hears that somebody is there |
//! | refused | the source cannot go on, or nothing can be written | a session begins the log anew where the target stands; the end | nothing; whoever reads the log ends with the error once it has all |
//!
//! *Flushed* in a confirmation is what the log has on disk, *applied* what the target has committed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_client::{Next, Stream};
use lockstep_service::clock;
use lockstep_service::waker::{self, Sleeper};
use lockstep_spool::{Assembler, Folder, GATHER, Log, LogError, parts};
use lockstep_wire::Lsn;
use lockstep_wire::stream::{FromStandby, Status};
use tracing::{error, info, warn};

use super::{Spool, SpoolStats, State};
use crate::continuity::{Known, SPOOL};
use crate::control::Control;
use crate::drive::FAREWELL;
use crate::error::{ApplyError, Result};
use crate::failpoint;
use crate::run::{LONGEST_PAUSE, SHORTEST_PAUSE, Settings};
use crate::session::STATUS_EVERY;
use crate::source::Source;

/// Bytes that are appended before they are made durable, while more has come.
const UNSYNCED: usize = 1 << 20;

/// Longest time between two looks at a spool that is full.
const LOOK_FULL: Duration = Duration::from_millis(200);

/// Takes the source's stream into the spool until [`Spool::stop`].
pub fn take_in(spool: &Spool, settings: &Settings, control: &Control) {
    let _guard = Guard(spool);
    let pair = match waker::pair() {
        Ok(pair) => pair,
        Err(error) => return spool.refuse(None, ApplyError::System(error.to_string())),
    };
    spool.state().intake = Some(pair.1);
    let mut intake = Intake {
        spool,
        settings,
        control,
        sleeper: pair.0,
        told: Told::default(),
        full: None,
        unsynced: 0,
    };
    let mut pause = SHORTEST_PAUSE;
    loop {
        spool.wait(Duration::MAX / 4, |state| {
            state.stop || (state.log.is_some() && !state.halted)
        });
        let log = {
            let state = spool.state();
            match (state.stop, &state.log) {
                (false, Some(log)) => Arc::clone(log),
                _ => break,
            }
        };
        match intake.stream(&log) {
            Ok(()) => break,
            // A session has begun another log meanwhile.
            Err(_) if !spool.state().has(&log) => {}
            Err(error) if error.may_pass() => {
                if intake.told.any {
                    pause = SHORTEST_PAUSE;
                }
                warn!("the spool takes nothing in: {error}; tried again");
                spool.wait(pause, |state| state.stop);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(error) => spool.refuse(Some(&log), error),
        }
    }
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

impl State {
    fn has(&self, log: &Log<Folder>) -> bool {
        let is_it = |now: &Arc<Log<Folder>>| std::ptr::eq(Arc::as_ptr(now), log);
        self.log.as_ref().is_some_and(is_it)
    }
}

impl Spool {
    /// The stream cannot go on into this log, or into any.
    fn refuse(&self, log: Option<&Log<Folder>>, why: ApplyError) {
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
}

/// What the source was told last.
#[derive(Debug, Default)]
struct Told {
    any: bool,
    flushed: Lsn,
    applied: Lsn,
    at: Option<Instant>,
}

impl Told {
    /// The next message to the source: what the log has, what of it is on disk, and what the target has
    /// committed. The last two never go back.
    fn status(&mut self, received: Lsn, durable: Lsn, applied: Lsn) -> Status {
        self.flushed = self.flushed.max(durable);
        self.applied = self.applied.max(applied);
        Status {
            written: received.max(self.applied),
            flushed: self.flushed,
            applied: self.applied,
            ..Status::default()
        }
    }
}

struct Intake<'a> {
    spool: &'a Spool,
    settings: &'a Settings,
    control: &'a Control,
    sleeper: Sleeper,
    told: Told,
    /// Why nothing more is taken in.
    full: Option<String>,
    unsynced: usize,
}

impl Intake<'_> {
    /// Streams into the log until the end, which is no error, or until the stream is lost.
    fn stream(&mut self, log: &Log<Folder>) -> Result<()> {
        self.told = Told::default();
        {
            let state = self.spool.state();
            self.check_ours(&state, log)?;
            self.ours(log.cut())?;
        }
        let mut stream = self.connect(log)?;
        self.ours(log.begin_session())?;
        let mut retained = Lsn::INVALID;
        let mut assembler = Assembler::new(log.received(), false);
        self.show();
        loop {
            let more = self.gather(&mut stream, &mut assembler)?;
            if !self.store(&mut stream, log, &mut assembler)? {
                return self.end(stream, log);
            }
            if !more || self.unsynced >= UNSYNCED {
                self.sync(log)?;
                // What the target has need not be kept.
                let flushed = self.spool.state().flushed;
                if flushed > retained {
                    self.ours(log.retain(flushed))?;
                    retained = flushed;
                }
            }
            let asked = assembler.take_reply();
            self.tell_if_due(&mut stream, log, asked)?;
            if self.spool.state().stop {
                return self.end(stream, log);
            }
            if more {
                continue;
            }
            let rest = self.rest();
            let ready = stream.wait(Some(self.sleeper.fd()), rest);
            if ready.map_err(ApplyError::Source)?.woken {
                self.sleeper.drain();
            }
        }
    }

    fn ours<T>(&self, done: std::result::Result<T, LogError>) -> Result<T> {
        done.map_err(|error| self.spool.error(error))
    }

    /// An error if another log was begun instead.
    fn check_ours(&self, state: &State, log: &Log<Folder>) -> Result<()> {
        match state.has(log) {
            true => Ok(()),
            false => Err(ApplyError::Ended),
        }
    }

    /// A stream from the log's end on, if the source can go on there.
    fn connect(&mut self, log: &Log<Folder>) -> Result<Stream> {
        let end = log.received();
        let system = {
            let state = self.spool.state();
            state
                .identity
                .as_ref()
                .and_then(|identity| identity.owner.system.clone())
        };
        let known = Known {
            lsn: end,
            timeline: self.spool.timeline(),
            system,
            holder: SPOOL,
        };
        let source = Source::ask(self.settings, &known).map_err(|error| match error {
            ApplyError::Gap(words) => ApplyError::Gap(match &self.spool.state().cut {
                Some(file) => format!(
                    "{words} (spool file {} was damaged, and cut at {end})",
                    file.display()
                ),
                None => format!(
                    "{words} (the spool {} ends at {end})",
                    self.spool.folder().display()
                ),
            }),
            other => other,
        })?;
        let timeline = source.timeline;
        {
            let mut state = self.spool.state();
            self.check_ours(&state, log)?;
            if known.timeline != Some(timeline) {
                if let Some(identity) = &mut state.identity {
                    identity.timeline = Some(timeline);
                    let identity = identity.clone();
                    // Before anything of the new timeline is in the log.
                    self.spool.keep(&identity)?;
                }
                self.spool.set_timeline(Some(timeline));
            }
            state.joined = true;
        }
        let stream = source.stream(self.settings, end)?;
        info!(from = %end, "the spool takes in what the source sends");
        Ok(stream)
    }

    /// Takes what has come. True if there may be more.
    fn gather(&mut self, stream: &mut Stream, assembler: &mut Assembler) -> Result<bool> {
        let mut bytes = 0;
        loop {
            match stream.next().map_err(ApplyError::Source)? {
                Next::Data(data) => {
                    bytes += data.len() as u64;
                    assembler.take_in(&data).map_err(|error| {
                        ApplyError::System(format!("the source's stream makes no sense: {error}"))
                    })?;
                    // A transaction that the log has already gathers nothing.
                    if assembler.gathered() < GATHER && bytes < GATHER as u64 {
                        continue;
                    }
                    self.heard(bytes, assembler);
                    return Ok(true);
                }
                Next::NotYet => {
                    self.heard(bytes, assembler);
                    return Ok(false);
                }
                Next::Ended => return Err(ApplyError::Ended),
            }
        }
    }

    fn heard(&self, bytes: u64, assembler: &Assembler) {
        let end = assembler.sent();
        if bytes > 0 {
            self.control.count(|stats| {
                stats.bytes += bytes;
                stats.heard = Some(Instant::now());
                stats.source_end = stats.source_end.max(end);
            });
        }
    }

    /// Appends what was gathered. False if it is to end before there was room.
    fn store(
        &mut self,
        stream: &mut Stream,
        log: &Log<Folder>,
        assembler: &mut Assembler,
    ) -> Result<bool> {
        // The log had these transactions already.
        assembler.take_again();
        let frames = assembler.take_frames();
        if !frames.is_empty() {
            for part in parts(frames, log.standing().most_append) {
                if !self.write(stream, log, || log.append(&part))? {
                    return Ok(false);
                }
                self.unsynced += part.len();
            }
        }
        let covered = assembler.covered();
        if assembler.between_units() && covered > log.received() {
            if !self.write(stream, log, || log.cover(covered))? {
                return Ok(false);
            }
            self.unsynced += 1;
        }
        if self.unsynced > 0 {
            self.spool.arrived();
        }
        Ok(true)
    }

    /// Writes once there is room. False if it is to end before.
    fn write(
        &mut self,
        stream: &mut Stream,
        log: &Log<Folder>,
        write: impl Fn() -> std::result::Result<(), LogError>,
    ) -> Result<bool> {
        loop {
            match write() {
                Err(error) if error.is_retryable() => {
                    self.sync(log)?;
                    self.spool.arrived();
                    let flushed = self.spool.state().flushed;
                    if self.ours(log.retain(flushed))? > 0 {
                        continue;
                    }
                    self.wait_for_room(stream, log, &error)?;
                    if self.spool.state().stop {
                        return Ok(false);
                    }
                }
                other => {
                    if self.full.take().is_some() {
                        info!("the spool has room again");
                        self.show();
                    }
                    return self.ours(other).map(|()| true);
                }
            }
        }
    }

    /// The log has no room: nothing is read until the target has something of it on disk.
    fn wait_for_room(
        &mut self,
        stream: &mut Stream,
        log: &Log<Folder>,
        error: &LogError,
    ) -> Result<()> {
        let flushed = self.spool.state().flushed;
        let most = self.spool.0.config.limit / 2;
        let is_huge = log.open_bytes() > most;
        let why = match (is_huge, error) {
            (true, LogError::SpoolFull { .. }) => format!(
                "{error}: most of it is a transaction of the source that has not ended, which must fit \
                 as a whole; raise spool_limit"
            ),
            (_, LogError::SpoolFull { .. }) => format!(
                "{error}: nothing more is taken from the source, which keeps WAL until the target has \
                 applied some of it"
            ),
            _ => format!("{error}; nothing more is taken from the source, which keeps WAL"),
        };
        if self.full.as_ref() != Some(&why) {
            warn!("the spool is full: {why}");
            self.full = Some(why);
            self.show();
        }
        self.tell_if_due(stream, log, false)?;
        self.spool
            .wait(LOOK_FULL, |state| state.stop || state.flushed > flushed);
        Ok(())
    }

    /// Makes durable what was appended.
    fn sync(&mut self, log: &Log<Folder>) -> Result<()> {
        self.ours(log.sync())?;
        self.unsynced = 0;
        Ok(())
    }

    fn show(&self) {
        let spool = self.spool.stats().map(|stats| SpoolStats {
            full: self.full.clone(),
            ..stats
        });
        self.control.count(|stats| stats.spool = spool);
    }

    fn rest(&self) -> Duration {
        let since = self.told.at.map_or(STATUS_EVERY, |at| at.elapsed());
        STATUS_EVERY.saturating_sub(since)
    }

    fn tell_if_due(&mut self, stream: &mut Stream, log: &Log<Folder>, asked: bool) -> Result<()> {
        let (applied, ask) = {
            let mut state = self.spool.state();
            (state.applied, std::mem::take(&mut state.ask))
        };
        let flushed = log.durable();
        let moved = flushed > self.told.flushed || applied > self.told.applied;
        let due = self.rest().is_zero();
        if !(asked || ask || moved || due) {
            return Ok(());
        }
        let began = self.told.at.is_some();
        let status = self.told.status(log.received(), flushed, applied);
        self.told.at = Some(Instant::now());
        // A source that has been told more than where it began is trusted to be well.
        self.told.any |= moved && began;
        self.show();
        let status = Status {
            sent_at: clock::timestamp(),
            // Its answer shows that it is there, and how far its WAL goes.
            reply: ask || due,
            ..status
        };
        stream
            .send(&FromStandby::Status(status))
            .map_err(ApplyError::Source)?;
        failpoint::SPOOL_TOLD.reach();
        Ok(())
    }

    /// The end: what has come is durable, and the source knows it.
    fn end(&mut self, mut stream: Stream, log: &Log<Folder>) -> Result<()> {
        self.sync(log)?;
        self.tell_if_due(&mut stream, log, true)?;
        // A source that is gone or busy need not be waited for.
        let _ = stream.finish(FAREWELL);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushed_is_what_is_on_disk_and_applied_what_the_target_has() {
        let mut told = Told::default();
        let mut status = |received: u64, durable: u64, applied: u64| {
            let status = told.status(received.into(), durable.into(), applied.into());
            [status.written, status.flushed, status.applied].map(u64::from)
        };
        assert_eq!(status(30, 20, 10), [30, 20, 10]);
        // The target may have more than is on disk here.
        assert_eq!(status(40, 20, 40), [40, 20, 40]);
        assert_eq!(status(40, 40, 15), [40, 40, 40]);
    }
}
