//! Compares a replica by its name, whichever process applies to it.
//!
//! If none does, this one applies until both sides are at one position, as `replica run` would. A
//! replica that is paused is left alone.

use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use lockstep_apply::Writers;
use lockstep_client::{Connection, Conninfo};
use lockstep_wire::Lsn;

use super::hold::ThroughState;
use super::moment::Moment;
use super::{Options, RANGE_ROWS, Report, compare};
use crate::error::{ReplicaError, Result};
use crate::lifecycle::follow::{Following, follow_if, settings, starts};
use crate::names::TableName;
use crate::publication::Expected;
use crate::state::{Holder, Replica, ReplicaState};
use crate::status::attached::later;
use crate::status::lost::{Lost, Why, later_partitions, lost};
use crate::status::source::{Source, source_of};
use crate::status::standing::hindrance;
use lockstep_apply::{Control, MEMORY};

/// Interval of questions to the state how far apply is.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// A replica that is to be compared.
#[derive(Debug, Clone)]
pub struct Replicated {
    pub name: String,
    pub target: Conninfo,
    /// Used in place of the conninfo that the state has.
    pub source: Option<Conninfo>,
    /// Sessions on each side.
    pub jobs: usize,
    /// Longest time that changes are held back, and that the replica may take to get on at all.
    pub patience: Duration,
}

/// Ends what this process applies.
struct Ends<'a>(&'a Control);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Compares all tables of a replica. `told` hears what a user would wonder about.
pub fn replica(what: &Replicated, told: &mut dyn FnMut(&str)) -> Result<Report> {
    let name = &what.name;
    let mut state = ReplicaState::find(&what.target)?.ok_or_else(|| unknown(name))?;
    let replica = wanted(&mut state, name)?;
    let source = source_of(what.source.as_ref(), &replica.source)?;
    let settings = settings(&replica, &source, &what.target)?;
    let tables = state.tables(name)?;
    let expected = state.expected(&replica)?;
    let asked = Source::ask(&replica, Some(&source), None, None)?;
    if let Some(words) = asked.slot_lost(&replica) {
        return Err(ReplicaError::State(words));
    }
    let end = asked.end;
    if let Some(words) = asked.not_replicated(&replica) {
        told(&words);
    }
    if let Some(words) = state.stranger_words(name)? {
        return Err(ReplicaError::State(words));
    }
    let is_alone = state.holder(name)? == Holder::Nobody;
    let control = Control::default();
    let following = Following {
        name: name.clone(),
        target: what.target.clone(),
        source: Some(source.clone()),
        memory: MEMORY,
        writers: Writers::Number(1),
        spool: None,
    };
    let (moment, options) = thread::scope(|scope| {
        let _ends = Ends(&control);
        let own = is_alone.then(|| {
            told(&format!(
                "no process applies to replica {name}: this one does until both sides are at one \
                 position"
            ));
            scope.spawn(|| follow_if(&following, &control, false))
        });
        // One with a frequency stands still otherwise.
        if own.is_none() && !replica.frequency.is_zero() {
            state.force(name)?;
        }
        wait_near(&mut state, what, end, own)?;
        let options = Options {
            source: source.clone(),
            target: what.target.clone(),
            publications: settings.publications.clone(),
            starts: starts(&what.target, name).map_err(ReplicaError::Apply)?,
            listed: tables,
            jobs: what.jobs,
            range_rows: RANGE_ROWS,
            patience: what.patience,
        };
        // A session of its own, whose age is that of the hold.
        let state = ReplicaState::find(&what.target)?.ok_or_else(|| unknown(name))?;
        let mut hold = ThroughState {
            state,
            name: name.clone(),
        };
        let moment = Moment::take(&options, &mut hold).map_err(ReplicaError::from)?;
        Ok::<_, ReplicaError>((moment, options))
    })?;
    compared(&mut state, &replica, &options, &moment, &expected)
}

/// Compares the tables as of a moment, and keeps in the state what that says of them.
fn compared(
    state: &mut ReplicaState,
    replica: &Replica,
    options: &Options,
    moment: &Moment,
    expected: &Expected,
) -> Result<Report> {
    let mut report = compare::tables(options, &moment.snapshots)?;
    // As the moment's snapshot has it: that is what the tables were compared by.
    let mut session = moment
        .snapshots
        .source(options)
        .map_err(ReplicaError::from)?;
    let differences = expected.differences(&mut session);
    report.publication = expected.words(&differences.map_err(ReplicaError::Source)?);
    report.unmade = state.forget_made(&replica.name)?;
    if report.publication.is_none() {
        adopt((&mut session, state), replica, options, &report)?;
    }
    Ok(report)
}

