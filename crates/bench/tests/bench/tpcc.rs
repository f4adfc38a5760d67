//! TPC-C on private servers: loading, running, and conditions that hold and that fail.

use lockstep_bench::BenchError;
use lockstep_bench::tpcc::{
    self, CONDITIONS, LoadOptions, RunOptions, TABLES, Tools, TpccError, Transaction,
};
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server, Settings, settings_of};
use lockstep_lab::workload::APP_ROLE;

fn settings() -> Settings {
    settings_of([
        ("shared_buffers", "256MB"),
        ("max_connections", "40"),
        ("max_wal_size", "4GB"),
        ("hot_standby_feedback", "on"),
    ])
}

fn load(tools: &Tools, conninfo: &str, warehouses: u32, replace: bool) -> Result<(), BenchError> {
    let options = LoadOptions {
        warehouses,
        jobs: 2,
        replace,
    };
    tpcc::load(tools, conninfo, &options, &|_, _| {})
}

fn count(server: &Server, sql: &str) -> i64 {
    let text = server
        .query_text(&format!("SELECT ({sql})::text"))
        .unwrap()
        .unwrap();
    text.parse().unwrap()
}

fn rows(server: &Server, table: &str) -> i64 {
    count(server, &format!("SELECT count(*) FROM tpcc.{table}"))
}

/// Clauses that are violated.
fn violated(tools: &Tools, conninfo: &str) -> Vec<u32> {
    tpcc::check(tools, conninfo)
        .unwrap()
        .into_iter()
        .zip(CONDITIONS)
        .filter(|(condition, _)| condition.violations > 0)
        .map(|(_, definition)| definition.number)
        .collect()
}

fn assert_tpcc(error: BenchError, expected: fn(&TpccError) -> bool) {
    let line = error.to_string();
    assert!(!line.contains('\n') && line.len() > 20, "{line}");
    match error {
        BenchError::Tpcc(error) => assert!(expected(&error), "{line}"),
        _ => panic!("{line}"),
    }
}

fn assert_cardinalities(server: &Server, warehouses: i64) {
    for (table, expected) in [
        ("item", 100_000),
        ("warehouse", warehouses),
        ("district", 10 * warehouses),
        ("stock", 100_000 * warehouses),
        ("customer", 30_000 * warehouses),
        ("history", 30_000 * warehouses),
        ("orders", 30_000 * warehouses),
        ("new_order", 9_000 * warehouses),
    ] {
        assert_eq!(rows(server, table), expected, "{table}");
    }
    let lines = rows(server, "order_line") / warehouses;
    assert!((295_000..=305_000).contains(&lines), "{lines}");
}

/// Shares and ranges of the specification in loaded data of one warehouse.
fn assert_distributions(server: &Server) {
    let within = |sql: &str, low: i64, high: i64| {
        let value = count(server, sql);
        assert!((low..=high).contains(&value), "{sql}: {value}");
    };
    within(
        "SELECT count(*) FROM tpcc.customer WHERE c_credit = 'BC'",
        2_700,
        3_300,
    );
    within(
        "SELECT count(*) FROM tpcc.item WHERE i_data LIKE '%ORIGINAL%'",
        9_500,
        10_500,
    );
    within(
        "SELECT count(*) FROM tpcc.stock WHERE s_data LIKE '%ORIGINAL%'",
        9_500,
        10_500,
    );
    // Every name is there in every district, and texts are not the same in each row.
    for (sql, expected) in [
        (
            "SELECT count(DISTINCT (c_d_id, c_last)) FROM tpcc.customer",
            10_000,
        ),
        (
            "SELECT count(DISTINCT (o_d_id, o_c_id)) FROM tpcc.orders",
            30_000,
        ),
        ("SELECT count(DISTINCT s_dist_01) FROM tpcc.stock", 100_000),
        (
            "SELECT count(*) FROM tpcc.stock WHERE s_dist_01 = s_dist_10",
            0,
        ),
        ("SELECT min(length(c_data)) FROM tpcc.customer", 300),
        ("SELECT max(length(c_data)) FROM tpcc.customer", 500),
        ("SELECT min(length(s_data)) FROM tpcc.stock", 26),
        ("SELECT max(length(s_data)) FROM tpcc.stock", 50),
        ("SELECT min(length(i_data)) FROM tpcc.item", 26),
        ("SELECT max(length(i_data)) FROM tpcc.item", 50),
        ("SELECT min(o_ol_cnt) FROM tpcc.orders", 5),
        ("SELECT max(o_ol_cnt) FROM tpcc.orders", 15),
        ("SELECT min(s_quantity) FROM tpcc.stock", 10),
        ("SELECT max(s_quantity) FROM tpcc.stock", 100),
        (
            "SELECT count(*) FROM tpcc.orders WHERE (o_carrier_id IS NULL) <> (o_id > 2100)",
            0,
        ),
        (
            "SELECT count(*) FROM tpcc.customer WHERE c_data !~ '^[0-9A-Za-z]*$'",
            0,
        ),
    ] {
        assert_eq!(count(server, sql), expected, "{sql}");
    }
}

