//! Who reads, and how far each has confirmed.
//!
//! A slot is here from a subscriber's first `START_REPLICATION` through the relay until it
//! is dropped. The book is one file, `slots.json` in the spool: a line with the CRC-32C of
//! the rest in hexadecimal, then JSON. It is replaced as a whole (written beside, fsynced,
//! renamed, folder fsynced), so a crash leaves the old or the new one; a file whose
//! checksum does not match stops the relay, since serving from a guess could lose
//! transactions.
//!
//! What a slot has confirmed is written lazily, about once a second. After a crash it may
//! be older than what the subscriber confirmed, which costs nothing: subscribers say
//! themselves where they want to go on. Segments of the log are removed only below what
//! is in the file ([`SlotBook::saved`]).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use lockstep_client::SlotState;
use lockstep_spool::kept::{checked, read_text, replace, unchecked};
use lockstep_spool::{Folder, Storage};
use lockstep_wire::Lsn;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::error::{RelayError, Result};
use crate::lock::lock;
use crate::stats::{BLOCK, SlotStat};

/// Most slots that a relay keeps.
pub const MOST_SLOTS: usize = 1024;

/// The book's file.
const FILE: &str = "slots.json";

/// Stands for the primary where a group's name could be: the slot goes back to it.
pub const PRIMARY: &str = "";

/// Where a slot goes on elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// The group, or [`PRIMARY`].
    pub group: String,
    /// Units from here on come from it; those before from the old one.
    pub at: Lsn,
}

/// Which groups a slot reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub group: String,
    /// The group after it, if the subscription was altered and has not got there yet.
    pub next: Option<Switch>,
}

impl Route {
    /// Whether the slot goes back to the primary, which has a copy of it.
    pub fn leaves(&self) -> bool {
        self.next.as_ref().is_some_and(|next| next.group == PRIMARY)
    }
}

/// Who uses a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Active {
    /// The relay's number of the session.
    pub session: u64,
    /// Process number as clients see it.
    pub pid: u32,
}

/// One subscriber's slot.
#[derive(Debug)]
pub struct Slot {
    /// The slot's name, unique in the relay.
    pub name: String,
    pub database: String,
    /// The primary may still have a slot of this name that was adopted, or a copy that the slot
    /// was to go back to and does not.
    adopting: AtomicBool,
    /// Where the primary's slot stood when it was adopted; not known of earlier slots.
    adopted_at: Option<Lsn>,
    /// What the primary may have is no slot that was adopted but a copy, which stands anywhere.
    copying: AtomicBool,
    /// The slot was asked for two-phase commit, and is the primary's as soon as it has caught up.
    two_phase: AtomicBool,
    route: Mutex<Route>,
    active: Mutex<Option<Active>>,
    confirmed: AtomicU64,
    saved: AtomicU64,
    /// What the subscriber last said that it has received; for show only.
    written: AtomicU64,
    /// What it last said that it has applied.
    applied: AtomicU64,
    sent: AtomicU64,
    behind: AtomicU64,
    hit_bytes: AtomicU64,
    miss_bytes: AtomicU64,
    last_reset: AtomicI64,
    ended: watch::Sender<bool>,
    /// The log of the slot's group cannot give it what it needs next.
    failed: AtomicBool,
    /// Why, and how far it was sent then.
    failure: Mutex<(String, Lsn)>,
}

/// What the file keeps of a slot.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    name: String,
    database: String,
    group: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    adopting: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    two_phase: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    adopted_at: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    copying: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_at: Option<String>,
    confirmed: String,
}

impl Slot {
    fn new(name: &str, database: &str, route: Route, confirmed: Lsn, now_unix_us: i64) -> Self {
        let confirmed = u64::from(confirmed);
        Self {
            name: name.to_owned(),
            database: database.to_owned(),
            adopting: AtomicBool::new(false),
            adopted_at: None,
            copying: AtomicBool::new(false),
            two_phase: AtomicBool::new(false),
            route: Mutex::new(route),
            active: Mutex::new(None),
            confirmed: AtomicU64::new(confirmed),
            saved: AtomicU64::new(confirmed),
            written: AtomicU64::new(confirmed),
            applied: AtomicU64::new(confirmed),
            sent: AtomicU64::new(confirmed),
            behind: AtomicU64::new(0),
            hit_bytes: AtomicU64::new(0),
            miss_bytes: AtomicU64::new(0),
            last_reset: AtomicI64::new(now_unix_us),
            ended: watch::Sender::new(false),
            failed: AtomicBool::new(false),
            failure: Mutex::default(),
        }
    }

