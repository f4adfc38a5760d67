//! Objects that the target refuses once the rows are copied: the copy ends without them and lists them.

use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;
use lockstep_replica::lifecycle::create::create;
use lockstep_replica::lifecycle::follow::Following;
use lockstep_replica::state::{ReplicaState, Unmade};
use lockstep_replica::verify::replica;

use crate::apply_lab::{catch_up, until, while_following};
use crate::{Told, conninfo, on, options, pair, server, sql, to_verify, values};

/// One of each kind: a view and an index whose functions find names by the search path alone, rows that
/// refer to none under a foreign key that counts as valid, and statistics that a server which is away would
/// have to give.
const REFUSED: &str = "
CREATE TABLE docs (id int PRIMARY KEY, d tsvector); INSERT INTO docs VALUES (1, 'a b'), (2, 'b c');
CREATE MATERIALIZED VIEW words AS SELECT word, ndoc FROM ts_stat('SELECT d FROM docs');
CREATE MATERIALIZED VIEW fine AS SELECT count(*) FROM docs;
CREATE MATERIALIZED VIEW over_words AS SELECT count(*) n FROM words;
CREATE INDEX ON words (word);
CREATE FUNCTION lower2(t text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower($1)';
CREATE FUNCTION norm(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
    $$BEGIN RETURN public.lower2(t); END$$;
CREATE TABLE p (id int PRIMARY KEY, n text); INSERT INTO p SELECT i, 'N' || i FROM generate_series(1, 100) i;
CREATE INDEX \"p norm\" ON p (norm(n)); COMMENT ON INDEX \"p norm\" IS 'normal';
CREATE OR REPLACE FUNCTION norm(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
    $$BEGIN RETURN lower2(t); END$$;
CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES parent);
INSERT INTO parent VALUES (1), (2); INSERT INTO child SELECT i, 1 + i % 2 FROM generate_series(1, 50) i;
CREATE TABLE aside (LIKE p); ALTER TABLE aside ADD PRIMARY KEY (id);
SET session_replication_role = replica; DELETE FROM parent WHERE id = 2; RESET session_replication_role;
CREATE EXTENSION postgres_fdw;
CREATE SERVER cold FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '1', dbname 'x');
CREATE USER MAPPING FOR CURRENT_USER SERVER cold;
CREATE TABLE ev (id int, y int) PARTITION BY LIST (y); CREATE TABLE ev25 PARTITION OF ev FOR VALUES IN (25);
CREATE FOREIGN TABLE ev20 PARTITION OF ev FOR VALUES IN (20) SERVER cold";

fn names(unmade: &[Unmade]) -> Vec<String> {
    unmade.iter().map(Unmade::name).collect()
}

fn unmade(target: &Server) -> Vec<Unmade> {
    let state = ReplicaState::find(&conninfo(target)).unwrap();
    state.unwrap().unmade("r").unwrap()
}

/// Foreign key, index and views, with functions and rows that are at fault, and commands. From 17 on the
/// source, too, has no such view: whatever fills one has a search path of its own.
fn assert_listed(unmade: &[Unmade], has_views: bool) {
    let mut expected = vec![
        "index public.p norm",
        "foreign key public.child child_p_fkey",
    ];
    if has_views {
        expected.push("rows of materialized view public.words");
        expected.push("rows of materialized view public.over_words");
    }
    expected.push("statistics public.ev");
    assert_eq!(names(unmade), expected);
}

#[test]
fn what_the_target_refuses_after_the_rows_is_listed_until_it_is_made() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    let mut user = sql(&source);
    let has_views = user.server_version() < 170_000;
    let docs = if has_views { "docs" } else { "public.docs" };
    let refused = REFUSED.replace("SELECT d FROM docs", &format!("SELECT d FROM {docs}"));
    user.execute(&refused).unwrap();
    let created = create(&options(&source, &target), &mut Told::default()).unwrap();
    let listed = created.unmade;
    assert_listed(&listed, has_views);
    assert_eq!(listed, unmade(&target));
    assert!(listed[0].command.contains("IS 'normal'"));
    assert_has!(listed[0].error, "PL/pgSQL function public.norm(text)");
    assert!(listed[1].error.contains("Key (p)=(2)") && listed[1].error.contains("NOT VALID"));
    assert_eq!(
        listed[1].command,
        "ALTER TABLE public.child VALIDATE CONSTRAINT child_p_fkey;"
    );
    // All else is there.
    assert_eq!(values(&target, "SELECT * FROM fine"), ["2"]);
    let others = "SELECT count(*) FROM pg_indexes WHERE tablename IN ('docs', 'p', 'child', 'words', 'aside')";
    assert_eq!(values(&target, others), ["5"]);
    assert_eq!(
        values(&target, "SELECT unmade_objects FROM lockstep.replica"),
        [listed.len().to_string()]
    );

    let what = to_verify(conninfo(&target));
    let report = replica(&what, &mut |_| ()).unwrap();
    assert!(!report.is_equal() && report.unmade == listed, "{report:?}");
    let differ: Vec<_> = (report.tables.iter())
        .filter(|it| !it.differences.is_empty())
        .collect();
    assert!(differ.is_empty(), "{differ:?}");

    // What mends each, and its command as it is printed.
    on(&source, "INSERT INTO parent VALUES (2)");
    replica(&what, &mut |_| ()).unwrap();
    let mut user = sql(&target);
    user.execute("ALTER FUNCTION norm SET search_path = public; DROP FOREIGN TABLE ev20")
        .unwrap();
    if has_views && user.server_version() >= 170_000 {
        // There the view itself must name its table's schema.
        user.execute(
            "DROP MATERIALIZED VIEW words CASCADE; CREATE MATERIALIZED VIEW words AS \
             SELECT word, ndoc FROM ts_stat('SELECT d FROM public.docs') WITH NO DATA; \
             CREATE MATERIALIZED VIEW over_words AS SELECT count(*) n FROM words WITH NO DATA",
        )
        .unwrap();
    }
    user.execute("SET search_path = ''").unwrap();
    for one in &listed {
        user.execute(&one.command).unwrap();
    }
    assert_eq!(unmade(&target), []);
    let state = ReplicaState::find(&conninfo(&target)).unwrap();
    assert_eq!(state.unwrap().forget_made("r").unwrap(), []);
    let sum = "SELECT unmade_objects FROM lockstep.replica";
    assert_eq!(values(&target, sum), ["0"]);
}

