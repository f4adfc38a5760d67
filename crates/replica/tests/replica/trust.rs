//! A schema `lockstep` that somebody else has made beforehand: no code of theirs runs.

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;
use lockstep_replica::lifecycle::create::create;
use lockstep_replica::state::ReplicaState;

use crate::{Told, begun, conninfo, on, options, server, values};

/// Database `copy` belongs to bob, who is no superuser.
fn of_bob(lab: &Lab) -> (Server, Conninfo) {
    let target = server(lab, "target");
    target.run(
        "CREATE ROLE watcher LOGIN IN ROLE pg_monitor; CREATE ROLE bob LOGIN; ALTER DATABASE copy \
            OWNER TO bob",
    );
    let bob = conninfo(&target).with("user", "bob").unwrap();
    (target, bob)
}

/// A role that only reads, and is no superuser.
fn watcher(target: &Server) -> Conninfo {
    conninfo(target).with("user", "watcher").unwrap()
}

fn as_bob(bob: &Conninfo, sql: &str) {
    let mut session = Connection::connect(bob, Purpose::Sql, "lockstep test").unwrap();
    session.execute(sql).unwrap();
}

fn forget(target: &Server) {
    on(target, "DROP SCHEMA lockstep CASCADE");
}

/// Bob's code makes him a superuser if a superuser runs it.
fn has_not_run(target: &Server) {
    let superuser = "SELECT rolsuper FROM pg_roles WHERE rolname = 'bob'";
    assert_eq!(values(target, superuser), ["f"]);
}

/// Bob's code notes who runs it. The planner calls what is immutable, and that calls anything.
const CODE: &str = "CREATE TABLE lockstep.ran (who text); GRANT INSERT ON lockstep.ran TO public; \
    CREATE FUNCTION lockstep.note() RETURNS text LANGUAGE plpgsql AS \
    $$ BEGIN INSERT INTO lockstep.ran VALUES (current_user); RETURN 'x'; END $$; \
    CREATE FUNCTION lockstep.run() RETURNS text LANGUAGE plpgsql IMMUTABLE AS \
    $$ BEGIN RETURN lockstep.note(); END $$;";

fn was_run_by_watcher(target: &Server) -> bool {
    values(
        target,
        "SELECT count(*) > 0 FROM lockstep.ran WHERE who = 'watcher'",
    ) == ["t"]
}

#[test]
fn what_another_role_has_planted_does_not_run() {
    let lab = Lab::for_tests().unwrap();
    let source = server(&lab, "source");
    let (target, bob) = of_bob(&lab);
    let all = options(&source, &target);
    // What lockstep makes, with a trigger.
    drop(ReplicaState::open(&bob).unwrap());
    as_bob(
        &bob,
        "CREATE FUNCTION lockstep.act() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN EXECUTE 'ALTER ROLE bob SUPERUSER'; RETURN new; END $$; \
         CREATE TRIGGER act BEFORE INSERT ON lockstep.replica FOR EACH ROW EXECUTE FUNCTION lockstep.act()",
    );
    for error in [
        create(&all, &mut Told::default()).unwrap_err(),
        ReplicaState::open(&conninfo(&target)).unwrap_err(),
        ReplicaState::find(&conninfo(&target)).unwrap_err(),
    ] {
        let words = error.to_string();
        let (owner, todo) = ("belongs to role \"bob\"", "connect as \"bob\"");
        assert!(words.contains(owner) && words.contains(todo), "{words}");
    }
    has_not_run(&target);
    // Reading runs no trigger; but bob could plant more once a superuser has looked.
    assert!(ReplicaState::see(&watcher(&target)).unwrap().is_some());
    let words = ReplicaState::see(&conninfo(&target))
        .unwrap_err()
        .to_string();
    assert!(words.contains("belongs to role \"bob\""), "{words}");
    let words = ReplicaState::find(&bob).unwrap_err().to_string();
    assert!(words.contains("\"bob\", has a trigger"), "{words}");
    forget(&target);

    // An empty schema would do: what is made there could be changed by its owner.
    as_bob(&bob, "CREATE SCHEMA lockstep");
    let words = ReplicaState::open(&conninfo(&target))
        .unwrap_err()
        .to_string();
    assert_has!(words, "schema lockstep belongs to role \"bob\"");
    drop(ReplicaState::open(&bob).unwrap());
    forget(&target);
    // A table in a schema of ours.
    on(
        &target,
        "CREATE SCHEMA lockstep; GRANT ALL ON SCHEMA lockstep TO bob",
    );
    as_bob(&bob, "CREATE TABLE lockstep.replica (name text)");
    let words = ReplicaState::open(&conninfo(&target))
        .unwrap_err()
        .to_string();
    assert_has!(words, "table lockstep.replica belongs to role \"bob\"");
}

