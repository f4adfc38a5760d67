//! Tables of the source that are not replicated, or not under their names. One that was copied was dropped
//! there, renamed, replaced by another table of its name, or taken out of the publication; another came
//! after the copy. Or the target's table is not the one that was copied into, or lacks columns. Nothing of
//! that is in the stream, so `run`, `status`, `start` and `verify` ask for it.

use std::collections::{BTreeSet, HashMap};

use lockstep_client::{ClientError, Connection, field};

use crate::names::{Excluded, TableName, quoted, tables_of, with_namespaces};
use crate::state::{Doubt, TableCopy, TableState, json_array};

/// A table that is not replicated, or not under its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    pub table: TableName,
    pub why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// The source has no such table, and the target has.
    Gone,
    /// The source has it under this name, and the target under another.
    Renamed(TableName),
    /// The source has another table of this name.
    Replaced,
    /// The target has no such table any more, nor another of its name.
    Missing,
    /// The target has it under this name, and the source under its own.
    RenamedHere(TableName),
    /// The target has another table of its name than the one that was copied into.
    ReplacedHere,
    /// The target's table, or a partition of it, is unlogged.
    Unlogged,
    /// The target's table is in order again, and its rows may not be.
    Doubted(Doubt),
    /// The source has it, its publication has not.
    Unpublished,
    /// The source has made it after the copy, or has made it a logged one, or has moved it out of an
    /// excluded schema.
    Uncopied,
    /// The source has made it as a partition after the copy, and the target has no such partition under its
    /// name, but another table.
    NoPartition,
    /// Rows of a later partition from before this are missing; and what sends all its rows again.
    Older(String, String),
    /// Whether rows of a later partition from before this are missing is not known, and why.
    PerhapsOlder(String, String),
    /// The source sends these columns, and the target's table has none of their names.
    NoColumns(Vec<String>),
    /// Partition of this table on the source, and of none of the source's tables on the target.
    Outside(TableName),
}

impl Why {
    /// Whether a replica that follows changes of the schema will not come to it by itself: the source is
    /// ahead of what is applied.
    pub fn stays(&self) -> bool {
        match self {
            Self::Missing
            | Self::RenamedHere(_)
            | Self::ReplacedHere
            | Self::Unlogged
            | Self::Doubted(_)
            | Self::Unpublished
            | Self::Uncopied => true,
            Self::Gone
            | Self::Renamed(_)
            | Self::Replaced
            | Self::NoPartition
            | Self::Older(..)
            | Self::PerhapsOlder(..)
            | Self::NoColumns(_)
            | Self::Outside(_) => false,
        }
    }
}

/// A table of a publication with the columns that are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub table: TableName,
    columns: Vec<String>,
    /// The tables that it is a partition of, the nearest first.
    above: Vec<TableName>,
}

/// `$1` is the list of publications, `$2` that of tables with their OIDs, both as JSON.
const LOST: &str = "
WITH published AS MATERIALIZED (
    SELECT DISTINCT p.schemaname, p.tablename FROM pg_publication_tables p
    WHERE p.pubname IN (SELECT json_array_elements_text($1::json))
), asked AS (
    SELECT l ->> 0 AS schema_name, l ->> 1 AS table_name, (l ->> 2)::oid AS source_oid
    FROM json_array_elements($2::json) l
), found AS (
    SELECT a.schema_name, a.table_name, mn.nspname AS now_schema, m.relname AS now_name,
        CASE WHEN m.oid IS NOT NULL AND m.oid IS DISTINCT FROM c.oid THEN 'renamed'
            WHEN c.oid IS NULL THEN 'gone'
            WHEN c.oid <> a.source_oid THEN 'replaced'
            WHEN p.tablename IS NOT NULL THEN NULL ELSE 'unpublished' END AS why,
        p.tablename IS NOT NULL AS is_published
    FROM asked a LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace)
            ON n.nspname = a.schema_name AND c.relname = a.table_name AND c.relkind = 'r'
        LEFT JOIN (pg_class m JOIN pg_namespace mn ON mn.oid = m.relnamespace)
            ON m.oid = a.source_oid AND m.relkind = 'r'
        LEFT JOIN published p ON p.schemaname = coalesce(mn.nspname, a.schema_name)
            AND p.tablename = coalesce(m.relname, a.table_name)
)
SELECT * FROM found WHERE why IS NOT NULL ORDER BY 1, 2";

