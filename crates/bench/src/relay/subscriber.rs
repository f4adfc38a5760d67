//! A server with real subscriptions, each in a database of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_client::{ClientError, Connection, field};
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::progress::Micros;
use lockstep_lab::server::{SUPERUSER, Server, Settings, settings_of};
use lockstep_lab::{Role, usage};

use super::delays::Delays;
use super::publisher::{PUBLICATION, TABLES, until};
use super::{Endpoint, beat};
use crate::Result;
use crate::contents::{Contents, contents};
use crate::slow_calls::SlowCalls;

/// The database that the others are copies of.
const TEMPLATE: &str = "subscriber_template";

/// Worker processes beside those of subscriptions.
const SPARE_WORKERS: u32 = 10;

/// Far less than what is read in a case with slow reads.
const LITTLE_MEMORY: &str = "8MB";

/// The SQLSTATE that says that a session is in a database that is to be copied.
const IN_USE: &str = "55006";

/// The cores that a subscriber's server uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cores {
    /// The cores of the standby's side, while the primary is busy.
    Standbys,
    /// All cores, where the primary has little to do: apply workers then need not share a core
    /// with the server's other processes.
    Every,
}

/// A subscriber. Dropping it stops its server.
#[derive(Debug)]
pub struct Subscriber {
    server: Server,
    subscriptions: u32,
    cores: Cores,
}

fn settings(subscriptions: u32) -> Settings {
    let workers = (2 * subscriptions + SPARE_WORKERS).to_string();
    settings_of([
        ("max_worker_processes", workers.as_str()),
        ("max_logical_replication_workers", &workers),
        ("max_replication_slots", &workers),
        ("wal_retrieve_retry_interval", "100ms"),
        ("shared_buffers", "512MB"),
        ("max_wal_size", "16GB"),
        ("checkpoint_timeout", "1h"),
        ("autovacuum", "off"),
        // It shares its disk with primary and relay, unlike subscribers in production.
        ("fsync", "off"),
        ("full_page_writes", "off"),
        ("synchronous_commit", "off"),
    ])
}

impl Subscriber {
    /// Starts a server whose databases have the data that pgbench has on a fresh primary of
    /// that scale.
    pub fn start(lab: &Lab, subscriptions: u32, scale: u32, cores: Cores) -> Result<Self> {
        let server = start_server(lab, settings(subscriptions), cores)?;
        lab.load_data(&server, scale)?;
        server.execute(TABLES)?;
        server.execute(beat::TRIGGER)?;
        // A database cannot be copied while sessions are in it.
        server.execute(&format!("CREATE DATABASE {TEMPLATE} TEMPLATE template1"))?;
        let subscriber = Self {
            server,
            subscriptions,
            cores,
        };
        for number in 1..=subscriptions {
            subscriber.copy_database(number)?;
        }
        subscriber.server.execute("CHECKPOINT")?;
        Ok(subscriber)
    }

    /// Starts a server that may use every core, with one database, which is empty.
    pub fn empty(lab: &Lab) -> Result<Self> {
        Self::with(lab, settings(1), Cores::Every)
    }

    /// Starts a server with these settings beside PostgreSQL's own, and one database, which is
    /// empty.
    pub fn with(lab: &Lab, settings: Settings, cores: Cores) -> Result<Self> {
        let server = start_server(lab, settings, cores)?;
        let name = database(1);
        server.execute(&format!("CREATE DATABASE {name} TEMPLATE template0"))?;
        Ok(Self {
            server,
            subscriptions: 1,
            cores,
        })
    }

    /// The cores that it uses, for what else is part of the subscriber.
    pub fn side(&self) -> Side {
        match self.cores {
            Cores::Standbys => Side::Standby,
            Cores::Every => Side::Both,
        }
    }

    /// A conninfo of the first database.
    pub fn conninfo(&self) -> String {
        let (sockets, port) = (self.server.sockets().display(), self.server.port());
        let name = database(1);
        format!("host={sockets} port={port} user={SUPERUSER} dbname={name}")
    }

