//! Changes of the source's schema that a replica follows (`--ddl`).

use std::path::PathBuf;
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use lockstep_apply::{Control, SpoolConfig, Writers};
use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{major, source_major};
use lockstep_lab::server::Server;
use lockstep_replica::error::ReplicaError;
use lockstep_replica::lifecycle::create::{CreateOptions, create};
use lockstep_replica::lifecycle::follow::{Following, follow};
use lockstep_replica::lifecycle::remove::{left_on_source, remove};
use lockstep_replica::names::Excluded;
use lockstep_replica::publication::subset::gather;
use lockstep_replica::state::{MadeByHand, Phase};
use lockstep_replica::verify::named::replica as verify;

use crate::apply_lab::{LONG, until};
use crate::{Told, conninfo, on, options, pair, sql, state_of, to_verify, values};

/// All that is asked of both sides: columns with their defaults, and what the server says of objects.
const SHAPE: &str = "
WITH c AS (SELECT c.*, format('%I.%I', n.nspname, c.relname) AS name FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname NOT IN ('information_schema', 'lockstep'))
SELECT concat_ws(' ', name, relkind, relpersistence, relreplident, pg_get_userbyid(relowner), relacl,
    obj_description(oid, 'pg_class')) FROM c
UNION ALL SELECT concat_ws(' ', c.name, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
    a.attgenerated, a.attidentity, pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum))
    FROM c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'c')
UNION ALL SELECT pg_get_indexdef(oid) FROM c WHERE relkind IN ('i', 'I')
UNION ALL SELECT name || ' ' || pg_get_viewdef(oid) FROM c WHERE relkind IN ('v', 'm')
UNION ALL SELECT c.name || ' ' || pg_get_constraintdef(k.oid) FROM pg_constraint k JOIN c ON c.oid = k.conrelid
UNION ALL SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN c ON c.oid = t.tgrelid WHERE NOT tgisinternal
UNION ALL SELECT c.name || ' ' || pg_get_partition_constraintdef(c.oid) FROM c WHERE relispartition
UNION ALL SELECT concat_ws(' ', c.name, p.polname, pg_get_expr(p.polqual, p.polrelid)) FROM pg_policy p
    JOIN c ON c.oid = p.polrelid
UNION ALL SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = 'public' AND prokind = 'f'
UNION ALL SELECT format('%s %s %s', t.typname, t.typtype, (SELECT string_agg(enumlabel, ',' ORDER BY enumsortorder)
    FROM pg_enum WHERE enumtypid = t.oid)) FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
    WHERE n.nspname = 'public' AND typtype IN ('e', 'd')
UNION ALL SELECT extname FROM pg_extension
ORDER BY 1";

/// [`SHAPE`], as far as servers of different majors say the same of the same objects: not how they write a
/// view, not the privilege that 17 has added (`m`), not that 18 has constraints for NOT NULL, and not the
/// functions of an extension, which has another version.
fn shape() -> String {
    if source_major().unwrap() == major().unwrap() {
        return SHAPE.to_owned();
    }
    let alike = [
        ("' ' || pg_get_viewdef(oid)", "' is a view'"),
        ("relacl,", "translate(relacl::text, 'm', ''),"),
        (
            "prokind = 'f'",
            "prokind = 'f' AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.objid = p.oid \
             AND e.classid = 'pg_proc'::regclass AND e.deptype = 'e')",
        ),
        (
            "c.oid = k.conrelid",
            "c.oid = k.conrelid AND contype <> 'n'",
        ),
    ];
    alike.iter().fold(SHAPE.to_owned(), |shape, (own, alike)| {
        assert!(shape.contains(own), "{own}");
        shape.replace(own, alike)
    })
}

/// Users' tables that the state lists, each with the number of its rows on both sides.
const TABLES: &str =
    "SELECT format('%I.%I', schema_name, table_name) FROM lockstep.table_copy ORDER BY 1";

/// A source, a target that follows it, and the process that applies.
pub struct Scene {
    pub source: Server,
    pub target: Server,
    pub control: Control,
    thread: Option<JoinHandle<Result<(), ReplicaError>>>,
    spool: Option<PathBuf>,
    pub writers: Writers,
    // Last: it ends what still runs.
    _lab: Lab,
}

