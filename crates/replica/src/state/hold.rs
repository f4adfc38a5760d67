//! A hold: `replica verify` asks the process that applies to stand still at an LSN for a moment. Both
//! are processes of their own, so the target's state is between them.
//!
//! | what happens to the row of `lockstep.hold` | by whom |
//! |---|---|
//! | made; `wanted` is raised later | the session of verify, which has [`Lock::Hold`] |
//! | `held` follows `wanted` | apply's process, once exactly what is before `wanted` is applied |
//! | removed | verify when it is done, or apply's process when it no longer waits for verify |
//!
//! What must stay true: **apply goes on only after the row, once it said `held`, is gone**, and it
//! does not come back by itself. So whoever looks at the target and then finds `held` in the row has
//! seen exactly what is before it.
//!
//! Apply's process waits for verify only while `until` has not passed, by the target's clock, and
//! the session that made the row has the lock. A verify that is killed ends that as soon as its
//! server notices; one whose machine is gone, at `until`. A process that begins to apply removes a
//! row that an earlier one has answered, before it applies anything.
//!
//! Verify makes the session for its hold, so `pg_stat_activity` says of its `pid` since when it holds.

use std::time::Duration;

use lockstep_client::quote::sql_literal;
use lockstep_client::{ClientError, field};
use lockstep_wire::Lsn;

use super::locks::LOCK_PATIENCE;
use super::{Lock, ReplicaState, lock_holders, since};
use crate::error::{ReplicaError, Result};

/// What verify finds of its hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Apply's process has not answered yet.
    NotYet,
    /// Exactly what is before this is applied.
    At(Lsn),
    /// The row is gone: apply goes on.
    Ended,
}

/// A hold that somebody still waits for, as others see it.
#[derive(Debug, Clone, PartialEq)]
pub struct Hold {
    /// The session of verify on the target.
    pub pid: u32,
    /// The session's role.
    pub user: Option<String>,
    /// The session's address. None if that is on the target's machine, or if this role may not see that.
    pub client: Option<String>,
    /// Time since it was made. None if this role may not see that.
    pub age: Option<Duration>,
    /// Exactly what is before this is applied. None while apply has not come there.
    pub at: Option<Lsn>,
}

impl ReplicaState {
    /// Who holds the replica now.
    pub fn hold(&mut self, name: &str) -> Result<Option<Hold>> {
        let mut hold = || -> Result<Option<Hold>, ClientError> {
            let row = self.connection.query_opt(&format!(
                "SELECT h.pid, a.usename, host(a.client_addr), \
                     extract(epoch FROM clock_timestamp() - a.backend_start), h.held \
                 FROM (SELECT pid, held FROM lockstep.hold WHERE {}) h \
                     LEFT JOIN pg_stat_activity a ON a.pid = h.pid",
                is_wanted(name)?
            ))?;
            let Some(row) = row else { return Ok(None) };
            Ok(Some(Hold {
                pid: field(&row, 0)?,
                user: field(&row, 1)?,
                client: field(&row, 2)?,
                age: since(field(&row, 3)?),
                at: field(&row, 4)?,
            }))
        };
        hold().map_err(ReplicaError::Target)
    }

    /// Asks apply to hold at `wanted` for at most so long. False if another session holds the replica
    /// already. It ends with this session, or with [`ReplicaState::end_hold`].
    pub fn begin_hold(&mut self, name: &str, wanted: Lsn, patience: Duration) -> Result<bool> {
        if !self.lock_for(Lock::Hold, name, LOCK_PATIENCE)? {
            return Ok(false);
        }
        let sql = "INSERT INTO lockstep.hold (replica, wanted, pid, until) \
                   VALUES ($1, $2::pg_lsn, pg_backend_pid(), \
                       clock_timestamp() + $3::float8 * interval '1 second') \
                   ON CONFLICT (replica) DO UPDATE SET wanted = excluded.wanted, held = NULL, \
                       pid = excluded.pid, until = excluded.until";
        let seconds = patience.as_secs_f64();
        let asked = (self.connection).query_with(sql, &[&name, &wanted, &seconds]);
        asked.map_err(ReplicaError::Target)?;
        Ok(true)
    }

