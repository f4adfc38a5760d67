//! The subsets of tables that a replica has. They are added with the replica, and change with `replica
//! alter`. Each has the OID of its table on the source, whose name may be another one later; none if the
//! replica was made by an older version.

use std::collections::HashMap;

use lockstep_client::{ClientError, field};
use serde_json::json;

use super::{ReplicaState, unreadable};
use crate::error::{ReplicaError, Result};
use crate::names::TableName;
use crate::publication::subset::Subset;

/// The subsets of replica `r`, in SQL, for [`from_json`].
pub const OF_REPLICA: &str = "(SELECT coalesce(json_agg(json_build_array(s.schema_name, \
         s.table_name, s.row_filter, s.columns)), '[]') \
     FROM lockstep.subset AS s WHERE s.replica = r.name)";

/// The statement that adds the subsets of a parameter, which [`to_json`] makes, to the replica that
/// the query `added` has added.
pub fn add(added: &str, parameter: &str) -> String {
    format!(
        "INSERT INTO lockstep.subset (replica, schema_name, table_name, row_filter, columns) \
         SELECT {added}.name, s ->> 0, s ->> 1, s ->> 2, \
             CASE json_typeof(s -> 3) WHEN 'array' \
                 THEN ARRAY(SELECT json_array_elements_text(s -> 3)) END \
         FROM {added}, json_array_elements({parameter}::json) AS s"
    )
}

pub fn to_json(subsets: &[Subset]) -> String {
    let subsets = subsets.iter().map(|subset| {
        let TableName { schema, table } = &subset.table;
        json!([schema, table, subset.filter, subset.columns])
    });
    serde_json::Value::from_iter(subsets).to_string()
}

pub fn from_json(text: &str) -> Result<Vec<Subset>> {
    type Row = (String, String, Option<String>, Option<Vec<String>>);
    let rows: Vec<Row> = serde_json::from_str(text).map_err(unreadable)?;
    let subset = |(schema, table, filter, columns)| Subset {
        table: TableName { schema, table },
        filter,
        columns,
    };
    let mut subsets: Vec<_> = rows.into_iter().map(subset).collect();
    subsets.sort_by(|one, other| one.table.cmp(&other.table));
    Ok(subsets)
}

impl ReplicaState {
    /// Keeps the OIDs of tables that have a subset.
    pub fn set_subset_oids(&mut self, name: &str, oids: &HashMap<TableName, u32>) -> Result<()> {
        let sql = "UPDATE lockstep.subset SET source_oid = (l ->> 2)::oid FROM json_array_elements($2::json) l \
                   WHERE replica = $1 AND schema_name = l ->> 0 AND table_name = l ->> 1";
        let oids = oids
            .iter()
            .map(|(table, oid)| json!([table.schema, table.table, oid]));
        let oids = serde_json::Value::from_iter(oids).to_string();
        let kept = self.connection.query_with(sql, &[&name, &oids]);
        kept.map(drop).map_err(ReplicaError::Target)
    }

    /// The OIDs of tables that have a subset, as far as they are known.
    pub fn subset_oids(&mut self, name: &str) -> Result<HashMap<TableName, u32>> {
        let sql = "SELECT schema_name, table_name, source_oid FROM lockstep.subset \
                   WHERE replica = $1 AND source_oid IS NOT NULL";
        let read = |row: &Vec<Option<String>>| -> Result<_, ClientError> {
            let table = TableName {
                schema: field(row, 0)?,
                table: field(row, 1)?,
            };
            Ok((table, field(row, 2)?))
        };
        let rows = self.connection.query_with(sql, &[&name]);
        let rows = rows.and_then(|rows| rows.iter().map(read).collect());
        rows.map_err(ReplicaError::Target)
    }
}
