//! `lockstep replica promote` with real servers, as a user runs it.

use std::process::Stdio;

use lockstep_lab::assert_has;
use lockstep_lab::server::Stop;

use crate::doctor_support::{doctor, once_right};
use crate::replica::{
    Running, begins_read_only, closed_args, create_args, in_app, lockstep, on, output, pair, said,
    sql, status, text, until, value,
};
use crate::replica_switchover::follows;

const PHASE: &str = "SELECT phase FROM lockstep.replica";

#[test]
fn a_target_becomes_a_database_of_its_own_with_all_that_its_source_had() {
    let (lab, mut source, target) = pair("CREATE TABLE a (id serial PRIMARY KEY, v text)");
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&closed_args(&from, &to)).status.success());
    let promote = ["promote", "r", "--target", &to];
    let early = output(&promote);
    assert_eq!(early.status.code(), Some(1), "{early:?}");
    assert_has!(said(&early), "start lockstep replica run");

    let log = std::fs::File::create(lab.folder().join("log")).unwrap();
    let child = lockstep(&["run", "r", "--target", &to]).stderr(log).spawn();
    let mut process = Running(child.unwrap());
    let state = "SELECT coalesce(apply_state, '') FROM lockstep.replica";
    until(&target, state, "applying", &mut process.0);
    assert_eq!(begins_read_only(&target), "on");

    // A promotion that is killed while it waits for the target has changed nothing.
    let mut blocker = sql(&target);
    blocker
        .execute("SET default_transaction_read_only = off; BEGIN; LOCK TABLE a IN SHARE MODE")
        .unwrap();
    on(
        &source,
        "INSERT INTO a (v) SELECT 'x' FROM generate_series(1, 100)",
    );
    let child = lockstep(&promote).stdout(Stdio::null()).spawn();
    let mut killed = Running(child.unwrap());
    let holds = "SELECT count(*) FROM lockstep.hold";
    until(&target, holds, "1", &mut killed.0);
    drop(killed);
    assert_eq!(value(&target, PHASE), "ready");
    drop(blocker);

    // Nobody has waited for these rows.
    on(
        &source,
        "SET synchronous_commit = off; INSERT INTO a (v) SELECT 'y' FROM generate_series(1, 50)",
    );
    let done = output(&promote);
    assert!(done.status.success(), "{}", said(&done));
    assert_has!(
        said(&done),
        "everything that the source had committed before"
    );
    assert!(process.0.wait().unwrap().success(), "it ends by itself");
    let log = std::fs::read_to_string(lab.folder().join("log")).unwrap();
    assert_has!(log, "a promotion of the replica has begun");

    assert_eq!(begins_read_only(&target), "off");
    on(&target, "INSERT INTO a (v) VALUES ('here')");
    assert_eq!(
        value(&target, "SELECT count(*) || ' ' || max(id) FROM a"),
        "151 151"
    );
    let left = "SELECT (SELECT count(*) FROM pg_replication_slots) + (SELECT count(*) FROM pg_publication)";
    assert_eq!(value(&source, left), "0");

    let again = output(&promote);
    assert!(
        again.status.success() && said(&again).contains("was promoted before"),
        "{again:?}"
    );
    let reverse = output(&[&promote[..], &["--reverse"]].concat());
    assert_eq!(reverse.status.code(), Some(1), "{reverse:?}");
    assert_has!(said(&reverse), "without a way back", "in an empty database");
    let both = output(&[&promote[..], &["--reverse", "--with-data-loss"]].concat());
    assert_eq!(both.status.code(), Some(2), "{both:?}");
    let mut create = create_args(&from, &to);
    create.extend(["--jobs", "2"]);
    for args in [
        &create[..],
        &["run", "r", "--target", &to],
        &["start", "r", "--target", &to],
        &["pause", "r", "--target", &to],
        &["resume", "r", "--target", &to],
        &["force", "r", "--target", &to],
        &["alter", "r", "--target", &to, "--frequency", "1h"],
        &["verify", "r", "--target", &to],
    ] {
        let refused = output(args);
        assert_eq!(refused.status.code(), Some(1), "{args:?} {refused:?}");
        assert_has!(said(&refused), "is promoted");
    }
    let shown = &status(&to)["replicas"][0];
    for (key, wanted) in [
        ("phase", "promoted"),
        ("apply", ""),
        ("lag_bytes", ""),
        ("error", ""),
    ] {
        assert_eq!(shown[key].as_str().unwrap_or_default(), wanted, "{shown}");
    }
    assert_eq!(shown["promotion"]["with_data_loss"], false, "{shown}");
    assert!(shown["promotion"]["newest_commit"].is_string(), "{shown}");
    let nodes = ["--primary", &from, "--subscriber", &to];
    let ask = || doctor(&[&nodes[..], &["--seconds", "2"]].concat());
    let found = once_right(ask, |said| said.code == 0);
    assert_eq!(found.code, 0, "{} {}", found.text, found.error);

    source.stop(Stop::Fast).unwrap();
    let dropped = output(&["drop", "r", "--target", &to]);
    assert!(dropped.status.success(), "{dropped:?}");
}

