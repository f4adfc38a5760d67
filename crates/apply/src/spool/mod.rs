//! A replica's spool: what its slot sends is kept on disk here, however the target does, so that the
//! source need not keep it.
//!
//! ```text
//! source ──stream──> intake ──> log: segments on disk │ memory ──> feed ──> session ──> target
//!    ^                 │ flushed: durable in the log                          │
//!    └─────────────────┴ applied: committed on the target <───────────────────┘
//! ```
//!
//! The log (crate `spool`) and what receives it (crate `intake`) are those of the relay; [`host`] is what
//! differs. What must stay true:
//! - **Flushed is durable here.** The source is told that something is flushed only once the log has
//!   it on disk. So the slot never confirms more than the log holds, and the stream goes on at the
//!   log's end.
//! - **The log has no gap.** The stream is asked for from where the slot stands, which must not be
//!   beyond the log's end: what lies in between would be missing without a trace.
//! - **The log is the source's.** What the source sends again must be what the log has, as far as the
//!   log still has it. Until that is known nothing is stored or confirmed.
//! - **The target decides where reading begins**: at its origin's position, which every segment that
//!   may be needed outlives. One that stands before the log's beginning was set back, which is an
//!   error. One that stands beyond its end needs nothing of it: the log is begun anew there.
//! - **The spool belongs to one replica** ([`identity`]). A segment that is missing or damaged is an
//!   error once it is needed, never skipped.
//!
//! Locks: one mutex for all of [`SpoolState`], held over I/O while the log is made, cut or opened
//! for reading, and while it is written whose it is.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockstep_intake::continuity::FollowedSource;
use lockstep_service::waker::Waker;
use lockstep_spool::{FileStorage, Folder, Limits, Log, LogError, Storage};
use lockstep_wire::{Lsn, Timeline};
use tracing::{info, warn};

use crate::control::{Control, Event, SpoolStats};
use crate::error::{ApplyError, Result};
use crate::failpoint;

pub mod identity;

mod feed;
pub mod host;

pub(crate) use feed::Feed;
pub use feed::{Arrived, Content, FromSpool};
pub use host::take_in;
pub use identity::{Identity, Owner};

/// Least size of a spool.
pub const LEAST_LIMIT: u64 = 1 << 20;

/// The newest part of the stream stays in memory: an apply that keeps up reads no file.
const CACHE: u64 = 4 << 20;

/// What names of segments have, also of unfinished and damaged ones.
const SEGMENTS: &str = ".spool";

/// A segment of this size is followed by another.
const SEGMENT: u64 = 16 << 20;

/// Where a spool is, and how large it may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolConfig {
    pub folder: PathBuf,
    /// Most bytes of its segments.
    pub limit: u64,
}

/// A handle on a replica's spool; clones are the same. One process has it at a time.
#[derive(Clone)]
pub struct Spool<S: Storage = Folder>(Arc<Inner<S>>);

impl<S: Storage> fmt::Debug for Spool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Spool").field(&self.0.config).finish()
    }
}

struct Inner<S: Storage> {
    config: SpoolConfig,
    storage: S,
    state: Mutex<SpoolState<S>>,
    changed: Condvar,
    /// The source's timeline at the log's end; 0 if it is not known.
    timeline: AtomicU32,
    /// Holds the folder's lock. A simulation has none.
    _lock: Option<FileStorage>,
}

struct SpoolState<S: Storage> {
    identity: Option<Identity>,
    log: Option<Arc<Log<S>>>,
    /// The segment that was cut when the log was opened, as its end was not whole.
    cut: Option<PathBuf>,
    /// A stream into this log was begun.
    joined: bool,
    /// The target has said where it stands.
    anchored: bool,
    /// What the target has committed, and has on disk.
    applied: Lsn,
    flushed: Lsn,
    /// The source is to be asked for an answer.
    ask: bool,
    stop: bool,
    /// Nothing is taken in until the log is begun anew or looked at again: what stands in the log can still
    /// be applied.
    halted: bool,
    /// What begins here or later cannot be read, and why.
    damage: Option<(Lsn, String)>,
    /// Why, until a reader ends with it.
    refused: Option<ApplyError>,
    intake: Option<Waker>,
    /// Who reads, and whether it was told of news that it has not looked at.
    reader: Option<Sender<Event>>,
    reader_told: bool,
}

impl<S: Storage> SpoolState<S> {
    fn has(&self, log: &Arc<Log<S>>) -> bool {
        self.log.as_ref().is_some_and(|now| Arc::ptr_eq(now, log))
    }
}

fn spool_error(words: String) -> ApplyError {
    ApplyError::Spool(words)
}