/// Tables that somebody has put in place of those that were copied into are the copy if they are equal, and
/// tables whose rows were in doubt are in none any more. Later partitions that are equal have all rows from
/// before they were attached.
fn adopt(
    (source, state): (&mut Connection, &mut ReplicaState),
    replica: &Replica,
    options: &Options,
    report: &Report,
) -> Result<()> {
    let is_equal = |name: &TableName| {
        let mut compared = report.tables.iter().filter(|one| one.table == *name);
        compared
            .next()
            .is_some_and(|one| one.differences.is_empty())
    };
    let (publications, listed) = (&options.publications, &options.listed);
    let lost = lost(source, publications, listed);
    let lost = lost.map_err(ReplicaError::Source)?;
    let equal = (lost.iter()).filter(|lost| lost.why == Why::ReplacedHere && is_equal(&lost.table));
    let equal: Vec<_> = equal.map(|lost| &lost.table).collect();
    if !equal.is_empty() {
        state.adopt(&replica.name, &equal)?;
    }
    // A table that was renamed on both sides is compared under its new name.
    let is_certain = |lost: &Lost| match lost.why {
        Why::ReplacedHere => is_equal(&lost.table),
        Why::Unlogged | Why::Doubted(_) => (options.listed.iter())
            .find(|listed| listed.name == lost.table)
            .and_then(|listed| listed.there.as_ref())
            .is_some_and(is_equal),
        _ => false,
    };
    let certain = lost.iter().filter(|lost| is_certain(lost));
    let certain: Vec<_> = certain.map(|lost| (&lost.table, None)).collect();
    if !certain.is_empty() {
        state.doubt(&replica.name, &certain)?;
    }
    let partitions = later_partitions(source, publications, listed, &replica.excluded())
        .and_then(|names| later(source, publications, &names));
    let partitions = partitions.map_err(ReplicaError::Source)?;
    let equal: Vec<_> = (partitions.iter())
        .filter(|one| is_equal(&one.table))
        .map(|one| one.kept(true))
        .collect();
    if equal.is_empty() {
        return Ok(());
    }
    let mut known = state.attached(&replica.name)?;
    known.retain(|known| !equal.iter().any(|equal| equal.oid == known.oid));
    known.extend(equal);
    state.keep_attached(&replica.name, &known)
}

fn unknown(name: &str) -> ReplicaError {
    ReplicaError::Usage(format!("the target has no replica \"{name}\""))
}

/// The replica, if it is to apply.
fn wanted(state: &mut ReplicaState, name: &str) -> Result<Replica> {
    let replica = state.replica(name)?.ok_or_else(|| unknown(name))?;
    match replica.paused {
        false => Ok(replica),
        true => Err(ReplicaError::State(format!(
            "replica \"{name}\" is paused, so it does not reach the source's position: end the pause with \
             lockstep replica resume"
        ))),
    }
}

/// Why a replica that works has not got further in the time that a user gives it.
const SLOW: &str = "it works, and has finished nothing more within the time that --wait gives it: a large \
    transaction, or the first changes of thousands of tables, takes longer; try a longer --wait";

/// Waits until the replica is where the source was, as long as it gets on: changes are held back
/// only for what is left then.
fn wait_near(
    state: &mut ReplicaState,
    what: &Replicated,
    end: Lsn,
    mut own: Option<ScopedJoinHandle<'_, Result<()>>>,
) -> Result<()> {
    let name = &what.name;
    let mut reached = None;
    let mut since = Instant::now();
    loop {
        wanted(state, name)?;
        if let Some(ended) = own.take_if(|own| own.is_finished()) {
            ended
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        let holder = state.holder(name)?;
        let applied = state.applied(name)?;
        // A process that begins has not heard of the source yet, and is given its time.
        let hindrance = hindrance(&applied).filter(|_| holder == Holder::Apply);
        let error = hindrance.as_ref().or(applied.error.as_ref());
        let of_error = || error.map_or_else(String::new, |error| format!(": {error}"));
        let refused = match holder {
            Holder::Nobody if own.is_none() => Some("the process that applied has ended"),
            Holder::Apply if applied.state == "blocked" => Some("a change does not fit"),
            Holder::Apply if applied.lsn >= Some(end) => return Ok(()),
            Holder::Apply if since.elapsed() > what.patience && error.is_none() => Some(SLOW),
            _ if since.elapsed() > what.patience => Some("it makes no progress"),
            _ => None,
        };
        if let Some(words) = refused {
            let of_error = of_error();
            return Err(ReplicaError::State(format!(
                "replica \"{name}\" does not reach {end}, where its source was: {words}{of_error}"
            )));
        }
        if applied.lsn != reached {
            (reached, since) = (applied.lsn, Instant::now());
        }
        thread::sleep(ASK_EVERY);
    }
}
