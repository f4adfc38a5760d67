//! `replica promote`: the target becomes a database of its own. [`promotion`](super::promotion) decides, this
//! does.
//!
//! What must stay true: **once the promotion has ended, nothing is applied any more.** A process that applies
//! ends once the state says *promoting*. One that has lost its session with the lock may not have seen that:
//! so the origins are dropped, which fails as long as a session has one, and whoever would make new ones
//! looks at the state first.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::quote::identifier;
use lockstep_client::{ClientError, Connection, Conninfo, Purpose, field};
use lockstep_service::words::figures::{counted, verb};
use lockstep_service::words::span;
use lockstep_wire::Lsn;

use crate::copy::workers::target_session;
use crate::error::{ReplicaError, Result};
use crate::lifecycle::fence::{self, Fence};
use crate::lifecycle::promotion::{
    Drained, Next, Part, Process, Seen, SourceSays, Wish, next, parts,
};
use crate::lifecycle::raise::raise;
use crate::lifecycle::remove::{has_more, left_on_source, remove_from_source, remove_origins};
use crate::lifecycle::{session, setval};
use crate::state::failpoint;
use crate::state::{
    self, APPLICATION, Applied, Held, Holder, Phase, Promotion, Replica, ReplicaState, SwitchStage,
    Unmade, unmade_words,
};
use crate::status::source::{END, Source, connect, source_of};
use crate::status::standing::{Standing, hindrance, missed, standing};
use lockstep_apply::sessions::SILENT;

/// Interval of questions to the state.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Longest wait until a process that applied has ended: it looks at the state every second, and finishes what
/// it applies if that is quick.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// Longest wait for a process to write its state, or to take the replica again: it looks every second.
const WRITES_WITHIN: Duration = Duration::from_secs(5);

/// Time after which a process that applies and does not hold the replica's lock has ended.
const GONE_AFTER: Duration = Duration::from_secs(3);

/// A hold lasts so much longer than it is waited for: the state is to say *promoting* before it ends.
const HOLDS_ON: Duration = Duration::from_secs(30);

/// Writes a commit, with all commits before it, to the source's disk.
const MARK: &str = "SET synchronous_commit = local; \
    SELECT pg_catalog.pg_logical_emit_message(true, 'lockstep', 'promote') WHERE NOT pg_is_in_recovery()";

/// Transactions of the source's database that have written and not ended.
const OPEN: &str = "SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
      AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()) \
    + (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database())";

/// Whether sessions of the target's database begin read-only by a setting of the database.
const IS_CLOSED: &str = "SELECT current_database() FROM pg_db_role_setting s, unnest(s.setconfig) c \
    WHERE s.setrole = 0 AND s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()) \
      AND c LIKE 'default_transaction_read_only=%' \
      AND lower(split_part(c, '=', 2)) IN ('on', 'true', 'yes', '1')";

/// Slots of the target's database that have a publication of their own, as a replica's have, and no reader.
const UNREAD: &str = "SELECT s.slot_name FROM pg_replication_slots s \
    JOIN pg_publication p ON p.pubname = s.slot_name \
    WHERE s.database = current_database() AND NOT s.active AND s.slot_name LIKE 'lockstep\\_%' ORDER BY 1";

/// A replica that is to be promoted.
#[derive(Debug, Clone)]
pub struct Promote {
    pub name: String,
    pub target: Conninfo,
    /// Used in place of the conninfo that the state has.
    pub source: Option<Conninfo>,
    pub wish: Wish,
    /// Longest time that the target may take to get what the source, or the spool, still has.
    pub patience: Duration,
}

/// A replica that is promoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promoted {
    pub promotion: Promotion,
    /// The replica was promoted before this call.
    pub is_again: bool,
    /// How far the source's WAL went when something was last heard of it, if that is known to be further.
    pub source_end: Option<Lsn>,
    /// What the source keeps of the replica, and the commands that remove it there.
    pub left: Option<(Replica, Vec<String>)>,
    /// The source keeps it because its slot has what the target lacks.
    pub has_more: bool,
    /// Why sessions of the target still begin read-only.
    pub read_only: Option<String>,
    /// What the target may lack, or have in another way, apart from what was committed later.
    pub lacks: Vec<String>,
    /// What the user should know besides.
    pub notes: Vec<String>,
}

