//! The signal of a cluster with two primaries: a server that was named as a standby takes writes.

use lockstep_wire::Timeline;

use super::{Evidence, Severity, View};
use crate::node::{Role, Trouble};
use crate::window::NodeWindow;

/// The timeline that a server writes, if it is a primary.
fn timeline(node: &NodeWindow) -> Option<Timeline> {
    node.last().filter(|last| !last.in_recovery)?.wal.timeline
}

/// The node was named as a standby, and is none.
fn is_promoted(node: &NodeWindow) -> bool {
    let mut troubles = node.troubles.iter();
    let is_other = troubles.any(|one| matches!(one, Trouble::WrongRole { .. }));
    let writes = node.last().is_some_and(|last| !last.in_recovery);
    node.role == Role::Standby && is_other && writes
}

pub(super) fn two(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    let Some(primary) = view.window.primary() else {
        return found;
    };
    let system = &primary.facts.system;
    // The primary itself may be named as a standby, too.
    let is_other = |node: &NodeWindow| {
        timeline(node) != timeline(primary) || node.facts.started_us != primary.facts.started_us
    };
    let of_cluster = |node: &NodeWindow| !system.is_empty() && node.facts.system == *system;
    let nodes = view.window.nodes.iter().filter(|node| is_promoted(node));
    for node in nodes.filter(|node| of_cluster(node) && is_other(node)) {
        let words = |node: &NodeWindow| {
            let line = timeline(node).map_or("?".to_owned(), |line| line.to_string());
            format!("{} writes timeline {line}", node.name)
        };
        let number = timeline(node).map_or(0.0, |line| f64::from(line.get()));
        let mut evidence = Evidence::on(node, Severity::Lag)
            .fact("timeline", number, words(node))
            .fact("primary_answers", 1.0, words(primary))
            .name("upstream", &primary.name);
        evidence.explains = 1.0;
        found.push(evidence);
    }
    found
}
