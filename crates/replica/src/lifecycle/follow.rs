//! `replica run`: applies what the slot of a finished copy has kept, and what comes after it.
//!
//! Two threads: one applies, the other looks every second at what the target's state wants (a pause, a
//! hold), and writes there how far the replica is. Its session holds the replica's lock, so that nothing
//! else works on the replica meanwhile. A third thread fills the spool, if there is one. While the target
//! is away only that one does anything.

mod watch;

use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_client::{ClientError, Conninfo};
use tracing::{info, warn};

use crate::capture;
use crate::error::{ReplicaError, Result};
use crate::lifecycle::{sequences, session};
use crate::publication::Expected;
use crate::state::failpoint;
use crate::state::{APPLICATION, LockSession, Replica, ReplicaState, TableCopy, TableState};
use crate::status::source::{Source, source_of};
use lockstep_apply::catalog;
use lockstep_apply::error::{ApplyError, Result as ApplyResult};
use lockstep_apply::sessions::SILENT;
use lockstep_apply::settings::{LONGEST_PAUSE, SHORTEST_PAUSE};
use lockstep_apply::spool::{self, Identity};
use lockstep_apply::{
    Control, Copied, MEMORY, Opened, Others, Settings, Spool, SpoolConfig, Start, Starts, Stats,
    Writers,
};

/// Interval of looks at the tables of both sides and at the source's publication. Each takes a short session
/// on the target, and one on the source unless nothing was applied and the target's tables are as before.
pub(super) const LOOK_AT_SOURCE_EVERY: Duration = Duration::from_secs(10);

/// A replica that is to be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Following {
    pub name: String,
    pub target: Conninfo,
    /// Used in place of the conninfo that the state has.
    pub source: Option<Conninfo>,
    /// Memory for changes that are received and not applied, in bytes.
    pub memory: usize,
    /// Sessions that change the target at the same time.
    pub writers: Writers,
    /// Where changes are kept that the target does not have yet; None leaves them to the source.
    pub spool: Option<SpoolConfig>,
}

/// Follows the source until `control` is told to stop, or something fails that no retry can mend.
pub fn follow(what: &Following, control: &Control) -> Result<()> {
    follow_if(what, control, true)
}

/// Like [`follow`]; if `altered_ends` is false, an altered publication does not end it. What that takes
/// away is lost whether it is followed or not, and `verify` shows it.
pub(crate) fn follow_if(what: &Following, control: &Control, altered_ends: bool) -> Result<()> {
    control.begin();
    let alive = Arc::new(());
    let early = Early::begin(&what.name, &what.target);
    let taken = take(&what.name, &what.target);
    let spool = spool_of(what, &taken)?;
    thread::scope(|scope| {
        let _ends = Ends(spool.as_ref(), control);
        let (away, taken) = match (taken, &spool) {
            (Err(ReplicaError::Target(error)), Some(spool)) if error.may_pass() => {
                let Some(settings) = while_away(what, spool)? else {
                    return Err(ReplicaError::Target(error));
                };
                scope.spawn(move || spool::take_in(spool, &settings, control));
                let Some(taken) = wait_for_target(what, spool, control, error)? else {
                    return Ok(());
                };
                (true, taken)
            }
            (taken, _) => (false, taken?),
        };
        let followed = Followed::begin(what, taken, control, (altered_ends, &alive))?;
        let settings = followed.settings;
        if let Some(spool) = &spool {
            if !away {
                let settings = settings.clone();
                scope.spawn(move || spool::take_in(spool, &settings, control));
            }
            spool.show_first(control);
        }
        let (state, replica, lock) = (followed.state, followed.replica, followed.lock);
        scope.spawn(move || watch::watch(state, &replica, (&what.target, &lock), control));
        match run_from(early, &settings, spool.as_ref(), &what.name, control) {
            // A session that began meanwhile has seen it first.
            Err(ApplyError::System(_)) if is_promoted(what) => {
                watch::end_promoted(&what.name, control);
                Ok(())
            }
            ended => ended.map_err(ReplicaError::Apply),
        }
    })
}