    /// Which groups the slot reads.
    pub fn route(&self) -> Route {
        lock(&self.route).clone()
    }

    /// Whether the primary may still have the slot that it was, or a copy of no use.
    pub fn is_adopting(&self) -> bool {
        self.adopting.load(Ordering::Acquire)
    }

    /// Whether a slot that the primary has under its name is the one that was adopted, to be
    /// dropped there: nobody uses that, and it stands where it stood. Or a copy that it was to
    /// go back to.
    pub fn was(&self, found: &SlotState) -> bool {
        let stands = match self.adopted_at {
            _ if self.copying.load(Ordering::Acquire) => true,
            Some(at) => found.confirmed == at,
            None => found.confirmed <= self.confirmed(),
        };
        stands
            && found.plugin.as_deref() == Some("pgoutput")
            && found.database.as_ref() == Some(&self.database)
            && !found.temporary
            && found.active_pid.is_none()
    }

    /// Notes that its group's log cannot give it what it needs next.
    pub fn fail(&self, why: String) {
        let sent = self.sent.load(Ordering::Relaxed).into();
        *lock(&self.failure) = (why, sent);
        self.failed.store(true, Ordering::Release);
    }

    /// Why it can never go on; empty if it can.
    fn failure(&self) -> String {
        match self.failed.load(Ordering::Acquire) {
            true => lock(&self.failure).0.clone(),
            false => String::new(),
        }
    }

    /// Whether two-phase commit was asked for, in this session or an earlier one.
    pub fn is_two_phase(&self) -> bool {
        self.two_phase.load(Ordering::Acquire)
    }

    /// The position that the subscriber has confirmed.
    pub fn confirmed(&self) -> Lsn {
        self.confirmed.load(Ordering::Acquire).into()
    }

    /// What of that is in the file.
    pub fn saved(&self) -> Lsn {
        self.saved.load(Ordering::Acquire).into()
    }

    /// Notes a confirmation; positions never go back.
    pub fn confirm(&self, lsn: Lsn) {
        self.confirmed.fetch_max(lsn.into(), Ordering::AcqRel);
    }

    /// Notes what the subscriber says that it has received and applied.
    pub fn note(&self, written: Lsn, applied: Lsn) {
        self.written.store(written.into(), Ordering::Relaxed);
        self.applied.store(applied.into(), Ordering::Relaxed);
    }

    /// What the subscriber has applied, also while it is not there: what is durable is applied.
    pub fn applied(&self) -> Lsn {
        let said = Lsn::from(self.applied.load(Ordering::Relaxed));
        said.max(self.confirmed())
    }

    /// Notes how far its session is, and how many bytes of the log are still ahead of it.
    pub fn progress(&self, sent: Lsn, behind: u64) {
        self.sent.store(sent.into(), Ordering::Relaxed);
        self.behind.store(behind, Ordering::Relaxed);
        // Each session comes as far as the last one.
        if self.failed.load(Ordering::Acquire) && sent > lock(&self.failure).1 {
            self.failed.store(false, Ordering::Release);
        }
    }

    /// Counts bytes handed out from memory and from the spool.
    pub fn count(&self, hit_bytes: u64, miss_bytes: u64) {
        self.hit_bytes.fetch_add(hit_bytes, Ordering::Relaxed);
        self.miss_bytes.fetch_add(miss_bytes, Ordering::Relaxed);
    }

    /// Begins its statistics anew.
    pub fn reset(&self, now_unix_us: i64) {
        self.hit_bytes.store(0, Ordering::Relaxed);
        self.miss_bytes.store(0, Ordering::Relaxed);
        self.last_reset.store(now_unix_us, Ordering::Relaxed);
    }

    /// The slot is gone: its session must end.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Turns true when the slot is gone.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// The session that uses the slot.
    pub fn active(&self) -> Option<Active> {
        *lock(&self.active)
    }

