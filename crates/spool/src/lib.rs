//! The log: the upstream's stream as wire-ready frames, the newest of them in memory, all of
//! them in a spool on disk.
//!
//! One thread appends, one makes durable, any number read. Locks, in the order in which they
//! are taken:
//!
//! | lock | held by | over I/O |
//! |---|---|---|
//! | `writer` | append, cover, cut: what is being written | yes |
//! | `removing` | retain | yes |
//! | `syncing` | whoever makes something durable, one at a time: an error is told to one caller only, and must be known before another claims that its data is durable | yes |
//! | `shared` | everybody, for moments | no |
//!
//! Memory: the cache with its overhead stays within [`Limits::cache_bytes`]; besides there
//! are the descriptions in force ([`SCHEMA_LIMIT`] at most), one buffer of [`CHUNK_BYTES`]
//! for writing, 60 bytes for each segment, and for each reader what it was handed plus one
//! chunk.
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockstep_wire::Lsn;
use tokio::sync::watch;

mod assembler;
#[cfg(test)]
mod assembler_tests;
mod cache;
mod create;
mod error;
pub mod failpoint;
mod index;
pub mod kept;
mod mark;
mod position;
mod reader;
mod recover;
mod scan;
mod schema;
mod segment;
mod state;
mod storage;
mod sync;
mod units;
mod write;

pub use assembler::{Assembler, GATHER, StreamError};
pub use cache::CHUNK_OVERHEAD;
pub use error::{LogError, Result};
pub use position::LogPosition;
pub use reader::{MOST_PIECES, Read, Reader};
pub use recover::{Hole, Recovered};
pub use schema::SCHEMA_LIMIT;
pub use segment::CHUNK_BYTES;
pub use storage::{FileStorage, Folder, SpoolFile, Storage};
pub use write::parts;

use segment::file_name;
use state::LogState;
use write::Writer;

/// Locks. What a thread that panicked left behind is consistent enough to go on with: nothing here is
/// changed in several steps that could be half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
    fn segment(&self) -> u64 {
        let most = self.spool_bytes.map_or(u64::MAX, |bytes| bytes / 4);
        self.segment_bytes.min(most)
    }
}

/// Whether the oldest segment can be removed.
enum Removable {
    Yes(index::Entry),
    OnceDurable,
    No,
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
    /// Frames are appended in parts of this size, in bytes: see [`parts`].
    pub most_append: usize,
}

/// The log of one upstream slot.
#[derive(Debug)]
pub struct Log<S: Storage> {
    storage: S,
    /// Held for moments, alone.
    limits: Mutex<Limits>,
    start: Lsn,
    writer: Mutex<Writer<S::File>>,
    removing: Mutex<()>,
    syncing: Mutex<()>,
    shared: Mutex<LogState<S::File>>,
    ends: watch::Sender<End>,
    mark: mark::Mark<S::File>,
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

    /// Readers can begin here or later.
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

    /// A reader of all units with key `from` or later, that is for a subscriber which has
    /// confirmed `from`. Those that only know their end come if that is later than `from`.
    ///
    /// Reads up to a segment of the spool, so it may block.
    pub fn reader(self: &Arc<Self>, from: Lsn) -> Result<Reader<S>> {
        Reader::new(self, from)
    }

    /// Removes whole segments that no reader needs from `confirmed` on, never the current
    /// one. Returns the bytes that were freed. Makes the log durable first where that is
    /// what a segment is still needed for.
    pub fn retain(&self, confirmed: Lsn) -> Result<u64> {
        let _removing = lock(&self.removing);
        let mut freed = 0;
        loop {
            let entry = match self.next_to_remove(confirmed) {
                Removable::Yes(entry) => entry,
                Removable::OnceDurable => {
                    self.sync()?;
                    continue;
                }
                Removable::No => return Ok(freed),
            };
            let name = file_name(entry.sequence, entry.position);
            // One at a time: a crash must not leave a gap between those that are left.
            let removed = match entry.is_missing() {
                true => Ok(()),
                false => self.storage.remove(&name),
            };
            failpoint::SEGMENT_REMOVED.reach();
            if let Err(source) = removed.and_then(|()| self.storage.sync()) {
                lock(&self.shared).index.push_oldest(entry);
                return Err(LogError::io("remove", &name, source));
            }
            freed += entry.bytes;
        }
    }

    /// Takes the oldest segment out of the index, if no reader needs it.
    fn next_to_remove(&self, confirmed: Lsn) -> Removable {
        let mut shared = lock(&self.shared);
        let second = shared.index.second();
        if second.is_none_or(|second| second.first_lsn > confirmed) {
            return Removable::No;
        }
        // What a crash would go back to is needed, whoever has confirmed it.
        let needed_on_disk = shared.durable_segment;
        let needed_once_durable = match shared.dirty && shared.poisoned.is_none() {
            true => shared.boundary.place.segment,
            false => needed_on_disk,
        };
        match shared.index.oldest().map(|oldest| oldest.sequence) {
            Some(oldest) if oldest < needed_on_disk => {
                let entry = shared.index.pop_oldest();
                entry.map_or(Removable::No, Removable::Yes)
            }
            Some(oldest) if oldest < needed_once_durable => Removable::OnceDurable,
            _ => Removable::No,
        }
    }

    fn announce(&self) {
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
