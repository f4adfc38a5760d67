//! What a receiver does: one group's part towards the primary, decided without I/O and
//! without a clock.
//!
//! [`Receiver::poll`] says what to do next. Whoever drives the receiver does that one thing
//! and says with [`Receiver::handle`] what came of it; messages that arrive are shown to
//! [`Receiver::take_in`] before that. The driver of a relay is a thread (`super::thread`), that
//! of the simulation a step of its world. An action that is not answered is the next one
//! again.
//!
//! The states, in the order in which they are entered:
//!
//! | state | entered | left | the driver |
//! |---|---|---|---|
//! | `Connecting` | at the start; after a rest | connected: `Receiving`; lost: `Parting` | connects, checks that the primary continues the log, begins a session of the log, asks for the stream from where the slot stands |
//! | `Receiving` | connected; confirmed, while more may have come; after a wait | [`GATHER`] bytes gathered, nothing more there, or the stream's end: `Storing` | takes messages from the connection |
//! | `Storing` | something may have been gathered | nothing left to write: `Confirming`; no room: `Blocked` | compares, appends, covers |
//! | `Blocked` | the log had no room for a write | that write was done: `Storing` | makes room, or rests; nothing is taken from the connection |
//! | `Confirming` | all is written | `Receiving`, `Waiting` or, at the stream's end, `Parting` | tells the primary, if that is due |
//! | `Waiting` | nothing more was there | the connection, the syncing thread or time: `Receiving` | waits |
//! | `Parting` | the connection was lost or given up, in any state | an open unit is cut: `Failing`, or `Spared` if it was given up | cuts |
//! | `Spared` | the connection was given up, as the primary has too few and nobody reads | somebody reads; time: `Connecting` | closes the connection, waits |
//! | `Failing` | the log ends between two units | `Resting` | tells subscribers and operator why |
//! | `Resting` | | time: `Connecting` | waits, longer after each try |
//! | `Stopping` | the relay stops, in any state that lasts | an open unit is cut: `Stopped` | cuts |
//!
//! What holds of positions:
//!
//! - The log's unfinished unit is cut before the stream is asked for from where the primary's
//!   slot stands: a primary sends each transaction whole again that the log does not have whole.
//!   What it sends though the log has it the [`Assembler`] drops.
//! - *Flushed* in a confirmation is what the log has made durable, never what was merely
//!   received; the primary forgets what is confirmed.
//! - *Applied* in a confirmation is what the slowest subscriber has applied, and never beyond
//!   *flushed*: a commit that waits for it waits for all of them.
//! - *Covered* is told to the log only between two units and after all that was gathered is
//!   appended, so the log never claims what it does not have.
//! - Until what is sent again has been held against the log, nothing is stored and nothing
//!   beyond the slot's position is confirmed: a primary that turns out to be another one, or
//!   to have been set back, must find its slot as it was.
//! - A write that found no room is tried again, unchanged and before anything else, so the
//!   order of the stream is kept. Meanwhile the primary is told at the usual times that the
//!   relay is there.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockstep_spool::{Standing, parts};
use lockstep_wire::Lsn;

use crate::fault::Fault;
use lockstep_spool::{Assembler, GATHER, StreamError};

/// The primary hears from the relay at least this often.
pub const STATUS_EVERY: Duration = Duration::from_secs(1);

/// Between two tries to connect: at first and at most.
pub const RETRY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// Between two looks at a slot that must not be continued: an operator may mend it.
pub const RETRY_REFUSED: Duration = Duration::from_secs(5);

/// Between two looks at a spool that is full.
pub const RETRY_FULL: Duration = Duration::from_millis(200);

/// A connection that was given up for others is made again after this time, also if nobody reads
/// what it brings: meanwhile the primary has to keep it.
pub const SPARED_FOR: Duration = Duration::from_secs(60);

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Connect, check the primary, begin a session of the log and start the stream where the
    /// primary's slot stands: [`Event::Connected`].
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
    /// Have the log made durable, soon; nobody waits for it here.
    Sync,
    /// Say that the primary waits for room in the spool.
    Block,
    /// Make room in the spool: [`Event::Freed`].
    MakeRoom,
    /// Say that there is room again.
    Unblock,
    /// Tell the primary how far the relay is.
    Confirm {
        /// What is in the log.
        written: Lsn,
        /// What is durable, and need never be sent again.
        flushed: Lsn,
        /// What of that the subscribers have applied.
        applied: Lsn,
    },
    /// Wait until something has come, the log was made durable, or for this long.
    Wait(Duration),
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
    /// It is done.
    Done,
    /// The primary streams from this position on.
    Connected(Lsn),
    /// Nothing more has come.
    Nothing,
    /// The primary has ended the stream.
    Ended,
    /// The log has no room for a write; it is as before.
    Full,
    /// Whether room was made.
    Freed(bool),
    /// The connection, or the log, cannot be used any more.
    Lost {
        /// The primary must not be followed: an operator has to do something.
        refused: bool,
    },
    /// Others need the connection more. Not an answer: it may come at any time.
    Spare,
    /// The relay stops. Not an answer: it may come at any time.
    Stop,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    Receiving,
    Storing,
    Blocked(Room),
    Confirming,
    Waiting,
    Parting,
    Spared,
    Failing,
    Resting,
    Stopping,
    Stopped,
}

