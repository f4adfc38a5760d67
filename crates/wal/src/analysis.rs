//! What WAL is made of, how much of it can run in parallel, and how fast that would be.

use std::collections::{BTreeMap, HashMap};

use lockstep_wire::Lsn;

use crate::class::{self, Cause, Class, QueueSize, Rules};
use crate::costs::{Costs, PARTS, Parts, Priced};
use crate::job::{Job, Planner};
use crate::limits::{WORTH_HELPERS, XID_SLOTS};
use crate::names;
use crate::record::{Block, Record};
use crate::segment::SegmentSize;
use crate::simulate::Simulation;

/// Most records of a batch, which bounds memory.
const MOST_JOBS: usize = 1_000_000;

/// Slots of the table of chains; two blocks of one slot count as the same.
const CHAIN_SLOTS: usize = 1 << 20;

/// Numbers of some records together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Share {
    pub records: u64,
    pub bytes: u64,
    /// Redo and reading, in ns.
    pub cost_ns: f64,
}

impl Share {
    fn add(&mut self, record: &Record, cost_ns: f64) {
        self.records += 1;
        self.bytes += u64::from(record.header.length);
        self.cost_ns += cost_ns;
    }
}

/// Records of one kind, which may have images of pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordKind {
    pub records: u64,
    pub bytes: u64,
    /// Images of pages, and their bytes.
    pub images: u64,
    pub image_bytes: u64,
}

/// Records that are not for helpers for one cause.
#[derive(Debug, Clone, Default)]
pub struct Held {
    pub share: Share,
    /// How many of each resource manager and operation.
    pub kinds: BTreeMap<(u8, u8), u64>,
}

/// The longest chain of records of which each waits for the one before.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Chain {
    pub ns: f64,
    pub records: u64,
}

impl Chain {
    fn longer(self, other: Self) -> Self {
        match other.ns > self.ns {
            true => other,
            false => self,
        }
    }
}

/// One number of helpers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    pub helpers: usize,
    /// Simulated.
    pub seconds: f64,
    pub speedup: f64,
    /// Share of the records that helpers executed.
    pub by_helpers: f64,
    /// Share of the time that the startup process waited for helpers.
    pub waited: f64,
}

/// Everything.
#[derive(Debug, Clone)]
pub struct Report {
    pub rules: Rules,
    pub first: Lsn,
    /// Where the last record ends.
    pub end: Lsn,
    pub all: Share,
    pub image_bytes: u64,
    /// All records by resource manager and operation.
    pub kinds: BTreeMap<(u8, u8), RecordKind>,
    pub ahead: Share,
    pub held: BTreeMap<Cause, Held>,
    /// Records that end a run-ahead: all behind them wait.
    pub barriers: u64,
    /// Critical path of redo alone, whoever executes it, with memory asked for early.
    pub critical: Chain,
    pub redo_ns: f64,
    /// What one process takes in stock PostgreSQL, simulated, in seconds.
    pub alone_seconds: f64,
    /// What one process takes in Lockstep without helpers, which looks ahead, in seconds.
    pub look_ahead_seconds: f64,
    /// What the startup process takes with any number of helpers: reading, dispatch, its own redo.
    pub own_seconds: f64,
    pub outcomes: Vec<Outcome>,
    /// Occurrences of each part of a cost.
    pub parts: Parts,
}

/// Takes records in their order.
#[derive(Debug)]
pub struct Analysis {
    costs: Costs,
    size: SegmentSize,
    rules: Rules,
    planner: Planner,
    simulations: Vec<Simulation>,
    batch: Vec<Job>,
    /// Where the segment of the batch's records ends.
    segment_end: Lsn,
    first: Option<Lsn>,
    end: Lsn,
    all: Share,
    image_bytes: u64,
    kinds: BTreeMap<(u8, u8), RecordKind>,
    ahead: Share,
    held: HashMap<Cause, Held>,
    barriers: u64,
    parts: Parts,
    redo_ns: f64,
    look_ahead_ns: f64,
    own_ns: f64,
    chains: Chains,
}

/// What must be done before what, with as many helpers as there can be.
#[derive(Debug)]
struct Chains {
    /// The longest chain that ends with a block.
    by_block: Vec<Chain>,
    /// Hot standby: the longest that ends with a record that adds tuples, by its transaction's slot.
    by_xid: Vec<Chain>,
    /// The longest of all, and the one that ends with the last barrier.
    longest: Chain,
    floor: Chain,
}

