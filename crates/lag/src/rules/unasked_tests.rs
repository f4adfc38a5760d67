//! Standbys whose upstream was not asked: not named, or it does not answer. No server that was asked is to
//! blame.

use std::sync::Arc;

use super::scene::{START, STEP, Scene, lsn, sender};
use super::{Cause, Severity};
use crate::diagnosis::checks::Answer;
use crate::diagnosis::{Diagnosis, diagnose};
use crate::node::{Role, Trouble};
use crate::source::Source;
use crate::states::BackendType;
use crate::window::{NodeWindow, Window};

/// Causes that have a case here.
pub(super) const CAUSES: [Cause; 2] = [Cause::UpstreamNotAsked, Cause::NotArchivedYet];

/// The standby streams from db5:5433, by a walreceiver of the usual name, and has this at each sample. The
/// primary is db1:5432, and feeds another standby that nobody has named.
fn cascaded(end: impl Fn(u64) -> u64) -> Scene {
    let mut scene = Scene::healthy();
    let address = ("db5".to_owned(), "5433".to_owned());
    let source = Arc::new(Source {
        streams: Some(true),
        address: Some(address),
        slot: Some("second".to_owned()),
        ..Source::default()
    });
    scene.primary.address = "db1:5432/app".to_owned();
    scene.primary.facts.hosts = vec!["db1".to_owned()];
    let port = ("port".to_owned(), "5432".to_owned());
    scene.primary.facts.settings.extend([port]);
    for (index, sample) in (0..).zip(&mut scene.standby.samples) {
        let end = end(index);
        (sample.wal.receive, sample.wal.replay) = (lsn(end), lsn(end));
        let receiver = sample.receiver.as_mut().unwrap();
        receiver.written_lsn = lsn(end);
        receiver.slot_name = Some("second".to_owned());
        receiver.sender_host = Some("db5".to_owned());
        receiver.sender_port = Some(5433);
        receiver.application_name = Some("walreceiver".to_owned());
        sample.source = Some(Arc::clone(&source));
    }
    for (index, sample) in (0..).zip(&mut scene.primary.samples) {
        sample.senders[0] = sender(10, "walreceiver", START + index * STEP);
        sample.slots[0].slot_name = "first".to_owned();
    }
    scene
}

/// The server at db5:5433, which does not answer.
fn silent() -> NodeWindow {
    let mut node = NodeWindow::empty("first", Role::Standby);
    node.address = "db5:5433/app".to_owned();
    node.troubles.push(Trouble::Unreachable {
        reason: "refused".to_owned(),
    });
    node
}

fn diagnosis(scene: Scene, named: bool) -> Diagnosis {
    let mut nodes = vec![scene.primary, scene.standby, scene.one, scene.two];
    nodes.extend(named.then(silent));
    diagnose(&Window::new(nodes))
}

fn causes(diagnosis: &Diagnosis) -> Vec<Cause> {
    let found = diagnosis.findings.iter().filter(|it| it.at == "standby");
    found.map(|it| it.cause).collect()
}

#[test]
fn an_upstream_that_was_not_asked_is_not_known() {
    for (named, words) in [
        (false, "it streams from db5:5433, which is not named here"),
        (true, "it streams from first, which cannot be asked"),
    ] {
        let diagnosis = diagnosis(cascaded(|index| START + index * STEP), named);
        assert_eq!(causes(&diagnosis), []);
        assert!(!diagnosis.healthy && !diagnosis.has_lag());
        let mut checks = diagnosis.checks.iter();
        let check = checks.find(|it| it.check == "streams" && it.at == "standby");
        let check = check.unwrap();
        assert_eq!(
            (check.answer, check.words.as_str()),
            (Answer::NotKnown, words)
        );
        let said = diagnosis.unknown.iter().any(|it| it.contains(words));
        assert!(said, "{:?}", diagnosis.unknown);
    }
}

#[test]
fn lag_behind_an_upstream_that_was_not_asked_is_nobody_else_s() {
    for (named, begins) in [
        (false, "name the server at db5:5433 here"),
        (true, "let first answer"),
    ] {
        let diagnosis = diagnosis(cascaded(|_| START), named);
        assert_eq!(causes(&diagnosis), [Cause::UpstreamNotAsked], "{named}");
        let found = diagnosis.findings.iter().find(|it| it.at == "standby");
        let remedies = &found.unwrap().remedies;
        assert!(remedies[0].starts_with(begins), "{remedies:?}");
        assert!(
            !remedies.concat().contains("primary_conninfo"),
            "{remedies:?}"
        );
        let link = diagnosis.links.iter().find(|it| it.replica == "standby");
        let from = link.and_then(|it| it.streams_from.as_deref());
        assert_eq!(from, Some(if named { "first" } else { "db5:5433" }));
    }
}

