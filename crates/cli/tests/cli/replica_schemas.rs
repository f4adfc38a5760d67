//! Schemas that were made for something else, from the copy to the last change: pgbench's, with
//! foreign keys and partitions, and TPC-C's.

use std::process::Command;

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;

use crate::replica::{Followed, conninfo, create_args, output, server, sql, text, until};

/// pgbench on the source's database.
fn pgbench(lab: &Lab, source: &Server, args: &[&str]) {
    let mut pgbench = Command::new(lab.package().program("pgbench"));
    pgbench
        .args(args)
        .arg(format!("{} dbname=app", conninfo(source)));
    let ended = pgbench.output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
}

fn tpcc(command: &[&str], server: &Server) -> String {
    let mut tpcc = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    tpcc.args(["bench", "tpcc"]).args(command);
    tpcc.arg(format!("{} dbname=app", conninfo(server)));
    let ended = tpcc.output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    text(&ended.stdout)
}

/// Waits until the target has what is committed on the source now.
fn caught_up(source: &Server, target: &Server, running: &mut std::process::Child) {
    sql(source)
        .execute("CREATE TABLE IF NOT EXISTS marks (id int PRIMARY KEY)")
        .unwrap();
    sql(source).execute("INSERT INTO marks VALUES (1)").unwrap();
    until(target, "SELECT count(*) FROM marks", "1", running);
}

#[test]
fn the_schemas_of_pgbench_and_tpcc_are_copied_followed_and_equal() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    let partitions = [
        "--partitions=3",
        "--partition-method=range",
        "--foreign-keys",
    ];
    pgbench(
        &lab,
        &source,
        &[&["--initialize", "--quiet", "--scale=1"][..], &partitions].concat(),
    );
    tpcc(&["load", "--warehouses", "1", "--jobs", "2"], &source);
    sql(&source)
        .execute("CREATE TABLE marks (id int PRIMARY KEY)")
        .unwrap();
    let [from, to] = [&source, &target].map(|server| format!("{} dbname=app", conninfo(server)));
    let created = output(&create_args(&from, &to));
    assert!(created.status.success(), "{created:?}");

    let mut running = Followed::run(&to, &lab.folder().join("run.log"), "3");
    pgbench(
        &lab,
        &source,
        &["--client=4", "--transactions=200", "--no-vacuum"],
    );
    let load = ["run", "--clients", "4", "--seconds", "2"];
    let ran = tpcc(&load, &source);
    assert!(ran.contains("new_order"), "{ran}");
    caught_up(&source, &target, &mut running.0);

    let verified = output(&["verify", "r", "--target", &to]);
    assert!(verified.status.success(), "{verified:?}");
    let holds = tpcc(&["check"], &target);
    assert_eq!(holds.matches(": holds").count(), 12, "{holds}");
    let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) \
                = (SELECT sum(bbalance) FROM pgbench_branches) AND \
                (SELECT count(*) FROM pgbench_history) = 800";
    until(&target, sums, "t", &mut running.0);
    // Constraints are there and hold: of foreign keys and of partitions.
    let constraints = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND NOT convalidated";
    until(&target, constraints, "0", &mut running.0);
}
