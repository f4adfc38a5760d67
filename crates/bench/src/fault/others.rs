//! Faults of clusters with one more server: a clone, a second primary, a standby in between.

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{PATIENCE, SUPERUSER, Server, Settings, Stop};

use super::Frozen;
use super::faults::{Strength, UNPUBLISHED, write};
use super::missing::await_true;
use super::stage::{Injected, Stage, Which};
use super::upstream::{alter, reconnect};
use crate::{BenchError, Result};

/// A server that a fault adds, until it is healed.
#[derive(Debug)]
pub(super) struct Other {
    pub server: Server,
    /// The option by which doctor is told of it, and its database; None if it is not to know it.
    pub told: Option<(&'static str, &'static str)>,
    /// The server that it was copied from; None of one that is no standby.
    pub of: Option<Which>,
}

impl Other {
    /// The option and a conninfo, if doctor is told of it.
    pub fn argument(&self) -> Option<[String; 2]> {
        let (option, database) = self.told?;
        let conninfo = self.server.conninfo(SUPERUSER);
        let database = match database {
            "" => String::new(),
            name => format!(" dbname={name}"),
        };
        Some([option.to_owned(), format!("{conninfo}{database}")])
    }
}

/// Adds a standby of a server.
fn add(lab: &Lab, stage: &mut Stage, name: &str, of: Which, is_told: bool) -> Result<()> {
    // A copy of a standby begins with its last restartpoint.
    stage.primary.execute("CHECKPOINT")?;
    stage.standby.catch_up(&stage.primary)?;
    stage.standby.execute("CHECKPOINT")?;
    let server = lab.standby(stage.server(of), name, &Settings::new())?;
    stage.others.push(Other {
        server,
        told: is_told.then_some(("--standby", "")),
        of: Some(of),
    });
    Ok(())
}

/// The server that was added last.
fn added(stage: &mut Stage) -> Result<&mut Server> {
    let last = stage.others.last_mut().map(|other| &mut other.server);
    last.ok_or_else(|| BenchError::Unusable("no server was added".to_owned()))
}

/// Changes a setting of the server that was added last.
fn set(stage: &mut Stage, name: &str, value: &str) -> Result<()> {
    let server = added(stage)?;
    server.execute(&format!("ALTER SYSTEM SET {name} = '{value}'"))?;
    Ok(server.reload()?)
}

/// Lets the standby stream from the server that was added last, without a slot.
fn follow_added(stage: &mut Stage, injected: &mut Injected) -> Result<()> {
    let server = added(stage)?;
    let conninfo = format!(
        "host={} port={} user={SUPERUSER} application_name=standby",
        server.sockets().display(),
        server.port()
    );
    alter(stage, injected, "primary_slot_name", |_| String::new())?;
    alter(stage, injected, "primary_conninfo", |_| conninfo.clone())?;
    let follows = "SELECT (count(*) = 1)::text FROM pg_stat_replication \
                   WHERE application_name = 'standby' AND state = 'streaming'";
    await_added(stage, "have the standby", follows)?;
    let gone =
        "SELECT (count(*) = 0)::text FROM pg_stat_replication WHERE application_name = 'standby'";
    await_true(stage, "lose its standby", gone)
}

fn await_added(stage: &mut Stage, what: &str, sql: &str) -> Result<()> {
    let server = added(stage)?;
    Ok(server.await_event(what, PATIENCE, |server| {
        Ok(server.query_text(sql)?.as_deref() == Some("true"))
    })?)
}

