//! The driver of a switchover: asks [`decision`](super::decision) what comes next, and has it done.
//!
//! Servers, pooler and clock are behind [`Servers`], so a simulation
//! (`crates/replica/tests/replica/switchover_simulation`) drives all of this, and the fences, as the command
//! does.

use std::time::{Duration, Instant};

use lockstep_client::ClientError;
use lockstep_wire::Lsn;

use crate::error::{ReplicaError, Result};
use crate::lifecycle::fence::{self, Fence, Fenced};
use crate::lifecycle::promotion::{self, Drained, Next, Wish};
use crate::names::named;
use crate::state::failpoint;
use crate::state::{Phase, Replica, SwitchStage};
use crate::switchover::decision::{Clients, Compared, Step, SwitchSeen, WayBack, next};
use crate::switchover::left::Left;
use lockstep_service::words::span;

/// Longest wait for transactions of a pooler's clients in one attempt.
const PAUSED_WITHIN: Duration = Duration::from_secs(2);

/// Interval of looks at what is waited for, and the rest between two attempts.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const REST: Duration = Duration::from_secs(2);

/// How far a switchover may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest time that clients wait in an attempt that can be taken back.
    pub max_pause: Duration,
    /// Time after which no attempt begins.
    pub timeout: Duration,
    /// Both sides are compared while clients wait.
    pub compares: bool,
}

/// What a comparison has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compare {
    /// What differs, in words.
    pub differs: Option<String>,
    /// Another command may have worked on the replica meanwhile.
    pub let_go: bool,
}

/// Source, target and pooler of a switchover, the replica of its way back, and the clock.
pub trait Servers {
    /// A session of one of both databases.
    type Session: Fenced;

    fn now(&self) -> Instant;
    fn rest(&mut self, time: Duration);
    /// The user wants it to end.
    fn is_stopped(&self) -> bool;
    fn says(&mut self, words: &str);

    /// The source's session, made anew if it is lost.
    fn source(&mut self) -> Result<&mut Self::Session>;
    /// The session of the target's state, which is not made anew.
    fn state(&mut self) -> &mut Self::Session;
    /// Another session of the target.
    fn target(&mut self) -> Result<Self::Session>;

    fn replica(&self) -> &Replica;
    /// Reads the replica again.
    fn refresh(&mut self) -> Result<()>;
    /// Lets no other command work on the switchover. An error says which does.
    fn take_hold(&mut self) -> Result<()>;
    fn end_hold(&mut self) -> Result<()>;
    fn stage(&mut self) -> Result<SwitchStage>;
    /// Keeps in the state that a switchover has begun; returns how far it is then.
    fn begin(&mut self) -> Result<SwitchStage>;
    fn set_stage(&mut self, stage: SwitchStage) -> Result<()>;

    /// Whether the pooler's clients wait, if there is one. An error if the switchover has begun with another.
    fn clients(&mut self, stage: SwitchStage) -> Result<Clients>;
    /// What an earlier call has left of the way back, and what keeps it from being made.
    fn way_back(&mut self, is_ready: bool) -> Result<(WayBack, Option<String>)>;
    /// Takes down what only the source has, for [`Servers::hindrances`].
    fn take_down(&mut self) -> Result<()>;

    /// What would make it fail, in words.
    fn findings(&mut self) -> Result<Option<String>>;
    /// What would be lost although it was looked for when the command began, in words.
    fn hindrances(&mut self) -> Result<Option<String>>;
    /// What would make the pause long now, in words.
    fn waits(&mut self) -> Result<Option<String>>;
    fn promotion(&mut self) -> Result<promotion::Seen>;

