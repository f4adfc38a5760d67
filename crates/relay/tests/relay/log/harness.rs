//! A log and a model of it, driven by chance, compared after every step.

use std::sync::Arc;

use bytes::Bytes;
use lockstep_spool::{Limits, Log, LogError, Read, Reader, Recovered};
use lockstep_wire::Lsn;

use super::stream::{Expected, Model, Sizes, Unit, unit};
use lockstep_simulation::disk::Disk;

/// Where the log begins.
pub const START: u64 = 1000;

/// A reader and what it got.
struct Follower {
    reader: Reader<Disk>,
    from: u64,
    limit: Option<u64>,
    got: Vec<u8>,
    expected: Expected,
    /// The step of the harness in which that was said.
    as_of: u64,
    hits: u64,
    misses: u64,
}

impl Follower {
    /// Takes frames that are the next ones expected, and whose position is told.
    fn take(&mut self, pieces: &[Bytes], max_bytes: usize) {
        let new = pieces.concat();
        self.got.extend(&new);
        let got = self.got.len();
        assert!(!new.is_empty());
        assert!(new.len() <= max_bytes || pieces.len() == 1);
        assert!(got <= self.expected.bytes.len(), "more than there is");
        assert_eq!(
            self.got[got - new.len()..],
            self.expected.bytes[got - new.len()..got]
        );
        let ends = self.expected.ends.iter().rev();
        let end = ends.clone().find(|end| end.0 <= got);
        let sent = u64::from(self.reader.sent());
        assert_eq!(sent, end.map_or(self.from, |end| end.1.max(self.from)));
        if !self.reader.within_unit() {
            assert!(end.is_some_and(|end| end.0 == got));
        }
    }
}

/// See the module.
pub struct Harness {
    pub disk: Disk,
    pub log: Arc<Log<Disk>>,
    pub model: Model,
    pub limits: Limits,
    pub sizes: Sizes,
    pub random: fastrand::Rng,
    /// What a sync has returned, or a cut could not go behind.
    pub durable: u64,
    /// What was covered last.
    pub covered: u64,
    /// Frames of the unit that is arriving that are still to come, last first.
    to_come: Vec<Vec<u8>>,
    unit_end: u64,
    followers: Vec<Follower>,
    /// What was said to be confirmed.
    confirmed: u64,
    /// Changes of the model, from 1.
    step: u64,
}

impl Harness {
    pub fn new(mut random: fastrand::Rng, limits: Limits, sizes: Sizes) -> Self {
        let disk = Disk::default();
        let log = Log::create(disk.clone(), limits, Lsn::from(START)).unwrap();
        let random = random.fork();
        Self {
            disk,
            log: Arc::new(log),
            model: Model {
                session: true,
                ..Model::default()
            },
            limits,
            sizes,
            random,
            durable: START,
            covered: START,
            to_come: Vec::new(),
            unit_end: 0,
            followers: Vec::new(),
            confirmed: START,
            step: 1,
        }
    }

    pub fn received(&self) -> u64 {
        self.model.received(START).max(self.covered)
    }

    /// Appends frames of one or more units, often ending within one.
    pub fn append(&mut self) {
        let mut bytes = Vec::new();
        let mut model = self.model.clone();
        let (mut to_come, mut unit_end) = (self.to_come.clone(), self.unit_end);
        let mut received = self.received();
        for _ in 0..self.random.usize(1..30) {
            if model.open.is_none() {
                let mut next = unit(received, self.sizes, &mut self.random);
                next.session = std::mem::take(&mut model.session);
                to_come = std::mem::take(&mut next.frames);
                to_come.reverse();
                unit_end = next.end;
                model.open = Some(next);
            }
            let frame = to_come.pop().unwrap();
            bytes.extend(&frame);
            model.open.as_mut().unwrap().frames.push(frame);
            if to_come.is_empty() {
                received = unit_end;
                model.units.extend(model.open.take());
            }
        }
        match self.log.append(Bytes::from(bytes)) {
            // After an error of a machine that stopped it may be there or not.
            result if result.is_ok() || self.disk.has_stopped() => {
                self.model = model;
                self.step += 1;
                self.to_come = to_come;
                self.unit_end = unit_end;
            }
            Ok(()) => {}
            Err(error) => self.refused(&error),
        }
    }

