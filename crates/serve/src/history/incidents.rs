//! What was the matter, from when to when: decided from states, without I/O and clock.

use std::collections::VecDeque;

use lockstep_lag::diagnosis::{Diagnosis, Finding, LinkReport};
use lockstep_lag::monitor::{LinkState, MonitorState};
use lockstep_lag::point::Bound;
use lockstep_lag::rules::Severity;
use serde::{Deserialize, Serialize};

/// An incident that comes back within this time goes on, so that one that comes and goes is one
/// incident and not a hundred.
const GOES_ON_MS: i64 = 60_000;

/// Most incidents in memory; the oldest is forgotten first.
pub const MOST_INCIDENTS: usize = 500;

const MOST_CAUSES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Matter {
    /// A replica lags, or something as serious.
    Lag,
    /// A node cannot be asked.
    Lost,
    /// Something that soon will lag, or costs something else.
    Risk,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    /// Unique; later incidents have higher ones.
    pub id: u64,
    pub matter: Matter,
    /// The replica, node or slot.
    pub at: String,
    /// The node that a replica gets its WAL from; None at a node or slot.
    pub upstream: Option<String>,
    /// When it was seen first, milliseconds since 1970.
    pub begin_ms: i64,
    /// When it was seen last.
    pub seen_ms: i64,
    /// Causes in words, in the order in which they were found.
    pub causes: Vec<String>,
    /// The longest lag, if it is one.
    pub most_lag_ms: Option<f64>,
    /// What that is to the true one.
    #[serde(flatten)]
    pub bound: Bound,
    pub most_lag_bytes: u64,
    /// The incident is over. One that was seen shortly before can still go on.
    pub over: bool,
}

/// The incidents that are known, the oldest first.
#[derive(Debug, Default)]
pub struct Incidents {
    known: VecDeque<Incident>,
    /// Time of the newest state.
    now_ms: i64,
    next: u64,
    /// Grows when one begins, ends or gets another cause.
    changes: u64,
}

/// What a state says is the matter at a place.
struct Seen<'a> {
    matter: Matter,
    at: &'a str,
    upstream: Option<&'a str>,
    cause: Option<&'a str>,
    /// A replica's link, and what its longest lag is to the true one.
    link: Option<(&'a LinkState, Bound)>,
}

impl Seen<'_> {
    /// True if this is the given incident, which goes on.
    fn is(&self, one: &Incident, now_ms: i64) -> bool {
        // A finding about a replica does not say from where it gets its WAL.
        let upstream = one.upstream.as_deref();
        let same_upstream =
            upstream.is_none() || self.upstream.is_none() || upstream == self.upstream;
        let is_there = one.at == self.at && same_upstream;
        // Of a risk, each cause is an incident.
        let same_cause = one.causes.first().map(String::as_str) == self.cause;
        let grows = self.matter == Matter::Lag && one.matter == Matter::Risk && same_cause;
        !one.over
            && (one.matter == self.matter || grows)
            && is_there
            && (self.matter != Matter::Risk || same_cause)
            && now_ms.saturating_sub(one.seen_ms) <= GOES_ON_MS
    }
}

impl Incident {
    /// The incident as it was seen when it began.
    fn seen(&self) -> Seen<'_> {
        Seen {
            matter: self.matter,
            at: &self.at,
            upstream: self.upstream.as_deref(),
            cause: self.causes.first().map(String::as_str),
            link: None,
        }
    }

    /// Goes on as `later`, which is the same incident.
    fn go_on(&mut self, later: Incident) {
        self.matter = later.matter;
        self.upstream = self.upstream.take().or(later.upstream);
        self.seen_ms = later.seen_ms;
        self.over = later.over;
        for cause in later.causes {
            self.add_cause(&cause);
        }
        self.add_lag(later.most_lag_ms, later.bound, later.most_lag_bytes);
    }

    /// Returns whether it is new.
    fn add_cause(&mut self, cause: &str) -> bool {
        let is_new = !self.causes.iter().any(|known| known == cause);
        let has_room = self.causes.len() < MOST_CAUSES;
        if is_new && has_room {
            self.causes.push(cause.to_owned());
        }
        is_new && has_room
    }

    fn add_lag(&mut self, lag_ms: Option<f64>, bound: Bound, bytes: u64) {
        if lag_ms > self.most_lag_ms {
            self.most_lag_ms = lag_ms;
            self.bound = bound;
        }
        self.most_lag_bytes = self.most_lag_bytes.max(bytes);
    }
}

