//! A process that applies and loses its session with the replica's lock, as when the target's server is
//! restarted: other commands wait for it, and it applies nothing while another has the lock.

use std::thread;

use lockstep_apply::Control;
use lockstep_lab::server::Server;
use lockstep_replica::lifecycle::alter::alter;
use lockstep_replica::lifecycle::promote::promote;
use lockstep_replica::verify;

use crate::apply_lab::{LONG, catch_up, until, while_following};
use crate::{Told, conninfo, copied, following, on, sql, to_alter, to_promote, to_verify, values};

const SCHEMA: &str = "CREATE TABLE emptied (id int PRIMARY KEY); CREATE TABLE later (id int PRIMARY KEY); \
    CREATE TABLE much (id int PRIMARY KEY, n int); INSERT INTO much VALUES (1, 1), (2, 2)";

/// The session with the replica's lock.
const LOCK: &str = "FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = \
    (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Ends the session with the replica's lock right after it has written: its process notices that with its
/// next look, a second later.
fn lose_lock(target: &Server) {
    let written = || values(target, "SELECT applied_at::text FROM lockstep.replica");
    let before = written();
    until("that the state is written", || written() != before);
    on(target, &format!("SELECT pg_terminate_backend(pid) {LOCK}"));
}

fn is_equal(target: &Server) -> bool {
    let report = verify::replica(&to_verify(conninfo(target)), &mut |_| {});
    report.unwrap().is_equal()
}

#[test]
fn commands_wait_for_a_process_that_has_lost_its_lock() {
    let (_lab, source, target) = copied(SCHEMA);
    let ended = while_following(&following(&conninfo(&target)), |control| {
        catch_up(&source, control);
        lose_lock(&target);
        assert!(is_equal(&target));
        lose_lock(&target);
        let error = alter(&to_alter(conninfo(&target)), &mut Told::default()).unwrap_err();
        assert!(error.to_string().contains("replica \"r\""), "{error}");
        let state = "SELECT phase || ' ' || altering FROM lockstep.replica";
        assert_eq!(values(&target, state), ["ready false"]);
        on(&source, "INSERT INTO emptied VALUES (1)");
        catch_up(&source, control);
        lose_lock(&target);
        promote(&to_promote(conninfo(&target)), &mut |_| {}).unwrap();
    });
    ended.unwrap();
    assert_eq!(values(&target, "SELECT id FROM emptied"), ["1"]);
}

#[test]
fn a_target_that_was_restarted_is_compared_at_once() {
    let (_lab, source, mut target) = copied(SCHEMA);
    let to = conninfo(&target);
    let ended = while_following(&following(&to), |control| {
        for row in 0..3 {
            catch_up(&source, control);
            target.restart().unwrap();
            on(&source, &format!("INSERT INTO emptied VALUES ({row})"));
            assert!(is_equal(&target));
        }
    });
    ended.unwrap();
}

/// Waits until apply says that it has not the lock.
fn has_lost(control: &Control) {
    let has_lost = control.wait_for(LONG, |stats| {
        let error = stats.error.as_ref();
        error.is_some_and(|error| {
            error.contains("nothing is applied until this process has the lock")
        })
    });
    assert!(has_lost, "{:?}", control.stats());
}

#[test]
fn a_process_without_the_lock_applies_nothing() {
    let (_lab, source, target) = copied(SCHEMA);
    let ended = while_following(&following(&conninfo(&target)), |control| {
        catch_up(&source, control);
        // Another is in the queue for the lock, and so has it first.
        let mut other = sql(&target);
        let pid = other.backend_pid();
        let waits = thread::spawn(move || {
            let lock = "SELECT pg_advisory_lock(hashtextextended('lockstep replica r', 0))";
            other.execute(lock).unwrap();
            other
        });
        until("that it waits", || {
            let sql = format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = {pid}");
            values(&target, &sql) == ["1"]
        });
        on(&target, &format!("SELECT pg_terminate_backend(pid) {LOCK}"));
        let other = waits.join().unwrap();
        on(
            &target,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'r'",
        );
        on(&source, "INSERT INTO emptied VALUES (1)");
        has_lost(control);
        let rows = || values(&target, "SELECT count(*) FROM emptied");
        assert_eq!(rows(), ["0"]);
        drop(other);
        catch_up(&source, control);
        assert_eq!(rows(), ["1"]);
    });
    ended.unwrap();
}
