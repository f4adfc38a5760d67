//! One node at one moment. A value that the version or the role's rights do not show is empty.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockstep_wire::{Lsn, Timeline};
use serde::{Deserialize, Deserializer};

use crate::parallel_replay::ParallelReplay;
use crate::relay::Relay;
use crate::replica::{Kept, Replica};
use crate::source::Source;
use crate::states::{BackendType, ReplayPause, SenderState, SlotType};
use crate::tables::Tables;
use crate::views::{
    ArchiveQueue, Archiver, Background, Clients, Conflicts, Decoding, Extension, Prepared, Process,
    Receiver, Sender, Slot, Subscription, Totals, WalFolder,
};

/// What does not change while a connection lasts.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// `server_version_num`, such as 150020.
    pub version: u32,
    /// The cluster's system identifier; empty if it may not be read.
    pub system: String,
    /// When the server was started, by its clock, in microseconds since 1970.
    pub started_us: i64,
    /// The connection's database.
    pub database: String,
    /// The version of a relay; None if the node is a server.
    pub relay: Option<String>,
    /// The connection's role, quoted where SQL needs it.
    pub role: String,
    /// The server's process that answered.
    pub backend: u32,
    /// The role is a member of `pg_read_all_stats`, as members of `pg_monitor` are.
    pub monitor: bool,
    /// The role is a member of that, whether it has its rights or not.
    pub member: bool,
    /// The role has the rights of those that it is a member of, by itself.
    pub inherits: bool,
    /// Settings by name, with the values of `pg_settings.setting`, which have that view's
    /// units.
    pub settings: BTreeMap<String, String>,
    /// Host and address of the connection; those of a Unix socket begin with `/`.
    #[serde(skip)]
    pub hosts: Vec<String>,
    /// The schema of extension lockstep, quoted, if it is created.
    pub extension: Option<String>,
    /// The extension has views of parallel replay.
    pub parallel_replay: bool,
    pub replicas: Kept,
}

/// What no two servers share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    pub system: String,
    pub started_us: i64,
    pub port: String,
}

impl Facts {
    /// What is missing to a role that may not see all, and what gives it that.
    pub fn missing_right(&self) -> (&'static str, String) {
        let role = &self.role;
        let grant = format!("GRANT pg_monitor TO {role}");
        let member = "is a member of pg_monitor and does not inherit its rights";
        match (self.member, self.major() >= 16) {
            (false, _) => ("is no member of pg_monitor", grant),
            // A membership has an option of its own for that.
            (true, true) => (member, format!("{grant} WITH INHERIT TRUE")),
            (true, false) if !self.inherits => (member, format!("ALTER ROLE {role} INHERIT")),
            (true, false) => (member, grant),
        }
    }

    pub fn major(&self) -> u32 {
        self.version / 10_000
    }

    /// A setting's number, in its unit; None if the value is no number that a setting can have.
    pub fn number(&self, setting: &str) -> Option<f64> {
        let number: f64 = self.settings.get(setting)?.parse().ok()?;
        (number.abs() < 1e18).then_some(number)
    }

    /// True if the server that says `now` was started after the one that said this.
    pub fn is_restarted(&self, now: &Self) -> bool {
        self.started_us > 0 && now.started_us > self.started_us
    }

    /// Which server it is; None if the server does not tell.
    pub fn identity(&self) -> Option<Identity> {
        let known = !self.system.is_empty() && self.started_us > 0;
        let port = self.setting("port").filter(|_| known)?;
        Some(Identity {
            system: self.system.clone(),
            started_us: self.started_us,
            port: port.to_owned(),
        })
    }

    /// True if the server runs on the machine of who asks, by the address at which it answers.
    pub fn is_on_this_machine(&self) -> bool {
        let mut hosts = self.hosts.iter();
        hosts.any(|host| host.starts_with('/') || is_loopback(host))
    }

    /// The server says that it listens there: in one of its folders for sockets, or at the loopback address.
    pub fn listens_locally(&self, host: &str) -> bool {
        let listed = |name: &str| {
            let all = self.setting(name).unwrap_or_default().split(',');
            all.map(|one| one.trim().trim_matches('"'))
        };
        match host.starts_with('/') {
            true => listed("unix_socket_directories").any(|folder| folder == host),
            false => {
                let is_open = |at: &str| ["*", "0.0.0.0", "::"].contains(&at) || is_loopback(at);
                is_loopback(host) && listed("listen_addresses").any(is_open)
            }
        }
    }

    /// The server may be reached at a host that nobody asked it at: it does not say that it listens only at
    /// other addresses.
    pub fn may_listen_at(&self, host: &str) -> bool {
        let is_address = |text: &str| text.parse::<std::net::IpAddr>();
        let listed = self.setting("listen_addresses").unwrap_or("*").split(',');
        let listed: Vec<&str> = listed.map(str::trim).filter(|it| !it.is_empty()).collect();
        let others = listed.iter().all(|at| {
            is_address(at).is_ok_and(|at| !at.is_unspecified())
                && is_address(at) != is_address(host)
        });
        !(host.starts_with('/') || is_address(host).is_ok() && others)
    }

    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }
}

