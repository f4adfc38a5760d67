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
//! later one is rolled back and done again in its turn (see [`crate::pool`]).
use std::hash::Hash;
use std::sync::Arc;

use crate::batch::{Part, Set, Step};
use crate::reach::{Meets, UniqueValue, hash};
use crate::row::{Cell, RowRef};
use crate::table::Table;

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
                Step::Truncate { .. } | Step::Command(_) => return None,
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

    pub fn into_all(self) -> Vec<u64> {
        self.hashes
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
        let mut cells = Vec::new();
        self.ends.reserve(set.len());
        self.hashes.reserve(set.len() * (1 + values.len()));
        match set {
            Set::Delete(keys) => keys.iter().try_for_each(|from| {
                self.row(root, from.cells());
                self.end()
            }),
            Set::Update(updates) => updates.iter().try_for_each(|update| {
                self.row(root, update.from.cells());
                if update.moved {
                    self.row(root, update.row.at(&key));
                }
                self.values(root, values, update.row.get(), &mut cells)?;
                self.end()
            }),
            Set::Insert(rows) => rows.iter().try_for_each(|row| {
                if !key.is_empty() {
                    self.row(root, row.at(&key));
                }
                self.values(root, values, row, &mut cells)?;
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

    fn row<'a>(&mut self, root: u32, identity: impl Iterator<Item = Cell<'a>>) {
        let row = hash(|it| {
            root.hash(it);
            identity.for_each(|cell| cell.hash(it));
        });
        self.hashes.push(ROW | row);
    }

    /// The unique values that a row is given. None if one is only known in part. `cells` is room for its
    /// values, used again for each row.
    fn values<'a>(
        &mut self,
        root: u32,
        values: &[UniqueValue],
        row: RowRef<'a>,
        cells: &mut Vec<Cell<'a>>,
    ) -> Option<()> {
        cells.clear();
        if !values.is_empty() {
            cells.extend(row.cells());
        }
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
    use crate::reach::tests::{key, table, unique};
    use crate::row::OwnedRow;
    use crate::source_table::Identity;

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

    #[test]
    fn changes_of_a_table_meet_if_its_rows_are_not_told_apart() {
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
