//! The thread that keeps one group's log fed: connects, receives, appends, confirms.
//!
//! Beside it runs a thread that makes what was appended durable, a group of appends at a
//! time. Only what it reports as durable is confirmed to the primary.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection, Next, Stream};
use lockstep_wire::Lsn;
use lockstep_wire::stream::{FromStandby, Status};
use tracing::{info, warn};

use super::assembler::{Assembler, GATHER};
use super::waker::{self, Sleeper, Waker};
use crate::clock;
use crate::continuity::{Found, continues};
use crate::error::{RelayError, Result};
use crate::group::{Group, Phase};
use crate::log::LogError;

/// The primary hears from us at least this often.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// Between two tries to connect: at first and at most.
const RETRY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// Between two looks at a slot that must not be continued: an operator may mend it.
const RETRY_REFUSED: Duration = Duration::from_secs(5);

/// Between two looks at a spool that is full.
const RETRY_FULL: Duration = Duration::from_millis(200);

/// Appends are gathered this long before they are made durable together.
const SYNC_EVERY: Duration = Duration::from_millis(10);

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

    /// Waits until asked.
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
    /// Starts the threads.
    pub fn start(group: Arc<Group>) -> Result<Self> {
        let failed = |source| RelayError::File {
            what: "cannot start the threads of",
            path: group.folder().to_owned(),
            source,
        };
        let (sleeper, waker) = waker::pair().map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let sync = Arc::new(SyncRequest::default());
        let syncer = {
            let (group, stop, waker, sync) =
                (group.clone(), stop.clone(), waker.clone(), sync.clone());
            move || keep_durable(&group, &stop, &waker, &sync)
        };
        let receiver = {
            let (group, stop, sync) = (group.clone(), stop.clone(), sync.clone());
            let turn = Turn {
                group,
                stop,
                sleeper,
                sync,
            };
            move || turn.run()
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

/// Why a connection was left.
enum End {
    /// The relay stops.
    Stopped,
    /// Try again, with what went wrong.
    Lost(RelayError),
}

struct Turn {
    group: Arc<Group>,
    stop: Arc<AtomicBool>,
    sleeper: Sleeper,
    sync: Arc<SyncRequest>,
}

impl Turn {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Sleeps, or less if the relay stops.
    fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(RETRY_FULL));
        }
    }

    fn run(self) {
        let [first, most] = RETRY;
        let mut pause = first;
        while !self.stopped() {
            let began = Instant::now();
            let error = match self.connection() {
                End::Stopped => break,
                End::Lost(error) => error,
            };
            if self.group.log().open_unit() {
                // The walsender sends the whole transaction again.
                if let Err(error) = self.group.log().cut() {
                    self.group.check_log(&error);
                    warn!(group = self.group.name(), %error, "cannot drop an unfinished transaction");
                }
            }
            let refused = matches!(&error, RelayError::Gap(_));
            self.group.fail(&error);
            if began.elapsed() > most {
                pause = first;
            }
            self.pause(if refused { RETRY_REFUSED } else { pause });
            pause = (pause * 2).min(most);
        }
        if self.group.log().open_unit() {
            let _ = self.group.log().cut();
        }
    }

    /// One connection, from its start to its end.
    fn connection(&self) -> End {
        let connect = || -> Result<Stream> {
            self.group.enter(Phase::Connecting);
            let mut upstream = self.group.connect()?;
            self.check(&mut upstream)?;
            let start = self.group.log().received();
            let options = self.group.stream_options(upstream.server_version());
            let begun = self.group.log().begin_session();
            begun.map_err(|error| log_error(&self.group, error))?;
            Ok(upstream.start(self.group.upstream_slot(), start, &options)?)
        };
        let mut stream = match connect() {
            Ok(stream) => stream,
            Err(error) => return End::Lost(error),
        };
        info!(
            group = self.group.name(),
            from = %self.group.log().received(),
            "receiving"
        );
        self.group.enter(Phase::Streaming);
        let mut receiving = Connected {
            turn: self,
            assembler: Assembler::new(self.group.log().received(), self.group.batched()),
            told: Lsn::INVALID,
            told_at: Instant::now(),
        };
        match receiving.run(&mut stream) {
            Ok(()) => End::Stopped,
            Err(error) => End::Lost(error),
        }
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
}

/// A stream while it lasts.
struct Connected<'a> {
    turn: &'a Turn,
    assembler: Assembler,
    told: Lsn,
    told_at: Instant,
}

