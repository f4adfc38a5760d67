//! The hard cases, one test each.

use lockstep_apply::{Start, Starts, Stats};
use lockstep_lab::assert_has;
use lockstep_replica::names::TableName;
use lockstep_wire::Lsn;

use super::apply_lab::{LONG, Pair, on, rows, run, sql, until};

#[test]
fn changes_of_every_kind_arrive_as_one_batch_and_one_by_one() {
    let mut pair = Pair::new("CREATE TABLE t (id int PRIMARY KEY, v text)");
    run(
        &pair,
        &[
            "INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 200) i",
            "UPDATE t SET v = 'new' WHERE id % 2 = 0",
            "DELETE FROM t WHERE id % 5 = 0",
            "UPDATE t SET id = id + 1000 WHERE id % 7 = 0",
            "INSERT INTO t VALUES (5, 'again'), (7, NULL), (14, '')",
            "BEGIN; INSERT INTO t VALUES (-1, 'x'); SAVEPOINT a; INSERT INTO t VALUES (-2, 'no'); \
             ROLLBACK TO a; INSERT INTO t VALUES (-3, 'y'); COMMIT",
        ],
    );
    let control = pair.start();
    pair.assert_same("SELECT * FROM t ORDER BY id");
    let stats = control.stats();
    assert_eq!((stats.missing, stats.counts.transactions), (0, 6));
    for number in 0..20 {
        run(
            &pair,
            &[&format!("UPDATE t SET v = '{number}' WHERE id = {number}")],
        );
    }
    pair.assert_same("SELECT * FROM t ORDER BY id");
    pair.stop();
}

#[test]
fn unchanged_large_values_are_kept() {
    let mut pair = Pair::new(
        "CREATE TABLE t (id int PRIMARY KEY, small int, large text); \
         ALTER TABLE t ALTER large SET STORAGE EXTERNAL; \
         CREATE TABLE k (key text PRIMARY KEY, v int); \
         ALTER TABLE k ALTER key SET STORAGE EXTERNAL",
    );
    run(
        &pair,
        &[
            "INSERT INTO t SELECT i, i, repeat(i::text, 3000) FROM generate_series(1, 10) i",
            "UPDATE t SET small = 0 WHERE id < 4",
            "UPDATE t SET id = 20 WHERE id = 3",
            "INSERT INTO k SELECT repeat(md5('1'), 80), 1",
            "UPDATE k SET v = 2",
        ],
    );
    pair.start();
    let query = "SELECT id, small, md5(large), length(large) FROM t ORDER BY id";
    pair.assert_same(query);
    pair.assert_same("SELECT * FROM k");
    pair.stop();
    run(
        &pair,
        &[
            "UPDATE t SET small = 7",
            "UPDATE t SET large = repeat('b', 5000) WHERE id = 5",
            "UPDATE t SET small = 8 WHERE id = 5",
            "UPDATE t SET id = 30 WHERE id = 6",
            "UPDATE t SET small = 9 WHERE id = 30",
            "UPDATE t SET large = NULL WHERE id = 7",
            "UPDATE k SET v = 3",
        ],
    );
    pair.start();
    pair.assert_same(query);
    pair.assert_same("SELECT * FROM k");
}

