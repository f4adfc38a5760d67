//! A table as the source describes it, and how its rows are found.

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
}

impl SourceTable {
    pub fn new(relation: &Relation<'_>) -> Self {
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