impl Connected<'_> {
    /// Receives until the relay stops (Ok) or the connection is lost.
    fn run(&mut self, stream: &mut Stream) -> Result<()> {
        let group = self.turn.group.clone();
        while !self.turn.stopped() {
            let ended = self.drain(stream)?;
            self.store(stream)?;
            self.tell(stream)?;
            if ended {
                return Err(RelayError::Upstream(ClientError::Lost(
                    "the primary ended the stream".to_owned(),
                )));
            }
            group.note_sent(self.assembler.sent());
            let wait = STATUS_EVERY.saturating_sub(self.told_at.elapsed());
            let ready = stream.wait(Some(self.turn.sleeper.fd()), wait)?;
            if ready.woken {
                self.turn.sleeper.drain();
            }
        }
        Ok(())
    }

    /// Takes in what has come, up to what is gathered at once; true at the stream's end.
    fn drain(&mut self, stream: &mut Stream) -> Result<bool> {
        loop {
            match stream.next()? {
                Next::Data(data) => {
                    self.assembler
                        .take_in(&data)
                        .map_err(|error| RelayError::Stream {
                            group: self.turn.group.name().to_owned(),
                            why: error.to_string(),
                        })?;
                    if self.assembler.gathered() >= GATHER {
                        self.store(stream)?;
                        self.tell(stream)?;
                    }
                }
                Next::NotYet => return Ok(false),
                Next::Ended => return Ok(true),
            }
        }
    }

    /// Hands what was gathered to the log, and what the keepalives said.
    fn store(&mut self, stream: &mut Stream) -> Result<()> {
        let group = &self.turn.group;
        let frames = self.assembler.take_frames();
        let units = self.assembler.take_units();
        let mut changed = false;
        if !frames.is_empty() {
            group.count(units, frames.len() as u64);
            for part in group.log().parts(frames) {
                self.with_room(stream, || group.log().append(part.clone()))?;
            }
            if units > 0 {
                // Nothing but transactions has moved it: what is covered comes below.
                group.note_committed(group.log().received());
            }
            changed = true;
        }
        let covered = self.assembler.covered();
        if self.assembler.between_units() && covered > group.log().received() {
            self.with_room(stream, || group.log().cover(covered))?;
            changed = true;
        }
        if changed {
            self.turn.sync.ask();
        }
        Ok(())
    }

    /// Writes to the log, waiting while the spool is full; the primary hears from us
    /// meanwhile, and nothing is taken from it.
    fn with_room(
        &mut self,
        stream: &mut Stream,
        mut write: impl FnMut() -> Result<(), LogError>,
    ) -> Result<()> {
        let group = &self.turn.group;
        let mut waiting = false;
        loop {
            match write() {
                Ok(()) => break,
                Err(error) if error.is_retryable() => {
                    if !waiting {
                        waiting = true;
                        group.enter(Phase::Waiting(error.to_string()));
                        warn!(group = group.name(), %error, "the primary waits for room in the spool");
                    }
                    if !group.make_room()? {
                        self.turn.pause(RETRY_FULL);
                    }
                    if self.told_at.elapsed() >= STATUS_EVERY {
                        self.status(stream)?;
                    }
                    if self.turn.stopped() {
                        return Err(log_error(group, error));
                    }
                }
                Err(error) => return Err(log_error(group, error)),
            }
        }
        if waiting {
            group.enter(Phase::Streaming);
            info!(group = group.name(), "there is room in the spool again");
        }
        Ok(())
    }

    /// Confirms what is durable, when that has moved, was asked for, or it is time.
    fn tell(&mut self, stream: &mut Stream) -> Result<()> {
        let due = self.assembler.take_reply()
            || self.turn.group.log().durable() > self.told
            || self.told_at.elapsed() >= STATUS_EVERY;
        match due {
            true => self.status(stream),
            false => Ok(()),
        }
    }

    fn status(&mut self, stream: &mut Stream) -> Result<()> {
        let log = self.turn.group.log();
        let durable = log.durable();
        stream.send(&FromStandby::Status(Status {
            written: log.received().max(durable),
            flushed: durable,
            // What is durable here is all that the primary needs to know.
            applied: durable,
            sent_at: clock::now(),
            reply: false,
        }))?;
        self.told = durable;
        self.told_at = Instant::now();
        Ok(())
    }
}

fn log_error(group: &Group, source: LogError) -> RelayError {
    RelayError::Log {
        group: group.name().to_owned(),
        source,
    }
}
