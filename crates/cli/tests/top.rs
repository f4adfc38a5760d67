//! `lockstep top` on real servers: lines and JSON with `--count`, and the screen in a
//! pseudo-terminal of `script` (util-linux), which must be as it was when the screen ends.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    dead_code
)]

mod doctor_support;
mod terminal;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use doctor_support::lab;
use lockstep_bench::fault::{Fault, Stage, Strength};
use lockstep_lab::guard;
use lockstep_lab::server::Stop;
use nix::sys::signal::Signal;
use serde_json::Value;
use terminal::Terminal;

/// The reaper of the labs below; see `wal_runs.rs`.
#[test]
fn reaper_entry() {
    if std::env::args().next().as_deref() == Some(guard::REAPER_NAME) {
        guard::run_reaper().unwrap();
    }
}

/// What top has said.
struct Said {
    code: i32,
    lines: Vec<String>,
    error: String,
}

fn top(args: &[&str]) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .arg("top")
        .args(args)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains('\u{1b}'), "{text:?}");
    Said {
        code: output.status.code().unwrap(),
        lines: text.lines().map(str::to_owned).collect(),
        error: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The arguments that name all servers of a stage.
fn named(stage: &Stage) -> Vec<String> {
    let options = ["--primary", "--standby", "--subscriber", "--subscriber"];
    let pairs = options.into_iter().zip(stage.conninfos());
    pairs
        .flat_map(|(option, conninfo)| [option.to_owned(), conninfo])
        .collect()
}

fn top_of(stage: &Stage, more: &[&str]) -> Said {
    let named = named(stage);
    let named = named.iter().map(String::as_str);
    top(&named.chain(more.iter().copied()).collect::<Vec<_>>())
}

#[test]
fn top_shows_health_and_faults() {
    let lab = lab();
    let mut stage = Stage::start(&lab).unwrap();
    health(&stage);
    beats(&stage);
    closed_pipe(&stage);
    quit(&lab, &stage);
    ended_by_signals(&lab, &stage);
    ended_with_its_terminal(&lab, &stage);

    let fault = Fault::named("paused replay").unwrap();
    let injected = fault.inject(&lab, &mut stage, Strength::Strong).unwrap();
    paused_replay(&lab, &stage);
    stage.heal(injected).unwrap();

    unreachable(&lab, &mut stage);
}

fn health(stage: &Stage) {
    let said = top_of(stage, &["--count", "2", "--interval", "0.5"]);
    assert_eq!(
        (said.code, said.error.as_str()),
        (0, ""),
        "{:?}",
        said.lines
    );
    // Twice: how all are doing, and a line for each node.
    assert_eq!(said.lines.len(), 10, "{:?}", said.lines);
    assert!(said.lines[0].ends_with("Z healthy: all 3 replicas keep up"));
    for (line, name) in
        said.lines[1..5]
            .iter()
            .zip(["primary", "standby", "subscriber1", "subscriber2"])
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[1..3], ["ok", name], "{line}");
    }
    let said = top_of(
        stage,
        &["--count", "2", "--interval", "0.5", "--output", "json"],
    );
    let states: Vec<Value> = said
        .lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((said.code, states.len()), (0, 2));
    let number = |state: &Value| state["number"].as_u64().unwrap();
    assert!(number(&states[1]) > number(&states[0]));
    for state in &states {
        assert_eq!(state["diagnosis"]["healthy"], true, "{state}");
        assert_eq!(state["links"].as_array().unwrap().len(), 3);
    }
}

/// Commits become visible, and nothing is left of that.
fn beats(stage: &Stage) {
    let said = top_of(stage, &["--count", "4", "--interval", "0.5", "--heartbeat"]);
    let last = said
        .lines
        .iter()
        .rfind(|line| line.contains(" standby "))
        .unwrap();
    assert!(last.contains("visible after"), "{last}");
}

