//! What apply reads and writes of a replica's state in the target (schema `lockstep`).
//!
//! The source's position in each transaction of apply is a row of `lockstep.apply_position`.
//!
//! The replication origin has it too, but from 16 on it is moved even by a transaction that fails
//! after its position was set up. A row is there only if its transaction has committed.
//!
//! Each commit adds a row, and passed ones are deleted now and then. One row that is updated would
//! be slow to find while an old snapshot keeps its dead versions.

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_client::quote::sql_literal;
use lockstep_client::{ClientError, Connection, field};
use lockstep_wire::{Lsn, Timeline};

use crate::batch::Closing;
use crate::copies::{Copied, Copies};
use crate::cycle::{Past, Running};
use crate::error::Stop;
use crate::merge::Start;
use crate::names::TableName;

/// The statements that keep a position, for the transaction whose changes end there. `tidy`: they
/// delete what was kept before.
pub fn keep_position_sql(replica: &str, end: Lsn, tidy: bool) -> Result<String, ClientError> {
    let replica = sql_literal("replica", replica)?;
    // The same position may come again, without changes.
    let keep = format!(
        "INSERT INTO lockstep.apply_position (replica, lsn) VALUES ({replica}, '{end}') \
         ON CONFLICT DO NOTHING"
    );
    Ok(match tidy {
        true => format!(
            "{keep}; DELETE FROM lockstep.apply_position \
             WHERE replica OPERATOR(pg_catalog.=) {replica} AND lsn OPERATOR(pg_catalog.<) '{end}'"
        ),
        false => keep,
    })
}

/// Keeps a position like [`keep_position_sql`], and ends the changes of a transaction with it in its
/// commit record: `$1` is the replica, `$2` the position, `$3` when the source has committed, in
/// microseconds since 2000. `$4` is `local` if the commit is to be on disk when it is confirmed,
/// otherwise `off`. The number of rows is 0 if the position was there: then the transaction may have
/// written nothing, and what has not is not flushed.
pub const END_AT_POSITION: &str = "INSERT INTO lockstep.apply_position (replica, lsn) \
    SELECT $1, $2::pg_catalog.pg_lsn FROM pg_catalog.pg_current_xact_id(), \
      pg_catalog.set_config('synchronous_commit', $4, true), \
      pg_catalog.pg_replication_origin_xact_setup($2::pg_catalog.pg_lsn, \
        '2000-01-01 00:00:00+00'::pg_catalog.timestamptz \
          + $3::pg_catalog.int8 * '1 microsecond'::pg_catalog.interval) \
    ON CONFLICT DO NOTHING";

/// The newest position that is kept. None before apply has ever run, and of a state that an older version
/// made.
pub fn kept_position(
    connection: &mut Connection,
    replica: &str,
) -> Result<Option<Lsn>, ClientError> {
    let sql = "SELECT pg_catalog.max(lsn) FROM lockstep.apply_position \
               WHERE replica OPERATOR(pg_catalog.=) $1";
    let rows = connection.query_with(sql, &[&replica])?;
    field(rows.first().map_or(&[][..], Vec::as_slice), 0)
}

/// Counts rows of a table that apply did not find; run it in the transaction that lacked them. A
/// partition that was made after the copy is listed by that. `$1` is the replica, `$2` and `$3` the
/// table's schema and name, `$4` how many rows.
pub const ADD_MISSING: &str = "INSERT INTO lockstep.table_copy AS c \
      (replica, schema_name, table_name, state, start_lsn, missing_rows) \
    VALUES ($1, $2, $3, 'copied', '0/0', $4) \
    ON CONFLICT (replica, schema_name, table_name) \
    DO UPDATE SET missing_rows = c.missing_rows + excluded.missing_rows";

/// Cycles whose figures are kept for each replica: a week of one every minute.
const KEPT_CYCLES: u64 = 10_000;

