//! `lockstep doctor` against every fault of the lab. Long: `make test-doctor-matrix`, which
//! prints a line for each and a count last. With `LOCKSTEP_MATRIX_RESULTS=FILE` a run also
//! writes a results file.

use lockstep_lab::for_tests::TestLab;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::doctor_support::healthy::{self, SITUATIONS};
use crate::doctor_support::true_lag::Probing;
use crate::doctor_support::{
    SPACE_MB, brief, causes, doctor, examine, examine_at, examine_with, trial, without_copies,
};
use lockstep_bench::fault::faults::FAULTS;
use lockstep_bench::fault::{Fault, Stage, Strength};
use lockstep_lab::cluster::Lab;
use lockstep_lab::machine;
use lockstep_lab::server::{SUPERUSER, Stop, settings_of};
use serde_json::{Value, json};

/// Pairs that are injected together: what one of them does must not hide the other.
const PAIRS: [(&str, &str); 12] = [
    ("paused replay", "one slow slot"),
    ("recovery conflict", "asynchronous apply commit"),
    ("slow network", "one slow slot"),
    ("retained WAL near its limit", "paused replay"),
    ("cleanup lock", "apply blocked by a lock"),
    ("slow network", "asynchronous apply commit"),
    ("frozen walreceiver", "unique violation"),
    ("frozen startup", "subscription disabled"),
    ("prepared transaction", "paused replay"),
    ("archiver failing", "unique violation"),
    ("inactive slot", "one slow slot"),
    ("network slow to a subscriber", "recovery_min_apply_delay"),
];

/// How long both are in force before doctor comes: it has to say that it does not know for how
/// long a replica has lagged.
const BEFORE_WATCH: Duration = Duration::from_secs(5);

/// Nodes of which something is hidden: by its place among the conninfos, whether it does not
/// answer at all, and doctor's exit code. Each is tried twice, idle and with some load.
const HIDDEN: [(&str, usize, bool, i32); 8] = [
    ("primary without rights", 0, false, 7),
    ("standby without rights", 1, false, 7),
    ("subscriber without rights", 2, false, 7),
    ("other subscriber without rights", 3, false, 7),
    ("primary down", 0, true, 3),
    ("first subscriber down", 2, true, 4),
    ("standby down", 1, true, 4),
    ("subscriber down", 3, true, 4),
];

/// What has come of it so far.
struct Matrix<'l> {
    lab: &'l Lab,
    skipped: u32,
    rows: Vec<Value>,
}

impl Matrix<'_> {
    /// Adds a row, and writes the results file: a run that is ended early keeps what it has found.
    fn add(&mut self, name: &str, mut row: Value) {
        match row["wrong"].as_str() {
            None => println!("ok    {name}"),
            Some(wrong) => println!("WRONG {name}: {wrong}"),
        }
        (row["commit"], row["date"]) = (json!(commit()), json!(machine::date()));
        row["pg"] = json!(self.lab.package().major().get());
        self.rows.push(row);
        self.save();
    }

    fn skip(&mut self, name: &str, why: &str) {
        self.skipped += 1;
        println!("SKIP  {name}: {why}");
    }

    fn count(&self, right: u32) -> usize {
        let rows = self.rows.iter();
        rows.filter(|row| row["right"] == right).count()
    }

    /// The results file, if one is asked for: rows of this run in the place of those that it has.
    fn save(&self) {
        let Some(path) = std::env::var_os("LOCKSTEP_MATRIX_RESULTS") else {
            return;
        };
        // Tests run in their package's folder.
        let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path);
        let earlier = std::fs::read_to_string(&path).unwrap_or_default();
        let earlier = serde_json::from_str(&earlier).unwrap_or(Value::Null);
        let rows = merged(
            earlier["rows"].as_array().map_or(&[], Vec::as_slice),
            self.rows.clone(),
        );
        let file = json!({
            "name": "doctor-matrix",
            "command": commands(&rows),
            "commit": commit(),
            "machine": machine::describe(self.lab.folder(), self.lab.pinning()),
            "date": machine::date(),
            "headline": {
                "metric": "causes that doctor named first at both strengths, on each major version",
                "ours": right_causes(&rows),
            },
            "rows": rows,
        });
        let text = serde_json::to_string_pretty(&file).unwrap() + "\n";
        std::fs::write(path, text).unwrap();
    }
}

