//! An alteration of a replica's tables that dies at each failpoint, and ends the same.

use lockstep_apply::Control;
use lockstep_lab::assert_has;
use lockstep_replica::lifecycle::alter::alter;
use lockstep_replica::lifecycle::alteration::Wishes;
use lockstep_replica::lifecycle::follow::follow;
use lockstep_replica::state::failpoint::{ALTER_BEGUN, ALTER_COPIED, ALTER_PUBLISHED};
use lockstep_spool::failpoint::Failpoint;

use super::Scene;
use super::process::{Death, Does};
use crate::apply_lab::until;
use crate::{Told, conninfo, following, on, to_alter, values};

/// Failpoints in the order in which an alteration comes there.
pub const ORDER: [Failpoint; 3] = [ALTER_BEGUN, ALTER_PUBLISHED, ALTER_COPIED];

/// All rows of a table, or of a part of it.
fn all(what: &str) -> String {
    format!("SELECT count(*) || ' ' || coalesce(sum(hashtext(t::text)), 0) FROM {what} t")
}

#[test]
fn an_alteration_goes_on_from_every_failpoint() {
    let scene = Scene::new();
    let made = "CREATE TABLE later (id int PRIMARY KEY)";
    on(&scene.source, made);
    on(&scene.target, made);
    // Nothing is applied before: all of it is in the slot, of each kind of table.
    let number = std::cell::Cell::new(0);
    let write = || {
        let n = number.get() + 1;
        number.set(n);
        scene.write(&format!(
            "INSERT INTO much SELECT g, 'v{n}' FROM generate_series(1, 9) g; DELETE FROM much WHERE n = {n}; \
             INSERT INTO later VALUES ({n}); UPDATE later SET id = -id WHERE id = {n} - 1; \
             INSERT INTO emptied VALUES ({n})"
        ));
    };
    write();
    let target = conninfo(&scene.target);
    for at in ORDER {
        let mut process = scene.start(Does::Alter, 1, Some(Death::at(at, 0)));
        process.dies_at(at, || {});
        write();
        let refused = follow(&following(&target), &Control::default()).unwrap_err();
        assert_has!(refused.to_string(), "is being altered");
    }
    // What is wanted is no other thing.
    let mut other = to_alter(target.clone());
    other.wishes.exclude.tables = vec!["public.k".to_owned()];
    let refused = alter(&other, &mut Told::default()).unwrap_err();
    assert_has!(refused.to_string(), "in another way");
    assert!(
        scene.start(Does::Alter, 1, None).succeeds(),
        "{}",
        scene.said()
    );
    write();

    let _follower = scene.start(Does::Follow, 1, None);
    until("that it applies", || scene.is_applied_to());
    write();
    let end = scene.source.flush_lsn().unwrap();
    let applied = format!("SELECT max(lsn) >= '{end}' FROM lockstep.apply_position");
    until("that all is applied", || {
        values(&scene.target, &applied) == ["t"]
    });
    scene.assert_prefix();
    for table in ["log", "k", "later"] {
        let (theirs, ours) = (
            values(&scene.source, &all(table)),
            values(&scene.target, &all(table)),
        );
        assert_eq!(theirs, ours, "{table} {}", scene.said());
    }
    let part = all("(SELECT * FROM much WHERE n % 2 = 0)");
    let (theirs, ours) = (
        values(&scene.source, &part),
        values(&scene.target, &all("much")),
    );
    assert_eq!(theirs, ours, "{}", scene.said());
    assert_eq!(values(&scene.target, &all("emptied")), ["0 0"]);
    let missing = "SELECT sum(missing_rows)::text FROM lockstep.table_copy";
    assert_eq!(values(&scene.target, missing), ["0"], "{}", scene.said());
    let listed = "SELECT string_agg(table_name, ' ' ORDER BY table_name) FROM lockstep.table_copy";
    assert_eq!(values(&scene.target, listed), ["k later log much"]);
    let again = alter(&to_alter(target), &mut Told::default()).unwrap_err();
    // The process that applies has the replica.
    assert_has!(again.to_string(), "another lockstep works on");
}

/// Nothing of what is left out, and of filters, tells that apart from what was begun.
#[test]
fn a_repeat_that_wants_another_table_does_both() {
    let scene = Scene::new();
    for server in [&scene.source, &scene.target] {
        on(
            server,
            "CREATE TABLE later (id int PRIMARY KEY); CREATE TABLE latest (id int PRIMARY KEY)",
        );
    }
    scene.write("INSERT INTO later VALUES (1); INSERT INTO latest VALUES (2)");
    let mut process = scene.start(Does::Alter, 1, Some(Death::at(ALTER_BEGUN, 0)));
    process.dies_at(ALTER_BEGUN, || {});
    let mut other = to_alter(conninfo(&scene.target));
    other.wishes = Wishes::default();
    other.wishes.include.tables = vec!["public.latest".to_owned()];
    let altered = alter(&other, &mut Told::default()).unwrap();
    let joins = altered.changes.unwrap().joins;
    assert!(
        joins.len() == 1 && joins[0].0.table == "latest",
        "{joins:?}"
    );
    for (table, rows) in [("later", "1 1"), ("latest", "1 2")] {
        let sum = format!("SELECT count(*) || ' ' || sum(id) FROM {table}");
        assert_eq!(values(&scene.target, &sum), [rows], "{table}");
    }
}