/// Promotes a replica, or goes on with a promotion that was begun. `told` hears what it waits for.
pub fn promote(what: &Promote, told: &mut dyn FnMut(&str)) -> Result<Promoted> {
    let mut run = Run::open(what)?;
    let is_again = run.replica.phase == Phase::Promoted;
    run.check_no_switchover()?;
    loop {
        let seen = run.see()?;
        match next(what.wish, &run.replica, &seen) {
            Next::Refuse(words) => return Err(ReplicaError::State(words)),
            Next::Done => {
                run.end_switchover()?;
                return run.done(is_again);
            }
            step => run.take(step, told)?,
        }
    }
}

/// A promotion that goes on.
pub(crate) struct Run<'a> {
    what: &'a Promote,
    pub(crate) state: ReplicaState,
    pub(crate) replica: Replica,
    pub(crate) source: Conninfo,
    pub(crate) says: SourceSays,
    pub(crate) drained: Drained,
    is_fenced: bool,
    is_open: bool,
    is_cleaned: bool,
    has_slot: bool,
    has_more: bool,
    read_only: Option<String>,
    source_end: Option<Lsn>,
    /// What the names of the way back's origins begin with, once it has begun: it may have brought something
    /// to the source already.
    pub(crate) way_back: Option<String>,
    pub(crate) lacks: Vec<String>,
    pub(crate) notes: Vec<String>,
}

impl<'a> Run<'a> {
    pub(crate) fn open(what: &'a Promote) -> Result<Self> {
        let unknown =
            || ReplicaError::Usage(format!("the target has no replica \"{}\"", what.name));
        let mut state = ReplicaState::find(&what.target)?.ok_or_else(unknown)?;
        let replica = state.replica(&what.name)?.ok_or_else(unknown)?;
        let mut run = Self {
            what,
            state,
            source: source_of(what.source.as_ref(), &replica.source)?,
            replica,
            says: SourceSays::Nothing("it was not asked".to_owned()),
            drained: Drained::default(),
            is_fenced: false,
            is_open: false,
            is_cleaned: false,
            has_slot: false,
            has_more: false,
            read_only: None,
            source_end: None,
            way_back: None,
            lacks: Vec::new(),
            notes: Vec::new(),
        };
        let promotion = run.state.promotion(&what.name)?;
        let is_left = promotion.is_some_and(|it| it.is_left);
        if run.replica.phase == Phase::Ready || is_left {
            run.says = run.ask()?;
        }
        run.wait_written()?;
        Ok(run)
    }

    /// Does what comes next, unless that is an end.
    pub(crate) fn take(&mut self, step: Next, told: &mut dyn FnMut(&str)) -> Result<()> {
        for part in parts(&step) {
            self.part(part, told)?;
        }
        if step == Next::Fence {
            failpoint::PROMOTE_FENCED.reach();
            self.is_fenced = true;
        }
        self.refresh()
    }

    fn part(&mut self, part: Part, told: &mut dyn FnMut(&str)) -> Result<()> {
        let name = &self.what.name;
        match part {
            Part::Drain(to) => {
                told(&format!(
                    "waiting until the target has everything before {to}"
                ));
                self.drained = self.drain(to, self.what.patience)?;
            }
            Part::KeepBegun { to, loses } => self.state.begin_promotion(name, to, loses)?,
            Part::EndHold => {
                self.state.end_hold(name)?;
                failpoint::PROMOTE_BEGUN.reach();
            }
            Part::Lock => {
                told("waiting until nothing is applied any more");
                self.state.lock_within(name, ENDS_WITHIN)?;
            }
            Part::KeepStands => self.state.keep_promoted(name)?,
            Part::DropOrigins => {
                remove_origins(&mut self.state, &self.replica).map_err(ReplicaError::Target)?;
            }
            Part::SetSequences => self.set_sequences()?,
            Part::RaiseSequences => self.raise_sequences()?,
            Part::Pass(fence) => {
                fence::pass(self.state.connection(), fence).map_err(ReplicaError::Target)?;
            }
            Part::OpenDatabase => {
                self.is_open = true;
                let open = open_database(self.state.connection(), &self.what.target);
                self.read_only = open.map_err(ReplicaError::Target)?;
                self.state.keep_read_only(name, false)?;
            }
            Part::Clean => self.clean()?,
            Part::Remove(fence) => {
                let left = fence::remove(self.state.connection(), fence);
                self.notes
                    .extend(fence::left(fence, &left.map_err(ReplicaError::Target)?));
            }
            Part::KeepEnded => self.state.end_promotion(name)?,
        }
        Ok(())
    }

