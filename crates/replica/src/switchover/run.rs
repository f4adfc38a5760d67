//! `replica switchover`: clients write on the target from now on, and nobody on the source any more.
//! [`decision`](super::decision) decides, [`drive`](super::drive) has it done, and this does it on servers.

use std::cell::RefCell;
use std::process;
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
use crate::lifecycle::promotion::{self, Drained, Next, SourceSays, Wish};
use crate::lifecycle::session;
use crate::state::failpoint;
use crate::state::{self, Replica, SwitchStage, system_id};
use crate::status::source::{END, connect};
use crate::switchover::decision::{Clients, WayBack};
use crate::switchover::drive;
use crate::switchover::drive::{Drive, Limits, Opens, Servers, through};
use crate::switchover::left::{Left, Unknown};
use crate::switchover::pooler::{Pooler, PoolerOptions, other_options};
use crate::switchover::readiness::{self, SwitchFacts, findings};
use crate::switchover::reverse::{self, Reverse};
use lockstep_client::field;
use lockstep_client::quote::identifier;

mod behind;
mod compare;
mod hook;
mod rehearse;
mod ways;

use behind::Objects;
use hook::redirected;
pub use rehearse::{Rehearsed, rehearse};

/// WAL that the target may be behind when clients begin to wait.
const NEAR_BYTES: u64 = 4_000_000;

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

/// What hears of it, shared by who connects and who is connected.
type Told<'a> = RefCell<&'a mut dyn SwitchWatcher>;

/// Switches over, or goes on with a switchover that was begun.
pub fn switchover(what: &Switchover, watcher: &mut dyn SwitchWatcher) -> Result<Switched> {
    let mut command = Command {
        what,
        promote: &to_promote(what),
        watcher: &RefCell::new(watcher),
    };
    through(&mut command, what.timeout)
}

/// The command, while it connects.
struct Command<'a> {
    what: &'a Switchover,
    promote: &'a Promote,
    watcher: &'a Told<'a>,
}

impl<'a> Command<'a> {
    fn limits(&self, timeout: Duration) -> Limits {
        Limits {
            max_pause: self.what.max_pause,
            timeout,
            compares: self.what.compare != Compare::None,
        }
    }
}

impl<'a> Opens for Command<'a> {
    type Servers = Ends<'a>;
    type Done = Switched;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn rest(&mut self, time: Duration) {
        thread::sleep(time);
    }

    fn is_stopped(&self) -> bool {
        self.what.stop.load(Ordering::Relaxed)
    }

    fn says(&mut self, words: &str) {
        self.watcher.borrow_mut().says(words);
    }

    fn open(&mut self, timeout: Duration) -> Result<Drive<Ends<'a>>> {
        let ends = Ends::open(self.what, self.promote, self.watcher)?;
        Drive::open(ends, self.limits(timeout))
    }

    fn done(&mut self, drive: Drive<Ends<'a>>, is_again: bool) -> Result<Switched> {
        let ends = drive.servers;
        let way_back = match (&ends.what.way_back, drive.way_back) {
            (Some(name), WayBack::Ready) => reverse::find(&ends.run.source, name)?,
            _ => None,
        };
        Ok(Switched {
            is_again,
            promoted: ends.run.done(is_again)?,
            pause: drive.pause,
            steps: drive.steps,
            way_back,
        })
    }

    fn unknown(&self, error: ReplicaError) -> ReplicaError {
        unknown(self.what, error)
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

/// Both servers and the pooler.
pub(super) struct Ends<'a> {
    what: &'a Switchover,
    watcher: &'a Told<'a>,
    run: Run<'a>,
    pooler: Option<Pooler>,
    /// None while it is not connected.
    source: Option<Connection>,
    /// What only the source has when the command begins.
    before: Option<Objects>,
    /// Replicas that apply to the source.
    fed: Vec<String>,
    way: Option<Reverse>,
    /// One that an earlier call has begun, whole or not.
    begun: Option<Replica>,
}

