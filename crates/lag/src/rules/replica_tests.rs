//! Replicas of Lockstep: how they are recognised, what they do, and why they do not apply.

use super::scene::{START, STEP, Scene, lsn, process};
use super::{Cause, Severity};
use crate::diagnosis::{Diagnosis, Finding, diagnose};
use crate::replica::{Doing, Hold, Replica, ReplicaReport, named};
use crate::sample::Sample;
use crate::window::Window;

/// Causes that have a case here.
pub(super) const CAUSES: [Cause; 9] = [
    Cause::ReplicaStopped,
    Cause::ReplicaPaused,
    Cause::ReplicaNotRunning,
    Cause::ReplicaSilent,
    Cause::ReplicaSpoolFull,
    Cause::ReplicaHeld,
    Cause::ReplicaRowsMissing,
    Cause::ReplicaIncomplete,
    Cause::ReplicaCopying,
];

const SLOT: &str = "lockstep_app_01234abc";

/// A replica that applies all.
fn running() -> Replica {
    Replica {
        name: "app".to_owned(),
        slot: SLOT.to_owned(),
        phase: "ready".into(),
        holder: "apply".into(),
        apply_state: "applying".into(),
        written_age_ms: Some(500.0),
        ..Replica::default()
    }
}

/// What a replica is at each moment, and whether it is connected to its source.
type Change = fn(&mut Replica);

/// The first subscriber is the target of a replica instead.
fn scene(change: Change) -> Scene {
    let mut scene = Scene::healthy();
    for (index, sample) in (0..).zip(&mut scene.one.samples) {
        sample.subscriptions.clear();
        sample.processes.clear();
        let mut replica = Replica {
            applied_lsn: lsn(START + index * STEP),
            ..running()
        };
        change(&mut replica);
        sample.replicas = vec![replica];
    }
    for sample in &mut scene.primary.samples {
        sample.slots[1].slot_name = SLOT.to_owned();
        sample.senders[1].application_name = "app".to_owned();
        sample.decoding[0].slot_name = SLOT.to_owned();
    }
    scene
}

/// The replica has applied nothing since the beginning.
fn stands(replica: &mut Replica) {
    replica.applied_lsn = lsn(START);
}

/// Nobody is connected to its slot.
fn disconnected(sample: &mut Sample) {
    sample.senders.remove(1);
    sample.processes.remove(1);
    let slot = &mut sample.slots[1];
    (slot.active, slot.active_pid) = (false, None);
    (slot.restart_lsn, slot.confirmed_flush_lsn) = (lsn(START), lsn(START));
}

/// A scene in which the replica is disconnected too.
fn away(change: Change) -> Scene {
    let mut scene = scene(change);
    scene.primary.samples.iter_mut().for_each(disconnected);
    scene
}

fn report(diagnosis: &Diagnosis) -> ReplicaReport {
    let links = diagnosis.links.iter();
    let mut reports = links.filter_map(|link| link.lockstep_replica.clone());
    reports.next().unwrap()
}

fn first(diagnosis: &Diagnosis) -> &Finding {
    diagnosis.findings.first().unwrap()
}

const CONFLICT: &str = "table \"public.t\" on the target refused a change of the transaction that \
    committed at 0/9999: duplicate key (Key (id)=(2) already exists)";

#[test]
fn slots_of_replicas_are_told_from_those_of_relays() {
    for (slot, name) in [
        ("lockstep_app_01234abc", Some("app")),
        ("lockstep_new_york_2_01234abc", Some("new_york_2")),
        ("lockstep_orders_0123456789ab", None),
        ("lockstep_verify_1234567", None),
        ("lockstep_app_01234abc_again", None),
        ("lockstep__01234abc", None),
        ("lockstep_01234abc", None),
        ("app_01234abc", None),
        ("lockstep_app_01234ABC", None),
    ] {
        assert_eq!(named(slot), name, "{slot}");
    }
}

/// The replica applies once an hour, and the source has had changes since.
fn between_cycles(replica: &mut Replica) {
    stands(replica);
    replica.frequency_ms = Some(3_600_000.0);
    replica.cycle_late_ms = Some(0.0);
}

