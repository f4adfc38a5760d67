//! What replay of a record costs, from measurements on one machine.
//!
//! A record's cost is a sum of few parts (see [`Part`]), so that few measurements are enough to find
//! them: the parts are fitted to the times that whole recoveries took (`calibrate.rs`). What the
//! pipeline adds is apart.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::names::manager;
use crate::record::{Block, Compression, HEADER, Record};
use crate::{Result, WalError};

/// Most of one cost, in ns: a second.
const MOST_NS: f64 = 1e9;

/// Most that a byte may cost, in ns: all WAL that there can be is read in less than 584 years then.
const MOST_BYTE_NS: f64 = 1e4;

/// Largest file that is read, in bytes.
pub const MOST_FILE: u64 = 1 << 20;

/// How many parts there are.
pub const PARTS: usize = 13;

/// Occurrences of each part of a cost.
pub type Parts = [f64; PARTS];

/// The parts of a record's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Reading and decoding it, and what the startup process does once for each record.
    Record,
    /// Reading a byte of it: from the file, for its checksum, into the queue.
    Byte,
    /// A change of a heap page.
    Heap,
    /// Pruning, freezing, vacuum of a heap page.
    Cleanup,
    /// A change of a B-tree page.
    Btree,
    /// The end of a transaction.
    Transaction,
    /// Any other record.
    Other,
    /// A block that is found and changed.
    Block,
    /// What a block costs in addition if nothing of it is in the processor's caches ([`remoteness`]).
    Remote,
    /// A page that is made: the relation is extended, and a buffer found for it.
    New,
    /// A page that is replaced by its image.
    Image,
    /// A byte that redo puts into a page: what is neither header nor image.
    Data,
    /// Decompression of an image, as much work as lz4 has with one.
    Unpack,
}

/// Costs in ns, and where they were measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// The machine that they were measured on.
    pub machine: String,
    /// When.
    pub measured: String,
    /// The PostgreSQL that was measured.
    pub postgresql: String,
    pub record_ns: f64,
    pub byte_ns: f64,
    pub heap_ns: f64,
    pub cleanup_ns: f64,
    pub btree_ns: f64,
    pub transaction_ns: f64,
    pub other_ns: f64,
    pub block_ns: f64,
    pub remote_ns: f64,
    pub new_ns: f64,
    pub image_ns: f64,
    /// Tables of before have neither.
    #[serde(default)]
    pub data_ns: f64,
    #[serde(default)]
    pub unpack_ns: f64,
    pub pipeline: PipelineCosts,
}

/// What Lockstep adds, in ns, and what it spares.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineCosts {
    /// Share of the costs of [`Part::Block`] and [`Part::Remote`] that is spared, since buffers are
    /// remembered and memory is asked for before (`lockstep.replay_look_ahead`).
    pub hidden: f64,
    /// What that takes for each record in one process.
    pub look_ahead_ns: f64,
    /// Startup: a record is entered into the queue, and a block of it into the table of blocks.
    pub dispatch_ns: f64,
    pub dispatch_block_ns: f64,
    /// Startup: a record's turn has come.
    pub retire_ns: f64,
    /// Helper: a record is claimed and found ready, and a block of it found.
    pub helper_ns: f64,
    pub helper_block_ns: f64,
    /// Time from the end of a record until the process that waits for it goes on.
    pub wait_ns: f64,
    /// The cost of that wait if that process sleeps; and how long it looks before it does.
    pub wake_ns: f64,
    pub spin_ns: f64,
    /// What it takes to wake a process.
    pub signal_ns: f64,
    /// Hot standby: the minimum recovery point is raised, once in a segment.
    pub point_ns: f64,
}

impl PipelineCosts {
    /// All work multiplied; how long processes look and sleep stays.
    pub fn scaled(self, by: f64) -> Self {
        Self {
            look_ahead_ns: self.look_ahead_ns * by,
            dispatch_ns: self.dispatch_ns * by,
            dispatch_block_ns: self.dispatch_block_ns * by,
            retire_ns: self.retire_ns * by,
            helper_ns: self.helper_ns * by,
            helper_block_ns: self.helper_block_ns * by,
            wait_ns: self.wait_ns * by,
            signal_ns: self.signal_ns * by,
            ..self
        }
    }

    fn rounded(self) -> Self {
        Self {
            hidden: three_digits(self.hidden),
            look_ahead_ns: three_digits(self.look_ahead_ns),
            dispatch_ns: three_digits(self.dispatch_ns),
            dispatch_block_ns: three_digits(self.dispatch_block_ns),
            retire_ns: three_digits(self.retire_ns),
            helper_ns: three_digits(self.helper_ns),
            helper_block_ns: three_digits(self.helper_block_ns),
            wait_ns: three_digits(self.wait_ns),
            wake_ns: three_digits(self.wake_ns),
            spin_ns: three_digits(self.spin_ns),
            signal_ns: three_digits(self.signal_ns),
            point_ns: three_digits(self.point_ns),
        }
    }