impl Incidents {
    /// Adds those of former runs, in front. What was open then goes on if it is seen again soon.
    pub fn add_former(&mut self, former: Vec<Incident>) {
        let room = MOST_INCIDENTS.saturating_sub(self.known.len());
        let highest = former.iter().map(|one| one.id + 1).max().unwrap_or(0);
        // The numbers of this run continue those of the former ones.
        for one in &mut self.known {
            one.id += highest;
        }
        self.next += highest;
        let skipped = former.len().saturating_sub(room);
        for mut one in former.into_iter().skip(skipped).rev() {
            // On a slow disk this run may have seen it before the former ones were read.
            let same = |later: &Incident| later.seen().is(&one, later.begin_ms);
            if let Some(at) = self.known.iter().position(same) {
                self.known
                    .remove(at)
                    .into_iter()
                    .for_each(|later| one.go_on(later));
            }
            self.known.push_front(one);
        }
        self.changes += 1;
    }

    /// All, the oldest first.
    pub fn all(&self) -> impl Iterator<Item = &Incident> {
        self.known.iter()
    }

    /// Takes a state, and returns the incidents that are open or have just ended.
    pub fn take(&mut self, state: &MonitorState) -> Vec<Incident> {
        if state.number == 0 {
            return Vec::new();
        }
        let now_ms = state.at_ms;
        if now_ms < self.now_ms {
            self.clock_was_set_back(self.now_ms - now_ms);
        }
        self.now_ms = now_ms;
        for seen in seen(state) {
            self.note(&seen);
        }
        let mut changed = Vec::new();
        for one in self.known.iter_mut().filter(|one| !one.over) {
            one.over = now_ms.saturating_sub(one.seen_ms) > GOES_ON_MS;
            changed.push(one.clone());
        }
        changed
    }

    /// Open ones keep their length.
    fn clock_was_set_back(&mut self, by_ms: i64) {
        for one in self.known.iter_mut().filter(|one| !one.over) {
            one.begin_ms -= by_ms;
            one.seen_ms -= by_ms;
        }
    }

    fn note(&mut self, seen: &Seen<'_>) {
        let now_ms = self.now_ms;
        if !self.known.iter().any(|one| seen.is(one, now_ms)) {
            self.begin(seen);
        }
        let Some(one) = self.known.iter_mut().find(|one| seen.is(one, now_ms)) else {
            return;
        };
        one.seen_ms = now_ms;
        one.matter = seen.matter;
        one.upstream = one.upstream.take().or(seen.upstream.map(str::to_owned));
        if seen.cause.is_some_and(|cause| one.add_cause(cause)) {
            self.changes += 1;
        }
        if let Some((link, bound)) = seen.link {
            let lag_ms = link.lag_ms.max(link.lag_max_ms);
            one.add_lag(Some(lag_ms), bound, link.lag_bytes);
        }
    }

    fn begin(&mut self, seen: &Seen<'_>) {
        if self.known.len() >= MOST_INCIDENTS {
            self.known.pop_front();
        }
        self.known.push_back(Incident {
            id: self.next,
            matter: seen.matter,
            at: seen.at.to_owned(),
            upstream: seen.upstream.map(str::to_owned),
            begin_ms: self.now_ms,
            seen_ms: self.now_ms,
            causes: seen.cause.map(str::to_owned).into_iter().collect(),
            most_lag_ms: None,
            bound: Bound::default(),
            most_lag_bytes: 0,
            over: false,
        });
        self.next += 1;
        self.changes += 1;
    }

    /// All, the newest first.
    pub fn newest_first(&self) -> Vec<Told<'_>> {
        let told = |incident| Told {
            incident,
            end_ms: self.end_ms(incident),
        };
        self.known.iter().rev().map(told).collect()
    }

    /// Incidents of the newest state, and a number that changes when the list does otherwise.
    pub fn now(&self) -> Now<'_> {
        let open = self.known.iter().filter(|one| self.end_ms(one).is_none());
        let open: Vec<&Incident> = open.collect();
        Now {
            // One that ends changes nothing but what is open.
            changes: self.changes.wrapping_mul(1000) + open.len() as u64,
            open,
        }
    }

    fn end_ms(&self, one: &Incident) -> Option<i64> {
        (one.over || one.seen_ms != self.now_ms).then_some(one.seen_ms)
    }
}

/// An incident as `/api/incidents` returns it.
#[derive(Debug, Serialize)]
pub struct Told<'a> {
    #[serde(flatten)]
    incident: &'a Incident,
    /// None while it lasts.
    end_ms: Option<i64>,
}

