//! The monitor's state as rows: one for each link of a replica with its upstream, and one for
//! each node without a link: the primary, nodes that do not answer, and nodes that are not what
//! the command line says.

use std::collections::BTreeSet;

use lockstep_lag::diagnosis::checks::Answer;
use lockstep_lag::monitor::{LinkState, MonitorState, NodeState};
use lockstep_lag::point::Bound;
use lockstep_lag::point::LinkKind;
use lockstep_lag::rules::{Cause, Severity};
use lockstep_lag::{Diagnosis, Finding, Role};
use lockstep_service::words::brief::time;
use lockstep_service::words::figures::counted;

use super::figures::one_line;

/// A node counts as not answering when its newest sample is older than this, in milliseconds,
const SILENT_MS: f64 = 5_000.0;

/// and older than this many intervals.
const SILENT_SAMPLES: f64 = 3.0;

/// The status of a row, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// The node works and does not lag.
    Fine,
    /// The node has not answered yet.
    Asked,
    /// The node does not lag now, but there is a risk or another trouble.
    Warning,
    /// The node lags, or has a problem as serious as lag.
    Lag,
    /// The node cannot be used or does not answer, so nothing is known about it.
    Lost,
}

impl Status {
    /// The status as a character. It has a column of its own, for people who do not see colours.
    pub fn mark(self) -> char {
        match self {
            Self::Fine => ' ',
            Self::Asked => '.',
            Self::Warning => '~',
            Self::Lag => '!',
            Self::Lost => 'x',
        }
    }

