//! One run of the spool's simulation: source, process and target, driven by chance, and what goes wrong.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use lockstep_apply::error::ApplyError;
use lockstep_apply::fault::Fault;
use lockstep_apply::spool::host::{SpoolHost, TERMS};
use lockstep_apply::{Control, Spool, SpoolConfig};
use lockstep_intake::driver::{Driver, Step};
use lockstep_simulation::disk::Disk;
use lockstep_simulation::primary::Sizes;

use super::counts::Counts;
use super::source::{Reached, SharedSource, Source, WISH};
use super::target::Target;

/// Rounds in which all must catch up once nothing goes wrong any more, or a source must be refused.
const QUIET: usize = 2_000;

/// Most steps of a driver that stops or loses its source: rests are cut short.
const STOPPING: usize = 10_000;

/// Sizes of which a spool of some 30 kB holds several.
const SMALL: Sizes = Sizes {
    most_changes: 10,
    most_bytes: 500,
    long_one_in: 100,
    long_bytes: 1_500,
};

/// Sizes of which a spool of some 5 kB holds several: it has short segments.
const TIGHT: Sizes = Sizes {
    most_changes: 4,
    most_bytes: 60,
    long_one_in: 100,
    long_bytes: 200,
};

/// Longer than a chunk, a segment, what is gathered at once.
const LARGE: Sizes = Sizes {
    most_changes: 6,
    most_bytes: 30_000,
    long_one_in: 20,
    long_bytes: 700_000,
};

/// What a run plants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    In(Fault),
    /// The log does not count the headers of its records into its limit.
    HeadersNotCounted,
}

/// What becomes of the source after the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// The source's files are restored from older ones; it writes past the log's end, or nothing.
    Restored {
        writes_on: bool,
    },
    /// A standby takes over that did not have everything.
    Forked,
    SlotMoved,
    SlotLost,
    OtherCluster,
}

/// The process that follows.
struct Process {
    spool: Spool<Disk>,
    driver: Driver<SpoolHost<Disk, Reached>>,
    control: Control,
    /// The target has had a session.
    has_read: bool,
}

/// See the module.
pub struct World {
    random: fastrand::Rng,
    source: SharedSource,
    target: Target,
    process: Process,
    fault: Option<Fault>,
    large: bool,
    /// The disk may fail: something was arranged, or has failed since the process began.
    trouble: bool,
    show: bool,
}

