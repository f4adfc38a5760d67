//! Bytes between a client and the primary, both ways, through two small buffers.
//!
//! Nothing is changed and nothing is collected, but for messages that are taken out and shown
//! to the caller, if they are not too long: in a session of replication that is idle each
//! simple query, in all sessions a query or a statement to be prepared that names a view or
//! function of replication slots, and then what uses a prepared one. The caller passes the
//! message on, or another one, or answers it. What the relay says itself goes between two
//! messages of the primary. While a message is held the caller may ask the primary
//! something, whose answer the client does not get.
//!
//! A statement that the relay refuses is replaced by one that the primary refuses, and the
//! primary's error by the relay's: so the session is after it where it is after any error.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use lockstep_wire::backend::{Backend, Report};
use lockstep_wire::frame::{self, Frame, HEADER};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::exchange::{Cut, Exchange};
use super::frames::MOST;
use super::statements::refused;
use super::transport::{Reader, Writer};
use crate::slot_sql;
use crate::spare::Scarce;

/// Size of each of the two buffers, in bytes.
pub(super) const BUFFER: usize = 16 * 1024;

/// Longest query, as a message's body in bytes, that is taken out.
pub(super) const QUERY_LIMIT: usize = 64 * 1024;

/// Most errors of the primary that wait to be replaced.
const MOST_REFUSALS: usize = 64;

/// What the caller must know.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A query, the whole message. Until it is passed on or answered nothing more is
    /// taken from the client, except that it has left.
    Query(Vec<u8>),
    /// A message that concerns replication slots, in any session and at any time; likewise held.
    Statement(Vec<u8>),
    ClientGone,
    /// The primary has gone; what it sent is with the client.
    PrimaryGone,
    /// What [`Pump::settle`] asked for: all is with the client and a message's end is
    /// reached.
    Settled,
    /// What the primary answers to [`Pump::ask`], whole messages.
    Answered(Vec<u8>),
    /// The primary has refused something of which it has too few; the client has its error.
    Short(Scarce),
}

/// The halves of both connections.
pub(super) struct Ends {
    pub client_reader: Reader,
    pub client_writer: Writer,
    pub primary_reader: Reader,
    pub primary_writer: Writer,
}

/// Bytes on their way: `start..looked` may go on, `looked..end` have not been looked at.
struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    looked: usize,
    end: usize,
}

impl Buffer {
    fn new() -> Self {
        Self {
            bytes: vec![0; BUFFER].into(),
            start: 0,
            looked: 0,
            end: 0,
        }
    }

    fn to_write(&self) -> &[u8] {
        self.bytes.get(self.start..self.looked).unwrap_or_default()
    }

    fn unseen(&self) -> &[u8] {
        self.bytes.get(self.looked..self.end).unwrap_or_default()
    }

    fn wrote(&mut self, length: usize) {
        self.start = (self.start + length).min(self.looked);
    }

    /// Lets `length` more bytes go on.
    fn look(&mut self, length: usize) {
        self.looked = (self.looked + length).min(self.end);
    }

    /// Takes up to `length` unseen bytes out; only when nothing is there to be written.
    fn take(&mut self, length: usize) -> &[u8] {
        let taken = length.min(self.end - self.looked);
        let from = self.looked;
        self.looked += taken;
        self.start = self.looked;
        self.bytes.get(from..from + taken).unwrap_or_default()
    }

    /// Reads more; only when nothing is there to be written. Ready(0) is the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>, reader: &mut Reader) -> Poll<io::Result<usize>> {
        self.bytes.copy_within(self.looked..self.end, 0);
        self.end -= self.looked;
        self.start = 0;
        self.looked = 0;
        let mut space = ReadBuf::new(self.bytes.get_mut(self.end..).unwrap_or_default());
        match Pin::new(reader).poll_read(cx, &mut space) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                let length = space.filled().len();
                self.end += length;
                Poll::Ready(Ok(length))
            }
        }
    }

    fn is_full(&self) -> bool {
        self.looked == 0 && self.end == self.bytes.len()
    }
}