    /// Takes it for a session, or says who has it.
    pub fn acquire(self: &Arc<Self>, session: u64, pid: u32) -> Result<InUse, Active> {
        let mut active = lock(&self.active);
        match *active {
            Some(other) => Err(other),
            None => {
                *active = Some(Active { session, pid });
                drop(active);
                Ok(InUse(self.clone()))
            }
        }
    }

    pub fn stat(&self) -> SlotStat {
        let confirmed = self.confirmed();
        let written = Lsn::from(self.written.load(Ordering::Relaxed));
        SlotStat {
            name: self.name.clone(),
            database: self.database.clone(),
            group: self.route().group,
            active_pid: self.active().map(|active| active.pid),
            reason: self.failure(),
            sent: self.sent.load(Ordering::Relaxed).into(),
            // What was confirmed is beyond doubt, also while nobody is connected.
            written: written.max(confirmed),
            applied: self.applied(),
            confirmed,
            behind_bytes: self.behind.load(Ordering::Relaxed),
            cache_hit: self.hit_bytes.load(Ordering::Relaxed).div_ceil(BLOCK),
            cache_miss: self.miss_bytes.load(Ordering::Relaxed).div_ceil(BLOCK),
            last_reset_unix_us: self.last_reset.load(Ordering::Relaxed),
        }
    }

    fn keep(&self, route: Route) -> (Kept, Lsn) {
        let confirmed = self.confirmed();
        let (next_group, next_at) = route
            .next
            .map(|next| (next.group, next.at.to_string()))
            .unzip();
        let kept = Kept {
            name: self.name.clone(),
            database: self.database.clone(),
            group: route.group,
            adopting: self.is_adopting(),
            adopted_at: self.adopted_at.map(|at| at.to_string()),
            copying: self.copying.load(Ordering::Acquire),
            two_phase: self.is_two_phase(),
            next_group,
            next_at,
            confirmed: confirmed.to_string(),
        };
        (kept, confirmed)
    }
}

/// A slot in use; given back when dropped.
#[derive(Debug)]
pub struct InUse(Arc<Slot>);

impl InUse {
    pub fn slot(&self) -> &Arc<Slot> {
        &self.0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        *lock(&self.0.active) = None;
    }
}

#[derive(Debug)]
pub struct SlotBook<S: Storage = Folder> {
    storage: S,
    /// The file, for errors.
    path: PathBuf,
    slots: Mutex<BTreeMap<String, Arc<Slot>>>,
    /// Held while the file is written: an older state must not replace a newer one.
    writing: Mutex<()>,
    /// See [`SlotBook::hold`].
    holding: Mutex<()>,
}

/// Why a slot was not added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAdded {
    /// The name is taken, or there are [`MOST_SLOTS`].
    NoPlace,
    /// The group does not have everything that the slot needs any more.
    TooLate,
}

impl SlotBook {
    /// Reads the book in a spool; there is none yet in a new one.
    pub fn open(folder: &Path, now_unix_us: i64) -> Result<Self> {
        Self::read(Folder::new(folder), folder.join(FILE), now_unix_us)
    }
}

