//! What `verify` must not call equal although it compares no row of it, and what `status` says of it.

use lockstep_client::Connection;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;
use lockstep_replica::lifecycle::create::create;
use lockstep_replica::names::TableName;
use lockstep_replica::status::source::Source;
use lockstep_replica::verify::{DifferenceKind, Report};

use crate::subsets::compare;
use crate::{Told, on, options, server, sql, state_of};

fn named(report: &Report) -> Vec<(String, String, DifferenceKind)> {
    let one = |table: &lockstep_replica::verify::TableReport| {
        let name = table.table.table.clone();
        let differences = table.differences.iter();
        differences
            .map(|one| (name.clone(), one.key.clone(), one.kind))
            .collect::<Vec<_>>()
    };
    report.tables.iter().flat_map(one).collect()
}

fn of(table: &str, key: &str, kind: DifferenceKind) -> (String, String, DifferenceKind) {
    (table.to_owned(), key.to_owned(), kind)
}

/// Which tables `status` says are lost, and why.
fn lost(target: &Server) -> Vec<String> {
    let mut state = state_of(target);
    let replica = state.replica("r").unwrap().unwrap();
    let tables = state.tables("r").unwrap();
    let asked = Source::ask(&replica, None, Some(&tables), None).unwrap();
    let told = asked.unreplicated(&replica);
    assert_eq!(told.tables, asked.lost.len());
    assert_eq!(told.words.is_some(), !asked.lost.is_empty(), "{told:?}");
    let lost = asked.lost.iter();
    lost.map(|lost| format!("{}: {}", lost.table.table, lost.words()))
        .collect()
}

fn made(tables: &str) -> (Lab, Server, Server, Connection) {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    let mut session = sql(&source);
    session.execute(tables).unwrap();
    create(&options(&source, &target), &mut Told::default()).unwrap();
    (lab, source, target, session)
}

#[test]
fn a_table_that_was_copied_and_is_not_sent_any_more_is_a_difference() {
    let tables = "CREATE TABLE k (id int PRIMARY KEY, v text); INSERT INTO k VALUES (1, 'x'); \
         CREATE TABLE gone (id int PRIMARY KEY); CREATE TABLE neither (id int PRIMARY KEY); \
         CREATE TABLE moved (id int PRIMARY KEY); CREATE TABLE out (id int PRIMARY KEY); \
         CREATE TABLE stays (id int PRIMARY KEY); CREATE SCHEMA \"S\"";
    let (_lab, source, target, mut session) = made(tables);
    assert!(compare(&target).is_equal());
    assert_eq!(lost(&target), [""; 0]);
    let publication = {
        let mut state = state_of(&target);
        state.replica("r").unwrap().unwrap().publication
    };
    // As migrations do it.
    let migration = format!(
        "BEGIN; CREATE TABLE k_new (LIKE k INCLUDING ALL); INSERT INTO k_new SELECT * FROM k; \
         DROP TABLE k; ALTER TABLE k_new RENAME TO k; COMMIT; INSERT INTO k VALUES (2, 'y'); \
         DROP TABLE gone, neither; ALTER TABLE moved SET SCHEMA \"S\"; \
         ALTER TABLE \"S\".moved RENAME TO \"M\"; \
         ALTER PUBLICATION {publication} DROP TABLE out"
    );
    session.execute(&migration).unwrap();
    on(
        &target,
        "DROP TABLE neither; CREATE TABLE \"S\".\"M\" (id int PRIMARY KEY)",
    );
    let report = compare(&target);
    assert!(!report.is_equal());
    assert_eq!(
        named(&report),
        [
            of("gone", "", DifferenceKind::Gone),
            of("k", "", DifferenceKind::Replaced),
            of("moved", "S.M", DifferenceKind::Renamed),
            of("out", "", DifferenceKind::Unpublished),
        ]
    );
    assert_eq!(report.tables.len(), 5, "{report:?}");
    assert_eq!(
        lost(&target),
        [
            "gone: the source no longer has such a table: drop it on the target as well",
            "k: another table has its name on the source now",
            "moved: it is called \"S.M\" on the source now: rename it on the target as well",
            "out: the publication does not have it any more",
        ]
    );

    // Of a state that an older version made only the names are known.
    on(&target, "UPDATE lockstep.table_copy SET source_oid = NULL");
    let kinds: Vec<_> = named(&compare(&target))
        .into_iter()
        .map(|it| it.2)
        .collect();
    let (unpublished, gone) = (DifferenceKind::Unpublished, DifferenceKind::Gone);
    let uncopied = DifferenceKind::Uncopied;
    assert_eq!(kinds, [uncopied, gone, unpublished, gone, unpublished]);

    // A publication with nothing left, and none.
    for nothing in [
        format!("ALTER PUBLICATION {publication} DROP TABLE stays"),
        format!("DROP PUBLICATION {publication}; CREATE PUBLICATION {publication}"),
    ] {
        session.execute(&nothing).unwrap();
        let found = named(&compare(&target));
        assert!(found.contains(&of("stays", "", unpublished)), "{found:?}");
        assert_eq!(found.len(), 6, "{found:?}");
    }
    drop(source);
}

#[test]
fn rows_below_a_table_that_only_the_target_has_are_named() {
    let tables = "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); \
         CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10); INSERT INTO p VALUES (1, 'a'); \
         CREATE TABLE inh (id int PRIMARY KEY); INSERT INTO inh VALUES (1)";
    let (_lab, _source, target, mut session) = made(tables);
    // Empty ones differ in no row, and what the target has for itself is its own.
    on(
        &target,
        "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30); \
             CREATE TABLE own (id int) PARTITION BY RANGE (id); \
             CREATE TABLE own1 PARTITION OF own FOR VALUES FROM (0) TO (10); INSERT INTO own VALUES (1)",
    );
    let report = compare(&target);
    assert!(report.is_equal(), "{report:?}");
    on(
        &target,
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id); \
             CREATE TABLE \"P 2\" PARTITION OF p2 FOR VALUES FROM (10) TO (15); \
             INSERT INTO p VALUES (12, 'extra'); \
             CREATE TABLE child (more text) INHERITS (inh); INSERT INTO child VALUES (99, 'm')",
    );
    let extra = DifferenceKind::Extra;
    let report = compare(&target);
    let expected = [of("P 2", "(12)", extra), of("child", "(99,m)", extra)];
    assert_eq!(named(&report), expected);
    // Something else of the source has their names.
    let others = "CREATE VIEW \"P 2\" AS SELECT 1 AS id; CREATE VIEW child AS SELECT 1 AS id";
    session.execute(others).unwrap();
    assert_eq!(named(&compare(&target)), expected);

    on(
        &target,
        "INSERT INTO child SELECT n FROM generate_series(100, 250) n",
    );
    let report = compare(&target);
    let name = TableName {
        schema: "public".to_owned(),
        table: "child".to_owned(),
    };
    let child = report
        .tables
        .iter()
        .find(|table| table.table == name)
        .unwrap();
    assert!(child.more && child.differences.len() == 100, "{child:?}");
}