/// Copied tables with their OIDs on the source, as a parameter.
fn asked(tables: &[TableCopy]) -> String {
    let asked: Vec<_> = (tables.iter())
        .map(|table| (&table.name.schema, &table.name.table, table.source_oid))
        .collect();
    serde_json::json!(asked).to_string()
}

/// Which of a replica's tables are not replicated any more, as the source's session sees it. A table that
/// neither side has is no loss.
pub fn lost(
    source: &mut Connection,
    publications: &[String],
    tables: &[TableCopy],
) -> Result<Vec<Lost>, ClientError> {
    let (mut lost, mut found, mut fine) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for row in source.query_with(LOST, &[&json_array(publications), &asked(tables)])? {
        let table = TableName {
            schema: field(&row, 0)?,
            table: field(&row, 1)?,
        };
        let listed = tables.iter().find(|one| one.name == table);
        let there = listed.and_then(|listed| listed.there.as_ref());
        let why: String = field(&row, 4)?;
        let why = match why.as_str() {
            "gone" => Why::Gone,
            "renamed" => {
                let now = TableName {
                    schema: field(&row, 2)?,
                    table: field(&row, 3)?,
                };
                match (there, field(&row, 5)?) {
                    (None, _) => Why::Missing,
                    (Some(there), true) if *there == now => {
                        fine.insert(table);
                        continue;
                    }
                    (Some(there), false) if *there == now => Why::Unpublished,
                    (Some(_), _) => Why::Renamed(now),
                }
            }
            // Both sides have replaced it, and the publication has the new one.
            "replaced" if field(&row, 5)? && listed.is_some_and(|listed| listed.replaced) => {
                fine.insert(table);
                continue;
            }
            "replaced" => Why::Replaced,
            _ => Why::Unpublished,
        };
        found.insert(table.clone());
        if why != Why::Gone || there.is_some() {
            lost.push(Lost { table, why });
        }
    }
    let is_as_before =
        |table: &&TableCopy| table.state == TableState::Copied && !found.contains(&table.name);
    for table in tables.iter().filter(is_as_before) {
        let is_fine = fine.contains(&table.name);
        let why = match (&table.there, table.replaced) {
            (None, _) => Why::Missing,
            (Some(_), true) if !is_fine => Why::ReplacedHere,
            (Some(there), false) if *there != table.name && !is_fine => {
                Why::RenamedHere(there.clone())
            }
            (Some(_), _) => match (table.unlogged, table.doubt) {
                (true, _) => Why::Unlogged,
                (false, Some(doubt)) => Why::Doubted(doubt),
                (false, None) => continue,
            },
        };
        let table = table.name.clone();
        lost.push(Lost { table, why });
    }
    Ok(lost)
}

/// Tables that a replica would copy if it was made now, and that none of `$2` (as in [`LOST`]) is. Each
/// comes with the partitioned tables above it. A partition that publication `$1` has, itself or by a table
/// above it, is replicated from its first row on; `{published}` chooses whether those are asked for.
const UNCOPIED: &str = "
WITH asked AS (
    SELECT l ->> 0 AS schema_name, l ->> 1 AS table_name, (l ->> 2)::oid AS source_oid
    FROM json_array_elements($2::json) l
)
SELECT n.nspname, c.relname,
    (SELECT coalesce(json_agg(json_build_array(an.nspname, a.relname)), '[]')
        FROM pg_partition_ancestors(c.oid) o JOIN pg_class a ON a.oid = o.relid AND a.oid <> c.oid
        JOIN pg_namespace an ON an.oid = a.relnamespace)::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN asked o ON o.source_oid = c.oid
WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND {namespaces} AND o.source_oid IS NULL
    AND NOT EXISTS (SELECT FROM asked a
        WHERE a.schema_name = n.nspname AND a.table_name = c.relname AND (a.source_oid IS NULL
            OR NOT EXISTS (SELECT FROM pg_class x WHERE x.oid = a.source_oid)))
    AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_class'::regclass
        AND e.objid = c.oid AND e.deptype = 'e')
    AND {published} (SELECT FROM pg_publication_rel r
        JOIN pg_publication p ON p.oid = r.prpubid
            AND p.pubname IN (SELECT json_array_elements_text($1::json))
        WHERE c.relispartition AND r.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid)))