#[test]
fn tables_without_keys_keep_their_equal_rows() {
    let mut pair = Pair::new(
        "CREATE TABLE f (a int, b text, c json, d point, e float8); \
         ALTER TABLE f REPLICA IDENTITY FULL; \
         CREATE TABLE p (id int PRIMARY KEY, v text); ALTER TABLE p REPLICA IDENTITY FULL; \
         CREATE TABLE log (v text); CREATE TABLE nothing ()",
    );
    run(
        &pair,
        &[
            "INSERT INTO f SELECT i % 3, NULL, '{\"a\": 1}', '(1,2)', 0.1 FROM generate_series(1, 9) i",
            "DELETE FROM f WHERE ctid = '(0,1)'",
            "UPDATE f SET b = 'x' WHERE ctid IN ('(0,2)', '(0,5)')",
            "UPDATE f SET b = 'y' WHERE b = 'x' AND a = 2",
            "INSERT INTO f SELECT * FROM f WHERE b = 'y'",
            "DELETE FROM f WHERE a = 0 AND ctid > '(0,3)'",
            "INSERT INTO p SELECT i, repeat('a', i) FROM generate_series(1, 100) i",
            "UPDATE p SET v = 'z' WHERE id < 50",
            "DELETE FROM p WHERE id < 10",
            "INSERT INTO log VALUES ('a'), ('a'), (NULL)",
            "INSERT INTO nothing DEFAULT VALUES; INSERT INTO nothing DEFAULT VALUES",
        ],
    );
    let control = pair.start();
    pair.assert_same("SELECT a, b, c::text, d::text, e FROM f ORDER BY 1, 2, 3, 4, 5");
    pair.assert_same("SELECT * FROM p ORDER BY id");
    pair.assert_same("SELECT * FROM log ORDER BY v");
    pair.assert_same("SELECT count(*) FROM nothing");
    assert_eq!(control.stats().missing, 0);
}

#[test]
fn unique_values_change_places() {
    let mut pair = Pair::new(
        "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v text); \
         CREATE TABLE x (id int PRIMARY KEY, during int4range, EXCLUDE USING gist (during WITH &&))",
    );
    run(
        &pair,
        &[
            "INSERT INTO t SELECT i, i, repeat('v', 3000) FROM generate_series(1, 4) i",
            "INSERT INTO x VALUES (1, '[1,5)'), (2, '[5,9)')",
        ],
    );
    pair.start();
    pair.assert_same("SELECT * FROM t ORDER BY id");
    pair.stop();
    run(
        &pair,
        &[
            "BEGIN; UPDATE t SET u = -1 WHERE id = 1; UPDATE t SET u = 1 WHERE id = 2; \
             UPDATE t SET u = 2 WHERE id = 1; COMMIT",
            "BEGIN; UPDATE t SET id = -3 WHERE id = 3; UPDATE t SET id = 3 WHERE id = 4; \
             UPDATE t SET id = 4 WHERE id = -3; COMMIT",
            "BEGIN; UPDATE x SET during = '[20,21)' WHERE id = 1; \
             UPDATE x SET during = '[1,5)' WHERE id = 2; \
             UPDATE x SET during = '[5,9)' WHERE id = 1; COMMIT",
        ],
    );
    let control = pair.start();
    pair.assert_same("SELECT * FROM t ORDER BY id");
    pair.assert_same("SELECT * FROM x ORDER BY id");
    assert_eq!(control.stats().missing, 0);
}

#[test]
fn foreign_keys_and_triggers_do_not_act_again() {
    let mut pair = Pair::new(
        "CREATE TABLE parent (id int PRIMARY KEY); \
         CREATE TABLE child (id int PRIMARY KEY, of int REFERENCES parent ON DELETE CASCADE); \
         CREATE TABLE seen (n int); \
         CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS \
           'BEGIN INSERT INTO seen VALUES (1); RETURN NULL; END'; \
         CREATE TRIGGER see AFTER INSERT ON child FOR EACH ROW EXECUTE FUNCTION see()",
    );
    run(
        &pair,
        &[
            "INSERT INTO parent VALUES (1), (2)",
            "INSERT INTO child VALUES (1, 1), (2, 1), (3, 2)",
            "DELETE FROM parent WHERE id = 1",
        ],
    );
    pair.start();
    pair.assert_same("SELECT * FROM child");
    pair.assert_same("SELECT * FROM seen");
}

