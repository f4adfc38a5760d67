//! What remedies say, and in which states: none that promotes, stops or loses something comes before
//! one that does not, and each says so.

use super::scene::{START, Scene, lsn, session};
use super::{Cause, RULES};
use crate::diagnosis::Finding;
use crate::views::Session;
use crate::window::NodeWindow;

type Change = fn(&mut Scene);

/// Causes that have a case here.
pub(super) const CAUSES: [Cause; 2] = [Cause::RecoveryTarget, Cause::StandbySettingsTooLow];

/// Pieces of remedies that can promote or stop a server, or lose something.
const DANGEROUS: [&str; 9] = [
    "pg_wal_replay_resume",
    "pg_drop_replication_slot",
    "DROP SLOT",
    "SKIP (lsn",
    "{writer_pid}); ",
    "COMMIT PREPARED",
    "ROLLBACK PREPARED",
    "synchronous_standby_names = ''",
    "without that file it is promoted",
];

/// Words of which a dangerous remedy has one.
const WARNINGS: [&str; 8] = [
    "lost",
    "loses",
    "stops",
    "stop it",
    "promoted",
    "{resumed}",
    "synchronized again",
    "if the other parts",
];

/// The only remedy, or one that names the danger of something else than what it proposes.
const HARMLESS: [&str; 2] = ["{raise}", "{restoring}"];

/// Statements that make a subscription again, and what is said of them: `EMPTIES` says what they lose.
const ANEW: [&str; 4] = ["{emptied}", "{detach}", "{recreate}", "{uncopied}"];

#[test]
fn what_promotes_stops_or_loses_says_so_and_comes_last() {
    let mut seen = 0;
    for rule in RULES {
        let is_dangerous = |remedy: &&str| DANGEROUS.iter().any(|piece| remedy.contains(piece));
        let after = rule.remedies.iter().skip_while(|it| !is_dangerous(it));
        let others = HARMLESS.iter().chain(&ANEW);
        for remedy in after.filter(|it| !others.clone().any(|piece| it.contains(piece))) {
            seen += 1;
            let is_other = remedy.contains("if {node} is meant to stand there");
            assert!(
                is_dangerous(remedy) || is_other,
                "after a dangerous one: {remedy}"
            );
            let warns = WARNINGS.iter().any(|word| remedy.contains(word));
            assert!(warns || is_other, "no warning: {remedy}");
        }
    }
    assert!(seen >= 12, "{seen}");
}

/// Each statement that a remedy gives to paste ends with a semicolon, and stands behind its place.
#[test]
fn sql_to_paste_has_a_place_and_an_end() {
    for remedy in RULES.iter().flat_map(|rule| rule.remedies) {
        let begins = [
            "SELECT pg_",
            "ALTER SYSTEM",
            "ROLLBACK PREPARED",
            "COMMIT PREPARED",
        ];
        for begin in begins.into_iter().filter(|begin| remedy.contains(begin)) {
            let has_place = ["on {", "in the console of {"]
                .iter()
                .any(|it| remedy.starts_with(it));
            let is_named = remedy.contains("(PID)");
            assert!(
                has_place && remedy.contains(';') || is_named,
                "{begin}: {remedy}"
            );
        }
    }
}

fn set(node: &mut NodeWindow, name: &str, value: &str) {
    let settings = &mut node.facts.settings;
    settings.insert(name.to_owned(), value.to_owned());
}

fn pause(scene: &mut Scene) {
    scene.stuck_replay("IPC", "RecoveryPause");
    for sample in &mut scene.standby.samples {
        sample.wal.pause = Some("paused".into());
    }
}

fn remedies(scene: Scene) -> (Option<Cause>, Vec<String>) {
    let diagnosis = scene.diagnose();
    let first = diagnosis.findings.first();
    let remedies = first.map(|found| found.remedies.clone());
    (diagnosis.first(), remedies.unwrap_or_default())
}

/// Cases of paused replay: a change, the cause, what the first remedy has, and what the last says of
/// resuming.
const PAUSED: [(Change, Cause, &str, &str); 5] = [
    (
        |_| {},
        Cause::ReplayPaused,
        "on standby: SELECT pg_wal_replay_resume(); if somebody has paused it",
        "that stops standby",
    ),
    (
        |s| {
            set(
                &mut s.standby,
                "recovery_target_time",
                "2026-11-27 12:00:00",
            )
        },
        Cause::RecoveryTarget,
        "on standby: ALTER SYSTEM SET recovery_target_time = ''; and restart it",
        "promotes it there",
    ),
    (
        |s| {
            set(&mut s.standby, "recovery_target", "immediate");
            set(&mut s.standby, "recovery_target_action", "shutdown");
            s.standby
                .samples
                .iter_mut()
                .for_each(|it| it.receiver = None);
        },
        Cause::RecoveryTarget,
        "without that file it is promoted",
        "shuts it down there",
    ),
    (
        |s| {
            set(&mut s.primary, "max_connections", "200");
            set(&mut s.standby, "max_connections", "100");
            set(&mut s.primary, "max_wal_senders", "20");
            set(&mut s.standby, "max_wal_senders", "10");
        },
        Cause::StandbySettingsTooLow,
        "on standby: ALTER SYSTEM SET max_connections = 200; ALTER SYSTEM SET max_wal_senders = 20; \
         and restart it",
        "pg_wal_replay_resume() would stop it",
    ),
    (
        // Higher ones are no trouble.
        |s| {
            set(&mut s.primary, "max_connections", "100");
            set(&mut s.standby, "max_connections", "200");
        },
        Cause::ReplayPaused,
        "on standby: SELECT pg_wal_replay_resume();",
        "that stops standby",
    ),
];

