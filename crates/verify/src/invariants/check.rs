//! One check: a table read whole in one way, and what must be true of what was seen.

use std::fmt;

use crate::invariants::tables::{KEYS, SCHEMA, Table};

/// How a table is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scan {
    /// Every row of the table.
    Sequential,
    /// Each key looked up in the index, rows from the table.
    Index,
    /// Each key looked up by a bitmap, rows from the table.
    Bitmap,
    /// The index alone, where the visibility map allows.
    IndexOnly,
}

impl fmt::Display for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sequential => "sequential",
            Self::Index => "index",
            Self::Bitmap => "bitmap",
            Self::IndexOnly => "index-only",
        })
    }
}

impl Scan {
    /// All, the sequential one first: it is the measure for the others.
    pub const ALL: [Self; 4] = [Self::Sequential, Self::Index, Self::Bitmap, Self::IndexOnly];

    /// Settings that leave the planner only this scan, for the rest of the transaction.
    pub(crate) fn settings(self) -> String {
        let on = |scans: &[Self]| {
            if scans.contains(&self) { "on" } else { "off" }
        };
        format!(
            "SET LOCAL enable_seqscan = {}; SET LOCAL enable_indexscan = {}; \
             SET LOCAL enable_bitmapscan = {}; SET LOCAL enable_indexonlyscan = {}; \
             SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; \
             SET LOCAL enable_memoize = off; SET LOCAL enable_material = off; \
             SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL jit = off",
            on(&[Self::Sequential]),
            on(&[Self::Index, Self::IndexOnly]),
            on(&[Self::Bitmap]),
            on(&[Self::IndexOnly]),
        )
    }

    /// Rows, sum of keys, sum of values, and rows that are not what was asked for.
    ///
    /// Neither a B-tree scan nor an exact bitmap compares a row's key with the one looked
    /// up. So a row that took an old one's place is seen only if each key is looked up and
    /// what comes back is compared. The index alone has no copy to compare.
    pub(crate) fn query(self, table: &Table) -> String {
        let sums = "count(*), coalesce(sum(t.k), 0)::bigint, coalesce(sum(t.v), 0)::bigint";
        let name = table.name;
        match self {
            Self::Sequential => format!(
                "SELECT {sums}, count(*) FILTER (WHERE t.copy <> t.k) FROM {SCHEMA}.{name} t WHERE t.k >= 0"
            ),
            Self::Index | Self::Bitmap => format!(
                "SELECT {sums}, count(*) FILTER (WHERE t.copy <> t.k OR t.k <> wanted) \
                 FROM generate_series(0, {}) wanted JOIN {SCHEMA}.{name} t ON t.k = wanted",
                KEYS - 1
            ),
            Self::IndexOnly => {
                format!("SELECT {sums}, 0::bigint FROM {SCHEMA}.{name} t WHERE t.k >= 0")
            }
        }
    }

    /// True if a plan reads the table in this way and in no other.
    pub(crate) fn is_in(self, plan: &[String], table: &Table) -> bool {
        let name = table.name;
        let nodes = [
            (Self::Sequential, format!("Seq Scan on {name} ")),
            (
                Self::Index,
                format!("Index Scan using {name}_kv on {name} "),
            ),
            (Self::Bitmap, format!("Bitmap Heap Scan on {name} ")),
            (
                Self::IndexOnly,
                format!("Index Only Scan using {name}_kv on {name} "),
            ),
        ];
        let uses = |node: &str| {
            plan.iter().any(|line| {
                let line = line.trim_start().trim_start_matches("->").trim_start();
                format!("{line} ").starts_with(node)
            })
        };
        nodes
            .iter()
            .all(|(scan, node)| uses(node) == (*scan == self))
    }
}

