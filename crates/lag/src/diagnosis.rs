//! What is wrong, ranked. Nothing else than the rules' evidence, in order.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::links::{LinkKind, Stage};
use crate::node::{Role, Trouble};
use crate::rules::{Cause, Fact, RULES, Severity, View};
use crate::window::Window;

/// What was found out in a window.
#[derive(Debug, Clone, Serialize)]
pub struct Diagnosis {
    /// No lag and no risk, and every node answered.
    pub healthy: bool,
    /// Each node, and what is wrong with it.
    pub nodes: Vec<NodeReport>,
    /// Each replica, and how far behind it is.
    pub links: Vec<LinkReport>,
    /// Causes, the most important first; notes last.
    pub findings: Vec<Finding>,
}

/// A node.
#[derive(Debug, Clone, Serialize)]
pub struct NodeReport {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// It answered and is what it was said to be.
    pub usable: bool,
    /// `server_version_num`; 0 if unknown, and for a relay.
    pub version: u32,
    /// The version of a relay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay_version: Option<String>,
    /// Samples taken.
    pub samples: usize,
    /// What is wrong with it.
    pub troubles: Vec<Trouble>,
}

/// A replica's way.
#[derive(Debug, Clone, Serialize)]
pub struct LinkReport {
    /// Where from.
    pub upstream: String,
    /// The replica.
    pub replica: String,
    /// How.
    pub kind: LinkKind,
    /// Its slot.
    pub slot: Option<String>,
    /// It lags.
    pub behind: bool,
    /// Milliseconds behind in the middle of the samples, at least.
    pub lag_ms: f64,
    /// The longest, milliseconds.
    pub lag_max_ms: f64,
    /// Bytes behind in the middle of the samples.
    pub lag_bytes: f64,
    /// Bytes that each part of the way holds, on average.
    pub stage_bytes: BTreeMap<&'static str, f64>,
}

/// A cause and where.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// What.
    pub cause: Cause,
    /// In words.
    pub title: String,
    /// How bad.
    pub severity: Severity,
    /// Where.
    pub at: String,
    /// The part of the lag there that it accounts for.
    pub explains: f64,
    /// Milliseconds behind there.
    pub lag_ms: f64,
    /// What was measured.
    pub evidence: Vec<Fact>,
    /// Who and what is concerned.
    pub names: BTreeMap<&'static str, String>,
    /// What to do, the better first.
    pub remedies: Vec<String>,
}

impl Diagnosis {
    /// Lag, or what will become lag.
    pub fn has_lag(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity != Severity::Note)
            || self.links.iter().any(|link| link.behind)
    }

    /// The most important cause.
    pub fn first(&self) -> Option<Cause> {
        self.findings.first().map(|finding| finding.cause)
    }
}

/// Applies every rule.
pub fn diagnose(window: &Window) -> Diagnosis {
    let view = View::new(window);
    let mut findings: Vec<Finding> = RULES
        .iter()
        .flat_map(|rule| {
            (rule.signal)(&view).into_iter().map(|evidence| Finding {
                cause: rule.cause,
                title: title(rule.title, &evidence.names),
                severity: evidence.severity,
                at: evidence.at.clone(),
                explains: evidence.explains,
                lag_ms: evidence.lag_ms,
                remedies: rule.remedies(&evidence),
                evidence: evidence.facts,
                names: evidence.names,
            })
        })
        .collect();
    // Stable: equal ones stay in the table's order.
    findings.sort_by(|a, b| {
        b.severity
            .cmp(&a.severity)
            .then(b.explains.total_cmp(&a.explains))
            .then(b.lag_ms.total_cmp(&a.lag_ms))
    });
    hide_implied(&mut findings);
    let links: Vec<LinkReport> = view
        .links
        .iter()
        .map(|link| report(link, &findings))
        .collect();
    let nodes: Vec<NodeReport> = window
        .nodes
        .iter()
        .map(|node| NodeReport {
            name: node.name.clone(),
            role: node.role,
            usable: node.is_usable(),
            version: node.facts.version,
            relay_version: node.facts.relay.clone(),
            samples: node.samples.len(),
            troubles: node.troubles.clone(),
        })
        .collect();
    let mut diagnosis = Diagnosis {
        healthy: false,
        nodes,
        links,
        findings,
    };
    diagnosis.healthy = !diagnosis.has_lag() && diagnosis.nodes.iter().all(|node| node.usable);
    diagnosis
}

fn title(text: &str, names: &BTreeMap<&'static str, String>) -> String {
    let mut title = text.to_owned();
    for (name, value) in names {
        title = title.replace(&format!("{{{name}}}"), value);
    }
    title
}

/// A giant transaction spills: the second says nothing more.
fn hide_implied(findings: &mut Vec<Finding>) {
    let giant: Vec<String> = findings
        .iter()
        .filter(|finding| finding.cause == Cause::GiantTransaction)
        .map(|finding| finding.at.clone())
        .collect();
    findings.retain(|finding| finding.cause != Cause::SpillToDisk || !giant.contains(&finding.at));
}

fn report(link: &crate::links::Link<'_>, findings: &[Finding]) -> LinkReport {
    let false_lag = findings
        .iter()
        .any(|finding| finding.at == link.name && finding.cause == Cause::OtherDatabases);
    LinkReport {
        upstream: link.upstream.name.clone(),
        replica: link.name.clone(),
        kind: link.kind,
        slot: link.slot.clone(),
        behind: link.is_behind() && !false_lag,
        lag_ms: link.age_ms(),
        lag_max_ms: link.most_age_ms(),
        lag_bytes: link.bytes(),
        stage_bytes: Stage::ALL
            .map(|stage| (stage.name(link.kind), link.stage_bytes(stage)))
            .into(),
    }
}
