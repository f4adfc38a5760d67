//! Some WAL in memory as the simulation needs it, to simulate it with many tables of costs: the parts
//! of all records summed, and the jobs of a few segments.

use lockstep_wire::Lsn;

use crate::class::{QueueSize, Rules};
use crate::costs::{Costs, PARTS, Part, Parts};
use crate::job::{Job, Planner};
use crate::record::Record;
use crate::segment::SegmentSize;
use crate::simulate::Simulation;

/// Segments whose jobs are kept, at the same distance from each other.
const SEGMENTS: u64 = 4;

/// Most jobs that are kept of one segment, which bounds memory.
const MOST_JOBS: usize = 1_000_000;

/// WAL that was read.
#[derive(Debug)]
pub struct Sample {
    rules: Rules,
    /// Parts of the costs of all records.
    pub parts: Parts,
    batches: Vec<Vec<Job>>,
}

/// Takes records in their order.
#[derive(Debug)]
pub struct Sampler {
    sample: Sample,
    planner: Planner,
    size: SegmentSize,
    /// Segments of which one is kept.
    every: u64,
    segment: u64,
    segment_end: Lsn,
    batch: Vec<Job>,
}

impl Sampler {
    /// Makes a sample of WAL of `bytes`.
    pub fn new(rules: Rules, size: SegmentSize, bytes: u64) -> Self {
        Self {
            sample: Sample {
                rules,
                parts: [0.0; PARTS],
                batches: Vec::new(),
            },
            planner: Planner::new(rules, QueueSize::default()),
            size,
            every: (bytes / size.bytes() / SEGMENTS).max(1),
            segment: 0,
            segment_end: Lsn::INVALID,
            batch: Vec::new(),
        }
    }

    pub fn add(&mut self, record: &Record) {
        if record.end > self.segment_end {
            self.end_segment();
            self.segment_end = self.size.round_up(record.end);
        }
        let job = self.planner.job(record);
        let sums = self.sample.parts.iter_mut();
        sums.zip(job.work.parts())
            .for_each(|(sum, part)| *sum += part);
        if self.segment % self.every == self.every / 2 && self.batch.len() < MOST_JOBS {
            self.batch.push(job);
        }
    }

    fn end_segment(&mut self) {
        self.segment += 1;
        self.planner.begin_batch();
        let batch = std::mem::take(&mut self.batch);
        if !batch.is_empty() {
            self.sample.batches.push(batch);
        }
    }

    /// None if there was no record.
    pub fn finish(mut self) -> Option<Sample> {
        self.end_segment();
        (!self.sample.batches.is_empty()).then_some(self.sample)
    }
}

impl Sample {
    /// What one process of stock PostgreSQL takes for all of it.
    pub fn seconds(&self, costs: &Costs) -> f64 {
        let parts = self.parts.iter().zip(costs.parts());
        parts.map(|(count, ns)| count * ns).sum::<f64>() / 1e9
    }

    /// How many times as fast one process is that looks ahead.
    pub fn look_ahead(&self, costs: &Costs) -> f64 {
        let count = |part: Part| self.parts.get(part as usize).copied().unwrap_or_default();
        let found = count(Part::Block) * costs.block_ns + count(Part::Remote) * costs.remote_ns;
        let spared = found * costs.pipeline.hidden;
        let added = count(Part::Record) * costs.pipeline.look_ahead_ns;
        let stock = self.seconds(costs);
        stock / (stock + (added - spared) / 1e9).max(1e-12)
    }

    /// How many times as fast helpers make the segments that are kept.
    pub fn speedup(&self, costs: &Costs, helpers: usize) -> f64 {
        let queue = QueueSize::default();
        let mut simulation = Simulation::new(helpers, costs, queue, self.rules.stage);
        let mut alone_ns = 0.0;
        for batch in &self.batches {
            simulation.run(batch);
            for job in batch {
                let priced = costs.of(&job.work);
                alone_ns += priced.read_ns + priced.stock_ns;
            }
        }
        alone_ns / 1e9 / simulation.seconds().max(1e-12)
    }
}
