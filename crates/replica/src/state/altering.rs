//! A replica that is being altered: which tables it has, and what of each. See `lifecycle/alter.rs`.
//!
//! Column `altering` of `lockstep.replica` is true from the moment on at which the state has what is
//! wanted, and until the source sends that and the target has the rows; phase is [`Phase::Copying`]
//! meanwhile, so that nothing applies.

use std::collections::HashMap;

use lockstep_apply::sessions::SILENT;
use lockstep_client::ClientError;
use lockstep_wire::Lsn;

use super::{Phase, ReplicaState, json_array, subsets};
use crate::error::{ReplicaError, Result};
use crate::names::{Excluded, TableName};
use crate::publication::subset::Subset;

/// A table with its OID on the source.
type OfSource = (TableName, u32);

/// A table's name in the state, and the one that it is to have there.
pub type Renamed = (TableName, TableName);

/// Give tables in the state other names, which may be those of others before. `$2` has both names of each.
const RENAME: [&str; 2] = [
    "UPDATE lockstep.table_copy SET schema_name = chr(1) || (l ->> 2), table_name = l ->> 3 \
     FROM json_array_elements($2::json) l \
     WHERE replica = $1 AND schema_name = l ->> 0 AND table_name = l ->> 1",
    "UPDATE lockstep.table_copy SET schema_name = l ->> 2 FROM json_array_elements($2::json) l \
     WHERE replica = $1 AND schema_name = chr(1) || (l ->> 2) AND table_name = l ->> 3",
];

/// Rows of `lockstep.table_copy` whose tables a parameter names.
const NAMED: &str = "replica = $1 AND (schema_name, table_name) IN \
    (SELECT l ->> 0, l ->> 1 FROM json_array_elements($2::json) l)";

fn names(tables: &[TableName]) -> String {
    let names: Vec<_> = (tables.iter())
        .map(|table| (&table.schema, &table.table))
        .collect();
    serde_json::json!(names).to_string()
}

impl ReplicaState {
    /// Keeps what a replica leaves out and what of its tables it has, with the OIDs of those, and that it is
    /// being altered: tables `renamed` have other names, `leaves` are its own no longer, `anew` and `joins`
    /// are to be copied, and `drops` are dropped. All of it or nothing.
    pub fn begin_alteration(
        &mut self,
        name: &str,
        (excluded, wanted, oids): (&Excluded, &[Subset], &HashMap<TableName, u32>),
        (joins, leaves, anew): (&[OfSource], &[TableName], &[OfSource]),
        (renamed, drops): (&[Renamed], &[TableName]),
    ) -> Result<()> {
        let connection = &mut self.connection;
        let mut change = || -> Result<(), ClientError> {
            connection.execute("BEGIN")?;
            let (schemas, tables) = (json_array(&excluded.schemas), json_array(&excluded.tables));
            connection.query_with(
                "UPDATE lockstep.replica SET altering = true, phase = $4, ready_at = NULL, \
                     exclude_schemas = ARRAY(SELECT json_array_elements_text($2::json)), \
                     exclude_tables = ARRAY(SELECT json_array_elements_text($3::json)) WHERE name = $1",
                &[&name, &schemas, &tables, &Phase::Copying.text()],
            )?;
            connection.query_with("DELETE FROM lockstep.subset WHERE replica = $1", &[&name])?;
            let added = "WITH added AS (SELECT $1::text AS name)";
            let add = format!("{added} {}", subsets::add("added", "$2"));
            connection.query_with(&add, &[&name, &subsets::to_json(wanted)])?;
            let renamed = renamed
                .iter()
                .map(|(had, has)| (&had.schema, &had.table, &has.schema, &has.table));
            let renamed = serde_json::json!(renamed.collect::<Vec<_>>()).to_string();
            for rename in RENAME {
                connection.query_with(rename, &[&name, &renamed])?;
            }
            // One that joins may have the name of a table that the source has no longer.
            let added = joins.iter().chain(anew).map(|(table, _)| table);
            let gone: Vec<_> = leaves.iter().chain(added).cloned().collect();
            let leave = format!("DELETE FROM lockstep.table_copy WHERE {NAMED}");
            connection.query_with(&leave, &[&name, &names(&gone)])?;
            let drops: Vec<_> = drops.iter().map(TableName::sql).collect();
            if drops.is_empty() {
                return Ok(());
            }
            connection.execute(&SILENT.replace(", false)", ", true)"))?;
            connection.execute(&format!("DROP TABLE IF EXISTS {}", drops.join(", ")))
        };
        change().map_err(ReplicaError::Target)?;
        self.set_subset_oids(name, oids)?;
        self.add_tables(name, joins)?;
        self.add_tables(name, anew)?;
        // Another call knows the tables that this one has looked at.
        let seen: Vec<_> = joins.iter().chain(anew).map(|(table, _)| table).collect();
        self.adopt(name, &seen)?;
        // A copy that begins again empties it.
        let again = format!("UPDATE lockstep.table_copy SET state = 'copying' WHERE {NAMED}");
        let anew: Vec<_> = anew.iter().map(|(table, _)| table.clone()).collect();
        let committed = (self.connection)
            .query_with(&again, &[&name, &names(&anew)])
            .and_then(|_| self.connection.execute("COMMIT"));
        committed.map_err(ReplicaError::Target)
    }

    /// Forgets tables that were to be copied.
    pub fn forget_tables(&mut self, name: &str, tables: &[TableName]) -> Result<()> {
        let sql = format!("DELETE FROM lockstep.table_copy WHERE {NAMED}");
        let forgotten = (self.connection).query_with(&sql, &[&name, &names(tables)]);
        forgotten.map(drop).map_err(ReplicaError::Target)
    }

    /// Keeps that a replica is ready again, with a publication that was right at `right`.
    pub fn end_alteration(&mut self, name: &str, published: &str, right: Lsn) -> Result<()> {
        let sql = "WITH ended AS (UPDATE lockstep.replica SET altering = false, phase = $4, ready_at = now() \
                       WHERE name = $1 RETURNING name) \
                   INSERT INTO lockstep.publication AS p (replica, made, right_lsn) \
                       SELECT name, $2::json, $3::pg_lsn FROM ended \
                   ON CONFLICT (replica) DO UPDATE SET made = excluded.made, right_lsn = excluded.right_lsn";
        let phase = Phase::Ready.text();
        let ended = (self.connection).query_with(sql, &[&name, &published, &right, &phase]);
        ended.map(drop).map_err(ReplicaError::Target)
    }
}
