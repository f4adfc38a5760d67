//! How groups come and go: opened from a spool or made anew, and removed.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockstep_intake::continuity::written_history;
use lockstep_spool::{FileStorage, Folder, Hole, Log, Storage};
use lockstep_wire::Lsn;
use tokio::sync::watch;
use tracing::{error, warn};

use super::file::{self, FILE, Kept};
use super::{Group, GroupKey, Origin, Phase, Surroundings};
use crate::config::Plugin;
use crate::error::{RelayError, Result};
use crate::output_settings::OutputSettings;
use crate::slots::{self, Slot, SlotBook};
use crate::stats::{GroupStat, GroupState};
use crate::synchronous::Synchronous;
use crate::upstream_slot::{self, Wanted};

/// Folder of all groups in a spool.
const FOLDER: &str = "groups";

/// Folder of a group's log.
const LOG: &str = "log";

/// How long the walsender of a group that is removed may take to end, and how often that is tried.
const LONGEST_END: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A group of the spool that cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    pub name: String,
    /// Why, and what to do.
    pub reason: String,
}

impl Group {
    /// Opens all groups of a spool, and says which cannot be opened.
    pub fn open_all(around: &Surroundings) -> Result<(Vec<Self>, Vec<Damaged>)> {
        let folder = around.spool.join(FOLDER);
        make_folder(&folder)?;
        let failed = |source| slots::file("cannot list", folder.clone(), source);
        let (mut groups, mut damaged) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.join(FILE).exists() {
                match Self::open(path.clone(), around) {
                    Ok(group) => groups.push(group),
                    Err(why) => damaged.push(Damaged::new(&path, &why)),
                }
            } else {
                warn!(folder = %path.display(), "removing what is left of a group that was never complete");
                fs::remove_dir_all(&path)
                    .map_err(|source| slots::file("cannot remove", path, source))?;
            }
        }
        Ok((groups, damaged))
    }

    fn open(folder: PathBuf, around: &Surroundings) -> Result<Self> {
        let kept = file::read(&folder)?;
        let storage = storage(&folder)?;
        let (log, recovered) =
            Log::open(storage, around.policy.get().limits).map_err(|source| RelayError::Log {
                group: kept.name.clone(),
                source,
            })?;
        if recovered.dropped_bytes > 0 {
            warn!(
                group = kept.name,
                bytes = recovered.dropped_bytes,
                "dropped what was not durable at the end of the spool; the primary sends it again"
            );
        }
        if kept.key.output == OutputSettings::default() {
            warn!(
                group = kept.name,
                "the group was made by an earlier version, whose streams had the settings of the \
                 relay's role (TimeZone, bytea_output and others): its subscribers go on in another \
                 group. If it is in the configuration, stop the relay once nobody reads it (SHOW \
                 SLOTS), remove its folder, and start the relay again"
            );
        }
        for hole in &recovered.holes {
            tell_hole(&kept.name, hole, &around.slots);
        }
        Self::with(folder, kept, log, around)
    }

    /// Makes a group: its slot on the primary, its folder, its file.
    pub fn create(
        name: &str,
        key: &GroupKey,
        plugin: Plugin,
        origin: Origin<'_>,
        around: &Surroundings,
    ) -> Result<Self> {
        let groups = around.spool.join(FOLDER);
        let folder = groups.join(name);
        if folder.join(FILE).exists() {
            return Err(RelayError::Gap(format!(
                "the spool has another group in {}: if it is damaged, mend it, or stop the relay \
                 and remove the folder",
                folder.display()
            )));
        }
        let mut upstream = around.primary.connect(&key.database)?;
        let identity = upstream.identify()?;
        let history = upstream.timeline_history(identity.timeline)?;
        let database_oid = upstream.database_oid()?;
        let wanted = Wanted {
            group: name,
            database: &key.database,
            plugin,
            origin,
            failover: around.failover,
        };
        let slot = upstream_slot::make(&mut upstream, &around.identity, wanted)?;
        let kept = Kept {
            name: name.to_owned(),
            key: key.clone(),
            database_oid: Some(database_oid),
            upstream_slot: slot.name.clone(),
            plugin: slot.plugin,
            system: identity.system.into(),
            timeline: identity.timeline.get(),
            history: Some(written_history(&history)),
            start: slot.start.to_string(),
        };
        Self::in_folder(&groups, folder.clone(), kept, slot.start, around).inspect_err(|_| {
            let _ = fs::remove_dir_all(&folder);
            // Nobody would confirm anything to it. If this fails the next try drops it.
            if let Err(failed) = upstream.drop_slot(&slot.name) {
                warn!(
                    slot = slot.name,
                    error = %failed,
                    "cannot drop the slot of a group that could not be made"
                );
            }
        })
    }

    /// Makes a new group's folder, all of it durable.
    fn in_folder(
        groups: &Path,
        folder: PathBuf,
        kept: Kept,
        start: Lsn,
        around: &Surroundings,
    ) -> Result<Self> {
        make_folder(&folder)?;
        let failed = |source| slots::file("cannot make durable", groups.to_owned(), source);
        Folder::new(groups).sync().map_err(failed)?;
        let log = Log::create(storage(&folder)?, around.policy.get().limits, start).map_err(
            |source| RelayError::Log {
                group: kept.name.clone(),
                source,
            },
        )?;
        file::write(&folder, &kept)?;
        Self::with(folder, kept, log, around)
    }

    fn with(
        folder: PathBuf,
        kept: Kept,
        log: Log<FileStorage>,
        around: &Surroundings,
    ) -> Result<Self> {
        let start = kept.start.parse().map_err(|_| RelayError::Damaged {
            path: folder.join(FILE),
            why: format!("\"{}\" is no position", kept.start),
        })?;
        Ok(Self {
            key: kept.key.clone(),
            name: kept.name.clone(),
            upstream_slot: kept.upstream_slot.clone(),
            plugin: kept.plugin.clone(),
            kept: Mutex::new(kept),
            start,
            folder,
            primary: around.primary.clone(),
            slots: around.slots.clone(),
            policy: around.policy.clone(),
            failover: around.failover,
            synchronous: Synchronous::default(),
            said_too_old: AtomicBool::new(false),
            broken: around.broken.clone(),
            phase: watch::Sender::new(Phase::Connecting),
            reason: Mutex::new(String::new()),
            said: Mutex::new(None),
            sent: AtomicU64::new(0),
            // Of a log from before a restart this is not known; not earlier than that.
            committed: AtomicU64::new(log.received().into()),
            units: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            readers: AtomicUsize::new(0),
            to_spare: AtomicBool::new(false),
            lacks_walsender: AtomicBool::new(false),
            log: Arc::new(log),
        })
    }

    /// Removes the group: its slot on the primary, then its folder. Its receiver must have
    /// ended, and no subscriber may use it.
    pub fn remove(&self) -> Result<()> {
        let mut upstream = self.primary.connect_for_sql(&self.key.database)?;
        let began = Instant::now();
        while upstream.slot(&self.upstream_slot)?.is_some() {
            match upstream.drop_slot(&self.upstream_slot) {
                // The walsender has not noticed yet that its stream has ended.
                Err(error) if error.slot_in_use() && began.elapsed() < LONGEST_END => {
                    std::thread::sleep(LOOK_EVERY);
                }
                dropped => dropped?,
            }
        }
        // First its file: what a crash leaves is then removed at the next start.
        let there = |removed: std::io::Result<()>| match removed {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        there(fs::remove_file(self.folder.join(FILE)))
            .and_then(|()| there(fs::remove_dir_all(&self.folder)))
            .map_err(|source| slots::file("cannot remove", self.folder.clone(), source))
    }
}

