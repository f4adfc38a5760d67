//! What a receiver does: the log's part towards the source of its stream, decided without I/O and
//! without a clock.
//!
//! [`Receiver::poll`] says what to do next. Whoever drives the receiver does that one thing
//! and says with [`Receiver::handle`] what came of it; messages that arrive are shown to
//! [`Receiver::take_in`] before that. The driver is [`crate::driver`], in a simulation a step of its
//! world. An action that is not answered is the next one again.
//!
//! The states, in the order in which they are entered:
//!
//! | state | entered | left | the driver |
//! |---|---|---|---|
//! | `Halted` | at the start and when the source was refused, if the host says when to try ([`Refusal::Halts`]) | the host lets it go on: `Connecting` | waits for the host |
//! | `Connecting` | at the start; after a rest | connected: `Receiving`; lost: `Parting` | connects, checks that the source continues the log, begins a session of the log, asks for the stream from where the slot stands |
//! | `Receiving` | connected; confirmed, while more may have come; after a wait | [`GATHER`] bytes gathered, nothing more there, or the stream's end: `Storing` | takes messages from the connection |
//! | `Storing` | something may have been gathered | nothing left to write: `Confirming`; no room: `Blocked` | compares, appends, covers, makes durable or has it made |
//! | `Blocked` | the log had no room for a write | that write was done: `Storing`; only the open unit is in the way: `Parting` | makes room, or rests; nothing is taken from the connection |
//! | `Confirming` | all is written | `Receiving`, `Waiting` or, at the stream's end, `Parting` | tells the source, if that is due |
//! | `Waiting` | nothing more was there | the connection, the host or time: `Receiving` | waits |
//! | `Leaving` | the host stops while connected, if it says farewell ([`Terms::farewell`]) | `Stopping` | makes all durable, tells the source, ends the stream in order |
//! | `Parting` | the connection was lost or given up, in any state | an open unit is cut: `Failing`, or `Spared` if it was given up | cuts |
//! | `Spared` | the connection was given up, as the source has too few and nobody reads | somebody reads; time: `Connecting` | closes the connection, waits |
//! | `Failing` | the log ends between two units | `Resting`, or `Halted` | says why |
//! | `Resting` | | time: `Connecting` | waits, longer after each try |
//! | `Stopping` | the host stops, in any state that lasts | an open unit is cut: `Stopped` | cuts |
//!
//! No state persists: a receiver that begins anew learns all from the log and from the slot.
//!
//! What holds of positions:
//!
//! - The log's unfinished unit is cut before the stream is asked for from where the slot stands: a
//!   source sends each transaction whole again that the log does not have whole. What the log has
//!   already is dropped by the [`Assembler`].
//! - *Flushed* in a confirmation is what the log has made durable, never what was merely
//!   received; the source forgets what is confirmed.
//! - *Applied* in a confirmation is what the host says of those who read the log, and never beyond
//!   *flushed*: a commit that waits for it waits for all of them, and for the log.
//! - *Covered* is told to the log only between two units and after all that was gathered is
//!   appended, so the log never claims what it does not have.
//! - Until what is sent again has been held against the log, nothing is stored and nothing
//!   beyond the slot's position is confirmed: a source that turns out to be another one, or
//!   to have been set back, must find its slot as it was.
//! - A write that found no room is tried again, unchanged and before anything else, so the
//!   order of the stream is kept. Meanwhile the source is told what moves, and at the usual times that
//!   somebody is there.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockstep_spool::{Standing, parts};
use lockstep_wire::Lsn;

use crate::fault::IntakeFault;
use lockstep_spool::{Assembler, GATHER, StreamError};

/// Time between two looks at a log that is full.
pub const RETRY_FULL: Duration = Duration::from_millis(200);

/// Time after which a connection that was given up for others is made again although nobody reads
/// what it brings: meanwhile the source has to keep it.
pub const SPARED_FOR: Duration = Duration::from_secs(60);

