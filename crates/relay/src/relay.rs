//! The relay as a whole: what it keeps while it runs, and what it does every second.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection};
use lockstep_service::clock;
use lockstep_spool::Limits;
use lockstep_wire::backend::Report;
use nix::fcntl::{Flock, FlockArg};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::adoption::{self, Drop, Event};
use crate::clients::Clients;
use crate::config::{Config, GroupConfig, Origin as Origins, Plugin};
use crate::error::{RelayError, Result};
use crate::group::{
    self, Broken, Damaged, Group, GroupKey, InForce, Origin, Phase, Policy, Surroundings,
};
use crate::identity::Identity;
use crate::lock::{Held, Keyed, lock};
use crate::look::{LOOK_AGAIN, Looks, Streaming, look};
use crate::output_settings::OutputSettings;
use crate::primary::Primary;
use crate::receive::Receiving;
use crate::said::Said;
use crate::serve::Terms;
use crate::slots::{self, Slot, SlotBook};
use crate::stats::{ClientState, GroupStat, GroupState, Reset, SlotStat, Snapshot, Source};
use crate::synchronous::Synchronous;
use crate::terms;
use crate::unguarded;

mod giving;
mod own_slots;

/// Interval at which slots are saved, and segments removed that no slot needs.
const ROUND: Duration = Duration::from_secs(1);

/// Interval at which a configured group that could not be made is tried again.
const MAKE_AGAIN: Duration = Duration::from_secs(5);

/// Bytes of one segment of a spool.
const SEGMENT_BYTES: u64 = 16 << 20;

/// What the search for the primary is called in [`Said`]: no group has such a name.
const LOOKING: &str = "the primary";

/// What questions to the primary while groups stream are called in [`Said`].
const ASKING: &str = "what changes at the primary";

/// Locked while a relay works in a spool.
const LOCK_FILE: &str = "relay.lock";

/// A group and the threads that feed it.
#[derive(Debug)]
struct Running {
    group: Arc<Group>,
    /// Ends its threads when dropped.
    _receiving: Receiving,
    /// Since when no slot reads it; None while one does, or if it was configured.
    unused_since: Option<Instant>,
}

#[derive(Debug)]
pub struct Relay {
    around: Surroundings,
    config: RwLock<Config>,
    /// What sessions that begin are told of it.
    terms: watch::Sender<Arc<Terms>>,
    /// Held while the configuration is read again.
    reloading: Mutex<()>,
    groups: Mutex<BTreeMap<String, Running>>,
    /// Groups of the spool that could not be opened.
    damaged: Vec<Damaged>,
    /// The spool was empty when the relay started.
    new_spool: bool,
    /// Slots on the primary were held against the spool's groups since the start.
    swept: AtomicBool,
    /// Groups that are being made: their slots are not to be swept away.
    begun: Mutex<BTreeSet<String>>,
    /// Why what is tried again fails: the look for the primary, groups that cannot be made.
    said: Said,
    /// Held while something is given up that others need more.
    giving: Mutex<()>,
    /// Held, by the slot's name, while a slot is taken over or sent elsewhere.
    making_slots: Keyed<String>,
    /// Held while a group is made, handed out or removed. After that of a slot, never before.
    making_groups: Keyed<GroupKey>,
    clients: Clients,
    stop: watch::Receiver<bool>,
    /// When the primary was last looked for.
    looked: Mutex<Option<Instant>>,
    /// When the primary was last asked, and about whom.
    looks: Mutex<Looks>,
    /// Subscriptions that it waits for and cannot see.
    unseen: Mutex<Vec<String>>,
    /// When configured groups were last tried.
    tried: Mutex<Option<Instant>>,
    _lock: Flock<File>,
}

