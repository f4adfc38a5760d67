//! One connection to a node that takes samples. It only reads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_client::connection::Rows;
use lockstep_client::{ClientError, Connection, Purpose, Refusal, Table};
use lockstep_service::clock::unix_us;
use lockstep_service::postgres::SUPPORTED;
use lockstep_service::sanitize::{sanitize, sanitize_json};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::node::{Node, Role, Trouble};
use crate::process_cpu;
use crate::questions::{self, Part, Scope};
use crate::relay::{self, Relay};
use crate::replica::{self, Kept};
use crate::sample::{Facts, Sample};
use crate::source::{self, Source};
use crate::tables::{self, Tables};
use crate::views::{ArchiveQueue, Background, WalFolder};
use crate::window::Glance;
use crate::{LagError, Result};

mod background;

/// The session's prepared statements. Planning takes the server several times as long as the
/// answer, so it is done once. A pooler gives a session to others, so there everything is planned each
/// time, and nothing is left behind.
const SAMPLE: &str = "lockstep_sample";
const GLANCE: &str = "lockstep_glance";

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Most bytes of one sample's answers.
pub const MOST_ANSWER: usize = 8 * 1024 * 1024;

/// Most rows of one part of a sample that are kept.
pub const MOST_ROWS: usize = 10_000;

/// How long it counts that a database has no state of replicas.
const REPLICAS_EVERY: Duration = Duration::from_secs(15);

/// How long an answer about the WAL folder counts: looking at many files takes time.
const FOLDER_EVERY: Duration = Duration::from_secs(15);

/// The tables' name in reports that they cannot be read.
const TABLES: &str = "published tables (pg_publication_tables, pg_subscription_rel)";

/// SQLSTATEs of an answer that was broken off and may come when it is asked for again: by a conflict with
/// recovery, by a deadlock with it.
const BROKEN_OFF: [&str; 2] = ["40001", "40P01"];

/// Most times in a row that one answer may be broken off before that counts as a refusal.
const MOST_BROKEN_OFF: usize = 20;

/// The SQLSTATE of a right that is missing.
const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// Longest reason why an answer is not understood, in characters.
const MOST_WORDS: usize = 200;

/// A connection to a node that answers.
#[derive(Debug)]
pub struct NodeSampler {
    node: Node,
    server: Connection,
    /// A pooler stands between, which may send each message to another session.
    is_pooled: bool,
    facts: Facts,
    asked: Asked,
    gaps: Vec<Trouble>,
    tables: Arc<Tables>,
    wal_folder: Option<WalFolder>,
    archive: Option<ArchiveQueue>,
    source: Option<Arc<Source>>,
    background: Arc<Background>,
    dead_rows: Option<u64>,
    /// When these three were asked for; None before.
    folder_at: Option<Instant>,
    /// When the tables were asked for; None before, and on nodes that are not asked.
    tables_at: Option<Instant>,
    /// When it was seen whether there are replicas.
    replicas_at: Instant,
    /// The server seems to run on this machine.
    local: bool,
}

