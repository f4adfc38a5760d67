//! The relay: its real log, receiver and senders, and a model of `slots.rs` and
//! `Group::retain`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use lockstep_client::{Identity, SlotState};
use lockstep_relay::continuity::{Found, Known, continues};
use lockstep_relay::fault::Fault;
use lockstep_relay::log::{Limits, Log, LogError, Read, Reader};
use lockstep_relay::receive::receiver::{Action, Event, Receiver};
use lockstep_relay::send::sender::{self as send, Sender};
use lockstep_wire::backend::Backend;
use lockstep_wire::stream::{FromServer, FromStandby, Status, Timestamp};
use lockstep_wire::{Lsn, SystemId, Timeline};

use super::counts::Counts;
use super::primary::{Primary, START, Sizes, Walsender};
use super::subscriber::{Link, Subscriber};
use crate::disk::Disk;

/// Most actions of a receiver that stops: rests are cut short.
const STOPPING: usize = 10_000;

/// For a primary that is not there any more.
const NOTHING: Sizes = Sizes {
    most_changes: 1,
    most_bytes: 0,
    long_bytes: 0,
};

/// What a subscriber has confirmed, and what of that is in the book's file.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    pub confirmed: u64,
    pub saved: u64,
}

/// The relay's end of a subscriber's connection.
pub struct Session {
    sender: Sender,
    reader: Option<Reader<Disk>>,
    /// What is being written.
    unwritten: VecDeque<u8>,
}

/// A connection to the primary, both ends.
pub struct Connection {
    walsender: Walsender,
    /// Whoever uses it next finds out.
    broken: bool,
    /// Positions on the way to the primary.
    feedback: Vec<u64>,
}

/// See the module.
pub struct Relay {
    pub disk: Disk,
    pub limits: Limits,
    pub log: Arc<Log<Disk>>,
    /// By subscriber, as are the sessions.
    pub slots: Vec<Slot>,
    pub sessions: Vec<Option<Session>>,
    pub receiver: Receiver,
    connection: Option<Connection>,
    pub now: Instant,
    batched: bool,
    fault: Option<Fault>,
    /// Most messages that are stored together.
    gathers: usize,
    pub random: fastrand::Rng,
    pub counts: Counts,
}

impl Relay {
    pub fn new(
        limits: Limits,
        batched: bool,
        fault: Option<Fault>,
        mut random: fastrand::Rng,
    ) -> Self {
        let disk = Disk::with_fault(fault);
        let log = Log::create(disk.clone(), limits, Lsn::from(START)).unwrap();
        // Only differences count.
        let now = Instant::now();
        Self {
            disk,
            limits,
            log: Arc::new(log),
            slots: Vec::new(),
            sessions: Vec::new(),
            receiver: Receiver::new(batched, now).with_fault(fault),
            connection: None,
            now,
            batched,
            fault,
            gathers: random.choice([1, 5, 20]).unwrap(),
            random,
            counts: Counts::default(),
        }
    }

    /// An error may only be one that was arranged.
    fn arranged(&self, error: &LogError) {
        assert!(
            error.is_retryable() || self.log.poisoned() || self.disk.has_stopped(),
            "{error}"
        );
    }

    fn durable(&self) -> u64 {
        self.log.durable().into()
    }

    /// Does what the receiver decides, up to so many actions; fewer if it rests.
    pub fn receive(&mut self, actions: usize, primary: &Primary) {
        for _ in 0..actions {
            let action = self.receiver.poll(self.log.standing(), self.now);
            if action == Action::Stop {
                return;
            }
            let rests = matches!(action, Action::Wait(_) | Action::Rest(_));
            let event = self.perform(action, primary);
            self.receiver.handle(event, self.log.standing(), self.now);
            if rests {
                return;
            }
        }
    }

