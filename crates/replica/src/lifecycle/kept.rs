//! What a publication has of a replica's tables, and what of that an alteration changes. Tables are known by
//! their OIDs here, and columns by their numbers: what the state has of a table may be the name that another
//! one has by now, and a filter as it was written may mean something else in another session. No I/O.

use std::collections::{BTreeSet, HashMap};

use crate::error::{ReplicaError, Result};
use crate::lifecycle::alteration::{is_it, part};
use crate::names::TableName;
use crate::preflight::facts::{Facts, Table, TableKind};
use crate::publication::subset::Subset;
use crate::publication::{Entry, Published};
use crate::state::{TableCopy, TableState};

/// What is known of a replica.
pub struct KnownReplica<'a> {
    /// The row filters and column lists that the state has.
    pub subsets: &'a [Subset],
    /// The OIDs of tables that have a subset, by the names that the state has.
    pub oids: &'a HashMap<TableName, u32>,
    /// The publication as the replica has made it.
    pub made: Option<&'a Published>,
    pub listed: &'a [TableCopy],
    /// The publication as it is.
    pub found: &'a Published,
}

impl KnownReplica<'_> {
    /// The OID of a table that has a subset. A state of an older version has that of tables that the
    /// publication names, or that were copied.
    fn oid(&self, name: &TableName) -> Option<u32> {
        let made = self.made.and_then(|made| {
            let mut entries = made.tables.iter();
            entries.find(|entry| entry.table == *name)
        });
        let listed = || self.listed.iter().find(|copy| copy.name == *name);
        (self.oids.get(name).copied())
            .or_else(|| made.map(|entry| entry.oid))
            .or_else(|| listed()?.source_oid)
    }

    /// The subsets under the names that the tables have now. Those of tables that are gone are left out.
    pub fn named(&self, facts: &Facts) -> Result<Vec<Subset>> {
        let mut named = Vec::new();
        for subset in self.subsets {
            let oid = self.oid(&subset.table);
            let is_it = |table: &&Table| match oid {
                Some(oid) => table.oid == oid,
                None => table.name == subset.table,
            };
            match (facts.tables.iter().find(is_it), oid) {
                (Some(table), _) => named.push(Subset {
                    table: table.name.clone(),
                    ..subset.clone()
                }),
                (None, Some(_)) => {}
                (None, None) => {
                    return Err(ReplicaError::State(format!(
                        "the source has no table {} any more, which has a row filter or a column list, and an \
                         older version has not kept which one it was: give it its name back, or \
                         drop the replica and create it again",
                        subset.table
                    )));
                }
            }
        }
        Ok(named)
    }

    /// The subsets as the publication has them. `wished` are tables that get another one.
    pub fn subsets(&self, facts: &Facts, wished: &[&TableName]) -> Result<Vec<Subset>> {
        let mut named = self.named(facts)?;
        let found = named.clone();
        for subset in &mut named {
            let mut tables = facts.tables.iter();
            let Some(table) = tables.find(|table| table.name == subset.table) else {
                continue;
            };
            let entry = self.found.entry(table.oid).cloned();
            let entry = match entry {
                None => self.below(facts, &found, table, subset, wished)?,
                entry => entry,
            };
            if let Some(entry) = entry {
                *subset = of_entry(&entry, table);
            }
        }
        named.retain(|subset| subset.filter.is_some() || subset.columns.is_some());
        // A partition may have been detached, or attached, and keeps what it had.
        for entry in &self.found.tables {
            let mut tables = facts.tables.iter();
            let Some(table) = tables.find(|table| table.oid == entry.oid) else {
                continue;
            };
            let own = of_entry(entry, table);
            let chain = std::iter::once(&table.name).chain(&table.ancestors);
            let mut chain = chain.filter_map(|name| named.iter().find(|it| it.table == *name));
            if part(chain.next()) != part(Some(&own)) {
                named.push(own);
            }
        }
        named.sort_by(|one, other| one.table.cmp(&other.table));
        Ok(named)
    }

    /// What the partitions have of a table that has a subset and that the publication does not name. None
    /// if there are none.
    fn below(
        &self,
        facts: &Facts,
        subsets: &[Subset],
        root: &Table,
        subset: &Subset,
        wished: &[&TableName],
    ) -> Result<Option<Entry>> {
        let has_one = |name: &&TableName| subsets.iter().any(|it| it.table == **name);
        let inherits = |table: &&Table| {
            let mut chain = std::iter::once(&table.name).chain(&table.ancestors);
            chain.find(has_one) == Some(&root.name)
        };
        let below = facts.tables.iter().filter(inherits);
        let entries = below.filter_map(|table| self.found.entry(table.oid));
        let has = |entry: &&Entry| {
            entry.filter.is_some() == subset.filter.is_some()
                && entry.columns.is_some() == subset.columns.is_some()
        };
        let mut entries = entries.filter(has);
        let Some(first) = entries.next() else {
            return Ok(None);
        };
        let of = |entry: &Entry| of_entry(entry, root);
        let differs = |entry: &&Entry| part(Some(&of(entry))) != part(Some(&of(first)));
        match entries.find(differs) {
            Some(other) if !wished.contains(&&root.name) => Err(ReplicaError::State(format!(
                "tables {} and {} are partitions of {} and have different row filters or column lists in the \
                 publication, so that it is not known which are wanted: name them (--where and --columns, or \
                 --whole {})",
                first.table, other.table, root.name, root.name
            ))),
            _ => Ok(Some(first.clone())),
        }
    }
}

