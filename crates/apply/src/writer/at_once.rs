//! Small parts in one round trip.
//!
//! ```text
//! changes of each table, prepared ┊ end at a position ┊ Sync ──>  one transaction, on disk  ──> done
//! ```
//!
//! The statements of a pipeline are one transaction, which the server commits at its Sync and not
//! before: if one is refused, or the connection ends before the Sync arrived, nothing is left of any.
//! Rows that are not found are counted within their transaction. So before the position of a part that
//! updates or deletes rows the answers are waited for, which makes a second round trip.
//!
//! The commit flushes, with the commits before it, as it is alone in asking the server for that: a
//! statement for the flush, and the WAL writer that an asynchronous commit wakes, would cost more.
//!
//! What the server refuses is done once more statement by statement. That says what was refused, and
//! brings rows out of each other's way.

use std::ffi::CString;
use std::sync::Arc;

use lockstep_client::{Connection, ToText};

use super::commit::{END, how};
use super::given::{Given, after, before, keeps, updated, values};
use super::{COPY_FROM, MOST_BYTES, Missing, Writer};
use crate::batch::{CommitPoint, Part, Set, Step};
use crate::error::{ApplyError, Result, is_cancelled};
use crate::failpoint;
use crate::statements::Verb;
use crate::table::Table;
use crate::target_state;

/// Most steps of a small part; each has fewer rows than are copied.
const MOST_STEPS: usize = 32;

/// Changes of one table by one statement.
pub(super) struct Changes<'a> {
    pub table: &'a Arc<Table>,
    pub verb: Verb,
    pub rows: Vec<Given<'a>>,
}

/// A statement with its values.
struct Ready<'a> {
    table: &'a Table,
    name: String,
    values: Vec<Option<CString>>,
    /// Rows that are to be found.
    sought: Option<usize>,
}

impl Writer {
    /// Makes all changes of a part and commits them as [`Writer::commit`] does, if it is small and has
    /// no others before it in its transaction. Returns whether all commits so far are on disk, and the
    /// rows that were not there. None if nothing was done: it is to be done statement by statement.
    pub fn at_once(
        &mut self,
        part: &Part,
        commit: CommitPoint,
        is_to_flush: impl FnOnce() -> bool,
    ) -> Result<Option<(bool, Missing)>> {
        // One that tidies takes longer anyway.
        let changes = match self.in_transaction || self.tidies() {
            true => None,
            false => small(part),
        };
        let Some(changes) = changes else {
            return Ok(None);
        };
        let flush = is_to_flush();
        match self.all_at_once(&changes, commit, flush) {
            Ok(missing) => {
                self.kept += 1;
                Ok(Some((flush, missing)))
            }
            Err(error) if error.refusal().is_some() && !is_cancelled(&error) => Ok(None),
            Err(error) => Err(ApplyError::Target(error)),
        }
    }

    fn all_at_once(
        &mut self,
        changes: &[Changes<'_>],
        commit: CommitPoint,
        flush: bool,
    ) -> lockstep_client::Result<Missing> {
        self.make_room(changes.len())?;
        let ready = changes.iter().map(|changes| self.ready(changes));
        let ready = ready.collect::<lockstep_client::Result<Vec<_>>>()?;
        self.prepare_end()?;
        let end: [&dyn ToText; 4] = [&self.replica, &commit.end, &commit.time.0, &how(flush)];
        let (missing, is_new) = send(&mut self.connection, &self.replica, ready, &end)?;
        if flush && !is_new {
            self.connection.execute(super::FLUSH)?;
        }
        Ok(missing)
    }

    fn ready<'a>(&mut self, changes: &Changes<'a>) -> lockstep_client::Result<Ready<'a>> {
        let Changes { table, verb, rows } = changes;
        let keeps = match verb {
            Verb::Update => keeps(rows),
            _ => Vec::new(),
        };
        let (name, statement) = self.prepare(table, *verb, keeps)?;
        Ok(Ready {
            table,
            name,
            values: values(table, &statement, &table.key(), rows)?,
            sought: (*verb != Verb::Insert).then_some(rows.len()),
        })
    }
}

/// Runs the statements as one transaction that ends at a position. Returns the rows that were not
/// found, and whether the position is new.
fn send(
    connection: &mut Connection,
    replica: &str,
    ready: Vec<Ready<'_>>,
    end: &[&dyn ToText],
) -> lockstep_client::Result<(Missing, bool)> {
    let mut pipeline = connection.pipeline()?;
    let mut sought = Vec::new();
    for statement in ready {
        pipeline.change_prepared(&statement.name, statement.values)?;
        sought.push((statement.table, statement.sought));
    }
    let mut missing = Missing::new();
    if sought.iter().any(|(_, rows)| rows.is_some()) {
        if let Some(answers) = pipeline.answered()? {
            for ((table, sought), answer) in sought.iter().zip(answers) {
                let found = answer.affected;
                let lacks = sought.map_or(0, |rows| (rows as u64).saturating_sub(found));
                if lacks > 0 {
                    *missing.entry(table.name.clone()).or_default() += lacks;
                }
            }
        }
    }
    for (table, rows) in &missing {
        let of: [&dyn ToText; 4] = [&replica, &table.schema, &table.table, rows];
        pipeline.query(target_state::ADD_MISSING, &of)?;
    }
    pipeline.query_prepared(END, end)?;
    failpoint::APPLY_WRITTEN.reach();
    let answers = pipeline.finish()?;
    let kept = answers.last().map_or(0, |answer| answer.affected);
    Ok((missing, kept > 0))
}

/// The part's changes by statements, if one statement each is enough and none needs care.
fn small(part: &Part) -> Option<Vec<Changes<'_>>> {
    if part.steps.len() > MOST_STEPS || part.cycle.is_some() || part.share.is_some() {
        return None;
    }
    let changes = part.steps.iter().map(plain).collect::<Option<Vec<_>>>()?;
    let rows = || changes.iter().flat_map(|changes| &changes.rows);
    let bytes: usize = rows().map(Given::size).sum();
    (rows().next().is_some() && bytes <= MOST_BYTES).then_some(changes)
}

/// A step's changes, if they are few and one statement is enough.
pub(super) fn plain(step: &Step) -> Option<Changes<'_>> {
    let Step::Change { table, set } = step else {
        return None;
    };
    let (verb, rows): (_, Vec<_>) = match set {
        _ if set.len() >= COPY_FROM => return None,
        Set::Insert(rows) => (Verb::Insert, rows.iter().map(after).collect()),
        Set::Delete(keys) => (Verb::Delete, keys.iter().map(before).collect()),
        Set::Update(updates) if table.can_update() && !updates.iter().any(|it| it.moved) => {
            (Verb::Update, updates.iter().map(updated).collect())
        }
        _ => return None,
    };
    let key = table.key();
    // Of rows that are all key nothing is left to update.
    let fits = match verb {
        Verb::Insert => table.written().next().is_some(),
        Verb::Update => {
            let mut written = table.written();
            table.is_indexed() && written.any(|(place, _)| !key.contains(&place))
        }
        _ => table.is_indexed(),
    };
    fits.then_some(Changes { table, verb, rows })
}
