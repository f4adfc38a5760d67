//! A primary, its standbys, and an agent beside each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lockstep_lab::cluster::Lab;
use lockstep_lab::launch::failure_line;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server, Settings, settings_of};
use lockstep_lab::{LabError, port, usage};

use super::ledger;
use crate::fault::SlowLink;
use crate::{BenchError, Result};

/// A program of the product or of HAProxy that runs. Dropping this ends it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: &'static str,
    log: PathBuf,
}

impl Running {
    /// Starts a program that writes what it says into a file of the run folder.
    pub fn start(lab: &Lab, mut command: Command, name: &'static str, id: &str) -> Result<Self> {
        let log = lab.folder().join(format!("{name}-{id}.log"));
        let file = fs::File::create(&log).map_err(BenchError::io("write", &log))?;
        command.stdout(Stdio::null()).stderr(file);
        Ok(Self {
            child: lab.launcher().spawn(command, Side::Both)?,
            name,
            log,
        })
    }

    /// An error if it has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Ok(None) = self.child.try_wait() {
            return Ok(());
        }
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        let reason = failure_line(&said).unwrap_or_else(|| "it said nothing".to_owned());
        let program = self.name.to_owned();
        Err(LabError::Program { program, reason }.into())
    }

    /// CPU seconds so far.
    pub fn cpu_s(&self) -> f64 {
        let pid = i32::try_from(self.child.id()).ok();
        pid.and_then(usage::cpu_s).unwrap_or(0.0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// How the agents decide.
#[derive(Debug, Clone, Copy)]
pub struct AgentRules {
    pub bound: &'static str,
    pub settle: &'static str,
    pub rise: &'static str,
}

/// One node of the pool, beside its server.
#[derive(Debug)]
pub struct Seat {
    pub name: String,
    /// Conninfo of its server.
    pub conninfo: String,
    /// The server's socket.
    pub socket: PathBuf,
    /// Port of the primary as this node reaches it.
    pub primary_port: u16,
    agent_port: u16,
    check_port: u16,
    pub agent: Option<Running>,
}

impl Seat {
    /// Address of its agent.
    pub fn agent_place(&self) -> String {
        format!("127.0.0.1:{}", self.agent_port)
    }

    /// Address of the agent-check.
    pub fn check_place(&self) -> String {
        format!("127.0.0.1:{}", self.check_port)
    }
}

/// The servers of a pool.
#[derive(Debug)]
pub struct Nodes {
    /// The first is the primary at the start.
    pub servers: Vec<Server>,
    pub seats: Vec<Seat>,
    /// For each standby, the way to the primary, if that can be cut.
    pub links: Vec<SlowLink>,
    /// Whether an agent asks every server which one is the primary.
    among_all: bool,
}

/// Settings of servers of which there are many.
pub fn small(nodes: usize) -> Settings {
    let senders = (2 * nodes + 10).to_string();
    settings_of([
        ("shared_buffers", "32MB"),
        ("max_connections", "150"),
        ("max_wal_senders", &senders),
        ("max_replication_slots", &senders),
        ("wal_keep_size", "1GB"),
        ("checkpoint_timeout", "1h"),
        ("max_wal_size", "4GB"),
        ("autovacuum", "off"),
    ])
}

impl Nodes {
    /// Starts a primary that has the ledger of `writers` writers, and `standbys` standbys. With `cuttable`
    /// each standby, and its agent, reach the primary through a link of their own.
    pub fn start(
        lab: &Lab,
        standbys: usize,
        settings: &Settings,
        writers: usize,
        cuttable: bool,
    ) -> Result<Self> {
        let primary = lab.primary("node0", None, settings)?;
        lab.create_app_role(&primary)?;
        primary.execute(ledger::TABLES)?;
        primary.execute(&ledger::rows(writers))?;
        let (mut servers, mut links) = (Vec::new(), Vec::new());
        for number in 1..=standbys {
            let mut standby = lab.standby(&primary, &format!("node{number}"), &Settings::new())?;
            standby.catch_up(&primary)?;
            if cuttable {
                let link = SlowLink::before(&primary)?;
                follow(&standby, standby.sockets(), link.port(), true)?;
                links.push(link);
            }
            servers.push(standby);
        }
        servers.insert(0, primary);
        let primary_port = servers.first().map_or(0, Server::port);
        let mut seats = Vec::new();
        for (number, server) in servers.iter().enumerate() {
            let link = number.checked_sub(1).and_then(|place| links.get(place));
            seats.push(Seat {
                name: server.id().name.clone(),
                conninfo: server.conninfo(SUPERUSER),
                socket: server.sockets().join(format!(".s.PGSQL.{}", server.port())),
                primary_port: link.map_or(primary_port, SlowLink::port),
                agent_port: port::free(lab.folder())?,
                check_port: port::free(lab.folder())?,
                agent: None,
            });
        }
        Ok(Self {
            servers,
            seats,
            links,
            among_all: !cuttable,
        })
    }

    /// The primary at the start, and the standbys.
    pub fn parts(&mut self) -> Result<(&mut Server, &mut [Server])> {
        self.servers.split_first_mut().ok_or_else(no_primary)
    }

    pub fn primary(&self) -> Result<&Server> {
        self.servers.first().ok_or_else(no_primary)
    }

    /// Starts an agent beside each server.
    pub fn start_agents(&mut self, lab: &Lab, product: &Path, rules: &AgentRules) -> Result<()> {
        let names: Vec<_> = self.seats.iter().map(|seat| seat.name.clone()).collect();
        let mut names = names.iter();
        names.try_for_each(|name| self.start_agent(lab, product, rules, name))
    }

    pub fn start_agent(
        &mut self,
        lab: &Lab,
        product: &Path,
        rules: &AgentRules,
        name: &str,
    ) -> Result<()> {
        let all: Vec<String> = (self.servers.iter())
            .map(|server| server.port().to_string())
            .collect();
        let among_all = self.among_all;
        let seat = (self.seats.iter_mut()).find(|seat| seat.name == name);
        let seat = seat.ok_or_else(|| no_seat(name))?;
        let ports = match among_all {
            true => all,
            false => vec![seat.primary_port.to_string()],
        };
        let sockets = lab.folder().display().to_string();
        let hosts = vec![sockets.as_str(); ports.len()].join(",");
        let primary = format!(
            "host={hosts} port={} user={SUPERUSER} dbname=postgres",
            ports.join(",")
        );
        let mut command = lab.launcher().command_as_ourselves(product);
        command.args(["pool", "agent", "--node", &seat.conninfo]);
        command.args(["--primary", &primary, "--bound", rules.bound]);
        command.args(["--settle", rules.settle, "--rise", rules.rise]);
        command.args(["--listen", &seat.agent_place()]);
        command.args(["--agent-check", &seat.check_place()]);
        seat.agent = Some(Running::start(lab, command, "agent", &seat.name)?);
        Ok(())
    }

    /// A place for a node whose server is made later. Returns the server's port.
    pub fn seat(&mut self, lab: &Lab, name: &str) -> Result<u16> {
        let (folder, primary_port) = (lab.folder(), self.primary()?.port());
        let port = port::free(folder)?;
        self.seats.push(Seat {
            name: name.to_owned(),
            conninfo: format!(
                "host={} port={port} user={SUPERUSER} dbname=postgres",
                folder.display()
            ),
            socket: folder.join(format!(".s.PGSQL.{port}")),
            primary_port,
            agent_port: port::free(folder)?,
            check_port: port::free(folder)?,
            agent: None,
        });
        Ok(port)
    }

    pub fn seat_of(&self, name: &str) -> Result<&Seat> {
        let mut seats = self.seats.iter();
        seats
            .find(|seat| seat.name == name)
            .ok_or_else(|| no_seat(name))
    }

    /// An error if an agent has ended.
    pub fn check_agents(&mut self) -> Result<()> {
        let mut agents = self.seats.iter_mut().filter_map(|seat| seat.agent.as_mut());
        agents.try_for_each(Running::check)
    }

    /// CPU seconds of all agents.
    pub fn agents_cpu_s(&self) -> f64 {
        let agents = self.seats.iter().filter_map(|seat| seat.agent.as_ref());
        agents.map(Running::cpu_s).sum()
    }

    /// Ends the agents and the servers, and removes these.
    pub fn remove(self) -> Result<()> {
        drop((self.seats, self.links));
        for server in self.servers {
            server.remove()?;
        }
        Ok(())
    }

    /// Writes the file that the product's commands read.
    pub fn write_file(&self, lab: &Lab) -> Result<PathBuf> {
        let mut text = String::new();
        for (number, seat) in self.seats.iter().enumerate() {
            let role = if number == 0 { "primary" } else { "standby" };
            text.push_str(&format!(
                "[[node]]\nname = \"{}\"\nrole = \"{role}\"\nconninfo = \"{}\"\n\
                 agent = \"{}\"\nagent_check = \"{}\"\n\n",
                seat.name,
                seat.conninfo,
                seat.agent_place(),
                seat.check_place()
            ));
        }
        Ok(lab.write_file("nodes.toml", &text)?)
    }
}

/// Lets a server follow the primary at a port from now on; without a slot, which a new primary lacks, unless
/// `keep_slot`.
pub fn follow(server: &Server, sockets: &Path, port: u16, keep_slot: bool) -> Result<()> {
    server.execute(&format!(
        "ALTER SYSTEM SET primary_conninfo = 'host={} port={port} user={SUPERUSER} application_name={}'",
        sockets.display(),
        server.id().name
    ))?;
    if !keep_slot {
        server.execute("ALTER SYSTEM RESET primary_slot_name")?;
    }
    Ok(server.reload()?)
}

fn no_seat(name: &str) -> BenchError {
    BenchError::Unusable(format!("the pool has no node {name}"))
}

fn no_primary() -> BenchError {
    BenchError::Unusable("the pool has no server".to_owned())
}
