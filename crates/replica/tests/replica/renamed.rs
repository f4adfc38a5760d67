//! Tables that are renamed, or made again, after the copy.

use std::time::Instant;

use lockstep_apply::Stats;
use lockstep_lab::assert_has;
use lockstep_lab::server::{Server, Stop};
use lockstep_replica::lifecycle::create::create;
use lockstep_replica::status::source::Source;
use lockstep_replica::verify;

use crate::apply_lab::{LONG, blocked, catch_up, while_following};
use crate::{Told, conninfo, copied, on, options, pair, state_of, to_verify, values};

/// Words for a table, among those that are not replicated, or not under their names; None if it is not.
fn said_of(target: &Server, table: &str) -> Option<String> {
    let mut state = state_of(target);
    let replica = state.replica("r").unwrap().unwrap();
    let tables = state.tables("r").unwrap();
    let asked = Source::ask(&replica, None, Some(&tables), None).unwrap();
    let lost = asked.lost.iter().find(|lost| lost.table.table == table);
    lost.map(|lost| lost.words())
}

#[test]
fn a_table_that_was_changed_on_the_target_only_is_told_until_it_is_the_copy_again() {
    let rows = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); \
                CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1)";
    let (_lab, source, target) = copied(rows);
    let told = |table: &str| said_of(&target, table);
    assert_eq!((told("t"), told("u")), (None, None));
    for empty in [
        "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER TABLE t RENAME TO old; CREATE TABLE t (id int PRIMARY KEY)",
    ] {
        on(&target, empty);
        let words = told("t").unwrap();
        assert!(words.contains("in place of the one"), "{words}");
        let compare = || verify::replica(&to_verify(conninfo(&target)), &mut |_| ()).unwrap();
        assert!(!compare().is_equal());
        assert!(told("t").is_some());
        on(&target, "INSERT INTO t VALUES (1)");
        assert!(compare().is_equal());
        assert_eq!(told("t"), None, "verify has found it equal");
    }
    // Its changes go into the table that was adopted.
    on(&source, "INSERT INTO t VALUES (2)");
    let report = verify::replica(&to_verify(conninfo(&target)), &mut |_| ()).unwrap();
    assert!(report.is_equal(), "{report:?}");
    assert_eq!(values(&target, "SELECT id FROM t ORDER BY id"), ["1", "2"]);

    on(&target, "ALTER TABLE u RENAME TO v");
    let words = told("u").unwrap();
    assert_has!(words, "called \"public.v\" on the target");
    let report = verify::replica(&to_verify(conninfo(&target)), &mut |_| ()).unwrap();
    assert!(!report.is_equal(), "{report:?}");
    on(&target, "ALTER TABLE v RENAME TO u");
    assert_eq!(told("u"), None);
}

/// Names of the tables that are not replicated, or not under their names.
fn lost(target: &Server) -> Vec<String> {
    let mut state = state_of(target);
    let replica = state.replica("r").unwrap().unwrap();
    let tables = state.tables("r").unwrap();
    let asked = Source::ask(&replica, None, Some(&tables), None).unwrap();
    let names = asked.lost.into_iter().map(|lost| lost.table.table);
    names.collect()
}

