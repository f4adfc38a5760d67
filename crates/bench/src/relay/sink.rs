//! A consumer that counts, measures and throws away: a subscriber without a database.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_lab::pinning::{Pinning, Side};
use lockstep_lab::progress::Micros;
use lockstep_wire::Lsn;
use lockstep_wire::frame::Frame;
use lockstep_wire::logical::{Context, Message};
use lockstep_wire::stream::{FromServer, Status, Timestamp};

use super::delays::Delays;
use super::session::{Refused, Session};
use super::{ConsumerError, Endpoint};
use crate::Result;

/// Interval at which a sink sends its status.
const STATUS_EVERY: Duration = Duration::from_millis(100);

/// How long a slot may still be in use by the sink before.
const IN_USE_PATIENCE: Duration = Duration::from_secs(60);

/// Interval between attempts while the slot is in use.
const TRY_EVERY: Duration = Duration::from_millis(10);

/// What has arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of the plugin's messages, headers of the protocol not included.
    pub bytes: u64,
    pub commits: u64,
    /// Rows inserted, updated and deleted.
    pub rows: u64,
}

impl Counts {
    /// What came after `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes - before.bytes,
            commits: self.commits - before.commits,
            rows: self.rows - before.rows,
        }
    }
}

/// A consumer on a thread of its own, until dropped.
#[derive(Debug)]
pub struct Sink {
    shared: Arc<Shared>,
    whom: Endpoint,
    slot: String,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    bytes: AtomicU64,
    commits: AtomicU64,
    rows: AtomicU64,
    /// End of the last transaction.
    position: AtomicU64,
    /// The position that [`Sink::await_goal`] waits for.
    goal: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    streaming: bool,
    /// When the goal was passed.
    reached: Option<Instant>,
    ended: bool,
    failure: Option<String>,
    delays: Delays,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sink {
    /// Starts to stream from a slot, on the cores of the standby's side, and returns when the
    /// stream has begun. The slot may still be in use by an earlier consumer for a moment.
    pub fn start(
        whom: &Endpoint,
        slot: &str,
        publication: &str,
        goal: Option<Lsn>,
        pinning: &Pinning,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let goal = goal.map_or(u64::MAX, u64::from);
        shared.goal.store(goal, Ordering::Relaxed);
        let theirs = Arc::clone(&shared);
        let pinning = pinning.clone();
        let (port, name, publication) = (whom.port, slot.to_owned(), publication.to_owned());
        let thread = thread::spawn(move || {
            pinning.pin_current_thread(Side::Standby);
            let ended = run(&theirs, port, &name, &publication);
            let mut state = locked(&theirs.state);
            state.ended = true;
            state.failure = ended.err();
            theirs.changed.notify_all();
        });
        let sink = Self {
            shared,
            whom: whom.clone(),
            slot: slot.to_owned(),
            thread: Some(thread),
        };
        sink.until("the beginning of a stream", IN_USE_PATIENCE * 2, |state| {
            state.streaming.then_some(())
        })?;
        Ok(sink)
    }

    /// What has arrived so far.
    pub fn counts(&self) -> Counts {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Counts {
            bytes: load(&self.shared.bytes),
            commits: load(&self.shared.commits),
            rows: load(&self.shared.rows),
        }
    }

    /// End of the last transaction that arrived.
    pub fn position(&self) -> Lsn {
        Lsn::from(self.shared.position.load(Ordering::Relaxed))
    }

    /// Forgets the delays so far.
    pub fn forget_delays(&self) {
        locked(&self.shared.state).delays = Delays::default();
    }

    /// Delays from commit to arrival, by this machine's clock, of all transactions since delays were last
    /// forgotten.
    pub fn delays(&self) -> Delays {
        locked(&self.shared.state).delays.clone()
    }

    /// An error if the stream has failed.
    pub fn check(&self) -> Result<()> {
        match &locked(&self.shared.state).failure {
            Some(reason) => Err(self.failed(reason.clone())),
            None => Ok(()),
        }
    }

    /// Sets what [`Sink::await_goal`] waits for: a transaction that ends after `goal`.
    pub fn set_goal(&self, goal: Lsn) {
        let mut state = locked(&self.shared.state);
        state.reached = None;
        self.shared.goal.store(goal.into(), Ordering::Relaxed);
        if self.position() > goal {
            state.reached = Some(Instant::now());
        }
    }

    /// Waits until the goal is passed, and tells when that was.
    pub fn await_goal(&self, patience: Duration) -> Result<Instant> {
        self.until("the goal of a sink", patience, |state| state.reached)
    }

    fn until<T>(
        &self,
        what: &str,
        patience: Duration,
        found: impl Fn(&State) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + patience;
        let mut state = locked(&self.shared.state);
        loop {
            if let Some(found) = found(&state) {
                return Ok(found);
            }
            if state.ended {
                let reason = state.failure.clone();
                return Err(self.failed(reason.unwrap_or_else(|| "it was stopped".to_owned())));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ConsumerError::Timeout {
                    what: format!("{what} at {}", self.whom),
                    seconds: patience.as_secs(),
                }
                .into());
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn failed(&self, reason: String) -> crate::BenchError {
        ConsumerError::Stream {
            slot: self.slot.clone(),
            whom: self.whom.clone(),
            reason,
        }
        .into()
    }

    /// Stops after a last status message, and returns what has arrived.
    pub fn stop(mut self) -> Result<Counts> {
        self.end();
        self.check()?;
        Ok(self.counts())
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.end();
    }
}

fn run(
    shared: &Shared,
    port: u16,
    slot: &str,
    publication: &str,
) -> std::result::Result<(), String> {
    let began = Instant::now();
    let session = loop {
        match Session::stream(port, slot, slot, publication) {
            Ok(session) => break session,
            Err(Refused::Other(reason)) => return Err(reason),
            Err(Refused::InUse) => {
                if shared.stop.load(Ordering::Relaxed) || began.elapsed() > IN_USE_PATIENCE {
                    return Err("another session uses the slot".to_owned());
                }
                thread::sleep(TRY_EVERY);
            }
        }
    };
    locked(&shared.state).streaming = true;
    shared.changed.notify_all();
    Receiver {
        shared,
        session,
        in_transaction: false,
        counts: Counts::default(),
        position: 0,
        confirmed: 0,
        arrived: Vec::new(),
        asked: false,
    }
    .receive()
    .map_err(|error| error.to_string())
}

struct Receiver<'a> {
    shared: &'a Shared,
    session: Session,
    in_transaction: bool,
    counts: Counts,
    /// End of the last transaction.
    position: u64,
    /// The position for status messages: the end of the last transaction, or what a keepalive
    /// says while no transaction is open.
    confirmed: u64,
    /// Commit times of what the last read brought, in microseconds since 2000.
    arrived: Vec<i64>,
    /// The server has asked for a status message.
    asked: bool,
}

/// What a message means to a sink.
enum Said {
    Nothing,
    Row,
    Begin,
    Commit { end: u64, at: i64 },
    Keepalive { end: u64, reply: bool },
    Over,
}

/// Reads the tag of a message, and more only of the end of a transaction.
fn said(frame: Frame<'_>) -> io::Result<(Said, u64)> {
    let bad = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    if frame.tag != b'd' {
        return match frame.tag {
            b'c' => Ok((Said::Over, 0)),
            b'E' => Err(io::Error::other(error_text(frame))),
            _ => Ok((Said::Nothing, 0)),
        };
    }
    Ok(match FromServer::parse(frame.body).map_err(bad)? {
        FromServer::Keepalive { end, reply, .. } => {
            let end = end.into();
            (Said::Keepalive { end, reply }, 0)
        }
        FromServer::XLogData { wal: message, .. } => {
            let said = match message.first() {
                Some(b'I' | b'U' | b'D') => Said::Row,
                Some(b'B') => Said::Begin,
                Some(b'C') => match Message::parse(message, Context::default()).map_err(bad)?.1 {
                    Message::Commit(commit) => Said::Commit {
                        end: commit.end_lsn.into(),
                        at: commit.commit_time.0,
                    },
                    _ => Said::Nothing,
                },
                _ => Said::Nothing,
            };
            (said, message.len() as u64)
        }
    })
}

fn error_text(frame: Frame<'_>) -> String {
    match lockstep_wire::backend::Backend::parse(frame) {
        Ok(lockstep_wire::backend::Backend::ErrorResponse(report)) => report.message,
        _ => "an error that cannot be read".to_owned(),
    }
}

impl Receiver<'_> {
    fn receive(mut self) -> io::Result<()> {
        let mut told = Instant::now();
        while !self.shared.stop.load(Ordering::Relaxed) {
            let arrived = self.session.fill()?;
            if arrived && !self.take()? {
                // The server shuts down.
                return Ok(());
            }
            let due = told.elapsed() >= STATUS_EVERY;
            if due || self.asked {
                told = Instant::now();
                self.status()?;
            }
        }
        self.status()?;
        self.session.leave()
    }

    /// Takes all whole messages; false after the last.
    fn take(&mut self) -> io::Result<bool> {
        let now = Timestamp::from_unix_micros(Micros::now().0).0;
        let mut over = false;
        while let Some(frame) = self.session.next()? {
            let (said, bytes) = said(frame)?;
            self.counts.bytes += bytes;
            match said {
                Said::Row => self.counts.rows += 1,
                Said::Begin => self.in_transaction = true,
                Said::Commit { end, at } => {
                    self.in_transaction = false;
                    self.counts.commits += 1;
                    self.position = end;
                    self.confirmed = self.confirmed.max(end);
                    self.arrived.push(at);
                }
                Said::Keepalive { end, reply } => {
                    self.asked |= reply;
                    if !self.in_transaction {
                        self.confirmed = self.confirmed.max(end);
                    }
                }
                Said::Over => over = true,
                Said::Nothing => {}
            }
        }
        self.publish(now);
        Ok(!over)
    }

    fn publish(&mut self, now: i64) {
        let shared = self.shared;
        shared.bytes.store(self.counts.bytes, Ordering::Relaxed);
        shared.rows.store(self.counts.rows, Ordering::Relaxed);
        shared.commits.store(self.counts.commits, Ordering::Relaxed);
        shared.position.store(self.position, Ordering::Relaxed);
        if self.arrived.is_empty() {
            return;
        }
        let mut state = locked(&shared.state);
        for at in self.arrived.drain(..) {
            state.delays.add(now - at);
        }
        let reached = self.position > shared.goal.load(Ordering::Relaxed);
        if reached && state.reached.is_none() {
            state.reached = Some(Instant::now());
            shared.changed.notify_all();
        }
    }

    fn status(&mut self) -> io::Result<()> {
        self.asked = false;
        let confirmed = self.confirmed.into();
        self.session.status(Status {
            written: confirmed,
            flushed: confirmed,
            applied: confirmed,
            sent_at: Timestamp::from_unix_micros(Micros::now().0),
            reply: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(body: &[u8]) -> Frame<'_> {
        Frame { tag: b'd', body }
    }

    #[test]
    fn messages_are_told_apart() {
        let mut commit = vec![b'C', 0];
        for number in [5_u64, 6, 7] {
            commit.extend(number.to_be_bytes());
        }
        for (message, expected) in [
            (&b"I....."[..], "row"),
            (b"U", "row"),
            (b"D", "row"),
            (b"B", "begin"),
            (b"R", "nothing"),
            (&commit, "commit 6 7"),
        ] {
            let mut body = Vec::new();
            FromServer::XLogData {
                start: 0.into(),
                end: 0.into(),
                sent_at: Timestamp::default(),
                wal: message,
            }
            .encode(&mut body);
            let (said, bytes) = said(frame(&body)).unwrap();
            let told = match said {
                Said::Row => "row".to_owned(),
                Said::Begin => "begin".to_owned(),
                Said::Commit { end, at } => format!("commit {end} {at}"),
                Said::Nothing => "nothing".to_owned(),
                Said::Keepalive { .. } | Said::Over => "else".to_owned(),
            };
            assert_eq!(told, expected);
            assert_eq!(bytes, message.len() as u64);
        }
        assert!(said(frame(b"wC")).is_err());
    }
}
