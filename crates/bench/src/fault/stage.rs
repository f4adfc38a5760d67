//! The servers that faults are injected into.

use std::path::PathBuf;
use std::time::Duration;

use lockstep_client::Connection;
use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{DATABASE, PATIENCE, SUPERUSER, Server, Settings};
use lockstep_lab::workload::{APP_ROLE, Load};

use super::consumer::Consumer;
use super::others::{self, Other};
use super::replicas::{self, Copied};
use super::{Frozen, Hurry, SlowLink, Writer, behind};
use crate::relay::process::Relay;
use crate::slow_calls::SlowCalls;
use crate::{BenchError, Result};

/// The database that has no subscription.
pub const OTHER_DATABASE: &str = "other";

/// pgbench's scale of the data for readers.
pub const SCALE: u32 = 1;

/// A primary, a standby and two subscribers.
#[derive(Debug)]
pub struct Stage {
    pub primary: Server,
    pub standby: Server,
    /// Has subscription `first`, through `first_link`.
    pub first: Server,
    /// Has subscription `second`.
    pub second: Server,
    /// The link between primary and standby.
    pub standby_link: SlowLink,
    /// The link between primary and first subscriber.
    pub first_link: SlowLink,
    /// The program `lockstep`, which faults at a relay need.
    pub program: Option<PathBuf>,
    /// While a fault has one in force.
    pub(super) relay: Option<Relay>,
    /// Servers that a fault has added.
    pub(super) others: Vec<Other>,
    /// While a fault has one in force.
    pub(super) copied: Option<Copied>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    Primary,
    Standby,
    First,
    Second,
}

