//! The command line without servers: help, usage errors, and what is refused at once.

use std::path::Path;

use lockstep_lab::assert_has;
use lockstep_lab::test_program::TestProgram;
use lockstep_service::postgres::{PACKAGES, SUPPORTED};

const LAB: TestProgram = TestProgram {
    name: "lockstep-lab",
    path: env!("CARGO_BIN_EXE_lockstep-lab"),
};

#[test]
fn help_is_as_recorded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help.txt");
    let commands = [
        &[][..],
        &["demo"],
        &["bench"],
        &["bench", "priority"],
        &["bench", "overhead"],
        &["bench", "replay"],
        &["bench", "load-curve"],
        &["bench", "decode"],
        &["bench", "copy"],
        &["bench", "apply"],
        &["bench", "tables"],
        &["bench", "switchover"],
        &["bench", "delete"],
        &["bench", "replicas"],
        &["tpcc"],
        &["tpcc", "load"],
        &["tpcc", "run"],
        &["tpcc", "check"],
        &["wal"],
        &["wal", "calibrate"],
        &["wal", "compare"],
        &["wal", "random"],
        &["wal", "record"],
        &["wal", "play"],
        &["bench", "wal-player"],
        &["completion"],
        &["man"],
    ];
    LAB.assert_help_is_as_recorded(&commands, &path);
}

/// Each command of lockstep that lockstep-lab has not is told of.
#[test]
fn every_command_of_the_product_is_known() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let help = |program| crates.join(program).join("tests/help.txt");
    let (ours, theirs) = (LAB.commands(&help("lab-cli")), LAB.commands(&help("cli")));
    assert!(theirs.len() > 10, "{theirs:?}");
    for command in theirs.difference(&ours) {
        let args: Vec<_> = command.split(' ').collect();
        LAB.assert_usage_errors(&[(&args, "of the package lockstep")]);
    }
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    LAB.assert_full_disk_is_told(&[
        &["--help"],
        &["--version"],
        &["completion", "bash"],
        &["wal", "random", "--seed", "1", "--print"],
    ]);
}

#[test]
fn usage_errors_exit_with_2() {
    LAB.assert_usage_errors(&[
        (&[], "command"),
        (&["nothing"], "nothing"),
        (&["demo", "--what"], "--what"),
        (&["demo", "--duration", "0"], "--duration"),
        (&["demo", "--duration", "x"], "--duration"),
        (&["demo", "--writers", "-1"], "-1"),
        (&["demo", "--readers", "100000"], "--readers"),
        (&["demo", "--read-query", "other"], "aggregate"),
        (&["demo", "--output", "xml"], "json"),
        (&["demo", "--stock-twice", "--keep"], "--keep"),
        (&["demo", "--pg", "14"], "15, 16, 17, 18 or 19"),
        (&["demo", "--pg", "20"], "15, 16, 17, 18 or 19"),
        (&["demo", "--pg", "new"], "15, 16, 17, 18 or 19"),
    ]);
}

#[test]
fn usage_errors_of_bench_exit_with_2() {
    LAB.assert_usage_errors(&[
        (&["bench"], "command"),
        (&["bench", "priority", "--cases", "fast"], "throttle-only"),
        (&["bench", "priority", "--rounds", "0"], "--rounds"),
        (&["bench", "priority", "--set", "x"], "NAME=VALUE"),
        (&["tpcc"], "command"),
        (&["tpcc", "load", "x"], "--warehouses"),
        (&["tpcc", "load", "--warehouses", "0", "x"], "--warehouses"),
        (&["tpcc", "load", "--warehouses", "1"], "CONNINFO"),
        (&["tpcc", "run", "--tpm", "0", "x"], "--tpm"),
        (&["tpcc", "run", "--clients", "1000", "x"], "--clients"),
        (&["tpcc", "check", "--output", "xml", "x"], "json"),
        (&["bench", "wal-player", "--rates", "0"], "--rates"),
    ]);
}

#[test]
fn usage_errors_of_wal_exit_with_2() {
    LAB.assert_usage_errors(&[
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
        let output = LAB
            .command(&["bench", "priority"])
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
    let (code, line) = LAB.failure(&["wal", "play", folder.path().to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(line.contains("lockstep-lab wal record"), "{line}");
}

#[test]
fn a_source_that_does_not_answer_exits_with_3_in_the_words_of_libpq() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = format!("host={} port=1", folder.path().display());
    let recording = folder.path().join("recording");
    let output = LAB
        .command(&["wal", "record", recording.to_str().unwrap()])
        .args(["--source", &nowhere])
        .output()
        .unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    let line = line.lines().last().unwrap();
    assert_eq!(output.status.code(), Some(3), "{line}");
    assert!(
        line.starts_with("lockstep-lab: the source does not answer"),
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
        (
            ["wal", "compare", empty, empty],
            2,
            "is not a data directory",
        ),
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
        let (found, line) = LAB.failure(&args);
        assert_eq!(found, code, "{line}");
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn a_missing_server_package_is_named() {
    let missing = { SUPPORTED }.find(|major| !Path::new(PACKAGES).join(major.to_string()).exists());
    let Some(major) = missing else {
        println!("ELSEWHERE: every supported major is installed here");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.html");
    let (code, line) = LAB.failure(&[
        "demo",
        "--pg",
        &major.to_string(),
        "--report",
        report.to_str().unwrap(),
    ]);
    assert_eq!(code, 1);
    assert_has!(line, &format!("install the package postgresql-{major}"));
    assert!(!report.exists());
}

#[test]
fn files_that_are_something_else_are_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("priority.json");
    std::fs::write(&results, "mine").unwrap();
    let folder_name = folder.path().to_str().unwrap();
    let (code, line) = LAB.failure(&["bench", "priority", "--results", folder_name]);
    assert_eq!(code, 1);
    assert!(line.contains("move it away"), "{line}");
    assert_eq!(std::fs::read_to_string(&results).unwrap(), "mine");

    let (code, line) = LAB.failure(&["demo", "--report", folder_name]);
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
        let args = [&["tpcc"], args, &["--pg", &pg, &nowhere]].concat();
        let (code, line) = LAB.failure(&args);
        assert_eq!(code, 3, "{line}");
        assert!(line.contains("No such file or directory"), "{line}");
    }
}

#[test]
fn version_is_printed() {
    LAB.assert_version(env!("CARGO_PKG_VERSION"));
}