/// While there is no room, again and again: make some, rest if there was none to make, tell
/// the primary if it is time, try the write.
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

/// Decides for one group. See the module.
#[derive(Debug)]
pub struct Receiver {
    batched: bool,
    state: State,
    stopping: bool,
    /// Of the connection, as what follows.
    assembler: Assembler,
    /// What the log has is still being sent again: where the stream began, and where the log
    /// ended then.
    comparing: Option<(Lsn, Lsn)>,
    /// In order. What covers is decided once the others are done.
    writes: VecDeque<Write>,
    covering: bool,
    /// Something was written since the log was to be made durable.
    unsynced: bool,
    then: Then,
    /// What the primary was told is durable, when, and what it is being told.
    told: Lsn,
    telling: Lsn,
    told_at: Instant,
    /// What the subscribers have applied, what of it the primary was told and is being told,
    /// and whether it waits for that.
    applied: Lsn,
    told_applied: Lsn,
    telling_applied: Lsn,
    awaited: bool,
    /// When the last try to connect began.
    began: Instant,
    refused: bool,
    /// The connection was given up.
    spared: bool,
    pause: Duration,
    fault: Option<Fault>,
}

impl Receiver {
    /// For a group whose slot sends batches, or not.
    pub fn new(batched: bool, now: Instant) -> Self {
        Self {
            batched,
            state: State::Connecting,
            stopping: false,
            assembler: Assembler::new(Lsn::INVALID, batched),
            comparing: None,
            writes: VecDeque::new(),
            covering: false,
            unsynced: false,
            then: Then::Receive,
            told: Lsn::INVALID,
            telling: Lsn::INVALID,
            told_at: now,
            applied: Lsn::INVALID,
            told_applied: Lsn::INVALID,
            telling_applied: Lsn::INVALID,
            awaited: false,
            began: now,
            refused: false,
            spared: false,
            pause: RETRY[0],
            fault: None,
        }
    }

    /// With something wrong, for tests.
    #[must_use]
    pub fn with_fault(self, fault: Option<Fault>) -> Self {
        Self { fault, ..self }
    }

    /// Where the primary's WAL ended when it last said so.
    pub fn sent(&self) -> Lsn {
        self.assembler.sent()
    }

    /// Whether it has a connection, as far as it knows.
    pub fn is_connected(&self) -> bool {
        matches!(
            self.state,
            State::Receiving
                | State::Storing
                | State::Blocked(_)
                | State::Confirming
                | State::Waiting
        )
    }

    /// Whether the stream waits for room in the spool.
    pub fn is_blocked(&self) -> bool {
        matches!(self.state, State::Blocked(_))
    }

    /// Takes one CopyData message while it receives. False if it has enough for now.
    pub fn take_in(&mut self, data: &[u8]) -> Result<bool, StreamError> {
        self.assembler.take_in(data)?;
        Ok(self.assembler.gathered() < GATHER)
    }

    /// Notes what the subscribers have applied, and whether commits on the primary wait for
    /// that: if so it is told at once, else with the next confirmation.
    pub fn note_applied(&mut self, applied: Lsn, awaited: bool) {
        self.applied = applied;
        self.awaited = awaited;
    }

