//! `lockstep replica` with real servers, as a user runs it.

use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::pause;
use lockstep_lab::server::{SUPERUSER, Server, Stop, settings_of};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

pub fn server(lab: &Lab, name: &str) -> Server {
    let settings = settings_of([("wal_level", "logical"), ("autovacuum", "off")]);
    let server = lab.primary(name, None, &settings).unwrap();
    server.run("CREATE DATABASE app");
    server
}

pub fn conninfo(server: &Server) -> String {
    let socket = server.sockets().display();
    format!("host={socket} port={} user={SUPERUSER}", server.port())
}

/// How to connect to database `app`.
pub fn in_app(server: &Server) -> String {
    format!("{} dbname=app", conninfo(server))
}

pub fn sql(server: &Server) -> Connection {
    let conninfo = Conninfo::parse(&in_app(server)).unwrap();
    Connection::connect(&conninfo, Purpose::Sql, "lockstep test").unwrap()
}

/// Runs statements in database `app`.
/// What a new session in database `app` begins with.
pub fn begins_read_only(server: &Server) -> String {
    let row = sql(server).query_one("SHOW default_transaction_read_only");
    row.unwrap().remove(0).unwrap()
}

/// Runs statements in database `app`, also where sessions begin read-only.
pub fn on(server: &Server, statements: &str) {
    let mut session = sql(server);
    session
        .execute("SET default_transaction_read_only = off")
        .unwrap();
    session.execute(statements).unwrap();
}

/// A source with this schema and rows, and an empty target.
pub fn pair(schema: &str) -> (Lab, Server, Server) {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    on(&source, schema);
    (lab, source, target)
}

/// The one value that a query gives in database app; empty for NULL.
pub fn value(server: &Server, query: &str) -> String {
    server.rows_in("app", query).unwrap()[0][0]
        .clone()
        .unwrap_or_default()
}

pub fn lockstep(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.arg("replica").args(args);
    command
}

pub fn output(args: &[&str]) -> Output {
    lockstep(args).output().unwrap()
}

/// Arguments that create a replica whose target tests write on, too.
pub fn create_args<'a>(source: &'a str, target: &'a str) -> Vec<&'a str> {
    let mut args = closed_args(source, target);
    args.extend(["--read-only", "off"]);
    args
}

