//! What is known now, in the form in which it is shown and sent.

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_service::clock::unix_ms;
use lockstep_wire::Lsn;
use serde::Serialize;

use super::Settings;
use crate::diagnosis::{Diagnosis, LinkReport, kind_words};
use crate::link::{BehindPrimary, Link};
use crate::links::links as find_links;
use crate::node::{Node, Role};
use crate::nodes::Watched;
use crate::parallel_report::ParallelReport;
use crate::point::{Bound, Point};
use crate::point::{LinkKind, Stage};
use crate::relay::Relay;
use crate::replica::ReplicaReport;
use crate::rules::{Cause, Severity};
use crate::sample::Sample;
use crate::views::{Conflicts, Extension, Slot, WalFolder};
use crate::window::{NodeWindow, Window};

#[derive(Debug, Clone, Serialize)]
pub struct MonitorState {
    /// The name of the cluster, if the nodes file names clusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Grows by one with each state; 0 before anything is known.
    pub number: u64,
    /// Milliseconds since 1970, by our clock.
    pub at_ms: i64,
    /// Seconds that the diagnosis looks back.
    pub window_s: f64,
    /// Seconds between samples.
    pub every_s: f64,
    /// Commits are made to measure when they become visible.
    pub heartbeat: bool,
    /// Causes over the whole window, ranked, with evidence and remedies.
    pub diagnosis: Diagnosis,
    /// Nodes in the order in which they were named.
    pub nodes: Vec<NodeState>,
    pub links: Vec<LinkState>,
}

/// The most important finding about a node or link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Suspect {
    pub cause: Cause,
    /// The cause in words.
    pub title: String,
    pub severity: Severity,
}

#[derive(Debug, Clone, Serialize)]
pub struct NodeState {
    pub name: String,
    pub role: Role,
    /// `host:port/database`.
    pub address: String,
    /// `server_version_num`; 0 if unknown, and for a relay.
    pub version: u32,
    /// Version of a relay; None for a server.
    pub relay_version: Option<String>,
    /// The node answers and is what it was said to be.
    pub usable: bool,
    /// The node's troubles in words.
    pub troubles: Vec<String>,
    /// Milliseconds since the newest sample, also of a node that no longer answers. None before
    /// the first sample.
    pub sample_age_ms: Option<f64>,
    pub round_trip_ms: Option<f64>,
    /// The end of WAL that others can get from it.
    pub end_lsn: Option<Lsn>,
    /// The position up to which a new query sees changes.
    pub visible_lsn: Option<Lsn>,
    /// Bytes of WAL that it has written or received a second, over the window.
    pub wal_bytes_per_s: Option<f64>,
    /// Sessions with a query that runs.
    pub active_clients: u64,
    /// Sessions that wait for a synchronous replica.
    pub awaiting_sync: u64,
    /// Time since the oldest of their statements began.
    pub awaiting_sync_ms: Option<f64>,
    /// Milliseconds since the oldest open transaction began; None if none is open.
    pub oldest_transaction_ms: Option<f64>,
    /// Milliseconds since the oldest prepared transaction was prepared; None if there is none.
    pub oldest_prepared_ms: Option<f64>,
    /// Failures to archive a segment since the statistics began.
    pub archive_failures: u64,
    /// Milliseconds since a segment was archived; None if none was.
    pub archived_age_ms: Option<f64>,
    /// None if the role may not see it.
    pub wal_folder: Option<WalFolder>,
    /// The setting in bytes: up to this size `pg_wal` may grow between checkpoints.
    pub max_wal_size_bytes: Option<u64>,
    /// The node's `cluster_name`, also if it no longer answers; None if it has none.
    pub cluster_name: Option<String>,
    pub slots: Vec<Slot>,
    /// Queries cancelled by replay since the statistics began.
    pub conflicts: Conflicts,
    pub extension: Option<Extension>,
    /// Replay by several processes, on a standby whose extension tells it.
    pub parallel_replay: Option<ParallelReport>,
    /// Groups and slots of a relay.
    pub relay: Option<Relay>,
    pub suspect: Option<Suspect>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StageState {
    /// The stage, as in [`Stage::name`].
    pub name: &'static str,
    /// Bytes that are in this stage.
    pub bytes: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct LinkState {
    /// Unique, and the same as long as the link exists: `upstream/replica`.
    pub id: String,
    pub upstream: String,
    pub replica: String,
    pub kind: LinkKind,
    pub slot: Option<String>,
    pub application_name: Option<String>,
    /// The `lockstep replica` that the link goes to, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lockstep_replica: Option<ReplicaReport>,
    /// The replica lags, according to the diagnosis.
    pub behind: bool,
    /// Milliseconds behind at the last sample.
    pub lag_ms: f64,
    #[serde(flatten)]
    pub bound: Bound,
    /// The longest time behind in the window, in milliseconds.
    pub lag_max_ms: f64,
    /// Bytes behind at the last sample.
    pub lag_bytes: u64,
    /// How old its data is now, from end to end, if its upstream is another replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_primary: Option<BehindPrimary>,
    /// Where those bytes are. The last stage of a logical link comes after visibility, so its
    /// bytes are counted besides.
    pub stages: [StageState; 4],
    /// End of the upstream's WAL.
    pub end_lsn: Option<Lsn>,
    pub sent_lsn: Option<Lsn>,
    /// Received by the replica.
    pub write_lsn: Option<Lsn>,
    pub flush_lsn: Option<Lsn>,
    /// Replayed, or applied by a subscriber.
    pub replay_lsn: Option<Lsn>,
    /// Milliseconds from commit to visible, if the heartbeat is on.
    pub visible_ms: Option<f64>,
    pub suspect: Option<Suspect>,
}

impl LinkState {
    /// What kind of replica it goes to, for people.
    pub fn kind_words(&self) -> &'static str {
        kind_words(self.kind, self.lockstep_replica.as_ref())
    }
}

impl MonitorState {
    /// Number of replicas: links, and named nodes that nothing leads to.
    pub fn replicas(&self) -> usize {
        let named = |node: &&NodeState| {
            let is_of = |link: &LinkState| {
                let rest = link.replica.strip_prefix(&node.name);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
            };
            [Role::Standby, Role::Subscriber].contains(&node.role) && !self.links.iter().any(is_of)
        };
        self.links.len() + self.nodes.iter().filter(named).count()
    }

