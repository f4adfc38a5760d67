//! Faults of the copy of a table, and of tables that change on the publisher only. Each makes a table of its
//! own.

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{DATABASE, PATIENCE, SUPERUSER};

use super::faults::{PUBLISHED, Strength, hold, write};
use super::missing::await_true;
use super::stage::{Injected, Stage, Which};
use crate::Result;

/// The publication of a table that is copied.
const EXTRA: &str = "extra";

/// A table is locked on the publisher before it is copied.
pub(super) fn blocked_above(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = prepare(stage)?;
    let lock = strength.choose(
        "BEGIN; LOCK copied",
        "BEGIN; ALTER TABLE copied ADD COLUMN v text",
    );
    hold(stage, Which::Primary, lock, &mut injected)?;
    begin(stage)?;
    await_lock(stage, Which::Primary)?;
    write(stage, &mut injected, PUBLISHED, 100)?;
    Ok(injected)
}

/// A session of the subscriber is in the way of the copy: with a lock on the table, or with a row that is not
/// committed.
pub(super) fn blocked_below(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = prepare(stage)?;
    let lock = strength.choose(
        "BEGIN; LOCK copied IN SHARE MODE",
        "BEGIN; INSERT INTO copied VALUES (1)",
    );
    hold(stage, Which::Second, lock, &mut injected)?;
    begin(stage)?;
    await_lock(stage, Which::Second)?;
    write(stage, &mut injected, PUBLISHED, 100)?;
    Ok(injected)
}

