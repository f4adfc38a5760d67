//! The command line without servers: help, usage errors, and what is refused at once.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use lockstep_lab::test_program::TestProgram;

use super::house::root;

const LOCKSTEP: TestProgram = TestProgram {
    name: "lockstep",
    path: env!("CARGO_BIN_EXE_lockstep"),
};

#[test]
fn help_is_as_recorded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help.txt");
    let commands = [
        &[][..],
        &["doctor"],
        &["completion"],
        &["man"],
        &["top"],
        &["serve"],
        &["pool"],
        &["pool", "agent"],
        &["pool", "haproxy"],
        &["pool", "conninfo"],
        &["pool", "status"],
        &["pool", "add"],
        &["relay"],
        &["relay", "status"],
        &["replica"],
        &["replica", "create"],
        &["replica", "status"],
        &["replica", "run"],
        &["replica", "pause"],
        &["replica", "resume"],
        &["replica", "start"],
        &["replica", "history"],
        &["replica", "force"],
        &["replica", "alter"],
        &["replica", "verify"],
        &["replica", "promote"],
        &["replica", "switchover"],
        &["replica", "rollback"],
        &["replica", "drop"],
        &["plan"],
        &["wal"],
        &["wal", "analyze"],
    ];
    LOCKSTEP.assert_help_is_as_recorded(&commands, &path);
}

#[test]
fn usage_errors_exit_with_2() {
    LOCKSTEP.assert_usage_errors(&[
        (&[], "command"),
        (&["nothing"], "nothing"),
        (&["wal"], "command"),
    ]);
}

#[test]
fn commands_of_the_test_bed_say_where_they_are() {
    LOCKSTEP.assert_usage_errors(&[
        (&["demo"], "is lockstep-lab demo"),
        (&["demo", "--help"], "is lockstep-lab demo"),
        (&["bench"], "is lockstep-lab bench"),
        (&["bench", "tpcc", "check", "x"], "is lockstep-lab tpcc"),
        (&["tpcc", "check", "x"], "is lockstep-lab tpcc"),
        (&["wal", "record"], "is lockstep-lab wal record"),
    ]);
}

/// Each command of lockstep-lab that lockstep has not is told of.
#[test]
fn every_command_of_the_test_bed_is_known() {
    let help = |program| root().join("crates").join(program).join("tests/help.txt");
    let (ours, theirs) = (
        LOCKSTEP.commands(&help("cli")),
        LOCKSTEP.commands(&help("lab-cli")),
    );
    assert!(theirs.len() > 10, "{theirs:?}");
    for command in theirs.difference(&ours) {
        let args: Vec<_> = command.split(' ').collect();
        LOCKSTEP.assert_usage_errors(&[(&args, "of the package lockstep-lab")]);
    }
}

#[test]
fn usage_errors_of_pool_exit_with_2() {
    LOCKSTEP.assert_usage_errors(&[
        (&["pool"], "command"),
        (&["pool", "agent"], "--primary"),
        (&["pool", "agent", "--primary", "hots=a"], "\"hots\""),
        (&["pool", "agent", "--primary", "", "--bound", "1"], "100ms"),
        (
            &[
                "pool",
                "agent",
                "--primary",
                "",
                "--bound",
                "1s",
                "--interval",
                "500ms",
            ],
            "a third of --bound",
        ),
        (
            &["pool", "agent", "--primary", "", "--tls-key", "/x"],
            "--tls-cert",
        ),
        (&["pool", "haproxy", "--nodes", "/nowhere"], "/nowhere"),
        (
            &["pool", "haproxy", "--nodes", "/x", "--check-every", "1ms"],
            "from 50ms",
        ),
        (
            &["pool", "haproxy", "--nodes", "/x", "--reads-port", "6432"],
            "each of --writes-port",
        ),
        (&["pool", "conninfo", "--nodes", "/nowhere"], "/nowhere"),
        (&["pool", "status"], "--nodes"),
    ]);
}

#[test]
fn usage_errors_of_replica_and_relay_exit_with_2() {
    LOCKSTEP.assert_usage_errors(&[
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
        (&["replica", "status", "R", "--target", ""], "lower-case"),
        (&["replica", "run", "R", "--target", ""], "lower-case"),
        (&["replica", "pause", "R", "--target", ""], "lower-case"),
        (&["replica", "resume", "R", "--target", ""], "lower-case"),
        (&["replica", "start", "R", "--target", ""], "lower-case"),
        (&["replica", "verify", "R", "--target", ""], "lower-case"),
        (&["replica", "drop", "R", "--target", ""], "lower-case"),
        (
            &[
                "replica",
                "create",
                "r",
                "--source",
                "",
                "--target",
                "",
                "--exclude-table",
                "t",
            ],
            "schema.table",
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
            &["relay", "--primary", "", "--spool", "/x"],
            "names no server",
        ),
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
    LOCKSTEP.assert_usage_errors(&[
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
fn bash_completes_commands_and_options() {
    let script = LOCKSTEP.output(&["completion", "bash"]);
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
    let mut command = LOCKSTEP.command(&["doctor", "--seconds", "3", "--primary", &nodes[0]]);
    command.args(["--standby", &nodes[1], "--standby", &nodes[2]]);
    let output = command.env("PGPASSFILE", &file).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert_eq!(said.matches("password file").count(), 1, "{said}");
}

#[test]
fn version_is_printed() {
    LOCKSTEP.assert_version(env!("CARGO_PKG_VERSION"));
}

/// Whatever a command prints: help, scripts, and a result beside which it fails.
#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    LOCKSTEP.assert_full_disk_is_told(&[
        &["--help"],
        &["--version"],
        &["doctor", "--help"],
        &["completion", "bash"],
    ]);
    for output in ["text", "json", "nagios"] {
        let nobody = ["doctor", "--primary", "host=/nowhere", "--seconds", "1"];
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = LOCKSTEP.command(&nobody);
        let ended = command.args(["--output", output]).stdout(full).output();
        let ended = ended.unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{said}");
        let last = said.lines().last().unwrap();
        assert!(
            last.starts_with("lockstep: cannot write to standard output: "),
            "{said}"
        );
    }
}