/// What a check saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Rows.
    pub count: i64,
    /// Sum of their keys.
    pub keys: i64,
    /// Sum of their values.
    pub values: i64,
    /// Rows with another key than was looked up, or than their copy.
    pub wrong: i64,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rows, keys {}, values {}",
            self.count, self.keys, self.values
        )
    }
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The number of rows is not what every transaction keeps.
    Count {
        /// What it must be.
        expected: i64,
        /// What it was.
        found: i64,
    },
    /// The sum of values is not what every transaction keeps.
    Sum {
        /// What it must be.
        expected: i64,
        /// What it was.
        found: i64,
    },
    /// Rows that are not what was asked for.
    WrongRows(i64),
    /// Not what the snapshot's first sequential scan saw, in the same round.
    Disagrees {
        /// What that saw.
        first: Seen,
        /// What this saw.
        now: Seen,
    },
    /// Not what the snapshot's first sequential scan saw, in a later round.
    Changed {
        /// What that saw.
        first: Seen,
        /// What this saw.
        now: Seen,
    },
    /// The server failed.
    Error(String),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { expected, found } => write!(f, "{found} rows instead of {expected}"),
            Self::Sum { expected, found } => {
                write!(f, "sum of values {found} instead of {expected}")
            }
            Self::WrongRows(rows) => write!(f, "{rows} rows with another key than looked up"),
            Self::Disagrees { first, now } => write!(f, "{now}; the sequential scan saw {first}"),
            Self::Changed { first, now } => {
                write!(f, "{now}; at first the snapshot saw {first}")
            }
            Self::Error(message) => f.write_str(message),
        }
    }
}

/// What is wrong with what was seen. `first` is what the snapshot's first sequential scan
/// saw, if this is not it.
pub(crate) fn judge(table: &Table, seen: Seen, first: Option<Seen>, round: u32) -> Vec<What> {
    let mut wrong = Vec::new();
    if let Some(expected) = table.count().filter(|expected| *expected != seen.count) {
        wrong.push(What::Count {
            expected,
            found: seen.count,
        });
    }
    if let Some(expected) = table.sum().filter(|expected| *expected != seen.values) {
        wrong.push(What::Sum {
            expected,
            found: seen.values,
        });
    }
    if seen.wrong > 0 {
        wrong.push(What::WrongRows(seen.wrong));
    }
    let totals = |seen: Seen| (seen.count, seen.keys, seen.values);
    if let Some(first) = first.filter(|first| totals(*first) != totals(seen)) {
        wrong.push(if round == 1 {
            What::Disagrees { first, now: seen }
        } else {
            What::Changed { first, now: seen }
        });
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::TABLES;

    const GOOD: Seen = Seen {
        count: 1000,
        keys: 7,
        values: 1_000_000,
        wrong: 0,
    };

    #[test]
    fn each_kind_of_wrong_is_told() {
        let [account, _, _, recycled] = TABLES;
        assert_eq!(judge(&account, GOOD, None, 1), []);
        assert_eq!(judge(&account, GOOD, Some(GOOD), 9), []);
        let other = Seen { count: 999, ..GOOD };
        assert_eq!(
            judge(&account, other, None, 1),
            [What::Count {
                expected: 1000,
                found: 999
            }]
        );
        let other = Seen { values: 1, ..GOOD };
        assert_eq!(
            judge(&account, other, None, 1),
            [What::Sum {
                expected: 1_000_000,
                found: 1
            }]
        );
        // Nothing is kept there, but scans must agree.
        assert_eq!(judge(&recycled, other, None, 1), []);
        let (first, now) = (GOOD, other);
        assert_eq!(
            judge(&recycled, now, Some(first), 1),
            [What::Disagrees { first, now }]
        );
        assert_eq!(
            judge(&recycled, now, Some(first), 2),
            [What::Changed { first, now }]
        );
        let other = Seen { wrong: 3, ..GOOD };
        assert_eq!(judge(&recycled, other, Some(GOOD), 1), [What::WrongRows(3)]);
    }

    #[test]
    fn plans_are_told_apart() {
        let [account, ..] = TABLES;
        for (plan, scan) in [
            (
                "Aggregate\n  ->  Seq Scan on account t",
                Some(Scan::Sequential),
            ),
            (
                "Aggregate\n  ->  Nested Loop\n        ->  Function Scan on generate_series wanted\n        ->  Index Scan using account_kv on account t",
                Some(Scan::Index),
            ),
            (
                "Aggregate\n  ->  Bitmap Heap Scan on account t\n        ->  Bitmap Index Scan on account_kv",
                Some(Scan::Bitmap),
            ),
            (
                "Aggregate\n  ->  Index Only Scan using account_kv on account t",
                Some(Scan::IndexOnly),
            ),
            (
                "Aggregate\n  ->  Index Scan using account_pkey on account t",
                None,
            ),
            ("Aggregate\n  ->  Seq Scan on other t", None),
        ] {
            let lines: Vec<_> = plan.lines().map(str::to_owned).collect();
            for candidate in Scan::ALL {
                assert_eq!(
                    candidate.is_in(&lines, &account),
                    scan == Some(candidate),
                    "{plan}"
                );
            }
        }
    }
}