impl Spool {
    /// Opens the folder, which is made if it does not exist. What is not whole at the log's end is cut
    /// off; it was never confirmed.
    pub fn open(config: &SpoolConfig) -> Result<Self> {
        let folder = &config.folder;
        let shown = folder.display();
        // It would be closed to others, which might need it.
        if is_something_else(folder) {
            return Err(spool_error(format!(
                "{shown} is not empty and no spool; give spool_dir a folder of its own"
            )));
        }
        let lock = FileStorage::new(folder).map_err(|error| {
            spool_error(match error.kind() {
                std::io::ErrorKind::WouldBlock => format!(
                    "another process uses the spool {shown}; end it first, or give each replica a \
                     spool_dir of its own"
                ),
                _ => format!("the spool {shown} cannot be used: {error}"),
            })
        })?;
        Self::over(Folder::new(folder), config, Some(lock))
    }
}

impl<S: Storage + Clone> Spool<S> {
    /// Opens what a storage holds, which nobody else uses.
    pub fn over(storage: S, config: &SpoolConfig, lock: Option<FileStorage>) -> Result<Self> {
        let folder = &config.folder;
        let damaged = |why| {
            let file = folder.join(identity::FILE);
            spool_error(format!(
                "spool file {} cannot be read ({why}), so it is not known whose spool this is; {}",
                file.display(),
                again(folder)
            ))
        };
        let identity = identity::read(&storage).map_err(damaged)?;
        let (log, cut) = match &identity {
            Some(identity) if !identity.begun => {
                wipe(&storage, folder)?;
                (None, None)
            }
            _ => open_log(&storage, config, identity.as_ref())?,
        };
        let timeline = identity.as_ref().and_then(|identity| identity.timeline);
        Ok(Self(Arc::new(Inner {
            config: config.clone(),
            storage,
            state: Mutex::new(SpoolState {
                identity,
                log,
                cut,
                joined: false,
                anchored: false,
                applied: Lsn::INVALID,
                flushed: Lsn::INVALID,
                ask: false,
                stop: false,
                halted: false,
                damage: None,
                refused: None,
                intake: None,
                reader: None,
                reader_told: false,
            }),
            changed: Condvar::new(),
            timeline: AtomicU32::new(timeline.map_or(0, Timeline::get)),
            _lock: lock,
        })))
    }
}