/// How a host wants its stream to be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The slot sends batches.
    pub batched: bool,
    /// Longest silence towards the source.
    pub status_every: Duration,
    /// A confirmation that is sent because it is time asks the source for an answer.
    pub asks: bool,
    /// Pause between two tries to connect: at first and at most.
    pub retry: [Duration; 2],
    /// Which connection is followed by the shortest pause.
    pub trusted: Trusted,
    /// What follows when a source must not be followed.
    pub refusal: Refusal,
    /// Bytes that are appended before they must be made durable, while more has come.
    pub unsynced: usize,
    /// Longest time that the source may take to end the stream when the host stops, with all that has
    /// come durable and confirmed. None: the connection is just closed.
    pub farewell: Option<Duration>,
}

/// Which connection was well, so that the pause after it is the shortest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trusted {
    /// One whose loss comes so long after the try to connect began.
    After(Duration),
    /// One on which more was confirmed than where it began.
    OnceMoved,
}

/// What follows when a source must not be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Another look after this time: an operator may mend it.
    TriedAfter(Duration),
    /// Nothing until the host says so. The host also says when to begin.
    Halts,
}

/// What those who read the log have applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AppliedByReaders {
    /// Everything that ends up to here.
    pub lsn: Lsn,
    /// Commits on the source may wait for it: the source is told at once, else with the next
    /// confirmation.
    pub awaited: bool,
    /// The source is to answer the next confirmation, which is due at once.
    pub ask: bool,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Do nothing until the host lets the stream go on; [`Event::Nothing`] if it does not yet.
    Halt,
    /// Connect, check the source, begin a session of the log and start the stream where the slot
    /// stands: [`Event::Connected`].
    Connect,
    /// Show what has come to [`Receiver::take_in`] until that has enough ([`Event::Done`]),
    /// nothing more is there ([`Event::Nothing`]) or the stream is over ([`Event::Ended`]).
    Receive,
    /// Hold Begin messages that were sent again against the log: [`Event::Done`], or
    /// [`Event::Lost`] if the log has others.
    Compare {
        again: Vec<Vec<u8>>,
        /// No more of them come: the log must not have more either.
        all: bool,
    },
    /// Append to the log: [`Event::Done`] or [`Event::Full`].
    Append(Bytes),
    /// Count what was stored.
    Stored {
        /// Transactions, and messages outside of any.
        units: u64,
        /// Bytes of the stream.
        bytes: u64,
    },
    /// Cover the log up to here: [`Event::Done`] or [`Event::Full`].
    Cover(Lsn),
    /// Make the log durable, or have it made so soon.
    Sync,
    /// Say that the source waits for room in the log.
    Block,
    /// Make room in the log: [`Event::Freed`].
    MakeRoom,
    /// Say that there is room again.
    Unblock,
    /// Tell the source how far the log is.
    Confirm {
        /// What is in the log.
        written: Lsn,
        /// What is durable, and need never be sent again.
        flushed: Lsn,
        /// What of that its readers have applied.
        applied: Lsn,
        /// The source is to answer.
        reply: bool,
    },
    /// Wait until something has come, the host has news, or for this long.
    Wait(Duration),
    /// End the stream in order, which may take this long.
    Leave(Duration),
    /// Close the connection, and cut the unit that is open.
    Cut,
    /// Close the connection, and say why it is over.
    Fail,
    /// Do nothing for this long.
    Rest(Duration),
    /// Close the connection, and do nothing until somebody reads, or for this long.
    Idle(Duration),
    /// The receiver has ended.
    Stop,
}

/// What came of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The action is done.
    Done,
    /// The source streams from this position on.
    Connected(Lsn),
    /// Nothing more has come.
    Nothing,
    /// The source has ended the stream.
    Ended,
    /// The log has no room for a write; it is as before.
    Full,
    /// Whether room was made.
    Freed(bool),
    /// The connection, or the log, cannot be used any more.
    Lost {
        /// The source must not be followed: an operator has to do something.
        refused: bool,
    },
    /// Others need the connection more. Not an answer: it may come at any time.
    Spare,
    /// The host stops. Not an answer: it may come at any time.
    Stop,
}

