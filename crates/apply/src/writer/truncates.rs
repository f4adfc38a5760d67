//! TRUNCATE of tables that the source has truncated together.

use std::sync::Arc;

use lockstep_client::field;

use super::Writer;
use crate::batch::Emptied;
use crate::error::{ApplyError, Result};
use crate::table::Table;

/// Partitioned tables with a foreign key to one of `$1`, a JSON array of names: TRUNCATE must name them as
/// well. Only those whose partitions are all among `$1` are returned: no others were truncated.
const REFERENCING: &str = "WITH emptied AS (SELECT value::pg_catalog.regclass AS oid \
      FROM pg_catalog.json_array_elements_text($1::pg_catalog.json)) \
    SELECT DISTINCT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_constraint AS k \
      JOIN pg_catalog.pg_class AS c ON c.oid = k.conrelid \
      JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
    WHERE k.contype = 'f' AND k.confrelid IN (SELECT oid FROM emptied) AND c.relkind = 'p' \
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_partition_tree(c.oid) AS p \
        WHERE p.isleaf AND p.relid NOT IN (SELECT oid FROM emptied))";

impl Writer {
    pub(super) fn truncate(&mut self, tables: &[Arc<Table>], how: Emptied) -> Result<()> {
        let Some(first) = tables.first() else {
            return Ok(());
        };
        let refused = |error| ApplyError::on_table(&first.name, error);
        let name = |table: &Arc<Table>| match table.partitioned {
            true => table.name.sql(),
            false => format!("ONLY {}", table.name.sql()),
        };
        let sql = match how {
            Emptied::Deleted => {
                // The source has named partitions besides their root.
                let rows = tables.iter().filter(|table| !table.partitioned);
                let each = rows.map(|table| format!("DELETE FROM {}", name(table)));
                each.collect::<Vec<_>>().join("; ")
            }
            Emptied::Truncated | Emptied::Restarted => {
                let mut names: Vec<_> = tables.iter().map(name).collect();
                names.extend(self.referencing(tables).map_err(refused)?);
                let restart = match how {
                    Emptied::Restarted => " RESTART IDENTITY",
                    _ => "",
                };
                format!("TRUNCATE {}{restart}", names.join(", "))
            }
        };
        match sql.is_empty() {
            true => Ok(()),
            false => self.connection.execute(&sql).map_err(refused),
        }
    }

    /// Partitioned tables that are to be truncated with these.
    fn referencing(&mut self, tables: &[Arc<Table>]) -> lockstep_client::Result<Vec<String>> {
        let names: Vec<_> = tables.iter().map(|table| table.name.sql()).collect();
        let names = serde_json::Value::from(names).to_string();
        let rows = self.connection.query_with(REFERENCING, &[&names])?;
        rows.iter().map(|row| field(row, 0)).collect()
    }
}
