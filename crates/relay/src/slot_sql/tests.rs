use super::*;

fn slots() -> Vec<Listed> {
    ["dbz", "airbyte_slot"]
        .map(|name| Listed {
            name: name.to_owned(),
            database: "app".to_owned(),
            ..Listed::default()
        })
        .into()
}

/// What the primary gets, with the CTE as `CTE`; or the act or the function that it calls.
fn shown(query: &str) -> String {
    match verdict(query, &slots()) {
        Verdict::Pass => "pass".to_owned(),
        Verdict::Instead(instead) => instead.replace(&cte(&slots()), "CTE"),
        Verdict::Calls(function) => format!("calls {function}"),
        Verdict::Act(act, instead) => format!("{act:?} {instead}"),
        Verdict::Refuse(report) => format!("{} {}", report.sqlstate, report.message),
    }
}

#[test]
fn statements_that_read_the_view_read_the_relays_slots() {
    for (query, instead) in [
        (
            "select * from pg_replication_slots where slot_name = $1 and database = $2 and plugin = $3",
            "WITH CTE select * from pg_replication_slots where slot_name = $1 and database = $2 and plugin = $3",
        ),
        (
            "SELECT 1 FROM pg_catalog.pg_replication_slots, \"pg_catalog\" . \"pg_replication_slots\" b",
            "WITH CTE SELECT 1 FROM pg_replication_slots, \"pg_replication_slots\" b",
        ),
        (
            "/* x */ with a as (select 1) select * from PG_Replication_Slots",
            "/* x */ with CTE,  a as (select 1) select * from PG_Replication_Slots",
        ),
        (
            "WITH RECURSIVE a AS (SELECT 1) TABLE pg_replication_slots",
            "WITH RECURSIVE CTE,  a AS (SELECT 1) TABLE pg_replication_slots",
        ),
        (
            "SELECT 1; SELECT 2 FROM pg_replication_slots; SELECT 3;",
            "SELECT 1; WITH CTE SELECT 2 FROM pg_replication_slots; SELECT 3;",
        ),
        (
            "TABLE pg_replication_slots; (TABLE pg_catalog.pg_replication_slots)",
            "WITH CTE TABLE pg_replication_slots; WITH CTE (TABLE pg_replication_slots)",
        ),
    ] {
        assert_eq!(shown(query), instead);
    }
}

#[test]
fn what_names_no_view_of_slots_is_left_alone() {
    for query in [
        "",
        "SELECT 1",
        "SELECT 'pg_replication_slots'",
        "SELECT * FROM my.pg_replication_slots",
        "WITH pg_replication_slots AS (SELECT 1) SELECT * FROM pg_replication_slots",
        "EXPLAIN SELECT * FROM pg_replication_slots",
        "CREATE VIEW v AS SELECT * FROM pg_replication_slots",
        "START_REPLICATION SLOT pg_replication_slot LOGICAL 0/0",
        "SELECT * FROM pg_replication_slots WHERE slot_name = 'open",
        "DROP_REPLICATION_SLOT dbz",
    ] {
        assert_eq!(shown(query), "pass", "{query}");
    }
}

#[test]
fn calls_for_slots_of_the_relay_are_done_by_the_relay() {
    let drop = "Drop { slot: \"dbz\" } SELECT ''::pg_catalog.void AS pg_drop_replication_slot";
    for query in [
        "select pg_drop_replication_slot('dbz')",
        "SELECT pg_catalog.pg_drop_replication_slot('dbz');",
        "SELECT * FROM pg_drop_replication_slot('dbz')",
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'dbz'",
    ] {
        assert_eq!(shown(query), drop, "{query}");
    }
    let row = "'dbz'::pg_catalog.name, '0/1F'::pg_catalog.pg_lsn";
    let table = "(SELECT 'dbz'::pg_catalog.name AS slot_name, '0/1F'::pg_catalog.pg_lsn AS end_lsn) \
                 AS pg_replication_slot_advance";
    for (query, instead) in [
        (
            "SELECT pg_replication_slot_advance('dbz', '0/1F')",
            format!("SELECT ROW({row}) AS pg_replication_slot_advance"),
        ),
        (
            "SELECT end_lsn FROM pg_replication_slot_advance('dbz','0/1F');",
            format!("SELECT end_lsn FROM {table}"),
        ),
        (
            "select * from pg_catalog.pg_replication_slot_advance('dbz','0/1F')",
            format!("SELECT * FROM {table}"),
        ),
    ] {
        let act = "Advance { slot: \"dbz\", to: Lsn(31) }";
        assert_eq!(shown(query), format!("{act} {instead}"), "{query}");
    }
}

