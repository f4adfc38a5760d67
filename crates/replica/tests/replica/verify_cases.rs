//! Equality is found equal while changes flow, and differences are named.

use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_apply::Starts;
use lockstep_lab::assert_has;
use lockstep_replica::state::Applied;
use lockstep_replica::verify::hold::ThroughState;
use lockstep_replica::verify::{self, DifferenceKind, Hold, InProcess, Options, Report};

use super::apply_lab::{LONG, Pair, conninfo, on, sql};
use super::{copied, state_of};

pub fn options(pair: &Pair) -> Options {
    Options {
        source: conninfo(&pair.source),
        target: conninfo(&pair.target),
        publications: vec!["everything".to_owned()],
        starts: Starts::default(),
        listed: Vec::new(),
        jobs: 2,
        range_rows: 100,
        patience: LONG,
    }
}

pub fn differences(report: &Report) -> Vec<(String, String, DifferenceKind)> {
    let tables = report.tables.iter();
    tables
        .flat_map(|table| {
            let named =
                |one: &verify::Difference| (table.table.table.clone(), one.key.clone(), one.kind);
            table.differences.iter().map(named).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn equal_while_changes_flow() {
    let mut pair = Pair::new(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE k (k text PRIMARY KEY, v int); \
         CREATE TABLE f (a int); ALTER TABLE f REPLICA IDENTITY FULL",
    );
    let mut source = sql(&pair.source);
    source
        .execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 1000) i; ANALYZE t")
        .unwrap();
    let control = pair.start();
    pair.catch_up();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0;
            while !done.load(Ordering::SeqCst) {
                number += 1;
                source
                    .execute(&format!(
                        "BEGIN; UPDATE t SET v = '{number}' WHERE id % 100 = {number} % 100; \
                         INSERT INTO k VALUES ('{number}', {number}); \
                         DELETE FROM k WHERE v < {number} - 50; \
                         INSERT INTO f VALUES ({number} % 3); COMMIT"
                    ))
                    .unwrap();
            }
            number
        });
        let mut last = None;
        for _ in 0..5 {
            let report = verify::run(&options(&pair), &mut InProcess(&control));
            let report = report.inspect_err(|_| done.store(true, Ordering::SeqCst));
            let report = report.unwrap();
            if !report.is_equal() {
                done.store(true, Ordering::SeqCst);
            }
            assert!(report.is_equal(), "{report:?}");
            assert_eq!(report.tables.len(), 3);
            assert!(last < Some(report.lsn));
            last = Some(report.lsn);
        }
        done.store(true, Ordering::SeqCst);
        assert!(writer.join().unwrap() > 5);
    });
    pair.assert_same("SELECT count(*), sum(v) FROM k");
}

#[test]
fn rows_that_differ_are_named() {
    let mut pair = Pair::new(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE f (a int, b text); \
         ALTER TABLE f REPLICA IDENTITY FULL; CREATE TABLE gone (id uuid PRIMARY KEY); \
         CREATE TABLE \"A b\" (\"x y\" text, n int, PRIMARY KEY (\"x y\", n))",
    );
    pair.source.run(
        "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 1000) i; ANALYZE t; \
             INSERT INTO f VALUES (1, 'a'), (1, 'a'), (2, NULL); \
             INSERT INTO \"A b\" VALUES ('q', 1), ('r', 2)",
    );
    let control = pair.start();
    pair.catch_up();
    let options = options(&pair);
    assert!(
        verify::run(&options, &mut InProcess(&control))
            .unwrap()
            .is_equal()
    );
    pair.target.run(
        "UPDATE t SET v = 'w' WHERE id = 700; DELETE FROM t WHERE id = 100; \
             INSERT INTO t VALUES (-5, 'v'); DELETE FROM f WHERE ctid = '(0,1)'; DROP TABLE gone; \
             UPDATE \"A b\" SET n = 3 WHERE n = 2",
    );
    let report = verify::run(&options, &mut InProcess(&control)).unwrap();
    let named = |table: &str, key: &str, kind| (table.to_owned(), key.to_owned(), kind);
    assert_eq!(
        differences(&report),
        [
            named("A b", "(r,2)", DifferenceKind::Missing),
            named("A b", "(r,3)", DifferenceKind::Extra),
            named("f", "(1,a)", DifferenceKind::Missing),
            named("gone", "", DifferenceKind::NoTable),
            named("t", "(-5)", DifferenceKind::Extra),
            named("t", "(100)", DifferenceKind::Missing),
            named("t", "(700)", DifferenceKind::Changed),
        ]
    );
    let rows: Vec<_> = report.tables.iter().map(|table| table.rows).collect();
    assert_eq!(rows, [2, 3, 0, 1000]);
    // Changes flow again afterwards, also after a verify that could not be done.
    pair.source.run("INSERT INTO t VALUES (2000, 'x')");
    pair.catch_up();
}

#[test]
fn a_process_that_ends_is_not_waited_for() {
    let (_lab, _source, target) = copied("CREATE TABLE t (id int PRIMARY KEY)");
    let mut state = state_of(&target);
    let words = "it has ended with an error";
    let applied = Applied {
        state: "stopped".to_owned(),
        error: Some(words.to_owned()),
        ..Applied::default()
    };
    state.set_applied("r", &applied).unwrap();
    let name = "r".to_owned();
    let error = ThroughState { state, name }.hold(LONG).unwrap_err();
    let error = error.to_string();
    assert_has!(error, "no process applies", words);
}

#[test]
fn a_wider_type_of_the_target_is_no_difference() {
    let mut pair = Pair::new(
        "CREATE DOMAIN price numeric(8, 2); CREATE TABLE t (k numeric(10, 2) PRIMARY KEY, i int, c char(5), \
             d price, n numeric(10, 2))",
    );
    on(
        &pair.target,
        "ALTER TABLE t ALTER k TYPE numeric(12, 4), ALTER i TYPE numeric(12, 3), ALTER c TYPE char(9), \
                 ALTER d TYPE numeric(12, 4), ALTER n TYPE numeric(12, 4)",
    );
    let mut source = sql(&pair.source);
    let rows = "INSERT INTO t SELECT i + 0.5, i, 'a', i + 0.25, 3.7 FROM generate_series(1, 300) i; \
        ANALYZE t";
    source.execute(rows).unwrap();
    let control = pair.start();
    pair.catch_up();
    let report = verify::run(&options(&pair), &mut InProcess(&control)).unwrap();
    assert!(
        report.is_equal() && report.tables[0].rows == 300,
        "{report:?}"
    );
    on(&pair.target, "UPDATE t SET n = n + 0.0001 WHERE k = 7.5");
    let report = verify::run(&options(&pair), &mut InProcess(&control)).unwrap();
    let changed = ("t".to_owned(), "(7.5)".to_owned(), DifferenceKind::Changed);
    assert_eq!(differences(&report), [changed]);
}
