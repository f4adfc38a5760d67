//! One run: the real session, merger, order, turn and work, over a source and a target in memory.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fastrand::Rng;
use lockstep_apply::batch::Part;
use lockstep_apply::crew::{MOST_CHOSEN, Pace};
use lockstep_apply::error::ApplyError;
use lockstep_apply::fault::Fault;
use lockstep_apply::merge::Limits;
use lockstep_apply::session::{Action, Begin, MOST_WAITING, Next, Session};
use lockstep_apply::turn::Turn;
use lockstep_apply::work::{Job, News, Todo};
use lockstep_apply::{Control, Writers};
use lockstep_lab::seeds;
use lockstep_wire::Lsn;
use lockstep_wire::stream::Status;

use super::seen::Seen;
use super::source::{Transaction, Writer, keepalive, relations, wal_end};
use super::target::{Catalog, Target};
use super::writers::{Desk, cycle};

/// Steps after which a run is stuck.
const MOST_STEPS: u32 = 200_000;

/// What a run plants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    In(Fault),
    /// A session begins where the origins stand, whatever the state keeps.
    OriginAlone,
    /// A session begins where the target stands, on disk or not.
    OpensUnflushed,
    /// A session does not know of the cycles before it.
    ForgetsCycles,
}

pub type Checked<T = ()> = Result<T, String>;

/// What the session's driver hears of.
pub enum Heard {
    Wanted,
    News(News),
}

/// What a session must do about holds.
#[derive(Default)]
pub(super) struct Holding {
    /// The hold that it has seen.
    hold: Option<Lsn>,
    /// Where the newest transaction commits that it has begun, and the one that it holds back.
    begun: Lsn,
    held_back: Option<Lsn>,
    /// Where the cycle ends that was begun last, if the replica has cycles.
    pub(super) end: Option<Lsn>,
}

impl Holding {
    /// A cycle begins, with what was held back.
    pub(super) fn begin_cycle(&mut self, end: Lsn) {
        self.end = Some(end);
        self.again();
    }

    /// The first message of a transaction comes.
    fn begin(&mut self, commit: Lsn) {
        let limits = [self.hold, self.end];
        match limits.into_iter().flatten().any(|limit| commit >= limit) {
            true => self.held_back = Some(commit),
            false => self.begun = self.begun.max(commit),
        }
    }

    fn see(&mut self, hold: Option<Lsn>) {
        self.hold = hold;
        // What is held back in a cycle is the next one's, whoever lets go.
        if self.end.is_none() {
            self.again();
        }
    }

    fn again(&mut self) {
        if let Some(commit) = self.held_back.take() {
            self.begin(commit);
        }
    }
}

/// A run of many cycles, in which the source commits now and then.
#[derive(Debug, Clone, Copy)]
pub struct Long {
    pub frequency: Duration,
    pub lasts: Duration,
    pub transactions: usize,
}

pub struct World {
    pub(super) rng: Rng,
    /// What the target's WAL writer flushes by itself.
    pub(super) flushes: Rng,
    pub(super) plant: Option<Plant>,
    history: Vec<Transaction>,
    /// Transactions that have committed on the source so far.
    pub(super) committed: usize,
    /// What the source was told.
    confirmed: Lsn,
    pub(super) target: Target,
    pub(super) control: Control,
    /// Most writers, how their number is chosen, and how many take jobs.
    pub(super) writers: usize,
    crew: Writers,
    pub(super) used: usize,
    limits: Limits,
    memory: usize,
    is_spooled: bool,
    pub(super) now: Instant,
    pub(super) careful: Lsn,
    pub(super) session: Option<Session<Vec<u8>>>,
    pub(super) catalog: Catalog,
    pub(super) desks: Vec<Desk>,
    pub(super) jobs: VecDeque<Job>,
    /// The writer that has a transaction in parts.
    pub(super) in_parts: Option<usize>,
    pub(super) turn: Turn,
    pub(super) events: VecDeque<Heard>,
    /// The next message: of which transaction, and which of it.
    cursor: (usize, usize),
    relations: VecDeque<Vec<u8>>,
    pub(super) hold: Option<Lsn>,
    pub(super) frequency: Duration,
    /// Requests for a cycle so far.
    pub(super) forces: u64,
    pub(super) holding: Holding,
    told: Status,
    /// Longest time of a step.
    step_us: u64,
    /// When the run began, and how it goes if it is a long one.
    began: Instant,
    long: Option<Long>,
    pub seen: Seen,
}

