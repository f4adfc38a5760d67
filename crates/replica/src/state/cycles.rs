//! Cycles: what those that have ended have left, the one that runs, and requests for one.
//!
//! A row of `lockstep.cycle` is part of its cycle's own commit (`crates/apply/src/target_state.rs`), or says
//! that the cycle has failed: then nothing of it is on the target, and it is begun again under its
//! number. The cycle that runs is in columns of `lockstep.replica`, which apply's process writes every
//! second.

use std::time::Duration;

use lockstep_client::{ClientError, field};
use lockstep_wire::Lsn;

use super::{Applied, ReplicaState};
use crate::error::{ReplicaError, Result};

/// Where a replica is between its cycles, when its process last wrote that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CyclesNow {
    pub running: Option<RunningCycle>,
    /// Time until the next cycle is due by the frequency.
    pub next: Duration,
    /// Time by which the target is later than its frequency and a cycle as long as the last let expect.
    pub late: Duration,
}

/// A cycle that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunningCycle {
    pub number: u64,
    pub elapsed: Duration,
    /// None before a part of it is made.
    pub remaining: Option<Duration>,
    /// Bytes of the source's messages so far.
    pub sent_bytes: u64,
    /// Where it ends.
    pub lsn: Lsn,
}

/// A cycle that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Cycle {
    pub number: u64,
    /// `done` or `failed`.
    pub state: String,
    /// Beginning by the target's clock, as ISO 8601 in UTC.
    pub start_time: String,
    /// The beginning in milliseconds since 1970.
    pub start_ms: f64,
    pub end_time: String,
    pub elapsed_ms: u64,
    /// Bytes of the source's messages.
    pub sent_bytes: u64,
    /// Bytes of values sent to the target.
    pub write_bytes: u64,
    /// `sent_bytes` a second.
    pub bandwidth: u64,
    pub transactions: u64,
    /// Changed rows, as the source sent them.
    pub rows: u64,
    pub tables: u64,
    /// The target is what the source was here.
    pub lsn: Option<Lsn>,
    /// Times that it failed.
    pub failures: u64,
    /// Why it failed.
    pub error: Option<String>,
}

/// What has become of a request for a cycle.
#[derive(Debug, Clone, PartialEq)]
pub enum Forced {
    NotYet,
    Ended(Cycle),
}

/// Milliseconds of a time.
pub(super) fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

const COLUMNS: &str = "cycle, state, \
    to_char(start_time AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), \
    to_char(end_time AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), \
    elapsed_ms, sent_bytes, write_bytes, bandwidth, transactions, rows, tables, lsn, failures, error, \
    1000 * extract(epoch FROM start_time)";

fn cycle(row: &[Option<String>]) -> std::result::Result<Cycle, ClientError> {
    Ok(Cycle {
        number: field(row, 0)?,
        state: field(row, 1)?,
        start_time: field(row, 2)?,
        end_time: field(row, 3)?,
        elapsed_ms: field(row, 4)?,
        sent_bytes: field(row, 5)?,
        write_bytes: field(row, 6)?,
        bandwidth: field(row, 7)?,
        transactions: field(row, 8)?,
        rows: field(row, 9)?,
        tables: field(row, 10)?,
        lsn: field(row, 11)?,
        failures: field(row, 12)?,
        error: field(row, 13)?,
        start_ms: field(row, 14)?,
    })
}

/// What the columns of `lockstep.replica` from `at` on say of its cycles.
pub(super) fn now(
    row: &[Option<String>],
    at: usize,
) -> std::result::Result<Option<CyclesNow>, ClientError> {
    let ms = |place| Ok(field::<Option<u64>>(row, place)?.map(Duration::from_millis));
    let Some(next) = ms(at + 5)? else {
        return Ok(None);
    };
    let running = match field::<Option<u64>>(row, at)? {
        None => None,
        Some(number) => Some(RunningCycle {
            number,
            elapsed: ms(at + 1)?.unwrap_or_default(),
            remaining: ms(at + 2)?,
            sent_bytes: field(row, at + 3)?,
            lsn: field(row, at + 4)?,
        }),
    };
    let late = ms(at + 6)?.unwrap_or_default();
    Ok(Some(CyclesNow {
        running,
        next,
        late,
    }))
}

