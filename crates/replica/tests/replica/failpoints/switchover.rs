//! A switchover that dies at each failpoint, and ends the same; the way back has what was written since.

use std::sync::atomic::Ordering;

use lockstep_replica::state::failpoint::{
    PROMOTE_BEGUN, PROMOTE_SEQUENCES, SWITCH_BEGUN, SWITCH_CLEANED, SWITCH_CLOSED, SWITCH_DRAINED,
    SWITCH_FENCED, SWITCH_PLANTED, SWITCH_PREPARED, SWITCH_REDIRECTED, SWITCH_REVERSED,
};
use lockstep_spool::failpoint::Failpoint;

use lockstep_replica::lifecycle::remove::remove_without_source;
use lockstep_replica::switchover::run::{Switchover, switchover};

use super::Scene;
use super::process::{Death, Does, Process, Starts};
use crate::apply_lab::until;
use crate::{Told, conninfo, on, sql, to_switch, values};

/// Failpoints of a switchover alone, in the order in which it comes there.
pub const ORDER: [Failpoint; 9] = [
    SWITCH_PREPARED,
    SWITCH_BEGUN,
    SWITCH_PLANTED,
    SWITCH_CLOSED,
    SWITCH_FENCED,
    SWITCH_DRAINED,
    SWITCH_REVERSED,
    SWITCH_REDIRECTED,
    SWITCH_CLEANED,
];

/// Failpoints before the state says that the replica is being promoted: what is done is taken back.
const BEFORE: [Failpoint; 6] = [
    SWITCH_PREPARED,
    SWITCH_BEGUN,
    SWITCH_PLANTED,
    SWITCH_CLOSED,
    SWITCH_FENCED,
    SWITCH_DRAINED,
];

/// A write of whoever does not mind the setting.
const STUBBORN: &str =
    "SET default_transaction_read_only = off; INSERT INTO emptied VALUES (1); DELETE FROM emptied";

/// Applies to the way back.
fn follows_back(scene: &Scene) -> Process {
    let starts = scene.starts(1);
    let turned = Starts {
        source: starts.target.clone(),
        target: starts.source.clone(),
        ..starts
    };
    turned.start(Does::FollowBack, None)
}

/// Before the source's slot is dropped, it gets what the way back brings, and a row past its fence. Only
/// that row lets the slot stay.
fn what_comes_to_the_source_meanwhile(scene: &Scene) {
    let back = follows_back(scene);
    until("that the way back is applied early", || {
        values(&scene.source, "SELECT count(*) FROM log WHERE n > 1000") == ["1"]
    });
    drop(back);
    let past = |sql: &str| {
        let past = "BEGIN READ WRITE; SET LOCAL session_replication_role = replica";
        on(&scene.source, &format!("{past}; {sql}; COMMIT"));
    };
    past("INSERT INTO log VALUES (-5, 'past the fence')");
    let mut process = scene.start(Does::Switchover, 1, Some(Death::at(SWITCH_CLEANED, 0)));
    process.dies_at(SWITCH_CLEANED, || {});
    let left = "SELECT phase || ' ' || promote_left FROM lockstep.replica";
    assert_eq!(values(&scene.target, left), ["promoted true"]);
    // Whoever has brought that over does not need the slot any more.
    past("DELETE FROM log WHERE n = -5");
    let read = "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_flush_lsn()) IS NULL \
        FROM pg_replication_slots";
    assert_eq!(values(&scene.source, read), ["f"]);
    on(&scene.target, "INSERT INTO log VALUES (1003, 'there')");
    let back = follows_back(scene);
    until("that the way back is applied again", || {
        values(&scene.source, "SELECT count(*) FROM log WHERE n > 1000") == ["2"]
    });
    drop(back);
}

