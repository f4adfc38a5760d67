//! HAProxy in front of a pool, and new sessions through it.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection, Conninfo, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::port;
use lockstep_lab::server::DATABASE;
use lockstep_lab::workload::APP_ROLE;

use super::nodes::{Nodes, Running};
use super::stock::Formula;
use crate::{BenchError, Result};

/// Where Debian's package has it.
pub const PROGRAM: &str = "/usr/sbin/haproxy";

/// How long HAProxy may take until it sends readers to every node.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a session may take to open, and its statements.
const CONNECT_TIMEOUT_S: u32 = 2;
const STATEMENT_PATIENCE: Duration = Duration::from_secs(10);

/// Parameters that libpq would otherwise take from its variables.
const ALONE: &str = "options='' channel_binding=disable sslmode=disable gssencmode=disable";

/// What tells HAProxy which nodes may be read.
#[derive(Debug, Clone, Copy)]
pub enum Checks<'a> {
    /// The agents.
    Agents {
        product: &'a Path,
        when_all_late: &'static str,
    },
    /// HAProxy's own check of PostgreSQL.
    Pgsql,
    /// Patroni's formula.
    Formula(&'a Formula),
}

/// A HAProxy that runs.
#[derive(Debug)]
pub struct Proxy {
    process: Running,
    pub writes: u16,
    pub reads: u16,
    /// The runtime socket.
    pub socket: PathBuf,
    /// The file that names the nodes.
    pub file: PathBuf,
}

impl Proxy {
    /// Starts HAProxy, which asks each node again after `check_ms`.
    pub fn start(lab: &Lab, nodes: &Nodes, checks: Checks<'_>, check_ms: u32) -> Result<Self> {
        if !Path::new(PROGRAM).exists() {
            return Err(BenchError::Unusable(format!(
                "there is no HAProxy at {PROGRAM}: install Debian's package haproxy"
            )));
        }
        let folder = lab.folder();
        let ports = [port::free(folder)?, port::free(folder)?];
        let [writes, reads] = ports;
        let reports = port::free(folder)?.to_string();
        let (socket, file) = (folder.join("haproxy.sock"), nodes.write_file(lab)?);
        let text = match checks {
            Checks::Agents {
                product,
                when_all_late,
            } => {
                let mut command = lab.launcher().command_as_ourselves(product);
                command.args(["pool", "haproxy", "--nodes"]).arg(&file);
                command.args(["--writes-port", &writes.to_string()]);
                command.args([
                    "--reads-port",
                    &reads.to_string(),
                    "--reports-port",
                    &reports,
                ]);
                let statistics = format!("127.0.0.1:{}", port::free(folder)?);
                command
                    .args(["--statistics", &statistics, "--socket"])
                    .arg(&socket);
                command.args(["--check-every", &format!("{check_ms}ms")]);
                command.args(["--when-all-late", when_all_late]);
                lab.launcher().output(command)?
            }
            Checks::Pgsql => stock(nodes, None, ports, check_ms),
            Checks::Formula(formula) => stock(nodes, Some(formula), ports, check_ms),
        };
        let config = lab.write_file("haproxy.cfg", &text)?;
        let mut command = lab.launcher().command(PROGRAM);
        command.arg("-db").arg("-f").arg(&config);
        Ok(Self {
            process: Running::start(lab, command, "haproxy", "0")?,
            writes,
            reads,
            socket,
            file,
        })
    }

    /// An error if it has ended.
    pub fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    pub fn cpu_s(&self) -> f64 {
        self.process.cpu_s()
    }

    /// Waits until writers reach a server, and new sessions of readers this many.
    pub fn await_readers(&mut self, nodes: usize) -> Result<()> {
        let began = Instant::now();
        let mut found = Vec::new();
        loop {
            self.check()?;
            if session(self.writes).is_ok() {
                // Each round starts from nothing: a server that was reached once may be out again.
                found.clear();
                for _ in 0..nodes * 4 {
                    found.extend(reached(self.reads));
                }
                found.sort_unstable();
                found.dedup();
                if found.len() == nodes {
                    return Ok(());
                }
            }
            if began.elapsed() > PATIENCE {
                return Err(BenchError::Unusable(format!(
                    "HAProxy sends readers to {} of {nodes} nodes after {} s",
                    found.len(),
                    PATIENCE.as_secs()
                )));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A configuration without Lockstep: the primary serves readers if no standby may.
fn stock(nodes: &Nodes, formula: Option<&Formula>, ports: [u16; 2], check_ms: u32) -> String {
    let [writes, reads] = ports;
    let check = match formula {
        Some(_) => "option httpchk GET /replica",
        None => "option pgsql-check user postgres",
    };
    let mut text = format!(
        "global\n    maxconn 2000\n\
         defaults\n    mode tcp\n    balance leastconn\n    timeout connect 2s\n    timeout client 24h\n    \
         timeout server 24h\n    timeout check {check_ms}ms\n    option redispatch 1\n    retries 2\n\
         frontend writes-in\n    bind 127.0.0.1:{writes}\n    default_backend writes\n\
         frontend reads-in\n    bind 127.0.0.1:{reads}\n    use_backend writes if {{ nbsrv(reads) eq 0 }}\n    \
         default_backend reads\n\
         backend writes\n"
    );
    let server = |number: usize| {
        let seat = nodes.seats.get(number)?;
        Some(format!(
            "    server {} unix@{}",
            seat.name,
            seat.socket.display()
        ))
    };
    text.extend(server(0));
    text.push_str(&format!("\nbackend reads\n    {check}\n"));
    for number in 1..nodes.seats.len() {
        text.extend(server(number));
        let place = formula.and_then(|formula| formula.ports.get(number - 1));
        let place = place.map(|port| format!(" addr 127.0.0.1 port {port}"));
        text.push_str(&format!(
            " check{} inter {check_ms}ms fall 1 rise 1\n",
            place.unwrap_or_default()
        ));
    }
    text
}

/// A new session of the load's role at a port of this machine.
pub fn session(port: u16) -> Result<Connection, ClientError> {
    let conninfo = Conninfo::parse(ALONE)?
        .with("host", "127.0.0.1")?
        .with("port", &port.to_string())?
        .with("user", APP_ROLE)?
        .with("dbname", DATABASE)?
        .with("connect_timeout", &CONNECT_TIMEOUT_S.to_string())?;
    let mut session = Connection::connect(&conninfo, Purpose::Sql, "bench pool")?;
    session.set_patience(STATEMENT_PATIENCE);
    Ok(session)
}

/// The port of the server that a new session reaches.
fn reached(port: u16) -> Option<String> {
    let rows = session(port).ok()?.query("SHOW port").ok()?;
    rows.into_iter().next()?.into_iter().next()?
}
