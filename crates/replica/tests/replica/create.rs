//! A replica from its creation to its end.

use lockstep_client::{Connection, Purpose};
use lockstep_lab::assert_has;
use lockstep_lab::server::Server;
use lockstep_replica::lifecycle::create::create;
use lockstep_replica::lifecycle::remove::remove;
use lockstep_replica::state::{Phase, TableState};

use crate::apply_lab::until;
use crate::{Told, conninfo, copied, on, options, pair, sql, state_of, values};

/// A database with something of everything that is copied.
const EVERYTHING: &str = "
CREATE SCHEMA \"A b\"; CREATE SCHEMA out;
CREATE TYPE \"A b\".mood AS ENUM ('sad', 'it''s ok');
CREATE TYPE \"A b\".pair AS (a int, b text);
CREATE DOMAIN \"A b\".positive AS int CHECK (VALUE > 0);
CREATE TABLE \"A b\".\"T\" (id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY, twice int
    GENERATED ALWAYS AS (id * 2) STORED, m \"A b\".mood, ms \"A b\".mood[], p \"A b\".pair,
    n \"A b\".positive, t text, b bytea, j jsonb, r regclass, i inet[], f float8, ts timestamptz,
    iv interval, nr numrange, x xml, dropped int);
ALTER TABLE \"A b\".\"T\" DROP COLUMN dropped;
INSERT INTO \"A b\".\"T\" (m, ms, p, n, t, b, j, r, i, f, ts, iv, nr, x)
    SELECT 'it''s ok', ARRAY['sad']::\"A b\".mood[], ROW(n, E'a\\tb')::\"A b\".pair, n, repeat('é', n),
        decode(md5(n::text), 'hex'), '{\"a\": [1]}', 'pg_class', '{::1,10.0.0.0/8}', 'Infinity',
        '-infinity', '1 mon -3 days', '[1,2)', '<a/>' FROM generate_series(1, 1000) n;
INSERT INTO \"A b\".\"T\" (t) VALUES (NULL), (''), (E'\\\\.'), (repeat('x', 5000000));
CREATE TABLE plain (id bigint PRIMARY KEY, ref int, v text);
INSERT INTO plain SELECT n, 1 + n % 1000, md5(n::text) FROM generate_series(1, 400000) n;
ALTER TABLE plain ADD FOREIGN KEY (ref) REFERENCES \"A b\".\"T\";
CREATE INDEX ON plain (v) WHERE id > 5; CREATE INDEX ON plain (lower(v));
ALTER TABLE plain ALTER v SET STATISTICS 500; COMMENT ON TABLE plain IS 'it''s plain';
CREATE STATISTICS st ON ref, v FROM plain;
CREATE TABLE parts (k int, v text, PRIMARY KEY (k)) PARTITION BY RANGE (k);
CREATE TABLE part1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
CREATE TABLE part2 PARTITION OF parts DEFAULT;
INSERT INTO parts SELECT n, n FROM generate_series(1, 300) n;
CREATE TABLE parent (a int PRIMARY KEY); CREATE TABLE child (PRIMARY KEY (a)) INHERITS (parent);
INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2);
CREATE TABLE nothing (); INSERT INTO nothing DEFAULT VALUES; INSERT INTO nothing DEFAULT VALUES;
CREATE UNLOGGED TABLE fast (a int PRIMARY KEY); INSERT INTO fast VALUES (1);
CREATE TABLE out.t (a int PRIMARY KEY); INSERT INTO out.t VALUES (1);
CREATE TABLE skipped (a int PRIMARY KEY); INSERT INTO skipped VALUES (1);
CREATE SEQUENCE counter START 7; SELECT nextval('counter'), nextval('counter');
CREATE SEQUENCE fresh;
CREATE VIEW over AS SELECT id FROM plain;
CREATE MATERIALIZED VIEW mv2 AS SELECT count(*) AS n FROM plain;
CREATE MATERIALIZED VIEW mv1 AS SELECT n + 1 AS n FROM mv2;
CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN NEW.v := 'changed'; RETURN NEW; END $$;
CREATE TRIGGER stamp BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION stamp();
CREATE RULE r AS ON DELETE TO parent DO INSTEAD NOTHING;
ALTER TABLE parent ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON parent USING (a > 0);
GRANT SELECT ON plain TO pg_monitor;";