    /// CPU seconds of the whole server so far.
    pub fn cpu_s(&self) -> f64 {
        self.server.usage().cpu_s
    }

    /// What the first database holds.
    pub fn contents(&self) -> Result<Vec<Contents>> {
        let held = contents(&mut self.connect(&database(1))?);
        Ok(held.map_err(|error| self.server.refused("refused a query", &error))?)
    }

    /// Writes out what was changed so far. WAL that is no longer needed is used again: each server of a
    /// comparison has files for some, and none has to fill new ones.
    pub fn write_out(&self) -> Result<()> {
        Ok(self.server.execute("CHECKPOINT")?)
    }

    /// Runs a statement in the first database.
    pub fn run(&self, sql: &str) -> Result<()> {
        self.execute(1, sql)
    }

    fn copy_database(&self, number: u32) -> Result<()> {
        // In another database, since no session may be in the one that is copied.
        let sql = format!(
            "CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy",
            database(number),
            lockstep_lab::server::DATABASE
        );
        let mut client = self.connect(TEMPLATE)?;
        self.server.end_sessions();
        // Those of the lab that have just ended may still be there.
        until("that a database can be copied", || {
            match client.execute(&sql) {
                Ok(()) => Ok(true),
                Err(error) if error.refusal().is_some_and(|it| it.sqlstate == IN_USE) => Ok(false),
                Err(error) => Err(self.server.refused("refused a statement", &error).into()),
            }
        })
    }

    fn connect(&self, database: &str) -> Result<Connection> {
        Ok(self
            .server
            .config(SUPERUSER, "lockstep lab")
            .database(database)
            .connect()
            .map_err(|error| self.server.refused("refused a connection", &error))?)
    }

    fn execute(&self, number: u32, sql: &str) -> Result<()> {
        Ok(self
            .connect(&database(number))?
            .execute(sql)
            .map_err(|error| self.server.refused("refused a statement", &error))?)
    }

    fn query_text(&self, number: u32, sql: &str) -> Result<Option<String>> {
        let mut client = self.connect(&database(number))?;
        let row = client
            .query_opt(sql)
            .map_err(|error| self.server.refused("refused a query", &error))?;
        Ok(row
            .map_or(Ok(None), |row| field(&row, 0))
            .map_err(|error| self.server.refused("answered unexpectedly", &error))?)
    }

    /// Subscribes in all databases, without a copy of what is there: both sides are equal.
    pub fn subscribe(&self, whom: &Endpoint) -> Result<()> {
        self.subscribe_with(whom, "")
    }

    /// Like [`Subscriber::subscribe`], with further options, each behind a comma.
    pub fn subscribe_with(&self, whom: &Endpoint, options: &str) -> Result<()> {
        for number in 1..=self.subscriptions {
            self.execute(
                number,
                &format!(
                    "CREATE SUBSCRIPTION s{number} CONNECTION '{}' PUBLICATION {PUBLICATION} \
                     WITH (copy_data = false{options})",
                    whom.conninfo()
                ),
            )?;
        }
        Ok(())
    }

    /// Stops the stream of all subscriptions, and waits until it has stopped.
    pub fn disable(&self) -> Result<()> {
        for number in 1..=self.subscriptions {
            self.execute(number, &format!("ALTER SUBSCRIPTION s{number} DISABLE"))?;
        }
        until("the end of all apply workers", || {
            Ok(self.apply_pids()?.is_empty())
        })
    }

    /// Lets the subscriptions go on.
    pub fn enable(&self) -> Result<()> {
        for number in 1..=self.subscriptions {
            self.execute(number, &format!("ALTER SUBSCRIPTION s{number} ENABLE"))?;
        }
        Ok(())
    }

    fn apply_pids(&self) -> Result<Vec<i32>> {
        let sql = "SELECT coalesce(string_agg(pid::text, ' '), '') FROM pg_stat_subscription WHERE pid IS NOT NULL";
        let pids = self.server.query_text(sql)?.unwrap_or_default();
        Ok(pids.split(' ').filter_map(|pid| pid.parse().ok()).collect())
    }

