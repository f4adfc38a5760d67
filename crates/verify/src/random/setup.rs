//! The tables that all sessions share, and the statements before and after the sessions.

use fastrand::Rng;

use crate::random::indexes::{KINDS, WIDE_COLUMNS, wide_rows};
use crate::random::{PREFIX, SCHEMA};

/// Rows of `heap`, whose ids are 1 to this number.
pub(crate) const HEAP_ROWS: u32 = 600;

pub(crate) const WIDE_ROWS: u32 = 300;

pub(crate) const TOAST_ROWS: u32 = 20;

/// Rows of `locked`: few, so that sessions lock the same rows.
pub(crate) const LOCKED_ROWS: u32 = 12;

pub(crate) const RECYCLED_ROWS: u32 = 400;

/// Number of ids in one partition of `part`.
pub(crate) const PARTITION_SIZE: u32 = 1000;

/// Partitions of `part` that the set-up creates.
pub(crate) const PARTITIONS: u32 = 4;

/// Removes what an earlier workload, perhaps an interrupted one, has left. The patterns match
/// whole names, so that they do not match objects of others.
fn cleaning() -> String {
    format!(
        "SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts\n\
         WHERE gid ~ '^{PREFIX}_xact_[0-9]+_[0-9]+$' AND database = current_database() \\gexec\n\
         SELECT format('DROP DATABASE %I WITH (FORCE)', datname) FROM pg_database\n\
         WHERE datname ~ '^{PREFIX}_db_[0-9]+_[0-9]+$' \\gexec\n\
         SELECT format('SELECT pg_replication_origin_drop(%L)', roname) FROM pg_replication_origin\n\
         WHERE roname ~ '^{PREFIX}_origin_[0-9]+_[0-9]+$' \\gexec\n\
         SELECT format('SELECT lo_unlink(object) FROM {SCHEMA}.lobs WHERE EXISTS\n\
         (SELECT FROM pg_largeobject_metadata WHERE oid = object)')\n\
         WHERE to_regclass('{SCHEMA}.lobs') IS NOT NULL \\gexec\n\
         DROP SCHEMA IF EXISTS {SCHEMA} CASCADE;\n\
         SELECT format('DROP TABLESPACE %I', spcname) FROM pg_tablespace\n\
         WHERE spcname ~ '^{PREFIX}_ts_[0-9]+_[0-9]+$' \\gexec\n"
    )
}

/// The statements that run before the sessions.
pub(crate) fn setup(seed: u64) -> String {
    let mut rng = Rng::with_seed(seed);
    let mut text = String::from("\\set ON_ERROR_STOP on\n\\o /dev/null\n");
    text.push_str("SET client_min_messages = error;\nSET timezone = 'UTC';\n");
    text.push_str(&cleaning());
    text.push_str(&format!(
        "CREATE SCHEMA {SCHEMA};\nSET search_path = {SCHEMA};\n"
    ));
    text.push_str(&heap_tables(&mut rng));
    text.push_str(&wide_table(&mut rng));
    text.push_str(&partitioned_tables());
    text.push_str(&other_tables());
    text
}

fn heap_tables(rng: &mut Rng) -> String {
    let fillfactor = rng.u32(40..=100);
    let deduplicate = ["on", "off"].get(rng.usize(..2)).copied().unwrap_or("on");
    format!(
        "CREATE TABLE heap (id int PRIMARY KEY, k int NOT NULL, v int NOT NULL, pad text) WITH (fillfactor = {fillfactor});\n\
         CREATE INDEX heap_k ON heap (k) WITH (deduplicate_items = {deduplicate});\n\
         INSERT INTO heap SELECT i, i % 50, 0, repeat('x', i % 200) FROM generate_series(1, {HEAP_ROWS}) i;\n\
         CREATE TABLE recycled (id int NOT NULL, v int NOT NULL, pad text);\n\
         CREATE INDEX recycled_id ON recycled (id);\n\
         CREATE INDEX recycled_v ON recycled (v);\n\
         INSERT INTO recycled SELECT i, i % 37, repeat('r', i % 60) FROM generate_series(1, {RECYCLED_ROWS}) i;\n\
         CREATE TABLE toast (id int PRIMARY KEY, packed text, plain text, n int NOT NULL);\n\
         ALTER TABLE toast ALTER plain SET STORAGE external;\n\
         INSERT INTO toast SELECT i, repeat('compressible ', i * 300), repeat(md5(i::text), i * 20), 0 FROM generate_series(1, {TOAST_ROWS}) i;\n\
         CREATE TABLE locked (id int PRIMARY KEY, v int NOT NULL);\n\
         INSERT INTO locked SELECT i, 0 FROM generate_series(1, {LOCKED_ROWS}) i;\n\
         CREATE TABLE locked_child (id bigserial PRIMARY KEY, parent int REFERENCES locked ON DELETE CASCADE);\n\
         CREATE INDEX locked_child_parent ON locked_child (parent);\n"
    )
}

