//! A group: one upstream slot and the log it fills.
//!
//! Its folder in the spool, `groups/NAME`, has `group.json` (checksum line, then JSON, as
//! the slots have it) and the log's segments in `log`. The folder is complete before the group is
//! used: a crash while it is made leaves a folder without `group.json`, which is removed
//! at the next start, and at most a slot on the primary with the spool's identity in its name,
//! which the next try or the next start drops. A folder that cannot be opened is a
//! [`Damaged`] group: the others go on.

mod file;
mod making;
mod policy;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lockstep_client::{ClientError, Connection, SlotState, Switch};
use lockstep_intake::continuity::{FollowedSource, SlotKind, read_history, written_history};
use lockstep_spool::{FileStorage, Log, LogError};
use lockstep_wire::backend::Report;
use lockstep_wire::{Lsn, SystemId, Timeline, publication_names};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::error::{RelayError, Result};
use crate::identity::{Identity, sha256};
use crate::lock::lock;
use crate::output_settings::OutputSettings;
use crate::primary::Primary;
use crate::retention;
use crate::slots::SlotBook;
use crate::spare::Scarce;
use crate::stats::{GroupStat, GroupState};
use crate::synchronous::Synchronous;
pub use crate::upstream_slot::Origin;
use crate::upstream_slot::{FAILOVER_SLOTS, LOCKSTEP};
use file::Kept;
pub use making::Damaged;
pub(crate) use making::make_folder;
pub use policy::{InForce, Policy};

/// `client_encoding` of subscribers where nothing else is said.
const DEFAULT_ENCODING: &str = "UTF8";

/// Digits of the hash in an automatic group's name: nobody finds two keys with the same ones.
const AUTOMATIC_DIGITS: usize = 32;

/// Why a group without its walsender is not connected.
const SPARED: &str = "nobody streams from the group, and the primary had too few walsenders for \
     others (max_wal_senders); it connects again for a subscriber, or within a minute";

/// Why a group cannot go on in a database.
fn another_database(name: &str) -> String {
    format!(
        "database \"{name}\" is not the one that it was before: give the databases their old names, or \
         drop the subscription and create it again"
    )
}

/// What subscribers must agree on to share a group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupKey {
    pub database: String,
    /// Publications, sorted, each once.
    pub publications: Vec<String>,
    /// Values in binary format.
    pub binary: bool,
    /// `client_encoding` of its subscribers, as the server spells it.
    pub encoding: String,
    /// True for changes without an origin only (16 and later).
    pub local_only: bool,
    /// Messages of `pg_logical_emit_message` too.
    pub messages: bool,
    /// Settings of its subscribers. A file of an earlier version does not have them.
    #[serde(default)]
    pub output: OutputSettings,
}

impl GroupKey {
    /// A key with its publications in order.
    pub fn new(database: &str, mut publications: Vec<String>) -> Self {
        publications.sort();
        publications.dedup();
        Self {
            database: database.to_owned(),
            publications,
            binary: false,
            encoding: DEFAULT_ENCODING.to_owned(),
            local_only: false,
            messages: false,
            output: OutputSettings::default(),
        }
    }

    /// A name for a group that was not given one: the same for the same key. Groups that exist
    /// are found by their keys, never by this name, which earlier versions made otherwise.
    pub fn automatic_name(&self) -> String {
        let hash = sha256(&format!("{self:?}"));
        format!("auto_{}", hash.get(..AUTOMATIC_DIGITS).unwrap_or_default())
    }
}

/// What a group does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// The receiver looks for the primary; entered at the start and when a connection is
    /// lost, left for `Streaming` or `Failed`.
    Connecting,
    /// Entered once the primary streams; after a failure once it has streamed something, or for
    /// some seconds.
    Streaming,
    /// The spool is full, and why; left when there is room.
    Waiting(String),
    /// The primary refused, or going on would lose something. Tried again; subscribers
    /// are told.
    Failed(Box<Report>),
}