/// The spool takes nothing more in, and the target has all of it.
fn spool_full(replica: &mut Replica, by: &str) {
    replica.spool_full = Some("so".to_owned());
    replica.spool_full_by = Some(by.to_owned());
    (replica.spool_bytes, replica.spool_limit) = (Some(1 << 20), Some(1 << 20));
    (replica.spool_from, replica.spool_to) = (lsn(START), lsn(START));
}

#[test]
fn a_full_spool_is_not_called_a_slow_consumer_unless_the_target_is_slow() {
    let causes = |change: Change| {
        let mut scene = scene(change);
        pushed(&mut scene);
        let findings = scene.diagnose().findings;
        let causes: Vec<_> = findings.iter().map(|found| found.cause).collect();
        causes
    };
    assert_eq!(causes(stands)[0], Cause::SlowConsumer);
    let huge = causes(|it| {
        stands(it);
        spool_full(it, "transaction");
    });
    assert_eq!(huge[0], Cause::ReplicaSpoolFull);
    assert!(!huge.contains(&Cause::SlowConsumer), "{huge:?}");
    // The target has not applied what the spool holds: more writers may help.
    let slow = causes(|it| {
        stands(it);
        spool_full(it, "limit");
        it.spool_to = lsn(START + STEP);
    });
    assert_eq!(slow[0], Cause::ReplicaSpoolFull);
    assert!(slow.contains(&Cause::SlowConsumer), "{slow:?}");
    // What a replica does not do fills its spool.
    let paused = causes(|it| {
        stands(it);
        spool_full(it, "limit");
        (it.paused, it.apply_state) = (true, "paused".into());
    });
    assert_eq!(paused[0], Cause::ReplicaPaused);
    assert!(paused.contains(&Cause::ReplicaSpoolFull), "{paused:?}");
}

/// The replica's walsender waits for it to take data.
fn pushed(scene: &mut Scene) {
    for sample in &mut scene.primary.samples {
        let sender = &mut sample.senders[1];
        (sender.flush_lsn, sender.replay_lsn) = (lsn(START), lsn(START));
        sample.decoding[0].total_bytes = u64::from(sample.wal.flush.unwrap());
        sample.processes[1] = process(11, "walsender", "Client", "WalSenderWaitForWAL");
    }
}

#[test]
fn a_replica_between_its_cycles_is_not_late_and_one_whose_cycle_is_overdue_is() {
    let behind = |change| {
        let diagnosis = away(change).diagnose();
        let mut links = diagnosis.links.iter();
        let link = links.find(|link| link.lockstep_replica.is_some());
        link.unwrap().behind
    };
    assert!(behind(stands), "without cycles it is late");
    assert!(!behind(between_cycles));
    assert!(behind(|it| {
        between_cycles(it);
        it.cycle_late_ms = Some(5_000.0);
    }));
    // Whoever writes nothing more has no cycles.
    assert!(behind(|it| {
        between_cycles(it);
        it.written_age_ms = Some(60_000.0);
    }));
}

#[test]
fn what_a_replica_does_follows_from_all_that_is_known() {
    let hold = |held| {
        Some(Hold {
            held,
            ..Hold::default()
        })
    };
    for (doing, change) in [
        (Doing::Running, (|_| ()) as Change),
        (Doing::Paused, |it| it.apply_state = "paused".into()),
        (Doing::Stopped, |it| it.apply_state = "blocked".into()),
        (Doing::Connecting, |it| it.apply_state = "connecting".into()),
        (Doing::NotRunning, |it| it.apply_state = "stopped".into()),
        (Doing::Other, |it| it.apply_state = "of a newer one".into()),
        (Doing::Other, |it| it.holder = "other".into()),
        (Doing::Silent, |it| it.written_age_ms = Some(20_000.0)),
        (Doing::Silent, |it| it.written_age_ms = None),
        (Doing::NotRunning, |it| it.holder = "nobody".into()),
        (Doing::Paused, |it| {
            (it.holder, it.paused) = ("nobody".into(), true);
        }),
        (Doing::Stopped, |it| {
            (it.holder, it.error) = ("nobody".into(), Some("gap".to_owned()));
        }),
        (Doing::Stopped, |it| {
            (it.apply_state, it.error) = ("stopped".into(), Some("gap".to_owned()));
        }),
        (Doing::Copying, |it| {
            (it.phase, it.holder) = ("indexing".into(), "other".into());
        }),
        (Doing::NotRunning, |it| {
            (it.phase, it.holder) = ("copying".into(), "nobody".into());
        }),
        (Doing::Promoted, |it| {
            (it.phase, it.holder) = ("promoted".into(), "nobody".into());
        }),
        (Doing::Promoted, |it| it.phase = "promoting".into()),
    ] {
        let mut replica = running();
        change(&mut replica);
        assert_eq!(replica.doing(false), doing, "{replica:?}");
    }
    assert_eq!(running().doing(true), Doing::CatchingUp);
    for (held, doing) in [(true, Doing::Held), (false, Doing::Running)] {
        let replica = Replica {
            hold: hold(held),
            ..running()
        };
        assert_eq!(replica.doing(false), doing);
    }
}

