//! `lockstep-lab wal random` as users call it.

use std::process::{Command, Output};

use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_verify::random;

fn wal_random(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep-lab"));
    command.args(["wal", "random"]).args(args);
    for name in [
        "PGHOST",
        "PGPORT",
        "PGDATABASE",
        "PGUSER",
        "PGSERVICE",
        "PGOPTIONS",
    ] {
        command.env_remove(name);
    }
    command.output().unwrap()
}

fn line_of(output: &Output) -> String {
    let line = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

fn lab() -> (Lab, Server) {
    let lab = Lab::for_tests().unwrap();
    let primary = lab.primary("primary", None, &random::settings()).unwrap();
    (lab, primary)
}

#[test]
fn the_same_seed_prints_the_same_text() {
    let print = |seed: &str| {
        let output = wal_random(&[
            "--print",
            "--seed",
            seed,
            "--sessions",
            "2",
            "--statements",
            "50",
        ]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = print("17");
    assert_eq!(text, print("17"));
    assert_ne!(text, print("18"));
    for part in [
        "-- set-up",
        "-- session 0",
        "-- session 1",
        "-- closing",
        "CREATE SCHEMA lockstep_random;",
    ] {
        assert!(text.contains(part), "{part}");
    }
    assert!(!text.contains("-- session 2"));
}

#[test]
fn a_target_that_does_not_answer_exits_with_4() {
    let output = wal_random(&[
        "--seed",
        "1",
        "--target",
        "host=/nonexistent dbname=lockstep_random",
    ]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(line_of(&output).contains("/nonexistent"));
}

#[test]
fn it_runs_in_a_database_that_is_meant_for_it_and_no_other() {
    let (lab, primary) = lab();
    primary.run("CREATE DATABASE lockstep_random_one");
    let conninfo = |database: &str| {
        format!(
            "host={} port={} user={SUPERUSER} dbname={database}",
            primary.sockets().display(),
            primary.port()
        )
    };
    let size = ["--seed", "3", "--sessions", "3", "--statements", "120"];
    let with = |more: &[&str]| wal_random(&[&size[..], more].concat());

    let output = with(&["--target", &conninfo("postgres")]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let line = line_of(&output);
    assert_has!(line, "\"postgres\"", "lockstep_random");
    let schemas = primary
        .query_text("SELECT count(*)::text FROM pg_namespace WHERE nspname = 'lockstep_random'")
        .unwrap();
    assert_eq!(schemas.as_deref(), Some("0"));

    // A second run replaces what the first has left.
    for _ in 0..2 {
        let output = with(&["--target", &conninfo("lockstep_random_one")]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.starts_with("seed 3: ") && text.contains("0 unexpected errors"),
            "{text}"
        );
    }
    let output = with(&["--any-database", "--target", &conninfo("postgres")]);
    assert!(output.status.success(), "{output:?}");
    let left = primary
        .query_text("SELECT count(*)::text FROM pg_prepared_xacts")
        .unwrap();
    assert_eq!(left.as_deref(), Some("0"));
    drop(primary);
    drop(lab);
}
