//! The writes whose WAL is recorded: kinds that stress replay in different ways.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum, value_parser};
use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{DATABASE, SUPERUSER, Server, Settings, Stop};
use lockstep_player::Recording;
use lockstep_wire::Lsn;

use crate::replay::horizon::Horizon;
use crate::replay::shelf::Facts;
use crate::replay::{production, sysbench};
use crate::tpcc::{self, LoadOptions, RunOptions, Tools};
use crate::{BenchError, Result};

/// Rows that one COPY of [`Work::Bulk`] adds, in one transaction.
const BULK_ROWS: u32 = 100_000;

/// Clients that write unless told otherwise.
pub const WRITERS: u32 = 32;

/// Sessions that load TPC-C's tables.
const TPCC_JOBS: u32 = 2;

/// Writes go on in pieces of this length until there is enough WAL.
const CHUNK: Duration = Duration::from_secs(4);

/// Transactions that one call of a procedure makes, so that the client's part of each, which
/// leaves no WAL, is small.
const TRANSACTIONS_A_CALL: u32 = 50;

/// The statements of pgbench's TPC-B-like transaction.
const TPCB: &str = "a := 1 + (random() * (100000 * size - 1))::int; \
    b := 1 + (random() * (size - 1))::int; \
    t := 1 + (random() * (10 * size - 1))::int; \
    d := (random() * 10000)::int - 5000; \
    UPDATE pgbench_accounts SET abalance = abalance + d WHERE aid = a; \
    PERFORM abalance FROM pgbench_accounts WHERE aid = a; \
    UPDATE pgbench_tellers SET tbalance = tbalance + d WHERE tid = t; \
    UPDATE pgbench_branches SET bbalance = bbalance + d WHERE bid = b; \
    INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (t, b, a, d, now());";

/// The statements of `pgbench -N`.
const SIMPLE_UPDATE: &str = "a := 1 + (random() * (100000 * size - 1))::int; \
    b := 1 + (random() * (size - 1))::int; \
    t := 1 + (random() * (10 * size - 1))::int; \
    d := (random() * 10000)::int - 5000; \
    UPDATE pgbench_accounts SET abalance = abalance + d WHERE aid = a; \
    PERFORM abalance FROM pgbench_accounts WHERE aid = a; \
    INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (t, b, a, d, now());";

/// The key is drawn first: in a condition random() would be called for every row.
const UPDATE: &str = "t := 1 + (random() * (size - 1))::int; \
    UPDATE replay_update SET a = (random() * 1e9)::int, b = (random() * 1e9)::int, \
        c = (random() * 1e9)::int WHERE id = t;";

const INSERT: &str = "INSERT INTO replay_insert (other, filler) \
    VALUES ((random() * 1e9)::int, repeat('x', 80));";

const UUID_INSERT: &str = "INSERT INTO replay_uuid (filler) VALUES (repeat('x', 80));";

/// A procedure that commits `statements` one transaction after the other. `size` is the number
/// that the kind's data was made with.
fn procedure(statements: &str) -> String {
    format!(
        "CREATE PROCEDURE replay_writes(size int, transactions int) LANGUAGE plpgsql AS $$ \
         DECLARE a int; b int; t int; d int; \
         BEGIN FOR i IN 1 .. transactions LOOP {statements} COMMIT; END LOOP; END $$"
    )
}

/// A kind of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    // Small updates that mostly stay on their page.
    /// pgbench's TPC-B-like transaction.
    #[value(name = "tpcb")]
    TpcB,
    /// The TPC-C mix.
    #[value(name = "tpcc")]
    TpcC,
    // Every index gets an entry each time.
    /// Updates of three indexed columns.
    Update,
    // One key ascends, the other is random.
    /// Single-row inserts, two indexes.
    Insert,
    // Every page of the index is as likely to be split as any other.
    /// Single-row inserts with gen_random_uuid() as the primary key.
    UuidInsert,
    // The table has a primary key.
    /// COPY of 100,000 rows a transaction.
    Bulk,
    // Without the few rows that all transactions of tpcb change.
    /// pgbench's simple update (pgbench -N).
    SimpleUpdate,
    // Less WAL than of tpcb, so that nearly each change of a page is its first.
    /// pgbench's TPC-B-like transaction, only right after a checkpoint.
    #[value(name = "tpcb-checkpoint")]
    TpcBCheckpoint,
    // With checksums, autovacuum and checkpoints while it is recorded.
    /// TPC-C with foreign keys and a partitioned log that has GIN and GiST indexes.
    Production,
    /// Production with wal_compression = lz4.
    #[value(name = "production-lz4")]
    ProductionLz4,
    // What another project's load generator writes.
    /// sysbench's oltp_write_only.
    Sysbench,
}

