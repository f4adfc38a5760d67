//! Which changes can meet on the target, so that their order matters. No I/O.
//!
//! Two changes of different batches meet if they have a *touch* in common, a hash of what they can
//! be in each other's way by. The rules, and why they are enough:
//!
//! - **The row.** A change touches the identity of its row, before and after, as the source wrote it.
//!   A row that no batch under way touches is on the target as the source had it: it is found there
//!   by the same text, however the target compares values.
//! - **Unique values.** A change touches each value that it gives to a unique index of the table or
//!   of one of its partitions, also if only the target has the index. Of the columns of an index only
//!   those count whose values are equal if and only if their texts are: fewer columns make more
//!   changes meet, never fewer. That covers partial indexes, too. An index without such a column
//!   (an expression, `citext`, a collation that is not deterministic, `float8`, ...) or an exclusion
//!   constraint makes all changes of the table meet.
//! - **Nulls** are not equal, but for an index with `NULLS NOT DISTINCT`.
//! - **Values given up** are not known: the source sends old values of the identity only. A later
//!   change that takes such a value finds it taken, and is done again when its turn comes, or waits
//!   for an earlier batch. If one under way has touched the value, any batch since may have given it
//!   up, so all are waited for. An earlier batch cannot wait for a later one here: it would have to take
//!   a value that a later one has, and both would touch it.
//! - **Large values that an update left as they were** are not sent, and not taken anew: the row has
//!   them. If only some columns of a unique value are known, the batch is done alone.
//! - **Rows without identity** are found by all their values, and equal ones are not told apart: all
//!   changes of the table meet. If only inserts arrive, unique values alone count.
//! - **Foreign keys** do not count: neither checks nor cascades act here (`session_replication_role`
//!   is `replica`), and between two commits the target is as the source was, so they hold.
//! - **Triggers** that are `ENABLE ALWAYS` or `ENABLE REPLICA` may do anything, those of foreign keys
//!   among them: a batch with such a table is done alone. So is one with TRUNCATE.
//!
//! What the target's catalog said may have changed since: a batch that ran ahead compares
//! [`Reach::facts`] before it commits. Should two batches be in each other's way all the same, the
//! later one is rolled back and done again in its turn (see [`super::pool`]).

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::batch::{Part, Set, Step};
use crate::row::{Cell, OwnedRow};
use crate::table::{Identity, SourceTable, Table};

/// What a column of a unique index is to its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueColumn {
    /// None for an expression.
    pub name: Option<String>,
    pub kind: u32,
    pub modifier: i32,
    /// The index takes two values as equal if and only if their texts are.
    pub exact: bool,
}

/// A unique index or an exclusion constraint of the target's table or of one of its partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetUnique {
    pub columns: Vec<UniqueColumn>,
    pub nulls_equal: bool,
    pub excludes: bool,
}

/// A unique index, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueValue {
    /// Tells it from others; indexes of partitions that have the same columns are the same.
    index: u64,
    /// Places of the columns that are compared, in the order of their names: a partition can have
    /// them in another order than its root.
    places: Vec<usize>,
    /// Places of columns whose null makes the value equal to none.
    nulls: Vec<usize>,
}

/// Which changes of a table meet others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meets {
    /// Changes of the same rows, and those that give the same values to one of these indexes.
    Values(Vec<UniqueValue>),
    /// All of the table.
    Table,
    /// All of every table.
    Everything,
}

/// How far changes of a table reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    pub oid: u32,
    /// The table, or the root of the partitions that it belongs to.
    root: u32,
    /// What the target's catalog said: the answer to [`FACTS`].
    pub facts: String,
    pub meets: Meets,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            oid: 0,
            root: 0,
            facts: String::new(),
            meets: Meets::Everything,
        }
    }
}

