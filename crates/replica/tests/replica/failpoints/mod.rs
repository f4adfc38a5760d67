//! A process that is killed at each named failpoint, and what goes on after it.
//!
//! Each source transaction adds the next number to table `log`, which has no key: so a transaction that
//! is applied twice is there twice, and one that is left out is a gap.

mod alter;
mod apply;
mod create;
mod cycles;
mod ddl;
mod killed;
mod others;
pub mod process;
mod promote;
mod spool;
mod switchover;

use std::cell::RefCell;
use std::collections::BTreeSet;

use lockstep_apply::SpoolConfig;
use lockstep_client::field;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;
use lockstep_replica::state::failpoint;
use lockstep_spool::failpoint::Failpoint;
use lockstep_wire::Lsn;

use self::process::{Death, Does, Process, Starts, said};
use crate::apply_lab::until;
use crate::{Told, conninfo, create_options, on, server, values};

const SCHEMA: &str = "CREATE TABLE log (n int, v text); ALTER TABLE log REPLICA IDENTITY FULL; \
    CREATE TABLE k (id int PRIMARY KEY, c int NOT NULL DEFAULT 0, v text UNIQUE); \
    CREATE TABLE emptied (n int); ALTER TABLE emptied REPLICA IDENTITY FULL; \
    CREATE TABLE much (n int, v text); ALTER TABLE much REPLICA IDENTITY FULL";

/// The newest number in the log, how many there are, and where the target stands: at one moment.
const STANDS: &str = "SELECT coalesce(max(n), 0), count(*), count(DISTINCT n), \
        (SELECT greatest(r.start_lsn, (SELECT max(lsn) FROM lockstep.apply_position)) \
         FROM lockstep.replica r) \
    FROM log";

/// A source, and a target with replica r of it.
struct Scene {
    source: Server,
    target: Server,
    spool: Option<SpoolConfig>,
    /// For each number in the log, where the source stood before and after the transaction.
    written: RefCell<Vec<(Lsn, Lsn)>>,
    // Last: it ends what still runs.
    lab: Lab,
}

impl Scene {
    /// Without a replica yet.
    fn bare() -> Self {
        let lab = Lab::for_tests().unwrap();
        let (source, target) = (server(&lab, "source"), server(&lab, "target"));
        on(&source, SCHEMA);
        Self {
            source,
            target,
            spool: None,
            written: RefCell::default(),
            lab,
        }
    }

    fn new() -> Self {
        Self::of(Self::bare())
    }

    /// The scene with replica r.
    fn of(scene: Self) -> Self {
        let options = create_options(conninfo(&scene.source), conninfo(&scene.target));
        lockstep_replica::lifecycle::create::create(&options, &mut Told::default()).unwrap();
        scene
    }

    fn starts(&self, writers: usize) -> Starts {
        Starts {
            source: conninfo(&self.source),
            target: conninfo(&self.target),
            writers,
            spool: self.spool.clone(),
            log: self.lab.folder().join("processes.log"),
        }
    }

    fn start(&self, does: Does, writers: usize, death: Option<Death>) -> Process {
        self.starts(writers).start(does, death)
    }

    /// What the processes have said.
    fn said(&self) -> String {
        said(&self.starts(1).log)
    }

    fn next(&self) -> usize {
        self.written.borrow().len() + 1
    }

    /// The next transaction of the source; `more` is part of it.
    fn write(&self, more: &str) {
        let at = || {
            let at = values(&self.source, "SELECT pg_current_wal_insert_lsn()");
            at[0].parse::<Lsn>().unwrap()
        };
        let (before, n) = (at(), self.next());
        let transaction = format!(
            "BEGIN; INSERT INTO log VALUES ({n}, 'v'); INSERT INTO k VALUES ({n}); \
             UPDATE k SET c = c + 1 WHERE id = {n} - 10; {more}; COMMIT"
        );
        self.source.rows_in("copy", &transaction).unwrap();
        self.written.borrow_mut().push((before, at()));
    }

