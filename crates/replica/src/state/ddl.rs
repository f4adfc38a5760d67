//! What a replica that follows changes of the schema needs: the key that proves which messages in its stream
//! an event trigger of its own has written, which command somebody has made on the target by hand, and which
//! tables somebody has left out. Only the state's owner may read the key: whoever knows it can let the target
//! run commands.

use lockstep_client::field;
use lockstep_wire::Lsn;

use super::ReplicaState;
use crate::error::{ReplicaError, Result};

/// What has become of a position that was given as one of a command that was made by hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MadeByHand {
    Kept,
    /// The replica stands at no such command, but at these.
    Elsewhere(Option<String>),
    /// There is no replica of this name that follows commands.
    NotFollowed,
}

/// The changes that were refused last (`d`) are not applied since.
const STANDS: &str = "NOT EXISTS (SELECT FROM lockstep.apply_position p \
    WHERE p.replica = d.replica AND p.lsn > d.refused_at)";

/// What has become of a table that was to be left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeftOut {
    Kept,
    /// The replica does not stand at this table, but at that one, if at any.
    Elsewhere(Option<String>),
    /// There is no replica of this name that follows commands.
    NotFollowed,
}

impl ReplicaState {
    /// Keeps the key, in hexadecimal.
    pub fn set_ddl_key(&mut self, name: &str, key: &str) -> Result<()> {
        let sql = "INSERT INTO lockstep.ddl AS d (replica, key) VALUES ($1, decode($2, 'hex')) \
                   ON CONFLICT (replica) DO UPDATE SET key = excluded.key";
        let kept = self.connection.query_with(sql, &[&name, &key]);
        kept.map(drop).map_err(ReplicaError::Target)
    }

    /// The command whose message ends there was made by hand. That is kept until the command's transaction is
    /// committed on the target (`crates/apply/src/writer/command.rs`).
    pub fn set_made_by_hand(&mut self, name: &str, command: Lsn) -> Result<MadeByHand> {
        let sql = "UPDATE lockstep.ddl SET made_by_hand = array_append(array_remove(made_by_hand, $2::pg_lsn), $2) \
                   WHERE replica = $1 AND $2 = ANY (stopped) RETURNING replica";
        let rows = self.connection.query_with(sql, &[&name, &command]);
        if !rows.map_err(ReplicaError::Target)?.is_empty() {
            return Ok(MadeByHand::Kept);
        }
        let sql = "SELECT nullif(array_to_string(stopped, ', '), '') FROM lockstep.ddl WHERE replica = $1";
        let rows = self.connection.query_with(sql, &[&name]);
        let rows = rows.map_err(ReplicaError::Target)?;
        let stands = rows.first().map(|row| field(row, 0)).transpose();
        let stands = stands.map_err(ReplicaError::Target)?;
        Ok(stands.map_or(MadeByHand::NotFollowed, MadeByHand::Elsewhere))
    }

    /// Leaves out the table whose change has stopped the replica, as its error names it. Its OID on the
    /// source is kept besides: it may have been made in the transaction that is stopped, and is not listed
    /// then.
    pub fn leave_out(&mut self, name: &str, table: &str) -> Result<LeftOut> {
        let sql = format!(
            "WITH left_out AS ( \
                 UPDATE lockstep.ddl AS d SET left_out = array_append(array_remove(d.left_out, d.refused), \
                     d.refused), refused_table = NULL \
                 WHERE d.replica = $1 AND d.refused_table = $2 AND {STANDS} RETURNING d.refused), \
             listed AS ( \
                 UPDATE lockstep.table_copy SET state = 'left_out' \
                 WHERE replica = $1 AND source_oid IN (SELECT refused FROM left_out)) \
             SELECT FROM left_out"
        );
        let rows = self.connection.query_with(&sql, &[&name, &table]);
        if !rows.map_err(ReplicaError::Target)?.is_empty() {
            return Ok(LeftOut::Kept);
        }
        let sql = format!(
            "SELECT CASE WHEN {STANDS} THEN d.refused_table END FROM lockstep.ddl AS d WHERE d.replica = $1"
        );
        let rows = self.connection.query_with(&sql, &[&name]);
        let rows = rows.map_err(ReplicaError::Target)?;
        let stands = rows.first().map(|row| field(row, 0)).transpose();
        let stands = stands.map_err(ReplicaError::Target)?;
        Ok(stands.map_or(LeftOut::NotFollowed, LeftOut::Elsewhere))
    }
}
