//! A table as the source describes it, and how its rows are found.

use hashbrown::HashMap;
use lockstep_wire::logical::{Relation, ReplicaIdentity};

use crate::names::TableName;

/// A table as the source's Relation message describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceTable {
    pub oid: u32,
    pub name: TableName,
    pub identity: ReplicaIdentity,
    pub columns: Vec<SourceColumn>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceColumn {
    pub name: String,
    /// Belongs to the replica identity.
    pub key: bool,
    pub kind: u32,
    pub modifier: i32,
    /// For a domain over one of the server's own types: that type.
    pub base: Option<u32>,
}

impl SourceTable {
    /// `bases` are types that domains of the source are over, by the domains' OIDs.
    pub fn new(relation: &Relation<'_>, bases: &HashMap<u32, u32>) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let schema = match relation.namespace {
            [] => "pg_catalog".to_owned(),
            name => text(name),
        };
        Self {
            oid: relation.id,
            name: TableName {
                schema,
                table: text(relation.name),
            },
            identity: relation.replica_identity,
            columns: relation
                .columns
                .iter()
                .map(|column| SourceColumn {
                    name: text(column.name),
                    key: column.is_key(),
                    kind: column.kind,
                    modifier: column.modifier,
                    base: bases.get(&column.kind).copied(),
                })
                .collect(),
        }
    }
}

/// How a row of the target is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// The row is found by these columns, places in [`SourceTable::columns`] in rising order.
    Key(Vec<KeyColumn>),
    /// The row is found by all columns: one of the rows that are equal.
    Whole,
    /// The row is not found at all: only rows to insert arrive.
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyColumn {
    pub place: usize,
    /// The index's operator. None if no index of the target has exactly these columns: values are
    /// then compared as text.
    pub operator: Option<String>,
}
