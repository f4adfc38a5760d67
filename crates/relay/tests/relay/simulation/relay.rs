//! The relay: its real log, assembler and check, and a model of what drives them:
//! `receive/thread.rs`, `send.rs`, `slots.rs` and `Group::retain`.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use lockstep_client::{Identity, SlotState};
use lockstep_relay::continuity::{Found, Known, continues};
use lockstep_relay::log::{Limits, Log, LogError, Read, Reader};
use lockstep_relay::receive::assembler::Assembler;
use lockstep_wire::backend::Backend;
use lockstep_wire::stream::{FromServer, Timestamp};
use lockstep_wire::{Lsn, SystemId, Timeline};

use super::counts::Counts;
use super::primary::{Primary, START, Walsender};
use super::subscriber::{Link, Subscriber};
use crate::disk::Disk;

/// What a subscriber has confirmed, and what of that is in the book's file.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    pub confirmed: u64,
    pub saved: u64,
}

/// The relay's end of a subscriber's connection.
pub struct Session {
    reader: Reader<Disk>,
    offered: u64,
}

/// What waits for room in the spool.
enum Waiting {
    Frames(VecDeque<Bytes>),
    Cover,
}

/// A connection to the primary, both ends.
pub struct Connection {
    walsender: Walsender,
    assembler: Assembler,
    waiting: Option<Waiting>,
    told: u64,
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
    pub connection: Option<Connection>,
    batched: bool,
    pub random: fastrand::Rng,
    pub counts: Counts,
}

