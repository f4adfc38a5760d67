//! What is wrong, ranked: the evidence of the rules, in order, and nothing else.

use std::collections::BTreeMap;

use lockstep_service::words::figures::counted;
use serde::Serialize;

use crate::failover::{Candidate, candidates};
use crate::link::{BehindPrimary, LAG_MS, Link};
use crate::links::group_name;
use crate::node::{Role, Trouble};
use crate::point::Bound;
use crate::point::{LinkKind, Stage};
use crate::replica::ReplicaReport;
use crate::rules::{
    Cause, Fact, InitialCopy, RULES, Severity, View, all_slots, fill, initial_copy,
};
use crate::sample::Identity;
use crate::states::CopyPhase;
use crate::window::{NodeWindow, Window};

pub mod checks;
pub mod twice;

use checks::{Answer, CheckReport, check};

#[derive(Debug, Clone, Serialize)]
pub struct Diagnosis {
    /// Each check was done and came out well: no lag, no risk, every node answered, nothing was hidden.
    pub healthy: bool,
    /// What cannot be seen of nodes that answer, so that nobody knows whether all is well.
    pub unknown: Vec<String>,
    pub nodes: Vec<NodeReport>,
    pub links: Vec<LinkReport>,
    /// Causes, the most important first; notes last.
    pub findings: Vec<Finding>,
    /// All that was checked.
    pub checks: Vec<CheckReport>,
    /// Standbys that could be promoted, the first choice first.
    pub failover: Vec<Candidate>,
    /// Subscriptions of which no server that answers here is the publisher.
    #[serde(skip)]
    pub unlinked: Vec<Unlinked>,
}

/// A subscription without a publisher here: it may be one of another cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlinked {
    /// The subscriber's name.
    pub node: String,
    pub subscription: String,
    /// What is said of it, among what is unknown.
    pub words: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct NodeReport {
    pub name: String,
    /// Host, port and database.
    pub address: String,
    pub role: Role,
    /// The node answered and is what it was said to be.
    pub usable: bool,
    /// `server_version_num`; 0 if unknown, and for a relay.
    pub version: u32,
    /// What no two servers share: system identifier, start and port. None if the node does not tell.
    #[serde(skip)]
    pub identity: Option<Identity>,
    /// The database that was asked; empty if it is not known.
    #[serde(skip)]
    pub database: String,
    /// Version of a relay; None for a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay_version: Option<String>,
    pub samples: usize,
    pub troubles: Vec<Trouble>,
}

/// How WAL gets to a replica, and how far behind the replica is.
#[derive(Debug, Clone, Serialize)]
pub struct LinkReport {
    pub upstream: String,
    /// The server that a standby streams from, if that one was not asked: `upstream` is then only what it is
    /// compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams_from: Option<String>,
    pub replica: String,
    /// The node that it goes to and the subscription, if that was asked.
    #[serde(skip)]
    pub subscription: Option<(String, String)>,
    pub kind: LinkKind,
    pub slot: Option<String>,
    /// The `lockstep replica` that the link goes to, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lockstep_replica: Option<ReplicaReport>,
    /// The copy of a subscription's tables, if it is not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initial_copy: Option<InitialCopy>,
    pub behind: bool,
    /// Milliseconds behind: the median over time.
    pub lag_ms: f64,
    #[serde(flatten)]
    pub bound: Bound,
    /// The most that it can be in the last sample, where commits tell that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_most_ms: Option<f64>,
    /// The longest time behind, in milliseconds.
    pub lag_max_ms: f64,
    /// The median over time.
    pub lag_bytes: f64,
    /// How far it is behind the primary, if its upstream is another replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind_primary: Option<BehindPrimary>,
    /// Bytes between the positions that begin and end each stage, on average.
    pub stage_bytes: BTreeMap<&'static str, f64>,
}

