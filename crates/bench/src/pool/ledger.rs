//! What writers have committed when, and how old a read was by that.
//!
//! Each writer has a row with the number of its last commit. A read is as old as the oldest commit that it
//! did not see, counted from when that commit was acknowledged. So no read is called older than it was.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One row for each writer, and what fills WAL.
pub const TABLES: &str = "CREATE TABLE ledger (writer int PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 10); \
     CREATE TABLE ballast (t text)";

/// Bytes that each commit adds to WAL beside its row.
const BALLAST: u32 = 1500;

/// When each commit of each writer was acknowledged.
#[derive(Debug)]
pub struct Ledger {
    began: Instant,
    acknowledged: Vec<Mutex<Vec<Duration>>>,
}

/// A read on a new session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// When the session was asked for.
    pub begun: Duration,
    /// When the query was sent.
    pub asked: Duration,
    /// The number of each writer's last commit that it saw.
    pub seen: Vec<u64>,
    /// A standby answered.
    pub is_standby: bool,
    /// The server's port.
    pub port: u16,
}

impl Ledger {
    pub fn new(writers: usize) -> Self {
        Self {
            began: Instant::now(),
            acknowledged: (0..writers).map(|_| Mutex::default()).collect(),
        }
    }

    pub fn writers(&self) -> usize {
        self.acknowledged.len()
    }

    /// Time since the ledger was begun.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The next commit of a writer: its number, and its SQL.
    pub fn next(&self, writer: usize) -> (u64, String) {
        let number = self.commits(writer) + 1;
        (number, commit(writer, number))
    }

    fn commits(&self, writer: usize) -> u64 {
        self.of(writer, |times| times.len() as u64).unwrap_or(0)
    }

    /// The server has acknowledged the writer's next commit.
    pub fn acknowledge(&self, writer: usize) {
        let now = self.now();
        self.of(writer, |times| times.push(now));
    }

    fn of<T>(&self, writer: usize, look: impl FnOnce(&mut Vec<Duration>) -> T) -> Option<T> {
        let times = self.acknowledged.get(writer)?;
        Some(look(
            &mut times.lock().unwrap_or_else(PoisonError::into_inner),
        ))
    }

    /// All commits of all writers.
    pub fn total(&self) -> u64 {
        (0..self.writers()).map(|writer| self.commits(writer)).sum()
    }

    /// How old what was seen is at a moment: the age of the oldest commit that was not seen.
    pub fn age(&self, seen: &[u64], at: Duration) -> Duration {
        let unseen = |(writer, &number): (usize, &u64)| {
            let place = usize::try_from(number).ok()?;
            self.of(writer, |times| times.get(place).copied())?
        };
        let ages = seen.iter().enumerate().filter_map(unseen);
        ages.map(|acknowledged| at.saturating_sub(acknowledged))
            .max()
            .unwrap_or_default()
    }
}

/// Creates the row of each writer.
pub fn rows(writers: usize) -> String {
    format!("INSERT INTO ledger SELECT i, 0 FROM generate_series(0, {writers} - 1) i")
}

/// A commit of a writer with this number.
pub fn commit(writer: usize, number: u64) -> String {
    format!(
        "UPDATE ledger SET n = {number} WHERE writer = {writer}; \
         INSERT INTO ballast VALUES (repeat('x', {BALLAST}))"
    )
}

/// The numbers of all writers in order, whether a standby answers, and its port.
pub const LOOK: &str = "SELECT string_agg(n::text, ' ' ORDER BY writer), pg_is_in_recovery()::text, \
     current_setting('port') FROM ledger";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_as_old_as_the_oldest_commit_that_it_missed() {
        let ledger = Ledger::new(2);
        let ms = Duration::from_millis;
        ledger.of(0, |times| times.extend([ms(10), ms(50)]));
        ledger.of(1, |times| times.extend([ms(20), ms(30)]));
        assert_eq!(ledger.age(&[2, 2], ms(100)), ms(0), "all was seen");
        assert_eq!(ledger.age(&[1, 2], ms(100)), ms(50));
        assert_eq!(ledger.age(&[1, 1], ms(100)), ms(70));
        assert_eq!(ledger.age(&[0, 1], ms(100)), ms(90));
        assert_eq!(ledger.age(&[1, 2], ms(40)), ms(0), "it was committed later");
        assert_eq!(ledger.age(&[9, 9], ms(100)), ms(0), "not acknowledged yet");
        assert_eq!(ledger.next(1).0, 3);
        assert_eq!(ledger.total(), 4);
    }
}
