//! The primary of these rounds: settings, tables, a publication of everything, slots.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server, Settings, settings_of};
use lockstep_wire::Lsn;

use super::{ConsumerError, Endpoint};
use crate::Result;

pub const PUBLICATION: &str = "everything";

/// Slots and walsenders beside those of subscribers: a relay's own, initial copies.
const SPARE_SLOTS: u32 = 20;

/// How long a slot may stay in use after its consumer has gone, and how long a relay may take
/// to catch up.
const PATIENCE: Duration = Duration::from_secs(600);

/// Interval at which an event is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Settings for this many subscribers.
pub fn settings(subscribers: u32) -> Settings {
    let slots = (subscribers + SPARE_SLOTS).to_string();
    settings_of([
        ("wal_level", "logical"),
        ("listen_addresses", "127.0.0.1"),
        ("shared_buffers", "512MB"),
        ("max_wal_size", "16GB"),
        ("checkpoint_timeout", "1h"),
        ("max_connections", "100"),
        ("max_replication_slots", &slots),
        ("max_wal_senders", &slots),
        // Writers do not wait for the disk, so CPU limits the load. But only flushed WAL is
        // streamed: the WAL writer must not sleep, or most of the lag would come from it.
        ("synchronous_commit", "off"),
        ("wal_writer_delay", "1ms"),
        ("autovacuum", "off"),
    ])
}

/// Tables that are there beside pgbench's, on both sides.
pub(super) const TABLES: &str = "CREATE TABLE large (id bigint PRIMARY KEY, a int, v text); \
     CREATE TABLE beat (id bigint PRIMARY KEY, sent timestamptz NOT NULL, received timestamptz)";

/// Permits our plugin where servers ask for that.
pub fn allow_plugin(primary: &mut Server) -> Result<()> {
    let named = primary
        .query_text("SELECT name FROM pg_settings WHERE name = 'output_plugin_libraries'")?;
    if named.is_some() {
        primary.set([("output_plugin_libraries", "pgoutput, lockstep")])?;
        primary.reload()?;
    }
    Ok(())
}

/// Readies a fresh primary.
pub fn prepare(lab: &Lab, primary: &mut Server) -> Result<()> {
    lab.create_app_role(primary)?;
    primary.execute(&format!(
        "{TABLES}; CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES"
    ))?;
    allow_plugin(primary)
}

/// Fresh data: pgbench's own, and nothing in the other tables.
pub fn refresh(lab: &Lab, primary: &Server, scale: u32) -> Result<()> {
    lab.load_data(primary, scale)?;
    Ok(primary.execute("TRUNCATE large, beat; CHECKPOINT")?)
}

/// The primary as consumers see it.
pub fn endpoint(primary: &Server) -> Endpoint {
    Endpoint {
        name: "primary",
        port: primary.port(),
    }
}

/// Runs this many of pgbench's TPC-B-like transactions, on the primary's cores, or a few more if
/// they cannot be divided among the clients. Returns the number that ran. Each changes three rows
/// and inserts one.
pub fn run_transactions(
    lab: &Lab,
    primary: &Server,
    clients: u32,
    transactions: u32,
) -> Result<u64> {
    let each = transactions.div_ceil(clients.max(1));
    let mut pgbench = lab.pgbench(primary, SUPERUSER);
    pgbench.args(["--no-vacuum", "--client", &clients.to_string()]);
    pgbench.args(["--jobs", "1", "--transactions"]);
    pgbench.arg(each.to_string());
    pgbench.stdout(std::process::Stdio::null());
    pgbench.stderr(std::process::Stdio::piped());
    let failed = |reason: String| LabError::Program {
        program: "pgbench".to_owned(),
        reason,
    };
    let output = lab
        .launcher()
        .spawn(pgbench, Side::Primary)?
        .wait_with_output()
        .map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(u64::from(each) * u64::from(clients)),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(failed(
                lockstep_lab::launch::failure_line(&said)
                    .unwrap_or_else(|| output.status.to_string()),
            )
            .into())
        }
    }
}

/// Marks an end: a consumer that has a transaction which ends beyond what is returned has
/// everything that was committed before.
pub fn mark(primary: &Server) -> Result<Lsn> {
    let lsn = primary
        .query_text("SELECT pg_current_wal_insert_lsn()::text")?
        .unwrap_or_default();
    let lsn = lsn.parse().map_err(|_| ConsumerError::Timeout {
        what: format!("a position in place of \"{lsn}\""),
        seconds: 0,
    })?;
    // In a transaction of its own, whose commit waits for its WAL.
    primary.execute(
        "SET synchronous_commit = on; \
         INSERT INTO beat SELECT coalesce(max(id), 0) + 1, clock_timestamp() FROM beat",
    )?;
    Ok(lsn)
}

/// Waits until a relay has all up to `goal`, durably: its own slots say so.
pub fn await_relay(primary: &Server, goal: Lsn) -> Result<()> {
    let sql = format!(
        "SELECT bool_and(confirmed_flush_lsn >= '{goal}')::text FROM pg_replication_slots \
         WHERE slot_name LIKE 'lockstep%'"
    );
    until("that the relay has everything", || {
        Ok(primary.query_text(&sql)?.as_deref() == Some("true"))
    })
}

/// Drops all slots, once they are no longer in use.
pub fn drop_slots(primary: &Server) -> Result<()> {
    primary.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active",
    )?;
    until("that all slots are free", || {
        let active =
            primary.query_text("SELECT 'active' FROM pg_replication_slots WHERE active LIMIT 1")?;
        Ok(active.is_none())
    })?;
    Ok(primary.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")?)
}

/// Looks for an event until it has happened.
pub(super) fn until(what: &str, mut happened: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !happened()? {
        if began.elapsed() > PATIENCE {
            return Err(ConsumerError::Timeout {
                what: what.to_owned(),
                seconds: PATIENCE.as_secs(),
            }
            .into());
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