    /// Who holds the replica already, and what to do about it.
    pub fn hold_words(&mut self, name: &str) -> Result<String> {
        self.held_words(Lock::Hold, name)
    }

    /// Asks for exactly the transactions whose commit record starts before `lsn`.
    pub fn raise_hold(&mut self, name: &str, lsn: Lsn) -> Result<()> {
        let sql = "UPDATE lockstep.hold SET wanted = $2::pg_lsn WHERE replica = $1";
        let raised = self.connection.query_with(sql, &[&name, &lsn]);
        raised.map(drop).map_err(ReplicaError::Target)
    }

    /// How far apply's process is with the hold of this session.
    pub fn held(&mut self, name: &str) -> Result<Held> {
        let sql = "SELECT held FROM lockstep.hold WHERE replica = $1 AND pid = pg_backend_pid()";
        let rows = self.connection.query_with(sql, &[&name]);
        let rows = rows.map_err(ReplicaError::Target)?;
        let Some(row) = rows.first() else {
            return Ok(Held::Ended);
        };
        let held: Option<Lsn> = field(row, 0).map_err(ReplicaError::Target)?;
        Ok(held.map_or(Held::NotYet, Held::At))
    }

    /// Removes the hold of this session: apply goes on.
    pub fn end_hold(&mut self, name: &str) -> Result<()> {
        let sql = "DELETE FROM lockstep.hold WHERE replica = $1 AND pid = pg_backend_pid()";
        let ended = self.connection.query_with(sql, &[&name]);
        ended.map(drop).map_err(ReplicaError::Target)
    }

    /// Lets no other session hold the replica as long as this one lives. False if another one holds it.
    pub fn take_hold(&mut self, name: &str) -> Result<bool> {
        self.lock_for(Lock::Hold, name, LOCK_PATIENCE)
    }

    /// Lets other sessions hold the replica that this one has held.
    pub fn let_hold_go(&mut self, name: &str) -> Result<()> {
        self.unlock(Lock::Hold, name)
    }

    /// What apply is asked to hold at, by somebody who still waits for it.
    pub fn wanted_hold(&mut self, name: &str) -> Result<Option<Lsn>> {
        let mut wanted = || -> Result<Option<Lsn>, ClientError> {
            let row = self.connection.query_opt(&format!(
                "SELECT wanted FROM lockstep.hold WHERE {}",
                is_wanted(name)?
            ))?;
            row.map(|row| field(&row, 0)).transpose()
        };
        wanted().map_err(ReplicaError::Target)
    }

    /// Removes a hold that nobody waits for any more. Call it before apply goes on.
    pub fn end_unwanted_hold(&mut self, name: &str) -> Result<()> {
        let mut end = || -> Result<(), ClientError> {
            self.connection.execute(&format!(
                "DELETE FROM lockstep.hold WHERE replica = {} AND NOT ({})",
                sql_literal("replica", name)?,
                is_wanted(name)?
            ))
        };
        end().map_err(ReplicaError::Target)
    }

    /// Removes a hold that an earlier process of apply has answered. Call it before apply begins.
    pub fn end_answered_hold(&mut self, name: &str) -> Result<()> {
        let sql = "DELETE FROM lockstep.hold WHERE replica = $1 AND held IS NOT NULL";
        let ended = self.connection.query_with(sql, &[&name]);
        ended.map(drop).map_err(ReplicaError::Target)
    }

    /// Says that exactly what is before `lsn` is applied.
    pub fn set_held(&mut self, name: &str, lsn: Lsn) -> Result<()> {
        let sql = "UPDATE lockstep.hold SET held = wanted \
                   WHERE replica = $1 AND wanted = $2::pg_lsn AND held IS DISTINCT FROM wanted";
        let set = self.connection.query_with(sql, &[&name, &lsn]);
        set.map(drop).map_err(ReplicaError::Target)
    }
}

/// The condition that somebody waits for a row of `lockstep.hold`.
fn is_wanted(name: &str) -> Result<String, ClientError> {
    Ok(format!(
        "replica = {} AND until > clock_timestamp() AND pid IN (SELECT l.pid FROM {})",
        sql_literal("replica", name)?,
        lock_holders(Lock::Hold, name)?
    ))
}