impl Chains {
    fn add(&mut self, record: &Record, job: &Job, ns: f64) {
        // What the startup process executes comes after everything before it.
        let mut begin = match job.class {
            Class::Ahead | Class::Removal | Class::ClearsMap => self.floor,
            Class::Inline(_) | Class::Barrier(_) => self.longest,
        };
        let xid = usize::from(job.xid_slot);
        if job.after_heap {
            begin = begin.longer(self.by_xid.get(xid).copied().unwrap_or_default());
        }
        for block in &record.blocks {
            if let Some(chain) = self.by_block.get(slot(block)) {
                begin = begin.longer(*chain);
            }
        }
        let end = Chain {
            ns: begin.ns + ns,
            records: begin.records + 1,
        };
        for block in &record.blocks {
            if let Some(chain) = self.by_block.get_mut(slot(block)) {
                *chain = end;
            }
        }
        if record.header.xid != 0 && class::adds_heap_tuples(record) {
            if let Some(chain) = self.by_xid.get_mut(xid) {
                *chain = chain.longer(end);
            }
        }
        self.longest = self.longest.longer(end);
        if matches!(job.class, Class::Barrier(_)) {
            self.floor = self.longest;
        }
    }
}

fn slot(block: &Block) -> usize {
    let relation = block.relation;
    let mut hash = 0_u64;
    for word in [
        relation.tablespace,
        relation.database,
        relation.number,
        u32::from(block.fork),
        block.number,
    ] {
        hash = (hash.rotate_left(5) ^ u64::from(word)).wrapping_mul(0x517C_C1B7_2722_0A95);
    }
    // The upper bits are the mixed ones; below CHAIN_SLOTS.
    (hash >> 40) as usize % CHAIN_SLOTS
}

impl Analysis {
    /// Simulates each number of helpers.
    pub fn new(costs: Costs, size: SegmentSize, rules: Rules, helpers: &[usize]) -> Self {
        let queue = QueueSize::default();
        let simulation = |helpers: &usize| Simulation::new(*helpers, &costs, queue, rules.stage);
        Self {
            simulations: helpers.iter().map(simulation).collect(),
            planner: Planner::new(rules, queue),
            costs,
            size,
            rules,
            batch: Vec::new(),
            segment_end: Lsn::INVALID,
            first: None,
            end: Lsn::INVALID,
            all: Share::default(),
            image_bytes: 0,
            kinds: BTreeMap::new(),
            ahead: Share::default(),
            held: HashMap::new(),
            barriers: 0,
            parts: [0.0; PARTS],
            redo_ns: 0.0,
            look_ahead_ns: 0.0,
            own_ns: 0.0,
            chains: Chains {
                by_block: vec![Chain::default(); CHAIN_SLOTS],
                by_xid: vec![Chain::default(); XID_SLOTS],
                longest: Chain::default(),
                floor: Chain::default(),
            },
        }
    }

    pub fn records(&self) -> u64 {
        self.all.records
    }

    pub fn add(&mut self, record: &Record) {
        self.first.get_or_insert(record.start);
        self.end = record.end;
        // Nothing is read ahead beyond the segment that is open (look_ahead.c, rule 1).
        if record.end > self.segment_end || self.batch.len() >= MOST_JOBS {
            self.end_batch();
            self.segment_end = self.size.round_up(record.end);
        }
        let job = self.planner.job(record);
        for (sum, part) in self.parts.iter_mut().zip(job.work.parts()) {
            *sum += part;
        }
        let priced = self.costs.of(&job.work);
        self.count(record, job.class, &priced);
        self.chains.add(record, &job, priced.redo_ns);
        if self.all.records <= WORTH_HELPERS {
            self.simulations.iter_mut().for_each(|one| one.alone(&job));
            self.planner.begin_batch();
        } else {
            self.batch.push(job);
        }
    }

    fn count(&mut self, record: &Record, class: Class, priced: &Priced) {
        let Priced {
            read_ns, redo_ns, ..
        } = *priced;
        let cost_ns = read_ns + priced.stock_ns;
        let pipeline = &self.costs.pipeline;
        let blocks = record.blocks.len() as f64;
        self.redo_ns += redo_ns;
        self.own_ns += read_ns;
        self.look_ahead_ns += read_ns + redo_ns + pipeline.look_ahead_ns;
        // Without helpers the startup process executes every record, and dispatches none.
        let is_alone = self.all.records < WORTH_HELPERS;
        match is_alone {
            true => self.own_ns += redo_ns,
            false => {
                self.own_ns +=
                    pipeline.dispatch_ns + pipeline.retire_ns + pipeline.dispatch_block_ns * blocks;
            }
        }
        self.all.add(record, cost_ns);
        self.image_bytes += u64::from(record.image_bytes());
        let kind = (record.header.manager, kind_of(record));
        self.kinds.entry(kind).or_default().add(record);
        let cause = match class {
            Class::Ahead | Class::Removal | Class::ClearsMap => {
                self.ahead.add(record, cost_ns);
                return;
            }
            Class::Inline(cause) => cause,
            Class::Barrier(cause) => {
                self.barriers += 1;
                cause
            }
        };
        if !is_alone {
            self.own_ns += redo_ns;
        }
        let held = self.held.entry(cause).or_default();
        held.share.add(record, cost_ns);
        *held.kinds.entry(kind).or_default() += 1;
    }

