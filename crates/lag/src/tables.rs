//! Which tables a server publishes, and which its subscriptions follow. They change seldom, and
//! reading them costs more than a sample does, so they are asked for once a minute.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;

/// How long an answer counts.
pub const EVERY: Duration = Duration::from_secs(60);

/// Most tables of one server that are compared.
pub const MOST_TABLES: usize = 10_000;

/// The tables of one database. Names are `schema.table`, quoted where SQL needs it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Tables {
    pub publications: BTreeMap<String, BTreeSet<String>>,
    pub subscriptions: BTreeMap<String, Followed>,
    /// Published tables without a replica identity, by a publication that has their updates or deletes,
    /// which the server refuses. A primary key that is deferrable is none, nor is an index that was
    /// dropped. Of a partitioned table that is published as such, its partitions count.
    pub unidentified: BTreeMap<String, BTreeSet<String>>,
    /// There are more tables than are read, so nothing can be compared.
    pub cut_off: bool,
}

/// What a subscription follows.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Followed {
    pub publications: Vec<String>,
    pub tables: BTreeSet<String>,
}

/// The statement for [`Tables`]. Whoever asks may read all of it.
pub fn question() -> String {
    format!(
        "SELECT json_build_object(\
           'publications', (SELECT coalesce(json_object_agg(pubname, tables), '{{}}') FROM (\
              SELECT p.pubname, coalesce(json_agg(format('%I.%I', t.schemaname, t.tablename)) \
                FILTER (WHERE t.tablename IS NOT NULL), '[]') AS tables \
              FROM pg_publication p LEFT JOIN (SELECT * FROM pg_publication_tables \
                LIMIT {most}) t ON t.pubname = p.pubname GROUP BY p.pubname) p), \
           'subscriptions', (SELECT coalesce(json_object_agg(subname, json_build_object(\
              'publications', subpublications, 'tables', (SELECT coalesce(json_agg(\
                 format('%I.%I', n.nspname, c.relname)), '[]') \
                 FROM (SELECT * FROM pg_subscription_rel WHERE srsubid = s.oid LIMIT {most}) r \
                 JOIN pg_class c ON c.oid = r.srrelid \
                 JOIN pg_namespace n ON n.oid = c.relnamespace))), '{{}}') FROM pg_subscription s \
              WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())), \
           'unidentified', (SELECT coalesce(json_object_agg(pubname, tables), '{{}}') FROM (\
              SELECT p.pubname, json_agg(DISTINCT format('%I.%I', s.nspname, c.relname)) AS tables \
              FROM pg_publication p JOIN (SELECT * FROM pg_publication_tables LIMIT {most}) t \
                USING (pubname) JOIN pg_namespace n ON n.nspname = t.schemaname \
                JOIN pg_class r ON r.relnamespace = n.oid AND r.relname = t.tablename \
                JOIN LATERAL (WITH RECURSIVE parts AS (SELECT r.oid UNION SELECT i.inhrelid \
                  FROM parts JOIN pg_inherits i ON i.inhparent = parts.oid AND r.relkind = 'p') \
                  SELECT oid FROM parts LIMIT {most}) l ON true JOIN pg_class c ON c.oid = l.oid \
                JOIN pg_namespace s ON s.oid = c.relnamespace \
              WHERE (p.pubupdate OR p.pubdelete) AND c.relkind = 'r' AND c.relreplident <> 'f' \
                AND NOT EXISTS (SELECT FROM pg_index i \
                  WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate \
                    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary \
                          WHEN 'i' THEN i.indisreplident END) GROUP BY p.pubname) u), \
           'cut_off', (SELECT count(*) FROM (SELECT FROM pg_publication_tables LIMIT {most}) a) \
              >= {most} OR (SELECT count(*) FROM (SELECT FROM pg_subscription_rel LIMIT {most}) b) \
              >= {most})",
        most = MOST_TABLES
    )
}

impl Tables {
    /// What these publications have together. None if one of them is not there: publications may
    /// be made after their subscription.
    pub fn published(&self, publications: &[String]) -> Option<BTreeSet<&String>> {
        let mut all = BTreeSet::new();
        for name in publications {
            all.extend(self.publications.get(name)?);
        }
        Some(all)
    }
}
