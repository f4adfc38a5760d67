//! Tables without which a replica goes on that follows changes of the schema, and what the source has
//! computed: bounds of partitions and values of new columns.

use lockstep_lab::assert_has;
use lockstep_replica::state::LeftOut;
use lockstep_replica::switchover::run::switchover;
use lockstep_replica::verify::named::replica as verify;

use crate::apply_lab::until;
use crate::ddl::Scene;
use crate::{Told, conninfo, on, state_of, to_switch, to_verify, values};

/// Leaves the table out at which the replica stands, and waits until it has all else.
fn leave_out(scene: &Scene, table: &str) {
    let error = scene.blocked();
    assert_has!(error, &format!("--leave-out {table}"));
    let mut state = state_of(&scene.target);
    assert_eq!(state.leave_out("r", table).unwrap(), LeftOut::Kept);
    state.set_paused("r", false).unwrap();
    let end = scene.source.flush_lsn().unwrap();
    until("that it goes on", || scene.control.stats().applied >= end);
}

/// What the state says of tables that are left out.
fn told(scene: &Scene) -> Vec<String> {
    let unmade = state_of(&scene.target).unmade("r").unwrap();
    unmade.iter().map(|one| one.name()).collect()
}

#[test]
fn it_goes_on_without_a_table_whose_changes_are_refused() {
    let scene = Scene::new(
        "CREATE TABLE t (id int PRIMARY KEY DEFAULT 7); CREATE TABLE u (id int PRIMARY KEY, v int)",
    );
    // Made with its rows in one transaction, in place of another of its name, with a type without input.
    scene.run("CREATE TABLE odd (a int); INSERT INTO odd VALUES (1)");
    scene.run(
        "BEGIN; DROP TABLE odd; CREATE TABLE odd AS SELECT adbin FROM pg_attrdef LIMIT 1; \
         INSERT INTO t VALUES (1); COMMIT",
    );
    assert_has!(scene.blocked(), "pg_node_tree");
    let mut state = state_of(&scene.target);
    let other = state.leave_out("r", "public.t").unwrap();
    assert_eq!(other, LeftOut::Elsewhere(Some("public.odd".to_owned())));
    let unknown = state.leave_out("other", "public.odd").unwrap();
    assert_eq!(unknown, LeftOut::NotFollowed);
    leave_out(&scene, "public.odd");
    let nowhere = state.leave_out("r", "public.odd").unwrap();
    assert_eq!(nowhere, LeftOut::Elsewhere(None));
    scene.run("INSERT INTO t VALUES (2); INSERT INTO odd SELECT adbin FROM pg_attrdef LIMIT 1");
    scene.catch_up();
    let counts = "SELECT (SELECT count(*) FROM odd) || ' ' || (SELECT count(*) FROM t)";
    assert_eq!(values(&scene.target, counts), ["0 2"]);
    assert_eq!(told(&scene), ["rows of table public.odd"]);

    // One that was there from the beginning.
    on(
        &scene.target,
        "ALTER TABLE u ADD CONSTRAINT few CHECK (v < 9)",
    );
    scene.run("INSERT INTO u VALUES (1, 1), (2, 10)");
    leave_out(&scene, "public.u");
    on(&scene.target, "ALTER TABLE u DROP CONSTRAINT few");
    scene.run("INSERT INTO u VALUES (3, 3)");
    scene.run(
        "ALTER TABLE u RENAME TO w; ALTER TABLE w ADD x int DEFAULT 5; INSERT INTO w VALUES (4, 4)",
    );
    scene.run("TRUNCATE t, w; INSERT INTO t VALUES (3)");
    scene.catch_up();
    let rows =
        "SELECT (SELECT count(*) FROM w) || ' ' || (SELECT string_agg(id::text, ',') FROM t)";
    assert_eq!(values(&scene.target, rows), ["0 3"]);
    let names = ["rows of table public.odd", "rows of table public.w"];
    assert_eq!(told(&scene), names);
    // What the process does is written once a second.
    let applies = "SELECT apply_state = 'applying' FROM lockstep.replica";
    until("that the state says so", || {
        values(&scene.target, applies) == ["t"]
    });
    let verified = verify(&to_verify(conninfo(&scene.target)), &mut |_| {}).unwrap();
    assert!(!verified.is_equal(), "{verified:?}");
    let refused = switchover(&to_switch(conninfo(&scene.target)), &mut Told::default());
    assert_has!(refused.unwrap_err().to_string(), "left out", "public.odd");

    // Others of their names are replicated.
    scene.run("DROP TABLE odd, w; CREATE TABLE odd (a int); INSERT INTO odd VALUES (1)");
    scene.run("CREATE TABLE w (b int); INSERT INTO w VALUES (2)");
    scene.assert_same();
    assert_eq!(told(&scene), [""; 0]);
    let left = "SELECT cardinality(left_out) FROM lockstep.ddl";
    assert_eq!(values(&scene.target, left), ["0"]);
}

