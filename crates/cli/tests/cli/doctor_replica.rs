//! What doctor says of replicas of Lockstep, on real servers.

use std::process::{Command, Stdio};

use lockstep_lab::assert_has;
use lockstep_lab::for_tests::pause;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::browser::Browser;
use crate::doctor_support::{brief, doctor, first_cause, once_right};
use crate::relay_support::until_slots_free;
use crate::replica::{
    Followed, Running, create_args, in_app, lockstep, on, output, pair, sql, text, until, value,
};
use crate::serve_support::{self, Serve};

/// Seconds that doctor watches: a replica that has stopped seems to apply for one of ten.
const WATCH: &str = "4";

/// What doctor says once it ends with this code.
fn ask(source: &str, target: Option<&str>, code: i32) -> (i32, Value) {
    once_right(|| ask_once(source, target), |said| said.0 == code)
}

fn ask_once(source: &str, target: Option<&str>) -> (i32, Value) {
    let mut args = vec!["--primary", source, "--seconds", WATCH, "--output", "json"];
    args.extend(target.iter().flat_map(|target| ["--subscriber", target]));
    let said = doctor(&args);
    let json = serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.error));
    (said.code, json)
}

fn examine(followed: &Followed, code: i32) -> (i32, Value) {
    let source = in_app(&followed.source);
    ask(&source, Some(&followed.to), code)
}

/// The replica of the first link.
fn seen(json: &Value) -> &Value {
    &json["links"][0]["lockstep_replica"]
}

/// Asserts what is found first and what the replica does.
fn expect(followed: &Followed, code: i32, cause: &str, doing: &str) -> Value {
    let source = in_app(&followed.source);
    let is_it = |(exit, json): &(i32, Value)| {
        (*exit, first_cause(json)) == (code, Some(cause)) && seen(json)["doing"] == doing
    };
    let (exit, mut json) = once_right(|| ask_once(&source, Some(&followed.to)), is_it);
    assert_eq!(json["findings"][0]["cause"], cause, "{}", brief(&json));
    assert_eq!(exit, code, "{}", brief(&json));
    assert_eq!(seen(&json)["doing"], doing, "{}", brief(&json));
    let first = json["findings"][0].take();
    assert!(!first["remedies"].as_array().unwrap().is_empty(), "{first}");
    first
}

/// What the first finding says, in one line.
fn words(finding: &Value) -> String {
    let facts = finding["evidence"].as_array().unwrap().iter();
    let words: Vec<&str> = facts.map(|fact| fact["words"].as_str().unwrap()).collect();
    words.join("; ")
}

fn insert(followed: &Followed, id: i32) {
    let insert = format!("INSERT INTO b VALUES ({id})");
    on(&followed.source, &insert);
}

fn status_is(followed: &Followed, key: &str, wanted: impl Into<Value>) -> Value {
    let wanted = wanted.into();
    followed.status_until(&[], |status| status[key] == wanted)
}

