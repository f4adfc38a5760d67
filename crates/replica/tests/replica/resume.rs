//! A copy that ends at any phase, and goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lockstep_lab::assert_has;
use lockstep_replica::lifecycle::create::{CreateOptions, create};
use lockstep_replica::state::{Phase, TableState};

use crate::create::rows;
use crate::{Told, on, options, pair, state_of, values};

/// Ends a creation at the beginning of a phase, as if the process had ended there: a panic runs no
/// more of its work than a kill would, and its sessions end.
pub fn end_at(phase: Phase, options: &CreateOptions) {
    let mut told = Told {
        at_phase: Some(Box::new(move |now| {
            if now == phase {
                std::panic::resume_unwind(Box::new("the end"));
            }
        })),
        ..Told::default()
    };
    let ended = catch_unwind(AssertUnwindSafe(|| create(options, &mut told)));
    assert!(ended.is_err(), "{phase:?}: {ended:?}");
}

#[test]
fn every_phase_can_be_begun_again() {
    let (_lab, source, target) = pair(
        "CREATE TABLE a (id int PRIMARY KEY, v text UNIQUE);
         INSERT INTO a SELECT n, n FROM generate_series(1, 10) n;
         CREATE TABLE b (id int PRIMARY KEY REFERENCES a); INSERT INTO b VALUES (1);
         CREATE INDEX ON a (lower(v)); CREATE SEQUENCE s; SELECT nextval('s');
         CREATE TABLE p (k int PRIMARY KEY) PARTITION BY LIST (k);
         CREATE TABLE p1 PARTITION OF p DEFAULT; INSERT INTO p VALUES (5);
         CREATE STATISTICS st ON id, v FROM a",
    );
    let options = options(&source, &target);
    let order = [
        Phase::Preparing,
        Phase::Schema,
        Phase::Copying,
        Phase::Indexing,
        Phase::Finishing,
    ];
    let mut starts = Vec::new();
    for phase in order {
        end_at(phase, &options);
        let mut state = state_of(&target);
        let replica = state.replica("r").unwrap().unwrap();
        assert_eq!(replica.phase, phase);
        starts.extend(replica.start);
        // Rows that come later are in the WAL that the slot keeps.
        on(&source, "INSERT INTO a (id) SELECT max(id) + 1 FROM a");
    }
    let created = create(&options, &mut Told::default()).unwrap();
    assert!(
        starts.iter().all(|start| *start == created.start),
        "{starts:?}"
    );
    let mut state = state_of(&target);
    let tables = state.tables("r").unwrap();
    // The snapshot that was copied is the one of the call that copied: three rows came before.
    assert!(tables.iter().all(|table| table.start > Some(created.start)));
    assert_eq!(tables[0].rows, 13);
    assert_eq!(values(&target, "SELECT count(*) FROM a"), ["13"]);
    assert_eq!(rows(&target, "p1"), rows(&source, "p1"));
    let slots = values(&source, "SELECT slot_name FROM pg_replication_slots");
    assert_eq!(slots.len(), 1, "{slots:?}");
    // From 18 on NOT NULL is one, too.
    let constraints = "SELECT count(*) FROM pg_constraint WHERE conrelid IN ('a'::regclass,
        'b'::regclass, 'p1'::regclass) AND contype <> 'n'";
    assert_eq!(values(&target, constraints), values(&source, constraints));
}

#[test]
fn indexes_that_are_half_made_are_made_again() {
    let (_lab, source, target) = pair(
        "CREATE TABLE a (id int PRIMARY KEY, v text UNIQUE, w int4range, CHECK (id > 0),
             EXCLUDE USING gist (w WITH &&));
         CREATE TABLE b (id int PRIMARY KEY REFERENCES a); CREATE INDEX ON a (lower(v));
         CREATE TABLE p (k int PRIMARY KEY) PARTITION BY LIST (k);
         CREATE TABLE p1 PARTITION OF p DEFAULT; CREATE INDEX ON p ((k + 1));
         CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
         CREATE TRIGGER t BEFORE INSERT ON p FOR EACH ROW EXECUTE FUNCTION f();
         CREATE RULE r AS ON DELETE TO b DO INSTEAD NOTHING;
         CREATE POLICY y ON b USING (true); CREATE STATISTICS st ON id, v FROM a",
    );
    let options = options(&source, &target);
    // All is made by then, and the state says that none is.
    end_at(Phase::Finishing, &options);
    on(
        &target,
        "UPDATE lockstep.replica SET phase = 'indexing'; DROP INDEX a_lower_idx",
    );
    create(&options, &mut Told::default()).unwrap();
    let made = "
        SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
        UNION ALL SELECT conname FROM pg_constraint WHERE conrelid <> 0 AND contype <> 'n'
            AND connamespace = 'public'::regnamespace
        UNION ALL SELECT tgname || tgrelid::regclass FROM pg_trigger WHERE NOT tgisinternal
        UNION ALL SELECT rulename FROM pg_rules WHERE schemaname = 'public'
        UNION ALL SELECT polname FROM pg_policy UNION ALL SELECT stxname FROM pg_statistic_ext
        ORDER BY 1";
    assert_eq!(values(&target, made), values(&source, made));
}

#[test]
fn a_finished_table_stays_and_a_begun_one_is_copied_again() {
    let (_lab, source, target) = pair(
        "CREATE TABLE done (id int PRIMARY KEY); INSERT INTO done VALUES (1);
         CREATE TABLE begun (id int PRIMARY KEY); INSERT INTO begun VALUES (1), (2)",
    );
    let options = options(&source, &target);
    end_at(Phase::Indexing, &options);
    let mut state = state_of(&target);
    let first = state.replica("r").unwrap().unwrap().start;
    // As a kill leaves it while several sessions load a table.
    on(
        &target,
        "UPDATE lockstep.replica SET phase = 'copying';
         UPDATE lockstep.table_copy SET state = 'copying' WHERE table_name = 'begun';
         DELETE FROM begun WHERE id = 2",
    );
    on(
        &source,
        "INSERT INTO done VALUES (2); INSERT INTO begun VALUES (3)",
    );
    create(&options, &mut Told::default()).unwrap();
    assert_eq!(
        values(&target, "SELECT id FROM done"),
        ["1"],
        "its changes are applied"
    );
    assert_eq!(
        values(&target, "SELECT id FROM begun ORDER BY 1"),
        ["1", "2", "3"]
    );
    let tables = state.tables("r").unwrap();
    assert!(tables.iter().all(|table| table.state == TableState::Copied));
    let (begun, done) = (tables[0].start, tables[1].start);
    assert_eq!(done, first);
    assert!(begun > done, "{begun:?} {done:?}");

    // Other options than those it was begun with.
    on(&target, "UPDATE lockstep.replica SET phase = 'finishing'");
    let mut other = options.clone();
    other.excluded.schemas = vec!["public".to_owned()];
    let error = create(&other, &mut Told::default())
        .unwrap_err()
        .to_string();
    assert_has!(error, "other exclusions", "replica drop r");
    let mut other = options.clone();
    other.source = other.source.with_database("postgres").unwrap();
    let error = create(&other, &mut Told::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("another source"), "{error}");
    // Someone else works on it.
    assert!(state.lock("r").unwrap(), "the session before has ended");
    let error = create(&options, &mut Told::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("another lockstep"), "{error}");
}
