//! COPY in both directions.

use std::time::Duration;

use lockstep_client::{ClientError, Connection, CopyOut};
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;

use crate::{assert_line, primary, sql, value};

fn messages(copy: &mut CopyOut) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some(data) = copy.next().unwrap() {
        messages.push(data.to_vec());
    }
    messages
}

fn count(client: &mut Connection) -> String {
    value(client, "SELECT count(*) FROM t")
}

/// A table `t`, and a connection.
fn table(server: &Server) -> Connection {
    let mut client = sql(server);
    client.execute("CREATE TABLE t (id int, v text)").unwrap();
    client
}

#[test]
fn rows_come_out_as_the_server_sends_them() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = table(&server);
    client
        .execute("INSERT INTO t VALUES (1, 'a'), (2, NULL), (3, E'b\\n')")
        .unwrap();

    let mut copy = client.copy_out("COPY t TO STDOUT").unwrap();
    assert!(!copy.is_binary());
    let texts = [&b"1\ta\n"[..], b"2\t\\N\n", b"3\tb\\n\n"];
    assert_eq!(messages(&mut copy), texts);
    assert_eq!(copy.rows(), 3);
    assert!(copy.next().unwrap().is_none());
    assert_eq!(copy.finish(), Ok(3));

    // Several copies and other statements in one string.
    let sql = "BEGIN; COPY (SELECT 1) TO STDOUT; SELECT 2; \
               COPY t TO STDOUT (FORMAT binary); COPY (SELECT 3 WHERE false) TO STDOUT; COMMIT";
    let mut copy = client.copy_out(sql).unwrap();
    assert_eq!(messages(&mut copy), [b"1\n"]);
    assert!(copy.next_copy().unwrap());
    assert!(copy.is_binary());
    let binary = messages(&mut copy);
    assert!(binary[0].starts_with(b"PGCOPY\n\xff\r\n\0"));
    assert_eq!(binary.last().unwrap(), b"\xff\xff");
    assert_eq!(copy.rows(), 3);
    assert!(copy.next_copy().unwrap());
    assert!(!copy.next_copy().unwrap());
    assert_eq!(copy.rows(), 0);
    drop(copy);
    assert_eq!(count(&mut client), "3");
}

#[test]
fn rows_go_in_whatever_the_messages_bounds() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = table(&server);

    let mut copy = client.copy_in("COPY t FROM STDIN").unwrap();
    for byte in b"1\tone\n2\ttwo\n" {
        copy.send(&[*byte]).unwrap();
    }
    assert_eq!(copy.finish(), Ok(2));

    // In one string with other statements, and more than one copy.
    let sql = "BEGIN; TRUNCATE t; COPY t FROM STDIN (FREEZE); CREATE TABLE u (LIKE t); \
               COPY u FROM STDIN; COMMIT";
    let mut copy = client.copy_in(sql).unwrap();
    copy.send(b"3\t\\N\n").unwrap();
    assert!(copy.next_copy().unwrap());
    assert_eq!(copy.rows(), 1);
    copy.send(b"4\tfour\n5\tfive").unwrap();
    assert_eq!(copy.finish(), Ok(2));
    assert_eq!(value(&mut client, "SELECT sum(id) FROM t"), "3");
    assert_eq!(value(&mut client, "SELECT sum(id) FROM u"), "9");

    // No rows at all.
    let copy = client.copy_in("COPY t FROM STDIN").unwrap();
    assert_eq!(copy.finish(), Ok(0));
    // A copy that nobody expects keeps nothing.
    let sql = "COPY t FROM STDIN; COPY t FROM STDIN";
    let mut copy = client.copy_in(sql).unwrap();
    copy.send(b"6\tsix\n").unwrap();
    assert_line(&copy.finish().unwrap_err(), &["another copy"]);
    assert_eq!(count(&mut client), "1");
}

