//! What a replica that follows changes of the schema does not guess at, and what does not get past it.

use lockstep_apply::Phase;
use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::assert_has;
use lockstep_replica::lifecycle::create::{CreateOptions, create};
use lockstep_replica::lifecycle::promote::promote;
use lockstep_replica::lifecycle::remove::remove;
use lockstep_replica::state::MadeByHand;
use lockstep_replica::status::source::Source;
use lockstep_wire::Lsn;

use crate::apply_lab::{catch_up, until, while_following};
use crate::ddl::{Scene, position};
use crate::{Told, conninfo, following, on, options, pair, sql, state_of, to_promote, values};

/// The replica stops at a command, with all of these words.
fn stops(schema: &str, command: &str, words: &[&str]) {
    let scene = Scene::new(schema);
    scene.run(command);
    let error = scene.blocked();
    for words in words {
        assert!(error.contains(words), "{command}: {error}");
    }
}

#[test]
fn rows_that_are_computed_anew_from_more_than_themselves_stop_it() {
    let schema = "CREATE TABLE t (id int PRIMARY KEY, v text, at timestamp); INSERT INTO t VALUES (1, 'now', '2026-1-1'); \
                  CREATE FUNCTION ff(text) RETURNS text LANGUAGE plpgsql STABLE AS 'BEGIN RETURN now()::text; END'; \
                  CREATE FUNCTION add(int, int) RETURNS int STABLE RETURN $1 + $2; \
                  CREATE OPERATOR +% (FUNCTION = add, LEFTARG = int, RIGHTARG = int); \
                  CREATE TYPE own AS (a int); CREATE FUNCTION to_own(int) RETURNS own STABLE RETURN row($1); \
                  CREATE CAST (int AS own) WITH FUNCTION to_own(int) AS IMPLICIT; \
                  CREATE DOMAIN dts AS timestamptz DEFAULT now() CHECK (value IS NOT NULL)";
    for (command, words) in [
        (
            "ALTER TABLE t ADD c timestamptz DEFAULT now(), ALTER id TYPE bigint",
            "a default that is not a constant",
        ),
        ("ALTER TABLE t ADD c dts", "column \"c\""),
        (
            "ALTER TABLE t ALTER v TYPE timestamptz USING v::timestamptz",
            "anew with timestamptz",
        ),
        (
            "ALTER TABLE t ALTER v TYPE text USING ff(v)",
            "anew with ff",
        ),
        ("ALTER TABLE t ALTER at TYPE timestamptz", "column \"at\""),
        (
            "ALTER TABLE t ALTER id TYPE bigint USING id +% id, DROP v",
            "anew with +%",
        ),
    ] {
        stops(schema, command, &[words, "--made-by-hand"]);
    }
    // What is not computed with does not matter.
    let scene = Scene::new(schema);
    scene.run("ALTER TABLE t ALTER id TYPE bigint USING id * 2, DROP v");
    scene.assert_same();
}

#[test]
fn nothing_that_a_user_may_write_silences_it() {
    let scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY)");
    scene
        .source
        .execute("CREATE ROLE alice LOGIN")
        .and_then(|()| scene.target.execute("CREATE ROLE alice"))
        .unwrap();
    scene.run("GRANT ALL ON SCHEMA public TO alice");
    let conninfo = Conninfo::parse(&scene.source.conninfo("alice")).unwrap();
    let conninfo = conninfo.with_database("copy").unwrap();
    let mut alice = Connection::connect(&conninfo, Purpose::Sql, "lockstep replica").unwrap();
    alice.execute("CREATE TABLE hidden (id int)").unwrap();
    assert!(
        alice
            .execute("SET backtrace_functions = 'lockstep_ddl'")
            .is_err()
    );
    scene.run(
        "DO $$ BEGIN EXECUTE E'CREATE TABLE hidden2 (a int) /*\\nPL/pgSQL function lockstep.a() line 1 at x */'; END $$",
    );
    scene.run("SET standard_conforming_strings = off; CREATE TABLE no_key (a int); INSERT INTO no_key VALUES (1)");
    scene.run("SELECT set_config('lockstep_ddl.' || pubname, 'x', false) FROM pg_publication; CREATE TABLE odd (a int)");
    scene.assert_same();
    // A role that may read all data does not read the key.
    let publication = &values(&scene.target, "SELECT publication FROM lockstep.replica")[0];
    scene
        .source
        .execute("GRANT pg_read_all_data TO alice")
        .unwrap();
    let key = format!("TABLE lockstep.{publication}_key");
    assert!(alice.query(&key).unwrap().is_empty());
}

