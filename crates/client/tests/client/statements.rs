//! Statements with parameters, prepared statements, cancelling.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lockstep_client::{ClientError, Connection, FromText, ToText, field};
use lockstep_lab::cluster::Lab;
use lockstep_wire::Lsn;

use crate::{assert_line, primary, sql, value};

/// What the server makes of a value, as it says and as it gives it back.
fn seen<T: FromText>(client: &mut Connection, kind: &str, value: &dyn ToText) -> (String, T) {
    let sql = format!("SELECT pg_typeof($1::{kind}), $1::{kind}");
    let rows = client.query_with(&sql, &[value]).unwrap();
    (field(&rows[0], 0).unwrap(), field(&rows[0], 1).unwrap())
}

#[test]
fn parameters_arrive_as_they_are() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = sql(&server);

    let hostile = "it's \"quoted\" \\ $1 ; DROP TABLE t; -- \n\té";
    let text = |client: &mut Connection, value: &dyn ToText| seen::<String>(client, "text", value);
    assert_eq!(text(&mut client, &hostile).1, hostile);
    assert_eq!(text(&mut client, &"").1, "");
    let long = "x".repeat(1_000_000);
    assert_eq!(text(&mut client, &long).1, long);

    let none = None::<&str>;
    let (_, null) = seen::<Option<String>>(&mut client, "text", &none);
    assert_eq!(null, None);
    let (kind, number) = seen::<i64>(&mut client, "bigint", &i64::MIN);
    assert_eq!((kind.as_str(), number), ("bigint", i64::MIN));
    let third = 1.0 / 3.0;
    assert_eq!(seen::<f64>(&mut client, "float8", &third).1, third);
    assert!(seen::<bool>(&mut client, "boolean", &true).1);
    assert!(!seen::<bool>(&mut client, "boolean", &false).1);
    let lsn = Lsn::from(0x16_B374_D848);
    let (kind, back) = seen::<Lsn>(&mut client, "pg_lsn", &lsn);
    assert_eq!((kind.as_str(), back), ("pg_lsn", lsn));
    // Bytes go and come as hexadecimal numbers.
    let (kind, back) = seen::<String>(&mut client, "bytea", &"\\x00ff27");
    assert_eq!((kind.as_str(), back.as_str()), ("bytea", "\\x00ff27"));

    // The server finds the type where no cast says it.
    client
        .execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        .unwrap();
    let insert = "INSERT INTO t VALUES ($1, $2) RETURNING id";
    let rows = client.query_with(insert, &[&7, &Some("seven")]).unwrap();
    assert_eq!(field(&rows[0], 0), Ok(7));
    let rows = client.query_with(insert, &[&8, &none]).unwrap();
    assert_eq!(field(&rows[0], 0), Ok(8));
    let update = "UPDATE t SET v = $2 WHERE id = $1";
    assert!(
        client
            .query_with(update, &[&8, &"eight"])
            .unwrap()
            .is_empty()
    );
    let rows = client
        .query_with("SELECT v FROM t WHERE id >= $1 ORDER BY id", &[&0])
        .unwrap();
    assert_eq!(
        rows,
        [[Some("seven".to_owned())], [Some("eight".to_owned())]]
    );
}

#[test]
fn many_rows_and_many_parameters() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = sql(&server);

    let rows = client
        .query_with("SELECT n, -n FROM generate_series(1, $1) AS n", &[&200_000])
        .unwrap();
    assert_eq!(rows.len(), 200_000);
    assert_eq!(field(&rows[199_999], 1), Ok(-200_000));

    let places: Vec<_> = (1..=60_000).map(|place| format!("${place}::int")).collect();
    let values: Vec<i32> = (1..=60_000).collect();
    let parameters: Vec<_> = values.iter().map(|value| value as &dyn ToText).collect();
    let sum = format!("SELECT array_length(ARRAY[{}], 1)", places.join(","));
    let rows = client.query_with(&sum, &parameters).unwrap();
    assert_eq!(field(&rows[0], 0), Ok(60_000));

    let most = "SELECT repeat('x', $1) FROM generate_series(1, 100)";
    let error = client.query_with(most, &[&1_000_000]).unwrap_err();
    assert_line(&error, &["64 MB"]);
    assert!(client.is_closed());
}

#[test]
fn one_row_or_none() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = sql(&server);

    let row = client.query_one("SELECT 1, NULL").unwrap();
    assert_eq!(field(&row, 0), Ok(1));
    assert_eq!(field::<Option<i32>>(&row, 1), Ok(None));
    assert!(field::<i32>(&row, 1).is_err());
    assert_eq!(client.query_opt("SELECT 1 WHERE false"), Ok(None));
    assert_line(
        &client.query_one("SELECT 1 WHERE false").unwrap_err(),
        &["no row"],
    );
    for many in [
        client.query_one("VALUES (1), (2)").unwrap_err(),
        client.query_opt("SELECT 1; SELECT 2").unwrap_err(),
    ] {
        assert_line(&many, &["2 rows"]);
    }
    assert_eq!(value(&mut client, "SELECT 3"), "3");
}

