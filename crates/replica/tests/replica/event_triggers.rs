//! Event triggers of users, which are copied, and statements of the replica.

use lockstep_replica::lifecycle::remove::remove;
use lockstep_replica::state::ReplicaState;

use crate::state::VERSION_1;
use crate::{conninfo, copied, sql, values};

/// One logs DDL, the other forbids what the replica does.
const TRIGGERS: &str = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); \
    CREATE MATERIALIZED VIEW m AS SELECT id FROM t; \
    CREATE TABLE log (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tag text); \
    CREATE FUNCTION log() RETURNS event_trigger LANGUAGE plpgsql AS \
      $$BEGIN INSERT INTO public.log (tag) VALUES (tg_tag); END$$; \
    CREATE FUNCTION forbid() RETURNS event_trigger LANGUAGE plpgsql AS \
      $$BEGIN RAISE EXCEPTION '% is forbidden', tg_tag; END$$; \
    CREATE EVENT TRIGGER logs ON ddl_command_end EXECUTE FUNCTION log(); \
    CREATE EVENT TRIGGER forbids ON ddl_command_start \
      WHEN TAG IN ('REFRESH MATERIALIZED VIEW', 'CREATE PUBLICATION', 'DROP PUBLICATION', 'ALTER TABLE') \
      EXECUTE FUNCTION forbid(); \
    CREATE EVENT TRIGGER always ON ddl_command_start WHEN TAG IN ('REFRESH MATERIALIZED VIEW') \
      EXECUTE FUNCTION forbid(); \
    ALTER EVENT TRIGGER always ENABLE ALWAYS";

#[test]
fn event_triggers_of_users_stay_silent_for_the_replicas_statements() {
    let (_lab, source, target) = copied(TRIGGERS);
    assert_eq!(values(&target, "SELECT id FROM m"), ["1"]);
    let triggers = "SELECT concat(evtname, evtenabled) FROM pg_event_trigger ORDER BY 1";
    assert_eq!(values(&target, triggers), ["alwaysA", "forbidsO", "logsO"]);
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
