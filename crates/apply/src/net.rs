//! The net effect of changes to one table whose rows have a key. No I/O.
//!
//! Each row of the table that was touched has one entry, found by the key that the row has now:
//!
//! | entry | what the target has | what it shall have |
//! |---|---|---|
//! | `Insert` | nothing | the row |
//! | `Update` | a row with key `from` | the row, perhaps with another key |
//! | `Delete` | a row with that key | nothing |
//! | `Gone` | nothing | nothing: the row came and went |
//!
//! A row that was deleted or was given another key is no longer found by its old key: a row that
//! takes its place has an entry of its own. So all deletes come before all updates, and those
//! before all inserts, and the result is what the source has. A change that contradicts the
//! entries (the insert of a key that is there) is given back: then what is gathered must be
//! applied first, and the target decides.
//!
//! As long as nothing but inserts has come, rows have no entries: nobody looks for their keys. The first
//! change of another kind gives them theirs. A key that was inserted twice is noticed then, or by the target.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::row::{Cell, OwnedRow, Rows};

/// Memory of an entry beside its rows, roughly: with its place in the table of those that exist.
const OVERHEAD: usize = 112;

/// A change of a table with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyedChange {
    Insert {
        row: OwnedRow,
    },
    Update {
        /// The key's columns before.
        from: OwnedRow,
        row: OwnedRow,
    },
    Delete {
        /// The key's columns alone.
        key: OwnedRow,
    },
}

impl KeyedChange {
    /// Bytes that a statement has of it as parameters. Large rows are inserted otherwise.
    pub fn sent(&self) -> usize {
        match self {
            Self::Insert { .. } => 0,
            Self::Update { from, row } => from.size() + row.size(),
            Self::Delete { key } => key.size(),
        }
    }
}

/// A row to change: the key that it has on the target, and what it shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    pub from: OwnedRow,
    /// The key changes.
    pub moved: bool,
    pub row: OwnedRow,
}

#[derive(Debug)]
enum Entry {
    Gone,
    Insert(OwnedRow),
    Update(Update),
    Delete(OwnedRow),
}

/// What is to be done, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NetEffect {
    pub deletes: Vec<OwnedRow>,
    pub updates: Vec<Update>,
    pub inserts: Rows,
}

#[derive(Debug)]
pub struct Net {
    /// Places of the key's columns, in rising order.
    key: Vec<usize>,
    /// Rows that were inserted before any other change; then there are no entries.
    first: Rows,
    entries: Vec<Entry>,
    /// Places of entries whose row exists. They are found by the key that their row has now, which is
    /// not kept a second time: so an entry's key never changes while it is listed here.
    live: HashTable<Listed>,
    hasher: DefaultHashBuilder,
    /// Some row was given another key.
    moves: bool,
    size: usize,
}

/// An entry whose row exists. With the hash, since rows would have to be read again when the table grows.
#[derive(Debug)]
struct Listed {
    hash: u64,
    place: usize,
}