/// A cause, and the node or link that it was found at.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    pub cause: Cause,
    /// The cause in words.
    pub title: String,
    pub severity: Severity,
    /// The node, link or slot, by name.
    pub at: String,
    /// The part of the lag at `at` that the cause accounts for, from 0 to 1.
    pub explains: f64,
    /// How far behind `at` is, in milliseconds.
    pub lag_ms: f64,
    /// The figures that were measured.
    pub evidence: Vec<Fact>,
    /// Processes, queries, slots and settings that the remedies name.
    pub names: BTreeMap<&'static str, String>,
    /// What to do, the best first.
    pub remedies: Vec<String>,
}

impl Finding {
    /// True of what is worth a line and no more: a subscription that commits asynchronously, as all do by
    /// default, while no commit waits for it.
    pub fn is_aside(&self) -> bool {
        self.severity == Severity::Note && self.cause == Cause::AsynchronousApplyCommit
    }
}

impl LinkReport {
    /// What kind of replica it goes to, for people.
    pub fn kind_words(&self) -> &'static str {
        kind_words(self.kind, self.lockstep_replica.as_ref())
    }
}

/// What kind of replica a link goes to, for people.
pub(crate) fn kind_words(kind: LinkKind, replica: Option<&ReplicaReport>) -> &'static str {
    match replica {
        Some(_) => "replica",
        None => kind.name(),
    }
}

impl Diagnosis {
    /// Takes an all-clear back that rests on too few samples of a node. For who watches once.
    pub fn watched_enough(mut self) -> Self {
        let few = |node: &&NodeReport| node.usable && node.samples < LEAST_SAMPLES;
        let words = self.nodes.iter().filter(few).map(|node| {
            format!(
                "{} has given only {}, too few to see a lag that comes and goes: watch it for longer",
                node.name,
                counted(node.samples as u64, "sample")
            )
        });
        let words: Vec<_> = words.collect();
        self.unknown.extend(words);
        self.judge();
        self
    }

    /// Says whether all is well, from all else that is said.
    fn judge(&mut self) {
        let is_known = self.unknown.is_empty() && self.nodes.iter().all(|node| node.usable);
        let is_well = self.checks.iter().all(|one| one.answer == Answer::Well);
        self.healthy = is_known && is_well && !self.has_lag() && !self.has_risk();
    }

    /// Something lags.
    pub fn has_lag(&self) -> bool {
        self.has(Severity::Lag) || self.links.iter().any(|link| link.behind)
    }

    /// Something soon will lag, or suffers already.
    pub fn has_risk(&self) -> bool {
        self.has(Severity::Risk)
    }

    fn has(&self, severity: Severity) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|finding| finding.severity == severity)
    }

    /// The first cause of the lag of this link.
    pub fn cause_of(&self, upstream: &str, replica: &str, kind: LinkKind) -> Option<&Finding> {
        let everywhere = (kind == LinkKind::Logical).then(|| all_slots(upstream));
        let mut findings = self.findings.iter();
        findings.find(|found| {
            let is_here = found.at == replica || Some(&found.at) == everywhere.as_ref();
            found.severity == Severity::Lag && is_here
        })
    }

    /// Replicas that lag, the one with the longest lag first, and why, if that is known.
    pub fn lagging(&self) -> Vec<(&LinkReport, Option<&Finding>)> {
        let mut behind: Vec<&LinkReport> = self.links.iter().filter(|link| link.behind).collect();
        behind.sort_by(|a, b| b.lag_ms.total_cmp(&a.lag_ms));
        let why = |link: &LinkReport| self.cause_of(&link.upstream, &link.replica, link.kind);
        behind.into_iter().map(|link| (link, why(link))).collect()
    }

    pub fn first(&self) -> Option<Cause> {
        self.findings.first().map(|finding| finding.cause)
    }
}

/// Applies every rule: the findings, ranked.
fn findings(view: &View<'_>) -> Vec<Finding> {
    let found = RULES.iter().flat_map(|rule| {
        (rule.signal)(view).into_iter().map(|evidence| Finding {
            cause: rule.cause,
            title: fill(rule.title, &evidence.names).unwrap_or_else(|| rule.title.to_owned()),
            severity: evidence.severity,
            at: evidence.at.clone(),
            explains: evidence.explains,
            lag_ms: evidence.lag_ms,
            remedies: rule.remedies(&evidence),
            evidence: evidence.facts,
            names: evidence.names,
        })
    });
    let mut findings: Vec<Finding> = found.collect();
    rank_looks(&mut findings);
    // The sort is stable: findings that are equal stay in the order of the table.
    findings.sort_by(|a, b| {
        b.severity
            .cmp(&a.severity)
            .then(b.explains.total_cmp(&a.explains))
            .then(b.lag_ms.total_cmp(&a.lag_ms))
    });
    hide_implied(&mut findings);
    findings
}