/// The receiver's state: see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Halted,
    Connecting,
    Receiving,
    Storing,
    Blocked(Room),
    Confirming,
    Waiting,
    Leaving(Leave),
    Parting,
    Spared,
    Failing,
    Resting,
    Stopping,
    Stopped,
}

/// Steps of an orderly end, and how long the last may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leave {
    Sync(Duration),
    Confirm(Duration),
    End(Duration),
}

/// Steps while there is no room, again and again: make some, rest if there was none to make, tell
/// the source if that is due, try the write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Announce,
    Make,
    Rest,
    Confirm,
    Write,
    Over,
}

/// What follows once all is stored and confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Receive,
    Wait,
    Part,
}

/// A write to the log that was decided.
#[derive(Debug, Clone)]
enum Write {
    Compare { again: Vec<Vec<u8>>, all: bool },
    Append(Bytes),
    Stored { units: u64, bytes: u64 },
    Cover(Lsn),
}

/// Decides for one log. See the module.
#[derive(Debug)]
pub struct Receiver {
    terms: Terms,
    state: State,
    stopping: bool,
    /// The connection's messages, as frames.
    assembler: Assembler,
    /// What the log has is still being sent again: where the stream began, and where the log
    /// ended then.
    comparing: Option<(Lsn, Lsn)>,
    /// What is to be written, in order. What covers is decided once the others are done.
    writes: VecDeque<Write>,
    covering: bool,
    /// Bytes that were written since the log was to be made durable; a position counts as one.
    unsynced: usize,
    then: Then,
    /// What the source was told is durable, when, and what it is being told.
    told: Lsn,
    telling: Lsn,
    told_at: Instant,
    /// What the log's readers have applied, and what of it the source was told and is being told.
    applied: AppliedByReaders,
    told_applied: Lsn,
    telling_applied: Lsn,
    /// When the last try to connect began.
    began: Instant,
    refused: bool,
    /// The connection was given up.
    spared: bool,
    pause: Duration,
    fault: Option<IntakeFault>,
}

impl Receiver {
    /// A receiver that has not connected yet.
    pub fn new(terms: Terms, now: Instant) -> Self {
        Self {
            terms,
            state: match terms.refusal {
                Refusal::TriedAfter(_) => State::Connecting,
                Refusal::Halts => State::Halted,
            },
            stopping: false,
            assembler: Assembler::new(Lsn::INVALID, terms.batched),
            comparing: None,
            writes: VecDeque::new(),
            covering: false,
            unsynced: 0,
            then: Then::Receive,
            told: Lsn::INVALID,
            telling: Lsn::INVALID,
            told_at: now,
            applied: AppliedByReaders::default(),
            told_applied: Lsn::INVALID,
            telling_applied: Lsn::INVALID,
            began: now,
            refused: false,
            spared: false,
            pause: terms.retry[0],
            fault: None,
        }
    }

    /// The receiver, with something wrong in it; for tests.
    #[must_use]
    pub fn with_fault(self, fault: Option<IntakeFault>) -> Self {
        Self { fault, ..self }
    }

    fn has(&self, fault: IntakeFault) -> bool {
        self.fault == Some(fault)
    }

    /// Where the source's WAL ended when it last said so.
    pub fn sent(&self) -> Lsn {
        self.assembler.sent()
    }

    /// Whether there is a connection, as far as the receiver knows.
    pub fn is_connected(&self) -> bool {
        matches!(
            self.state,
            State::Receiving
                | State::Storing
                | State::Blocked(_)
                | State::Confirming
                | State::Waiting
                | State::Leaving(_)
        )
    }

    /// Whether the stream waits for room in the log.
    pub fn is_blocked(&self) -> bool {
        matches!(self.state, State::Blocked(_))
    }

    /// Takes one CopyData message. False if that is enough for now.
    pub fn take_in(&mut self, data: &[u8]) -> Result<bool, StreamError> {
        self.assembler.take_in(data)?;
        Ok(self.assembler.gathered() < GATHER)
    }

