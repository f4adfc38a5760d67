//! The threads of one group: one drives its [`Receiver`], the other makes what was appended
//! durable, a group of appends at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection, Next, Stream};
use lockstep_wire::stream::{FromStandby, Status};
use tracing::{info, warn};

use super::receiver::{Action, Event, Receiver};

use crate::clock;
use crate::continuity::{Found, continues};
use crate::error::{RelayError, Result};
use crate::group::{Group, Phase};
use crate::log::LogError;
use crate::waker::{self, Sleeper, Waker};

/// Appends are gathered this long before they are made durable together.
const SYNC_EVERY: Duration = Duration::from_millis(10);

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
                group.check_log(&error);
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
            Action::Connect => {
                self.stream = Some(self.connect()?);
                return Ok(Event::Connected);
            }
            Action::Receive => {
                receiver.note_applied(group.applied(), group.synchronous.is_awaited());
                return self.receive(receiver);
            }
            Action::Append(frames) => {
                let written = group.log().append(frames);
                return self.written(written);
            }
            Action::Cover(lsn) => {
                let written = group.log().cover(lsn);
                return self.written(written);
            }
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
            Action::Block => {
                warn!(
                    group = group.name(),
                    error = self.full,
                    "the primary waits for room in the spool"
                );
                group.enter(Phase::Waiting(self.full.clone()));
            }
            Action::Unblock => {
                group.enter(Phase::Streaming);
                info!(group = group.name(), "there is room in the spool again");
            }
            Action::Confirm {
                written,
                flushed,
                applied,
            } => {
                let status = Status {
                    written,
                    flushed,
                    applied,
                    sent_at: clock::now(),
                    reply: false,
                };
                connected(&mut self.stream)?.send(&FromStandby::Status(status))?;
            }
            Action::Wait(most) => {
                group.note_sent(receiver.sent());
                let wake = self.sleeper.fd();
                if connected(&mut self.stream)?.wait(Some(wake), most)?.woken {
                    self.sleeper.drain();
                }
            }
            Action::Cut => {
                self.disconnect();
                return Ok(self.cut());
            }
            Action::Fail => {
                self.disconnect();
                if let Some(error) = self.error.take() {
                    self.group.fail(&error);
                }
            }
            Action::Rest(time) => self.rest(time),
            Action::Stop => {}
        }
        Ok(Event::Done)
    }

    /// Sleeps, or less if the relay stops.
    fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
    }

    fn disconnect(&mut self) {
        self.stream = None;
        self.group.synchronous.set_walsender(None);
    }

    /// A connection that streams from the end of the log.
    fn connect(&self) -> Result<Stream> {
        let group = &self.group;
        group.enter(Phase::Connecting);
        let mut upstream = group.connect()?;
        self.check(&mut upstream)?;
        let start = group.log().received();
        let options = group.stream_options(upstream.server_version());
        let begun = group.log().begin_session();
        begun.map_err(|error| log_error(group, error))?;
        let walsender = upstream.backend_pid();
        let stream = upstream.start(group.upstream_slot(), start, &options)?;
        group.synchronous.set_walsender(Some(walsender));
        info!(group = group.name(), from = %start, "receiving");
        group.enter(Phase::Streaming);
        Ok(stream)
    }

    fn check(&self, upstream: &mut Connection) -> Result<()> {
        let identity = upstream.identify()?;
        let known = self.group.known();
        let history = match identity.timeline == known.timeline {
            true => Vec::new(),
            false => upstream.timeline_history(identity.timeline)?,
        };
        let slot = upstream.slot(&known.slot)?;
        let found = Found {
            identity,
            history,
            slot,
        };
        continues(&known, &found).map_err(RelayError::Gap)?;
        self.group.follow(found.identity.timeline)?;
        match &found.slot {
            Some(slot) => self.group.keep_for_failover(upstream, slot),
            None => Ok(()),
        }
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
        self.group.check_log(&error);
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
