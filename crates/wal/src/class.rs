//! Which records may run ahead of their turn: the rules of `extension/src/replay/record_class.c`,
//! which says why each is as it is. A test compares both on records of every kind, before
//! consistency and in hot standby (`tests/wal/classes.rs`); who changes one changes the other.

use crate::limits::BLOCKS;
use crate::names::manager;
use crate::record::{Block, ForkNumber, Record};

/// Bytes of a decoded record's memory that the record's own bytes do not need, for the record and
/// for each block number that it could have: what the server sets aside before it decodes one.
const DECODED: u64 = 88;
const DECODED_BLOCK: u64 = 64;

/// Operations that hot standby tells apart.
const BTREE_INSERT_LEAF: u8 = 0x00;
const BTREE_INSERT_UPPER: u8 = 0x10;
const BTREE_SPLIT_L: u8 = 0x30;
const BTREE_SPLIT_R: u8 = 0x40;
const BTREE_INSERT_POST: u8 = 0x50;
const BTREE_REUSE_PAGE: u8 = 0xD0;
const HEAP2_MULTI_INSERT: u8 = 0x50;
const HEAP2_LOCK_UPDATED: u8 = 0x60;
const XLOG_IMAGE: u8 = 0xB0;

/// Forks by their number.
pub(crate) const MAIN_FORK: ForkNumber = 0;
pub(crate) const FREE_SPACE_FORK: ForkNumber = 1;
pub(crate) const VISIBILITY_FORK: ForkNumber = 2;

/// Entries of a page of the free space map.
const SLOTS_PER_MAP_PAGE: u32 = 4069;

/// Heap blocks that have their bits in one page of the visibility map.
const HEAP_BLOCKS_PER_MAP_PAGE: u32 = 8_168 * 4;

/// What a commit may say besides its transaction's end to be no barrier: the database,
/// subtransactions, the origin, and that the committer waits for `remote_apply`.
const HARMLESS_XINFO: u32 = 1 | 1 << 1 | 1 << 5 | 1 << 29;

/// Bytes of a commit or abort before what its flags announce.
const XINFO_AT: usize = 8;

/// Flags of a record of 17 or 18 that prunes: it needs the page's cleanup lock, freezes, or removes.
const PRUNE_CLEANUP_LOCK: u8 = 1 << 2;
const PRUNE_FREEZES: u8 = 1 << 4;
const PRUNE_REMOVES: u8 = 1 << 5 | 1 << 6 | 1 << 7;

/// Which of the extension's two stages replays the WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stage {
    /// Crash recovery, a base backup that is restored, the start of a standby: nobody reads.
    #[default]
    BeforeConsistency,
    /// Sessions may read (`lockstep.replay_hot_standby`).
    HotStandby,
}

/// The rules by which records are classed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    pub stage: Stage,
    /// PostgreSQL's, whose records some differ in.
    pub major: u32,
}

impl Rules {
    pub fn class_of(self, record: &Record, oversized: bool) -> Class {
        match self.stage {
            Stage::BeforeConsistency => classify(record, oversized),
            Stage::HotStandby => classify_hot(record, self.major, oversized),
        }
    }

    pub fn is_hot(self) -> bool {
        self.stage == Stage::HotStandby
    }
}

/// How a record is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A helper may execute it.
    Ahead,
    /// Hot standby: ahead if nobody sees what it removes, else inline.
    Removal,
    /// Ahead if no record that names the visibility map's page is on its way, else inline.
    ClearsMap,
    /// The startup process executes it at its turn.
    Inline(Cause),
    /// Like inline, and nothing behind it begins before it is replayed.
    Barrier(Cause),
}

/// Why a record is not for helpers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Records of this kind are replayed at their turn.
    Kind,
    /// A block of it does not exist, or may be new.
    Missing,
    /// The record changes the visibility map, or is an image of the free space map.
    Map,
    /// The record has too many blocks, or there is no room for it in the queue.
    Large,
    /// Barrier: files, relations, locks.
    Ddl,
    /// Barrier: checkpoints and other changes of state.
    Checkpoint,
    /// Barrier: all other kinds.
    Unknown,
}

