//! One session, decided without I/O and without a clock: messages and news of the writers in, actions
//! out.
//!
//! [`Session::next`] says what to do next. Whoever drives the session first does what
//! [`Session::action`] returns, in its order, then that one thing; it hands over messages with
//! [`Session::take`], news of the writers with [`Session::news`] and what others want with
//! [`Session::see_wanted`]. The driver of a replica is a thread (`crate::drive`), that of the
//! simulation a step of its world. The one question that is asked in the middle of a message goes
//! through [`Tables`], which both answer.
//!
//! While the writers work the session reads on, so keepalives are answered at once and the next
//! batch grows as long as the writers need: under load batches are large, without load each
//! transaction goes to the target by itself. A batch is handed over when nothing more has arrived and no
//! writer has anything to do, or one has none and the batch is worth a second one, or when it is full.
//! Each writer can have one part, and one more can wait; then nothing more is read, and the source
//! is told from time to time that the replica is there. How many writers are used [`crate::crew`] decides.
//!
//! With a frequency ([`crate::cycle`]) the session reads only while a cycle runs. All that it takes then is
//! one target transaction, however many parts it has.
//!
//! Reading also stops once all parts, with the copies of rows that their statements need, take the
//! memory that they may take: only the last message that was read can exceed it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lockstep_wire::Lsn;
use lockstep_wire::stream::{FromServer, Status, Timestamp};

use crate::batch::{Closing, CommitPoint, Counts, Missing, Part};
use crate::crew::{Crew, Pace, Why, Writers};
use crate::cycle::{Asked, Cycles, Past, Running};
use crate::error::{ApplyError, Result};
use crate::fault::Fault;
use crate::merge::{Handed, Limits, Merger, Tables, Taken};
use crate::order::Order;
use crate::positions::Positions;
use crate::work::{Done, Job, News, Task};

/// A hold before every transaction.
pub fn before_all() -> Lsn {
    Lsn::from(1)
}

/// Parts that may wait for a writer.
pub const MOST_WAITING: usize = 1;

/// Fewest changes for which a second writer starts while another works.
const WORTH: u64 = 500;

/// Longest silence towards the source, which ends a connection that is silent for
/// `wal_sender_timeout`.
pub const STATUS_EVERY: Duration = Duration::from_secs(5);

/// Time between moves of the origin to positions that are reached without changes: each is a
/// transaction on the target.
const MOVE_EVERY: Duration = Duration::from_millis(20);

/// What is wanted of the replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    pub stop: bool,
    pub pause: bool,
    /// Transactions whose commit record starts here or later are held back.
    pub hold: Option<Lsn>,
    /// Counts calls of [`Control::resume`](crate::Control::resume): a blocked replica tries again.
    pub resumed: u64,
    /// What the source sends is not what the replica wants.
    pub refuse: bool,
    /// Time from the beginning of one cycle to that of the next; zero: changes are applied as they come.
    pub frequency: Duration,
    /// Counts requests for a cycle; see [`Control::force`](crate::Control::force).
    pub forces: u64,
}

impl Wanted {
    /// The session is to end.
    pub fn ends(self) -> bool {
        self.stop || self.pause || self.refuse
    }
}

/// What a session is given at its start.
#[derive(Debug, Clone, Copy)]
pub struct Begin {
    /// Limits for the number of writers that there are at the start.
    pub limits: Limits,
    /// Memory for changes that are received and not applied, in bytes.
    pub memory: usize,
    pub writers: Writers,
    pub pace: Pace,
    /// Where the target stands, durably.
    pub stands: Lsn,
    /// Transactions up to here are applied one by one.
    pub careful: Lsn,
    /// Messages come from a spool.
    pub is_spooled: bool,
    /// The frequency and what the target knows of earlier cycles; None: changes are applied as they come.
    pub cycles: Option<(Duration, Past)>,
}

/// What the session wants done at once, in this order.
#[derive(Debug)]
pub enum Action {
    /// Hand a job to the writers.
    Hand(Job),
    /// Tell whoever sends the stream; the driver enters the time.
    Tell(Status),
    /// Show the session's figures.
    Show(Figures),
    /// Note that not all that was received is applied.
    Behind,
    /// Count what is committed.
    Count(Committed),
    /// Rows to update or delete, in transactions up to the position, were not there.
    Warn(Missing, Lsn),
    /// Acknowledge a hold.
    Holds(Option<Lsn>),
    /// Use this many writers, for this reason; more may have to be connected.
    Use(usize, Why),
}