/// One upstream slot and the log it fills.
#[derive(Debug)]
pub struct Group {
    folder: PathBuf,
    kept: Mutex<Kept>,
    key: GroupKey,
    name: String,
    upstream_slot: String,
    plugin: String,
    start: Lsn,
    log: Arc<Log<FileStorage>>,
    primary: Arc<Primary>,
    slots: Arc<SlotBook>,
    policy: InForce,
    /// The slot is to be a failover slot.
    failover: bool,
    pub synchronous: Synchronous,
    /// Already logged: the primary has no failover slots.
    said_too_old: AtomicBool,
    broken: Broken,
    phase: watch::Sender<Phase>,
    reason: Mutex<String>,
    /// What was logged last of why it cannot go on, and where the log ended then.
    said: Mutex<Option<(String, Lsn)>>,
    sent: AtomicU64,
    committed: AtomicU64,
    units: AtomicU64,
    bytes: AtomicU64,
    readers: AtomicUsize,
    /// The receiver is to give up its walsender.
    to_spare: AtomicBool,
    /// The primary had none for it.
    lacks_walsender: AtomicBool,
}

/// A session that streams from a group.
#[derive(Debug)]
pub struct Reading(Arc<Group>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::Relaxed);
    }
}
/// The first log that cannot be written any more: its group, and why. None while all can.
pub type Broken = watch::Sender<Option<(String, String)>>;

/// What a group needs of the relay.
#[derive(Debug, Clone)]
pub struct Surroundings {
    pub spool: PathBuf,
    /// The spool's.
    pub identity: Identity,
    pub primary: Arc<Primary>,
    pub slots: Arc<SlotBook>,
    pub policy: InForce,
    /// Slots on the primary are to be failover slots where it has them.
    pub failover: bool,
    /// Told of a log that cannot be written any more.
    pub broken: Broken,
}

impl Group {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its subscribers agree on.
    pub fn key(&self) -> &GroupKey {
        &self.key
    }

    /// The name of its slot on the primary.
    pub fn upstream_slot(&self) -> &str {
        &self.upstream_slot
    }

