//! The relay's sessions: slots that are adopted, served and dropped, as the relay decides.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockstep_relay::adoption;
use lockstep_relay::routes::Choice;
use lockstep_relay::send::sender::{Action, Event, Onward, Sender};
use lockstep_relay::slots::{InUse, Route, Slot};
use lockstep_simulation::disk::Disk;
use lockstep_simulation::primary::{Primary, Wish};
use lockstep_spool::{End, Read, Reader};
use lockstep_wire::Lsn;
use lockstep_wire::backend::Backend;
use lockstep_wire::stream::{FromServer, FromStandby, Status, Timestamp};
use tokio::sync::watch;

use super::feed::Place;
use super::relay::Relay;
use super::subscriber::{Link, Plan};

/// The relay's end of a subscriber's connection.
pub struct Session {
    in_use: InUse,
    sender: Sender,
    /// Where it reads, and where it goes on after that.
    place: Place,
    next: Option<Place>,
    source: Option<Source>,
    /// What is being written.
    unwritten: VecDeque<u8>,
    /// What was read last ends within a message.
    within: bool,
    /// A wait that goes on until then.
    wait: Option<(Action, Instant)>,
}

/// What a sender reads, and how it learns of more.
struct Source {
    reader: Reader<Disk>,
    ends: watch::Receiver<End>,
}

/// What becomes of a `START_REPLICATION`.
pub enum Started {
    Streams(Box<Link>),
    /// The primary serves it.
    Passed,
    /// The client is told of an error.
    Refused,
}

/// The slot of a subscriber.
pub fn name(number: usize) -> String {
    format!("s{number}")
}

impl Relay {
    /// `START_REPLICATION` of a slot by one that asks for this.
    pub fn start(
        &mut self,
        number: usize,
        start: u64,
        wish: Wish,
        primary: &mut Primary,
    ) -> Started {
        let slot = match self.house.book.get(&name(number)) {
            Some(slot) => slot,
            None => match self.adopt(&name(number), wish, primary) {
                Ok(slot) => slot,
                Err(other) => return other,
            },
        };
        let in_use = slot.acquire(1, 1).expect("one session uses it");
        match self.choose(&slot, wish, primary) {
            None => return Started::Refused,
            Some(Choice::GiveBack) if !primary.slots.contains_key(&slot.name) => {
                let route = Route {
                    next: None,
                    ..slot.route()
                };
                if let Err(error) = self.house.book.reroute(&slot, route, || true) {
                    self.house.arranged(&error, None);
                }
                return Started::Refused;
            }
            Some(Choice::GiveBack) => {
                if let Err(error) = self.house.book.remove(&slot.name) {
                    self.house.arranged(&error, None);
                    return Started::Refused;
                }
                self.house.counts.returned += 1;
                return Started::Passed;
            }
            Some(_) => {}
        }
        let plan = self.plan(&slot, start);
        let next = plan.next.map(|(at, wish)| match wish {
            Some(_) => Onward::Group(at.into()),
            None => Onward::Primary(at.into()),
        });
        let place = |wish: Wish| self.feeds[wish.group().unwrap()].place();
        let sender = Sender::new(
            &slot.name,
            slot.confirmed(),
            plan.from.into(),
            next,
            self.house.now,
        );
        self.sessions[number] = Some(Session {
            in_use,
            sender: sender.with_fault(self.house.fault),
            place: place(plan.wish),
            next: plan.next.and_then(|(_, wish)| wish).map(place),
            source: None,
            unwritten: VecDeque::new(),
            within: false,
            wait: None,
        });
        Started::Streams(Box::new(Link::new(plan)))
    }

    /// What a slot is to be sent from now on.
    fn plan(&self, slot: &Slot, start: u64) -> Plan {
        let confirmed = slot.confirmed();
        let route = slot.route();
        let next = route
            .next
            .map(|next| (next.at.into(), Wish::of(&next.group)));
        Plan {
            confirmed: confirmed.into(),
            from: adoption::first_key(confirmed, start.into()).into(),
            wish: Wish::of(&route.group).unwrap(),
            next,
        }
    }

    /// Does what a sender decides, at most `actions` actions; fewer if it waits or its client is
    /// slow. Reads are of `most` bytes.
    pub fn serve(&mut self, number: usize, actions: usize, most: usize, link: &mut Link) {
        for _ in 0..actions {
            let Some(session) = &mut self.sessions[number] else {
                return;
            };
            if *session.in_use.slot().ended().borrow() {
                session.sender.handle(Event::Dropped, self.house.now);
            }
            let waiting = session.wait.as_ref().map(|(action, _)| action.clone());
            let action = waiting.unwrap_or_else(|| session.sender.poll(self.house.now));
            let Some(event) = self.send(number, action, most, link) else {
                return;
            };
            self.tell(number, event);
            if self.is_within(number) && self.house.random.u8(..4) == 0 {
                // An awkward moment for that.
                link.done = true;
                self.tell(number, Event::ClientDone);
            }
        }
    }

