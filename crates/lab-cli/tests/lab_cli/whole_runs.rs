//! Whole runs on real servers: what they print, and that they leave nothing behind,
//! however they end.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_lab::assert_has;
use lockstep_lab::{for_tests, sweep};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long cleaning up may take.
const PATIENCE: Duration = Duration::from_secs(120);

fn major() -> String {
    for_tests::major().unwrap().to_string()
}

/// A temporary folder for one run, so that what it leaves can be seen.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The servers' account must get to the run folder inside.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        fs::create_dir(folder.path().join("t")).unwrap();
        fs::set_permissions(folder.path().join("t"), fs::Permissions::from_mode(0o777)).unwrap();
        Self { folder }
    }

    fn temporary(&self) -> PathBuf {
        self.folder.path().join("t")
    }

    fn report(&self) -> PathBuf {
        self.folder.path().join("out/report.html")
    }

    fn demo(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-lab"));
        command.args(["demo", "--writers", "2", "--readers", "2", "--pg", &major()]);
        command
            .arg("--extension-stage")
            .arg(for_tests::stage().unwrap());
        command.arg("--report").arg(self.report());
        command.args(args).env("TMPDIR", self.temporary());
        command
    }

    fn left(&self) -> Vec<PathBuf> {
        fs::read_dir(self.temporary())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }

    fn processes(&self) -> Vec<i32> {
        sweep::processes(&self.temporary())
    }

    fn assert_nothing_left(&self) {
        assert_eq!(self.processes(), Vec::<i32>::new());
        assert_eq!(self.left(), Vec::<PathBuf>::new());
    }
}

#[test]
fn demo_measures_both_standbys_and_leaves_only_its_report() {
    let place = Place::new();
    let output = place
        .demo(&["--duration", "3", "--output", "json"])
        .output()
        .unwrap();
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    assert_has!(progress, "measuring", " left");

    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["postgresql"], major());
    let rows = found["rows"].as_array().unwrap();
    let variants: Vec<_> = rows
        .iter()
        .map(|row| row["variant"].as_str().unwrap())
        .collect();
    assert_eq!(variants, ["stock", "lockstep"]);
    for row in rows {
        for key in [
            "lag_p50_ms",
            "lag_p99_ms",
            "lag_end_ms",
            "lag_slope_ms_per_s",
        ] {
            assert!(row[key].is_f64(), "{key} in {row}");
        }
        for key in ["primary_tps", "read_tps", "seconds", "cpu_s"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key} in {row}");
        }
    }
    let statistics = found["statistics"].as_object().unwrap();
    for view in [
        "lockstep_stat_replay",
        "lockstep_stat_priority",
        "lockstep_stat_throttle",
    ] {
        assert_eq!(statistics[view].as_array().unwrap().len(), 1, "{view}");
    }
    assert_eq!(statistics["lockstep_stat_replay"][0]["in_recovery"], true);

    let report = fs::read_to_string(place.report()).unwrap();
    assert!(report.contains("<svg") && report.contains("lockstep"));
    assert!(found.get("kept").is_none());
    place.assert_nothing_left();
}