#[test]
fn a_snapshot_from_before_the_creation_changes_no_schema() {
    let (_lab, source, target) = pair("CREATE TABLE t (id int PRIMARY KEY)");
    let mut old = sql(&source);
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM t")
        .unwrap();
    let options = CreateOptions {
        ddl: true,
        ..options(&source, &target)
    };
    create(&options, &mut Told::default()).unwrap();
    let error = old
        .execute("CREATE VIEW w AS SELECT 1")
        .unwrap_err()
        .to_string();
    assert!(error.contains("begin it again"), "{error}");
}

#[test]
fn a_wait_in_the_event_trigger_ends_with_the_users_lock_timeout() {
    let scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY)");
    let mut first = sql(&scene.source);
    first.execute("BEGIN; CREATE TABLE a (id int)").unwrap();
    let mut second = sql(&scene.source);
    let made = second.execute("SET lock_timeout = 300; CREATE TABLE b (id int)");
    assert!(made.unwrap_err().to_string().contains("lock timeout"));
    first.execute("COMMIT").unwrap();
    scene.assert_same();
}

/// Runs each statement by itself.
fn each(scene: &Scene, statements: &[&str]) {
    let mut session = sql(&scene.source);
    for statement in statements {
        session.execute(statement).unwrap();
    }
}

#[test]
fn what_is_temporary_or_a_large_object_is_nothing_for_the_target() {
    let scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY)");
    each(
        &scene,
        &[
            "CREATE TEMP TABLE tmp (id int)",
            "GRANT SELECT ON tmp TO PUBLIC",
            "BEGIN",
            "SAVEPOINT s",
            "GRANT UPDATE (id) ON tmp TO PUBLIC",
            "COMMIT",
            "CREATE FUNCTION f(tmp) RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "COMMENT ON FUNCTION f(tmp) IS 'x'",
            "DROP FUNCTION f(tmp)",
            "CREATE FUNCTION g() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM tmp'",
            "CREATE TABLE gone (id int PRIMARY KEY)",
            "DROP TABLE tmp, gone",
            "SELECT lo_create(77)",
            "GRANT ALL ON LARGE OBJECT 77 TO PUBLIC",
            "COMMENT ON LARGE OBJECT 77 IS 'x'",
            "CREATE TEMP TABLE t (id int)",
            "GRANT ALL ON t TO PUBLIC",
            "DROP TABLE t",
            "GRANT SELECT ON t TO PUBLIC",
            "INSERT INTO t VALUES (1)",
            // Each server has publications and subscriptions of its own.
            "CREATE PUBLICATION others",
            "COMMENT ON PUBLICATION others IS 'x'",
            "DROP PUBLICATION others",
        ],
    );
    scene.assert_same();
}

#[test]
fn updates_go_on_without_a_key_that_can_tell_rows_apart() {
    let scene = Scene::new("CREATE TABLE k (id int PRIMARY KEY); INSERT INTO k VALUES (1)");
    each(
        &scene,
        &[
            "CREATE TABLE d (id int PRIMARY KEY DEFERRABLE)",
            "INSERT INTO d VALUES (1)",
            "UPDATE d SET id = 2",
            "ALTER TABLE k DROP CONSTRAINT k_pkey",
            "UPDATE k SET id = 2",
            "ALTER TABLE k ADD PRIMARY KEY (id)",
            "UPDATE k SET id = 3",
        ],
    );
    scene.assert_same();
}