/// Everything about the schema that pg_dump does not decide, as text that each major gives alike.
const SCHEMA: &str = "
SELECT format('%s %s %s', n.nspname, c.relname, c.relkind) FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname NOT IN ('information_schema', 'lockstep', 'out')
        AND c.relname NOT LIKE 'skipped%'
UNION ALL SELECT pg_get_constraintdef(k.oid) || conrelid::regclass FROM pg_constraint k
    WHERE connamespace NOT IN (SELECT oid FROM pg_namespace WHERE nspname IN ('out', 'lockstep'))
        AND conrelid <> 0 AND contype <> 'n'
        AND conname NOT LIKE 'skipped%'
        AND connamespace::regnamespace::text NOT IN ('pg_catalog', 'information_schema')
UNION ALL SELECT tgname || tgrelid::regclass FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT polname || polrelid::regclass FROM pg_policy
UNION ALL SELECT stxname FROM pg_statistic_ext
UNION ALL SELECT c.relname || acl.grantee::regrole || acl.privilege_type
    FROM pg_class c, aclexplode(c.relacl) acl WHERE c.relname = 'plain' AND acl.grantee <> c.relowner
UNION ALL SELECT format('%s %s %s', c.relname, attname, attnotnull) FROM pg_attribute
    JOIN pg_class c ON c.oid = attrelid
    WHERE c.relname IN ('T', 'plain', 'parts', 'part1', 'child') AND attnum > 0 AND NOT attisdropped
UNION ALL SELECT attname || attstattarget FROM pg_attribute
    WHERE attrelid = 'plain'::regclass AND attnum > 0 AND attstattarget >= 0
UNION ALL SELECT obj_description('plain'::regclass)
ORDER BY 1";

pub fn rows(server: &Server, table: &str) -> Vec<String> {
    let fingerprint = format!(
        "SELECT count(*) || ' ' || coalesce(sum(hashtextextended(t::text, 0)), 0) FROM ONLY {table} t"
    );
    values(server, &fingerprint)
}

/// Each phase was told once, and the last progress is all there is.
fn assert_told(told: &Told) {
    let phases: Vec<_> = told.phases.iter().map(|(phase, _)| *phase).collect();
    assert_eq!(
        phases,
        [
            Phase::Preparing,
            Phase::Schema,
            Phase::Copying,
            Phase::Indexing,
            Phase::Finishing,
            Phase::Ready
        ]
    );
    assert!(told.phases.iter().all(|(_, again)| !again));
    let last = told.moments.last().unwrap();
    assert_eq!((last.tables_done, last.bytes_done), (7, last.bytes_total));
    assert_eq!(last.rows, 400_000 + 1_004 + 300 + 2 + 2);
}

