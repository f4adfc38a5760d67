//! Replicas of replicas, and a way back whose old server was written.

use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::pause;
use lockstep_lab::server::Server;

use crate::replica::{
    Running, begins_read_only, closed_args, in_app, on, output, pair, said, server, until, value,
};
use crate::replica_switchover::follows;

/// Rows of a table with their number and their sum.
const ROWS: &str = "SELECT count(*) || ' ' || coalesce(sum(id), 0) FROM t";

/// Counts the processes that apply to a replica.
fn alive(name: &str) -> String {
    format!(
        "SELECT count(*) FROM lockstep.replica r JOIN pg_stat_activity a ON a.pid = r.apply_pid \
         WHERE r.name = '{name}'"
    )
}

/// Starts a process, and returns once it applies, not the one before.
fn applies(lab: &Lab, name: &str, to: &str, target: &Server) -> Running {
    let alive = alive(name);
    while value(target, &alive) != "0" {
        pause();
    }
    let mut process = follows(lab, name, to, target);
    until(target, &alive, "1", &mut process.0);
    process
}

#[test]
fn a_chain_goes_on_whoever_is_killed_in_the_middle_and_does_not_close() {
    let (lab, first, mut middle) = pair("CREATE TABLE t (id int PRIMARY KEY, v text)");
    let last = server(&lab, "last");
    let [a, b, c] = [&first, &middle, &last].map(in_app);
    for args in [
        closed_args(&a, &b),
        vec!["create", "next", "--source", &b, "--target", &c],
    ] {
        let created = output(&args);
        assert!(created.status.success(), "{}", said(&created));
    }
    let closes = output(&["create", "closes", "--source", &c, "--target", &a]);
    assert_eq!(closes.status.code(), Some(1), "{closes:?}");
    assert_has!(said(&closes), "error target", "empty");

    let mut to_middle = applies(&lab, "r", &b, &middle);
    let mut to_last = applies(&lab, "next", &c, &last);
    for round in 0..4 {
        on(
            &first,
            &format!(
                "INSERT INTO t SELECT n, 'v' FROM generate_series({round} * 1000 + 1, {round} * 1000 + 900) n; \
                 DELETE FROM t WHERE id % 7 = {round}; UPDATE t SET id = -id WHERE id % 11 = {round}"
            ),
        );
        middle.kill().unwrap();
        middle.start().unwrap();
        match round {
            1 => {
                drop(to_middle);
                to_middle = applies(&lab, "r", &b, &middle);
            }
            2 => {
                drop(to_last);
                to_last = applies(&lab, "next", &c, &last);
            }
            _ => {}
        }
    }
    // The middle is read-only for others, since a replica applies to it.
    let dry = output(&["switchover", "next", "--target", &c, "--dry-run"]);
    assert_eq!(dry.status.code(), Some(1), "{dry:?}");
    assert_has!(said(&dry), "replicas apply to it: r");
    assert!(!said(&dry).contains("moving away"), "{}", said(&dry));
    let wanted = value(&first, ROWS);
    until(&middle, ROWS, &wanted, &mut to_middle.0);
    until(&last, ROWS, &wanted, &mut to_last.0);
    // The process may still be away from the server that was killed: the rows may have come before.
    until(&middle, &alive("r"), "1", &mut to_middle.0);
    until(&last, &alive("next"), "1", &mut to_last.0);
    for (name, to) in [("r", &b), ("next", &c)] {
        let equal = output(&["verify", name, "--target", to]);
        assert!(equal.status.success(), "{}", said(&equal));
    }
    let missing = "SELECT coalesce(sum(missing_rows), 0) FROM lockstep.table_copy";
    assert_eq!(value(&last, missing), "0");
}

#[test]
fn a_way_back_whose_old_server_was_written_names_what_differs() {
    let (lab, source, target) =
        pair("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'both')");
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&closed_args(&from, &to)).status.success());
    let mut process = follows(&lab, "r", &to, &target);
    let patient = ["--max-pause", "60s", "--timeout", "300s"];
    let done = output(&[&["switchover", "r", "--target", &to][..], &patient].concat());
    assert!(done.status.success(), "{}", said(&done));
    assert!(process.0.wait().unwrap().success(), "it ends by itself");
    // A superuser goes past the fence.
    on(
        &source,
        "BEGIN READ WRITE; SET LOCAL session_replication_role = replica; INSERT INTO t VALUES (1000, 'old'); COMMIT",
    );
    let mut back = follows(&lab, "r_back", &from, &source);
    on(&target, "INSERT INTO t VALUES (2, 'new')");
    let compared = output(&["verify", "r_back", "--target", &from]);
    assert_eq!(compared.status.code(), Some(5), "{}", said(&compared));
    assert_has!(said(&compared), "1000");
    let counted = [
        "--verify",
        "counts",
        "--max-pause",
        "60s",
        "--timeout",
        "1s",
    ];
    let refused = output(&[&["switchover", "r_back", "--target", &from][..], &counted].concat());
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert_has!(
        said(&refused),
        "different numbers of rows: \"public.t\" (2 and 3)"
    );
    on(&target, "INSERT INTO t VALUES (1000, 'new')");
    let error = "SELECT coalesce(apply_error LIKE '%1000%', false) FROM lockstep.replica WHERE name = 'r_back'";
    until(&source, error, "t", &mut back.0);
}

