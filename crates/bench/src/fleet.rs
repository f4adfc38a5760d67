//! A primary with many replicas, and the CPU of a server's processes in nanoseconds: what watching
//! costs it.
//!
//! Each standby is a server. Subscriptions are in databases of one server; to the primary that
//! looks like many servers. Settings are small, so that twenty nodes fit on one machine.

use std::collections::BTreeMap;
use std::fs;

use lockstep_client::{ClientError, Conninfo};
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{DATABASE, PATIENCE, SUPERUSER, Server, Settings, settings_of};
use lockstep_lab::workload::{Load, Workload};
use lockstep_lab::{LabError, Role, usage};
use lockstep_lag::{LagError, Node, Role as NodeRole};

use crate::Result;

/// pgbench's scale of the data on the primary.
const SCALE: u32 = 1;

/// The servers. Dropping them stops them.
#[derive(Debug)]
pub struct Fleet {
    pub primary: Server,
    standbys: Vec<Server>,
    subscriber: Server,
    subscriptions: u32,
}

fn settings(replicas: u32) -> Settings {
    let most = (2 * replicas + 20).to_string();
    settings_of([
        ("wal_level", "logical"),
        ("shared_buffers", "16MB"),
        ("max_connections", "60"),
        ("max_wal_senders", &most),
        ("max_replication_slots", &most),
        // The CPU of its short-lived workers could not be assigned.
        ("autovacuum", "off"),
        ("checkpoint_timeout", "1h"),
        ("max_wal_size", "4GB"),
    ])
}

impl Fleet {
    /// Starts a primary with this many standbys and subscriptions.
    pub fn start(lab: &Lab, standbys: u32, subscriptions: u32) -> Result<Self> {
        let mut primary = lab.primary("primary", None, &settings(standbys + subscriptions))?;
        lab.create_app_role(&primary)?;
        lab.load_data(&primary, SCALE)?;
        primary.execute("CREATE PUBLICATION p FOR TABLE pgbench_history")?;
        let standbys = (1..=standbys)
            .map(|number| lab.standby(&primary, &format!("standby{number}"), &Settings::new()))
            .collect::<lockstep_lab::Result<Vec<_>>>()?;
        let subscriber = subscriber(lab, &primary, subscriptions)?;
        let all = standbys.len() + subscriptions as usize;
        let streaming = format!(
            "SELECT (count(*) = {all})::text FROM pg_stat_replication WHERE state = 'streaming'"
        );
        primary.await_event("stream to all replicas", PATIENCE, |primary| {
            Ok(primary.query_text(&streaming)?.as_deref() == Some("true"))
        })?;
        Ok(Self {
            primary,
            standbys,
            subscriber,
            subscriptions,
        })
    }

    /// The primary, and then each standby.
    pub fn physical(&self) -> impl Iterator<Item = &Server> {
        std::iter::once(&self.primary).chain(&self.standbys)
    }

    /// Runs a statement on every standby.
    pub fn on_standbys(&self, sql: &str) -> Result<()> {
        for standby in &self.standbys {
            standby.execute(sql)?;
        }
        Ok(())
    }

    /// Conninfos of the standbys.
    pub fn standby_conninfos(&self) -> Vec<String> {
        let conninfo = |server: &Server| server.conninfo(SUPERUSER);
        self.standbys.iter().map(conninfo).collect()
    }

    /// Conninfos of the databases with subscriptions.
    pub fn subscribers(&self) -> Vec<String> {
        let place = |number| {
            format!(
                "host={} port={} user={SUPERUSER} dbname={}",
                self.subscriber.sockets().display(),
                self.subscriber.port(),
                database(number)
            )
        };
        (1..=self.subscriptions).map(place).collect()
    }

    /// pgbench's TPC-B-like transactions on the primary, at `rate` a second.
    pub fn load(&self, lab: &Lab, rate: f64) -> Result<Load> {
        Ok(lab.start_paced_load(
            &self.primary,
            Side::Primary,
            Workload::TpcB,
            2,
            SCALE,
            Some(rate),
        )?)
    }
}