    /// Notes what the log's readers have applied.
    pub fn note_applied(&mut self, applied: AppliedByReaders) {
        // What was asked for is asked until the source is told.
        let ask = self.applied.ask || applied.ask;
        self.applied = AppliedByReaders { ask, ..applied };
    }

    /// The next action.
    pub fn poll(&mut self, log: Standing, now: Instant) -> Action {
        loop {
            self.state = match self.state {
                State::Halted if self.stopping => State::Stopping,
                State::Halted => return Action::Halt,
                State::Connecting if self.stopping => State::Stopping,
                State::Connecting => {
                    self.began = now;
                    return Action::Connect;
                }
                State::Receiving if self.stopping => self.leave(),
                State::Receiving => return Action::Receive,
                State::Storing => match self.next_write(log) {
                    Some(action) => return action,
                    None => State::Confirming,
                },
                State::Blocked(room) => match self.next_for_room(room, log, now) {
                    Ok(action) => return action,
                    Err(state) => state,
                },
                State::Confirming if self.is_confirmation_due(log, now) => {
                    return self.confirmation(log, now);
                }
                State::Confirming => self.after_confirming(),
                State::Waiting if self.stopping => self.leave(),
                State::Waiting => {
                    let told = now.saturating_duration_since(self.told_at);
                    return Action::Wait(self.terms.status_every.saturating_sub(told));
                }
                State::Leaving(Leave::Sync(_)) => return Action::Sync,
                State::Leaving(Leave::Confirm(_)) => return self.confirmation(log, now),
                State::Leaving(Leave::End(patience)) => return Action::Leave(patience),
                State::Parting if log.open_unit && !self.has(IntakeFault::UnitIsNotCut) => {
                    return Action::Cut;
                }
                State::Parting if std::mem::take(&mut self.spared) => State::Spared,
                State::Parting => State::Failing,
                State::Spared if self.stopping => State::Stopping,
                State::Spared => return Action::Idle(SPARED_FOR),
                State::Failing => return Action::Fail,
                State::Resting if self.stopping => State::Stopping,
                State::Resting => {
                    return Action::Rest(match self.terms.refusal {
                        Refusal::TriedAfter(time) if self.refused => time,
                        _ => self.pause,
                    });
                }
                State::Stopping if log.open_unit => return Action::Cut,
                State::Stopping => State::Stopped,
                State::Stopped => return Action::Stop,
            };
        }
    }

    /// Notes what came of the last action, or that the host stops.
    pub fn handle(&mut self, event: Event, log: Standing, now: Instant) {
        match event {
            Event::Stop => self.stopping = true,
            Event::Spare if self.is_connected() => {
                self.spared = true;
                self.pause = self.terms.retry[0];
                self.state = State::Parting;
            }
            Event::Spare => {}
            Event::Lost { refused } => self.lost(refused, now),
            _ => self.answered(event, log, now),
        }
    }

    fn answered(&mut self, event: Event, log: Standing, now: Instant) {
        self.state = match (self.state, event) {
            (State::Halted, Event::Nothing) => State::Halted,
            (State::Halted, _) => {
                self.pause = self.terms.retry[0];
                State::Connecting
            }
            (State::Connecting, Event::Connected(from)) => {
                self.begin(from, log, now);
                State::Receiving
            }
            (State::Receiving, event) => {
                self.then = match event {
                    Event::Nothing => Then::Wait,
                    Event::Ended => Then::Part,
                    _ => Then::Receive,
                };
                self.gather(log);
                State::Storing
            }
            (State::Storing, Event::Full) if !self.has(IntakeFault::FullIsDropped) => {
                State::Blocked(Room::Announce)
            }
            (State::Storing, _) => {
                match self.writes.pop_front() {
                    Some(Write::Compare { all: true, .. }) => self.comparing = None,
                    Some(_) => {}
                    None => self.unsynced = 0,
                }
                State::Storing
            }
            (State::Blocked(room), event) => self.blocked(room, event, log, now),
            (State::Confirming, _) => {
                self.confirmed(now);
                self.after_confirming()
            }
            (State::Waiting, _) => State::Receiving,
            (State::Leaving(Leave::Sync(time)), _) => State::Leaving(Leave::Confirm(time)),
            (State::Leaving(Leave::Confirm(time)), _) => State::Leaving(Leave::End(time)),
            (State::Leaving(Leave::End(_)), _) => State::Stopping,
            (State::Spared, _) => State::Connecting,
            (State::Failing, _) if self.refused && self.terms.refusal == Refusal::Halts => {
                State::Halted
            }
            (State::Failing, _) => State::Resting,
            (State::Resting, _) => {
                self.pause = (self.pause * 2).min(self.terms.retry[1]);
                State::Connecting
            }
            // A cut is looked for again: the log says whether it is done.
            (state, _) => state,
        };
    }

