//! A record as the simulation needs it, and what must be done before it.
//!
//! The planner sees records in the order of the WAL, as dispatch does (`note_blocks()` and
//! `blocks_exist()` in `extension/src/replay/pipeline.c`). What it cannot know is which blocks exist:
//! it takes a relation's blocks as existing, unless the relation was made in this WAL. Then its first
//! block is missing, and its free space map until a record is about a second block.

use std::collections::HashMap;

use crate::class::{self, Cause, Class, QUEUE_BLOCKS, QueueSize};
use crate::costs::{self, Costs, Parts};
use crate::names::manager;
use crate::record::{Block, Record, Relation};

/// Slots of the pipeline's table of blocks (`LS_BLOCK_SLOTS`); two blocks of one slot count as the
/// same.
const BLOCK_SLOTS: usize = 32 * 1024;

/// Most relations made in this WAL that are remembered.
const MOST_MADE: usize = 100_000;

/// Record of resource manager Storage that makes a file.
const STORAGE_CREATE: u8 = 0x10;

/// Time in tenths of ns.
pub type Ticks = u64;

pub fn ticks(ns: f64) -> Ticks {
    // Costs are at most a second and never negative.
    (ns * 10.0).round() as Ticks
}

/// A record in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    pub class: Class,
    /// Numbers of jobs that must be done before, from 1 in each batch; 0 is none.
    pub after: [u32; QUEUE_BLOCKS],
    pub blocks: u8,
    /// What the startup process takes to read it, and whoever executes it for redo.
    pub read: Ticks,
    pub redo: Ticks,
    /// Memory in the queue, in bytes, and what must be free before it is decoded.
    pub memory: u64,
    pub needs: u64,
}

/// A relation that was made in this WAL.
#[derive(Debug, Clone, Copy, Default)]
struct Made {
    first_block: bool,
    free_space_map: bool,
}

/// Makes jobs of records.
#[derive(Debug)]
pub struct Planner {
    costs: Costs,
    queue: QueueSize,
    /// The number of the last job that has a block, by a hash of the block's name.
    last: Vec<u64>,
    number: u64,
    /// The number before the batch's first job.
    base: u64,
    made: HashMap<Relation, Made>,
}

impl Planner {
    pub fn new(costs: Costs, queue: QueueSize) -> Self {
        Self {
            costs,
            queue,
            last: vec![0; BLOCK_SLOTS],
            number: 0,
            base: 0,
            made: HashMap::new(),
        }
    }

    /// All jobs so far are done before the next ones begin.
    pub fn begin_batch(&mut self) {
        self.base = self.number;
    }

    /// The next job, and the parts of its cost.
    pub fn job(&mut self, record: &Record) -> (Job, Parts) {
        self.number += 1;
        let needs = class::decoded_bytes(record.header.length);
        let class = self.class_of(record, needs > self.queue.0);
        let after = self.note_blocks(record);
        let parts = costs::parts_of(record);
        let (read, redo) = self.costs.of(&parts);
        let job = Job {
            class,
            after,
            blocks: u8::try_from(record.blocks.len()).unwrap_or(u8::MAX),
            read: ticks(read),
            redo: ticks(redo),
            memory: class::kept_bytes(record),
            needs,
        };
        (job, parts)
    }

    fn class_of(&mut self, record: &Record, oversized: bool) -> Class {
        let class = class::classify(record, oversized);
        self.note_made(record);
        let missing = class == Class::Ahead
            && (record.blocks.iter().any(|block| self.is_missing(block))
                || class::may_change_free_space_map(record) && self.lacks_map(record));
        self.note_blocks_made(record);
        match missing {
            true => Class::Inline(Cause::Missing),
            false => class,
        }
    }

    fn note_made(&mut self, record: &Record) {
        if record.header.manager != manager::SMGR || record.operation() != STORAGE_CREATE {
            return;
        }
        let mut numbers = record.main.chunks_exact(4).map(|bytes| {
            let bytes = bytes.first_chunk::<4>().copied().unwrap_or_default();
            u32::from_ne_bytes(bytes)
        });
        let mut next = || numbers.next().unwrap_or_default();
        let relation = Relation {
            tablespace: next(),
            database: next(),
            number: next(),
        };
        let is_main_fork = next() == 0;
        if is_main_fork && self.made.len() < MOST_MADE {
            self.made.insert(relation, Made::default());
        }
    }

    fn is_missing(&self, block: &Block) -> bool {
        let made = self.made.get(&block.relation);
        block.fork == 0 && made.is_some_and(|made| !made.first_block)
    }

    fn lacks_map(&self, record: &Record) -> bool {
        record.blocks.first().is_some_and(|block| {
            let made = self.made.get(&block.relation);
            made.is_some_and(|made| !made.free_space_map)
        })
    }

    fn note_blocks_made(&mut self, record: &Record) {
        for block in record.blocks.iter().filter(|block| block.fork == 0) {
            if let Some(made) = self.made.get_mut(&block.relation) {
                made.first_block = true;
                made.free_space_map = made.free_space_map || block.number > 0;
            }
        }
    }

    fn note_blocks(&mut self, record: &Record) -> [u32; QUEUE_BLOCKS] {
        let mut after = [0; QUEUE_BLOCKS];
        for block in &record.blocks {
            let last = self.last.get(slot(block)).copied().unwrap_or_default();
            if let Some(place) = after.get_mut(usize::from(block.id)) {
                let number = last.saturating_sub(self.base);
                *place = u32::try_from(number).unwrap_or(0);
            }
        }
        for block in &record.blocks {
            if let Some(last) = self.last.get_mut(slot(block)) {
                *last = self.number;
            }
        }
        after
    }
}

/// As `last_slot()` in pipeline.c.
fn slot(block: &Block) -> usize {
    let hash = block.relation.number.wrapping_mul(0x9E37_79B1);
    let fork = u32::from(block.fork) << 28;
    let hash = (hash ^ block.number ^ fork).wrapping_mul(0x85EB_CA6B);
    // Below BLOCK_SLOTS.
    (hash ^ (hash >> 15)) as usize % BLOCK_SLOTS
}