fn of_entry(entry: &Entry, table: &Table) -> Subset {
    let columns = entry.columns.as_ref();
    Subset {
        table: table.name.clone(),
        filter: entry.filter.clone(),
        columns: columns.map(|all| all.iter().map(|(_, name)| name.clone()).collect()),
    }
}

/// What is changed of a publication, and nothing else.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Tables that it has, by OID and name, and is not to have any more, or in another way.
    pub drops: Vec<(u32, TableName)>,
    /// Tables with their columns and filters.
    pub adds: Vec<(u32, String)>,
}

impl Plan {
    /// `facts` are the source's tables with what is wanted, `listed` the replica's, of which those that join
    /// or are copied anew are not copied yet.
    pub fn new(facts: &Facts, listed: &[TableCopy], found: &Published) -> Self {
        let wanted: BTreeSet<_> = facts.published().map(|table| table.oid).collect();
        let is_listed = |table: &Table| listed.iter().any(|copy| is_it(copy, table));
        let is_touched = |table: &Table| {
            let mut copies = listed.iter();
            copies.any(|copy| copy.state != TableState::Copied && is_it(copy, table))
        };
        let below = |root: &Table, is: &dyn Fn(&Table) -> bool| {
            let mut tables = facts.tables.iter();
            is(root) || tables.any(|table| table.ancestors.contains(&root.name) && is(table))
        };
        let mut plan = Self::default();
        for table in &facts.tables {
            let entry = found.entry(table.oid);
            let is_wanted = wanted.contains(&table.oid);
            let is_near = below(table, &is_touched);
            let leaves = table.is_left_out(&facts.excluded) && !below(table, &is_listed);
            match entry {
                Some(_) if leaves || is_near && !is_wanted => plan.drop(table),
                Some(entry) if is_near => {
                    let own = of_entry(entry, table);
                    if part(Some(&own)) != part(facts.subset_of(table)) {
                        plan.drop(table);
                        plan.add(facts, table);
                    }
                }
                None if is_near && is_wanted => plan.add(facts, table),
                _ => {}
            }
        }
        // Partitions that were made later are sent by the table above them.
        let is_dropped = |name: &TableName| plan.drops.iter().any(|(_, it)| it == name);
        let is_alone = |table: &&Table| {
            wanted.contains(&table.oid)
                && table.kind == TableKind::Ordinary
                && found.entry(table.oid).is_none()
                && !is_touched(table)
                && table.ancestors.iter().any(is_dropped)
        };
        let alone: Vec<_> = facts.tables.iter().filter(is_alone).collect();
        for table in alone {
            plan.add(facts, table);
        }
        plan
    }

    fn drop(&mut self, table: &Table) {
        self.drops.push((table.oid, table.name.clone()));
    }

