//! What follows from the facts for row filters and column lists. No I/O.
//!
//! The worst that could come of one is not on the target: a filter that names a column outside of the
//! replica identity, or a list without all of it, is accepted by CREATE PUBLICATION, and then the
//! source refuses every UPDATE and DELETE of the table. So that is an error here.

use std::collections::BTreeSet;

use super::facts::{
    Facts, Filled, ForeignKey, LeftOut, Reference, ReplicaIdentity, SubsetFacts, Table, TableKind,
    UniqueFacts,
};
use super::rules::listed;
use crate::error::{Findings, Severity};
use crate::names::TableName;
use crate::publication::subset::Subset;

pub(super) fn subsets(facts: &Facts, found: &mut Findings) {
    for subset in &facts.subsets {
        named(facts, subset, found);
    }
    let mut said = Said::default();
    for looked in &facts.looked_at {
        let table = facts.tables.iter().find(|table| table.name == looked.table);
        let subset = table.and_then(|table| facts.subset_of(table));
        if let (Some(table), Some(subset)) = (table, subset) {
            said.table = Some(table);
            published(looked, subset, &mut said);
            identity(table, looked, subset, &mut said);
            left_out(looked, &mut said);
            large_values(table, looked, subset, &mut said);
        }
    }
    for (severity, says, todo, tables) in said.findings {
        found.tables(severity, tables.into_iter(), &says, &todo);
    }
    for key in &facts.foreign_keys {
        foreign_key(key, found);
    }
    found.tables(
        Severity::Warning,
        facts.subset_roots(),
        "its partitions have a row filter or a column list: partitions created later are not \
         replicated by themselves",
        "add each to the replica's publication with its filter and its list, in the transaction that \
         makes it, and make it on the target",
    );
}

/// What is said of tables, the same of several partitions once.
#[derive(Default)]
struct Said<'a> {
    /// The table that is spoken of.
    table: Option<&'a Table>,
    findings: Vec<(Severity, String, String, Vec<&'a Table>)>,
}

impl Said<'_> {
    fn add(&mut self, severity: Severity, says: String, todo: impl Into<String>) {
        let todo = todo.into();
        let same = |one: &&mut (Severity, String, String, Vec<&Table>)| {
            (one.0, &one.1, &one.2) == (severity, &says, &todo)
        };
        match self.findings.iter_mut().find(same) {
            Some((_, _, _, tables)) => tables.extend(self.table),
            None => {
                let tables = self.table.into_iter().collect();
                self.findings.push((severity, says, todo, tables));
            }
        }
    }

    fn error(&mut self, says: String, todo: impl Into<String>) {
        self.add(Severity::Error, says, todo);
    }

    fn warning(&mut self, says: String, todo: impl Into<String>) {
        self.add(Severity::Warning, says, todo);
    }
}

/// The options that a subset came from.
fn options(subset: &Subset) -> &'static str {
    match (&subset.filter, &subset.columns) {
        (Some(_), Some(_)) => "--where and --columns",
        (Some(_), None) => "--where",
        (None, _) => "--columns",
    }
}

/// The table that a subset names.
fn named(facts: &Facts, subset: &Subset, found: &mut Findings) {
    let subject = format!("table {}", subset.table);
    let options = options(subset);
    let Some(table) = facts.tables.iter().find(|it| it.name == subset.table) else {
        let todo = format!(
            "correct {options}; it takes schema.table, and names with capital letters or other signs \
             in double quotes"
        );
        return found.error(subject, "the source has no such table", todo);
    };
    if table.is_left_out(&facts.excluded) {
        let says = "it is excluded, and has a row filter or a column list";
        return found.error(subject, says, format!("leave {options} out, or include it"));
    }
    let is_copied = match table.kind {
        TableKind::Ordinary => !table.unlogged && !table.of_extension,
        TableKind::Partitioned => !table.of_extension,
        TableKind::Foreign | TableKind::MaterialisedView => false,
    };
    if !is_copied {
        let says = "its rows are not replicated, so it can have no row filter and no column list";
        return found.error(subject, says, format!("leave {options} out"));
    }
    let above = |name: &TableName| facts.subsets.iter().find(|other| other.table == *name);
    if let Some(above) = table.ancestors.iter().find_map(above) {
        let says = format!(
            "it is a partition of {}, which has a row filter or a column list, too",
            above.table
        );
        found.error(subject, says, "give one of them only");
    }
}

