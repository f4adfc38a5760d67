//! Faults, and what doctor says about them.

use std::path::PathBuf;
use std::process::Command;

use lockstep_lab::cluster::{Lab, LabOptions};
use lockstep_lab::fault::{Fault, Injected, Stage, Strength};
use lockstep_lab::guard::ReaperProgram;
use serde_json::Value;

/// A lab with stock servers, each side on a core of its own.
pub fn lab() -> Lab {
    let major = std::env::var("PG").unwrap_or_else(|_| "15".to_owned());
    Lab::new(&LabOptions {
        major: major.parse().unwrap(),
        stage: None::<PathBuf>,
        reaper: ReaperProgram {
            program: std::env::current_exe().unwrap(),
            args: ["--exact", "reaper_entry", "--nocapture"]
                .map(str::to_owned)
                .to_vec(),
        },
        space_mb: 2000,
        pinned: true,
    })
    .unwrap()
}

/// What doctor has said.
pub struct Said {
    pub code: i32,
    pub text: String,
    pub error: String,
}

/// Runs doctor.
pub fn doctor(args: &[&str]) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .arg("doctor")
        .args(args)
        .output()
        .unwrap();
    Said {
        code: output.status.code().unwrap(),
        text: String::from_utf8(output.stdout).unwrap(),
        error: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs doctor on all servers of a stage; its exit code and its JSON.
pub fn examine(stage: &Stage, seconds: u32) -> (i32, Value) {
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
        &seconds.to_string(),
        "--output",
        "json",
    ]);
    let json = serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.error));
    (said.code, json)
}

/// Causes in order.
pub fn causes(json: &Value) -> Vec<String> {
    let findings = json["findings"].as_array().unwrap();
    findings
        .iter()
        .map(|finding| finding["cause"].as_str().unwrap().to_owned())
        .collect()
}

/// What is wrong with what doctor says about a fault; None if all is right.
pub fn wrong(fault: &Fault, injected: &Injected, code: i32, json: &Value) -> Option<String> {
    let causes = causes(json);
    if causes.first().map(String::as_str) != Some(fault.cause) {
        return Some(format!(
            "expected {} first, found {causes:?}: {}",
            fault.cause,
            brief(json)
        ));
    }
    let expected = if fault.is_false { 0 } else { 6 };
    if code != expected {
        return Some(format!(
            "exit code {code} instead of {expected}: {}",
            brief(json)
        ));
    }
    let first = &json["findings"][0];
    if let Some(culprit) = injected.culprit {
        let pid = first["names"]["pid"].as_str().unwrap_or_default();
        if pid != culprit.to_string() {
            return Some(format!("blames process {pid} instead of {culprit}"));
        }
    }
    if !fault.is_false && first["remedies"].as_array().is_none_or(Vec::is_empty) {
        return Some("proposes nothing".to_owned());
    }
    None
}

/// Nothing is wrong with any node, and everything could be seen.
pub fn untroubled(json: &Value) -> bool {
    let nodes = json["nodes"].as_array().unwrap();
    let none = |node: &Value| node["troubles"].as_array().is_some_and(Vec::is_empty);
    nodes.iter().all(none)
}

/// Findings and links in few words.
pub fn brief(json: &Value) -> String {
    let mut words = Vec::new();
    for finding in json["findings"].as_array().unwrap() {
        let facts = finding["evidence"].as_array().unwrap();
        let facts: Vec<&str> = facts
            .iter()
            .map(|fact| fact["words"].as_str().unwrap())
            .collect();
        words.push(format!(
            "{} at {} ({}): {}",
            finding["cause"],
            finding["at"],
            finding["explains"],
            facts.join("; ")
        ));
    }
    for link in json["links"].as_array().unwrap() {
        words.push(format!("{link}"));
    }
    words.join("\n    ")
}

/// The same figure as one of doctor's facts, asked from the server: its name, and the SQL. Only
/// for faults during which it just grows.
fn independently(fault: &Fault, stage: &Stage) -> Option<(&'static str, f64)> {
    let (name, server, sql) = match fault.cause {
        "replay_paused" | "recovery_conflict" | "cleanup_lock" => (
            "unreplayed_bytes",
            &stage.standby,
            "SELECT (pg_last_wal_receive_lsn() - pg_last_wal_replay_lsn())::text",
        ),
        "retained_wal_near_limit" => (
            "retained_bytes",
            &stage.primary,
            "SELECT (pg_current_wal_flush_lsn() - restart_lsn)::text FROM pg_replication_slots \
             WHERE slot_name = 'forgotten'",
        ),
        _ => return None,
    };
    let value = server.query_text(sql).unwrap().unwrap();
    Some((name, value.parse().unwrap()))
}

/// Injects a fault, asks doctor, heals. None: as it should be.
pub fn trial(lab: &Lab, stage: &mut Stage, fault: &Fault, strength: Strength) -> Option<String> {
    let injected = fault.inject(lab, stage, strength).unwrap();
    let before = independently(fault, stage);
    let (code, json) = examine(stage, fault.seconds);
    let after = independently(fault, stage);
    let mut wrong = wrong(fault, &injected, code, &json);
    if let (None, Some((name, least)), Some((_, most))) = (&wrong, before, after) {
        let facts = json["findings"][0]["evidence"].as_array().unwrap();
        let fact = facts.iter().find(|fact| fact["name"] == name).unwrap();
        let value = fact["value"].as_f64().unwrap();
        if value < least || value > most {
            wrong = Some(format!("{name} is {value}, measured {least} to {most}"));
        }
    }
    if std::env::var_os("LOCKSTEP_SHOW").is_some() {
        println!("{}: {}", fault.name, brief(&json));
    }
    stage.heal(injected).unwrap();
    wrong
}