impl World {
    pub fn new(seed: u64, plant: Option<Plant>) -> Self {
        Self::made(seed, plant, None)
    }

    /// A run whose replica has cycles for as long as is said.
    pub fn long(seed: u64, long: Long) -> Self {
        Self::made(seed, None, Some(long))
    }

    fn made(seed: u64, plant: Option<Plant>, long: Option<Long>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let transactions = rng.usize(8..30);
        let transactions = long.map_or(transactions, |long| long.transactions);
        // Of its own, so that other runs stay as they are.
        let mut commands = Rng::with_seed(seed ^ 0xdd20);
        let commands = (commands.u32(0..4) == 0).then_some(commands);
        let mut source = Writer::new(&mut rng, commands);
        for _ in 0..transactions {
            source.transaction();
        }
        let history = source.history;
        let crew = match (seed % 2, rng.usize(1..5)) {
            (0, _) => Writers::Auto,
            (_, number) => Writers::Number(number),
        };
        let writers = match crew {
            Writers::Auto => MOST_CHOSEN,
            Writers::Number(number) => number,
        };
        let memory = rng.usize(4_000..30_000);
        let limits = Limits {
            changes: rng.u64(1..12),
            of_one: rng.u64(6..40),
            transactions: rng.u64(1..10),
            ..Limits::of_memory(memory, crew.first())
        };
        let is_spooled = rng.u32(0..3) == 0 || long.is_some();
        // Of its own, so that other runs stay as they are.
        let mut of_cycles = Rng::with_seed(seed ^ 0x5eed);
        let frequency = match is_spooled && of_cycles.bool() {
            true => Duration::from_millis(of_cycles.u64(20..2_000)),
            false => Duration::ZERO,
        };
        let frequency = long.map_or(frequency, |long| long.frequency);
        let control = Control::default();
        control.set_frequency(frequency);
        let now = Instant::now();
        let mut target = Target::default();
        target.open.resize_with(writers, || None);
        Self {
            plant,
            history,
            committed: 0,
            confirmed: Lsn::INVALID,
            target,
            control,
            writers,
            crew,
            used: crew.first(),
            limits,
            memory,
            is_spooled,
            now,
            careful: Lsn::INVALID,
            session: None,
            catalog: Catalog::default(),
            desks: Vec::new(),
            jobs: VecDeque::new(),
            in_parts: None,
            turn: Turn::new(now),
            events: VecDeque::new(),
            cursor: (0, 0),
            relations: VecDeque::new(),
            hold: None,
            frequency,
            forces: 0,
            holding: Holding::default(),
            told: Status::default(),
            step_us: if long.is_some() { 100_000 } else { 3_000 },
            began: now,
            long,
            seen: Seen {
                spooled: u64::from(is_spooled),
                ..Seen::default()
            },
            rng,
            flushes: Rng::with_seed(seed ^ 0xf1a5),
        }
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        match self.plant {
            Some(Plant::In(fault)) => Some(fault),
            _ => None,
        }
    }

