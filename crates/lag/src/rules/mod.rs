//! Why replicas lag: a table of causes. Each has the signal that reveals it, the evidence that
//! the signal quotes, and the remedies, the best one first.
//!
//! A signal is a pure function of the samples. `explains` is the part of the lag that the
//! evidence accounts for: the part of the bytes behind that the stage holds, times the share of
//! samples in which the process of that stage did what slows it down.

use std::collections::BTreeMap;

use lockstep_service::words::figures::seconds;
use serde::Serialize;

use crate::link::Link;
use crate::links::{links, replica_name};
use crate::node::Role;
use crate::replica::Replica;
use crate::views::Session;
use crate::window::{NodeWindow, Window};

#[cfg(test)]
mod all_clear_tests;
mod anew;
#[cfg(test)]
mod bound_tests;
mod cause;
mod connection;
mod consumer;
mod denied;
mod ended;
mod followed_twice;
mod gone;
mod halted;
mod held;
mod horizon;
mod identifier;
mod keyless;
mod left;
mod lists;
mod lock;
mod logical;
mod machine;
#[cfg(test)]
mod namesake_tests;
#[cfg(test)]
mod overlooked_tests;
mod partial;
mod partitions;
mod paused;
mod primaries;
mod published;
mod receive;
mod refused;
#[cfg(test)]
pub(crate) mod refused_tests;
mod relay;
#[cfg(test)]
mod relay_tests;
#[cfg(test)]
mod remedy_tests;
mod renamed;
mod replay;
mod replica;
#[cfg(test)]
mod replica_tests;
#[cfg(test)]
mod reply_tests;
mod restarted;
mod ring;
#[cfg(test)]
mod ring_tests;
#[cfg(test)]
pub(crate) mod scene;
mod server;
mod setting;
mod spool_full;
mod standing;
mod suspects;
mod synchronised;
mod synchronous;
mod table;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod together_tests;
mod unarchived;
mod unasked;
#[cfg(test)]
mod unasked_tests;
mod unconfirmed;
mod unfed;
#[cfg(test)]
mod unfed_tests;
mod unfilled;
mod unmade;
mod unsuitable;
#[cfg(test)]
mod way_tests;
mod width;

pub use cause::Cause;
pub(crate) use held::LONG_COMMIT_MS;
pub use identifier::identifier;
pub(crate) use paused::{pause, target};
pub(crate) use published::difference_known;
pub(crate) use setting::shown;
pub(crate) use standing::{copied_for, is_copied_by};
pub use synchronised::InitialCopy;
pub(crate) use synchronised::{Copying, copying, initial_copy, is_fresh, open_words};
pub use table::RULES;
pub(crate) use unfed::timeline;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something looks like lag, and is none.
    Note,
    /// There is no lag now, but there will be, or something else suffers.
    Risk,
    Lag,
}

impl Severity {
    /// The severity's name in JSON and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Risk => "risk",
            Self::Lag => "lag",
        }
    }
}

/// A measured figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fact {
    /// The figure's name with its unit: `unreplayed_bytes`.
    pub name: &'static str,
    pub value: f64,
    /// The figure as a phrase.
    pub words: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    /// The node, link or slot, by name.
    pub at: String,
    pub severity: Severity,
    /// The part of the lag that this accounts for, from 0 to 1.
    pub explains: f64,
    /// How far behind, in milliseconds.
    pub lag_ms: f64,
    pub facts: Vec<Fact>,
    /// Processes, queries, slots, settings and so on: `pid`, `query`, `slot`, `setting`. They
    /// fill the gaps of the remedies, and are shown.
    pub names: BTreeMap<&'static str, String>,
}

/// A row of the table.
pub struct Rule {
    pub cause: Cause,
    /// A few words for people. They may have gaps as the remedies have.
    pub title: &'static str,
    /// Finds the cause: one evidence for each place where it holds.
    pub signal: fn(&View<'_>) -> Vec<Evidence>,
    /// What to do, the best first. `{name}` is a gap for one of the evidence's names. A remedy
    /// with a gap that has no name is left out.
    pub remedies: &'static [&'static str],
}

/// A replica whose target was asked, as it is now.
pub(crate) struct ReplicaFound<'v, 'a> {
    /// The name that the node's link has, or would have.
    pub name: String,
    pub node: &'v NodeWindow,
    pub replica: &'v Replica,
    /// None if nothing that was asked has its slot.
    pub link: Option<&'v Link<'a>>,
}

/// What signals look at.
pub struct View<'a> {
    pub window: &'a Window,
    pub links: Vec<Link<'a>>,
}

/// The place of a finding that holds for every slot of a server.
pub fn all_slots(upstream: &str) -> String {
    format!("all slots of {upstream}")
}

impl<'a> View<'a> {
    pub fn new(window: &'a Window) -> Self {
        Self {
            window,
            links: links(window),
        }
    }

    /// Replicas whose targets were asked.
    pub(crate) fn replicas<'v>(&'v self) -> impl Iterator<Item = ReplicaFound<'v, 'a>> {
        let subscribers = self
            .window
            .usable()
            .filter(|it| it.role == Role::Subscriber);
        subscribers.flat_map(move |node| {
            let replicas = node.last().map_or(&[][..], |last| &last.replicas);
            replicas.iter().map(move |replica| {
                let mut links = self.links.iter();
                ReplicaFound {
                    name: replica_name(node, replica),
                    node,
                    replica,
                    link: links.find(|link| {
                        let is_here = link.replica.is_some_and(|it| it.name == node.name);
                        is_here && link.slot.as_ref() == Some(&replica.slot)
                    }),
                }
            })
        })
    }
}