/// How much data there is, and who writes.
#[derive(Debug, Clone, Copy, Args)]
pub struct WorkSize {
    // 100,000 accounts each.
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
    /// TPC-C warehouses
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(1..=1000))]
    pub warehouses: u32,
    /// Rows of the tables of update, insert, uuid-insert, bulk and sysbench before the writes
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = value_parser!(u32).range(1..=1_000_000_000))]
    pub rows: u32,
    /// Clients that write [default: 32, of production 16]
    #[arg(id = "writers", long = "writers", value_name = "N", value_parser = value_parser!(u32).range(1..=900))]
    pub clients: Option<u32>,
}

impl Work {
    /// All, in the order of their case names.
    pub const ALL: [Self; 11] = [
        Self::TpcB,
        Self::TpcC,
        Self::Update,
        Self::Insert,
        Self::UuidInsert,
        Self::Bulk,
        Self::SimpleUpdate,
        Self::TpcBCheckpoint,
        Self::Production,
        Self::ProductionLz4,
        Self::Sysbench,
    ];

    /// The name in cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::TpcB => "tpcb",
            Self::TpcC => "tpcc",
            Self::Update => "update",
            Self::Insert => "insert",
            Self::UuidInsert => "uuid-insert",
            Self::Bulk => "bulk",
            Self::SimpleUpdate => "simple-update",
            Self::TpcBCheckpoint => "tpcb-checkpoint",
            Self::Production => "production",
            Self::ProductionLz4 => "production-lz4",
            Self::Sysbench => "sysbench",
        }
    }

    /// False if a program that it needs is not installed.
    pub fn is_there(self) -> bool {
        self != Self::Sysbench || sysbench::is_there()
    }

    /// Megabytes of WAL that a stock standby replays in some ten seconds on one core.
    pub fn usual_megabytes(self) -> u64 {
        match self {
            Self::TpcB => 1_650,
            Self::TpcC | Self::UuidInsert => 1_300,
            Self::Update => 800,
            Self::Insert => 1_250,
            Self::Bulk => 2_400,
            Self::SimpleUpdate => 1_500,
            // With more, changes of pages that have changed before become more and more.
            Self::TpcBCheckpoint => 750,
            Self::Production => 1_500,
            Self::ProductionLz4 => 1_000,
            Self::Sysbench => 1_000,
        }
    }

    /// Clients that write.
    pub fn writers(self, size: WorkSize) -> u32 {
        size.clients.unwrap_or(match self {
            Self::Production | Self::ProductionLz4 => production::WRITERS,
            _ => WRITERS,
        })
    }

    /// The one of the sizes that its data depends on.
    pub(super) fn data_size(self, size: WorkSize) -> u32 {
        match self {
            Self::TpcB | Self::TpcBCheckpoint | Self::SimpleUpdate => size.scale,
            Self::TpcC | Self::Production | Self::ProductionLz4 => size.warehouses,
            Self::Update | Self::Insert | Self::UuidInsert | Self::Bulk | Self::Sysbench => {
                size.rows
            }
        }
    }

    /// What its procedure does in each transaction, if it is written by a procedure.
    fn statements(self) -> Option<&'static str> {
        match self {
            Self::TpcB | Self::TpcBCheckpoint => Some(TPCB),
            Self::SimpleUpdate => Some(SIMPLE_UPDATE),
            Self::Update => Some(UPDATE),
            Self::Insert => Some(INSERT),
            Self::UuidInsert => Some(UUID_INSERT),
            Self::TpcC | Self::Bulk => None,
            Self::Production | Self::ProductionLz4 | Self::Sysbench => None,
        }
    }

    /// Loads the data that the writes start from.
    pub fn prepare(self, lab: &Lab, primary: &Server, size: WorkSize) -> Result<()> {
        if let Some(statements) = self.statements() {
            primary.execute(&procedure(statements))?;
        }
        match self {
            Self::TpcB | Self::TpcBCheckpoint | Self::SimpleUpdate => {
                Ok(lab.load_data(primary, size.scale)?)
            }
            Self::TpcC => load_tpcc(lab, primary, size.warehouses),
            Self::Production | Self::ProductionLz4 => {
                load_tpcc(lab, primary, size.warehouses)?;
                Ok(primary.execute(&production::additions())?)
            }
            Self::Sysbench => sysbench::prepare(lab, primary, size.rows),
            Self::Update => Ok(primary.execute(&format!(
                "CREATE TABLE replay_update (id int, a int, b int, c int, filler text); \
                 INSERT INTO replay_update SELECT g, {r}, {r}, {r}, repeat('x', 80) \
                     FROM generate_series(1, {rows}) g; \
                 ALTER TABLE replay_update ADD PRIMARY KEY (id); \
                 CREATE INDEX ON replay_update (a); CREATE INDEX ON replay_update (b); \
                 CREATE INDEX ON replay_update (c)",
                r = "(random() * 1e9)::int",
                rows = size.rows
            ))?),
            Self::Insert => Ok(primary.execute(&format!(
                "CREATE TABLE replay_insert (id bigint GENERATED ALWAYS AS IDENTITY, \
                     other int, filler text); \
                 INSERT INTO replay_insert (other, filler) \
                     SELECT (random() * 1e9)::int, repeat('x', 80) \
                     FROM generate_series(1, {}); \
                 ALTER TABLE replay_insert ADD PRIMARY KEY (id); \
                 CREATE INDEX ON replay_insert (other)",
                size.rows
            ))?),
            Self::UuidInsert => Ok(primary.execute(&format!(
                "CREATE TABLE replay_uuid (id uuid DEFAULT gen_random_uuid(), filler text); \
                 INSERT INTO replay_uuid (filler) \
                     SELECT repeat('x', 80) FROM generate_series(1, {}); \
                 ALTER TABLE replay_uuid ADD PRIMARY KEY (id)",
                size.rows
            ))?),
            Self::Bulk => self.prepare_bulk(lab, primary, size),
        }
    }

    fn prepare_bulk(self, lab: &Lab, primary: &Server, size: WorkSize) -> Result<()> {
        Ok(primary.execute(&format!(
            "CREATE TABLE replay_bulk (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, \
                 a int, b timestamptz, filler text); \
             INSERT INTO replay_bulk (a, b, filler) \
                 SELECT g, now(), repeat('x', 80) FROM generate_series(1, {}) g; \
             COPY (SELECT a, b, filler FROM replay_bulk LIMIT {BULK_ROWS}) TO '{}' (FORMAT binary)",
            size.rows.max(BULK_ROWS),
            bulk_file(lab).display()
        ))?)
    }

    /// Writes for about `length` with fresh connections, and returns when all is committed.
    pub fn run(self, lab: &Lab, primary: &Server, size: WorkSize, length: Duration) -> Result<()> {
        let (clients, seconds) = (self.writers(size), seconds(length));
        match self {
            Self::TpcC | Self::Production | Self::ProductionLz4 => {
                return run_tpcc(lab, primary, clients, seconds);
            }
            Self::Bulk => return run_bulk(lab, primary, length),
            Self::Sysbench => return sysbench::run(lab, primary, clients, size.rows, seconds),
            Self::TpcB
            | Self::TpcBCheckpoint
            | Self::SimpleUpdate
            | Self::Update
            | Self::Insert
            | Self::UuidInsert => {}
        }
        // A procedure that is called by a prepared statement may not commit.
        let call = format!(
            "CALL replay_writes({}, {TRANSACTIONS_A_CALL});\n",
            self.data_size(size)
        );
        let mut pgbench = lab.pgbench(primary, SUPERUSER);
        pgbench.args(["--no-vacuum", "--jobs", "1"]);
        pgbench.args(["--client", &clients.to_string()]);
        pgbench.args(["--time", &seconds.to_string()]);
        let name = format!("{}.sql", self.name());
        pgbench.arg("--file").arg(lab.write_file(&name, &call)?);
        Ok(lab.launcher().run(pgbench)?)
    }
}

