//! A session that checks, snapshot after snapshot, until it is told to end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lockstep_lab::Lsn;
use postgres::error::SqlState;
use postgres::{Client, Config, NoTls, Transaction};

use crate::invariants::check::{Scan, Seen, What, judge};
use crate::invariants::tables::{TABLES, Table};
use crate::invariants::{MOST_KEPT, Report, Violation, locked};

/// How long to wait before connecting again.
const AGAIN: Duration = Duration::from_millis(50);

/// What readers share with their owner.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) report: Mutex<Report>,
    pub(super) stop: AtomicBool,
}

pub(super) struct Reader {
    config: Config,
    client: Option<Client>,
    shared: Arc<Shared>,
    rounds: u32,
}

/// Where in its work a snapshot is.
struct Place {
    table: &'static Table,
    scan: Scan,
    round: u32,
}

impl Reader {
    pub(super) fn new(config: Config, client: Client, shared: Arc<Shared>, rounds: u32) -> Self {
        Self {
            config,
            client: Some(client),
            shared,
            rounds,
        }
    }

    pub(super) fn run(mut self) {
        while !self.shared.stop.load(Ordering::SeqCst) {
            let Some(mut client) = self.client.take().or_else(|| self.connect()) else {
                thread::sleep(AGAIN);
                continue;
            };
            let mut place = Place {
                table: &TABLES[0],
                scan: Scan::Sequential,
                round: 1,
            };
            if let Err(error) = self.snapshot(&mut client, &mut place) {
                self.failed(&error, &place);
            }
            if !client.is_closed() {
                self.client = Some(client);
            }
        }
    }

    fn connect(&self) -> Option<Client> {
        self.config.connect(NoTls).ok()
    }

    fn snapshot(&self, client: &mut Client, place: &mut Place) -> Result<(), postgres::Error> {
        let mut transaction = client
            .build_transaction()
            .isolation_level(postgres::IsolationLevel::RepeatableRead)
            .read_only(true)
            .start()?;
        let before = replayed(&mut transaction)?;
        let mut first: [Option<Seen>; TABLES.len()] = [None; TABLES.len()];
        for round in 1..=self.rounds {
            place.round = round;
            for (table, first) in TABLES.iter().zip(&mut first) {
                for scan in Scan::ALL {
                    (place.table, place.scan) = (table, scan);
                    let Some(seen) = self.read(&mut transaction, table, scan)? else {
                        continue;
                    };
                    self.judge(seen, *first, place);
                    first.get_or_insert(seen);
                }
            }
            if self.shared.stop.load(Ordering::SeqCst) && round < self.rounds {
                return Ok(());
            }
        }
        let after = replayed(&mut transaction)?;
        transaction.commit()?;
        let mut report = locked(&self.shared.report);
        report.snapshots += 1;
        if self.rounds > 1 {
            report.long_snapshots += 1;
            report.long_over_replay += u64::from(after > before);
        }
        Ok(())
    }

    /// Reads the table; None if the plan is another, so that the check says nothing.
    fn read(
        &self,
        transaction: &mut Transaction<'_>,
        table: &Table,
        scan: Scan,
    ) -> Result<Option<Seen>, postgres::Error> {
        transaction.batch_execute(&scan.settings())?;
        let query = scan.query(table);
        // Only running it tells how often the visibility map was of use.
        let how = match scan {
            Scan::IndexOnly => "ANALYZE, COSTS off, TIMING off, SUMMARY off",
            _ => "COSTS off",
        };
        let plan: Vec<String> = transaction
            .query(&format!("EXPLAIN ({how}) {query}"), &[])?
            .iter()
            .map(|row| row.try_get(0))
            .collect::<Result<_, _>>()?;
        if !scan.is_in(&plan, table) {
            locked(&self.shared.report).void += 1;
            return Ok(None);
        }
        let row = transaction.query_one(&query, &[])?;
        let seen = Seen {
            count: row.try_get(0)?,
            keys: row.try_get(1)?,
            values: row.try_get(2)?,
            wrong: row.try_get(3)?,
        };
        let mut report = locked(&self.shared.report);
        *report.checks.entry(scan).or_default() += 1;
        if scan == Scan::IndexOnly {
            let fetched = heap_fetches(&plan).unwrap_or(seen.count);
            report.rows_without_heap += seen.count.saturating_sub(fetched).unsigned_abs();
        }
        Ok(Some(seen))
    }

    fn judge(&self, seen: Seen, first: Option<Seen>, place: &Place) {
        for what in judge(place.table, seen, first, place.round) {
            self.violation(what, place);
        }
    }

    fn violation(&self, what: What, place: &Place) {
        let mut report = locked(&self.shared.report);
        report.violation_count += 1;
        if report.violations.len() < MOST_KEPT {
            report.violations.push(Violation {
                table: place.table.name,
                scan: place.scan,
                round: place.round,
                what,
            });
        }
    }

    fn failed(&self, error: &postgres::Error, place: &Place) {
        let Some(db) = error.as_db_error() else {
            locked(&self.shared.report).lost += 1;
            return;
        };
        match cause(db.code(), db.message()) {
            Cause::Conflict => locked(&self.shared.report).conflicts += 1,
            Cause::Lost => locked(&self.shared.report).lost += 1,
            Cause::Failure => {
                let text = format!("{}: {}", db.code().code(), db.message());
                self.violation(What::Error(text), place);
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Cause {
    Conflict,
    Lost,
    Failure,
}

/// Why a check failed: replay came first, the server went away, or something is wrong.
fn cause(code: &SqlState, message: &str) -> Cause {
    let conflict = message.contains("conflict with recovery")
        || *code == SqlState::T_R_DEADLOCK_DETECTED
        || *code == SqlState::DATABASE_DROPPED;
    let lost = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
    ];
    if conflict {
        Cause::Conflict
    } else if lost.contains(code) {
        Cause::Lost
    } else {
        Cause::Failure
    }
}

fn replayed(transaction: &mut Transaction<'_>) -> Result<Option<Lsn>, postgres::Error> {
    transaction
        .query_one("SELECT pg_last_wal_replay_lsn()", &[])?
        .try_get(0)
}

/// Rows for which an index-only scan had to look at the table.
fn heap_fetches(plan: &[String]) -> Option<i64> {
    plan.iter()
        .find_map(|line| line.trim().strip_prefix("Heap Fetches: ")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_conflicts_and_crashes_are_forgiven() {
        let serialization = SqlState::T_R_SERIALIZATION_FAILURE;
        for (code, message, expected) in [
            (
                serialization.clone(),
                "canceling statement due to conflict with recovery",
                Cause::Conflict,
            ),
            (
                serialization.clone(),
                "terminating connection due to conflict with recovery",
                Cause::Conflict,
            ),
            (serialization, "could not serialize access", Cause::Failure),
            (
                SqlState::CRASH_SHUTDOWN,
                "terminating connection",
                Cause::Lost,
            ),
            (SqlState::CANNOT_CONNECT_NOW, "starting up", Cause::Lost),
            (
                SqlState::DATA_CORRUPTED,
                "could not read block 1",
                Cause::Failure,
            ),
            (
                SqlState::INTERNAL_ERROR,
                "attempted to delete",
                Cause::Failure,
            ),
        ] {
            assert_eq!(cause(&code, message), expected, "{message}");
        }
    }
}