/// Figures for whoever looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    pub applied: Lsn,
    pub flushed: Lsn,
    /// All that was received is applied.
    pub caught_up: bool,
    /// What was heard from the source; None with a spool, whose intake counts it.
    pub heard: Option<Heard>,
    pub cycles: Option<CyclesShown>,
}

/// Where a replica is between its cycles and in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CyclesShown {
    pub every: Duration,
    /// The cycle that runs.
    pub running: Option<Running>,
    /// When the next is due by the frequency.
    pub next: Instant,
    /// From when on the target is later than its cycles let expect; None before the first has ended.
    pub late: Option<Instant>,
}

/// What was heard from the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// End of the source's WAL as it last said.
    pub source_end: Lsn,
    /// When that was, or when nobody was listening.
    pub last: Option<Instant>,
    /// Bytes of messages since the figures were last shown.
    pub bytes: u64,
}

/// A commit on the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    pub counts: Counts,
    pub missing: u64,
    pub again: bool,
    /// When the newest transaction of it was committed on the source; None if it has none.
    pub time: Option<Timestamp>,
    /// The cycle that has ended with it, and how long that took.
    pub cycle: Option<(Closing, Duration)>,
}

/// What the driver is to do once all actions are done.
#[derive(Debug)]
pub enum Next {
    /// Ask again.
    Again,
    /// Hand over what has arrived, as long as [`Session::reads`], or call [`Session::idle`] if nothing
    /// has.
    Read,
    /// Wait for news, or what else is wanted, at most this long; nothing is read.
    Wait(Duration),
    /// Wait likewise, or for the stream.
    WaitToRead(Duration),
    /// Call [`Session::begin_cycle`].
    Begin,
    /// The session ends, with an error or because that is wanted.
    End(Option<ApplyError>),
}

/// A session. `M` is a message's content.
#[derive(Debug)]
pub struct Session<M> {
    begin: Begin,
    merger: Merger,
    positions: Positions,
    order: Order,
    crew: Crew,
    /// A part of a transaction was handed over, and its last part was not.
    is_in_parts: bool,
    /// Jobs that the writers have not done yet, those that they have, and the memory of the former.
    handed: usize,
    done: u64,
    in_flight: usize,
    /// Changes of parts that are done, of a transaction that the target has not committed: if it fails,
    /// they are made again.
    in_parts: Counts,
    moved_at: Instant,
    /// Ends of the transactions in these parts; the last is that of the newest part.
    newest_handed: Lsn,
    /// The first message of a transaction that is held back.
    held: Option<M>,
    wanted: Wanted,
    last_status: Instant,
    /// Positions have moved since the source was told.
    is_news: bool,
    source_end: Lsn,
    heard: Option<Instant>,
    bytes: u64,
    /// A change of the schema is handed over: nothing more is read before it is made.
    alters: bool,
    /// A change does not fit: the session ends once what was handed over before is done.
    misfit: Option<ApplyError>,
    cycles: Option<Cycles>,
    /// The spool takes nothing more in.
    is_full: bool,
    is_unsure: bool,
    actions: VecDeque<Action>,
    fault: Option<Fault>,
}

impl<M: AsRef<[u8]>> Session<M> {
    pub fn new(begin: Begin, now: Instant) -> Self {
        Self {
            begin,
            merger: Merger::new(begin.limits, begin.careful),
            positions: Positions::new(begin.stands),
            order: Order::default(),
            crew: Crew::new(begin.writers, begin.pace),
            is_in_parts: false,
            handed: 0,
            done: 0,
            in_flight: 0,
            in_parts: Counts::default(),
            moved_at: now,
            newest_handed: begin.stands,
            held: None,
            wanted: Wanted::default(),
            last_status: now,
            is_news: true,
            source_end: Lsn::INVALID,
            heard: None,
            bytes: 0,
            alters: false,
            misfit: None,
            cycles: (begin.cycles).map(|(every, past)| Cycles::new(every, past, now)),
            is_full: false,
            is_unsure: false,
            actions: VecDeque::new(),
            fault: None,
        }
    }

    /// The session with a fault planted, for tests.
    pub fn with_fault(mut self, fault: Option<Fault>) -> Self {
        self.fault = fault;
        self
    }

    /// The next action.
    pub fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Jobs that the writers have not done yet.
    pub fn handed(&self) -> usize {
        self.handed
    }

