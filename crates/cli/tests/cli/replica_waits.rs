//! What a creation leaves that is killed while it waits, and what is said of locks that others hold.

use std::process::Stdio;

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::assert_has;
use lockstep_lab::for_tests::pause;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::doctor_support::{doctor, once_right};
use crate::replica::{
    Followed, Running, create_args, in_app, lockstep, on, output, pair, sql, text, until, value,
};

const SLOTS: &str = "SELECT count(*)::text FROM pg_replication_slots";

/// Waits until the query's value is this one.
fn wait_for(server: &lockstep_lab::server::Server, query: &str, wanted: &str) {
    let started = std::time::Instant::now();
    while value(server, query) != wanted {
        assert!(
            started.elapsed() < std::time::Duration::from_secs(300),
            "{query}"
        );
        pause();
    }
}

#[test]
fn a_creation_that_is_killed_while_it_waits_leaves_no_slot() {
    let tables = "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE log (x int PRIMARY KEY)";
    let (_lab, source, target) = pair(tables);
    let from = in_app(&source);
    let to = in_app(&target);
    let mut open = sql(&source);
    open.execute("BEGIN; INSERT INTO log VALUES (1)").unwrap();
    let mut creation = Running(
        lockstep(&create_args(&from, &to))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let waiting =
        "SELECT count(*)::text FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'";
    until(&source, waiting, "1", &mut creation.0);
    assert_eq!(value(&source, SLOTS), "1");
    let pid = Pid::from_raw(i32::try_from(creation.0.id()).unwrap());
    kill(pid, Signal::SIGKILL).unwrap();
    creation.0.wait().unwrap();
    // The transaction is still open, and nothing else ends the slot's session.
    wait_for(&source, SLOTS, "0");
    open.execute("TRUNCATE t; COMMIT").unwrap();
    // The same command goes on.
    let created = output(&create_args(&from, &to));
    assert!(created.status.success(), "{created:?}");
    assert_eq!(value(&source, SLOTS), "1");
}

#[test]
fn a_lock_that_others_hold_is_named() {
    let (_lab, source, target) = pair("CREATE TABLE t (id int PRIMARY KEY)");
    target.run("CREATE ROLE bob LOGIN");
    let from = in_app(&source);
    let to = in_app(&target);
    let bob = Conninfo::parse(&to).unwrap().with("user", "bob").unwrap();
    let mut bob = Connection::connect(&bob, Purpose::Sql, "a tool").unwrap();
    let locked =
        |name: &str| format!("SELECT pg_advisory_lock(hashtextextended('lockstep {name}', 0))");
    // Nobody but those with rights on the state can let a creation wait for it.
    bob.execute(&locked("state")).unwrap();
    let created = output(&create_args(&from, &to));
    assert!(created.status.success(), "{created:?}");

    bob.execute(&locked("replica r")).unwrap();
    let who = format!(
        "process {} (role \"bob\", application \"a tool\"",
        bob.backend_pid()
    );
    let end = format!("SELECT pg_terminate_backend({})", bob.backend_pid());
    for command in ["run", "drop", "verify"] {
        let refused = output(&[command, "r", "--target", &to]);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let words = text(&refused.stderr);
        assert!(
            words.contains(&who) && words.contains(&end) && !words.contains("another lockstep"),
            "{words}"
        );
    }
    let start = output(&["start", "r", "--target", &to, "--wait", "1"]);
    assert!(text(&start.stderr).contains(&who), "{start:?}");
    let shown = text(&output(&["status", "r", "--target", &to]).stdout);
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains("does not look like a lockstep"), "{shown}");
    drop(bob);
    let dropped = output(&["drop", "r", "--target", &to]);
    assert!(dropped.status.success(), "{dropped:?}");
}

#[test]
fn who_keeps_changes_waiting_is_named() {
    let mut followed = Followed::with("");
    followed.status_until(&[], |status| status["lag_bytes"] == 0);
    let to = Conninfo::parse(&followed.to).unwrap();
    let mut tool = Connection::connect(&to, Purpose::Sql, "a tool").unwrap();
    tool.execute("BEGIN; LOCK TABLE b").unwrap();
    on(&followed.source, "INSERT INTO b VALUES (1)");
    let who = format!(
        "on the target it waits for a lock of process {} (role \"postgres\", application \"a tool\"",
        tool.backend_pid()
    );
    let waiting = followed.status_until(&[], |status| !status["error"].is_null());
    let words = waiting["error"].as_str().unwrap();
    assert!(words.starts_with(&who), "{words}");
    assert_eq!(waiting["apply"], "applying", "{waiting}");
    let shown = text(&output(&["status", "r", "--target", &followed.to]).stdout);
    assert!(!shown.contains("keep up"), "{shown}");
    let source = in_app(&followed.source);
    let nodes = ["--primary", &source, "--subscriber", &followed.to];
    let ask = || doctor(&[&nodes[..], &["--seconds", "2"]].concat());
    let words = "the replica does not apply: it waits for a lock";
    let said = once_right(ask, |said| said.text.contains(words));
    assert_has!(said.text, words, "pg_terminate_backend(PID)");
    tool.execute("COMMIT").unwrap();
    let arrived = "SELECT count(*)::text FROM b";
    until(&followed.target, arrived, "1", &mut followed.running.0);
    followed.status_until(&[], |status| status["error"].is_null());
}

/// ALTER TABLE that waits lets nobody pass: ending it would help, but it is not to blame.
#[test]
fn who_keeps_an_alter_table_waiting_that_changes_wait_for_is_named() {
    let mut followed = Followed::with("");
    followed.status_until(&[], |status| status["lag_bytes"] == 0);
    let to = Conninfo::parse(&followed.to).unwrap();
    let mut reader = Connection::connect(&to, Purpose::Sql, "a reader").unwrap();
    let mut owner = Connection::connect(&to, Purpose::Sql, "an owner").unwrap();
    let alter = owner.backend_pid();
    reader.execute("BEGIN; SELECT FROM b").unwrap();
    let altered = std::thread::spawn(move || owner.execute("ALTER TABLE b ADD later int"));
    let waits = format!("SELECT count(*)::text FROM pg_locks WHERE NOT granted AND pid = {alter}");
    wait_for(&followed.target, &waits, "1");
    on(&followed.source, "INSERT INTO b VALUES (1)");
    let waiting = followed.status_until(&[], |status| !status["error"].is_null());
    let words = waiting["error"].as_str().unwrap();
    let root = format!(
        "on the target it waits for a lock of process {} (role \"postgres\", application \"a reader\"",
        reader.backend_pid()
    );
    let queue =
        format!("in a queue behind process {alter} (role \"postgres\", application \"an owner\"");
    assert!(
        words.starts_with(&root) && words.contains(&queue),
        "{words}"
    );
    reader.execute("COMMIT").unwrap();
    altered.join().unwrap().unwrap();
    let arrived = "SELECT count(*)::text FROM b";
    until(&followed.target, arrived, "1", &mut followed.running.0);
}
