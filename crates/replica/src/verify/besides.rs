//! What is not compared and yet differs: tables that were copied and that the source does not send any
//! more, and rows that a query of a replicated table finds on the target in a partition or an
//! inheriting table that the source does not have.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_client::{ClientError, Connection, field};

use super::locked;
use super::statements::Published;
use super::{Difference, DifferenceKind, MOST_NAMED, Options, Result, TableReport, VerifyError};
use crate::names::{Excluded, TableName, tables_of};
use crate::status::lost::{Lost, Why, later_partitions, lost, names_of, no_partitions, uncopied};
use lockstep_apply::Others;

/// Tables below others, with all of those, the columns of the primary key, and the columns.
const BELOW: &str = "
WITH RECURSIVE up AS (
    SELECT i.inhrelid AS child, i.inhparent AS above FROM pg_inherits i
    UNION SELECT up.child, i.inhparent FROM up JOIN pg_inherits i ON i.inhrelid = up.above
)
SELECT n.nspname, c.relname, json_agg(json_build_array(an.nspname, a.relname))::text,
    (SELECT json_agg(k.attname ORDER BY p.place) FROM pg_index i
        CROSS JOIN LATERAL generate_series(0, i.indnkeyatts - 1) p(place)
        JOIN pg_attribute k ON k.attrelid = c.oid AND k.attnum = i.indkey[p.place]
        WHERE i.indrelid = c.oid AND i.indisprimary),
    (SELECT json_agg(k.attname ORDER BY k.attnum) FROM pg_attribute k
        WHERE k.attrelid = c.oid AND k.attnum > 0 AND NOT k.attisdropped)
FROM up JOIN pg_class c ON c.oid = up.child AND c.relkind = 'r' AND c.relpersistence <> 't'
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_class a ON a.oid = up.above AND a.relkind IN ('r', 'p')
    JOIN pg_namespace an ON an.oid = a.relnamespace
GROUP BY n.nspname, c.relname, c.oid ORDER BY 1, 2";

/// The tables in `$1` that exist, each with all that it is below.
const EXISTING: &str = "
WITH RECURSIVE found AS (
    SELECT c.oid, n.nspname, c.relname
    FROM json_array_elements($1::json) s JOIN pg_namespace n ON n.nspname = s ->> 0
        JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s ->> 1
    WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm')
), up AS (
    SELECT f.oid AS child, i.inhparent AS above FROM found f JOIN pg_inherits i ON i.inhrelid = f.oid
    UNION SELECT up.child, i.inhparent FROM up JOIN pg_inherits i ON i.inhrelid = up.above
)
SELECT f.nspname, f.relname, (SELECT coalesce(json_agg(json_build_array(n.nspname, c.relname)), '[]')
    FROM up JOIN pg_class c ON c.oid = up.above JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE up.child = f.oid)::text
FROM found f";

/// Finds it, at the moment of both sessions; `changed` could not be compared.
pub fn find(
    options: &Options,
    (source, target): (&mut Connection, &mut Connection),
    (compared, changed): (&[Published], Vec<TableName>),
) -> Result<Vec<TableReport>> {
    let is_compared = |name: &TableName| compared.iter().any(|one| one.table == *name);
    let (publications, listed) = (&options.publications, &options.listed);
    let mut lost = lost(source, publications, listed).map_err(VerifyError::Source)?;
    if let Others::LaterPartitions(excluded) = &options.starts.others {
        let uncopied = uncopied(source, publications, listed, excluded);
        lost.extend(uncopied.map_err(VerifyError::Source)?);
        let later = later_partitions(source, publications, listed, excluded);
        let later = later.map_err(VerifyError::Source)?;
        lost.extend(no_partitions(target, &later).map_err(VerifyError::Target)?);
    }
    let lost = (lost.into_iter())
        .filter(|lost| !is_compared(&lost.table) && !changed.contains(&lost.table));
    let mut reports: Vec<_> = lost.filter_map(report).collect();
    reports.extend(changed.iter().map(|table| not_compared(table.clone())));
    let nothing = Excluded::default();
    let excluded = match &options.starts.others {
        Others::All => &nothing,
        Others::LaterPartitions(excluded) => excluded,
    };
    let is_wanted = |below: &Below| {
        !is_compared(&below.table.table)
            && !reports
                .iter()
                .any(|report| report.table == below.table.table)
            && !excluded.names(&below.table.table)
            && !below.above.iter().any(|name| excluded.names(name))
    };
    let below = below(target).map_err(VerifyError::Target)?;
    let below: Vec<_> = below.into_iter().filter(is_wanted).collect();
    let (there, children) = existing(source, &below).map_err(VerifyError::Source)?;
    for Below { table, above } in below {
        let is_below = |name: &TableName| children.contains(&(table.table.clone(), name.clone()));
        if above.iter().any(is_below) || !above.iter().any(|name| there.contains(name)) {
            continue;
        }
        let names = table.names(MOST_NAMED + 1);
        let rows = locked::read(target, &table, |target| target.query(&names));
        let Some(rows) = rows.map_err(VerifyError::Target)? else {
            reports.push(not_compared(table.table));
            continue;
        };
        let extra = |row: &Vec<Option<String>>| {
            Ok(Difference {
                key: field(row, 0)?,
                kind: DifferenceKind::Extra,
            })
        };
        let differences: Result<Vec<_>, ClientError> = rows.iter().map(extra).collect();
        let differences = differences.map_err(VerifyError::Target)?;
        if !differences.is_empty() {
            reports.push(TableReport::new(table.table, table.key, 0, differences));
        }
    }
    Ok(reports)
}