#[test]
fn a_replica_is_recognised_on_its_source_and_asked_on_its_target() {
    let followed = Followed::with("");
    status_is(&followed, "lag_bytes", 0);
    let (code, json) = examine(&followed, 0);
    assert_eq!(code, 0, "{}", brief(&json));
    assert_eq!(json["healthy"], true, "{}", brief(&json));
    assert_eq!(
        json["links"].as_array().unwrap().len(),
        1,
        "{}",
        brief(&json)
    );
    assert_eq!(json["links"][0]["replica"], "subscriber");
    assert_eq!(seen(&json)["name"], "r", "{}", brief(&json));
    assert_eq!(seen(&json)["doing"], "running", "{}", brief(&json));

    // Without its target it is known by its slot.
    let source = in_app(&followed.source);
    let (code, json) = ask(&source, None, 0);
    assert_eq!(code, 0, "{}", brief(&json));
    assert_eq!(json["links"][0]["replica"], "r", "{}", brief(&json));
    assert_eq!(seen(&json)["name"], "r", "{}", brief(&json));
    assert!(seen(&json)["doing"].is_null(), "{}", brief(&json));

    // A member of pg_monitor sees the state, another does not and says so.
    let roles = "CREATE ROLE poor LOGIN; CREATE ROLE watcher LOGIN IN ROLE pg_monitor";
    followed.target.run(roles);
    let as_role = |role: &str| {
        followed
            .to
            .replace("user=postgres", &format!("user={role}"))
    };
    let (code, json) = ask(&source, Some(&as_role("watcher")), 0);
    assert_eq!(
        (code, &seen(&json)["doing"]),
        (0, &"running".into()),
        "{}",
        brief(&json)
    );
    let (code, json) = ask(&source, Some(&as_role("poor")), 7);
    assert_eq!(code, 7, "{}", brief(&json));
    let troubles = json["nodes"][1]["troubles"].to_string();
    assert_has!(troubles, "replicas (schema lockstep)");
    assert!(troubles.contains("GRANT pg_monitor TO poor"), "{troubles}");

    // A superuser does not read what others own, whose code could run.
    let own = |role: &str| {
        let owner = format!("ALTER SCHEMA lockstep OWNER TO {role}");
        on(&followed.target, &owner);
    };
    own("watcher");
    let (code, json) = ask(&source, Some(&followed.to), 7);
    assert_eq!(code, 7, "{}", brief(&json));
    let troubles = json["nodes"][1]["troubles"].to_string();
    assert!(troubles.contains("whose code could run"), "{troubles}");
    let (code, _) = ask(&source, Some(&as_role("watcher")), 0);
    assert_eq!(code, 0);
    own("postgres");

    let nodes = ["--primary", &source, "--subscriber", &followed.to];
    let mut top = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    top.args(["top", "--count", "2", "--output", "json"])
        .args(nodes);
    let shown = text(&top.output().unwrap().stdout);
    let state: Value = serde_json::from_str(shown.lines().last().unwrap()).unwrap();
    assert_eq!(seen(&state)["doing"], "running", "{state}");

    let line = "- subscriber: lockstep replica r, running, applied up to ";
    let as_text = || doctor(&[&nodes[..], &["--seconds", "1"]].concat());
    let said = once_right(as_text, |said| said.text.contains(line));
    assert!(said.text.contains("  replica  "), "{}", said.text);
    assert!(said.text.contains(line), "{}", said.text);
}

