//! Standbys whose way does not lead to a primary.

use std::sync::Arc;

use lockstep_client::Conninfo;

use super::Cause;
use super::scene::{START, STEP, Scene, lsn, sender, slot};
use crate::diagnosis::checks::Answer;
use crate::diagnosis::{Diagnosis, diagnose};
use crate::source::Source;
use crate::window::{NodeWindow, Window};

/// Causes that have a case here.
pub(super) const CAUSES: [Cause; 1] = [Cause::NoWayToPrimary];

/// A standby that streams from `upstream`, which has a slot for it. Both have `end` in each sample.
fn follows(scene: &Scene, name: &str, fed: &[&str], end: impl Fn(u64) -> u64) -> NodeWindow {
    let mut node = scene.standby.clone();
    node.name = name.to_owned();
    for (index, sample) in (0..).zip(&mut node.samples) {
        let end = end(index);
        let receiver = sample.receiver.as_mut().unwrap();
        receiver.slot_name = Some(name.to_owned());
        receiver.written_lsn = lsn(end);
        (sample.wal.receive, sample.wal.replay) = (lsn(end), lsn(end));
        let fed = || (50..).zip(fed);
        sample.senders = fed().map(|(pid, name)| sender(pid, name, end)).collect();
        let slots = fed().map(|(pid, name)| slot(name, "physical", pid, end));
        sample.slots = slots.collect();
    }
    node
}

/// The primary feeds nobody.
fn alone() -> Scene {
    let mut scene = Scene::healthy();
    for sample in &mut scene.primary.samples {
        sample.senders.clear();
        sample.slots.clear();
    }
    scene
}

/// Standbys that stand still, each with those that it feeds.
fn standing(scene: Scene, fed: &[(&str, &[&str])]) -> Diagnosis {
    let nodes = fed
        .iter()
        .map(|(name, fed)| follows(&scene, name, fed, |_| START));
    let nodes: Vec<NodeWindow> = nodes.collect();
    diagnose(&Window::new([vec![scene.primary], nodes].concat()))
}

fn found(diagnosis: &Diagnosis) -> Vec<(Cause, &str, &str)> {
    let findings = diagnosis.findings.iter();
    let lags = findings.filter(|it| it.cause == Cause::NoWayToPrimary);
    lags.map(|it| (it.cause, it.at.as_str(), it.title.as_str()))
        .collect()
}

/// Each standby with those that it feeds.
type Fed = &'static [(&'static str, &'static [&'static str])];

#[test]
fn standbys_that_follow_each_other_are_found() {
    let two = "s1 and s2 follow each other, and neither gets anything from the primary";
    let three =
        "s1 follows s3, s3 follows s2, s2 follows s1, and none gets anything from the primary";
    let cases: [(Fed, &str); 3] = [
        (&[("s1", &["s2"]), ("s2", &["s1"])], two),
        (&[("s1", &["s2"]), ("s2", &["s3"]), ("s3", &["s1"])], three),
        // One more hangs on the ring.
        (&[("s3", &[]), ("s1", &["s2"]), ("s2", &["s1", "s3"])], two),
    ];
    for (fed, words) in cases {
        let diagnosis = standing(alone(), fed);
        let all = found(&diagnosis);
        assert_eq!(all.len(), fed.len(), "{:?}", diagnosis.findings);
        assert!(all.iter().all(|(_, _, title)| *title == words), "{all:?}");
        assert!(diagnosis.has_lag() && !diagnosis.healthy);
        assert!(
            diagnosis
                .findings
                .iter()
                .all(|it| it.lag_ms > 1_000.0 || !all.iter().any(|one| one.0 == it.cause))
        );
        assert!(diagnosis.failover.iter().all(|it| !it.against.is_empty()));
        let at = |check: &str| {
            let checks = diagnosis.checks.iter().filter(move |it| it.check == check);
            checks.map(|it| it.answer).collect::<Vec<_>>()
        };
        assert_eq!(at("keeps_up"), vec![Answer::Wrong; fed.len()]);
    }
}

