//! Whether the target's tables hold what the source has, by the rule that apply has, and how rows go there.

use std::collections::HashMap;

use lockstep_apply::ApplyError;
use lockstep_apply::catalog;
use lockstep_apply::sessions;
use lockstep_apply::source_table::{SourceColumn, SourceTable};
use lockstep_apply::table::{Table as Fitted, TargetTable};
use lockstep_apply::types::ColumnType;
use lockstep_client::{ClientError, Connection, Conninfo, Purpose, field};
use lockstep_wire::logical::ReplicaIdentity;

use super::binary;
use super::tables::{self, Table};
use crate::error::{ReplicaError, Result};
use crate::names::{TableName, named, quoted};
use crate::state::APPLICATION;

/// Columns of the target's tables that a parameter names, whether a row may give each a value and whether it
/// must; and whether other tables refer to the table.
const COLUMNS: &str = "SELECT n.nspname, c.relname, json_agg(json_build_array(a.attname, a.atttypid::bigint, \
        a.atttypmod, a.attgenerated <> '', (a.attnotnull OR t.typnotnull) AND NOT a.atthasdef AND a.attidentity = '' \
            AND t.typdefault IS NULL)), \
      EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.contype = 'f' AND k.confrelid = c.oid) \
    FROM pg_catalog.json_array_elements($1::pg_catalog.json) l \
      JOIN pg_catalog.pg_namespace n ON n.nspname = l ->> 0 \
      JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = l ->> 1 \
      JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
      JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
    GROUP BY n.nspname, c.relname, c.oid";

/// A column of the target.
struct Column {
    /// [`binary::written`].
    written: Option<String>,
    generated: bool,
    needs_value: bool,
}

/// A table of the target.
struct There {
    columns: HashMap<String, Column>,
    referred: bool,
}

/// Chooses how rows go into tables of the target: as text where a column has another type than the source's.
/// An error for one that would not take them all as they are.
pub fn fit(target: &Conninfo, all: &mut [Table]) -> Result<()> {
    let open = || sessions::open(target, Purpose::Sql, APPLICATION);
    let mut there = open()
        .and_then(|mut session| read(&mut session, all))
        .map_err(ReplicaError::Target)?;
    let mut others = Vec::new();
    for table in all {
        let Some(found) = there.remove(&table.name) else {
            others.push(&*table);
            continue;
        };
        table.referred = found.referred;
        check_given(table, &found)?;
        let is_alike = table.types.iter().all(|column| {
            let ours = found.columns.get(&column.name);
            column.written.is_some()
                && ours.is_some_and(|it| it.written == column.written && !it.generated)
        });
        if !is_alike {
            table.binary = false;
            others.push(&*table);
        }
    }
    if others.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = others.iter().map(|table| &table.name).collect();
    let described = open().and_then(|session| catalog::described(session, &names));
    let described = described.map_err(ReplicaError::Target)?;
    let mut both = others.iter().zip(&described);
    both.try_for_each(|(table, there)| check(table, there.as_ref()))
}

fn read(session: &mut Connection, all: &[Table]) -> Result<HashMap<TableName, There>, ClientError> {
    let types = tables::types(session)?;
    let names: Vec<_> = (all.iter())
        .map(|table| (&table.name.schema, &table.name.table))
        .collect();
    let names = serde_json::json!(names).to_string();
    let mut there = HashMap::new();
    for row in session.query_with(COLUMNS, &[&names])? {
        let name = TableName {
            schema: field(&row, 0)?,
            table: field(&row, 1)?,
        };
        let columns: String = field(&row, 2)?;
        let columns: Vec<(String, u32, i32, bool, bool)> = serde_json::from_str(&columns)
            .map_err(|error| ClientError::Protocol(format!("columns of {name}: {error}")))?;
        let of_column = |(name, oid, modifier, generated, needs_value)| {
            let of = ColumnType { oid, modifier };
            let written = binary::written(&types, of);
            (
                name,
                Column {
                    written,
                    generated,
                    needs_value,
                },
            )
        };
        let found = There {
            columns: columns.into_iter().map(of_column).collect(),
            referred: field(&row, 3)?,
        };
        there.insert(name, found);
    }
    Ok(there)
}

/// An error if the target's table wants values that the source has not.
fn check_given(table: &Table, there: &There) -> Result<()> {
    let is_given = |name: &String| table.types.iter().any(|column| column.name == *name);
    let wants = (there.columns.iter())
        .filter(|(name, column)| column.needs_value && !is_given(name))
        .map(|(name, _)| quoted(name));
    let mut wants: Vec<_> = wants.collect();
    wants.sort_unstable();
    match wants.is_empty() {
        true => Ok(()),
        false => Err(ReplicaError::State(format!(
            "table {} of the target takes no row of the source: it has columns that are NOT NULL without a \
             default, and for which the source has no values: {}. Give them a default there (ALTER TABLE ... \
             ALTER COLUMN ... SET DEFAULT), or let them be NULL",
            table.name,
            named(&wants)
        ))),
    }
}

/// An error if changes of the table would not be applied, either.
fn check(table: &Table, there: Option<&TargetTable>) -> Result<()> {
    let refused = |words: &str| {
        ReplicaError::State(format!(
            "table {} of the target cannot hold the source's rows: {words}",
            table.name
        ))
    };
    let there = there.ok_or_else(|| refused("it does not exist"))?;
    let columns = table.types.iter().map(|column| SourceColumn {
        name: column.name.clone(),
        key: false,
        kind: column.bottom.oid,
        modifier: column.bottom.modifier,
        base: None,
    });
    let source = SourceTable {
        oid: table.oid,
        name: table.name.clone(),
        identity: ReplicaIdentity::Nothing,
        columns: columns.collect(),
    };
    match Fitted::fit(&source, there) {
        Ok(_) => Ok(()),
        Err(ApplyError::Conflict(conflict)) => Err(refused(&conflict.message)),
        Err(error) => Err(ReplicaError::Apply(error)),
    }
}
