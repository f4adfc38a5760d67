//! Faults of what subscriptions are made of: whose they are, what they follow, and what is left of others.

use std::process::Stdio;

use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{DATABASE, PATIENCE, SUPERUSER};

use super::faults::{PUBLISHED, Strength, write};
use super::missing::await_true;
use super::stage::{Injected, Stage, Which};
use crate::Result;

/// What makes the second subscriber follow publications.
fn subscribe(stage: &Stage, name: &str, publications: &str) -> String {
    format!(
        "CREATE SUBSCRIPTION {name} CONNECTION 'host={} port={} user={SUPERUSER} dbname={DATABASE}' \
         PUBLICATION {publications}",
        stage.primary.sockets().display(),
        stage.primary.port()
    )
}

/// The second subscription belongs to a role that loses its right to log in.
pub(super) fn owner(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage.second.execute(
        "DROP ROLE IF EXISTS keeper; CREATE ROLE keeper SUPERUSER NOLOGIN; \
         SELECT pg_stat_reset_subscription_stats(NULL); ALTER SUBSCRIPTION second OWNER TO keeper",
    )?;
    let back = format!("ALTER SUBSCRIPTION second OWNER TO {SUPERUSER}");
    injected.undo.push((Which::Second, back));
    let away = "SELECT (NOT active)::text FROM pg_replication_slots WHERE slot_name = 'second'";
    await_true(stage, "lose a subscriber", away)?;
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// Two publications of a subscription get different columns of a table.
pub(super) fn lists(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    for server in [&stage.primary, &stage.second] {
        server.execute("CREATE TABLE listed (id serial PRIMARY KEY, a int, b int)")?;
    }
    stage.primary.execute(
        "CREATE PUBLICATION lists_one FOR TABLE listed (id, a); \
         CREATE PUBLICATION lists_two FOR TABLE listed (id, a)",
    )?;
    let follow = subscribe(stage, "extra", "lists_one, lists_two");
    stage.second.execute(&follow)?;
    for (which, sql) in [
        (Which::Second, "DROP SUBSCRIPTION extra"),
        (Which::Second, "DROP TABLE listed"),
        (Which::Primary, "DROP PUBLICATION lists_one, lists_two"),
        (Which::Primary, "DROP TABLE listed"),
    ] {
        injected.undo.push((which, sql.to_owned()));
    }
    stage.await_copies(Which::Second)?;
    let other = "ALTER PUBLICATION lists_two SET TABLE listed (id, b)";
    stage.primary.execute(other)?;
    let insert = "INSERT INTO listed (a, b) VALUES (1, 2)";
    write(stage, &mut injected, insert, strength.choose(300, 50))?;
    let failed = "SELECT (apply_error_count > 0)::text FROM pg_stat_subscription_stats \
                  WHERE subname = 'extra'";
    let second = stage.server_mut(Which::Second);
    second.await_event("fail to apply", PATIENCE, |second| {
        Ok(second.query_text(failed)?.as_deref() == Some("true"))
    })?;
    Ok(injected)
}

/// Two subscriptions of a database get each row of a table without a key.
pub(super) fn followed_twice(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    for server in [&stage.primary, &stage.second] {
        server.execute("CREATE TABLE twice (v text)")?;
    }
    stage
        .primary
        .execute("CREATE PUBLICATION twice FOR TABLE twice WITH (publish = 'insert')")?;
    for name in ["once", "again"] {
        let follow = subscribe(stage, name, "twice");
        stage.second.execute(&follow)?;
    }
    for (which, sql) in [
        (Which::Second, "DROP SUBSCRIPTION once"),
        (Which::Second, "DROP SUBSCRIPTION again"),
        (Which::Second, "DROP TABLE twice"),
        (Which::Primary, "DROP PUBLICATION twice"),
        (Which::Primary, "DROP TABLE twice"),
    ] {
        injected.undo.push((which, sql.to_owned()));
    }
    stage.await_copies(Which::Second)?;
    if strength == Strength::Strong {
        write(stage, &mut injected, "INSERT INTO twice VALUES ('x')", 300)?;
    }
    Ok(injected)
}

/// `lockstep doctor --probe` is killed while it measures.
pub(super) fn probe(lab: &Lab, stage: &mut Stage, _: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let Some(program) = stage.program.clone() else {
        let reason = "no program is given that could measure";
        return Err(LabError::Measurement(reason.to_owned()).into());
    };
    stage.calm()?;
    let [primary, _, first, second] = stage.conninfos();
    let mut command = lab.launcher().command_as_ourselves(program);
    command.args([
        "doctor",
        "--probe",
        "--commits",
        "1000",
        "--seconds",
        "1",
        "--primary",
        &primary,
    ]);
    command.args(["--subscriber", &first, "--subscriber", &second]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = lab.launcher().spawn(command, Side::Standby)?;
    for which in [Which::First, Which::Second] {
        let drop = "DROP SCHEMA IF EXISTS lockstep_probe CASCADE";
        injected.undo.push((which, drop.to_owned()));
    }
    let drop = (
        Which::Primary,
        "DROP SCHEMA IF EXISTS lockstep_probe CASCADE".to_owned(),
    );
    injected.undo.insert(0, drop);
    let writes = "SELECT (pg_relation_size(to_regclass('lockstep_probe.commits')) > 0)::text";
    let begun = await_true(stage, "be measured", writes);
    let _ = child.kill();
    let _ = child.wait();
    begun?;
    let gone = "SELECT (count(*) = 0)::text FROM pg_stat_activity \
                WHERE application_name = 'lockstep doctor'";
    await_true(stage, "lose its measurement", gone)?;
    stage.calm()?;
    Ok(injected)
}
