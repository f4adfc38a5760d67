//! Reads from the WAL which LSN each page must have at least, and whether any record between
//! two positions changes data.
//!
//! The package's own `pg_waldump` decodes the records. Not every block that a record names
//! gets the record's LSN: [`stamps`] lists the exceptions.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lockstep_lab::error::one_line;
use lockstep_lab::package::Package;
use lockstep_wire::{Lsn, Timeline};

use crate::error::oracle::{OracleError, Result};
use crate::oracle::control::Control;
use crate::oracle::files::{Fork, Relation, RelationFile, RelationFork};

const PROGRAM: &str = "pg_waldump";

/// At most this much WAL is compared with the pages, in bytes, but always all WAL from the last
/// checkpoint's redo position on. pg_waldump takes about a second for 50 MB.
const WAL_LIMIT: u64 = 1 << 30;

/// Heap blocks that one page of the visibility map covers, with pages of 8 kB.
const HEAP_BLOCKS_PER_MAP_PAGE: u32 = 32672;

/// The WAL of one data folder.
#[derive(Debug, Clone)]
pub(crate) struct Wal {
    program: PathBuf,
    folder: PathBuf,
    timeline: Timeline,
    segment_size: u64,
    page_size: u64,
    redo: Lsn,
}

/// A block that a record names.
#[derive(Debug, PartialEq, Eq)]
struct BlockReference {
    number: u8,
    fork: RelationFork,
    block: u32,
    image: bool,
}

/// A record as pg_waldump prints it.
#[derive(Debug)]
struct Record<'a> {
    manager: &'a str,
    length: u64,
    start: Lsn,
    operation: &'a str,
    description: &'a str,
}

/// What a page must have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needed {
    /// At least this LSN.
    pub lsn: Lsn,
    /// The page may also be zero: one that was never used has no LSN, and its image leaves none.
    pub or_zero: bool,
}

/// The LSN that pages must have at least.
#[derive(Debug, Default)]
pub(crate) struct Required {
    pages: HashMap<RelationFork, HashMap<u32, Needed>>,
}

impl Required {
    /// Removes and returns the blocks of one fork. Each fork is needed only once.
    pub fn take(&mut self, fork: &RelationFork) -> HashMap<u32, Needed> {
        self.pages.remove(fork).unwrap_or_default()
    }

    fn note(&mut self, record: &Record, end: Lsn) {
        match (record.manager, record.operation) {
            ("Storage", "TRUNCATE") => self.truncate(record.description),
            ("Storage", "CREATE") => self.forget(record.description),
            // The descriptions of these records hold text of users, so they are not parsed.
            ("Transaction" | "LogicalMessage", _) | ("XLOG", "RESTORE_POINT") => {}
            _ => {
                for reference in references(record.description) {
                    if stamps(record, &reference) {
                        let blocks = self.pages.entry(reference.fork).or_default();
                        let needed = Needed {
                            lsn: end,
                            or_zero: (record.manager, record.operation) == ("XLOG", "FPI"),
                        };
                        blocks.insert(reference.block, needed);
                    }
                }
            }
        }
    }

    /// Handles `TRUNCATE base/5/16384 to 10 blocks flags 7`: forgets the blocks that are cut off,
    /// since they may come back empty.
    fn truncate(&mut self, description: &str) {
        let mut words = description.split(' ').skip(1);
        let file = words.next().and_then(RelationFile::at);
        let blocks = words.nth(1).and_then(|word| word.parse::<u32>().ok());
        let (Some(file), Some(blocks)) = (file, blocks) else {
            return;
        };
        for (fork, first) in [
            (Fork::Main, blocks),
            (Fork::Visibility, blocks / HEAP_BLOCKS_PER_MAP_PAGE),
        ] {
            let fork = RelationFork { fork, ..file.fork };
            if let Some(pages) = self.pages.get_mut(&fork) {
                pages.retain(|&block, _| block < first);
            }
        }
    }

    /// Handles `CREATE base/5/16384`: forgets the blocks of that number, since the file is a new
    /// one.
    fn forget(&mut self, description: &str) {
        if let Some(file) = description.split(' ').nth(1).and_then(RelationFile::at) {
            self.pages.remove(&file.fork);
        }
    }
}