/// Arguments that create a replica whose target is read-only for others.
pub fn closed_args<'a>(source: &'a str, target: &'a str) -> Vec<&'a str> {
    vec!["create", "r", "--source", source, "--target", target]
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Standard output and error, on one line.
pub fn said(output: &Output) -> String {
    let all = format!("{} {}", text(&output.stdout), text(&output.stderr));
    all.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub fn status(target: &str) -> Value {
    let status = output(&["status", "r", "--target", target, "--output", "json"]);
    assert!(status.status.success(), "{status:?}");
    serde_json::from_slice(&status.stdout).unwrap()
}

#[test]
fn a_replica_is_created_shown_and_dropped() {
    let (_lab, source, target) = pair(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2);
             CREATE TABLE keyless (a int); INSERT INTO keyless VALUES (1);
             CREATE SCHEMA busy; CREATE TABLE busy.b (a int PRIMARY KEY)",
    );
    let from = in_app(&source);
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
    assert_has!(printed, "2 of 2 tables", "3 rows");
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
    assert_has!(shown, "public.t", "copied");

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
    let from = in_app(&source);
    let to = in_app(&target);
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
    on(&target, "CREATE TABLE mine (a int)");
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
    let (lab, source, target) = pair(
        "CREATE TABLE big (id int PRIMARY KEY, v text);
             INSERT INTO big SELECT n, repeat('x', 500) FROM generate_series(1, 60000) n;
             CREATE TABLE second (id int PRIMARY KEY, v text);
             INSERT INTO second SELECT n, repeat('x', 500) FROM generate_series(1, 8000) n",
    );
    let from = in_app(&source);
    let to = in_app(&target);
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
        pause();
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    let before = status(&to);
    assert_eq!(before["replicas"][0]["phase"], "copying");
    assert_eq!(before["replicas"][0]["tables"][0]["state"], "copying");
    on(&source, "INSERT INTO big VALUES (0)");

    let resumed = output(&create_args(&from, &to));
    assert!(resumed.status.success(), "{resumed:?}");
    assert_has!(text(&resumed.stdout), "copying rows (going on)");
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
pub struct Running(pub std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the query's value is this one, or the process has ended.
pub fn until(server: &Server, query: &str, wanted: &str, child: &mut std::process::Child) {
    let started = std::time::Instant::now();
    while value(server, query) != wanted {
        if let Some(ended) = child.try_wait().unwrap() {
            let said = child.stderr.take().map(std::io::read_to_string);
            panic!("{query}: the process has ended, {ended}: {said:?}");
        }
        let waited = started.elapsed();
        assert!(waited < std::time::Duration::from_secs(300), "{query}");
        pause();
    }
}

#[test]
fn a_replica_follows_pauses_and_ends() {
    let (_lab, source, target) = pair(
        "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1);
             CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b VALUES (1)",
    );
    let from = in_app(&source);
    let to = in_app(&target);
    let early = output(&["run", "r", "--target", &to]);
    assert_has!(text(&early.stderr), "no replica \"r\"");
    assert!(output(&create_args(&from, &to)).status.success());
    // b as a copy that was resumed has it: at a later LSN than a, with what was committed before.
    let begun = "INSERT INTO a VALUES (2); INSERT INTO b VALUES (2)";
    on(&source, begun);
    let later = value(&source, "SELECT pg_current_wal_insert_lsn()");
    on(
        &target,
        &format!(
            "INSERT INTO b VALUES (2); UPDATE lockstep.table_copy SET start_lsn = '{later}'
             WHERE table_name = 'b'"
        ),
    );
    on(
        &source,
        "INSERT INTO a VALUES (3); INSERT INTO b VALUES (3); CREATE TABLE c (id int)",
    );

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
    assert_has!(text(&refused.stderr), "another lockstep works on");

    assert!(output(&["pause", "r", "--target", &to]).status.success());
    until(&target, state, "paused", child);
    assert_eq!(status(&to)["replicas"][0]["paused"], true);
    on(&source, "DELETE FROM a; INSERT INTO b VALUES (4)");
    assert_eq!(value(&target, "SELECT count(*) FROM a"), "3");
    for past in [["--leave-out", "public.a"], ["--made-by-hand", "0/1"]] {
        let refused = output(&["resume", "r", "--target", &to, past[0], past[1]]);
        assert_has!(text(&refused.stderr), "changes of the schema (--ddl)");
    }
    assert!(output(&["resume", "r", "--target", &to]).status.success());
    until(&target, "SELECT sum(id) FROM b", "10", child);
    assert_eq!(value(&target, "SELECT count(*) FROM a"), "0");

    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    assert!(child.wait().unwrap().success());
    let shown = &status(&to)["replicas"][0];
    assert_eq!(shown["apply"], "not running", "{shown}");
    assert!(output(&["drop", "r", "--target", &to]).status.success());
    let origins = "SELECT count(*) FROM pg_replication_origin";
    assert_eq!(value(&target, origins), "0");
    assert_eq!(
        value(&source, "SELECT count(*) FROM pg_replication_slots"),
        "0"
    );
}

/// A replica of two tables that follows its source. Its log is in a file.
pub struct Followed {
    pub running: Running,
    writers: &'static str,
    pub source: Server,
    pub target: Server,
    /// Conninfo of the target.
    pub to: String,
    pub log: std::path::PathBuf,
    // Last: it ends what still runs.
    _lab: Lab,
}

/// Says at its end that it is over.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Time between two looks at `status`, each a process.
pub const BETWEEN_STATUS: std::time::Duration = std::time::Duration::from_millis(100);

/// Times that a process is killed where nothing else is tested, and in the long tests.
const KILLS: u32 = 3;
const MANY_KILLS: u32 = 15;

/// What a process wrote is gone with the folder.
impl Drop for Followed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

impl Followed {
    fn new() -> Self {
        Self::with("")
    }

    /// A replica of more tables.
    pub fn with(tables: &str) -> Self {
        Self::with_writers(tables, "1")
    }

    pub fn with_writers(tables: &str, writers: &'static str) -> Self {
        Self::created(tables, &[], &[], writers)
    }

    /// A replica of more tables on the source, created once statements are executed on the target's server.
    pub fn created(
        tables: &str,
        on_target: &[&str],
        options: &[&str],
        writers: &'static str,
    ) -> Self {
        let (lab, source, target) = pair(&format!(
            "CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a VALUES (1), (2);
                 CREATE TABLE b (id int PRIMARY KEY); {tables}"
        ));
        for sql in on_target {
            target.run(sql);
        }
        let from = in_app(&source);
        let to = in_app(&target);
        let mut args = create_args(&from, &to);
        args.extend(options);
        let created = output(&args);
        assert!(created.status.success(), "{created:?}");
        let log = lab.folder().join("run.log");
        Self {
            running: Self::run(&to, &log, writers),
            writers,
            source,
            target,
            to,
            log,
            _lab: lab,
        }
    }

    pub fn run(to: &str, log: &std::path::Path, writers: &str) -> Running {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        let mut command = lockstep(&["run", "r", "--target", to, "--writers", writers]);
        Running(command.stderr(log).spawn().unwrap())
    }

    fn status(&self, more: &[&str]) -> Value {
        let mut args = vec!["status", "r", "--target", &self.to, "--output", "json"];
        args.extend(more);
        let status = output(&args);
        assert!(status.status.success(), "{status:?}");
        let mut json: Value = serde_json::from_slice(&status.stdout).unwrap();
        json["replicas"][0].take()
    }

    pub fn status_until(&self, more: &[&str], reached: impl Fn(&Value) -> bool) -> Value {
        let started = std::time::Instant::now();
        loop {
            let status = self.status(more);
            if reached(&status) {
                return status;
            }
            let waited = started.elapsed();
            assert!(waited < std::time::Duration::from_secs(300), "{status}");
            std::thread::sleep(BETWEEN_STATUS);
        }
    }

    fn text(&self, more: &[&str]) -> String {
        let mut args = vec!["status", "r", "--target", &self.to];
        args.extend(more);
        text(&output(&args).stdout)
    }

    pub fn kill(&mut self) {
        let pid = Pid::from_raw(self.running.0.id() as i32);
        kill(pid, Signal::SIGKILL).unwrap();
        self.running.0.wait().unwrap();
    }
}

pub const NOBODY: &str = "host=/nonexistent dbname=app";

#[test]
fn status_gives_no_all_clear_for_a_process_that_is_killed() {
    let mut followed = Followed::new();
    let shown = followed.status_until(&[], |status| status["lag_bytes"] == 0);
    assert_eq!(shown["apply"], "applying", "{shown}");
    assert_eq!(shown["lag_bytes_at_least"], Value::Null, "{shown}");
    // What only the stream has told is no all-clear.
    let told = |status: &Value| status["lag_bytes_at_least"] == 0;
    let shown = followed.status_until(&["--source", NOBODY], told);
    assert_eq!(shown["lag_bytes"], Value::Null, "{shown}");
    assert!(shown["source_error"].is_string(), "{shown}");
    let printed = followed.text(&["--source", NOBODY]);
    assert!(printed.contains("≥ 0 B"), "{printed}");
    assert!(printed.contains("the source cannot be asked"), "{printed}");

    followed.kill();
    let insert = "INSERT INTO b SELECT generate_series(1, 1000)";
    on(&followed.source, insert);
    let ended = |status: &Value| status["apply"] == "not running";
    let shown = followed.status_until(&[], ended);
    assert_eq!(shown["running"], false, "{shown}");
    assert_eq!(shown["lag_bytes"], Value::Null, "{shown}");
    assert_eq!(shown["lag_bytes_at_least"], Value::Null, "{shown}");
    let lsn = |key: &str| -> lockstep_wire::Lsn { shown[key].as_str().unwrap().parse().unwrap() };
    assert!(lsn("source_flush_lsn") > lsn("applied_lsn"), "{shown}");
    let printed = followed.text(&[]);
    assert!(
        printed.contains("not running") && !printed.contains("0 B  "),
        "{printed}"
    );
}

/// Changes of every kind, as one transaction: the number says which rows. Some are larger than a
/// batch.
fn change(number: u32) -> String {
    let many = match number % 32 {
        0 => "INSERT INTO log (n) SELECT generate_series(1, 25000);",
        _ => "",
    };
    format!(
        "BEGIN; {many} INSERT INTO log (n) VALUES ({number}); \
         INSERT INTO a VALUES ({number} + 10, 'v'); UPDATE b SET id = {number}; \
         UPDATE a SET v = {number} WHERE id % 7 = {number} % 7; \
         UPDATE a SET id = id + 1000000 WHERE id = {number} - 20; \
         DELETE FROM a WHERE id = {number} - 5; \
         INSERT INTO keyless VALUES ({number} % 3); \
         UPDATE keyless SET n = n + 10 WHERE n = {number} % 5; \
         DELETE FROM keyless WHERE n > 50; COMMIT"
    )
}

/// The failpoints of crate `replica` and the simulation of apply say where a process may die; here the
/// program does, wherever it is.
#[test]
fn a_process_that_is_killed_leaves_no_row_that_differs() {
    killed_again_and_again("4", KILLS);
}

#[test]
#[ignore = "long: make test-bed"]
fn a_process_that_is_killed_again_and_again_leaves_no_row_that_differs() {
    for writers in ["1", "4"] {
        killed_again_and_again(writers, MANY_KILLS);
    }
}

fn killed_again_and_again(writers: &'static str, kills: u32) {
    let tables = "CREATE TABLE log (id bigserial PRIMARY KEY, n int); \
                  CREATE TABLE keyless (n int); ALTER TABLE keyless REPLICA IDENTITY FULL";
    let mut followed = Followed::with_writers(tables, writers);
    on(&followed.source, "INSERT INTO b VALUES (0)");
    let (mut writer, mut reader) = (sql(&followed.source), sql(&followed.target));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also if an assertion fails.
        let _end = End(&ended);
        scope.spawn(|| {
            for number in 1.. {
                writer.execute(&change(number)).unwrap();
                // It is not so far ahead that the target needs minutes for the rest.
                let near = format!("SELECT 1 FROM b WHERE id > {number} - 100");
                while !ended.load(Ordering::SeqCst) && reader.query(&near).unwrap().is_empty() {
                    pause();
                }
                if ended.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        let applied = |target: &Server| value(target, "SELECT coalesce(max(id), 0) FROM b");
        for _ in 0..kills {
            // It is in the middle of whatever comes next.
            let before = applied(&followed.target);
            while applied(&followed.target) == before {
                let early = followed.running.0.try_wait().unwrap();
                assert_eq!(early, None);
                pause();
            }
            followed.kill();
            followed.running = Followed::run(&followed.to, &followed.log, followed.writers);
        }
    });
    let shown = followed.status_until(&[], |status| status["lag_bytes"] == 0);
    assert_eq!(shown["missing_rows"], 0, "{shown}");
    for table in ["a", "b", "log", "keyless"] {
        let rows = format!("SELECT t::text FROM {table} t ORDER BY 1");
        let rows = |server: &Server| sql(server).query(&rows).unwrap();
        assert!(rows(&followed.source) == rows(&followed.target), "{table}");
    }
}

#[test]
fn a_process_that_is_killed_while_batches_ran_ahead_applies_each_once() {
    let mut followed = Followed::with_writers("CREATE TABLE log (n int)", "4");
    let mut gate = sql(&followed.target);
    gate.execute("BEGIN; SELECT FROM a WHERE id = 1 FOR UPDATE")
        .unwrap();
    let of_writers = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'r' AND";
    let waiting = format!("{of_writers} wait_event_type = 'Lock'");
    let ahead = format!("{of_writers} state = 'idle in transaction' AND backend_xid IS NOT NULL");
    let mut source = sql(&followed.source);
    source
        .execute("UPDATE a SET v = 'first' WHERE id = 1")
        .unwrap();
    until(&followed.target, &waiting, "1", &mut followed.running.0);
    for batch in ["1", "2"] {
        let many = "INSERT INTO log SELECT generate_series(1, 600)";
        source.execute(many).unwrap();
        until(&followed.target, &ahead, batch, &mut followed.running.0);
    }
    assert_eq!(value(&followed.target, "SELECT count(*) FROM log"), "0");
    followed.kill();
    gate.execute("COMMIT").unwrap();
    followed.running = Followed::run(&followed.to, &followed.log, "2");
    let all = "SELECT coalesce(v, '') || (SELECT count(*) FROM log) FROM a WHERE id = 1";
    until(&followed.target, all, "first1200", &mut followed.running.0);
    followed.kill();
    let dropped = output(&["drop", "r", "--target", &followed.to]);
    assert!(dropped.status.success(), "{dropped:?}");
    let origins = "SELECT count(*) FROM pg_replication_origin";
    assert_eq!(value(&followed.target, origins), "0");
}

/// A server's process that is stopped, and goes on when this is dropped.
pub struct Halted(Pid);

impl Halted {
    pub fn new(pid: &str) -> Self {
        let pid = Pid::from_raw(pid.parse().unwrap());
        kill(pid, Signal::SIGSTOP).unwrap();
        Self(pid)
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

#[test]
fn status_knows_of_what_the_stream_has_not_told() {
    let followed = Followed::new();
    followed.status_until(&[], |status| status["lag_bytes"] == 0);
    let walsender = "SELECT active_pid FROM pg_replication_slots";
    let halted = Halted::new(&value(&followed.source, walsender));
    let insert = "INSERT INTO b SELECT generate_series(1, 10000)";
    on(&followed.source, insert);
    let shown = followed.status(&[]);
    assert!(shown["lag_bytes"].as_u64().unwrap() > 500_000, "{shown}");
    drop(halted);
    followed.status_until(&[], |status| status["lag_bytes"] == 0);
    assert_eq!(value(&followed.target, "SELECT count(*) FROM b"), "10000");
}

#[test]
fn rows_that_are_missing_are_counted_and_logged() {
    let mut followed = Followed::new();
    on(&followed.target, "DELETE FROM a");
    on(
        &followed.source,
        "UPDATE a SET v = 'new' WHERE id = 1; DELETE FROM a WHERE id = 2",
    );
    let missing = |status: &Value| status["missing_rows"] == 2;
    let shown = followed.status_until(&[], missing);
    assert_eq!(shown["tables"][0]["missing_rows"], 2, "{shown}");
    followed.kill();
    let shown = followed.status(&[]);
    assert_eq!(
        shown["missing_rows"], 2,
        "it is committed with the batch: {shown}"
    );
    let printed = followed.text(&[]);
    assert_has!(printed, "2 rows to update or delete were not on the target");
    let log = std::fs::read_to_string(&followed.log).unwrap();
    let warned = |line: &str| line.contains("WARN") && line.contains("2 of \"public.a\"");
    assert!(log.lines().any(warned), "{log}");
}

#[test]
fn a_replica_whose_source_is_gone_is_dropped_on_the_target_alone() {
    let (_lab, mut source, target) = pair("CREATE TABLE a (id int PRIMARY KEY)");
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&create_args(&from, &to)).status.success());
    source.stop(Stop::Fast).unwrap();
    let refused = output(&["drop", "r", "--target", &to]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    let words = text(&refused.stderr);
    assert_has!(words, "lockstep replica drop r --without-source");
    let dropped = output(&["drop", "r", "--target", &to, "--without-source"]);
    assert!(dropped.status.success(), "{dropped:?}");
    assert_eq!(value(&target, "SELECT count(*) FROM lockstep.replica"), "0");
    assert_eq!(
        value(&target, "SELECT count(*) FROM pg_replication_origin"),
        "0"
    );
    assert_eq!(
        value(&target, "SELECT count(*) FROM a"),
        "0",
        "the table stays"
    );
    // The source comes back, and the printed commands remove what it keeps.
    source.start().unwrap();
    let kept = "SELECT (SELECT count(*) FROM pg_replication_slots) + (SELECT count(*) FROM pg_publication)";
    assert_eq!(value(&source, kept), "2");
    let printed = text(&dropped.stdout);
    let commands: Vec<_> = printed.lines().filter(|line| line.ends_with(';')).collect();
    assert_eq!(commands.len(), 2, "{printed}");
    commands.iter().for_each(|command| on(&source, command));
    assert_eq!(value(&source, kept), "0");
}