/// Adds to a cycle's figures, for the transaction whose changes they are of: `$1` is the replica, `$2` the
/// cycle, `$3` the milliseconds since its beginning, `$4` and `$5` bytes received and sent to the target,
/// `$6` to `$8` transactions, rows and tables, `$9` the position if the cycle ends with it, `$10` requests
/// that it answers. A cycle that has failed before has a row. How many tables it has changed in all is not
/// known then: no less than the most of one try.
const ADD_TO_CYCLE: &str = "INSERT INTO lockstep.cycle AS c (replica, cycle, state, start_time, end_time, \
        elapsed_ms, sent_bytes, write_bytes, bandwidth, transactions, rows, tables, lsn, forces) \
    SELECT $1, $2::pg_catalog.int8, CASE WHEN $9::pg_catalog.pg_lsn IS NULL THEN 'failed' ELSE 'done' END, \
        pg_catalog.clock_timestamp() - $3::pg_catalog.int8 * '1 millisecond'::pg_catalog.interval, \
        pg_catalog.clock_timestamp(), $3::pg_catalog.int8, $4::pg_catalog.int8, $5::pg_catalog.int8, \
        $4::pg_catalog.int8 * 1000 / greatest($3::pg_catalog.int8, 1), $6::pg_catalog.int8, \
        $7::pg_catalog.int8, $8::pg_catalog.int8, $9::pg_catalog.pg_lsn, $10::pg_catalog.int8 \
    ON CONFLICT (replica, cycle) DO UPDATE SET state = excluded.state, \
        start_time = excluded.start_time, end_time = excluded.end_time, \
        elapsed_ms = excluded.elapsed_ms, \
        bandwidth = (c.sent_bytes OPERATOR(pg_catalog.+) excluded.sent_bytes) OPERATOR(pg_catalog.*) 1000 \
            OPERATOR(pg_catalog./) greatest(excluded.elapsed_ms, 1), \
        sent_bytes = c.sent_bytes OPERATOR(pg_catalog.+) excluded.sent_bytes, \
        write_bytes = c.write_bytes OPERATOR(pg_catalog.+) excluded.write_bytes, \
        transactions = c.transactions OPERATOR(pg_catalog.+) excluded.transactions, \
        rows = c.rows OPERATOR(pg_catalog.+) excluded.rows, \
        tables = greatest(c.tables, excluded.tables), lsn = excluded.lsn, forces = excluded.forces, \
        error = CASE WHEN excluded.lsn IS NULL THEN c.error END";

/// Leaves that a cycle has failed: `$1` to `$3` as there, `$4` requests, `$5` why. Its figures stay those of
/// what is committed of it.
const FAIL_CYCLE: &str = "INSERT INTO lockstep.cycle AS c (replica, cycle, state, start_time, end_time, \
        elapsed_ms, sent_bytes, forces, failures, error) \
    SELECT $1, $2::pg_catalog.int8, 'failed', \
        pg_catalog.clock_timestamp() - $3::pg_catalog.int8 * '1 millisecond'::pg_catalog.interval, \
        pg_catalog.clock_timestamp(), $3::pg_catalog.int8, 0, $4::pg_catalog.int8, 1, $5 \
    ON CONFLICT (replica, cycle) DO UPDATE SET start_time = excluded.start_time, \
        end_time = excluded.end_time, elapsed_ms = excluded.elapsed_ms, \
        bandwidth = c.sent_bytes OPERATOR(pg_catalog.*) 1000 \
            OPERATOR(pg_catalog./) greatest(excluded.elapsed_ms, 1), \
        forces = excluded.forces, failures = c.failures + 1, \
        error = excluded.error WHERE c.state = 'failed'";

fn add(
    connection: &mut Connection,
    replica: &str,
    cycle: &Closing,
    end: Option<Lsn>,
    write_bytes: u64,
) -> Result<(), ClientError> {
    let elapsed_ms = whole_ms(cycle.began.elapsed());
    let added = connection.query_with(
        ADD_TO_CYCLE,
        &[
            &replica,
            &cycle.number,
            &elapsed_ms,
            &cycle.sent_bytes,
            &write_bytes,
            &cycle.counts.transactions,
            &cycle.counts.rows(),
            &cycle.tables,
            &end,
            &cycle.forces,
        ],
    );
    added.map(drop)
}

/// Adds to the figures of a cycle that has failed, for a transaction of it that has a commit of its own.
pub fn add_to_cycle(
    connection: &mut Connection,
    replica: &str,
    share: &Closing,
    write_bytes: u64,
) -> Result<(), ClientError> {
    add(connection, replica, share, None, write_bytes)
}

/// Leaves the figures of a cycle that ends, and forgets cycles that are long past. `end` is the position of
/// the commit, `write_bytes` what the transaction has sent to the target.
pub fn end_cycle(
    connection: &mut Connection,
    replica: &str,
    cycle: &Closing,
    end: Lsn,
    write_bytes: u64,
) -> Result<(), ClientError> {
    add(connection, replica, cycle, Some(end), write_bytes)?;
    let forget = "DELETE FROM lockstep.cycle WHERE replica OPERATOR(pg_catalog.=) $1 \
                  AND cycle OPERATOR(pg_catalog.<=) $2::pg_catalog.int8";
    match cycle.number.checked_sub(KEPT_CYCLES) {
        Some(past) => connection.query_with(forget, &[&replica, &past]).map(drop),
        None => Ok(()),
    }
}