#[test]
fn other_calls_for_slots_of_the_relay_are_refused() {
    for query in [
        "SELECT pg_drop_replication_slot('dbz'), 1",
        "SELECT pg_drop_replication_slot('dbz'); SELECT 1",
        "BEGIN; SELECT pg_drop_replication_slot('dbz')",
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
         WHERE slot_name IN ('dbz', 'other')",
        "DO $$BEGIN PERFORM pg_drop_replication_slot('dbz'); END$$",
        "SELECT pg_replication_slot_advance('dbz', 'nonsense')",
        "SELECT pg_replication_slot_advance('dbz', '0/1F'::pg_lsn)",
        "SELECT * FROM pg_logical_slot_get_changes('dbz', NULL, NULL)",
        "SELECT * FROM pg_logical_slot_peek_binary_changes('dbz', NULL, NULL)",
        "SELECT pg_copy_logical_replication_slot('dbz', 'other')",
    ] {
        let refused = "0A000 the relay keeps replication slot \"dbz\" and cannot execute this";
        assert_eq!(shown(query), refused, "{query}");
    }
    for query in [
        "SELECT pg_create_logical_replication_slot('airbyte_slot', 'pgoutput');",
        "SELECT * FROM pg_create_physical_replication_slot('airbyte_slot')",
        "DO $$BEGIN PERFORM pg_create_logical_replication_slot('airbyte_slot', 'pgoutput'); END$$",
    ] {
        let exists = "42710 replication slot \"airbyte_slot\" already exists";
        assert_eq!(shown(query), exists, "{query}");
    }
}

#[test]
fn calls_for_slots_of_the_primary_are_the_primarys() {
    for (query, function) in [
        ("SELECT pg_drop_replication_slot('dbz_2')", DROP),
        ("SELECT pg_drop_replication_slot($1)", DROP),
        (
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
            DROP,
        ),
        (
            "select pg_create_logical_replication_slot($1, 'pgoutput')::text",
            "pg_create_logical_replication_slot",
        ),
    ] {
        assert_eq!(shown(query), format!("calls {function}"), "{query}");
    }
}

#[test]
fn names_are_cut_as_the_server_cuts_them() {
    let slot = "x".repeat(63);
    let long = "x".repeat(70);
    let listed = [Listed {
        name: slot.clone(),
        ..Listed::default()
    }];
    let refused = |query: String| match verdict(&query, &listed) {
        Verdict::Refuse(report) => report.sqlstate,
        other => format!("{other:?}"),
    };
    for name in [&slot, &long] {
        let create = format!("SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')");
        assert_eq!(refused(create), "42710", "{name}");
        let block = format!("DO $$BEGIN PERFORM pg_drop_replication_slot('{name}'); END$$");
        assert_eq!(refused(block), "0A000", "{name}");
        let shapes = [
            format!("SELECT pg_drop_replication_slot('{name}')"),
            format!(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
                 WHERE slot_name = '{name}'"
            ),
        ];
        for query in shapes {
            let dropped = verdict(&query, &listed);
            let is_ours =
                matches!(&dropped, Verdict::Act(Act::Drop { slot: of }, _) if *of == slot);
            assert!(is_ours, "{query}: {dropped:?}");
        }
        let advance = format!("SELECT pg_replication_slot_advance('{name}', '0/1')");
        let advanced = verdict(&advance, &listed);
        assert!(
            matches!(advanced, Verdict::Act(Act::Advance { .. }, _)),
            "{advanced:?}"
        );
        assert!(is_name_of(name.as_bytes(), &slot));
    }
    // A shorter one is another.
    let other = format!("SELECT pg_drop_replication_slot('{}')", "x".repeat(62));
    assert!(matches!(verdict(&other, &listed), Verdict::Calls(_)));
}
