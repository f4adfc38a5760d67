//! Values arrive as the source has them, whatever others have made of the target.

use super::apply_lab::{Pair, rows, sql};

/// Types of a user, each with casts from and to text that must not be called.
const TYPES: &str = "
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN whole AS pair CHECK (VALUE IS NULL OR (VALUE).a IS NOT NULL);
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE FUNCTION to_pair(text) RETURNS pair LANGUAGE plpgsql AS $$BEGIN RAISE 'called'; END$$;
CREATE FUNCTION to_pairs(text) RETURNS pair[] LANGUAGE plpgsql AS $$BEGIN RAISE 'called'; END$$;
CREATE FUNCTION to_mood(text) RETURNS mood LANGUAGE plpgsql AS $$BEGIN RAISE 'called'; END$$;
CREATE FUNCTION from_pair(pair) RETURNS text LANGUAGE plpgsql AS $$BEGIN RAISE 'called'; END$$;
CREATE FUNCTION from_mood(mood) RETURNS text LANGUAGE plpgsql AS $$BEGIN RAISE 'called'; END$$;
CREATE CAST (text AS pair) WITH FUNCTION to_pair(text);
CREATE CAST (text AS pair[]) WITH FUNCTION to_pairs(text);
CREATE CAST (text AS mood) WITH FUNCTION to_mood(text);
CREATE CAST (pair AS text) WITH FUNCTION from_pair(pair);
CREATE CAST (mood AS text) WITH FUNCTION from_mood(mood);
CREATE TABLE k (id int PRIMARY KEY, p pair, ps pair[], w whole, m mood, ms mood[]);
CREATE TABLE f (p pair, m mood, ps pair[]); ALTER TABLE f REPLICA IDENTITY FULL;
";

#[test]
fn casts_that_others_have_made_are_not_called() {
    let keyed = "CREATE TABLE by_pair (p pair PRIMARY KEY, v int); \
                 CREATE TABLE by_mood (m mood PRIMARY KEY, v int);";
    let keyless = "CREATE TABLE by_pair (p pair, v int); CREATE TABLE by_mood (m mood, v int);";
    let with_rows = |tables| format!("{TYPES}{tables}");
    let mut pair = Pair::apart(&with_rows(keyed), &with_rows(keyless));
    pair.source
        .run(
            "INSERT INTO k VALUES (1, '(1,\"x, \\\"y\\\"\")', '{\"(1,a)\",NULL,\"(,)\"}', '(1,)', 'good', '{bad,NULL}'), \
                 (2, NULL, NULL, NULL, NULL, NULL), (3, '(,)', '{}', '(3,c)', 'bad', '{}'); \
             UPDATE k SET p = ROW(4, 'd'), ps = ARRAY[ROW(5, 'e')::pair] WHERE id = 3; \
             UPDATE k SET id = 4, w = ROW(6, 'f')::pair WHERE id = 1; \
             INSERT INTO f SELECT ROW(i % 2, i::varchar)::pair, 'good', ARRAY[ROW(i, 'z')::pair] FROM generate_series(1, 5) i; \
             UPDATE f SET m = 'bad' WHERE (p).a = 1; DELETE FROM f WHERE (p).b = '2'; \
             INSERT INTO by_pair VALUES (ROW(1, 'a'), 1), (ROW(2, NULL), 2); \
             INSERT INTO by_mood VALUES ('good', 1), ('bad', 2)",
        );
    pair.start();
    pair.catch_up();
    pair.source.run(
        "UPDATE by_pair SET v = 3; UPDATE by_mood SET v = 3; \
             DELETE FROM by_pair WHERE (p).a = 1; DELETE FROM by_mood WHERE m = 'good'",
    );
    for table in ["k", "f", "by_pair", "by_mood"] {
        pair.assert_same(&format!("SELECT ROW(t.*)::text FROM {table} t ORDER BY 1"));
    }
}

