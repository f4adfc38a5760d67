//! A pool behind a real HAProxy: a primary and two standbys, each with its agent.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{TestLab, free_port};
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server, Settings};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::pool_support::Agent;
use crate::serve_support::until;

pub const PROGRAM: &str = "/usr/sbin/haproxy";

/// Interval of HAProxy's checks, and their longest time: one that takes longer takes the node out.
pub const CHECK_EVERY: &str = "500ms";

pub struct Proxy {
    process: Child,
    pub socket: PathBuf,
    pub writes: u16,
    pub reads: u16,
    pub reports: u16,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn lockstep(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.args(args).output().unwrap()
}

pub fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Starts HAProxy with what the command writes for these nodes.
pub fn start(lab: &Lab, nodes: &Path, more: &[&str]) -> Proxy {
    let [writes, reads, reports, statistics] = [(); 4].map(|()| free_port().unwrap());
    let folder = lab.folder().join("proxy");
    std::fs::create_dir(&folder).unwrap();
    lab.account().own(&folder).unwrap();
    let socket = folder.join("admin.sock");
    let (writes_port, reads_port) = (writes.to_string(), reads.to_string());
    let (reports_port, statistics) = (reports.to_string(), format!("127.0.0.1:{statistics}"));
    let usual = [
        "pool",
        "haproxy",
        "--nodes",
        nodes.to_str().unwrap(),
        "--writes-port",
        &writes_port,
        "--reads-port",
        &reads_port,
        "--reports-port",
        &reports_port,
        "--statistics",
        &statistics,
        "--socket",
        socket.to_str().unwrap(),
    ];
    let mut words = [&usual[..], more].concat();
    if !more.contains(&"--check-every") {
        words.extend(["--check-every", CHECK_EVERY]);
    }
    let output = lockstep(&words);
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
        socket,
        writes,
        reads,
        reports,
    }
}

