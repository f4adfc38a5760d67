//! The facts of real servers: the rules themselves have tests beside them.

use lockstep_lab::cluster::Lab;
use lockstep_replica::create::{create, preflight};
use lockstep_replica::error::ReplicaError;
use lockstep_replica::preflight::rules::Severity;
use lockstep_replica::state::State;

use crate::{Told, conninfo, options, server, sql, values};

const AWKWARD: &str = "
CREATE ROLE bob LOGIN;
CREATE SCHEMA s;
CREATE TABLE s.keyless (a int);
CREATE TABLE s.changed (a int);
INSERT INTO s.changed VALUES (1);
CREATE TABLE s.equal (a int, j json);
ALTER TABLE s.equal REPLICA IDENTITY FULL;
INSERT INTO s.equal VALUES (1, '{}'), (1, '{}');
CREATE UNLOGGED TABLE s.fast (a int PRIMARY KEY);
CREATE TABLE s.parts (a int PRIMARY KEY) PARTITION BY RANGE (a);
CREATE TABLE s.part PARTITION OF s.parts FOR VALUES FROM (0) TO (9);
CREATE TABLE s.columns (a int PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    b int GENERATED ALWAYS AS (a + 1) STORED, c int UNIQUE DEFERRABLE,
    d int4range, EXCLUDE USING gist (d WITH &&));
ALTER TABLE s.columns OWNER TO bob;
CREATE MATERIALIZED VIEW s.view AS SELECT 1;
SELECT lo_create(0);";

#[test]
fn a_real_database_is_seen_as_it_is() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    sql(&source).execute(AWKWARD).unwrap();
    sql(&source).execute("UPDATE s.changed SET a = 2").unwrap();
    // Counts of changes arrive when the session that made them ends.
    let counted = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'changed'";
    while values(&source, counted) != ["1"] {}
    let (facts, findings) = preflight(&options(&source, &target)).unwrap();
    assert_eq!(facts.tables.len(), 8);
    assert_eq!(facts.copied().count(), 5);
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
    found(Severity::Info, "s.fast", "unlogged");
    found(Severity::Info, "s.parts", "partitioned");
    found(Severity::Info, "s.columns", "generated");
    found(Severity::Info, "s.columns", "identity columns");
    found(Severity::Info, "s.view", "materialised view");
    assert_eq!(findings.len(), 12, "{findings:#?}");

    // Nothing is changed while there are errors.
    let mut told = Told::default();
    let error = create(&options(&source, &target), &mut told).unwrap_err();
    assert!(matches!(error, ReplicaError::Preflight(_)), "{error}");
    assert_eq!(told.findings, findings);
    assert!(told.phases.is_empty());
    assert!(State::find(&conninfo(&target)).unwrap().is_none());
    assert!(values(&source, "SELECT slot_name FROM pg_replication_slots").is_empty());
    assert!(values(&source, "SELECT pubname FROM pg_publication").is_empty());
}

#[test]
fn a_role_with_no_rights_hears_of_each_grant() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    for server in [&source, &target] {
        server.execute("CREATE ROLE poor LOGIN").unwrap();
    }
    sql(&source)
        .execute("CREATE TABLE t (a int PRIMARY KEY); CREATE TABLE u (a int PRIMARY KEY)")
        .unwrap();
    let mut options = options(&source, &target);
    options.source = options.source.with("user", "poor").unwrap();
    options.target = options.target.with("user", "poor").unwrap();
    let (_, findings) = preflight(&options).unwrap();
    let todos: Vec<_> = findings
        .iter()
        .filter(|one| one.is_error())
        .map(|one| one.todo.as_str())
        .collect();
    for grant in [
        "ALTER ROLE \"poor\" REPLICATION",
        "GRANT CREATE ON DATABASE \"copy\" TO \"poor\"",
        "GRANT \"postgres\" TO \"poor\"",
        "GRANT SELECT ON it TO \"poor\"",
        "GRANT SET ON PARAMETER session_replication_role TO \"poor\"",
    ] {
        assert!(todos.contains(&grant), "no {grant} in {todos:#?}");
    }
    let origins = "GRANT EXECUTE ON FUNCTION pg_replication_origin_";
    assert!(
        todos.iter().any(|todo| todo.starts_with(origins)),
        "{todos:#?}"
    );
    assert_eq!(todos.len(), 7, "{todos:#?}");
}