    /// Memory of what is gathered and of what the writers have, in bytes.
    pub fn memory(&self) -> usize {
        self.in_flight + self.merger.memory()
    }

    /// End of the last transaction of the batch that an error is about: None if the error is not of a
    /// change.
    pub fn failed_batch(&self, error: &ApplyError) -> Option<Lsn> {
        let conflict = error.conflict()?;
        match conflict.lsn.is_valid() {
            true => Some(conflict.lsn),
            false => Some(self.newest_handed),
        }
    }

    /// What to do next.
    pub fn next(&mut self, now: Instant) -> Next {
        let next = self.decide(now);
        if matches!(next, Next::Wait(_)) {
            // A source that nobody listens to is not silent.
            self.heard = self.heard.map(|_| now);
        }
        next
    }

    fn decide(&mut self, now: Instant) -> Next {
        // Before a misfit is told of: a replica that is blocked has everything before it.
        if self.wanted.ends() || self.is_rescheduled() {
            return Next::End(None);
        }
        if let Some(error) = self.misfit.take() {
            if self.handed > 0 && self.fault != Some(Fault::BlocksTooSoon) {
                self.tell_if_due(now);
                self.misfit = Some(error);
                return Next::Wait(STATUS_EVERY);
            }
            return Next::End(Some(error));
        }
        self.tell_if_due(now);
        if self.alters && self.handed > 0 {
            return Next::Wait(STATUS_EVERY);
        }
        if std::mem::take(&mut self.alters) {
            self.merger.look_again();
        }
        if self.is_full() {
            return self.hand_over();
        }
        if self.is_crowded() {
            return match self.merger.can_commit() {
                true => self.hand_over(),
                false => Next::Wait(STATUS_EVERY),
            };
        }
        if self.cycles.is_some() {
            return self.next_of_cycle(now);
        }
        if self.held.is_some() {
            return match self.rest(now) {
                Next::WaitToRead(patience) => Next::Wait(patience),
                next => next,
            };
        }
        Next::Read
    }

    /// Another message may be taken before [`Session::next`] is asked again.
    pub fn reads(&self) -> bool {
        let is_full = self.is_full() || self.is_crowded();
        !(is_full || self.alters || self.held.is_some() || self.misfit.is_some())
    }

    /// Nothing more has arrived.
    pub fn idle(&mut self, now: Instant) -> Next {
        match self.cycles {
            Some(_) => self.end_cycle(),
            None => self.rest(now),
        }
    }

    /// All that has arrived is done: whoever knows why nothing more comes may say it.
    pub fn is_done(&self) -> bool {
        let is_running = self.running().is_some();
        self.handed == 0 && !self.is_worth_it() && !is_running
    }

    /// Takes a message.
    pub fn take(&mut self, data: M, tables: &mut dyn Tables, now: Instant) -> Result<()> {
        self.heard = Some(now);
        match self.parse(data, tables, now) {
            Err(error @ ApplyError::Conflict(_)) => {
                self.misfit = Some(error);
                Ok(())
            }
            taken => taken,
        }
    }

    fn parse(&mut self, data: M, tables: &mut dyn Tables, now: Instant) -> Result<()> {
        match FromServer::parse(data.as_ref())? {
            FromServer::XLogData { wal, end, .. } => {
                self.source_end = self.source_end.max(end);
                match self.merger.take(wal, tables)? {
                    Taken::Inside => {}
                    Taken::Ended(commit) => {
                        self.positions.received(commit.end);
                    }
                    Taken::Held(commit) => {
                        self.positions.received(commit);
                        self.is_news = true;
                        self.held = Some(data);
                        return Ok(());
                    }
                }
                let bytes = data.as_ref().len() as u64;
                self.bytes += bytes;
                if let Some(cycles) = &mut self.cycles {
                    cycles.took(bytes);
                }
            }
            FromServer::Keepalive { end, reply, .. } => {
                self.source_end = self.source_end.max(end);
                self.covered(end);
                if reply {
                    self.tell(false, now);
                }
            }
        }
        Ok(())
    }

    /// Nothing comes any more that ends before `end`.
    pub fn covered(&mut self, end: Lsn) {
        // Within a transaction the source may be further than what it has sent. While it waits for the
        // target to flush, it answers whatever it is told at once with the position that it has told
        // before: if that were news, the two would go on like that until the target is done.
        if !self.merger.is_inside() || self.fault == Some(Fault::CoveredInside) {
            self.is_news |= self.positions.received(end);
        }
    }