ORDER BY 1, 2";

/// Tables of the source that came after the copy of `tables`, without those that are left out.
pub fn uncopied(
    source: &mut Connection,
    publications: &[String],
    tables: &[TableCopy],
    excluded: &Excluded,
) -> Result<Vec<Lost>, ClientError> {
    let sql = UNCOPIED.replace("{published}", "NOT EXISTS");
    let found = after_the_copy(source, &sql, publications, tables, excluded)?;
    let why = Why::Uncopied;
    Ok(lost_for(found, &why))
}

/// Partitions that came after the copy of `tables` and are replicated, if the target has them.
pub fn later_partitions(
    source: &mut Connection,
    publications: &[String],
    tables: &[TableCopy],
    excluded: &Excluded,
) -> Result<Vec<TableName>, ClientError> {
    let sql = UNCOPIED.replace("{published}", "EXISTS");
    after_the_copy(source, &sql, publications, tables, excluded)
}

/// Tables of `$1` that are there and are no partitions that rows are applied to.
const NO_PARTITIONS: &str = "
SELECT n.nspname, c.relname
FROM json_array_elements($1::json) s JOIN pg_namespace n ON n.nspname = s ->> 0
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s ->> 1
WHERE c.relkind IN ('r', 'p')
    AND NOT (c.relispartition AND c.relkind = 'r' AND c.relpersistence = 'p')
ORDER BY 1, 2";

/// Which of the source's later partitions are other tables on the target, so that their changes are skipped.
pub fn no_partitions(
    target: &mut Connection,
    later: &[TableName],
) -> Result<Vec<Lost>, ClientError> {
    if later.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<_> = later
        .iter()
        .map(|name| (&name.schema, &name.table))
        .collect();
    let rows = target.query_with(NO_PARTITIONS, &[&serde_json::json!(names).to_string()])?;
    let found: Result<Vec<_>, ClientError> = rows.iter().map(|row| name_of(row)).collect();
    Ok(lost_for(found?, &Why::NoPartition))
}

/// `$1` is the list of publications as JSON.
const SENT: &str = "
WITH named AS MATERIALIZED (
    SELECT i.inhparent, json_agg(json_build_array(an.nspname, a.relname) ORDER BY o.place) AS names
    FROM (SELECT DISTINCT inhparent FROM pg_inherits) i
        JOIN pg_class parent ON parent.oid = i.inhparent AND parent.relkind = 'p'
        CROSS JOIN pg_partition_ancestors(i.inhparent) WITH ORDINALITY o(relid, place)
        JOIN pg_class a ON a.oid = o.relid
        JOIN pg_namespace an ON an.oid = a.relnamespace
    GROUP BY i.inhparent)
SELECT p.schemaname, p.tablename, (SELECT json_agg(a.attname) FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
        AND a.attname = ANY (p.attnames))::text,
    coalesce(named.names::text, '[]')
FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename AND c.relkind = 'r'
    LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND c.relispartition
    LEFT JOIN named ON named.inhparent = i.inhparent
WHERE p.pubname IN (SELECT json_array_elements_text($1::json))
ORDER BY 1, 2";

/// What publications send.
pub fn sent(source: &mut Connection, publications: &[String]) -> Result<Vec<Sent>, ClientError> {
    let read = |row: &Vec<Option<String>>| {
        Ok(Sent {
            table: name_of(row)?,
            columns: names_of(row, 2)?,
            above: tables_of(row, 3)?,
        })
    };
    let rows = source.query_with(SENT, &[&json_array(publications)])?;
    rows.iter().map(read).collect()
}

/// Columns of the tables of `$1`, with the place of each table there.
const COLUMNS: &str = "
SELECT s.place, json_agg(a.attname)::text
FROM json_array_elements($1::json) WITH ORDINALITY s(of, place)
    JOIN pg_namespace n ON n.nspname = s.of ->> 0
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s.of ->> 1 AND c.relkind IN ('r', 'p')
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
GROUP BY 1";

