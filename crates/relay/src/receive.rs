//! The threads that fill a group's log: one receives (crate `intake`), the other makes what was
//! appended durable, a group of appends at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection, Stream};
use lockstep_intake::continuity::SourceFound;
use lockstep_intake::driver::{Driver, Host, News, Rest};
use lockstep_intake::error::IntakeError;
use lockstep_intake::receiver::{AppliedByReaders, Event, Refusal, Terms, Trusted};
use lockstep_service::clock;
use lockstep_service::waker::{self, Sleeper, Waker};
use lockstep_spool::{FileStorage, Log};
use lockstep_wire::Lsn;
use lockstep_wire::stream::Timestamp;
use tracing::{info, warn};

use crate::continuity::{continues, differs};
use crate::error::{RelayError, Result};
use crate::group::{Group, Phase};

/// Longest silence towards the primary.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// Pauses between two tries to connect: at first and at most.
const RETRY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// Time between two looks at a slot that must not be continued: an operator may mend it.
const RETRY_REFUSED: Duration = Duration::from_secs(5);

/// Time for which appends are gathered before they are made durable together.
const SYNC_EVERY: Duration = Duration::from_millis(10);

/// Age of a stream that goes on, also if nothing was received.
const TRUSTED_AFTER: Duration = Duration::from_secs(5);

/// Time between two looks of a thread that rests whether the relay stops.
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
            let terms = terms(&group);
            let host = GroupHost {
                group,
                stop,
                sleeper,
                sync,
                on_trial: None,
            };
            move || Driver::new(host, terms).run()
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

/// How a group's stream is received.
fn terms(group: &Group) -> Terms {
    Terms {
        batched: group.batched(),
        status_every: STATUS_EVERY,
        asks: false,
        retry: RETRY,
        trusted: Trusted::After(RETRY[1]),
        refusal: Refusal::TriedAfter(RETRY_REFUSED),
        unsynced: 0,
        farewell: None,
    }
}

/// A group as the host of its stream.
struct GroupHost {
    group: Arc<Group>,
    stop: Arc<AtomicBool>,
    sleeper: Sleeper,
    sync: Arc<SyncRequest>,
    /// Since when it streams from a primary that has just failed it: the group stands as failed
    /// until something is received, or for [`TRUSTED_AFTER`].
    on_trial: Option<Instant>,
}

impl Host for GroupHost {
    type Storage = FileStorage;
    type Stream = Stream;
    type Error = RelayError;

    fn log(&self) -> Option<Arc<Log<FileStorage>>> {
        Some(self.group.log().clone())
    }

    fn wants(&mut self) -> Option<Event> {
        if self.stopped() {
            return Some(Event::Stop);
        }
        self.group.take_spared().then_some(Event::Spare)
    }

    fn connect(&mut self) -> Result<(Stream, Lsn)> {
        let group = &self.group;
        if !group.has_failed() {
            group.enter(Phase::Connecting);
        }
        let mut upstream = group.connect()?;
        let start = self.check(&mut upstream)?;
        let options = group.stream_options(upstream.server_version());
        let walsender = upstream.backend_pid();
        group.write_as_subscribers(&mut upstream)?;
        let stream = upstream.start(group.upstream_slot(), start, &options)?;
        group.synchronous.set_walsender(Some(walsender));
        Ok((stream, start))
    }

    fn applied(&mut self) -> AppliedByReaders {
        AppliedByReaders {
            lsn: self.group.applied(),
            awaited: self.group.synchronous.is_awaited(),
            ask: false,
        }
    }

    /// The other thread makes it durable.
    fn sync(&mut self) -> Result<()> {
        self.sync.ask();
        Ok(())
    }

    fn make_room(&mut self) -> Result<bool> {
        self.group.make_room()
    }