impl Damaged {
    fn new(folder: &Path, why: &RelayError) -> Self {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let reason = format!(
            "the group cannot be opened: {why}; the others go on. Repair it and start the relay \
             again, or stop the relay, remove {} and synchronize the group's subscriptions again",
            folder.display()
        );
        Self {
            name: name.into_owned(),
            reason,
        }
    }

    pub fn stat(&self) -> GroupStat {
        GroupStat {
            name: self.name.clone(),
            state: GroupState::Failed,
            reason: self.reason.clone(),
            watched: true,
            ..GroupStat::default()
        }
    }
}

/// Says what of a group's log cannot be read and which slots need it: those cannot go on.
fn tell_hole(group: &str, hole: &Hole, slots: &SlotBook) {
    let needs = |slot: &Arc<Slot>| {
        slot.route().group == group && hole.to.is_none_or(|to| slot.confirmed() < to)
    };
    let concerned: Vec<Arc<Slot>> = slots.all().into_iter().filter(needs).collect();
    let names: Vec<&str> = concerned.iter().map(|slot| slot.name.as_str()).collect();
    let until = hole
        .to
        .map_or_else(String::new, |to| format!(" and before {to}"));
    let (segment, from, what) = (hole.segment, hole.from, hole.what);
    error!(
        group,
        slots = names.join(", "),
        "spool segment {segment} is damaged ({what}): changes after {from}{until} are lost to these \
         slots, whose subscriptions must be synchronised anew; others go on"
    );
    for slot in concerned {
        slot.fail(format!(
            "spool segment {segment} is damaged ({what}): changes after {from}{until} cannot be read"
        ));
    }
}

fn storage(folder: &Path) -> Result<FileStorage> {
    let folder = folder.join(LOG);
    FileStorage::new(&folder).map_err(|source| slots::file("cannot open", folder, source))
}

/// A folder that only we can enter.
pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|source| slots::file("cannot make", folder.to_owned(), source))
}
