//! Both databases, the pooler, whoever writes, and apply; what goes wrong, and what must never be.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::rc::Rc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use lockstep_client::ClientError;
use lockstep_lab::seeds;
use lockstep_replica::error::{End, ReplicaError};
use lockstep_replica::lifecycle::fence::Fence;
use lockstep_replica::state::{Phase, SwitchStage};

use super::database::{Database, ELSEWHERE, TABLES, Transaction};
use super::seen::Seen;

pub type SharedWorld = Rc<RefCell<World>>;

/// What a run plants: each takes away one thing that a guarantee hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// Transactions that have locked a table before the fence are not waited for.
    WritersNotSeen,
    PreparedNotSeen,
    /// Sessions that are connected before the fence stay.
    SessionsStay,
    /// Nobody looks whether the fence is whole.
    GapsNotSeen,
    /// A command that comes after another does not see its fence.
    FenceNotSeen,
    /// A command that comes after another does not see that a switchover has begun.
    StageNotSeen,
    /// The slot of the way back stays where it was made.
    SlotStays,
    /// The way back counts as ready once it is made.
    WayBackNotBegun,
    /// The target counts as drained at once.
    DrainedAtOnce,
    TargetNotClosed,
    /// Only the function of a fence passes again, and sessions begin read-only for ever.
    SettingStays,
    /// A command that comes after another does not see that there is only forward.
    PhaseNotSeen,
}

/// What goes wrong at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    KilledBefore,
    KilledAfter,
    /// The connection breaks once the server has done what it was asked.
    LostAfter,
    SourceDies,
    TargetDies,
}

pub const TROUBLES: [Trouble; 5] = [
    Trouble::KilledBefore,
    Trouble::KilledAfter,
    Trouble::LostAfter,
    Trouble::SourceDies,
    Trouble::TargetDies,
];

/// When something goes wrong.
#[derive(Debug, Clone, Copy)]
pub enum Plan {
    /// At one step alone.
    At(u32, Trouble),
    /// At one of so many steps, by chance.
    Random(u32),
}

/// The command was killed.
pub struct Killed;

pub struct Client {
    pub pid: u32,
    pub side: usize,
    run: u32,
    /// The client comes through the pooler.
    is_pooled: bool,
    /// Transactions of the client begin read-only.
    reads_only: bool,
    /// The client sets `default_transaction_read_only` off by itself.
    is_stubborn: bool,
    pub transaction: Option<Transaction>,
    /// The client is told to end.
    pub ends: bool,
}

impl Client {
    pub fn is_pooled(&self) -> bool {
        self.is_pooled
    }
}

/// The process that applies.
#[derive(Debug)]
pub struct Apply {
    pub name: &'static str,
    /// None while it runs.
    back: Option<Instant>,
    pub has_lock: bool,
    pub has_ended: bool,
}

impl Apply {
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            back: None,
            has_lock: false,
            has_ended: false,
        }
    }

    pub fn runs(&self) -> bool {
        self.back.is_none() && !self.has_ended
    }
}

pub struct Pooler {
    pub waits: bool,
    pub leads_to: usize,
}

pub struct World {
    pub rng: Rng,
    pub now: Instant,
    pub plant: Option<Plant>,
    pub plan: Option<Plan>,
    /// Steps that were taken while something may go wrong.
    pub steps: u32,
    pub sides: [Database; 2],
    /// The side that is the source now.
    pub source: usize,
    pub clients: Vec<Client>,
    pub pooler: Option<Pooler>,
    pub apply: Apply,
    pub wants_way_back: bool,
    /// The side on which the commit of a row was acknowledged.
    pub acknowledged: BTreeMap<u64, usize>,
    /// Rows of a target that are nothing for its source.
    pub own: BTreeSet<u64>,
    next: u64,
    pub wrong: Option<String>,
    pub seen: Seen,
}

/// Names of the replica of a round, and of its way back.
pub fn names(source: usize) -> (&'static str, &'static str) {
    match source {
        0 => ("r", "r_back"),
        _ => ("r_back", "r"),
    }
}