/// A replica of which this process has the lock.
struct Followed {
    state: ReplicaState,
    replica: Replica,
    lock: Arc<LockSession>,
    settings: Settings,
}

impl Followed {
    /// Tells apply what the state wants, and begins to look at the source. If `altered_ends` is false, nobody
    /// does that.
    fn begin(
        what: &Following,
        (mut state, replica): (ReplicaState, Replica),
        control: &Control,
        (altered_ends, alive): (bool, &Arc<()>),
    ) -> Result<Self> {
        failpoint::FOLLOW_TAKEN.reach();
        state.end_answered_hold(&what.name)?;
        // A promotion may have begun before the lock was ours.
        let replica = state.replica(&what.name)?.unwrap_or(replica);
        let source = source_of(what.source.as_ref(), &replica.source)?;
        let expected = altered_ends.then(|| state.expected(&replica));
        let published = expected.transpose()?.map(Arc::new);
        let lock = Arc::new(LockSession::default());
        lock.taken(state.backend()?);
        let settings = Settings {
            memory: what.memory,
            writers: what.writers,
            published: published.clone().map(|expected| expected as _),
            taken: Some(Arc::clone(&lock) as _),
            ..settings(&replica, &source, &what.target)?
        };
        control.set_bandwidth(replica.bandwidth);
        // Verify has no spool, and is about to hold the replica: it does without cycles.
        if altered_ends {
            control.set_frequency(replica.frequency);
            control.force(replica.forces);
        }
        if replica.paused {
            control.pause();
        }
        if let Some(expected) = published {
            let look = Look {
                replica: replica.clone(),
                source,
                target: what.target.clone(),
                control: control.clone(),
                alive: Arc::downgrade(alive),
            };
            look.begin(expected);
        }
        Ok(Self {
            state,
            replica,
            lock,
            settings,
        })
    }
}

fn is_promoted(what: &Following) -> bool {
    let taken = take(&what.name, &what.target);
    matches!(taken, Err(ReplicaError::Promoted { .. }))
}

/// The spool, opened. A process that is refused leaves no folder behind, and one whose target is away uses a
/// folder that is there.
fn spool_of<T>(what: &Following, taken: &Result<T>) -> Result<Option<Spool>> {
    let is_there = |spool: &SpoolConfig| spool.folder.exists();
    let may_fill = match taken {
        Ok(_) => true,
        Err(ReplicaError::Target(error)) => {
            error.may_pass() && what.spool.as_ref().is_some_and(is_there)
        }
        Err(_) => false,
    };
    let spool = what.spool.as_ref().filter(|_| may_fill);
    spool
        .map(Spool::open)
        .transpose()
        .map_err(ReplicaError::Apply)
}

/// Ends the threads that the scope waits for.
struct Ends<'a>(Option<&'a Spool>, &'a Control);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if let Some(spool) = self.0 {
            spool.stop();
        }
        if thread::panicking() {
            self.1.failed("the thread that applies has panicked");
        }
    }
}

/// What fills the spool while the target, which has the state, is away. None if the spool does not
/// know yet whose it is.
fn while_away(what: &Following, spool: &Spool) -> Result<Option<Settings>> {
    let Some(Identity { owner, source, .. }) = spool.identity() else {
        return Ok(None);
    };
    if owner.replica != what.name {
        return Ok(None);
    }
    Ok(Some(Settings {
        source: source_of(what.source.as_ref(), &source)?,
        target: what.target.clone(),
        slot: owner.slot,
        publications: owner.publications,
        published: None,
        taken: None,
        origin: owner.origin,
        ddl: owner.ddl,
        writers: what.writers,
        replica: what.name.clone(),
        application_name: what.name.clone(),
        memory: what.memory,
    }))
}

