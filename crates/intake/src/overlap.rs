//! What the source sends again, held against the log.
//!
//! A stream begins where the source's slot stands, which may be before the end of the log:
//! always a little, and after a crash of the source as far as its last checkpoint. What is
//! sent again must be what the log has. If it is not, the source has written other WAL at the
//! same positions since, for example after its files were restored from an older copy, and
//! whoever reads the log has transactions that the source does not have.
//!
//! Transactions are told apart by their Begin messages: position of the commit record, time
//! of the commit and transaction number. WAL is one sequence, so one that is the same on both sides
//! shows that everything before it is. Their changes need not be compared: two servers do not
//! commit the same transaction number at the same position in the same microsecond. Only what
//! comes after the last one that is the same must not differ: which transactions have changes that
//! are published may differ by one or the other, where publications were altered meanwhile.
//!
//! Only what the log still has can be compared; its newest segment is always there. A part of the
//! log that cannot be read ends the comparison, with a warning.

use std::collections::VecDeque;
use std::sync::Arc;

use lockstep_spool::{Log, LogError, Read, Reader, Storage};
use lockstep_wire::Lsn;
use lockstep_wire::logical::frames::FRAME_HEADER;
use lockstep_wire::logical::{Boundary, boundary};
use tracing::warn;

/// Bytes that are read of the log at once.
const READ_BYTES: usize = 256 * 1024;

/// Longest frame that may hold a Begin: one of a prepared transaction has a name of up to 200
/// bytes.
const MOST_BEGIN: usize = FRAME_HEADER + 512;

/// One connection's comparison.
pub struct Overlap<S: Storage> {
    /// None once there is nothing more to compare with.
    reader: Option<Reader<S>>,
    /// Transactions from here on are compared.
    from: Lsn,
    begins: Begins,
    /// The first transaction that only one side has, after the last that both have.
    differs: Option<Lsn>,
}

impl<S: Storage> Overlap<S> {
    /// The comparison for a stream that begins at `from`. Reads some of the spool, so it may block.
    pub fn new(log: &Arc<Log<S>>, from: Lsn) -> Self {
        let end = log.received();
        let from = from.max(log.oldest());
        let reader = match from < end {
            true => log
                .reader(from)
                .map_err(|error| cannot_compare(&error))
                .ok(),
            false => None,
        };
        let reader = reader.map(|mut reader| {
            reader.stop_before(end);
            reader
        });
        Self {
            reader,
            from,
            begins: Begins::default(),
            differs: None,
        }
    }

    /// Compares Begin messages that were sent again, in their order; with `all` there are no
    /// more. An error is the position of the first transaction that only one side has.
    pub fn compare(&mut self, again: &[Vec<u8>], all: bool) -> Result<(), Lsn> {
        let kept = |begin: &&Vec<u8>| key_of(begin).is_some_and(|key| key >= self.from);
        let again: Vec<&Vec<u8>> = again.iter().filter(kept).collect();
        for begin in again {
            let key = key_of(begin);
            while self.peek().is_some_and(|logged| key_of(logged) < key) {
                self.skip();
            }
            if self.reader.is_none() {
                return Ok(());
            }
            match self.peek() {
                Some(logged) if logged == begin => {
                    self.begins.found.pop_front();
                    self.differs = None;
                }
                // At one position there is one commit.
                Some(logged) if key_of(logged) == key => return Err(key.unwrap_or_default()),
                _ => self.differs = self.differs.or(key),
            }
        }
        if all {
            while self.peek().is_some() {
                self.skip();
            }
            // Without one it is not known what the log has.
            if let (Some(_), Some(at)) = (self.reader.take(), self.differs) {
                return Err(at);
            }
        }
        Ok(())
    }

    /// Passes by a transaction that was not sent again.
    fn skip(&mut self) {
        let key = self
            .begins
            .found
            .pop_front()
            .and_then(|begin| key_of(&begin));
        self.differs = self.differs.or(key);
    }

    /// The log's next Begin message.
    fn peek(&mut self) -> Option<&Vec<u8>> {
        while self.begins.found.is_empty() {
            match self.reader.as_mut()?.read(READ_BYTES) {
                Ok(Read::Frames { pieces, .. }) => {
                    pieces.iter().for_each(|piece| self.begins.take_in(piece));
                }
                Ok(Read::Nothing { .. } | Read::Limit) => return None,
                Ok(Read::Cut) => self.reader = None,
                Err(error) => {
                    cannot_compare(&error);
                    self.reader = None;
                }
            }
        }
        self.begins.found.front()
    }
}

fn cannot_compare(error: &LogError) {
    warn!(%error, "cannot compare what the source sends again with the spool");
}

/// Where a transaction's commit record begins, by its Begin message.
fn key_of(begin: &[u8]) -> Option<Lsn> {
    match boundary(begin) {
        Ok(Boundary::Begin { key }) => Some(key),
        _ => None,
    }
}

/// Finds Begin messages among frames that come in pieces of any length.
#[derive(Debug, Default)]
struct Begins {
    /// The beginning of a frame, up to [`MOST_BEGIN`] bytes.
    head: Vec<u8>,
    /// Bytes of a long frame that are still to come, of which none is looked at.
    skip: usize,
    found: VecDeque<Vec<u8>>,
}

