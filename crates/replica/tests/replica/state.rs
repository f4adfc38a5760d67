//! The state in the target.

use std::thread;
use std::time::Duration;

use lockstep_apply::target_state::ADD_MISSING;
use lockstep_apply::{FullBy, SpoolFull, SpoolStats, Unreplicated};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::pause;
use lockstep_lab::server::SUPERUSER;
use lockstep_replica::names::TableName;
use lockstep_replica::publication::Published;
use lockstep_replica::publication::subset::Subset;
use lockstep_replica::state::{
    Applied, CyclesNow, Held, Holder, Phase, Replica, ReplicaState, RunningCycle, TableState,
    copied_sql, copying_sql,
};
use lockstep_wire::stream::Timestamp;
use lockstep_wire::{Lsn, Timeline};

use crate::{conninfo, on, server, sql, state_of, values};

fn replica(name: &str) -> Replica {
    Replica {
        name: name.to_owned(),
        source: "host=a".to_owned(),
        system_id: "7".to_owned(),
        source_database: "d".to_owned(),
        slot: "s".to_owned(),
        publication: "p".to_owned(),
        origin: "o".to_owned(),
        exclude_schemas: vec!["a\"b".to_owned()],
        exclude_tables: Vec::new(),
        subsets: vec![
            Subset {
                table: TableName {
                    schema: "S.\"1".to_owned(),
                    table: "é".to_owned(),
                },
                filter: Some("a = E'\\\\' OR \"b\" = 'it''s' -- é".to_owned()),
                columns: None,
            },
            Subset {
                table: TableName {
                    schema: "a".to_owned(),
                    table: "t".to_owned(),
                },
                filter: None,
                columns: Some(vec!["x,\"y".to_owned(), "Z".to_owned()]),
            },
        ],
        phase: Phase::Preparing,
        start: None,
        paused: false,
        resumes: 0,
        frequency: Duration::ZERO,
        forces: 0,
        ddl: false,
        altering: false,
        read_only: false,
        bandwidth: None,
    }
}

#[test]
fn what_is_written_is_read() {
    let lab = Lab::for_tests().unwrap();
    let target = server(&lab, "target");
    let conninfo = conninfo(&target);
    assert!(ReplicaState::find(&conninfo).unwrap().is_none());
    let mut state = ReplicaState::open(&conninfo).unwrap();
    assert!(state.replicas().unwrap().is_empty());
    state.add(&replica("r")).unwrap();
    assert!(state.add(&replica("r")).is_err());
    assert_eq!(state.replica("r").unwrap(), Some(replica("r")));
    assert_eq!(state.replica("q").unwrap(), None);

    let start = Lsn::from(0x1_0000_0010);
    let made = "[null, [true, true, true, true], false, false, null, [], \
                [[7, \"s\", \"t\", false, [[1, \"a\"]], \"(a > 0)\", \"x\"]]]";
    assert_eq!(state.expected(&replica("r")).unwrap().made, None);
    state.set_start("r", start, Timeline::FIRST, made).unwrap();
    let expected = state.expected(&replica("r")).unwrap();
    assert_eq!(expected.made, Some(Published::parse(made).unwrap()));
    assert_eq!(expected.right, Some(start));
    state.set_right("r", Lsn::from(9)).unwrap();
    let expected = state.expected(&replica("r")).unwrap();
    assert_eq!(expected.right, Some(Lsn::from(9)));
    let read = state.replica("r").unwrap().unwrap();
    assert_eq!((read.phase, read.start), (Phase::Schema, Some(start)));
    for phase in [
        Phase::Copying,
        Phase::Indexing,
        Phase::Finishing,
        Phase::Ready,
    ] {
        state.set_phase("r", phase).unwrap();
        assert_eq!(state.replica("r").unwrap().unwrap().phase, phase);
    }

    let name = |table: &str| TableName {
        schema: "it's".to_owned(),
        table: table.to_owned(),
    };
    let tables = ["a", "b"].map(name);
    let listed = tables.clone().map(|table| (table, 7));
    state.add_tables("r", &listed).unwrap();
    let mut session = sql(&target);
    session
        .execute(&copying_sql("r", &tables[0]).unwrap())
        .unwrap();
    // The state is part of the transaction that it is changed in.
    let sql = copied_sql("r", start, &[(&tables[0], 3, 40), (&tables[1], 5, 60)]).unwrap();
    session.execute(&format!("BEGIN; {sql}; ROLLBACK")).unwrap();
    let states: Vec<_> = state
        .tables("r")
        .unwrap()
        .iter()
        .map(|it| it.state)
        .collect();
    assert_eq!(states, [TableState::Copying, TableState::Waiting]);
    session.execute(&sql).unwrap();
    // What is listed stays as it is.
    state.add_tables("r", &listed).unwrap();
    let read = state.tables("r").unwrap();
    assert_eq!(read[1].state, TableState::Copied);
    assert_eq!(
        (read[1].rows, read[1].bytes, read[1].start),
        (5, 60, Some(start))
    );

    state.remove("r").unwrap();
    assert!(state.replicas().unwrap().is_empty());
    assert!(state.tables("r").unwrap().is_empty());
    state.add(&replica("r")).unwrap();
    assert_eq!(state.replicas().unwrap(), [replica("r")], "nothing is left");
}