/// What each sample asks.
#[derive(Debug)]
enum Asked {
    /// A server is asked for these parts. Parts that it refused are left out.
    Parts(Vec<(Part, String)>),
    /// A relay is asked for its groups and slots.
    Relay,
    /// A relay that refuses to show those is asked only whether it still answers.
    Nothing,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Moment {
    in_recovery: bool,
    clock_us: i64,
    up_ms: Option<f64>,
}

impl NodeSampler {
    /// Connects, and asks for what does not change. An error means that the server does not
    /// answer, or that the questions are not written for it.
    pub fn connect(node: &Node, application_name: &str) -> Result<Self> {
        let connected = Connection::connect(&node.conninfo, Purpose::Sql, application_name);
        let mut server = match node.role {
            Role::Relay => return Self::relay(node, connected.map_err(no_console)?),
            _ => connected?,
        };
        server.set_patience(PATIENCE);
        let major = server.server_version() / 10_000;
        if !SUPPORTED.contains(&major) {
            return Err(LagError::Version(major));
        }
        let facts = server.query(&in_one_message(&questions::facts()));
        if facts.as_ref().is_err_and(|error| error.refusal().is_some())
            && relay_version(&mut server)?.is_some()
        {
            return Err(LagError::WrongRole(
                "it is a relay's console: name it with --relay".to_owned(),
            ));
        }
        let mut facts: Facts = json("settings", single(facts?))?;
        let is_pooled = facts.backend != server.backend_pid();
        if !is_pooled {
            server.query(&questions::prepare(Scope::Session))?;
        }
        let mut hidden = None;
        match server.query(&in_one_message(questions::SYSTEM)) {
            Ok(rows) => facts.system = single(rows).unwrap_or_default(),
            Err(error) if error.refusal().is_some() => {
                hidden = Some(gap("the system identifier", error.words(), false));
            }
            Err(error) => return Err(error.into()),
        }
        if let Ok(server) = server.server() {
            let hosts = [Some(server.host), server.hostaddr];
            facts.hosts = hosts.into_iter().flatten().collect();
        }
        if !is_pooled {
            server.query(&format!("PREPARE {GLANCE} AS {}", questions::END))?;
        }
        let mut sampler = Self {
            is_pooled,
            asked: Asked::Parts(parts(node.role, &facts)),
            gaps: hidden
                .into_iter()
                .chain(gaps_of(node.role, &facts))
                .collect(),
            local: !is_pooled && facts.hosts.iter().any(|host| host.starts_with('/')),
            ..Self::new(node, server, facts)
        };
        sampler.prepare()?;
        Ok(sampler)
    }

    /// A sampler that has asked for nothing yet.
    fn new(node: &Node, server: Connection, facts: Facts) -> Self {
        Self {
            node: node.clone(),
            server,
            is_pooled: false,
            facts,
            asked: Asked::Nothing,
            gaps: Vec::new(),
            tables: Arc::default(),
            wal_folder: None,
            archive: None,
            source: None,
            background: Arc::default(),
            dead_rows: None,
            folder_at: None,
            tables_at: None,
            replicas_at: Instant::now(),
            local: false,
        }
    }

    /// Asks a server something.
    fn query(&mut self, sql: &str) -> lockstep_client::Result<Rows> {
        match self.is_pooled {
            true => self.server.query(&in_one_message(sql)),
            false => self.server.query(sql),
        }
    }

    /// The question of a sample.
    fn question(&self) -> String {
        match &self.asked {
            Asked::Parts(parts) if self.is_pooled => in_one_message(&select(parts)),
            Asked::Parts(_) => format!("EXECUTE {SAMPLE}"),
            Asked::Relay => relay::QUESTIONS.to_owned(),
            Asked::Nothing => relay::VERSION.to_owned(),
        }
    }