    /// Begins a stream that comes from `from` on.
    fn begin(&mut self, from: Lsn, log: Standing, now: Instant) {
        self.assembler = Assembler::new(log.received, self.terms.batched);
        let behind = from < log.received && !self.has(IntakeFault::ComparesNothing);
        self.comparing = behind.then_some((from, log.received));
        self.writes.clear();
        self.covering = false;
        self.told = Lsn::INVALID;
        self.told_applied = Lsn::INVALID;
        self.told_at = now;
    }

    /// What follows while the log has no room for a write.
    fn blocked(&mut self, room: Room, event: Event, log: Standing, now: Instant) -> State {
        State::Blocked(match (room, event) {
            (Room::Announce, _) => Room::Make,
            (Room::Make, Event::Freed(false)) if log.cut_makes_room => {
                self.refused = false;
                self.pause = self.terms.retry[0];
                return State::Parting;
            }
            (Room::Make, Event::Freed(false)) => Room::Rest,
            (Room::Make | Room::Rest, _) => Room::Confirm,
            (Room::Confirm, _) => {
                self.confirmed(now);
                Room::Write
            }
            (Room::Write, Event::Full) => Room::Make,
            (Room::Write, _) => {
                self.writes.pop_front();
                Room::Over
            }
            (Room::Over, _) => return State::Storing,
        })
    }

    fn lost(&mut self, refused: bool, now: Instant) {
        self.spared = false;
        self.state = match self.state {
            // The log cannot be cut: it says so whenever it is used.
            State::Parting => State::Failing,
            State::Stopping | State::Stopped => State::Stopped,
            _ => {
                self.refused = refused;
                let since = now.saturating_duration_since(self.began);
                if matches!(self.terms.trusted, Trusted::After(time) if since > time) {
                    self.pause = self.terms.retry[0];
                }
                State::Parting
            }
        };
    }

    /// Decides what of the gathered is written.
    fn gather(&mut self, log: Standing) {
        let frames = self.assembler.take_frames();
        let units = self.assembler.take_units();
        let bytes = frames.len() as u64;
        let again = self.assembler.take_again();
        if let Some((_, end)) = self.comparing {
            let all = self.assembler.seen() >= end;
            if all || !again.is_empty() {
                self.writes.push_back(Write::Compare { again, all });
            }
        }
        if bytes > 0 {
            let parts = parts(frames, log.most_append);
            self.writes.extend(parts.into_iter().map(Write::Append));
            self.writes.push_back(Write::Stored { units, bytes });
        }
        self.covering = true;
    }

    fn next_write(&mut self, log: Standing) -> Option<Action> {
        if self.writes.is_empty() && std::mem::take(&mut self.covering) {
            let covered = self.assembler.covered();
            let is_between = self.assembler.between_units() || self.has(IntakeFault::CoversInside);
            if is_between && covered > log.received {
                self.writes.push_back(Write::Cover(covered));
            }
        }
        self.unsynced += match self.writes.front() {
            Some(Write::Append(frames)) => frames.len(),
            Some(Write::Cover(_)) => 1,
            _ => 0,
        };
        match self.writes.front().cloned() {
            Some(write) => Some(Action::from(write)),
            // Asked for again if it is not answered, which does no harm.
            None => self.is_sync_due().then_some(Action::Sync),
        }
    }

