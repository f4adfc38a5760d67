//! What the source is told: how far its changes are applied, and how far durable. No I/O.
//!
//! Applied means committed on the target, flushed means committed there and on disk. The source
//! keeps everything after the flushed position, and lets commits return by these two
//! (`synchronous_commit = remote_apply`, `on`). Applied may be ahead of flushed, as PostgreSQL's own
//! apply worker tells it: `remote_apply` promises that a commit is seen on the target, not that it is
//! on disk there. A transaction that changes nothing here, and WAL that is not replicated at all,
//! count as applied once everything before them is; so the position moves to the end of such WAL only
//! while nothing is outstanding. They count as flushed once the target's origin was moved there, and
//! that is on disk: the source confirms nothing that the target does not know of
//! ([`super::continuity`]).

use lockstep_wire::Lsn;
use lockstep_wire::stream::{Status, Timestamp};

/// Where the target stands if the highest of its origins stands at `highest` and the replica's state
/// keeps `kept`. From 16 on a transaction that fails moves its origin too, as far as
/// `pg_replication_origin_xact_setup` had said: the state's position does not.
pub fn settled(highest: Lsn, kept: Option<Lsn>) -> Lsn {
    kept.map_or(highest, |kept| kept.min(highest))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    /// Everything before is received, as far as it is replicated.
    received: Lsn,
    /// The newest transaction that was handed to the writer ends here.
    handed: Lsn,
    applied: Lsn,
    flushed: Lsn,
    /// What the source was told last. All before that is done, whatever has begun since.
    told: (Lsn, Lsn),
}

impl Positions {
    /// `durable` is where the target stands, which was on disk there before.
    pub fn new(durable: Lsn) -> Self {
        Self {
            received: durable,
            handed: durable,
            applied: durable,
            flushed: durable,
            told: (durable, durable),
        }
    }

    /// All WAL before `end` was received; no transaction of it is under way. False if that was known.
    pub fn received(&mut self, end: Lsn) -> bool {
        let is_news = end > self.received;
        self.received = self.received.max(end);
        is_news
    }

    /// Everything before is received; no transaction of it is under way.
    pub fn all_received(&self) -> Lsn {
        self.received
    }

    pub fn handed(&mut self, end: Lsn) {
        self.received(end);
        self.handed = self.handed.max(end);
    }

    /// The target has committed the transactions up to `end`.
    pub fn applied(&mut self, end: Lsn) {
        self.applied = self.applied.max(end);
    }

    /// The target has flushed its commits up to `end`.
    pub fn flushed(&mut self, end: Lsn) {
        self.flushed = self.flushed.max(end.min(self.applied));
    }

    /// The origin stands here, on disk.
    pub fn moved(&mut self, end: Lsn) {
        self.applied(end);
        self.flushed(end);
    }

    /// Where to move the origin, if that is the only way forward.
    pub fn to_move(&self, is_idle: bool) -> Option<Lsn> {
        (is_idle && self.is_settled() && self.received > self.flushed).then_some(self.received)
    }

    /// Nothing that was handed over is still to be committed and flushed.
    pub fn is_settled(&self) -> bool {
        self.flushed >= self.handed
    }

    /// All that was received is committed on the target. `is_idle`: nothing was taken from the
    /// stream that was not handed over.
    pub fn reached(&self, is_idle: bool) -> Lsn {
        match is_idle && self.applied >= self.handed {
            true => self.received.max(self.applied),
            false => self.applied,
        }
    }

    /// What there is to tell, flushed and applied: never less than what was told.
    fn reached_now(&self, is_idle: bool) -> (Lsn, Lsn) {
        let (flushed, applied) = self.told;
        (
            self.flushed.max(flushed),
            self.reached(is_idle).max(applied),
        )
    }

    /// The source has not been told so much.
    pub fn is_ahead_of_told(&self, is_idle: bool) -> bool {
        self.reached_now(is_idle) != self.told
    }

    /// Flushed and applied as the source was told.
    pub fn told(&self) -> (Lsn, Lsn) {
        self.told
    }

    /// The message for the source. Its positions never go back.
    pub fn status(&mut self, is_idle: bool, sent_at: Timestamp) -> Status {
        self.told = self.reached_now(is_idle);
        let (flushed, applied) = self.told;
        Status {
            written: applied,
            flushed,
            applied,
            sent_at,
            reply: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(positions: &mut Positions, is_idle: bool) -> (u64, u64) {
        let status = positions.status(is_idle, Timestamp(0));
        assert_eq!(status.written, status.applied);
        (status.flushed.into(), status.applied.into())
    }

    #[test]
    fn flushed_follows_applied() {
        let mut positions = Positions::new(10.into());
        assert_eq!(told(&mut positions, true), (10, 10));
        positions.handed(20.into());
        assert_eq!(told(&mut positions, true), (10, 10));
        assert!(!positions.is_ahead_of_told(true));
        positions.applied(20.into());
        assert!(positions.is_ahead_of_told(true));
        assert_eq!(told(&mut positions, true), (10, 20));
        assert!(!positions.is_settled() && !positions.is_ahead_of_told(true));
        positions.flushed(15.into());
        assert!(!positions.is_settled());
        assert_eq!(told(&mut positions, true), (15, 20));
        positions.flushed(30.into());
        assert!(positions.is_settled() && positions.is_ahead_of_told(true));
        assert_eq!(told(&mut positions, true), (20, 20));
        positions.flushed(15.into());
        assert_eq!(told(&mut positions, true), (20, 20), "it does not go back");
    }

    #[test]
    fn wal_without_changes_counts_only_while_nothing_is_outstanding() {
        let mut positions = Positions::new(10.into());
        assert!(positions.received(15.into()));
        assert!(!positions.received(15.into()), "it is no news");
        assert!(!positions.received(12.into()));
        assert_eq!(
            told(&mut positions, true),
            (10, 15),
            "it is not in the origin"
        );
        assert_eq!(positions.to_move(false), None);
        assert_eq!(positions.to_move(true), Some(15.into()));
        positions.moved(15.into());
        assert_eq!(told(&mut positions, true), (15, 15));
        assert_eq!(positions.to_move(true), None);
        positions.received(30.into());
        assert_eq!(
            told(&mut positions, false),
            (15, 15),
            "a transaction is under way"
        );
        positions.handed(20.into());
        assert_eq!(told(&mut positions, true), (15, 15), "20 is not applied");
        positions.applied(20.into());
        assert_eq!(told(&mut positions, true), (15, 30), "20 is not flushed");
        assert_eq!(positions.to_move(true), None);
        positions.flushed(20.into());
        assert_eq!(told(&mut positions, true), (20, 30));
        positions.moved(30.into());
        assert_eq!(told(&mut positions, true), (30, 30));
        positions.handed(40.into());
        assert_eq!(told(&mut positions, false), (30, 30), "it does not go back");
    }
}
