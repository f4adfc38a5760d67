//! Published tables whose updates and deletes their server refuses.

use serde::Deserialize;

/// A published table whose updates or deletes the server refuses, and why.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Refused {
    /// `schema.table`, quoted where SQL needs it. Of a partitioned table that is published as such, the
    /// partition.
    pub table: String,
    pub publication: String,
    pub why: Why,
    /// Columns that are in the way, quoted where SQL needs it: see [`Why`].
    pub columns: Option<String>,
    /// A publication has a column list for it, so that REPLICA IDENTITY FULL would be refused.
    pub listed: bool,
}

/// Why updates and deletes are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// No replica identity, and no primary key.
    Unidentified,
    /// A primary key that is not its replica identity: that is NOTHING, or an index that was dropped.
    Unused,
    /// A primary key that is deferrable, which is no replica identity.
    Deferrable,
    /// The publication's row filter names columns that are not in the replica identity.
    Filter,
    /// The publication's column list lacks columns of the replica identity.
    List,
    /// The publication has a column list, and the replica identity is FULL.
    FullList,
    /// The replica identity has generated columns that the publication does not have (from 18 on).
    Generated,
}

/// An expression for the list of [`Refused`].
///
/// Rows of `pg_publication_tables` are what a partition is published as, so their filter and list count. A
/// filter is a tree of nodes as text, in which only columns are called VAR: constants are bytes, names of
/// users' things are not allowed.
pub(super) fn expression(most: usize) -> String {
    format!(
        "(SELECT coalesce(json_agg(f), '[]') FROM (\
           SELECT DISTINCT l.name AS \"table\", l.pubname AS publication, w.why, w.columns, l.listed \
           FROM (SELECT p.pubname, format('%I.%I', s.nspname, c.relname) AS name, \
               c.relreplident = 'f' AS is_full, f.columns AS filter, a.columns AS list, k.columns AS key, \
               g.columns AS generated, pk.columns AS pk, pk.is_immediate, \
               EXISTS (SELECT FROM pg_publication_rel o JOIN pg_publication q ON q.oid = o.prpubid \
                 WHERE o.prrelid IN (r.oid, c.oid) AND o.prattrs IS NOT NULL \
                   AND (q.pubupdate OR q.pubdelete)) AS listed \
             FROM pg_publication p JOIN (SELECT * FROM pg_publication_tables LIMIT {most}) t \
               USING (pubname) JOIN pg_namespace n ON n.nspname = t.schemaname \
               JOIN pg_class r ON r.relnamespace = n.oid AND r.relname = t.tablename \
               LEFT JOIN pg_publication_rel e ON e.prpubid = p.oid AND e.prrelid = r.oid \
               JOIN LATERAL (WITH RECURSIVE parts AS (SELECT r.oid UNION SELECT i.inhrelid \
                 FROM parts JOIN pg_inherits i ON i.inhparent = parts.oid AND r.relkind = 'p') \
                 SELECT oid FROM parts LIMIT {most}) l ON true JOIN pg_class c ON c.oid = l.oid \
               JOIN pg_namespace s ON s.oid = c.relnamespace, \
               LATERAL (SELECT array_agg(attname) AS columns FROM pg_attribute \
                 WHERE attrelid = r.oid AND attnum IN (SELECT m[1]::int FROM regexp_matches(\
                   e.prqual::text, '[{{]VAR :varno [0-9]+ :varattno ([0-9]+)', 'g') m)) f, \
               LATERAL (SELECT array_agg(attname) AS columns FROM pg_attribute \
                 WHERE attrelid = r.oid AND attnum = ANY (e.prattrs)) a, \
               LATERAL (SELECT array_agg(attname) AS columns FROM pg_index i \
                 JOIN pg_attribute b ON b.attrelid = c.oid \
                   AND b.attnum = ANY ((i.indkey::int2[])[:i.indnkeyatts - 1]) \
                 WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate \
                   AND CASE c.relreplident WHEN 'd' THEN i.indisprimary \
                         WHEN 'i' THEN i.indisreplident END) k, \
               LATERAL (SELECT string_agg(quote_ident(attname), ', ') AS columns, \
                   bool_and(i.indimmediate) AS is_immediate FROM pg_index i \
                 JOIN pg_attribute b ON b.attrelid = c.oid \
                   AND b.attnum = ANY ((i.indkey::int2[])[:i.indnkeyatts - 1]) \
                 WHERE i.indrelid = c.oid AND i.indisvalid AND i.indisprimary) pk, \
               LATERAL (SELECT array_agg(attname) AS columns FROM pg_attribute b \
                 WHERE b.attrelid = c.oid AND (b.attgenerated = 'v' \
                   OR b.attgenerated = 's' AND to_jsonb(p)->>'pubgencols' <> 's') \
                   AND (c.relreplident = 'f' OR e.prattrs IS NULL AND b.attname = ANY (k.columns))) g \
             WHERE (p.pubupdate OR p.pubdelete) AND c.relkind = 'r') l, \
           LATERAL (SELECT why, string_agg(quote_ident(c), ', ') AS columns FROM (\
               SELECT 'filter' AS why, unnest(filter) AS c WHERE key IS NOT NULL \
               EXCEPT SELECT 'filter', unnest(key) \
               UNION ALL (SELECT 'list', unnest(key) WHERE list IS NOT NULL \
                 EXCEPT SELECT 'list', unnest(list)) \
               UNION ALL SELECT 'generated', unnest(generated)) d GROUP BY why \
             UNION ALL SELECT 'full_list', NULL WHERE is_full AND list IS NOT NULL \
             UNION ALL SELECT CASE WHEN is_immediate THEN 'unused' WHEN pk IS NULL THEN 'unidentified' \
                 ELSE 'deferrable' END, CASE WHEN NOT is_immediate THEN pk END \
               WHERE NOT is_full AND key IS NULL) w \
           ORDER BY 1, 2, 3) f)"
    )
}