    /// What `receive::thread` does.
    fn perform(&mut self, action: Action, primary: &Primary) -> Event {
        let lost = Event::Lost { refused: false };
        let breaks = matches!(
            action,
            Action::Receive | Action::Confirm { .. } | Action::Wait(_)
        );
        if breaks && self.connection.as_ref().is_none_or(|c| c.broken) {
            return lost;
        }
        match action {
            Action::Connect => return self.connect(primary),
            Action::Receive => return self.take_in(primary),
            Action::Append(frames) => {
                let appended = self.log.append(frames);
                return self.written(appended);
            }
            Action::Cover(lsn) => {
                let covered = self.log.cover(lsn);
                return self.written(covered);
            }
            Action::Stored { .. } | Action::Unblock | Action::Stop => {}
            // The other thread may be fast.
            Action::Sync if self.random.u8(..4) == 0 => self.sync(),
            Action::Sync => {}
            Action::Block => self.counts.blocked += 1,
            Action::MakeRoom => {
                self.save(false);
                return Event::Freed(self.retain() > 0);
            }
            Action::Confirm { flushed, .. } => self.confirm(flushed.into()),
            Action::Wait(most) | Action::Rest(most) => {
                let part = self.random.u32(0..=8);
                self.now += most * part / 8;
            }
            Action::Cut => {
                self.disconnect();
                self.counts.cuts += 1;
                if let Err(error) = self.log.cut() {
                    self.arranged(&error);
                    return lost;
                }
            }
            Action::Fail => self.disconnect(),
        }
        Event::Done
    }

    /// The stream goes on at the end of the log.
    fn connect(&mut self, primary: &Primary) -> Event {
        let received = self.log.received();
        if let Err(why) = continues(&known(received), &found(primary)) {
            panic!("data is lost: {why}");
        }
        if let Err(error) = self.log.begin_session() {
            // The cut failed.
            self.arranged(&error);
            return Event::Lost { refused: false };
        }
        let all = self.random.bool();
        let from = match all {
            true => primary.confirmed,
            false => received.into(),
        };
        self.counts.repeated += u64::from(primary.first(from) < primary.first(received.into()));
        self.connection = Some(Connection {
            walsender: Walsender::new(primary, received.into(), self.batched, all),
            broken: false,
            feedback: Vec::new(),
        });
        Event::Connected
    }

    /// Some of what has come.
    fn take_in(&mut self, primary: &Primary) -> Event {
        let Some(connection) = &mut self.connection else {
            return Event::Lost { refused: false };
        };
        for _ in 0..self.random.usize(1..=self.gathers) {
            let Some(data) = connection.walsender.next(primary, &mut self.random) else {
                return Event::Nothing;
            };
            if !self.receiver.take_in(&data).unwrap() {
                break;
            }
        }
        match self.random.u8(..50) {
            0 => Event::Ended,
            1..10 => Event::Nothing,
            // Enough for now, as if it were much.
            _ => Event::Done,
        }
    }

    fn written(&mut self, written: Result<(), LogError>) -> Event {
        match written {
            Ok(()) => Event::Done,
            Err(error) => {
                self.arranged(&error);
                match error.is_retryable() {
                    true => Event::Full,
                    false => Event::Lost { refused: false },
                }
            }
        }
    }

