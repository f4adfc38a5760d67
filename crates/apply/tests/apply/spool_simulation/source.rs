//! The source as a spool meets it: what it says of itself, its stream, and what it is told.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use std::time::{Duration, Instant};

use lockstep_apply::SpoolConfig;
use lockstep_apply::error::{ApplyError, Result};
use lockstep_apply::spool::host::SpoolWorld;
use lockstep_client::{ClientError, Identity, Next, Switch};
use lockstep_intake::continuity::SourceFound;
use lockstep_intake::driver::SourceStream;
use lockstep_simulation::disk::Disk;
use lockstep_simulation::primary::{
    Primary, START, Sizes, Unit, Upstream, Walsender, Wish, slot_state,
};
use lockstep_spool::{Limits, Log};
use lockstep_wire::stream::Status;
use lockstep_wire::{Lsn, SystemId, Timeline};

use super::counts::Counts;

/// What the replica's slot is for. No messages outside of transactions: a replica asks for none.
pub const WISH: Wish = Wish::High;

pub const SLOT: &str = "high";

/// The source, and what else the two ends of its stream share with the world.
pub struct Source {
    pub primary: Primary,
    pub system: u64,
    pub timeline: u32,
    pub history: Vec<Switch>,
    /// Transactions that the spool has received, their history and timeline, once the source has lost some
    /// of them.
    pub left: Option<(Vec<Unit>, Vec<Switch>, u32)>,
    pub invalidated: bool,
    /// Nobody answers.
    pub is_away: bool,
    /// The connection that is not broken, by its number.
    connection: u64,
    /// Connections that the spool has not closed.
    pub open: u32,
    /// Positions on the way to the source.
    feedback: Vec<u64>,
    /// The most that was confirmed at any time.
    pub told: Lsn,
    /// The most that the target had committed at any time.
    pub committed: Lsn,
    pub disk: Disk,
    pub config: SpoolConfig,
    pub now: Instant,
    pub random: fastrand::Rng,
    pub counts: Counts,
}

pub type SharedSource = Rc<RefCell<Source>>;

impl Source {
    pub fn new(sizes: Sizes, disk: Disk, config: SpoolConfig, random: fastrand::Rng) -> Self {
        let mut primary = Primary::new(sizes);
        primary
            .upstreams
            .insert(SLOT.to_owned(), Upstream::at(START));
        Self {
            primary,
            system: 7,
            timeline: 1,
            history: Vec::new(),
            left: None,
            invalidated: false,
            is_away: false,
            connection: 0,
            open: 0,
            feedback: Vec::new(),
            told: START.into(),
            committed: START.into(),
            disk,
            config,
            // Only differences count.
            now: Instant::now(),
            random,
            counts: Counts::default(),
        }
    }

    /// What the slot has confirmed.
    pub fn confirmed(&self) -> u64 {
        self.primary.upstreams[SLOT].confirmed
    }

    /// The stream is lost, and what is on the way with it: the spool meets that when it uses it.
    pub fn lose(&mut self) {
        self.connection += 1;
        self.feedback.clear();
    }

    /// Another server takes over, which had all up to here and nothing else: nor did it know of timelines
    /// that began later.
    pub fn promote(&mut self, at: u64) {
        self.primary.end_at(at);
        let left = timeline_at(at, &self.history, self.timeline);
        self.history.retain(|switch| u64::from(switch.at) <= at);
        self.history.push(Switch {
            timeline: Timeline::new(left).unwrap(),
            at: at.into(),
        });
        self.timeline += 1;
    }

    /// What the spool has is not what the source has, from now on.
    pub fn leave_behind(&mut self) {
        let (units, history) = (self.primary.units.clone(), self.history.clone());
        self.left = Some((units, history, self.timeline));
    }

    /// The first transaction that whoever has everything before `from` is to get from the spool.
    pub fn next_for(&self, from: Lsn) -> Option<&Unit> {
        let units = (self.left.as_ref()).map_or(&self.primary.units, |(units, ..)| units);
        let first = units.partition_point(|unit| unit.key < from.into());
        let mut units = units.iter().skip(first);
        units.find(|unit| !unit.parts_for(WISH).is_empty())
    }

    /// The timeline that a unit was written on.
    pub fn timeline_of(&self, unit: &Unit) -> u32 {
        match &self.left {
            Some((_, history, timeline)) => timeline_at(unit.key, history, *timeline),
            None => timeline_at(unit.key, &self.history, self.timeline),
        }
    }

    /// Some of what was confirmed gets to the source.
    pub fn deliver(&mut self) {
        while !self.feedback.is_empty() && self.random.u8(..4) > 0 {
            self.primary.hear(SLOT, self.feedback.remove(0));
        }
    }