impl<S: Storage> SlotBook<S> {
    /// Reads the book in a storage; there is none yet in a new one. Errors call its file
    /// `path`.
    pub fn read(storage: S, path: PathBuf, now_unix_us: i64) -> Result<Self> {
        let kept = match read_text(&storage, FILE) {
            Ok(text) => parse(&text).map_err(|why| RelayError::Damaged {
                path: path.clone(),
                why,
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(file("cannot read", path, source)),
        };
        let slots = kept
            .into_iter()
            .map(|(kept, route, confirmed)| {
                let mut slot = Slot::new(&kept.name, &kept.database, route, confirmed, now_unix_us);
                // One that cannot be read belongs to no slot that could be dropped.
                let at = kept.adopted_at.as_deref();
                slot.adopted_at = at.map(|at| at.parse().unwrap_or_default());
                slot.copying.store(kept.copying, Ordering::Release);
                slot.adopting.store(kept.adopting, Ordering::Release);
                slot.two_phase.store(kept.two_phase, Ordering::Release);
                (kept.name, Arc::new(slot))
            })
            .collect();
        Ok(Self {
            storage,
            path,
            slots: Mutex::new(slots),
            writing: Mutex::new(()),
            holding: Mutex::new(()),
        })
    }

    pub fn get(&self, name: &str) -> Option<Arc<Slot>> {
        lock(&self.slots).get(name).cloned()
    }

    /// All slots, by name.
    pub fn all(&self) -> Vec<Arc<Slot>> {
        lock(&self.slots).values().cloned().collect()
    }

    /// While this is held no segment of a log is removed, and no slot is added that might
    /// need it. Taken before any lock of a log.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        lock(&self.holding)
    }

    /// Adds a slot that the primary still has, durably: [`SlotBook::adopted`] is to follow
    /// once that is dropped. `reaches` says whether its group has everything from
    /// `confirmed` on; from then on it is kept for the slot.
    pub fn add(
        &self,
        name: &str,
        database: &str,
        route: Route,
        confirmed: Lsn,
        now_unix_us: i64,
        reaches: impl FnOnce() -> bool,
    ) -> Result<Result<Arc<Slot>, NotAdded>> {
        let mut slot = Slot::new(name, database, route, confirmed, now_unix_us);
        slot.adopting.store(true, Ordering::Release);
        slot.adopted_at = Some(confirmed);
        let slot = Arc::new(slot);
        {
            let _held = self.hold();
            if !reaches() {
                return Ok(Err(NotAdded::TooLate));
            }
            let mut slots = lock(&self.slots);
            if slots.contains_key(name) || slots.len() >= MOST_SLOTS {
                return Ok(Err(NotAdded::NoPlace));
            }
            slots.insert(name.to_owned(), slot.clone());
        }
        if let Err(error) = self.save() {
            lock(&self.slots).remove(name);
            return Err(error);
        }
        Ok(Ok(slot))
    }

    /// The primary does not have the slot any more.
    pub fn adopted(&self, slot: &Slot) -> Result<()> {
        slot.adopting.store(false, Ordering::Release);
        self.save()
            .inspect_err(|_| slot.adopting.store(true, Ordering::Release))
    }

    /// Removes a slot, durably; false if there is none. While the file may have it, what it
    /// needs is kept.
    pub fn remove(&self, name: &str) -> Result<bool> {
        self.remove_if(name, |_| true)
    }

    /// Removes a slot if it may be: what [`SlotBook::copying`] says does not change meanwhile.
    pub fn remove_if(&self, name: &str, may_be: impl FnOnce(&Slot) -> bool) -> Result<bool> {
        let _writing = lock(&self.writing);
        if !self.get(name).is_some_and(|slot| may_be(&slot)) {
            return Ok(false);
        }
        self.write(&Change::Without(name))?;
        lock(&self.slots).remove(name);
        Ok(true)
    }

    /// Notes whether two-phase commit is asked for, durably.
    pub fn note_two_phase(&self, slot: &Slot, two_phase: bool) -> Result<()> {
        let old = slot.two_phase.swap(two_phase, Ordering::AcqRel);
        if old == two_phase {
            return Ok(());
        }
        self.save()
            .inspect_err(|_| slot.two_phase.store(old, Ordering::Release))
    }

    /// Sends a slot another way, durably. `reaches` says whether what it newly reads is there;
    /// from then on it is kept for the slot. False if it is not there any more.
    pub fn reroute(
        &self,
        slot: &Slot,
        route: Route,
        reaches: impl FnOnce() -> bool,
    ) -> Result<bool> {
        // After a crash the file has the old way or the new one: both are kept meanwhile.
        let _held = self.hold();
        if !reaches() {
            return Ok(false);
        }
        let _writing = lock(&self.writing);
        self.write(&Change::Route(&slot.name, &route))?;
        *lock(&slot.route) = route;
        Ok(true)
    }

    /// The primary is about to make a slot of this name, durably: [`SlotBook::copied`] or
    /// [`SlotBook::adopted`] is to follow. False if the slot was dropped meanwhile.
    pub fn copying(&self, slot: &Slot) -> Result<bool> {
        let _writing = lock(&self.writing);
        if self.get(&slot.name).is_none() {
            return Ok(false);
        }
        slot.copying.store(true, Ordering::Release);
        slot.adopting.store(true, Ordering::Release);
        self.write(&Change::Nothing)?;
        Ok(true)
    }

    /// The primary has a copy of the slot, to which this route leads, durably. If that fails the
    /// file may say that the copy is of no use, which holds as well: the slot is the relay's.
    pub fn copied(&self, slot: &Slot, route: Route) -> Result<()> {
        *lock(&slot.route) = route;
        slot.adopting.store(false, Ordering::Release);
        self.save()
    }

    /// The lowest position that any slot of a group needs according to the file; None if
    /// the group has no slots.
    pub fn saved(&self, group: &str) -> Option<Lsn> {
        let reads = |slot: &Arc<Slot>| {
            let route = slot.route();
            if route.group == group {
                return Some(slot.saved());
            }
            route
                .next
                .filter(|next| next.group == group)
                .map(|next| next.at.max(slot.saved()))
        };
        self.all().iter().filter_map(reads).min()
    }

    /// The lowest position that subscribers of a group have applied; None if there is none.
    /// Of those in `named` only, if there are any: one that has no slot has applied nothing.
    pub fn applied(&self, group: &str, named: &[String]) -> Option<Lsn> {
        let applied = |slot: &Slot| {
            let route = slot.route();
            if route.group == group {
                return Some(slot.applied());
            }
            // It needs nothing of its next group before the position where it changes over.
            let next = route.next.filter(|next| next.group == group);
            next.map(|next| next.at.max(slot.applied()))
        };
        if named.is_empty() {
            return self.all().iter().filter_map(|slot| applied(slot)).min();
        }
        let of = |name: &String| self.get(name).and_then(|slot| applied(&slot));
        named
            .iter()
            .map(|name| of(name).unwrap_or(Lsn::INVALID))
            .min()
    }

    /// The slot of a group that has confirmed least.
    pub fn slowest(&self, group: &str) -> Option<Arc<Slot>> {
        self.all()
            .into_iter()
            .filter(|slot| slot.route().group == group)
            .min_by_key(|slot| slot.confirmed())
    }

    /// Writes the file if any slot has confirmed more than it says.
    pub fn save_if_moved(&self) -> Result<()> {
        match self
            .all()
            .iter()
            .any(|slot| slot.confirmed() > slot.saved())
        {
            true => self.save(),
            false => Ok(()),
        }
    }

    pub fn save(&self) -> Result<()> {
        let _writing = lock(&self.writing);
        self.write(&Change::Nothing)
    }

    /// Writes the file with a change that memory does not have yet. Under `writing`.
    fn write(&self, change: &Change<'_>) -> Result<()> {
        let mut slots = self.all();
        if let Change::Without(name) = change {
            slots.retain(|slot| slot.name != *name);
        }
        let keep = |slot: &Arc<Slot>| match change {
            Change::Route(name, route) if slot.name == *name => slot.keep((*route).clone()),
            _ => slot.keep(slot.route()),
        };
        let (kept, positions): (Vec<Kept>, Vec<Lsn>) = slots.iter().map(keep).unzip();
        let json = serde_json::to_string_pretty(&kept).map_err(|error| RelayError::Damaged {
            path: self.path.clone(),
            why: error.to_string(),
        })?;
        replace(&self.storage, FILE, &checked(&json))
            .map_err(|source| file("cannot write", self.path.clone(), source))?;
        for (slot, confirmed) in slots.iter().zip(positions) {
            slot.saved.store(confirmed.into(), Ordering::Release);
        }
        Ok(())
    }
}

/// What the file gets before memory has it.
enum Change<'a> {
    Nothing,
    /// A slot is not there any more.
    Without(&'a str),
    /// A slot goes another way.
    Route(&'a str, &'a Route),
}

fn parse(text: &str) -> Result<Vec<(Kept, Route, Lsn)>, String> {
    let kept: Vec<Kept> =
        serde_json::from_str(unchecked(text)?).map_err(|error| error.to_string())?;
    kept.into_iter()
        .map(|kept| {
            let lsn = |text: &str| text.parse::<Lsn>().map_err(|error| error.to_string());
            let confirmed = lsn(&kept.confirmed)?;
            let next = match (&kept.next_group, &kept.next_at) {
                (Some(group), Some(at)) => Some(Switch {
                    group: group.clone(),
                    at: lsn(at)?,
                }),
                _ => None,
            };
            let route = Route {
                group: kept.group.clone(),
                next,
            };
            Ok((kept, route, confirmed))
        })
        .collect()
}

pub(crate) fn file(what: &'static str, path: PathBuf, source: std::io::Error) -> RelayError {
    RelayError::File { what, path, source }
}
