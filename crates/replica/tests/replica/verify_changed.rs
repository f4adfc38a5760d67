//! What becomes of a table between the moment of a comparison and its being read: it is never equal, its
//! rows are never missing, and no code of others runs.

use std::time::Duration;

use lockstep_apply::Control;
use lockstep_lab::server::Server;
use lockstep_replica::verify::DifferenceKind::{Missing, NoTable, NotCompared};
use lockstep_replica::verify::moment::Moment;
use lockstep_replica::verify::{DifferenceKind, InProcess, Options, Report, compare};

use super::apply_lab::{Pair, rows, sql, until};
use super::verify_cases::{differences, options};

/// Compares after something was done that the moment does not have.
fn compared_after(pair: &Pair, control: &Control, after: impl FnOnce()) -> Report {
    let options = options(pair);
    let moment = Moment::take(&options, &mut InProcess(control)).unwrap();
    after();
    compare::tables(&options, &moment.snapshots).unwrap()
}

fn of(table: &str, kind: DifferenceKind) -> (String, String, DifferenceKind) {
    (table.to_owned(), String::new(), kind)
}

fn compared_rows(report: &Report, table: &str) -> u64 {
    let found = report.tables.iter().find(|one| one.table.table == table);
    found.expect("it is reported").rows
}

const MANY: &str = "CREATE TABLE same (id int PRIMARY KEY); INSERT INTO same VALUES (1), (2); \
    CREATE TABLE flows (id int PRIMARY KEY); \
    CREATE TABLE emptied (id int PRIMARY KEY); INSERT INTO emptied VALUES (1); \
    CREATE TABLE rewritten (id int PRIMARY KEY, v int); \
    CREATE TABLE columns (id int PRIMARY KEY, v int); \
    CREATE TABLE renamed (id int PRIMARY KEY, v int); INSERT INTO renamed VALUES (1, 1); \
    CREATE TABLE replaced (id int PRIMARY KEY); INSERT INTO replaced VALUES (1); \
    CREATE TABLE replaced_there (id int PRIMARY KEY); INSERT INTO replaced_there VALUES (1); \
    CREATE TABLE dropped_there (id int PRIMARY KEY); \
    CREATE SCHEMA s; CREATE TABLE s.of_schema (id int PRIMARY KEY)";

#[test]
fn a_table_that_is_changed_after_the_moment_is_not_called_equal() {
    // On the target, two tables have other rows.
    let pair_of = |v| {
        format!(
            "{MANY}; INSERT INTO rewritten VALUES (1, {v}); INSERT INTO columns VALUES (1, {v})"
        )
    };
    let mut pair = Pair::apart(&pair_of(1), &pair_of(2));
    let control = pair.start();
    pair.source
        .run("INSERT INTO flows SELECT generate_series(1, 1000); ANALYZE flows");
    pair.catch_up();
    let changed = |kind| [of("columns", kind), of("rewritten", kind)];
    let found = compared_after(&pair, &control, || {});
    let keyed = |(table, _, kind)| (table, "(1)".to_owned(), kind);
    let expected = changed(DifferenceKind::Changed).map(keyed);
    assert_eq!(differences(&found), expected);
    assert_eq!(found.tables.len(), 10, "{found:?}");

    let found = compared_after(&pair, &control, || {
        let both = "ALTER TABLE rewritten ALTER v TYPE bigint; \
            ALTER TABLE columns DROP v; ALTER TABLE columns ADD v int DEFAULT 7";
        pair.source.run(both);
        pair.target.run(both);
        pair.source.run(
            "TRUNCATE flows; ALTER TABLE renamed RENAME v TO w; \
                 BEGIN; DROP TABLE replaced; CREATE TABLE replaced (id int PRIMARY KEY); COMMIT; \
                 ALTER SCHEMA s RENAME TO s_old; CREATE SCHEMA s; \
                 CREATE TABLE s.of_schema (id int PRIMARY KEY)",
        );
        pair.target.run(
            "TRUNCATE emptied; ALTER TABLE replaced_there RENAME TO old; \
                 CREATE TABLE replaced_there (LIKE old INCLUDING ALL); DROP TABLE dropped_there",
        );
        // The TRUNCATE is applied before anything is compared.
        pair.catch_up();
        assert_eq!(rows(&pair.target, "SELECT FROM flows").len(), 0);
    });
    let names = [
        "columns",
        "dropped_there",
        "emptied",
        "flows",
        "renamed",
        "replaced",
        "replaced_there",
        "rewritten",
        "of_schema",
    ];
    assert_eq!(
        differences(&found),
        names.map(|name| of(name, NotCompared)),
        "{found:?}"
    );
    assert!(!found.is_equal());
    assert_eq!(compared_rows(&found, "same"), 2);
}