#[test]
fn the_commands_of_an_extensions_script_are_part_of_the_one_that_runs_it() {
    let scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY)");
    // Their scripts drop what they have made.
    scene.run("CREATE EXTENSION cube VERSION '1.3'");
    scene.run("ALTER EXTENSION cube UPDATE; ALTER EXTENSION cube SET SCHEMA public");
    scene.run(
        "CREATE FUNCTION a() RETURNS int RETURN 1; CREATE EXTENSION hstore; \
         CREATE FUNCTION b() RETURNS int RETURN 2; CREATE FUNCTION c() RETURNS int RETURN 3; DROP FUNCTION a()",
    );
    scene.run("DO $$ BEGIN CREATE EXTENSION seg; END $$; CREATE FUNCTION d() RETURNS int RETURN 4");
    // What fails leaves no mark.
    each(
        &scene,
        &[
            "BEGIN",
            "DO $$ BEGIN CREATE EXTENSION cube; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
            "DROP FUNCTION d()",
            "CREATE EXTENSION IF NOT EXISTS cube",
            "DROP EXTENSION seg",
            "COMMIT",
        ],
    );
    scene.assert_same();
    let versions = "SELECT extname || extversion FROM pg_extension ORDER BY 1";
    assert_eq!(
        values(&scene.source, versions),
        values(&scene.target, versions)
    );
    let left = "SELECT count(*) FROM pg_proc WHERE proname IN ('b', 'c') AND pronamespace = 'public'::regnamespace";
    assert_eq!(values(&scene.target, left), ["2"]);
    let functions = "SELECT current_setting('backtrace_functions')";
    assert_eq!(values(&scene.source, functions), [""]);
}

#[test]
fn several_commands_of_a_transaction_can_be_made_by_hand() {
    let scene = Scene::new(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); INSERT INTO t VALUES (1); \
         INSERT INTO u VALUES (1); CREATE TABLE z (id int PRIMARY KEY); CREATE TABLE r (id int REFERENCES t REFERENCES u)",
    );
    let mut session = sql(&scene.source);
    for statement in [
        "BEGIN",
        "ALTER TABLE t ADD n int DEFAULT random()",
        "CREATE TABLE v (id int PRIMARY KEY)",
        "ALTER TABLE u ADD n int DEFAULT random()",
        "UPDATE t SET n = 7",
        "UPDATE v SET id = 1",
    ] {
        session.execute(statement).unwrap();
    }
    // Others are applied meanwhile, up to beyond the commands' positions.
    scene.run("INSERT INTO z VALUES (1)");
    scene.catch_up();
    session.execute("COMMIT").unwrap();
    let mut state = state_of(&scene.target);
    let nowhere = Lsn::from(1);
    for table in ["t", "u"] {
        let error = scene.blocked();
        assert!(error.contains(&format!("ALTER TABLE {table}")), "{error}");
        match state.set_made_by_hand("r", nowhere).unwrap() {
            MadeByHand::Elsewhere(Some(stands)) => {
                assert!(stands.contains(&position(&error)), "{stands}: {error}");
            }
            other => panic!("{other:?}"),
        }
        on(
            &scene.target,
            &format!("ALTER TABLE {table} ADD n int DEFAULT random()"),
        );
        scene.made_by_hand(&error);
    }
    scene.catch_up();
    let nothing_waits = state.set_made_by_hand("r", nowhere).unwrap();
    assert_eq!(nothing_waits, MadeByHand::Elsewhere(None));
    let unknown = state.set_made_by_hand("other", nowhere).unwrap();
    assert_eq!(unknown, MadeByHand::NotFollowed);
    // What the target refuses can be made by hand as well.
    scene.run("UPDATE u SET n = 7");
    on(&scene.target, "CREATE VIEW w AS SELECT 1 AS a");
    scene.run("CREATE VIEW w AS SELECT 1 AS a");
    let error = scene.blocked();
    assert!(error.contains("already exists"), "{error}");
    assert!(error.contains("--made-by-hand"), "{error}");
    scene.made_by_hand(&error);
    scene.assert_same();
}

#[test]
fn a_table_that_a_snapshot_does_not_have_is_not_altered_in_it() {
    let scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY)");
    let mut old = sql(&scene.source);
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM t")
        .unwrap();
    scene.run("CREATE TABLE late (id int PRIMARY KEY)");
    let altered = old.execute("ALTER TABLE late ADD made timestamptz DEFAULT now()");
    let error = altered.unwrap_err().to_string();
    assert!(error.contains("public.late was made"), "{error}");
    old.execute("ROLLBACK; ALTER TABLE late ADD made timestamptz DEFAULT now()")
        .unwrap();
    scene.assert_same();
}