#[test]
fn a_promotion_keeps_a_way_back_if_one_is_wanted() {
    let (lab, source, target) = pair("CREATE TABLE t (id int PRIMARY KEY, v text)");
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&closed_args(&from, &to)).status.success());
    let mut process = follows(&lab, "r", &to, &target);
    on(
        &source,
        "INSERT INTO t SELECT n, 'before' FROM generate_series(1, 100) n",
    );
    let promote = [
        "promote",
        "r",
        "--target",
        &to,
        "--reverse=home",
        "--wait",
        "300",
    ];
    let done = output(&promote);
    assert!(done.status.success(), "{}", said(&done));
    assert!(process.0.wait().unwrap().success(), "it ends by itself");
    let refused = source.rows_in("app", "DELETE FROM t").unwrap_err();
    assert!(refused.to_string().contains("read-only"), "{refused}");
    on(
        &target,
        "DELETE FROM t WHERE id % 3 = 0; INSERT INTO t SELECT n, 'since' FROM generate_series(101, 200) n",
    );
    let wanted = value(&target, ROWS);
    let again = output(&promote);
    assert!(again.status.success(), "{}", said(&again));
    assert_has!(said(&again), "was done before");

    let back = output(&[
        "rollback",
        "r",
        "--target",
        &to,
        "--reverse",
        "home",
        "--max-pause",
        "60s",
        "--timeout",
        "300s",
    ]);
    assert!(back.status.success(), "{}", said(&back));
    assert_eq!(value(&source, ROWS), wanted);
    on(&source, "INSERT INTO t VALUES (2000, 'at home')");
    let refused = target.rows_in("app", "DELETE FROM t").unwrap_err();
    assert!(refused.to_string().contains("read-only"), "{refused}");
}

#[test]
fn a_rollback_brings_back_what_was_written_since_whether_or_not_a_process_applies() {
    let (lab, source, target) = pair(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'before'); CREATE SEQUENCE s",
    );
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&closed_args(&from, &to)).status.success());
    let patient = ["--max-pause", "60s", "--timeout", "300s"];
    let moves = |command: &str| output(&[&[command, "r", "--target", &to][..], &patient].concat());
    let early = moves("rollback");
    assert_eq!(early.status.code(), Some(1), "{early:?}");
    assert_has!(said(&early), "nothing to go back from");

    let mut process = follows(&lab, "r", &to, &target);
    let done = moves("switchover");
    assert!(done.status.success(), "{}", said(&done));
    assert_has!(said(&done), "lockstep replica rollback r");
    assert!(process.0.wait().unwrap().success(), "it ends by itself");
    let fill =
        "INSERT INTO t SELECT n, 'since' FROM generate_series(2, 1000) n; SELECT setval('s', 70)";
    on(&target, fill);
    let wanted = value(&target, ROWS);

    let other = output(&["rollback", "r", "--target", &to, "--reverse", "other"]);
    assert_eq!(other.status.code(), Some(1), "{other:?}");
    assert_has!(said(&other), "no replica \"other\"");
    let dry = output(&["rollback", "r", "--target", &to, "--dry-run"]);
    assert!(dry.status.success(), "{}", said(&dry));
    assert_has!(
        said(&dry),
        "this one does",
        "the pause would be about",
        "nothing is changed"
    );
    on(
        &target,
        "INSERT INTO t VALUES (-1000, 'it still takes writes')",
    );
    on(&target, "DELETE FROM t WHERE id = -1000");

    let back = moves("rollback");
    assert!(back.status.success(), "{}", said(&back));
    assert_has!(
        said(&back),
        "going back from replica r by a switchover of replica r_back"
    );
    assert_eq!(value(&source, ROWS), wanted);
    assert_eq!(value(&source, "SELECT nextval('s')"), "71");
    assert_eq!(begins_read_only(&source), "off");
    on(&source, "INSERT INTO t VALUES (2000, 'again')");
    let refused = target.rows_in("app", "DELETE FROM t").unwrap_err();
    assert!(refused.to_string().contains("read-only"), "{refused}");
    let again = moves("rollback");
    assert!(again.status.success(), "{}", said(&again));
    assert_has!(said(&again), "was done before");

    // The way forward is whole: there again, and back.
    let mut process = follows(&lab, "r", &to, &target);
    let forward = moves("switchover");
    assert!(forward.status.success(), "{}", said(&forward));
    assert!(process.0.wait().unwrap().success(), "it ends by itself");
    assert_eq!(value(&target, ROWS), value(&source, ROWS));
    assert_eq!(begins_read_only(&target), "off");
    let back = moves("rollback");
    assert!(back.status.success(), "{}", said(&back));
    on(&source, "INSERT INTO t VALUES (3000, 'and again')");
}