impl<S: Storage> Spool<S> {
    fn state(&self) -> MutexGuard<'_, SpoolState<S>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder(&self) -> &Path {
        &self.0.config.folder
    }

    /// The log; None while there is none.
    pub fn log(&self) -> Option<Arc<Log<S>>> {
        self.state().log.clone()
    }

    /// Whose it is, once something was kept.
    pub fn identity(&self) -> Option<Identity> {
        self.state().identity.clone()
    }

    /// An error if it is another's. Notes where the source is.
    fn belongs_to(&self, owner: &Owner, source: &str) -> Result<()> {
        let mut state = self.state();
        let Some(identity) = &mut state.identity else {
            return Ok(());
        };
        let file = self.folder().join(identity::FILE);
        let (file, theirs) = (file.display(), &identity.owner);
        if theirs != owner {
            let system = |owner: &Owner| owner.system.clone().unwrap_or_else(|| "?".to_owned());
            return Err(spool_error(format!(
                "the spool belongs to another replica: {file} names replica \"{}\" with slot \"{}\" of \
                 cluster {}, and this is replica \"{}\" with slot \"{}\" of cluster {}; give it a \
                 spool_dir of its own, or remove that folder if nobody needs it any more",
                theirs.replica,
                theirs.slot,
                system(theirs),
                owner.replica,
                owner.slot,
                system(owner),
            )));
        }
        if identity.source != source {
            let moved = Identity {
                source: source.to_owned(),
                ..identity.clone()
            };
            self.keep(&moved)?;
            *identity = moved;
        }
        Ok(())
    }

    fn keep(&self, identity: &Identity) -> Result<()> {
        let written = identity.write(&self.0.storage);
        written.map_err(|error| {
            let file = self.folder().join(identity::FILE);
            spool_error(format!(
                "spool file {} cannot be written: {error}",
                file.display()
            ))
        })
    }

    /// Reads from where the target stands. The log is begun there if there is none, or if the target
    /// needs nothing of it. `news` hears of what arrives.
    pub fn read(
        &self,
        known: &FollowedSource,
        owner: Owner,
        source: &str,
        news: Sender<Event>,
    ) -> Result<FromSpool<S>>
    where
        S: Clone,
    {
        self.belongs_to(&owner, source)?;
        let mut state = self.state();
        let log = match &state.log {
            Some(log) if state.joined || known.received <= log.received() => Arc::clone(log),
            _ => self.begin(&mut state, known, owner, source)?,
        };
        let read = FromSpool::new(self.clone(), log, known.received).map_err(|error| match error {
            LogError::Gone { from, oldest } => spool_error(format!(
                "the spool {} begins at {oldest}, and the target has only what the source had at \
                 {from}: the target was set back, or files of the spool were removed; {}",
                self.folder().display(),
                again(self.folder())
            )),
            other => self.error(other),
        })?;
        state.anchored = true;
        // Also one that was set back: what it needs again is kept from now on.
        (state.applied, state.flushed) = (known.received, known.received);
        // What was refused while the target was away may be right now.
        if !state.joined {
            state.halted = false;
            state.refused = None;
        }
        state.reader = Some(news);
        state.reader_told = false;
        drop(state);
        self.wake_intake();
        Ok(read)
    }

    /// Begins the log where the target stands.
    fn begin(
        &self,
        state: &mut SpoolState<S>,
        known: &FollowedSource,
        owner: Owner,
        source: &str,
    ) -> Result<Arc<Log<S>>>
    where
        S: Clone,
    {
        let folder = self.folder();
        let mut identity = Identity {
            owner,
            source: source.to_owned(),
            timeline: known.timeline,
            history: known.history.clone(),
            begun: false,
        };
        // A crash in between begins anew.
        self.keep(&identity)?;
        state.identity = Some(identity.clone());
        failpoint::SPOOL_NAMED.reach();
        state.cut = None;
        state.damage = None;
        if let Some(old) = state.log.take() {
            let end = old.received();
            info!(folder = %folder.display(), %end, stands = %known.received, "the target needs nothing of \
                  the spool, which begins empty");
        }
        wipe(&self.0.storage, folder)?;
        let storage = self.0.storage.clone();
        let log = Log::create(storage, limits(&self.0.config), known.received);
        let log = Arc::new(log.map_err(|error| self.error(error))?);
        failpoint::SPOOL_MADE.reach();
        identity.begun = true;
        self.keep(&identity)?;
        self.set_timeline(known.timeline);
        state.identity = Some(identity);
        state.log = Some(Arc::clone(&log));
        state.joined = false;
        Ok(log)
    }

    /// The source's timeline at the end of the log.
    pub fn timeline(&self) -> Option<Timeline> {
        Timeline::new(self.0.timeline.load(Ordering::Acquire))
    }

    fn set_timeline(&self, timeline: Option<Timeline>) {
        let number = timeline.map_or(0, Timeline::get);
        self.0.timeline.store(number, Ordering::Release);
    }

    /// How far the target is. `ask`: the source is to answer, which says how far its WAL goes.
    pub fn tell(&self, applied: Lsn, flushed: Lsn, ask: bool) {
        let mut state = self.state();
        let moved = (state.applied, state.flushed) != (applied, flushed);
        (state.applied, state.flushed) = (applied, flushed);
        state.ask |= ask;
        drop(state);
        if moved || ask {
            self.wake_intake();
        }
    }

    /// Why the stream cannot go on, unless a target that is away may know better.
    pub fn failure(&self) -> Option<ApplyError> {
        let mut state = self.state();
        let anchored = state.anchored;
        state
            .refused
            .take_if(|why| anchored || !matches!(why, ApplyError::Gap(_)))
    }

    /// Ends the intake.
    pub fn stop(&self) {
        self.state().stop = true;
        self.wake_intake();
    }

    fn wake_intake(&self) {
        if let Some(waker) = &self.state().intake {
            waker.wake();
        }
        self.0.changed.notify_all();
    }

    /// Something new is in the log, or the stream cannot go on.
    fn arrived(&self) {
        let mut state = self.state();
        if state.reader_told {
            return;
        }
        if let Some(reader) = &state.reader {
            // A session that has ended looks at the log when the next one begins.
            let _ = reader.send(Event::Arrived);
            state.reader_told = true;
        }
    }

    /// Waits until `ready` is true of the state, or `patience` has passed.
    fn wait(&self, patience: Duration, ready: impl Fn(&SpoolState<S>) -> bool) {
        let state = self.state();
        let waited = (self.0.changed).wait_timeout_while(state, patience, |state| !ready(state));
        drop(waited);
    }

    /// Shows what it holds before anything else does: whoever sees no spool is to rely on it.
    pub fn show_first(&self, control: &Control) {
        let stats = self.stats();
        control.count(|shown| {
            if shown.spool.is_none() {
                shown.spool = stats;
            }
        });
    }

    fn stats(&self) -> Option<SpoolStats> {
        let state = self.state();
        let log = state.log.as_ref()?;
        Some(SpoolStats {
            bytes: log.spool_bytes(),
            limit: self.0.config.limit,
            from: state.flushed.max(log.oldest()),
            to: log.durable(),
            full: None,
        })
    }

    /// Where the log cannot be read, and why. What comes before can be applied.
    fn damage(&self) -> Option<(Lsn, String)> {
        self.state().damage.clone()
    }

    /// The log could not be read by somebody who began where the target stood.
    fn damaged(&self, error: LogError, began: Lsn) -> ApplyError {
        let from = match &error {
            LogError::Corrupt { from, .. } => *from,
            _ => return self.error(error),
        };
        let error = self.error(error);
        if from <= began {
            return error;
        }
        // Some of the transaction was handed out that cannot be read to its end: the next session
        // reads up to there.
        self.state().damage = Some((from, error.to_string()));
        ApplyError::Damaged(error.to_string())
    }

    /// An error of the log, with the file and what to do.
    fn error(&self, error: LogError) -> ApplyError {
        let folder = self.folder();
        spool_error(match &error {
            LogError::Corrupt {
                segment,
                from,
                what,
                ..
            } => format!(
                "spool file {} is damaged or missing ({what}): changes after {from} cannot be read, \
                 and the source has not kept them; {}",
                segment_file(&self.0.storage, folder, *segment).display(),
                again(folder)
            ),
            LogError::Gone { .. } => {
                format!("the spool {}: {error}; {}", folder.display(), again(folder))
            }
            _ => format!("the spool {}: {error}", folder.display()),
        })
    }
}

