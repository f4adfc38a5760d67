//! Many rows deleted at once, and small changes of many tables: what goes to the target packed, or together.

use lockstep_lab::assert_has;

use crate::apply_lab::{Pair, on, sql};

/// Number of tables that one transaction changes.
const TABLES: usize = 120;

#[test]
fn many_rows_are_deleted_by_packed_keys_of_every_kind() {
    let mut pair = Pair::new(
        "CREATE TABLE two (id int2 PRIMARY KEY, v text); CREATE TABLE four (id int PRIMARY KEY); \
         CREATE TABLE eight (id int8 PRIMARY KEY); CREATE DOMAIN number AS int8 CHECK (VALUE IS NOT NULL); \
         CREATE TABLE own (id number PRIMARY KEY); CREATE TABLE pair (a int, b int, PRIMARY KEY (a, b)); \
         CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id); \
         CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (500); \
         CREATE TABLE parts_2 PARTITION OF parts DEFAULT",
    );
    let mut source = sql(&pair.source);
    let rows = "INSERT INTO two SELECT n, 'v' FROM generate_series(-32768, 32767) n; \
         INSERT INTO four SELECT n FROM generate_series(-50000, 50000) n; \
         INSERT INTO four VALUES (-2147483648), (2147483647); \
         INSERT INTO eight VALUES (-9223372036854775808), (9223372036854775807), (0), (-1), (1); \
         INSERT INTO eight SELECT DISTINCT ('x' || substr(md5(n::text), 1, 16))::bit(64)::int8 \
           FROM generate_series(1, 60000) n; \
         INSERT INTO own SELECT n FROM generate_series(1, 1000) n; \
         INSERT INTO pair SELECT n, -n FROM generate_series(1, 1000) n; \
         INSERT INTO parts SELECT n FROM generate_series(1, 1000) n";
    source.execute(rows).unwrap();
    let control = pair.start();
    pair.catch_up();
    assert_eq!(control.stats().missing, 0);
    // The target lacks some of the rows that will be deleted.
    let lost = "DELETE FROM four WHERE id IN (1, 2, 9); DELETE FROM two WHERE id = 6; \
         DELETE FROM eight WHERE id = 9223372036854775807";
    on(&pair.target, lost);
    for statement in [
        "DELETE FROM two WHERE id % 3 = 0 OR id BETWEEN -100 AND 200",
        "DELETE FROM four WHERE id BETWEEN -30000 AND 30000 OR id NOT BETWEEN -100000 AND 100000",
        "DELETE FROM four WHERE id % 11 = 0",
        "DELETE FROM eight WHERE id % 2 = 0 OR id NOT BETWEEN -9000000000000000000 AND 9000000000000000000 \
         OR id IN (-1, 1)",
        "DELETE FROM own WHERE id > 5",
        "DELETE FROM pair WHERE a > 7",
        "DELETE FROM parts WHERE id % 10 <> 0",
    ] {
        source.execute(statement).unwrap();
    }
    for table in ["two", "four", "eight", "own", "pair", "parts"] {
        pair.assert_same(&format!(
            "SELECT count(*), sum(hashtext(x::text)) FROM {table} x"
        ));
    }
    assert_eq!(control.stats().missing, 5);
    pair.stop();
}

/// Statements for each of [`TABLES`] tables, with `%` for its number.
fn each(statement: &str) -> String {
    let all = (1..=TABLES).map(|number| statement.replace('%', &number.to_string()));
    all.collect::<Vec<_>>().join("; ")
}

#[test]
fn a_transaction_changes_many_tables_and_the_one_that_is_in_the_way_is_named() {
    let tables = each(
        "CREATE TABLE m% (id int PRIMARY KEY, u int UNIQUE, v text); \
         INSERT INTO m% SELECT n, n, 'a' FROM generate_series(1, 5) n",
    );
    let mut pair = Pair::new(&tables);
    let control = pair.start();
    pair.catch_up();
    on(
        &pair.target,
        "DELETE FROM m5 WHERE id = 2; DELETE FROM m6 WHERE id = 2",
    );
    let swap = each(
        "UPDATE m% SET v = 'b' WHERE id IN (1, 2); DELETE FROM m% WHERE id = 5; \
         INSERT INTO m% VALUES (6, 5, 'c')",
    );
    let mut source = sql(&pair.source);
    let more = "INSERT INTO m9 SELECT n, n, 'd' FROM generate_series(100, 300) n; \
         UPDATE m8 SET u = -u; TRUNCATE m10";
    source
        .execute(&format!("BEGIN; {swap}; {more}; COMMIT"))
        .unwrap();
    pair.catch_up();
    assert_eq!(control.stats().missing, 2);
    let same = |pair: &Pair| {
        for number in (1..=TABLES).filter(|number| !matches!(number, 5 | 6 | 10)) {
            pair.assert_same(&format!("SELECT * FROM m{number} ORDER BY id"));
        }
    };
    same(&pair);
    // A row of the target alone is in the way of one of many.
    let theirs = "INSERT INTO m77 VALUES (7, 7, 'theirs')";
    on(&pair.target, theirs);
    let insert = each("INSERT INTO m% VALUES (7, 7, 'e')");
    source.execute(&format!("BEGIN; {insert}; COMMIT")).unwrap();
    let error = pair.blocked();
    assert_has!(error, "m77", "duplicate key");
    let rows = pair
        .target
        .query_text("SELECT count(*)::text FROM m1 WHERE v = 'e'");
    assert_eq!(rows.unwrap().as_deref(), Some("0"), "all or nothing");
    on(&pair.target, "DELETE FROM m77 WHERE id = 7");
    control.resume();
    same(&pair);
    pair.stop();
}
