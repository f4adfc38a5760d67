//! `replica switchover`: clients write on the target from now on, and nobody on the source any more.
//! [`decision`](super::decision) decides, this does.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection, Conninfo};
use lockstep_service::words::figures;
use lockstep_wire::Lsn;

use crate::error::{End, Finding, ReplicaError, Result};
use crate::lifecycle::fence::{self, Fence};
use crate::lifecycle::finish;
use crate::lifecycle::promote::{Promote, Promoted, Run};
use crate::lifecycle::promotion::{self, Drained, Next, Wish};
use crate::state::failpoint;
use crate::state::{Phase, Replica, SwitchStage, system_id};
use crate::status::source::{END, connect};
use crate::switchover::decision::{Clients, Compared, Step, SwitchSeen, WayBack, next};
use crate::switchover::pooler::{Pooler, PoolerOptions, other_options};
use crate::switchover::readiness::{self, SwitchFacts, findings};
use crate::switchover::reverse::{self, Reverse};
use lockstep_client::field;
use lockstep_client::quote::identifier;

mod behind;
mod compare;
mod hook;
mod left;
mod rehearse;
mod ways;

use behind::Objects;
use hook::redirected;
use left::{Left, Unknown};
pub use rehearse::{Rehearsed, rehearse};

/// Longest wait for transactions of a pooler's clients in one attempt.
const PAUSED_WITHIN: Duration = Duration::from_secs(2);

/// WAL that the target may be behind when clients begin to wait.
const NEAR_BYTES: u64 = 4_000_000;

/// Interval of looks at what is waited for, and the rest between two attempts.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const REST: Duration = Duration::from_secs(2);

/// Looks of apply's process that show that it looks often, how often that is, and the longest wait for them.
const LOOKS: u32 = 3;
const OFTEN: Duration = Duration::from_millis(400);
const ARMED_WITHIN: Duration = Duration::from_secs(15);

/// Longest time of statements that are not on anybody's rows.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sessions that gather statistics.
const ANALYZE_JOBS: usize = 2;

/// How both sides are compared while clients wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compare {
    #[default]
    None,
    /// The number of rows of each table.
    Counts,
    /// All rows.
    Full,
}

/// A switchover as the user wants it.
#[derive(Debug, Clone)]
pub struct Switchover {
    pub name: String,
    pub target: Conninfo,
    /// Used in place of the conninfo that the state has.
    pub source: Option<Conninfo>,
    pub compare: Compare,
    /// What stands between clients and the servers.
    pub pooler: Option<PoolerOptions>,
    /// What leads clients to the target, for a shell.
    pub on_switch: Option<String>,
    /// The name of the replica for the way back.
    pub way_back: Option<String>,
    /// Longest time that clients wait in an attempt that can be taken back.
    pub max_pause: Duration,
    /// Time after which no attempt begins.
    pub timeout: Duration,
    /// Set once the user wants it to end: what can be taken back is.
    pub stop: Arc<AtomicBool>,
}

/// Hears what a switchover does.
pub trait SwitchWatcher {
    fn found(&mut self, findings: &[Finding]);
    fn says(&mut self, words: &str);
}

/// A switchover that is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switched {
    /// An earlier call has done it.
    pub is_again: bool,
    pub promoted: Promoted,
    /// Time for which nobody could write; None if another call has begun that.
    pub pause: Option<Duration>,
    /// What took how long of it.
    pub steps: Vec<(&'static str, Duration)>,
    /// The replica for the way back.
    pub way_back: Option<Replica>,
}

fn to_promote(what: &Switchover) -> Promote {
    Promote {
        name: what.name.clone(),
        target: what.target.clone(),
        source: what.source.clone(),
        wish: Wish::default(),
        patience: what.timeout,
    }
}

/// Switches over, or goes on with a switchover that was begun. If a server's connection is lost, it connects
/// again for as long as the timeout says, and goes on as another call would.
pub fn switchover(what: &Switchover, watcher: &mut dyn SwitchWatcher) -> Result<Switched> {
    let began = Instant::now();
    let (mut lost, mut left) = (None, None);
    loop {
        let timeout = what.timeout.saturating_sub(began.elapsed());
        let this = Switchover {
            timeout,
            ..what.clone()
        };
        let promote = to_promote(&this);
        let done = Switch::open(&this, &promote).and_then(|mut switch| {
            lost = None;
            let done = switch.run_through(watcher);
            left = Some(switch.leaves());
            match done {
                Ok(is_again) => switch.done(is_again),
                Err(error) => Err(error),
            }
        });
        let error = match done {
            Err(error) => error,
            done => return done,
        };
        let Some(left) = &left else {
            return Err(unknown(&this, error));
        };
        let since: &mut Instant = lost.get_or_insert_with(Instant::now);
        let is_stopped = what.stop.load(Ordering::Relaxed);
        if !error.is_lost() || is_stopped || since.elapsed() >= what.timeout {
            return Err(left.told(error));
        }
        watcher.says(&format!("{error}; connecting again"));
        thread::sleep(REST);
    }
}

