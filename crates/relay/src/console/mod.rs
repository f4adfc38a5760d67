//! The admin console: what `psql` gets from the relay's database `lockstep`.
//!
//! The console understands a few statements of its own, listed by `SHOW HELP`, besides what clients send by
//! themselves, in simple queries and in the extended protocol. All statements of a query are
//! read before the first is run, so a query that is wrong anywhere changes nothing; after
//! that each stands alone, there are no transactions.
//!
//! What is read comes from one [`Snapshot`] for each statement. Rights come with the
//! session: see [`Rights`].
//!
//! | module | what |
//! |---|---|
//! | [`statement`] | from text to statements |
//! | [`rights`] | who may do what |
//! | [`listing`] | columns and rows |

mod listing;
mod rights;
mod statement;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use lockstep_wire::backend::{Backend, Column, Report};

pub use crate::serve::Rights;
use crate::stats::{Reset, Snapshot, Source};
pub use listing::{
    CLIENT_COLUMNS, CONFIG_COLUMNS, SLOT_COLUMNS, SPOOL_COLUMNS, STATISTICS_COLUMNS,
    UPSTREAM_COLUMNS, hit_rate,
};
use listing::{ColumnKind, HELP_COLUMNS, ListingRow, RELOAD_COLUMNS};
pub use statement::{LONGEST_QUERY, MOST_COLUMNS, MOST_STATEMENTS};
use statement::{Show, Statement, Statistics};

/// Bytes of an answer after which no further statement of the query is run.
pub const LONGEST_ANSWER: usize = 4 * 1024 * 1024;

/// Longest piece of a name in an answer, in characters.
const MOST_NAME: usize = 63;

#[derive(Clone)]
pub struct Console {
    source: Arc<dyn Source>,
}

impl Console {
    /// A console that shows and asks `source`.
    pub fn new(source: Arc<dyn Source>) -> Self {
        Self { source }
    }

    /// The messages that answer a simple query, without `ReadyForQuery`. May block as long
    /// as the source does.
    pub fn answer(&self, rights: &Rights, query: &str) -> Vec<u8> {
        let mut out = Vec::new();
        match statement::parse(query) {
            Ok(statements) if statements.is_empty() => Backend::EmptyQueryResponse.encode(&mut out),
            Ok(statements) => {
                let done = statements
                    .iter()
                    .try_for_each(|statement| self.run(rights, statement, &mut out));
                if let Err(report) = done {
                    Backend::ErrorResponse(report).encode(&mut out);
                }
            }
            Err(report) => Backend::ErrorResponse(report).encode(&mut out),
        }
        out
    }

