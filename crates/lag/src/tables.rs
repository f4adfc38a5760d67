//! Which tables a server publishes, and which its subscriptions follow. They change seldom, and
//! reading them costs more than a sample does, so they are asked for once a minute.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;

mod refused;

pub use refused::{Refused, Why};

/// How long an answer counts.
pub const EVERY: Duration = Duration::from_secs(60);

/// Most tables of one server that are compared.
pub const MOST_TABLES: usize = 10_000;

/// Most triggers and foreign keys of one subscription that are read.
pub const MOST_NAMED: usize = 20;

/// Most enums of one database that are read.
const MOST_ENUMS: usize = 500;

/// The tables of one database. Names are `schema.table`, quoted where SQL needs it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Tables {
    pub publications: BTreeMap<String, BTreeSet<String>>,
    /// Changes of rows that publications send: `insert`, `update`, `delete`.
    pub actions: BTreeMap<String, BTreeSet<String>>,
    pub subscriptions: BTreeMap<String, Followed>,
    /// Published tables whose updates or deletes the server refuses.
    pub refused: Vec<Refused>,
    /// Columns that a publication has of each of its tables, quoted where SQL needs it, with their types.
    /// Empty if there are more than are read.
    pub columns: BTreeMap<String, BTreeMap<String, BTreeMap<String, String>>>,
    /// Columns of each followed table that can be written, quoted where SQL needs it. Empty if there are
    /// more than are read.
    pub held: BTreeMap<String, BTreeSet<String>>,
    /// Columns of followed tables that the server generates, quoted where SQL needs it, each with its
    /// `attgenerated`.
    pub generated: BTreeMap<String, BTreeMap<String, String>>,
    /// Enums of this database by name, each with its labels as CREATE TYPE has them. Empty if there are more
    /// than are read.
    pub enums: BTreeMap<String, String>,
    /// Publications that publish TRUNCATE.
    pub truncating: BTreeSet<String>,
    /// Publications that publish partitioned tables by their own names (`publish_via_partition_root`).
    pub via_root: BTreeSet<String>,
    /// Tables that a publication has with a row filter.
    pub filtered: BTreeSet<String>,
    /// Partitions of a database with publications, each with the tables that it is a partition of.
    pub ancestors: BTreeMap<String, BTreeSet<String>>,
    /// Published tables with REPLICA IDENTITY FULL.
    pub full: BTreeSet<String>,
    /// Followed tables without an index by which an apply worker finds a row, each with the number of
    /// rows that a search reads.
    pub unindexed: BTreeMap<String, f64>,
    /// All tables of a database with publications or subscriptions; None if there are more than are read.
    pub there: Option<BTreeSet<String>>,
    /// Tables that are unlogged.
    pub unlogged: BTreeSet<String>,
    /// There are more tables than are read, so nothing can be compared.
    pub cut_off: bool,
}

/// What a subscription follows.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Followed {
    pub publications: Vec<String>,
    pub tables: BTreeSet<String>,
    /// Triggers of these tables that fire in an apply worker.
    pub triggers: Vec<Trigger>,
    /// Foreign keys to these tables from tables that the subscription does not follow.
    pub references: Vec<Reference>,
}

/// A trigger that fires in an apply worker: ENABLE ALWAYS or ENABLE REPLICA.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Trigger {
    /// Quoted where SQL needs it.
    pub name: String,
    /// `schema.table`, quoted where SQL needs it.
    pub table: String,
}

/// A foreign key.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Reference {
    /// Quoted where SQL needs it.
    pub name: String,
    /// The table that has it: `schema.table`, quoted where SQL needs it.
    pub table: String,
    /// The table to whose rows it leads.
    pub to: String,
}

