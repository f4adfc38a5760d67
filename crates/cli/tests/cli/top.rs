//! `lockstep top` on real servers: lines and JSON with `--count`, and the screen in a
//! pseudo-terminal of `script` (util-linux), which must be as it was when the screen ends.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::doctor_support::SPACE_MB;
use crate::terminal::{PATIENCE, Terminal};
use lockstep_bench::fault::{Fault, Stage, Strength};
use lockstep_lab::assert_has;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::Stop;
use nix::sys::signal::Signal;
use serde_json::Value;

/// What `timeout` returns if it ended the command.
const TIMED_OUT: i32 = 124;

#[derive(Debug)]
struct Said {
    code: i32,
    lines: Vec<String>,
    error: String,
}

/// `lockstep top` without a screen, ended if it takes too long.
fn bounded_top() -> Command {
    let mut command = Command::new("timeout");
    command
        .arg(PATIENCE.as_secs().to_string())
        .args([env!("CARGO_BIN_EXE_lockstep"), "top"]);
    command
}

/// Fails if [`bounded_top`] was ended.
fn check_in_time(output: &Output) {
    assert_ne!(
        output.status.code(),
        Some(TIMED_OUT),
        "top did not end within {PATIENCE:?}; it wrote:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn top(args: &[&str]) -> Said {
    let output = bounded_top().args(args).output().unwrap();
    check_in_time(&output);
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

/// Asks until top says what is expected, since on a busy machine anything may lag for a while.
fn top_until(stage: &Stage, more: &[&str], is_expected: impl Fn(&Said) -> bool) -> Said {
    let began = Instant::now();
    loop {
        let said = top_of(stage, more);
        if is_expected(&said) {
            return said;
        }
        let waited = began.elapsed();
        assert!(waited < PATIENCE, "top {more:?} goes on to say {said:?}");
    }
}

#[test]
fn top_shows_health_and_faults() {
    let lab = TestLab::stock()
        .pinned()
        .space_mb(SPACE_MB)
        .start()
        .unwrap();
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

/// A screen of a server that is not there, which is enough for keys.
fn screen_of_nothing(folder: &Path) -> Terminal {
    let nowhere = format!("host={} port=1", folder.display());
    Terminal::start(folder, &["--primary".to_owned(), nowhere])
}

#[test]
fn keys_typed_before_the_screen_is_up_count() {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = screen_of_nothing(folder.path());
    terminal.press("jq");
    let end = terminal.end();
    assert_eq!(end.code, 0, "{}", end.text);
    end.assert_restored();
}

/// Both come while top draws, so that it finds them at the same time, the signal first.
#[test]
fn a_key_together_with_a_change_of_size_counts() {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = screen_of_nothing(folder.path());
    terminal.wait_for("1 node unusable");
    terminal.hold();
    terminal.resize(30, 90);
    terminal.wait_until_held();
    terminal.resize(30, 100);
    terminal.press("?");
    terminal.wait_for_unread(1);
    terminal.let_out();
    terminal.wait_for("Sparklines");
    terminal.press("q");
    let end = terminal.end();
    assert_eq!(end.code, 0, "{}", end.text);
    end.assert_restored();
}

/// Stopped and continued, with a shell in between.
#[test]
fn a_stop_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let mut terminal = screen_of_nothing(folder.path());
    terminal.wait_for("1 node unusable");
    terminal.signal(Signal::SIGSTOP);
    terminal.set_line_by_line();
    terminal.signal(Signal::SIGCONT);
    terminal.press("?");
    terminal.wait_for("Sparklines");
    terminal.press("q");
    let end = terminal.end();
    assert_eq!(end.code, 0, "{}", end.text);
    end.assert_restored();
}

/// What top has said in JSON.
fn states(said: &Said) -> Vec<Value> {
    let state = |line: &String| serde_json::from_str(line).unwrap();
    said.lines.iter().map(state).collect()
}

fn health(stage: &Stage) {
    let said = top_until(stage, &["--count", "2", "--interval", "0.5"], |said| {
        // Twice: how all are doing, and a line for each node. Workers that copy tables for the
        // new subscriptions count as replicas until they end.
        let mut headlines = said.lines.iter().step_by(5);
        let is_healthy = |line: &String| line.ends_with("Z healthy: all 3 replicas keep up");
        said.lines.len() == 10 && headlines.all(is_healthy)
    });
    assert_eq!((said.code, said.error.as_str()), (0, ""));
    for (line, name) in said.lines[1..5]
        .iter()
        .zip(["primary", "standby", "first", "second"])
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[1..3], ["ok", name], "{line}");
    }
    let as_json = ["--count", "2", "--interval", "0.5", "--output", "json"];
    let said = top_until(stage, &as_json, |said| {
        let is_healthy = |state: &Value| {
            let links = state["links"].as_array().unwrap();
            state["diagnosis"]["healthy"] == true && links.len() == 3
        };
        states(said).iter().all(is_healthy)
    });
    let states = states(&said);
    assert_eq!((said.code, states.len()), (0, 2));
    let number = |state: &Value| state["number"].as_u64().unwrap();
    assert!(number(&states[1]) > number(&states[0]));
}

