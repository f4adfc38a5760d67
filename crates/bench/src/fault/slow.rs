//! Faults of replicas that are slow, held or full: each has a process that shows it.

use std::time::Duration;

use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::workload::Workload;

use super::faults::{PUBLISHED, Strength, UNPUBLISHED, hold, write};
use super::stage::{Injected, OTHER_DATABASE, SCALE, Stage, Which};
use super::{Hurry, Writer};
use crate::Result;
use crate::slow_calls::SlowCalls;

pub(super) fn asynchronous_commit(
    _: &Lab,
    stage: &mut Stage,
    strength: Strength,
) -> Result<Injected> {
    let mut injected = Injected::default();
    // Quoted, as FIRST is a keyword of synchronous_standby_names.
    injected.set(
        stage,
        Which::Primary,
        "synchronous_standby_names",
        "\"first\"",
    )?;
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 1))?;
    Ok(injected)
}

pub(super) fn pause(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage.standby.execute("SELECT pg_wal_replay_pause()")?;
    injected
        .undo
        .push((Which::Standby, "SELECT pg_wal_replay_resume()".to_owned()));
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// Mild: an old snapshot. Strong: a lock.
pub(super) fn conflict(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Standby, "max_standby_streaming_delay", "-1")?;
    stage.primary.execute(
        "TRUNCATE victim; INSERT INTO victim SELECT i, 'x' FROM generate_series(1, 1000) i",
    )?;
    stage.standby.catch_up(&stage.primary)?;
    hold(
        stage,
        Which::Standby,
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM victim",
        &mut injected,
    )?;
    stage.primary.execute(strength.choose(
        "DELETE FROM victim WHERE id % 2 = 0",
        "ALTER TABLE victim ADD COLUMN w int; ALTER TABLE victim DROP COLUMN w",
    ))?;
    stage.primary.execute("VACUUM victim")?;
    write(stage, &mut injected, UNPUBLISHED, 20)?;
    Ok(injected)
}

/// A cursor that has stopped on a page whose dead rows are older than its snapshot.
pub(super) fn cleanup_lock(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Standby, "max_standby_streaming_delay", "-1")?;
    stage.primary.execute(
        "TRUNCATE victim; INSERT INTO victim SELECT i, 'x' FROM generate_series(1, 1000) i",
    )?;
    stage
        .primary
        .execute("DELETE FROM victim WHERE id BETWEEN 10 AND 20")?;
    // The snapshot below must see the deletion as committed.
    stage.standby.catch_up(&stage.primary)?;
    hold(
        stage,
        Which::Standby,
        "BEGIN; DECLARE c CURSOR FOR SELECT * FROM victim; FETCH 1 FROM c",
        &mut injected,
    )?;
    stage.primary.execute("VACUUM victim")?;
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// A backlog, and readers that take the core.
pub(super) fn starved(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    backlog(stage, strength.choose(500_000, 1_000_000))?;
    let readers = strength.choose(32, 90);
    let load = lab.start_load(
        &stage.standby,
        Side::Standby,
        Workload::Aggregate,
        readers,
        SCALE,
    )?;
    injected.loads.push(load);
    stage.standby.await_event(
        "have its readers",
        lockstep_lab::server::PATIENCE,
        |standby| {
            let sql = format!(
                "SELECT (count(*) >= {readers})::text FROM pg_stat_activity \
             WHERE query LIKE 'SELECT sum(abalance)%'"
            );
            Ok(standby.query_text(&sql)?.as_deref() == Some("true"))
        },
    )?;
    stage.standby.execute("SELECT pg_wal_replay_resume()")?;
    Ok(injected)
}

/// A backlog that is replayed from memory, by a startup process that gets a core before all others.
pub(super) fn core_limit(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let startup = stage.process(Which::Standby, "startup", None)?;
    injected.hurried = Some(Hurry::process(lab, startup)?);
    // Up to a million rows are replayed each second, and on a busy machine doctor misses the first
    // seconds.
    backlog(stage, strength.choose(5_000_000, 6_000_000))?;
    stage.standby.execute("SELECT pg_wal_replay_resume()")?;
    Ok(injected)
}

/// Pauses replay and inserts rows into a table with three indexes, in a database without
/// subscriptions so that walsenders do not decode them.
fn backlog(stage: &mut Stage, rows: u32) -> Result<()> {
    stage.execute_in(
        OTHER_DATABASE,
        "DROP TABLE IF EXISTS backlog; \
         CREATE TABLE backlog (a int, b int, c int); \
         CREATE INDEX ON backlog (a); CREATE INDEX ON backlog (b); CREATE INDEX ON backlog (c)",
    )?;
    stage.standby.catch_up(&stage.primary)?;
    stage.standby.execute("SELECT pg_wal_replay_pause()")?;
    stage.execute_in(
        OTHER_DATABASE,
        &format!("INSERT INTO backlog SELECT i, i, i FROM generate_series(1, {rows}) i"),
    )?;
    let end = stage.primary.flush_lsn()?;
    Ok(stage.standby.await_event(
        "receive the backlog",
        lockstep_lab::server::PATIENCE,
        |standby| {
            let sql = format!("SELECT (pg_last_wal_receive_lsn() >= '{end}')::text");
            Ok(standby.query_text(&sql)?.as_deref() == Some("true"))
        },
    )?)
}