impl<'a> Ends<'a> {
    fn open(what: &'a Switchover, promote: &'a Promote, watcher: &'a Told<'a>) -> Result<Self> {
        let mut run = Run::open(promote)?;
        // What is open on the source now ends before the fence.
        run.notes.clear();
        Ok(Self {
            what,
            watcher,
            run,
            pooler: None,
            source: None,
            before: None,
            fed: Vec::new(),
            way: None,
            begun: None,
        })
    }

    /// Waits until no other session changes this server for the switchover.
    fn alone(
        &self,
        session: &mut Connection,
        end: (&str, fn(ClientError) -> ReplicaError),
    ) -> Result<()> {
        let mut is_said = false;
        let mut waits = |words: &str| {
            if !is_said {
                self.watcher.borrow_mut().says(&format!("waiting: {words}"));
                is_said = true;
            }
            !self.is_stopped()
        };
        state::alone(session, &self.run.replica.slot, end, &mut waits)
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
}

impl Servers for Ends<'_> {
    type Session = Connection;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn rest(&mut self, time: Duration) {
        thread::sleep(time);
    }

    fn is_stopped(&self) -> bool {
        self.what.stop.load(Ordering::Relaxed)
    }

    fn says(&mut self, words: &str) {
        self.watcher.borrow_mut().says(words);
    }

    fn source(&mut self) -> Result<&mut Connection> {
        if self.source.as_ref().is_some_and(Connection::is_closed) {
            self.source = None;
        }
        let connection = match self.source.take() {
            Some(connection) => connection,
            None => {
                let mut connection = connect(&self.run.source).map_err(ReplicaError::Source)?;
                connection.set_patience(PATIENCE);
                self.alone(&mut connection, ("source", ReplicaError::Source))?;
                connection
            }
        };
        Ok(self.source.insert(connection))
    }

    fn state(&mut self) -> &mut Connection {
        self.run.state.connection()
    }

    fn target(&mut self) -> Result<Connection> {
        let mut session = session(&self.what.target).map_err(ReplicaError::Target)?;
        self.alone(&mut session, ("target", ReplicaError::Target))?;
        Ok(session)
    }

    fn replica(&self) -> &Replica {
        &self.run.replica
    }

    fn refresh(&mut self) -> Result<()> {
        self.run.refresh()
    }

    fn take_hold(&mut self) -> Result<()> {
        let name = &self.what.name;
        if self.run.state.take_hold(name)? {
            return Ok(());
        }
        Err(ReplicaError::State(self.run.state.hold_words(name)?))
    }

    fn end_hold(&mut self) -> Result<()> {
        self.run.state.end_hold(&self.what.name)
    }

    fn stage(&mut self) -> Result<SwitchStage> {
        self.run.state.switch_stage(&self.what.name)
    }

    fn begin(&mut self) -> Result<SwitchStage> {
        let pooler = self.what.pooler.as_ref();
        let stage = pooler.map_or(SwitchStage::Begun, PoolerOptions::stage);
        self.set_stage(stage)?;
        Ok(stage)
    }

    fn set_stage(&mut self, stage: SwitchStage) -> Result<()> {
        self.run.state.set_switch_stage(&self.what.name, stage)
    }

    fn clients(&mut self, stage: SwitchStage) -> Result<Clients> {
        let options = self.what.pooler.as_ref();
        if let Some(words) = other_options(stage, options) {
            return Err(ReplicaError::State(format!(
                "a switchover of replica \"{}\" has begun and is not over, and {words}",
                self.what.name
            )));
        }
        let database = &self.run.replica.source_database;
        self.pooler = options.map(|it| it.open(database));
        Ok(match &self.pooler {
            None => Clients::Direct,
            Some(pooler) if pooler.is_paused()? => Clients::Wait,
            Some(_) => Clients::Flow,
        })
    }

    fn way_back(&mut self, is_ready: bool) -> Result<(WayBack, Option<String>)> {
        self.find_way_back(is_ready)
    }

    fn take_down(&mut self) -> Result<()> {
        self.before = Some(self.unreplicated()?);
        Ok(())
    }

