//! Live invariants: readers check in repeatable-read snapshots what must hold at every moment,
//! while the primary changes the tables and the standby replays.
//!
//! There are four tables of one shape ([`tables`]). On the primary, writers ([`Writers`]) keep
//! what the readers ([`Invariants`]) expect: transfers keep a sum, a queue keeps its length,
//! versions keep key and row together. Meanwhile line pointers are freed and used again. Each
//! check reads a whole table by a sequential, an index, a bitmap and an index-only scan. All
//! results must agree with each other, and with what the same snapshot saw before, however
//! long it is held. A check whose plan is not the intended one is void, and counted as void.
//!
//! Queries that a standby cancels because of a conflict with replay are counted; they are no
//! violations. Any other error of a check is a violation.

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
use reader::{Reader, SharedReport};

/// Most violations that are kept. All are counted.
pub const MOST_KEPT: usize = 100;

/// How many readers of which kind.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Sessions that check once in each snapshot.
    pub short_readers: u32,
    /// Sessions that hold each snapshot for many rounds of checks.
    pub long_readers: u32,
    /// Rounds of checks in a long-held snapshot.
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

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub table: &'static str,
    pub scan: Scan,
    /// Round of checks in the snapshot, from 1.
    pub round: u32,
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
    /// Checks by kind of scan.
    pub checks: BTreeMap<Scan, u64>,
    /// Checks without a result, since the plan was not the intended one.
    pub void: u64,
    /// Snapshots in which all rounds were completed, short and long ones.
    pub snapshots: u64,
    /// The long-held ones of these.
    pub long_snapshots: u64,
    /// The long-held ones of these during which the replay position moved.
    pub long_over_replay: u64,
    /// Rows that index-only scans took from the index alone.
    pub rows_without_heap: u64,
    /// Snapshots that the server ended because of a conflict with replay.
    pub conflicts: u64,
    /// Connections lost for another reason, e.g. in a crash.
    pub lost: u64,
    /// The first violations, at most [`MOST_KEPT`].
    pub violations: Vec<Violation>,
    /// The number of all violations.
    pub violation_count: u64,
}

impl Report {
    /// The number of checks, of all kinds of scan.
    pub fn all_checks(&self) -> u64 {
        self.checks.values().sum()
    }
}

impl fmt::Display for Report {
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

/// Running readers. Dropping the value ends them.
#[derive(Debug)]
pub struct Invariants {
    shared: Arc<SharedReport>,
    threads: Vec<JoinHandle<()>>,
}

impl Invariants {
    /// Starts readers on a server that has the tables: a standby, or a primary.
    pub fn start(server: &Server, options: &Options) -> Result<Self> {
        let shared = Arc::new(SharedReport::default());
        let mut invariants = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        let rounds = std::iter::repeat_n(1, options.short_readers as usize).chain(
            std::iter::repeat_n(options.rounds.max(2), options.long_readers as usize),
        );
        for rounds in rounds {
            // Connect here, so that a server that cannot be reached is an error at once.
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

    /// Waits until `enough` is true of the report, at most `patience`; false if it was not.
    pub fn await_report(
        &self,
        patience: Duration,
        mut enough: impl FnMut(&Report) -> bool,
    ) -> bool {
        let started = std::time::Instant::now();
        while !enough(&locked(&self.shared.report)) {
            if started.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// Ends the readers and returns what they have found.
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
