//! The facts of real servers: the rules themselves have tests beside them.

use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::source_major;
use lockstep_replica::error::ReplicaError;
use lockstep_replica::error::{Finding, Severity};
use lockstep_replica::lifecycle::create::{create, preflight};
use lockstep_replica::state::ReplicaState;

use crate::{Told, conninfo, on, options, pair, server, values};

const AWKWARD: &str = "
CREATE ROLE bob LOGIN;
CREATE SCHEMA s;
CREATE TABLE s.keyless (a int);
CREATE TABLE s.changed (a int);
INSERT INTO s.changed VALUES (1);
CREATE TABLE s.equal (a int, j json);
ALTER TABLE s.equal REPLICA IDENTITY FULL;
INSERT INTO s.equal VALUES (1, '{}'), (1, '{}');
CREATE FUNCTION s.planted(s.equal) RETURNS text LANGUAGE plpgsql AS $$BEGIN RAISE 'called'; END$$;
CREATE CAST (s.equal AS text) WITH FUNCTION s.planted(s.equal);
CREATE UNLOGGED TABLE s.fast (a int PRIMARY KEY);
CREATE TABLE s.parts (a int PRIMARY KEY) PARTITION BY RANGE (a);
CREATE TABLE s.part PARTITION OF s.parts FOR VALUES FROM (0) TO (9);
CREATE TABLE s.columns (a int PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    b int GENERATED ALWAYS AS (a + 1) STORED, c int UNIQUE DEFERRABLE,
    d int4range, EXCLUDE USING gist (d WITH &&));