/// Whole seconds, at least one.
fn seconds(length: Duration) -> u32 {
    u32::try_from(length.as_secs()).unwrap_or(u32::MAX).max(1)
}

fn load_tpcc(lab: &Lab, primary: &Server, warehouses: u32) -> Result<()> {
    let tools = Tools::of_lab(lab, Side::Both);
    let options = LoadOptions {
        warehouses,
        jobs: TPCC_JOBS,
        replace: false,
    };
    tpcc::load(&tools, &primary.conninfo(SUPERUSER), &options, &|_, _| {})
}

fn run_tpcc(lab: &Lab, primary: &Server, clients: u32, seconds: u32) -> Result<()> {
    let tools = Tools::of_lab(lab, Side::Both);
    let options = RunOptions {
        clients,
        seconds,
        per_minute: None,
    };
    tpcc::run(&tools, &primary.conninfo(SUPERUSER), &options, |_| {}).map(drop)
}

/// The rows that each COPY adds, written by the server itself.
fn bulk_file(lab: &Lab) -> PathBuf {
    lab.folder().join("bulk.rows")
}

fn run_bulk(lab: &Lab, primary: &Server, length: Duration) -> Result<()> {
    let copy = format!(
        "COPY replay_bulk (a, b, filler) FROM '{}' (FORMAT binary)",
        bulk_file(lab).display()
    );
    let started = Instant::now();
    while started.elapsed() < length {
        primary.execute(&copy)?;
    }
    Ok(())
}

