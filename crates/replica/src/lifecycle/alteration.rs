//! What an alteration of a replica's tables changes. No I/O.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::error::{ReplicaError, Result};
use crate::names::{Excluded, TableName};
use crate::preflight::facts::{Facts, Table};
use crate::publication::subset::Subset;
use crate::state::{Replica, TableCopy, TableState};

/// What the user wants to be otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// What is left out from now on.
    pub exclude: Excluded,
    /// What is not left out any more. A table that was made after the copy joins, too, if it is named here.
    pub include: Excluded,
    /// Row filters and column lists, each in place of the one that its table has.
    pub subsets: Vec<Subset>,
    /// Tables without a row filter and a column list from now on.
    pub whole: Vec<TableName>,
}

/// What happens to which table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Tables that are copied for the first time, with their OIDs on the source.
    pub joins: Vec<(TableName, u32)>,
    /// Tables that are replicated no longer.
    pub leaves: Vec<TableName>,
    /// Tables of which another part is wanted, which are copied again, with their OIDs on the source.
    pub anew: Vec<(TableName, u32)>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.joins.is_empty() && self.leaves.is_empty() && self.anew.is_empty()
    }

    /// Tables whose rows are copied.
    pub fn copied(&self) -> impl Iterator<Item = &(TableName, u32)> {
        self.joins.iter().chain(&self.anew)
    }

    /// The replica's tables once the state has the changes.
    pub(super) fn listed(&self, before: &[TableCopy]) -> Vec<TableCopy> {
        let is_copied = |it: &&TableCopy| !self.copied().any(|(name, _)| *name == it.name);
        let stays = before.iter().filter(|it| !self.leaves.contains(&it.name));
        let copied = self.copied().map(|(name, oid)| TableCopy {
            name: name.clone(),
            state: TableState::Waiting,
            start: None,
            rows: 0,
            bytes: 0,
            missing: 0,
            source_oid: Some(*oid),
            target_oid: None,
            there: None,
            replaced: false,
            unlogged: false,
            doubt: None,
        });
        stays.filter(is_copied).cloned().chain(copied).collect()
    }
}

fn is_none(excluded: &Excluded) -> bool {
    excluded.schemas.is_empty() && excluded.tables.is_empty()
}

impl Wishes {
    pub fn is_empty(&self) -> bool {
        let sets = is_none(&self.exclude) && is_none(&self.include);
        sets && self.subsets.is_empty() && self.whole.is_empty()
    }

    /// What a replica leaves out, and its row filters and column lists, once this is so.
    pub fn applied(&self, replica: &Replica) -> Result<(Excluded, Vec<Subset>)> {
        let (exclude, include) = (&self.exclude, &self.include);
        let both = (exclude.schemas.iter())
            .find(|it| include.schemas.contains(it))
            .or_else(|| exclude.tables.iter().find(|it| include.tables.contains(it)));
        if let Some(name) = both {
            return Err(ReplicaError::Usage(format!(
                "{name} is to be left out and not"
            )));
        }
        let is_wished = |table: &&TableName| self.subsets.iter().any(|one| one.table == **table);
        if let Some(table) = self.whole.iter().find(is_wished) {
            return Err(ReplicaError::Usage(format!(
                "table {table} is to be replicated whole and in part"
            )));
        }
        let excluded = Excluded {
            schemas: changed(&replica.exclude_schemas, &exclude.schemas, &include.schemas),
            tables: changed(&replica.exclude_tables, &exclude.tables, &include.tables),
        };
        let had = replica.subsets.iter().cloned();
        let mut subsets: BTreeMap<_, _> = had.map(|one| (one.table.clone(), one)).collect();
        for wish in &self.subsets {
            let subset = subsets.entry(wish.table.clone()).or_insert_with(|| Subset {
                table: wish.table.clone(),
                ..Subset::default()
            });
            subset.filter = wish.filter.clone().or_else(|| subset.filter.take());
            subset.columns = wish.columns.clone().or_else(|| subset.columns.take());
        }
        let stays = |table: &TableName| !self.whole.contains(table) && !excluded.names(table);
        subsets.retain(|table, _| stays(table));
        Ok((excluded, subsets.into_values().collect()))
    }

