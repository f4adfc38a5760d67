//! The log: its locks, its limits, and where it stands.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockstep_wire::Lsn;
use tokio::sync::watch;

use super::mark::Mark;
use super::newest::Writer;
use super::position::LogPosition;
use super::state::LogState;
use super::storage::Storage;

/// Locks. What a thread that panicked left behind is consistent enough to go on with: nothing here is
/// changed in several steps that could be half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sizes of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most memory that the cache takes; 0 turns it off.
    pub cache_bytes: u64,
    /// A segment of the spool that is as long is followed by another. At most a quarter of
    /// the spool, so that what is confirmed can be removed.
    pub segment_bytes: u64,
    /// Most bytes of the spool; None is no limit. A single transaction that is longer can
    /// never be taken in.
    pub spool_bytes: Option<u64>,
}

impl Limits {
    pub(super) fn segment(&self) -> u64 {
        let most = self.spool_bytes.map_or(u64::MAX, |bytes| bytes / 4);
        self.segment_bytes.min(most)
    }
}

/// Where the log ends. Readers wait for it to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// End of the frames.
    pub position: LogPosition,
    /// End of the last whole unit, or what was covered after it.
    pub received: Lsn,
    /// Unfinished units that were dropped so far.
    pub generation: u64,
}

/// Where a log stands at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// See [`Log::received`].
    pub received: Lsn,
    /// See [`Log::durable`].
    pub durable: Lsn,
    /// See [`Log::open_unit`].
    pub open_unit: bool,
    /// The disk had no room for the last write, and the oldest segment ends with the beginning of the unit
    /// that is arriving: without that it could be removed.
    pub cut_makes_room: bool,
    /// Frames are appended in parts of this size, in bytes: see [`parts`].
    pub most_append: usize,
}

/// The log of one upstream slot.
#[derive(Debug)]
pub struct Log<S: Storage> {
    pub(super) storage: S,
    /// Sizes; the lock is held for moments, alone.
    pub(super) limits: Mutex<Limits>,
    pub(super) start: Lsn,
    pub(super) writer: Mutex<Writer<S::File>>,
    pub(super) removing: Mutex<()>,
    pub(super) syncing: Mutex<()>,
    pub(super) shared: Mutex<LogState<S::File>>,
    pub(super) ends: watch::Sender<End>,
    pub(super) mark: Mark<S::File>,
}

impl<S: Storage> Log<S> {
    /// Where the log began when it was created.
    pub fn start(&self) -> Lsn {
        self.start
    }

    pub fn limits(&self) -> Limits {
        *lock(&self.limits)
    }

    /// Other limits from now on. The cache shrinks at once; the spool is not made smaller,
    /// but nothing is appended to one that is over its limit.
    pub fn set_limits(&self, limits: Limits) {
        *lock(&self.limits) = limits;
        lock(&self.shared).cache.set_limit(limits.cache_bytes);
    }

    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// End of the last whole unit that is durable, or what is durably covered after it: what
    /// the upstream may be told.
    pub fn durable(&self) -> Lsn {
        lock(&self.shared).durable
    }

    /// End of the last whole unit, or what was covered after it.
    pub fn received(&self) -> Lsn {
        lock(&self.shared).received
    }

    pub fn standing(&self) -> Standing {
        let most_append = match self.limits().spool_bytes {
            Some(limit) => usize::try_from(limit / 8).unwrap_or(usize::MAX),
            None => usize::MAX,
        };
        let shared = lock(&self.shared);
        Standing {
            received: shared.received,
            durable: shared.durable,
            open_unit: shared.open.is_some(),
            cut_makes_room: shared.no_space && shared.is_begun_in_oldest(),
            most_append,
        }
    }

    /// Key of the oldest unit that begins in memory; `0/0` if none does.
    pub fn oldest_cached(&self) -> Lsn {
        lock(&self.shared)
            .cache
            .chunks()
            .map(|chunk| chunk.marks.first_key)
            .find(|key| key.is_valid())
            .unwrap_or_default()
    }

    /// Oldest position at which a reader can begin.
    pub fn oldest(&self) -> Lsn {
        let shared = lock(&self.shared);
        let oldest = shared.index.oldest().map(|entry| entry.first_lsn);
        oldest.unwrap_or(shared.received)
    }

    pub fn spool_bytes(&self) -> u64 {
        lock(&self.shared).index.bytes()
    }

    /// Bytes in memory, [`CHUNK_OVERHEAD`] for each chunk included.
    pub fn cache_bytes(&self) -> u64 {
        lock(&self.shared).cache.bytes()
    }

    /// End of the frames.
    pub fn end(&self) -> LogPosition {
        lock(&self.shared).end
    }

    /// Bytes of the frames from the unit with key `from` or later to the end, without reading the spool:
    /// an estimate, off by less than the segment in which that unit is.
    pub fn bytes_from(&self, from: Lsn) -> u64 {
        let shared = lock(&self.shared);
        let whole = (shared.boundary.position, shared.whole_key);
        let start = match (shared.index.find(from), shared.index.oldest()) {
            _ if from > shared.whole_key => whole.0,
            (Some(entry), _) => {
                let next = shared.index.get(entry.sequence + 1);
                let next = next.map_or(whole, |next| (next.position, next.first_lsn));
                // As if its bytes were spread evenly over its keys.
                let keys = u64::from(next.1).saturating_sub(entry.first_lsn.into());
                let passed = u64::from(from).saturating_sub(entry.first_lsn.into());
                let share = (passed as f64 / keys.max(1) as f64).min(1.0);
                let bytes = next.0.since(entry.position);
                entry.position.plus((bytes as f64 * share) as usize)
            }
            // What comes before the oldest is gone.
            (None, Some(oldest)) => oldest.position,
            (None, None) => whole.0,
        };
        shared.end.since(start)
    }

    /// Bytes of the unit that is still arriving, as far as they have come.
    pub fn open_bytes(&self) -> u64 {
        let shared = lock(&self.shared);
        shared.end.since(shared.boundary.position)
    }

    /// Whether a unit is still arriving.
    pub fn open_unit(&self) -> bool {
        lock(&self.shared).open.is_some()
    }

    /// Why nothing can be appended any more: the first error after which it is not known
    /// what the disk holds. None if there was none.
    pub fn poisoned(&self) -> Option<Arc<str>> {
        lock(&self.shared).poisoned.clone()
    }

    /// Tells of every change of the end. Who waits for one marks the value as seen before
    /// the read that finds nothing, or misses what comes in between.
    pub fn watch(&self) -> watch::Receiver<End> {
        self.ends.subscribe()
    }

    pub(super) fn announce(&self) {
        let end = {
            let shared = lock(&self.shared);
            End {
                position: shared.end,
                received: shared.received,
                generation: shared.generation,
            }
        };
        self.ends.send_replace(end);
    }
}
