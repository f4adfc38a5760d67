//! What a sender does: a walsender's part for one subscriber, decided without I/O and
//! without a clock.
//!
//! [`Sender::poll`] says what to do next. Whoever drives the sender does that one thing and
//! says with [`Sender::handle`] what came of it. The client is heard all the while, also
//! while something is written to it: its feedback goes to [`Sender::heard`], its end and
//! that of the relay or the slot are events that may come at any time. The driver of a
//! relay is a task (`super::task`), that of the simulation a step of its world. An action
//! that is not answered is the next one again.
//!
//! The states, in the order in which they are entered:
//!
//! | state | entered | left | the driver |
//! |---|---|---|---|
//! | `Opening` | at the start; in another group | opened: `Reading` | opens a reader of the log at `from`, that stops where the slot goes on elsewhere |
//! | `Reading` | opened; all that was read is written; after a wait | frames: `Writing`; nothing: `Telling` or `Waiting`; the end of the group: `Switching` or `Leaving` | reads |
//! | `Writing` | frames were read | all of them are written: `Reading`, or `Telling` if the client has been silent for long; it takes nothing: `Ending` | writes to the client |
//! | `Telling` | a keepalive is due | it is written: where it came from; the client takes nothing: `Ending` | writes a keepalive |
//! | `Waiting` | nothing to read | the log, the group, the slot, the relay, the client or time: `Pausing` or `Reading` | waits |
//! | `Pausing` | many sessions share the group and this one has just sent | time: `Reading` | waits |
//! | `Switching` | the slot goes on in another group from here on | `Opening` | takes that group |
//! | `Leaving` | the slot goes on at the primary from here on | the client has confirmed everything before: `Closing`; it has ended the copy: `Finishing`; it does not answer: `Ending` | writes a keepalive that asks for an answer, and another each second, and hears the client; log and group do not matter any more |
//! | `Closing` | the client has all that this session has for it | the end of the copy is written: `Parting`; the client takes nothing: `Ending` | ends the copy, which is no error to a subscriber |
//! | `Parting` | the copy was ended here | the client has ended it as well: `Finishing`; it does not answer: `Ending` | hears the client |
//! | `Finishing` | the client has ended the copy, and nothing is being written | | ends the copy, unless that is done; the session goes on |
//! | `Canceling` | a cancel request, and nothing is being written | | says so; the session goes on |
//! | `Ending` | an error; the relay stops; the slot is dropped; the client is gone | | says why, if that can be said; the session is over |
//!
//! The end of the copy (`Finishing`), a cancel request and the end of relay or slot are acted upon
//! only between two writes: a write that was begun is finished first. It is given up only where the client is
//! gone, sends what it must not, or takes nothing. A client takes nothing if one write has not
//! ended for 60 s (twice [`ASK_AFTER`]) and it has said nothing for as long: the driver looks when
//! [`Sender::gives_up_write_at`] says, and answers with [`Sender::takes_nothing`].
//!
//! What holds of positions:
//!
//! - The first transaction sent is the first whose commit record starts at or after `from`:
//!   what the slot has confirmed, or where the client asks to begin, whichever is later.
//! - *Offered* is the highest position that the client was told of, by a transaction or by
//!   a keepalive. It is raised before the bytes are written, since the client's answer may
//!   come while the rest still waits. A client cannot have flushed more than it was
//!   offered, so feedback is taken only up to there; what a slot has confirmed never goes
//!   back.
//! - A keepalive tells what is *covered* only when everything before was written, never
//!   within a transaction: the client may confirm it. One that asks a silent client in the midst
//!   of what it is sent repeats the last position.
//! - An error is sent only between two messages of the copy. Within one the client would
//!   take it for a part of a row, so the connection is closed without a word.

use std::time::{Duration, Instant};

use lockstep_spool::LogError;
use lockstep_wire::Lsn;
use lockstep_wire::backend::Report;
use lockstep_wire::stream::FromStandby;

use crate::fault::Fault;

/// A session that has just sent waits this long for more, for each other session of its
/// group. A wake-up and a write cost many times what a small transaction's bytes do: with
/// many sessions there are fewer of them; a session that is alone never waits.
pub const PACE: Duration = Duration::from_micros(300);

/// Longest such wait.
pub const LONGEST_PACE: Duration = Duration::from_millis(5);

/// A client that is sent transactions learns of positions behind them this often.
pub const COVER_EVERY: Duration = Duration::from_secs(1);