/// `bool::text` is `true`, and `char(3)::text` has no blanks; the source writes `t` and `x  `.
#[test]
fn keys_without_an_index_are_compared_as_the_source_writes_them() {
    let columns = "a bool, b char(3), c int NOT NULL, d date, v int";
    let mut pair = Pair::apart(
        &format!("CREATE TABLE t ({columns}, PRIMARY KEY (a, b, c, d))"),
        &format!("CREATE TABLE t ({columns}); INSERT INTO t (c) VALUES (0)"),
    );
    pair.source
        .run("INSERT INTO t VALUES (true, 'x', 1, '2026-01-31'), (false, 'y', 2, 'infinity')");
    let control = pair.start();
    pair.catch_up();
    pair.source.run("UPDATE t SET v = 1; DELETE FROM t WHERE a");
    pair.catch_up();
    let query = "SELECT ROW(t.*)::text FROM t ORDER BY c";
    let expected = [["(,,0,,)"], ["(f,\"y  \",2,infinity,1)"]];
    let expected = expected.map(|[row]| [Some(row.to_owned())]);
    assert_eq!(rows(&pair.target, query), expected);
    assert_eq!(control.stats().missing, 0);
}

#[test]
fn settings_of_the_target_do_not_change_values() {
    let mut pair = Pair::new("CREATE TABLE t (id int PRIMARY KEY, v text)");
    let mut admin = sql(&pair.target);
    for setting in [
        "array_nulls = off",
        "transform_null_equals = on",
        "datestyle = 'SQL, DMY'",
        "standard_conforming_strings = off",
    ] {
        admin
            .execute(&format!("ALTER ROLE CURRENT_USER SET {setting}"))
            .unwrap();
    }
    pair.source.run(
        "INSERT INTO t VALUES (1, 'x'), (2, NULL), (3, 'NULL'), (4, E'a\\\\b'); \
             UPDATE t SET v = NULL WHERE id = 1",
    );
    pair.start();
    pair.assert_same("SELECT id, v, v IS NULL FROM t ORDER BY id");
}

/// Rows of all types that are copied in binary form, some with nulls. One has values that are left to the
/// target: from it on rows go as text.
#[test]
fn rows_that_are_copied_in_binary_form_are_what_the_source_has() {
    let columns = "id int8 PRIMARY KEY, s int2, i int4, r float4, d float8, b bool, t text, v varchar(20), \
                   c char(5), j json, jb jsonb, x bytea, u uuid, da date, ts timestamp, ts0 timestamp(0), \
                   tz timestamptz";
    let mut pair = Pair::new(&format!("CREATE TABLE t ({columns})"));
    for server in [&pair.source, &pair.target] {
        server.run("ALTER ROLE CURRENT_USER SET timezone = 'Asia/Kolkata'");
    }
    pair.target
        .run("ALTER ROLE CURRENT_USER SET log_statement = 'all'");
    pair.source.run(
        "INSERT INTO t SELECT n * 15000000000000000, n - 300, (n - 300) * 7000000, (n - 300)::float4 / 7, \
             CASE n WHEN 450 THEN 'NaN' ELSE exp(n - 300) END, n % 2 = 0, repeat(E'\\u00e9\\t\\\\\"\\n', n % 7), \
             repeat('v', n % 20), repeat('c', n % 6), json_build_object('n', n, 't', E'\\t\\\\'), \
             CASE WHEN n % 10 > 0 THEN jsonb_build_array(n, '\\', NULL, 'é') END, \
             decode(repeat(md5(n::text), n % 3), 'hex'), md5(n::text)::uuid, \
             CASE n WHEN 450 THEN 'infinity' ELSE date '0001-01-01' + n * 6000 END, \
             CASE n WHEN 450 THEN '-infinity' ELSE timestamp '1000-01-01' + n * interval '9 days 01:00:01.001' END, \
             timestamp '1999-01-01' + n * interval '1.7 days', \
             CASE n WHEN 450 THEN '0044-03-15 BC' ELSE timestamptz '1800-01-01' + n * interval '99.000001 days' END \
         FROM generate_series(1, 600) n",
    );
    pair.start();
    pair.assert_same("SELECT ROW(t.*)::text FROM t ORDER BY id");
    let log = pair.target.log_since(0).unwrap();
    let copies: Vec<_> = log
        .lines()
        .filter(|line| line.contains("COPY \"public\".\"t\""))
        .map(|line| line.ends_with("(FORMAT binary)"))
        .collect();
    assert_eq!(copies, [true, false], "{log}");
}