impl Scene {
    /// A scene with replica r of a source that has this schema.
    pub fn new(schema: &str) -> Self {
        Self::with(schema, |_| {})
    }

    fn with(schema: &str, wants: impl FnOnce(&mut CreateOptions)) -> Self {
        Self::created(pair(schema), wants, &mut Told::default())
    }

    /// A scene whose copy is watched by `told`.
    fn created(
        (lab, source, target): (Lab, Server, Server),
        wants: impl FnOnce(&mut CreateOptions),
        told: &mut Told,
    ) -> Self {
        let mut options = CreateOptions {
            ddl: true,
            ..options(&source, &target)
        };
        wants(&mut options);
        assert_eq!(create(&options, told).unwrap().unmade, []);
        let spool = (!options.frequency.is_zero()).then(|| lab.folder().join("spool"));
        let mut scene = Self {
            source,
            target,
            control: Control::default(),
            thread: None,
            spool,
            writers: 1.into(),
            _lab: lab,
        };
        scene.start();
        scene
    }

    pub fn start(&mut self) {
        let what = Following {
            writers: self.writers,
            spool: self.spool.clone().map(|folder| SpoolConfig {
                folder,
                limit: 1 << 30,
            }),
            ..crate::following(&conninfo(&self.target))
        };
        self.control = Control::default();
        let control = self.control.clone();
        self.thread = Some(spawn(move || follow(&what, &control)));
    }

    pub fn stop(&mut self) {
        self.control.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }

    pub fn run(&self, statements: &str) {
        on(&self.source, statements);
    }

    /// Waits until the target has all that is committed on the source now.
    pub fn catch_up(&self) {
        let end = self.source.flush_lsn().unwrap();
        until("that all is applied", || {
            let stats = self.control.stats();
            assert!(stats.phase != lockstep_apply::Phase::Blocked, "{stats:?}");
            assert!(stats.phase != lockstep_apply::Phase::Stopped, "{stats:?}");
            stats.applied >= end
        });
    }

    pub fn blocked(&self) -> String {
        let is_blocked =
            |stats: &lockstep_apply::Stats| stats.phase == lockstep_apply::Phase::Blocked;
        assert!(
            self.control.wait_for(LONG, is_blocked),
            "{:?}",
            self.control.stats()
        );
        self.control.stats().error.unwrap()
    }

    /// Goes on after the command that an error names was made on the target by hand.
    pub fn made_by_hand(&self, error: &str) {
        let at = position(error).parse().unwrap();
        let mut state = state_of(&self.target);
        assert_eq!(state.set_made_by_hand("r", at).unwrap(), MadeByHand::Kept);
        state.set_paused("r", false).unwrap();
        until("that it goes on", || {
            self.control.stats().error.as_deref() != Some(error)
        });
    }

    /// Both sides have the same objects, and the same rows in all tables that the replica lists.
    pub fn assert_same(&self) {
        self.catch_up();
        let shape = shape();
        assert_eq!(values(&self.source, &shape), values(&self.target, &shape));
        let tables = values(&self.target, TABLES);
        let of_source = "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c \
             JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND c.relpersistence = 'p' \
             AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname NOT IN ('information_schema', 'lockstep') \
             AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_class'::regclass \
                 AND e.objid = c.oid AND e.deptype = 'e') ORDER BY 1";
        assert_eq!(values(&self.source, of_source), tables);
        for table in tables {
            let rows = format!("SELECT t::text FROM {table} t ORDER BY 1");
            assert_eq!(
                values(&self.source, &rows),
                values(&self.target, &rows),
                "{table}"
            );
        }
        let missing = "SELECT sum(missing_rows)::text FROM lockstep.table_copy";
        assert_eq!(values(&self.target, missing), ["0"]);
    }
}