impl Relay {
    pub fn new(limits: Limits, batched: bool, random: fastrand::Rng) -> Self {
        let disk = Disk::default();
        let log = Log::create(disk.clone(), limits, Lsn::from(START)).unwrap();
        Self {
            disk,
            limits,
            log: Arc::new(log),
            slots: Vec::new(),
            sessions: Vec::new(),
            connection: None,
            batched,
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

    /// `Turn::connection`: the stream goes on at the end of the log.
    pub fn connect(&mut self, primary: &Primary) {
        let received = self.log.received();
        let known = Known {
            slot: "s".to_owned(),
            plugin: "p".to_owned(),
            database: "d".to_owned(),
            system: SystemId::from(1),
            timeline: Timeline::FIRST,
            received,
        };
        let found = Found {
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
        };
        if let Err(why) = continues(&known, &found) {
            panic!("data is lost: {why}");
        }
        let all = self.random.bool();
        let from = if all {
            primary.confirmed
        } else {
            received.into()
        };
        self.counts.repeated += u64::from(primary.first(from) < primary.first(received.into()));
        self.connection = Some(Connection {
            walsender: Walsender::new(primary, received.into(), self.batched, all),
            assembler: Assembler::new(received, self.batched),
            waiting: None,
            told: 0,
            feedback: Vec::new(),
        });
    }

    /// The connection is lost, or the primary ended it: then what was gathered is stored.
    pub fn lose(&mut self) {
        if self.random.bool() {
            self.store();
        }
        self.drop_connection();
    }

    /// The end of `Turn::run`'s loop.
    fn drop_connection(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        self.counts.covering += connection.walsender.covering;
        if self.log.open_unit() {
            self.counts.cuts += 1;
            if let Err(error) = self.log.cut() {
                self.arranged(&error);
            }
        }
    }

    /// `Receiving::drain`: so many messages.
    pub fn feed(&mut self, messages: usize, primary: &Primary) {
        for _ in 0..messages {
            let Some(connection) = &mut self.connection else {
                return;
            };
            if connection.waiting.is_some() {
                self.counts.blocked += 1;
                self.make_room();
                self.store();
                return;
            }
            let Some(data) = connection.walsender.next(primary, &mut self.random) else {
                break;
            };
            connection.assembler.take_in(&data).unwrap();
            if self.random.u8(..10) == 0 {
                self.store();
            }
        }
        self.store();
    }

    /// `Receiving::store`, and `with_room` where something waited already.
    fn store(&mut self) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        let assembler = &mut connection.assembler;
        let mut result = Ok(());
        match connection.waiting.take() {
            Some(Waiting::Cover) => {}
            Some(Waiting::Frames(parts)) => {
                (result, connection.waiting) = append(&self.log, parts);
            }
            None => {
                let frames = assembler.take_frames();
                if !frames.is_empty() {
                    let parts = self.log.parts(frames).into();
                    (result, connection.waiting) = append(&self.log, parts);
                }
            }
        }
        let covered = assembler.covered();
        if result.is_ok() && assembler.between_units() && covered > self.log.received() {
            result = self.log.cover(covered);
            connection.waiting = Some(Waiting::Cover);
        }
        self.connection = Some(connection);
        match result {
            Ok(()) => self.connection.as_mut().unwrap().waiting = None,
            Err(error) => {
                self.arranged(&error);
                if !error.is_retryable() {
                    self.drop_connection();
                }
            }
        }
    }

    /// `Receiving::tell`: what is durable is confirmed.
    pub fn tell(&mut self) {
        let durable = self.durable();
        let Some(connection) = &mut self.connection else {
            return;
        };
        let due = connection.assembler.take_reply() || durable > connection.told;
        if !due && self.random.u8(..4) > 0 {
            return;
        }
        connection.told = durable;
        connection.feedback.push(durable);
        if self.random.u8(..8) == 0 {
            self.probe(durable);
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
    pub fn confirm(&mut self, primary: &mut Primary) {
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

    /// `Group::make_room`.
    fn make_room(&mut self) {
        self.save(false);
        self.retain();
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
    pub fn start(&mut self, number: usize, start: u64) -> Option<Link> {
        let from = self.slots[number].confirmed.max(start);
        match self.log.reader(Lsn::from(from)) {
            Ok(reader) => {
                let offered = from;
                self.sessions[number] = Some(Session { reader, offered });
                Some(Link::default())
            }
            Err(error) => {
                assert!(self.disk.has_stopped(), "slot {number} at {from}: {error}");
                None
            }
        }
    }

    /// One turn of `Sender::run`. False if there was nothing to send.
    pub fn serve(&mut self, number: usize, most: usize, link: &mut Link) -> Result<bool, Ended> {
        let Some(session) = &mut self.sessions[number] else {
            return Err(Ended);
        };
        match session.reader.read(most) {
            Ok(Read::Frames {
                pieces,
                hit_bytes,
                miss_bytes,
            }) => {
                session.offered = session.offered.max(session.reader.sent().into());
                self.counts.hits += hit_bytes;
                self.counts.misses += miss_bytes;
                let bytes: usize = pieces.iter().map(Bytes::len).sum();
                self.counts.injected += bytes as u64 - hit_bytes - miss_bytes;
                link.pipe.extend(pieces.concat());
                Ok(true)
            }
            Ok(Read::Nothing { covered }) => {
                assert!(!session.reader.within_frame(), "a keepalive within a frame");
                if self.random.u8(..3) == 0 {
                    keepalive(session, covered, link);
                }
                Ok(false)
            }
            Ok(Read::Limit) => panic!("a limit that was never set"),
            Ok(Read::Cut) => {
                self.counts.told_of_cuts += 1;
                self.sessions[number] = None;
                Err(Ended)
            }
            Err(error) => {
                let stopped = self.disk.has_stopped();
                assert!(stopped, "slot {number} cannot be read: {error}");
                self.sessions[number] = None;
                Err(Ended)
            }
        }
    }

    /// `heed`: a subscriber's feedback, in any order.
    pub fn heed(&mut self, number: usize, flushed: u64) {
        let Some(session) = &self.sessions[number] else {
            return;
        };
        let slot = &mut self.slots[number];
        slot.confirmed = slot.confirmed.max(flushed.min(session.offered));
    }

    /// The process stops, or the machine, and starts again. Whoever was connected is not.
    pub fn restart(&mut self, crash: bool) {
        if !crash && self.random.u8(..3) == 0 {
            // An orderly end.
            self.drop_connection();
            self.sync();
            self.save(false);
        }
        if let Some(connection) = self.connection.take() {
            self.counts.covering += connection.walsender.covering;
        }
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
            return self.restart(true);
        }
        let (log, found) = opened.unwrap();
        assert_eq!(found.holes, [], "nothing was damaged");
        assert!(u64::from(found.durable) >= durable, "what was durable");
        self.counts.lost += u64::from(found.durable < before);
        self.log = Arc::new(log);
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
        let connection = self.connection.as_ref();
        connection.is_some_and(|connection| connection.waiting.is_some())
    }
}

/// Part by part; the first that is refused and those behind it wait.
fn append(log: &Log<Disk>, mut parts: VecDeque<Bytes>) -> (Result<(), LogError>, Option<Waiting>) {
    while let Some(part) = parts.front() {
        if let Err(error) = log.append(part.clone()) {
            return (Err(error), Some(Waiting::Frames(parts)));
        }
        parts.pop_front();
    }
    (Ok(()), None)
}

/// `Sender::tell`.
fn keepalive(session: &mut Session, covered: Lsn, link: &mut Link) {
    session.offered = session.offered.max(covered.into());
    let mut data = Vec::new();
    FromServer::Keepalive {
        end: covered,
        sent_at: Timestamp(0),
        reply: false,
    }
    .encode(&mut data);
    Backend::CopyData(&data).encode(&mut link.pipe);
}

/// The session is over.
#[derive(Debug)]
pub struct Ended;

/// Takes a subscriber's connection away on both ends.
pub fn part(relay: &mut Relay, number: usize, subscriber: &mut Subscriber, primary: &Primary) {
    relay.sessions[number] = None;
    subscriber.disconnect(primary);
}
