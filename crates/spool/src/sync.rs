//! Making the log durable.
//!
//! A segment is written under another name until it and all before it are durable; then it
//! gets its own. So whoever appends never waits for the disk, not even where a new segment
//! begins, and after a crash everything that has a segment's name is whole but for the end
//! of the newest.
//!
//! After a write or sync that failed nobody knows what the disk holds: the log takes nothing more,
//! and the process that has it ends. Opening it writes the newest segment once more (`recover`),
//! since the system may count as written what the disk never took.

use lockstep_wire::Lsn;

use super::error::{LogError, Result};
use super::failpoint;
use super::log::{Log, lock};
use super::segment::{file_name, unfinished_name};
use super::storage::{SpoolFile, Storage};

impl<S: Storage> Log<S> {
    /// Makes durable what was appended before the call, and returns what is durable then.
    ///
    /// Blocks for as long as the disk takes; appends go on meanwhile. After an error nothing
    /// is known about what the disk holds: the log takes nothing more until it is opened
    /// again.
    pub fn sync(&self) -> Result<Lsn> {
        let _syncing = lock(&self.syncing);
        let (tail, received, boundary) = {
            let mut shared = lock(&self.shared);
            shared.check()?;
            if !shared.dirty {
                return Ok(shared.durable);
            }
            // What is written from here on needs another turn.
            shared.dirty = false;
            (shared.tail.clone(), shared.received, shared.boundary)
        };
        for segment in &tail {
            let name = file_name(segment.sequence, segment.position);
            self.make_durable(&*segment.file, &name)?;
            if !segment.named {
                failpoint::SEGMENT_DURABLE.reach();
                let unfinished = unfinished_name(segment.sequence, segment.position);
                // One at a time: a crash must not leave a gap between them.
                self.storage
                    .rename(&unfinished, &name)
                    .and_then(|()| self.storage.sync())
                    .map_err(|source| self.poison("rename", &unfinished, source))?;
            }
        }
        self.mark.note(received);
        failpoint::SYNCED.reach();
        let mut shared = lock(&self.shared);
        // Nothing is appended any more to any of them but the last.
        shared.tail.drain(..tail.len().saturating_sub(1));
        if let Some(oldest) = shared.tail.first_mut() {
            oldest.named = true;
        }
        shared.durable = shared.durable.max(received);
        shared.durable_segment = shared.durable_segment.max(boundary.place.segment);
        Ok(shared.durable)
    }

    /// Makes a file durable. The caller holds `syncing`.
    pub(super) fn make_durable(&self, file: &S::File, name: &str) -> Result<()> {
        file.sync()
            .map_err(|source| self.poison("sync", name, source))
    }

    /// Nothing may be written from here on.
    pub(super) fn poison(
        &self,
        what: &'static str,
        name: &str,
        source: std::io::Error,
    ) -> LogError {
        let error = LogError::Io {
            what,
            name: name.to_owned(),
            source,
        };
        lock(&self.shared).poison(&error);
        error
    }
}