#[test]
#[ignore = "long: make test-bed"]
fn the_pools_demo_plays_every_act_and_leaves_only_its_report() {
    if !std::path::Path::new("/usr/sbin/haproxy").exists() {
        println!("SKIP: there is no HAProxy (Debian's haproxy)");
        return;
    }
    let place = Place::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-lab"));
    command.args(["demo-pool", "--seconds", "2", "--pg", &major()]);
    command
        .arg("--extension-stage")
        .arg(for_tests::stage().unwrap());
    command.arg("--report").arg(place.report());
    let output = command.env("TMPDIR", place.temporary()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let troubles = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{troubles}");
    for act in [
        "1/4 all is well",
        "2/4 node1 falls behind",
        "3/4 node2 is killed",
        "4/4 node4 is added",
    ] {
        assert!(said.contains(act), "{said}");
    }
    assert_eq!(said.matches("readers reach it after").count(), 3, "{said}");
    let report = fs::read_to_string(place.report()).unwrap();
    assert!(report.contains("<svg") && report.contains("node4"));
    place.assert_nothing_left();
}

#[test]
#[ignore = "long: make test-bed"]
fn demo_measures_stock_twice_when_asked() {
    let place = Place::new();
    let output = place
        .demo(&["--duration", "2", "--output", "json", "--stock-twice"])
        .output()
        .unwrap();
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["name"], "demo-aa");
    let command = found["command"].as_str().unwrap();
    assert!(command.contains(" --duration 2 ") && command.contains(" --stock-twice "));
    for (row, variant) in ["stock", "stock-again"].iter().enumerate() {
        let row = &found["rows"][row];
        assert_eq!(row["variant"], *variant);
        assert!(row["read_tps"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["lockstep_cpu_s"], 0.0, "no worker of the extension");
    }
    assert_eq!(found["statistics"], serde_json::json!({}));
    let report = fs::read_to_string(place.report()).unwrap();
    assert!(report.contains("stock standby again") && !report.contains("Lockstep standby"));
    place.assert_nothing_left();
}

#[test]
#[ignore = "long: make test-bed"]
fn demo_keeps_two_servers_when_asked_and_says_how_to_remove_them() {
    let place = Place::new();
    let output = place
        .demo(&["--duration", "1", "--output", "json", "--keep"])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let kept: Vec<&str> = found["kept"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap())
        .collect();
    let command = |label: &str| {
        let line = kept.iter().find(|line| line.starts_with(label)).unwrap();
        line.split_once(":  ").unwrap().1.to_owned()
    };
    for (label, in_recovery) in [("primary", "f"), ("standby", "t")] {
        let ask = format!("{} -Atc 'SELECT pg_is_in_recovery()'", command(label));
        assert_eq!(shell(&ask).trim(), in_recovery);
    }
    let library = format!(
        "{} -Atc 'SHOW shared_preload_libraries'",
        command("standby")
    );
    assert_eq!(shell(&library).trim(), "lockstep");
    shell(&command("stop and remove"));
    place.assert_nothing_left();
}

fn shell(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// A command with the usual answer to signals: a runner that was itself started
/// in the background ignores SIGINT, and what ignores it leaves that to its children.
fn with_default_signals(command: &Command) -> Command {
    let mut wrapped = Command::new("env");
    wrapped
        .arg("--default-signal")
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped
}

/// Starts a demo and waits until its first phase is under load.
fn demo_under_load(place: &Place) -> Child {
    let mut child = with_default_signals(&place.demo(&["--duration", "30"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let under_load = lines.any(|line| line.unwrap().contains("warming up"));
    // Primary, standby, their children and two pgbench.
    let (processes, left) = (place.processes(), place.left());
    if !under_load || processes.len() < 10 || left.len() != 1 {
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        panic!("not under load: {processes:?} {left:?} {said}");
    }
    child
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

#[test]
#[ignore = "long: make test-bed"]
fn a_signal_ends_everything_with_the_usual_exit_code() {
    for (sent, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let place = Place::new();
        let mut child = demo_under_load(&place);
        signal(&child, sent);
        // Its output is no longer read, as when it was piped into something that ended.
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains("interrupted"), "{line}");
        place.assert_nothing_left();
        assert!(!place.report().exists());
    }
}

#[test]
#[ignore = "long: make test-bed"]
fn a_killed_run_is_cleaned_up_by_its_reaper() {
    let place = Place::new();
    let mut child = demo_under_load(&place);
    signal(&child, Signal::SIGKILL);
    child.wait().unwrap();
    let killed = Instant::now();
    while !(place.processes().is_empty() && place.left().is_empty()) {
        assert!(
            killed.elapsed() < PATIENCE,
            "left: {:?} {:?}",
            place.processes(),
            place.left()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_library_that_cannot_be_loaded_is_one_line_and_leaves_nothing() {
    let place = Place::new();
    let stage = place.folder.path().join("stage");
    let libraries = stage.join(format!("usr/lib/postgresql/{}/lib", major()));
    let share = stage.join(format!("usr/share/postgresql/{}/extension", major()));
    fs::create_dir_all(&libraries).unwrap();
    fs::create_dir_all(&share).unwrap();
    fs::write(libraries.join("lockstep.so"), "not a library").unwrap();
    // An extension that can be created, so that the first to fail is the standby.
    fs::write(share.join("lockstep.control"), "default_version = '1'\n").unwrap();
    fs::write(share.join("lockstep--1.sql"), "").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep-lab"))
        .args([
            "bench",
            "priority",
            "--variants",
            "lockstep",
            "--cases",
            "aggregate",
        ])
        .args([
            "--rounds",
            "1",
            "--seconds",
            "1",
            "--scale",
            "1",
            "--pg",
            &major(),
        ])
        .arg("--extension-stage")
        .arg(&stage)
        .arg("--results")
        .arg(place.folder.path().join("results"))
        .env("TMPDIR", place.temporary())
        .output()
        .unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert_has!(line, "could not load library", "rebuild");
    place.assert_nothing_left();
}

#[test]
#[ignore = "long: make test-bed"]
fn bench_writes_rows_that_a_later_run_of_other_cases_keeps() {
    let place = Place::new();
    let results = place.folder.path().join("results");
    let bench = |cases: &str, variants: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_lockstep-lab"))
            .args([
                "bench",
                "priority",
                "--cases",
                cases,
                "--variants",
                variants,
            ])
            .args([
                "--warmup",
                "1",
                "--scale",
                "1",
                "--writers",
                "2",
                "--readers",
                "2",
            ])
            .args(["--long-seconds", "6", "--pg", &major()])
            .arg("--extension-stage")
            .arg(for_tests::stage().unwrap())
            .arg("--results")
            .arg(&results)
            .env("TMPDIR", place.temporary())
            .env("BENCH_ROUNDS", "1")
            .env("BENCH_SECONDS", "2")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = fs::read_to_string(results.join("priority.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json
    };
    let json = bench("throttle-only,aggregate", "stock,lockstep");
    assert_eq!(json["name"], "priority");
    assert!(json["command"].as_str().unwrap().contains("--seconds 2"));
    assert_eq!(json["rows"].as_array().unwrap().len(), 4);
    assert_eq!(json["rows"][1]["settings"], "lockstep.replay_priority=off");
    assert!(json["headline"]["stock"].is_f64());

    let json = bench("aggregate-10min", "stock");
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    assert_eq!(rows[4]["case"], "aggregate-10min");
    assert!(rows[4]["seconds"].as_f64().unwrap() >= 6.0);
    let series = json["series"].as_array().unwrap();
    assert!(!series.is_empty() && series[0]["relation_mb"].as_f64().unwrap() > 0.0);

    let json = bench("aggregate-still,aggregate-two-cores", "lockstep");
    let [still, both] = &json["rows"].as_array().unwrap()[5..] else {
        panic!("{json}")
    };
    assert_eq!(still["primary_tps"], 0.0);
    assert!(both["primary_tps"].as_f64().unwrap() > 0.0);
    for row in [still, both] {
        // Zero where other programs left the readers no time.
        assert!(row["read_cpu_ms"].is_f64(), "{row}");
        assert!(
            row["readers_cpu_s"].as_f64() <= row["cpu_s"].as_f64(),
            "{row}"
        );
    }
    let json = bench("users-20", "stock,lockstep");
    let [stock, ours] = &json["rows"].as_array().unwrap()[7..] else {
        panic!("{json}")
    };
    for row in [stock, ours] {
        assert!(row["lookup_p99_ms"].as_f64() >= row["lookup_p50_ms"].as_f64());
        assert!(row["lookup_p50_ms"].as_f64().unwrap() > 0.0, "{row}");
    }
    for case in ["aggregate", "throttle-only", "aggregate-10min"] {
        assert!(results.join(format!("priority-{case}.svg")).exists());
    }
    place.assert_nothing_left();
}
