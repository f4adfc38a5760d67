//! Tables whose columns differ on both sides, or are none, or very many.

use super::apply_lab::{Pair, rows, sql};

fn run(pair: &Pair, statements: &[&str]) {
    let mut source = sql(&pair.source);
    for statement in statements {
        source.execute(statement).unwrap();
    }
}

#[test]
fn a_column_that_is_wider_on_the_source_stops_before_the_first_change() {
    let mut pair = Pair::new(
        "CREATE DOMAIN price numeric(8, 2); \
         CREATE TABLE t (id int PRIMARY KEY, f real, n numeric(10, 2), at timestamp(0), of price, a real[], \
           i int, v varchar(5))",
    );
    // What is wider on the target loses nothing.
    let wider = "ALTER TABLE t ALTER i TYPE int8, ALTER v TYPE text";
    sql(&pair.target).execute(wider).unwrap();
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
    sql(&pair.target).execute(widen).unwrap();
    control.resume();
    pair.assert_same("SELECT * FROM t ORDER BY id");
    pair.stop();
}