fn wide_table(rng: &mut Rng) -> String {
    let salt = rng.u32(1..1000);
    let mut text = format!("CREATE TABLE wide ({WIDE_COLUMNS});\n");
    text.push_str(&format!(
        "INSERT INTO wide {};\n",
        wide_rows(1, WIDE_ROWS, salt)
    ));
    for (number, kind) in KINDS.iter().enumerate() {
        let unique = if kind.unique { "UNIQUE " } else { "" };
        text.push_str(&format!(
            "CREATE {unique}INDEX wide_{number} ON wide {};\n",
            kind.definition
        ));
    }
    text
}

fn partitioned_tables() -> String {
    let mut text = String::from(
        "CREATE TABLE part (id int NOT NULL, k int NOT NULL, note text, PRIMARY KEY (id)) PARTITION BY RANGE (id);\n\
         CREATE INDEX part_k ON part (k);\n",
    );
    for number in 0..PARTITIONS {
        text.push_str(&format!(
            "CREATE TABLE part_{number} PARTITION OF part FOR VALUES FROM ({}) TO ({});\n",
            number * PARTITION_SIZE,
            (number + 1) * PARTITION_SIZE
        ));
    }
    text.push_str(
        "INSERT INTO part SELECT i, i % 9, 'n' || i FROM generate_series(0, 3999, 13) i;\n\
         CREATE TABLE hashed (id int NOT NULL, v int) PARTITION BY HASH (id);\n\
         CREATE TABLE hashed_0 PARTITION OF hashed FOR VALUES WITH (MODULUS 2, REMAINDER 0);\n\
         CREATE TABLE hashed_1 PARTITION OF hashed FOR VALUES WITH (MODULUS 2, REMAINDER 1);\n\
         CREATE INDEX hashed_id ON hashed (id);\n",
    );
    text
}

fn other_tables() -> String {
    format!(
        "CREATE SEQUENCE plain_seq;\n\
         CREATE SEQUENCE cached_seq CACHE 20;\n\
         CREATE SEQUENCE cycle_seq MINVALUE 1 MAXVALUE 40 CYCLE;\n\
         CREATE MATERIALIZED VIEW summary AS SELECT k, count(*) AS rows, sum(v) AS total FROM heap GROUP BY k;\n\
         CREATE UNIQUE INDEX summary_k ON summary (k);\n\
         CREATE UNLOGGED TABLE unlogged (id bigserial PRIMARY KEY, v text);\n\
         CREATE INDEX unlogged_v ON unlogged USING hash (v);\n\
         CREATE TABLE booked (room int NOT NULL, during int4range NOT NULL, EXCLUDE USING gist (during WITH &&));\n\
         CREATE TABLE lobs (object oid PRIMARY KEY, session int NOT NULL);\n\
         CREATE TABLE altered (id int PRIMARY KEY, v int);\n\
         INSERT INTO altered SELECT i, i FROM generate_series(1, 200) i;\n\
         ANALYZE {SCHEMA}.heap, {SCHEMA}.wide, {SCHEMA}.recycled, {SCHEMA}.part;\n"
    )
}

/// The statements that run after the sessions. They roll back prepared transactions, which
/// would block other work. (A session finishes its own, unless its connection was lost.)
pub(crate) const CLOSING: &str = "\\set ON_ERROR_STOP on\n\\o /dev/null\n\
     SET client_min_messages = error;\n\
     SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts\n\
     WHERE gid ~ '^lockstep_random_xact_[0-9]+_[0-9]+$' AND database = current_database() \\gexec\n";