/// Each has event triggers of its own, and the first has done already what the second would do.
#[test]
fn two_replicas_of_a_source_have_its_replica_identities() {
    let mut scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY)");
    scene.target.execute("CREATE DATABASE second").unwrap();
    let second = conninfo(&scene.target).with_database("second").unwrap();
    let options = CreateOptions {
        name: "second".to_owned(),
        target: second.clone(),
        ddl: true,
        ..options(&scene.source, &scene.target)
    };
    create(&options, &mut Told::default()).unwrap();
    let mut follows = following(&second);
    follows.name = "second".to_owned();
    let identities = "SELECT string_agg(relname || ' ' || relreplident::text, ', ' ORDER BY relname) FROM pg_class \
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace";
    let there = |scene: &Scene| {
        let row = scene.target.rows_in("second", identities).unwrap();
        row[0][0].clone().unwrap()
    };
    let ended = while_following(&follows, |control| {
        scene.run("CREATE TABLE a (id int); CREATE TABLE b AS SELECT 1 AS id; ALTER TABLE t DROP CONSTRAINT t_pkey");
        scene.run("UPDATE b SET id = 2; CREATE TABLE c (id int); CREATE TABLE d (id int)");
        scene.run("ALTER TABLE d REPLICA IDENTITY FULL; ALTER TABLE d ADD n int");
        catch_up(&scene.source, control);
        assert_eq!(there(&scene), "a f, b f, c f, d f, t f");
        scene.run("ALTER TABLE a ADD PRIMARY KEY (id); ALTER TABLE t ADD PRIMARY KEY (id)");
        catch_up(&scene.source, control);
        assert_eq!(there(&scene), "a d, b f, c f, d f, t d");
        scene.assert_same();
        // What the first has given is known once it is gone.
        scene.stop();
        remove("r", &conninfo(&scene.target), None).unwrap();
        scene.run("ALTER TABLE c ADD PRIMARY KEY (id)");
        catch_up(&scene.source, control);
        assert_eq!(there(&scene), "a d, b f, c d, d f, t d");
    });
    ended.unwrap();
    assert_eq!(values(&scene.source, identities), [there(&scene)]);
}

#[test]
fn a_promotion_takes_the_event_triggers_away() {
    let scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY)");
    scene.run(
        "CREATE TABLE late (id serial PRIMARY KEY, v text); INSERT INTO late (v) VALUES ('there')",
    );
    let done = promote(&to_promote(conninfo(&scene.target)), &mut |_| {});
    done.unwrap();
    let left = "SELECT (SELECT count(*) FROM pg_event_trigger) + (SELECT count(*) FROM pg_publication) \
        + (SELECT count(*) FROM pg_class WHERE relnamespace = 'lockstep'::regnamespace) \
        + (SELECT count(*) FROM pg_proc WHERE pronamespace = 'lockstep'::regnamespace)";
    assert_eq!(values(&scene.source, left), ["0"]);
    scene.run("CREATE TABLE only_here (id int); DROP TABLE t");
    on(&scene.target, "INSERT INTO late (v) VALUES ('later')");
    let rows = "SELECT string_agg(id || ' ' || v, ', ' ORDER BY id) FROM late";
    assert_eq!(values(&scene.target, rows), ["1 there, 2 later"]);
}

#[test]
fn foreign_tables_go_along_without_their_rows() {
    let scene = Scene::new("CREATE TABLE t (id int PRIMARY KEY, v text)");
    let (host, port) = (scene.source.sockets().display(), scene.source.port());
    each(
        &scene,
        &[
            "CREATE EXTENSION postgres_fdw",
            &format!(
                "CREATE SERVER own FOREIGN DATA WRAPPER postgres_fdw \
                 OPTIONS (host '{host}', port '{port}', dbname 'copy')"
            ),
            "CREATE USER MAPPING FOR CURRENT_USER SERVER own",
            "CREATE FOREIGN TABLE f (id int, v text) SERVER own OPTIONS (table_name 't')",
            "INSERT INTO f VALUES (1, 'through it')",
            "ALTER FOREIGN TABLE f ALTER v SET NOT NULL, ADD w int OPTIONS (column_name 'id')",
            "COMMENT ON FOREIGN TABLE f IS 'far'",
            "CREATE TABLE p (id int, v text) PARTITION BY LIST (id)",
            "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)",
            "CREATE FOREIGN TABLE p2 PARTITION OF p FOR VALUES IN (2) SERVER own OPTIONS (table_name 't')",
            "INSERT INTO p VALUES (1, 'here'), (2, 'far')",
            "CREATE SCHEMA far",
            "IMPORT FOREIGN SCHEMA public LIMIT TO (t) FROM SERVER own INTO far",
            "ALTER FOREIGN TABLE far.t RENAME TO u",
            "CREATE FOREIGN TABLE gone (id int) SERVER own",
            "DROP FOREIGN TABLE gone",
        ],
    );
    scene.assert_same();
    let rows = "SELECT count(*) FROM far.u";
    assert_eq!(values(&scene.source, rows), values(&scene.target, rows));
}

