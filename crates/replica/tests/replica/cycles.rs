//! A replica with a frequency: between its cycles the target stands still, and a cycle is one commit.

use std::path::PathBuf;
use std::time::Duration;

use lockstep_apply::{Control, Phase, SpoolConfig, Stats};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;
use lockstep_replica::lifecycle::create::{CreateOptions, create};
use lockstep_replica::lifecycle::follow::{Following, follow};
use lockstep_replica::state::{Cycle, Forced, ReplicaState};
use lockstep_replica::verify::named::replica as verify;

use crate::apply_lab::{Ends, LONG, until};
use crate::{Told, conninfo, on, options, server, sql, state_of, to_verify, values};

const HOUR: Duration = Duration::from_secs(3600);

const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (n int); \
    ALTER TABLE u REPLICA IDENTITY FULL; CREATE TABLE big (id bigint PRIMARY KEY); CREATE TABLE still (id int PRIMARY KEY); CREATE SEQUENCE s; \
    INSERT INTO still SELECT generate_series(1, 10)";

struct Cycling {
    source: Server,
    target: Server,
    spool: PathBuf,
    memory: usize,
    limit: u64,
    // Last: it ends what still runs.
    _lab: Lab,
}

impl Cycling {
    fn new(frequency: Duration) -> Self {
        let lab = Lab::for_tests().unwrap();
        let (source, target) = (server(&lab, "source"), server(&lab, "target"));
        on(&source, SCHEMA);
        let options = CreateOptions {
            frequency,
            ..options(&source, &target)
        };
        create(&options, &mut Told::default()).unwrap();
        Self {
            source,
            target,
            spool: lab.folder().join("spool"),
            memory: lockstep_apply::MEMORY,
            limit: 1 << 30,
            _lab: lab,
        }
    }

    fn following(&self) -> Following {
        Following {
            memory: self.memory,
            spool: Some(SpoolConfig {
                folder: self.spool.clone(),
                limit: self.limit,
            }),
            ..crate::following(&conninfo(&self.target))
        }
    }

    /// Follows while something happens.
    fn while_following(&self, happens: impl FnOnce(&Control)) {
        let control = Control::default();
        let (what, given) = (self.following(), control.clone());
        std::thread::scope(|scope| {
            let _ends = Ends(&control);
            let following = scope.spawn(move || follow(&what, &given));
            happens(&control);
            control.stop();
            following.join().unwrap().unwrap();
        });
    }

    fn state(&self) -> ReplicaState {
        state_of(&self.target)
    }

    fn run(&self, statement: &str) {
        self.source.rows_in("copy", statement).unwrap();
    }

    /// Waits until the slot confirms what is committed now: it is in the spool.
    fn spooled(&self) {
        let end = self.source.flush_lsn().unwrap();
        let slot = self.state().replica("r").unwrap().unwrap().slot;
        until("that all is in the spool", || {
            sql(&self.source).slot(&slot).unwrap().unwrap().confirmed >= end
        });
    }

    fn cycles(&self) -> Vec<Cycle> {
        self.state().cycles("r", 100).unwrap()
    }

    fn until_done(&self, number: u64) -> Cycle {
        let mut found = None;
        until("that a cycle has ended", || {
            let mut cycles = self.cycles().into_iter();
            found = cycles.find(|it| it.number == number && it.state == "done");
            found.is_some()
        });
        found.unwrap()
    }

    fn force(&self) -> Cycle {
        let request = self.state().force("r").unwrap().unwrap();
        let mut ended = Forced::NotYet;
        until("that a forced cycle has ended", || {
            ended = self.state().forced("r", request).unwrap();
            ended != Forced::NotYet
        });
        match ended {
            Forced::Ended(cycle) => cycle,
            Forced::NotYet => unreachable!(),
        }
    }

    fn assert_same(&self) {
        for table in ["t", "u", "big", "still"] {
            let all = format!(
                "SELECT count(*) || ' ' || coalesce(sum(hashtext(x::text)), 0) FROM {table} x"
            );
            assert_eq!(
                values(&self.source, &all),
                values(&self.target, &all),
                "{table}"
            );
        }
    }