#[test]
fn what_the_spool_has_is_not_lost_with_the_source() {
    let (lab, mut source, target) = pair("CREATE TABLE a (id serial PRIMARY KEY, v text)");
    let (from, to) = (in_app(&source), in_app(&target));
    let mut create = create_args(&from, &to);
    create.extend(["--frequency", "1h"]);
    assert!(output(&create).status.success());
    let early = output(&["promote", "r", "--target", &to]);
    assert!(said(&early).contains("none has ended yet"), "{early:?}");

    let spool = lab.folder().join("spool");
    let run = || {
        let mut command = lockstep(&["run", "r", "--target", &to, "--spool-limit", "1GB"]);
        command.args(["--spool-dir", spool.to_str().unwrap()]);
        Running(command.stderr(Stdio::null()).spawn().unwrap())
    };
    let mut process = run();
    let cycles = "SELECT count(*) FROM lockstep.cycle WHERE state = 'done'";
    until(&target, cycles, "1", &mut process.0);
    on(
        &source,
        "INSERT INTO a (v) SELECT 'x' FROM generate_series(1, 100)",
    );
    let end = source.flush_lsn().unwrap();
    let spooled = format!("SELECT coalesce(spool_to >= '{end}', false) FROM lockstep.replica");
    until(&target, &spooled, "t", &mut process.0);
    assert_eq!(value(&target, "SELECT count(*) FROM a"), "0");
    source.stop(Stop::Immediate).unwrap();

    let refused = output(&["promote", "r", "--target", &to]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(said(&refused).contains("--with-data-loss"), "{refused:?}");
    let reverse = output(&["promote", "r", "--target", &to, "--reverse"]);
    assert_eq!(reverse.status.code(), Some(3), "{reverse:?}");
    assert_has!(said(&reverse), "source", "promote with --with-data-loss");
    // Without the process nobody has the spool.
    drop(process);
    let loss = ["promote", "r", "--target", &to, "--with-data-loss"];
    let refused = output(&loss);
    assert!(said(&refused).contains("--without-spool"), "{refused:?}");
    assert_eq!(value(&target, PHASE), "ready");

    let mut process = run();
    until(
        &target,
        "SELECT count(*) FROM pg_stat_activity WHERE pid = (SELECT apply_pid FROM lockstep.replica)",
        "1",
        &mut process.0,
    );
    let done = output(&loss);
    assert!(done.status.success(), "{}", said(&done));
    assert!(process.0.wait().unwrap().success(), "it ends by itself");
    assert_eq!(
        value(
            &target,
            "SELECT count(*) || ' ' || coalesce(max(id), 0) FROM a"
        ),
        "100 100",
        "{}",
        said(&done)
    );
    assert_eq!(value(&target, "SELECT nextval('a_id_seq')"), "101");
    let shown = &status(&to)["replicas"][0];
    assert_eq!(shown["promotion"]["with_data_loss"], true, "{shown}");
    assert_eq!(shown["promotion"]["left_on_source"], true, "{shown}");
    let printed = text(&done.stdout);
    assert_has!(printed, "nothing that was committed there later");

    // The source comes back, and the printed commands remove what it keeps.
    source.start().unwrap();
    let kept = "SELECT (SELECT count(*) FROM pg_replication_slots) + (SELECT count(*) FROM pg_publication)";
    assert_eq!(value(&source, kept), "2");
    let commands = printed.lines().filter(|line| line.ends_with(';'));
    commands.for_each(|command| on(&source, command));
    assert_eq!(value(&source, kept), "0");
}

#[test]
fn what_is_not_its_source_says_nothing_of_it() {
    let (_lab, source, target) = pair("CREATE TABLE a (id int PRIMARY KEY)");
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&create_args(&from, &to)).status.success());
    source.run("CREATE DATABASE other");
    let other = from.replace("dbname=app", "dbname=other");
    let kept = "SELECT (SELECT count(*) FROM pg_replication_slots) + (SELECT count(*) FROM pg_publication)";
    for (wrong, wanted) in [(&to, "it is cluster"), (&other, "it is database other")] {
        for args in [
            &[
                "promote",
                "r",
                "--target",
                &to,
                "--source",
                wrong,
                "--with-data-loss",
            ][..],
            &["promote", "r", "--target", &to, "--source", wrong],
            &["drop", "r", "--target", &to, "--source", wrong],
        ] {
            let refused = output(args);
            assert_eq!(refused.status.code(), Some(1), "{args:?} {refused:?}");
            let said = said(&refused);
            assert!(
                said.contains(wanted) && !said.contains("drop it on"),
                "{args:?} {said}"
            );
            assert!(said.contains("name the right one") || said.contains("Name the right one"));
            assert_eq!(value(&target, PHASE), "ready", "{args:?}");
            assert_eq!(value(&source, kept), "2", "{args:?}");
        }
    }

    // The address that the state has leads to another cluster now.
    let state = "UPDATE lockstep.replica SET source = ";
    on(&target, &format!("{state}'{to}'"));
    let refused = output(&["promote", "r", "--target", &to]);
    assert!(said(&refused).contains("--with-data-loss"), "{refused:?}");
    let done = output(&["promote", "r", "--target", &to, "--with-data-loss"]);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(
        text(&done.stdout)
            .lines()
            .filter(|line| line.ends_with(';'))
            .count(),
        2
    );
    let shown = &status(&to)["replicas"][0];
    assert_eq!(shown["promotion"]["left_on_source"], true, "{shown}");
    assert_eq!(value(&source, kept), "2");
    let refused = output(&["drop", "r", "--target", &to]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(said(&refused).contains("--without-source"), "{refused:?}");
    // The right one has more than the target, so the slot stays.
    on(&source, "INSERT INTO a VALUES (1)");
    let more = output(&["promote", "r", "--target", &to, "--source", &from]);
    assert_eq!(more.status.code(), Some(5), "{more:?}");
    let words = said(&more);
    assert!(words.contains("has committed changes after"), "{words}");
    assert!(words.contains("lockstep replica drop r"), "{words}");
    assert_eq!(value(&source, kept), "2");
    let nodes = ["--primary", &from, "--subscriber", &to];
    let ask = || doctor(&[&nodes[..], &["--seconds", "2"]].concat());
    let words = "lockstep replica drop r";
    assert_has!(
        once_right(ask, |said| said.text.contains(words)).text,
        words
    );
    let dropped = output(&["drop", "r", "--target", &to, "--source", &from]);
    assert!(dropped.status.success(), "{dropped:?}");
    assert_eq!(value(&source, kept), "0");
}