    /// This call has opened the target.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Only the command of a switchover that has begun knows what it has fenced and made for the way back.
    fn check_no_switchover(&mut self) -> Result<()> {
        let name = &self.what.name;
        let is_begun = self.state.switch_stage(name)?.is_begun();
        match is_begun && !self.what.wish.with_data_loss {
            false => Ok(()),
            true => Err(ReplicaError::State(format!(
                "a switchover of replica \"{name}\" has begun and is not over: repeat its command (lockstep \
                 replica switchover, or promote --reverse), which takes it back or goes on; if the source is \
                 gone for good, --with-data-loss promotes without a way back"
            ))),
        }
    }

    /// Keeps in the state that a switchover which had begun is none any more.
    fn end_switchover(&mut self) -> Result<()> {
        let name = &self.what.name;
        let stage = self.state.switch_stage(name)?;
        if !stage.is_begun() {
            return Ok(());
        }
        self.state.set_switch_stage(name, SwitchStage::None)?;
        let fenced = connect(&self.source).and_then(|mut it| fence::is_up(&mut it, Fence::Left));
        let source = match fenced {
            Ok(true) => {
                "the source takes no writes (SET default_transaction_read_only = off for commands there)"
            }
            Ok(false) => {
                "the source takes writes, which are not on the target: let nobody write there"
            }
            Err(_) => {
                "a source that comes back may take writes, which are not on the target: let nobody write there \
                 (if it takes none, SET default_transaction_read_only = off for commands there)"
            }
        };
        let clients = stage.waiting().map(|words| format!("; {words}"));
        self.notes.push(format!(
            "a switchover had begun, and has ended as a promotion without a way back: {source}{}",
            clients.unwrap_or_default()
        ));
        let unread = self.state.connection().query(UNREAD);
        for row in unread.map_err(ReplicaError::Target)? {
            let slot: String = field(&row, 0).map_err(ReplicaError::Target)?;
            self.notes.push(format!(
                "slot {slot} of the target keeps WAL that nobody reads; if it was made for the way back, remove \
                 it and its publication there:"
            ));
            self.notes
                .push(format!("SELECT pg_drop_replication_slot('{slot}');"));
            self.notes.push(format!("DROP PUBLICATION {slot};"));
        }
        Ok(())
    }

    pub(crate) fn refresh(&mut self) -> Result<()> {
        let name = &self.what.name;
        let gone = || ReplicaError::State(format!("replica \"{name}\" was dropped meanwhile"));
        self.replica = self.state.replica(name)?.ok_or_else(gone)?;
        Ok(())
    }