/// True if replay of the record sets its LSN on the block.
fn stamps(record: &Record, reference: &BlockReference) -> bool {
    match reference.fork.fork {
        // The map is in the WAL only as page images, and those need not reach the disk.
        Fork::FreeSpace => return false,
        // The init fork is written to disk with LSN 0 before it is logged, and never changed.
        Fork::Init => return false,
        Fork::Main | Fork::Visibility => {}
    }
    match (record.manager, record.operation, reference.number) {
        // Setting the all-visible flag sets the heap page's LSN only with checksums or
        // wal_log_hints.
        ("Heap2", "VISIBLE", 1) => false,
        // Some minor releases name the page of the map whose bits they clear, and that keeps
        // its LSN.
        ("Heap" | "Heap2", operation, _)
            if reference.fork.fork == Fork::Visibility && operation != "VISIBLE" =>
        {
            reference.image
        }
        // The record of a new hint may hold no image of the page.
        ("XLOG", "FPI_FOR_HINT", _) => reference.image,
        // The record names this block only for the cleanup lock on the bucket's first page, or
        // leaves it unchanged.
        ("Hash", "MOVE_PAGE_CONTENTS" | "DELETE", 0) => false,
        ("Hash", "SQUEEZE_PAGE", 0 | 1) => false,
        _ => true,
    }
}

/// True if a record changes no data. Two positions with only such records between them count
/// as the same.
fn harmless(record: &Record) -> bool {
    match record.manager {
        "Standby" => true,
        "XLOG" => {
            record.operation.starts_with("CHECKPOINT_")
                || matches!(
                    record.operation,
                    "SWITCH"
                        | "NOOP"
                        | "RESTORE_POINT"
                        | "PARAMETER_CHANGE"
                        | "FPW_CHANGE"
                        | "BACKUP_END"
                )
        }
        _ => false,
    }
}

impl Wal {
    pub fn of(package: &Package, folder: &Path, control: &Control) -> Self {
        Self {
            program: package.program(PROGRAM),
            folder: folder.to_path_buf(),
            timeline: control.timeline,
            segment_size: control.wal_segment_size.into(),
            page_size: control.wal_page_size.into(),
            redo: control.redo,
        }
    }

    /// The end of the record that starts at `start`.
    pub fn end_of_record(&self, start: Lsn) -> Result<Lsn> {
        let mut end = None;
        // The record may continue in the next segment, if that exists.
        let next = u64::from(start) / self.segment_size + 1;
        let last = match self.segment(next).is_file() {
            true => next,
            false => next - 1,
        };
        self.dump(start, last, &["--limit", "1"], |record| {
            end = Some(self.end(record));
        })?;
        end.ok_or_else(|| OracleError::Answer {
            program: PROGRAM,
            path: self.folder.clone(),
            line: format!("no record at {start}"),
        })
    }

    /// True if no record between the positions changes data.
    pub fn is_quiet(&self, from: Lsn, to: Lsn) -> Result<bool> {
        let mut quiet = true;
        self.range(from, to, |record| quiet &= harmless(record))?;
        Ok(quiet)
    }

    /// The LSN that each page must have at `position`, from the WAL between `from` and there.
    pub fn required(&self, from: Lsn, position: Lsn) -> Result<Required> {
        let mut required = Required::default();
        self.range(from, position, |record| {
            let end = self.end(record);
            required.note(record, end);
        })?;
        Ok(required)
    }

    /// The start of the oldest segment from which on all segments up to `position` exist, within
    /// [`WAL_LIMIT`].
    pub fn oldest(&self, position: Lsn) -> Lsn {
        let position = u64::from(position);
        let redo = u64::from(self.redo).min(position);
        let mut segment = redo / self.segment_size;
        while segment > 1
            && position.saturating_sub((segment - 1) * self.segment_size) <= WAL_LIMIT
            && self.segment(segment - 1).is_file()
        {
            segment -= 1;
        }
        match segment * self.segment_size {
            // Unlike a segment's start, the redo position is the start of a record.
            start if start >= redo || !self.segment(segment).is_file() => self.redo,
            start => Lsn::from(start),
        }
    }

    fn segment(&self, number: u64) -> PathBuf {
        let in_file = 0x1_0000_0000 / self.segment_size;
        self.folder.join("pg_wal").join(format!(
            "{:08X}{:08X}{:08X}",
            self.timeline.get(),
            number / in_file,
            number % in_file
        ))
    }