impl Relay {
    /// Opens the spool and starts to receive what its groups are about.
    pub fn open(config: Config, terms: Terms, stop: watch::Receiver<bool>) -> Result<Self> {
        group::make_folder(&config.spool)?;
        let spool_lock = lock_spool(&config.spool)?;
        let primary = config.primary.clone();
        let (identity, new_spool) = Identity::of(&config.spool)?;
        let around = Surroundings {
            spool: config.spool.clone(),
            identity,
            primary: Arc::new(Primary::new(
                primary,
                config.console_database.clone(),
                config.logical_decoding_work_mem,
            )),
            slots: Arc::new(SlotBook::open(&config.spool, clock::unix_us())?),
            policy: InForce::new(policy(&config)),
            failover: config.failover,
            broken: Broken::default(),
        };
        let (groups, damaged) = Group::open_all(&around)?;
        for group in &damaged {
            error!(group = group.name, reason = group.reason, "cannot go on");
        }
        let relay = Self {
            groups: Mutex::new(BTreeMap::new()),
            new_spool: new_spool && groups.is_empty() && damaged.is_empty(),
            damaged,
            swept: AtomicBool::new(false),
            begun: Mutex::default(),
            said: Said::default(),
            giving: Mutex::default(),
            making_slots: Keyed::default(),
            making_groups: Keyed::default(),
            clients: Clients::default(),
            stop,
            looked: Mutex::new(None),
            looks: Mutex::default(),
            unseen: Mutex::default(),
            tried: Mutex::new(None),
            _lock: spool_lock,
            config: RwLock::new(config),
            terms: watch::Sender::new(Arc::new(terms)),
            reloading: Mutex::new(()),
            around,
        };
        for group in groups {
            relay.feed(group)?;
        }
        relay.find_primary();
        Ok(relay)
    }

    fn feed(&self, mut group: Group) -> Result<Arc<Group>> {
        let configured = self.config().groups;
        if let Some(config) = configured.iter().find(|config| config.name == group.name()) {
            group.synchronous =
                Synchronous::new(config.application_name.as_deref(), &config.applied_by);
        }
        let group = Arc::new(group);
        let running = Running {
            _receiving: Receiving::start(group.clone())?,
            group: group.clone(),
            unused_since: None,
        };
        lock(&self.groups).insert(group.name().to_owned(), running);
        // A reload just before this did not see it.
        group.obey();
        Ok(group)
    }

    pub fn slots(&self) -> &SlotBook {
        &self.around.slots
    }

    pub fn primary(&self) -> &Primary {
        &self.around.primary
    }

    /// The first log that cannot be written any more, once there is one.
    pub fn broken(&self) -> watch::Receiver<Option<(String, String)>> {
        self.around.broken.subscribe()
    }

