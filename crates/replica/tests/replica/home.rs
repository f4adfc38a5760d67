//! A copy of a target's database has a copy of the state, and nothing is done with that.

use lockstep_apply::Control;
use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::assert_has;
use lockstep_replica::error::ReplicaError;
use lockstep_replica::lifecycle::create::create;
use lockstep_replica::lifecycle::follow::{Following, follow};
use lockstep_replica::lifecycle::remove::remove;
use lockstep_replica::state::ReplicaState;
use lockstep_replica::verify::{self};

use crate::{Told, conninfo, copied, options, to_verify, values};

fn refused<T>(result: Result<T, ReplicaError>) -> String {
    match result {
        Ok(_) => panic!("it is not refused"),
        Err(ReplicaError::State(words)) => words,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn nothing_is_done_in_a_copy_of_the_database() {
    let (_lab, source, target) =
        copied("CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1)");
    target.run("CREATE DATABASE clone TEMPLATE copy");
    let clone = conninfo(&target).with_database("clone").unwrap();
    let what = Following {
        target: clone.clone(),
        ..crate::following(&clone)
    };
    let replicated = to_verify(clone.clone());
    let mut again = options(&source, &target);
    again.target = clone.clone();
    for words in [
        refused(ReplicaState::find(&clone)),
        refused(ReplicaState::see(&clone)),
        refused(ReplicaState::open(&clone)),
        refused(follow(&what, &Control::default())),
        refused(remove("r", &clone, None)),
        refused(verify::replica(&replicated, &mut |_| {})),
        refused(create(&again, &mut Told::default())),
    ] {
        for part in [
            "\"clone\" has lockstep's state of database \"copy\"",
            "DROP SCHEMA lockstep CASCADE in \"clone\"",
        ] {
            assert!(words.contains(part), "{words}");
        }
    }
    let slots = "SELECT count(*) FROM pg_replication_slots";
    assert_eq!(values(&source, slots), ["1"]);

    // What it says helps, and the original does not notice. A database that is renamed is the same.
    let forget = |clone: &Conninfo| {
        let mut session = Connection::connect(clone, Purpose::Sql, "lockstep test").unwrap();
        session.execute("DROP SCHEMA lockstep CASCADE").unwrap();
    };
    forget(&clone);
    assert!(ReplicaState::find(&clone).unwrap().is_none());
    target.run("ALTER DATABASE copy RENAME TO original");
    let original = conninfo(&target).with_database("original").unwrap();
    let mut state = ReplicaState::find(&original).unwrap().unwrap();
    assert!(state.replica("r").unwrap().is_some());

    // A dump that is restored elsewhere, and a copy whose original is gone.
    let mut session = Connection::connect(&original, Purpose::Sql, "lockstep test").unwrap();
    session
        .execute("UPDATE lockstep.state_version SET system_id = '7', database_oid = 8")
        .unwrap();
    let words = refused(ReplicaState::find(&original));
    assert_has!(words, "another server (system identifier 7)");
    session
        .execute("UPDATE lockstep.state_version SET system_id = NULL")
        .unwrap();
    let words = refused(ReplicaState::find(&original));
    assert!(words.contains("that is gone (OID 8)"), "{words}");
}
