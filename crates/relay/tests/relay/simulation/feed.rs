//! A group of the relay: its real log and receiver, over a disk in memory.

use std::sync::Arc;
use std::time::Duration;

use lockstep_client::Identity;
use lockstep_intake::continuity::{FollowedSource, SlotKind, SourceFound};
use lockstep_intake::overlap::Overlap;
use lockstep_intake::receiver::{
    Action, AppliedByReaders, Event, Receiver, Refusal, Terms, Trusted,
};
use lockstep_relay::continuity::continues;
use lockstep_relay::fault::Fault;
use lockstep_relay::retention::{make_room, retain};
use lockstep_relay::routes::Fitting;
use lockstep_simulation::disk::Disk;
use lockstep_simulation::primary::{Primary, Sizes, Walsender, slot_state};
use lockstep_spool::{Log, LogError};
use lockstep_wire::{Lsn, SystemId, Timeline};

use super::house::House;

/// Most actions of a receiver that stops: rests are cut short.
const STOPPING: usize = 10_000;

/// For a primary that is not there any more.
const NOTHING: Sizes = Sizes {
    most_changes: 1,
    most_bytes: 0,
    long_one_in: 1,
    long_bytes: 0,
};

/// A connection to the primary, both ends.
struct Connection {
    walsender: Walsender,
    /// Whoever uses it next finds out.
    broken: bool,
    /// Positions on the way to the primary.
    feedback: Vec<u64>,
}

/// What a reader needs of a group; it outlives the group's removal.
#[derive(Clone)]
pub struct Place {
    pub group: String,
    pub log: Arc<Log<Disk>>,
    pub disk: Disk,
}

/// See the module.
pub struct Feed {
    pub name: String,
    /// Units from here on are in its log, or were.
    start: Lsn,
    pub disk: Disk,
    pub log: Arc<Log<Disk>>,
    receiver: Receiver,
    connection: Option<Connection>,
    /// What is sent again is held against the log.
    overlap: Option<Overlap<Disk>>,
    /// The primary was set back: it must be refused, and how often it was.
    pub set_back: bool,
    /// What the slowest subscriber had applied when the receiver was last told.
    applied: Lsn,
    pub refusals: u64,
}

impl Feed {
    /// A new group whose slot stands at `start`.
    pub fn new(name: &str, start: u64, house: &House) -> Self {
        let disk = Disk::new(house.fault == Some(Fault::HeadersNotCounted));
        let log = Log::create(disk.clone(), house.limits, Lsn::from(start)).unwrap();
        Self {
            name: name.to_owned(),
            start: start.into(),
            disk,
            log: Arc::new(log),
            receiver: receiver(house),
            connection: None,
            overlap: None,
            set_back: false,
            applied: Lsn::INVALID,
            refusals: 0,
        }
    }

    pub fn place(&self) -> Place {
        Place {
            group: self.name.clone(),
            log: self.log.clone(),
            disk: self.disk.clone(),
        }
    }

    pub fn fitting(&self) -> Fitting {
        Fitting {
            name: self.name.clone(),
            begins: self.start.max(self.log.oldest()),
        }
    }

    /// An error may only be one that was arranged.
    pub fn arranged(&self, error: &LogError) {
        assert!(
            error.is_retryable() || self.log.poisoned().is_some() || self.disk.has_stopped(),
            "{error}"
        );
    }

    /// Does what the receiver decides, at most `actions` actions; fewer if it rests.
    pub fn receive(&mut self, actions: usize, primary: &Primary, house: &mut House) {
        for _ in 0..actions {
            let action = self.receiver.poll(self.log.standing(), house.now);
            if action == Action::Stop {
                return;
            }
            let rests = matches!(action, Action::Wait(_) | Action::Rest(_) | Action::Idle(_));
            let event = self.perform(action, primary, house);
            self.receiver.handle(event, self.log.standing(), house.now);
            if rests {
                return;
            }
        }
    }