    /// Tables that get another row filter or column list, or none.
    pub(super) fn parts(&self) -> Vec<&TableName> {
        let named = self.subsets.iter().map(|one| &one.table);
        named.chain(&self.whole).collect()
    }

    /// Takes out subsets of partitions of tables that get another one: that holds for each of them.
    pub(super) fn hold_below(&self, tables: &[Table], subsets: &mut Vec<Subset>) {
        let parts = self.parts();
        subsets.retain(|subset| {
            let table = tables.iter().find(|table| table.name == subset.table);
            let is_below =
                table.is_some_and(|it| it.ancestors.iter().any(|up| parts.contains(&up)));
            parts.contains(&&subset.table) || !is_below
        });
    }

    /// Names that would change nothing although the user wants something of them.
    pub fn check_names(&self, replica: &Replica, new: &Facts) -> Result<()> {
        let has = |name: &TableName| new.tables.iter().any(|table| table.name == *name);
        let written = |name: &TableName| format!("{}.{}", name.schema, name.table);
        let named = |text: &String| (new.tables.iter()).any(|table| written(&table.name) == *text);
        let mut schemas = self.include.schemas.iter();
        let unknown = |name: &&String| {
            !replica.exclude_schemas.contains(name) && !new.schemas.contains(name.as_str())
        };
        if let Some(schema) = schemas.find(unknown) {
            return Err(ReplicaError::Usage(format!(
                "the source has no schema \"{schema}\" (--include-schema takes a name as it is, without quotes)"
            )));
        }
        let mut tables = self.include.tables.iter();
        let unknown = |text: &&String| !replica.exclude_tables.contains(text) && !named(text);
        if let Some(table) = tables.find(unknown) {
            return Err(ReplicaError::Usage(format!(
                "the source has no table \"{table}\" (--include-table takes schema.table as the names are, without \
                 quotes)"
            )));
        }
        let of_schema = |table: &&Table| {
            self.include.tables.contains(&written(&table.name))
                && new.excluded.schemas.contains(&table.name.schema)
        };
        if let Some(table) = new.tables.iter().find(of_schema) {
            return Err(ReplicaError::Usage(format!(
                "table {} is to join, and its schema is left out: let the schema join (--include-schema), and \
                 leave out its other tables",
                table.name
            )));
        }
        let mut parts = self.parts().into_iter();
        if let Some(table) = parts.find(|name| new.excluded.names(name)) {
            return Err(ReplicaError::Usage(format!(
                "{table} is the name of a table that is left out, or its schema is: let it join (--include-table, \
                 --include-schema), or name it with none of --where, --columns and --whole"
            )));
        }
        let had = |name: &TableName| {
            let mut own = replica.subsets.iter().filter(|one| one.table == *name);
            own.any(|one| part(Some(one)) != part(None))
        };
        for table in new.tables.iter().filter(|it| self.whole.contains(&it.name)) {
            let above = table.ancestors.iter().find(|above| had(above));
            if let Some(above) = above.filter(|_| !had(&table.name)) {
                return Err(ReplicaError::Usage(format!(
                    "table {} has no row filter or column list of its own: it is a partition of {above}, whose \
                     holds for all of them (--whole {above})",
                    table.name
                )));
            }
        }
        match self.whole.iter().find(|name| !has(name) && !had(name)) {
            Some(table) => Err(ReplicaError::Usage(format!(
                "the source has no table {table} (--whole takes schema.table as the names are, without quotes)"
            ))),
            None => Ok(()),
        }
    }

    /// A table, or one above it, is named as not left out.
    fn includes(&self, table: &Table) -> bool {
        table.is_left_out(&self.include)
    }