#[test]
fn what_the_server_refuses_has_a_code() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = sql(&server);
    client
        .execute("CREATE TABLE t (id int PRIMARY KEY)")
        .unwrap();
    client
        .prepare("insert", "INSERT INTO t VALUES ($1)")
        .unwrap();

    let division: &[&dyn ToText] = &[&0];
    for (done, sqlstate) in [
        (client.query_with("SELECT 1 / $1::int", division), "22012"),
        (client.query_with("SELECT $1::int", &[&"x"]), "22P02"),
        (client.query_with("SELECT $1::int", &[]), "08P01"),
        (
            client.query_with("SELECT FROM nothing WHERE $1", &[&true]),
            "42P01",
        ),
        (client.query_with("SELECT 1; SELECT 2", &[]), "42601"),
        (client.query_prepared("insert", &[&1]), ""),
        (client.query_prepared("insert", &[&1]), "23505"),
        (client.query_prepared("nobody", &[]), "26000"),
        (
            client.prepare("insert", "SELECT 1").map(|()| Vec::new()),
            "42P05",
        ),
        (client.prepare("bad", "SELEC").map(|()| Vec::new()), "42601"),
    ] {
        match done {
            Ok(_) => assert_eq!(sqlstate, ""),
            Err(error) => {
                assert_line(&error, &["did not"]);
                assert_eq!(error.refusal().unwrap().sqlstate, sqlstate, "{error}");
            }
        }
    }
    let nul = client.query_with("SELECT $1", &[&"a\0b"]).unwrap_err();
    assert!(matches!(nul, ClientError::Name { .. }), "{nul:?}");
    assert!(!client.is_closed());
    assert_eq!(value(&mut client, "SELECT 1"), "1");
}

#[test]
fn prepared_statements_run_again_and_again() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = sql(&server);
    client
        .prepare("sum it", "SELECT $1::int + $2, $3::text")
        .unwrap();
    for number in 0..1_000 {
        let rows = client
            .query_prepared("sum it", &[&number, &1, &None::<&str>])
            .unwrap();
        assert_eq!(rows, [[Some((number + 1).to_string()), None]]);
    }
    // Another thread may go on with it.
    let mut client = thread::spawn(move || {
        let rows = client.query_prepared("sum it", &[&1, &1, &"x"]);
        assert_eq!(field(&rows.unwrap()[0], 0), Ok(2));
        client
    })
    .join()
    .unwrap();
    assert_eq!(value(&mut client, "SELECT 1"), "1");
}

#[test]
fn statements_are_cancelled() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = sql(&server);

    // By what they take.
    client.prepare("sleep", "SELECT pg_sleep($1)").unwrap();
    client.set_patience(Duration::from_millis(50));
    for done in [
        client.query_with("SELECT pg_sleep($1)", &[&1000]),
        client.query_prepared("sleep", &[&1000]),
    ] {
        let error = done.unwrap_err();
        assert!(matches!(error, ClientError::TimedOut { .. }), "{error:?}");
    }
    client.set_patience(Duration::from_secs(600));
    assert_eq!(value(&mut client, "SELECT 1"), "1");

    // By another thread, which may come between two statements and then does nothing.
    let canceller = client.canceller().unwrap();
    let ended = AtomicBool::new(false);
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                canceller.cancel().unwrap();
                thread::sleep(Duration::from_millis(10));
            }
        });
        let error = client.query_with("SELECT pg_sleep($1)", &[&1000]);
        ended.store(true, Ordering::Relaxed);
        error.unwrap_err()
    });
    assert_eq!(error.refusal().unwrap().sqlstate, "57014", "{error}");
    assert!(!client.is_closed());

    // A canceller outlives its connection.
    drop(client);
    let _ = canceller.cancel();
    drop(server);
    assert_line(&canceller.cancel().unwrap_err(), &["PQcancel()"]);
}

#[test]
fn an_ended_connection_is_noticed() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let end = |client: &Connection| {
        let pid = client.backend_pid();
        server
            .execute(&format!("SELECT pg_terminate_backend({pid}, 60000)"))
            .unwrap();
    };
    let mut client = sql(&server);
    client.prepare("one", "SELECT $1::int").unwrap();
    end(&client);
    let error = client.query_prepared("one", &[&1]).unwrap_err();
    assert!(error.may_pass(), "{error:?}");
    // What was said before is read, although nothing can be sent any more.
    assert_eq!(error.report().unwrap().sqlstate, "57P01", "{error:?}");
    assert!(client.is_closed());
    let error = client.query_with("SELECT $1::int", &[&1]).unwrap_err();
    assert!(matches!(error, ClientError::Lost(_)), "{error:?}");

    // In the middle of a statement, with the server's words.
    let mut client = sql(&server);
    let own = "SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep($1)";
    let error = client.query_with(own, &[&1000]).unwrap_err();
    assert_eq!(error.refusal(), None);
    assert_eq!(error.report().unwrap().sqlstate, "57P01", "{error:?}");
    assert_line(&error, &["is lost: terminating connection"]);
    assert!(client.is_closed());
}
