//! What is copied by one session at a time. No I/O.
//!
//! Large units come first, so that no session is left with one at the end. A table that one
//! session loads alone can be frozen; one that would keep a session busy for longer than the others
//! is split into ranges of blocks, which several sessions load and which become smaller towards the
//! table's end. Tables go together where they can: a commit that has emptied a table waits for the disk.

use super::tables::Table;

/// Tables up to this size go together.
const SMALL: u64 = 1024 * 1024;

/// Most tables that go together, and most bytes of them.
const MOST_TOGETHER: usize = 100;
const MOST_BYTES_TOGETHER: u64 = 16 * 1024 * 1024;

/// Tables that are frozen together are at most such a part of what each session has to load.
const PART_TOGETHER: u64 = 8;

/// Tables from this size on may be split.
const SPLIT_FROM: u64 = 16 * 1024 * 1024;

const SMALLEST_RANGE: u64 = 8 * 1024 * 1024;

/// A range is such a part of what each session still has to load of the table, so that none waits
/// long for another at the end.
const PART_OF_A_SHARE: u64 = 2;

/// Something that one session copies in one transaction; numbers are places in the list of tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unit {
    /// Small tables.
    Together(Vec<usize>),
    /// Tables that no other session loads, and whose rows are frozen.
    Frozen(Vec<usize>),
    /// The blocks from `from` on, up to `to` without it; None: up to the end.
    Range {
        table: usize,
        from: u64,
        to: Option<u64>,
    },
}

/// The work for so many sessions.
pub fn plan(tables: &[Table], jobs: usize) -> Vec<Unit> {
    let jobs = u64::try_from(jobs.max(1)).unwrap_or(1);
    let total: u64 = tables.iter().map(|table| table.bytes).sum();
    let share = total / jobs;
    let mut order: Vec<usize> = (0..tables.len()).collect();
    let bytes = |place: &usize| tables.get(*place).map_or(0, |table| table.bytes);
    order.sort_by_key(|place| std::cmp::Reverse(bytes(place)));

    let mut units = Vec::new();
    let mut small = Group::new(MOST_BYTES_TOGETHER, Unit::Together);
    let mut frozen = Group::new(MOST_BYTES_TOGETHER.min(share / PART_TOGETHER), Unit::Frozen);
    for place in order {
        let Some(table) = tables.get(place) else {
            continue;
        };
        let split = jobs > 1 && table.bytes > SPLIT_FROM && table.bytes > share / 2;
        match table.bytes > SMALL {
            true if split => ranges(place, table, jobs, &mut units),
            true if table.referred => units.push((table.bytes, Unit::Together(vec![place]))),
            true => frozen.add(place, table.bytes, &mut units),
            false => small.add(place, table.bytes, &mut units),
        }
    }
    small.end(&mut units);
    frozen.end(&mut units);
    units.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    units.into_iter().map(|(_, unit)| unit).collect()
}

/// Tables that will be one unit.
struct Group {
    most_bytes: u64,
    unit: fn(Vec<usize>) -> Unit,
    places: Vec<usize>,
    bytes: u64,
}

impl Group {
    fn new(most_bytes: u64, unit: fn(Vec<usize>) -> Unit) -> Self {
        Self {
            most_bytes,
            unit,
            places: Vec::new(),
            bytes: 0,
        }
    }

    /// Adds a table, in a new unit if it has no room in this one.
    fn add(&mut self, place: usize, bytes: u64, units: &mut Vec<(u64, Unit)>) {
        let full = self.places.len() >= MOST_TOGETHER || self.bytes + bytes > self.most_bytes;
        if full {
            self.end(units);
        }
        self.places.push(place);
        self.bytes += bytes;
    }

    fn end(&mut self, units: &mut Vec<(u64, Unit)>) {
        let bytes = std::mem::take(&mut self.bytes);
        let places = std::mem::take(&mut self.places);
        if !places.is_empty() {
            units.push((bytes, (self.unit)(places)));
        }
    }
}