#[test]
fn triggers_that_always_act_do_so_and_rules_stop_the_replica() {
    let table = "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE seen (id int)";
    let acting = format!(
        "{table}; CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS \
           'BEGIN INSERT INTO public.seen VALUES (NEW.id); RETURN NULL; END'; \
         CREATE TRIGGER see AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION see(); \
         ALTER TABLE t ENABLE ALWAYS TRIGGER see"
    );
    let mut pair = Pair::apart(table, &acting);
    run(&pair, &["INSERT INTO t VALUES (1), (2)"]);
    let control = pair.start();
    pair.assert_same("SELECT id FROM t ORDER BY id");
    let seen = "SELECT id FROM seen ORDER BY id";
    assert_eq!(
        rows(&pair.target, seen).len(),
        2,
        "as in a stock subscription"
    );
    pair.stop();

    let rule = "CREATE RULE nothing AS ON INSERT TO t DO INSTEAD NOTHING; \
                ALTER TABLE t ENABLE ALWAYS RULE nothing";
    pair.target.run(rule);
    run(&pair, &["INSERT INTO t VALUES (3)"]);
    drop(control);
    let control = pair.start();
    let words = pair.blocked();
    assert_has!(words, "rule \"nothing\" is ENABLE ALWAYS");
    let disable = "ALTER TABLE t DISABLE RULE nothing";
    pair.target.run(disable);
    control.resume();
    pair.assert_same("SELECT id FROM t ORDER BY id");
}

#[test]
fn no_error_of_the_target_ends_the_replica() {
    let table = "CREATE TABLE t (id int PRIMARY KEY); ";
    let failing = "CREATE TABLE fails (code text); \
         CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ \
           DECLARE code text := (SELECT min(f.code) FROM public.fails f); BEGIN \
             IF code IS NOT NULL THEN RAISE 'not now' USING ERRCODE = code; END IF; RETURN NULL; END$$; \
         CREATE TRIGGER fail AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION fail(); \
         ALTER TABLE t ENABLE ALWAYS TRIGGER fail";
    let mut pair = Pair::apart(table, &format!("{table}{failing}"));
    let control = pair.start();
    let passing = ["40P01", "40001", "55P03"];
    for (id, code) in (1..).zip(["40P01", "40001", "55P03", "XX000", "2D000", "23503"]) {
        let fail = format!("INSERT INTO fails VALUES ('{code}')");
        pair.target.run(&fail);
        run(&pair, &[&format!("INSERT INTO t VALUES ({id})")]);
        let failed = |stats: &Stats| {
            stats
                .error
                .as_ref()
                .is_some_and(|it| it.contains("not now"))
        };
        assert!(control.wait_for(LONG, failed), "{:?}", control.stats());
        if !passing.contains(&code) {
            let words = pair.blocked();
            assert!(words.contains("table \"public.t\""), "{code}: {words}");
        }
        pair.target.run("DELETE FROM fails");
        control.resume();
        pair.assert_same("SELECT id FROM t ORDER BY id");
    }
}

#[test]
fn generated_identity_and_further_columns() {
    let mut pair = Pair::apart(
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int, \
           g int GENERATED ALWAYS AS (a * 2) STORED); \
         CREATE TABLE n (k int PRIMARY KEY, i int GENERATED ALWAYS AS IDENTITY, v text)",
        "CREATE TABLE t (more text DEFAULT 'd', a int, \
           g int GENERATED ALWAYS AS (a * 2) STORED, id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY); \
         CREATE TABLE n (k int PRIMARY KEY, i int GENERATED ALWAYS AS IDENTITY, v text)",
    );
    run(
        &pair,
        &[
            "INSERT INTO t (a) SELECT generate_series(1, 80)",
            "INSERT INTO n (k, v) VALUES (1, 'a'), (2, 'b')",
        ],
    );
    pair.start();
    pair.assert_same("SELECT id, a, g FROM t ORDER BY id");
    pair.target.run("UPDATE t SET more = 'kept'");
    run(
        &pair,
        &[
            "UPDATE t SET a = 100 WHERE id = 3",
            "UPDATE t SET id = DEFAULT WHERE id = 4",
            "UPDATE n SET v = 'c' WHERE k = 1",
        ],
    );
    pair.assert_same("SELECT id, a, g FROM t ORDER BY id");
    pair.assert_same("SELECT * FROM n ORDER BY k");
    let kept = rows(&pair.target, "SELECT count(*) FROM t WHERE more <> 'kept'");
    assert_eq!(kept[0][0].as_deref(), Some("0"));
}

