//! Standbys that get no WAL, and those that get it from an archive.

use std::sync::Arc;
use std::time::Duration;

use lockstep_client::Conninfo;

use super::Cause;
use super::scene::{START, Scene, lsn, process, sender};
use crate::diagnosis::checks::Answer;
use crate::diagnosis::{Diagnosis, diagnose};
use crate::process_cpu::Cpu;
use crate::source::Source;
use crate::states::{BackendType, ReceiverStatus, SenderState};
use crate::views::{Receiver, Sender, WalFolder};
use crate::window::{NodeWindow, Window};

/// Causes that have a case here.
pub(super) const CAUSES: [Cause; 5] = [
    Cause::SlotTaken,
    Cause::SlotMissing,
    Cause::WalRemoved,
    Cause::UpstreamElsewhere,
    Cause::RestoreFails,
];

/// Bytes of a segment.
const SEGMENT: u64 = 16 * 1024 * 1024;

fn source(change: impl Fn(&mut Source)) -> Source {
    let mut source = Source {
        streams: Some(true),
        ..Source::default()
    };
    change(&mut source);
    source
}

/// The standby does not stream any more, and has these settings.
fn unfed(source: &Source) -> Scene {
    let mut scene = Scene::healthy();
    for sample in &mut scene.standby.samples {
        (sample.wal.receive, sample.wal.replay) = (lsn(START), lsn(START));
        sample.receiver = None;
        sample.processes = vec![process(21, "startup", "Activity", "RecoveryWalStream")];
        sample.source = Some(Arc::new(source.clone()));
    }
    for sample in &mut scene.primary.samples {
        sample.senders.remove(0);
        sample.slots[0].active = false;
        sample.slots[0].active_pid = None;
    }
    scene
}

fn causes(diagnosis: &Diagnosis) -> Vec<Cause> {
    let found = diagnosis.findings.iter();
    found
        .filter(|found| found.at == "standby")
        .map(|found| found.cause)
        .collect()
}

#[test]
fn why_a_standby_gets_no_wal_is_told() {
    let address = |host: &str| Some((host.to_owned(), "5432".to_owned()));
    let slot = |name: &str| Some(name.to_owned());
    let not_known = vec![Cause::NotStreaming];
    for (settings, expected) in [
        (source(|_| {}), not_known.clone()),
        (source(|it| it.slot = slot("standby")), not_known.clone()),
        (
            source(|it| it.slot = slot("gone")),
            vec![Cause::SlotMissing],
        ),
        (source(|it| it.address = address("db1")), not_known),
        (
            source(|it| it.address = address("db9")),
            vec![Cause::UpstreamElsewhere],
        ),
    ] {
        let mut scene = unfed(&settings);
        scene.primary.address = "db1:5432/app".to_owned();
        let diagnosis = scene.diagnose();
        assert_eq!(causes(&diagnosis), expected, "{settings:?}");
    }
}

/// A server has more addresses than the one that it is asked at: where it may have that one, the standby may
/// fail for another reason.
#[test]
fn another_address_of_the_upstream_is_not_elsewhere() {
    let found = |host: &str, port: &str, listens: &str, asked_at: &str| {
        let mut scene = unfed(&source(|it| {
            it.address = Some((host.to_owned(), "5432".to_owned()));
        }));
        scene.primary.address = format!("{asked_at}:5432/app");
        scene.primary.facts.hosts = vec![asked_at.to_owned()];
        scene.standby.facts.hosts = vec!["/run".to_owned()];
        let says = [
            ("port", port),
            ("listen_addresses", listens),
            ("unix_socket_directories", "/tmp, /run"),
        ];
        let says = says.map(|(name, value)| (name.to_owned(), value.to_owned()));
        scene.primary.facts.settings.extend(says);
        causes(&scene.diagnose())
    };
    let not_known = [Cause::NotStreaming];
    let elsewhere = [Cause::UpstreamElsewhere];
    for (host, listens, asked_at, expected) in [
        ("127.0.0.1", "*", "/run", not_known),
        ("localhost", "localhost", "/run", not_known),
        ("/run", "", "127.0.0.1", not_known),
        // It does not listen there.
        ("127.0.0.1", "10.0.0.1", "/run", elsewhere),
        ("/var", "*", "/run", elsewhere),
        // Another name of it, or another server.
        ("db1.example.com", "*", "db1", not_known),
        ("10.0.0.2", "0.0.0.0", "db1", not_known),
        ("10.0.0.2", "10.0.0.1", "db1", elsewhere),
    ] {
        assert_eq!(
            found(host, "5432", listens, asked_at),
            expected,
            "{host} {listens}"
        );
        assert_eq!(found(host, "5433", listens, "db1"), elsewhere, "{host}");
    }
}

