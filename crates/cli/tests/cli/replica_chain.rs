//! Replicas of replicas, and a way back whose old server was written.

use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::pause;
use lockstep_lab::server::Server;

use crate::replica::{Running, create_args, in_app, on, output, pair, said, server, until, value};
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
        create_args(&a, &b),
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
    assert!(output(&create_args(&from, &to)).status.success());
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