    /// The target is what the source was after one of its transactions, and knows which; the source has
    /// confirmed nothing that is not durable on the target, or in the spool.
    fn assert_prefix(&self) {
        // First: a process may get on meanwhile.
        let confirmed = self.confirmed();
        let row = self.target.rows_in("copy", STANDS).unwrap().remove(0);
        let number = |place| field::<usize>(&row, place).unwrap();
        let (newest, said) = (number(0), || self.said());
        assert_eq!((number(1), number(2)), (newest, newest), "{}", said());
        let stands: Lsn = field(&row, 3).unwrap();
        let written = self.written.borrow();
        if let Some((before, _)) = newest.checked_sub(1).and_then(|at| written.get(at)) {
            assert!(*before < stands, "{stands} {before} {}", said());
        }
        if let Some((_, after)) = written.get(newest) {
            assert!(stands < *after, "{stands} {after} {}", said());
        }
        if self.spool.is_none() {
            assert!(confirmed <= stands, "{confirmed} {stands} {}", said());
        }
    }

    /// A process applies to the replica, and has said so.
    fn is_applied_to(&self) -> bool {
        let applies = "SELECT apply_state = 'applying' AND EXISTS (SELECT FROM pg_stat_activity \
             WHERE pid = apply_pid) FROM lockstep.replica";
        values(&self.target, applies) == ["t"]
    }

    fn confirmed(&self) -> Lsn {
        let slot = &values(&self.target, "SELECT slot FROM lockstep.replica")[0];
        let confirmed = format!(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'"
        );
        values(&self.source, &confirmed)[0].parse().unwrap()
    }

    /// Waits until all is applied that is committed on the source now.
    fn assert_applied(&self) {
        let end = self.source.flush_lsn().unwrap();
        let applied = format!("SELECT max(lsn) >= '{end}' FROM lockstep.apply_position");
        until("that all is applied", || {
            values(&self.target, &applied) == ["t"]
        });
        self.assert_prefix();
        for table in ["log", "k", "emptied", "much"] {
            let all = format!("SELECT count(*) || ' ' || sum(hashtext(t::text)) FROM {table} t");
            let (theirs, ours) = (values(&self.source, &all), values(&self.target, &all));
            assert_eq!(theirs, ours, "{table} {}", self.said());
        }
        let missing = "SELECT sum(missing_rows)::text FROM lockstep.table_copy";
        assert_eq!(values(&self.target, missing), ["0"], "{}", self.said());
    }

    /// Dies following, at a failpoint.
    fn dies(&mut self, writers: usize, death: Death, provoke: impl Fn(&Self)) {
        let mut process = self.start(Does::Follow, writers, Some(death));
        process.dies_at(death.at, || provoke(self));
        self.assert_prefix();
    }

    /// Goes on without a failpoint, and is killed again.
    fn goes_on(&self, writers: usize) {
        let _process = self.start(Does::Follow, writers, None);
        self.write("");
        self.assert_applied();
    }
}

/// Each failpoint that has a scenario.
fn covered() -> BTreeSet<Failpoint> {
    let parts = [
        alter::ORDER.to_vec(),
        create::ORDER.map(|(at, _)| at).to_vec(),
        apply::SCENARIOS.iter().map(|one| one.at).collect(),
        spool::SCENARIOS.iter().map(|one| one.at).collect(),
        cycles::COVERED.to_vec(),
        ddl::COVERED.to_vec(),
        others::COVERED.to_vec(),
        promote::ORDER.to_vec(),
        switchover::ORDER.to_vec(),
    ];
    parts.concat().into_iter().collect()
}

/// Each scenario's test also fails if its process does not die there.
#[test]
fn each_failpoint_has_a_scenario() {
    let all: BTreeSet<_> = failpoint::all().collect();
    assert_eq!(covered(), all);
    assert_eq!(all.len(), failpoint::all().count(), "a name is there twice");
}