    fn add(&mut self, facts: &Facts, table: &Table) {
        let subset = facts.subset_of(table).map(Subset::published);
        let sql = format!("{}{}", table.name.sql(), subset.unwrap_or_default());
        self.adds.push((table.oid, sql));
    }

    /// The statements that do it. `name` is quoted.
    pub fn statements(&self, name: &str) -> Vec<String> {
        let drops: Vec<_> = self.drops.iter().map(|(_, table)| table.sql()).collect();
        let adds: Vec<_> = self.adds.iter().map(|(_, sql)| sql.as_str()).collect();
        let mut statements = Vec::new();
        if !drops.is_empty() {
            let tables = drops.join(", ONLY ");
            statements.push(format!("ALTER PUBLICATION {name} DROP TABLE ONLY {tables}"));
        }
        if !adds.is_empty() {
            let tables = adds.join(", ONLY ");
            statements.push(format!("ALTER PUBLICATION {name} ADD TABLE ONLY {tables}"));
        }
        statements
    }

    /// Whether `after` is `before` with these changes: each other table has the same filter and list.
    pub fn is_all(&self, before: &Published, after: &Published) -> bool {
        let dropped = |oid: u32| self.drops.iter().any(|(it, _)| *it == oid);
        let added = |oid: u32| self.adds.iter().any(|(it, _)| *it == oid);
        let numbers = |entry: &Entry| -> Option<Vec<i16>> {
            Some(entry.columns.as_ref()?.iter().map(|it| it.0).collect())
        };
        let stays = |entry: &Entry| {
            let same = after.entry(entry.oid);
            dropped(entry.oid)
                || same.is_some_and(|it| it.digest == entry.digest && numbers(it) == numbers(entry))
        };
        let is_known = |entry: &Entry| {
            added(entry.oid) || !dropped(entry.oid) && before.entry(entry.oid).is_some()
        };
        before.tables.iter().all(stays)
            && after.tables.iter().all(is_known)
            && self.adds.iter().all(|(oid, _)| after.entry(*oid).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Excluded;

    fn name(table: &str) -> TableName {
        TableName {
            schema: "s".to_owned(),
            table: table.to_owned(),
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

    fn root(oid: u32, own: &str) -> Table {
        Table {
            kind: TableKind::Partitioned,
            ..table(oid, own, &[])
        }
    }

    fn entry(oid: u32, filter: Option<&str>) -> Entry {
        Entry {
            oid,
            filter: filter.map(str::to_owned),
            digest: filter.map(str::to_owned),
            ..Entry::default()
        }
    }

    fn published(tables: &[(u32, Option<&str>)]) -> Published {
        Published {
            tables: (tables.iter())
                .map(|(oid, filter)| entry(*oid, *filter))
                .collect(),
            ..Published::default()
        }
    }

    fn subset(table: &str, filter: Option<&str>) -> Subset {
        Subset {
            table: name(table),
            filter: filter.map(str::to_owned),
            columns: None,
        }
    }

    fn facts(tables: Vec<Table>, subsets: Vec<Subset>) -> Facts {
        Facts {
            tables,
            subsets,
            ..Facts::default()
        }
    }

    fn copy(oid: u32, own: &str, state: TableState) -> TableCopy {
        TableCopy {
            name: name(own),
            state,
            start: None,
            rows: 0,
            bytes: 0,
            missing: 0,
            source_oid: Some(oid),
            target_oid: None,
            there: None,
            replaced: false,
            unlogged: false,
            doubt: None,
        }
    }

    #[test]
    fn subsets_follow_their_tables() {
        let known = |subsets: &[Subset], oids: &[(&str, u32)], found: &Published, facts: &Facts| {
            let oids = oids.iter().map(|(table, oid)| (name(table), *oid));
            let known = KnownReplica {
                subsets,
                oids: &oids.collect(),
                made: None,
                listed: &[copy(1, "a", TableState::Copied)],
                found,
            };
            known.subsets(facts, &[])
        };
        // Names were exchanged, and a column was renamed; an older version has kept no OID.
        let exchanged = facts(vec![table(1, "c", &[]), table(2, "a", &[])], Vec::new());
        let found = published(&[(1, Some("(y > 0)")), (2, None)]);
        let had = [subset("a", Some("x > 0"))];
        let named = known(&had, &[], &found, &exchanged).unwrap();
        assert_eq!(named, [subset("c", Some("(y > 0)"))]);
        // The table is gone, and another one has its name.
        let gone = facts(vec![table(2, "a", &[])], Vec::new());
        let named = known(&had, &[("a", 1)], &published(&[(2, None)]), &gone).unwrap();
        assert!(named.is_empty(), "{named:?}");
        // Of the partitions one was attached, one detached, and the table above them renamed.
        let tables = vec![
            root(3, "orders"),
            table(4, "p1", &[]),
            table(5, "p2", &["orders"]),
            table(6, "p3", &["orders"]),
        ];
        let found = published(&[(4, Some("(r)")), (5, Some("(r)")), (6, None)]);
        let had = [subset("o", Some("r"))];
        let named = known(
            &had,
            &[("o", 3)],
            &found,
            &facts(tables.clone(), Vec::new()),
        );
        let expected = [
            subset("orders", Some("(r)")),
            subset("p1", Some("(r)")),
            subset("p3", None),
        ];
        assert_eq!(named.unwrap(), expected);
        let unknown = known(&had, &[], &found, &facts(tables.clone(), Vec::new()));
        assert!(unknown.unwrap_err().to_string().contains("no table"));
        let two = published(&[(5, Some("(r)")), (6, Some("(q)"))]);
        let unsure = known(&had, &[("o", 3)], &two, &facts(tables, Vec::new())).unwrap_err();
        assert!(unsure.to_string().contains("are partitions of"), "{unsure}");
    }

    #[test]
    fn only_tables_that_change_are_published_anew() {
        let tables = vec![
            table(1, "stays", &[]),
            table(2, "joins", &[]),
            table(3, "leaves", &[]),
            table(4, "anew", &[]),
            root(5, "p"),
            table(6, "p1", &["p"]),
            table(7, "later", &["p"]),
        ];
        let copied = |oid, own| copy(oid, own, TableState::Copied);
        let waiting = |oid, own| copy(oid, own, TableState::Waiting);
        let found = published(&[
            (1, Some("(old)")),
            (3, None),
            (4, None),
            (5, None),
            (6, None),
        ]);
        let wanted = Facts {
            excluded: Excluded {
                tables: vec!["s.leaves".to_owned()],
                ..Excluded::default()
            },
            ..facts(tables, vec![subset("anew", Some("f"))])
        };
        let listed = [
            copied(1, "stays"),
            waiting(2, "joins"),
            waiting(4, "anew"),
            copied(6, "p1"),
        ];
        let plan = Plan::new(&wanted, &listed, &found);
        assert_eq!(
            plan.statements("x"),
            [
                "ALTER PUBLICATION x DROP TABLE ONLY \"s\".\"leaves\", ONLY \"s\".\"anew\"",
                "ALTER PUBLICATION x ADD TABLE ONLY \"s\".\"joins\", ONLY \"s\".\"anew\" WHERE (f\n)"
            ]
        );
        let rest = [(5, None), (6, None)];
        let after = |stays: &[(u32, Option<&str>)]| published(&[stays, &rest].concat());
        let others = [(2, None), (4, Some("(f)"))];
        let is_all = |stays: &[(u32, Option<&str>)]| plan.is_all(&found, &after(stays));
        assert!(is_all(&[&[(1, Some("(old)"))], &others[..]].concat()));
        for wrong in [(1, None), (9, None)] {
            assert!(!is_all(&[&[wrong], &others[..]].concat()), "{wrong:?}");
        }
        // A partition that was made later was sent by the table above, which goes.
        let part = Facts {
            subsets: vec![subset("p", Some("f"))],
            ..wanted.clone()
        };
        let listed = [copied(1, "stays"), waiting(6, "p1")];
        let plan = Plan::new(&part, &listed, &found);
        let drops: Vec<_> = plan.drops.iter().map(|(oid, _)| *oid).collect();
        let adds: Vec<_> = plan.adds.iter().map(|(oid, _)| *oid).collect();
        assert_eq!((drops, adds), (vec![3, 5, 6], vec![6, 7]));
    }
}