    /// Units from here on are in its log, or were.
    pub fn start(&self) -> Lsn {
        self.start
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn log(&self) -> &Arc<Log<FileStorage>> {
        &self.log
    }

    /// Whether its slot sends batches.
    pub fn batched(&self) -> bool {
        self.plugin == LOCKSTEP
    }

    /// A new connection for its stream.
    pub fn connect(&self) -> Result<Connection> {
        let (key, name) = (&self.key, self.synchronous.own_name());
        Ok(self
            .primary
            .connect_to_stream(&key.database, &key.encoding, name)?)
    }

    /// Gives the connection for its stream what its subscribers have set. Comes after all that is
    /// asked in it.
    pub fn write_as_subscribers(&self, upstream: &mut Connection) -> Result<()> {
        let output = &self.key.output;
        if let Some(why) = output.refused(upstream)? {
            return Err(RelayError::Gap(why));
        }
        if let Some(statement) = output.statement()? {
            upstream.query(&statement)?;
        }
        Ok(())
    }

    pub fn stream_options(&self, server_version: u32) -> Vec<(&'static str, String)> {
        let key = &self.key;
        let yes = || "true".to_owned();
        let names = publication_names::write(&key.publications);
        // Without streaming and two-phase commit the versions do not differ.
        let mut options = vec![
            ("proto_version", "1".to_owned()),
            ("publication_names", names),
        ];
        if key.binary {
            options.push(("binary", yes()));
        }
        if key.messages {
            options.push(("messages", yes()));
        }
        if key.local_only && server_version >= 160_000 {
            options.push(("origin", "none".to_owned()));
        }
        if self.batched() {
            options.push(("batch", "hold".to_owned()));
        }
        options
    }

    /// What is known of the primary that was followed so far.
    pub fn followed(&self) -> FollowedSource {
        let kept = lock(&self.kept);
        FollowedSource {
            system: Some(SystemId::from(kept.system).to_string()),
            timeline: Some(Timeline::new(kept.timeline).unwrap_or(Timeline::FIRST)),
            history: kept.history.as_deref().and_then(read_history),
            received: self.log.received(),
            slot: Some(SlotKind {
                plugin: kept.plugin.clone(),
                database: kept.key.database.clone(),
            }),
        }
    }

    /// The OID of its database; None if that was not noted.
    pub fn database_oid(&self) -> Option<u32> {
        lock(&self.kept).database_oid
    }

    /// The group's slot is in the database with this OID.
    pub fn note_database(&self, oid: u32) -> Result<()> {
        let mut kept = lock(&self.kept);
        match kept.database_oid {
            Some(noted) if noted == oid => return Ok(()),
            Some(_) => return Err(RelayError::Gap(another_database(&self.key.database))),
            None => {}
        }
        let next = Kept {
            database_oid: Some(oid),
            ..kept.clone()
        };
        file::write(&self.folder, &next)?;
        *kept = next;
        Ok(())
    }

    /// The primary is on this timeline, which has this history, from now on.
    pub fn follow(&self, timeline: Timeline, history: &[Switch]) -> Result<()> {
        let mut kept = lock(&self.kept);
        let history = Some(written_history(history));
        if kept.timeline == timeline.get() && kept.history == history {
            return Ok(());
        }
        let next = Kept {
            timeline: timeline.get(),
            history,
            ..kept.clone()
        };
        file::write(&self.folder, &next)?;
        *kept = next;
        Ok(())
    }

    /// Sees to it that the slot is a failover slot, if it is to be one: copies of slots are
    /// not, nor are those from before it was configured. It must not be in use.
    pub fn keep_for_failover(&self, upstream: &mut Connection, slot: &SlotState) -> Result<()> {
        if !self.failover || slot.failover {
            return Ok(());
        }
        if upstream.server_version() < FAILOVER_SLOTS {
            if !self.said_too_old.swap(true, Ordering::Relaxed) {
                warn!(
                    group = self.name,
                    slot = self.upstream_slot,
                    "the slot will not survive a failover: the primary is older than PostgreSQL 17, \
                     which failover needs"
                );
            }
            return Ok(());
        }
        upstream.make_failover_slot(&self.upstream_slot)?;
        info!(
            group = self.name,
            slot = self.upstream_slot,
            "made it a failover slot"
        );
        Ok(())
    }

    /// Tells the relay if the log cannot be written any more.
    pub fn check_log(&self) {
        if let Some(why) = self.log.poisoned() {
            self.broken.send_if_modified(|first| {
                let new = first.is_none();
                first.get_or_insert_with(|| (self.name.clone(), why.to_string()));
                new
            });
        }
    }

    /// Changes what the group does.
    pub fn enter(&self, phase: Phase) {
        if let Phase::Waiting(reason) = &phase {
            lock(&self.reason).clone_from(reason);
        } else if phase == Phase::Streaming {
            lock(&self.reason).clear();
            self.lacks_walsender.store(false, Ordering::Release);
        }
        self.phase.send_if_modified(|now| {
            let changed = *now != phase;
            *now = phase;
            changed
        });
    }

    /// A connection was lost, or the primary refused, and will be tried again.
    pub fn fail(&self, why: &RelayError) {
        self.check_log();
        let lacks = Scarce::met(why) == Some(Scarce::Walsenders);
        self.lacks_walsender.store(lacks, Ordering::Release);
        // A new connection describes only tables that change after it.
        let described_too_much = matches!(
            why,
            RelayError::Log {
                source: LogError::SchemaTooLarge { .. },
                ..
            }
        );
        let phase = match why {
            _ if described_too_much && self.goes_on() => Phase::Connecting,
            RelayError::Upstream(ClientError::Refused(refusal)) if !passing(&refusal.sqlstate) => {
                Phase::Failed(Box::new(report(&refusal.sqlstate, &self.name, why)))
            }
            RelayError::Gap(_) => Phase::Failed(Box::new(report("55000", &self.name, why))),
            RelayError::Log { .. } | RelayError::Stream { .. } | RelayError::File { .. } => {
                Phase::Failed(Box::new(report("58030", &self.name, why)))
            }
            _ => Phase::Connecting,
        };
        let text = why.to_string();
        if self.is_news(&text) {
            match phase {
                Phase::Failed(_) => error!(group = self.name, reason = text, "cannot go on"),
                _ => warn!(group = self.name, reason = text, "trying again"),
            }
        }
        *lock(&self.reason) = text;
        // While it is tried again subscribers must keep seeing why.
        self.enter(phase);
    }

    /// Whether this was not said last, or something was received since. A stream may begin
    /// and fail with the same error each time, for example without its publication.
    fn is_news(&self, why: &str) -> bool {
        let now = (why.to_owned(), self.log.received());
        let last = lock(&self.said).replace(now.clone());
        last != Some(now)
    }

    /// Whether it cannot go on, as far as is known.
    pub fn has_failed(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Failed(_))
    }

    /// Whether it receives for the first time, or has received something since it failed.
    pub fn goes_on(&self) -> bool {
        let received = self.log.received();
        let said = lock(&self.said);
        said.as_ref().is_none_or(|(_, at)| *at < received)
    }

    /// What it does, and what it does next.
    pub fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Notes where the primary's WAL ends.
    pub fn note_sent(&self, lsn: Lsn) {
        self.sent.fetch_max(lsn.into(), Ordering::Relaxed);
    }