/// A fault in force, until [`Stage::heal`].
#[derive(Default)]
pub struct Injected {
    /// Sessions that hold a lock, a snapshot or a pin.
    pub held: Vec<Connection>,
    /// The process id of the session that doctor must blame, if there is one.
    pub culprit: Option<u32>,
    pub(super) writers: Vec<Writer>,
    pub(super) consumers: Vec<Consumer>,
    pub(super) loads: Vec<Load>,
    pub(super) slow: Vec<SlowCalls>,
    pub(super) frozen: Vec<Frozen>,
    pub(super) hurried: Option<Hurry>,
    pub(super) undo: Vec<(Which, String)>,
    /// Files that are removed before anything else is undone.
    pub(super) files: Vec<PathBuf>,
    /// A remedy was tried, so that there may be nothing left to undo.
    pub mended: bool,
    /// Settings that were changed, with the values that the stage gives them otherwise.
    unset: Vec<(Which, &'static str, Option<String>)>,
    /// Settings with which servers are started anew, one after the other: a value, or the one that the
    /// server has otherwise.
    pub(super) restarts: Vec<(Which, &'static str, Option<String>)>,
}

impl Injected {
    /// Changes a setting of a server until the fault is healed.
    pub(super) fn set(
        &mut self,
        stage: &mut Stage,
        which: Which,
        name: &'static str,
        value: &str,
    ) -> Result<()> {
        let before = stage.server(which).setting(name).map(str::to_owned);
        stage.set(which, name, value)?;
        self.unset.push((which, name, before));
        Ok(())
    }
}

pub(super) fn small(logical: bool) -> Settings {
    let mut settings: Settings = [
        // One of the faults is that this is slow.
        ("fsync", "on"),
        ("shared_buffers", if logical { "256MB" } else { "32MB" }),
        ("max_connections", "100"),
        ("max_wal_senders", "20"),
        ("max_replication_slots", "20"),
        ("max_prepared_transactions", "5"),
        ("autovacuum", "off"),
        ("max_wal_size", "4GB"),
        ("checkpoint_timeout", "1h"),
        ("wal_retrieve_retry_interval", "100ms"),
        ("wal_receiver_status_interval", "1s"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect();
    if logical {
        for (name, value) in [
            ("wal_level", "logical"),
            ("archive_mode", "on"),
            ("archive_command", "/bin/true"),
            // For those who measure lag by commits.
            ("track_commit_timestamp", "on"),
            // A relay connects so.
            ("listen_addresses", "127.0.0.1"),
        ] {
            settings.insert(name.to_owned(), value.to_owned());
        }
    }
    settings
}

impl Stage {
    /// Starts the servers, and waits until all replicate.
    pub fn start(lab: &Lab) -> Result<Self> {
        let primary = lab.primary("primary", None, &small(true))?;
        primary.execute(
            "CREATE TABLE t (id bigserial PRIMARY KEY, v text); \
             CREATE TABLE keyed (id int PRIMARY KEY, n int, v text); \
             ALTER TABLE keyed REPLICA IDENTITY FULL; \
             CREATE PUBLICATION p FOR TABLE t, keyed; \
             CREATE TABLE busy (id bigserial PRIMARY KEY, v text); \
             CREATE TABLE victim (id int, v text);",
        )?;
        primary.execute(&format!("CREATE DATABASE {OTHER_DATABASE}"))?;
        execute_in(&primary, OTHER_DATABASE, "CREATE TABLE noise (v text)")?;
        lab.create_app_role(&primary)?;
        lab.load_data(&primary, SCALE)?;
        let standby_link = SlowLink::before(&primary)?;
        let first_link = SlowLink::before(&primary)?;
        let standby = lab.standby(&primary, "standby", &Settings::new())?;
        standby.execute(&format!(
            "ALTER SYSTEM SET primary_conninfo = 'host={} port={} user={SUPERUSER} application_name=standby'",
            primary.sockets().display(),
            standby_link.port()
        ))?;
        standby.reload()?;
        let first = subscriber(lab, "first", &primary, first_link.port())?;
        let second = subscriber(lab, "second", &primary, primary.port())?;
        let mut stage = Self {
            primary,
            standby,
            first,
            second,
            standby_link,
            first_link,
            program: None,
            relay: None,
            others: Vec::new(),
            copied: None,
        };
        stage.calm()?;
        for which in [Which::First, Which::Second] {
            stage.await_copies(which)?;
        }
        Ok(stage)
    }

    /// Waits until a subscriber has copied its tables.
    pub fn await_copies(&mut self, which: Which) -> Result<()> {
        let sql = "SELECT (count(*) = 0)::text FROM pg_subscription_rel WHERE srsubstate <> 'r'";
        let server = self.server_mut(which);
        Ok(server.await_event("copy its tables", PATIENCE, |server| {
            Ok(server.query_text(sql)?.as_deref() == Some("true"))
        })?)
    }

    pub fn server(&self, which: Which) -> &Server {
        match which {
            Which::Primary => &self.primary,
            Which::Standby => &self.standby,
            Which::First => &self.first,
            Which::Second => &self.second,
        }
    }

    pub(super) fn server_mut(&mut self, which: Which) -> &mut Server {
        match which {
            Which::Primary => &mut self.primary,
            Which::Standby => &mut self.standby,
            Which::First => &mut self.first,
            Which::Second => &mut self.second,
        }
    }

    /// Runs SQL in another database of the primary.
    pub(super) fn execute_in(&self, database: &str, sql: &str) -> Result<()> {
        execute_in(&self.primary, database, sql)
    }

    /// Changes a setting and reloads.
    pub(super) fn set(&mut self, which: Which, name: &'static str, value: &str) -> Result<()> {
        let server = self.server_mut(which);
        server.set([(name, value)])?;
        Ok(server.reload()?)
    }

    /// Starts a server anew.
    pub fn restart(&mut self, which: Which) -> Result<()> {
        Ok(self.server_mut(which).restart()?)
    }

    /// The server process of a type; of several walsenders, that of `application`.
    pub fn process(
        &self,
        which: Which,
        backend_type: &str,
        application: Option<&str>,
    ) -> Result<u32> {
        let and = application.map_or(String::new(), |name| {
            format!(" AND application_name = '{name}'")
        });
        let sql = format!(
            "SELECT pid::text FROM pg_stat_activity WHERE backend_type = '{backend_type}'{and}"
        );
        let server = self.server(which);
        let pid = server.query_text(&sql)?.and_then(|pid| pid.parse().ok());
        Ok(pid.ok_or_else(|| {
            LabError::Measurement(format!("{} has no {backend_type}", server.id()))
        })?)
    }

    /// A light load on both tables, with which every replica keeps up.
    pub fn trickle(&self) -> Result<[Writer; 2]> {
        let pause = Duration::from_millis(100);
        let writer = |sql: &str| Writer::start(&self.primary, DATABASE, sql, pause);
        Ok([
            writer("INSERT INTO t (v) VALUES (repeat('x', 100))")?,
            writer("INSERT INTO busy (v) VALUES (repeat('x', 100))")?,
        ])
    }

    /// Ends a fault, and waits until all replicas have caught up.
    pub fn heal(&mut self, injected: Injected) -> Result<()> {
        self.heal_quietly(injected)?;
        self.calm()
    }

    /// Ends a fault. Another may still be in force.
    pub fn heal_quietly(&mut self, injected: Injected) -> Result<()> {
        let Injected {
            held,
            writers,
            consumers,
            loads,
            slow,
            frozen,
            hurried,
            files,
            undo,
            mended,
            unset,
            restarts,
            culprit: _,
        } = injected;
        drop(consumers);
        drop(loads);
        drop(slow);
        drop(frozen);
        drop(hurried);
        drop(held);
        for file in files {
            std::fs::remove_file(&file).map_err(BenchError::io("remove", &file))?;
        }
        self.standby_link.limit(None);
        self.first_link.limit(None);
        for (which, name, before) in unset.into_iter().rev() {
            let server = self.server_mut(which);
            match before {
                Some(before) => server.set([(name, before)])?,
                None => server.unset(name)?,
            }
            server.reload()?;
        }
        for (which, sql) in undo {
            let undone = self.server(which).execute(&sql);
            if !mended {
                undone?;
            }
        }
        drop(writers);
        for (which, name, value) in restarts {
            let server = self.server_mut(which);
            match value {
                Some(value) => server.set([(name, value)])?,
                None => server.unset(name)?,
            }
            server.restart()?;
            self.standby.catch_up(&self.primary)?;
        }
        behind::close(self)?;
        replicas::close(self)?;
        others::close(self)
    }

    /// Waits until all replicas have caught up.
    pub fn calm(&mut self) -> Result<()> {
        self.calm_of(&["first", "second"])
    }

    /// Waits until the standby and these subscribers have caught up.
    pub(super) fn calm_of(&mut self, subscribers: &[&str]) -> Result<()> {
        self.standby.catch_up(&self.primary)?;
        self.calm_subscribers(subscribers)
    }

    /// Waits until these subscribers have caught up.
    pub(super) fn calm_subscribers(&mut self, subscribers: &[&str]) -> Result<()> {
        let end = self.primary.flush_lsn()?;
        let sql = format!(
            "SELECT (count(*) = {} AND bool_and(replay_lsn >= '{end}' AND flush_lsn >= '{end}'))::text \
             FROM pg_stat_replication WHERE application_name IN ('{}')",
            subscribers.len(),
            subscribers.join("', '")
        );
        Ok(self
            .primary
            .await_event("have its subscribers catch up", PATIENCE, |primary| {
                // An idle subscriber confirms nothing for seconds, so there is a row to confirm.
                primary.execute("INSERT INTO t (v) VALUES ('calm')")?;
                std::thread::sleep(Duration::from_millis(50));
                Ok(primary.query_text(&sql)?.as_deref() == Some("true"))
            })?)
    }

    /// Conninfo of the relay's console, while a fault has a relay.
    pub fn relay_conninfo(&self) -> Option<String> {
        let port = self.relay.as_ref()?.endpoint().port;
        Some(format!("host=127.0.0.1 port={port} user={SUPERUSER}"))
    }

    /// Options and conninfos by which doctor is told of what a fault has added.
    pub fn others(&self) -> Vec<[String; 2]> {
        let relay = self.relay_conninfo();
        let relay = relay.map(|relay| ["--relay".to_owned(), relay]);
        let others = self.others.iter().filter_map(Other::argument);
        others.chain(relay).collect()
    }

    /// A server by the name that doctor gives it.
    pub fn named(&self, name: &str) -> Option<&Server> {
        let own = [&self.primary, &self.standby, &self.first, &self.second];
        let others = self.others.iter().map(|other| &other.server);
        own.into_iter()
            .chain(others)
            .find(|server| server.id().name == name)
    }

    /// Conninfos of the primary, the standby and the subscribers.
    pub fn conninfos(&self) -> [String; 4] {
        [&self.primary, &self.standby, &self.first, &self.second]
            .map(|server| server.conninfo(SUPERUSER))
    }
}

pub(super) fn execute_in(server: &Server, database: &str, sql: &str) -> Result<()> {
    Ok(server
        .config(SUPERUSER, "lockstep lab")
        .database(database)
        .connect()
        .and_then(|mut client| client.execute(sql))
        .map_err(|error| server.refused("refused a statement", &error))?)
}

fn subscriber(lab: &Lab, name: &str, primary: &Server, port: u16) -> Result<Server> {
    let server = lab.primary(name, None, &small(false))?;
    server.execute(&format!(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text); \
         CREATE TABLE keyed (id int CONSTRAINT key PRIMARY KEY, n int, v text); \
         CREATE ROLE {APP_ROLE} LOGIN"
    ))?;
    server.execute(&format!(
        "CREATE SUBSCRIPTION {name} CONNECTION 'host={} port={port} user={SUPERUSER} dbname={DATABASE}' \
         PUBLICATION p",
        primary.sockets().display()
    ))?;
    Ok(server)
}
