//! `lockstep relay` and its primary: refused, gone, back, crashed, set back, another one.

use std::path::Path;
use std::process::Command;

use crate::relay_support::{
    Relay, allow_plugin, logical, publish, publisher, subscribe, until, until_ready, until_same,
};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server, Settings, Stop};

const TABLE: &str = "t (id bigserial PRIMARY KEY, v text)";

/// Rows of some 300 bytes.
fn write(primary: &Server, rows: u32) {
    primary.run(&format!(
        "INSERT INTO t (v) SELECT repeat('x', 300) FROM generate_series(1, {rows})"
    ));
}

/// Waits until a group has failed for this reason.
fn until_failed(lab: &Lab, relay: &Relay, reason: &str) {
    until(&format!("the group fails: {reason}"), || {
        let upstream = relay.try_console(lab, "SHOW UPSTREAM").ok()?;
        (upstream.contains("|failed|") && upstream.contains(reason)).then_some(())
    });
}

/// Copies a stopped server's files, as a backup or back.
fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    // Owner and modes as well.
    let status = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(status.unwrap().success());
}

/// A refusal is not an absence.
#[test]
fn a_refused_connection_does_not_hide_the_primary() {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = publisher(&lab);
    primary.run("CREATE TABLE t (id int); CREATE PUBLICATION p FOR TABLE t");
    let file = lab.folder().join("relay.toml");
    let group = |name: &str, database: &str| {
        format!("[[group]]\nname = '{name}'\ndatabase = '{database}'\npublications = ['p']\n")
    };
    // The second is refused again and again: the primary has no such database.
    let text = group("good", "postgres") + &group("refused", "missing");
    std::fs::write(&file, text).unwrap();
    let config = file.display().to_string();
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &["--config", &config]);
    until("the group streams", || {
        let upstream = relay.try_console(&lab, "SHOW UPSTREAM").ok()?;
        upstream.contains("good|").then_some(())
    });
    let refusals = || {
        let log = std::fs::read_to_string(primary.log()).unwrap();
        log.matches("database \"missing\" does not exist").count()
    };
    let before = refusals();
    until("it is refused again", || {
        (refusals() > before).then_some(())
    });
    // At once: nobody would look for it while a group streams.
    let upstream = relay.console(&lab, "SHOW UPSTREAM");
    let refused = upstream.lines().find(|row| row.starts_with("refused|"));
    let refused = refused.unwrap_or_else(|| panic!("{upstream}"));
    assert_has!(refused, "|failed|", "\"missing\" does not exist");
    assert_eq!(
        relay
            .log()
            .matches("cannot make a configured group")
            .count(),
        1,
        "{}",
        relay.log()
    );
    drop((relay, primary));
}

/// The first login finds a primary that is back, and gets its own words while it starts.
#[test]
fn a_login_looks_for_a_primary_that_is_back() {
    let lab = TestLab::with_extension().start().unwrap();
    let mut primary = publisher(&lab);
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    let until_said = |what: &str, times: usize| {
        until(what, || {
            (relay.log().matches(what).count() >= times).then_some(())
        });
    };
    for time in 1..=2 {
        until_said("found the primary", time);
        primary.stop(Stop::Fast).unwrap();
        until_said("cannot reach the primary; trying again", time);
        let said = relay.try_console(&lab, "SHOW VERSION").unwrap_err();
        assert_has!(said, "the relay cannot reach the primary");
        primary.start().unwrap();
        relay.console(&lab, "SHOW VERSION");
    }
    drop((relay, primary));
}

#[test]
fn a_primary_that_was_set_back_is_refused() {
    let lab = TestLab::with_extension().start().unwrap();
    let mut primary = publisher(&lab);
    let subscriber = lab.primary("subscriber", None, &logical()).unwrap();
    publish(&primary, &subscriber, TABLE);
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    subscribe(&subscriber, "s", &relay.conninfo(), "p");
    write(&primary, 10);
    until_same(&primary, &subscriber, "t");

    let backup = lab.folder().join("backup");
    primary.stop(Stop::Fast).unwrap();
    copy(primary.data(), &backup);
    primary.start().unwrap();
    for _ in 0..20 {
        write(&primary, 500);
    }
    until_same(&primary, &subscriber, "t");
    let had = subscriber
        .query_text("SELECT count(*)::text FROM t")
        .unwrap();
    let end = primary.flush_lsn().unwrap();
    primary.stop(Stop::Fast).unwrap();
    copy(&backup, primary.data());
    primary.start().unwrap();
    assert!(primary.flush_lsn().unwrap() < end, "the copy is older");
    until_failed(&lab, &relay, "the primary was set back");

    // Once it has as much WAL as before, only what is in it tells.
    while primary.flush_lsn().unwrap() <= end {
        write(&primary, 500);
    }
    until_failed(&lab, &relay, "does not have the transaction");
    write(&primary, 10);
    let has = subscriber
        .query_text("SELECT count(*)::text FROM t")
        .unwrap();
    assert_eq!(has, had, "nothing of the other WAL has come");
    drop((subscriber, relay, primary));
}