/// Bytes that go before what is in a buffer.
#[derive(Default)]
struct First {
    bytes: Vec<u8>,
    written: usize,
}

impl First {
    fn put(&mut self, bytes: Vec<u8>) {
        match self.to_write().is_empty() {
            true => {
                self.bytes = bytes;
                self.written = 0;
            }
            false => self.bytes.extend(bytes),
        }
    }

    fn to_write(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }

    fn wrote(&mut self, length: usize) {
        self.written += length;
        if self.to_write().is_empty() {
            *self = Self::default();
        }
    }
}

/// A query that is being taken out.
struct Taking {
    message: Vec<u8>,
    length: usize,
}

/// A question of the relay's own.
struct Asking {
    /// `ReadyForQuery` messages still to come.
    open: usize,
    /// What the primary has answered.
    said: Vec<u8>,
}

/// What became of an answer of the primary.
enum Gathered {
    /// The message is whole.
    Whole(Vec<u8>),
    /// Something of it, or between it, is for the client.
    ForClient,
    /// More must come.
    Nothing,
}

/// What has happened to a direction besides bytes.
#[derive(Default)]
struct Course {
    /// Written and not flushed.
    unflushed: bool,
    /// The reading side has ended.
    ended: bool,
    /// The writing side takes nothing more.
    closed: bool,
}

/// What one direction can do.
enum Step {
    Blocked,
    Event(Event),
}

/// What was found at the front of the client's bytes.
enum Found {
    /// Something may go on, or a query is being taken out.
    Something,
    /// A message that was taken out is whole.
    Whole(Vec<u8>),
    /// Too little has come.
    Nothing,
}

/// The way from the client to the primary, and back.
pub(super) struct Pump {
    /// Queries are taken out.
    replicates: bool,
    /// What the client sends makes no sense: all of it goes on.
    blind: bool,
    /// What uses prepared statements is taken out.
    watches: bool,
    exchange: Exchange,
    up: Buffer,
    up_first: First,
    up_course: Course,
    /// Bytes of the client's message that go on without a look.
    up_body: usize,
    taking: Option<Taking>,
    /// A query has been taken out and nothing has been decided about it.
    held: bool,
    /// The relay has asked the primary something itself.
    asking: Option<Asking>,
    down: Buffer,
    down_first: First,
    down_course: Course,
    down_cut: Cut,
    settling: bool,
    /// What the primary has too few of.
    short: Option<Scarce>,
    refusals: Refusals,
    down_before_up: bool,
}

impl Pump {
    /// For a session that has just sent its first `ReadyForQuery`. Only in one of replication
    /// is every query taken out.
    pub fn new(replicates: bool) -> Self {
        Self {
            replicates,
            blind: false,
            watches: false,
            exchange: Exchange::begun(),
            up: Buffer::new(),
            up_first: First::default(),
            up_course: Course::default(),
            up_body: 0,
            taking: None,
            held: false,
            asking: None,
            down: Buffer::new(),
            down_first: First::default(),
            down_course: Course::default(),
            down_cut: Cut::default(),
            settling: false,
            short: None,
            refusals: Refusals::default(),
            down_before_up: false,
        }
    }

