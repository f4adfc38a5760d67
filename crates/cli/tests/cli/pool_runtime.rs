//! Nodes are drained, added and removed while HAProxy runs.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Output};

use lockstep_lab::assert_has;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server, Settings};
use serde_json::json;

use crate::pool_haproxy::{
    CHECK_EVERY, await_servers, await_status, is_installed, lockstep, nodes_file, port_of, session,
    start, text,
};
use crate::pool_support::Agent;
use crate::serve_support::until;

/// A `lockstep pool haproxy --watch` that ends with the test.
pub struct Watch(Child);

impl Watch {
    /// Starts one with a log.
    pub fn start(nodes: &Path, socket: &Path, log: &Path) -> Self {
        let mut watch = Command::new(env!("CARGO_BIN_EXE_lockstep"));
        watch.args(["pool", "haproxy", "--watch", "--check-every", CHECK_EVERY]);
        watch.arg("--nodes").arg(nodes).arg("--socket").arg(socket);
        Self(watch.stderr(File::create(log).unwrap()).spawn().unwrap())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command of the pool, which ends with a code.
fn pool(words: &[&str], code: i32) -> Output {
    let output = lockstep(&[&["pool"], words].concat());
    assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
    output
}

#[test]
fn nodes_come_and_go_without_a_reload() {
    if !is_installed() {
        return;
    }
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let first = lab.standby(&primary, "first", &Settings::new()).unwrap();
    let second = lab.standby(&primary, "second", &Settings::new()).unwrap();
    let [of_primary, of_first, of_second] =
        [&primary, &first, &second].map(|node| Agent::start(&primary, node, &[]));
    let two = [
        (&primary, "primary", &of_primary),
        (&first, "standby", &of_first),
    ];
    let file = nodes_file(&lab, &two);
    let nodes = file.to_str().unwrap();
    let proxy = start(&lab, &file, &[]);
    let socket = ["--socket", proxy.socket.to_str().unwrap()];
    await_servers(proxy.reads, &[&first]);

    let conninfo = second.conninfo(SUPERUSER);
    let place = ["--agent", &of_second.serve.address];
    let check = ["--agent-check", &of_second.agent_check];
    let mut add = vec!["add", "second", "--nodes", nodes, "--conninfo", &conninfo];
    add.extend([place, check, socket, ["--check-every", CHECK_EVERY]].concat());
    pool(&add, 0);
    await_servers(proxy.reads, &[&first, &second]);
    // Once more, it is there; with other values it is refused.
    pool(&add, 0);
    add.extend(["--door", "reports"]);
    pool(&add, 2);

    drained(&proxy.socket, proxy.reads, &first, &second);

    let listed = fs::read_to_string(&file).unwrap();
    let mut remove = vec!["remove", "second", "--nodes", nodes];
    remove.extend(socket);
    let said = pool(&remove, 0);
    assert_has!(
        text(&said),
        "SELECT pg_drop_replication_slot('second') on primary"
    );
    assert!(!fs::read_to_string(&file).unwrap().contains("second"));
    await_servers(proxy.reads, &[&first]);
    remove[1] = "primary";
    let refused = pool(&remove, 2);
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(words.contains("takes the writes"), "{words}");
    remove[1] = "nobody";
    pool(&remove, 2);

    let log = lab.folder().join("watch.log");
    let _watch = Watch::start(&file, &proxy.socket, &log);
    let without = fs::read_to_string(&file).unwrap();
    fs::write(&file, listed).unwrap();
    await_servers(proxy.reads, &[&first, &second]);
    // What cannot be read changes nothing.
    fs::write(&file, "").unwrap();
    until("the watch has read the empty file", || {
        let said = fs::read_to_string(&log).unwrap();
        said.contains("there is no node in it").then_some(())
    });
    await_servers(proxy.reads, &[&first, &second]);
    fs::write(&file, without).unwrap();
    await_servers(proxy.reads, &[&first]);
    until("HAProxy has forgotten the second", || {
        let output = lockstep(&["pool", "drain", "second", socket[0], socket[1]]);
        (output.status.code() == Some(2)).then_some(())
    });
    await_servers(proxy.writes, &[&primary]);
}

#[test]
fn a_node_changes_its_door() {
    if !is_installed() {
        return;
    }
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let first = lab.standby(&primary, "first", &Settings::new()).unwrap();
    let second = lab.standby(&primary, "second", &Settings::new()).unwrap();
    let agents = [&primary, &first, &second].map(|node| Agent::start(&primary, node, &[]));
    let [of_primary, of_first, of_second] = &agents;
    let all = [
        (&primary, "primary", of_primary),
        (&first, "standby", of_first),
        (&second, "standby", of_second),
    ];
    let file = nodes_file(&lab, &all);
    let nodes = file.to_str().unwrap();
    let proxy = start(&lab, &file, &[]);
    await_servers(proxy.reads, &[&first, &second]);
    let mut kept = until("a session reaches the second", || {
        let mut session = session(proxy.reads)?;
        (port_of(&mut session)? == second.port()).then_some(session)
    });

    let before = fs::read_to_string(&file).unwrap();
    let elsewhere = ["--nodes", nodes, "--socket", "/nowhere"];
    pool(
        &[&["door", "second", "reports"][..], &elsewhere].concat(),
        4,
    );
    let socket = proxy.socket.to_str().unwrap();
    let usual = [
        "--nodes",
        nodes,
        "--socket",
        socket,
        "--check-every",
        CHECK_EVERY,
        "--wait",
        "0s",
    ];
    pool(&[&["door", "stranger", "reports"][..], &usual].concat(), 2);
    assert_eq!(fs::read_to_string(&file).unwrap(), before);

    let reports = [&["door", "second", "reports"][..], &usual].concat();
    let said = text(&pool(&reports, 6));
    assert_has!(said, "second: takes reports now", "1 session is left");
    await_servers(proxy.reports, &[&second]);
    await_servers(proxy.reads, &[&first]);
    assert_eq!(port_of(&mut kept), Some(second.port()));

    // A node for reports may be late.
    second.run("ALTER SYSTEM SET recovery_min_apply_delay = '1h'");
    second.reload().unwrap();
    primary.run("CREATE TABLE t ()");
    until("the second is late for readers of fresh data", || {
        (of_second.serve.get("/pool/fresh").status == 404).then_some(())
    });
    await_servers(proxy.reports, &[&second]);
    let status = await_status(nodes, 0);
    let answer = &status["nodes"][2]["answer"];
    assert_eq!(
        (&answer["door"], &answer["state"]),
        (&json!("reports"), &json!("in"))
    );
    drop(kept);
    let said = text(&pool(&reports[..reports.len() - 2], 0));
    assert!(said.contains("replay cancels long queries there"), "{said}");

    second.run("ALTER SYSTEM RESET recovery_min_apply_delay");
    second.reload().unwrap();
    let fresh = [&["door", "second", "fresh"][..], &usual, &["--close"]].concat();
    pool(&fresh, 0);
    assert_eq!(
        fs::read_to_string(&file)
            .unwrap()
            .matches("door = \"fresh\"")
            .count(),
        1
    );
    await_servers(proxy.reads, &[&first, &second]);
    assert!(session(proxy.reports).is_none());
}

/// A drained node keeps the session that it has, until that ends or is cut off.
fn drained(socket: &Path, reads: u16, first: &Server, second: &Server) {
    let socket = socket.to_str().unwrap();
    let mut kept = until("a session reaches the first", || {
        let mut session = session(reads)?;
        (port_of(&mut session)? == first.port()).then_some(session)
    });
    let drain = ["drain", "first", "--socket", socket, "--wait", "0s"];
    let said = pool(&drain, 6);
    assert!(text(&said).contains("first: 1 session is left"), "{said:?}");
    await_servers(reads, &[second]);
    assert_eq!(port_of(&mut kept), Some(first.port()));
    pool(&[&drain[..], &["--close"]].concat(), 0);
    assert_eq!(port_of(&mut kept), None);
    pool(&["resume", "first", "--socket", socket], 0);
    await_servers(reads, &[first, second]);
    pool(&["drain", "stranger", "--socket", socket], 2);
    pool(&["drain", "first", "--socket", "/nowhere"], 4);
}