impl World {
    pub fn new(seed: u64, plant: Option<Plant>) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let large = random.u8(..15) == 0;
        let (sizes, limit) = match random.u8(..3) {
            _ if large => (LARGE, 20_000_000),
            // More than twice the longest transaction.
            0 => (TIGHT, random.u64(4_000..8_000)),
            _ => (SMALL, random.u64(20_000..60_000)),
        };
        let config = SpoolConfig {
            folder: PathBuf::from("/spool"),
            limit,
        };
        let disk = Disk::new(plant == Some(Plant::HeadersNotCounted));
        let source = Source::new(sizes, disk, config, random.fork());
        let source = Rc::new(RefCell::new(source));
        let fault = match plant {
            Some(Plant::In(fault)) => Some(fault),
            _ => None,
        };
        Self {
            random,
            target: Target::new(source.clone(), fault),
            process: begin(&source, fault).unwrap(),
            source,
            fault,
            large,
            trouble: false,
            show: std::env::var_os("SHOW").is_some(),
        }
    }

    /// A whole run.
    pub fn run(mut self) -> Counts {
        let steps = match self.large {
            true => self.random.usize(40..100),
            false => self.random.usize(100..500),
        };
        for step in 0..steps {
            self.step(step);
            self.after_step();
        }
        self.quiet();
        for _ in 0..self.random.usize(..30) {
            self.step(steps);
            self.after_step();
        }
        self.change();
        let source = self.source.borrow();
        source.counts.clone()
    }

    fn count(&self, name: &'static str, number: u64) {
        self.source.borrow_mut().counts.add(name, number);
    }

    fn received(&self) -> u64 {
        let log = self.process.spool.log();
        log.map_or(0, |log| log.received().into())
    }

    fn say(&self, what: &str) {
        if !self.show {
            return;
        }
        let source = self.source.borrow();
        let log = self.process.spool.log();
        let log = log.map(|log| (log.oldest(), log.received(), log.durable(), log.open_unit()));
        eprintln!(
            "{what}: {} committed to {}, timeline {}, confirmed {}; log {log:?}; target at {}, on disk {}",
            source.primary.units.len(),
            source.primary.end,
            source.timeline,
            source.confirmed(),
            u64::from(self.target.committed),
            u64::from(self.target.flushed),
        );
    }

    fn step(&mut self, step: usize) {
        let chosen = self.random.u8(..100);
        self.say(&format!("{step} ({chosen})"));
        match chosen {
            0..13 => {
                let source = &mut *self.source.borrow_mut();
                for _ in 0..self.random.usize(1..6) {
                    source.primary.commit(&mut source.random);
                }
            }
            14..48 => {
                let steps = self.random.usize(1..25);
                self.drive(steps);
            }
            48..74 => {
                let messages = self.random.usize(1..40);
                let patient = self.random.bool();
                self.read(messages, patient);
            }
            74..80 => self.source.borrow_mut().deliver(),
            13 | 80 => self.target.crash(),
            81 => self.target.close(),
            82 | 83 => self.target.is_away ^= true,
            84 => self.target.flushed = self.target.committed,
            85 | 86 => self.source.borrow_mut().primary.persist(),
            87 | 88 => self.source.borrow_mut().lose(),
            89 => {
                let mut source = self.source.borrow_mut();
                source.lose();
                source.primary.restart();
            }
            90 => self.source.borrow_mut().is_away ^= true,
            91 => self.promote(),
            92 => self.restart(false),
            93 => self.restart(true),
            94 => self.stop(),
            95 if self.random.bool() => {
                // The target may have what the spool loses.
                let steps = self.random.usize(1..25);
                self.drive(steps);
                self.read(40, false);
                self.restart(true);
            }
            95 => {
                // What a process that was killed has left is not yet on the disk.
                self.restart(false);
                self.restart(true);
            }
            96..99 => self.disk_fault(),
            _ => self.heal(),
        }
    }

    fn after_step(&mut self) {
        if self.source.borrow().disk.has_stopped() {
            self.restart(true);
        }
        if self.random.u8(..8) == 0 {
            // Whoever has filled the disk makes room.
            self.source.borrow().disk.set_room(None);
        }
        // A process that has not had the target yet looks there.
        if !self.process.has_read {
            if let Some(error) = self.process.spool.failure() {
                self.ended(&error);
            }
        }
        let stats = self.process.control.stats().spool.unwrap_or_default();
        self.count("steps while full", u64::from(stats.full.is_some()));
        if let Some(log) = self.process.spool.log() {
            let (used, limit) = (log.spool_bytes(), self.source.borrow().config.limit);
            assert!(used <= limit, "the spool has {used} bytes of {limit}");
            assert!(log.durable() <= log.received());
        }
    }

    fn drive(&mut self, steps: usize) {
        for _ in 0..steps {
            if self.process.driver.step() == Step::Rested {
                return;
            }
        }
    }

    /// The target reads.
    fn read(&mut self, messages: usize, patient: bool) {
        let read = self.target.step(messages, patient, &self.process.spool);
        self.process.has_read |= read.is_ok() && !self.target.is_away;
        if let Err(error) = read {
            self.target.close();
            match error {
                ApplyError::Damaged(words) => assert!(self.trouble, "{words}"),
                error => self.ended(&error),
            }
        }
    }

    /// The process ends with an error, and is started again.
    fn ended(&mut self, error: &ApplyError) {
        assert!(self.trouble, "{error}");
        self.count("disk errors", 1);
        self.restart(false);
    }

    /// A standby takes over that has all that was received, and knows of the newest timeline.
    fn promote(&mut self) {
        self.cut_off();
        let at = self.received().max(self.target.committed.into());
        let source = &mut *self.source.borrow_mut();
        let newest = source.history.last().map_or(0, |last| last.at.into());
        let at = at.max(newest);
        source.is_away = false;
        source.promote(at.max(self.random.u64(at..=source.primary.end.max(at))));
        source.counts.add("forks taken over", 1);
        if self.random.u8(..4) == 0 {
            // Just when the spool is to note it.
            source.disk.set_room(Some(0));
            self.trouble = true;
            self.target.close();
        }
    }

    /// The source is gone, and the spool has noticed.
    fn cut_off(&mut self) {
        self.source.borrow_mut().is_away = true;
        for _ in 0..STOPPING {
            self.process.driver.step();
            if self.source.borrow().open == 0 {
                return;
            }
        }
        panic!("it does not notice that the source is gone");
    }

    /// The process ends in order, if the source is there.
    fn stop(&mut self) {
        self.process.spool.stop();
        for _ in 0..STOPPING {
            if self.process.driver.step() == Step::Stopped {
                self.target.close();
                return self.restart(false);
            }
        }
        panic!("it does not stop");
    }

    /// The process stops, or the machine, and starts again.
    fn restart(&mut self, crash: bool) {
        self.say(if crash { "crash" } else { "restart" });
        self.count(if crash { "crashes" } else { "kills" }, 1);
        self.target.close();
        let before = self.received();
        let told = self.source.borrow().told;
        let mut crash = crash;
        loop {
            {
                let source = &mut *self.source.borrow_mut();
                source.lose();
                // It may have stopped just now.
                crash |= source.disk.has_stopped();
                if crash {
                    source.disk = source.disk.after_crash(&mut source.random);
                    self.trouble = false;
                }
                if crash && self.random.u8(..4) == 0 {
                    // And stops once more while the spool is opened.
                    source.disk.stop_after(self.random.u64(..8));
                }
            }
            let begun = begin(&self.source, self.fault);
            match begun {
                // What is only noted may fail without an error.
                Ok(_) if self.source.borrow().disk.has_stopped() => {}
                Ok(process) => {
                    self.process = process;
                    if crash {
                        self.source.borrow().disk.stop_after(u64::MAX);
                    }
                    break;
                }
                Err(error) => {
                    let stopped = self.source.borrow().disk.has_stopped();
                    assert!(self.trouble || stopped, "{error}");
                    if self.random.bool() {
                        self.heal();
                    }
                }
            }
        }
        let after = self.received();
        let has = self.target.flushed.max(after.into());
        assert!(has >= told, "{told} was confirmed, {has} is there");
        self.count("lost of the log", u64::from(after < before));
    }

    fn disk_fault(&mut self) {
        self.trouble = true;
        let disk = self.source.borrow().disk.clone();
        let random = &mut self.random;
        match random.u8(..6) {
            0 => disk.refuse_sync(true),
            1 => disk.stop_after(random.u64(..60)),
            2 | 3 => disk.fail_after(Some(random.u64(..60))),
            _ => disk.set_room(Some(disk.used() + random.usize(..2_000))),
        }
    }

    fn heal(&mut self) {
        let source = self.source.borrow();
        source.disk.set_room(None);
        source.disk.refuse_sync(false);
        source.disk.fail_after(None);
        source.disk.stop_after(u64::MAX);
    }

    /// Nothing goes wrong any more: the target has all, and the source knows.
    fn quiet(&mut self) {
        self.heal();
        self.target.is_away = false;
        self.source.borrow_mut().is_away = false;
        let crash = self.random.bool();
        self.restart(crash);
        self.heal();
        self.trouble = false;
        for _ in 0..QUIET {
            self.drive(100);
            self.read(100, true);
            self.source.borrow_mut().deliver();
            let source = self.source.borrow();
            if self.target.has_all() && source.confirmed() == source.primary.end {
                return;
            }
        }
        self.show = true;
        self.say("at last");
        panic!("it does not catch up");
    }

    /// The source becomes another, or is set back: that is noticed, or goes unpunished.
    fn change(&mut self) {
        self.heal();
        self.restart(false);
        self.heal();
        self.trouble = false;
        self.target.is_away = false;
        self.cut_off();
        let change = match self.random.u8(..12) {
            0..4 => Change::Restored { writes_on: true },
            4..6 => Change::Restored { writes_on: false },
            6..8 => Change::Forked,
            8 => Change::SlotMoved,
            9 => Change::SlotLost,
            _ => Change::OtherCluster,
        };
        self.say(&format!("{change:?}"));
        let Some(name) = self.changed(change) else {
            return;
        };
        self.source.borrow_mut().is_away = false;
        self.count(name, 1);
        match name {
            "restored sources that go on" => {
                self.source.borrow_mut().left = None;
                self.quiet();
            }
            _ => self.refused(),
        }
    }

    /// Changes the source. Returns what is to come of it; None if nothing was changed, or if nobody can
    /// notice it, as where only the target has what the source has lost.
    fn changed(&mut self, change: Change) -> Option<&'static str> {
        let log = self.process.spool.log()?;
        let (oldest, received) = (u64::from(log.oldest()), u64::from(log.received()));
        if u64::from(self.target.committed) > received {
            return None;
        }
        let source = &mut *self.source.borrow_mut();
        let end = source.primary.end;
        source.leave_behind();
        match change {
            Change::OtherCluster => {
                source.system = 8;
                Some("other sources refused")
            }
            Change::SlotLost => {
                source.invalidated = true;
                Some("other sources refused")
            }
            Change::SlotMoved => {
                source
                    .primary
                    .write_past(end.max(received), &mut source.random);
                source.primary.hear(super::source::SLOT, source.primary.end);
                Some("moved slots refused")
            }
            Change::Forked if received == 0 => None,
            Change::Forked => {
                let at = self.random.u64(received.saturating_sub(2_000)..received);
                source.promote(at);
                source.primary.write_past(end, &mut source.random);
                Some("forks refused")
            }
            Change::Restored { writes_on } => {
                let back = self.random.usize(..8).min(source.primary.units.len());
                let number = source.primary.units.len() - back;
                let begin = source
                    .primary
                    .units
                    .get(number)
                    .map_or(end, |unit| unit.key);
                let is_compared = |unit: &&lockstep_simulation::primary::Unit| {
                    !unit.parts_for(WISH).is_empty() && unit.key < received
                };
                let lost = source.primary.units[number..].iter();
                let mut differs: Vec<_> = lost.filter(is_compared).map(|unit| unit.key).collect();
                source.primary.end_at(begin);
                if begin >= received {
                    return Some("restored sources that go on");
                }
                if !writes_on {
                    return Some("restored sources refused at once");
                }
                source.primary.write_past(end, &mut source.random);
                let other = source.primary.units[number..].iter();
                differs.extend(other.filter(is_compared).map(|unit| unit.key));
                match differs[..] {
                    [] => Some("restored sources that go on"),
                    _ if differs.iter().any(|key| *key >= oldest) => {
                        Some("restored sources refused by what they send")
                    }
                    _ => None,
                }
            }
        }
    }

    /// The source is refused, by this process and the next. Nothing is taken from it or confirmed to it.
    fn refused(&mut self) {
        let (received, confirmed) = (self.received(), self.source.borrow().confirmed());
        for again in [false, true] {
            if again {
                self.restart(false);
            }
            let said = (0..QUIET).find_map(|_| {
                self.drive(100);
                self.source.borrow_mut().deliver();
                assert_eq!(self.received(), received, "it took other WAL");
                let now = self.source.borrow().confirmed();
                assert_eq!(now, confirmed, "it confirmed other WAL");
                let read = self.target.step(100, true, &self.process.spool);
                read.err()
            });
            self.target.close();
            let committed = u64::from(self.target.committed);
            assert_eq!(committed, received, "what the spool has is applied before");
            match said {
                Some(ApplyError::Gap(_)) => {}
                said => panic!("it does not notice that the source has other WAL: {said:?}"),
            }
        }
    }
}

fn begin(source: &SharedSource, fault: Option<Fault>) -> Result<Process, ApplyError> {
    let (disk, config) = {
        let source = source.borrow();
        (source.disk.clone(), source.config.clone())
    };
    let spool = Spool::over(disk, &config, None)?;
    let control = Control::default();
    let host = SpoolHost::new(spool.clone(), control.clone(), Reached(source.clone()));
    let driver = Driver::new(host.with_fault(fault), TERMS);
    Ok(Process {
        spool,
        driver: driver.with_fault(fault.and_then(Fault::of_intake)),
        control,
        has_read: false,
    })
}