    /// Moves bytes until the caller must know something. May be dropped and asked again.
    pub async fn next(&mut self, ends: &mut Ends) -> Event {
        poll_fn(|cx| {
            // The runtime limits what a task does at a time, so the direction that comes first
            // must not always be the same.
            self.down_before_up = !self.down_before_up;
            for down in [self.down_before_up, !self.down_before_up] {
                let step = match down {
                    true => self.go_down(cx, ends),
                    // While settling only the rest of a message is wanted.
                    false if self.settling => Step::Blocked,
                    false => self.go_up(cx, ends),
                };
                if let Step::Event(event) = step {
                    return Poll::Ready(event);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The message that was taken out, or another in its place, goes to the primary.
    pub fn pass(&mut self, message: Vec<u8>) {
        self.held = false;
        self.exchange
            .asked(message.first().copied().unwrap_or_default());
        self.up_first.put(message);
    }

    /// Whether what uses prepared statements is wanted from now on.
    pub fn watch(&mut self, whether: bool) {
        self.watches = whether;
    }

    /// The message that was taken out is refused.
    pub fn refuse(&mut self, message: &[u8], report: Report) {
        let why = self.refusals.add(report);
        self.pass(refused(message, &why));
    }

    /// Whether the relay may [`Self::ask`] now: the session is between two commands, and not in a
    /// transaction that has failed.
    pub fn may_ask(&self) -> bool {
        self.exchange.is_between()
    }

    /// The query that was taken out is answered with these messages.
    pub fn answer(&mut self, messages: Vec<u8>) {
        self.held = false;
        self.say(messages);
    }

    /// Asks the primary while a query is held; [`Event::Answered`] has the answer. `messages`
    /// are as many queries as `count`.
    pub fn ask(&mut self, messages: Vec<u8>, count: usize) {
        for _ in 0..count {
            self.exchange.asked(b'Q');
        }
        self.up_first.put(messages);
        self.asking = Some(Asking {
            open: count,
            said: Vec::new(),
        });
    }

    /// Whole messages for the client, once the primary's own message has ended.
    pub fn say(&mut self, messages: Vec<u8>) {
        self.down_first.put(messages);
    }

    /// Asks for [`Event::Settled`], after which the pump is done with.
    pub fn settle(&mut self) {
        self.held = false;
        self.settling = true;
    }

    /// The primary may be working for the client. In other sessions than those of replication
    /// that is not followed.
    pub fn is_busy(&self) -> bool {
        !self.replicates || !self.exchange.is_idle() || self.down_cut.is_lost()
    }

    /// The primary's side is in the middle of nothing, so that the relay may speak to it.
    pub fn may_end_politely(&self) -> bool {
        self.up_body == 0 && self.up_first.to_write().is_empty() && !self.up_course.closed
    }

    /// Both sides are between two messages and nothing is under way: the connection to the primary
    /// may be set aside.
    pub fn may_be_set_aside(&self) -> bool {
        self.may_end_politely() && self.at_boundary() && self.exchange.is_idle()
    }

    /// The relay may speak to the client.
    pub fn at_boundary(&self) -> bool {
        self.down_cut.at_boundary()
    }

    /// What was read from the client and not used.
    pub fn left(&self) -> &[u8] {
        self.up.unseen()
    }

    fn go_up(&mut self, cx: &mut Context<'_>, ends: &mut Ends) -> Step {
        loop {
            let first = self.up_first.to_write();
            let bytes = match first.is_empty() {
                true => self.up.to_write(),
                false => first,
            };
            if self.up_course.closed {
                // Nobody takes it: the primary's last words are on their way down.
                return Step::Blocked;
            }
            if !bytes.is_empty() {
                match Pin::new(&mut ends.primary_writer).poll_write(cx, bytes) {
                    Poll::Pending => return Step::Blocked,
                    Poll::Ready(Ok(0) | Err(_)) => self.up_course.closed = true,
                    Poll::Ready(Ok(length)) => {
                        self.up_course.unflushed = true;
                        match self.up_first.to_write().is_empty() {
                            true => self.up.wrote(length),
                            false => self.up_first.wrote(length),
                        }
                    }
                }
                continue;
            }
            if !self.held {
                match self.look() {
                    Found::Something => continue,
                    Found::Whole(message) => match self.concerns(&message) {
                        None => {
                            self.pass(message);
                            continue;
                        }
                        Some(event) => {
                            self.held = true;
                            return Step::Event(event(message));
                        }
                    },
                    Found::Nothing => {}
                }
            }
            if self.up_course.unflushed {
                match Pin::new(&mut ends.primary_writer).poll_flush(cx) {
                    Poll::Pending => return Step::Blocked,
                    Poll::Ready(Err(_)) => self.up_course.closed = true,
                    Poll::Ready(Ok(())) => self.up_course.unflushed = false,
                }
                continue;
            }
            if let Some(step) = self.read_client(cx, ends) {
                return step;
            }
        }
    }

    /// Reads from the client; None if there is something new.
    fn read_client(&mut self, cx: &mut Context<'_>, ends: &mut Ends) -> Option<Step> {
        if self.up_course.ended {
            // As a server sees it: no more queries, but the answers may still be wanted.
            if Pin::new(&mut ends.primary_writer)
                .poll_shutdown(cx)
                .is_ready()
            {
                self.up_course.closed = true;
            }
            return Some(Step::Blocked);
        }
        if self.up.is_full() {
            // Only while a query is held.
            return Some(Step::Blocked);
        }
        match self.up.poll_fill(cx, &mut ends.client_reader) {
            Poll::Pending => Some(Step::Blocked),
            Poll::Ready(Err(_)) => Some(Step::Event(Event::ClientGone)),
            Poll::Ready(Ok(0)) if self.held => Some(Step::Event(Event::ClientGone)),
            Poll::Ready(Ok(0)) => {
                self.up_course.ended = true;
                if let Some(taking) = self.taking.take() {
                    self.up_first.put(taking.message);
                }
                self.up.look(BUFFER);
                None
            }
            Poll::Ready(Ok(_)) => None,
        }
    }

    /// Looks at the client's bytes; only when nothing is there to be written.
    fn look(&mut self) -> Found {
        if self.blind || self.down_cut.is_lost() {
            if let Some(taking) = self.taking.take() {
                // The primary's messages were lost track of meanwhile: what there is of the
                // query goes before the rest of it.
                self.up_first.put(taking.message);
                return Found::Something;
            }
            let length = self.up.unseen().len();
            self.up.look(length);
            return match length {
                0 => Found::Nothing,
                _ => Found::Something,
            };
        }
        if let Some(taking) = &mut self.taking {
            let wanted = taking.length - taking.message.len();
            taking.message.extend_from_slice(self.up.take(wanted));
            return match taking.message.len() == taking.length {
                true => Found::Whole(self.taking.take().map_or_else(Vec::new, |t| t.message)),
                false => Found::Nothing,
            };
        }
        while self.look_at_message() {}
        match self.taking.is_some() || !self.up.to_write().is_empty() {
            true => Found::Something,
            false => Found::Nothing,
        }
    }

    /// What the caller is to decide about a whole message; None if it goes on.
    fn concerns(&self, message: &[u8]) -> Option<fn(Vec<u8>) -> Event> {
        match message.first() {
            Some(b'Q') if self.replicates && self.exchange.is_idle() => Some(Event::Query),
            Some(b'B' | b'C') => Some(Event::Statement),
            // An unnamed statement takes the place of the one before.
            Some(b'P') if self.watches => Some(Event::Statement),
            _ => slot_sql::mentions(message).then_some(Event::Statement),
        }
    }

    /// One message, or what is there of it; false when no more can be looked at.
    fn look_at_message(&mut self) -> bool {
        if self.up_body > 0 {
            let length = self.up_body.min(self.up.unseen().len());
            self.up.look(length);
            self.up_body -= length;
            return length > 0;
        }
        let Some(&head) = self.up.unseen().first_chunk::<HEADER>() else {
            return false;
        };
        let Ok((tag, length)) = frame::header(head, MOST) else {
            // The primary says what is wrong with it.
            self.blind = true;
            self.exchange.lose();
            self.up.look(BUFFER);
            return false;
        };
        let may_concern =
            matches!(tag, b'Q' | b'P') || (self.watches && matches!(tag, b'B' | b'C'));
        if may_concern && length <= QUERY_LIMIT {
            if self.up.to_write().is_empty() {
                self.taking = Some(Taking {
                    message: Vec::new(),
                    length: HEADER + length,
                });
            }
            return false;
        }
        self.exchange.asked(tag);
        self.up.look(HEADER);
        self.up_body = length;
        true
    }

    /// Lets all that has come go on to the client, up to an error that may be one to be replaced.
    fn pass_down(&mut self) {
        self.short = self.short.or_else(|| self.find_short());
        if !self.refusals.is_empty() {
            self.replace();
            return;
        }
        let exchange = &mut self.exchange;
        self.down_cut.advance(self.down.unseen(), |tag, content| {
            exchange.answered(tag, content)
        });
        self.down.look(BUFFER);
    }

    /// Lets messages go on to the client, the relay's in the place of errors to be replaced. False
    /// if more must come before anything can be said.
    fn replace(&mut self) -> bool {
        let mut moved = false;
        while !self.down.unseen().is_empty() {
            let exchange = &mut self.exchange;
            let mut seen = |tag, content| exchange.answered(tag, content);
            let rest = self.down_cut.finish(self.down.unseen(), &mut seen);
            if rest > 0 {
                self.down.look(rest);
                moved = true;
                continue;
            }
            let unseen = self.down.unseen();
            let length = match frame::first(unseen, MOST) {
                // What is before it goes first, so that it can be taken out.
                Ok(Some((Frame { tag: b'E', .. }, _))) if !self.down.to_write().is_empty() => {
                    return true;
                }
                Ok(Some((Frame { tag: b'E', body }, length))) => {
                    let replaced = self.refusals.find(body);
                    if let Some(message) = replaced {
                        self.down_cut
                            .advance(unseen.get(..length).unwrap_or_default(), seen);
                        self.down.take(length);
                        self.down_first.put(message);
                        return true;
                    }
                    length
                }
                Ok(Some((_, length))) => length,
                Ok(None) if unseen.first() == Some(&b'E') && !self.down.is_full() => return moved,
                // Longer than what has come; or nonsense, which the client may understand.
                Ok(None) | Err(_) => unseen.len(),
            };
            self.down_cut
                .advance(unseen.get(..length).unwrap_or_default(), seen);
            self.down.look(length);
            moved = true;
        }
        if self.exchange.is_between() {
            self.refusals.clear();
        }
        moved
    }

    /// What an error among the messages that have come whole says of what the primary has too
    /// few of. An error that is cut in two is not found, which costs a try.
    fn find_short(&self) -> Option<Scarce> {
        if !self.replicates || !self.down_cut.at_boundary() {
            return None;
        }
        let mut left = self.down.unseen();
        while let Ok(Some((frame, length))) = frame::first(left, MOST) {
            if frame.tag == b'E' {
                let Ok(Backend::ErrorResponse(report)) = Backend::parse(frame) else {
                    return None;
                };
                return Scarce::of(&report.sqlstate, &report.message);
            }
            left = left.get(length..).unwrap_or_default();
        }
        None
    }

    /// Takes the primary's answer to the relay out of what goes to the client; only when
    /// nothing is there to be written.
    fn gather(&mut self) -> Gathered {
        let Some(asking) = &mut self.asking else {
            return Gathered::Nothing;
        };
        let exchange = &mut self.exchange;
        // A message that had begun before is the client's.
        let rest = self.down_cut.finish(self.down.unseen(), |tag, content| {
            exchange.answered(tag, content);
        });
        if rest > 0 {
            self.down.look(rest);
            return Gathered::ForClient;
        }
        while asking.open > 0 && self.down_cut.at_boundary() {
            let Ok(Some((frame, length))) = frame::first(self.down.unseen(), MOST) else {
                break;
            };
            let (tag, status) = (frame.tag, frame.body.first().copied());
            // What a server says unasked, and its last words.
            let unasked = matches!(tag, b'S' | b'N' | b'A') || is_fatal(frame);
            let message = self.down.take(length);
            if unasked {
                self.down_first.put(message.to_vec());
                return Gathered::ForClient;
            }
            asking.said.extend_from_slice(message);
            self.exchange.answered(tag, status);
            asking.open -= usize::from(tag == b'Z');
        }
        if asking.open > 0 {
            // No message of an answer is as long as the buffer.
            self.down_course.ended |= self.down.is_full() || self.down_cut.is_lost();
            return Gathered::Nothing;
        }
        let said = std::mem::take(&mut asking.said);
        self.asking = None;
        self.pass_down();
        Gathered::Whole(said)
    }

    fn go_down(&mut self, cx: &mut Context<'_>, ends: &mut Ends) -> Step {
        loop {
            let mut first = false;
            let mut bytes = self.down.to_write();
            if bytes.is_empty() && self.down_cut.at_boundary() {
                bytes = self.down_first.to_write();
                first = true;
            }
            if !bytes.is_empty() {
                match Pin::new(&mut ends.client_writer).poll_write(cx, bytes) {
                    Poll::Pending => return Step::Blocked,
                    Poll::Ready(Ok(0) | Err(_)) => return Step::Event(Event::ClientGone),
                    Poll::Ready(Ok(length)) => {
                        self.down_course.unflushed = true;
                        match first {
                            true => self.down_first.wrote(length),
                            false => self.down.wrote(length),
                        }
                    }
                }
                continue;
            }
            if self.down_course.unflushed {
                match Pin::new(&mut ends.client_writer).poll_flush(cx) {
                    Poll::Pending => return Step::Blocked,
                    Poll::Ready(Err(_)) => return Step::Event(Event::ClientGone),
                    Poll::Ready(Ok(())) => self.down_course.unflushed = false,
                }
                continue;
            }
            // Where nothing is known of messages there is no better moment.
            if self.settling && (self.down_cut.at_boundary() || self.down_cut.is_lost()) {
                return Step::Event(Event::Settled);
            }
            if let Some(scarce) = self.short.take().filter(|_| !self.settling) {
                return Step::Event(Event::Short(scarce));
            }
            match self.gather() {
                Gathered::Whole(said) => return Step::Event(Event::Answered(said)),
                Gathered::ForClient => continue,
                Gathered::Nothing => {}
            }
            if self.down_course.ended {
                return match self.held && self.asking.is_none() {
                    true => Step::Blocked,
                    false => Step::Event(Event::PrimaryGone),
                };
            }
            // What came with an error that was replaced.
            if self.asking.is_none() && self.replace() {
                continue;
            }
            match self.down.poll_fill(cx, &mut ends.primary_reader) {
                Poll::Pending => return Step::Blocked,
                Poll::Ready(Ok(0) | Err(_)) => self.down_course.ended = true,
                Poll::Ready(Ok(_)) if self.asking.is_some() => {}
                Poll::Ready(Ok(_)) => self.pass_down(),
            }
        }
    }
}

/// Errors of the primary that are replaced.
#[derive(Default)]
struct Refusals {
    /// What each error says, and the relay's message.
    open: Vec<(String, Vec<u8>)>,
    /// How many there were in the session.
    count: u64,
}

impl Refusals {
    /// What the error is to say that is replaced by this one.
    fn add(&mut self, report: Report) -> String {
        self.count += 1;
        // The dot ends the number.
        let why = format!("lockstep relay refuses no. {}.", self.count);
        let mut message = Vec::new();
        Backend::ErrorResponse(report).encode(&mut message);
        // A client that sends more without an answer gets the primary's errors.
        if self.open.len() < MOST_REFUSALS {
            self.open.push((why.clone(), message));
        }
        why
    }

    /// The relay's message in the place of an error.
    fn find(&mut self, error: &[u8]) -> Option<Vec<u8>> {
        let error = String::from_utf8_lossy(error);
        let at = self.open.iter().position(|(why, _)| error.contains(why))?;
        Some(self.open.remove(at).1)
    }

    fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The primary has thrown away what the others were for.
    fn clear(&mut self) {
        self.open.clear();
    }
}

/// An error after which the primary says nothing more.
fn is_fatal(frame: Frame<'_>) -> bool {
    match Backend::parse(frame) {
        Ok(Backend::ErrorResponse(report)) => report.severity != "ERROR",
        _ => false,
    }
}