/// An error of a command that has seen nothing of its replica yet, with what can be told without the target.
fn unknown(what: &Switchover, error: ReplicaError) -> ReplicaError {
    if error.end() != Some(End::Target) || !error.is_lost() {
        return error;
    }
    // Most call it alike on all servers.
    let database = what.target.effective("dbname").unwrap_or_default();
    let pooler = what.pooler.as_ref().map(|it| it.open(&database));
    let waits = pooler.filter(|it| it.is_paused().is_ok_and(|it| it));
    let is_fenced = |source| {
        connect(source)
            .and_then(|mut it| fence::is_up(&mut it, Fence::Left))
            .ok()
    };
    let unknown = Unknown {
        is_fenced: what.source.as_ref().and_then(is_fenced),
        names_source: what.source.is_some(),
        waits: waits.map(|it| it.waiting()),
    };
    unknown.told(error)
}

struct Switch<'a> {
    what: &'a Switchover,
    run: Run<'a>,
    pooler: Option<Pooler>,
    /// None while it is not connected.
    source: Option<Connection>,
    /// What only the source has when the command begins.
    before: Option<Objects>,
    /// Replicas that apply to the source.
    fed: Vec<String>,
    refusal: Option<String>,
    failure: Option<String>,
    began: Instant,
    /// Since when clients wait.
    paused: Option<Instant>,
    pause: Option<Duration>,
    steps: Vec<(&'static str, Duration)>,
    is_analyzed: bool,
    is_armed: bool,
    clients: Clients,
    way_back: WayBack,
    way: Option<Reverse>,
    is_planted: bool,
    is_surely_planted: bool,
    is_closed: bool,
    is_surely_closed: bool,
    is_fenced: bool,
    fence: Option<Lsn>,
    compared: Compared,
    is_whole: bool,
    is_redirected: bool,
    stage: SwitchStage,
    /// What was waited for last.
    said: String,
}

impl<'a> Switch<'a> {
    fn open(what: &'a Switchover, promote: &'a Promote) -> Result<Self> {
        let mut run = Run::open(promote)?;
        // What is open on the source now ends before the fence.
        run.notes.clear();
        let mut switch = Self {
            what,
            run,
            pooler: None,
            source: None,
            before: None,
            fed: Vec::new(),
            refusal: None,
            failure: None,
            began: Instant::now(),
            paused: None,
            pause: None,
            steps: Vec::new(),
            is_analyzed: false,
            is_armed: false,
            clients: Clients::Direct,
            way_back: WayBack::NotWanted,
            way: None,
            is_planted: false,
            is_surely_planted: false,
            is_closed: false,
            is_surely_closed: false,
            is_fenced: false,
            fence: None,
            compared: not_compared(what),
            is_whole: false,
            is_redirected: false,
            stage: SwitchStage::None,
            said: String::new(),
        };
        // From here on no other command works on the switchover.
        if !switch.run.state.take_hold(&what.name)? {
            let words = switch.run.state.hold_words(&what.name)?;
            return Err(ReplicaError::State(words));
        }
        switch.run.refresh()?;
        let stage = switch.run.state.switch_stage(&what.name)?;
        switch.stage = stage;
        switch.find_pooler()?;
        let is_ready = switch.run.replica.phase == Phase::Ready;
        if is_ready && stage.is_begun() {
            let is_fenced = fence::is_there(switch.source()?);
            switch.is_fenced = is_fenced.map_err(ReplicaError::Source)?;
            let is_closed = Fence::Comes.is_there(switch.run.state.connection());
            switch.is_closed = is_closed.map_err(ReplicaError::Target)?;
            switch.is_planted = true;
            switch.failure = Some("an earlier command ended in the middle of it".to_owned());
        }
        if is_ready {
            switch.before = Some(switch.unreplicated()?);
        }
        if stage != SwitchStage::Done {
            switch.find_way_back(is_ready)?;
        }
        Ok(switch)
    }

