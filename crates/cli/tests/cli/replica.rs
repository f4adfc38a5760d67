//! `lockstep replica` with real servers, as a user runs it.

use std::process::{Command, Output, Stdio};

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{SUPERUSER, Server, Settings};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn server(lab: &Lab, name: &str) -> Server {
    let settings: Settings = [("wal_level", "logical"), ("autovacuum", "off")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let server = lab.primary(name, None, &settings).unwrap();
    server.execute("CREATE DATABASE app").unwrap();
    server
}

fn conninfo(server: &Server) -> String {
    let socket = server.sockets().display();
    format!("host={socket} port={} user={SUPERUSER}", server.port())
}

fn sql(server: &Server) -> Connection {
    let conninfo = format!("{} dbname=app", conninfo(server));
    let conninfo = Conninfo::parse(&conninfo).unwrap();
    Connection::connect(&conninfo, Purpose::Sql, "lockstep test").unwrap()
}

fn value(server: &Server, query: &str) -> String {
    sql(server).query(query).unwrap()[0][0].clone().unwrap()
}

fn lockstep(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.arg("replica").args(args);
    command
}

fn output(args: &[&str]) -> Output {
    lockstep(args).output().unwrap()
}

fn create_args<'a>(source: &'a str, target: &'a str) -> Vec<&'a str> {
    vec!["create", "r", "--source", source, "--target", target]
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn status(target: &str) -> Value {
    let status = output(&["status", "r", "--target", target, "--output", "json"]);
    assert!(status.status.success(), "{status:?}");
    serde_json::from_slice(&status.stdout).unwrap()
}

#[test]
fn a_replica_is_created_shown_and_dropped() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    sql(&source)
        .execute(
            "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2);
             CREATE TABLE keyless (a int); INSERT INTO keyless VALUES (1);
             CREATE SCHEMA busy; CREATE TABLE busy.b (a int PRIMARY KEY)",
        )
        .unwrap();
    let from = format!("{} dbname=app", conninfo(&source));
    // The target's database has the source's name unless something else is said.
    let to = conninfo(&target);
    let mut args = create_args(&from, &to);
    args.extend([
        "--exclude-schema",
        "busy",
        "--jobs",
        "2",
        "--bandwidth",
        "100MB",
    ]);
    let created = output(&args);
    let printed = text(&created.stdout);
    assert!(created.status.success(), "{created:?}");
    assert!(printed.contains("warning  table \"public.keyless\" it has no replica identity"));
    assert!(
        printed.contains("2 of 2 tables") && printed.contains("3 rows"),
        "{printed}"
    );
    assert!(printed.contains("replica r is ready"), "{printed}");
    assert_eq!(value(&target, "SELECT sum(id) FROM t"), "3");

    let to = format!("{to} dbname=app");
    let json = status(&to);
    let replica = &json["replicas"][0];
    assert_eq!(replica["phase"], "ready");
    assert_eq!(replica["tables_copied"], 2);
    assert_eq!(replica["tables"][1]["rows"], 2);
    let shown = text(&output(&["status", "--target", &to]).stdout);
    assert!(shown.contains("ready") && shown.contains("2/2"), "{shown}");
    assert!(!shown.contains("public.t"), "{shown}");
    let shown = text(&output(&["status", "r", "--target", &to]).stdout);
    assert!(
        shown.contains("public.t") && shown.contains("copied"),
        "{shown}"
    );

    let again = output(&create_args(&from, &to));
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("exists already"), "{again:?}");
    let dropped = output(&["drop", "r", "--target", &to]);
    assert!(dropped.status.success(), "{dropped:?}");
    assert_eq!(
        value(&source, "SELECT count(*) FROM pg_replication_slots"),
        "0"
    );
    let unknown = output(&["status", "r", "--target", &to]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    let none = output(&["status", "--target", &to]);
    assert_eq!(text(&none.stdout), "the target has no replica\n");
}

#[test]
fn errors_have_the_code_of_their_end_and_change_nothing() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    let from = format!("{} dbname=app", conninfo(&source));
    let to = format!("{} dbname=app", conninfo(&target));
    let nobody = "host=/nonexistent dbname=app";
    let elsewhere = format!("{} dbname=elsewhere", conninfo(&target));
    for (from, to, code, words) in [
        (nobody, &*to, 3, "source:"),
        (&from, nobody, 4, "target:"),
        (&from, &elsewhere, 4, "\"elsewhere\" does not exist"),
    ] {
        let failed = output(&create_args(from, to));
        assert_eq!(failed.status.code(), Some(code), "{failed:?}");
        assert!(text(&failed.stderr).contains(words), "{failed:?}");
    }
    sql(&target).execute("CREATE TABLE mine (a int)").unwrap();
    let failed = output(&create_args(&from, &to));
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(text(&failed.stdout).contains("error    target database \"app\" is not empty"));
    let line = text(&failed.stderr);
    assert!(line.contains("before anything is changed") && line.contains("CREATE DATABASE"));
    assert_eq!(
        value(
            &target,
            "SELECT count(*) FROM pg_namespace WHERE nspname = 'lockstep'"
        ),
        "0"
    );
}

