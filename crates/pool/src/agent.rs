//! Asks the node and all servers that may be the primary, each in a thread of its own, and keeps what
//! follows in memory for whoever asks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection, Conninfo, Greeting, Switch};
use lockstep_service::sanitize::sanitize;
use lockstep_wire::{Lsn, Timeline};
use tracing::{info, warn};

use crate::clock::Clock;
use crate::judge::{Judge, NodeAnswer, PrimaryAnswer, Rules, SILENCE, Verdict};
use crate::questions::{self, NodeFacts, SessionFacts};
use crate::session;
use crate::staleness::Moment;
use crate::state::{Door, NodeState};
use crate::weight::Load;

/// Shown by servers.
const APPLICATION_NAME: &str = "lockstep pool agent";

/// Names of the prepared questions in a session: the usual one, and that of a server that takes writes, or
/// of the node with its load.
const QUESTION: &str = "lockstep_pool";
const SECOND: &str = "lockstep_pool_2";

/// Least time between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(500);

/// Time between two questions to a server that is not the primary: whether it takes writes by now. Where
/// there are many, it is longer: LOOKS_APART for each, and twice that beside a standby, which gets no
/// writers.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const LOOKS_APART: Duration = Duration::from_millis(250);

/// Time between two attempts to learn the history of a timeline.
const HISTORY_EVERY: Duration = Duration::from_secs(5);

/// Time between two questions about the node's sessions.
const LOAD_EVERY: Duration = Duration::from_secs(1);

/// Time between two questions about the primary's oldest WAL, while the node does not stream.
const OLDEST_EVERY: Duration = Duration::from_secs(2);

/// Time between two new sessions to the node, which show whether it accepts one.
const PROBE_EVERY: Duration = Duration::from_secs(2);

/// How long an attempt to connect may take, in seconds, unless the conninfo says otherwise.
const CONNECT_TIMEOUT_S: &str = "2";

/// Whom an agent asks.
#[derive(Debug, Clone)]
pub struct Servers {
    /// Servers of the cluster, one of which is the primary.
    pub candidates: Vec<Conninfo>,
    pub node: Conninfo,
}

/// What only those may see who have logged in.
#[derive(Debug, Clone, Default)]
pub struct Detail {
    /// Why servers are not the primary, and why the node cannot be asked.
    pub server_troubles: BTreeMap<String, String>,
    pub node_trouble: Option<String>,
    /// Why the history of a server's timeline is not known.
    pub history_troubles: BTreeMap<String, String>,
    pub primary: Option<PrimaryAnswer>,
    pub node: Option<NodeAnswer>,
    pub primary_answers: u64,
    pub node_answers: u64,
    pub primary_failures: u64,
    pub node_failures: u64,
    /// Sessions that were ended for their age.
    pub sessions_ended: u64,
    /// Changes of state since the agent began.
    pub changes: u64,
    /// Where the primary's oldest WAL begins, if that was asked.
    oldest: Option<Lsn>,
}

struct Known {
    clock: Clock,
    judge: Judge,
    detail: Detail,
    state: Option<NodeState>,
}

/// All that the agent knows.
pub struct Agent {
    rules: Rules,
    /// Number of servers that are asked for the primary.
    candidates: u32,
    /// Age from which idle sessions of readers are ended.
    max_session_age: Option<Duration>,
    known: Mutex<Known>,
    /// Wakes those that ask servers once there is another ruling.
    ruled: Condvar,
    /// Wakes the one that asks the primary, once there is another ruling or interval.
    paced: Condvar,
    stops: AtomicBool,
}

impl Agent {
    /// Starts asking, until the agent is stopped.
    pub fn start(rules: Rules, servers: Servers, max_session_age: Option<Duration>) -> Arc<Self> {
        let count = u32::try_from(servers.candidates.len()).unwrap_or(u32::MAX);
        let agent = Arc::new(Self {
            rules,
            max_session_age,
            candidates: count,
            known: Mutex::new(Known {
                clock: Clock::start(),
                judge: Judge::new(rules, servers.candidates.len()),
                detail: Detail::default(),
                state: None,
            }),
            ruled: Condvar::new(),
            paced: Condvar::new(),
            stops: AtomicBool::new(false),
        });
        for (index, candidate) in servers.candidates.into_iter().enumerate() {
            let server = Candidate::of(index, patient(candidate));
            spawn(&agent, move |agent| agent.asks_server(&server));
        }
        let node = patient(servers.node);
        let probed = node.clone();
        spawn(&agent, move |agent| agent.asks_node(&node));
        spawn(&agent, move |agent| agent.probes(&probed));
        agent
    }

