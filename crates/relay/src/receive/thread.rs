//! The threads of one group: one drives its [`Receiver`], the other makes what was appended
//! durable, a group of appends at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection, Next, Stream};
use lockstep_service::clock;
use lockstep_service::waker::{self, Sleeper, Waker};
use lockstep_spool::{FileStorage, LogError};
use lockstep_wire::Lsn;
use lockstep_wire::stream::{FromStandby, Status};
use tracing::{info, warn};

use super::receiver::{Action, Event, Receiver};

use crate::continuity::{Found, continues};
use crate::error::{RelayError, Result};
use crate::group::{Group, Phase};
use crate::overlap::Overlap;

/// Appends are gathered this long before they are made durable together.
const SYNC_EVERY: Duration = Duration::from_millis(10);

/// A stream that has lasted so long goes on, also if nothing was received.
const TRUSTED_AFTER: Duration = Duration::from_secs(5);

/// A thread that rests looks this often whether the relay stops.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The threads of one group; ended and joined when dropped.
#[derive(Debug)]
pub struct Receiving {
    stop: Arc<AtomicBool>,
    waker: Waker,
    sync: Arc<SyncRequest>,
    threads: Vec<JoinHandle<()>>,
}

/// Asks the syncing thread to go on.
#[derive(Debug, Default)]
struct SyncRequest {
    wanted: Mutex<bool>,
    changed: Condvar,
}

impl SyncRequest {
    fn ask(&self) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Waits for the next request.
    fn wait(&self) {
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = self
            .changed
            .wait_while(wanted, |wanted| !*wanted)
            .unwrap_or_else(PoisonError::into_inner);
        *wanted = false;
    }
}