/// A client that was sent nothing for this time learns of a new position at once: it may wait
/// for it, as the initial synchronization of a table does. Positions that move all the time
/// cost each client ten messages a second.
pub const QUIET: Duration = Duration::from_millis(100);

/// A client that says nothing is asked after this time, and left if it does not answer for as
/// long again; the same as `wal_sender_timeout` by default.
pub const ASK_AFTER: Duration = Duration::from_secs(30);

/// Where a slot goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Onward {
    /// The slot goes on in another group, from this key on.
    Group(Lsn),
    /// The slot goes on at the primary, from this key on: the session ends there.
    Primary(Lsn),
}

impl Onward {
    fn at(self) -> Lsn {
        match self {
            Self::Group(at) | Self::Primary(at) => at,
        }
    }
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Open a reader: [`Event::Done`] or [`Event::Unreadable`].
    Open {
        /// The first key to send.
        from: Lsn,
        /// The first one not to send.
        before: Option<Lsn>,
    },
    /// Read what comes next: [`Event::Frames`], [`Event::Nothing`], [`Event::Limit`],
    /// [`Event::Cut`] or [`Event::Unreadable`].
    Read,
    /// Write what was read: [`Event::Done`]. To be given up if [`Sender::is_over`].
    Write,
    /// Write a keepalive: [`Event::Done`]. To be given up if [`Sender::is_over`].
    Keepalive {
        /// The client has everything before.
        end: Lsn,
        /// The client is to answer at once.
        reply: bool,
    },
    /// Wait until there may be more to read, group, slot or relay have changed,
    /// [`Sender::is_urgent`], or for this long: [`Event::Woken`] or [`Event::GroupFailed`].
    Wait(Duration),
    /// Let more gather: [`Event::Done`]. To be given up if [`Sender::is_over`].
    Pause(Duration),
    /// Say that the stream was canceled. The session goes on. The last action.
    Cancel,
    /// Hear the client for this long, or until [`Sender::is_urgent`], slot or relay have changed:
    /// [`Event::Done`].
    Hear(Duration),
    /// Take the next group: [`Event::Done`].
    NextGroup,
    /// End the copy: [`Event::Done`].
    EndCopy,
    /// The client has ended the copy: end it as a walsender does. The last action.
    Finish {
        /// [`Action::EndCopy`] came before.
        ended: bool,
    },
    /// End the session. The last action.
    End {
        /// Why, unless the client just left.
        why: Option<Report>,
        /// The client can be told.
        say: bool,
    },
}

/// What came of an action, or what happened meanwhile.
#[derive(Debug)]
pub enum Event {
    /// The action asked for is done.
    Done,
    /// Frames were read.
    Frames {
        /// The frames end at the end of this transaction, or within a later one.
        sent: Lsn,
        /// The frames end within a message.
        within: bool,
    },
    /// There is nothing to read.
    Nothing {
        /// The client has everything before, once it has what it was sent.
        covered: Lsn,
    },
    /// What comes next is not to be read here.
    Limit,
    /// A part of a transaction was sent that the log has dropped since.
    Cut,
    /// The log cannot be read there.
    Unreadable(LogError),
    /// There may be more.
    Woken {
        /// Sessions that stream from the group, this one included.
        sessions: usize,
    },
    /// The group cannot go on, and why.
    GroupFailed(Report),
    /// The relay stops. May come at any time, as what follows.
    Stop,
    /// The slot was dropped.
    Dropped,
    /// The session was told to end, and why.
    Terminated(Report),
    /// A cancel request.
    Canceled,
    /// The client has ended its side of the copy.
    ClientDone,
    /// The client is gone, or has sent what it must not.
    ClientGone(Option<Report>),
}

/// What a client says of itself, as far as it can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmation {
    pub written: Lsn,
    /// Durable: what the slot has confirmed.
    pub flushed: Lsn,
    pub applied: Lsn,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Opening,
    Reading,
    Writing {
        within: bool,
    },
    Telling {
        end: Lsn,
        reply: bool,
        then: Then,
    },
    Waiting,
    Pausing(Instant),
    Switching,
    /// No keepalive is due before this.
    Leaving(Instant),
    Closing,
    /// Since when.
    Parting(Instant),
    Finishing {
        ended: bool,
    },
    Canceling,
    Ending(Option<Report>),
}

/// What follows a keepalive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Wait,
    Read,
    Leave,
}