#[test]
fn a_switchover_that_was_killed_ends_as_a_promotion_only_if_that_is_wanted() {
    let (lab, source, target) = pair("CREATE TABLE a (id int PRIMARY KEY)");
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&closed_args(&from, &to)).status.success());
    let _process = follows(&lab, "r", &to, &target);
    // Who has written keeps it from its fence.
    let mut writer = sql(&source);
    writer.execute("BEGIN; INSERT INTO a VALUES (1)").unwrap();
    let reverse = [
        "promote",
        "r",
        "--target",
        &to,
        "--reverse",
        "--wait",
        "300",
    ];
    let child = lockstep(&reverse).stdout(Stdio::null()).spawn();
    let mut killed = Running(child.unwrap());
    let begun = "SELECT count(*) FROM lockstep.replica WHERE switchover <> ''";
    until(&target, begun, "1", &mut killed.0);
    drop(killed);
    writer.execute("COMMIT").unwrap();

    let bare = output(&["promote", "r", "--target", &to]);
    assert_eq!(bare.status.code(), Some(1), "{bare:?}");
    assert_has!(
        said(&bare),
        "has begun and is not over",
        "promote --reverse"
    );
    assert_eq!(value(&target, PHASE), "ready");

    let done = output(&["promote", "r", "--target", &to, "--with-data-loss"]);
    assert!(done.status.success(), "{}", said(&done));
    assert_has!(said(&done), "without a way back: the source takes writes");
    on(&source, "INSERT INTO a VALUES (2)");
    let slots = "SELECT (SELECT count(*) FROM pg_replication_slots) + (SELECT count(*) FROM pg_publication)";
    assert_eq!(value(&target, slots), "2");
    let printed = text(&done.stdout);
    let commands = printed.lines().filter(|line| line.ends_with(';'));
    commands.for_each(|command| on(&target, command));
    assert_eq!(value(&target, slots), "0");
}