    /// Asks the source how far it is. What is wrong with its slot or publication no longer matters once the
    /// promotion has begun.
    fn ask(&mut self) -> Result<SourceSays> {
        let is_begun = self.replica.phase > Phase::Ready;
        let tables = self.state.tables(&self.what.name)?;
        let expected = self.state.expected(&self.replica)?;
        let (looked, expected) = match is_begun {
            true => (None, None),
            false => (Some(tables.as_slice()), Some(&expected)),
        };
        let found = Source::ask(&self.replica, Some(&self.source), looked, expected);
        let found = found.and_then(|mut found| {
            if !is_begun {
                found.look_at_target(&mut self.state, &tables)?;
            }
            Ok(found)
        });
        let found = match found {
            Ok(found) => found,
            Err(ReplicaError::Source(error)) => return Ok(SourceSays::Nothing(error.words())),
            Err(ReplicaError::State(words)) => return Ok(SourceSays::Unusable(words)),
            // A wrong --source says nothing of the replica's.
            Err(ReplicaError::OtherSource(words)) if self.what.source.is_some() => {
                return Err(ReplicaError::OtherSource(format!(
                    "{words}: name the right one with --source. Nothing is changed"
                )));
            }
            Err(ReplicaError::OtherSource(words)) => {
                return Ok(SourceSays::Nothing(format!("at its address, {words}")));
            }
            Err(error) => return Err(error),
        };
        self.has_slot = found.slot.is_some();
        self.lacks.extend(found.lacking());
        if let Some(words) = found.slot_lost(&self.replica).or(found.altered.clone()) {
            return Ok(SourceSays::Unusable(words));
        }
        // Before the source's end: apply goes on meanwhile.
        let stands = self.state.stands(&self.what.name)?;
        let (end, open) = match mark(&self.source) {
            Ok(marked) => marked,
            Err(error) => return Ok(SourceSays::Nothing(error.words())),
        };
        if open > 0 {
            self.notes.push(format!(
                "{} that had written something {} open on the source: what is committed there later is not on \
                 the target",
                counted(open, "transaction"),
                verb(open, "was", "were")
            ));
        }
        if stands > end {
            return Ok(SourceSays::Unusable(format!(
                "the source's WAL ends at {end}, before {stands}, which is applied: it was set back to an \
                 earlier state"
            )));
        }
        Ok(SourceSays::Ends(end))
    }

    /// What the target lacks of the source as it is now, in words.
    pub(crate) fn lacking(&mut self) -> Result<Option<String>> {
        let tables = self.state.tables(&self.what.name)?;
        let mut found = Source::ask(&self.replica, Some(&self.source), Some(&tables), None)?;
        found.look_at_target(&mut self.state, &tables)?;
        Ok(found.lacking())
    }

    /// Gives a process that has just begun the time to say so, one that has not ended and lost its session
    /// with the lock the time to take it again, and one that applies the time to write what its spool holds
    /// now, if that is to be relied on.
    fn wait_written(&mut self) -> Result<()> {
        let began = Instant::now();
        let name = &self.what.name;
        while self.replica.phase == Phase::Ready && began.elapsed() < WRITES_WITHIN {
            match self.state.holder(name)? {
                Holder::Nobody if self.state.applied(name)?.has_ended() => break,
                Holder::Apply if !self.what.wish.with_data_loss => break,
                Holder::Apply => {
                    let age = self.state.applied(name)?.age;
                    if age.is_some_and(|age| age < began.elapsed()) {
                        break;
                    }
                }
                Holder::Nobody | Holder::Other => {}
            }
            thread::sleep(ASK_EVERY);
        }
        Ok(())
    }

    pub(crate) fn see(&mut self) -> Result<Seen> {
        let name = &self.what.name;
        // Once the promotion has begun without a loss, nobody asks any more who applies.
        let matters = self.replica.phase == Phase::Ready || self.what.wish.with_data_loss;
        let (holder, applied) = match matters {
            true => (self.state)
                .at_one_moment(|state| Ok((state.holder(name)?, state.applied(name)?)))?,
            false => (Holder::Nobody, Applied::default()),
        };
        let process = self.process(holder, &applied)?;
        let name = &self.what.name;
        let whole_from = match self.what.wish.with_data_loss {
            true => (self.state.tables(name)?.iter())
                .filter_map(|table| table.start)
                .max(),
            false => None,
        };
        let promotion = self.state.promotion(name)?;
        let spool = applied.spool.as_ref();
        let spool = spool.map(|spool| (spool.from, spool.to));
        let heard = applied
            .lsn
            .map(|lsn| Lsn::from(u64::from(lsn).saturating_add(applied.lag_bytes)));
        self.source_end = match &self.says {
            SourceSays::Ends(end) => Some(*end),
            _ => heard.max(spool.map(|(_, to)| to)).max(self.source_end),
        };
        Ok(Seen {
            source: self.says.clone(),
            process,
            spool,
            stands: self.state.stands(name)?,
            whole_from: whole_from.unwrap_or(Lsn::INVALID),
            has_cycled: !self.replica.frequency.is_zero() && self.state.has_cycled(name)?,
            drained: self.drained.clone(),
            is_fenced: self.is_fenced,
            is_open: self.is_open,
            is_cleaned: self.is_cleaned,
            has_slot: self.has_slot,
            has_sequences: promotion.as_ref().is_some_and(|it| it.has_sequences),
            is_left: promotion.is_some_and(|it| it.is_left),
        })
    }

