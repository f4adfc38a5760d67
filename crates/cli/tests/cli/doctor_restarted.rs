//! What is said of a server that was started anew while it was watched.

use std::process::{Command, Stdio};

use crate::doctor_support::{brief, causes, once_right};
use crate::relay_support::{until_answer, until_ready};
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{DATABASE, SUPERUSER, Server, Settings, settings_of};
use serde_json::Value;

/// Runs doctor on these, each with its option; the one with option `restarted` is started anew as soon as it
/// has answered.
fn examine(nodes: &mut [(&str, &mut Server)], restarted: &str) -> (i32, Value) {
    let arguments: Vec<String> = nodes
        .iter()
        .flat_map(|(option, server)| [format!("--{option}"), server.conninfo(SUPERUSER)])
        .collect();
    let doctor = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .arg("doctor")
        .args(arguments)
        .args(["--seconds", "12", "--output", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut named = nodes.iter_mut();
    let (_, server) = named.find(|(option, _)| *option == restarted).unwrap();
    let answered = "SELECT (count(*) > 0)::text FROM pg_stat_activity \
                    WHERE application_name = 'lockstep doctor' AND query LIKE 'EXECUTE lockstep_sample%'";
    until_answer(server, answered, "true");
    server.restart().unwrap();
    let output = doctor.wait_with_output().unwrap();
    let json = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code().unwrap(), json)
}

#[test]
fn a_server_that_is_started_anew_is_a_risk() {
    let lab = TestLab::stock().start().unwrap();
    let own = settings_of([
        ("wal_level", "logical"),
        ("wal_retrieve_retry_interval", "100ms"),
    ]);
    let mut primary = lab.primary("primary", None, &own).unwrap();
    primary.run("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t");
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    let mut subscriber = lab.primary("subscriber", None, &own).unwrap();
    subscriber.run("CREATE TABLE t (id int PRIMARY KEY)");
    subscriber.run(&format!(
        "CREATE SUBSCRIPTION s CONNECTION 'host={} port={} user={SUPERUSER} dbname={DATABASE}' PUBLICATION p",
        primary.sockets().display(),
        primary.port()
    ));
    until_ready(&subscriber);
    for restarted in ["standby", "primary"] {
        let mut nodes = [
            ("primary", &mut primary),
            ("standby", &mut standby),
            ("subscriber", &mut subscriber),
        ];
        let is_told =
            |(_, json): &(i32, Value)| causes(json).contains(&"node_restarted".to_owned());
        let (_, json) = once_right(|| examine(&mut nodes, restarted), is_told);
        assert_eq!(json["healthy"], false, "{json}");
        let findings = json["findings"].as_array().unwrap();
        let found = findings.iter().find(|it| it["cause"] == "node_restarted");
        let found = found.unwrap_or_else(|| panic!("{}", json["nodes"]));
        assert_eq!(
            (&found["at"], &found["severity"]),
            (&restarted.into(), &"risk".into())
        );
        // One restart is no walsender that ends again and again, and no worker that fails.
        let others = ["walsenders_ended", "apply_stopped"];
        assert!(
            !causes(&json).iter().any(|it| others.contains(&it.as_str())),
            "{}",
            brief(&json)
        );
    }
}