/// A standby that does not stream any more: what it needs of its upstream is not looked for on the primary.
#[test]
fn an_upstream_that_is_gone_is_named() {
    for (named, begins) in [
        (false, "name the server at db5:5433 here"),
        (true, "let first answer, or start it"),
    ] {
        let mut scene = cascaded(|_| START);
        for sample in &mut scene.standby.samples {
            sample.receiver = None;
            sample.processes.truncate(1);
        }
        let diagnosis = diagnosis(scene, named);
        assert_eq!(causes(&diagnosis), [Cause::UpstreamElsewhere], "{named}");
        let found = diagnosis.findings.iter().find(|it| it.at == "standby");
        let remedies = &found.unwrap().remedies;
        assert!(remedies[0].starts_with(begins), "{remedies:?}");
    }
}

/// The primary is asked at another address than its standby streams from.
#[test]
fn a_walsender_of_the_standby_says_that_it_is_the_upstream() {
    let through = |change: fn(&mut Scene)| {
        let mut scene = cascaded(|index| START + index * STEP);
        change(&mut scene);
        diagnosis(scene, false).healthy
    };
    assert!(!through(|_| {}));
    // Its slot is in use there.
    assert!(through(|scene| {
        for sample in &mut scene.primary.samples {
            sample.slots[0].slot_name = "second".to_owned();
        }
    }));
    // A walsender comes from its address.
    assert!(through(|scene| {
        scene.standby.facts.hosts = vec!["10.0.0.7".to_owned()];
        for sample in &mut scene.primary.samples {
            sample.senders[0].client = Some("10.0.0.7".to_owned());
        }
    }));
    // It has a name of its own, and no slot.
    assert!(through(|scene| {
        let named = "own".to_owned();
        for sample in &mut scene.standby.samples {
            let receiver = sample.receiver.as_mut().unwrap();
            receiver.slot_name = None;
            receiver.application_name = Some(named.clone());
        }
        for sample in &mut scene.primary.samples {
            sample.senders[0].application_name.clone_from(&named);
        }
    }));
}

/// A server allows that.
#[test]
fn a_standby_that_streams_from_itself_is_told() {
    for (is_late, severity) in [(true, Severity::Lag), (false, Severity::Risk)] {
        let mut scene = cascaded(|index| START + if is_late { 0 } else { index * STEP });
        scene.standby.address = "db5:5433/app".to_owned();
        let diagnosis = diagnosis(scene, false);
        assert_eq!(causes(&diagnosis), [Cause::UpstreamElsewhere]);
        let found = diagnosis
            .findings
            .iter()
            .find(|it| it.at == "standby")
            .unwrap();
        assert_eq!(found.severity, severity);
        let said = format!("{:?}", found.evidence);
        assert!(said.contains("that is its own address"), "{said}");
    }
}

/// Bytes of a segment.
const SEGMENT: u64 = 16 * 1024 * 1024;

/// A standby that has restored all of its archive, where the primary has ended this many transactions more.
fn restored(more: u64, timeout: &str) -> Diagnosis {
    let mut scene = Scene::healthy();
    let source = Arc::new(Source {
        streams: Some(false),
        restores: true,
        ..Source::default()
    });
    let settings = [
        ("wal_segment_size", SEGMENT.to_string()),
        ("archive_timeout", timeout.to_owned()),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value));
    scene.primary.facts.settings.extend(settings);
    for sample in &mut scene.standby.samples {
        (sample.wal.receive, sample.wal.replay) = (None, lsn(START));
        sample.wal.next_xid = Some(700);
        sample.receiver = None;
        let asks = "RecoveryRetrieveRetryInterval";
        let startup = super::scene::process(21, BackendType::Startup.name(), "Timeout", asks);
        sample.processes = vec![startup];
        sample.source = Some(Arc::clone(&source));
    }
    for sample in &mut scene.primary.samples {
        sample.archiver.archived_end = lsn(START);
        sample.archiver.archived_age_ms = Some(90_000.0);
        sample.wal.next_xid = Some(700 + more);
        sample.senders.remove(0);
        sample.slots.remove(0);
    }
    scene.diagnose()
}

#[test]
fn what_is_not_archived_yet_is_told() {
    let found = |more, timeout| {
        let diagnosis = restored(more, timeout);
        assert!(!diagnosis.has_lag(), "{:?}", diagnosis.findings);
        let causes = causes(&diagnosis);
        (causes, diagnosis.has_risk(), diagnosis.healthy)
    };
    assert_eq!(found(0, "0"), (vec![], false, true));
    let told = vec![Cause::NotArchivedYet];
    assert_eq!(found(3, "0"), (told.clone(), true, false));
    // With a timeout that is as it is meant to be.
    assert_eq!(found(3, "60"), (told, false, true));
}