pub(super) fn slow_storage(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let pid = stage.process(Which::Standby, "startup", None)?;
    let delay = Duration::from_millis(strength.choose(20, 60));
    injected.slow.push(SlowCalls::of(
        lab,
        pid,
        "pread64,preadv,pwrite64,pwritev",
        delay,
    )?);
    for _ in 0..2 {
        write(stage, &mut injected, UNPUBLISHED, 1)?;
    }
    Ok(injected)
}

pub(super) fn slow_flush(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let pid = stage.process(Which::Standby, "walreceiver", None)?;
    let delay = Duration::from_millis(strength.choose(600, 1500));
    injected
        .slow
        .push(SlowCalls::of(lab, pid, "fdatasync,fsync", delay)?);
    for _ in 0..2 {
        write(stage, &mut injected, UNPUBLISHED, 5)?;
    }
    Ok(injected)
}

pub(super) fn slow_network(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage
        .standby_link
        .limit(Some(strength.choose(300_000, 50_000)));
    for _ in 0..2 {
        write(stage, &mut injected, UNPUBLISHED, 3)?;
    }
    Ok(injected)
}

/// Makes a trigger that slows down whoever applies rows of a table.
pub(super) fn dawdle(table: &str, strength: Strength) -> String {
    let delay = strength.choose("0.01", "0.05");
    format!(
        "CREATE OR REPLACE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS \
           $$ BEGIN PERFORM pg_sleep({delay}); RETURN NEW; END $$; \
         CREATE TRIGGER dawdle BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION dawdle(); \
         ALTER TABLE {table} ENABLE ALWAYS TRIGGER dawdle"
    )
}

pub(super) fn slow_consumer(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage.second.execute(&dawdle("t", strength))?;
    injected
        .undo
        .push((Which::Second, "DROP TRIGGER dawdle ON t".to_owned()));
    write(stage, &mut injected, PUBLISHED, 20)?;
    Ok(injected)
}

pub(super) fn slow_decoding(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let delay = Duration::from_millis(strength.choose(30, 80));
    for name in ["first", "second"] {
        let pid = stage.process(Which::Primary, "walsender", Some(name))?;
        injected
            .slow
            .push(SlowCalls::of(lab, pid, "pread64", delay)?);
    }
    for _ in 0..2 {
        write(stage, &mut injected, PUBLISHED, 2)?;
    }
    Ok(injected)
}

pub(super) fn giant(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Primary, "logical_decoding_work_mem", "1MB")?;
    let rows = strength.choose(150_000, 300_000);
    let sql = format!(
        "BEGIN; INSERT INTO t (v) SELECT repeat(md5(i::text), 6) FROM generate_series(1, {rows}) i; \
         COMMIT; SELECT pg_sleep(3600)"
    );
    write(stage, &mut injected, &sql, 1000)?;
    Ok(injected)
}

pub(super) fn apply_blocked(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    hold(
        stage,
        Which::Second,
        strength.choose("BEGIN; LOCK t IN SHARE MODE", "BEGIN; LOCK t"),
        &mut injected,
    )?;
    write(stage, &mut injected, PUBLISHED, 20)?;
    Ok(injected)
}

/// Most pieces of WAL written until a slot is near its limit: more than reach the limit.
const MOST_FILLS: u32 = 50;

pub(super) fn retained(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Primary, "max_slot_wal_keep_size", "128MB")?;
    stage.primary.execute("CHECKPOINT")?;
    stage
        .primary
        .execute("SELECT pg_create_physical_replication_slot('forgotten', true)")?;
    injected.undo.push((
        Which::Primary,
        "SELECT pg_drop_replication_slot('forgotten')".to_owned(),
    ));
    let fill = |megabytes: u32| {
        stage.primary.execute(&format!(
            "SELECT count(pg_logical_emit_message(false, 'fill', repeat('x', 1000000))) \
             FROM generate_series(1, {megabytes})"
        ))
    };
    // The subscribers' slots move on with a checkpoint's records; only slot `forgotten` stays
    // behind.
    fill(70)?;
    stage.primary.execute("CHECKPOINT")?;
    // How much a slot may keep beyond the limit depends on where in a segment it begins.
    let safe_mb = strength.choose(20, 10);
    let is_near = format!(
        "SELECT (safe_wal_size < {safe_mb} * 1024 * 1024)::text FROM pg_replication_slots \
         WHERE slot_name = 'forgotten'"
    );
    for _ in 0..MOST_FILLS {
        if stage.primary.query_text(&is_near)?.as_deref() == Some("true") {
            break;
        }
        fill(2)?;
    }
    stage.calm()?;
    Ok(injected)
}

pub(super) fn idle(_: &Lab, stage: &mut Stage, _: Strength) -> Result<Injected> {
    stage.calm()?;
    // Old enough that the age of the last commit would look like lag.
    stage
        .standby
        .await_event("be idle", lockstep_lab::server::PATIENCE, |standby| {
            let sql = "SELECT (now() - pg_last_xact_replay_timestamp() > '6s')::text";
            Ok(standby.query_text(sql)?.as_deref() == Some("true"))
        })?;
    Ok(Injected::default())
}

pub(super) fn other_database(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let sql =
        "INSERT INTO noise SELECT repeat(md5(random()::text), 30) FROM generate_series(1, 100)";
    let pause = Duration::from_millis(strength.choose(50, 10));
    injected
        .writers
        .push(Writer::start(&stage.primary, OTHER_DATABASE, sql, pause)?);
    Ok(injected)
}