/// OIDs of all that [`Reach`] depends on, as one text for each table of an array of OIDs. An index
/// that is defined in another way is another index.
pub const FACTS: &str = "SELECT pg_catalog.concat_ws('/', \
      coalesce(pg_catalog.pg_partition_root(r.oid), r.oid), \
      (SELECT pg_catalog.string_agg(i.indexrelid::pg_catalog.text, ' ' ORDER BY i.indexrelid) \
        FROM pg_catalog.pg_index AS i WHERE i.indrelid = ANY (tree.oids) AND i.indislive \
          AND (i.indisunique OR i.indisexclusion)), \
      'triggers', \
      (SELECT pg_catalog.string_agg(g.oid::pg_catalog.text, ' ' ORDER BY g.oid) \
        FROM pg_catalog.pg_trigger AS g WHERE g.tgrelid = ANY (tree.oids) \
          AND g.tgenabled IN ('A', 'R'))) \
    FROM pg_catalog.unnest($1::pg_catalog.oid[]) WITH ORDINALITY AS r(oid, place), \
      LATERAL (SELECT ARRAY(SELECT r.oid UNION \
        SELECT p.relid FROM pg_catalog.pg_partition_tree(r.oid) AS p)) AS tree(oids) \
    ORDER BY r.place";

/// Each column of each index that [`FACTS`] lists, for one table. The types are those of which
/// equal values have equal texts: bool, bytea, \"char\", name, the integers, text, oid, varchar, date,
/// time, timestamp, uuid; and with a modifier char and numeric, which are then padded.
pub const UNIQUES: &str = "SELECT i.indexrelid, i.indisexclusion, i.indnullsnotdistinct, a.attname, \
      coalesce(a.atttypid, 0), coalesce(a.atttypmod, -1), \
      coalesce(m.amname = 'btree' AND p.opcnamespace = 'pg_catalog'::pg_catalog.regnamespace \
        AND coalesce(l.collisdeterministic, true) \
        AND (a.atttypid IN (16, 17, 18, 19, 20, 21, 23, 25, 26, 1043, 1082, 1083, 1114, 2950) \
          OR a.atttypid IN (1042, 1700) AND a.atttypmod >= 4), false) \
    FROM (SELECT $1::pg_catalog.oid UNION SELECT t.relid \
        FROM pg_catalog.pg_partition_tree($1::pg_catalog.oid) AS t) AS tree(oid) \
      JOIN pg_catalog.pg_index AS i ON i.indrelid = tree.oid \
      JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid \
      JOIN pg_catalog.pg_am AS m ON m.oid = c.relam \
      CROSS JOIN LATERAL pg_catalog.generate_series(0, i.indnkeyatts - 1) AS k(place) \
      LEFT JOIN pg_catalog.pg_attribute AS a \
        ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.place] AND i.indkey[k.place] > 0 \
      LEFT JOIN pg_catalog.pg_opclass AS p ON p.oid = i.indclass[k.place] \
      LEFT JOIN pg_catalog.pg_collation AS l ON l.oid = i.indcollation[k.place] \
    WHERE i.indislive AND (i.indisunique OR i.indisexclusion) \
    ORDER BY i.indexrelid, k.place";

impl Reach {
    /// `root` and `triggers` are from the target's catalog, as `uniques`.
    pub fn new(source: &SourceTable, identity: &Identity, target: &TargetReach) -> Self {
        Self {
            oid: target.oid,
            root: target.root,
            facts: target.facts.clone(),
            meets: meets(source, identity, target),
        }
    }
}

/// What the target's catalogs say of a table, for [`Reach::new`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetReach {
    pub oid: u32,
    pub root: u32,
    pub facts: String,
    /// Triggers act on it or on one of its partitions.
    pub triggers: bool,
    pub uniques: Vec<TargetUnique>,
}

fn meets(source: &SourceTable, identity: &Identity, target: &TargetReach) -> Meets {
    if target.triggers {
        return Meets::Everything;
    }
    if *identity == Identity::Whole {
        return Meets::Table;
    }
    let values = target.uniques.iter().map(|unique| value(source, unique));
    match values.collect::<Option<Vec<_>>>() {
        Some(mut values) => {
            values.sort_by_key(|value| value.index);
            values.dedup();
            Meets::Values(values)
        }
        None => Meets::Table,
    }
}