/// The position of the command that an error names.
pub fn position(error: &str) -> String {
    let at = error.split("position is ").nth(1).unwrap();
    let mut at = at.split(|c: char| !(c.is_ascii_hexdigit() || c == '/'));
    at.next().unwrap().to_owned()
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.control.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Changes of the schema and of rows in one transaction.
const MIXED: &str = "BEGIN; INSERT INTO t VALUES (2, 'before'); ALTER TABLE t ADD n int DEFAULT 7; \
    INSERT INTO t VALUES (3, 'after', 8); CREATE TABLE u (id int PRIMARY KEY, v text); \
    INSERT INTO u VALUES (1, 'new'); ALTER TABLE u RENAME TO w; INSERT INTO w VALUES (2, 'renamed'); \
    UPDATE t SET n = n + 1; CREATE TABLE u (a int); INSERT INTO u VALUES (5); DROP TABLE u; \
    ALTER TABLE t RENAME v TO word; UPDATE t SET word = 'x' WHERE id = 1; COMMIT";

#[test]
fn a_command_is_made_at_its_place_among_the_rows() {
    let scene =
        Scene::new("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'old')");
    scene.run(MIXED);
    scene.run("INSERT INTO w VALUES (9, 'later'); DELETE FROM t WHERE id = 2");
    scene.assert_same();
    // A transaction of which a part is rolled back, and which drops what the copy has made.
    let mut session = sql(&scene.source);
    for statement in [
        "BEGIN",
        "DROP TABLE w",
        "SAVEPOINT s",
        "DROP TABLE t",
        "ROLLBACK TO s",
        "CREATE TABLE w (b int)",
        "COMMIT",
        "INSERT INTO w VALUES (1)",
        "UPDATE w SET b = 2",
        "TRUNCATE t",
        "INSERT INTO t VALUES (1)",
    ] {
        session.execute(statement).unwrap();
    }
    scene.assert_same();
    // Names that change places.
    scene.run("BEGIN; ALTER TABLE t RENAME TO x; ALTER TABLE w RENAME TO t; ALTER TABLE x RENAME TO w; COMMIT");
    scene.run("INSERT INTO t VALUES (77); INSERT INTO w VALUES (88)");
    scene.run(
        "CREATE SCHEMA s; ALTER TABLE t SET SCHEMA s; INSERT INTO s.t VALUES (78); \
               ALTER SCHEMA s RENAME TO s2",
    );
    scene.run("INSERT INTO s2.t VALUES (79)");
    scene.assert_same();
    let verified = verify(&to_verify(conninfo(&scene.target)), &mut |_| {});
    assert!(
        verified.as_ref().is_ok_and(|report| report.is_equal()),
        "{verified:?}"
    );
    let doubted = "SELECT count(*) FROM lockstep.table_copy WHERE doubt IS NOT NULL";
    assert_eq!(values(&scene.target, doubted), ["0"]);
}

#[test]
fn several_statements_functions_and_blocks_are_told_apart() {
    let scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY)");
    // One query with several statements, some of which make nothing.
    scene.run(
        "CREATE TABLE a (x int); INSERT INTO a VALUES (1); CREATE TABLE IF NOT EXISTS a (y int); \
         CREATE TEMP TABLE b (x int); CREATE TABLE \"b;\" (x int PRIMARY KEY, \"ü\" text DEFAULT ';'); \
         INSERT INTO \"b;\" VALUES (1); DROP TABLE IF EXISTS nothing; DROP TABLE b; \
         COMMENT ON TABLE a IS 'it''s; \"\nPL/pgSQL function'",
    );
    scene.run(
        "DO $$ BEGIN CREATE TABLE c (x int); INSERT INTO c VALUES (1); \
         EXECUTE 'ALTER TABLE c ADD y int; COMMENT ON TABLE c IS ''in a block'''; \
         FOR i IN 1..3 LOOP EXECUTE format('CREATE TABLE c%s (x int)', i); END LOOP; END $$",
    );
    scene.run(
        "CREATE FUNCTION make(name text) RETURNS void LANGUAGE plpgsql SET search_path = pg_temp AS $$ \
         BEGIN EXECUTE format('CREATE TABLE public.%I (x int); COMMENT ON TABLE public.%I IS %L', \
         name, name, name); END $$; SELECT make('d'); CREATE TABLE e (z int)",
    );
    // An extended query, under a search path of its own.
    let mut session = sql(&scene.source);
    session
        .execute("CREATE SCHEMA other; SET search_path = other, public")
        .unwrap();
    session
        .query_with("CREATE TABLE inside (x int)", &[])
        .unwrap();
    session
        .execute("SET lc_messages = 'C'; SET standard_conforming_strings = off")
        .unwrap();
    session
        .query_with("COMMENT ON TABLE inside IS 'a\\'b'", &[])
        .unwrap();
    scene.assert_same();
}