/// One that cannot be read or set is named with what mends it, and keeps no other from being set.
#[test]
fn sequences_that_cannot_be_set_are_named_and_the_others_are_set() {
    let (_lab, source, target) = pair(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE SCHEMA \"An app\"; CREATE SEQUENCE \"An app\".\"s 1\"; \
         CREATE SEQUENCE open; CREATE SEQUENCE closed; CREATE SEQUENCE wide",
    );
    create(&options(&source, &target), &mut Told::default()).unwrap();
    on(
        &source,
        "CREATE SCHEMA later; CREATE SEQUENCE later.late INCREMENT -1 CYCLE; CREATE SEQUENCE taken; \
         CREATE TABLE absent (id serial); CREATE ROLE low LOGIN REPLICATION; \
         GRANT USAGE ON SCHEMA later TO low; \
         GRANT SELECT ON ALL SEQUENCES IN SCHEMA public, later, \"An app\" TO low; \
         REVOKE SELECT ON closed FROM low; SELECT setval('wide', 40000), setval('open', 7), \
             setval('closed', 8), nextval('later.late'), setval('\"An app\".\"s 1\"', 9), setval('taken', \
             10)",
    );
    on(
        &target,
        "ALTER SEQUENCE wide AS smallint; CREATE TABLE taken (id int)",
    );
    let what = Following {
        source: Some(conninfo(&source).with("user", "low").unwrap()),
        ..crate::following(&conninfo(&target))
    };
    let followed = while_following(&what, |control| {
        until("that the others are named", || !unmade(&target).is_empty());
        assert_eq!(values(&target, "SELECT last_value FROM open"), ["7"]);
        let listed = unmade(&target);
        let expected = [
            (
                "sequence An app.s 1",
                "role low may not read it on the source; on the source",
            ),
            (
                "sequence later.late",
                "the target has no such sequence; on the target",
            ),
            (
                "sequence public.closed",
                "role low may not read it on the source; on the source",
            ),
            (
                "sequence public.taken",
                "the target has something else under its name; on the target",
            ),
            (
                "sequence public.wide",
                "the target's takes values from 1 to 32767, and the source's is at 40000; on the target",
            ),
        ];
        let found: Vec<_> = listed.iter().map(|one| (one.name(), &*one.error)).collect();
        let found: Vec<_> = found
            .iter()
            .map(|(name, error)| (&**name, *error))
            .collect();
        assert_eq!(found, expected);
        // What is said of them all comes after the list.
        until("that they are counted", || {
            let sum = values(&target, "SELECT unmade FROM lockstep.replica").remove(0);
            sum.starts_with("5 sequences are not set to the source's values: ")
        });
        let report = replica(&to_verify(conninfo(&target)), &mut |_| ()).unwrap();
        assert_eq!(report.unmade, listed);
        // The command of each as it is printed, where it says.
        for one in &listed {
            let there = if one.error.ends_with("source") {
                &source
            } else {
                &target
            };
            on(there, &one.command);
        }
        until("that none is named", || unmade(&target).is_empty());
        catch_up(&source, control);
        let of_all = "SELECT (SELECT last_value FROM wide), (SELECT last_value FROM open), \
            (SELECT last_value FROM closed), (SELECT last_value FROM later.late), \
            (SELECT last_value FROM \"An app\".\"s 1\"), (SELECT last_value FROM taken)";
        let of_all = format!("SELECT x::text FROM ({of_all}) x");
        assert_eq!(values(&target, &of_all), values(&source, &of_all));
        let sum = "SELECT unmade_objects FROM lockstep.replica";
        until("that none is counted", || values(&target, sum) == ["0"]);
    });
    followed.unwrap();
}