    /// An error may only be one that this harness has arranged.
    fn refused(&self, error: &LogError) {
        assert!(
            error.is_retryable() || self.log.poisoned().is_some(),
            "{error}"
        );
    }

    pub fn cover(&mut self) {
        let lsn = self.received() + self.random.u64(..100);
        match self.log.cover(Lsn::from(lsn)) {
            result if result.is_ok() || (self.disk.has_stopped() && self.model.open.is_none()) => {
                self.covered = self.covered.max(lsn);
            }
            Ok(()) => {}
            Err(LogError::UnitOpen) => assert!(self.model.open.is_some()),
            Err(error) => self.refused(&error),
        }
    }

    /// The disk is full for a while.
    pub fn fill(&mut self) {
        let left = self.random.usize(..1_500);
        self.disk.set_room(Some(self.disk.used() + left));
        for _ in 0..self.random.usize(1..6) {
            match self.random.u8(..4) {
                0 => self.cover(),
                _ => self.append(),
            }
            self.check();
        }
        self.disk.set_room(None);
    }

    /// The operator wants other limits.
    pub fn limit(&mut self) {
        let random = &mut self.random;
        self.limits.cache_bytes = random.choice([0, 3_000, 20_000, 1 << 20]).unwrap();
        // Never below what there is, which stays.
        let spool = random.u64(50_000..200_000).max(self.log.spool_bytes());
        self.limits.spool_bytes = self.limits.spool_bytes.map(|_| spool);
        self.log.set_limits(self.limits);
        assert_eq!(self.log.limits(), self.limits);
    }

    /// The disk cannot make something durable. Nothing may be promised after that.
    pub fn fail_sync(&mut self) {
        self.disk.refuse_sync(true);
        for _ in 0..self.random.usize(..4) {
            self.append();
        }
        if self.disk.refuses_sync() && self.log.sync().is_ok() {
            // There was nothing to make durable.
            self.disk.refuse_sync(false);
            return;
        }
        // Every later call tells the first error, which is what somebody can act on.
        let first = self.log.poisoned();
        assert!(first.as_ref().is_some_and(|why| why.starts_with("cannot ")));
        let poisoned =
            |result| matches!(result, Err(LogError::Poisoned(why)) if Some(&why) == first.as_ref());
        assert!(poisoned(self.log.sync().map(drop)));
        assert!(poisoned(self.log.cut()));
        assert!(poisoned(self.log.cover(Lsn::from(u64::MAX))));
        assert!(poisoned(self.log.append(Bytes::from_static(b"d"))));
        assert!(u64::from(self.log.durable()) <= self.received());
        self.durable = u64::from(self.log.durable());
        if self.random.bool() {
            // A new process finds what the system has, and may take none of it for durable
            // that is not.
            self.restart(false);
            for _ in 0..self.random.usize(..4) {
                self.append();
            }
            self.sync();
        }
        self.restart(true);
    }

    /// The machine stops in the middle of something.
    pub fn stop(&mut self) {
        self.disk.stop_after(self.random.u64(..12));
        while !self.disk.has_stopped() {
            match self.random.u8(..10) {
                0 => {
                    drop(self.log.cut());
                    self.drop_open();
                }
                1..4 => {
                    if let Ok(durable) = self.log.sync() {
                        self.durable = durable.into();
                    }
                }
                4 => {
                    self.confirmed = self.random.u64(self.confirmed..=self.received());
                    drop(self.log.retain(Lsn::from(self.confirmed)));
                }
                5 => self.cover(),
                _ => self.append(),
            }
        }
        self.restart(true);
    }

    /// What must hold at all times.
    pub fn check(&self) {
        assert!(self.log.cache_bytes() <= self.limits.cache_bytes);
        if let Some(limit) = self.limits.spool_bytes {
            assert!(self.log.spool_bytes() <= limit);
        }
        assert_eq!(self.log.spool_bytes(), self.disk.segment_bytes() as u64);
        assert_eq!(u64::from(self.log.received()), self.received());
        assert_eq!(self.log.open_unit(), self.model.open.is_some());
    }

