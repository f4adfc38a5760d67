//! A record as the simulation needs it, and what must be done before it.
//!
//! The planner sees records in the order of the WAL, as `extension/src/replay/dispatch.c` does. What it
//! cannot know is which blocks exist: it takes a relation's blocks as existing, unless the relation was
//! made in this WAL. Then its first block is missing, and its free space map until a record is about a
//! second block. Nor can it know what sessions of a standby see: it takes them to see nothing that is
//! pruned. Nor how far replay is when it dispatches a record that clears bits of a visibility map, or enters
//! free space in a map: the record is one for helpers if the last one that names the map's page must have
//! left the queue.

use std::collections::HashMap;

use crate::class::{self, Cause, Class, QueueSize, Rules};
use crate::costs::{self, Work};
use crate::limits::{AHEAD_MAX, BLOCK_SLOTS, BLOCKS, MAP_SLOTS, XID_SLOTS};
use crate::names::manager;
use crate::record::{Block, ForkNumber, Record, Relation};

/// Slots of the table of visits, for [`costs::remoteness`].
const VISIT_SLOTS: usize = 1 << 20;

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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    pub class: Class,
    /// Numbers of jobs that must be done before, from 1 in each batch; 0 is none.
    pub after: [u32; BLOCKS],
    /// Number of the last job before it that added tuples with its transaction's slot; 0 is none.
    pub heap_before: u32,
    /// All jobs of that chain must be done before: rule 2 of `extension/src/replay/README.md`.
    pub after_heap: bool,
    pub xid_slot: u16,
    pub blocks: u8,
    pub work: Work,
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
    rules: Rules,
    queue: QueueSize,
    /// The number of the last job that has a block, by a hash of the block's name.
    last: Vec<u64>,
    /// The number of the last job that has a page of a map, by a hash of the page's name.
    last_of_map: Vec<u64>,
    /// The last job that added tuples, by its transaction's slot.
    heap: Vec<u64>,
    /// Number of each block's last visit, by a hash of the block's name.
    visited: Vec<u32>,
    visits: u32,
    number: u64,
    /// The number before the batch's first job.
    base: u64,
    made: HashMap<Relation, Made>,
}

impl Planner {
    pub fn new(rules: Rules, queue: QueueSize) -> Self {
        Self {
            rules,
            queue,
            last: vec![0; BLOCK_SLOTS],
            last_of_map: vec![0; MAP_SLOTS],
            heap: vec![0; XID_SLOTS],
            visited: vec![0; VISIT_SLOTS],
            visits: costs::MANY_VISITS,
            number: 0,
            base: 0,
            made: HashMap::new(),
        }
    }

    /// All jobs so far are done before the next ones begin.
    pub fn begin_batch(&mut self) {
        self.base = self.number;
    }

    pub fn job(&mut self, record: &Record) -> Job {
        self.number += 1;
        let needs = class::decoded_bytes(record.header.length);
        let class = self.class_of(record, needs > self.queue.0);
        let after = self.note_blocks(record);
        let xid_slot = record.header.xid as usize % XID_SLOTS;
        let heap_before = self.note_transaction(record, xid_slot);
        let work = Work::of(record, self.visit(record));
        Job {
            class,
            after,
            heap_before,
            after_heap: self.rules.is_hot() && record.header.manager == manager::BTREE,
            // Below 1024.
            xid_slot: xid_slot as u16,
            blocks: u8::try_from(record.blocks.len()).unwrap_or(u8::MAX),
            work,
            memory: class::kept_bytes(record),
            needs,
        }
    }

    fn class_of(&mut self, record: &Record, oversized: bool) -> Class {
        let class = match self.rules.class_of(record, oversized) {
            Class::Removal => Class::Ahead,
            Class::ClearsMap if self.may_clear_map(record) => Class::Ahead,
            Class::ClearsMap => Class::Inline(Cause::Map),
            class => class,
        };
        self.note_made(record);
        let missing = class == Class::Ahead
            && (record.blocks.iter().any(|block| self.is_missing(block))
                || class::may_change_free_space_map(record) && self.lacks_map(record));
        self.note_blocks_made(record);
        match class {
            _ if missing => Class::Inline(Cause::Missing),
            Class::Ahead if !self.may_enter_space(record) => Class::Inline(Cause::Map),
            class => class,
        }
    }

