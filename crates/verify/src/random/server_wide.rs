//! Episodes with sequences, large objects, databases, tablespaces and other objects that are
//! not tables.

use crate::random::generator::Session;
use crate::random::script::Action;
use crate::random::{Feature, PREFIX, SCHEMA};

/// nextval and setval of shared sequences.
pub(crate) fn sequences(session: &mut Session) {
    let sequence = session.one_of(&["plain_seq", "cached_seq"]);
    session.sql(
        Feature::Sequence,
        format!(
            "SELECT nextval('{sequence}') FROM generate_series(1, {})",
            session.between(1, 100)
        ),
    );
    session.sql(
        Feature::SequenceCycle,
        format!(
            "SELECT nextval('cycle_seq') FROM generate_series(1, {})",
            session.between(1, 90)
        ),
    );
    if session.chance(40) {
        let called = session.one_of(&["true", "false"]);
        session.sql(
            Feature::Sequence,
            format!(
                "SELECT setval('plain_seq', {}, {called})",
                session.between(1, 100_000)
            ),
        );
    }
}

/// Creates, alters and drops a sequence of the session's own, and alters a shared one.
pub(crate) fn sequence_life(session: &mut Session) {
    let sequence = session.fresh("seq");
    let block = session.chance(40);
    if block {
        session.begin();
    }
    session.sql(
        Feature::SequenceAlter,
        format!(
            "CREATE SEQUENCE {sequence} INCREMENT {}",
            session.between(1, 5)
        ),
    );
    session.sql(Feature::Sequence, format!("SELECT nextval('{sequence}')"));
    session.sql(
        Feature::SequenceAlter,
        format!(
            "ALTER SEQUENCE {sequence} RESTART WITH {} CACHE 3",
            session.between(1, 500)
        ),
    );
    session.sql(Feature::Sequence, format!("SELECT nextval('{sequence}')"));
    if block {
        session.end();
    }
    session.sql(
        Feature::SequenceAlter,
        format!(
            "ALTER SEQUENCE cached_seq RESTART WITH {}",
            session.between(1, 500)
        ),
    );
    if session.chance(60) {
        session.sql(
            Feature::SequenceAlter,
            format!("DROP SEQUENCE IF EXISTS {sequence}"),
        );
    }
}

/// Large objects. Table `lobs` lists them, so that they can be removed again.
pub(crate) fn large_objects(session: &mut Session) {
    let number = session.number();
    session.sql(
        Feature::LargeObject,
        format!(
            "INSERT INTO lobs SELECT lo_from_bytea(0, decode(repeat('{}', {}), 'hex')), {number}",
            session.one_of(&["00ff", "deadbeef", "0123456789abcdef"]),
            session.between(10, 6000)
        ),
    );
    if session.chance(50) {
        session.sql(
            Feature::LargeObject,
            format!(
                "SELECT lo_put(object, {}, 'changed') FROM lobs WHERE session = {number} LIMIT 1",
                session.between(0, 5000)
            ),
        );
    }
    if session.chance(40) {
        session.sql(
            Feature::LargeObject,
            format!(
                "WITH gone AS (DELETE FROM lobs WHERE session = {number} RETURNING object) \
                 SELECT lo_unlink(object) FROM gone"
            ),
        );
    }
}

/// Creates a database, works in it, and in most cases drops it.
pub(crate) fn database(session: &mut Session) {
    let database = format!(
        "{PREFIX}_db_{}_{}",
        session.number(),
        session.fresh_number()
    );
    let (feature, strategy) = if session.chance(50) {
        (Feature::DatabaseWalLog, "wal_log")
    } else {
        (Feature::DatabaseFileCopy, "file_copy")
    };
    session.sql(
        feature,
        format!("CREATE DATABASE {database} TEMPLATE template0 STRATEGY {strategy}"),
    );
    session.act(Feature::DatabaseUse, Action::IfSucceeded);
    session.act(Feature::DatabaseUse, Action::Connect(database.clone()));
    for sql in [
        format!("CREATE SCHEMA {SCHEMA}"),
        "CREATE TABLE inside (id int PRIMARY KEY, v text)".to_owned(),
        format!(
            "INSERT INTO inside SELECT i, repeat('d', i % 100) FROM generate_series(1, {}) i",
            session.between(10, 1000)
        ),
        "VACUUM FULL pg_catalog.pg_class".to_owned(),
    ] {
        session.sql(Feature::DatabaseUse, sql);
    }
    session.act(Feature::DatabaseUse, Action::Return);
    session.act(Feature::DatabaseUse, Action::EndIf);
    if session.chance(80) {
        session.sql(
            Feature::DatabaseDrop,
            format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)"),
        );
    }
}

