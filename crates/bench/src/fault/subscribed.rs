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

/// The second subscription belongs to a role that is no superuser any more. Mild: it may not write all of a
/// table. Strong: policies of the table hold for it.
pub(super) fn denied(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let second = &stage.second;
    second.execute(
        "CREATE ROLE writer SUPERUSER LOGIN; ALTER SUBSCRIPTION second OWNER TO writer; \
         DO $$ BEGIN IF current_setting('server_version_num')::int >= 160000 THEN \
           ALTER SUBSCRIPTION second SET (password_required = off, run_as_owner = on); END IF; END $$; \
         GRANT UPDATE, DELETE, TRUNCATE ON t TO writer",
    )?;
    for sql in [
        format!("ALTER SUBSCRIPTION second OWNER TO {SUPERUSER}").as_str(),
        "ALTER TABLE t DISABLE ROW LEVEL SECURITY",
        "DO $$ BEGIN IF current_setting('server_version_num')::int >= 160000 THEN \
           ALTER SUBSCRIPTION second SET (password_required = on, run_as_owner = off); END IF; END $$",
        "DROP OWNED BY writer; DROP ROLE writer",
    ] {
        injected.undo.push((Which::Second, sql.to_owned()));
    }
    let more = strength.choose(
        "GRANT ALL ON keyed TO writer",
        "GRANT ALL ON t, keyed TO writer; ALTER TABLE t ENABLE ROW LEVEL SECURITY",
    );
    second.execute(&format!(
        "{more}; ALTER ROLE writer NOSUPERUSER; SELECT pg_stat_reset_subscription_stats(NULL)"
    ))?;
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    let failed = "SELECT (apply_error_count > 0)::text FROM pg_stat_subscription_stats \
                  WHERE subname = 'second'";
    let second = stage.server_mut(Which::Second);
    second.await_event("fail to apply", PATIENCE, |second| {
        Ok(second.query_text(failed)?.as_deref() == Some("true"))
    })?;
    Ok(injected)
}

/// Adds what takes away a subscription, its tables at both ends, and its publications.
fn undo(injected: &mut Injected, subscriptions: &[&str], tables: &str, publications: &str) {
    let drop = subscriptions.iter();
    let drop = drop.map(|name| (Which::Second, format!("DROP SUBSCRIPTION {name}")));
    injected.undo.extend(drop);
    for (which, sql) in [
        (Which::Second, format!("DROP TABLE {tables}")),
        (Which::Primary, format!("DROP PUBLICATION {publications}")),
        (Which::Primary, format!("DROP TABLE {tables}")),
    ] {
        injected.undo.push((which, sql));
    }
}

/// Waits until the worker of a subscription of the second subscriber has failed.
fn await_failure(stage: &mut Stage) -> Result<()> {
    let failed = "SELECT (apply_error_count > 0)::text FROM pg_stat_subscription_stats \
                  WHERE subname = 'extra'";
    let second = stage.server_mut(Which::Second);
    Ok(second.await_event("fail to apply", PATIENCE, |second| {
        Ok(second.query_text(failed)?.as_deref() == Some("true"))
    })?)
}

/// Two publications of a subscription get different columns of a table. Strong on 15: one has a list of all
/// columns, and the other none, where the table has had one more.
pub(super) fn lists(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let old = "SELECT (current_setting('server_version_num')::int < 160000)::text";
    let is_old = stage.primary.query_text(old)?.as_deref() == Some("true");
    let by_number = is_old && strength == Strength::Strong;
    for server in [&stage.primary, &stage.second] {
        server.execute("CREATE TABLE listed (id serial PRIMARY KEY, a int, b int)")?;
    }
    let lists = match by_number {
        true => ["(id, a, b)", ""],
        false => ["(id, a)", "(id, a)"],
    };
    for (name, list) in ["lists_one", "lists_two"].into_iter().zip(lists) {
        let publish = format!("CREATE PUBLICATION {name} FOR TABLE listed {list}");
        stage.primary.execute(&publish)?;
    }
    let follow = subscribe(stage, "extra", "lists_one, lists_two");
    stage.second.execute(&follow)?;
    undo(&mut injected, &["extra"], "listed", "lists_one, lists_two");
    stage.await_copies(Which::Second)?;
    stage.primary.execute(match by_number {
        true => "ALTER TABLE listed ADD COLUMN c int; ALTER TABLE listed DROP COLUMN c",
        false => "ALTER PUBLICATION lists_two SET TABLE listed (id, b)",
    })?;
    let insert = "INSERT INTO listed (a, b) VALUES (1, 2)";
    write(stage, &mut injected, insert, strength.choose(300, 50))?;
    await_failure(stage)?;
    Ok(injected)
}

