//! Schemas that were made for something else, from the copy to the last change: pgbench's, with
//! foreign keys and partitions, and TPC-C's.

use std::process::Command;

use lockstep_bench::tpcc::{self, Condition, LoadOptions, RunOptions, Tools};
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;

use crate::replica::{Followed, create_args, in_app, on, output, server, until};

/// pgbench on the source's database.
fn pgbench(lab: &Lab, source: &Server, args: &[&str]) {
    let mut pgbench = Command::new(lab.package().program("pgbench"));
    pgbench.args(args).arg(in_app(source));
    let ended = pgbench.output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
}

/// Waits until the target has what is committed on the source now.
fn caught_up(source: &Server, target: &Server, running: &mut std::process::Child) {
    on(
        source,
        "CREATE TABLE IF NOT EXISTS marks (id int PRIMARY KEY)",
    );
    on(source, "INSERT INTO marks VALUES (1)");
    until(target, "SELECT count(*) FROM marks", "1", running);
}

/// pgbench's tables, in partitions and with foreign keys, as one replica's.
const PGBENCH: [&str; 6] = [
    "--initialize",
    "--quiet",
    "--scale=1",
    "--partitions=3",
    "--partition-method=range",
    "--foreign-keys",
];

struct Schemas {
    source: Server,
    target: Server,
    from: String,
    to: String,
    // Last: it ends what still runs.
    lab: Lab,
}

impl Schemas {
    /// A source with pgbench's tables, and an empty target.
    fn new() -> Self {
        let lab = Lab::for_tests().unwrap();
        let (source, target) = (server(&lab, "source"), server(&lab, "target"));
        pgbench(&lab, &source, &PGBENCH);
        on(&source, "CREATE TABLE marks (id int PRIMARY KEY)");
        let [from, to] = [&source, &target].map(in_app);
        Self {
            source,
            target,
            from,
            to,
            lab,
        }
    }

    /// Copies all, follows while `load` and pgbench change it, and compares.
    fn follow(&self, load: impl FnOnce()) {
        let created = output(&create_args(&self.from, &self.to));
        assert!(created.status.success(), "{created:?}");
        let mut running = Followed::run(&self.to, &self.lab.folder().join("run.log"), "3");
        let transactions = ["--client=4", "--transactions=200", "--no-vacuum"];
        pgbench(&self.lab, &self.source, &transactions);
        load();
        caught_up(&self.source, &self.target, &mut running.0);

        let verified = output(&["verify", "r", "--target", &self.to]);
        assert!(verified.status.success(), "{verified:?}");
        let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) \
                    = (SELECT sum(bbalance) FROM pgbench_branches) AND \
                    (SELECT count(*) FROM pgbench_history) = 800";
        until(&self.target, sums, "t", &mut running.0);
        // Constraints are there and hold: of foreign keys and of partitions.
        let constraints =
            "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND NOT convalidated";
        until(&self.target, constraints, "0", &mut running.0);
    }
}

#[test]
fn the_schema_of_pgbench_is_copied_followed_and_equal() {
    Schemas::new().follow(|| {});
}

#[test]
#[ignore = "long: make test-bed"]
fn the_schema_of_tpcc_is_too() {
    let schemas = Schemas::new();
    let tools = Tools::direct(schemas.lab.package().clone());
    let load = LoadOptions {
        warehouses: 1,
        jobs: 2,
        replace: false,
    };
    tpcc::load(&tools, &schemas.from, &load, &|_, _| {}).unwrap();
    schemas.follow(|| {
        let load = RunOptions {
            clients: 4,
            seconds: 2,
            per_minute: None,
        };
        let ran = tpcc::run(&tools, &schemas.from, &load, |_| {}).unwrap();
        assert!(ran.new_orders_per_minute > 0.0, "{ran:?}");
    });
    let conditions = tpcc::check(&tools, &schemas.to).unwrap();
    let holds = |condition: &&Condition| condition.violations == 0;
    assert_eq!(
        conditions.iter().filter(holds).count(),
        12,
        "{conditions:?}"
    );
}