impl Proxy {
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a command to the runtime socket.
    fn tell(&self, command: &str) {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.write_all(format!("{command}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.trim(), "", "{command}");
    }
}

/// The port of the server that a new session reaches; None if it reaches none.
fn reached(port: u16) -> Option<u16> {
    port_of(&mut session(port)?)
}

pub fn session(port: u16) -> Option<Connection> {
    let conninfo = format!("host=127.0.0.1 port={port} user={SUPERUSER} dbname=postgres");
    let conninfo = Conninfo::parse(&conninfo).unwrap();
    Connection::connect(&conninfo, Purpose::Sql, "test").ok()
}

/// The port of a session's server.
pub fn port_of(session: &mut Connection) -> Option<u16> {
    let rows = session.query("SHOW port").ok()?;
    rows[0][0].clone()?.parse().ok()
}

/// Waits until 20 new sessions in a row reach these servers, all of them, and no other.
pub fn await_servers(port: u16, servers: &[&Server]) {
    let wanted: BTreeSet<_> = servers.iter().map(|server| Some(server.port())).collect();
    until(&format!("{wanted:?} are reached"), || {
        let found: BTreeSet<_> = (0..20).map(|_| reached(port)).collect();
        (found == wanted).then_some(())
    });
}

pub fn nodes_file(lab: &Lab, nodes: &[(&Server, &str, &Agent)]) -> std::path::PathBuf {
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

/// A primary and two standbys, an agent beside each, and the file that names all.
struct Nodes {
    primary: Server,
    first: Server,
    second: Server,
    agents: [Agent; 3],
    file: PathBuf,
    // Last: it ends what still runs.
    lab: Lab,
}

impl Nodes {
    fn start() -> Self {
        let lab = TestLab::stock().start().unwrap();
        let primary = lab.primary("primary", None, &Settings::new()).unwrap();
        let mut first = lab.standby(&primary, "first", &Settings::new()).unwrap();
        let mut second = lab.standby(&primary, "second", &Settings::new()).unwrap();
        for standby in [&mut first, &mut second] {
            standby.catch_up(&primary).unwrap();
        }
        let agents = [&primary, &first, &second].map(|node| Agent::start(&primary, node, &[]));
        let [of_primary, of_first, of_second] = &agents;
        let nodes = [
            (&primary, "primary", of_primary),
            (&first, "standby", of_first),
            (&second, "standby", of_second),
        ];
        let file = nodes_file(&lab, &nodes);
        Self {
            primary,
            first,
            second,
            agents,
            file,
            lab,
        }
    }
}

/// Whether HAProxy is there; says so if not.
pub fn is_installed() -> bool {
    let is_there = Path::new(PROGRAM).exists();
    if !is_there {
        println!("SKIP: there is no HAProxy (Debian's haproxy)");
    }
    is_there
}

#[test]
fn new_sessions_go_where_the_agents_say() {
    if !is_installed() {
        return;
    }
    let nodes = Nodes::start();
    let (primary, first, second) = (&nodes.primary, &nodes.first, &nodes.second);
    let [_, of_first, of_second] = &nodes.agents;
    let proxy = start(&nodes.lab, &nodes.file, &[]);
    let nodes = nodes.file.to_str().unwrap();
    await_servers(proxy.writes, &[primary]);
    await_servers(proxy.reads, &[first, second]);

    // A node that is paused gets no new session from the moment on that HAProxy has seen it.
    first.run("SELECT pg_wal_replay_pause()");
    await_servers(proxy.reads, &[second]);
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
    second.run("SELECT pg_wal_replay_pause()");
    of_second.await_state("late", Some("paused"));
    await_servers(proxy.reads, &[first, second]);
    first.run("SELECT pg_wal_replay_resume()");
    await_servers(proxy.reads, &[first]);
    second.run("SELECT pg_wal_replay_resume()");
    await_servers(proxy.reads, &[first, second]);
    await_servers(proxy.writes, &[primary]);
    status_says(
        nodes,
        0,
        &[("primary", "is_primary"), ("first", ""), ("second", "")],
    );

    drained_nodes_keep_their_sessions(&proxy, [first, second], [of_first, of_second]);

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

/// Sessions of a late node stay with `--sessions-when-out close`, those of one that is out do not.
#[test]
fn only_sessions_of_nodes_that_are_out_are_cut_off() {
    if !is_installed() {
        return;
    }
    let mut nodes = Nodes::start();
    let (first, second) = (&nodes.first, &nodes.second);
    // A check that comes late on a busy machine would cut them off as well.
    let close = ["--sessions-when-out", "close", "--check-every", "2s"];
    let proxy = start(&nodes.lab, &nodes.file, &close);
    await_servers(proxy.reads, &[first, second]);
    let mut kept = until("a session reaches the first", || {
        let mut session = session(proxy.reads)?;
        (port_of(&mut session)? == first.port()).then_some(session)
    });
    first.run("SELECT pg_wal_replay_pause()");
    await_servers(proxy.reads, &[second]);
    assert_eq!(port_of(&mut kept), Some(first.port()));
    first.run("SELECT pg_wal_replay_resume()");
    await_servers(proxy.reads, &[first, second]);
    assert_eq!(port_of(&mut kept), Some(first.port()));
    nodes.first.promote().unwrap();
    nodes.agents[1].await_state("out", Some("is_primary"));
    until("the session is cut off", || {
        port_of(&mut kept).is_none().then_some(())
    });
}

/// The agent drains its node; an operator drains one in HAProxy, which no agent takes back.
fn drained_nodes_keep_their_sessions(
    proxy: &Proxy,
    [first, second]: [&Server; 2],
    [of_first, of_second]: [&Agent; 2],
) {
    let mut kept = until("a session reaches the first", || {
        let mut session = session(proxy.reads)?;
        (port_of(&mut session)? == first.port()).then_some(session)
    });
    of_first.serve.signal(Signal::SIGUSR1);
    await_servers(proxy.reads, &[second]);
    assert_eq!(port_of(&mut kept), Some(first.port()));
    of_first.serve.signal(Signal::SIGUSR2);
    await_servers(proxy.reads, &[first, second]);

    proxy.tell("set server reads/second state maint");
    await_servers(proxy.reads, &[first]);
    // The agent of the second goes out and in again, and rises: HAProxy has asked it often meanwhile.
    of_second.serve.signal(Signal::SIGUSR1);
    of_second.await_state("draining", Some("drained"));
    of_second.serve.signal(Signal::SIGUSR2);
    of_second.await_state("in", None);
    until("the agent's words have been heard", || {
        reached(proxy.reads);
        (of_second.state()["share_percent"] == 100).then_some(())
    });
    await_servers(proxy.reads, &[first]);
    proxy.tell("set server reads/second state ready");
    await_servers(proxy.reads, &[first, second]);
}

/// A certificate for 127.0.0.1 that signs itself, and its key, which others cannot read.
pub fn certificate(folder: &Path, is_authority: bool) -> Option<[String; 2]> {
    let place = |name: &str| folder.join(name).display().to_string();
    let [certificate, key] =
        ["crt", "key"].map(|name| place(&format!("{name}{}", u8::from(is_authority))));
    let constraints = match is_authority {
        true => "basicConstraints=critical,CA:TRUE",
        false => "basicConstraints=critical,CA:FALSE",
    };
    let mut made = Command::new("openssl");
    made.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
    ]);
    made.args(["-nodes", "-days", "2", "-subj", "/CN=localhost"]);
    made.args(["-addext", "subjectAltName=IP:127.0.0.1"]);
    made.args(["-addext", constraints]);
    let made = made
        .args(["-keyout", &key, "-out", &certificate])
        .output()
        .ok()?;
    assert!(made.status.success(), "{made:?}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    Some([certificate, key])
}

#[test]
fn agents_with_logins_and_tls_are_asked() {
    let folder = TempDir::new().unwrap();
    let Some([certificate, key]) = certificate(folder.path(), false) else {
        println!("SKIP: there is no openssl");
        return;
    };
    let logins = folder.path().join("logins").display().to_string();
    fs::write(&logins, "ann:word\n").unwrap();
    fs::set_permissions(&logins, fs::Permissions::from_mode(0o600)).unwrap();
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let secrets = [
        "--auth-file",
        &logins,
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
    ];
    let agent = Agent::start(&primary, &primary, &secrets);
    let file = nodes_file(&lab, &[(&primary, "primary", &agent)]);
    let nodes = file.to_str().unwrap();
    let status = |more: &[&str]| {
        let args = [&["pool", "status", "--nodes", nodes][..], more].concat();
        let output = lockstep(&args);
        (output.status.code(), text(&output))
    };
    let authority = ["--agent-ca", &certificate];
    until("the table has the sessions", || {
        let (code, table) = status(&[&authority[..], &["--login-file", &logins]].concat());
        let row = table.lines().nth(1)?;
        let sessions: u32 = row.rsplit(' ').next()?.parse().ok()?;
        (code == Some(0) && row.contains("writes") && sessions >= 1).then_some(())
    });
    let (code, table) = status(&authority);
    assert!(
        code == Some(0) && table.lines().nth(1).unwrap().ends_with(" -"),
        "{table}"
    );
    let (code, table) = status(&[]);
    assert!(
        code == Some(4) && table.contains("its agent cannot be asked: "),
        "{table}"
    );
    let json = lockstep(&["pool", "status", "--nodes", nodes, "--output", "json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json["nodes"][0]["trouble"].is_string(), "{json}");

    an_authority_is_no_server(&lab, &primary, folder.path());
    if !is_installed() {
        return;
    }
    for late in ["freshest", "primary", "refuse"] {
        for sessions in ["keep", "close"] {
            let mut args = vec!["pool", "haproxy", "--nodes", nodes, "--when-all-late", late];
            args.extend(["--sessions-when-out", sessions]);
            args.extend(authority);
            let config = text(&lockstep(&args));
            let config = lab.write_file("haproxy.cfg", &config).unwrap();
            let checked = Command::new(PROGRAM)
                .args(["-c", "-f"])
                .arg(&config)
                .output();
            assert!(checked.as_ref().unwrap().status.success(), "{checked:?}");
        }
    }
}

/// An agent with the certificate of an authority, which TLS refuses for a server: the words say so.
fn an_authority_is_no_server(lab: &Lab, primary: &Server, folder: &Path) {
    let [certificate, key] = certificate(folder, true).unwrap();
    let secrets = ["--tls-cert", &certificate, "--tls-key", &key];
    let agent = Agent::start(primary, primary, &secrets);
    let file = nodes_file(lab, &[(primary, "primary", &agent)]);
    let nodes = file.to_str().unwrap();
    let output = lockstep(&[
        "pool",
        "status",
        "--nodes",
        nodes,
        "--agent-ca",
        &certificate,
    ]);
    let said = text(&output);
    assert!(said.contains("CA:FALSE"), "{said}");
}

/// Waits until `lockstep pool status` ends with this code; what it says then.
pub fn await_status(nodes: &str, code: i32) -> Value {
    let args = ["pool", "status", "--nodes", nodes, "--output", "json"];
    let output = until(&format!("the status is {code}"), || {
        let output = lockstep(&args);
        (output.status.code() == Some(code)).then_some(output)
    });
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Waits until `lockstep pool status` says these reasons, and ends with this code.
fn status_says(nodes: &str, code: i32, expected: &[(&str, &str)]) {
    until(&format!("{expected:?}"), || {
        let json = await_status(nodes, code);
        let says = json["nodes"].as_array()?.iter().map(|node| {
            let reason = node["answer"]["reason"].as_str().unwrap_or_default();
            (node["node"].as_str().unwrap_or_default(), reason)
        });
        says.eq(expected.iter().copied()).then_some(())
    });
    let table = text(&lockstep(&["pool", "status", "--nodes", nodes]));
    assert_has!(table, "primary", "writes", "warm");
    assert_eq!(
        table.contains("first: replay is paused"),
        code == 6,
        "{table}"
    );
}

/// Files that are no pool: nobody is named, or one twice.
#[test]
fn files_that_are_no_pool_are_refused() {
    let folder = TempDir::new().unwrap();
    let node = |name: &str, role: &str, host: &str| {
        format!("[[node]]\nname = \"{name}\"\nrole = \"{role}\"\nconninfo = \"host={host}\"\n")
    };
    let primary = node("db1", "primary", "db1");
    for (more, words) in [
        (String::new(), "there is no node in it"),
        (node("db2", "standby", "db2"), "no primary is named"),
        (
            primary.clone() + &node("db2", "primary", "db2"),
            "2 primaries are named",
        ),
        (
            primary.clone() + &node("db1", "standby", "db2"),
            "two nodes are called db1",
        ),
        (
            primary.clone() + &node("db2", "standby", "db1"),
            "db1 and db2 have one server",
        ),
    ] {
        let file = folder.path().join("nodes.toml");
        std::fs::write(&file, &more).unwrap();
        for command in ["haproxy", "status", "conninfo"] {
            let output = lockstep(&["pool", command, "--nodes", file.to_str().unwrap()]);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{command}: {said}");
            assert!(said.contains(words), "{command}: {words}: {said}");
        }
    }
}