const OBJECTS: [&str; 33] = [
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "ALTER TYPE mood ADD VALUE 'glad' AFTER 'ok'",
    "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
    "CREATE SEQUENCE counter START 7",
    "CREATE TABLE people (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, m mood, p positive, \
     n int GENERATED ALWAYS AS (p * 2) STORED)",
    "INSERT INTO people (m, p) VALUES ('glad', 3), ('sad', 4)",
    "CREATE VIEW glad AS SELECT id, n FROM people WHERE m = 'glad'",
    "CREATE MATERIALIZED VIEW sums AS SELECT sum(n) FROM people",
    "REFRESH MATERIALIZED VIEW sums",
    "CREATE UNIQUE INDEX ON sums (sum)",
    "REFRESH MATERIALIZED VIEW CONCURRENTLY sums",
    "CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE RETURN $1 * 2",
    "CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.p := NEW.p + 1; RETURN NEW; END $$",
    "CREATE TRIGGER noted BEFORE UPDATE ON people FOR EACH ROW EXECUTE FUNCTION noted()",
    "UPDATE people SET m = 'ok' WHERE m = 'sad'",
    "CREATE INDEX CONCURRENTLY by_mood ON people (m, twice(p))",
    "DROP INDEX CONCURRENTLY by_mood",
    "CREATE UNIQUE INDEX by_n ON people (n)",
    "ALTER TABLE people ADD CONSTRAINT few CHECK (n < 1000) NOT VALID",
    "ALTER TABLE people VALIDATE CONSTRAINT few",
    "CREATE POLICY own ON people USING (id > 0)",
    "ALTER TABLE people ENABLE ROW LEVEL SECURITY",
    "GRANT SELECT (id), UPDATE ON people TO app",
    "ALTER TABLE people OWNER TO app",
    "COMMENT ON COLUMN people.m IS 'how they are'",
    "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE parts_2 (id int PRIMARY KEY, v text)",
    "INSERT INTO parts_2 VALUES (11, 'before')",
    "ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (10) TO (20)",
    "INSERT INTO parts VALUES (1, 'one'), (12, 'two')",
    "ALTER TABLE parts DETACH PARTITION parts_1 CONCURRENTLY",
    // With CONCURRENTLY the server adds this.
    "ALTER TABLE parts_1 DROP CONSTRAINT IF EXISTS parts_1_id_check",
];

#[test]
fn objects_of_all_kinds_go_along() {
    let scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY)");
    for server in [&scene.source, &scene.target] {
        server.execute("CREATE ROLE app").unwrap();
    }
    let mut session = sql(&scene.source);
    for statement in OBJECTS {
        session.execute(statement).unwrap();
    }
    session
        .execute("CREATE STATISTICS st ON m, p FROM people; ALTER SEQUENCE counter INCREMENT 3")
        .unwrap();
    session
        .execute("INSERT INTO parts_1 VALUES (2, 'detached')")
        .unwrap();
    session.execute("CREATE EXTENSION pg_freespacemap").unwrap();
    session.execute("SET ROLE app").unwrap();
    session
        .execute("ALTER TABLE people ADD by_owner text DEFAULT 'x'")
        .unwrap();
    scene.assert_same();
    let refreshed = "SELECT sum FROM sums";
    assert_eq!(
        values(&scene.source, refreshed),
        values(&scene.target, refreshed)
    );
    session.execute("RESET ROLE; DROP TABLE people CASCADE; DROP TYPE mood; DROP EXTENSION pg_freespacemap; \
        DROP TABLE parts; DROP OWNED BY app; ALTER TABLE parts_1 ALTER id TYPE bigint").unwrap();
    scene.assert_same();
    let kept = "SELECT count(*) FROM pg_class WHERE relname IN ('sums', 'glad', 'people')";
    assert_eq!(values(&scene.target, kept), ["0"]);
}

