//! Does what a [`Receiver`] decides, for a host: a relay's group, or a replica's spool.
//!
//! The driver has the connection, the log and what is compared; the host has everything that differs.
//! The driver reads no clock and sleeps only through its host. The simulation of a replica's spool drives
//! it; the relay's drives the receiver alone.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Next, Stream};
use lockstep_spool::{GATHER, Log, LogError, Standing, Storage};
use lockstep_wire::Lsn;
use lockstep_wire::stream::{FromStandby, Status, Timestamp};

use crate::error::IntakeError;
use crate::fault::IntakeFault;
use crate::overlap::Overlap;
use crate::receiver::{Action, AppliedByReaders, Event, Receiver, Terms};

/// Where no log stands.
const NO_LOG: Standing = Standing {
    received: Lsn::INVALID,
    durable: Lsn::INVALID,
    open_unit: false,
    cut_makes_room: false,
    most_append: usize::MAX,
};

/// A source's stream.
pub trait SourceStream {
    /// The content of a CopyData message.
    type Data: Deref<Target = [u8]>;

    /// The next message, if it has arrived. Never waits.
    fn next_message(&mut self) -> Result<Next<Self::Data>, ClientError>;
    /// Tells the source how far the log is.
    fn confirm(&mut self, status: Status) -> Result<(), ClientError>;
    /// Ends the stream in order, if the source lets that happen in time.
    fn leave(self, patience: Duration);
}

impl SourceStream for Stream {
    type Data = lockstep_client::CopyData;

    fn next_message(&mut self) -> Result<Next, ClientError> {
        self.next()
    }

    fn confirm(&mut self, status: Status) -> Result<(), ClientError> {
        self.send(&FromStandby::Status(status))
    }

    fn leave(self, patience: Duration) {
        // A source that is gone or busy need not be waited for.
        let _ = self.finish(patience);
    }
}

/// Why the driver rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// The host says when the stream may go on.
    Halted,
    /// The pause between two attempts to connect.
    Pause,
    /// The log is full.
    Full,
    /// The connection was given up for others, until somebody reads.
    Spared,
}

/// What a host hears of its stream.
#[derive(Debug)]
pub enum News<E> {
    /// The source streams from here on.
    Connected(Lsn),
    /// Messages have come, of so many bytes, and where the source's WAL ends as it last said.
    Heard { bytes: u64, sent: Lsn },
    /// All that the log had was sent again, and is the same.
    Compared,
    /// Transactions, and messages outside of any, that are in the log now, and their bytes.
    Stored { units: u64, bytes: u64 },
    /// Nothing that the log does not have ends before its end.
    Covered,
    /// The source was told.
    Confirmed,
    /// The source waits for room in the log, and why.
    Blocked(LogError),
    /// There is room again.
    Unblocked,
    /// There is no connection any more.
    Disconnected,
    /// The connection was given up for others.
    Spared,
    /// An unfinished transaction could not be dropped.
    NotCut(LogError),
    /// The stream is lost, or must not go on.
    Failed(E),
}

/// What differs between those who receive a stream.
pub trait Host {
    /// Where the log is.
    type Storage: Storage;
    type Stream: SourceStream;
    type Error;

    /// The log to write to; None while there is none. Another one only after [`Host::connect`].
    fn log(&self) -> Option<Arc<Log<Self::Storage>>>;
    /// [`Event::Stop`] or [`Event::Spare`], if the host wants that now.
    fn wants(&mut self) -> Option<Event>;
    /// Whether a stream may begin: asked only of a host that halts.
    fn may_begin(&self) -> bool {
        true
    }
    /// Connects, checks that the source continues the log, and starts the stream: where it begins.
    fn connect(&mut self) -> Result<(Self::Stream, Lsn), Self::Error>;
    /// What those who read the log have applied.
    fn applied(&mut self) -> AppliedByReaders;
    /// Makes the log durable, or has it made so soon.
    fn sync(&mut self) -> Result<(), Self::Error>;
    /// Tries to make room in a log that is full. True if some was made.
    fn make_room(&mut self) -> Result<bool, Self::Error>;
    /// Waits until the stream has something, the host has news, or for `most`.
    fn wait(&mut self, stream: &mut Self::Stream, most: Duration) -> Result<(), ClientError>;
    /// Rests for `most`, or less if the host stops or what is waited for is there.
    fn rest(&mut self, most: Duration, why: Rest);
    fn hear(&mut self, news: News<Self::Error>);
    /// The error in the host's words.
    fn error(&self, error: IntakeError) -> Self::Error;
    /// True if the source must not be followed, whatever is tried again.
    fn is_refusal(&self, error: &Self::Error) -> bool;
    fn now(&self) -> Instant {
        Instant::now()
    }
    /// The wall clock, for what is sent.
    fn wall_clock(&self) -> Timestamp;
}