    /// What happens to the tables that are `listed`. `old` and `new` are the source's tables with what was
    /// left out and wanted before, and from now on; the publication has `sent`.
    pub fn changes(
        &self,
        old: &Facts,
        new: &Facts,
        listed: &[TableCopy],
        sent: &HashSet<u32>,
    ) -> Result<Changes> {
        let mut changes = Changes::default();
        for table in new.copied() {
            let copy = listed.iter().find(|copy| is_it(copy, table));
            let was_left_out = table.is_left_out(&old.excluded);
            if copy.is_none() && (was_left_out || self.includes(table)) {
                check_free(table, new, listed)?;
                changes.joins.push((table.name.clone(), table.oid));
                continue;
            }
            let is_ours = copy.is_some() || is_sent(new, table, sent);
            if !is_ours || part(old.subset_of(table)) == part(new.subset_of(table)) {
                continue;
            }
            if let Some(copy) = copy.filter(|copy| copy.name != table.name) {
                return Err(ReplicaError::State(format!(
                    "table {} is called {} on the source since it was copied, and not so on the target, so it cannot \
                     be copied again: give it that name there, too",
                    copy.name, table.name
                )));
            }
            changes.anew.push((table.name.clone(), table.oid));
        }
        // One that has got the name of a table that was left out before stays.
        let leaves = |copy: &&TableCopy| {
            let mut tables = new.tables.iter();
            let table = tables.find(|table| is_it(copy, table));
            table.is_some_and(|table| table.is_left_out(&self.exclude))
        };
        let left = listed.iter().filter(leaves);
        changes.leaves = left.map(|copy| copy.name.clone()).collect();
        Ok(changes)
    }
}

/// An error if another table was copied under the name of one that joins, and still is the replica's.
fn check_free(table: &Table, facts: &Facts, listed: &[TableCopy]) -> Result<()> {
    let copy = listed.iter().find(|copy| copy.name == table.name);
    let mut tables = facts.tables.iter();
    match copy.and_then(|copy| tables.find(|table| is_it(copy, table))) {
        None => Ok(()),
        Some(other) => Err(ReplicaError::State(format!(
            "table {} cannot join under this name: table {}, which is replicated, had it when it was copied. \
             Give that one the same name on both sides, or the table that is to join another",
            table.name, other.name
        ))),
    }
}

/// Whether a table of the source is the one that was copied, whatever it is called now.
pub(super) fn is_it(copy: &TableCopy, table: &Table) -> bool {
    match copy.source_oid {
        Some(oid) => oid == table.oid,
        None => copy.name == table.name,
    }
}

/// Tables that are still to be copied, and that the source has no longer. An error if one is called otherwise
/// there by now.
pub(super) fn gone(facts: &Facts, listed: &[TableCopy]) -> Result<Vec<TableName>> {
    let mut gone = Vec::new();
    for copy in listed.iter().filter(|it| it.state != TableState::Copied) {
        let mut tables = facts.tables.iter();
        match tables.find(|table| is_it(copy, table)) {
            None => gone.push(copy.name.clone()),
            Some(table) if table.name != copy.name => {
                return Err(ReplicaError::State(format!(
                    "table {}, which is to be copied, is called {} on the source by now: give it its name back \
                     there",
                    copy.name, table.name
                )));
            }
            Some(_) => {}
        }
    }
    Ok(gone)
}

/// The copies under the names that both sides have for them now. A name that another copy keeps is not taken.
pub(super) fn renamed(tables: &[Table], listed: &[TableCopy]) -> Vec<TableCopy> {
    let now = |copy: &TableCopy| {
        let oid = copy.source_oid?;
        let table = tables.iter().find(|table| table.oid == oid)?;
        let is_renamed = table.name != copy.name && copy.there.as_ref() == Some(&table.name);
        is_renamed.then(|| table.name.clone())
    };
    let mut names: Vec<_> = listed.iter().map(now).collect();
    loop {
        let both = listed.iter().zip(&names);
        let keep = both.filter(|(_, name)| name.is_none());
        let kept: HashSet<_> = keep.map(|(copy, _)| &copy.name).collect();
        let taken = names.iter().flatten().find(|name| kept.contains(name));
        let Some(taken) = taken.cloned() else {
            break;
        };
        for name in &mut names {
            name.take_if(|name| *name == taken);
        }
    }
    let both = listed.iter().zip(names);
    both.map(|(copy, name)| match name {
        None => copy.clone(),
        Some(name) => TableCopy {
            name,
            replaced: false,
            ..copy.clone()
        },
    })
    .collect()
}

