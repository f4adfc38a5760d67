//! Changes of one table whose rows have no key, so that rows are only known by all their
//! values and several may be equal. Nothing is compacted: consecutive changes of a kind become
//! one statement. No I/O.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use crate::row::{OwnedRow, Rows};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    Insert(Rows),
    /// Each deletes one of the rows that are equal.
    Delete(Vec<OwnedRow>),
    /// Rows before and after. None of the rows before is one that this run makes.
    Update(Vec<(OwnedRow, OwnedRow)>),
}

#[derive(Debug, Default)]
pub struct Runs {
    runs: Vec<Run>,
    /// Hashes of what the last run makes of rows, if it is one of updates. Two rows of the same hash
    /// only end the run too early.
    made: HashSet<u64>,
    hasher: RandomState,
    size: usize,
}

impl Runs {
    /// Memory in use.
    pub fn size(&self) -> usize {
        self.size
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub fn insert(&mut self, row: OwnedRow) {
        if !matches!(self.runs.last(), Some(Run::Insert(_))) {
            self.begin(Run::Insert(Rows::default()));
        }
        if let Some(Run::Insert(rows)) = self.runs.last_mut() {
            let before = rows.size();
            rows.push(row);
            self.size += rows.size() - before;
        }
    }

    pub fn delete(&mut self, row: OwnedRow) {
        self.size += row.size();
        match self.runs.last_mut() {
            Some(Run::Delete(rows)) => rows.push(row),
            _ => self.begin(Run::Delete(vec![row])),
        }
    }

    /// A value that the update left as it was is that of the row before.
    pub fn update(&mut self, before: OwnedRow, after: OwnedRow) {
        let after = after.over(&before);
        self.size += before.size() + after.size();
        let made = self.hasher.hash_one(&after);
        let is_made = self.made.contains(&self.hasher.hash_one(&before));
        match self.runs.last_mut() {
            Some(Run::Update(rows)) if !is_made => rows.push((before, after)),
            _ => self.begin(Run::Update(vec![(before, after)])),
        }
        self.made.insert(made);
    }

    fn begin(&mut self, run: Run) {
        self.made.clear();
        self.runs.push(run);
    }

    pub fn into_runs(self) -> Vec<Run> {
        self.runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Cell;

    fn row(value: &str) -> OwnedRow {
        OwnedRow::new([Cell::Text(value.as_bytes())])
    }

    #[test]
    fn changes_of_a_kind_are_gathered() {
        let mut runs = Runs::default();
        runs.insert(row("a"));
        runs.insert(row("a"));
        runs.delete(row("a"));
        runs.insert(row("b"));
        assert_eq!(
            runs.into_runs(),
            [
                Run::Insert(Rows::from_iter([row("a"), row("a")])),
                Run::Delete(vec![row("a")]),
                Run::Insert(Rows::from_iter([row("b")])),
            ]
        );
    }

    #[test]
    fn an_update_of_what_was_just_made_comes_later() {
        let mut runs = Runs::default();
        runs.update(row("a"), row("b"));
        runs.update(row("c"), row("d"));
        runs.update(row("b"), OwnedRow::new([Cell::Unchanged]));
        assert_eq!(
            runs.into_runs(),
            [
                Run::Update(vec![(row("a"), row("b")), (row("c"), row("d"))]),
                Run::Update(vec![(row("b"), row("b"))]),
            ]
        );
    }
}