    fn process(&mut self, holder: Holder, applied: &Applied) -> Result<Process> {
        Ok(match standing(holder, applied) {
            Standing::NotRunning => Process::Nobody,
            Standing::Apply("blocked") => {
                let words = applied.error.clone();
                Process::Blocked(words.unwrap_or_else(|| "a change does not fit".to_owned()))
            }
            Standing::Apply(_) => Process::Applies,
            Standing::Other => Process::Stuck(self.state.lock_words(&self.what.name)?),
            Standing::Silent => Process::Stuck(format!(
                "a process is connected to the target and writes nothing: is its machine alive? {}",
                self.state.lock_words(&self.what.name)?
            )),
        })
    }

    /// Lets apply come to a position, and stand there until the state says that the promotion has begun.
    pub(crate) fn drain(&mut self, to: Lsn, patience: Duration) -> Result<Drained> {
        let name = &self.what.name;
        if !self.state.begin_hold(name, to, patience + HOLDS_ON)? {
            return Err(ReplicaError::State(self.state.hold_words(name)?));
        }
        let deadline = Instant::now() + patience;
        let mut there = Instant::now();
        loop {
            let held = self.state.held(name)?;
            if held == Held::At(to) {
                failpoint::PROMOTE_HELD.reach();
                return Ok(Drained::To(to));
            }
            let (holder, applied) = (self.state.holder(name)?, self.state.applied(name)?);
            let standing = standing(holder, &applied);
            let error = hindrance(&applied);
            let words = match standing {
                _ if held == Held::Ended => {
                    Some("the process that applies was started anew".to_owned())
                }
                Standing::Apply("blocked") => error,
                _ if Instant::now() >= deadline => Some(error.unwrap_or_else(|| {
                    format!("it was not there within {}", span::show(patience))
                })),
                Standing::Apply(_) => {
                    there = Instant::now();
                    None
                }
                _ if there.elapsed() >= GONE_AFTER => {
                    let gone = || "no process applies any more".to_owned();
                    Some(applied.error.clone().unwrap_or_else(gone))
                }
                _ => None,
            };
            if let Some(words) = words {
                self.state.end_hold(name)?;
                return Ok(Drained::Not(words));
            }
            thread::sleep(ASK_EVERY);
        }
    }

    /// A sequence that a killed command set late would give values a second time.
    fn session_of_sequences(&self) -> Result<Connection> {
        let mut target = target_session(&self.what.target)?;
        let end = ("target", ReplicaError::Target as fn(ClientError) -> _);
        state::alone(&mut target, &self.replica.slot, end, &mut |_| true)?;
        target.execute(SILENT).map_err(ReplicaError::Target)?;
        Ok(target)
    }

