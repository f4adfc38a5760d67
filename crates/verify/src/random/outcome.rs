//! The outcome of a workload: successes, expected failures, and unexpected errors.

use std::collections::BTreeMap;
use std::fmt;

use crate::random::Feature;

/// Most unexpected errors that are kept with their text. All are counted.
pub(crate) const MOST_KEPT: usize = 50;

/// Failures that are expected when sessions work on the same objects.
const EXPECTED: &[(&str, &str)] = &[
    ("2BP01", "objects still depend on it"),
    ("23503", "a foreign key refers to it"),
    ("23505", "a key is there already"),
    ("23514", "no partition takes the row"),
    ("23P01", "an exclusion constraint refuses the row"),
    ("25P02", "an earlier statement of the transaction failed"),
    ("25P01", "no transaction is open any more"),
    ("3B001", "the savepoint is gone with its transaction"),
    ("3D000", "the database is not there"),
    ("40001", "serialization failure"),
    ("40P01", "deadlock"),
    ("42704", "an object is not there"),
    ("42710", "an object is there already"),
    ("42701", "a column is there already"),
    ("42703", "a column is not there"),
    ("42809", "the partition is not, or already, attached"),
    ("42883", "a function is not there"),
    ("42P01", "a table is not there"),
    ("42P07", "a table is there already"),
    ("42P17", "in-place tablespaces are not allowed"),
    ("53400", "too many prepared transactions"),
    ("55000", "an object is not in the state that is needed"),
    ("55006", "an object is in use"),
    ("55P03", "a lock was not granted in time"),
    ("57014", "canceled: it took too long"),
];

/// Messages of expected internal errors (XX000): two sessions change the same catalog row, or
/// one drops an object that the other is about to open.
const EXPECTED_INTERNAL: &[&str] = &[
    "tuple concurrently updated",
    "tuple concurrently deleted",
    "could not open relation with OID",
    "cache lookup failed for ",
];

/// Statements that read rows which are dead, but perhaps not to every snapshot. A vacuum of the TOAST
/// table alone may already have removed the values of such a row, as it uses a later horizon: PostgreSQL's
/// bugs 18351 and 19519, met here on 15.18. No snapshot sees the row, so nothing is lost.
const COPIES_DEAD_ROWS: &[Feature] = &[
    Feature::VacuumFull,
    Feature::VacuumCatalog,
    Feature::Cluster,
];

/// An error that a correct server never returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unexpected {
    pub session: usize,
    /// The statement's number in its session, from 0.
    pub number: usize,
    pub feature: Feature,
    pub sql: String,
    pub state: String,
    pub message: String,
}

impl fmt::Display for Unexpected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "session {} statement {} ({}): {} {}: {}",
            self.session, self.number, self.feature, self.state, self.message, self.sql
        )
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Statements of each feature that were answered.
    pub tried: BTreeMap<Feature, u64>,
    /// Statements of each feature that succeeded.
    pub succeeded: BTreeMap<Feature, u64>,
    /// Expected failures, by SQLSTATE.
    pub failed: BTreeMap<String, u64>,
    /// The first unexpected errors.
    pub unexpected: Vec<Unexpected>,
    /// The number of all unexpected errors.
    pub unexpected_count: u64,
}

impl Summary {
    /// Counts the answer to one statement.
    pub(crate) fn add(
        &mut self,
        session: usize,
        number: usize,
        statement: &super::Statement,
        state: &str,
        message: &str,
    ) {
        *self.tried.entry(statement.feature).or_default() += 1;
        if state == "00000" {
            *self.succeeded.entry(statement.feature).or_default() += 1;
        } else if is_expected(statement.feature, state, message) {
            *self.failed.entry(state.to_owned()).or_default() += 1;
        } else {
            self.unexpected_count += 1;
            if self.unexpected.len() < MOST_KEPT {
                self.unexpected.push(Unexpected {
                    session,
                    number,
                    feature: statement.feature,
                    sql: statement.text().to_owned(),
                    state: state.to_owned(),
                    message: message.to_owned(),
                });
            }
        }
    }

