//! Faults of a standby that gets all its WAL from an archive.

use std::time::Duration;

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::PATIENCE;

use super::faults::{PUBLISHED, Strength, UNPUBLISHED, hold, write};
use super::missing::await_true;
use super::stage::{Injected, Stage, Which};
use super::unseen::fill;
use super::upstream::alter;
use crate::{BenchError, Result};

/// Time after which a standby has restored a segment that is archived, if it can.
const RESTORED: Duration = Duration::from_secs(4);

/// Lets the standby restore from an archive, and not stream; what gets a segment from there.
fn prepare(lab: &Lab, stage: &mut Stage, injected: &mut Injected) -> Result<String> {
    let archive = lab.folder().join("archive");
    std::fs::create_dir_all(&archive).map_err(BenchError::io("create", &archive))?;
    lab.account().own(&archive)?;
    let archive = archive.display();
    let command = format!("cp %p {archive}/%f");
    injected.set(stage, Which::Primary, "archive_command", &command)?;
    let restore = format!("cp {archive}/%f %p");
    alter(stage, injected, "restore_command", |_| restore.clone())?;
    for name in ["primary_slot_name", "primary_conninfo"] {
        alter(stage, injected, name, |_| String::new())?;
    }
    let away = "SELECT (count(*) = 0)::text FROM pg_stat_wal_receiver";
    await_standby(stage, "stream no longer", away)?;
    archived(stage, 1)?;
    Ok(restore)
}

fn await_standby(stage: &mut Stage, what: &str, sql: &str) -> Result<()> {
    Ok(stage.standby.await_event(what, PATIENCE, |standby| {
        Ok(standby.query_text(sql)?.as_deref() == Some("true"))
    })?)
}

/// Ends segments of WAL, and waits until they are archived.
fn archived(stage: &mut Stage, segments: u32) -> Result<()> {
    for _ in 0..segments {
        fill(stage, 1)?;
        stage.primary.execute("SELECT pg_switch_wal()")?;
    }
    let waits =
        "SELECT (count(*) = 0)::text FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
    await_true(stage, "archive its WAL", waits)
}

/// Waits until the standby has replayed what is archived.
fn await_restored(stage: &mut Stage) -> Result<()> {
    let last = stage
        .primary
        .query_text("SELECT last_archived_wal FROM pg_stat_archiver")?;
    let segment = last.unwrap_or_default();
    let segment = segment.get(..24).unwrap_or_default();
    let sql = format!(
        "SELECT (pg_last_wal_replay_lsn() >= ('0/0'::pg_lsn \
           + (('x' || substr('{segment}', 9, 8))::bit(32)::bigint::numeric * 4294967296 \
           + ('x' || substr('{segment}', 17, 8))::bit(32)::bigint::numeric * 16777216)))::text"
    );
    await_standby(stage, "restore what is archived", &sql)
}

/// The archive gives nothing.
pub(super) fn fails(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    prepare(lab, stage, &mut injected)?;
    await_restored(stage)?;
    let broken = "ALTER SYSTEM SET restore_command = '/bin/false'";
    stage.standby.execute(broken)?;
    stage.standby.reload()?;
    archived(stage, strength.choose(2, 6))?;
    // A segment that was just archived may still come.
    std::thread::sleep(RESTORED);
    Ok(injected)
}

/// The archive is slower than the WAL.
pub(super) fn slow(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let restore = prepare(lab, stage, &mut injected)?;
    await_restored(stage)?;
    let seconds = strength.choose("0.7", "1.5");
    let slow = format!("ALTER SYSTEM SET restore_command = 'sleep {seconds}; {restore}'");
    stage.standby.execute(&slow)?;
    stage.standby.reload()?;
    // Segments that are full: replay does not wait for those after them.
    for _ in 0..16 {
        fill(stage, 16)?;
    }
    archived(stage, 1)?;
    Ok(injected)
}

/// A query of such a standby needs rows, or a table, that replay removes or changes.
pub(super) fn conflict(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Standby, "max_standby_archive_delay", "-1")?;
    prepare(lab, stage, &mut injected)?;
    stage.primary.execute(
        "TRUNCATE victim; INSERT INTO victim SELECT i, 'x' FROM generate_series(1, 1000) i",
    )?;
    archived(stage, 2)?;
    await_restored(stage)?;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM victim";
    hold(stage, Which::Standby, begin, &mut injected)?;
    stage.primary.execute(strength.choose(
        "DELETE FROM victim WHERE id % 2 = 0",
        "ALTER TABLE victim ADD COLUMN w int; ALTER TABLE victim DROP COLUMN w",
    ))?;
    stage.primary.execute("VACUUM victim")?;
    archived(stage, 2)?;
    let waits = "SELECT bool_or(wait_event_type = 'Lock' OR wait_event LIKE 'RecoveryConflict%')::text \
                 FROM pg_stat_activity WHERE backend_type = 'startup'";
    await_standby(stage, "wait for a query", waits)?;
    write(stage, &mut injected, UNPUBLISHED, 20)?;
    Ok(injected)
}

/// What was written is in a segment that is not full. Strong: more of it comes.
pub(super) fn unarchived(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    prepare(lab, stage, &mut injected)?;
    await_restored(stage)?;
    // Nobody uses its slot.
    super::upstream::drop_slot(stage, &mut injected)?;
    stage.primary.execute("INSERT INTO t (v) VALUES ('late')")?;
    if strength == Strength::Strong {
        write(stage, &mut injected, PUBLISHED, 300)?;
    }
    Ok(injected)
}
