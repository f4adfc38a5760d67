//! A creation gives way to others while it makes its slot, and says whom it waits for.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use lockstep_client::{Connection, Purpose};
use lockstep_lab::server::Server;
use lockstep_replica::copy::progress::Moment;
use lockstep_replica::error::Finding;
use lockstep_replica::error::Result;
use lockstep_replica::lifecycle::Watcher;
use lockstep_replica::lifecycle::create::{Created, create};
use lockstep_replica::lifecycle::remove::remove;
use lockstep_replica::state::{Phase, Replica, ReplicaState, system_id};

use crate::apply_lab::{LONG, until};
use crate::{Told, begun, conninfo, options, pair, sql, values};

/// Tells the test what is waited for, while it is.
struct Teller(Sender<String>);

impl Watcher for Teller {
    fn found(&mut self, _: &[Finding]) {}
    fn phase(&mut self, _: Phase, _: bool) {}
    fn progress(&mut self, _: &Moment) {}
    fn waits(&mut self, words: &str) {
        let _ = self.0.send(words.to_owned());
    }
}

fn begin(source: &Server, target: &Server) -> (JoinHandle<Result<Created>>, Receiver<String>) {
    let (teller, told) = mpsc::channel();
    let options = options(source, target);
    (
        thread::spawn(move || create(&options, &mut Teller(teller))),
        told,
    )
}

/// Waits until that is told.
fn expect(told: &Receiver<String>, parts: &[&str]) {
    loop {
        let words = told.recv_timeout(LONG).unwrap();
        if parts.iter().all(|part| words.contains(part)) {
            return;
        }
    }
}

const TABLES: &str = "CREATE TABLE log (x int PRIMARY KEY); CREATE TABLE k (id int PRIMARY KEY); \
    INSERT INTO k SELECT generate_series(1, 10)";

#[test]
fn a_transaction_that_needs_the_locks_gets_them() {
    let (_lab, source, target) = pair(TABLES);
    let mut application = sql(&source);
    application.set_patience(LONG);
    application
        .execute("BEGIN; INSERT INTO log VALUES (1)")
        .unwrap();
    let (creation, told) = begin(&source, &target);
    let pid = application.backend_pid();
    let who = format!("process {pid} (role");
    expect(&told, &["the slot waits for the end of transactions", &who]);
    // It waits for the locks of the creation, whose slot waits for this transaction.
    application
        .execute("SET LOCAL lock_timeout = '60s'; TRUNCATE k; INSERT INTO k VALUES (1)")
        .unwrap();
    expect(&told, &["others wait for the locks", &who, "tried again"]);
    application.execute("COMMIT").unwrap();
    creation.join().unwrap().unwrap();
    assert_eq!(values(&target, "SELECT id FROM k"), ["1"]);
    assert_eq!(values(&target, "SELECT x FROM log"), ["1"]);
    let slots = "SELECT count(*) FROM pg_replication_slots";
    assert_eq!(values(&source, slots), ["1"]);
}

#[test]
fn a_table_that_others_have_locked_is_not_waited_for_in_silence() {
    let (_lab, source, target) = pair(TABLES);
    let mut application = sql(&source);
    application
        .execute("BEGIN; LOCK TABLE k IN SHARE MODE")
        .unwrap();
    let (creation, told) = begin(&source, &target);
    expect(&told, &["others have locked a table of the source"]);
    application.execute("COMMIT").unwrap();
    creation.join().unwrap().unwrap();
    assert_eq!(values(&target, "SELECT count(*) FROM k"), ["10"]);
}

#[test]
fn who_waits_to_change_a_table_does_not_wait_for_a_copy_that_waits_for_them() {
    let (_lab, source, target) = pair(TABLES);
    let (changes, change) = mpsc::channel();
    let from = conninfo(&source);
    let mut told = Told {
        at_phase: Some(Box::new(move |phase| {
            if phase != Phase::Copying {
                return;
            }
            let connect = || Connection::connect(&from, Purpose::Sql, "test").unwrap();
            let (mut changing, mut looking) = (connect(), connect());
            changing.set_patience(LONG);
            changes
                .send(thread::spawn(move || {
                    changing.execute("ALTER TABLE k ADD v text")
                }))
                .unwrap();
            let waiting = "SELECT 1 FROM pg_locks WHERE NOT granted";
            until("that it waits", || {
                !looking.query(waiting).unwrap().is_empty()
            });
        })),
        ..Told::default()
    };
    let error = create(&options(&source, &target), &mut told).unwrap_err();
    change.recv().unwrap().join().unwrap().unwrap();
    let words = error.to_string();
    assert!(words.contains("run the same command again"), "{words}");
}

#[test]
fn a_drop_ends_the_session_that_still_makes_the_slot() {
    let (_lab, source, target) = pair(TABLES);
    let replica = Replica {
        source: conninfo(&source).to_string(),
        system_id: system_id(&mut sql(&source)).unwrap(),
        ..begun("r", "lockstep_r_1")
    };
    let mut state = ReplicaState::open(&conninfo(&target)).unwrap();
    state.add(&replica).unwrap();
    drop(state);
    let mut application = sql(&source);
    application
        .execute("BEGIN; INSERT INTO log VALUES (1)")
        .unwrap();
    let from = conninfo(&source);
    let making = thread::spawn(move || {
        let mut maker = Connection::connect(&from, Purpose::Replication, "test").unwrap();
        maker.set_patience(LONG);
        maker.create_slot_with_snapshot("lockstep_r_1", "pgoutput", false, false)
    });
    let slots = "SELECT slot_name FROM pg_replication_slots WHERE active_pid IS NOT NULL";
    until("that the slot is being made", || {
        !values(&source, slots).is_empty()
    });
    remove("r", &conninfo(&target), None).unwrap();
    assert!(values(&source, "SELECT slot_name FROM pg_replication_slots").is_empty());
    assert!(making.join().unwrap().is_err());
}
