//! What the source's catalogs say of a publication, on every major alike.

use lockstep_client::quote::sql_literal;
use lockstep_client::{ClientError, Connection, field};

use crate::names::TableName;

/// A publication, as a JSON array. All names are qualified and there are no parameters, since a session
/// that is about to stream asks this, too. What a major does not have is null. The OID matters from 18 on,
/// where a stream goes on without a publication that is gone, and sends nothing.
const PUBLICATION: &str = "
SELECT pg_catalog.json_build_array(
    CASE WHEN pg_catalog.current_setting('server_version_num')::pg_catalog.int4 >= 180000
        THEN p.oid::pg_catalog.int8 END,
    pg_catalog.json_build_array(p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate),
    p.pubviaroot, p.puballtables,
    pg_catalog.to_jsonb(p) ->> 'pubgencols',
    (SELECT coalesce(pg_catalog.json_agg(n.nspname ORDER BY n.nspname), '[]')
        FROM pg_catalog.pg_publication_namespace s
            JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid
        WHERE s.pnpubid = p.oid),
    (SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_array(
            c.oid::pg_catalog.int8, n.nspname, c.relname, c.relkind = 'p',
            (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(a.attnum, a.attname)
                    ORDER BY a.attnum)
                FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum = ANY (r.prattrs)),
            pg_catalog.pg_get_expr(r.prqual, r.prrelid),
            pg_catalog.md5(r.prqual::pg_catalog.text)) ORDER BY n.nspname, c.relname), '[]')
        FROM pg_catalog.pg_publication_rel r
            JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE r.prpubid = p.oid))::pg_catalog.text
FROM pg_catalog.pg_publication p WHERE p.pubname = ";

/// Where tables stand among partitioned ones: each with its ancestors from the next above on, and the
/// partitioned tables from it on down. Those that do not exist any more are left out.
const PLACES: &str = "
SELECT c.oid::pg_catalog.int8, n.nspname, c.relname, c.relkind = 'p',
    (SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_array(
            a.oid::pg_catalog.int8, an.nspname, a.relname) ORDER BY o.place), '[]')
        FROM pg_catalog.pg_partition_ancestors(c.oid) WITH ORDINALITY AS o(relid, place)
            JOIN pg_catalog.pg_class a ON a.oid = o.relid AND a.oid <> c.oid
            JOIN pg_catalog.pg_namespace an ON an.oid = a.relnamespace)::pg_catalog.text,
    (SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_array(
            a.oid::pg_catalog.int8, an.nspname, a.relname)), '[]')
        FROM pg_catalog.pg_partition_tree(c.oid) t
            JOIN pg_catalog.pg_class a ON a.oid = t.relid AND a.relkind = 'p'
            JOIN pg_catalog.pg_namespace an ON an.oid = a.relnamespace)::pg_catalog.text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.oid IN (";

/// A publication as a source has it, or had it when the replica was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Published {
    /// Only from 18 on.
    pub oid: Option<u32>,
    /// Which of INSERT, UPDATE, DELETE and TRUNCATE the publication sends.
    pub sends: [bool; 4],
    pub via_root: bool,
    pub all_tables: bool,
    /// Which generated columns it sends; None before 18.
    pub generated: Option<String>,
    /// Schemas of which the publication has all tables.
    pub schemas: Vec<String>,
    pub tables: Vec<Entry>,
}

/// A table that a publication names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    pub oid: u32,
    pub table: TableName,
    pub is_partitioned: bool,
    /// The numbers and names of the columns of its list. A number stays if the column is renamed.
    pub columns: Option<Vec<(i16, String)>>,
    /// The entry's row filter, as the server writes it.
    pub filter: Option<String>,
    /// A digest of the filter as the server keeps it, which does not change if a column is renamed.
    pub digest: Option<String>,
}

/// A table among partitioned ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    pub oid: u32,
    pub table: TableName,
    pub is_partitioned: bool,
    /// The next one above is the first.
    pub above: Vec<(u32, TableName)>,
    /// Partitioned tables, itself included.
    pub tree: Vec<TableName>,
}

type EntryJson = (
    u32,
    String,
    String,
    bool,
    Option<Vec<(i16, String)>>,
    Option<String>,
    Option<String>,
);

type PublishedJson = (
    Option<u32>,
    [bool; 4],
    bool,
    bool,
    Option<String>,
    Vec<String>,
    Vec<EntryJson>,
);

impl Published {
    /// Out of what [`text`] has read.
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        let (oid, sends, via_root, all_tables, generated, schemas, tables): PublishedJson =
            serde_json::from_str(text)?;
        let entry = |(oid, schema, table, is_partitioned, columns, filter, digest)| Entry {
            oid,
            table: TableName { schema, table },
            is_partitioned,
            columns,
            filter,
            digest,
        };
        Ok(Self {
            oid,
            sends,
            via_root,
            all_tables,
            generated,
            schemas,
            tables: tables.into_iter().map(entry).collect(),
        })
    }

    pub fn entry(&self, oid: u32) -> Option<&Entry> {
        self.tables.iter().find(|entry| entry.oid == oid)
    }
}

/// The publication as JSON, as a state keeps it. None if there is none.
pub fn text(source: &mut Connection, publication: &str) -> Result<Option<String>, ClientError> {
    let sql = format!("{PUBLICATION}{}", sql_literal("publication", publication)?);
    let rows = source.query(&sql)?;
    rows.first().map(|row| field(row, 0)).transpose()
}

pub fn published(
    source: &mut Connection,
    publication: &str,
) -> Result<Option<Published>, ClientError> {
    let text = text(source, publication)?;
    let parsed = text.map(|text| Published::parse(&text)).transpose();
    parsed.map_err(|error| ClientError::Protocol(format!("publication {publication}: {error}")))
}

/// Where the tables with these OIDs stand.
pub fn places(source: &mut Connection, oids: &[u32]) -> Result<Vec<Place>, ClientError> {
    if oids.is_empty() {
        return Ok(Vec::new());
    }
    let list: Vec<_> = oids.iter().map(u32::to_string).collect();
    let rows = source.query(&format!("{PLACES}{})", list.join(", ")))?;
    let read = |row: &Vec<Option<String>>| {
        let tables = |place| -> Result<Vec<(u32, TableName)>, ClientError> {
            let text: String = field(row, place)?;
            let tables: Vec<(u32, String, String)> = serde_json::from_str(&text)
                .map_err(|error| ClientError::Protocol(format!("\"{text}\": {error}")))?;
            let tables = tables.into_iter();
            let named = tables.map(|(oid, schema, table)| (oid, TableName { schema, table }));
            Ok(named.collect())
        };
        Ok(Place {
            oid: field(row, 0)?,
            table: TableName {
                schema: field(row, 1)?,
                table: field(row, 2)?,
            },
            is_partitioned: field(row, 3)?,
            above: tables(4)?,
            tree: tables(5)?.into_iter().map(|(_, name)| name).collect(),
        })
    };
    rows.iter().map(read).collect()
}
