//! Signals about commits that wait for replicas which are not there.

use lockstep_service::words::figures::{percent, seconds};
use lockstep_wire::standby_names::StandbyNames;

use super::held::are_uncounted;
use super::{Evidence, Severity, View};
use crate::node::Role;
use crate::sample::Sample;
use crate::window::{NodeWindow, Window};

/// Share of samples from which replicas count as missing.
pub(super) const MISSING_SHARE: f64 = 0.5;

/// Whom a server waits for, as far as it says so.
pub(super) fn waited_for(sample: &Sample) -> Option<StandbyNames> {
    let setting = sample.wal.synchronous_standby_names.as_deref()?;
    StandbyNames::parse(setting).ok().flatten()
}

/// How many of those that commits wait for are connected.
fn connected(sample: &Sample) -> usize {
    let states = sample
        .senders
        .iter()
        .filter_map(|sender| sender.sync_state.as_ref());
    states.filter(|state| state.is_waited_for()).count()
}

pub(super) fn lacks(sample: &Sample) -> bool {
    waited_for(sample).is_some_and(|names| connected(sample) < names.needed as usize)
}

/// A role without rights sees walsenders, but not what they are.
pub(super) fn sees_senders(node: &NodeWindow, sample: &Sample) -> bool {
    node.facts.monitor || sample.senders.is_empty()
}

/// The names of the setting with which nobody is connected.
pub(super) fn absent<'n>(sample: &Sample, names: &'n StandbyNames) -> Vec<&'n String> {
    let is_there = |name: &&String| {
        let mut there = sample.senders.iter();
        there.any(|sender| *name == "*" || name.eq_ignore_ascii_case(&sender.application_name))
    };
    names.names.iter().filter(|name| !is_there(name)).collect()
}

/// The first of these names that belongs to a subscription which a relay serves.
fn behind_relay(window: &Window, missing: &[&String]) -> Option<String> {
    let slots = window.usable().filter_map(|node| {
        let relay = node.last()?.relay.as_ref()?;
        Some(relay.slots.iter().map(|slot| slot.name.as_str()))
    });
    let slots: Vec<&str> = slots.flatten().collect();
    // A subscription's slot has its name, unless it was given another.
    let slot_of = |name: &str| {
        let subscriptions = window.usable().filter_map(NodeWindow::last);
        let mut subscriptions = subscriptions.flat_map(|sample| &sample.subscriptions);
        let found = subscriptions.find(|subscription| subscription.name == name);
        found.and_then(|subscription| subscription.slot_name.clone())
    };
    let is_served = |name: &str| {
        let slot = slot_of(name).unwrap_or_else(|| name.to_owned());
        slots.contains(&slot.as_str())
    };
    missing
        .iter()
        .find(|name| is_served(name))
        .map(ToString::to_string)
}