/// None if nothing of the index's values can be compared as text.
fn value(source: &SourceTable, unique: &TargetUnique) -> Option<UniqueValue> {
    if unique.excludes {
        return None;
    }
    let (mut compared, mut nulls) = (Vec::new(), Vec::new());
    for column in &unique.columns {
        let Some(name) = &column.name else {
            continue;
        };
        let Some(place) = source.columns.iter().position(|it| it.name == *name) else {
            continue;
        };
        nulls.push(place);
        let sent = source.columns.get(place);
        // A text of another type, or one that is cut to another length, is not what is compared.
        if column.exact
            && sent.is_some_and(|it| it.kind == column.kind && it.modifier == column.modifier)
        {
            compared.push((name, place));
        }
    }
    compared.sort_unstable();
    nulls.sort_unstable();
    let names: Vec<_> = compared.iter().map(|(name, _)| name).collect();
    (!compared.is_empty()).then(|| UniqueValue {
        index: hash(|it| names.hash(it)),
        places: compared.iter().map(|(_, place)| *place).collect(),
        nulls: match unique.nulls_equal {
            true => Vec::new(),
            false => nulls,
        },
    })
}

fn hash(write: impl FnOnce(&mut DefaultHasher)) -> u64 {
    let mut hasher = DefaultHasher::new();
    write(&mut hasher);
    hasher.finish()
}

/// Set in the touch of a row or of a table, and not in that of a unique value.
pub const ROW: u64 = 1;

/// What the changes of a part touch, one after the other in its own order.
#[derive(Debug, Default)]
pub struct Touches {
    hashes: Vec<u64>,
    /// Where in `hashes` each change's end.
    ends: Vec<usize>,
    /// The tables that are changed.
    pub tables: Vec<Arc<Table>>,
}

impl Touches {
    /// None if the part is to be done alone.
    pub fn of(part: &Part) -> Option<Self> {
        let mut touches = Self::default();
        for step in &part.steps {
            match step {
                Step::Change { table, set } => touches.add_set(table, set)?,
                Step::Truncate { .. } => return None,
            }
        }
        Some(touches)
    }

    /// How many changes there are.
    pub fn number(&self) -> usize {
        self.ends.len()
    }

    /// What each change touches.
    pub fn changes(&self) -> impl Iterator<Item = &[u64]> {
        let mut begin = 0;
        self.ends.iter().map(move |&end| {
            let of = self.hashes.get(begin..end).unwrap_or_default();
            begin = end;
            of
        })
    }

    /// What all changes touch.
    pub fn all(&self) -> &[u64] {
        &self.hashes
    }

    fn add_set(&mut self, table: &Arc<Table>, set: &Set) -> Option<()> {
        if !self.tables.iter().any(|known| Arc::ptr_eq(known, table)) {
            self.tables.push(Arc::clone(table));
        }
        let root = table.reach.root;
        let values = match &table.reach.meets {
            Meets::Everything => return None,
            Meets::Table => {
                let whole = ROW | hash(|it| (root, "table").hash(it));
                for _ in 0..set.len() {
                    self.hashes.push(whole);
                    self.ends.push(self.hashes.len());
                }
                return Some(());
            }
            Meets::Values(values) => values,
        };
        let key = table.key();
        match set {
            Set::Delete(keys) => keys.iter().try_for_each(|from| {
                self.row(root, from);
                self.end()
            }),
            Set::Update(updates) => updates.iter().try_for_each(|update| {
                self.row(root, &update.from);
                if update.moved {
                    self.row(root, &update.row.columns(&key));
                }
                self.values(root, values, &update.row)?;
                self.end()
            }),
            Set::Insert(rows) => rows.iter().try_for_each(|row| {
                if !key.is_empty() {
                    self.row(root, &row.columns(&key));
                }
                self.values(root, values, row)?;
                self.end()
            }),
            // Rows without identity: all changes of such a table meet.
            Set::DeleteWhole(_) | Set::UpdateWhole(_) => None,
        }
    }