    /// What a group's thread does.
    fn perform(&mut self, action: Action, primary: &Primary, house: &mut House) -> Event {
        let lost = Event::Lost { refused: false };
        let breaks = matches!(
            action,
            Action::Receive | Action::Confirm { .. } | Action::Wait(_)
        );
        if breaks && self.connection.as_ref().is_none_or(|c| c.broken) {
            return lost;
        }
        match action {
            Action::Connect => return self.connect(primary, house),
            Action::Receive => {
                let applied = house.book.applied(&self.name, &[]);
                self.applied = applied.unwrap_or(u64::MAX.into());
                self.receiver.note_applied(AppliedByReaders {
                    lsn: self.applied,
                    ..AppliedByReaders::default()
                });
                return self.take_in(primary, house);
            }
            Action::Compare { again, all } => {
                if let Err(why) = self.overlap.as_mut().unwrap().compare(&again, all) {
                    assert!(self.set_back, "the primary is the same: {why} differs");
                    self.refusals += 1;
                    return Event::Lost { refused: true };
                }
            }
            Action::Append(frames) => return self.written(self.log.append(frames)),
            Action::Cover(lsn) => return self.written(self.log.cover(lsn)),
            Action::Stored { .. } | Action::Unblock | Action::Stop => {}
            // The other thread may be fast.
            Action::Sync if house.random.u8(..4) == 0 => self.sync(),
            Action::Sync => {}
            Action::Block => house.counts.blocked += 1,
            Action::MakeRoom => return self.make_room(house),
            Action::Confirm {
                flushed, applied, ..
            } => {
                assert!(
                    applied <= flushed && applied <= self.applied,
                    "{applied} was said to be applied, though {flushed} is durable here"
                );
                self.confirm(flushed.into(), house);
            }
            Action::Wait(most) | Action::Rest(most) => house.pass(most),
            Action::Idle(most) => {
                self.disconnect(house);
                house.counts.spared += 1;
                house.pass(most);
            }
            Action::Cut => {
                self.disconnect(house);
                house.counts.cuts += 1;
                if let Err(error) = self.log.cut() {
                    self.arranged(&error);
                    return lost;
                }
            }
            Action::Fail => self.disconnect(house),
            Action::Halt | Action::Leave(_) => unreachable!("a group does not: {action:?}"),
        }
        Event::Done
    }

    /// Connects for a stream that begins where the slot stands.
    fn connect(&mut self, primary: &Primary, house: &mut House) -> Event {
        let received = self.log.received();
        let confirmed = primary.upstreams[&self.name].confirmed;
        if let Err(why) = continues("s", &known(received), &found(confirmed, primary)) {
            panic!("data is lost: {why}");
        }
        if let Err(error) = self.log.begin_session() {
            // The cut failed.
            self.arranged(&error);
            return Event::Lost { refused: false };
        }
        self.overlap = Some(Overlap::new(&self.log, confirmed.into()));
        house.counts.repeated +=
            u64::from(primary.first(confirmed) < primary.first(received.into()));
        let batched = house.batched;
        self.connection = Some(Connection {
            walsender: Walsender::new(primary, &self.name, batched),
            broken: false,
            feedback: Vec::new(),
        });
        Event::Connected(confirmed.into())
    }

    /// Takes in some of what has come.
    fn take_in(&mut self, primary: &Primary, house: &mut House) -> Event {
        let Some(connection) = &mut self.connection else {
            return Event::Lost { refused: false };
        };
        for _ in 0..house.random.usize(1..=house.gathers) {
            let Some(data) = connection.walsender.next(primary, &mut house.random) else {
                return Event::Nothing;
            };
            if !self.receiver.take_in(&data).unwrap() {
                break;
            }
        }
        match house.random.u8(..50) {
            0 => Event::Ended,
            1..10 => Event::Nothing,
            // Enough for now, as if it were much.
            _ => Event::Done,
        }
    }

    fn written(&self, written: Result<(), LogError>) -> Event {
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

    /// Others need its connection more.
    pub fn spare(&mut self, house: &House) {
        self.receiver
            .handle(Event::Spare, self.log.standing(), house.now);
    }

    pub fn disconnect(&mut self, house: &mut House) {
        if let Some(connection) = self.connection.take() {
            house.counts.covering += connection.walsender.covering;
        }
    }

    /// The primary is told what is durable, and forgets it.
    fn confirm(&mut self, flushed: u64, house: &mut House) {
        if let Some(connection) = &mut self.connection {
            connection.feedback.push(flushed);
        }
        if house.random.u8(..8) == 0 {
            self.probe(flushed, house);
        }
    }

    /// Would it survive if the machine stopped now?
    fn probe(&self, confirmed: u64, house: &mut House) {
        let disk = self.disk.copy().after_crash(&mut house.random);
        let (_, found) = Log::open(disk, house.limits).unwrap();
        let left = found.durable;
        assert!(
            u64::from(left) >= confirmed,
            "{confirmed} was confirmed to the primary, a crash would leave {left}"
        );
    }

    /// Lets some of what was confirmed get to the primary.
    pub fn deliver(&mut self, primary: &mut Primary, house: &mut House) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        while !connection.feedback.is_empty() && house.random.u8(..4) > 0 {
            primary.hear(&self.name, connection.feedback.remove(0));
        }
    }

    /// `keep_durable`.
    pub fn sync(&self) {
        if let Err(error) = self.log.sync() {
            self.arranged(&error);
        }
    }

    /// Removes what no slot needs any more.
    pub fn retain(&self, house: &mut House) {
        match retain(&self.name, &self.log, &house.book) {
            Ok(freed) => house.counts.freed += u64::from(freed > 0),
            Err(error) => house.arranged(&error, Some(self)),
        }
    }

