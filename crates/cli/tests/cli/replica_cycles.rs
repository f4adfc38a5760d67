//! `lockstep replica` with a frequency, as a user runs it.

use std::process::Output;

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;
use serde_json::Value;

use crate::doctor_support::{brief, doctor};
use crate::replica::{
    Running, conninfo, create_args, lockstep, output, server, sql, status, text, until, value,
};

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
        sql(&source)
            .execute("CREATE TABLE t (id int PRIMARY KEY)")
            .unwrap();
        let from = format!("{} dbname=app", conninfo(&source));
        let to = format!("{} dbname=app", conninfo(&target));
        let mut args = create_args(&from, &to);
        args.extend(["--frequency", frequency]);
        let created = output(&args);
        assert!(created.status.success(), "{created:?}");
        let says = text(&created.stdout);
        assert!(
            says.contains("it has a cycle every") && says.contains("--spool-dir"),
            "{says}"
        );
        Self {
            source,
            target,
            to,
            lab,
        }
    }

    fn run(&self) -> Running {
        let spool = self.lab.folder().join("spool");
        let log = std::fs::File::create(self.lab.folder().join("log")).unwrap();
        let mut command = lockstep(&["run", "r", "--target", &self.to]);
        command.args([
            "--spool-dir",
            spool.to_str().unwrap(),
            "--spool-limit",
            "1GB",
        ]);
        Running(command.stderr(log).spawn().unwrap())
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

    fn until(&self, query: &str, wanted: &str, process: &mut Running) {
        until(&self.target, query, wanted, &mut process.0);
    }

    fn doctor(&self) -> (i32, Value) {
        let source = format!("{} dbname=app", conninfo(&self.source));
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
    sql(&cycling.source)
        .execute("INSERT INTO t SELECT generate_series(1, 7)")
        .unwrap();
    let (code, json) = cycling.doctor();
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
        sql(&cycling.source).execute(&insert).unwrap();
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
    assert!(
        words.contains("1,126") && words.contains("885.5 GB"),
        "{words}"
    );
    let over = plan(&["--budget", "1s", "--data", "1GB", "--rate", "1MB"]);
    assert_eq!(over.status.code(), Some(2), "{over:?}");
    assert!(
        text(&over.stderr).contains("longer than the budget"),
        "{over:?}"
    );
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
    let mut blocker = sql(&cycling.target);
    blocker
        .execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        .unwrap();
    sql(&cycling.source)
        .execute("INSERT INTO t VALUES (1)")
        .unwrap();
    let late = "SELECT coalesce(cycle_late_ms > 3000, false) FROM lockstep.replica";
    cycling.until(late, "t", &mut process);
    let history = cycling.json("history");
    assert_eq!(history["cycles"][0]["state"], "running", "{history}");
    assert!(
        history["cycles"][0]["elapsed_ms"].as_u64().unwrap() > 1000,
        "{history}"
    );
    let (code, json) = cycling.doctor();
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
    assert!(
        text(&altered.stdout).contains("as they come"),
        "{altered:?}"
    );
    assert_eq!(value(&cycling.target, CYCLES), "0");
    let forced = cycling.ask("force", &[]);
    assert_eq!(forced.status.code(), Some(1), "{forced:?}");
    assert!(
        text(&forced.stderr).contains("lockstep replica alter r --frequency"),
        "{forced:?}"
    );
    let history = text(&cycling.ask("history", &[]).stdout);
    assert!(history.contains("has had no cycle"), "{history}");
}