#[test]
fn a_table_that_others_lock_is_not_waited_for_for_ever() {
    let mut pair = Pair::new(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); \
         CREATE TABLE same (id int PRIMARY KEY); INSERT INTO same VALUES (1); \
         CREATE TABLE p (id int) PARTITION BY RANGE (id); \
         CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    );
    let by_root = "ALTER PUBLICATION everything SET (publish_via_partition_root = true)";
    pair.source.run(by_root);
    let control = pair.start();
    let patient = options(&pair);
    let moment = Moment::take(&patient, &mut InProcess(&control)).unwrap();
    let short = Options {
        patience: Duration::from_millis(10),
        ..patient.clone()
    };
    let (mut one, mut other) = (sql(&pair.source), sql(&pair.target));
    other.execute("BEGIN; LOCK TABLE p1, t").unwrap();
    let found = compare::tables(&short, &moment.snapshots).unwrap();
    let expected = [of("p", NotCompared), of("t", NotCompared)];
    assert_eq!(differences(&found), expected);
    assert_eq!(compared_rows(&found, "same"), 1);
    other.execute("ROLLBACK").unwrap();
    one.execute("BEGIN; TRUNCATE t").unwrap();
    let found = compare::tables(&short, &moment.snapshots);
    match one.server_version() {
        160_000.. => {
            let words = found.unwrap_err().to_string();
            assert!(words.contains("is locked by others"), "{words}");
        }
        _ => assert_eq!(differences(&found.unwrap()), [of("t", NotCompared)]),
    }
    one.execute("ROLLBACK").unwrap();
    let found = compare::tables(&patient, &moment.snapshots).unwrap();
    assert!(found.is_equal(), "{found:?}");
}

#[test]
fn who_waits_to_change_a_table_waits_no_longer_than_its_range() {
    let mut pair = Pair::new(
        "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1); \
         CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b VALUES (1)",
    );
    let control = pair.start();
    let options = Options {
        jobs: 1,
        ..options(&pair)
    };
    let moment = Moment::take(&options, &mut InProcess(&control)).unwrap();
    let mut holds = sql(&pair.target);
    holds.execute("BEGIN; LOCK TABLE b").unwrap();
    std::thread::scope(|scope| {
        let comparing = scope.spawn(|| compare::tables(&options, &moment.snapshots).unwrap());
        until("b is waited for", || waits(&pair.target, "b"));
        // Table a is done.
        let truncate = "SET lock_timeout = '1min'; TRUNCATE a";
        pair.source.run(truncate);
        pair.catch_up();
        holds.execute("COMMIT").unwrap();
        let found = comparing.join().unwrap();
        assert!(found.is_equal(), "{found:?}");
    });
}

/// Whether a comparison waits for a table's or an index's lock.
fn waits(server: &Server, relation: &str) -> bool {
    let waiting = format!(
        "SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted \
         AND a.application_name = 'lockstep verify' AND l.relation = '{relation}'::regclass"
    );
    !rows(server, &waiting).is_empty()
}

#[test]
fn a_partition_that_is_replaced_makes_its_table_not_compared() {
    let tables = "CREATE TABLE p (id int, v int) PARTITION BY RANGE (id); \
        CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10); \
        CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20); \
        INSERT INTO p VALUES (1, 1), (11, 1)";
    let more = "CREATE TABLE only_here PARTITION OF p FOR VALUES FROM (20) TO (30); \
        INSERT INTO p VALUES (21, 1)";
    let mut pair = Pair::apart(tables, &format!("{tables}; {more}"));
    let control = pair.start();
    let replace = "BEGIN; ALTER TABLE p DETACH PARTITION p1; ALTER TABLE p1 RENAME TO p1_old; \
        CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10); COMMIT";
    let found = compared_after(&pair, &control, || {
        pair.source.run(replace);
        pair.target.run("TRUNCATE only_here");
    });
    let expected = [of("only_here", NotCompared), of("p1", NotCompared)];
    assert_eq!(differences(&found), expected);

    // By their root, on each side.
    pair.source.run(
        "DROP TABLE p1_old; \
             ALTER PUBLICATION everything SET (publish_via_partition_root = true)",
    );
    pair.target.run("DELETE FROM p WHERE id = 1");
    pair.catch_up();
    let found = compared_after(&pair, &control, || {});
    assert_eq!(differences(&found), []);
    let found = compared_after(&pair, &control, || {
        pair.target.run(replace);
    });
    assert_eq!(differences(&found), [of("p", NotCompared)]);
    let found = compared_after(&pair, &control, || {
        pair.source.run("TRUNCATE p2");
    });
    assert_eq!(differences(&found), [of("p", NotCompared)]);
}