/// A table that joins is not copied: its rows come in the stream, under the rule of all changes.
#[test]
fn a_table_that_joins_is_held_to_its_types() {
    let mut scene = Scene::new("CREATE TABLE k (id int PRIMARY KEY, c numeric)");
    scene.run("INSERT INTO k VALUES (1, 1.26); CREATE TABLE made (id int PRIMARY KEY, c numeric)");
    scene.run("CREATE TABLE filled AS SELECT * FROM k");
    scene.catch_up();
    for table in ["made", "filled"] {
        scene.stop();
        on(
            &scene.target,
            &format!("ALTER TABLE {table} ALTER c TYPE numeric(10, 1)"),
        );
        scene.run(&format!("INSERT INTO {table} VALUES (2, 2.71)"));
        scene.start();
        let words = scene.blocked();
        assert_has!(words, table, "would round or cut off", "numeric(10,1)");
        on(
            &scene.target,
            &format!("ALTER TABLE {table} ALTER c TYPE numeric; UPDATE {table} SET c = 1.26"),
        );
        scene.control.resume();
        until("that it goes on", || {
            scene.control.stats().phase != Phase::Blocked
        });
        scene.catch_up();
    }
    scene.assert_same();
}

/// Decoding gives a command's message the position at which the next record begins, so that a change of
/// another savepoint there could come before it.
#[test]
fn what_follows_a_command_comes_behind_it_whatever_savepoint_it_is_in() {
    let scene = Scene::new("CREATE TABLE t (id int)");
    for (n, within) in [
        "BEGIN; SAVEPOINT s; COMMAND; RELEASE s; CHANGE; COMMIT",
        "BEGIN; SAVEPOINT s; COMMAND; SAVEPOINT u; CHANGE; SAVEPOINT v; COMMIT",
        "DO $$ BEGIN BEGIN COMMAND; EXCEPTION WHEN OTHERS THEN RAISE; END; CHANGE; END $$",
    ]
    .into_iter()
    .enumerate()
    {
        for (command, change) in [
            ("CREATE TABLE a# (id int)", "INSERT INTO a# VALUES (1)"),
            ("ALTER TABLE a# ADD b int", "INSERT INTO a# VALUES (2, 10)"),
            // The target would make 40 of 20.
            (
                "ALTER TABLE a# ALTER b TYPE bigint USING b * 2",
                "INSERT INTO a# VALUES (3, 20)",
            ),
            (
                "CREATE TABLE c# AS SELECT 1 AS id",
                "INSERT INTO c# VALUES (2)",
            ),
            (
                "CREATE MATERIALIZED VIEW m# AS SELECT * FROM a#",
                "INSERT INTO a# VALUES (4, 30)",
            ),
        ] {
            let sql = within.replace("COMMAND", command).replace("CHANGE", change);
            scene.run(&sql.replace('#', &n.to_string()));
        }
    }
    scene.assert_same();
    let view = "SELECT string_agg(m::text, ' ' ORDER BY id) FROM m1 m";
    assert_eq!(values(&scene.source, view), values(&scene.target, view));
}