#[test]
fn a_reader_runs_nothing_either() {
    let lab = Lab::for_tests().unwrap();
    let (target, bob) = of_bob(&lab);
    let replica = "lockstep.replica RENAME TO moved";
    for (plant, fault, runs) in [
        (
            format!(
                "ALTER TABLE {replica}; CREATE VIEW lockstep.replica AS \
                 SELECT lockstep.run() AS name, m.source FROM lockstep.moved m"
            ),
            "no plain table",
            true,
        ),
        (
            "ALTER TABLE lockstep.replica ENABLE ROW LEVEL SECURITY; \
             CREATE POLICY p ON lockstep.replica USING (lockstep.run() = 'x')"
                .to_owned(),
            "row security",
            true,
        ),
        (
            "CREATE TABLE lockstep.child () INHERITS (lockstep.replica)".to_owned(),
            "inherit",
            false,
        ),
        (
            "CREATE TYPE lockstep.own AS (a text); \
             ALTER TABLE lockstep.replica ADD own lockstep.own"
                .to_owned(),
            "a type that PostgreSQL does not bring",
            false,
        ),
        (
            "CREATE INDEX ON lockstep.replica (name) WHERE name <> lockstep.run()".to_owned(),
            "an index of an expression",
            true,
        ),
        (
            "ALTER TABLE lockstep.replica ADD CHECK (name <> lockstep.run()) NOT VALID".to_owned(),
            "a check",
            false,
        ),
    ] {
        drop(ReplicaState::open(&bob).unwrap());
        as_bob(&bob, CODE);
        as_bob(&bob, &plant);
        as_bob(&bob, "GRANT SELECT ON lockstep.replica TO watcher");
        let words = ReplicaState::see(&watcher(&target))
            .unwrap_err()
            .to_string();
        assert!(words.contains(fault), "{plant}: {words}");
        assert!(words.contains("DROP SCHEMA lockstep CASCADE"), "{words}");
        assert!(!was_run_by_watcher(&target), "{plant}");
        // Reading it all the same would have.
        let mut session = Connection::connect(&watcher(&target), Purpose::Sql, "a test").unwrap();
        session.query("SELECT name FROM lockstep.replica").unwrap();
        assert_eq!(was_run_by_watcher(&target), runs, "{plant}");
        forget(&target);
    }
}

#[test]
fn the_state_of_a_role_without_superuser_is_its_own() {
    let lab = Lab::for_tests().unwrap();
    let (target, bob) = of_bob(&lab);
    let mut state = ReplicaState::open(&bob).unwrap();
    let replica = begun("r", "s");
    state.add(&replica).unwrap();
    drop(ReplicaState::find(&bob).unwrap().unwrap());
    let mut seen = ReplicaState::see(&watcher(&target)).unwrap().unwrap();
    let distrust = seen.distrust().unwrap().unwrap();
    assert!(distrust.ends_with("belongs to role \"bob\""), "{distrust}");
    assert_eq!(seen.replicas().unwrap(), [replica]);
    drop((state, seen));
    for (plant, fault) in [
        (
            "ALTER TABLE lockstep.replica ALTER apply_error SET DEFAULT 'x'",
            "a default",
        ),
        (
            "CREATE RULE act AS ON INSERT TO lockstep.replica DO ALSO SELECT 1",
            "a rule",
        ),
    ] {
        as_bob(&bob, plant);
        let words = ReplicaState::find(&bob).unwrap_err().to_string();
        assert!(words.contains(fault), "{words}");
        let undo = "ALTER TABLE lockstep.replica ALTER apply_error DROP DEFAULT; \
                    DROP RULE IF EXISTS act ON lockstep.replica";
        as_bob(&bob, undo);
    }
    assert!(ReplicaState::find(&bob).unwrap().is_some());
}