    fn end(&mut self) -> Option<()> {
        self.ends.push(self.hashes.len());
        Some(())
    }

    fn row(&mut self, root: u32, identity: &OwnedRow) {
        let row = hash(|it| (root, "row", identity).hash(it));
        self.hashes.push(ROW | row);
    }

    /// The unique values that a row is given. None if one is only known in part.
    fn values(&mut self, root: u32, values: &[UniqueValue], row: &OwnedRow) -> Option<()> {
        let cells: Vec<_> = row.cells().collect();
        let at = |place: &usize| cells.get(*place).copied().unwrap_or(Cell::Null);
        for value in values {
            let unchanged = value
                .places
                .iter()
                .filter(|place| at(place) == Cell::Unchanged);
            match unchanged.count() {
                0 => {}
                all if all == value.places.len() => continue,
                _ => return None,
            }
            if value.nulls.iter().any(|place| at(place) == Cell::Null) {
                continue;
            }
            let value = hash(|it| {
                (root, value.index).hash(it);
                for place in &value.places {
                    at(place).hash(it);
                }
            });
            self.hashes.push(value & !ROW);
        }
        Some(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::batch::{Batch, Change, Emptied};
    use crate::names::TableName;
    use crate::table::{KeyColumn, SourceColumn, TargetColumn};
    use lockstep_wire::logical::ReplicaIdentity;

    const TEXT: u32 = 25;

    fn source(columns: &[&str]) -> SourceTable {
        let column = |name: &&str| SourceColumn {
            name: (*name).to_owned(),
            key: false,
            kind: TEXT,
            modifier: -1,
        };
        SourceTable {
            name: TableName {
                schema: "s".to_owned(),
                table: "t".to_owned(),
            },
            identity: ReplicaIdentity::Default,
            columns: columns.iter().map(column).collect(),
        }
    }

    pub fn key(place: usize) -> Identity {
        Identity::Key(vec![KeyColumn {
            place,
            operator: None,
        }])
    }

    fn column(name: &str, exact: bool) -> UniqueColumn {
        UniqueColumn {
            name: Some(name.to_owned()),
            kind: TEXT,
            modifier: -1,
            exact,
        }
    }

    /// A unique index of these columns; those whose names end with `?` are not compared by text.
    pub fn unique(columns: &[&str]) -> TargetUnique {
        let columns = columns.iter().map(|name| {
            let name = (*name, name.strip_suffix('?'));
            match name {
                ("", _) => UniqueColumn {
                    name: None,
                    ..column("", false)
                },
                (_, Some(name)) => column(name, false),
                (name, None) => column(name, true),
            }
        });
        TargetUnique {
            columns: columns.collect(),
            nulls_equal: false,
            excludes: false,
        }
    }

    /// A table with columns a, b and c.
    pub fn table(oid: u32, identity: Identity, uniques: &[TargetUnique]) -> Arc<Table> {
        let source = source(&["a", "b", "c"]);
        let target = TargetReach {
            oid,
            root: oid,
            facts: oid.to_string(),
            triggers: false,
            uniques: uniques.to_vec(),
        };
        let column = |name: &str| TargetColumn {
            name: name.to_owned(),
            kind: "pg_catalog.text".to_owned(),
            in_array: true,
            of_user: false,
            delimiter: b',',
            generated: false,
            always_identity: false,
        };
        Arc::new(Table {
            name: source.name.clone(),
            columns: ["a", "b", "c"].map(column).into(),
            reach: Reach::new(&source, &identity, &target),
            identity,
            partitioned: false,
            crowded: false,
            kept: Vec::new(),
            attributes: 0,
        })
    }

    pub fn row(cells: &[&str]) -> OwnedRow {
        OwnedRow::new(cells.iter().map(|text| match *text {
            "?" => Cell::Unchanged,
            "-" => Cell::Null,
            text => Cell::Text(text.as_bytes()),
        }))
    }

    pub fn insert(cells: &[&str]) -> Change {
        Change::Insert(row(cells))
    }

    pub fn update(cells: &[&str]) -> Change {
        Change::Update {
            before: None,
            after: row(cells),
        }
    }

    pub fn moved(from: &[&str], cells: &[&str]) -> Change {
        Change::Update {
            before: Some(row(from)),
            after: row(cells),
        }
    }

    pub fn delete(cells: &[&str]) -> Change {
        Change::Delete(row(cells))
    }

    pub fn part(changes: Vec<(&Arc<Table>, Change)>) -> Part {
        let mut batch = Batch::default();
        for (table, change) in changes {
            batch.change(table.reach.oid, table, change);
        }
        batch.take(None)
    }

    /// Whether changes of two parts have something in common; None if one is to be done alone.
    fn meet(table: &Arc<Table>, one: Change, two: Change) -> Option<bool> {
        let one = Touches::of(&part(vec![(table, one)]))?;
        let two = Touches::of(&part(vec![(table, two)]))?;
        Some(one.all().iter().any(|touched| two.all().contains(touched)))
    }

    fn meets_of(identity: &Identity, target: &TargetReach) -> Meets {
        meets(&source(&["a", "b", "c"]), identity, target)
    }

    fn with(uniques: &[TargetUnique]) -> TargetReach {
        TargetReach {
            uniques: uniques.to_vec(),
            ..TargetReach::default()
        }
    }

    #[test]
    fn only_columns_that_are_equal_as_texts_are_compared() {
        let places = |uniques: &[TargetUnique]| match meets_of(&key(0), &with(uniques)) {
            Meets::Values(values) => Some(values.into_iter().map(|it| it.places).collect()),
            Meets::Table => None,
            Meets::Everything => panic!("no trigger acts"),
        };
        let none: Vec<Vec<usize>> = Vec::new();
        assert_eq!(places(&[]), Some(none));
        assert_eq!(places(&[unique(&["c", "b"])]), Some(vec![vec![1, 2]]));
        assert_eq!(places(&[unique(&["b", "c?"])]), Some(vec![vec![1]]));
        assert_eq!(places(&[unique(&["b", ""])]), Some(vec![vec![1]]));
        assert_eq!(places(&[unique(&["b", "computed"])]), Some(vec![vec![1]]));
        assert_eq!(places(&[unique(&["b?"])]), None, "citext or the like");
        assert_eq!(places(&[unique(&[""])]), None, "an expression");
        assert_eq!(places(&[unique(&["computed"])]), None, "not sent");
        assert_eq!(places(&[unique(&["a"]), unique(&["b?"])]), None);
        let excludes = TargetUnique {
            excludes: true,
            ..unique(&["b"])
        };
        assert_eq!(places(&[excludes]), None);
        // The same values have other texts, or are cut.
        let mut of_type = unique(&["b"]);
        of_type.columns[0].kind = 23;
        assert_eq!(places(&[of_type]), None);
        let mut cut = unique(&["b"]);
        cut.columns[0].modifier = 7;
        assert_eq!(places(&[cut]), None);
    }

    #[test]
    fn indexes_of_partitions_with_the_same_columns_are_one() {
        let of = [unique(&["b", "c"]), unique(&["c", "b"]), unique(&["b"])];
        let Meets::Values(values) = meets_of(&key(0), &with(&of)) else {
            panic!("all are equal as texts");
        };
        assert_eq!(values.len(), 2);
    }

    #[test]
    fn triggers_reach_everything_and_rows_without_identity_their_table() {
        let acting = TargetReach {
            triggers: true,
            ..with(&[])
        };
        assert_eq!(meets_of(&key(0), &acting), Meets::Everything);
        assert_eq!(meets_of(&Identity::Whole, &with(&[])), Meets::Table);
        let inserts_only = meets_of(&Identity::Nothing, &with(&[]));
        assert_eq!(inserts_only, Meets::Values(Vec::new()));
        let log = table(1, Identity::Nothing, &[]);
        let same = insert(&["1", "x", "y"]);
        assert_eq!(meet(&log, insert(&["1", "x", "y"]), same), Some(false));
        let whole = table(1, Identity::Whole, &[]);
        let other = insert(&["2", "x", "y"]);
        assert_eq!(meet(&whole, insert(&["1", "x", "y"]), other), Some(true));
    }

    #[test]
    fn changes_of_a_row_meet_before_and_after_it_gets_another_key() {
        let t = table(1, key(0), &[]);
        let moved = || moved(&["1", "?", "?"], &["2", "x", "y"]);
        let no = update(&["3", "x", "y"]);
        assert_eq!(meet(&t, moved(), no), Some(false));
        for of in ["1", "2"] {
            assert_eq!(meet(&t, moved(), update(&[of, "x", "y"])), Some(true));
            assert_eq!(meet(&t, moved(), delete(&[of, "?", "?"])), Some(true));
            assert_eq!(meet(&t, moved(), insert(&[of, "x", "y"])), Some(true));
        }
    }

    #[test]
    fn rows_that_take_the_same_unique_value_meet() {
        let t = table(1, key(0), &[unique(&["b", "c"])]);
        let one = || update(&["1", "x", "y"]);
        assert_eq!(meet(&t, one(), insert(&["2", "x", "y"])), Some(true));
        assert_eq!(meet(&t, one(), insert(&["2", "y", "x"])), Some(false));
        let null = || insert(&["2", "x", "-"]);
        assert_eq!(meet(&t, null(), update(&["1", "x", "-"])), Some(false));
        let mut equal = unique(&["b", "c"]);
        equal.nulls_equal = true;
        let equal = table(1, key(0), &[equal]);
        assert_eq!(meet(&equal, null(), update(&["1", "x", "-"])), Some(true));
        // A null in a column that is not compared makes a value equal to none, too.
        let part = table(1, key(0), &[unique(&["b", "c?"])]);
        assert_eq!(meet(&part, null(), update(&["1", "x", "-"])), Some(false));
        assert_eq!(meet(&part, one(), insert(&["2", "x", "z"])), Some(true));
    }

    #[test]
    fn a_value_that_an_update_left_as_it_was_is_not_taken_and_half_of_one_is_done_alone() {
        let t = table(1, key(0), &[unique(&["b", "c"])]);
        let other = || insert(&["2", "x", "y"]);
        assert_eq!(meet(&t, update(&["1", "?", "?"]), other()), Some(false));
        assert_eq!(meet(&t, update(&["1", "x", "?"]), other()), None);
        let b = table(1, key(0), &[unique(&["b"])]);
        assert_eq!(meet(&b, update(&["1", "x", "?"]), other()), Some(true));
    }

    #[test]
    fn tables_are_told_apart_and_partitions_are_not() {
        let touched = |table: &Arc<Table>| {
            let part = part(vec![(table, insert(&["1", "x", "y"]))]);
            Touches::of(&part).unwrap().all().to_vec()
        };
        let (one, two) = (table(1, key(0), &[]), table(2, key(0), &[]));
        assert_ne!(touched(&one), touched(&two));
        let mut partition = (*two).clone();
        partition.reach.root = 1;
        assert_eq!(touched(&one), touched(&Arc::new(partition)));
    }

    #[test]
    fn truncate_and_triggers_are_done_alone() {
        let t = table(1, key(0), &[]);
        let mut batch = Batch::default();
        batch.truncate(vec![t.clone()], Emptied::Truncated);
        assert!(Touches::of(&batch.take(None)).is_none());
        let mut acting = (*t).clone();
        acting.reach.meets = Meets::Everything;
        let part = part(vec![(&Arc::new(acting), insert(&["1", "x", "y"]))]);
        assert!(Touches::of(&part).is_none());
    }
}