#[test]
fn a_default_of_the_moment_is_the_sources() {
    let scene = Scene::new(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, '02.01.2026 03:04'), (2, '06.05.2026'); \
         CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE p1 PARTITION OF p DEFAULT; \
         INSERT INTO p VALUES (1)",
    );
    scene.run("ALTER TABLE t ADD made timestamptz NOT NULL DEFAULT now(), ADD const int DEFAULT 4");
    scene
        .run("ALTER TABLE p ADD made timestamptz DEFAULT now(), ADD who text DEFAULT current_user");
    scene.run("INSERT INTO t VALUES (3, '1.1.2026'); INSERT INTO p VALUES (2)");
    scene.run("ALTER TABLE t ADD twice int GENERATED ALWAYS AS (id * 2) STORED");
    // Settings of the source's session say what values become.
    scene.run(
        "SET bytea_output = 'escape'; SET extra_float_digits = 0; \
               CREATE TABLE s (id int PRIMARY KEY, b bytea, f float8, n int); \
               INSERT INTO s VALUES (1, '\\x0102ff', 0.1::float8 + 0.2, 3); \
               ALTER TABLE s ALTER b TYPE text USING b::text, ALTER f TYPE text, ALTER n TYPE bigint USING n * 2",
    );
    // What is computed alike everywhere goes on, and so do constants of domains and arrays.
    scene.run(
        "CREATE TABLE j (id int PRIMARY KEY, a json, b text, c text); \
         INSERT INTO j VALUES (1, '{\"a\": 1}', '[2]', 'x'); \
         ALTER TABLE j ALTER a TYPE jsonb USING a::jsonb, ALTER b TYPE jsonb USING b::jsonb, \
             ALTER c TYPE bytea USING c::character varying::bytea; \
         CREATE DOMAIN above AS int CHECK (VALUE > 0); \
         ALTER TABLE j ADD d above DEFAULT 1, ADD e int[] DEFAULT ARRAY[1, 2]",
    );
    scene.assert_same();
}

#[test]
fn create_table_as_is_a_table_and_its_rows() {
    let scene = Scene::new(
        "CREATE TABLE t (id int PRIMARY KEY, v text COLLATE \"C\"); \
        INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 500) g",
    );
    scene.run("BEGIN; CREATE TABLE a AS SELECT id, v, random() AS r FROM t; UPDATE a SET v = 'x' WHERE id = 1; \
               SELECT id + 1 AS n INTO b FROM t LIMIT 3; CREATE TABLE c AS TABLE t WITH NO DATA; COMMIT");
    scene.run(
        "DO $$ BEGIN CREATE TABLE d AS SELECT clock_timestamp() AS at; END $$; \
               CREATE UNLOGGED TABLE e AS SELECT 1 AS n; CREATE TEMP TABLE f AS TABLE t",
    );
    // A table without a key takes updates and deletes all the same.
    scene.run("DELETE FROM b WHERE n = 2; UPDATE b SET n = n + 10; DELETE FROM a WHERE id > 400");
    scene.run("ALTER TABLE a ADD PRIMARY KEY (id); UPDATE a SET v = 'y' WHERE id = 7");
    scene.catch_up();
    let unlogged = "SELECT relpersistence FROM pg_class WHERE relname = 'e'";
    assert_eq!(values(&scene.target, unlogged), ["u"]);
    scene.assert_same();
    let left = "SELECT count(*) FROM pg_class WHERE relname LIKE 'rows\\_%'";
    assert_eq!(values(&scene.source, left), ["0"]);
}

