//! Faults of what is missing, refused or used up at one end of a replica: slots, publications, columns,
//! rights, workers, walsenders.

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{DATABASE, PATIENCE, SUPERUSER};

use super::consumer::Consumer;
use super::faults::{PUBLISHED, Strength, UNPUBLISHED, write};
use super::stage::{Injected, Stage, Which};
use super::unseen::fill;
use super::upstream::{past_the_link, reconnect};
use crate::Result;

/// A table of the publisher gets a column that no subscriber has. Strong: of a type that none has either.
pub(super) fn column(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    for which in [Which::First, Which::Second] {
        let sql = "ALTER TABLE t DROP COLUMN IF EXISTS w; DROP TYPE IF EXISTS mood";
        stage.server(which).execute(sql)?;
    }
    stage
        .primary
        .execute("DROP TYPE IF EXISTS mood; CREATE TYPE mood AS ENUM ('sad', 'it''s ok')")?;
    let kind = strength.choose("int", "mood");
    stage
        .primary
        .execute(&format!("ALTER TABLE t ADD COLUMN w {kind}"))?;
    let drop = "ALTER TABLE t DROP COLUMN w";
    injected.undo.push((Which::Primary, drop.to_owned()));
    // What is on its way needs the column.
    for which in [Which::First, Which::Second] {
        let add = "ALTER TABLE t ADD COLUMN IF NOT EXISTS w text";
        injected.undo.push((which, add.to_owned()));
    }
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// A trigger of the second subscriber refuses the rows that its worker applies.
pub(super) fn trigger(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage.second.execute(
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
           $$ BEGIN RAISE 'refused'; END $$; \
         CREATE TRIGGER refuse BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse(); \
         ALTER TABLE t ENABLE ALWAYS TRIGGER refuse",
    )?;
    injected
        .undo
        .push((Which::Second, "DROP TRIGGER refuse ON t".to_owned()));
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// A table of the second subscriber refers to one that is truncated.
pub(super) fn truncate(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage
        .second
        .execute("CREATE TABLE child (id int CONSTRAINT child_key REFERENCES keyed (id))")?;
    injected
        .undo
        .push((Which::Second, "DROP TABLE child".to_owned()));
    stage.primary.execute("TRUNCATE keyed")?;
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// The slot of the second subscription is dropped.
pub(super) fn slot(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    disable(stage)?;
    stage
        .primary
        .execute("SELECT pg_drop_replication_slot('second')")?;
    injected.undo.push((Which::Primary, SLOT_AGAIN.to_owned()));
    stage.second.execute("ALTER SUBSCRIPTION second ENABLE")?;
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// Makes the slot of the second subscription, if it is not there.
const SLOT_AGAIN: &str = "SELECT pg_create_logical_replication_slot('second', 'pgoutput') \
     WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = 'second')";

/// The second subscription follows a publication of its own, which is dropped while nothing is written.
pub(super) fn publication_dropped(_: &Lab, stage: &mut Stage, _: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    own_publication(stage, &mut injected)?;
    stage.primary.execute("DROP PUBLICATION own")?;
    Ok(injected)
}

/// So it is, and rows are written: they cannot be decoded any more.
pub(super) fn publication_dropped_early(
    _: &Lab,
    stage: &mut Stage,
    strength: Strength,
) -> Result<Injected> {
    let mut injected = Injected::default();
    own_publication(stage, &mut injected)?;
    stage
        .second
        .execute("SELECT pg_stat_reset_subscription_stats(NULL)")?;
    stage.primary.execute("DROP PUBLICATION own")?;
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    let failed = "SELECT (apply_error_count > 0)::text FROM pg_stat_subscription_stats \
                  WHERE subname = 'second'";
    let second = stage.server_mut(Which::Second);
    second.await_event("fail to apply", PATIENCE, |second| {
        Ok(second.query_text(failed)?.as_deref() == Some("true"))
    })?;
    Ok(injected)
}

/// The publication is dropped while nothing is written, and the slot is dropped as well.
pub(super) fn slot_and_publication(
    _: &Lab,
    stage: &mut Stage,
    strength: Strength,
) -> Result<Injected> {
    let mut injected = Injected::default();
    own_publication(stage, &mut injected)?;
    disable(stage)?;
    stage
        .primary
        .execute("SELECT pg_drop_replication_slot('second'); DROP PUBLICATION own")?;
    injected.undo.push((Which::Primary, SLOT_AGAIN.to_owned()));
    stage.second.execute("ALTER SUBSCRIPTION second ENABLE")?;
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// Lets the second subscription follow a publication of its own, until the fault is healed.
fn own_publication(stage: &mut Stage, injected: &mut Injected) -> Result<()> {
    let follow = |name: &str| {
        format!("ALTER SUBSCRIPTION second SET PUBLICATION {name} WITH (refresh = false)")
    };
    stage
        .primary
        .execute("CREATE PUBLICATION own FOR TABLE t, keyed")?;
    stage.second.execute(&follow("own"))?;
    injected.undo.push((Which::Second, follow("p")));
    injected
        .undo
        .push((Which::Primary, "DROP PUBLICATION IF EXISTS own".to_owned()));
    stage.calm()
}

/// The slot of the second subscription keeps more WAL than it may, and loses it.
pub(super) fn subscription_lost(
    _: &Lab,
    stage: &mut Stage,
    strength: Strength,
) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Primary, "max_slot_wal_keep_size", "64MB")?;
    disable(stage)?;
    for _ in 0..strength.choose(8, 16) {
        fill(stage, 16)?;
        // The other slot moves on with a checkpoint's records.
        stage.primary.execute("CHECKPOINT")?;
        stage.calm_of(&["first"])?;
    }
    let lost = "SELECT (wal_status = 'lost')::text FROM pg_replication_slots \
                WHERE slot_name = 'second'";
    await_true(stage, "lose a slot", &format!("CHECKPOINT; {lost}"))?;
    let drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                WHERE slot_name = 'second' AND wal_status = 'lost'";
    for sql in [drop, SLOT_AGAIN] {
        injected.undo.push((Which::Primary, sql.to_owned()));
    }
    stage.second.execute("ALTER SUBSCRIPTION second ENABLE")?;
    Ok(injected)
}

/// The slot of the second subscription is made again, for another program.
pub(super) fn other_plugin(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    const NAMES: &str = "('second', 'second_pgoutput')";
    let mut injected = Injected::default();
    disable(stage)?;
    for sql in [
        "SELECT pg_drop_replication_slot('second')",
        "SELECT pg_create_logical_replication_slot('second', 'test_decoding')",
    ] {
        stage.primary.execute(sql)?;
    }
    stage.second.execute("ALTER SUBSCRIPTION second ENABLE")?;
    // Whichever it uses: its slot is as it was, and at the same position.
    let own = [
        "ALTER SUBSCRIPTION second DISABLE",
        "ALTER SUBSCRIPTION second SET (slot_name = 'second')",
    ];
    for sql in own {
        injected.undo.push((Which::Second, sql.to_owned()));
    }
    let released = format!(
        "DO $$ BEGIN FOR tenth IN 1..600 LOOP \
           EXIT WHEN NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name IN {NAMES} AND active); \
           PERFORM pg_sleep(0.1); \
         END LOOP; END $$"
    );
    let kept = format!(
        "SELECT pg_copy_logical_replication_slot(max(slot_name::text)::name, 'kept', false, 'pgoutput') \
         FROM pg_replication_slots WHERE slot_name IN {NAMES}"
    );
    let dropped = format!(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name IN {NAMES}"
    );
    let back = "SELECT pg_copy_logical_replication_slot('kept', 'second')";
    let end = "SELECT pg_drop_replication_slot('kept')";
    for sql in [&released, &kept, &dropped, back, end] {
        injected.undo.push((Which::Primary, sql.to_owned()));
    }
    let enable = "ALTER SUBSCRIPTION second ENABLE";
    injected.undo.push((Which::Second, enable.to_owned()));
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// Disables the second subscription, and waits until its slot is free.
fn disable(stage: &mut Stage) -> Result<()> {
    stage.second.execute("ALTER SUBSCRIPTION second DISABLE")?;
    await_true(
        stage,
        "release a slot",
        "SELECT (NOT active)::text FROM pg_replication_slots WHERE slot_name = 'second'",
    )
}

pub(super) fn await_true(stage: &mut Stage, what: &str, sql: &str) -> Result<()> {
    Ok(stage.primary.await_event(what, PATIENCE, |primary| {
        Ok(primary.query_text(sql)?.as_deref() == Some("true"))
    })?)
}

/// The second subscription follows a publication that is not there.
pub(super) fn publication(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage
        .second
        .execute("ALTER SUBSCRIPTION second SET PUBLICATION renamed WITH (refresh = false)")?;
    injected.undo.push((
        Which::Second,
        "ALTER SUBSCRIPTION second SET PUBLICATION p WITH (refresh = false)".to_owned(),
    ));
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// The standby streams as a role that loses its right to.
pub(super) fn role(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage
        .primary
        .execute("DROP ROLE IF EXISTS streamer; CREATE ROLE streamer LOGIN REPLICATION")?;
    stage.standby.catch_up(&stage.primary)?;
    reconnect(
        stage,
        &mut injected,
        &format!("user={SUPERUSER}"),
        "user=streamer",
    )?;
    await_true(
        stage,
        "have its standby back",
        "SELECT (count(*) = 1)::text FROM pg_stat_replication \
         WHERE usename = 'streamer' AND state = 'streaming'",
    )?;
    stage.primary.execute("ALTER ROLE streamer NOREPLICATION")?;
    stage.primary.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE usename = 'streamer'",
    )?;
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// The primary has fewer walsenders than replicas.
pub(super) fn walsenders(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    const SETTING: &str = "max_wal_senders";
    let mut injected = Injected::default();
    // It may be the standby that gets none.
    past_the_link(stage, &mut injected, "")?;
    stage.primary.set([(SETTING, strength.choose("2", "1"))])?;
    stage.primary.restart()?;
    injected
        .restarts
        .push((Which::Primary, SETTING, Some("20".to_owned())));
    await_true(
        stage,
        "have all walsenders taken",
        "SELECT (count(*) >= current_setting('max_wal_senders')::int)::text FROM pg_stat_replication",
    )?;
    write(stage, &mut injected, PUBLISHED, 100)?;
    Ok(injected)
}

/// The second subscriber may have no worker for logical replication.
pub(super) fn workers(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    const SETTING: &str = "max_logical_replication_workers";
    let mut injected = Injected::default();
    stage.second.set([(SETTING, "0")])?;
    stage.second.restart()?;
    injected.restarts.push((Which::Second, SETTING, None));
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// The second subscription connects as a role that is not there.
pub(super) fn connection(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    // Errors that were counted before say nothing.
    stage
        .second
        .execute("SELECT pg_stat_reset_subscription_stats(NULL)")?;
    let set = |user: &str| {
        format!(
            "ALTER SUBSCRIPTION second CONNECTION 'host={} port={} user={user} dbname={DATABASE}'",
            stage.primary.sockets().display(),
            stage.primary.port()
        )
    };
    stage.second.execute(&set("nobody"))?;
    injected.undo.push((Which::Second, set(SUPERUSER)));
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// A consumer takes all changes and confirms none.
pub(super) fn confirmation(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
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
    write(stage, &mut injected, PUBLISHED, strength.choose(200, 50))?;
    // Others confirm once a minute.
    await_true(
        stage,
        "have a consumer for long",
        "SELECT bool_or(now() - backend_start > '71s')::text FROM pg_stat_replication \
         WHERE application_name = 'etl'",
    )?;
    Ok(injected)
}

/// A slot keeps more WAL than it may, and loses it.
pub(super) fn lost(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Primary, "max_slot_wal_keep_size", "64MB")?;
    stage
        .primary
        .execute("SELECT pg_create_physical_replication_slot('forgotten', true)")?;
    injected.undo.push((
        Which::Primary,
        "SELECT pg_drop_replication_slot('forgotten')".to_owned(),
    ));
    for _ in 0..strength.choose(8, 16) {
        fill(stage, 16)?;
        // The subscribers' slots move on with a checkpoint's records.
        stage.primary.execute("CHECKPOINT")?;
        stage.calm()?;
    }
    let lost = "SELECT (wal_status = 'lost')::text FROM pg_replication_slots \
                WHERE slot_name = 'forgotten'";
    await_true(stage, "lose a slot", &format!("CHECKPOINT; {lost}"))?;
    Ok(injected)
}

/// A database says that its indexes were made with another version of its collation.
pub(super) fn collation(_: &Lab, stage: &mut Stage, _: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage
        .primary
        .execute("CREATE DATABASE sorted TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en'")?;
    injected
        .undo
        .push((Which::Primary, "DROP DATABASE sorted".to_owned()));
    stage
        .primary
        .execute("UPDATE pg_database SET datcollversion = '1' WHERE datname = 'sorted'")?;
    stage.calm()?;
    Ok(injected)
}