#[test]
fn a_renamed_table_is_replicated_into_the_table_that_was_copied() {
    let tables = "CREATE SCHEMA s; CREATE TABLE pair (id int PRIMARY KEY); CREATE TABLE one (id int \
                  PRIMARY KEY); CREATE TABLE ahead (id int PRIMARY KEY); CREATE TABLE moved (id int PRIMARY \
                  KEY); CREATE TABLE x (id int PRIMARY KEY); CREATE TABLE y (id int PRIMARY KEY); \
                  CREATE TABLE again (id int); INSERT INTO pair VALUES (1); INSERT INTO again VALUES (1)";
    let (_lab, source, target) = copied(tables);
    // While nothing follows: what committed before the renames arrives under the old names.
    on(
        &source,
        "INSERT INTO ahead VALUES (1); INSERT INTO pair VALUES (2)",
    );
    let of_both = "ALTER TABLE pair RENAME TO pair2; ALTER TABLE moved SET SCHEMA s; \
                   ALTER TABLE ahead RENAME TO ahead2";
    on(&target, of_both);
    on(&source, of_both);
    let of_source = "ALTER TABLE one RENAME TO one2; ALTER TABLE x RENAME TO z; ALTER TABLE y RENAME TO x; \
                     ALTER TABLE z RENAME TO y";
    on(&source, of_source);
    let changes = "INSERT INTO pair2 VALUES (3); DELETE FROM pair2 WHERE id = 1; INSERT INTO one2 VALUES (1); \
                   INSERT INTO s.moved VALUES (1); INSERT INTO ahead2 VALUES (2); \
                   INSERT INTO y VALUES (10); INSERT INTO x VALUES (20)";
    on(&source, changes);
    let what = crate::following(&conninfo(&target));
    let followed = while_following(&what, |control| {
        catch_up(&source, control);
        for (table, ids) in [
            ("pair2", "2 3"),
            ("one", "1"),
            ("s.moved", "1"),
            ("ahead2", "1 2"),
            ("x", "10"),
            ("y", "20"),
        ] {
            let query = format!("SELECT string_agg(id::text, ' ' ORDER BY id) FROM {table}");
            assert_eq!(values(&target, &query), [ids], "{table}");
        }
        // Names that differ are told, those that do not are not.
        assert_eq!(lost(&target), ["one", "x", "y"]);

        // Made again on the source only: the target's rows are those of the table before.
        let mut state = state_of(&target);
        let publication = state.replica("r").unwrap().unwrap().publication;
        let anew = format!(
            "DROP TABLE again; CREATE TABLE again (id int); ALTER PUBLICATION {publication} ADD TABLE again; \
             INSERT INTO again VALUES (2)"
        );
        on(&source, &anew);
        let words = blocked(control);
        assert!(words.contains("is the copy of another table"), "{words}");
        assert_eq!(lost(&target), ["again", "one", "x", "y"]);
        on(&target, "DROP TABLE again; CREATE TABLE again (id int)");
        control.resume();
        catch_up(&source, control);
        assert_eq!(values(&target, "SELECT id FROM again"), ["2"]);
        assert_eq!(lost(&target), ["one", "x", "y"]);
    });
    followed.unwrap();
}

