//! What the source says of tables that have a row filter or a column list.
//!
//! Whether a filter can be published is not decided here: a publication of the one table is made in a
//! transaction that is rolled back.

use lockstep_client::{ClientError, Connection, field};

use super::facts::{Facts, Filled, LeftOut, SubsetFacts, Table, UniqueFacts};
use crate::publication::subset::{Subset, parenthesised};

/// The columns, but for those that are generated: what fills one that is not replicated, and whether
/// values can be stored out of line. A domain brings conditions and a default of its own.
const COLUMNS: &str = "
SELECT a.attname, a.attgenerated <> '',
    a.attnotnull OR EXISTS (
        WITH RECURSIVE d AS (SELECT a.atttypid AS oid
            UNION ALL SELECT t.typbasetype FROM d JOIN pg_type t ON t.oid = d.oid
            WHERE t.typtype = 'd')
        SELECT FROM d JOIN pg_type t ON t.oid = d.oid WHERE t.typtype = 'd' AND t.typnotnull),
    a.attidentity <> '' OR EXISTS (SELECT FROM pg_attrdef e
        JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = e.oid
        JOIN pg_class s ON d.refclassid = 'pg_class'::regclass AND s.oid = d.refobjid
        WHERE e.adrelid = a.attrelid AND e.adnum = a.attnum AND s.relkind = 'S'),
    a.atthasdef OR t.typdefault IS NOT NULL, a.attstorage <> 'p',
    (SELECT coalesce(json_agg(u.attname), '[]') FROM pg_attribute u
        WHERE a.attgenerated <> '' AND a.attnotnull AND u.attrelid = a.attrelid
            AND u.attnum <> a.attnum
            AND EXISTS (SELECT FROM pg_depend d LEFT JOIN pg_attrdef e
                    ON d.classid = 'pg_attrdef'::regclass AND e.oid = d.objid
                WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid
                    AND d.refobjsubid = u.attnum
                    AND (e.adrelid = a.attrelid AND e.adnum = a.attnum
                        OR d.classid = 'pg_class'::regclass AND d.objid = a.attrelid
                            AND d.objsubid = a.attnum)))
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";

/// Columns of the replica identity, if that is an index.
const IDENTITY: &str = "
SELECT a.attname FROM pg_class c
    JOIN pg_index i ON i.indrelid = c.oid AND CASE c.relreplident
        WHEN 'd' THEN i.indisprimary AND i.indimmediate WHEN 'i' THEN i.indisreplident END
    CROSS JOIN LATERAL generate_series(0, i.indnkeyatts - 1) k(place)
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[k.place]
WHERE c.oid = $1::oid ORDER BY a.attname";

/// Unique indexes and exclusion constraints: the columns that are keys as such, and all that they use.
const UNIQUES: &str = "
SELECT x.relname, i.indnullsnotdistinct,
    (SELECT coalesce(json_agg(a.attname), '[]')
        FROM generate_series(0, i.indnkeyatts - 1) k(place)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.place]),
    (SELECT coalesce(json_agg(a.attname), '[]') FROM pg_attribute a
        WHERE a.attrelid = i.indrelid AND a.attnum IN (SELECT d.refobjsubid FROM pg_depend d
            WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
                AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid))
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
WHERE i.indrelid = $1::oid AND (i.indisunique OR i.indisexclusion) ORDER BY 1";

const CHECKS: &str = "
SELECT k.conname, (SELECT coalesce(json_agg(a.attname), '[]') FROM pg_attribute a
    WHERE a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey))
FROM pg_constraint k WHERE k.conrelid = $1::oid AND k.contype = 'c' ORDER BY 1";

/// Columns, by the names that partitions have too, that the keys of partitioned tables above use: such a
/// column depends on its table.
const PARTITIONED_BY: &str = "
SELECT DISTINCT a.attname FROM pg_partition_ancestors($1::oid) p
    JOIN pg_partitioned_table t ON t.partrelid = p.relid
    JOIN pg_attribute a ON a.attrelid = p.relid AND a.attnum > 0
