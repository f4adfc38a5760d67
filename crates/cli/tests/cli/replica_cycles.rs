//! `lockstep replica` with a frequency, as a user runs it.

use std::process::Output;

use lockstep_client::Connection;
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;
use serde_json::Value;

use crate::doctor_support::{brief, doctor, once_right};
use crate::replica::{
    Halted, Running, closed_args, create_args, in_app, lockstep, on, output, pair, said, server,
    sql, status, text, until, value,
};
use crate::replica_daemon::page;

struct Cycling {
    source: Server,
    target: Server,
    to: String,
    // Last: it ends what still runs.
    lab: Lab,
}

impl Cycling {
    fn new(frequency: &str) -> Self {
        let lab = Lab::for_tests().unwrap();
        let (source, target) = (server(&lab, "source"), server(&lab, "target"));
        on(&source, "CREATE TABLE t (id int PRIMARY KEY)");
        let from = in_app(&source);
        let to = in_app(&target);
        let mut args = closed_args(&from, &to);
        args.extend(["--frequency", frequency]);
        let created = output(&args);
        assert!(created.status.success(), "{created:?}");
        let says = text(&created.stdout);
        assert_has!(
            says,
            "it has a cycle every",
            "--spool-dir",
            "read-only for others"
        );
        Self {
            source,
            target,
            to,
            lab,
        }
    }

    fn run(&self) -> Running {
        self.run_with("spool", "1GB")
    }

    fn run_with(&self, spool: &str, limit: &str) -> Running {
        let log = std::fs::File::create(self.lab.folder().join("log")).unwrap();
        let mut command = self.command(spool, limit);
        Running(command.stderr(log).spawn().unwrap())
    }

    fn command(&self, spool: &str, limit: &str) -> std::process::Command {
        let spool = self.lab.folder().join(spool);
        let mut command = lockstep(&["run", "r", "--target", &self.to]);
        command.args(["--spool-dir", spool.to_str().unwrap()]);
        command.args(["--spool-limit", limit]);
        command
    }

    /// Runs it, and waits for its first cycle.
    fn begun(&self, limit: &str) -> Running {
        let mut process = self.run_with("spool", limit);
        self.until(FIRST, "t", &mut process);
        process
    }

    fn ask(&self, command: &str, more: &[&str]) -> Output {
        let mut args = vec![command, "r", "--target", &self.to];
        args.extend(more);
        output(&args)
    }

    fn json(&self, command: &str) -> Value {
        let asked = self.ask(command, &["--output", "json"]);
        assert!(asked.status.success(), "{asked:?}");
        serde_json::from_slice(&asked.stdout).unwrap()
    }

    /// A session that locks the target's table, while a row of it is on its way.
    fn blocked(&self) -> Connection {
        let mut blocker = sql(&self.target);
        blocker
            .execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            .unwrap();
        on(&self.source, "INSERT INTO t VALUES (1)");
        blocker
    }

    fn until(&self, query: &str, wanted: &str, process: &mut Running) {
        until(&self.target, query, wanted, &mut process.0);
    }

    /// What doctor says once it ends with this code.
    fn doctor(&self, code: i32) -> (i32, Value) {
        once_right(|| self.doctor_once(), |said| said.0 == code)
    }

    fn doctor_once(&self) -> (i32, Value) {
        let source = in_app(&self.source);
        let said = doctor(&[
            "--primary",
            &source,
            "--subscriber",
            &self.to,
            "--seconds",
            "3",
            "--output",
            "json",
        ]);
        let json = serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.error));
        (said.code, json)
    }
}

const CYCLES: &str = "SELECT count(*) FROM lockstep.cycle";

/// Whether a cycle has ended.
const FIRST: &str = "SELECT count(*) > 0 FROM lockstep.cycle WHERE state = 'done'";

