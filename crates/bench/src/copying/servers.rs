//! Source and target of a copy, what is in them, and what they used.

use std::time::Duration;

use lockstep_client::{ClientError, Connection, Conninfo, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::{Pinning, Side};
use lockstep_lab::server::{self, SUPERUSER, Server, Settings, settings_of};
use lockstep_lab::usage::Usage;
use lockstep_lab::{LabError, Role};

use crate::contents::{Contents, check_equal, contents};
use crate::decode::settled_usage;
use crate::{BenchError, Result};

/// The database that is copied, on both servers.
pub const DATABASE: &str = "copied";

/// How long one statement or copy may take.
pub const PATIENCE: Duration = Duration::from_secs(1800);

/// Source and target, each with a core of its own where there are two.
#[derive(Debug)]
pub struct Servers {
    pub source: Server,
    pub target: Server,
    /// What a copy must have; empty before the source is filled.
    filled: Vec<Contents>,
    pinning: Pinning,
}

/// What both servers had used at one time.
#[derive(Debug, Clone, Copy)]
pub struct Meter {
    source: Usage,
    target: Usage,
    idle_s: Option<f64>,
}

/// What was used between two times, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Spent {
    pub source_cpu_s: f64,
    pub target_cpu_s: f64,
    /// Seconds in which a core did nothing, both cores together.
    pub idle_s: Option<f64>,
}

fn settings() -> Settings {
    settings_of([
        ("wal_level", "logical"),
        ("listen_addresses", "127.0.0.1"),
        ("shared_buffers", "256MB"),
        ("max_wal_size", "8GB"),
        ("checkpoint_timeout", "1h"),
        ("maintenance_work_mem", "128MB"),
        ("max_replication_slots", "20"),
        ("max_logical_replication_workers", "16"),
        ("max_worker_processes", "24"),
        ("max_sync_workers_per_subscription", "2"),
        // Stock's workers wait no longer than this for their turn; the default is 5 s.
        ("wal_retrieve_retry_interval", "10ms"),
        ("autovacuum", "off"),
    ])
}

impl Servers {
    pub fn start(lab: &Lab) -> Result<Self> {
        Self::start_with(lab, &[])
    }

    /// Starts both, with further settings for the target.
    pub fn start_with(lab: &Lab, on_target: &[(&str, &str)]) -> Result<Self> {
        let source = lab.primary("source", None, &settings())?;
        let mut target = lab.server(Role::Standby, "target", None)?;
        target.init()?;
        target.set(settings())?;
        target.set(on_target.iter().copied())?;
        target.start()?;
        Ok(Self {
            source,
            target,
            filled: Vec::new(),
            pinning: lab.pinning().clone(),
        })
    }

    /// Makes the source's database anew, with what the statements make.
    pub fn fill(&mut self, sql: &str) -> Result<()> {
        anew(&self.source)?;
        for sql in [sql, "VACUUM ANALYZE", "CHECKPOINT"] {
            execute(&self.source, sql)?;
        }
        self.filled = contents_of(&self.source)?;
        Ok(())
    }

    /// Rows of the source.
    pub fn rows(&self) -> u64 {
        self.filled.iter().map(|table| table.rows).sum()
    }

    /// Makes the target's database anew, with what the statements make.
    pub fn fill_target(&self, sql: &str) -> Result<()> {
        anew(&self.target)?;
        for sql in [sql, "VACUUM ANALYZE", "CHECKPOINT"] {
            execute(&self.target, sql)?;
        }
        Ok(())
    }

    /// Makes the target's database anew and writes everything out, so that no copy pays for the one
    /// before it.
    pub fn empty_target(&self) -> Result<()> {
        anew(&self.target)?;
        execute(&self.target, "CHECKPOINT")
    }

    pub fn meter(&self) -> Meter {
        Meter {
            source: settled_usage(&self.source),
            target: settled_usage(&self.target),
            idle_s: self.pinning.idle_s(Side::Both),
        }
    }

    /// What was used since then. A session's CPU counts once the session has ended.
    pub fn spent_since(&self, before: &Meter) -> Spent {
        // First: what follows waits, and leaves the cores idle.
        let idle_s = self.pinning.idle_s(Side::Both);
        let spent = |server: &Server, before| settled_usage(server).since(before).cpu_s;
        Spent {
            source_cpu_s: spent(&self.source, before.source),
            target_cpu_s: spent(&self.target, before.target),
            idle_s: (idle_s.zip(before.idle_s)).map(|(after, before)| after - before),
        }
    }

    /// An error unless the target has what the source has, indexes too.
    pub fn check_copy(&self) -> Result<()> {
        check_equal(&self.filled, &contents_of(&self.target)?)
    }

    /// An error unless both have the same now.
    pub fn check_same(&self) -> Result<()> {
        check_equal(&contents_of(&self.source)?, &contents_of(&self.target)?)
    }

    /// An error unless the target has as many rows as the source.
    pub fn check_rows(&self) -> Result<()> {
        let there = contents_of(&self.target)?;
        let there: u64 = there.iter().map(|table| table.rows).sum();
        match there == self.rows() {
            true => Ok(()),
            false => Err(LabError::Measurement(format!(
                "the target has {there} rows, and the source {}",
                self.rows()
            ))
            .into()),
        }
    }
}

/// The database, for programs.
pub fn conninfo(server: &Server) -> String {
    let port = server.port();
    format!("host=127.0.0.1 port={port} user={SUPERUSER} dbname={DATABASE}")
}

pub fn connect(server: &Server) -> Result<Connection> {
    connect_to(server, &conninfo(server))
}

fn connect_to(server: &Server, conninfo: &str) -> Result<Connection> {
    let connected = Conninfo::parse(conninfo)
        .and_then(|conninfo| Connection::connect(&conninfo, Purpose::Sql, "lockstep-lab bench"));
    let mut connection =
        connected.map_err(|error| server.refused("refused a connection", &error))?;
    connection.set_patience(PATIENCE);
    Ok(connection)
}

/// What a server has said to a statement, as this crate's error.
pub fn refused(server: &Server) -> impl Fn(ClientError) -> BenchError + '_ {
    |error| server.refused("refused a statement", &error).into()
}

pub fn execute(server: &Server, sql: &str) -> Result<()> {
    connect(server)?.execute(sql).map_err(refused(server))
}

fn anew(server: &Server) -> Result<()> {
    let other = conninfo(server).replace(DATABASE, server::DATABASE);
    let mut connection = connect_to(server, &other)?;
    for sql in [
        format!("DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)"),
        format!("CREATE DATABASE {DATABASE} TEMPLATE template0"),
    ] {
        connection.execute(&sql).map_err(refused(server))?;
    }
    Ok(())
}

fn contents_of(server: &Server) -> Result<Vec<Contents>> {
    contents(&mut connect(server)?).map_err(refused(server))
}
