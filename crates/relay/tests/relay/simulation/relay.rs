//! The relay: its real log, receiver and slots, over disks in memory. What sends is in
//! `sessions`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use lockstep_client::{Identity, SlotState};
use lockstep_relay::config::OnSpoolLimit;
use lockstep_relay::continuity::{Found, Known, continues};
use lockstep_relay::error::RelayError;
use lockstep_relay::fault::Fault;
use lockstep_relay::log::{Limits, Log, LogError};
use lockstep_relay::overlap::Overlap;
use lockstep_relay::receive::receiver::{Action, Event, Receiver};
use lockstep_relay::retention::{make_room, retain};
use lockstep_relay::slots::SlotBook;
use lockstep_wire::{Lsn, SystemId, Timeline};

use super::counts::Counts;
use super::primary::{Primary, START, Sizes, Walsender};
use super::sessions::Session;
use super::subscriber::Subscriber;
use crate::disk::Disk;

/// Most actions of a receiver that stops: rests are cut short.
const STOPPING: usize = 10_000;

/// The group that all slots read.
pub const GROUP: &str = "g";

/// For a primary that is not there any more.
const NOTHING: Sizes = Sizes {
    most_changes: 1,
    most_bytes: 0,
    long_bytes: 0,
};

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
    /// Of the slots' book. It may fail at any time once something was arranged for it.
    pub book_disk: Disk,
    pub book_fails: bool,
    pub book: SlotBook<Disk>,
    on_limit: OnSpoolLimit,
    /// Slots that were dropped, and those of which a crash kept the answer.
    pub dropped: BTreeSet<String>,
    pub doubtful: BTreeSet<String>,
    /// By subscriber.
    pub sessions: Vec<Option<Session>>,
    pub receiver: Receiver,
    connection: Option<Connection>,
    /// What is sent again is held against the log.
    overlap: Option<Overlap<Disk>>,
    pub now: Instant,
    batched: bool,
    /// The primary was set back: it must be refused, and how often it was.
    pub set_back: bool,
    pub refusals: u64,
    pub fault: Option<Fault>,
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
        let book_disk = Disk::default();
        // Only differences count.
        let now = Instant::now();
        Self {
            disk,
            limits,
            log: Arc::new(log),
            book: read_book(&book_disk),
            book_disk,
            book_fails: false,
            on_limit: match random.u8(..6) {
                0 => OnSpoolLimit::DropSlowest,
                _ => OnSpoolLimit::Wait,
            },
            dropped: BTreeSet::new(),
            doubtful: BTreeSet::new(),
            sessions: Vec::new(),
            receiver: Receiver::new(batched, now).with_fault(fault),
            connection: None,
            overlap: None,
            now,
            batched,
            set_back: false,
            refusals: 0,
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

    /// Does what the receiver decides, at most `actions` actions; fewer if it rests.
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
            Action::Compare { again, all } => {
                let compared = self.overlap.as_mut().unwrap().compare(&again, all);
                if let Err(why) = compared {
                    assert!(self.set_back, "the primary is the same: {why}");
                    self.refusals += 1;
                    return Event::Lost { refused: true };
                }
            }
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
            Action::MakeRoom => return self.make_room(),
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

    /// The stream begins where the slot stands.
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
        let from = primary.confirmed;
        self.overlap = Some(Overlap::new(&self.log, from.into()));
        self.counts.repeated += u64::from(primary.first(from) < primary.first(received.into()));
        self.connection = Some(Connection {
            walsender: Walsender::new(primary, self.batched),
            broken: false,
            feedback: Vec::new(),
        });
        Event::Connected(from.into())
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

    /// The connection is gone, with what is on its way.
    pub fn disconnect(&mut self) {
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

    /// What a relay does every second.
    pub fn keep_house(&mut self) {
        if let Err(error) = self.book.save_if_moved() {
            self.arranged_in_relay(&error);
        }
        match retain(GROUP, &self.log, &self.book) {
            Ok(freed) => self.counts.freed += u64::from(freed > 0),
            Err(error) => self.arranged_in_relay(&error),
        }
    }

    fn make_room(&mut self) -> Event {
        let slowest = self.book.slowest(GROUP);
        let made = make_room(GROUP, &self.log, &self.book, self.on_limit);
        if let Some(slot) = slowest {
            if *slot.ended().borrow() {
                self.counts.dropped += 1;
                self.dropped.insert(slot.name.clone());
            } else if self.book_disk.has_stopped() {
                self.doubtful.insert(slot.name.clone());
            }
        }
        match made {
            Ok(made) => Event::Freed(made),
            Err(error) => {
                self.arranged_in_relay(&error);
                Event::Lost { refused: false }
            }
        }
    }

    /// An error of the log or the book may only be one that was arranged.
    pub fn arranged_in_relay(&self, error: &RelayError) {
        match error {
            RelayError::Log { source, .. } => self.arranged(source),
            RelayError::File { .. } => assert!(self.book_fails, "{error}"),
            _ => panic!("{error}"),
        }
    }

    pub fn has_stopped(&self) -> bool {
        self.disk.has_stopped() || self.book_disk.has_stopped()
    }

    /// The process stops, or the machine, and starts again. Whoever was connected is not.
    pub fn restart(&mut self, crash: bool, orderly: bool) {
        if orderly {
            self.stop();
            self.sync();
            self.keep_house();
        }
        self.disconnect();
        self.sessions.iter_mut().for_each(|session| *session = None);
        // It may have stopped just now.
        let crash = crash || self.has_stopped();
        self.book_disk = match crash {
            true => self.book_disk.after_crash(&mut self.random),
            false => self.book_disk.after_kill(),
        };
        self.book = read_book(&self.book_disk);
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
        let slots = self.book.all();
        if let Some(needed) = slots.iter().map(|slot| slot.saved()).min() {
            let oldest = self.log.oldest();
            assert!(oldest <= needed, "{oldest} is the oldest, not {needed}");
        }
    }

    /// Whether the stream waits for room.
    pub fn is_blocked(&self) -> bool {
        self.receiver.is_blocked()
    }
}

fn read_book(disk: &Disk) -> SlotBook<Disk> {
    SlotBook::read(disk.clone(), PathBuf::from("slots.json"), 0).unwrap()
}

/// What the log knows of its slot.
fn known(received: Lsn) -> Known {
    Known {
        slot: "s".to_owned(),
        plugin: "p".to_owned(),
        database: "d".to_owned(),
        system: SystemId::from(1),
        timeline: Timeline::FIRST,
        history: Some(Vec::new()),
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
        slot: Some(slot_state("p", primary.confirmed)),
    }
}

/// A slot as the primary shows it.
pub fn slot_state(plugin: &str, confirmed: u64) -> SlotState {
    SlotState {
        plugin: Some(plugin.to_owned()),
        database: Some("d".to_owned()),
        temporary: false,
        active_pid: None,
        confirmed: Lsn::from(confirmed),
        restart: Lsn::from(START),
        wal_status: None,
        invalidation: None,
        two_phase: false,
        failover: false,
        synced: false,
    }
}

/// Takes a subscriber's connection away on both ends.
pub fn part(relay: &mut Relay, number: usize, subscriber: &mut Subscriber, primary: &Primary) {
    relay.sessions[number] = None;
    subscriber.disconnect(primary);
}