/// What doctor says of a standby that is sent to a server with this system identifier, which answers or not.
fn sent_to(system: &str, answers: bool) -> Diagnosis {
    let address = Some(("db9".to_owned(), "5432".to_owned()));
    let scene = unfed(&source(|it| {
        it.address.clone_from(&address);
        it.slot = Some("standby".to_owned());
    }));
    let healthy = Scene::healthy();
    let mut other = NodeWindow {
        name: "other".to_owned(),
        address: "db9:5432/app".to_owned(),
        ..healthy.one
    };
    other.facts.system = system.to_owned();
    if !answers {
        other.samples.clear();
    }
    let nodes = vec![scene.primary, scene.standby, other, scene.two];
    diagnose(&Window::new(nodes))
}

#[test]
fn a_standby_that_is_sent_to_another_cluster_or_a_dead_server_is_told_so() {
    for (system, answers, words) in [
        (
            "2",
            true,
            Some("that is other, which is of another cluster"),
        ),
        ("2", false, Some("that is other, which does not answer")),
        ("1", true, None),
    ] {
        let diagnosis = sent_to(system, answers);
        // A slot is not looked for on a server of another cluster.
        let is_slot = |it: &Cause| *it == Cause::SlotMissing;
        let no_slot = words.is_none();
        assert_eq!(causes(&diagnosis).iter().any(is_slot), no_slot, "{system}");
        let found = diagnosis.findings.iter();
        let mut found = found.filter(|it| it.cause == Cause::UpstreamElsewhere);
        let said = found.next().map(|it| format!("{:?}", it.evidence));
        let expected = words.is_none_or(|words| said.as_ref().is_some_and(|it| it.contains(words)));
        assert!(expected && said.is_some() == words.is_some(), "{said:?}");
    }
}

/// The upstream of a cascaded standby is dead, and its slot is only there.
#[test]
fn where_a_standby_is_to_go_there_is_a_slot_for_it() {
    for (slot, is_there) in [("standby", true), ("it's", false)] {
        let mut scene = unfed(&source(|it| {
            it.address = Some(("db9".to_owned(), "5432".to_owned()));
            it.conninfo = Conninfo::parse("host=db9 user=u").ok();
            it.slot = Some(slot.to_owned());
        }));
        for (node, host) in [(&mut scene.primary, "db1"), (&mut scene.standby, "db2")] {
            node.facts.hosts = vec![host.to_owned()];
            let port = ("port".to_owned(), "5433".to_owned());
            node.facts.settings.extend([port]);
        }
        let diagnosis = scene.diagnose();
        let found = diagnosis.findings.iter();
        let mut found = found.filter(|it| it.cause == Cause::UpstreamElsewhere);
        let found = found.next().unwrap();
        let leads = found
            .remedies
            .iter()
            .position(|it| it.contains("SET primary_conninfo = 'user=u host=db1"));
        // Somebody may be there whom nobody has named.
        assert!(found.remedies[0].starts_with("name the server at db9:5432 here"));
        assert_eq!(leads, Some(1), "{:#?}", found.remedies);
        let creates = "on primary: SELECT pg_create_physical_replication_slot('it''s');";
        assert_eq!(
            found.remedies[1].starts_with(creates),
            !is_there,
            "{:#?}",
            found.remedies
        );
        let without = "on standby: ALTER SYSTEM SET primary_slot_name = ''; ALTER SYSTEM SET \
            primary_conninfo";
        assert_eq!(
            found.remedies[2].starts_with(without),
            !is_there,
            "{:#?}",
            found.remedies
        );
        let said = format!("{:?}", found.evidence);
        assert_eq!(
            said.contains("primary has no such slot"),
            !is_there,
            "{said}"
        );
    }
}

/// Another check says that a standby does not stream, so nobody is missing at its slot.
#[test]
fn the_slot_of_a_standby_that_was_asked_misses_nobody() {
    for (slot, expected) in [("standby", Answer::Well), ("other", Answer::NotKnown)] {
        let diagnosis = unfed(&source(|it| it.slot = Some(slot.to_owned()))).diagnose();
        let mut checks = diagnosis.checks.iter();
        let check = checks.find(|it| it.check == "slot" && it.at == "slot standby on primary");
        assert_eq!(check.unwrap().answer, expected, "{slot}");
    }
}