/// What the source itself says against publishing it.
fn published(looked: &SubsetFacts, subset: &Subset, found: &mut Said) {
    if let Some(words) = &looked.refused {
        let says = format!("the source refuses to publish it so: {words}");
        let todo = match &subset.filter {
            Some(filter) => format!("correct {} ({filter})", options(subset)),
            None => format!("correct {}", options(subset)),
        };
        found.error(says, todo);
    } else if !looked.generated_listed.is_empty() {
        // The source allows it from 18 on.
        let says = format!(
            "its list names generated columns, which the target computes: {}",
            listed(&looked.generated_listed)
        );
        found.error(says, "leave them out of --columns");
    }
}

/// The source would refuse updates and deletes.
fn identity(table: &Table, looked: &SubsetFacts, subset: &Subset, found: &mut Said) {
    let refuses = "the source would refuse updates and deletes of its rows";
    let is_full = table.identity == ReplicaIdentity::Full;
    if is_full && subset.columns.is_some() {
        let says = format!("it has REPLICA IDENTITY FULL and a column list: {refuses}");
        let todo =
            "leave --columns out, or ALTER TABLE ... REPLICA IDENTITY DEFAULT or USING INDEX";
        found.error(says, todo);
    }
    // Without an identity it refuses them in any case, which is found elsewhere.
    if table.identity != ReplicaIdentity::Key {
        return;
    }
    let of: BTreeSet<_> = looked.identity_columns.iter().collect();
    let outside: Vec<_> = looked
        .filter_columns
        .iter()
        .filter(|name| !of.contains(name))
        .cloned()
        .collect();
    if !outside.is_empty() {
        let says = format!(
            "its filter names columns outside of its replica identity ({}): {}; {refuses}",
            listed(&looked.identity_columns),
            listed(&outside)
        );
        let todo = match subset.columns {
            None => {
                "ALTER TABLE ... REPLICA IDENTITY FULL, or USING INDEX of a unique index that has \
                 these columns, too"
            }
            Some(_) => {
                "ALTER TABLE ... REPLICA IDENTITY USING INDEX of a unique index that has these \
                 columns, too"
            }
        };
        found.error(says, todo);
    }
    let Some(columns) = &subset.columns else {
        return;
    };
    let missing: Vec<_> = looked
        .identity_columns
        .iter()
        .filter(|name| !columns.contains(name))
        .cloned()
        .collect();
    // Of generated ones it is said elsewhere that they cannot be in it.
    if !missing.is_empty() && !table.generated_identity {
        let says = format!(
            "its list lacks columns of its replica identity: {}; {refuses}",
            listed(&missing)
        );
        found.error(says, "add them to --columns");
    }
}