/// Waits until the target is there. None if the end is asked for before.
fn wait_for_target(
    what: &Following,
    spool: &Spool,
    control: &Control,
    mut error: ClientError,
) -> Result<Option<(ReplicaState, Replica)>> {
    warn!(
        "target: {}; the spool takes in what the source sends",
        error.words()
    );
    let mut pause = SHORTEST_PAUSE;
    loop {
        control.count(|stats| stats.error = Some(format!("target: {}", error.words())));
        control.wait_stopped(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
        if control.is_stopped() {
            return Ok(None);
        }
        if let Some(error) = spool.failure() {
            return Err(ReplicaError::Apply(error));
        }
        match take(&what.name, &what.target) {
            Err(ReplicaError::Target(found)) if found.may_pass() => error = found,
            taken => return taken.map(Some),
        }
    }
}

/// Looks from time to time at what the stream does not tell of the source. Nothing waits for this: it ends
/// some time after `alive` is gone. A server that does not answer is told of by apply.
#[derive(Clone)]
pub(super) struct Look {
    pub(super) replica: Replica,
    pub(super) source: Conninfo,
    pub(super) target: Conninfo,
    pub(super) control: Control,
    pub(super) alive: Weak<()>,
}

impl Look {
    /// Looks on threads of their own, at sequences and at all else.
    fn begin(self, expected: Arc<Expected>) {
        let sequences = self.clone();
        thread::spawn(move || {
            sequences.let_begin();
            sequences::follow(&sequences);
        });
        thread::spawn(move || {
            self.let_begin();
            self.again_and_again(&expected);
        });
    }

    /// Lets apply have its sessions first: each more at that time makes both servers, and so it, later.
    fn let_begin(&self) {
        let is_begun = |stats: &Stats| stats.phase != lockstep_apply::Phase::Connecting;
        self.control.wait_for(LOOK_AT_SOURCE_EVERY, is_begun);
    }

    /// Ends the replica once its publication is not as it should be, and says which tables are not
    /// replicated. A spool may have taken in much while the target was away, so the first look is at once.
    fn again_and_again(&self, expected: &Expected) {
        let mut expected = expected.clone();
        let (mut before, mut said) = (None, None);
        let mut seen = String::new();
        let mut pause = Duration::ZERO;
        let mut is_renewed = !self.replica.ddl;
        loop {
            // What was done to the target's tables is looked at as soon as it is noticed.
            self.control.wait_for(pause, |stats| {
                stats.phase == lockstep_apply::Phase::Stopped || stats.tables_seen != seen
            });
            pause = LOOK_AT_SOURCE_EVERY;
            let stats = self.control.stats();
            let (applied, ended) = (stats.applied, stats.phase == lockstep_apply::Phase::Stopped);
            seen = stats.tables_seen;
            if ended || self.alive.strong_count() == 0 {
                return;
            }
            is_renewed = is_renewed || self.renew_capture();
            // What is missing may be mended on the target, too.
            let unmade = self.control.stats().unmade;
            let Some((mut state, tables)) = self.tables() else {
                continue;
            };
            let is_idle =
                (before.as_ref()).is_some_and(|(at, had)| *at == applied && *had == tables);
            if is_idle && said.is_none() && unmade == Some(0) {
                continue;
            }
            let Some((found, unmade)) = self.ask(&mut state, &tables, &expected) else {
                continue;
            };
            before = Some((applied, tables));
            // Another may have begun with the control meanwhile.
            if self.alive.strong_count() == 0 {
                return;
            }
            if let Some(words) = found.altered {
                return self.control.refuse(words);
            }
            let unreplicated = found.unreplicated(&self.replica);
            if let Some(words) =
                (unreplicated.words.as_ref()).filter(|_| said != unreplicated.words)
            {
                warn!(replica = self.replica.name, "{words}");
            }
            said.clone_from(&unreplicated.words);
            expected.right = Some(found.end);
            self.control.count(|stats| {
                stats.published = Some(found.end);
                stats.unreplicated = Some(unreplicated);
                stats.unmade = Some(unmade);
            });
        }
    }

    /// Gives the source this release's event triggers, if the replica was created with those of another;
    /// whether that need not be tried again.
    fn renew_capture(&self) -> bool {
        let renewed = session(&self.source).and_then(|mut source| {
            source.execute(SILENT)?;
            capture::renew(&mut source, &self.replica)
        });
        let name = &self.replica.name;
        match renewed {
            Ok(false) => true,
            Ok(true) => {
                info!(
                    replica = name,
                    "the source has this release's event triggers now"
                );
                true
            }
            Err(error) => {
                warn!(
                    replica = name,
                    "source: the event triggers of --ddl are another release's and could not be renewed: {}",
                    error.words()
                );
                !error.may_pass()
            }
        }
    }

    /// The replica's tables, as the target has them.
    fn tables(&self) -> Option<(ReplicaState, Vec<TableCopy>)> {
        let mut state = ReplicaState::find(&self.target).ok()??;
        let tables = state.tables(&self.replica.name).ok()?;
        Some((state, tables))
    }

    /// What the source says, and the number of objects that the target lacks since the copy.
    fn ask(
        &self,
        state: &mut ReplicaState,
        tables: &[TableCopy],
        expected: &Expected,
    ) -> Option<(Source, usize)> {
        let unmade = state.forget_made(&self.replica.name).ok()?.len();
        let found = Source::ask(
            &self.replica,
            Some(&self.source),
            Some(tables),
            Some(expected),
        );
        let mut found = found.ok()?;
        found.look_at_target(state, tables).ok()?;
        let doubts: Vec<_> = (found.lost.iter())
            .filter_map(|lost| Some((&lost.table, Some(lost.doubt()?))))
            .collect();
        if !doubts.is_empty() {
            state.doubt(&self.replica.name, &doubts).ok()?;
        }
        if let Some(attached) = &found.attached {
            state.keep_attached(&self.replica.name, attached).ok()?;
        }
        Some((found, unmade))
    }
}

/// Settings of a replica with one writer. An error if its copy is not ready.
pub fn settings(replica: &Replica, source: &Conninfo, target: &Conninfo) -> Result<Settings> {
    replica.check_ready()?;
    Ok(Settings {
        source: source.clone(),
        target: target.clone(),
        slot: replica.slot.clone(),
        publications: vec![replica.publication.clone()],
        published: None,
        taken: None,
        origin: replica.origin.clone(),
        ddl: replica.ddl,
        writers: Writers::Number(1),
        replica: replica.name.clone(),
        application_name: replica.name.clone(),
        memory: MEMORY,
    })
}

/// Applies to a replica until `control` stops it; see [`lockstep_apply::run`].
pub fn run(
    settings: &Settings,
    spool: Option<&Spool>,
    replica: &str,
    control: &Control,
) -> ApplyResult<()> {
    run_from(Early::default(), settings, spool, replica, control)
}

/// Like [`run`], with a session that may be ready.
fn run_from(
    mut early: Early,
    settings: &Settings,
    spool: Option<&Spool>,
    replica: &str,
    control: &Control,
) -> ApplyResult<()> {
    let mut open = || {
        if let Some(opened) = early.take(replica) {
            return Ok(opened);
        }
        opened(&settings.target, replica, &settings.application_name)
    };
    lockstep_apply::run(settings, spool, control, &mut open)
}

/// A session of apply on the target that is made ready while the replica is taken: each needs several round
/// trips and plans. What the state says is read in it only once the replica is ours.
#[derive(Default)]
struct Early(Option<JoinHandle<Option<ReplicaState>>>);

impl Early {
    fn begin(name: &str, target: &Conninfo) -> Self {
        let (name, target) = (name.to_owned(), target.clone());
        let thread = thread::Builder::new().name("apply session".to_owned());
        // Where this fails the session is opened once it is needed, and the error is told then.
        let begun = thread.spawn(move || ready(&target, &name, &name).ok());
        Self(begun.ok())
    }

    /// What is asked for first. None if there is no such session any more.
    fn take(&mut self, replica: &str) -> Option<Opened> {
        let state = self.0.take()?.join().ok()??;
        read(state, replica).ok()
    }
}

/// Where each table of a replica starts: where its own copy ends. Of others only partitions that
/// were made later are replicated.
pub fn starts(target: &Conninfo, replica: &str) -> ApplyResult<Starts> {
    let read = found(target, replica, APPLICATION).and_then(|state| read(state, replica));
    read.map(|(_, starts)| starts).map_err(of_apply)
}

/// A session on the target that is ready for apply's questions, with what [`starts`] says.
fn opened(target: &Conninfo, replica: &str, application_name: &str) -> ApplyResult<Opened> {
    let ready = ready(target, replica, application_name);
    ready
        .and_then(|state| read(state, replica))
        .map_err(of_apply)
}

fn of_apply(error: ReplicaError) -> ApplyError {
    match error {
        ReplicaError::Target(error) => ApplyError::Target(error),
        other => ApplyError::System(other.to_string()),
    }
}

fn gone(replica: &str) -> ReplicaError {
    ReplicaError::State(format!("replica \"{replica}\" is gone from the target"))
}

fn found(target: &Conninfo, replica: &str, application_name: &str) -> Result<ReplicaState> {
    let state = ReplicaState::find_as(target, application_name)?;
    state.ok_or_else(|| gone(replica))
}

fn ready(target: &Conninfo, replica: &str, application_name: &str) -> Result<ReplicaState> {
    let mut state = found(target, replica, application_name)?;
    catalog::ready(state.connection()).map_err(ReplicaError::Target)?;
    Ok(state)
}

/// Reads what [`starts`] says.
fn read(mut state: ReplicaState, replica: &str) -> Result<Opened> {
    let found = state.replica(replica)?.ok_or_else(|| gone(replica))?;
    found.check_ready()?;
    let tables = state.tables(replica)?;
    let (session, excluded) = (state.into_connection(), found.excluded());
    let copies = tables.iter().filter_map(|table| {
        let copied = Copied {
            name: table.name.clone(),
            target: table.target_oid,
        };
        Some((table.source_oid?, copied))
    });
    let copies = copies.collect();
    let copied = tables.into_iter().map(|table| {
        let start = match (table.state, table.start) {
            (TableState::Copied, Some(lsn)) => Start::At(lsn),
            _ => Start::Never,
        };
        (table.name, start)
    });
    let starts = Starts {
        tables: copied.collect(),
        copies,
        others: Others::LaterPartitions(excluded),
    };
    Ok((session, starts))
}

/// The state with the replica's lock.
fn take(name: &str, target: &Conninfo) -> Result<(ReplicaState, Replica)> {
    taken(name, target, ReplicaState::lock_or_say)
}

fn taken(
    name: &str,
    target: &Conninfo,
    lock: impl FnOnce(&mut ReplicaState, &str) -> Result<()>,
) -> Result<(ReplicaState, Replica)> {
    let unknown = || {
        ReplicaError::State(format!(
            "the target has no replica \"{name}\"; lockstep replica create makes one"
        ))
    };
    let mut state = ReplicaState::find(target)?.ok_or_else(unknown)?;
    let replica = state.replica(name)?.ok_or_else(unknown)?;
    replica.check_not_promoted()?;
    lock(&mut state, name)?;
    Ok((state, replica))
}

/// Waits until apply has ended. False if so much time has passed before.
pub(super) fn rest(control: &Control, at_most: Duration) -> bool {
    control.wait_for(at_most, |stats| {
        stats.phase == lockstep_apply::Phase::Stopped
    })
}