    fn findings(&mut self) -> Result<Option<String>> {
        let mut lacks = self.run.lacks.clone();
        lacks.extend(self.run.state.left_out_words(&self.run.replica.name)?);
        let facts = self.facts(lacks)?;
        let mut found = findings(&self.run.replica, &facts);
        found.extend(self.pooler_findings()?);
        self.watcher.borrow_mut().found(&found);
        let is_refused = found.iter().any(Finding::is_error);
        Ok(is_refused.then(|| ReplicaError::Preflight(found).to_string()))
    }

    fn hindrances(&mut self) -> Result<Option<String>> {
        self.lost_since()
    }

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

    fn promotion(&mut self) -> Result<promotion::Seen> {
        self.run.see()
    }

    fn analyze(&mut self) -> Result<()> {
        finish::analyze(&self.what.target, ANALYZE_JOBS).map(drop)
    }

    fn prepare(&mut self) -> Result<()> {
        let Some(name) = &self.what.way_back else {
            return Ok(());
        };
        self.says("making the slot for the way back");
        self.way = Some(reverse::prepare(name, &self.run.source, &self.what.target)?);
        failpoint::SWITCH_PREPARED.reach();
        Ok(())
    }

    fn unprepare(&mut self) -> Result<()> {
        let way = self.way.take().map(|it| it.replica);
        match way.or(self.begun.take()) {
            Some(way) => reverse::remove(&way, &self.run.source, &self.what.target),
            None => Ok(()),
        }
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
        Ok(())
    }

    fn pause(&mut self, patience: Duration) -> Result<()> {
        self.pooler.as_mut().map_or(Ok(()), |it| it.pause(patience))
    }

    fn spared(&mut self) -> Vec<u32> {
        self.way.iter_mut().map(Reverse::backend_pid).collect()
    }

    fn ends_at(&mut self, end: Lsn) {
        self.run.says = SourceSays::Ends(end);
    }

    fn drain(&mut self, end: Lsn, patience: Duration) -> Result<Drained> {
        self.run.drain(end, patience)
    }

    fn compare(&mut self, patience: Duration) -> Result<drive::Compare> {
        let (differs, let_go) = match self.what.compare {
            Compare::None => (None, false),
            Compare::Counts => (self.compare_counts(patience)?, false),
            Compare::Full => (self.compare_rows(patience)?, true),
        };
        Ok(drive::Compare { differs, let_go })
    }

    fn promote(&mut self, next: Next) -> Result<()> {
        self.run.take(next, &mut |_| {})
    }

    fn reverse(&mut self) -> Result<()> {
        let way = self.way.as_mut().ok_or_else(|| {
            ReplicaError::State(
                "the slot for the way back is gone from the target; repeat the command with --no-reverse"
                    .to_owned(),
            )
        })?;
        reverse::complete(way)?;
        self.run.way_back = Some(way.replica.origin.clone());
        failpoint::SWITCH_REVERSED.reach();
        Ok(())
    }

    fn redirect(&mut self) -> Result<()> {
        if let Some(command) = &self.what.on_switch {
            let server = self.run.state.connection().server();
            let server = server.map_err(ReplicaError::Target)?;
            redirected(
                process::Command::new("sh")
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
        Ok(())
    }

    fn resume(&mut self, is_led: bool) -> Result<()> {
        self.pooler.as_mut().map_or(Ok(()), |it| it.resume(is_led))
    }

    fn left(&self) -> Left {
        let database = &self.run.replica.source_database;
        Left {
            name: self.what.name.clone(),
            is_begun: false,
            phase: self.run.replica.phase,
            is_fenced: false,
            is_open: self.run.is_open(),
            waits: self.pooler.as_ref().map(Pooler::waiting),
            database: identifier("database", database).unwrap_or_else(|_| database.clone()),
        }
    }

    fn note(&mut self, words: String) {
        self.run.notes.push(words);
    }

    fn lacks(&mut self, words: String) {
        self.run.lacks.push(words);
    }
}
