//! A session that makes checks in one snapshot after the other until it is told to end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lockstep_client::{ClientError, Connection, field};
use lockstep_lab::address::ServerAddress;
use lockstep_wire::Lsn;

use crate::invariants::check::{Scan, Seen, What, judge};
use crate::invariants::tables::{TABLES, Table};
use crate::invariants::writers::DEADLOCK;
use crate::invariants::{MOST_KEPT, Report, Violation, locked};

/// How long to wait before connecting again.
const AGAIN: Duration = Duration::from_millis(50);

/// SQLSTATEs by which a failed check is classified.
const ADMIN_SHUTDOWN: &str = "57P01";
const CRASH_SHUTDOWN: &str = "57P02";
const CANNOT_CONNECT_NOW: &str = "57P03";
const DATABASE_DROPPED: &str = "57P04";

#[derive(Debug, Default)]
pub(super) struct SharedReport {
    pub(super) report: Mutex<Report>,
    pub(super) stop: AtomicBool,
}

pub(super) struct Reader {
    config: ServerAddress,
    client: Option<Connection>,
    shared: Arc<SharedReport>,
    rounds: u32,
}

/// The check that a snapshot is at.
struct Place {
    table: &'static Table,
    scan: Scan,
    round: u32,
}

impl Reader {
    pub(super) fn new(
        config: ServerAddress,
        client: Connection,
        shared: Arc<SharedReport>,
        rounds: u32,
    ) -> Self {
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
                // If this fails, the connection is broken: the next line checks that.
                let _ = client.execute("ROLLBACK");
            }
            if !client.is_closed() {
                self.client = Some(client);
            }
        }
    }

    fn connect(&self) -> Option<Connection> {
        self.config.connect().ok()
    }

    fn snapshot(&self, client: &mut Connection, place: &mut Place) -> Result<(), ClientError> {
        client.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")?;
        let before = replayed(client)?;
        let mut first: [Option<Seen>; TABLES.len()] = [None; TABLES.len()];
        for round in 1..=self.rounds {
            place.round = round;
            for (table, first) in TABLES.iter().zip(&mut first) {
                for scan in Scan::ALL {
                    (place.table, place.scan) = (table, scan);
                    let Some(seen) = self.read(client, table, scan)? else {
                        continue;
                    };
                    self.judge(seen, *first, place);
                    first.get_or_insert(seen);
                }
            }
            if self.shared.stop.load(Ordering::SeqCst) && round < self.rounds {
                return client.execute("ROLLBACK");
            }
        }
        let after = replayed(client)?;
        client.execute("COMMIT")?;
        let mut report = locked(&self.shared.report);
        report.snapshots += 1;
        if self.rounds > 1 {
            report.long_snapshots += 1;
            report.long_over_replay += u64::from(after > before);
        }
        Ok(())
    }

    /// Reads the table; None if the plan is not the intended one, so that the check is void.
    fn read(
        &self,
        client: &mut Connection,
        table: &Table,
        scan: Scan,
    ) -> Result<Option<Seen>, ClientError> {
        client.execute(&scan.settings())?;
        let query = scan.query(table);
        // Only ANALYZE shows how many rows were read from the table (Heap Fetches).
        let how = match scan {
            Scan::IndexOnly => "ANALYZE, COSTS off, TIMING off, SUMMARY off",
            _ => "COSTS off",
        };
        let plan: Vec<String> = client
            .query(&format!("EXPLAIN ({how}) {query}"))?
            .iter()
            .map(|row| field(row, 0))
            .collect::<Result<_, _>>()?;
        if !scan.is_in(&plan, table) {
            locked(&self.shared.report).void += 1;
            return Ok(None);
        }
        let row = client.query_one(&query)?;
        let seen = Seen {
            count: field(&row, 0)?,
            keys: field(&row, 1)?,
            values: field(&row, 2)?,
            wrong: field(&row, 3)?,
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

    fn failed(&self, error: &ClientError, place: &Place) {
        let Some(report) = error.report() else {
            locked(&self.shared.report).lost += 1;
            return;
        };
        match cause(&report.sqlstate, &report.message) {
            Cause::Conflict => locked(&self.shared.report).conflicts += 1,
            Cause::Lost => locked(&self.shared.report).lost += 1,
            Cause::Failure => {
                let text = format!("{}: {}", report.sqlstate, report.message);
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

/// Why a check failed: a conflict with replay, a lost server, or a real failure.
fn cause(sqlstate: &str, message: &str) -> Cause {
    let conflict = message.contains("conflict with recovery")
        || [DEADLOCK, DATABASE_DROPPED].contains(&sqlstate);
    if conflict {
        Cause::Conflict
    } else if [ADMIN_SHUTDOWN, CRASH_SHUTDOWN, CANNOT_CONNECT_NOW].contains(&sqlstate) {
        Cause::Lost
    } else {
        Cause::Failure
    }
}

fn replayed(client: &mut Connection) -> Result<Option<Lsn>, ClientError> {
    field(&client.query_one("SELECT pg_last_wal_replay_lsn()")?, 0)
}

/// Rows for which an index-only scan had to read the table.
fn heap_fetches(plan: &[String]) -> Option<i64> {
    plan.iter()
        .find_map(|line| line.trim().strip_prefix("Heap Fetches: ")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_conflicts_and_crashes_are_forgiven() {
        let serialization = "40001";
        for (code, message, expected) in [
            (
                serialization,
                "canceling statement due to conflict with recovery",
                Cause::Conflict,
            ),
            (
                serialization,
                "terminating connection due to conflict with recovery",
                Cause::Conflict,
            ),
            (serialization, "could not serialize access", Cause::Failure),
            (CRASH_SHUTDOWN, "terminating connection", Cause::Lost),
            (CANNOT_CONNECT_NOW, "starting up", Cause::Lost),
            ("XX001", "could not read block 1", Cause::Failure),
            ("XX000", "attempted to delete", Cause::Failure),
        ] {
            assert_eq!(cause(code, message), expected, "{message}");
        }
    }
}