const TYPES: &str = "CREATE EXTENSION citext; CREATE SCHEMA app; \
    CREATE TYPE app.mood AS ENUM ('sad', 'it''s \"ok\"'); \
    CREATE TYPE app.pair AS (a int, b text); CREATE DOMAIN app.short AS varchar(5); \
    CREATE DOMAIN app.ints AS int[]; \
    CREATE TABLE app.\"T y\" (id citext PRIMARY KEY, n numeric, f float8, r real, b bytea, \
      ts timestamptz, iv interval, j jsonb, js json, bx box, e app.mood, c app.pair, \
      cs app.pair[], ia int[], ta text[], d app.short, di app.ints, bits bit(3), vb bit varying, \
      ch char(5), one \"char\", ip inet, rg int4range, mr int4multirange, u uuid, x xml, m money, \
      oc regclass, tv tsvector, dt date, \"select\" bool)";

#[test]
fn values_of_every_type_arrive() {
    let mut pair = Pair::new(TYPES);
    let full = |id: &str| {
        format!(
            "INSERT INTO app.\"T y\" VALUES ('{id}', 'NaN', '-Infinity', 0.1, '\\x00ff5c', \
             '2026-11-22 10:00:00.123456+05', '1 mon -2 days 03:04:05', '{{\"a\": [1, null]}}', \
             '{{\"b\":   \"\\\\u00e9\"}}', '(1,2),(0,0)', 'it''s \"ok\"', '(1,\"a,\\\"b\")', \
             ARRAY[(1,'x')::app.pair, NULL], '{{{{1,2}},{{3,NULL}}}}', \
             ARRAY['a,b', 'NULL', NULL, '', '\\', '\"'], 'abcde', '{{1,2}}', '101', '1', 'ab', 'z', \
             '10.0.0.0/8', '[1,5)', '{{[1,2),[5,6)}}', \
             'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '<a>1</a>', '12.50', 'pg_class', \
             'cat:1 dog', '-infinity', true)"
        )
    };
    let nulls = "INSERT INTO app.\"T y\" (id) SELECT 'n' || i FROM generate_series(1, 60) i";
    run(
        &pair,
        &[
            &full("One"),
            &full("two"),
            nulls,
            "UPDATE app.\"T y\" SET id = 'ONE', n = 1.50 WHERE id = 'one'",
            "DELETE FROM app.\"T y\" WHERE id IN ('TWO', 'n7')",
        ],
    );
    let control = pair.start();
    let query = "SELECT t::text FROM app.\"T y\" t ORDER BY lower(id::text)";
    pair.assert_same(query);
    for statement in [
        "INSERT INTO app.\"T y\" SELECT (jsonb_populate_record(t, '{\"id\": \"new\"}')).* \
         FROM app.\"T y\" t WHERE id = 'one'",
        "UPDATE app.\"T y\" t SET (n, f, r, b, ts, iv, j, js, bx, e, c, cs, ia, ta, d, di, bits, vb, \
         ch, one, ip, rg, mr, u, x, m, oc, tv, dt, \"select\") = (SELECT n, f, r, b, ts, iv, j, js, bx, \
         e, c, cs, ia, ta, d, di, bits, vb, ch, one, ip, rg, mr, u, x, m, oc, tv, dt, \"select\" FROM \
         app.\"T y\" WHERE id = 'one') WHERE id = 'n1'",
        "UPDATE app.\"T y\" SET id = 'N1' WHERE id = 'n1'",
    ] {
        run(&pair, &[statement]);
        pair.assert_same(query);
    }
    assert_eq!(control.stats().missing, 0);
}