    fn all(&self) -> [f64; 11] {
        [
            self.look_ahead_ns,
            self.dispatch_ns,
            self.dispatch_block_ns,
            self.retire_ns,
            self.helper_ns,
            self.helper_block_ns,
            self.wait_ns,
            self.wake_ns,
            self.spin_ns,
            self.signal_ns,
            self.point_ns,
        ]
    }
}

impl Default for PipelineCosts {
    /// Estimates: a record in the queue is some cache lines that another core has written, and a
    /// process that sleeps wakes within tens of microseconds.
    fn default() -> Self {
        Self {
            hidden: 0.5,
            look_ahead_ns: 60.0,
            dispatch_ns: 120.0,
            dispatch_block_ns: 60.0,
            retire_ns: 60.0,
            helper_ns: 150.0,
            helper_block_ns: 60.0,
            wait_ns: 200.0,
            wake_ns: 40_000.0,
            spin_ns: 60_000.0,
            signal_ns: 2_000.0,
            point_ns: 1_000_000.0,
        }
    }
}

/// The table that is used unless the user names another.
const BUILT_IN: &str = include_str!("costs.json");

/// Where calibration begins. No measurement of times has gone into it, so that what is predicted of
/// recoveries that are left out rests on nothing measured of them.
const ESTIMATES: &str = include_str!("estimates.json");

impl Costs {
    /// The built-in table.
    pub fn built_in() -> Result<Self> {
        Self::from_json(BUILT_IN, "the built-in table of costs")
    }

    /// The table near which calibration looks for another.
    pub fn estimates() -> Result<Self> {
        Self::from_json(ESTIMATES, "the table of estimates")
    }

    pub fn read(path: &Path) -> Result<Self> {
        let file = path.display().to_string();
        let read = |source| WalError::ReadCosts {
            file: file.clone(),
            source,
        };
        match text_of(path).map_err(read)? {
            Some(text) => Self::from_json(&text, &file),
            None => Err(WalError::Costs {
                file,
                reason: format!("it has more than {MOST_FILE} bytes"),
            }),
        }
    }

    fn from_json(text: &str, file: &str) -> Result<Self> {
        let bad = |reason: String| WalError::Costs {
            file: file.to_owned(),
            reason,
        };
        let costs: Self = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        let all = costs.parts().into_iter().chain(costs.pipeline.all());
        for cost in all {
            if !(0.0..=MOST_NS).contains(&cost) {
                return Err(bad(format!("{cost} ns is no cost from 0 ns to a second")));
            }
        }
        if !(0.0..=1.0).contains(&costs.pipeline.hidden) {
            return Err(bad("hidden is no share from 0 to 1".to_owned()));
        }
        if costs.byte_ns.max(costs.data_ns) > MOST_BYTE_NS {
            return Err(bad(format!(
                "byte_ns or data_ns is above {MOST_BYTE_NS} ns, which no byte costs"
            )));
        }
        Ok(costs)
    }

    /// Nanoseconds by [`Part`].
    pub fn parts(&self) -> Parts {
        [
            self.record_ns,
            self.byte_ns,
            self.heap_ns,
            self.cleanup_ns,
            self.btree_ns,
            self.transaction_ns,
            self.other_ns,
            self.block_ns,
            self.remote_ns,
            self.new_ns,
            self.image_ns,
            self.data_ns,
            self.unpack_ns,
        ]
    }

    /// These costs with other parts.
    pub fn with_parts(self, parts: Parts) -> Self {
        let [
            record_ns,
            byte_ns,
            heap_ns,
            cleanup_ns,
            btree_ns,
            transaction_ns,
            other_ns,
            block_ns,
            remote_ns,
            new_ns,
            image_ns,
            data_ns,
            unpack_ns,
        ] = parts;
        Self {
            record_ns,
            byte_ns,
            heap_ns,
            cleanup_ns,
            btree_ns,
            transaction_ns,
            other_ns,
            block_ns,
            remote_ns,
            new_ns,
            image_ns,
            data_ns,
            unpack_ns,
            ..self
        }
    }

    /// These costs rounded to three digits, which is more than measurements tell.
    pub fn rounded(self) -> Self {
        let parts = self.parts().map(three_digits);
        let pipeline = self.pipeline.rounded();
        let rounded = self.with_parts(parts);
        Self {
            pipeline,
            ..rounded
        }
    }

    /// What a record costs.
    pub fn of(&self, work: &Work) -> Priced {
        let cost = |part: Part, count: f64| self.part(part) * count;
        let found =
            cost(Part::Block, f64::from(work.changed)) + cost(Part::Remote, f64::from(work.remote));
        let rest = cost(Part::Image, f64::from(work.restored))
            + cost(Part::Data, f64::from(work.data))
            + cost(Part::Unpack, f64::from(work.unpacked))
            + work.kind.map_or(0.0, |kind| self.part(kind));
        Priced {
            read_ns: self.record_ns
                + self.byte_ns * f64::from(work.bytes)
                + cost(Part::New, f64::from(work.made)),
            stock_ns: rest + found,
            redo_ns: rest + found * (1.0 - self.pipeline.hidden),
        }
    }