/// What breaks exactly the given conditions, and what mends them.
const PLANTS: [(&[u32], &str, &str); 12] = [
    (
        &[1, 8],
        "UPDATE tpcc.warehouse SET w_ytd = w_ytd + 0.01 WHERE w_id = 1",
        "UPDATE tpcc.warehouse SET w_ytd = w_ytd - 0.01 WHERE w_id = 1",
    ),
    (
        &[2],
        "UPDATE tpcc.district SET d_next_o_id = d_next_o_id + 1 WHERE d_id = 3",
        "UPDATE tpcc.district SET d_next_o_id = d_next_o_id - 1 WHERE d_id = 3",
    ),
    (
        &[3, 5],
        "UPDATE tpcc.new_order SET no_o_id = -no_o_id WHERE no_d_id = 4
         AND no_o_id = (SELECT max(no_o_id) - 1 FROM tpcc.new_order WHERE no_d_id = 4)",
        "UPDATE tpcc.new_order SET no_o_id = -no_o_id WHERE no_o_id < 0",
    ),
    (
        &[4, 6],
        "UPDATE tpcc.orders SET o_ol_cnt = o_ol_cnt + 1 WHERE o_d_id = 1 AND o_id = 1",
        "UPDATE tpcc.orders SET o_ol_cnt = o_ol_cnt - 1 WHERE o_d_id = 1 AND o_id = 1",
    ),
    (
        &[5, 7],
        "UPDATE tpcc.orders SET o_carrier_id = 50 WHERE o_d_id = 2
         AND o_id = (SELECT max(no_o_id) FROM tpcc.new_order WHERE no_d_id = 2)",
        "UPDATE tpcc.orders SET o_carrier_id = NULL WHERE o_carrier_id = 50",
    ),
    (
        &[6],
        "UPDATE tpcc.orders SET o_ol_cnt = o_ol_cnt + 3 - 2 * o_id WHERE o_d_id = 1 AND o_id IN (1, 2)",
        "UPDATE tpcc.orders SET o_ol_cnt = o_ol_cnt - 3 + 2 * o_id WHERE o_d_id = 1 AND o_id IN (1, 2)",
    ),
    (
        &[7],
        // An amount of 0 was never delivered but by loading, so that balances stay right.
        "UPDATE tpcc.order_line SET ol_delivery_d = NULL WHERE ol_d_id = 7 AND ol_o_id = 7 AND ol_number = 1",
        "UPDATE tpcc.order_line SET ol_delivery_d = now() WHERE ol_d_id = 7 AND ol_o_id = 7 AND ol_number = 1",
    ),
    (
        &[8, 9],
        "UPDATE tpcc.warehouse SET w_ytd = w_ytd + 1; UPDATE tpcc.district SET d_ytd = d_ytd + 1 WHERE d_id = 10",
        "UPDATE tpcc.warehouse SET w_ytd = w_ytd - 1; UPDATE tpcc.district SET d_ytd = d_ytd - 1 WHERE d_id = 10",
    ),
    (
        &[9],
        "UPDATE tpcc.district SET d_ytd = d_ytd + 3 - 2 * d_id WHERE d_id IN (1, 2)",
        "UPDATE tpcc.district SET d_ytd = d_ytd - 3 + 2 * d_id WHERE d_id IN (1, 2)",
    ),
    (
        &[10],
        "UPDATE tpcc.customer SET c_balance = c_balance + 1, c_ytd_payment = c_ytd_payment - 1 WHERE c_id = 9 AND c_d_id = 9",
        "UPDATE tpcc.customer SET c_balance = c_balance - 1, c_ytd_payment = c_ytd_payment + 1 WHERE c_id = 9 AND c_d_id = 9",
    ),
    (
        &[11],
        "UPDATE tpcc.customer SET c_delivery_cnt = c_delivery_cnt + 1 WHERE c_id = 11 AND c_d_id = 1",
        "UPDATE tpcc.customer SET c_delivery_cnt = c_delivery_cnt - 1 WHERE c_id = 11 AND c_d_id = 1",
    ),
    (
        &[12],
        "UPDATE tpcc.customer SET c_ytd_payment = c_ytd_payment + 1 WHERE c_id = 12 AND c_d_id = 1",
        "UPDATE tpcc.customer SET c_ytd_payment = c_ytd_payment - 1 WHERE c_id = 12 AND c_d_id = 1",
    ),
];