#[test]
fn a_replica_that_keeps_up_is_healthy_and_named() {
    let diagnosis = scene(|_| ()).diagnose();
    assert!(diagnosis.healthy, "{diagnosis:#?}");
    let found = report(&diagnosis);
    assert_eq!(
        (found.name.as_str(), found.doing),
        ("app", Some(Doing::Running))
    );
    assert!(found.applied_lsn.is_some());

    // Without its target it is known by its slot, and so is how far it is.
    let mut unasked = scene(|_| ());
    unasked.one.samples.clear();
    let diagnosis = unasked.diagnose();
    assert_eq!(report(&diagnosis), ReplicaReport::unasked("app"));
    let link = diagnosis.links.iter().find(|link| link.replica == "app");
    assert!(link.is_some_and(|link| !link.behind), "{diagnosis:#?}");
}

/// What is found first, where, how bad it is, what the first remedy has, and a name.
type Expected = (Cause, Severity, &'static str);

const CASES: [(&str, bool, Change, Expected); 16] = [
    (
        "a change does not fit",
        false,
        |it| {
            stands(it);
            it.apply_state = "blocked".into();
            it.error = Some(CONFLICT.to_owned());
        },
        (
            Cause::ReplicaStopped,
            Severity::Lag,
            "lockstep replica resume app",
        ),
    ),
    (
        "it cannot connect",
        false,
        |it| {
            stands(it);
            it.apply_state = "connecting".into();
            it.error = Some("source: connection refused".to_owned());
        },
        (Cause::ReplicaStopped, Severity::Lag, "pg_hba.conf"),
    ),
    (
        "it waits for a lock",
        false,
        |it| {
            stands(it);
            it.error = Some("on the target it waits for a lock of process 7".to_owned());
        },
        (
            Cause::ReplicaStopped,
            Severity::Lag,
            "SELECT pg_terminate_backend(PID)",
        ),
    ),
    (
        "its process has ended with an error",
        false,
        |it| {
            stands(it);
            it.holder = "nobody".into();
            it.apply_state = "stopped".into();
            it.error = Some("the slot begins later".to_owned());
        },
        (
            Cause::ReplicaStopped,
            Severity::Lag,
            "do what the error says",
        ),
    ),
    (
        "paused",
        false,
        |it| {
            stands(it);
            (it.paused, it.apply_state) = (true, "paused".into());
        },
        (
            Cause::ReplicaPaused,
            Severity::Lag,
            "lockstep replica resume app",
        ),
    ),
    (
        "killed",
        false,
        |it| {
            stands(it);
            it.holder = "nobody".into();
        },
        (
            Cause::ReplicaNotRunning,
            Severity::Lag,
            "lockstep replica run app",
        ),
    ),
    (
        "a copy that has ended",
        false,
        |it| {
            it.applied_lsn = None;
            (it.holder, it.phase) = ("nobody".into(), "copying".into());
        },
        (
            Cause::ReplicaNotRunning,
            Severity::Lag,
            "lockstep replica create app",
        ),
    ),
    (
        "a copy",
        false,
        |it| {
            it.applied_lsn = None;
            (it.holder, it.phase) = ("other".into(), "copying".into());
            (it.bytes_done, it.bytes_total) = (40, 100);
        },
        (Cause::ReplicaCopying, Severity::Note, ""),
    ),
    (
        "silent",
        false,
        |it| {
            stands(it);
            it.written_age_ms = Some(60_000.0);
        },
        (Cause::ReplicaSilent, Severity::Lag, "kill -CONT"),
    ),
    (
        "held",
        false,
        |it| {
            stands(it);
            it.hold = Some(Hold {
                pid: 4711,
                age_ms: Some(3_000.0),
                held: true,
                ..Hold::default()
            });
        },
        (
            Cause::ReplicaHeld,
            Severity::Lag,
            "that are open on primary",
        ),
    ),
    (
        "a transaction that the spool has no room for",
        false,
        |it| {
            stands(it);
            spool_full(it, "transaction");
        },
        (
            Cause::ReplicaSpoolFull,
            Severity::Lag,
            "start lockstep replica run app again with a --spool-limit",
        ),
    ),
    (
        "cycles that are larger than the spool",
        true,
        |it| {
            between_cycles(it);
            spool_full(it, "limit");
            (it.spool_from, it.spool_to) = (lsn(START), lsn(START + STEP));
        },
        (
            Cause::ReplicaSpoolFull,
            Severity::Risk,
            "start lockstep replica run app again with a --spool-limit of more",
        ),
    ),
    (
        "a full disk of the spool",
        false,
        |it| {
            stands(it);
            spool_full(it, "disk");
        },
        (
            Cause::ReplicaSpoolFull,
            Severity::Lag,
            "make room on the disk of the spool of replica app",
        ),
    ),
    (
        "rows are missing",
        true,
        |it| it.missing_rows = 2,
        (
            Cause::ReplicaRowsMissing,
            Severity::Risk,
            "lockstep replica verify app",
        ),
    ),
    (
        "a table came after the copy",
        true,
        |it| {
            it.unreplicated_tables = Some(1);
            it.unreplicated = Some("public.t (it was made after the copy)".to_owned());
        },
        (
            Cause::ReplicaIncomplete,
            Severity::Risk,
            "lockstep replica drop app",
        ),
    ),
    (
        "the copy could not make an index",
        true,
        |it| {
            it.unmade_objects = Some(1);
            it.unmade = Some("index public.i (function f() does not exist)".to_owned());
        },
        (
            Cause::ReplicaIncomplete,
            Severity::Risk,
            "lockstep replica status app",
        ),
    ),
];

#[test]
fn each_cause_is_found_first_and_says_what_to_do() {
    for (name, is_connected, change, (cause, severity, remedy)) in CASES {
        let diagnosis = match is_connected {
            true => scene(change).diagnose(),
            false => away(change).diagnose(),
        };
        let found = first(&diagnosis);
        assert_eq!((found.cause, found.severity), (cause, severity), "{name}");
        assert_eq!(found.at, "one", "{name}");
        let first_remedy = found.remedies.first().map_or("", String::as_str);
        assert!(first_remedy.contains(remedy), "{name}: {first_remedy}");
        assert!(!diagnosis.healthy || severity == Severity::Note, "{name}");
        assert_eq!(diagnosis.has_lag(), severity == Severity::Lag, "{name}");
        // The slot that nobody uses is the replica's, which is found already.
        let mut others = diagnosis.findings.iter();
        assert!(others.all(|it| it.cause != Cause::UnusedSlot), "{name}");
    }
    let seen: Vec<Cause> = CASES.iter().map(|(.., (cause, ..))| *cause).collect();
    assert!(CAUSES.iter().all(|cause| seen.contains(cause)));
}

#[test]
fn an_error_is_quoted_with_position_and_backlog() {
    let diagnosis = away(CASES[0].2).diagnose();
    let words: Vec<&str> = first(&diagnosis)
        .evidence
        .iter()
        .map(|fact| fact.words.as_str())
        .collect();
    assert_eq!(words[0], CONFLICT);
    assert_eq!(
        words[1],
        "everything up to 0/3B9ACA00 is applied, 4.7 MB of WAL of primary is not"
    );
    assert_eq!(words[2], "its slot keeps 4.7 MB of WAL on primary");
    assert_eq!(
        first(&diagnosis).title,
        "the replica does not apply: a change does not fit the target"
    );
    let found = report(&diagnosis);
    assert_eq!(found.error.as_deref(), Some(CONFLICT));
    assert_eq!(found.doing, Some(Doing::Stopped));
}

#[test]
fn a_replica_that_tries_again_has_stopped_all_the_same() {
    let mut scene = away(CASES[0].2);
    let tries = scene.one.samples.iter_mut().rev().take(5);
    for sample in tries {
        let replica = &mut sample.replicas[0];
        (replica.apply_state, replica.error) = ("applying".into(), None);
    }
    let diagnosis = scene.diagnose();
    let found = first(&diagnosis);
    assert_eq!(found.cause, Cause::ReplicaStopped);
    assert_eq!(found.evidence[0].words, CONFLICT);
    assert!((found.explains - 0.9).abs() < 1e-9, "{}", found.explains);
}

#[test]
fn what_was_applied_but_not_told_is_not_behind() {
    // Killed right after its last commit; the slot stands at the beginning.
    let diagnosis = away(|it| it.holder = "nobody".into()).diagnose();
    let found = first(&diagnosis);
    assert_eq!(found.cause, Cause::ReplicaNotRunning);
    assert_eq!(found.severity, Severity::Risk, "{found:#?}");
    assert!(!diagnosis.has_lag());
}

#[test]
fn a_replica_of_a_source_that_was_not_asked_is_not_called_well() {
    let mut scene = scene(|_| ());
    for sample in &mut scene.primary.samples {
        sample.slots[1].slot_name = "another".to_owned();
    }
    let diagnosis = scene.diagnose();
    assert!(!diagnosis.healthy);
    let unknown = diagnosis.unknown.join(" ");
    assert!(unknown.contains("the upstream of one"), "{unknown}");
}

#[test]
fn an_unused_slot_of_a_replica_is_dropped_by_its_name() {
    let mut scene = away(|_| ());
    for (index, sample) in scene.primary.samples.iter_mut().enumerate() {
        sample.wal.flush = lsn(START + (1 << 30) + index as u64);
    }
    let nodes = vec![scene.primary, scene.standby, scene.two];
    let diagnosis = diagnose(&Window::new(nodes));
    let mut findings = diagnosis.findings.iter();
    let found = findings.find(|it| it.cause == Cause::UnusedSlot).unwrap();
    let remedies = found.remedies.join("; ");
    assert!(remedies.contains("lockstep replica drop app"), "{remedies}");
    assert!(!remedies.contains("pg_drop_replication_slot"), "{remedies}");
}

#[test]
fn the_slot_of_a_promoted_replica_is_told_however_little_it_keeps() {
    let promoting: Change = |it| (it.phase, it.holder) = ("promoting".into(), "nobody".into());
    let promoted: Change = |it| (it.phase, it.holder) = ("promoted".into(), "nobody".into());
    for (phase, change, is_found) in [
        ("promoting", promoting, false),
        ("promoted", promoted, true),
    ] {
        let diagnosis = away(change).diagnose();
        let mut findings = diagnosis.findings.iter();
        let found = findings.find(|it| it.cause == Cause::UnusedSlot);
        assert_eq!(found.is_some(), is_found, "{phase}");
        assert!(!diagnosis.has_lag(), "{phase}");
        let links = diagnosis
            .links
            .iter()
            .filter(|link| link.slot.as_deref() == Some("slot_one"));
        for link in links {
            let lag = (
                link.lag_ms,
                link.lag_max_ms,
                link.lag_bytes,
                link.bound.sign(),
            );
            assert_eq!(lag, (0.0, 0.0, 0.0, ""), "{phase}");
        }
        let Some(found) = found else { continue };
        assert!(!diagnosis.healthy);
        let remedy = found.remedies.first().unwrap();
        assert!(remedy.contains("lockstep replica drop app"), "{remedy}");
    }
}

#[test]
fn a_slow_replica_is_told_to_use_more_writers() {
    let mut scene = scene(stands);
    pushed(&mut scene);
    let diagnosis = scene.diagnose();
    let found = first(&diagnosis);
    assert_eq!(found.cause, Cause::SlowConsumer, "{diagnosis:#?}");
    let remedies = found.remedies.join("; ");
    assert!(remedies.contains("--writers"), "{remedies}");
    assert!(!remedies.contains("split the publication"), "{remedies}");
    assert_eq!(report(&diagnosis).doing, Some(Doing::CatchingUp));
    // What it does not apply it tells at once, so the lag is no bound.
    let link = diagnosis.links.iter().find(|link| link.replica == "one");
    assert!(!link.unwrap().bound.lag_is_most);
}