    /// Columns of the answer to a statement that is prepared; none if it returns no rows, as an empty
    /// one.
    pub fn columns(&self, query: &str) -> Result<Vec<Column<'static>>, Report> {
        match statement::parse(query)?.as_slice() {
            [] => Ok(Vec::new()),
            [statement] => Ok(listing::columns(statement)),
            _ => Err(Report::error(
                "42601",
                "cannot insert multiple commands into a prepared statement",
            )),
        }
    }

    /// Appends the answer of one statement; an error ends the query.
    fn run(&self, rights: &Rights, statement: &Statement, out: &mut Vec<u8>) -> Result<(), Report> {
        if out.len() > LONGEST_ANSWER {
            let reason = format!("the answer is longer than {LONGEST_ANSWER} bytes");
            return Err(Report::error("54000", reason).hint("Send fewer statements at once."));
        }
        let (need, what) = statement.need();
        rights.check(need, what, self.source.admin_role().as_deref())?;
        match statement {
            Statement::Acknowledge(tag) => Backend::CommandComplete(tag).encode(out),
            Statement::Transaction(tag) => {
                Backend::NoticeResponse(no_transactions()).encode(out);
                Backend::CommandComplete(tag).encode(out);
            }
            Statement::Number(number) => {
                let number = Some(number.to_string());
                listing::put_value(out, "?column?", ColumnKind::Number, number, "SELECT 1");
            }
            Statement::SelectVersion => select_text(out, "version", version()),
            Statement::Statistics(wanted) => put_statistics(out, wanted, &self.source.snapshot()),
            Statement::Reset(slot) => {
                let words = self.reset(slot.as_deref());
                select_text(out, "lockstep_stat_reset_wal_cache", words);
            }
            Statement::OldestPointer => {
                let oldest = oldest_cached(&self.source.snapshot());
                let name = "get_oldest_wal_cache_ptr";
                listing::put_value(out, name, ColumnKind::Position, oldest, "SELECT 1");
            }
            Statement::Show(what) => self.show(*what, out),
            Statement::DropSlot(slot) => {
                self.source
                    .drop_slot(slot)
                    .map_err(|(sqlstate, message)| Report::error(sqlstate, message))?;
                Backend::CommandComplete("DROP SLOT").encode(out);
            }
            Statement::Terminate(id) => {
                self.source.terminate(*id).map_err(|message| {
                    Report::error("42704", message).hint("SHOW CLIENTS lists them: column id.")
                })?;
                Backend::CommandComplete("TERMINATE").encode(out);
            }
            Statement::Reload => self.reload(out)?,
        }
        Ok(())
    }

    fn show(&self, what: Show, out: &mut Vec<u8>) {
        let snapshot = || self.source.snapshot();
        let (columns, rows): (&[Column<'_>], Vec<ListingRow>) = match what {
            Show::Slots => (
                &SLOT_COLUMNS,
                snapshot().slots.iter().map(listing::slot).collect(),
            ),
            Show::Clients => (
                &CLIENT_COLUMNS,
                snapshot().clients.iter().map(listing::client).collect(),
            ),
            Show::Upstream => (
                &UPSTREAM_COLUMNS,
                snapshot().groups.iter().map(listing::upstream).collect(),
            ),
            Show::Spool => (
                &SPOOL_COLUMNS,
                snapshot().groups.iter().map(listing::spool).collect(),
            ),
            Show::Config => {
                let rows = self.source.config().into_iter();
                let row = |(name, value, source)| vec![Some(name), Some(value), Some(source)];
                (&CONFIG_COLUMNS, rows.map(row).collect())
            }
            Show::Version => {
                listing::put_value(out, "version", ColumnKind::Text, Some(version()), "SHOW");
                return;
            }
            Show::Help => (&HELP_COLUMNS, listing::help()),
        };
        listing::put(out, columns, &rows, "SHOW");
    }

    /// Resets statistics and says so.
    fn reset(&self, slot: Option<&str>) -> String {
        let named = |slot: &str| slot.chars().take(MOST_NAME).collect::<String>();
        match (self.source.reset(slot), slot) {
            (Reset::Done, None) => {
                "Cache statistics of all slots start again from zero.".to_owned()
            }
            (Reset::Done, Some(slot)) => {
                format!(
                    "Cache statistics of slot \"{}\" start again from zero.",
                    named(slot)
                )
            }
            (Reset::NoSuchSlot, slot) => format!(
                "There is no slot \"{}\": nothing was reset.",
                named(slot.unwrap_or_default())
            ),
        }
    }

    fn reload(&self, out: &mut Vec<u8>) -> Result<(), Report> {
        let changes = self.source.reload().map_err(|reason| {
            Report::error(
                "F0000",
                format!("the configuration cannot be used: {reason}"),
            )
            .detail("The configuration in force has not changed.")
        })?;
        let mut rows: Vec<ListingRow> = changes.into_iter().map(|line| vec![Some(line)]).collect();
        if rows.is_empty() {
            rows.push(vec![Some("nothing has changed".to_owned())]);
        }
        listing::put(out, &RELOAD_COLUMNS, &rows, "RELOAD");
        Ok(())
    }
}

/// The relay as it names itself.
fn version() -> String {
    concat!("lockstep relay ", env!("CARGO_PKG_VERSION")).to_owned()
}

/// Whoever begins a transaction may count on taking things back.
fn no_transactions() -> Report {
    Report {
        severity: "WARNING".to_owned(),
        ..Report::error(
            "25P01",
            "this console has no transactions: each statement takes effect at once",
        )
    }
}

fn select_text(out: &mut Vec<u8>, name: &'static str, value: String) {
    listing::put_value(out, name, ColumnKind::Text, Some(value), "SELECT 1");
}

/// The oldest position that is in memory, over all groups.
fn oldest_cached(snapshot: &Snapshot) -> Option<String> {
    snapshot
        .groups
        .iter()
        .map(|group| group.oldest_cached)
        .filter(|oldest| oldest.is_valid())
        .min()
        .and_then(listing::position)
}

fn put_statistics(out: &mut Vec<u8>, wanted: &Statistics, snapshot: &Snapshot) {
    let chosen = |name: &str| wanted.slot.as_deref().is_none_or(|slot| slot == name);
    let mut rows: Vec<ListingRow> = snapshot
        .slots
        .iter()
        .filter(|slot| chosen(&slot.name))
        .map(listing::statistics)
        .collect();
    if let Some((column, descending)) = wanted.order {
        sort(&mut rows, column, descending);
    }
    let columns: Vec<Column<'_>> = wanted
        .columns
        .iter()
        .filter_map(|&at| STATISTICS_COLUMNS.get(at).copied())
        .collect();
    let rows: Vec<ListingRow> = rows
        .iter()
        .map(|row| {
            let value = |&at: &usize| row.get(at).cloned().flatten();
            wanted.columns.iter().map(value).collect()
        })
        .collect();
    let tag = format!("SELECT {}", rows.len());
    listing::put(out, &columns, &rows, &tag);
}

/// Sorts as PostgreSQL does: nulls are greater than everything.
fn sort(rows: &mut [ListingRow], column: usize, descending: bool) {
    let numeric = STATISTICS_COLUMNS
        .get(column)
        .is_some_and(listing::sorts_as_number);
    rows.sort_by_cached_key(|row| {
        let value = row.get(column).cloned().flatten();
        let number = value.as_deref().filter(|_| numeric).and_then(|text| {
            // A rate, as hundredths of a per cent.
            let digits: String = text.chars().filter(char::is_ascii_digit).collect();
            digits.parse::<u64>().ok()
        });
        (value.is_none(), number, value)
    });
    if descending {
        rows.reverse();
    }
}