#[test]
fn each_kind_of_pause_has_its_own_remedy() {
    for (change, cause, first, last) in PAUSED {
        let mut scene = Scene::healthy();
        pause(&mut scene);
        change(&mut scene);
        let (found, remedies) = remedies(scene);
        assert_eq!(found, Some(cause), "{remedies:?}");
        assert!(remedies[0].contains(first), "{remedies:?}");
        assert!(remedies.last().unwrap().contains(last), "{remedies:?}");
    }
    // Before replay comes to where the primary was started anew, it is a risk.
    let mut scene = Scene::healthy();
    set(&mut scene.primary, "max_connections", "200");
    set(&mut scene.standby, "max_connections", "100");
    let diagnosis = scene.diagnose();
    assert_eq!(diagnosis.first(), Some(Cause::StandbySettingsTooLow));
    assert!(diagnosis.has_risk() && !diagnosis.has_lag());
}

#[test]
fn nobody_is_ended_whom_replay_does_not_wait_for() {
    let at = |wait_type, wait, blocked_by: &[u32]| {
        let mut scene = Scene::healthy();
        scene.stuck_replay(wait_type, wait);
        scene.clients(1, vec![session(77, 9000.0), session(78, 10.0)]);
        for sample in &mut scene.standby.samples {
            sample.processes[0].blocked_by = blocked_by.to_vec();
        }
        let (cause, remedies) = remedies(scene);
        assert_eq!(cause, Some(Cause::RecoveryConflict));
        remedies
            .into_iter()
            .find(|it| it.contains("pg_terminate_backend"))
    };
    assert!(at("Lock", "relation", &[78]).unwrap().contains("(78)"));
    // The holder is none of the sessions that are known.
    assert_eq!(at("Lock", "relation", &[99]), None);
    assert_eq!(at("IPC", "RecoveryConflictTablespace", &[]), None);
}

/// The apply worker waits for a session's lock.
fn block(scene: &mut Scene, holder: Session) {
    scene.stuck_subscriber(1, ("Client", "WalSenderWriteData"), ("Lock", "relation"));
    for sample in &mut scene.one.samples {
        sample.processes[0].blocked_by = vec![holder.pid];
        sample.clients.oldest = vec![holder.clone()];
    }
}

#[test]
fn a_session_that_has_written_is_ended_last() {
    for (xid_age, place) in [(None, 0), (Some(3), 2)] {
        let mut scene = Scene::healthy();
        block(
            &mut scene,
            Session {
                xid_age,
                ..session(55, 9.0)
            },
        );
        let (cause, remedies) = remedies(scene);
        assert_eq!(cause, Some(Cause::ApplyBlocked));
        let ends = |it: &String| it.starts_with("on one: SELECT pg_terminate_backend(55);");
        assert_eq!(remedies.iter().position(ends), Some(place), "{remedies:?}");
        assert_eq!(remedies[place].contains("lost"), xid_age.is_some());
    }
}

#[test]
fn a_subscription_is_not_enabled_beside_another_consumer_of_its_slot() {
    let disabled = |taken: bool, on_error: bool| {
        let mut scene = Scene::healthy();
        scene.stuck_subscriber(1, ("", ""), ("", ""));
        for sample in &mut scene.one.samples {
            let row = &mut sample.subscriptions[0];
            (row.pid, row.enabled) = (None, false);
            (row.disable_on_error, row.apply_errors) = (on_error, 1);
        }
        for sample in scene.primary.samples.iter_mut().filter(|_| !taken) {
            sample.senders.remove(1);
            sample.slots[1].active_pid = None;
            sample.slots[1].active = false;
            sample.slots[1].confirmed_flush_lsn = lsn(START);
        }
        remedies(scene).1
    };
    let enable = "on one: ALTER SUBSCRIPTION sub_one ENABLE; if it need";
    assert!(disabled(false, false)[0].starts_with(enable));
    assert!(disabled(false, true)[0].contains("disabled itself"));
    let taken = disabled(true, false);
    assert!(
        taken[0].starts_with("find out who uses slot slot_one"),
        "{taken:?}"
    );
    assert!(!taken.iter().any(|it| it.contains("ENABLE")), "{taken:?}");
}

/// The remedies of a slot that has this status, and may keep so much.
fn of_slot(status: &str, limit: &str) -> Vec<String> {
    let mut scene = Scene::healthy();
    set(&mut scene.primary, "max_slot_wal_keep_size", limit);
    for sample in &mut scene.primary.samples {
        sample.slots[1].wal_status = Some(status.into());
    }
    let diagnosis = scene.diagnose();
    let near =
        |found: &&Finding| [Cause::RetainedWalNearLimit, Cause::SlotLost].contains(&found.cause);
    let found = diagnosis.findings.iter().find(near);
    found
        .map(|found| found.remedies.clone())
        .unwrap_or_default()
}

#[test]
fn a_limit_is_raised_only_for_slots_that_are_not_lost() {
    let raises = |it: &String| it.contains("max_slot_wal_keep_size = '2000MB'");
    assert!(of_slot("unreserved", "1000").iter().any(raises));
    let lost = of_slot("lost", "1000");
    assert!(
        !lost.is_empty() && !lost.iter().any(|it| it.contains("keep_size")),
        "{lost:?}"
    );
}
