//! The command line without servers: help, usage errors, and what is refused at once.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Ours, without anything from the environment that changes defaults.
fn lockstep(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.args(args);
    for name in [
        "PG",
        "LOCKSTEP_EXTENSION_STAGE",
        "BENCH_ROUNDS",
        "BENCH_SECONDS",
        "COLUMNS",
    ] {
        command.env_remove(name);
    }
    command
}

fn output(args: &[&str]) -> Output {
    lockstep(args).output().unwrap()
}

/// Exit code, and the one line on standard error.
fn failure(args: &[&str]) -> (i32, String) {
    let output = output(args);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(line.lines().count(), 1, "{args:?}: {line}");
    assert!(line.starts_with("lockstep: "), "{line}");
    assert!(output.stdout.is_empty());
    (output.status.code().unwrap(), line)
}

#[test]
fn help_is_as_recorded() {
    let mut text = String::new();
    for args in [
        &["--help"][..],
        &["demo", "--help"],
        &["doctor", "--help"],
        &["completion", "--help"],
        &["man", "--help"],
        &["top", "--help"],
        &["serve", "--help"],
        &["relay", "--help"],
        &["relay", "status", "--help"],
        &["replica", "--help"],
        &["replica", "create", "--help"],
        &["replica", "status", "--help"],
        &["replica", "run", "--help"],
        &["replica", "pause", "--help"],
        &["replica", "resume", "--help"],
        &["replica", "start", "--help"],
        &["replica", "verify", "--help"],
        &["replica", "drop", "--help"],
        &["bench", "--help"],
        &["bench", "priority", "--help"],
        &["bench", "overhead", "--help"],
        &["bench", "replay", "--help"],
        &["bench", "load-curve", "--help"],
        &["bench", "decode", "--help"],
        &["bench", "copy", "--help"],
        &["bench", "apply", "--help"],
        &["bench", "tables", "--help"],
        &["bench", "tpcc", "--help"],
        &["bench", "tpcc", "load", "--help"],
        &["bench", "tpcc", "run", "--help"],
        &["bench", "tpcc", "check", "--help"],
        &["wal", "--help"],
        &["wal", "analyze", "--help"],
        &["wal", "calibrate", "--help"],
        &["wal", "compare", "--help"],
        &["wal", "random", "--help"],
        &["wal", "record", "--help"],
        &["wal", "play", "--help"],
        &["bench", "wal-player", "--help"],
    ] {
        let output = output(args);
        assert!(output.status.success());
        text.push_str(&format!("$ lockstep {}\n", args.join(" ")));
        text.push_str(&String::from_utf8(output.stdout).unwrap());
        text.push('\n');
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, recorded,
        "help has changed; UPDATE_SNAPSHOTS=1 records it"
    );
}

/// Each is a usage error, and the line that says so has the word.
fn exit_with_2(cases: &[(&[&str], &str)]) {
    for (args, word) in cases {
        let (code, line) = failure(args);
        assert_eq!(code, 2, "{args:?}: {line}");
        assert!(line.contains(word), "{args:?}: {line}");
    }
}

#[test]
fn usage_errors_exit_with_2() {
    exit_with_2(&[
        (&[], "command"),
        (&["nothing"], "nothing"),
        (&["demo", "--what"], "--what"),
        (&["demo", "--duration", "0"], "--duration"),
        (&["demo", "--duration", "x"], "--duration"),
        (&["demo", "--writers", "-1"], "-1"),
        (&["demo", "--readers", "100000"], "--readers"),
        (&["demo", "--read-query", "other"], "aggregate"),
        (&["demo", "--output", "xml"], "json"),
        (&["demo", "--pg", "14"], "15, 16, 17, 18 or 19"),
        (&["demo", "--pg", "20"], "15, 16, 17, 18 or 19"),
        (&["demo", "--pg", "new"], "15, 16, 17, 18 or 19"),
    ]);
}