fn limits(config: &SpoolConfig) -> Limits {
    Limits {
        cache_bytes: CACHE,
        segment_bytes: SEGMENT,
        spool_bytes: Some(config.limit),
    }
}

fn again(folder: &Path) -> String {
    format!(
        "drop the replica (lockstep replica drop), remove {} and create it again",
        folder.display()
    )
}

/// A folder that has files, and none of a spool.
fn is_something_else(folder: &Path) -> bool {
    let names = Folder::new(folder).list().unwrap_or_default();
    let is_ours = |name: &String| {
        name == identity::FILE || name == FileStorage::LOCK || name.contains(SEGMENTS)
    };
    !names.is_empty() && !names.iter().any(is_ours)
}

/// The log, and the segment whose end was cut off. Nothing where there is none.
type Opened<S> = (Option<Arc<Log<S>>>, Option<PathBuf>);

fn open_log<S: Storage + Clone>(
    storage: &S,
    config: &SpoolConfig,
    identity: Option<&Identity>,
) -> Result<Opened<S>> {
    let folder = &config.folder;
    let shown = folder.display();
    let (log, recovered) = match Log::open(storage.clone(), limits(config)) {
        Ok(opened) => opened,
        Err(LogError::NoLog) if identity.is_none() => return Ok((None, None)),
        Err(LogError::NoLog) => {
            return Err(spool_error(format!(
                "the spool {shown} has lost its segments (*.spool), and {} says that it had some; {}",
                identity::FILE,
                again(folder)
            )));
        }
        Err(LogError::Corrupt { segment, what, .. }) => {
            let file = segment_file(storage, folder, segment);
            return Err(spool_error(format!(
                "spool file {} is damaged or missing ({what}); {}",
                file.display(),
                again(folder)
            )));
        }
        Err(error) => return Err(spool_error(format!("the spool {shown}: {error}"))),
    };
    if identity.is_none() {
        return Err(spool_error(format!(
            "the spool {shown} has segments, and {} is missing, which says whose they are; restore it, \
             or {}",
            folder.join(identity::FILE).display(),
            again(folder)
        )));
    }
    let mut cut = None;
    if recovered.dropped_bytes > 0 {
        cut = newest_segment(storage, folder);
        info!(folder = %shown, bytes = recovered.dropped_bytes, end = %recovered.durable,
              "the spool's end was not whole and is received again");
    }
    for hole in &recovered.holes {
        let file = segment_file(storage, folder, hole.segment);
        warn!(file = %file.display(), what = hole.what, from = %hole.from, "the spool is damaged");
    }
    Ok((Some(Arc::new(log)), cut))
}

fn newest_segment<S: Storage>(storage: &S, folder: &Path) -> Option<PathBuf> {
    let names = storage.list().ok()?;
    let newest = names
        .into_iter()
        .filter(|name| name.ends_with(".spool"))
        .max()?;
    Some(folder.join(newest))
}

/// A segment's file, or its name's beginning if it is gone.
fn segment_file<S: Storage>(storage: &S, folder: &Path, segment: u64) -> PathBuf {
    let begins = format!("{segment:08x}-");
    let names = storage.list().unwrap_or_default();
    let found = names.into_iter().find(|name| name.starts_with(&begins));
    folder.join(found.unwrap_or_else(|| format!("{begins}….spool")))
}

/// Removes all segments.
fn wipe<S: Storage>(storage: &S, folder: &Path) -> Result<()> {
    let removed = || -> std::io::Result<()> {
        for name in storage.list()? {
            if name.contains(SEGMENTS) {
                storage.remove(&name)?;
            }
        }
        storage.sync()
    };
    removed().map_err(|error| {
        spool_error(format!(
            "the spool {} cannot be emptied: {error}",
            folder.display()
        ))
    })
}
