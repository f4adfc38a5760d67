//! The target as a spool meets it: sessions that read the spool, and what they commit.

use std::sync::mpsc::{Receiver, channel};

use lockstep_apply::Spool;
use lockstep_apply::control::Event;
use lockstep_apply::error::ApplyError;
use lockstep_apply::fault::Fault;
use lockstep_apply::spool::{Arrived, FromSpool, Owner};
use lockstep_intake::continuity::FollowedSource;
use lockstep_simulation::disk::Disk;
use lockstep_simulation::primary::{Described, START};
use lockstep_wire::logical::frames::FRAME_HEADER;
use lockstep_wire::stream::{FromServer, XLOG_DATA_HEADER};
use lockstep_wire::{Lsn, Timeline};

use super::source::{SharedSource, WISH};

/// A session's end of the spool.
struct Session {
    from: FromSpool<Disk>,
    news: Receiver<Event>,
    /// Nothing more was there: it looks again once it is told.
    sleeps: bool,
    described: Described,
    /// Parts of the next transaction that have come.
    parts: usize,
}

/// See the module.
pub struct Target {
    source: SharedSource,
    fault: Option<Fault>,
    /// Everything before is committed, and on disk.
    pub committed: Lsn,
    pub flushed: Lsn,
    /// The newest timeline that it knows of.
    timeline: Option<Timeline>,
    pub is_away: bool,
    session: Option<Session>,
}

fn owner() -> Owner {
    Owner {
        replica: "r".to_owned(),
        system: Some("7".to_owned()),
        slot: "s".to_owned(),
        publications: vec!["p".to_owned()],
        origin: "o".to_owned(),
        ddl: false,
    }
}

impl Target {
    /// Has a copy of everything before the slot begins.
    pub fn new(source: SharedSource, fault: Option<Fault>) -> Self {
        Self {
            source,
            fault,
            committed: START.into(),
            flushed: START.into(),
            timeline: Some(Timeline::FIRST),
            is_away: false,
            session: None,
        }
    }

    /// The session ends.
    pub fn close(&mut self) {
        self.session = None;
    }

    /// What was not on disk is lost.
    pub fn crash(&mut self) {
        self.close();
        self.source.borrow_mut().counts.add("targets crashed", 1);
        self.committed = self.flushed;
    }

    fn open(&mut self, spool: &Spool<Disk>) -> Result<(), ApplyError> {
        self.flushed = self.committed;
        let known = FollowedSource {
            system: Some("7".to_owned()),
            timeline: self.timeline,
            history: None,
            received: self.committed,
            slot: None,
        };
        let (sender, news) = channel();
        let before = spool.log().map(|log| log.start());
        let from = spool.read(&known, owner(), "host=/source", sender)?;
        let mut source = self.source.borrow_mut();
        let after = spool.log().map(|log| log.start());
        let is_anew = before.is_some() && before != after;
        source.counts.add("spools begun anew", u64::from(is_anew));
        source.counts.add("sessions", 1);
        self.session = Some(Session {
            from: from.with_fault(self.fault),
            news,
            sleeps: false,
            described: Described::default(),
            parts: 0,
        });
        Ok(())
    }

    /// Takes at most so many messages. `patient`: it looks again only if it is told to. An error is that of
    /// a session.
    pub fn step(
        &mut self,
        messages: usize,
        patient: bool,
        spool: &Spool<Disk>,
    ) -> Result<(), ApplyError> {
        if self.is_away {
            return Ok(());
        }
        if self.session.is_none() {
            self.open(spool)?;
        }
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        while session.news.try_recv().is_ok() {
            session.from.heard();
            session.sleeps = false;
        }
        if session.sleeps && patient {
            return Ok(());
        }
        for _ in 0..messages {
            let Some(session) = &mut self.session else {
                return Ok(());
            };
            match session.from.next_message()? {
                Arrived::Message(content) => self.message(content.as_ref()),
                Arrived::Covered(end) => self.covered(end),
                Arrived::Ended => panic!("a spool does not end"),
                Arrived::NotYet => {
                    session.sleeps = true;
                    let inside = session.parts > 0;
                    if let Some(error) = session.from.failure() {
                        return Err(error);
                    }
                    assert!(
                        !inside,
                        "some of a transaction was handed out, and not the rest"
                    );
                    if patient || self.source.borrow_mut().random.u8(..4) == 0 {
                        self.flushed = self.committed;
                    }
                    spool.tell(self.committed, self.flushed, false);
                    return Ok(());
                }
            }
            if self.source.borrow_mut().random.bool() {
                if self.source.borrow_mut().random.u8(..8) == 0 {
                    self.flushed = self.committed;
                }
                let ask = self.source.borrow_mut().random.u8(..8) == 0;
                spool.tell(self.committed, self.flushed, ask);
            }
        }
        Ok(())
    }

    fn commit(&mut self, end: Lsn) {
        let mut source = self.source.borrow_mut();
        self.committed = self.committed.max(end);
        source.committed = source.committed.max(end);
    }

    fn message(&mut self, content: &[u8]) {
        let FromServer::XLogData { wal, .. } = FromServer::parse(content).unwrap() else {
            panic!("a spool has no keepalives");
        };
        let source = self.source.clone();
        let source = source.borrow();
        let unit = source.next_for(self.committed);
        let unit = unit.expect("more comes than was committed");
        let session = self.session.as_mut().unwrap();
        if session.described.note(wal) {
            assert!(session.parts > 0, "a description outside of a transaction");
            return;
        }
        let parts = unit.parts_for(WISH);
        let frame = unit.frame(parts[session.parts]);
        let expected = &frame[FRAME_HEADER - XLOG_DATA_HEADER..];
        assert!(
            content == expected,
            "transaction at {}, part {}: another message comes",
            unit.key,
            session.parts
        );
        session.described.check(parts[session.parts]);
        let on = source.timeline_of(unit);
        let known = session.from.timeline.map_or(0, Timeline::get);
        assert!(
            (on..=source.timeline).contains(&known),
            "transaction at {} is of timeline {on}, and the spool says {known}",
            unit.key
        );
        // Before it has anything of a timeline, the target knows of it.
        self.timeline = session.from.timeline;
        session.parts += 1;
        if session.parts == parts.len() {
            session.parts = 0;
            let end = unit.end;
            drop(source);
            self.commit(end.into());
            self.source.borrow_mut().counts.add("commits", 1);
        }
    }

    fn covered(&mut self, end: Lsn) {
        let source = self.source.clone();
        let session = self.session.as_ref().unwrap();
        assert_eq!(session.parts, 0, "{end} is covered within a transaction");
        if let Some(unit) = source.borrow().next_for(self.committed) {
            assert!(
                u64::from(end) <= unit.key,
                "{end} is covered, and the transaction at {} has not come",
                unit.key
            );
        }
        source.borrow_mut().counts.add("covers", 1);
        self.timeline = session.from.timeline;
        self.commit(end);
        self.flushed = self.committed;
    }

    pub fn has_all(&self) -> bool {
        u64::from(self.committed) == self.source.borrow().primary.end
    }
}