    /// Opens the pooler, and sees whether its clients wait.
    fn find_pooler(&mut self) -> Result<()> {
        let options = self.what.pooler.as_ref();
        if let Some(words) = other_options(self.stage, options) {
            return Err(ReplicaError::State(format!(
                "a switchover of replica \"{}\" has begun and is not over, and {words}",
                self.what.name
            )));
        }
        let database = &self.run.replica.source_database;
        self.pooler = options.map(|it| it.open(database));
        self.clients = match &self.pooler {
            None => Clients::Direct,
            Some(pooler) if pooler.is_paused()? => Clients::Wait,
            Some(_) => Clients::Flow,
        };
        Ok(())
    }

    /// Does all that is to be done. True if an earlier call had done it.
    fn run_through(&mut self, watcher: &mut dyn SwitchWatcher) -> Result<bool> {
        let stage = self.stage;
        if (stage, self.run.replica.phase) == (SwitchStage::None, Phase::Ready) {
            self.look(watcher)?;
        }
        loop {
            let seen = self.see()?;
            match next(&self.run.replica, &seen) {
                Step::Refuse(words) => return Err(ReplicaError::State(words)),
                Step::Done => return Ok(stage == SwitchStage::Done),
                step => self.take(step, watcher)?,
            }
        }
    }

    fn leaves(&self) -> Left {
        let database = &self.run.replica.source_database;
        let pooler = self.pooler.as_ref();
        Left {
            name: self.what.name.clone(),
            is_begun: self.stage.is_begun(),
            phase: self.run.replica.phase,
            is_fenced: self.is_fenced,
            is_open: self.run.is_open(),
            waits: pooler
                .filter(|_| self.clients == Clients::Wait)
                .map(Pooler::waiting),
            database: identifier("database", database).unwrap_or_else(|_| database.clone()),
        }
    }

    /// The source, for statements that may take a time.
    fn source(&mut self) -> Result<&mut Connection> {
        if self.source.as_ref().is_some_and(Connection::is_closed) {
            self.source = None;
        }
        let connection = match self.source.take() {
            Some(connection) => connection,
            None => {
                let mut connection = connect(&self.run.source).map_err(ReplicaError::Source)?;
                connection.set_patience(PATIENCE);
                connection
            }
        };
        Ok(self.source.insert(connection))
    }

    /// Looks for what would make it fail.
    fn look(&mut self, watcher: &mut dyn SwitchWatcher) -> Result<()> {
        let mut lacks = self.run.lacks.clone();
        lacks.extend(self.run.state.left_out_words(&self.run.replica.name)?);
        let facts = self.facts(lacks)?;
        let mut found = findings(&self.run.replica, &facts);
        found.extend(self.pooler_findings()?);
        watcher.found(&found);
        if found.iter().any(Finding::is_error) && self.refusal.is_none() {
            self.refusal = Some(ReplicaError::Preflight(found).to_string());
        }
        Ok(())
    }

    /// What would lead the pooler's clients astray.
    fn pooler_findings(&mut self) -> Result<Vec<Finding>> {
        let Some(pooler) = &self.pooler else {
            return Ok(Vec::new());
        };
        let id = system_id(self.run.state.connection()).map_err(ReplicaError::Target)?;
        let source = (&self.run.source, self.run.replica.system_id.as_str());
        pooler.findings([source, (&self.what.target, &id)])
    }

    fn facts(&mut self, lacks: Vec<String>) -> Result<SwitchFacts> {
        let wants_way_back = self.what.way_back.is_some();
        let target = self.run.state.connection();
        let back = match wants_way_back {
            true => Some(readiness::back_of_target(target).map_err(ReplicaError::Target)?),
            false => None,
        };
        let closing = fence::look(target).map_err(ReplicaError::Target)?;
        let fed = self.fed.clone();
        let source = self.source()?;
        let ask = || -> Result<SwitchFacts, ClientError> {
            let facts = readiness::of_source(source)?;
            let back = back.map(|back| readiness::back_of_source(source, back));
            Ok(SwitchFacts {
                closing: Some(closing),
                lacks,
                fed,
                back: back.transpose()?,
                ..facts
            })
        };
        ask().map_err(ReplicaError::Source)
    }

    /// What would make the pause long now.
    fn waits(&mut self) -> Result<Option<String>> {
        let max_pause = self.what.max_pause;
        let source = self.source()?;
        let asked = readiness::long_transactions(source, max_pause);
        if let Some(words) = asked.map_err(ReplicaError::Source)? {
            return Ok(Some(words));
        }
        let end = source.query_one(END).and_then(|row| field::<Lsn>(&row, 0));
        let end = end.map_err(ReplicaError::Source)?;
        let stands = self.run.state.applied(&self.what.name)?.lsn;
        let behind = stands.map_or(u64::MAX, |stands| end.bytes_since(stands));
        Ok((behind > NEAR_BYTES).then(|| match stands {
            None => "nothing is applied to the target yet".to_owned(),
            Some(_) => format!("the target is {} behind", figures::bytes(behind as f64)),
        }))
    }

