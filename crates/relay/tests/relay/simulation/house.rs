//! What all groups and sessions of the relay share: its book of slots, its time and chance.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lockstep_relay::config::OnSpoolLimit;
use lockstep_relay::error::RelayError;
use lockstep_relay::fault::Fault;
use lockstep_relay::slots::SlotBook;
use lockstep_simulation::disk::Disk;
use lockstep_spool::Limits;

use super::counts::Counts;
use super::feed::Feed;

/// See the module.
pub struct House {
    /// Limits of each log.
    pub limits: Limits,
    pub on_limit: OnSpoolLimit,
    /// Disk of the slots' book. It may fail at any time once something was arranged for it.
    pub book_disk: Disk,
    pub book_fails: bool,
    pub book: SlotBook<Disk>,
    /// Slots that were dropped, and those of which a crash kept the answer.
    pub dropped: BTreeSet<String>,
    pub doubtful: BTreeSet<String>,
    pub now: Instant,
    pub batched: bool,
    pub fault: Option<Fault>,
    /// Most messages that are stored together.
    pub gathers: usize,
    pub random: fastrand::Rng,
    pub counts: Counts,
}

impl House {
    pub fn new(
        limits: Limits,
        batched: bool,
        fault: Option<Fault>,
        mut random: fastrand::Rng,
    ) -> Self {
        let book_disk = Disk::default();
        Self {
            limits,
            on_limit: match random.u8(..6) {
                0 => OnSpoolLimit::DropSlowest,
                _ => OnSpoolLimit::Wait,
            },
            book: read_book(&book_disk),
            book_disk,
            book_fails: false,
            dropped: BTreeSet::new(),
            doubtful: BTreeSet::new(),
            // Only differences count.
            now: Instant::now(),
            batched,
            fault,
            gathers: random.choice([1, 5, 20]).unwrap(),
            random,
            counts: Counts::default(),
        }
    }

    /// Some of this time passes.
    pub fn pass(&mut self, most: Duration) {
        let part = self.random.u32(0..=8);
        self.now += most * part / 8;
    }

    /// An error of the book or of this group's log may only be one that was arranged.
    pub fn arranged(&self, error: &RelayError, feed: Option<&Feed>) {
        match (error, feed) {
            (RelayError::Log { source, .. }, Some(feed)) => feed.arranged(source),
            (RelayError::File { .. }, _) => assert!(self.book_fails, "{error}"),
            _ => panic!("{error}"),
        }
    }

    /// The process or the machine stopped, and starts again.
    pub fn reopen(&mut self, crash: bool) {
        self.book_disk = match crash {
            true => self.book_disk.after_crash(&mut self.random),
            false => self.book_disk.after_kill(),
        };
        self.book = read_book(&self.book_disk);
    }
}

fn read_book(disk: &Disk) -> SlotBook<Disk> {
    SlotBook::read(disk.clone(), PathBuf::from("slots.json"), 0).unwrap()
}
