//! Foreign keys of which a side is replicated in part. The target checks them once, when they are made
//! after the copy; here the source is asked whether the rows that would be there satisfy them.

use lockstep_client::{ClientError, Connection, field};

use super::facts::{Facts, Filled, ForeignKey, Reference, Table};
use crate::names::{TableName, quoted};
use crate::publication::subset::parenthesised;

/// Foreign keys that the target will check. Those of partitions belong to their root's.
const FOREIGN_KEYS: &str = "
SELECT k.conname, n.nspname, c.relname, fn.nspname, f.relname, k.confmatchtype = 'f',
    (SELECT json_agg(json_build_array(a.attname, fa.attname, pn.nspname, o.oprname) ORDER BY p.place)
        FROM generate_subscripts(k.conkey, 1) p(place)
        JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[p.place]
        JOIN pg_attribute fa ON fa.attrelid = k.confrelid AND fa.attnum = k.confkey[p.place]
        JOIN pg_operator o ON o.oid = k.conpfeqop[p.place]
        JOIN pg_namespace pn ON pn.oid = o.oprnamespace)
FROM pg_constraint k
    JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_class f ON f.oid = k.confrelid JOIN pg_namespace fn ON fn.oid = f.relnamespace
WHERE k.contype = 'f' AND k.conparentid = 0 AND k.convalidated ORDER BY 2, 3, 1";

/// A foreign key as the catalog has it.
struct Key {
    name: String,
    table: TableName,
    referenced: TableName,
    match_full: bool,
    /// Column, referenced column, and the operator that compares the second with the first.
    columns: Vec<(String, String, String)>,
}

/// Looks at the foreign keys that a row filter or a column list touches.
pub fn look(source: &mut Connection, facts: &Facts) -> Result<Vec<ForeignKey>, ClientError> {
    let mut found = Vec::new();
    let unclear = |name: &TableName| {
        let mut of = leaves(facts, name);
        of.any(|table| {
            facts
                .looked_at(table)
                .is_some_and(|it| it.refused.is_some())
        })
    };
    for row in source.query(FOREIGN_KEYS)? {
        let key = key(&row)?;
        let is_included = |name: &TableName| facts.included().any(|table| table.name == *name);
        let skipped = !is_included(&key.table)
            || !is_included(&key.referenced)
            || unclear(&key.table)
            || unclear(&key.referenced);
        if skipped {
            continue;
        }
        if let Some(reference) = reference(source, facts, &key)? {
            found.push(ForeignKey {
                name: key.name,
                table: key.table,
                referenced: key.referenced,
                reference,
            });
        }
    }
    Ok(found)
}

fn key(row: &[Option<String>]) -> Result<Key, ClientError> {
    let json: String = field(row, 6)?;
    let columns: Vec<(String, String, String, String)> = serde_json::from_str(&json)
        .map_err(|error| ClientError::Protocol(format!("\"{json}\": {error}")))?;
    let operator = |(column, referenced, schema, operator): (String, String, String, String)| {
        let operator = format!("OPERATOR({}.{operator})", quoted(&schema));
        (column, referenced, operator)
    };
    let name = |place| -> Result<TableName, ClientError> {
        Ok(TableName {
            schema: field(row, place)?,
            table: field(row, place + 1)?,
        })
    };
    Ok(Key {
        name: field(row, 0)?,
        table: name(1)?,
        referenced: name(3)?,
        match_full: field(row, 5)?,
        columns: columns.into_iter().map(operator).collect(),
    })
}

/// The tables that hold a table's rows on the target: itself, or its partitions.
fn leaves<'a>(facts: &'a Facts, name: &'a TableName) -> impl Iterator<Item = &'a Table> {
    facts
        .copied()
        .filter(move |table| table.name == *name || table.ancestors.contains(name))
}

/// Columns of a leaf that the list leaves out, with what fills them.
fn left_out<'a>(facts: &'a Facts, table: &Table, name: &str) -> Option<&'a Filled> {
    let looked = facts.looked_at(table)?;
    let column = looked.left_out.iter().find(|column| column.name == name);
    column.map(|column| &column.filled)
}