#[test]
fn one_session_works_on_a_replica_at_a_time() {
    let lab = Lab::for_tests().unwrap();
    let target = server(&lab, "target");
    let conninfo = conninfo(&target);
    let mut state = ReplicaState::open(&conninfo).unwrap();
    state.add(&replica("r")).unwrap();
    let mut other = ReplicaState::find(&conninfo).unwrap().unwrap();
    assert_eq!(other.holder("r").unwrap(), Holder::Nobody);
    assert!(state.lock("r").unwrap());
    assert_eq!(other.holder("r").unwrap(), Holder::Other);
    state.set_applied("r", &Applied::default()).unwrap();
    assert_eq!(other.holder("r").unwrap(), Holder::Apply);
    assert!(!other.lock("r").unwrap());
    assert!(other.lock("q").unwrap());
    assert_eq!(state.holder("q").unwrap(), Holder::Other);
    // The last write of a process that was killed arrives while another one waits, and its session ends
    // later.
    let waits = "SELECT pid::text FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    thread::scope(|scope| {
        scope.spawn(|| {
            while values(&target, waits).is_empty() {
                pause();
            }
            state.set_applied("r", &Applied::default()).unwrap();
            thread::sleep(Duration::from_secs(2));
            drop(state);
        });
        assert!(other.lock("r").unwrap(), "it waits for a session that ends");
    });
    let mut third = ReplicaState::find(&conninfo).unwrap().unwrap();
    assert_eq!(third.holder("r").unwrap(), Holder::Other, "not apply");
}

#[test]
fn apply_is_asked_and_says_how_far_it_is() {
    let lab = Lab::for_tests().unwrap();
    let target = server(&lab, "target");
    let mut other = ReplicaState::open(&conninfo(&target)).unwrap();
    other.add(&replica("r")).unwrap();
    assert!(other.set_paused("r", true).unwrap());
    let asked = other.replica("r").unwrap().unwrap();
    assert!(asked.paused && asked.resumes == 0);
    assert!(other.set_paused("r", false).unwrap());
    let asked = other.replica("r").unwrap().unwrap();
    assert!(!asked.paused && asked.resumes == 1);
    assert!(!other.set_paused("q", true).unwrap());
    assert_eq!(other.applied("r").unwrap(), Applied::default());
    let applied = Applied {
        commit_time: Some(Timestamp(7)),
        state: "blocked".to_owned(),
        lsn: Some(Lsn::from(16)),
        lag_bytes: 7,
        heard: None,
        error: Some("it's full".to_owned()),
        age: None,
        spool: Some(SpoolStats {
            bytes: 5,
            limit: 9,
            from: Lsn::from(16),
            to: Lsn::from(20),
            full: Some(SpoolFull {
                by: Some(FullBy::Disk),
                words: "so".to_owned(),
            }),
        }),
        writers: Some((2, "tried".to_owned())),
        unreplicated: Some(Unreplicated {
            tables: 2,
            words: Some("public.t".to_owned()),
        }),
        cycles: Some(CyclesNow {
            running: Some(RunningCycle {
                number: 3,
                elapsed: Duration::from_millis(1500),
                remaining: None,
                sent_bytes: 9,
                lsn: Lsn::from(17),
            }),
            next: Duration::from_secs(2),
            late: Duration::ZERO,
        }),
    };
    other.set_applied("r", &applied).unwrap();
    let read = other.applied("r").unwrap();
    assert!(read.age.is_some() && read.heard.is_none(), "{read:?}");
    assert_eq!(Applied { age: None, ..read }, applied);
    let heard = Some(Duration::from_secs(1_000));
    other
        .set_applied("r", &Applied { heard, ..applied })
        .unwrap();
    assert!(other.applied("r").unwrap().heard >= heard);
    // Without a spool nothing of an earlier one is left.
    other.set_applied("r", &Applied::default()).unwrap();
    assert_eq!(other.applied("r").unwrap().spool, None);

    let table = TableName {
        schema: "s".to_owned(),
        table: "t".to_owned(),
    };
    other.add_tables("r", &[(table.clone(), 7)]).unwrap();
    for rows in [3, 4] {
        sql(&target)
            .query_with(ADD_MISSING, &[&"r", &table.schema, &table.table, &rows])
            .unwrap();
    }
    assert_eq!(other.tables("r").unwrap()[0].missing, 7);
}