#[test]
fn a_forced_cycle_is_printed_and_listed_and_standing_still_between_cycles_is_no_lag() {
    let cycling = Cycling::new("1h");
    let early = cycling.ask("force", &[]);
    let words = text(&early.stderr);
    assert!(words.contains("start lockstep replica run"), "{words}");
    let mut process = cycling.run();
    cycling.until(
        "SELECT count(*) > 0 FROM lockstep.cycle WHERE state = 'done'",
        "t",
        &mut process,
    );
    on(
        &cycling.source,
        "INSERT INTO t SELECT generate_series(1, 7)",
    );
    let (code, json) = cycling.doctor(0);
    assert_eq!(code, 0, "{}", brief(&json));
    assert_eq!(
        json["links"][0]["lockstep_replica"]["doing"],
        "running",
        "{}",
        brief(&json)
    );
    assert_eq!(
        value(&cycling.target, "SELECT count(*) FROM t"),
        "0",
        "it stood still"
    );

    let forced = cycling.json("force");
    assert_eq!(
        (&forced["state"], &forced["rows"]),
        (&"done".into(), &7.into()),
        "{forced}"
    );
    assert_eq!(value(&cycling.target, "SELECT count(*) FROM t"), "7");
    let history = cycling.json("history");
    assert_eq!(history["frequency_s"], 3600.0);
    assert_eq!(history["cycles"][0], forced);
    let table = text(&cycling.ask("history", &["--limit", "1"]).stdout);
    assert!(
        table.contains("done") && table.lines().count() == 2,
        "{table}"
    );

    let status = status(&cycling.to);
    let status = &status["replicas"][0];
    assert_eq!(status["cycles"]["last"], forced);
    assert!(
        status["cycles"]["next_s"].as_f64().unwrap() > 3000.0,
        "{status}"
    );
    let shown = text(&cycling.ask("status", &[]).stdout);
    assert!(shown.contains("it has a cycle every 1 h"), "{shown}");

    // The planner reads what was measured.
    let early = plan(&["--from", "r", "--target", &cycling.to]);
    assert_eq!(early.status.code(), Some(2), "{early:?}");
    assert!(text(&early.stderr).contains("fewer than 3"), "{early:?}");
    for first in [100, 200] {
        let insert = format!("INSERT INTO t SELECT generate_series({first}, {first} + 50)");
        on(&cycling.source, &insert);
        cycling.json("force");
    }
    let mut asked = vec!["--tables", "1", "--data", "1MB", "--output", "json"];
    asked.extend(["--from", "r", "--target", &cycling.to]);
    let planned = plan(&asked);
    let planned: Value =
        serde_json::from_slice(&planned.stdout).unwrap_or_else(|_| panic!("{planned:?}"));
    assert_eq!(planned["plan"]["fits"], true, "{planned}");
    assert!(
        planned["plan"]["budget_s"].as_f64() > Some(0.0),
        "{planned}"
    );
    assert_eq!(planned["schedule"]["frequency_s"], 3600.0, "{planned}");
    assert_eq!(planned["schedule"]["tables"], 1, "{planned}");
}

fn plan(args: &[&str]) -> Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.arg("plan").args(args).output().unwrap()
}

#[test]
fn a_plan_solves_for_what_is_not_given_and_prints_the_references_budgets() {
    let solved = plan(&[
        "--budget",
        "60s",
        "--tables",
        "100",
        "--rate",
        "1MB",
        "--overhead",
        "100ms",
    ]);
    let words = text(&solved.stdout);
    assert!(words.contains("100 tables and 50 MB take"), "{words}");
    assert_has!(words, "1,126", "885.5 GB");
    let over = plan(&["--budget", "1s", "--data", "1GB", "--rate", "1MB"]);
    assert_eq!(over.status.code(), Some(2), "{over:?}");
    assert_has!(text(&over.stderr), "longer than the budget");
    let few = plan(&["--budget", "1s"]);
    assert!(text(&few.stderr).contains("give two of"), "{few:?}");
    assert!(plan(&[]).status.success());
}

#[test]
fn a_cycle_that_waits_is_shown_as_running_and_late() {
    let cycling = Cycling::new("1s");
    let mut process = cycling.run();
    cycling.until(
        "SELECT count(*) > 0 FROM lockstep.cycle WHERE state = 'done'",
        "t",
        &mut process,
    );
    let mut blocker = cycling.blocked();
    let late = "SELECT coalesce(cycle_late_ms > 3000, false) FROM lockstep.replica";
    cycling.until(late, "t", &mut process);
    let status = text(&cycling.ask("status", &[]).stdout);
    let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_has!(status, "later than its frequency lets expect");
    let history = cycling.json("history");
    assert_eq!(history["cycles"][0]["state"], "running", "{history}");
    assert!(
        history["cycles"][0]["elapsed_ms"].as_u64().unwrap() > 1000,
        "{history}"
    );
    let (code, json) = cycling.doctor(6);
    assert_eq!(code, 6, "{}", brief(&json));
    blocker.execute("COMMIT").unwrap();
    cycling.until("SELECT count(*) FROM t", "1", &mut process);
    cycling.until(
        "SELECT coalesce(cycle_late_ms = 0, false) FROM lockstep.replica",
        "t",
        &mut process,
    );
}