#[test]
fn a_database_arrives_whole() {
    let (_lab, source, target) = pair(EVERYTHING);
    let mut options = options(&source, &target);
    options.excluded.schemas = vec!["out".to_owned()];
    options.excluded.tables = vec!["public.skipped".to_owned()];
    let mut told = Told::default();
    let created = create(&options, &mut told).unwrap();

    assert_eq!(values(&source, SCHEMA), values(&target, SCHEMA));
    for table in [
        "\"A b\".\"T\"",
        "plain",
        "part1",
        "part2",
        "parent",
        "child",
        "nothing",
    ] {
        assert_eq!(rows(&source, table), rows(&target, table), "{table}");
    }
    assert_eq!(
        values(&target, "SELECT count(*) FROM plain WHERE v = 'changed'"),
        ["0"]
    );
    assert_eq!(values(&target, "SELECT count(*) FROM fast"), ["0"]);
    let gone = "SELECT to_regclass('out.t') IS NULL AND to_regclass('skipped') IS NULL";
    assert_eq!(values(&target, gone), ["t"]);
    assert_eq!(values(&target, "SELECT n FROM mv1"), ["400001"]);
    assert_eq!(values(&target, "SELECT nextval('counter')"), ["9"]);
    assert_eq!(values(&target, "SELECT nextval('fresh')"), ["1"]);
    let next = "INSERT INTO \"A b\".\"T\" (t) VALUES ('new') RETURNING id";
    assert_eq!(values(&target, next), ["1005"]);
    let analyzed = "SELECT count(*) > 0 FROM pg_stats WHERE tablename = 'plain'";
    assert_eq!(values(&target, analyzed), ["t"]);

    assert_told(&told);
    let mut state = state_of(&target);
    let replica = state.replica("r").unwrap().unwrap();
    assert_eq!(
        (replica.phase, replica.start),
        (Phase::Ready, Some(created.start))
    );
    let tables = state.tables("r").unwrap();
    assert_eq!(tables.len(), 7);
    for table in &tables {
        assert_eq!(table.state, TableState::Copied);
        assert_eq!(table.start, Some(created.start), "one snapshot");
    }
    // The slot begins where the snapshot ends, and the publication has what was copied.
    let slot = sql(&source).slot(&replica.slot).unwrap().unwrap();
    assert_eq!(slot.confirmed, created.start);
    let published = "SELECT count(*) FROM pg_publication_tables";
    assert_eq!(values(&source, published), ["7"]);

    let again = create(&options, &mut Told::default()).unwrap_err();
    assert!(again.to_string().contains("exists already"), "{again}");
    drop(state);
    remove("r", &conninfo(&target), None).unwrap();
    assert!(values(&source, "SELECT slot_name FROM pg_replication_slots").is_empty());
    assert!(values(&source, "SELECT pubname FROM pg_publication").is_empty());
    assert_eq!(
        values(&target, "SELECT count(*) FROM plain"),
        ["400000"],
        "data stays"
    );
    let unknown = remove("r", &conninfo(&target), None).unwrap_err();
    assert_has!(unknown.to_string(), "no replica \"r\"");
    let error = create(&options, &mut Told::default()).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
}

#[test]
fn settings_of_the_databases_change_no_value_and_end_no_session() {
    // A column of type money makes the table be copied as text.
    let (_lab, source, target) = pair(
        "CREATE TABLE t (id int PRIMARY KEY, m money, a text[], x text DEFAULT 'NULL');
         INSERT INTO t VALUES (1, 1, ARRAY['a', NULL, 'NULL'], DEFAULT)",
    );
    for server in [&source, &target] {
        for setting in [
            "array_nulls = off",
            "quote_all_identifiers = on",
            "datestyle = 'SQL, DMY'",
            "standard_conforming_strings = off",
            "idle_session_timeout = '500ms'",
        ] {
            let set = format!("ALTER ROLE CURRENT_USER SET {setting}");
            server.run(&set);
        }
    }
    create(&options(&source, &target), &mut Told::default()).unwrap();
    let read = "SELECT a[1] || (a[2] IS NULL)::text || (a[3] = 'NULL')::text FROM t";
    assert_eq!(values(&source, read), ["atruetrue"]);
    assert_eq!(values(&target, read), ["atruetrue"]);

    // Another session's age says that this one has idled for longer than it may.
    let mut state = state_of(&target);
    until("three times the limit", || {
        let old = "SELECT coalesce(bool_or(clock_timestamp() - state_change > '600 ms'), true) \
            FROM pg_stat_activity WHERE application_name = 'lockstep replica' AND state = 'idle'";
        values(&target, old) == ["t"]
    });
    assert_eq!(state.tables("r").unwrap()[0].state, TableState::Copied);
}

