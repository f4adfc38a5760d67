//! `lockstep replica verify` with real servers: what it finds, and what a killed one leaves.

use std::process::{Output, Stdio};

use lockstep_client::Connection;
use lockstep_lab::assert_has;
use lockstep_lab::for_tests::pause;
use lockstep_lab::server::{SUPERUSER, Server};
use serde_json::Value;

use crate::replica::{
    Followed, Running, create_args, in_app, lockstep, on, output, pair, sql, text, until, value,
};

fn verify(followed: &Followed, more: &[&str]) -> Output {
    let mut args = vec!["verify", "r", "--target", &followed.to];
    args.extend(more);
    output(&args)
}

/// A verify that waits for a transaction that is open on the source, while it holds the replica.
struct Waiting {
    verify: Running,
    open: Connection,
}

const HELD: &str = "SELECT count(held)::text FROM lockstep.hold";

impl Waiting {
    fn of(followed: &Followed) -> Self {
        let mut open = sql(&followed.source);
        open.execute("BEGIN; INSERT INTO b VALUES (-1)").unwrap();
        // Nothing but its end lets changes flow again within an hour.
        let child = lockstep(&["verify", "r", "--target", &followed.to, "--wait", "3600"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut verify = Running(child);
        until(&followed.target, HELD, "1", &mut verify.0);
        Self { verify, open }
    }
}

/// Inserts a row into b, and waits until the source has sent it.
fn insert_and_send(source: &Server, id: i32) {
    on(source, &format!("INSERT INTO b VALUES ({id})"));
    let end = value(source, "SELECT pg_current_wal_flush_lsn()");
    let sent = format!(
        "SELECT bool_or(sent_lsn >= '{end}')::text FROM pg_stat_replication WHERE application_name = 'r'"
    );
    while value(source, &sent) != "true" {
        pause();
    }
}

#[test]
fn equal_while_changes_flow_and_rows_that_differ_are_named() {
    let tables = "CREATE TABLE f (n int, v text); ALTER TABLE f REPLICA IDENTITY FULL; \
                  CREATE TABLE left_out (id int PRIMARY KEY); CREATE TABLE \"A b\" (\"x y\" text, n int, \
                  PRIMARY KEY (\"x y\", n)); INSERT INTO \"A b\" VALUES ('q', 1); \
                  INSERT INTO f VALUES (1, 'a'), (1, 'a')";
    let options = ["--exclude-table", "public.left_out"];
    let followed = Followed::created(tables, &[], &options, "4");
    let mut writer = sql(&followed.source);
    let ended = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::SeqCst;
    let reports = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 100;
            while !ended.load(order) {
                number += 1;
                let change = format!(
                    "BEGIN; INSERT INTO a VALUES ({number}, 'v'); INSERT INTO f VALUES ({number}, NULL); \
                     UPDATE a SET v = {number} WHERE id = 1; DELETE FROM a WHERE id = {number} - 30; \
                     INSERT INTO left_out VALUES ({number}); COMMIT"
                );
                writer.execute(&change).unwrap();
            }
        });
        let reports = [verify(&followed, &["--jobs", "2"]), verify(&followed, &[])];
        ended.store(true, order);
        reports
    });
    for report in reports {
        assert_eq!(report.status.code(), Some(0), "{report:?}");
        let printed = text(&report.stdout);
        assert_has!(printed, "source and target are equal at");
        assert_has!(printed, "public.A b", ": 4 tables");
        assert!(!printed.contains("left_out"), "{printed}");
    }
    on(
        &followed.target,
        "UPDATE a SET v = 'other' WHERE id = 2; INSERT INTO a VALUES (-7, 'extra'); \
             DELETE FROM \"A b\"; DELETE FROM f WHERE ctid = '(0,1)'; DROP TABLE b",
    );
    let found = verify(&followed, &[]);
    assert_eq!(found.status.code(), Some(5), "{found:?}");
    let printed = text(&found.stdout);
    for line in [
        "public.a (id) = (-7): only the target has it",
        "public.a (id) = (2): its values differ",
        "public.A b (x y, n) = (q,1): the target lacks it",
        "public.f (whole row) = (1,a): the target lacks it",
        "public.b: the target has no such table, or not its columns",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    assert_has!(text(&found.stderr), "5 differences in 4 of 4 tables");
    let found = verify(&followed, &["--output", "json"]);
    assert_eq!(found.status.code(), Some(5), "{found:?}");
    let json: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(json["equal"], false, "{json}");
    assert_eq!(json["tables"][1]["table"], "a", "{json}");
    assert_eq!(json["tables"][1]["differences"][0]["key"], "(-7)", "{json}");
    assert_eq!(
        json["tables"][1]["differences"][0]["kind"], "extra",
        "{json}"
    );
}

