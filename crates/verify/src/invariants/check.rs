//! One check: one scan reads a whole table, and the result must satisfy the invariants.

use std::fmt;

use crate::invariants::tables::{KEYS, SCHEMA, Table};

/// How a table is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scan {
    /// Every row of the table.
    Sequential,
    /// Each key is looked up in the index; rows are read from the table.
    Index,
    /// Each key is looked up by a bitmap scan; rows are read from the table.
    Bitmap,
    /// The index alone is read, where the visibility map allows that.
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
    /// All scans. The sequential one is first, since the others are compared with it.
    pub const ALL: [Self; 4] = [Self::Sequential, Self::Index, Self::Bitmap, Self::IndexOnly];

    /// Settings that leave the planner only this scan until the end of the transaction.
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

    /// A query for the number of rows, the sum of keys, the sum of values, and the number of rows
    /// with a wrong key.
    ///
    /// Neither a B-tree scan nor an exact bitmap compares the key of the row with the key that
    /// was looked up. So a row that has taken the place of an old one is detected only if each
    /// key is looked up and compared with the key of the row that comes back. An index-only
    /// scan has no copy of the key to compare.
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

    /// True if a plan reads the table with this scan and with no other.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub count: i64,
    /// Sum of their keys.
    pub keys: i64,
    /// Sum of their values.
    pub values: i64,
    /// Rows whose key is not the one looked up, or not equal to the copy in the row.
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Every transaction keeps the number of rows, but this one is different.
    Count { expected: i64, found: i64 },
    /// Every transaction keeps the sum of values, but this one is different.
    Sum { expected: i64, found: i64 },
    /// This many rows have a wrong key ([`Seen::wrong`]).
    WrongRows(i64),
    /// The result differs from that of the snapshot's first sequential scan, in the same round.
    Disagrees { first: Seen, now: Seen },
    /// The result differs from that of the snapshot's first sequential scan, in a later round.
    Changed { first: Seen, now: Seen },
    /// The query failed with this error.
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

/// The violations in what was seen. `first` is the result of the snapshot's first sequential
/// scan; None if `seen` is that result.
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