    fn range(&self, from: Lsn, to: Lsn, each: impl FnMut(&Record)) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let last = (u64::from(to) - 1) / self.segment_size;
        self.dump(from, last, &["--end", &to.to_string()], each)
    }

    /// Calls `each` for the records from `from` on, at most to the end of segment `last`.
    fn dump(
        &self,
        from: Lsn,
        last: u64,
        arguments: &[&str],
        mut each: impl FnMut(&Record),
    ) -> Result<()> {
        let mut child = Command::new(&self.program)
            .arg("--path")
            .arg(self.folder.join("pg_wal"))
            .args(["--timeline", &self.timeline.to_string()])
            .args(["--start", &from.to_string()])
            .args(arguments)
            // Without file names pg_waldump reads the segment size from any WAL file that it
            // finds, and a file that was created in advance has no header yet.
            .arg(self.segment(u64::from(from) / self.segment_size))
            .arg(self.segment(last))
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(OracleError::io("run", &self.program))?;
        let read = match child.stdout.take() {
            Some(out) => self.read(BufReader::with_capacity(1 << 20, out), &mut each),
            None => Ok(()),
        };
        if read.is_err() {
            let _ = child.kill();
        }
        // pg_waldump writes at most a line or two to stderr, so its pipe cannot be full.
        let output = child
            .wait_with_output()
            .map_err(OracleError::io("wait for", &self.program))?;
        read?;
        if output.status.success() {
            return Ok(());
        }
        Err(OracleError::Program {
            program: PROGRAM,
            path: self.folder.join("pg_wal"),
            reason: one_line(&String::from_utf8_lossy(&output.stderr)),
        })
    }

    fn read(&self, mut out: impl BufRead, each: &mut impl FnMut(&Record)) -> Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = out
                .read_until(b'\n', &mut line)
                .map_err(OracleError::io("read from", &self.program))?;
            if read == 0 {
                return Ok(());
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end();
            // Skip notes about skipped bytes, and further lines of a user's text.
            if !text.starts_with("rmgr: ") {
                continue;
            }
            let record = Record::parse(text).ok_or_else(|| OracleError::Answer {
                program: PROGRAM,
                path: self.folder.clone(),
                line: text.chars().take(200).collect(),
            })?;
            each(&record);
        }
    }

    /// The end of a record, which replay sets as the LSN of pages. The headers of the WAL pages
    /// that the record crosses are counted in.
    fn end(&self, record: &Record) -> Lsn {
        const SHORT_HEADER: u64 = 24;
        const LONG_HEADER: u64 = 40;
        let start = u64::from(record.start);
        if record.manager == "XLOG" && record.operation == "SWITCH" {
            return Lsn::from((start / self.segment_size + 1) * self.segment_size);
        }
        let mut left = record.length.next_multiple_of(8);
        let mut at = start;
        loop {
            let room = self.page_size - at % self.page_size;
            if left <= room {
                return Lsn::from(at + left);
            }
            left -= room;
            at += room;
            at += match at % self.segment_size {
                0 => LONG_HEADER,
                _ => SHORT_HEADER,
            };
        }
    }
}

impl<'a> Record<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (head, description) = line.split_once(", desc: ")?;
        let manager = head.strip_prefix("rmgr: ")?.split(' ').next()?;
        let (_, lengths) = head.split_once("len (rec/tot):")?;
        let total = lengths.split(',').next()?.split('/').nth(1)?;
        let (_, start) = head.split_once(", lsn: ")?;
        Some(Self {
            manager,
            length: total.trim().parse().ok()?,
            start: start.split(',').next()?.parse().ok()?,
            operation: description.split([' ', ',']).next().unwrap_or_default(),
            description,
        })
    }
}