/// Tables of which the source sends a column that the target's table has not: the next change of one stops
/// the replica, and what a new column holds already is not in the stream. One that the target has not is
/// none of these.
pub fn without_columns(
    target: &mut Connection,
    sent: &[Sent],
    tables: &[TableCopy],
) -> Result<Vec<Lost>, ClientError> {
    let there = there(tables);
    let asked = sent.iter().map(|one| {
        let there = there(&one.table);
        (&there.schema, &there.table)
    });
    let asked = serde_json::json!(asked.collect::<Vec<_>>()).to_string();
    let mut lost = Vec::new();
    for row in target.query_with(COLUMNS, &[&asked])? {
        let place: usize = field(&row, 0)?;
        let there = names_of(&row, 1)?;
        if let Some(sent) = sent.get(place.saturating_sub(1)) {
            let columns = sent.columns.iter().filter(|name| !there.contains(name));
            let columns: Vec<_> = columns.cloned().collect();
            lost.extend((!columns.is_empty()).then(|| Lost {
                table: sent.table.clone(),
                why: Why::NoColumns(columns),
            }));
        }
    }
    lost.sort_by(|one, other| one.table.cmp(&other.table));
    Ok(lost)
}

/// What each table of the source is called on the target, as far as it was copied.
fn there<'a>(tables: &'a [TableCopy]) -> impl Fn(&'a TableName) -> &'a TableName {
    let copied: HashMap<_, _> = tables.iter().map(|one| (&one.name, one)).collect();
    move |name| {
        let there = copied.get(name).and_then(|copied| copied.there.as_ref());
        there.unwrap_or(name)
    }
}

/// The places in `$1` of tables that are there and below no table of the other names.
const OUTSIDE: &str = "
SELECT s.place
FROM json_array_elements($1::json) WITH ORDINALITY s(of, place)
    JOIN pg_namespace n ON n.nspname = s.of ->> 0
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s.of ->> 1 AND c.relkind IN ('r', 'p')
WHERE NOT EXISTS (SELECT FROM pg_partition_ancestors(c.oid) o JOIN pg_class a ON a.oid = o.relid
    JOIN pg_namespace an ON an.oid = a.relnamespace
    JOIN json_array_elements(s.of -> 2) w ON an.nspname = w ->> 0 AND a.relname = w ->> 1)
ORDER BY 1";

/// Partitions that are in none of the source's partitioned tables on the target: who reads those there does
/// not find their rows.
pub fn outside(
    target: &mut Connection,
    sent: &[Sent],
    tables: &[TableCopy],
) -> Result<Vec<Lost>, ClientError> {
    let there = there(tables);
    let below = sent
        .iter()
        .filter_map(|one| Some((one, one.above.first()?)));
    let below: Vec<_> = below.collect();
    let asked = below.iter().map(|(one, _)| {
        let there = there(&one.table);
        let above = one.above.iter().map(|above| (&above.schema, &above.table));
        (&there.schema, &there.table, above.collect::<Vec<_>>())
    });
    let asked = serde_json::json!(asked.collect::<Vec<_>>()).to_string();
    if below.is_empty() {
        return Ok(Vec::new());
    }
    let mut lost = Vec::new();
    for row in target.query_with(OUTSIDE, &[&asked])? {
        let place: usize = field(&row, 0)?;
        lost.extend(below.get(place.saturating_sub(1)).map(|(one, above)| Lost {
            table: one.table.clone(),
            why: Why::Outside((*above).clone()),
        }));
    }
    Ok(lost)
}

fn lost_for(tables: Vec<TableName>, why: &Why) -> Vec<Lost> {
    let lost = |table| Lost {
        table,
        why: why.clone(),
    };
    tables.into_iter().map(lost).collect()
}

fn name_of(row: &[Option<String>]) -> Result<TableName, ClientError> {
    Ok(TableName {
        schema: field(row, 0)?,
        table: field(row, 1)?,
    })
}

fn after_the_copy(
    source: &mut Connection,
    sql: &str,
    publications: &[String],
    tables: &[TableCopy],
    excluded: &Excluded,
) -> Result<Vec<TableName>, ClientError> {
    let sql = with_namespaces(sql);
    let rows = source.query_with(&sql, &[&json_array(publications), &asked(tables)])?;
    let mut found = Vec::new();
    for row in rows {
        let table = name_of(&row)?;
        let above = tables_of(&row, 2)?;
        if !above
            .iter()
            .chain([&table])
            .any(|name| excluded.names(name))
        {
            found.push(table);
        }
    }
    Ok(found)
}

/// A list of names, as JSON.
pub(crate) fn names_of(row: &[Option<String>], place: usize) -> Result<Vec<String>, ClientError> {
    let json: Option<String> = field(row, place)?;
    let Some(json) = json else {
        return Ok(Vec::new());
    };
    serde_json::from_str(&json).map_err(|error| ClientError::Protocol(error.to_string()))
}

impl Lost {
    /// Why its rows may not be the source's any more, even if this is mended; None if that is not so.
    pub fn doubt(&self) -> Option<Doubt> {
        match self.why {
            Why::Unlogged => Some(Doubt::Unlogged),
            Why::ReplacedHere => Some(Doubt::Replaced),
            Why::NoColumns(_) => Some(Doubt::NoColumns),
            _ => None,
        }
    }

    /// What has become of it on the source, and what mends that, in words.
    pub fn words(&self) -> String {
        match &self.why {
            Why::Gone => {
                "the source no longer has such a table: drop it on the target as well".to_owned()
            }
            Why::Renamed(name) => {
                format!("it is called {name} on the source now: rename it on the target as well")
            }
            Why::Replaced => "another table has its name on the source now".to_owned(),
            Why::Missing => "the target no longer has such a table, nor its rows".to_owned(),
            Why::RenamedHere(name) => {
                format!("it is called {name} on the target: rename it there, or on the source")
            }
            Why::ReplacedHere => "the target has another table in place of the one that was copied into, \
                                  perhaps without its rows: lockstep replica verify compares them, and if \
                                  they \
                                  are equal it takes that table for the copy"
                .to_owned(),
            Why::Unlogged => "on the target it is unlogged, so that a crash there empties it: make it logged \
                              (ALTER TABLE ... SET LOGGED) and then run lockstep replica verify, which finds \
                              whether it still has its rows"
                .to_owned(),
            Why::Doubted(doubt) => {
                let was = match doubt {
                    Doubt::Unlogged => "was unlogged for a time, and a crash would have emptied it",
                    Doubt::Replaced => "was not in its place for a time, and changes may have missed it",
                    Doubt::NoColumns => "had not all columns for a time, and what they hold in rows from \
                        before \
                                         is not in the stream",
                };
                format!(
                    "the target's table {was}: lockstep replica verify compares them, and says nothing of \
                        this \
                     any more if they are equal"
                )
            }
            Why::Unpublished => "the publication does not have it any more".to_owned(),
            Why::Uncopied => "it was made, or became logged, after the copy".to_owned(),
            Why::NoPartition => "the source has made this partition after the copy, and on the target the \
                                 table is no partition, so its changes are skipped: make it a partition there \
                                 before the first row comes"
                .to_owned(),
            Why::Older(since, command) => format!(
                "rows of {} from before {since} are not replicated. To send all its rows again, once the \
                 target has the partition, run on the source: {command} Then lockstep replica verify says \
                 whether they are there",
                self.table
            ),
            Why::PerhapsOlder(since, why) => format!(
                "whether rows of {} from before {since} are missing is not known ({why}): lockstep replica \
                 verify compares them",
                self.table
            ),
            Why::NoColumns(columns) => {
                let columns: Vec<_> = columns.iter().map(|name| quoted(name)).collect();
                format!(
                    "the target's table has no column {}, which the source sends: give it the source's \
                     columns with what they hold in each row, and then run lockstep replica verify, which \
                     compares \
                     them",
                    columns.join(", ")
                )
            }
            Why::Outside(above) => format!(
                "on the source it is a partition of {above}, and on the target of no table of that name: who \
                 reads {above} there does not see its rows. Attach it there (ALTER TABLE ... ATTACH PARTITION)"
            ),
        }
    }
}

/// Number of the source's sequences, which are in no stream.
pub fn sequences(source: &mut Connection, excluded: &Excluded) -> Result<u64, ClientError> {
    let sql = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
               WHERE c.relkind = 'S' AND c.relpersistence = 'p' AND {namespaces} \
                 AND n.nspname <> ALL (ARRAY(SELECT json_array_elements_text($1::json)))";
    let rows = source.query_with(&with_namespaces(sql), &[&json_array(&excluded.schemas)])?;
    field(rows.first().map_or(&[][..], Vec::as_slice), 0)
}