    /// Prepares the sample's statement, without parts that the server refuses to plan.
    fn prepare(&mut self) -> Result<()> {
        while let Asked::Parts(parts) = &self.asked {
            if self.is_pooled {
                break;
            }
            let statement = format!("PREPARE {SAMPLE} AS {}", select(parts));
            match self.server.query(&statement) {
                Ok(_) => break,
                Err(error) if error.refusal().is_some() => self.leave_out_refused(&error)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Prepares the sample's statement after its parts have changed.
    fn prepare_again(&mut self) -> Result<()> {
        if matches!(self.asked, Asked::Parts(_)) && !self.is_pooled {
            self.server.query(&format!("DEALLOCATE {SAMPLE}"))?;
            self.prepare()?;
        }
        Ok(())
    }

    /// Makes sure that it is a relay that answers.
    fn relay(node: &Node, mut server: Connection) -> Result<Self> {
        server.set_patience(PATIENCE);
        let Some(version) = relay_version(&mut server)? else {
            return Err(no_relay());
        };
        let facts = Facts {
            relay: Some(version),
            monitor: true,
            ..Facts::default()
        };
        Ok(Self {
            asked: Asked::Relay,
            ..Self::new(node, server, facts)
        })
    }

    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What cannot be read. Grows as parts are refused.
    pub fn gaps(&self) -> &[Trouble] {
        &self.gaps
    }

    /// Whether the node says that it is something else than it was said to be.
    pub fn mismatch(&self, sample: &Sample) -> Option<Trouble> {
        let hides_replicas = match &self.asked {
            Asked::Parts(parts) => {
                let is_asked = parts.iter().any(|(part, _)| *part == Part::Replicas);
                self.facts.replicas != Kept::Absent && !is_asked
            }
            _ => false,
        };
        role_mismatch(self.node.role, sample).filter(|_| !hides_replicas)
    }

    /// The connection, for other questions.
    pub fn server(&mut self) -> &mut Connection {
        &mut self.server
    }

    /// Takes a sample; `began` is the time at which the window began.
    pub fn sample(&mut self, began: Instant) -> Result<Sample> {
        self.ask_tables()?;
        self.ask_folder()?;
        self.find_replicas()?;
        let mut broken_off = 0;
        loop {
            let question = self.question();
            let asked = Instant::now();
            match self.server.tables(&question) {
                Ok(answers) => {
                    let answered = Instant::now();
                    let clock = unix_us() - micros(answered - asked) / 2;
                    let mut sample = self.read(answers, clock)?;
                    sample.tables = Arc::clone(&self.tables);
                    sample.wal_folder = self.wal_folder;
                    sample.archive = self.archive;
                    sample.source.clone_from(&self.source);
                    sample.background = Arc::clone(&self.background);
                    sample.dead_rows = self.dead_rows;
                    sample.round_trip = answered - asked;
                    sample.at = (asked + sample.round_trip / 2).saturating_duration_since(began);
                    return Ok(sample);
                }
                Err(error) if is_broken_off(&error) && broken_off < MOST_BROKEN_OFF => {
                    broken_off += 1;
                }
                Err(error) if error.refusal().is_some() => {
                    self.leave_out_refused(&error)?;
                    self.prepare_again()?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Asks for published and followed tables, if the last answer is old. Standbys have none of
    /// their own.
    fn ask_tables(&mut self) -> Result<()> {
        let has_tables = matches!(self.node.role, Role::Primary | Role::Subscriber);
        let fresh = self
            .tables_at
            .is_some_and(|at| at.elapsed() < tables::EVERY);
        if !has_tables || fresh {
            return Ok(());
        }
        let first = self.tables_at.is_none();
        self.tables_at = Some(Instant::now());
        match self.query(&tables::question()) {
            Ok(rows) => {
                let text = single(rows);
                within_limit(text.as_deref().map_or(0, str::len))?;
                self.tables = Arc::new(json("tables", text)?);
            }
            Err(error) => match error.refusal() {
                Some(refusal) if first => {
                    let reason = lacking(&self.facts, refusal);
                    self.gaps.push(gap(TABLES, reason, true));
                }
                // A table may just be dropped: the next answer says what there is.
                Some(_) => {}
                None => return Err(error.into()),
            },
        }
        Ok(())
    }

    /// Looks whether a subscriber has become the target of a replica since the last look. It may: a
    /// replica is made, or its state is upgraded.
    fn find_replicas(&mut self) -> Result<()> {
        let is_known = self.facts.replicas == Kept::Readable;
        let is_fresh = self.replicas_at.elapsed() < REPLICAS_EVERY;
        if is_known || is_fresh || self.node.role != Role::Subscriber {
            return Ok(());
        }
        self.replicas_at = Instant::now();
        let question = format!("SELECT to_json({}::text)", replica::kept());
        self.facts.replicas = json("replicas", single(self.query(&question)?))?;
        if let (Kept::Readable, Asked::Parts(parts)) = (self.facts.replicas, &mut self.asked) {
            parts.push((Part::Replicas, questions::replicas()));
            let unread = [Kept::Older, Kept::Untrusted].map(unread);
            self.gaps.retain(|gap| !unread.contains(&Some(gap.clone())));
            self.prepare_again()?;
        }
        Ok(())
    }

    /// Asks a server how large its WAL folder is, what waits to be archived, and how many rows are dead, if
    /// the last answers are old.
    fn ask_folder(&mut self) -> Result<()> {
        let fresh = self.folder_at.is_some_and(|at| at.elapsed() < FOLDER_EVERY);
        if fresh || self.node.role == Role::Relay {
            return Ok(());
        }
        self.folder_at = Some(Instant::now());
        self.wal_folder = self.ask_freely("the WAL folder", &questions::wal_folder())?;
        self.archive = self.ask_freely("the archiver's queue", questions::ARCHIVE_QUEUE)?;
        if self.node.role == Role::Primary {
            self.dead_rows = self.ask_freely("dead rows", questions::DEAD_ROWS)?;
        }
        if self.node.role == Role::Standby {
            let settings = self.ask_freely("where it gets WAL", source::QUESTION)?;
            self.source = settings.map(|settings| Arc::new(Source::read(settings)));
        }
        self.background = Arc::new(self.ask_background()?);
        Ok(())
    }

    /// Asks for something that the server may refuse: then it is None.
    fn ask_freely<T: DeserializeOwned>(&mut self, what: &str, sql: &str) -> Result<Option<T>> {
        match self.query(sql) {
            Ok(rows) => Ok(Some(json(what, single(rows))?)),
            Err(error) if error.refusal().is_some() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks only where WAL ends; a relay is asked for the end of each of its groups, with their
    /// names. Empty if there is no end yet, or if it may not be read.
    pub fn glance(&mut self, began: Instant) -> Result<Vec<(Option<String>, Glance)>> {
        let question = match &self.asked {
            Asked::Parts(_) if self.is_pooled => in_one_message(questions::END),
            Asked::Parts(_) => format!("EXECUTE {GLANCE}"),
            Asked::Relay => relay::UPSTREAM.to_owned(),
            Asked::Nothing => return Ok(Vec::new()),
        };
        let asked = Instant::now();
        let answers = match self.server.tables(&question) {
            Ok(answers) => answers,
            Err(error) if error.refusal().is_some() => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let middle = asked + asked.elapsed() / 2;
        let at = middle.saturating_duration_since(began);
        let glance = |group, end| (group, Glance { at, end });
        Ok(match &self.asked {
            Asked::Parts(_) => {
                let rows = answers.into_iter().next_back().unwrap_or_default().rows;
                let end = single(rows).and_then(|text| text.parse().ok());
                end.map(|end| glance(None, end)).into_iter().collect()
            }
            _ => relay::ends(&answers)?
                .into_iter()
                .map(|(group, end)| glance(Some(group), end))
                .collect(),
        })
    }

    /// Asks for each part alone, and leaves out those that are refused.
    fn leave_out_refused(&mut self, error: &ClientError) -> Result<()> {
        let parts = match &mut self.asked {
            Asked::Parts(parts) => std::mem::take(parts),
            Asked::Relay => {
                self.facts.monitor = false;
                self.gaps.push(gap("groups and slots", error.words(), true));
                self.asked = Asked::Nothing;
                return Ok(());
            }
            Asked::Nothing => return Err(LagError::Server(error.clone())),
        };
        let before = parts.len();
        let mut kept = Vec::new();
        for (part, sql) in parts {
            match self.query(&format!("SELECT {sql}")) {
                Ok(_) => kept.push((part, sql)),
                Err(error) => match error.refusal() {
                    // Without clock and role a sample is worth nothing.
                    Some(_) if part == Part::Moment => return Err(error.into()),
                    Some(refusal) => {
                        let reason = lacking(&self.facts, refusal);
                        self.gaps.push(gap(part.words(), reason, part.decides()));
                    }
                    None => return Err(error.into()),
                },
            }
        }
        let fewer = kept.len() < before;
        self.asked = Asked::Parts(kept);
        match fewer {
            true => Ok(()),
            // The server answers each part alone: the refusal has passed, or all parts together
            // are too much.
            false => Err(LagError::Answer {
                what: "everything".to_owned(),
                reason: "it was refused once, and may be asked again".to_owned(),
            }),
        }
    }

    fn read(&self, answers: Vec<Table>, clock_us: i64) -> Result<Sample> {
        let mut sample = match &self.asked {
            Asked::Parts(parts) => {
                let row = answers.into_iter().next_back().unwrap_or_default().rows;
                let columns = row.into_iter().next().unwrap_or_default();
                read_parts(parts.iter().map(|(part, _)| *part), columns, clock_us)?
            }
            Asked::Relay => read_relay(&answers)?,
            Asked::Nothing => Sample::default(),
        };
        if self.local {
            for process in &mut sample.processes {
                process.cpu = process_cpu::cpu(process.pid, &process.backend_type);
            }
        }
        Ok(sample)
    }
}

fn is_broken_off(error: &ClientError) -> bool {
    let refusal = error.refusal();
    refusal.is_some_and(|refusal| BROKEN_OFF.contains(&refusal.sqlstate.as_str()))
}

/// What a server of this role and with these facts is asked.
fn parts(role: Role, facts: &Facts) -> Vec<(Part, String)> {
    let has_replicas = facts.replicas == Kept::Readable && role == Role::Subscriber;
    let parts = Part::ALL.into_iter();
    let parts = parts.filter(|part| match part {
        Part::Replicas => has_replicas,
        Part::ParallelReplay => facts.parallel_replay,
        _ => true,
    });
    let question = |part| {
        let sql = questions::expression(part, facts.major(), facts.extension.as_deref())?;
        Some((part, sql))
    };
    parts.filter_map(question).collect()
}

fn select(parts: &[(Part, String)]) -> String {
    let list: Vec<&str> = parts.iter().map(|(_, sql)| sql.as_str()).collect();
    format!("SELECT {}", list.join(", "))
}

/// Makes a sample from the answers to a server's parts, each in its column. Whatever the server
/// sends, the size of the sample is bounded, and its texts have passed [`sanitize`].
pub fn read_parts(
    parts: impl Iterator<Item = Part>,
    columns: Vec<Option<String>>,
    clock_us: i64,
) -> Result<Sample> {
    let mut sample = Sample {
        size: columns.iter().flatten().map(String::len).sum(),
        ..Sample::default()
    };
    within_limit(sample.size)?;
    for (part, text) in parts.zip(columns) {
        let what = part.words();
        match part {
            Part::Moment => {
                let moment: Moment = json(what, text)?;
                (sample.in_recovery, sample.up_ms) = (moment.in_recovery, moment.up_ms);
                sample.clock_offset_us = moment.clock_us.saturating_sub(clock_us);
            }
            Part::Wal => sample.wal = json(what, text)?,
            Part::Senders => sample.senders = list(what, text)?,
            Part::Slots => sample.slots = list(what, text)?,
            Part::Decoding => sample.decoding = list(what, text)?,
            Part::Receiver => sample.receiver = text.map(|t| json(what, Some(t))).transpose()?,
            Part::Subscriptions => sample.subscriptions = list(what, text)?,
            Part::Replicas => sample.replicas = list(what, text)?,
            Part::Processes => sample.processes = list(what, text)?,
            Part::Clients => {
                sample.clients = json(what, text)?;
                sample.clients.oldest.truncate(MOST_ROWS);
            }
            Part::Prepared => sample.prepared = list(what, text)?,
            Part::Archiver => sample.archiver = json(what, text)?,
            Part::Conflicts => sample.conflicts = json(what, text)?,
            Part::Totals => {
                sample.totals = json(what, text)?;
                sample.totals.io.truncate(MOST_ROWS);
            }
            Part::Extension => {
                sample.extension = text.map(|t| json(what, Some(t))).transpose()?;
            }
            Part::ParallelReplay => {
                sample.parallel_replay = text.map(|t| json(what, Some(t))).transpose()?;
            }
        }
    }
    Ok(sample)
}

/// Makes a sample from a relay's answers to [`relay::QUESTIONS`].
pub fn read_relay(answers: &[Table]) -> Result<Sample> {
    let values = answers
        .iter()
        .flat_map(|table| table.rows.iter().flatten().flatten());
    let mut sample = Sample {
        size: values.map(String::len).sum(),
        ..Sample::default()
    };
    within_limit(sample.size)?;
    sample.add_relay(Relay::read(answers)?);
    Ok(sample)
}

fn within_limit(size: usize) -> Result<()> {
    match size > MOST_ANSWER {
        true => Err(LagError::Answer {
            what: "everything".to_owned(),
            reason: format!("it is longer than {} MB", MOST_ANSWER / (1024 * 1024)),
        }),
        false => Ok(()),
    }
}

fn gap(what: &str, reason: String, decides: bool) -> Trouble {
    Trouble::Gap {
        what: what.to_owned(),
        reason: sanitize(&reason),
        decides,
    }
}

/// What a server of this role hides, by its facts.
fn gaps_of(role: Role, facts: &Facts) -> impl Iterator<Item = Trouble> {
    let monitor = (!facts.monitor).then(|| {
        let (lacks, grant) = facts.missing_right();
        let what = "other roles' sessions and replication positions".to_owned();
        Trouble::Gap {
            what,
            reason: format!("the role {lacks}; {grant}"),
            decides: true,
        }
    });
    let replicas = unread(facts.replicas).filter(|_| role == Role::Subscriber);
    monitor.into_iter().chain(replicas)
}

/// A state of replicas that is there and is not read.
fn unread(kept: Kept) -> Option<Trouble> {
    let why = match kept {
        Kept::Older => replica::OLDER,
        Kept::Untrusted => replica::UNTRUSTED,
        Kept::Absent | Kept::Readable => return None,
    };
    Some(gap(Part::Replicas.words(), why.to_owned(), true))
}

/// Why a part is refused, and which GRANT is missing, if it is for that: as seldom as rights were
/// taken away from all, one on the view itself.
fn lacking(facts: &Facts, refusal: &Refusal) -> String {
    let refused = &refusal.message;
    match (refusal.sqlstate == INSUFFICIENT_PRIVILEGE, facts.monitor) {
        (false, _) => refused.clone(),
        (true, false) => format!("{refused}; {}", facts.missing_right().1),
        (true, true) => format!(
            "{refused}; GRANT SELECT on it, or EXECUTE on the function, TO {}",
            facts.role
        ),
    }
}

/// The version of the relay whose console this is; None if it is a server.
fn relay_version(server: &mut Connection) -> Result<Option<String>> {
    match server.query(relay::VERSION) {
        Ok(rows) => {
            Ok(single(rows)
                .and_then(|words| words.strip_prefix(relay::VERSION_WORDS).map(sanitize)))
        }
        Err(error) if error.refusal().is_some() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn no_relay() -> LagError {
    LagError::WrongRole(
        "it is a PostgreSQL server, no relay: name it with --primary, --standby or --subscriber"
            .to_owned(),
    )
}

/// A server has no database of the console's name, and says so. If it says so in another
/// language, the node is shown as unreachable, with the server's own words.
fn no_console(error: ClientError) -> LagError {
    match &error {
        ClientError::Connect(words) if words.contains("database \"lockstep\" does not exist") => {
            no_relay()
        }
        _ => error.into(),
    }
}

/// What a node says about itself that contradicts its `role`.
pub fn role_mismatch(role: Role, sample: &Sample) -> Option<Trouble> {
    let reason = match (role, sample.in_recovery) {
        (Role::Primary, true) => "it is a standby, not a primary: name it with --standby",
        (Role::Standby, false) => {
            "it is no standby: it is a primary, perhaps since a promotion; name a standby"
        }
        (Role::Subscriber, false)
            if sample.subscriptions.is_empty() && sample.replicas.is_empty() =>
        {
            "there is no subscription in this database, and no lockstep replica: name the database \
             that has it (dbname=)"
        }
        (Role::Subscriber, true) => "it is a standby: name the server that applies the changes",
        _ => return None,
    };
    Some(Trouble::WrongRole {
        reason: reason.to_owned(),
    })
}

/// The first value of the last row: settings that are made in the same message may give a row, too.
fn single(rows: Rows) -> Option<String> {
    rows.into_iter().next_back()?.into_iter().next()?
}

/// A question with its settings, in one message.
fn in_one_message(sql: &str) -> String {
    format!("{}; {sql}", questions::prepare(Scope::Message))
}

/// Reads a list, of which at most [`MOST_ROWS`] rows are kept.
fn list<T: DeserializeOwned>(what: &str, text: Option<String>) -> Result<Vec<T>> {
    let mut list: Vec<T> = json(what, text)?;
    list.truncate(MOST_ROWS);
    Ok(list)
}

fn json<T: DeserializeOwned>(what: &str, text: Option<String>) -> Result<T> {
    let text = sanitize_json(&text.unwrap_or_default());
    serde_json::from_str(&text).map_err(|error| LagError::Answer {
        what: what.to_owned(),
        // The message may quote the text that it did not understand.
        reason: sanitize(&error.to_string())
            .chars()
            .take(MOST_WORDS)
            .collect(),
    })
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::Subscription;
    use lockstep_client::Step;

    #[test]
    fn roles_are_told_apart() {
        let subscribed = vec![Subscription::default()];
        for (role, in_recovery, subscriptions, fits) in [
            (Role::Primary, false, vec![], true),
            (Role::Primary, true, vec![], false),
            (Role::Standby, true, vec![], true),
            (Role::Standby, false, vec![], false),
            (Role::Subscriber, false, subscribed.clone(), true),
            (Role::Subscriber, false, vec![], false),
            (Role::Subscriber, true, subscribed, false),
        ] {
            let sample = Sample {
                in_recovery,
                subscriptions,
                ..Sample::default()
            };
            assert_eq!(role_mismatch(role, &sample).is_none(), fits, "{role}");
        }
    }

    #[test]
    fn a_grant_is_advised_where_a_right_is_missing() {
        for (sqlstate, monitor, advised) in [
            ("42501", false, Some("; GRANT pg_monitor TO r")),
            ("42501", true, Some("; GRANT SELECT on it")),
            ("22021", true, None),
            ("57014", false, None),
        ] {
            let facts = Facts {
                role: "r".to_owned(),
                monitor,
                ..Facts::default()
            };
            let refusal = Refusal {
                step: Step::Query,
                what: "run a query".to_owned(),
                sqlstate: sqlstate.to_owned(),
                message: "refused".to_owned(),
                detail: None,
                context: None,
                table: None,
                hint: None,
            };
            let said = lacking(&facts, &refusal);
            let expected = format!("refused{}", advised.unwrap_or_default());
            assert!(said.starts_with(&expected), "{said}");
            assert_eq!(said.contains("GRANT"), advised.is_some(), "{said}");
        }
    }

    #[test]
    fn answers_that_make_no_sense_are_errors() {
        for text in [None, Some("{"), Some("{\"clock_us\":\"x\"}")] {
            assert!(json::<Moment>("clock", text.map(str::to_owned)).is_err());
        }
    }
}