/// True of the names and addresses by which a machine reaches itself.
pub(crate) fn is_loopback(host: &str) -> bool {
    let address = host.parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// A node's answers to one round of questions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// The middle of the round trip, as time since the window began, by our clock.
    pub at: Duration,
    pub round_trip: Duration,
    /// The server's clock less ours in the middle of the round trip, in microseconds.
    pub clock_offset_us: i64,
    pub in_recovery: bool,
    /// Time since the server was started.
    pub up_ms: Option<f64>,
    pub wal: Wal,
    /// The node's walsenders.
    pub senders: Vec<Sender>,
    pub slots: Vec<Slot>,
    /// One for each logical slot.
    pub decoding: Vec<Decoding>,
    pub receiver: Option<Receiver>,
    /// Subscriptions of the connection's database.
    pub subscriptions: Vec<Subscription>,
    /// Replicas whose target the connection's database is.
    pub replicas: Vec<Replica>,
    /// The processes that replication depends on.
    pub processes: Vec<Process>,
    pub clients: Clients,
    /// Prepared transactions, oldest first.
    pub prepared: Vec<Prepared>,
    pub archiver: Archiver,
    pub conflicts: Conflicts,
    pub totals: Totals,
    pub extension: Option<Extension>,
    /// What those views say on a standby.
    pub parallel_replay: Option<ParallelReplay>,
    /// Asked for less often than the rest.
    pub tables: Arc<Tables>,
    /// All that is in `pg_wal`, asked for as seldom; None if the role may not see it.
    pub wal_folder: Option<WalFolder>,
    /// Segments that wait to be archived, asked for as seldom; None if the role may not see them.
    pub archive: Option<ArchiveQueue>,
    /// Dead rows of the connection's database in tables that are due for a vacuum, on a primary.
    pub dead_rows: Option<u64>,
    /// Where a standby is meant to get WAL, asked for as seldom.
    pub source: Option<Arc<Source>>,
    /// What changes seldom, asked for as seldom.
    pub background: Arc<Background>,
    /// What a relay says about itself. Its slots are in [`Sample::slots`] as well.
    pub relay: Option<Relay>,
    /// Bytes of the answers.
    pub size: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Wal {
    /// Durable on a primary.
    pub flush: Option<Lsn>,
    /// Written on a primary, durable or not.
    pub insert: Option<Lsn>,
    /// Durable on a standby, of what was streamed since it started.
    pub receive: Option<Lsn>,
    /// Replayed on a standby.
    pub replay: Option<Lsn>,
    /// Age of the newest replayed commit, by the standby's own clock.
    pub replayed_commit_age_ms: Option<f64>,
    pub pause: Option<ReplayPause>,
    /// Whom commits wait for, on a primary.
    pub synchronous_standby_names: Option<String>,
    /// The transaction number that comes after all that are visible to a new query.
    pub next_xid: Option<u64>,
    /// The timeline that a primary writes.
    #[serde(deserialize_with = "timeline")]
    pub timeline: Option<Timeline>,
}

fn timeline<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timeline>, D::Error> {
    let number: Option<u32> = Option::deserialize(from)?;
    Ok(number.and_then(Timeline::new))
}

impl Sample {
    /// Adds what a relay says, and the rows that a server's views would have about its slots.
    pub fn add_relay(&mut self, relay: Relay) {
        for slot in &relay.slots {
            self.slots.push(Slot {
                slot_name: slot.name.clone(),
                slot_type: SlotType::Logical,
                database: Some(slot.database.clone()),
                active: slot.active_pid.is_some(),
                active_pid: slot.active_pid,
                restart_lsn: slot.confirmed,
                confirmed_flush_lsn: slot.confirmed,
                ..Slot::default()
            });
            self.senders.extend(slot.active_pid.map(|pid| Sender {
                pid,
                state: Some(SenderState::Streaming),
                sent_lsn: slot.sent,
                write_lsn: slot.written,
                flush_lsn: slot.confirmed,
                replay_lsn: slot.applied,
                ..Sender::default()
            }));
        }
        self.relay = Some(relay);
    }

    /// True if the startup process has replayed all that it got, and asks for more.
    pub fn asks_for_wal(&self) -> bool {
        let startup = self.process(&BackendType::Startup);
        startup.is_some_and(|startup| {
            let mut events = ["RestoreCommand", "RecoveryRetrieveRetryInterval"].iter();
            events.any(|event| startup.waits_for(event))
        })
    }

    /// The end of WAL that others can get from this node. On a primary: what is flushed. On a
    /// standby: what is received, or what is replayed if nothing was streamed. Of a relay: the
    /// latest end of its groups.
    pub fn end(&self) -> Option<Lsn> {
        self.wal
            .flush
            .or_else(|| self.wal.receive.max(self.wal.replay))
            .or_else(|| self.relay.as_ref()?.end())
    }

    /// The end of one of a relay's groups, or of a server if no group is given.
    pub fn end_of(&self, group: Option<&str>) -> Option<Lsn> {
        match group {
            Some(group) => self.relay.as_ref()?.group(group)?.end(),
            None => self.end(),
        }
    }

    /// The position up to which a new query sees changes.
    pub fn visible(&self) -> Option<Lsn> {
        self.wal.flush.or(self.wal.replay)
    }

    /// The first process of a type; the types that are asked for have one process each.
    pub fn process(&self, backend_type: &BackendType) -> Option<&Process> {
        self.processes
            .iter()
            .find(|process| process.backend_type == *backend_type)
    }

    pub fn process_of(&self, pid: u32) -> Option<&Process> {
        self.processes.iter().find(|process| process.pid == pid)
    }

    /// The walsender with this process id.
    pub fn sender(&self, pid: u32) -> Option<&Sender> {
        self.senders.iter().find(|sender| sender.pid == pid)
    }

    pub fn slot(&self, name: &str) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.slot_name == name)
    }

    pub fn decoding(&self, slot: &str) -> Option<&Decoding> {
        self.decoding.iter().find(|row| row.slot_name == slot)
    }

    /// The replica that a slot of its source was made for.
    pub fn replica_of(&self, slot: &str) -> Option<&Replica> {
        self.replicas.iter().find(|replica| replica.slot == slot)
    }

    pub fn subscription(&self, name: &str) -> Option<&Subscription> {
        self.subscriptions.iter().find(|row| row.name == name)
    }
}