    fn analyze(&mut self) -> Result<()>;
    /// Makes the way back, unless none is wanted.
    fn prepare(&mut self) -> Result<()>;
    fn unprepare(&mut self) -> Result<()>;
    fn arm(&mut self) -> Result<()>;
    /// Lets clients wait; an error if that takes longer.
    fn pause(&mut self, patience: Duration) -> Result<()>;
    /// Sessions of the source that the way back needs.
    fn spared(&mut self) -> Vec<u32>;
    /// Everything of the source lies before this position.
    fn ends_at(&mut self, end: Lsn);
    fn drain(&mut self, end: Lsn, patience: Duration) -> Result<Drained>;
    fn compare(&mut self, patience: Duration) -> Result<Compare>;
    fn promote(&mut self, next: Next) -> Result<()>;
    /// Lets the way back begin here.
    fn reverse(&mut self) -> Result<()>;
    fn redirect(&mut self) -> Result<()>;
    /// Ends the wait of clients. `is_led`: they come to the target.
    fn resume(&mut self, is_led: bool) -> Result<()>;

    /// What is left if the command ends here, as far as the driver does not know it.
    fn left(&self) -> Left;
    fn note(&mut self, words: String);
    /// What the target may lack.
    fn lacks(&mut self, words: String);
}

/// Connects to the servers of a switchover, again if need be.
pub trait Opens {
    type Servers: Servers;
    type Done;

    fn now(&self) -> Instant;
    fn rest(&mut self, time: Duration);
    fn is_stopped(&self) -> bool;
    fn says(&mut self, words: &str);
    /// Connects; no attempt begins after `timeout`.
    fn open(&mut self, timeout: Duration) -> Result<Drive<Self::Servers>>;
    fn done(&mut self, drive: Drive<Self::Servers>, is_again: bool) -> Result<Self::Done>;
    /// An error of a command that has seen nothing of its replica yet, with what can be told without the
    /// target.
    fn unknown(&self, error: ReplicaError) -> ReplicaError;
}

/// Switches over, or goes on with a switchover that was begun. If a server's connection is lost, it connects
/// again for as long as `timeout` says, and goes on as another call would.
pub fn through<O: Opens>(opens: &mut O, timeout: Duration) -> Result<O::Done> {
    let began = opens.now();
    let (mut lost, mut left): (Option<Instant>, Option<Left>) = (None, None);
    loop {
        let passed = opens.now().duration_since(began);
        let done = match opens.open(timeout.saturating_sub(passed)) {
            Ok(mut drive) => {
                lost = None;
                let done = drive.run();
                left = Some(drive.leaves());
                done.and_then(|is_again| opens.done(drive, is_again))
            }
            Err(error) => Err(error),
        };
        let error = match done {
            Err(error) => error,
            done => return done,
        };
        let Some(left) = &left else {
            return Err(opens.unknown(error));
        };
        let now = opens.now();
        let since = now.duration_since(*lost.get_or_insert(now));
        if !error.is_lost() || opens.is_stopped() || since >= timeout {
            return Err(left.told(error));
        }
        opens.says(&format!("{error}; connecting again"));
        opens.rest(REST);
    }
}