#[test]
fn usage_errors_of_replica_and_relay_exit_with_2() {
    exit_with_2(&[
        (&["replica"], "command"),
        (&["replica", "run"], "--target"),
        (&["replica", "run", "r"], "--target"),
        (
            &["replica", "run", "r", "--config", "/nowhere"],
            "cannot be used with",
        ),
        (
            &["replica", "run", "--config", "/nowhere/r.toml"],
            "/nowhere/r.toml",
        ),
        (
            &[
                "replica", "run", "r", "--target", "host=a", "--memory", "1kB",
            ],
            "at least 1MB",
        ),
        (
            &[
                "replica", "verify", "r", "--target", "host=a", "--jobs", "0",
            ],
            "--jobs",
        ),
        (&["replica", "start", "r"], "--target"),
        (
            &["replica", "create", "r", "--target", "host=a"],
            "--source",
        ),
        (
            &[
                "replica",
                "create",
                "r",
                "--source",
                "host=a password=x",
                "--target",
                "host=a",
            ],
            "~/.pgpass",
        ),
        (
            &[
                "replica", "create", "R", "--source", "host=a", "--target", "host=b",
            ],
            "lower-case",
        ),
        (
            &["replica", "run", "r", "--target=x", "--writers=0"],
            "--writers",
        ),
        (
            &["replica", "run", "r", "--target=x", "--writers=17"],
            "--writers",
        ),
        (
            &[
                "replica",
                "create",
                "r",
                "--source",
                "",
                "--target",
                "",
                "--bandwidth",
                "5",
            ],
            "16MB",
        ),
        (
            &[
                "replica", "create", "r", "--source", "", "--target", "", "--jobs", "0",
            ],
            "1..=128",
        ),
        (&["relay"], "primary"),
        (&["relay", "--primary", "host=a"], "spool"),
        (
            &["relay", "--primary", "host=a password=x", "--spool", "/x"],
            "PGPASSWORD",
        ),
        (
            &["relay", "--primary", "hots=a", "--spool", "/x"],
            "\"hots\"",
        ),
        (
            &["relay", "--logical-wal-cache", "16", "--spool", "/x"],
            "16MB",
        ),
        (&["relay", "--config", "/nowhere.toml"], "/nowhere.toml"),
        (&["relay", "--tls-required", "maybe"], "true or false"),
        (&["relay", "--listen", "here:1", "status"], "status"),
        (&["relay", "start"], "start"),
        (&["relay", "status", "--output", "xml"], "json"),
        (&["relay", "status", "--connect", "x"], "\"x\""),
    ]);
}

#[test]
fn usage_errors_of_doctor_and_top_exit_with_2() {
    exit_with_2(&[
        (&["doctor"], "--primary"),
        (&["doctor", "--primary", "nonsense"], "conninfo"),
        (&["doctor", "--primary", "", "--seconds", "0"], "--seconds"),
        (&["doctor", "--primary", "", "--commits", "3"], "--probe"),
        (&["top"], "--primary"),
        (&["top", "--primary", "nonsense"], "conninfo"),
        (&["top", "--primary", "", "--interval", "0.4"], "from 0.5"),
        (&["top", "--primary", "", "--interval", "nan"], "from 0.5"),
        (&["top", "--primary", "", "--interval", "soon"], "0.5 or 2"),
        (&["top", "--primary", "", "--window", "4"], "--window"),
        (&["top", "--primary", "", "--count", "0"], "--count"),
        (&["top", "--primary", "", "--output", "xml"], "json"),
    ]);
}

#[test]
fn usage_errors_of_bench_exit_with_2() {
    exit_with_2(&[
        (&["bench"], "command"),
        (&["bench", "priority", "--cases", "fast"], "throttle-only"),
        (&["bench", "priority", "--rounds", "0"], "--rounds"),
        (&["bench", "priority", "--set", "x"], "NAME=VALUE"),
        (&["bench", "tpcc"], "command"),
        (&["bench", "tpcc", "load", "x"], "--warehouses"),
        (
            &["bench", "tpcc", "load", "--warehouses", "0", "x"],
            "--warehouses",
        ),
        (&["bench", "tpcc", "load", "--warehouses", "1"], "CONNINFO"),
        (&["bench", "tpcc", "run", "--tpm", "0", "x"], "--tpm"),
        (
            &["bench", "tpcc", "run", "--clients", "1000", "x"],
            "--clients",
        ),
        (&["bench", "tpcc", "check", "--output", "xml", "x"], "json"),
        (&["bench", "wal-player", "--rates", "0"], "--rates"),
    ]);
}

#[test]
fn usage_errors_of_wal_exit_with_2() {
    exit_with_2(&[
        (&["wal"], "command"),
        (&["wal", "record"], "--source"),
        (&["wal", "record", "--source", "x"], "FOLDER"),
        (
            &["wal", "record", "x", "--source", "x", "--seconds", "0"],
            "--seconds",
        ),
        (&["wal", "play"], "FOLDER"),
        (&["wal", "play", "x", "--rate", "0"], "above 0"),
        (&["wal", "play", "x", "--speed", "nan"], "above 0"),
        (
            &["wal", "play", "x", "--rate", "1", "--speed", "1"],
            "--speed",
        ),
        (&["wal", "play", "x", "--listen", "here"], "here"),
        (&["wal", "play", "x", "--socket-folder", "/tmp"], "--port"),
        (&["wal", "play", "x", "--standbys", "0"], "--standbys"),
        (&["wal", "random", "--seed", "1"], "--print"),
        (&["wal", "random", "--print"], "--seed"),
        (&["wal", "random", "--seed", "-1", "--print"], "-1"),
        (
            &["wal", "random", "--seed", "1", "--print", "--sessions", "0"],
            "--sessions",
        ),
        (
            &["wal", "random", "--seed", "1", "--print", "--target", "x"],
            "--target",
        ),
        (
            &["wal", "random", "--seed", "1", "--print", "--any-database"],
            "--any-database",
        ),
    ]);
}