impl ReplicaState {
    /// The newest cycles, the newest first.
    pub fn cycles(&mut self, name: &str, limit: u32) -> Result<Vec<Cycle>> {
        let sql = format!(
            "SELECT {COLUMNS} FROM lockstep.cycle WHERE replica = $1 ORDER BY cycle DESC LIMIT $2"
        );
        let rows = self.connection.query_with(&sql, &[&name, &limit]);
        let rows = rows.map_err(ReplicaError::Target)?;
        let cycles = rows.iter().map(|row| cycle(row));
        cycles
            .collect::<std::result::Result<_, _>>()
            .map_err(ReplicaError::Target)
    }

    /// Sets the frequency; zero: changes are applied as they come. False if there is no such replica.
    pub fn set_frequency(&mut self, name: &str, frequency: Duration) -> Result<bool> {
        self.check_not_promoted(name)?;
        let sql = "UPDATE lockstep.replica SET frequency_ms = $2 WHERE name = $1 RETURNING name";
        let rows = (self.connection).query_with(sql, &[&name, &whole_ms(frequency)]);
        Ok(!rows.map_err(ReplicaError::Target)?.is_empty())
    }

    /// Asks for a cycle. Returns the number of the request; None if there is no such replica.
    pub fn force(&mut self, name: &str) -> Result<Option<u64>> {
        let sql =
            "UPDATE lockstep.replica SET forces = forces + 1 WHERE name = $1 RETURNING forces";
        let rows = self.connection.query_with(sql, &[&name]);
        let rows = rows.map_err(ReplicaError::Target)?;
        let number = rows.first().map(|row| field(row, 0)).transpose();
        number.map_err(ReplicaError::Target)
    }

    /// The first cycle that began after a request, once it has ended.
    pub fn forced(&mut self, name: &str, request: u64) -> Result<Forced> {
        let sql = format!(
            "SELECT {COLUMNS} FROM lockstep.cycle WHERE replica = $1 AND forces >= $2 \
             ORDER BY cycle LIMIT 1"
        );
        let rows = self.connection.query_with(&sql, &[&name, &request]);
        let rows = rows.map_err(ReplicaError::Target)?;
        let ended = rows.first().map(|row| cycle(row)).transpose();
        let ended = ended.map_err(ReplicaError::Target)?;
        Ok(ended.map_or(Forced::NotYet, Forced::Ended))
    }
}

impl Applied {
    /// The cycle that runs, unless it has ended since that was written: `newest` is the newest that has.
    pub fn running_cycle(&self, newest: Option<&Cycle>) -> Option<RunningCycle> {
        let has_ended = |running: &RunningCycle| {
            newest.is_some_and(|newest| match newest.state.as_str() {
                "done" => newest.number >= running.number,
                _ => newest.number > running.number,
            })
        };
        let running = self.cycles.and_then(|cycles| cycles.running);
        running.filter(|running| !has_ended(running))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_that_has_ended_does_not_run_although_its_process_has_said_so_last() {
        let running = RunningCycle {
            number: 5,
            elapsed: Duration::ZERO,
            remaining: None,
            sent_bytes: 0,
            lsn: Lsn::from(7),
        };
        let applied = Applied {
            cycles: Some(CyclesNow {
                running: Some(running),
                next: Duration::ZERO,
                late: Duration::ZERO,
            }),
            ..Applied::default()
        };
        let newest = |number: u64, state: &str| Cycle {
            number,
            state: state.to_owned(),
            start_time: String::new(),
            start_ms: 0.0,
            end_time: String::new(),
            elapsed_ms: 0,
            sent_bytes: 0,
            write_bytes: 0,
            bandwidth: 0,
            transactions: 0,
            rows: 0,
            tables: 0,
            lsn: None,
            failures: 0,
            error: None,
        };
        for (number, state, runs) in [
            (4, "done", true),
            (5, "done", false),
            (6, "done", false),
            (5, "failed", true),
            (6, "failed", false),
        ] {
            let found = applied.running_cycle(Some(&newest(number, state)));
            assert_eq!(found.is_some(), runs, "{number} {state}");
        }
        assert_eq!(applied.running_cycle(None), Some(running));
    }
}