/// What is wrong, and how far each replica is behind.
pub fn diagnose(window: &Window) -> Diagnosis {
    let view = View::new(window);
    let findings = findings(&view);
    let links: Vec<LinkReport> = view
        .links
        .iter()
        .map(|link| report(link, &view.links, window.primary(), &findings))
        .collect();
    let nodes: Vec<NodeReport> = window
        .nodes
        .iter()
        .map(|node| NodeReport {
            name: node.name.clone(),
            address: node.address.clone(),
            role: node.role,
            usable: node.is_usable(),
            version: node.facts.version,
            identity: node.facts.identity(),
            database: node.facts.database.clone(),
            relay_version: node.facts.relay.clone(),
            samples: node.samples.len(),
            troubles: node.troubles.clone(),
        })
        .collect();
    let checks = check(&view, &links, &findings);
    let failover = candidates(&view, &|at| {
        let findings = findings.iter();
        let found = findings.filter(|it| it.at == at && it.severity != Severity::Note);
        found.map(|it| (it.cause, it.title.clone())).collect()
    });
    let mut diagnosis = Diagnosis {
        healthy: false,
        unknown: unknown(&view, &links),
        nodes,
        links,
        findings,
        checks,
        failover,
        unlinked: subscribers(&view)
            .flat_map(|node| unlinked(&view, node))
            .collect(),
    };
    add_undone(&mut diagnosis);
    diagnosis.judge();
    diagnosis
}

fn subscribers<'v>(view: &'v View<'_>) -> impl Iterator<Item = &'v NodeWindow> {
    let nodes = view.window.usable();
    nodes.filter(|node| node.role == Role::Subscriber)
}

/// Adds the checks that could not be done to what is unknown, unless that is said already: of a node that
/// does not answer or hides something, and of a replica that lags.
fn add_undone(diagnosis: &mut Diagnosis) {
    let is_said = |one: &CheckReport| {
        let mut nodes = diagnosis.nodes.iter();
        let lost = nodes.any(|node| node.name == one.at && !node.usable);
        let behind = diagnosis
            .links
            .iter()
            .any(|link| link.replica == one.at && link.behind);
        lost || behind || diagnosis.unknown.iter().any(|said| said.contains(&one.at))
    };
    let undone = diagnosis
        .checks
        .iter()
        .filter(|one| one.answer == Answer::NotKnown);
    let undone = undone.filter(|one| !is_said(one));
    let undone: Vec<String> = undone
        .map(|one| format!("{}: {}", one.at, one.words))
        .collect();
    for words in undone {
        if !diagnosis.unknown.contains(&words) {
            diagnosis.unknown.push(words);
        }
    }
}

/// Samples of a node from which it counts as watched: a lag that comes and goes is in some of them.
const LEAST_SAMPLES: usize = 3;

/// What nodes that answer do not show, and replicas that nothing is known about.
fn unknown(view: &View<'_>, links: &[LinkReport]) -> Vec<String> {
    let membership = view.window.membership.as_ref();
    let mut unknown = membership.map_or_else(Vec::new, |it| it.unknown.clone());
    for node in view.window.usable() {
        let hidden = node.troubles.iter().filter_map(Trouble::hides);
        unknown.extend(hidden.map(|what| format!("{} does not show {what}", node.name)));
        if node.role == Role::Standby && !is_linked(view, node, None) {
            unknown.push(no_upstream(&node.name));
        }
        if node.role == Role::Subscriber {
            unknown.extend(detached(node));
            unknown.extend(unlinked(view, node).into_iter().map(|it| it.words));
        }
        unknown.extend(unlinked_groups(view, node));
    }
    unknown.extend(view.replicas().filter_map(|found| {
        // The source has nothing of one that has just begun.
        let is_early = found.replica.phase == CopyPhase::Preparing;
        // One that is promoted has none any more, and is not to have one.
        let has_slot = !is_early && !found.replica.is_promoted();
        (found.link.is_none() && has_slot).then(|| no_upstream(&found.name))
    }));
    let blind = view.links.iter().filter(|link| link.points.is_empty());
    unknown.extend(blind.map(unseen));
    let is_open =
        |link: &&LinkReport| link.behind && link.bound.lag_is_least && link.lag_ms < LAG_MS;
    unknown.extend(links.iter().filter(is_open).map(|link| {
        let (upstream, replica) = (&link.upstream, &link.replica);
        format!("{upstream} does not show for how long {replica} has been behind")
    }));
    unknown
}