/// Settings of a primary whose WAL is recorded: the WAL is that of a durable primary, but nothing
/// waits for the disk.
pub fn recording_settings(clients: u32) -> Settings {
    [
        ("shared_buffers", "1GB".to_owned()),
        ("max_connections", (clients + 40).to_string()),
        ("fsync", "off".to_owned()),
        ("synchronous_commit", "off".to_owned()),
        ("full_page_writes", "on".to_owned()),
        ("max_wal_size", "64GB".to_owned()),
        ("checkpoint_timeout", "1h".to_owned()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// A recording of one kind of writes.
#[derive(Debug)]
pub struct Recorded {
    /// The base backup and the WAL.
    pub recording: Recording,
    /// Size of the data at the end, bytes.
    pub data_bytes: u64,
    /// How many WAL records it has.
    pub records: u64,
    /// Where [`Amount::lead_in`] ended.
    pub lead_in: Option<Lsn>,
}

impl Recorded {
    /// A recording that was kept.
    pub fn of(recording: Recording, facts: Facts) -> Self {
        Self {
            recording,
            data_bytes: facts.data_bytes,
            records: facts.records,
            lead_in: facts.lead_in,
        }
    }

    /// What is kept beside the recording.
    pub fn facts(&self) -> Facts {
        Facts {
            data_bytes: self.data_bytes,
            records: self.records,
            lead_in: self.lead_in,
        }
    }

    /// Megabytes of WAL behind the lead-in.
    pub fn steady_megabytes(&self) -> f64 {
        let from = self.lead_in.unwrap_or(self.recording.played_from());
        u64::from(self.recording.end()).saturating_sub(u64::from(from)) as f64 / 1e6
    }

    /// Removes the recording from disk.
    pub fn remove(self) -> Result<()> {
        let folder = self.recording.folder();
        fs::remove_dir_all(folder).map_err(BenchError::io("remove", folder))
    }
}

/// How much to record.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    /// Write this long first: a base backup begins with a checkpoint, after which the first
    /// change of each page is logged with the whole page.
    pub lead_in: Option<Duration>,
    /// Then stop after this much more WAL, in bytes …
    pub bytes: u64,
    /// … or after this time.
    pub longest: Duration,
}

/// Makes a private primary, writes until there is enough WAL, and removes the primary.
pub fn record(lab: &Lab, work: Work, size: WorkSize, amount: Amount) -> Result<Recorded> {
    let mut primary = primary_with_data(lab, work, size)?;
    let folder = lab.folder().join(format!("recording-{}", work.name()));
    let mut lead_in = None;
    let recording = lockstep_player::record::<BenchError>(lab, &primary, &folder, || {
        let _horizon = Horizon::hold(&primary)?;
        if let Some(length) = amount.lead_in {
            work.run(lab, &primary, size, length)?;
            lead_in = Some(primary.flush_lsn()?);
        }
        let from = primary.flush_lsn()?;
        write_on(lab, work, &primary, size, from, amount)
    })?;
    let data_bytes = data_bytes(&primary)?;
    primary.stop(Stop::Fast)?;
    primary.remove()?;
    let records = count_records(
        lab,
        &recording.wal(),
        recording.consistency(),
        recording.end(),
    )?;
    Ok(Recorded {
        recording,
        data_bytes,
        records,
        lead_in,
    })
}

/// A private primary on every core, with the data that the writes start from.
pub(super) fn primary_with_data(lab: &Lab, work: Work, size: WorkSize) -> Result<Server> {
    let mut settings = recording_settings(work.writers(size));
    let compression = match work {
        Work::Production => Some("off"),
        Work::ProductionLz4 => Some("lz4"),
        _ => None,
    };
    let primary = match compression {
        Some(compression) => {
            settings.extend(production::settings(compression));
            production::primary(lab, "source", settings)?
        }
        None => lab.unpinned_primary("source", &settings)?,
    };
    primary.execute("CREATE EXTENSION pg_prewarm")?;
    lab.create_app_role(&primary)?;
    work.prepare(lab, &primary, size)?;
    primary.execute("VACUUM (FREEZE, ANALYZE)")?;
    Ok(primary)
}

/// Writes until there is enough WAL after `from`, or the time is over.
pub(super) fn write_on(
    lab: &Lab,
    work: Work,
    primary: &Server,
    size: WorkSize,
    from: Lsn,
    amount: Amount,
) -> Result<()> {
    let began = Instant::now();
    loop {
        let left = amount.longest.saturating_sub(began.elapsed());
        let made = u64::from(primary.flush_lsn()?) - u64::from(from);
        if left.is_zero() || made >= amount.bytes {
            return Ok(());
        }
        work.run(lab, primary, size, left.min(CHUNK))?;
    }
}

/// Size of the database.
pub(super) fn data_bytes(primary: &Server) -> Result<u64> {
    let text = primary.query_text(&format!("SELECT pg_database_size('{DATABASE}')::text"))?;
    Ok(text.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Counts WAL records with the package's own pg_waldump.
pub(super) fn count_records(lab: &Lab, wal: &Path, from: Lsn, to: Lsn) -> Result<u64> {
    let mut waldump = lab.launcher().command(lab.package().program("pg_waldump"));
    waldump.arg("--stats").arg("--path").arg(wal);
    waldump.args(["--start", &from.to_string(), "--end", &to.to_string()]);
    let said = lab.launcher().output(waldump)?;
    Ok(total(&said)
        .ok_or_else(|| LabError::Measurement("pg_waldump --stats printed no total".to_owned()))?)
}

/// The number of records in the last line of `pg_waldump --stats`.
fn total(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.starts_with("Total"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_found() {
        let said = "WAL statistics between 0/1 and 0/2:\n\
                    Type      N      (%)\n\
                    Heap    12 ( 80.00)\n\
                    --------\n\
                    Total                              15      1650 [95%]\n";
        assert_eq!(total(said), Some(15));
        assert_eq!(total("nothing"), None);
    }
}