#[test]
fn what_cannot_be_repeated_stops_with_words_and_can_be_made_by_hand() {
    let scene = Scene::new(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE r (id int REFERENCES t); INSERT INTO t VALUES (1), (2)",
    );
    scene
        .run("INSERT INTO t VALUES (3); ALTER TABLE t ADD n serial; INSERT INTO t (id) VALUES (4)");
    let error = scene.blocked();
    for words in [
        "ALTER TABLE t ADD n serial",
        "another value in each row",
        "--made-by-hand",
    ] {
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(
        values(&scene.target, "SELECT count(*) FROM t"),
        ["2"],
        "nothing of its transaction"
    );
    let values_of =
        "SELECT format('UPDATE t SET n = %s WHERE id = %s;', n, id) FROM t WHERE id < 4";
    let mut made = vec!["BEGIN; INSERT INTO t VALUES (3); ALTER TABLE t ADD n serial;".to_owned()];
    made.extend(values(&scene.source, values_of));
    // The row of the command's transaction is the replica's.
    made.push("DELETE FROM t WHERE id = 3; COMMIT".to_owned());
    on(&scene.target, &made.concat());
    scene.made_by_hand(&error);
    scene.catch_up();
    scene.run(
        "CREATE FUNCTION later() RETURNS void LANGUAGE sql AS 'CREATE TABLE l (a int)'; \
               SET check_function_bodies = off; SELECT later()",
    );
    let error = scene.blocked();
    assert_has!(error, "function that does not tell its text");
    on(
        &scene.target,
        "CREATE TABLE l (a int); ALTER TABLE l REPLICA IDENTITY FULL",
    );
    scene.made_by_hand(&error);
    scene.run("INSERT INTO l VALUES (1)");
    scene.catch_up();
    scene.run("ALTER TABLE t ALTER n TYPE float8 USING n + random()");
    assert_has!(scene.blocked(), "anew with random");
}

#[test]
fn a_role_that_the_target_lacks_is_named() {
    let scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY)");
    scene.source.execute("CREATE ROLE \"some one\"").unwrap();
    scene.run("GRANT ALL ON SCHEMA public TO PUBLIC");
    scene.catch_up();
    scene.run("SET ROLE \"some one\"; CREATE TABLE mine (id int PRIMARY KEY); INSERT INTO mine VALUES (1)");
    let error = scene.blocked();
    assert_has!(error, "the target has no role \"some one\"");
    scene.target.execute("CREATE ROLE \"some one\"").unwrap();
    state_of(&scene.target).set_paused("r", false).unwrap();
    until("that it goes on", || {
        scene.control.stats().phase == lockstep_apply::Phase::Applying
    });
    scene.assert_same();
}

#[test]
fn messages_of_others_are_no_commands() {
    let scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY)");
    scene.source.execute("CREATE ROLE evil LOGIN").unwrap();
    let mut evil = {
        let conninfo = Conninfo::parse(&scene.source.conninfo("evil")).unwrap();
        Connection::connect(
            &conninfo.with_database("copy").unwrap(),
            Purpose::Sql,
            "evil",
        )
        .unwrap()
    };
    let publication = &values(&scene.target, "SELECT publication FROM lockstep.replica")[0];
    let forged = format!(
        "SELECT pg_logical_emit_message(true, 'lockstep.ddl', repeat('0', 64) || json_build_object( \
         'replica', '{publication}', 'xid', pg_current_xact_id()::text::int8, 'tag', 'DROP TABLE', \
         'query', 'DROP TABLE t', 'role', 'postgres')::text)"
    );
    evil.execute(&forged).unwrap();
    assert!(
        evil.execute(&format!("TABLE lockstep.{publication}_key"))
            .is_err()
    );
    // A message of an event trigger that somebody writes again.
    scene.run("CREATE TABLE u (id int PRIMARY KEY)");
    scene.run("INSERT INTO t VALUES (1)");
    scene.assert_same();
    let key = "SELECT has_table_privilege('pg_monitor', 'lockstep.ddl', 'SELECT')";
    assert_eq!(values(&scene.target, key), ["f"]);
}

#[test]
fn what_is_left_out_stays_out() {
    let scene = Scene::with(
        "CREATE SCHEMA out; CREATE TABLE out.t (id int); CREATE TABLE t (id int PRIMARY KEY); \
         CREATE TABLE apart (id int PRIMARY KEY)",
        |options| {
            options.excluded = Excluded {
                schemas: vec!["out".to_owned()],
                tables: vec!["public.apart".to_owned()],
            };
        },
    );
    scene.run(
        "CREATE TABLE out.u (id serial PRIMARY KEY, v text); CREATE INDEX ON out.u (v); \
         COMMENT ON TABLE out.u IS 'x'; ALTER TABLE apart ADD n serial; CREATE INDEX i ON apart (n); \
         DROP INDEX out.u_v_idx; DROP TABLE out.u; CREATE TEMP TABLE tmp (id serial PRIMARY KEY); \
         CREATE INDEX ON tmp (id); ALTER TABLE tmp ADD x int; DROP TABLE tmp; \
         CREATE TRIGGER trg BEFORE UPDATE ON apart FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger(); \
         CREATE TABLE kept (id int PRIMARY KEY); INSERT INTO kept VALUES (1)",
    );
    scene.catch_up();
    assert_eq!(values(&scene.target, TABLES), ["public.kept", "public.t"]);
    let others = "SELECT count(*) FROM pg_class WHERE relname IN ('u', 'apart', 'i', 'tmp')";
    assert_eq!(values(&scene.target, others), ["0"]);
    scene.run("DROP TABLE apart; DROP SCHEMA out CASCADE; INSERT INTO kept VALUES (2)");
    scene.catch_up();
    assert_eq!(values(&scene.target, "SELECT count(*) FROM kept"), ["2"]);
}