    /// The status as a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Asked => "asked",
            Self::Warning => "warn",
            Self::Lag => "LAG",
            Self::Lost => "UNUSABLE",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct TopRow {
    /// Unique and lasting: a node that is lost and comes back has the same key again.
    pub key: String,
    /// The name that is shown.
    pub name: String,
    /// physical, logical or replica; a node's role if it has no link.
    pub kind: String,
    pub status: Status,
    pub is_primary: bool,
    /// Lag now, in milliseconds.
    pub lag_ms: Option<f64>,
    /// What that is to the true lag.
    pub bound: Bound,
    /// Highest lag in the window, in milliseconds.
    pub most_ms: Option<f64>,
    pub bytes: Option<u64>,
    /// The stage of the link that holds most of these bytes. None unless the row lags.
    pub stage: Option<&'static str>,
    /// Why the row has its status.
    pub cause: String,
    /// The cause in fewer words, where there is no room for it.
    pub label: String,
    /// Index of the link in the state's links.
    pub link: Option<usize>,
    /// Index of the node in the state's nodes.
    pub node: Option<usize>,
    /// Indexes of the findings about this row, the most important first.
    pub findings: Vec<usize>,
}

impl TopRow {
    /// Lag now, in at most seven columns.
    pub fn lag(&self) -> Option<String> {
        self.lag_ms
            .map(|ms| format!("{}{}", self.bound.sign(), time(ms)))
    }
}

/// All rows, in the order in which the command line names the nodes.
pub fn rows(state: &MonitorState) -> Vec<TopRow> {
    let mut rows = Vec::new();
    let mut keys = BTreeSet::new();
    let of_node = |node: &NodeState| {
        let links = state.links.iter().enumerate();
        let owned: Vec<usize> = links
            .filter(|(_, link)| belongs(link, node))
            .map(|(index, _)| index)
            .collect();
        owned
    };
    for (index, node) in state.nodes.iter().enumerate() {
        let links = of_node(node);
        if links.is_empty() {
            rows.push(node_row(state, index, node));
        }
        for link in links {
            rows.extend(link_row(state, link, Some(index)));
        }
    }
    for link in 0..state.links.len() {
        if !rows.iter().any(|row| row.link == Some(link)) {
            rows.extend(link_row(state, link, None));
        }
    }
    for row in &mut rows {
        if !keys.insert(row.key.clone()) {
            row.key = format!("{} {}", row.key, keys.len());
            keys.insert(row.key.clone());
        }
    }
    adopt(state, &mut rows);
    for row in &mut rows {
        explain(state, row);
    }
    rows
}

/// True if the link is one of the node's. A subscriber with several subscriptions has a link for
/// each, named `node (subscription)`.
fn belongs(link: &LinkState, node: &NodeState) -> bool {
    let rest = link.replica.strip_prefix(&node.name);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
}

fn node_row(state: &MonitorState, index: usize, node: &NodeState) -> TopRow {
    TopRow {
        key: node.name.clone(),
        name: one_line(&node.name),
        kind: node.role.to_string(),
        status: Status::Fine,
        is_primary: node.role == Role::Primary,
        lag_ms: None,
        bound: Bound::default(),
        most_ms: None,
        bytes: None,
        stage: None,
        cause: String::new(),
        label: String::new(),
        link: None,
        node: Some(index),
        findings: found(state, |finding| finding.at == node.name),
    }
}

fn link_row(state: &MonitorState, index: usize, node: Option<usize>) -> Option<TopRow> {
    let link = state.links.get(index)?;
    let most = link.stages.iter().max_by_key(|stage| stage.bytes);
    let name = node.and_then(|node| Some(state.nodes.get(node)?.name.as_str()));
    Some(TopRow {
        key: match name {
            Some(_) => link.replica.clone(),
            None => link.id.clone(),
        },
        name: one_line(&link.replica),
        kind: link.kind_words().to_owned(),
        status: Status::Fine,
        is_primary: false,
        lag_ms: Some(link.lag_ms),
        bound: link.bound,
        most_ms: Some(link.lag_max_ms),
        bytes: Some(link.lag_bytes),
        stage: most.filter(|stage| stage.bytes > 0).map(|stage| stage.name),
        cause: String::new(),
        label: String::new(),
        link: Some(index),
        node,
        findings: found(state, |finding| {
            finding.at == link.replica || name == Some(&finding.at) || is_of(finding, link)
        }),
    })
}

fn found(state: &MonitorState, here: impl Fn(&Finding) -> bool) -> Vec<usize> {
    let findings = state.diagnosis.findings.iter().enumerate();
    findings
        .filter(|(_, finding)| here(finding))
        .map(|(index, _)| index)
        .collect()
}

/// True if a finding is about the link's slot, or about all slots of its upstream.
fn is_of(finding: &Finding, link: &LinkState) -> bool {
    let named = |name: &str| finding.names.get(name).map(String::as_str);
    let all = format!("all slots of {}", link.upstream);
    let slot = link.slot.as_deref();
    let at_slot =
        slot.is_some_and(|slot| finding.at == format!("slot {slot} on {}", link.upstream));
    at_slot && named("upstream") == Some(&link.upstream)
        || (link.kind == LinkKind::Logical && finding.at == all)
}

/// Adds each finding that belongs to no row to the row of its upstream, or else to the first row,
/// so that every finding is shown.
fn adopt(state: &MonitorState, rows: &mut [TopRow]) {
    for (index, finding) in state.diagnosis.findings.iter().enumerate() {
        if rows.iter().any(|row| row.findings.contains(&index)) {
            continue;
        }
        let upstream = finding.names.get("upstream").or(finding.names.get("node"));
        let at = rows.iter().position(|row| Some(&row.key) == upstream);
        if let Some(row) = rows.get_mut(at.unwrap_or(0)) {
            row.findings.push(index);
        }
    }
}

/// Sets the row's status and cause.
fn explain(state: &MonitorState, row: &mut TopRow) {
    let first = row
        .findings
        .first()
        .and_then(|index| state.diagnosis.findings.get(*index));
    let node = row.node.and_then(|index| state.nodes.get(index));
    let link = row.link.and_then(|index| state.links.get(index));
    let behind = link.is_some_and(|link| link.behind);
    let is_old = link.is_some_and(|link| link.behind_primary.is_some_and(|all| all.behind));
    let trouble = node.and_then(|node| node.troubles.first());
    let silent = node.and_then(|node| silent_for(state, node));
    let (status, cause, label) = match (node, first, trouble) {
        _ if silent.is_some() => {
            let since = time(silent.unwrap_or_default());
            (Status::Lost, format!("no answer for {since}"), None)
        }
        (Some(node), _, None) if !node.usable => (Status::Asked, "asking…".to_owned(), None),
        (Some(node), _, Some(trouble)) if !node.usable => (Status::Lost, trouble.clone(), None),
        (_, Some(found), _) if found.severity == Severity::Lag => {
            (Status::Lag, found.title.clone(), Some(found.cause))
        }
        _ if behind => (
            Status::Lag,
            "behind, for no reason that is known yet".to_owned(),
            None,
        ),
        (_, Some(found), _) if found.severity == Severity::Risk => {
            (Status::Warning, found.title.clone(), Some(found.cause))
        }
        (_, _, Some(trouble)) => (Status::Warning, trouble.clone(), None),
        (_, Some(found), _) if !is_old && !found.is_aside() => {
            (Status::Fine, found.title.clone(), Some(found.cause))
        }
        _ if row.is_primary => (Status::Fine, "ok".to_owned(), None),
        _ if row.link.is_none() => (
            Status::Warning,
            "nothing that answers here is its upstream".to_owned(),
            None,
        ),
        _ if unchecked(state, link).is_some() => {
            let words = unchecked(state, link).unwrap_or_default();
            (Status::Warning, words.to_owned(), None)
        }
        _ => match link.and_then(|link| Some((link, link.behind_primary?))) {
            Some((link, all)) if all.behind => {
                let age = format!("{}{}", all.sign(), time(all.lag_ms));
                let words = format!("its data is {age} old: keeps up with {}", link.upstream);
                (Status::Warning, words, None)
            }
            _ => (Status::Fine, "keeps up".to_owned(), None),
        },
    };
    row.status = status;
    // Of a node that keeps up, the stage with most bytes changes all the time.
    row.stage = row.stage.filter(|_| status == Status::Lag);
    row.cause = one_line(first_line(&cause));
    row.label = match label {
        Some(cause) => words(cause),
        None => brief(&row.cause),
    };
}

/// Checks without which a replica is not called one that keeps up.
const NEEDED: [&str; 5] = [
    "slot",
    "streams",
    "keeps_up",
    "apply_worker",
    "synchronised",
];

/// Why it is not known whether the replica of a link keeps up, if one of its checks says so.
fn unchecked<'s>(state: &'s MonitorState, link: Option<&LinkState>) -> Option<&'s str> {
    let link = link?;
    let slot = link.slot.as_deref().unwrap_or_default();
    let slot = format!("slot {slot} on {}", link.upstream);
    let mut checks = state.diagnosis.checks.iter();
    let open = checks.find(|one| {
        let is_its = one.at == link.replica || one.at == slot;
        is_its && one.answer == Answer::NotKnown && NEEDED.contains(&one.check)
    });
    open.map(|one| one.words.as_str())
}

