//! The signal of what `lockstep doctor --probe` leaves where it is killed: its table, which stays published
//! and followed.

use std::collections::BTreeSet;

use super::{Cause, Evidence, Rule, Severity, View, in_database};
use crate::node::Role;
use crate::window::NodeWindow;

/// The table that a measurement of commits writes into.
pub(super) const PROBED: &str = "lockstep_probe.commits";

/// The rule.
pub(super) const RULE: Rule = Rule {
    cause: Cause::ProbeLeft,
    title: "lockstep doctor --probe runs, or was killed and has left its table",
    signal,
    remedies: &[
        "on {above}: DROP SCHEMA lockstep_probe CASCADE; unless a measurement runs now: nobody else needs it",
        "on {below}: DROP SCHEMA lockstep_probe CASCADE; after {upstream} has it no longer, and this server has all \
         that was written there before",
    ],
};

fn signal(view: &View<'_>) -> Vec<Evidence> {
    let nodes = || view.window.usable();
    let has_it = |node: &&NodeWindow| {
        let tables = node.last().map(|last| &last.tables);
        let published = tables.into_iter().flat_map(|it| it.publications.values());
        let followed = tables.into_iter().flat_map(|it| it.subscriptions.values());
        let there = tables.and_then(|it| it.there.as_ref());
        let mut all = published.chain(followed.map(|it| &it.tables)).chain(there);
        all.any(|tables: &BTreeSet<String>| tables.contains(PROBED))
    };
    let primary = nodes().find(|node| node.role == Role::Primary);
    let kept = |node: &&NodeWindow| matches!(node.role, Role::Primary | Role::Subscriber);
    let found = nodes().filter(kept).filter(has_it).map(|node| {
        let place = in_database(node, &node.facts.database);
        let words = format!("{PROBED} is there");
        let evidence = Evidence::on(node, Severity::Risk).fact("left_tables", 1.0, words);
        match (node.role, primary) {
            (Role::Subscriber, Some(primary)) => evidence
                .name("below", place)
                .name("upstream", &primary.name),
            _ => {
                let mut evidence = evidence.name("above", place);
                evidence.explains = 1.0;
                evidence
            }
        }
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::refused_tests::{followed, tables};
    use super::super::scene::Scene;
    use super::*;
    use crate::tables::{Refused, Why};

    #[test]
    fn what_a_measurement_leaves_is_told_and_nothing_else_of_it() {
        let mut scene = Scene::healthy();
        tables(&mut scene.primary, |it| {
            let own = it.publications.get_mut("p").unwrap();
            own.insert(PROBED.to_owned());
            it.refused = vec![Refused {
                table: PROBED.to_owned(),
                publication: "p".to_owned(),
                why: Why::Unidentified,
                columns: None,
                listed: false,
            }];
        });
        tables(&mut scene.one, |it| {
            followed(it).tables.insert(PROBED.to_owned());
        });
        let diagnosis = scene.diagnose();
        let found = diagnosis.findings.iter();
        let found: Vec<_> = found
            .map(|it| (it.cause, it.at.as_str(), it.remedies[0].as_str()))
            .collect();
        let above = "on primary, in database app: DROP SCHEMA lockstep_probe CASCADE; unless a measurement runs \
                     now: nobody else needs it";
        assert_eq!(found[0], (Cause::ProbeLeft, "primary", above), "{found:?}");
        assert_eq!(
            (found[1].0, found[1].1),
            (Cause::ProbeLeft, "one"),
            "{found:?}"
        );
        assert_eq!(found.len(), 2, "{found:?}");
    }
}