impl Receiving {
    pub fn start(group: Arc<Group>) -> Result<Self> {
        let failed = |source| RelayError::File {
            what: "cannot start the threads of",
            path: group.folder().to_owned(),
            source,
        };
        let (sleeper, waker) = waker::pair().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let sync = Arc::new(SyncRequest::default());
        group.synchronous.set_waker(waker.clone());
        let syncer = {
            let (group, stop, waker, sync) =
                (group.clone(), stop.clone(), waker.clone(), sync.clone());
            move || keep_durable(&group, &stop, &waker, &sync)
        };
        let receiver = {
            let (group, stop, sync) = (group.clone(), stop.clone(), sync.clone());
            let driver = Driver {
                group,
                stop,
                sleeper,
                sync,
                stream: None,
                overlap: None,
                on_trial: None,
                error: None,
                full: String::new(),
            };
            move || driver.run()
        };
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            thread::Builder::new()
                .name(name.to_owned())
                .spawn(body)
                .map_err(failed)
        };
        Ok(Self {
            threads: vec![
                spawn("relay-sync", Box::new(syncer))?,
                spawn("relay-receive", Box::new(receiver))?,
            ],
            stop,
            waker,
            sync,
        })
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        self.sync.ask();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn keep_durable(group: &Group, stop: &AtomicBool, waker: &Waker, sync: &SyncRequest) {
    let mut reported = false;
    loop {
        sync.wait();
        match group.log().sync() {
            Ok(_) => reported = false,
            // The receiver meets the same error at its next append.
            Err(error) if !reported => {
                reported = true;
                group.check_log();
                warn!(group = group.name(), %error, "cannot make the spool durable");
            }
            Err(_) => {}
        }
        waker.wake();
        if stop.load(Ordering::Acquire) {
            return;
        }
        thread::sleep(SYNC_EVERY);
    }
}

/// Does what the receiver of a group decides.
struct Driver {
    group: Arc<Group>,
    stop: Arc<AtomicBool>,
    sleeper: Sleeper,
    sync: Arc<SyncRequest>,
    /// While connected.
    stream: Option<Stream>,
    /// What is sent again is held against the log, until that is done.
    overlap: Option<Overlap<FileStorage>>,
    /// Since when it streams from a primary that has just failed it: the group stands as failed
    /// until something is received, or for [`TRUSTED_AFTER`].
    on_trial: Option<Instant>,
    /// What went wrong last.
    error: Option<RelayError>,
    /// Why the log had no room for the last write that found none.
    full: String,
}

impl Driver {
    fn run(mut self) {
        let mut receiver = Receiver::new(self.group.batched(), Instant::now());
        loop {
            if self.stopped() {
                receiver.handle(Event::Stop, self.group.log().standing(), Instant::now());
            }
            if self.group.take_spared() {
                receiver.handle(Event::Spare, self.group.log().standing(), Instant::now());
            }
            let action = receiver.poll(self.group.log().standing(), Instant::now());
            if action == Action::Stop {
                return;
            }
            let event = self.perform(action, &mut receiver);
            let event = event.unwrap_or_else(|error| {
                let refused = matches!(error, RelayError::Gap(_));
                self.error = Some(error);
                Event::Lost { refused }
            });
            receiver.handle(event, self.group.log().standing(), Instant::now());
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn perform(&mut self, action: Action, receiver: &mut Receiver) -> Result<Event> {
        let group = &self.group;
        match action {
            Action::Connect => return Ok(Event::Connected(self.connect()?)),
            Action::Compare { again, all } => self.compare(&again, all)?,
            Action::Receive => {
                receiver.note_applied(group.applied(), group.synchronous.is_awaited());
                return self.receive(receiver);
            }
            Action::Append(frames) => return self.written(group.log().append(frames)),
            Action::Cover(lsn) => return self.written(group.log().cover(lsn)),
            Action::MakeRoom => {
                receiver.note_applied(group.applied(), group.synchronous.is_awaited());
                return Ok(Event::Freed(group.make_room()?));
            }
            Action::Stored { units, bytes } => {
                group.count(units, bytes);
                if units > 0 {
                    // Nothing but transactions has moved it: what is covered comes after.
                    group.note_committed(group.log().received());
                }
            }
            Action::Sync => self.sync.ask(),
            Action::Block => self.block(),
            Action::Unblock => {
                group.enter(Phase::Streaming);
                info!(group = group.name(), "there is room in the spool again");
            }
            Action::Confirm {
                written,
                flushed,
                applied,
            } => self.confirm(Status {
                written,
                flushed,
                applied,
                sent_at: clock::timestamp(),
                reply: false,
            })?,
            Action::Wait(most) => {
                group.note_sent(receiver.sent());
                self.wait(most)?;
            }
            Action::Cut => {
                self.disconnect();
                return Ok(self.cut());
            }
            Action::Fail => self.fail(),
            Action::Rest(time) => self.rest(time, || false),
            Action::Idle(time) => {
                self.disconnect();
                self.group.stand_idle();
                self.rest(time, || self.group.readers() > 0);
            }
            Action::Stop => {}
        }
        Ok(Event::Done)
    }

    /// The primary waits for room from now on.
    fn block(&self) {
        let (group, full) = (self.group.name(), &self.full);
        warn!(
            group,
            error = full,
            "the primary waits for room in the spool"
        );
        self.group.enter(Phase::Waiting(full.clone()));
    }

    /// Waits for the connection or the waker.
    fn wait(&mut self, most: Duration) -> Result<()> {
        let wake = self.sleeper.fd();
        if connected(&mut self.stream)?.wait(Some(wake), most)?.woken {
            self.sleeper.drain();
        }
        Ok(())
    }

    fn fail(&mut self) {
        self.disconnect();
        if let Some(error) = self.error.take() {
            self.group.fail(&error);
        }
    }

    /// Sleeps, or less if the relay stops or something is so.
    fn rest(&self, time: Duration, or: impl Fn() -> bool) {
        let until = Instant::now() + time;
        while !self.stopped() && !or() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
    }

    fn disconnect(&mut self) {
        self.stream = None;
        self.on_trial = None;
        self.group.synchronous.set_walsender(None);
    }

    /// Connects for a stream that begins where the slot stands, and says where that is.
    fn connect(&mut self) -> Result<Lsn> {
        let (stream, from) = self.begin_stream()?;
        self.stream = Some(stream);
        self.overlap = Some(Overlap::new(self.group.log(), from));
        self.on_trial = Some(Instant::now());
        if !self.group.has_failed() {
            self.goes_on();
        }
        Ok(from)
    }

    fn begin_stream(&self) -> Result<(Stream, Lsn)> {
        let group = &self.group;
        if !group.has_failed() {
            group.enter(Phase::Connecting);
        }
        let mut upstream = group.connect()?;
        let start = self.check(&mut upstream)?;
        let options = group.stream_options(upstream.server_version());
        let begun = group.log().begin_session();
        begun.map_err(|error| log_error(group, error))?;
        let walsender = upstream.backend_pid();
        let stream = upstream.start(group.upstream_slot(), start, &options)?;
        group.synchronous.set_walsender(Some(walsender));
        if !group.has_failed() || group.goes_on() {
            let end = group.log().received();
            info!(group = group.name(), slot_at = %start, from = %end, "receiving");
        }
        Ok((stream, start))
    }

    /// The group stands as streaming from now on.
    fn goes_on(&mut self) {
        if self.on_trial.take().is_some() {
            self.group.enter(Phase::Streaming);
        }
    }

    /// Where the slot of a primary stands that continues the log.
    fn check(&self, upstream: &mut Connection) -> Result<Lsn> {
        let identity = upstream.identify()?;
        let known = self.group.known();
        let history = upstream.timeline_history(identity.timeline)?;
        let slot = upstream.slot(&known.slot)?;
        let found = Found {
            identity,
            history,
            slot,
        };
        continues(&known, &found).map_err(RelayError::Gap)?;
        if found.slot.is_some() {
            self.group.note_database(upstream.database_oid()?)?;
        }
        self.group.follow(found.identity.timeline, &found.history)?;
        let Some(slot) = &found.slot else {
            return Ok(known.received);
        };
        self.group.keep_for_failover(upstream, slot)?;
        Ok(slot.confirmed)
    }

    /// Holds what was sent again against the log. `all`: nothing more comes of it.
    fn compare(&mut self, again: &[Vec<u8>], all: bool) -> Result<()> {
        if let Some(overlap) = &mut self.overlap {
            overlap.compare(again, all).map_err(RelayError::Gap)?;
        }
        if all {
            self.overlap = None;
            self.goes_on();
        }
        Ok(())
    }

    fn confirm(&mut self, status: Status) -> Result<()> {
        connected(&mut self.stream)?.send(&FromStandby::Status(status))?;
        let lasts = |at: Instant| at.elapsed() >= TRUSTED_AFTER;
        if self.on_trial.is_some_and(lasts) || self.group.goes_on() {
            self.goes_on();
        }
        Ok(())
    }

    /// Takes in what has come, up to what is gathered at once.
    fn receive(&mut self, receiver: &mut Receiver) -> Result<Event> {
        let stream = connected(&mut self.stream)?;
        loop {
            match stream.next()? {
                Next::Data(data) => {
                    let taken = receiver.take_in(&data);
                    let more = taken.map_err(|error| RelayError::Stream {
                        group: self.group.name().to_owned(),
                        why: error.to_string(),
                    })?;
                    if !more {
                        return Ok(Event::Done);
                    }
                }
                Next::NotYet => return Ok(Event::Nothing),
                Next::Ended => {
                    let why = "the primary ended the stream".to_owned();
                    self.error = Some(ClientError::Lost(why).into());
                    return Ok(Event::Ended);
                }
            }
        }
    }

    /// What became of a write to the log.
    fn written(&mut self, written: Result<(), LogError>) -> Result<Event> {
        match written {
            Ok(()) => Ok(Event::Done),
            Err(error) if error.is_retryable() => {
                self.full = error.to_string();
                Ok(Event::Full)
            }
            Err(error) => Err(log_error(&self.group, error)),
        }
    }

    /// Drops the unit that is open: the walsender sends the whole transaction again.
    fn cut(&self) -> Event {
        let Err(error) = self.group.log().cut() else {
            return Event::Done;
        };
        self.group.check_log();
        warn!(group = self.group.name(), %error, "cannot drop an unfinished transaction");
        Event::Lost { refused: false }
    }
}

fn connected(stream: &mut Option<Stream>) -> Result<&mut Stream> {
    let lost = || ClientError::Lost("there is no connection to the primary".to_owned());
    Ok(stream.as_mut().ok_or_else(lost)?)
}

fn log_error(group: &Group, source: LogError) -> RelayError {
    RelayError::Log {
        group: group.name().to_owned(),
        source,
    }
}
