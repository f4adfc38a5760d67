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
use crate::record::Record;
use crate::{Result, WalError};

/// Most of one cost, in ns: a second.
const MOST_NS: f64 = 1e9;

/// Most that a byte may cost, in ns: all WAL that there can be is read in less than 584 years then.
const MOST_BYTE_NS: f64 = 1e4;

/// Largest file that is read, in bytes.
pub const MOST_FILE: u64 = 1 << 20;

/// How many parts there are.
pub const PARTS: usize = 9;

/// How often each part of a cost occurs.
pub type Parts = [f64; PARTS];

/// The parts of a record's cost. The first two are the startup process's whoever executes the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Reading and decoding it, and what is done once for each record.
    Record,
    /// A byte of it.
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
    /// A page that is replaced by its image.
    Image,
}

/// How many of the parts are reading.
const READING: usize = 2;

/// Costs in ns, and where they were measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// The machine that they were measured on.
    pub machine: String,
    /// When.
    pub measured: String,
    /// Of which PostgreSQL.
    pub postgresql: String,
    pub record_ns: f64,
    pub byte_ns: f64,
    pub heap_ns: f64,
    pub cleanup_ns: f64,
    pub btree_ns: f64,
    pub transaction_ns: f64,
    pub other_ns: f64,
    pub block_ns: f64,
    pub image_ns: f64,
    pub pipeline: PipelineCosts,
}

/// What replay by several processes adds, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineCosts {
    /// Startup: a record is entered into the queue, and a block of it into the table of blocks.
    pub dispatch_ns: f64,
    pub dispatch_block_ns: f64,
    /// Startup: a record's turn has come.
    pub retire_ns: f64,
    /// Helper: a record is claimed and found ready, and a block of it found.
    pub helper_ns: f64,
    pub helper_block_ns: f64,
    /// From the end of a record until the process that waits for it goes on.
    pub wait_ns: f64,
    /// The same if that process sleeps; and how long it looks before it does.
    pub wake_ns: f64,
    pub spin_ns: f64,
    /// What it takes to wake a process.
    pub signal_ns: f64,
}

impl PipelineCosts {
    /// All work multiplied; how long processes look and sleep stays.
    pub fn scaled(self, by: f64) -> Self {
        Self {
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

    fn all(&self) -> [f64; 9] {
        [
            self.dispatch_ns,
            self.dispatch_block_ns,
            self.retire_ns,
            self.helper_ns,
            self.helper_block_ns,
            self.wait_ns,
            self.wake_ns,
            self.spin_ns,
            self.signal_ns,
        ]
    }
}

impl Default for PipelineCosts {
    /// Estimates: a record in the queue is some cache lines that another core has written, and a
    /// process that sleeps wakes within tens of microseconds.
    fn default() -> Self {
        Self {
            dispatch_ns: 120.0,
            dispatch_block_ns: 60.0,
            retire_ns: 60.0,
            helper_ns: 150.0,
            helper_block_ns: 60.0,
            wait_ns: 200.0,
            wake_ns: 40_000.0,
            spin_ns: 60_000.0,
            signal_ns: 2_000.0,
        }
    }
}

/// The table that is used unless the user names another.
const BUILT_IN: &str = include_str!("costs.json");

impl Costs {
    /// The built-in table.
    pub fn built_in() -> Result<Self> {
        Self::from_json(BUILT_IN, "the built-in table of costs")
    }

    pub fn read(path: &Path) -> Result<Self> {
        let file = path.display().to_string();
        let read = |source| WalError::Read {
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
        if costs.byte_ns > MOST_BYTE_NS {
            return Err(bad(format!(
                "byte_ns is above {MOST_BYTE_NS} ns, which no byte costs"
            )));
        }
        Ok(costs)
    }

    /// By [`Part`].
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
            self.image_ns,
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
            image_ns,
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
            image_ns,
            ..self
        }
    }

    /// What reading a record costs, and what its redo does.
    pub fn of(&self, parts: &Parts) -> (f64, f64) {
        let cost = |from: usize, to: usize| -> f64 {
            let both = parts.iter().zip(self.parts());
            both.skip(from).take(to - from).map(|(n, ns)| n * ns).sum()
        };
        (cost(0, READING), cost(READING, PARTS))
    }
}

/// A file's text. None if it is larger than [`MOST_FILE`], as a device is.
pub(crate) fn text_of(path: &Path) -> io::Result<Option<String>> {
    let mut text = String::new();
    let read = File::open(path)?
        .take(MOST_FILE + 1)
        .read_to_string(&mut text)?;
    Ok((read as u64 <= MOST_FILE).then_some(text))
}

/// The parts of a record's cost.
pub fn parts_of(record: &Record) -> Parts {
    let mut parts = [0.0; PARTS];
    let mut add = |part: Part, count: f64| {
        if let Some(place) = parts.get_mut(part as usize) {
            *place += count;
        }
    };
    add(Part::Record, 1.0);
    add(Part::Byte, f64::from(record.header.length));
    let restored = record.blocks.iter().filter(|block| block.is_restored());
    let restored = restored.count();
    let changed = record.blocks.len() - restored;
    add(Part::Image, restored as f64);
    add(Part::Block, changed as f64);
    // Redo of a record whose pages all have images does nothing else.
    if changed > 0 || record.blocks.is_empty() {
        let operation = record.operation() & 0x70;
        let part = match record.header.manager {
            manager::HEAP => Part::Heap,
            manager::HEAP2 if matches!(operation, 0x10 | 0x20 | 0x30) => Part::Cleanup,
            manager::HEAP2 => Part::Heap,
            manager::BTREE => Part::Btree,
            manager::XACT => Part::Transaction,
            _ => Part::Other,
        };
        add(part, 1.0);
    }
    parts
}