fn no_upstream(replica: &str) -> String {
    format!("nothing that answers here is the upstream of {replica}")
}

/// Whether a link goes to this node, or to this subscription of it.
fn is_linked(view: &View<'_>, node: &NodeWindow, subscription: Option<&str>) -> bool {
    view.links.iter().any(|link| {
        let is_its = link
            .replica
            .is_some_and(|replica| replica.name == node.name);
        is_its && link.subscription.as_deref() == subscription
    })
}

/// Groups of a relay that stream from a primary that is none of those that answer here.
fn unlinked_groups(view: &View<'_>, node: &NodeWindow) -> Vec<String> {
    let relay = node.last().and_then(|last| last.relay.as_ref());
    let groups = relay.into_iter().flat_map(|relay| &relay.groups);
    let names = groups
        .filter(|group| group.is_streaming())
        .map(|group| group_name(node, &group.name));
    let is_linked = |name: &String| {
        let mut links = view.links.iter().filter(|link| link.is_to_relay());
        links.any(|link| link.name == *name)
    };
    names
        .filter(|name| !is_linked(name))
        .map(|name| no_upstream(&name))
        .collect()
}

/// Subscriptions of a node that have no slot, in words.
fn detached(node: &NodeWindow) -> Option<String> {
    let subscriptions = node.last().map(|sample| sample.subscriptions.iter());
    let detached = subscriptions?.filter(|it| it.slot_name.is_none());
    let detached: Vec<&str> = detached.map(|it| it.name.as_str()).collect();
    let number = counted(detached.len() as u64, "subscription");
    let names = detached.join(", ");
    (!detached.is_empty()).then(|| {
        format!(
            "nothing comes to {}: {number} without a slot ({names})",
            node.name
        )
    })
}

/// Subscriptions of a node that have a slot on no server that answers here.
fn unlinked(view: &View<'_>, node: &NodeWindow) -> Vec<Unlinked> {
    let subscriptions = node.last().map(|sample| sample.subscriptions.as_slice());
    let subscriptions = subscriptions.unwrap_or_default();
    let mut unlinked = Vec::new();
    for subscription in subscriptions {
        let Some(slot) = &subscription.slot_name else {
            continue;
        };
        if is_linked(view, node, Some(&subscription.name)) {
            continue;
        }
        let words = no_upstream(&format!("{} ({})", node.name, subscription.name));
        // Its name is all that another one may share with it.
        let has_namesake = |other: &&NodeWindow| {
            let slot = other.last().and_then(|last| last.slot(slot));
            other.role != Role::Subscriber && slot.is_some_and(|slot| !slot.synced)
        };
        let publisher = node
            .last()
            .and_then(|last| last.background.publishers.get(&subscription.name));
        let words = match view.window.usable().find(has_namesake) {
            Some(other) => {
                let connects = match publisher.map(|publisher| &publisher.address) {
                    Some((host, port)) => {
                        format!("its subconninfo names {host}:{port}: name that server, too")
                    }
                    None => "as a superuser, SELECT subname, subconninfo FROM pg_subscription says where it \
                             connects to"
                        .to_owned(),
                };
                format!(
                    "{words} for certain: {} has a slot {slot}, and so may another server; {connects}",
                    other.name
                )
            }
            None => words,
        };
        unlinked.push(Unlinked {
            node: node.name.clone(),
            subscription: subscription.name.clone(),
            words,
        });
    }
    unlinked
}