#[test]
fn a_hold_is_wanted_while_its_session_lives_and_its_time_is_not_over() {
    let lab = Lab::for_tests().unwrap();
    let target = server(&lab, "target");
    let conninfo = conninfo(&target);
    let mut apply = ReplicaState::open(&conninfo).unwrap();
    apply.add(&replica("r")).unwrap();
    let (first, lsn) = (Lsn::from(1), Lsn::from(100));
    let session = || ReplicaState::find(&conninfo).unwrap().unwrap();
    let mut verify = session();
    let hour = Duration::from_secs(3600);
    assert!(verify.begin_hold("r", first, hour).unwrap());
    assert!(!session().begin_hold("r", first, hour).unwrap());
    assert_eq!(apply.wanted_hold("r").unwrap(), Some(first));
    assert_eq!(apply.wanted_hold("q").unwrap(), None);
    assert_eq!(verify.held("r").unwrap(), Held::NotYet);
    let seen = apply.hold("r").unwrap().unwrap();
    assert_eq!(seen.pid, verify.connection().backend_pid());
    assert_eq!(seen.user.as_deref(), Some(SUPERUSER));
    assert!(seen.age.is_some() && seen.client.is_none(), "{seen:?}");
    assert_eq!((seen.at, apply.hold("q").unwrap()), (None, None));
    // An answer to what was asked before counts for nothing.
    verify.raise_hold("r", lsn).unwrap();
    apply.set_held("r", first).unwrap();
    assert_eq!(verify.held("r").unwrap(), Held::NotYet);
    apply.set_held("r", lsn).unwrap();
    apply.end_unwanted_hold("r").unwrap();
    assert_eq!(verify.held("r").unwrap(), Held::At(lsn));
    assert_eq!(apply.hold("r").unwrap().unwrap().at, Some(lsn));
    // Another process begins to apply.
    apply.end_answered_hold("r").unwrap();
    assert_eq!(verify.held("r").unwrap(), Held::Ended);

    assert!(verify.begin_hold("r", first, Duration::ZERO).unwrap());
    assert_eq!(apply.wanted_hold("r").unwrap(), None, "its time is over");
    assert_eq!(apply.hold("r").unwrap(), None, "its time is over");
    apply.end_answered_hold("r").unwrap();
    assert_eq!(
        verify.held("r").unwrap(),
        Held::NotYet,
        "nobody has answered"
    );
    apply.end_unwanted_hold("r").unwrap();
    assert_eq!(verify.held("r").unwrap(), Held::Ended);

    assert!(verify.begin_hold("r", first, hour).unwrap());
    drop(verify);
    let mut next = session();
    while apply.wanted_hold("r").unwrap().is_some() {
        pause();
    }
    assert!(next.begin_hold("r", lsn, hour).unwrap());
    assert_eq!(apply.wanted_hold("r").unwrap(), Some(lsn));
    next.end_hold("r").unwrap();
    assert_eq!(apply.wanted_hold("r").unwrap(), None);
}

