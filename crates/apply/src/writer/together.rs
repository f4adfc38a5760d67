//! Small changes of many tables, sent one after the other without waiting for each one's answer.
//!
//! ```text
//! changes of table 1 ┊ of table 2 ┊ ... ┊ Sync ──>  within the open transaction  ──> one answer for each
//! ```
//!
//! A cycle that changes a row in each of a thousand tables would otherwise wait two thousand times.
//! Statements that are not known yet are prepared on the way. What needs care goes step by step
//! ([`super::at_once::plain`]), and so do updates that may have to be done again as replacements.

use std::sync::Arc;

use super::at_once::{Changes, plain};
use super::given::{Given, keeps, values};
use super::{COPY_FROM_BYTES, Prepared, StatementKey, Writer, bytes};
use crate::batch::Step;
use crate::error::{ApplyError, Result};
use crate::statements::{Statement, Verb};

/// Most steps that go together.
const MOST_TOGETHER: usize = 100;

/// A statement that goes with others.
struct Named {
    which: StatementKey,
    name: String,
    statement: Arc<Statement>,
    is_new: bool,
}

/// The changes of the first steps, as long as they may go together.
pub(super) fn first(steps: &[Step]) -> Vec<Changes<'_>> {
    let mut size = 0;
    let mut fits = |changes: &Changes<'_>| {
        size += changes.rows.iter().map(Given::size).sum::<usize>();
        size <= COPY_FROM_BYTES && !(changes.verb == Verb::Update && changes.table.crowded)
    };
    let plain = steps.iter().take(MOST_TOGETHER).map_while(plain);
    plain.take_while(|changes| fits(changes)).collect()
}

impl Writer {
    /// Makes changes in the open transaction.
    pub(super) fn together(&mut self, changes: &[Changes<'_>]) -> Result<()> {
        self.make_room(changes.len()).map_err(ApplyError::Target)?;
        let named: Vec<_> = changes.iter().map(|it| self.named(it)).collect();
        let answers = self.send_together(changes, &named)?;
        for (changes, affected) in changes.iter().zip(answers) {
            if changes.verb != Verb::Insert {
                self.count_missing(changes.table, changes.rows.len(), affected);
            }
        }
        for (changes, named) in changes.iter().zip(named) {
            let prepared = Prepared {
                _table: Arc::clone(changes.table),
                name: named.name,
                statement: named.statement,
            };
            if named.is_new {
                self.prepared.insert(named.which, prepared);
            }
        }
        Ok(())
    }

    fn named(&mut self, changes: &Changes<'_>) -> Named {
        let Changes { table, verb, rows } = changes;
        let keeps = match verb {
            Verb::Update => keeps(rows),
            _ => Vec::new(),
        };
        let which = (Arc::as_ptr(table) as usize, *verb, keeps);
        if let Some(prepared) = self.prepared.get(&which) {
            return Named {
                name: prepared.name.clone(),
                statement: Arc::clone(&prepared.statement),
                which,
                is_new: false,
            };
        }
        self.named += 1;
        Named {
            name: format!("apply_{}", self.named),
            statement: Arc::new(table.statement(*verb, &which.2)),
            which,
            is_new: true,
        }
    }

    /// Sends the statements. Returns how many rows each has changed.
    fn send_together(&mut self, changes: &[Changes<'_>], named: &[Named]) -> Result<Vec<u64>> {
        let mut pipeline = self.connection.pipeline().map_err(ApplyError::Target)?;
        // The table that each statement of the pipeline is about, and whether it changes rows.
        let mut sent = Vec::new();
        for (Changes { table, rows, .. }, named) in changes.iter().zip(named) {
            let on_table = |error| ApplyError::on_table(&table.name, error);
            if named.is_new {
                let prepared = pipeline.prepare(&named.name, &named.statement.sql);
                prepared.map_err(on_table)?;
                sent.push((table, false));
            }
            let values = values(table, &named.statement, &table.key(), rows).map_err(on_table)?;
            self.sent_bytes += bytes(&values);
            let given = pipeline.change_prepared(&named.name, values);
            given.map_err(on_table)?;
            sent.push((table, true));
        }
        let answers = pipeline.finish_or_place().map_err(|(place, error)| {
            let at = sent.get(place).or(sent.last());
            at.map_or_else(
                || ApplyError::Target(error.clone()),
                |(table, _)| ApplyError::on_table(&table.name, error.clone()),
            )
        })?;
        let changed = sent.iter().zip(answers);
        let changed = changed.filter(|((_, changes), _)| *changes);
        Ok(changed.map(|(_, answer)| answer.affected).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Emptied, Set};
    use crate::names::TableName;
    use crate::net::Update;
    use crate::reach::Reach;
    use crate::row::{Cell, OwnedRow, Rows};
    use crate::source_table::{Identity, KeyColumn};
    use crate::table::{Table, TargetColumn};
    use crate::types::ColumnType;

    fn with_key() -> Table {
        let column = |name: &str| TargetColumn {
            name: name.to_owned(),
            of: ColumnType::default(),
            kind: "pg_catalog.int4".to_owned(),
            in_array: true,
            of_user: false,
            delimiter: b',',
            generated: false,
            always_identity: false,
        };
        Table {
            name: TableName {
                schema: "s".to_owned(),
                table: "t".to_owned(),
            },
            columns: vec![column("k"), column("v")],
            identity: Identity::Key(vec![KeyColumn {
                place: 0,
                operator: Some("pg_catalog.=".to_owned()),
            }]),
            partitioned: false,
            crowded: false,
            kept: Vec::new(),
            attributes: 0,
            reach: Reach::default(),
        }
    }

    fn row(text: &str) -> OwnedRow {
        OwnedRow::new([Cell::Text(b"1"), Cell::Text(text.as_bytes())])
    }

    fn insert(rows: usize, text: &str) -> Step {
        Step::Change {
            table: Arc::new(with_key()),
            set: Set::Insert(Rows::from_iter(vec![row(text); rows])),
        }
    }

    fn update(crowded: bool) -> Step {
        let mut table = with_key();
        table.crowded = crowded;
        let update = Update {
            from: OwnedRow::new([Cell::Text(b"1")]),
            moved: false,
            row: row("a"),
        };
        Step::Change {
            table: Arc::new(table),
            set: Set::Update(vec![update]),
        }
    }

    #[test]
    fn small_changes_go_together_up_to_what_needs_care() {
        let truncate = || Step::Truncate {
            tables: Vec::new(),
            how: Emptied::Truncated,
        };
        let half = "x".repeat(COPY_FROM_BYTES / 2);
        for (steps, expected) in [
            (vec![insert(1, "a"), update(false), insert(2, "b")], 3),
            (vec![insert(1, "a"), truncate(), insert(2, "b")], 1),
            (vec![update(false), update(true)], 1),
            (vec![insert(1, "a"), insert(50, "b")], 1),
            (vec![insert(1, &half), insert(1, &half)], 1),
            (Vec::new(), 0),
        ] {
            assert_eq!(first(&steps).len(), expected, "{steps:?}");
        }
        let many: Vec<_> = (0..MOST_TOGETHER + 5).map(|_| insert(1, "a")).collect();
        assert_eq!(first(&many).len(), MOST_TOGETHER);
    }
}
