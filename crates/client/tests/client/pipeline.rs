//! Statements without a round trip for each.

use std::time::Duration;

use lockstep_client::{Answered, ClientError, field};
use lockstep_lab::cluster::Lab;

use crate::{assert_line, primary, sql, value};

#[test]
fn each_statement_has_its_answer() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = sql(&server);
    let mut pipeline = client.pipeline().unwrap();
    pipeline.query("BEGIN", &[]).unwrap();
    pipeline
        .query("CREATE TABLE t (id int PRIMARY KEY, v text)", &[])
        .unwrap();
    pipeline
        .prepare("insert", "INSERT INTO t VALUES ($1, $2)")
        .unwrap();
    for id in 1..=3 {
        pipeline
            .query_prepared("insert", &[&id, &None::<&str>])
            .unwrap();
    }
    pipeline
        .query("UPDATE t SET v = $1 WHERE id > $2", &[&"x", &1])
        .unwrap();
    pipeline
        .query("SELECT id, v FROM t ORDER BY id", &[])
        .unwrap();
    pipeline.query("COMMIT", &[]).unwrap();
    let answers = pipeline.finish().unwrap();
    let affected: Vec<_> = answers.iter().map(|answer| answer.affected).collect();
    assert_eq!(affected, [0, 0, 0, 1, 1, 1, 2, 3, 0]);
    assert_eq!(answers[7].rows.len(), 3);
    assert_eq!(field(&answers[7].rows[2], 1), Ok("x".to_owned()));
    // Also if the rows of the statement before came one by one.
    assert_eq!(value(&mut client, "SELECT 1"), "1");
    let mut pipeline = client.pipeline().unwrap();
    for last in [2, 3] {
        let rows = "SELECT generate_series(1, $1::int)";
        pipeline.query(rows, &[&last]).unwrap();
    }
    let answers = pipeline.finish().unwrap();
    let rows: Vec<_> = answers
        .iter()
        .map(|answer| (answer.rows.len(), answer.affected))
        .collect();
    assert_eq!(rows, [(2, 2), (3, 3)]);
    // An empty one, and the connection goes on as before.
    assert_eq!(client.pipeline().unwrap().finish(), Ok(Vec::new()));
    assert_eq!(value(&mut client, "SELECT count(*) FROM t"), "3");
    assert_eq!(client.copy_out("COPY t TO STDOUT").unwrap().finish(), Ok(3));
}

#[test]
fn much_in_both_directions_does_not_stall() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = sql(&server);
    let long = "y".repeat(10_000);
    let mut pipeline = client.pipeline().unwrap();
    for number in 0..3_000 {
        pipeline
            .query("SELECT $1::int, $2::text", &[&number, &long])
            .unwrap();
    }
    let answers = pipeline.finish().unwrap();
    assert_eq!(answers.len(), 3_000);
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!(field(&answer.rows[0], 0), Ok(number));
    }
    // There is a limit.
    let mut pipeline = client.pipeline().unwrap();
    let sent = (0..100).try_for_each(|_| pipeline.query("SELECT repeat('x', $1)", &[&1_000_000]));
    let error = sent.and_then(|()| pipeline.finish()).unwrap_err();
    assert_line(&error, &["64 MB"]);
    assert!(client.is_closed());
}