fn not_compared(table: TableName) -> TableReport {
    let difference = Difference::of_table(DifferenceKind::NotCompared);
    TableReport::new(table, Vec::new(), 0, vec![difference])
}

/// None if the table is compared, perhaps under another name.
fn report(lost: Lost) -> Option<TableReport> {
    let (kind, key) = match lost.why {
        Why::Gone => (DifferenceKind::Gone, String::new()),
        Why::Renamed(name) => {
            let name = format!("{}.{}", name.schema, name.table);
            (DifferenceKind::Renamed, name)
        }
        Why::Replaced => (DifferenceKind::Replaced, String::new()),
        Why::Missing | Why::RenamedHere(_) | Why::NoColumns(_) => {
            (DifferenceKind::NoTable, String::new())
        }
        Why::ReplacedHere | Why::Older(..) | Why::PerhapsOlder(..) => {
            (DifferenceKind::NotCompared, String::new())
        }
        Why::Unlogged | Why::Doubted(_) | Why::Outside(_) => return None,
        Why::Unpublished => (DifferenceKind::Unpublished, String::new()),
        Why::Uncopied => (DifferenceKind::Uncopied, String::new()),
        Why::NoPartition => (DifferenceKind::NoPartition, String::new()),
    };
    let difference = vec![Difference { key, kind }];
    Some(TableReport::new(lost.table, Vec::new(), 0, difference))
}

/// A table of the target, and those that it is a partition of or inherits from.
struct Below {
    table: Published,
    above: Vec<TableName>,
}

fn below(target: &mut Connection) -> Result<Vec<Below>, ClientError> {
    let read = |row: &Vec<Option<String>>| {
        Ok(Below {
            table: Published {
                oid: 0,
                table: TableName {
                    schema: field(row, 0)?,
                    table: field(row, 1)?,
                },
                key: names_of(row, 3)?,
                by_value: BTreeMap::new(),
                columns: names_of(row, 4)?,
                is_ordered: false,
                filter: None,
                partitioned: false,
                estimate: 0,
            },
            above: tables_of(row, 2)?,
        })
    };
    target.query(BELOW)?.iter().map(read).collect()
}

/// Which of all these tables the source has, and of which others each of them is below.
type Existing = (BTreeSet<TableName>, BTreeSet<(TableName, TableName)>);

fn existing(source: &mut Connection, below: &[Below]) -> Result<Existing, ClientError> {
    let names = (below.iter()).flat_map(|one| one.above.iter().chain([&one.table.table]));
    let names: BTreeSet<_> = names.map(|name| (&name.schema, &name.table)).collect();
    let names = serde_json::json!(names).to_string();
    let rows = source.query_with(EXISTING, &[&names])?;
    let (mut there, mut children) = Existing::default();
    for row in &rows {
        let name = TableName {
            schema: field(row, 0)?,
            table: field(row, 1)?,
        };
        let above = tables_of(row, 2)?.into_iter();
        children.extend(above.map(|above| (name.clone(), above)));
        there.insert(name);
    }
    Ok((there, children))
}