/// What a change knows a row's key by: all of the row's values, or those of the key alone.
#[derive(Clone, Copy)]
enum Key<'a> {
    Of(&'a OwnedRow),
    Alone(&'a OwnedRow),
}

impl Net {
    /// Net changes of a table whose key's columns are at these places, in rising order.
    pub fn new(key: Vec<usize>) -> Self {
        Self {
            key,
            first: Rows::default(),
            entries: Vec::new(),
            live: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            moves: false,
            size: 0,
        }
    }

    /// Places of the key's columns, in rising order.
    pub fn key(&self) -> &[usize] {
        &self.key
    }

    /// Some row was given another key.
    pub fn moves(&self) -> bool {
        self.moves
    }

    /// Memory in use.
    pub fn size(&self) -> usize {
        self.first.size() + self.size
    }

    /// Adds a change. Gives it back if it contradicts what was added before.
    pub fn add(&mut self, change: KeyedChange) -> Result<(), KeyedChange> {
        let is_insert = matches!(change, KeyedChange::Insert { .. });
        if !is_insert && !self.enter_first() {
            return Err(change);
        }
        match change {
            KeyedChange::Insert { row } if self.entries.is_empty() => {
                self.first.push(row);
                Ok(())
            }
            KeyedChange::Insert { row } => self.insert(row),
            KeyedChange::Update { from, row } => self.update(from, row),
            KeyedChange::Delete { key } => {
                self.delete(key);
                Ok(())
            }
        }
    }

    /// Gives the first rows entries. False if two of them have one key: then all stay what they are.
    fn enter_first(&mut self) -> bool {
        if self.first.is_empty() {
            return true;
        }
        let first = std::mem::take(&mut self.first);
        let all_entered = first.iter().all(|row| self.insert(row.owned()).is_ok());
        if !all_entered {
            self.entries.clear();
            self.live.clear();
            self.size = 0;
            self.first = first;
        }
        all_entered
    }

    fn push(&mut self, entry: Entry) -> usize {
        self.size += OVERHEAD + size(&entry);
        self.entries.push(entry);
        self.entries.len() - 1
    }

    /// Replaces an entry by what `change` makes of it.
    fn alter(&mut self, place: usize, change: impl FnOnce(Entry) -> Entry) {
        if let Some(entry) = self.entries.get_mut(place) {
            let before = size(entry);
            let taken = std::mem::replace(entry, Entry::Gone);
            *entry = change(taken);
            self.size = (self.size + size(entry)).saturating_sub(before);
        }
    }

    fn hash(&self, key: Key<'_>) -> u64 {
        hash(&self.hasher, &self.key, key)
    }

    /// The place of the row that has this key now.
    fn find(&self, hash: u64, key: Key<'_>) -> Option<usize> {
        let is_it =
            |it: &Listed| it.hash == hash && has_key(&self.entries, &self.key, it.place, key);
        let found = self.live.find(hash, is_it);
        found.map(|listed| listed.place)
    }

    /// Lists an entry by the key that its row has now.
    fn list(&mut self, hash: u64, place: usize) {
        let listed = Listed { hash, place };
        self.live.insert_unique(hash, listed, |it| it.hash);
    }

    fn forget(&mut self, key: Key<'_>) -> Option<usize> {
        let hash = self.hash(key);
        let (entries, places) = (&self.entries, &self.key);
        let is_it = |it: &Listed| it.hash == hash && has_key(entries, places, it.place, key);
        let found = self.live.find_entry(hash, is_it).ok()?;
        Some(found.remove().0.place)
    }

    fn insert(&mut self, row: OwnedRow) -> Result<(), KeyedChange> {
        let hash = self.hash(Key::Of(&row));
        if self.find(hash, Key::Of(&row)).is_some() {
            return Err(KeyedChange::Insert { row });
        }
        let place = self.push(Entry::Insert(row));
        self.list(hash, place);
        Ok(())
    }

    fn update(&mut self, from: OwnedRow, row: OwnedRow) -> Result<(), KeyedChange> {
        let hash = self.hash(Key::Of(&row));
        let moved = !from.cells().eq(row.at(&self.key));
        let there = self.find(hash, Key::Of(&row));
        if moved && there.is_some() {
            return Err(KeyedChange::Update { from, row });
        }
        self.moves |= moved;
        let place = match moved {
            true => self.forget(Key::Alone(&from)),
            false => there,
        };
        match place {
            Some(place) => {
                let key = std::mem::take(&mut self.key);
                self.alter(place, |entry| updated(entry, row, &key));
                self.key = key;
                if moved {
                    let row = self.entries.get(place).and_then(Entry::row);
                    let hash = row.map_or(hash, |row| self.hash(Key::Of(row)));
                    self.list(hash, place);
                }
            }
            None => {
                let place = self.push(Entry::Update(Update { from, moved, row }));
                self.list(hash, place);
            }
        }
        Ok(())
    }

    fn delete(&mut self, key: OwnedRow) {
        match self.forget(Key::Alone(&key)) {
            Some(place) => self.alter(place, |entry| match entry {
                Entry::Update(update) => Entry::Delete(update.from),
                Entry::Insert(_) | Entry::Gone | Entry::Delete(_) => Entry::Gone,
            }),
            None => {
                self.push(Entry::Delete(key));
            }
        }
    }

    /// What is to be done, in the order in which rows were first touched.
    pub fn into_effect(self) -> NetEffect {
        let mut effect = NetEffect {
            inserts: self.first,
            ..NetEffect::default()
        };
        for entry in self.entries {
            match entry {
                Entry::Gone => {}
                Entry::Insert(row) => effect.inserts.push(row),
                Entry::Update(update) => effect.updates.push(update),
                Entry::Delete(key) => effect.deletes.push(key),
            }
        }
        effect
    }
}

impl Entry {
    /// The row, if it exists.
    fn row(&self) -> Option<&OwnedRow> {
        match self {
            Self::Insert(row) | Self::Update(Update { row, .. }) => Some(row),
            Self::Gone | Self::Delete(_) => None,
        }
    }
}

fn hash(hasher: &DefaultHashBuilder, places: &[usize], key: Key<'_>) -> u64 {
    let mut state = hasher.build_hasher();
    let mut add = |cell: Cell<'_>| std::hash::Hash::hash(&cell, &mut state);
    match key {
        Key::Of(row) => row.at(places).for_each(&mut add),
        Key::Alone(key) => key.cells().for_each(&mut add),
    }
    std::hash::Hasher::finish(&state)
}

/// The row of the entry at `place` exists and has this key.
fn has_key(entries: &[Entry], places: &[usize], place: usize, key: Key<'_>) -> bool {
    let Some(row) = entries.get(place).and_then(Entry::row) else {
        return false;
    };
    match key {
        Key::Of(other) => row.at(places).eq(other.at(places)),
        Key::Alone(key) => row.at(places).eq(key.cells()),
    }
}

fn size(entry: &Entry) -> usize {
    match entry {
        Entry::Gone => 0,
        Entry::Insert(row) | Entry::Delete(row) => row.size(),
        Entry::Update(update) => update.from.size() + update.row.size(),
    }
}

/// An entry of a row that exists, after an update. `key` are the places of the key's columns.
fn updated(entry: Entry, row: OwnedRow, key: &[usize]) -> Entry {
    match entry {
        Entry::Insert(before) => Entry::Insert(row.over(&before)),
        Entry::Update(before) => {
            let row = row.over(&before.row);
            Entry::Update(Update {
                moved: !before.from.cells().eq(row.at(key)),
                row,
                from: before.from,
            })
        }
        other @ (Entry::Gone | Entry::Delete(_)) => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::row::{Cell, RowRef};

    fn key(number: u8) -> OwnedRow {
        OwnedRow::new([Cell::Text(&[number])])
    }

    /// A row of key, a small value and a large one; None is a large value that was not sent.
    fn row(number: u8, small: u8, large: Option<u8>) -> OwnedRow {
        let large = large.map(|large| [large]);
        OwnedRow::new([
            Cell::Text(&[number]),
            Cell::Text(&[small]),
            large
                .as_ref()
                .map_or(Cell::Unchanged, |large| Cell::Text(large)),
        ])
    }

    fn insert(number: u8, small: u8, large: u8) -> KeyedChange {
        KeyedChange::Insert {
            row: row(number, small, Some(large)),
        }
    }

    fn update(from: u8, to: u8, small: u8, large: Option<u8>) -> KeyedChange {
        KeyedChange::Update {
            from: key(from),
            row: row(to, small, large),
        }
    }

    fn delete(number: u8) -> KeyedChange {
        KeyedChange::Delete { key: key(number) }
    }

    fn owned(rows: &Rows) -> Vec<OwnedRow> {
        rows.iter().map(RowRef::owned).collect()
    }

    fn effect(changes: impl IntoIterator<Item = KeyedChange>) -> NetEffect {
        let mut net = Net::new(vec![0]);
        for change in changes {
            net.add(change).unwrap();
        }
        net.into_effect()
    }

    #[test]
    fn changes_of_one_row_become_one() {
        let none = NetEffect::default();
        assert_eq!(effect([insert(1, 1, 1), delete(1)]), none);
        let inserted = |changes: [KeyedChange; 2]| owned(&effect(changes).inserts);
        assert_eq!(
            inserted([insert(1, 1, 1), update(1, 1, 2, None)]),
            [row(1, 2, Some(1))]
        );
        assert_eq!(
            inserted([insert(1, 1, 1), update(1, 2, 2, None)]),
            [row(2, 2, Some(1))]
        );
        let deleted = effect([update(1, 1, 2, None), update(1, 3, 2, None), delete(3)]);
        assert_eq!(deleted.deletes, [key(1)]);
        assert!(deleted.updates.is_empty());
        let unchanged = effect([update(1, 1, 2, Some(7)), update(1, 1, 3, None)]);
        assert_eq!(unchanged.updates[0].row, row(1, 3, Some(7)));
        let back = effect([update(1, 2, 2, None), update(2, 1, 3, None)]);
        assert!(!back.updates[0].moved);
        let again = effect([delete(1), insert(1, 5, 5), delete(1), insert(1, 6, 6)]);
        assert_eq!(again.deletes, [key(1)]);
        assert_eq!(owned(&again.inserts), [row(1, 6, Some(6))]);
    }

    #[test]
    fn a_key_of_several_columns_is_told_from_others_by_each() {
        let row = |a: u8, v: u8, b: u8| {
            OwnedRow::new([Cell::Text(&[a]), Cell::Text(&[v]), Cell::Text(&[b])])
        };
        let key = |a: u8, b: u8| OwnedRow::new([Cell::Text(&[a]), Cell::Text(&[b])]);
        let mut net = Net::new(vec![0, 2]);
        for (a, b) in [(1, 1), (1, 2), (2, 1)] {
            net.add(KeyedChange::Insert { row: row(a, 0, b) }).unwrap();
        }
        let moves = |from, row| KeyedChange::Update { from, row };
        net.add(moves(key(1, 2), row(1, 7, 2))).unwrap();
        net.add(moves(key(2, 1), row(2, 8, 2))).unwrap();
        net.add(KeyedChange::Delete { key: key(1, 1) }).unwrap();
        let taken = net.add(moves(key(2, 2), row(1, 9, 2)));
        assert_eq!(taken, Err(moves(key(2, 2), row(1, 9, 2))));
        let inserts = owned(&net.into_effect().inserts);
        assert_eq!(inserts, [row(1, 7, 2), row(2, 8, 2)]);
    }

    #[test]
    fn what_contradicts_is_given_back() {
        let mut net = Net::new(vec![0]);
        net.add(update(1, 1, 1, Some(1))).unwrap();
        net.add(insert(2, 1, 1)).unwrap();
        assert_eq!(net.add(insert(1, 2, 2)), Err(insert(1, 2, 2)));
        assert_eq!(net.add(update(1, 2, 2, None)), Err(update(1, 2, 2, None)));
    }

    #[test]
    fn a_key_that_was_inserted_twice_is_noticed_by_the_next_change_of_another_kind() {
        let mut net = Net::new(vec![0]);
        for small in [1, 2] {
            net.add(insert(1, small, 1)).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(net.add(delete(2)), Err(delete(2)));
        }
        net.add(insert(2, 3, 1)).unwrap();
        let inserts = owned(&net.into_effect().inserts);
        assert_eq!(
            inserts,
            [(1, 1), (1, 2), (2, 3)].map(|(n, small)| row(n, small, Some(1)))
        );
    }

    type Table = BTreeMap<OwnedRow, OwnedRow>;

    /// Applies an effect as the target does.
    fn apply(rows: &mut Table, effect: NetEffect) {
        for key in effect.deletes {
            assert!(rows.remove(&key).is_some(), "deletes what is not there");
        }
        let taken: Vec<_> = (effect.updates.into_iter())
            .map(|update| (rows.remove(&update.from).expect("a row to update"), update))
            .collect();
        for (before, update) in taken {
            let new = update.row.over(&before);
            assert_eq!(update.moved, update.from != new.columns(&[0]));
            assert!(rows.insert(new.columns(&[0]), new).is_none());
        }
        for row in owned(&effect.inserts) {
            assert!(!row.has_unchanged());
            assert!(rows.insert(row.columns(&[0]), row).is_none());
        }
    }

    impl PartialOrd for OwnedRow {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for OwnedRow {
        fn cmp(&self, other: &Self) -> std::cmp::Ordering {
            let texts = |row: &Self| format!("{:?}", row.cells().collect::<Vec<_>>());
            texts(self).cmp(&texts(other))
        }
    }

    /// A change that suits `source`, and is done to it.
    fn random_change(rng: &mut fastrand::Rng, source: &mut Table) -> KeyedChange {
        let (number, to) = (rng.u8(0..6), rng.u8(0..6));
        let there = source.contains_key(&key(number));
        match there {
            false => {
                let (small, large) = (rng.u8(..), rng.u8(..));
                source.insert(key(number), row(number, small, Some(large)));
                insert(number, small, large)
            }
            true if rng.u8(0..3) == 0 => {
                source.remove(&key(number));
                delete(number)
            }
            true => {
                let to = match source.contains_key(&key(to)) {
                    true => number,
                    false => to,
                };
                let before = source.remove(&key(number)).unwrap();
                let (small, large) = (rng.u8(..), rng.bool().then(|| rng.u8(..)));
                source.insert(key(to), row(to, small, large).over(&before));
                update(number, to, small, large)
            }
        }
    }

    #[test]
    fn the_net_effect_is_that_of_all_changes() {
        let seed = std::env::var("SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        for round in 0..2_000 {
            let seed = seed.unwrap_or(round);
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut source: Table = (0..3)
                .map(|number| (key(number), row(number, 0, Some(number))))
                .collect();
            let mut target = source.clone();
            let mut net = Net::new(vec![0]);
            for _ in 0..rng.u32(1..40) {
                let change = random_change(&mut rng, &mut source);
                net.add(change).expect("no contradiction");
            }
            apply(&mut target, net.into_effect());
            assert_eq!(target, source, "seed {seed}");
        }
    }
}