/// Whether a publication that has `sent` sends a table: by itself, or as a partition that was made later.
fn is_sent(facts: &Facts, table: &Table, sent: &HashSet<u32>) -> bool {
    let mut above = facts
        .tables
        .iter()
        .filter(|one| table.ancestors.contains(&one.name));
    sent.contains(&table.oid) || above.any(|one| sent.contains(&one.oid))
}

/// What tables that leave are called on the target now, so that they can be dropped; an error if another
/// table has come in the place of one.
pub(super) fn to_drop(leaves: &[TableName], listed: &[TableCopy]) -> Result<Vec<TableName>> {
    let left = listed.iter().filter(|copy| leaves.contains(&copy.name));
    let mut names = Vec::new();
    for copy in left {
        let Some(there) = &copy.there else {
            continue;
        };
        if copy.replaced && *there == copy.name {
            return Err(ReplicaError::State(format!(
                "table {there} on the target is another one than the replica's: drop it by hand, or leave out \
                 --drop-tables"
            )));
        }
        names.push(there.clone());
    }
    Ok(names)
}

/// Whether rows that are in the target's table of this name may go: they are the replica's. Of a table that
/// `joins` none are. An error if the name is that of another table's copy by now, or its own copy has
/// another name.
pub(super) fn may_be_emptied(name: &TableName, joins: bool, listed: &[TableCopy]) -> Result<bool> {
    let is_there = |copy: &&TableCopy| copy.there.as_ref() == Some(name);
    if let Some(other) = listed.iter().find(|it| is_there(it) && it.name != *name) {
        return Err(ReplicaError::State(format!(
            "table {name} of the target is the copy of {}, so {name} cannot be copied into it: give both the \
             names that they have on the source first",
            other.name
        )));
    }
    let own = listed.iter().find(|copy| copy.name == *name && !joins);
    let Some(own) = own else {
        return Ok(!joins);
    };
    match &own.there {
        Some(there) if there != name => Err(ReplicaError::State(format!(
            "table {name} is called {there} on the target, so it cannot be copied again: give it its name back \
             first"
        ))),
        Some(_) => Ok(!own.replaced),
        None => Ok(false),
    }
}

/// What of a table is replicated. The order of columns does not matter.
pub(super) fn part(subset: Option<&Subset>) -> (Option<&String>, Option<BTreeSet<&String>>) {
    subset.map_or((None, None), |it| {
        let columns = it.columns.as_ref().map(|all| all.iter().collect());
        (it.filter.as_ref(), columns)
    })
}

