//! What an alteration of a replica's tables changes. No I/O.

use std::collections::BTreeMap;

use crate::error::{ReplicaError, Result};
use crate::names::{Excluded, TableName};
use crate::preflight::facts::{Facts, Table};
use crate::publication::subset::Subset;
use crate::state::{Replica, TableCopy};

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
    /// Tables of which another part is wanted, which are copied again.
    pub anew: Vec<TableName>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.joins.is_empty() && self.leaves.is_empty() && self.anew.is_empty()
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

    /// A table, or one above it, is named as not left out.
    fn includes(&self, table: &Table) -> bool {
        table.is_left_out(&self.include)
    }

    /// What happens to the tables that are `listed`. `old` and `new` are the source's tables with what was
    /// left out and wanted before, and from now on.
    pub fn changes(&self, old: &Facts, new: &Facts, listed: &[TableCopy]) -> Result<Changes> {
        let mut changes = Changes::default();
        let is_it = |copy: &TableCopy, table: &Table| match copy.source_oid {
            Some(oid) => oid == table.oid,
            None => copy.name == table.name,
        };
        for table in new.copied() {
            let Some(copy) = listed.iter().find(|copy| is_it(copy, table)) else {
                let was_left_out = table.is_left_out(&old.excluded);
                if was_left_out || self.includes(table) {
                    changes.joins.push((table.name.clone(), table.oid));
                }
                continue;
            };
            if part(old.subset_of(table)) == part(new.subset_of(table)) {
                continue;
            }
            if copy.name != table.name {
                return Err(ReplicaError::State(format!(
                    "table {} is called {} since it was copied, so it cannot be copied again: give it its \
                     name back first",
                    copy.name, table.name
                )));
            }
            changes.anew.push(table.name.clone());
        }
        let leaves = |copy: &&TableCopy| {
            let mut tables = new.tables.iter();
            let table = tables.find(|table| is_it(copy, table));
            table.is_some_and(|table| table.is_left_out(&new.excluded))
        };
        let left = listed.iter().filter(leaves);
        changes.leaves = left.map(|copy| copy.name.clone()).collect();
        Ok(changes)
    }
}

/// What of a table is replicated.
fn part(subset: Option<&Subset>) -> (Option<&String>, Option<&Vec<String>>) {
    subset.map_or((None, None), |it| (it.filter.as_ref(), it.columns.as_ref()))
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
    use crate::state::TableState;

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
        let changes = |wishes: &Wishes, new: &Facts| wishes.changes(&old, new, &listed).unwrap();
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
        assert_eq!(
            changes(&Wishes::default(), &new),
            Changes {
                joins: vec![(name("a"), 1)],
                leaves: vec![name("p1")],
                anew: vec![name("c"), name("d")],
            }
        );
        // One that was renamed has another name in the state.
        let renamed = [copy(Some(2), "before")];
        let error = Wishes::default().changes(&old, &new, &renamed).unwrap_err();
        assert!(error.to_string().contains("called \"s.c\""), "{error}");
    }
}
