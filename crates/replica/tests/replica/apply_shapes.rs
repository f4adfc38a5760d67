//! Tables whose columns differ on both sides, or are none, or very many.

use lockstep_lab::for_tests::source_major;
use lockstep_lab::server::Server;

use super::apply_lab::{Pair, on, rows, run};

#[test]
fn a_column_that_is_wider_on_the_source_stops_before_the_first_change() {
    let mut pair = Pair::new(
        "CREATE DOMAIN price numeric(8, 2); \
         CREATE TABLE t (id int PRIMARY KEY, f real, n numeric(10, 2), at timestamp(0), of price, a real[], \
           i int, v varchar(5))",
    );
    // What is wider on the target loses nothing.
    let wider = "ALTER TABLE t ALTER i TYPE int8, ALTER v TYPE text";
    on(&pair.target, wider);
    let control = pair.start();
    let insert = |id| {
        format!(
            "INSERT INTO t VALUES ({id}, 0.1234567890123, 1.2345, '2026-01-01 00:00:00.5', 1.25, \
             '{{0.1234567890123}}', 7, 'abc')"
        )
    };
    run(&pair, &[&insert(1)]);
    pair.assert_same("SELECT * FROM t ORDER BY id");
    let widen = "ALTER TABLE t ALTER f TYPE float8, ALTER n TYPE numeric(12, 4), ALTER at TYPE timestamp, \
                 ALTER of TYPE numeric, ALTER a TYPE float8[]";
    run(&pair, &["DELETE FROM t", widen, &insert(2)]);
    let words = pair.blocked();
    for part in [
        "column \"f\" is real, and double precision on the source",
        "column \"n\" is numeric(10,2), and numeric(12,4) on the source",
        "column \"at\" is timestamp(0), and timestamp on the source",
        "column \"of\" is numeric(8,2), and numeric on the source",
        "column \"a\" is real[], and double precision[] on the source",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert_eq!(rows(&pair.target, "SELECT FROM t").len(), 0);
    on(&pair.target, widen);
    control.resume();
    pair.assert_same("SELECT * FROM t ORDER BY id");
    pair.stop();
}

/// Types that are altered on the source alone, and what the replica then says. The same on the target
/// mends it.
const ALTERED: [(&str, &str, &str); 7] = [
    (
        "ALTER TABLE t ALTER d TYPE double",
        "INSERT INTO t (id, d) VALUES (1, 0.1234567890123)",
        "column \"d\" is real, and a domain over double precision on the source",
    ),
    (
        "ALTER TABLE t ALTER a TYPE doubles",
        "INSERT INTO t (id, a) VALUES (2, '{0.1234567890123}')",
        "column \"a\" is real[], and a domain over double precision[] on the source",
    ),
    (
        "ALTER TABLE t ALTER z TYPE zoned",
        "INSERT INTO t (id, z) VALUES (3, '2026-01-01 00:00:00+05')",
        "column \"z\" is timestamp, and a domain over timestamp with time zone on the source",
    ),
    (
        "ALTER TYPE mood ADD VALUE 'new'",
        "INSERT INTO t (id, m) VALUES (4, 'new')",
        "invalid input value for enum public.mood: \"new\"",
    ),
    (
        "ALTER TABLE t ALTER g DROP EXPRESSION",
        "INSERT INTO t (id, g) VALUES (5, 100)",
        "values of its own for column \"g\", which is generated here",
    ),
    (
        "ALTER TABLE t ALTER x TYPE text",
        "INSERT INTO t (id, x) VALUES (6, '1.2345')",
        "column \"x\" is numeric(10,2), and text on the source",
    ),
    (
        "ALTER TABLE t ALTER y TYPE text",
        "INSERT INTO t (id, y) VALUES (7, '2026-01-01 10:00')",
        "column \"y\" is date, and text on the source",
    ),
];

#[test]
fn a_type_that_is_altered_on_the_source_alone_stops_before_the_first_change() {
    let mut pair = Pair::new(
        "CREATE DOMAIN single real; CREATE DOMAIN singles real[]; CREATE DOMAIN double float8; \
         CREATE DOMAIN doubles float8[]; CREATE DOMAIN local timestamp; CREATE DOMAIN zoned timestamptz; \
         CREATE DOMAIN price numeric(8, 2); CREATE TYPE mood AS ENUM ('old'); \
         CREATE TABLE t (id int PRIMARY KEY, d single, a singles, z local, n price, m mood, \
           g int GENERATED ALWAYS AS (id * 2) STORED, x numeric(10, 2), y date)",
    );
    let control = pair.start();
    let first = "INSERT INTO t VALUES (0, 0.5, '{0.5}', '2026-01-01', 1.25, 'old', DEFAULT, 1.25, \
                 '2026-01-01')";
    run(&pair, &[first]);
    pair.assert_same("SELECT * FROM t ORDER BY id");
    for (alter, insert, says) in ALTERED {
        let before = rows(&pair.target, "SELECT * FROM t ORDER BY id");
        run(&pair, &[alter, insert]);
        let words = pair.blocked();
        assert!(words.contains(says), "{alter}: {words}");
        assert_eq!(rows(&pair.target, "SELECT * FROM t ORDER BY id"), before);
        on(&pair.target, alter);
        control.resume();
        pair.assert_same("SELECT * FROM t ORDER BY id");
    }
    pair.stop();
}

/// Rules and row security of both sides stay out of what is applied.
#[test]
fn rules_and_forced_row_security_change_nothing_that_is_applied() {
    let table = "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE log (id int PRIMARY KEY, v int); \
                 CREATE RULE moved AS ON INSERT TO t WHERE NEW.id >= 100 DO INSTEAD INSERT INTO log VALUES (NEW.*); \
                 CREATE RULE kept AS ON DELETE TO t WHERE OLD.id = 1 DO INSTEAD NOTHING; \
                 CREATE RULE also AS ON UPDATE TO t DO ALSO INSERT INTO log VALUES (NEW.id, NEW.v); \
                 ALTER TABLE t ENABLE ROW LEVEL SECURITY; ALTER TABLE t FORCE ROW LEVEL SECURITY; \
                 CREATE POLICY none ON t USING (id > 1000) WITH CHECK (id > 1000)";
    let mut pair = Pair::new(table);
    let more = "CREATE RULE here AS ON INSERT TO t DO INSTEAD NOTHING; \
                CREATE RULE update AS ON UPDATE TO t DO INSTEAD DELETE FROM t WHERE id = OLD.id";
    on(&pair.target, more);
    let control = pair.start();
    run(
        &pair,
        &[
            "INSERT INTO t SELECT i, i FROM generate_series(1, 120) i",
            "UPDATE t SET v = -v WHERE id % 7 = 0",
            "DELETE FROM t WHERE id < 10",
            "TRUNCATE log",
            "INSERT INTO t VALUES (500, 1)",
        ],
    );
    pair.assert_same("SELECT * FROM t ORDER BY id");
    pair.assert_same("SELECT * FROM log ORDER BY id");
    assert_eq!(control.stats().missing, 0);
    pair.stop();
}

#[test]
fn rows_of_which_no_column_is_sent_are_deleted() {
    // From 18 on a publisher refuses to change rows whose replica identity has a column that is not sent.
    if source_major().unwrap().get() >= 18 {
        println!("ELSEWHERE: a source before 18 changes rows of which no column is sent");
        return;
    }
    let table = "CREATE TABLE g (a int, g int GENERATED ALWAYS AS (42) STORED); \
                 ALTER TABLE g DROP COLUMN a; ALTER TABLE g REPLICA IDENTITY FULL; \
                 INSERT INTO g SELECT FROM generate_series(1, 5)";
    let mut pair = Pair::new(table);
    let control = pair.start();
    run(
        &pair,
        &[
            "INSERT INTO g DEFAULT VALUES",
            "UPDATE g SET g = DEFAULT",
            "DELETE FROM g WHERE ctid = (SELECT min(ctid) FROM g)",
            "BEGIN; DELETE FROM g WHERE ctid = (SELECT min(ctid) FROM g); INSERT INTO g DEFAULT VALUES; \
             INSERT INTO g DEFAULT VALUES; COMMIT",
        ],
    );
    pair.assert_same("SELECT count(*), sum(g) FROM g");
    run(&pair, &["DELETE FROM g"]);
    pair.assert_same("SELECT count(*) FROM g");
    assert_eq!(control.stats().missing, 0);
    pair.stop();
}

#[test]
fn rows_with_as_many_columns_as_a_table_can_have_are_changed() {
    let wide = |column: fn(i: u32) -> String| (1..1600).map(column).collect::<Vec<_>>().join(", ");
    let columns = wide(|i| format!("c{i} {}", if i <= 65 { "text" } else { "int2" }));
    let external = (1..=65).map(|i| format!("ALTER c{i} SET STORAGE EXTERNAL"));
    let external = external.collect::<Vec<_>>().join(", ");
    let identity = wide(|i| format!("c{i} {}", if i == 1 { "text" } else { "int2" }));
    let mut pair = Pair::new(&format!(
        "CREATE TABLE w (id int PRIMARY KEY, {columns}); ALTER TABLE w {external}; \
         CREATE TABLE f (id int, {identity}); ALTER TABLE f REPLICA IDENTITY FULL; \
         CREATE TABLE always (id int PRIMARY KEY, {columns}, CHECK (id > 0)); \
         ALTER TABLE always {external}, ALTER c1000 SET NOT NULL, \
             ALTER c1000 TYPE int, ALTER c1000 ADD GENERATED ALWAYS AS IDENTITY"
    ));
    pair.start();
    let large = (1..=65)
        .map(|i| format!("c{i}"))
        .collect::<Vec<_>>()
        .join(", ");
    let values = vec!["repeat('x', 3000)"; 65].join(", ");
    for table in ["w", "always"] {
        for statement in [
            format!(
                "INSERT INTO {table} (id, {large}) SELECT i, {values} FROM generate_series(1, 3) i"
            ),
            format!("UPDATE {table} SET c1500 = 1 WHERE id = 1"),
            format!("UPDATE {table} SET id = 10, c66 = 2 WHERE id = 2"),
            format!("UPDATE {table} SET c1 = 'short', c1599 = 3"),
        ] {
            run(&pair, &[&statement]);
            pair.assert_same(&format!("SELECT ROW(t.*)::text FROM {table} t ORDER BY id"));
        }
    }
    run(
        &pair,
        &[
            "INSERT INTO f (id, c1, c1599) VALUES (1, 'a', 1), (1, 'a', 1), (2, 'b', 2)",
            "UPDATE f SET c1500 = 1 WHERE ctid = (SELECT min(ctid) FROM f)",
            "DELETE FROM f WHERE id = 2",
        ],
    );
    pair.assert_same("SELECT ROW(t.*)::text FROM f t ORDER BY 1");
    pair.stop();
}

/// Rows of columns that were read without an index.
const READ: &str = "SELECT seq_tup_read FROM pg_stat_sys_tables WHERE relname = 'pg_attribute'";

#[test]
fn the_catalog_is_not_read_whole_for_each_table() {
    let tables =
        (1..=80).map(|it| format!("CREATE TABLE t{it} (id int PRIMARY KEY, v text UNIQUE)"));
    let mut pair = Pair::new(&tables.collect::<Vec<_>>().join("; "));
    let number = |target: &Server, query: &str| {
        let found = rows(target, query);
        found[0][0].as_ref().unwrap().parse::<u64>().unwrap()
    };
    let columns = number(&pair.target, "SELECT count(*) FROM pg_attribute");
    let before = number(&pair.target, READ);
    let inserts = (1..=80).map(|it| format!("INSERT INTO t{it} VALUES (1, 'v')"));
    let inserts = inserts.collect::<Vec<_>>().join("; ");
    run(&pair, &[&format!("BEGIN; {inserts}; COMMIT")]);
    pair.start();
    pair.assert_same("SELECT * FROM t80");
    // Its sessions have told what they have read when they end.
    pair.stop();
    let read = number(&pair.target, READ) - before;
    assert!(read < 20 * columns, "{read} of {columns}");
}

#[test]
fn a_unique_index_that_only_the_target_has_is_named_as_the_cause() {
    let mut pair = Pair::apart(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "CREATE TABLE t (id int PRIMARY KEY, v int UNIQUE)",
    );
    let control = pair.start();
    run(&pair, &["INSERT INTO t VALUES (1, 1), (2, 1)"]);
    let words = pair.blocked();
    assert!(words.contains("t_v_key"), "{words}");
    let advice = "if the source has both rows, its index was dropped there: drop it here, too";
    assert!(words.contains(advice), "{words}");
    on(&pair.target, "ALTER TABLE t DROP CONSTRAINT t_v_key");
    control.resume();
    pair.assert_same("SELECT * FROM t ORDER BY id");
    pair.stop();
}
