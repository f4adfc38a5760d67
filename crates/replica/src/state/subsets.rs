//! The subsets of tables that a replica has. They are added with the replica, and change with `replica
//! alter`.

use serde_json::json;

use super::unreadable;
use crate::error::Result;
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