impl Begins {
    fn take_in(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            let wanted = match frame_length(&self.head) {
                None => FRAME_HEADER,
                Some(length) => length.min(MOST_BEGIN),
            };
            let missing = wanted.saturating_sub(self.head.len()).min(bytes.len());
            let (taken, rest) = bytes.split_at_checked(missing).unwrap_or((bytes, &[]));
            self.head.extend_from_slice(taken);
            bytes = rest;
            let Some(length) = frame_length(&self.head) else {
                continue;
            };
            if self.head.len() < length.min(MOST_BEGIN) {
                continue;
            }
            self.skip = length - self.head.len();
            let message = self.head.get(FRAME_HEADER..).unwrap_or_default();
            if self.skip == 0 && matches!(boundary(message), Ok(Boundary::Begin { .. })) {
                self.found.push_back(message.to_vec());
            }
            self.head.clear();
        }
    }
}

/// The length of a frame whose beginning this is, if that is long enough to tell.
fn frame_length(head: &[u8]) -> Option<usize> {
    let counted = head.get(1..5)?.try_into().ok()?;
    let counted = usize::try_from(u32::from_be_bytes(counted)).ok()?;
    Some(counted.saturating_add(1).max(FRAME_HEADER))
}

#[cfg(test)]
mod tests {
    use lockstep_wire::logical::frames::put_frame;
    use lockstep_wire::logical::{Commit, Message, Xid};
    use lockstep_wire::stream::Timestamp;

    use super::*;
    use lockstep_spool::{FileStorage, Limits};

    fn encoded(message: &Message<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        message.encode(None, &mut out).unwrap();
        out
    }

    fn begin(key: u64, xid: u32) -> Vec<u8> {
        encoded(&Message::Begin {
            final_lsn: key.into(),
            commit_time: Timestamp(5),
            xid: Xid(xid),
        })
    }

    /// A log with a transaction at each of these positions, and a change of `bytes` in each.
    fn log(folder: &std::path::Path, keys: &[u64], bytes: usize) -> Arc<Log<FileStorage>> {
        let limits = Limits {
            cache_bytes: 1 << 20,
            segment_bytes: 1 << 20,
            spool_bytes: None,
        };
        let storage = FileStorage::new(folder).unwrap();
        let log = Log::create(storage, limits, 10.into()).unwrap();
        log.begin_session().unwrap();
        let insert = [&[b'I'][..], &vec![b'x'; bytes]].concat();
        for &key in keys {
            let commit = encoded(&Message::Commit(Commit {
                commit_lsn: key.into(),
                end_lsn: (key + 5).into(),
                commit_time: Timestamp(5),
            }));
            let mut frames = Vec::new();
            for message in [&begin(key, 7), &insert, &commit] {
                put_frame(&mut frames, key.into(), Timestamp(0), message).unwrap();
            }
            log.append(frames).unwrap();
        }
        Arc::new(log)
    }

    #[test]
    fn what_is_sent_again_must_be_what_the_log_has() {
        // Also with frames that are longer than what is read at once.
        for bytes in [20, 700_000] {
            let folder = tempfile::tempdir().unwrap();
            let log = log(folder.path(), &[20, 30, 40], bytes);
            let compare = |from: u64, again: &[(u64, u32)], all| {
                let again: Vec<_> = again.iter().map(|&(key, xid)| begin(key, xid)).collect();
                Overlap::new(&log, from.into()).compare(&again, all)
            };
            let all = [(20, 7), (30, 7), (40, 7)];
            assert_eq!(compare(10, &all, true), Ok(()));
            assert_eq!(compare(30, &all[1..], true), Ok(()));
            // Before the log's oldest.
            assert_eq!(compare(5, &[&[(6, 1)], &all[..]].concat(), true), Ok(()));
            // From the end on there is nothing.
            assert_eq!(compare(45, &[], true), Ok(()));
            assert_eq!(compare(10, &all[..1], false), Ok(()));
            // One side has one more, and what comes after it is the same.
            assert_eq!(
                compare(10, &[(20, 7), (25, 7), (30, 7), (40, 7)], true),
                Ok(())
            );
            assert_eq!(compare(10, &all[2..], true), Ok(()));
            for (again, all) in [
                (&all[..2], true),
                (&[][..], true),
                (&[(20, 8)], false),
                (&[(20, 7), (25, 7)], true),
                (&[(15, 7), (25, 7), (42, 7)], true),
                (&[(20, 7), (30, 7), (40, 7), (41, 7)], true),
            ] {
                assert!(compare(10, again, all).is_err(), "{again:?}");
            }
            assert_eq!(compare(10, &all[..2], true), Err(40.into()));
            assert_eq!(compare(10, &[(20, 7), (25, 7)], true), Err(25.into()));
        }
    }

    #[test]
    fn begins_are_found_wherever_pieces_end() {
        let mut frames = Vec::new();
        for number in 1..5 {
            let long = vec![b'I'; 2_000];
            for message in [&begin(number * 10, 7), &long] {
                put_frame(&mut frames, 1.into(), Timestamp(0), message).unwrap();
            }
        }
        for size in [1, 2, 7, 30, 64, 1_000, 100_000] {
            let mut begins = Begins::default();
            frames.chunks(size).for_each(|piece| begins.take_in(piece));
            let found: Vec<_> = begins.found.into_iter().collect();
            let expected: Vec<_> = (1..5).map(|number| begin(number * 10, 7)).collect();
            assert_eq!(found, expected, "pieces of {size}");
        }
    }
}