#[test]
fn the_environment_is_checked_like_arguments() {
    for (name, value) in [
        ("BENCH_SECONDS", "soon"),
        ("BENCH_ROUNDS", "0"),
        ("PG", "9"),
    ] {
        let output = lockstep(&["bench", "priority"])
            .env(name, value)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(value));
    }
}

#[test]
fn a_folder_that_is_no_recording_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (code, line) = failure(&["wal", "play", folder.path().to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(line.contains("lockstep wal record"), "{line}");
}

#[test]
fn a_source_that_does_not_answer_exits_with_3_in_the_words_of_libpq() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = format!("host={} port=1", folder.path().display());
    let recording = folder.path().join("recording");
    let output = lockstep(&["wal", "record", recording.to_str().unwrap()])
        .args(["--source", &nowhere])
        .output()
        .unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    let line = line.lines().last().unwrap();
    assert_eq!(output.status.code(), Some(3), "{line}");
    assert!(
        line.starts_with("lockstep: the source does not answer"),
        "{line}"
    );
    assert!(line.contains("Is the server running"), "{line}");
    assert!(!recording.exists());
}

#[test]
fn what_is_no_data_folder_cannot_be_compared() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().to_str().unwrap();
    for (args, code, words) in [
        (["wal", "compare", empty, empty], 2, "is not a data folder"),
        (
            ["wal", "compare", "/nowhere/at/all", empty],
            2,
            "there is no such folder",
        ),
        (
            ["wal", "compare", "host=/nowhere/at/all port=1", empty],
            3,
            "A: connection to server",
        ),
    ] {
        let (found, line) = failure(&args);
        assert_eq!(found, code, "{line}");
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn bash_completes_commands_and_options() {
    let script = output(&["completion", "bash"]);
    assert!(script.status.success());
    let script = String::from_utf8(script.stdout).unwrap();
    for (words, expected) in [
        ("lockstep doct", "doctor"),
        ("lockstep doctor --sec", "--seconds"),
    ] {
        let typed: Vec<&str> = words.split(' ').collect();
        let [before, word] = &typed[typed.len() - 2..] else {
            panic!("{words}");
        };
        let ask = format!(
            "{script}\nCOMP_WORDS=({words})\nCOMP_CWORD={}\n_lockstep lockstep {word} {before}\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            typed.len() - 1
        );
        let bash = Command::new("bash").arg("-c").arg(ask).output().unwrap();
        let said = String::from_utf8_lossy(&bash.stdout);
        assert_eq!(
            said.trim(),
            expected,
            "{}",
            String::from_utf8_lossy(&bash.stderr)
        );
    }
}

#[test]
fn a_password_file_that_others_may_read_is_warned_of_once() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let file = folder.path().join("passwords");
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let nodes = [1, 2, 3].map(|port| format!("host={place} port={port}"));
    let mut command = lockstep(&["doctor", "--seconds", "3", "--primary", &nodes[0]]);
    command.args(["--standby", &nodes[1], "--standby", &nodes[2]]);
    let output = command.env("PGPASSFILE", &file).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert_eq!(said.matches("password file").count(), 1, "{said}");
}

#[test]
fn version_is_printed() {
    let output = output(&["--version"]);
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("lockstep {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn a_missing_server_package_is_named() {
    let missing =
        (15..=19).find(|major| !Path::new(&format!("/usr/lib/postgresql/{major}")).exists());
    let Some(major) = missing else {
        println!("ELSEWHERE: every supported major is installed here");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.html");
    let (code, line) = failure(&[
        "demo",
        "--pg",
        &major.to_string(),
        "--report",
        report.to_str().unwrap(),
    ]);
    assert_eq!(code, 1);
    assert!(
        line.contains(&format!("install the package postgresql-{major}")),
        "{line}"
    );
    assert!(!report.exists());
}

#[test]
fn files_that_are_something_else_are_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("priority.json");
    std::fs::write(&results, "mine").unwrap();
    let folder_name = folder.path().to_str().unwrap();
    let (code, line) = failure(&["bench", "priority", "--results", folder_name]);
    assert_eq!(code, 1);
    assert!(line.contains("move it away"), "{line}");
    assert_eq!(std::fs::read_to_string(&results).unwrap(), "mine");

    let (code, line) = failure(&["demo", "--report", folder_name]);
    assert_eq!(code, 1);
    assert!(line.contains("name a file"), "{line}");
}

#[test]
fn a_server_that_does_not_answer_is_told_in_one_line() {
    let pg = std::env::var("PG").unwrap_or_else(|_| "15".to_owned());
    let folder = tempfile::tempdir().unwrap();
    let nowhere = format!("host={} port=1", folder.path().display());
    for args in [
        &["load", "--warehouses", "1"][..],
        &["run", "--seconds", "1"],
        &["check", "--output", "json"],
    ] {
        let args = [&["bench", "tpcc"], args, &["--pg", &pg, &nowhere]].concat();
        let (code, line) = failure(&args);
        assert_eq!(code, 3, "{line}");
        assert!(line.contains("No such file or directory"), "{line}");
    }
}
