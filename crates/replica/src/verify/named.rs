//! Compares a replica by its name, whichever process applies to it.
//!
//! If none does, this one applies until both sides are at one position, as `replica run` would. A
//! replica that is paused is left alone.

use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use lockstep_apply::Writers;
use lockstep_client::{Connection, Conninfo};
use lockstep_wire::Lsn;

use super::hold::{GONE_AFTER, ThroughState};
use super::moment::Moment;
use super::{Options, RANGE_ROWS, Report, compare};
use crate::error::{ReplicaError, Result};
use crate::lifecycle::follow::{Following, follow_if, settings, starts};
use crate::names::TableName;
use crate::publication::Expected;
use crate::state::{Applied, Holder, Replica, ReplicaState};
use crate::status::attached::later;
use crate::status::lost::{self, Lost, Why, later_partitions, lost};
use crate::status::source::{Source, source_of};
use crate::status::standing::{Standing, hindrance, standing};
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
    /// Longest time that changes are held back, and that a replica whose process does not work is waited for.
    pub patience: Duration,
}

/// Ends what this process applies.
pub(crate) struct Ends<'a>(pub(crate) &'a Control);

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
        wait_near(&mut state, what, end, own, told)?;
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
    let mut outside = Vec::new();
    let at = (&options, &moment);
    let report = compared(&mut state, &replica, at, &expected, &mut outside)?;
    for lost in outside {
        told(&format!("table {}: {}", lost.table, lost.words()));
    }
    Ok(report)
}

/// Compares the tables as of a moment, and keeps in the state what that says of them. `outside` gets those
/// that are in order, and that others on the target do not find.
fn compared(
    state: &mut ReplicaState,
    replica: &Replica,
    (options, moment): (&Options, &Moment),
    expected: &Expected,
    outside: &mut Vec<Lost>,
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
    // Commands that come later have perhaps changed that already.
    if !replica.ddl {
        let sent = lost::sent(&mut session, &options.publications).map_err(ReplicaError::Source)?;
        let found = lost::outside(state.connection(), &sent, &options.listed);
        outside.extend(found.map_err(ReplicaError::Target)?);
    }
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

/// How a replica stands that is on its way to where its source was.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    There,
    GetsOn,
    /// The process works, and has finished nothing for a time, as in a large transaction.
    Slow,
    /// The replica will not come there, for this reason.
    Stuck(String),
}

impl Way {
    /// `stalled` is the time since it got on. Changes are not held back yet, so a process that works is
    /// waited for as long as it needs. `is_own`: it is this process.
    fn of(
        (holder, is_own): (Holder, bool),
        applied: &Applied,
        end: Lsn,
        (stalled, patience): (Duration, Duration),
    ) -> Self {
        // A process that begins has not heard of the source yet, and is given its time.
        let hindrance = hindrance(applied).filter(|_| holder == Holder::Apply);
        let stuck = |words: &str| {
            let error = hindrance.as_ref().or(applied.error.as_ref());
            let error = error.map_or_else(String::new, |error| format!(": {error}"));
            Self::Stuck(format!("{words}{error}"))
        };
        match (holder, standing(holder, applied)) {
            (Holder::Nobody, _) if !is_own && is_gone(applied) => {
                stuck("the process that applied has ended")
            }
            (Holder::Apply, _) if applied.state == "blocked" => stuck("a change does not fit"),
            (Holder::Apply, _) if applied.lsn >= Some(end) => Self::There,
            _ if stalled <= patience => Self::GetsOn,
            (_, Standing::Apply("applying")) if hindrance.is_none() => Self::Slow,
            _ => stuck("it makes no progress"),
        }
    }
}

/// Whether a process that does not have the replica's lock has ended. One whose session with it was lost
/// takes the lock again.
fn is_gone(applied: &Applied) -> bool {
    applied.has_ended() || applied.age.is_none_or(|age| age > GONE_AFTER)
}

