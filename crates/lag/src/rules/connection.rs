//! The signal of a replica that was late because it was not connected, as after a restart of its upstream.

use std::time::Duration;

use lockstep_service::words::figures::{percent, seconds};

use super::ended::ended;
use super::receive::{late_share, streams};
use super::synchronised::retry;
use super::{Cause, Evidence, Rule, View};
use crate::link::Link;
use crate::node::Trouble;
use crate::point::LinkKind;
use crate::sample::Sample;
use crate::views::Subscription;

/// Share of the late samples without a connection from which that is why the replica was late.
const MOSTLY: f64 = 0.5;

pub(super) const RULE: Rule = Rule {
    cause: Cause::ConnectionLost,
    title: "the replica was not connected to {upstream}",
    signal: lost,
    remedies: &[
        "nothing, if {restarted} was started anew on purpose: a replica connects again by itself, and catches up",
        "look at the logs of {kept_up} and of the replica for why the connection ended: the replica is connected \
         again, and catches up",
        "on {waiting_node}: ALTER SYSTEM SET wal_retrieve_retry_interval = '1s'; SELECT pg_reload_conf(); (now \
         {wal_retrieve_retry_interval} ms): it then connects again sooner",
    ],
};

/// Shortest interval between two tries to connect that is worth a remedy, in milliseconds.
const LONG_RETRY_MS: f64 = 1_000.0;

/// True if the link's replica is connected at the moment of a point.
fn is_connected(link: &Link<'_>, at: Duration) -> bool {
    let standby = link.replica.filter(|_| link.kind == LinkKind::Physical);
    match standby {
        Some(node) => node
            .sample_at(at)
            .is_some_and(|sample| streams(node, sample)),
        None => link
            .upstream
            .sample_at(at)
            .is_some_and(|sample| link.sender(sample).is_some()),
    }
}

/// The replica streams again, or its upstream is up for no longer than it takes to connect again.
fn comes_back(link: &Link<'_>, restarted: Option<f64>) -> bool {
    let is_back = link
        .points
        .last()
        .is_some_and(|last| is_connected(link, last.at));
    let wait = link.replica.map_or(Duration::ZERO, retry) + Duration::from_secs(2);
    is_back || restarted.is_some_and(|ms| ms <= wait.as_secs_f64() * 1000.0)
}

/// Time since the upstream was started, in milliseconds, if a connection may have ended with that.
fn restarted(link: &Link<'_>) -> Option<f64> {
    const RECENT: Duration = Duration::from_secs(60);
    let up_ms = link.upstream.last()?.up_ms?;
    let recent = link.upstream.length() + RECENT;
    (up_ms <= recent.as_secs_f64() * 1000.0).then_some(up_ms)
}

/// True if the worker of a subscription is there again after its publisher was lost for a moment: its
/// connection ended once, which counts as an error of the worker.
pub(super) fn ended_with_upstream(link: &Link<'_>) -> bool {
    let mut troubles = link.upstream.troubles.iter();
    let was_lost = troubles.any(|it| matches!(it, Trouble::Interrupted { .. }));
    let row = link.replica.and_then(|node| link.subscribed(node.last()?));
    was_lost && row.is_some_and(Subscription::receives) && apply_errors(link) <= 1.0
}

/// Errors of the subscription's worker in the window.
fn apply_errors(link: &Link<'_>) -> f64 {
    let errors = |sample: &Sample| Some(link.subscribed(sample)?.apply_errors as f64);
    link.replica.map_or(0.0, |node| node.growth(errors))
}

fn lost(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    let links = view.links.iter().filter(|link| link.is_behind());
    for link in links.filter(|link| !link.is_relayed() && !link.is_archived()) {
        let share = late_share(link, |at| !is_connected(link, at));
        let restarted = restarted(link).filter(|_| link.unasked.is_none());
        if share < MOSTLY || !comes_back(link, restarted) || ended(view, link.upstream) {
            continue;
        }
        // A worker that fails ends its connection each time.
        let row = link.replica.and_then(|node| link.subscribed(node.last()?));
        let is_disabled = row.is_some_and(|row| !row.enabled);
        if is_disabled || apply_errors(link) > 0.0 && !ended_with_upstream(link) {
            continue;
        }
        let words = format!(
            "it was not connected in {} of the samples in which it was behind",
            percent(share)
        );
        let mut evidence = Evidence::of(link, share).fact("disconnected_share", share, words);
        evidence = match restarted {
            Some(up_ms) => {
                let words = format!("{} was started {} ago", link.upstream.name, seconds(up_ms));
                evidence
                    .fact("upstream_up_ms", up_ms, words)
                    .name("restarted", &link.upstream.name)
            }
            None => evidence.name("kept_up", link.feeder()),
        };
        let wait = link.replica.map(|node| (node, retry(node)));
        let wait = wait.filter(|(_, wait)| wait.as_secs_f64() * 1000.0 > LONG_RETRY_MS);
        if let Some((node, wait)) = wait {
            let words = format!(
                "it tries again every {}",
                seconds(wait.as_secs_f64() * 1000.0)
            );
            evidence = evidence
                .fact("retry_ms", wait.as_secs_f64() * 1000.0, words)
                .name("waiting_node", &node.name)
                .setting(node, "wal_retrieve_retry_interval");
        }
        found.push(evidence);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::scene::{SAMPLES, START, STEP, Scene, lsn, sender};
    use super::*;
    use crate::diagnosis::Diagnosis;

    /// The standby is not connected until the sample of this number, and has everything after it.
    fn back_at(back: u64, up_ms: Option<f64>) -> Diagnosis {
        let mut scene = Scene::healthy();
        for (index, sample) in (0..).zip(&mut scene.standby.samples) {
            if index < back {
                (sample.wal.receive, sample.wal.replay) = (lsn(START), lsn(START));
                sample.receiver = None;
                sample.processes.truncate(1);
            }
        }
        for (index, sample) in (0..).zip(&mut scene.primary.samples) {
            sample.up_ms = up_ms.map(|ms| ms + 100.0 * index as f64);
            sample.senders[0] = match index < back {
                true => sender(9, "other", START),
                false => sender(10, "standby", START + index * STEP),
            };
            if index < back {
                (sample.slots[0].active, sample.slots[0].active_pid) = (false, None);
            }
        }
        scene.diagnose()
    }

    fn causes(diagnosis: &Diagnosis) -> Vec<Cause> {
        let found = diagnosis.findings.iter().filter(|it| it.at == "standby");
        found.map(|it| it.cause).collect()
    }

    #[test]
    fn lag_without_a_connection_is_not_the_network() {
        let diagnosis = back_at(20, Some(300.0));
        assert_eq!(
            causes(&diagnosis),
            [Cause::ConnectionLost],
            "{diagnosis:#?}"
        );
        let first = &diagnosis.findings[0];
        assert!(first.remedies[0].contains("nothing, if primary was started anew"));
        assert!(first.explains >= 0.9);
        // Nobody restarted it: the logs say why the connection ended.
        let diagnosis = back_at(20, Some(9e9));
        assert_eq!(causes(&diagnosis), [Cause::ConnectionLost]);
        assert!(diagnosis.findings[0].remedies[0].contains("look at the logs of primary"));
        // One that does not come back has another cause, unless its upstream has just been started.
        assert_eq!(causes(&back_at(SAMPLES, Some(9e9))), [Cause::NotStreaming]);
        assert_eq!(
            causes(&back_at(SAMPLES, Some(300.0))),
            [Cause::ConnectionLost]
        );
    }
}