/// A switchover as one command does it.
pub struct Drive<S> {
    pub servers: S,
    limits: Limits,
    refusal: Option<String>,
    failure: Option<String>,
    began: Instant,
    /// Since when clients wait.
    paused: Option<Instant>,
    pub(super) pause: Option<Duration>,
    pub(super) steps: Vec<(&'static str, Duration)>,
    is_analyzed: bool,
    is_armed: bool,
    pub(super) clients: Clients,
    pub(super) way_back: WayBack,
    is_planted: bool,
    is_surely_planted: bool,
    is_closed: bool,
    is_surely_closed: bool,
    pub(super) is_fenced: bool,
    fence: Option<Lsn>,
    drained: Drained,
    compared: Compared,
    is_whole: bool,
    is_redirected: bool,
    pub(super) stage: SwitchStage,
    /// What was waited for last.
    said: String,
}

impl<S: Servers> Drive<S> {
    /// Begins, or finds what an earlier command has left.
    pub fn open(servers: S, limits: Limits) -> Result<Self> {
        let mut drive = Self {
            limits,
            refusal: None,
            failure: None,
            began: servers.now(),
            servers,
            paused: None,
            pause: None,
            steps: Vec::new(),
            is_analyzed: false,
            is_armed: false,
            clients: Clients::Direct,
            way_back: WayBack::NotWanted,
            is_planted: false,
            is_surely_planted: false,
            is_closed: false,
            is_surely_closed: false,
            is_fenced: false,
            fence: None,
            drained: Drained::NotYet,
            compared: not_compared(&limits),
            is_whole: false,
            is_redirected: false,
            stage: SwitchStage::None,
            said: String::new(),
        };
        let servers = &mut drive.servers;
        // From here on no other command works on the switchover.
        servers.take_hold()?;
        servers.refresh()?;
        let stage = servers.stage()?;
        drive.stage = stage;
        drive.clients = servers.clients(stage)?;
        let is_ready = servers.replica().phase == Phase::Ready;
        if is_ready && stage.is_begun() {
            let is_fenced = fence::is_there(servers.source()?, Fence::Left);
            drive.is_fenced = is_fenced.map_err(ReplicaError::Source)?;
            let is_closed = fence::is_there(servers.state(), Fence::Comes);
            drive.is_closed = is_closed.map_err(ReplicaError::Target)?;
            drive.is_planted = true;
            drive.failure = Some("an earlier command ended in the middle of it".to_owned());
        }
        if is_ready {
            servers.take_down()?;
        }
        if stage != SwitchStage::Done {
            (drive.way_back, drive.refusal) = servers.way_back(is_ready)?;
        }
        Ok(drive)
    }

    /// Does all that is to be done. True if an earlier call had done it.
    pub fn run(&mut self) -> Result<bool> {
        let stage = self.stage;
        if (stage, self.servers.replica().phase) == (SwitchStage::None, Phase::Ready) {
            self.look_first()?;
        }
        loop {
            let seen = self.see()?;
            match next(self.servers.replica(), &seen) {
                Step::Refuse(words) => return Err(ReplicaError::State(words)),
                Step::Done => return Ok(stage == SwitchStage::Done),
                step => self.take(step)?,
            }
        }
    }

    /// Looks for what would make it fail.
    pub(super) fn look_first(&mut self) -> Result<()> {
        let found = self.servers.findings()?;
        self.refusal = self.refusal.take().or(found);
        Ok(())
    }

    fn leaves(&self) -> Left {
        let left = self.servers.left();
        Left {
            is_begun: self.stage.is_begun(),
            phase: self.servers.replica().phase,
            is_fenced: self.is_fenced,
            waits: left.waits.filter(|_| self.clients == Clients::Wait),
            ..left
        }
    }

    pub(super) fn see(&mut self) -> Result<SwitchSeen> {
        let servers = &mut self.servers;
        self.stage = servers.stage()?;
        let mut promotion = servers.promotion()?;
        promotion.drained = self.drained.clone();
        let is_ready = servers.replica().phase == Phase::Ready;
        let is_stopped = servers.is_stopped();
        if is_stopped && is_ready {
            self.failure = Some("it was asked to end".to_owned());
        }
        let is_up = self.is_fenced || self.is_closed || self.clients == Clients::Wait;
        let is_before = is_ready && !is_up;
        let waits = match is_before && self.failure.is_none() {
            true => servers.waits()?,
            false => None,
        };
        let mut refusal = self.refusal.clone();
        if is_before && refusal.is_none() {
            let next = promotion::next(Wish::default(), servers.replica(), &promotion);
            if let Next::Refuse(words) = next {
                refusal = Some(words);
            }
        }
        let passed = servers.now().duration_since(self.began);
        Ok(SwitchSeen {
            stage: self.stage,
            refusal,
            waits,
            failure: self.failure.clone(),
            is_overdue: is_stopped || passed >= self.limits.timeout,
            is_late: self.left().is_zero(),
            is_analyzed: self.is_analyzed,
            is_armed: self.is_armed,
            clients: self.clients,
            way_back: self.way_back,
            is_planted: self.is_planted,
            is_surely_planted: self.is_surely_planted,
            is_closed: self.is_closed,
            is_surely_closed: self.is_surely_closed,
            is_fenced: self.is_fenced,
            fence: self.fence,
            compared: self.compared.clone(),
            is_whole: self.is_whole,
            is_redirected: self.is_redirected,
            promotion,
        })
    }