    /// Notes where the last transaction ends.
    pub fn note_committed(&self, lsn: Lsn) {
        self.committed.fetch_max(lsn.into(), Ordering::Relaxed);
    }

    /// Counts what was received.
    pub fn count(&self, units: u64, bytes: u64) {
        self.units.fetch_add(units, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a session that streams from here, until what is returned is dropped.
    pub fn enter_reader(self: &Arc<Self>) -> Reading {
        self.readers.fetch_add(1, Ordering::Relaxed);
        Reading(self.clone())
    }

    /// How many sessions stream from here.
    pub fn readers(&self) -> usize {
        self.readers.load(Ordering::Relaxed)
    }

    /// Has its receiver give up its walsender, unless somebody begins to read.
    pub fn spare_walsender(&self) {
        self.to_spare.store(true, Ordering::Release);
        self.synchronous.wake();
    }

    /// Whether that is asked for and not done yet.
    pub fn is_to_spare(&self) -> bool {
        self.to_spare.load(Ordering::Acquire)
    }

    /// Whether the primary refused its last try to connect as it has too few walsenders.
    pub fn lacks_walsender(&self) -> bool {
        self.lacks_walsender.load(Ordering::Acquire)
    }

    /// Whether that was asked for since it was last taken, and nobody reads.
    pub fn take_spared(&self) -> bool {
        self.to_spare.swap(false, Ordering::AcqRel) && self.readers() == 0
    }

    /// Notes that the walsender was given up.
    pub fn stand_idle(&self) {
        SPARED.clone_into(&mut lock(&self.reason));
        self.enter(Phase::Connecting);
    }

    /// What its subscribers have applied, as far as it is to count.
    pub fn applied(&self) -> Lsn {
        let applied = self
            .slots
            .applied(&self.name, self.synchronous.applied_by());
        // There is nobody to wait for.
        applied.unwrap_or(u64::MAX.into())
    }

    /// Removes segments that no slot needs any more; bytes removed.
    pub fn retain(&self) -> Result<u64> {
        retention::retain(&self.name, &self.log, &self.slots)
    }

    /// Has the log keep to the policy in force.
    pub fn obey(&self) {
        self.policy
            .while_it_is(|policy| self.log.set_limits(policy.limits));
    }

    /// Tries to make room in a spool that is full; true if some was made. Drops the
    /// slowest slot where the operator has chosen that.
    pub fn make_room(&self) -> Result<bool> {
        let on_limit = self.policy.get().on_limit;
        retention::make_room(&self.name, &self.log, &self.slots, on_limit)
    }

    pub fn stat(&self) -> GroupStat {
        let phase = self.phase.borrow().clone();
        let limits = self.log.limits();
        GroupStat {
            name: self.name.clone(),
            upstream_slot: self.upstream_slot.clone(),
            database: self.key.database.clone(),
            publications: self.key.publications.clone(),
            plugin: self.plugin.clone(),
            state: match phase {
                Phase::Connecting => GroupState::Connecting,
                Phase::Streaming => GroupState::Streaming,
                Phase::Waiting(_) => GroupState::Waiting,
                Phase::Failed(_) => GroupState::Failed,
            },
            // The relay knows which groups are configured.
            watched: false,
            reason: lock(&self.reason).clone(),
            primary: match phase {
                Phase::Streaming | Phase::Waiting(_) => self.primary.name(),
                _ => String::new(),
            },
            sent: self.sent.load(Ordering::Relaxed).into(),
            received: self.log.received(),
            committed: self.committed.load(Ordering::Relaxed).into(),
            durable: self.log.durable(),
            oldest_cached: self.log.oldest_cached(),
            oldest_spooled: self.log.oldest(),
            cache_bytes: self.log.cache_bytes(),
            cache_limit_bytes: limits.cache_bytes,
            spool_bytes: self.log.spool_bytes(),
            spool_limit_bytes: limits.spool_bytes.unwrap_or(0),
            transactions: self.units.load(Ordering::Relaxed),
            received_bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// Errors of the primary that pass by themselves: it starts, stops, or the slot is still
/// held by our last connection.
fn passing(sqlstate: &str) -> bool {
    sqlstate.starts_with("57P") || sqlstate.starts_with("53") || sqlstate == "55006"
}

fn report(sqlstate: &str, group: &str, why: &RelayError) -> Report {
    // Many clients show the message and nothing else.
    let message = format!("the relay's group \"{group}\" cannot go on: {why}");
    Report::error(sqlstate, message)
}
