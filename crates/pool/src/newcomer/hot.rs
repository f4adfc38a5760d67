//! Blocks in the order of their files, and the pace of reading them. No I/O.

use std::time::Duration;

/// Most blocks that are read by one call: 1 MB. A call holds a snapshot and a lock, so it is short.
pub const MOST_BLOCKS: usize = 128;

/// Blocks of one file, which one call reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// OID of the database; 0 for what all databases share.
    pub database: u32,
    pub tablespace: u32,
    pub file: u32,
    pub fork: u32,
    pub blocks: Vec<u32>,
}

/// Gathers a list that comes in the order of databases and files.
#[derive(Debug, Default)]
pub struct Batches {
    batches: Vec<Batch>,
}

impl Batches {
    /// Takes a line: database, tablespace, file, fork and block, with tabs between them. False if it is none.
    pub fn add(&mut self, line: &str) -> bool {
        let mut numbers = line.trim_end().split('\t').map(str::parse::<u32>);
        let mut next = || numbers.next().and_then(Result::ok);
        let (Some(database), Some(tablespace), Some(file), Some(fork), Some(block)) =
            (next(), next(), next(), next(), next())
        else {
            return false;
        };
        let of = (database, tablespace, file, fork);
        if let Some(last) = self.batches.last_mut() {
            let last_of = (last.database, last.tablespace, last.file, last.fork);
            if last_of == of && last.blocks.len() < MOST_BLOCKS {
                last.blocks.push(block);
                return true;
            }
        }
        self.batches.push(Batch {
            database,
            tablespace,
            file,
            fork,
            blocks: vec![block],
        });
        true
    }

    pub fn finish(self) -> Vec<Batch> {
        self.batches
    }
}

/// Spreads reading over time: bytes that are read in one go come at once, and the next ones wait. Time in
/// which nobody reads is not made up for.
#[derive(Debug)]
pub struct Pace {
    bytes_per_s: u64,
    /// When the next ones may come, from the beginning on.
    free_at: Duration,
}

impl Pace {
    pub fn new(bytes_per_s: u64) -> Self {
        Self {
            bytes_per_s: bytes_per_s.max(1),
            free_at: Duration::ZERO,
        }
    }

    /// How long whoever wants to read so many bytes waits first.
    pub fn take(&mut self, bytes: u64, now: Duration) -> Duration {
        let begins = self.free_at.max(now);
        self.free_at = begins + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        begins - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_gathered_by_file() {
        let mut batches = Batches::default();
        for block in 0..130 {
            assert!(batches.add(&format!("5\t1663\t100\t0\t{block}\n")));
        }
        assert!(batches.add("5\t1663\t100\t2\t0\n"));
        assert!(batches.add("6\t1663\t100\t0\t4294967294\n"));
        for line in ["", "1\t2\t3\t4", "1\t2\t3\t4\tx", "1\t2\t3\t4\t-1"] {
            assert!(!batches.add(line), "{line:?}");
        }
        let batches = batches.finish();
        let sizes: Vec<_> = batches.iter().map(|one| one.blocks.len()).collect();
        assert_eq!(sizes, [128, 2, 1, 1]);
        assert_eq!(batches[1].blocks, [128, 129]);
        let last = &batches[3];
        assert_eq!(
            (last.database, last.fork, last.blocks[0]),
            (6, 0, u32::MAX - 1)
        );
    }

    #[test]
    fn reading_keeps_a_pace() {
        let ms = Duration::from_millis;
        let mut pace = Pace::new(1000);
        for (bytes, now, wait) in [
            (500, 0, 0),
            (500, 100, 400),
            (100, 500, 500),
            // A while in which nobody reads gives no more than one at once.
            (500, 9000, 0),
            (1, 9000, 500),
        ] {
            assert_eq!(pace.take(bytes, ms(now)), ms(wait), "{bytes} at {now}");
        }
        assert_eq!(Pace::new(0).take(1, ms(7)), ms(0));
    }
}