ALTER TABLE s.columns OWNER TO bob;
CREATE FUNCTION s.of_bob(int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT true';
ALTER FUNCTION s.of_bob OWNER TO bob;
ALTER TABLE s.columns ADD CHECK (s.of_bob(b));
CREATE MATERIALIZED VIEW s.view AS SELECT 1;
CREATE TABLE s.upper (a int, b text, g text GENERATED ALWAYS AS (upper(b)) STORED, PRIMARY KEY (a, g));
SELECT lo_create(0);";

#[test]
fn a_real_database_is_seen_as_it_is() {
    let (_lab, source, target) = pair(AWKWARD);
    on(&source, "UPDATE s.changed SET a = 2");
    // Counts of changes arrive when the session that made them ends.
    let counted = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'changed'";
    while values(&source, counted) != ["1"] {}
    let (facts, findings) = preflight(&options(&source, &target)).unwrap();
    assert_eq!(facts.tables.len(), 9);
    assert_eq!(facts.copied().count(), 6);
    let found = |severity, subject: &str, says: &str| {
        let one = findings.iter().find(|one| {
            one.severity == severity && one.subject.contains(subject) && one.says.contains(says)
        });
        assert!(one.is_some(), "no {subject} {says} in {findings:#?}");
    };
    found(Severity::Error, "s.changed", "updated or deleted");
    found(Severity::Error, "source", "1 large objects");
    found(Severity::Error, "target", "roles are missing: bob");
    found(Severity::Warning, "s.keyless", "no replica identity");
    found(Severity::Warning, "s.equal", "rows that are equal");
    found(Severity::Warning, "s.columns", "deferrable");
    found(Severity::Warning, "s.columns", "exclusion");
    found(
        Severity::Warning,
        "s.columns",
        "with the rights of superuser",
    );
    found(Severity::Info, "s.fast", "unlogged");
    found(Severity::Info, "s.parts", "partitioned");
    found(Severity::Info, "s.columns", "generated");
    found(Severity::Info, "s.columns", "identity columns");
    found(Severity::Error, "s.upper", "are not published");
    found(Severity::Info, "s.view", "materialized view");
    assert_eq!(findings.len(), 14, "{findings:#?}");

    // Nothing is changed while there are errors.
    let mut told = Told::default();
    let error = create(&options(&source, &target), &mut told).unwrap_err();
    assert!(matches!(error, ReplicaError::Preflight(_)), "{error}");
    assert_eq!(told.findings, findings);
    assert!(told.phases.is_empty());
    assert!(ReplicaState::find(&conninfo(&target)).unwrap().is_none());
    assert!(values(&source, "SELECT slot_name FROM pg_replication_slots").is_empty());
    assert!(values(&source, "SELECT pubname FROM pg_publication").is_empty());
}

#[test]
fn a_role_with_no_rights_hears_of_each_grant() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    for server in [&source, &target] {
        for role in ["poor LOGIN", "\"Bob\"", "other"] {
            server.run(&format!("CREATE ROLE {role}"));
        }
    }
    on(
        &source,
        "CREATE TABLE t (a int PRIMARY KEY); CREATE TABLE u (a int PRIMARY KEY); \
             CREATE SCHEMA bobs AUTHORIZATION \"Bob\"; CREATE SCHEMA apart AUTHORIZATION other; \
             CREATE DOMAIN d AS int; ALTER DOMAIN d OWNER TO poor",
    );
    let mut options = options(&source, &target);
    options.source = options.source.with("user", "poor").unwrap();
    options.target = options.target.with("user", "poor").unwrap();
    options.excluded.schemas = vec!["apart".to_owned()];
    let (_, findings) = preflight(&options).unwrap();
    let todos: Vec<_> = findings
        .iter()
        .filter(|one| one.is_error())
        .map(|one| one.todo.as_str())
        .collect();
    for grant in [
        "ALTER ROLE \"poor\" REPLICATION",
        "GRANT CREATE ON DATABASE \"copy\" TO \"poor\"",
        "GRANT SELECT ON it TO \"poor\"",
        "GRANT SET ON PARAMETER session_replication_role TO \"poor\"",
        "GRANT \"Bob\" TO \"poor\"",
        "connect to the target as a superuser, or give what they own on the source to roles that are none: \
         a superuser's role is better not granted",
    ] {
        assert!(todos.contains(&grant), "no {grant} in {todos:#?}");
    }
    let origins = "GRANT EXECUTE ON FUNCTION pg_replication_origin_";
    assert!(
        todos.iter().any(|todo| todo.starts_with(origins)),
        "{todos:#?}"
    );
    let owned = |todo: &&&str| todo.contains("whose role is better not granted");
    assert_eq!(todos.iter().filter(owned).count(), 1, "{todos:#?}");
    assert_eq!(todos.len(), 9, "{todos:#?}");
}

/// Schema `apart`, and one object of each kind that cannot be without it.
const NEEDS_APART: &str = "
CREATE SCHEMA apart;
CREATE TYPE apart.mood AS ENUM ('sad'); CREATE TABLE apart.t (a int PRIMARY KEY, own apart.mood);
CREATE VIEW apart.v AS SELECT a FROM apart.t;
CREATE FUNCTION apart.f() RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION apart.text(apart.mood) RETURNS text IMMUTABLE LANGUAGE sql AS $$SELECT 'm'$$;
CREATE FUNCTION apart.g() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TABLE free (id serial PRIMARY KEY, x apart.mood); ALTER TABLE free DROP x;
CREATE TABLE side (a int PRIMARY KEY); CREATE VIEW below AS SELECT a FROM side";

