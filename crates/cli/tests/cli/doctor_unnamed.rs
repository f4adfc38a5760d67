//! What is said of a subscriber that was not named, and whose worker has applied more than it told.

use std::time::{Duration, Instant};

use crate::doctor_support::{SPACE_MB, brief, doctor, monitor};
use crate::relay_support::{until, until_answer};
use lockstep_bench::fault::stage::Which;
use lockstep_bench::fault::{Frozen, Stage};
use lockstep_client::Connection;
use lockstep_lab::assert_has;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::SUPERUSER;
use lockstep_lag::Role;
use lockstep_lag::monitor::{LinkState, Monitor};
use lockstep_lag::point::Bound;
use serde_json::Value;

/// The replica's link in the newest state, if `holds` is true for it.
fn link(monitor: &Monitor, replica: &str, holds: impl Fn(&LinkState) -> bool) -> Option<LinkState> {
    let state = monitor.state();
    let mut links = state.links.iter();
    let link = links.find(|link| link.replica == replica)?;
    holds(link).then(|| link.clone())
}

/// A session of the subscriber that locks a table against the apply worker.
fn lock(stage: &Stage, table: &str) -> Connection {
    let mut session = stage.second.connect(SUPERUSER, "holder").unwrap();
    let sql = format!("BEGIN; LOCK TABLE {table} IN SHARE MODE");
    session.execute(&sql).unwrap();
    session
}

/// Waits until the apply worker waits for a lock on this table.
fn until_blocked(stage: &Stage, table: &str) {
    let sql = format!(
        "SELECT count(*)::text FROM pg_locks WHERE NOT granted AND relation = '{table}'::regclass"
    );
    until_answer(&stage.second, &sql, "1");
}

/// Two transactions are sent at once, so that the worker tells nothing between them. The first is
/// two seconds older, and applied.
#[test]
fn what_a_subscriber_does_not_tell_is_not_taken_for_its_lag() {
    let lab = TestLab::stock().space_mb(SPACE_MB).start().unwrap();
    let stage = Stage::start(&lab).unwrap();
    let unnamed = monitor(&[(Role::Primary, &stage.primary)]);
    let named = monitor(&[
        (Role::Primary, &stage.primary),
        (Role::Subscriber, &stage.second),
    ]);
    let is_there = |link: &LinkState| link.lag_bytes == 0;
    for (monitor, name) in [(&unnamed, "second"), (&named, "subscriber")] {
        until("the subscriber has all", || link(monitor, name, is_there));
    }

    let first_lock = lock(&stage, "t");
    let _second_lock = lock(&stage, "keyed");
    let walsender = stage.process(Which::Primary, "walsender", Some("second"));
    let frozen = Frozen::process(walsender.unwrap()).unwrap();
    stage.primary.run("INSERT INTO t (v) VALUES ('older')");
    // What is not sent is not applied, so all know how long that is.
    let is_old = |link: &LinkState| link.lag_ms > 2_000.0 && link.bound == Bound::default();
    for (monitor, name) in [(&unnamed, "second"), (&named, "subscriber")] {
        until("the subscriber is behind", || link(monitor, name, is_old));
    }
    let written = Instant::now();
    // Of a worker that is within a change, it is not known whether it has passed what is just before.
    let sql = "INSERT INTO busy (v) VALUES ('between')";
    stage.primary.run(sql);
    let sql = "INSERT INTO keyed VALUES (7, 7, 'newer')";
    stage.primary.run(sql);
    let end = stage
        .primary
        .query_text("SELECT pg_current_wal_insert_lsn()::text");
    let end = end.unwrap().unwrap();
    drop(frozen);
    let sql = format!(
        "SELECT (sent_lsn >= '{end}')::text FROM pg_stat_replication \
         WHERE application_name = 'second'"
    );
    until_answer(&stage.primary, &sql, "true");
    until_blocked(&stage, "t");
    drop(first_lock);
    until_blocked(&stage, "keyed");

    // The one that was named is asked, so its lag is that of the newer transaction.
    let most_ms = || written.elapsed().as_secs_f64() * 1000.0;
    until("the lag is the true one", || {
        let is_true = |link: &LinkState| link.bound == Bound::default() && link.lag_ms <= most_ms();
        link(&named, "subscriber", is_true)
    });
    // Of the other its publisher knows only what it told.
    let link = until("the state is newer", || {
        let now = unnamed.state().number;
        let state = unnamed.state_after(now + 1, Duration::from_secs(1));
        (state.number > now).then(|| link(&unnamed, "second", |link| link.lag_bytes > 0))?
    });
    assert!(link.lag_ms > 2_000.0, "{link:?}");
    assert_eq!(link.bound, Bound::MOST, "{link:?}");
    let standby = until("the standby is seen", || {
        self::link(&unnamed, "standby", |_| true)
    });
    assert_eq!(standby.bound, Bound::default());

    // Who comes now knows neither.
    let primary = stage.primary.conninfo(SUPERUSER);
    // Long enough that the lag's median is one on a busy machine, too: who came late saw a part of it.
    let said = doctor(&["--primary", &primary, "--seconds", "4", "--output", "json"]);
    let json: Value = serde_json::from_str(&said.text).unwrap();
    assert_eq!(said.code, 6, "{}", brief(&json));
    let links = json["links"].as_array().unwrap();
    let link = links
        .iter()
        .find(|link| link["replica"] == "second")
        .unwrap();
    assert_eq!(
        (&link["lag_is_least"], &link["lag_is_most"]),
        (&true.into(), &false.into())
    );
    assert!(link["lag_ms"].as_f64().unwrap() <= most_ms(), "{link}");
    let unknown = json["unknown"].to_string();
    assert_has!(unknown, "for how long second has been behind");
}
