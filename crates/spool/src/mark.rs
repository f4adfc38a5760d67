//! How far the log was durable: a file beside the segments, `durable`, that holds one LSN and its
//! CRC-32C, both little-endian.
//!
//! The syncer notes each position here before it returns it, so before the upstream can be told.
//! The note itself is not made durable: a crash of the machine may leave an older one. So it is
//! never too high, and after the end of the process alone it is exact. Opening a log compares
//! with it before it cuts anything: units below it cannot be had again.

use lockstep_wire::Lsn;

use super::storage::{SpoolFile, Storage};

/// The file's name.
pub(super) const FILE: &str = "durable";

const LSN_BYTES: usize = 8;
const BYTES: usize = LSN_BYTES + 4;

/// The file. None where it could not be made: then nothing is known of the durable part.
#[derive(Debug)]
pub(super) struct Mark<F>(Option<F>);

impl<F: SpoolFile> Mark<F> {
    /// A new file for a log that begins at `start`; durable once the folder is.
    pub fn create<S: Storage<File = F>>(storage: &S, start: Lsn) -> std::io::Result<Self> {
        let file = storage.create(FILE)?;
        file.write_at(0, &encode(start))?;
        file.sync()?;
        Ok(Self(Some(file)))
    }

    /// The file of a log that exists, and what it says: `0/0` if nothing that can be read.
    pub fn open<S: Storage<File = F>>(storage: &S) -> (Self, Lsn) {
        let opened = storage.open(FILE);
        let noted = opened.as_ref().ok().and_then(|file| {
            let mut bytes = [0; BYTES];
            file.read_at(0, &mut bytes).ok()?;
            decode(&bytes)
        });
        // A log of an earlier version has none; a full disk must not keep it from being read.
        let file = opened.or_else(|_| storage.create(FILE)).ok();
        (Self(file), noted.unwrap_or_default())
    }

    /// Notes that the log is durable up to `durable`. An older note, which an error leaves, is true too.
    pub fn note(&self, durable: Lsn) {
        if let Some(file) = &self.0 {
            let _ = file.write_at(0, &encode(durable));
        }
    }
}

fn encode(lsn: Lsn) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let (number, sum) = bytes.split_at_mut(LSN_BYTES);
    number.copy_from_slice(&u64::from(lsn).to_le_bytes());
    sum.copy_from_slice(&crc32c::crc32c(number).to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; BYTES]) -> Option<Lsn> {
    let (number, sum) = bytes.split_first_chunk::<LSN_BYTES>()?;
    let holds = crc32c::crc32c(number).to_le_bytes() == *sum;
    holds.then(|| Lsn::from(u64::from_le_bytes(*number)))
}