    fn found(&self) -> SourceFound {
        let mut slot = slot_state("pgoutput", self.confirmed());
        slot.invalidation = self.invalidated.then(|| "wal_removed".to_owned());
        SourceFound {
            identity: Identity {
                system: SystemId::from(self.system),
                timeline: Timeline::new(self.timeline).unwrap(),
                end: self.primary.end.into(),
                database: Some("d".to_owned()),
            },
            history: self.history.clone(),
            slot: Some(slot),
            is_standby: false,
        }
    }

    /// Would what is confirmed survive if the machine stopped now?
    fn probe(&mut self, confirmed: Lsn) {
        let disk = self.disk.copy().after_crash(&mut self.random);
        let limits = Limits {
            cache_bytes: 0,
            segment_bytes: 1 << 20,
            spool_bytes: Some(self.config.limit),
        };
        let (_, found) = Log::open(disk, limits).unwrap();
        assert!(
            found.durable >= confirmed,
            "{confirmed} was confirmed to the source, a crash would leave {}",
            found.durable
        );
    }
}

/// The timeline of WAL at this position, on a server with this history.
fn timeline_at(at: u64, history: &[Switch], timeline: u32) -> u32 {
    let later = history.iter().find(|switch| u64::from(switch.at) > at);
    later.map_or(timeline, |switch| switch.timeline.get())
}

fn lost() -> ClientError {
    ClientError::Lost("the source is gone".to_owned())
}

/// What a spool's host reaches here.
pub struct Reached(pub SharedSource);

pub struct Connection {
    source: SharedSource,
    number: u64,
    walsender: Walsender,
    told: Status,
}

/// Content of a message.
pub struct Content(Vec<u8>);

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Reached {
    fn answers(&self) -> Result<()> {
        let mut source = self.0.borrow_mut();
        match source.is_away || source.random.u8(..20) == 0 {
            true => Err(ApplyError::Source(lost())),
            false => Ok(()),
        }
    }

    /// Some of this time passes.
    fn pass(&self, most: Duration) {
        let mut source = self.0.borrow_mut();
        let part = source.random.u32(0..=8);
        // Who is halted rests for ages.
        source.now += most.min(Duration::from_secs(60)) * part / 8;
    }
}

impl SpoolWorld for Reached {
    type Asked = ();
    type Stream = Connection;

    fn ask(&mut self) -> Result<((), SourceFound)> {
        self.answers()?;
        Ok(((), self.0.borrow().found()))
    }

    fn start(&mut self, (): (), from: Lsn) -> Result<Connection> {
        self.answers()?;
        let mut source = self.0.borrow_mut();
        assert_eq!(u64::from(from), source.confirmed(), "it begins elsewhere");
        source.lose();
        source.open += 1;
        source.counts.add("connections", 1);
        Ok(Connection {
            source: self.0.clone(),
            number: source.connection,
            walsender: Walsender::new(&source.primary, SLOT, false),
            told: Status::default(),
        })
    }

    fn slot(&self) -> &str {
        SLOT
    }

    fn wait(&mut self, _stream: &mut Connection, most: Duration) -> Result<(), ClientError> {
        self.pass(most);
        Ok(())
    }

    fn rest(&mut self, most: Duration, _sleep: &dyn Fn(Duration)) {
        self.pass(most);
    }

    fn now(&self) -> Instant {
        self.0.borrow().now
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.source.borrow_mut().open -= 1;
    }
}

impl SourceStream for Connection {
    type Data = Content;

    fn next_message(&mut self) -> Result<Next<Content>, ClientError> {
        let source = &mut *self.source.borrow_mut();
        if source.is_away || source.connection != self.number {
            return Err(lost());
        }
        match source.random.u16(..2_000) {
            0 => Ok(Next::Ended),
            1..3 => Err(lost()),
            3..100 => Ok(Next::NotYet),
            _ => match self.walsender.next(&source.primary, &mut source.random) {
                Some(data) => Ok(Next::Data(Content(data))),
                None => Ok(Next::NotYet),
            },
        }
    }

    fn confirm(&mut self, status: Status) -> Result<(), ClientError> {
        let source = &mut *self.source.borrow_mut();
        if source.is_away || source.connection != self.number {
            return Err(lost());
        }
        let Status {
            flushed, applied, ..
        } = status;
        assert!(
            applied <= flushed && applied <= source.committed,
            "{applied} was said to be applied: {flushed} is durable in the spool, and the target had \
             committed {}",
            source.committed
        );
        assert!(
            flushed >= self.told.flushed && applied >= self.told.applied,
            "it goes back: {status:?} after {:?}",
            self.told
        );
        self.told = status;
        source.told = source.told.max(flushed);
        source.feedback.push(flushed.into());
        if source.random.bool() {
            source.probe(flushed);
        }
        Ok(())
    }

    fn leave(self, _patience: Duration) {
        self.source.borrow_mut().counts.add("farewells", 1);
    }
}