/// Walreceivers and walsenders of which none gets beyond its start, each seen in this number of samples.
fn trying(of: u32) -> Scene {
    let mut scene = unfed(&source(|it| it.slot = Some("gone".to_owned())));
    let both = scene
        .standby
        .samples
        .iter_mut()
        .zip(&mut scene.primary.samples);
    for (index, (below, above)) in (0..).zip(both) {
        below.receiver = Some(Receiver {
            pid: 40 + index / of,
            status: Some(ReceiverStatus::Streaming),
            ..Receiver::default()
        });
        above.senders.push(Sender {
            state: Some(SenderState::Startup),
            ..sender(140 + index / of, "standby", START)
        });
    }
    scene
}

#[test]
fn a_walreceiver_that_fails_again_and_again_does_not_stream() {
    for of in [1, 2, 7, 20] {
        assert_eq!(causes(&trying(of).diagnose()), [Cause::SlotMissing], "{of}");
    }
    // One that gets something streams, also if it has just begun.
    let mut scene = trying(7);
    let last = scene.standby.samples.last_mut().unwrap();
    last.receiver.as_mut().unwrap().written_lsn = lsn(START);
    assert_eq!(causes(&scene.diagnose()), [Cause::ConnectionLost]);
    // So does one that stays: there may be nothing to get.
    assert_eq!(causes(&trying(30).diagnose()), []);
}

#[test]
fn wal_that_was_removed_is_told() {
    for (oldest, expected) in [
        (START, Cause::NotStreaming),
        (START + SEGMENT, Cause::WalRemoved),
    ] {
        let mut scene = unfed(&source(|_| {}));
        for sample in &mut scene.primary.samples {
            sample.wal_folder = Some(WalFolder {
                oldest: lsn(oldest),
                ..WalFolder::default()
            });
        }
        assert_eq!(causes(&scene.diagnose()), [expected]);
    }
}

#[test]
fn a_clone_with_the_slot_of_another_is_told() {
    let proxy = Some(("proxy".to_owned(), "6000".to_owned()));
    for address in [None, proxy] {
        let mut scene = unfed(&source(|it| {
            it.slot = Some("standby".to_owned());
            it.address = address.clone();
        }));
        let healthy = Scene::healthy();
        scene.primary = healthy.primary;
        let other = NodeWindow {
            name: "other".to_owned(),
            ..healthy.standby
        };
        let nodes = vec![scene.primary, other, scene.standby, scene.one, scene.two];
        let diagnosis = diagnose(&Window::new(nodes));
        let mut found = diagnosis.findings.iter();
        let found = found.find(|found| found.cause == Cause::SlotTaken).unwrap();
        assert!(found.title.contains("other"));
        for (remedy, begins) in found.remedies.iter().zip([
            "on primary: SELECT pg_create_physical_replication_slot('standby_2', true);",
            "on standby: ALTER SYSTEM SET primary_slot_name = 'standby_2'; SELECT pg_reload_conf();",
            "on standby: ALTER SYSTEM SET primary_slot_name = ''; SELECT pg_reload_conf();",
        ]) {
            assert!(remedy.starts_with(begins), "{remedy}");
        }
        assert_eq!(found.remedies.len(), 3, "{:?}", found.remedies);
        if address.is_none() {
            assert_eq!(causes(&diagnosis), [Cause::SlotTaken]);
        }
    }
}

/// A standby that restores from an archive, so much of which is there, and whose startup process waits for
/// this.
fn restoring(archived: u64, wait_type: &str, wait: &str) -> Diagnosis {
    let mut scene = restoring_scene(wait_type, wait);
    for sample in &mut scene.primary.samples {
        sample.archiver.archived_end = lsn(START + archived);
    }
    scene.diagnose()
}

fn restoring_scene(wait_type: &str, wait: &str) -> Scene {
    let mut scene = unfed(&Source {
        streams: Some(false),
        restores: true,
        ..Source::default()
    });
    let size = ("wal_segment_size".to_owned(), SEGMENT.to_string());
    scene.primary.facts.settings.extend([size]);
    let delay = ("max_standby_archive_delay".to_owned(), "7000".to_owned());
    scene.standby.facts.settings.extend([delay]);
    for sample in &mut scene.primary.samples {
        sample.slots.remove(0);
    }
    for sample in &mut scene.standby.samples {
        sample.wal.receive = None;
        sample.processes = vec![process(21, BackendType::Startup.name(), wait_type, wait)];
    }
    scene
}

