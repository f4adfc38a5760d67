//! A primary with one standby and one subscriber, on which waiting for a commit is timed.
//!
//! All settings but those that logical replication needs are PostgreSQL's own, and nothing else
//! runs on these servers: what a commit waits for is replication alone. Primary and replicas
//! have a core each.

use lockstep_lab::Role;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{PATIENCE, SUPERUSER, Server, Settings};

use crate::Result;

/// The standby's and the subscriber's `application_name`.
const STANDBY: &str = "standby";
const SUBSCRIBER: &str = "subscriber";

/// The replica that commits wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    Standby,
    Subscriber,
}

impl Awaited {
    /// The replica's `application_name`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standby => STANDBY,
            Self::Subscriber => SUBSCRIBER,
        }
    }

    /// The replica's kind of replication.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Standby => "physical",
            Self::Subscriber => "logical",
        }
    }
}

/// How the subscriber flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushing {
    /// PostgreSQL's default: the apply worker commits asynchronously.
    Default,
    /// The subscription's own `synchronous_commit = on`.
    WithEachCommit,
    /// The server's `wal_writer_delay = 10ms`.
    ShortDelay,
}

#[derive(Debug)]
pub struct Bed {
    pub primary: Server,
    pub standby: Server,
    pub subscriber: Server,
}

impl Bed {
    /// Starts the servers, and waits until both replicas stream.
    pub fn start(lab: &Lab) -> Result<Self> {
        let logical: Settings = [("wal_level".to_owned(), "logical".to_owned())].into();
        let mut primary = lab.primary("primary", None, &logical)?;
        primary.execute("CREATE PUBLICATION p")?;
        let standby = lab.standby(&primary, STANDBY, &Settings::new())?;
        let mut subscriber = lab.server(Role::Standby, SUBSCRIBER, None)?;
        subscriber.init()?;
        subscriber.start()?;
        subscriber.execute(&format!(
            "CREATE SUBSCRIPTION {SUBSCRIBER} CONNECTION '{}' PUBLICATION p",
            primary.conninfo(SUPERUSER)
        ))?;
        primary.await_event("stream to both replicas", PATIENCE, |primary| {
            let sql = format!(
                "SELECT (count(*) = 2)::text FROM pg_stat_replication \
                 WHERE state = 'streaming' AND application_name IN ('{STANDBY}', '{SUBSCRIBER}')"
            );
            Ok(primary.query_text(&sql)?.as_deref() == Some("true"))
        })?;
        Ok(Self {
            primary,
            standby,
            subscriber,
        })
    }

    /// Lets commits on the primary wait for one replica from now on.
    pub fn await_replica(&mut self, awaited: Awaited) -> Result<()> {
        make_synchronous(&mut self.primary, awaited.name())
    }

    /// Changes how the subscriber flushes, and waits until its worker does so.
    pub fn flush_as(&mut self, flushing: Flushing) -> Result<()> {
        match flushing {
            Flushing::ShortDelay => self.subscriber.set([("wal_writer_delay", "10ms")])?,
            _ => self.subscriber.unset("wal_writer_delay")?,
        }
        self.subscriber.reload()?;
        let commit = match flushing {
            Flushing::WithEachCommit => "on",
            _ => "off",
        };
        self.subscriber.execute(&format!(
            "ALTER SUBSCRIPTION {SUBSCRIBER} SET (synchronous_commit = {commit})"
        ))?;
        // The worker reads both settings when it wakes, which this commit makes it do.
        Ok(self
            .primary
            .execute("SELECT pg_logical_emit_message(true, 'lockstep', '')")?)
    }

    /// Conninfos of the primary and of the subscriber.
    pub fn conninfos(&self) -> [String; 2] {
        [&self.primary, &self.subscriber].map(|server| server.conninfo(SUPERUSER))
    }
}

/// Lets commits on a primary wait for the replica of this `application_name` from now on.
pub(crate) fn make_synchronous(primary: &mut Server, name: &str) -> Result<()> {
    primary.set([("synchronous_standby_names", name)])?;
    primary.reload()?;
    let sql = format!(
        "SELECT (count(*) = 1)::text FROM pg_stat_replication \
         WHERE sync_state = 'sync' AND application_name = '{name}'"
    );
    let happened = |primary: &mut Server| Ok(primary.query_text(&sql)?.as_deref() == Some("true"));
    Ok(primary.await_event("have its synchronous replica", PATIENCE, happened)?)
}