    /// The connection is lost: the receiver meets that when it uses it.
    pub fn lose(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.broken = true;
        }
    }

    fn disconnect(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.counts.covering += connection.walsender.covering;
        }
    }

    /// The primary is told what is durable, and forgets it.
    fn confirm(&mut self, flushed: u64) {
        if let Some(connection) = &mut self.connection {
            connection.feedback.push(flushed);
        }
        if self.random.u8(..8) == 0 {
            self.probe(flushed);
        }
    }

    /// Would it survive if the machine stopped now?
    fn probe(&mut self, confirmed: u64) {
        let disk = self.disk.copy().after_crash(&mut self.random);
        let (_, found) = Log::open(disk, self.limits).unwrap();
        let left = found.durable;
        assert!(
            u64::from(left) >= confirmed,
            "{confirmed} was confirmed to the primary, a crash would leave {left}"
        );
    }

    /// Some of what was confirmed gets to the primary.
    pub fn deliver(&mut self, primary: &mut Primary) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        while !connection.feedback.is_empty() && self.random.u8(..4) > 0 {
            primary.hear(connection.feedback.remove(0));
        }
    }

    /// `keep_durable`.
    pub fn sync(&mut self) {
        if let Err(error) = self.log.sync() {
            self.arranged(&error);
        }
    }

    /// `SlotBook::save_if_moved`. It fails where the disk is full.
    pub fn save(&mut self, full: bool) {
        if full && self.random.bool() {
            return;
        }
        for slot in &mut self.slots {
            slot.saved = slot.confirmed;
        }
    }

    /// `Group::retain`.
    pub fn retain(&mut self) -> u64 {
        let durable = self.durable();
        let needed = self.slots.iter().map(|slot| slot.saved).min();
        let needed = needed.unwrap_or(durable).min(durable);
        match self.log.retain(Lsn::from(needed)) {
            Ok(freed) => {
                self.counts.freed += u64::from(freed > 0);
                freed
            }
            Err(error) => {
                self.arranged(&error);
                0
            }
        }
    }

    /// A slot for who has everything before `confirmed`.
    pub fn adopt(&mut self, confirmed: u64) {
        self.slots.push(Slot {
            confirmed,
            saved: confirmed,
        });
        self.sessions.push(None);
    }

    /// `START_REPLICATION` of a slot.
    pub fn start(&mut self, number: usize, start: u64) -> Link {
        let confirmed = Lsn::from(self.slots[number].confirmed);
        let from = confirmed.max(start.into());
        let sender = Sender::new("s", confirmed, from, None, self.now);
        self.sessions[number] = Some(Session {
            sender: sender.with_fault(self.fault),
            reader: None,
            unwritten: VecDeque::new(),
        });
        Link::default()
    }

    /// Does what a sender decides, up to so many actions; fewer if it waits or its client is
    /// slow. Reads are of `most` bytes.
    pub fn serve(&mut self, number: usize, actions: usize, most: usize, link: &mut Link) {
        for _ in 0..actions {
            let Some(session) = &mut self.sessions[number] else {
                return;
            };
            let action = session.sender.poll(self.now);
            let waits = matches!(action, send::Action::Wait(_) | send::Action::Pause(_));
            let Some(event) = self.send(number, action, most, link) else {
                return;
            };
            if let Some(session) = &mut self.sessions[number] {
                session.sender.handle(event, self.now);
            }
            if waits {
                return;
            }
        }
    }

    /// What `send::task` does. None: it is still at it, or it is over.
    fn send(
        &mut self,
        number: usize,
        action: send::Action,
        most: usize,
        link: &mut Link,
    ) -> Option<send::Event> {
        let session = self.sessions[number].as_mut()?;
        match action {
            send::Action::Open { from, before } => {
                assert_eq!(before, None);
                match self.log.reader(from) {
                    Ok(reader) => session.reader = Some(reader),
                    Err(error) => {
                        assert!(self.disk.has_stopped(), "slot {number} at {from}: {error}");
                        return Some(send::Event::Unreadable(error));
                    }
                }
            }
            send::Action::Read => return Some(self.read(number, most)),
            send::Action::Write => return session.write(&mut self.random, link),
            send::Action::Keepalive { end, reply } => {
                if session.unwritten.is_empty() {
                    session.unwritten.extend(keepalive(end, reply));
                }
                return session.write(&mut self.random, link);
            }
            send::Action::Wait(most) | send::Action::Pause(most) => {
                let part = self.random.u32(0..=8);
                self.now += most * part / 8;
                let sessions = self.sessions.iter().flatten().count();
                return Some(send::Event::Woken { sessions });
            }
            send::Action::NextGroup => panic!("there is one group"),
            send::Action::Finish => {
                assert!(link.is_between_messages(), "the copy ends within a message");
                assert!(link.done);
                self.counts.finished += 1;
                Backend::CopyDone.encode(&mut link.pipe);
                self.sessions[number] = None;
                return None;
            }
            send::Action::End { why, say } => {
                self.counts.silent += u64::from(!say);
                if let Some(why) = why.filter(|_| say) {
                    assert!(link.is_between_messages(), "an error within a message");
                    Backend::ErrorResponse(why).encode(&mut link.pipe);
                }
                self.sessions[number] = None;
                return None;
            }
        }
        Some(send::Event::Done)
    }

    fn read(&mut self, number: usize, most: usize) -> send::Event {
        let Some(Session {
            reader: Some(reader),
            unwritten,
            ..
        }) = &mut self.sessions[number]
        else {
            panic!("it reads what it has not opened");
        };
        match reader.read(most) {
            Ok(Read::Frames {
                pieces,
                hit_bytes,
                miss_bytes,
            }) => {
                self.counts.hits += hit_bytes;
                self.counts.misses += miss_bytes;
                let bytes: usize = pieces.iter().map(Bytes::len).sum();
                self.counts.injected += bytes as u64 - hit_bytes - miss_bytes;
                unwritten.extend(pieces.concat());
                send::Event::Frames {
                    sent: reader.sent(),
                    within: reader.within_frame(),
                }
            }
            Ok(Read::Nothing { covered }) => {
                assert!(!reader.within_frame(), "a keepalive within a frame");
                send::Event::Nothing { covered }
            }
            Ok(Read::Limit) => panic!("a limit that was never set"),
            Ok(Read::Cut) => {
                self.counts.told_of_cuts += 1;
                send::Event::Cut
            }
            Err(error) => {
                let stopped = self.disk.has_stopped();
                assert!(stopped, "slot {number} cannot be read: {error}");
                send::Event::Unreadable(error)
            }
        }
    }

    /// A subscriber's feedback, in any order.
    pub fn heed(&mut self, number: usize, flushed: u64, reply: bool) {
        let Some(session) = &mut self.sessions[number] else {
            return;
        };
        let feedback = FromStandby::Status(Status {
            written: flushed.into(),
            flushed: flushed.into(),
            applied: flushed.into(),
            sent_at: Timestamp(0),
            reply,
        });
        if let Some(heard) = session.sender.heard(&feedback, self.now) {
            let slot = &mut self.slots[number];
            slot.confirmed = slot.confirmed.max(heard.flushed.into());
        }
    }

    /// Something that a sender is told while it does anything.
    pub fn tell(&mut self, number: usize, event: send::Event) {
        if let Some(session) = &mut self.sessions[number] {
            session.sender.handle(event, self.now);
        }
    }

    /// The process stops, or the machine, and starts again. Whoever was connected is not.
    pub fn restart(&mut self, crash: bool, orderly: bool) {
        if orderly {
            self.stop();
            self.sync();
            self.save(false);
        }
        self.disconnect();
        self.sessions.iter_mut().for_each(|session| *session = None);
        for slot in &mut self.slots {
            slot.confirmed = slot.saved;
        }
        let before = self.log.received();
        let durable = self.durable();
        self.disk = match crash {
            true => self.disk.after_crash(&mut self.random),
            false => self.disk.after_kill(),
        };
        if crash && self.random.u8(..3) == 0 {
            // And stops once more while the log is opened.
            self.disk.stop_after(self.random.u64(..6));
            let opened = Log::open(self.disk.clone(), self.limits);
            assert!(opened.is_ok() || self.disk.has_stopped());
            self.disk = self.disk.after_crash(&mut self.random);
        }
        let mut opened = Log::open(self.disk.clone(), self.limits);
        if opened.is_err() && !self.disk.has_stopped() && !self.disk.refuses_sync() {
            // What was refused once need not be again.
            opened = Log::open(self.disk.clone(), self.limits);
        }
        if opened.is_err() && self.disk.has_stopped() {
            return self.restart(true, false);
        }
        let (log, found) = opened.unwrap();
        assert_eq!(found.holes, [], "nothing was damaged");
        assert!(u64::from(found.durable) >= durable, "what was durable");
        self.counts.lost += u64::from(found.durable < before);
        self.log = Arc::new(log);
        self.receiver = Receiver::new(self.batched, self.now).with_fault(self.fault);
    }

    /// The receiver ends what it does. It needs no primary for that.
    fn stop(&mut self) {
        self.receiver
            .handle(Event::Stop, self.log.standing(), self.now);
        self.lose();
        for _ in 0..STOPPING {
            let action = self.receiver.poll(self.log.standing(), self.now);
            if action == Action::Stop {
                assert!(!self.log.open_unit() || self.log.poisoned() || self.disk.has_stopped());
                return;
            }
            let event = match action {
                Action::Receive | Action::Wait(_) | Action::Connect => unreachable!("{action:?}"),
                _ => self.perform(action, &Primary::new(NOTHING)),
            };
            self.receiver.handle(event, self.log.standing(), self.now);
        }
        panic!("the receiver does not stop");
    }

    /// What holds at all times.
    pub fn check(&self) {
        assert!(self.log.cache_bytes() <= self.limits.cache_bytes);
        if let Some(limit) = self.limits.spool_bytes {
            let used = self.log.spool_bytes();
            assert!(used <= limit, "the spool has {used} bytes of {limit}");
        }
        assert!(self.log.durable() <= self.log.received());
        if let Some(needed) = self.slots.iter().map(|slot| slot.confirmed).min() {
            let oldest = u64::from(self.log.oldest());
            assert!(oldest <= needed, "{oldest} is the oldest, not {needed}");
        }
    }

    /// Whether the stream waits for room.
    pub fn is_blocked(&self) -> bool {
        self.receiver.is_blocked()
    }
}