/// What a step of the driver came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Done,
    /// The driver has waited or rested.
    Rested,
    /// The receiver has ended.
    Stopped,
}

/// One host's receiver and what it works with.
pub struct Driver<H: Host> {
    host: H,
    receiver: Receiver,
    /// The stream, while connected.
    stream: Option<H::Stream>,
    /// What is sent again is held against the log, until that is done.
    overlap: Option<Overlap<H::Storage>>,
    /// What went wrong last.
    error: Option<H::Error>,
    /// Why the log had no room for the last write that found none.
    full: Option<LogError>,
}

impl<H: Host> Driver<H> {
    pub fn new(host: H, terms: Terms) -> Self {
        Self {
            receiver: Receiver::new(terms, host.now()),
            host,
            stream: None,
            overlap: None,
            error: None,
            full: None,
        }
    }

    /// The driver, with something wrong in its receiver; for tests.
    #[must_use]
    pub fn with_fault(mut self, fault: Option<IntakeFault>) -> Self {
        self.receiver = self.receiver.with_fault(fault);
        self
    }

    pub fn host(&self) -> &H {
        &self.host
    }

    /// Receives until the host stops.
    pub fn run(mut self) {
        while self.step() != Step::Stopped {}
    }

    /// Does the receiver's next action.
    pub fn step(&mut self) -> Step {
        if let Some(event) = self.host.wants() {
            self.handle(event);
        }
        let action = self.receiver.poll(self.standing(), self.host.now());
        let step = match action {
            Action::Stop => return Step::Stopped,
            Action::Halt | Action::Wait(_) | Action::Rest(_) | Action::Idle(_) => Step::Rested,
            _ => Step::Done,
        };
        let event = self.perform(action).unwrap_or_else(|error| {
            let refused = self.host.is_refusal(&error);
            self.error = Some(error);
            Event::Lost { refused }
        });
        self.handle(event);
        step
    }

    fn handle(&mut self, event: Event) {
        let standing = self.standing();
        self.receiver.handle(event, standing, self.host.now());
    }

    fn standing(&self) -> Standing {
        self.host.log().map_or(NO_LOG, |log| log.standing())
    }

    fn log(&self) -> Result<Arc<Log<H::Storage>>, H::Error> {
        let none = || self.host.error(LogError::NoLog.into());
        self.host.log().ok_or_else(none)
    }

    fn perform(&mut self, action: Action) -> Result<Event, H::Error> {
        match action {
            Action::Halt => return Ok(self.halt()),
            Action::Connect => return Ok(Event::Connected(self.connect()?)),
            Action::Receive => {
                self.note_applied();
                return self.receive();
            }
            Action::Compare { again, all } => self.compare(&again, all)?,
            Action::Append(frames) => {
                let written = self.log()?.append(frames);
                return self.written(written);
            }
            Action::Stored { units, bytes } => self.host.hear(News::Stored { units, bytes }),
            Action::Cover(lsn) => return self.cover(lsn),
            Action::Sync => self.host.sync()?,
            Action::Block => {
                if let Some(full) = self.full.take() {
                    self.host.hear(News::Blocked(full));
                }
            }
            Action::MakeRoom => {
                let made = self.host.make_room()?;
                self.note_applied();
                return Ok(Event::Freed(made));
            }
            Action::Unblock => self.host.hear(News::Unblocked),
            Action::Confirm {
                written,
                flushed,
                applied,
                reply,
            } => self.confirm(Status {
                written,
                flushed,
                applied,
                sent_at: self.host.wall_clock(),
                reply,
            })?,
            Action::Wait(most) => self.wait(most)?,
            Action::Leave(patience) => self.leave(patience),
            Action::Cut => return Ok(self.cut()),
            Action::Fail => self.fail(),
            Action::Rest(most) => {
                let why = match self.receiver.is_blocked() {
                    true => Rest::Full,
                    false => Rest::Pause,
                };
                self.host.rest(most, why);
            }
            Action::Idle(most) => {
                self.disconnect();
                self.host.hear(News::Spared);
                self.host.rest(most, Rest::Spared);
            }
            Action::Stop => {}
        }
        Ok(Event::Done)
    }

    /// Rests until the host may let the stream go on.
    fn halt(&mut self) -> Event {
        self.host.rest(Duration::MAX / 4, Rest::Halted);
        match self.host.may_begin() {
            true => Event::Done,
            false => Event::Nothing,
        }
    }

