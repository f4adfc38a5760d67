//! What a replica that follows changes of the schema needs: the key that proves which messages in its stream
//! an event trigger of its own has written, and which command somebody has made on the target by hand. Only
//! the state's owner may read the key: whoever knows it can let the target run commands.

use lockstep_wire::Lsn;

use super::ReplicaState;
use crate::error::{ReplicaError, Result};

impl ReplicaState {
    /// Keeps the key, in hexadecimal.
    pub fn set_ddl_key(&mut self, name: &str, key: &str) -> Result<()> {
        let sql = "INSERT INTO lockstep.ddl AS d (replica, key) VALUES ($1, decode($2, 'hex')) \
                   ON CONFLICT (replica) DO UPDATE SET key = excluded.key";
        let kept = self.connection.query_with(sql, &[&name, &key]);
        kept.map(drop).map_err(ReplicaError::Target)
    }

    /// The command whose message ends there was made by hand, too, besides others of transactions that are
    /// still to be applied. False if the replica follows no commands.
    pub fn set_made_by_hand(&mut self, name: &str, command: Lsn) -> Result<bool> {
        let sql = "UPDATE lockstep.ddl AS d SET made_by_hand = array_append(ARRAY(SELECT m FROM unnest(d.made_by_hand) AS m \
                     WHERE m > coalesce(r.applied_lsn, '0/0')), $2::pg_lsn) \
                   FROM lockstep.replica AS r WHERE r.name = d.replica AND d.replica = $1 RETURNING d.replica";
        let rows = self.connection.query_with(sql, &[&name, &command]);
        Ok(!rows.map_err(ReplicaError::Target)?.is_empty())
    }
}