#[test]
fn a_table_goes_from_one_server_to_another() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut source = table(&server);
    let mut target = sql(&server);
    source
        .execute(
            "INSERT INTO t SELECT n, repeat(md5(n::text), n % 50) FROM generate_series(1, 50000) n;
             INSERT INTO t VALUES (0, repeat('x', 30000000)), (-1, NULL), (-2, '');
             CREATE TABLE u (LIKE t)",
        )
        .unwrap();
    for format in ["text", "binary"] {
        target.execute("TRUNCATE u").unwrap();
        let mut from = source
            .copy_out(&format!("COPY t TO STDOUT (FORMAT {format})"))
            .unwrap();
        let mut to = target
            .copy_in(&format!("COPY u FROM STDIN (FORMAT {format})"))
            .unwrap();
        assert_eq!(from.is_binary(), to.is_binary());
        while let Some(data) = from.next().unwrap() {
            to.send(&data).unwrap();
        }
        assert_eq!((from.finish(), to.finish()), (Ok(50_003), Ok(50_003)));
        let differ = "SELECT count(*) FROM (TABLE t EXCEPT ALL TABLE u) d";
        assert_eq!(value(&mut source, differ), "0", "{format}");
    }
}

#[test]
fn errors_have_the_servers_words() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = table(&server);
    for (done, sqlstate) in [
        (client.copy_out("COPY nothing TO STDOUT").map(drop), "42P01"),
        (client.copy_in("COPY nothing FROM STDIN").map(drop), "42P01"),
        (client.copy_in("COPY").map(drop), "42601"),
        (
            client.copy_out("COPY (SELECT 1 / 0) TO STDOUT").map(drop),
            "22012",
        ),
    ] {
        let error = done.unwrap_err();
        assert_eq!(error.refusal().unwrap().sqlstate, sqlstate, "{error}");
    }
    // After the copy has begun.
    let mut copy = client
        .copy_out("COPY (SELECT 1 / (3 - n) FROM generate_series(1, 9) n) TO STDOUT")
        .unwrap();
    assert!(copy.next().unwrap().is_some());
    assert!(copy.next().unwrap().is_some());
    let error = copy.next().unwrap_err();
    assert_line(&error, &["did not copy rows out: division by zero"]);
    assert!(copy.next().unwrap().is_none());
    drop(copy);
    // At its end.
    let mut copy = client.copy_in("COPY t FROM STDIN").unwrap();
    copy.send(b"x\ty\n").unwrap();
    let error = copy.finish().unwrap_err();
    assert_eq!(error.refusal().unwrap().sqlstate, "22P02", "{error}");
    // A statement after it.
    let mut copy = client.copy_in("COPY t FROM STDIN; SELECT 1 / 0").unwrap();
    copy.send(b"1\ty\n").unwrap();
    let error = copy.finish().unwrap_err();
    assert_eq!(error.refusal().unwrap().sqlstate, "22012", "{error}");

    // Copies that are not what was asked for.
    for done in [
        client.copy_out("COPY t FROM STDIN").map(drop),
        client.copy_in("COPY t TO STDOUT").map(drop),
        client.copy_in("SELECT 1").map(drop),
    ] {
        let error = done.unwrap_err();
        assert!(matches!(error, ClientError::Protocol(_)), "{error:?}");
    }
    assert_eq!(count(&mut client), "0");
}

#[test]
fn an_error_ends_the_sending_early_and_a_notice_does_not() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = table(&server);
    let line = "1\t".to_owned() + &"x".repeat(10_000) + "\n";

    let mut copy = client.copy_in("COPY t FROM STDIN").unwrap();
    copy.send(b"not a number\tx\n").unwrap();
    // The server would take all of this, and drop it.
    let sent = (0..1_000_000).find_map(|_| copy.send(line.as_bytes()).err());
    assert_eq!(sent.unwrap().refusal().unwrap().sqlstate, "22P02");
    assert!(copy.send(b"1\tx\n").is_err());
    drop(copy);
    assert_eq!(count(&mut client), "0");

    client
        .execute(
            "CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE NOTICE '%', repeat('n', 100); RETURN NEW; END $$;
             CREATE TRIGGER say BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION say()",
        )
        .unwrap();
    let mut copy = client.copy_in("COPY t FROM STDIN").unwrap();
    for _ in 0..5_000 {
        copy.send(line.as_bytes()).unwrap();
    }
    assert_eq!(copy.finish(), Ok(5_000));
}

