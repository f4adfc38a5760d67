//! `lockstep wal analyze` on a server that runs: all of its WAL can be read, and the server is not held up.

use std::process::{Child, Command, Output, Stdio};

use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server, Settings, Stop};
use serde_json::Value;

use crate::relay_support::until;

fn start(server: &Server, user: &str, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(["wal", "analyze", &server.conninfo(user), "--output", "json"])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn end(child: Child) -> Value {
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap()
}

/// Ten segments, of which the server has removed the first ones.
fn with_removed_wal(server: &Server) {
    server.run("CREATE TABLE t (i int)");
    for _ in 0..10 {
        server.run("INSERT INTO t VALUES (1)");
        server.query_text("SELECT pg_switch_wal()::text").unwrap();
    }
    server.run("CHECKPOINT");
    for i in 0..6 {
        server.run(&format!("INSERT INTO t VALUES ({i})"));
        server.query_text("SELECT pg_switch_wal()::text").unwrap();
    }
}

#[test]
fn all_wal_is_read_that_a_server_still_has() {
    let lab = TestLab::stock().start().unwrap();
    let settings = [("wal_keep_size", "0"), ("wal_recycle", "off")];
    let settings: Settings = settings
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let server = lab.primary("primary", None, &settings).unwrap();
    with_removed_wal(&server);
    server.run(
        "CREATE ROLE lists REPLICATION LOGIN; GRANT pg_monitor TO lists;
             CREATE ROLE guesses REPLICATION LOGIN",
    );

    let seen = server.log_length();
    let all = ["--megabytes", "4000"];
    let listed = end(start(&server, "lists", &all));
    let log = server.log_since(seen).unwrap_or_default();
    assert!(!log.contains("has already been removed"), "{log}");
    let ended = listed["ended"].as_str().unwrap();
    assert!(ended.ends_with("The server has no older WAL."), "{ended}");
    // Who may not list them finds some of it, by trying.
    let guessed = end(start(&server, "guesses", &all));
    let records = |of: &Value| of["records"].as_u64().unwrap();
    assert!(!guessed["ended"].as_str().unwrap().contains("older"));
    assert!(records(&guessed) > 0 && records(&guessed) <= records(&listed));
    let newest = end(start(&server, "lists", &["--megabytes", "1"]));
    let ended = newest["ended"].as_str().unwrap();
    assert!(!ended.contains("older"), "{ended}");

    let start = listed["start_lsn"].as_str().unwrap();
    let first =
        format!("SELECT (pg_walfile_name('{start}') = min(name))::text FROM pg_ls_waldir()");
    assert_eq!(server.query_text(&first).unwrap().as_deref(), Some("true"));
}

/// A server that shuts down waits for us as for a standby, until we have what it has sent.
#[test]
fn a_server_that_is_read_shuts_down() {
    let lab = TestLab::stock().start().unwrap();
    let mut server = lab.primary("primary", None, &Settings::new()).unwrap();
    let reading = start(&server, SUPERUSER, &["--seconds", "3600"]);
    until("WAL is sent", || {
        let sql = "SELECT 'x' FROM pg_stat_replication WHERE application_name = 'lockstep wal analyze' \
                   AND state = 'streaming'";
        server.query_text(sql).unwrap()
    });
    server.run("CREATE TABLE t ()");
    server.stop(Stop::Fast).unwrap();
    end(reading);
}