    fn on_target(&self, query: &str) -> String {
        values(&self.target, query).remove(0)
    }
}

#[test]
fn a_cycle_is_one_commit_with_its_position_and_figures_and_nothing_moves_between_cycles() {
    let cycling = Cycling::new(HOUR);
    cycling.while_following(|_| {
        let first = cycling.until_done(1);
        assert_eq!((first.rows, first.tables, first.transactions), (0, 0, 0));
        for n in 0..30 {
            cycling.run(&format!("BEGIN; INSERT INTO t VALUES ({n}, 'a'); INSERT INTO u VALUES ({n}); COMMIT"));
        }
        cycling.run("UPDATE t SET v = 'b' WHERE id < 10");
        // The source keeps no WAL for what waits.
        cycling.spooled();
        let still = cycling.on_target("SELECT count(*) FROM t");
        assert_eq!((still.as_str(), cycling.cycles().len()), ("0", 1));
        let cycle = cycling.force();
        cycling.assert_same();
        assert_eq!((cycle.number, cycle.state.as_str()), (2, "done"));
        assert_eq!((cycle.rows, cycle.tables, cycle.transactions), (70, 2, 31));
        assert!(cycle.sent_bytes > 0 && cycle.write_bytes > 0 && cycle.bandwidth > 0, "{cycle:?}");
        // Rows, position and figures have one transaction, and the tables that did not change have none.
        let commits = "SELECT count(DISTINCT x) FROM (SELECT xmin::text x FROM t UNION SELECT xmin::text FROM u \
             UNION SELECT xmin::text FROM lockstep.cycle WHERE cycle = 2 \
             UNION SELECT p.xmin::text FROM lockstep.apply_position p JOIN lockstep.cycle c USING (lsn) \
                 WHERE c.cycle = 2) all_of_it";
        assert_eq!(cycling.on_target(commits), "1");
        let positions = "SELECT count(*) FROM lockstep.apply_position p JOIN lockstep.cycle c USING (lsn) \
             WHERE c.cycle = 2";
        assert_eq!(cycling.on_target(positions), "1");
        // A cycle without changes leaves a row as well.
        let empty = cycling.force();
        assert_eq!((empty.number, empty.rows, empty.tables), (3, 0, 0));
    });
}

#[test]
fn deleted_rows_travel_as_packed_keys() {
    const ROWS: u64 = 30_000;
    let cycling = Cycling::new(HOUR);
    cycling.while_following(|_| {
        cycling.until_done(1);
        cycling.run(&format!(
            "INSERT INTO t SELECT n, 'a' FROM generate_series(1, 3 * {ROWS}) n"
        ));
        cycling.run(&format!(
            "INSERT INTO big SELECT ('x' || substr(md5(n::text), 1, 16))::bit(64)::bigint \
             FROM generate_series(1, {ROWS}) n"
        ));
        cycling.spooled();
        cycling.force();
        cycling.assert_same();
        let deletes = |statement: &str| {
            cycling.run(statement);
            cycling.spooled();
            let cycle = cycling.force();
            cycling.assert_same();
            assert_eq!(cycle.rows, ROWS);
            cycle.write_bytes as f64 / ROWS as f64
        };
        let scattered = deletes("DELETE FROM t WHERE id % 3 = 0");
        assert!(scattered <= 5.0, "{scattered}");
        let dense = deletes(&format!("DELETE FROM t WHERE id <= 1.5 * {ROWS}"));
        assert!(dense <= 5.0, "{dense}");
        let random = deletes("DELETE FROM big");
        assert!(random <= 9.0, "{random}");
    });
}

