//! Partitioned tables, and what each of their partitions takes.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A partitioned table of a database with publications or subscriptions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Parted {
    /// What it is partitioned by, as CREATE TABLE has it: `RANGE (id)`.
    pub by: String,
    /// The partitions, each with its bound as CREATE TABLE has it; names are quoted where SQL needs it.
    pub parts: BTreeMap<String, String>,
}

/// The bound of a partition that takes what no other takes.
pub(crate) const DEFAULT: &str = "DEFAULT";

impl Parted {
    /// True if it has a partition with this bound.
    pub(crate) fn has(&self, bound: &str) -> bool {
        self.parts.values().any(|it| it == bound)
    }
}

/// An expression for the partitioned tables of a database by name; none if they have more partitions than are
/// read.
pub(super) fn expression(name: &str, most: usize, replicates: &str) -> String {
    format!(
        "(SELECT coalesce(json_object_agg(name, json_build_object('by', divided, 'parts', parts)), '{{}}') FROM (\
           SELECT {name} AS name, pg_get_partkeydef(c.oid) AS divided, \
             (SELECT coalesce(json_object_agg(format('%I.%I', m.nspname, d.relname), \
                pg_get_expr(d.relpartbound, d.oid)), '{{}}') \
              FROM pg_inherits i JOIN pg_class d ON d.oid = i.inhrelid AND d.relispartition \
                JOIN pg_namespace m ON m.oid = d.relnamespace WHERE i.inhparent = c.oid) AS parts \
           FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
           WHERE c.relkind = 'p' AND {replicates} AND (SELECT count(*) FROM (\
             SELECT FROM pg_inherits LIMIT {most}) a) < {most}) p)"
    )
}