#[test]
fn the_first_error_ends_all() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = sql(&server);
    client.execute("CREATE TABLE t (id int)").unwrap();
    let mut pipeline = client.pipeline().unwrap();
    pipeline.query("INSERT INTO t VALUES (1)", &[]).unwrap();
    pipeline.query("SELECT 1 / $1::int", &[&0]).unwrap();
    pipeline
        .query("INSERT INTO t VALUES (nothing)", &[])
        .unwrap();
    let error = pipeline.finish().unwrap_err();
    assert_line(
        &error,
        &["did not run statement 2 of a pipeline: division by zero"],
    );
    assert_eq!(error.refusal().unwrap().sqlstate, "22012");
    // The implicit transaction is rolled back, and the connection can be used.
    assert_eq!(value(&mut client, "SELECT count(*) FROM t"), "0");

    // One that takes too long is cancelled.
    client.set_patience(Duration::from_millis(50));
    let mut pipeline = client.pipeline().unwrap();
    pipeline.query("INSERT INTO t VALUES (1)", &[]).unwrap();
    pipeline.query("SELECT pg_sleep(1000)", &[]).unwrap();
    let error = pipeline.finish().unwrap_err();
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error:?}");
    client.set_patience(Duration::from_secs(60));
    assert_eq!(value(&mut client, "SELECT count(*) FROM t"), "0");

    // One that nobody finished.
    let mut pipeline = client.pipeline().unwrap();
    pipeline.query("INSERT INTO t VALUES (1)", &[]).unwrap();
    drop(pipeline);
    assert!(client.is_closed());
    assert!(client.pipeline().is_err());
    drop(client);
    let mut client = sql(&server);
    assert_eq!(value(&mut client, "SELECT count(*) FROM t"), "0");

    // COPY is not possible, and what the server says when it ends is heard.
    let mut pipeline = client.pipeline().unwrap();
    pipeline.query("COPY t TO STDOUT", &[]).unwrap();
    assert!(pipeline.finish().is_err());
    let mut client = sql(&server);
    let mut pipeline = client.pipeline().unwrap();
    let end = "SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(1000)";
    pipeline.query(end, &[]).unwrap();
    let error = pipeline.finish().unwrap_err();
    assert_eq!(error.report().unwrap().sqlstate, "57P01", "{error:?}");
    assert!(client.is_closed());
}

#[test]
fn what_was_answered_is_one_transaction_with_what_follows() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let (mut client, mut other) = (sql(&server), sql(&server));
    let table = "CREATE TABLE t (id int, CONSTRAINT one UNIQUE (id) DEFERRABLE INITIALLY DEFERRED)";
    client.execute(table).unwrap();
    client
        .prepare("insert", "INSERT INTO t SELECT generate_series(1, $1::int)")
        .unwrap();
    let mut pipeline = client.pipeline().unwrap();
    assert_eq!(pipeline.answered(), Ok(Some(&[][..])));
    let five = vec![Some(c"5".to_owned())];
    pipeline.change_prepared("insert", five).unwrap();
    let affected = |answers: &[Answered]| answers.iter().map(|of| of.affected).collect::<Vec<_>>();
    assert_eq!(affected(pipeline.answered().unwrap().unwrap()), [5]);
    assert_eq!(value(&mut other, "SELECT count(*) FROM t"), "0");
    pipeline.query("DELETE FROM t WHERE id < 4", &[]).unwrap();
    assert_eq!(affected(pipeline.answered().unwrap().unwrap()), [5, 3]);
    assert_eq!(affected(&pipeline.finish().unwrap()), [5, 3]);
    assert_eq!(value(&mut other, "SELECT count(*) FROM t"), "2");

    // Nothing is left of one that was refused later, between two answers or as it ended.
    let mut pipeline = client.pipeline().unwrap();
    pipeline.query("DELETE FROM t", &[]).unwrap();
    assert_eq!(affected(pipeline.answered().unwrap().unwrap()), [2]);
    pipeline.query("SELECT 1 / $1::int", &[&0]).unwrap();
    pipeline.query("DELETE FROM t", &[]).unwrap();
    assert_eq!(pipeline.answered(), Ok(None));
    pipeline.query("DELETE FROM t", &[]).unwrap();
    assert_eq!(pipeline.answered(), Ok(None));
    let error = pipeline.finish().unwrap_err();
    assert_eq!(error.refusal().unwrap().sqlstate, "22012");
    let mut pipeline = client.pipeline().unwrap();
    pipeline.query("INSERT INTO t VALUES (4)", &[]).unwrap();
    assert_eq!(affected(pipeline.answered().unwrap().unwrap()), [1]);
    let error = pipeline.finish().unwrap_err();
    assert_eq!(error.refusal().unwrap().sqlstate, "23505");
    assert_eq!(value(&mut other, "SELECT count(*) FROM t"), "2");
    assert_eq!(value(&mut client, "SELECT count(*) FROM t"), "2");
}