/// None if the foreign key holds on the target whenever it does on the source.
fn reference(
    source: &mut Connection,
    facts: &Facts,
    key: &Key,
) -> Result<Option<Reference>, ClientError> {
    for table in leaves(facts, &key.referenced) {
        let mut columns = key.columns.iter().map(|(_, referenced, _)| referenced);
        if let Some(column) = columns.find(|name| left_out(facts, table, name).is_some()) {
            return Ok(Some(Reference::LeavesOutReferenced(column.clone())));
        }
    }
    let mut referencing = Vec::new();
    for table in leaves(facts, &key.table) {
        let columns = key.columns.iter().map(|(column, _, _)| column);
        let gone: Vec<_> = columns
            .filter_map(|name| Some((name, left_out(facts, table, name)?)))
            .collect();
        let filled = gone.iter().find(|(_, filled)| **filled != Filled::WithNull);
        let is_partly_null = key.match_full && !gone.is_empty() && gone.len() < key.columns.len();
        match (gone.first(), filled) {
            (_, Some((column, _))) => {
                return Ok(Some(Reference::LeavesOut((*column).clone())));
            }
            (Some((column, _)), None) if is_partly_null => {
                return Ok(Some(Reference::LeavesOut((*column).clone())));
            }
            // All of its rows refer to nothing.
            (Some(_), None) => {}
            (None, None) => referencing.push(table),
        }
    }
    let referenced: Vec<_> = leaves(facts, &key.referenced).collect();
    let filter = |table: &&Table| facts.subset_of(table).and_then(|it| it.filter.as_ref());
    let is_filtered = referenced.iter().any(|table| filter(table).is_some());
    let mut both = referenced.iter().chain(&referencing);
    // Rights that are missing are found elsewhere, and are mended first.
    if !is_filtered || referencing.is_empty() || !both.all(|table| table.readable) {
        return Ok(None);
    }
    Ok(Some(
        match dangles(source, facts, key, (&referencing, &referenced))? {
            true => Reference::Dangles,
            false => Reference::Holds,
        },
    ))
}

/// Whether a row that is replicated refers to one that is not.
fn dangles(
    source: &mut Connection,
    facts: &Facts,
    key: &Key,
    (referencing, referenced): (&[&Table], &[&Table]),
) -> Result<bool, ClientError> {
    let from = rows(facts, referencing, key.columns.iter().map(|it| &it.0));
    let to = rows(facts, referenced, key.columns.iter().map(|it| &it.1));
    let (mut some, mut equal) = (Vec::new(), Vec::new());
    for ((_, _, operator), number) in key.columns.iter().zip(1..) {
        some.push(format!("c.k{number} IS NOT NULL"));
        equal.push(format!("p.k{number} {operator} c.k{number}"));
    }
    let sql = format!(
        "SELECT EXISTS (SELECT FROM ({from}) AS c WHERE {} \
         AND NOT EXISTS (SELECT FROM ({to}) AS p WHERE {}))",
        some.join(" AND "),
        equal.join(" AND ")
    );
    field(&source.query_one(&sql)?, 0)
}

/// The rows of tables that the target will have, in SQL: columns `k1`, `k2`, ...
fn rows<'a>(facts: &Facts, tables: &[&Table], columns: impl Iterator<Item = &'a String>) -> String {
    let columns = columns.zip(1..);
    let columns: Vec<_> = columns
        .map(|(name, number)| format!("{} AS k{number}", quoted(name)))
        .collect();
    let selects = tables.iter().map(|table| {
        let filter = facts.subset_of(table).and_then(|it| it.filter.as_ref());
        let filter = filter.map(|filter| format!(" WHERE {}", parenthesised(filter)));
        format!(
            "SELECT {} FROM ONLY {}{}",
            columns.join(", "),
            table.name.sql(),
            filter.unwrap_or_default()
        )
    });
    selects.collect::<Vec<_>>().join(" UNION ALL ")
}