    fn see(&mut self) -> Result<SwitchSeen> {
        let stage = self.run.state.switch_stage(&self.what.name)?;
        self.stage = stage;
        let promotion = self.run.see()?;
        let is_stopped = self.what.stop.load(Ordering::Relaxed);
        if is_stopped && self.run.replica.phase == Phase::Ready {
            self.failure = Some("it was asked to end".to_owned());
        }
        let is_up = self.is_fenced || self.is_closed || self.clients == Clients::Wait;
        let is_before = self.run.replica.phase == Phase::Ready && !is_up;
        let waits = match is_before && self.failure.is_none() {
            true => self.waits()?,
            false => None,
        };
        let mut refusal = self.refusal.clone();
        if is_before && refusal.is_none() {
            let next = promotion::next(Wish::default(), &self.run.replica, &promotion);
            if let Next::Refuse(words) = next {
                refusal = Some(words);
            }
        }
        Ok(SwitchSeen {
            stage,
            refusal,
            waits,
            failure: self.failure.clone(),
            is_overdue: is_stopped || self.began.elapsed() >= self.what.timeout,
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

    /// What is left of this attempt's time.
    fn left(&self) -> Duration {
        let passed = self.paused.map_or(Duration::ZERO, |at| at.elapsed());
        self.what.max_pause.saturating_sub(passed)
    }

    fn take(&mut self, step: Step, watcher: &mut dyn SwitchWatcher) -> Result<()> {
        let began = Instant::now();
        let is_pausing = matches!(step, Step::Pause | Step::Fence);
        if is_pausing && self.paused.is_none() {
            self.paused = Some(began);
        }
        let name = &self.what.name;
        let label = label(&step);
        match step {
            Step::Refuse(_) | Step::Done => {}
            Step::Analyze => {
                watcher.says("gathering the target's statistics");
                finish::analyze(&self.what.target, ANALYZE_JOBS)?;
                self.is_analyzed = true;
            }
            Step::Prepare => self.prepare(watcher)?,
            Step::Unprepare => self.unprepare()?,
            Step::Arm => self.arm()?,
            Step::Wait(words) => self.wait(&words, watcher)?,
            Step::Begin => {
                let pooler = self.what.pooler.as_ref();
                self.stage = pooler.map_or(SwitchStage::Begun, PoolerOptions::stage);
                self.run.state.set_switch_stage(name, self.stage)?;
                failpoint::SWITCH_BEGUN.reach();
            }
            Step::Plant => self.make_fences(watcher),
            Step::Close => self.close(),
            Step::Pause => self.pause(),
            Step::Fence => self.raise_fence(),
            Step::Drain(end) => self.drain(end)?,
            Step::Compare => self.compare(watcher),
            Step::Look => self.look_again(),
            Step::Promotion(next) => self.promote(next)?,
            Step::Reverse => self.reverse()?,
            Step::Redirect => self.redirect()?,
            Step::Resume => self.resume()?,
            Step::Unfence => self.unfence()?,
            Step::Unclose => self.unclose()?,
            Step::Uproot => self.uproot()?,
            Step::Forget => self.run.state.set_switch_stage(name, SwitchStage::None)?,
            Step::Finish => {
                failpoint::SWITCH_CLEANED.reach();
                self.run.state.set_switch_stage(name, SwitchStage::Done)?;
            }
        }
        if let (Some(label), true) = (label, self.paused.is_some() && self.pause.is_none()) {
            self.steps.push((label, began.elapsed()));
        }
        Ok(())
    }

    fn prepare(&mut self, watcher: &mut dyn SwitchWatcher) -> Result<()> {
        let Some(name) = &self.what.way_back else {
            return Ok(());
        };
        watcher.says("making the slot for the way back");
        self.way = Some(reverse::prepare(name, &self.run.source, &self.what.target)?);
        self.way_back = WayBack::Prepared;
        failpoint::SWITCH_PREPARED.reach();
        Ok(())
    }

    fn unprepare(&mut self) -> Result<()> {
        if let Some(way) = self.way.take() {
            reverse::remove(&way.replica, &self.run.source, &self.what.target)?;
        }
        self.way_back = WayBack::Missing;
        Ok(())
    }

    /// Lets the process that applies look often: it is to hold at a position that never comes.
    fn arm(&mut self) -> Result<()> {
        let (name, state) = (&self.what.name, &mut self.run.state);
        let never = Lsn::from(u64::MAX);
        if !state.begin_hold(name, never, self.what.timeout + PATIENCE)? {
            return Err(ReplicaError::State(state.hold_words(name)?));
        }
        let began = Instant::now();
        let (mut before, mut at, mut looks) = (state.looked(name)?, Instant::now(), 0);
        while looks < LOOKS {
            thread::sleep(Duration::from_millis(10));
            let now = state.looked(name)?;
            if now != before {
                looks = if at.elapsed() < OFTEN { looks + 1 } else { 0 };
                (before, at) = (now, Instant::now());
            }
            if began.elapsed() > ARMED_WITHIN {
                state.end_hold(name)?;
                return Err(ReplicaError::State(format!(
                    "the process that applies to replica \"{name}\" does not look often at what is wanted: is \
                     its lockstep as new as this one, and the target not overloaded?"
                )));
            }
        }
        self.is_armed = true;
        Ok(())
    }

    fn wait(&mut self, words: &str, watcher: &mut dyn SwitchWatcher) -> Result<()> {
        if self.said != words {
            watcher.says(&format!("waiting: {words}"));
            words.clone_into(&mut self.said);
        }
        let rest = match self.failure.take() {
            Some(_) => REST,
            None => LOOK_EVERY,
        };
        thread::sleep(rest);
        (self.fence, self.paused, self.compared) = (None, None, not_compared(self.what));
        self.is_whole = false;
        self.run.drained = Drained::NotYet;
        self.steps.clear();
        self.run.refresh()
    }

    fn pause(&mut self) {
        let patience = self.left().min(PAUSED_WITHIN);
        let Some(pooler) = &mut self.pooler else {
            return;
        };
        match pooler.pause(patience) {
            Ok(()) => self.clients = Clients::Wait,
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    fn drain(&mut self, end: Lsn) -> Result<()> {
        self.run.drained = self.run.drain(end, self.left())?;
        match &self.run.drained {
            Drained::Not(words) => self.failure = Some(words.clone()),
            _ => failpoint::SWITCH_DRAINED.reach(),
        }
        Ok(())
    }

    fn reverse(&mut self) -> Result<()> {
        let way = self.way.as_mut().ok_or_else(|| {
            ReplicaError::State(
                "the slot for the way back is gone from the target; repeat the command with --no-reverse"
                    .to_owned(),
            )
        })?;
        reverse::complete(way)?;
        failpoint::SWITCH_REVERSED.reach();
        self.way_back = WayBack::Ready;
        Ok(())
    }

    /// Runs the user's command, and lets the pooler lead there.
    fn redirect(&mut self) -> Result<()> {
        if let Some(command) = &self.what.on_switch {
            let server = self.run.state.connection().server();
            let server = server.map_err(ReplicaError::Target)?;
            redirected(
                Command::new("sh")
                    .args(["-c", command])
                    .env("LOCKSTEP_REPLICA", &self.what.name)
                    .env("LOCKSTEP_HOST", &server.host)
                    .env("LOCKSTEP_PORT", server.port.to_string())
                    .env("LOCKSTEP_DATABASE", &server.database),
            )?;
        }
        if let Some(pooler) = &self.pooler {
            pooler.lead(self.run.state.connection(), &self.what.target)?;
        }
        failpoint::SWITCH_REDIRECTED.reach();
        self.is_redirected = true;
        if self.clients == Clients::Direct {
            self.pause = self.paused.map(|at| at.elapsed());
        }
        Ok(())
    }

    fn resume(&mut self) -> Result<()> {
        if let Some(pooler) = &mut self.pooler {
            pooler.resume(self.is_redirected)?;
        }
        self.clients = Clients::Flow;
        if self.is_redirected {
            self.pause = self.paused.map(|at| at.elapsed());
        }
        Ok(())
    }

    fn done(self, is_again: bool) -> Result<Switched> {
        let way_back = match (&self.what.way_back, self.way_back) {
            (Some(name), WayBack::Ready) => reverse::find(&self.run.source, name)?,
            _ => None,
        };
        Ok(Switched {
            is_again,
            promoted: self.run.done(is_again)?,
            pause: self.pause,
            steps: self.steps,
            way_back,
        })
    }
}

fn not_compared(what: &Switchover) -> Compared {
    match what.compare {
        Compare::None => Compared::NotWanted,
        _ => Compared::NotYet,
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