/// A replica that another release has created has that one's functions, and may lack a trigger.
#[test]
fn a_source_gets_the_event_triggers_of_the_release_that_follows() {
    let mut scene = Scene::new("CREATE TABLE t (id int)");
    scene.stop();
    let written = "SELECT md5(string_agg(prosrc, ',' ORDER BY proname)) FROM pg_proc \
                   WHERE pronamespace = 'lockstep'::regnamespace AND prorettype = 'event_trigger'::regtype";
    let triggers = "SELECT string_agg(evtname || evtenabled::text, ' ' ORDER BY evtname) FROM pg_event_trigger";
    let (before, named) = (
        values(&scene.source, written),
        values(&scene.source, triggers),
    );
    let changed = "SET backtrace_functions = lockstep_ddl; \
         DO $$ DECLARE one record; BEGIN \
             FOR one IN SELECT evtname, evtfoid::regproc AS f FROM pg_event_trigger ORDER BY evtevent, evtname LOOP \
                 EXECUTE format('CREATE OR REPLACE FUNCTION %s() RETURNS event_trigger LANGUAGE plpgsql \
                     SECURITY DEFINER AS ''BEGIN END''', one.f); \
             END LOOP; \
             EXECUTE format('DROP EVENT TRIGGER %I', (SELECT min(evtname) FROM pg_event_trigger)); \
         END $$";
    scene.run(changed);
    assert!(values(&scene.source, written) != before && values(&scene.source, triggers) != named);
    scene.start();
    until("that they are renewed", || {
        values(&scene.source, written) == before && values(&scene.source, triggers) == named
    });
    scene.run("CREATE TABLE u (id int); BEGIN; SAVEPOINT s; CREATE TABLE v (id int); RELEASE s; INSERT INTO v VALUES (1); COMMIT");
    scene.assert_same();
    // One that is disabled is left so, and told of with what mends it.
    let told = |scene: &Scene| {
        let stats = scene.control.stats();
        stats.unreplicated.and_then(|it| it.words)
    };
    let own = "SET backtrace_functions = lockstep_ddl";
    let one = "SELECT max(evtname) FROM pg_event_trigger";
    let one = values(&scene.source, one);
    scene.run(&format!("{own}; ALTER EVENT TRIGGER {} DISABLE", one[0]));
    until("that it is told", || told(&scene).is_some());
    let words = told(&scene).unwrap();
    assert_has!(words, "do not fire in each session", "verify");
    let begins = words.find("ALTER EVENT TRIGGER").unwrap();
    let ends = words.find(';').unwrap();
    scene.run(&format!("{own}; {}", &words[begins..ends]));
    until("that it is well", || told(&scene).is_none());
    assert_eq!(values(&scene.source, triggers), named);
}

/// Whoever has altered the functions or triggers since: the next process makes them as they were, with what
/// status says meanwhile to a role that may not even use the schema.
#[test]
fn what_was_altered_of_the_event_triggers_is_seen_and_made_anew() {
    let mut scene = Scene::new("CREATE TABLE t (id int); CREATE ROLE plain LOGIN");
    let replica = state_of(&scene.target).replica("r").unwrap().unwrap();
    let source = conninfo(&scene.source).with("user", "plain").unwrap();
    let gap = || {
        let asked = Source::ask(&replica, Some(&source), None, None);
        asked.unwrap().gap
    };
    assert_eq!(gap(), None);
    let (who, write) = (
        format!("{}_who", replica.slot),
        format!("{}_write", replica.slot),
    );
    let trigger = format!("{}_2d", replica.slot);
    for altered in [
        format!(
            "ALTER ROLE plain SUPERUSER; ALTER FUNCTION lockstep.{write}() OWNER TO plain; \
             ALTER ROLE plain NOSUPERUSER"
        ),
        format!("ALTER FUNCTION lockstep.{who}() OWNER TO plain"),
        format!("ALTER FUNCTION lockstep.{write}() SECURITY INVOKER"),
        format!("ALTER FUNCTION lockstep.{who}() SECURITY DEFINER"),
        format!("ALTER FUNCTION lockstep.{write}() RESET search_path"),
        format!(
            "DROP EVENT TRIGGER {trigger}; CREATE EVENT TRIGGER {trigger} ON ddl_command_end \
             EXECUTE FUNCTION lockstep.{who}(); ALTER EVENT TRIGGER {trigger} ENABLE ALWAYS"
        ),
        format!(
            "DROP EVENT TRIGGER {trigger}; CREATE EVENT TRIGGER {trigger} ON ddl_command_end \
             WHEN TAG IN ('DROP TABLE') EXECUTE FUNCTION lockstep.{write}(); \
             ALTER EVENT TRIGGER {trigger} ENABLE ALWAYS"
        ),
    ] {
        scene.stop();
        scene.run(&format!(
            "SET backtrace_functions = lockstep_ddl; {altered}"
        ));
        let words = gap().unwrap_or_default();
        assert_has!(
            words,
            "not this release's",
            "lockstep replica run makes them anew"
        );
        scene.start();
        until(&altered, || gap().is_none());
    }
    scene.run("CREATE TABLE u (id int); INSERT INTO u VALUES (1)");
    scene.assert_same();
}