/// Splits a table for so many sessions.
fn ranges(place: usize, table: &Table, jobs: u64, units: &mut Vec<(u64, Unit)>) {
    let of_a_block = table.bytes / table.blocks.max(1);
    let smallest = (SMALLEST_RANGE / of_a_block.max(1)).max(1);
    let mut from = 0;
    loop {
        let left = table.blocks.saturating_sub(from);
        let blocks = (left / (PART_OF_A_SHARE * jobs)).max(smallest);
        let to = (blocks < left).then_some(from + blocks);
        let table = place;
        let bytes = blocks.min(left) * of_a_block;
        units.push((bytes, Unit::Range { table, from, to }));
        match to {
            Some(to) => from = to,
            None => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1024 * 1024;

    fn tables(sizes: &[u64]) -> Vec<Table> {
        let table = |&bytes: &u64| Table {
            bytes,
            blocks: bytes / 8192,
            ..Table::default()
        };
        sizes.iter().map(table).collect()
    }

    #[test]
    fn one_session_loads_each_table_whole() {
        let units = plan(&tables(&[10 * MB, 0, 500 * MB, 1000]), 1);
        let expected = [
            Unit::Frozen(vec![2]),
            Unit::Frozen(vec![0]),
            Unit::Together(vec![3, 1]),
        ];
        assert_eq!(units, expected);
        assert_eq!(plan(&[], 4), []);
    }

    #[test]
    fn a_large_table_is_split_without_gaps() {
        let tables = tables(&[800 * MB, 10 * MB]);
        let mut ranges = Vec::new();
        for unit in plan(&tables, 2) {
            match unit {
                Unit::Range { table: 0, from, to } => ranges.push((from, to)),
                other => assert_eq!(other, Unit::Frozen(vec![1])),
            }
        }
        ranges.sort_unstable();
        let mut next = Some(0);
        for (from, to) in &ranges {
            assert_eq!(Some(*from), next);
            next = *to;
        }
        assert_eq!(next, None, "the last has no end: a table may have grown");
        let blocks: Vec<_> = ranges
            .iter()
            .map(|(from, to)| to.map_or(800 * MB / 8192, |to| to) - from)
            .collect();
        assert_eq!(blocks[0], 200 * MB / 8192);
        assert!(
            blocks.windows(2).all(|pair| pair[0] >= pair[1]),
            "{blocks:?}"
        );
        assert!(*blocks.last().unwrap() <= 2 * SMALLEST_RANGE / 8192);
    }

    #[test]
    fn tables_of_one_size_are_not_split() {
        let units = plan(&tables(&[100 * MB; 20]), 2);
        assert_eq!(units.len(), 20);
        assert!(
            units
                .iter()
                .all(|unit| matches!(unit, Unit::Frozen(one) if one.len() == 1))
        );
    }

    #[test]
    fn tables_that_are_frozen_go_together_while_each_session_has_many_units() {
        let places = |unit: &Unit| match unit {
            Unit::Frozen(places) => places.len(),
            other => panic!("{other:?}"),
        };
        let units: Vec<_> = plan(&tables(&[2 * MB; 200]), 2)
            .iter()
            .map(places)
            .collect();
        assert_eq!(units, [8; 25]);
        // Each would have but two units, and one wait for the other.
        assert_eq!(plan(&tables(&[2 * MB; 16]), 2).len(), 16);
    }

    #[test]
    fn small_tables_go_together_up_to_a_limit() {
        let units = plan(&tables(&[0; 1000]), 2);
        assert_eq!(units.len(), 10);
        let mut seen: Vec<_> = units
            .iter()
            .flat_map(|unit| match unit {
                Unit::Together(places) => places.clone(),
                _ => Vec::new(),
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
        // A megabyte each: 16 go together.
        assert_eq!(plan(&tables(&[MB; 32]), 2).len(), 2);
    }
}