#[test]
fn what_is_not_sent_any_more_is_no_equality() {
    let mut followed = Followed::created("CREATE TABLE n (id int PRIMARY KEY)", &[], &[], "1");
    on(
        &followed.source,
        "DROP TABLE n; CREATE TABLE n (id int PRIMARY KEY); INSERT INTO n VALUES (1)",
    );
    let found = verify(&followed, &[]);
    assert_eq!(found.status.code(), Some(5), "{found:?}");
    let printed = text(&found.stdout);
    let line = "public.n: it was copied, and another table has its name on the source now";
    assert_has!(printed, line, "not sent");
    assert!(!printed.contains("are equal"), "{printed}");
    let found = verify(&followed, &["--output", "json"]);
    let json: Value = serde_json::from_slice(&found.stdout).unwrap();
    let kinds: Vec<_> = json["tables"].as_array().unwrap().iter().collect();
    let kind = kinds.iter().find(|table| table["table"] == "n").unwrap();
    assert_eq!(kind["differences"][0]["kind"], "replaced", "{json}");
    let status = output(&["status", "r", "--target", &followed.to, "--output", "json"]);
    let json: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(
        json["replicas"][0]["lost_tables"][0]["table"], "n",
        "{json}"
    );
    let status = output(&["status", "r", "--target", &followed.to]);
    let shown = text(&status.stdout);
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_has!(shown, "tables are not replicated, or not under their names");
    // The next one that applies says it in its log.
    followed.kill();
    followed.running = Followed::run(&followed.to, &followed.log, "1");
    let logged = || std::fs::read_to_string(&followed.log).unwrap();
    let started = std::time::Instant::now();
    while !logged().contains("tables are not replicated, or not under their names") {
        assert!(
            started.elapsed() < std::time::Duration::from_secs(300),
            "{}",
            logged()
        );
        pause();
    }
}