#[test]
fn a_cycle_that_does_not_fit_into_memory_is_one_commit() {
    let mut cycling = Cycling::new(HOUR);
    cycling.memory = lockstep_apply::LEAST_MEMORY;
    cycling.while_following(|control| {
        cycling.until_done(1);
        for from in 0..20 {
            cycling.run(&format!(
                "INSERT INTO t SELECT {from} * 1000 + n, repeat(md5(n::text), 20) FROM generate_series(1, 1000) n"
            ));
        }
        cycling.run("DELETE FROM t WHERE id % 7 = 0; TRUNCATE still; INSERT INTO u SELECT 1");
        cycling.spooled();
        let before = control.stats().batches;
        let cycle = cycling.force();
        cycling.assert_same();
        assert!(cycle.sent_bytes > 10 * cycling.memory as u64, "{cycle:?}");
        assert_eq!(control.stats().batches, before + 1);
        assert_eq!(cycling.on_target("SELECT count(DISTINCT xmin::text) FROM t"), "1");
    });
}

#[test]
fn a_cycle_that_the_target_refuses_leaves_why_and_what_comes_before_is_applied() {
    let cycling = Cycling::new(HOUR);
    cycling.while_following(|control| {
        cycling.until_done(1);
        on(&cycling.target, "INSERT INTO t VALUES (5, 'mine')");
        cycling.run("INSERT INTO t VALUES (4, 'before')");
        cycling.run("INSERT INTO t VALUES (5, 'theirs')");
        cycling.run("INSERT INTO t VALUES (6, 'after')");
        cycling.spooled();
        let failed = cycling.force();
        assert_eq!((failed.number, failed.state.as_str()), (2, "failed"));
        assert_has!(failed.error.as_ref().unwrap(), "duplicate key");
        assert!(control.wait_for(LONG, |stats| stats.phase == Phase::Blocked));
        assert!(control.stats().cycles_failed > 0);
        assert_eq!(
            cycling.on_target("SELECT string_agg(v, ' ' ORDER BY id) FROM t"),
            "before mine"
        );
        on(&cycling.target, "DELETE FROM t WHERE id = 5");
        cycling.state().set_paused("r", false).unwrap();
        // It is the same cycle.
        let done = cycling.until_done(2);
        assert!(done.failures > 0 && done.error.is_none(), "{done:?}");
        // Its figures are those of all its transactions, although they had several commits.
        assert_eq!((done.transactions, done.rows, done.tables), (3, 3, 1));
        let rate = done.sent_bytes * 1000 / done.elapsed_ms.max(1);
        assert_eq!(done.bandwidth, rate, "{done:?}");
        // At least the three values of the column v.
        assert!(
            done.write_bytes >= "before theirs after".len() as u64,
            "{done:?}"
        );
        cycling.assert_same();
    });
}

#[test]
fn a_cycle_is_committed_once_a_second_without_being_asked_for() {
    let cycling = Cycling::new(Duration::from_secs(1));
    cycling.while_following(|_| {
        cycling.run("INSERT INTO t VALUES (1, 'a')");
        until("that the row is there", || {
            cycling.on_target("SELECT count(*) FROM t") == "1"
        });
        let seen = cycling.cycles()[0].number;
        cycling.until_done(seen + 2);
    });
    // On a busy machine the target may get what a cycle has done some time later than the next one's.
    let early = "SELECT count(*) FROM (SELECT start_time - lag(start_time) OVER (ORDER BY cycle) AS every \
         FROM lockstep.cycle) c WHERE every < '0.3 s'";
    assert_eq!(cycling.on_target(early), "0");
    // A process that comes later counts on.
    let before = cycling.cycles()[0].number;
    cycling.while_following(|_| drop(cycling.until_done(before + 1)));
}

