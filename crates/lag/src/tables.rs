//! Which tables a server publishes, and which its subscriptions follow. They change seldom, and
//! reading them costs more than a sample does, so they are asked for once a minute.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;

mod question;
mod refused;

pub use question::question;
pub use refused::{Refused, Why};

/// How long an answer counts.
pub const EVERY: Duration = Duration::from_secs(60);

/// Most tables of one server that are compared.
pub const MOST_TABLES: usize = 10_000;

/// Most triggers and foreign keys of one subscription that are read.
pub const MOST_NAMED: usize = 20;

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
    /// Partitions of a database with publications or subscriptions, each with the tables that it is a
    /// partition of.
    pub ancestors: BTreeMap<String, BTreeSet<String>>,
    /// Published tables with REPLICA IDENTITY FULL.
    pub full: BTreeSet<String>,
    /// Followed tables without an index by which an apply worker finds a row, each with the number of
    /// rows that a search reads.
    pub unindexed: BTreeMap<String, f64>,
    /// All tables of a database with publications or subscriptions; None if there are more than are read.
    pub there: Option<BTreeSet<String>>,
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
