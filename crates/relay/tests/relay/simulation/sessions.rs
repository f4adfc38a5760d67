//! The relay's sessions: slots that are adopted, served and dropped, as the relay decides.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use lockstep_relay::adoption::{self, Action, Adoption, Drop, Event, Verdict};
use lockstep_relay::log::{Read, Reader};
use lockstep_relay::send::sender::{self as send, Sender};
use lockstep_relay::slots::{InUse, Route, Slot};
use lockstep_wire::Lsn;
use lockstep_wire::backend::Backend;
use lockstep_wire::stream::{FromServer, FromStandby, Status, Timestamp};

use super::primary::Primary;
use super::relay::{GROUP, Relay, slot_state};
use super::subscriber::Link;
use crate::disk::Disk;

/// The relay's end of a subscriber's connection.
pub struct Session {
    in_use: InUse,
    sender: Sender,
    reader: Option<Reader<Disk>>,
    /// What is being written.
    unwritten: VecDeque<u8>,
}

/// What becomes of a `START_REPLICATION`.
pub enum Started {
    Streams(Link),
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
    /// `START_REPLICATION` of a slot.
    pub fn start(&mut self, number: usize, start: u64, primary: &mut Primary) -> Started {
        let slot = match self.book.get(&name(number)) {
            Some(slot) => slot,
            None => match self.adopt(&name(number), primary) {
                Ok(slot) => slot,
                Err(other) => return other,
            },
        };
        let in_use = slot.acquire(1, 1).expect("one session uses it");
        let confirmed = slot.confirmed();
        let from = adoption::first_key(confirmed, start.into());
        let sender = Sender::new(&slot.name, confirmed, from, None, self.now);
        self.sessions[number] = Some(Session {
            in_use,
            sender: sender.with_fault(self.fault),
            reader: None,
            unwritten: VecDeque::new(),
        });
        Started::Streams(Link::default())
    }

    /// What `slot_commands` does.
    fn adopt(&mut self, slot: &str, primary: &mut Primary) -> Result<Arc<Slot>, Started> {
        let found = primary.slots.get(slot);
        let found = found.map(|confirmed| slot_state("pgoutput", *confirmed));
        let confirmed = match adoption::verdict(found.as_ref(), "d", false) {
            Verdict::Adopt(confirmed) => confirmed,
            other => panic!("{slot}: {other:?}"),
        };
        let mut adoption = Adoption::begin().with_fault(self.fault);
        let mut added = None;
        loop {
            if self.random.u8(..4) == 0 {
                // Another thread of the relay.
                self.keep_house();
            }
            let done = match adoption.poll() {
                Action::Add => {
                    let route = Route {
                        group: GROUP.to_owned(),
                        next: None,
                    };
                    let reaches =
                        || adoption::reaches(self.log.start(), self.log.oldest(), confirmed);
                    match self.book.add(slot, "d", route, confirmed, 0, reaches) {
                        Ok(Ok(slot)) => {
                            added = Some(slot);
                            Ok(())
                        }
                        Ok(Err(why)) => {
                            adoption.handle(why.into());
                            continue;
                        }
                        Err(error) => Err(error),
                    }
                }
                Action::DropAtPrimary => {
                    adoption.handle(self.drop_at_primary(slot, primary));
                    continue;
                }
                Action::Settle => self.book.adopted(added.as_ref().unwrap()),
                Action::TakeBack => self.book.remove(slot).map(drop),
                Action::Serve => return Ok(added.unwrap()),
                Action::Pass(adoption::BEHIND) => return Err(Started::Passed),
                Action::Pass(_) => return Err(Started::Refused),
            };
            if let Err(error) = done {
                self.arranged_in_relay(&error);
                return Err(Started::Refused);
            }
            adoption.handle(Event::Done);
        }
    }

    fn drop_at_primary(&mut self, slot: &str, primary: &mut Primary) -> Event {
        match self.random.u8(..8) {
            0 => Event::Refused,
            1 => Event::NoAnswer,
            2 => {
                primary.slots.remove(slot);
                Event::NoAnswer
            }
            _ => {
                primary.slots.remove(slot);
                Event::Done
            }
        }
    }

    /// What `Relay::finish_adoptions` does.
    pub fn finish_adoptions(&mut self, primary: &mut Primary) {
        for slot in self.book.all() {
            if !slot.is_adopting() {
                continue;
            }
            self.counts.resumed += 1;
            let mut adoption = Adoption::resume();
            loop {
                let event = match adoption.poll() {
                    Action::DropAtPrimary => match primary.slots.contains_key(&slot.name) {
                        true => self.drop_at_primary(&slot.name, primary),
                        false => Event::Done,
                    },
                    Action::Settle => {
                        if let Err(error) = self.book.adopted(&slot) {
                            self.arranged_in_relay(&error);
                            return;
                        }
                        Event::Done
                    }
                    _ => break,
                };
                adoption.handle(event);
            }
        }
    }

    /// `DROP_REPLICATION_SLOT`. False if it is in use or being adopted, or could not be removed.
    pub fn drop_slot(&mut self, number: usize, primary: &mut Primary) -> bool {
        let slot = name(number);
        let Some(kept) = self.book.get(&slot) else {
            primary.slots.remove(&slot);
            self.dropped.insert(slot);
            return true;
        };
        if adoption::drop_slot(kept.active(), &kept.route(), kept.is_adopting()) != Drop::Remove {
            return false;
        }
        match self.book.remove(&slot) {
            Ok(_) => {
                kept.end();
                let left = primary.slots.contains_key(&slot);
                assert!(!left, "{slot} is dropped, and the primary keeps WAL for it");
                self.counts.dropped += 1;
                self.dropped.insert(slot);
                true
            }
            Err(error) => {
                self.arranged_in_relay(&error);
                if self.book_disk.has_stopped() {
                    self.doubtful.insert(slot);
                }
                false
            }
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
                session.sender.handle(send::Event::Dropped, self.now);
            }
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
            send::Action::NextGroup | send::Action::Hear(_) | send::Action::EndCopy => {
                panic!("a slot stays in the one group")
            }
            send::Action::Finish { ended } => {
                assert!(!ended);
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
            session.in_use.slot().confirm(heard.flushed);
        }
    }

    /// Something that a sender is told while it does anything.
    pub fn tell(&mut self, number: usize, event: send::Event) {
        if let Some(session) = &mut self.sessions[number] {
            session.sender.handle(event, self.now);
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