/// Commits become visible, and nothing is left of that.
fn beats(stage: &Stage) {
    let beating = ["--count", "4", "--interval", "0.5", "--heartbeat"];
    top_until(stage, &beating, |said| {
        let mut lines = said.lines.iter();
        let last = lines.rfind(|line| line.contains(" standby "));
        last.unwrap().contains("visible after")
    });
}

/// Who reads no more ends it, without a word.
fn closed_pipe(stage: &Stage) {
    let mut child = bounded_top()
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
    assert!(line.contains("Z "), "{line}");
    let output = child.wait_with_output().unwrap();
    check_in_time(&output);
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
        let terminal = Terminal::start(lab.folder(), &named(stage));
        terminal.wait_for("healthy");
        terminal.signal(signal);
        let end = terminal.end();
        assert_eq!(end.code, 128 + signal as i32, "{signal}");
        end.assert_restored();
    }
}

/// `top` ends with its terminal, whether the signal comes or not.
fn ended_with_its_terminal(lab: &lockstep_lab::cluster::Lab, stage: &Stage) {
    let terminal = Terminal::start(lab.folder(), &named(stage));
    terminal.wait_for("healthy");
    assert_eq!(terminal.take_away(), 128 + Signal::SIGHUP as i32);
}

fn paused_replay(lab: &lockstep_lab::cluster::Lab, stage: &Stage) {
    // One sample finds what is paused; the exit code is doctor's.
    let said = top_until(stage, &["--count", "3", "--window", "5"], |said| {
        said.error
            .starts_with("lockstep: lag found; standby: replay is paused")
    });
    assert_eq!(said.code, 6, "{said:?}");
    let last = said
        .lines
        .iter()
        .rfind(|line| line.contains(" standby "))
        .unwrap();
    assert_has!(last, " LAG ", "replay   replay is paused");
    let as_json = ["--count", "3", "--window", "5", "--output", "json"];
    let said = top_until(stage, &as_json, |said| {
        let states = states(said);
        let findings = &states.last().unwrap()["diagnosis"]["findings"];
        findings[0]["cause"] == "replay_paused"
    });
    let state = states(&said).pop().unwrap();
    assert_eq!(said.code, 6, "{state}");
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

    let mut terminal = Terminal::start(lab.folder(), &named(stage));
    terminal.wait_for("replay is paused");
    terminal.press("d");
    terminal.wait_for("SELECT pg_wal_replay_resume();");
    terminal.press("q");
    assert_eq!(terminal.end().code, 0);

    let counted = ["--count".to_owned(), "3".to_owned()];
    let end = Terminal::start(lab.folder(), &[&named(stage)[..], &counted].concat()).end();
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

    let is_ok = |line: &&String| line.contains(" ok ");
    let said = top_until(stage, &["--count", "1"], |said| {
        said.lines.iter().filter(is_ok).count() == 3
    });
    assert_eq!(said.code, 4, "{said:?}");
    let standby = said
        .lines
        .iter()
        .find(|line| line.contains(" standby "))
        .unwrap();
    assert_has!(standby, "UNUSABLE", "unreachable: ");
    let nowhere = format!("host={} port=1", lab.folder().display());
    let said = top(&["--primary", &nowhere, "--count", "1"]);
    assert_eq!(said.code, 3, "{:?}", said.lines);
}
