//! Removing segments that no reader needs any more.

use lockstep_wire::Lsn;

use super::error::{LogError, Result};
use super::failpoint;
use super::index::Entry;
use super::log::{Log, lock};
use super::segment::file_name;
use super::storage::Storage;

/// Whether the oldest segment can be removed.
enum Removable {
    Yes(Entry),
    OnceDurable,
    No,
}

impl<S: Storage> Log<S> {
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
}