/// A clone of the standby uses its slot while the standby is away for a moment.
pub(super) fn clone(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let shown = |name: &str| -> Result<String> {
        let value = stage.standby.query_text(&format!("SHOW {name}"))?;
        Ok(value.unwrap_or_default())
    };
    let (slot, conninfo) = (shown("primary_slot_name")?, shown("primary_conninfo")?);
    add(lab, stage, "clone", Which::Primary, true)?;
    // The remedy changes it, and makes another slot, which the standby leaves after a moment.
    alter(stage, &mut injected, "primary_slot_name", str::to_owned)?;
    let drop = format!(
        "DO $$ BEGIN FOR tenth IN 1..600 LOOP \
           PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
             WHERE slot_name = '{slot}_2' AND NOT active; \
           EXIT WHEN NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{slot}_2'); \
           PERFORM pg_sleep(0.1); END LOOP; END $$"
    );
    injected.undo.push((Which::Primary, drop));
    let port = format!("port={}", stage.standby_link.port());
    reconnect(stage, &mut injected, &port, "port=1")?;
    let released =
        format!("SELECT (NOT active)::text FROM pg_replication_slots WHERE slot_name = '{slot}'");
    await_true(stage, "release the standby's slot", &released)?;
    set(stage, "primary_slot_name", &slot)?;
    let taken = format!("SELECT active::text FROM pg_replication_slots WHERE slot_name = '{slot}'");
    await_true(stage, "have the slot taken", &taken)?;
    let back = format!("ALTER SYSTEM SET primary_conninfo = '{conninfo}'");
    stage.standby.execute(&back)?;
    stage.standby.reload()?;
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// A standby was promoted. Strong: somebody writes there.
pub(super) fn second_primary(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    add(lab, stage, "rival", Which::Primary, true)?;
    added(stage)?.promote()?;
    if strength == Strength::Strong {
        added(stage)?.execute("INSERT INTO t (v) VALUES ('only here')")?;
    }
    write(stage, &mut injected, UNPUBLISHED, 100)?;
    Ok(injected)
}

/// A standby was promoted, and is a standby of the primary again.
pub(super) fn diverged(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    add(lab, stage, "diverged", Which::Primary, true)?;
    let server = added(stage)?;
    server.promote()?;
    server.execute("INSERT INTO t (v) VALUES ('only here')")?;
    server.stop(Stop::Fast)?;
    let signal = server.data().join("standby.signal");
    std::fs::write(&signal, "").map_err(BenchError::io("write", &signal))?;
    server.start()?;
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// The standby and one of its own follow each other.
pub(super) fn ring(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    add(lab, stage, "circle", Which::Standby, true)?;
    // The same statement leads either of them to the primary.
    set(stage, "primary_slot_name", "")?;
    follow_added(stage, &mut injected)?;
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// The standby streams from one that doctor is not told of, and that sends nothing.
pub(super) fn unasked(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    add(lab, stage, "middle", Which::Primary, false)?;
    follow_added(stage, &mut injected)?;
    let sql = "SELECT pid::text FROM pg_stat_replication WHERE application_name = 'standby'";
    let walsender = added(stage)?.query_text(sql)?;
    let walsender = walsender.and_then(|pid| pid.parse().ok());
    let walsender =
        walsender.ok_or_else(|| BenchError::Unusable("the standby is gone".to_owned()))?;
    injected.frozen.push(Frozen::process(walsender)?);
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// The standby streams from one that is down. Mild: doctor is told of that one.
pub(super) fn middle_down(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let is_told = strength == Strength::Mild;
    add(lab, stage, "middle", Which::Primary, is_told)?;
    follow_added(stage, &mut injected)?;
    added(stage)?.stop(Stop::Fast)?;
    let away = "SELECT (count(written_lsn) = 0)::text FROM pg_stat_wal_receiver";
    stage
        .standby
        .await_event("lose its upstream", PATIENCE, |standby| {
            Ok(standby.query_text(away)?.as_deref() == Some("true"))
        })?;
    write(stage, &mut injected, UNPUBLISHED, 20)?;
    Ok(injected)
}

/// Replay of the standby is paused, and another standby streams from it.
pub(super) fn paused_above(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    add(lab, stage, "below", Which::Standby, true)?;
    super::slow::pause(lab, stage, strength)
}

/// Removes the servers that were added.
pub(super) fn close(stage: &mut Stage) -> Result<()> {
    for other in std::mem::take(&mut stage.others) {
        match other.of {
            Some(of) => other.server.discard(stage.server(of))?,
            None => other.server.remove()?,
        }
    }
    Ok(())
}