#[test]
fn bounds_of_partitions_are_those_that_the_source_has_computed() {
    let scene = Scene::new("CREATE TABLE p (at timestamptz) PARTITION BY RANGE (at)");
    scene.run(
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (now() - interval '1 hour') TO (current_timestamp); \
         CREATE TABLE p2 (at timestamptz); CREATE TABLE days (d date, v text) PARTITION BY LIST (d)",
    );
    scene.run(
        "SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Tokyo'; \
         ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (now() + interval '1 hour') TO (MAXVALUE); \
         CREATE TABLE today PARTITION OF days FOR VALUES IN ('today', NULL, current_date + 1) \
             PARTITION BY LIST (v); \
         CREATE TABLE words PARTITION OF today FOR VALUES IN ('it''s', 'b')",
    );
    // Those of a savepoint are known by their text alone.
    scene.run(
        "BEGIN; CREATE TABLE n (a int) PARTITION BY RANGE (a); CREATE TABLE n1 (a int); CREATE TABLE n2 (a int); \
         ALTER TABLE n ATTACH PARTITION n1 FOR VALUES FROM (abs(-1)) TO (2); SAVEPOINT s; \
         ALTER TABLE n ATTACH PARTITION n2 FOR VALUES FROM (abs(-2)) TO (3); COMMIT",
    );
    // At the very bounds.
    for table in ["p1", "p2"] {
        scene.run(&format!(
            "INSERT INTO {table} SELECT (regexp_match(pg_get_expr(relpartbound, oid), '''(.*?)'''))[1]\
             ::timestamptz FROM pg_class WHERE relname = '{table}'"
        ));
    }
    scene.run("INSERT INTO days VALUES (NULL, 'it''s'), (NULL, 'b')");
    scene.assert_same();
}

#[test]
fn values_of_new_columns_are_those_that_the_source_has_computed() {
    let scene = Scene::new(
        "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'; \
         CREATE TABLE k (id int PRIMARY KEY REFERENCES k, v text, m mood, g text GENERATED ALWAYS AS (left(v, 9)) STORED); \
         CREATE TABLE n (v text, gone int); CREATE INDEX ON n (upper(v)) WHERE v > 'a'; ALTER TABLE n DROP gone; \
         INSERT INTO k SELECT i, repeat('v', i * 900), 'glad' FROM generate_series(1, 9) i; \
         INSERT INTO n SELECT v FROM k; CREATE TABLE late (id int); \
         CREATE FUNCTION told() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''%'', TG_OP; END'; \
         CREATE TRIGGER told BEFORE INSERT OR TRUNCATE ON k FOR EACH STATEMENT EXECUTE FUNCTION told(); \
         ALTER TABLE k DISABLE TRIGGER told",
    );
    scene.run("ALTER TABLE k ENABLE TRIGGER told; ALTER TABLE k ADD a uuid NOT NULL DEFAULT gen_random_uuid() UNIQUE");
    scene.run("ALTER TABLE n ADD id serial PRIMARY KEY; UPDATE n SET v = 'x' WHERE id = 3");
    scene.run(
        "BEGIN; UPDATE k SET v = 'y' WHERE id = 1; DELETE FROM k WHERE id = 2; SAVEPOINT s; \
         ALTER TABLE k ADD b bigint GENERATED ALWAYS AS IDENTITY, ADD c timestamptz DEFAULT clock_timestamp(), \
             ALTER id TYPE bigint; SAVEPOINT u; UPDATE k SET v = 'z' WHERE id = 3; \
         ALTER TABLE k ADD d text DEFAULT md5(random()::text), ADD e timestamptz DEFAULT now(); \
         DELETE FROM k WHERE id = 4; ALTER TABLE k RENAME TO kk; COMMIT",
    );
    scene.run(
        "DO $$ BEGIN ALTER TABLE n ADD r float8 DEFAULT random(), ADD h text GENERATED ALWAYS AS (upper(v)) STORED; \
         UPDATE n SET r = 0 WHERE id = 1; END $$",
    );
    // Nothing to send.
    scene.run("ALTER TABLE late ADD r float8 DEFAULT random(); INSERT INTO late VALUES (1)");
    scene.assert_same();
    let left = "SELECT count(*) FROM pg_class WHERE relname LIKE 'rows\\_%'";
    assert_eq!(values(&scene.source, left), ["0"]);

    // A superuser does not run a user's code, and others are not told twice.
    for (in_the_way, away) in [
        (
            "ALTER TABLE n ADD CHECK (f() > 0)",
            "ALTER TABLE n DROP CONSTRAINT n_check",
        ),
        (
            "ALTER TABLE n ADD CHECK (v < 'a') NOT VALID",
            "ALTER TABLE n DROP CONSTRAINT n_v_check",
        ),
        (
            "ALTER TABLE n ADD CHECK (localtimestamp > 'epoch')",
            "ALTER TABLE n DROP CONSTRAINT n_check",
        ),
        (
            "CREATE PUBLICATION other FOR TABLE n",
            "DROP PUBLICATION other",
        ),
    ] {
        scene.run(in_the_way);
        scene.run(
            "BEGIN; ALTER TABLE n ADD q int DEFAULT random() * 9; ALTER TABLE n DROP q; COMMIT",
        );
        let error = scene.blocked();
        assert_has!(error, "another value in each row");
        on(&scene.target, "ALTER TABLE n ADD q int");
        scene.made_by_hand(&error);
        scene.run(away);
        scene.assert_same();
    }
}