/// The remedy leads the member that has most WAL to the primary.
#[test]
fn the_remedy_leads_one_of_them_to_the_primary() {
    let remedies = |slot: Option<&str>, has_source: bool| {
        let mut scene = alone();
        scene.primary.facts.hosts = vec!["db1".to_owned()];
        let port = ("port".to_owned(), "5433".to_owned());
        scene.primary.facts.settings.extend([port]);
        scene.standby.facts.hosts = vec!["db2".to_owned()];
        for sample in &mut scene.standby.samples {
            sample.source = has_source.then(|| {
                Arc::new(Source {
                    streams: Some(true),
                    conninfo: Conninfo::parse("host=db3 user=r").ok(),
                    slot: slot.map(str::to_owned),
                    ..Source::default()
                })
            });
        }
        let diagnosis = standing(scene, &[("s1", &["s2"]), ("s2", &["s1"])]);
        let finding = diagnosis
            .findings
            .into_iter()
            .find(|it| it.cause == Cause::NoWayToPrimary);
        finding.unwrap().remedies
    };
    let all = remedies(None, true);
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(
        all[0]
            .starts_with("on s1: ALTER SYSTEM SET primary_conninfo = 'user=r host=db1 port=5433'"),
        "{all:?}"
    );
    let all = remedies(Some("s1"), true);
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(
        all[0].starts_with(
            "on primary: SELECT pg_create_physical_replication_slot('s1'); then on s1: "
        )
    );
    let all = remedies(None, false);
    assert_eq!(all.len(), 1);
    assert!(
        all[0].starts_with("on s1: primary_conninfo that leads"),
        "{all:?}"
    );
}

/// Two that get WAL follow no ring, whatever their slots look like; a chain to the primary is none either.
#[test]
fn what_gets_wal_is_in_no_ring() {
    let scene = alone();
    let one = follows(&scene, "s1", &["s2"], |index| START + index * STEP);
    let two = follows(&scene, "s2", &["s1"], |index| START + index * STEP);
    let diagnosis = diagnose(&Window::new(vec![scene.primary, one, two]));
    assert!(found(&diagnosis).is_empty());

    let scene = Scene::healthy();
    let mut first = scene.standby.clone();
    let second = follows(&scene, "s2", &[], |index| START + index * STEP);
    for (sample, fed) in first.samples.iter_mut().zip(&scene.primary.samples) {
        let end = fed.wal.flush.map_or(0, u64::from);
        sample.senders = vec![sender(50, "s2", end)];
        sample.slots = vec![slot("s2", "physical", 50, end)];
    }
    let diagnosis = diagnose(&Window::new(vec![
        scene.primary,
        first,
        second,
        scene.one,
        scene.two,
    ]));
    assert!(
        diagnosis.healthy,
        "{:?} {:?}",
        diagnosis.unknown, diagnosis.findings
    );
}

/// A standby has all that its upstream has, which nobody feeds.
#[test]
fn a_chain_below_a_standby_that_is_not_fed_is_not_healthy() {
    let mut scene = alone();
    for sample in &mut scene.standby.samples {
        sample.receiver.as_mut().unwrap().slot_name = None;
    }
    let mut top = follows(&scene, "s1", &["s2"], |_| START);
    for sample in &mut top.samples {
        sample.receiver = None;
        sample.processes.truncate(1);
    }
    let below = follows(&scene, "s2", &[], |_| START);
    let diagnosis = diagnose(&Window::new(vec![scene.primary, top, below]));
    assert!(found(&diagnosis).is_empty());
    assert!(diagnosis.has_lag() && !diagnosis.healthy);
    assert_eq!(diagnosis.first(), Some(Cause::NotStreaming));
}

/// Without a link that lags nobody knows why a replica is late from end to end.
#[test]
fn late_from_end_to_end_alone_is_not_known() {
    let scene = alone();
    let mut one = follows(&scene, "s1", &["s2"], |_| START);
    let mut two = follows(&scene, "s2", &["s1"], |_| START);
    // That they do not say that they stream hides the ring.
    for node in [&mut one, &mut two] {
        for sample in &mut node.samples {
            sample.receiver.as_mut().unwrap().status = Some("restarting".into());
        }
        let last = node.samples.len() - 1;
        for sample in &mut node.samples[..last] {
            sample.receiver.as_mut().unwrap().status = Some("streaming".into());
        }
    }
    let diagnosis = diagnose(&Window::new(vec![scene.primary, one, two]));
    assert!(found(&diagnosis).is_empty() && !diagnosis.healthy);
    let words = "behind the primary, and no server on its way";
    let of_lag = |it: &&crate::diagnosis::checks::CheckReport| it.check == "keeps_up";
    let mut checks = diagnosis.checks.iter().filter(of_lag);
    assert!(
        checks.all(|it| it.answer == Answer::NotKnown && it.words.contains(words)),
        "{:?}",
        diagnosis.checks
    );
}