/// Why nothing is known of how far a replica is.
fn unseen(link: &Link<'_>) -> String {
    let (name, upstream) = (&link.name, &link.upstream.name);
    if link.is_archived() {
        return format!(
            "how far the archive of {name} is: {upstream} does not tell, it has archived nothing since its \
             statistics began"
        );
    }
    match link.replies_freely() {
        true => {
            format!("{name} has not replied in this window: {upstream} does not show how far it is")
        }
        false => format!("{upstream} does not show how far {name} is"),
    }
}

/// Causes, and what each may look like at the same place: while a large transaction is decoded its
/// consumer waits for data, as behind a slow network.
const LOOKS: [(Cause, Cause); 1] = [(Cause::GiantTransaction, Cause::SlowNetwork)];

/// Ranks what a cause may look like behind it.
fn rank_looks(findings: &mut [Finding]) {
    for (cause, look) in LOOKS {
        let causes = findings.iter().filter(|finding| finding.cause == cause);
        let places: Vec<(String, f64)> = causes
            .map(|finding| (finding.at.clone(), finding.explains))
            .collect();
        for finding in findings.iter_mut().filter(|finding| finding.cause == look) {
            let real = places.iter().find(|(at, _)| *at == finding.at);
            let most = real.map_or(1.0, |(_, explains)| explains * 0.9);
            finding.explains = finding.explains.min(most);
        }
    }
}

/// Causes, and what each always brings with it at the same place.
const IMPLIED: [(Cause, Cause); 60] = [
    (Cause::TableMissing, Cause::ApplyStopped),
    (Cause::ValueMissing, Cause::ApplyStopped),
    (Cause::NoFreeWorker, Cause::SubscriptionRefused),
    (Cause::NoUpstream, Cause::NotStreaming),
    (Cause::OwnerRefused, Cause::SubscriptionRefused),
    (Cause::OwnerRefused, Cause::ApplyStopped),
    (Cause::ColumnListsDiffer, Cause::ApplyStopped),
    (Cause::SlotTaken, Cause::NotStreaming),
    (Cause::SlotTaken, Cause::SubscriptionRefused),
    (Cause::SlotTaken, Cause::ApplyStopped),
    (Cause::SlotMissing, Cause::NotStreaming),
    (Cause::WalRemoved, Cause::NotStreaming),
    (Cause::UpstreamElsewhere, Cause::NotStreaming),
    (Cause::UpstreamElsewhere, Cause::ReceiverHalted),
    (Cause::TimelineDiverged, Cause::NotStreaming),
    (Cause::RoleRefused, Cause::NotStreaming),
    (Cause::NoFreeWalsender, Cause::NotStreaming),
    (Cause::RestoreSlow, Cause::NotStreaming),
    (Cause::RestoreSlow, Cause::ReplayAtCoreLimit),
    (Cause::RestoreFails, Cause::ReplayAtCoreLimit),
    (Cause::SubscriptionSlotMissing, Cause::SubscriptionRefused),
    (Cause::SubscriptionSlotMissing, Cause::ApplyStopped),
    (Cause::SlotLost, Cause::SubscriptionRefused),
    (Cause::SlotLost, Cause::ApplyStopped),
    (Cause::PublicationMissing, Cause::SubscriptionRefused),
    (Cause::PublicationMissing, Cause::ApplyStopped),
    (Cause::ColumnsMissing, Cause::ApplyStopped),
    (Cause::NoFreeWorker, Cause::ApplyStopped),
    (Cause::NoFreeWorker, Cause::InitialSyncFails),
    (Cause::NoFreeWalsender, Cause::SubscriptionRefused),
    (Cause::NoFreeWalsender, Cause::ApplyStopped),
    (Cause::SubscriptionRefused, Cause::ApplyStopped),
    (Cause::ApplyBlocked, Cause::SlowConsumer),
    (Cause::ConfirmsNothing, Cause::SlowConsumer),
    (Cause::ConfirmsNothing, Cause::OtherDatabases),
    (Cause::ConfirmsNothing, Cause::SlowNetwork),
    (Cause::GiantTransaction, Cause::SpillToDisk),
    (Cause::MissingIndex, Cause::SlowConsumer),
    (Cause::RelayHalted, Cause::SlowConsumer),
    (Cause::WalsendersEnded, Cause::ConnectionLost),
    (Cause::ConnectionLost, Cause::NotStreaming),
    (Cause::ConnectionLost, Cause::UpstreamElsewhere),
    (Cause::ConnectionLost, Cause::SubscriptionRefused),
    (Cause::ConnectionLost, Cause::ApplyStopped),
    (Cause::TableRenamed, Cause::ApplyStopped),
    (Cause::InitialSyncBlocked, Cause::InitialSyncFails),
    (Cause::RoleRefused, Cause::SubscriptionRefused),
    (Cause::SlotUnsuitable, Cause::SubscriptionRefused),
    (Cause::SlotUnsuitable, Cause::ApplyStopped),
    (Cause::PartitionRootDiffers, Cause::ApplyStopped),
    (Cause::SlotLost, Cause::SlotUnsuitable),
    (Cause::OwnerLacksRights, Cause::ApplyStopped),
    (Cause::ProcessHalted, Cause::ReceiverHalted),
    (Cause::ProcessHalted, Cause::NotStreaming),
    (Cause::ProcessHalted, Cause::ApplyStopped),
    (Cause::ProcessHalted, Cause::SubscriptionRefused),
    (Cause::ProcessHalted, Cause::SlowNetwork),
    (Cause::ProcessHalted, Cause::SlowDecoding),
    (Cause::ProcessHalted, Cause::SlowConsumer),
    (Cause::ProcessHalted, Cause::OtherDatabases),
];

