//! Which tables a server publishes, and which its subscriptions follow. They change seldom, and
//! reading them costs more than a sample does, so they are asked for once a minute.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;

mod denied;
mod parted;
mod question;
mod refused;

pub use denied::Denied;
pub(crate) use parted::DEFAULT;
pub use parted::Parted;
pub use question::question;
pub use refused::{Refused, Why};

/// How long an answer counts.
pub const EVERY: Duration = Duration::from_secs(60);

/// Most tables of one server that are compared.
pub const MOST_TABLES: usize = 10_000;

/// Most triggers and foreign keys of one subscription that are read.
pub const MOST_NAMED: usize = 20;

/// Changes of rows that a publication sends, unless it says which.
const ACTIONS: [&str; 3] = ["insert", "update", "delete"];

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
    /// Columns of each followed table that can be written, quoted where SQL needs it, with their types. Empty
    /// if there are more than are read.
    pub held: BTreeMap<String, BTreeMap<String, String>>,
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
    /// Partitioned tables of a database with publications or subscriptions. Empty if they have more
    /// partitions than are read.
    pub parted: BTreeMap<String, Parted>,
    /// Published tables with REPLICA IDENTITY FULL.
    pub full: BTreeSet<String>,
    /// Columns of the replica identity of published tables that have one which is not FULL, quoted where SQL
    /// needs it.
    pub keys: BTreeMap<String, BTreeSet<String>>,
    /// Tables that a publication has with a column list; true where the server takes it for another one than
    /// a list of the same columns, or none, because it counts columns that are not published.
    pub lists: BTreeMap<String, BTreeMap<String, bool>>,
    /// Columns of the key by which an apply worker finds a row of each followed table, quoted where SQL needs
    /// it; None if it has none.
    pub found_by: BTreeMap<String, Option<BTreeSet<String>>>,
    /// Columns of followed tables that are NOT NULL and get no value by themselves, quoted where SQL needs
    /// it; true of those of a key, which are never empty.
    pub demanded: BTreeMap<String, BTreeMap<String, bool>>,
    /// Followed tables without an index by which an apply worker finds a row, each with the number of
    /// rows that a search reads.
    pub unindexed: BTreeMap<String, f64>,
    /// All tables of a database with publications or subscriptions; None if there are more than are read.
    pub there: Option<BTreeSet<String>>,
    /// Followed tables from which others inherit; partitioned ones are not among them.
    pub inherited: BTreeSet<String>,
    pub unlogged: BTreeSet<String>,
    /// There are more tables than are read, so nothing can be compared.
    pub cut_off: bool,
}

/// What a subscription follows.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Followed {
    pub publications: Vec<String>,
    /// Options that CREATE SUBSCRIPTION does not give by itself, as it takes them, but for the slot's name.
    pub options: Vec<String>,
    /// The role that it belongs to, quoted where SQL needs it; None if that is the one that initdb made.
    pub owner: Option<String>,
    pub tables: BTreeSet<String>,
    /// Triggers of these tables that fire in an apply worker.
    pub triggers: Vec<Trigger>,
    /// Tables that its worker may not write.
    pub denied: Vec<Denied>,
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

    /// Changes of rows that a publication sends.
    pub fn sends(&self, publication: &str) -> BTreeSet<&str> {
        match self.actions.get(publication) {
            Some(actions) => actions.iter().map(String::as_str).collect(),
            None => ACTIONS.into(),
        }
    }

    /// Publications of these that have a table.
    pub fn publishing<'n>(&self, publications: &'n [String], table: &str) -> Vec<&'n String> {
        let has = |name: &&String| {
            let tables = self.publications.get(*name);
            tables.is_some_and(|tables| tables.contains(table))
        };
        publications.iter().filter(has).collect()
    }

    /// Columns of a table that these publications send together; None if that was not read.
    pub fn sent_columns(&self, publications: &[&String], table: &str) -> Option<BTreeSet<&String>> {
        let mut all = BTreeSet::new();
        for name in publications {
            all.extend(self.columns.get(*name)?.get(table)?.keys());
        }
        Some(all)
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