/// Attaching a partition waits for no lock of those who read the table.
#[test]
fn a_partition_that_is_attached_while_the_table_is_read_is_noticed() {
    let tables = "CREATE TABLE p (id int, v int) PARTITION BY RANGE (id); \
        CREATE TABLE p1 (id int PRIMARY KEY, v int); \
        ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)";
    let on_source = format!(
        "{tables}; CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20); \
         INSERT INTO p VALUES (1, 1), (11, 1)"
    );
    let on_target = format!(
        "{tables}; CREATE TABLE p2 (id int, v int); INSERT INTO p2 VALUES (11, 1); \
         INSERT INTO p VALUES (1, 1)"
    );
    let mut pair = Pair::apart(&on_source, &on_target);
    let by_root = "ALTER PUBLICATION everything SET (publish_via_partition_root = true)";
    pair.source.run(by_root);
    let control = pair.start();
    let found = compared_after(&pair, &control, || {});
    let missing = ("p".to_owned(), "(11,1)".to_owned(), Missing);
    assert_eq!(differences(&found), [missing]);
    let options = options(&pair);
    let moment = Moment::take(&options, &mut InProcess(&control)).unwrap();
    let mut holds = sql(&pair.target);
    // Locks the index alone against those who read: the table's lock is granted.
    holds.execute("BEGIN; REINDEX INDEX p1_pkey").unwrap();
    std::thread::scope(|scope| {
        let comparing = scope.spawn(|| compare::tables(&options, &moment.snapshots).unwrap());
        until("the index is waited for", || waits(&pair.target, "p1_pkey"));
        let attach = "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)";
        pair.target.run(attach);
        holds.execute("COMMIT").unwrap();
        let found = comparing.join().unwrap();
        assert_eq!(differences(&found), [of("p", NotCompared)]);
    });
}

/// Writes a file if a superuser runs it, also where nothing can be written to tables.
const VIEW: &str = "CREATE ROLE mallory LOGIN; CREATE SCHEMA m AUTHORIZATION mallory; \
    CREATE TABLE m.t (id int PRIMARY KEY, v int); ALTER TABLE m.t OWNER TO mallory; \
    INSERT INTO m.t VALUES (1, 1)";

fn put_view(server: &Server) {
    server
        .run(
            "SET ROLE mallory; BEGIN; CREATE FUNCTION m.f(int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN \
             EXECUTE format('COPY (SELECT 1) TO %L', current_setting('data_directory') || '/ran'); \
             RETURN $1; END $$; ALTER TABLE m.t RENAME TO t0; \
             CREATE VIEW m.t AS SELECT id, m.f(v) AS v FROM m.t0; COMMIT",
        );
}

fn has_run(server: &Server) -> bool {
    let file = "SELECT FROM pg_stat_file('ran', true) f WHERE f.size IS NOT NULL";
    !rows(server, file).is_empty()
}

#[test]
fn the_code_of_a_view_in_a_tables_place_does_not_run() {
    let mut pair = Pair::new(VIEW);
    let control = pair.start();
    let found = compared_after(&pair, &control, || put_view(&pair.target));
    assert!(!has_run(&pair.target));
    assert_eq!(differences(&found), [of("t", NotCompared)]);
    // From the beginning.
    let found = compared_after(&pair, &control, || {});
    assert_eq!(differences(&found), [of("t", NoTable)]);
    assert!(!has_run(&pair.target));
    let back = "SET ROLE mallory; DROP VIEW m.t; ALTER TABLE m.t0 RENAME TO t";
    pair.target.run(back);
    let found = compared_after(&pair, &control, || put_view(&pair.source));
    assert_eq!(differences(&found), [of("t", NotCompared)]);
    assert!(!has_run(&pair.source));
    // It would have.
    assert_eq!(rows(&pair.source, "SELECT v FROM m.t").len(), 1);
    assert!(has_run(&pair.source));
}