    /// Time since a moment.
    fn since(&self, at: Instant) -> Duration {
        self.servers.now().duration_since(at)
    }

    /// What is left of this attempt's time.
    fn left(&self) -> Duration {
        let passed = self.paused.map_or(Duration::ZERO, |at| self.since(at));
        self.limits.max_pause.saturating_sub(passed)
    }

    fn take(&mut self, step: Step) -> Result<()> {
        let began = self.servers.now();
        let is_pausing = matches!(step, Step::Pause | Step::Fence);
        if is_pausing && self.paused.is_none() {
            self.paused = Some(began);
        }
        let label = label(&step);
        match step {
            Step::Refuse(_) | Step::Done => {}
            Step::Analyze => {
                self.servers.says("gathering the target's statistics");
                self.servers.analyze()?;
                self.is_analyzed = true;
            }
            Step::Prepare => {
                self.servers.prepare()?;
                self.way_back = WayBack::Prepared;
            }
            Step::Unprepare => {
                self.servers.unprepare()?;
                self.way_back = WayBack::Missing;
            }
            Step::Arm => self.arm()?,
            Step::Wait(words) => self.wait(&words)?,
            Step::Begin => {
                self.stage = self.servers.begin()?;
                failpoint::SWITCH_BEGUN.reach();
            }
            Step::Plant => self.make_fences(),
            Step::Close => self.close(),
            Step::Pause => self.pause(),
            Step::Fence => self.raise(),
            Step::Drain(end) => self.drain(end)?,
            Step::Compare => self.compare()?,
            Step::Look => self.look(),
            Step::Promotion(next) => self.promote(next)?,
            Step::Reverse => {
                self.servers.reverse()?;
                self.way_back = WayBack::Ready;
            }
            Step::Redirect => self.redirect()?,
            Step::Resume => self.resume()?,
            Step::Unfence => self.unfence()?,
            Step::Unclose => self.unclose()?,
            Step::Uproot => self.uproot()?,
            Step::Forget => self.servers.set_stage(SwitchStage::None)?,
            Step::Finish => {
                failpoint::SWITCH_CLEANED.reach();
                self.servers.set_stage(SwitchStage::Done)?;
            }
        }
        if let (Some(label), true) = (label, self.paused.is_some() && self.pause.is_none()) {
            self.steps.push((label, self.since(began)));
        }
        Ok(())
    }