/// A `restore_command` takes 0.7 s, and between two calls one segment is replayed by a process that then runs
/// all the time.
#[test]
fn a_slow_restore_command_is_no_slow_core() {
    for with_cpu in [true, false] {
        let mut scene = restoring_scene("IPC", "RestoreCommand");
        for sample in &mut scene.primary.samples {
            sample.archiver.archived_end = lsn(START + 9 * SEGMENT);
        }
        let mut ran = Duration::ZERO;
        for (index, sample) in (0..).zip(&mut scene.standby.samples) {
            let replays = (20..30).contains(&index);
            let done = (index.clamp(20, 30) - 20) * SEGMENT / 10;
            sample.wal.replay = lsn(START + done);
            if replays {
                ran += Duration::from_millis(100);
                sample.processes = vec![process(21, BackendType::Startup.name(), "", "")];
            }
            sample.processes[0].cpu = with_cpu.then_some(Cpu {
                ran,
                queued: Duration::ZERO,
                stopped: false,
            });
        }
        let found = causes(&scene.diagnose());
        assert_eq!(found, [Cause::RestoreSlow], "{with_cpu}");
    }
}

/// pg_receivewal gives a segment its name when it is full; what nobody archives can be there up to that, too.
#[test]
fn a_segment_that_is_not_full_is_not_missed_in_an_archive() {
    for (receiver, flushed, expected) in [
        (false, 2 * SEGMENT, None),
        (false, 4 * SEGMENT, Some(Cause::RestoreFails)),
        (true, 2 * SEGMENT, None),
        (true, 4 * SEGMENT, Some(Cause::RestoreFails)),
    ] {
        let mut scene = restoring_scene("Timeout", "RecoveryRetrieveRetryInterval");
        let off = ("archive_mode".to_owned(), "off".to_owned());
        scene.primary.facts.settings.extend([off]);
        for sample in &mut scene.primary.samples {
            // That of an archiver which is off says nothing.
            sample.archiver.archived_end = lsn(START);
            let end = START + flushed;
            match receiver {
                true => {
                    let mut sender = sender(140, "pg_receivewal", end);
                    sender.replay_lsn = None;
                    sample.senders.push(sender);
                    sample.wal.flush = lsn(end + SEGMENT);
                }
                false => sample.wal.flush = lsn(end),
            }
        }
        let found = causes(&scene.diagnose());
        assert_eq!(found.first().copied(), expected, "{receiver} {flushed}");
    }
}

#[test]
fn a_standby_that_restores_from_an_archive_is_late_only_if_more_is_there() {
    const ASKS: &str = "RecoveryRetrieveRetryInterval";
    for (archived, wait_type, wait, expected) in [
        (0, "Timeout", ASKS, None),
        (SEGMENT - 1, "IPC", "RestoreCommand", None),
        (9 * SEGMENT, "Timeout", ASKS, Some(Cause::RestoreFails)),
        (
            9 * SEGMENT,
            "IPC",
            "RecoveryConflictSnapshot",
            Some(Cause::RecoveryConflict),
        ),
        (
            9 * SEGMENT,
            "Timeout",
            "RecoveryApplyDelay",
            Some(Cause::ReplayDelayed),
        ),
        (
            9 * SEGMENT,
            "BufferPin",
            "BufferPin",
            Some(Cause::CleanupLock),
        ),
    ] {
        let diagnosis = restoring(archived, wait_type, wait);
        let found = causes(&diagnosis);
        assert_eq!(found.first().copied(), expected, "{wait}: {found:?}");
        let mut links = diagnosis.links.iter();
        let link = links.find(|link| link.replica == "standby").unwrap();
        assert_eq!(link.behind, expected.is_some(), "{wait}: {link:?}");
        let mut checks = diagnosis.checks.iter();
        let check = checks.find(|one| one.check == "streams").unwrap();
        let answer = match expected {
            None => Answer::Well,
            Some(Cause::RestoreFails) => Answer::Wrong,
            Some(_) => Answer::NotKnown,
        };
        assert_eq!(check.answer, answer, "{wait}");
        if expected == Some(Cause::RecoveryConflict) {
            let remedies = diagnosis.findings[0].remedies.join("\n");
            assert!(
                remedies.contains("max_standby_archive_delay (now 7s"),
                "{remedies}"
            );
        }
    }
}