/// A followed table has no key at the second subscriber, and rows of it are changed.
pub(super) fn keyless(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage.primary.execute(
        "CREATE TABLE found (id serial PRIMARY KEY, v text); \
         INSERT INTO found (v) SELECT 'x' FROM generate_series(1, 5); \
         CREATE PUBLICATION found FOR TABLE found",
    )?;
    stage
        .second
        .execute("CREATE TABLE found (id int, v text)")?;
    let follow = subscribe(stage, "extra", "found");
    stage.second.execute(&follow)?;
    undo(&mut injected, &["extra"], "found", "found");
    stage.await_copies(Which::Second)?;
    let change = "UPDATE found SET v = v || 'x' WHERE id = 1";
    write(stage, &mut injected, change, strength.choose(300, 50))?;
    await_failure(stage)?;
    Ok(injected)
}

/// A table is partitioned at the second subscriber, and has no partition for rows that come. Strong: it is at
/// both ends, and the publisher has one more.
pub(super) fn unparted(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    const BY: &str = "PARTITION BY RANGE (id)";
    let mut injected = Injected::default();
    let by = strength.choose("", BY);
    stage.primary.execute(&format!(
        "CREATE TABLE ranged (id bigserial PRIMARY KEY, v text) {by}"
    ))?;
    stage.second.execute(&format!(
        "CREATE TABLE ranged (id bigint PRIMARY KEY, v text) {BY}"
    ))?;
    let one = "CREATE TABLE ranged_one PARTITION OF ranged FOR VALUES FROM (1) TO (6)";
    let two = "CREATE TABLE ranged_two PARTITION OF ranged FOR VALUES FROM (6) TO (100000)";
    stage.second.execute(one)?;
    if strength == Strength::Strong {
        stage.primary.execute(&format!("{one}; {two}"))?;
    }
    stage.primary.execute(
        "INSERT INTO ranged (v) SELECT 'copied' FROM generate_series(1, 5); \
         CREATE PUBLICATION ranged FOR TABLE ranged WITH (publish_via_partition_root = true)",
    )?;
    let follow = subscribe(stage, "extra", "ranged");
    stage.second.execute(&follow)?;
    undo(&mut injected, &["extra"], "ranged", "ranged");
    stage.await_copies(Which::Second)?;
    let insert = "INSERT INTO ranged (v) VALUES ('x')";
    write(stage, &mut injected, insert, strength.choose(300, 50))?;
    await_failure(stage)?;
    Ok(injected)
}

/// A publication sends only what is inserted. Strong: rows are changed.
pub(super) fn inserts_only(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    for server in [&stage.primary, &stage.second] {
        server.execute("CREATE TABLE events (id serial PRIMARY KEY, v text)")?;
    }
    stage.primary.execute(
        "INSERT INTO events (v) SELECT 'x' FROM generate_series(1, 5); \
         CREATE PUBLICATION events FOR TABLE events WITH (publish = 'insert')",
    )?;
    let follow = subscribe(stage, "extra", "events");
    stage.second.execute(&follow)?;
    undo(&mut injected, &["extra"], "events", "events");
    stage.await_copies(Which::Second)?;
    if strength == Strength::Strong {
        let change = "UPDATE events SET v = v || 'x' WHERE id = 1";
        write(stage, &mut injected, change, 300)?;
    }
    stage.calm()?;
    Ok(injected)
}

/// Two subscriptions fill one table, each with a part of its rows, and one of them has a table of its own,
/// too. The slot of that one is dropped.
pub(super) fn shard(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    for server in [&stage.primary, &stage.second] {
        server.execute(
            "CREATE TABLE shards (shard int, id int, PRIMARY KEY (shard, id)); \
             CREATE TABLE shard_own (id int PRIMARY KEY)",
        )?;
    }
    stage.primary.execute(
        "INSERT INTO shards SELECT s, i FROM generate_series(1, 2) s, generate_series(1, 10) i; \
         INSERT INTO shard_own SELECT generate_series(1, 10)",
    )?;
    for publish in [
        "CREATE PUBLICATION shard_a FOR TABLE shards WHERE (shard = 1), shard_own",
        "CREATE PUBLICATION shard_b FOR TABLE shards WHERE (shard = 2)",
    ] {
        stage.primary.execute(publish)?;
    }
    for name in ["shard_a", "shard_b"] {
        let follow = subscribe(stage, name, name);
        stage.second.execute(&follow)?;
    }
    let names = ["shard_a", "shard_b"];
    undo(
        &mut injected,
        &names,
        "shards, shard_own",
        "shard_a, shard_b",
    );
    stage.await_copies(Which::Second)?;
    stage.second.execute("ALTER SUBSCRIPTION shard_a DISABLE")?;
    let released =
        "SELECT (NOT active)::text FROM pg_replication_slots WHERE slot_name = 'shard_a'";
    await_true(stage, "release a slot", released)?;
    let drop = "SELECT pg_drop_replication_slot('shard_a')";
    stage.primary.execute(drop)?;
    stage.second.execute("ALTER SUBSCRIPTION shard_a ENABLE")?;
    // Without its slot it could not be dropped.
    let again = "SELECT pg_create_logical_replication_slot('shard_a', 'pgoutput') \
                 WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = 'shard_a')";
    injected.undo.insert(0, (Which::Primary, again.to_owned()));
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
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
    undo(&mut injected, &["once", "again"], "twice", "twice");
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