/// How long a connected node has not answered, in milliseconds; None if that is not long.
fn silent_for(state: &MonitorState, node: &NodeState) -> Option<f64> {
    let long = SILENT_MS.max(SILENT_SAMPLES * state.every_s * 1000.0);
    node.sample_age_ms.filter(|age| node.usable && *age >= long)
}

/// libpq's message without its hints, which the details show. In the message a hint is a line
/// that begins with a tab; the lag crate has replaced both the newline and the tab by blanks.
fn first_line(trouble: &str) -> &str {
    let first = trouble.split("  ").next();
    first.unwrap_or(trouble)
}

/// libpq's message without the server that it could not reach: the row names that already.
fn brief(trouble: &str) -> String {
    let reason = trouble.rsplit_once(" failed: ").map(|(_, reason)| reason);
    match (trouble.split_once(": "), reason) {
        (Some((what, _)), Some(reason)) => format!("{what}: {reason}"),
        _ => trouble.to_owned(),
    }
}

/// A cause's name as words.
fn words(cause: Cause) -> String {
    cause.id().replace('_', " ")
}

/// Orders of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortBy {
    /// Lost nodes first, then the longest lag.
    Lag,
    /// Names in order; numbers in names are compared by value.
    Name,
    /// The most bytes behind first.
    Bytes,
    /// The worst status first, and equal causes together.
    Cause,
}

