//! A pool behind a real HAProxy: a primary and two standbys, each with its agent.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server, Settings};
use serde_json::Value;

use crate::pool_support::{Agent, free_port};
use crate::serve_support::until;

const PROGRAM: &str = "/usr/sbin/haproxy";

struct Proxy {
    process: Child,
    writes: u16,
    reads: u16,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn lockstep(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Starts HAProxy with what the command writes for these nodes.
fn start(lab: &Lab, nodes: &Path) -> Proxy {
    let [writes, reads, reports, statistics] = [(); 4].map(|()| free_port());
    let folder = lab.folder().join("proxy");
    std::fs::create_dir(&folder).unwrap();
    lab.account().own(&folder).unwrap();
    let socket = folder.join("admin.sock");
    let output = lockstep(&[
        "pool",
        "haproxy",
        "--nodes",
        nodes.to_str().unwrap(),
        "--writes-port",
        &writes.to_string(),
        "--reads-port",
        &reads.to_string(),
        "--reports-port",
        &reports.to_string(),
        "--statistics",
        &format!("127.0.0.1:{statistics}"),
        "--socket",
        socket.to_str().unwrap(),
        "--check-every",
        "200ms",
    ]);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    let config = lab.write_file("haproxy.cfg", &text(&output)).unwrap();
    let checked = Command::new(PROGRAM)
        .args(["-c", "-f"])
        .arg(&config)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(
        checked.status.success() && !said.contains("WARNING"),
        "{said}"
    );
    let mut command = lab.launcher().command(PROGRAM);
    command
        .arg("-db")
        .arg("-f")
        .arg(&config)
        .stderr(Stdio::null());
    Proxy {
        process: lab.launcher().spawn(command, Side::Both).unwrap(),
        writes,
        reads,
    }
}

/// The port of the server that a new session reaches; None if it reaches none.
fn reached(port: u16) -> Option<u16> {
    let conninfo = format!("host=127.0.0.1 port={port} user={SUPERUSER} dbname=postgres");
    let conninfo = Conninfo::parse(&conninfo).unwrap();
    let mut session = Connection::connect(&conninfo, Purpose::Sql, "test").ok()?;
    let rows = session.query("SHOW port").ok()?;
    rows[0][0].clone()?.parse().ok()
}

/// Waits until 20 new sessions in a row reach these servers, all of them, and no other.
fn await_servers(port: u16, servers: &[&Server]) {
    let wanted: BTreeSet<_> = servers.iter().map(|server| Some(server.port())).collect();
    until(&format!("{wanted:?} are reached"), || {
        let found: BTreeSet<_> = (0..20).map(|_| reached(port)).collect();
        (found == wanted).then_some(())
    });
}

fn nodes_file(lab: &Lab, nodes: &[(&Server, &str, &Agent)]) -> std::path::PathBuf {
    let mut text = String::new();
    for (server, role, agent) in nodes {
        text.push_str(&format!(
            "[[node]]\nname = \"{}\"\nrole = \"{role}\"\nconninfo = \"{}\"\nagent = \"{}\"\nagent_check = \"{}\"\n",
            server.id().name,
            server.conninfo(SUPERUSER),
            agent.serve.address,
            agent.agent_check
        ));
    }
    lab.write_file("nodes.toml", &text).unwrap()
}

#[test]
fn new_sessions_go_where_the_agents_say() {
    if !Path::new(PROGRAM).exists() {
        println!("SKIP: there is no HAProxy (Debian's haproxy)");
        return;
    }
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let mut first = lab.standby(&primary, "first", &Settings::new()).unwrap();
    let mut second = lab.standby(&primary, "second", &Settings::new()).unwrap();
    for standby in [&mut first, &mut second] {
        standby.catch_up(&primary).unwrap();
    }
    let agents = [&primary, &first, &second].map(|node| Agent::start(&primary, node, &[]));
    let [of_primary, of_first, of_second] = &agents;
    let file = nodes_file(
        &lab,
        &[
            (&primary, "primary", of_primary),
            (&first, "standby", of_first),
            (&second, "standby", of_second),
        ],
    );
    let nodes = file.to_str().unwrap();
    let proxy = start(&lab, &file);
    await_servers(proxy.writes, &[&primary]);
    await_servers(proxy.reads, &[&first, &second]);

    // A node that is paused gets no new session from the moment on that HAProxy has seen it.
    first.execute("SELECT pg_wal_replay_pause()").unwrap();
    await_servers(proxy.reads, &[&second]);
    status_says(
        nodes,
        6,
        &[
            ("primary", "is_primary"),
            ("first", "paused"),
            ("second", ""),
        ],
    );
    // All are late: both go on.
    second.execute("SELECT pg_wal_replay_pause()").unwrap();
    of_second.await_state("late", Some("paused"));
    await_servers(proxy.reads, &[&first, &second]);
    first.execute("SELECT pg_wal_replay_resume()").unwrap();
    await_servers(proxy.reads, &[&first]);
    second.execute("SELECT pg_wal_replay_resume()").unwrap();
    await_servers(proxy.reads, &[&first, &second]);
    await_servers(proxy.writes, &[&primary]);
    status_says(
        nodes,
        0,
        &[("primary", "is_primary"), ("first", ""), ("second", "")],
    );

    let hosts = |more: &[&str]| {
        let args = [&["pool", "conninfo", "--nodes", nodes][..], more].concat();
        text(&lockstep(&args))
    };
    let line = hosts(&["--libpq", "15", "--for", "writes"]);
    let conninfo = format!("{} user={SUPERUSER} dbname=postgres", line.trim_end());
    let conninfo = Conninfo::parse(&conninfo).unwrap();
    let mut session = Connection::connect(&conninfo, Purpose::Sql, "test").unwrap();
    let port = session.query("SHOW port").unwrap()[0][0].clone();
    assert_eq!(port, Some(primary.port().to_string()));
    assert!(hosts(&[]).ends_with("prefer-standby load_balance_hosts=random\n"));
    assert!(
        lockstep(&["pool", "conninfo", "--nodes", nodes, "--for", "reports"])
            .status
            .code()
            == Some(2)
    );
}

/// `lockstep pool status` says these reasons, and ends with this code.
fn status_says(nodes: &str, code: i32, expected: &[(&str, &str)]) {
    let json = lockstep(&["pool", "status", "--nodes", nodes, "--output", "json"]);
    assert_eq!(json.status.code(), Some(code), "{json:?}");
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    for (index, (name, reason)) in expected.iter().enumerate() {
        let node = &json["nodes"][index];
        assert_eq!(node["node"], *name, "{json}");
        assert_eq!(
            node["answer"]["reason"].as_str().unwrap_or_default(),
            *reason,
            "{json}"
        );
    }
    let table = text(&lockstep(&["pool", "status", "--nodes", nodes]));
    assert!(
        table.contains("primary") && table.contains("writes"),
        "{table}"
    );
    assert_eq!(
        table.contains("first: replay is paused"),
        code == 6,
        "{table}"
    );
}