    /// Something else may be wanted.
    pub fn see_wanted(
        &mut self,
        wanted: Wanted,
        tables: &mut dyn Tables,
        now: Instant,
    ) -> Result<()> {
        let before = self.wanted.hold;
        self.wanted = wanted;
        self.set_hold();
        if wanted.hold != before {
            // What is held back in a cycle, by its end or by a hold, is the next cycle's, whoever lets go.
            if let Some(data) = self.held.take_if(|_| self.cycles.is_none()) {
                self.parse(data, tables, now)?;
            }
            // The source's answer says how far its WAL goes, if nothing else does.
            self.tell(true, now);
        }
        self.actions.push_back(Action::Holds(wanted.hold));
        Ok(())
    }

    /// Takes news of the writers, which come in the order of their jobs.
    pub fn news(&mut self, news: News, now: Instant) -> Result<()> {
        match news {
            News::Failed(error) => return Err(error),
            News::Moved(end) => {
                self.ended(0);
                self.positions.moved(end);
                self.moved_at = now;
                self.is_news = true;
            }
            News::Done(done) => {
                let changed = self.crew.done(done.counts.rows(), done.again, now);
                self.part_done(done, now);
                if changed {
                    self.use_crew();
                }
            }
        }
        Ok(())
    }

    /// The target has no room for more writers than these.
    pub fn has_no_room(&mut self, there: usize, words: String) {
        self.crew.has_no_room(there, words);
        self.use_crew();
    }

    /// How many writers are used, and why.
    pub fn shown_crew(&self) -> (usize, Why) {
        (self.crew.used(), self.crew.why().clone())
    }

    fn use_crew(&mut self) {
        let used = self.crew.used();
        let limits = self.begin.limits.shared(self.begin.writers.first(), used);
        self.merger.set_limits(limits);
        self.actions
            .push_back(Action::Use(used, self.crew.why().clone()));
    }

    fn ended(&mut self, memory: usize) {
        self.handed = self.handed.saturating_sub(1);
        self.done += 1;
        self.in_flight = self.in_flight.saturating_sub(memory);
    }

    /// The frequency is another than when the session began.
    fn is_rescheduled(&self) -> bool {
        let every = self.begin.cycles.map_or(Duration::ZERO, |(every, _)| every);
        self.wanted.frequency != every
    }

    /// Transactions from here on are held back: somebody wants that, or they are the next cycle's.
    fn set_hold(&mut self) {
        let wanted = (self.wanted.hold).filter(|_| self.fault != Some(Fault::HoldIgnored));
        let end = self.cycles.as_ref().and_then(Cycles::end);
        let end = end.filter(|_| self.fault != Some(Fault::CycleHasNoEnd));
        self.merger
            .set_hold([wanted, end].into_iter().flatten().min());
    }

    /// The cycle that runs.
    pub fn running(&self) -> Option<&Running> {
        self.cycles.as_ref().and_then(Cycles::running)
    }

    /// Whether the spool takes nothing more in: then a cycle makes room. Whether its source may have more
    /// than it: then no cycle says that there is nothing new.
    pub fn see_intake(&mut self, is_full: bool, is_unsure: bool) {
        (self.is_full, self.is_unsure) = (is_full, is_unsure);
    }

    /// What may make a cycle due before its time, or keep it from beginning.
    fn asked(&self) -> Asked {
        let applied = self.positions.reached(self.merger.is_idle());
        let waits = |hold: Lsn| hold > before_all() && applied < hold;
        Asked {
            forces: self.wanted.forces,
            is_full: self.is_full,
            is_unsure: self.is_unsure,
            hold: self.wanted.hold.map(waits),
        }
    }

    fn next_of_cycle(&mut self, now: Instant) -> Next {
        let asked = self.asked();
        let Some(cycles) = &self.cycles else {
            return Next::Read;
        };
        match cycles.running() {
            Some(_) if cycles.is_closing() => Next::Wait(STATUS_EVERY),
            Some(_) if self.held.is_some() => self.end_cycle(),
            Some(_) => Next::Read,
            None if self.handed > 0 => Next::Wait(STATUS_EVERY),
            None => {
                let rest = cycles.rest(asked, now).unwrap_or(STATUS_EVERY);
                self.tell_news(now);
                match rest.is_zero() {
                    true => Next::Begin,
                    false => Next::WaitToRead(rest.min(STATUS_EVERY)),
                }
            }
        }
    }