/// A source that has committed more than the spool takes is no source without news, whoever begins.
#[test]
fn a_process_that_begins_takes_no_source_for_idle_that_has_more_than_the_spool() {
    let mut cycling = Cycling::new(Duration::from_secs(1));
    cycling.limit = 1 << 20;
    let full = |control: &Control| {
        let is_full = |stats: &Stats| {
            let spool = stats.spool.as_ref();
            spool.is_some_and(|spool| spool.full.is_some())
        };
        assert!(control.wait_for(LONG, is_full), "{:?}", control.stats());
    };
    cycling.while_following(|control| {
        cycling.until_done(1);
        cycling.run("INSERT INTO t SELECT n, repeat('x', 30) FROM generate_series(1, 50000) n");
        full(control);
    });
    let before = cycling.cycles().remove(0);
    for _ in 0..3 {
        cycling.while_following(full);
    }
    let untrue = cycling.cycles().into_iter();
    let untrue: Vec<_> = untrue
        .filter(|it| it.number > before.number && it.lsn <= before.lsn)
        .collect();
    assert_eq!(untrue, []);
    cycling.limit = 1 << 30;
    cycling.while_following(|_| {
        until("that all is there", || {
            cycling.on_target("SELECT count(*) FROM t") == "50000"
        });
    });
}

#[test]
fn a_frequency_needs_a_spool_and_can_be_altered() {
    let cycling = Cycling::new(HOUR);
    let without = Following {
        spool: None,
        ..cycling.following()
    };
    let error = follow(&without, &Control::default())
        .unwrap_err()
        .to_string();
    assert_has!(error, "needs a spool", "--spool-dir");
    cycling.while_following(|_| {
        cycling.until_done(1);
        cycling.run("INSERT INTO t VALUES (1, 'a')");
        cycling.spooled();
        assert_eq!(cycling.on_target("SELECT count(*) FROM t"), "0");
        assert!(cycling.state().set_frequency("r", Duration::ZERO).unwrap());
        until("that it is applied as it comes", || {
            cycling.on_target("SELECT count(*) FROM t") == "1"
        });
        assert_eq!(cycling.cycles().len(), 1);
        assert!(cycling.state().set_frequency("r", HOUR).unwrap());
        until("that it stands still again", || {
            let applied = cycling.state().applied("r").unwrap();
            applied.cycles.is_some()
        });
        cycling.run("INSERT INTO t VALUES (2, 'b')");
        assert_eq!(cycling.force().state, "done");
        cycling.assert_same();
    });
}

#[test]
fn sequences_follow_after_each_cycle_and_without_cycles_after_changes() {
    let cycling = Cycling::new(HOUR);
    let value = "SELECT last_value || ' ' || is_called FROM s";
    let follow = |what: &str| {
        let there = values(&cycling.source, value).remove(0);
        until(what, || cycling.on_target(value) == there);
    };
    cycling.while_following(|_| {
        cycling.until_done(1);
        cycling.run("SELECT nextval('s') FROM generate_series(1, 5)");
        cycling.run("INSERT INTO t VALUES (1, 'a')");
        cycling.spooled();
        assert_eq!(cycling.force().state, "done");
        follow("that a cycle brings a sequence");
        assert_eq!(cycling.on_target(value), "5 true");
        // A cycle without rows brings it as well.
        cycling.run("SELECT setval('s', 3, false)");
        cycling.spooled();
        assert_eq!(cycling.force().rows, 0);
        follow("that an empty cycle brings a sequence");
        assert!(cycling.state().set_frequency("r", Duration::ZERO).unwrap());
        cycling.run("SELECT nextval('s') FROM generate_series(1, 7)");
        follow("that it comes without cycles");
        assert_eq!(cycling.on_target(value), "9 true");
    });
    // A process that was killed right after a cycle's commit has not set it: the next one does, before its
    // next cycle.
    assert!(cycling.state().set_frequency("r", HOUR).unwrap());
    on(&cycling.target, "SELECT setval('s', 1)");
    cycling.while_following(|_| follow("that a process that begins sets it"));
}

#[test]
fn verify_compares_a_replica_that_stands_still_between_cycles() {
    let cycling = Cycling::new(HOUR);
    cycling.while_following(|_| {
        cycling.until_done(1);
        cycling.run("INSERT INTO t SELECT n, 'a' FROM generate_series(1, 100) n");
        let what = to_verify(conninfo(&cycling.target));
        let report = verify(&what, &mut |_| {}).unwrap();
        assert!(report.is_equal(), "{report:?}");
        cycling.assert_same();
        // And has its cycles again.
        assert_eq!(cycling.force().state, "done");
    });
}