WHERE a.attnum = ANY (t.partattrs) OR EXISTS (SELECT FROM pg_depend d
    WHERE d.classid = 'pg_class'::regclass AND d.objid = p.relid AND d.objsubid = a.attnum
        AND d.refclassid = 'pg_class'::regclass AND d.refobjid = p.relid AND d.refobjsubid = 0
        AND d.deptype = 'i')
ORDER BY 1";

/// The server writes and reads values in one way alone then, whoever asks.
pub const ONE_WAY: &str = "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; \
    SET extra_float_digits = 3; SET bytea_output = 'hex'; SET lc_monetary = 'C'";

/// Columns that the filter in a publication names, and the filter as the server writes it. No row if the
/// filter is not there as it was given: its text must not bring other tables or options along.
const FILTER_COLUMNS: &str = "
SELECT (SELECT coalesce(json_agg(a.attname ORDER BY a.attname), '[]') FROM pg_attribute a
    WHERE a.attrelid = r.prrelid AND a.attnum IN (SELECT d.refobjsubid FROM pg_depend d
        WHERE d.classid = 'pg_publication_rel'::regclass AND d.objid = r.oid
            AND d.refclassid = 'pg_class'::regclass AND d.refobjid = r.prrelid)),
    pg_get_expr(r.prqual, r.prrelid)
FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
WHERE p.pubname = $1 AND r.prrelid = $2::oid AND p.pubinsert AND p.pubupdate AND p.pubdelete
    AND p.pubtruncate AND NOT p.pubviaroot
    AND (SELECT count(*) FROM pg_publication_rel o WHERE o.prpubid = p.oid) = 1";

/// Looks at each table that is copied and has a subset.
pub fn look(source: &mut Connection, facts: &Facts) -> Result<Vec<SubsetFacts>, ClientError> {
    let may_publish = !facts.source.in_recovery && (facts.source.create || facts.source.superuser);
    let mut found = Vec::new();
    for table in facts.copied() {
        let Some(subset) = facts.subset_of(table) else {
            continue;
        };
        let mut looked = of_table(source, table, subset)?;
        // Rights that are missing are found elsewhere, and are mended first.
        if may_publish && (table.owned || facts.source.superuser) {
            publish(source, table, subset, &mut looked)?;
        }
        found.push(looked);
    }
    Ok(found)
}

fn names(row: &[Option<String>], place: usize) -> Result<Vec<String>, ClientError> {
    let json: String = field(row, place)?;
    serde_json::from_str(&json)
        .map_err(|error| ClientError::Protocol(format!("\"{json}\": {error}")))
}

fn of_table(
    source: &mut Connection,
    table: &Table,
    subset: &Subset,
) -> Result<SubsetFacts, ClientError> {
    let identity = source.query_with(IDENTITY, &[&table.oid])?;
    let identity: Result<Vec<String>, _> = identity.iter().map(|row| field(row, 0)).collect();
    let mut found = SubsetFacts {
        table: table.name.clone(),
        identity_columns: identity?,
        ..SubsetFacts::default()
    };
    let is_left_out =
        |name: &String| (subset.columns.as_ref()).is_some_and(|it| !it.contains(name));
    for row in source.query_with(COLUMNS, &[&table.oid])? {
        let (name, is_generated): (String, bool) = (field(&row, 0)?, field(&row, 1)?);
        if is_generated {
            if subset.columns.is_some() && !is_left_out(&name) {
                found.generated_listed.push(name);
            } else if names(&row, 6)?.iter().any(is_left_out) {
                found.generated_not_null.push(name);
            }
        } else if is_left_out(&name) {
            let (by_sequence, has_default): (bool, bool) = (field(&row, 3)?, field(&row, 4)?);
            found.left_out.push(LeftOut {
                name,
                not_null: field(&row, 2)?,
                filled: match (by_sequence, has_default) {
                    (true, _) => Filled::BySequence,
                    (false, true) => Filled::ByDefault,
                    (false, false) => Filled::WithNull,
                },
            });
        } else if field(&row, 5)? && !found.identity_columns.contains(&name) {
            found.large_columns.push(name);
        }
    }
    for row in source.query_with(UNIQUES, &[&table.oid])? {
        found.uniques.push(UniqueFacts {
            name: field(&row, 0)?,
            nulls_equal: field(&row, 1)?,
            keys: names(&row, 2)?,
            used: names(&row, 3)?,
        });
    }
    for row in source.query_with(CHECKS, &[&table.oid])? {
        if names(&row, 1)?.iter().any(is_left_out) {
            found.checks.push(field(&row, 0)?);
        }
    }
    for row in source.query_with(PARTITIONED_BY, &[&table.oid])? {
        let name = field(&row, 0)?;
        if is_left_out(&name) {
            found.partitioned_by.push(name);
        }
    }
    Ok(found)
}

