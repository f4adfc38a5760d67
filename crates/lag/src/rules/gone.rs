//! The signals of a replica that was connected and is no longer, and of a member that Patroni no longer
//! names. Only those who watch for longer remember them.

use std::time::Duration;

use lockstep_service::words::figures::seconds;

use super::{Cause, Evidence, Rule, Severity, View};
use crate::window::Remembered;

/// Time without a replica from which it is gone: one that is started anew comes back sooner.
const GONE: Duration = Duration::from_secs(15);

/// The rule of members.
pub(super) const LEFT: Rule = Rule {
    cause: Cause::MemberLeft,
    title: "it has left: Patroni no longer names it",
    signal: left,
    remedies: &[
        "look at Patroni and the server of {node}: a member whose Patroni does not run is forgotten after its \
         ttl",
        "nothing, if it is gone on purpose: it is forgotten an hour after it left",
    ],
};

fn left(view: &View<'_>) -> Vec<Evidence> {
    let left = view.window.membership.iter().flat_map(|it| &it.left);
    let found = left.map(|it| {
        let away = it.away.as_secs_f64() * 1000.0;
        let words = format!("Patroni named it {} ago for the last time", seconds(away));
        Evidence::about(&it.node, Severity::Risk).fact("away_ms", away, words)
    });
    found.collect()
}

/// The rule of replicas.
pub(super) const RULE: Rule = Rule {
    cause: Cause::ReplicaGone,
    title: "{replica} was connected to {upstream}, and is gone",
    signal: gone,
    remedies: &[
        "start {replica}, or look at its log for why it does not connect to {upstream}",
        "nothing, if it is gone on purpose: it is forgotten an hour after it was last seen",
    ],
};

/// A replica that is there, or a node that was named, which says itself how it is.
fn is_known(view: &View<'_>, it: &Remembered) -> bool {
    let mut nodes = view.window.nodes.iter();
    let is_named = nodes.any(|node| {
        let rest = it.replica.strip_prefix(node.name.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
    });
    let mut left = view.window.membership.iter().flat_map(|it| &it.left);
    let has_left = left.any(|one| one.node == it.replica);
    is_named || has_left || view.links.iter().any(|link| link.name == it.replica)
}

pub(super) fn gone(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for it in view.window.remembered.iter().flatten() {
        let mut nodes = view.window.usable();
        let Some(upstream) = nodes.find(|node| node.name == it.upstream) else {
            continue;
        };
        if it.away < GONE || is_known(view, it) {
            continue;
        }
        let away = it.away.as_secs_f64() * 1000.0;
        let words = format!(
            "{} saw it {} ago for the last time",
            upstream.name,
            seconds(away)
        );
        let mut evidence = Evidence::on(upstream, Severity::Risk)
            .fact("away_ms", away, words)
            .name("replica", &it.replica)
            .name("upstream", &upstream.name);
        evidence.at.clone_from(&it.replica);
        found.push(evidence);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;
    use crate::diagnosis::checks::{Answer, CheckReport};
    use crate::diagnosis::{Diagnosis, diagnose};
    use crate::patroni::{Left, Membership};
    use crate::window::Window;

    fn remembering(replicas: Option<&[(&str, u64)]>) -> Diagnosis {
        let Scene {
            primary,
            standby,
            one,
            two,
        } = Scene::healthy();
        let mut window = Window::new(vec![primary, standby, one, two]);
        let of = |(replica, seconds): &(&str, u64)| Remembered {
            upstream: "primary".to_owned(),
            replica: (*replica).to_owned(),
            away: Duration::from_secs(*seconds),
        };
        window.remembered = replicas.map(|all| all.iter().map(of).collect());
        diagnose(&window)
    }

    #[test]
    fn who_was_there_and_is_not_is_told() {
        let answer = |diagnosis: &Diagnosis| {
            let mut checks = diagnosis.checks.iter();
            let it = checks.find(|one: &&CheckReport| one.check == "remembered");
            it.map(|it| it.answer)
        };
        let diagnosis = remembering(Some(&[("etl", 20), ("two (sub_two)", 99), ("standby", 99)]));
        let found: Vec<_> = diagnosis
            .findings
            .iter()
            .map(|it| (it.cause, it.at.as_str()))
            .collect();
        assert_eq!(found, [(Cause::ReplicaGone, "etl")]);
        assert!(diagnosis.has_risk() && !diagnosis.healthy);
        assert_eq!(answer(&diagnosis), Some(Answer::Wrong));
        // One that was away for a moment is not gone.
        for list in [&[("etl", 3)][..], &[]] {
            let diagnosis = remembering(Some(list));
            assert!(diagnosis.healthy, "{:?}", diagnosis.findings);
            assert_eq!(answer(&diagnosis), Some(Answer::Well));
        }
        // Who has just come remembers nobody, and does not say that all are there.
        assert_eq!(answer(&remembering(None)), None);
    }

    #[test]
    fn a_member_that_left_is_told_once() {
        let Scene {
            primary,
            standby,
            one,
            two,
        } = Scene::healthy();
        let mut window = Window::new(vec![primary, standby, one, two]);
        let mut membership = Membership::default();
        window.membership = Some(membership.clone());
        assert!(diagnose(&window).healthy);
        membership.left.push(Left {
            node: "third".to_owned(),
            away: Duration::from_secs(90),
        });
        window.membership = Some(membership.clone());
        // Its link is remembered, too.
        window.remembered = Some(vec![Remembered {
            upstream: "primary".to_owned(),
            replica: "third".to_owned(),
            away: Duration::from_secs(99),
        }]);
        let diagnosis = diagnose(&window);
        let found: Vec<_> = diagnosis
            .findings
            .iter()
            .map(|it| (it.cause, it.at.as_str()))
            .collect();
        assert_eq!(found, [(Cause::MemberLeft, "third")]);
        assert!(!diagnosis.healthy && diagnosis.unknown.is_empty());
        // A list that may be old is no health, whatever the nodes say.
        (membership.left, membership.unknown) = (Vec::new(), vec!["Patroni is deaf".to_owned()]);
        (window.membership, window.remembered) = (Some(membership), None);
        let diagnosis = diagnose(&window);
        assert_eq!(
            (diagnosis.healthy, diagnosis.unknown),
            (false, vec!["Patroni is deaf".to_owned()])
        );
    }
}
