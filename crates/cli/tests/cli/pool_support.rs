//! Agents of a pool, and what they say.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lockstep_client::Conninfo;
use lockstep_lab::server::{SUPERUSER, Server};
use serde_json::Value;

use crate::serve_support::{PATIENCE, Serve, until};

/// An agent that runs.
pub struct Agent {
    pub serve: Serve,
    /// `127.0.0.1:…` of the agent-check.
    pub agent_check: String,
}

impl Agent {
    /// Starts one beside a node, with a bound that a node keeps on a busy machine, too.
    pub fn start(primary: &Server, node: &Server, more: &[&str]) -> Self {
        Self::start_among(&[primary], &node.conninfo(SUPERUSER), more)
    }

    /// Starts one that asks several servers for the primary.
    pub fn start_among(servers: &[&Server], node: &str, more: &[&str]) -> Self {
        Self::start_as(SUPERUSER, servers, node, more)
    }

    /// Starts one that asks them as a role.
    pub fn start_as(role: &str, servers: &[&Server], node: &str, more: &[&str]) -> Self {
        let each = servers.iter().map(|server| {
            let conninfo = Conninfo::parse(&server.conninfo(SUPERUSER)).unwrap();
            (
                conninfo.get("host").unwrap().to_owned(),
                server.port().to_string(),
            )
        });
        let (hosts, ports): (Vec<_>, Vec<_>) = each.unzip();
        let primary = format!(
            "host={} port={} user={role} dbname=postgres",
            hosts.join(","),
            ports.join(",")
        );
        let mut args = vec!["--primary", &primary, "--node", node, "--rise", "1s"];
        for usual in [
            ["--bound", "2s"],
            ["--interval", "200ms"],
            ["--settle", "2s"],
            ["--agent-check", "127.0.0.1:0"],
        ] {
            // With a bound of its own it has the usual interval, too.
            let is_given =
                more.contains(&usual[0]) || (usual[0] == "--interval" && more.contains(&"--bound"));
            if !is_given {
                args.extend(usual);
            }
        }
        args.extend(more);
        let serve = Serve::start_as(&["pool", "agent"], &args);
        let line = serve.logged("serving on").unwrap();
        let (_, agent_check) = line.rsplit_once(' ').unwrap();
        Self {
            agent_check: agent_check.to_owned(),
            serve,
        }
    }

    /// The answer of the agent-check for a door.
    pub fn haproxy_hears(&self, door: &str) -> String {
        self.haproxy_hears_after(Duration::ZERO, door)
    }

    /// The answer for a door whose name comes after a while.
    pub fn haproxy_hears_after(&self, wait: Duration, door: &str) -> String {
        let mut stream = TcpStream::connect(&self.agent_check).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        std::thread::sleep(wait);
        if !door.is_empty() {
            stream.write_all(format!("{door}\n").as_bytes()).unwrap();
        }
        let mut line = String::new();
        stream.read_to_string(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn state(&self) -> Value {
        self.serve.get("/health").json()
    }

    /// Waits for a state, and the reason why it is not `in`.
    pub fn await_state(&self, state: &str, reason: Option<&str>) -> Value {
        let mut last = Value::Null;
        let wanted = || {
            let said = self.state();
            let is_wanted = said["state"] == state && said["reason"].as_str() == reason;
            last = said.clone();
            is_wanted.then_some(said)
        };
        until(&format!("the node is {state}, {reason:?}"), wanted)
    }
}