    fn set_sequences(&mut self) -> Result<()> {
        let (excluded, publication) = (self.replica.excluded(), &self.replica.publication);
        let mut target = self.session_of_sequences()?;
        let source = session(&self.source).map_err(ReplicaError::Source);
        let set = source.and_then(|mut source| {
            let mut values = setval::Values::new();
            setval::set(
                &mut source,
                &mut target,
                (&excluded, publication),
                None,
                &mut values,
            )
        });
        match set {
            Ok(unset) => self.sequences_are_set(unset),
            // What is to be done then is decided anew.
            Err(ReplicaError::Source(error)) => {
                self.says = SourceSays::Nothing(error.words());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn raise_sequences(&mut self) -> Result<()> {
        let mut target = self.session_of_sequences()?;
        let unset = raise(&mut target)?;
        self.sequences_are_set(unset)
    }

    fn sequences_are_set(&mut self, unset: Vec<Unmade>) -> Result<()> {
        failpoint::PROMOTE_SEQUENCES.reach();
        let name = &self.what.name;
        self.state.set_unmade(name, Phase::Ready, &unset)?;
        self.state.keep_sequences_set(name)
    }

    fn clean(&mut self) -> Result<()> {
        self.is_cleaned = true;
        if matches!(self.says, SourceSays::Nothing(_)) {
            return Ok(());
        }
        match self.let_go() {
            Ok(true) => {
                failpoint::PROMOTE_CLEANED.reach();
                self.state.keep_source_clean(&self.what.name)
            }
            Ok(false) => Ok(()),
            Err(error @ (ReplicaError::Source(_) | ReplicaError::OtherSource(_))) => {
                self.notes
                    .push(format!("nothing is removed from the source: {error}"));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Removes slot and publication from the source. False if the slot stays, since it has what the target
    /// lacks.
    fn let_go(&mut self) -> Result<bool> {
        let promotion = self.state.promotion(&self.what.name)?;
        let stands = promotion.and_then(|it| it.lsn);
        let more_after = match (&self.says, stands) {
            (SourceSays::Ends(_), Some(at)) => {
                let way_back = self.way_back.as_deref();
                has_more(&self.source, &self.replica, at, way_back)?.then_some(at)
            }
            _ => None,
        };
        if let Some(at) = more_after {
            self.has_more = true;
            self.lacks.push(format!(
                "its source has committed changes after {at} that are not on the target: bring over what is \
                 missing there by hand, or drop the replica and create it anew in another database"
            ));
            return Ok(false);
        }
        if let SourceSays::Unusable(words) = &self.says {
            self.notes.push(words.clone());
        }
        remove_from_source(&self.source, &self.replica)?;
        Ok(true)
    }

    pub(crate) fn done(mut self, is_again: bool) -> Result<Promoted> {
        let name = &self.what.name;
        let gone = || ReplicaError::State(format!("replica \"{name}\" was dropped meanwhile"));
        let promotion = self.state.promotion(name)?.ok_or_else(gone)?;
        let unmade = self.state.forget_made(name)?;
        self.lacks.extend(unmade_words(&unmade, name));
        let missing = (self.state.tables(name)?.iter())
            .map(|table| table.missing)
            .sum();
        self.lacks.extend(missed(missing));
        let left = match promotion.is_left {
            true => Some((self.replica.clone(), left_on_source(&self.replica)?)),
            false => None,
        };
        let is_further = |end: &Lsn| promotion.lsn.is_some_and(|lsn| lsn < *end);
        Ok(Promoted {
            is_again,
            source_end: self
                .source_end
                .filter(is_further)
                .filter(|_| promotion.loses),
            left,
            has_more: self.has_more,
            read_only: self.read_only,
            lacks: self.lacks,
            notes: self.notes,
            promotion,
        })
    }
}

/// The end of the source's WAL, before which everything lies that it has committed so far, and how many
/// transactions are open that have written.
fn mark(source: &Conninfo) -> Result<(Lsn, u64), ClientError> {
    let mut session = connect(source)?;
    session.execute(MARK)?;
    let end = field(&session.query_one(END)?, 0)?;
    Ok((end, field(&session.query_one(OPEN)?, 0)?))
}

/// Why sessions of the target still begin read-only; None if they do not.
fn open_database(
    connection: &mut Connection,
    target: &Conninfo,
) -> Result<Option<String>, ClientError> {
    if let Some(row) = connection.query_opt(IS_CLOSED)? {
        let database = identifier("database", &field::<String>(&row, 0)?)?;
        let command = format!("ALTER DATABASE {database} RESET default_transaction_read_only");
        match connection.execute(&command) {
            Ok(()) => {}
            Err(error) if error.refusal().is_some() => {
                return Ok(Some(format!(
                    "sessions of the target's database begin read-only, and this role may not change that \
                     ({}); as the database's owner run: {command};",
                    error.words()
                )));
            }
            Err(error) => return Err(error),
        }
    }
    let mut fresh = Connection::connect(target, Purpose::Sql, APPLICATION)?;
    let row =
        fresh.query_one("SELECT current_setting('default_transaction_read_only'), current_user")?;
    let (setting, role): (String, String) = (field(&row, 0)?, field(&row, 1)?);
    Ok((setting == "on").then(|| {
        format!(
            "sessions of role \"{role}\" still begin read-only on the target: \
             default_transaction_read_only is set for the role or the whole server"
        )
    }))
}
