//! Small transactions, which go to the target in one message: each is there with its position, or
//! nothing of it is.

use lockstep_client::Connection;
use lockstep_lab::assert_has;

use super::apply_lab::{Pair, rows, sql, until};

/// A session that lets no position be kept while it lives.
fn holds_positions(pair: &Pair) -> Connection {
    let mut holder = sql(&pair.target);
    let lock = "BEGIN; LOCK TABLE lockstep.apply_position IN SHARE MODE";
    holder.execute(lock).unwrap();
    holder
}

/// Waits until the writer has made its changes and waits to keep their position, which only a
/// transaction that goes in one message does by a prepared statement.
fn await_changes(pair: &Pair) {
    let waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                 AND query LIKE 'INSERT INTO lockstep.apply_position (replica, lsn) SELECT $1,%'";
    until("that the writer waits to keep a position", || {
        !rows(&pair.target, waits).is_empty()
    });
}

fn end_writer(pair: &Pair) {
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO lockstep.apply_position%'";
    assert_eq!(rows(&pair.target, end).len(), 1);
}

fn text(of: &str) -> Option<String> {
    Some(of.to_owned())
}

#[test]
fn rows_without_a_key_arrive_once_whoever_ends_between_them_and_their_position() {
    let mut pair = Pair::new("CREATE TABLE t (n int); CREATE TABLE k (id int PRIMARY KEY, n int)");
    pair.source.run("INSERT INTO k VALUES (1, 0)");
    pair.start();
    pair.catch_up();
    let write = "BEGIN; INSERT INTO t VALUES (1), (2); UPDATE k SET n = n + 1; COMMIT";
    let seen = "SELECT (SELECT count(*) FROM t), n FROM k";
    for round in 0..3 {
        let holder = holds_positions(&pair);
        pair.source.run(write);
        await_changes(&pair);
        let before = [text(&(2 * round).to_string()), text(&round.to_string())];
        assert_eq!(rows(&pair.target, seen), [before]);
        match round {
            0 => end_writer(&pair),
            1 => pair.stop(),
            _ => {}
        }
        drop(holder);
        if round == 1 {
            pair.start();
        }
        pair.assert_same(seen);
    }
}

#[test]
fn a_row_that_is_not_there_is_counted_once_in_the_transaction_that_lacks_it() {
    let mut pair = Pair::new(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)",
    );
    let control = pair.start();
    pair.source
        .run("INSERT INTO t SELECT i, 'old' FROM generate_series(1, 5) AS i");
    pair.catch_up();
    pair.target.run("DELETE FROM t WHERE id IN (2, 4, 5)");
    let holder = holds_positions(&pair);
    pair.source.run(
        "BEGIN; INSERT INTO u VALUES (1); UPDATE t SET v = 'new' WHERE id < 3; \
             DELETE FROM t WHERE id > 2; COMMIT",
    );
    await_changes(&pair);
    let missing = "SELECT coalesce(sum(missing_rows), 0) FROM lockstep.table_copy";
    assert_eq!(rows(&pair.target, missing), [[text("0")]]);
    end_writer(&pair);
    drop(holder);
    pair.assert_same("SELECT id FROM u");
    assert_eq!(rows(&pair.target, missing), [[text("3")]]);
    assert_eq!(control.stats().missing, 3);
    let left = rows(&pair.target, "SELECT id, v FROM t");
    assert_eq!(left, [[text("1"), text("new")]]);
}

#[test]
fn nothing_is_left_of_a_transaction_of_which_a_later_statement_is_refused() {
    let mut pair = Pair::new(
        "CREATE TABLE a (n int); CREATE TABLE b (id int PRIMARY KEY, v text); CREATE TABLE c (n int)",
    );
    let control = pair.start();
    let write = |id| {
        let write = format!(
            "BEGIN; INSERT INTO a VALUES ({id}); INSERT INTO b VALUES ({id}, 'its'); \
             INSERT INTO c VALUES ({id}); COMMIT"
        );
        pair.source.run(&write);
    };
    // The statements are prepared.
    write(1);
    pair.catch_up();
    pair.target.run("INSERT INTO b VALUES (2)");
    write(2);
    let words = pair.blocked();
    assert_has!(words, "table \"public.b\"", "Key (id)=(2) already exists");
    let of = "SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM c)";
    assert_eq!(rows(&pair.target, of), [[text("1"), text("1")]]);
    pair.target.run("DELETE FROM b WHERE id = 2");
    control.resume();
    pair.assert_same("SELECT a.n, b.v FROM a JOIN b ON b.id = a.n JOIN c ON c.n = a.n ORDER BY 1");
    pair.assert_same(of);
}

#[test]
fn more_tables_than_statements_are_kept_prepared_arrive() {
    let make = "DO $$ BEGIN FOR i IN 1 .. 520 LOOP \
        EXECUTE format('CREATE TABLE many_%s (n int)', i); END LOOP; END $$";
    let mut pair = Pair::new(make);
    let control = pair.start();
    pair.source.run("INSERT INTO many_2 VALUES (0)");
    pair.catch_up();
    for first in [1, 481] {
        // In transactions of several tables each, so that one comes where statements are forgotten.
        let write = format!(
            "DO $$ BEGIN FOR i IN {first} .. {first} + 479 LOOP \
               IF i <= 520 THEN EXECUTE format('INSERT INTO many_%s VALUES (1)', i); END IF; \
               IF i % 7 = 0 THEN COMMIT; END IF; END LOOP; END $$"
        );
        pair.source.run(&write);
    }
    pair.source.run("INSERT INTO many_1 VALUES (2)");
    pair.assert_same("SELECT n FROM many_1 ORDER BY n");
    let each = "DO $$ DECLARE found int; BEGIN FOR i IN 1 .. 520 LOOP \
        EXECUTE format('SELECT count(*) FROM many_%s WHERE n = 1', i) INTO found; \
        IF found <> 1 THEN RAISE 'many_% has %', i, found; END IF; END LOOP; END $$";
    pair.target.run(each);
    assert_eq!(control.stats().missing, 0);
    assert_eq!(control.stats().sessions, 1, "{:?}", control.stats());
    // Those that are forgotten are prepared again, all of them.
    let holder = holds_positions(&pair);
    pair.source.run("INSERT INTO many_2 VALUES (2)");
    await_changes(&pair);
    drop(holder);
    pair.assert_same("SELECT n FROM many_2 ORDER BY n");
}