    fn is_sync_due(&self) -> bool {
        let more_comes = self.then == Then::Receive;
        self.unsynced > 0 && (!more_comes || self.unsynced >= self.terms.unsynced)
    }

    /// What follows when the host stops while there is a connection.
    fn leave(&self) -> State {
        let leaving = |time| State::Leaving(Leave::Sync(time));
        self.terms.farewell.map_or(State::Stopping, leaving)
    }

    fn next_for_room(&mut self, room: Room, log: Standing, now: Instant) -> Result<Action, State> {
        match room {
            Room::Announce => Ok(Action::Block),
            Room::Make | Room::Rest if self.stopping => Err(self.leave()),
            Room::Make => Ok(Action::MakeRoom),
            Room::Rest => Ok(Action::Rest(RETRY_FULL)),
            Room::Confirm if self.is_confirmation_due(log, now) => Ok(self.confirmation(log, now)),
            Room::Confirm => Err(State::Blocked(Room::Write)),
            Room::Write => {
                let write = self.writes.front().cloned();
                write.map(Action::from).ok_or(State::Storing)
            }
            Room::Over => Ok(Action::Unblock),
        }
    }

    /// Whether what is durable has moved, or what is applied while somebody waits for that; a
    /// confirmation was asked for, or it is time.
    fn is_confirmation_due(&self, log: Standing, now: Instant) -> bool {
        let applied = self.applied.lsn.min(self.confirmable(log));
        self.assembler.is_asked()
            || self.applied.ask
            || self.confirmable(log) > self.told
            || self.applied.awaited && applied > self.told_applied
            || self.is_time(now)
    }

    fn is_time(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.told_at) >= self.terms.status_every
    }

    /// What is durable, as far as it is known to be the source's too.
    fn confirmable(&self, log: Standing) -> Lsn {
        match self.comparing {
            Some((from, _)) => log.durable.min(from),
            None => log.durable,
        }
    }

    fn confirmation(&mut self, log: Standing, now: Instant) -> Action {
        let is_first = !self.told.is_valid();
        self.telling = self.confirmable(log);
        let written = match self.comparing {
            Some(_) => self.telling,
            None => log.received.max(log.durable),
        };
        let flushed = match self.has(IntakeFault::ConfirmsReceived) {
            true => written,
            false => self.telling,
        };
        // A reader may have applied what the log has not made durable yet.
        let applied = match self.has(IntakeFault::AppliedIsFlushed) {
            true => flushed,
            false => self.applied.lsn.min(flushed),
        };
        self.telling_applied = applied;
        Action::Confirm {
            written,
            flushed,
            applied,
            reply: self.applied.ask || self.terms.asks && (is_first || self.is_time(now)),
        }
    }

    fn confirmed(&mut self, now: Instant) {
        self.assembler.take_reply();
        self.applied.ask = false;
        let moved = self.told.is_valid() && self.telling > self.told;
        if moved && self.terms.trusted == Trusted::OnceMoved {
            self.pause = self.terms.retry[0];
        }
        self.told = self.telling;
        self.told_applied = self.telling_applied;
        self.told_at = now;
    }

    fn after_confirming(&self) -> State {
        match self.then {
            Then::Receive => State::Receiving,
            Then::Wait => State::Waiting,
            Then::Part => State::Parting,
        }
    }
}

impl From<Write> for Action {
    fn from(write: Write) -> Self {
        match write {
            Write::Compare { again, all } => Self::Compare { again, all },
            Write::Append(frames) => Self::Append(frames),
            Write::Stored { units, bytes } => Self::Stored { units, bytes },
            Write::Cover(lsn) => Self::Cover(lsn),
        }
    }
}

#[cfg(test)]
mod tests;