#[test]
fn a_command_waits_for_locks_and_is_made_once() {
    let mut scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)");
    scene.stop();
    scene.writers = 3.into();
    scene.start();
    let mut reader = sql(&scene.target);
    reader.execute("BEGIN; SELECT FROM t").unwrap();
    scene.run("INSERT INTO t VALUES (2); ALTER TABLE t ADD v text DEFAULT 'd'; INSERT INTO t VALUES (3, 'e')");
    scene.run("INSERT INTO t VALUES (4)");
    let waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = 't'::regclass";
    until("that it waits", || values(&scene.target, waits) == ["t"]);
    // The process ends meanwhile, and another begins.
    scene.stop();
    scene.start();
    until("that it waits again", || {
        values(&scene.target, waits) == ["t"]
    });
    reader.execute("COMMIT").unwrap();
    scene.assert_same();
    // Many writers before and after a command.
    for round in 0..5 {
        for part in 0..20 {
            let first = 100 + round * 1_000 + part * 10;
            scene.run(&format!(
                "INSERT INTO t (id) SELECT generate_series({first}, {first} + 9)"
            ));
        }
        scene.run(&format!("ALTER TABLE t ADD c{round} int DEFAULT {round}; UPDATE t SET c{round} = 9 WHERE id % 7 = 0"));
    }
    scene.assert_same();
}

#[test]
fn cycles_make_commands_in_their_order() {
    let scene = Scene::with(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)",
        |options| options.frequency = Duration::from_secs(1),
    );
    for round in 0..4 {
        scene.run(&format!(
            "INSERT INTO t VALUES ({round} + 10); CREATE TABLE n{round} (id int PRIMARY KEY); \
             INSERT INTO n{round} VALUES (1)"
        ));
        scene.run(&format!(
            "ALTER TABLE n{round} ADD v text; INSERT INTO n{round} VALUES (2, 'x')"
        ));
        scene.run(&format!(
            "DROP TABLE n{round}; CREATE TABLE n{round} (v text); INSERT INTO n{round} VALUES ('y')"
        ));
    }
    scene.assert_same();
}

#[test]
fn a_drop_takes_the_event_triggers_away_and_nothing_of_a_user_breaks() {
    let mut scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY)");
    let publication = values(&scene.target, "SELECT publication FROM lockstep.replica").remove(0);
    // What goes wrong in our trigger is told, and the user's command goes on.
    let full = format!("lockstep.{publication}_full");
    scene.run(&format!("ALTER TABLE {full} RENAME TO other"));
    scene.run("CREATE TABLE u (id int)");
    scene.run(&format!(
        "ALTER TABLE lockstep.other RENAME TO {publication}_full"
    ));
    let error = scene.blocked();
    assert!(error.contains("could not say what it does"), "{error}");
    assert_eq!(values(&scene.source, "SELECT count(*) FROM u"), ["0"]);
    scene.stop();
    let replica = state_of(&scene.target).replica("r").unwrap().unwrap();
    assert_has!(
        left_on_source(&replica).unwrap().concat(),
        "DROP EVENT TRIGGER"
    );
    remove("r", &conninfo(&scene.target), None).unwrap();
    let left = "SELECT count(*) FROM pg_event_trigger UNION ALL SELECT count(*) FROM pg_proc p \
        JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'lockstep' UNION ALL \
        SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
        WHERE n.nspname = 'lockstep'";
    assert_eq!(values(&scene.source, left), ["0", "0", "0"]);
    scene.run("CREATE TABLE v (id int PRIMARY KEY)");
}