/// True in a database that publishes or subscribes.
const REPLICATES: &str = "(EXISTS (SELECT FROM pg_publication) OR EXISTS (SELECT subname FROM pg_subscription \
     WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())))";

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
                 JOIN pg_namespace n ON n.oid = c.relnamespace), \
              'triggers', (SELECT coalesce(json_agg(t), '[]') FROM (\
                 SELECT quote_ident(t.tgname) AS name, format('%I.%I', n.nspname, c.relname) AS \"table\" \
                 FROM pg_subscription_rel r JOIN pg_trigger t ON t.tgrelid = r.srrelid \
                   AND t.tgenabled IN ('A', 'R') AND NOT t.tgisinternal \
                   JOIN pg_class c ON c.oid = r.srrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE r.srsubid = s.oid ORDER BY t.oid LIMIT {few}) t), \
              'references', (SELECT coalesce(json_agg(f), '[]') FROM (\
                 SELECT quote_ident(f.conname) AS name, \
                   format('%I.%I', n.nspname, c.relname) AS \"table\", \
                   format('%I.%I', m.nspname, d.relname) AS \"to\" \
                 FROM pg_subscription_rel r JOIN pg_constraint f ON f.confrelid = r.srrelid \
                   AND f.contype = 'f' JOIN pg_class c ON c.oid = f.conrelid \
                   JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_class d ON d.oid = r.srrelid \
                   JOIN pg_namespace m ON m.oid = d.relnamespace \
                 WHERE r.srsubid = s.oid AND NOT EXISTS (SELECT FROM pg_subscription_rel o \
                   WHERE o.srsubid = s.oid AND o.srrelid = f.conrelid) \
                 ORDER BY f.oid LIMIT {few}) f))), '{{}}') FROM pg_subscription s \
              WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())), \
           'columns', (SELECT coalesce(json_object_agg(pubname, columns) \
                FILTER (WHERE number <= {most}), '{{}}') FROM (\
              SELECT pubname, json_object_agg(format('%I.%I', t.schemaname, t.tablename), \
                (SELECT json_object_agg(quote_ident(a.attname), format_type(a.atttypid, a.atttypmod)) \
                 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = ANY (t.attnames) \
                   AND (a.attgenerated = '' OR current_setting('server_version_num')::int >= 180000))) \
                AS columns, sum(sum(cardinality(t.attnames))) OVER () AS number \
              FROM (SELECT * FROM pg_publication_tables LIMIT {most}) t \
                JOIN pg_namespace n ON n.nspname = t.schemaname \
                JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename \
              GROUP BY pubname) c), \
           'held', (SELECT coalesce(json_object_agg(name, columns) \
                FILTER (WHERE number <= {most}), '{{}}') FROM (\
              SELECT format('%I.%I', n.nspname, c.relname) AS name, \
                json_agg(quote_ident(a.attname)) AS columns, sum(count(*)) OVER () AS number \
              FROM (SELECT DISTINCT srrelid FROM pg_subscription_rel LIMIT {most}) r \
                JOIN pg_class c ON c.oid = r.srrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
                JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
                  AND a.attgenerated = '' GROUP BY 1) h), \
           'generated', (SELECT coalesce(json_object_agg(name, columns), '{{}}') FROM (\
              SELECT format('%I.%I', n.nspname, c.relname) AS name, \
                json_object_agg(quote_ident(a.attname), a.attgenerated::text) AS columns \
              FROM (SELECT DISTINCT srrelid FROM pg_subscription_rel LIMIT {most}) r \
                JOIN pg_class c ON c.oid = r.srrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
                JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
                  AND a.attgenerated <> '' GROUP BY 1) g), \
           'enums', (SELECT coalesce(json_object_agg(name, labels) FILTER (WHERE number <= {enums}), '{{}}') \
              FROM (SELECT format('%I.%I', n.nspname, t.typname) AS name, \
                string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder) AS labels, \
                count(*) OVER () AS number \
              FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid \
                JOIN pg_namespace n ON n.oid = t.typnamespace GROUP BY 1) e), \
           'actions', (SELECT coalesce(json_object_agg(pubname, array_remove(ARRAY[\
                CASE WHEN pubinsert THEN 'insert' END, CASE WHEN pubupdate THEN 'update' END, \
                CASE WHEN pubdelete THEN 'delete' END], NULL)), '{{}}') FROM pg_publication), \
           'truncating', (SELECT coalesce(json_agg(pubname), '[]') FROM pg_publication \
              WHERE pubtruncate), \
           'via_root', (SELECT coalesce(json_agg(pubname), '[]') FROM pg_publication \
              WHERE pubviaroot), \
           'filtered', (SELECT coalesce(json_agg(DISTINCT format('%I.%I', schemaname, tablename)), '[]') \
              FROM (SELECT * FROM pg_publication_tables LIMIT {most}) t WHERE rowfilter IS NOT NULL), \
           'ancestors', (SELECT coalesce(json_object_agg(name, above), '{{}}') FROM (\
              SELECT format('%I.%I', n.nspname, c.relname) AS name, \
                (SELECT json_agg(format('%I.%I', m.nspname, d.relname)) \
                 FROM pg_partition_ancestors(c.oid) AS a(relid) JOIN pg_class d ON d.oid = a.relid \
                   JOIN pg_namespace m ON m.oid = d.relnamespace WHERE d.oid <> c.oid) AS above \
              FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
              WHERE c.relispartition AND c.relkind IN ('r', 'p') AND EXISTS (SELECT FROM pg_publication) \
              LIMIT {most}) p WHERE above IS NOT NULL), \
           'full', (SELECT coalesce(json_agg(DISTINCT format('%I.%I', n.nspname, c.relname)), '[]') \
              FROM (SELECT * FROM pg_publication_tables LIMIT {most}) t \
                JOIN pg_namespace n ON n.nspname = t.schemaname \
                JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename \
              WHERE c.relreplident = 'f'), \
           'unindexed', (SELECT coalesce(json_object_agg(name, rows), '{{}}') FROM (\
              SELECT format('%I.%I', n.nspname, c.relname) AS name, greatest(max(c.reltuples), 0) AS rows \
              FROM (SELECT srrelid FROM pg_subscription_rel LIMIT {most}) r \
                JOIN pg_class c ON c.oid = r.srrelid AND c.relkind = 'r' \
                JOIN pg_namespace n ON n.oid = c.relnamespace \
              WHERE NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid \
                AND CASE WHEN current_setting('server_version_num')::int < 160000 \
                      THEN i.indisprimary OR i.indisreplident ELSE i.indpred IS NULL END) GROUP BY 1) u), \
           'there', (SELECT CASE WHEN count(*) < {most} THEN coalesce(json_agg(name), '[]') END FROM (\
              SELECT format('%I.%I', n.nspname, c.relname) AS name \
              FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
              WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND {replicates} \
                AND n.nspname NOT IN ('pg_catalog', 'information_schema') LIMIT {most}) h), \
           'unlogged', (SELECT coalesce(json_agg(format('%I.%I', n.nspname, c.relname)), '[]') \
              FROM (SELECT * FROM pg_class WHERE relkind = 'r' AND relpersistence = 'u' LIMIT {most}) c \
                JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {replicates}), \
           'refused', {refused}, \
           'cut_off', (SELECT count(*) FROM (SELECT FROM pg_publication_tables LIMIT {most}) a) \
              >= {most} OR (SELECT count(*) FROM (SELECT FROM pg_subscription_rel LIMIT {most}) b) \
              >= {most})",
        refused = refused::expression(MOST_TABLES),
        replicates = REPLICATES,
        most = MOST_TABLES,
        few = MOST_NAMED,
        enums = MOST_ENUMS
    )
}

impl Tables {
    /// How the server generates a column of a followed table: `attgenerated`; None if it does not.
    pub fn generates(&self, table: &str, column: &str) -> Option<&str> {
        self.generated.get(table)?.get(column).map(String::as_str)
    }

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