    /// Waits for the connection or the waker.
    fn wait(&mut self, stream: &mut Stream, most: Duration) -> Result<(), ClientError> {
        if stream.wait(Some(self.sleeper.fd()), most)?.woken {
            self.sleeper.drain();
        }
        Ok(())
    }

    fn rest(&mut self, most: Duration, why: Rest) {
        let until = Instant::now() + most;
        let is_read = || why == Rest::Spared && self.group.readers() > 0;
        while !self.stopped() && !is_read() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
    }

    fn hear(&mut self, news: News<RelayError>) {
        let group = &self.group;
        match news {
            News::Connected(from) => self.connected(from),
            News::Heard { sent, .. } => group.note_sent(sent),
            News::Compared => self.goes_on(),
            News::Stored { units, bytes } => {
                group.count(units, bytes);
                if units > 0 {
                    // Nothing but transactions has moved it: what is covered comes after.
                    group.note_committed(group.log().received());
                }
            }
            News::Covered => {}
            News::Confirmed => {
                let lasts = |at: Instant| at.elapsed() >= TRUSTED_AFTER;
                if self.on_trial.is_some_and(lasts) || group.goes_on() {
                    self.goes_on();
                }
            }
            News::Blocked(error) => {
                warn!(group = group.name(), %error, "the primary waits for room in the spool");
                group.enter(Phase::Waiting(error.to_string()));
            }
            News::Unblocked => {
                group.enter(Phase::Streaming);
                info!(group = group.name(), "there is room in the spool again");
            }
            News::Disconnected => {
                self.on_trial = None;
                group.synchronous.set_walsender(None);
            }
            News::Spared => group.stand_idle(),
            News::NotCut(error) => {
                group.check_log();
                warn!(group = group.name(), %error, "cannot drop an unfinished transaction");
            }
            News::Failed(error) => group.fail(&error),
        }
    }

    fn error(&self, error: IntakeError) -> RelayError {
        let group = self.group.name().to_owned();
        match error {
            IntakeError::Source(error) => error.into(),
            IntakeError::Ended => {
                ClientError::Lost("the primary ended the stream".to_owned()).into()
            }
            IntakeError::Stream(error) => RelayError::Stream {
                group,
                why: error.to_string(),
            },
            IntakeError::Log(source) => RelayError::Log { group, source },
            IntakeError::Differs(at) => RelayError::Gap(differs(at)),
        }
    }

    fn is_refusal(&self, error: &RelayError) -> bool {
        matches!(error, RelayError::Gap(_))
    }

    fn wall_clock(&self) -> Timestamp {
        clock::timestamp()
    }
}

impl GroupHost {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn connected(&mut self, from: Lsn) {
        let group = &self.group;
        if !group.has_failed() || group.goes_on() {
            let end = group.log().received();
            info!(group = group.name(), slot_at = %from, from = %end, "receiving");
        }
        self.on_trial = Some(Instant::now());
        if !group.has_failed() {
            self.goes_on();
        }
    }

    /// The group stands as streaming from now on.
    fn goes_on(&mut self) {
        if self.on_trial.take().is_some() {
            self.group.enter(Phase::Streaming);
        }
    }

    /// Where the slot of a primary stands that continues the log.
    fn check(&self, upstream: &mut Connection) -> Result<Lsn> {
        let group = &self.group;
        let identity = upstream.identify()?;
        let history = upstream.timeline_history(identity.timeline)?;
        let slot = upstream.slot(group.upstream_slot())?;
        let known = group.followed();
        let found = SourceFound {
            identity,
            history,
            slot,
            is_standby: false,
        };
        continues(group.upstream_slot(), &known, &found).map_err(RelayError::Gap)?;
        if found.slot.is_some() {
            group.note_database(upstream.database_oid()?)?;
        }
        group.follow(found.identity.timeline, &found.history)?;
        let Some(slot) = &found.slot else {
            return Ok(known.received);
        };
        group.keep_for_failover(upstream, slot)?;
        Ok(slot.confirmed)
    }
}