    /// Begins the cycle that is due, up to what the spool has.
    pub fn begin_cycle(
        &mut self,
        received: Lsn,
        tables: &mut dyn Tables,
        now: Instant,
    ) -> Result<Next> {
        let asked = self.asked();
        let stands = self.positions.reached(self.merger.is_idle());
        let begun = (self.cycles.as_mut()).is_some_and(|it| it.begin(stands, received, asked, now));
        if !begun {
            return Ok(Next::WaitToRead(STATUS_EVERY));
        }
        self.merger.begin_cycle();
        self.set_hold();
        self.show(now);
        if let Some(data) = self.held.take() {
            self.parse(data, tables, now)?;
        }
        Ok(Next::Again)
    }

    /// All that the cycle takes was taken: hands over its last part, once the writers have room.
    fn end_cycle(&mut self) -> Next {
        if !self.has_room() || self.cycles.as_ref().is_none_or(Cycles::is_closing) {
            return Next::Wait(STATUS_EVERY);
        }
        let end = self.positions.all_received();
        let (mut part, tables) = self.merger.end_cycle(end);
        if let Some(cycles) = &mut self.cycles {
            cycles.handed(&part.counts);
            part.cycle = cycles.close(tables).map(Box::new);
        }
        self.hand_part(part);
        Next::Again
    }

    fn part_done(&mut self, done: Done, now: Instant) {
        self.ended(done.memory);
        if done.stale {
            self.merger.look_again();
        }
        self.in_parts.add(&done.counts);
        let Some(commit) = done.commit else {
            if let Some(cycles) = &mut self.cycles {
                cycles.made(done.lsn);
                self.is_news = true;
            }
            return;
        };
        if let (Some(cycles), Some(_)) = (&mut self.cycles, &done.cycle) {
            cycles.committed(now);
        }
        self.positions.applied(commit.end);
        let planted = (self.fault == Some(Fault::FlushedIsApplied)).then_some(commit.end);
        if let Some(end) = planted.or(done.flushed) {
            self.positions.flushed(end);
        }
        self.is_news = true;
        let counts = std::mem::take(&mut self.in_parts);
        let took = |it: Box<Closing>| (*it, now.saturating_duration_since(it.began));
        self.actions.push_back(Action::Count(Committed {
            counts,
            missing: done.missing.values().sum(),
            again: done.again,
            time: Some(commit.time).filter(|_| counts.transactions > 0),
            cycle: done.cycle.map(took),
        }));
        if !done.missing.is_empty() {
            self.actions
                .push_back(Action::Warn(done.missing, commit.end));
        }
    }

    /// What is gathered may go to a writer before the batch is full.
    fn is_worth_it(&self) -> bool {
        let has_more = self.handed < self.crew.used() && self.merger.rows() >= WORTH;
        self.merger.can_commit() && (self.handed == 0 || has_more)
    }

    /// The writers have room for another part.
    fn has_room(&self) -> bool {
        self.handed < self.crew.used() + MOST_WAITING
    }

    /// What is gathered is to be handed over before more is taken.
    fn is_full(&self) -> bool {
        self.merger.is_full() && (self.has_room() || !self.merger.may_grow())
    }

    /// What is gathered and what the writers have takes all memory: nothing more is read until one of
    /// them is done with a part. What is gathered alone never does, but for a row that is larger.
    fn is_crowded(&self) -> bool {
        let is_over = self.in_flight > 0 && self.memory() >= self.begin.memory;
        is_over && self.fault != Some(Fault::NeverCrowded)
    }

    /// Nothing is taken for now: what is worth it is handed over, otherwise the origin may move.
    fn rest(&mut self, now: Instant) -> Next {
        if self.is_worth_it() {
            return self.hand_over();
        }
        self.tell_news(now);
        // The origin moves if that is the only way forward.
        let to_move = self.positions.to_move(self.merger.is_idle());
        let Some(end) = to_move.filter(|_| self.handed == 0) else {
            return Next::WaitToRead(STATUS_EVERY);
        };
        let rest = MOVE_EVERY.saturating_sub(now.saturating_duration_since(self.moved_at));
        if !rest.is_zero() {
            return Next::WaitToRead(rest);
        }
        self.hand(true, Task::Move(end));
        Next::WaitToRead(STATUS_EVERY)
    }