/// An in-place tablespace. A server without `allow_in_place_tablespaces` refuses it, and the
/// rest of the episode is skipped.
pub(crate) fn tablespace(session: &mut Session) {
    let space = format!(
        "{PREFIX}_ts_{}_{}",
        session.number(),
        session.fresh_number()
    );
    let table = session.fresh("spaced");
    session.sql(
        Feature::Tablespace,
        format!("CREATE TABLESPACE {space} LOCATION ''"),
    );
    session.act(Feature::Tablespace, Action::IfSucceeded);
    session.sql(
        Feature::CreateTable,
        format!(
            "CREATE TABLE {table} TABLESPACE {space} AS SELECT i FROM generate_series(1, {}) i",
            session.between(10, 2000)
        ),
    );
    session.sql(
        Feature::TablespaceMove,
        format!("CREATE INDEX {table}_i ON {table} (i) TABLESPACE {space}"),
    );
    session.sql(
        Feature::TablespaceMove,
        format!("ALTER INDEX {table}_i SET TABLESPACE pg_default"),
    );
    session.sql(
        Feature::TablespaceMove,
        format!("ALTER TABLE {table} SET TABLESPACE pg_default"),
    );
    if session.chance(40) {
        session.sql(
            Feature::TablespaceMove,
            format!("ALTER TABLE {table} SET TABLESPACE {space}"),
        );
    }
    if session.chance(70) {
        session.sql(Feature::DropTable, format!("DROP TABLE {table}"));
        session.sql(Feature::Tablespace, format!("DROP TABLESPACE {space}"));
    }
    session.act(Feature::Tablespace, Action::EndIf);
}

/// CHECKPOINT: the next change of each page logs a full page image.
pub(crate) fn checkpoint(session: &mut Session) {
    session.sql(Feature::Checkpoint, "CHECKPOINT");
}

/// A restore point, and a switch that leaves the rest of a WAL segment unused.
pub(crate) fn switch_wal(session: &mut Session) {
    session.sql(
        Feature::SwitchWal,
        "SELECT pg_create_restore_point('random')",
    );
    session.sql(Feature::SwitchWal, "SELECT pg_switch_wal()");
}

/// Logical messages and notifications: replay does nothing for their records.
pub(crate) fn messages(session: &mut Session) {
    let transactional = session.one_of(&["true", "false"]);
    session.sql(
        Feature::Message,
        format!(
            "SELECT pg_logical_emit_message({transactional}, 'random', repeat('m', {}))",
            session.between(1, 20_000)
        ),
    );
    session.sql(Feature::Message, "NOTIFY random, 'hello'");
}

/// A replication origin is created, advanced and dropped.
pub(crate) fn origin(session: &mut Session) {
    let origin = format!(
        "{PREFIX}_origin_{}_{}",
        session.number(),
        session.fresh_number()
    );
    for sql in [
        format!("SELECT pg_replication_origin_create('{origin}')"),
        format!(
            "SELECT pg_replication_origin_advance('{origin}', '0/{:X}')",
            session.between(1, 1 << 30)
        ),
        format!("SELECT pg_replication_origin_drop('{origin}')"),
    ] {
        session.sql(Feature::Origin, sql);
    }
}

/// Statements that change only catalogs.
pub(crate) fn catalog(session: &mut Session) {
    let name = session.fresh("obj");
    match session.between(0, 4) {
        0 => {
            session.sql(
                Feature::Catalog,
                format!("CREATE FUNCTION {name}(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + 1'"),
            );
            session.sql(Feature::Catalog, format!("DROP FUNCTION {name}(int)"));
        }
        1 => {
            session.sql(
                Feature::Catalog,
                format!("CREATE TYPE {name} AS ENUM ('a', 'b')"),
            );
            session.sql(
                Feature::Catalog,
                format!("ALTER TYPE {name} ADD VALUE 'c' BEFORE 'b'"),
            );
        }
        2 => session.sql(
            Feature::Catalog,
            format!(
                "COMMENT ON TABLE heap IS '{name} {}'",
                "long ".repeat(session.between(0, 900) as usize)
            ),
        ),
        3 => {
            session.sql(Feature::Catalog, "ANALYZE heap, wide");
        }
        _ => {
            session.sql(
                Feature::Catalog,
                format!("CREATE VIEW {name} AS SELECT id, k FROM heap"),
            );
            session.sql(
                Feature::Catalog,
                format!("GRANT SELECT ON {name} TO PUBLIC"),
            );
        }
    }
}
