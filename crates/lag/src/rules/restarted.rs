//! The signal of a node that was started anew while it was watched.

use lockstep_service::words::figures::seconds;

use super::{Cause, Evidence, Rule, Severity, View};
use crate::node::Trouble;
use crate::window::NodeWindow;

/// The rule.
pub(super) const RULE: Rule = Rule {
    cause: Cause::NodeRestarted,
    title: "{node} was started anew while it was watched",
    signal,
    remedies: &[
        "nothing, if somebody has started {node} anew on purpose",
        "look at the log of {node} for why it ended: somebody who stopped it, a crash, too little memory",
    ],
};

fn of_node(node: &NodeWindow) -> Option<Evidence> {
    let is_it = |trouble: &Trouble| {
        matches!(
            trouble,
            Trouble::Interrupted {
                restarted: true,
                ..
            }
        )
    };
    node.troubles.iter().find(|it| is_it(it))?;
    let evidence = Evidence::on(node, Severity::Risk);
    let up_ms = node.last().and_then(|last| last.up_ms);
    Some(match up_ms {
        Some(up_ms) => {
            let words = format!("it was started {} ago", seconds(up_ms));
            evidence.fact("up_ms", up_ms, words)
        }
        None => evidence,
    })
}

fn signal(view: &View<'_>) -> Vec<Evidence> {
    view.window.usable().filter_map(of_node).collect()
}

#[cfg(test)]
mod tests {
    use super::super::scene::Scene;
    use super::*;
    use crate::diagnosis::Diagnosis;
    use crate::diagnosis::checks::Answer;

    /// The connection to the standby was lost for a moment.
    fn lost(restarted: bool) -> Diagnosis {
        let mut scene = Scene::healthy();
        for (index, sample) in scene.standby.samples.iter_mut().enumerate() {
            let since = if restarted { 30 } else { -36_000 };
            sample.up_ms = Some(100.0 * (index as f64 - f64::from(since)).max(0.0));
        }
        scene.standby.troubles.push(Trouble::Interrupted {
            reason: "terminating connection".to_owned(),
            restarted,
        });
        scene.diagnose()
    }

    #[test]
    fn a_node_that_was_lost_and_is_back_is_not_healthy() {
        let diagnosis = lost(true);
        let found = &diagnosis.findings[0];
        assert_eq!(
            (found.cause, found.severity),
            (Cause::NodeRestarted, Severity::Risk)
        );
        assert_eq!(found.at, "standby");
        assert!(
            found.evidence[0].words.contains("started 1.9 s ago"),
            "{:?}",
            found.evidence
        );
        assert!(
            !diagnosis.healthy && diagnosis.unknown.is_empty(),
            "{:?}",
            diagnosis.unknown
        );
        // Otherwise nobody knows what has happened.
        let diagnosis = lost(false);
        assert!(!diagnosis.healthy && diagnosis.findings.is_empty());
        let mut checks = diagnosis.checks.iter();
        let check = checks
            .find(|it| it.check == "answers" && it.at == "standby")
            .unwrap();
        assert_eq!(check.answer, Answer::NotKnown);
        let words = "the connection was lost, and there is a new one: terminating connection; the server was \
                     not started anew: it has been up for 60 min";
        assert_eq!(check.words, words);
        assert_eq!(diagnosis.unknown, [format!("standby: {words}")]);
    }
}