impl Cause {
    pub const ALL: [Self; 7] = [
        Self::Kind,
        Self::Missing,
        Self::Map,
        Self::Large,
        Self::Ddl,
        Self::Checkpoint,
        Self::Unknown,
    ];

    /// Nothing behind such a record begins before it has retired.
    pub fn is_barrier(self) -> bool {
        matches!(self, Self::Ddl | Self::Checkpoint | Self::Unknown)
    }

    /// The word for it in the view `lockstep_stat_replay_pipeline`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kind => "kind",
            Self::Missing => "missing",
            Self::Map => "map",
            Self::Large => "large",
            Self::Ddl => "ddl",
            Self::Checkpoint => "checkpoint",
            Self::Unknown => "unknown",
        }
    }
}

/// Room of the queue in which a record must fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueSize(pub u64);

impl Default for QueueSize {
    /// The default of `lockstep.replay_queue_size`.
    fn default() -> Self {
        Self(4 << 20)
    }
}

/// What the server sets aside to decode a record of `length` bytes.
pub fn decoded_bytes(length: u32) -> u64 {
    let blocks = u64::from(crate::record::MAX_BLOCK_ID) + 1;
    DECODED + blocks * DECODED_BLOCK + u64::from(length).next_multiple_of(8)
}

/// A record's class. `oversized`: it does not fit into the queue's memory.
pub fn classify(record: &Record, oversized: bool) -> Class {
    let class = match record.header.manager {
        manager::HEAP => heap(record),
        manager::HEAP2 => heap2(record),
        manager::BTREE => btree(record),
        manager::XLOG => xlog(record),
        manager::XACT => transaction(record),
        _ => other(record),
    };
    if !matches!(class, Class::Ahead | Class::ClearsMap) {
        return class;
    }
    match last_fork(record) {
        MAIN_FORK => {}
        VISIBILITY_FORK if clears_visibility_map(record) => {}
        _ => return Class::Inline(Cause::Map),
    }
    let many = record
        .max_block_id()
        .is_some_and(|last| usize::from(last) >= BLOCKS);
    match oversized || many {
        true => Class::Inline(Cause::Large),
        false => class,
    }
}

fn last_fork(record: &Record) -> ForkNumber {
    let forks = record.blocks.iter().map(|block| block.fork);
    forks.max().unwrap_or(MAIN_FORK)
}

/// Whether redo clears bits of the visibility map.
pub fn clears_visibility_map(record: &Record) -> bool {
    // The place of the flags differs, and the first one says that bits are cleared; in updates so does the
    // second, for the new tuple's page.
    match (record.header.manager, record.operation() & 0x70) {
        (manager::HEAP, 0x00) => flagged(record, 2, 1),
        (manager::HEAP, 0x10 | 0x60) => flagged(record, 7, 1),
        (manager::HEAP, 0x20 | 0x40) => flagged(record, 7, 1 | 2),
        (manager::HEAP2, HEAP2_MULTI_INSERT) => flagged(record, 0, 1),
        (manager::HEAP2, HEAP2_LOCK_UPDATED) => flagged(record, 7, 1),
        _ => false,
    }
}

/// The flags at `at` in the main data have one of `any`. False if the data ends before: the server
/// writes no such record.
fn flagged(record: &Record, at: usize, any: u8) -> bool {
    record.main.get(at).is_some_and(|flags| flags & any != 0)
}

fn ahead_or_clears_map(record: &Record) -> Class {
    if !clears_visibility_map(record) {
        return Class::Ahead;
    }
    let mut cleared = record
        .blocks
        .iter()
        .filter(|block| clears_bits_of(record, block));
    if cleared.all(|block| names_map(record, block)) {
        return Class::Ahead;
    }
    match last_fork(record) {
        VISIBILITY_FORK => Class::Inline(Cause::Map),
        _ => Class::ClearsMap,
    }
}

