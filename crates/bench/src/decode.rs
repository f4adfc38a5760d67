//! What it costs a primary to decode its WAL once: a recorded stretch of WAL, a slot that
//! starts before it, and a receiver that throws everything away.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::launch::failure_line;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server, Settings, settings_of};
use lockstep_lab::usage::Usage;
use lockstep_wire::Lsn;

use crate::Result;
use crate::relay::publisher;

/// The publication that slots decode.
const PUBLICATION: &str = "everything";

const RECEIVER: &str = "pg_recvlogical";

/// How long one pass may take.
const LONGEST_PASS: Duration = Duration::from_secs(1_800);

/// Interval at which a pass looks whether its receiver has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// CPU that does not change for this long is final.
const SETTLED_AFTER: Duration = Duration::from_millis(50);

/// Most looks at the CPU until it is taken as final.
const MOST_LOOKS: u32 = 100;

/// What writes the WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Changes {
    /// pgbench's TPC-B-like transactions.
    #[value(name = "tpcb")]
    TpcB,
    /// One row in each transaction.
    Insert,
    /// One transaction with all rows.
    Giant,
}

impl Changes {
    pub const ALL: [Self; 3] = [Self::TpcB, Self::Insert, Self::Giant];

    /// The name in cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::TpcB => "tpcb",
            Self::Insert => "insert",
            Self::Giant => "giant",
        }
    }
}

/// How slots decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    /// PostgreSQL's own plugin.
    Pgoutput,
    /// Plugin lockstep, batches that end at commits.
    Commit,
    /// Plugin lockstep, batches that hold commits.
    Hold,
}

impl Plugin {
    fn library(self) -> &'static str {
        match self {
            Self::Pgoutput => "pgoutput",
            Self::Commit | Self::Hold => "lockstep",
        }
    }

    fn option(self) -> Option<&'static str> {
        match self {
            Self::Pgoutput => None,
            Self::Commit => Some("batch=commit"),
            Self::Hold => Some("batch=hold"),
        }
    }
}

/// `logical_decoding_work_mem` that `lockstep relay` asks for.
pub const RELAY_WORK_MEM: &str = "256MB";

/// A stretch of WAL with changes, and slots that start before it.
#[derive(Debug)]
pub struct Stretch {
    /// Bytes of WAL.
    pub bytes: u64,
    /// Rows changed, as far as they are published.
    pub changes: u64,
    pub transactions: u64,
    end: Lsn,
}

/// What one pass cost.
#[derive(Debug, Clone, Copy)]
pub struct Pass {
    /// CPU of the server, which does nothing else, in seconds.
    pub cpu_s: f64,
    /// Time from the receiver's start to its end.
    pub seconds: f64,
}

/// Settings of a primary that is decoded.
pub fn settings() -> Settings {
    settings_of([
        ("wal_level", "logical"),
        ("shared_buffers", "512MB"),
        ("max_wal_size", "16GB"),
        ("checkpoint_timeout", "1h"),
        ("max_connections", "100"),
        ("max_replication_slots", "20"),
        ("autovacuum", "off"),
        // They do not change the WAL.
        ("fsync", "off"),
        ("synchronous_commit", "off"),
    ])
}

/// Readies a primary: tables, the publication, and the permission for our plugin where
/// servers ask for one.
pub fn prepare(lab: &Lab, primary: &mut Server, scale: u32) -> Result<()> {
    lab.load_data(primary, scale)?;
    primary.execute(&format!(
        "CREATE TABLE decoded (id bigint PRIMARY KEY, a int, v text); \
         CREATE SEQUENCE decoded_id; \
         CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES"
    ))?;
    publisher::allow_plugin(primary)
}

/// Makes slots of both plugins, then writes.
pub fn write(lab: &Lab, primary: &Server, changes: Changes, transactions: u32) -> Result<Stretch> {
    for library in ["pgoutput", "lockstep"] {
        primary.execute(&format!(
            "SELECT pg_create_logical_replication_slot('{library}', '{library}')"
        ))?;
    }
    let from = u64::from(primary.flush_lsn()?);
    let rows = u64::from(transactions);
    let (rows, transactions) = match changes {
        Changes::TpcB => {
            run(lab, primary, transactions, None)?;
            (rows * 4, rows)
        }
        Changes::Insert => {
            let sql = "INSERT INTO decoded VALUES (nextval('decoded_id'), 1, 'a row of the usual length');\n";
            run(lab, primary, transactions, Some(sql))?;
            (rows, rows)
        }
        Changes::Giant => {
            primary.execute(&format!(
                "INSERT INTO decoded SELECT nextval('decoded_id'), 1, 'a row of the usual length' \
                 FROM generate_series(1, {transactions})"
            ))?;
            (rows, 1)
        }
    };
    // The receiver ends at a commit beyond all of these.
    primary.execute("SELECT pg_switch_wal(); INSERT INTO decoded VALUES (0, 0, 'end'); DELETE FROM decoded WHERE id = 0; SELECT pg_switch_wal()")?;
    let end = primary.flush_lsn()?;
    primary.execute("CHECKPOINT")?;
    Ok(Stretch {
        bytes: u64::from(end) - from,
        changes: rows,
        transactions,
        end,
    })
}