#[test]
#[ignore = "long: make test-bed"]
fn conditions_hold_under_load_on_both_ends_and_each_can_fail() {
    let lab = Lab::for_tests().unwrap();
    let primary = lab.primary("primary", None, &settings()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    let tools = Tools::of_lab(&lab, Side::Both);
    let (here, there) = (primary.conninfo(SUPERUSER), standby.conninfo(SUPERUSER));
    load(&tools, &here, 1, false).unwrap();
    assert_cardinalities(&primary, 1);
    assert_distributions(&primary);
    assert_eq!(violated(&tools, &here), [0; 0]);

    let options = RunOptions {
        clients: 8,
        seconds: 2,
        per_minute: None,
    };
    let report = tpcc::run(&tools, &here, &options, |_| {}).unwrap();
    assert_eq!(
        (report.failed, report.retries, report.warehouses),
        (0, 0, 1)
    );
    assert!(report.transactions > 0 && report.per_minute > 0.0);
    let kinds: u64 = report.kinds.iter().map(|kind| kind.transactions).sum();
    assert_eq!(kinds, report.transactions);
    for transaction in [Transaction::NewOrder, Transaction::Payment] {
        let kind = &report.kinds[transaction as usize];
        assert!(kind.transaction == transaction && kind.transactions > 0);
    }
    let placed = rows(&primary, "orders") - 30_000;
    let ordered = i64::try_from(report.kinds[0].transactions).unwrap();
    assert!(placed > 0 && placed <= ordered, "{placed} of {ordered}");
    assert!(rows(&primary, "history") > 30_000);
    assert_eq!(violated(&tools, &here), [0; 0]);

    standby.catch_up(&primary).unwrap();
    assert_eq!(violated(&tools, &there), [0; 0]);
    assert_tpcc(load(&tools, &there, 1, true).unwrap_err(), |error| {
        matches!(error, TpccError::ReadOnly { .. })
    });
    let refused = tpcc::run(&tools, &there, &options, |_| {}).unwrap_err();
    assert_tpcc(refused, |error| matches!(error, TpccError::ReadOnly { .. }));

    for (number, (expected, plant, mend)) in (1..).zip(PLANTS) {
        assert!(expected.contains(&number));
        primary.run(plant);
        assert_eq!(violated(&tools, &here), expected, "{plant}");
        if number == 12 {
            standby.catch_up(&primary).unwrap();
            assert_eq!(violated(&tools, &there), expected, "{plant}");
        }
        primary.run(mend);
    }
    assert_eq!(violated(&tools, &here), [0; 0]);
}

#[test]
#[ignore = "long: make test-bed"]
fn two_warehouses_run_as_a_load_and_replace_what_was_there() {
    let lab = Lab::for_tests().unwrap();
    let primary = lab.primary("primary", None, &settings()).unwrap();
    let tools = Tools::of_lab(&lab, Side::Both);
    let here = primary.conninfo(SUPERUSER);
    for error in [
        tpcc::check(&tools, &here).unwrap_err(),
        tpcc::run(
            &tools,
            &here,
            &RunOptions {
                clients: 1,
                seconds: 1,
                per_minute: None,
            },
            |_| {},
        )
        .unwrap_err(),
    ] {
        assert_tpcc(error, |error| matches!(error, TpccError::NotLoaded));
    }
    // What a load that was interrupted leaves, and something that is not ours.
    primary
        .run("CREATE SCHEMA tpcc; CREATE TABLE tpcc.item (x int); CREATE TABLE tpcc.mine (x int)");
    assert_tpcc(tpcc::check(&tools, &here).unwrap_err(), |error| {
        matches!(error, TpccError::NotLoaded)
    });
    assert_tpcc(
        load(&tools, &here, 2, false).unwrap_err(),
        |error| matches!(error, TpccError::AlreadyLoaded { table } if table == "tpcc.item"),
    );
    // One task fails: no other begins, and what is there is not taken for data.
    let cramped = format!("{here} options='-c work_mem=64kB -c temp_file_limit=1'");
    assert_tpcc(load(&tools, &cramped, 2, true).unwrap_err(), |error| {
        error.to_string().contains("temp_file_limit")
            && matches!(error, TpccError::Statement { what, .. } if what.starts_with("filling "))
    });
    assert_tpcc(tpcc::check(&tools, &here).unwrap_err(), |error| {
        matches!(error, TpccError::NotLoaded)
    });
    load(&tools, &here, 2, true).unwrap();
    assert_cardinalities(&primary, 2);
    assert_eq!(rows(&primary, "mine"), 0);
    assert_tpcc(load(&tools, &here, 2, false).unwrap_err(), |error| {
        matches!(error, TpccError::AlreadyLoaded { .. })
    });

    lab.create_app_role(&primary).unwrap();
    let mut writers = lab
        .start_pgbench(
            &primary,
            Side::Both,
            "write load",
            8,
            &tpcc::options(&lab, 2).unwrap(),
        )
        .unwrap();
    let busy = |what: &str| {
        count(
            &primary,
            &format!(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = '{APP_ROLE}' AND {what}"
            ),
        )
    };
    // Until remote payments and remote order lines have happened and it has reported.
    while writers.newest_tps().is_none()
        || count(
            &primary,
            "SELECT count(*) FROM tpcc.history WHERE h_w_id <> h_c_w_id",
        ) == 0
        || count(
            &primary,
            "SELECT count(*) FROM tpcc.orders WHERE o_all_local = 0",
        ) == 0
    {
        writers.check().unwrap();
    }
    assert_eq!(busy("true"), 8);
    assert_eq!(violated(&tools, &here), [0; 0]);
    drop(writers);
    let inconsistent = "SELECT count(*) FROM tpcc.orders
         JOIN (SELECT ol_w_id, ol_d_id, ol_o_id, bool_and(ol_supply_w_id = ol_w_id) AS local
               FROM tpcc.order_line GROUP BY 1, 2, 3) AS l
           ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
         WHERE local <> (o_all_local = 1)";
    assert_eq!(count(&primary, inconsistent), 0);
    let stock = "SELECT (SELECT sum(s_ytd) FROM tpcc.stock) - sum(ol_quantity)
                 FROM tpcc.order_line WHERE ol_o_id > 3000";
    assert_eq!(count(&primary, stock), 0);
    let counts = "SELECT (SELECT sum(s_order_cnt) FROM tpcc.stock) - count(*)
                  FROM tpcc.order_line WHERE ol_o_id > 3000";
    assert_eq!(count(&primary, counts), 0);
    let remote = "SELECT (SELECT sum(s_remote_cnt) FROM tpcc.stock) - count(*)
                  FROM tpcc.order_line WHERE ol_supply_w_id <> ol_w_id";
    assert_eq!(count(&primary, remote), 0);
    for table in TABLES {
        assert!(rows(&primary, table) > 0, "{table}");
    }
}

#[test]
fn a_server_that_is_not_there_is_told_in_libpqs_words() {
    let lab = Lab::for_tests().unwrap();
    let tools = Tools::of_lab(&lab, Side::Both);
    let nowhere = format!("host={} port=1", lab.folder().display());
    let options = RunOptions {
        clients: 1,
        seconds: 1,
        per_minute: Some(60),
    };
    for error in [
        load(&tools, &nowhere, 1, false).unwrap_err(),
        tpcc::check(&tools, &nowhere).unwrap_err(),
        tpcc::run(&tools, &nowhere, &options, |_| {}).unwrap_err(),
    ] {
        assert!(error.to_string().contains("No such file or directory"));
        assert_tpcc(error, |error| {
            matches!(error, TpccError::Unreachable { .. }) && error.is_refusal()
        });
    }
}