/// What the target cannot do without the columns that are left out.
fn left_out(looked: &SubsetFacts, found: &mut Said) {
    let names = |columns: &mut dyn Iterator<Item = &LeftOut>| -> Vec<String> {
        columns.map(|column| column.name.clone()).collect()
    };
    // Those of the replica identity are told of above.
    let is_needed = |column: &&LeftOut| {
        column.not_null
            && column.filled == Filled::WithNull
            && !looked.identity_columns.contains(&column.name)
    };
    let needed = names(&mut looked.left_out.iter().filter(is_needed));
    if !needed.is_empty() {
        let says = format!(
            "its list leaves out columns that are NOT NULL and have no default, so the target could \
             have no row: {}",
            listed(&needed)
        );
        let todo = "add them to --columns, or ALTER TABLE ... ALTER COLUMN ... SET DEFAULT";
        found.error(says, todo);
    }
    if !looked.partitioned_by.is_empty() {
        let says = format!(
            "its list leaves out columns by which a table above is partitioned, so that its rows need not \
             fit into it on the target: {}",
            listed(&looked.partitioned_by)
        );
        found.error(says, "add them to --columns");
    }
    let equal = |unique: &&UniqueFacts| makes_equal(looked, unique);
    let equal: Vec<_> = looked.uniques.iter().filter(equal).collect();
    if !equal.is_empty() {
        let equal: Vec<_> = equal.iter().map(|unique| unique.name.clone()).collect();
        let says = format!(
            "its list leaves out columns of unique indexes or exclusion constraints, which the \
             target's values need not satisfy: {}",
            listed(&equal)
        );
        let todo = "add all columns that they use to --columns, or drop them";
        found.error(says, todo);
    }
    let mut unsure = looked.checks.clone();
    unsure.extend(looked.generated_not_null.iter().cloned());
    if !unsure.is_empty() {
        let says = format!(
            "its list leaves out columns that CHECK constraints or generated columns that are NOT \
             NULL use: {}",
            listed(&unsure)
        );
        let todo = "make sure that they hold for the columns' defaults, or for null: otherwise the \
            copy fails";
        found.warning(says, todo);
    }
}

/// Whether rows that are unique on the source may be equal on the target.
fn makes_equal(looked: &SubsetFacts, unique: &UniqueFacts) -> bool {
    let of = |name: &String| looked.left_out.iter().find(|column| column.name == *name);
    let is_unlike = |column: &LeftOut| match column.filled {
        Filled::BySequence => true,
        Filled::WithNull => !unique.nulls_equal,
        Filled::ByDefault => false,
    };
    let touched = unique
        .keys
        .iter()
        .chain(&unique.used)
        .any(|it| of(it).is_some());
    touched && !unique.keys.iter().filter_map(of).any(is_unlike)
}

/// pgoutput makes an INSERT of an update that brings a row into the filter. It has no value that is
/// stored out of line and was left as it was, unless the row before is in the WAL.
fn large_values(table: &Table, looked: &SubsetFacts, subset: &Subset, found: &mut Said) {
    let comes_in = subset.filter.is_some() && !looked.filter_columns.is_empty();
    if !comes_in || table.identity != ReplicaIdentity::Key || looked.large_columns.is_empty() {
        return;
    }
    let says = format!(
        "an update of {} that brings a row into the filter does not send large values that it leaves \
         as they are, and the replica stops there; columns that can have some: {}",
        listed(&looked.filter_columns),
        listed(&looked.large_columns)
    );
    let todo = match subset.columns {
        None => {
            "nothing if there is no such update; ALTER TABLE ... REPLICA IDENTITY FULL otherwise"
        }
        Some(_) => {
            "nothing if there is no such update; leave those columns out of --columns otherwise"
        }
    };
    found.warning(says, todo);
}

fn foreign_key(key: &ForeignKey, found: &mut Findings) {
    let subject = format!("constraint \"{}\" of table {}", key.name, key.table);
    let referenced = &key.referenced;
    match &key.reference {
        Reference::Dangles => {
            let says = format!(
                "rows that are replicated refer to rows of table {referenced} that are not, so the \
                 target cannot have it"
            );
            let todo = "let a row filter leave out those rows, too, or drop the foreign key";
            found.error(subject, says, todo);
        }
        Reference::Holds => {
            let says = format!(
                "it refers to table {referenced}, which has a row filter: it holds now, but the target \
                 does not check it when changes are applied"
            );
            let todo =
                "make sure that no replicated row comes to refer to a row that is not replicated";
            found.warning(subject, says, todo);
        }
        Reference::LeavesOut(column) => {
            let says = format!(
                "the list of {} leaves out its column \"{column}\", and what the target has there \
                 need not satisfy it",
                key.table
            );
            found.error(subject, says, "add its columns to --columns, or drop it");
        }
        Reference::LeavesOutReferenced(column) => {
            let says = format!(
                "it refers to column \"{column}\" of table {referenced}, whose list leaves it out"
            );
            found.error(subject, says, "add the column to --columns, or drop it");
        }
    }
}