/// Who reads no more ends it, without a word.
fn closed_pipe(stage: &Stage) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .arg("top")
        .args(named(stage))
        .args(["--interval", "0.5"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.contains("healthy"), "{line}");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

/// The screen comes up, keys work, it follows the terminal's size, and `q` gives it back.
fn quit(lab: &lockstep_lab::cluster::Lab, stage: &Stage) {
    let mut terminal = Terminal::start(lab.folder(), &named(stage));
    terminal.wait_for("healthy: all 3 replicas keep up");
    terminal.wait_for("keeps up");
    terminal.wait_for("> primary");
    terminal.press("j");
    terminal.wait_for("> standby");
    terminal.press("\r");
    terminal.wait_for("Positions");
    terminal.press("?");
    terminal.wait_for("Sparklines");
    terminal.resize(8, 40);
    terminal.wait_for("too small: 40×8");
    terminal.resize(30, 100);
    terminal.press("q");
    let end = terminal.end();
    assert_eq!(end.code, 0, "{}", end.text);
    end.assert_restored();
}

/// Signals end it as they end others, with the terminal as it was.
fn ended_by_signals(lab: &lockstep_lab::cluster::Lab, stage: &Stage) {
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        let mut terminal = Terminal::start(lab.folder(), &named(stage));
        terminal.wait_for("healthy");
        terminal.signal(signal);
        let end = terminal.end();
        assert_eq!(end.code, 128 + signal as i32, "{signal}");
        end.assert_restored();
    }
}

/// It ends with its terminal, whether the signal comes or not.
fn ended_with_its_terminal(lab: &lockstep_lab::cluster::Lab, stage: &Stage) {
    let mut terminal = Terminal::start(lab.folder(), &named(stage));
    terminal.wait_for("healthy");
    terminal.take_away();
}

fn paused_replay(lab: &lockstep_lab::cluster::Lab, stage: &Stage) {
    // One sample finds what is paused; the exit code is doctor's.
    let said = top_of(stage, &["--count", "3", "--window", "5"]);
    assert_eq!(said.code, 6, "{:?}", said.lines);
    assert!(
        said.error
            .starts_with("lockstep: lag found; standby: replay is paused"),
        "{}",
        said.error
    );
    let last = said
        .lines
        .iter()
        .rfind(|line| line.contains(" standby "))
        .unwrap();
    assert!(
        last.contains(" LAG ") && last.contains("replay   replay is paused"),
        "{last}"
    );
    let said = top_of(
        stage,
        &["--count", "3", "--window", "5", "--output", "json"],
    );
    let state: Value = serde_json::from_str(said.lines.last().unwrap()).unwrap();
    assert_eq!(said.code, 6, "{state}");
    assert_eq!(state["diagnosis"]["findings"][0]["cause"], "replay_paused");
    let links = state["links"].as_array().unwrap();
    let standby = links
        .iter()
        .find(|link| link["replica"] == "standby")
        .unwrap();
    assert_eq!(standby["suspect"]["cause"], "replay_paused");
    assert!(
        standby["stages"][3]["bytes"].as_u64() > Some(0),
        "{standby}"
    );

    let mut terminal = Terminal::start(
        lab.folder(),
        &[&named(stage)[..], &["--count".to_owned(), "8".to_owned()]].concat(),
    );
    terminal.wait_for("replay is paused");
    terminal.press("d");
    terminal.wait_for("SELECT pg_wal_replay_resume();");
    let end = terminal.end();
    assert_eq!(end.code, 6, "{}", end.text);
    end.assert_restored();
}

/// A node that is lost, and one that was never there: the others go on.
fn unreachable(lab: &lockstep_lab::cluster::Lab, stage: &mut Stage) {
    let mut terminal = Terminal::start(lab.folder(), &named(stage));
    terminal.wait_for("healthy: all 3 replicas keep up");
    stage.standby.stop(Stop::Immediate).unwrap();
    terminal.wait_for("1 node unusable");
    terminal.wait_for("unreachable");
    terminal.press("q");
    assert_eq!(terminal.end().code, 0);

    let said = top_of(stage, &["--count", "1"]);
    assert_eq!(said.code, 4, "{:?}", said.lines);
    let standby = said
        .lines
        .iter()
        .find(|line| line.contains(" standby "))
        .unwrap();
    assert!(
        standby.contains("UNUSABLE") && standby.contains("unreachable: "),
        "{standby}"
    );
    let others = said
        .lines
        .iter()
        .filter(|line| line.contains(" ok "))
        .count();
    assert_eq!(others, 3, "{:?}", said.lines);
    let nowhere = format!("host={} port=1", lab.folder().display());
    let said = top(&["--primary", &nowhere, "--count", "1"]);
    assert_eq!(said.code, 3, "{:?}", said.lines);
}