/// Truncates table b of the target while a verify has its moment and waits for table a.
fn truncated_meanwhile(followed: &Followed, output: &str) -> Output {
    let mut holds = sql(&followed.target);
    holds.execute("BEGIN; LOCK TABLE a").unwrap();
    let args = ["verify", "r", "--target", &followed.to];
    let patient = ["--jobs", "1", "--wait", "3600", "--output", output];
    let child = lockstep(&[&args[..], &patient[..]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut verify = Running(child);
    let waits = "SELECT count(*)::text FROM pg_locks l JOIN pg_stat_activity s USING (pid) \
                 WHERE NOT l.granted AND s.application_name = 'lockstep verify'";
    until(&followed.target, waits, "1", &mut verify.0);
    on(&followed.target, "TRUNCATE b");
    holds.execute("COMMIT").unwrap();
    let stdout = std::io::read_to_string(verify.0.stdout.take().unwrap()).unwrap();
    let stderr = std::io::read_to_string(verify.0.stderr.take().unwrap()).unwrap();
    Output {
        status: verify.0.wait().unwrap(),
        stdout: stdout.into_bytes(),
        stderr: stderr.into_bytes(),
    }
}

#[test]
fn what_could_not_be_compared_is_no_equality() {
    let followed = Followed::with("");
    let found = truncated_meanwhile(&followed, "text");
    assert_eq!(found.status.code(), Some(5), "{found:?}");
    let printed = text(&found.stdout);
    assert_has!(
        printed,
        "public.b: not compared, or only in part: it was rewritten, truncated"
    );
    assert!(!printed.contains("are equal"), "{printed}");
    let line = printed.lines().find(|line| line.starts_with("public.b "));
    let line: Vec<_> = line.unwrap().split_whitespace().collect();
    assert_eq!(line, ["public.b", "0", "not", "compared"]);
    let words = text(&found.stderr);
    assert_has!(
        words,
        "replica r cannot be called equal to its source at ",
        ": 1 of 2 tables was not compared"
    );

    on(&followed.target, "UPDATE a SET v = 'other'");
    let found = truncated_meanwhile(&followed, "json");
    assert_eq!(found.status.code(), Some(5), "{found:?}");
    let json: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(json["equal"], false, "{json}");
    let kind = &json["tables"][1]["differences"][0]["kind"];
    assert_eq!(kind, "not_compared", "{json}");
    let words = text(&found.stderr);
    assert_has!(words, "2 differences in 1 of 2 tables; 1 was not compared");
    let again = verify(&followed, &["--output", "json"]);
    let json: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(json["tables"][1]["differences"], serde_json::json!([]));
}

/// The publication has a partition that is made later, also in a schema that is left out.
#[test]
fn what_apply_skips_is_not_compared() {
    let tables = "CREATE SCHEMA hidden; CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id); \
                  CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)";
    let followed = Followed::created(tables, &[], &["--exclude-schema", "hidden"], "1");
    on(
        &followed.source,
        "CREATE TABLE hidden.p2 PARTITION OF p FOR VALUES FROM (10) TO (20); \
             INSERT INTO p VALUES (1), (11)",
    );
    let published = "SELECT count(*)::text FROM pg_publication_tables WHERE tablename = 'p2'";
    assert_eq!(value(&followed.source, published), "1");
    let report = verify(&followed, &[]);
    assert_eq!(report.status.code(), Some(0), "{report:?}");
    let printed = text(&report.stdout);
    assert!(
        printed.contains("public.p1") && !printed.contains("p2"),
        "{printed}"
    );
}

#[test]
fn a_verify_that_is_killed_lets_changes_flow_again() {
    let mut followed = Followed::with("");
    let mut waiting = Waiting::of(&followed);
    insert_and_send(&followed.source, 5);
    let arrived = "SELECT count(*)::text FROM b WHERE id = 5";
    assert_eq!(
        value(&followed.target, arrived),
        "0",
        "changes are held back"
    );
    waiting.verify.0.kill().unwrap();
    waiting.verify.0.wait().unwrap();
    until(&followed.target, arrived, "1", &mut followed.running.0);
    let rows = "SELECT count(*)::text FROM lockstep.hold";
    until(&followed.target, rows, "0", &mut followed.running.0);
    waiting.open.execute("COMMIT").unwrap();
    let again = verify(&followed, &[]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    let slots =
        "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name LIKE 'lockstep_verify%'";
    until(&followed.source, slots, "0", &mut followed.running.0);
}

#[test]
fn status_says_who_holds_the_replica() {
    let followed = Followed::with("");
    let shown = followed.status_until(&[], |status| status["lag_bytes"] == 0);
    assert_eq!(shown["hold"], Value::Null, "{shown}");
    let mut waiting = Waiting::of(&followed);
    let pid = value(&followed.target, "SELECT pid::text FROM lockstep.hold");
    let shown = followed.status_until(&[], |_| true);
    let hold = &shown["hold"];
    assert_eq!(hold["by"], "lockstep replica verify", "{shown}");
    assert_eq!(hold["pid"].to_string(), pid, "{shown}");
    assert_eq!(hold["user"], SUPERUSER, "{shown}");
    assert_eq!(hold["held"], true, "{shown}");
    assert!(
        hold["age_s"].is_number() && hold["lsn"].is_null(),
        "{shown}"
    );
    let printed = text(&output(&["status", "r", "--target", &followed.to]).stdout);
    let line = printed
        .lines()
        .find(|line| line.starts_with("r  "))
        .unwrap();
    assert!(line.contains(" held "), "{printed}");
    let who = format!("lockstep replica verify holds it still: session {pid} on the target");
    assert!(printed.contains(&who), "{printed}");

    waiting.open.execute("COMMIT").unwrap();
    assert!(waiting.verify.0.wait().unwrap().success());
    let shown = followed.status_until(&[], |status| status["hold"].is_null());
    assert_eq!(shown["apply"], "applying", "{shown}");
}

#[test]
fn a_process_that_is_started_again_ends_the_hold_of_a_verify() {
    let mut followed = Followed::with("");
    let mut waiting = Waiting::of(&followed);
    let second = verify(&followed, &[]);
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert_has!(text(&second.stderr), "another lockstep replica verify");
    followed.kill();
    followed.running = Followed::run(&followed.to, &followed.log, "1");
    until(&followed.target, HELD, "0", &mut followed.running.0);
    waiting.open.execute("COMMIT").unwrap();
    let errors = waiting.verify.0.stderr.take().unwrap();
    assert_eq!(waiting.verify.0.wait().unwrap().code(), Some(1));
    let errors = std::io::read_to_string(errors).unwrap();
    assert!(errors.contains("did not hold it any longer"), "{errors}");
    let again = verify(&followed, &[]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
}

#[test]
fn a_hold_ends_when_its_time_is_over() {
    let mut followed = Followed::with("");
    let mut open = sql(&followed.source);
    open.execute("BEGIN; INSERT INTO b VALUES (-1)").unwrap();
    let late = verify(&followed, &["--wait", "1"]);
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    let words = text(&late.stderr);
    assert!(
        words.contains("transactions that are open there did not end within 1 s")
            || words.contains("come to stand at one position in time")
            || words.contains("a longer --wait")
            || words.contains("has heard nothing of the source since it began"),
        "{words}"
    );
    open.execute("ROLLBACK").unwrap();
    insert_and_send(&followed.source, 5);
    let arrived = "SELECT count(*)::text FROM b WHERE id = 5";
    until(&followed.target, arrived, "1", &mut followed.running.0);
}

#[test]
fn without_a_process_that_applies_verify_does_until_the_position() {
    let mut followed = Followed::with("");
    followed.status_until(&[], |status| status["lag_bytes"] == 0);
    followed.kill();
    on(
        &followed.source,
        "INSERT INTO b SELECT generate_series(1, 1000); DELETE FROM a WHERE id = 1",
    );
    assert!(
        output(&["pause", "r", "--target", &followed.to])
            .status
            .success()
    );
    let paused = verify(&followed, &[]);
    assert_eq!(paused.status.code(), Some(1), "{paused:?}");
    assert!(text(&paused.stderr).contains("is paused"), "{paused:?}");
    assert_eq!(value(&followed.target, "SELECT count(*)::text FROM b"), "0");
    assert!(
        output(&["resume", "r", "--target", &followed.to])
            .status
            .success()
    );
    let alone = verify(&followed, &[]);
    assert_eq!(alone.status.code(), Some(0), "{alone:?}");
    assert_has!(text(&alone.stderr), "no process applies to replica r");
    assert_eq!(
        value(&followed.target, "SELECT count(*)::text FROM b"),
        "1000"
    );
    let shown = followed.status_until(&[], |status| status["running"] == false);
    assert_eq!(shown["apply"], "not running", "{shown}");
    on(&followed.target, "INSERT INTO b VALUES (2000)");
    on(&followed.source, "INSERT INTO b VALUES (2000)");
    let blocked = verify(&followed, &[]);
    assert_eq!(blocked.status.code(), Some(1), "{blocked:?}");
    assert_has!(text(&blocked.stderr), "a change does not fit");
    let unknown = output(&["verify", "x", "--target", &followed.to]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
}

/// The server's own hash of a text depends on the encoding of the database.
#[test]
fn databases_of_different_encodings_are_compared() {
    let tables = "CREATE TABLE words (w text PRIMARY KEY, n int); \
                  INSERT INTO words VALUES ('\u{e4}rger', 1), ('plain', 2)";
    let latin = [
        "DROP DATABASE app",
        "CREATE DATABASE app ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    ];
    let followed = Followed::created(tables, &latin, &[], "1");
    let found = verify(&followed, &[]);
    assert_eq!(found.status.code(), Some(0), "{found:?}");
}

#[test]
fn nothing_to_compare_is_no_equality_and_sequences_are_told() {
    let sequences = "CREATE SEQUENCE s; CREATE SEQUENCE s2";
    let (_lab, source, target) = pair(sequences);
    let from = in_app(&source);
    let to = in_app(&target);
    let created = output(&create_args(&from, &to));
    assert!(created.status.success(), "{created:?}");
    let warned = text(&created.stderr) + &text(&created.stdout);
    assert!(warned.contains("no table that would be copied"), "{warned}");
    let verify = |more: &[&str]| output(&[&["verify", "r", "--target", &to], more].concat());
    let found = verify(&[]);
    assert_eq!(found.status.code(), Some(5), "{found:?}");
    let words = text(&found.stderr);
    assert!(words.contains("there is no table to compare"), "{words}");
    let printed = text(&found.stdout);
    assert!(!printed.contains("are equal"), "{printed}");
    assert!(printed.contains("not compared: sequences (2)"), "{printed}");
    let found = verify(&["--output", "json"]);
    let json: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(
        (&json["equal"], &json["sequences_not_compared"]),
        (&false.into(), &2.into())
    );
    let status = text(&output(&["status", "r", "--target", &to]).stdout);
    assert_has!(status, "sequences (2) are set to the source's values");
}