/// Takes from a state what was added after its first version.
pub const VERSION_1: &str = "
    ALTER TABLE lockstep.replica DROP apply_pid, DROP heard_at, DROP timeline,
        DROP spool_bytes, DROP spool_limit, DROP spool_from, DROP spool_to, DROP spool_full,
        DROP unreplicated_tables, DROP unreplicated, DROP unmade_objects, DROP unmade,
        DROP frequency_ms, DROP forces, DROP cycle_number, DROP cycle_elapsed_ms,
        DROP cycle_remaining_ms, DROP cycle_bytes, DROP cycle_lsn, DROP cycle_next_ms,
        DROP cycle_late_ms, DROP writers, DROP writers_why, DROP spool_full_by,
        DROP applied_commit, DROP promote_lsn, DROP promote_loses, DROP promote_sequences,
        DROP promote_left, DROP promoted_lsn, DROP promoted_at, DROP switchover, DROP ddl,
        DROP altering, DROP read_only, DROP bandwidth;
    ALTER TABLE lockstep.table_copy DROP missing_rows, DROP source_oid,
        DROP target_oid, DROP doubt;
    DROP TABLE lockstep.hold, lockstep.subset, lockstep.apply_position, lockstep.publication,
        lockstep.unmade, lockstep.cycle, lockstep.attached, lockstep.ddl;
    ALTER TABLE lockstep.state_version DROP system_id, DROP database_oid;
    UPDATE lockstep.state_version SET version = 1";

#[test]
fn an_older_states_version_is_upgraded() {
    let lab = Lab::for_tests().unwrap();
    let target = server(&lab, "target");
    ReplicaState::open(&conninfo(&target))
        .unwrap()
        .add(&replica("r"))
        .unwrap();
    on(&target, VERSION_1);
    on(&target, "CREATE ROLE reader LOGIN IN ROLE pg_monitor");
    let reader = conninfo(&target).with("user", "reader").unwrap();
    let error = ReplicaState::find(&reader).unwrap_err().to_string();
    assert!(error.contains("older version"), "{error}");
    let mut state = state_of(&target);
    assert_eq!(state.applied("r").unwrap(), Applied::default());
    assert_eq!(state.wanted_hold("r").unwrap(), None);
    let read = state.replica("r").unwrap().unwrap();
    assert_eq!(
        read,
        Replica {
            subsets: Vec::new(),
            ..replica("r")
        }
    );
    let mut monitor = ReplicaState::find(&reader).unwrap().unwrap();
    assert_eq!(monitor.replicas().unwrap(), [read], "it may read all of it");
}

#[test]
fn a_newer_states_version_is_refused() {
    let lab = Lab::for_tests().unwrap();
    let target = server(&lab, "target");
    let conninfo = conninfo(&target);
    drop(ReplicaState::open(&conninfo).unwrap());
    on(&target, "UPDATE lockstep.state_version SET version = 99");
    for error in [
        ReplicaState::open(&conninfo).unwrap_err(),
        ReplicaState::find(&conninfo).unwrap_err(),
    ] {
        let words = error.to_string();
        assert_has!(words, "version 99", "newer");
    }
}

#[test]
fn what_is_done_is_on_disk_whatever_the_server_does() {
    let lab = Lab::for_tests().unwrap();
    let mut target = server(&lab, "target");
    let mut state = ReplicaState::open(&conninfo(&target)).unwrap();
    state.add(&replica("r")).unwrap();
    // Nothing is written to disk by itself.
    target
        .set([("synchronous_commit", "off"), ("wal_writer_delay", "10s")])
        .unwrap();
    target.reload().unwrap();
    let ours = "SELECT pg_current_wal_insert_lsn() = pg_current_wal_flush_lsn()";
    drop(state);
    let mut state = ReplicaState::open(&conninfo(&target)).unwrap();
    for paused in [true, false] {
        assert!(state.set_paused("r", paused).unwrap());
        assert_eq!(crate::values(&target, ours), ["t"]);
    }
}