    /// Lets the threads end.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
        self.ruled.notify_all();
        self.paced.notify_all();
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What follows now at a door, or at the agent's own, and what is known beside it.
    pub fn look(&self, door: Option<Door>) -> (Verdict, Detail) {
        let mut known = self.known();
        (known.verdict_at(door), known.detail.clone())
    }

    /// What follows now at a door, or at the agent's own.
    pub fn verdict_at(&self, door: Option<Door>) -> Verdict {
        self.known().verdict_at(door)
    }

    pub fn drain(&self, is_drained: bool) {
        let mut known = self.known();
        known.judge.drain(is_drained);
        known.verdict();
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what was learnt. It may change who is the primary, and how soon that is asked again.
    fn learns<T>(&self, take: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known();
        let turns = |known: &Known| (known.judge.ruling(), known.judge.interval());
        let before = turns(&known);
        let taken = take(&mut known);
        let after = turns(&known);
        if after.0 != before.0 {
            self.ruled.notify_all();
        }
        if after != before {
            self.paced.notify_all();
        }
        taken
    }

    fn runs(&self) -> bool {
        !self.stops.load(Ordering::Relaxed)
    }

    /// How long an answer may take.
    fn patience(&self) -> Duration {
        SILENCE.max(self.rules.interval * 2)
    }

    // ---- Servers that may be the primary ----

    fn asks_server(&self, server: &Candidate) {
        while self.runs() {
            let Err(trouble) = self.server_session(server) else {
                return;
            };
            self.learns(|known| known.server_fails(server, &trouble));
            thread::sleep(AGAIN);
        }
    }

    fn server_session(&self, candidate: &Candidate) -> Result<(), String> {
        let conninfo = &candidate.conninfo;
        let (mut server, facts) =
            self.connect(conninfo, [questions::PRIMARY, questions::FLUSHED])?;
        let mut writes: Option<PrimaryAnswer> = None;
        let mut histories = self.histories(&server, conninfo, &candidate.name);
        let mut oldest_at: Option<Instant> = None;
        while self.runs() {
            let asked = self.known().now();
            if let Some(answer) = &mut writes {
                let rows = server.query_prepared(SECOND, &[]).map_err(words)?;
                answer.flushed.lsn = questions::read_flushed(&rows).map_err(words)?;
            } else {
                let rows = server.query_prepared(QUESTION, &[]).map_err(words)?;
                writes = questions::read_primary(&rows, &facts).map_err(words)?;
            }
            if let Some(answer) = &mut writes {
                answer.history = self.history(&mut histories, answer.flushed.timeline);
            }
            let is_standby = writes.is_none();
            let answer = writes.clone();
            let needs_oldest = self.learns(|known| known.server_answered(candidate, asked, answer));
            if needs_oldest && oldest_at.is_none_or(|at| at.elapsed() >= OLDEST_EVERY) {
                oldest_at = Some(Instant::now());
                let rows = server.query(questions::OLDEST).map_err(words)?;
                let oldest = questions::read_oldest(&rows, facts.segment_bytes).map_err(words)?;
                self.known().detail.oldest = oldest;
            }
            self.awaits_turn(asked, is_standby, &facts);
        }
        Ok(())
    }

    /// Waits until a server that was asked is to be asked again: soon while it is the primary or none is
    /// known. There may be many servers, so the threads of the others sleep meanwhile.
    fn awaits_turn(&self, asked: Moment, is_standby: bool, facts: &SessionFacts) {
        let mut known = self.known();
        while self.runs() {
            let (at, wakes) = match (known.judge.is_awaited(facts.instance), is_standby) {
                (false, _) => {
                    let every = look_every(self.candidates, known.judge.is_standby());
                    (next_look(asked, every), &self.ruled)
                }
                (true, true) => (asked + AGAIN, &self.ruled),
                (true, false) => (asked + known.judge.interval(), &self.paced),
            };
            let left = at.saturating_sub(known.now());
            if left.is_zero() {
                return;
            }
            let waited = wakes.wait_timeout(known, left);
            known = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    // ---- Histories ----

    /// The histories of a session's server. They are read from that server, although a conninfo may lead
    /// elsewhere by then.
    fn histories(&self, server: &Connection, conninfo: &Conninfo, name: &str) -> Histories {
        let there = server.server().and_then(|at| conninfo.clone().at(&at));
        Histories {
            conninfo: there.unwrap_or_else(|_| conninfo.clone()),
            name: name.to_owned(),
            known: None,
            tried: None,
        }
    }

    /// The history of a timeline, from memory if it is known.
    fn history(&self, of: &mut Histories, timeline: Timeline) -> Option<Arc<[Switch]>> {
        if timeline == Timeline::FIRST {
            return Some(Arc::from([]));
        }
        if let Some((_, history)) = of.known.as_ref().filter(|(known, _)| *known == timeline) {
            return Some(Arc::clone(history));
        }
        let is_recent =
            |(tried, at): &(Timeline, Instant)| *tried == timeline && at.elapsed() < HISTORY_EVERY;
        if of.tried.as_ref().is_some_and(is_recent) {
            return None;
        }
        of.tried = Some((timeline, Instant::now()));
        let asked = session::open_for_histories(&of.conninfo, APPLICATION_NAME, self.patience())
            .and_then(|mut server| server.timeline_history(timeline));
        match asked {
            Ok(history) => {
                self.known().detail.history_troubles.remove(&of.name);
                let history: Arc<[Switch]> = history.into();
                of.known = Some((timeline, Arc::clone(&history)));
                Some(history)
            }
            Err(error) => {
                self.known().history_fails(&of.name, &words(error));
                None
            }
        }
    }

    // ---- The node ----

    fn asks_node(&self, conninfo: &Conninfo) {
        while self.runs() {
            let Err(trouble) = self.node_session(conninfo) else {
                return;
            };
            self.learns(|known| known.node_fails(&trouble));
            thread::sleep(AGAIN);
        }
    }

    fn node_session(&self, conninfo: &Conninfo) -> Result<(), String> {
        let connected = Instant::now();
        let with_load = questions::node_and_load();
        let (mut server, session) = self.connect(conninfo, [questions::NODE, &with_load])?;
        let mut histories = self.histories(&server, conninfo, NODE);
        let mut max_age = self.max_age(&session);
        // This was a new session; the next probe may be a while off.
        self.known().judge.greeted(Greeting::Open);
        let mut load: Option<(Instant, Load)> = None;
        while self.runs() {
            let began = Instant::now();
            let is_load_due = load.is_none_or(|(at, _)| at.elapsed() >= LOAD_EVERY);
            let question = if is_load_due { SECOND } else { QUESTION };
            let asked = self.known().now();
            let rows = server.query_prepared(question, &[]).map_err(words)?;
            let facts = NodeFacts {
                system: session.system,
                instance: session.instance,
                up_for: session.up_for + connected.elapsed(),
                load: load.map(|(_, load)| load),
                oldest: self.known().detail.oldest,
            };
            let mut answer = questions::read_node(&rows, &facts).map_err(words)?;
            if let Some(new) = answer.load.filter(|_| is_load_due) {
                load = Some((began, new));
            }
            let timeline = answer.timeline;
            answer.history = timeline.and_then(|it| self.history(&mut histories, it));
            let old = max_age.filter(|_| is_load_due && answer.is_standby);
            let pause = self.learns(|known| known.node_answered(asked, answer));
            if old.is_some_and(|age| !self.ends_old(&mut server, age)) {
                max_age = None;
            }
            thread::sleep(pause);
        }
        Ok(())
    }

    /// Age from which sessions are ended, if the role may do that.
    fn max_age(&self, session: &SessionFacts) -> Option<Duration> {
        if self.max_session_age.is_some() && !session.may_end {
            warn!(
                "no session is ended for its age: the role is no member of pg_signal_backend: GRANT \
                 pg_signal_backend TO {}",
                sanitize(&session.role)
            );
            return None;
        }
        self.max_session_age
    }

    /// Ends some of the sessions that are older than this; false if that failed.
    fn ends_old(&self, server: &mut Connection, age: Duration) -> bool {
        let rows = server.query(&questions::end_old(age));
        match rows.and_then(|rows| questions::read_ended(&rows)) {
            Ok(ended) => {
                self.known().detail.sessions_ended += ended;
                true
            }
            Err(error) => {
                warn!("no session is ended for its age: {}", words(error));
                false
            }
        }
    }

    /// A session answers although its server may take no other: the postmaster may be stopped, or wait for
    /// the sessions to end. What nobody asks for changes with time, too, and is logged here.
    fn probes(&self, conninfo: &Conninfo) {
        while self.runs() {
            thread::sleep(PROBE_EVERY);
            let greeting = Connection::greeting(conninfo);
            let mut known = self.known();
            known.judge.greeted(greeting);
            known.verdict();
        }
    }

    /// A session in which two questions are prepared.
    fn connect(
        &self,
        conninfo: &Conninfo,
        [usual, second]: [&str; 2],
    ) -> Result<(Connection, SessionFacts), String> {
        let mut server =
            session::open_to_ask(conninfo, APPLICATION_NAME, self.patience()).map_err(words)?;
        let rows = server.query(questions::SESSION).map_err(words)?;
        let facts = SessionFacts::read(&rows).map_err(words)?;
        if !facts.sees_all {
            return Err(format!(
                "the role is no member of pg_monitor: GRANT pg_monitor TO {}",
                facts.role
            ));
        }
        server.prepare(QUESTION, usual).map_err(words)?;
        server.prepare(SECOND, second).map_err(words)?;
        Ok((server, facts))
    }
}

/// Time between two questions to one of so many servers that is not the primary.
fn look_every(servers: u32, is_standby: bool) -> Duration {
    let apart = LOOKS_APART * if is_standby { 2 } else { 1 };
    LOOK_EVERY.max(apart.saturating_mul(servers))
}

/// When a server is looked at again that was asked at a moment: all of them at the same moments, since many
/// threads that wake at once cost less than each by itself.
fn next_look(asked: Moment, every: Duration) -> Moment {
    let whole = asked.as_nanos() / every.as_nanos().max(1);
    u32::try_from(whole + 1).map_or(asked + every, |looks| every * looks)
}

/// What the node is called beside servers that may be the primary.
const NODE: &str = "the node";

/// Why a server is not the primary that answers.
const STANDBY: &str = "it is a standby";

/// A server that may be the primary.
struct Candidate {
    index: usize,
    conninfo: Conninfo,
    name: String,
}

impl Candidate {
    fn of(index: usize, conninfo: Conninfo) -> Self {
        let effective = |option| conninfo.effective(option).unwrap_or_default();
        let name = sanitize(&format!("{}:{}", effective("host"), effective("port")));
        Self {
            index,
            conninfo,
            name,
        }
    }
}

/// What a server says of how its timelines came to be.
struct Histories {
    conninfo: Conninfo,
    name: String,
    known: Option<(Timeline, Arc<[Switch]>)>,
    /// The newest attempt.
    tried: Option<(Timeline, Instant)>,
}

fn spawn(agent: &Arc<Agent>, work: impl FnOnce(&Agent) + Send + 'static) {
    let agent = Arc::clone(agent);
    thread::spawn(move || work(&agent));
}

fn words(error: ClientError) -> String {
    sanitize(&error.words())
}

/// The conninfo with a short limit on attempts to connect, if it has none.
fn patient(conninfo: Conninfo) -> Conninfo {
    match conninfo.effective("connect_timeout") {
        Some(_) => conninfo,
        None => conninfo
            .clone()
            .with("connect_timeout", CONNECT_TIMEOUT_S)
            .unwrap_or(conninfo),
    }
}

impl Known {
    /// The moment. It is read under the lock, so that no thread hands in one from before another's.
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn verdict_at(&mut self, door: Option<Door>) -> Verdict {
        let own = self.verdict();
        match door.filter(|door| *door != own.door) {
            Some(door) => self.judge.verdict_at(door, self.now()),
            None => own,
        }
    }

    /// What follows now at the agent's own door. A change of the state is logged.
    fn verdict(&mut self) -> Verdict {
        let now = self.now();
        let verdict = self.judge.verdict(now);
        if self.state == Some(verdict.state) {
            return verdict;
        }
        let name = verdict.state.name();
        let before = self.state.map(NodeState::name);
        self.detail.changes += u64::from(before.is_some_and(|before| before != name));
        self.state = Some(verdict.state);
        match verdict.state.reason() {
            Some(reason) if before == Some("in") => warn!("{name}: {}", reason.words()),
            Some(reason) => info!("{name}: {}", reason.words()),
            None => info!("{name}"),
        }
        verdict
    }

    /// Takes an answer; true if it is of interest where the server's WAL begins.
    fn server_answered(
        &mut self,
        server: &Candidate,
        asked: Duration,
        answer: Option<PrimaryAnswer>,
    ) -> bool {
        let now = self.now();
        self.judge
            .server_answered(server.index, asked, now, answer.clone());
        let troubles = &mut self.detail.server_troubles;
        if (troubles.remove(&server.name)).is_some_and(|words| words != STANDBY) {
            info!("{} answers again", server.name);
        }
        if answer.is_none() {
            troubles.insert(server.name.clone(), STANDBY.to_owned());
        }
        let verdict = self.verdict();
        let Some(answer) = answer.filter(|answer| self.judge.is_primary(answer.instance)) else {
            return false;
        };
        self.detail.primary = Some(answer);
        self.detail.primary_answers += 1;
        if verdict.is_streaming {
            self.detail.oldest = None;
        }
        !verdict.is_streaming && verdict.is_standby == Some(true)
    }

    fn server_fails(&mut self, server: &Candidate, trouble: &str) {
        self.judge.server_lost(server.index);
        self.detail.primary_failures += 1;
        let troubles = &mut self.detail.server_troubles;
        if troubles.get(&server.name).map(String::as_str) != Some(trouble) {
            warn!("cannot ask {}: {trouble}", server.name);
            troubles.insert(server.name.clone(), trouble.to_owned());
        }
        self.verdict();
    }

    fn history_fails(&mut self, name: &str, trouble: &str) {
        let troubles = &mut self.detail.history_troubles;
        if troubles.get(name).map(String::as_str) != Some(trouble) {
            warn!(
                "cannot read the history of {name}, so its timeline is compared by its number alone: {trouble}; \
                 the role needs REPLICATION"
            );
            troubles.insert(name.to_owned(), trouble.to_owned());
        }
    }

    /// Takes an answer; returns how long the node is not asked again.
    fn node_answered(&mut self, asked: Duration, answer: NodeAnswer) -> Duration {
        let now = self.now();
        self.judge.node_answered(asked, now, answer.clone());
        if self.detail.node_trouble.take().is_some() {
            info!("the node answers again");
        }
        self.detail.node = Some(answer);
        self.detail.node_answers += 1;
        self.verdict();
        self.judge.node_turn(now).saturating_sub(now)
    }

    fn node_fails(&mut self, trouble: &str) {
        let now = self.now();
        self.judge.node_lost(now);
        self.detail.node_failures += 1;
        if self.detail.node_trouble.as_deref() != Some(trouble) {
            warn!("cannot ask the node: {trouble}");
            self.detail.node_trouble = Some(trouble.to_owned());
        }
        self.verdict();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_are_many_servers_each_is_looked_at_less_often() {
        for (servers, is_standby, expected_ms) in [
            (1, false, 2000),
            (4, true, 2000),
            (20, false, 5000),
            (20, true, 10_000),
        ] {
            let every = look_every(servers, is_standby);
            assert_eq!(every.as_millis(), expected_ms, "{servers} {is_standby}");
        }
    }

    #[test]
    fn servers_are_looked_at_together() {
        let s = Duration::from_secs;
        for (asked, expected) in [(0, 10), (1, 10), (9, 10), (10, 20), (25, 30)] {
            assert_eq!(next_look(s(asked), s(10)), s(expected), "{asked}");
        }
    }
}