    /// Turns true when the relay stops.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.clone()
    }

    /// Held while the slot of this name is taken over or sent elsewhere.
    pub(crate) async fn making_slot(&self, name: &str) -> Held {
        self.making_slots.hold(&name.to_owned()).await
    }

    /// Held while a group with this key is made, or handed out to a slot that does not use it
    /// yet. To be taken after [`Relay::making_slot`].
    pub(crate) async fn making_group(&self, key: &GroupKey) -> Held {
        self.making_groups.hold(key).await
    }

    /// Whether groups are made for subscribers that no group serves.
    pub fn makes_groups(&self) -> bool {
        self.config().auto_groups
    }

    pub fn config(&self) -> Config {
        let config = self.config.read();
        config.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What sessions that begin have to keep to.
    pub fn terms(&self) -> watch::Receiver<Arc<Terms>> {
        self.terms.subscribe()
    }

    pub fn group(&self, name: &str) -> Option<Arc<Group>> {
        let groups = lock(&self.groups);
        groups.get(name).map(|running| running.group.clone())
    }

    /// The groups for what a subscriber asks for. A group is not handed out any more once
    /// it is about to be removed: both happen under [`Relay::making_group`].
    pub fn groups_for(&self, key: &GroupKey) -> Vec<Arc<Group>> {
        let mut groups = self.all_groups();
        groups.retain(|group| group.key() == key);
        groups
    }

    pub(crate) fn all_groups(&self) -> Vec<Arc<Group>> {
        let groups = lock(&self.groups);
        groups
            .values()
            .map(|running| running.group.clone())
            .collect()
    }

    /// Makes a group and starts to receive for it.
    pub fn make_named_group(
        &self,
        name: &str,
        key: &GroupKey,
        plugin: Plugin,
        origin: Origin<'_>,
    ) -> Result<Arc<Group>> {
        lock(&self.begun).insert(name.to_owned());
        let made = self.make_and_feed(name, key, plugin, origin);
        lock(&self.begun).remove(name);
        made
    }

    fn make_and_feed(
        &self,
        name: &str,
        key: &GroupKey,
        plugin: Plugin,
        origin: Origin<'_>,
    ) -> Result<Arc<Group>> {
        let group = Group::create(name, key, plugin, origin, &self.around)?;
        info!(
            group = name,
            database = key.database,
            publications = key.publications.join(", "),
            from = %group.start(),
            "made a group"
        );
        self.feed(group)
    }

    /// The sessions.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// What is done every second until the relay stops: on one side what only needs the
    /// disk, on the other what needs the primary and may wait for it.
    pub async fn rounds(self: Arc<Self>) {
        tokio::join!(
            self.every_second(Self::keep_house),
            self.every_second(|relay| {
                relay.find_primary();
                relay.look_at_primary();
            }),
            self.every_second(|relay| {
                relay.sweep();
                relay.make_configured();
            }),
            self.every_second(Self::finish_adoptions),
            self.every_second(|relay| {
                relay.forget_unused();
                relay.help_groups();
            }),
        );
    }

    async fn every_second(self: &Arc<Self>, task: fn(&Self)) {
        let mut stop = self.stopping();
        while !*stop.borrow() {
            let relay = self.clone();
            if let Err(failed) = tokio::task::spawn_blocking(move || task(&relay)).await {
                error!(error = %failed, "a round of the relay failed");
            }
            tokio::select! {
                _ = stop.changed() => {}
                () = tokio::time::sleep(ROUND) => {}
            }
        }
    }

    fn keep_house(&self) {
        let report = |what: &str, failed: RelayError| warn!(error = %failed, "{what}");
        if let Err(failed) = self.slots().save_if_moved() {
            report("cannot save what subscribers have confirmed", failed);
        }
        for group in self.all_groups() {
            group.check_log();
            if let Err(failed) = group.retain() {
                report("cannot remove what nobody needs any more", failed);
            }
        }
    }

    fn is_connected(&self) -> bool {
        let streams = |group: &Arc<Group>| *group.phase().borrow() == Phase::Streaming;
        self.all_groups().iter().any(streams)
    }

    /// Looks where the primary is, for sessions that are passed through, unless that is known
    /// and a group is connected to it anyway.
    fn find_primary(&self) {
        let known = self.primary().known().is_some();
        let recently = lock(&self.looked).is_some_and(|at| at.elapsed() < LOOK_AGAIN);
        if recently || (known && self.is_connected()) {
            return;
        }
        *lock(&self.looked) = Some(Instant::now());
        match self.primary().look() {
            Ok(mut upstream) => {
                if self.said.clear(LOOKING) || !known {
                    info!(primary = self.primary().name(), "found the primary");
                    self.warn_of_unguarded_logins(&mut upstream);
                }
            }
            Err(failed) if self.said.is_new(LOOKING, &failed) => {
                warn!(error = %failed, "cannot reach the primary; trying again");
            }
            Err(_) => {}
        }
    }

    /// Warns if whoever reaches the relay from elsewhere may log in without a password.
    fn warn_of_unguarded_logins(&self, upstream: &mut Connection) {
        if !self.config().listen.is_remote() {
            return;
        }
        match unguarded::rules(upstream) {
            Ok(Some(rules)) if !rules.is_empty() => warn!(
                rules = rules.join("; "),
                "pg_hba.conf of the primary lets the relay's address in without a password, and \
                 with it every client of the relay, as any of these roles: ask for a password there"
            ),
            Ok(Some(_)) => {}
            Ok(None) => info!(
                "the relay's role may not read pg_hba_file_rules: make sure that pg_hba.conf of \
                 the primary asks the relay's address for a password"
            ),
            Err(failed) => warn!(error = %failed, "cannot ask the primary for its rules of logins"),
        }
    }

    /// Asks the primary what may change there while groups stream, once a minute, and when
    /// another group or session streams than before.
    fn look_at_primary(&self) {
        let (groups, clients) = (self.all_groups(), self.snapshot().clients);
        let of_groups = groups
            .iter()
            .filter_map(|group| group.synchronous.walsender());
        let streaming = clients.iter().filter(|client| !client.slot.is_empty());
        let about = Streaming {
            walsenders: of_groups.collect(),
            sessions: streaming.map(|client| client.id).collect(),
        };
        let began = Instant::now();
        let mut looks = lock(&self.looks);
        if !looks.is_due(&about, began) {
            return;
        }
        let seen = look(self.primary(), &groups, &clients);
        looks.asked(about, seen.is_ok(), began);
        drop(looks);
        let seen = match seen {
            Ok(seen) => seen,
            Err(failed) => {
                if self.said.is_new(ASKING, &failed) {
                    warn!(
                        error = %failed,
                        "cannot ask the primary whom it waits for, and for its roles; trying again"
                    );
                }
                return;
            }
        };
        self.said.clear(ASKING);
        for (id, why) in seen.lost {
            warn!(session = id, why = why.message, "ends a session");
            self.clients.terminate(id, why);
        }
        let before = std::mem::replace(&mut *lock(&self.unseen), seen.unseen.clone());
        for name in seen.unseen.iter().filter(|name| !before.contains(name)) {
            warn!(
                subscription = name,
                "synchronous_standby_names of the primary names a subscription that it cannot \
                 see behind the relay, so commits wait without end: set application_name of its \
                 group to this name"
            );
        }
    }

    /// Makes the groups of the configuration that are not there yet.
    fn make_configured(&self) {
        let missing = self.missing();
        {
            let mut tried = lock(&self.tried);
            if missing.is_empty() || tried.is_some_and(|at| at.elapsed() < MAKE_AGAIN) {
                return;
            }
            *tried = Some(Instant::now());
        }
        // All at once: each slot waits for the transactions that are open in its cluster.
        std::thread::scope(|scope| {
            for group in &missing {
                scope.spawn(|| self.make_one_configured(group));
            }
        });
    }

    fn make_one_configured(&self, group: &GroupConfig) {
        let made = self.key_of(group).and_then(|key| {
            let _making = self.making_groups.hold_in_thread(&key);
            self.make_named_group(&group.name, &key, group.plugin, Origin::Now)
        });
        match made {
            Ok(_) => drop(self.said.clear(&group.name)),
            Err(failed) if self.said.is_new(&group.name, &failed) => {
                warn!(group = group.name, error = %failed, "cannot make a configured group; trying again");
            }
            Err(_) => {}
        }
    }

    /// What a group of the configuration gives. The primary says what its settings are that the
    /// configuration does not name.
    fn key_of(&self, group: &GroupConfig) -> Result<GroupKey> {
        let mut upstream = self.primary().connect_for_sql(&group.database)?;
        Ok(GroupKey {
            binary: group.binary,
            local_only: group.origin == Origins::None,
            messages: group.messages,
            output: OutputSettings::configured(&mut upstream, &group.settings)?,
            ..GroupKey::new(&group.database, group.publications.clone())
        })
    }

    /// Groups of the configuration that are not there yet.
    fn missing(&self) -> Vec<GroupConfig> {
        let mut configured = self.config().groups;
        configured.retain(|group| self.group(&group.name).is_none());
        configured.retain(|group| self.damaged(&group.name).is_none());
        configured
    }

    /// Why a group of the spool could not be opened; None if it could, or is not there.
    pub fn damaged(&self, group: &str) -> Option<&str> {
        let mut named = self.damaged.iter().filter(|damaged| damaged.name == group);
        named.next().map(|damaged| damaged.reason.as_str())
    }

    /// All groups, with those that cannot be opened and those that cannot be made.
    fn group_stats(&self) -> Vec<GroupStat> {
        let configured = self.config().groups;
        let is_configured = |name: &str| configured.iter().any(|group| group.name == name);
        let running = self.all_groups().into_iter().map(|group| GroupStat {
            watched: is_configured(group.name()),
            ..group.stat()
        });
        let missing = self.missing().into_iter().map(|group| {
            let reason = self.said.last(&group.name);
            GroupStat {
                state: match reason {
                    Some(_) => GroupState::Failed,
                    None => GroupState::Connecting,
                },
                reason: reason.unwrap_or_default(),
                watched: true,
                name: group.name,
                database: group.database,
                publications: group.publications,
                ..GroupStat::default()
            }
        });
        let damaged = self.damaged.iter().map(Damaged::stat);
        let mut all: Vec<GroupStat> = running.chain(missing).chain(damaged).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// All slots. One whose group is not there cannot go on.
    fn slot_stats(&self, slots: &[Arc<Slot>]) -> Vec<SlotStat> {
        let stat = |slot: &Arc<Slot>| {
            let mut stat = slot.stat();
            if let Some(group) = self.group(&stat.group) {
                // Its session told how much is left after what it sent last, which may be long ago.
                let (next, told) = match stat.active_pid {
                    Some(_) => (stat.sent, stat.behind_bytes),
                    None => (stat.confirmed, 0),
                };
                stat.behind_bytes = group.log().bytes_from(next).max(told);
            }
            if let Some(damaged) = self.damaged(&stat.group) {
                stat.reason = damaged.to_owned();
            } else if self.group(&stat.group).is_none() {
                stat.reason = format!("group \"{}\" is not in the spool any more", stat.group);
            }
            stat
        };
        slots.iter().map(stat).collect()
    }

    /// Ends the groups' threads and saves the slots.
    pub fn close(&self) {
        // Joins the threads.
        let groups = std::mem::take(&mut *lock(&self.groups));
        for running in groups.values() {
            if let Err(failed) = running.group.log().sync() {
                warn!(group = running.group.name(), error = %failed, "cannot make the spool durable");
            }
        }
        drop(groups);
        if let Err(failed) = self.slots().save() {
            warn!(error = %failed, "cannot save what subscribers have confirmed");
        }
    }
}

impl Source for Relay {
    fn snapshot(&self) -> Snapshot {
        let slots = self.slots().all();
        let mut clients = self.clients.stats();
        for slot in &slots {
            let Some(active) = slot.active() else {
                continue;
            };
            for client in clients
                .iter_mut()
                .filter(|client| client.id == active.session)
            {
                client.state = ClientState::Streaming;
                client.slot.clone_from(&slot.name);
            }
        }
        Snapshot {
            groups: self.group_stats(),
            slots: self.slot_stats(&slots),
            clients,
        }
    }

    fn config(&self) -> Vec<(String, String, String)> {
        self.config().rows()
    }

    fn reset(&self, slot: Option<&str>) -> Reset {
        let now = clock::unix_us();
        let Some(name) = slot else {
            self.slots().all().iter().for_each(|slot| slot.reset(now));
            return Reset::Done;
        };
        match self.slots().get(name) {
            Some(slot) => {
                slot.reset(now);
                Reset::Done
            }
            None => Reset::NoSuchSlot,
        }
    }

    fn drop_slot(&self, name: &str) -> std::result::Result<(), (&'static str, String)> {
        let missing = || {
            (
                "42704",
                format!("replication slot \"{name}\" does not exist in the relay"),
            )
        };
        let slot = self.slots().get(name).ok_or_else(missing)?;
        match adoption::drop_slot(slot.active(), &slot.route(), slot.is_adopting()) {
            Drop::InUse(pid) => {
                return Err((
                    "55006",
                    format!("replication slot \"{name}\" is active for PID {pid}"),
                ));
            }
            Drop::Adopting => {
                return Err((
                    "55006",
                    format!(
                        "replication slot \"{name}\" is being taken over from the primary, which \
                         still has it; try again once the primary answers the relay"
                    ),
                ));
            }
            Drop::RemoveBoth => {
                return Err((
                    "55006",
                    format!(
                        "replication slot \"{name}\" goes back to the primary, which has a copy of \
                         it further on; drop both through the relay with DROP_REPLICATION_SLOT or \
                         DROP SUBSCRIPTION"
                    ),
                ));
            }
            Drop::Remove => {}
        }
        match self.slots().remove(name) {
            Ok(true) => {
                info!(slot = name, "dropped by the console");
                slot.end();
                Ok(())
            }
            Ok(false) => Err(missing()),
            Err(failed) => Err(("58030", failed.to_string())),
        }
    }

    fn terminate(&self, id: u64) -> std::result::Result<(), String> {
        let why = Report::fatal(
            "57P01",
            "terminating connection due to administrator command",
        );
        match self.clients.terminate(id, why) {
            Some(client) => {
                info!(
                    session = id,
                    pid = client.pid,
                    user = client.user,
                    "ended by the console"
                );
                Ok(())
            }
            None => Err(format!("there is no session {id}")),
        }
    }

    fn reload(&self) -> std::result::Result<Vec<String>, String> {
        let _one_at_a_time = lock(&self.reloading);
        let old = self.config();
        let new = old.reload().map_err(|error| error.to_string())?;
        let mut said: Vec<String> = old
            .differences(&new)
            .iter()
            .map(|change| change.to_string())
            .collect();
        let config = old.with_reloaded(new);
        // All of it takes effect, or nothing: from here on nothing can fail.
        let terms = terms::read(&config).map_err(|error| error.to_string())?;
        if let (Some(before), Some(now)) = (&self.terms.borrow().tls, &terms.tls) {
            if before.files() == now.files() && !before.shows_same(now) {
                said.push("tls_certificate: what is in the file has changed".to_owned());
            }
        }
        self.around.policy.set(policy(&config));
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        self.terms.send_replace(Arc::new(terms));
        for group in self.all_groups() {
            group.obey();
        }
        *lock(&self.tried) = None;
        Ok(said)
    }

    fn admin_role(&self) -> Option<String> {
        self.config().admin_role
    }
}

/// Has the primary drop a slot, and says what came of it.
pub(crate) fn drop_at_primary(upstream: &mut Connection, slot: &str) -> Event {
    match upstream.drop_slot(slot) {
        Ok(()) => Event::Done,
        Err(error) if may_have_been_done(&error) => {
            warn!(slot, %error, "the primary has not said whether it dropped the slot");
            Event::NoAnswer
        }
        Err(error) => {
            warn!(slot, %error, "the primary keeps the slot");
            Event::Refused
        }
    }
}

/// Whether the server may have done what it was asked: it has not said that it did not, or
/// it ended the session meanwhile.
fn may_have_been_done(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Lost(_)
            | ClientError::Ended(_)
            | ClientError::TimedOut { .. }
            | ClientError::Protocol(_)
    )
}

fn policy(config: &Config) -> Policy {
    Policy {
        limits: Limits {
            cache_bytes: config.logical_wal_cache,
            segment_bytes: SEGMENT_BYTES,
            spool_bytes: Some(config.spool_limit).filter(|&limit| limit > 0),
        },
        on_limit: config.on_spool_limit,
    }
}

fn lock_spool(spool: &Path) -> Result<Flock<File>> {
    let path = spool.join(LOCK_FILE);
    let file = File::create(&path).map_err(|source| slots::file("cannot make", path, source))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| RelayError::SpoolInUse(spool.to_owned()))
}