#[test]
fn rows_move_between_partitions() {
    let mut pair = Pair::new(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); \
         CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100); \
         CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200)",
    );
    run(
        &pair,
        &[
            "INSERT INTO p SELECT i, 'a' FROM generate_series(0, 199) i",
            "UPDATE p SET id = id + 99 WHERE id = 50",
        ]
        .map(|statement| statement.replace("id + 99 WHERE id = 50", "0 WHERE false"))
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>(),
    );
    pair.start();
    pair.assert_same("SELECT tableoid::regclass, * FROM p ORDER BY id");
    run(
        &pair,
        &[
            "DELETE FROM p WHERE id = 150",
            "UPDATE p SET id = 150 WHERE id = 50",
            "UPDATE p SET v = 'b' WHERE id % 3 = 0",
            "TRUNCATE p1",
        ],
    );
    pair.assert_same("SELECT tableoid::regclass, * FROM p ORDER BY id");
    pair.source
        .run("ALTER PUBLICATION everything SET (publish_via_partition_root = true)");
    run(
        &pair,
        &[
            "INSERT INTO p SELECT i, 'c' FROM generate_series(0, 99) i",
            "DELETE FROM p WHERE id = 151; UPDATE p SET id = 151, v = 'm' WHERE id = 51",
            "UPDATE p SET v = 'd' WHERE id % 2 = 0",
        ],
    );
    pair.assert_same("SELECT tableoid::regclass, * FROM p ORDER BY id");
    run(&pair, &["TRUNCATE p", "INSERT INTO p VALUES (1, 'end')"]);
    pair.assert_same("SELECT tableoid::regclass, * FROM p ORDER BY id");
}

#[test]
fn a_transaction_larger_than_the_memory_is_one_transaction() {
    let mut pair = Pair::new("CREATE TABLE t (id int PRIMARY KEY, v text)");
    pair.memory = 1024 * 1024;
    run(
        &pair,
        &[
            "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 30000) i",
            "UPDATE t SET v = 'y' || id",
            "DELETE FROM t WHERE id % 3 = 0",
            "BEGIN; UPDATE t SET id = -id; \
             INSERT INTO t SELECT i, 'z' FROM generate_series(1, 9000) i; COMMIT",
        ],
    );
    let control = pair.start();
    pair.assert_same("SELECT count(*), sum(id), md5(string_agg(v, ',' ORDER BY id)) FROM t");
    let stats = control.stats();
    assert_eq!((stats.missing, stats.batches), (0, 4));
    let commits = "SELECT count(DISTINCT xmin::text) FROM t WHERE id < 0";
    assert_eq!(rows(&pair.target, commits)[0][0].as_deref(), Some("1"));
}

#[test]
fn rows_that_are_missing_are_counted() {
    let mut pair = Pair::new("CREATE TABLE t (id int PRIMARY KEY, v text)");
    run(
        &pair,
        &["INSERT INTO t SELECT i FROM generate_series(1, 5) i"],
    );
    let control = pair.start();
    pair.catch_up();
    pair.target.run("DELETE FROM t WHERE id < 4");
    run(
        &pair,
        &[
            "UPDATE t SET v = 'a'",
            "DELETE FROM t WHERE id = 2",
            "UPDATE t SET id = 9 WHERE id = 1",
        ],
    );
    pair.catch_up();
    assert!(control.stats().missing >= 3);
    let left = rows(
        &pair.target,
        "SELECT string_agg(id || v, ' ' ORDER BY id) FROM t",
    );
    assert_eq!(left[0][0].as_deref(), Some("4a 5a"));
}

#[test]
fn a_conflicting_row_stops_right_before_its_transaction() {
    let mut pair = Pair::new("CREATE TABLE t (id int PRIMARY KEY, v text)");
    pair.target.run("INSERT INTO t VALUES (3, 'in the way')");
    run(
        &pair,
        &[
            "INSERT INTO t VALUES (1, 'a')",
            "INSERT INTO t VALUES (2, 'b')",
            "INSERT INTO t VALUES (4, 'd'), (3, 'c')",
            "INSERT INTO t VALUES (5, 'e')",
        ],
    );
    let control = pair.start();
    let error = pair.blocked();
    for words in ["public.t", "(id)=(3)", "committed at 0/"] {
        assert!(error.contains(words), "no {words} in: {error}");
    }
    let there = rows(
        &pair.target,
        "SELECT string_agg(id::text, ' ' ORDER BY id) FROM t",
    );
    assert_eq!(there[0][0].as_deref(), Some("1 2 3"), "{error}");
    pair.target.run("DELETE FROM t WHERE id = 3");
    control.resume();
    pair.assert_same("SELECT * FROM t ORDER BY id");
}