/// A row of the subscriber has the key of one that is copied.
pub(super) fn refused(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = prepare(stage)?;
    stage.second.execute("INSERT INTO copied VALUES (1)")?;
    begin(stage)?;
    let failed = "SELECT (sync_error_count > 0)::text FROM pg_stat_subscription_stats \
                  WHERE subname = 'extra'";
    let second = stage.server_mut(Which::Second);
    second.await_event("fail to copy a table", PATIENCE, |second| {
        Ok(second.query_text(failed)?.as_deref() == Some("true"))
    })?;
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// A table that is copied has a column that the subscriber lacks.
pub(super) fn lacks_column(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = prepare(stage)?;
    let kind = strength.choose("int", "text");
    stage
        .primary
        .execute(&format!("ALTER TABLE copied ADD COLUMN w {kind}"))?;
    begin(stage)?;
    write(stage, &mut injected, PUBLISHED, 100)?;
    Ok(injected)
}

/// The second subscriber may have no worker that copies.
pub(super) fn no_copier(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = prepare(stage)?;
    injected.set(
        stage,
        Which::Second,
        "max_sync_workers_per_subscription",
        "0",
    )?;
    begin(stage)?;
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    // One that was just made may still get a worker.
    std::thread::sleep(std::time::Duration::from_secs(2));
    Ok(injected)
}

/// Makes a table and a subscription of the second subscriber that is to copy it, and is disabled.
fn prepare(stage: &mut Stage) -> Result<Injected> {
    let mut injected = Injected::default();
    for server in [&stage.primary, &stage.second] {
        server.execute("CREATE TABLE copied (id int PRIMARY KEY)")?;
    }
    stage.primary.execute(
        "INSERT INTO copied SELECT generate_series(1, 1000); CREATE PUBLICATION extra FOR TABLE copied",
    )?;
    let subscribe = subscribe(stage, " WITH (enabled = false)");
    stage.second.execute(&subscribe)?;
    for (which, sql) in [
        (Which::Second, "DROP SUBSCRIPTION extra"),
        (Which::Second, "DROP TABLE copied"),
        (Which::Primary, "DROP PUBLICATION extra"),
        (Which::Primary, "DROP TABLE copied"),
    ] {
        injected.undo.push((which, sql.to_owned()));
    }
    Ok(injected)
}

/// What makes the second subscriber follow the extra publication.
fn subscribe(stage: &Stage, options: &str) -> String {
    format!(
        "CREATE SUBSCRIPTION {EXTRA} CONNECTION 'host={} port={} user={SUPERUSER} dbname={DATABASE}' \
         PUBLICATION {EXTRA}{options}",
        stage.primary.sockets().display(),
        stage.primary.port()
    )
}

fn begin(stage: &Stage) -> Result<()> {
    Ok(stage.second.execute("ALTER SUBSCRIPTION extra ENABLE")?)
}

fn await_lock(stage: &mut Stage, which: Which) -> Result<()> {
    let sql = "SELECT (count(*) > 0)::text FROM pg_stat_activity \
               WHERE wait_event_type = 'Lock' AND backend_type <> 'client backend'";
    let server = stage.server_mut(which);
    Ok(
        server.await_event("have a copy wait for a lock", PATIENCE, |server| {
            Ok(server.query_text(sql)?.as_deref() == Some("true"))
        })?,
    )
}

/// Both names of a table, and of a column, which take turns.
const NAMES: [&str; 2] = ["named", "renamed"];

/// Writes rows into a table, whatever it and its column are called.
const INSERT: &str = "INSERT INTO view_of_named DEFAULT VALUES";

/// A table that all follow gets another name on the publisher.
pub(super) fn table_renamed(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let (mut injected, name) = own_table(stage)?;
    let other = other(&name, &NAMES);
    stage
        .primary
        .execute(&format!("ALTER TABLE {name} RENAME TO {other}"))?;
    // What is on its way needs the new name.
    for which in [Which::First, Which::Second] {
        let rename = format!("ALTER TABLE IF EXISTS {name} RENAME TO {other}");
        injected.undo.insert(0, (which, rename));
    }
    let drop = format!("ALTER PUBLICATION p DROP TABLE {other}");
    injected.undo.insert(2, (Which::Primary, drop));
    write(stage, &mut injected, INSERT, strength.choose(300, 50))?;
    Ok(injected)
}

/// A column of such a table gets another name on the publisher.
pub(super) fn column_renamed(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let (mut injected, name) = own_table(stage)?;
    let (column, other) = match stage.primary.query_text(&format!(
        "SELECT attname FROM pg_attribute WHERE attrelid = '{name}'::regclass AND attname = 'v'"
    ))? {
        Some(_) => ("v", "w"),
        None => ("w", "v"),
    };
    let rename = format!("ALTER TABLE {name} RENAME COLUMN {column} TO {other}");
    stage.primary.execute(&rename)?;
    let if_there =
        format!("DO $$ BEGIN {rename}; EXCEPTION WHEN undefined_column THEN NULL; END $$");
    for which in [Which::First, Which::Second] {
        injected.undo.insert(0, (which, if_there.clone()));
    }
    let drop = format!("ALTER PUBLICATION p DROP TABLE {name}");
    injected.undo.insert(2, (Which::Primary, drop));
    write(stage, &mut injected, INSERT, strength.choose(300, 50))?;
    Ok(injected)
}

/// A column of such a table has another type at the second subscriber.
pub(super) fn other_type(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let (mut injected, name) = own_table(stage)?;
    let column = column_of(stage, &name)?;
    let alter = |kind: &str| {
        format!(
            "ALTER TABLE {name} ALTER COLUMN {column} DROP DEFAULT, \
             ALTER COLUMN {column} TYPE {kind} USING NULL"
        )
    };
    stage.second.execute(&alter("int"))?;
    injected.undo.insert(0, (Which::Second, alter("text")));
    let drop = format!("ALTER PUBLICATION p DROP TABLE {name}");
    injected.undo.insert(1, (Which::Primary, drop));
    write(stage, &mut injected, INSERT, strength.choose(300, 50))?;
    Ok(injected)
}

/// Number from which rows have larger ones than the table's own sequence gives.
const LARGE: u32 = 1_000_000;

/// A column of such a table is too narrow for what comes: mild: a text is too long; strong: a number is too
/// large.
pub(super) fn narrow(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let (mut injected, name) = own_table(stage)?;
    let column = column_of(stage, &name)?;
    let (of, kind, other) = strength.choose(
        (column.as_str(), "text", "varchar(3)"),
        ("id", "bigint", "smallint"),
    );
    // What an earlier fault of this kind has left.
    stage.primary.execute(&format!(
        "DELETE FROM {name} WHERE id >= {LARGE} OR length({column}) > 3"
    ))?;
    stage.calm()?;
    let alter = |kind: &str| format!("ALTER TABLE {name} ALTER COLUMN {of} TYPE {kind}");
    stage.second.execute(&alter(other))?;
    injected.undo.insert(0, (Which::Second, alter(kind)));
    let drop = format!("ALTER PUBLICATION p DROP TABLE {name}");
    injected.undo.insert(1, (Which::Primary, drop));
    let insert = strength.choose(
        "INSERT INTO view_of_named SELECT nextval('large'), 'too long'",
        "INSERT INTO view_of_named SELECT nextval('large'), 'x'",
    );
    stage.primary.execute(&format!(
        "CREATE SEQUENCE IF NOT EXISTS large MINVALUE {LARGE}"
    ))?;
    write(stage, &mut injected, insert, strength.choose(300, 50))?;
    Ok(injected)
}

/// A table that all follow is dropped on the publisher, and made anew under its other name.
pub(super) fn table_anew(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let (mut injected, name) = own_table(stage)?;
    let new = other(&name, &NAMES);
    let column = column_of(stage, &name)?;
    stage.primary.execute(&format!(
        "DROP VIEW view_of_named; DROP TABLE {name}; \
         CREATE TABLE {new} (id bigserial PRIMARY KEY, {column} text DEFAULT 'x'); \
         CREATE VIEW view_of_named AS SELECT * FROM {new}; ALTER PUBLICATION p ADD TABLE {new}"
    ))?;
    // As the remedy leaves it, without the old table; or as if it had been renamed.
    let alike = format!(
        "DO $$ BEGIN IF to_regclass('{new}') IS NULL THEN ALTER TABLE {name} RENAME TO {new}; \
         TRUNCATE {new}; ELSE ALTER TABLE {new} ALTER COLUMN id DROP DEFAULT; \
         DROP TABLE IF EXISTS {name}; END IF; END $$"
    );
    for which in [Which::First, Which::Second] {
        injected.undo.insert(0, (which, alike.clone()));
    }
    let drop = format!("ALTER PUBLICATION p DROP TABLE {new}");
    injected.undo.insert(2, (Which::Primary, drop));
    write(stage, &mut injected, INSERT, strength.choose(300, 50))?;
    Ok(injected)
}

/// The column of such a table that is no key.
fn column_of(stage: &Stage, table: &str) -> Result<String> {
    let column = stage.primary.query_text(&format!(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attname IN ('v', 'w')"
    ))?;
    Ok(column.unwrap_or_default())
}

/// A column of such a table is generated at the second subscriber.
pub(super) fn generated(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let (mut injected, name) = own_table(stage)?;
    let column = column_of(stage, &name)?;
    stage.second.execute(&format!(
        "ALTER TABLE {name} DROP COLUMN {column}, ADD COLUMN {column} text GENERATED ALWAYS AS ('own') STORED"
    ))?;
    let write_it = format!("ALTER TABLE {name} ALTER COLUMN {column} DROP EXPRESSION IF EXISTS");
    injected.undo.insert(0, (Which::Second, write_it));
    let drop = format!("ALTER PUBLICATION p DROP TABLE {name}");
    injected.undo.insert(1, (Which::Primary, drop));
    write(stage, &mut injected, INSERT, strength.choose(300, 50))?;
    Ok(injected)
}

/// A table of the second subscriber is unlogged.
pub(super) fn unlogged(_: &Lab, stage: &mut Stage, _: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage.second.execute("ALTER TABLE keyed SET UNLOGGED")?;
    let back = "ALTER TABLE keyed SET LOGGED";
    injected.undo.push((Which::Second, back.to_owned()));
    stage.calm()?;
    Ok(injected)
}

/// A partitioned table is published as its subscriber has it, and then by other names: by those of its
/// partitions. Strong: by its own.
pub(super) fn by_partitions(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    partitioned(stage, strength.choose(true, false))
}

/// So it is, and rows are written.
pub(super) fn written_by_partitions(
    _: &Lab,
    stage: &mut Stage,
    strength: Strength,
) -> Result<Injected> {
    let mut injected = partitioned(stage, true)?;
    let insert = "INSERT INTO parts (v) VALUES ('x')";
    write(stage, &mut injected, insert, strength.choose(300, 50))?;
    Ok(injected)
}

/// Publishes a partitioned table by its own name or by those of its partitions, lets the second subscriber
/// copy it, and then publishes it the other way.
fn partitioned(stage: &mut Stage, by_root: bool) -> Result<Injected> {
    let mut injected = Injected::default();
    stage.primary.execute(
        "CREATE TABLE parts (id bigserial PRIMARY KEY, v text) PARTITION BY RANGE (id); \
         CREATE TABLE parts_one PARTITION OF parts FOR VALUES FROM (1) TO (4); \
         CREATE TABLE parts_two PARTITION OF parts DEFAULT; \
         INSERT INTO parts (v) SELECT 'copied' FROM generate_series(1, 5)",
    )?;
    stage.primary.execute(&format!(
        "CREATE PUBLICATION {EXTRA} FOR TABLE parts WITH (publish_via_partition_root = {by_root})"
    ))?;
    let tables: &[&str] = if by_root {
        &["parts"]
    } else {
        &["parts_one", "parts_two"]
    };
    for table in tables {
        let create = format!("CREATE TABLE {table} (id bigint PRIMARY KEY, v text)");
        stage.second.execute(&create)?;
    }
    stage.second.execute(&subscribe(stage, ""))?;
    let drop = format!("DROP TABLE {}", tables.join(", "));
    for (which, sql) in [
        (Which::Second, "DROP SUBSCRIPTION extra"),
        (Which::Second, drop.as_str()),
        (Which::Primary, "DROP PUBLICATION extra"),
        (Which::Primary, "DROP TABLE parts"),
    ] {
        injected.undo.push((which, sql.to_owned()));
    }
    stage.await_copies(Which::Second)?;
    stage.calm()?;
    stage.primary.execute(&format!(
        "ALTER PUBLICATION {EXTRA} SET (publish_via_partition_root = {})",
        !by_root
    ))?;
    Ok(injected)
}

fn other<'n>(name: &str, names: &'n [&str; 2]) -> &'n str {
    let [one, two] = names;
    if name == *one { two } else { one }
}