#[test]
fn a_target_is_read_only_for_others_until_that_is_taken_back() {
    let cycling = Cycling::new("1s");
    let neither = cycling.ask("alter", &[]);
    assert_eq!(neither.status.code(), Some(2), "{neither:?}");
    let write = || sql(&cycling.target).execute("INSERT INTO t VALUES (1000)");
    assert!(write().unwrap_err().to_string().contains("read-only"));
    assert_eq!(status_json(&cycling)["read_only"], true);
    // The replica itself goes on.
    let mut process = cycling.run();
    cycling
        .source
        .rows_in("app", "INSERT INTO t VALUES (1)")
        .unwrap();
    cycling.until("SELECT count(*) FROM t", "1", &mut process);
    drop(process);
    let open = cycling.ask("alter", &["--read-only", "off", "--frequency", "1h"]);
    assert_eq!(text(&open.stdout).lines().count(), 2, "{open:?}");
    write().unwrap();
    assert_eq!(status_json(&cycling)["read_only"], false);
    let closed = cycling.ask("alter", &["--read-only", "on"]);
    assert_has!(text(&closed.stdout), "read-only for others");
    assert!(write().unwrap_err().to_string().contains("read-only"));
    let dropped = cycling.ask("drop", &[]);
    assert!(dropped.status.success(), "{}", said(&dropped));
    on(&cycling.target, "TRUNCATE t");
    write().unwrap();
}

#[test]
fn a_target_that_is_to_be_written_is_not_read_only() {
    let (_lab, source, target) = pair("CREATE TABLE t (id int PRIMARY KEY)");
    let (from, to) = (in_app(&source), in_app(&target));
    let created = output(&create_args(&from, &to));
    assert!(created.status.success(), "{}", said(&created));
    assert!(!said(&created).contains("read-only"), "{}", said(&created));
    sql(&target).execute("INSERT INTO t VALUES (1)").unwrap();
}

#[test]
fn what_a_frequency_needs_is_said() {
    let cycling = Cycling::new("1h");
    let without = cycling.ask("run", &[]);
    assert_eq!(without.status.code(), Some(1), "{without:?}");
    let words = text(&without.stderr);
    assert!(words.contains("needs a spool"), "{words}");
    let low = cycling.ask("alter", &["--frequency", "100ms"]);
    assert_eq!(low.status.code(), Some(2), "{low:?}");
    assert!(text(&low.stderr).contains("at least 1 s"), "{low:?}");
    let altered = cycling.ask("alter", &["--frequency", "0"]);
    assert_has!(text(&altered.stdout), "as they come");
    assert_eq!(value(&cycling.target, CYCLES), "0");
    let forced = cycling.ask("force", &[]);
    assert_eq!(forced.status.code(), Some(1), "{forced:?}");
    assert_has!(text(&forced.stderr), "lockstep replica alter r --frequency");
    let history = text(&cycling.ask("history", &[]).stdout);
    assert!(history.contains("has had no cycle"), "{history}");
}

/// A transaction that the spool has no room for: everybody who asks is told, nothing says that all is well,
/// no cycle repeats the one before, and the remedy that doctor prints is right.
#[test]
fn a_transaction_larger_than_the_spool_is_the_cause_that_all_name() {
    let cycling = Cycling::new("1s");
    let mut process = cycling.begun("1MB");
    on(
        &cycling.source,
        "INSERT INTO t SELECT generate_series(1, 100000)",
    );
    cycling.until(
        "SELECT coalesce(spool_full_by = 'transaction', false) FROM lockstep.replica",
        "t",
        &mut process,
    );
    let status = text(&cycling.ask("status", &[]).stdout);
    assert!(!status.contains("the target has all"), "{status}");
    assert!(!status.contains("has not ended"), "{status}");
    let json = status_json(&cycling);
    assert_eq!(json["spool"]["full_by"], "transaction", "{json}");
    for (command, wait) in [("force", "3"), ("verify", "2")] {
        let asked = cycling.ask(command, &["--wait", wait]);
        assert_eq!(asked.status.code(), Some(1), "{asked:?}");
        let words = said(&asked);
        assert!(words.contains("its spool is full"), "{command}: {words}");
    }
    // A cycle that ran when the spool became full has ended by now.
    let before = value(&cycling.target, CYCLES);
    let (code, json) = cycling.doctor(6);
    let found = &json["findings"][0];
    assert_eq!(
        (code, &found["cause"]),
        (6, &"replica_spool_full".into()),
        "{}",
        brief(&json)
    );
    let remedy = found["remedies"][0].as_str().unwrap();
    assert_has!(
        remedy,
        "lockstep replica run r again with a --spool-limit",
        "now 1.0 MB"
    );
    let causes: Vec<_> = json["findings"].as_array().unwrap().iter().collect();
    assert!(
        causes.iter().all(|it| it["cause"] != "slow_consumer"),
        "{}",
        brief(&json)
    );
    assert_eq!(
        value(&cycling.target, CYCLES),
        before,
        "cycles with nothing new"
    );
    drop(process);
    let mut process = cycling.run_with("spool", "100MB");
    cycling.until("SELECT count(*) FROM t", "100000", &mut process);
}