#[test]
fn serve_shows_a_replica_and_what_it_does() {
    let followed = Followed::with("");
    status_is(&followed, "lag_bytes", 0);
    let source = in_app(&followed.source);
    let nodes = ["--primary", &source, "--subscriber", &followed.to];
    let serve = Serve::start(&[&nodes[..], &["--window", "5"]].concat());
    let doing = |doing: &str| {
        let label = format!("doing=\"{doing}\"");
        let is_it = |line: &str| {
            line.starts_with("lockstep_replica_doing{")
                && line.contains(&label)
                && line.ends_with("} 1")
        };
        let found = || serve.get("/metrics").body.lines().any(is_it).then_some(());
        serve_support::until(doing, found);
    };
    doing("running");
    assert_eq!(seen(&serve.state())["name"], "r");
    let paused = output(&["pause", "r", "--target", &followed.to]);
    assert!(paused.status.success(), "{paused:?}");
    insert(&followed, 1);
    doing("paused");
    let Some(browser) = Browser::start() else {
        return;
    };
    browser.open(&format!("http://{}/", serve.address));
    let card = "return document.getElementById('replicas').textContent";
    serve_support::until("the card says it", || {
        let words = browser.text(card);
        let all = ["lockstep replica, from primary", "paused"];
        all.iter().all(|it| words.contains(it)).then_some(())
    });
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn each_reason_why_a_replica_does_not_apply_is_named() {
    let mut followed = Followed::with("");
    status_is(&followed, "lag_bytes", 0);

    assert!(
        output(&["pause", "r", "--target", &followed.to])
            .status
            .success()
    );
    status_is(&followed, "apply", "paused");
    insert(&followed, 1);
    let found = expect(&followed, 6, "replica_paused", "paused");
    assert_eq!(found["at"], "subscriber", "{found}");
    assert_has!(words(&found), "of WAL of primary is not");
    assert!(
        output(&["resume", "r", "--target", &followed.to])
            .status
            .success()
    );
    status_is(&followed, "lag_bytes", 0);

    on(&followed.target, "INSERT INTO b VALUES (2)");
    insert(&followed, 2);
    let status = status_is(&followed, "apply", "blocked");
    let found = expect(&followed, 6, "replica_stopped", "stopped");
    assert_eq!(found["evidence"][0]["words"], status["error"], "{found}");
    let said = words(&found);
    for part in [
        "table \"public.b\"",
        "committed at ",
        "(id)=(2)",
        "its slot keeps ",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_has!(
        found["remedies"][0].as_str().unwrap(),
        "repair what the error names"
    );
    on(&followed.target, "DELETE FROM b WHERE id = 2");
    status_is(&followed, "lag_bytes", 0);

    held_by_verify(&followed);
    silent_and_then_gone(&mut followed);
}

fn held_by_verify(followed: &Followed) {
    let verify = held(followed);
    let holder = value(&followed.target, "SELECT pid::text FROM lockstep.hold");
    insert(followed, 3);
    let found = expect(followed, 6, "replica_held", "held");
    assert_eq!(found["names"]["pid"], holder, "{found}");
    drop(verify);
    status_is(followed, "lag_bytes", 0);
}

fn silent_and_then_gone(followed: &mut Followed) {
    let process = Pid::from_raw(followed.running.0.id() as i32);
    kill(process, Signal::SIGSTOP).unwrap();
    insert(followed, 4);
    let long_ago = "UPDATE lockstep.replica SET applied_at = applied_at - interval '1 minute'";
    on(&followed.target, long_ago);
    let found = expect(followed, 6, "replica_silent", "silent");
    assert_has!(found["remedies"][0].as_str().unwrap(), "kill -CONT");

    followed.kill();
    status_is(followed, "apply", "not running");
    let found = expect(followed, 6, "replica_not_running", "not_running");
    assert!(words(&found).contains("its slot keeps "), "{found}");
    let remedy = found["remedies"][0].as_str().unwrap();
    assert!(remedy.contains("lockstep replica run r"), "{remedy}");
}

/// A verify that waits for a transaction of the source, which ends first when this is dropped.
fn held(followed: &Followed) -> (lockstep_client::Connection, Running) {
    let mut open = sql(&followed.source);
    open.execute("BEGIN; INSERT INTO a VALUES (-1)").unwrap();
    let mut command = lockstep(&["verify", "r", "--target", &followed.to, "--wait", "3600"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut verify = Running(child.unwrap());
    let held = "SELECT count(held)::text FROM lockstep.hold";
    until(&followed.target, held, "1", &mut verify.0);
    (open, verify)
}

#[test]
fn rows_that_were_missing_are_a_risk() {
    let followed = Followed::with("");
    on(&followed.target, "DELETE FROM a");
    let changed = "UPDATE a SET v = 'new' WHERE id = 1; DELETE FROM a WHERE id = 2";
    on(&followed.source, changed);
    status_is(&followed, "missing_rows", 2);
    status_is(&followed, "lag_bytes", 0);
    let found = expect(&followed, 0, "replica_rows_missing", "running");
    assert_eq!(found["severity"], "risk", "{found}");
    assert!(
        words(&found).starts_with("2 rows to update or delete"),
        "{found}"
    );
}

#[test]
fn a_replica_whose_slot_is_gone_is_quoted_and_not_called_well() {
    let mut followed = Followed::with("");
    status_is(&followed, "lag_bytes", 0);
    followed.kill();
    status_is(&followed, "apply", "not running");
    until_slots_free(&followed.source);
    let gone = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots";
    sql(&followed.source).query(gone).unwrap();
    followed.running = Followed::run(&followed.to, &followed.log, "1");
    assert!(!followed.running.0.wait().unwrap().success());
    let status = status_is(&followed, "apply", "not running");
    let (code, json) = examine(&followed, 7);
    assert_eq!(code, 7, "{}", brief(&json));
    let found = &json["findings"][0];
    assert_eq!(found["cause"], "replica_stopped", "{}", brief(&json));
    assert_eq!(found["evidence"][0]["words"], status["error"], "{found}");
    let unknown = json["unknown"].to_string();
    assert!(unknown.contains("the upstream of subscriber"), "{unknown}");
}

#[test]
fn a_copy_is_no_lag_until_it_ends_too_early() {
    let (lab, source, target) = pair(
        "CREATE TABLE big (id int PRIMARY KEY, v text);
             INSERT INTO big SELECT n, repeat('x', 500) FROM generate_series(1, 60000) n",
    );
    let from = in_app(&source);
    let to = in_app(&target);
    let mut args = create_args(&from, &to);
    // It is not done before doctor is.
    args.extend(["--jobs", "2", "--bandwidth", "200kB"]);
    let child = lockstep(&args)
        .env("TMPDIR", lab.folder())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut copy = Running(child.unwrap());
    let schema = "SELECT (to_regclass('lockstep.replica') IS NOT NULL)::text";
    until(&target, schema, "true", &mut copy.0);
    let phase = "SELECT coalesce(min(phase), '') FROM lockstep.replica";
    until(&target, phase, "copying", &mut copy.0);
    let (code, json) = ask(&from, Some(&to), 0);
    assert_eq!(code, 0, "{}", brief(&json));
    assert_eq!(json["healthy"], true, "{}", brief(&json));
    assert_eq!(
        json["links"].as_array().unwrap().len(),
        1,
        "{}",
        brief(&json)
    );
    assert_eq!(
        json["findings"][0]["cause"],
        "replica_copying",
        "{}",
        brief(&json)
    );
    assert_eq!(seen(&json)["doing"], "copying", "{}", brief(&json));

    copy.0.kill().unwrap();
    copy.0.wait().unwrap();
    let working = "SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory'";
    while value(&target, working) != "0" {
        pause();
    }
    on(&source, "INSERT INTO big VALUES (0)");
    let (code, json) = ask(&from, Some(&to), 6);
    assert_eq!(code, 6, "{}", brief(&json));
    let found = &json["findings"][0];
    assert_eq!(found["cause"], "replica_not_running", "{}", brief(&json));
    assert!(words(found).contains("phase copying"), "{found}");
    let remedy = found["remedies"][0].as_str().unwrap();
    assert_has!(remedy, "lockstep replica create r again");

    // A state of an older version cannot be read, and who may mend that is said.
    on(&target, "DROP TABLE lockstep.hold");
    let (code, json) = ask(&from, Some(&to), 7);
    assert_eq!(code, 7, "{}", brief(&json));
    let troubles = json["nodes"][1]["troubles"].to_string();
    assert_has!(troubles, "run lockstep replica status once");
}

/// Changes of the schema are lost meanwhile.
#[test]
fn event_triggers_that_somebody_has_disabled_are_told_of_with_what_enables_them() {
    let followed = Followed::created("", &[], &["--ddl"], "1");
    status_is(&followed, "lag_bytes", 0);
    let one = value(
        &followed.source,
        "SELECT max(evtname) FROM pg_event_trigger",
    );
    on(
        &followed.source,
        &format!("ALTER EVENT TRIGGER {one} DISABLE"),
    );
    let found = expect(&followed, 0, "replica_incomplete", "running");
    assert_eq!(found["severity"], "risk", "{found}");
    let status = output(&["status", "r", "--target", &followed.to]);
    let status = text(&status.stdout);
    let status: Vec<_> = status.split_whitespace().collect();
    let told = words(&found);
    let begins = told.find("ALTER EVENT TRIGGER").unwrap();
    let remedy = &told[begins..=begins + told[begins..].find(';').unwrap()];
    assert_has!(status.join(" "), remedy);
    on(&followed.source, remedy);
    let source = in_app(&followed.source);
    let ask = || ask_once(&source, Some(&followed.to));
    let (_, json) = once_right(ask, |said| first_cause(&said.1).is_none());
    assert_eq!(first_cause(&json), None, "{}", brief(&json));
}