/// Publishes a table of its own, which both subscribers follow once it is copied; its name. After the fault
/// its table stays, and is published no longer.
fn own_table(stage: &mut Stage) -> Result<(Injected, String)> {
    let mut injected = Injected::default();
    let [one, two] = NAMES;
    let sql = format!(
        "SELECT relname::text FROM pg_class WHERE relname IN ('{one}', '{two}') AND relkind = 'r'"
    );
    let name = match stage.primary.query_text(&sql)? {
        Some(name) => name,
        None => {
            let create =
                format!("CREATE TABLE {one} (id bigserial PRIMARY KEY, v text DEFAULT 'x')");
            stage.primary.execute(&format!(
                "{create}; CREATE VIEW view_of_named AS SELECT * FROM {one}"
            ))?;
            for server in [&stage.first, &stage.second] {
                server.execute(&create)?;
            }
            one.to_owned()
        }
    };
    for server in [&stage.first, &stage.second] {
        server.execute(&format!("TRUNCATE {name}"))?;
    }
    stage
        .primary
        .execute(&format!("ALTER PUBLICATION p ADD TABLE {name}"))?;
    for (which, subscription) in [(Which::First, "first"), (Which::Second, "second")] {
        let refresh = format!("ALTER SUBSCRIPTION {subscription} REFRESH PUBLICATION");
        stage.server(which).execute(&refresh)?;
        stage.await_copies(which)?;
        injected.undo.push((which, refresh));
    }
    stage.calm()?;
    Ok((injected, name))
}