    /// CPU seconds of all apply workers that run now.
    pub fn apply_cpu_s(&self) -> Result<f64> {
        let pids = self.apply_pids()?;
        Ok(pids.into_iter().filter_map(usage::cpu_s).sum())
    }

    /// Waits until all have applied the row that [`super::publisher::mark`] wrote last.
    pub fn await_mark(&self, primary: &Server) -> Result<()> {
        self.await_mark_while(primary, &mut || Ok(()))
    }

    /// Like [`Subscriber::await_mark`], as long as `check` finds nothing wrong.
    pub fn await_mark_while(
        &self,
        primary: &Server,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let wanted = primary.query_text("SELECT max(id)::text FROM beat")?;
        let wanted = wanted.unwrap_or_default();
        for number in 1..=self.subscriptions {
            let mut client = self.connect(&database(number))?;
            until("that a subscription has everything", || {
                check()?;
                let rows = client
                    .query_with("SELECT true FROM beat WHERE id = $1", &[&wanted])
                    .map_err(|error| self.server.refused("refused a query", &error))?;
                Ok(!rows.is_empty())
            })?;
        }
        Ok(())
    }

    /// Rows of a table in the first database.
    pub fn rows(&self, table: &str) -> Result<u64> {
        let sql = format!("SELECT count(*)::text FROM {table}");
        let text = self.query_text(1, &sql)?.unwrap_or_default();
        Ok(text.parse().unwrap_or(0))
    }

    /// The lag of all subscriptions to rows sent in a window.
    pub fn delays(&self, primary: &Server, from: Micros, to: Micros) -> Result<Delays> {
        let sent = beat::sent(primary, from, to)?;
        let mut all = Delays::default();
        for number in 1..=self.subscriptions {
            let mut client = self.connect(&database(number))?;
            let now = Micros::now();
            let sql = "SELECT id, (extract(epoch FROM received) * 1000000)::bigint FROM beat \
                       WHERE received IS NOT NULL";
            let received: std::result::Result<BTreeMap<i64, i64>, ClientError> =
                client.query(sql).and_then(|rows| {
                    rows.iter()
                        .map(|row| Ok((field(row, 0)?, field(row, 1)?)))
                        .collect()
                });
            let received =
                received.map_err(|error| self.server.refused("refused a query", &error))?;
            all.merge(&beat::delays(&sent, &received, now));
        }
        Ok(all)
    }

    /// Starts the server again with little memory for pages, and with an empty one.
    pub fn restart_with_little_memory(&mut self) -> Result<()> {
        self.server.set([("shared_buffers", LITTLE_MEMORY)])?;
        // From 18 on other processes would read, which run already.
        let method = "SELECT name FROM pg_settings WHERE name = 'io_method'";
        if self.server.query_text(method)?.is_some() {
            self.server.set([("io_method", "sync")])?;
        }
        Ok(self.server.restart()?)
    }

    /// Reads of all sessions that begin from now on take this much longer each, until that is dropped.
    pub fn slow_reads(&self, lab: &Lab, delay: Duration) -> Result<SlowCalls> {
        let postmaster = self.server.pid().and_then(|pid| u32::try_from(pid).ok());
        let postmaster = postmaster.unwrap_or_default();
        SlowCalls::of_children(lab, postmaster, "pread64,preadv", delay)
    }

    /// An error if the server has ended.
    pub fn check(&mut self) -> Result<()> {
        Ok(self.server.check_alive()?)
    }

    /// Stops the server and removes its data. The slots stay.
    pub fn remove(self) -> Result<()> {
        Ok(self.server.remove()?)
    }
}

fn start_server(lab: &Lab, settings: Settings, cores: Cores) -> Result<Server> {
    let mut server = lab.server(Role::Standby, "subscriber", None)?;
    server.init()?;
    server.set(settings)?;
    if cores == Cores::Every {
        server.unpin();
    }
    server.start()?;
    Ok(server)
}

fn database(number: u32) -> String {
    format!("subscriber_{number}")
}