/// What the log knows of its slot.
fn known(received: Lsn) -> Known {
    Known {
        slot: "s".to_owned(),
        plugin: "p".to_owned(),
        database: "d".to_owned(),
        system: SystemId::from(1),
        timeline: Timeline::FIRST,
        received,
    }
}

/// What the primary says of it.
fn found(primary: &Primary) -> Found {
    Found {
        identity: Identity {
            system: SystemId::from(1),
            timeline: Timeline::FIRST,
            end: Lsn::from(primary.end),
            database: Some("d".to_owned()),
        },
        history: Vec::new(),
        slot: Some(SlotState {
            plugin: Some("p".to_owned()),
            database: Some("d".to_owned()),
            temporary: false,
            active_pid: None,
            confirmed: Lsn::from(primary.confirmed),
            restart: Lsn::from(START),
            wal_status: None,
            invalidation: None,
            two_phase: false,
            failover: false,
            synced: false,
        }),
    }
}

fn keepalive(end: Lsn, reply: bool) -> Vec<u8> {
    let mut data = Vec::new();
    FromServer::Keepalive {
        end,
        sent_at: Timestamp(0),
        reply,
    }
    .encode(&mut data);
    let mut message = Vec::new();
    Backend::CopyData(&data).encode(&mut message);
    message
}

impl Session {
    /// Some or all of what is to be written. None if some is left.
    fn write(&mut self, random: &mut fastrand::Rng, link: &mut Link) -> Option<send::Event> {
        let all = self.unwritten.len();
        let taken = match random.u8(..4) {
            0 => random.usize(..=all),
            _ => all,
        };
        link.pipe.extend(self.unwritten.drain(..taken));
        self.unwritten.is_empty().then_some(send::Event::Done)
    }
}

/// Takes a subscriber's connection away on both ends.
pub fn part(relay: &mut Relay, number: usize, subscriber: &mut Subscriber, primary: &Primary) {
    relay.sessions[number] = None;
    subscriber.disconnect(primary);
}
