//! Schemas that were made for something else, from the copy to the last change: pgbench's, with
//! foreign keys and partitions, and TPC-C's.

use std::process::Command;

use lockstep_bench::tpcc::{self, Condition, LoadOptions, RunOptions, Tools};
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;

use crate::replica::{Followed, conninfo, create_args, output, server, sql, until};

/// pgbench on the source's database.
fn pgbench(lab: &Lab, source: &Server, args: &[&str]) {
    let mut pgbench = Command::new(lab.package().program("pgbench"));
    pgbench
        .args(args)
        .arg(format!("{} dbname=app", conninfo(source)));
    let ended = pgbench.output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
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
    let tools = Tools::direct(lab.package().clone());
    let [from, to] = [&source, &target].map(|server| format!("{} dbname=app", conninfo(server)));
    let load = LoadOptions {
        warehouses: 1,
        jobs: 2,
        replace: false,
    };
    tpcc::load(&tools, &from, &load, &|_, _| {}).unwrap();
    sql(&source)
        .execute("CREATE TABLE marks (id int PRIMARY KEY)")
        .unwrap();
    let created = output(&create_args(&from, &to));
    assert!(created.status.success(), "{created:?}");

    let mut running = Followed::run(&to, &lab.folder().join("run.log"), "3");
    pgbench(
        &lab,
        &source,
        &["--client=4", "--transactions=200", "--no-vacuum"],
    );
    let load = RunOptions {
        clients: 4,
        seconds: 2,
        per_minute: None,
    };
    let ran = tpcc::run(&tools, &from, &load, |_| {}).unwrap();
    assert!(ran.new_orders_per_minute > 0.0, "{ran:?}");
    caught_up(&source, &target, &mut running.0);

    let verified = output(&["verify", "r", "--target", &to]);
    assert!(verified.status.success(), "{verified:?}");
    let conditions = tpcc::check(&tools, &to).unwrap();
    let holds = |condition: &&Condition| condition.violations == 0;
    assert_eq!(
        conditions.iter().filter(holds).count(),
        12,
        "{conditions:?}"
    );
    let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) \
                = (SELECT sum(bbalance) FROM pgbench_branches) AND \
                (SELECT count(*) FROM pgbench_history) = 800";
    until(&target, sums, "t", &mut running.0);
    // Constraints are there and hold: of foreign keys and of partitions.
    let constraints = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND NOT convalidated";
    until(&target, constraints, "0", &mut running.0);
}