/// The commit that runs, and whether files differ from it.
fn commit() -> String {
    let described = Command::new("git")
        .args([
            "describe",
            "--always",
            "--dirty",
            "--abbrev=40",
            "--exclude=*",
        ])
        .output();
    described.map_or_else(
        |_| "unknown".to_owned(),
        |said| String::from_utf8_lossy(&said.stdout).trim().to_owned(),
    )
}

/// Major versions that rows are of.
fn majors(rows: &[Value]) -> BTreeSet<u64> {
    rows.iter().filter_map(|row| row["pg"].as_u64()).collect()
}

/// What makes such rows.
fn commands(rows: &[Value]) -> String {
    let majors = majors(rows).into_iter();
    let commands = majors.map(|major| format!("make test-doctor-matrix PG={major}"));
    commands.collect::<Vec<_>>().join("; ")
}

/// Causes that were named first at both strengths, on each major version that rows are of.
fn right_causes(rows: &[Value]) -> usize {
    let mut right: BTreeMap<&str, BTreeSet<(Option<u64>, &str)>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row["right"] == 1) {
        let strength = row["variant"].as_str().unwrap_or_default();
        if let (Some(cause), "mild" | "strong") = (row["expected"].as_str(), strength) {
            let trial = (row["pg"].as_u64(), strength);
            right.entry(cause).or_default().insert(trial);
        }
    }
    let all = Strength::ALL.len() * majors(rows).len();
    right.values().filter(|seen| seen.len() == all).count()
}

/// Recorded rows and those that ran, which replace recorded ones of the same trial, in the order of the
/// faults; rows of other trials come last.
fn merged(recorded: &[Value], ran: Vec<Value>) -> Vec<Value> {
    let key = |row: &Value| ["case", "variant", "round", "pg"].map(|name| row[name].clone());
    let mut rows = recorded.to_vec();
    for row in ran {
        match rows.iter().position(|old| key(old) == key(&row)) {
            Some(place) => rows[place] = row,
            None => rows.push(row),
        }
    }
    let place = |row: &Value| FAULTS.iter().position(|fault| row["case"] == fault.name);
    rows.sort_by_key(|row| place(row).unwrap_or(FAULTS.len()));
    rows
}

#[test]
fn a_run_of_some_faults_keeps_the_rows_of_the_others() {
    let row = |case: &str, variant: &str, right: u32, pg: u32| json!({"case": case, "variant": variant, "round": 1, "right": right, "expected": case, "pg": pg});
    let [first, second] = [FAULTS[0].name, FAULTS[1].name];
    let recorded = [
        row(second, "mild", 1, 15),
        row(second, "strong", 0, 15),
        row("healthy", "idle", 1, 15),
    ];
    let ran = vec![row(second, "strong", 1, 15), row(first, "mild", 1, 15)];
    let rows = merged(&recorded, ran);
    let expected = [
        row(first, "mild", 1, 15),
        row(second, "mild", 1, 15),
        row(second, "strong", 1, 15),
        row("healthy", "idle", 1, 15),
    ];
    assert_eq!(rows, expected);
    assert_eq!(right_causes(&rows), 1);
    // Those of another major version stand beside them, and count once both strengths are there.
    let other = |strength: &str| vec![row(second, strength, 1, 17)];
    let rows = merged(&rows, other("mild"));
    assert_eq!((rows.len(), right_causes(&rows)), (5, 0));
    assert_eq!(rows[3], row(second, "mild", 1, 17));
    let rows = merged(&rows, other("strong"));
    assert_eq!((rows.len(), right_causes(&rows)), (6, 1));
    let both = "make test-doctor-matrix PG=15; make test-doctor-matrix PG=17";
    assert_eq!(commands(&rows), both);
}