#[test]
fn what_one_session_loads_is_frozen_and_ranges_are_not_mixed_up() {
    let (_lab, source, target) = pair(
        "CREATE TABLE big (id int PRIMARY KEY, v text);
         INSERT INTO big SELECT n, repeat('v', 200) FROM generate_series(1, 150000) n;
         CREATE TABLE whole (id int PRIMARY KEY, v text);
         INSERT INTO whole SELECT n, repeat('v', 200) FROM generate_series(1, 10000) n;
         DELETE FROM big WHERE id % 3 = 0; UPDATE big SET v = 'new' WHERE id % 1000 = 1",
    );
    let mut told = Told::default();
    create(&options(&source, &target), &mut told).unwrap();
    for table in ["big", "whole"] {
        assert_eq!(rows(&source, table), rows(&target, table), "{table}");
    }
    target.run("CREATE EXTENSION pageinspect");
    on(&target, "CREATE EXTENSION pageinspect");
    // HEAP_XMIN_FROZEN
    let frozen = |table: &str| {
        let query = format!(
            "SELECT bool_and(t_infomask & 768 = 768) FROM heap_page_items(get_raw_page('{table}', 0))"
        );
        values(&target, &query)
    };
    assert_eq!(
        (frozen("whole"), frozen("big")),
        (vec!["t".to_owned()], vec!["f".to_owned()])
    );
    let mut state = state_of(&target);
    let big = &state.tables("r").unwrap()[0];
    assert_eq!((big.state, big.rows), (TableState::Copied, 100_000));
}

/// A commit that has emptied a table waits for the disk, whatever the session says.
#[test]
fn tables_of_some_size_are_frozen_several_in_a_transaction() {
    let (_lab, source, target) = pair(
        "DO $$BEGIN FOR i IN 1..40 LOOP
             EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, v text)', i);
             EXECUTE format('INSERT INTO t%s SELECT n, repeat(''v'', 500) FROM generate_series(1, 2500) n', i);
         END LOOP; END$$",
    );
    create(&options(&source, &target), &mut Told::default()).unwrap();
    let emptied = "SELECT count(DISTINCT xmin::text) FROM lockstep.table_copy";
    let transactions: u32 = values(&target, emptied)[0].parse().unwrap();
    assert!((2..=25).contains(&transactions), "{transactions}");
    // Only frozen pages are known to be visible to all: nothing has vacuumed these. From 16 on a table has
    // empty pages at its end, since it grows by several at a time.
    let whole = "SELECT count(*) FROM pg_class WHERE relname ~ '^t[0-9]+$' AND relallvisible > 100";
    assert_eq!(values(&target, whole), ["40"]);
    for table in ["t1", "t20", "t40"] {
        assert_eq!(rows(&source, table), rows(&target, table), "{table}");
    }
}

/// What the function sees when it is called for the rows of an index.
#[test]
fn objects_are_made_without_waiting_for_the_disk() {
    let (_lab, source, target) = pair(
        "CREATE FUNCTION seen(v int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$BEGIN
             RAISE LOG 'seen by % with %', current_setting('application_name'),
                 current_setting('synchronous_commit');
             RETURN v; END$$;
         CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE INDEX ON t (seen(id))",
    );
    create(&options(&source, &target), &mut Told::default()).unwrap();
    let log = target.log_since(0).unwrap();
    let seen: Vec<_> = log
        .lines()
        .filter_map(|it| Some(it.split_once("seen by ")?.1))
        .collect();
    assert!(seen.contains(&"lockstep restore with off"), "{seen:?}");
}

#[test]
fn an_error_in_a_copy_names_the_table_and_leaves_the_rest_to_be_resumed() {
    let (_lab, source, target) = pair(
        "CREATE FUNCTION fits(int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT true';
         CREATE TABLE t (a int PRIMARY KEY CHECK (public.fits(a)));
         INSERT INTO t SELECT generate_series(1, 100000); CREATE TABLE u (a int PRIMARY KEY)",
    );
    let options = options(&source, &target);
    let broken = conninfo(&target);
    let mut told = Told {
        at_phase: Some(Box::new(move |phase| {
            if phase == Phase::Copying {
                let mut session = lockstep_client::Connection::connect(
                    &broken,
                    lockstep_client::Purpose::Sql,
                    "lockstep test",
                )
                .unwrap();
                session
                    .execute(
                        "CREATE OR REPLACE FUNCTION public.fits(int) RETURNS bool IMMUTABLE
                         LANGUAGE sql AS 'SELECT $1 < 50000'",
                    )
                    .unwrap();
            }
        })),
        ..Told::default()
    };
    let error = create(&options, &mut told).unwrap_err().to_string();
    assert!(error.contains("table \"public.t\": target:"), "{error}");
    assert!(error.contains("violates check constraint"), "{error}");
    on(
        &target,
        "CREATE OR REPLACE FUNCTION public.fits(int) RETURNS bool IMMUTABLE
         LANGUAGE sql AS 'SELECT true'",
    );
    let mut told = Told::default();
    create(&options, &mut told).unwrap();
    assert_eq!(told.phases[0], (Phase::Copying, true));
    assert_eq!(rows(&source, "t"), rows(&target, "t"));
}

