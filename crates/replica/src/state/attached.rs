//! What is known of partitions that were not copied: whether they had rows before the publication had them.

use lockstep_client::{ClientError, field};

use super::ReplicaState;
use crate::error::{ReplicaError, Result};

/// A partition of the source that was not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The OID on the source.
    pub oid: u32,
    /// What made it part of the publication: a transaction of the source, and a command in it.
    pub since: String,
    /// All its rows came after that, or are on the target.
    pub is_whole: bool,
}

impl ReplicaState {
    /// What is known of a replica's later partitions.
    pub fn attached(&mut self, name: &str) -> Result<Vec<Attached>> {
        let sql = "SELECT source_oid, since, is_whole FROM lockstep.attached WHERE replica = $1 ORDER BY 1";
        let rows = self.connection.query_with(sql, &[&name]);
        let rows = rows.map_err(ReplicaError::Target)?;
        let attached = |row: &Vec<Option<String>>| -> Result<_, ClientError> {
            Ok(Attached {
                oid: field(row, 0)?,
                since: field(row, 1)?,
                is_whole: field(row, 2)?,
            })
        };
        let attached: Result<_, ClientError> = rows.iter().map(attached).collect();
        attached.map_err(ReplicaError::Target)
    }

    /// Keeps what is known of all later partitions, in place of what was known. One whose rows were found on
    /// the target stays whole as long as it stays attached.
    pub fn keep_attached(&mut self, name: &str, known: &[Attached]) -> Result<()> {
        let rows = (known.iter()).map(|one| serde_json::json!([one.oid, one.since, one.is_whole]));
        let rows = serde_json::Value::from_iter(rows).to_string();
        let sql = "WITH known AS (SELECT (k ->> 0)::oid AS oid, k ->> 1 AS since, (k ->> 2)::boolean AS \
            is_whole \
                       FROM json_array_elements($2::json) k), \
                   others AS (DELETE FROM lockstep.attached a WHERE a.replica = $1 \
                       AND NOT EXISTS (SELECT FROM known WHERE known.oid = a.source_oid)) \
                   INSERT INTO lockstep.attached AS a (replica, source_oid, since, is_whole) \
                   SELECT $1::text, oid, since, is_whole FROM known \
                   ON CONFLICT (replica, source_oid) \
                   DO UPDATE SET since = excluded.since, is_whole = excluded.is_whole \
                   WHERE a.since <> excluded.since OR excluded.is_whole";
        let kept = self.connection.query_with(sql, &[&name, &rows]);
        kept.map(drop).map_err(ReplicaError::Target)
    }
}