#[test]
fn a_killed_copy_goes_on_with_what_is_finished() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    sql(&source)
        .execute(
            "CREATE TABLE big (id int PRIMARY KEY, v text);
             INSERT INTO big SELECT n, repeat('x', 500) FROM generate_series(1, 60000) n;
             CREATE TABLE second (id int PRIMARY KEY, v text);
             INSERT INTO second SELECT n, repeat('x', 500) FROM generate_series(1, 8000) n",
        )
        .unwrap();
    let from = format!("{} dbname=app", conninfo(&source));
    let to = format!("{} dbname=app", conninfo(&target));
    let mut args = create_args(&from, &to);
    // Slow enough that it is in the middle of a table whenever the kill comes.
    args.extend(["--jobs", "2", "--bandwidth", "4MB"]);
    // What a killed process leaves goes away with the lab.
    let mut child = lockstep(&args)
        .env("TMPDIR", lab.folder())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The large table's rows are on their way: some range of it is committed.
    let begun = "SELECT to_regclass('public.big') IS NOT NULL";
    while value(&target, begun) != "t" || value(&target, "SELECT count(*) FROM big") == "0" {
        assert_eq!(child.try_wait().unwrap(), None);
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    let before = status(&to);
    assert_eq!(before["replicas"][0]["phase"], "copying");
    assert_eq!(before["replicas"][0]["tables"][0]["state"], "copying");
    sql(&source).execute("INSERT INTO big VALUES (0)").unwrap();

    let resumed = output(&create_args(&from, &to));
    assert!(resumed.status.success(), "{resumed:?}");
    assert!(
        text(&resumed.stdout).contains("copying rows (going on)"),
        "{resumed:?}"
    );
    assert_eq!(value(&target, "SELECT count(*) FROM big"), "60001");
    assert_eq!(value(&target, "SELECT count(*) FROM second"), "8000");
    let after = status(&to);
    let replica = &after["replicas"][0];
    let start = |value: &Value| -> lockstep_wire::Lsn { value.as_str().unwrap().parse().unwrap() };
    assert!(start(&replica["tables"][0]["start_lsn"]) > start(&replica["start_lsn"]));
    assert_eq!(
        value(&source, "SELECT count(*) FROM pg_replication_slots"),
        "1"
    );
}

/// A process that is killed when the test ends early.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the query's value is this one, or the process has ended.
fn until(server: &Server, query: &str, wanted: &str, child: &mut std::process::Child) {
    while value(server, query) != wanted {
        assert_eq!(child.try_wait().unwrap(), None, "{query}");
        std::thread::yield_now();
    }
}

#[test]
fn a_replica_follows_pauses_and_ends() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    sql(&source)
        .execute(
            "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1);
             CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b VALUES (1)",
        )
        .unwrap();
    let from = format!("{} dbname=app", conninfo(&source));
    let to = format!("{} dbname=app", conninfo(&target));
    let early = output(&["run", "r", "--target", &to]);
    assert!(
        text(&early.stderr).contains("no replica \"r\""),
        "{early:?}"
    );
    assert!(output(&create_args(&from, &to)).status.success());
    // b as a copy that was resumed has it: at a later LSN than a, with what was committed before.
    let begun = "INSERT INTO a VALUES (2); INSERT INTO b VALUES (2)";
    sql(&source).execute(begun).unwrap();
    let later = value(&source, "SELECT pg_current_wal_insert_lsn()");
    sql(&target)
        .execute(&format!(
            "INSERT INTO b VALUES (2); UPDATE lockstep.table_copy SET start_lsn = '{later}'
             WHERE table_name = 'b'"
        ))
        .unwrap();
    sql(&source)
        .execute("INSERT INTO a VALUES (3); INSERT INTO b VALUES (3); CREATE TABLE c (id int)")
        .unwrap();

    let child = lockstep(&["run", "r", "--target", &to])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut running = Running(child);
    let child = &mut running.0;
    until(&target, "SELECT sum(id) FROM a", "6", child);
    until(&target, "SELECT sum(id) FROM b", "6", child);
    let state = "SELECT coalesce(apply_state, '') FROM lockstep.replica";
    until(&target, state, "applying", child);
    let refused = output(&["drop", "r", "--target", &to]);
    assert!(
        text(&refused.stderr).contains("another lockstep works on"),
        "{refused:?}"
    );

    assert!(output(&["pause", "r", "--target", &to]).status.success());
    until(&target, state, "paused", child);
    assert_eq!(status(&to)["replicas"][0]["paused"], true);
    sql(&source)
        .execute("DELETE FROM a; INSERT INTO b VALUES (4)")
        .unwrap();
    assert_eq!(value(&target, "SELECT count(*) FROM a"), "3");
    assert!(output(&["resume", "r", "--target", &to]).status.success());
    until(&target, "SELECT sum(id) FROM b", "10", child);
    assert_eq!(value(&target, "SELECT count(*) FROM a"), "0");

    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    assert!(child.wait().unwrap().success());
    let shown = &status(&to)["replicas"][0];
    assert_eq!(shown["apply"], "stopped", "{shown}");
    assert!(output(&["drop", "r", "--target", &to]).status.success());
    let origins = "SELECT count(*) FROM pg_replication_origin";
    assert_eq!(value(&target, origins), "0");
    assert_eq!(
        value(&source, "SELECT count(*) FROM pg_replication_slots"),
        "0"
    );
}
