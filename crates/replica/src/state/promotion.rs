//! A promotion: how far it is, and what it leaves.
//!
//! | column of `lockstep.replica` | what | written |
//! |---|---|---|
//! | `promote_lsn` | the source's position that had to be applied first; NULL if none was known | with [`Phase::Promoting`](super::Phase::Promoting) |
//! | `promote_loses` | the source was not asked, or not all that it had is applied | then |
//! | `promote_left` | the source may still have slot and publication | then, and false once they are gone |
//! | `promoted_lsn` | everything of the source before is on the target, and nothing after | once nothing applies any more |
//! | `promote_sequences` | sequences are set; what the target's users take of them is not taken back | before the target is opened |
//! | `promoted_at` | the target's time | with [`Phase::Promoted`](super::Phase::Promoted) |
//!
//! `applied_commit`, which apply's process writes every second, is when the source committed the newest
//! transaction that is applied.

use lockstep_client::{ClientError, field};
use lockstep_wire::Lsn;

use super::ReplicaState;
use crate::error::{ReplicaError, Result};

/// What the state says of a promotion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promotion {
    /// Everything of the source before is on the target. None before that is known.
    pub lsn: Option<Lsn>,
    /// The target's time, as ISO 8601 in UTC. None before the end.
    pub at: Option<String>,
    /// When the source committed the newest transaction that is known to be on the target, likewise.
    pub commit_time: Option<String>,
    /// What the source has committed may be missing.
    pub loses: bool,
    pub has_sequences: bool,
    /// The source may still have slot and publication.
    pub is_left: bool,
}

const SEE: &str = "SELECT promoted_lsn, \
    to_char(promoted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), \
    to_char(applied_commit AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), \
    coalesce(promote_loses, false), coalesce(promote_sequences, false), coalesce(promote_left, false) \
    FROM lockstep.replica WHERE name = $1 AND phase IN ('promoting', 'promoted')";

const STANDS: &str = "SELECT coalesce(greatest(r.start_lsn, (SELECT max(p.lsn) FROM lockstep.apply_position p \
    WHERE p.replica = r.name)), '0/0') FROM lockstep.replica r WHERE r.name = $1";

impl ReplicaState {
    /// What is known of a replica's promotion; None if it was not begun.
    pub fn promotion(&mut self, name: &str) -> Result<Option<Promotion>> {
        let rows = self.connection.query_with(SEE, &[&name]);
        let rows = rows.map_err(ReplicaError::Target)?;
        let read = |row: &Vec<Option<String>>| -> Result<_, ClientError> {
            Ok(Promotion {
                lsn: field(row, 0)?,
                at: field(row, 1)?,
                commit_time: field(row, 2)?,
                loses: field(row, 3)?,
                has_sequences: field(row, 4)?,
                is_left: field(row, 5)?,
            })
        };
        let promotion = rows.first().map(read).transpose();
        promotion.map_err(ReplicaError::Target)
    }

    /// Whether a cycle has ended.
    pub fn has_cycled(&mut self, name: &str) -> Result<bool> {
        let sql =
            "SELECT EXISTS (SELECT FROM lockstep.cycle WHERE replica = $1 AND state = 'done')";
        let rows = self.connection.query_with(sql, &[&name]);
        let found = rows.and_then(|rows| field(rows.first().map_or(&[][..], Vec::as_slice), 0));
        found.map_err(ReplicaError::Target)
    }

    /// Begins a promotion: whoever applies ends once it sees this.
    pub fn begin_promotion(&mut self, name: &str, to: Option<Lsn>, loses: bool) -> Result<()> {
        let sql = "UPDATE lockstep.replica SET phase = 'promoting', promote_lsn = $2::pg_lsn, \
                       promote_loses = $3, promote_left = true \
                   WHERE name = $1 AND phase = 'ready'";
        let begun = self.connection.query_with(sql, &[&name, &to, &loses]);
        begun.map(drop).map_err(ReplicaError::Target)
    }

    /// Where the target stands, as it is committed.
    pub fn stands(&mut self, name: &str) -> Result<Lsn> {
        let rows = self.connection.query_with(STANDS, &[&name]);
        let stands = rows.and_then(|rows| rows.first().map(|row| field(row, 0)).transpose());
        Ok(stands
            .map_err(ReplicaError::Target)?
            .unwrap_or(Lsn::INVALID))
    }

    /// Keeps where the target stands, which never goes back, and at least where it had to be brought. On disk
    /// with it is all that was applied.
    pub fn keep_promoted(&mut self, name: &str) -> Result<()> {
        let sql = format!(
            "UPDATE lockstep.replica SET promoted_lsn = greatest(promoted_lsn, ({STANDS}), \
                 CASE WHEN promote_loses THEN NULL ELSE promote_lsn END) WHERE name = $1"
        );
        let kept = self.connection.query_with(&sql, &[&name]);
        kept.map(drop).map_err(ReplicaError::Target)
    }

    /// Keeps that the sequences of a replica that is being promoted are set.
    pub fn keep_sequences_set(&mut self, name: &str) -> Result<()> {
        self.set("promote_sequences = true", name)
    }

    /// Keeps that the source has nothing of the replica any more.
    pub fn keep_source_clean(&mut self, name: &str) -> Result<()> {
        self.set("promote_left = false", name)
    }

    pub fn end_promotion(&mut self, name: &str) -> Result<()> {
        self.set(
            "phase = 'promoted', promoted_at = coalesce(promoted_at, clock_timestamp())",
            name,
        )
    }

    fn set(&mut self, what: &str, name: &str) -> Result<()> {
        let sql = format!("UPDATE lockstep.replica SET {what} WHERE name = $1");
        let set = self.connection.query_with(&sql, &[&name]);
        set.map(drop).map_err(ReplicaError::Target)
    }
}
