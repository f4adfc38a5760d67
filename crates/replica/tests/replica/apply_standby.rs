//! What the source sees: a synchronous standby, an idle replica, and interruptions.

use lockstep_apply::Phase;
use lockstep_lab::server::Stop;

use super::apply_lab::{LONG, NAME, Pair, SLOT, rows, sql, until};

/// Times that the source is asked when the replica last told it something.
const LOOKS: usize = 500;

#[test]
fn commits_wait_for_the_target() {
    let mut pair = Pair::new("CREATE TABLE t (id int PRIMARY KEY, v text)");
    let control = pair.start();
    assert!(control.wait_for(LONG, |stats| stats.phase == Phase::Applying));
    pair.source
        .set([("synchronous_standby_names", NAME)])
        .unwrap();
    pair.source.reload().unwrap();
    until("that the replica is a synchronous standby", || {
        let state = "SELECT sync_state FROM pg_stat_replication WHERE application_name = 'r1'";
        let found = pair.source.query_text(state).unwrap();
        found.as_deref() == Some("sync")
    });
    let mut source = sql(&pair.source);
    let mut target = sql(&pair.target);
    for (number, level) in ["on", "remote_apply"].iter().cycle().take(20).enumerate() {
        source
            .execute(&format!("SET synchronous_commit = {level}"))
            .unwrap();
        source
            .execute(&format!("INSERT INTO t VALUES ({number}, 'v')"))
            .unwrap();
        let there = target.query(&format!("SELECT 1 FROM t WHERE id = {number}"));
        assert_eq!(there.unwrap().len(), 1, "{level}");
    }
    pair.stop();
    pair.source.unset("synchronous_standby_names").unwrap();
    pair.source.reload().unwrap();
}

/// While it waits, a source answers each message with what it has said before.
#[test]
fn a_target_that_takes_its_time_makes_no_talk() {
    let mut pair = Pair::new("CREATE TABLE t (id int PRIMARY KEY)");
    pair.start();
    pair.catch_up();
    let mut locker = sql(&pair.target);
    locker.execute("BEGIN; LOCK TABLE t").unwrap();
    pair.source.run("INSERT INTO t VALUES (1)");
    until("that the writer waits for the lock", || {
        !rows(&pair.target, "SELECT 1 FROM pg_locks WHERE NOT granted").is_empty()
    });
    let told = "SELECT reply_time::text FROM pg_stat_replication";
    let mut source = sql(&pair.source);
    let mut replies: Vec<_> = (0..LOOKS).map(|_| source.query(told).unwrap()).collect();
    replies.dedup();
    assert!(replies.len() < LOOKS / 10, "{} replies", replies.len());
    // Nor does it tell that there is WAL of which it gets nothing.
    let mut commit_and_look = |number| {
        let comment = format!("COMMENT ON TABLE t IS 'the {number}th'");
        source.execute(&comment).unwrap();
        source.query(told).unwrap()
    };
    let mut replies: Vec<_> = (0..LOOKS).map(&mut commit_and_look).collect();
    replies.dedup();
    assert!(replies.len() < LOOKS / 10, "{} replies", replies.len());
    locker.execute("ROLLBACK").unwrap();
    pair.assert_same("SELECT * FROM t");
}

#[test]
fn wal_that_is_not_replicated_does_not_hold_back_the_slot() {
    let mut pair =
        Pair::new("CREATE TABLE t (id int PRIMARY KEY); CREATE UNLOGGED TABLE u (id int)");
    pair.start();
    pair.catch_up();
    pair.source.run("CREATE DATABASE elsewhere; ");
    pair.source
        .run("BEGIN; CREATE TABLE x AS SELECT generate_series(1, 1000); ROLLBACK");
    let end = pair.source.flush_lsn().unwrap();
    until("that the slot has passed the end of the WAL", || {
        let sql = format!(
            "SELECT (confirmed_flush_lsn >= '{end}')::text FROM pg_replication_slots \
             WHERE slot_name = '{SLOT}'"
        );
        pair.source.query_text(&sql).unwrap().as_deref() == Some("true")
    });
}

#[test]
fn a_pause_and_restarts_of_both_servers_lose_nothing() {
    let mut pair = Pair::new("CREATE TABLE t (id int PRIMARY KEY, v text)");
    let control = pair.start();
    pair.source.run("INSERT INTO t VALUES (1)");
    pair.catch_up();
    control.pause();
    assert!(control.wait_for(LONG, |stats| stats.phase == Phase::Paused));
    pair.source.run("INSERT INTO t VALUES (2)");
    let there = "SELECT count(*) FROM t";
    assert_eq!(rows(&pair.target, there)[0][0].as_deref(), Some("1"));
    control.resume();
    pair.assert_same("SELECT * FROM t ORDER BY id");
    pair.target.stop(Stop::Immediate).unwrap();
    pair.source.run("INSERT INTO t VALUES (3)");
    pair.target.start().unwrap();
    pair.assert_same("SELECT * FROM t ORDER BY id");
    pair.source.stop(Stop::Fast).unwrap();
    pair.source.start().unwrap();
    pair.source.run("INSERT INTO t VALUES (4)");
    pair.assert_same("SELECT * FROM t ORDER BY id");
    assert!(control.stats().sessions >= 4);
}