impl Evidence {
    /// Evidence about a link that lags.
    pub(crate) fn of(link: &Link<'_>, explains: f64) -> Self {
        let (lag_ms, lag_max_ms) = link.lag_ms();
        let mut evidence = Self {
            at: link.name.clone(),
            severity: Severity::Lag,
            explains: finite(explains).clamp(0.0, 1.0),
            lag_ms: if link.is_spiky() { lag_max_ms } else { lag_ms },
            facts: Vec::new(),
            names: BTreeMap::new(),
        };
        evidence = evidence
            .name("upstream", link.feeder())
            .name("server", server(link));
        if link.replica.is_some() {
            evidence = evidence.name("node", &link.name);
        }
        for (name, value) in [("slot", &link.slot), ("subscription", &link.subscription)] {
            if let Some(value) = value {
                evidence = evidence.name(name, value);
            }
        }
        evidence
    }

    /// Evidence about a node by itself.
    pub(crate) fn on(node: &NodeWindow, severity: Severity) -> Self {
        Self::about(&node.name, severity)
    }

    /// Evidence about a node, which may not be watched, by its name.
    pub(crate) fn about(name: &str, severity: Severity) -> Self {
        Self {
            at: name.to_owned(),
            severity,
            explains: 0.0,
            lag_ms: 0.0,
            facts: Vec::new(),
            names: BTreeMap::from([("node", name.to_owned())]),
        }
    }

    pub(crate) fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    pub(crate) fn fact(mut self, name: &'static str, value: f64, words: impl Into<String>) -> Self {
        self.facts.push(Fact {
            name,
            value: finite(value),
            words: words.into(),
        });
        self
    }

    pub(crate) fn name(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.names.insert(name, value.into());
        self
    }

    pub(crate) fn setting(self, node: &NodeWindow, name: &'static str) -> Self {
        match node.facts.setting(name) {
            Some(value) => self.name(name, setting::shown(name, value)),
            None => self,
        }
    }

    /// Adds a session that is to blame.
    pub(crate) fn session(self, session: &Session) -> Self {
        let age = session.xact_age_ms.unwrap_or(0.0);
        let user = session.user.as_deref().unwrap_or("?");
        let state = session.state.as_deref().unwrap_or("?");
        self.fact(
            "transaction_age_ms",
            age,
            format!(
                "process {} of user {user}, {state}, in its transaction for {}",
                session.pid,
                seconds(age)
            ),
        )
        .name("pid", session.pid.to_string())
        .name(
            // What ending it costs.
            match session.has_xid() {
                true => "writer_pid",
                false => "reader_pid",
            },
            session.pid.to_string(),
        )
        .name("query", shortened(&session.query))
    }
}

impl Rule {
    /// The remedies whose gaps the evidence can fill.
    pub fn remedies(&self, evidence: &Evidence) -> Vec<String> {
        let mut names = evidence.names.clone();
        for name in [
            "subscription",
            "stuck_subscription",
            "disabled_subscription",
            "failed_subscription",
            "publication",
            "plugin",
        ] {
            if let Some(name) = names.get_mut(name) {
                *name = identifier(name);
            }
        }
        // They stand inside quotes. No server allows such a slot, but one may claim it.
        for name in [
            "slot",
            "absent_slot",
            "missing_slot",
            "unowned_slot",
            "spare",
            "gid",
        ] {
            if let Some(name) = names.get_mut(name) {
                *name = name.replace('\'', "''");
            }
        }
        let filled = self.remedies.iter().map(|text| fill(text, &names));
        filled.flatten().collect()
    }
}

/// The server of a link's replica, as a remedy says where SQL is to be run.
fn server(link: &Link<'_>) -> String {
    match link.replica {
        Some(node) => in_database(node, &node.facts.database),
        None => "the subscriber".to_owned(),
    }
}

/// A database of a server, as a remedy says where SQL is to be run.
pub(crate) fn in_database(node: &NodeWindow, database: &str) -> String {
    match database.is_empty() {
        true => node.name.clone(),
        false => format!("{}, in database {}", node.name, identifier(database)),
    }
}

/// Fills the gaps with names, which may look like gaps themselves; None if a name is missing.
pub(crate) fn fill(text: &str, names: &BTreeMap<&'static str, String>) -> Option<String> {
    let mut pieces = text.split('{');
    let mut filled = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once('}')?;
        filled.push_str(names.get(name)?);
        filled.push_str(rest);
    }
    Some(filled)
}

/// Longest piece of a query that is shown, in characters.
const MOST_QUERY: usize = 120;

fn shortened(query: &str) -> String {
    let line = query.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MOST_QUERY) {
        Some((end, _)) => format!("{} …", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// A server may report any value; NaN and infinity are not shown.
fn finite(value: f64) -> f64 {
    match value.is_nan() {
        true => 0.0,
        false => value.clamp(f64::MIN, f64::MAX),
    }
}