    pub fn poll(&mut self, log: Standing, now: Instant) -> Action {
        loop {
            self.state = match self.state {
                State::Connecting if self.stopping => State::Stopping,
                State::Connecting => {
                    self.began = now;
                    return Action::Connect;
                }
                State::Receiving if self.stopping => State::Stopping,
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
                    return self.confirmation(log);
                }
                State::Confirming => self.after_confirming(),
                State::Waiting if self.stopping => State::Stopping,
                State::Waiting => {
                    let told = now.saturating_duration_since(self.told_at);
                    return Action::Wait(STATUS_EVERY.saturating_sub(told));
                }
                State::Parting if log.open_unit => return Action::Cut,
                State::Parting if std::mem::take(&mut self.spared) => State::Spared,
                State::Parting => State::Failing,
                State::Spared if self.stopping => State::Stopping,
                State::Spared => return Action::Idle(SPARED_FOR),
                State::Failing => return Action::Fail,
                State::Resting if self.stopping => State::Stopping,
                State::Resting => {
                    return Action::Rest(match self.refused {
                        true => RETRY_REFUSED,
                        false => self.pause,
                    });
                }
                State::Stopping if log.open_unit => return Action::Cut,
                State::Stopping => State::Stopped,
                State::Stopped => return Action::Stop,
            };
        }
    }

    /// What came of the last action, or that the relay stops.
    pub fn handle(&mut self, event: Event, log: Standing, now: Instant) {
        match event {
            Event::Stop => self.stopping = true,
            Event::Spare if self.is_connected() => {
                self.spared = true;
                self.pause = RETRY[0];
                self.state = State::Parting;
            }
            Event::Spare => {}
            Event::Lost { refused } => self.lost(refused, now),
            _ => self.answered(event, log, now),
        }
    }

    fn answered(&mut self, event: Event, log: Standing, now: Instant) {
        self.state = match (self.state, event) {
            (State::Connecting, Event::Connected(from)) => {
                self.assembler = Assembler::new(log.received, self.batched);
                let behind = from < log.received;
                self.comparing = behind.then_some((from, log.received));
                self.writes.clear();
                self.covering = false;
                self.told = Lsn::INVALID;
                self.told_applied = Lsn::INVALID;
                self.told_at = now;
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
            (State::Storing, Event::Full) => State::Blocked(Room::Announce),
            (State::Storing, _) => {
                match self.writes.pop_front() {
                    Some(Write::Compare { all: true, .. }) => self.comparing = None,
                    Some(_) => {}
                    None => self.unsynced = false,
                }
                State::Storing
            }
            (State::Blocked(room), event) => State::Blocked(match (room, event) {
                (Room::Announce, _) => Room::Make,
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
                (Room::Over, _) => {
                    self.state = State::Storing;
                    return;
                }
            }),
            (State::Confirming, _) => {
                self.confirmed(now);
                self.after_confirming()
            }
            (State::Waiting, _) => State::Receiving,
            (State::Spared, _) => State::Connecting,
            (State::Failing, _) => State::Resting,
            (State::Resting, _) => {
                self.pause = (self.pause * 2).min(RETRY[1]);
                State::Connecting
            }
            // A cut is looked for again: the log says whether it is done.
            (state, _) => state,
        };
    }

    fn lost(&mut self, refused: bool, now: Instant) {
        self.spared = false;
        self.state = match self.state {
            // The log cannot be cut: it says so whenever it is used.
            State::Parting => State::Failing,
            State::Stopping | State::Stopped => State::Stopped,
            _ => {
                self.refused = refused;
                if now.saturating_duration_since(self.began) > RETRY[1] {
                    self.pause = RETRY[0];
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
            if self.assembler.between_units() && covered > log.received {
                self.writes.push_back(Write::Cover(covered));
            }
        }
        let stores = |write: &Write| !matches!(write, Write::Compare { .. });
        self.unsynced |= self.writes.front().is_some_and(stores);
        match self.writes.front().cloned() {
            Some(write) => Some(Action::from(write)),
            // Asked for again if it is not answered, which does no harm.
            None => self.unsynced.then_some(Action::Sync),
        }
    }

    fn next_for_room(&mut self, room: Room, log: Standing, now: Instant) -> Result<Action, State> {
        let is_time = now.saturating_duration_since(self.told_at) >= STATUS_EVERY;
        match room {
            Room::Announce => Ok(Action::Block),
            Room::Make if self.stopping => Err(State::Stopping),
            Room::Make => Ok(Action::MakeRoom),
            Room::Rest if self.stopping => Err(State::Stopping),
            Room::Rest => Ok(Action::Rest(RETRY_FULL)),
            Room::Confirm if is_time => Ok(self.confirmation(log)),
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
        self.assembler.is_asked()
            || self.confirmable(log) > self.told
            || self.awaited && self.applied.min(self.confirmable(log)) > self.told_applied
            || now.saturating_duration_since(self.told_at) >= STATUS_EVERY
    }

    /// What is durable, as far as it is known to be the primary's too.
    fn confirmable(&self, log: Standing) -> Lsn {
        match self.comparing {
            Some((from, _)) => log.durable.min(from),
            None => log.durable,
        }
    }

    fn confirmation(&mut self, log: Standing) -> Action {
        self.telling = self.confirmable(log);
        let written = match self.comparing {
            Some(_) => self.telling,
            None => log.received.max(log.durable),
        };
        let flushed = match self.fault {
            Some(Fault::ConfirmsReceived) => written,
            _ => self.telling,
        };
        // A subscriber may have applied what the spool has not made durable yet.
        let applied = match self.fault {
            Some(Fault::AppliedIsFlushed) => flushed,
            _ => self.applied.min(flushed),
        };
        self.telling_applied = applied;
        Action::Confirm {
            written,
            flushed,
            applied,
        }
    }

    fn confirmed(&mut self, now: Instant) {
        self.assembler.take_reply();
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