/// Waits until the replica is where the source was: changes are held back only for what is left then.
fn wait_near(
    state: &mut ReplicaState,
    what: &Replicated,
    end: Lsn,
    mut own: Option<ScopedJoinHandle<'_, Result<()>>>,
    told: &mut dyn FnMut(&str),
) -> Result<()> {
    let name = &what.name;
    let (mut reached, mut since) = (None, Instant::now());
    let mut is_told = false;
    loop {
        let replica = wanted(state, name)?;
        if let Some(ended) = own.take_if(|own| own.is_finished()) {
            let ended = ended.join();
            let ended = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            came_back(state, &replica, ended, told)?;
        }
        let who = (state.holder(name)?, own.is_some());
        let applied = state.applied(name)?;
        match Way::of(who, &applied, end, (since.elapsed(), what.patience)) {
            Way::There => return Ok(()),
            Way::Slow if !is_told => {
                is_told = true;
                told(&slow_words(name, what.patience));
            }
            Way::GetsOn | Way::Slow => {}
            Way::Stuck(words) => {
                return Err(ReplicaError::State(format!(
                    "replica \"{name}\" does not reach {end}, where its source was: {words}"
                )));
            }
        }
        if applied.lsn != reached {
            (reached, since, is_told) = (applied.lsn, Instant::now(), false);
        }
        thread::sleep(ASK_EVERY);
    }
}

/// What follows the end of what this process applies. Another one that was away, as its target was, has taken
/// the replica again: that one is waited for.
fn came_back(
    state: &mut ReplicaState,
    replica: &Replica,
    ended: Result<()>,
    told: &mut dyn FnMut(&str),
) -> Result<()> {
    let name = &replica.name;
    if ended.is_ok() || state.holder(name)? != Holder::Apply {
        return ended;
    }
    told(&format!(
        "the process that applies to replica {name} has come back, and goes on"
    ));
    match replica.frequency.is_zero() {
        true => Ok(()),
        false => state.force(name).map(drop),
    }
}

fn slow_words(name: &str, patience: Duration) -> String {
    format!(
        "replica \"{name}\" works, and has finished nothing more for {} s: a large transaction, or the first \
         changes of thousands of tables, takes so long; it is waited for",
        patience.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_is_waited_for_however_slow_it_is() {
        let second = Duration::from_secs(1);
        let works = Applied {
            state: "applying".to_owned(),
            lsn: Some(Lsn::from(7)),
            heard: Some(second),
            age: Some(second),
            ..Applied::default()
        };
        let way = |who, applied: &Applied, end: u64, stalled: u32| {
            Way::of(
                who,
                applied,
                Lsn::from(end),
                (second * stalled, 60 * second),
            )
        };
        let apply = (Holder::Apply, false);
        assert_eq!(way(apply, &works, 7, 0), Way::There);
        assert_eq!(way(apply, &works, 8, 60), Way::GetsOn);
        assert_eq!(way(apply, &works, 8, 61), Way::Slow);
        assert_eq!(way(apply, &works, 8, 6_000), Way::Slow);
        let stuck = |words: &str| Way::Stuck(words.to_owned());
        let gone = stuck("the process that applied has ended");
        let nobody = (Holder::Nobody, false);
        assert_eq!(way(nobody, &works, 8, 0), Way::GetsOn, "it comes back");
        let ended = Applied {
            state: "stopped".to_owned(),
            ..works.clone()
        };
        assert_eq!(way(nobody, &ended, 8, 0), gone);
        assert_eq!(way((Holder::Nobody, true), &works, 8, 0), Way::GetsOn);
        let silent = Applied {
            age: Some(60 * second),
            ..works.clone()
        };
        assert_eq!(way(apply, &silent, 8, 61), stuck("it makes no progress"));
        assert_eq!(way(nobody, &silent, 8, 0), gone);
        let waits = Applied {
            error: Some("it waits for process 5".to_owned()),
            ..works.clone()
        };
        let expected = stuck("it makes no progress: it waits for process 5");
        assert_eq!(way(apply, &waits, 8, 61), expected);
        let blocked = Applied {
            state: "blocked".to_owned(),
            ..waits
        };
        let expected = stuck("a change does not fit: it waits for process 5");
        assert_eq!(way(apply, &blocked, 8, 0), expected);
        let deaf = Applied {
            heard: Some(60 * second),
            ..works
        };
        let Way::Stuck(words) = way(apply, &deaf, 8, 61) else {
            panic!("a source that is away does not come back by waiting for it");
        };
        assert!(words.contains("heard nothing of the source"), "{words}");
    }
}
