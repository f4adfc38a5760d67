//! A database in memory, as far as a switchover, its writers and apply know it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use lockstep_replica::lifecycle::fence::Fence;
use lockstep_replica::state::{Phase, SwitchStage};

/// Number of its tables. [`ELSEWHERE`] stands for what no trigger can be on: large objects.
pub const TABLES: usize = 3;
pub const ELSEWHERE: usize = TABLES;

/// The function of a fence.
#[derive(Debug, Clone, Default)]
pub struct Function {
    pub refuses: bool,
    pub comment: String,
}

/// A transaction that has not ended.
#[derive(Debug, Clone, Default)]
pub struct Transaction {
    pub rows: Vec<u64>,
    /// Tables that it has locked for writing.
    pub locked: BTreeSet<usize>,
    /// Tables that it had locked before a fence was raised: it may not see that.
    pub blind: BTreeSet<usize>,
    pub reads_only: bool,
}

#[derive(Debug, Clone)]
pub struct Commit {
    pub at: u64,
    pub rows: Vec<u64>,
    /// Where the source had it, if apply has made it.
    pub applied: Option<u64>,
}

/// A replica in the state of its target.
#[derive(Debug, Clone)]
pub struct ReplicaRow {
    pub phase: Phase,
    pub stage: SwitchStage,
    /// What is at or before it is on the target.
    pub start: u64,
    pub has_tables: bool,
    pub is_left: bool,
    pub has_sequences: bool,
}

impl ReplicaRow {
    pub fn new(phase: Phase, start: u64) -> Self {
        Self {
            phase,
            stage: SwitchStage::None,
            start,
            has_tables: phase == Phase::Ready,
            is_left: false,
            has_sequences: false,
        }
    }
}

/// What `lockstep.hold` has.
#[derive(Debug, Clone, Copy)]
pub struct Hold {
    pub wanted: u64,
    pub is_held: bool,
}

#[derive(Debug)]
pub struct Database {
    /// When it is up again, if it is down.
    pub down: Option<Instant>,
    /// Times that it was started: sessions of an earlier time are lost.
    pub run: u32,
    pub wal: u64,
    pub flushed: u64,
    pub commits: Vec<Commit>,
    pub rows: BTreeSet<u64>,
    pub setting: Option<String>,
    functions: [Option<Function>; 2],
    pub triggers: [BTreeSet<usize>; 2],
    /// Triggers, and functions without one, that a crash takes away.
    soft: Vec<(Fence, Option<usize>)>,
    pub prepared: BTreeMap<String, Transaction>,
    /// What each slot has confirmed.
    pub slots: BTreeMap<&'static str, u64>,
    pub replicas: BTreeMap<&'static str, ReplicaRow>,
    /// The command that has the replica's hold, and its hold.
    pub taken: Option<u32>,
    pub hold: Option<Hold>,
}

pub fn index(fence: Fence) -> usize {
    match fence {
        Fence::Left => 0,
        Fence::Comes => 1,
    }
}

impl Database {
    pub fn new() -> Self {
        Self {
            down: None,
            run: 0,
            wal: 100,
            flushed: 100,
            commits: Vec::new(),
            rows: BTreeSet::new(),
            setting: None,
            functions: [None, None],
            triggers: [BTreeSet::new(), BTreeSet::new()],
            soft: Vec::new(),
            prepared: BTreeMap::new(),
            slots: BTreeMap::new(),
            replicas: BTreeMap::new(),
            taken: None,
            hold: None,
        }
    }

    pub fn function(&self, fence: Fence) -> Option<&Function> {
        self.functions[index(fence)].as_ref()
    }

    pub fn function_mut(&mut self, fence: Fence) -> &mut Option<Function> {
        &mut self.functions[index(fence)]
    }

    /// Something is committed, on disk with all before it or not.
    pub fn commit(&mut self, is_soft: bool) -> u64 {
        self.wal += 1;
        if !is_soft {
            self.flush();
        }
        self.wal
    }

    pub fn flush(&mut self) {
        self.flushed = self.wal;
        self.soft.clear();
    }

    pub fn made(&mut self, fence: Fence, table: Option<usize>, is_soft: bool) {
        if is_soft {
            self.soft.push((fence, table));
        }
        self.commit(is_soft);
    }

    /// Adds rows of a commit. One that is there already comes twice.
    pub fn add(
        &mut self,
        rows: &[u64],
        applied: Option<u64>,
        is_soft: bool,
    ) -> Result<u64, String> {
        let at = self.commit(is_soft);
        for row in rows {
            if !self.rows.insert(*row) {
                return Err(format!("row {row} comes twice"));
            }
        }
        let rows = rows.to_vec();
        self.commits.push(Commit { at, rows, applied });
        Ok(at)
    }

    /// The server dies: what is not on disk is lost from some moment on.
    pub fn die(&mut self, until: Instant, kept: u64) {
        self.down = Some(until);
        self.run += 1;
        (self.taken, self.hold) = (None, None);
        let kept = self.flushed.max(kept.min(self.wal));
        while self.commits.last().is_some_and(|it| it.at > kept) {
            for row in self.commits.pop().unwrap().rows {
                self.rows.remove(&row);
            }
        }
        if kept < self.wal {
            for (fence, table) in std::mem::take(&mut self.soft) {
                match table {
                    Some(table) => {
                        self.triggers[index(fence)].remove(&table);
                    }
                    None => self.functions[index(fence)] = None,
                }
            }
        }
        self.soft.clear();
        self.wal = kept;
        self.flushed = kept;
    }

    /// What of a source is committed here, and from which place on it is not.
    pub fn position(&self, name: &str) -> u64 {
        let start = self.replicas.get(name).map_or(0, |it| it.start);
        let applied = self.commits.iter().filter_map(|it| it.applied).max();
        start.max(applied.unwrap_or(0))
    }

    /// Whether a statement of a client may write into a table.
    pub fn takes(&self, transaction: &Transaction, table: usize) -> bool {
        let refuses = |fence| {
            let is_up = self.function(fence).is_some_and(|it| it.refuses);
            is_up && self.triggers[index(fence)].contains(&table)
        };
        let is_fenced = refuses(Fence::Left) || refuses(Fence::Comes);
        !transaction.reads_only && (!is_fenced || transaction.blind.contains(&table))
    }
}