/// Waits for the walsender of a subscription to be gone.
fn await_away(stage: &mut Stage, role: &str) -> Result<()> {
    let sql =
        format!("SELECT (count(*) = 0)::text FROM pg_stat_replication WHERE usename = '{role}'");
    await_true(stage, "lose a subscriber", &sql)
}

/// The connection string of the second subscription, with this part.
fn connect_second(stage: &Stage, user: &str, rest: &str) -> String {
    format!(
        "ALTER SUBSCRIPTION second CONNECTION 'host={} port={} user={user} dbname={DATABASE}{rest}'",
        stage.primary.sockets().display(),
        stage.primary.port()
    )
}

/// The second subscription connects as a role that loses its right to stream.
pub(super) fn role_without_replication(
    _: &Lab,
    stage: &mut Stage,
    strength: Strength,
) -> Result<Injected> {
    let mut injected = Injected::default();
    stage
        .primary
        .execute("DROP ROLE IF EXISTS streamer; CREATE ROLE streamer LOGIN REPLICATION")?;
    stage
        .second
        .execute(&connect_second(stage, "streamer", ""))?;
    let back = connect_second(stage, SUPERUSER, "");
    injected.undo.push((Which::Second, back));
    let is_there =
        "SELECT (count(*) = 1)::text FROM pg_stat_replication WHERE usename = 'streamer'";
    await_true(stage, "have its subscriber back", is_there)?;
    stage.primary.execute(
        "ALTER ROLE streamer NOREPLICATION; \
         SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE usename = 'streamer'",
    )?;
    await_away(stage, "streamer")?;
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}

/// The publisher refuses the second subscription's connection for an option that it does not know.
pub(super) fn connection_refused(
    _: &Lab,
    stage: &mut Stage,
    strength: Strength,
) -> Result<Injected> {
    let mut injected = Injected::default();
    stage
        .second
        .execute("SELECT pg_stat_reset_subscription_stats(NULL)")?;
    let refused = connect_second(stage, SUPERUSER, " options=-cnonsense=1");
    stage.second.execute(&refused)?;
    let back = connect_second(stage, SUPERUSER, "");
    injected.undo.push((Which::Second, back));
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 20))?;
    Ok(injected)
}