/// Publishes the table as it is asked for, and takes that back.
fn publish(
    source: &mut Connection,
    table: &Table,
    subset: &Subset,
    found: &mut SubsetFacts,
) -> Result<(), ClientError> {
    source.execute("BEGIN READ WRITE")?;
    let published = try_publish(source, table, subset);
    source.execute("ROLLBACK")?;
    match published {
        Ok(Some((columns, _))) => found.filter_columns = columns,
        Ok(None) => {
            found.refused = Some("the filter is not one expression".to_owned());
        }
        Err(error) => match error.refusal() {
            Some(refusal) => {
                let detail = refusal.detail.as_ref();
                let detail = detail.map(|words| format!(" ({})", words.trim_end_matches('.')));
                let message = &refusal.message;
                found.refused = Some(format!("{message}{}", detail.unwrap_or_default()));
            }
            None => return Err(error),
        },
    }
    Ok(())
}

/// A row filter of a table as the server writes it, which means the same whatever the settings of a session
/// are. None if the server refuses it.
pub fn written(
    source: &mut Connection,
    table: &Table,
    filter: &str,
) -> Result<Option<String>, ClientError> {
    let subset = Subset {
        table: table.name.clone(),
        filter: Some(filter.to_owned()),
        columns: None,
    };
    source.execute("BEGIN READ WRITE")?;
    let published = try_publish(source, table, &subset);
    source.execute("ROLLBACK")?;
    match published {
        Ok(found) => Ok(found.map(|(_, written)| written)),
        Err(error) if error.refusal().is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The columns that the filter names, and the filter as the server writes it. None if the filter says more
/// than a condition.
fn try_publish(
    source: &mut Connection,
    table: &Table,
    subset: &Subset,
) -> Result<Option<(Vec<String>, String)>, ClientError> {
    let name = format!("lockstep_preflight_{}", source.backend_pid());
    let table_sql = table.name.sql();
    let mut create = |name: &str, subset: &Subset| {
        // A statement with parameters is one statement, whatever the text is.
        let published = subset.published();
        let sql = format!("CREATE PUBLICATION {name} FOR TABLE ONLY {table_sql}{published}");
        source.query_with(&sql, &[])
    };
    create(&name, subset)?;
    let Some(filter) = &subset.filter else {
        return Ok(Some((Vec::new(), String::new())));
    };
    // A publication depends on the columns of its list, too.
    let name = format!("{name}_filter");
    let alone = Subset {
        columns: None,
        ..subset.clone()
    };
    create(&name, &alone)?;
    // What closes the parenthesis and goes on may suit a publication, but not a query as well.
    let condition = parenthesised(filter);
    let select = format!("SELECT ({condition}) IS NULL FROM ONLY {table_sql} LIMIT 0");
    source.query_with(&select, &[])?;
    // Until the end of the transaction, which is rolled back.
    source.execute(ONE_WAY)?;
    let rows = source.query_with(FILTER_COLUMNS, &[&name, &table.oid])?;
    let read = |row: &Vec<Option<String>>| Ok((names(row, 0)?, field(row, 1)?));
    rows.first().map(read).transpose()
}