pub(super) fn missing(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for node in view
        .window
        .usable()
        .filter(|node| node.role == Role::Primary)
    {
        let Some(sample) = node.last().filter(|sample| sees_senders(node, sample)) else {
            continue;
        };
        let Some(names) = waited_for(sample).filter(|_| lacks(sample)) else {
            continue;
        };
        // Those that are connected and do not count have a rule of their own.
        if node.share(lacks) < MISSING_SHARE || are_uncounted(sample, &names) {
            continue;
        }
        let waiting = sample.clients.awaiting_sync;
        let waits = node.share(|sample| sample.clients.awaiting_sync > 0);
        let severity = match waiting {
            0 => Severity::Risk,
            _ => Severity::Lag,
        };
        let missing = absent(sample, &names);
        let mut evidence = Evidence::on(node, severity)
            .fact(
                "connected_standbys",
                connected(sample) as f64,
                format!(
                    "{} of {} replicas that commits wait for are connected",
                    connected(sample),
                    names.needed
                ),
            )
            .fact(
                "waiting_commits",
                waiting as f64,
                format!(
                    "{waiting} commits wait, in {} of the samples some did",
                    percent(waits)
                ),
            );
        let ages = sample
            .clients
            .oldest
            .iter()
            .filter(|session| session.wait.as_deref() == Some("SyncRep"));
        let oldest = ages
            .filter_map(|session| session.xact_age_ms)
            .fold(0.0, f64::max);
        if oldest > 0.0 {
            let words = format!("the oldest of them for {}", seconds(oldest));
            evidence = evidence.fact("oldest_wait_ms", oldest, words);
        }
        evidence.explains = waits;
        evidence.lag_ms = oldest;
        if !missing.is_empty() {
            let list: Vec<&str> = missing.iter().map(|name| name.as_str()).collect();
            evidence = evidence.name("missing", list.join(", "));
        }
        if let Some(name) = behind_relay(view.window, &missing) {
            evidence = evidence.name("behind_relay", name);
        }
        found.push(evidence);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::scene::{START, lsn, node};
    use super::*;
    use crate::diagnosis::{Diagnosis, diagnose};
    use crate::relay::{Relay, RelaySlot};
    use crate::rules::Cause;
    use crate::sample::Facts;
    use crate::views::Sender;

    fn sender(name: &str, state: &str) -> Sender {
        Sender {
            application_name: name.to_owned(),
            sync_state: Some(state.into()),
            replay_lsn: lsn(START),
            ..Sender::default()
        }
    }

    fn primary(setting: &str, senders: &[Sender], waiting: u64) -> NodeWindow {
        node("primary", Role::Primary, |_, _| {
            let mut sample = Sample::default();
            sample.wal.flush = lsn(START);
            sample.wal.synchronous_standby_names = Some(setting.to_owned());
            sample.senders = senders.to_vec();
            sample.clients.awaiting_sync = waiting;
            sample
        })
    }

    fn diagnosed(nodes: Vec<NodeWindow>) -> Diagnosis {
        diagnose(&Window::new(nodes))
    }

    #[test]
    fn commits_that_wait_for_nobody_who_is_there() {
        for (setting, senders, waiting, severity) in [
            ("s1", vec![], 3, Some(Severity::Lag)),
            ("s1", vec![sender("s2", "async")], 0, Some(Severity::Risk)),
            ("*", vec![], 1, Some(Severity::Lag)),
            (
                "2 (s1, s2)",
                vec![sender("S1", "sync")],
                1,
                Some(Severity::Lag),
            ),
            ("ANY 1 (s1, s2)", vec![sender("s1", "quorum")], 9, None),
            ("s1", vec![sender("S1", "sync")], 9, None),
            ("", vec![], 0, None),
        ] {
            let diagnosis = diagnosed(vec![primary(setting, &senders, waiting)]);
            let first = diagnosis.findings.first();
            assert_eq!(first.map(|found| found.severity), severity, "{setting}");
            let is_ill = diagnosis.has_lag() || diagnosis.has_risk();
            assert_eq!(is_ill, severity.is_some(), "{setting}");
            if let Some(first) = first {
                assert_eq!(first.cause, Cause::SynchronousStandbyMissing, "{setting}");
                assert!(!first.remedies.is_empty(), "{setting}");
            }
        }
    }

    #[test]
    fn a_role_that_cannot_see_who_is_synchronous_is_told_nothing() {
        let mut node = primary("s1", &[Sender::default()], 3);
        node.facts = Facts {
            monitor: false,
            ..node.facts
        };
        assert!(diagnosed(vec![node]).findings.is_empty());
    }

    #[test]
    fn a_subscription_behind_a_relay_is_recognised() {
        let relay = node("relay", Role::Relay, |_, _| Sample {
            relay: Some(Relay {
                slots: vec![RelaySlot {
                    name: "sub".to_owned(),
                    ..RelaySlot::default()
                }],
                ..Relay::default()
            }),
            ..Sample::default()
        });
        let diagnosis = diagnosed(vec![primary("nobody, sub", &[], 1), relay]);
        let found = diagnosis.findings.iter();
        let mut found = found.filter(|found| found.cause == Cause::SynchronousStandbyMissing);
        let first = found.next().unwrap();
        assert_eq!(first.names["missing"], "nobody, sub");
        assert!(
            first.remedies[0].contains("application_name = \"sub\""),
            "{:?}",
            first.remedies
        );
    }
}