    /// A process that does not look often enough may do so later.
    fn arm(&mut self) -> Result<()> {
        match self.servers.arm() {
            Ok(()) => self.is_armed = true,
            Err(ReplicaError::State(words)) => self.failure = Some(words),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn wait(&mut self, words: &str) -> Result<()> {
        if self.said != words {
            self.servers.says(&format!("waiting: {words}"));
            words.clone_into(&mut self.said);
        }
        let rest = match self.failure.take() {
            Some(_) => REST,
            None => LOOK_EVERY,
        };
        self.servers.rest(rest);
        (self.fence, self.paused, self.compared) = (None, None, not_compared(&self.limits));
        (self.is_whole, self.drained) = (false, Drained::NotYet);
        self.steps.clear();
        self.servers.refresh()
    }

    /// Makes the triggers of both fences, which let everything pass.
    fn make_fences(&mut self) {
        (self.servers).says("making the fences, which let everything pass at first");
        self.is_planted = true;
        let patience = self.limits.max_pause;
        self.failure = match self.plant_both(patience) {
            Ok(None) => {
                failpoint::SWITCH_PLANTED.reach();
                self.is_surely_planted = true;
                None
            }
            Ok(Some((side, table))) => Some(format!(
                "table {table} of the {side} stays locked by a transaction that has written, so its fence cannot be made",
            )),
            Err(error) => Some(format!("a fence cannot be made: {error}")),
        };
    }

    /// The side and the table that stays locked, if one does.
    fn plant_both(&mut self, patience: Duration) -> Result<Option<(&'static str, String)>> {
        let there = fence::plant(&mut self.servers.target()?, Fence::Comes, patience);
        if let Some(table) = there.map_err(ReplicaError::Target)? {
            return Ok(Some(("target", table)));
        }
        let source = self.servers.source()?;
        let mut here = || -> Result<Option<String>, ClientError> {
            let Some(table) = fence::plant(source, Fence::Left, patience)? else {
                return Ok(None);
            };
            let prepared = source.prepared()?;
            Ok(Some(match prepared.is_empty() {
                true => table,
                false => format!("{table} (prepared: {})", named(&prepared)),
            }))
        };
        let locked = here().map_err(ReplicaError::Source)?;
        Ok(locked.map(|table| ("source", table)))
    }

    fn close(&mut self) {
        self.is_closed = true;
        let target = self.servers.target();
        let patience = self.limits.max_pause;
        match target.and_then(|mut target| fence::close(&mut target, patience)) {
            Ok(()) => {
                failpoint::SWITCH_CLOSED.reach();
                self.is_surely_closed = true;
            }
            Err(error) => {
                self.failure = Some(format!(
                    "the target cannot be kept from being written: {error}"
                ));
            }
        }
    }

    fn pause(&mut self) {
        let patience = self.left().min(PAUSED_WITHIN);
        match self.servers.pause(patience) {
            Ok(()) => self.clients = Clients::Wait,
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    fn raise(&mut self) {
        let left = self.left();
        self.is_fenced = true;
        let spared = self.servers.spared();
        let source = self.servers.source();
        let raised = source.and_then(|source| fence::raise(source, &spared, left));
        // It may be why the fence could not be raised.
        match (self.servers.hindrances(), raised) {
            (Err(error), _) => self.failure = Some(error.to_string()),
            (Ok(Some(words)), _) => {
                self.failure = Some(words.clone());
                // Another attempt finds the same.
                self.refusal = Some(words);
            }
            (Ok(None), Ok(end)) => {
                failpoint::SWITCH_FENCED.reach();
                self.fence = Some(end);
                self.servers.ends_at(end);
            }
            (Ok(None), Err(error)) => self.failure = Some(error.to_string()),
        }
    }

    fn drain(&mut self, end: Lsn) -> Result<()> {
        let left = self.left();
        self.drained = self.servers.drain(end, left)?;
        match &self.drained {
            Drained::Not(words) => self.failure = Some(words.clone()),
            _ => failpoint::SWITCH_DRAINED.reach(),
        }
        Ok(())
    }

    fn compare(&mut self) -> Result<()> {
        let left = self.left();
        let compared = match self.servers.compare(left) {
            Ok(compared) => compared,
            Err(error) => {
                self.failure = Some(format!("the comparison did not end: {error}"));
                return self.servers.take_hold();
            }
        };
        if compared.let_go {
            // If another command has come meanwhile, this one ends: both would raise and lift fences.
            self.servers.take_hold()?;
            // The fence is raised and drained to anew.
            (self.fence, self.drained) = (None, Drained::NotYet);
        }
        match compared.differs {
            None => self.compared = Compared::Equal,
            Some(words) => {
                self.failure = Some(words.clone());
                // Another attempt finds the same.
                self.refusal = Some(words);
            }
        }
        Ok(())
    }

    /// Looks whether somebody has taken the source's fence away meanwhile.
    fn look(&mut self) {
        let looked = self.servers.source().and_then(|source| {
            let gaps = fence::gaps(source, Fence::Left);
            gaps.map_err(ReplicaError::Source)
        });
        match looked {
            Ok(None) => self.is_whole = true,
            Ok(Some(words)) => {
                self.failure = Some(format!(
                    "somebody has taken the fence of the source away meanwhile: {words}"
                ));
                // The next attempt makes what is missing.
                self.is_surely_planted = false;
            }
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    /// Does a step of the promotion. Once there is no way back, a fence that somebody has taken away is told
    /// of.
    fn promote(&mut self, next: Next) -> Result<()> {
        // Nobody waits for that any more.
        let looks = next == Next::End;
        self.servers.promote(next)?;
        if !looks {
            return Ok(());
        }
        // Without the source it goes on as well.
        let looked = (self.servers.source()).map(|it| fence::gaps(it, Fence::Left));
        if let Ok(Ok(Some(words))) = looked {
            self.servers.lacks(format!(
                "somebody has taken the fence of the source away ({words}): what was written there since is not on \
                 the target; end all writing there, and compare with lockstep replica verify"
            ));
        }
        Ok(())
    }

    /// Runs the user's command, and lets the pooler lead there.
    fn redirect(&mut self) -> Result<()> {
        self.servers.redirect()?;
        self.is_redirected = true;
        if self.clients == Clients::Direct {
            self.pause = self.paused.map(|at| self.since(at));
        }
        Ok(())
    }

    fn resume(&mut self) -> Result<()> {
        self.servers.resume(self.is_redirected)?;
        self.clients = Clients::Flow;
        if self.is_redirected {
            self.pause = self.paused.map(|at| self.since(at));
        }
        Ok(())
    }

    fn unfence(&mut self) -> Result<()> {
        self.fails_late();
        fence::pass(self.servers.source()?, Fence::Left).map_err(ReplicaError::Source)?;
        self.is_fenced = false;
        // The next attempt drains anew: it is no reason not to begin one.
        self.drained = Drained::NotYet;
        self.servers.end_hold()?;
        self.is_armed = false;
        Ok(())
    }

    fn unclose(&mut self) -> Result<()> {
        self.fails_late();
        fence::pass(self.servers.state(), Fence::Comes).map_err(ReplicaError::Target)?;
        (self.is_closed, self.is_surely_closed) = (false, false);
        Ok(())
    }

    /// An attempt that is taken back without another failure has taken too long.
    fn fails_late(&mut self) {
        if self.failure.is_none() {
            let most = span::show(self.limits.max_pause);
            self.failure = Some(format!("clients had waited for {most} (--max-pause)"));
        }
    }

    fn uproot(&mut self) -> Result<()> {
        let there = fence::remove(self.servers.state(), Fence::Comes);
        let there = there.map_err(ReplicaError::Target)?;
        let here = fence::remove(self.servers.source()?, Fence::Left);
        let here = here.map_err(ReplicaError::Source)?;
        for (fence, left) in [(Fence::Comes, there), (Fence::Left, here)] {
            if let Some(words) = fence::left(fence, &left) {
                self.servers.note(words);
            }
        }
        (self.is_planted, self.is_surely_planted) = (false, false);
        Ok(())
    }
}

fn not_compared(limits: &Limits) -> Compared {
    match limits.compares {
        false => Compared::NotWanted,
        true => Compared::NotYet,
    }
}

/// What the time of a step is called.
fn label(step: &Step) -> Option<&'static str> {
    Some(match step {
        Step::Pause => "pooler",
        Step::Fence => "fence",
        Step::Drain(_) => "drain",
        Step::Compare => "comparison",
        Step::Look => "another look",
        Step::Promotion(Next::Fence) => "end of apply",
        Step::Promotion(Next::SetSequences) => "sequences",
        Step::Reverse => "way back",
        Step::Promotion(Next::Open) => "opening",
        Step::Redirect => "redirection",
        Step::Resume => "pooler again",
        _ => return None,
    })
}
