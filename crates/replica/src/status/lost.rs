//! Tables that were copied and whose changes the source sends no more: each was dropped there, renamed,
//! replaced by another table of its name, or taken out of the publication. Nothing of that is in the
//! stream, so `status` and `verify` ask for it.

use lockstep_client::{ClientError, Connection, field};

use crate::names::TableName;
use crate::state::{TableCopy, json_array};

/// A table that is not replicated any more.
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
    /// The source has it, its publication has not.
    Unpublished,
}

/// `$1` is the list of publications, `$2` that of tables with their OIDs, both as JSON.
const LOST: &str = "
WITH published AS (
    SELECT p.schemaname, p.tablename FROM pg_publication_tables p
    WHERE p.pubname IN (SELECT json_array_elements_text($1::json))
), asked AS (
    SELECT l ->> 0 AS schema_name, l ->> 1 AS table_name, (l ->> 2)::oid AS source_oid
    FROM json_array_elements($2::json) l
), found AS (
    SELECT a.schema_name, a.table_name, mn.nspname AS now_schema, m.relname AS now_name,
        CASE WHEN m.oid IS NOT NULL AND m.oid IS DISTINCT FROM c.oid THEN 'renamed'
            WHEN c.oid IS NULL THEN 'gone'
            WHEN c.oid <> a.source_oid THEN 'replaced'
            WHEN is_published THEN NULL ELSE 'unpublished' END AS why, is_published
    FROM asked a LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace)
            ON n.nspname = a.schema_name AND c.relname = a.table_name AND c.relkind = 'r'
        LEFT JOIN (pg_class m JOIN pg_namespace mn ON mn.oid = m.relnamespace)
            ON m.oid = a.source_oid AND m.relkind = 'r'
        CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM published p
            WHERE p.schemaname = coalesce(mn.nspname, a.schema_name)
                AND p.tablename = coalesce(m.relname, a.table_name)) AS is_published) s
)
SELECT * FROM found WHERE why IS NOT NULL ORDER BY 1, 2";

/// Which of a replica's tables are not replicated any more, as the source's session sees it. A table that
/// neither side has is no loss.
pub fn lost(
    source: &mut Connection,
    publications: &[String],
    tables: &[TableCopy],
) -> Result<Vec<Lost>, ClientError> {
    let asked: Vec<_> = (tables.iter())
        .map(|table| (&table.name.schema, &table.name.table, table.source_oid))
        .collect();
    let asked = serde_json::json!(asked).to_string();
    let mut lost = Vec::new();
    for row in source.query_with(LOST, &[&json_array(publications), &asked])? {
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
                match (there == Some(&now), field(&row, 5)?) {
                    (true, true) => continue,
                    (true, false) => Why::Unpublished,
                    (false, _) => Why::Renamed(now),
                }
            }
            "replaced" => Why::Replaced,
            _ => Why::Unpublished,
        };
        if why != Why::Gone || there.is_some() {
            lost.push(Lost { table, why });
        }
    }
    Ok(lost)
}

impl Lost {
    /// What has become of it on the source, in words.
    pub fn words(&self) -> String {
        match &self.why {
            Why::Gone => "the source no longer has such a table".to_owned(),
            Why::Renamed(name) => format!("it is called {name} on the source now"),
            Why::Replaced => "another table has its name on the source now".to_owned(),
            Why::Unpublished => "the publication does not have it any more".to_owned(),
        }
    }
}
