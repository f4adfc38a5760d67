//! A primary with one replica, which is synchronous, and sessions that commit on it.
//!
//! All settings but those that replication needs are PostgreSQL's own, so both sides flush. The
//! primary and the sessions have one core; the replica, with all processes that are part of it, has
//! the other.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use lockstep_client::{ClientError, Connection};
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server, Settings};
use lockstep_lag::commit_probe::Level;

use crate::commit_levels::{Awaited, make_synchronous};
use crate::contents::{Contents, check_equal, contents};
use crate::relay::delays::Delays;
use crate::relay::follower::{Follower, REPLICA};
use crate::relay::publisher::{PUBLICATION, endpoint};
use crate::relay::subscriber::{Cores, Subscriber};
use crate::{BenchError, Result};

/// What the sessions write to.
const TABLE: &str = "CREATE TABLE committed (id bigserial PRIMARY KEY, v text NOT NULL)";

/// A transaction up to its commit.
const WRITE: &str = "BEGIN; INSERT INTO committed (v) VALUES ('a row of the usual length')";

/// Commits after which a replica has everything that was committed before.
const LAST: &str = "SET synchronous_commit = remote_apply; \
     INSERT INTO committed (v) VALUES ('the last row')";

/// Commits that begin so soon are not counted.
const WARM_UP: Duration = Duration::from_millis(500);

/// The replica that commits wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReplicaKind {
    /// A standby
    Physical,
    /// A subscription with PostgreSQL's own settings
    Stock,
    /// A subscription that flushes with each commit
    StockTuned,
    /// A subscription by default on a server whose WAL writer never sleeps for long
    StockDelay,
    /// `lockstep replica run`
    Lockstep,
}

impl ReplicaKind {
    pub const ALL: [Self; 5] = [
        Self::Physical,
        Self::Stock,
        Self::StockTuned,
        Self::StockDelay,
        Self::Lockstep,
    ];

    pub fn awaited(self) -> Awaited {
        match self {
            Self::Physical => Awaited::Standby,
            _ => Awaited::Subscriber,
        }
    }
}

#[derive(Debug)]
enum Replica {
    Standby(Server),
    Subscription(Subscriber),
    Lockstep(Follower),
}

/// A primary and its replica.
#[derive(Debug)]
pub struct Pair {
    pub kind: ReplicaKind,
    // First: it ends before its primary does.
    replica: Replica,
    primary: Server,
}

impl Pair {
    /// Starts both, and waits until the replica is synchronous.
    pub fn start(lab: &Lab, program: &Path, kind: ReplicaKind) -> Result<Self> {
        let logical = [("wal_level", "logical"), ("listen_addresses", "127.0.0.1")];
        let mut primary = lab.primary("primary", None, &settings(&logical))?;
        primary.execute(&format!(
            "{TABLE}; CREATE PUBLICATION {PUBLICATION} FOR TABLE committed"
        ))?;
        let (replica, name) = match kind {
            ReplicaKind::Physical => {
                let name = Awaited::Standby.name();
                let standby = lab.standby(&primary, name, &Settings::new())?;
                (Replica::Standby(standby), name)
            }
            ReplicaKind::Stock => (subscription(lab, &primary, &[], "")?, "s1"),
            ReplicaKind::StockTuned => {
                let delay = [("wal_writer_delay", "10ms")];
                let tuned = subscription(lab, &primary, &delay, ", synchronous_commit = on")?;
                (tuned, "s1")
            }
            ReplicaKind::StockDelay => {
                let delay = [("wal_writer_delay", "1ms")];
                (subscription(lab, &primary, &delay, "")?, "s1")
            }
            ReplicaKind::Lockstep => {
                let server = Subscriber::with(lab, Settings::new(), Cores::Standbys)?;
                let source = endpoint(&primary);
                let mut follower = Follower::create(lab, program, &source, server, None)?;
                follower.start(lab)?;
                (Replica::Lockstep(follower), REPLICA)
            }
        };
        make_synchronous(&mut primary, name)?;
        Ok(Self {
            kind,
            replica,
            primary,
        })
    }

    /// Lets so many sessions commit one small transaction after the other, and times each COMMIT.
    pub fn commits(
        &self,
        lab: &Lab,
        level: Level,
        committers: u32,
        length: Duration,
    ) -> Result<Delays> {
        let refused = |error| BenchError::from(self.primary.refused("refused a statement", &error));
        let mut sessions = Vec::new();
        for _ in 0..committers {
            let mut session = self.primary.connect(SUPERUSER, "lockstep-lab bench")?;
            let set = format!("SET synchronous_commit = {}", level.name());
            session.execute(&set).map_err(refused)?;
            sessions.push(session);
        }
        let from = Instant::now() + WARM_UP;
        let until = from + length;
        let mut all = Delays::default();
        thread::scope(|scope| {
            let commits = |session| {
                lab.pinning().pin_current_thread(Side::Primary);
                commit_again_and_again(session, from, until)
            };
            let threads = sessions.into_iter();
            let threads: Vec<_> =
                (threads.map(|session| scope.spawn(move || commits(session)))).collect();
            for thread in threads {
                let died = |_| Err(ClientError::Protocol("its thread died".to_owned()));
                all.merge(&thread.join().unwrap_or_else(died).map_err(refused)?);
            }
            Ok::<_, BenchError>(())
        })?;
        Ok(all)
    }

    /// An error unless the replica has what the primary has.
    pub fn check(&self) -> Result<()> {
        self.primary.execute(LAST)?;
        let there = match &self.replica {
            Replica::Standby(standby) => held(standby)?,
            Replica::Subscription(subscriber) => subscriber.contents()?,
            Replica::Lockstep(follower) => follower.server().contents()?,
        };
        check_equal(&held(&self.primary)?, &there)
    }

    /// Stops both and removes their data.
    pub fn remove(self) -> Result<()> {
        match self.replica {
            Replica::Standby(standby) => standby.remove()?,
            Replica::Subscription(subscriber) => subscriber.remove()?,
            Replica::Lockstep(follower) => follower.remove()?,
        }
        Ok(self.primary.remove()?)
    }
}

fn settings(pairs: &[(&str, &str)]) -> Settings {
    let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    pairs.iter().map(owned).collect()
}

/// A server with these settings and a subscription with these options.
fn subscription(
    lab: &Lab,
    primary: &Server,
    its: &[(&str, &str)],
    options: &str,
) -> Result<Replica> {
    let subscriber = Subscriber::with(lab, settings(its), Cores::Standbys)?;
    subscriber.run(TABLE)?;
    subscriber.subscribe_with(&endpoint(primary), options)?;
    Ok(Replica::Subscription(subscriber))
}

fn held(server: &Server) -> Result<Vec<Contents>> {
    let mut session = server.connect(SUPERUSER, "lockstep-lab bench")?;
    Ok(contents(&mut session).map_err(|error| server.refused("refused a query", &error))?)
}

/// How long the commits took that began in between.
fn commit_again_and_again(
    mut session: Connection,
    from: Instant,
    until: Instant,
) -> Result<Delays, ClientError> {
    let mut took = Delays::default();
    loop {
        session.execute(WRITE)?;
        let began = Instant::now();
        if began >= until {
            session.execute("ROLLBACK")?;
            return Ok(took);
        }
        session.execute("COMMIT")?;
        if began >= from {
            took.add(i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX));
        }
    }
}