fn status_json(cycling: &Cycling) -> Value {
    status(&cycling.to)["replicas"][0].take()
}

/// Nobody but the process that has begun has a spool, and a pause ends what waits for a cycle.
#[test]
fn a_second_process_is_refused_without_a_trace_and_a_pause_ends_a_forced_cycles_wait() {
    let cycling = Cycling::new("1h");
    let mut process = cycling.begun("1GB");
    let second = cycling.command("another", "1GB").output().unwrap();
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert_has!(said(&second), "another lockstep works on");
    assert!(!cycling.lab.folder().join("another").exists());

    let mut blocker = cycling.blocked();
    let to = cycling.to.clone();
    let waiting = std::thread::spawn(move || output(&["force", "r", "--target", &to]));
    let runs = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted";
    cycling.until(runs, "t", &mut process);
    assert!(cycling.ask("pause", &[]).status.success());
    let ended = waiting.join().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert_has!(said(&ended), "lockstep replica resume");
    let refused = cycling.ask("force", &[]);
    assert_has!(said(&refused), "is paused, so it has no cycle");
    assert!(cycling.ask("resume", &[]).status.success());
    blocker.execute("COMMIT").unwrap();
    let forced = cycling.json("force");
    assert_eq!(forced["state"], "done", "{forced}");
    assert_eq!(value(&cycling.target, "SELECT count(*) FROM t"), "1");
}

/// A source that says nothing: no cycle says that it has nothing new, and who asks for one is told.
#[test]
fn a_source_that_is_silent_is_named_by_those_who_wait_and_its_replica_is_not_healthy() {
    let cycling = Cycling::new("1s");
    let (log, file) = (
        cycling.lab.folder().join("log"),
        cycling.lab.folder().join("r.toml"),
    );
    let spool = cycling.lab.folder().join("spool");
    let config = format!(
        "metrics = \"127.0.0.1:0\"\n[[replica]]\nname = \"r\"\ntarget = \"{}\"\nspool_dir = \"{}\"\n\
         spool_limit = \"1GB\"\n",
        cycling.to,
        spool.display()
    );
    std::fs::write(&file, config).unwrap();
    let mut command = lockstep(&["run", "--config", file.to_str().unwrap()]);
    let told = std::fs::File::create(&log).unwrap();
    let mut process = Running(command.stderr(told).spawn().unwrap());
    cycling.until(FIRST, "t", &mut process);
    let healthz = || page(&log, "/healthz");
    assert!(healthz().starts_with("HTTP/1.1 200"), "{}", healthz());
    let has_slot = "SELECT active FROM pg_replication_slots WHERE slot_type = 'logical'";
    until(&cycling.source, has_slot, "t", &mut process.0);
    // Its walsender is stopped, and the connection stays.
    let walsender = value(
        &cycling.source,
        "SELECT active_pid FROM pg_replication_slots WHERE slot_type = 'logical'",
    );
    let _halted = Halted::new(&walsender);
    on(&cycling.source, "INSERT INTO t VALUES (1)");
    let late = "SELECT coalesce(cycle_late_ms > 12000, false) FROM lockstep.replica";
    cycling.until(late, "t", &mut process);
    let health = healthz();
    assert!(
        health.starts_with("HTTP/1.1 503") && health.contains("later than its frequency"),
        "{health}"
    );
    let before = value(&cycling.target, CYCLES);
    let forced = cycling.ask("force", &["--wait", "2"]);
    assert_has!(said(&forced), "heard nothing of the source");
    assert_eq!(
        value(&cycling.target, CYCLES),
        before,
        "cycles with nothing new"
    );
}

#[test]
fn a_promotion_during_a_cycle_has_it_and_what_came_after_its_beginning() {
    let cycling = Cycling::new("1h");
    let mut process = cycling.begun("1GB");
    let mut blocker = cycling.blocked();
    let mut forced = lockstep(&["force", "r", "--target", &cycling.to])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted";
    cycling.until(waits, "t", &mut process);
    on(&cycling.source, "INSERT INTO t VALUES (2)");
    let promotion = lockstep(&["promote", "r", "--target", &cycling.to])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // It holds the replica where the second row is.
    cycling.until("SELECT count(*) FROM lockstep.hold", "1", &mut process);
    assert_eq!(
        value(&cycling.target, "SELECT phase FROM lockstep.replica"),
        "ready"
    );
    blocker.execute("COMMIT").unwrap();
    let done = promotion.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    let rows = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM t";
    assert_eq!(value(&cycling.target, rows), "1 2");
    assert!(process.0.wait().unwrap().success(), "it ends by itself");
    forced.wait().unwrap();
}