/// Faults chosen with `LOCKSTEP_FAULTS` (parts of their names, or `=` and a whole name, separated by commas),
/// or all.
fn is_chosen(name: &str) -> bool {
    let chosen = std::env::var("LOCKSTEP_FAULTS").unwrap_or_default();
    let is_it = |part: &str| match part.strip_prefix('=') {
        Some(whole) => name == whole,
        None => name.contains(part),
    };
    chosen.is_empty() || chosen.split(',').any(is_it)
}

#[test]
#[ignore = "minutes: make test-doctor-matrix"]
fn doctor_names_the_cause_of_every_fault() {
    let lab = TestLab::stock()
        .pinned()
        .space_mb(SPACE_MB)
        .start()
        .unwrap();
    let mut stage = Stage::start(&lab).unwrap();
    stage.program = Some(env!("CARGO_BIN_EXE_lockstep").into());
    let mut matrix = Matrix {
        lab: &lab,
        skipped: 0,
        rows: Vec::new(),
    };
    for fault in FAULTS.iter().filter(|fault| is_chosen(fault.name)) {
        for strength in Strength::ALL {
            let name = format!("{} ({strength:?})", fault.name).to_lowercase();
            match fault.missing() {
                Some(why) => matrix.skip(&name, why),
                None => matrix.add(&name, trial(&lab, &mut stage, fault, strength)),
            }
        }
    }
    for (one, other) in PAIRS {
        let name = format!("{one} and {other}");
        if is_chosen(&name) {
            let row = pair(&lab, &mut stage, one, other);
            matrix.add(&name, row);
        }
    }
    for (index, (situation, _)) in SITUATIONS.iter().enumerate() {
        let name = format!("healthy, {situation}");
        match healthy::missing(situation) {
            _ if !is_chosen(&name) => {}
            Some(why) => matrix.skip(&name, why),
            None => matrix.add(&name, when_healthy(&lab, &mut stage, index)),
        }
    }
    for (name, place, is_down, code) in HIDDEN {
        for variant in ["idle", "some load"] {
            let name = format!("not known, {name}, {variant}");
            if is_chosen(&name) {
                let row = not_known(&mut stage, &name, (place, is_down), code, variant);
                matrix.add(&name, row);
            }
        }
    }
    for variant in ["idle", "inactive slot"] {
        let name = format!("not known, primary alone, {variant}");
        if is_chosen(&name) {
            let row = alone(&lab, &name, variant);
            matrix.add(&name, row);
        }
    }
    println!(
        "{} causes named first at both strengths",
        right_causes(&matrix.rows)
    );
    println!(
        "doctor matrix: {} right, {} wrong, {} skipped",
        matrix.count(1),
        matrix.count(0),
        matrix.skipped
    );
    assert_eq!(matrix.count(0), 0);
}

fn pair(lab: &Lab, stage: &mut Stage, one: &str, other: &str) -> Value {
    let faults = [one, other].map(|name| Fault::named(name).unwrap());
    let mut probing = Probing::start(stage);
    let injected = faults.map(|fault| fault.inject(lab, stage, Strength::Strong).unwrap());
    std::thread::sleep(BEFORE_WATCH);
    probing.watched();
    let (code, json) = examine(stage, 4);
    let (lags, off) = probing.end().compare(&json, 4);
    for one in injected {
        stage.heal_quietly(one).unwrap();
    }
    stage.calm().unwrap();
    let found: Vec<String> = causes(&json).into_iter().take(2).collect();
    let expected = faults.map(|fault| fault.cause().id());
    let both = expected
        .iter()
        .all(|cause| found.iter().any(|found| found == cause));
    let wrong = (!both || code != 6)
        .then(|| format!("expected {expected:?} first, found {found:?}, exit code {code}"))
        .or(off)
        .map(|wrong| format!("{wrong}: {}", brief(&json)));
    json!({
        "case": format!("{one} and {other}"),
        "variant": "pair",
        "round": 1,
        "right": u32::from(wrong.is_none()),
        "expected": expected.join(", "),
        "found": found.join(", "),
        "lags": lags,
        "wrong": wrong,
    })
}

