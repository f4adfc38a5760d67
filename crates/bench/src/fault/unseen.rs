//! Faults that positions alone do not show: something stands still, is missing, or is held by
//! somebody who is no replica.

use std::time::Duration;

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{DATABASE, PATIENCE};

use super::consumer::Consumer;
use super::faults::{PUBLISHED, Strength, UNPUBLISHED, hold, write};
use super::stage::{Injected, Stage, Which};
use super::{Frozen, Writer};
use crate::{BenchError, Result};

pub(super) fn synchronous_missing(
    _: &Lab,
    stage: &mut Stage,
    strength: Strength,
) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Primary, "synchronous_standby_names", "nobody")?;
    for _ in 0..strength.choose(1, 4) {
        write(stage, &mut injected, PUBLISHED, 20)?;
    }
    Ok(injected)
}

/// Commits are to wait for a consumer that never tells what it has flushed.
pub(super) fn commits_held(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage
        .primary
        .execute("SELECT pg_create_logical_replication_slot('etl', 'pgoutput')")?;
    injected.undo.push((
        Which::Primary,
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_replication WHERE application_name = 'etl'; \
         SELECT pg_drop_replication_slot('etl')"
            .to_owned(),
    ));
    injected
        .consumers
        .push(Consumer::start(&stage.primary, "etl", "p")?);
    let there = "SELECT (count(*) = 1)::text FROM pg_stat_replication \
                 WHERE application_name = 'etl' AND state = 'streaming'";
    await_true(stage, "have a consumer", there)?;
    injected.set(stage, Which::Primary, "synchronous_standby_names", "etl")?;
    for _ in 0..strength.choose(1, 4) {
        write(stage, &mut injected, PUBLISHED, 20)?;
    }
    Ok(injected)
}

pub(super) fn delayed(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let delay = strength.choose("10s", "30s");
    injected.set(stage, Which::Standby, "recovery_min_apply_delay", delay)?;
    write(stage, &mut injected, UNPUBLISHED, 20)?;
    Ok(injected)
}

pub(super) fn frozen_startup(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    freeze(stage, "startup", strength)
}

pub(super) fn frozen_walreceiver(
    _: &Lab,
    stage: &mut Stage,
    strength: Strength,
) -> Result<Injected> {
    freeze(stage, "walreceiver", strength)
}