/// Decides for one session. See the module.
#[derive(Debug)]
pub struct Sender {
    /// The slot's name, for errors.
    slot: String,
    state: State,
    from: Lsn,
    next: Option<Onward>,
    /// Where the primary goes on, while leaving.
    at: Lsn,
    /// What was found to be covered last.
    covered: Lsn,
    offered: Lsn,
    confirmed: Lsn,
    /// Last position that a keepalive told, and when; None before the first.
    told: Lsn,
    told_at: Option<Instant>,
    heard_at: Instant,
    asked_at: Option<Instant>,
    /// When transactions were sent last.
    sent_at: Option<Instant>,
    /// The client wants an answer at once.
    asked: bool,
    /// The client has ended its side.
    done: bool,
    /// The client has asked for the end of the stream otherwise.
    canceled: bool,
    /// Why nothing more may be sent.
    end: Option<Report>,
    /// What the client was sent may end within a message.
    midway: bool,
    fault: Option<Fault>,
}

impl Sender {
    /// A sender for a slot that has confirmed `confirmed`, from key `from` on and onward elsewhere.
    pub fn new(slot: &str, confirmed: Lsn, from: Lsn, next: Option<Onward>, now: Instant) -> Self {
        Self {
            slot: slot.to_owned(),
            state: State::Opening,
            from,
            next,
            at: Lsn::INVALID,
            covered: from,
            offered: from,
            confirmed,
            told: from,
            told_at: None,
            heard_at: now,
            asked_at: None,
            sent_at: None,
            asked: false,
            done: false,
            canceled: false,
            end: None,
            midway: false,
            fault: None,
        }
    }

    /// This sender with something wrong, for tests.
    #[must_use]
    pub fn with_fault(self, fault: Option<Fault>) -> Self {
        Self { fault, ..self }
    }

