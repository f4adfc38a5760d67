//! The publication that a source has against the one that a replica made. No I/O.

use super::{Entry, Expected, Place, Published};
use crate::names::TableName;
use crate::publication::subset::Subset;

/// What the flags of [`Published::sends`] are called.
const COMMANDS: [&str; 4] = ["INSERT", "UPDATE", "DELETE", "TRUNCATE"];

impl Expected {
    /// Tables whose places must be known.
    pub(super) fn to_ask(&self, found: &Published) -> Vec<u32> {
        let Some(made) = &self.made else {
            let asked = found.tables.iter().filter(|_| !self.subsets.is_empty());
            return asked.map(|entry| entry.oid).collect();
        };
        let gone = made.tables.iter().map(|entry| entry.oid);
        let gone = gone.filter(|oid| found.entry(*oid).is_none());
        let added = found.tables.iter().map(|entry| entry.oid);
        let added = added.filter(|oid| made.entry(*oid).is_none());
        gone.chain(added).collect()
    }

    /// What differs, a sentence each. `places` are those of [`Expected::to_ask`] that exist.
    pub(super) fn compare(&self, found: Option<&Published>, places: &[Place]) -> Vec<String> {
        let Some(found) = found else {
            return vec!["the source no longer has a publication of its name".to_owned()];
        };
        let mut differences = of_all(self.made.as_ref(), found);
        let Some(made) = &self.made else {
            let copied = found.tables.iter();
            let copied = copied.filter(|entry| self.copied.contains(&entry.table));
            let differs = |entry: &Entry| self.older(entry, places);
            differences.extend(copied.filter_map(differs));
            return differences;
        };
        let place = |oid| places.iter().find(|place| place.oid == oid);
        for entry in &made.tables {
            match (found.entry(entry.oid), place(entry.oid)) {
                (Some(now), _) => differences.extend(of_entry(entry, now)),
                (None, Some(place)) => differences.extend(taken_out(entry, place, found)),
                (None, None) => {}
            }
        }
        for entry in &found.tables {
            if let (None, Some(place)) = (made.entry(entry.oid), place(entry.oid)) {
                differences.extend(self.added(entry, place, (made, found)));
            }
        }
        differences
    }

    /// The subset that a table should have: its own, or that of the next table above it.
    fn subset_of(&self, place: &Place) -> Option<&Subset> {
        let above = place.above.iter().map(|(_, name)| name);
        let mut names = std::iter::once(&place.table).chain(above);
        names.find_map(|name| self.subsets.iter().find(|subset| subset.table == *name))
    }

    /// A table that was added later.
    fn added(
        &self,
        entry: &Entry,
        place: &Place,
        (made, found): (&Published, &Published),
    ) -> Option<String> {
        let table = &entry.table;
        let subset = self.subset_of(place);
        if place.is_partitioned {
            let mut below = self.subsets.iter();
            let covers = subset.is_some() || below.any(|one| place.tree.contains(&one.table));
            return covers.then(|| {
                format!(
                    "it has partitioned table {table}, of which only a part is replicated, so that it \
                     sends all of partitions that are made later"
                )
            });
        }
        let Some(subset) = subset else {
            // A partition of a table that is replicated whole.
            let is_ours = |name: &TableName| made.tables.iter().any(|one| one.table == *name);
            let is_ours = is_ours(table) || place.above.iter().any(|(_, name)| is_ours(name));
            let whole = Entry::default();
            return of_entry(&whole, entry).filter(|_| is_ours);
        };
        // The server writes a filter in its own way, and columns may have got other names since: a table
        // that the replica has published tells.
        let has = |entry: &Entry| (entry.filter.is_some(), entry.columns.is_some());
        let should = (subset.filter.is_some(), subset.columns.is_some());
        let ours = |one: &&Entry| made.entry(one.oid).is_some() && has(one) == should;
        let ours: Vec<_> = found.tables.iter().filter(ours).collect();
        let is_same = |one: &&Entry| names_of(one) == names_of(entry) && one.filter == entry.filter;
        let is_listed = listed(subset) == names_of(entry);
        let unknown = subset.filter.is_none() || ours.is_empty();
        let fits = (is_listed && unknown) || ours.iter().any(is_same);
        (has(entry) != should || !fits).then(|| {
            format!(
                "table {table}, which was added, has not the row filter and the columns of {}",
                subset.table
            )
        })
    }