#[test]
fn a_lock_on_the_target_holds_neither_the_stream_nor_the_end_up() {
    let mut pair = Pair::new("CREATE TABLE t (id int PRIMARY KEY)");
    pair.source.set([("wal_sender_timeout", "4s")]).unwrap();
    pair.source.reload().unwrap();
    let control = pair.start();
    pair.catch_up();
    let mut locker = sql(&pair.target);
    locker.execute("BEGIN; LOCK TABLE t").unwrap();
    pair.source.run("INSERT INTO t VALUES (1)");
    until("that the writer waits for the lock", || {
        !rows(&pair.target, "SELECT 1 FROM pg_locks WHERE NOT granted").is_empty()
    });
    let sessions = control.stats().sessions;
    let now = rows(&pair.source, "SELECT clock_timestamp()::text")[0][0].clone();
    let answered = format!(
        "SELECT 1 FROM pg_stat_replication WHERE reply_time > '{}'::timestamptz + interval '4 s'",
        now.unwrap()
    );
    until(
        "an answer after the time for which the source waits for one",
        || !rows(&pair.source, &answered).is_empty(),
    );
    assert_eq!(control.stats().sessions, sessions, "{:?}", control.stats());
    pair.stop();
    locker.execute("ROLLBACK").unwrap();
    pair.start();
    pair.assert_same("SELECT * FROM t");
}

/// What is committed on the source is there, whether its client has heard of it or not.
#[test]
fn a_commit_that_waits_outlives_restarts_of_the_replica_and_of_the_source() {
    let mut pair = Pair::new("CREATE TABLE t (id int PRIMARY KEY, v text)");
    pair.start();
    pair.source
        .set([("synchronous_standby_names", NAME)])
        .unwrap();
    pair.source.reload().unwrap();
    until("that the replica is a synchronous standby", || {
        let state = "SELECT sync_state FROM pg_stat_replication WHERE application_name = 'r1'";
        pair.source.query_text(state).unwrap().as_deref() == Some("sync")
    });
    for (id, source_too) in [(1, false), (2, true)] {
        let mut locker = sql(&pair.target);
        locker.execute("BEGIN; LOCK TABLE t").unwrap();
        let mut writer = sql(&pair.source);
        let insert = format!("INSERT INTO t VALUES ({id}, 'v')");
        let waits = std::thread::spawn(move || writer.execute(&insert));
        until("that the commit waits", || {
            let waiting = "SELECT 'yes' FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            pair.source.query_text(waiting).unwrap().is_some()
        });
        pair.stop();
        if source_too {
            pair.source.stop(Stop::Immediate).unwrap();
            pair.source.start().unwrap();
        }
        pair.start();
        if source_too {
            until("that the client has heard of it", || waits.is_finished());
        }
        assert_eq!(waits.is_finished(), source_too);
        locker.execute("COMMIT").unwrap();
        assert_eq!(waits.join().unwrap().is_err(), source_too);
        pair.assert_same("SELECT * FROM t ORDER BY id");
        let there = rows(&pair.target, "SELECT count(*) FROM t");
        assert_eq!(there, [[Some(id.to_string())]]);
    }
    pair.stop();
    pair.source.unset("synchronous_standby_names").unwrap();
    pair.source.reload().unwrap();
}

/// The target has a part of a transaction, and the source sends it again; one that was open is gone.
#[test]
fn a_source_that_dies_in_the_middle_of_a_transaction_sends_it_once() {
    let mut pair = Pair::new("CREATE TABLE t (id int PRIMARY KEY, v text)");
    let mut holder = sql(&pair.target);
    pair.source
        .run("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 50000) i");
    let mut open = sql(&pair.source);
    open.execute("BEGIN; INSERT INTO t SELECT i, 'open' FROM generate_series(50001, 90000) i")
        .unwrap();
    // The last rows wait for this one, when the first part is done.
    holder
        .execute("BEGIN; INSERT INTO t VALUES (50000, 'in the way')")
        .unwrap();
    pair.start();
    until("that the target waits for the row", || {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid'";
        rows(&pair.target, waits) == [[Some("1".to_owned())]]
    });
    pair.source.stop(Stop::Immediate).unwrap();
    pair.source.start().unwrap();
    holder.execute("ROLLBACK").unwrap();
    pair.source.run("INSERT INTO t VALUES (0, 'later')");
    pair.assert_same("SELECT count(*), sum(id) FROM t");
    let there = rows(&pair.target, "SELECT count(*) FROM t");
    assert_eq!(there, [[Some("50001".to_owned())]]);
    pair.stop();
}
