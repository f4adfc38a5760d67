//! A source and a target of different majors. `make test-majors` runs the other tests that way; these
//! say that it does, and what happens on the way back.

use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{major, source_major};
use lockstep_lab::server::Server;
use lockstep_replica::error::ReplicaError;
use lockstep_replica::lifecycle::create::create;

use crate::{Told, options, pair, server, values};

#[test]
fn the_servers_are_of_the_majors_that_are_asked_for() {
    let lab = Lab::for_tests().unwrap();
    for (name, wanted) in [("source", source_major()), ("target", major())] {
        let of_server = "SELECT current_setting('server_version_num')::int / 10000";
        let found = values(&server(&lab, name), of_server);
        assert_eq!(found, [wanted.unwrap().to_string()], "{name}");
    }
}

fn assert_nothing_is_changed(source: &Server, target: &Server) {
    let made = "SELECT slot_name::text FROM pg_replication_slots UNION ALL \
                SELECT pubname FROM pg_publication";
    assert!(values(source, made).is_empty());
    let made = "SELECT relname::text FROM pg_class WHERE relnamespace NOT IN \
                ('pg_catalog'::regnamespace, 'information_schema'::regnamespace, 'pg_toast'::regnamespace) \
                UNION ALL SELECT nspname FROM pg_namespace WHERE nspname = 'lockstep'";
    assert!(values(target, made).is_empty());
}

#[test]
fn a_column_option_that_is_the_sources_own_is_left_out_or_refused() {
    let (_lab, source, target) = pair(
        "CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1);
         UPDATE pg_attribute SET attoptions = '{pg_attver=1}'
             WHERE attrelid = 't'::regclass AND attname = 'a' AND attoptions IS NULL",
    );
    match create(&options(&source, &target), &mut Told::default()) {
        // This pg_dump knows it.
        Ok(_) => assert_eq!(values(&target, "SELECT a FROM t"), ["1"]),
        Err(error) => {
            let words = error.to_string();
            assert!(matches!(error, ReplicaError::Preflight(_)), "{words}");
            assert!(words.contains("does not leave out pg_attver"), "{words}");
            assert_nothing_is_changed(&source, &target);
        }
    }
}

#[test]
#[ignore = "needs a source that is newer than its target: make test-majors MAJORS=17-15"]
fn a_target_that_is_older_is_refused_before_anything_is_changed() {
    assert!(source_major().unwrap().get() > major().unwrap().get());
    let (_lab, source, target) =
        pair("CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1)");
    let mut told = Told::default();
    let error = create(&options(&source, &target), &mut told).unwrap_err();
    assert!(matches!(error, ReplicaError::Preflight(_)), "{error}");
    let says = &told.findings[0];
    assert!(says.is_error() && says.subject == "target", "{says:?}");
    assert!(says.says.contains("older than the source"), "{says:?}");
    assert_nothing_is_changed(&source, &target);
}
