//! `--nodes FILE` with nodes that are down, that accept and say nothing, that answer slowly, and that
//! have names which are no UTF-8: none of them hides or delays the others.

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use crate::doctor_support::{brief, doctor, once_right};
use crate::serve_support::{Serve, until};
use lockstep_bench::fault::SlowLink;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{DATABASE, SUPERUSER, Server, Settings};
use serde_json::Value;

/// A database whose names may be any bytes, with a subscription that is called so.
fn subscriber(lab: &Lab) -> (Server, String) {
    let server = lab.primary("subscriber", None, &Settings::new()).unwrap();
    server.run("CREATE DATABASE bytes TEMPLATE template0 ENCODING SQL_ASCII LOCALE 'C'");
    let conninfo = server.conninfo(SUPERUSER);
    let conninfo = conninfo.replace(&format!("dbname={DATABASE}"), "dbname=bytes");
    let mut client = server
        .config(SUPERUSER, "lockstep test")
        .database("bytes")
        .connect()
        .unwrap();
    client
        .execute(
            "SET client_min_messages = error; \
             DO $$ BEGIN EXECUTE format('CREATE SUBSCRIPTION %I CONNECTION ''dbname=nowhere'' \
               PUBLICATION p WITH (connect = false)', 'caf' || chr(233)); END $$",
        )
        .unwrap();
    (server, conninfo)
}

/// Bytes a second from the slow node: it answers, after seconds.
const SLOW: u64 = 2_000;

/// Names, and whether each could be asked, which the slow one may have been or not.
fn usable(json: &Value) -> Vec<(String, bool)> {
    let nodes = json["nodes"].as_array().unwrap().iter();
    let nodes = nodes.filter(|node| node["name"] != "slow");
    let pair = |node: &Value| {
        let name = node["name"].as_str().unwrap().to_owned();
        (name, node["usable"] == true)
    };
    nodes.map(pair).collect()
}

#[test]
fn bad_nodes_of_a_file_neither_hide_nor_delay_the_others() {
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    let far = lab.standby(&primary, "far", &Settings::new()).unwrap();
    let (_subscriber, bytes) = subscriber(&lab);
    let link = SlowLink::before(&far).unwrap();
    link.limit(Some(SLOW));
    let far = far.conninfo(SUPERUSER).replace(
        &format!("port={}", far.port()),
        &format!("port={}", link.port()),
    );
    // It accepts, by its backlog, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let listed = [
        ("main", "primary", primary.conninfo(SUPERUSER)),
        ("near", "standby", standby.conninfo(SUPERUSER)),
        ("silent", "standby", format!("host=127.0.0.1 port={port}")),
        (
            "down",
            "standby",
            format!("host={} port=1", lab.folder().display()),
        ),
        ("bytes", "subscriber", bytes),
        ("slow", "standby", far),
    ];
    let text = listed.map(|(name, role, conninfo)| {
        format!("[[node]]\nname = '{name}'\nrole = '{role}'\nconninfo = \"{conninfo}\"\n")
    });
    let file = lab.folder().join("nodes.toml");
    fs::write(&file, text.concat()).unwrap();
    let file = file.to_str().unwrap();
    let expected = [
        ("main", true),
        ("near", true),
        ("silent", false),
        ("down", false),
        ("bytes", true),
    ]
    .map(|(name, usable)| (name.to_owned(), usable));

    let examine = || -> (i32, Value) {
        let said = doctor(&["--nodes", file, "--seconds", "2", "--output", "json"]);
        (said.code, serde_json::from_str(&said.text).unwrap())
    };
    let (code, json) = once_right(examine, |(_, json)| usable(json) == expected);
    assert_eq!(usable(&json), expected, "{}", json["nodes"]);
    assert_eq!(code, 4, "{}", brief(&json));
    assert_eq!(json["nodes"][5]["troubles"], serde_json::json!([]));
    let followed = |json: &Value, replica: &str| {
        let mut links = json["links"].as_array().unwrap().iter();
        links.any(|link| link["replica"] == replica)
    };
    assert!(followed(&json, "near"), "{}", brief(&json));

    let top = until("all that can answer have", || {
        let mut top = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        top.args(["top", "--nodes", file, "--count", "3", "--output", "json"]);
        let output = top.output().unwrap();
        assert_eq!(output.status.code(), Some(4));
        let text = String::from_utf8(output.stdout).unwrap();
        let state: Value = serde_json::from_str(text.lines().last()?).unwrap();
        (usable(&state) == expected).then_some(state)
    });
    assert!(followed(&top, "near"), "{top}");

    let serve = Serve::start(&["--nodes", file]);
    until("all that can answer have", || {
        (usable(&serve.state()) == expected).then_some(())
    });
    // Each state comes a second after the one before, while one node is silent.
    let first = serve.state()["number"].as_u64().unwrap();
    until("states go on", || {
        (serve.state()["number"].as_u64()? > first + 2).then_some(())
    });
    let state = serve.state();
    assert!(followed(&state, "near"), "{state}");
    assert_eq!(usable(&state), expected, "{}", state["nodes"]);
    until("the slow one has answered", || {
        let state = serve.state();
        let mut nodes = state["nodes"].as_array()?.iter();
        nodes.find(|node| node["name"] == "slow" && node["usable"] == true)?;
        Some(())
    });
}