#[test]
fn a_change_of_the_schema_stops_at_the_boundary() {
    let mut pair = Pair::new("CREATE TABLE t (id int PRIMARY KEY, v text)");
    run(
        &pair,
        &[
            "INSERT INTO t VALUES (1, 'a')",
            "ALTER TABLE t ADD w int",
            "INSERT INTO t VALUES (2, 'b', 2)",
            "ALTER TABLE t DROP v",
            "UPDATE t SET w = 3",
        ],
    );
    let control = pair.start();
    let error = pair.blocked();
    assert!(error.contains("no column \"w\""), "{error}");
    let there = rows(&pair.target, "SELECT string_agg(id::text, ' ') FROM t");
    assert_eq!(there[0][0].as_deref(), Some("1"));
    pair.target.run("ALTER TABLE t ADD w int");
    control.resume();
    pair.assert_same("SELECT id, w FROM t ORDER BY id");
    run(
        &pair,
        &[
            "CREATE TABLE late (id int PRIMARY KEY)",
            "INSERT INTO late VALUES (1)",
        ],
    );
    let error = pair.blocked();
    assert_has!(error, "public.late", "does not exist");
    pair.target.run("CREATE TABLE late (id int PRIMARY KEY)");
    control.resume();
    pair.assert_same("SELECT * FROM late");
}

#[test]
fn each_table_begins_at_its_own_position() {
    let mut pair = Pair::new(
        "CREATE TABLE early (id int PRIMARY KEY); CREATE TABLE late (id int PRIMARY KEY); \
         CREATE TABLE never (id int PRIMARY KEY)",
    );
    run(
        &pair,
        &["INSERT INTO early VALUES (1); INSERT INTO late VALUES (1)"],
    );
    let begins: Lsn = pair.source.flush_lsn().unwrap();
    run(
        &pair,
        &[
            "INSERT INTO early VALUES (2); INSERT INTO late VALUES (2); INSERT INTO never VALUES (2)",
        ],
    );
    let name = |table: &str| TableName {
        schema: "public".to_owned(),
        table: table.to_owned(),
    };
    let starts = [
        (name("late"), Start::At(begins)),
        (name("never"), Start::Never),
    ];
    pair.start_from(Starts {
        tables: starts.into(),
        ..Starts::default()
    });
    pair.assert_same("SELECT * FROM early ORDER BY id");
    let ids = |table| rows(&pair.target, &format!("SELECT id FROM {table}"));
    assert_eq!(ids("late"), [[Some("2".to_owned())]]);
    assert!(ids("never").is_empty());
}

/// Such a transaction has no ID on the target unless it asks for one, and no commit record then.
#[test]
fn a_transaction_that_changes_nothing_moves_the_origin() {
    for writers in [1, 4] {
        let mut pair = Pair::new("CREATE TABLE k (a int, b int, PRIMARY KEY (a, b))");
        pair.writers = writers.into();
        let control = pair.start();
        run(&pair, &["INSERT INTO k VALUES (1, 1)"]);
        pair.catch_up();
        let upsert = "INSERT INTO k VALUES (1, 1) ON CONFLICT (a, b) DO UPDATE SET a = excluded.a";
        run(&pair, &[upsert]);
        let end = pair.source.flush_lsn().unwrap();
        assert!(control.wait_for(LONG, |stats| stats.flushed >= end));
        pair.stop();
        // The slot confirms no more than the target has.
        pair.start();
        run(&pair, &["INSERT INTO k VALUES (2, 2)"]);
        pair.assert_same("SELECT * FROM k ORDER BY a");
        pair.stop();
    }
}