/// Whether it is a heap page whose bits a record clears that clears some. An update has flags for both of its
/// pages.
fn clears_bits_of(record: &Record, block: &Block) -> bool {
    let is_update =
        record.header.manager == manager::HEAP && matches!(record.operation() & 0x70, 0x20 | 0x40);
    let has_old_page = || {
        let mut blocks = record.blocks.iter();
        blocks.any(|block| block.id == 1 && block.fork == MAIN_FORK)
    };
    if block.fork != MAIN_FORK || !is_update {
        return block.fork == MAIN_FORK;
    }
    let flags = match (block.id, has_old_page()) {
        (1, _) => 1,
        (_, true) => 2,
        (_, false) => 1 | 2,
    };
    flagged(record, 7, flags)
}

/// Whether the page of the map that has this heap block's bits is among the record's blocks.
fn names_map(record: &Record, block: &Block) -> bool {
    let page = visibility_map_block(block.number);
    let mut blocks = record.blocks.iter();
    blocks.any(|block| block.fork == VISIBILITY_FORK && block.number == page)
}

fn heap(record: &Record) -> Class {
    match record.operation() & 0x70 {
        0x00 | 0x10 | 0x20 | 0x40 | 0x60 => ahead_or_clears_map(record),
        0x30 | 0x50 => Class::Inline(Cause::Kind),
        _ => Class::Barrier(Cause::Ddl),
    }
}

fn heap2(record: &Record) -> Class {
    match record.operation() & 0x70 {
        // Prune, freeze, vacuum; their names differ from 17 on.
        0x10 | 0x20 | 0x30 => Class::Ahead,
        // Set for all frozen.
        HEAP2_MULTI_INSERT if flagged(record, 0, 1 << 5) => Class::Inline(Cause::Map),
        HEAP2_MULTI_INSERT | HEAP2_LOCK_UPDATED => ahead_or_clears_map(record),
        0x00 => Class::Barrier(Cause::Ddl),
        0x70 => Class::Inline(Cause::Kind),
        _ => Class::Inline(Cause::Map),
    }
}

fn btree(record: &Record) -> Class {
    match record.operation() {
        // Insertions, splits, deduplication, delete; vacuum.
        0x00..=0x70 | 0xC0 => Class::Ahead,
        _ => Class::Inline(Cause::Kind),
    }
}

fn xlog(record: &Record) -> Class {
    match record.operation() {
        0xA0 | 0xB0 => Class::Ahead,
        _ => Class::Barrier(Cause::Checkpoint),
    }
}

fn transaction(record: &Record) -> Class {
    let info = record.header.info;
    let xinfo = match info & 0x70 {
        // Commit and abort.
        0x00 | 0x20 if info & 0x80 != 0 => {
            let flags = record.main.get(XINFO_AT..XINFO_AT + 4);
            let flags = flags.and_then(|bytes| bytes.first_chunk::<4>());
            flags.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        }
        // Assignment of subtransactions, invalidations.
        0x00 | 0x20 | 0x50 | 0x60 => 0,
        // Two-phase.
        _ => return Class::Barrier(Cause::Unknown),
    };
    match xinfo & !HARMLESS_XINFO {
        0 => Class::Inline(Cause::Kind),
        _ => Class::Barrier(Cause::Ddl),
    }
}

fn other(record: &Record) -> Class {
    let operation = record.operation();
    let harmless = match record.header.manager {
        manager::GIN
        | manager::GIST
        | manager::SPGIST
        | manager::HASH
        | manager::BRIN
        | manager::GENERIC
        | manager::SEQ
        | manager::LOGICALMSG => true,
        // A new page.
        manager::CLOG => operation == 0x00,
        // All but truncation.
        manager::MULTIXACT => operation != 0x30,
        // Running transactions, invalidations.
        manager::STANDBY => matches!(operation, 0x10 | 0x20),
        _ => false,
    };
    match harmless {
        true => Class::Inline(Cause::Kind),
        false => Class::Barrier(Cause::Unknown),
    }
}

