//! Commits that nobody has waited for until they were on disk, and which of them are by now. No I/O.
//!
//! The server's WAL writer flushes them soon after. Where the target's WAL ends after a commit is asked right
//! then, so whatever flushes WAL up to there flushes that commit and all before it.

use std::collections::VecDeque;
use std::time::Instant;

use lockstep_wire::Lsn;

/// Asks where the server's WAL ends, and how far it is on disk.
pub const ASK: &str =
    "SELECT pg_catalog.pg_current_wal_insert_lsn(), pg_catalog.pg_current_wal_flush_lsn()";

/// Commits up to a position of the source that are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flushed {
    pub end: Lsn,
    /// When the newest of them was made.
    pub made: Instant,
}

impl Flushed {
    /// The commits up to one that was made just now.
    pub fn now(end: Lsn) -> Self {
        let made = Instant::now();
        Self { end, made }
    }
}

/// Commits of a writer that it does not know to be on disk.
#[derive(Debug, Default)]
pub struct Unflushed(VecDeque<(Lsn, Flushed)>);

impl Unflushed {
    /// A commit is made, after which the target's WAL ended at `written`, and was on disk up to `on_disk`.
    /// Returns the newest commit that is on disk, if that is news.
    pub fn made(&mut self, commit: Flushed, written: Lsn, on_disk: Lsn) -> Option<Flushed> {
        self.0.push_back((written, commit));
        let mut newest = None;
        while let Some((_, commit)) = (self.0.front()).filter(|(written, _)| *written <= on_disk) {
            newest = Some(*commit);
            self.0.pop_front();
        }
        newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_on_disk_once_the_wal_is_that_has_it() {
        let made = Instant::now();
        let mut unflushed = Unflushed::default();
        let mut make = |end: u64, written: u64, on_disk: u64| {
            let end = Lsn::from(end);
            let commit = Flushed { end, made };
            let newest = unflushed.made(commit, Lsn::from(written), Lsn::from(on_disk));
            newest.map(|newest| u64::from(newest.end))
        };
        assert_eq!(make(1, 100, 99), None);
        assert_eq!(make(2, 200, 99), None);
        assert_eq!(make(3, 300, 200), Some(2));
        assert_eq!(make(4, 400, 299), None, "two are known already");
        assert_eq!(make(5, 500, 500), Some(5));
        assert_eq!(make(6, 600, 500), None);
    }
}