fn freeze(stage: &mut Stage, backend_type: &str, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let pid = stage.process(Which::Standby, backend_type, None)?;
    injected.frozen.push(Frozen::process(pid)?);
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

pub(super) fn frozen_worker(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let sql =
        "SELECT pid::text FROM pg_stat_subscription WHERE subname = 'second' AND relid IS NULL";
    let pid = stage
        .second
        .query_text(sql)?
        .and_then(|pid| pid.parse().ok());
    let pid = pid.ok_or_else(|| BenchError::Unusable("there is no apply worker".to_owned()))?;
    freeze_subscriber(stage, pid, strength)
}

pub(super) fn frozen_walsender(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let pid = stage.process(Which::Primary, "walsender", Some("second"))?;
    freeze_subscriber(stage, pid, strength)
}

/// Stops a process that the second subscriber needs, and writes.
fn freeze_subscriber(stage: &Stage, pid: u32, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.frozen.push(Frozen::process(pid)?);
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

pub(super) fn killed_walsenders(
    _: &Lab,
    stage: &mut Stage,
    strength: Strength,
) -> Result<Injected> {
    let mut injected = Injected::default();
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";
    write(stage, &mut injected, kill, strength.choose(1500, 700))?;
    write(stage, &mut injected, PUBLISHED, 20)?;
    Ok(injected)
}

/// The first subscriber is far away.
pub(super) fn slow_subscriber_network(
    _: &Lab,
    stage: &mut Stage,
    strength: Strength,
) -> Result<Injected> {
    let mut injected = Injected::default();
    let limit = strength.choose(300_000, 50_000);
    stage.first_link.limit(Some(limit));
    for _ in 0..2 {
        write(stage, &mut injected, PUBLISHED, 3)?;
    }
    Ok(injected)
}

/// Rows are changed, each on a page of its own, just after a checkpoint.
pub(super) fn page_images(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage.primary.execute(
        "CREATE TABLE pages (id int PRIMARY KEY, n int, v text) WITH (fillfactor = 10); \
         INSERT INTO pages SELECT i, 0, repeat('x', 400) FROM generate_series(1, 20000) i",
    )?;
    injected
        .undo
        .push((Which::Primary, "DROP TABLE pages".to_owned()));
    stage.calm()?;
    let limit = strength.choose(300_000, 150_000);
    stage.standby_link.limit(Some(limit));
    write(stage, &mut injected, "CHECKPOINT", 1000)?;
    let change = "UPDATE pages SET n = n + 1 WHERE id IN \
                  (SELECT (random() * 20000)::int FROM generate_series(1, 20))";
    write(stage, &mut injected, change, 50)?;
    Ok(injected)
}

/// The second subscriber has rows with the keys of those that come.
pub(super) fn unique_violation(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let last = stage
        .primary
        .query_text("SELECT last_value::text FROM t_id_seq")?;
    let last = last.unwrap_or_default();
    stage.second.execute(&format!(
        "INSERT INTO t SELECT {last} + i, 'in the way' FROM generate_series(1, 5) i"
    ))?;
    injected.undo.push((
        Which::Second,
        "DELETE FROM t WHERE v = 'in the way'".to_owned(),
    ));
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// The second subscriber has lost the primary key of a table whose rows are changed.
pub(super) fn missing_index(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    // Each change reads half of the rows. The worker must be slower than the writer on a fast machine too.
    let rows = strength.choose(50_000, 150_000);
    stage.primary.execute(&format!(
        "INSERT INTO keyed SELECT i, 0, repeat('x', 100) FROM generate_series(1, {rows}) i"
    ))?;
    stage.calm()?;
    stage
        .second
        .execute("ALTER TABLE keyed DROP CONSTRAINT key")?;
    // With it the backlog is applied at once.
    injected.undo.push((
        Which::Second,
        "ALTER TABLE keyed ADD CONSTRAINT key PRIMARY KEY (id)".to_owned(),
    ));
    injected
        .undo
        .push((Which::Primary, "TRUNCATE keyed".to_owned()));
    let change = format!(
        "UPDATE keyed SET n = n + 1 WHERE id IN \
         (SELECT (random() * {rows})::int FROM generate_series(1, 50))"
    );
    write(stage, &mut injected, &change, 20)?;
    Ok(injected)
}

pub(super) fn disabled(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage.second.execute("ALTER SUBSCRIPTION second DISABLE")?;
    injected
        .undo
        .push((Which::Second, "ALTER SUBSCRIPTION second ENABLE".to_owned()));
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// A table is added to the publication that the second subscriber does not have.
pub(super) fn table_missing(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let injected = added(stage, strength)?;
    stage.second.execute("DROP TABLE added")?;
    Ok(injected)
}

/// A table is added to the publication, and no subscriber follows it.
pub(super) fn table_not_followed(
    _: &Lab,
    stage: &mut Stage,
    strength: Strength,
) -> Result<Injected> {
    let mut injected = added(stage, strength)?;
    // Doctor's remedy makes them follow it.
    for (which, name) in [(Which::First, "first"), (Which::Second, "second")] {
        let refresh = format!("ALTER SUBSCRIPTION {name} REFRESH PUBLICATION");
        injected.undo.push((which, refresh));
    }
    Ok(injected)
}

fn added(stage: &mut Stage, strength: Strength) -> Result<Injected> {
    const CREATE: &str = "CREATE TABLE IF NOT EXISTS added (id bigserial PRIMARY KEY, v text)";
    let mut injected = Injected::default();
    for server in [&stage.primary, &stage.first, &stage.second] {
        server.execute(CREATE)?;
        server.execute("TRUNCATE added")?;
    }
    stage
        .primary
        .execute("ALTER PUBLICATION p ADD TABLE added")?;
    injected.undo.push((
        Which::Primary,
        "ALTER PUBLICATION p DROP TABLE added".to_owned(),
    ));
    // What is on its way needs the table.
    injected.undo.push((Which::Second, CREATE.to_owned()));
    let insert = "INSERT INTO added (v) VALUES ('x')";
    write(stage, &mut injected, insert, strength.choose(500, 50))?;
    Ok(injected)
}

pub(super) fn table_left_out(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage.primary.execute("ALTER PUBLICATION p DROP TABLE t")?;
    injected
        .undo
        .push((Which::Primary, "ALTER PUBLICATION p ADD TABLE t".to_owned()));
    let insert = "INSERT INTO t (v) VALUES ('x')";
    write(stage, &mut injected, insert, strength.choose(500, 50))?;
    Ok(injected)
}

/// Writes WAL that no table has.
pub(super) fn fill(stage: &Stage, megabytes: u32) -> Result<()> {
    Ok(stage.primary.execute(&format!(
        "SELECT count(pg_logical_emit_message(false, 'fill', repeat('x', 1000000))) \
         FROM generate_series(1, {megabytes})"
    ))?)
}

/// Megabytes of WAL from which doctor looks at what a slot keeps, and some more.
fn much(strength: Strength) -> u32 {
    strength.choose(80, 160)
}

pub(super) fn prepared(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage.primary.execute(
        "BEGIN; INSERT INTO victim VALUES (0, 'prepared'); PREPARE TRANSACTION 'forgotten'",
    )?;
    injected
        .undo
        .push((Which::Primary, "ROLLBACK PREPARED 'forgotten'".to_owned()));
    fill(stage, much(strength))?;
    stage.calm()?;
    await_true(
        stage,
        "have an old prepared transaction",
        "SELECT (now() - prepared > '6s')::text FROM pg_prepared_xacts",
    )?;
    Ok(injected)
}

/// A prepared transaction of the second subscriber holds a lock that its worker needs.
pub(super) fn blocked_by_prepared(
    _: &Lab,
    stage: &mut Stage,
    strength: Strength,
) -> Result<Injected> {
    let mut injected = Injected::default();
    let mode = strength.choose("SHARE", "ACCESS EXCLUSIVE");
    stage.second.execute(&format!(
        "BEGIN; LOCK t IN {mode} MODE; PREPARE TRANSACTION 'stuck'"
    ))?;
    injected
        .undo
        .push((Which::Second, "ROLLBACK PREPARED 'stuck'".to_owned()));
    write(stage, &mut injected, PUBLISHED, 20)?;
    Ok(injected)
}

pub(super) fn old_transaction(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let begin = "BEGIN; INSERT INTO victim VALUES (0, 'open')";
    hold(stage, Which::Primary, begin, &mut injected)?;
    fill(stage, much(strength))?;
    stage.calm()?;
    await_true(
        stage,
        "have an old transaction",
        "SELECT bool_or(now() - xact_start > '31s')::text FROM pg_stat_activity \
         WHERE application_name = 'lockstep holder'",
    )?;
    Ok(injected)
}

fn await_true(stage: &mut Stage, what: &str, sql: &str) -> Result<()> {
    Ok(stage.primary.await_event(what, PATIENCE, |primary| {
        Ok(primary.query_text(sql)?.as_deref() == Some("true"))
    })?)
}

pub(super) fn archiver(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    const RELOAD: &str = "SELECT pg_reload_conf()";
    const RESET: &str = "ALTER SYSTEM RESET archive_command";
    const SWITCH: &str =
        "SELECT pg_logical_emit_message(false, 'fill', 'x'); SELECT pg_switch_wal()";
    // What failed before would pass for a failure of the next fault, and is archived during that.
    const ARCHIVED: &str = "DO $$ BEGIN FOR tenth IN 1..600 LOOP \
           PERFORM pg_stat_clear_snapshot(); \
           EXIT WHEN (SELECT last_archived_time > last_failed_time FROM pg_stat_archiver); \
           PERFORM pg_sleep(0.1); \
         END LOOP; END $$";
    let mut injected = Injected::default();
    for sql in ["ALTER SYSTEM SET archive_command = '/bin/false'", RELOAD] {
        stage.primary.execute(sql)?;
    }
    for sql in [RESET, RELOAD] {
        injected.undo.push((Which::Primary, sql.to_owned()));
    }
    for _ in 0..strength.choose(1, 3) {
        stage.primary.execute(SWITCH)?;
    }
    // It may have archived all of them before it was told of the command.
    let failed = "SELECT (last_failed_time > coalesce(last_archived_time, '-infinity'))::text \
                  FROM pg_stat_archiver";
    stage
        .primary
        .await_event("fail to archive", PATIENCE, |primary| {
            if primary.query_text(failed)?.as_deref() == Some("true") {
                return Ok(true);
            }
            primary.execute(SWITCH)?;
            std::thread::sleep(Duration::from_secs(1));
            Ok(false)
        })?;
    // A new segment wakes the archiver, which otherwise tries again only after a minute.
    for sql in [SWITCH, ARCHIVED] {
        injected.undo.push((Which::Primary, sql.to_owned()));
    }
    stage.calm()?;
    Ok(injected)
}

/// The archiver's command does not end.
pub(super) fn archiver_hangs(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let file = lab.write_file("hang", "")?;
    let command = format!("while [ -e {} ]; do sleep 0.1; done", file.display());
    injected.files.push(file);
    injected.set(stage, Which::Primary, "archive_command", &command)?;
    for _ in 0..strength.choose(12, 20) {
        fill(stage, 1)?;
        stage.primary.execute("SELECT pg_switch_wal()")?;
    }
    stage.calm()?;
    Ok(injected)
}

/// A slot that nobody uses keeps the rows of many transactions, and little WAL.
pub(super) fn slot_keeps_rows(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage
        .primary
        .execute("SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')")?;
    injected.undo.push((
        Which::Primary,
        "SELECT pg_drop_replication_slot('forgotten')".to_owned(),
    ));
    let number = strength.choose(110_000, 130_000);
    stage.primary.execute(&format!(
        "DO $$ BEGIN FOR i IN 1..{number} LOOP \
           PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
    ))?;
    stage.calm()?;
    Ok(injected)
}

/// Readers whose table is changed, on a standby that waits for nobody.
pub(super) fn cancelled(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Standby, "max_standby_streaming_delay", "0")?;
    let read = "SELECT count(*) FROM victim, pg_sleep(10)";
    let pause = Duration::from_millis(10);
    let reader = Writer::stubborn(&stage.standby, DATABASE, read, pause)?;
    injected.writers.push(reader);
    let change = "ALTER TABLE victim ADD COLUMN w int; ALTER TABLE victim DROP COLUMN w";
    write(stage, &mut injected, change, strength.choose(1000, 300))?;
    Ok(injected)
}

pub(super) fn unused_slot(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage
        .primary
        .execute("SELECT pg_create_physical_replication_slot('forgotten', true)")?;
    injected.undo.push((
        Which::Primary,
        "SELECT pg_drop_replication_slot('forgotten')".to_owned(),
    ));
    fill(stage, much(strength))?;
    stage.calm()?;
    Ok(injected)
}

/// A session of the second subscriber has rows with the keys of those that come, and does not commit.
pub(super) fn blocked_by_row(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let last = "SELECT last_value::text FROM t_id_seq";
    let last = stage.primary.query_text(last)?.unwrap_or_default();
    let insert =
        format!("BEGIN; INSERT INTO t SELECT {last} + i, 'open' FROM generate_series(1, 5) i");
    hold(stage, Which::Second, &insert, &mut injected)?;
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// A constraint of the second subscriber refuses the rows that come.
pub(super) fn check(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let add = "ALTER TABLE t ADD CONSTRAINT short CHECK (length(v) < 500) NOT VALID";
    stage.second.execute(add)?;
    let drop = "ALTER TABLE t DROP CONSTRAINT short";
    injected.undo.push((Which::Second, drop.to_owned()));
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// A table of the second subscriber has a column that the publisher does not have, and that is never empty.
pub(super) fn not_null(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage.second.execute(
        "ALTER TABLE t ADD COLUMN own int NOT NULL DEFAULT 0; ALTER TABLE t ALTER COLUMN own DROP DEFAULT",
    )?;
    let drop = "ALTER TABLE t DROP COLUMN own";
    injected.undo.push((Which::Second, drop.to_owned()));
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

pub(super) fn unused_logical_slot(
    _: &Lab,
    stage: &mut Stage,
    strength: Strength,
) -> Result<Injected> {
    let mut injected = Injected::default();
    stage
        .primary
        .execute("SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')")?;
    injected.undo.push((
        Which::Primary,
        "SELECT pg_drop_replication_slot('forgotten')".to_owned(),
    ));
    fill(stage, much(strength))?;
    stage.calm()?;
    Ok(injected)
}

/// A query of the standby keeps rows that the primary has deleted.
pub(super) fn feedback(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Standby, "hot_standby_feedback", "on")?;
    let rows = strength.choose(150_000, 300_000);
    stage.primary.execute(&format!(
        "TRUNCATE victim; INSERT INTO victim SELECT i, 'x' FROM generate_series(1, {rows}) i"
    ))?;
    injected
        .undo
        .push((Which::Primary, "TRUNCATE victim".to_owned()));
    stage.calm()?;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t";
    hold(stage, Which::Standby, begin, &mut injected)?;
    stage.primary.execute("DELETE FROM victim")?;
    let old = "SELECT bool_or(now() - xact_start > '31s')::text FROM pg_stat_activity \
               WHERE application_name = 'lockstep holder'";
    stage
        .standby
        .await_event("have an old transaction", PATIENCE, |standby| {
            Ok(standby.query_text(old)?.as_deref() == Some("true"))
        })?;
    stage.calm()?;
    Ok(injected)
}

/// A published table has no key.
pub(super) fn unidentified(_: &Lab, stage: &mut Stage, _: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage
        .primary
        .execute("CREATE TABLE keyless (v text); CREATE PUBLICATION keyless FOR TABLE keyless")?;
    for sql in ["DROP PUBLICATION keyless", "DROP TABLE keyless"] {
        injected.undo.push((Which::Primary, sql.to_owned()));
    }
    stage.calm()?;
    Ok(injected)
}

/// Transactions are larger than the memory of decoding, and their subscribers keep up.
pub(super) fn spilled(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Primary, "logical_decoding_work_mem", "64kB")?;
    let rows = strength.choose(150, 300);
    let insert = format!(
        "INSERT INTO t (v) SELECT repeat(md5(random()::text), 30) FROM generate_series(1, {rows})"
    );
    write(stage, &mut injected, &insert, 300)?;
    Ok(injected)
}