/// A record's class while sessions read, with the record formats of PostgreSQL `major`.
pub fn classify_hot(record: &Record, major: u32, oversized: bool) -> Class {
    let class = classify(record, oversized);
    let ahead = class == Class::Ahead;
    match record.header.manager {
        manager::MULTIXACT => Class::Barrier(Cause::Unknown),
        manager::BTREE if ahead || record.operation() == BTREE_REUSE_PAGE => btree_hot(record),
        manager::HEAP2 if ahead || class == Class::ClearsMap => heap2_hot(record, class, major),
        manager::XLOG if ahead && record.operation() == XLOG_IMAGE => Class::Inline(Cause::Kind),
        _ => class,
    }
}

fn btree_hot(record: &Record) -> Class {
    match record.operation() {
        // What adds an item waits for the heap records of its transaction, which it must have.
        BTREE_INSERT_LEAF | BTREE_SPLIT_L | BTREE_SPLIT_R | BTREE_INSERT_POST => {
            match record.header.xid {
                0 => Class::Inline(Cause::Kind),
                _ => Class::Ahead,
            }
        }
        BTREE_INSERT_UPPER => Class::Ahead,
        BTREE_REUSE_PAGE => Class::Barrier(Cause::Unknown),
        _ => Class::Inline(Cause::Kind),
    }
}

fn heap2_hot(record: &Record, class: Class, major: u32) -> Class {
    if record.operation() & 0x70 == HEAP2_MULTI_INSERT {
        return class;
    }
    let first = record.blocks.iter().find(|block| block.id == 0);
    let is_restored = first.is_some_and(Block::is_restored);
    match only_prunes(record, major) && !is_restored {
        true => Class::Removal,
        false => Class::Inline(Cause::Kind),
    }
}

/// Does it prune a page and nothing else? Asked of records of Heap2 that may run ahead.
fn only_prunes(record: &Record, major: u32) -> bool {
    let operation = record.operation() & 0x70;
    match major {
        ..=16 => operation == 0x10,
        17 | 18 => {
            matches!(operation, 0x10 | 0x20 | 0x30)
                && flagged(record, 1, PRUNE_CLEANUP_LOCK)
                && !flagged(record, 1, PRUNE_FREEZES)
                && flagged(record, 1, PRUNE_REMOVES)
        }
        // It may set the visibility map as well.
        _ => false,
    }
}

/// Whether an item of a B-tree that the same transaction inserts later may point to a tuple of this record.
pub fn adds_heap_tuples(record: &Record) -> bool {
    match record.header.manager {
        manager::HEAP => true,
        manager::HEAP2 => record.operation() & 0x70 == HEAP2_MULTI_INSERT,
        _ => false,
    }
}

/// Whether redo may record the free space of block 0. Asked of records that may run ahead.
pub fn may_change_free_space_map(record: &Record) -> bool {
    let operation = record.operation() & 0x70;
    match record.header.manager {
        manager::HEAP => matches!(operation, 0x00 | 0x20),
        manager::HEAP2 => operation != 0x60,
        _ => false,
    }
}

/// The block of the visibility map that has a heap block's bits.
pub fn visibility_map_block(heap_block: u32) -> u32 {
    heap_block / HEAP_BLOCKS_PER_MAP_PAGE
}

/// The block of the free space map that has a heap block's entry.
pub fn free_space_map_block(heap_block: u32) -> u32 {
    let mut block = 0_u32;
    let mut before = heap_block / SLOTS_PER_MAP_PAGE;
    for _ in 0..3 {
        block = block.saturating_add(before).saturating_add(1);
        before /= SLOTS_PER_MAP_PAGE;
    }
    block - 1
}

/// Memory of a decoded record.
pub fn kept_bytes(record: &Record) -> u64 {
    let blocks = record.max_block_id().map_or(0, |last| u64::from(last) + 1);
    DECODED + blocks * DECODED_BLOCK + u64::from(record.header.length).next_multiple_of(8)
}