/// Processes of a server that serve sessions of this name.
pub fn sessions(server: &Server, application_name: &str) -> Result<Vec<i32>> {
    let sql = format!(
        "SELECT string_agg(pid::text, ' ') FROM pg_stat_activity \
         WHERE application_name = '{application_name}'"
    );
    let text = server.query_text(&sql)?.unwrap_or_default();
    Ok(text
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect())
}

/// Nanoseconds on a core, by process. Clock ticks would be too coarse: they miss most of a session
/// that works for a millisecond now and then.
#[derive(Debug, Clone, Default)]
pub struct Cpu(BTreeMap<i32, u64>);

impl Cpu {
    /// Reads the time of every process of a server until now.
    pub fn of(server: &Server) -> Result<Self> {
        let Some(postmaster) = server.pid() else {
            let words = format!("{} has ended", server.id());
            return Err(LabError::Measurement(words).into());
        };
        let mut pids = usage::children(postmaster);
        pids.push(postmaster);
        Ok(Self(
            pids.into_iter()
                .filter_map(|pid| Some((pid, ran(pid)?)))
                .collect(),
        ))
    }

    /// Seconds that processes have used since `before`, as far as `counts` includes them. A
    /// process that has ended is not seen.
    pub fn since(&self, before: &Self, counts: impl Fn(i32) -> bool) -> f64 {
        let grown = |(pid, now): (&i32, &u64)| {
            now.saturating_sub(before.0.get(pid).copied().unwrap_or(0)) as f64 / 1e9
        };
        self.0
            .iter()
            .filter(|(pid, _)| counts(**pid))
            .map(grown)
            .sum()
    }
}

/// The first number of `schedstat`.
fn ran(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// CPU seconds of this process, its threads included.
pub fn own_cpu_s() -> f64 {
    let own = i32::try_from(std::process::id()).ok();
    own.and_then(usage::cpu_s).unwrap_or(0.0)
}

/// A server of the lab as one of the nodes that are watched.
pub fn node(name: String, role: NodeRole, conninfo: &str) -> Result<Node> {
    Ok(Node {
        name,
        role,
        conninfo: Conninfo::parse(conninfo).map_err(LagError::from)?,
    })
}

fn database(number: u32) -> String {
    format!("subscriber{number}")
}

fn subscriber(lab: &Lab, primary: &Server, subscriptions: u32) -> Result<Server> {
    let mut server = lab.server(Role::Standby, "subscriber", None)?;
    server.init()?;
    let workers = (2 * subscriptions + 10).to_string();
    server.set(settings(subscriptions))?;
    server.set([
        ("max_worker_processes", workers.as_str()),
        ("max_logical_replication_workers", &workers),
    ])?;
    server.start()?;
    for number in 1..=subscriptions {
        let name = database(number);
        server.execute(&format!("CREATE DATABASE {name}"))?;
        let config = server.config(SUPERUSER, "lockstep lab").database(&name);
        let refused = |error: ClientError| server.refused("refused a statement", &error);
        let mut client = config.connect().map_err(refused)?;
        client
            .execute(
                "CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, \
                 mtime timestamp, filler character(22))",
            )
            .map_err(refused)?;
        // A statement of its own: it creates a slot, which no transaction block allows.
        client
            .execute(&format!(
                "CREATE SUBSCRIPTION {name} CONNECTION 'host={} port={} user={SUPERUSER} dbname={DATABASE}' \
                 PUBLICATION p WITH (copy_data = false)",
                primary.sockets().display(),
                primary.port()
            ))
            .map_err(refused)?;
    }
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_used_meanwhile_counts() {
        let before = Cpu([(1, 5_000_000_000), (2, 1_000_000_000)].into());
        let after = Cpu([(1, 6_000_000_000), (3, 500_000_000)].into());
        assert_eq!(after.since(&before, |_| true), 1.5);
        assert_eq!(after.since(&before, |pid| pid == 3), 0.5);
    }

    #[test]
    fn our_own_time_is_read() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(ran(own).is_some());
    }
}