/// Hides findings that say nothing more than another one.
fn hide_implied(findings: &mut Vec<Finding>) {
    for (cause, implied) in IMPLIED {
        let places: Vec<String> = findings
            .iter()
            .filter(|finding| finding.cause == cause)
            .map(|finding| finding.at.clone())
            .collect();
        // One that somebody has disabled goes on only if somebody enables it, whatever else is wrong.
        let is_own = |finding: &Finding| {
            let names = ["disabled_subscription", "failed_subscription", "taken_slot"];
            let mut names = names.iter();
            cause != Cause::SlotLost && names.any(|name| finding.names.contains_key(name))
        };
        findings.retain(|it| it.cause != implied || !places.contains(&it.at) || is_own(it));
    }
}

fn report(
    link: &Link<'_>,
    links: &[Link<'_>],
    primary: Option<&NodeWindow>,
    findings: &[Finding],
) -> LinkReport {
    let false_lag = findings
        .iter()
        .any(|finding| finding.at == link.name && finding.cause == Cause::OtherDatabases);
    let (lag_ms, lag_max_ms) = link.lag_ms();
    let has_no_lag = link.has_no_lag();
    let bound = match link.points.is_empty() && !has_no_lag {
        true => Bound::LEAST,
        false if has_no_lag => Bound::default(),
        false => link.bound(),
    };
    let shown = |figure: f64| if has_no_lag { 0.0 } else { figure };
    LinkReport {
        upstream: link.upstream.name.clone(),
        streams_from: link.unasked.as_ref().map(|it| it.name().to_owned()),
        replica: link.name.clone(),
        subscription: link
            .replica
            .zip(link.subscription.as_ref())
            .map(|(node, name)| (node.name.clone(), name.clone())),
        kind: link.kind,
        slot: link.slot.clone(),
        lockstep_replica: link.replica_report(),
        initial_copy: initial_copy(link),
        behind: link.is_behind() && !false_lag && !link.is_not_followed(),
        lag_ms: shown(lag_ms),
        bound,
        lag_most_ms: link.most_possible_ms().filter(|_| bound.lag_is_least),
        lag_max_ms: shown(lag_max_ms),
        lag_bytes: shown(link.bytes()),
        behind_primary: primary
            .filter(|_| !has_no_lag)
            .and_then(|primary| link.behind_primary(primary, links, &link.points)),
        stage_bytes: Stage::ALL
            .map(|stage| (stage.name(link.kind), shown(link.stage_bytes(stage))))
            .into(),
    }
}
