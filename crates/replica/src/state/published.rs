//! The publication as the replica made it, and where it was last seen so.

use lockstep_client::{ClientError, field};
use lockstep_wire::Lsn;

use super::{Replica, ReplicaState, unreadable};
use crate::error::{ReplicaError, Result};
use crate::publication::{Expected, Published};

/// Keeps a publication, for the transaction that says that the slot is made. `$1` is the replica, `$2` the
/// start, `$4` the publication as JSON.
pub const KEEP: &str = "INSERT INTO lockstep.publication AS p (replica, made, right_lsn) \
     SELECT name, $4::json, $2::pg_lsn FROM lockstep.replica WHERE name = $1 \
     ON CONFLICT (replica) DO UPDATE SET made = excluded.made, right_lsn = excluded.right_lsn";

impl ReplicaState {
    /// What a replica's publication should be.
    pub fn expected(&mut self, replica: &Replica) -> Result<Expected> {
        let sql = "SELECT made, right_lsn FROM lockstep.publication WHERE replica = $1";
        let rows = self.connection.query_with(sql, &[&replica.name]);
        let rows = rows.map_err(ReplicaError::Target)?;
        let mut expected = Expected {
            name: replica.publication.clone(),
            subsets: replica.subsets.clone(),
            ..Expected::default()
        };
        let Some(row) = rows.first() else {
            let tables = self.tables(&replica.name)?.into_iter();
            expected.copied = tables.map(|table| table.name).collect();
            return Ok(expected);
        };
        let read = || -> Result<(String, Option<Lsn>), ClientError> {
            Ok((field(row, 0)?, field(row, 1)?))
        };
        let (made, right) = read().map_err(ReplicaError::Target)?;
        expected.made = Some(Published::parse(&made).map_err(unreadable)?);
        expected.right = right;
        Ok(expected)
    }

    /// Keeps where the publication was last seen as it should be.
    pub fn set_right(&mut self, name: &str, lsn: Lsn) -> Result<()> {
        let sql = "UPDATE lockstep.publication SET right_lsn = $2::pg_lsn WHERE replica = $1";
        let changed = self.connection.query_with(sql, &[&name, &lsn]);
        changed.map(drop).map_err(ReplicaError::Target)
    }
}
