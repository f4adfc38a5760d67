//! `lockstep doctor` against every fault of the lab. Long: `make test-doctor-matrix`.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    dead_code
)]

mod doctor_support;

use doctor_support::{brief, causes, doctor, examine, lab, trial};
use lockstep_lab::fault::faults::FAULTS;
use lockstep_lab::fault::{Fault, Stage, Strength};
use lockstep_lab::guard;

/// The reaper of the labs below; see `wal_runs.rs`.
#[test]
fn reaper_entry() {
    if std::env::args().next().as_deref() == Some(guard::REAPER_NAME) {
        guard::run_reaper().unwrap();
    }
}

/// Pairs that are injected together: what one of them does must not hide the other.
const PAIRS: [(&str, &str); 6] = [
    ("paused replay", "one slow slot"),
    ("recovery conflict", "asynchronous apply commit"),
    ("slow network", "one slow slot"),
    ("retained WAL near its limit", "paused replay"),
    ("cleanup lock", "apply blocked by a lock"),
    ("slow network", "asynchronous apply commit"),
];

/// Healthy runs in which nothing may be found.
const HEALTHY_RUNS: u32 = 10;

#[derive(Default)]
struct Count {
    right: u32,
    wrong: u32,
    skipped: u32,
}

impl Count {
    fn line(&mut self, name: &str, result: Option<String>) {
        match result {
            None => {
                self.right += 1;
                println!("ok    {name}");
            }
            Some(wrong) => {
                self.wrong += 1;
                println!("WRONG {name}: {wrong}");
            }
        }
    }

    fn skip(&mut self, name: &str, why: &str) {
        self.skipped += 1;
        println!("SKIP  {name}: {why}");
    }
}

/// Faults chosen with `LOCKSTEP_FAULTS` (parts of their names, separated by commas), or all.
fn is_chosen(name: &str) -> bool {
    let chosen = std::env::var("LOCKSTEP_FAULTS").unwrap_or_default();
    chosen.is_empty() || chosen.split(',').any(|part| name.contains(part))
}

#[test]
#[ignore = "minutes: make test-doctor-matrix"]
fn doctor_names_the_cause_of_every_fault() {
    let lab = lab();
    let mut stage = Stage::start(&lab).unwrap();
    let mut count = Count::default();
    for fault in FAULTS.iter().filter(|fault| is_chosen(fault.name)) {
        for strength in Strength::ALL {
            let name = format!("{} ({strength:?})", fault.name).to_lowercase();
            match fault.missing() {
                Some(why) => count.skip(&name, why),
                None => count.line(&name, trial(&lab, &mut stage, fault, strength)),
            }
        }
    }
    for (one, other) in PAIRS {
        let name = format!("{one} and {other}");
        if is_chosen(&name) {
            let result = pair(&lab, &mut stage, one, other);
            count.line(&name, result);
        }
    }
    for run in 1..=HEALTHY_RUNS {
        let name = format!("healthy, run {run}");
        if is_chosen(&name) {
            let result = healthy(&mut stage, run);
            count.line(&name, result);
        }
    }
    if is_chosen("reference table") {
        for (name, result) in reference_table(&stage) {
            count.line(name, result);
        }
    }
    println!(
        "doctor matrix: {} right, {} wrong, {} skipped",
        count.right, count.wrong, count.skipped
    );
    assert_eq!(count.wrong, 0);
}

fn pair(
    lab: &lockstep_lab::cluster::Lab,
    stage: &mut Stage,
    one: &str,
    other: &str,
) -> Option<String> {
    let faults = [one, other].map(|name| Fault::named(name).unwrap());
    let injected = faults.map(|fault| fault.inject(lab, stage, Strength::Strong).unwrap());
    let (code, json) = examine(stage, 4);
    for one in injected {
        stage.heal_quietly(one).unwrap();
    }
    stage.calm().unwrap();
    let found = causes(&json);
    let expected = faults.map(|fault| fault.cause);
    let both = expected
        .iter()
        .all(|cause| found.iter().take(2).any(|found| found == cause));
    match both && code == 6 {
        true => None,
        false => Some(format!(
            "expected {expected:?} first, found {found:?}: {}",
            brief(&json)
        )),
    }
}

/// Every other run has a little load.
fn healthy(stage: &mut Stage, run: u32) -> Option<String> {
    stage.calm().unwrap();
    let load = (run % 2 == 0).then(|| stage.trickle().unwrap());
    let (code, json) = examine(stage, 3);
    drop(load);
    let lag = json["findings"]
        .as_array()
        .unwrap()
        .iter()
        .any(|finding| finding["severity"] != "note");
    (code != 0 || lag).then(|| format!("exit code {code}: {}", brief(&json)))
}

/// Where logical lag hides: by default a subscriber's flush takes at least so many times as
/// long as its apply, and with the remedy about as long.
const HIDDEN: f64 = 20.0;
const REMEDIED: f64 = 1.2;

fn reference_table(stage: &Stage) -> [(&'static str, Option<String>); 2] {
    let times = || {
        let [primary, standby, first, second] = stage.conninfos();
        let said = doctor(&[
            "--primary",
            &primary,
            "--standby",
            &standby,
            "--subscriber",
            &first,
            "--subscriber",
            &second,
            "--seconds",
            "1",
            "--probe",
            "--commits",
            "11",
            "--output",
            "json",
        ]);
        let json: serde_json::Value =
            serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.error));
        let rows = json["probe"]["rows"].as_array().unwrap();
        let row = rows
            .iter()
            .find(|row| row["replica"] == "first")
            .unwrap_or_else(|| panic!("{json}"));
        [1, 2].map(|cell| row["cells"][cell]["median_ms"].as_f64().unwrap())
    };
    let [on, apply] = times();
    println!("logical by default: on {on:.1} ms, remote_apply {apply:.1} ms");
    let hidden = (on < HIDDEN * apply).then(|| format!("on {on} ms, remote_apply {apply} ms"));
    let set = |value: &str| {
        stage.first.execute(&format!(
            "ALTER SUBSCRIPTION first SET (synchronous_commit = {value})"
        ))
    };
    set("on").unwrap();
    let [on, apply] = times();
    println!("logical with the remedy: on {on:.1} ms, remote_apply {apply:.1} ms");
    set("off").unwrap();
    let remedied = (on > REMEDIED * apply).then(|| format!("on {on} ms, remote_apply {apply} ms"));
    [
        ("reference table, by default", hidden),
        ("reference table, with the remedy", remedied),
    ]
}