#[test]
fn dropped_copies_end_and_leave_nothing() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = table(&server);

    let endless = "COPY (SELECT generate_series(1, 1000000000000)) TO STDOUT";
    let mut copy = client.copy_out(endless).unwrap();
    assert!(copy.next().unwrap().is_some());
    drop(copy);
    assert!(!client.is_closed());
    drop(client.copy_out(endless).unwrap());
    let sql = format!("COPY (SELECT 1) TO STDOUT; {endless}");
    let mut copy = client.copy_out(&sql).unwrap();
    assert_eq!(messages(&mut copy).len(), 1);
    drop(copy);
    assert_eq!(value(&mut client, "SELECT 1"), "1");

    let mut copy = client.copy_in("COPY t FROM STDIN").unwrap();
    copy.send(b"1\tx\n").unwrap();
    drop(copy);
    let mut copy = client
        .copy_in("COPY t FROM STDIN; COPY t FROM STDIN")
        .unwrap();
    copy.send(b"1\tx\n").unwrap();
    assert!(copy.next_copy().unwrap());
    copy.send(b"2\tx\n").unwrap();
    drop(copy);
    assert_eq!(count(&mut client), "0");
    assert!(!client.is_closed());
}

fn first_error(copy: &mut CopyOut<'_>) -> ClientError {
    loop {
        match copy.next() {
            Err(error) => return error,
            Ok(Some(_)) => {}
            Ok(None) => panic!("the copy has ended"),
        }
    }
}

#[test]
fn a_server_that_says_nothing_is_left_and_one_that_ends_is_noticed() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut client = table(&server);
    // So long the first row may take, too.
    client.set_patience(Duration::from_secs(2));
    // The copy begins once the server's first buffer is full; from 18 on its row comes as well.
    let stalls =
        "COPY (SELECT repeat('x', 100000) UNION ALL SELECT pg_sleep(1000)::text) TO STDOUT";
    let mut copy = client.copy_out(stalls).unwrap();
    let error = first_error(&mut copy);
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error:?}");
    drop(copy);
    let error = client.copy_out("COPY (SELECT pg_sleep(1000)) TO STDOUT");
    let error = error.map(drop).unwrap_err();
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error:?}");
    client.set_patience(Duration::from_secs(60));
    assert_eq!(value(&mut client, "SELECT 1"), "1");

    let end = |pid: u32| {
        let sql = format!("SELECT pg_terminate_backend({pid}, 60000)");
        server.execute(&sql).unwrap();
    };
    let pid = client.backend_pid();
    let mut copy = client.copy_out(stalls).unwrap();
    end(pid);
    let error = first_error(&mut copy);
    assert_eq!(error.report().unwrap().sqlstate, "57P01", "{error:?}");
    assert!(error.may_pass());
    drop(copy);
    assert!(client.is_closed());

    let mut client = sql(&server);
    let pid = client.backend_pid();
    let mut copy = client.copy_in("COPY t FROM STDIN").unwrap();
    copy.send(b"1\tx\n").unwrap();
    end(pid);
    let error = copy.send(b"2\tx\n").unwrap_err();
    assert_eq!(error.report().unwrap().sqlstate, "57P01", "{error:?}");
    drop(copy);
    assert!(client.is_closed());
    assert!(client.copy_in("COPY t FROM STDIN").is_err());
    assert_eq!(count(&mut sql(&server)), "0");
}