#[test]
fn a_replica_of_a_source_that_has_one_copies_no_event_trigger() {
    let scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)");
    scene.target.execute("CREATE DATABASE second").unwrap();
    let target = conninfo(&scene.target).with_database("second").unwrap();
    let options = CreateOptions {
        name: "second".to_owned(),
        target: target.clone(),
        ddl: true,
        ..options(&scene.source, &scene.target)
    };
    let created = create(&options, &mut Told::default()).unwrap();
    assert_eq!(created.unmade, []);
    let count = |query: &str| scene.target.rows_in("second", query).unwrap()[0][0].clone();
    assert_eq!(
        count("SELECT count(*) FROM pg_event_trigger").as_deref(),
        Some("0")
    );
    // Both follow the same commands.
    let control = Control::default();
    let given = control.clone();
    let what = Following {
        name: "second".to_owned(),
        ..crate::following(&target)
    };
    let thread = spawn(move || follow(&what, &given));
    scene.run(
        "CREATE TABLE u AS SELECT * FROM t; ALTER TABLE t ADD v int; INSERT INTO t VALUES (2, 3)",
    );
    scene.assert_same();
    let end = scene.source.flush_lsn().unwrap();
    assert!(
        control.wait_for(LONG, |stats| stats.applied >= end),
        "{:?}",
        control.stats()
    );
    assert_eq!(
        count("SELECT string_agg(t::text, ' ' ORDER BY id) FROM t").as_deref(),
        Some("(1,) (2,3)")
    );
    assert_eq!(count("SELECT count(*) FROM u").as_deref(), Some("1"));
    control.stop();
    thread.join().unwrap().unwrap();
}

#[test]
fn what_changes_while_the_copy_is_made_comes_after_it() {
    let schema = "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT g, g FROM generate_series(1, 99) g; \
        CREATE INDEX old ON t (v)";
    let servers = pair(schema);
    let mut session = sql(&servers.1);
    let at_phase = move |phase| {
        let changes = match phase {
            Phase::Copying => {
                "CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1); CREATE INDEX new ON t (v)"
            }
            Phase::Indexing => "DROP INDEX old; ALTER TABLE t ADD w int DEFAULT 3",
            Phase::Finishing => "INSERT INTO t VALUES (100, 'x', 4); CREATE VIEW v AS TABLE t",
            _ => return,
        };
        session.execute(changes).unwrap();
    };
    let mut told = Told {
        at_phase: Some(Box::new(at_phase)),
        ..Told::default()
    };
    Scene::created(servers, |_| {}, &mut told).assert_same();
}

#[test]
fn what_does_not_go_together_is_refused() {
    let (_lab, source, target) = pair("CREATE TABLE t (id int PRIMARY KEY)");
    let with = |change: fn(&mut CreateOptions)| {
        let mut options = CreateOptions {
            ddl: true,
            ..options(&source, &target)
        };
        change(&mut options);
        let mut told = Told::default();
        let error = create(&options, &mut told).unwrap_err().to_string();
        let found = told.findings.iter().map(|one| one.says.clone());
        found.chain([error]).collect::<Vec<_>>().join("\n")
    };
    let error = with(|options| {
        options.subsets = gather(&["public.t=id > 1".to_owned()], &[]).unwrap();
    });
    assert!(error.contains("--ddl does not go with --where"), "{error}");
    let plain = "CREATE ROLE plain LOGIN REPLICATION; GRANT CREATE ON DATABASE copy TO plain";
    source.execute(plain).unwrap();
    let error = with(|options| {
        options.source = options.source.clone().with("user", "plain").unwrap();
    });
    assert!(error.contains("\"plain\" is no superuser"), "{error}");
    target.execute("CREATE ROLE plain").unwrap();
    on(&source, "CREATE SCHEMA lockstep AUTHORIZATION plain");
    let error = with(|_| {});
    assert_has!(
        error,
        "schema lockstep belongs to role \"plain\"",
        "its database lacks rights that the source's has",
    );
    target
        .execute("GRANT CREATE ON DATABASE copy TO plain")
        .unwrap();
    let granted = with(|_| {});
    assert!(!granted.contains("lacks rights"), "{granted}");
    assert_eq!(
        values(&source, "SELECT count(*) FROM pg_event_trigger"),
        ["0"]
    );
}