    /// Whether a write or a pause is to be given up.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Ending(_))
    }

    /// Whether a wait is to be given up. A client that leaves is told each second, and no
    /// sooner because it asks: it could ask again in each answer.
    pub fn is_urgent(&self) -> bool {
        let urgent = match self.state {
            State::Leaving(_) => self.confirmed >= self.at,
            _ => self.asked,
        };
        urgent || self.done || self.is_over()
    }

    /// Whether the client is still to be heard: what it sends after its end of the copy is
    /// not part of it.
    pub fn hears(&self) -> bool {
        !self.done
    }

    pub fn poll(&mut self, now: Instant) -> Action {
        loop {
            if let Some(state) = self.ends() {
                self.state = state;
            }
            self.state = match &self.state {
                State::Opening => {
                    return Action::Open {
                        from: self.from,
                        before: self.next.map(|next| self.limit(next)),
                    };
                }
                State::Reading => return Action::Read,
                State::Writing { .. } => return Action::Write,
                State::Telling { end, reply, .. } => {
                    return Action::Keepalive {
                        end: *end,
                        reply: *reply,
                    };
                }
                State::Waiting if self.does_not_answer(now) => State::Ending(Some(silent())),
                State::Waiting => return Action::Wait(self.until_due(now)),
                State::Pausing(until) if now < *until => return Action::Pause(*until - now),
                State::Pausing(_) => State::Reading,
                State::Switching => return Action::NextGroup,
                State::Leaving(_) if self.done => State::Finishing { ended: false },
                State::Leaving(_) if self.confirmed >= self.at => State::Closing,
                State::Leaving(_) if self.does_not_answer(now) => State::Ending(Some(self.left())),
                State::Leaving(due) if now < *due => return Action::Hear(*due - now),
                State::Leaving(_) => self.tell(self.at, true, Then::Leave),
                State::Closing => return Action::EndCopy,
                State::Parting(_) if self.done => State::Finishing { ended: true },
                State::Parting(since) => {
                    let waited = now.saturating_duration_since(*since);
                    match ASK_AFTER.saturating_sub(waited) {
                        Duration::ZERO => State::Ending(Some(self.left())),
                        left => return Action::Hear(left),
                    }
                }
                State::Finishing { ended } => return Action::Finish { ended: *ended },
                State::Canceling => return Action::Cancel,
                State::Ending(report) => {
                    return Action::End {
                        why: report.clone(),
                        say: !self.midway || self.fault == Some(Fault::ErrorWithinMessage),
                    };
                }
            };
        }
    }

    /// The first key not to send here.
    fn limit(&self, next: Onward) -> Lsn {
        let late = self.fault == Some(Fault::SwitchesLate);
        match next {
            Onward::Group(at) if late => Lsn::from(u64::from(at).saturating_add(1)),
            next => next.at(),
        }
    }

    /// What ends the stream between two writes, if something does.
    fn ends(&mut self) -> Option<State> {
        match self.state {
            State::Opening | State::Reading | State::Waiting | State::Pausing(_) => {
                // Within a message its rest comes first: there it would be taken for a row's.
                let midway = self.midway && self.fault != Some(Fault::FinishesWithinMessage);
                if self.done && !midway {
                    return Some(State::Finishing { ended: false });
                }
                if self.canceled && !midway {
                    return Some(State::Canceling);
                }
            }
            State::Leaving(_) | State::Parting(_) if self.canceled && !self.done => {
                return Some(State::Canceling);
            }
            State::Leaving(_) | State::Closing | State::Parting(_) => {}
            _ => return None,
        }
        self.end.take().map(|report| State::Ending(Some(report)))
    }

    /// What came of the last action, or what happened meanwhile.
    pub fn handle(&mut self, event: Event, now: Instant) {
        match event {
            Event::Stop => drop(self.end.get_or_insert_with(stopping)),
            Event::Dropped => {
                let report = dropped(&self.slot);
                self.end.get_or_insert(report);
            }
            Event::Terminated(report) => drop(self.end.get_or_insert(report)),
            Event::Canceled => self.canceled = true,
            Event::ClientDone => self.done = true,
            Event::ClientGone(report) => self.state = State::Ending(report),
            event => {
                self.state = self.answered(event, now);
            }
        }
    }

    fn answered(&mut self, event: Event, now: Instant) -> State {
        match (&self.state, event) {
            (State::Ending(report), _) => State::Ending(report.clone()),
            (_, Event::Unreadable(error)) => State::Ending(Some(self.unreadable(&error))),
            (State::Opening, _) => State::Reading,
            (State::Reading, event) => self.read(event, now),
            (State::Writing { within }, _) => {
                self.midway = *within;
                self.sent_at = Some(now);
                match !self.midway && self.is_question_due(now) {
                    // What was told before may be told anywhere.
                    true => self.tell(self.told, true, Then::Read),
                    false => State::Reading,
                }
            }
            (State::Telling { end, reply, then }, _) => {
                let (end, reply, then) = (*end, *reply, *then);
                self.midway = false;
                self.told = end;
                self.told_at = Some(now);
                if reply {
                    self.asked_at.get_or_insert(now);
                }
                match then {
                    Then::Wait => State::Waiting,
                    Then::Read => State::Reading,
                    Then::Leave => State::Leaving(now + COVER_EVERY),
                }
            }
            (State::Closing, _) => {
                self.midway = false;
                State::Parting(now)
            }
            (State::Waiting, Event::GroupFailed(report)) => State::Ending(Some(report)),
            (State::Waiting, Event::Woken { sessions }) => {
                let others = u32::try_from(sessions.saturating_sub(1)).unwrap_or(u32::MAX);
                let pace = PACE.saturating_mul(others).min(LONGEST_PACE);
                State::Pausing(self.sent_at.map_or(now, |sent| sent + pace))
            }
            (State::Switching, _) => State::Opening,
            (State::Pausing(_), _) => State::Reading,
            (state, _) => state.clone(),
        }
    }

    fn read(&mut self, event: Event, now: Instant) -> State {
        match event {
            Event::Frames { sent, within } => {
                self.offer(sent);
                self.midway = true;
                State::Writing { within }
            }
            Event::Nothing { covered } if self.next.is_none_or(|next| covered < next.at()) => {
                self.keepalive(covered, now)
            }
            Event::Nothing { .. } | Event::Limit => match self.next.take() {
                Some(Onward::Group(at)) => {
                    self.from = self.from.max(at);
                    State::Switching
                }
                Some(Onward::Primary(at)) => {
                    self.at = at;
                    State::Leaving(now)
                }
                None => State::Opening,
            },
            Event::Cut => State::Ending(Some(cut())),
            _ => State::Reading,
        }
    }

    /// Tells the client how far the stream is, if it asked, if it is time, or if nothing was
    /// heard of it.
    fn keepalive(&mut self, covered: Lsn, now: Instant) -> State {
        self.covered = covered;
        let ask = self.is_question_due(now);
        match self.asked || ask || self.until_told(now).is_zero() {
            true => self.tell(covered, ask, Then::Wait),
            false => State::Waiting,
        }
    }

    /// How long the client need not be told what is covered. At first it is told at once, as a
    /// walsender does: it may know the position, and wait for nothing but to hear it.
    fn until_told(&self, now: Instant) -> Duration {
        let Some(told_at) = self.told_at else {
            return Duration::ZERO;
        };
        if self.covered <= self.told {
            return Duration::MAX;
        }
        let told = now.saturating_duration_since(told_at);
        let in_time = COVER_EVERY.saturating_sub(told);
        if self.covered <= self.offered {
            return in_time;
        }
        let sent = self.sent_at.map(|sent| now.saturating_duration_since(sent));
        let quiet = told.min(sent.unwrap_or(Duration::MAX));
        in_time.min(QUIET.saturating_sub(quiet))
    }

    /// How long to wait for something to happen.
    fn until_due(&self, now: Instant) -> Duration {
        self.until_told(now).min(COVER_EVERY)
    }

    fn tell(&mut self, end: Lsn, reply: bool, then: Then) -> State {
        self.asked = false;
        self.offer(end);
        self.midway = true;
        State::Telling { end, reply, then }
    }

    fn offer(&mut self, lsn: Lsn) {
        self.offered = self.offered.max(lsn);
    }

    /// How long the client has been silent.
    fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard_at)
    }

    /// Whether the client has been silent for long and was not asked since.
    fn is_question_due(&self, now: Instant) -> bool {
        self.asked_at.is_none() && self.silence(now) >= ASK_AFTER
    }

    /// Whether the client was asked long ago and has been silent since. Its silence alone says
    /// nothing: it may have had much to apply that was sent before the question.
    fn does_not_answer(&self, now: Instant) -> bool {
        let asked = self.asked_at;
        asked.is_some_and(|asked| now.saturating_duration_since(asked) >= ASK_AFTER)
    }

    /// When a write that began at `began` is given up, if it has not ended by then: as long
    /// after the client was last heard, or took something, as one that does not answer is left.
    pub fn gives_up_write_at(&self, began: Instant) -> Instant {
        began.max(self.heard_at) + ASK_AFTER * 2
    }

    /// What becomes of a client that took nothing until then.
    pub fn takes_nothing(&self) -> Event {
        Event::ClientGone(Some(silent()))
    }

    /// Feedback of the client, and what of it counts.
    pub fn heard(&mut self, feedback: &FromStandby, now: Instant) -> Option<Confirmation> {
        self.heard_at = now;
        self.asked_at = None;
        let FromStandby::Status(status) = feedback else {
            return None;
        };
        self.asked |= status.reply;
        let heard = Confirmation {
            written: status.written.min(self.offered),
            flushed: status.flushed.min(self.offered),
            applied: status.applied.min(self.offered),
        };
        self.confirmed = self.confirmed.max(heard.flushed);
        Some(heard)
    }

    fn unreadable(&self, error: &LogError) -> Report {
        let slot = &self.slot;
        let report = match error {
            LogError::Gone { .. } => Report::error(
                "55000",
                format!(
                    "replication slot \"{slot}\" cannot go on at {}: {error}",
                    self.from
                ),
            ),
            LogError::Corrupt { .. } => Report::error(
                "XX001",
                format!(
                    "the relay's spool is damaged where replication slot \"{slot}\" reads: {error}"
                ),
            ),
            _ => Report::error(
                "58030",
                format!("replication slot \"{slot}\" cannot be read: {error}"),
            ),
        };
        report
            .hint("If this does not pass, drop the subscription and create it again with its initial copy.")
    }

    /// What is reported of a client that cannot be sent away in order.
    fn left(&self) -> Report {
        Report::fatal(
            "57P05",
            format!(
                "terminating: the subscriber did not answer in time, and replication slot \"{}\" \
                 goes back to the primary at {}",
                self.slot, self.at
            ),
        )
        .hint("Connect again.")
    }
}

fn cut() -> Report {
    let report = Report::error(
        "57P01",
        "the relay lost its connection to the primary within a transaction",
    );
    report.hint("Connect again: the transaction will be sent from its start.")
}

fn stopping() -> Report {
    Report::fatal("57P01", "terminating connection because the relay stops")
}

fn dropped(slot: &str) -> Report {
    Report::fatal(
        "55000",
        format!("replication slot \"{slot}\" was dropped in the relay"),
    )
}

fn silent() -> Report {
    Report::fatal(
        "57P05",
        "terminating: the subscriber did not answer in time",
    )
}