impl World {
    pub fn new(seed: u64, plant: Option<Plant>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let pooler = rng.bool().then_some(Pooler {
            waits: false,
            leads_to: 0,
        });
        let mut sides = [Database::new(), Database::new()];
        if rng.u8(..4) == 0 {
            sides[0].setting = Some("off".to_owned());
        }
        // A target on which others begin read-only.
        if rng.bool() {
            sides[1].setting = Some("on".to_owned());
        }
        sides[1]
            .replicas
            .insert("r", super::database::ReplicaRow::new(Phase::Ready, 100));
        sides[0].slots.insert("r", 100);
        Self {
            rng,
            now: Instant::now(),
            plant,
            plan: None,
            steps: 0,
            sides,
            source: 0,
            clients: Vec::new(),
            pooler,
            apply: Apply::new("r"),
            wants_way_back: true,
            acknowledged: BTreeMap::new(),
            own: BTreeSet::new(),
            next: 1,
            wrong: None,
            seen: Seen::default(),
        }
    }

    pub fn target(&self) -> usize {
        1 - self.source
    }

    pub fn say(&self, what: impl FnOnce() -> String) {
        seeds::show(what);
    }

    pub fn fails(&mut self, words: String) {
        self.say(|| format!("WRONG: {words}"));
        self.wrong.get_or_insert(words);
    }

    /// What the state says of the replica that is switched.
    pub fn phase(&self) -> (Phase, SwitchStage) {
        let row = self.sides[self.target()].replicas.get(names(self.source).0);
        row.map_or((Phase::Ready, SwitchStage::None), |it| (it.phase, it.stage))
    }

    fn end_of(&self, side: usize) -> End {
        match side == self.source {
            true => End::Source,
            false => End::Target,
        }
    }

    /// An error of a server whose connection is lost.
    pub fn lost(&self, side: usize) -> ReplicaError {
        let error = ClientError::Lost("the simulation has cut it".to_owned());
        match self.end_of(side) {
            End::Source => ReplicaError::Source(error),
            End::Target => ReplicaError::Target(error),
        }
    }

    /// What goes wrong at this step.
    pub fn trouble(&mut self) -> Option<Trouble> {
        let plan = self.plan?;
        self.steps += 1;
        match plan {
            Plan::At(step, trouble) => (step == self.steps).then_some(trouble),
            Plan::Random(one_of) => {
                let strikes = self.rng.u32(..one_of) == 0;
                strikes.then(|| TROUBLES[self.rng.usize(..TROUBLES.len())])
            }
        }
    }

    pub fn kill(&mut self) -> ! {
        self.seen.kills += 1;
        self.say(|| "the command is killed".to_owned());
        resume_unwind(Box::new(Killed));
    }

    pub fn die(&mut self, side: usize) {
        self.seen.deaths += 1;
        let away = match self.rng.u8(..10) {
            0 => self.rng.u64(20_000..90_000),
            1..4 => self.rng.u64(500..9_000),
            _ => self.rng.u64(5..300),
        };
        self.say(|| format!("side {side} dies for {away} ms"));
        let until = self.now + Duration::from_millis(away);
        let database = &mut self.sides[side];
        let kept = self.rng.u64(database.flushed..=database.wal);
        database.die(until, kept);
        self.clients.retain(|it| it.side != side);
        if side == self.apply_target() {
            self.apply.has_lock = false;
        }
    }

    /// The side on which the process that applies writes.
    pub fn apply_target(&self) -> usize {
        match self.apply.name {
            "r" => 1,
            _ => 0,
        }
    }

    /// Time passes, and everybody else gets on.
    pub fn passes(&mut self, time: Duration) {
        self.now += time;
        let acts = match time.as_millis() {
            0..3 => self.rng.u32(..3),
            3..100 => 6,
            _ => 20,
        };
        for _ in 0..acts {
            self.somebody();
        }
        for side in &mut self.sides {
            if side.down.is_some_and(|back| back <= self.now) {
                side.down = None;
            }
        }
    }

    fn somebody(&mut self) {
        if self.plan.is_some() && self.rng.u16(..2_000) == 0 {
            self.meddles();
        }
        match self.rng.u8(..10) {
            0 => self.connects(),
            1..6 => self.client(),
            6 => self.ends_prepared(),
            _ => self.applies(),
        }
    }

