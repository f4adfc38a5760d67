//! `lockstep replica switchover` behind a pool: its HAProxy is led to the new servers by a command.

use std::fs;
use std::path::{Path, PathBuf};

use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::free_port;
use lockstep_lab::server::{SUPERUSER, Server, settings_of};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::pool_haproxy::{PROGRAM, Proxy, is_installed, port_of, session, start};
use crate::pool_support::Agent;
use crate::replica::{closed_args, in_app, on, output, said, value};
use crate::replica_switchover::follows;
use crate::serve_support::until;

/// The HAProxy that a reload has started.
struct Reloaded(PathBuf);

impl Drop for Reloaded {
    fn drop(&mut self) {
        let pid = fs::read_to_string(&self.0).ok();
        if let Some(pid) = pid.and_then(|pid| pid.trim().parse().ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// A pool's nodes file with a primary alone, beside which an agent runs.
fn nodes(lab: &Lab, server: &Server, agent: &Agent) -> PathBuf {
    let name = &server.id().name;
    let text = format!(
        "[[node]]\nname = \"{name}\"\nrole = \"primary\"\nconninfo = \"{}\"\nagent = \"{}\"\nagent_check = \"{}\"\n",
        server.conninfo(SUPERUSER),
        agent.serve.address,
        agent.agent_check
    );
    lab.write_file(&format!("{name}.toml"), &text).unwrap()
}

/// What an operator's command does: HAProxy's configuration is written anew, and read. A new process gives up
/// if the old one, which may be slow here, does not give it the ports in time.
fn reload(proxy: &Proxy, lab: &Lab, nodes: &Path, pid: &Path) -> String {
    let statistics = free_port().unwrap();
    format!(
        "set -e; {} pool haproxy --nodes {} --writes-port {} --reads-port {} --reports-port {} \
             --statistics 127.0.0.1:{statistics} --socket {} > {config}; \
         until {PROGRAM} -D -f {config} -p {} -sf {} >/dev/null 2>&1; do sleep 0.1; done",
        env!("CARGO_BIN_EXE_lockstep"),
        nodes.display(),
        proxy.writes,
        proxy.reads,
        proxy.reports,
        proxy.socket.display(),
        pid.display(),
        proxy.pid(),
        config = lab.folder().join("haproxy.cfg").display(),
    )
}

#[test]
fn a_pools_writers_are_led_to_the_new_server_by_a_command() {
    if !is_installed() {
        return;
    }
    let lab = Lab::for_tests().unwrap();
    let settings = settings_of([
        ("wal_level", "logical"),
        ("autovacuum", "off"),
        ("listen_addresses", "127.0.0.1"),
    ]);
    let [source, target] = ["source", "target"].map(|name| {
        let server = lab.primary(name, Some(free_port().unwrap()), &settings);
        let server = server.unwrap();
        server.run("CREATE DATABASE app");
        server
    });
    on(&source, "CREATE TABLE a (id int PRIMARY KEY)");
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&closed_args(&from, &to)).status.success());
    let mut process = follows(&lab, "r", &to, &target);

    let agents = [&source, &target].map(|server| Agent::start(server, server, &[]));
    let files = [(&source, &agents[0]), (&target, &agents[1])]
        .map(|(server, agent)| nodes(&lab, server, agent));
    let proxy = start(&lab, &files[0], &[]);
    let leads_to = |server: &Server| {
        until(&format!("writers reach port {}", server.port()), || {
            let port = port_of(&mut session(proxy.writes)?)?;
            (port == server.port()).then_some(())
        });
    };
    leads_to(&source);

    let pid = lab.folder().join("reloaded.pid");
    let _reloaded = Reloaded(pid.clone());
    let hook = reload(&proxy, &lab, &files[1], &pid);
    let moved = ["switchover", "r", "--target", &to, "--on-switch", &hook];
    let patient = ["--max-pause", "60s", "--timeout", "300s"];
    let done = output(&[&moved[..], &patient].concat());
    assert!(done.status.success(), "{}", said(&done));
    assert!(process.0.wait().unwrap().success(), "it ends by itself");
    leads_to(&target);
    on(&target, "INSERT INTO a VALUES (1)");
    assert_eq!(value(&target, "SELECT count(*) FROM a"), "1");
}