/// The blocks at the end of a record's description.
fn references(description: &str) -> impl Iterator<Item = BlockReference> + '_ {
    description.split(", blkref #").skip(1).filter_map(|text| {
        let (number, text) = text.split_once(": rel ")?;
        let (relation, text) = text.split_once(' ')?;
        let mut oids = relation.split('/').map(str::parse::<u32>);
        let relation = Relation {
            tablespace: oids.next()?.ok()?,
            database: oids.next()?.ok()?,
            number: oids.next()?.ok()?,
        };
        let (fork, text) = match text.strip_prefix("fork ") {
            Some(text) => {
                let (fork, text) = text.split_once(' ')?;
                (Fork::named(fork)?, text)
            }
            None => (Fork::Main, text),
        };
        let mut words = text.strip_prefix("blk ")?.split(' ');
        Some(BlockReference {
            number: number.parse().ok()?,
            fork: RelationFork { relation, fork },
            block: words.next()?.parse().ok()?,
            image: words.next() == Some("FPW"),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSERT: &str = "rmgr: Heap2       len (rec/tot):     59/  8227, tx:        735, lsn: 1/015237A0, prev 1/01523768, desc: VISIBLE cutoff xid 734 flags 0x03, blkref #0: rel 1663/5/16385 fork vm blk 7 FPW, blkref #1: rel 1663/5/16385 blk 14";

    fn wal() -> Wal {
        Wal {
            program: PathBuf::new(),
            folder: PathBuf::new(),
            timeline: Timeline::FIRST,
            segment_size: 1 << 24,
            page_size: 8192,
            redo: Lsn::from(0x300_0028),
        }
    }

    #[test]
    fn records_are_understood() {
        let record = Record::parse(INSERT).unwrap();
        assert_eq!((record.manager, record.operation), ("Heap2", "VISIBLE"));
        assert_eq!(record.start, Lsn::from(0x1_0152_37a0));
        assert_eq!(record.length, 8227);
        let blocks: Vec<_> = references(record.description).collect();
        assert_eq!(blocks.len(), 2);
        let [map, heap] = &blocks[..] else { panic!() };
        assert_eq!(
            (map.fork.fork, map.block, map.image),
            (Fork::Visibility, 7, true)
        );
        assert_eq!(
            (heap.fork.fork, heap.block, heap.image),
            (Fork::Main, 14, false)
        );
        assert!(stamps(&record, map) && !stamps(&record, heap));
        assert!(Record::parse("rmgr: Heap").is_none());
    }

    #[test]
    fn a_page_of_the_map_keeps_its_lsn_when_bits_are_cleared() {
        let stamped = |operation, description| {
            let record = Record {
                manager: "Heap",
                length: 54,
                start: Lsn::from(0x300_0028),
                operation,
                description,
            };
            references(description)
                .map(|reference| stamps(&record, &reference))
                .collect::<Vec<_>>()
        };
        let both = ", blkref #0: rel 1663/5/9 blk 3, blkref #1: rel 1663/5/9 fork vm blk 0";
        assert_eq!(stamped("INSERT", both), [true, false]);
        assert_eq!(stamped("INSERT", &format!("{both} FPW")), [true, true]);
    }

    #[test]
    fn a_record_ends_behind_the_headers_it_crosses() {
        let wal = wal();
        let end = |start: u64, length: u64| {
            u64::from(wal.end(&Record {
                manager: "Heap",
                length,
                start: Lsn::from(start),
                operation: "INSERT",
                description: "",
            }))
        };
        assert_eq!(end(0x300_0028, 54), 0x300_0028 + 56);
        // exactly to the end of the page
        assert_eq!(end(0x300_1fc8, 56), 0x300_2000);
        assert_eq!(end(0x300_1fc8, 57), 0x300_2000 + 24 + 8);
        // a segment begins with a long header
        assert_eq!(end(0x3ff_fff8, 16), 0x400_0000 + 40 + 8);
        assert_eq!(end(0x300_1ff8, 8 + 8168 + 8), 0x300_4000 + 24 + 8);
    }

    #[test]
    fn truncated_blocks_and_new_files_are_forgotten() {
        let wal = wal();
        let mut required = Required::default();
        let mut note = |line: &str| {
            let record = Record::parse(line).unwrap();
            let end = wal.end(&record);
            required.note(&record, end);
            required.pages.values().map(HashMap::len).sum::<usize>()
        };
        let line = |rest: &str| {
            format!("rmgr: {rest}").replacen(
                " desc",
                " len (rec/tot):     54/    54, tx:        735, lsn: 0/015237A0, prev 0/01523768, desc",
                1,
            )
        };
        assert_eq!(
            note(&line(
                "Heap desc: INSERT off 1, blkref #0: rel 1663/5/9 blk 3"
            )),
            1
        );
        assert_eq!(
            note(&line(
                "Heap desc: INSERT off 1, blkref #0: rel 1663/5/9 blk 4"
            )),
            2
        );
        assert_eq!(
            note(&line(
                "Heap desc: INSERT off 1, blkref #0: rel 1663/5/8 blk 4"
            )),
            3
        );
        assert_eq!(
            note(&line("Storage desc: TRUNCATE base/5/9 to 4 blocks flags 7")),
            2
        );
        assert_eq!(note(&line("Storage desc: CREATE base/5/8")), 1);
    }
}