    /// Somebody takes a trigger away from a fence that is not up yet.
    fn meddles(&mut self) {
        let source = &mut self.sides[self.source];
        if source.function(Fence::Left).is_some_and(|it| !it.refuses) {
            let table = self.rng.usize(..TABLES);
            self.seen.meddled += u64::from(source.triggers[0].remove(&table));
        }
    }

    fn connects(&mut self) {
        if self.clients.len() >= 6 {
            return;
        }
        let is_pooled = self.pooler.is_some() && self.rng.bool();
        let side = match &self.pooler {
            Some(pooler) if is_pooled => pooler.leads_to,
            // Some come to the wrong server.
            _ if self.rng.u8(..6) == 0 => self.target(),
            _ => self.source,
        };
        let database = &self.sides[side];
        if database.down.is_some() {
            return;
        }
        let is_stubborn = self.rng.u8(..3) == 0;
        let is_on = database.setting.as_deref() == Some("on");
        self.next += 1;
        self.clients.push(Client {
            pid: u32::try_from(self.next).unwrap(),
            side,
            run: database.run,
            is_pooled,
            reads_only: is_on && !is_stubborn,
            is_stubborn,
            transaction: None,
            ends: false,
        });
    }

    fn client(&mut self) {
        if self.clients.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.clients.len());
        let database = &self.sides[self.clients[at].side];
        let is_lost = database.down.is_some() || database.run != self.clients[at].run;
        // One that is told to end may get one thing done before.
        if is_lost || self.clients[at].ends && self.rng.u8(..3) > 0 {
            self.clients.swap_remove(at);
            return;
        }
        let waits = self.pooler.as_ref().is_some_and(|it| it.waits);
        let leads_to = self.pooler.as_ref().map_or(0, |it| it.leads_to);
        let client = &mut self.clients[at];
        match client.transaction.take() {
            None if client.is_pooled && waits => {}
            // The pooler has let go of its connection to the server from before.
            None if client.is_pooled && leads_to != client.side => {
                self.clients.swap_remove(at);
            }
            None => {
                let reads_only = client.reads_only;
                client.transaction = Some(Transaction {
                    reads_only,
                    ..Transaction::default()
                });
            }
            Some(transaction) => self.writes(at, transaction),
        }
    }

    fn writes(&mut self, at: usize, mut transaction: Transaction) {
        let side = self.clients[at].side;
        match self.rng.u8(..10) {
            0..5 => {
                // What no trigger can hold is written by those who mind the setting. A target's large
                // objects are nobody's matter.
                let is_mindful = !self.clients[at].is_stubborn && side == self.source;
                let tables = TABLES + usize::from(is_mindful);
                let table = self.rng.usize(..tables);
                transaction.locked.insert(table);
                if self.sides[side].takes(&transaction, table) {
                    self.next += 1;
                    transaction.rows.push(self.next);
                    self.clients[at].transaction = Some(transaction);
                } else {
                    self.seen.refused += 1;
                }
            }
            5..9 => {
                let is_quiet = self.rng.u8(..12) == 0;
                self.ends_well(side, &transaction, is_quiet);
            }
            _ if !transaction.rows.is_empty() && !transaction.locked.contains(&ELSEWHERE) => {
                self.next += 1;
                let gid = format!("p{}", self.next);
                self.sides[side].prepared.insert(gid, transaction);
                self.sides[side].commit(false);
            }
            _ => {}
        }
    }

    fn ends_prepared(&mut self) {
        let side = self.rng.usize(..2);
        if self.sides[side].down.is_some() {
            return;
        }
        if let Some((_, transaction)) = self.sides[side].prepared.pop_first() {
            self.seen.prepared += 1;
            self.ends_well(side, &transaction, false);
        }
    }

    /// A client's transaction commits.
    fn ends_well(&mut self, side: usize, transaction: &Transaction, is_quiet: bool) {
        if transaction.rows.is_empty() {
            return;
        }
        let at = match self.sides[side].add(&transaction.rows, None, false) {
            Ok(at) => at,
            Err(words) => return self.fails(words),
        };
        self.say(|| format!("side {side} commits {:?} at {at}", transaction.rows));
        self.seen.commits += 1;
        let rows = transaction.rows.iter().copied();
        // What is written on a target before it is closed is its own.
        if side == self.target() && self.phase().0 == Phase::Ready {
            self.own.extend(rows);
        } else if !is_quiet {
            self.acknowledged.extend(rows.map(|row| (row, side)));
        }
        self.may_commit(side, at);
    }

    /// Each commit of a client is looked at.
    fn may_commit(&mut self, side: usize, at: u64) {
        let (phase, stage) = self.phase();
        let is_source = side == self.source;
        if is_source && phase > Phase::Ready {
            let words = format!("the source commits at {at}, and the state says {phase:?}");
            return self.fails(words);
        }
        if is_source {
            return;
        }
        if phase == Phase::Ready {
            let source = &self.sides[self.source];
            let is_fenced = source.function(Fence::Left).is_some_and(|it| it.refuses);
            if stage.is_begun() && is_fenced {
                self.fails(format!(
                    "the target commits at {at} behind the source's fence"
                ));
            }
            return;
        }
        let back = self.sides[self.source].replicas.get(names(self.source).1);
        let start = back
            .filter(|it| it.phase == Phase::Ready)
            .map(|it| it.start);
        if self.wants_way_back && start.is_none_or(|start| at <= start) {
            self.fails(format!(
                "the target commits at {at}, and the way back begins at {start:?}"
            ));
        }
    }

    pub fn applies(&mut self) {
        let (from, to) = (1 - self.apply_target(), self.apply_target());
        if self.apply.has_ended || self.sides.iter().any(|it| it.down.is_some()) {
            return;
        }
        if let Some(back) = self.apply.back {
            if back > self.now {
                return;
            }
            self.apply.back = None;
            self.apply.has_lock = false;
            // A hold that an earlier process has answered.
            let hold = &mut self.sides[to].hold;
            *hold = hold.filter(|it| !it.is_held);
        }
        let name = self.apply.name;
        if !self.apply.has_lock || self.rng.u8(..3) == 0 {
            // It looks at the state.
            match self.sides[to].replicas.get(name).map(|it| it.phase) {
                Some(Phase::Ready) => self.apply.has_lock = true,
                Some(Phase::Promoting | Phase::Promoted) => {
                    (self.apply.has_lock, self.apply.has_ended) = (false, true);
                    self.say(|| "apply ends".to_owned());
                    return;
                }
                _ => return,
            }
        }
        let one_of = match self.plan {
            Some(Plan::Random(_)) => 200,
            _ => 5_000,
        };
        match self.rng.u32(..one_of) {
            0 => {
                let away = Duration::from_millis(self.rng.u64(100..6_000));
                self.apply.back = Some(self.now + away);
                self.apply.has_lock = false;
                return;
            }
            // It loses the session with the lock, and applies one more.
            1 => self.apply.has_lock = false,
            _ => {}
        }
        let position = self.sides[to].position(name);
        let hold = self.sides[to].hold;
        if hold.is_some_and(|it| it.is_held) {
            return;
        }
        let wanted = hold.map_or(u64::MAX, |it| it.wanted);
        let commits = &self.sides[from].commits;
        // Only what is on disk is sent, and nothing that is behind the position that is wanted.
        let flushed = self.sides[from].flushed;
        let next = commits
            .iter()
            .find(|it| it.at > position && it.at <= flushed);
        match next.filter(|it| it.at <= wanted).cloned() {
            Some(commit) => {
                let is_soft = self.rng.bool();
                let added = self.sides[to].add(&commit.rows, Some(commit.at), is_soft);
                if let Err(words) = added {
                    self.fails(words);
                }
                if self.sides[to].replicas[name].phase == Phase::Promoted {
                    self.fails(format!("{} is applied after the promotion", commit.at));
                }
                self.seen.applied += 1;
            }
            None if flushed >= wanted => {
                if let Some(hold) = &mut self.sides[to].hold {
                    hold.is_held = true;
                }
            }
            None => {}
        }
    }

    /// Rows whose commit was acknowledged on a side and that the other one lacks.
    pub fn lacking(&self, from: usize, to: usize) -> Vec<u64> {
        let there = &self.sides[to].rows;
        let made = self.acknowledged.iter().filter(|(_, side)| **side == from);
        made.map(|(row, _)| *row)
            .filter(|row| !there.contains(row))
            .collect()
    }
}