/// More than one statement's parameters would hold, each taking the key that the next one gives up.
#[test]
fn many_long_rows_move_by_one_key() {
    let mut pair = Pair::new("CREATE TABLE t (id int PRIMARY KEY, pad text)");
    run(
        &pair,
        &["INSERT INTO t SELECT i, repeat('x', 1000) || i FROM generate_series(1, 10000) i"],
    );
    pair.start();
    pair.catch_up();
    run(
        &pair,
        &["BEGIN; UPDATE t SET id = -id; UPDATE t SET id = 1 - id; COMMIT"],
    );
    pair.assert_same("SELECT id, right(pad, 6) FROM t ORDER BY id");
    pair.stop();
}

#[test]
fn what_a_statement_checks_at_its_end_may_come_in_parts() {
    let mut pair =
        Pair::new("CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE DEFERRABLE, pad text)");
    pair.memory = 1024 * 1024;
    run(
        &pair,
        &["INSERT INTO t SELECT i, i, repeat('x', 200) FROM generate_series(1, 5000) i"],
    );
    pair.start();
    pair.catch_up();
    run(&pair, &["UPDATE t SET u = u + 1"]);
    pair.assert_same("SELECT id, u FROM t ORDER BY id");
    pair.stop();
}

/// Handed over in parts it does not fit: the target checks at once what the source checks at the end.
#[test]
fn a_large_transaction_that_does_not_fit_in_parts_is_applied_as_a_whole() {
    let table = |u| format!("CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE {u})");
    let mut pair = Pair::apart(&table("DEFERRABLE"), &table(""));
    run(
        &pair,
        &["INSERT INTO t SELECT i, i FROM generate_series(1, 25000) i"],
    );
    pair.start();
    pair.catch_up();
    run(
        &pair,
        &[
            "UPDATE t SET u = u + 1",
            "INSERT INTO t SELECT i, -i FROM generate_series(25001, 50000) i",
        ],
    );
    pair.assert_same("SELECT id, u FROM t ORDER BY id");
    pair.stop();
}

/// The target has the first part of it, and neither shows nor keeps that.
#[test]
fn a_large_transaction_is_seen_as_a_whole_or_not_at_all() {
    let mut pair = Pair::new("CREATE TABLE t (id int PRIMARY KEY, v text)");
    let mut holder = sql(&pair.target);
    run(
        &pair,
        &["INSERT INTO t SELECT i, 'v' FROM generate_series(1, 50000) i"],
    );
    // The last rows wait for this one, when the first part is done.
    holder
        .execute("BEGIN; INSERT INTO t VALUES (50000, 'in the way')")
        .unwrap();
    let control = pair.start();
    until("the target waits for the row", || {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'transactionid'";
        rows(&pair.target, waits) == [[Some("1".to_owned())]]
    });
    let seen = "SELECT count(*) FROM t";
    assert_eq!(rows(&pair.target, seen), [[Some("0".to_owned())]]);
    let counted = control.stats().counts;
    assert_eq!((counted.transactions, counted.inserts), (0, 0));
    // Stopped in the middle of it, and begun again.
    pair.stop();
    holder.execute("ROLLBACK").unwrap();
    assert_eq!(rows(&pair.target, seen), [[Some("0".to_owned())]]);
    let control = pair.start();
    pair.assert_same("SELECT count(*), sum(id) FROM t");
    let counted = control.stats().counts;
    assert_eq!((counted.transactions, counted.inserts), (1, 50000));
    pair.stop();
}

#[test]
fn a_transaction_that_is_ended_in_its_commit_is_applied_again() {
    let table = "CREATE TABLE t (id int PRIMARY KEY)";
    let waits = "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS \
        $$ BEGIN PERFORM pg_catalog.pg_advisory_xact_lock(7); RETURN NULL; END $$; \
        CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED \
          FOR EACH ROW EXECUTE FUNCTION waits(); \
        ALTER TABLE t ENABLE ALWAYS TRIGGER late";
    let mut pair = Pair::apart(table, &format!("{table}; {waits}"));
    pair.start();
    run(&pair, &["INSERT INTO t VALUES (1)"]);
    pair.catch_up();
    let mut holder = sql(&pair.target);
    holder.execute("SELECT pg_advisory_lock(7)").unwrap();
    run(&pair, &["INSERT INTO t VALUES (2)"]);
    let end = "SELECT pg_terminate_backend(pid) FROM pg_locks \
               WHERE locktype = 'advisory' AND objid = 7 AND NOT granted";
    until("that the commit waits, with its position set up", || {
        !rows(&pair.target, end).is_empty()
    });
    holder.execute("SELECT pg_advisory_unlock(7)").unwrap();
    run(&pair, &["INSERT INTO t VALUES (3)"]);
    pair.assert_same("SELECT id FROM t ORDER BY id");
    pair.stop();
}