fn run(lab: &Lab, primary: &Server, transactions: u32, sql: Option<&str>) -> Result<()> {
    const CLIENTS: u32 = 16;
    let mut pgbench = lab.pgbench(primary, SUPERUSER);
    pgbench.args(["--no-vacuum", "--protocol", "prepared"]);
    pgbench.args(["--client", &CLIENTS.to_string()]);
    pgbench.args([
        "--transactions",
        &transactions.div_ceil(CLIENTS).to_string(),
    ]);
    if let Some(sql) = sql {
        pgbench
            .arg("--file")
            .arg(lab.write_file("decoded.sql", sql)?);
    }
    Ok(lab.launcher().run(pgbench)?)
}

/// Decodes the stretch once, from a copy of its slot. `work_mem` is the session's
/// `logical_decoding_work_mem`, if not the server's.
pub fn pass(
    lab: &Lab,
    primary: &Server,
    stretch: &Stretch,
    plugin: Plugin,
    work_mem: Option<&str>,
) -> Result<Pass> {
    primary.execute(&format!(
        "SELECT pg_copy_logical_replication_slot('{}', 'pass')",
        plugin.library()
    ))?;
    let receiver = receiver(lab, primary, stretch, plugin, work_mem);
    let before = primary.usage();
    let started = Instant::now();
    let child = lab.launcher().spawn(receiver, Side::Standby)?;
    let seconds = ended(child, started)?.as_secs_f64();
    let cpu_s = settled_usage(primary).since(before).cpu_s;
    drop_slot(primary, "pass")?;
    Ok(Pass { cpu_s, seconds })
}

/// A program that takes the stretch from slot `pass`.
fn receiver(
    lab: &Lab,
    primary: &Server,
    stretch: &Stretch,
    plugin: Plugin,
    work_mem: Option<&str>,
) -> Command {
    let mut receiver = lab.launcher().command(lab.package().program(RECEIVER));
    let options = work_mem.map(|size| format!(" options='-c logical_decoding_work_mem={size}'"));
    let conninfo = primary.conninfo(SUPERUSER) + &options.unwrap_or_default();
    receiver.args(["--dbname", &conninfo, "--slot", "pass"]);
    receiver.args(["--start", "--no-loop", "--file", "/dev/null"]);
    receiver.args(["--endpos", &stretch.end.to_string()]);
    receiver.args(["--option", "proto_version=1"]);
    receiver.args(["--option", &format!("publication_names={PUBLICATION}")]);
    if let Some(option) = plugin.option() {
        receiver.args(["--option", option]);
    }
    receiver.stdout(Stdio::null()).stderr(Stdio::piped());
    receiver
}

/// Waits until the receiver has ended well: the time that it took.
fn ended(mut child: Child, started: Instant) -> Result<Duration> {
    let failed = |reason: String| LabError::Program {
        program: RECEIVER.to_owned(),
        reason,
    };
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if started.elapsed() > LONGEST_PASS => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(format!("not done in {} s", LONGEST_PASS.as_secs())).into());
            }
            Ok(None) => std::thread::sleep(LOOK_EVERY),
            Err(error) => return Err(failed(error.to_string()).into()),
        }
    };
    let took = started.elapsed();
    if status.success() {
        return Ok(took);
    }
    let output = child.wait_with_output();
    let said = output.map_err(|error| failed(error.to_string()))?.stderr;
    let line = failure_line(&String::from_utf8_lossy(&said));
    Err(failed(line.unwrap_or_else(|| status.to_string())).into())
}

/// CPU once it no longer changes. A process that is just ending may be counted neither among
/// those that run nor among those that have ended.
pub fn settled_usage(primary: &Server) -> Usage {
    let mut usage = primary.usage();
    for _ in 0..MOST_LOOKS {
        std::thread::sleep(SETTLED_AFTER);
        let again = primary.usage();
        if again.cpu_s == usage.cpu_s {
            return again;
        }
        usage = again;
    }
    usage
}

/// Drops what [`write`] made.
pub fn forget(primary: &Server) -> Result<()> {
    for library in ["pgoutput", "lockstep"] {
        drop_slot(primary, library)?;
    }
    Ok(primary.execute("TRUNCATE decoded; CHECKPOINT")?)
}

/// Drops a slot, after its walsender has ended.
fn drop_slot(primary: &Server, name: &str) -> Result<()> {
    let started = Instant::now();
    let sql = format!(
        "SELECT coalesce(pg_terminate_backend(active_pid), false)::text FROM pg_replication_slots \
         WHERE slot_name = '{name}' AND active"
    );
    while primary.query_text(&sql)?.is_some() && started.elapsed() < LONGEST_PASS {
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(primary.execute(&format!("SELECT pg_drop_replication_slot('{name}')"))?)
}