    /// The state before the first answer.
    pub(super) fn unknown(watched: &Watched, settings: &Settings) -> Self {
        let nodes = &watched.nodes;
        let mut window = Window::new(nodes.iter().map(NodeWindow::of).collect());
        window.membership.clone_from(&watched.membership);
        let diagnosis = crate::diagnosis::diagnose(&window);
        Self {
            cluster: watched.cluster.clone(),
            number: 0,
            at_ms: unix_ms(),
            window_s: settings.window.as_secs_f64(),
            every_s: settings.every.as_secs_f64(),
            heartbeat: settings.heartbeat,
            nodes: self::nodes(nodes, &window, &diagnosis),
            links: Vec::new(),
            diagnosis,
        }
    }
}

/// Nodes as they are in the newest samples.
pub(super) fn nodes(nodes: &[Node], window: &Window, diagnosis: &Diagnosis) -> Vec<NodeState> {
    nodes
        .iter()
        .zip(&window.nodes)
        .map(|(node, seen)| node_state(node, seen, diagnosis))
        .collect()
}

/// Adds how old the newest samples are; `now` is on the window's clock.
pub(super) fn note_ages(nodes: &mut [NodeState], window: &Window, now: Duration) {
    for (node, seen) in nodes.iter_mut().zip(&window.nodes) {
        let age = seen.last().map(|last| now.saturating_sub(last.at));
        node.sample_age_ms = age.map(|age| age.as_secs_f64() * 1000.0);
    }
}

fn node_state(node: &Node, seen: &NodeWindow, diagnosis: &Diagnosis) -> NodeState {
    let usable = seen.is_usable();
    // The last answers of a lost node are not shown, because they may no longer be true.
    let last = seen.last().filter(|_| usable);
    let seconds = seen.length().as_secs_f64();
    let written = seen.growth(|sample| sample.end().map(|end| u64::from(end) as f64));
    NodeState {
        name: node.name.clone(),
        role: node.role,
        address: node.address(),
        version: seen.facts.version,
        relay_version: seen.facts.relay.clone(),
        usable,
        troubles: seen.troubles.iter().map(ToString::to_string).collect(),
        sample_age_ms: None,
        round_trip_ms: last.map(|last| last.round_trip.as_secs_f64() * 1000.0),
        end_lsn: last.and_then(Sample::end),
        visible_lsn: last.and_then(Sample::visible),
        wal_bytes_per_s: (usable && seconds > 0.0 && node.role != Role::Subscriber)
            .then(|| written / seconds),
        active_clients: last.map_or(0, |last| last.clients.active),
        awaiting_sync: last.map_or(0, |last| last.clients.awaiting_sync),
        awaiting_sync_ms: last.and_then(|last| last.clients.awaiting_sync_ms),
        oldest_transaction_ms: last.and_then(|last| {
            let sessions = last.clients.oldest.iter();
            sessions
                .filter_map(|session| session.xact_age_ms)
                .reduce(f64::max)
        }),
        oldest_prepared_ms: last.and_then(|last| {
            let prepared = last.prepared.iter();
            prepared.filter_map(|one| one.age_ms).reduce(f64::max)
        }),
        archive_failures: last.map_or(0, |last| last.archiver.failed_count),
        archived_age_ms: last.and_then(|last| last.archiver.archived_age_ms),
        wal_folder: last.and_then(|last| last.wal_folder),
        max_wal_size_bytes: max_wal_size(seen),
        cluster_name: seen
            .facts
            .setting("cluster_name")
            .filter(|name| !name.is_empty())
            .map(str::to_owned),
        slots: last.map(|last| last.slots.clone()).unwrap_or_default(),
        conflicts: last.map(|last| last.conflicts).unwrap_or_default(),
        extension: last.and_then(|last| last.extension.clone()),
        parallel_replay: last.and_then(|_| ParallelReport::of(seen)),
        relay: last.and_then(|last| last.relay.clone()),
        suspect: suspect(diagnosis, &node.name),
    }
}

/// The setting is in megabytes.
fn max_wal_size(seen: &NodeWindow) -> Option<u64> {
    let megabytes: u64 = seen.facts.setting("max_wal_size")?.parse().ok()?;
    megabytes.checked_mul(1 << 20)
}

fn suspect(diagnosis: &Diagnosis, at: &str) -> Option<Suspect> {
    let mut findings = diagnosis.findings.iter();
    let found = findings.find(|finding| finding.at == at && !finding.is_aside())?;
    Some(Suspect {
        cause: found.cause,
        title: found.title.clone(),
        severity: found.severity,
    })
}

/// Links as they are at the newest points.
pub(super) fn links(
    window: &Window,
    diagnosis: &Diagnosis,
    beats: &BTreeMap<String, Option<f64>>,
) -> Vec<LinkState> {
    let links = find_links(window);
    let with_reports = links.iter().zip(&diagnosis.links);
    with_reports
        .map(|(link, report)| LinkState {
            behind_primary: window
                .primary()
                .and_then(|primary| link.behind_primary(primary, &links, link.points.last())),
            ..link_state(link, report, diagnosis, beats)
        })
        .collect()
}

fn link_state(
    link: &Link<'_>,
    report: &LinkReport,
    diagnosis: &Diagnosis,
    beats: &BTreeMap<String, Option<f64>>,
) -> LinkState {
    let last = link.points.last();
    let of = |part: fn(&Point) -> Lsn| last.map(part);
    let late = last.filter(|_| !link.has_no_lag());
    let bytes = late.map_or(0, Point::bytes);
    let bound = late
        .filter(|_| report.behind)
        .map(Point::bound)
        .unwrap_or_default();
    let lag = late.map_or(Duration::ZERO, |point| point.lag(bound.lag_is_least));
    LinkState {
        id: format!("{}/{}", link.upstream.name, link.name),
        upstream: link.upstream.name.clone(),
        replica: link.name.clone(),
        kind: link.kind,
        slot: link.slot.clone(),
        application_name: link.application_name.clone(),
        lockstep_replica: report.lockstep_replica.clone(),
        behind: report.behind,
        lag_ms: lag.as_secs_f64() * 1000.0,
        bound,
        lag_max_ms: report.lag_max_ms,
        lag_bytes: bytes,
        behind_primary: None,
        stages: Stage::ALL.map(|stage| StageState {
            name: stage.name(link.kind),
            bytes: late.map_or(0, |point| point.stage(link.kind, stage)),
        }),
        end_lsn: of(|point| point.end),
        sent_lsn: of(|point| point.sent),
        write_lsn: of(|point| point.write),
        flush_lsn: of(|point| point.flush),
        replay_lsn: of(|point| point.replay),
        visible_ms: beats.get(&link.name).copied().flatten(),
        suspect: suspect(diagnosis, &link.name),
    }
}

#[cfg(test)]
impl LinkState {
    pub(super) fn named(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            upstream: "primary".to_owned(),
            replica: id.to_owned(),
            kind: LinkKind::Physical,
            slot: None,
            application_name: None,
            lockstep_replica: None,
            behind: false,
            lag_ms: 1.0,
            bound: Bound::default(),
            lag_max_ms: 1.0,
            lag_bytes: 1,
            behind_primary: None,
            stages: Stage::ALL.map(|stage| StageState {
                name: stage.name(LinkKind::Physical),
                bytes: 0,
            }),
            end_lsn: None,
            sent_lsn: None,
            write_lsn: None,
            flush_lsn: None,
            replay_lsn: None,
            visible_ms: None,
            suspect: None,
        }
    }
}