    /// A table of a replica that an older version made.
    fn older(&self, entry: &Entry, places: &[Place]) -> Option<String> {
        let place = places.iter().find(|place| place.oid == entry.oid);
        let subset = place.and_then(|place| self.subset_of(place));
        // One that was detached keeps what it had from the table above it.
        if subset.is_none() && !self.subsets.is_empty() {
            return None;
        }
        let filter = subset.is_some_and(|subset| subset.filter.is_some());
        let columns = subset.and_then(|subset| subset.columns.as_ref().map(Vec::len));
        let table = &entry.table;
        if filter != entry.filter.is_some() {
            return Some(format!("table {table}: {}", rows(None, entry)));
        }
        let now = entry.columns.as_ref().map(Vec::len);
        (columns != now).then(|| {
            let wanted = subset.and_then(|subset| subset.columns.as_ref());
            let wanted = wanted.map_or_else(|| "all".to_owned(), |names| names.join(", "));
            format!(
                "table {table}: it sends {}, not {wanted}",
                columns_of(entry)
            )
        })
    }
}

/// What holds for all tables.
fn of_all(made: Option<&Published>, found: &Published) -> Vec<String> {
    let mut differences = Vec::new();
    if made.is_some_and(|made| made.oid.is_some() && made.oid != found.oid) {
        let words = "it was dropped and made again, and the source sends nothing of what committed in \
                     between";
        differences.push(words.to_owned());
    }
    let left_out = COMMANDS.iter().zip(found.sends).filter(|(_, sent)| !sent);
    let left_out: Vec<_> = left_out.map(|(command, _)| *command).collect();
    if !left_out.is_empty() {
        differences.push(format!("it does not send {}", left_out.join(", ")));
    }
    if found.via_root {
        let words = "it sends changes of partitions as those of the table above them \
                     (publish_via_partition_root)";
        differences.push(words.to_owned());
    }
    if found.all_tables {
        differences.push("it is for all tables, whole".to_owned());
    }
    if found.generated.as_ref().is_some_and(|which| which != "n") {
        let words = "it sends generated columns (publish_generated_columns)";
        differences.push(words.to_owned());
    }
    if !found.schemas.is_empty() {
        let schemas: Vec<_> = found
            .schemas
            .iter()
            .map(|name| format!("\"{name}\""))
            .collect();
        differences.push(format!(
            "it has all tables of schema {}, whole",
            schemas.join(", ")
        ));
    }
    differences
}

/// A table that the publication still has.
fn of_entry(made: &Entry, now: &Entry) -> Option<String> {
    let numbers = |entry: &Entry| {
        let columns = entry.columns.as_ref();
        columns.map(|columns| {
            columns
                .iter()
                .map(|(number, _)| *number)
                .collect::<Vec<_>>()
        })
    };
    let mut differences = Vec::new();
    if numbers(made) != numbers(now) {
        differences.push(format!(
            "it sends {}, not {}",
            columns_of(now),
            columns_of(made)
        ));
    }
    if made.digest != now.digest && made.filter != now.filter {
        differences.push(rows(made.filter.as_deref(), now));
    }
    let words = differences.join(", and ");
    (!words.is_empty()).then(|| format!("table {}: {words}", now.table))
}

/// A table that the source has and that the publication does not name any more.
fn taken_out(made: &Entry, place: &Place, found: &Published) -> Option<String> {
    let table = &place.table;
    let above = place.above.iter();
    let is_sent = above.clone().any(|(oid, _)| found.entry(*oid).is_some())
        || found.all_tables
        || std::iter::once(table)
            .chain(above.map(|(_, name)| name))
            .any(|name| found.schemas.contains(&name.schema));
    let had_part = made.columns.is_some() || made.filter.is_some();
    match (is_sent, had_part) {
        (true, false) => None,
        (true, true) => Some(format!("table {table}: it sends all rows and columns")),
        (false, _) if place.is_partitioned => Some(format!(
            "it does not have partitioned table {table} any more, and so nothing of partitions that are \
             made later"
        )),
        (false, _) => Some(format!("it does not have table {table} any more")),
    }
}

/// Which rows are sent, and which should be: those of a filter, of one that is not known, or all.
fn rows(made: Option<&str>, now: &Entry) -> String {
    match (made, &now.filter) {
        (Some(made), Some(now)) => format!("it sends rows with {now}, not those with {made}"),
        (Some(made), None) => format!("it sends all rows, not those with {made}"),
        (None, Some(now)) => format!("it sends only rows with {now}, not all"),
        (None, None) => "it sends all rows, not those of the row filter".to_owned(),
    }
}

fn columns_of(entry: &Entry) -> String {
    match &entry.columns {
        None => "all columns".to_owned(),
        Some(columns) => {
            let names: Vec<_> = columns.iter().map(|(_, name)| name.as_str()).collect();
            format!("columns {}", names.join(", "))
        }
    }
}

/// The names in a list, in the order of the names.
fn names_of(entry: &Entry) -> Option<Vec<&String>> {
    let columns = entry.columns.as_ref()?;
    Some(sorted(columns.iter().map(|(_, name)| name)))
}

fn listed(subset: &Subset) -> Option<Vec<&String>> {
    Some(sorted(subset.columns.as_ref()?.iter()))
}

fn sorted<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}