    /// Says what happens, if that is asked for.
    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        seeds::show(|| {
            let (committed, durable) = (self.target.committed.kept, self.target.durable());
            format!("{}; the target at {committed}, on disk {durable}", what())
        });
    }

    /// Runs until the target has everything and the source knows.
    pub fn run(&mut self) -> Checked {
        if let Some(long) = self.long {
            while self.now < self.began + long.lasts {
                self.step(true)?;
            }
        }
        for step in 0..MOST_STEPS {
            let end = self.history.last().map_or(Lsn::INVALID, |last| last.end);
            if self.confirmed >= end && self.hold.is_none() && self.is_answered() {
                return self.is_right("at the end");
            }
            // In the second half nothing goes wrong any more, so that a run ends.
            self.step(step < MOST_STEPS / 2 && self.long.is_none())?;
        }
        Err(format!(
            "stuck: {} of {} transactions, the target at {}, the source told {}",
            self.committed,
            self.history.len(),
            self.target.committed.kept,
            self.confirmed
        ))
    }

    fn step(&mut self, trouble: bool) -> Checked {
        self.now += Duration::from_micros(self.rng.u64(0..self.step_us));
        if self.rng.u32(0..400) == 0 {
            self.now += Duration::from_secs(6);
        }
        match self.rng.u32(0..100) {
            0..=4 if self.committed < self.due() => self.committed += 1,
            5 if trouble => self.trouble()?,
            6 if self.has_cycles() && self.rng.u32(0..6) == 0 => self.force(),
            6 => self.holds(trouble)?,
            7..=45 => self.session_step()?,
            _ => {
                let writer = self.rng.usize(0..self.writers);
                self.writer_step(writer)?;
            }
        }
        self.is_held()
    }

    /// Transactions that may have committed by now.
    fn due(&self) -> usize {
        let all = self.history.len();
        self.long.map_or(all, |long| {
            let passed = self.now.duration_since(self.began).as_secs_f64();
            let part = (passed / long.lasts.as_secs_f64()).min(1.0);
            (part * all as f64).ceil() as usize
        })
    }

    /// Something goes wrong, or is mended.
    fn trouble(&mut self) -> Checked {
        match self.rng.u32(0..14) {
            0 => {
                self.seen.crashes += 1;
                self.kill(true);
            }
            1 => self.kill(false),
            2 => {
                self.control.pause();
                self.events.push_back(Heard::Wanted);
            }
            3 if self.target.stray.is_none() => {
                let value = self.rng.u32(0..8).to_string();
                let is_there = self.target.committed.rows.has_value(1, &value);
                let is_open = self.target.open.iter().any(Option::is_some);
                if !is_there && !is_open {
                    self.target.stray = Some(value);
                }
            }
            4 => self.catalog.misshapen = self.rng.choice(["u", "k", "log"]),
            _ => {}
        }
        Ok(())
    }

    fn mend(&mut self) {
        self.target.stray = None;
        self.catalog.misshapen = None;
    }

    /// Process or target dies: transactions that are open are rolled back, or their COMMIT had been sent.
    fn kill(&mut self, crash: bool) {
        for writer in 0..self.desks.len() {
            let Some(work) = &self.desks[writer].work else {
                continue;
            };
            let Todo::Commit(commit) = work.next() else {
                continue;
            };
            match self.rng.u32(0..3) {
                0 => drop(self.target.commit(writer, commit, cycle(work), false)),
                1 => self.target.origin = self.target.origin.max(commit.end),
                _ => {}
            }
        }
        let survive = self.rng.usize(0..=self.target.not_durable());
        self.target.lost(crash, survive);
        self.say(|| format!("killed, the target too: {crash}"));
        self.close();
    }

    fn close(&mut self) {
        let running = self.session.as_ref().and_then(Session::running);
        self.seen.cycles_again += u64::from(running.is_some());
        self.session = None;
        self.control.show(Action::Holds(None));
        self.control.show(Action::Behind);
        self.desks.clear();
        self.jobs.clear();
        self.events.clear();
        self.in_parts = None;
    }

    /// Asks for a hold, or lets go.
    fn holds(&mut self, trouble: bool) -> Checked {
        match self.hold {
            Some(_) if !trouble || self.rng.u32(0..20) == 0 => {
                self.hold = None;
                self.control.release();
                self.say(|| "the hold is released".to_owned());
            }
            None if trouble && self.rng.u32(0..8) == 0 => {
                let kept = self.target.committed.kept;
                let later: Vec<_> = (self.history.iter().map(|one| one.commit))
                    .filter(|commit| *commit > kept)
                    .take(6)
                    .collect();
                let Some(at) = self.rng.choice(later) else {
                    return Ok(());
                };
                self.hold = Some(at);
                self.control.hold_at(at);
                self.say(|| format!("a hold at {at} is asked for"));
            }
            _ => return Ok(()),
        }
        self.events.push_back(Heard::Wanted);
        Ok(())
    }

    /// If the hold is acknowledged, the target has exactly what commits before it, or had more already.
    fn is_held(&mut self) -> Checked {
        let Some(at) = self.hold.filter(|at| self.control.is_held(*at)) else {
            return Ok(());
        };
        self.seen.holds += 1;
        self.hold = None;
        self.control.release();
        self.events.push_back(Heard::Wanted);
        // What had begun when the hold was seen stays, and is finished first (`Control::hold_at`): the target
        // has that and what commits before the hold, and nothing else.
        let mut before = self.history.iter();
        let before = before.rfind(|one| one.commit < at || one.commit <= self.holding.begun);
        let end = before.map_or(Lsn::INVALID, |one| one.end);
        if self.has(end) {
            return Ok(());
        }
        Err(format!(
            "held at {at}, and the target is at {}",
            self.target.committed.kept
        ))
    }

    /// The target is as the source was after the transaction that ends here.
    fn has(&self, end: Lsn) -> bool {
        let after = self.history.iter().rfind(|one| one.end <= end);
        match after {
            Some(one) => one.after == self.target.committed.rows,
            None => self.target.committed.rows == Default::default(),
        }
    }

    pub(super) fn is_right(&self, when: &str) -> Checked {
        let kept = self.target.committed.kept;
        match self.has(kept) {
            true => Ok(()),
            false => Err(format!(
                "{when} the target is not what the source was at {kept}: {:?}",
                self.target.committed.rows
            )),
        }
    }

    /// The newest transaction of the source that ends at or before a position.
    pub(super) fn last_before(&self, at: Lsn) -> Lsn {
        let before = self.history.iter().rfind(|one| one.end <= at);
        before.map_or(Lsn::INVALID, |one| one.end)
    }

    fn open(&mut self) -> Checked {
        self.target.open.iter_mut().for_each(|open| *open = None);
        self.control.resume();
        let forgets = self.plant == Some(Plant::OriginAlone);
        let stands = match self.plant {
            Some(Plant::OpensUnflushed) => self.target.committed.kept,
            _ => self.target.stands(forgets),
        };
        if self.confirmed > stands {
            return Err(format!(
                "the source was told that {} is flushed, and the target stands at {stands}",
                self.confirmed
            ));
        }
        // Whatever the source was told: a target that is back tells anew.
        self.told = Status::default();
        let begin = Begin {
            limits: self.limits,
            memory: self.memory,
            writers: self.crew,
            pace: Pace {
                parts: 1,
                span: Duration::ZERO,
            },
            stands,
            careful: self.careful,
            is_spooled: self.is_spooled,
            cycles: (self.has_cycles()).then(|| (self.frequency, self.past())),
        };
        self.session = Some(Session::new(begin, self.now).with_fault(self.fault()));
        self.holding = Holding {
            // Not where the target stands: that may be where the next transaction commits.
            begun: self.last_before(stands),
            end: self.has_cycles().then_some(Lsn::INVALID),
            ..Holding::default()
        };
        self.say(|| {
            format!(
                "a session begins, which stands at {stands}, careful to {}",
                self.careful
            )
        });
        self.turn = Turn::new(self.now);
        self.used = self.crew.first();
        self.desks.resize_with(self.writers, Desk::default);
        let next = self.history.iter().position(|one| one.commit >= stands);
        self.cursor = (next.unwrap_or(self.history.len()), 0);
        self.relations = relations().into();
        self.events.push_back(Heard::Wanted);
        Ok(())
    }

    fn session_step(&mut self) -> Checked {
        if self.session.is_none() {
            return self.open();
        }
        let result = self.drive();
        self.act()?;
        match result {
            Ok(None) => Ok(()),
            Ok(Some(Next::End(error))) => self.ended(error),
            Ok(Some(_)) => Ok(()),
            Err(error) => self.ended(Some(error)),
        }
    }

    /// What the driver of a session does in a round.
    fn drive(&mut self) -> Result<Option<Next>, ApplyError> {
        for _ in 0..self.rng.usize(0..4) {
            let Some(event) = self.events.pop_front() else {
                break;
            };
            self.catalog.version = self.target.newest_version();
            let Some(session) = &mut self.session else {
                return Ok(None);
            };
            match event {
                Heard::News(news) => session.news(news, self.now)?,
                Heard::Wanted => {
                    let wanted = self.control.wanted();
                    self.holding.see(wanted.hold);
                    session.see_wanted(wanted, &mut self.catalog, self.now)?;
                    self.say(|| format!("wanted is seen: {wanted:?}"));
                }
            }
        }
        let Some(session) = &mut self.session else {
            return Ok(None);
        };
        let next = session.next(self.now);
        if matches!(next, Next::Begin) {
            return self.begin_cycle().map(Some);
        }
        if !matches!(next, Next::Read) {
            return Ok(Some(next));
        }
        for _ in 0..self.rng.usize(1..12) {
            let Some(session) = &self.session else {
                return Ok(None);
            };
            if !session.reads() {
                return Ok(None);
            }
            if session.handed() > 0 && session.memory() >= self.memory {
                // Told as an error of a kind that nothing else makes.
                let words = "read on over the limit of memory".to_owned();
                return Err(ApplyError::Damaged(words));
            }
            let fed = self.feed()?;
            let Some(session) = &mut self.session else {
                return Ok(None);
            };
            if !fed {
                return Ok(Some(session.idle(self.now)));
            }
        }
        Ok(None)
    }

    /// Feeds the session one message, if there is one.
    fn feed(&mut self) -> Result<bool, ApplyError> {
        let Some(session) = &mut self.session else {
            return Ok(false);
        };
        let (number, place) = self.cursor;
        self.catalog.version = self.target.newest_version();
        let (catalog, now) = (&mut self.catalog, self.now);
        if let Some(relation) = self.relations.pop_front() {
            session.take(relation, catalog, now)?;
            return Ok(true);
        }
        if self.rng.u32(0..6) == 0 {
            let end = match place {
                0 if number < self.committed => self.history[number].commit,
                _ => wal_end(self.committed),
            };
            match self.is_spooled {
                true if place == 0 => session.covered(end),
                true => {}
                false => session.take(keepalive(end, self.rng.bool()), catalog, now)?,
            }
            return Ok(true);
        }
        if number >= self.committed {
            return Ok(false);
        }
        let messages = &self.history[number].messages;
        let message = messages[place].clone();
        self.cursor = match place + 1 == messages.len() {
            true => (number + 1, 0),
            false => (number, place + 1),
        };
        if place == 0 {
            self.holding.begin(self.history[number].commit);
        }
        session.take(message, catalog, now)?;
        if place == 0 {
            let commit = self.history[number].commit;
            self.say(|| format!("the transaction that commits at {commit} has come"));
        }
        Ok(true)
    }

    /// Does what the session wants done.
    fn act(&mut self) -> Checked {
        while let Some(action) = self.session.as_mut().and_then(Session::action) {
            match action {
                Action::Hand(job) => {
                    self.turn.hand(job.plan.number);
                    self.seen.parts += u64::from(job.has_more());
                    let in_cycle = self.has_cycles() && job.has_more();
                    self.seen.in_cycle_parts += u64::from(in_cycle);
                    let has_command = job.part().is_some_and(Part::has_command);
                    self.seen.commands += u64::from(has_command);
                    self.jobs.push_back(job);
                    let busy = self.desks.iter().filter(|desk| desk.work.is_some());
                    if self.jobs.len() + busy.count() > self.used + MOST_WAITING {
                        return Err("more jobs than writers and one".to_owned());
                    }
                }
                Action::Use(used, _) if used > self.used && self.rng.u32(0..4) == 0 => {
                    self.seen.no_room += 1;
                    if let Some(session) = &mut self.session {
                        session.has_no_room(self.used, "full".to_owned());
                    }
                }
                Action::Use(used, _) => {
                    self.seen.more_writers += u64::from(used > self.used);
                    self.seen.fewer_writers += u64::from(used < self.used);
                    self.used = used;
                }
                Action::Tell(status) => self.tell(status)?,
                Action::Warn(missing, end) => {
                    return Err(format!("rows were missing up to {end}: {missing:?}"));
                }
                shown => self.control.show(shown),
            }
        }
        Ok(())
    }

    fn tell(&mut self, status: Status) -> Checked {
        self.say(|| format!("told {status:?}"));
        let (durable, kept) = (self.target.durable(), self.target.committed.kept);
        if self.last_before(status.flushed) > durable {
            return Err(format!(
                "told {} flushed, durable is {durable}",
                status.flushed
            ));
        }
        // Transactions that change nothing, or whose changes cancel each other out, are applied once
        // everything before is (`positions`), without a commit: the target must be what the source was
        // after them.
        if self.last_before(status.applied) > kept && !self.has(status.applied) {
            return Err(format!(
                "told {} applied, committed is {kept}",
                status.applied
            ));
        }
        if status.flushed < self.told.flushed || status.applied < self.told.applied {
            return Err(format!("told {status:?} after {:?}", self.told));
        }
        self.told = status;
        self.confirmed = self.confirmed.max(status.flushed);
        Ok(())
    }

    /// A session has ended. What stood in the way is taken away once nothing else can help.
    fn ended(&mut self, error: Option<ApplyError>) -> Checked {
        self.say(|| format!("the session ends: {error:?}"));
        let failed = (self.session.as_ref()).zip(error.as_ref());
        let failed = failed.and_then(|(session, error)| session.failed_batch(error));
        self.finish()?;
        self.close();
        self.target.lost(false, 0);
        match (failed, &error) {
            (Some(end), Some(error)) => self.misfit(end, error),
            (None, Some(error @ ApplyError::Damaged(_))) => Err(error.to_string()),
            (None, Some(ApplyError::Target(_))) | (_, None) => Ok(()),
            (_, Some(error)) => Err(error.to_string()),
        }
    }

    /// The writers end what they have, or are cancelled.
    fn finish(&mut self) -> Checked {
        for _ in 0..self.rng.u32(0..60) {
            let writer = self.rng.usize(0..self.writers);
            self.writer_step(writer)?;
        }
        while let (Some(session), Some(event)) = (&mut self.session, self.events.pop_front()) {
            if let Heard::News(news) = event {
                let _ = session.news(news, self.now);
            }
        }
        if let Some(session) = &mut self.session {
            session.tell(false, self.now);
        }
        // What is still to be handed over, nobody takes.
        self.act()
    }

    fn misfit(&mut self, end: Lsn, error: &ApplyError) -> Checked {
        self.seen.conflicts += 1;
        let nothing = self.target.stray.is_none() && self.catalog.misshapen.is_none();
        if nothing {
            return Err(format!("nothing is in the way: {error}"));
        }
        if end > self.careful {
            self.careful = end;
            return Ok(());
        }
        self.seen.blocked += 1;
        let number = (self.history.iter()).position(|one| one.end == end || one.commit == end);
        let before = number.map_or(0, |number| number);
        let stands = self.target.committed.kept;
        let wanted = match before {
            0 => Lsn::INVALID,
            before => self.history[before - 1].end,
        };
        self.mend();
        match self.has(wanted) {
            true => Ok(()),
            false => Err(format!("blocked at {end}, and the target is at {stands}")),
        }
    }
}