fn changed(had: &[String], add: &[String], remove: &[String]) -> Vec<String> {
    let mut names: Vec<_> = had
        .iter()
        .filter(|name| !remove.contains(name))
        .cloned()
        .collect();
    for name in add {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::promotion::tests_replica;
    use crate::preflight::facts::TableKind;

    fn name(table: &str) -> TableName {
        TableName {
            schema: "s".to_owned(),
            table: table.to_owned(),
        }
    }

    fn excluded(schemas: &[&str], tables: &[&str]) -> Excluded {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Excluded {
            schemas: owned(schemas),
            tables: owned(tables),
        }
    }

    fn subset(table: &str, filter: Option<&str>, columns: Option<&[&str]>) -> Subset {
        Subset {
            table: name(table),
            filter: filter.map(str::to_owned),
            columns: columns.map(|all| all.iter().map(|one| (*one).to_owned()).collect()),
        }
    }

    fn replica() -> Replica {
        Replica {
            exclude_schemas: vec!["x".to_owned()],
            exclude_tables: vec!["s.a".to_owned(), "s.b".to_owned()],
            subsets: vec![
                subset("c", Some("id > 1"), Some(&["id"])),
                subset("d", Some("true"), None),
            ],
            ..tests_replica()
        }
    }

    #[test]
    fn what_is_wished_comes_in_place_of_what_was() {
        let wishes = Wishes {
            exclude: excluded(&["y"], &["s.b", "s.d"]),
            include: excluded(&["x"], &["s.a"]),
            subsets: vec![
                subset("c", Some("id > 2"), None),
                subset("e", None, Some(&["id"])),
            ],
            whole: Vec::new(),
        };
        let (left_out, subsets) = wishes.applied(&replica()).unwrap();
        assert_eq!(left_out, excluded(&["y"], &["s.b", "s.d"]));
        let expected = [
            subset("c", Some("id > 2"), Some(&["id"])),
            subset("e", None, Some(&["id"])),
        ];
        assert_eq!(subsets, expected);
        // The same once more changes nothing.
        let altered = Replica {
            exclude_schemas: left_out.schemas.clone(),
            exclude_tables: left_out.tables.clone(),
            subsets: subsets.clone(),
            ..replica()
        };
        assert_eq!(wishes.applied(&altered).unwrap(), (left_out, subsets));
        let whole = Wishes {
            whole: vec![name("c")],
            ..Wishes::default()
        };
        assert_eq!(
            whole.applied(&replica()).unwrap().1,
            [subset("d", Some("true"), None)]
        );
        for wrong in [
            Wishes {
                exclude: excluded(&[], &["s.q"]),
                include: excluded(&[], &["s.q"]),
                ..Wishes::default()
            },
            Wishes {
                subsets: vec![subset("c", None, Some(&["id"]))],
                whole: vec![name("c")],
                ..Wishes::default()
            },
        ] {
            assert!(matches!(
                wrong.applied(&replica()),
                Err(ReplicaError::Usage(_))
            ));
        }
    }

    fn table(oid: u32, own: &str, ancestors: &[&str]) -> Table {
        Table {
            name: name(own),
            oid,
            ancestors: ancestors.iter().map(|above| name(above)).collect(),
            ..Table::default()
        }
    }

    fn copy(oid: Option<u32>, own: &str) -> TableCopy {
        TableCopy {
            name: name(own),
            state: TableState::Copied,
            start: None,
            rows: 0,
            bytes: 0,
            missing: 0,
            source_oid: oid,
            target_oid: None,
            there: None,
            replaced: false,
            unlogged: false,
            doubt: None,
        }
    }

    #[test]
    fn what_stays_is_not_copied_again() {
        let facts = |left_out: Excluded, subsets: Vec<Subset>| Facts {
            tables: vec![
                table(1, "a", &[]),
                table(2, "c", &[]),
                table(3, "d", &[]),
                table(4, "p1", &["p"]),
                table(5, "later", &[]),
            ],
            excluded: left_out,
            subsets,
            ..Facts::default()
        };
        let listed = [
            copy(Some(2), "c"),
            copy(Some(3), "d"),
            copy(None, "p1"),
            copy(Some(9), "gone"),
        ];
        let old = facts(
            excluded(&[], &["s.a"]),
            vec![subset("d", Some("true"), None)],
        );
        let sent = HashSet::new();
        let changes =
            |wishes: &Wishes, new: &Facts| wishes.changes(&old, new, &listed, &sent).unwrap();
        assert!(changes(&Wishes::default(), &old).is_empty());
        // A table that was made later joins only if it is named.
        let wishes = Wishes {
            include: excluded(&[], &["s.later"]),
            ..Wishes::default()
        };
        assert_eq!(changes(&wishes, &old).joins, [(name("later"), 5)]);
        let new = facts(
            excluded(&[], &["s.p"]),
            vec![subset("c", None, Some(&["id"]))],
        );
        // A table with the name of one that was left out before stays.
        assert!(changes(&Wishes::default(), &new).leaves.is_empty());
        let wishes = Wishes {
            exclude: excluded(&[], &["s.p"]),
            ..Wishes::default()
        };
        assert_eq!(
            changes(&wishes, &new),
            Changes {
                joins: vec![(name("a"), 1)],
                leaves: vec![name("p1")],
                anew: vec![(name("c"), 2), (name("d"), 3)],
            }
        );
        // One that was renamed has another name in the state.
        let renamed = [copy(Some(2), "before")];
        let error = Wishes::default().changes(&old, &new, &renamed, &sent);
        let error = error.unwrap_err();
        assert!(error.to_string().contains("called \"s.c\""), "{error}");
        // Unless both sides have renamed it.
        let renamed = super::renamed(&old.tables, &[at(2, "before", "c"), copy(Some(3), "d")]);
        let names: Vec<_> = renamed.iter().map(|copy| copy.name.clone()).collect();
        assert_eq!(names, [name("c"), name("d")]);
        let anew = Wishes::default().changes(&old, &new, &renamed, &sent);
        assert_eq!(anew.unwrap().anew, [(name("c"), 2), (name("d"), 3)]);
    }

    /// A copy, and what it is called on the target.
    fn at(oid: u32, own: &str, there: &str) -> TableCopy {
        TableCopy {
            there: Some(name(there)),
            ..copy(Some(oid), own)
        }
    }

    #[test]
    fn a_name_that_another_copy_keeps_is_not_taken() {
        let tables = [
            table(1, "c", &[]),
            table(2, "a", &[]),
            table(3, "d", &[]),
            table(4, "e", &[]),
        ];
        let names = |listed: &[TableCopy]| -> Vec<String> {
            let renamed = renamed(&tables, listed);
            renamed.into_iter().map(|copy| copy.name.table).collect()
        };
        // Two have exchanged their names.
        assert_eq!(names(&[at(1, "a", "c"), at(2, "c", "a")]), ["c", "a"]);
        // One has not yet on the target, so that its name is not free for the other, nor that one's.
        let listed = [
            at(1, "a", "c"),
            at(2, "c", "c2"),
            at(3, "f", "d"),
            at(4, "d", "e"),
        ];
        assert_eq!(names(&listed), ["a", "c", "d", "e"]);
        let gone = [at(4, "d", "e"), at(3, "x", "d"), copy(Some(9), "e")];
        assert_eq!(names(&gone), ["d", "x", "e"]);
    }

    #[test]
    fn a_partition_that_was_made_later_is_copied_anew_with_the_others() {
        let facts = |subsets: Vec<Subset>| Facts {
            tables: vec![
                Table {
                    kind: TableKind::Partitioned,
                    ..table(1, "p", &[])
                },
                table(2, "p1", &["p"]),
                table(3, "p2", &["p"]),
                table(4, "later", &[]),
            ],
            subsets,
            ..Facts::default()
        };
        let (old, new) = (
            facts(Vec::new()),
            facts(vec![
                subset("p", Some("true"), None),
                subset("later", Some("true"), None),
            ]),
        );
        let listed = [copy(Some(2), "p1")];
        let anew = |sent: &[u32]| {
            let sent = sent.iter().copied().collect();
            let changes = Wishes::default().changes(&old, &new, &listed, &sent);
            changes.unwrap().anew
        };
        assert_eq!(anew(&[]), [(name("p1"), 2)]);
        for sent in [&[1][..], &[2, 3]] {
            assert_eq!(anew(sent), [(name("p1"), 2), (name("p2"), 3)], "{sent:?}");
        }
    }

    #[test]
    fn what_is_dropped_is_the_table_that_was_copied() {
        let at = |there: Option<&str>, replaced: bool| TableCopy {
            there: there.map(name),
            replaced,
            ..copy(Some(1), "a")
        };
        let drops = |copy: TableCopy| to_drop(&[name("a")], &[copy]);
        assert_eq!(drops(at(Some("a"), false)).unwrap(), [name("a")]);
        // It was renamed there, and another has its name, or none.
        for replaced in [false, true] {
            assert_eq!(drops(at(Some("b"), replaced)).unwrap(), [name("b")]);
        }
        assert!(drops(at(None, false)).unwrap().is_empty());
        let other = drops(at(Some("a"), true)).unwrap_err();
        assert!(other.to_string().contains("is another one"), "{other}");
        assert!(to_drop(&[], &[at(Some("a"), false)]).unwrap().is_empty());
    }

    #[test]
    fn only_rows_of_the_replica_go() {
        let at = |there: Option<&str>, replaced: bool| TableCopy {
            there: there.map(name),
            replaced,
            ..copy(Some(1), "a")
        };
        let may = |joins: bool, copies: &[TableCopy]| may_be_emptied(&name("a"), joins, copies);
        assert!(may(false, &[at(Some("a"), false)]).unwrap());
        // A partition that was made later is not listed, or has no OID.
        assert!(may(false, &[]).unwrap());
        assert!(!may(false, &[at(Some("a"), true)]).unwrap());
        assert!(!may(false, &[at(None, false)]).unwrap());
        assert!(!may(true, &[]).unwrap());
        // The source has made another one of that name.
        assert!(!may(true, &[at(Some("a"), false)]).unwrap());
        let renamed = may(false, &[at(Some("b"), true)]).unwrap_err();
        assert!(renamed.to_string().contains("is called"), "{renamed}");
        let other = TableCopy {
            there: Some(name("a")),
            ..copy(Some(2), "b")
        };
        for joins in [false, true] {
            let error = may(joins, &[at(None, false), other.clone()]).unwrap_err();
            assert!(error.to_string().contains("is the copy of"), "{error}");
        }
    }

    #[test]
    fn tables_that_are_dropped_before_their_copy_are_found() {
        let facts = Facts {
            tables: vec![table(1, "c", &[]), table(2, "e", &[])],
            ..Facts::default()
        };
        let waiting = |oid, own| TableCopy {
            state: TableState::Waiting,
            ..copy(Some(oid), own)
        };
        // One has the name of a table that was to be copied.
        let listed = [waiting(1, "c"), waiting(3, "e"), copy(Some(4), "d")];
        assert_eq!(gone(&facts, &listed).unwrap(), [name("e")]);
        let renamed = gone(&facts, &[waiting(2, "d")]).unwrap_err();
        assert!(renamed.to_string().contains("is called"), "{renamed}");
        assert_eq!(gone(&facts, &[copy(Some(2), "d")]).unwrap(), []);
    }

    #[test]
    fn names_that_mean_nothing_are_refused() {
        let facts = |wishes: &Wishes| Facts {
            tables: vec![
                table(1, "c", &[]),
                table(2, "e", &[]),
                table(3, "c1", &["c"]),
            ],
            schemas: ["s", "x"].map(str::to_owned).into(),
            excluded: wishes.applied(&replica()).unwrap().0,
            ..Facts::default()
        };
        let check = |wishes: Wishes| wishes.check_names(&replica(), &facts(&wishes));
        let include = |schemas: &[&str], tables: &[&str]| Wishes {
            include: excluded(schemas, tables),
            ..Wishes::default()
        };
        let whole = |table: &str| Wishes {
            whole: vec![name(table)],
            ..Wishes::default()
        };
        // What was left out may be gone by now, and so may a table that had a row filter.
        for right in [
            include(&["x", "s"], &["s.a", "s.e"]),
            whole("d"),
            whole("e"),
        ] {
            check(right).unwrap();
        }
        for (wrong, words) in [
            (include(&["y"], &[]), "no schema \"y\""),
            (include(&[], &["s.q"]), "no table \"s.q\""),
            (whole("q"), "no table \"s.q\""),
            (whole("c1"), "of its own"),
            (whole("a"), "is left out"),
            (
                Wishes {
                    subsets: vec![subset("b", Some("id > 1"), None)],
                    ..Wishes::default()
                },
                "is left out",
            ),
            (
                Wishes {
                    exclude: excluded(&["s"], &[]),
                    ..include(&[], &["s.e"])
                },
                "its schema is left out",
            ),
        ] {
            let error = check(wrong).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
