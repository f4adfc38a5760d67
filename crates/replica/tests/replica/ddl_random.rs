//! Random commands and changes of rows, in transactions and queries of all shapes: the target always becomes
//! what the source is.

use fastrand::Rng;
use lockstep_client::Connection;
use lockstep_lab::for_tests::number;

use crate::ddl::Scene;
use crate::sql;

const SCHEMA: &str = "
CREATE SCHEMA s; CREATE SCHEMA r;
CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a SELECT g, 'v' || g FROM generate_series(1, 20) g;
CREATE TABLE s.b (id int, v text); ALTER TABLE s.b REPLICA IDENTITY FULL;
INSERT INTO s.b SELECT g % 7, 'w' FROM generate_series(1, 20) g;
CREATE TABLE p (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (50);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (50) TO (100000)";

/// Rounds from one seed, each of which ends with a comparison.
const ROUNDS: u64 = 6;

fn texts(source: &mut Connection, query: &str) -> Vec<String> {
    let rows = source.query(query).unwrap();
    rows.into_iter()
        .map(|row| row[0].clone().unwrap())
        .collect()
}

/// A random table, and one of its columns.
fn table(rng: &mut Rng, source: &mut Connection) -> (String, String) {
    let tables = "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n \
        ON n.oid = c.relnamespace WHERE n.nspname IN ('public', 's', 'r') AND c.relkind IN ('r', 'p') ORDER BY 1";
    let tables = texts(source, tables);
    let table = rng.choice(tables).unwrap_or("a".to_owned());
    let columns = format!(
        "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = to_regclass('{table}') AND attnum > 0 \
         AND NOT attisdropped ORDER BY attnum"
    );
    let column = rng.choice(texts(source, &columns));
    (table, column.unwrap_or("id".to_owned()))
}

fn is_moment(source: &mut Connection, table: &str, column: &str) -> bool {
    let sql = format!(
        "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('{table}') AND quote_ident(attname) = '{column}' \
         AND atttypid = 'timestamptz'::regtype"
    );
    !texts(source, &sql).is_empty()
}

/// A table is no partition and has none, and its rows violate no constraint.
fn is_plain(source: &mut Connection, table: &str) -> bool {
    let sql = format!(
        "SELECT 1 FROM pg_class c WHERE oid = to_regclass('{table}') AND relkind = 'r' AND NOT relispartition \
         AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND NOT k.convalidated)"
    );
    !texts(source, &sql).is_empty()
}

fn command(rng: &mut Rng, source: &mut Connection) -> String {
    let ((table, column), n) = (table(rng, source), rng.u32(0..1_000_000));
    let schema = rng.choice(["public", "s", "r"]).unwrap();
    match rng.u32(0..28) {
        0 => format!("CREATE TABLE {schema}.t{n} (id int PRIMARY KEY, v text)"),
        1 => format!("CREATE TABLE {schema}.t{n} (id int, v text DEFAULT ';')"),
        2 => format!("CREATE TABLE {schema}.t{n} (id serial PRIMARY KEY, v text UNIQUE)"),
        3 => format!("CREATE TABLE {schema}.t{n} AS SELECT * FROM {table}"),
        4 => format!("SELECT * INTO {schema}.t{n} FROM {table} LIMIT 5"),
        5 => format!("CREATE TABLE {schema}.t{n} (LIKE {table} INCLUDING ALL)"),
        6 => format!(
            "DO $$ BEGIN CREATE TABLE {schema}.t{n} (id int); INSERT INTO {schema}.t{n} VALUES (1), (2); \
             EXECUTE 'ALTER TABLE {schema}.t{n} ADD v text DEFAULT ''x;'''; END $$"
        ),
        7 => format!("CREATE TEMP TABLE t{n} (id int)"),
        8 => format!("ALTER TABLE {table} ADD c{n} int"),
        9 => format!("ALTER TABLE {table} ADD c{n} int NOT NULL DEFAULT {n}"),
        // An update of rows from before refuses those that violate a constraint.
        10 if is_plain(source, &table) => format!(
            "ALTER TABLE {table} ADD c{n} timestamptz DEFAULT now(), ADD d{n} text DEFAULT 'd'"
        ),
        11 => format!("ALTER TABLE {table} ADD g{n} text GENERATED ALWAYS AS (md5('{n}')) STORED"),
        12 => format!("ALTER TABLE {table} DROP {column}"),
        13 => format!("ALTER TABLE {table} RENAME {column} TO n{n}"),
        14 => format!("ALTER TABLE {table} RENAME TO r{n}"),
        15 => format!("ALTER TABLE {table} SET SCHEMA {schema}"),
        // The text of a moment is refused: what is written for it depends on more than its value.
        16 if !is_moment(source, &table, &column) => {
            format!("ALTER TABLE {table} ALTER {column} TYPE text USING upper({column}::text)")
        }
        17 => format!("CREATE INDEX ON {table} ({column})"),
        18 => format!("ALTER TABLE {table} ADD PRIMARY KEY ({column})"),
        19 => format!("ALTER TABLE {table} ALTER {column} SET DEFAULT NULL"),
        20 => format!("COMMENT ON COLUMN {table}.{column} IS 'n{n}; it''s'"),
        21 => format!("CREATE VIEW {schema}.v{n} AS SELECT * FROM {table}"),
        22 if n % 3 == 0 => format!("DROP TABLE {table} CASCADE"),
        23 => format!("CREATE TABLE x{n} PARTITION OF p FOR VALUES FROM (2{n}0) TO (2{n}9)"),
        24 => format!("ALTER TABLE {table} REPLICA IDENTITY FULL"),
        // Partitions stop it, and so does such a constraint.
        25..27 if is_plain(source, &table) => {
            format!("ALTER TABLE {table} ADD s{n} serial, ADD u{n} uuid DEFAULT gen_random_uuid()")
        }
        _ => format!(
            "ALTER TABLE {table} ADD CONSTRAINT k{n} CHECK ({column} IS NOT NULL) NOT VALID"
        ),
    }
}

/// A random change of rows.
fn change(rng: &mut Rng, source: &mut Connection) -> String {
    let ((table, column), n) = (table(rng, source), rng.u32(0..90));
    match rng.u32(0..10) {
        0..=4 => {
            format!(
                "INSERT INTO {table} ({column}) VALUES ('{n}'), ('{n}1') ON CONFLICT DO NOTHING"
            )
        }
        5..=7 => format!("UPDATE {table} SET {column} = {column} WHERE {column}::text > '{n}'"),
        8 => format!("DELETE FROM {table} WHERE {column}::text = '{n}'"),
        _ => format!("TRUNCATE {table}"),
    }
}

/// One query of the source, or several in a transaction. What it refuses is none.
fn something(rng: &mut Rng, source: &mut Connection) {
    let statements: Vec<_> = (0..rng.usize(1..6))
        .map(|_| match rng.u32(0..5) {
            0..=1 => command(rng, source),
            _ => change(rng, source),
        })
        .collect();
    match rng.u32(0..4) {
        // All at once.
        0 => drop(source.execute(&statements.join("; "))),
        1 => {
            let at_once = format!("BEGIN; {}; COMMIT", statements.join("; "));
            if source.execute(&at_once).is_err() {
                source.execute("ROLLBACK").unwrap();
            }
        }
        2 => {
            source.execute("BEGIN").unwrap();
            for statement in statements {
                source.execute("SAVEPOINT a").unwrap();
                if source.execute(&statement).is_err() || rng.u32(0..8) == 0 {
                    source.execute("ROLLBACK TO a").unwrap();
                }
            }
            source.execute("COMMIT").unwrap();
        }
        _ => {
            for statement in statements {
                let _ = source.query_with(&statement, &[]);
            }
        }
    }
}

fn follows(seed: u64, writers: usize) {
    let mut rng = Rng::with_seed(seed);
    let mut scene = Scene::new(SCHEMA);
    if writers > 1 {
        scene.stop();
        scene.writers = writers.into();
        scene.start();
    }
    let mut source = sql(&scene.source);
    for _ in 0..ROUNDS {
        for _ in 0..20 {
            something(&mut rng, &mut source);
        }
        scene.assert_same();
    }
}

#[test]
fn random_commands_are_followed() {
    let first = number("SEED").unwrap_or(1);
    let seeds = number("LOCKSTEP_SCHEMA_SEEDS").unwrap_or(2_u64);
    for seed in first..first + seeds {
        eprintln!("seed {seed}");
        follows(seed, if seed % 2 == 0 { 3 } else { 1 });
    }
}