#[test]
fn a_switchover_goes_on_from_every_failpoint() {
    let scene = Scene::bare();
    on(&scene.source, "CREATE SEQUENCE s");
    let scene = Scene::of(scene);
    let _follower = scene.start(Does::Follow, 1, None);
    until("that it applies", || scene.is_applied_to());
    scene.write("");
    on(&scene.source, "SELECT setval('s', 70)");

    let dies = |at| {
        let mut process = scene.start(Does::Switchover, 1, Some(Death::at(at, 0)));
        process.dies_at(at, || {});
    };
    for at in BEFORE {
        dies(at);
        if at == SWITCH_PREPARED {
            let without = Switchover {
                way_back: None,
                ..to_switch(conninfo(&scene.target))
            };
            let refused = switchover(&without, &mut Told::default()).unwrap_err();
            let words = "made the way back as replica \"back\", whose slot keeps WAL";
            assert!(refused.to_string().contains(words), "{refused}");
            // One that was killed earlier has left the slot alone.
            on(
                &scene.source,
                "DELETE FROM lockstep.table_copy WHERE replica = 'back'",
            );
            let stopped = to_switch(conninfo(&scene.target));
            stopped.stop.store(true, Ordering::Relaxed);
            switchover(&stopped, &mut Told::default()).unwrap_err();
            let slots = "SELECT count(*) FROM pg_replication_slots";
            assert_eq!(values(&scene.target, slots), ["0"]);
        }
        let takes_writes = sql(&scene.source)
            .execute("INSERT INTO log VALUES (0, 'x'); DELETE FROM log WHERE n = 0");
        let is_fenced = [SWITCH_FENCED, SWITCH_DRAINED].contains(&at);
        assert_eq!(
            takes_writes.is_err(),
            is_fenced,
            "{} {takes_writes:?}",
            at.name()
        );
        // The target is closed before.
        let is_closed = at == SWITCH_CLOSED || is_fenced;
        let there = sql(&scene.target).execute(STUBBORN);
        assert_eq!(there.is_err(), is_closed, "{} {there:?}", at.name());
    }
    // Each is taken back by the next, which then dies further on.
    let written = scene.next() - 1;
    for at in [
        PROMOTE_BEGUN,
        PROMOTE_SEQUENCES,
        SWITCH_REVERSED,
        SWITCH_REDIRECTED,
    ] {
        dies(at);
        let refused = sql(&scene.source).execute("INSERT INTO log VALUES (-1, 'later')");
        assert!(refused.is_err(), "{}", at.name());
        let there = sql(&scene.target).execute(STUBBORN);
        assert_eq!(
            there.is_ok(),
            at == SWITCH_REDIRECTED,
            "{} {there:?}",
            at.name()
        );
    }
    // The target is open.
    on(
        &scene.target,
        "INSERT INTO log VALUES (1001, 'there'); SELECT nextval('s')",
    );
    what_comes_to_the_source_meanwhile(&scene);
    dies(SWITCH_CLEANED);
    assert!(
        scene.start(Does::Switchover, 1, None).succeeds(),
        "{}",
        scene.said()
    );
    assert_eq!(values(&scene.target, "SELECT nextval('s')"), ["72"]);
    let log = format!("SELECT count(*) FROM log WHERE n <= {written}");
    assert_eq!(values(&scene.target, &log), [written.to_string()]);
    let state = "SELECT phase || ' ' || switchover FROM lockstep.replica";
    assert_eq!(values(&scene.target, state), ["promoted done"]);
    let slots = "SELECT count(*) FROM pg_replication_slots";
    assert_eq!(values(&scene.source, slots), ["0"]);
    assert_eq!(values(&scene.target, slots), ["1"]);

    // The way back begins with the first row that was written there.
    on(&scene.target, "INSERT INTO log VALUES (1002, 'there')");
    let _back = follows_back(&scene);
    let all = "SELECT count(*) || ' ' || sum(hashtext(l::text)) FROM log l";
    until("that the way back is applied", || {
        values(&scene.source, all) == values(&scene.target, all)
    });
    let later = "SELECT count(*) FROM log WHERE n > 1000";
    assert_eq!(values(&scene.source, later), ["3"]);
}

#[test]
fn a_replica_that_is_dropped_in_the_middle_leaves_its_target_open() {
    let scene = Scene::new();
    let follower = scene.start(Does::Follow, 1, None);
    until("that it applies", || scene.is_applied_to());
    let mut process = scene.start(Does::Switchover, 1, Some(Death::at(SWITCH_FENCED, 0)));
    process.dies_at(SWITCH_FENCED, || {});
    drop(follower);
    assert!(sql(&scene.target).execute(STUBBORN).is_err());
    let dropped = remove_without_source("r", &conninfo(&scene.target)).unwrap();
    let notes = dropped.notes.join(" ");
    assert!(notes.contains("the target is not closed"), "{notes}");
    on(
        &scene.target,
        "INSERT INTO emptied VALUES (1); DELETE FROM emptied",
    );
    let left = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'lockstep%'";
    assert_eq!(values(&scene.target, left), ["0"]);
    // What it says opens a source that comes back.
    assert!(sql(&scene.source).execute(STUBBORN).is_err());
    for command in &dropped.source {
        on(&scene.source, command);
    }
    on(
        &scene.source,
        "INSERT INTO emptied VALUES (1); DELETE FROM emptied",
    );
    let slots = "SELECT count(*) FROM pg_replication_slots";
    assert_eq!(values(&scene.source, slots), ["0"]);
}