#[test]
fn tables_that_come_after_the_copy_are_told_and_later_partitions_are_replicated() {
    let tables = "CREATE SCHEMA hidden; CREATE TABLE hidden.out (id int); CREATE UNLOGGED TABLE light (id int); \
                  CREATE TABLE gone (id int); CREATE TABLE kept (id int); \
                  CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)";
    let (_lab, source, target) = pair(tables);
    let mut options = options(&source, &target);
    options.excluded.schemas = vec!["hidden".to_owned()];
    create(&options, &mut Told::default()).unwrap();
    let partition = "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)";
    on(&target, partition);
    let what = crate::following(&conninfo(&target));
    let followed = while_following(&what, |control| {
        let told = |count| {
            let is_told = |stats: &Stats| {
                let told = stats.unreplicated.as_ref();
                told.is_some_and(|told| told.tables == count)
            };
            assert!(control.wait_for(LONG, is_told), "{:?}", control.stats());
            control.stats().unreplicated.unwrap().words
        };
        assert_eq!(told(0), None);
        // Nothing arrives meanwhile.
        on(&target, "DROP TABLE kept");
        let words = told(1).unwrap();
        let part = "\"public.kept\" (the target no longer has such a table, nor its rows)";
        assert!(words.contains(part), "{words}");
        let after = format!(
            "{partition}; INSERT INTO p VALUES (1); CREATE TABLE hidden.more (id int); \
             CREATE TABLE fresh (id int); ALTER TABLE light SET LOGGED; DROP TABLE gone; \
             ALTER TABLE hidden.out SET SCHEMA public"
        );
        on(&source, &after);
        let words = told(5).unwrap();
        for part in [
            "\"public.gone\" (the source no longer has such a table",
            "\"public.fresh\" (it was made, or became logged, after the copy)",
            "\"public.light\" (it was made",
            "\"public.out\" (it was made",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert_eq!(lost(&target), ["gone", "kept", "fresh", "light", "out"]);
        // The state tells those who do not ask the source.
        let mut state = state_of(&target);
        let started = Instant::now();
        while (state.applied("r").unwrap().unreplicated).is_none_or(|it| it.tables != 5) {
            assert!(started.elapsed() < LONG, "the state does not say it");
        }
        // Mended on the target, where nothing tells the stream of it.
        on(&target, "DROP TABLE gone");
        told(4);
    });
    followed.unwrap();
    assert_eq!(values(&target, "SELECT id FROM p"), ["1"]);
}

/// What somebody does to the target's table, or to both, whatever may be lost of its rows by that.
enum Done<'a> {
    Source(&'a str),
    Target(&'a str),
    /// The target's server crashes.
    Crash,
}

/// Lets `run` see `first`, does `then`, and looks whether the table is told of until verify finds it equal,
/// which it is after `mended`.
fn is_told_until_verified(first: &Done<'_>, then: &[Done<'_>], mended: &str) {
    let rows = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)";
    let (_lab, source, mut target) = copied(rows);
    let act = |target: &mut Server, done: &Done<'_>| match done {
        Done::Source(sql) => on(&source, sql),
        Done::Target(sql) => on(target, sql),
        Done::Crash => {
            target.stop(Stop::Immediate).unwrap();
            target.start().unwrap();
        }
    };
    act(&mut target, first);
    let what = crate::following(&conninfo(&target));
    let followed = while_following(&what, |control| {
        let is_told =
            |stats: &Stats| (stats.unreplicated.as_ref()).is_some_and(|told| told.tables == 1);
        assert!(control.wait_for(LONG, is_told), "{:?}", control.stats());
    });
    followed.unwrap();
    for done in then {
        act(&mut target, done);
        if let Done::Source(_) = done {
            let followed = while_following(&what, |control| catch_up(&source, control));
            followed.unwrap();
        }
    }
    let compare = || verify::replica(&to_verify(conninfo(&target)), &mut |_| ()).unwrap();
    assert!(said_of(&target, "t").is_some(), "nothing is said");
    assert!(!compare().is_equal());
    assert!(said_of(&target, "t").is_some(), "they are not equal");
    on(&target, mended);
    let words = said_of(&target, "t").expect("nobody has compared it");
    assert!(words.contains("lockstep replica verify"), "{words}");
    let report = compare();
    assert!(report.is_equal(), "{report:?}");
    assert_eq!(said_of(&target, "t"), None);
}

#[test]
fn a_target_table_that_was_unlogged_is_told_until_verify_finds_it_equal() {
    is_told_until_verified(
        &Done::Target("ALTER TABLE t SET UNLOGGED"),
        &[Done::Crash, Done::Target("ALTER TABLE t SET LOGGED")],
        "INSERT INTO t VALUES (1)",
    );
}

#[test]
fn a_target_table_that_lacked_a_column_is_told_until_verify_finds_it_equal() {
    is_told_until_verified(
        &Done::Source("ALTER TABLE t ADD n int DEFAULT 7"),
        &[Done::Target("ALTER TABLE t ADD n int")],
        "UPDATE t SET n = 7",
    );
}

#[test]
fn a_target_table_that_was_away_and_is_back_is_told_until_verify_finds_it_equal() {
    is_told_until_verified(
        &Done::Target("ALTER TABLE t RENAME TO old; CREATE TABLE t (id int PRIMARY KEY)"),
        &[
            Done::Source("INSERT INTO t VALUES (2)"),
            Done::Target("DROP TABLE t; ALTER TABLE old RENAME TO t"),
        ],
        "INSERT INTO t VALUES (2)",
    );
}
