//! Live invariants: readers that check, in repeatable-read snapshots, what must hold at
//! every moment, while the primary changes it and the standby replays.
//!
//! Four tables of one shape ([`tables`]). Writers ([`Writers`]) keep on the primary what
//! the readers ([`Invariants`]) expect: transfers keep a sum, a queue keeps its length,
//! versions keep key and row together, and line pointers are freed and used again all the
//! time. Each check reads a table whole, by a sequential, an index, a bitmap and an
//! index-only scan; all must agree with each other and with what the same snapshot saw
//! before, however long it is held. A check whose plan is not the intended one is void and
//! counted as such.
//!
//! Queries that a standby cancels because of a conflict with replay are counted, and are
//! no violations. Any other error of a check is one.

mod check;
mod reader;
mod tables;
mod writers;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use check::{Scan, What};
pub use tables::{KEYS, ROWS, SCHEMA, TABLES, Table, prepare};
pub use writers::{Writers, Written};

use crate::Result;
use lockstep_lab::server::{SUPERUSER, Server};
use reader::{Reader, Shared};

/// Most violations that are kept; all are counted.
pub const MOST_KEPT: usize = 100;

/// Who reads.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Sessions that check once in each snapshot.
    pub short_readers: u32,
    /// Sessions that hold each snapshot for many rounds of checks.
    pub long_readers: u32,
    /// Rounds in a long-held snapshot.
    pub rounds: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            short_readers: 2,
            long_readers: 2,
            rounds: 30,
        }
    }
}

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The table that was read.
    pub table: &'static str,
    /// How it was read.
    pub scan: Scan,
    /// Round of the snapshot, from 1.
    pub round: u32,
    /// What was seen.
    pub what: What,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "table {}, {} scan, round {} of its snapshot: {}",
            self.table, self.scan, self.round, self.what
        )
    }
}

/// What the readers have found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Tables read and judged, each scan by itself.
    pub checks: BTreeMap<Scan, u64>,
    /// Checks that say nothing, as the plan was another.
    pub void: u64,
    /// Snapshots that ended as meant, short and long.
    pub snapshots: u64,
    /// Long-held ones among them.
    pub long_snapshots: u64,
    /// Long-held ones during which replay went on.
    pub long_over_replay: u64,
    /// Rows that index-only scans took from the index alone.
    pub rows_without_heap: u64,
    /// Snapshots ended by the server because replay was in their way.
    pub conflicts: u64,
    /// Connections lost otherwise, e.g. in a crash.
    pub lost: u64,
    /// The first violations.
    pub violations: Vec<Violation>,
    /// All violations.
    pub violation_count: u64,
}

impl Report {
    /// Checks of every kind.
    pub fn all_checks(&self) -> u64 {
        self.checks.values().sum()
    }
}

impl fmt::Display for Report {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} checks in {} snapshots ({} long, {} of them while replay went on), {} void, {} conflicts, {} lost connections, {} violations",
            self.all_checks(),
            self.snapshots,
            self.long_snapshots,
            self.long_over_replay,
            self.void,
            self.conflicts,
            self.lost,
            self.violation_count
        )
    }
}

/// Readers at work. Dropping them ends them.
#[derive(Debug)]
pub struct Invariants {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Invariants {
    /// Starts readers on a server that has the tables: a standby, or a primary.
    pub fn start(server: &Server, options: &Options) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut invariants = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        let rounds = std::iter::repeat_n(1, options.short_readers as usize).chain(
            std::iter::repeat_n(options.rounds.max(2), options.long_readers as usize),
        );
        for rounds in rounds {
            // Connects here once, so that a server that cannot be reached is an error now.
            let config = server.config(SUPERUSER, "lockstep lab invariants");
            let client = server.connect(SUPERUSER, "lockstep lab invariants")?;
            let reader = Reader::new(config, client, Arc::clone(&shared), rounds);
            invariants
                .threads
                .push(std::thread::spawn(move || reader.run()));
        }
        Ok(invariants)
    }

    /// What has been found so far.
    pub fn report(&self) -> Report {
        locked(&self.shared.report).clone()
    }

    /// Waits until `enough`, for `patience` at most; false if that was not enough.
    pub fn await_report(&self, patience: Duration, enough: impl Fn(&Report) -> bool) -> bool {
        let started = std::time::Instant::now();
        while !enough(&locked(&self.shared.report)) {
            if started.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// Ends the readers and gives what they have found.
    pub fn finish(mut self) -> Report {
        self.end();
        self.report()
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Invariants {
    fn drop(&mut self) {
        self.end();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