/// Nothing is wrong.
fn when_healthy(lab: &Lab, stage: &mut Stage, index: usize) -> Value {
    stage.calm().unwrap();
    let (situation, begin) = SITUATIONS[index];
    let lasting = begin(lab, stage);
    let mut probing = Probing::start(stage);
    probing.watched();
    let (code, json) = match lasting.conninfos() {
        Some(conninfos) => examine_at(&conninfos, 3),
        None => examine_with(stage, &lasting.others(), 3),
    };
    let (lags, off) = probing.end().compare(&without_copies(&json), 3);
    lasting.end(stage);
    let findings = json["findings"].as_array().unwrap();
    let lag: Vec<&Value> = findings
        .iter()
        .filter(|finding| finding["severity"] != "note")
        .collect();
    let wrong = (code != 0 || !lag.is_empty())
        .then(|| format!("exit code {code}: {}", json["unknown"]))
        .or(off)
        .map(|wrong| format!("{wrong}: {}", brief(&json)));
    let found: Vec<&str> = lag.iter().filter_map(|one| one["cause"].as_str()).collect();
    json!({
        "case": "healthy",
        "variant": situation,
        "round": 1,
        "right": u32::from(wrong.is_none()),
        "expected": "",
        "found": found.join(", "),
        "lags": lags,
        "wrong": wrong,
    })
}

/// A primary that nobody is connected to, with no other node named: never healthy.
fn alone(lab: &Lab, name: &str, variant: &str) -> Value {
    let settings = settings_of([("wal_level", "logical")]);
    let server_name = variant.replace(' ', "-");
    let mut server = lab.primary(&server_name, None, &settings).unwrap();
    if variant != "idle" {
        let slot = "SELECT pg_create_logical_replication_slot('left', 'pgoutput')";
        server.execute(slot).unwrap();
    }
    let conninfo = server.conninfo(SUPERUSER);
    let said = doctor(&["--primary", &conninfo, "--seconds", "2", "--output", "json"]);
    server.stop(Stop::Fast).unwrap();
    let json: Value = serde_json::from_str(&said.text).unwrap();
    let wrong = (said.code != 7 || json["healthy"] != false).then(|| {
        format!(
            "exit code {}: {}: {}",
            said.code,
            json["unknown"],
            brief(&json)
        )
    });
    json!({
        "case": name,
        "variant": variant,
        "round": 1,
        "right": u32::from(wrong.is_none()),
        "expected": "exit code 7",
        "found": format!("exit code {}", said.code),
        "wrong": wrong,
    })
}

/// A role without rights, or a node that does not answer: never healthy.
fn not_known(
    stage: &mut Stage,
    name: &str,
    (place, is_down): (usize, bool),
    expected: i32,
    variant: &str,
) -> Value {
    stage.calm().unwrap();
    let load = (variant != "idle").then(|| stage.trickle().unwrap());
    let mut conninfos = stage.conninfos();
    conninfos[place] = match is_down {
        true => format!("{} port=1", conninfos[place]),
        false => conninfos[place].replace("user=postgres", "user=poor"),
    };
    for server in [&stage.primary, &stage.first, &stage.second] {
        let sql = "SELECT 1 FROM pg_roles WHERE rolname = 'poor'";
        if server.query_text(sql).unwrap().is_none() {
            server.execute("CREATE ROLE poor LOGIN").unwrap();
        }
    }
    stage.calm().unwrap();
    let mut probing = Probing::start(stage);
    probing.watched();
    let (code, json) = examine_at(&conninfos, 2);
    let (lags, off) = probing.end().compare(&json, 2);
    drop(load);
    let wrong = (code != expected || json["healthy"] != false)
        .then(|| format!("exit code {code}: {}", json["unknown"]))
        .or(off)
        .map(|wrong| format!("{wrong}: {}", brief(&json)));
    json!({
        "case": name,
        "variant": variant,
        "round": 1,
        "right": u32::from(wrong.is_none()),
        "expected": format!("exit code {expected}"),
        "found": format!("exit code {code}"),
        "lags": lags,
        "wrong": wrong,
    })
}
