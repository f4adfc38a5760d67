//! How far a copy is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the sessions count together. Bytes are the tables' sizes on the source's disk: what goes
/// over the network is counted apart.
#[derive(Debug, Default)]
pub struct Counters {
    pub bytes_total: u64,
    pub tables_total: u64,
    done: AtomicU64,
    sent: AtomicU64,
    rows: AtomicU64,
    tables: AtomicU64,
}

/// How far it is at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moment {
    pub bytes_total: u64,
    pub bytes_done: u64,
    /// Bytes that went from source to target.
    pub bytes_sent: u64,
    pub rows: u64,
    pub tables_total: u64,
    pub tables_done: u64,
    pub elapsed: Duration,
}

impl Moment {
    /// Bytes sent a second.
    pub fn bytes_per_s(&self) -> u64 {
        let seconds = self.elapsed.as_secs_f64();
        match seconds > 0.0 {
            true => (self.bytes_sent as f64 / seconds) as u64,
            false => 0,
        }
    }

    /// Time that the rest will take at the speed so far; None before there is one.
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.bytes_total.saturating_sub(self.bytes_done);
        match self.bytes_done {
            0 => None,
            done => {
                let seconds = self.elapsed.as_secs_f64() * left as f64 / done as f64;
                Duration::try_from_secs_f64(seconds).ok()
            }
        }
    }
}

impl Counters {
    pub fn new(tables_total: u64, bytes_total: u64) -> Self {
        Self {
            bytes_total,
            tables_total,
            ..Self::default()
        }
    }

    /// Bytes went from source to target; `estimate` of the tables' bytes on disk went with them.
    pub fn sent(&self, bytes: u64, estimate: u64) {
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        self.done.fetch_add(estimate, Ordering::Relaxed);
    }

    pub fn rows(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    pub fn tables(&self, tables: u64) {
        self.tables.fetch_add(tables, Ordering::Relaxed);
    }

    pub fn at(&self, elapsed: Duration) -> Moment {
        Moment {
            bytes_total: self.bytes_total,
            bytes_done: self.done.load(Ordering::Relaxed).min(self.bytes_total),
            bytes_sent: self.sent.load(Ordering::Relaxed),
            rows: self.rows.load(Ordering::Relaxed),
            tables_total: self.tables_total,
            tables_done: self.tables.load(Ordering::Relaxed),
            elapsed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_is_done() {
        let counters = Counters::new(2, 1_000);
        assert_eq!(counters.at(Duration::ZERO).remaining(), None);
        assert_eq!(counters.at(Duration::ZERO).bytes_per_s(), 0);
        counters.sent(500, 250);
        let at = counters.at(Duration::from_secs(10));
        assert_eq!(at.bytes_per_s(), 50);
        assert_eq!(at.remaining(), Some(Duration::from_secs(30)));
        counters.sent(500, 900);
        let at = counters.at(Duration::from_secs(20));
        assert_eq!(
            (at.bytes_done, at.remaining()),
            (1_000, Some(Duration::ZERO))
        );
    }
}