#[test]
fn no_table_is_rewritten_while_rows_are_copied() {
    let make = "CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 100)";
    let (_lab, source, target) = pair(make);
    let rewriting = conninfo(&source);
    let mut told = Told {
        at_phase: Some(Box::new(move |phase| {
            if phase == Phase::Copying {
                let purpose = lockstep_client::Purpose::Sql;
                let name = "lockstep test";
                let connected = lockstep_client::Connection::connect(&rewriting, purpose, name);
                let rewrite = "SET lock_timeout = 10; ALTER TABLE t ALTER a TYPE bigint";
                let refused = connected.unwrap().execute(rewrite).unwrap_err();
                assert!(refused.to_string().contains("lock timeout"), "{refused}");
            }
        })),
        ..Told::default()
    };
    create(&options(&source, &target), &mut told).unwrap();
    assert_eq!(rows(&target, "t"), rows(&source, "t"));
    on(&source, "ALTER TABLE t ALTER a TYPE bigint");
}

#[test]
fn of_two_creations_in_one_database_one_goes_on() {
    let (_lab, source, target) =
        pair("CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1)");
    let results = std::thread::scope(|scope| {
        let begun = ["one", "two"].map(|name| {
            let mut options = options(&source, &target);
            options.name = name.to_owned();
            scope.spawn(move || create(&options, &mut Told::default()).map(drop))
        });
        begun.map(|thread| thread.join().unwrap())
    });
    let errors: Vec<_> = results.iter().filter_map(|it| it.as_ref().err()).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    let words = errors[0].to_string();
    assert!(
        words.contains("has begun") || words.contains("not empty"),
        "{words}"
    );
    let mut state = state_of(&target);
    let replicas = state.replicas().unwrap();
    assert_eq!(replicas.len(), 1, "{replicas:?}");
    let slots = "SELECT slot_name FROM pg_replication_slots";
    assert_eq!(values(&source, slots), [&*replicas[0].slot]);
    assert_eq!(values(&target, "SELECT a FROM t"), ["1"]);
}

#[test]
fn a_drop_waits_for_what_is_in_use_and_can_be_repeated() {
    let (_lab, source, target) = copied("CREATE TABLE t (a int PRIMARY KEY)");
    let mut state = state_of(&target);
    let replica = state.replica("r").unwrap().unwrap();
    drop(state);
    // What a process has used that was killed: its slot and its origin.
    let streaming = Connection::connect(&conninfo(&source), Purpose::Replication, "test");
    let streams = [
        ("proto_version", "1".to_owned()),
        ("publication_names", format!("\"{}\"", replica.publication)),
    ];
    let stream = (streaming.unwrap()).start(&replica.slot, lockstep_wire::Lsn::INVALID, &streams);
    let stream = stream.unwrap();
    let mut origin = sql(&target);
    let name = format!("{}_0", replica.origin);
    let take = format!(
        "SELECT pg_replication_origin_create('{name}'); \
         SELECT pg_replication_origin_session_setup('{name}')"
    );
    origin.execute(&take).unwrap();
    let failed = std::thread::scope(|scope| {
        let to = conninfo(&target);
        let dropping = scope.spawn(move || remove("r", &to, None));
        let asking = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'lockstep replica' \
                      AND query LIKE '%pg_drop_replication_slot%'";
        until("that the slot is to be dropped", || {
            !values(&source, asking).is_empty() || dropping.is_finished()
        });
        drop(stream);
        dropping.join().unwrap()
    });
    let words = failed.unwrap_err().to_string();
    assert_has!(words, "target:", "in use");
    assert!(values(&source, "SELECT slot_name FROM pg_replication_slots").is_empty());
    drop(origin);
    remove("r", &conninfo(&target), None).unwrap();
    assert!(values(&target, "SELECT roname FROM pg_replication_origin").is_empty());
}