    /// Hands over what is gathered, once the writers have room for it.
    fn hand_over(&mut self) -> Next {
        if !self.has_room() {
            return Next::Wait(STATUS_EVERY);
        }
        match self.merger.hand_over() {
            Handed::Position(commit) => {
                self.positions.received(commit.end);
                self.is_news = true;
            }
            Handed::Part(mut part) => {
                if let Some(cycles) = &mut self.cycles {
                    cycles.handed(&part.counts);
                    // Only what is applied with care is committed within a cycle.
                    let tables = self.merger.cycle_tables();
                    let share = (part.commit).and_then(|_| cycles.share(tables));
                    part.share = share.map(Box::new);
                }
                self.hand_part(self.planted(part));
            }
        }
        Next::Again
    }

    /// The part; with a fault, that of a cycle commits.
    fn planted(&self, mut part: Part) -> Part {
        if self.fault == Some(Fault::CycleCommitsParts) && !self.merger.is_inside() {
            let end = part.lsn;
            part.commit.get_or_insert(CommitPoint {
                end,
                time: Timestamp::default(),
            });
        }
        part
    }

    fn hand_part(&mut self, part: Part) {
        if let Some(commit) = part.commit {
            self.positions.handed(commit.end);
            self.newest_handed = commit.end;
            if self.fault == Some(Fault::HandedIsApplied) {
                self.positions.applied(commit.end);
            }
        }
        self.actions.push_back(Action::Behind);
        self.in_flight += part.memory;
        self.alters |= part.has_command() && self.fault != Some(Fault::ReadsOnAtCommand);
        self.part(part);
    }

    fn part(&mut self, part: Part) {
        // The parts of one transaction go to one writer, which has no other: what the rest of them
        // touches is not known when the first begins.
        let in_parts = self.is_in_parts || part.commit.is_none();
        self.is_in_parts = part.commit.is_none();
        // One of these is known not to fit.
        let is_careful = part.lsn <= self.begin.careful;
        let alone = is_careful || in_parts || !self.crew.plans_for_several();
        let pressed = self.handed >= self.crew.used();
        let hindered = self.hand(alone, Task::Part(part));
        let changed = match is_careful || in_parts {
            true => self.crew.handed_alone(in_parts),
            false => self.crew.handed(pressed, hindered),
        };
        if changed {
            self.use_crew();
        }
    }

    /// Hands over a task; true if most of it waits for others.
    fn hand(&mut self, alone: bool, task: Task) -> bool {
        self.order.done(self.done);
        let plan = match &task {
            Task::Part(part) => self.order.plan(part, alone),
            Task::Move(_) => self.order.plan(&Part::default(), alone),
        };
        let hindered = plan.is_hindered();
        self.handed += 1;
        self.actions.push_back(Action::Hand(Job { plan, task }));
        hindered
    }

    fn tell_if_due(&mut self, now: Instant) {
        if now.saturating_duration_since(self.last_status) >= STATUS_EVERY {
            // The source's answer shows that it is there.
            self.tell(true, now);
        } else if self.handed == 0 {
            self.tell_news(now);
        }
    }

    /// Tells whoever has not heard of it how far we are. What is only received is for the figures:
    /// the source would work on each message, and answer it.
    fn tell_news(&mut self, now: Instant) {
        if !self.is_news {
            return;
        }
        match self.positions.is_ahead_of_told(self.merger.is_idle()) {
            true => self.tell(false, now),
            false => self.show(now),
        }
    }

    /// Tells the source the positions, and shows them as well.
    pub fn tell(&mut self, reply: bool, now: Instant) {
        let mut status = self
            .positions
            .status(self.merger.is_idle(), Timestamp::default());
        status.reply = reply;
        self.last_status = now;
        self.show(now);
        self.actions.push_back(Action::Tell(status));
    }

    fn show(&mut self, now: Instant) {
        self.is_news = false;
        let (flushed, applied) = self.positions.told();
        let bytes = std::mem::take(&mut self.bytes);
        let heard = Heard {
            source_end: self.source_end,
            last: self.heard,
            bytes,
        };
        let is_settled = self.positions.is_settled() || self.fault == Some(Fault::CaughtUpTooSoon);
        self.actions.push_back(Action::Show(Figures {
            applied,
            flushed,
            caught_up: self.merger.is_idle() && is_settled,
            heard: Some(heard).filter(|_| !self.begin.is_spooled),
            cycles: (self.cycles.as_ref()).map(|cycles| CyclesShown {
                every: cycles.every(),
                running: cycles.running().copied(),
                next: now + cycles.until_next(now),
                late: cycles.late_from(),
            }),
        }));
    }
}
