//! Tables: what the target has of one, and how that fits what the source says.

use lockstep_wire::logical::ReplicaIdentity;

use crate::error::{ApplyError, Result};
use crate::names::{TableName, quoted};
use crate::reach::{Reach, TargetReach};
use crate::source_table::{Identity, KeyColumn, SourceColumn, SourceTable};
use crate::types::ColumnType;

/// A table as the target's catalogs describe it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetTable {
    pub partitioned: bool,
    /// The table is a partition that holds rows and is not unlogged.
    pub is_partition: bool,
    /// A rule that acts although `session_replication_role` is `replica`.
    pub acting_rule: Option<String>,
    /// [`Table::attributes`].
    pub attributes: u32,
    pub columns: Vec<TargetColumn>,
    /// Unique indexes that can identify a row, the primary key first.
    pub keys: Vec<TargetKey>,
    /// Number of unique indexes and exclusion constraints.
    pub constraints: usize,
    pub reach: TargetReach,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetColumn {
    pub name: String,
    /// The type, of a domain that which it is over.
    pub of: ColumnType,
    /// Quoted and with its schema. Unlike a name such as `bit`, it brings no modifier along.
    pub kind: String,
    /// Values can be given as an array of this type; otherwise as an array of text.
    pub in_array: bool,
    /// The type, or what it is a domain over, is not one of the server's own, so there may be a cast
    /// to it.
    pub of_user: bool,
    /// The type's delimiter in arrays.
    pub delimiter: u8,
    /// The server computes the value.
    pub generated: bool,
    /// `GENERATED ALWAYS AS IDENTITY`: UPDATE refuses to set it.
    pub always_identity: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetKey {
    /// Names of the columns, and for each the operator by which the index finds equal values.
    pub columns: Vec<(String, String)>,
}

/// A table that the source changes, with what is needed to change it on the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub name: TableName,
    /// The target's columns, in the source's order.
    pub columns: Vec<TargetColumn>,
    pub identity: Identity,
    pub partitioned: bool,
    /// Rows can be in each other's way by more than the key: an update must be ready for that.
    pub crowded: bool,
    /// Columns that only the target has, and that are not generated: they keep their values.
    pub kept: Vec<String>,
    /// `pg_class.relnatts`, which grows with each column that is added.
    pub attributes: u32,
    pub reach: Reach,
}

impl Table {
    /// Fits the source's table to the target's.
    pub fn fit(source: &SourceTable, target: &TargetTable) -> Result<Self> {
        let find = |name: &str| target.columns.iter().find(|column| column.name == name);
        let mut columns = Vec::new();
        let (mut missing, mut narrow, mut generated) = (Vec::new(), Vec::new(), Vec::new());
        for column in &source.columns {
            match find(&column.name) {
                Some(found) => {
                    narrow.extend(narrower(column, found));
                    generated.extend(found.generated.then(|| quoted(&column.name)));
                    columns.push(found.clone());
                }
                None => missing.push(quoted(&column.name)),
            }
        }
        if !missing.is_empty() {
            let missing = missing.join(", ");
            let message = format!("it has no column {missing}, which the source's table has");
            return Err(ApplyError::shape(&source.name, message));
        }
        if !generated.is_empty() {
            let message = format!(
                "the source has values of its own for column {}, which is generated here; make it an ordinary \
                 column (ALTER TABLE ... ALTER COLUMN ... DROP EXPRESSION)",
                generated.join(", ")
            );
            return Err(ApplyError::shape(&source.name, message));
        }
        if !narrow.is_empty() {
            let message = format!(
                "it would round or cut off values of the source, or read them by its own settings: {}; give it the \
                 source's types (ALTER TABLE ... ALTER COLUMN ... TYPE ...)",
                narrow.join(", ")
            );
            return Err(ApplyError::shape(&source.name, message));
        }
        if let Some(rule) = &target.acting_rule {
            let message = format!(
                "its rule {} is ENABLE ALWAYS or REPLICA and would rewrite what is applied; disable \
                 it or let it be ENABLE RULE",
                quoted(rule)
            );
            return Err(ApplyError::shape(&source.name, message));
        }
        let identity = identity(source, target);
        let used = match &identity {
            Identity::Key(key) => usize::from(key.iter().all(|column| column.operator.is_some())),
            _ => 0,
        };
        let known = |column: &&TargetColumn| {
            !column.generated && !source.columns.iter().any(|of| of.name == column.name)
        };
        let kept = target.columns.iter().filter(known);
        Ok(Self {
            name: source.name.clone(),
            kept: kept.map(|column| column.name.clone()).collect(),
            attributes: target.attributes,
            columns,
            crowded: target.partitioned || target.constraints > used,
            reach: Reach::new(source, &identity, &target.reach),
            identity,
            partitioned: target.partitioned,
        })
    }

    /// Places of the key's columns; none if there is no key.
    pub fn key(&self) -> Vec<usize> {
        match &self.identity {
            Identity::Key(key) => key.iter().map(|column| column.place).collect(),
            Identity::Whole | Identity::Nothing => Vec::new(),
        }
    }

    /// The key is found by an index.
    pub fn is_indexed(&self) -> bool {
        match &self.identity {
            Identity::Key(key) => key.iter().all(|column| column.operator.is_some()),
            Identity::Whole | Identity::Nothing => false,
        }
    }
}

/// Words for a column that cannot hold all values of the source's.
fn narrower(source: &SourceColumn, target: &TargetColumn) -> Option<String> {
    let sql = |of: ColumnType| of.sql().unwrap_or_default();
    let (ours, theirs, lead) = match source.base {
        // The source does not send the modifier of a domain.
        Some(base) => {
            let plain = |oid| ColumnType { oid, modifier: -1 };
            (plain(target.of.oid), plain(base), "a domain over ")
        }
        None => {
            let theirs = ColumnType {
                oid: source.kind,
                modifier: source.modifier,
            };
            (target.of, theirs, "")
        }
    };
    ours.loses(theirs).then(|| {
        format!(
            "column {} is {}, and {lead}{} on the source",
            quoted(&source.name),
            sql(ours),
            sql(theirs)
        )
    })
}

fn identity(source: &SourceTable, target: &TargetTable) -> Identity {
    let place = |name: &str| source.columns.iter().position(|it| it.name == name);
    if source.identity == ReplicaIdentity::Full {
        let usable = |key: &TargetKey| {
            let found = key.columns.iter().map(|(name, operator)| {
                Some(KeyColumn {
                    place: place(name)?,
                    operator: Some(operator.clone()),
                })
            });
            found.collect::<Option<Vec<_>>>()
        };
        let mut key = match target.keys.iter().find_map(usable) {
            Some(key) => key,
            None => return Identity::Whole,
        };
        key.sort_by_key(|column| column.place);
        return Identity::Key(key);
    }
    let places: Vec<usize> = (source.columns.iter().enumerate())
        .filter(|(_, column)| column.key)
        .map(|(place, _)| place)
        .collect();
    if places.is_empty() {
        return Identity::Nothing;
    }
    let same = |key: &&TargetKey| {
        key.columns.len() == places.len()
            && (key.columns.iter())
                .all(|(name, _)| place(name).is_some_and(|place| places.contains(&place)))
    };
    let found = target.keys.iter().find(same);
    let operator = |at: usize| {
        let (_, operator) = (found?.columns.iter()).find(|(name, _)| place(name) == Some(at))?;
        Some(operator.clone())
    };
    let column = |&place: &usize| KeyColumn {
        place,
        operator: operator(place),
    };
    Identity::Key(places.iter().map(column).collect())
}