/// What `/api/state` says about incidents.
#[derive(Debug, Serialize)]
pub struct Now<'a> {
    changes: u64,
    open: Vec<&'a Incident>,
}

/// What the longest lag of a link's window is to the true one.
fn longest(diagnosis: &Diagnosis, link: &LinkState) -> Bound {
    let is_its = |of: &&LinkReport| of.replica == link.replica && of.upstream == link.upstream;
    let report = diagnosis.links.iter().find(is_its);
    report.map_or(link.bound, |report| report.bound)
}

/// All that is the matter, each place once.
fn seen(state: &MonitorState) -> Vec<Seen<'_>> {
    let diagnosis = &state.diagnosis;
    let lost = state.nodes.iter().filter(|node| !node.usable);
    let lost = lost.filter_map(|node| {
        Some(Seen {
            matter: Matter::Lost,
            at: &node.name,
            upstream: None,
            cause: Some(node.troubles.first()?),
            link: None,
        })
    });
    let behind = state.links.iter().filter(|link| link.behind);
    let behind = behind.map(|link| Seen {
        matter: Matter::Lag,
        at: &link.replica,
        upstream: Some(&link.upstream),
        cause: diagnosis
            .cause_of(&link.upstream, &link.replica, link.kind)
            .map(|found| found.title.as_str()),
        link: Some((link, longest(diagnosis, link))),
    });
    let explains = |found: &Finding| {
        let mut links = state.links.iter().filter(|link| link.behind);
        links.any(|link| {
            let cause = diagnosis.cause_of(&link.upstream, &link.replica, link.kind);
            found.at == link.replica || cause.is_some_and(|cause| cause.at == found.at)
        })
    };
    let found = diagnosis.findings.iter().filter_map(move |found| {
        let matter = match found.severity {
            Severity::Lag if !explains(found) => Matter::Lag,
            Severity::Risk => Matter::Risk,
            _ => return None,
        };
        Some(Seen {
            matter,
            at: &found.at,
            upstream: None,
            cause: Some(&found.title),
            link: None,
        })
    });
    lost.chain(behind).chain(found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;
    use lockstep_lag::rules::Cause;

    /// States at these seconds, each changed as wanted.
    fn at(incidents: &mut Incidents, second: i64, change: impl FnOnce(&mut MonitorState)) {
        let mut state = example::state();
        state.at_ms += second * 1000;
        change(&mut state);
        incidents.take(&state);
    }

    fn lags(ms: f64) -> impl FnOnce(&mut MonitorState) {
        move |state| {
            example::lag(state, 0, ms);
            let found = example::finding(Cause::ReplayPaused, Severity::Lag, "standby");
            state.diagnosis.findings.push(found);
        }
    }

    /// Place, begin and end in seconds, and greatest lag, the newest first.
    fn list(incidents: &Incidents) -> Vec<(String, i64, Option<i64>, Option<f64>)> {
        let second = |ms: i64| (ms - example::AT_MS) / 1000;
        let all = incidents.newest_first().into_iter();
        all.map(|told| {
            let one = told.incident;
            let begin = second(one.begin_ms);
            (
                one.at.clone(),
                begin,
                told.end_ms.map(second),
                one.most_lag_ms,
            )
        })
        .collect()
    }

    #[test]
    fn a_lag_has_a_begin_an_end_a_cause_and_a_greatest_lag() {
        let mut incidents = Incidents::default();
        at(&mut incidents, 0, |_| {});
        assert_eq!(list(&incidents), []);
        at(&mut incidents, 1, |state| example::lag(state, 0, 300.0));
        let before = incidents.now().changes;
        at(&mut incidents, 2, lags(9_000.0));
        assert_ne!(incidents.now().changes, before, "it has a cause now");
        at(&mut incidents, 3, lags(400.0));
        let is = |end| vec![("standby".to_owned(), 1, end, Some(9_000.0))];
        assert_eq!(list(&incidents), is(None));
        let open = incidents.now().changes;
        at(&mut incidents, 4, |_| {});
        assert_eq!(list(&incidents), is(Some(3)));
        assert_ne!(incidents.now().changes, open);
        let one = incidents.newest_first()[0].incident.clone();
        assert_eq!(
            (one.matter, one.causes),
            (Matter::Lag, vec!["in words".to_owned()])
        );
        // Within a minute it goes on, after one it is another.
        at(&mut incidents, 60, lags(500.0));
        assert_eq!(list(&incidents), is(None));
        at(&mut incidents, 61, |_| {});
        at(&mut incidents, 122, lags(500.0));
        let two = list(&incidents);
        assert_eq!((two.len(), two[0].1, two[1].2), (2, 122, Some(60)));
    }

    #[test]
    fn lost_nodes_and_risks_are_incidents_and_notes_are_not() {
        let mut incidents = Incidents::default();
        at(&mut incidents, 0, |state| {
            example::lose(state, "standby");
            for (cause, severity, at) in [
                (Cause::UnusedSlot, Severity::Risk, "slot a on primary"),
                (Cause::IdlePrimary, Severity::Note, "app"),
                (Cause::SlowDecoding, Severity::Lag, "all slots of primary"),
            ] {
                let found = example::finding(cause, severity, at);
                state.diagnosis.findings.push(found);
            }
        });
        let all = incidents.newest_first().into_iter();
        let found: Vec<_> = all
            .map(|told| (told.incident.matter, told.incident.at.as_str()))
            .collect();
        let expected = [
            (Matter::Lag, "all slots of primary"),
            (Matter::Risk, "slot a on primary"),
            (Matter::Lost, "standby"),
        ];
        assert_eq!(found, expected);
        // What is found before its replica counts as behind is the begin of the same incident.
        let mut incidents = Incidents::default();
        at(&mut incidents, 0, |state| {
            let found = example::finding(Cause::ReplayPaused, Severity::Lag, "standby");
            state.diagnosis.findings.push(found);
        });
        at(&mut incidents, 1, lags(500.0));
        let expected = [("standby".to_owned(), 0, None, Some(500.0))];
        assert_eq!(list(&incidents), expected);
        // The cause of a replica that lags is no incident of its own.
        let mut incidents = Incidents::default();
        at(&mut incidents, 0, lags(500.0));
        assert_eq!(incidents.newest_first().len(), 1);
    }

    #[test]
    fn incidents_of_former_runs_go_on_if_they_are_seen_soon() {
        for (second, expected) in [(30, 1), (90, 2)] {
            let mut first = Incidents::default();
            at(&mut first, 0, lags(500.0));
            let former: Vec<Incident> = first.known.into();
            let mut incidents = Incidents::default();
            incidents.add_former(former);
            at(&mut incidents, second, lags(900.0));
            let found = list(&incidents);
            assert_eq!(found.len(), expected);
            assert_eq!(found.last().unwrap().1, 0);
            let ids: Vec<u64> = incidents.known.iter().map(|one| one.id).collect();
            assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
        }
        // Those that began before the former ones were read come after them.
        let mut first = Incidents::default();
        at(&mut first, 0, lags(500.0));
        let mut incidents = Incidents::default();
        at(&mut incidents, 300, lags(100.0));
        incidents.add_former(first.known.into());
        at(&mut incidents, 301, lags(100.0));
        let ids: Vec<u64> = incidents.known.iter().map(|one| one.id).collect();
        assert_eq!(ids, [0, 1]);
        assert_eq!(list(&incidents)[1].2, Some(0));
        // One that went on meanwhile is still one.
        let mut first = Incidents::default();
        at(&mut first, 0, lags(500.0));
        let mut incidents = Incidents::default();
        at(&mut incidents, 30, lags(900.0));
        incidents.add_former(first.known.into());
        let expected = [("standby".to_owned(), 0, None, Some(900.0))];
        assert_eq!(list(&incidents), expected);
        at(&mut incidents, 31, lags(100.0));
        assert_eq!(list(&incidents), expected);
    }

    #[test]
    fn one_of_an_older_version_is_read() {
        let mut incidents = Incidents::default();
        at(&mut incidents, 0, lags(500.0));
        let one = &incidents.known[0];
        let mut json = serde_json::to_value(one).unwrap();
        json.as_object_mut().unwrap().remove("lag_is_most").unwrap();
        assert_eq!(&serde_json::from_value::<Incident>(json).unwrap(), one);
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_their_length() {
        let mut incidents = Incidents::default();
        at(&mut incidents, 0, lags(500.0));
        at(&mut incidents, 20, lags(500.0));
        at(&mut incidents, -3600, lags(500.0));
        assert_eq!(
            list(&incidents),
            [("standby".to_owned(), -3620, None, Some(500.0))]
        );
    }

    #[test]
    fn their_number_is_bounded() {
        let mut incidents = Incidents::default();
        for second in 0..(MOST_INCIDENTS as i64 + 20) {
            at(&mut incidents, second * 100, lags(500.0));
        }
        assert_eq!(incidents.newest_first().len(), MOST_INCIDENTS);
        assert_eq!(list(&incidents).last().unwrap().1, 2000);
    }
}