#[test]
fn positions_that_are_passed_are_deleted() {
    let table = "CREATE TABLE t (id int PRIMARY KEY)";
    let mut pair = Pair::new(table);
    let inserts: Vec<_> = (0..1_100)
        .map(|id| format!("INSERT INTO t VALUES ({id})"))
        .collect();
    pair.start();
    let mut source = sql(&pair.source);
    for insert in inserts {
        source.execute(&insert).unwrap();
        pair.catch_up();
    }
    let kept = rows(
        &pair.target,
        "SELECT count(*) < 1000 AND max(lsn) = \
        pg_replication_origin_progress('replica_r1_0', true) FROM lockstep.apply_position",
    );
    assert_eq!(kept, [[Some("t".to_owned())]]);
    pair.stop();
}

#[test]
fn a_column_that_the_target_gets_meanwhile_keeps_its_values() {
    let mut pair = Pair::new(
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE f (v int); \
         ALTER TABLE f REPLICA IDENTITY FULL",
    );
    pair.start();
    let rows_before = ["INSERT INTO t VALUES (1, 1)", "INSERT INTO f VALUES (1)"];
    run(&pair, &rows_before);
    // Keys have changed once, so the statements are prepared.
    run(&pair, &["UPDATE t SET id = 2", "UPDATE f SET v = 2"]);
    pair.catch_up();
    on(
        &pair.target,
        "ALTER TABLE t ADD own text DEFAULT 'mine'; ALTER TABLE f ADD own text DEFAULT 'mine'; \
            ALTER TABLE t ALTER own DROP DEFAULT; ALTER TABLE f ALTER own DROP DEFAULT",
    );
    run(&pair, &["UPDATE t SET id = 3", "UPDATE f SET v = 3"]);
    pair.catch_up();
    let own = "SELECT t.id, t.own, f.v, f.own FROM t, f";
    let of = |text: &str| Some(text.to_owned());
    assert_eq!(
        rows(&pair.target, own),
        [[of("3"), of("mine"), of("3"), of("mine")]]
    );
    pair.stop();
}

#[test]
fn what_the_target_refuses_at_a_commit_blocks_there() {
    let table = "CREATE TABLE t (id int PRIMARY KEY, u int)";
    let refuses = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
        $$ BEGIN IF new.u = 7 AND EXISTS (SELECT FROM public.t WHERE id = 99) THEN \
             RAISE EXCEPTION 'not seven' USING ERRCODE = '23514', SCHEMA = 'public', TABLE = 't'; \
           END IF; RETURN NULL; END $$; \
        CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED \
          FOR EACH ROW EXECUTE FUNCTION refuse(); \
        ALTER TABLE t ENABLE ALWAYS TRIGGER late; INSERT INTO t VALUES (99, 1)";
    let mut pair = Pair::apart(table, &format!("{table}; {refuses}"));
    run(
        &pair,
        &["INSERT INTO t VALUES (1, 1)", "INSERT INTO t VALUES (2, 7)"],
    );
    pair.start();
    let words = pair.blocked();
    assert!(
        words.contains("table public.t") || words.contains("table \"public.t\""),
        "{words}"
    );
    assert!(words.contains("not seven"), "{words}");
    assert!(words.contains("(in: PL/pgSQL function"), "{words}");
    // Everything before it is there.
    let before = rows(&pair.target, "SELECT id FROM t WHERE id < 3");
    assert_eq!(before, [[Some("1".to_owned())]]);
    on(&pair.target, "DELETE FROM t WHERE id = 99");
    pair.assert_same("SELECT * FROM t ORDER BY id");
    pair.stop();
}
