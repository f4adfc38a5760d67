//! The signal of a replica that was connected and is no longer. Only those who watch for longer remember it.

use std::time::Duration;

use lockstep_service::words::figures::seconds;

use super::{Cause, Evidence, Rule, Severity, View};
use crate::window::Remembered;

/// Time without a replica from which it is gone: one that is started anew comes back sooner.
const GONE: Duration = Duration::from_secs(15);

/// The rule.
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
    is_named || view.links.iter().any(|link| link.name == it.replica)
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
}