    fn part(&self, part: Part) -> f64 {
        self.parts().get(part as usize).copied().unwrap_or_default()
    }
}

/// The number that is written with three digits.
fn three_digits(number: f64) -> f64 {
    format!("{number:.2e}").parse().unwrap_or(number)
}

/// What a record costs, in ns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Priced {
    /// Reading, and making pages, by the startup process whoever executes the record.
    pub read_ns: f64,
    /// Redo in stock PostgreSQL, and with Lockstep, which asks early for memory.
    pub stock_ns: f64,
    pub redo_ns: f64,
}

/// A file's text. None if it is larger than [`MOST_FILE`], as a device is.
pub(crate) fn text_of(path: &Path) -> io::Result<Option<String>> {
    let mut text = String::new();
    let read = File::open(path)?
        .take(MOST_FILE + 1)
        .read_to_string(&mut text)?;
    Ok((read as u64 <= MOST_FILE).then_some(text))
}

/// What there is to do for a record: its parts, in little memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    pub bytes: u32,
    /// Bytes of it that redo puts into pages.
    pub data: u32,
    /// None: its pages are only replaced.
    pub kind: Option<Part>,
    /// Blocks that are changed, those that are made, and those that are replaced.
    pub changed: u8,
    pub made: u8,
    pub restored: u8,
    /// Work of decompressing images, in images of lz4.
    pub unpacked: u8,
    /// Sum of the [`remoteness`] of those that are changed.
    pub remote: f32,
}

impl Work {
    pub fn of(record: &Record, remote: f32) -> Self {
        let count = |which: fn(&Block) -> bool| {
            // A record has 33 blocks at most.
            record.blocks.iter().filter(|block| which(block)).count() as u8
        };
        let restored = count(Block::is_restored);
        let changed = count(Block::is_read);
        let made = count(|block| block.will_init && !block.is_restored());
        // Redo of a record whose pages all have images does nothing else.
        let kind = (changed + made > 0 || record.blocks.is_empty()).then(|| kind_of(record));
        let bytes = record.header.length;
        let data = match kind {
            Some(_) => bytes.saturating_sub(record.image_bytes() + HEADER as u32),
            None => 0,
        };
        let unpacked = record.blocks.iter().filter(|block| block.is_restored());
        let unpacked = unpacked.filter_map(|block| Some(unpacking(block.image?.compression)));
        Self {
            bytes,
            data,
            kind,
            changed,
            made,
            restored,
            unpacked: unpacked.fold(0, u8::saturating_add),
            remote,
        }
    }

    pub fn parts(&self) -> Parts {
        let mut parts = [0.0; PARTS];
        let counts = [
            (Part::Record, 1.0),
            (Part::Byte, f64::from(self.bytes)),
            (Part::Block, f64::from(self.changed)),
            (Part::Remote, f64::from(self.remote)),
            (Part::New, f64::from(self.made)),
            (Part::Image, f64::from(self.restored)),
            (Part::Data, f64::from(self.data)),
            (Part::Unpack, f64::from(self.unpacked)),
        ];
        for (part, count) in counts.into_iter().chain(self.kind.map(|kind| (kind, 1.0))) {
            if let Some(place) = parts.get_mut(part as usize) {
                *place += count;
            }
        }
        parts
    }
}

/// How many times as much work as lz4 has. Estimates; only lz4 was measured.
fn unpacking(compression: Compression) -> u8 {
    match compression {
        Compression::None => 0,
        Compression::Lz4 => 1,
        Compression::Zstd => 3,
        Compression::Pglz => 10,
    }
}

fn kind_of(record: &Record) -> Part {
    let operation = record.operation() & 0x70;
    match record.header.manager {
        manager::HEAP => Part::Heap,
        manager::HEAP2 if matches!(operation, 0x10 | 0x20 | 0x30) => Part::Cleanup,
        manager::HEAP2 => Part::Heap,
        manager::BTREE => Part::Btree,
        manager::XACT => Part::Transaction,
        _ => Part::Other,
    }
}

/// Numbers of blocks visited since a block's last visit, between which its memory goes from the
/// caches of the core to none at all.
const NEAR: f32 = 256.0;
const FAR: f32 = 16_384.0;

/// A number of visits after which nothing is left.
pub const MANY_VISITS: u32 = 1 << 20;

/// How little of a block is still in the processor's caches when so many blocks were visited since
/// its last visit: from 0 to 1, by the logarithm of that number.
pub fn remoteness(visits: u32) -> f32 {
    ((visits as f32 / NEAR).log2() / (FAR / NEAR).log2()).clamp(0.0, 1.0)
}
