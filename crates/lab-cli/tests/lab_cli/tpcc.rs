//! `lockstep-lab tpcc` against a private server, as a user would run it.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests;
use lockstep_lab::server::{SUPERUSER, Server, settings_of};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long an event may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn tpcc(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-lab"));
    command.arg("tpcc").args(args);
    command
        .env("PG", for_tests::major().unwrap().to_string())
        .env_remove("PGAPPNAME");
    command
}

fn output(args: &[&str]) -> Output {
    tpcc(args).output().unwrap()
}

/// Exit code, standard output, and the line on standard error.
fn parts(output: &Output) -> (i32, String, String) {
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout.clone()).unwrap(),
        String::from_utf8(output.stderr.clone()).unwrap(),
    )
}

fn sessions(server: &Server) -> usize {
    let sql =
        "SELECT count(*)::text FROM pg_stat_activity WHERE application_name = 'lockstep tpcc'";
    server.query_text(sql).unwrap().unwrap().parse().unwrap()
}

fn await_sessions(server: &Server, wanted: usize) {
    let started = Instant::now();
    while sessions(server) != wanted {
        assert!(started.elapsed() < PATIENCE, "never {wanted} sessions");
        for_tests::pause();
    }
}

fn server(lab: &Lab) -> Server {
    let settings = settings_of([("shared_buffers", "200MB")]);
    lab.primary("primary", None, &settings).unwrap()
}

/// What a load of one warehouse is called.
const LOAD: [&str; 5] = ["load", "--warehouses", "1", "--jobs", "2"];

#[test]
fn what_cannot_be_done_is_said_and_a_signal_ends_a_load() {
    let lab = Lab::for_tests().unwrap();
    let primary = server(&lab);
    let here = primary.conninfo(SUPERUSER);
    for args in [&["check"][..], &["run"]] {
        let (code, _, line) = parts(&output(&[args, &[&here]].concat()));
        assert_eq!(code, 1);
        assert!(line.contains("lockstep-lab tpcc load"), "{line}");
    }
    let read_only = tpcc(&[&LOAD[..], &[&here]].concat())
        .env("PGOPTIONS", "-c default_transaction_read_only=on")
        .output()
        .unwrap();
    assert_eq!(parts(&read_only).0, 3, "{}", parts(&read_only).2);
    let load = ["load", "--warehouses", "9", "--jobs", "2", &here];
    ended_by_a_signal_nothing_goes_on(&primary, &load, 2);
}

#[test]
#[ignore = "long: make test-bed"]
fn load_run_and_check_from_the_command_line() {
    let lab = Lab::for_tests().unwrap();
    let primary = server(&lab);
    let here = primary.conninfo(SUPERUSER);
    let load = [&LOAD[..], &[&here]].concat();
    let (code, said, line) = parts(&output(&load));
    assert_eq!(code, 0, "{line}");
    assert!(said.starts_with("loaded 1 warehouse into schema tpcc in "));
    let (code, _, line) = parts(&output(&load));
    assert_eq!((code, line.lines().count()), (1, 1), "{line}");
    assert!(line.contains("exists already") && line.contains("--replace"));

    let (code, _, line) = parts(&output(&["run", "--clients", "900", &here]));
    assert_eq!((code, line.lines().count()), (3, 1), "{line}");
    assert!(line.contains("too many clients"), "{line}");

    let run = ["run", "--clients", "4", "--seconds", "2", &here];
    let (code, said, line) = parts(&output(&[&run[..], &["--output", "json"]].concat()));
    assert_eq!(code, 0, "{line}");
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&report["warehouses"], &report["failed"]),
        (&1.into(), &0.into())
    );
    assert!(report["tpm"].as_f64().unwrap() > 0.0);
    assert_eq!(report["kinds"].as_array().unwrap().len(), 5);
    let (code, said, _) = parts(&output(&[&run[..], &["--tpm", "600"]].concat()));
    assert_eq!(code, 0);
    for words in [
        "new_order",
        "stock_level",
        "of 600 asked for",
        "after their time",
    ] {
        assert!(said.contains(words), "no {words} in {said}");
    }

    let (code, said, line) = parts(&output(&["check", &here]));
    assert_eq!((code, said.lines().count()), (0, 12), "{line}");
    assert!(said.lines().all(|line| line.ends_with(": holds")), "{said}");
    primary.run("UPDATE tpcc.customer SET c_delivery_cnt = 9 WHERE c_id = 1");
    let (code, said, line) = parts(&output(&["check", "--output", "json", &here]));
    assert_eq!(code, 5, "{line}");
    assert!(line.contains("1 of 12"), "{line}");
    let conditions: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(conditions[10]["clause"], "3.3.2.11");
    assert_eq!(conditions[10]["violations"], 10);
    assert_eq!(conditions[9]["violations"], 0);

    let run = ["run", "--clients", "3", "--seconds", "600", &here];
    ended_by_a_signal_nothing_goes_on(&primary, &run, 3);
    let load = [
        "load",
        "--warehouses",
        "9",
        "--jobs",
        "2",
        "--replace",
        &here,
    ];
    ended_by_a_signal_nothing_goes_on(&primary, &load, 2);
}

fn ended_by_a_signal_nothing_goes_on(primary: &Server, args: &[&str], clients: usize) {
    // Sessions of the command before end a moment after it, and would be taken for the new one's.
    await_sessions(primary, 0);
    let child = tpcc(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    await_sessions(primary, clients);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    let (code, said, line) = parts(&child.wait_with_output().unwrap());
    assert_eq!((code, said.as_str()), (143, ""), "{line}");
    assert!(line.contains("interrupted"), "{line}");
    await_sessions(primary, 0);
}