    fn note_applied(&mut self) {
        let applied = self.host.applied();
        self.receiver.note_applied(applied);
    }

    /// Connects for a stream that begins where the slot stands, and says where that is.
    fn connect(&mut self) -> Result<Lsn, H::Error> {
        let (stream, from) = self.host.connect()?;
        self.stream = Some(stream);
        let log = self.log()?;
        let begun = log.begin_session();
        begun.map_err(|error| self.host.error(error.into()))?;
        self.overlap = Some(Overlap::new(&log, from));
        self.host.hear(News::Connected(from));
        Ok(from)
    }

    /// Takes in what has come, up to what is gathered at once.
    fn receive(&mut self) -> Result<Event, H::Error> {
        let (mut bytes, mut failed) = (0, None);
        let event = loop {
            let stream = self.stream.as_mut();
            match stream.ok_or_else(lost).and_then(SourceStream::next_message) {
                Ok(Next::Data(data)) => {
                    bytes += data.len();
                    match self.receiver.take_in(&data) {
                        // A transaction that the log has already gathers nothing.
                        Ok(more) if more && bytes < GATHER => {}
                        Ok(_) => break Event::Done,
                        Err(error) => {
                            failed = Some(error.into());
                            break Event::Done;
                        }
                    }
                }
                Ok(Next::NotYet) => break Event::Nothing,
                Ok(Next::Ended) => {
                    self.error = Some(self.host.error(IntakeError::Ended));
                    break Event::Ended;
                }
                Err(error) => {
                    failed = Some(error.into());
                    break Event::Done;
                }
            }
        };
        if let Some(error) = failed {
            return Err(self.host.error(error));
        }
        if bytes > 0 {
            let (bytes, sent) = (bytes as u64, self.receiver.sent());
            self.host.hear(News::Heard { bytes, sent });
        }
        Ok(event)
    }

    /// Holds what was sent again against the log. `all`: nothing more comes of it.
    fn compare(&mut self, again: &[Vec<u8>], all: bool) -> Result<(), H::Error> {
        if let Some(overlap) = &mut self.overlap {
            let same = overlap.compare(again, all);
            same.map_err(|at| self.host.error(IntakeError::Differs(at)))?;
        }
        if all {
            self.overlap = None;
            self.host.hear(News::Compared);
        }
        Ok(())
    }

    fn confirm(&mut self, status: Status) -> Result<(), H::Error> {
        let stream = self.stream.as_mut().ok_or_else(lost);
        let told = stream.and_then(|stream| stream.confirm(status));
        told.map_err(|error| self.host.error(error.into()))?;
        self.host.hear(News::Confirmed);
        Ok(())
    }

    fn wait(&mut self, most: Duration) -> Result<(), H::Error> {
        let stream = self.stream.as_mut().ok_or_else(lost);
        let waited = stream.and_then(|stream| self.host.wait(stream, most));
        waited.map_err(|error| self.host.error(error.into()))
    }

    /// Tells the log that it has all that ends up to here.
    fn cover(&mut self, lsn: Lsn) -> Result<Event, H::Error> {
        let covered = self.log()?.cover(lsn);
        let event = self.written(covered)?;
        if event == Event::Done {
            self.host.hear(News::Covered);
        }
        Ok(event)
    }

    /// What became of a write to the log.
    fn written(&mut self, written: Result<(), LogError>) -> Result<Event, H::Error> {
        match written {
            Ok(()) => Ok(Event::Done),
            Err(error) if error.is_retryable() => {
                self.full = Some(error);
                Ok(Event::Full)
            }
            Err(error) => Err(self.host.error(error.into())),
        }
    }

    /// Ends the stream in order.
    fn leave(&mut self, patience: Duration) {
        if let Some(stream) = self.stream.take() {
            stream.leave(patience);
        }
        self.disconnect();
    }

    fn fail(&mut self) {
        self.disconnect();
        if let Some(error) = self.error.take() {
            self.host.hear(News::Failed(error));
        }
    }

    fn disconnect(&mut self) {
        self.stream = None;
        self.overlap = None;
        self.host.hear(News::Disconnected);
    }

    /// Drops the unit that is open: the source sends the whole transaction again.
    fn cut(&mut self) -> Event {
        self.disconnect();
        match self.host.log().map_or(Ok(()), |log| log.cut()) {
            Ok(()) => Event::Done,
            Err(error) => {
                self.host.hear(News::NotCut(error));
                Event::Lost { refused: false }
            }
        }
    }
}

fn lost() -> ClientError {
    ClientError::Lost("there is no connection to the source".to_owned())
}