    /// What `send::task` does. None: it is still at it, or it is over.
    fn send(
        &mut self,
        number: usize,
        action: Action,
        most: usize,
        link: &mut Link,
    ) -> Option<Event> {
        let session = self.sessions[number].as_mut()?;
        let random = &mut self.house.random;
        match action {
            Action::Open { from, before } => return Some(self.open(number, from, before)),
            Action::Read => return Some(self.read(number, most)),
            Action::Write => return session.write(random, link),
            Action::Keepalive { end, reply } => {
                if session.unwritten.is_empty() {
                    session.unwritten.extend(keepalive(end, reply));
                }
                return session.write(random, link);
            }
            Action::Wait(time) | Action::Pause(time) | Action::Hear(time) => {
                if !self.is_over(number, &action, time) {
                    return None;
                }
                let sessions = self.sessions.iter().flatten().count();
                return Some(match action {
                    Action::Wait(_) => Event::Woken { sessions },
                    _ => Event::Done,
                });
            }
            Action::NextGroup => {
                session.place = session.next.take().expect("there is another group");
                session.source = None;
                self.house.counts.switched += 1;
            }
            Action::EndCopy => {
                assert!(link.is_between_messages(), "the copy ends within a message");
                Backend::CopyDone.encode(&mut link.pipe);
            }
            Action::Finish { ended } => {
                assert!(link.is_between_messages(), "the copy ends within a message");
                assert!(link.done);
                self.house.counts.finished += 1;
                if !ended {
                    Backend::CopyDone.encode(&mut link.pipe);
                }
                self.sessions[number] = None;
                return None;
            }
            Action::Cancel => unreachable!("nobody cancels"),
            Action::End { why, say } => {
                self.house.counts.silent += u64::from(!say);
                if let Some(why) = why.filter(|_| say) {
                    assert!(link.is_between_messages(), "an error within a message");
                    Backend::ErrorResponse(why).encode(&mut link.pipe);
                }
                self.sessions[number] = None;
                return None;
            }
        }
        Some(Event::Done)
    }

    /// Whether a wait has ended by now: by time, or by what it is given up for. Some of its time
    /// passes.
    fn is_over(&mut self, number: usize, action: &Action, time: Duration) -> bool {
        let house = &mut self.house;
        let Some(session) = &mut self.sessions[number] else {
            return true;
        };
        let (_, until) = *session
            .wait
            .get_or_insert((action.clone(), house.now + time));
        let log = |source: &Source| source.ends.has_changed().unwrap();
        let urgent = match action {
            Action::Pause(_) => session.sender.is_over(),
            _ => session.sender.is_urgent(),
        };
        let woken = match action {
            Action::Wait(_) => session.source.as_ref().is_some_and(log),
            _ => false,
        };
        house.counts.urgent += u64::from(urgent);
        let over = urgent || woken || *session.in_use.slot().ended().borrow() || {
            house.pass(until.saturating_duration_since(house.now));
            house.now >= until
        };
        if over {
            session.wait = None;
        }
        over
    }

    fn open(&mut self, number: usize, from: Lsn, before: Option<Lsn>) -> Event {
        let Some(session) = &mut self.sessions[number] else {
            panic!("a session that is over");
        };
        let Place { log, disk, group } = &session.place;
        match log.reader(from) {
            Ok(mut reader) => {
                if let Some(before) = before {
                    reader.stop_before(before);
                }
                let ends = log.watch();
                session.source = Some(Source { reader, ends });
                Event::Done
            }
            Err(error) => {
                let stopped = disk.has_stopped();
                assert!(stopped, "slot {number} of {group} at {from}: {error}");
                Event::Unreadable(error)
            }
        }
    }

    fn read(&mut self, number: usize, most: usize) -> Event {
        let Some(session) = &mut self.sessions[number] else {
            panic!("a session that is over");
        };
        let Some(Source { reader, ends }) = &mut session.source else {
            panic!("it reads what it has not opened");
        };
        ends.borrow_and_update();
        let counts = &mut self.house.counts;
        match reader.read(most) {
            Ok(Read::Frames {
                pieces,
                hit_bytes,
                miss_bytes,
            }) => {
                counts.hits += hit_bytes;
                counts.misses += miss_bytes;
                let bytes: usize = pieces.iter().map(Bytes::len).sum();
                counts.injected += bytes as u64 - hit_bytes - miss_bytes;
                session.unwritten.extend(pieces.concat());
                session.within = reader.within_frame();
                Event::Frames {
                    sent: reader.sent(),
                    within: reader.within_frame(),
                }
            }
            Ok(Read::Nothing { covered }) => {
                assert!(!reader.within_frame(), "a keepalive within a frame");
                Event::Nothing { covered }
            }
            Ok(Read::Limit) => Event::Limit,
            Ok(Read::Cut) => {
                counts.told_of_cuts += 1;
                Event::Cut
            }
            Err(error) => {
                let stopped = session.place.disk.has_stopped();
                assert!(stopped, "slot {number} cannot be read: {error}");
                Event::Unreadable(error)
            }
        }
    }

    /// Whether the client has a part of a message, all of which was written that was read.
    fn is_within(&self, number: usize) -> bool {
        let session = self.sessions[number].as_ref();
        session.is_some_and(|session| session.within && session.unwritten.is_empty())
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
        if let Some(heard) = session.sender.heard(&feedback, self.house.now) {
            session.in_use.slot().confirm(heard.flushed);
            session.in_use.slot().note(heard.written, heard.applied);
        }
    }

    /// Something that a sender is told while it does anything.
    pub fn tell(&mut self, number: usize, event: Event) {
        if let Some(session) = &mut self.sessions[number] {
            session.sender.handle(event, self.house.now);
        }
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
    fn write(&mut self, random: &mut fastrand::Rng, link: &mut Link) -> Option<Event> {
        let all = self.unwritten.len();
        let taken = match random.u8(..4) {
            0 => random.usize(..=all),
            _ => all,
        };
        link.pipe.extend(self.unwritten.drain(..taken));
        self.unwritten.is_empty().then_some(Event::Done)
    }
}