/// Sorts rows. Equal ones keep the order of the command line, and the primary stays on top.
pub fn sort(rows: &mut [TopRow], by: SortBy, reverse: bool) {
    rows.sort_by(|a, b| {
        let order = match by {
            SortBy::Lag => late(b).cmp(&late(a)),
            SortBy::Name => natural(&a.name).cmp(&natural(&b.name)),
            SortBy::Bytes => b.bytes.cmp(&a.bytes),
            SortBy::Cause => b.status.cmp(&a.status).then_with(|| a.cause.cmp(&b.cause)),
        };
        let order = if reverse { order.reverse() } else { order };
        b.is_primary.cmp(&a.is_primary).then(order)
    });
}

/// Sort key for [`SortBy::Lag`]: lag in tenths of a second for rows that lag, 0 for the others,
/// which would otherwise change places all the time.
fn late(row: &TopRow) -> (bool, bool, u64) {
    let lags = row.status == Status::Lag;
    let tenths = row.lag_ms.filter(|_| lags).map_or(0.0, |ms| ms / 100.0);
    (row.status == Status::Lost, lags, tenths as u64)
}

/// A name in pieces that sort as people expect: `standby2` before `standby10`.
fn natural(name: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for c in name.chars() {
        match (pieces.last_mut(), c.to_digit(10)) {
            (Some(Piece::Number(number)), Some(digit)) => {
                *number = number.saturating_mul(10).saturating_add(digit.into());
            }
            (_, Some(digit)) => pieces.push(Piece::Number(digit.into())),
            (Some(Piece::Text(text)), None) => text.push(c),
            (_, None) => pieces.push(Piece::Text(c.to_string())),
        }
    }
    pieces
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Piece {
    Number(u64),
    Text(String),
}

/// The summary of all rows in one line, the worst first, with the worst status.
pub fn headline(rows: &[TopRow], diagnosis: &Diagnosis) -> (Status, String) {
    let of = |status: Status| rows.iter().filter(move |row| row.status == status).count();
    // A relay to which nothing leads is none.
    let is_replica = |row: &&TopRow| row.link.is_some() || row.kind != Role::Relay.to_string();
    let replicas = rows
        .iter()
        .filter(|row| !row.is_primary)
        .filter(is_replica)
        .count();
    let lag = rows
        .iter()
        .filter(|row| !row.is_primary && row.status == Status::Lag)
        .count();
    let mut parts = Vec::new();
    if lag > 0 {
        let verb = if lag == 1 { "lags" } else { "lag" };
        parts.push((Status::Lag, format!("{lag} of {replicas} replicas {verb}")));
    }
    let primary = rows.iter().find(|row| row.is_primary);
    if let Some(primary) = primary.filter(|row| row.status == Status::Lag) {
        parts.push((Status::Lag, format!("{}: {}", primary.name, primary.cause)));
    }
    let lost = of(Status::Lost);
    if lost > 0 {
        let words = format!("{} unusable", counted(lost as u64, "node"));
        parts.push((Status::Lost, words));
    }
    let asked = of(Status::Asked);
    if asked > 0 {
        parts.push((
            Status::Asked,
            format!("asking {}…", counted(asked as u64, "node")),
        ));
    }
    if lag == 0 && asked == 0 && !diagnosis.unknown.is_empty() {
        let words = "not known whether all replicas keep up".to_owned();
        parts.push((Status::Warning, words));
    }
    let warnings = of(Status::Warning);
    if warnings > 0 {
        parts.push((Status::Warning, counted(warnings as u64, "warning")));
    }
    let worst = parts.first().map_or(Status::Fine, |(status, _)| *status);
    if parts.iter().all(|(status, _)| *status == Status::Warning) && diagnosis.healthy {
        let words = match replicas {
            0 => "healthy; no replicas".to_owned(),
            1 => "healthy: the replica keeps up".to_owned(),
            _ => format!("healthy: all {replicas} replicas keep up"),
        };
        parts.insert(0, (Status::Fine, words));
    }
    let words: Vec<String> = parts.into_iter().map(|(_, words)| words).collect();
    (worst, words.join(" · "))
}