/// Keeps that a cycle has failed. It is begun again, under its number.
pub fn fail_cycle(
    connection: &mut Connection,
    replica: &str,
    failed: &Running,
    words: &str,
) -> Result<(), ClientError> {
    let elapsed_ms = whole_ms(failed.began.elapsed());
    let kept = connection.query_with(
        FAIL_CYCLE,
        &[
            &replica,
            &failed.number,
            &elapsed_ms,
            &failed.forces,
            &words,
        ],
    );
    kept.map(drop)
}

/// Keeps where a replica stands: at the command that ends there, until it is made, or at a table.
pub fn stop_at(connection: &mut Connection, replica: &str, stop: &Stop) -> Result<(), ClientError> {
    let kept = match stop {
        Stop::Command(lsn) => {
            let sql = "UPDATE lockstep.ddl SET refused = NULL, refused_table = NULL, \
                         stopped = array_append(array_remove(stopped, $2::pg_lsn), $2::pg_lsn) \
                       WHERE replica = $1";
            connection.query_with(sql, &[&replica, lsn])
        }
        Stop::Table { source, name, at } => {
            let sql = "UPDATE lockstep.ddl SET refused = $2::oid, refused_table = $3, refused_at = $4::pg_lsn \
                       WHERE replica = $1";
            let name = format!("{}.{}", name.schema, name.table);
            connection.query_with(sql, &[&replica, source, &name, at])
        }
    };
    kept.map(drop)
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Where each of a replica's tables starts, by its name, and which table of the target it is.
pub type Listed = (BTreeMap<TableName, Start>, Copies);

/// The replica's tables, as the session sees them.
pub fn listed(connection: &mut Connection, replica: &str) -> Result<Listed, ClientError> {
    let sql = "SELECT schema_name, table_name, CASE WHEN state = 'copied' THEN start_lsn END, source_oid, \
                   target_oid \
               FROM lockstep.table_copy WHERE replica OPERATOR(pg_catalog.=) $1";
    let (mut starts, mut copies) = (BTreeMap::new(), Vec::new());
    for row in connection.query_with(sql, &[&replica])? {
        let name = TableName {
            schema: field(&row, 0)?,
            table: field(&row, 1)?,
        };
        if let Some(source) = field::<Option<u32>>(&row, 3)? {
            let target = field(&row, 4)?;
            let name = name.clone();
            copies.push((source, Copied { name, target }));
        }
        let start = field::<Option<Lsn>>(&row, 2)?.map_or(Start::Never, Start::At);
        starts.insert(name, start);
    }
    Ok((starts, copies.into_iter().collect()))
}

/// The newest cycle that the target has committed.
pub fn past_cycles(connection: &mut Connection, replica: &str) -> Result<Past, ClientError> {
    let sql = "SELECT cycle, pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - start_time), \
                   forces, elapsed_ms \
               FROM lockstep.cycle \
               WHERE replica OPERATOR(pg_catalog.=) $1 AND state OPERATOR(pg_catalog.=) 'done' \
               ORDER BY cycle DESC LIMIT 1";
    let rows = connection.query_with(sql, &[&replica])?;
    let read = |row: &Vec<Option<String>>| {
        let since: f64 = field(row, 1)?;
        Ok(Past {
            number: field(row, 0)?,
            // The target's clock may have been set back since.
            since: Some(Duration::try_from_secs_f64(since).unwrap_or_default()),
            forces: field(row, 2)?,
            took: Duration::from_millis(field(row, 3)?),
        })
    };
    rows.first().map_or_else(|| Ok(Past::default()), read)
}

/// What a replica's state says of its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stand {
    pub system_id: String,
    pub start: Lsn,
    /// The source's timeline when apply last connected.
    pub timeline: Option<Timeline>,
}

pub fn stand(connection: &mut Connection, replica: &str) -> Result<Option<Stand>, ClientError> {
    let sql = "SELECT system_id, coalesce(start_lsn, '0/0'), coalesce(timeline, 0) \
               FROM lockstep.replica WHERE name = $1";
    let rows = connection.query_with(sql, &[&replica])?;
    let read = |row: &Vec<Option<String>>| {
        Ok(Stand {
            system_id: field(row, 0)?,
            start: field(row, 1)?,
            timeline: Timeline::new(field(row, 2)?),
        })
    };
    rows.first().map(read).transpose()
}

pub fn set_timeline(
    connection: &mut Connection,
    replica: &str,
    timeline: Timeline,
) -> Result<(), ClientError> {
    let sql = "UPDATE lockstep.replica SET timeline = $2 WHERE name = $1";
    let kept = connection.query_with(sql, &[&replica, &timeline.get()]);
    kept.map(drop)
}
