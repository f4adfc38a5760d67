//! A source that fails over: its standby is promoted, and the replica goes on there or says why not.

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{SUPERUSER, Server, Settings, Stop};

use crate::relay_support::until as wait_until;
use crate::relay_survives::copy_slot;
use crate::replica::{Followed, Running, create_args, in_app, on, output, server, until, value};

/// A replica of t, which has no key, so that a row that came twice would be there twice. Its source
/// was killed, with all it had on its standby and on the target, and the standby promoted.
struct FailedOver {
    running: Running,
    source: Server,
    target: Server,
    to: String,
    log: std::path::PathBuf,
    // Last: it ends what still runs.
    _lab: Lab,
}

const ROWS: &str = "SELECT count(*) FROM t";

/// Gives the standby the replica's slot: by the server's own means where it has them.
fn synchronised(source: &Server, standby: &mut Server) {
    let version = value(
        source,
        "SELECT current_setting('server_version_num')::int / 10000",
    );
    let slot = "SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'lockstep%'";
    let slot = value(source, slot);
    if version.parse::<u32>().unwrap() >= 17 {
        standby.set([("hot_standby_feedback", "on")]).unwrap();
        standby.reload().unwrap();
        wait_until("the slot is synchronised", || {
            // It fails while the standby has not replayed enough.
            let _ = standby.execute("SELECT pg_sync_replication_slots()");
            let synced = format!(
                "SELECT count(*)::text FROM pg_replication_slots \
                 WHERE slot_name = '{slot}' AND synced AND NOT temporary"
            );
            // So that there is something to replay.
            source.run("SELECT pg_log_standby_snapshot()");
            let there = standby.query_text(&synced).unwrap();
            (there.as_deref() == Some("1")).then_some(())
        });
    } else {
        // What is on disk may be older than what was confirmed.
        source.run("CHECKPOINT");
        standby.stop(Stop::Fast).unwrap();
        copy_slot(source, standby, &slot);
        standby.start().unwrap();
    }
}

fn failed_over(with_slot: bool) -> FailedOver {
    let lab = Lab::for_tests().unwrap();
    let (mut source, target) = (server(&lab, "source"), server(&lab, "target"));
    let mut standby = lab.standby(&source, "standby", &Settings::new()).unwrap();
    let table = "CREATE TABLE t (v int); INSERT INTO t SELECT generate_series(1, 1000)";
    on(&source, table);
    let folder = source.sockets().display();
    let from = format!(
        "host={folder},{folder} port={},{} user={SUPERUSER} dbname=app target_session_attrs=read-write",
        source.port(),
        standby.port()
    );
    let to = in_app(&target);
    let created = output(&create_args(&from, &to));
    assert!(created.status.success(), "{created:?}");
    let log = lab.folder().join("run.log");
    let mut running = Followed::run(&to, &log, "2");
    on(&source, "INSERT INTO t SELECT generate_series(1, 10)");
    until(&target, ROWS, "1010", &mut running.0);
    if with_slot {
        synchronised(&source, &mut standby);
    }
    on(&source, "INSERT INTO t SELECT generate_series(1, 10)");
    until(&target, ROWS, "1020", &mut running.0);
    standby.catch_up(&source).unwrap();
    source.kill().unwrap();
    standby.promote().unwrap();
    FailedOver {
        running,
        source: standby,
        target,
        to,
        log,
        _lab: lab,
    }
}

#[test]
fn a_promoted_standby_with_the_slot_is_followed_and_nothing_comes_twice() {
    let mut after = failed_over(true);
    on(&after.source, "INSERT INTO t SELECT generate_series(1, 5)");
    until(&after.target, ROWS, "1025", &mut after.running.0);
    let verified = output(&["verify", "r", "--target", &after.to]);
    assert!(verified.status.success(), "{verified:?}");
}

#[test]
fn a_promoted_standby_without_the_slot_is_refused_in_words_and_nothing_is_lost() {
    let after = failed_over(false);
    on(&after.source, "INSERT INTO t SELECT generate_series(1, 5)");
    wait_until("the log says why", || {
        let log = std::fs::read_to_string(&after.log).unwrap();
        (log.contains("slot") && log.contains("does not exist")).then_some(())
    });
    assert_eq!(value(&after.target, ROWS), "1020");
    // Made again it has all.
    drop(after.running);
    let dropped = output(&["drop", "r", "--target", &after.to]);
    assert!(dropped.status.success(), "{dropped:?}");
}
