//! The ends of a recording's commits, one after the other.

use lockstep_wal::folder::{Range, Run, RunPages};
use lockstep_wal::names::manager;
use lockstep_wal::reader::Reader;
use lockstep_wal::record::Record;
use lockstep_wire::Lsn;

use super::Recording;

/// Reads commits as they are asked for.
#[derive(Debug)]
pub(crate) struct Commits {
    /// None if the WAL cannot be read, which the sessions that send it report.
    reader: Option<Reader<RunPages>>,
    /// How many have been read, and where the newest ends.
    count: u64,
    at: Lsn,
    /// End of the recording.
    end: Lsn,
}

impl Commits {
    /// The commits behind `origin`.
    pub fn after(recording: &Recording, origin: Lsn) -> Self {
        let range = Range {
            timeline: Some(recording.timeline()),
            start: Some(origin),
        };
        let run = Run::find(&recording.wal(), range).ok();
        let reader = run.map(|run| run.reader()).and_then(|mut reader| {
            let is_found = matches!(reader.seek(), Ok(None));
            is_found.then_some(reader)
        });
        Self {
            reader,
            count: 0,
            at: origin,
            end: recording.end(),
        }
    }

    /// The end of the commit with this number, from 1 on; the recording's end if it has fewer.
    /// Numbers never decrease from call to call.
    pub fn end_of(&mut self, number: u64) -> Lsn {
        while self.count < number && self.at < self.end {
            self.at = self.next();
            self.count += 1;
        }
        self.at
    }

    fn next(&mut self) -> Lsn {
        loop {
            match self.reader.as_mut().map(Reader::read) {
                Some(Ok(Ok(record))) if is_commit(&record) => return record.end.min(self.end),
                Some(Ok(Ok(_))) => {}
                _ => return self.end,
            }
        }
    }
}

/// COMMIT or COMMIT_PREPARED: the highest bit says whether there is more information.
fn is_commit(record: &Record<'_>) -> bool {
    record.header.manager == manager::XACT && matches!(record.operation() & 0x70, 0x00 | 0x30)
}
