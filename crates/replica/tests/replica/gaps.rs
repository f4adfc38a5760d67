//! A source that cannot go on where the target stands.

use std::process::Command;

use lockstep_apply::{Control, Phase};
use lockstep_client::{Connection, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{Server, Stop};
use lockstep_replica::lifecycle::create::create;
use lockstep_replica::state::{Replica, ReplicaState};

use crate::apply_lab::{LONG, until, while_following};
use crate::{Told, conninfo, on, options, server, sql, values};

/// A replica of table t, which has row 1.
fn replicated(source: &Server, target: &Server) -> Replica {
    let table = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)";
    on(source, table);
    create(&options(source, target), &mut Told::default()).unwrap();
    let mut state = ReplicaState::open(&conninfo(target)).unwrap();
    state.replica("r").unwrap().unwrap()
}

/// Applies all that is on the source now, and ends. `then` is called before the end.
fn applied(source: &Server, target: &Server, then: impl FnOnce(&Control)) {
    let what = crate::following(&conninfo(target));
    let followed = while_following(&what, |control| {
        let end = source.flush_lsn().unwrap();
        let reached = control.wait_for(LONG, |stats| {
            stats.applied >= end || stats.phase == Phase::Stopped
        });
        assert!(reached, "{:?}", control.stats());
        then(control);
    });
    followed.unwrap();
}

fn refused(target: &Server) -> String {
    let what = crate::following(&conninfo(target));
    let ended = while_following(&what, |control| {
        control.wait_for(LONG, |stats| {
            stats.phase == Phase::Stopped || stats.phase == Phase::Applying
        });
    });
    let words = ended.unwrap_err().to_string();
    let mut state = ReplicaState::open(&conninfo(target)).unwrap();
    let applied = state.applied("r").unwrap();
    assert_eq!(applied.error.as_deref(), Some(&*words), "status shows it");
    words
}

fn make_slot(source: &Server, slot: &str) {
    let maker = Connection::connect(&conninfo(source), Purpose::Replication, "test");
    (maker.unwrap().create_slot(slot, "pgoutput", false, false)).unwrap();
}

#[test]
fn a_slot_that_is_made_again_does_not_hide_what_it_has_missed() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    let replica = replicated(&source, &target);
    on(&source, "INSERT INTO t VALUES (2)");
    applied(&source, &target, |_| {});
    sql(&source).drop_slot(&replica.slot).unwrap();
    on(&source, "INSERT INTO t VALUES (3)");
    make_slot(&source, &replica.slot);
    on(&source, "INSERT INTO t VALUES (4)");
    let words = refused(&target);
    assert!(words.contains("made again or moved"), "{words}");
    assert_eq!(values(&target, "SELECT max(id) FROM t"), ["2"]);
}

#[test]
fn a_slot_that_is_made_again_before_apply_ever_ran_is_refused() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    let replica = replicated(&source, &target);
    sql(&source).drop_slot(&replica.slot).unwrap();
    on(&source, "INSERT INTO t VALUES (2)");
    make_slot(&source, &replica.slot);
    let words = refused(&target);
    assert!(words.contains("made again or moved"), "{words}");
}

#[test]
fn the_source_confirms_only_what_the_origin_holds_on_disk() {
    let lab = Lab::for_tests().unwrap();
    let (source, mut target) = (server(&lab, "source"), server(&lab, "target"));
    let replica = replicated(&source, &target);
    // WAL of no published table moves slot and origin alike.
    let unpublished = "CREATE TABLE u (id int); INSERT INTO u SELECT generate_series(1, 1000)";
    applied(&source, &target, |_| {
        on(&source, unpublished);
        let end = source.flush_lsn().unwrap();
        until("that the slot confirms WAL without changes", || {
            let slot = sql(&source).slot(&replica.slot).unwrap().unwrap();
            slot.confirmed >= end
        });
    });
    target.stop(Stop::Immediate).unwrap();
    target.start().unwrap();
    let stands = "SELECT max(remote_lsn) FROM pg_replication_origin_status";
    let stands: lockstep_wire::Lsn = values(&target, stands)[0].parse().unwrap();
    let slot = sql(&source).slot(&replica.slot).unwrap().unwrap();
    assert!(stands >= slot.confirmed, "{stands} {slot:?}");
    on(&source, "INSERT INTO t VALUES (2)");
    applied(&source, &target, |_| {});
    assert_eq!(values(&target, "SELECT max(id) FROM t"), ["2"]);
}

#[test]
fn a_source_that_is_set_back_is_refused() {
    let lab = Lab::for_tests().unwrap();
    let (mut source, target) = (server(&lab, "source"), server(&lab, "target"));
    replicated(&source, &target);
    source.stop(Stop::Fast).unwrap();
    let backup = lab.folder().join("backup");
    let copied = Command::new("cp")
        .arg("-a")
        .arg(source.data())
        .arg(&backup)
        .status();
    assert!(copied.unwrap().success());
    source.start().unwrap();
    on(&source, "INSERT INTO t SELECT generate_series(2, 1000)");
    applied(&source, &target, |_| {});
    source.stop(Stop::Fast).unwrap();
    std::fs::remove_dir_all(source.data()).unwrap();
    std::fs::rename(&backup, source.data()).unwrap();
    source.start().unwrap();
    let words = refused(&target);
    assert!(words.contains("set back to an earlier state"), "{words}");
}