    fn end_batch(&mut self) {
        for simulation in &mut self.simulations {
            simulation.run(&self.batch);
        }
        self.batch.clear();
        self.planner.begin_batch();
    }

    /// What was found. None if there was no record.
    pub fn finish(mut self) -> Option<Report> {
        self.end_batch();
        let first = self.first?;
        let alone_seconds = self.all.cost_ns / 1e9;
        let records = self.all.records as f64;
        let outcome = |simulation: &Simulation| Outcome {
            helpers: simulation.helpers(),
            seconds: simulation.seconds(),
            speedup: alone_seconds / simulation.seconds().max(1e-12),
            by_helpers: simulation.by_helpers() as f64 / records,
            waited: simulation.waited_seconds() / simulation.seconds().max(1e-12),
        };
        Some(Report {
            first,
            end: self.end,
            all: self.all,
            image_bytes: self.image_bytes,
            kinds: self.kinds,
            ahead: self.ahead,
            held: self.held.into_iter().collect(),
            barriers: self.barriers,
            critical: self.chains.longest,
            redo_ns: self.redo_ns,
            alone_seconds,
            look_ahead_seconds: self.look_ahead_ns / 1e9,
            rules: self.rules,
            own_seconds: self.own_ns / 1e9,
            outcomes: self.simulations.iter().map(outcome).collect(),
            parts: self.parts,
        })
    }
}

/// The operation without bits that do not make another kind: a new page, more information.
fn kind_of(record: &Record) -> u8 {
    use names::manager::{HEAP, HEAP2, XACT};
    match record.header.manager {
        HEAP | HEAP2 | XACT => record.operation() & 0x70,
        _ => record.operation(),
    }
}

impl Held {
    /// The commonest kinds, each with its name and number.
    pub fn commonest(&self, major: u32, most: usize) -> Vec<(String, u64)> {
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_by_key(|(kind, count)| (u64::MAX - **count, **kind));
        let name = |(kind, count): (&(u8, u8), &u64)| (kind_name(major, *kind), *count);
        kinds.into_iter().take(most).map(name).collect()
    }
}

/// A kind of records, as pg_waldump names it.
fn kind_name(major: u32, (manager, operation): (u8, u8)) -> String {
    let manager_name = names::of_manager(manager);
    let operation = names::of_operation(major, manager, operation);
    format!("{manager_name} {operation}")
}

impl RecordKind {
    fn add(&mut self, record: &Record) {
        let images = record.blocks.iter().filter(|block| block.image.is_some());
        self.records += 1;
        self.bytes += u64::from(record.header.length);
        self.images += images.count() as u64;
        self.image_bytes += u64::from(record.image_bytes());
    }
}

/// What limits the speedup most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The startup process has to read and dispatch every record, and to replay its own.
    Startup,
    /// Records wait for each other.
    Order,
}

impl Report {
    /// Bytes of images of pages, as a share of all bytes.
    pub fn image_share(&self) -> f64 {
        self.image_bytes as f64 / (self.all.bytes as f64).max(1.0)
    }

    /// All kinds of records, by bytes.
    pub fn largest_kinds(&self) -> Vec<(String, RecordKind)> {
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_by_key(|(kind, all)| (u64::MAX - all.bytes, **kind));
        let named =
            |(kind, all): (&(u8, u8), &RecordKind)| (kind_name(self.rules.major, *kind), *all);
        kinds.into_iter().map(named).collect()
    }

    /// How many times as fast as stock one process is that looks ahead, simulated.
    pub fn look_ahead_speedup(&self) -> f64 {
        self.alone_seconds / self.look_ahead_seconds.max(1e-12)
    }

    /// The highest speedup that any number of helpers could give, and why it is not higher.
    pub fn bound(&self) -> (f64, Limit) {
        let critical = self.critical.ns / 1e9;
        match self.own_seconds >= critical {
            true => (
                self.alone_seconds / self.own_seconds.max(1e-12),
                Limit::Startup,
            ),
            false => (self.alone_seconds / critical, Limit::Order),
        }
    }
}
