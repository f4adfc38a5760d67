//! Faults of a replica of Lockstep: of a database of the primary, on a server of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{PATIENCE, SUPERUSER, Server};

use super::others::Other;
use super::stage::{Injected, Stage};
use super::{Frozen, Strength, Writer};
use crate::{BenchError, Result};
use std::time::Duration;

/// The database that is copied, at both ends.
const DATABASE: &str = "shop";

/// The replica's name.
const NAME: &str = "copied";

const INSERT: &str = "INSERT INTO goods (v) VALUES (repeat('x', 100))";

/// A replica and its process. Dropping this kills the process.
#[derive(Debug)]
pub(super) struct Copied {
    program: PathBuf,
    target: String,
    run: Running,
    /// A verify that waits.
    verify: Option<Running>,
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn in_database(server: &Server) -> String {
    format!("{} dbname={DATABASE}", server.conninfo(SUPERUSER))
}

impl Copied {
    fn command(&self, lab: &Lab, words: &[&str]) -> Command {
        let mut command = lab.launcher().command_as_ourselves(&self.program);
        command.args(["replica"]).args(words).arg(NAME);
        command.args(["--target", &self.target]);
        command
    }
}

fn start(lab: &Lab, mut command: Command) -> Result<Running> {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok(Running(lab.launcher().spawn(command, Side::Standby)?))
}

fn run(lab: &Lab, program: &Path, target: &str) -> Result<Running> {
    let mut command = lab.launcher().command_as_ourselves(program);
    command.args(["replica", "run", NAME, "--target", target]);
    start(lab, command)
}

/// Copies a database of its own, and waits until the replica applies what is written.
fn open(lab: &Lab, stage: &mut Stage) -> Result<()> {
    let Some(program) = stage.program.clone() else {
        let reason = "no program is given that could run a replica";
        return Err(BenchError::Unusable(reason.to_owned()));
    };
    stage
        .primary
        .execute(&format!("CREATE DATABASE {DATABASE}"))?;
    on_source(
        stage,
        "CREATE TABLE goods (id bigserial PRIMARY KEY, v text)",
    )?;
    on_source(stage, INSERT)?;
    let server = lab.primary("target", None, &super::stage::small(false))?;
    server.execute(&format!("CREATE DATABASE {DATABASE}"))?;
    let (source, target) = (in_database(&stage.primary), in_database(&server));
    let mut create = lab.launcher().command_as_ourselves(&program);
    create.args([
        "replica", "create", NAME, "--source", &source, "--target", &target,
    ]);
    // Some of these faults are others who write there.
    create.args(["--read-only", "off"]);
    create.env("TMPDIR", lab.folder());
    stage.others.push(Other {
        server,
        told: Some(("--subscriber", DATABASE)),
        of: None,
    });
    lab.launcher().run(create)?;
    let run = run(lab, &program, &target)?;
    stage.copied = Some(Copied {
        program,
        target,
        run,
        verify: None,
    });
    on_source(stage, INSERT)?;
    await_target(
        stage,
        "apply what is written",
        "SELECT (count(*) = 2)::text FROM goods",
    )
}

fn copied(stage: &mut Stage) -> Result<&mut Copied> {
    let copied = stage.copied.as_mut();
    copied.ok_or_else(|| BenchError::Unusable("there is no replica".to_owned()))
}

/// The server that has the replica.
fn target(stage: &mut Stage) -> Result<&mut Server> {
    let last = stage.others.last_mut().map(|other| &mut other.server);
    last.ok_or_else(|| BenchError::Unusable("there is no target".to_owned()))
}

fn on_source(stage: &Stage, sql: &str) -> Result<()> {
    stage.execute_in(DATABASE, sql)
}

fn on_target(stage: &mut Stage, sql: &str) -> Result<()> {
    super::stage::execute_in(target(stage)?, DATABASE, sql)
}

fn await_target(stage: &mut Stage, what: &str, sql: &str) -> Result<()> {
    let server = target(stage)?;
    Ok(server.await_event(what, PATIENCE, |server| {
        let rows = server.rows_in(DATABASE, sql)?;
        let first = rows.into_iter().flatten().next().flatten();
        Ok(first.as_deref() == Some("true"))
    })?)
}

/// Somebody writes into the source.
fn write(stage: &Stage, injected: &mut Injected, strength: Strength) -> Result<()> {
    let pause = Duration::from_millis(strength.choose(100, 10));
    let writer = Writer::start(&stage.primary, DATABASE, INSERT, pause)?;
    injected.writers.push(writer);
    Ok(())
}

/// Somebody has paused it.
pub(super) fn paused(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    open(lab, stage)?;
    let pause = copied(stage)?.command(lab, &["pause"]);
    lab.launcher().run(pause)?;
    write(stage, &mut injected, strength)?;
    Ok(injected)
}

/// A row of the target has the key of one that comes.
pub(super) fn stopped(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    open(lab, stage)?;
    on_target(stage, "INSERT INTO goods VALUES (4, 'in the way')")?;
    write(stage, &mut injected, strength)?;
    let stopped = "SELECT (apply_error IS NOT NULL)::text FROM lockstep.replica";
    await_target(stage, "stop at a row", stopped)?;
    Ok(injected)
}

/// The replica's process was killed.
pub(super) fn killed(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    open(lab, stage)?;
    let Running(run) = &mut copied(stage)?.run;
    let _ = run.kill();
    let _ = run.wait();
    let free = "SELECT (count(*) = 0)::text FROM pg_locks WHERE locktype = 'advisory'";
    await_target(stage, "lose its process", free)?;
    write(stage, &mut injected, strength)?;
    Ok(injected)
}

/// The replica's process is stopped, and wrote its state a minute ago.
pub(super) fn silent(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    open(lab, stage)?;
    let pid = copied(stage)?.run.0.id();
    injected.frozen.push(Frozen::process(pid)?);
    let long_ago = "UPDATE lockstep.replica SET applied_at = applied_at - interval '1 minute'";
    on_target(stage, long_ago)?;
    write(stage, &mut injected, strength)?;
    Ok(injected)
}

/// A verify waits for a transaction of the source.
pub(super) fn held(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    open(lab, stage)?;
    let source = stage.primary.config(SUPERUSER, "lockstep holder");
    let refused = |error| stage.primary.refused("refused a statement", &error);
    let mut holder = source.database(DATABASE).connect().map_err(refused)?;
    holder
        .execute("BEGIN; INSERT INTO goods VALUES (-1, 'open')")
        .map_err(refused)?;
    injected.held.push(holder);
    let mut verify = copied(stage)?.command(lab, &["verify"]);
    verify.args(["--wait", "3600"]);
    let verify = start(lab, verify)?;
    copied(stage)?.verify = Some(verify);
    let held = "SELECT (count(held) = 1)::text FROM lockstep.hold";
    await_target(stage, "be held", held)?;
    write(stage, &mut injected, strength)?;
    Ok(injected)
}

/// A row that is changed on the source is not on the target. Strong: one that is deleted.
pub(super) fn rows_missing(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    open(lab, stage)?;
    on_target(stage, "DELETE FROM goods")?;
    let change = strength.choose(
        "UPDATE goods SET v = 'new' WHERE id = 1",
        "DELETE FROM goods WHERE id = 2",
    );
    on_source(stage, change)?;
    on_source(stage, "INSERT INTO goods VALUES (1000, 'last')")?;
    let applied = "SELECT (count(*) = 1)::text FROM goods WHERE id = 1000";
    await_target(stage, "apply what is written", applied)?;
    Ok(Injected::default())
}

/// A table is made on the source after the copy. Strong: the one that was copied gets another name.
pub(super) fn table_missing(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    open(lab, stage)?;
    let change = strength.choose(
        "CREATE TABLE fresh (id int PRIMARY KEY)",
        "ALTER TABLE goods RENAME TO wares",
    );
    on_source(stage, change)?;
    let told = "SELECT (unreplicated_tables = 1)::text FROM lockstep.replica";
    await_target(stage, "tell of the table", told)?;
    Ok(Injected::default())
}

/// Ends the replica, if there is one, and removes what was made for it.
pub(super) fn close(stage: &mut Stage) -> Result<()> {
    if stage.copied.take().is_none() {
        return Ok(());
    }
    const SLOTS: &str = "FROM pg_replication_slots WHERE slot_name LIKE 'lockstep%'";
    stage
        .primary
        .await_event("free the replica's slots", PATIENCE, |primary| {
            let sql = format!("SELECT 'active' {SLOTS} AND active LIMIT 1");
            Ok(primary.query_text(&sql)?.is_none())
        })?;
    let drop = format!("SELECT pg_drop_replication_slot(slot_name) {SLOTS}");
    stage.primary.execute(&drop)?;
    stage
        .primary
        .execute(&format!("DROP DATABASE {DATABASE} WITH (FORCE)"))?;
    Ok(())
}