    fn make_room(&self, house: &mut House) -> Event {
        let slowest = house.book.slowest(&self.name);
        let made = make_room(&self.name, &self.log, &house.book, house.on_limit);
        if let Some(slot) = slowest {
            if *slot.ended().borrow() {
                house.counts.dropped += 1;
                house.dropped.insert(slot.name.clone());
            } else if house.book_disk.has_stopped() {
                house.doubtful.insert(slot.name.clone());
            }
        }
        match made {
            Ok(made) => Event::Freed(made),
            Err(error) => {
                house.arranged(&error, Some(self));
                Event::Lost { refused: false }
            }
        }
    }

    /// The process or the machine stopped, and starts again.
    pub fn reopen(&mut self, mut crash: bool, house: &mut House) {
        let before = self.log.received();
        let durable = self.log.durable();
        loop {
            // It may have stopped just now.
            crash |= self.disk.has_stopped();
            self.disk = match crash {
                true => self.disk.after_crash(&mut house.random),
                false => self.disk.after_kill(),
            };
            if crash && house.random.u8(..3) == 0 {
                // And stops once more while the log is opened.
                self.disk.stop_after(house.random.u64(..6));
                let opened = Log::open(self.disk.clone(), house.limits);
                assert!(opened.is_ok() || self.disk.has_stopped());
                self.disk = self.disk.after_crash(&mut house.random);
            }
            let mut opened = Log::open(self.disk.clone(), house.limits);
            if opened.is_err() && !self.disk.has_stopped() && !self.disk.refuses_sync() {
                // What was refused once need not be again.
                opened = Log::open(self.disk.clone(), house.limits);
            }
            if opened.is_err() && self.disk.has_stopped() {
                continue;
            }
            let (log, found) = opened.unwrap();
            assert_eq!(found.holes, [], "nothing was damaged");
            assert!(found.durable >= durable, "what was durable");
            house.counts.lost += u64::from(found.durable < before);
            self.log = Arc::new(log);
            self.receiver = receiver(house);
            return;
        }
    }

    /// The receiver ends what it does. It needs no primary for that.
    pub fn stop(&mut self, house: &mut House) {
        self.receiver
            .handle(Event::Stop, self.log.standing(), house.now);
        self.lose();
        for _ in 0..STOPPING {
            let action = self.receiver.poll(self.log.standing(), house.now);
            if action == Action::Stop {
                assert!(
                    !self.log.open_unit()
                        || self.log.poisoned().is_some()
                        || self.disk.has_stopped()
                );
                return;
            }
            let event = match action {
                Action::Receive | Action::Wait(_) | Action::Connect => unreachable!("{action:?}"),
                _ => self.perform(action, &Primary::new(NOTHING), house),
            };
            self.receiver.handle(event, self.log.standing(), house.now);
        }
        panic!("the receiver does not stop");
    }

    /// What holds at all times.
    pub fn check(&self, house: &House) {
        assert!(self.log.cache_bytes() <= house.limits.cache_bytes);
        if let Some(limit) = house.limits.spool_bytes {
            let used = self.log.spool_bytes();
            assert!(used <= limit, "the spool has {used} bytes of {limit}");
        }
        assert!(self.log.durable() <= self.log.received());
        let oldest = self.log.oldest();
        for slot in house.book.all() {
            let route = slot.route();
            let needed = match route.next {
                _ if route.group == self.name => slot.saved(),
                Some(next) if next.group == self.name => next.at.max(slot.saved()),
                _ => continue,
            };
            let (group, slot) = (&self.name, &slot.name);
            assert!(
                self.fitting().begins <= needed,
                "{oldest} is the oldest of {group}, {slot} needs {needed}"
            );
        }
    }

    /// Whether the stream waits for room.
    pub fn is_blocked(&self) -> bool {
        self.receiver.is_blocked()
    }
}

/// A receiver as a group has it.
fn receiver(house: &House) -> Receiver {
    let terms = Terms {
        batched: house.batched,
        status_every: Duration::from_secs(1),
        asks: false,
        retry: [Duration::from_millis(100), Duration::from_secs(5)],
        trusted: Trusted::After(Duration::from_secs(5)),
        refusal: Refusal::TriedAfter(Duration::from_secs(5)),
        unsynced: 0,
        farewell: None,
    };
    let fault = house.fault.and_then(Fault::of_intake);
    Receiver::new(terms, house.now).with_fault(fault)
}

/// What is known of the primary that was followed so far.
fn known(received: Lsn) -> FollowedSource {
    FollowedSource {
        system: Some(SystemId::from(1).to_string()),
        timeline: Some(Timeline::FIRST),
        history: Some(Vec::new()),
        received,
        slot: Some(SlotKind {
            plugin: "p".to_owned(),
            database: "d".to_owned(),
        }),
    }
}

/// What the primary says of it.
fn found(confirmed: u64, primary: &Primary) -> SourceFound {
    SourceFound {
        identity: Identity {
            system: SystemId::from(1),
            timeline: Timeline::FIRST,
            end: Lsn::from(primary.end),
            database: Some("d".to_owned()),
        },
        history: Vec::new(),
        slot: Some(slot_state("p", confirmed)),
        is_standby: false,
    }
}