/// What an `archive_command` does not even name it throws away.
#[test]
fn an_archive_command_that_stores_nothing_is_named() {
    for (command, is_named) in [
        ("/bin/true", true),
        ("exit 0", true),
        ("cp %p /archive/%f", false),
        ("", false),
    ] {
        let mut scene = restoring_scene("Timeout", "RecoveryRetrieveRetryInterval");
        let setting = ("archive_command".to_owned(), command.to_owned());
        scene.primary.facts.settings.extend([setting]);
        for sample in &mut scene.primary.samples {
            sample.archiver.archived_end = lsn(START + 9 * SEGMENT);
        }
        let found = scene.diagnose().findings;
        assert_eq!(found[0].cause, Cause::RestoreFails, "{command}");
        let first = &found[0].remedies[0];
        let named = "on primary: set an archive_command";
        assert_eq!(first.starts_with(named), is_named, "{command}: {first}");
    }
}

/// The startup process may be seen while it waits for nothing between two calls of a `restore_command`.
#[test]
fn a_moment_between_two_questions_is_no_slow_core() {
    let mut scene = restoring_scene("Timeout", "RecoveryRetrieveRetryInterval");
    for sample in &mut scene.primary.samples {
        sample.archiver.archived_end = lsn(START + 9 * SEGMENT);
    }
    let startup = &mut scene.standby.samples[25].processes[0];
    (startup.wait_type, startup.wait) = (None, None);
    assert_eq!(causes(&scene.diagnose()), [Cause::RestoreFails]);
}

/// One segment more is archived than the standby has, for this long: it may come with the next question.
#[test]
fn a_segment_that_stays_away_is_missed() {
    for (age_ms, expected) in [(6_000.0, None), (8_000.0, Some(Cause::RestoreFails))] {
        let mut scene = restoring_scene("Timeout", "RecoveryRetrieveRetryInterval");
        for sample in &mut scene.primary.samples {
            sample.archiver.archived_end = lsn(START + SEGMENT);
            sample.archiver.archived_age_ms = Some(age_ms);
        }
        let diagnosis = scene.diagnose();
        assert_eq!(causes(&diagnosis).first().copied(), expected, "{age_ms}");
        let link = diagnosis.links.iter().find(|it| it.replica == "standby");
        assert_eq!(link.unwrap().behind, expected.is_some());
    }
}

/// Another program fills the archive, and nobody knows for how long a segment has been there.
#[test]
fn whether_a_segment_is_missed_may_not_be_known() {
    for (flushed, answer) in [(SEGMENT / 4, Answer::Well), (2 * SEGMENT, Answer::NotKnown)] {
        let mut scene = restoring_scene("Timeout", "RecoveryRetrieveRetryInterval");
        let off = ("archive_mode".to_owned(), "off".to_owned());
        scene.primary.facts.settings.extend([off]);
        for sample in &mut scene.primary.samples {
            sample.wal.flush = lsn(START + flushed);
        }
        let diagnosis = scene.diagnose();
        let mut checks = diagnosis.checks.iter();
        let check = checks.find(|it| it.check == "streams" && it.at == "standby");
        assert_eq!(check.unwrap().answer, answer, "{flushed}");
    }
}

/// The primary's archiver has done nothing since its statistics began, as after a failover.
#[test]
fn an_archive_that_nobody_knows_is_not_known() {
    let diagnosis = restoring_scene("Timeout", "RecoveryRetrieveRetryInterval").diagnose();
    assert_eq!(causes(&diagnosis), []);
    assert!(!diagnosis.healthy && !diagnosis.has_lag(), "{diagnosis:#?}");
    let said = diagnosis
        .unknown
        .iter()
        .any(|it| it.contains("how far the archive of standby is"));
    assert!(said, "{:?}", diagnosis.unknown);
}

/// A slot of the right name that is for no standby.
#[test]
fn a_logical_slot_is_no_slot_of_a_standby() {
    let mut scene = unfed(&source(|it| it.slot = Some("slot_one".to_owned())));
    scene.primary.address = "db1:5432/app".to_owned();
    let diagnosis = scene.diagnose();
    assert_eq!(causes(&diagnosis), [Cause::SlotMissing]);
    let found = diagnosis
        .findings
        .iter()
        .find(|it| it.at == "standby")
        .unwrap();
    assert!(found.title.contains("is a logical one"), "{}", found.title);
    assert!(
        !found.remedies.concat().contains("pg_create"),
        "{:?}",
        found.remedies
    );
}
