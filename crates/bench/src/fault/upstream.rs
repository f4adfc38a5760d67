//! Faults of where a standby gets its WAL from: another address, another cluster, a slot that is not there,
//! WAL that is removed.

use lockstep_lab::cluster::Lab;

use super::faults::{Strength, UNPUBLISHED, write};
use super::missing::await_true;
use super::stage::{Injected, Stage, Which};
use super::unseen::fill;
use crate::{BenchError, Result};

/// The standby is sent to a port on which nobody listens.
pub(super) fn elsewhere(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let port = format!("port={}", stage.standby_link.port());
    reconnect(stage, &mut injected, &port, "port=1")?;
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// Leads the standby past the slow link, to an address that is known, with some more words.
pub(super) fn past_the_link(stage: &mut Stage, injected: &mut Injected, words: &str) -> Result<()> {
    let ports = [stage.standby_link.port(), stage.primary.port()];
    let [old, new] = ports.map(|port| format!("port={port}"));
    reconnect(stage, injected, &old, &format!("{new}{words}"))
}

/// Changes a word of the standby's `primary_conninfo` until the fault is healed.
pub(super) fn reconnect(
    stage: &mut Stage,
    injected: &mut Injected,
    old: &str,
    new: &str,
) -> Result<()> {
    alter(stage, injected, "primary_conninfo", |conninfo| {
        conninfo.replace(old, new)
    })
}

/// Changes a setting of the standby that its own configuration has, until the fault is healed.
pub(super) fn alter(
    stage: &mut Stage,
    injected: &mut Injected,
    name: &str,
    change: impl Fn(&str) -> String,
) -> Result<()> {
    const RELOAD: &str = "SELECT pg_reload_conf()";
    let old = stage.standby.query_text(&format!("SHOW {name}"))?;
    let old = old.unwrap_or_default();
    let set = |value: &str| format!("ALTER SYSTEM SET {name} = '{value}'");
    for sql in [&set(&change(&old)), RELOAD] {
        stage.standby.execute(sql)?;
    }
    for sql in [set(&old), RELOAD.to_owned()] {
        injected.undo.push((Which::Standby, sql));
    }
    Ok(())
}

/// The standby is to use a slot that is not there.
pub(super) fn standby_slot(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    past_the_link(stage, &mut injected, "")?;
    alter(stage, &mut injected, "primary_slot_name", |_| {
        "gone".to_owned()
    })?;
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// The standby is sent to a server of another cluster.
pub(super) fn other_cluster(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let words = [&stage.primary, &stage.first].map(|server| server.sockets().display().to_string());
    let [right, wrong] = words;
    let ports = [stage.standby_link.port(), stage.first.port()];
    let [old, new] = ports.map(|port| format!("port={port}"));
    alter(stage, &mut injected, "primary_conninfo", |conninfo| {
        conninfo.replace(&right, &wrong).replace(&old, &new)
    })?;
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// While the standby is away and has no slot, the primary removes WAL that it needs, after it was archived.
pub(super) fn removed(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let archive = lab.folder().join("archive");
    std::fs::create_dir_all(&archive).map_err(BenchError::io("create", &archive))?;
    lab.account().own(&archive)?;
    let command = format!("cp %p {}/%f", archive.display());
    injected.set(stage, Which::Primary, "archive_command", &command)?;
    let conninfo = stage.standby.query_text("SHOW primary_conninfo")?;
    let conninfo = conninfo.unwrap_or_default();
    let port = format!("port={}", stage.standby_link.port());
    reconnect(stage, &mut injected, &port, "port=1")?;
    alter(stage, &mut injected, "primary_slot_name", |_| String::new())?;
    drop_slot(stage, &mut injected)?;
    let end = stage
        .standby
        .query_text("SELECT pg_last_wal_replay_lsn()::text")?;
    let needed = format!("pg_walfile_name('{}')", end.unwrap_or_default());
    for _ in 0..strength.choose(3, 6) {
        fill(stage, 16)?;
        // The subscribers' slots move on with a checkpoint's records.
        stage.primary.execute("CHECKPOINT")?;
        stage.calm_subscribers(&["first", "second"])?;
    }
    let gone = format!(
        "CHECKPOINT; SELECT (min(name) > {needed})::text FROM pg_ls_waldir() \
         WHERE name ~ '^[0-9A-F]{{24}}$'"
    );
    await_true(stage, "remove WAL", &gone)?;
    let back = format!("ALTER SYSTEM SET primary_conninfo = '{conninfo}'");
    for sql in [back.as_str(), "SELECT pg_reload_conf()"] {
        stage.standby.execute(sql)?;
    }
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// The standby has neither an upstream nor an archive.
pub(super) fn nowhere(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    alter(stage, &mut injected, "primary_conninfo", |_| String::new())?;
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// Drops the standby's slot, which it uses no longer, until the fault is healed.
pub(super) fn drop_slot(stage: &mut Stage, injected: &mut Injected) -> Result<()> {
    const ITS: &str = "FROM pg_replication_slots WHERE slot_name = 'standby'";
    let released = format!("SELECT (NOT active)::text {ITS}");
    await_true(stage, "release the standby's slot", &released)?;
    stage
        .primary
        .execute("SELECT pg_drop_replication_slot('standby')")?;
    let again = format!(
        "SELECT pg_create_physical_replication_slot('standby', true) WHERE NOT EXISTS (SELECT {ITS})"
    );
    injected.undo.insert(0, (Which::Primary, again));
    Ok(())
}

/// The primary is started anew, and its standby waits for some seconds before it connects again.
pub(super) fn restarted(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let wait = strength.choose("5s", "8s");
    injected.set(stage, Which::Standby, "wal_retrieve_retry_interval", wait)?;
    stage.restart(Which::Primary)?;
    write(stage, &mut injected, UNPUBLISHED, 20)?;
    Ok(injected)
}

/// The primary refuses the standby's connection for an option that it does not know.
pub(super) fn refused(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    past_the_link(stage, &mut injected, " options=-cnonsense=1")?;
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}
