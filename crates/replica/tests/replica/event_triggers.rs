//! Event triggers of users, which are copied, and statements of the replica.

use lockstep_replica::lifecycle::alter::{AlterOptions, alter};
use lockstep_replica::lifecycle::alteration::Wishes;
use lockstep_replica::lifecycle::create::create;
use lockstep_replica::lifecycle::remove::remove;
use lockstep_replica::state::ReplicaState;

use crate::state::VERSION_1;
use crate::{Told, conninfo, copied, on, options, pair, sql, to_alter, values};

/// What event triggers call.
const CALLED: &str = "CREATE TABLE log (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tag text); \
    CREATE FUNCTION log() RETURNS event_trigger LANGUAGE plpgsql AS \
      $$BEGIN INSERT INTO public.log (tag) VALUES (tg_tag); END$$; \
    CREATE FUNCTION forbid() RETURNS event_trigger LANGUAGE plpgsql AS \
      $$BEGIN RAISE EXCEPTION '% is forbidden', tg_tag; END$$";

/// One logs DDL, the other forbids what the replica does.
const TRIGGERS: &str = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); \
    CREATE TABLE gone (id int PRIMARY KEY); \
    CREATE MATERIALIZED VIEW m AS SELECT id FROM t; \
    CREATE EVENT TRIGGER logs ON ddl_command_end EXECUTE FUNCTION log(); \
    CREATE EVENT TRIGGER forbids ON ddl_command_start \
      WHEN TAG IN ('REFRESH MATERIALIZED VIEW', 'CREATE PUBLICATION', 'DROP PUBLICATION', 'ALTER TABLE', \
        'DROP TABLE', 'ALTER PUBLICATION') \
      EXECUTE FUNCTION forbid(); \
    CREATE EVENT TRIGGER always ON ddl_command_start WHEN TAG IN ('REFRESH MATERIALIZED VIEW') \
      EXECUTE FUNCTION forbid(); \
    ALTER EVENT TRIGGER always ENABLE ALWAYS";

#[test]
fn event_triggers_of_users_stay_silent_for_the_replicas_statements() {
    let (_lab, source, target) = copied(&format!("{CALLED}; {TRIGGERS}"));
    assert_eq!(values(&target, "SELECT id FROM m"), ["1"]);
    let triggers = "SELECT concat(evtname, evtenabled) FROM pg_event_trigger ORDER BY 1";
    assert_eq!(values(&target, triggers), ["alwaysA", "forbidsO", "logsO"]);
    // A table is dropped with them in place.
    let mut leaves = AlterOptions {
        wishes: Wishes::default(),
        drops: true,
        ..to_alter(conninfo(&target))
    };
    leaves.wishes.exclude.tables = vec!["public.gone".to_owned()];
    alter(&leaves, &mut Told::default()).unwrap();
    assert_eq!(
        values(&target, "SELECT to_regclass('public.gone')"),
        ["null"]
    );
    // An older state is upgraded with them in place.
    let mut session = sql(&target);
    session
        .execute("SET session_replication_role = replica")
        .unwrap();
    session.execute(VERSION_1).unwrap();
    assert!(ReplicaState::find(&conninfo(&target)).unwrap().is_some());
    remove("r", &conninfo(&target), None).unwrap();
    for server in [&source, &target] {
        assert_eq!(values(server, "SELECT tag FROM log"), [""; 0]);
    }
    // They still fire for others.
    let refused = sql(&target).execute("REFRESH MATERIALIZED VIEW m");
    assert!(refused.unwrap_err().to_string().contains("is forbidden"));
}

/// Event triggers that always fire, and a foreign key that the target refuses.
const ALWAYS: &str = "CREATE TABLE parent (id int PRIMARY KEY); \
    CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES parent); CREATE INDEX ON child (p); \
    SET session_replication_role = replica; INSERT INTO child VALUES (1, 1); RESET session_replication_role; \
    CREATE EVENT TRIGGER logs ON ddl_command_end EXECUTE FUNCTION log(); \
    CREATE EVENT TRIGGER drops ON sql_drop EXECUTE FUNCTION log(); \
    CREATE EVENT TRIGGER forbids ON ddl_command_start WHEN TAG IN ('CREATE INDEX', 'DROP INDEX') \
      EXECUTE FUNCTION forbid(); \
    ALTER EVENT TRIGGER logs ENABLE ALWAYS; ALTER EVENT TRIGGER drops ENABLE ALWAYS; \
    ALTER EVENT TRIGGER forbids ENABLE REPLICA";

#[test]
fn event_triggers_that_always_fire_stay_silent_while_objects_are_made_again() {
    let (_lab, source, target) = pair(&format!("{CALLED}; {ALWAYS}"));
    on(
        &target,
        "CREATE FUNCTION own() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN END$$; \
         CREATE EVENT TRIGGER own ON sql_drop EXECUTE FUNCTION own()",
    );
    let options = options(&source, &target);
    // The second call begins the indexes again, as after a kill.
    for _ in 0..2 {
        let created = create(&options, &mut Told::default()).unwrap();
        let unmade: Vec<_> = created.unmade.iter().map(|it| it.name()).collect();
        assert_eq!(unmade, ["foreign key public.child child_p_fkey"]);
        let log = "SELECT concat(id, tag) FROM log ORDER BY id";
        assert_eq!(values(&target, log), values(&source, log));
        let triggers = "SELECT concat(evtname, evtenabled) FROM pg_event_trigger ORDER BY 1";
        assert_eq!(
            values(&target, triggers),
            ["dropsA", "forbidsR", "logsA", "ownO"]
        );
        on(&target, "UPDATE lockstep.replica SET phase = 'indexing'");
    }
}