/// What makes an object, the object, what it needs, and what drops it.
const NEEDING: [[&str; 4]; 10] = [
    [
        "CREATE CAST (apart.mood AS text) WITH FUNCTION apart.text(apart.mood)",
        "cast from apart.mood to text",
        "type apart.mood",
        "DROP CAST (apart.mood AS text)",
    ],
    [
        "CREATE VIEW v AS SELECT a FROM apart.t",
        "view public.v",
        "table apart.t",
        "DROP VIEW v",
    ],
    [
        "CREATE TABLE c (m apart.mood)",
        "column m of table public.c",
        "type apart.mood",
        "DROP TABLE c",
    ],
    [
        "CREATE TABLE i () INHERITS (apart.t)",
        "table public.i",
        "table apart.t",
        "DROP TABLE i",
    ],
    [
        "CREATE TABLE k (a int PRIMARY KEY REFERENCES apart.t)",
        "constraint k_a_fkey on table public.k",
        "table apart.t",
        "DROP TABLE k",
    ],
    [
        "CREATE TABLE d (a int PRIMARY KEY DEFAULT apart.f())",
        "default value for column a of table public.d",
        "function apart.f()",
        "DROP TABLE d",
    ],
    [
        "CREATE FUNCTION h(apart.mood) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "function public.h(apart.mood)",
        "type apart.mood",
        "DROP FUNCTION h",
    ],
    [
        "CREATE TRIGGER g BEFORE INSERT ON side FOR EACH ROW EXECUTE FUNCTION apart.g()",
        "trigger g on table public.side",
        "function apart.g()",
        "DROP TRIGGER g ON side",
    ],
    [
        "CREATE INDEX x ON side ((a + apart.f()))",
        "index public.x",
        "function apart.f()",
        "DROP INDEX x",
    ],
    [
        "CREATE EXTENSION pageinspect SCHEMA apart",
        "extension pageinspect",
        "schema apart",
        "DROP EXTENSION pageinspect",
    ],
];

#[test]
fn what_needs_an_excluded_schema_is_found_before_anything_is_changed() {
    let (_lab, source, target) = pair(NEEDS_APART);
    let mut options = options(&source, &target);
    options.excluded.schemas = vec!["apart".to_owned()];
    let needing = |options| -> Vec<_> {
        let (_, findings) = preflight(options).unwrap();
        let errors = findings.into_iter().filter(Finding::is_error);
        errors.map(|one| (one.subject, one.says)).collect()
    };
    // Nothing of what is within the schema.
    assert_eq!(needing(&options), []);
    for [make, object, needed, drop] in NEEDING {
        on(&source, make);
        let found = needing(&options);
        let says = format!("it needs {needed}, which is excluded");
        let is = |(subject, words): &(String, String)| subject == object && *words == says;
        assert!(found.iter().any(is), "{object} {says}: {found:#?}");
        on(&source, drop);
    }
    create(&options, &mut Told::default()).unwrap();
    let there = "SELECT to_regclass('public.below') IS NOT NULL";
    assert_eq!(values(&target, there), ["t"]);
}

#[test]
fn an_excluded_table_that_a_view_needs_is_found() {
    let (_lab, source, target) = pair(NEEDS_APART);
    let mut options = options(&source, &target);
    options.excluded.tables = vec!["public.side".to_owned()];
    let error = create(&options, &mut Told::default())
        .unwrap_err()
        .to_string();
    let expected = "view public.below it needs table public.side, which is excluded";
    assert!(error.contains(expected), "{error}");
    assert!(values(&source, "SELECT pubname FROM pg_publication").is_empty());
}

/// Each session on the target fires those that are copied.
#[test]
fn event_triggers_that_fire_at_login_are_named() {
    if source_major().unwrap().get() < 17 {
        println!("ELSEWHERE: event triggers fire at login from PostgreSQL 17 on");
        return;
    }
    let (_lab, source, target) = pair(
        "CREATE FUNCTION nothing() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN END$$; \
         CREATE EVENT TRIGGER \"Each login\" ON login EXECUTE FUNCTION nothing(); \
         CREATE EVENT TRIGGER off ON login EXECUTE FUNCTION nothing(); ALTER EVENT TRIGGER off DISABLE",
    );
    let (facts, findings) = preflight(&options(&source, &target)).unwrap();
    assert_eq!(facts.login_triggers, ["Each login"]);
    let named = findings.iter().filter(|it| it.says.contains("at login"));
    assert_eq!(named.count(), 1, "{findings:#?}");
}