    pub fn cut(&mut self) {
        self.log.cut().unwrap();
        self.drop_open();
    }

    fn drop_open(&mut self) {
        self.step += 1;
        self.model.open = None;
        self.to_come.clear();
        self.model.session = true;
    }

    pub fn sync(&mut self) {
        let durable = u64::from(self.log.sync().unwrap());
        assert_eq!(durable, self.received(), "a sync makes all durable");
        self.durable = durable;
    }

    /// The highest that any follower would confirm: no more than what is received.
    pub fn retain(&mut self) {
        let confirmed = self.random.u64(self.confirmed..=self.received());
        self.confirmed = confirmed;
        let before = self.log.spool_bytes();
        let freed = self.log.retain(Lsn::from(confirmed)).unwrap();
        assert_eq!(self.log.spool_bytes(), before - freed);
        assert!(u64::from(self.log.oldest()) <= confirmed);
    }

    pub fn random_position(&mut self) -> u64 {
        match self.random.choice(&self.model.units) {
            Some(unit) => self
                .random
                .choice([unit.key, unit.key + 1, unit.end, unit.end - 1])
                .unwrap(),
            None => START,
        }
    }

    /// A new reader somewhere. What is refused must be gone.
    pub fn follow(&mut self) {
        let from = self.random_position().max(START) + self.random.u64(..10) / 9 * 500;
        let oldest = u64::from(self.log.oldest());
        match self.log.reader(Lsn::from(from)) {
            Ok(mut reader) => {
                let off = reader
                    .behind()
                    .abs_diff(self.log.bytes_from(Lsn::from(from)));
                // A segment ends with the frame that fills it.
                let most = self.limits.segment_bytes + self.sizes.long_bytes as u64;
                assert!(off <= most, "{off} bytes off from {from}");
                let limit = match self.random.u8(..4) {
                    0 => Some(self.random_position() + self.random.u64(..50)),
                    _ => None,
                };
                if let Some(limit) = limit {
                    reader.stop_before(Lsn::from(limit));
                }
                self.followers.push(Follower {
                    reader,
                    from,
                    limit,
                    got: Vec::new(),
                    expected: Expected::default(),
                    as_of: 0,
                    hits: 0,
                    misses: 0,
                });
            }
            Err(LogError::Gone { .. }) => assert!(from < oldest, "{from} is gone before {oldest}"),
            Err(error) => panic!("{error}"),
        }
        if self.followers.len() > 6 {
            let victim = self.random.usize(..self.followers.len());
            self.followers.swap_remove(victim);
        }
    }

    /// Some reads of all readers.
    pub fn read(&mut self) {
        let mut followers = std::mem::take(&mut self.followers);
        followers.retain_mut(|follower| {
            let reads = self.random.usize(..6);
            (0..reads).all(|_| self.step(follower))
        });
        self.followers = followers;
    }