#[test]
fn a_primary_that_crashed_with_its_slot_behind_goes_on() {
    let lab = TestLab::with_extension().start().unwrap();
    let mut primary = publisher(&lab);
    let subscriber = lab.primary("subscriber", None, &logical()).unwrap();
    publish(&primary, &subscriber, TABLE);
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    subscribe(&subscriber, "s", &relay.conninfo(), "p");
    until_ready(&subscriber);
    for round in 1..=2 {
        for _ in 0..10 {
            write(&primary, 300);
        }
        until_same(&primary, &subscriber, "t");
        // Slots go to disk with a checkpoint: after the crash this one is where it was before.
        primary.kill().unwrap();
        primary.start().unwrap();
        write(&primary, 10);
        until_same(&primary, &subscriber, "t");
        // The line says where the slot stood and where the log ends.
        let log = relay.log();
        let behind = log.lines().filter(|line| line.contains("receiving"));
        let behind = behind.filter(|line| {
            let field = |name: &str| {
                let words = line.split_whitespace();
                words.filter_map(|word| word.strip_prefix(name)).next()
            };
            field("slot_at=") != field("from=")
        });
        assert!(behind.count() >= round, "{log}");
    }
    drop((subscriber, relay, primary));
}

/// Gives a standby a copy of the relay's slot as it is on the primary's disk.
fn copy_slot(primary: &Server, standby: &mut Server) {
    standby.stop(Stop::Fast).unwrap();
    let slot = "SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'lockstep%'";
    let slot = primary.query_text(slot).unwrap().unwrap();
    let folder = |server: &Server| server.data().join("pg_replslot").join(&slot);
    copy(&folder(primary), &folder(standby));
    standby.start().unwrap();
}

#[test]
fn two_promotions_at_different_positions_are_told_apart() {
    let lab = TestLab::with_extension().start().unwrap();
    let mut primary = publisher(&lab);
    let mut standbys = ["one", "two"].map(|name| {
        let mut standby = lab.standby(&primary, name, &Settings::new()).unwrap();
        allow_plugin(&mut standby);
        standby
    });
    let subscriber = lab.primary("subscriber", None, &logical()).unwrap();
    publish(&primary, &subscriber, TABLE);
    let folder = primary.sockets().display();
    let [one, two] = &mut standbys;
    let all = format!(
        "host={folder},{folder},{folder} port={},{},{} user={SUPERUSER} dbname=postgres \
         target_session_attrs=read-write",
        primary.port(),
        one.port(),
        two.port(),
    );
    let relay = Relay::start(&lab, &all, &[]);
    subscribe(&subscriber, "s", &relay.conninfo(), "p");
    write(&primary, 10);
    until_same(&primary, &subscriber, "t");
    primary.run("CHECKPOINT");
    copy_slot(&primary, one);
    copy_slot(&primary, two);

    // The second standby is left behind, and the first becomes timeline 2.
    let end = primary.flush_lsn().unwrap();
    until("the second standby has some", || {
        two.replay_lsn().ok().filter(|&lsn| lsn >= end)
    });
    two.stop(Stop::Fast).unwrap();
    write(&primary, 1_000);
    until_same(&primary, &subscriber, "t");
    let end = primary.flush_lsn().unwrap();
    until("the first standby has all", || {
        one.replay_lsn().ok().filter(|&lsn| lsn >= end)
    });
    primary.kill().unwrap();
    one.promote().unwrap();
    write(one, 10);
    until_same(one, &subscriber, "t");
    let had = subscriber
        .query_text("SELECT count(*)::text FROM t")
        .unwrap();
    let end = one.flush_lsn().unwrap();

    // Then the second one becomes timeline 2 as well, and gets ahead.
    one.kill().unwrap();
    two.start().unwrap();
    two.promote().unwrap();
    while two.flush_lsn().unwrap() <= end {
        write(two, 500);
    }
    until_failed(&lab, &relay, "left what the relay followed");
    let has = subscriber
        .query_text("SELECT count(*)::text FROM t")
        .unwrap();
    assert_eq!(has, had, "nothing of the other timeline has come");
    drop((subscriber, relay, standbys, primary));
}