    /// Does what `dispatch_may_clear_map()` in dispatch.c does.
    fn may_clear_map(&self, record: &Record) -> bool {
        record.blocks.iter().all(|block| {
            let page = class::visibility_map_block(block.number);
            self.map_is_free(block, class::VISIBILITY_FORK, page)
        })
    }

    /// Does what `dispatch_may_enter_space()` in dispatch.c does.
    fn may_enter_space(&self, record: &Record) -> bool {
        let first = record.blocks.iter().find(|block| block.id == 0);
        !class::may_change_free_space_map(record)
            || first.is_none_or(|block| {
                let page = class::free_space_map_block(block.number);
                self.map_is_free(block, class::FREE_SPACE_FORK, page)
            })
    }

    /// Does what `dispatch_map_is_free()` in dispatch.c does.
    fn map_is_free(&self, block: &Block, map: ForkNumber, page: u32) -> bool {
        // The current record has not retired either.
        let in_queue = AHEAD_MAX as u64 + 1;
        let retired = self.base.max(self.number.saturating_sub(in_queue));
        let last = self.last_of_map.get(map_slot(block.relation, map, page));
        last.is_none_or(|last| *last <= retired)
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

    fn note_blocks(&mut self, record: &Record) -> [u32; BLOCKS] {
        let mut after = [0; BLOCKS];
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
            let slot = map_slot(block.relation, block.fork, block.number);
            let last = self.last_of_map.get_mut(slot);
            if let Some(last) = last.filter(|_| block.fork != class::MAIN_FORK) {
                *last = self.number;
            }
        }
        after
    }

    /// Does what `dispatch_note_transaction()` in dispatch.c does.
    fn note_transaction(&mut self, record: &Record, slot: usize) -> u32 {
        if record.header.xid == 0 {
            return 0;
        }
        let Some(last) = self.heap.get_mut(slot) else {
            return 0;
        };
        let before = last.saturating_sub(self.base);
        if class::adds_heap_tuples(record) {
            *last = self.number;
        }
        u32::try_from(before).unwrap_or(0)
    }

    /// Visits the record's blocks; how remote those were that it changes.
    fn visit(&mut self, record: &Record) -> f32 {
        let mut remote = 0.0;
        for block in &record.blocks {
            self.visits = self.visits.wrapping_add(1);
            let Some(last) = self.visited.get_mut(visit_slot(block)) else {
                continue;
            };
            if block.is_read() {
                remote += costs::remoteness(self.visits.wrapping_sub(*last));
            }
            *last = self.visits;
        }
        remote
    }
}

fn visit_slot(block: &Block) -> usize {
    let relation = u64::from(block.relation.number) << 8 | u64::from(block.fork);
    let hash = relation.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(block.number);
    // The upper bits are the mixed ones; below VISIT_SLOTS.
    (hash.wrapping_mul(0x517C_C1B7_2722_0A95) >> 40) as usize % VISIT_SLOTS
}

/// Does what `dispatch_map_slot()` in dispatch.c does.
fn map_slot(relation: Relation, map: ForkNumber, page: u32) -> usize {
    let hash = relation.number.wrapping_mul(0x9E37_79B1) ^ page ^ u32::from(map) << 28;
    let hash = hash.wrapping_mul(0x85EB_CA6B);
    // Below MAP_SLOTS.
    (hash ^ (hash >> 15)) as usize % MAP_SLOTS
}

/// Does what `dispatch_last_slot()` in dispatch.c does.
fn slot(block: &Block) -> usize {
    let hash = block.relation.number.wrapping_mul(0x9E37_79B1);
    let fork = u32::from(block.fork) << 28;
    let hash = (hash ^ block.number ^ fork).wrapping_mul(0x85EB_CA6B);
    // Below BLOCK_SLOTS.
    (hash ^ (hash >> 15)) as usize % BLOCK_SLOTS
}