    pub fn merge(&mut self, other: Self) {
        for (feature, count) in other.tried {
            *self.tried.entry(feature).or_default() += count;
        }
        for (feature, count) in other.succeeded {
            *self.succeeded.entry(feature).or_default() += count;
        }
        for (state, count) in other.failed {
            *self.failed.entry(state).or_default() += count;
        }
        self.unexpected_count += other.unexpected_count;
        let room = MOST_KEPT.saturating_sub(self.unexpected.len());
        self.unexpected
            .extend(other.unexpected.into_iter().take(room));
    }

    /// The number of statements that were answered.
    pub fn statements(&self) -> u64 {
        self.tried.values().sum()
    }

    pub fn successes(&self) -> u64 {
        self.succeeded.values().sum()
    }

    /// Features of which not one statement succeeded.
    pub fn missing(&self) -> Vec<Feature> {
        Feature::ALL
            .iter()
            .copied()
            .filter(|feature| !self.succeeded.contains_key(feature))
            .collect()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} statements, {} succeeded, {} failed as they may, {} unexpected errors, {} of {} features",
            self.statements(),
            self.successes(),
            self.failed.values().sum::<u64>(),
            self.unexpected_count,
            self.succeeded.len(),
            Feature::ALL.len(),
        )
    }
}

fn is_expected(feature: Feature, state: &str, message: &str) -> bool {
    if state == "XX001" {
        return COPIES_DEAD_ROWS.contains(&feature) && message.starts_with("missing chunk number ");
    }
    if state == "XX000" {
        return EXPECTED_INTERNAL
            .iter()
            .any(|words| message.starts_with(words));
    }
    EXPECTED.iter().any(|(expected, _)| *expected == state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Action, Statement};

    #[test]
    fn only_what_sessions_do_to_each_other_is_expected() {
        for (state, message) in [
            ("55P03", "canceling statement due to lock timeout"),
            ("40P01", "deadlock detected"),
            ("42P01", "relation \"x\" does not exist"),
            ("XX000", "tuple concurrently updated"),
            ("XX000", "could not open relation with OID 123"),
        ] {
            assert!(
                is_expected(Feature::Insert, state, message),
                "{state} {message}"
            );
        }
        let missing = "missing chunk number 0 for toast value 7 in pg_toast_5";
        assert!(is_expected(Feature::VacuumFull, "XX001", missing));
        for (state, message) in [
            ("42601", "syntax error at or near \"FORM\""),
            ("XX000", "unexpected chunk number 3"),
            ("XX001", "could not read block 7 in file \"base/5/1\""),
            ("XX001", missing),
            ("XX002", "index \"i\" contains unexpected zero page"),
            ("22012", "division by zero"),
            ("57P02", "terminating connection because of crash"),
            ("53100", "No space left on device"),
            ("25001", "VACUUM cannot run inside a transaction block"),
        ] {
            assert!(
                !is_expected(Feature::Insert, state, message),
                "{state} {message}"
            );
        }
    }

    #[test]
    fn answers_are_counted_and_merged() {
        let statement = Statement {
            feature: Feature::Insert,
            action: Action::Sql("INSERT".to_owned()),
        };
        let mut summary = Summary::default();
        summary.add(0, 0, &statement, "00000", "");
        summary.add(0, 1, &statement, "40P01", "deadlock detected");
        summary.add(0, 2, &statement, "XX001", "could not read block 7");
        let mut both = summary.clone();
        both.merge(summary);
        assert_eq!(both.statements(), 6);
        assert_eq!(both.successes(), 2);
        assert_eq!(both.failed.get("40P01"), Some(&2));
        assert_eq!((both.unexpected_count, both.unexpected.len()), (2, 2));
        assert_eq!(both.missing().len(), Feature::ALL.len() - 1);
        assert!(both.unexpected[0].to_string().contains("could not read"));
    }
}