    /// One read. False if the reader is of no more use.
    fn step(&mut self, follower: &mut Follower) -> bool {
        let max_bytes = self.random.usize(1..3000);
        if follower.as_of != self.step {
            follower.expected = self.model.expected(follower.from);
            follower.as_of = self.step;
        }
        let expected = &follower.expected;
        let read = follower.reader.read(max_bytes);
        let whole = |end: &&(usize, u64)| end.0 <= follower.got.len();
        let known = expected.ends.iter().rev().find(whole);
        let within = known.map_or(0, |end| end.0) != follower.got.len();
        match read {
            Ok(Read::Frames {
                pieces,
                hit_bytes,
                miss_bytes,
            }) => {
                follower.hits += hit_bytes;
                follower.misses += miss_bytes;
                follower.take(&pieces, max_bytes);
                true
            }
            Ok(Read::Nothing { covered }) => {
                assert_eq!(
                    follower.got.len(),
                    expected.bytes.len(),
                    "something is missing"
                );
                assert_eq!(follower.reader.behind(), 0);
                let counted = follower.hits + follower.misses;
                if !within || self.model.open.is_none() {
                    assert_eq!(u64::from(covered), self.received().max(follower.from));
                }
                let open = within && self.model.open.is_some();
                assert!(open || counted + expected.schema_bytes == expected.bytes.len() as u64);
                true
            }
            Ok(Read::Limit) => {
                let limit = follower.limit.unwrap();
                let units = self.model.units.iter().chain(&self.model.open);
                let mut wanted = units.filter(|unit| unit.key >= follower.from);
                assert!(wanted.any(|unit| unit.key >= limit));
                let below = |unit: &&Unit| unit.key >= follower.from && unit.key < limit;
                let last = self.model.units.iter().rfind(below);
                let end = known.map(|end| end.1);
                assert_eq!(end, last.map(|unit| unit.end));
                true
            }
            Ok(Read::Cut) => {
                // Only who has a part of what is no longer there.
                assert!(follower.reader.within_unit());
                false
            }
            Err(LogError::Gone { .. }) => {
                let sent = u64::from(follower.reader.sent());
                assert!(sent < u64::from(self.log.oldest()));
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Stops the process or the machine, and opens the log again.
    pub fn restart(&mut self, crash: bool) -> Recovered {
        self.followers.clear();
        if !crash && self.log.poisoned().is_none() && self.random.bool() {
            // An orderly end.
            self.sync();
        }
        self.disk = match crash {
            true => self.disk.after_crash(&mut self.random),
            false => self.disk.after_kill(),
        };
        self.disk.set_room(None);
        if std::env::var_os("SHOW").is_some() {
            eprintln!(
                "{crash} {:?} open {} durable {} received {}",
                self.disk
                    .segments()
                    .iter()
                    .map(|n| (n.clone(), self.disk.length(n)))
                    .collect::<Vec<_>>(),
                self.model.open.is_some(),
                self.durable,
                self.received()
            );
        }
        if crash && self.random.bool() {
            // And stops once more while the log is opened.
            self.disk.stop_after(self.random.u64(..6));
            let opened = Log::open(self.disk.clone(), self.limits);
            assert!(opened.is_ok() || self.disk.has_stopped());
            if let Ok((_, recovered)) = opened {
                assert!(u64::from(recovered.durable) >= self.durable);
                self.durable = recovered.durable.into();
            }
            self.disk = self.disk.after_crash(&mut self.random);
        }
        let (log, recovered) = Log::open(self.disk.clone(), self.limits).unwrap();
        self.log = Arc::new(log);
        self.drop_open();
        let durable = u64::from(recovered.durable);
        assert_eq!(recovered.durable, self.log.durable());
        assert_eq!(recovered.durable, self.log.received());
        assert_eq!(recovered.holes, [], "nothing was damaged");
        assert!(durable >= self.durable, "{durable} >= {}", self.durable);
        assert!(durable <= self.received());
        assert!(u64::from(self.log.oldest()) <= self.confirmed);
        // What is there is a prefix of what came.
        self.model.units.retain(|unit| unit.end <= durable);
        self.covered = durable;
        self.durable = durable;
        self.confirmed = self.confirmed.min(durable);
        recovered
    }

    /// Reads all there is, from the oldest on and from everywhere else.
    pub fn read_everything(&mut self, places: usize) {
        let mut from = vec![u64::from(self.log.oldest())];
        from.extend((0..places).map(|_| self.random_position()));
        for from in from {
            let reader = match self.log.reader(Lsn::from(from)) {
                Ok(reader) => reader,
                Err(LogError::Gone { oldest, .. }) if from < u64::from(oldest) => continue,
                Err(error) => panic!("{error}"),
            };
            let mut follower = Follower {
                reader,
                from,
                limit: None,
                got: Vec::new(),
                expected: Expected::default(),
                as_of: 0,
                hits: 0,
                misses: 0,
            };
            let all = self.model.expected(from).bytes.len();
            while follower.got.len() < all {
                assert!(self.step(&mut follower));
            }
        }
    }
}
